"""The audit of what clients do: entries one by one, and floods as numbers."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from acp_gateway.gateway.events.audit import Audit, read_audit
from acp_gateway.gateway.events.audit_throttle import SINGLE, WINDOW, AuditThrottle

Entries = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def audit(tmp_path: Path) -> Iterator[Audit]:
    audit = Audit(tmp_path / "audit.jsonl", max_size=1 << 24, files=2)
    yield audit
    audit.close()


@pytest.fixture
def entries(tmp_path: Path, audit: Audit) -> Entries:
    """Says what has been written, without the times."""

    def read() -> list[dict[str, Any]]:
        return [
            {name: value for name, value in entry.items() if name != "time"}
            for entry in read_audit(tmp_path / "audit.jsonl")
        ]

    return read


async def test_what_somebody_does_now_and_then_is_written_at_once(audit: Audit, entries: Entries) -> None:
    AuditThrottle(audit).record("attached", identity="ann", agent="demo")
    assert entries() == [{"event": "attached", "identity": "ann", "agent": "demo"}]


async def test_a_flood_is_counted_and_told_in_one_entry(
    audit: Audit, entries: Entries, autojump_clock: MockClock
) -> None:
    book = AuditThrottle(audit)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(book.run)
        for number in range(SINGLE + 500):
            book.record("cwd_refused", identity="ann", path=f"/{number}")
        assert len(entries()) == SINGLE
        await trio.sleep(WINDOW)
        await trio.testing.wait_all_tasks_blocked()
        assert entries()[SINGLE:] == [{"event": "cwd_refused", "identity": "ann", "count": 500}]
        nursery.cancel_scope.cancel()


async def test_a_flood_hides_neither_what_others_do_nor_anything_else(audit: Audit, entries: Entries) -> None:
    book = AuditThrottle(audit)
    for _ in range(SINGLE + 1):
        book.record("cwd_refused", identity="ann")
    book.record("cwd_refused", identity="bob")
    book.record("attached", identity="ann")
    assert [(entry["event"], entry["identity"]) for entry in entries()[SINGLE:]] == [
        ("cwd_refused", "bob"),
        ("attached", "ann"),
    ]


async def test_after_a_window_entries_are_written_one_by_one_again(
    audit: Audit, entries: Entries, autojump_clock: MockClock
) -> None:
    book = AuditThrottle(audit)
    for _ in range(SINGLE + 1):
        book.record("attached", identity="ann")
    await trio.sleep(WINDOW)
    book.record("attached", identity="ann", agent="demo")
    assert entries()[SINGLE:] == [{"event": "attached", "identity": "ann", "agent": "demo"}]


async def test_what_the_gateway_itself_does_is_always_written(audit: Audit, entries: Entries) -> None:
    book = AuditThrottle(audit)
    for _ in range(SINGLE + 5):
        book.record("agent_started", agent="demo")
    assert len(entries()) == SINGLE + 5


async def test_what_was_counted_is_told_at_the_end(audit: Audit, entries: Entries) -> None:
    book = AuditThrottle(audit)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(book.run)
        for _ in range(SINGLE + 3):
            book.record("attached", identity="ann")
        nursery.cancel_scope.cancel()
    assert entries()[-1] == {"event": "attached", "identity": "ann", "count": 3}
