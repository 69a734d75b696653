"""Places in the history of a session, as its clients count."""

import json
from typing import Any

import pytest

from acp_gateway.core.sessions.places import Begun, Cursor, Cursors, begun_message, step
from acp_gateway.core.sessions.session import Session
from acp_gateway.core.turns.journal import Journal
from acp_gateway.protocol.link_messages import Mark, acknowledgement
from tests.kit.scene import encode


@pytest.mark.parametrize(
    ("epoch", "got", "begun"),
    [
        ("e/1/2/3", 1, Begun(1, 2)),
        ("e/1/2/3", 3, None),
        ("e", 1, None),
        ("e/2/3/3", 1, None),
        ("other/1/2/3", 1, None),
    ],
)
def test_of_a_message_that_a_client_has_begun_the_rest_is_there_if_the_history_has_it(
    epoch: str, got: int, begun: Begun | None
) -> None:
    session = Session("agent", "s", "me", Journal(1000, "e"))
    session.journal.extend([b"one", b"two"])
    assert begun_message(session, epoch, got) == begun


@pytest.mark.parametrize("cursor", [Cursor(("e", 3)), Cursor(("e", 0), 2), Cursor(step(("6067-1", 12), 13, 2), 1)])
def test_a_cursor_is_read_as_it_was_told(cursor: Cursor) -> None:
    assert Cursor.read(str(cursor)) == cursor


@pytest.mark.parametrize(
    "text", ["", "@e", "1@e", "1.0@", "a.0@e", "1.0@" + "e" * 257, "1" * 16 + ".0@e", " 1.0@e", "\u0661.0@e"]
)
def test_another_text_is_not_a_cursor(text: str) -> None:
    assert Cursor.read(text) is None


def at(place: tuple[str, int], session_id: str = "s") -> Mark:
    return Mark(acknowledgement(0, {session_id: place}))


def sent(session_id: str = "s", method: str = "session/update", **more: Any) -> bytes:
    return encode(method=method, params={"sessionId": session_id, "update": {"n": 1.50}, **more})


def told(cursors: Cursors, *messages: bytes | Mark, parent: str | None = None) -> list[Any]:
    """Return the gateway's member of the `_meta` of each message that is sent; None without one."""
    stamped = cursors.stamp(messages, parent)
    texts = [json.loads(it) for it in stamped if isinstance(it, bytes)]
    return [it.get("params", {}).get("_meta", {}).get("acp-gateway") for it in texts]


def test_each_update_leads_to_the_next_place_and_marks_lead_elsewhere() -> None:
    cursors = Cursors()
    assert told(cursors, sent(), at(("e", 4)), sent(), sent("t"), sent()) == [
        None,
        {"cursorId": "5.0@e"},
        None,
        {"cursorId": "6.0@e"},
    ]
    begun = step(("e", 6), 7, 2)
    assert told(cursors, at(begun), sent(), sent(), at(("e", 7)), sent()) == [
        {"cursorId": "1.0@e/6/7/2"},
        {"cursorId": "2.0@e/6/7/2"},
        {"cursorId": "8.0@e"},
    ]
    cursors.forget("s")
    assert told(cursors, sent()) == [None]


def test_ends_that_were_told_count_until_the_place_changes() -> None:
    cursors = Cursors()
    cursors.end_told("s", 1)
    cursors.stamp([at(("e", 4))])
    cursors.end_told("s", 2)
    # What is in no place changes none.
    news, aside = sent(method="_acp-gateway/news"), at(step(("e", 4), 4, 0))
    assert told(cursors, news, aside, sent(), at(("e", 4)), news) == [
        {"cursorId": "4.2@e"},
        {"cursorId": "1.2@e/4/4/0"},
        {"cursorId": "4.2@e"},
    ]
    assert told(cursors, sent()) == [{"cursorId": "5.0@e"}]


def test_an_update_of_another_session_counts_where_it_is_in_the_history() -> None:
    cursors = Cursors()
    cursors.stamp([at(("e", 4))])
    assert told(cursors, sent("child"), parent="s") == [{"cursorId": "5.0@e", "sessionId": "s"}]


@pytest.mark.parametrize(
    "message",
    [
        encode(id=1, method="session/update", params={"sessionId": "s"}),
        encode(id=1, result={"sessionId": "s", "say": "session/update"}),
        encode(method="_other", params={"sessionId": "s", "say": "session/update"}),
        b"session/update, but no message",
    ],
)
def test_only_updates_and_news_have_cursors(message: bytes) -> None:
    cursors = Cursors()
    cursors.stamp([at(("e", 4))])
    assert cursors.stamp([message]) == [message]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'{"method":"session/update","params":{', b'"sessionId":"s","update":{"b":1e9}}}'),
        (b'{"method": "session/update", "params": { ', b'"sessionId": "s", "update": {"params":{"b":1.50}}}}'),
        (b'{"params":{', b'"update":{"x":"\\"params\\":{\\""},"sessionId":"s"},"method":"session/update"}'),
        (b'{"method":"session/update","params" : {', b'\n"sessionId":"s"}}'),
        (rb'{"method":"session\/update","p\u0061rams":{', b'"update":{"params":{"a":1}},"sessionId":"s"}}'),
    ],
)
def test_what_else_a_message_has_stays_as_it_is(before: bytes, after: bytes) -> None:
    cursors = Cursors()
    cursors.stamp([at(("e", 4))])
    (stamped,) = cursors.stamp([before + after])
    assert stamped == before + b'"_meta":{"acp-gateway":{"cursorId":"5.0@e"}},' + after


def test_what_else_is_in_the_meta_of_a_message_stays_as_it_is() -> None:
    cursors = Cursors()
    cursors.stamp([at(("e", 4))])
    for meta, more in ((b"{", b'"a":1.50}'), (b"{", b'"acp-gateway":1}')):
        text = b'{"method":"session/update","params":{"sessionId":"s","_meta":%b%b}}' % (meta, more)
        (stamped,) = cursors.stamp([text])
        assert isinstance(stamped, bytes)
        told = json.loads(stamped)["params"]["_meta"]
        assert told.pop("acp-gateway").keys() == {"cursorId"}
        assert told == {name: value for name, value in json.loads(meta + more).items() if name != "acp-gateway"}
