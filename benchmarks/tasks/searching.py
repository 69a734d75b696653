"""The search in histories: its time over a thousand sessions, and its cost where histories are written."""

import random
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from acp_gateway.gateway.search.index import SearchIndex, SearchReader
from acp_gateway.gateway.storage.database import Database
from acp_gateway.gateway.storage.records import StoredJournal, StoredRun, StoredSession
from benchmarks.measuring import Bench, Section, Target, percentile
from benchmarks.report import figure

TASK: Final = "searching"

SESSIONS, FEW_SESSIONS = 1_000, 50
UPDATES: Final = 1_000
"""Updates of a session."""

TURN: Final = 100
"""Updates of a turn."""

WORDS: Final = 20_000
"""Words of the vocabulary, used as unequally as those of a language."""

SLOWEST: Final = 0.1
"""Maximum seconds of a search."""

DEAREST: Final = 1.1
"""Maximum processor time of writing histories while the index is written, of that without it."""


def run(bench: Bench) -> list[Section]:
    """Measure searches, and writing with and without the index."""
    return [searches(bench), writing(bench)]


def updates(session: int, turn: int) -> list[bytes]:
    """Return the updates of a turn: one message of the user, then chunks of the agent between tool calls."""
    chosen = random.Random(f"{session} {turn}")  # noqa: S311 - the same in each run.
    messages = []
    for number in range(TURN):
        text = " ".join(f"w{int(WORDS ** chosen.random()):05}" for _ in range(6))
        kind = "user" if number == 0 else "agent"
        if number % 10 == 9:
            update = b'{"sessionUpdate":"tool_call","toolCallId":"%d","title":"%b"}' % (number, text.encode())
        else:
            content = b'"content":{"type":"text","text":"%b "}' % text.encode()
            update = b'{"sessionUpdate":"%b_message_chunk",%b}' % (kind.encode(), content)
        line = b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s%d","update":%b}}'
        messages.append(line % (session, update))
    return messages


def add(index: SearchIndex, session: int, turn: int, messages: list[bytes]) -> None:
    """Add a turn to the index."""
    index.add(session, "e", messages, turn * TURN, 0, is_new=False, is_complete=True)


def searches(bench: Bench) -> Section:
    """Measure searches by words that many, few and no sessions have."""
    sessions = bench.pick(SESSIONS, FEW_SESSIONS)
    with tempfile.TemporaryDirectory(dir=bench.programs.directory, prefix="search-") as folder:
        path = Path(folder, "search.db")
        with closing(SearchIndex(path)) as index:
            for session in range(1, sessions + 1):
                for turn in range(UPDATES // TURN):
                    add(index, session, turn, updates(session, turn))
            size = path.stat().st_size
            ranks = {session: session for session in range(1, sessions + 1)}
            kinds = {
                "a word of all sessions": "w00001",
                "a word of some": "w09000",
                "the beginning of ten words": "w0190",
                "the beginning of the commonest hundred": "w000",
                "two words": "w00500 w00030",
                "a phrase": '"w00001 w00002"',
                "no session": "nothing",
            }
            with closing(SearchReader(path)) as reader:
                measured = bench.interleave(
                    TASK, {kind: partial(seconds, reader, words, ranks) for kind, words in kinds.items()}
                )
    times = [each for kind in kinds for each in measured.values(kind, "seconds") if each is not None]
    return Section(
        "Search over all sessions of an identity",
        ("words", "time", "sessions found"),
        [
            (
                kind,
                figure(measured.median(kind, "seconds"), "s"),
                figure(measured.median(kind, "found"), ""),
            )
            for kind in kinds
        ],
        [
            f"{sessions:,} sessions of {UPDATES:,} updates; the index has {figure(size, 'B')}.",
            *measured.notes(),
        ],
        [Target("the slowest search", SLOWEST, "≤", percentile(times, 100) if times else None, "s")],
    )


def seconds(reader: SearchReader, words: str, ranks: dict[int, int]) -> dict[str, float]:
    """Search once."""
    begun = time.perf_counter()
    found = reader.find(words, ranks, 50)
    return {"seconds": time.perf_counter() - begun, "found": float(len(found))}


@contextmanager
def written(folder: str) -> Iterator[Database]:
    """Open a new file of histories with an empty one."""
    with closing(Database(Path(folder, "sessions.db"), 1 << 28)) as file:
        with file.transaction():
            now = time.time()
            file.put_session(StoredSession(1, "benchmark", "s1", "ann", "/", None, None, now, now, "e", position=0))
            file.histories.replace(1, StoredJournal("e", 0, truncated=False))
        yield file


def writing(bench: Bench) -> Section:
    """Measure the processor time of writing histories, by turns, alone and while the index is written beside it.

    The index has a thread of its own, as in a gateway. Its own time is a row, and no part of the other one.
    """
    turns = bench.pick(300, 30)
    batches = [updates(1, turn) for turn in range(turns)]
    alone, beside = "histories", "histories, while the index is written"

    def index_all(index: SearchIndex) -> float:
        begun = time.thread_time()
        for turn, messages in enumerate(batches):
            add(index, 1, turn, messages)
        return time.thread_time() - begun

    def measure(*, indexed: bool) -> dict[str, float]:
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir=bench.programs.directory, prefix="search-"))
            file = stack.enter_context(written(folder))
            index = stack.enter_context(closing(SearchIndex(Path(folder, "search.db"))))
            thread = stack.enter_context(ThreadPoolExecutor(1))
            indexing = thread.submit(index_all, index) if indexed else None
            begun = time.thread_time()
            for turn, messages in enumerate(batches):
                runs = [StoredRun([*messages], ends_turn=True)]
                with file.transaction():
                    journal = StoredJournal("e", (turn + 1) * TURN, truncated=False, runs=runs, carries=False)
                    file.histories.renew(1, journal)
            each = (time.thread_time() - begun) / turns / TURN
            return {"each": each, "index": indexing.result() / turns / TURN if indexing is not None else 0.0}

    subjects = {alone: partial(measure, indexed=False), beside: partial(measure, indexed=True)}
    measured = bench.interleave(f"{TASK}, writing", subjects)
    rows = [(subject, figure(measured.median(subject, "each"), "s")) for subject in subjects]
    rows.append(("the index, in its own thread", figure(measured.median(beside, "index"), "s")))
    return Section(
        "Writing histories and their index",
        ("what", "processor time of an update"),
        rows,
        [
            f"Turns of {TURN} updates, by the writing alone: a gateway also receives and sends each update.",
            *measured.notes(),
        ],
        [Target("writing while the index is written", DEAREST, "≤", measured.ratio(beside, alone, "each"))],
    )
