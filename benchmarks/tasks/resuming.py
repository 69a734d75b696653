"""A link that is resumed after a cut while much waits for it: how soon the first message is there, and how soon all."""

import time
from contextlib import ExitStack
from functools import partial
from typing import Final

from benchmarks.bare import OWED, TOLD_EVERY, Bare, Place
from benchmarks.load import SIZE
from benchmarks.measuring import Bench, Measured, Section, Target, growth
from benchmarks.relays import Running
from benchmarks.report import NOTHING, figure
from benchmarks.tasks.loads import LINEAR, MEGABYTE, histories_given_up, notes_on, rest

TASK: Final = "resuming"

TITLES: Final = {"ours": "WebSocket", "ours-tcp": "TCP"}
"""The listeners that are measured, as the table calls them."""


def resume(running: Running, size: int) -> dict[str, float]:
    """Cut a link, have so many bytes wait for it, and resume it."""
    updates = size // SIZE
    with ExitStack() as stack:
        client = stack.enter_context(Bare(running.where, Place()))
        client.initialize()
        session = client.open_session()
        control = stack.enter_context(Bare(running.where, control=True))
        name = client.prompt(session, updates, 50)
        while not client.updates:
            client.receive()
        client.close()
        while control.is_any_turn_open():
            time.sleep(0.02)
        time.sleep(OWED)
        rest(running)
        before = client.place.received
        client = stack.enter_context(Bare(running.where, client.place))
        while not client.updates:
            client.receive()
        first = time.perf_counter()
        client.wait(name)
        took = time.perf_counter() - client.connected_at
        # Two answers came before the updates.
        client.expect(updates - (before - 2))
        waited = client.updates * SIZE
        client.ask("session/close", {"sessionId": session})
        client.leave()
    return {"first_ms": 1000 * (first - client.connected_at), "all_ms": 1000 * took, "bytes": float(waited)}


def run(bench: Bench) -> list[Section]:
    """Measure both kinds of listeners, and with how much waits."""
    sizes = bench.pick((1, 10, 50), (1, 10))
    listeners = bench.pick(("ours", "ours-tcp"), ("ours",))
    subjects, gateways = {}, []
    with ExitStack() as stack:
        for listener in listeners:
            running = stack.enter_context(bench.relays[listener].running((str(bench.programs.agent),)))
            gateways.append(running)
            for size in sizes:
                subjects[f"{listener}, {size} MB"] = partial(resume, running, size * MEGABYTE)
        measured = bench.interleave(TASK, subjects, warm_up=not bench.quick)
        given_up = sum(map(histories_given_up, gateways))
    return [table(measured, listeners, sizes, given_up)]


def table(measured: Measured, listeners: tuple[str, ...], sizes: tuple[int, ...], given_up: int) -> Section:
    """Times, and how they grow with what waits."""
    rows, targets, notes = [], [], [*notes_on(given_up), *measured.notes()]
    for listener in listeners:
        title = TITLES[listener]
        costs: dict[int, float] = {}
        for size in sizes:
            subject = f"{listener}, {size} MB"
            first, all_of_it = (measured.median(subject, metric) for metric in ("first_ms", "all_ms"))
            waited = measured.median(subject, "bytes")
            rate = NOTHING
            if waited and all_of_it:
                costs[size] = all_of_it / waited
                rate = f"{figure(1000 / costs[size], 'B')}/s"
            rows.append((title, f"{size} MB", figure(first, "ms"), figure(all_of_it, "ms"), rate))
        if len(costs) > 1:
            exponent = growth(list(costs), [size * cost for size, cost in costs.items()])
            notes.append(f"{title}: the time for all grows with the power {exponent:.2f} of what waits; 1 is linear.")
        largest, smallest = max(sizes), min(sizes)
        targets.append(
            Target(
                f"{title}: time for a byte, {largest} MB waiting over {smallest} MB",
                LINEAR,
                "≤",
                costs[largest] / costs[smallest] if largest in costs and smallest in costs else None,
            )
        )
    return Section(
        "Resuming a link for which much waits",
        ("over", "waiting", "first message after", "all after", "on the whole"),
        rows,
        [
            "From the TCP connection that is there again: the upgrade or the hello, then what was missed.",
            f"Updates of {SIZE} B; the client confirms what it has after each {TOLD_EVERY >> 20} MiB.",
            *notes,
        ],
        targets,
    )
