"""The sessions of nodes for one browser: those that it is told beside the gateway's own, and what nodes say of these.

Who is told what is decided by `NodeSessions`. Imported only where there are nodes.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from acp_gateway.core.sessions.session import Role, Session, machine_of
from acp_gateway.gateway.access import Access
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.search.elsewhere import FoundAtNodes
from acp_gateway.gateway.sessions.node_sessions import NodeSessions
from acp_gateway.gateway.sessions.session_view import Viewer

Row = Mapping[str, Any]
"""A session in the list of `NodeSessions`."""


class BrowserNodes:
    """The sessions of nodes, as one browser is told them.

    Args:
        gateway: the gateway.
        node_sessions: the sessions of its nodes.
        access: the browser's principal.
        viewer: returns the browser, as sessions are shown to it.
    """

    def __init__(
        self, gateway: Gateway, node_sessions: NodeSessions, access: Access, viewer: Callable[[], Viewer]
    ) -> None:
        self._gateway = gateway
        self._node_sessions = node_sessions
        self._access = access
        self._viewer = viewer
        # By name, as of `_version`.
        self._rows: dict[str, Row] = {}
        self._version = -1
        self._more = 0
        # What the browser was told, by name; None before its list.
        self._told: dict[str, Row] | None = None
        self._told_version = -1
        self._news: dict[str, None] = {}

    @property
    def rows(self) -> dict[str, Row]:
        """The sessions of nodes that exist for the browser, by name."""
        self._refresh()
        return self._rows

    @property
    def more(self) -> int:
        """The number of further sessions, which nodes have and which are not known here."""
        self._refresh()
        return self._more

    def _refresh(self) -> None:
        version = self._node_sessions.version
        if self._version != version:
            self._version, self._rows = version, self._read()

    def _read(self) -> dict[str, Row]:
        viewer = self._viewer()
        reach, agents = viewer.reach, self._agents(viewer)
        own = [
            {"sessionId": it.id, "agent": it.agent, "owner": it.owner, "live": False, "own": True}
            for it in self._gateway.views.sessions(viewer)
            if machine_of(it.agent)
        ]
        listed = self._node_sessions.merged(replace(reach, only=None, machine=None), agents, {"sessions": own})
        self._more = listed.get("more", 0)
        rows: dict[str, Row] = {}
        # Of several with one name, an own one wins, and a live one.
        for row in sorted(listed["sessions"], key=lambda it: (it.get("own", False), it["live"])):
            machine, _, its_id = row["sessionId"].partition("/")
            if reach.only is None or (reach.only == its_id and reach.machine in (None, machine)):
                rows[row["sessionId"]] = row
        return rows

    def _agents(self, viewer: Viewer) -> list[str]:
        """Return the agents whose sessions the browser is told beside its own."""
        return [] if viewer.reach.guest else [it for it in self._gateway.admissions.names if self._access.may_use(it)]

    async def search(self, words: str) -> FoundAtNodes:
        """Return what is found at nodes, in sessions that the browser is told. Cancelling ends the search."""
        viewer, search = self._viewer(), self._gateway.extensions.search_nodes
        if search is None:
            return FoundAtNodes([], [], complete=True)
        there = await search(viewer.reach, self._agents(viewer), words)
        rows = self.rows
        listed = [one for one in there.found if one.name in rows and rows[one.name]["agent"] == one.agent]
        return there._replace(found=listed)

    def further(self, name: str) -> Row | None:
        """Return a session that was not opened through this gateway; None if the browser is told none of that name."""
        row = self.rows.get(name)
        return None if row is None or row.get("own") else row

    def is_live_there(self, session: Session) -> bool:
        """Return True if a node that answers has a session live."""
        row = self.rows.get(session.name)
        return row is not None and row["agent"] == session.agent and row["live"] and "unreachableSince" not in row

    def said_of(self, session: Session) -> dict[str, Any]:
        """Return what the node says of a session of the gateway, as members of its description."""
        row = self.rows.get(session.name)
        if row is None or row["agent"] != session.agent:
            return {}
        known = {name: row[name] for name in ("unreachableSince", "fence") if name in row}
        return known if session.live or "connected" not in row else _state_of(row) | known

    def describe(self, row: Row) -> dict[str, Any]:
        """Describe a session that was not opened through this gateway; see `docs/web-protocol.md`."""
        return {
            "id": row["sessionId"],
            "agentType": row["agent"],
            "machine": machine_of(row["agent"]),
            "cwd": row.get("cwd"),
            "title": row.get("title"),
            "exitReason": None,
            "createdAt": None,
            "updatedAt": row.get("updatedAt"),
            "workspace": None,
            "archived": False,
            "queued": 0,
            "canSteer": False,
            "lastTurn": None,
            "clients": [],
            "mayControl": self._viewer().role is Role.CONTROLLER,
            "history": row.get("history"),
            "fence": row.get("fence"),
            **_state_of(row),
            **{name: row[name] for name in ("unreachableSince",) if name in row},
        }

    # What changes

    def note_told(self) -> None:
        """Note that the browser has the present list."""
        self._told, self._told_version = dict(self.rows), self._version
        self._news.clear()

    def next_changed(self) -> str | None:
        """Return the name of the next session that has changed at its node since it was told, or is gone."""
        if self._told is None:
            return None
        if self._told_version != self._node_sessions.version:
            told, self._told = self._told, dict(self.rows)
            self._told_version = self._version
            names = told.keys() | self._told.keys()
            self._news |= dict.fromkeys(name for name in sorted(names) if told.get(name) != self._told.get(name))
        name = next(iter(self._news), None)
        if name is not None:
            del self._news[name]
        return name


def _state_of(row: Row) -> dict[str, Any]:
    waiting = [
        {"requestId": None, "method": it.get("method"), "title": it.get("title"), "since": it.get("since")}
        for it in row["waiting"]
    ]
    status = "waiting" if waiting else "running" if row["turn"] else "completed" if row["live"] else "exited"
    return {"status": status, "live": row["live"], "turn": row["turn"], "waiting": waiting}
