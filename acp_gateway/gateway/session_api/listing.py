"""Lists sessions for one client: those of this gateway, and with `all` what else there is to tell.

A client that watches is told changes of the gateway's own sessions by `SessionApi`, those of sessions at nodes here.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

import trio

from acp_gateway.core.sessions.session import Session
from acp_gateway.core.sessions.sub_agents import UNKNOWN
from acp_gateway.errors import AccessError, Forbidden
from acp_gateway.gateway.session_api import output as api_output
from acp_gateway.gateway.session_api.connection import ApiConnection
from acp_gateway.gateway.session_api.description import Describer
from acp_gateway.gateway.session_api.requests import Call
from acp_gateway.gateway.sessions.elsewhere import ListedAtNodes
from acp_gateway.gateway.viewing.admitted import UsableAgents
from acp_gateway.gateway.viewing.open_ports import OpenPorts
from acp_gateway.made.ports import MOST_TOLD
from acp_gateway.protocol import jsonrpc

AT_ONCE: Final = 10
"""Sessions that are described before other tasks get their turn: about half a millisecond."""

MAX_SIZE: Final = 32 * 1024 * 1024
"""Maximum bytes of a list with `all`: half of what `acp-gateway sessions` and `chat` take, and ten nodes' lists."""

PASSED_SIZE: Final = 3 * 1024 * 1024
"""The same for another gateway, which takes messages of 4 MiB."""

INTERVAL: Final = 5.0
"""Seconds between two looks at the sessions of nodes for a client that watches."""

_UNSPECIFIED: Final = "the gateway's storage has a problem; its log says which"

Listed = Session | dict[str, Any]
"""A session of this gateway, or another one as members of an object."""


class SessionLists:
    """The lists of one client."""

    def __init__(self, bridge: ApiConnection) -> None:
        self._bridge = bridge
        self._gateway = bridge.gateway
        self._usable = UsableAgents(bridge.gateway, bridge.admitted.grant)
        # The sessions of nodes that the client was told last, by name; None until it watches them.
        self._of_nodes: dict[str, dict[str, Any]] | None = None

    async def result(self, call: Call) -> bytes:
        """Return the result of `session/list`. Raises `AccessError`. Cancelling has no effect."""
        bridge, every = self._bridge, call.members.get("all", False)
        bridge.watches = bridge.watches or call.members.get("watch", False)
        bridge.tells_all = bridge.tells_all or every
        with_ports = call.members.get("ports", False)
        there = await self._ask_nodes(with_ports=with_ports) if every else ListedAtNodes()
        ports = await self._ports() if with_ports else {}
        if every and bridge.watches:
            if self._of_nodes is None:
                bridge.start(self._follow_nodes)
            self._of_nodes = {row["id"]: row for row in there.sessions}
        async with bridge.composing:
            await bridge.wait_quiet()
            # Changes during this are told after the list, which may be older.
            with bridge.holding_changes():
                listed, more = self._listed(call, there)
                described, further = await self._describe(listed, call, ports)
        rest = {"more": more + further} if more + further else {}
        besides = jsonrpc.encode(rest | self._rest(there) if every else rest)[1:-1]
        return b'{"sessions":[%b]%b}' % (b",".join(described), besides and b"," + besides)

    def _listed(self, call: Call, there: ListedAtNodes) -> tuple[list[Listed], int]:
        """Return the sessions of a list, the latest first, and how many `limit` leaves out."""
        members, describer = call.members, self._bridge.describer
        sessions, every = self._gateway.views.sessions(describer.viewer), members.get("all", False)
        if every:
            found = [session for session in sessions if session.agent in self._usable]
        else:
            archived = members.get("archived", False)
            found = [session for session in sessions if session.archived == archived]
        past = sum(not session.live for session in found)
        left_out = max(past - members.get("limit", past), 0)
        listed: list[Listed] = [*found[left_out:]]
        if every:
            listed = sorted([*listed, *self._requests_elsewhere(describer), *there.sessions], key=_is_live)
        return listed[::-1], left_out + there.more

    async def _describe(
        self, listed: list[Listed], call: Call, ports: Mapping[Session, Any]
    ) -> tuple[list[bytes], int]:
        """Return the sessions of a list as JSON texts, as many as may be told, and the number of others."""
        every, statuses = call.members.get("all", False), call.members.get("status")
        limits, describer = self._gateway.config.limits, self._bridge.describer
        most, size = None if every else limits.max_browser_sessions, MAX_SIZE
        if every and self._bridge.admitted.grant.connect_request.passed:
            most, size = limits.max_node_sessions, PASSED_SIZE
        names = Counter(one.name for one in listed if isinstance(one, Session))
        described: list[bytes] = []
        for count, one in enumerate(listed):
            # Of the others, some may have another status, or the name of another session.
            if len(described) == most:
                return described, len(listed) - count
            if count % AT_ONCE == AT_ONCE - 1:
                await trio.lowlevel.checkpoint()
            if isinstance(one, dict):
                row = one
            elif every or names[one.name] == 1 or self._bridge.sessions.standing_for(one.name, describer.viewer) is one:
                view = self._gateway.views.view(one, describer.viewer)
                if statuses is not None and view.status not in statuses:
                    continue
                row = describer.of(view)
                if one in ports:
                    row["ports"] = ports[one]
            else:
                continue
            described.append(jsonrpc.encode(row))
            size -= len(described[-1])
            if size < 0:
                return described[:-1], len(listed) - count
        return described, 0

    async def _ports(self) -> dict[Session, list[dict[str, Any]]]:
        """Return the ports of programs by the sessions that they may be of; none for a client that may use none."""
        found: dict[Session, list[dict[str, Any]]] = {}
        with suppress(Forbidden):
            for port in await self._gateway.services.one(OpenPorts, self._gateway).of(self._bridge.admitted):
                for session in port.sessions:
                    told = found.setdefault(session, [])
                    if len(told) < MOST_TOLD:
                        told.append({"port": port.port, "program": port.program})
        return found

    def _requests_elsewhere(self, describer: Describer) -> Iterable[dict[str, Any]]:
        """Describe the requests of agents that no live session of the client shows; those of several are the own
        user's.

        A request of no known session stands in all that it may be of.
        """
        reach, own_identity = describer.viewer.reach_in_doubt, self._gateway.registry.own_identity
        if reach is None or not reach.sees_all:
            return
        for hub in self._gateway.hubs:
            for request in hub.multiplexer.waiting(None) if hub.name in self._usable else ():
                doubt = request.doubt or UNKNOWN
                is_told = reach.identity == (doubt.identity or own_identity)
                if is_told and all(session.owner != reach.identity for session in doubt.sessions):
                    yield describer.elsewhere(request, hub.name, hub.fence)

    def _rest(self, there: ListedAtNodes) -> dict[str, Any]:
        """Return what is told beside the sessions."""
        gateway, grant = self._gateway, self._bridge.admitted.grant
        problems, problem = [*there.problems], gateway.storage.problem
        if problem is not None:
            # It names files.
            problems.insert(0, problem if grant.reach.identity == gateway.registry.own_identity else _UNSPECIFIED)
        rest: dict[str, Any] = {"problems": problems, "missing": there.missing}
        if grant.connect_request.passed and grant.reach.only is None:
            rest["load"] = gateway.load
        return {name: value for name, value in rest.items() if value}

    # Nodes

    async def _ask_nodes(self, *, with_ports: bool = False) -> ListedAtNodes:
        questions, admitted = self._bridge.questions, self._bridge.admitted
        if questions is None:
            return ListedAtNodes()
        return await questions.sessions(admitted.access, admitted.viewer.reach, self._usable, with_ports=with_ports)

    async def _follow_nodes(self) -> None:
        """Tell changes of sessions at nodes until cancelled. Those of one that does not answer stay, and are away."""
        while True:
            await trio.sleep(INTERVAL)
            try:
                there = await self._ask_nodes()
            except AccessError:
                continue  # The connection ends, or the client's session does not exist now.
            before, now = self._of_nodes or {}, {row["id"]: row for row in there.sessions}
            since = {"unreachableSince": api_output.iso(1000 * time.time())}
            now |= {name: since | row for name, row in before.items() if row["machine"] in there.missing}
            self._of_nodes = now
            news = [api_output.removed(name) for name in before if name not in now]
            news += [api_output.changed(row) for name, row in now.items() if before.get(name) != row]
            for text in news:
                await self._bridge.wait_quiet()
                self._bridge.reply(text)


def _is_live(one: Listed) -> bool:
    return bool(one["live"]) if isinstance(one, dict) else one.live
