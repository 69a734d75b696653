"""The order of messages over Streamable HTTP, and the sessions that they belong to."""

import json
from math import inf
from typing import Any

import pytest

from acp_gateway.client.http.requests import (
    ANSWER_TIMEOUT,
    REQUESTS_KEPT,
    URGENT,
    Arrival,
    PostQueue,
    is_response,
    messages_in,
    session_header,
)


def text(method: str, number: int | None = None, **params: Any) -> bytes:
    ids = {} if number is None else {"id": number}
    return json.dumps({"method": method, **ids, "params": params}).encode()


def queue(*messages: bytes) -> PostQueue:
    made = PostQueue()
    for message in messages:
        made.add(message)
    return made


def sent(posts: PostQueue, now: float) -> list[bytes]:
    """Write everything that may be sent at a time, and return it."""
    taken = []
    while post := posts.next(now):
        taken.append(post.text)
        posts.written(post, now)
    return taken


ONE, TWO = text("one", 1, sessionId="s"), text("two", 2, sessionId="t")
CANCEL = text("session/cancel", sessionId="s")
RESPONSE = b'{"id":9,"result":{}}'


def test_a_message_waits_until_the_one_before_is_answered_however_long_that_takes() -> None:
    posts = queue(ONE, TWO)
    first = posts.next(0)
    assert first is not None
    assert first.text == ONE
    posts.written(first, 0)
    assert posts.next(1000) is None
    assert posts.due() == inf
    posts.done(first)
    assert sent(posts, 1000) == [TWO]


def test_a_response_waits_for_nothing() -> None:
    assert sent(queue(ONE, TWO, RESPONSE), 0) == [ONE, RESPONSE]


def test_a_cancel_waits_for_the_messages_of_its_session_until_they_are_slow() -> None:
    posts = queue(ONE, CANCEL)
    assert sent(posts, 5) == [ONE]
    assert posts.due() == 5 + ANSWER_TIMEOUT
    assert sent(posts, 5 + ANSWER_TIMEOUT) == [CANCEL]


def test_a_cancel_does_not_overtake_a_message_of_its_session_that_is_not_sent() -> None:
    posts = queue(TWO, ONE, CANCEL)
    assert sent(posts, 0) == [TWO]
    assert sent(posts, 1000) == []


def test_a_cancel_waits_for_no_other_session() -> None:
    assert sent(queue(TWO, CANCEL), 0) == [TWO, CANCEL]


def test_cancel_request_waits_for_its_request_alone() -> None:
    assert len(sent(queue(ONE, text("$/cancel_request", requestId=1)), 0)) == 1
    assert len(sent(queue(ONE, text("$/cancel_request", requestId=7)), 0)) == 2


def test_a_message_does_not_overtake_a_cancel_of_its_session() -> None:
    posts = queue(CANCEL, ONE)
    assert sent(posts, 0) == [CANCEL]
    assert sent(posts, ANSWER_TIMEOUT) == [ONE]
    assert sent(queue(CANCEL, TWO), 0) == [CANCEL, TWO]


def test_few_responses_are_under_way_at_once() -> None:
    posts = queue(*[RESPONSE] * (URGENT + 1))
    first = posts.next(0)
    assert first is not None
    assert len(sent(posts, 0)) == URGENT - 1
    posts.done(first)
    assert len(sent(posts, 0)) == 1


def test_unwritten_bytes_are_those_that_wait_or_are_being_written() -> None:
    posts = queue(ONE, TWO)
    assert posts.unwritten_bytes == len(ONE) + len(TWO)
    first = posts.next(0)
    assert first is not None
    posts.written(first, 0)
    posts.written(first, 1)
    assert posts.unwritten_bytes == len(TWO)
    posts.done(first)
    assert posts
    assert posts.unwritten_bytes == len(TWO)


def test_a_message_that_is_put_back_is_sent_again_unless_it_was_written() -> None:
    posts = queue(ONE)
    first = posts.next(0)
    assert first is not None
    posts.put_back(first)
    assert posts.next(0) is first
    posts.written(first, 0)
    posts.put_back(first)
    assert not posts


def test_a_response_belongs_to_the_session_of_its_request() -> None:
    posts = PostQueue()
    posts.arrived(b'{"id":9,"method":"ask","params":{"sessionId":"s"}}')
    posts.add(RESPONSE)
    posts.add(RESPONSE)
    first, second = posts.next(0), posts.next(0)
    assert first is not None
    assert second is not None
    assert (first.session, second.session) == ("s", None)


def test_requests_of_the_agent_without_an_answer_are_forgotten() -> None:
    posts = PostQueue()
    for number in range(REQUESTS_KEPT + 1):
        posts.arrived(b'{"id":%d,"method":"ask","params":{"sessionId":"s"}}' % number)
    for number in (0, 1):
        posts.add(b'{"id":%d,"result":{}}' % number)
    first, second = posts.next(0), posts.next(0)
    assert first is not None
    assert second is not None
    assert (first.session, second.session) == (None, "s")


@pytest.mark.parametrize(
    ("method", "arrival"),
    [
        ("session/new", Arrival(opened="n")),
        ("session/fork", Arrival(opened="n")),
        ("session/load", Arrival(opened="s", loaded="s")),
        ("session/resume", Arrival(opened="s")),
        ("session/close", Arrival(closed="s")),
        ("session/delete", Arrival(closed="s")),
        ("session/prompt", Arrival()),
    ],
)
def test_a_response_says_which_stream_is_needed(method: str, arrival: Arrival) -> None:
    posts = queue(text(method, 1, sessionId="s"))
    response = b'{"id":1,"result":{"sessionId":"n"}}'
    assert posts.arrived(response) == arrival
    assert posts.arrived(response) == Arrival()
    posts = queue(text(method, 1, sessionId="s"))
    assert posts.arrived(b'{"id":1,"error":{}}') == Arrival()


def test_no_response_is_expected_to_a_request_that_was_refused() -> None:
    posts = queue(text("session/new", 1))
    post = posts.next(0)
    assert post is not None
    posts.forget_request(post)
    assert posts.arrived(b'{"id":1,"result":{"sessionId":"n"}}') == Arrival()


def test_what_is_not_a_message_is_sent_in_its_turn() -> None:
    assert sent(queue(b"[]", b"{", b"1"), 0) == [b"[]"]


@pytest.mark.parametrize(
    ("session", "header"), [("a-1/b%2", "a-1/b%2"), ("a b", "a%20b"), ("ü%", "%C3%BC%25"), ("", "")]
)
def test_a_session_header_is_percent_encoded_unless_it_is_visible_ascii(session: str, header: str) -> None:
    assert session_header(session) == {"Acp-Session-Id": header}
    assert session_header(None) == {}


def test_is_response_compares_the_id() -> None:
    post = queue(ONE).next(0)
    assert post is not None
    assert is_response(b'{"id":1,"result":{}}', post)
    assert not is_response(b'{"id":2,"result":{}}', post)
    assert not is_response(b'{"id":1,"method":"x"}', post)
    assert not is_response(b"hello", post)


def test_only_objects_are_messages() -> None:
    assert list(messages_in([b"ping", b"", b" {} \n", b"[]", b'{"a":1}'])) == [b"{}", b'{"a":1}']
