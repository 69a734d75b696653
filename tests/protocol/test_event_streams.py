"""Event streams: which stream a message is in, and what a client that returns is sent."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.event_streams import (
    EVENT_COST,
    MAX_ELSEWHERE,
    MAX_EMPTY,
    MAX_KEPT,
    EventsGone,
    EventStream,
    EventStreams,
    StreamTaken,
)

KEPT = 1 << 20
READER = object()


def encode(**message: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode()


def update(session: str, number: int = 0) -> bytes:
    return encode(method="session/update", params={"sessionId": session, "number": number})


def request(id_: Any, method: str, **params: Any) -> jsonrpc.Message:
    return jsonrpc.parse(encode(id=id_, method=method, params=params))


def events(data: bytes) -> list[tuple[str, Any]]:
    """The ids and the messages of events, comments left out."""
    found = []
    for block in data.decode().split("\n\n"):
        if block and not block.startswith(":"):
            match = re.fullmatch(r"id: (\S+)\ndata: (.*)", block)
            assert match is not None, block
            found.append((match[1], json.loads(match[2])))
    return found


def read(streams: EventStreams, session: str | None = None, last: str | None = None) -> list[tuple[str, Any]]:
    """Open a stream, and return all that it has."""
    return drain(streams, streams.open(session, last, object()))


def drain(streams: EventStreams, stream: EventStream) -> list[tuple[str, Any]]:
    data = b""
    while more := streams.take(stream, 100):
        data += more
    return events(data)


def numbers(found: list[tuple[str, Any]]) -> list[int]:
    return [message["params"]["number"] for _, message in found]


@pytest.fixture
def streams() -> EventStreams:
    return EventStreams("e", KEPT)


@pytest.mark.parametrize("method", ["session/load", "session/resume"])
def test_the_response_to_an_opening_method_is_in_the_connection_stream(method: str, streams: EventStreams) -> None:
    streams.note_request(request(1, method, sessionId="s"))
    streams.put(encode(id=1, result={}))
    assert [message["id"] for _, message in read(streams)] == [1]
    assert read(streams, "s") == []


def test_the_response_to_a_prompt_is_in_the_stream_of_its_session(streams: EventStreams) -> None:
    session = streams.open("s", None, READER)
    streams.note_request(request("p", "session/prompt", sessionId="s"))
    streams.put(encode(id="p", result={}))
    assert [message["id"] for _, message in drain(streams, session)] == ["p"]
    assert read(streams) == []


def test_the_response_to_initialize_is_in_no_stream(streams: EventStreams) -> None:
    streams.note_request(request(0, "initialize"))
    response = encode(id=0, result={})
    assert streams.put(response) is None
    assert streams.initialized == response
    assert read(streams) == []
    assert streams.confirmed == 1


def test_messages_without_a_session_are_in_the_connection_stream(streams: EventStreams) -> None:
    for message in (encode(method="_x/y"), encode(id=5, method="x/ask", params={}), encode(id=9, result={})):
        streams.put(message)
    assert len(read(streams)) == 3


def test_a_session_without_a_stream_is_in_the_connection_stream(streams: EventStreams) -> None:
    streams.put(update("s", 1))
    assert numbers(read(streams)) == [1]


def test_messages_of_a_new_session_wait_for_its_stream(streams: EventStreams) -> None:
    streams.note_request(request(1, "session/new", cwd="/"))
    streams.put(encode(id=1, result={"sessionId": "s"}))
    streams.put(update("s", 1))
    assert [stream.session for stream in streams.unread()] == ["s"]
    assert [message.get("id") for _, message in read(streams)] == [1]
    assert numbers(read(streams, "s")) == [1]
    assert streams.unread() == []


def test_messages_of_a_stream_that_is_not_opened_move_behind_what_is_written_and_keep_their_order(
    streams: EventStreams,
) -> None:
    streams.note_request(request(1, "session/new", cwd="/"))
    streams.put(encode(id=1, result={"sessionId": "s"}))
    connection = streams.open(None, None, READER)
    assert len(drain(streams, connection)) == 1
    streams.put(update("s", 1))
    streams.put(update("other", 2))
    streams.put(update("s", 3))
    (waiting,) = streams.unread()
    assert streams.may_move(waiting)
    streams.give_up_waiting(waiting)
    found = drain(streams, connection)
    assert numbers(found) == [1, 2, 3]
    streams.put(update("other", 4))
    assert [id_ for id_, _ in [*found, *drain(streams, connection)]] == ["e.2", "e.3", "e.4", "e.5"]
    assert streams.confirmed == streams.number


def cut_after(streams: EventStreams, *, written: int, arrived: int) -> EventStream:
    """Write events to the stream of a session, let the client's system confirm some, and cut it."""
    session = streams.open("s", None, READER)
    for number in range(written):
        streams.put(update("s", number))
    streams.close(session, READER, sum([len(streams.take(session, 1)) for _ in range(written)][arrived:]))
    return session


def test_messages_that_wait_after_a_cut_move_into_the_connection_stream_behind_what_arrived(
    streams: EventStreams,
) -> None:
    session = cut_after(streams, written=3, arrived=2)
    connection = streams.open(None, None, READER)
    streams.put(update("s", 3))
    assert streams.unread() == [session]
    assert streams.may_move(session)
    streams.give_up_waiting(session)
    assert numbers(drain(streams, connection)) == [2, 3]
    streams.put(update("s", 4))
    assert numbers(drain(streams, connection)) == [4]
    assert (streams.confirmed, streams.pending_bytes, streams.unread()) == (streams.number, 0, [])


def test_a_stream_whose_messages_have_moved_resumes_only_behind_all_that_was_written_to_it(
    streams: EventStreams,
) -> None:
    streams.give_up_waiting(cut_after(streams, written=3, arrived=2))
    kept = streams.written_bytes
    with pytest.raises(EventsGone):
        streams.open("s", "e.1", READER)
    assert (drain(streams, streams.open("s", "e.2", READER)), kept) == ([], 0)


def test_messages_do_not_move_after_a_cut_while_the_connection_stream_is_not_read(streams: EventStreams) -> None:
    session = cut_after(streams, written=2, arrived=1)
    assert not streams.may_move(session)
    streams.open(None, None, READER)
    assert streams.may_move(session)


def test_messages_do_not_move_from_a_stream_that_is_read_again(streams: EventStreams) -> None:
    session = cut_after(streams, written=2, arrived=1)
    streams.open(None, None, READER)
    assert streams.reader_of("s") is None
    streams.open("s", None, READER)
    assert not streams.may_move(session)
    assert streams.reader_of(None) is READER


def test_sessions_in_the_connection_stream_are_remembered_in_a_bounded_number(streams: EventStreams) -> None:
    for number in range(MAX_ELSEWHERE + 1):
        streams.put(update(f"s{number}"))
    for name, waiting in {"s0": 1, "s1": 0}.items():
        streams.open(name, None, READER)
        streams.put(update(name))
        assert len(read(streams, name, "e.0")) == waiting


def test_messages_do_not_move_after_a_cut_if_the_client_shows_event_ids(streams: EventStreams) -> None:
    session = cut_after(streams, written=2, arrived=1)
    streams.open(None, "e.0", READER)
    assert not streams.may_move(session)


def test_messages_do_not_move_into_the_connection_stream_where_they_would_hide_a_gap() -> None:
    streams = EventStreams("e", 300)
    session = cut_after(streams, written=20, arrived=0)
    streams.open(None, None, READER)
    assert not streams.may_move(session)


def test_a_session_that_began_in_the_connection_stream_stays_there_so_that_no_message_overtakes_another(
    streams: EventStreams,
) -> None:
    streams.put(update("s", 1))
    connection = streams.open(None, None, READER)
    assert numbers(drain(streams, connection)) == [1]
    session = streams.open("s", None, READER)
    streams.put(update("s", 2))
    assert numbers(drain(streams, session)) == []
    assert numbers(drain(streams, connection)) == [2]


def test_a_new_session_is_in_its_stream_even_if_messages_came_before_the_response(streams: EventStreams) -> None:
    streams.note_request(request(1, "session/new", cwd="/"))
    streams.put(update("s", 1))
    streams.put(encode(id=1, result={"sessionId": "s"}))
    streams.put(update("s", 2))
    assert [message.get("id") for _, message in read(streams)] == [None, 1]
    assert numbers(read(streams, "s")) == [2]


def test_a_second_reader_is_refused_unless_it_has_an_event_id(streams: EventStreams) -> None:
    streams.put(update("s", 1))
    assert numbers(drain(streams, streams.open(None, None, READER))) == [1]
    with pytest.raises(StreamTaken):
        streams.open(None, None, object())
    assert read(streams, None, "e.1") == []


@pytest.mark.parametrize("last", [0, 1, 2, 3])
def test_last_event_id_resumes_behind_it(last: int, streams: EventStreams) -> None:
    for number in (1, 2, 3):
        streams.put(update("s", number))
    read(streams)
    assert numbers(read(streams, None, f"e.{last}")) == [1, 2, 3][last:]


@pytest.mark.parametrize("last", ["", "e", "e.", "e.x", "e.-1", "e.4", "f.1", "e.1.1", "e.²", "e." + "9" * 20])
def test_an_event_id_that_was_never_written_is_refused(last: str, streams: EventStreams) -> None:
    for number in (1, 2, 3):
        streams.put(update("s", number))
    read(streams)
    with pytest.raises(EventsGone):
        streams.open(None, last, READER)


@pytest.mark.parametrize("kept", [1, 300])
def test_an_event_id_below_what_is_kept_is_refused(kept: int) -> None:
    streams = EventStreams("e", kept)
    for number in range(20):
        streams.put(update("s", number))
    read(streams)
    assert 0 < streams.written_bytes <= max(kept, len(update("s", 19)))
    with pytest.raises(EventsGone):
        streams.open(None, "e.2", READER)
    assert numbers(read(streams, None, "e.19")) == [19]


def test_without_an_event_id_a_reader_gets_what_was_not_confirmed(streams: EventStreams) -> None:
    for number in (1, 2, 3):
        streams.put(update("s", number))
    stream = streams.open(None, None, READER)
    streams.close(stream, READER, len(streams.take(stream, KEPT)) // 2)
    assert numbers(read(streams)) == [2, 3]


def test_events_that_were_cut_off_and_are_not_kept_are_not_a_silent_gap() -> None:
    streams = EventStreams("e", 300)
    for number in range(20):
        streams.put(update("s", number))
    stream = streams.open(None, None, READER)
    streams.close(stream, READER, sum(len(streams.take(stream, 100)) for _ in range(20)))
    with pytest.raises(EventsGone):
        streams.open(None, None, READER)


def test_the_last_of_several_readers_alone_closes_a_stream(streams: EventStreams) -> None:
    stream = streams.open(None, None, READER)
    streams.close(stream, object(), 0)
    assert (stream.reader, streams.readers) == (READER, 1)
    streams.close(stream, READER, 0)
    assert streams.readers == 0


def test_a_comment_counts_among_the_bytes_of_a_reader_and_is_not_an_event(streams: EventStreams) -> None:
    stream = streams.open(None, None, READER)
    streams.put(encode(method="a"))
    assert drain(streams, stream) == [("e.1", {"jsonrpc": "2.0", "method": "a"})]
    comment = stream.comment()
    assert comment.startswith(b":")
    streams.close(stream, READER, len(comment))
    assert drain(streams, streams.open(None, None, READER)) == []


def test_bytes_are_pending_while_a_stream_with_a_reader_has_messages(streams: EventStreams) -> None:
    text = encode(method="a")
    streams.put(text)
    assert streams.pending_bytes == 0
    stream = streams.open(None, None, READER)
    assert streams.pending_bytes == len(text)
    drain(streams, stream)
    assert streams.pending_bytes == 0


def test_a_message_that_may_be_nested_deeply_is_in_the_stream_of_its_session(streams: EventStreams) -> None:
    session = streams.open("s", None, READER)
    streams.put(encode(method="session/update", params={"sessionId": "s", "number": 7, "lists": [[]] * 10_000}))
    assert numbers(drain(streams, session)) == [7]


def test_a_response_to_no_request_is_in_the_connection_stream(streams: EventStreams) -> None:
    streams.put(encode(id="unknown", result={}))
    assert [message["id"] for _, message in read(streams)] == ["unknown"]


def test_text_that_is_not_a_message_is_in_the_connection_stream(streams: EventStreams) -> None:
    streams.put(b'"text"')
    assert read(streams) == [("e.1", "text")]


def test_no_stream_is_expected_after_a_session_new_without_a_session_id(streams: EventStreams) -> None:
    streams.note_request(request(1, "session/new"))
    streams.put(encode(id=1, result={}))
    streams.put(update("s", 1))
    assert len(read(streams)) == 2
    assert streams.unread() == []


def test_line_ends_between_members_do_not_end_an_event(streams: EventStreams) -> None:
    streams.put(b'{"jsonrpc":"2.0",\r"method":"x",\r\n"params":{"a":"\\r"}}')
    ((_, message),) = read(streams)
    assert message["params"] == {"a": "\r"}


def test_the_same_open_request_is_recognised_and_another_is_not(streams: EventStreams) -> None:
    first = request(1, "session/prompt", sessionId="s")
    streams.note_request(first)
    assert streams.is_repeated(request(1, "session/prompt", sessionId="s"))
    assert not streams.is_repeated(request(1, "session/prompt", sessionId="t"))
    assert not streams.is_repeated(request(2, "session/prompt", sessionId="s"))
    streams.put(encode(id=1, result={}))
    assert not streams.is_repeated(first)


def test_a_session_in_a_header_is_percent_decoded_unless_one_of_that_name_is_known(streams: EventStreams) -> None:
    assert streams.known_name("a%2Fb") == "a/b"
    streams.open("a%2Fb", None, READER)
    assert streams.known_name("a%2Fb") == "a%2Fb"
    assert streams.known_name(None) is None


@given(data=st.data())
def test_every_message_is_read_once_and_in_order_however_streams_are_cut(data: st.DataObject) -> None:
    streams = EventStreams("e", KEPT)
    names = [None, "s", "t"]
    sent: dict[str, list[int]] = {"s": [], "t": [], "u": []}
    got: dict[str, list[int]] = {"s": [], "t": [], "u": []}
    last: dict[str | None, str | None] = dict.fromkeys(names)
    readers: dict[str | None, EventStream] = {}
    for number in range(data.draw(st.integers(0, 40), "messages")):
        action = data.draw(st.sampled_from(["put", "put", "open", "read", "cut"]), "action")
        name = data.draw(st.sampled_from(names), "stream")
        if action == "put":
            session = data.draw(st.sampled_from(["s", "t", "u"]), "session")
            streams.put(update(session, number))
            sent[session].append(number)
        elif action == "open" and name not in readers:
            readers[name] = streams.open(name, last[name], name)
        elif name in readers and action in ("read", "cut"):
            arrived = events(streams.take(readers[name], data.draw(st.integers(1, 500), "bytes")))
            if action == "cut":
                arrived = arrived[: data.draw(st.integers(0, len(arrived)), "arrived")]
                streams.close(readers.pop(name), name, 0)
            for id_, message in arrived:
                got[message["params"]["sessionId"]].append(message["params"]["number"])
                last[name] = id_
            # A client without any event has no id to show: it counts by what its system has confirmed.
            if action == "cut" and last[name] is None:
                last[name] = "e.0"
    for name in names:
        if name in readers:
            streams.close(readers[name], name, 0)
    for name in ("s", "t", None):
        for _, message in read(streams, name, last[name]):
            got[message["params"]["sessionId"]].append(message["params"]["number"])
    for session in sent:
        assert got[session] == sent[session]


def test_streams_of_names_without_any_event_are_forgotten() -> None:
    streams = EventStreams("e", KEPT)
    for number in range(10 * MAX_EMPTY):
        streams.close(streams.open(f"random%20{number}", None, READER), READER, 0)
    # The name of a stream that is known is not decoded.
    known = [number for number in range(10 * MAX_EMPTY) if "%" in str(streams.known_name(f"random%20{number}"))]
    assert known == [*range(9 * MAX_EMPTY, 10 * MAX_EMPTY)]


def test_a_stream_whose_messages_have_moved_is_forgotten_if_it_never_had_an_event(streams: EventStreams) -> None:
    left = streams.open("s%20s", None, READER)
    streams.close(left, READER, 0)
    streams.put(update("s%20s"))
    streams.give_up_waiting(left)
    assert streams.known_name("s%20s") == "s s"


def test_a_stream_that_is_left_and_gets_an_event_is_not_forgotten(streams: EventStreams) -> None:
    streams.close(streams.open("s", None, READER), READER, 0)
    streams.put(update("s", 1))
    for number in range(2 * MAX_EMPTY):
        streams.close(streams.open(f"random {number}", None, READER), READER, 0)
    assert numbers(read(streams, "s")) == [1]


def test_a_stream_that_is_read_again_is_not_forgotten() -> None:
    streams = EventStreams("e", KEPT)
    stream = streams.open("s", None, READER)
    streams.close(stream, READER, 0)
    stream = streams.open("s", None, READER)
    for number in range(2 * MAX_EMPTY):
        streams.close(streams.open(f"random {number}", None, READER), READER, 0)
    streams.put(update("s", 1))
    assert numbers(drain(streams, stream)) == [1]


def test_a_stream_that_is_not_read_any_more_does_not_hold_up_the_confirmation_of_others() -> None:
    streams = EventStreams("e", KEPT)
    streams.close(streams.open("left", None, READER), READER, 0)
    read_on = streams.open("read", None, READER)
    streams.put(update("left"))
    for number in range(100):
        streams.put(update("read", number))
        drain(streams, read_on)
    assert streams.confirmed == streams.number == 101
    # Little, but not any amount.
    while streams.confirmed == streams.number:
        streams.put(update("left"))
    assert KEPT // 8 < streams.number * len(update("left")) < KEPT // 4


def test_confirmed_messages_stay_confirmed_when_more_wait() -> None:
    streams = EventStreams("e", KEPT)
    confirmed = 0
    for _ in range(5000):
        streams.put(update("s"))
        assert streams.confirmed >= confirmed
        confirmed = streams.confirmed
    assert confirmed < 5000


def test_small_events_are_kept_in_a_bounded_number() -> None:
    streams = EventStreams("e", 1 << 30)
    stream = streams.open(None, None, READER)
    for _ in range(MAX_KEPT + 10):
        streams.put(b'{"jsonrpc":"2.0","method":"x"}')
    streams.take(stream, KEPT << 10)
    assert streams.kept_bytes == MAX_KEPT * (EVENT_COST + 30)
    with pytest.raises(EventsGone):
        streams.open(None, "e.9", READER)


def test_a_client_may_have_more_than_its_system_has_confirmed(streams: EventStreams) -> None:
    for number in (1, 2, 3):
        streams.put(update("s", number))
    stream = streams.open(None, None, READER)
    streams.close(stream, READER, len(streams.take(stream, KEPT)))
    assert numbers(read(streams, None, "e.2")) == [3]
    with pytest.raises(EventsGone):
        streams.open(None, "e.4", READER)


def test_an_event_that_a_client_may_have_keeps_its_id_when_others_move_into_its_stream(streams: EventStreams) -> None:
    streams.note_request(request(1, "session/new", cwd="/"))
    streams.put(encode(id=1, result={"sessionId": "s"}))
    streams.put(update("s", 1))
    streams.put(update("other", 2))
    stream = streams.open(None, None, READER)
    streams.close(stream, READER, len(streams.take(stream, KEPT)))
    (waiting,) = (unread for unread in streams.unread() if unread.session == "s")
    streams.give_up_waiting(waiting)
    assert numbers(read(streams, None, "e.2")) == [1]
