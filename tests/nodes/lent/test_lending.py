"""Nodes that lend their connections to a door, and are reached though no port of theirs is open."""

import errno
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from acp_gateway.client.control import list_sessions, request
from acp_gateway.client.dialing import Destination, Resume, Via, dial, dial_link
from acp_gateway.client.local import LocalGateway
from acp_gateway.client.reaching.tunnelling import open_tunnel
from acp_gateway.config.addresses import parse_target
from acp_gateway.config.load import Config, ListenSection, load_config
from acp_gateway.config.nodes import DoorSection
from acp_gateway.errors import Forbidden, GatewayError, Unauthorized, UnknownAgent, Unreachable
from acp_gateway.nodes.lent import lending as lending_module
from acp_gateway.nodes.lent import parked
from acp_gateway.nodes.lent.lending import PARKED, REFUSED_PAUSE, Lending
from acp_gateway.nodes.lent.parked import MAX_PARKED, NODE_PIN, NODE_TOKEN
from acp_gateway.protocol.methods import ACCESS
from acp_gateway.security.certificates import read_certificate
from acp_gateway.security.token_format import mint
from acp_gateway.security.token_store import TokenStore
from acp_gateway.server.serve import serve
from acp_gateway.transports.websocket.client import UpgradeRefused
from acp_gateway.transports.websocket.stream import Timing
from acp_gateway.transports.websocket.tunnel import Tunnel, connect_tunnel
from tests.kit.doubles import Editor
from tests.kit.free_ports import free_port
from tests.kit.http_client import Http
from tests.kit.machines import SIZE, front_config, node_config, save_token
from tests.kit.serving import secure, serving
from tests.kit.wires import memory_wire
from tests.nodes.lent.test_tunnels import Dialog
from tests.nodes.test_node_watcher import new_session
from tests.nodes.test_pushing import sent, sign_in_phone, until_told

__all__ = ["sent"]


@dataclass
class Place:
    """A door."""

    folder: Path
    url: str

    @property
    def pin(self) -> str:
        return read_certificate(self.folder / "door" / "cert.pem").pin

    def node_token(self, name: str) -> Path:
        """The token of a node of this name."""
        path = self.folder / "door" / f"{name}.node"
        return (
            path
            if path.exists()
            else save_token(self.folder / "door", path.name, f"node {name}", role="node", nodes=[name])
        )

    def at_door(self, token: Path, **more: Any) -> Destination:
        return replace(Destination(parse_target(self.url), None, token.read_text(), self.pin, None, SIZE), **more)

    def section(self, name: str, **more: Any) -> DoorSection:
        return DoorSection(url=parse_target(self.url), token_file=self.node_token(name), pin=self.pin, **more)

    def box(self, folder: Path, name: str, **more: Any) -> Config:
        """A gateway that lends connections as this node, and listens nowhere but at a unix socket."""
        folder.mkdir(exist_ok=True)
        doors = {"home": self.section(name, **more)}
        return replace(node_config(folder, url=f"unix://{folder}/socket"), doors=doors)

    def through(self, box: Path, name: str = "gpu2") -> Destination:
        """The node through a tunnel of the door."""
        tunnel = self.folder / "door" / "tunnel"
        if not tunnel.exists():
            save_token(self.folder / "door", "tunnel", role="tunnel", nodes=[name])
        pin = read_certificate(box / "lending" / "cert.pem").pin
        return Destination(
            parse_target(f"wss://{name}"),
            "memory",
            (box / "node.token").read_text(),
            pin,
            None,
            SIZE,
            via=Via(self.at_door(tunnel), name, open_tunnel),
        )

    async def nodes(self) -> dict[str, dict[str, Any]]:
        """The nodes as the door's own user is told of them."""
        status = await LocalGateway(self.folder / "door").status(time_limit=30, nodes=True)
        return {node["name"]: node for node in status["nodes"]}

    async def until(self, condition: Callable[[dict[str, dict[str, Any]]], bool]) -> dict[str, dict[str, Any]]:
        """Ask until the nodes are so."""
        while not condition(found := await self.nodes()):
            await trio.lowlevel.checkpoint()
        return found

    async def until_up(self, name: str = "gpu2") -> dict[str, Any]:
        return (await self.until(lambda nodes: name in nodes and nodes[name]["up"]))[name]


def metrics_in(folder: Path) -> ListenSection:
    return ListenSection(url=f"unix://{folder}/metrics", serves=("metrics",))


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    """A door without a section for any node."""
    (tmp_path / "door").mkdir()
    listen = *secure(tmp_path / "door", "wss://127.0.0.1:0").listen, metrics_in(tmp_path / "door")
    async with serving(replace(front_config(tmp_path / "door", {}), listen=listen)) as (url, _):
        yield Place(tmp_path, url)


@asynccontextmanager
async def lending(place: Place, folder: Path, name: str = "gpu2") -> AsyncIterator[Path]:
    """A box that lends connections as a node, once the door has asked it."""
    async with serving(place.box(folder, name)) as urls:
        assert urls == [f"unix://{folder}/socket"]
        await place.until_up(name)
        yield folder


async def test_a_box_without_an_open_port_is_a_node_of_its_door_while_it_lends(place: Place, tmp_path: Path) -> None:
    assert await place.nodes() == {}
    async with lending(place, tmp_path / "box"):
        node = await place.until_up()
        assert (node["agents"], node["configured"], node["url"]) == (["memory"], False, "wss://gpu2:7443/acp")
    away = await place.until(lambda nodes: not nodes["gpu2"]["up"])
    assert away["gpu2"]["why"]
    async with lending(place, tmp_path / "box"):
        pass


async def test_a_tunnel_leads_over_a_lent_connection_to_the_box(place: Place, tmp_path: Path) -> None:
    async with lending(place, tmp_path / "box") as box:
        destination = place.through(box)
        stream = await dial(destination, Timing())
        dialog = Dialog(stream)
        assert await dialog.say(await dialog.open(), "hello") == "end_turn"
        await stream.aclose()
        # A link is resumed over another one.
        first = await dial_link(destination, Timing(), Resume())
        await first.aclose()
        second = await dial_link(destination, Timing(), Resume(first.connection_id, 0))
        assert second.connection_id == first.connection_id
        await second.aclose()


async def test_the_door_passes_requests_on_over_lent_connections(place: Place, tmp_path: Path) -> None:
    client = save_token(place.folder / "door", "client")
    async with lending(place, tmp_path / "box"):
        address = replace(parse_target(place.url), path="/nodes/gpu2/acp")
        rights = await request(place.at_door(client, address=address, control=True), ACCESS, {}, time_limit=30)
        assert list(rights["agents"]) == ["memory"]
        stream = await dial(place.at_door(client, address=address), Timing())
        dialog = Dialog(stream)
        assert await dialog.say(await dialog.open(), "hello") == "end_turn"
        await stream.aclose()


async def test_agents_of_a_box_are_used_by_their_name_at_the_door(place: Place, tmp_path: Path) -> None:
    client = save_token(place.folder / "door", "client")
    async with lending(place, tmp_path / "box"):
        stream = await dial(place.at_door(client, agent="gpu2/memory"), Timing())
        dialog = Dialog(stream)
        assert await dialog.say(await dialog.open(), "hello") == "end_turn"
        await stream.aclose()


async def test_a_box_may_have_the_default_agent_of_its_door(tmp_path: Path) -> None:
    (tmp_path / "door").mkdir()
    place = Place(tmp_path, "")
    place.node_token("gpu2")
    client = save_token(tmp_path / "door", "client")
    config = front_config(tmp_path / "door", {})
    listen = secure(tmp_path / "door", "wss://127.0.0.1:0").listen
    config = replace(config, listen=listen, gateway=replace(config.gateway, default_agent="gpu2/memory"))
    async with serving(config) as (url,):
        place.url = url
        async with lending(place, tmp_path / "box"):
            stream = await dial(place.at_door(client), Timing())
            dialog = Dialog(stream)
            assert await dialog.say(await dialog.open(), "hello") == "end_turn"
            await stream.aclose()


async def test_the_page_of_a_box_is_served_through_its_door(place: Place, tmp_path: Path) -> None:
    client = save_token(place.folder / "door", "client")
    async with lending(place, tmp_path / "box"):
        # `/ws` is what the page speaks.
        stream = await dial(
            place.at_door(client, address=replace(parse_target(place.url), path="/nodes/gpu2/ws")), Timing()
        )
        info = await Dialog(stream).ask("gateway/info")
        assert (info["role"], info["mayShare"]) == ("controller", False)
        await stream.aclose()


async def test_many_clients_at_once_each_get_a_connection(place: Place, tmp_path: Path) -> None:
    async with lending(place, tmp_path / "box") as box:
        destination = replace(place.through(box), agent=None, control=True)
        answered = 0

        async def ask() -> None:
            nonlocal answered
            await list_sessions(destination, time_limit=30)
            answered += 1

        async with trio.open_nursery() as nursery:
            for _ in range(4 * PARKED):
                nursery.start_soon(ask)
        assert answered == 4 * PARKED


async def test_a_lent_connection_gives_no_rights_without_a_token_of_the_box(place: Place, tmp_path: Path) -> None:
    async with lending(place, tmp_path / "box") as box:
        for token in (None, mint(), place.node_token("gpu2").read_text()):
            with pytest.raises(GatewayError, match=r"no valid token|no token"):
                await dial(replace(place.through(box), token=token), Timing())


async def test_of_two_boxes_with_one_name_the_first_keeps_it_and_the_second_is_told(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with lending(place, tmp_path / "box") as box, serving(place.box(tmp_path / "other", "gpu2")):
        while "another machine lends connections as gpu2" not in caplog.text:
            await trio.lowlevel.checkpoint()
        # The first one answers.
        await list_sessions(replace(place.through(box), agent=None, control=True), time_limit=30)
        assert "`acp-gateway nodes remove gpu2` and `nodes add gpu2` there; or remove [doors.home] here" in caplog.text


@pytest.mark.parametrize("restarted", [True, False])
async def test_the_first_machine_keeps_its_name_while_it_is_away_until_it_is_removed(
    restarted: bool, tmp_path: Path
) -> None:
    (tmp_path / "door").mkdir()
    listen = secure(tmp_path / "door", f"wss://127.0.0.1:{free_port()}").listen
    config = replace(front_config(tmp_path / "door", {}), listen=listen)
    place = Place(tmp_path, listen[0].url)
    kept = tmp_path / "door" / "lent" / "gpu2.token"
    async with AsyncExitStack() as doors:
        await doors.enter_async_context(serving(config))
        async with lending(place, tmp_path / "box"):
            pass
        if restarted:
            await doors.aclose()
            await doors.enter_async_context(serving(config))
        with pytest.raises(UpgradeRefused, match="another machine lends connections as gpu2") as refused:
            await ask_to_lend(place, place.node_token("gpu2"), TOLD)
        assert refused.value.status == 403
        async with lending(place, tmp_path / "box"):
            pass
        assert kept.exists()
        store = TokenStore(place.folder / "door")
        (token,) = [each for each in store.tokens() if each.role == "node"]
        store.revoke(token.id)
        await place.until(lambda nodes: "gpu2" not in nodes)
        assert not kept.exists()
        place.node_token("gpu2").unlink()
        await (await ask_to_lend(place, place.node_token("gpu2"), TOLD)).aclose()


async def test_a_machine_with_a_new_certificate_is_known_by_the_token_that_it_has_made(place: Place) -> None:
    token = place.node_token("gpu2")
    first = await ask_to_lend(place, token, TOLD)
    await place.until(lambda nodes: "gpu2" in nodes)
    other = {NODE_PIN: "sha256:" + 64 * "b"}
    with pytest.raises(UpgradeRefused, match="another machine"):
        await ask_to_lend(place, token, {**TOLD, **other, NODE_TOKEN: mint()})
    for tunnel in (first, await ask_to_lend(place, token, TOLD | other)):
        await tunnel.aclose()


async def test_a_reload_uses_other_doors_and_another_certificate(place: Place, tmp_path: Path) -> None:
    box = tmp_path / "box"
    box.mkdir()
    config = node_config(box, url=f"unix://{box}/socket")
    section, file = place.section("gpu2"), box / "config.toml"
    command = [*(config.agents["memory"].command or ())]
    own = (
        f'[gateway]\nstate_dir = "{box}"\n[[listen]]\nurl = "unix://{box}/socket"\n'
        '[workspaces.everything]\nroot = "/"\n'
        f"[agents.memory]\ncommand = {command}\n"
    )
    door = f'[doors.home]\nurl = "{section.url}"\ntoken_file = "{section.token_file}"\npin = "{section.pin}"\n'

    async def reload(text: str) -> list[str]:
        file.write_text(text)
        done = await LocalGateway(box).reload(time_limit=30)
        assert (done["restart"], done["problems"]) == ([], [])
        changed: list[str] = done["changed"]
        return changed

    async def until_asked() -> None:
        """Ask over a connection with the certificate that there is now, once the door has heard of it."""
        while True:
            with suppress(GatewayError):
                return await ask()

    async def ask() -> None:
        await list_sessions(replace(place.through(box), agent=None, control=True), time_limit=30)

    file.write_text(own)
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve, load_config(file), dict(os.environ), file=file))
        assert await reload(own + door) == ["doors.home: new"]
        await place.until_up()
        await ask()
        before = read_certificate(box / "lending" / "cert.pem").pin
        for name in ("cert.pem", "key.pem"):
            (box / "lending" / name).unlink()
        assert await reload(own + door) == []
        assert read_certificate(box / "lending" / "cert.pem").pin != before
        await until_asked()
        client = save_token(place.folder / "door", "client")
        address = replace(parse_target(place.url), path="/nodes/gpu2/acp")
        stream = await dial(place.at_door(client, address=address), Timing())
        assert await reload(own) == ["doors.home: removed"]
        # The token of the door is not valid any more.
        with pytest.raises((trio.BrokenResourceError, trio.EndOfChannel)):  # noqa: PT012
            while True:
                await stream.receive()
        await stream.abort()
        await place.until(lambda nodes: not nodes["gpu2"]["up"])
        nursery.cancel_scope.cancel()


def refused_lending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *refusals: GatewayError) -> tuple[Lending, Any]:
    """Lending to a door that refuses so, then takes all; and the times of its attempts."""
    attempts: list[float] = []
    answers = list(refusals)

    async def park(_: Lending) -> Tunnel:
        attempts.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        if len(answers) > 1:
            raise answers.pop(0)
        if answers:
            raise answers[0]
        return memory_wire()[0]  # type: ignore[return-value]

    async def wait(_: Tunnel) -> bool:
        await trio.sleep_forever()
        return False

    async def serve(_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(Lending, "_park", park)
    monkeypatch.setattr(lending_module, "_wait_for_client", wait)
    section = DoorSection(url=parse_target("wss://door"), token_file=tmp_path / "t")
    return Lending("home", section, pin="p", token=mint(), serve=serve, stall_timeout=1), (attempts, answers)


@pytest.mark.parametrize("refusal", [Unauthorized("who?"), Forbidden("another machine")], ids=["401", "403"])
async def test_a_box_that_its_door_refuses_tries_rarely_and_says_what_to_do(
    refusal: GatewayError,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    autojump_clock: trio.testing.MockClock,
) -> None:
    its, (attempts, answers) = refused_lending(tmp_path, monkeypatch, refusal)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(its.run, nursery)
        await trio.sleep(10 * REFUSED_PAUSE + 1)
        # Each connection once, then one of them.
        assert len(attempts) == PARKED + 10
        (line,) = [record.message for record in caplog.records]
        assert "or remove [doors.home] here. The next attempt is in 5 minutes, or at a reload" in line
        # A reload tries again at once, by that one.
        its.renew("p")
        await trio.testing.wait_all_tasks_blocked()
        assert (len(attempts), attempts[-1]) == (PARKED + 11, trio.current_time())
        answers.clear()
        await trio.sleep(REFUSED_PAUSE + 1)
        assert (its.parked, its.problem) == (PARKED, None)
        nursery.cancel_scope.cancel()


async def test_a_revoked_node_is_removed_within_a_second_and_its_links_end(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with lending(place, tmp_path / "box") as box:
        stream = await dial(place.through(box), Timing())
        store = TokenStore(place.folder / "door")
        (token,) = [each for each in store.tokens() if each.role == "node"]
        store.revoke(token.id)
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive()
        await stream.abort()
        await place.until(lambda nodes: "gpu2" not in nodes)
        with pytest.raises(UnknownAgent, match="no node gpu2"):
            await dial(place.through(box), Timing())
        # The remedy is that of a node, not of a client.
        while "it does not know this machine any more: `acp-gateway nodes add NAME` there" not in caplog.text:
            await trio.lowlevel.checkpoint()


async def test_a_node_stays_known_when_its_token_is_rotated(place: Place, tmp_path: Path) -> None:
    # As by the box that accepts its invitation, after the door was started.
    store = TokenStore(place.folder / "door")
    async with lending(place, tmp_path / "box") as box:
        stream = await dial(place.through(box), Timing())
        (token,) = [each for each in store.tokens() if each.role == "node"]
        _, secret = store.rotate(token.id)
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive()
        await stream.abort()
    assert "gpu2" in await place.nodes()
    place.node_token("gpu2").write_text(secret)
    async with lending(place, tmp_path / "box"):
        store.revoke(token.id)
        await place.until(lambda nodes: "gpu2" not in nodes)


async def test_a_node_that_is_away_is_known_after_a_restart_until_its_token_is_revoked(tmp_path: Path) -> None:
    (tmp_path / "door").mkdir()
    place = Place(tmp_path, "")
    place.node_token("gpu2")
    client = save_token(tmp_path / "door", "client")
    listen = secure(tmp_path / "door", "wss://127.0.0.1:0").listen
    async with serving(replace(front_config(tmp_path / "door", {}), listen=listen)) as (url,):
        place.url = url
        with pytest.raises(Unreachable, match="node gpu2 has not connected yet"):
            await dial(place.at_door(client, agent="gpu2/memory"), Timing())
        store = TokenStore(tmp_path / "door")
        (token,) = [each for each in store.tokens() if each.role == "node"]
        store.revoke(token.id)
        await place.until(lambda nodes: nodes == {})
        with pytest.raises(UnknownAgent):
            await dial(place.at_door(client, agent="gpu2/memory"), Timing())


async def test_a_client_that_comes_before_the_box_after_a_restart_of_the_door_waits_for_it(tmp_path: Path) -> None:
    (tmp_path / "door").mkdir()
    listen = secure(tmp_path / "door", f"wss://127.0.0.1:{free_port()}").listen
    config = replace(front_config(tmp_path / "door", {}), listen=listen)
    place = Place(tmp_path, listen[0].url)
    client = save_token(tmp_path / "door", "client")
    ended = trio.Event()

    async def run(task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        with trio.CancelScope() as scope:
            async with serving(config):
                task_status.started(scope)
                await trio.sleep_forever()
        ended.set()

    async with trio.open_nursery() as nursery:
        first = await nursery.start(run)
        async with lending(place, tmp_path / "box"):
            first.cancel()
            await ended.wait()
            async with serving(config):
                await (await dial(place.at_door(client, agent="gpu2/memory"), Timing())).aclose()


async def test_a_token_for_lending_allows_nothing_else(place: Place, tmp_path: Path) -> None:
    token = place.node_token("gpu2")
    async with lending(place, tmp_path / "box"):
        for asked in ({}, {"control": True}, {"agent": "gpu2/memory"}):
            with pytest.raises(Forbidden, match="a node that lends its connections and nothing else"):
                await dial(place.at_door(token, **asked), Timing())
        for path in ("/nodes/gpu2/tunnel", "/nodes/gpu2/acp", "/ws"):
            with pytest.raises(GatewayError, match=r"nothing else|but not at"):
                await dial(place.at_door(token, address=replace(parse_target(place.url), path=path)), Timing())


async def ask_to_lend(place: Place, token: Path, headers: dict[str, str]) -> Tunnel:
    """Ask a door to take a connection, by hand."""
    from websockets.uri import WebSocketURI

    from acp_gateway.client.dialing import open_connection

    destination = place.at_door(token)
    stream = await open_connection(destination)
    address = destination.address
    uri = WebSocketURI(True, address.host, address.port, "/nodes/lend", "")
    try:
        return await connect_tunnel(stream, uri, {"Authorization": f"Bearer {destination.token}", **headers})
    except BaseException:
        await stream.aclose()
        raise


TOLD = {NODE_PIN: "sha256:" + 64 * "a", NODE_TOKEN: mint()}


@pytest.mark.parametrize(
    "limits", [{}, {"role": "observer"}, {"role": "tunnel", "nodes": ["gpu2"]}, {"role": "metrics"}], ids=str
)
async def test_only_a_token_of_a_node_lends(place: Place, limits: dict[str, Any]) -> None:
    token = save_token(place.folder / "door", "other", **limits)
    with pytest.raises(UpgradeRefused) as refused:
        await ask_to_lend(place, token, TOLD)
    assert refused.value.status == 403


@pytest.mark.parametrize(
    "told",
    [{}, {NODE_PIN: "x", NODE_TOKEN: mint()}, {NODE_PIN: "sha256:" + 64 * "a", NODE_TOKEN: "x"}],
    ids=["nothing", "pin", "token"],
)
async def test_a_node_that_does_not_tell_who_it_is_lends_nothing(place: Place, told: dict[str, str]) -> None:
    with pytest.raises(UpgradeRefused) as refused:
        await ask_to_lend(place, place.node_token("gpu2"), told)
    assert (refused.value.status, refused.value.refusal) == (503, "busy")
    assert not (await place.nodes())["gpu2"]["up"]


async def test_a_stolen_token_of_a_node_answers_for_no_other_name_and_not_while_the_node_is_there(
    place: Place, tmp_path: Path
) -> None:
    async with lending(place, tmp_path / "box") as box:
        with pytest.raises(UpgradeRefused, match="another machine lends connections as gpu2"):
            await ask_to_lend(place, place.node_token("gpu2"), TOLD)
        other = await ask_to_lend(place, place.node_token("gpu3"), TOLD)
        await place.until(lambda nodes: {*nodes} == {"gpu2", "gpu3"})
        await list_sessions(replace(place.through(box), agent=None, control=True), time_limit=30)
        await other.aclose()


async def test_a_flood_of_parked_connections_is_bounded(place: Place) -> None:
    tunnels: list[Tunnel] = []
    with pytest.raises(UpgradeRefused, match=f"{MAX_PARKED} connections parked already"):  # noqa: PT012
        # The gateway itself takes a few, to ask the node what it has.
        while len(tunnels) < 2 * MAX_PARKED:
            tunnels.append(await ask_to_lend(place, place.node_token("gpu2"), TOLD))
    for tunnel in tunnels:
        await tunnel.aclose()


async def test_a_parked_connection_that_speaks_first_is_closed(place: Place) -> None:
    tunnel = await ask_to_lend(place, place.node_token("gpu2"), TOLD)
    tunnel.send_nowait(memoryview(b"HTTP/1.1 101 "))
    with pytest.raises(trio.BrokenResourceError):  # noqa: PT012  # The gateway itself may have taken it before.
        while await tunnel.receive_some():
            pass
    await tunnel.aclose()


async def test_a_node_with_the_name_of_a_section_is_refused(tmp_path: Path) -> None:
    (tmp_path / "door").mkdir()
    (tmp_path / "gpu2").mkdir()
    from tests.kit.machines import node_section

    save_token(tmp_path / "gpu2")
    listen = secure(tmp_path / "door", "wss://127.0.0.1:0").listen
    nodes = {"gpu2": node_section(tmp_path / "gpu2", "ws://127.0.0.1:1")}
    async with serving(replace(front_config(tmp_path / "door", nodes), listen=listen)) as (url,):
        place = Place(tmp_path, url)
        with pytest.raises(UpgradeRefused, match="that of another node here"):
            await ask_to_lend(place, place.node_token("gpu2"), TOLD)


async def test_a_client_is_told_when_the_node_lends_nothing(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lending(place, tmp_path / "box") as box:
        destination = place.through(box)
    monkeypatch.setattr(parked, "PATIENCE", 0.0)
    with pytest.raises(Unreachable, match="the node gpu2 can't be reached"):
        await dial(destination, Timing())


async def test_a_box_shows_the_certificate_of_its_listener_with_tls_inside(place: Place, tmp_path: Path) -> None:
    box = tmp_path / "box"
    box.mkdir()
    config = place.box(box, "gpu2")
    listen = secure(box, "wss://127.0.0.1:0").listen
    async with serving(replace(config, listen=(*config.listen, *listen))):
        await place.until_up()
        own = read_certificate(box / "cert.pem").pin
        (box / "lending").mkdir()
        (box / "lending" / "cert.pem").write_bytes((box / "cert.pem").read_bytes())
        assert place.through(box).pin == own
        await list_sessions(replace(place.through(box), agent=None, control=True), time_limit=30)


async def test_the_box_tells_how_many_connections_it_lends(place: Place, tmp_path: Path) -> None:
    async with lending(place, tmp_path / "box") as box:
        while True:
            (door,) = (await LocalGateway(box).status(time_limit=30))["doors"]
            if door["parked"] == PARKED:
                break
        assert door == {"name": "home", "parked": PARKED, "why": None}


async def test_both_ends_count_lent_connections_in_their_metrics(place: Place, tmp_path: Path) -> None:
    box = place.box(tmp_path / "box", "gpu2")
    ends = {"box": 'door_parked_connections{door="home"}', "door": 'node_parked_connections{node="gpu2"}'}
    async with serving(replace(box, listen=(*box.listen, metrics_in(tmp_path / "box")))):
        while ends:
            for folder, name in list(ends.items()):
                async with await trio.open_unix_socket(tmp_path / folder / "metrics") as stream:
                    told = (await Http(stream).ask("GET", "/metrics", None)).body.decode()
                if f"\nacp_gateway_{name} {PARKED}.0\n" in told:
                    del ends[folder]


async def test_a_bug_in_lending_is_logged_and_the_box_lends_again(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> str:
        monkeypatch.undo()
        raise ZeroDivisionError

    monkeypatch.setattr(lending_module, "read_token_file", fail)
    async with lending(place, tmp_path / "box") as box:
        await list_sessions(replace(place.through(box), agent=None, control=True), time_limit=30)
    assert "ZeroDivisionError" in caplog.text


async def test_a_box_that_is_out_of_descriptors_refuses_a_client_and_serves_the_next_one(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        monkeypatch.undo()
        raise OSError(errno.EMFILE, "too many open files")

    async with lending(place, tmp_path / "box") as box:
        destination = replace(place.through(box), agent=None, control=True)
        await list_sessions(destination, time_limit=30)
        monkeypatch.setattr(socket, "socketpair", fail)
        with pytest.raises(Unreachable, match="cannot reach gpu2"):
            await list_sessions(destination, time_limit=30)
        await list_sessions(destination, time_limit=30)


# Nodes that are there and can not be reached


@pytest.fixture
def doors(monkeypatch: pytest.MonkeyPatch) -> list[parked.LentNodes]:
    """The nodes of each door of the test. It comes before `place` among the fixtures of a test."""
    found: list[parked.LentNodes] = []
    know_all = parked.LentNodes.know_all

    def note(self: parked.LentNodes) -> None:
        found.append(self)
        know_all(self)

    monkeypatch.setattr(parked.LentNodes, "know_all", note)
    return found


async def until_ended(tunnel: Tunnel) -> None:
    with pytest.raises(trio.BrokenResourceError):  # noqa: PT012
        while await tunnel.receive_some():
            pass
    await tunnel.aclose()


async def test_a_node_is_back_after_another_machine_took_its_place(place: Place, tmp_path: Path) -> None:
    async with lending(place, tmp_path / "box") as box:
        destination = replace(place.through(box), agent=None, control=True)
        pin = read_certificate(box / "lending" / "cert.pem").pin
        await (await ask_to_lend(place, place.node_token("gpu2"), {NODE_PIN: pin, NODE_TOKEN: mint()})).aclose()
        await list_sessions(destination, time_limit=30)


async def test_a_node_with_a_new_token_is_there_again_after_the_former_one_is_revoked(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await (await ask_to_lend(place, place.node_token("gpu2"), TOLD)).aclose()
    store = TokenStore(place.folder / "door")
    (token,) = [each for each in store.tokens() if each.role == "node"]
    (place.folder / "door" / "gpu2.node").unlink()
    async with lending(place, tmp_path / "box") as box:
        destination = replace(place.through(box), agent=None, control=True)
        store.revoke(token.id)
        while "the node gpu2 was removed" not in caplog.text:
            await trio.lowlevel.checkpoint()
        await place.until_up()
        await list_sessions(destination, time_limit=30)


async def test_a_client_that_leaves_while_it_is_given_a_connection_keeps_none(
    doors: list[parked.LentNodes], place: Place
) -> None:
    tunnel = await ask_to_lend(place, place.node_token("gpu2"), TOLD)
    while not doors[0].parked().get("gpu2"):
        await trio.lowlevel.checkpoint()
    with trio.CancelScope() as leaving:
        leaving.cancel()
        await doors[0].take("gpu2")
    assert leaving.cancelled_caught
    await until_ended(tunnel)


async def test_a_box_whose_listener_goes_by_some_names_alone_is_reached_by_its_name_at_the_door(
    place: Place, tmp_path: Path
) -> None:
    box = tmp_path / "box"
    box.mkdir()
    config = place.box(box, "gpu2")
    (listen,) = secure(box, "wss://127.0.0.1:0").listen
    listen = replace(listen, allowed_hosts=("box.example",))
    async with serving(replace(config, listen=(*config.listen, listen))):
        await place.until_up()


async def test_a_phone_is_notified_of_a_session_at_a_node_that_lends_its_connections(
    place: Place, tmp_path: Path, sent: list[dict[str, Any]]
) -> None:
    async with lending(place, tmp_path / "box"):
        token = save_token(tmp_path / "door", "token")
        sign_in_phone(tmp_path / "door")
        editor = Editor(await dial(place.at_door(token, agent="gpu2/memory"), Timing()))
        session = await new_session(editor)
        await until_told(sent, editor, session)
        assert sent[0]["sessionId"] == f"gpu2/{session}"
        await editor.stream.aclose()
