r"""A message without the secrets in it, for logs and recordings: the same message otherwise, as one line of ASCII.

What counts as a secret: every value of a member that is called like one (`password`, `apiKey`, `access_token`), the
values of `env` and `headers` whose names stay, what is sent to log an agent in, and in any string what looks like a
token or a key. `true`, `false` and `null` are none. That is as much as can be known from outside: a password in the
middle of a sentence stays where it is, and so does a token that an agent says in two messages.

A message is walked through token by token, with a stack and no recursion. It is never parsed as a whole: numbers keep
their spelling and repeated members stay. What does not fit is left out at the place where it would have been, with a
note of how much that was, and what is still open is closed: the result is JSON, and never longer than asked for.
"""

import enum
import json
import re
from dataclasses import dataclass
from typing import Final

from acp_gateway.protocol import spans

HIDDEN: Final = "…"
"""What stands in the place of a secret."""

SMALLEST_LIMIT: Final = 128
"""Bytes that a result may always have: room for a note."""

LONGEST_SECRET: Final = 4096
"""Characters behind those of a long string that may be shown, which say whether the last of these are of a secret."""

# Bytes of a note in a result, at most, with the name before it and the comma.
_NOTE: Final = 64
# Tokens of JSON that are looked at, which takes a second: nothing else happens meanwhile.
_MOST_TOKENS: Final = 250_000

_NAMES: Final = frozenset({"tokens", "accesstokens", "refreshtokens", "setcookie", "passwd", "passcode"})
_NAME_ENDS: Final = (
    *("token", "secret", "secrets", "password", "passwords", "passphrase", "authorization", "cookie", "cookies"),
    *("apikey", "apikeys", "accesskey", "privatekey", "secretkey", "credential", "credentials", "creds"),
    *("signingkey", "encryptionkey", "authkey", "authheader", "bearer", "jwt"),
)
# Members called like a secret that are none: a number of MCP's own.
_HARMLESS_NAMES: Final = frozenset({"progresstoken"})
_ENVIRONMENTS: Final = frozenset({"env", "envs", "environment", "envvars", "environmentvariables", "extraenv"})

_SECRETS_NAME: Final = (
    r"(?:token|secret|passw(?:or)?d|passphrase|api[_-]?key|access[_-]?key|private[_-]?key|credentials?)"
)
_NAME_HINTS: Final = ("token", "secret", "passw", "passphrase", "key", "credential")

# What secrets look like in a text: what is found in lower case wherever there is one, and the pattern, of which the
# first group stays. Each pattern takes time in proportion to the text, whatever is in it.
_SHAPES: Final = (
    (("acpgw",), re.compile(r"(acpgw[a-z]?_)[A-Za-z0-9]+")),
    (
        ("bearer",),
        re.compile(r"(?<![A-Za-z0-9])(Bearer[ \t]+|bearer[ \t]+(?=[A-Za-z0-9._~+/-]{16}))[A-Za-z0-9._~+/-]+=*"),
    ),
    (("authorization", "cookie"), re.compile(r"""((?i:authorization|cookie)["']?[ \t]*[:=][ \t]*["']?)[^\r\n"']+""")),
    (("://",), re.compile(r"(://[^\s/@:]*:)[^\s/@]+(?=@)")),
    (
        ("x-",),
        re.compile(r"""(?<![A-Za-z0-9-])((?i:x-[a-z0-9-]*(?:key|token|secret))["']?[ \t]*:[ \t]*["']?)[^\s"']+"""),
    ),
    # A part of an address, an argument of a program; JSON in a text; a line of an env file.
    (_NAME_HINTS, re.compile(rf"((?:[?&#]|(?<!\S)--?)[A-Za-z0-9_.-]*(?i:{_SECRETS_NAME})=)[^\s&#]+")),
    (("key=", "sig=", "signature="), re.compile(r"([?&](?i:key|sig|[a-z0-9-]*signature)=)[^\s&#]+")),
    # Shorter ones are words of a sentence about the option.
    (
        _NAME_HINTS,
        re.compile(rf"""((?<!\S)--[A-Za-z0-9_-]*(?i:{_SECRETS_NAME})[ \t]+["']?)(?![-"'])[^\s"']{{8,}}"""),
    ),
    (_NAME_HINTS, re.compile(rf"""(["'][A-Za-z0-9_.-]*(?i:{_SECRETS_NAME})["'][ \t]*:[ \t]*["'])[^"'\r\n]+""")),
    (
        _NAME_HINTS,
        re.compile(r"\b([A-Z0-9_]*(?:TOKEN|SECRET|PASSWORD|PASSPHRASE|_KEY|APIKEY|CREDENTIALS?)=)[^\s]+"),
    ),
    # OpenAI, Anthropic and others; GitHub, GitLab, AWS, Google, Slack, Hugging Face, npm.
    (("sk-",), re.compile(r"(?<![A-Za-z0-9])()sk-[A-Za-z0-9_-]{16,}")),
    (("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), re.compile(r"(?<![A-Za-z0-9])()gh[pousr]_[A-Za-z0-9]{16,}")),
    (("github_pat_",), re.compile(r"(?<![A-Za-z0-9])()github_pat_[A-Za-z0-9_]{16,}")),
    (("glpat-",), re.compile(r"(?<![A-Za-z0-9])()glpat-[A-Za-z0-9_-]{16,}")),
    (("akia", "asia"), re.compile(r"(?<![A-Za-z0-9])()A[KS]IA[A-Z0-9]{16}")),
    (("aiza",), re.compile(r"(?<![A-Za-z0-9])()AIza[A-Za-z0-9_-]{30,}")),
    (("xox",), re.compile(r"(?<![A-Za-z0-9])()xox[a-z]-[A-Za-z0-9-]{10,}")),
    (("hf_", "npm_"), re.compile(r"(?<![A-Za-z0-9])()(?:hf|npm)_[A-Za-z0-9]{20,}")),
    # A JSON Web Token. It does not begin behind what may be in it, or a text of such beginnings would take for ever.
    (("eyj",), re.compile(r"(?<![A-Za-z0-9_-])()eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*")),
    (
        ("private key-----",),
        re.compile(r"()-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    ),
)
# Characters that the least of these matches.
_SHORTEST_SECRET: Final = 6
# An argument that says that the next one is a secret.
_OPTION: Final = re.compile(rf"--?[A-Za-z0-9_-]*(?i:{_SECRETS_NAME})")

_TOKEN: Final = re.compile(r'"[^"\\\x00-\x1f]*+(?:\\[^\x00-\x1f][^"\\\x00-\x1f]*+)*+"|[{}\[\],]|[^\s{}\[\]:,"]++')


class _Within(enum.Enum):
    """What a container is, and so what its values are."""

    MESSAGE = enum.auto()
    """An object or array like any other."""
    VALUES = enum.auto()
    """`env` or `headers`: an object of secret values, or an array of entries."""
    ENTRY = enum.auto()
    """One of those entries: its name may stay."""
    LOGIN = enum.auto()
    """The params of what logs an agent in: which way is used may stay."""
    SECRET = enum.auto()
    """Nothing of it stays."""


@dataclass(slots=True)
class _Container:
    """A container that is open."""

    kind: _Within
    closing: str
    # Whether it is the message itself.
    top: bool = False
    # Of an object: the name before the value that comes; None where a name comes.
    name: str | None = None
    # Of an array: whether the last element says that the next one is a secret.
    option: bool = False
    # Whether there is nothing in it yet.
    empty: bool = True


class _Full(Exception):
    """The result has no room for the rest."""


def redact(message: bytes, limit: int) -> bytes:
    """One line of JSON, in ASCII, that is the message without secrets, or a note of its size where it is no JSON.

    Args:
        message: what a peer sent, whatever it is.
        limit: bytes of the result at most, at least `SMALLEST_LIMIT`.
    """
    redacted = redact_json(message, limit)
    return _encode(f"{len(message)} bytes that are no JSON").encode() if redacted is None else redacted


def redact_json(message: bytes, limit: int) -> bytes | None:
    """As `redact`; None where the message is no JSON."""
    try:
        method = spans.find(message, "method")
        logs_in = method is not None and _logs_in(message[method[0] : method[1]])
        _, end = spans.find(message) or (0, 0)
        if message[end:].strip(b" \t\r\n"):
            return None
        return _Walk(message.decode(), limit, logs_in=logs_in).result().encode()
    except ValueError:
        return None


def redact_text(text: str, limit: int) -> str:
    """A text that is no JSON without what looks like a secret, at most `limit` characters of it."""
    plain, is_part = beginning_without_secrets(text, limit)
    if not is_part and len(plain) <= limit:
        return plain
    kept = plain[:limit]
    return f"{kept}{HIDDEN} {len(text) - len(kept)} characters left out"


class _Walk:
    """One message, token by token."""

    def __init__(self, text: str, limit: int, *, logs_in: bool) -> None:
        self._text = text
        self._limit = limit
        # Of one string, so that what comes behind a long one still fits.
        self._longest_string = limit // 2
        self._logs_in = logs_in
        self._open: list[_Container] = []
        self._pieces: list[str] = []
        self._size = 0
        # How many containers are open inside of a secret one, that one included.
        self._hidden_depth = 0

    def result(self) -> str:
        """The message, redacted. Raises `ValueError` for a string with a wrong escape."""
        for number, match in enumerate(_TOKEN.finditer(self._text)):
            try:
                if number == _MOST_TOKENS:
                    raise _Full
                self._take(match[0])
            except _Full:
                self._cut(match.start())
                break
        return "".join(self._pieces)

    def _take(self, token: str) -> None:
        first = token[0]
        if self._hidden_depth:
            self._hidden_depth += (first in "{[") - (first in "}]")
        elif first in "{[":
            self._begin(first)
        elif first in "}]":
            self._add(self._open.pop().closing)
        elif first != ",":
            self._scalar(token, _string(token) if first == '"' else None)

    def _begin(self, bracket: str) -> None:
        kind = self._kind_of_value(is_object=bracket == "{")
        if kind is _Within.SECRET:
            self._hidden_depth = 1
            self._add_value(_encode(HIDDEN))
            return
        self._add_value(bracket)
        self._open.append(_Container(kind, "}" if bracket == "{" else "]", top=not self._open))

    def _scalar(self, token: str, string: str | None) -> None:
        within = self._open[-1] if self._open else None
        if string is not None and within is not None and within.closing == "}" and within.name is None:
            self._add_name(within, string)
            return
        if token not in ("true", "false", "null") and self._hides_scalar(within, is_string=string is not None):
            self._add_value(_encode(HIDDEN))
        elif string is None:
            self._add_value(token)
        else:
            self._add_string(string)
        if within is not None:
            within.option = string is not None and _OPTION.fullmatch(string) is not None

    def _kind_of_value(self, *, is_object: bool) -> _Within:
        """What the container is that comes now."""
        if not self._open:
            return _Within.MESSAGE
        within = self._open[-1]
        name = _folded(within.name) if within.name is not None else ""
        if within.kind is _Within.VALUES and within.closing == "]" and is_object:
            return _Within.ENTRY
        if within.kind is not _Within.MESSAGE or _is_secret(name):
            return _Within.SECRET
        if _holds_values(name):
            return _Within.VALUES
        return _Within.LOGIN if self._logs_in and within.top and name == "params" else _Within.MESSAGE

    def _hides_scalar(self, within: _Container | None, *, is_string: bool) -> bool:
        """Whether the number or string that comes now is a secret."""
        if within is None:
            return False
        name = _folded(within.name) if within.name is not None else ""
        match within.kind:
            case _Within.ENTRY:
                return not (is_string and name in ("name", "key"))
            case _Within.LOGIN:
                return not (is_string and name == "methodid")
            case _Within.VALUES:
                return True
        if name == "tokens" and not is_string:
            return False  # How many of a model's were used.
        return _is_secret(name) or _holds_values(name) or within.option

    def _add_name(self, within: _Container, name: str) -> None:
        piece = _encode(_without_secrets(name)) + ":"
        self._add(piece if within.empty else "," + piece, reserve=_NOTE)
        within.empty = False
        within.name = name

    def _add_value(self, piece: str) -> None:
        within = self._open[-1] if self._open else None
        comma = "," if within is not None and within.name is None and not within.empty else ""
        self._add(comma + piece, reserve=_NOTE)
        if within is not None:
            within.empty = False
            within.name = None
            within.option = False

    def _add_string(self, string: str) -> None:
        plain, is_part = beginning_without_secrets(string, self._limit)
        piece = _encode(plain)
        room = min(self._longest_string, self._limit - self._size - len(self._open) - 2 * _NOTE)
        if is_part or len(piece) > max(room, _NOTE):
            kept = _beginning(plain, max(room, 0))
            piece = _encode(f"{kept}{HIDDEN} {len(string) - len(kept)} characters left out")
        self._add_value(piece)

    def _add(self, piece: str, reserve: int = 0) -> None:
        # What closes the open containers has to fit as well.
        if self._size + len(piece) + len(self._open) + reserve > self._limit:
            raise _Full
        self._pieces.append(piece)
        self._size += len(piece)

    def _cut(self, at: int) -> None:
        """Note how much is missing, and close what is open."""
        note = _encode(f"{HIDDEN} {len(self._text[at:].encode())} bytes left out")
        if self._open:
            within = self._open[-1]
            if within.closing == "}" and within.name is None:
                note = f"{_encode(HIDDEN)}:{note}"
            if not within.empty and within.name is None:
                note = "," + note
        self._pieces.append(note)
        self._pieces += [container.closing for container in reversed(self._open)]


def beginning_without_secrets(text: str, limit: int) -> tuple[str, bool]:
    """The first characters of a text, `limit` or a little more, and whether there are others behind them."""
    looked_at = limit + LONGEST_SECRET
    plain = _without_secrets(text[:looked_at])
    return (plain, False) if len(text) <= looked_at else (plain[:-LONGEST_SECRET], True)


def _string(token: str) -> str:
    return json.loads(token) if "\\" in token else token[1:-1]


def _encode(text: str) -> str:
    # JSON itself leaves this one control character as it is.
    return json.dumps(text).replace("\x7f", "\\u007f")


def _beginning(text: str, room: int) -> str:
    """As much of the text as takes `room` bytes in JSON."""
    kept = text[:room]
    while kept and (size := len(_encode(kept))) > room:
        kept = kept[: len(kept) * room // size]
    return kept


def _folded(name: str) -> str:
    return name.casefold().replace("_", "").replace("-", "")


def _is_secret(name: str) -> bool:
    return name in _NAMES or (name.endswith(_NAME_ENDS) and name not in _HARMLESS_NAMES)


def _holds_values(name: str) -> bool:
    """Whether a member is a list of names, each with a value that may be a secret."""
    return name in _ENVIRONMENTS or name.endswith("headers")


def _logs_in(raw_method: bytes) -> bool:
    """Whether a method is `authenticate` or one of the methods that agents have for it besides."""
    return raw_method[:1] == b'"' and spans.string_value(raw_method).lstrip("_").casefold().startswith("auth")


def _without_secrets(text: str) -> str:
    if len(text) < _SHORTEST_SECRET:
        return text
    lower = text.lower()
    for hints, pattern in _SHAPES:
        for hint in hints:
            if hint in lower:
                text = pattern.sub(rf"\g<1>{HIDDEN}", text)
                break
    return text
