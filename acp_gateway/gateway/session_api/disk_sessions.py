"""Sessions that only an agent has, on its disk: a client lists them on request, and opens them as any other.

The core filters the agent's list by the rights of the client, as for an editor.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

import trio

from acp_gateway.core.sessions.session import SESSION_ID_SIZE
from acp_gateway.gateway.session_api.connection import ApiConnection
from acp_gateway.gateway.session_api.requests import Call
from acp_gateway.gateway.viewing.open_sessions import CallRefused
from acp_gateway.gateway.viewing.session_connection import LARGE_RESPONSES
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.text import lookup

TEXT: Final = 4096
"""Maximum characters of a text that is told, as in lists of nodes."""

MAX_SIZE: Final = 4 * 1024 * 1024
"""Size of such sessions that are kept for one client, so that it may open them: some ten thousand."""

OVERHEAD: Final = 200
"""Size that each of them counts as beside its characters: ids may be short."""

AT_ONCE: Final = 50
"""Entries of a list that are read before other tasks get their turn: a millisecond."""


class DiskSession(NamedTuple):
    """A session as its agent lists it."""

    id: str
    agent: str
    cwd: str | None = None
    title: str | None = None
    updated_at: str | None = None

    @property
    def size(self) -> int:
        """Its part of `MAX_SIZE`."""
        return OVERHEAD + sum(map(len, filter(None, self)))

    def describe(self) -> dict[str, Any]:
        """Return it as members of an object; see `docs/web-protocol.md`."""
        return {
            "id": self.id,
            "agentType": self.agent,
            "cwd": self.cwd,
            "title": self.title,
            "updatedAt": self.updated_at,
        }


class ToldOnDisk:
    """The sessions that a client was told last."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, str], DiskSession] = {}
        self.size = 0
        """Size of all of them, at most `MAX_SIZE`."""

    @property
    def sessions(self) -> Iterable[DiskSession]:
        """The sessions, those that were told last at the end."""
        return self._by_key.values()

    def add(self, sessions: Iterable[DiskSession]) -> int:
        """Note sessions in place of the earliest; return by how much the size has grown."""
        before = self.size
        for session in sessions:
            key = session.agent, session.id
            former = self._by_key.pop(key, None)
            self._by_key[key] = session
            self.size += session.size - (0 if former is None else former.size)
        while self.size > MAX_SIZE:
            self.size -= self._by_key.pop(next(iter(self._by_key))).size
        return max(self.size - before, 0)

    def clear(self) -> None:
        """Forget them: a client has to ask for the list again to open one."""
        self._by_key.clear()
        self.size = 0


def listed(response: Message, agent: str, is_known: Callable[[str], bool]) -> Iterator[list[DiskSession]]:
    """Yield the sessions in an agent's list that the gateway does not know, those of `AT_ONCE` entries together.

    Damaged entries are left out.
    """
    listed = lookup.raw_at(response.text, "result", "sessions") or b""
    # The core has counted them.
    entries = lookup.elements_of(listed, len(listed)) if listed.startswith(b"[") else []
    for start in range(0, len(entries), AT_ONCE):
        found = []
        for entry in entries[start : start + AT_ONCE]:
            name = lookup.text_at(entry, "sessionId")
            if name is not None and len(name) <= SESSION_ID_SIZE and not is_known(name):
                found.append(DiskSession(name, agent, *(_text(entry, it) for it in ("cwd", "title", "updatedAt"))))
        yield found


def _text(entry: bytes, name: str) -> str | None:
    value = lookup.text_at(entry, name)
    return None if value is None else value[:TEXT]


class DiskSessions:
    """The sessions of agents' disks that one client was told last."""

    def __init__(self, bridge: ApiConnection, told: ToldOnDisk) -> None:
        self._bridge = bridge
        self._told = told
        # An agent that does not answer must not hold up the large responses of other connections.
        self._at_a_time = trio.Semaphore(LARGE_RESPONSES)

    async def list(self, call: Call) -> None:
        """Send a page of the sessions on an agent's disk, and wait until the client has read it.

        Raises `CallRefused` and `AccessError`. Cancelled, its process may be started all the same.
        """
        bridge, agent = self._bridge, call.members["agentType"]
        if bridge.admitted.bound is not None or bridge.admitted.access.session is not None:
            raise CallRefused(jsonrpc.INVALID_REQUEST, f"this connection is for one session only: no {call.method}")
        async with self._at_a_time:
            response = await bridge.sessions.list_of(agent, call.members.get("cursor"))
            async with bridge.large_responses:
                await bridge.wait_quiet()
                bridge.reply_to(call, await self._compose(response, agent))
                del response
                # Lists that are not read yet are as many as histories.
                await bridge.wait_quiet()

    async def _compose(self, response: Message, agent: str) -> bytes:
        """Return the result for a client, as JSON text, and note what it is told."""
        bridge = self._bridge
        sessions: list[bytes] = []
        for found in listed(response, agent, self._stands_for_one):
            bridge.gateway.services.memory_grew(self._told.add(found))
            sessions += [jsonrpc.encode(session.describe()) for session in found]
            await trio.lowlevel.checkpoint()
        cursor = lookup.text_at(response.text, "result", "nextCursor")
        further = b"" if cursor is None else b',"nextCursor":%b' % jsonrpc.encode(cursor)
        return b'{"sessions":[%b]%b}' % (b",".join(sessions), further)

    def _stands_for_one(self, name: str) -> bool:
        return self._bridge.sessions.standing_for(name, self._bridge.admitted.viewer) is not None

    def find(self, name: str, agent: str | None) -> DiskSession | None:
        """Return a session of that id which was told, of this agent or any.

        Raises `CallRefused` if several agents have told one.
        """
        found = [it for it in self._told.sessions if it.id == name and agent in (None, it.agent)]
        if len(found) > 1:
            agents = " and ".join(it.agent for it in found)
            why = f"the agents {agents} have a session of this id on their disks: name one as agentType"
            raise CallRefused(jsonrpc.INVALID_PARAMS, why, {"reason": "ambiguous_session"})
        return found[0] if found else None
