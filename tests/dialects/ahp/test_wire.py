"""The messages of the Agent Host Protocol, and the names of its channels."""

import json
from typing import Any

import pytest

from acp_gateway.dialects.ahp import wire
from acp_gateway.dialects.ahp.chat_tree import ChatTree
from acp_gateway.dialects.ahp.wire import CLIENT_VALUES, Envelopes, Refused
from tests.dialects.ahp.folding import steps


@pytest.mark.parametrize(
    ("offered", "spoken"),
    [
        (["1.0.0", "0.9.0"], "1.0.0"),
        (["0.9.0", "0.7.0", "0.6.0"], "0.9.0"),
        (["2.0.0", "1.4.2"], "1.4.2"),
        (["0.10.0", "0.8.9", "0.9.3"], "0.9.3"),
        (["0.10.0", "11.0.0", "1.0", "1.0.0-rc.1", "x1.0.0", 1, None, "1.0.0\n"], None),
        ([], None),
    ],
)
def test_the_first_offered_version_that_is_spoken_is_chosen(offered: list[object], spoken: str | None) -> None:
    assert wire.negotiate(offered) == spoken


@pytest.mark.parametrize("name", ["demo-1", "~odd", "a/b c", "é", "\ud800", "/etc", "%2F", ".."])
def test_a_session_and_its_chat_have_one_uri_that_leads_back(name: str) -> None:
    uri = wire.session_uri("demo", name)
    assert wire.SESSION_URI.fullmatch(uri)
    assert wire.session_named(uri) == name
    assert wire.session_of(wire.chat_uri(uri)) == wire.session_of(uri) == uri


def test_the_uri_of_a_chat_is_the_one_that_vs_code_derives() -> None:
    assert wire.chat_uri("demo:/demo-3860-1") == "ahp-chat://default/ZGVtbzovZGVtby0zODYwLTE"


@pytest.mark.parametrize(
    "channel", ["ahp-root://", "demo:/", "Demo:/a", "demo:/a/b", "ahp-chat://default/!!", "ahp-chat://default/ZQ=="]
)
def test_other_channels_are_of_no_session(channel: str) -> None:
    assert wire.session_of(channel) is None


def test_agents_get_schemes_of_their_own_that_stay() -> None:
    names = wire.provider_names(["Claude", "claude", "9lives", "a_b", "file"])
    assert names == {"Claude": "claude", "claude": "claude-2", "9lives": "a-9lives", "a_b": "a-b", "file": "file-2"}
    assert wire.provider_names(["claude", "new"], names) == names | {"new": "new"}


def _request(params: Any = {}, **more: Any) -> bytes:  # noqa: B006 - never changed.
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": params, **more}).encode()


def test_a_request_is_read_with_its_params_and_answered_under_its_id() -> None:
    call = wire.read(_request({"channel": "demo:/a"}), 1000)
    assert call is not None
    assert (call.method, call.channel) == ("ping", "demo:/a")
    assert json.loads(call.result(None) or b"") == {"jsonrpc": "2.0", "id": 1, "result": None}
    assert wire.read(b'{"id":1,"result":null}', 1000) is None


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"[]", -32600),
        (b"{", -32700),
        (_request([]), -32602),
        (_request(id="x" * 2000), -32600),
        (_request({"a": "x" * 2000}), -32602),
        (b'{"id":1,"method":"a","params":{"x":1},"params":{}}', -32600),
    ],
)
def test_what_is_not_a_request_is_answered_by_an_error(text: bytes, code: int) -> None:
    with pytest.raises(Refused) as refused:
        wire.read(text, 1000)
    assert json.loads(refused.value.reply or b"")["error"]["code"] == code


def test_a_notification_that_is_refused_gets_no_response_and_may_be_large() -> None:
    with pytest.raises(Refused) as refused:
        wire.read(b'{"method":"a","params":1}', 1000)
    assert refused.value.reply is None
    assert wire.read(b'{"method":"a","params":{"x":"%b"}}' % (b"x" * 2000), 1000) is not None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{"a":[1,"\\ud800"]}', {"a": [1, "\ud800"]}),
        (b'["a,b,c,d","\\",\\",",{}]', ["a,b,c,d", '",",', {}]),
        (b"[1,2,3]", [1, 2, 3]),
        (b"[1,2,3,4]", "many"),
        (b'{"a":{"a,b":1,"b":["c","d",1]}}', "many"),
        (b"", None),
        (b"[", None),
        (b"[" * 100_000 + b"]" * 100_000, None),
    ],
)
def test_a_value_of_an_agent_is_read_unless_it_has_many_values(text: bytes, value: Any) -> None:
    assert wire.value_of(text, 3, "many") == value


def test_a_megabyte_of_short_values_of_a_client_is_refused_and_fewer_take_few_steps() -> None:
    with pytest.raises(Refused) as refused:
        wire.read(_request({"action": [{}] * 350_000}), 2_000_000)
    assert str(CLIENT_VALUES) in json.loads(refused.value.reply or b"")["error"]["message"]
    message = {"text": "x", "odd": [[]] * (CLIENT_VALUES - 100)}
    action = {"type": "chat/turnStarted", "turnId": "t1", "startedAt": "", "message": message}
    text, tree = _request({"action": action}), ChatTree({"status": 1})

    def take() -> None:
        call = wire.read(text, 2_000_000)
        assert call is not None
        assert tree.apply(call.params["action"])

    assert steps(take) < 10 * CLIENT_VALUES


def test_envelopes_are_numbered_and_the_latest_stay_within_their_bytes() -> None:
    envelopes = Envelopes("client", 400)
    action = {"type": "chat/delta", "content": "x"}
    first = json.loads(envelopes.add("demo:/a", action, 7))["params"]
    assert first == {
        "channel": "demo:/a",
        "action": action,
        "serverSeq": 1,
        "origin": {"clientId": "client", "clientSeq": 7},
    }
    assert "origin" not in json.loads(envelopes.add("demo:/a", action))["params"]
    assert [json.loads(it)["serverSeq"] for it in envelopes.since(1) or []] == [2]
    assert envelopes.since(2) == []
    for _ in range(20):
        envelopes.add("demo:/a", action)
    assert envelopes.size <= 400
    assert envelopes.since(1) is None
    assert envelopes.since(23) is None
    assert envelopes.since("22") is None
    assert [json.loads(it)["serverSeq"] for it in envelopes.since(20) or []] == [21, 22]
    envelopes.forget()
    assert (envelopes.since(21), envelopes.since(22), envelopes.size) == (None, [], 0)


def test_a_rejection_has_no_number_of_its_own() -> None:
    envelopes = Envelopes("client", 400)
    envelopes.add("demo:/a", {"type": "chat/delta"})
    told = json.loads(envelopes.rejection("demo:/a", {"type": "x"}, 3, "no"))["params"]
    assert (told["serverSeq"], told["rejectionReason"], told["origin"]["clientSeq"]) == (1, "no", 3)
    assert envelopes.last == 1
    assert envelopes.since(0) is not None
    assert len(envelopes.since(0) or []) == 1
