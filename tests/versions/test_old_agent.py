"""A client of version 2 and an agent of version 1: what either gets, by tables of dialogues."""

import json
from typing import Any

import pytest

from acp_gateway.protocol.jsonrpc import RawId
from acp_gateway.protocol.text.pairs import Pair
from acp_gateway.versions.carried import hidden
from acp_gateway.versions.old_agent import OldAgent
from tests.kit.versions import (
    S,
    content,
    failure,
    notification,
    request,
    result,
    text,
    to_agent,
    to_client,
    update,
    updates,
)

Json = Any

OPTION = {
    "id": "x",
    "name": "X",
    "type": "select",
    "currentValue": "v",
    "options": [
        {"group": "g", "name": "G", "options": [{"value": "v", "name": "V"}]},
        {"group": "h", "name": "H", "options": []},
    ],
}
NEW_OPTION = {
    "configId": "x",
    "name": "X",
    "type": "select",
    "currentValue": "v",
    "options": [{"groupId": "g", "name": "G", "options": [{"value": "v", "name": "V"}]}],
}
MODES = {
    "currentModeId": "ask",
    "availableModes": [{"id": "ask", "name": "Ask", "description": "d"}, {"id": "code", "name": "Code"}, {}],
}
MODELS = {"currentModelId": "m", "availableModels": [{"modelId": "m", "name": "M"}]}
MODE_OPTION = {
    "configId": "acp-gateway-mode",
    "name": "Mode",
    "category": "mode",
    "type": "select",
    "currentValue": "ask",
    "options": [{"value": "ask", "name": "Ask", "description": "d"}, {"value": "code", "name": "Code"}],
}
MODEL_OPTION = {
    "configId": "acp-gateway-model",
    "name": "Model",
    "category": "model",
    "type": "select",
    "currentValue": "m",
    "options": [{"value": "m", "name": "M"}],
}
IDLE = {"sessionUpdate": "state_update", "state": "idle"}
RUNNING = {"sessionUpdate": "state_update", "state": "running"}


def initialized(**capabilities: Json) -> OldAgent:
    it = OldAgent()
    it.from_client(request(0, "initialize", protocolVersion=2, info={"name": "c", "version": "1"}))
    it.from_agent(result(0, {"protocolVersion": 1, "agentCapabilities": capabilities}))
    return it


def said(it: OldAgent, *messages: bytes, position: int | None = None) -> list[Json]:
    """The updates that a client gets for these of the agent, from a position in the journal on."""
    places = [None if position is None else position + index for index in range(len(messages))]
    return [
        sent for message, place in zip(messages, places, strict=True) for sent in updates(it.from_agent(message, place))
    ]


# Initialization


def test_initialize_of_version_2_offers_all_that_version_2_shows() -> None:
    asked = request(
        0,
        "initialize",
        protocolVersion=2,
        info={"name": "c", "version": "1"},
        capabilities={"auth": {"terminal": {}}, "elicitation": {"form": {}}},
    )
    (sent,) = to_agent(OldAgent().from_client(asked))
    assert sent["params"] == {
        "protocolVersion": 1,
        "clientInfo": {"name": "c", "version": "1"},
        "clientCapabilities": {
            "elicitation": {"form": {}},
            "fs": {"readTextFile": False, "writeTextFile": False},
            "terminal": False,
            "session": {"configOptions": {"boolean": {}}, "notices": {}, "compaction": {}},
            "auth": {"terminal": True},
        },
    }


def test_the_result_of_initialize_has_the_capabilities_of_version_2() -> None:
    it = OldAgent()
    it.from_client(request(0, "initialize", protocolVersion=2))
    answer = {
        "protocolVersion": 1,
        "agentCapabilities": {
            "loadSession": True,
            "promptCapabilities": {"image": True, "audio": False},
            "mcpCapabilities": {"http": True, "sse": True, "acp": True},
            "sessionCapabilities": {"list": {}, "delete": {}, "resume": None, "fork": {}},
            "auth": {"logout": {}, "status": {}},
            "_meta": {"k": 1},
        },
        "authMethods": [
            {"id": "a", "name": "A"},
            {"id": "t", "type": "terminal", "name": "T", "env": {"K": "v"}},
            {"id": "u", "type": "terminal", "name": "U"},
        ],
    }
    (sent,) = to_client(it.from_agent(result(0, answer)))
    assert sent["result"] == {
        "protocolVersion": 2,
        "info": {"name": "unknown", "version": "unknown"},
        "capabilities": {
            "_meta": {"k": 1},
            "session": {"delete": {}, "fork": {}, "prompt": {"image": {}}, "mcp": {"stdio": {}, "http": {}, "acp": {}}},
            "auth": {"status": {}},
        },
        "authMethods": [
            {"methodId": "a", "type": "agent", "name": "A"},
            {"methodId": "t", "type": "terminal", "name": "T", "env": [{"name": "K", "value": "v"}]},
            {"methodId": "u", "type": "terminal", "name": "U"},
        ],
    }


# Requests of the client


@pytest.mark.parametrize(
    ("method", "params", "old_method", "old_params"),
    [
        ("auth/login", {"methodId": "a"}, "authenticate", {"methodId": "a"}),
        ("auth/logout", {}, "logout", {}),
        ("session/new", {"cwd": "/w"}, "session/new", {"cwd": "/w", "mcpServers": []}),
        (
            "session/new",
            {
                "cwd": "/w",
                "mcpServers": [
                    {"type": "stdio", "name": "n", "command": "/c"},
                    {"type": "http", "name": "h", "url": "u"},
                    {"type": "acp", "name": "a", "serverId": "i"},
                ],
            },
            "session/new",
            {
                "cwd": "/w",
                "mcpServers": [
                    {"name": "n", "command": "/c", "args": [], "env": []},
                    {"type": "http", "name": "h", "url": "u", "headers": []},
                    {"type": "acp", "name": "a", "serverId": "i"},
                ],
            },
        ),
        (
            "session/resume",
            {"sessionId": S, "cwd": "/w", "replayFrom": {"type": "start"}},
            "session/load",
            {"sessionId": S, "cwd": "/w", "mcpServers": []},
        ),
        (
            "session/resume",
            {"sessionId": S, "cwd": "/w", "replayFrom": None},
            "session/resume",
            {"sessionId": S, "cwd": "/w"},
        ),
        (
            "session/set_config_option",
            {"sessionId": S, "configId": "x", "type": "id", "value": "v"},
            "session/set_config_option",
            {"sessionId": S, "configId": "x", "value": "v"},
        ),
        (
            "session/set_config_option",
            {"sessionId": S, "configId": "x", "type": "boolean", "value": True},
            "session/set_config_option",
            {"sessionId": S, "configId": "x", "type": "boolean", "value": True},
        ),
        (
            "session/set_config_option",
            {"sessionId": S, "configId": "acp-gateway-mode", "type": "id", "value": "v", "_meta": {"k": 1}},
            "session/set_mode",
            {"sessionId": S, "_meta": {"k": 1}, "modeId": "v"},
        ),
        (
            "session/set_config_option",
            {"sessionId": S, "configId": "acp-gateway-model", "type": "id", "value": "v"},
            "session/set_model",
            {"sessionId": S, "modelId": "v"},
        ),
        (
            "session/prompt",
            {"sessionId": S, "prompt": [text("x")]},
            "session/prompt",
            {"sessionId": S, "prompt": [text("x")]},
        ),
    ],
)
def test_a_request_of_version_2_becomes_one_of_version_1(
    method: str, params: Json, old_method: str, old_params: Json
) -> None:
    (sent,) = to_agent(OldAgent().from_client(request(1, method, **params)))
    assert (sent["id"], sent["method"], sent["params"]) == (1, old_method, old_params)


@pytest.mark.parametrize(
    "message",
    [
        request(1, "session/list", cwd="/w"),
        request(1, "session/close", sessionId=S),
        request(1, "_x/y", z=1),
        notification("session/cancel", sessionId=S),
        notification("$/cancel_request", requestId=9),
        notification("$/cancel_request"),
        result(4, {"outcome": {"outcome": "selected", "optionId": "o"}}),
        result(4, {"action": "accept"}),
        failure(4),
    ],
)
def test_a_message_of_the_client_that_is_the_same_in_both_versions_is_passed_on_as_it_is(message: bytes) -> None:
    out = OldAgent().from_client(message)
    assert not out.to_client
    assert out.to_agent[0] is message


@pytest.mark.parametrize(
    ("method", "params", "why"),
    [
        ("session/new", {"cwd": "/", "mcpServers": [{"type": "_x"}]}, "no MCP server of the type '_x'"),
        ("session/resume", {"sessionId": S, "replayFrom": {"type": "_last"}}, "no replay from '_last'"),
        ("session/prompt", {"sessionId": S, "prompt": [{"type": "_video"}]}, "no content of the type '_video'"),
        ("session/set_config_option", {"sessionId": S, "configId": "x", "type": "_n", "value": 1}, "of the type '_n'"),
        ("tool_call/cancel", {"sessionId": S, "toolCallId": "t"}, "can't be cancelled alone"),
        ("terminal/cancel", {"sessionId": S, "terminalId": "t"}, "can't be cancelled alone"),
    ],
)
def test_a_request_that_version_1_cannot_say_is_answered_with_an_error(method: str, params: Json, why: str) -> None:
    (sent,) = to_client(OldAgent().from_client(request(1, method, **params)))
    assert sent["error"]["code"] == -32602
    assert why in sent["error"]["message"]


def test_an_unknown_outcome_decides_nothing() -> None:
    (sent,) = to_agent(OldAgent().from_client(result(4, {"outcome": {"outcome": "_later"}})))
    assert "no outcome '_later'" in sent["error"]["message"]


def test_list_and_close_are_answered_for_an_agent_that_lacks_them() -> None:
    it = initialized()
    (answer,) = to_client(it.from_client(request(1, "session/list")))
    assert answer["result"] == {"sessions": []}
    out = it.from_client(request(2, "session/close", sessionId=S))
    assert b'"session/cancel"' in out.to_agent[0]
    assert out.to_client == [b'{"jsonrpc":"2.0","id":2,"result":{}}']
    able = initialized(sessionCapabilities={"list": {}, "close": {}})
    assert able.from_client(request(1, "session/list")).to_agent
    assert able.from_client(request(2, "session/close", sessionId=S)).to_agent


# Opening


def test_the_result_of_an_opening_has_options_for_modes_and_models() -> None:
    it = initialized()
    it.from_client(request(1, "session/new", cwd="/w"))
    (sent,) = to_client(
        it.from_agent(result(1, {"sessionId": S, "modes": MODES, "models": MODELS, "configOptions": [OPTION]}))
    )
    assert sent["result"] == {"sessionId": S, "configOptions": [NEW_OPTION, MODE_OPTION, MODEL_OPTION]}


def opened(**answer: Json) -> OldAgent:
    it = initialized(loadSession=True)
    it.from_client(request(1, "session/resume", sessionId=S, cwd="/w", replayFrom={"type": "start"}))
    state, sent = to_client(it.from_agent(result(1, answer)))
    assert state["params"] == {"sessionId": S, "update": IDLE}
    assert sent["id"] == 1
    return it


def test_modes_with_an_option_of_their_own_get_no_second_one() -> None:
    own = {
        "id": "m",
        "name": "M",
        "category": "mode",
        "type": "select",
        "currentValue": "ask",
        "options": [{"value": "ask", "name": "A"}, {"value": "code", "name": "C"}],
    }
    (changed,) = said(opened(modes=MODES, configOptions=[own]), update("current_mode_update", currentModeId="code"))
    assert [(option["configId"], option["currentValue"]) for option in changed["configOptions"]] == [("m", "code")]


def test_the_state_of_a_session_comes_before_the_response_to_resume() -> None:
    it = initialized(loadSession=True)
    it.turn_began(S)
    it.from_client(request(1, "session/resume", sessionId=S, cwd="/w", replayFrom={"type": "start"}))
    replayed = said(it, update("user_message_chunk", content=text("a")), position=4)
    assert replayed[0]["messageId"] == "acp-gateway-user-4"
    state, _ = to_client(it.from_agent(result(1, {})))
    assert state["params"]["update"] == RUNNING


def test_an_agent_that_can_only_load_resumes_without_its_history() -> None:
    it = initialized(loadSession=True)
    (sent,) = to_agent(it.from_client(request(1, "session/resume", sessionId=S, cwd="/w")))
    assert sent["method"] == "session/load"
    chunk = update("user_message_chunk", content=text("a"))
    usage = update("usage_update", used=1, size=2)
    assert said(it, chunk, update("agent_message_chunk", content=text("b")), usage) == [
        {"sessionUpdate": "usage_update", "used": 1, "size": 2}
    ]
    it.from_agent(failure(1))
    assert len(said(it, chunk)) == 1
    # A client that returns gets what it has missed.
    it.from_client(request(2, "session/resume", sessionId=S, cwd="/w", _meta={"acp-gateway": {"prompts": []}}))
    assert len(said(it, chunk)) == 1
    able = initialized(loadSession=True, sessionCapabilities={"resume": {}})
    (sent,) = to_agent(able.from_client(request(1, "session/resume", sessionId=S, cwd="/w")))
    assert sent["method"] == "session/resume"


def test_a_response_without_an_object_gets_one() -> None:
    it = initialized()
    it.from_client(request(1, "auth/login", methodId="a"))
    assert to_client(it.from_agent(result(1, None)))[0]["result"] == {}
    it.from_client(request(2, "session/delete", sessionId=S))
    whole = result(2, {})
    assert it.from_agent(whole).to_client[0] is whole
    it.from_client(request(3, "session/list"))
    it.from_client(request(4, "_x"))
    other = result(4, 7)
    assert it.from_agent(other).to_client[0] is other


def test_a_new_mode_is_told_with_all_options() -> None:
    it = opened(modes=MODES, configOptions=[OPTION])
    changed = MODE_OPTION | {"currentValue": "code"}
    (sent,) = said(it, update("current_mode_update", currentModeId="code", _meta={"k": 1}))
    assert sent == {"sessionUpdate": "config_option_update", "configOptions": [NEW_OPTION, changed], "_meta": {"k": 1}}
    it.from_client(
        request(2, "session/set_config_option", sessionId=S, configId="acp-gateway-mode", type="id", value="ask")
    )
    (answer,) = to_client(it.from_agent(result(2, {"_meta": {"k": 2}})))
    assert answer["result"] == {"configOptions": [NEW_OPTION, MODE_OPTION], "_meta": {"k": 2}}
    it.from_client(request(3, "session/set_config_option", sessionId=S, configId="x", type="id", value="v"))
    (answer,) = to_client(it.from_agent(result(3, {"configOptions": []})))
    assert answer["result"] == {"configOptions": [MODE_OPTION]}
    (sent,) = said(it, update("config_option_update", configOptions=[OPTION]))
    assert sent["configOptions"] == [NEW_OPTION, MODE_OPTION]


def test_a_new_mode_of_an_agent_without_modes_is_dropped() -> None:
    assert not said(OldAgent(), update("current_mode_update", currentModeId="code"))


# Turns


def test_a_prompt_is_answered_when_its_turn_begins_and_its_end_is_a_state() -> None:
    it = OldAgent()
    assert to_agent(it.from_client(request(2, "session/prompt", sessionId=S, prompt=[text("hi")])))
    answer, message, state = to_client(it.turn_began(S, RawId(b"2"), 17))
    assert answer == {"jsonrpc": "2.0", "id": 2, "result": {"messageId": "acp-gateway-user-17"}}
    shown = {"sessionUpdate": "user_message", "messageId": "acp-gateway-user-17", "content": [text("hi")]}
    assert message["params"] == {"sessionId": S, "update": shown}
    assert state["params"]["update"] == RUNNING
    assert not to_client(it.turn_began(S, RawId(b"2"), 17))
    (end,) = updates(it.from_agent(result(2, {"stopReason": "max_tokens", "usage": {"totalTokens": 1}})))
    assert end == IDLE | {"stopReason": "max_tokens", "usage": {"totalTokens": 1}}
    assert not to_client(it.turn_ended(S))


def test_the_prompt_of_another_client_has_the_id_that_its_sender_got() -> None:
    it = OldAgent()
    assert updates(it.turn_began(S, None, 17)) == [RUNNING]
    chunks = [update("user_message_chunk", content=text(words)) for words in ("hi", "there")]
    assert [chunk["messageId"] for chunk in said(it, *chunks, position=17)] == ["acp-gateway-user-17"] * 2
    assert updates(it.turn_ended(S)) == [IDLE]


def test_a_prompt_that_fails_before_its_turn_is_answered_with_the_error() -> None:
    it = OldAgent()
    it.from_client(request(2, "session/prompt", sessionId=S, prompt=[text("hi")]))
    refused = failure(2)
    assert it.from_agent(refused).to_client[0] is refused


def test_an_error_that_ends_a_turn_is_a_stop_reason() -> None:
    it = OldAgent()
    it.from_client(request(2, "session/prompt", sessionId=S, prompt=[text("hi")]))
    it.turn_began(S, RawId(b"2"), 0)
    (end,) = updates(it.from_agent(failure(2, message="full")))
    assert end == IDLE | {"stopReason": "error", "error": {"code": -32603, "message": "full"}}
    it.turn_began(S)
    (end,) = updates(it.turn_ended(S, b'{"code":-1,"message":"gone"}'))
    assert end == IDLE | {"stopReason": "error", "error": {"code": -1, "message": "gone"}}


def test_a_prompt_whose_beginning_was_not_told_is_answered_at_its_end() -> None:
    it = OldAgent()
    it.from_client(request(2, "session/prompt", sessionId=S, prompt=[text("hi")]))
    answer, message, began, ended = to_client(it.from_agent(result(2, {"stopReason": "end_turn"})))
    assert answer["result"]["messageId"] == message["params"]["update"]["messageId"] == "acp-gateway-user-x1"
    assert (began["params"]["update"], ended["params"]["update"]) == (RUNNING, IDLE | {"stopReason": "end_turn"})


def test_the_response_to_a_prompt_of_a_turn_that_was_ended_tells_nothing_more() -> None:
    it = OldAgent()
    it.from_client(request(2, "session/prompt", sessionId=S, prompt=[text("hi")]))
    it.turn_began(S, RawId(b"2"), 0)
    it.turn_ended(S)
    assert not to_client(it.from_agent(result(2, {"stopReason": "end_turn"})))
    it.from_client(request(3, "session/prompt", prompt=[text("hi")]))
    nowhere = failure(3)
    assert it.from_agent(nowhere).to_client[0] is nowhere


def test_a_prompt_that_was_answered_is_not_cancelled_again() -> None:
    it = OldAgent()
    it.from_client(request(2, "session/prompt", sessionId=S, prompt=[text("hi")]))
    cancel = notification("$/cancel_request", requestId=2)
    assert it.from_client(cancel).to_agent == [cancel]
    it.turn_began(S, RawId(b"2"), 0)
    assert not it.from_client(cancel).to_agent


# Updates


def test_chunks_without_an_id_have_one_for_each_message() -> None:
    def kinds(*names: str) -> list[bytes]:
        return [update(f"{name}_chunk", content=text("x")) for name in names]

    it = OldAgent()
    begun = said(it, *kinds("agent_thought", "agent_message", "agent_message"), position=5)
    said(it, update("tool_call", toolCallId="t", title="T"), position=8)
    said(it, update("tool_call_update", toolCallId="t"), update("plan", entries=[]), position=9)
    after = said(it, *kinds("agent_message"), position=11)
    it.turn_boundary(S)
    again = said(it, *kinds("agent_message"), position=12)
    found = [chunk["messageId"] for chunk in (*begun, *after, *again)]
    assert found == [f"acp-gateway-agent-{number}" for number in (5, 6, 6, 11, 12)]
    assert [chunk["messageId"] for chunk in said(OldAgent(), *kinds("agent_message"))] == ["acp-gateway-agent-x1"]


def test_an_id_of_the_agent_is_kept_except_that_of_a_thought() -> None:
    it = OldAgent()
    chunk = update("agent_message_chunk", messageId="m", content=text("x"))
    assert it.from_agent(chunk).to_client[0] is chunk
    (sent,) = said(it, update("agent_thought_chunk", messageId="m", content=text("x")))
    assert sent["messageId"] == "m.thought"
    block = {"type": "text", "text": "x", "annotations": {"priority": -1}}
    (sent,) = said(it, update("agent_message_chunk", messageId="m", content=block))
    assert (sent["messageId"], sent["content"]["annotations"]) == ("m", {})


def test_a_tool_call_is_an_update_and_null_is_left_out() -> None:
    it = OldAgent()
    items = [
        content("a"),
        {"type": "content", "content": {"type": "text", "text": "x", "annotations": {"priority": 3}}},
        {"type": "diff", "path": "/w/a", "oldText": None, "newText": "x"},
        {"type": "terminal", "terminalId": "z"},
    ]
    places = [{"path": "/w/a", "line": 0}, {"path": "/w/b", "line": 1}]
    (sent,) = said(it, update("tool_call", toolCallId="t", title="T", content=items, locations=places))
    patch = (
        "diff --git /w/a /w/a\nnew file mode 100644\n--- /dev/null\n+++ /w/a\n@@ -0,0 +1,1 @@\n"
        "+x\n\\ No newline at end of file\n"
    )
    diff = {
        "type": "diff",
        "changes": [{"operation": "add", "path": "/w/a", "fileType": "text"}],
        "patch": {"format": "git_patch", "text": patch},
    }
    inner = {"type": "content", "content": {"type": "text", "text": "x", "annotations": {}}}
    assert sent == {
        "sessionUpdate": "tool_call_update",
        "toolCallId": "t",
        "title": "T",
        "content": [content("a"), inner, diff, {"type": "terminal", "terminalId": "z"}],
        "locations": [{"path": "/w/a"}, {"path": "/w/b", "line": 1}],
    }
    (sent,) = said(it, update("tool_call_update", toolCallId="t", title=None, content=None, status="failed"))
    assert sent == {"sessionUpdate": "tool_call_update", "toolCallId": "t", "status": "failed"}


def test_a_plan_has_an_id() -> None:
    entries = [{"content": "a", "priority": "high", "status": "pending"}]
    (sent,) = said(OldAgent(), update("plan", entries=entries, _meta={"k": 1}))
    assert sent == {
        "sessionUpdate": "plan_update",
        "plan": {"type": "items", "planId": "acp-gateway-plan", "entries": entries},
        "_meta": {"k": 1},
    }


def test_commands_have_types() -> None:
    commands = [
        {"name": "c", "description": "d", "input": {"hint": "h"}},
        {"name": "e", "description": "d", "input": None},
    ]
    (sent,) = said(OldAgent(), update("available_commands_update", availableCommands=commands))
    assert sent["availableCommands"] == [
        {"type": "command", "name": "c", "description": "d", "input": {"type": "text", "hint": "h"}},
        {"type": "command", "name": "e", "description": "d", "input": None},
    ]


@pytest.mark.parametrize("kind", ["session_info_update", "usage_update", "notice", "compaction_update", "_own"])
def test_an_update_that_is_the_same_in_both_versions_is_passed_on_as_it_is(kind: str) -> None:
    message = update(kind, x=1)
    assert OldAgent().from_agent(message).to_client[0] is message


@pytest.mark.parametrize("member", ["content", "summary"])
@pytest.mark.parametrize(
    "kind", ["compaction_update", "compaction_summary_chunk", "session_message", "session_message_chunk"]
)
def test_content_of_any_update_is_content_of_version_2(kind: str, member: str) -> None:
    """Version 2 has no sizes below 0; found by fuzz."""
    block = {"type": "resource_link", "name": "a", "uri": "file:///a"}
    for old, new in (({**block, "size": -1}, block), ([text("s"), {**block, "size": -1}], [text("s"), block])):
        (sent,) = said(OldAgent(), update(kind, **{member: old}))
        assert sent == {"sessionUpdate": kind, member: new}
    message = update(kind, **{member: {**block, "size": 1}})
    assert OldAgent().from_agent(message).to_client[0] is message


# Requests of the agent


def test_a_permission_has_the_tool_call_as_its_subject() -> None:
    options = [{"optionId": "o", "name": "O", "kind": "allow_once"}]
    asked = request(
        9,
        "session/request_permission",
        sessionId=S,
        toolCall={"toolCallId": "t", "title": "Run", "content": None},
        options=options,
    )
    (sent,) = to_client(OldAgent().from_agent(asked))
    assert sent["params"] == {
        "sessionId": S,
        "title": "Run",
        "subject": {"type": "tool_call", "toolCall": {"toolCallId": "t", "title": "Run"}},
        "options": options,
    }
    untitled = request(9, "session/request_permission", sessionId=S, toolCall={"toolCallId": "t"}, options=options)
    (sent,) = to_client(OldAgent().from_agent(untitled))
    assert sent["params"]["title"] == "The agent asks for permission"
    without = request(9, "request_permission", sessionId=S, toolCall={"toolCallId": "t"}, options=[])
    (sent,) = to_agent(OldAgent().from_agent(without))
    assert sent["error"]["code"] == -32602


@pytest.mark.parametrize("method", ["fs/write_text_file", "terminal/create", "read_text_file", "kill_terminal"])
def test_files_and_terminals_are_not_served(method: str) -> None:
    (sent,) = to_agent(OldAgent().from_agent(request(9, method, sessionId=S)))
    assert (sent["id"], sent["error"]["code"]) == (9, -32601)


def test_a_form_has_a_type_and_properties_and_none_without_choices() -> None:
    asked = request(9, "elicitation/create", mode="form", message="m", sessionId=S, requestedSchema={})
    (sent,) = to_client(OldAgent().from_agent(asked))
    assert sent["params"]["requestedSchema"] == {"type": "object", "properties": {}}
    properties = {
        "a": {"type": "string", "enum": []},
        "b": {"type": "array", "items": {"anyOf": []}},
        "c": {"type": "string", "enum": None},
    }
    form: Json = {"properties": properties, "required": ["a", "c"]}
    asked = request(9, "elicitation/create", mode="form", message="m", sessionId=S, requestedSchema=form)
    (sent,) = to_client(OldAgent().from_agent(asked))
    assert sent["params"]["requestedSchema"]["properties"] == {"c": properties["c"]}
    assert sent["params"]["requestedSchema"]["required"] == ["c"]
    form = {"properties": properties, "required": None}
    asked = request(9, "elicitation/create", mode="form", message="m", sessionId=S, requestedSchema=form)
    (sent,) = to_client(OldAgent().from_agent(asked))
    assert sent["params"]["requestedSchema"]["required"] is None
    asked = request(9, "elicitation/create", mode="url", message="m", sessionId=S, url="u", elicitationId="e")
    (sent,) = to_client(OldAgent().from_agent(asked))
    assert sent["params"]["url"] == "u"


@pytest.mark.parametrize("message", [request(1, "_own/ask"), notification("elicitation/complete", elicitationId="e")])
def test_a_message_of_the_agent_that_is_the_same_in_both_versions_is_passed_on_as_it_is(message: bytes) -> None:
    assert OldAgent().from_agent(message).to_client[0] is message


def test_a_session_that_the_client_leaves_is_forgotten() -> None:
    it = OldAgent()
    it.turn_began(S)
    assert not it.forget(S).to_client
    assert updates(it.turn_began(S)) == [RUNNING]


@pytest.mark.parametrize(
    "message",
    [
        (
            b'{"method":"session/update","params":{"sessionId":"s","update":{"content":{"type":"text","text":"sessionUpdate"},'
            b'"sessionUpdate":"agent_message_chunk"}}}'
        ),
        (
            b'{"method":"session/update","params":{"sessionId":"s","update":{"session\\u0055pdate":"agent_message_chunk",'
            b'"content":{"type":"text","text":"x"}}}}'
        ),
        (
            b'{"method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate" : "agent_message_chunk",'
            b'"content":{"type":"text","text":"\\ud83d"},"messageId":null}}}'
        ),
    ],
)
def test_a_chunk_has_one_id_however_it_is_written(message: bytes) -> None:
    (sent,) = OldAgent().from_agent(message, 7).to_client
    assert sent.count(b'"messageId"') == 1
    assert json.loads(sent)["params"]["update"]["messageId"] == "acp-gateway-agent-7"


def test_what_version_2_allows_is_passed_on_as_it_is() -> None:
    block = {"type": "text", "text": "x", "annotations": {"priority": 0.5}}
    message = update("agent_message_chunk", messageId="m", content=block)
    assert OldAgent().from_agent(message).to_client[0] is message
    flag = {"name": "no id", "type": "boolean", "currentValue": True}
    assert said(OldAgent(), update("config_option_update", configOptions=[flag]))[0]["configOptions"] == [flag]


def test_an_option_without_choices_is_left_out() -> None:
    empty = OPTION | {"options": []}
    assert said(OldAgent(), update("config_option_update", configOptions=[empty]))[0]["configOptions"] == []


def test_an_id_of_the_agent_ends_a_message_without_one() -> None:
    chunks = [update("agent_message_chunk", content=text("x"), **given) for given in ({}, {"messageId": "m"}, {})]
    found = [chunk["messageId"] for chunk in said(OldAgent(), *chunks, position=0)]
    assert found == ["acp-gateway-agent-0", "m", "acp-gateway-agent-2"]
    annotated = {"type": "text", "text": "x", "annotations": {}}
    chunks[1] = update("agent_message_chunk", content=annotated, messageId="m")
    assert [chunk["messageId"] for chunk in said(OldAgent(), *chunks, position=0)] == found


def test_a_history_begins_with_a_message_of_its_own() -> None:
    it = initialized(loadSession=True)
    chunk = update("user_message_chunk", content=text("x"))
    said(it, chunk, position=3)
    it.from_client(request(1, "session/resume", sessionId=S, cwd="/w", replayFrom={"type": "start"}))
    assert said(it, chunk, position=4)[0]["messageId"] == "acp-gateway-user-4"


def test_a_notification_that_has_the_name_of_a_request_is_passed_on() -> None:
    message = notification("fs/read_text_file", sessionId=S)
    assert OldAgent().from_agent(message).to_client[0] is message


def test_of_a_history_of_version_2_an_agent_of_version_1_goes_on_with_what_version_1_has() -> None:
    agent = OldAgent()
    told = update("agent_message_chunk", messageId="m", content=text("x"))
    assert agent.from_agent(hidden(b'"s"', b"{}"), 0).to_client == []
    assert updates(agent.from_agent(Pair(told, b"{}"), 1)) == updates(OldAgent().from_agent(told, 1))


def test_with_an_agent_of_version_1_no_acceptance_is_told() -> None:
    assert OldAgent().accepted(RawId(b"1"), b"{}").to_client == []


def test_a_word_of_the_protocol_in_a_message_is_not_a_state() -> None:
    agent = OldAgent()
    agent.is_same = True
    said = update("agent_message_chunk", messageId="m", content=text("state_update"))
    assert agent.from_agent(Pair(said, said), 0).to_client == [said]


def test_of_a_history_of_version_1_an_agent_of_version_2_keeps_the_ids_and_nothing_that_version_2_refuses() -> None:
    agent = OldAgent()
    agent.is_same = True
    link = {"type": "resource_link", "name": "n", "uri": "file:///n"}
    for kind in ("agent_thought_chunk", "agent_message_chunk"):
        plain, *others = (
            update(kind, messageId="m", content=block) for block in (text("x"), link, link | {"size": -1})
        )
        assert agent.from_agent(plain).to_client == [plain]
        assert [(one["messageId"], one["content"]) for one in said(agent, *others)] == [("m", link)] * 2


def test_a_word_of_the_protocol_in_a_message_that_differs_in_both_versions_is_not_a_state() -> None:
    agent = OldAgent()
    agent.is_same = True
    said, old = (
        update("agent_message_chunk", content=text("state_update"), **more) for more in ({"messageId": "m"}, {})
    )
    assert agent.from_agent(Pair(old, said), 0).to_client == [said]
