"""Versions of the protocol: cost of an update where client and agent speak different ones, and where they don't."""

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.bare import TURN_ENDED, BareClient
from benchmarks.measuring import Bench, Measured, Section, Target
from benchmarks.peers.versions_agent import STEP
from benchmarks.relays import Running
from benchmarks.report import figure
from benchmarks.tasks.loads import (
    WRITES,
    count_suspended_histories,
    suspended_notes,
    wait_until_idle,
    wait_until_indexed,
)

TASK: Final = "versions"

AGENT: Final = Path(__file__).parents[1] / "peers" / "versions_agent.py"

STEPS, QUICK_STEPS = 1_000, 300
"""Steps of work of the agent in one measurement: some tenths of a second. Their history is within `journal_limit` in
both versions, with what the messages carry: beyond it, each message is added at the cost of removing another."""

VERSIONS: Final = (1, 2)

AT_MOST: Final = 2.0
"""Maximum cost of an update where one end speaks version 2, as a multiple of that where both speak version 1."""


def run(bench: Bench) -> list[Section]:
    """Measure clients of both versions with agents of both versions, over TCP."""
    steps = bench.pick(STEPS, QUICK_STEPS)
    measured: dict[int, Measured] = {}
    with ExitStack() as stack:
        gateways = {
            agent: stack.enter_context(bench.relays["ours-tcp"].running((sys.executable, str(AGENT), str(agent))))
            for agent in VERSIONS
        }
        for batch, title in WRITES.items():
            subjects = {
                _subject(agent, client): partial(stream, gateways[agent], client, steps, batch)
                for agent in VERSIONS
                for client in VERSIONS
            }
            measured[batch] = bench.interleave(f"{TASK}, {title}", subjects)
        suspended = sum(map(count_suspended_histories, gateways.values()))
    return [table(measured, suspended)]


def stream(running: Running, version: int, steps: int, batch: int) -> Mapping[str, float]:
    """Run a turn of so many steps with a client of a version; return the gateway's CPU time for each of its updates."""
    with BareClient(running.endpoint) as client:
        client.initialize(version)
        session = client.open_session()
        before, updates = running.processor(), steps * STEP
        client.prompt(session, updates, batch)
        client.wait_for(TURN_ENDED)
        wait_until_idle(running)
        cost = (running.processor() - before) / updates
        client.ask("session/close", {"sessionId": session})
    wait_until_indexed(running)
    return {"processor_us": 1e6 * cost}


def table(measured: Mapping[int, Measured], suspended: int) -> Section:
    """Format costs, and those of translated updates as multiples of the others."""
    rows, targets = [], []
    for agent in VERSIONS:
        for client in VERSIONS:
            row = [f"{agent}", f"{client}"]
            for batch, each in measured.items():
                name, same = _subject(agent, client), _subject(1, 1)
                ratio = each.ratio(name, same, "processor_us")
                row += [figure(each.median(name, "processor_us"), "µs"), "" if name == same else figure(ratio, "x")]
                if name != same:
                    text = f"an agent of version {agent} and a client of version {client}, {WRITES[batch]}"
                    targets.append(Target(text, AT_MOST, "≤", ratio))
            rows.append(row)
    columns = ("", ": against version 1 on both sides")
    return Section(
        "Versions of the protocol: CPU time of the gateway for an update",
        ("agent", "client", *(f"{title}{column}" for title in WRITES.values() for column in columns)),
        rows,
        [
            f"{STEP} updates of one step of work: thoughts, words, a tool call with a diff, a plan.",
            "From the agent's pipe to the client over TCP and to the disk; without the index, which is written later.",
            *suspended_notes(suspended),
            *(note for each in measured.values() for note in each.notes()),
        ],
        targets,
    )


def _subject(agent: int, client: int) -> str:
    return f"agent of {agent}, client of {client}"
