"""Rules for both translators: objects with too many members, and the versions of a client and its agent."""

import json
from typing import Any

import pytest

from acp_gateway.protocol.text.spans import MEMBERS
from acp_gateway.versions.new_agent import NewAgent
from acp_gateway.versions.old_agent import OldAgent
from acp_gateway.versions.parts import ELEMENTS
from acp_gateway.versions.translator import Translator
from tests.versions.wire import S, notification, request, result, to_agent, to_client, update

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
