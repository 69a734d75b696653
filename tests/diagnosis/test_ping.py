"""The order of a ping's steps, what ends it, and that its session is closed again. The network is made up."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import trio

from acp_gateway.client.dialing import Destination, Via
from acp_gateway.client.reaching.tunnelling import open_tunnel
from acp_gateway.config.addresses import Address, parse_target
from acp_gateway.diagnosis.checks import Line
from acp_gateway.diagnosis.ping import SSH_TIMEOUT, Ping, PingSettings, RefusedError, within
from acp_gateway.diagnosis.ping_checks import Refused, Silent, TlsFacts
from acp_gateway.errors import AgentError, TrustError, Unauthorized, Unreachable
from acp_gateway.protocol.path_maps import PathMaps
from tests.kit.fake_gateway import DESTINATION

BOX = replace(DESTINATION, address=parse_target("box"))
FORGET = {"_meta": {"acp-gateway": {"forget": True}}}


class FakeProbes:
    """A gateway whose steps work, but for those in `errors`."""

    def __init__(self) -> None:
        self.errors: dict[str, Exception] = {}
        self.hanging = ""
        self.access: dict[str, Any] = {"role": "controller", "defaultAgent": "demo"}
        self.capabilities: dict[str, Any] = {}
        self.steps: list[str] = []
        self.waited: list[tuple[str, list[str]]] = []
        self.asked: list[tuple[str, Mapping[str, Any]]] = []
        self.control: Destination | None = None
        self.used = BOX.address
        self.addresses: dict[Address, Exception] = {}

    async def _step(self, name: str) -> None:
        self.steps.append(name)
        if name == self.hanging:
            await trio.sleep_forever()
        if name in self.errors:
            raise self.errors[name]

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        before = len(self.steps)
        yield
        self.waited.append((what, self.steps[before:]))

    async def settle(self, destination: Destination) -> Destination:
        self.control = destination
        await self._step("settle")
        return destination.at(self.used)

    async def resolve(self, host: str) -> list[str]:
        await self._step("resolve")
        return ["10.0.0.1"]

    async def reach(self, destination: Destination) -> str:
        await self._step("reach")
        return "10.0.0.1 port 7443"

    async def shake_hands(self, destination: Destination) -> TlsFacts | None:
        await self._step("shake_hands")
        return TlsFacts("TLSv1.3", pinned=True, end=None)

    async def read_access(self, destination: Destination) -> Mapping[str, Any]:
        self.control = destination
        if destination.address in self.addresses:
            raise self.addresses[destination.address]
        await self._step("read_access")
        return self.access

    @asynccontextmanager
    async def converse(self, destination: Destination) -> AsyncIterator["FakeProbes"]:
        await self._step("converse")
        yield self

    async def ask(self, method: str, params: Mapping[str, Any], time_limit: float) -> Mapping[str, Any]:
        self.asked.append((method, params))
        await within(time_limit, self._step(method))
        if method == "initialize":
            return {"agentCapabilities": self.capabilities}
        return {"sessionId": "s1"}


@pytest.fixture
def probes() -> FakeProbes:
    return FakeProbes()


async def ping(probes: FakeProbes, destination: Destination = BOX, **settings: Any) -> list[Line]:
    lines: list[Line] = []
    chosen = replace(PingSettings("/Users/ann/proj", PathMaps([("/Users/ann/proj", "/srv/proj")])), **settings)
    with trio.fail_after(10 * SSH_TIMEOUT):
        await Ping(
            destination,
            chosen,
            lines.append,
            probes,
            probes.waiting,
            trio.current_time,
            lambda: datetime(2026, 1, 1, tzinfo=UTC),
        ).run()
    return lines


async def test_all_steps_are_tried_in_order_and_the_session_is_forgotten(probes: FakeProbes) -> None:
    lines = await ping(probes)
    assert [(line.name, line.status) for line in lines] == [
        (name, "ok") for name in ("name", "port", "TLS", "token", "agent", "session")
    ]
    assert lines[-1].text == "opens in /Users/ann/proj, there /srv/proj; closed again"
    assert probes.asked[1:] == [
        ("session/new", {"_meta": {"acp-gateway": {"worktree": False}}, "cwd": "/srv/proj", "mcpServers": []}),
        ("session/close", {"sessionId": "s1"} | FORGET),
    ]
    assert "demo starts" in lines[4].text


LAN, SSH = parse_target("192.0.2.7"), parse_target("ssh://ann@box")
SEVERAL = replace(BOX, address=LAN, others=(BOX.address, SSH))


async def test_of_several_addresses_the_one_that_is_used_is_named_and_what_the_others_say(probes: FakeProbes) -> None:
    probes.addresses = {LAN: Unreachable("no route")}
    lines = await ping(probes, SEVERAL)
    assert [(line.status, line.text) for line in lines[:3]] == [
        ("warning", "wss://192.0.2.7:7443/acp: no route"),
        ("ok", "wss://box:7443/acp is used, of 3 addresses"),
        ("ok", "ssh://ann@box works as well"),
    ]
    assert [line.name for line in lines[3:]] == ["name", "port", "TLS", "token", "agent", "session"]
    assert "box is 10.0.0.1" in lines[3].text


async def test_if_no_address_works_the_best_one_is_tried_step_by_step(probes: FakeProbes) -> None:
    probes.errors = {"settle": Unreachable("none"), "reach": ConnectionRefusedError(111, "no")}
    probes.addresses = {BOX.address: TrustError("another key"), SSH: Silent(20.0)}
    lines = await ping(probes, SEVERAL)
    assert [(line.name, line.status) for line in lines] == [
        ("address", "warning"),
        ("address", "warning"),
        ("name", "ok"),
        ("port", "fault"),
    ]
    assert [line.text for line in lines[:2]] == [
        "wss://box:7443/acp: another key",
        "ssh://ann@box: no answer within 20 s",
    ]
    assert "192.0.2.7 port 7443 refuses" in lines[-1].text


async def test_the_gateway_itself_is_asked_which_address_works(probes: FakeProbes) -> None:
    probes.errors["settle"] = probes.errors["resolve"] = Unreachable("none")
    probes.addresses = {BOX.address: Unreachable("no"), SSH: Unreachable("no")}
    await ping(probes, replace(SEVERAL, session="s1", observe=True))
    assert probes.control is not None
    assert (probes.control.control, probes.control.session, probes.control.observe) == (True, None, False)


async def test_what_takes_long_is_waited_for_within_a_context(probes: FakeProbes) -> None:
    await ping(probes)
    assert probes.waited == [("demo to start", ["initialize"]), ("a session", ["session/new"])]


async def test_an_agent_that_can_deletes_the_session(probes: FakeProbes) -> None:
    probes.capabilities = {"sessionCapabilities": {"close": {}, "delete": {}}}
    assert (await ping(probes))[-1].text.endswith("; deleted again")
    assert probes.asked[-1] == ("session/delete", {"sessionId": "s1"})


@pytest.mark.parametrize("error", [RefusedError(Refused(-1, "no", {})), trio.EndOfChannel("no"), Unreachable("no")])
async def test_a_session_that_cannot_be_closed_is_told(probes: FakeProbes, error: Exception) -> None:
    probes.errors["session/close"] = error
    assert (await ping(probes))[-1].text.endswith("; it could not be closed again: no")


@pytest.mark.parametrize(
    ("step", "error", "name", "code"),
    [
        ("resolve", OSError("no"), "name", 6),
        ("reach", ConnectionRefusedError(111, "no"), "port", 6),
        ("shake_hands", TrustError("no"), "TLS", 5),
        ("read_access", Unauthorized("no"), "token", 4),
        ("converse", Unreachable("no"), "agent", 6),
        ("initialize", RefusedError(Refused(-32603, "no", {})), "agent", 8),
        ("initialize", AgentError("no"), "agent", 8),
        ("session/new", RefusedError(Refused(-32000, "no", {})), "session", 8),
    ],
)
async def test_the_first_fault_is_the_last_line(
    probes: FakeProbes, step: str, error: Exception, name: str, code: int
) -> None:
    probes.errors[step] = error
    *before, last = await ping(probes)
    assert (last.name, last.status, last.exit_code) == (name, "fault", code)
    assert all(line.status == "ok" for line in before)
    assert probes.steps[-1] == step


@pytest.mark.parametrize("step", ["resolve", "reach", "shake_hands", "read_access", "initialize", "session/new"])
async def test_a_step_that_hangs_ends_after_its_time_limit(
    probes: FakeProbes, step: str, autojump_clock: trio.testing.MockClock
) -> None:
    probes.hanging = step
    *_, last = await ping(probes, agent_timeout=60.0)
    assert last.status == "fault"
    assert probes.steps[-1] == step


async def test_a_quick_ping_ends_with_the_token(probes: FakeProbes) -> None:
    assert [line.name for line in await ping(probes, until="token")] == ["name", "port", "TLS", "token"]


async def test_a_ping_may_end_with_the_agent(probes: FakeProbes) -> None:
    assert [line.name for line in await ping(probes, until="agent")] == ["name", "port", "TLS", "token", "agent"]
    assert "session/new" not in probes.steps


async def test_the_token_is_asked_about_without_an_agent_and_a_session(probes: FakeProbes) -> None:
    await ping(probes, replace(BOX, agent="demo", session="s9", observe=True))
    assert probes.control is not None
    assert probes.control.connect_params == {"agent": "demo", "control": True}


async def test_a_gateway_that_is_too_old_to_tell_is_tried_on(probes: FakeProbes) -> None:
    probes.errors["read_access"] = RefusedError(Refused(-32601, "what", {}))
    lines = await ping(probes)
    assert "too old" in lines[3].text
    assert lines[-1].name == "session"


async def test_a_guest_opens_no_session(probes: FakeProbes) -> None:
    probes.access = {"session": "s9"}
    assert (await ping(probes))[-1].text.startswith("not opened")
    assert "session/new" not in probes.steps


@pytest.mark.parametrize(
    ("target", "steps"),
    [
        ("unix:///run/acp", ["reach", "read_access"]),
        ("tcp://127.0.0.1:1", ["resolve", "reach", "read_access"]),
        ("ssh://box", ["shake_hands", "read_access"]),
        ("https://box/acp", ["resolve", "reach", "shake_hands"]),
    ],
)
async def test_a_transport_has_the_steps_that_it_needs(probes: FakeProbes, target: str, steps: list[str]) -> None:
    await ping(probes, replace(BOX, address=parse_target(target)), until="token")
    assert probes.steps == steps


async def test_ssh_that_hangs_is_told(probes: FakeProbes, autojump_clock: trio.testing.MockClock) -> None:
    probes.hanging = "shake_hands"
    (line,) = await ping(probes, replace(BOX, address=parse_target("ssh://box")))
    assert (line.name, line.exit_code) == ("ssh", 6)
    assert "within 20 s" in line.text


async def test_within_raises_silent_after_its_limit(autojump_clock: trio.testing.MockClock) -> None:
    work = trio.Event().wait
    with pytest.raises(Silent):
        await within(1.0, work())


async def test_name_and_port_are_those_of_the_door_and_tls_is_that_of_the_gateway_behind_it(
    probes: FakeProbes, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = replace(DESTINATION, address=parse_target("door.example"))
    asked: list[str] = []

    async def resolve(host: str) -> list[str]:
        asked.append(host)
        return ["10.0.0.9"]

    async def reach(destination: Destination) -> str:
        asked.append(destination.address.host)
        return "10.0.0.9 port 7443"

    async def shake_hands(destination: Destination) -> TlsFacts | None:
        asked.append(destination.address.host)
        return TlsFacts("TLSv1.3", pinned=True, end=None)

    monkeypatch.setattr(probes, "resolve", resolve)
    monkeypatch.setattr(probes, "reach", reach)
    monkeypatch.setattr(probes, "shake_hands", shake_hands)
    lines = await ping(probes, replace(BOX, via=Via(door, "gpu2", open_tunnel)), until="token")
    assert asked == ["door.example", "door.example", "box"]
    assert [line.name for line in lines] == ["name", "port", "TLS", "token"]
    assert "door.example" in lines[0].text
