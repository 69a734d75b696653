r"""Makes tokens and the secrets of browsers, recognizes mistyped ones, and reads the file that holds a token.

    acpgw_  + 33 characters + 6 characters    a controller's
    acpgwo_ + 33 characters + 6 characters    an observer's
    acpgwg_ + 33 characters + 6 characters    a guest's: for one session, whatever its role
    acpgwm_ + 33 characters + 6 characters    for reading metrics and nothing else
    acpgwt_ + 33 characters + 6 characters    for tunnels to nodes and nothing else
    acpgwn_ + 33 characters + 6 characters    for a node that lends its connections, and nothing else
    acpgwv_ + 33 characters + 6 characters    for windows of VS Code at a listener of their own, and nothing else
    acpgwp_ + 33 characters + 6 characters    no token: the one-use code that signs a browser in
    acpgwb_ + 33 characters + 6 characters    no token: the cookie of a browser
    acpgwi_ + 33 characters + 6 characters    no token: the one-use code of an invitation
              192 random bits, a CRC-32

Both numbers are in base62, so that a token survives a double click, a shell, an HTTP header and a WebSocket
subprotocol. The checksum covers the kind's letter and the random part. It detects typos and truncation, not forgery: a
client can report that a token is incomplete before it connects to any gateway.

The kind tells the finder of a leaked token how severe the leak is. It grants nothing: the gateway's own entry says what
a token allows.

A secret scanner finds tokens that leaked into a repository or a log with

    \bacpgw[ogmtnvpbi]?_[0-9A-Za-z]{39}\b
"""

import hashlib
import os
import re
import secrets
import stat
import string
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from acp_gateway.errors import ConfigError

Kind = Literal["controller", "observer", "guest", "metrics", "tunnel", "node", "vscode"]
"""Purpose of a token, encoded in its prefix."""

OtherKind = Literal["code", "browser", "invitation"]
"""A secret other than a token: the code that signs a browser in, the cookie that keeps it signed in, and the code of an
invitation, for which a program gets a token."""

_LETTERS: Final[Mapping[Kind | OtherKind, str]] = {
    "controller": "",
    "observer": "o",
    "guest": "g",
    "metrics": "m",
    "tunnel": "t",
    "node": "n",
    "vscode": "v",
    "code": "p",
    "browser": "b",
    "invitation": "i",
}
_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_SECRET_BITS = 192
_SECRET_LENGTH = 33  # The first power of 62 that is above 2**192 ...
_CHECKSUM_LENGTH = 6  # ... and above 2**32.
_PREFIX = re.compile("acpgw[ogmtnvpbi]?_")
_BROWSER_PREFIX = re.compile("acpgw[pb]_")
_SHAPE = re.compile(f"acpgw([ogmtnvpbi]?)_([0-9A-Za-z]{{{_SECRET_LENGTH}}})([0-9A-Za-z]{{{_CHECKSUM_LENGTH}}})")

MAX_FOREIGN_LENGTH: Final = 4096
"""Characters of another server's token: the longest are JSON Web Tokens, and most servers take headers of 8 KiB."""

# Texts that users mistake for a token.
_PIN = re.compile("sha256:[0-9A-Fa-f]*")
_ID = re.compile("[0-9a-f]{8}")


def mint(kind: Kind | OtherKind = "controller") -> str:
    """Make a token, or a secret of a browser, from the operating system's random numbers."""
    letter = _LETTERS[kind]
    secret = _base62(secrets.randbits(_SECRET_BITS), _SECRET_LENGTH)
    return f"acpgw{letter}_{secret}{_checksum(letter, secret)}"


def explain_flaw(text: str) -> str | None:
    """Return None for a well-formed token, else its flaw as the end of a sentence, without quoting it."""
    if not text:
        return "is empty"
    if _PIN.fullmatch(text):
        return "is a pin, which goes to --pin"
    if _ID.fullmatch(text):
        return "is the id of a token, not the token itself"
    if _PREFIX.match(text) is None:
        return "does not begin with acpgw_, acpgwo_, acpgwg_, acpgwm_, acpgwt_, acpgwn_ or acpgwv_"
    if text.startswith("acpgwi_"):
        return "is not a token: it is the code of an invitation, for `acp-gateway join`"
    if _BROWSER_PREFIX.match(text):
        return "is not a token: it signs a browser in, and belongs there"
    return None if _is_whole(text) else "is not whole: the checksum does not match"


def is_well_formed(text: str, kind: OtherKind) -> bool:
    """Return whether a text is a complete secret of this kind."""
    return text.startswith(f"acpgw{_LETTERS[kind]}_") and _is_whole(text)


def explain_foreign_flaw(text: str) -> str | None:
    """Return None for a possible token of another server, which may have any form; else as `explain_flaw`.

    A text that begins like a token of this program must be a complete one.
    """
    if not text or _PIN.fullmatch(text) or _PREFIX.match(text):
        return explain_flaw(text)
    if len(text) > MAX_FOREIGN_LENGTH:
        return f"has more than {MAX_FOREIGN_LENGTH} characters"
    if re.fullmatch(r"[\x21-\x7e]+", text) is None:
        return "holds a space, or a character that is not ASCII"
    return None


def digest(token: str) -> str:
    """Return the SHA-256 of a well-formed token in lower-case hex, which the gateway stores instead of it.

    192 random bits can't be guessed, so neither a salt nor a slow hash would help.
    """
    return hashlib.sha256(token.encode()).hexdigest()


def read_token_file(path: Path, *, any_form: bool = False) -> str:
    """Read the token on the first non-blank line of a file; with `any_form` it may be another server's.

    Raises ConfigError if there is no well-formed token, or if group or others may use the file. A credential of systemd
    may be one of another user's service.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:  # Windows' editors like to begin a file with a BOM.
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            lines = file.read().splitlines()
    except FileNotFoundError:
        if explain_flaw(path.name) is None:
            raise ConfigError(
                "that is a token, not a file's name, and your shell may have kept it: save it in a file of mode 600"
            ) from None
        raise ConfigError(
            "there is no such file; save there what `acp-gateway token create` prints on the gateway's machine: "
            f"(umask 077; cat > {path}), paste it, Enter, Ctrl-D",
            file=str(path),
        ) from None
    except UnicodeDecodeError:
        raise ConfigError("is not text in UTF-8; save the token alone in it", file=str(path)) from None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=str(path)) from None
    # Windows has no group and others: the mode that Python makes up there says nothing.
    if hasattr(os, "geteuid") and mode & 0o077 & ~_shown_of_credentials(path):
        raise ConfigError(f"holds a token and others may use it (mode {mode:04o}): chmod 600 {path}", file=str(path))
    token = next((line.strip() for line in lines if line.strip()), "")
    flaw = explain_foreign_flaw(token) if any_form else explain_flaw(token)
    if flaw is not None:
        elsewhere = "" if any_form else "; for another server's token, name the file by token_file in hosts.toml"
        raise ConfigError(
            f"the token in it {flaw}; save what `acp-gateway token create` printed{elsewhere}", file=str(path)
        )
    return token


def _shown_of_credentials(path: Path) -> int:
    # systemd hands a credential to a service of another user by an access control list, which shows as mode 0440;
    # the folder around it keeps all other users out.
    credentials = os.environ.get("CREDENTIALS_DIRECTORY")
    return 0o040 if credentials and path.is_relative_to(credentials) else 0


def without_tokens(text: str) -> str:
    """Return a text without the secrets of this program's own that are in it, whole ones and mistyped ones."""
    return re.sub(r"(acpgw[ogmtnvpbi]?_)[0-9A-Za-z]{8,}", r"\1…", text)


def without_token(text: str, headers: Mapping[str, str]) -> str:
    """Return a text of a server without the token in the headers of the request: some servers repeat it in errors."""
    _, _, token = headers.get("Authorization", "").partition(" ")
    return text.replace(token, "…") if token else text


def _is_whole(text: str) -> bool:
    shape = _SHAPE.fullmatch(text)
    return shape is not None and shape[3] == _checksum(shape[1], shape[2])


def _checksum(letter: str, secret: str) -> str:
    return _base62(zlib.crc32((letter + secret).encode()), _CHECKSUM_LENGTH)


def _base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 62)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))
