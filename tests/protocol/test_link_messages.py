"""The two ends of a link understand each other, and nothing else is taken for a control message."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.link_messages import (
    CONTROL_SIZE,
    CONTROL_WORD,
    SMALL_SIZE,
    Control,
    Mark,
    acknowledgement,
    goodbye,
    probe,
    read_control,
    rest_follows,
)
from tests.fuzz.effort import effort


def test_an_acknowledgement_is_read_as_it_was_meant() -> None:
    assert acknowledgement(7) == b'{"jsonrpc":"2.0","method":"_acp-gateway/ack","params":{"received":7}}'
    assert read_control(acknowledgement(7)) == Control(received=7)
    assert read_control(acknowledgement(0)) == Control()


def test_an_acknowledgement_with_positions_has_epoch_and_position_of_each_session() -> None:
    told = acknowledgement(0, {"s1": ("word", 5), "\ud83d": ("other", 0)})
    assert json.loads(told)["params"] == {
        "received": 0,
        "positions": {"s1": {"epoch": "word", "position": 5}, "\ud83d": {"epoch": "other", "position": 0}},
    }
    assert read_control(told) == Control(has_positions=True)
    assert read_control(acknowledgement(3, {})) == Control(received=3, has_positions=True)


def test_a_goodbye_is_read_as_one() -> None:
    assert json.loads(goodbye()) == {"jsonrpc": "2.0", "method": "_acp-gateway/goodbye", "params": {}}
    assert read_control(goodbye()) == Control(goodbye=True)
    assert read_control(b'{"method":"_acp-gateway/goodbye"}') == Control(goodbye=True)


def test_a_probe_and_its_answer_have_the_same_number() -> None:
    assert json.loads(probe(3)) == {"jsonrpc": "2.0", "method": "_acp-gateway/probe", "params": {"probe": 3}}
    assert read_control(probe(3)) == Control(probe=3)
    assert json.loads(acknowledgement(7, probe=3))["params"] == {"received": 7, "probe": 3}
    assert read_control(acknowledgement(7, probe=3)) == Control(received=7, answered=3)


def test_the_rest_of_a_message_is_announced_with_its_begin() -> None:
    assert json.loads(rest_follows(5)) == {"jsonrpc": "2.0", "method": "_acp-gateway/rest", "params": {"from": 5}}
    assert read_control(rest_follows(5)) == Control(rest_from=5)


@pytest.mark.parametrize(
    "params", ["null", "[3]", "{}", '{"probe":0}', '{"probe":-1}', '{"probe":"3"}', '{"probe":true}']
)
def test_a_probe_without_a_number_asks_for_nothing_and_is_not_counted(params: str) -> None:
    assert read_control(b'{"method":"_acp-gateway/probe","params":%b}' % params.encode()) == Control()


@pytest.mark.parametrize("params", ["", ',"params":null', ',"params":[7]', ',"params":{}'])
def test_an_acknowledgement_without_a_count_says_nothing_and_is_not_counted(params: str) -> None:
    assert read_control(b'{"jsonrpc":"2.0","method":"_acp-gateway/ack"%b}' % params.encode()) == Control()


@pytest.mark.parametrize("received", [-1, 1.5, 7.0, True, "7", None, [7], {}])
def test_a_malformed_count_says_nothing(received: Any) -> None:
    message = {"method": "_acp-gateway/ack", "params": {"received": received, "positions": {}}}
    assert read_control(json.dumps(message).encode()) == Control(has_positions=True)


@pytest.mark.parametrize("positions", [None, [], "s1", 7])
def test_positions_that_are_not_an_object_do_not_count(positions: Any) -> None:
    message = {"method": "_acp-gateway/ack", "params": {"received": 7, "positions": positions}}
    assert read_control(json.dumps(message).encode()) == Control(received=7)


def test_spelling_and_order_of_a_control_message_are_free() -> None:
    text = b' {"params" : {"x":1, "received" : 7}, "method":"_acp-gateway/\\u0061ck", "jsonrpc":"2.0"}\r'
    assert read_control(text) == Control(received=7)


@pytest.mark.parametrize(
    "message",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"_acp-gateway/ack","params":{"received":7}}',
        b'{"jsonrpc":"2.0","id":null,"method":"_acp-gateway/goodbye","params":{}}',
        b'{"jsonrpc":"2.0","id":1,"result":"_acp-gateway/ack"}',
        b'{"jsonrpc":"2.0","method":"_acp-gateway/acknowledge","params":{"received":7}}',
        b'{"jsonrpc":"2.0","method":"_acp-gateway/","params":{}}',
        b'{"jsonrpc":"2.0","method":"_acp-gateway/news","params":{}}',
        b'{"jsonrpc":"2.0","method":["_acp-gateway/ack"]}',
        b'{"jsonrpc":"2.0","method":"session/update","params":{"method":"_acp-gateway/ack","received":7}}',
        b'{"jsonrpc":"2.0","method":"session/update","params":{"text":"\\"method\\":\\"_acp-gateway/ack\\""}}',
        b'{"\\u006dethod":"x","result":"_acp-gateway/goodbye"}',
        b'[{"jsonrpc":"2.0","method":"_acp-gateway/ack","params":{"received":7}}]',
        b'"_acp-gateway/ack"',
        b"_acp-gateway/ack",
        b'{"jsonrpc":"2.0","method":"_acp-gateway/ack","params":{"received":7}',
        b'{"jsonrpc":"2.0","method":"_acp-gateway/ack","params":"\xff"}',
        b'{"method":"_acp-gateway/ack","params":{"received":%b}}' % (b"9" * 5000),
        b'{"method":"_acp-gateway/ack","params":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        # The first part of the name has to be there as it is, or every message would have to be parsed.
        b'{"jsonrpc":"2.0","method":"\\u005facp-gateway/ack","params":{"received":7}}',
        b'{"jsonrpc":"2.0","method":"_acp-gateway\\/ack","params":{"received":7}}',
        b"{}",
        b"",
    ],
)
def test_what_is_not_a_control_message_is_counted_and_passed_on(message: bytes) -> None:
    assert read_control(message) is None


def test_a_control_message_has_a_largest_size() -> None:
    plain = acknowledgement(7)
    assert read_control(plain + b" " * (CONTROL_SIZE - len(plain))) == Control(received=7)
    assert read_control(plain + b" " * (CONTROL_SIZE - len(plain) + 1)) is None


PADDING = b'"x":[%b0]' % (b"[]," * SMALL_SIZE)


@pytest.mark.parametrize(
    ("text", "control"),
    [
        (b'{"method":"_acp-gateway/ack","params":{%b,"received":7}}', Control(received=7)),
        (b'{%b,"m\\u0065thod":"_acp-gateway/ack","params":{"positions":{},"received":7} }', Control(7, True)),
        (b'{"method":"_acp-gateway/ack","params":{%b,"received":7.0,"positions":[]}}', Control()),
        (b'{"method":"_acp-gateway/ack","params":[{%b}]}', Control()),
        (b'{"method":"_acp-gateway/goodbye","params":{%b}}', Control(goodbye=True)),
        (b'{"method":"_acp-gateway/ack","params":{%b,"received":7},"id":null}', None),
        (b'{"method":"_acp-gateway/ack","params":{%b,"received":7}}{}', None),
        (b'{"method":"_acp-gateway/ack","params":{%b,"received":7}', None),
        (b'{"method":["_acp-gateway/ack"],"params":{%b,"received":7}}', None),
        (b'{"method":"_acp-gateway/x","params":{%b}}', None),
        (b'["_acp-gateway/ack",{%b}]', None),
        (b'{"method":"_acp-gateway/ack","params":{%b,"received":7},"y":"\xff"}', None),
    ],
)
def test_a_large_control_message_is_read_without_building_what_is_in_it(
    text: bytes, control: Control | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[int] = []
    loads = json.loads

    def counting(message: bytes) -> Any:
        built.append(len(message))
        return loads(message)

    monkeypatch.setattr("acp_gateway.protocol.link_messages.json.loads", counting)
    assert read_control(text % PADDING) == control
    assert sum(built) < 100


def test_positions_of_many_sessions_with_long_ids_are_read() -> None:
    told = acknowledgement(3, {f"{number}" + "\U0001f600" * 1000: ("e" * 30, number) for number in range(32)})
    assert SMALL_SIZE < len(told) < CONTROL_SIZE
    assert read_control(told) == Control(3, has_positions=True)


def test_every_control_message_has_the_word_in_it_that_tells_it_from_most_messages() -> None:
    assert CONTROL_WORD in acknowledgement(7)
    assert CONTROL_WORD in goodbye()


NAMES = [b'"method"', b'"\\u006dethod"', b'"Method"', b'"params"', b'"jsonrpc"', b'"result"']
VALUES = [
    b'"_acp-gateway/ack"',
    b'"_acp-gateway/goodbye"',
    b'"_acp-gateway/\\u0061ck"',
    b'"session/update"',
    b'"\\ud83d"',
    b'{"received":7}',
    b"NaN",
    b"7",
]


@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=4), st.sampled_from([b"", b"\xff"])
)
@effort(100)
def test_an_agent_cannot_print_a_control_message(members: list[tuple[bytes, bytes]], rest: bytes) -> None:
    # A gateway passes on no notification whose method is reserved, by its own reading of it: the other end must not
    # read the same text, with members repeated or spelled oddly, as something that it would not count.
    text = b"{" + b",".join(name + b":" + value for name, value in members) + b"}" + rest
    if read_control(text) is not None:
        try:
            message = jsonrpc.parse(text)
        except jsonrpc.InvalidMessage:
            return  # Never passed on.
        assert message.kind is jsonrpc.Kind.NOTIFICATION
        assert message.method.startswith("_acp-gateway/")


def test_marks_of_the_same_text_are_equal_and_print_it() -> None:
    assert {Mark(b"a"), Mark(b"a"), Mark(b"b")} == {Mark(b"a"), Mark(b"b")}
    assert Mark(b"a") != b"a"
    assert repr(Mark(b"a")) == "Mark(b'a')"
