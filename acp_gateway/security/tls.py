"""TLS contexts of both ends, and pins of public keys.

A pin is the SHA-256 of a public key (the certificate's SubjectPublicKeyInfo), as `sha256:HEX`. With one, a client only
checks that the far side holds that key: certificate authority, host name and dates don't count. That suits a gateway on
one's own machine, and lasts as long as the key, through renewed certificates.

A context cannot check a pin by itself: the caller of a pinned context calls `check_pin` after the handshake and before
it sends its first byte.

A client may also show a certificate of its own instead of a token. OpenSSL verifies it in the handshake; the gateway
maps it to an identity by `certificate_subject`, until `certificate_end`.
"""

import hashlib
import os
import re
import socket
import ssl
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from acp_gateway.errors import ConfigError, TrustError, UsageError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes

_ALPN = ["http/1.1"]
"""The gateway's WebSocket lives on HTTP/1.1; a proxy that may choose would choose HTTP/2."""

_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""For TLS 1.2: forward secrecy and authenticated encryption, which TLS 1.3 always has. Python's own list also has CBC,
for clients that are older than this protocol."""

_PIN = re.compile("sha256:[0-9a-f]{64}")
_HOST_NAME = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?")

_VALID_DAYS = 3652
"""Ten years. What makes the certificate trusted is that its key was copied by hand; a date adds only an outage."""

_SEQUENCE = 0x30
_INTEGER = 0x02
_EXPLICIT_VERSION = 0xA0


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
        if path.exists():
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
    _write_new(cert_path, certificate.public_bytes(serialization.Encoding.PEM), mode=0o644)
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


def spki_pin(der_certificate: bytes) -> str:
    """Return the pin of a certificate in DER, as from a TLS socket. Raises TrustError for anything else."""
    # Walked by hand: importing cryptography takes a quarter of a second, which every `connect` with a pin would wait.
    # Certificate ::= SEQUENCE { tbsCertificate SEQUENCE {
    #     version [0] OPTIONAL, serialNumber INTEGER, signature SEQUENCE, issuer SEQUENCE, validity SEQUENCE,
    #     subject SEQUENCE, subjectPublicKeyInfo SEQUENCE, ... }, ... }                     RFC 5280, section 4.1
    certificate, end = _element(der_certificate, 0, len(der_certificate), _SEQUENCE)
    if end != len(der_certificate):
        raise _no_certificate()
    at, end = _element(der_certificate, certificate, end, _SEQUENCE)
    if der_certificate[at : at + 1] == bytes([_EXPLICIT_VERSION]):
        _, at = _element(der_certificate, at, end, _EXPLICIT_VERSION)
    for tag in (_INTEGER, _SEQUENCE, _SEQUENCE, _SEQUENCE, _SEQUENCE):
        _, at = _element(der_certificate, at, end, tag)
    _, key_end = _element(der_certificate, at, end, _SEQUENCE)
    return "sha256:" + hashlib.sha256(der_certificate[at:key_end]).hexdigest()


def parse_pin(text: str) -> str:
    """Return a pin in the form that `check_pin` compares. Raises UsageError for an invalid one."""
    pin = text.strip().lower()
    if _PIN.fullmatch(pin) is None:
        raise UsageError(
            "a pin is sha256: and 64 hex digits, as `acp-gateway certs create` prints it:"
            f" sha256:{hashlib.sha256(b'').hexdigest()}, for example"
        )
    return pin


def check_pin(der_certificate: bytes | None, pin: str) -> None:
    """Compare the certificate of a finished handshake with a pin of `parse_pin`. Raises TrustError."""
    if der_certificate is None:
        raise TrustError(f"the far side showed no certificate, so it is not the gateway with the pin {pin}")
    found = spki_pin(der_certificate)
    if found != pin:
        raise TrustError(
            f"the far side's key has the pin {found}, not {pin}: the gateway got a new key, or this is not the gateway;"
            " before you trust the new pin, compare it with what `acp-gateway certs show` prints there"
        )


def certificate_subject(der: bytes) -> str:
    """Return the whole subject of a certificate in the form of RFC 4514: `CN=ann,O=Example`, most specific part first.

    Two certificates have the same text only if their subjects are equal. Raises TrustError for anything but a
    certificate.
    """
    try:
        return _certificate(der).subject.rfc4514_string()
    except (ValueError, TypeError):  # The latter for a name that is a string of bits.
        raise _no_certificate() from None


def certificate_end(der: bytes) -> float:
    """Return when a certificate expires, in seconds since 1970. Raises TrustError for anything but a certificate."""
    return _certificate(der).not_valid_after_utc.timestamp()


def server_context(cert: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """Make a context of TLS 1.2 or newer for a listener.

    With `client_ca`, a PEM file, a client may show a certificate of its own. The handshake fails if that is not of an
    authority in the file, has expired or is not for clients; it succeeds without one. An authority in the file is
    trusted even if its own issuer is not in it.

    Raises ConfigError, which names the file, if these are not a certificate, its key, and authorities.
    """
    for path in (cert, key):
        _require_readable(path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    # Compression leaks secrets by their length; with renegotiation a client makes the server do most of the work.
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(_ALPN)
    _load_own(context, cert, key, "`acp-gateway certs create` makes both")
    if client_ca is not None:
        _load_authorities(context, client_ca, "it has to be the certificate of the authority of your clients")
        context.verify_mode = ssl.CERT_OPTIONAL
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def client_context(
    *, ca: Path | None, pin: str | None, cert: Path | None = None, key: Path | None = None
) -> ssl.SSLContext:
    """Make a context of TLS 1.2 or newer for a client.

    Without arguments the system's authorities are trusted, with `ca` only those in that PEM file, and the host name is
    checked. With `pin` nothing is verified in the handshake and `ca` is ignored, because `check_pin` has to follow.
    With `cert` and `key` the client shows that certificate to a server that asks for one.

    Raises ConfigError if a file cannot be used, or if others than its owner may open the key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_ALPN)
    if pin is not None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif ca is not None:
        _load_authorities(context, ca, "copy the gateway's cert.pem, or its authority's certificate")
    else:
        context.load_default_certs()
    if cert is not None and key is not None:
        _require_readable(cert)
        _require_private(key)
        _load_own(context, cert, key, "both come from who signs certificates for the gateway's client_ca")
    return context


def _load_own(context: ssl.SSLContext, cert: Path, key: Path, hint: str) -> None:
    """Load the certificate that is shown. Raises ConfigError."""

    def refuse_passphrase() -> str:
        # Without this OpenSSL asks for it on the terminal, and a service or an editor's agent would hang there.
        raise ConfigError(
            f"is protected by a passphrase, which a service cannot ask for: openssl pkey -in {key} -out NEW",
            file=str(key),
        )

    try:
        context.load_cert_chain(cert, key, password=refuse_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"is not the key of the certificate in {cert}", file=str(key)) from None
        if _holds_key(cert) and not _holds_key(key):
            message = f"cert and key look swapped: {cert.name} holds a private key, and {key.name} none"
            raise ConfigError(message, file=str(cert)) from None
        raise ConfigError(
            f"this and {key} are no certificate and key in PEM ({error.reason or 'unreadable'}); {hint}",
            file=str(cert),
        ) from None


def _holds_key(path: Path) -> bool:
    """Return whether a PEM file holds a private key; False for one that can't be read."""
    try:
        return b"PRIVATE KEY-----" in path.read_bytes()
    except OSError:
        return False


def _load_authorities(context: ssl.SSLContext, path: Path, hint: str) -> None:
    """Trust the authorities in a file, and no others. Raises ConfigError."""
    _require_readable(path)
    try:
        context.load_verify_locations(cafile=path)
    except ssl.SSLError:
        raise ConfigError(f"holds no certificate in PEM; {hint}", file=str(path)) from None


def _certificate(der: bytes) -> "x509.Certificate":
    from cryptography import x509

    try:
        return x509.load_der_x509_certificate(der)
    except (ValueError, x509.InvalidVersion):
        raise _no_certificate() from None


def _element(data: bytes, at: int, end: int, tag: int) -> tuple[int, int]:
    """Return the start of the content and the end, at most `end`, of the DER element at `at`."""
    if end - at < 2 or data[at] != tag:
        raise _no_certificate()
    length, content = data[at + 1], at + 2
    if length >= 0x80:
        # 1 to 4 bytes of length follow, and only as many as needed: DER has one spelling, so that the bytes hashed
        # here are the ones that OpenSSL took the key from. 0x80 itself would be BER's indefinite length.
        size = length - 0x80
        content += size
        if not 1 <= size <= 4 or content > end:
            raise _no_certificate()
        length = int.from_bytes(data[content - size : content])
        if length < 0x80 or length >> (8 * (size - 1)) == 0:
            raise _no_certificate()
    if content + length > end:
        raise _no_certificate()
    return content, content + length


def _no_certificate() -> TrustError:
    return TrustError("the far side showed something that is no X.509 certificate; is it really an acp-gateway?")


def _require_readable(path: Path) -> None:
    """Raise ConfigError for a file that can't be read; OpenSSL's errors don't name the file."""
    try:
        path.open("rb").close()
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=str(path)) from None


def _require_private(key: Path) -> None:
    """Raise ConfigError for a private key that other users may open, as for a file with a token."""
    try:
        with key.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=str(key)) from None
    # Windows has no group and others: the mode that Python makes up there says nothing.
    if hasattr(os, "geteuid") and mode & 0o077:
        raise ConfigError(f"is a private key and others may use it (mode {mode:04o}): chmod 600 {key}", file=str(key))


def _not_overwritten(path: Path) -> ConfigError:
    return ConfigError(
        "exists and is not overwritten, because clients may rely on it; move it away, or choose another --out",
        file=str(path),
    )


def _write_new(path: Path, content: bytes, *, mode: int) -> None:
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
    except FileExistsError:
        raise _not_overwritten(path) from None
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", file=str(path)) from None
