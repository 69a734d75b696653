"""The responses that wait for a client to read."""

from acp_gateway.gateway.viewing.replies import Replies
from acp_gateway.transports.timers import Signal


def test_responses_are_taken_in_order_up_to_a_size_and_told_to_the_memory_limit_once() -> None:
    grown: list[int] = []
    replies = Replies(grown.append, Signal())
    for text in (b"one", b"three", b"seventeen"):
        replies.add(text)
    assert (len(replies), replies.size, grown) == (3, 17, [])
    replies.note()
    assert replies.take(4) == [b"one", b"three"]
    assert (len(replies), replies.size) == (1, 9)
    replies.note()
    assert grown == [17, 0]
    assert replies.take(1) == [b"seventeen"]
    assert (replies.take(1), replies.size) == ([], 0)
