"""Describes sessions for one client, as members of JSON objects."""

from collections.abc import Collection
from dataclasses import KW_ONLY, dataclass
from typing import Any

from acp_gateway.core.agent_requests import AgentRequest
from acp_gateway.core.requests import EndedTurn
from acp_gateway.core.sessions.session import LIST_TEXT_SIZE, Client, Session
from acp_gateway.core.states import Presence
from acp_gateway.core.turns.ends import members_of
from acp_gateway.gateway.costs.spending import summarize
from acp_gateway.gateway.session_api import output
from acp_gateway.gateway.sessions.session_view import SessionView, SessionViews, Viewer
from acp_gateway.gateway.viewing.session_feed import status_of


@dataclass(frozen=True, slots=True)
class Describer:
    """Describes sessions for one client."""

    views: SessionViews
    viewer: Viewer
    own: Collection[str]
    """Names of the client's own clients of hubs."""
    _: KW_ONLY
    tells_all: bool = False
    """True to tell the owner, the numbers of clients, and all open requests as well."""

    def describe(self, session: Session) -> dict[str, Any]:
        """Return a session as members of an object."""
        return self.of(self.views.view(session, self.viewer))

    def of(self, view: SessionView) -> dict[str, Any]:
        """Return a session that was viewed as members of an object."""
        session, waiting = view.session, view.unanswered if self.tells_all else view.waiting
        status, exit_reason = status_of(view)
        described = {
            "id": session.name,
            "agentType": session.agent,
            "machine": None,
            "cwd": session.cwd,
            "title": session.title and session.title[:LIST_TEXT_SIZE],
            "status": status,
            "exitReason": exit_reason,
            "createdAt": _iso(session.created_at),
            "updatedAt": _iso(session.active_at) or session.updated_at or _iso(session.created_at),
            "workspace": session.workspace,
            "archived": session.archived,
            "live": view.live,
            "turn": view.turn,
            "queued": view.queued,
            "limitedUntil": _iso(session.limited_until),
            "canSteer": view.can_steer,
            "waiting": list(map(_describe_request, waiting)),
            "lastTurn": None if view.last_turn is None else _describe_turn(view.last_turn),
            "clients": [self._describe_client(client) for client in view.clients],
            "mayControl": view.may_control,
            "history": view.history,
            "fence": self.views.fence(session),
            "usage": summarize(session.spent),
        }
        if self.tells_all:
            presences = [client.presence for client in view.clients]
            described["owner"] = session.owner
            described["connected"] = presences.count(Presence.CONNECTED)
            described["away"] = presences.count(Presence.AWAY)
        return described

    def elsewhere(self, request: AgentRequest, agent: str, fence: str | None) -> dict[str, Any]:
        """Return a request of no session in reach as that of the session that the agent has named, if it has."""
        return {
            "id": request.message.session or "?",
            "agentType": agent,
            "machine": None,
            "status": "waiting",
            "live": True,
            "turn": False,
            "waiting": [_describe_request(request.shown)],
            "fence": fence,
            "owner": self.viewer.reach.identity,
            "connected": 0,
            "away": 0,
        }

    def _describe_client(self, client: Client) -> dict[str, Any]:
        return {
            "identity": client.reach.identity,
            "role": client.role.value,
            "presence": client.presence.name.lower(),
            "since": _iso(client.presence_time),
            "via": client.via,
            "you": client.name in self.own,
        }


def _describe_turn(turn: EndedTurn) -> dict[str, Any]:
    return {**members_of(turn.outcome), "seconds": round(turn.seconds, 1), "at": _iso(turn.time)}


def _describe_request(request: AgentRequest) -> dict[str, Any]:
    return {
        "requestId": request.key,
        "method": request.method,
        "title": request.title,
        "since": _iso(request.arrived_time),
    }


def _iso(time: int | None) -> str | None:
    return None if time is None else output.iso(time)
