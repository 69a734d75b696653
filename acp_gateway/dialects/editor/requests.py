"""Reads the HTTP requests of a patched editor, and composes the ACP messages for them.

The editor's page calls paths below `/acp/`; each body is one JSON object. A provider is a configured agent: its command
in a body is never used. Answers are in `editor_output`. The wire is described in `docs/dialects-reference.md`.
"""

import re
from typing import Annotated, Final, TypeVar

import msgspec

from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import InvalidMessage, RawId
from acp_gateway.protocol.text import lookup, spans
from acp_gateway.protocol.text.spans import MalformedJson, TooMany

SEND_MESSAGE: Final = "/acp/sendMessage"
GET_COMMANDS: Final = "/acp/getSlashCommands"
INIT_SESSION: Final = "/acp/initSession"
GET_SESSION: Final = "/acp/getSession"
RESPOND: Final = "/acp/respond"
LOG: Final = "/acp/log"
DEBUG: Final = "/acp/debug"

METHODS: Final = {
    SEND_MESSAGE: "POST",
    GET_COMMANDS: "GET",
    INIT_SESSION: "POST",
    GET_SESSION: "POST",
    RESPOND: "POST",
    LOG: "POST",
    DEBUG: "GET",
}
"""All paths, each with its method."""

ACTS: Final = frozenset({SEND_MESSAGE, INIT_SESSION, GET_SESSION, RESPOND})
"""Paths that observers and guests may not use."""

COMPOSER_SIZE: Final = 256
"""Maximum characters of a composer's id; a UUID has 36, and each id is remembered."""

NAME_SIZE: Final = 64
"""Maximum characters of a provider's id, which is the name of an agent."""

TEXT_SIZE: Final = 4096
"""Maximum characters of a mode, a directory, or a level of the log."""

KEY_SIZE: Final = 64
"""Maximum bytes of a request's id as JSON text. The gateway makes them: they are short."""


class BadBody(ValueError):
    """A body that can't be understood."""


class Provider(msgspec.Struct):
    """The agent that a body names. What else it says of the agent is not decoded."""

    id: Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_SIZE)]
    command: msgspec.Raw = msgspec.Raw(b"null")
    args: msgspec.Raw = msgspec.Raw(b"null")
    env: msgspec.Raw = msgspec.Raw(b"null")

    def __repr__(self) -> str:
        return f"Provider({self.id!r})"

    @property
    def brings_command(self) -> bool:
        """True if the body says how to start the agent, which is ignored."""
        return any(bytes(raw) != b"null" for raw in (self.command, self.args, self.env))


_Composer = Annotated[str, msgspec.Meta(min_length=1, max_length=COMPOSER_SIZE)]
_Short = Annotated[str, msgspec.Meta(max_length=TEXT_SIZE)]


class SendMessage(msgspec.Struct, rename="camel"):
    """The body of `SEND_MESSAGE`: a prompt."""

    provider: Provider
    message: str
    composer_id: _Composer
    stream: bool = False
    mode_id: _Short | None = None
    """The mode that is asked for; None or empty to leave it as it is."""
    cwd: _Short | None = None
    """The directory of a session that is new; the gateway's own addition."""


class InitSession(msgspec.Struct, rename="camel"):
    """The body of `INIT_SESSION`: a session that no composer has yet."""

    provider: Provider
    cwd: _Short | None = None


class GetSession(msgspec.Struct, rename="camel"):
    """The body of `GET_SESSION`: the session of a composer."""

    provider: Provider
    composer_id: _Composer
    cwd: _Short | None = None


class LogEntry(msgspec.Struct):
    """The body of `LOG`."""

    level: _Short = "info"
    message: str = ""


class _Respond(msgspec.Struct, rename="camel"):
    request_id: msgspec.Raw
    outcome: msgspec.Raw


class Respond(msgspec.Struct):
    """The body of `RESPOND`: the decision about a permission."""

    key: str
    """The permission's id; digits may be a number in the body."""
    outcome: bytes
    """JSON text."""

    @property
    def result(self) -> bytes:
        """The result of the ACP response to the permission, as JSON text."""
        return b'{"outcome":%b}' % self.outcome


_Body = TypeVar("_Body")


def read(body: bytes, kind: type[_Body]) -> _Body:
    """Read a body of this kind; members that are not known are ignored. Raises `BadBody`."""
    try:
        # The decoder does not check the UTF-8 of what stays raw.
        jsonrpc.check_utf8(body)
        found = msgspec.json.decode(_whole(body), type=kind)
        if spans.repeated_member(body) is not None:
            raise BadBody("a member is repeated, or is there in two spellings")
        return found
    except InvalidMessage as error:
        raise BadBody(str(error)) from None
    except msgspec.ValidationError as error:
        # It names places and types, and repeats no value.
        raise BadBody(f"the body is not understood: {error}") from None
    except msgspec.DecodeError as error:
        raise BadBody(f"not JSON: {error}") from None
    except TooMany:
        raise BadBody(f"a body has at most {spans.MEMBERS} members") from None
    except (MalformedJson, RecursionError):
        raise BadBody("nested too deeply") from None


_HIGH: Final = r"\\u[dD][89abAB][0-9a-fA-F]{2}"
_LOW: Final = r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF: Final = re.compile(
    rf"\\u[dD](?:[89abAB][0-9a-fA-F]{{2}}(?!{_LOW})|[c-fC-F][0-9a-fA-F]{{2}}(?<!{_HIGH}{_LOW}))".encode()
)
"""The escape of half of a character, which the decoder does not take, in a text without escaped backslashes."""


def _whole(body: bytes) -> bytes:
    """Return a JSON text without halves of characters: an editor that shortens a text may cut an emoji in two.

    Each becomes U+FFFD, as in any program that writes UTF-8. The text is not parsed: its objects would take many times
    as long, and as much memory, as the strings that are wanted.
    """
    if b"\\ud" not in body and b"\\uD" not in body:
        return body
    # Escaped backslashes are set aside as bytes that UTF-8 does not have; then each backslash begins an escape.
    return _HALF.sub(rb"\\ufffd", body.replace(rb"\\", b"\xff\xff")).replace(b"\xff\xff", rb"\\")


def read_respond(body: bytes) -> Respond:
    """Read the body of `RESPOND`. Raises `BadBody`."""
    found = read(body, _Respond)
    raw, outcome = bytes(found.request_id), bytes(found.outcome)
    number = jsonrpc.id_number(RawId(raw)) if len(raw) <= KEY_SIZE else None
    key = str(number) if number is not None else lookup.text_at(raw) if len(raw) <= KEY_SIZE else None
    if key is None:
        raise BadBody("requestId must be the text of a permission's requestId")
    if outcome[:1] != b"{":
        raise BadBody('outcome must be {"outcome": "selected", "optionId": …} or {"outcome": "cancelled"}')
    return Respond(key, outcome)


def prompt(session_id: str, message: str) -> bytes:
    """Return the params of `session/prompt`."""
    return jsonrpc.encode({"sessionId": session_id, "prompt": [{"type": "text", "text": message}]})


def set_mode(session_id: str, mode: str) -> bytes:
    """Return the params of `session/set_mode`."""
    return jsonrpc.encode({"sessionId": session_id, "modeId": mode})


def new_session(cwd: str) -> bytes:
    """Return the params of `session/new`. The editor has no MCP servers."""
    return jsonrpc.encode({"cwd": cwd, "mcpServers": []})


def cancellation(session_id: str, request_id: int, *, runs: bool) -> tuple[str, bytes]:
    """Return method and params of the notification that ends a prompt; `runs` if the agent works on it.

    One that waits for its turn is taken back alone: `session/cancel` would end the turn before it.
    """
    if runs:
        meant = {methods.META: {"prompts": [request_id]}}
        # First, so that the agent gets nothing of it.
        return methods.SESSION_CANCEL, jsonrpc.encode({"_meta": meant, "sessionId": session_id})
    return methods.CANCEL_REQUEST, jsonrpc.encode({"requestId": request_id})
