"""An authority that signs certificates for clients, in memory, as openssl and step do on disk."""

import datetime as dt
import itertools
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

BEGIN = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
END = dt.datetime(2060, 1, 1, tzinfo=dt.UTC)

_numbers = itertools.count(1)


def name(*parts: tuple[ObjectIdentifier, str]) -> x509.Name:
    """A subject, the most general part first."""
    return x509.Name([x509.NameAttribute(kind, value) for kind, value in parts])


class Authority:
    """One with a certificate of its own, which another has signed or it itself."""

    def __init__(self, common_name: str, issuer: "Authority | None" = None) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.subject = name((NameOID.COMMON_NAME, common_name))
        signer = issuer or self
        self.certificate = (
            _builder(self.subject, self.key, signer)
            .not_valid_before(BEGIN)
            .not_valid_after(END)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(signer.key, hashes.SHA256())
        )

    def write(self, path: Path) -> Path:
        """Its certificate in a file: what a `client_ca` names."""
        path.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))
        return path

    def issue(
        self,
        directory: Path,
        subject: x509.Name,
        *,
        end: dt.datetime = END,
        usage: ObjectIdentifier = ExtendedKeyUsageOID.CLIENT_AUTH,
        chain: "Sequence[Authority]" = (),
    ) -> tuple[Path, Path]:
        """A certificate and its key, in files; `chain` is what the client shows besides."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder(subject, key, self)
            .not_valid_before(BEGIN)
            .not_valid_after(end)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        directory.mkdir(exist_ok=True)
        cert_path, key_path = directory / "client.pem", directory / "client.key"
        certificates = [certificate, *(each.certificate for each in chain)]
        cert_path.write_bytes(b"".join(each.public_bytes(serialization.Encoding.PEM) for each in certificates))
        key_path.touch(0o600)
        key_path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return cert_path, key_path

    def revoke(self, path: Path, *certificates: Path, until: dt.datetime = END) -> Path:
        """A revocation list with these certificates, in a file: what a `client_crl` names."""
        builder = x509.CertificateRevocationListBuilder().issuer_name(self.subject).last_update(BEGIN)
        builder = builder.next_update(max(until, BEGIN + dt.timedelta(days=1)))
        for each in certificates:
            serial = x509.load_pem_x509_certificates(each.read_bytes())[0].serial_number
            revoked = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(BEGIN).build()
            builder = builder.add_revoked_certificate(revoked)
        path.write_bytes(builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return path


def _builder(subject: x509.Name, key: ec.EllipticCurvePrivateKey, signer: Authority) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(signer.subject)
        .public_key(key.public_key())
        .serial_number(next(_numbers))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key()), critical=False)
    )


ANN = name((NameOID.ORGANIZATION_NAME, "Example"), (NameOID.COMMON_NAME, "ann"))
