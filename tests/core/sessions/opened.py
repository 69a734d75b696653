"""Set-up shared by the tests of opening and of closing sessions."""

from typing import Any

from acp_gateway.core.sessions.session import Session
from tests.kit.scene import Peer, Scene

LOADS: dict[str, Any] = {"loadSession": True}
"""Capabilities of an agent that loads sessions."""


def texts(messages: list[Any]) -> list[str]:
    """Return the texts of the updates among messages."""
    return [
        message["params"]["update"]["content"]["text"]
        for message in messages
        if message.get("method") == "session/update" and "content" in message["params"]["update"]
    ]


def chunk(text: str, session_id: str = "s") -> bytes:
    """An update, with blanks that no encoder would leave there."""
    return (
        b'{ "method":"session/update","params":{"update":{"sessionUpdate":"agent_message_chunk",'
        b'"content":{"type":"text","text":"%b"}, "_meta":{"n":1.10}},"sessionId":"%b"}}'
    ) % (text.encode(), session_id.encode())


def the_session(scene: Scene) -> Session:
    (session,) = scene.multiplexer.sessions
    return session


def close(scene: Scene, peer: Peer, session_id: str = "s") -> None:
    """A client has a session closed."""
    peer.request("session/close", sessionId=session_id)
    scene.agent.answers("session/close")
    peer.heard()
