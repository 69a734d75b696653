"""Recognizes secrets by the name of a member and by their shape in a text.

A member is secret that is called like one (`password`, `apiKey`, `access_token`). In a text, anything is that looks
like a token or a key. A password in the middle of a sentence stays where it is, and so does a token that an agent says
in two messages.

Both ends use this, so it takes the standard library alone.
"""

import re
from typing import Final, TypeAlias

HIDDEN: Final = "…"
"""Text that replaces a secret."""

MAX_SECRET_LENGTH: Final = 4096
"""Characters behind those of a long string that may be shown, which say whether the last of these are of a secret."""

# All names are compared folded: see `fold`.
_NAMES: Final = frozenset({"tokens", "accesstokens", "refreshtokens", "apitokens", "authtokens"})
_NAME_ENDS: Final = (
    *("token", "secret", "secrets", "password", "passwords", "passwd", "passphrase", "passphrases", "passcode", "pass"),
    *("pwd", "authorization", "cookie", "cookies", "apikey", "apikeys", "accesskey", "accesskeys", "privatekey"),
    *("privatekeys", "secretkey", "signingkey", "encryptionkey", "authkey", "masterkey", "accountkey", "authheader"),
    *("credential", "credentials", "creds", "bearer", "jwt", "connectionstring"),
)
# What may stand behind such a name.
_SUFFIXES: Final = ("pem", "value", "string", "plaintext", "base", "hex")
# Names that end like a secret's but belong to other things: a number of MCP's own, and words.
_HARMLESS_ENDS: Final = ("progresstoken", "compass", "bypass", "trespass", "surpass", "overpass", "underpass")

_SEPARATORS: Final = dict.fromkeys(map(ord, " _-."))
_SECRETS_NAME: Final = (
    r"(?:token|secret|passw(?:or)?d|passphrase|passcode|(?<![a-z])pass|pwd|api[_ -]?key|access[_ -]?key"
    r"|private[_ -]?key(?:[_-]?pem)?|(?:secret|account|signing|master|auth)[_-]?key|credentials?)(?:[_-]?[0-9]+)?"
)
_NAME_HINTS: Final = ("token", "secret", "pass", "pwd", "key", "credential")

Shape: TypeAlias = tuple[tuple[str, ...], re.Pattern[str]]


def _start(others: str = "") -> str:
    """Return the pattern of a place before which there is no letter, digit or other one of these characters.

    The end of a terminal's colour, as in `ESC [1;31m`, is such a place.
    """
    colour = "|".join(rf"(?<=[\[;][0-9]{{{digits}}}m)" for digits in range(4))
    return rf"(?:(?<![A-Za-z0-9{others}])|(?<=m)(?:{colour}))"


# Secrets in a text: words in lower case that occur wherever there is one, and the pattern for it. The pattern's
# first group stays. Each pattern takes time in proportion to the text, whatever is in it.
SHAPES: Final[tuple[Shape, ...]] = (
    (("acpgw",), re.compile(r"(acpgw[a-z]?_)[A-Za-z0-9]+")),
    (
        ("bearer",),
        re.compile(_start() + r"(Bearer[ \t]+|bearer[ \t]+(?=[A-Za-z0-9._~+/-]{16}))[A-Za-z0-9._~+/-]+=*"),
    ),
    (("authorization", "cookie"), re.compile(r"""((?i:authorization|cookie)["']?[ \t]*[:=][ \t]*["']?)[^\r\n"']+""")),
    (("://",), re.compile(r"(://[^\s/@:]*:)[^\s/@]+(?=@)")),
    # A token in place of the user: no user's name is that long.
    (("://",), re.compile(r"(://)[^\s/@:.]{16,}(?=@)")),
    (
        ("x-",),
        re.compile(_start("-") + r"""((?i:x-[a-z0-9-]*(?:key|token|secret))["']?[ \t]*:[ \t]*["']?)[^\s"']+"""),
    ),
    # A part of an address, an argument of a program; JSON in a text; a line of an env file.
    (_NAME_HINTS, re.compile(rf"((?:[?&#]|(?<!\S)--?)[A-Za-z0-9_.-]*(?i:{_SECRETS_NAME})=)[^\s&#]+")),
    (("key=", "sig=", "signature="), re.compile(r"([?&](?i:key|sig|[a-z0-9-]*signature)=)[^\s&#]+")),
    # Shorter ones are words of a sentence about the option.
    (
        _NAME_HINTS,
        re.compile(rf"""((?<!\S)--[A-Za-z0-9_-]*(?i:{_SECRETS_NAME})[ \t]+["']?)(?![-"'])[^\s"']{{8,}}"""),
    ),
    # The quotes of JSON in a string of JSON have a backslash, and those of others end the value only where it began so.
    (
        _NAME_HINTS,
        re.compile(
            rf"""(["'][A-Za-z0-9_. -]*(?i:{_SECRETS_NAME})\\?["'][ \t]*:[ \t]*\\?["'])"""
            r"""(?:(?<=\\["'])[^"'\\\r\n]+|(?<=")(?:[^"\\\r\n]|\\.)+|(?<=')(?:[^'\\\r\n]|\\.)+)"""
        ),
    ),
    # What a program says of its settings: a value with letters and digits, for others are words. It is not so in a
    # report of tests (`PASS: test_1`), in a parser's complaint, and where code gets the value from elsewhere.
    (
        _NAME_HINTS,
        re.compile(
            _start("_.-") + r"""(?<!nexpected )(?!(?i:pass)[ \t]*:)"""
            rf"""([A-Za-z0-9_.-]*(?i:{_SECRETS_NAME})[ \t]*[:=][ \t]*["']?)"""
            r"""(?!\$|[a-z]+\.[A-Za-z])(?=[^\s"';,&()\[\]]{0,64}[0-9])(?=[^\s"';,&()\[\]]{0,64}[A-Za-z])"""
            r"""[^\s"';,&()\[\]]{6,}+(?![(\[])"""
        ),
    ),
    (
        _NAME_HINTS,
        re.compile(
            _start("_")
            + r"([A-Z0-9_]*(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASSCODE|(?<![A-Z])PASS|(?<=(?<!OLD)_)PWD|_KEY"
            r"|APIKEY|CREDENTIALS?)(?:_PEM)?(?:_?[0-9]+)?=)(?:\"[^\"\r\n]+\"?|'[^'\r\n]+'?|[^\s\"']\S*)"
        ),
    ),
    # OpenAI, Anthropic and others; GitHub, GitLab, AWS, Google, Slack, Hugging Face, npm.
    (("sk-",), re.compile(_start() + r"()sk-[A-Za-z0-9_-]{16,}")),
    (("k_live_", "k_test_"), re.compile(_start() + r"()[rs]k_(?:live|test)_[A-Za-z0-9]{16,}")),
    (("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), re.compile(_start() + r"()gh[pousr]_[A-Za-z0-9]{16,}")),
    (("github_pat_",), re.compile(_start() + r"()github_pat_[A-Za-z0-9_]{16,}")),
    (("glpat-",), re.compile(_start() + r"()glpat-[A-Za-z0-9_-]{16,}")),
    (("akia", "asia"), re.compile(_start() + r"()A[KS]IA[A-Z0-9]{16}")),
    (("aiza",), re.compile(_start() + r"()AIza[A-Za-z0-9_-]{30,}")),
    (("xox",), re.compile(_start() + r"()xox[a-z]-[A-Za-z0-9-]{10,}")),
    (("hf_", "npm_", "gsk_"), re.compile(_start() + r"()(?:hf|npm|gsk)_[A-Za-z0-9]{20,}")),
    (("xai-",), re.compile(_start() + r"()xai-[A-Za-z0-9]{20,}")),
    (("pypi-",), re.compile(_start() + r"()pypi-[A-Za-z0-9_-]{16,}")),
    (("ya29.",), re.compile(_start() + r"()ya29\.[A-Za-z0-9_-]{16,}")),
    (("age-secret-key-1",), re.compile(_start() + r"()AGE-SECRET-KEY-1[A-Z0-9]{16,}")),
    # A JSON Web Token. It does not begin behind what may be in it, or a text of such beginnings would take for ever.
    (("eyj",), re.compile(_start("_-") + r"()eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*")),
    (
        ("private key-----",),
        re.compile(r"()-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    ),
)
# Characters that the least of these matches.
MIN_SECRET_LENGTH: Final = 6
# An argument that says that the next one is a secret.
OPTION: Final = re.compile(rf"--?[A-Za-z0-9_-]*(?i:{_SECRETS_NAME})")


def redact_text(text: str, limit: int) -> str:
    """A text that is not JSON without what looks like a secret, at most `limit` characters of it."""
    plain, is_part = beginning_without_secrets(text, limit)
    if not is_part and len(plain) <= limit:
        return plain
    kept = plain[:limit]
    return f"{kept}{HIDDEN} {len(text) - len(kept)} characters left out"


def beginning_without_secrets(text: str, limit: int) -> tuple[str, bool]:
    """The first characters of a text, `limit` or a little more, and whether there are others behind them."""
    looked_at = limit + MAX_SECRET_LENGTH
    plain = _without_secrets(text[:looked_at])
    return (plain, False) if len(text) <= looked_at else (plain[:-MAX_SECRET_LENGTH], True)


def likely_shapes(lower: str, shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """The shapes that a text may have, going by what is in it in lower case."""
    return tuple(shape for shape in shapes if any(hint in lower for hint in shape[0]))


def _without_secrets(text: str) -> str:
    if len(text) < MIN_SECRET_LENGTH:
        return text
    return hide(text, likely_shapes(text.lower(), SHAPES))


def hide(text: str, shapes: tuple[Shape, ...]) -> str:
    """Return a text without the secrets of these shapes."""
    for _, pattern in shapes:
        text = pattern.sub(rf"\g<1>{HIDDEN}", text)
    return text


def fold(name: str) -> str:
    """A name without case, separators and a number at its end: `Api Key`, `api_key_2` and `API-KEY` are one."""
    return name.casefold().translate(_SEPARATORS).rstrip("0123456789")


def is_secret_name(name: str) -> bool:
    """Return True if the value of a member of this name, folded, is a secret."""
    if name.endswith(_SUFFIXES):
        suffix = next(suffix for suffix in _SUFFIXES if name.endswith(suffix))
        if is_secret_name(name[: -len(suffix)]):
            return True
    return name in _NAMES or (name.endswith(_NAME_ENDS) and not name.endswith(_HARMLESS_ENDS))
