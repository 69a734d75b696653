"""Asks nodes for a client of this gateway: for sessions, what they have cost, what is found in them, and a file of one.

Each question is a control connection of its own, with a claim for the client, so the node decides what is told. What it
has told is checked here: another machine has written it.
"""

import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

import trio
from msgspec import Raw

from acp_gateway.acp.reading import ABSENT, Shape
from acp_gateway.client.control import (
    Listing,
    UsageAnswer,
    exchange,
    exchange_text,
    read_found,
    read_listing,
    read_usage,
)
from acp_gateway.client.dialing import Destination, upgrade
from acp_gateway.config.addresses import parse_address
from acp_gateway.config.nodes import SEPARATOR, split_name
from acp_gateway.core.sessions.session import SessionReach
from acp_gateway.errors import AccessError, Busy, GatewayError, Unauthorized, Unreachable
from acp_gateway.gateway.access import Access
from acp_gateway.gateway.costs.spending import amounts_of
from acp_gateway.gateway.events.audit import AuditThrottle
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.node_directory import ID_SIZE, NodeDirectory
from acp_gateway.gateway.search.elsewhere import FoundAtNodes, FoundElsewhere
from acp_gateway.gateway.search.service import MOST_FOUND
from acp_gateway.gateway.search.texts import SNIPPET
from acp_gateway.gateway.session_api.requests import EXPORT, LIST, SEARCH, USAGE
from acp_gateway.gateway.sessions.elsewhere import ListedAtNodes, SpentAtNodes
from acp_gateway.made.ports import MOST_TOLD, NAME_SIZE
from acp_gateway.nodes.door import NodeAdmission
from acp_gateway.nodes.reaching import ENDPOINT, Reach, said_to_node
from acp_gateway.protocol.on_behalf import write_claim
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.streams import closed_on_error
from acp_gateway.transports.websocket.stream import PASSED, Timing

LIST_SIZE: Final = 4 * 1024 * 1024
"""Maximum bytes of a response of a node, which lists 3 MiB of sessions at most."""

FILE_SIZE: Final = 64 * 1024 * 1024
"""Maximum bytes of a file of a node: gateways keep 16 MiB of a session, which JSON makes longer."""

LIST_TIMEOUT: Final = 2.0
"""Seconds for the lists of all nodes together: a person waits for them."""

SEARCH_TIMEOUT: Final = 3.0
"""Seconds for the results of all nodes together."""

EXPORT_TIMEOUT: Final = 120.0
"""Seconds for a file of a history: the node writes one at a time."""

MOST_AT_ONCE: Final = 32
"""Maximum nodes that are asked at a time."""

TEXT: Final = 4096
"""Maximum characters of a text that a node has told."""

WAITING: Final = 100
"""Maximum number of open requests of one session of a node."""

_TEXTS: Final = ("title", "cwd", "updatedAt", "history", "fence")

_COUNTS: Final = ("connected", "away")

Told = TypeVar("Told")


class _File(Shape, frozen=True):
    text: Raw = ABSENT


Ask = Callable[[str, Access, str, Mapping[str, Any]], Awaitable[tuple[Destination, Any]]]
"""Asks a node by its name for a client: a method with params. Returns where it was asked, for errors, and the result;
that of `session/export` is JSON text. Raises `GatewayError`."""


class NodeAsker:
    """Opens control connections to nodes.

    Args:
        own_id: the id of this gateway in the paths of connections.
        admission: says for whom a connection is.
        reach: opens connections to nodes.
        audit: is told of connections for clients.
    """

    def __init__(self, own_id: str, admission: NodeAdmission, reach: Reach, audit: AuditThrottle) -> None:
        self._own_id = own_id
        self._admission = admission
        self._reach = reach
        self._audit = audit

    async def ask(
        self, name: str, access: Access | None, method: str, params: Mapping[str, Any]
    ) -> tuple[Destination, Any]:
        """Ask a node over a connection of its own, as `Ask`; for this gateway itself without a client's principal.

        Cancelling closes the connection.
        """
        # A file is passed on as it is: reading it would hold the loop.
        size, ask = (FILE_SIZE, exchange_text) if method == EXPORT else (LIST_SIZE, exchange)
        async with self.connected(name, access, size) as (destination, stream):
            return destination, await ask(stream, destination, method, params)

    @asynccontextmanager
    async def connected(
        self, name: str, access: Access | None, size: int = LIST_SIZE
    ) -> AsyncIterator[tuple[Destination, MaintainedStream]]:
        """Open a control connection to a node for this block. Raises as `Ask`, also for Trio's errors of the block."""
        said = {PASSED: self._own_id}
        if access is not None:
            request_id = secrets.token_hex(8)
            said = said_to_node(self._own_id, request_id, write_claim(self._admission.claim(access, name)))
        reached = await self._reach(name)
        if access is not None:
            identity = access.identity
            self._audit.record("node_link", node=name, path=ENDPOINT, identity=identity, request=request_id)
        destination = Destination(
            parse_address(f"ws://{reached.host}{reached.endpoint}"),
            None,
            reached.token,
            None,
            None,
            size,
            control=True,
            origin=tuple(said.items()),
            server="the node's gateway",
        )
        try:
            async with closed_on_error(reached.stream):
                stream = (await upgrade(reached.stream, destination, Timing(), None)).stream
            try:
                yield destination, stream
            finally:
                await stream.abort()
        except (trio.BrokenResourceError, trio.EndOfChannel, trio.ClosedResourceError) as error:
            raise Unreachable(f"{destination.address}: the connection was lost") from error
        except AccessError as error:
            # Clients are told, but not where the node is.
            raise type(error)(str(error).removeprefix(f"{destination.address}: ")) from None


class NodeQuestions:
    """Asks the nodes of one gateway.

    Args:
        gateway: this gateway.
        admission: says which nodes a client may use.
        ask: asks one of them.
    """

    def __init__(self, gateway: Gateway, admission: NodeAdmission, ask: Ask) -> None:
        self._gateway = gateway
        self._admission = admission
        self._ask = ask

    @property
    def _directory(self) -> NodeDirectory:
        directory = self._gateway.extensions.directory
        assert directory is not None, "there are nodes"
        return directory

    # Lists

    async def sessions(
        self, access: Access, reach: SessionReach, agents: Container[str], *, with_ports: bool = False
    ) -> ListedAtNodes:
        """Return the sessions that nodes have; nodes that do not answer in time are among the problems.

        Args:
            access: the client's principal.
            reach: the sessions that exist for its connection.
            agents: the agents whose sessions it is told.
            with_ports: whether it wants the ports of each as well, for which the machines are looked at.
        """
        usable = self._usable(access, reach)
        wanted = {"ports": True} if with_ports else {}
        listings, missing = await self._ask_all(usable, LIST_TIMEOUT, lambda name: self._list(name, access, wanted))
        rows: list[dict[str, Any]] = []
        for name, listing in listings.items():
            for session in listing.sessions:
                row = describe(name, session)
                if reach.only in (None, row["id"]) and row["agentType"] in agents:
                    row["owner"] = row["owner"] if reach.guest else reach.identity
                    rows.append(row)
        problems = [self._absence(name, why, reach) for name, why in missing.items()]
        problems += filter(None, [self._gateway.extensions.lists_problem()])
        return ListedAtNodes(rows, sum(it.more for it in listings.values()), [*missing], problems)

    def _absence(self, name: str, why: GatewayError | None, reach: SessionReach) -> str:
        """Say that a node does not answer; only the own user is told why, which may name addresses."""
        node = self._directory.nodes.get(name)
        is_own = reach.identity == self._gateway.registry.own_identity and reach.sees_all
        if node is None or node.up:
            if why is None:
                return f"the node {name} did not answer in time"
            return f"the node {name} did not answer: {why}" if is_own else f"the node {name} did not answer"
        return node.away if is_own else node.away_since

    async def _list(self, name: str, access: Access, wanted: Mapping[str, Any]) -> Listing:
        most = self._gateway.config.limits.max_node_sessions
        listing = read_listing(*await self._ask(name, access, LIST, {"all": True, "limit": most, **wanted}))
        sessions = [it for it in listing.sessions if len(it["sessionId"]) <= ID_SIZE]
        return replace(listing, sessions=sessions[-most:], more=listing.more + len(sessions[:-most]))

    async def usage(self, access: Access, reach: SessionReach, wanted: Mapping[str, Any]) -> SpentAtNodes:
        """Return what sessions at nodes have cost, by what is `wanted`. Nodes that do not answer are `missing`."""

        async def ask(name: str) -> UsageAnswer:
            return read_usage(*await self._ask(name, access, USAGE, wanted))

        told, missing = await self._ask_all(self._usable(access, reach), LIST_TIMEOUT, ask)
        found = SpentAtNodes([], Counter(), sum(it.more for it in told.values()), sorted(missing))
        for name, answer in told.items():
            found.total.update(amounts_of(answer.total))
            begin = f"{name}{SEPARATOR}" if wanted["by"] in ("session", "agent") else ""
            for row in answer.rows:
                names = {"key": f"{begin}{row['key']}"[:TEXT], "title": (row["title"] or "")[:TEXT], "machine": name}
                found.rows.append(row | names)
        return found

    # What is in them

    async def search(self, access: Access, reach: SessionReach, agents: Container[str], words: str) -> FoundAtNodes:
        """Return the sessions at nodes in which all words are found.

        It does not fail: nodes that do not answer are `missing`. Cancelling closes the connections to the nodes.
        """
        usable = self._usable(access, reach)
        found, missing = await self._ask_all(usable, SEARCH_TIMEOUT, lambda name: self._find(name, access, words))
        rows = [
            one
            for name in usable
            for one in found.get(name, ((), True))[0]
            if one.agent in agents and reach.only in (None, one.name)
        ]
        is_complete = all(complete for _, complete in found.values())
        return FoundAtNodes([one._replace(owner=reach.identity) for one in rows], sorted(missing), is_complete)

    async def _find(self, name: str, access: Access, words: str) -> tuple[list[FoundElsewhere], bool]:
        answer = read_found(*await self._ask(name, access, SEARCH, {"words": words, "nodes": True}))
        found = [
            FoundElsewhere(
                f"{name}{SEPARATOR}{one['sessionId']}",
                f"{name}{SEPARATOR}{one['agent']}",
                "",
                one["title"][:TEXT],
                one["texts"],
                # Two for what stands for the rest of the text.
                one["text"][: SNIPPET + 2],
            )
            for one in answer.found[:MOST_FOUND]
        ]
        return found, answer.complete

    async def export(self, access: Access, name: str, form: str, *, redacted: bool) -> bytes | None:
        """Return the file of a session `NODE/ID`, as JSON text, see `session/export`; None for another name.

        Raises `AccessError`.
        """
        place = split_name(name, self._directory.sections)
        if place is None:
            return None
        params = {"sessionId": place[1], "format": form, "redact": redacted}
        try:
            with trio.fail_after(EXPORT_TIMEOUT):
                file: bytes = (await self._ask(place[0], access, EXPORT, params))[1]
        except trio.TooSlowError:
            raise Busy(f"the node {place[0]} did not answer in time") from None
        except Unauthorized:
            raise Busy(f"the node {place[0]} does not accept this gateway's token") from None
        except AccessError:
            raise
        except GatewayError:
            most = f"{FILE_SIZE >> 20} MiB"
            raise Busy(f"the node {place[0]} can't be reached now, or the file has more than {most}") from None
        if bytes(memoryview(_File.read(file).text)[:1]) != b'"':
            raise Busy(f"the response of the node {place[0]} is not understood")
        return file

    # Questions

    def _usable(self, access: Access, reach: SessionReach) -> list[str]:
        """Return the nodes that a client may use; of one that is for one session, that of this session."""
        usable = []
        for name in self._directory.nodes:
            if reach.only is None or reach.only.startswith(f"{name}{SEPARATOR}"):
                with suppress(AccessError):
                    self._admission.claim(access, name)
                    usable.append(name)
        return usable

    async def _ask_all(
        self, names: list[str], timeout: float, ask: Callable[[str], Awaitable[Told]]
    ) -> tuple[dict[str, Told], dict[str, GatewayError | None]]:
        """Return what nodes answer, by name, and why others do not: None if they do not in time."""
        told: dict[str, Told] = {}
        refused: dict[str, GatewayError] = {}
        places = trio.Semaphore(MOST_AT_ONCE)

        async def one(name: str) -> None:
            try:
                async with places:
                    told[name] = await ask(name)
            except GatewayError as error:
                refused[name] = error

        with trio.move_on_after(timeout):
            async with trio.open_nursery() as nursery:
                for name in names:
                    nursery.start_soon(partial(one, name))
        missing = {name: refused.get(name) for name in names if name not in told}
        return {name: told[name] for name in names if name in told}, missing


def describe(node: str, session: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a session of a node by its checked members alone: another machine has written it."""
    described: dict[str, Any] = {
        "id": f"{node}{SEPARATOR}{session['sessionId']}",
        "agentType": f"{node}{SEPARATOR}{session['agent']}"[:TEXT],
        "machine": node,
        "owner": session["owner"][:TEXT],
        "live": session["live"],
        "turn": session["turn"],
        "waiting": [_waiting(request) for request in session["waiting"][:WAITING]],
    }
    described |= {name: session[name] for name in _COUNTS}
    if ports := session.get("ports"):
        described["ports"] = [one | {"program": one["program"][:NAME_SIZE]} for one in ports[:MOST_TOLD]]
    return described | {name: text[:TEXT] for name in _TEXTS if (text := session.get(name)) is not None}


def _waiting(request: Mapping[str, Any]) -> dict[str, Any]:
    texts = ((name, request.get(name)) for name in ("method", "since", "title"))
    return {name: text[:TEXT] for name, text in texts if text is not None}
