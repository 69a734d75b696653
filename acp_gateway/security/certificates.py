"""Reads and renews certificates in files, for `acp-gateway certs`; no connection needs this."""

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from acp_gateway.errors import ConfigError, TrustError
from acp_gateway.printable import printable
from acp_gateway.security.tls import certificate_subject, self_signed, spki_pin, subject_alternative_names

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes


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
