"""Web Push messages: their encryption (RFC 8291) and the proof of their sender (VAPID, RFC 8292).

Libraries for this bring an HTTP client of their own, or have had no release for years. Chance and time are arguments.
Importing this takes a quarter of a second, for `cryptography`.
"""

import hashlib
import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

RECORD_SIZE: Final = 4096
"""Bytes of the only record: push services need not take a longer message (RFC 8030, 7.2)."""

SALT_SIZE: Final = 16
_AUTH_SIZE: Final = 16
_NUMBER_SIZE: Final = 32
_LAST_RECORD: Final = b"\x02"
_CURVE: Final = ec.SECP256R1()


def encode(data: bytes) -> str:
    """Return bytes in base64url without padding."""
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def decode(text: str) -> bytes:
    """Return the bytes of a text in base64url, with or without padding. Raises `ValueError`."""
    return urlsafe_b64decode(text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4))


def read_subscriber(p256dh: str, auth: str) -> tuple[ec.EllipticCurvePublicKey, bytes]:
    """Return the public key and the secret of a subscription, as browsers write them. Raises `ValueError`."""
    secret = decode(auth)
    if len(secret) != _AUTH_SIZE:
        raise ValueError("not a secret of 16 bytes")
    return ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, decode(p256dh)), secret


def new_key() -> str:
    """Return a new private key, as `read_key` takes it."""
    return encode(ec.generate_private_key(_CURVE).private_numbers().private_value.to_bytes(_NUMBER_SIZE))


def read_key(text: str) -> ec.EllipticCurvePrivateKey:
    """Return a private key. Raises `ValueError`."""
    return ec.derive_private_key(int.from_bytes(decode(text)), _CURVE)


def public_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return the public key of a private one, as an uncompressed point."""
    return key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def encrypt(
    payload: bytes, subscriber: ec.EllipticCurvePublicKey, auth: bytes, once: ec.EllipticCurvePrivateKey, salt: bytes
) -> bytes:
    """Return the body of a message in `aes128gcm` (RFC 8188).

    Args:
        payload: so short that the message has at most `RECORD_SIZE` bytes; 103 are added to it.
        subscriber: the key of the subscription.
        auth: its secret.
        once: a key for this message alone.
        salt: `SALT_SIZE` random bytes, for this message alone.
    """
    own = public_key(once)
    theirs = subscriber.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    shared = once.exchange(ec.ECDH(), subscriber)
    keying = _hkdf(auth, shared, b"WebPush: info\0" + theirs + own, 32)
    key = _hkdf(salt, keying, b"Content-Encoding: aes128gcm\0", 16)
    nonce = _hkdf(salt, keying, b"Content-Encoding: nonce\0", 12)
    header = salt + RECORD_SIZE.to_bytes(4) + len(own).to_bytes(1) + own
    return header + AESGCM(key).encrypt(nonce, payload + _LAST_RECORD, None)


def encrypt_once(payload: bytes, p256dh: str, auth: str, salt: bytes) -> bytes:
    """Return the body of a message for a subscription, with a new key. Raises `ValueError`."""
    subscriber, secret = read_subscriber(p256dh, auth)
    return encrypt(payload, subscriber, secret, ec.generate_private_key(_CURVE), salt)


def _hkdf(salt: bytes, secret: bytes, info: bytes, length: int) -> bytes:
    """Return the first block of HKDF with SHA-256 (RFC 5869), cut to a length."""
    extracted = hmac.digest(salt, secret, hashlib.sha256)
    return hmac.digest(extracted, info + b"\x01", hashlib.sha256)[:length]


def authorization(key: ec.EllipticCurvePrivateKey, audience: str, contact: str, expires: int) -> str:
    """Return the `Authorization` of a message.

    Args:
        key: that of the sender, which its subscriptions name.
        audience: origin of the push service.
        contact: a `mailto:` or `https:` URL of the sender.
        expires: seconds since 1970, at most a day from now.
    """
    claims = {"aud": audience, "exp": expires, "sub": contact}
    signed = ".".join(encode(json.dumps(part).encode()) for part in ({"typ": "JWT", "alg": "ES256"}, claims))
    numbers = decode_dss_signature(key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
    signature = b"".join(number.to_bytes(_NUMBER_SIZE) for number in numbers)
    return f"vapid t={signed}.{encode(signature)}, k={encode(public_key(key))}"
