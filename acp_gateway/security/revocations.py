"""Reads certificate revocation lists of client certificates (`client_crl`).

OpenSSL's own check is not used: it misses resumed TLS sessions and open connections, and an expired list makes it
refuse every client certificate.
"""

import logging
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from acp_gateway.errors import ConfigError

if TYPE_CHECKING:
    from cryptography import x509

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
