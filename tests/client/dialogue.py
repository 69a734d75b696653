"""An editor and a gateway with a conversation that can be recovered, and the messages in it."""

import json
from typing import Any

from acp_gateway.client.editor_state import Outcome
from acp_gateway.client.recovery import RecoveryState
from acp_gateway.protocol.link_messages import Mark, Sent, acknowledgement

CWD = {"cwd": "/srv/x", "mcpServers": []}
RESUMES: dict[str, Any] = {"agentCapabilities": {"loadSession": True, "sessionCapabilities": {"resume": {}}}}
NEW: dict[str, Any] = {"protocolVersion": 2, "capabilities": {"session": {}}}
LOADS: dict[str, Any] = {"agentCapabilities": {"loadSession": True}}
NEITHER: dict[str, Any] = {"agentCapabilities": {"loadSession": False, "sessionCapabilities": {"resume": None}}}


def encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def request(message_id: Any, method: str, **params: Any) -> bytes:
    return encode({"jsonrpc": "2.0", "id": message_id, "method": method, "params": params})


def notification(method: str, **params: Any) -> bytes:
    return encode({"jsonrpc": "2.0", "method": method, "params": params})


def result(message_id: Any, **members: Any) -> bytes:
    return encode({"jsonrpc": "2.0", "id": message_id, "result": members})


def error(message_id: Any, code: int = -32603, message: str = "no", **data: Any) -> bytes:
    return encode({"jsonrpc": "2.0", "id": message_id, "error": {"code": code, "message": message, "data": data}})


def update(session: str = "s", text: str = "t") -> bytes:
    return notification("session/update", sessionId=session, update={"sessionUpdate": "plan", "text": text})


def state(state: str, session: str = "s", **members: Any) -> bytes:
    """Return the update of version 2 that tells the state of a session."""
    return notification(
        "session/update", sessionId=session, update={"sessionUpdate": "state_update", "state": state, **members}
    )


def mark(**positions: tuple[str, int]) -> Mark:
    return Mark(acknowledgement(7, positions))


def cancelled(message_id: Any) -> bytes:
    return result(message_id, stopReason="cancelled")


def withdrawn(message_id: Any) -> bytes:
    return notification("$/cancel_request", requestId=message_id)


def adopting(message_id: str, prompts: list[Any] | None = None, questions: list[Any] | None = None) -> bytes:
    return result(message_id, _meta={"acp-gateway": {"prompts": prompts or [], "questions": questions or []}})


class Dialogue:
    """An editor and a gateway with the conversation between them."""

    def __init__(self, *, tells_outages: bool = False) -> None:
        self.conversation = RecoveryState(tells_outages=tells_outages)
        self.log_messages: list[str] = []

    def editor_says(self, *messages: bytes) -> list[bytes]:
        """Returns what goes up; nothing comes back."""
        outcome = self._noted(self.conversation.from_editor(list(messages)))
        assert outcome.to_editor == []
        return outcome.to_gateway

    def gateway_says(self, *messages: Sent) -> list[bytes]:
        """Returns what comes down; nothing goes back."""
        outcome = self._noted(self.conversation.from_gateway(list(messages)))
        assert outcome.to_gateway == []
        return outcome.to_editor

    def introduces(self, **params: Any) -> None:
        self.editor_says(request(0, "initialize", **params))
        self.gateway_says(result(0))

    def introduces_new(self, **params: Any) -> None:
        """Introduces an editor of version 2."""
        self.editor_says(request(0, "initialize", protocolVersion=2, **params))
        self.gateway_says(result(0, **NEW))

    def begins(self, message_id: Any, session: str = "s") -> None:
        """Begins a turn of version 2."""
        self.prompts(message_id, session)
        told = [result(message_id), state("running", session)]
        assert self.gateway_says(*told) == told

    def opens(self, *sessions: str) -> None:
        for session in sessions:
            self.editor_says(request(f"new {session}", "session/new", **CWD))
            self.gateway_says(result(f"new {session}", sessionId=session))

    def prompts(self, message_id: Any, session: str = "s") -> bytes:
        message = request(message_id, "session/prompt", sessionId=session, prompt=[])
        assert self.editor_says(message) == [message]
        return message

    def is_asked(self, message_id: Any, session: str = "s") -> bytes:
        message = request(message_id, "session/request_permission", sessionId=session)
        assert self.gateway_says(message) == [message]
        return message

    def loses_link(self, *unsent: bytes, why: str = "gone") -> list[bytes]:
        """Begins a recovery; returns what the editor is told at once."""
        outcome = self._noted(self.conversation.begin_recovery("c1", list(unsent), why))
        self.sent = outcome.to_gateway
        return outcome.to_editor

    def is_introduced_again(self, **answer: Any) -> Outcome:
        (again,) = self.sent
        outcome = self._noted(self.conversation.from_gateway([result(json.loads(again)["id"], **(answer or RESUMES))]))
        self.sent = outcome.to_gateway
        return outcome

    def reattached(self, *unsent: bytes) -> list[Any]:
        """The requests that open the sessions again, after a link was lost."""
        self.loses_link(*unsent)
        assert self.is_introduced_again().to_editor == []
        return [json.loads(message) for message in self.sent]

    def seen(self, *unsent: bytes) -> dict[str, Any]:
        """Return the own `_meta` of each restore request."""
        return {
            message["params"]["sessionId"]: message["params"]["_meta"]["acp-gateway"]
            for message in self.reattached(*unsent)
        }

    def positions(self) -> dict[str, Any]:
        return {
            session: (ours["epoch"], ours["position"]) if "epoch" in ours else None
            for session, ours in self.seen().items()
        }

    def _noted(self, outcome: Outcome) -> Outcome:
        self.log_messages += outcome.log_messages
        return outcome
