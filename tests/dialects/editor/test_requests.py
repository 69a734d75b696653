"""Bodies of an editor as they are read, and the ACP messages that are composed for it."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.dialects.editor import requests as editor
from acp_gateway.dialects.editor.requests import (
    BadBody,
    GetSession,
    InitSession,
    LogEntry,
    SendMessage,
    cancellation,
    read,
    read_respond,
)

BODY: dict[str, Any] = {"provider": {"id": "demo"}, "message": "hi", "composerId": "c"}


def send(**more: Any) -> SendMessage:
    return read(json.dumps({**BODY, **more}).encode(), SendMessage)


def test_a_message_has_defaults_where_the_editor_may_leave_something_out() -> None:
    message = send()
    assert (message.provider.id, message.message, message.composer_id) == ("demo", "hi", "c")
    assert (message.stream, message.mode_id, message.cwd, message.provider.brings_command) == (False, None, None, False)


def test_a_message_may_ask_for_a_mode_and_a_directory() -> None:
    message = send(stream=True, modeId="plan", cwd="/srv", unknown=[1])
    assert (message.stream, message.mode_id, message.cwd) == (True, "plan", "/srv")


@pytest.mark.parametrize(
    ("text", "read_as"),
    [
        ("\ud83d", "\ufffd"),
        ("a\ude00b", "a\ufffdb"),
        ("\ud83d\ude00", "\U0001f600"),
        ("\\ud83d", "\\ud83d"),
        ("\ud7ff\ue000", "\ud7ff\ue000"),
    ],
)
def test_half_of_a_character_in_a_message_is_replaced_and_whole_ones_stay(text: str, read_as: str) -> None:
    body = json.dumps({**BODY, "message": text, "provider": {"id": "demo", "command": text}})
    message = read(body.encode(), SendMessage)
    assert (message.message, message.provider.brings_command) == (read_as, True)
    decision = json.dumps({"requestId": "7", "outcome": {"outcome": "selected", "optionId": text}})
    assert json.loads(read_respond(decision.encode()).result)["outcome"]["optionId"] == read_as


@pytest.mark.parametrize(
    ("more", "brings"),
    [
        ({"command": "sh"}, True),
        ({"command": ["sh"]}, True),
        ({"args": ["-c", "id"]}, True),
        ({"env": {"PATH": "/tmp"}}, True),
        ({"command": ""}, True),
        ({"command": None, "args": None, "env": None}, False),
        ({"name": "Demo"}, False),
    ],
)
def test_a_command_of_a_provider_is_noticed_whatever_its_type(more: dict[str, Any], brings: bool) -> None:
    assert send(provider={"id": "demo", **more}).provider.brings_command is brings


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff", "not UTF-8 at byte 0"),
        (b'{"provider":{"id":"demo","command":"\xff"},"message":"hi","composerId":"c"}', "not UTF-8 at byte"),
        (b"[]", "Expected `object`, got `array`"),
        (b"7", "Expected `object`, got `int`"),
        (b"null", "Expected `object`, got `null`"),
        (b"{}", "missing required field `provider`"),
        (json.dumps({**BODY, "provider": "demo"}).encode(), "Expected `object`, got `str` - at `$.provider`"),
        (json.dumps({**BODY, "provider": {}}).encode(), "missing required field `id`"),
        (json.dumps({**BODY, "provider": {"id": ""}}).encode(), "length >= 1"),
        (json.dumps({**BODY, "provider": {"id": "x" * 65}}).encode(), "length <= 64"),
        (json.dumps({**BODY, "provider": {"id": 7}}).encode(), "Expected `str`, got `int`"),
        (json.dumps({**BODY, "message": None}).encode(), "Expected `str`, got `null` - at `$.message`"),
        (json.dumps({**BODY, "message": {"text": "hi"}}).encode(), "Expected `str`, got `object`"),
        (json.dumps({**BODY, "composerId": ""}).encode(), "length >= 1"),
        (json.dumps({**BODY, "composerId": "x" * 257}).encode(), "length <= 256"),
        (json.dumps({**BODY, "composerId": 7}).encode(), "Expected `str`, got `int`"),
        (json.dumps({**BODY, "stream": "yes"}).encode(), "Expected `bool`, got `str`"),
        (json.dumps({**BODY, "modeId": 1}).encode(), "Expected `str | null`, got `int`"),
        (json.dumps({**BODY, "cwd": "x" * 4097}).encode(), "length <= 4096"),
        (json.dumps(BODY)[:-1].encode() + b',"message":"no"}', "a member is repeated"),
        (json.dumps({**BODY, "Message": "no"}).encode(), "a member is repeated"),
        (json.dumps({**BODY, **{str(number): 0 for number in range(510)}}).encode(), "at most 512 members"),
        (b'{"message":"\\ud83d', "not JSON"),
        (b'{"unknown":"\\ud83d","n":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"message":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "Expected `str`, got `array`"),
        (b'{"unknown":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    ],
)
def test_a_body_that_is_not_a_message_is_refused_with_the_place(body: bytes, why: str) -> None:
    with pytest.raises(BadBody) as caught:
        read(body, SendMessage)
    assert why in str(caught.value)


def test_no_refusal_repeats_what_a_body_says() -> None:
    with pytest.raises(BadBody) as caught:
        read(json.dumps({**BODY, "stream": "a secret", "provider": {"id": "demo", "env": "x"}}).encode(), SendMessage)
    assert "secret" not in str(caught.value)


HALVES = st.lists(
    st.sampled_from([*'\\ud8bcDEf03"n/', "\\ud83d", "\\uDE00", "\ud83d", "\ude00", "\U0001f600", "a"]), max_size=12
)


@given(HALVES.map("".join))
def test_only_halves_of_characters_are_replaced(text: str) -> None:
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert send(message=text).message == whole


def test_a_body_with_half_of_a_character_takes_no_more_memory_than_a_few_copies_of_it() -> None:
    body = json.dumps({**BODY, "message": "\ud83d", "unknown": [[]] * 500_000}).encode()
    tracemalloc.start()
    try:
        assert read(body, SendMessage).message == "\ufffd"
        assert tracemalloc.get_traced_memory()[1] < 5 * len(body)
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=80) | st.recursive(st.none() | st.text(), st.lists).map(lambda it: json.dumps(it).encode()))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    for kind in (SendMessage, InitSession, GetSession, LogEntry):
        try:
            assert isinstance(read(body, kind), kind)
        except BadBody:
            pass
    try:
        read_respond(body)
    except BadBody:
        pass


def test_a_log_entry_may_be_empty() -> None:
    assert (read(b"{}", LogEntry).level, read(b'{"level":"warn","message":"m"}', LogEntry).message) == ("info", "m")


@pytest.mark.parametrize(("raw", "key"), [('"7"', "7"), ("7", "7"), ('"a"', "a")])
def test_the_id_of_a_permission_may_be_a_number_of_its_digits(raw: str, key: str) -> None:
    decision = read_respond(b'{"requestId":%b,"outcome":{"outcome":"selected","optionId":"yes"}}' % raw.encode())
    assert decision.key == key
    assert json.loads(decision.result) == {"outcome": {"outcome": "selected", "optionId": "yes"}}


@pytest.mark.parametrize(
    "body",
    [
        '{"requestId":"7"}',
        '{"outcome":{}}',
        '{"requestId":null,"outcome":{"outcome":"cancelled"}}',
        '{"requestId":[7],"outcome":{"outcome":"cancelled"}}',
        '{"requestId":"' + "7" * 100 + '","outcome":{"outcome":"cancelled"}}',
        '{"requestId":"7","outcome":"selected"}',
        '{"requestId":"7","outcome":[]}',
        '{"requestId":"7","outcome":null}',
    ],
)
def test_a_decision_needs_a_request_and_an_outcome(body: str) -> None:
    with pytest.raises(BadBody):
        read_respond(body.encode())


@pytest.mark.parametrize(
    ("composed", "message"),
    [
        (editor.prompt("s", "hi"), {"sessionId": "s", "prompt": [{"type": "text", "text": "hi"}]}),
        (editor.set_mode("s", "plan"), {"sessionId": "s", "modeId": "plan"}),
        (editor.new_session("/srv"), {"cwd": "/srv", "mcpServers": []}),
    ],
)
def test_the_params_of_acp(composed: bytes, message: dict[str, Any]) -> None:
    assert json.loads(composed) == message


def test_a_prompt_that_waits_is_taken_back_alone_and_one_that_runs_ends_its_turn() -> None:
    method, params = cancellation("s", 7, runs=False)
    assert (method, json.loads(params)) == ("$/cancel_request", {"requestId": 7})
    method, params = cancellation("s", 7, runs=True)
    meant = {"acp-gateway": {"prompts": [7]}}
    assert (method, json.loads(params)) == ("session/cancel", {"sessionId": "s", "_meta": meant})
