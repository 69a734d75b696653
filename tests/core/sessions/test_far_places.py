"""Places in the history of another gateway."""

from typing import Any

import pytest

from acp_gateway.core.sessions.far_places import (
    FORMER_KEPT,
    FarPlace,
    begun_message,
    decode_place,
    encode_place,
    former_places,
    has_epoch,
    note_own_message,
    place_of,
    seen_up_to,
    start_of,
    step,
)
from acp_gateway.core.sessions.session import Session
from acp_gateway.core.turns.journal import Journal


def session_with(count: int, far: FarPlace | None = None, limit: int = 1000) -> Session:
    """A session with so many messages."""
    session = Session("gpu/agent", "s", "me", Journal(limit, "here"))
    for _ in range(count):
        session.journal.append(b"message")
    session.far = far
    return session


def test_without_another_gateway_the_places_are_those_of_the_journal() -> None:
    session = session_with(3)
    assert place_of(session) == ("here", 3)
    assert place_of(session, 1) == ("here", 1)
    assert [seen_up_to(session, "here", at) for at in (2, 3, 4)] == [2, 3, None]
    assert start_of(session) == 0
    note_own_message(session)
    assert place_of(session) == ("here", 3)


def test_the_places_are_those_of_the_other_gateway_otherwise() -> None:
    session = session_with(3, FarPlace("e", "l", 10))
    assert place_of(session) == ("e", 13)
    assert [seen_up_to(session, "e", at) for at in (9, 11, 13, 14)] == [-1, 1, 3, None]
    assert seen_up_to(session, "here", 2) is None


def test_a_client_in_a_former_epoch_has_seen_no_more_than_its_end() -> None:
    session = session_with(5, FarPlace("e", "l", 10))
    assert session.far is not None
    session.far.owed = 1
    session.far.begin_epoch("f", 2, 4)
    assert place_of(session) == ("f", 7)
    assert session.far.owed == 0
    assert [seen_up_to(session, "e", at) for at in (11, 14, 20)] == [1, 4, 4]


def test_what_was_seen_of_a_former_epoch_beyond_its_end_here_is_that_which_has_followed() -> None:
    session = session_with(6, FarPlace("e", "l", 10))
    assert session.far is not None
    session.far.begin_epoch("f", 12, 2)
    session.far_former = {"e": 15, "d": 14}
    assert [seen_up_to(session, "e", at) for at in (11, 12, 13, 15, 20)] == [1, 2, 2, 3, 3]
    assert [seen_up_to(session, "d", at) for at in (13, 20)] == [1, 2]


def test_a_gateway_tells_the_former_epochs_as_its_clients_count() -> None:
    session = session_with(4)
    session.journal.rename("later")
    assert former_places(session) == {"here": 4}
    session = session_with(5, FarPlace("e", "l", 10))
    assert session.far is not None
    session.far.begin_epoch("f", 2, 4)
    session.far_former = {"d": 3}
    assert former_places(session) == {"e": 14, "d": 3}


def test_a_few_former_epochs_are_remembered() -> None:
    far = FarPlace("0", "l", 0)
    for number in range(1, FORMER_KEPT + 3):
        far.begin_epoch(str(number), 0, number)
    assert list(far.former) == [str(number) for number in range(2, FORMER_KEPT + 2)]


def test_positions_count_after_what_was_replayed_without_a_place() -> None:
    assert start_of(session_with(3, FarPlace("e", "l", 0, 2))) == 2
    assert start_of(session_with(3, FarPlace("e", "l", 0, 9))) == 3
    # The journal has lost its beginning.
    assert start_of(session_with(3, FarPlace("e", "l", 0, 1), limit=10)) == 2


def test_what_this_gateway_writes_is_what_the_other_has_told_or_a_difference() -> None:
    session = session_with(3, FarPlace("e", "l", 10))
    assert session.far is not None
    session.far.owed = 1
    note_own_message(session)
    assert (session.far.owed, session.far.offset) == (0, 10)
    note_own_message(session)
    assert (session.far.owed, session.far.offset) == (-1, 10)


def test_a_place_is_stored_and_read_again() -> None:
    assert encode_place(None) is None
    far = FarPlace("e", "l", -3, 4, {"d": (1, 2)})
    read = decode_place(encode_place(far))
    assert read is not None
    assert (read.epoch, read.link, read.offset, read.start, read.former) == ("e", "l", -3, 4, {"d": (1, 2)})


@pytest.mark.parametrize(
    "text",
    [None, "", "{", "5", "[]", '["e","l",1,0]', '["e","l","x",0,{}]', '["e","l",1,0,[]]', '["e","l",1,0,{"d":5}]'],
)
def test_a_text_without_a_place_gives_nothing(text: Any) -> None:
    assert decode_place(text) is None


@pytest.mark.parametrize(("got", "seen", "left"), [(0, 3, 2), (1, 3, 1), (2, 4, None), (9, 4, None)])
def test_a_client_within_a_message_lacks_its_last_updates(got: int, seen: int, left: int | None) -> None:
    session = session_with(5)
    epoch, _ = step(("here", 3), 4, 2)
    assert has_epoch(session, epoch)
    assert seen_up_to(session, epoch, got) == seen
    begun = begun_message(session, epoch, got)
    assert (begun and tuple(begun)) == (left and (3, left))


@pytest.mark.parametrize("got", [0, 1, 7])
def test_updates_in_no_place_change_none(got: int) -> None:
    session = session_with(5)
    epoch, _ = step(("here", 3), 3, 0)
    assert seen_up_to(session, epoch, got) == 3
    assert begun_message(session, epoch, got) is None


def test_a_message_that_was_lost_on_the_disk_is_not_taken_for_the_next_one_at_its_place() -> None:
    session = session_with(3)
    session.journal.rename("later")
    session.journal.append(b"message")
    epoch, _ = step(("here", 3), 4, 2)
    assert seen_up_to(session, epoch, 1) == 3
    assert begun_message(session, epoch, 1) is None


@pytest.mark.parametrize(
    "epoch", ["other/3/4/2", "here/3/4", "here/3/4/x", "here/3/4/²", "here/3/4/2/", f"here/3/4/{'9' * 16}"]
)
def test_a_word_that_is_not_a_step_of_this_history_proves_nothing(epoch: str) -> None:
    session = session_with(5)
    assert seen_up_to(session, epoch, 1) is None
    assert not has_epoch(session, epoch)
    assert begun_message(session, epoch, 1) is None
