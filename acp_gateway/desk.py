"""The gateway's own desk: what a control connection may ask, which has no agent."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import trio

from acp_gateway.hub import Hub
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import InvalidMessage, Kind, Message
from acp_gateway.protocol.methods import SESSIONS
from acp_gateway.protocol.questions import Question
from acp_gateway.protocol.sessions import Presence, Registry, Session, Viewer
from acp_gateway.seats import Farewell
from acp_gateway.transports.base import CloseReason, MessageStream, MessageTooLarge


async def serve_desk(
    stream: MessageStream, viewer: Viewer, registry: Registry, hubs: Callable[[], list[Hub]]
) -> Farewell:
    """Answer what a control connection asks, until it is gone; how to close it then, which is the caller's to do.

    Args:
        stream: the connection.
        viewer: who is told of the sessions that exist for this one.
        registry: all sessions of the gateway.
        hubs: those whose sessions are told of.
    """
    farewell = Farewell(CloseReason.NORMAL, "")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.run)
        try:
            async for batch in stream:
                for text in batch:
                    reply = _answer(text, viewer, registry, hubs)
                    if reply is not None:
                        await stream.send(reply)
        except MessageTooLarge as error:
            farewell = Farewell(CloseReason.TOO_LARGE, str(error))
            try:
                stream.send_nowait([jsonrpc.error(jsonrpc.NO_ID, jsonrpc.INVALID_REQUEST, str(error))])
            except trio.BrokenResourceError:
                pass  # A WebSocket says it in its own way.
        except trio.BrokenResourceError:
            pass  # It has gone.
        nursery.cancel_scope.cancel()
    return farewell


def _answer(text: bytes, viewer: Viewer, registry: Registry, hubs: Callable[[], list[Hub]]) -> bytes | None:
    try:
        message: Message = jsonrpc.parse(text)
    except InvalidMessage as error:
        return jsonrpc.error(jsonrpc.NO_ID, error.code, str(error))
    if message.kind is not Kind.REQUEST:
        return None
    if message.method != SESSIONS:
        return jsonrpc.error(message.id, jsonrpc.METHOD_NOT_FOUND, f"a control connection knows only {SESSIONS}")
    return jsonrpc.result(message.id, {"sessions": list_sessions(viewer, registry, hubs())})


def list_sessions(viewer: Viewer, registry: Registry, hubs: list[Hub]) -> list[dict[str, Any]]:
    """The live sessions that exist for a viewer, and what waits in them; the oldest first.

    What an agent has asked and no session was found for stands under the session that the agent named, for the one
    whose sessions all those of this agent process are. If there is no such one, the gateway's own user is told that
    something waits, and not what: it may be anybody's.
    """
    by_home = {hub.multiplexer.home: hub for hub in hubs}
    listed = []
    for session in registry:
        hub = None if session.home is None else by_home.get(session.home)
        if hub is not None and viewer.sees(session):
            listed.append(_describe(session, hub))
    for hub in hubs:
        owners = {session.owner for session in hub.multiplexer.sessions}
        is_mine = owners == {viewer.identity}
        is_anybodys = len(owners) != 1 and viewer.identity == registry.own_identity
        if viewer.only is None and (is_mine or is_anybodys):
            unplaced = hub.multiplexer.waiting(None)
            listed += [_describe_unplaced(question, hub, viewer, titled=is_mine) for question in unplaced]
    return listed


def _describe(session: Session, hub: Hub) -> dict[str, Any]:
    presences = [client.presence for client in session.attached]
    described: dict[str, Any] = {"sessionId": session.id, "agent": session.agent}
    if session.title is not None:
        described["title"] = session.title
    if session.cwd is not None:
        described["cwd"] = session.cwd
    return described | {
        "owner": session.owner,
        "connected": presences.count(Presence.CONNECTED),
        "away": presences.count(Presence.AWAY),
        "turn": bool(session.turns),
        "waiting": [_describe_question(question) for question in hub.multiplexer.waiting(session)],
    }


def _describe_unplaced(question: Question, hub: Hub, viewer: Viewer, *, titled: bool) -> dict[str, Any]:
    return {
        "sessionId": question.message.session or "?",
        "agent": hub.name,
        "owner": viewer.identity,
        "connected": 0,
        "away": 0,
        "turn": False,
        "waiting": [_describe_question(question, titled=titled)],
    }


def _describe_question(question: Question, *, titled: bool = True) -> dict[str, Any]:
    since = datetime.fromtimestamp(time.time() - (trio.current_time() - question.since), UTC)
    described = {"method": question.method, "since": since.strftime("%Y-%m-%dT%H:%M:%SZ")}
    if titled and question.title is not None:
        described["title"] = question.title
    return described
