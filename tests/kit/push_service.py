"""A browser's side of Web Push, written from RFC 8188, RFC 8291 and RFC 8292, with no code of the program."""

import base64
import hashlib
import json
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat


def plain(text: str) -> bytes:
    """The bytes of base64url."""
    return base64.urlsafe_b64decode(text + "==")


def url_safe(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _derived(salt: bytes, secret: bytes, info: bytes, length: int) -> bytes:
    return HKDF(hashes.SHA256(), length, salt, info).derive(secret)


class Receiver:
    """A browser with one subscription."""

    def __init__(self, name: str = "phone", private: int | None = None, auth: bytes | None = None) -> None:
        curve = ec.SECP256R1()
        self._key = ec.generate_private_key(curve) if private is None else ec.derive_private_key(private, curve)
        self._auth = hashlib.md5(name.encode(), usedforsecurity=False).digest() if auth is None else auth
        self.endpoint = f"https://fcm.googleapis.com/fcm/send/{name}"

    @property
    def _public(self) -> bytes:
        return self._key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)

    @property
    def members(self) -> dict[str, str]:
        """The subscription, as a page tells it."""
        return {"endpoint": self.endpoint, "p256dh": url_safe(self._public), "auth": url_safe(self._auth)}

    def decrypt(self, body: bytes) -> bytes:
        """The payload of a message."""
        salt, size, length = body[:16], int.from_bytes(body[16:20], "big"), body[20]
        sender, record = body[21 : 21 + length], body[21 + length :]
        assert len(record) <= size
        point = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), sender)
        shared = self._key.exchange(ec.ECDH(), point)
        keying = _derived(self._auth, shared, b"WebPush: info\x00" + self._public + sender, 32)
        key = _derived(salt, keying, b"Content-Encoding: aes128gcm\x00", 16)
        nonce = _derived(salt, keying, b"Content-Encoding: nonce\x00", 12)
        padded = AESGCM(key).decrypt(nonce, record, None).rstrip(b"\x00")
        assert padded[-1:] == b"\x02", "the last record"
        return padded[:-1]

    def read(self, body: bytes) -> dict[str, Any]:
        """The payload as JSON."""
        content: dict[str, Any] = json.loads(self.decrypt(body))
        return content


def verify(authorization: str) -> tuple[dict[str, Any], str]:
    """Check the signature of a sender; return its claims and its public key."""
    scheme, _, rest = authorization.partition(" ")
    fields = dict(field.strip().split("=", 1) for field in rest.split(","))
    assert scheme == "vapid"
    head, claims, signature = fields["t"].split(".")
    assert json.loads(plain(head)) == {"typ": "JWT", "alg": "ES256"}
    numbers = plain(signature)
    assert len(numbers) == 64
    raw = utils.encode_dss_signature(int.from_bytes(numbers[:32], "big"), int.from_bytes(numbers[32:], "big"))
    public = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), plain(fields["k"]))
    public.verify(raw, f"{head}.{claims}".encode(), ec.ECDSA(hashes.SHA256()))
    return json.loads(plain(claims)), fields["k"]
