"""An outbox loses nothing, sends nothing twice, keeps the order and counts every byte, whenever the link breaks."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from acp_gateway.protocol.link_messages import Mark, without_marks
from acp_gateway.protocol.outbox import Outbox
from tests.fuzz.effort import effort

MESSAGES = [b"1", b"22", b"333", b"4444"]
ALL = 1_000_000
MARK = Mark(b"mark")


def filled(*, window: int | None = None, written: int = 0) -> Outbox:
    """An outbox that was given MESSAGES; the first so many of them are written."""
    outbox = Outbox(window)
    outbox.extend(MESSAGES)
    if written:
        assert outbox.take(sum(map(len, MESSAGES[:written]))) == MESSAGES[:written]
    return outbox


# Writing


def test_empty_messages_are_messages() -> None:
    outbox = Outbox()
    outbox.extend([b"", b"a", b""])
    assert outbox.take(0) == [b""]
    assert outbox.take(1) == [b"a", b""]


def test_the_messages_held_are_the_very_objects_that_were_put_in() -> None:
    outbox = filled(window=ALL, written=2)
    assert all(held is message for held, message in zip(outbox.messages(), MESSAGES, strict=True))


def test_what_passes_by_is_held_until_it_is_confirmed_and_stays_within_the_window() -> None:
    outbox = Outbox(10)
    assert not outbox.pass_by([], ALL)
    assert outbox.pass_by([b"666666", MARK], ALL)
    assert (outbox.written, outbox.confirmed, list(outbox.messages())) == (1, 0, [b"666666", MARK])
    assert not outbox.pass_by([b"1"], ALL)
    assert (outbox.written, outbox.unconfirmed_bytes) == (1, 10)
    outbox.rewind(1)
    assert not outbox.pass_by([b"1"], ALL)
    assert outbox.take(ALL) == [MARK]
    assert outbox.pass_by([b"55555"], ALL)
    assert not outbox.pass_by([b"55555"], ALL)
    outbox.confirm(2)
    assert outbox.pass_by([b"55555", b"55555"], ALL)


# Confirming and going back


@pytest.mark.parametrize("window", [ALL, None])
def test_more_than_was_written_cannot_be_confirmed(window: int | None) -> None:
    outbox = filled(window=window, written=2)
    held = list(outbox.messages())
    for tell in (outbox.confirm, outbox.rewind):
        with pytest.raises(ValueError, match="3 messages confirmed, but 2 written"):
            tell(3)
    assert (list(outbox.messages()), outbox.written) == (held, 2)


def test_what_was_taken_back_cannot_be_confirmed_before_it_is_written_again() -> None:
    outbox = filled(window=ALL, written=3)
    outbox.rewind(1)
    with pytest.raises(ValueError, match="2 messages confirmed, but 1 written"):
        outbox.confirm(2)


def test_a_rewind_brings_back_nothing_that_was_confirmed_before() -> None:
    outbox = filled(window=ALL, written=3)
    outbox.confirm(2)
    outbox.rewind(0)
    assert outbox.take(ALL) == MESSAGES[2:]


def test_a_rewind_brings_nothing_back_to_a_stock_peer() -> None:
    outbox = filled(written=3)
    outbox.rewind(0)
    assert outbox.take(ALL) == MESSAGES[3:]


# Forgetting


def test_after_clear_nothing_is_held_and_the_counts_go_on() -> None:
    outbox = filled(window=ALL, written=3)
    outbox.confirm(1)
    outbox.clear()
    assert (list(outbox.messages()), len(outbox), outbox.unwritten) == ([], 0, False)
    assert (outbox.unwritten_bytes, outbox.unconfirmed_bytes, outbox.backlog) == (0, 0, 0)
    assert (outbox.written, outbox.confirmed) == (3, 3)
    outbox.append(b"next")
    outbox.rewind(2)
    assert outbox.take(ALL) == [b"next"]
    outbox.confirm(4)
    assert len(outbox) == 0


def test_an_outbox_whose_messages_are_confirmed_takes_no_more_memory_than_a_new_one() -> None:
    def sizes(outbox: Outbox) -> list[int]:
        return [sys.getsizeof(getattr(outbox, name)) for name in Outbox.__slots__]

    outbox = filled(window=ALL, written=4)
    assert sum(sizes(outbox)) > sum(sizes(Outbox(ALL)))
    outbox.confirm(4)
    assert sizes(outbox) == sizes(Outbox(ALL))


def test_a_replay_that_was_cleared_hides_nothing_that_comes_after() -> None:
    outbox = Outbox()
    outbox.extend([b"live", b"old"], replay=3)
    outbox.clear()
    outbox.append(b"new")
    assert outbox.backlog == 3
    outbox.extend([b"history"], replay=7)
    assert outbox.backlog == 3


# The window


def test_no_more_is_on_its_way_than_the_window_holds() -> None:
    outbox = Outbox(6)
    outbox.extend(MESSAGES)
    assert outbox.take(ALL) == MESSAGES[:3]
    assert not outbox.ready
    assert outbox.unwritten
    assert outbox.take(ALL) == []
    outbox.confirm(2)
    assert outbox.ready
    assert outbox.take(3) == MESSAGES[3:]
    assert (outbox.unconfirmed_bytes, outbox.ready) == (7, False)


def test_what_is_taken_at_once_fits_into_what_the_window_has_left() -> None:
    outbox = Outbox(4)
    outbox.extend([b"1", b"2"])
    outbox.take(ALL)
    outbox.extend([b"3", b"4", b"5"])
    assert outbox.take(ALL) == [b"3", b"4"]


def test_a_message_larger_than_the_window_goes_out_when_nothing_else_fills_it() -> None:
    outbox = Outbox(3)
    outbox.extend([b"333", b"4444", b"1"])
    assert outbox.take(ALL) == [b"333"]
    assert outbox.take(ALL) == []
    outbox.confirm(1)
    assert outbox.take(ALL) == [b"4444"]
    assert outbox.take(ALL) == []
    outbox.confirm(2)
    assert outbox.take(ALL) == [b"1"]


def test_a_window_with_any_room_takes_one_message_of_any_size() -> None:
    outbox = Outbox(4)
    outbox.extend([b"333", b"4444", b"1"])
    assert outbox.take(ALL) == [b"333"]
    assert outbox.take(ALL) == [b"4444"]
    assert outbox.take(ALL) == []


def test_after_a_rewind_the_window_is_empty_again() -> None:
    outbox = Outbox(3)
    outbox.extend(MESSAGES)
    assert outbox.take(ALL) == MESSAGES[:2]
    outbox.rewind(0)
    assert outbox.ready
    assert outbox.take(ALL) == MESSAGES[:2]


def test_an_outbox_with_nothing_to_write_is_not_ready() -> None:
    assert not Outbox().ready
    assert not Outbox(ALL).ready
    assert not Outbox(0).ready
    assert filled().ready


# Marks


def test_a_mark_keeps_its_place_and_is_not_counted() -> None:
    outbox = Outbox(ALL)
    outbox.extend([b"1", MARK, b"22", MARK])
    assert (len(outbox), outbox.unwritten_bytes) == (2, 3 + 2 * len(MARK))
    taken = outbox.take(ALL)
    assert taken == [b"1", MARK, b"22", MARK]
    assert [type(message) for message in taken] == [bytes, Mark, bytes, Mark]
    assert (outbox.written, len(outbox), outbox.unconfirmed_bytes) == (2, 2, 3 + 2 * len(MARK))
    with pytest.raises(ValueError, match="3 messages confirmed, but 2 written"):
        outbox.confirm(3)


def test_a_mark_goes_out_again_unless_a_later_message_has_arrived() -> None:
    outbox = Outbox(ALL)
    outbox.extend([b"1", MARK, b"22", b"333"])
    outbox.take(ALL)
    outbox.rewind(1)
    assert outbox.take(ALL) == [MARK, b"22", b"333"]
    outbox.rewind(2)
    assert outbox.take(ALL) == [b"333"]


def test_a_mark_before_a_message_is_forgotten_with_it() -> None:
    outbox = Outbox(ALL)
    outbox.extend([MARK, b"1", MARK])
    outbox.take(ALL)
    outbox.confirm(1)
    assert list(outbox.messages()) == [MARK]
    assert (len(outbox), outbox.unconfirmed_bytes) == (0, len(MARK))


def test_a_mark_takes_room_in_the_window() -> None:
    outbox = Outbox(len(MARK) + 1)
    outbox.extend([b"1", MARK, b"2"])
    assert outbox.take(ALL) == [b"1", MARK]
    assert outbox.take(ALL) == []


def test_marks_that_fill_the_window_alone_hold_up_nothing() -> None:
    outbox = Outbox(1)
    outbox.extend([MARK, MARK, b"1", b"2"])
    assert outbox.take(ALL) == [MARK]
    assert outbox.take(ALL) == [MARK]
    assert outbox.take(ALL) == [b"1"]
    assert outbox.take(ALL) == []
    outbox.confirm(1)
    assert outbox.take(ALL) == [b"2"]


def test_what_certainly_has_not_left_is_told_without_marks() -> None:
    outbox = Outbox(ALL)
    outbox.extend([b"1", MARK, b"22", MARK, b"333"])
    outbox.take(1 + len(MARK))
    assert outbox.unwritten_messages() == [b"22", b"333"]
    outbox.rewind(0)
    assert outbox.unwritten_messages() == [b"1", b"22", b"333"]


def test_what_may_have_arrived_or_not_is_told_without_marks() -> None:
    outbox = Outbox(ALL)
    outbox.extend([b"1", MARK, b"22", MARK, b"333"])
    assert outbox.unconfirmed_messages() == []
    outbox.take(1 + len(MARK))
    outbox.take(2)
    assert outbox.unconfirmed_messages() == [b"1", b"22"]
    outbox.confirm(1)
    assert outbox.unconfirmed_messages() == [b"22"]
    outbox.rewind(1)
    assert outbox.unconfirmed_messages() == []


# Replays


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=5), st.lists(st.integers(1, 20), max_size=9))
def test_several_replays_at_a_time_never_make_the_backlog_look_smaller(
    pieces: list[tuple[int, int]], takes: list[int]
) -> None:
    outbox = Outbox()
    live = []
    for history, talk in pieces:
        outbox.extend([b"h"] * history, replay=history)
        outbox.extend([b"t"] * talk)
        live += [0] * history + [1] * talk
    for max_bytes in [0, *takes]:
        del live[: len(outbox.take(max_bytes))]
        assert sum(live) <= outbox.backlog <= outbox.unconfirmed_bytes


# Any order of events


class Talk(RuleBasedStateMachine):
    """One side says messages, the link breaks at any point, the peer confirms when it likes.

    The model is everything that was ever said, in a list, and how far each party has come in it.
    """

    @initialize(resumes=st.booleans())
    def begin(self, resumes: bool) -> None:
        self.resumes = resumes
        self.outbox = Outbox(ALL if resumes else None)
        self.said: list[bytes] = []
        # The place in `said` of what belongs to replays.
        self.replayed: set[int] = set()
        # What the peer has got, and what is still on its way: lost if the link breaks now.
        self.received: list[bytes] = []
        self.on_the_way: list[bytes] = []
        self.confirmed = 0
        # How many were ever written, rewinds aside.
        self.once_written = 0

    def unique(self, size: int) -> bytes:
        message = b"%d:" % len(self.said) + b"x" * size
        self.said.append(message)
        return message

    @property
    def written(self) -> int:
        return len(self.received) + len(self.on_the_way)

    def confirm_up_to(self, received: int) -> None:
        self.confirmed = max(self.confirmed, received)

    @rule(size=st.integers(0, 30))
    def append(self, size: int) -> None:
        self.outbox.append(self.unique(size))

    @rule(sizes=st.lists(st.integers(0, 30), max_size=5))
    def extend(self, sizes: list[int]) -> None:
        self.outbox.extend([self.unique(size) for size in sizes])

    # The count is exact while there is one replay at a time.
    @precondition(lambda self: not any(place >= self.once_written for place in self.replayed))
    @rule(history=st.lists(st.integers(0, 30), max_size=5), others=st.lists(st.integers(0, 30), max_size=2))
    def replay(self, history: list[int], others: list[int]) -> None:
        begin = len(self.said)
        messages = [self.unique(size) for size in history]
        self.replayed.update(range(begin, len(self.said)))
        replay = sum(map(len, messages))
        self.outbox.extend(messages + [self.unique(size) for size in others], replay=replay)

    @rule(max_bytes=st.integers(0, 100))
    def write(self, max_bytes: int) -> None:
        to_write = self.said[self.written :]
        taken = self.outbox.take(max_bytes)
        assert taken == to_write[: len(taken)]
        assert bool(taken) == bool(to_write)
        assert len(taken) == 1 or sum(map(len, taken)) <= max_bytes
        if taken and len(taken) < len(to_write):
            assert sum(map(len, to_write[: len(taken) + 1])) > max_bytes
        self.on_the_way += without_marks(taken)
        self.once_written = max(self.once_written, self.written)
        if not self.resumes:
            self.confirm_up_to(self.written)

    @rule(sizes=st.lists(st.integers(0, 30), min_size=1, max_size=5), max_bytes=st.integers(0, 100))
    def pass_by(self, sizes: list[int], max_bytes: int) -> None:
        some_wait = self.written < len(self.said)
        messages = [self.unique(size) for size in sizes]
        passed = self.outbox.pass_by(messages, max_bytes)
        assert passed == (not some_wait and sum(map(len, messages)) <= max_bytes)
        if not passed:
            del self.said[-len(messages) :]
            return
        self.on_the_way += messages
        self.once_written = max(self.once_written, self.written)
        if not self.resumes:
            self.confirm_up_to(self.written)

    @rule(count=st.integers(0, 10))
    def arrive(self, count: int) -> None:
        self.received += self.on_the_way[:count]
        del self.on_the_way[:count]

    @rule(back=st.integers(0, 10))
    def confirm(self, back: int) -> None:
        received = max(0, len(self.received) - back)
        self.outbox.confirm(received)
        self.confirm_up_to(received)

    @rule(beyond=st.integers(1, 3))
    def claim_too_much(self, beyond: int) -> None:
        with pytest.raises(ValueError, match="written"):
            self.outbox.confirm(self.written + beyond)
        with pytest.raises(ValueError, match="written"):
            self.outbox.rewind(self.written + beyond)

    @precondition(lambda self: self.resumes)
    @rule()
    def lose_the_link(self) -> None:
        self.on_the_way.clear()
        self.outbox.rewind(len(self.received))
        self.confirm_up_to(len(self.received))

    @invariant()
    def held_is_what_is_not_confirmed(self) -> None:
        held = self.said[self.confirmed :]
        assert list(self.outbox.messages()) == held
        assert (len(self.outbox), self.outbox.unconfirmed_bytes) == (len(held), sum(map(len, held)))
        assert (self.outbox.written, self.outbox.confirmed) == (self.written, self.confirmed)
        assert self.outbox.put_bytes == sum(map(len, self.said))
        to_write = self.said[self.written :]
        assert self.outbox.unwritten_bytes == sum(map(len, to_write))
        assert self.outbox.unwritten == bool(self.outbox) == bool(to_write)
        not_counted = sum(len(self.said[place]) for place in self.replayed if place >= self.once_written)
        assert self.outbox.backlog == sum(map(len, held)) - not_counted

    @invariant()
    def the_peer_has_everything_once_and_in_order(self) -> None:
        assert self.received == self.said[: len(self.received)]

    def teardown(self) -> None:
        if hasattr(self, "outbox"):
            while self.outbox:
                self.on_the_way += without_marks(self.outbox.take(50))
            assert self.received + self.on_the_way == self.said
            self.outbox.confirm(len(self.said))
            assert len(self.outbox) == self.outbox.backlog == 0


TestTalk = Talk.TestCase
TestTalk.settings = effort(50, steps=40)
