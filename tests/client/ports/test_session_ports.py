"""When the ports of a session are looked at."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from acp_gateway.client.dialing import Destination
from acp_gateway.client.ports import session_ports
from acp_gateway.client.ports.forwarding import Port as TheirPort
from acp_gateway.client.ports.session_ports import LOOK_INTERVAL, SessionPorts, ports_of
from acp_gateway.errors import Forbidden, UsageError
from acp_gateway.terminal.dialogue import Opened, TurnEnded, TurnStarted, Updated
from acp_gateway.terminal.port_lines import Port
from tests.client.ports.test_forwarding import destination
from tests.kit.updates import said

pytestmark = pytest.mark.jumps

OPENED, ENDED, STARTED = Opened("s", (), ""), TurnEnded("end_turn", ""), TurnStarted("")


class Looks:
    """Looks that find what a test says."""

    def __init__(self) -> None:
        self.found: list[Port] | Exception = []
        self.count = 0
        self.told: list[list[Port]] = []
        self.ports = SessionPorts(self._ask, self.told.append)

    async def _ask(self) -> list[Port]:
        self.count += 1
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    async def after(self, *events: Any) -> int:
        """Return how often it was looked since the last time."""
        before = self.count
        self.ports.receive(events)
        await trio.sleep(10 * LOOK_INTERVAL)
        return self.count - before


async def looking(play: Callable[[Looks], Any]) -> None:
    looks = Looks()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(looks.ports.run)
        await play(looks)
        nursery.cancel_scope.cancel()


async def test_the_ports_are_looked_at_when_something_tells_of_them_and_never_else() -> None:
    async def play(looks: Looks) -> None:
        assert await looks.after(Updated(said("localhost:6006 "), ""), ENDED) == 0
        looks.found = [Port(6006, "tb")]
        assert await looks.after(OPENED) == 1
        assert await looks.after(STARTED, Updated(said("see localhost:6006 "), "")) == 0
        assert await looks.after(Updated(said("and localhost:80"), ""), Updated(said("80 "), "")) == 1
        assert await looks.after(Updated(said("localhost:9"), ""), ENDED) == 1
        assert looks.told == [[Port(6006, "tb")]]

    await looking(play)


async def test_an_agent_that_offers_without_an_end_is_looked_at_from_time_to_time() -> None:
    async def play(looks: Looks) -> None:
        await looks.after(OPENED)
        before = looks.count
        for _ in range(100):
            looks.ports.receive([Updated(said("localhost:80 "), "")])
            await wait_all_tasks_blocked()
        assert looks.count - before == 1

    await looking(play)


async def test_what_was_known_stays_while_there_is_no_answer() -> None:
    async def play(looks: Looks) -> None:
        looks.found = [Port(1, "")]
        await looks.after(OPENED)
        looks.found = Forbidden("no")
        await looks.after(ENDED)
        assert (looks.told, looks.ports.known) == ([[Port(1, "")]], [Port(1, "")])

    await looking(play)


async def test_the_ports_of_a_session_are_asked_for_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    async def listed(place: Destination, *, time_limit: float, session: str) -> list[TheirPort]:
        asked.append((place.address.path, session))
        return [TheirPort(80, "p", "a", [])]

    monkeypatch.setattr(session_ports, "list_ports", listed)
    box = destination("wss://box", "ssh://box")
    assert await ports_of(box, "s") == await ports_of(box, "gpu2/s") == [Port(80, "p")]
    assert asked == [("/acp", "s"), ("/nodes/gpu2/acp", "s")]
    assert await ports_of(destination("ssh://box"), "s") == []
    with pytest.raises(UsageError):
        await ports_of(destination("unix:///run/g"), "gpu2/s")
