"""Memory after as many updates as an hour of busy use has, at full speed: it must not grow with what is long over."""

import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

from benchmarks.bare import OWED, Bare, Place
from benchmarks.load import SIZE
from benchmarks.measuring import Bench, Section, Target
from benchmarks.relays import Running, our_gateway
from benchmarks.report import figure
from benchmarks.tasks.loads import histories_given_up, notes_on, rest

TASK: Final = "soak"

CLIENTS: Final = 4
"""Each with a session of its own, on links that resume, as `connect` has them."""

UPDATES, FEW_UPDATES = 720_000, 48_000
"""An hour of 50 updates a second for each client; the few in a quick run."""

TURN, BATCH = 500, 5
"""Updates of a turn, and in each write of the agent."""

DEFAULT_JOURNAL, SMALL_JOURNAL = 16 << 20, 1 << 20
"""Bytes of `journal_limit`: the default, and what fills soon enough for a quick run."""

EVENT: Final = 6
"""Rounds of turns after which something else happens, one of the four each time."""

SAMPLES: Final = 10
"""Parts of the whole for which the memory is shown."""

GROWTH: Final = 1.1
"""How many times as much memory there may be in the last third as in the first."""


def soak(running: Running, updates: int, journal: int) -> Iterator[tuple[int, int]]:
    """Work until there were so many updates, once the histories are full; for each round of turns how many there were
    and the bytes that the gateway has."""
    with ExitStack() as stack:
        clients = [stack.enter_context(Bare(running.where, Place())) for _ in range(CLIENTS)]
        for client in clients:
            client.initialize()
        sessions = [client.open_session() for client in clients]
        for _ in range(journal // (TURN * SIZE) + 1):
            turns(clients, sessions)
        # What is written down is bounded as well, and it is over soon.
        rest(running)
        for number in range(1, updates // (CLIENTS * TURN) + 1):
            turns(clients, sessions)
            if number % EVENT == 0:
                happen(running, clients, sessions, number // EVENT)
            yield number * CLIENTS * TURN, running.resident()
        for client in clients:
            client.leave()


def turns(clients: list[Bare], sessions: list[str]) -> None:
    """One turn in each session, all at the same time. Raises `Failed` where updates are missing or too many."""
    before = [client.updates for client in clients]
    names = [client.prompt(session, TURN, BATCH) for client, session in zip(clients, sessions, strict=True)]
    for client, name, had in zip(clients, names, before, strict=True):
        client.wait(name)
        client.expect(had + TURN)


def happen(running: Running, clients: list[Bare], sessions: list[str], number: int) -> None:
    """What else happens in an hour: somebody joins for the whole history, a connection is lost and resumed in the
    middle of a turn, a session is opened for one turn and closed, somebody looks in without a word."""
    which = number // 4 % CLIENTS
    match number % 4:
        case 0:
            with Bare(running.where) as joiner:
                joiner.initialize()
                joiner.load_session(sessions[which])
        case 1:
            client = clients[which]
            name = client.prompt(sessions[which], TURN, BATCH)
            client.receive()
            client.close()
            time.sleep(OWED)
            clients[which] = Bare(running.where, client.place)
            clients[which].wait(name)
        case 2:
            client = clients[which]
            session = client.open_session()
            client.turn(session, TURN, BATCH)
            client.ask("session/close", {"sessionId": session})
        case _:
            Bare(running.where).close()
    # Whoever came and went at once has been paid for when the next one comes.
    time.sleep(OWED / 3)


def run(bench: Bench) -> list[Section]:
    """Work, and look at the memory."""
    updates, journal = bench.pick((UPDATES, DEFAULT_JOURNAL), (FEW_UPDATES, SMALL_JOURNAL))
    gateway = our_gateway(
        bench.programs, listen="ws", gateway_options={"journal_limit": journal} if bench.quick else {}
    )
    samples = []
    with gateway.running((str(bench.programs.agent),)) as running:
        base = running.resident()
        begun, said = time.perf_counter(), 0
        for done, resident in soak(running, updates, journal):
            samples.append((done, resident))
            if done * SAMPLES // updates > said:
                said = done * SAMPLES // updates
                bench.say(f"{TASK}: {said} of {SAMPLES}")
        seconds = time.perf_counter() - begun
        given_up = histories_given_up(running)
    return [table(samples, base, seconds, journal, given_up)]


def table(samples: list[tuple[int, int]], base: int, seconds: float, journal: int, given_up: int) -> Section:
    """The memory over time, and how its end stands to its beginning."""
    rows = []
    for tenth in range(SAMPLES):
        part = samples[len(samples) * tenth // SAMPLES : len(samples) * (tenth + 1) // SAMPLES]
        memory = statistics.median(resident for _, resident in part)
        rows.append((f"{part[-1][0]:,}", figure(memory, "B"), figure(max(resident for _, resident in part), "B")))
    third = len(samples) // 3
    first, last = (statistics.median(resident for _, resident in part) for part in (samples[:third], samples[-third:]))
    limit = "the default" if journal == DEFAULT_JOURNAL else "less than the default, for a quick run"
    return Section(
        "Memory after an hour's worth of traffic",
        ("updates", "memory, median", "largest"),
        rows,
        [
            f"{CLIENTS} clients on links that resume, each with a session, turns of {TURN} updates of {SIZE} B.",
            f"All of them at the same time and at full speed: {seconds:.0f} s.",
            "Meanwhile others join for the whole history, and sessions are opened and closed.",
            "Connections are lost in the middle of a turn and resumed.",
            f"It begins when the histories are full (`journal_limit` {journal >> 20} MiB, {limit}).",
            f"When the gateway began to listen it had {figure(base, 'B')}.",
            *notes_on(given_up),
        ],
        [Target("memory in the last third over the first third", GROWTH, "≤", last / first)],
        {"base": base, "samples": samples},
    )
