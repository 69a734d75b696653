"""Resumption of a link with much queued data: time to the first message, and to the last."""

import time
from contextlib import ExitStack
from functools import partial
from typing import Final

from benchmarks.bare import ACCEPT_COOLDOWN, ACK_EVERY, BareClient, ResumePoint
from benchmarks.load import SIZE
from benchmarks.measuring import Bench, Measured, Section, Target, growth
from benchmarks.relays import Running
from benchmarks.report import NOTHING, figure
from benchmarks.tasks.loads import LINEAR, MEGABYTE, count_suspended_histories, suspended_notes, wait_until_idle

TASK: Final = "resuming"

TITLES: Final = {"ours": "WebSocket", "ours-tcp": "TCP"}
"""Measured listeners by name, with their titles in the table."""


def resume(running: Running, size: int) -> dict[str, float]:
    """Cut a link, wait until `size` bytes are queued for it, and resume it."""
    updates = size // SIZE
    with ExitStack() as stack:
        client = stack.enter_context(BareClient(running.endpoint, ResumePoint()))
        client.initialize()
        session = client.open_session()
        control = stack.enter_context(BareClient(running.endpoint, control=True))
        name = client.prompt(session, updates, 50)
        while not client.updates:
            client.receive()
        client.close()
        while control.is_any_turn_open():
            time.sleep(0.02)
        time.sleep(ACCEPT_COOLDOWN)
        wait_until_idle(running)
        before = client.resume_point.received
        client = stack.enter_context(BareClient(running.endpoint, client.resume_point))
        while not client.updates:
            client.receive()
        first = time.perf_counter()
        client.wait(name)
        took = time.perf_counter() - client.connected_at
        # Two answers preceded the updates.
        client.expect(updates - (before - 2))
        waited = client.updates * SIZE
        client.ask("session/close", {"sessionId": session})
        client.leave()
    return {"first_ms": 1000 * (first - client.connected_at), "all_ms": 1000 * took, "bytes": float(waited)}


def run(bench: Bench) -> list[Section]:
    """Measure both kinds of listeners with several amounts of queued data."""
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
        suspended = sum(map(count_suspended_histories, gateways))
    return [table(measured, listeners, sizes, suspended)]


def table(measured: Measured, listeners: tuple[str, ...], sizes: tuple[int, ...], suspended: int) -> Section:
    """Format times, and their growth with the queued data."""
    rows, targets, notes = [], [], [*suspended_notes(suspended), *measured.notes()]
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
            notes.append(
                f"{title}: the total time grows with the power {exponent:.2f} of the queued data; 1 is linear."
            )
        largest, smallest = max(sizes), min(sizes)
        targets.append(
            Target(
                f"{title}: time for a byte, {largest} MB queued over {smallest} MB",
                LINEAR,
                "≤",
                costs[largest] / costs[smallest] if largest in costs and smallest in costs else None,
            )
        )
    return Section(
        "Resuming a link with much queued data",
        ("over", "queued", "first message after", "all after", "throughput"),
        rows,
        [
            "Times start when TCP is connected again, so they include the upgrade or the hello.",
            f"Updates of {SIZE} B; the client acknowledges after each {ACK_EVERY >> 20} MiB.",
            *notes,
        ],
        targets,
    )
