"""MCP servers of a client's sessions, and the policy for those that would be local to the gateway.

`mcpServers` holds programs, with arguments and environment, and URLs. A client means its own machine by both: its
programs, and its loopback. Forwarded unchanged, the programs would run on the gateway's machine as the gateway's user,
and the URLs would reach its loopback services. So these two kinds fall under the policy; others, such as servers that
the protocol itself carries, pass.

Ambiguous servers are treated as local, or refused: a repeated member, an unknown kind, a host that is a number in a
spelling that only some parsers accept. Lists of servers deeper in the request, where some agents read options of their
own, are local as a whole.

Servers that the protocol carries run at the client. Their messages are for that client only, and from it.

Some agents offer the servers of one session to all sessions of their process. Where those are of several identities,
all servers fall under the policy, unless it says that identities may use each other's.

A request may be large, and blocks all clients while it is checked. So nested lists are found by one regular expression
in one pass, and the main list is limited.
"""

import ipaddress
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, count, islice
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

from acp_gateway.core.sessions.session import Client
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.text import lookup, spans
from acp_gateway.protocol.text.spans import TooMany

if TYPE_CHECKING:
    from acp_gateway.config.agent_options import McpPolicy

LIST: Final = "mcpServers"

NESTED: Final = "nested"
"""Kind of the servers in nested lists, which agents read in their own way."""

LIST_LENGTH: Final = 256
"""Default of the maximum number of servers in a list, and of lists."""


MAX_CONNECTIONS: Final = 1000
"""Maximum number of remembered connections to servers of the clients of one agent; a session has a handful."""

NAME_LENGTH: Final = 1024
"""Maximum length of a client's name of a connection, in characters; a UUID has 36, and each name is remembered."""


class McpConnection(NamedTuple):
    """A connection to a server that a client carries."""

    client: Client
    """The client, which may have gone."""
    name: str
    """The client's name of the connection."""


class McpConnections:
    """Connections of an agent to servers that its clients carry.

    Each client names its own, so two may choose the same name. The agent gets another one for the later of both, and
    messages that name it are translated. A draft of the protocol has `mcp/connect` and `mcp/disconnect`, a later one
    names the server and the request that a message belongs to.
    """

    def __init__(self) -> None:
        # By the name at the agent.
        self._connections: dict[str, McpConnection] = {}

    def of(self, message: Message) -> McpConnection | None:
        """Return the connection that a message of the agent names, None if there is none. `mcp/disconnect` ends it."""
        name = named_connection(message)
        if name is None:
            return None
        ends = message.method == methods.MCP_DISCONNECT
        return self._connections.pop(name, None) if ends else self._connections.get(name)

    def connected(self, client: Client, response: bytes) -> bytes:
        """Take a client's response to `mcp/connect`, and return that for the agent, with a name that no other has."""
        result = lookup.members_at(response, "result")
        name = lookup.text_at(response, "result", "connectionId")
        if name is None:
            return response
        raw_id = jsonrpc.parse(response).id
        if len(name) > NAME_LENGTH:
            why = f"the client has named a connection with more than {NAME_LENGTH} characters"
            return jsonrpc.error(raw_id, jsonrpc.INTERNAL_ERROR, why)
        own = McpConnection(client, name)
        known = self._name_at_agent(own) or next(free for free in self._names(name) if free not in self._connections)
        self._connections[known] = own
        if len(self._connections) > MAX_CONNECTIONS:
            del self._connections[next(iter(self._connections))]
        # Composed, so that a member that is there twice reaches no agent that would read the other one.
        result["connectionId"] = jsonrpc.encode(known)
        return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (raw_id, jsonrpc.compose(result))

    def for_agent(self, client: Client, message: Message, asked: Iterable[Message]) -> bytes | None:
        """Return a client's `mcp/message` with the agent's name of the connection; `mcp/disconnect` ends it.

        None if that is not one of its own, and if it is not of a request that the client was asked.
        """
        name = named_connection(message)
        if name is not None:
            known = self._name_at_agent(McpConnection(client, name))
            if known is None:
                return None
            if message.method == methods.MCP_DISCONNECT:
                del self._connections[known]
            return message.text if known == name else _renamed(message, known)
        if message.method == methods.MCP_DISCONNECT:
            return None
        server, request = (lookup.text_param(message, member) for member in ("serverId", "requestId"))
        is_asked = request is not None and any(
            (other.method, lookup.text_param(other, "serverId"), lookup.text_param(other, "requestId"))
            == (methods.MCP_MESSAGE, server, request)
            for other in asked
        )
        return message.text if is_asked else None

    def reclaim(self, client: Client, links: Iterable[str]) -> None:
        """Give a client the connections that it had over other links."""
        identity, links = client.reach.identity, {*links}
        for known, (owner, name) in self._connections.items():
            if owner.gone and owner.link in links and owner.reach.identity == identity:
                self._connections[known] = McpConnection(client, name)

    def client_gone(self, client: Client) -> None:
        """Forget the connections of a client that has gone and can't come back."""
        if client.link is None:
            self._connections = {known: its for known, its in self._connections.items() if its.client is not client}

    def clear(self) -> None:
        """Forget all: the agent has ended."""
        self._connections.clear()

    def _name_at_agent(self, connection: McpConnection) -> str | None:
        """Return the agent's name of a connection, None if it is not there."""
        if self._connections.get(connection.name) == connection:
            return connection.name
        return next((known for known, other in self._connections.items() if other == connection), None)

    def _names(self, name: str) -> Iterator[str]:
        return chain([name], (f"{name}-{number}" for number in count(2)))


def named_connection(message: Message) -> str | None:
    """Return the name of a connection in `mcp/message` or `mcp/disconnect`, None in any other message."""
    if message.method not in (methods.MCP_MESSAGE, methods.MCP_DISCONNECT):
        return None
    return lookup.text_param(message, "connectionId")


def for_client(message: Message, connection: McpConnection) -> Message:
    """Return a message of the agent with the client's name of the connection."""
    if named_connection(message) == connection.name:
        return message
    return jsonrpc.parse(_renamed(message, connection.name))


def _renamed(message: Message, name: str) -> bytes:
    """Return the text of a message with another name of the connection that it names."""
    at = spans.find(message.text, "params", "connectionId")
    assert at is not None
    return spans.splice(message.text, [(*at, jsonrpc.encode(name))])


def _spellings(name: str) -> bytes:
    """Return a regular expression for all spellings that some parser takes for a member's name."""
    # The case folding of U+017F is an `s`, too. No parser ignores more than eight separators in a row.
    between = rb"(?:[_-]|\\u00(?:5f|2d)){0,8}"
    letters = [
        rb"(?:%c|\\u00(?:%02x|%02x)%b)" % (c, c, c - 32, rb"|\xc5\xbf|\\u017f" * (c == ord("s"))) for c in name.encode()
    ]
    # Programs in C may read a name up to a NUL.
    return between + between.join(letters) + between + rb'(?:\\u0000(?:[^"\\]|\\.)*+)?'


# In valid JSON, a quote without a backslash before it opens a string, and a string before a colon is a name.
_LISTS: Final = re.compile(
    # The quote first, which is found fast, and then a lookahead for the first characters of the spellings.
    rb'"(?<!\\")(?=[m_\\-])%b"[ \t\n\r]*:[ \t\n\r]*' % _spellings("mcpservers"),
    re.IGNORECASE,
)
_URL: Final = re.compile(r"https?:/*(?P<authority>[^/?#]*)", re.IGNORECASE)
_HOST: Final = re.compile(r"[a-z0-9._-]+")
_NUMBER: Final = re.compile(r"0x[0-9a-f]*|[0-9]+")
_LOCAL_NAME: Final = re.compile(r"localhost[46]?(\.localdomain[46]?)?|ip6-(localhost|loopback)|.*\.localhost")
_EMPTY: Final = {b"{": b"{}", b"[": b"[]"}


@dataclass(frozen=True, slots=True)
class McpServer:
    """A server that falls under the policy."""

    name: str
    """The client's name for the server."""
    kind: str
    """`stdio`, `http`, `sse`, another word of the client, or `NESTED`."""


@dataclass(frozen=True, slots=True)
class Screened:
    """A request to open a session, after the policy was applied."""

    text: bytes
    dropped: tuple[McpServer, ...] = ()
    refused: tuple[McpServer, ...] = ()
    """If not empty, the request must not be forwarded."""


class NotUnderstood(ValueError):
    """The list of servers is invalid or ambiguous; the text says what it has to be."""


def screen(text: bytes, policy: "McpPolicy", most: int = LIST_LENGTH, *, every: bool = False) -> Screened:
    """Apply the policy to a request's MCP servers: the local ones, or all of them, if `every` is set: none passes.

    Raises `NotUnderstood` if they are ambiguous or too many.
    """
    if every:
        policy = "deny" if policy == "deny" else "drop"
    elif policy in ("allow", "share"):
        return Screened(text)
    nested = list(_nested(text, most))
    edits = [(start, end, _EMPTY.get(text[start : start + 1], b"null")) for start, end in nested]
    plain = spans.splice(text, edits) if edits else text
    kept, local = _sort(plain, policy, most, every=every)
    found = (*local, McpServer("_meta", NESTED)) if nested else tuple(local)
    if policy == "deny" and found:
        return Screened(text, refused=found)
    if local:
        at = spans.find(plain, "params", LIST)
        assert at is not None
        plain = spans.splice(plain, [(*at, b"[" + b",".join(kept) + b"]")])
    return Screened(plain, dropped=found)


def _sort(text: bytes, policy: "McpPolicy", most: int, *, every: bool) -> tuple[list[bytes], list[McpServer]]:
    """Return the servers to pass on, as text, and the others."""
    servers = lookup.raw_at(text, "params", LIST)
    if servers is None or servers == b"null":
        return [], []
    if servers[:1] != b"[":
        raise NotUnderstood(f"{LIST} must be an array")
    kept: list[bytes] = []
    local: list[McpServer] = []
    for start, end in spans.elements(servers, most=most + 1):
        server = servers[start:end]
        if server[:1] != b"{":
            raise NotUnderstood(f"{LIST} must be an array of objects")
        if len(kept) + len(local) == most:
            raise NotUnderstood(f"{LIST} has at most {most} servers (max_mcp_servers)")
        name = lookup.text_at(server, "name") or ""
        kind = _local_kind(server)
        if every:
            kind = kind or lookup.text_at(server, "type") or "stdio"
        if kind is None or (isinstance(policy, tuple) and name in policy):
            kept.append(server)
        else:
            local.append(McpServer(name, kind))
    return kept, local


def _local_kind(server: bytes) -> str | None:
    """Return the kind of a server that is a program or may be at a loopback address; None for a remote one."""
    try:
        names = [methods.fold(name) for name in _names(server)]
    except TooMany as error:
        raise NotUnderstood(f"{LIST}: {error}") from None
    if len(set(names)) < len(names):
        raise NotUnderstood(f"a member of one of {LIST} is repeated")
    kind = (lookup.text_at(server, "type") or "stdio").casefold()
    if "command" in names:
        return "stdio"
    if kind == "acp" and "url" not in names:
        # A server carried by the protocol itself runs on the client's machine.
        return None
    if kind in ("http", "sse", "acp"):
        url = lookup.text_at(server, "url")
        return kind if url is None or may_be_loopback(url) else None
    return kind


def _names(server: bytes) -> Iterator[str]:
    return (spans.string_value(member.name) for member in spans.members(server))


def _nested(text: bytes, most: int) -> Iterator[tuple[int, int]]:
    """Yield the positions of non-empty lists of servers in the parameters besides the main one, the outermost only."""
    # Only a walk through the request finds positions; most requests have no list but the main one.
    found = len(list(islice(_LISTS.finditer(text), 2)))
    if found == (lookup.raw_at(text, "params", LIST) is not None):
        return
    params = spans.find(text, "params")
    if params is None:
        return
    meant = spans.find(text, "params", LIST)
    plain = spans.structure(text)
    end = count = 0
    for match in _LISTS.finditer(text, *params):
        start = match.end()
        if start < end or (meant is not None and start == meant[0]):
            continue
        end = spans.value_end(plain, start)
        count += 1
        if count > most:
            raise NotUnderstood(f"there are more than {most} lists of MCP servers (max_mcp_servers)")
        if text[start:end] not in (b"{}", b"[]", b"null"):
            yield start, end


def may_be_loopback(url: str) -> bool:
    """Return True if a URL's host is the loopback address, in the reading of any parser."""
    # Browsers' parsers remove these characters, and so do agents in JavaScript.
    url = re.sub(r"[\t\r\n]", "", url).strip("".join(map(chr, range(33))))
    match = _URL.match(url)
    # Some parsers take a backslash for a slash, others for a part of the name before an `@`.
    if match is None or "\\" in url:
        return True
    host = match["authority"].rpartition("@")[2]
    if host.startswith("["):
        return _is_local_ipv6(host[1:].partition("]")[0])
    host = unicodedata.normalize("NFKC", unquote(host.partition(":")[0])).casefold().replace("\u3002", ".")
    # Other names are remote. Parsers drop invisible characters from names that only look like an address.
    shown = "".join(filter(str.isascii, host)).rstrip(".")
    if not host.rstrip(".") or (shown and _HOST.fullmatch(shown) is None) or _LOCAL_NAME.fullmatch(shown):
        return True
    parts = shown.split(".")
    if _NUMBER.fullmatch(parts[-1]) is None:
        return False
    try:
        return _is_local_ipv4(_number(parts))
    except ValueError:
        return True


def _number(parts: list[str]) -> int:
    """Return an IPv4 address in a historic spelling: `127.1`, `0x7f000001`, `0177.0.0.1`, `2130706433`.

    Raises `ValueError` for other texts.
    """
    if len(parts) > 4 or not all(_NUMBER.fullmatch(part) for part in parts):
        raise ValueError("not an IPv4 address")
    numbers = [
        int(part[2:] or "0", 16) if part[:2] == "0x" else int(part, 8 if part[0] == "0" else 10) for part in parts
    ]
    *front, last = numbers
    if any(number > 255 for number in front) or last >= 256 ** (4 - len(front)):
        raise ValueError("not an IPv4 address")
    return sum(number << (24 - 8 * index) for index, number in enumerate(front)) + last


def _is_local_ipv4(number: int) -> bool:
    # The network 0 is "this host" to most systems.
    return number >> 24 in (0, 127)


def _is_local_ipv6(text: str) -> bool:
    try:
        number = int(ipaddress.IPv6Address(text.partition("%")[0]))
    except ValueError:
        return True
    # ::1 and ::, and an IPv4 address as such, ::ffff:127.0.0.1, or in the old form, ::127.0.0.1.
    high, low = number >> 32, number & 0xFFFFFFFF
    return high in (0, 0xFFFF) and (number <= 1 or _is_local_ipv4(low))
