"""Dialogues of `/ws`: what a browser sends, and what the agent gets for it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.gateway.session_api import output as api_output
from acp_gateway.gateway.session_api import requests as api
from acp_gateway.gateway.session_api.requests import Answer, Call, Refused
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.text.members import Sizes

SESSION = {"sessionId": "s"}


def sent(method: str, params: Any = None, message_id: Any = 1) -> bytes:
    """A request of a browser."""
    return json.dumps({"jsonrpc": "2.0", "id": message_id, "method": method, "params": params}).encode()


def called(method: str, params: Any = None) -> Call:
    call = api.read(sent(method, params))
    assert isinstance(call, Call)
    return call


def answered(text: bytes) -> Answer:
    answer = api.read(text)
    assert isinstance(answer, Answer)
    return answer


def refused(text: bytes) -> Any:
    """The response to a text that is refused."""
    with pytest.raises(Refused) as caught:
        api.read(text)
    return None if caught.value.reply is None else json.loads(caught.value.reply)


def from_agent(**message: Any) -> jsonrpc.Message:
    return jsonrpc.parse(json.dumps({"jsonrpc": "2.0", **message}).encode())


FITTING: dict[str, Any] = {
    "gateway/info": {},
    "gateway/machine": {},
    "gateway/usage": {"by": "session", "since": "2026-11-22", "nodes": True},
    "agents/list": None,
    "agents/sessions": {"agentType": "demo", "cursor": "next"},
    "session/list": {"archived": True, "status": ["running"], "watch": True},
    "session/new": {"agentType": "demo", "cwd": "/src", "title": "Mend it"},
    "session/get": {**SESSION, "since": 3, "epoch": "e", "before": 9, "limit": 2},
    "session/unsubscribe": SESSION,
    "session/prompt": {**SESSION, "prompt": [{"type": "text", "text": "hello"}], "queue": {"at": "06:00"}},
    "session/steer": {**SESSION, "prompt": [{"type": "text", "text": "left"}]},
    "session/respond": {**SESSION, "requestId": 7, "response": {"outcome": {"outcome": "cancelled"}}},
    "session/rules": {**SESSION, "requestId": "7"},
    "rules/try": {"command": "git push", "cwd": "/srv", "agentType": "demo"},
    "session/cancel": {**SESSION, "seq": 3, "epoch": "e"},
    "session/queue": {**SESSION, "promptId": "p", "action": "edit", "text": "x", "before": "q"},
    "session/archive": SESSION,
    "session/delete": SESSION,
    "session/remove_worktree": SESSION,
    "session/set_mode": {**SESSION, "modeId": "plan"},
    "session/set_model": {**SESSION, "modelId": "large"},
    "session/set_config_option": {**SESSION, "configId": "effort", "value": "high"},
    "session/share": {**SESSION, "observe": True},
    "session/search": {"words": "by zero", **SESSION, "before": 9, "limit": 5},
    "session/export": {**SESSION, "format": "json", "redact": True},
    "session/fork": SESSION,
    "session/set_title": {**SESSION, "title": "Mend it"},
    "session/last": {"sessionIds": ["s", "t"]},
    "files/list": {**SESSION, "query": "src/ma", "limit": 10},
    "session/changes": {**SESSION, "mark": 3},
    "session/undo": {**SESSION, "mark": 3, "path": "a.txt", "old": "1", "new": "2", "lines": [1, 2, 3, 4]},
    "files/folder": {**SESSION, "path": "plots"},
    "files/stat": {**SESSION, "path": "plots/loss.png"},
    "files/read": {**SESSION, "path": "plots/loss.png", "offset": 3, "length": 9},
    "files/create": {**SESSION, "path": "new.txt", "size": 4, "overwrite": True},
    "files/append": {**SESSION, "upload": "u", "offset": 0, "data": "ZGF0YQ=="},
    "files/finish": {**SESSION, "upload": "u"},
    "ports/list": SESSION,
    "ports/preview": {"port": 6006, **SESSION},
    "push/get": {},
    "push/subscribe": {"endpoint": "e", "p256dh": "p", "auth": "a", "quiet": {"start": 1, "end": 2}, "session": "s"},
    "push/unsubscribe": {},
    "push/test": {},
}
"""Parameters that fit, for each method."""

ACTS = {
    *("session/new", "session/prompt", "session/respond", "session/cancel", "session/archive", "session/delete"),
    *("session/set_mode", "session/set_model", "session/set_config_option", "session/share", "files/list"),
    *("session/changes", "session/undo", "session/remove_worktree"),
    "agents/sessions",
    *("push/get", "push/subscribe", "push/unsubscribe", "push/test", "session/set_title", "session/fork"),
    *("session/queue", "session/steer", "session/rules", "rules/try"),
    *("files/create", "files/append", "files/finish"),
}


# From the browser


def test_the_tables_name_the_same_methods() -> None:
    assert FITTING.keys() == api.METHODS.keys()
    assert {name for name, method in api.METHODS.items() if method.acts} == ACTS


@pytest.mark.parametrize("method", [name for name in FITTING if name != "session/respond"])
def test_a_request_is_read_with_its_members(method: str) -> None:
    call = called(method, FITTING[method])
    members = {name: json.loads(it) if isinstance(it, bytes) else it for name, it in call.members.items()}
    expected = FITTING[method] or {}
    assert json.loads(json.dumps(members)) == expected
    assert (call.method, call.session, call.acts) == (method, expected.get("sessionId"), method in ACTS)
    assert json.loads(call.result() or b"") == {"jsonrpc": "2.0", "id": 1, "result": {"success": True}}


def test_last_lines_are_told_of_a_hundred_sessions_at_most() -> None:
    assert len(called("session/last", {"sessionIds": ["s"] * 100}).members["sessionIds"]) == 100
    assert refused(sent("session/last", {"sessionIds": ["s"] * 101}))["error"]["code"] == jsonrpc.INVALID_PARAMS


def test_session_sync_is_session_get() -> None:
    assert called("session/sync", SESSION).method == "session/get"


@pytest.mark.parametrize(
    ("method", "params", "acp", "expected"),
    [
        (
            "session/prompt",
            {"prompt": [{"type": "text", "text": "a"}], "sessionId": "s", "more": 1},
            "session/prompt",
            {"sessionId": "s", "prompt": [{"type": "text", "text": "a"}]},
        ),
        ("session/delete", {**SESSION, "more": 1}, "session/delete", SESSION),
        ("session/set_mode", {**SESSION, "modeId": "m"}, "session/set_mode", {**SESSION, "modeId": "m"}),
        ("session/set_model", {**SESSION, "modelId": "m"}, "session/set_model", {**SESSION, "modelId": "m"}),
        (
            "session/set_config_option",
            {**SESSION, "configId": "c", "value": True, "type": "boolean"},
            "session/set_config_option",
            {**SESSION, "configId": "c", "value": True, "type": "boolean"},
        ),
    ],
)
def test_a_request_becomes_the_message_of_acp(method: str, params: Any, acp: str, expected: Any) -> None:
    composed = api.acp_request(called(method, params), "s")
    assert (composed.method, json.loads(composed.params)) == (acp, expected)


@pytest.mark.parametrize(
    ("method", "more"),
    [("session/prompt", {"prompt": []}), ("session/set_mode", {"modeId": "gpu1/s"}), ("session/delete", {})],
)
def test_the_agent_gets_the_id_that_the_session_has_there(method: str, more: Any) -> None:
    composed = api.acp_request(called(method, {**more, "sessionId": "gpu1/s"}), "s")
    assert json.loads(composed.params) == {**more, "sessionId": "s"}


def test_a_prompt_passes_verbatim_with_numbers_escapes_and_lone_surrogates() -> None:
    prompt = rb'[{"type":"text","text":"\ud83d \u0061 \u2028"},{"n":1.10,"e":1e999,"n":2}]'
    call = api.read(b'{"id":1,"method":"session/prompt","params":{"sessionId":"s","prompt":' + prompt + b"}}")
    assert isinstance(call, Call)
    assert api.acp_request(call, "s").params == b'{"sessionId":"s","prompt":' + prompt + b"}"


def test_a_notification_is_handled_without_a_response() -> None:
    call = api.read(b'{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s"}}')
    assert isinstance(call, Call)
    assert (call.id, call.result(), call.error(1, ""), call.failure(from_agent(id=1, error={}))) == (None,) * 4


@pytest.mark.parametrize("request_id", [7, "7", 7.0])
def test_a_request_id_counts_as_number_and_as_digits(request_id: Any) -> None:
    result = {"outcome": {"outcome": "selected", "optionId": "yes"}}
    said = answered(sent("session/respond", {**SESSION, "requestId": request_id, "response": result}))
    raw = answered(json.dumps({"jsonrpc": "2.0", "id": request_id, "result": result}).encode())
    for answer in (said, raw):
        assert answer.request == "7"
        assert (json.loads(answer.result or b""), answer.error) == (result, None)
    assert said.call is not None
    assert (said.call.session, raw.call) == ("s", None)


def test_a_response_with_an_error_is_passed_on_as_one() -> None:
    answer = answered(b'{"jsonrpc":"2.0","id":"12","error":{"code":-32601,"message":"no"}}')
    assert (answer.result, answer.error) == (None, b'{"code":-32601,"message":"no"}')


def test_an_outcome_may_stand_without_the_object_around_it() -> None:
    flat = {"outcome": "selected", "optionId": "yes"}
    answer = answered(sent("session/respond", {**SESSION, "requestId": 1, "response": flat}))
    assert json.loads(answer.result or b"") == {"outcome": flat}


@pytest.mark.parametrize(
    ("text", "code", "message_id"),
    [
        (b"", -32700, None),
        (b"{", -32700, None),
        (b'\xff{"id":1}', -32700, None),
        (b"[" * 100_000, -32700, None),
        (b"7", -32600, None),
        (b"[]", -32600, None),
        (b'[{"id":1,"method":"session/list"}]', -32600, None),
        (b'{"id":1}', -32600, None),
        (b'{"id":{},"method":"session/list"}', -32600, None),
        (b'{"id":1,"method":7}', -32600, None),
        (b'{"id":1,"method":"session/list","METHOD":"session/get"}', -32600, None),
        (b'{"id":1,"method":"session/list","method":"session/get"}', -32600, 1),
        (b'{"id":1,"id":2,"method":"session/list"}', -32600, None),
        (b'{"id":"%b","method":"session/list"}' % (b"x" * 2000), -32600, None),
        (b'{"id":null,"result":{}}', -32600, None),
        (sent("session/nothing"), -32601, 1),
        (sent("session/load", SESSION), -32601, 1),
        (sent("initialize", {}), -32601, 1),
        (sent("session/get"), -32602, 1),
        (sent("session/get", []), -32602, 1),
        (sent("session/get", "s"), -32602, 1),
        (sent("session/get", {"sessionId": None}), -32602, 1),
        (sent("session/get", {"sessionId": 7}), -32602, 1),
        (sent("session/get", {"sessionId": "s" * 1025}), -32602, 1),
        (sent("session/get", {**SESSION, "since": -1}), -32602, 1),
        (sent("session/get", {**SESSION, "since": 1.5}), -32602, 1),
        (sent("session/get", {**SESSION, "since": 10**20}), -32602, 1),
        (sent("session/get", {**SESSION, "since": "3"}), -32602, 1),
        (sent("session/get", {**SESSION, **{f"m{number}": 1 for number in range(100)}}), -32602, 1),
        (sent("session/list", {"archived": 1}), -32602, 1),
        (sent("session/list", {"status": "running"}), -32602, 1),
        (sent("session/list", {"status": ["running"] * 1000}), -32602, 1),
        (sent("session/list", {"status": [1]}), -32602, 1),
        (sent("session/prompt", SESSION), -32602, 1),
        (sent("session/prompt", {**SESSION, "prompt": "hello"}), -32602, 1),
        (sent("session/respond", {**SESSION, "response": {}}), -32602, 1),
        (sent("session/respond", {**SESSION, "requestId": [], "response": {}}), -32602, 1),
        (sent("session/respond", {**SESSION, "requestId": "x" * 2000, "response": {}}), -32602, 1),
        (sent("session/respond", {**SESSION, "requestId": 1, "response": "yes"}), -32602, 1),
        (sent("files/list", {**SESSION, "query": "x" * 5000}), -32602, 1),
    ],
)
def test_a_text_that_is_not_a_request_is_refused(text: bytes, code: int, message_id: Any) -> None:
    reply = refused(text)
    assert (reply["error"]["code"], reply["id"]) == (code, message_id)


@pytest.mark.parametrize("method", [name for name, params in FITTING.items() if params])
def test_a_missing_member_is_named(method: str) -> None:
    for name, member in api.METHODS[method].members.items():
        if member.required:
            rest = {key: value for key, value in FITTING[method].items() if key != name}
            assert refused(sent(method, rest))["error"] == {"code": -32602, "message": f"{method} needs {name}"}


def test_what_is_looked_into_is_bounded_and_a_prompt_is_not() -> None:
    sizes = Sizes(request=200, decision=150)
    assert isinstance(api.read(sent("session/prompt", {**SESSION, "prompt": ["x" * 500]}), sizes), Call)
    for text, limit in (
        (sent("session/set_mode", {**SESSION, "modeId": "x" * 200}), "session_request_size (200)"),
        (sent("session/respond", {**SESSION, "requestId": 1, "response": {"a": "x" * 100}}), "decision_size (150)"),
        (json.dumps({"id": 1, "result": "x" * 200}).encode(), "decision_size (150)"),
    ):
        with pytest.raises(Refused) as caught:
            api.read(text, sizes)
        assert limit in json.loads(caught.value.reply or b"")["error"]["message"]


def test_a_notification_that_is_refused_gets_no_response() -> None:
    assert refused(b'{"method":"session/nothing"}') is None
    assert refused(b'{"method":"session/cancel","params":{}}') is None


@pytest.mark.parametrize(("code", "expected"), [(-32002, -32602), (-32002.0, -32602), (-32603, -32603), (403, 403)])
def test_an_error_of_acp_keeps_its_words_and_data(code: float, expected: int) -> None:
    failed = from_agent(id=5, error={"code": code, "message": "no", "data": {"reason": "x"}})
    reply = json.loads(called("session/list").failure(failed) or b"")
    assert reply == {"jsonrpc": "2.0", "id": 1, "error": {"code": expected, "message": "no", "data": {"reason": "x"}}}


# The document


DOCUMENT = (Path(__file__).parents[3] / "docs/web-protocol.md").read_text(encoding="utf-8")


def rows(heading: str) -> set[str]:
    """The methods that the first column of the tables below a heading names."""
    part = DOCUMENT.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (.*?) \|", part, re.MULTILINE)
    return {word for cell in cells for word in re.findall(r"`([a-z]+/[a-z_]+)`", cell)}


def test_the_document_names_each_call_and_no_other() -> None:
    assert rows("Calls") == {*api.METHODS, *api.ALIASES}


def test_the_document_names_each_notification_and_no_other() -> None:
    assert rows("Notifications") == set(api_output.NOTIFICATIONS)


def test_the_document_names_the_members_of_each_call() -> None:
    calls = DOCUMENT.partition("## Calls\n")[2].partition("\n## ")[0]
    for row in re.findall(r"^\| `([a-z]+/[a-z_]+)`.*? \| (.*?) ?\|", calls, re.MULTILINE):
        if row[0] in api.METHODS:
            members = api.METHODS[row[0]].members
            named = {name: not optional for name, optional in re.findall(r"(\w+)(\??)", row[1])}
            assert named == {name: member.required for name, member in members.items()}, row
