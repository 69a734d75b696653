"""Which version an agent speaks: what it is asked, and what the core gets."""

import json
from typing import Any

import pytest

from acp_gateway.protocol.text.pairs import Pair, texts_of
from acp_gateway.versions.agent_edge import AgentEdge
from tests.kit.versions import content, failure, notification, request, result, text, to_agent, to_client, update

ASKED = request(7, "initialize", protocolVersion=1, clientCapabilities={})
NEW = {"protocolVersion": 2, "info": {"name": "a", "version": "1"}}


def asked() -> AgentEdge:
    edge = AgentEdge()
    assert edge.to_agent(ASKED).to_agent == [ASKED]
    return edge


def test_with_an_agent_of_version_1_no_byte_changes() -> None:
    edge = asked()
    early = notification("_x/early")
    assert edge.from_agent(early).to_client == [early]
    answer = result(7, {"protocolVersion": 1})
    assert edge.from_agent(answer).to_client == [answer]
    assert edge.is_settled
    assert not edge.translates


@pytest.mark.parametrize("line", [b"not a message", b'{"id":7}', b"", b"[]"])
def test_what_is_not_the_answer_is_passed_on(line: bytes) -> None:
    edge = asked()
    assert edge.from_agent(line).to_client == [line]
    assert not edge.is_settled


def test_other_messages_pass_before_and_after_initialize() -> None:
    edge = AgentEdge()
    for message in (notification("_x/early"), ASKED, notification("_x/late"), b"not a message"):
        assert edge.to_agent(message).to_agent == [message]


def test_an_answer_with_too_many_members_is_left_to_the_core() -> None:
    edge = asked()
    answer = result(7, {f"member{number}": 1 for number in range(1000)})
    assert edge.from_agent(answer).to_client == [answer]
    assert edge.is_settled


def test_an_agent_that_refuses_version_1_is_asked_for_version_2_once() -> None:
    edge = asked()
    (again,) = to_agent(edge.from_agent(failure(7, -32602, "only 2")))
    assert (again["id"], again["params"]["protocolVersion"]) == (7, 2)
    (answer,) = to_client(edge.from_agent(result(7, NEW)))
    assert (answer["id"], answer["result"]["protocolVersion"]) == (7, 1)
    assert edge.translates


def test_an_agent_that_refuses_both_is_quoted_with_its_first_refusal() -> None:
    edge = asked()
    first = failure(7, -32000, "log in first")
    edge.from_agent(first)
    assert edge.from_agent(failure(7, -32602, "what?")).to_client == [first]
    assert edge.is_settled
    assert not edge.translates


def test_an_agent_that_answers_with_version_2_at_once_is_taken_at_its_word() -> None:
    edge = asked()
    (answer,) = to_client(edge.from_agent(result(7, NEW)))
    assert answer["result"]["protocolVersion"] == 1
    assert edge.translates


def test_a_turn_ends_for_the_core_when_the_agent_is_idle() -> None:
    edge = asked()
    edge.from_agent(result(7, NEW))
    assert len(to_agent(edge.to_agent(request(8, "session/prompt", sessionId="s", prompt=[text("hi")])))) == 1
    messages_of_a_turn = (
        result(8, {}),
        update("state_update", state="running"),
        update("agent_message_chunk", messageId="a", content=text("hello")),
        update("state_update", state="idle", stopReason="end_turn"),
    )
    sent: list[Any] = []
    carried: list[bytes | None] = []
    for message in messages_of_a_turn:
        made = edge.from_agent(message).to_client
        sent += map(json.loads, texts_of(made))
        carried += [one.original if isinstance(one, Pair) and not one.is_same else None for one in made]
    assert [message.get("id", message.get("method")) for message in sent] == [
        "_acp-gateway/accepted",
        *["session/update"] * 3,
        8,
    ]
    assert carried == [messages_of_a_turn[0], messages_of_a_turn[1], None, messages_of_a_turn[3], None]
    assert sent[-1]["result"]["stopReason"] == "end_turn"


def test_what_is_remembered_for_an_agent_of_version_2_counts_until_half_of_it_is_forgotten() -> None:
    edge = asked()
    assert edge.size == 0
    edge.shrink()
    edge.from_agent(result(7, NEW))
    for number in range(10):
        told = [{"type": "content", "content": text("x" * 1000)}]
        edge.from_agent(update("tool_call_update", toolCallId=f"t{number}", title="T", content=told))
    before = edge.size
    assert before > 0
    edge.shrink()
    assert edge.size < before


@pytest.mark.parametrize("line", [b"not a message", b"[]", b'{"jsonrpc":"2.0","id":8,"result":1,"error":1}'])
def test_a_line_of_an_agent_of_version_2_that_is_not_a_message_is_left_to_the_core(line: bytes) -> None:
    edge = asked()
    edge.from_agent(result(7, NEW))
    assert edge.from_agent(line).to_client == [line]


@pytest.mark.parametrize("kind", ["agent_message", "state_update"])
def test_an_update_of_no_session_goes_with_nothing(kind: str) -> None:
    edge = asked()
    edge.from_agent(result(7, NEW))
    said = {"sessionUpdate": kind, "messageId": "m", "content": [{"type": "text", "text": "hi"}], "state": "running"}
    made = edge.from_agent(notification("session/update", update=said)).to_client
    assert [type(one) for one in made] == [bytes]


def test_a_chunk_without_the_id_of_its_message_is_translated() -> None:
    edge = asked()
    edge.from_agent(result(7, NEW))
    (sent,) = texts_of(edge.from_agent(update("agent_message_chunk", content=text("x"))).to_client)
    assert json.loads(sent)["params"]["update"]["content"] == text("x")


def test_a_patch_of_another_file_is_not_shown_as_a_change_of_this_one() -> None:
    edge = asked()
    edge.from_agent(result(7, NEW))
    patch = "diff --git /w/a /w/a\n--- /w/a\n+++ /w/a\n@@ -1 +1 @@\n-x\n+y\n"
    change = {"operation": "modify", "path": "/w/b"}
    item: Any = {"type": "diff", "changes": [change], "patch": {"format": "git_patch", "text": patch}}
    edge.from_agent(update("tool_call_update", toolCallId="t", title="T"))
    told = update("tool_call_update", toolCallId="t", content=[content("a"), item])
    (sent,) = texts_of(edge.from_agent(told).to_client)
    shown = json.loads(sent)["params"]["update"]["content"]
    assert [it.get("path") for it in shown] == [None, None, "/w/a"]
    assert shown[1] == content("modified: /w/b", change=change)
