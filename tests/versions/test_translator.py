"""Rules for both translators: objects with too many members, and the versions of a client and its agent."""

import json
from typing import Any

import pytest

from acp_gateway.protocol.jsonrpc import RawId
from acp_gateway.protocol.text.pairs import Pair
from acp_gateway.protocol.text.spans import MEMBERS
from acp_gateway.versions.new_agent import NewAgent
from acp_gateway.versions.old_agent import OldAgent
from acp_gateway.versions.parts import ELEMENTS
from acp_gateway.versions.translator import Output, Translator
from tests.kit.versions import S, content, notification, request, result, text, to_agent, to_client, update

MANY = {f"m{number}": 1 for number in range(MEMBERS + 1)}


@pytest.mark.parametrize("it", [NewAgent(), OldAgent()])
def test_an_object_with_too_many_members_is_refused(it: Translator[Any]) -> None:
    (refused,) = to_client(it.from_client(request(1, "session/new", **MANY)))
    assert refused["error"] == {"code": -32600, "message": f"an object has more than {MEMBERS} members"}
    (refused,) = to_agent(it.from_agent(request(2, "session/request_permission", **MANY)))
    assert refused["id"] == 2
    it.from_client(request(3, "session/new", cwd="/w", mcpServers=[]))
    (refused,) = to_client(it.from_agent(result(3, MANY)))
    assert refused["error"]["code"] == -32600
    for kind in ("agent_message_chunk", "tool_call_update", "available_commands_update"):
        assert not it.from_agent(update(kind, **MANY)).to_client
        assert not it.from_agent(
            notification("session/update", sessionId=S, update={"sessionUpdate": kind}, **MANY)
        ).to_client


@pytest.mark.parametrize("it", [NewAgent(), OldAgent()])
def test_an_array_with_too_many_elements_is_refused(it: Translator[Any]) -> None:
    many = [{"type": "text", "text": ""}] * (ELEMENTS + 1)
    (refused,) = to_client(it.from_client(request(1, "session/prompt", sessionId=S, prompt=many)))
    assert refused["error"] == {"code": -32600, "message": f"an array has more than {ELEMENTS} elements"}
    kind = "available_commands_update"
    assert not it.from_agent(update(kind, availableCommands=many)).to_client
    assert it.from_agent(update(kind, availableCommands=many[1:])).to_client


def test_many_members_that_are_only_passed_on_are_passed_on() -> None:
    (sent,) = NewAgent().from_agent(update("tool_call_update", toolCallId="t", rawInput=MANY)).to_client
    assert json.loads(sent)["params"]["update"]["rawInput"] == MANY


def test_what_a_translator_remembers_of_an_agent_counts_and_is_halved() -> None:
    translator = NewAgent()
    for number in range(20):
        call = {"toolCallId": f"t{number}", "title": "x" * 1000, "content": [content("y" * 10_000)]}
        translator.from_agent(update("tool_call_update", **call))
    before = translator.size
    assert 200_000 < before < 260_000
    translator.shrink()
    assert before / 3 < translator.size <= before / 2 + 1
    last, first = (
        translator.from_agent(update("tool_call_update", toolCallId=name, status="completed")) for name in ("t19", "t0")
    )
    assert b'"tool_call_update"' in last.to_client[0]
    assert b'"tool_call"' in first.to_client[0]


def test_user_messages_that_wait_for_a_prompt_to_be_accepted_count() -> None:
    translator = NewAgent()
    translator.from_client(request(1, "session/prompt", sessionId=S, prompt=[text("x")]))
    before = translator.size
    said = update("user_message", messageId="m", content=[text("z" * 10_000)])
    assert translator.from_agent(said).to_client == []
    assert translator.size > before + 10_000


def test_options_and_prompts_that_wait_count_and_options_of_more_than_a_mebibyte_are_not_remembered() -> None:
    def offering(size: int) -> OldAgent:
        translator = OldAgent()
        translator.from_client(request(1, "session/new", cwd="/w", mcpServers=[]))
        modes = {"currentModeId": "a", "availableModes": [{"id": "a", "name": "x" * size}]}
        translator.from_agent(result(1, {"sessionId": S, "modes": modes}))
        return translator

    assert 10_000 < offering(10_000).size < 11_000
    assert offering(1024 * 1024).size < 100
    translator = offering(10)
    before = translator.size
    translator.from_client(request(2, "session/prompt", sessionId=S, prompt=[text("x" * 10_000)]))
    assert translator.size > before + 10_000


def test_what_a_message_carries_is_for_clients_of_version_2() -> None:
    said = update("agent_message_chunk", messageId="m", content=text("hi"))
    carried = Pair(said, update("agent_message", messageId="m", content=[text("hi")]))
    assert NewAgent().from_agent(carried).to_client == [said]
    assert NewAgent().from_agent_together([carried, said], 0).to_client == [said, said]
    assert NewAgent().accepted(RawId(b"1"), result(1, {"messageId": "m"})) == Output()


def test_a_response_of_the_agent_replaces_its_translation_if_the_client_speaks_its_version() -> None:
    asked = request(1, "session/set_config_option", sessionId="s", configId="o", type="id", value="v")
    options = [{"configId": "o", "name": "O", "type": "_own"}]
    made = b'{"jsonrpc":"2.0","id":1,"result":{"configOptions":[]}}'
    original = result(1, {"configOptions": options})
    for is_same in (False, True):
        it = OldAgent()
        it.is_same = is_same
        it.from_client(asked)
        assert it.answered(made, original).to_client == [original if is_same else made]
    # Of a request that it has not seen.
    assert it.answered(made, original).to_client == [made]
    assert NewAgent().answered(made, original).to_client == [made]
