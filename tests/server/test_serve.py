"""The gateway as a program: what it is when it starts, and what is left when it stops, or is killed."""

import json
import logging
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
import trio
from websockets.uri import WebSocketURI

from acp_gateway.config.load import AgentSection, ListenSection, load_config
from acp_gateway.errors import CannotListen, ConfigError
from acp_gateway.fence import landlock
from acp_gateway.gateway import gateway as gateway_module
from acp_gateway.gateway.agent import startup
from acp_gateway.gateway.events.audit import read_audit
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.security.token_store import TokenStore
from acp_gateway.server import serve as serve_module
from acp_gateway.server import systemd as systemd_module
from acp_gateway.server.serve import serve
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.sockets import connect_tcp, connect_unix
from acp_gateway.transports.websocket.client import connect_websocket
from acp_gateway.transports.websocket.stream import Timing, WebSocketStream
from tests.kit.doubles import (
    OBLIGING_AGENT,
    TIMEOUT,
    Editor,
    ServingAgents,
    Watch,
    encode,
    make_config,
    open_descriptors,
    python,
)
from tests.kit.serving import secure, serving

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

TCP = "tcp://127.0.0.1:0"
WS = "ws://127.0.0.1:0"


async def connect_lines(url: str, token: str | None = None) -> Editor:
    """An editor whose connection was accepted."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        stream = await connect_unix(parts.path)
    else:
        assert parts.hostname is not None
        assert parts.port is not None
        stream = await connect_tcp(parts.hostname, parts.port)
    lines = LineStream(stream, max_message_size=1 << 20)
    params = {} if token is None else {"token": token}
    await lines.send(encode({"id": "h", "method": "_acp-gateway/hello", "params": params}))
    assert "result" in json.loads(await lines.receive())
    return Editor(lines)


async def connect_web(url: str, token: str, query: str = "") -> WebSocketStream:
    """An authenticated WebSocket. It is not run, so it sends no pings."""
    port = urlsplit(url).port
    assert port is not None
    return await connect_websocket(
        await connect_tcp("127.0.0.1", port),
        WebSocketURI(False, "127.0.0.1", port, "/acp", query),
        {"Authorization": f"Bearer {token}"},
        max_message_size=1 << 20,
        timing=Timing(),
    )


# In this process


async def test_the_state_directory_is_made_for_its_owner_alone(state_dir: Path) -> None:
    async with serving(make_config(state_dir / "deep", TCP)):
        assert (state_dir / "deep").stat().st_mode & 0o777 == 0o700


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


UNFENCED = "without a fence, agents read and write all that their user may: obliging (option fence, docs/fence.md)"


async def test_a_gateway_without_tokens_and_fences_starts_with_a_warning_for_each(
    state_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(make_config(state_dir, TCP)):
        pass
    tokens, fences = warnings_in(caplog)
    assert "there are no tokens yet" in tokens
    assert fences == UNFENCED


async def test_a_gateway_starts_with_a_warning_for_each_option_that_is_ignored(
    state_dir: Path, token: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(replace(make_config(state_dir, TCP), removed=("config.toml:3: cluster.mirror: ignored",))):
        pass
    assert warnings_in(caplog) == ["config.toml:3: cluster.mirror: ignored", UNFENCED]


async def test_a_gateway_is_ready_while_it_runs_and_no_more_once_it_stops(
    state_dir: Path, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateways: list[Gateway] = []

    def make_gateway(*arguments: Any) -> Gateway:
        gateways.append(Gateway(*arguments))
        return gateways[-1]

    monkeypatch.setattr(serve_module, "Gateway", make_gateway)
    async with serving(make_config(state_dir, WS, TCP)) as urls:
        await trio.testing.wait_all_tasks_blocked()
        (gateway,) = gateways
        assert gateway.readiness.problems == []
    assert gateway.readiness.problems == ["the gateway is stopping"]
    gateway.readiness.stopping = False
    assert gateway.readiness.problems == [f"{url} accepts no connections" for url in urls]


async def test_a_gateway_whose_sessions_of_before_cannot_be_read_says_so_and_serves_all_the_same(
    state_dir: Path, token: str, caplog: pytest.LogCaptureFixture
) -> None:
    database = state_dir / "sessions.db"
    database.mkdir()
    (database / "file").touch()
    async with serving(make_config(state_dir, TCP)) as (url,):
        (error,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        assert str(database) in error
        editor = await connect_lines(url, token)
        await editor.initialize()
        assert "result" in await editor.request("session/new", {"cwd": "/", "mcpServers": []})
        await editor.stream.aclose()


async def test_a_token_that_is_revoked_while_its_connection_is_open_closes_it(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "REVOCATION_INTERVAL", 0.001)
    token, secret = TokenStore(state_dir).create("laptop", "ann", None)
    async with serving(make_config(state_dir, WS)) as (url,):
        websocket = await connect_web(url, secret)
        TokenStore(state_dir).revoke(token.id)
        await Editor(websocket).leave()
    assert (websocket.close_code, websocket.close_text) == (1008, "the token is not valid any more")


@pytest.mark.parametrize("scope", ["connection", "identity", "shared"])
async def test_a_gateway_that_stops_says_so_to_its_clients_and_stops_their_agents(
    scope: Literal["connection", "identity", "shared"], state_dir: Path, tmp_path: Path
) -> None:
    token = TokenStore(state_dir).create("laptop", None, None)[1]
    received = tmp_path / "received"
    agents = {"a": AgentSection(command=(*OBLIGING_AGENT, str(received)), scope=scope, eof_grace=TIMEOUT)}
    async with trio.open_nursery() as clients, serving(make_config(state_dir, WS, agents=agents)) as (url,):
        websocket = await connect_web(url, token)
        editor = Editor(websocket)
        await editor.initialize()
        agent = Watch((await editor.request("test/process"))["result"]["pid"])
        await editor.request("session/load", {"sessionId": "s", "cwd": "/", "mcpServers": []})
        await editor.send(id="turn", method="session/prompt", params={"sessionId": "s", "prompt": []})
        await editor.request("test/process")
        clients.start_soon(editor.leave)
    await agent.gone()
    assert json.loads(received.read_text().splitlines()[-1])["method"] == "session/cancel"
    assert (websocket.close_code, websocket.close_text) == (1001, "the gateway is stopping")


async def test_clients_of_a_gateway_that_stops_do_not_wait_for_their_agents(
    state_dir: Path, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = ServingAgents()
    agents.may_stop = trio.Event()
    monkeypatch.setattr(startup, "run_agent", agents.run)
    async with trio.open_nursery() as nursery:
        (url,) = await nursery.start(partial(serve, make_config(state_dir, WS), dict(os.environ)))
        try:
            with trio.fail_after(TIMEOUT) as deadline:
                editor = Editor(await connect_web(url, token))
                await editor.initialize()
                deadline.shield = True
                nursery.cancel_scope.cancel()
                await editor.leave()
                await trio.testing.wait_all_tasks_blocked()
                assert agents[0].cancelled
        finally:
            agents.may_stop.set()


@pytest.mark.parametrize("url", [WS, TCP])
@pytest.mark.parametrize("how", ["signal", "cancelled"])
async def test_no_agent_gets_the_address_of_a_gateway_that_stops(
    how: str, url: str, state_dir: Path, token: str, monkeypatch: pytest.MonkeyPatch, signals_as_before: None
) -> None:
    agents = ServingAgents()
    agents.may_stop = trio.Event()
    monkeypatch.setattr(startup, "run_agent", agents.run)
    async with trio.open_nursery() as nursery:
        (real_url,) = await nursery.start(partial(serve, make_config(state_dir, url), dict(os.environ)))
        port = urlsplit(real_url).port
        assert port is not None
        try:
            with trio.fail_after(TIMEOUT) as deadline:
                editor = (
                    Editor(await connect_web(real_url, token)) if url == WS else await connect_lines(real_url, token)
                )
                await editor.initialize()
                deadline.shield = True
                if how == "signal":
                    signal.raise_signal(signal.SIGTERM)
                else:
                    nursery.cancel_scope.cancel()
                await editor.leave()
                await trio.testing.wait_all_tasks_blocked()
                assert agents[0].cancelled
                with socket.socket() as other:
                    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                    with pytest.raises(OSError, match="in use"):
                        other.bind(("127.0.0.1", port))
                if how == "signal":
                    async with await trio.open_tcp_stream("127.0.0.1", port) as refused:
                        assert await refused.receive_some() == b""
        finally:
            agents.may_stop.set()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))


async def test_a_gateway_that_stops_says_so_to_who_asks_the_gateway_itself(state_dir: Path, token: str) -> None:
    async with trio.open_nursery() as clients, serving(make_config(state_dir, WS)) as (url,):
        websocket = await connect_web(url, token, "control=1")
        editor = Editor(websocket)
        assert (await editor.request("session/list", {"all": True}))["result"] == {"sessions": []}
        clients.start_soon(editor.leave)
    assert (websocket.close_code, websocket.close_text) == (1001, "the gateway is stopping")


async def test_clients_of_one_identity_share_an_agent_across_listeners(state_dir: Path, token: str) -> None:
    async with serving(make_config(state_dir, WS, TCP)) as (web, lines):
        editors = [Editor(await connect_web(web, token)), await connect_lines(lines, token)]
        pids = []
        for editor in editors:
            await editor.initialize()
            pids.append((await editor.request("test/process"))["result"]["pid"])
        assert pids[0] == pids[1]
        for editor in editors:
            await editor.stream.aclose()


async def test_a_gateway_that_stops_leaves_no_socket_no_thread_and_no_descriptor(state_dir: Path, token: str) -> None:
    async with serving(make_config(state_dir, TCP)):
        pass
    before = open_descriptors()
    config = make_config(state_dir, WS, TCP, f"unix://{state_dir}/socket")
    async with trio.open_nursery() as clients, serving(config) as urls:
        editor = await connect_lines(urls[2])
        await editor.initialize()
        assert [thread for thread in threading.enumerate() if thread.name.startswith("spawner")]
        clients.start_soon(editor.leave)
    assert not (state_dir / "socket").exists()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("spawner")]
    assert open_descriptors() == before


@pytest.mark.parametrize("url", [WS, TCP])
async def test_a_gateway_stops_while_handshakes_are_under_way(url: str, state_dir: Path) -> None:
    async with serving(make_config(state_dir, url, handshake_timeout=1000)) as (real_url,):
        port = urlsplit(real_url).port
        assert port is not None
        silent = await trio.open_tcp_stream("127.0.0.1", port)
        halfway = await trio.open_tcp_stream("127.0.0.1", port)
        await halfway.send_all(b"G" if url == WS else b'{"json')
        await trio.testing.wait_all_tasks_blocked()
    for stream in (silent, halfway):
        try:
            assert await stream.receive_some() == b""
        except trio.BrokenResourceError:
            pass  # Reset, because of what it had sent.
        await stream.aclose()


STOPPING = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture
def signals_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (*STOPPING, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOPPING)
async def test_a_gateway_stops_at_a_signal_and_a_second_one_would_end_it_at_once(
    number: signal.Signals, state_dir: Path, token: str, signals_as_before: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as nursery:
            (url,) = await nursery.start(partial(serve, make_config(state_dir, WS), dict(os.environ)))
            websocket = await connect_web(url, token)
            signal.raise_signal(number)
            await Editor(websocket).leave()
    assert websocket.close_code == 1001
    assert {signal.getsignal(any_of_them) for any_of_them in STOPPING} == {signal.SIG_DFL}
    assert said(caplog) == [UNFENCED, f"received {number.name}", "stopping", "stopped"]


async def test_a_hangup_while_the_gateway_stops_does_not_end_it(
    state_dir: Path, signals_as_before: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve, make_config(state_dir, TCP), {}))
        # As a session that ends sends them.
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGHUP)
    assert said(caplog)[-3:] == ["received SIGTERM", "stopping", "stopped"]


# Reading again


RELOADING = ["received SIGHUP: reading the configuration, tokens and certificates again", "reloaded"]


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log messages of the server itself."""
    names = ("acp_gateway.server.serve", "acp_gateway.server.serve")
    return [record.getMessage() for record in caplog.records if record.name in names]


async def reload(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Send SIGHUP and wait until that is done; what was logged until then, but for that it was done."""
    caplog.set_level(logging.INFO)
    caplog.clear()
    signal.raise_signal(signal.SIGHUP)
    with trio.fail_after(TIMEOUT):
        while "reloaded" not in said(caplog):
            await trio.testing.wait_all_tasks_blocked()
    first, *between, last = said(caplog)
    assert [first, last] == RELOADING
    return between


async def certificate_at(url: str) -> bytes:
    """The certificate that is shown to a new client."""
    port = urlsplit(url).port
    assert port is not None
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    stream = await trio.open_ssl_over_tcp_stream("127.0.0.1", port, ssl_context=context)
    await stream.do_handshake()
    shown: bytes = stream.getpeercert(binary_form=True)
    await trio.aclose_forcefully(stream)
    return shown


async def test_sighup_shows_the_new_certificate_to_new_clients_and_keeps_open_connections(
    state_dir: Path, token: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = secure(state_dir, "tcp+tls://127.0.0.1:0", "wss://127.0.0.1:0")
    lines = ListenSection(url=TCP)
    async with serving(replace(config, listen=(*config.listen, lines))) as (first, second, plain):
        editor = await connect_lines(plain, token)
        await editor.initialize()
        before = [await certificate_at(first), await certificate_at(second)]
        secure(state_dir)
        assert await reload(caplog) == []
        after = [await certificate_at(first), await certificate_at(second)]
        assert before[0] == before[1] != after[0] == after[1]
        assert "result" in await editor.request("test/process")
        await editor.stream.aclose()
    (entry,) = [entry for entry in audited(state_dir) if entry["event"] == "reloaded"]
    assert set(entry) == {"time", "event"}


def audited(state_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (state_dir / "audit.jsonl").read_text().splitlines()]


async def test_a_certificate_that_cannot_be_read_again_is_an_error_of_the_log_and_the_old_one_stays(
    state_dir: Path, token: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(secure(state_dir, "tcp+tls://127.0.0.1:0")) as (url,):
        before = await certificate_at(url)
        (state_dir / "cert.pem").write_text("torn")
        (problem,) = await reload(caplog)
        assert problem.startswith(f"{url} goes on with the certificate that it had: {state_dir}/cert.pem")
        assert await certificate_at(url) == before
    assert [record.levelname for record in caplog.records if record.getMessage() == problem] == ["ERROR"]
    (entry,) = [entry for entry in audited(state_dir) if entry["event"] == "reloaded"]
    assert entry["problems"] == [problem.partition("had: ")[2]]


async def test_a_token_that_was_revoked_closes_its_connections_at_a_hangup(
    state_dir: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "REVOCATION_INTERVAL", TIMEOUT)
    token, secret = TokenStore(state_dir).create("laptop", "ann", None)
    async with serving(make_config(state_dir, WS)) as (url,):
        websocket = await connect_web(url, secret)
        TokenStore(state_dir).revoke(token.id)
        assert await reload(caplog) == []
        await Editor(websocket).leave()
    assert (websocket.close_code, websocket.close_text) == (1008, "the token is not valid any more")


async def test_a_token_file_that_cannot_be_trusted_is_told_at_a_hangup(
    state_dir: Path, token: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(make_config(state_dir, TCP)):
        file = state_dir / "tokens.json"
        file.chmod(0o644)
        file.write_bytes(file.read_bytes() + b" ")
        (problem,) = await reload(caplog)
    assert problem.startswith(f"no client is accepted: {state_dir}/tokens.json: ")


@pytest.mark.parametrize(
    ("content", "mode", "remedy"),
    [("{}", 0o644, "chmod 600 {file}"), ("[", 0o600, "restore it, or remove it and sign in again")],
)
async def test_a_hangup_tells_why_no_browser_is_accepted_and_audits_it(
    content: str, mode: int, remedy: str, state_dir: Path, token: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = state_dir / "browsers.json"
    async with serving(make_config(state_dir, TCP)):
        file.write_text(content)
        file.chmod(mode)
        (problem,) = await reload(caplog)
    assert problem.startswith(f"no browser can sign in, and none is accepted: {file}: ")
    assert remedy.format(file=file) in problem
    (entry,) = (entry for entry in read_audit(state_dir / "audit.jsonl") if entry["event"] == "reloaded")
    assert remedy.format(file=file) in entry["problems"][0]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A configuration in a file."""
    path = tmp_path / "config.toml"
    path.write_text(
        f'[gateway]\nstate_dir = "{tmp_path}/state"\n[[listen]]\nurl = "{TCP}"\n[agents.a]\ncommand = ["cat"]\n'
    )
    return path


@pytest.mark.parametrize(
    ("addition", "expected"),
    [
        ("", []),
        ("# only a comment\n", []),
        ("idle_timeout = 60\n", ["changed: agents.a: changed (idle_timeout)"]),
        (
            '[log]\nformat = "json"\n[[listen]]\nurl = "tcp://127.0.0.1:0"\n',
            ["FILE has changed in what needs a restart, which ends the agents: listen, log"],
        ),
        ("zebra = 1\n", ["the configuration stays as it was: FILE:7: agents.a.zebra: unknown option"]),
    ],
)
async def test_what_has_changed_in_the_configuration_is_told_after_a_hangup(
    addition: str, expected: list[str], file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve, load_config(file), {}, file=file))
        with file.open("a") as text:
            text.write(addition)
        told = await reload(caplog)
        nursery.cancel_scope.cancel()
    assert [line.replace(str(file), "FILE").partition("; known")[0] for line in told] == expected


async def test_a_hangup_that_is_ignored_from_the_start_stays_ignored(
    state_dir: Path, signals_as_before: None, caplog: pytest.LogCaptureFixture
) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    caplog.set_level(logging.INFO)
    async with serving(make_config(state_dir, TCP)):
        signal.raise_signal(signal.SIGHUP)
        await trio.testing.wait_all_tasks_blocked()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        signal.raise_signal(signal.SIGTERM)
        await trio.testing.wait_all_tasks_blocked()
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    assert said(caplog)[-3:] == ["received SIGTERM", "stopping", "stopped"]
    assert not any("SIGHUP" in line for line in said(caplog))


async def test_a_gateway_that_is_cancelled_leaves_the_signals_as_they_were(state_dir: Path) -> None:
    numbers = (*STOPPING, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    async with serving(make_config(state_dir, TCP)):
        pass
    assert [signal.getsignal(number) for number in numbers] == before


# Under systemd


FIRST = 500
"""The descriptor that stands for the first that systemd hands over, because those are in use in this process."""


def handed_over(*sockets: socket.socket) -> dict[str, str]:
    """The environment of a process that has got these, whose own copies are closed."""
    for number, sock in enumerate(sockets, FIRST):
        with sock:
            os.dup2(sock.fileno(), number)
    return {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(sockets))}


async def test_a_gateway_listens_on_the_sockets_that_systemd_hands_over_and_on_its_own(
    state_dir: Path, token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systemd_module, "FIRST_DESCRIPTOR", FIRST)
    theirs = socket.create_server(("127.0.0.1", 0))
    local = socket.socket(socket.AF_UNIX)
    local.bind(str(tmp_path / "socket"))
    local.listen()
    port = theirs.getsockname()[1]
    environment = handed_over(local, theirs)
    config = make_config(state_dir, TCP, f"ws://127.0.0.1:{port}", f"unix://{tmp_path}/socket")
    async with serving(config, environment) as urls:
        assert environment == {}
        assert urls[1:] == [f"ws://127.0.0.1:{port}/acp", f"unix://{tmp_path}/socket"]
        await (await connect_lines(urls[0], token)).stream.aclose()
        await (await connect_web(urls[1], token)).aclose()
        await (await connect_lines(urls[2])).stream.aclose()
    assert (tmp_path / "socket").exists()


async def test_a_socket_of_systemds_that_no_section_is_about_is_an_error_that_names_it_and_what_there_is(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systemd_module, "FIRST_DESCRIPTOR", FIRST)
    before = open_descriptors()
    theirs = socket.create_server(("127.0.0.1", 0))
    port = theirs.getsockname()[1]
    with pytest.raises(ConfigError) as refused:
        await serve(make_config(state_dir, TCP, WS), handed_over(theirs))
    assert str(refused.value) == (
        f"listen: systemd listens at 127.0.0.1:{port}, which is the address of no [[listen]] section; "
        f"there are: {TCP}, {WS}"
    )
    assert refused.value.exit_code == 3
    assert open_descriptors() == before


async def test_a_manager_hears_how_the_gateway_is_doing(
    state_dir: Path, token: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systemd_module, "STATUS_INTERVAL", 0.001)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(TIMEOUT)
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "3600000000"}

        async def told() -> str:
            return (await trio.to_thread.run_sync(manager.recv, 4096)).decode()

        async with serving(make_config(state_dir, TCP), environment) as (url,):
            assert await told() == "READY=1"
            assert {await told(), await told()} == {"WATCHDOG=1", "STATUS=0 connections, 0 agents"}
            editor = await connect_lines(url, token)
            await editor.initialize()
            status = await told()
            while status != "STATUS=1 connection, 1 agent":
                assert status.startswith("STATUS=")
                status = await told()
            await reload(caplog)
            assert (await told()).startswith("RELOADING=1\nMONOTONIC_USEC=")
            assert await told() == "READY=1"
            await editor.stream.aclose()
            signal.raise_signal(signal.SIGTERM)
            while (last := await told()).startswith("STATUS="):
                pass
            assert last == "STOPPING=1\nSTATUS=stopping"
    assert environment == {}


async def test_a_credential_that_systemd_has_not_handed_over_keeps_the_gateway_from_starting(state_dir: Path) -> None:
    key = ListenSection(url="wss://127.0.0.1:0", cert=state_dir / "cert.pem", key=Path("credential:key.pem"))
    config = make_config(state_dir, TCP)
    with pytest.raises(ConfigError, match=r'listen wss://127.0.0.1:0: there is no "credential:key.pem" here'):
        await serve(replace(config, listen=(key,)), {})
    agents = {"a": AgentSection(command=("cat",), env_file=Path("credential:agent.env"))}
    with pytest.raises(ConfigError, match=r'agents.a.env_file: there is no "credential:agent.env" here'):
        await serve(make_config(state_dir, TCP, agents=agents), {})


async def test_a_state_directory_that_cannot_be_is_an_error_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"gateway.state_dir: cannot make the state directory .*/file/state"):
        await serve(make_config(tmp_path / "file" / "state", TCP), {})


async def test_a_token_file_that_others_may_read_keeps_the_gateway_from_starting(state_dir: Path, token: str) -> None:
    (state_dir / "tokens.json").chmod(0o644)
    with pytest.raises(ConfigError, match="others may use it"):
        await serve(make_config(state_dir, TCP), {})


async def test_a_gateway_that_cannot_listen_everywhere_listens_nowhere(state_dir: Path, token: str) -> None:
    path = state_dir / "socket"
    before = open_descriptors()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(CannotListen, match="cannot listen on"):
            await serve(make_config(state_dir, f"unix://{path}", url), {})
    assert not path.exists()
    assert open_descriptors() == before


# As a process of its own


RUN = """
import logging, os, sys, trio
from pathlib import Path
from acp_gateway.config.load import load_config
from acp_gateway.server.serve import serve
logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
trio.run(serve, load_config(Path(sys.argv[1])), dict(os.environ))
"""

# Answers initialize with the id of a process that it has started, and minds neither EOF nor SIGTERM.
STUBBORN_WRAPPER = """
import json, os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
null = subprocess.DEVNULL
real = subprocess.Popen(["sleep", "1000"], stdin=null, stdout=null, stderr=null)
request = json.loads(sys.stdin.readline())
result = {"pid": os.getpid(), "real": real.pid}
print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
while True: time.sleep(1000)
"""


class Program:
    """A gateway in a process of its own."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self._buffer = b""

    async def logged(self, text: str) -> str:
        """Read its log up to the line with this text, and return that."""
        assert self.process.stderr is not None
        with trio.fail_after(TIMEOUT):
            while True:
                line, newline, rest = self._buffer.partition(b"\n")
                if newline:
                    self._buffer = rest
                    if text in line.decode():
                        return line.decode()
                    continue
                data = await self.process.stderr.receive_some()
                assert data, f"it ended without saying {text!r}"
                self._buffer += data

    async def url(self) -> str:
        """Its URL."""
        return (await self.logged("listening on ")).removeprefix("listening on ")

    async def end(self, number: signal.Signals) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        with trio.fail_after(TIMEOUT):
            code: int = await self.process.wait()
        return code


@asynccontextmanager
async def program(tmp_path: Path, command: tuple[str, ...], **agent: Any) -> AsyncIterator[Program]:
    """A gateway on `tmp_path/socket`, with this agent; killed at the end of the block if it runs."""
    config = tmp_path / "config.toml"
    options = "".join(f"{name} = {json.dumps(value)}\n" for name, value in agent.items())
    config.write_text(
        f"[gateway]\nstate_dir = {json.dumps(str(tmp_path / 'state'))}\n"
        f"[[listen]]\nurl = {json.dumps(f'unix://{tmp_path}/socket')}\n"
        f"[agents.a]\ncommand = {json.dumps(command)}\n{options}"
    )
    process = await trio.lowlevel.open_process(
        [sys.executable, "-c", RUN, str(config)], stderr=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    try:
        with trio.fail_after(TIMEOUT):
            yield Program(process)
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
        assert process.stderr is not None
        await process.stderr.aclose()


async def test_a_gateway_that_gets_sigterm_stops_everything_and_ends_well(tmp_path: Path) -> None:
    async with program(tmp_path, OBLIGING_AGENT) as gateway:
        editor = await connect_lines(await gateway.url())
        await editor.initialize()
        agent = Watch((await editor.request("test/process"))["result"]["pid"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(editor.leave)
            assert await gateway.end(signal.SIGTERM) == 0
        await agent.gone()
        assert (await gateway.logged("stopped")) == "stopped"
    assert not (tmp_path / "socket").exists()
    assert list((tmp_path / "state" / "agents").iterdir()) == []


async def test_a_second_signal_ends_a_gateway_at_once_and_no_agent_outlives_it(tmp_path: Path) -> None:
    async with program(tmp_path, python(STUBBORN_WRAPPER), eof_grace=1000, term_grace=1000) as gateway:
        editor = await connect_lines(await gateway.url())
        pids = await editor.initialize()
        agent, real = Watch(pids["pid"]), Watch(pids["real"])
        try:
            gateway.process.send_signal(signal.SIGTERM)
            await gateway.logged("stopping")
            assert await gateway.end(signal.SIGTERM) == -signal.SIGTERM
            await agent.gone()
        finally:
            os.kill(pids["real"], signal.SIGKILL)
        await real.gone()
        await editor.stream.aclose()


async def test_no_agent_outlives_a_gateway_that_was_killed_and_the_next_one_sweeps_what_is_behind_a_wrapper(
    tmp_path: Path,
) -> None:
    async with program(tmp_path, python(STUBBORN_WRAPPER)) as gateway:
        editor = await connect_lines(await gateway.url())
        pids = await editor.initialize()
        agent, real = Watch(pids["pid"]), Watch(pids["real"])
        assert await gateway.end(signal.SIGKILL) == -signal.SIGKILL
        await agent.gone()
        await editor.stream.aclose()
        os.kill(pids["real"], 0)  # It runs on.
    assert (tmp_path / "socket").exists()
    async with program(tmp_path, OBLIGING_AGENT) as gateway:
        assert await gateway.logged("left behind") == (
            f"ended process group {pids['pid']}, an agent's that an earlier gateway left behind"
        )
        await real.gone()
        editor = await connect_lines(await gateway.url())
        await editor.initialize()
        await editor.stream.aclose()


# Answers initialize with the id of a process that has left its session.
LEAVING_AGENT = """
import json, os, subprocess, sys
null = subprocess.DEVNULL
left = subprocess.Popen(["sleep", "1000"], start_new_session=True, stdin=null, stdout=null, stderr=null)
request = json.loads(sys.stdin.readline())
result = {"pid": os.getpid(), "real": left.pid}
print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(landlock.abi() < landlock.SCOPE_ABI, reason="this kernel's Landlock has no scopes")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_nothing_of_an_agent_in_landlock_outlives_its_gateway(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    options = {"fence": "landlock", "cwd": str(tmp_path / "work")}
    async with program(tmp_path, python(LEAVING_AGENT), **options) as gateway:
        editor = await connect_lines(await gateway.url())
        left = Watch((await editor.initialize())["real"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(editor.leave)
            await gateway.end(number)
        await left.gone()


async def test_an_agent_is_refused_by_its_own_gateway_and_the_gateways_user_is_not(tmp_path: Path) -> None:
    code = f"""
import json, socket, sys
request = json.loads(sys.stdin.readline())
with socket.socket(socket.AF_UNIX) as sock:
    sock.connect({str(tmp_path / "socket")!r})
    sock.sendall(b'{{"jsonrpc":"2.0","id":"h","method":"_acp-gateway/hello","params":{{}}}}\\n')
    answer = json.loads(sock.makefile("rb").readline())
print(json.dumps({{"jsonrpc": "2.0", "id": request["id"], "result": answer}}), flush=True)
sys.stdin.read()
"""
    async with program(tmp_path, python(code)) as gateway:
        editor = await connect_lines(await gateway.url())
        answer = await editor.initialize()
        await editor.stream.aclose()
    assert answer["error"]["code"] == 403
