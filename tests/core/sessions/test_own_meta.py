"""The gateway's own member of `_meta`: what is read from it, and where it is put and removed."""

from typing import Any

import pytest

from acp_gateway.core.sessions.own_meta import (
    MAX_ID,
    Rejoin,
    last_id,
    with_cwd,
    with_own_meta,
    with_result_meta,
    without_own_meta,
)
from acp_gateway.core.sessions.places import Cursor
from acp_gateway.protocol.jsonrpc import parse, parse_entry
from acp_gateway.protocol.text.pairs import Pair
from tests.kit.scene import encode


def said(**members: Any) -> Rejoin | None:
    return Rejoin.read(parse(encode(id=1, method="session/load", params={"_meta": {"acp-gateway": members}})))


def test_a_client_says_where_it_was_and_what_it_waits_for() -> None:
    text = (
        b'{"id":1,"method":"session/load","params":{"_meta":{"acp-gateway":{"epoch":"e","position":12,"connection":"c",'
        rb'"prompts":[4,"\u0041",1e2],"questions":[7,8.0]}}}}'
    )
    returned = Rejoin.read(parse(text))
    assert returned == Rejoin("e", 12, ("c",), (b"4", rb'"\u0041"', b"1e2"), (7, 8))  # type: ignore[arg-type]


@pytest.mark.parametrize("meta", [{}, {"acp-gateway": {}}, {"acp-gateway": 5}, {"acp-gateway": None}, 5, None, [1]])
def test_a_resume_without_the_state_of_another_link_is_not_a_rejoin(meta: Any) -> None:
    assert Rejoin.read(parse(encode(id=1, method="session/load", params={"_meta": meta}))) is None
    assert Rejoin.read(parse(encode(id=1, method="session/load"))) is None


@pytest.mark.parametrize("value", [None, True, -1, 1.5, "7", [], {}, [[]], MAX_ID + 1, 10**30, 1e300, "\ud83d"])
def test_an_invalid_state_in_a_rejoin_is_ignored(value: Any) -> None:
    returned = said(position=value, connection="c")
    assert returned is not None
    assert returned.position == 0
    for name in ("prompts", "questions"):
        returned = said(**{name: value})
        assert returned is not None
        assert returned.agent_requests == ()
    returned = said(epoch=value if not isinstance(value, str) else 5, connection=5)
    assert returned is not None
    assert (returned.epoch, returned.connections) == (None, ())


@pytest.mark.parametrize(
    ("named", "cursor"),
    [
        ({"type": "cursor", "cursorId": "7.1@e"}, Cursor(("e", 7), 1)),
        ({"type": "cursor", "cursorId": "7"}, None),
        ({"type": "start", "cursorId": "7.1@e"}, None),
        ({"type": "cursor"}, None),
        ("7.1@e", None),
        (None, None),
    ],
)
def test_a_client_without_a_link_says_where_its_replay_begins(named: Any, cursor: Cursor | None) -> None:
    epoch, position = (None, 0) if cursor is None else cursor.place
    assert said(replayFrom=named, connection="c") == Rejoin(epoch, position, replays=True, cursor=cursor)


def test_of_a_list_of_questions_the_numbers_count() -> None:
    returned = said(questions=[1, None, "2", True, {}, [3], 1.5, -4, 10**40, 5])
    assert returned is not None
    assert returned.agent_requests == (1, -4, 5)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(7, 7), (7.0, 7), (0, 0), (-7, 0), (7.5, 0), ("7", 0), (None, 0), ([7], 0), (MAX_ID, MAX_ID), (10**18, 0)],
)
def test_only_a_number_that_can_have_been_minted_is_a_last_id(value: Any, expected: int) -> None:
    assert last_id(parse(encode(id=1, method="initialize", params={"_meta": {"acp-gateway": {"lastId": value}}}))) == (
        expected
    )


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (b"null", b'{"_meta":{"acp-gateway":{"a":1}}}'),
        (b"[]", b'{"_meta":{"acp-gateway":{"a":1}}}'),
        (b'{"x":1.10}', b'{"x":1.10,"_meta":{"acp-gateway":{"a":1}}}'),
        (b'{"_meta":5}', b'{"_meta":{"acp-gateway":{"a":1}}}'),
        (b'{"_meta":{"y":2,"acp-gateway":{"b":2}}}', b'{"_meta":{"y":2,"acp-gateway":{"b":2,"a":1}}}'),
    ],
)
def test_the_gateways_own_member_is_added_to_whatever_there_is(result: bytes, expected: bytes) -> None:
    assert with_own_meta(result, b'{"a":1}') == expected


@pytest.mark.parametrize(
    ("meta", "left"),
    [
        (b'{"a":1.10,"acp-gateway":{"epoch":"e"}}', b'{"a":1.10}'),
        (b'{"acp-gateway":5}', b"{}"),
        (b'{"a" : 1}', b'{"a" : 1}'),
        (b"5", b"5"),
        (b"null", b"null"),
    ],
)
def test_nothing_of_it_is_left_for_the_agent(meta: bytes, left: bytes) -> None:
    text = b'{"id":1,"method":"session/load","params":{"sessionId":"s","_meta":%b}}'
    assert without_own_meta(text % meta) == text % left
    assert without_own_meta(b'{"id":1,"method":"session/load"}') == b'{"id":1,"method":"session/load"}'


def test_own_meta_is_not_searched_in_a_message_without_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def walk(*_: Any) -> None:
        raise AssertionError("the members were walked")

    for function in ("lookup.param", "lookup.members_at", "spans.find"):
        monkeypatch.setattr(f"acp_gateway.core.sessions.own_meta.{function}", walk)
    text = encode(id=1, method="session/load", params={"sessionId": "s", "_meta": {f"m{n}": n for n in range(500)}})
    assert without_own_meta(text) is text
    assert Rejoin.read(parse(text)) is None
    assert last_id(parse(text)) == 0


def test_own_meta_under_an_escaped_name_is_removed_as_well() -> None:
    text = b'{"id":1,"method":"session/load","params":{"_meta":{"acp\\u002dgateway":{"epoch":"e"},"a":1}}}'
    assert b"epoch" not in without_own_meta(text)
    assert Rejoin.read(parse(text)) is not None


def test_too_many_prompts_of_another_link_say_nothing() -> None:
    returned = said(connection="c", prompts=[1] * 20_000)
    assert returned is not None
    assert returned.prompts == ()


def test_a_result_of_both_versions_gets_the_member_in_both() -> None:
    carried = parse_entry(Pair(b'{"id":1,"result":{"sessionId":"s"}}', b'{"id":1,"result":{"sessionId":"s","new":1}}'))
    added = with_result_meta(carried, b'{"cwd":"/srv"}')
    meta = b'"_meta":{"acp-gateway":{"cwd":"/srv"}}'
    assert added.text == b'{"id":1,"result":{"sessionId":"s",%b}}' % meta
    assert added.original == b'{"id":1,"result":{"sessionId":"s","new":1,%b}}' % meta


@pytest.mark.parametrize(
    ("params", "opened"),
    [
        (b'{"cwd" : ".","a":1.10}', b'{"cwd" : "/srv","a":1.10}'),
        (b'{"a":1.10}', b'{"cwd":"/srv","a":1.10}'),
        (b"{}", b'{"cwd":"/srv"}'),
        (b'{"cwd":null}', b'{"cwd":"/srv"}'),
    ],
)
def test_a_directory_is_put_into_an_opening_and_nothing_else_changes(params: bytes, opened: bytes) -> None:
    text = b'{"id":1,"method":"session/new","params":%b}'
    assert with_cwd(text % params, "/srv") == text % opened
    assert with_cwd(b'{"id":1,"method":"session/new"}', "/srv") == b'{"id":1,"method":"session/new"}'
