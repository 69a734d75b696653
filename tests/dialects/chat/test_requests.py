"""Dialogues of `/chat`: what a widget sends, and what the agent gets for it."""

import json
from typing import Any

import pytest

from acp_gateway.dialects.chat import requests as chat
from acp_gateway.dialects.chat.requests import ChatCall, Invalid
from acp_gateway.protocol.text.members import Sizes

S = {"sessionId": "s"}
TEXT = {"type": "text", "text": "hi"}
IMAGE = {"type": "image", "data": "AAAA", "mimeType": "image/png"}


def read(kind: str, **members: Any) -> ChatCall:
    return chat.read(json.dumps({"type": kind, **members}).encode())


def invalid(text: bytes | str, sizes: Sizes = Sizes()) -> tuple[int, str, str | None, str | None]:  # noqa: B008
    with pytest.raises(Invalid) as raised:
        chat.read(text if isinstance(text, bytes) else text.encode(errors="surrogatepass"), sizes)
    return raised.value.code, str(raised.value), raised.value.request_type, raised.value.session


@pytest.mark.parametrize(
    ("kind", "members", "method", "params"),
    [
        ("send_message", {**S, "content": "hi"}, "session/prompt", {**S, "prompt": [TEXT]}),
        ("send_message", {**S, "content": [TEXT, IMAGE]}, "session/prompt", {**S, "prompt": [TEXT, IMAGE]}),
        (
            "send_message",
            {**S, "content": "hi", "messageId": "m-1", "more": 1},
            "session/prompt",
            {**S, "prompt": [TEXT], "messageId": "m-1"},
        ),
        ("change_mode", {**S, "modeId": "plan"}, "session/set_mode", {**S, "modeId": "plan"}),
    ],
)
def test_an_event_becomes_the_message_of_acp(kind: str, members: Any, method: str, params: Any) -> None:
    call = read(kind, **members)
    composed = chat.acp_request(call, "s")
    assert (composed.method, json.loads(composed.params)) == (method, params)
    assert (call.session, call.acts) == ("s", True)


@pytest.mark.parametrize(
    "outcome", [{"outcome": "selected", "optionId": "yes"}, {"outcome": "cancelled"}, {"outcome": "new", "n": [1]}]
)
def test_a_permission_response_becomes_the_response_of_acp(outcome: Any) -> None:
    call = read("permission_response", requestId="r-7", outcome=outcome)
    assert json.loads(call.result) == {"outcome": outcome}
    assert (call.session, call.members["requestId"]) == (None, "r-7")


def test_a_request_id_counts_as_number_and_as_text() -> None:
    keys = {read("permission_response", requestId=it, outcome={}).members["requestId"] for it in (7, "7", 7.0)}
    assert keys == {"7"}


def test_sessions_are_opened_with_optional_members() -> None:
    assert read("new_session").members == {}
    assert read("new_session", cwd="/w", agent="a").members == {"cwd": "/w", "agent": "a"}
    assert read("load_session", **S, cwd="/w").members == {**S, "cwd": "/w"}
    assert not read("load_session", **S).acts


def test_content_passes_verbatim_with_numbers_escapes_and_lone_surrogates() -> None:
    block = rb'{"type":"text","text":"\ud83d \u0061 \u2028"},{"n":1.10,"e":1e999,"n":2}'
    call = chat.read(rb'{"type":"send_message","sessionId":"s","content":[' + block + b"]}")
    assert chat.acp_request(call, "s").params == b'{"sessionId":"s","prompt":[' + block + b"]}"
    call = chat.read(rb'{ "content" : "\ud83d \u0061", "sessionId":"s","type":"send_message"}')
    assert chat.acp_request(call, "s").params == rb'{"sessionId":"s","prompt":[{"type":"text","text":"\ud83d \u0061"}]}'


@pytest.mark.parametrize(
    ("text", "code", "why"),
    [
        ("", -32700, "not JSON"),
        ("hello", -32700, "not JSON"),
        ('{"type":"cancel_turn"', -32700, "not JSON"),
        (b'{"type":"\xff"}', -32700, "not UTF-8"),
        ("[" * 100_000, -32700, "nested too deeply"),
        ('{"type":NaN}', -32700, "not JSON"),
        ("[]", -32600, "not an object"),
        ("7", -32600, "not an object"),
        ("{}", -32600, "needs a type"),
        ('{"type":7}', -32600, "needs a type"),
        ('{"type":"cancel_turn","type":"new_session"}', -32600, "'type' is repeated"),
        ('{"type":"cancel_turn","sessionId":"s","SessionId":"t"}', -32600, "'SessionId' is repeated"),
        (json.dumps(dict.fromkeys(map(str, range(1000)))), -32600, "more than 512"),
        ('{"type":"bogus","sessionId":"s"}', -32601, "there is no type 'bogus' here"),
        ('{"type":"session/prompt","id":1}', -32601, "there is no type 'session/prompt' here"),
        ('{"type":"cancel_turn"}', -32602, "cancel_turn needs sessionId"),
        ('{"type":"cancel_turn","sessionId":1}', -32602, "sessionId must be a string"),
        ('{"type":"send_message","sessionId":"s"}', -32602, "send_message needs content"),
        ('{"type":"send_message","sessionId":"s","content":{}}', -32602, "content must be a string or an array"),
        ('{"type":"change_mode","sessionId":"s","modeId":[]}', -32602, "modeId must be a string"),
        ('{"type":"permission_response","requestId":"r","outcome":"yes"}', -32602, "outcome must be an object"),
        ('{"type":"permission_response","requestId":{},"outcome":{}}', -32602, "requestId must be a string or"),
    ],
)
def test_what_is_not_an_event_is_refused_with_the_reason(text: bytes | str, code: int, why: str) -> None:
    found = invalid(text)
    assert found[0] == code
    assert why in found[1]
    assert len(found[1]) < 200


def test_a_refusal_names_the_type_and_the_session_of_the_event() -> None:
    assert invalid('{"type":"send_message","sessionId":"s"}')[2:] == ("send_message", "s")
    assert invalid('{"type":"bogus","sessionId":"s"}')[2:] == ("bogus", "s")
    assert invalid(json.dumps({"type": "x" * 10_000}))[2] == "x" * 80


def test_only_a_message_may_be_large() -> None:
    sizes = Sizes(request=200, decision=150)
    assert chat.read(json.dumps({"type": "send_message", **S, "content": "x" * 1000}).encode(), sizes).session == "s"
    large = json.dumps({"type": "load_session", **S, "more": "x" * 200})
    assert "load_session has at most session_request_size (200) bytes" in invalid(large, sizes)[1]
    large = json.dumps({"type": "permission_response", "requestId": "r", "outcome": {"_meta": "x" * 150}})
    assert "permission_response has at most decision_size (150) bytes" in invalid(large, sizes)[1]
