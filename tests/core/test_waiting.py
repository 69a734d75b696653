"""Requests that wait: released in order, dropped with their clients, withdrawn one by one."""

from collections import deque
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.core.sessions.session import Client, DirectoryCheck, Request, Session, SessionReach, Transit
from acp_gateway.core.states import SessionState
from acp_gateway.core.turns.journal import Journal
from acp_gateway.core.waiting import Event, Until, Waiting
from acp_gateway.protocol import jsonrpc

ALWAYS = [until for until in Until if until is not Until.SESSION_REOPENED]
ids = count(1)


def client(name: str = "ann", *, guest: bool = False) -> Client:
    return Client(name, SessionReach("me", "s" if guest else None, guest))


def session(session_id: str = "s") -> Session:
    return Session("agent", session_id, "me", Journal(1000))


def request(asks: Client, session_id: str = "s", method: str = "session/prompt") -> Request:
    text = b'{"id":%d,"method":"%b","params":{"sessionId":"%b"}}' % (next(ids), method.encode(), session_id.encode())
    it = Request(asks, jsonrpc.parse(text))
    asks.add_request(it)
    return it


@pytest.fixture
def waiting() -> Waiting:
    return Waiting()


@pytest.fixture
def ann() -> Client:
    return client()


@pytest.mark.parametrize("until", Until)
def test_release_returns_the_requests_of_an_event_once_and_in_order(
    waiting: Waiting, ann: Client, until: Until
) -> None:
    first, second, other = request(ann), request(ann), request(ann)
    waiting.add(first, until, "a")
    waiting.add(other, until, "b")
    waiting.add(second, until, "a")
    assert (waiting.of(until, "a"), waiting.of(until, "b"), waiting.of(until)) == ((first, second), (other,), ())
    assert waiting.of_kind(until) == (first, second, other)
    assert waiting.release(until, "a") == [first, second]
    assert waiting.release(until, "a") == []
    assert len(waiting) == 1


def test_a_request_waits_for_one_event_only(waiting: Waiting, ann: Client) -> None:
    it = request(ann)
    waiting.add(it, Until.AGENT_READY)
    with pytest.raises(AssertionError):
        waiting.add(it, Until.SESSIONS_FREED)
    assert waiting.release(Until.SESSIONS_FREED) == []


def test_withdraw_tells_a_request_that_does_not_wait(waiting: Waiting, ann: Client) -> None:
    it = request(ann)
    assert waiting.withdraw(it) is None
    waiting.add(it, Until.AGENT_READY)
    assert waiting.withdraw(it) == []
    assert waiting.withdraw(it) is None
    assert len(waiting) == 0


def test_withdraw_frees_the_requests_behind_a_directory_check_with_the_one_that_names_the_directories(
    waiting: Waiting, ann: Client
) -> None:
    opening, second, third, fourth = (request(ann) for _ in range(4))
    check = DirectoryCheck(opening, ("/srv",))
    for it in (opening, second, third, fourth):
        waiting.add(it, Until.DIRECTORIES_CHECKED, check)
    assert waiting.withdraw(third) == []
    assert waiting.withdraw(opening) == [second, fourth]
    assert waiting.release(Until.DIRECTORIES_CHECKED, check) == []
    assert len(waiting) == 0


def test_take_returns_the_requests_that_meet_a_condition_in_order(waiting: Waiting, ann: Client) -> None:
    bob = client("bob")
    mine, bobs, later = request(ann), request(bob), request(ann)
    waiting.add(mine, Until.SESSION_OPEN, session())
    waiting.add(bobs, Until.AGENT_READY)
    waiting.add(later, Until.AGENT_READY)
    assert waiting.take(lambda it: it.client is ann) == [mine, later]
    assert waiting.release(Until.AGENT_READY) == [bobs]


@pytest.mark.parametrize("guest", [False, True])
def test_client_gone_keeps_the_prompts_of_a_client_that_wait_for_their_turn_unless_it_is_a_guest(
    waiting: Waiting, *, guest: bool
) -> None:
    leaver, other = client(guest=guest), client("bob")
    place = session()
    prompt, held, others = request(leaver), request(leaver), request(other)
    waiting.add(prompt, Until.TURN_FREE, place)
    waiting.add(held, Until.SESSION_OPEN, place)
    waiting.add(others, Until.SESSION_OPEN, place)
    request(leaver)
    waiting.client_gone(leaver)
    assert waiting.of(Until.SESSION_OPEN, place) == (others,)
    assert waiting.of(Until.TURN_FREE, place) == (() if guest else (prompt,))


def test_clear_can_spare_the_requests_for_a_session_to_be_reopened(waiting: Waiting, ann: Client) -> None:
    returning = request(ann)
    waiting.add(returning, Until.SESSION_REOPENED, "s")
    assert not waiting.busy
    for until in ALWAYS:
        waiting.add(request(ann), until, "x")
        assert waiting.busy
    waiting.clear(but=Until.SESSION_REOPENED)
    assert not waiting.busy
    assert (len(waiting), waiting.of(Until.SESSION_REOPENED, "s")) == (1, (returning,))
    waiting.clear()
    assert (len(waiting), waiting.release(Until.SESSION_REOPENED, "s")) == (0, [])


# The order of a client's requests


def test_must_follow_names_the_directory_check_of_an_earlier_request_of_the_client_and_of_no_later_one(
    waiting: Waiting, ann: Client
) -> None:
    earlier, opening, later, bobs = request(ann), request(ann), request(ann), request(client("bob"))
    waiting.add(earlier, Until.AGENT_READY)
    check = DirectoryCheck(opening, ("/srv",))
    waiting.add(opening, Until.DIRECTORIES_CHECKED, check)
    assert waiting.must_follow(later, None) == Event(Until.DIRECTORIES_CHECKED, check)
    waiting.withdraw(earlier)
    assert waiting.must_follow(earlier, None) is None
    assert waiting.must_follow(bobs, None) is None


def test_must_follow_names_the_check_of_another_opening_of_the_session_alone(waiting: Waiting, ann: Client) -> None:
    opening = request(ann, "s")
    check = DirectoryCheck(opening, ("/srv",))
    waiting.add(opening, Until.DIRECTORIES_CHECKED, check)
    assert waiting.must_follow(request(ann, "s"), None) == Event(Until.DIRECTORIES_CHECKED, check)
    assert waiting.must_follow(request(ann, "another"), None) is None
    waiting.release(Until.DIRECTORIES_CHECKED, check)
    assert waiting.must_follow(request(ann, "s"), None) is None


def test_must_follow_looks_at_no_other_request_of_a_client_that_opens_a_thousand_sessions(
    waiting: Waiting, ann: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1000):
        opening = request(ann, f"s{number}")
        waiting.add(opening, Until.DIRECTORIES_CHECKED, DirectoryCheck(opening, ("/srv",)))
    later = request(ann, "another")
    monkeypatch.setattr(ann, "requests", None)
    assert waiting.must_follow(later, None) is None


def test_must_follow_names_the_journal_that_another_request_of_the_client_for_that_session_waits_for(
    waiting: Waiting, ann: Client
) -> None:
    place = session()
    waiting.add(request(ann, method="session/load"), Until.JOURNAL_LOADED, place)
    assert waiting.must_follow(request(ann), None) == Event(Until.JOURNAL_LOADED, place)
    assert waiting.must_follow(request(ann, "another"), None) is None
    assert waiting.must_follow(request(client("bob")), None) is None


def test_must_follow_looks_behind_the_checks_and_journals_that_no_longer_concern_the_request(
    waiting: Waiting, ann: Client
) -> None:
    opening, place = request(ann), session("other")
    waiting.add(opening, Until.DIRECTORIES_CHECKED, DirectoryCheck(opening, ("/srv",)))
    # Another client's request for a session of the same id waits for a journal as well.
    waiting.add(request(client("bob"), method="session/load"), Until.JOURNAL_LOADED, session())
    waiting.add(request(ann, "other", "session/load"), Until.JOURNAL_LOADED, place)
    assert waiting.must_follow(request(ann, "other"), None) == Event(Until.JOURNAL_LOADED, place)


def test_a_request_that_names_no_session_does_not_follow_another_one_whose_journal_is_read(
    waiting: Waiting, ann: Client
) -> None:
    first, second = (Request(ann, jsonrpc.parse(b'{"id":%d,"method":"session/new"}' % next(ids))) for _ in range(2))
    for it in (first, second):
        ann.add_request(it)
    waiting.add(first, Until.JOURNAL_LOADED, session())
    assert waiting.must_follow(second, None) is None


def test_must_follow_names_a_session_that_is_in_transit(waiting: Waiting, ann: Client) -> None:
    place = session()
    place.move_to(SessionState.OPENING, Transit())
    assert waiting.must_follow(request(ann), place) == Event(Until.SESSION_OPEN, place)
    place.move_to(SessionState.OPEN)
    assert waiting.must_follow(request(ann), place) is None


# Any order of calls


class Naive:
    """The waiting requests as a list of pairs."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Request, Event]] = []

    def release(self, event: Event) -> list[Request]:
        released = [it for it, its in self.pairs if its == event]
        self.pairs = [pair for pair in self.pairs if pair[1] != event]
        return released


events = st.builds(Event, st.sampled_from(Until), st.sampled_from(["a", "b", None]))


@given(st.lists(st.tuples(st.sampled_from(["add", "add", "release", "first", "withdraw"]), events, st.integers(0, 9))))
def test_waiting_equals_a_list_of_requests_and_events(calls: list[tuple[str, Event, int]]) -> None:
    waiting, naive, ann = Waiting(), Naive(), client()
    for call, event, pick in calls:
        queue = deque(it for it, its in naive.pairs if its == event)
        if call == "add":
            it = request(ann)
            waiting.add(it, *event)
            naive.pairs.append((it, event))
        elif call == "release":
            assert waiting.release(*event) == naive.release(event)
        elif call == "first":
            first = queue.popleft() if queue else None
            assert waiting.release_first(*event) is first
            naive.pairs = [pair for pair in naive.pairs if pair[0] is not first]
        elif naive.pairs:
            it, _ = naive.pairs.pop(pick % len(naive.pairs))
            assert waiting.withdraw(it) == []
        assert len(waiting) == len(naive.pairs)
        assert waiting.busy == any(its.until is not Until.SESSION_REOPENED for _, its in naive.pairs)
        assert waiting.of(*event) == tuple(it for it, its in naive.pairs if its == event)
