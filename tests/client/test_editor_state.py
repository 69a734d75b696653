"""Open requests of an editor, and the methods that it may not use."""

import json

import pytest

from tests.client.dialogue import Dialogue, error, request, result


@pytest.fixture
def new() -> Dialogue:
    """An editor that has said nothing yet."""
    return Dialogue()


# What waits for an answer


def test_a_request_waits_until_its_answer_has_passed(new: Dialogue) -> None:
    new.editor_says(b'{"id":1,"method":"a"}', b'{"method":"b","id":"1"}')
    assert new.conversation.waiting() == ["a", "b"]
    assert new.gateway_says(b'{"result":{},"id":1}') == [b'{"result":{},"id":1}']
    assert new.conversation.waiting() == ["b"]


@pytest.mark.parametrize(
    "message",
    [
        b'{"method":"n"}',
        b'{"method":"n","params":{"id":1}}',
        b'{"id":1,"result":{}}',
        b'{"id":1',
        b"[]",
        b'"id"',
        b"\xff",
        b'"id"\xff',
        b'{"id":1,"\xff":2}',
        b"",
        b'{"id":1,"method":7}',
        b'{"id":{},"method":"m"}',
        b'{"id":true,"method":"m"}',
        b'{"id":[1],"method":"m"}',
        b'{"error":{}, "x":"\\n"}',
    ],
)
def test_what_is_not_a_request_goes_up_and_does_not_wait(new: Dialogue, message: bytes) -> None:
    assert new.editor_says(message) == [message]
    assert new.conversation.waiting() == []


@pytest.mark.parametrize("raw_id", [b"null", b'""', b"0", b"1.0", b"1e2", b"9223372036854775808", b'"\\u0061"'])
def test_whatever_can_be_an_id_is_one(new: Dialogue, raw_id: bytes) -> None:
    new.editor_says(b'{"id":%b,"method":"m"}' % raw_id)
    assert new.conversation.waiting() == ["m"]
    new.gateway_says(b'{"id":%b,"result":null}' % raw_id)
    assert new.conversation.waiting() == []


@pytest.mark.parametrize(
    "message",
    [b'{"id":1,"method":"m"}', b'{"method":"n","params":{"id":1}}', b'{"id":1.0,"result":1}', b'{"id":2,"error":1}'],
)
def test_what_is_not_an_answer_to_it_leaves_a_request_open(new: Dialogue, message: bytes) -> None:
    new.editor_says(b'{"id":1,"method":"m"}')
    assert new.gateway_says(message) == [message]
    assert new.conversation.waiting() == ["m"]


def test_an_id_member_with_escapes_is_found(new: Dialogue) -> None:
    new.editor_says(b'{"\\u0069d":1,"\\u006dethod":"m"}')
    assert new.conversation.waiting() == ["m"]
    new.gateway_says(b'{"i\\u0064":1,"result":null}')
    assert new.conversation.waiting() == []


def test_an_answer_when_nothing_waits_passes(new: Dialogue) -> None:
    assert new.gateway_says(result(1)) == [result(1)]


def test_the_refusal_of_an_id_that_is_used_twice_leaves_the_first_request_open(new: Dialogue) -> None:
    new.editor_says(request(1, "a"), request(1, "b"))
    new.gateway_says(b'{"id":null,"error":{"code":-32600}}')
    assert new.conversation.waiting() == ["a"]
    new.gateway_says(error(1))
    assert new.conversation.waiting() == []


@pytest.mark.parametrize(
    "message",
    [b'{"id":1,"method":"m","Method":"n"}', b'{"id":1,"id":1,"method":"m"}', b'{"id":1,"method":"m","params":[NaN]}'],
)
def test_a_request_that_the_gateway_refuses_under_null_is_not_open(new: Dialogue, message: bytes) -> None:
    assert new.editor_says(message) == [message]
    assert new.conversation.waiting() == []
    assert new.conversation.still_valid([message]) == [message]


def test_a_result_beside_an_error_that_is_null_is_a_result(new: Dialogue) -> None:
    new.editor_says(request(0, "initialize"))
    new.gateway_says(b'{"id":0,"result":{},"error":null}')
    assert new.conversation.started


# Who may say what


@pytest.mark.parametrize("method", ["_acp-gateway/ack", "_acp-gateway/", "_\\u0061cp-gateway/x", "_acp-gateway\\/x"])
def test_a_request_for_a_method_of_the_gateways_own_is_refused(new: Dialogue, method: str) -> None:
    outcome = new.conversation.from_editor([b'{"id": "7","method":"%b"}' % method.encode()])
    (answer,) = map(json.loads, outcome.to_editor)
    assert (answer["id"], answer["error"]["code"]) == ("7", -32601)
    assert outcome.to_gateway == []
    assert new.conversation.waiting() == []


def test_a_refusal_that_has_no_id_is_under_null(new: Dialogue) -> None:
    outcome = new.conversation.from_editor([b'{"id":{},"method":"_acp-gateway/x"}'])
    assert json.loads(outcome.to_editor[0])["id"] is None


@pytest.mark.parametrize("method", [b"_acp-gateway/ack", b"_acp-gatewa\\u0079/goodbye", b"\\u005facp-gateway/news"])
def test_a_notification_of_the_gateways_own_is_dropped(new: Dialogue, method: bytes) -> None:
    assert new.editor_says(b'{"method":"a"}', b'{"method":"%b"}' % method, b'{"method":"b"}') == [
        b'{"method":"a"}',
        b'{"method":"b"}',
    ]
    assert len(new.log_messages) == 1


def test_what_the_other_end_might_take_for_its_own_is_dropped_though_it_is_not_a_json(new: Dialogue) -> None:
    assert new.editor_says(b'{"method":"_acp-gateway/goodbye","params":NaN}') == []
    assert len(new.log_messages) == 1


def test_a_text_about_the_gateways_methods_is_not_such_a_method(new: Dialogue) -> None:
    message = request(1, "session/prompt", prompt=[{"text": "what is _acp-gateway/ack?"}])
    assert new.editor_says(message) == [message]
    assert new.editor_says(b"_acp-gateway/ack") == [b"_acp-gateway/ack"]
