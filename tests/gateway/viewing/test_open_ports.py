"""The ports that a client may use, by its sessions, its token and the configuration."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.config.options import ListenSection
from acp_gateway.errors import Forbidden, UnknownPort
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.agent.listeners import Program
from acp_gateway.gateway.viewing import open_ports
from acp_gateway.gateway.viewing.admitted import Admitted
from acp_gateway.gateway.viewing.open_ports import LOOK_INTERVAL, OpenPorts, _Place
from acp_gateway.made.ports import MOST_TOLD, Listener, Owned
from tests.kit.bridging import Bench, MakeBench, section

pytestmark = pytest.mark.usefixtures("no_bug_showed")


class Machine:
    """The ports that a look at the machine finds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[tuple[Owned[_Place], Program]] = []
        self.looks = 0
        monkeypatch.setattr(open_ports, "find_owned", self.look)
        monkeypatch.setattr(open_ports, "has_tables", lambda: True)

    def look(self, families: Mapping[_Place, Any], configured: Mapping[_Place, Any], *, agent_of: Any) -> Any:
        self.looks += 1
        return self.found

    def listens(self, bench: Bench, hub: int | None, port: int = 6006, folder: str | None = "/srv/a") -> None:
        place = _Place("fake", None if hub is None else bench.gateway.hubs[hub])
        owned = Owned(place, Listener(port, "127.0.0.1", 1000, port), 42, frozenset({port}))
        self.found.append((owned, Program("tensorboard", folder)))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def admitted(bench: Bench, access: Access) -> Admitted:
    return Admitted(bench.gateway, access, ConnectRequest(control=True))


async def seen(bench: Bench, access: Access) -> list[int]:
    return [port.port for port in await OpenPorts(bench.gateway).of(admitted(bench, access))]


async def test_the_identity_of_the_agent_is_told_its_ports_with_their_sessions(bench: Bench, machine: Machine) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session(cwd="/", title="Train it")
    machine.listens(bench, 0, folder="/")
    told = {
        "port": 6006,
        "program": "tensorboard",
        "agentType": "fake",
        "sessions": [{"sessionId": session, "title": "Train it"}],
    }
    for about in {}, {"sessionId": session}:
        assert await page.result("ports/list", **about) == {"ports": [told], "previews": False}
    code, text = await page.error("ports/preview", port=6006)
    assert (code, "preview_url" in text) == (-32600, True)
    other = await page.new_session(cwd="/", title="other")
    (port,) = (await page.result("ports/list"))["ports"]
    assert {one["sessionId"] for one in port["sessions"]} == {session, other}
    assert await seen(bench, bench.access("ben")) == []


async def test_a_list_of_sessions_has_their_ports_if_they_are_wanted(bench: Bench, machine: Machine) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session(cwd="/")
    for port in range(1, MOST_TOLD + 2):
        machine.listens(bench, 0, port, folder="/")
    (row,) = (await page.result("session/list", all=True))["sessions"]
    assert ("ports" in row, machine.looks) == (False, 0)
    (row,) = (await page.result("session/list", all=True, ports=True))["sessions"]
    assert row["ports"] == [{"port": port, "program": "tensorboard"} for port in range(1, MOST_TOLD + 1)]
    # Others see the session, and not its ports.
    observer = await bench.page(bench.access(role="observer"), "observer")
    (row,) = (await observer.result("session/list", ports=True))["sessions"]
    assert (row["id"], "ports" in row) == (session, False)


async def test_a_port_is_found_for_the_agent_that_is_named_alone(bench: Bench, machine: Machine) -> None:
    await (await bench.page(bench.access())).new_session(cwd="/")
    machine.listens(bench, 0, folder="/")
    client, ports = admitted(bench, bench.access()), OpenPorts(bench.gateway)
    assert (await ports.find(client, 6006, "fake")).agent == "fake"
    # Also one that is known by now: the origin of a preview is never another agent's.
    for look in ports.find, ports.open:
        with pytest.raises(UnknownPort):
            await look(client, 6006, "other")


async def test_of_several_sessions_those_of_the_programs_folder_have_the_port(
    bench: Bench, machine: Machine, tmp_path: Path
) -> None:
    page = await bench.page(bench.access())
    inside, outside = tmp_path / "a", tmp_path / "b"
    inside.mkdir()
    outside.mkdir()
    first, second = [await page.new_session(cwd=str(folder)) for folder in (inside, outside)]
    machine.listens(bench, 0, folder=str(inside / "deeper"))
    (port,) = (await page.result("ports/list"))["ports"]
    assert [one["sessionId"] for one in port["sessions"]] == [first]
    assert (await page.result("ports/list", sessionId=second))["ports"] == []


async def test_guests_and_observers_may_use_ports_only_if_their_token_says_so(bench: Bench, machine: Machine) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session(cwd="/")
    machine.listens(bench, 0, folder="/")
    refused = [bench.access(role="observer"), bench.guest(session), bench.guest(session, "observer")]
    for access in refused:
        with pytest.raises(Forbidden, match="--ports"):
            await seen(bench, access)
        assert await seen(bench, replace(access, ports=True)) == [6006]
    code, text = await (await bench.page(refused[0], "observer")).error("ports/list")
    assert (code, "--ports" in text) == (403, True)
    # In doubt whether it is of the guest's session, it is not told.
    await page.new_session(cwd="/")
    assert await seen(bench, replace(refused[1], ports=True)) == []
    assert await seen(bench, replace(bench.access(), only=session)) == []
    assert await seen(bench, bench.access()) == [6006]


async def test_a_guest_gets_no_port_that_an_ended_session_may_have_left(
    bench: Bench, machine: Machine, tmp_path: Path
) -> None:
    page = await bench.page(bench.access())
    inside = tmp_path / "a"
    inside.mkdir()
    kept, ended = [await page.new_session(cwd=str(folder)) for folder in (tmp_path, inside)]
    for port, folder in (6006, str(tmp_path)), (6007, str(inside)), (6008, "/else"), (6009, None):
        machine.listens(bench, 0, port, folder=folder)
    agent = bench.gateway.hubs[0].multiplexer._agent
    everything = [6006, 6007, 6008, 6009]
    guests = replace(bench.guest(kept), ports=True), replace(bench.access(), only=kept)
    for guest in guests:
        assert await seen(bench, guest) == [6006]
    agent.remove_session(agent.live[ended])
    for guest in guests:
        assert await seen(bench, guest) == [6006]
    assert await seen(bench, bench.access()) == everything
    agent.remove_session(agent.live[await page.new_session(cwd=str(tmp_path))])
    for guest in guests:
        assert await seen(bench, guest) == []
    assert await seen(bench, bench.access("ben")) == []


async def test_of_a_shared_agent_and_of_one_without_sessions_no_client_gets_a_port(
    make_bench: MakeBench, machine: Machine
) -> None:
    async with make_bench(fake=section("shared")) as bench:
        await (await bench.page(bench.access())).new_session(cwd="/")
        machine.listens(bench, 0)
        assert await seen(bench, bench.access()) == []
    machine.found.clear()
    async with make_bench(fake=section()) as bench:
        await bench.client(bench.access(), agent="fake")
        machine.listens(bench, 0)
        assert await seen(bench, bench.access()) == []


async def test_a_port_of_the_configuration_is_for_those_who_may_use_all_sessions_of_its_agent(
    make_bench: MakeBench, machine: Machine
) -> None:
    async with make_bench(fake=section(ports=((6006, 6006),)), other=section()) as bench:
        machine.listens(bench, None)
        for access in bench.access(), bench.access("ben"), bench.access(agents=["fake"]):
            assert await seen(bench, access) == [6006]
        session = await (await bench.page(bench.access())).new_session(agentType="fake", cwd="/")
        for access in (
            bench.access(agents=["other"]),
            replace(bench.access(role="observer"), ports=True),
            replace(bench.guest(session), ports=True),
            replace(bench.access(), only=session),
            bench.access(workspaces=["a"]),
        ):
            assert await seen(bench, access) == []


async def test_a_port_that_is_configured_and_of_a_session_is_told_once_with_the_session(
    make_bench: MakeBench, machine: Machine
) -> None:
    async with make_bench(fake=section(ports=((6006, 6006),))) as bench:
        page = await bench.page(bench.access())
        session = await page.new_session(agentType="fake", cwd="/")
        machine.listens(bench, 0, folder="/")
        machine.listens(bench, None, folder="/")
        (port,) = (await page.result("ports/list"))["ports"]
        assert [one["sessionId"] for one in port["sessions"]] == [session]


async def test_where_the_system_tells_nothing_the_configuration_does(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_ports, "has_tables", lambda: False)
    monkeypatch.setattr(open_ports, "find_owned", lambda *_, **__: [])
    async with make_bench(fake=section(ports=((6006, 6006), (8000, 8002)))) as bench:
        assert await seen(bench, bench.access()) == [6006, 8000, 8001, 8002]
        # Never the gateway's own.
        bench.gateway.config = replace(bench.gateway.config, listen=(ListenSection(url="ws://127.0.0.1:8001/acp"),))
        assert await seen(bench, bench.access()) == [6006, 8000, 8002]


async def test_the_machine_is_looked_at_once_in_a_second_and_only_if_asked(
    bench: Bench, machine: Machine, mock_clock: trio.testing.MockClock
) -> None:
    ports = OpenPorts(bench.gateway)
    client = admitted(bench, bench.access())
    assert machine.looks == 0
    await ports.of(client)
    await ports.of(client)
    assert machine.looks == 1
    mock_clock.jump(LOOK_INTERVAL)
    await ports.of(client)
    assert machine.looks == 2


async def test_a_port_is_not_opened_for_others_nor_if_another_socket_listens_there(
    bench: Bench, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await bench.page(bench.access())).new_session(cwd="/")
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        port = listener.socket.getsockname()[1]
        machine.listens(bench, 0, port)
        there = [Listener(port, "127.0.0.1", 1000, port)]
        monkeypatch.setattr(open_ports, "find_listeners", lambda port: [it for it in there if it.port == port])
        ports = OpenPorts(bench.gateway)
        found, stream = await ports.open(admitted(bench, bench.access()), port)
        assert found.program == "tensorboard"
        await stream.aclose()
        looks = machine.looks
        await (await ports.open(admitted(bench, bench.access()), port))[1].aclose()
        assert machine.looks == looks
        there[0] = there[0]._replace(inode=1)
        for access, number in (bench.access(), port), (bench.access("ben"), port), (bench.access(), 1):
            with pytest.raises(UnknownPort, match=f"port {number} here"):
                await ports.open(admitted(bench, access), number)
