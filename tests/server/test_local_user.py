"""Programs without a token at a port, which `local_user` lets in."""

import dataclasses
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio

from acp_gateway.config.listeners import taken_paths
from acp_gateway.config.load import AgentSection, ListenSection
from acp_gateway.core.sessions.session import Role
from acp_gateway.gateway.access import Access
from acp_gateway.gateway.agent.orphans import ProcessStat, read_stat
from acp_gateway.gateway.agent.process import Agent, Launch, Spawner, run_agent
from acp_gateway.gateway.session_api.session_sharing import may_share
from acp_gateway.security.token_store import default_identity
from acp_gateway.server import authentication
from acp_gateway.server import listener as listeners
from acp_gateway.server.authentication import ConnectionAuthorizer
from acp_gateway.server.http.routes import HttpRoutes, SharedState
from acp_gateway.server.listener import Listener
from acp_gateway.server.local_peer import LocalPeer
from tests.kit.doubles import TIMEOUT, python
from tests.kit.echoing import (
    TCP,
    WS,
    EchoingGateway,
    Response,
    answer_to,
    ask,
    bearer,
    connected,
    hello,
    listening,
    port_of,
    upgrade,
)
from tests.kit.frames import BINARY, TEXT, frame, take_frames

pytestmark = [pytest.mark.usefixtures("no_bug_showed")]

ORIGIN = "http://localhost:2718"

OPEN = ListenSection(url=WS, local_user=True, allowed_origins=(ORIGIN,), path="/message?agent=second")

THIS = read_stat(os.getpid()) or ProcessStat(os.getpid(), "S", 1, 1, 1, 1)

OWN_PROCESS = LocalPeer((THIS,))


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> list[LocalPeer]:
    """The peers that the system names, the last one for each connection: at first this process."""
    peers = [OWN_PROCESS]
    monkeypatch.setattr(listeners, "identify", lambda *_: peers[-1])
    return peers


async def dial(listener: Listener, *headers: str, target: str = "/message", host: str = "localhost") -> Response:
    return await ask(listener, target, *upgrade(*headers), host=f"{host}:{port_of(listener)}")


@pytest.mark.parametrize("headers", [(), (f"Origin: {ORIGIN}",), (f"Origin: {ORIGIN}", "Sec-Fetch-Site: same-site")])
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
async def test_local_user_lets_a_program_or_a_listed_page_use_the_one_agent_of_the_path(
    headers: tuple[str, ...], host: str, gateway: EchoingGateway, tmp_path: Path
) -> None:
    async with listening(OPEN, gateway) as listener:
        assert (await dial(listener, *headers, host=host)).status == 101
        assert (await dial(listener, *headers, host=host, target="/message?agent=first")).status == 403
    (served,) = gateway.served
    own = default_identity(tmp_path / "state")
    assert (served.agent, served.access) == ("second", Access(own, None, agents=("second",), by_port=True))


@pytest.mark.parametrize(("target", "echoed"), [("/message", [b"1\n", b"2"]), ("/acp?agent=second", [b"2"])])
async def test_path_takes_binary_messages_as_the_endpoint_does_not(
    target: str, echoed: list[bytes], gateway: EchoingGateway
) -> None:
    got = bytearray()
    async with listening(OPEN, gateway) as listener:
        stream = await trio.open_tcp_stream("127.0.0.1", port_of(listener))
        async with stream:
            head = [f"GET {target} HTTP/1.1", f"Host: localhost:{port_of(listener)}", *upgrade(), "", ""]
            await stream.send_all("\r\n".join(head).encode())
            while b"\r\n\r\n" not in got:
                got += await stream.receive_some()
            del got[: got.index(b"\r\n\r\n") + 4]
            await stream.send_all(frame(BINARY, b"1\n", masked=True) + frame(TEXT, b"2", masked=True))
            seen: list[bytes] = []
            while b"2" not in seen:
                seen += [each.payload for each in take_frames(got, masked=False)]
                if b"2" not in seen:
                    got += await stream.receive_some()
    assert seen == echoed


async def test_local_user_without_a_path_lets_a_program_use_each_agent(gateway: EchoingGateway) -> None:
    section = dataclasses.replace(OPEN, path=None)
    async with listening(section, gateway) as listener:
        assert (await dial(listener)).status == 404
        assert (await dial(listener, target="/acp")).status == 101
        assert (await dial(listener, target="/acp?agent=second")).status == 101
    assert [served.agent for served in gateway.served] == ["first", "second"]


@pytest.mark.parametrize(
    ("headers", "host", "status", "why"),
    [
        (("Origin: http://localhost:2719",), "localhost", 403, "pages of this Origin may not connect"),
        (("Origin: null",), "localhost", 403, "pages of this Origin may not connect"),
        (("Sec-Fetch-Site: cross-site",), "localhost", 401, "a browser has sent it without an Origin"),
        ((), "evil.example", 403, "does not go by the name"),
        (("X-Forwarded-For: 192.0.2.1",), "localhost", 401, "a proxy has sent x-forwarded-for"),
        (("Forwarded: for=192.0.2.1",), "localhost", 401, "a proxy has sent forwarded"),
        (("Via: 1.1 squid",), "localhost", 401, "a proxy has sent via"),
        (("Authorization: Bearer acpgw_wrong",), "localhost", 401, "no valid token"),
        (("Authorization: Bearer ",), "localhost", 401, "no valid token"),
    ],
)
async def test_local_user_lets_in_no_page_proxy_rebound_name_or_wrong_token(
    headers: tuple[str, ...], host: str, status: int, why: str, gateway: EchoingGateway
) -> None:
    async with listening(OPEN, gateway) as listener:
        refused = await dial(listener, *headers, host=host)
    assert (refused.status, why in refused.body) == (status, True)
    assert gateway.served == []


async def test_local_user_lets_in_no_name_of_allowed_hosts_and_no_other_port(gateway: EchoingGateway) -> None:
    section = dataclasses.replace(OPEN, allowed_hosts=("gpu.example",))
    async with listening(section, gateway) as listener:
        for host in (f"gpu.example:{port_of(listener)}", "localhost:1", "localhost"):
            refused = await ask(listener, "/message", *upgrade(), host=host)
            assert (refused.status, "this Host is another one" in refused.body) == (401, True)
    assert gateway.served == []


@pytest.mark.parametrize(
    "refusal", ["it belongs to another user", "the system does not name its owner", "ssh passes connections on"]
)
async def test_local_user_says_why_a_connection_is_not_the_users(
    refusal: str, gateway: EchoingGateway, found: list[LocalPeer]
) -> None:
    found.append(LocalPeer(refusal=refusal))
    async with listening(OPEN, gateway) as listener:
        refused = await dial(listener)
        assert (refused.status, refusal in refused.body) == (401, True)
        # A token counts as everywhere.
        assert (await dial(listener, bearer(gateway.token()))).status == 101
    async with listening(ListenSection(url=TCP, local_user=True), gateway) as listener:
        error = (await answer_to(listener, hello()))["error"]
        assert (error["code"], refusal in error["message"]) == (401, True)
    assert [(served.agent, served.access.identity) for served in gateway.served] == [("second", "ann")]


async def test_local_user_counts_for_no_proxy_that_is_trusted(
    monkeypatch: pytest.MonkeyPatch, gateway: EchoingGateway
) -> None:
    monkeypatch.setattr(listeners, "is_trusted", lambda *_: True)
    async with listening(OPEN, gateway) as listener:
        refused = await dial(listener)
    assert (refused.status, "trusted_proxies" in refused.body) == (401, True)


async def test_a_port_without_local_user_needs_a_token(gateway: EchoingGateway) -> None:
    async with listening(dataclasses.replace(OPEN, local_user=None), gateway) as listener:
        assert (await dial(listener)).status == 401
    assert gateway.served == []


async def test_local_user_lets_a_program_that_sends_lines_in(gateway: EchoingGateway) -> None:
    async with listening(ListenSection(url=TCP, local_user=True), gateway) as listener, connected(listener) as lines:
        await lines.send(hello(agent="second"))
        assert "result" in json.loads(await lines.receive())
    assert [served.access.by_port for served in gateway.served] == [True]


async def test_local_user_takes_no_page_that_sends_lines_by_http_for_a_program(gateway: EchoingGateway) -> None:
    async with listening(ListenSection(url=TCP, local_user=True), gateway) as listener, connected(listener) as lines:
        head = f"POST / HTTP/1.1\r\nHost: localhost:{port_of(listener)}\r\nContent-Type: text/plain\r\n\r\n"
        await lines.send(head.encode() + hello(agent="second"))
        answer = await lines.receive()
        with pytest.raises(trio.EndOfChannel):
            await lines.receive()
    assert json.loads(answer)["error"]["data"]["reason"] == "protocol"
    assert gateway.served == []


async def test_local_user_lets_no_process_in_that_is_in_a_fence(
    monkeypatch: pytest.MonkeyPatch, gateway: EchoingGateway
) -> None:
    monkeypatch.setattr(authentication, "has_no_new_privileges", lambda _: True)
    async with listening(OPEN, gateway) as listener:
        assert (await dial(listener)).status == 101
        fenced = {**gateway.config.agents, "third": AgentSection(command=("cat",), fence="on")}
        gateway.config = dataclasses.replace(gateway.config, agents=fenced)
        refused = await dial(listener)
    assert (refused.status, "no_new_privs" in refused.body) == (403, True)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells when a process was started")
async def test_local_user_lets_no_process_in_that_has_the_id_of_the_one_that_connected(
    gateway: EchoingGateway, found: list[LocalPeer]
) -> None:
    found.append(LocalPeer((dataclasses.replace(THIS, started=THIS.started - 1),)))
    async with listening(OPEN, gateway) as listener:
        refused = await dial(listener)
    assert (refused.status, "the process that connected has ended" in refused.body) == (403, True)


AS_AGENT = """
import os, socket, sys
with socket.create_connection(("127.0.0.1", {port})) as sock:
    sock.sendall(b'{{"jsonrpc":"2.0","id":"h","method":"_acp-gateway/hello","params":{{}}}}\\n')
    os.write(1, sock.makefile("rb").readline())
sys.stdin.read()
"""


async def test_local_user_lets_no_agent_in(
    monkeypatch: pytest.MonkeyPatch, gateway: EchoingGateway, spawner: Spawner
) -> None:
    # As the system tells, without the doubles of the other tests.
    monkeypatch.undo()
    section = ListenSection(url=TCP, local_user=True)
    async with listening(section, gateway) as listener, trio.open_nursery() as nursery:
        launch = Launch(
            name="intruder",
            command=python(AS_AGENT.format(port=urlsplit(listener.urls[0]).port)),
            environment={},
            cwd=None,
            max_message_size=1 << 20,
            eof_grace=TIMEOUT,
            term_grace=TIMEOUT,
        )
        agent: Agent = await nursery.start(partial(run_agent, launch, spawner))
        answer: dict[str, Any] = json.loads(await agent.messages.stream.receive())
        nursery.cancel_scope.cancel()
    assert answer["error"]["message"] == "an agent can't let itself in: a token is needed here"
    assert gateway.served == []


def test_a_program_that_local_user_lets_in_does_not_operate_the_gateway_nor_share_sessions() -> None:
    own = Access("ann", None)
    assert own.is_own_user
    assert may_share(own, Role.CONTROLLER, None)
    by_port = dataclasses.replace(own, by_port=True)
    assert not by_port.is_own_user
    assert not may_share(by_port, Role.CONTROLLER, None)


def test_the_gateways_own_paths_are_taken(gateway: EchoingGateway) -> None:
    section = ListenSection(url=WS, serves=("acp", "page", "chat", "metrics", "editor", "ports", "ahp"))
    shared = SharedState(gateway)
    table = HttpRoutes(section, gateway, shared, ConnectionAuthorizer(section, gateway, shared.limiter)).table
    assert {path.split("/")[1] for path in table} | {"nodes"} == {"", *taken_paths()}
