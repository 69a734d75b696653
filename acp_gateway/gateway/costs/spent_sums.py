"""Tells a client what sessions have cost: sums by day, session, agent or identity, of nodes as well."""

from typing import Any, Final, cast

from acp_gateway.gateway.costs.spending import describe
from acp_gateway.gateway.session_api.connection import ApiConnection
from acp_gateway.gateway.session_api.requests import MOST_SUMS, Call
from acp_gateway.gateway.storage.spending import By, Wanted
from acp_gateway.gateway.viewing.open_sessions import CallRefused
from acp_gateway.protocol import jsonrpc

_TITLE: Final = 200
"""Maximum characters of a title that is told with a sum."""


class SpentSums:
    """The sums that one client asks for."""

    def __init__(self, bridge: ApiConnection) -> None:
        self._bridge = bridge

    async def result(self, call: Call) -> bytes:
        """Return the result of `gateway/usage`: of the sessions of the client's identity, or of all for the gateway's
        own user. Raises `CallRefused` and `AccessError`."""
        bridge, admitted, gateway = self._bridge, self._bridge.admitted, self._bridge.gateway
        access, by = admitted.access, cast("By", call.members.get("by", "day"))
        if admitted.bound is not None or access.session is not None or access.workspaces is not None:
            why = "only a credential for all sessions of its identity is told what they have cost"
            raise CallRefused(jsonrpc.INVALID_REQUEST, why)
        since, owner = call.members.get("since", ""), None if access.is_own_user else access.identity
        found = await gateway.storage.read_sums(Wanted(by, since, owner, access.agents))
        rows = [{"key": key} | self._title(by, key) | describe(amounts) for key, amounts in found.sums.items()]
        total, more, missing = found.total, found.more, list[str]()
        if call.members.get("nodes", False) and bridge.questions is not None:
            wanted = {"by": by} | ({"since": since} if since else {})
            there = await bridge.questions.usage(access, admitted.viewer.reach, wanted)
            rows += there.rows
            total.update(there.total)
            more, missing = more + there.more, there.missing
        rows, more = rows[:MOST_SUMS], more + len(rows[MOST_SUMS:])
        told = {"by": by, "rows": rows, "total": describe(total), "more": more, "missing": missing}
        return jsonrpc.encode(told)

    def _title(self, by: By, key: str) -> dict[str, Any]:
        """Return the title of a session, as a member, if the client sees it."""
        bridge = self._bridge
        session = bridge.sessions.standing_for(key, bridge.admitted.viewer) if by == "session" else None
        return {} if session is None or session.title is None else {"title": session.title[:_TITLE]}
