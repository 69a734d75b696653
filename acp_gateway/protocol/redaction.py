r"""Redacts messages for logs and recordings: the same message without secrets, as one line of ASCII.

These values count as secrets: those of members with names such as `password`, `apiKey` or `access_token`; those in
`env` and `headers`, whose names stay; the parameters that log an agent in; the names and addresses in `accounts`; and
the parts of any string that look like tokens or keys. `true`, `false` and `null` do not count. A password in a
sentence, or a token that is split between two messages, is not recognized.

In `data` and `blob`, base64 is read as well: a text, such as the output of a terminal, loses its secrets, and other
bytes, such as a picture, are replaced by a note of their number. Base64 in other members is not read.

A message is read token by token, with a stack and without recursion. It is not parsed as a whole: numbers keep their
spelling, and repeated members stay. The part that exceeds the limit is replaced by a note of its size, and open
containers are closed: the result is JSON, and never longer than the limit.

The event loop waits for the result, so the work is bounded: `MAX_STEPS` steps of about a microsecond, and
`MAX_SIZE` bytes. The part beyond these bounds is left out in the same way.
"""

import binascii
import enum
import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from acp_gateway.protocol.secret_patterns import (
    HIDDEN,
    MAX_SECRET_LENGTH,
    MIN_SECRET_LENGTH,
    OPTION,
    SHAPES,
    Shape,
    fold,
    hide,
    is_secret_name,
    likely_shapes,
)
from acp_gateway.protocol.text.lookup import method_of

MIN_LIMIT: Final = 128
"""Minimum of the limit of a result, in bytes: room for a note."""

# Maximum bytes of a note in a result, with the name before it and the comma.
_NOTE: Final = 64
MAX_SIZE: Final = 256 * 1024
"""Maximum bytes of a message that is read: conversation, code and tool results are smaller."""

MAX_STEPS: Final = 10_000
"""Maximum steps for one message, of about a microsecond each: some thousand members, or 20 KB of text with many words
for secrets."""

MIN_STEPS: Final = 4096
"""Minimum of the steps for one message, as many as one long string takes; a larger limit has a step for each byte."""

_TOKEN_STEPS: Final = 2
_BRACKET_STEPS: Final = 5
_ESCAPE_STEPS: Final = 3
# Characters that one pattern searches in a step, in the worst case.
_PATTERN_CHARACTERS: Final = 8
# Maximum length of the names whose meaning is cached, and their number.
_MAX_KNOWN_NAME: Final = 64
_KNOWN_NAMES: Final = 4096

_MIN_BYTES: Final = 48
"""Minimum number of bytes in base64 that are left out if they are not a text: fewer may be a word or an id."""
_MAX_UNREADABLE: Final = 8
"""A text has at most one unreadable character in so many, as the output of a terminal in another encoding has."""

_ENVIRONMENTS: Final = frozenset({"env", "envs", "environment", "envvars", "environmentvariables", "extraenv"})
_TOKEN: Final = re.compile(r'"[^"\\\x00-\x1f]*+(?:\\[^\x00-\x1f][^"\\\x00-\x1f]*+)*+"|[{}\[\],]|[^\s{}\[\]:,"]++')


# The method as editors and agents write it.
# In each alphabet, also without padding.
_BASE64: Final = re.compile("([A-Za-z0-9+/_-]*+)={0,2}+")
_UNREADABLE: Final = re.compile("[\x00-\x06\x0e-\x1a\x1c-\x1f\ud800-\udfff]")
_METHOD: Final = re.compile(rb'"method"[ \t]*:[ \t]*"([a-z_$]{1,32}(?:/[a-z_]{1,32}){0,2})"')
_BEGINNING: Final = 1024


class _Within(enum.Enum):
    """Kind of a container, which determines the treatment of its values."""

    MESSAGE = enum.auto()
    """Any other object or array."""
    VALUES = enum.auto()
    """`env` or `headers`: an object of secret values, or an array of entries."""
    ENTRY = enum.auto()
    """An entry of such an array: its name stays."""
    LOGIN = enum.auto()
    """The params of a method that logs an agent in, or an account: the id of the authentication method stays."""
    ACCOUNTS = enum.auto()
    """Accounts that an agent is logged in with."""
    SECRET = enum.auto()
    """A secret as a whole."""


class _Meaning(enum.Enum):
    """Kind of value that a member's name announces."""

    PLAIN = enum.auto()
    SECRET = enum.auto()
    COUNT_OR_SECRET = enum.auto()
    """A number is a count of a model's tokens; a string is a secret."""
    VALUES = enum.auto()
    """A list of names with values that may be secrets."""
    ACCOUNTS = enum.auto()
    PARAMS = enum.auto()
    LABEL = enum.auto()
    """The name of an entry in such a list."""
    METHOD_ID = enum.auto()
    BYTES = enum.auto()
    """Possibly bytes in base64."""


@dataclass(slots=True)
class _Container:
    """An open container."""

    kind: _Within
    closing: str
    # True for the message itself.
    top: bool = False
    # For an object: True if a value comes next, and the meaning of its name.
    named: bool = False
    meaning: _Meaning = _Meaning.PLAIN
    # For an array: True if the last element announces a secret, such as `--token`.
    option: bool = False
    # True until the first member or element.
    empty: bool = True


class _Full(Exception):
    """The result has no room for the rest."""


def redact(message: bytes, limit: int, largest: int = MAX_SIZE) -> bytes:
    """Return the message without secrets, as one line of JSON in ASCII; a note of its size if it is not JSON.

    Args:
        message: any text that a peer has sent.
        limit: maximum bytes of the result, at least `MIN_LIMIT`.
        largest: maximum bytes of a message that is read.
    """
    redacted = redact_json(message, limit, largest)
    return _encode(describe(message, largest)).encode() if redacted is None else redacted


def describe(message: bytes, largest: int = MAX_SIZE) -> str:
    """Return the description of a message for which `redact_json` returns None."""
    if len(message) <= largest:
        return f"{len(message)} bytes that are not JSON"
    # Only such a name is certainly not a secret.
    method = _METHOD.search(message, 0, _BEGINNING)
    return f"{len(message)} bytes" + (f" of {method[1].decode()}" if method else "") + ", more than record_message_size"


def redact_json(message: bytes, limit: int, largest: int = MAX_SIZE, *, steps: int | None = None) -> bytes | None:
    """Redact as `redact` does; return None for a message that is not JSON, too deep, or larger than `largest`.

    `steps` replaces `MAX_STEPS`: there are more where no event loop waits.
    """
    if len(message) > largest:
        return None
    try:
        text = message.decode()
        return _Walk(text, limit, logs_in=_logs_in(method_of(message)), steps=steps).result().encode()
    except ValueError:
        return None


class _Walk:
    """The reading of one message, token by token."""

    def __init__(self, text: str, limit: int, *, logs_in: bool, steps: int | None = None) -> None:
        self._text = text
        self._limit = limit
        # Maximum of one string, so that later members still fit after a long one.
        self._longest_string = limit // 2
        self._logs_in = logs_in
        self._open: list[_Container] = []
        self._pieces: list[str] = []
        self._size = 0
        # With a low limit, most of a long message would be left out anyway.
        self._steps = min(steps or MAX_STEPS, max(limit, MIN_STEPS))
        # With an escaped letter, any pattern may match.
        self._shapes = SHAPES if "\\u00" in text else likely_shapes(text.lower(), SHAPES)

    def result(self) -> str:
        """Return the redacted message. Raises `ValueError` for a string with an invalid escape."""
        # Number of open containers within a secret one, which is included.
        hidden = 0
        for match in _TOKEN.finditer(self._text):
            token = match[0]
            first = token[0]
            self._steps -= _TOKEN_STEPS
            try:
                if self._steps < 0:
                    raise _Full
                if hidden:
                    hidden += (first in "{[") - (first in "}]")
                elif first in "{[":
                    hidden = self._begin(first)
                elif first in "}]":
                    self._add(self._open.pop().closing)
                elif first == '"':
                    self._string(token)
                elif first != ",":
                    self._scalar(token)
            except _Full:
                self._cut(match.start())
                break
        return "".join(self._pieces)

    def _begin(self, bracket: str) -> int:
        """Open a container; return 1 if it is a secret as a whole, else 0."""
        self._steps -= _BRACKET_STEPS
        kind = self._kind_of_value(is_object=bracket == "{")
        if kind is _Within.SECRET:
            self._add_value(_encode(HIDDEN))
            return 1
        self._add_value(bracket)
        self._open.append(_Container(kind, "}" if bracket == "{" else "]", top=not self._open))
        return 0

    def _scalar(self, token: str) -> None:
        secret = token not in ("true", "false", "null") and self._hides_scalar(is_string=False)
        self._add_value(_encode(HIDDEN) if secret else token)

    def _string(self, token: str) -> None:
        string = token[1:-1]
        if "\\" in token:
            self._steps -= _ESCAPE_STEPS
            string = json.loads(token)
        within = self._open[-1] if self._open else None
        if within is not None and within.closing == "}" and not within.named:
            self._add_name(within, string)
            return
        if self._hides_scalar(is_string=True):
            self._add_value(_encode(HIDDEN))
        elif within is not None and within.meaning is _Meaning.BYTES:
            self._add_string(self._bytes(string))
        else:
            self._add_string(string)
        if within is not None and within.closing == "]":
            within.option = string[:1] == "-" and self._names_secret(string)

    def _kind_of_value(self, *, is_object: bool) -> _Within:
        """Return the kind of the container that begins here."""
        if not self._open:
            return _Within.MESSAGE
        within = self._open[-1]
        if within.kind is _Within.VALUES and within.closing == "]" and is_object:
            return _Within.ENTRY
        if within.kind is _Within.ACCOUNTS and within.closing == "]" and is_object:
            return _Within.LOGIN
        if within.kind is not _Within.MESSAGE or within.meaning in (_Meaning.SECRET, _Meaning.COUNT_OR_SECRET):
            return _Within.SECRET
        if within.meaning is _Meaning.VALUES:
            return _Within.VALUES
        if within.meaning is _Meaning.ACCOUNTS:
            return _Within.ACCOUNTS
        is_login = self._logs_in and within.top and within.meaning is _Meaning.PARAMS
        return _Within.LOGIN if is_login else _Within.MESSAGE

    def _hides_scalar(self, *, is_string: bool) -> bool:
        """Return True if the number or string that begins here is a secret."""
        if not self._open:
            return False
        within = self._open[-1]
        meaning = within.meaning
        match within.kind:
            case _Within.MESSAGE:
                if meaning is _Meaning.PLAIN:
                    return within.option
                return meaning in (_Meaning.SECRET, _Meaning.VALUES, _Meaning.ACCOUNTS) or (
                    meaning is _Meaning.COUNT_OR_SECRET and is_string
                )
            case _Within.ENTRY:
                return not (is_string and meaning is _Meaning.LABEL)
            case _Within.LOGIN:
                return not (is_string and meaning is _Meaning.METHOD_ID)
        return True

    def _add_name(self, within: _Container, name: str) -> None:
        known = len(name) <= _MAX_KNOWN_NAME
        if not known:
            self._steps -= len(name) // _PATTERN_CHARACTERS
        plain, is_part = self._beginning(name)
        if is_part:
            raise _Full
        piece = _encode(plain) + ":"
        self._add(piece if within.empty else "," + piece, reserve=_NOTE)
        within.empty = False
        within.named = True
        within.meaning = _meaning(name) if known else _meaning_of(name)

    def _add_value(self, piece: str) -> None:
        within = self._open[-1] if self._open else None
        comma = "," if within is not None and not within.named and not within.empty else ""
        self._add(comma + piece, reserve=_NOTE)
        if within is not None:
            within.empty = False
            within.named = False
            within.meaning = _Meaning.PLAIN
            within.option = False

    def _add_string(self, string: str) -> None:
        plain, is_part = self._beginning(string)
        piece = _encode(plain)
        room = min(self._longest_string, self._limit - self._size - len(self._open) - 2 * _NOTE)
        if is_part or len(piece) > max(room, _NOTE):
            kept = _beginning(plain, max(room, 0))
            piece = _encode(f"{kept}{HIDDEN} {len(string) - len(kept)} characters left out")
        self._add_value(piece)

    def _bytes(self, string: str) -> str:
        """Return a string without the secrets of the text that it has in base64; a note for bytes that are not text."""
        found = _BASE64.fullmatch(string)
        if found is None or len(found[1]) % 4 == 1:
            return string
        content = binascii.a2b_base64(found[1].replace("-", "+").replace("_", "/") + "==")
        text = content.decode(errors="surrogateescape")
        if len(_UNREADABLE.findall(text)) * _MAX_UNREADABLE > len(text):
            return string if len(content) < _MIN_BYTES else f"{HIDDEN} {len(content)} bytes of base64 left out"
        shapes = likely_shapes(text.lower(), SHAPES)
        self._steps -= (1 + len(shapes)) * len(text) // _PATTERN_CHARACTERS
        if self._steps < 0:
            raise _Full
        plain = hide(text, shapes)
        if plain == text:
            return string
        return binascii.b2a_base64(plain.encode(errors="surrogateescape"), newline=False).decode()

    def _beginning(self, string: str) -> tuple[str, bool]:
        """Return a string without secrets, cut to the limits, and whether it was cut."""
        looked_at = self._limit + MAX_SECRET_LENGTH
        begins = string[:looked_at]
        shapes = self._shapes_of(begins)
        if shapes:
            looked_at = min(looked_at, self._steps * _PATTERN_CHARACTERS // len(shapes))
            begins = begins[:looked_at]
            self._steps -= len(shapes) * len(begins) // _PATTERN_CHARACTERS
        plain = hide(begins, shapes)
        return (plain, False) if len(string) <= looked_at else (plain[:-MAX_SECRET_LENGTH], True)

    def _shapes_of(self, text: str) -> tuple[Shape, ...]:
        if not self._shapes or len(text) < MIN_SECRET_LENGTH:
            return ()
        self._steps -= 1 + len(self._shapes) // 8
        return likely_shapes(text.lower(), self._shapes)

    def _names_secret(self, argument: str) -> bool:
        """Return True if the argument after this one is a secret."""
        self._steps -= len(argument[:MAX_SECRET_LENGTH]) // _PATTERN_CHARACTERS
        return OPTION.fullmatch(argument[:MAX_SECRET_LENGTH]) is not None

    def _add(self, piece: str, reserve: int = 0) -> None:
        # What closes the open containers has to fit as well.
        if self._size + len(piece) + len(self._open) + reserve > self._limit:
            raise _Full
        self._pieces.append(piece)
        self._size += len(piece)

    def _cut(self, at: int) -> None:
        """Add a note of the missing bytes, and close the open containers."""
        note = _encode(f"{HIDDEN} {len(self._text[at:].encode())} bytes left out")
        if self._open:
            within = self._open[-1]
            if within.closing == "}" and not within.named:
                note = f"{_encode(HIDDEN)}:{note}"
            if not within.empty and not within.named:
                note = "," + note
        self._pieces.append(note)
        self._pieces += [container.closing for container in reversed(self._open)]


def _encode(text: str) -> str:
    # JSON itself leaves this one control character as it is.
    return json.dumps(text).replace("\x7f", "\\u007f")


def _beginning(text: str, room: int) -> str:
    """Return the beginning of a text that takes at most `room` bytes in JSON."""
    kept = text[:room]
    while kept and (size := len(_encode(kept))) > room:
        kept = kept[: len(kept) * room // size]
    return kept


def _meaning_of(name: str) -> _Meaning:
    """Return the kind of value that a member's name announces."""
    folded = fold(name)
    if folded == "tokens":
        return _Meaning.COUNT_OR_SECRET
    if is_secret_name(folded):
        return _Meaning.SECRET
    if folded in _ENVIRONMENTS or folded.endswith("headers"):
        return _Meaning.VALUES
    return _MEANINGS.get(folded, _Meaning.PLAIN)


_meaning = lru_cache(_KNOWN_NAMES)(_meaning_of)
_MEANINGS: Final = {
    "params": _Meaning.PARAMS,
    "accounts": _Meaning.ACCOUNTS,
    "name": _Meaning.LABEL,
    "key": _Meaning.LABEL,
    "methodid": _Meaning.METHOD_ID,
    "data": _Meaning.BYTES,
    "blob": _Meaning.BYTES,
}


def _logs_in(method: str) -> bool:
    """Return True for `authenticate` and the variants of it that agents have."""
    return method.lstrip("_").casefold().startswith("auth")
