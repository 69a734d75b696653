"""Serves control connections of a gateway: the session API, rights, codes for browsers, the gateway's state, reload.

A client asks here what its credential allows, and which agents it may use. An agent is neither named nor started for
that, and nothing is told that the client could not find out by trying.
"""

import json
from collections.abc import Awaitable, Callable, Collection
from datetime import UTC, datetime
from typing import Any, Final

import trio

from acp_gateway import __version__
from acp_gateway.config.load import Config
from acp_gateway.core.sessions.session import Role
from acp_gateway.errors import AccessError, Forbidden, UsageError
from acp_gateway.gateway.access import Access, Grant
from acp_gateway.gateway.browsers import SignInCodes
from acp_gateway.gateway.extensions import Operations
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.hub.attachment import Disconnect
from acp_gateway.gateway.served_connection import ControlConnection, read_messages, serving
from acp_gateway.gateway.session_api.control import ControlledSessions
from acp_gateway.gateway.workspaces import workspaces_of
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import InvalidMessage, Kind, Message
from acp_gateway.protocol.methods import (
    ACCESS,
    CONFIRM,
    NOTICES,
    OPEN,
    RELOAD,
    STATUS,
    STOP_AGENT,
    TOKENS,
)
from acp_gateway.protocol.on_behalf import CLAIMS
from acp_gateway.protocol.text import lookup
from acp_gateway.security.token_store import CLUSTER
from acp_gateway.transports.maintained import Charge, MaintainedStream
from acp_gateway.transports.streams import CloseReason

WEIGHT: Final = 100
"""Messages that a control request counts as in rate limits, as a list of sessions does."""

CODE_WEIGHT: Final = 2000
"""Messages that a sign-in code counts as: it is written to the disk before it is answered."""

_NAMED: Final = (NOTICES, OPEN, ACCESS, STATUS)
"""Methods that an error names."""

_Answer = Callable[[Message], Awaitable[Any]]
"""Returns the result of a request, a JSON value. Raises `AccessError` and `UsageError`."""


class ControlChannel:
    """Answers the requests of one control connection that are about the gateway.

    Args:
        gateway: the gateway.
        grant: that of the connection.
    """

    def __init__(self, gateway: Gateway, grant: Grant) -> None:
        self.disconnect = Disconnect(CloseReason.NORMAL, "")
        """The way to close it."""
        self._gateway = gateway
        self._grant = grant
        self._registry = gateway.registry
        self._follows = False
        self._answers: dict[str, tuple[_Answer, int]] = {
            OPEN: (self._make_code, CODE_WEIGHT),
            ACCESS: (self._describe_access, WEIGHT),
            STATUS: (self._status, CODE_WEIGHT),
            RELOAD: (self._reload, CODE_WEIGHT),
            STOP_AGENT: (self._stop_agent, CODE_WEIGHT),
            CONFIRM: (self._confirm, CODE_WEIGHT),
            TOKENS: (self._exchange_tokens, WEIGHT),
        }

    async def serve(self, stream: MaintainedStream, charge: Charge, sessions: ControlledSessions) -> None:
        """Answer requests until the connection ends.

        `charge` is called for each request, and returns the seconds to wait before the next one. `sessions` serves the
        session API.
        """

        async def receive(text: bytes) -> tuple[int, float]:
            try:
                message: Message = jsonrpc.parse(text)
            except InvalidMessage as error:
                await stream.send(jsonrpc.error(jsonrpc.NO_ID, error.code, str(error)))
                return WEIGHT, 0.0
            if sessions.takes(message):
                return await sessions.handle(message, nursery)
            if message.kind is not Kind.REQUEST:
                return WEIGHT, 0.0
            if message.method == NOTICES:
                await self._follow_notices(message, stream, nursery)
                return WEIGHT, 0.0
            reply, weight = await self._answer(message)
            await stream.send(reply)
            return weight, 0.0

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.run)
            self.disconnect = await read_messages(stream, receive, charge, failure=_failure) or self.disconnect
            nursery.cancel_scope.cancel()

    async def _answer(self, message: Message) -> tuple[bytes, int]:
        """Return the response to a request, and what it counts as."""
        answer, weight = self._answers.get(message.method, (None, WEIGHT))
        if answer is None:
            known = f"{', '.join(_NAMED)}, {RELOAD} and {STOP_AGENT}"
            why = f"a control connection knows only {known}, besides the session API; is the client of this version?"
            return jsonrpc.error(message.id, jsonrpc.METHOD_NOT_FOUND, why), weight
        try:
            result = await answer(message)
        except AccessError as error:
            return _refusal(message, error), weight
        except UsageError as error:
            return jsonrpc.error(message.id, jsonrpc.INVALID_PARAMS, str(error)), weight
        return jsonrpc.result(message.id, result), weight

    # About itself

    async def _describe_access(self, _: Message) -> dict[str, Any]:
        return describe_access(self._grant, self._gateway.config, self._gateway.admissions.names)

    async def _make_code(self, message: Message) -> dict[str, Any]:
        gateway, led_to = self._gateway, self._gateway.extensions.led_to
        machines = [] if led_to is None else [it["name"] for it in led_to(self._grant.access)]
        codes = SignInCodes(
            self._grant, gateway.registry, gateway.browsers, gateway.audit_throttle, gateway.config.listen, machines
        )
        return codes.make(_params(message))

    # Notices

    async def _follow_notices(self, message: Message, stream: MaintainedStream, nursery: trio.Nursery) -> None:
        """Answer, and then tell questions and turns until the client has to connect again."""
        if self._grant.role is not Role.CONTROLLER:
            await stream.send(_refusal(message, Forbidden("only those who may decide questions are told of them")))
        elif self._follows:
            why = "this connection is told already"
            await stream.send(jsonrpc.error(message.id, jsonrpc.INVALID_REQUEST, why))
        else:
            self._follows = True
            await stream.send(jsonrpc.result(message.id, {}))
            nursery.start_soon(self._tell_notices, _count(message, "since"), stream, nursery.cancel_scope)

    async def _tell_notices(self, since: int | None, stream: MaintainedStream, scope: trio.CancelScope) -> None:
        try:
            await self._gateway.push.tell(self._grant.access, self._grant.connect_request, since, stream.send)
        except trio.BrokenResourceError:
            return  # The task that reads finds out.
        self.disconnect = Disconnect(CloseReason.GOING_AWAY, "there are other agents now: connect again")
        scope.cancel()

    # For the gateway's own user, and for nodes of its cluster

    def _operations(self) -> Operations:
        """Return what the gateway's own user may ask. Raises `Forbidden` for others."""
        operations = self._gateway.extensions.operations
        if operations is None or not self._grant.access.is_own_user:
            raise Forbidden("only the gateway's own user may ask this, on its machine")
        return operations

    async def _status(self, message: Message) -> dict[str, Any]:
        status = await self._operations().status(with_nodes=lookup.param(message, "nodes") == b"true")
        session_id = lookup.text_param(message, "session")
        return status if session_id is None else status | {"known": bool(self._registry.by_id(session_id))}

    async def _reload(self, _: Message) -> dict[str, Any]:
        return self._operations().reload()

    async def _stop_agent(self, message: Message) -> dict[str, Any]:
        return await self._operations().stop_agent(lookup.text_param(message, "agent") or "")

    async def _confirm(self, message: Message) -> dict[str, Any]:
        self._operations()
        exchange = self._gateway.extensions.token_exchange
        return {"nodes": []} if exchange is None else await exchange.confirm(str(lookup.text_param(message, "id")))

    async def _exchange_tokens(self, message: Message) -> object:
        exchange, access = self._gateway.extensions.token_exchange, self._grant.access
        if exchange is None or access.token is None or access.token.id != CLUSTER or access.spoken_for:
            raise Forbidden("only a node of the same cluster may tell this")
        try:
            return await exchange.tell(json.loads(_params(message)))
        except (ValueError, RecursionError) as error:
            raise UsageError(str(error)) from None


def _failure(why: str) -> bytes:
    return jsonrpc.error(jsonrpc.NO_ID, jsonrpc.INVALID_REQUEST, why)


def _refusal(message: Message, error: AccessError) -> bytes:
    return jsonrpc.error(message.id, error.http_status, str(error), {"reason": error.reason})


def _params(message: Message) -> bytes:
    return bytes(lookup.members_at(message.text).get("params", b"{}"))


def _count(message: Message, name: str) -> int | None:
    """Return a count in the params of a request; None without a valid one."""
    count = jsonrpc.id_number(jsonrpc.RawId(lookup.param(message, name) or b"null"))
    return None if count is None or count < 0 else count


def describe_access(grant: Grant, config: Config, names: Collection[str] = ()) -> dict[str, Any]:
    """Return identity, role, limits and end of a connection's credential, as members of the response; see
    `docs/wire.md`.

    `names` are agents of nodes, which another gateway is not told. Members without a value are left out.
    """
    access = grant.access
    # A connection that is for one session uses the agent of that, and is not told which others there are.
    usable = config.agents if grant.reach.only is None else {}
    agents = {name: section.scope for name, section in usable.items() if access.may_use(name)}
    if usable is config.agents and not grant.connect_request.passed and access.workspaces is None:
        # A node has a process for each identity at the most, as far as is known here.
        agents |= {name: "identity" for name in names if access.may_use(name) and name not in config.agents}
    described: dict[str, Any] = {
        "version": __version__,
        "identity": access.identity,
        "credential": access.credential,
        "role": grant.role.value,
        "agents": agents,
        "claims": CLAIMS,
    }
    if grant.reach.only is None:
        allowed = workspaces_of(config.workspaces, None)
        described["folders"] = [
            each.root for each in allowed if access.workspaces is None or each.name in access.workspaces
        ]
    default = config.default_agent if access.agents is None or len(access.agents) > 1 else next(iter(agents), "")
    if default in agents:
        described["defaultAgent"] = default
    texts = {
        "label": None if access.token is None else access.token.label,
        "session": grant.reach.only,
        "workspaces": None if access.workspaces is None else list(access.workspaces),
        "expires": _end_of(access),
    }
    return described | {name: value for name, value in texts.items() if value is not None}


def _end_of(access: Access) -> str | None:
    """Return the time from which the credential is refused, in ISO 8601; None if it has no end."""
    if access.browser is None and access.token is not None:
        return access.token.expires
    return (
        None if access.expires is None else datetime.fromtimestamp(access.expires, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    )


async def serve_control(gateway: Gateway, stream: MaintainedStream, grant: Grant, name: str = "control") -> None:
    """Serve a connection that asks the gateway itself, about what its token may join, until it ends."""
    limit = gateway.bound(stream, grant.role, "control")
    connection = ControlConnection(grant.access)
    async with serving(connection, stream, grant, gateway.connections) as charge:
        if gateway.extensions.looks is not None and not grant.connect_request.passed:
            # It may ask for the agents there are.
            gateway.extensions.looks.look_soon()
        channel = ControlChannel(gateway, grant)
        await channel.serve(stream, charge, ControlledSessions(gateway, grant, name, limit, stream, connection))
        connection.disconnect = channel.disconnect
