"""Creates, reads and renews certificates in files, for `acp-gateway certs`, and reads revocation lists (`client_crl`).

OpenSSL's own check of revocations is not used: it misses resumed TLS sessions and open connections, and an expired list
makes it refuse every client certificate.
"""

import logging
import os
import re
import socket
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from acp_gateway.errors import ConfigError, TrustError, UsageError
from acp_gateway.printable import printable
from acp_gateway.security.tls import certificate_subject, spki_pin

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes


_HOST_NAME = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?")

_VALID_DAYS = 3652
"""Ten years. What makes the certificate trusted is that its key was copied by hand; a date adds only an outage."""


class CreatedCertificate(NamedTuple):
    """Paths of a new certificate and its key, and its pin."""

    cert_path: Path
    key_path: Path
    pin: str


def create_certificate(hosts: Sequence[str], out_dir: Path) -> CreatedCertificate:
    """Write a self-signed certificate and its key as `cert.pem` and `key.pem` (0600) in `out_dir`.

    `hosts` are the names and IP addresses that it is for; an empty list means this machine's own and loopback. It can
    be used with its pin, and as its own authority (`--ca cert.pem`). Raises UsageError for a host that can't be in a
    certificate, ConfigError if such a file exists already, or can't be written.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    names = subject_alternative_names(hosts or default_hosts())
    cert_path, key_path = out_dir / "cert.pem", out_dir / "key.pem"
    for path in (cert_path, key_path):
        if os.path.exists(path):
            raise _not_overwritten(path)

    key = ec.generate_private_key(ec.SECP256R1())
    certificate = self_signed(key, x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "acp-gateway")]), names)
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot be created: {error.strerror}", file=str(out_dir)) from None
    _write_new(
        key_path,
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
        mode=0o600,
    )
    try:
        _write_new(cert_path, certificate.public_bytes(serialization.Encoding.PEM), mode=0o644)
    except ConfigError:
        key_path.unlink(missing_ok=True)  # It would be in the way of the next attempt.
        raise
    pin = spki_pin(certificate.public_bytes(serialization.Encoding.DER))
    return CreatedCertificate(cert_path, key_path, pin)


def self_signed(
    key: "CertificateIssuerPrivateKeyTypes", subject: "x509.Name", names: "Sequence[x509.GeneralName]"
) -> "x509.Certificate":
    """Make a certificate of this key for these names, valid from now on, and as its own authority."""
    # Imported here, because a client that starts must not wait for cryptography.
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ed448, ed25519
    from cryptography.x509.oid import ExtendedKeyUsageOID

    public_key = key.public_key()
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # The client's clock may be behind.
        .not_valid_after(now + timedelta(days=_VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        # The rest is what Python 3.13 (VERIFY_X509_STRICT) wants of a certificate that is its own authority.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=True,
                key_cert_sign=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                crl_sign=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public_key), critical=False)
        # These two hash by themselves.
        .sign(key, None if isinstance(key, ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey) else hashes.SHA256())
    )


def subject_alternative_names(hosts: Sequence[str]) -> "list[x509.GeneralName]":
    """Convert host names and IP addresses for a certificate. Raises UsageError for a text that is neither."""
    import ipaddress

    from cryptography import x509

    def name(host: str) -> x509.GeneralName:
        try:
            return x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            pass
        if _HOST_NAME.fullmatch(host) is None:
            raise UsageError(
                f"{host!r} is neither a host name (ASCII, without a port) nor an IP address (without brackets)"
            )
        return x509.DNSName(host)

    return [name(host) for host in dict.fromkeys(hosts)]


def default_hosts() -> list[str]:
    """Return the names of this machine, and loopback. May ask the DNS, and wait for it."""
    own = [name for name in (socket.gethostname(), socket.getfqdn()) if _HOST_NAME.fullmatch(name)]
    return list(dict.fromkeys([*own, "localhost", "127.0.0.1", "::1"]))


@dataclass(frozen=True, slots=True)
class Certificate:
    """The content of a certificate."""

    subject: str
    """As RFC 4514 writes it, and as `[certificates.NAME]` wants it."""
    issuer: str | None
    """Subject of the authority that has signed it; None if it is self-signed."""
    names: tuple[str, ...]
    """Host names and addresses that it is valid for."""
    begin: datetime
    end: datetime
    """First and last second of its validity, in UTC."""
    pin: str
    """The pin of its key."""


def read_certificate(path: Path) -> Certificate:
    """Read the first certificate in a PEM file. Raises ConfigError."""
    try:
        return _describe(_load(path)[0])
    except (TrustError, ValueError, TypeError):
        raise _unreadable(path) from None


def renew_certificate(directory: Path, hosts: Sequence[str] = ()) -> Certificate:
    """Replace `cert.pem` in `directory` by a new certificate for the same key, `key.pem`.

    It is for `hosts`, or, without any, for the names of the old one, and has the old one's subject. The file is
    replaced atomically, and keeps its owner and mode: a reader gets the old one or the new one.

    Raises UsageError for a host that can't be in a certificate, and ConfigError if the two files do not belong
    together, or if the certificate is not self-signed.
    """
    cert_path, key_path = directory / "cert.pem", directory / "key.pem"
    names = subject_alternative_names(hosts)
    chain = _load(cert_path)
    old = chain[0]
    key = _load_key(key_path)
    if len(chain) > 1 or not _is_self_signed(old):
        raise ConfigError(
            "was signed by an authority, not by its own key: renew it there, with the same key, which keeps the pin",
            file=str(cert_path),
        )
    if key.public_key() != old.public_key():
        raise ConfigError(f"is not the key of the certificate in {cert_path}", file=str(key_path))
    new = self_signed(key, old.subject, names or _alternative_names(old, cert_path))
    _replace(cert_path, new)
    return _describe(new)


def _load(path: Path) -> "list[x509.Certificate]":
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(_read(path))
    except (ValueError, x509.InvalidVersion):
        raise _unreadable(path) from None


def _unreadable(path: Path) -> ConfigError:
    return ConfigError("holds no certificate in PEM that can be read", file=str(path))


def _load_key(path: Path) -> "CertificateIssuerPrivateKeyTypes":
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa

    kinds = (ec.EllipticCurvePrivateKey, rsa.RSAPrivateKey, ed25519.Ed25519PrivateKey, ed448.Ed448PrivateKey)
    try:
        key = serialization.load_pem_private_key(_read(path), None)
    except TypeError:
        raise ConfigError(f"is protected by a passphrase: openssl pkey -in {path} -out NEW", file=str(path)) from None
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, kinds):
        raise ConfigError("holds no private key in PEM that could sign a certificate", file=str(path))
    return key


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError("there is no such file; `acp-gateway certs create` makes one", file=str(path)) from None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=str(path)) from None


def _describe(certificate: "x509.Certificate") -> Certificate:
    from cryptography.hazmat.primitives.serialization import Encoding

    der = certificate.public_bytes(Encoding.DER)
    return Certificate(
        subject=_line(certificate_subject(der)),
        issuer=None if _is_self_signed(certificate) else _line(certificate.issuer.rfc4514_string()),
        names=tuple(_line(str(getattr(name, "value", name))) for name in _names(certificate)),
        begin=certificate.not_valid_before_utc,
        end=certificate.not_valid_after_utc,
        pin=spki_pin(der),
    )


def _is_self_signed(certificate: "x509.Certificate") -> bool:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

    try:
        certificate.verify_directly_issued_by(certificate)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _names(certificate: "x509.Certificate") -> "list[x509.GeneralName]":
    from cryptography import x509

    try:
        return list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except (x509.ExtensionNotFound, ValueError):
        return []


def _alternative_names(certificate: "x509.Certificate", path: Path) -> "list[x509.GeneralName]":
    names = _names(certificate)
    if not names:
        raise ConfigError("names no host that a new one could be for: give --host", file=str(path))
    return names


def _replace(path: Path, certificate: "x509.Certificate") -> None:
    from cryptography.hazmat.primitives.serialization import Encoding

    # What a link leads to is replaced, and not the link.
    path = path.resolve()
    new = path.with_name(f"{path.name}.new")
    try:
        before = path.stat()
        new.unlink(missing_ok=True)  # Left by one that was killed.
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(certificate.public_bytes(Encoding.PEM))
            if hasattr(os, "geteuid"):
                if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                    # Root renews it for a gateway with a user of its own.
                    os.fchown(file.fileno(), before.st_uid, before.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot be replaced: {error.strerror}", file=str(path)) from None


def _line(text: str) -> str:
    """Escape text of a certificate for a terminal."""
    return printable(text, size=len(text))


def _not_overwritten(path: Path) -> ConfigError:
    return ConfigError(
        "exists and is not overwritten, because clients may rely on it; move it away, or choose another --out",
        file=str(path),
    )


def _write_new(path: Path, content: bytes, *, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
        except OSError:
            path.unlink(missing_ok=True)  # On a full disk it is empty.
            raise
    except FileExistsError:
        raise _not_overwritten(path) from None
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", file=str(path)) from None


log = logging.getLogger(__name__)

_BLOCK: Final = re.compile(rb"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----", re.DOTALL)


class CertificateId(NamedTuple):
    """Issuer and serial number, which identify a certificate in a revocation list."""

    issuer: bytes
    """The name of its authority, in DER."""
    serial: int


class RevocationList(NamedTuple):
    """The content of a `client_crl` file."""

    revoked: frozenset[CertificateId]
    expired: bool
    """True if a newer list is overdue."""


class Revocations:
    """The revoked certificates of all listeners: each list counts at every listener."""

    def __init__(self) -> None:
        self._lists: dict[Path, frozenset[CertificateId]] = {}

    def load(self, crl: Path, client_ca: Path) -> None:
        """Read a file, in place of its former content. Raises `ConfigError`, and keeps the former content then."""
        found = read_revocations(crl, client_ca)
        if found.expired:
            log.warning("%s has expired; it still counts, but its authority may have revoked others since", crl)
        self._lists[crl] = found.revoked

    def __contains__(self, certificate: CertificateId) -> bool:
        return any(certificate in revoked for revoked in self._lists.values())


def certificate_id(der: bytes) -> CertificateId:
    """Return the id by which a verified certificate is revoked."""
    from cryptography import x509

    certificate = x509.load_der_x509_certificate(der)
    return CertificateId(certificate.issuer.public_bytes(), certificate.serial_number)


def read_revocations(crl: Path, client_ca: Path, now: Callable[[], float] = time.time) -> RevocationList:
    """Read a file of lists in PEM, each signed by an authority in `client_ca`. Raises `ConfigError`."""
    from cryptography import x509

    try:
        blocks = _BLOCK.findall(crl.read_bytes())
        authorities = x509.load_pem_x509_certificates(client_ca.read_bytes())
    except OSError as error:
        raise _flaw(crl, f"cannot be read: {error.strerror}") from None
    except ValueError:
        raise ConfigError("holds no certificate in PEM", file=str(client_ca)) from None
    if not blocks:
        raise _flaw(crl, "holds no certificate revocation list in PEM (-----BEGIN X509 CRL-----)")
    revoked: set[CertificateId] = set()
    expired = False
    for block in blocks:
        try:
            found = x509.load_pem_x509_crl(block)
            issuer = found.issuer.public_bytes()
            revoked.update(CertificateId(issuer, entry.serial_number) for entry in found)
        except ValueError:
            raise _flaw(crl, "holds a revocation list that cannot be read") from None
        if not any(_has_signed(authority, found) for authority in authorities):
            raise _flaw(crl, f"holds a revocation list that no authority in {client_ca} has signed")
        next_update = found.next_update_utc
        expired = expired or (next_update is not None and next_update.timestamp() <= now())
    return RevocationList(frozenset(revoked), expired)


def _has_signed(authority: "x509.Certificate", crl: "x509.CertificateRevocationList") -> bool:
    if authority.subject != crl.issuer:
        return False
    try:
        return crl.is_signature_valid(authority.public_key())  # type: ignore[arg-type] # Any other raises TypeError.
    except (TypeError, ValueError):
        return False


def _flaw(path: Path, message: str) -> ConfigError:
    return ConfigError(message, file=str(path))
