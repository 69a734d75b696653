"""What counts as open beside a stream of messages."""

import pytest

from acp_gateway.protocol.unanswered import Unanswered


def test_a_request_is_open_until_its_answer_has_passed() -> None:
    seen = Unanswered()
    seen.asked(b'{"id":1,"method":"a"}')
    seen.asked(b'{"method":"b","id":"1"}')
    assert seen.methods() == ["a", "b"]
    seen.answered(b'{"result":{},"id":1}')
    assert seen.methods() == ["b"]
    assert seen.take() == [b'"1"']
    assert seen.take() == []


@pytest.mark.parametrize(
    "message",
    [
        b'{"method":"n"}',
        b'{"id":1,"result":{}}',
        b'{"id":1',
        b"[]",
        b"\xff",
        b"",
        b'{"id":1,"method":7}',
        b'{"id":{},"method":"m"}',
    ],
)
def test_what_is_no_request_is_never_open(message: bytes) -> None:
    seen = Unanswered()
    seen.asked(message)
    assert seen.methods() == []


@pytest.mark.parametrize(
    "message",
    [b'{"id":1,"method":"m"}', b'{"method":"n","params":{"id":1}}', b'{"id":1.0,"result":1}', b'{"id":2,"error":1}'],
)
def test_what_is_no_answer_to_it_leaves_a_request_open(message: bytes) -> None:
    seen = Unanswered()
    seen.asked(b'{"id":1,"method":"m"}')
    seen.answered(message)
    assert seen.methods() == ["m"]


def test_an_id_member_with_escapes_is_found() -> None:
    seen = Unanswered()
    seen.asked(b'{"\\u0069d":1,"\\u006dethod":"m"}')
    seen.answered(b'{"i\\u0064":1,"result":null}')
    assert seen.methods() == []


def test_an_answer_when_nothing_is_open_is_nothing() -> None:
    seen = Unanswered()
    seen.answered(b'{"id":1,"result":null}')
    assert seen.take() == []
