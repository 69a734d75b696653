"""Memory over as many updates as an hour of busy use, at full speed: it must not grow with past traffic."""

import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

from benchmarks.bare import ACCEPT_COOLDOWN, BareClient, ResumePoint
from benchmarks.load import SIZE
from benchmarks.measuring import Bench, Section, Target
from benchmarks.relays import Running, our_gateway
from benchmarks.report import figure
from benchmarks.tasks.loads import count_suspended_histories, suspended_notes, wait_until_idle

TASK: Final = "soak"

CLIENTS: Final = 4
"""Clients, each with its own session, on resumable links as `connect` uses them."""

UPDATES, FEW_UPDATES = 720_000, 48_000
"""An hour of 50 updates per second and client; less in a quick run."""

TURN, BATCH = 500, 5
"""Updates per turn, and per write of the agent."""

DEFAULT_JOURNAL, SMALL_JOURNAL = 16 << 20, 1 << 20
"""Bytes of `journal_limit`: the default, and a smaller one that fills within a quick run."""

EVENT: Final = 6
"""Rounds of turns between two events (see `trigger_event`)."""

SAMPLES: Final = 10
"""Rows of the table: parts of the run for which the memory is shown."""

GROWTH: Final = 1.1
"""Maximum memory in the last third, as a multiple of that in the first."""


def soak(running: Running, updates: int, journal: int) -> Iterator[tuple[int, int]]:
    """Fill the histories, then run turns until `updates` updates were received.

    Yields the number of updates and the gateway's memory in bytes after each round of turns.
    """
    with ExitStack() as stack:
        clients = [stack.enter_context(BareClient(running.endpoint, ResumePoint())) for _ in range(CLIENTS)]
        for client in clients:
            client.initialize()
        sessions = [client.open_session() for client in clients]
        for _ in range(journal // (TURN * SIZE) + 1):
            turns(clients, sessions)
        # The queue of writes to the disk is bounded, so this does not take long.
        wait_until_idle(running)
        for number in range(1, updates // (CLIENTS * TURN) + 1):
            turns(clients, sessions)
            if number % EVENT == 0:
                trigger_event(running, clients, sessions, number // EVENT)
            yield number * CLIENTS * TURN, running.resident()
        for client in clients:
            client.leave()


def turns(clients: list[BareClient], sessions: list[str]) -> None:
    """Run one turn in each session, all at the same time. Raises `Failed` if updates are missing or duplicated."""
    before = [client.updates for client in clients]
    names = [client.prompt(session, TURN, BATCH) for client, session in zip(clients, sessions, strict=True)]
    for client, name, had in zip(clients, names, before, strict=True):
        client.wait(name)
        client.expect(had + TURN)


def trigger_event(running: Running, clients: list[BareClient], sessions: list[str], number: int) -> None:
    """Trigger one of the events that occur in an hour of use.

    A client joins and gets the whole history; a connection is lost and resumed in the middle of a turn; a session is
    opened for one turn and closed; a client connects and disconnects at once.
    """
    which = number // 4 % CLIENTS
    match number % 4:
        case 0:
            with BareClient(running.endpoint) as joiner:
                joiner.initialize()
                joiner.load_session(sessions[which])
        case 1:
            client = clients[which]
            name = client.prompt(sessions[which], TURN, BATCH)
            client.receive()
            client.close()
            time.sleep(ACCEPT_COOLDOWN)
            clients[which] = BareClient(running.endpoint, client.resume_point)
            clients[which].wait(name)
        case 2:
            client = clients[which]
            session = client.open_session()
            client.turn(session, TURN, BATCH)
            client.ask("session/close", {"sessionId": session})
        case _:
            BareClient(running.endpoint).close()
    # The gateway pauses `accept` after short connections; wait until it doesn't.
    time.sleep(ACCEPT_COOLDOWN / 3)


def run(bench: Bench) -> list[Section]:
    """Run the soak test and sample the memory."""
    updates, journal = bench.pick((UPDATES, DEFAULT_JOURNAL), (FEW_UPDATES, SMALL_JOURNAL))
    gateway = our_gateway(
        bench.programs, listen="ws", gateway_options={"journal_limit": journal} if bench.quick else {}
    )
    samples = []
    with gateway.running((str(bench.programs.agent),)) as running:
        base = running.resident()
        begun, reported = time.perf_counter(), 0
        for done, resident in soak(running, updates, journal):
            samples.append((done, resident))
            if done * SAMPLES // updates > reported:
                reported = done * SAMPLES // updates
                bench.log(f"{TASK}: {reported} of {SAMPLES}")
        seconds = time.perf_counter() - begun
        suspended = count_suspended_histories(running)
    return [table(samples, base, seconds, journal, suspended)]


def table(samples: list[tuple[int, int]], base: int, seconds: float, journal: int, suspended: int) -> Section:
    """Format the memory over time, and the ratio of its end to its beginning."""
    rows = []
    for tenth in range(SAMPLES):
        part = samples[len(samples) * tenth // SAMPLES : len(samples) * (tenth + 1) // SAMPLES]
        memory = statistics.median(resident for _, resident in part)
        rows.append((f"{part[-1][0]:,}", figure(memory, "B"), figure(max(resident for _, resident in part), "B")))
    third = len(samples) // 3
    first, last = (statistics.median(resident for _, resident in part) for part in (samples[:third], samples[-third:]))
    limit = "the default" if journal == DEFAULT_JOURNAL else "below the default, for a quick run"
    return Section(
        "Memory after an hour's worth of traffic",
        ("updates", "memory, median", "largest"),
        rows,
        [
            f"{CLIENTS} clients on resumable links, each with a session, turns of {TURN} updates of {SIZE} B.",
            f"All sessions at the same time and at full speed: {seconds:.0f} s.",
            "At the same time other clients join and get the whole history, and sessions are opened and closed.",
            "Connections are lost in the middle of a turn and resumed.",
            f"Sampling begins when the histories are full (`journal_limit` {journal >> 20} MiB, {limit}).",
            f"When the gateway started to listen, its memory was {figure(base, 'B')}.",
            *suspended_notes(suspended),
        ],
        [Target("memory in the last third over the first third", GROWTH, "≤", last / first)],
        {"base": base, "samples": samples},
    )
