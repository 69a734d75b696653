"""The database: values that come back, histories that are cut or erased, and corrupt files."""

import os
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acp_gateway.core.requests import ErrorObject, TurnOutcome
from acp_gateway.core.turns.ends import TurnEnd
from acp_gateway.core.turns.journal import Journal
from acp_gateway.errors import ConfigError
from acp_gateway.gateway.storage.corruption import Corruption, is_corruption
from acp_gateway.gateway.storage.database import Database, read_token_uses
from acp_gateway.gateway.storage.records import StoredJournal, StoredRun, StoredSession, TokenUse
from acp_gateway.protocol.text.pairs import Pair, texts_of
from tests.gateway.storage.stores import PROMPT

LIMIT = 1000
LARGE = 1_000_000

SESSION = StoredSession(
    key=7,
    agent="demo",
    session_id="sess-1",
    owner="ada",
    cwd="/src",
    title="Fix it",
    updated_at="2026-01-01T00:00:00Z",
    created=1.5,
    used=2.5,
    epoch="e1",
)


class Entry(NamedTuple):
    """A message of a history."""

    message: bytes
    state: str | None = None
    ends_turn: bool = False
    time: int | None = None


def runs(*entries: Entry) -> list[StoredRun]:
    """Messages, turn by turn."""
    turns = [StoredRun()]
    for message, state, ends_turn, time in entries:
        run = turns[-1]
        run.times.begin(len(run.messages), time)
        if state is not None:
            run.states[len(run.messages)] = state
        run.messages.append(message)
        if ends_turn:
            turns[-1].ends_turn = True
            turns.append(StoredRun())
    return turns if turns[-1].messages else turns[:-1]


def entries(journal: StoredJournal) -> list[Entry]:
    """The messages of a history that were not cut off."""
    return [
        Entry(message, run.states.get(index), run.ends_turn and message is run.messages[-1], time)
        for run in journal.runs
        for index, (message, time) in enumerate(
            zip(texts_of(run.messages), run.times.of(0, len(run.messages)), strict=True)
        )
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "sessions.db"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    database = Database(path, LIMIT)
    yield database
    database.close()


def begin(database: Database, *entries: Entry, states: tuple[tuple[bytes, str], ...] = ()) -> None:
    """Keep the session, with this history."""
    with database.transaction():
        database.put_session(SESSION)
        position = len(states) + len(entries)
        database.histories.replace(SESSION.key, StoredJournal("e1", position, False, states, runs(*entries)))


def append(
    database: Database,
    *entries: tuple[bytes, str | None] | tuple[bytes, str | None, int | None],
    ends_turn: bool = False,
) -> None:
    """Add to the session's history."""
    with database.transaction():
        (run,) = runs(
            *(Entry(message, state, time=time[0] if time else None) for message, state, *time in entries)
        ) or [StoredRun()]
        run.ends_turn = ends_turn
        add(database, run)


def add(database: Database, *added: StoredRun) -> None:
    """Add to the session's history, as a part of it that begins where the stored one ends."""
    (session,) = database.sessions()
    position = session.position + sum(len(run.messages) for run in added)
    database.histories.renew(SESSION.key, StoredJournal("e1", position, False, [], added))


def add_and_fail(database: Database) -> None:
    """Add to the session's history, and raise ZeroDivisionError before that is done."""
    with database.transaction():
        add(database, StoredRun([b"never"]))
        raise ZeroDivisionError


def journal_of(database: Database) -> StoredJournal:
    """The session's history."""
    journal = database.histories.read(SESSION.key)
    assert journal is not None
    return journal


def change(path: Path, *statements: str) -> None:
    """Have another program write into the file."""
    with sqlite3.connect(path) as other:
        for statement in statements:
            other.execute(statement)
    other.close()


def bytes_on_disk(path: Path) -> bytes:
    """The file and what is beside it, while it is open."""
    return b"".join(part.read_bytes() for part in path.parent.iterdir())


def test_a_session_comes_back_as_it_was_put(database: Database) -> None:
    begin(database)
    assert database.sessions() == [SESSION]


def test_a_session_that_is_put_again_keeps_its_history(database: Database) -> None:
    begin(database, Entry(b"one"))
    with database.transaction():
        database.put_session(replace(SESSION, title="Fixed", epoch="e2"))
    assert database.sessions() == [replace(SESSION, title="Fixed", epoch="e2", position=1)]
    assert journal_of(database) == StoredJournal("e2", 1, False, [], runs(Entry(b"one")))


def test_sessions_come_in_the_order_of_their_creation(database: Database) -> None:
    with database.transaction():
        for key, created in ((1, 3.0), (2, 1.0), (3, 2.0)):
            database.put_session(replace(SESSION, key=key, created=created))
    assert [session.key for session in database.sessions()] == [2, 3, 1]


@pytest.mark.parametrize("text", ["", "half \ud83d", "a\0b", "ü\u2028😀", "'; DROP TABLE session; --"])
def test_every_text_comes_back(database: Database, text: str) -> None:
    session = replace(SESSION, session_id=text, owner=text, cwd=text, title=text, updated_at=text)
    with database.transaction():
        database.put_session(session)
    assert database.sessions() == [session]


def test_what_is_not_known_of_a_session_stays_so(database: Database) -> None:
    session = replace(SESSION, cwd=None, title=None, updated_at=None)
    with database.transaction():
        database.put_session(session)
    assert database.sessions() == [session]


def test_a_name_that_was_garbled_on_disk_does_not_hide_the_others(database: Database, path: Path) -> None:
    begin(database)
    change(path, "UPDATE session SET title = CAST(x'41ff' AS TEXT)")
    assert database.sessions() == [replace(SESSION, title="A\ufffd")]


def test_a_history_comes_back_in_order_with_its_turns(database: Database) -> None:
    begin(database)
    append(database, (b"a", None), (b"bb", "mode"), ends_turn=True)
    append(database, (b"ccc", None))
    append(database, (b"dddd", None))
    assert journal_of(database) == StoredJournal(
        "e1", 4, False, [], runs(Entry(b"a"), Entry(b"bb", "mode", ends_turn=True), Entry(b"ccc"), Entry(b"dddd"))
    )


def test_several_turns_can_be_added_together_after_one_that_goes_on(database: Database) -> None:
    begin(database, Entry(b"a"))
    with database.transaction():
        turns = [
            StoredRun([b"b"], {0: "mode"}, ends_turn=True),
            StoredRun([b"c"], ends_turn=True),
            StoredRun(ends_turn=True),
            StoredRun([b"d"]),
        ]
        add(database, *turns)
    expected = [
        StoredRun([b"a", b"b"], {1: "mode"}, ends_turn=True),
        StoredRun([b"c"], ends_turn=True),
        StoredRun([b"d"]),
    ]
    assert journal_of(database) == StoredJournal("e1", 4, False, [], expected)


def test_a_turn_that_is_stored_in_pieces_comes_back_in_one(database: Database) -> None:
    begin(database)
    sizes = [1, LIMIT // 16, LIMIT // 8, 1, 1]
    messages = [b"%d" % number * size for number, size in enumerate(sizes)]
    run = StoredRun(list(messages), {0: "mode", 3: "plan"}, ends_turn=True)
    with database.transaction():
        add(database, run)
    assert journal_of(database).runs == [StoredRun([*messages], {0: "mode", 3: "plan"}, ends_turn=True)]


def test_what_is_cut_off_is_so_before_the_new_takes_its_place(path: Path) -> None:
    statements: list[str] = []

    def connect(*args: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = sqlite3.connect(*args, **options)
        connection.set_trace_callback(statements.append)
        return connection

    database = Database(path, LIMIT, connect)
    begin(database, Entry(b"x" * 1000, ends_turn=True))
    statements.clear()
    append(database, (b"y" * 1000, None))
    changes = [statement.split()[0] for statement in statements if "piece" in statement and "SELECT" not in statement]
    assert changes == ["DELETE", "INSERT"]
    assert entries(journal_of(database)) == [Entry(b"y" * 1000)]
    database.close()


def test_a_turn_can_end_after_what_is_stored_already(database: Database) -> None:
    begin(database)
    append(database, (b"a", None))
    append(database, ends_turn=True)
    append(database, (b"b", None))
    assert entries(journal_of(database)) == [Entry(b"a", ends_turn=True), Entry(b"b")]


def test_a_turn_that_ends_in_an_empty_history_is_nothing(database: Database) -> None:
    begin(database)
    append(database, ends_turn=True)
    assert journal_of(database) == StoredJournal("e1", 0, False, [], [])


def test_messages_come_back_byte_by_byte(database: Database) -> None:
    begin(database)
    messages = [b'{"a":\n1}', b"\xff\xfe", b"\0", b"x" * 400]
    append(database, *((message, None) for message in messages))
    assert [entry.message for entry in entries(journal_of(database))] == messages


def test_a_history_that_is_replaced_comes_back_as_given(database: Database) -> None:
    begin(database, Entry(b"old"))
    new = StoredJournal(
        "e1", 9, True, [(b"plan", "plan"), (b"mode", "mode")], runs(Entry(b"x", ends_turn=True), Entry(b"y"))
    )
    with database.transaction():
        database.histories.replace(SESSION.key, new)
    append(database, (b"z", None))
    assert journal_of(database) == replace(new, position=10, runs=runs(*entries(new), Entry(b"z")))


def test_a_history_that_is_renewed_keeps_what_it_has_from_before(database: Database) -> None:
    begin(database, Entry(b"one", ends_turn=True), Entry(b"two", "mode"))
    with database.transaction():
        news = runs(Entry(b"two", "mode"), Entry(b"three", ends_turn=True), Entry(b"four", "plan"))
        database.histories.renew(SESSION.key, StoredJournal("e1", 4, True, [], news))
    assert journal_of(database) == StoredJournal(
        "e1",
        4,
        False,
        [],
        runs(
            Entry(b"one", ends_turn=True),
            Entry(b"two", "mode"),
            Entry(b"three", ends_turn=True),
            Entry(b"four", "plan"),
        ),
    )


def test_a_history_that_may_have_a_gap_is_replaced_where_it_is_renewed(database: Database) -> None:
    begin(database, Entry(b"one"))
    renewed = StoredJournal("e1", 3, True, [(b"mode", "mode")], runs(Entry(b"three")))
    with database.transaction():
        database.histories.renew(SESSION.key, renewed)
    assert journal_of(database) == renewed


def test_a_history_that_is_not_kept_is_so_from_its_renewal_on(database: Database) -> None:
    with database.transaction():
        database.put_session(SESSION)
        database.histories.renew(SESSION.key, StoredJournal("e1", 1, False, [], runs(Entry(b"one"))))
    assert journal_of(database) == StoredJournal("e1", 1, False, [], runs(Entry(b"one")))


def test_a_history_goes_on_when_the_file_is_opened_again(path: Path) -> None:
    first = Database(path, LIMIT)
    begin(first, Entry(b"one"))
    first.close()
    second = Database(path, LIMIT)
    append(second, (b"two", None))
    assert journal_of(second) == StoredJournal("e1", 2, False, [], runs(Entry(b"one"), Entry(b"two")))
    assert second.histories.sizes().keys() == {SESSION.key}
    second.close()


def test_whole_turns_are_cut_off_a_history_that_is_too_large(database: Database) -> None:
    begin(database)
    for number in range(5):
        append(database, (b"%d" % number * 150, None), (b"." * 150, None), ends_turn=True)
    journal = journal_of(database)
    assert [entry.message[:1] for entry in entries(journal)] == [b"2", b".", b"3", b".", b"4", b"."]
    assert journal.position == 10
    assert journal.truncated


def test_a_turn_that_is_too_large_by_itself_loses_its_beginning(database: Database) -> None:
    begin(database, Entry(b"before", ends_turn=True))
    for number in range(15):
        append(database, (bytes([65 + number]) * 100, None))
    journal = journal_of(database)
    assert [entry.message[:1] for entry in entries(journal)] == [bytes([letter]) for letter in b"FGHIJKLMNO"]
    assert journal.position == 16


def test_the_last_of_each_state_that_is_cut_off_is_put_aside(database: Database) -> None:
    begin(database)
    append(database, (b"mode 1", "mode"), (b"plan 1", "plan"), (b"mode 2", "mode"), ends_turn=True)
    append(database, (b"plan 2", "plan"), ends_turn=True)
    append(database, (b"x" * 2000, None), ends_turn=True)
    journal = journal_of(database)
    assert journal.states == [(b"mode 2", "mode"), (b"plan 2", "plan")]
    assert journal.runs == []
    assert journal.position == 5


def test_a_history_that_lost_only_states_is_whole(database: Database) -> None:
    begin(database)
    append(database, (b"x" * 900, "mode"), ends_turn=True)
    append(database, (b"y" * 900, "mode"), ends_turn=True)
    append(database, (b"talk", None))
    assert journal_of(database) == StoredJournal("e1", 3, False, [(b"y" * 900, "mode")], runs(Entry(b"talk")))


_Sizes = list[tuple[int, str | None, int | None]]

_MESSAGE = st.tuples(
    st.integers(1, 500), st.sampled_from([None, None, None, "mode", "plan"]), st.sampled_from([None, 1, 1, 2])
)
_BATCHES = st.lists(st.tuples(st.lists(_MESSAGE, max_size=6), st.booleans()), max_size=25)


def numbered(sizes: _Sizes, first: int) -> list[tuple[bytes, str | None, int | None]]:
    """Messages of these sizes, each another one."""
    return [(b"%06d" % number + b"." * size, kind, time) for number, (size, kind, time) in enumerate(sizes, first)]


@settings(max_examples=40)
@given(_BATCHES)
def test_whatever_is_cut_off_the_rest_has_no_gap_and_no_state_is_lost(
    batches: list[tuple[_Sizes, bool]],
) -> None:
    everything: list[Entry] = []
    with tempfile.TemporaryDirectory() as directory:
        database = Database(Path(directory) / "sessions.db", LIMIT)
        try:
            begin(database)
            for sizes, ends_turn in batches:
                run = numbered(sizes, len(everything))
                append(database, *run, ends_turn=ends_turn)
                everything += [Entry(message, kind, time=time) for message, kind, time in run]
                if ends_turn and everything:
                    everything[-1] = everything[-1]._replace(ends_turn=True)
            journal = journal_of(database)
        finally:
            database.close()
    held = entries(journal)
    cut = everything[: len(everything) - len(held)]
    assert journal.position == len(everything)
    assert held == everything[len(cut) :]
    last = {entry.state: entry.message for entry in cut if entry.state is not None}
    assert {kind: message for message, kind in journal.states} == last
    assert [message for message, _ in journal.states] == sorted(last.values())
    assert journal.truncated == any(entry.state is None for entry in cut)
    size = sum(len(message) for message in [*(message for message, _ in journal.states), *(e.message for e in held)])
    assert size <= LIMIT * 5 / 4 or not held
    assert not cut or size + sum(len(entry.message) for entry in cut) > LIMIT


@settings(max_examples=60)
@given(_BATCHES, st.integers(0, 40), st.integers(0, 2 * LIMIT))
def test_whatever_was_cut_in_memory_a_history_that_is_renewed_goes_on_without_a_gap(
    batches: list[tuple[_Sizes, bool]], stored: int, left: int
) -> None:
    everything: list[Entry] = []
    memory = Journal(LARGE, "e1")
    with tempfile.TemporaryDirectory() as directory:
        database = Database(Path(directory) / "sessions.db", LARGE)
        try:
            begin(database)
            for number, (sizes, ends_turn) in enumerate(batches):
                run = numbered(sizes, len(everything))
                for message, kind, time in run:
                    memory.append(message, kind, time)
                    everything.append(Entry(message, kind, time=time))
                if number < stored:
                    append(database, *run, ends_turn=ends_turn and number + 1 < stored)
                if ends_turn:
                    memory.turn_ended()
                    everything[-1:] = [entry._replace(ends_turn=True) for entry in everything[-1:]]
            before = journal_of(database)
            memory.shrink(left)
            held = [StoredRun(*run) for run in memory.runs()]
            renewed = StoredJournal("e1", memory.position, memory.truncated, memory.states_set_aside(), held)
            with database.transaction():
                database.histories.renew(SESSION.key, renewed)
            journal = journal_of(database)
        finally:
            database.close()
    assert journal.position == len(everything)
    if memory.start == before.position:
        # Whether a turn ended at the cut is what the disk knows of it.
        everything[: before.position] = entries(before)
    if memory.start <= before.position:
        assert entries(journal) == everything
        assert not journal.truncated
    else:
        assert entries(journal) == entries(renewed)
        assert journal.states == renewed.states


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE piece SET outline = x'00'",
        "UPDATE piece SET outline = CAST('[[1,null]]' AS BLOB)",
        "UPDATE piece SET outline = CAST('[]' AS BLOB), messages = x''",
        "UPDATE piece SET first = 9 WHERE first = 1",
        "DELETE FROM piece WHERE first = 1",
        "UPDATE journal SET position = 9",
        "UPDATE journal SET position = 'x'",
        "UPDATE session SET epoch = x'00'",
        "UPDATE piece SET first = 'x' || first",
        "UPDATE piece SET outline = 5",
        "UPDATE piece SET messages = CAST(messages AS TEXT)",
        "INSERT INTO state VALUES (7, 'mode', 0, 'text')",
        "INSERT INTO state VALUES (7, x'00', 0, x'00')",
    ],
)
def test_a_history_that_does_not_fit_together_is_not_read(database: Database, path: Path, damage: str) -> None:
    begin(database, *(Entry(b"one", ends_turn=True) for _ in range(3)))
    change(path, damage)
    assert database.histories.read(SESSION.key) is None


def test_a_history_with_a_message_of_less_than_nothing_is_not_read(database: Database, path: Path) -> None:
    begin(database, Entry(b"one"), Entry(b"two"))
    change(path, "UPDATE piece SET outline = CAST('[[-1,null],[7,null]]' AS BLOB)")
    assert database.histories.read(SESSION.key) is None


@pytest.mark.parametrize("times", ["x'00'", "'text'", "5", "CAST('[[9],[5]]' AS BLOB)"])
def test_a_history_with_corrupt_times_has_none(database: Database, path: Path, times: str) -> None:
    begin(database, Entry(b"one", time=5), Entry(b"two", time=6))
    assert [entry.time for entry in entries(journal_of(database))] == [5, 6]
    change(path, f"UPDATE piece SET times = {times}")  # noqa: S608 - our own values
    assert entries(journal_of(database)) == [Entry(b"one"), Entry(b"two")]


def test_messages_of_one_time_take_one_entry_of_it_on_disk(database: Database, path: Path) -> None:
    begin(database, *(Entry(b"one", time=1_700_000_000_000) for _ in range(40)), Entry(b"two", time=1_700_000_000_005))
    with sqlite3.connect(path) as other:
        times = b"".join(text for (text,) in other.execute("SELECT times FROM piece"))
    other.close()
    # Of each piece.
    assert times == b"[[0],[1700000000000]][[0],[1700000000000]][[0],[1700000000005]]"


def test_nothing_is_left_of_a_history_that_is_erased(database: Database, path: Path) -> None:
    begin(database, Entry(b"SECRET" * 100), states=((b"SECRET", "mode"),))
    append(database, (b"SECRET" * 20, None))
    assert b"SECRET" in bytes_on_disk(path)
    with database.transaction():
        database.histories.forget(SESSION.key)
    database.tidy()
    assert database.histories.read(SESSION.key) is None
    assert database.sessions() == [SESSION]
    assert b"SECRET" not in bytes_on_disk(path)


def test_nothing_is_left_of_a_session_that_is_erased(database: Database, path: Path) -> None:
    begin(database, Entry(b"what was said"))
    with database.transaction():
        database.forget(SESSION.key)
    database.tidy()
    assert database.sessions() == []
    assert not any(word in bytes_on_disk(path) for word in (b"Fix it", b"sess-1", b"/src", b"what was said"))


def test_what_was_erased_makes_the_file_smaller(path: Path) -> None:
    database = Database(path, LARGE)
    database.tidy()
    before = path.stat().st_size
    begin(database, Entry(b"x" * 100_000))
    database.tidy()
    assert path.stat().st_size > before
    with database.transaction():
        database.forget(SESSION.key)
    database.tidy()
    assert path.stat().st_size <= before
    database.close()


def test_a_transaction_that_fails_leaves_nothing(database: Database) -> None:
    begin(database, Entry(b"one"))
    with pytest.raises(ZeroDivisionError):
        add_and_fail(database)
    append(database, (b"three", None))
    assert [entry.message for entry in entries(journal_of(database))] == [b"one", b"three"]


def test_the_database_files_are_readable_by_their_owner_alone(database: Database, path: Path) -> None:
    begin(database)
    modes = {part.name: stat.S_IMODE(part.stat().st_mode) for part in path.parent.iterdir()}
    assert modes == dict.fromkeys(["sessions.db", "sessions.db-wal", "sessions.db-shm"], 0o600)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_file_that_others_could_read_is_made_private(path: Path) -> None:
    Database(path, LIMIT).close()
    path.chmod(0o644)
    Database(path, LIMIT).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_is_new_once(path: Path) -> None:
    first = Database(path, LIMIT)
    first.close()
    second = Database(path, LIMIT)
    second.close()
    assert (first.is_new, second.is_new) == (True, False)


def test_a_file_from_before_former_epochs_were_kept_gets_a_place_for_them(path: Path) -> None:
    former = replace(SESSION, former=(("e0", 1),))
    for expected in (SESSION, former):
        database = Database(path, LIMIT)
        with database.transaction():
            database.put_session(former)
        assert database.sessions() == [former]
        database.close()
        if expected is SESSION:
            change(path, "ALTER TABLE session DROP COLUMN former", "PRAGMA user_version = 1")
        after = Database(path, LIMIT)
        assert after.sessions() == [expected]
        after.close()


def test_a_session_in_a_file_from_before_open_ones_were_marked_is_not_open(path: Path) -> None:
    for expected in (SESSION, replace(SESSION, open=True)):
        database = Database(path, LIMIT)
        with database.transaction():
            database.put_session(replace(SESSION, open=True))
        database.close()
        if expected is SESSION:
            change(path, "ALTER TABLE session DROP COLUMN open", "PRAGMA user_version = 1")
        after = Database(path, LIMIT)
        assert after.sessions() == [expected]
        after.close()


def test_a_file_from_before_messages_of_two_versions_is_raised_so_that_earlier_programs_leave_it_alone(
    path: Path,
) -> None:
    database = Database(path, LIMIT)
    begin(database, Entry(b"{}"))
    database.close()
    change(path, "PRAGMA user_version = 4")
    pair = Pair(b"{}", b"[]")
    for expected in ([b"{}"], [b"{}", pair]):
        database = Database(path, LIMIT)
        assert journal_of(database).runs[0].messages == expected
        with database.transaction():
            add(database, StoredRun([pair]))
        database.close()
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA user_version").fetchone() == (8,)


def test_the_ends_of_turns_come_back_each_once_and_are_erased_with_their_turns(path: Path) -> None:
    database = Database(path, LIMIT)
    ends = [TurnEnd(1, 1, TurnOutcome("end_turn"), 5), TurnEnd(2, 1, TurnOutcome(cut="agent_ended"), None)]
    ends += [TurnEnd(2, 2, TurnOutcome(error=ErrorObject(429, "try again in 32 s")), 7)]
    first, both = StoredRun([b"a"], ends_turn=True), [StoredRun([b"a"], ends_turn=True), StoredRun([b"b"])]
    with database.transaction():
        database.put_session(SESSION)
        database.histories.renew(SESSION.key, StoredJournal("e1", 1, truncated=False, runs=[first], ends=ends[:1]))
        size = database.histories.sizes()[SESSION.key]
        assert size == 1 + ends[0].size
        for told in (ends[:2], ends):
            database.histories.renew(SESSION.key, StoredJournal("e1", 2, truncated=False, runs=both, ends=told))
    database.close()
    database = Database(path, LIMIT)
    assert journal_of(database).ends == tuple(ends)
    assert database.histories.sizes() == {SESSION.key: 2 + sum(end.size for end in ends)}
    with database.transaction():
        database.histories.cut(SESSION.key, 1 + ends[1].size + ends[2].size)
    assert journal_of(database).ends == tuple(ends[1:])
    with database.transaction():
        database.histories.cut(SESSION.key, 0)
    assert (journal_of(database).ends, database.histories.sizes()) == ((), {SESSION.key: 0})
    with database.transaction():
        database.forget(SESSION.key)
    database.close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM turn_end").fetchone() == (0,)


@pytest.mark.parametrize("damaged", ["outcome = 'x'", "outcome = x'00'", "nth = -1", "position = 'x'", "position = 9"])
def test_an_end_of_a_turn_that_is_damaged_is_left_out(path: Path, damaged: str) -> None:
    database = Database(path, LIMIT)
    with database.transaction():
        database.put_session(SESSION)
        end = TurnEnd(1, 1, TurnOutcome("end_turn"), None)
        database.histories.replace(
            SESSION.key, StoredJournal("e1", 1, truncated=False, runs=[StoredRun([b"a"])], ends=[end])
        )
    change(path, f"UPDATE turn_end SET {damaged}")  # noqa: S608 - our own words
    found = journal_of(database)
    assert (found.ends, [run.messages for run in found.runs]) == ((), [[b"a"]])
    database.close()


def test_a_history_in_a_file_from_before_ends_of_turns_were_kept_goes_on_with_them(path: Path) -> None:
    database = Database(path, LIMIT)
    begin(database, Entry(b"a"))
    database.close()
    change(path, "DROP TABLE turn_end", "PRAGMA user_version = 5")
    database = Database(path, LIMIT)
    before = journal_of(database)
    assert (before.ends, [run.messages for run in before.runs]) == ((), [[b"a"]])
    end = TurnEnd(1, 1, TurnOutcome("end_turn"), 5)
    with database.transaction():
        database.histories.renew(
            SESSION.key, StoredJournal(before.epoch, 1, truncated=False, runs=before.runs, ends=[end])
        )
    assert journal_of(database).ends == (end,)
    database.close()


def test_a_session_that_a_node_had_adopted_or_given_up_in_an_earlier_version_is_one_as_any_other(path: Path) -> None:
    Database(path, LIMIT).close()
    change(path, *(f"ALTER TABLE session ADD COLUMN {name}" for name in ("home TEXT", "moved TEXT")))
    change(path, "ALTER TABLE session ADD COLUMN adopted_epoch INTEGER")
    database = Database(path, LIMIT)
    with database.transaction():
        database.put_session(SESSION)
    change(path, "UPDATE session SET home = 'gpu1', moved = 'gpu2', adopted_epoch = 1700000000000000")
    assert database.sessions() == [SESSION]
    with database.transaction():
        database.put_session(replace(SESSION, title="again"))
    assert database.sessions() == [replace(SESSION, title="again")]
    database.close()


@pytest.mark.parametrize("damaged", ["x'00'", "'['", "'[[1,2]]'", "7"])
def test_former_epochs_that_are_damaged_are_not_read(database: Database, path: Path, damaged: str) -> None:
    with database.transaction():
        database.put_session(replace(SESSION, former=(("e0", 1),)))
    change(path, f"UPDATE session SET former = {damaged}")  # noqa: S608 - our own words
    assert database.sessions() == [SESSION]


def test_a_file_of_a_newer_version_is_left_alone(path: Path) -> None:
    Database(path, LIMIT).close()
    change(path, "PRAGMA user_version = 9")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"sessions\.db: was written by a newer acp-gateway \(version 9"):
        Database(path, LIMIT)
    assert path.read_bytes() == before


def test_another_programs_database_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    change(path, "CREATE TABLE bookmark (url)")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="another program's database"):
        Database(path, LIMIT)
    assert path.read_bytes() == before


def test_garbage_is_damage(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"no database at all, " * 500)
    with pytest.raises(sqlite3.DatabaseError) as caught:
        Database(path, LIMIT)
    assert is_corruption(caught.value)


def test_a_file_that_lost_its_end_is_damage(path: Path) -> None:
    database = Database(path, LARGE)
    begin(database, Entry(b"x" * 100_000))
    database.close()
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(sqlite3.DatabaseError) as caught:
        Database(path, LIMIT)
    assert is_corruption(caught.value)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE piece SET count = 'x'",
        "UPDATE piece SET size = -1",
        "INSERT INTO state VALUES (7, 'mode', 0, NULL)",
    ],
)
def test_malformed_numbers_are_damage_to_who_cuts_a_history(database: Database, path: Path, damage: str) -> None:
    begin(database, Entry(b"x" * 1000, ends_turn=True))
    if "NULL" in damage:
        allowed = "UPDATE sqlite_master SET sql = replace(sql, 'NOT NULL', '') WHERE name = 'state'"
        change(path, "PRAGMA writable_schema = ON", allowed, "PRAGMA schema_version = 99")
    change(path, damage)
    with pytest.raises(Corruption) as caught:
        append(database, (b"x" * 1000, None))
    assert is_corruption(caught.value)


def test_the_use_of_tokens_comes_back(database: Database, path: Path) -> None:
    uses = {"0a0a0a0a": TokenUse(5.0), "1b1b1b1b": TokenUse(6.5, "ada")}
    with database.transaction():
        database.put_token_use("0a0a0a0a", TokenUse(1.0, "eve"))
        for token_id, use in uses.items():
            database.put_token_use(token_id, use)
    assert database.token_uses() == uses
    assert read_token_uses(path) == uses


def test_the_use_of_tokens_can_be_read_when_no_gateway_runs(database: Database, path: Path) -> None:
    with database.transaction():
        database.put_token_use("0a0a0a0a", TokenUse(5.0))
    database.close()
    assert read_token_uses(path) == {"0a0a0a0a": TokenUse(5.0)}


def test_no_use_of_tokens_is_known_where_there_is_no_file(path: Path) -> None:
    assert read_token_uses(path) == {}
    assert not path.parent.exists()


def test_no_use_of_tokens_is_known_where_the_file_is_not_a_database(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"no database at all, " * 500)
    assert read_token_uses(path) == {}


def test_no_use_of_tokens_is_known_where_something_else_is_stored(database: Database, path: Path) -> None:
    change(path, "INSERT INTO token VALUES ('0a0a0a0a', 'x', NULL)")
    assert read_token_uses(path) == {}


def test_a_turn_that_ends_in_what_is_coming_is_cut_off_as_a_whole(database: Database) -> None:
    begin(database)
    running = StoredRun([b"%03d" % number + b"." * 7 for number in range(LIMIT * 9 // 100)])
    with database.transaction():
        add(database, running)
    with database.transaction():
        ended, whole = (
            StoredRun([b"the end..."] * 5, ends_turn=True),
            StoredRun([b"another..."] * (LIMIT // 20), ends_turn=True),
        )
        add(database, ended, whole)
    assert [set(run.messages) for run in journal_of(database).runs] == [{b"another..."}]


def test_prompts_come_back_in_order_as_they_were_put_last_and_go_with_their_session(path: Path) -> None:
    """Also in a file from before they were kept."""
    with closing(Database(path, LIMIT)) as database:
        begin(database)
    change(path, "DROP TABLE prompt", "PRAGMA user_version = 7")
    second, other = replace(PROMPT, key="l", at=6, due=None, text=b"\xff"), replace(PROMPT, key="m", at=None, session=2)
    with closing(Database(path, LIMIT)) as database:
        for prompt in (second, PROMPT, other, replace(PROMPT, sent=True)):
            database.put_prompt(prompt)
        assert database.prompts() == [other, replace(PROMPT, sent=True), second]
        database.drop_prompt("l")
        database.forget(1)
        assert database.prompts() == [other]


@pytest.mark.parametrize("damage", ["text = 'x'", "session = 'x'", "identity = x'00'", "due = -1"])
def test_a_prompt_that_is_damaged_is_damage(path: Path, damage: str) -> None:
    with closing(Database(path, LIMIT)) as database:
        database.put_prompt(PROMPT)
        change(path, f"UPDATE prompt SET {damage}")  # noqa: S608
        with pytest.raises(Corruption):
            database.prompts()
