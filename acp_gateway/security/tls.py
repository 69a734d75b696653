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
import ssl
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from acp_gateway.errors import ConfigError, TrustError, UsageError

if TYPE_CHECKING:
    from cryptography import x509

_ALPN = ["http/1.1"]
"""The protocol of the gateway's own clients: its WebSocket lives on HTTP/1.1."""

_ALPN_WITH_HTTP2 = ["h2", *_ALPN]

_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""For TLS 1.2: forward secrecy and authenticated encryption, which TLS 1.3 always has. Python's own list also has CBC,
for clients that are older than this protocol."""

_PIN = re.compile("sha256:[0-9a-f]{64}")
_SEQUENCE = 0x30
_INTEGER = 0x02
_EXPLICIT_VERSION = 0xA0


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


def server_context(cert: Path, key: Path, client_ca: Path | None = None, *, http2: bool = False) -> ssl.SSLContext:
    """Make a context of TLS 1.2 or newer for a listener. With `http2`, a client may choose that.

    With `client_ca`, a PEM file, a client may show a certificate of its own. The handshake fails if that is not of an
    authority in the file, has expired or is not for clients; it succeeds without one. An authority in the file is
    trusted even if its own issuer is not in it.

    Raises ConfigError, which names the file, if these are not a certificate, its key, and authorities.
    """
    for path in (cert, key):
        _require_readable(path, "; `acp-gateway certs create` makes cert.pem and key.pem in ~/.config/acp-gateway")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    # Compression leaks secrets by their length; with renegotiation a client makes the server do most of the work.
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(_ALPN_WITH_HTTP2 if http2 else _ALPN)
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
            f"this and {key} are not a certificate and a key in PEM ({error.reason or 'unreadable'}); {hint}",
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
    return TrustError("the far side showed something that is not an X.509 certificate; is it really an acp-gateway?")


def _require_readable(path: Path, remedy: str = "") -> None:
    """Raise ConfigError for a file that can't be read; OpenSSL's errors don't name the file."""
    try:
        path.open("rb").close()
    except FileNotFoundError:
        raise ConfigError(f"cannot be read: No such file or directory{remedy}", file=str(path)) from None
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
