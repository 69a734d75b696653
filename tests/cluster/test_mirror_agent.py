"""The agent of the mirrored histories: a request in, the answer asserted."""

import json
from typing import Any

import pytest

from acp_gateway.cluster.mirror_agent import MirrorAgent, absence_text
from acp_gateway.cluster.store import MirroredJournal
from acp_gateway.protocol.gaps import GAP

SINCE = "2026-01-02T18:02:00Z"
TOLD = (
    "the node gpu1 is away since 2026-01-02T18:02:00Z; this is the history of its session as of 1970-01-01T00:00:01Z, "
    "read only. `acp-gateway sessions adopt gpu1/s --on NODE` opens it on another node"
)


def request(method: str, number: int = 1, **params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode()


def update(text: str) -> bytes:
    content = {"type": "text", "text": text}
    params = {"sessionId": "s", "update": {"sessionUpdate": "agent_message_chunk", "content": content}}
    return json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}).encode()


def journal(*messages: bytes, complete: bool = True) -> MirroredJournal:
    return MirroredJournal("j", 0 if complete else 5, [(1, message) for message in messages], 1000, complete=complete)


def text_of(message: bytes) -> str:
    return str(json.loads(message)["params"]["update"]["content"]["text"])


def opened(method: str, found: MirroredJournal) -> tuple[MirrorAgent, list[bytes]]:
    """An agent that has answered a request to open a session, and the answer."""
    agent = MirrorAgent("gpu1", SINCE)
    assert agent.receive(request(method, 7, sessionId="s", cwd="/", mcpServers=[])) == []
    return agent, [*agent.opened(agent.wanted.popleft(), "gpu1/s", found)]


def test_initialize_offers_session_load_and_nothing_for_prompts() -> None:
    (answer,) = MirrorAgent("gpu1", SINCE).receive(request("initialize", protocolVersion=1))
    assert json.loads(answer)["result"] == {
        "protocolVersion": 1,
        "agentCapabilities": {"loadSession": True, "promptCapabilities": {}},
        "authMethods": [],
    }


def test_session_load_replays_the_mirrored_history_and_then_says_what_it_is() -> None:
    _, (first, second, response, line) = opened("session/load", journal(update("a"), update("b")))
    assert [text_of(first), text_of(second)] == ["a", "b"]
    assert json.loads(response) == {"jsonrpc": "2.0", "id": 7, "result": {}}
    assert text_of(line) == f"[acp-gateway: {TOLD}]"


def test_session_load_says_that_the_beginning_is_missing() -> None:
    _, (gap, message, *_) = opened("session/load", journal(update("c"), complete=False))
    assert [text_of(gap), text_of(message)] == [GAP, "c"]


def test_session_resume_replays_nothing() -> None:
    _, (response, line) = opened("session/resume", journal(update("a")))
    assert json.loads(response)["result"] == {}
    assert text_of(line) == f"[acp-gateway: {TOLD}]"


@pytest.mark.parametrize(
    "strange",
    [
        request("session/request_permission", sessionId="s"),
        b'{"jsonrpc":"2.0","id":7,"result":{"protocolVersion":1}}',
        b'{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1}}',
        b"nonsense",
    ],
)
def test_session_load_replays_no_message_of_the_mirror_that_is_no_update(strange: bytes) -> None:
    _, (message, response, _) = opened("session/load", journal(strange, update("a")))
    assert text_of(message) == "a"
    assert json.loads(response)["id"] == 7


@pytest.mark.parametrize("method", ["session/prompt", "session/set_mode", "session/close", "session/delete", "other"])
def test_every_other_request_in_a_session_is_refused_with_the_same_words(method: str) -> None:
    agent, _ = opened("session/load", journal())
    (answer,) = agent.receive(request(method, sessionId="s"))
    error = json.loads(answer)["error"]
    assert error["message"] == TOLD
    assert error["data"] == {"reason": "node_away", "node": "gpu1", "unreachableSince": SINCE}


def test_session_new_is_refused() -> None:
    (answer,) = MirrorAgent("gpu1", SINCE).receive(request("session/new", cwd="/", mcpServers=[]))
    assert json.loads(answer)["error"]["message"] == (
        f"the node gpu1 is away since {SINCE}: its sessions can be read, and nothing else"
    )


def test_session_that_is_not_mirrored_is_refused_with_the_cause() -> None:
    agent = MirrorAgent("gpu1", SINCE)
    agent.receive(request("session/load", sessionId="s"))
    error = json.loads(agent.unknown(agent.wanted.popleft(), "nothing is mirrored of it"))["error"]
    assert error["code"] == -32002
    assert error["message"] == (
        f"the node gpu1 is away since {SINCE}, and its session can't be read here: nothing is mirrored of it"
    )


@pytest.mark.parametrize(
    "text",
    [
        b"nonsense",
        b'{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s"}}',
        b'{"jsonrpc":"2.0","id":1,"result":{}}',
    ],
)
def test_notifications_responses_and_nonsense_are_dropped(text: bytes) -> None:
    agent = MirrorAgent("gpu1", SINCE)
    assert agent.receive(text) == []
    assert not agent.wanted


def test_time_of_the_mirror_that_can_be_none_is_told_as_unknown() -> None:
    assert "as of an unknown time" in absence_text("gpu1", SINCE, "gpu1/s", 10**30)
