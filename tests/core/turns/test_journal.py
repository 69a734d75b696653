"""A journal stays within its bound, is cut where turns end, and never loses a state."""

from collections.abc import Iterable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from acp_gateway.core.requests import TurnOutcome
from acp_gateway.core.turns.ends import TurnEnd
from acp_gateway.core.turns.journal import FORMER_EPOCHS, Journal, TurnMessages
from acp_gateway.core.turns.times import Times
from acp_gateway.protocol.text.pairs import Entry, Pair, has_pairs, size_of, text_of
from tests.fuzz.effort import effort


def journal(limit: int, *turns: Iterable[bytes], running: Iterable[bytes] = ()) -> Journal:
    written = Journal(limit)
    for turn in turns:
        for message in turn:
            written.append(message)
        written.turn_ended()
    for message in running:
        written.append(message)
    return written


# Truncation


def test_a_journal_can_be_made_to_give_up_its_oldest_turns_once() -> None:
    written = journal(10, [b"aa"], [b"bb"], [b"cc"])
    written.shrink(4)
    assert (written.replay(), written.truncated) == ([b"bb", b"cc"], True)
    written.append(b"dddd")
    assert written.size == 8


# Epochs


def test_a_place_counts_in_all_epochs_that_a_journal_ever_had_up_to_where_each_ended() -> None:
    written = Journal(100, "a")
    written.extend([b"1", b"2"])
    written.rename("b")
    written.extend([b"3"])
    written.rename("c")
    written.extend([b"4"])
    assert written.former == (("a", 2), ("b", 3))
    assert [written.shared_with(epoch, 1) for epoch in ("a", "b", "c")] == [1, 1, 1]
    # A client has seen more of it than is here: later messages are new to it.
    assert [written.shared_with(epoch, 50) for epoch in ("a", "b")] == [2, 3]


@pytest.mark.parametrize(("epoch", "position"), [("", 0), ("other", 1), ("b", 3)])
def test_a_place_in_another_journal_or_past_the_end_of_this_one_proves_nothing(epoch: str, position: int) -> None:
    written = Journal(100, "b")
    written.extend([b"1", b"2"])
    assert written.shared_with(epoch, position) is None
    assert Journal(100).shared_with("", 0) is None


def test_former_epochs_of_a_journal_are_restored_up_to_a_maximum() -> None:
    restored = Journal(100, "x")
    restored.restore(
        [],
        [TurnMessages([b"1", b"2"], {}, ends_turn=False)],
        2,
        truncated=False,
        former=[("a", 1), ("damaged", 3), ("b", 2)],
    )
    assert restored.former == (("a", 1), ("b", 2))
    for number in range(FORMER_EPOCHS - 1):
        restored.rename(f"epoch {number}")
    assert len(restored.former) == FORMER_EPOCHS
    assert restored.shared_with("a", 1) is None
    assert restored.shared_with("b", 1) == 1
    assert restored.shared_with("x", 2) == 2


# Any order of events

Said = list[tuple[Entry, str | None]]

TIME = st.sampled_from([None, 1, 1, 2, 3])

CARRIES = st.sampled_from([False, False, False, True])


def last_of_each_kind(said: Said) -> list[Entry]:
    """In the order in which they were said."""
    last = {kind: place for place, (_, kind) in enumerate(said) if kind is not None}
    return [said[place][0] for place in sorted(last.values())]


class History(RuleBasedStateMachine):
    """The model is all that was ever said, in a list, where turns ended in it, and where it is cut."""

    @initialize(limit=st.integers(0, 60) | st.integers(200, 500))
    def begin(self, limit: int) -> None:
        self.limit = limit
        self.journal = Journal(limit)
        self.start_again()

    def start_again(self) -> None:
        self.said: Said = []
        self.times: list[int | None] = []
        self.ends: set[int] = set()
        self.told: list[TurnEnd] = []
        self.cut = 0
        self.unknown_before = False

    def expected(self, cut: int) -> list[Entry]:
        return last_of_each_kind(self.said[:cut]) + [message for message, _ in self.said[cut:]]

    def move_cut(self) -> None:
        """To the first place that will do: where it is, where a turn ended, or anywhere behind the last of these."""
        last_end = max(self.ends | {self.cut})
        places = [self.cut, *sorted(end for end in self.ends if end > self.cut), *range(last_end, len(self.said))]
        fitting = (place for place in places if size_of(self.expected(place)) + self.size_told(place) <= self.limit)
        place = next(fitting, len(self.said))
        self.told = self.told_after(place)
        self.cut = place
        while self.told and size_of(self.expected(place)) + self.size_told(place) > self.limit:
            del self.told[0]

    def told_after(self, place: int) -> list[TurnEnd]:
        """Those of turns that are there if the history is cut at this place."""
        return self.told if place == self.cut else [end for end in self.told if end.position > place]

    def size_told(self, place: int) -> int:
        return sum(end.size for end in self.told_after(place))

    def message(self, number: int, size: int, *, carries: bool) -> Entry:
        text = b"%d" % number + b"." * size
        return Pair(text, b"+" * size if size else None) if carries else text

    @rule(
        size=st.integers(0, 20),
        kind=st.sampled_from([None, None, None, "mode", "commands", "title"]),
        time=TIME,
        carries=CARRIES,
    )
    def append(self, size: int, kind: str | None, time: int | None, carries: bool) -> None:
        message = self.message(len(self.said), size, carries=carries)
        self.journal.append(message, kind, time)
        self.said.append((message, kind))
        self.times.append(time)
        self.move_cut()

    @rule(sizes=st.lists(st.integers(0, 20), max_size=6), time=TIME, carries=CARRIES)
    def extend(self, sizes: list[int], time: int | None, carries: bool) -> None:
        """All at once is as one after the other, but for what did not fit in between."""
        self.journal.carries |= carries
        messages = [
            self.message(len(self.said) + number, size, carries=carries and number % 2 == 1)
            for number, size in enumerate(sizes)
        ]
        self.journal.extend(messages, time)
        self.said += [(message, None) for message in messages]
        self.times += [time] * len(messages)
        self.move_cut()

    @rule()
    def turn_ended(self) -> None:
        self.journal.turn_ended()
        self.ends.add(len(self.said))

    @rule(reason=st.sampled_from(["end_turn", "refusal"]), time=TIME)
    def turn_has_ended_so(self, reason: str, time: int | None) -> None:
        outcome = TurnOutcome(reason)
        self.journal.note_end(outcome, time)
        nth = 1 + max((end.nth for end in self.told if end.position == len(self.said)), default=0)
        self.told.append(TurnEnd(len(self.said), nth, outcome, time))
        self.move_cut()
        self.turn_ended()

    @rule()
    def begin_truncated(self) -> None:
        self.journal.begin_truncated()
        self.unknown_before = True

    @rule(tail=st.sampled_from([b"", b"~", b"~~~~~"]), short=st.booleans())
    def go_on_with_a_copy(self, tail: bytes, short: bool) -> None:
        def rewrite(message: Entry) -> Entry:
            text = (text_of(message).rstrip(b".~") if short else text_of(message)) + tail
            return Pair(text, message.original) if isinstance(message, Pair) else text

        original, before = self.journal, self.journal.replay()
        self.journal = original.copy(rewrite, "copy")
        self.said = [(rewrite(message), kind) for message, kind in self.said]
        self.move_cut()
        assert original.replay() == before
        # Nothing that happens to the original concerns the copy.
        for kind in ("mode", None):
            original.append(b"?" * self.limit, kind)
            original.turn_ended()

    @rule()
    def clear(self) -> None:
        self.journal.clear()
        self.start_again()

    @invariant()
    def it_is_what_the_model_says(self) -> None:
        expected = self.expected(self.cut)
        assert self.journal.replay() == expected
        assert self.journal.size == size_of(expected) + self.size_told(self.cut)
        assert self.journal.ends() == self.told
        assert self.journal.position == len(self.said)
        cut_off = any(kind is None for _, kind in self.said[: self.cut])
        assert self.journal.truncated == (cut_off or self.unknown_before)
        assert list(self.journal.backwards()) == list(self.journal.running())[::-1]

    @invariant()
    def no_message_that_carries_another_one_is_taken_for_one_that_does_not(self) -> None:
        for run in self.journal.runs():
            assert self.journal.carries or not has_pairs(run.messages)

    @invariant()
    def it_is_bounded(self) -> None:
        held = self.journal.replay(), self.journal.ends()
        assert self.journal.size <= self.limit or held == (self.journal.states(), [])

    @invariant()
    def its_runs_are_what_it_holds(self) -> None:
        runs = self.journal.runs()
        held = [(message, states.get(n)) for messages, states, *_ in runs for n, message in enumerate(messages)]
        assert held == self.said[len(self.said) - len(held) :]
        times = [time for run in runs for time in run.times.of(0, len(run.messages))]
        assert times == self.times[len(self.said) - len(held) :]
        assert [message for message, _ in [*self.journal.states_set_aside(), *held]] == self.journal.replay()
        assert all(messages and list(states) == sorted(states) for messages, states, *_ in runs)
        start, position = self.journal.start, self.journal.position
        for after in {start, (start + position) // 2, (start + 2 * position) // 3, position}:
            part, at, expected = self.journal.runs(after), start, []
            for messages, _, ends_turn, _ in runs:
                known, at = max(after - at, 0), at + len(messages)
                # A turn that ended just there is known by its end.
                if at > after or (at == after and ends_turn):
                    expected.append((messages[known:], ends_turn))
            assert [(messages, ends_turn) for messages, _, ends_turn, _ in part] == expected
            kinds = [states.get(n) for messages, states, *_ in part for n in range(len(messages))]
            assert kinds == [kind for _, kind in held[after - start :]]
            assert [time for run in part for time in run.times.of(0, len(run.messages))] == times[after - start :]

    @invariant()
    def any_part_of_it_has_its_times(self) -> None:
        start, end = self.journal.start, self.journal.position
        for begin, last in ((0, end), (start, end), ((start + end) // 2, end), (start, (start + end) // 2), (end, end)):
            held = slice(max(begin, start), last)
            assert self.journal.entries(begin, last) == [message for message, _ in self.said[held]]
            assert self.journal.times(begin, last) == self.journal.times_view(begin, last) == self.times[held]

    @invariant()
    def any_part_of_it_has_the_ends_of_its_turns(self) -> None:
        middle = (self.journal.start + self.journal.position) // 2
        for after in ((0, 0), (middle, 0), (middle, 1)):
            found = [end for end in self.told if end.place > after and end.position <= middle + 1]
            assert self.journal.ends(after, middle + 1) == found

    @invariant()
    def its_states_before_any_place_are_the_last_until_there(self) -> None:
        for place in (self.journal.start, (self.journal.start + self.journal.position) // 2):
            assert self.journal.states(place) == last_of_each_kind(self.said[:place])

    @invariant()
    def another_can_become_what_it_is(self) -> None:
        journal, other = self.journal, Journal(self.limit)
        aside, runs, ends = journal.states_set_aside(), journal.runs(), journal.ends()
        other.restore(aside, runs, journal.position, truncated=journal.truncated, ends=ends)
        assert other.ends() == ends
        assert (other.runs(), other.states_set_aside(), other.size) == (
            journal.runs(),
            journal.states_set_aside(),
            journal.size,
        )
        assert (other.position, other.truncated) == (journal.position, journal.truncated)

    @invariant()
    def no_state_is_lost(self) -> None:
        assert self.journal.states() == last_of_each_kind(self.said)


TestHistory = History.TestCase
TestHistory.settings = effort(50, steps=40)


# Positions, and journals that another process of the gateway has written.


def runs(*turns: str) -> list[TurnMessages]:
    return [TurnMessages([*turn.encode().split()], {}, turn.endswith("."), Times()) for turn in turns]


def test_a_journal_returns_the_messages_since_a_position_as_far_as_it_holds_them() -> None:
    journal = Journal(6, "e")
    for text in (b"aa", b"bb", b"cc", b"dd"):
        journal.append(text)
    assert journal.position == 4
    assert journal.since(4) == []
    assert journal.since(2) == [b"cc", b"dd"]
    assert journal.since(1) == [b"bb", b"cc", b"dd"]
    assert journal.since(0) is None
    assert journal.since(5) is None


def test_a_journal_can_be_written_down_and_taken_up_with_its_states_turns_and_positions() -> None:
    journal = Journal(10, "e")
    for text, state in ((b"plan1", "plan"), (b"mode1", "mode"), (b"aa", None)):
        journal.append(text, state)
    journal.turn_ended()
    for text in (b"bb", b"cc"):
        journal.append(text)
    journal.turn_ended()
    journal.append(b"dd")
    assert journal.states_set_aside() == [(b"plan1", "plan"), (b"mode1", "mode")]
    taken_up = Journal(10, "e")
    taken_up.restore(journal.states_set_aside(), journal.runs(), journal.position, truncated=journal.truncated)
    assert taken_up.replay() == journal.replay()
    assert (taken_up.size, taken_up.position, taken_up.truncated) == (journal.size, 6, True)
    assert taken_up.runs() == journal.runs()
    for each in (journal, taken_up):
        each.append(b"ee")
    assert taken_up.replay() == journal.replay()


def test_the_runs_say_where_a_turn_ends() -> None:
    journal = Journal(100, "e")
    journal.restore([], runs("a b.", "c.", "d"), 4, truncated=False)
    assert journal.runs() == runs("a b.", "c.", "d")
    assert not journal.truncated
    journal.turn_ended()
    assert journal.runs() == [*runs("a b.", "c."), ([b"d"], {}, True, Times())]
    journal.shrink(2)
    assert journal.runs() == [([b"d"], {}, True, Times())]
    journal.shrink(0)
    assert journal.runs() == []


def test_the_runs_say_which_messages_tell_a_state() -> None:
    journal = Journal(8, "e")
    for text, state in ((b"cut", "mode"), (b"off", None)):
        journal.append(text, state)
    journal.turn_ended()
    for text, state in ((b"a", None), (b"b", "plan"), (b"c", "mode")):
        journal.append(text, state)
    journal.turn_ended()
    for text, state in ((b"d", "plan"), (b"e", None)):
        journal.append(text, state)
    expected = [
        ([b"a", b"b", b"c"], {1: "plan", 2: "mode"}, True, Times()),
        ([b"d", b"e"], {0: "plan"}, False, Times()),
    ]
    assert journal.runs() == expected
    taken_up = Journal(8, "e")
    taken_up.restore(journal.states_set_aside(), journal.runs(), journal.position, truncated=journal.truncated)
    assert taken_up.runs() == expected
    assert taken_up.states() == journal.states() == [b"c", b"d"]


def test_runs_of_a_journal_do_not_change_with_later_messages() -> None:
    journal = Journal(100, "e")
    journal.extend([b"a"])
    before = journal.runs()
    journal.append(b"b", "mode")
    journal.turn_ended()
    assert before == [([b"a"], {}, False, Times())]


def test_a_journal_is_taken_up_within_a_smaller_limit_too() -> None:
    journal = Journal(4, "e")
    journal.restore([(b"plan", "plan")], runs("aa.", "bb."), 9, truncated=False)
    assert journal.replay() == [b"plan"]
    assert (journal.position, journal.truncated) == (9, True)


def test_a_turn_without_messages_is_taken_up_as_none() -> None:
    journal = Journal(100, "e")
    empty = TurnMessages([], {}, ends_turn=True)
    journal.restore([], [empty, *runs("a.")], 1, truncated=False)
    assert journal.runs() == runs("a.")


def test_times_of_messages_that_were_cut_off_take_no_memory() -> None:
    journal = Journal(100, "e")
    for time in range(1000):
        journal.append(b"x" * 10, None, time)
        journal.turn_ended()
    assert journal.times(0, 1000) == list(range(990, 1000))
    assert len(journal._times.starts) == 10


def test_no_more_messages_are_cut_off_than_needed_where_ends_of_turns_before_them_go_as_well() -> None:
    end = TurnEnd(0, 1, TurnOutcome("end_turn"), None)
    journal = Journal(end.size + 5)
    journal.note_end(end.outcome)
    journal.extend([b"a" * 10, b"b" * 10])
    assert (journal.replay(), journal.ends()) == ([b"b" * 10], [])
