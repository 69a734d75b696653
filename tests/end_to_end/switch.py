"""A way to a gateway that a test can cut, and mend again."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import trio

from tests.kit.faulty_proxy import Fault, FaultyProxy, reset


class Switch(FaultyProxy):
    """A proxy that works, until it is told not to. It runs in a thread of its own, since the tests have no Trio.

    With `cuts_after`, each connection is cut after so many bytes in one direction.
    """

    def __init__(self, port: int, cuts_after: int = 0) -> None:
        super().__init__(
            port,
            seed=0,
            cuts=1000 if cuts_after else 0,
            size=(cuts_after, cuts_after),
            faults=(Fault.RESET, Fault.CLOSE),
        )
        self._is_cut = False
        self._token: trio.lowlevel.TrioToken | None = None
        self._life = trio.CancelScope()

    @contextmanager
    def running(self) -> Iterator["Switch"]:
        """Run while in this block."""
        ready = threading.Event()

        async def run() -> None:
            self._token = trio.lowlevel.current_trio_token()
            with self._life:
                async with trio.open_nursery() as nursery:
                    await nursery.start(self.run)
                    ready.set()

        thread = threading.Thread(target=trio.run, args=[run])
        thread.start()
        try:
            assert ready.wait(60)
            yield self
        finally:
            self._do(self._life.cancel)
            thread.join()

    def cut(self) -> None:
        """Reset what is connected, and who connects from now on."""

        def cut() -> None:
            self._is_cut = True
            super(Switch, self).cut()

        self._do(cut)

    def mend(self) -> None:
        """Let connections through again."""

        def mend() -> None:
            self._is_cut = False

        self._do(mend)

    def _do(self, what: Callable[[], Any]) -> None:
        trio.from_thread.run_sync(what, trio_token=self._token)

    async def _serve(self, client: trio.SocketStream) -> None:
        if self._is_cut:
            reset(client)
            return
        await super()._serve(client)
