"""Files of sessions are written in threads."""

import threading
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from acp_gateway.core.sessions.session import Session
from acp_gateway.core.turns.journal import Journal
from acp_gateway.gateway.session_api import exporting
from acp_gateway.gateway.session_api.exporting import write_file
from acp_gateway.gateway.sessions.history import HistorySlice, slice_of
from acp_gateway.protocol import jsonrpc
from acp_gateway.terminal.exporting import History
from tests.kit.doubles import TIMEOUT


def one_by_one() -> Callable[[str, int], trio.CapacityLimiter]:
    """A limiter of each kind of work, to one at a time."""
    found = defaultdict[str, trio.CapacityLimiter](partial(trio.CapacityLimiter, 1))
    return lambda work, _: found[work]


class ReaderDouble:
    async def read(self, session: Session) -> HistorySlice:
        await trio.lowlevel.checkpoint()
        return slice_of(session.journal)


async def test_a_cancelled_file_keeps_the_next_one_waiting_until_its_thread_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[object] = []
    end = threading.Event()

    def write(about: History, *_: object, **__: object) -> bytes:
        begun.append(about.id)
        end.wait(TIMEOUT)
        return b"{}"

    async def run(name: str) -> None:
        with scopes[name]:
            await write_file(reader, limiter, Session("agent", name, "me", Journal(100, "e")), "json", redacted=False)

    monkeypatch.setattr(exporting, "_write", write)
    reader: Any = ReaderDouble()
    limiter = one_by_one()
    scopes = {name: trio.CancelScope() for name in ("first", "second")}
    default = trio.to_thread.current_default_thread_limiter()
    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as nursery:
            try:
                nursery.start_soon(run, "first")
                while not begun:
                    await trio.lowlevel.checkpoint()
                scopes["first"].cancel()
                nursery.start_soon(run, "second")
                await wait_all_tasks_blocked()
                assert default.borrowed_tokens == 0
                assert begun == ["first"]
            finally:
                end.set()
    assert begun == ["first", "second"]


async def test_a_file_that_is_encoded_in_pieces_has_each_character(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "PIECE", 2)
    text = 'a"\\\n\u0001\U0001f600\ud83d\ude00é'
    monkeypatch.setattr("acp_gateway.terminal.exporting.export", lambda *_, **__: text)
    reader: Any = ReaderDouble()
    limiter = one_by_one()
    with trio.fail_after(TIMEOUT):
        written = await write_file(
            reader, limiter, Session("agent", "s", "me", Journal(100, "e")), "json", redacted=False
        )
    assert written == jsonrpc.encode({"name": "s.json", "mimeType": "application/json", "text": text})
