"""Shows mirrored histories to one browser, of sessions whose node is away. Imported only where there are nodes."""

from typing import TYPE_CHECKING, Final

from acp_gateway.adapters import browser_output
from acp_gateway.adapters.browser import Call
from acp_gateway.core.sessions import Session
from acp_gateway.gateway.history import slice_of
from acp_gateway.protocol import jsonrpc
from acp_gateway.server.browser_history import entries_of, large_responses
from acp_gateway.server.browser_nodes import BrowserNodes, Row
from acp_gateway.server.browser_sessions import CallRefused

if TYPE_CHECKING:
    from acp_gateway.gateway.history import Mirror, ReadMirror
    from acp_gateway.server.browser_bridge import BrowserBridge

NODE_AWAY: Final = "node_away"
"""Reason in errors for what can't be done while a node is away."""

CLOCKS: Final = 5000
"""Milliseconds by which the clocks of two machines may differ."""


class BrowserMirrors:
    """The mirrored histories for one browser.

    Args:
        bridge: the connection.
        nodes: the sessions of nodes, as the browser is told them.
        read: reads a mirrored history.
    """

    def __init__(self, bridge: "BrowserBridge", nodes: BrowserNodes, read: "ReadMirror") -> None:
        self._bridge = bridge
        self._nodes = nodes
        self._read = read

    def check(self, name: str) -> None:
        """Raise `CallRefused` for a session that the browser can only read."""
        why = self._nodes.mirrored.get(name)
        if why is not None and self._away(name) is not None:
            raise CallRefused(jsonrpc.INVALID_REQUEST, why, {"reason": NODE_AWAY})

    def forget(self, name: str) -> None:
        """Note that the browser asks for the history of a session that is none of a mirror."""
        self._nodes.mirrored.pop(name, None)

    def _away(self, name: str) -> Row | None:
        """Return what is told of a session whose node is away."""
        row = self._nodes.rows.get(name)
        return None if row is None or "unreachableSince" not in row else row

    async def send(self, call: Call, session: Session | None) -> bool:
        """Send a part of the mirrored history as the response to a call; return False if there is none to be sent.

        `session` is that of this gateway, if it knows one of the name.
        """
        bridge, members, row = self._bridge, call.members, self._away(call.session or "")
        if row is None or bridge.access.session is not None:
            return False
        if session is not None and (session.live or session.agent != row["agent"]):
            return False
        session_id = row["sessionId"].partition("/")[2]
        async with bridge.composing, large_responses(bridge.access.identity):
            await bridge.wait_quiet()
            mirror = await self._read(bridge.access, row["agent"], session_id)
            if mirror is None or (session is not None and _is_recent(session, mirror)):
                return False
            since, before = members.get("since", 0), members.get("before")
            found = slice_of(
                mirror.journal, since=since, epoch=members.get("epoch"), before=before, limit=members.get("limit")
            )
            described = self._nodes.describe(row) if session is None else bridge.describer.describe(session)
            updates = await entries_of(session_id, found)
            result = {
                "session": jsonrpc.encode(described | {"mayControl": False}),
                "updates": b"[%b]" % b",".join(updates),
                "states": b"[%b]" % b",".join(browser_output.states(found.states)),
                "pendingRequests": b"[]",
                "epoch": jsonrpc.encode(found.epoch),
                "truncated": jsonrpc.encode(found.truncated),
                "more": jsonrpc.encode(found.more),
                "reset": jsonrpc.encode(found.reset),
                "modes": b"null",
                "models": b"null",
                "configOptions": b"null",
                "promptCapabilities": b"null",
            }
            used = None if session is None else bridge.sessions.get(session)
            if used is not None:
                # The gateway's own history must not follow.
                used.feed = None
            self._nodes.mirrored[row["sessionId"]] = mirror.text
            reply = call.result(jsonrpc.compose(result))
            if reply is not None:
                bridge.reply(reply)
            await bridge.wait_quiet()
        return True


def _is_recent(session: Session, mirror: "Mirror") -> bool:
    """Return whether the gateway's own history of a session has what the mirror has: it may be longer."""
    journal = mirror.journal
    # Behind them is the line that says what it is.
    times = [time for time in journal.times(journal.start, journal.position - 1) if time is not None]
    return session.archive.holds(session) and bool(times) and (session.active_at or 0) >= times[-1] - CLOCKS
