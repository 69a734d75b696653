"""Parses the handshake parameters of a client: token, agent and session, resume request, `Host` and `Origin`.

Over a WebSocket they are in the upgrade request, else in the first line. Tokens are verified elsewhere.
"""

import ipaddress
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, Literal, NamedTuple
from urllib.parse import parse_qs, urlencode

import msgspec
from websockets.datastructures import Headers

from acp_gateway.config.listeners import Network
from acp_gateway.errors import Forbidden
from acp_gateway.gateway.access import ConnectRequest
from acp_gateway.printable import printable
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import RawId
from acp_gateway.protocol.methods import HELLO
from acp_gateway.protocol.on_behalf import FOR, REQUEST, REQUEST_ID, OnBehalf, read_claim
from acp_gateway.security.proof import CHALLENGE
from acp_gateway.transports.http.server import Request
from acp_gateway.transports.parts import NO_PART, SPELLED, PartSum, read_part_sum
from acp_gateway.transports.websocket.server import SUBPROTOCOL
from acp_gateway.transports.websocket.stream import CONNECTION_ID, PART, PASSED, RESUME

SESSION_ID_SIZE: Final = 1024
"""Maximum characters of a session id, as of every id. Agents use UUIDs or similar ids."""

BEARER_PROTOCOLS: Final = ("acp.bearer.", "bearer.")
"""Prefixes of a subprotocol that contains a token, for clients that can't send headers, such as browsers."""

CONNECTION_ID_SIZE: Final = 64
"""Maximum characters of a connection id. Those of the gateway have 22."""

COUNT_DIGITS: Final = 15
"""Maximum digits of a number of messages: every JSON parser keeps such a number exactly."""

HOPS: Final = 32
"""Maximum number of chained proxies that are followed. Real chains have a handful."""

QUERY_FIELDS: Final = 100
"""Maximum number of parameters in a query; four are known."""

_PARAMETERS: Final = ("agent", "session", "observe", "control")

_NO_LETTER: Final = re.compile(r"[\W_]")

_GATEWAY_ID: Final = re.compile("[0-9a-f]{16}")

_COUNT: Final = re.compile(f"[0-9]{{1,{COUNT_DIGITS}}}")

_HOST: Final = re.compile(r"([a-z0-9._-]{1,255}|\[[0-9a-f:.]{2,45}\])(:[0-9]{0,5})?")

_OF_PROXIES: Final = frozenset({"forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip"})
"""Headers that proxies add, besides `X-Forwarded-…`."""

_FORWARDED: Final = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::[0-9]{1,5})?|([0-9.]+)(?::[0-9]{1,5})?|([0-9A-Fa-f:.]+)")
"""An address as proxies write it, with or without a port. A scope is not accepted, because it can be any text."""


class BadRequest(Exception):
    """A request that is ambiguous or invalid."""


class BadHello(Exception):
    """A first line that is not a valid hello request: code and message of the error, and the id of the request."""

    def __init__(self, code: int, message: str, request_id: RawId = jsonrpc.NO_ID) -> None:
        self.code = code
        self.request_id = request_id
        super().__init__(message)


class ResumeRequest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A request for a resumable link: a new one, or an existing one."""

    connection_id: Annotated[str, msgspec.Meta(max_length=CONNECTION_ID_SIZE)] | None = None
    """None for a new link."""
    received: Annotated[int, msgspec.Meta(ge=0, lt=10**COUNT_DIGITS)] = 0
    """Messages received over it so far."""
    part: Annotated[str, msgspec.Meta(pattern=rf"\A{SPELLED}\Z")] | None = None
    """Part of the next message that was received."""

    @property
    def part_sum(self) -> PartSum:
        """That part."""
        return read_part_sum(self.part) or NO_PART

    def __post_init__(self) -> None:
        if self.connection_id is None and (self.received or self.part):
            raise ValueError("messages can only have been received over a link that is named")


class Hello(msgspec.Struct, forbid_unknown_fields=True):
    """The parameters of `_acp-gateway/hello`."""

    token: str | None = None
    node: str | None = None
    """The node that is meant, with its own names of agents and sessions."""
    agent: str | None = None
    session: Annotated[str, msgspec.Meta(max_length=SESSION_ID_SIZE)] | None = None
    observe: bool = False
    control: bool = False
    resume: ResumeRequest | None = None
    challenge: str | None = None
    """Asks for a proof of the gateway, and for nothing else."""

    def __repr__(self) -> str:
        return f"Hello({self.connect_request})"

    @property
    def connect_request(self) -> ConnectRequest:
        """The request without token and link."""
        return ConnectRequest(self.agent, self.session, self.observe, self.control)


class _Request(msgspec.Struct, forbid_unknown_fields=True):
    """A first line."""

    id: msgspec.Raw
    method: Literal["_acp-gateway/hello"]
    params: Hello = msgspec.field(default_factory=Hello)
    jsonrpc: Literal["2.0"] = "2.0"


class _Envelope(msgspec.Struct):
    """As much of a first line that is not a hello as its refusal needs."""

    id: msgspec.Raw = msgspec.Raw(b"null")
    method: msgspec.Raw = msgspec.Raw(b"")


_decode_request = msgspec.json.Decoder(_Request).decode
_decode_envelope = msgspec.json.Decoder(_Envelope).decode


def read_hello(line: bytes) -> tuple[RawId, Hello]:
    """Read a first line: its id and its parameters. Raises `BadHello`.

    A stranger sends it, so nothing of it is looked at in Python but what the typed decoder lets through. A member that
    is not known is refused, since it may be a known one in another case (`"Observe": true`), and so is a repeated one.
    """
    try:
        # The decoder does not check the UTF-8 of the id.
        text = line.decode()
    except UnicodeDecodeError as error:
        raise BadHello(jsonrpc.PARSE_ERROR, f"not UTF-8 at byte {error.start}") from None
    try:
        request = _decode_request(text)
    except msgspec.ValidationError as error:
        raise _explain(text, str(error)) from None
    except msgspec.DecodeError as error:
        raise BadHello(jsonrpc.PARSE_ERROR, f"not JSON: {error}") from None
    except RecursionError:
        raise BadHello(jsonrpc.PARSE_ERROR, "nested too deeply") from None
    request_id = _checked_id(request.id)
    if _repeats_a_member(text):
        raise BadHello(jsonrpc.INVALID_REQUEST, "a member is there twice", request_id)
    return request_id, request.params


_PLACE: Final = re.compile(r" - at `\$\.(params[a-z.]*)")
"""Place of a flaw in the messages of msgspec."""

_STRUCTS: Final[dict[str, type[msgspec.Struct]]] = {"params": Hello, "params.resume": ResumeRequest}


def _explain(text: str, flaw: str) -> BadHello:
    """Make the refusal of a JSON text that is not a hello. Nothing of the text is repeated: it may hold a token."""
    try:
        envelope = _decode_envelope(text)
    except msgspec.ValidationError:
        return BadHello(jsonrpc.INVALID_REQUEST, "a message must be an object")
    except msgspec.DecodeError as error:
        # The flaw that was found first came before this one.
        return BadHello(jsonrpc.PARSE_ERROR, f"not JSON: {error}")
    except RecursionError:
        return BadHello(jsonrpc.PARSE_ERROR, "nested too deeply")
    request_id = _checked_id(envelope.id)
    if bytes(envelope.method) != b'"%b"' % HELLO.encode() or "`id`" in flaw:
        text = f"the first line must be a request {HELLO} with a token"
        return BadHello(jsonrpc.INVALID_REQUEST, text, request_id)
    found = _PLACE.search(flaw)
    code = jsonrpc.INVALID_REQUEST if found is None else jsonrpc.INVALID_PARAMS
    if "unknown field" not in flaw:
        return BadHello(code, f"the hello is not understood: {flaw}", request_id)
    place = "the hello" if found is None else found[1]
    known = ", ".join(field.encode_name for field in msgspec.structs.fields(_STRUCTS.get(place, _Request)))
    return BadHello(
        code, f"{place} has a member that is not known here; there are {known}, spelled like this", request_id
    )


def _checked_id(raw: msgspec.Raw) -> RawId:
    request_id = RawId(bytes(raw))
    if request_id[0] not in b'"-0123456789n':
        raise BadHello(jsonrpc.INVALID_REQUEST, "an id must be a string, a number or null")
    return request_id


def _repeats_a_member(text: str) -> bool:
    """Return whether an object of a decoded line has two members of one name; the decoder takes the last."""
    repeated = False

    def look(members: list[tuple[str, Any]]) -> None:
        nonlocal repeated
        repeated = repeated or len(dict(members)) < len(members)

    json.loads(text, object_pairs_hook=look)
    return repeated


def read_bearer(headers: Headers) -> str | None:
    """Return the token of an upgrade request: from the Authorization header, else from the subprotocols.

    Raises `BadRequest` if there is more than one.
    """
    authorization = headers.get_all("Authorization")
    if len(authorization) > 1:
        raise BadRequest("there is more than one Authorization header")
    offered = [word.strip() for value in headers.get_all("Sec-WebSocket-Protocol") for word in value.split(",")]
    tokens = [word[len(it) :] for word in offered for it in BEARER_PROTOCOLS if word.startswith(it)]
    if len(tokens) > 1:
        raise BadRequest("there is more than one token among the subprotocols")
    if not authorization:
        return tokens[0] if tokens and SUBPROTOCOL in offered else None
    scheme, _, token = authorization[0].partition(" ")
    if scheme.lower() != "bearer":
        return None
    if tokens and tokens != [token.strip()]:
        raise BadRequest("the token among the subprotocols is another one than that of the Authorization header")
    return token.strip()


def with_token_in_header(request: Request, parameter: str) -> Request:
    """Return a request with the token of this parameter of its query in the header instead, where nothing repeats it.

    Raises `BadRequest` if there are two tokens.
    """
    parameters = _parameters(request.query)
    values = parameters.pop(parameter, [])
    if not values:
        return request
    headers = request.headers.copy()
    if len(values) > 1 or read_bearer(headers) not in (None, values[0]):
        raise BadRequest("there is more than one token in this request")
    headers.pop("Authorization", None)
    headers["Authorization"] = f"Bearer {values[0]}"
    return replace(request, query=urlencode(parameters, doseq=True), headers=headers)


def read_challenge(headers: Headers) -> str | None:
    """Return what a request challenges the gateway with before it shows a token; None if it does not."""
    challenges = headers.get_all(CHALLENGE)
    return challenges[0] if len(challenges) == 1 else None


def read_query(query: str) -> ConnectRequest:
    """Read the connect parameters of an upgrade request; unknown ones are ignored. Raises `BadRequest`.

    A name that is similar to a known one (`Observe`, `agent[]`) is refused: if it were ignored, an observer would be
    admitted as a controller.
    """
    parameters = _parameters(query)
    for name in parameters:
        plain = _NO_LETTER.sub("", name).casefold()
        if plain in _PARAMETERS and name not in _PARAMETERS:
            raise BadRequest(f"the query has a parameter that is nearly {plain}: it is spelled {plain}")

    def single(name: str) -> str | None:
        values = parameters.get(name, [])
        if len(values) > 1:
            raise BadRequest(f"the query names more than one {name}")
        return values[0] if values else None

    def flag(name: str) -> bool:
        value = single(name)
        if value not in (None, "1"):
            raise BadRequest(f"the query may have {name}=1 and no other {name}")
        return value is not None

    connect_request = ConnectRequest(single("agent"), single("session"), flag("observe"), flag("control"))
    if connect_request.session is not None and len(connect_request.session) > SESSION_ID_SIZE:
        raise BadRequest(f"the session's id is longer than {SESSION_ID_SIZE} characters")
    return connect_request


_PAGE: Final = re.compile(r"[A-Za-z0-9_-]{16,64}")


def read_page(query: str) -> str | None:
    """Return the id of the page that an upgrade request comes from; None if it names none. Raises `BadRequest`."""
    values = _parameters(query).get("page", [])
    if not values:
        return None
    if len(values) > 1 or not _PAGE.fullmatch(values[0]):
        raise BadRequest("the query names a page by 16 to 64 letters, digits, - and _, once")
    return values[0]


def _parameters(query: str) -> dict[str, list[str]]:
    try:
        return parse_qs(query, keep_blank_values=True, max_num_fields=QUERY_FIELDS)
    except ValueError:
        raise BadRequest(f"the query has more than {QUERY_FIELDS} parameters") from None


def read_passed(headers: Headers) -> tuple[str, ...]:
    """Return the ids of the gateways that an upgrade request comes through. Raises `BadRequest`."""
    values = headers.get_all(PASSED)
    if not values:
        return ()
    ids = tuple(values[0].split(",", HOPS))
    if len(values) > 1 or not all(map(_GATEWAY_ID.fullmatch, ids)):
        raise BadRequest(f"{PASSED} must be ids of gateways, 16 hexadecimal digits each, with commas between them")
    return ids


class Passage(NamedTuple):
    """The statements of a gateway about a connection that comes through it."""

    passed: tuple[str, ...] = ()
    """Ids of the gateways on the way; empty for a connection of a client's own."""
    request_id: str = ""
    """The request id in the audit of that gateway; empty if it names none."""
    claim: OnBehalf | None = None
    """For whom it acts; None for its own credential's identity."""


def read_passage(headers: Headers) -> Passage:
    """Return what an upgrade request says of the gateways that it comes through. Raises `BadRequest`."""
    passed, requests, claims = read_passed(headers), headers.get_all(REQUEST), headers.get_all(FOR)
    if not requests and not claims:
        return Passage(passed)
    if not passed:
        raise BadRequest(f"{FOR} and {REQUEST} are for connections through a gateway, which have {PASSED} as well")
    if len(requests) > 1 or len(claims) > 1:
        raise BadRequest(f"there is more than one {FOR} or {REQUEST} header")
    if requests and not REQUEST_ID.fullmatch(requests[0]):
        raise BadRequest(f"{REQUEST} must be at most 64 letters, digits and hyphens")
    claim = read_claim(claims[0]) if claims else None
    if claims and claim is None:
        raise BadRequest(f"{FOR} is not understood: update the older one of this gateway and the one in between")
    return Passage(passed, requests[0] if requests else "", claim)


def read_connect_request(request: Request) -> ConnectRequest:
    """Return the connect parameters of a request, and the gateways that it comes through. Raises `BadRequest`."""
    passage = read_passage(request.headers)
    return replace(read_query(request.query), passed=passage.passed, request_id=passage.request_id)


def check_no_passage(headers: Headers) -> None:
    """Raise `BadRequest` for a request that may not come through a gateway: nothing else heeds these headers."""
    for name in (PASSED, FOR, REQUEST):
        if name in headers:
            raise BadRequest(f"{name} is for requests of other gateways, which they pass on, and there are none here")


def read_resume_request(query: str, headers: Headers) -> ResumeRequest | None:
    """Return the resume request of an upgrade; None if it asks for no resumable link.

    Links of control connections are not resumable. Raises `BadRequest`.
    """
    counts, ids, parts = headers.get_all(RESUME), headers.get_all(CONNECTION_ID), headers.get_all(PART)
    if not counts or _parameters(query).get("control") == ["1"]:
        return None
    if len(counts) > 1 or len(ids) > 1 or len(parts) > 1:
        raise BadRequest(f"there is more than one {RESUME}, {CONNECTION_ID} or {PART} header")
    if not _COUNT.fullmatch(counts[0]):
        raise BadRequest(f"{RESUME} must be a number of at most {COUNT_DIGITS} digits")
    received = int(counts[0])
    if not ids:
        if received or parts:
            raise BadRequest(f"{RESUME} without {CONNECTION_ID} must be 0, without {PART}")
        return ResumeRequest()
    if len(ids[0]) > CONNECTION_ID_SIZE or not ids[0].isascii():
        raise BadRequest(f"{CONNECTION_ID} must be at most {CONNECTION_ID_SIZE} characters of ASCII")
    if parts and read_part_sum(parts[0]) is None:
        raise BadRequest(f"{PART} must be a number of bytes, a space, and their CRC-32 as 8 hexadecimal digits")
    return ResumeRequest(ids[0], received, *parts)


def asks_for_websocket(headers: Headers) -> bool:
    """Return whether a request asks for a WebSocket; the library checks the rest of the upgrade."""
    return any(word.strip().lower() == "websocket" for value in headers.get_all("Upgrade") for word in value.split(","))


def check_origin(headers: Headers, allowed: Sequence[str]) -> bool:
    """Return whether a request is a web page's. Raises `Forbidden` if the origin of that is not listed."""
    origins = headers.get_all("Origin")
    if origins and (len(origins) > 1 or origins[0] not in allowed):
        raise Forbidden(
            "pages of this Origin may not connect; allowed_origins of the [[listen]] section lists those that may"
        )
    return bool(origins)


def why_indirect(headers: Headers, allowed: Sequence[str], port: int) -> str | None:
    """Return why a request may not be of a program on this machine, or of an `allowed` page; None if nothing shows it.

    A page sends no `Origin` with an image or a link. `port` is that of the connection: a tunnel has another one at its
    far end as a rule.
    """
    found = _HOST.fullmatch(headers.get("Host", "").lower())
    if found is None or not is_loopback(found[1]) or (found[2] or ":80") != f":{port}":
        return "this Host is another one than its address"
    # Their names come in lower case.
    for name in headers:
        if name in _OF_PROXIES or name.startswith("x-forwarded-"):
            return f"a proxy has sent {printable(name, 64)}"
    origins = headers.get_all("Origin")
    if origins and (len(origins) > 1 or origins[0] not in allowed):
        return "the Origin of the page is not in allowed_origins"
    if not origins and "Sec-Fetch-Site" in headers:
        return "a browser has sent it without an Origin"
    return None


def check_host(headers: Headers, allowed: Sequence[str], *, loopback: bool) -> None:
    """Raise `Forbidden` for a request whose `Host` header is not a name of the gateway.

    Defends against DNS rebinding: on loopback only loopback names and the `allowed` ones are accepted; on other
    listeners the `allowed` ones, or all if none is listed.
    """
    hosts = headers.get_all("Host")
    if len(hosts) != 1:
        raise Forbidden("a request has exactly one Host header")
    if not loopback and not allowed:
        return
    found = _HOST.fullmatch(hosts[0].lower())
    # A fully qualified name may end with a dot.
    name = "" if found is None else found[1].removesuffix(".")
    if name in allowed or (loopback and is_loopback(name)):
        return
    raise Forbidden(
        f'this gateway does not go by the name "{name}" here; add it to allowed_hosts of the [[listen]] section'
        if name
        else "this gateway does not go by a name like this"
    )


def is_loopback(name: str) -> bool:
    """Return whether a name, in lower case and without a port, is that of the machine itself for every program."""
    if name in ("localhost", "[::1]") or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.IPv4Address(name).is_loopback
    except ValueError:
        return False


def client_address(peer: str, headers: Headers, trusted: Sequence[Network]) -> str:
    """Return the address of the client behind `peer`: the peer's own, or the one that a trusted proxy names.

    Each proxy appends its own peer to `X-Forwarded-For`, so the last untrusted address is true, and those before it are
    that client's claims. If a proxy names no IP address, the request counts as the proxy's own.
    """
    if not is_trusted(peer, trusted):
        return peer
    hops = ",".join(headers.get_all("X-Forwarded-For")).rsplit(",", HOPS)
    for hop in reversed(hops[-HOPS:]):
        found = _FORWARDED.fullmatch(hop.strip())
        try:
            peer = str(ipaddress.ip_address(found[1] or found[2] or found[3] if found else ""))
        except ValueError:
            break
        if not is_trusted(peer, trusted):
            break
    return peer


def is_trusted(address: str, proxies: Sequence[Network]) -> bool:
    """Return whether an address is in one of the trusted networks."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return any(ip in network for network in proxies)
