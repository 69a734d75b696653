"""The text of a token: how one is made, what a typo looks like, and how a file that holds one is read.

    acpgw_ + 33 characters + 6 characters
             192 random bits  their CRC-32

Both numbers are in base62, so that a token survives a double click, a shell, an HTTP header and a WebSocket
subprotocol. The checksum guards against typos and halves, not against people: it lets a client say that this is
no whole token before it asks any gateway, and a scanner recognise a token that leaked into a repository.
"""

import hashlib
import os
import re
import secrets
import stat
import string
import zlib
from pathlib import Path

from acp_gateway.errors import ConfigError

PREFIX = "acpgw_"

_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_SECRET_BITS = 192
_SECRET_LENGTH = 33  # The first power of 62 that is above 2**192 ...
_CHECKSUM_LENGTH = 6  # ... and above 2**32.
_SHAPE = re.compile(f"{PREFIX}([0-9A-Za-z]{{{_SECRET_LENGTH}}})([0-9A-Za-z]{{{_CHECKSUM_LENGTH}}})")


def mint() -> str:
    """A new token from the operating system's random numbers."""
    secret = _base62(secrets.randbits(_SECRET_BITS), _SECRET_LENGTH)
    return PREFIX + secret + _checksum(secret)


def explain_flaw(text: str) -> str | None:
    """None for a well-formed token, else what is wrong with it: the end of a sentence, without quoting it."""
    if not text:
        return "is empty"
    if not text.startswith(PREFIX):
        return f"does not begin with {PREFIX}"
    shape = _SHAPE.fullmatch(text)
    if shape is None or shape[2] != _checksum(shape[1]):
        return "is not whole: the checksum does not match"
    return None


def digest(token: str) -> str:
    """SHA-256 of a well-formed token in lower-case hex: what a gateway keeps of it.

    192 random bits can't be guessed, so neither a salt nor a slow hash would add anything.
    """
    return hashlib.sha256(token.encode()).hexdigest()


def read_token_file(path: Path) -> str:
    """The token on the first line of a file that is not blank.

    Raises ConfigError where there is no well-formed token to read, or where group or others may use the file.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:  # Windows' editors like to begin a file with a BOM.
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            lines = file.read().splitlines()
    except FileNotFoundError:
        raise ConfigError(
            "there is no such file; save there what `acp-gateway token create` prints on the gateway's machine",
            file=str(path),
        ) from None
    except UnicodeDecodeError:
        raise ConfigError("is no text in UTF-8; save the token alone in it", file=str(path)) from None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=str(path)) from None
    # Windows has no group and others: the mode that Python makes up there says nothing.
    if hasattr(os, "geteuid") and mode & 0o077:
        raise ConfigError(f"holds a token and others may use it (mode {mode:04o}): chmod 600 {path}", file=str(path))
    token = next((line.strip() for line in lines if line.strip()), "")
    flaw = explain_flaw(token)
    if flaw is not None:
        raise ConfigError(f"the token in it {flaw}; save what `acp-gateway token create` printed", file=str(path))
    return token


def _checksum(secret: str) -> str:
    return _base62(zlib.crc32(secret.encode()), _CHECKSUM_LENGTH)


def _base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 62)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))
