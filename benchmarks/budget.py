"""Cost of one message, step by step, in one process and without peers: `make bench-budget`.

The first table follows a 200-byte update from an agent to a client over a WebSocket, in a batch as large as one 64 KiB
read. The second follows a single small request to the agent, and its answer back. Each step runs many times over the
same bytes; the fastest run counts, which excludes interference. System calls are measured without a blocked reader at
the other end; waking one up costs more.

With `--base`, the steps that both commits have are compared, see `budget_pairs`.
"""

import argparse
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Final

from acp_gateway.core import access_rules
from acp_gateway.core.agent_state import Policy
from acp_gateway.core.multiplexer import Multiplexer
from acp_gateway.core.output import CheckDirectories, Output
from acp_gateway.core.requests import DirectoryCheckResult
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Client, SessionScope
from acp_gateway.core.turns import updates
from acp_gateway.core.turns.journal import Journal
from acp_gateway.core.turns.times import Times
from acp_gateway.gateway.storage.database import Database
from acp_gateway.gateway.storage.records import StoredJournal, StoredRun, StoredSession
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import RawId
from acp_gateway.protocol.outbox import Outbox
from acp_gateway.protocol.text import strict_parsing
from acp_gateway.transports.websocket.frames import encode_text
from benchmarks.budget_pairs import compare

RUNS: Final = 200
SIZE: Final = 200
READ: Final = 65536
TOGETHER: Final = 10
"""Batches committed to the disk in one transaction."""
ROOM: Final = 4 * READ
JOURNAL: Final = 16 * 1024 * 1024
SESSION: Final = "s-1-1"

UPDATE: Final = (
    b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"%b","update":'
    b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"%b"}}}}'
)

Step = tuple[str, Callable[[], object]]


def main(arguments: Sequence[str] = ()) -> int:
    """Print both tables, or with `--base COMMIT` the comparison with another commit; return the exit code."""
    parser = argparse.ArgumentParser(description="Cost of one message, step by step.")
    parser.add_argument("--base", metavar="COMMIT", help="compare with this commit; auto: with the last release")
    base = parser.parse_args(arguments).base
    if base is not None:
        return compare(Path(__file__).parents[1], base)
    print("| an update of 200 bytes, in a batch | µs |\n|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        for name, seconds in measured(steps_of_update(Path(directory))):
            print(f"| {name} | {1e6 * seconds / len(batch()):.2f} |")
    print("\n| a request of 80 bytes, alone | µs |\n|---|---|")
    for name, seconds in measured(steps_of_request()):
        print(f"| {name} | {1e6 * seconds:.1f} |")
    return 0


def measured(steps: Sequence[Step]) -> Iterator[tuple[str, float]]:
    """Yield the name of each step and the seconds of its fastest run."""
    for name, step in steps:
        times = []
        for _ in range(RUNS):
            before = time.perf_counter()
            step()
            times.append(time.perf_counter() - before)
        yield name, min(times)


def batch() -> list[bytes]:
    """Return as many updates as one read returns."""
    text = b"x" * (SIZE - len(UPDATE % (SESSION.encode(), b"")))
    return [UPDATE % (SESSION.encode(), text)] * (READ // (SIZE + 1))


def steps_of_update(directory: Path) -> list[Step]:
    """Return the steps of an update from an agent's pipe to a socket and to the disk."""
    lines = batch()
    data = b"\n".join(lines) + b"\n"
    read, write = os.pipe()
    here, there = socket.socketpair()
    here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM)

    def through_pipe() -> None:
        os.write(write, data[: READ - 4096])
        os.read(read, READ)

    def through_socket() -> None:
        here.send(data)
        there.recv(ROOM)

    journal, multiplexer = Journal(JOURNAL), in_session()[0]
    # Each batch comes at another time, in milliseconds since 1970.
    times = count(1_700_000_000_000)

    def through_outbox() -> None:
        outbox = Outbox()
        outbox.extend(lines)
        outbox.take(ROOM)

    def through_core() -> Output:
        multiplexer.set_time(0.0, next(times))
        multiplexer.receive_from_agent(lines)
        return multiplexer.take_output()

    database = Database(directory / "sessions.db", JOURNAL)
    with database.transaction():
        database.put_session(StoredSession(1, "agent", SESSION, "me", None, None, None, 0.0, 0.0, "e"))
        database.histories.replace(1, StoredJournal("e", 0, truncated=False))
    positions = count(len(lines), len(lines))

    def through_database() -> None:
        with database.transaction():
            for _ in range(TOGETHER):
                run = StoredRun(list(lines), times=Times([(0, next(times))]))
                database.histories.renew(1, StoredJournal("e", next(positions), False, runs=[run], carries=False))

    return [
        ("written to a pipe and read from it", through_pipe),
        ("split into lines", lambda: data.split(b"\n")),
        ("parsed: one pass of msgspec", lambda: updates.sessions_of_all(lines)),
        ("appended to the journal", lambda: journal.extend(lines, next(times))),
        ("the whole core, with the two steps above", through_core),
        ("through the outbox", through_outbox),
        ("framed", lambda: encode_text(lines)),
        ("sent through a socket and received", through_socket),
        (f"in the worker thread: committed to the disk, {TOGETHER} batches", through_database),
    ]


def steps_of_request() -> list[Step]:
    """Return the steps of a request to the agent and of its answer back."""
    text = b'{"jsonrpc":"2.0","id":7,"method":"_bench/echo","params":{"sessionId":"%b"}}' % SESSION.encode()
    message, _ = strict_parsing.parse_strictly(text)
    multiplexer, client = in_session()

    def there_and_back() -> None:
        multiplexer.receive_from_client(client, text)
        (asked,) = multiplexer.take_output().to_agent
        answer(multiplexer, asked, b"{}")

    return [
        ("parsed, duplicate members refused: one pass", lambda: strict_parsing.parse_strictly(text)),
        (
            "authorized: by role and by session",
            lambda: access_rules.objection_to_request(client, message),
        ),
        ("id replaced", lambda: jsonrpc.with_id(message, RawId(b"12"), unique=True)),
        ("the whole core, the answer included", there_and_back),
    ]


def in_session() -> tuple[Multiplexer, Client]:
    """Return a core and its only client, which has an open session."""
    policy = Policy(
        shared=True,
        serves=frozenset(),
        login_hint=lambda _: "",
        max_open_requests=1000,
        queued_prompts_per_session=20,
        max_waiting_size=JOURNAL,
        journal_limit=JOURNAL,
    )
    multiplexer, client = Multiplexer("agent", policy, Registry("me")), Client("client", SessionScope("me"))
    multiplexer.attach(client)
    multiplexer.receive_from_client(
        client, b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}'
    )
    (asked,) = multiplexer.take_output().to_agent
    answer(multiplexer, asked, b'{"protocolVersion":1}')
    multiplexer.receive_from_client(client, b'{"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":"/"}}')
    (effect,) = multiplexer.take_output().effects
    assert isinstance(effect, CheckDirectories)
    multiplexer.directories_checked(effect.check, DirectoryCheckResult())
    (asked,) = multiplexer.take_output().to_agent
    answer(multiplexer, asked, b'{"sessionId":"%b"}' % SESSION.encode())
    return multiplexer, client


def answer(multiplexer: Multiplexer, request: bytes, result: bytes) -> None:
    """Answer a request as the agent."""
    multiplexer.receive_from_agent([b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (jsonrpc.parse(request).id, result)])
    multiplexer.take_output()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
