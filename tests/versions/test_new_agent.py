"""A client of version 1 and an agent of version 2: what either gets, by tables of dialogues."""

import json
from base64 import b64encode
from typing import Any

import pytest

from acp_gateway.versions.new_agent import NewAgent
from acp_gateway.versions.parts import ELEMENTS
from acp_gateway.versions.shown import CANCELLED, CLEARED, CORRECTED, ITEMS_LEFT_OUT, Tool
from acp_gateway.versions.state import (
    CONTENT_SIZE,
    FREE_REPEATS,
    REQUESTS,
    SESSIONS,
    STATE_SIZE,
    TERMINAL_SIZE,
    WITHHELD,
)
from acp_gateway.versions.terminals import LEFT_OUT
from acp_gateway.versions.values import SHOWN_SIZE
from tests.kit.versions import (
    S,
    content,
    failure,
    notification,
    own,
    request,
    result,
    text,
    to_agent,
    to_client,
    update,
    updates,
)

Json = Any

MODE = {
    "configId": "m",
    "name": "Mode",
    "category": "mode",
    "type": "select",
    "currentValue": "ask",
    "options": [{"value": "ask", "name": "Ask"}, {"value": "code", "name": "Code", "description": "all"}],
}
OLD_MODE = {"id" if name == "configId" else name: value for name, value in MODE.items()}
MODES = {
    "currentModeId": "ask",
    "availableModes": [{"id": "ask", "name": "Ask"}, {"id": "code", "name": "Code", "description": "all"}],
}


def said(it: NewAgent, *messages: bytes) -> list[Json]:
    """The updates that a client gets for these of the agent."""
    return [sent for message in messages for sent in updates(it.from_agent(message))]


def initialized(**capabilities: Json) -> NewAgent:
    it = NewAgent()
    it.from_client(request(0, "initialize", protocolVersion=1, clientCapabilities=capabilities))
    it.from_agent(result(0, {"protocolVersion": 2, "info": {"name": "a", "version": "1"}}))
    return it


def encoded(words: str | bytes) -> str:
    return b64encode(words.encode() if isinstance(words, str) else words).decode()


# Initialization


def test_initialize_of_version_1_asks_for_version_2_without_files_and_terminals() -> None:
    capabilities = {"fs": {"readTextFile": True}, "terminal": True, "auth": {"terminal": True}, "_meta": {"k": 1}}
    asked = request(0, "initialize", protocolVersion=1, clientCapabilities=capabilities, _meta={"m": 1})
    (sent,) = to_agent(NewAgent().from_client(asked))
    assert sent["params"] == {
        "protocolVersion": 2,
        "info": {"name": "unknown", "version": "unknown"},
        "capabilities": {"auth": {"terminal": {}}, "_meta": {"k": 1}},
        "_meta": {"m": 1},
    }


@pytest.fixture
def it() -> NewAgent:
    return NewAgent()


def test_the_result_of_initialize_has_the_capabilities_of_version_1(it: NewAgent) -> None:
    it.from_client(request(0, "initialize", protocolVersion=1))
    capabilities = {
        "session": {
            "prompt": {"image": {}, "audio": None, "_meta": {"p": 1}},
            "mcp": {"stdio": {}, "http": {}, "acp": {}},
            "delete": {},
            "fork": {},
        },
        "auth": {"status": {}},
        "providers": {},
    }
    methods = [
        {"methodId": "a", "type": "agent", "name": "A"},
        {"methodId": "t", "type": "terminal", "name": "T", "env": [{"name": "K", "value": "v"}, {"value": "w"}]},
        {"methodId": "u", "type": "terminal", "name": "U"},
        {"methodId": "x", "type": "_other", "name": "X"},
    ]
    answer = {
        "protocolVersion": 2,
        "info": {"name": "a", "version": "1"},
        "capabilities": capabilities,
        "authMethods": methods,
    }
    (sent,) = to_client(it.from_agent(result(0, answer)))
    assert sent["result"] == {
        "protocolVersion": 1,
        "agentInfo": {"name": "a", "version": "1"},
        "agentCapabilities": {
            "providers": {},
            "loadSession": True,
            "promptCapabilities": {"image": True, "audio": False, "embeddedContext": False, "_meta": {"p": 1}},
            "mcpCapabilities": {"http": True, "sse": False, "acp": True},
            "sessionCapabilities": {"delete": {}, "fork": {}, "list": {}, "resume": {}, "close": {}},
            "auth": {"status": {}, "logout": {}},
        },
        "authMethods": [
            {"id": "a", "name": "A"},
            {"id": "t", "type": "terminal", "name": "T", "env": {"K": "v"}},
            {"id": "u", "type": "terminal", "name": "U"},
        ],
    }


def test_an_agent_without_sessions_offers_none_in_version_1(it: NewAgent) -> None:
    it.from_client(request(0, "initialize", protocolVersion=1))
    (sent,) = to_client(it.from_agent(result(0, {"protocolVersion": 2, "info": 7})))
    assert sent["result"]["agentCapabilities"]["loadSession"] is False
    assert sent["result"]["agentCapabilities"]["sessionCapabilities"] == {}
    assert "agentInfo" not in sent["result"]


# Requests of the client


@pytest.mark.parametrize(
    ("method", "params", "new_method", "new_params"),
    [
        ("authenticate", {"methodId": "a"}, "auth/login", {"methodId": "a"}),
        ("logout", {}, "auth/logout", {}),
        (
            "session/new",
            {"cwd": "/w", "mcpServers": [{"name": "n", "command": "/c", "args": [], "env": []}]},
            "session/new",
            {"cwd": "/w", "mcpServers": [{"type": "stdio", "name": "n", "command": "/c", "args": [], "env": []}]},
        ),
        (
            "session/load",
            {"sessionId": S, "cwd": "/w", "mcpServers": [{"type": "http", "name": "n", "url": "u", "headers": []}]},
            "session/resume",
            {
                "sessionId": S,
                "cwd": "/w",
                "mcpServers": [{"type": "http", "name": "n", "url": "u", "headers": []}],
                "replayFrom": {"type": "start"},
            },
        ),
        ("session/resume", {"sessionId": S, "cwd": "/w"}, "session/resume", {"sessionId": S, "cwd": "/w"}),
        (
            "session/set_config_option",
            {"sessionId": S, "configId": "c", "value": "v"},
            "session/set_config_option",
            {"sessionId": S, "configId": "c", "type": "id", "value": "v"},
        ),
        (
            "session/set_config_option",
            {"sessionId": S, "configId": "c", "type": "boolean", "value": True},
            "session/set_config_option",
            {"sessionId": S, "configId": "c", "type": "boolean", "value": True},
        ),
        (
            "session/prompt",
            {
                "sessionId": S,
                "prompt": [
                    {"type": "text", "text": "x", "annotations": {"priority": 2, "audience": ["user"]}},
                    {"type": "resource_link", "name": "n", "uri": "u", "size": -1},
                ],
            },
            "session/prompt",
            {
                "sessionId": S,
                "prompt": [
                    {"type": "text", "text": "x", "annotations": {"audience": ["user"]}},
                    {"type": "resource_link", "name": "n", "uri": "u"},
                ],
            },
        ),
    ],
)
def test_a_request_of_version_1_becomes_one_of_version_2(
    method: str, params: Json, new_method: str, new_params: Json
) -> None:
    (sent,) = to_agent(NewAgent().from_client(request(1, method, **params)))
    assert (sent["id"], sent["method"], sent["params"]) == (1, new_method, new_params)


@pytest.mark.parametrize(
    "message",
    [
        request(1, "session/list", cwd="/w"),
        request(1, "session/close", sessionId=S),
        request(1, "session/delete", sessionId=S),
        request(1, "_x/y", z=1),
        notification("session/cancel", sessionId=S),
        notification("$/cancel_request", requestId=9),
        result(4, {"outcome": {"outcome": "selected", "optionId": "o"}}),
        b'{"id":1,"method":1}',
        b"[]",
    ],
)
def test_a_message_of_the_client_that_is_the_same_in_both_versions_is_passed_on_as_it_is(message: bytes) -> None:
    out = NewAgent().from_client(message)
    assert not out.to_client
    assert out.to_agent[0] is message


@pytest.mark.parametrize(
    ("method", "params", "why"),
    [
        ("session/new", {"cwd": "/", "mcpServers": [{"type": "sse", "name": "old"}]}, "'sse': 'old'"),
        ("session/prompt", {"sessionId": S, "prompt": []}, "a prompt has content"),
        ("session/set_mode", {"sessionId": S, "modeId": "x"}, "the agent offers no modes"),
        ("session/set_model", {"sessionId": S, "modelId": "x"}, "the agent offers no models"),
    ],
)
def test_a_request_that_version_2_cannot_say_is_answered_with_an_error(method: str, params: Json, why: str) -> None:
    (sent,) = to_client(NewAgent().from_client(request(1, method, **params)))
    assert sent["error"]["code"] == -32602
    assert why in sent["error"]["message"]


def test_beyond_requests_open_requests_a_further_one_is_refused(it: NewAgent) -> None:
    for number in range(REQUESTS):
        assert not it.from_client(request(number, "session/list")).to_client
    (sent,) = to_client(it.from_client(request("more", "session/list")))
    assert sent["error"]["code"] == -32600
    assert it.from_client(request(0, "session/list")).to_agent


# Opening


def test_the_result_of_an_opening_has_modes_and_options_and_its_commands_follow() -> None:
    it = initialized(session={"configOptions": {"boolean": {}}})
    grouped = {
        "configId": "g",
        "name": "G",
        "type": "select",
        "currentValue": "v",
        "options": [{"groupId": "one", "name": "One", "options": [{"value": "v", "name": "V"}]}],
    }
    flag = {"configId": "b", "name": "B", "type": "boolean", "currentValue": True}
    other = {"configId": "o", "name": "O", "type": "_slider"}
    commands = [
        {"type": "command", "name": "c", "description": "d", "input": {"type": "text", "hint": "h"}},
        {"type": "command", "name": "e", "description": "d", "input": {"type": "_form"}},
        {"name": "draft", "description": "d", "input": None},
    ]
    it.from_client(request(1, "session/new", cwd="/w", mcpServers=[]))
    answer = {"sessionId": S, "configOptions": [MODE, grouped, flag, other], "availableCommands": commands}
    opened, told = to_client(it.from_agent(result(1, answer)))
    assert opened["result"] == {
        "sessionId": S,
        "configOptions": [
            OLD_MODE,
            {
                "id": "g",
                "name": "G",
                "type": "select",
                "currentValue": "v",
                "options": [{"group": "one", "name": "One", "options": [{"value": "v", "name": "V"}]}],
            },
            {"id": "b", "name": "B", "type": "boolean", "currentValue": True},
        ],
        "modes": MODES,
    }
    assert told["params"]["update"] == {
        "sessionUpdate": "available_commands_update",
        "availableCommands": [
            {"name": "c", "description": "d", "input": {"hint": "h"}},
            {"name": "e", "description": "d"},
            {"name": "draft", "description": "d", "input": None},
        ],
    }


def test_a_boolean_option_is_only_for_a_client_that_offered_them() -> None:
    it = initialized()
    flag = {"configId": "b", "name": "B", "type": "boolean", "currentValue": True}
    assert said(it, update("config_option_update", configOptions=[flag]))[0]["configOptions"] == []


def opened(*options: Json) -> NewAgent:
    it = initialized()
    it.from_client(request(1, "session/load", sessionId=S, cwd="/w", mcpServers=[]))
    it.from_agent(result(1, {"configOptions": list(options)}))
    return it


def test_set_mode_sets_the_option_of_the_modes() -> None:
    it = opened(MODE)
    (sent,) = to_agent(it.from_client(request(2, "session/set_mode", sessionId=S, modeId="code")))
    assert sent["method"] == "session/set_config_option"
    assert sent["params"] == {"sessionId": S, "configId": "m", "type": "id", "value": "code"}
    (answer,) = to_client(it.from_agent(result(2, {"configOptions": [MODE | {"currentValue": "code"}], "x": 1})))
    assert answer == {"jsonrpc": "2.0", "id": 2, "result": {"x": 1}}


def test_set_model_sets_the_option_of_the_models() -> None:
    it = opened(MODE | {"category": "model", "configId": "x"})
    (sent,) = to_agent(it.from_client(request(2, "session/set_model", sessionId=S, modelId="code")))
    assert sent["params"]["configId"] == "x"


def test_the_result_of_set_config_option_has_the_names_of_version_1() -> None:
    it = opened(MODE)
    it.from_client(request(2, "session/set_config_option", sessionId=S, configId="m", value="code"))
    (answer,) = to_client(it.from_agent(result(2, {"configOptions": [MODE]})))
    assert answer["result"] == {"configOptions": [OLD_MODE]}


def test_a_changed_mode_is_told_as_an_option_and_as_a_mode() -> None:
    it = opened(MODE)
    changed = MODE | {"currentValue": "code"}
    assert said(it, update("config_option_update", configOptions=[changed])) == [
        {"sessionUpdate": "config_option_update", "configOptions": [OLD_MODE | {"currentValue": "code"}]},
        {"sessionUpdate": "current_mode_update", "currentModeId": "code"},
    ]
    assert len(said(it, update("config_option_update", configOptions=[changed]))) == 1


# Turns


def accepted(it: NewAgent, number: int = 2, message_id: str = "u") -> None:
    it.from_client(request(number, "session/prompt", sessionId=S, prompt=[text("hi")]))
    assert not to_client(it.from_agent(result(number, {"messageId": message_id})))


RUNNING = update("state_update", state="running")
IDLE = update("state_update", state="idle", stopReason="end_turn")


@pytest.mark.parametrize(
    ("end", "answer"),
    [
        ({"stopReason": "end_turn"}, {"result": {"stopReason": "end_turn"}}),
        ({"stopReason": "cancelled"}, {"result": {"stopReason": "cancelled"}}),
        (
            {"stopReason": "_tired", "usage": {"totalTokens": 1}},
            {"result": {"stopReason": "end_turn", "usage": {"totalTokens": 1}}},
        ),
        ({}, {"result": {"stopReason": "end_turn"}}),
        ({"stopReason": "error", "error": {"code": 5, "message": "m"}}, {"error": {"code": 5, "message": "m"}}),
        ({"stopReason": "error"}, {"error": {"code": -32603, "message": "the turn has ended with an error"}}),
    ],
)
def test_a_prompt_is_answered_when_the_session_is_idle_after_its_updates(end: Json, answer: Json, it: NewAgent) -> None:
    accepted(it)
    assert not said(it, RUNNING, RUNNING)
    (sent,) = to_client(it.from_agent(update("state_update", state="idle", **end)))
    assert sent == {"jsonrpc": "2.0", "id": 2, **answer}


def test_the_same_state_again_answers_nothing(it: NewAgent) -> None:
    accepted(it)
    assert not said(it, IDLE, update("state_update", state="idle"))
    assert not said(it, RUNNING)
    assert len(to_client(it.from_agent(IDLE))) == 1
    assert not said(it, IDLE)


def test_an_agent_that_only_speaks_before_it_is_idle_has_ended_the_turn(it: NewAgent) -> None:
    accepted(it)
    said(it, update("agent_message", messageId="m", content=[text("done")]))
    assert len(to_client(it.from_agent(IDLE))) == 1


def test_an_unknown_state_is_taken_for_work(it: NewAgent) -> None:
    accepted(it)
    said(it, update("state_update", state="_dreaming"))
    assert len(to_client(it.from_agent(IDLE))) == 1


def test_a_turn_that_ends_before_its_prompt_is_accepted_answers_it_then(it: NewAgent) -> None:
    it.from_client(request(2, "session/prompt", sessionId=S, prompt=[text("hi")]))
    assert not said(it, update("user_message", messageId="u", content=[text("hi")]), RUNNING, IDLE)
    (sent,) = to_client(it.from_agent(result(2, {"messageId": "u"})))
    assert sent["result"] == {"stopReason": "end_turn"}


def test_a_prompt_that_is_refused_is_answered_with_the_error(it: NewAgent) -> None:
    it.from_client(request(2, "session/prompt", sessionId=S, prompt=[text("hi")]))
    assert to_client(it.from_agent(failure(2)))[0]["error"]["message"] == "no"
    assert states(said(it, RUNNING, IDLE)) == ["running", "idle"]


def test_the_client_does_not_get_its_own_prompt_again_and_gets_those_of_others(it: NewAgent) -> None:
    it.from_client(request(2, "session/prompt", sessionId=S, prompt=[text("hi")]))
    mine = update("user_message", messageId="u", content=[text("hi")])
    assert not said(it, mine, update("user_message_chunk", messageId="v", content=text("ho")))
    (shown,) = updates(it.from_agent(result(2, {"messageId": "u"})))
    assert (shown["messageId"], shown["content"]) == ("v", text("ho"))
    assert not said(it, update("user_message_chunk", messageId="u", content=text("!")))
    assert len(said(it, update("user_message_chunk", messageId="v", content=text("!")))) == 1


def test_a_history_that_is_sent_again_has_the_clients_own_prompts(it: NewAgent) -> None:
    it.from_client(request(2, "session/prompt", sessionId=S, prompt=[text("hi")]))
    it.from_agent(result(2, {"messageId": "u"}))
    prompt = update("user_message", messageId="u", content=[text("hi")])
    assert not said(it, prompt)
    it.from_client(request(3, "session/load", sessionId=S, cwd="/", mcpServers=[]))
    assert [shown["content"] for shown in said(it, prompt)] == [text("hi")]


def test_at_most_withheld_user_messages_wait_for_the_response_to_a_prompt(it: NewAgent) -> None:
    it.from_client(request(2, "session/prompt", sessionId=S, prompt=[text("hi")]))
    chunk = update("user_message_chunk", messageId="v", content=text("x"))
    assert [len(said(it, chunk)) for _ in range(WITHHELD + 1)] == [0] * WITHHELD + [WITHHELD + 1]


def test_large_user_messages_do_not_wait_for_the_response_to_a_prompt(it: NewAgent) -> None:
    it.from_client(request(2, "session/prompt", sessionId=S, prompt=[text("hi")]))
    chunk = update("user_message_chunk", messageId="v", content=text("x" * (STATE_SIZE // 2)))
    assert [len(said(it, chunk)) for _ in range(2)] == [0, 2]


def test_the_response_of_an_older_draft_accepts_a_prompt_too(it: NewAgent) -> None:
    it.from_client(request(2, "session/prompt", sessionId=S, prompt=[text("hi")]))
    assert not to_client(it.from_agent(result(2, {})))
    said(it, RUNNING)
    assert to_client(it.from_agent(IDLE))[0]["id"] == 2


def test_the_error_that_ends_a_turn_without_a_prompt_is_shown(it: NewAgent) -> None:
    said(it, RUNNING)
    end = update("state_update", state="idle", stopReason="error", error={"code": 1, "message": "full"})
    _, shown = said(it, end)
    assert shown["content"]["text"] == "[acp-gateway: the agent's work has ended with an error: full]"
    said(it, RUNNING)
    _, shown = said(it, update("state_update", state="idle", stopReason="error"))
    assert "it said nothing" in shown["content"]["text"]


WAITS = update("state_update", state="requires_action")


def states(sent: list[Json]) -> list[str]:
    """The states in updates that are nothing else for other clients."""
    assert all(told.keys() == {"sessionUpdate", "_meta"} for told in sent)
    return [told["_meta"]["acp-gateway"]["state"] for told in sent if told["sessionUpdate"] == "session_info_update"]


def test_a_state_that_version_1_has_no_word_for_is_told(it: NewAgent) -> None:
    accepted(it)
    assert states(said(it, RUNNING, WAITS, WAITS, RUNNING, RUNNING)) == ["requires_action", "running"]
    ended, answer = to_client(it.from_agent(IDLE))
    assert states([ended["params"]["update"]]) == ["idle"]
    assert answer["id"] == 2
    # By itself, without a prompt.
    assert states(said(it, RUNNING, IDLE, WAITS, IDLE)) == ["running", "idle", "requires_action", "idle"]


def works_on(state: str, *things: Json) -> bytes:
    return update("state_update", state=state, background=list(things))


def test_work_in_the_background_is_told_when_it_changes(it: NewAgent) -> None:
    thing, other = {"type": "terminal", "terminalId": "x"}, {"type": "_odd", "n": 1}
    accepted(it)
    sent = said(it, RUNNING, works_on("running", thing), works_on("running", thing), works_on("running", thing, other))
    assert [one["_meta"]["acp-gateway"] for one in sent] == [{"background": [thing]}, {"background": [thing, other]}]
    # It may go on after the turn.
    (answer,) = to_client(it.from_agent(works_on("idle", thing, other)))
    assert answer["id"] == 2
    (sent,) = said(it, works_on("running", other))
    assert sent["_meta"]["acp-gateway"] == {"state": "running", "background": [other]}
    # Of a long list, as much as fits; what does not is not told for what was before.
    (sent,) = said(it, works_on("idle", *[other] * 5000))
    assert sent["_meta"]["acp-gateway"]["background"] == [other] * (4094 // 25)
    (sent,) = said(it, works_on("idle", {**other, "x": "x" * 4096}, other))
    assert sent["_meta"]["acp-gateway"] == {"background": []}
    (sent,) = said(it, works_on("idle", other))
    # None and null are nothing.
    assert [one["_meta"]["acp-gateway"] for one in said(it, update("state_update", state="idle", background=None))] == [
        {"background": []}
    ]


def test_a_state_is_told_with_the_title_which_it_replaces(it: NewAgent) -> None:
    said(it, update("session_info_update", title="T", updatedAt="now", x=1))
    said(it, update("session_info_update", title="x" * 5000))
    (sent,) = said(it, WAITS)
    assert sent == {
        "sessionUpdate": "session_info_update",
        "title": "T",
        "updatedAt": "now",
        **own(state="requires_action"),
    }


def test_a_turn_that_was_cut_off_answers_its_prompts(it: NewAgent) -> None:
    accepted(it)
    assert not it.turn_began(S).to_client
    assert not it.turn_runs(S).to_client
    (sent,) = to_client(it.turn_ended(S, b'{"code":-1,"message":"gone"}'))
    assert sent["error"] == {"code": -1, "message": "gone"}
    accepted(it, 3)
    assert to_client(it.turn_ended(S))[0]["result"] == {"stopReason": "end_turn"}


def test_a_session_that_the_client_leaves_answers_its_prompts_as_cancelled(it: NewAgent) -> None:
    accepted(it)
    it.from_client(request(3, "session/prompt", sessionId=S, prompt=[text("hi")]))
    assert to_client(it.forget(S))[0]["result"] == {"stopReason": "cancelled"}
    assert to_client(it.from_agent(result(3, {"messageId": "v"})))[0]["result"] == {"stopReason": "cancelled"}
    assert not it.forget("other").to_client


def test_a_request_cancellation_of_a_running_prompt_cancels_the_turn(it: NewAgent) -> None:
    it.from_client(request(2, "session/prompt", sessionId=S, prompt=[text("hi")]))
    waiting = notification("$/cancel_request", requestId=2)
    assert it.from_client(waiting).to_agent == [waiting]
    cancel = {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": S}}
    # The response was on its way, so the agent has not cancelled the request.
    assert to_agent(it.from_agent(result(2, {"messageId": "u"}))) == [cancel]
    assert to_agent(it.from_client(waiting)) == [cancel]
    it.from_client(request(3, "session/prompt", sessionId=S, prompt=[text("hi")]))
    it.from_client(notification("$/cancel_request", requestId=3))
    assert it.from_agent(failure(3)).to_agent == []
    it.from_client(request(3, "session/prompt", sessionId=S, prompt=[text("hi")]))
    assert it.from_agent(result(3, {"messageId": "v"})).to_agent == []
    without = notification("$/cancel_request")
    assert it.from_client(without).to_agent == [without]


@pytest.mark.parametrize(
    ("response", "methods"),
    [(result(2, {"messageId": "u"}), ["session/cancel"]), (failure(2, -32800), [])],
    ids=["accepted", "refused"],
)
def test_a_cancellation_that_crosses_the_acceptance_of_its_prompt_is_not_lost(
    response: bytes, methods: list[str]
) -> None:
    it = NewAgent()
    it.from_client(request(2, "session/prompt", sessionId=S, prompt=[text("hi")]))
    cancelling = notification("$/cancel_request", requestId=2)
    assert it.from_client(cancelling).to_agent == [cancelling]
    assert [json.loads(sent)["method"] for sent in it.from_agent(response).to_agent] == methods


# Messages


MESSAGES: list[tuple[list[bytes], list[tuple[str, str]]]] = [
    ([update("agent_message", messageId="m", content=[text("a"), text("b")])], [("m", "a"), ("m", "b")]),
    (
        [
            update("agent_message_chunk", messageId="m", content=text("ab")),
            update("agent_message", messageId="m", content=[text("a"), text("bcd"), text("e")]),
            update("agent_message_chunk", messageId="m", content=text("f")),
            update("agent_message", messageId="m", content=[text("abcdef")]),
        ],
        [("m", "ab"), ("m", "cd"), ("m", "e"), ("m", "f")],
    ),
    (
        [
            update("agent_message", messageId="m", content=[text("ab")]),
            update("agent_message", messageId="m", content=[text("ax")]),
            update("agent_message_chunk", messageId="m", content=text("y")),
            update("agent_message", messageId="m", content=None),
            update("agent_message", messageId="m", content=[]),
            update("agent_message", messageId="m", content=[text("z")]),
        ],
        [("m", "ab"), ("m#2", CORRECTED), ("m#2", "ax"), ("m#2", "y"), ("m#3", CLEARED), ("m#3", "z")],
    ),
    ([update("agent_message", messageId="m", _meta={"k": 1}), update("agent_message", messageId="m", content=[])], []),
    (
        [
            update("agent_message", messageId="m", content=[text("\ud83d")]),
            update("agent_message", messageId="m", content=[text("\ud83d\ude00")]),
        ],
        [("m", "\ud83d"), ("m#2", CORRECTED), ("m#2", "\U0001f600")],
    ),
    (
        [
            update("agent_message", messageId="m", content=[text("é")]),
            update("agent_message", messageId="m", content=[text("é€")]),
        ],
        [("m", "é"), ("m", "€")],
    ),
]


@pytest.mark.parametrize(("messages", "shown"), MESSAGES)
@pytest.mark.parametrize("kind", ["user", "agent"])
def test_a_message_update_shows_what_was_added_or_the_whole_again(
    messages: list[bytes], shown: list[tuple[str, str]], kind: str
) -> None:
    sent = said(NewAgent(), *(message.replace(b"agent_message", kind.encode() + b"_message") for message in messages))
    assert [(chunk["messageId"], chunk["content"]["text"]) for chunk in sent] == shown
    assert {chunk["sessionUpdate"] for chunk in sent} <= {f"{kind}_message_chunk"}


def test_a_thought_becomes_chunks_of_a_thought() -> None:
    (sent,) = said(NewAgent(), update("agent_thought", messageId="t", content=[text("hm")]))
    assert sent["sessionUpdate"] == "agent_thought_chunk"


def test_a_block_that_is_not_text_is_compared_as_a_whole() -> None:
    image = {"type": "image", "data": "AA==", "mimeType": "image/png"}
    sent = said(
        NewAgent(),
        update("agent_message", messageId="m", content=[text("a"), image]),
        update("agent_message", messageId="m", content=[text("a"), image, text("b")]),
        update("agent_message", messageId="m", content=[text("a"), image | {"data": "AB=="}]),
    )
    assert [chunk["content"].get("text") for chunk in sent] == ["a", None, "b", CORRECTED, "a", None]


def test_a_chunk_that_is_the_same_in_version_1_is_passed_on_as_it_is(it: NewAgent) -> None:
    for kind in ("agent_message_chunk", "agent_thought_chunk"):
        chunk = update(kind, messageId="m", content=text("x"))
        assert it.from_agent(chunk).to_client[0] is chunk
    assert said(it, update("agent_message_chunk", content=text("y")))[0] == {
        "sessionUpdate": "agent_message_chunk",
        "content": text("y"),
    }


def test_content_of_an_unknown_type_is_named() -> None:
    (sent,) = said(NewAgent(), update("agent_message_chunk", messageId="m", content={"type": "_video"}))
    assert sent["content"] == text("[content of the type _video, which this version cannot show]")


def test_unknown_roles_of_an_audience_are_left_out() -> None:
    block = {"type": "text", "text": "x", "annotations": {"audience": ["user", "_robot"], "priority": 1}}
    (sent,) = said(NewAgent(), update("agent_message_chunk", messageId="m", content=block))
    assert sent["content"]["annotations"] == {"audience": ["user"], "priority": 1}


# Tool calls


def test_the_first_update_of_a_tool_call_creates_it_and_the_next_change_it(it: NewAgent) -> None:
    created, changed, reset = said(
        it,
        update(
            "tool_call_update", toolCallId="t", kind="_dream", status="paused", name="n", capabilities={"cancel": {}}
        ),
        update(
            "tool_call_update", toolCallId="t", title="T", status="completed", rawOutput={"a": 1.10}, _meta={"k": 1}
        ),
        update(
            "tool_call_update",
            toolCallId="t",
            title=None,
            kind=None,
            status=None,
            content=None,
            locations=None,
            rawOutput=None,
            name=None,
        ),
    )
    assert created == {
        "sessionUpdate": "tool_call",
        "toolCallId": "t",
        "title": "n",
        "kind": "other",
        "status": "in_progress",
        "name": "n",
    }
    assert changed == {
        "sessionUpdate": "tool_call_update",
        "toolCallId": "t",
        "title": "T",
        "status": "completed",
        "rawOutput": {"a": 1.10},
        "_meta": {"k": 1},
    }
    assert reset == {
        "sessionUpdate": "tool_call_update",
        "toolCallId": "t",
        "title": "tool call",
        "kind": "other",
        "status": "pending",
        "content": [],
        "locations": [],
    }


def test_a_tool_call_without_id_is_dropped() -> None:
    messages = [
        update("tool_call_update", title="x"),
        update("tool_call_content_chunk", content=content("x")),
        update("tool_call_content_chunk", toolCallId="t"),
        update("terminal_update", command="x"),
        update("terminal_output_chunk", data=""),
    ]
    assert not said(NewAgent(), *messages)


def test_chunks_of_content_send_the_whole_content(it: NewAgent) -> None:
    created, more, replaced = said(
        it,
        update("tool_call_content_chunk", toolCallId="t", content=content("a")),
        update("tool_call_content_chunk", toolCallId="t", content=content("b")),
        update("tool_call_update", toolCallId="t", content=[content("c")]),
    )
    assert (created["sessionUpdate"], created["title"], created["content"]) == (
        "tool_call",
        "tool call",
        [content("a")],
    )
    assert (more["sessionUpdate"], more["content"]) == ("tool_call_update", [content("a"), content("b")])
    assert replaced["content"] == [content("c")]


def test_a_cancelled_tool_call_has_failed_and_says_why(it: NewAgent) -> None:
    said(it, update("tool_call_update", toolCallId="t", content=[content("a")]))
    (sent,) = said(it, update("tool_call_update", toolCallId="t", status="cancelled"))
    assert (sent["status"], sent["content"]) == ("failed", [content("a"), content(CANCELLED)])
    (sent,) = said(it, update("tool_call_update", toolCallId="t", status="in_progress"))
    assert sent["content"] == [content("a")]


def test_tool_content_of_an_unknown_type_is_named_and_that_of_blocks_is_translated() -> None:
    items = [{"type": "_chart"}, {"type": "content", "content": {"type": "_video"}, "_meta": {"k": 1}}]
    (sent,) = said(NewAgent(), update("tool_call_update", toolCallId="t", content=items))
    assert sent["content"][0] == content("[content of the type _chart, which this version cannot show]")
    assert (sent["content"][1]["_meta"], sent["content"][1]["content"]["type"]) == ({"k": 1}, "text")


def test_a_diff_becomes_one_for_each_file() -> None:
    patch = "diff --git /w/a /w/a\n--- /w/a\n+++ /w/a\n@@ -1 +1 @@\n-x\n+y\n"
    item: Json = {
        "type": "diff",
        "changes": [{"operation": "modify", "path": "/w/a"}, {"operation": "delete", "path": "/w/b"}],
        "patch": {"format": "git_patch", "text": patch},
    }
    (sent,) = said(NewAgent(), update("tool_call_update", toolCallId="t", content=[item]))
    assert sent["content"] == [
        {"type": "diff", "path": "/w/a", "oldText": "x\n", "newText": "y\n"},
        content("deleted: /w/b", change=item["changes"][1]),
    ]


def test_content_beyond_content_size_loses_its_beginning_and_says_so(it: NewAgent) -> None:
    large = content("x" * (CONTENT_SIZE // 2))
    said(it, update("tool_call_update", toolCallId="t", content=[content("first"), large]))
    said(it, update("tool_call_content_chunk", toolCallId="t", content=large))
    (sent,) = said(it, update("tool_call_update", toolCallId="t", status="cancelled"))
    assert sent["content"][0] == content(ITEMS_LEFT_OUT)
    assert content("first") not in sent["content"]


def test_content_is_not_repeated_for_each_chunk_under_load_but_before_the_next_other_message(it: NewAgent) -> None:
    chunk = update("tool_call_content_chunk", toolCallId="t", content=content("x" * 1000))
    size = sum(len(sent) for _ in range(200) for sent in it.from_agent(chunk).to_client)
    assert size < FREE_REPEATS + 5 * 200 * 1100
    count = 201
    while said(it, chunk):
        count += 1
    flushed, usage = said(it, update("usage_update", used=1, size=2))
    assert len(flushed["content"]) == count
    assert usage == {"sessionUpdate": "usage_update", "used": 1, "size": 2}
    assert said(it, update("usage_update", used=1, size=2)) == [usage]


def test_content_that_waits_is_not_lost_with_the_message_that_it_comes_before(it: NewAgent) -> None:
    chunk = update("tool_call_content_chunk", toolCallId="t", content=content("x" * 1000))
    count = 1
    while said(it, chunk):
        count += 1
    steps = [{"content": "a", "priority": "low", "status": "pending"}] * (ELEMENTS + 1)
    (flushed,) = said(it, update("plan_update", plan={"type": "items", "planId": "p", "entries": steps}))
    assert len(flushed["content"]) == count


# Terminals


def test_terminal_output_is_text_of_the_tool_call_that_refers_to_it(it: NewAgent) -> None:
    said(it, update("tool_call_update", toolCallId="t", title="T", content=[{"type": "terminal", "terminalId": "x"}]))
    euro = "\x1b[1m€\n".encode()
    sent = said(
        it,
        update("terminal_update", terminalId="x", command="make", cwd="/w"),
        update("terminal_output_chunk", terminalId="x", data=encoded(euro[:5])),
        update("terminal_output_chunk", terminalId="x", data=encoded(euro[5:])),
        update("terminal_update", terminalId="x", output={"data": encoded("new")}),
        update("terminal_output_chunk", terminalId="x", data=encoded("er")),
        update("terminal_update", terminalId="x", exitStatus={"exitCode": 2}),
    )
    x: Json = {"terminalId": "x"}
    ended = x | {"exitStatus": {"exitCode": 2}}
    assert [change["content"] for change in sent] == [
        [content("\x1b[1m", terminal=x)],
        [content("\x1b[1m€\n", terminal=x)],
        [content("new", terminal=x)],
        [content("newer", terminal=x)],
        [content("newer", terminal=ended), content("[exit code 2]", terminalEnd=ended)],
    ]


@pytest.mark.parametrize(
    ("status", "told", "line"),
    [
        ({"exitCode": 0}, {"exitCode": 0}, ""),
        ({"exitCode": None, "signal": "SIGKILL"}, {"signal": "SIGKILL"}, "[signal SIGKILL]"),
        ({"_meta": {"k": 1}}, {}, ""),
        ({"exitCode": None}, {}, ""),
    ],
)
def test_the_end_of_a_terminal_is_told_and_said_in_a_text_if_it_was_not_well(
    status: Json, told: Json, line: str
) -> None:
    it = NewAgent()
    said(it, update("terminal_output_chunk", terminalId="x", data=encoded("a")))
    said(it, update("tool_call_update", toolCallId="t", content=[{"type": "terminal", "terminalId": "x"}]))
    (sent,) = said(it, update("terminal_update", terminalId="x", exitStatus=status))
    ended = {"terminalId": "x", "exitStatus": told}
    assert sent["content"] == [content("a", terminal=ended), *([content(line, terminalEnd=ended)] if line else [])]


def test_a_tool_call_is_made_for_a_terminal_that_is_not_referred_to(it: NewAgent) -> None:
    said(it, update("terminal_update", terminalId="x", command="make"))
    said(it, update("terminal_output_chunk", terminalId="x", data=encoded("a")))
    (sent,) = said(it, update("terminal_update", terminalId="x", exitStatus={"exitCode": 0}))
    assert sent == {
        "sessionUpdate": "tool_call",
        "toolCallId": "acp-gateway-terminal-x",
        "title": "make",
        "kind": "execute",
        "status": "completed",
        "content": [content("a", terminal={"terminalId": "x", "exitStatus": {"exitCode": 0}})],
    }
    said(it, update("terminal_output_chunk", terminalId="y", data=encoded("b")))
    (sent,) = said(it, update("state_update", state="idle"))
    assert (sent["title"], sent["status"]) == ("terminal", "in_progress")


def test_a_terminal_that_a_tool_call_does_not_show_any_more_changes_nothing(it: NewAgent) -> None:
    said(it, update("tool_call_update", toolCallId="t", content=[{"type": "terminal", "terminalId": "x"}]))
    said(it, update("tool_call_update", toolCallId="t", content=[]))
    assert not said(it, update("terminal_output_chunk", terminalId="x", data=encoded("a")))


def test_of_a_terminal_the_last_characters_are_shown(it: NewAgent) -> None:
    said(it, update("tool_call_update", toolCallId="t", content=[{"type": "terminal", "terminalId": "x"}]))
    said(it, update("terminal_output_chunk", terminalId="x", data=encoded("a" * TERMINAL_SIZE)))
    said(it, update("terminal_output_chunk", terminalId="x", data=encoded("b")))
    (sent,) = said(it, update("tool_call_update", toolCallId="t", content=[{"type": "terminal", "terminalId": "x"}]))
    assert sent["content"] == [content(LEFT_OUT + "a" * (TERMINAL_SIZE - 1) + "b", terminal={"terminalId": "x"})]


def test_the_output_of_a_terminal_is_told_as_it_grows_while_the_content_waits(it: NewAgent) -> None:
    said(it, update("tool_call_update", toolCallId="t", content=[{"type": "terminal", "terminalId": "x"}]))
    line = update("terminal_output_chunk", terminalId="x", data=encoded("x" * 99 + "\n"))
    shown, size = "", 0
    for count in range(1, 2001):
        (sent,) = said(it, line)
        size += len(json.dumps(sent))
        if "content" in sent:
            shown = sent["content"][0]["content"]["text"]
        else:
            assert sent.keys() == {"sessionUpdate", "toolCallId", "_meta"}
            told = sent["_meta"]["acp-gateway"]["terminal"]
            assert told["terminalId"] == "x"
            shown += told["data"]
        assert shown.removeprefix(LEFT_OUT)[-TERMINAL_SIZE:] == (("x" * 99 + "\n") * count)[-TERMINAL_SIZE:]
    assert size < FREE_REPEATS + 7 * 100 * 2000
    # The half of a character is told with its other half.
    assert not said(it, update("terminal_output_chunk", terminalId="x", data=encoded(b"\xc3")))
    (sent,) = said(it, update("terminal_output_chunk", terminalId="x", data=encoded(b"\xa9")))
    assert sent["_meta"] == own(terminal={"terminalId": "x", "data": "é"})["_meta"]


def test_output_that_is_replaced_while_the_content_waits_is_told_as_a_whole(it: NewAgent) -> None:
    large = content("x" * FREE_REPEATS)
    said(it, update("tool_call_update", toolCallId="t", content=[large, {"type": "terminal", "terminalId": "x"}]))
    chunk = update("terminal_output_chunk", terminalId="x", data=encoded("before"))
    while "content" in said(it, chunk)[0]:
        pass
    flushed, sent = said(it, update("terminal_update", terminalId="x", output={"data": encoded("after")}))
    assert "content" in flushed
    assert sent["_meta"] == own(terminal={"terminalId": "x", "output": "after"})["_meta"]
    # What waits is sent before the next update of the terminal.
    flushed, cleared = said(it, update("terminal_update", terminalId="x", output=None))
    assert flushed["content"] == [large, content("after", terminal={"terminalId": "x"})]
    assert cleared["_meta"] == own(terminal={"terminalId": "x", "output": ""})["_meta"]


# Plans, and the state of the session


def test_the_plan_that_changed_last_is_shown_and_the_others_are_named(it: NewAgent) -> None:
    entries = [
        {"content": "a", "priority": "_top", "status": "completed"},
        {"content": "b", "priority": "low", "status": "cancelled"},
        {"content": "c", "priority": "low", "status": "_later"},
    ]
    first, second, third, without, empty, none = said(
        it,
        update("plan_update", plan={"type": "items", "planId": "p", "entries": entries}),
        update("plan_update", plan={"type": "markdown", "planId": "q", "content": "# all"}),
        update("plan_update", plan={"type": "_tree", "planId": "r"}),
        update("plan_removed", planId="r"),
        update("plan_removed", planId="q"),
        update("plan_removed", planId="p"),
    )
    shown = [
        {"content": "a", "priority": "medium", "status": "completed"},
        {"content": "b (cancelled)", "priority": "low", "status": "completed"},
        {"content": "c", "priority": "low", "status": "pending"},
    ]
    assert first == {"sessionUpdate": "plan", "entries": shown, **own(plans=["p"], entries=3)}
    assert [entry["content"] for entry in second["entries"]] == ["# all", "plan p: 2 of 3 done"]
    assert second["_meta"] == own(plans=["p", "q"], entries=1)["_meta"]
    assert none["_meta"] == own(plans=[], entries=0)["_meta"]
    assert third["entries"][0]["content"] == "a plan of the type _tree"
    assert [entry["content"] for entry in without["entries"]] == ["# all", "plan p: 2 of 3 done"]
    assert empty["entries"] == shown
    assert none["entries"] == []


def test_commands_and_state_that_both_versions_have(it: NewAgent) -> None:
    commands = [{"type": "command", "name": "c", "description": "d"}]
    (sent,) = said(it, update("available_commands_update", availableCommands=commands))
    assert sent["availableCommands"] == [{"name": "c", "description": "d"}]
    for kind in ("session_info_update", "usage_update", "subagent_update", "_own", "future"):
        message = update(kind, x=1)
        assert it.from_agent(message).to_client[0] is message


def test_notices_and_compaction_for_clients_that_offered_them_and_for_others() -> None:
    notice = update("notice", severity="warning", title="slow", description="very")
    begun = update("compaction_update", compactionId="c", status="in_progress")
    chunk = update("compaction_summary_chunk", compactionId="c", content={"type": "_video"})
    done = update("compaction_update", compactionId="c", status="completed", summary=[text("s")])
    failed = update("compaction_update", compactionId="c", status="failed", error="why")
    shown = said(initialized(), notice, begun, chunk, done, failed)
    assert [message["content"]["text"] for message in shown] == [
        "[warning: slow: very]",
        "[the compaction of the conversation: completed]",
        "[the compaction of the conversation: failed, why]",
    ]
    assert len({message["messageId"] for message in shown}) == 3
    told = {"severity": "warning", "title": "slow", "description": "very"}
    assert [message.get("_meta") for message in shown] == [own(notice=told)["_meta"], None, None]
    passed = said(initialized(session={"notices": {}, "compaction": {}}), notice, begun, chunk, done)
    assert [message["sessionUpdate"] for message in passed] == [
        "notice",
        "compaction_update",
        "compaction_summary_chunk",
        "compaction_update",
    ]
    assert passed[2]["content"]["type"] == "text"


def test_messages_between_sessions_have_content_of_version_1() -> None:
    whole = update("session_message", messageId="m", content=[text("a"), {"type": "_video"}])
    chunk = update("session_message_chunk", messageId="m", content={"type": "_video"})
    unknown = text("[content of the type _video, which this version cannot show]")
    assert [sent["content"] for sent in said(NewAgent(), whole, chunk)] == [[text("a"), unknown], unknown]


# Requests of the agent


OPTIONS = [{"optionId": "x", "name": "X", "kind": "_x"}, {"optionId": "y", "name": "Y", "kind": "allow_once"}]
OLD_OPTIONS = [
    {"optionId": "y", "name": "Y", "kind": "allow_once"},
    {"optionId": "x", "name": "X", "kind": "reject_once"},
]


def asked(it: NewAgent, **params: Json) -> list[Json]:
    return to_client(it.from_agent(request(9, "session/request_permission", sessionId=S, options=OPTIONS, **params)))


def test_a_permission_for_a_tool_call_shows_title_and_description_until_its_next_update(it: NewAgent) -> None:
    said(it, update("tool_call_update", toolCallId="t", title="Run", content=[content("a")]))
    call = {"toolCallId": "t", "status": "paused", "kind": "execute", "rawInput": {"c": 1}, "capabilities": {}}
    changed, question = asked(it, title="Sure?", description="why", subject={"type": "tool_call", "toolCall": call})
    assert changed["params"]["update"]["status"] == "in_progress"
    assert question["params"] == {
        "sessionId": S,
        "options": OLD_OPTIONS,
        "toolCall": {
            "toolCallId": "t",
            "title": "Sure?",
            "status": "in_progress",
            "kind": "execute",
            "rawInput": {"c": 1},
            "content": [content("why"), content("a")],
        },
    }
    (sent,) = said(it, update("tool_call_update", toolCallId="t", status="completed"))
    assert (sent["title"], sent["content"]) == ("Run", [content("a")])
    (sent,) = said(it, update("tool_call_update", toolCallId="t", status="completed"))
    assert "title" not in sent


@pytest.mark.parametrize(
    ("subject", "call"),
    [
        (
            {"type": "command", "command": "ls", "cwd": "/w", "toolCallId": "t"},
            {
                "toolCallId": "t",
                "kind": "execute",
                "rawInput": {"command": "ls", "cwd": "/w"},
                "content": [content("ls\n(in /w)")],
            },
        ),
        ({"type": "_door", "n": 1}, {"kind": "other", "content": [content('{"type":"_door","n":1}')]}),
        (None, {"kind": "other", "content": []}),
        ({"type": "tool_call", "toolCall": {}}, {"kind": "other"}),
    ],
)
def test_a_tool_call_is_made_for_a_permission_without_one(subject: Json, call: Json) -> None:
    (question,) = asked(NewAgent(), title="Sure?", subject=subject)
    (again,) = asked(NewAgent(), title="Sure?", subject=subject)
    made = question["params"]["toolCall"]
    assert (made, made["title"], made["status"]) == (again["params"]["toolCall"], "Sure?", "pending")
    assert call.items() <= made.items()
    assert "toolCallId" in call or made["toolCallId"].startswith("acp-gateway-")


def test_a_permission_request_sends_the_content_that_waits_first(it: NewAgent) -> None:
    chunk = update("tool_call_content_chunk", toolCallId="t", content=content("x" * 1000))
    while it.from_agent(chunk).to_client:
        pass
    flushed, question = asked(it, title="Sure?")
    assert flushed["params"]["update"]["toolCallId"] == "t"
    assert question["method"] == "session/request_permission"


def test_an_unknown_format_in_a_form_is_left_out() -> None:
    properties = {"a": {"type": "string", "format": "_phone"}, "b": {"type": "string", "format": "uri"}}
    form = {"type": "object", "properties": properties}
    params = {"mode": "form", "message": "m", "sessionId": S, "requestedSchema": form}
    (sent,) = to_client(NewAgent().from_agent(request(1, "elicitation/create", **params)))
    assert sent["params"]["requestedSchema"]["properties"] == {"a": {"type": "string"}, "b": properties["b"]}
    same = request(1, "elicitation/create", **(params | {"requestedSchema": {}}))
    assert NewAgent().from_agent(same).to_client[0] is same


def test_files_and_terminals_of_version_1_are_refused() -> None:
    (sent,) = to_agent(NewAgent().from_agent(request(1, "fs/read_text_file", sessionId=S, path="/x")))
    assert sent["error"]["code"] == -32601


@pytest.mark.parametrize(
    "message",
    [
        request(1, "_own/ask"),
        notification("elicitation/complete", elicitationId="e"),
        notification("$/cancel_request", requestId=1),
        result(77, {}),
        failure(77),
    ],
)
def test_a_message_of_the_agent_that_is_the_same_in_both_versions_is_passed_on_as_it_is(message: bytes) -> None:
    assert NewAgent().from_agent(message).to_client[0] is message


def test_responses_to_other_requests_and_errors_are_passed_on_as_they_are(it: NewAgent) -> None:
    it.from_client(request(1, "session/list"))
    listed = result(1, {"sessions": []})
    assert it.from_agent(listed).to_client[0] is listed
    it.from_client(request(2, "session/new", cwd="/", mcpServers=[]))
    refused = failure(2)
    assert it.from_agent(refused).to_client[0] is refused


def test_what_is_not_a_message_of_the_agent_is_dropped() -> None:
    out = NewAgent().from_agent(b"banner")
    assert not out.to_client
    assert not out.to_agent


def test_numbers_and_unknown_members_keep_their_spelling() -> None:
    message = (
        b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","_meta":{"n":1e999},"update":'
        b'{"sessionUpdate":"tool_call_update","toolCallId":"t","rawInput":{"a": 1.10, "a": 2},"x":[1E5]}}}'
    )
    (sent,) = NewAgent().from_agent(message).to_client
    for part in (b'"_meta":{"n":1e999}', b'{"a": 1.10, "a": 2}', b'"x":[1E5]'):
        assert part in sent


def test_a_history_that_is_sent_again_is_shown_again(it: NewAgent) -> None:
    message = update("agent_message", messageId="m", content=[text("a")])
    assert len(said(it, message)) == 1
    assert not said(it, message)
    it.begin_replay(S)
    assert len(said(it, message)) == 1
    it.from_client(request(1, "session/load", sessionId=S, cwd="/", mcpServers=[]))
    assert len(said(it, message)) == 1
    it.turn_boundary(S)


def test_the_oldest_of_many_sessions_is_forgotten(it: NewAgent) -> None:
    first = notification(
        "session/update",
        sessionId="0",
        update=json.loads(update("agent_message", messageId="m", content=[text("a")]))["params"]["update"],
    )
    assert it.from_agent(first).to_client
    assert not it.from_agent(first).to_client
    for number in range(1, SESSIONS + 1):
        it.from_agent(notification("session/update", sessionId=str(number), update={"sessionUpdate": "state_update"}))
    assert it.from_agent(first).to_client


def test_roles_of_version_1_stay() -> None:
    block = {"type": "text", "text": "x", "annotations": {"audience": ["user"]}}
    (sent,) = said(NewAgent(), update("agent_message_chunk", messageId="m", content=block))
    assert sent["content"] == block


def test_user_messages_wait_until_all_prompts_are_accepted(it: NewAgent) -> None:
    for number in (2, 3):
        it.from_client(request(number, "session/prompt", sessionId=S, prompt=[text("hi")]))
    assert not said(it, *(update("user_message", messageId=name, content=[text("hi")]) for name in "uvw"))
    assert not updates(it.from_agent(result(2, {"messageId": "u"})))
    assert [shown["messageId"] for shown in updates(it.from_agent(result(3, {"messageId": "v"})))] == ["w"]


def test_content_of_a_tool_call_that_was_forgotten_is_not_sent(it: NewAgent) -> None:
    chunk = update("tool_call_content_chunk", toolCallId="t", content=content("x" * 1000))
    while it.from_agent(chunk).to_client:
        pass
    it._session(S).memory.drop(Tool, "t")
    assert len(said(it, update("usage_update", used=1, size=2))) == 1


def test_a_permission_for_a_tool_call_may_name_it_alone() -> None:
    _, question = asked(NewAgent(), title="Sure?", subject={"type": "tool_call", "toolCall": {"toolCallId": "t"}})
    assert question["params"]["toolCall"] == {"toolCallId": "t", "title": "Sure?", "content": []}


def test_a_long_subject_is_shown_in_part() -> None:
    (question,) = asked(NewAgent(), title="Sure?", subject={"type": "_long", "x": "y" * 2 * SHOWN_SIZE})
    assert question["params"]["toolCall"]["content"][0]["content"]["text"].endswith("y …")


def test_a_plan_that_changes_again_is_the_last_one() -> None:
    plans = [update("plan_update", plan={"type": "items", "planId": name, "entries": []}) for name in ("p", "q", "p")]
    assert said(NewAgent(), *plans)[-1]["entries"][0]["content"] == "plan q: 0 of 0 done"


def test_the_option_of_the_modes_need_not_be_the_first() -> None:
    other = MODE | {"configId": "o", "category": "thought_level"}
    (sent,) = to_agent(opened(other, MODE).from_client(request(2, "session/set_mode", sessionId=S, modeId="code")))
    assert sent["params"]["configId"] == "m"
