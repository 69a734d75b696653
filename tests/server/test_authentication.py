"""Authentication at a unix socket, by the kernel's peer credentials."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trio

from acp_gateway.config.load import ListenSection
from acp_gateway.fence import landlock
from acp_gateway.gateway.access import Access
from acp_gateway.gateway.agent.orphans import ProcessStat
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.security.token_store import default_identity
from acp_gateway.server import authentication
from acp_gateway.server.authentication import (
    AcceptedRequest,
    Client,
    PeerCredentials,
    belongs_to_agent,
    has_ended,
    has_no_new_privileges,
    peer_credentials,
)
from acp_gateway.server.handshake_limits import HandshakeLimiter, ThrottledStream
from acp_gateway.server.pending import PendingConnection
from acp_gateway.transports.http.head import HttpError
from acp_gateway.transports.http.server import HttpConnection, Response
from tests.kit.doubles import TIMEOUT
from tests.kit.echoing import (
    AS_CHILD,
    AS_GRANDCHILD,
    AS_ORPHAN,
    WS,
    EchoingGateway,
    Forgetful,
    answer_to,
    ask_as_agent,
    connected,
    hello,
    listening,
    port_of,
)
from tests.kit.http_client import EVENTS, JSON, Http
from tests.server.test_refusals import AuditLog

pytestmark = pytest.mark.usefixtures("no_bug_showed")


async def test_the_gateways_own_user_needs_no_token_and_may_use_every_agent(
    unix: str, gateway: EchoingGateway, tmp_path: Path
) -> None:
    async with listening(unix, gateway) as listener:
        for agent in ("first", "second"):
            async with connected(listener) as lines:
                await lines.send(hello(agent=agent))
                assert "result" in json.loads(await lines.receive())
    assert [served.agent for served in gateway.served] == ["first", "second"]
    assert {served.access for served in gateway.served} == {Access(default_identity(tmp_path / "state"), None)}
    assert all(served.name.endswith(" (unix)") for served in gateway.served)


async def test_a_token_counts_on_a_unix_socket_too_also_when_it_is_wrong(unix: str, gateway: EchoingGateway) -> None:
    async with listening(unix, gateway) as listener:
        assert (await answer_to(listener, hello(token="wrong")))["error"]["code"] == 401
        assert (await answer_to(listener, hello(token="")))["error"]["code"] == 401
        async with connected(listener) as lines:
            await lines.send(hello(token=gateway.token("first")))
            assert "result" in json.loads(await lines.receive())
    (served,) = gateway.served
    assert served.access.identity == "ann"
    assert not served.access.may_use("second")


async def test_the_gateways_own_user_needs_a_token_where_that_is_configured(unix: str, gateway: EchoingGateway) -> None:
    async with listening(ListenSection(url=unix, local_user=False), gateway) as listener:
        assert (await answer_to(listener, hello()))["error"]["code"] == 401
    assert gateway.served == []


async def test_another_user_needs_a_token(unix: str, gateway: EchoingGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    uid = os.geteuid()
    async with listening(unix, gateway) as listener:
        monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
        answer = await answer_to(listener, hello())
    assert answer["error"]["code"] == 401
    assert gateway.served == []


@pytest.mark.parametrize("how", [AS_CHILD, AS_GRANDCHILD, AS_ORPHAN], ids=["child", "grandchild", "orphan"])
async def test_an_agent_that_comes_to_the_unix_socket_is_refused(
    how: str, unix: str, gateway: EchoingGateway, spawner: Spawner, tmp_path: Path
) -> None:
    answer = await ask_as_agent(how, unix, gateway, spawner)
    assert (answer["id"], answer["error"]["code"]) == ("h", 403)
    assert answer["error"]["message"] == "an agent can't let itself in: a token is needed here"
    assert gateway.served == []


@pytest.mark.parametrize("how", [AS_CHILD, AS_GRANDCHILD], ids=["child", "grandchild"])
async def test_an_agent_that_comes_to_the_unix_socket_before_the_news_of_its_start_is_refused(
    how: str, unix: str, gateway: EchoingGateway, spawner: Spawner
) -> None:
    spawner.ancestors = Forgetful(spawner.ancestors)
    assert (await ask_as_agent(how, unix, gateway, spawner))["error"]["code"] == 403
    assert gateway.served == []


async def test_who_is_not_a_descendant_of_the_gateway_is_not_an_agent(
    unix: str, gateway: EchoingGateway, spawner: Spawner
) -> None:
    # What connects is a descendant in truth; here the gateway does not know itself.
    spawner.ancestors = Forgetful()
    assert "result" in await ask_as_agent(AS_CHILD, unix, gateway, spawner)
    assert len(gateway.served) == 1


async def serve(gateway: EchoingGateway, outcome: bool | Exception) -> tuple[bool, bytes]:
    """Return the result of serving a request with this outcome, and the bytes that the client was sent."""
    here, there = socket.socketpair()
    here.setblocking(False)
    connection = PendingConnection(name="c", peer="unix", listener="l", network="unix", limited=False)
    stream = ThrottledStream(here, connection, HandshakeLimiter(gateway.config, gateway.audit))
    stream.stop_throttling()
    http = HttpConnection(stream)
    there.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    await http.receive_request()

    async def run(http: HttpConnection) -> bool:
        if isinstance(outcome, Exception):
            raise outcome
        await http.respond(Response.of_text(200, "ok"))
        return outcome

    there.shutdown(socket.SHUT_WR)
    follows = await AcceptedRequest(Client(connection, here, stream), http, run).serve()
    assert (here.fileno() < 0) == (not follows)
    await stream.aclose()
    with there:
        return follows, there.recv(4096)


@pytest.mark.parametrize("follows", [True, False])
async def test_another_request_may_follow_if_the_exchange_says_so(follows: bool, gateway: EchoingGateway) -> None:
    again, written = await serve(gateway, follows)
    assert again == follows
    assert written.startswith(b"HTTP/1.1 200 ")


async def test_a_body_that_can_not_be_read_is_answered_and_the_connection_closed(gateway: EchoingGateway) -> None:
    again, written = await serve(gateway, HttpError(413, "too large"))
    assert not again
    assert written.startswith(b"HTTP/1.1 413 ")
    assert written.endswith(b"too large\n")


async def test_a_client_that_leaves_in_an_exchange_is_not_an_error(gateway: EchoingGateway) -> None:
    assert await serve(gateway, trio.BrokenResourceError("gone")) == (False, b"")


# The next request of a connection


def nothing() -> None:
    pass


async def statuses(gateway: EchoingGateway, *requests: tuple[Callable[[], object], str]) -> list[int]:
    """Call each function, and ask with a token after it, all over one connection; return the statuses."""
    found = []
    async with listening(WS, gateway) as listener, await trio.open_tcp_stream("127.0.0.1", port_of(listener)) as stream:
        http = Http(stream)
        for call, token in requests:
            call()
            fields = {"Authorization": f"Bearer {token}", "Acp-Connection-Id": "x"}
            found.append((await http.ask("GET", "/acp", None, **EVENTS, **fields)).status)
    return found


async def test_a_token_is_checked_with_each_request_of_its_connection(gateway: EchoingGateway) -> None:
    token, secret = gateway.tokens.create("laptop", "ann", None)
    revoke = partial(gateway.tokens.revoke, token.id)
    # 404 is the answer to a valid one: no connection has this id.
    assert await statuses(gateway, (nothing, secret), (nothing, secret), (revoke, secret)) == [404, 404, 401]


async def test_a_rotated_token_is_not_known_from_the_request_before(gateway: EchoingGateway) -> None:
    token, secret = gateway.tokens.create("laptop", "ann", None)
    rotate = partial(gateway.tokens.rotate, token.id)
    assert await statuses(gateway, (nothing, secret), (rotate, secret)) == [404, 401]


async def test_another_token_over_the_same_connection_has_its_own_rights(gateway: EchoingGateway) -> None:
    metrics = gateway.tokens.create("prometheus", None, None, role="metrics")[1]
    ann = gateway.token()
    asked = [(nothing, ann), (nothing, f"{ann}x"), (nothing, ann)]
    assert await statuses(gateway, *asked[:2]) == [404, 401]
    assert await statuses(gateway, (nothing, metrics), (nothing, ann), (nothing, metrics)) == [404, 404, 404]


async def test_a_refusal_of_a_token_that_was_shown_before_names_it_in_the_audit(gateway: EchoingGateway) -> None:
    gateway.audit = audit_log = AuditLog()
    token, secret = gateway.tokens.create("laptop", "ann", None)
    fields = {"Authorization": f"Bearer {secret}", **JSON}
    async with listening(WS, gateway) as listener, await trio.open_tcp_stream("127.0.0.1", port_of(listener)) as stream:
        http = Http(stream)
        assert (await http.ask("GET", "/acp", None, **EVENTS, **fields, **{"Acp-Connection-Id": "x"})).status == 404
        assert (await http.ask("POST", "/acp?agent=third", None, **fields)).status == 404
    assert audit_log.entries[-1]["event"] == "refused"
    assert audit_log.entries[-1]["credential"] == Access.of(token).credential


on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells who connected")

AGENT = 700
GATEWAY = 500


def process(pid: int, *, parent: int, session: int) -> ProcessStat:
    return ProcessStat(pid=pid, state="S", parent=parent, group=session, session=session, started=1)


FAMILY = {
    stat.pid: stat
    for stat in (
        process(GATEWAY, parent=1, session=GATEWAY),
        process(AGENT, parent=GATEWAY, session=AGENT),
        process(701, parent=AGENT, session=AGENT),
        process(702, parent=701, session=702),  # Started by the agent in a session of its own.
        process(703, parent=1, session=AGENT),  # Its parent, an agent's process, has ended.
        process(704, parent=705, session=704),  # Its parent cannot be looked at.
        process(706, parent=0, session=0),  # Came into this container from outside.
        process(800, parent=1, session=800),  # A terminal ...
        process(801, parent=800, session=800),  # ... and an editor in it.
    )
}


def belongs(pid: int, *sessions: int) -> bool:
    return belongs_to_agent(pid, set(sessions), read_stat=FAMILY.get)


@pytest.mark.parametrize(
    ("pid", "who"),
    [
        (AGENT, "the agent"),
        (701, "its child"),
        (702, "its grandchild, in another session"),
        (703, "an orphan in its session"),
    ],
)
def test_an_agents_family_belongs_to_it(pid: int, who: str) -> None:
    assert belongs(pid, 600, AGENT), who


@pytest.mark.parametrize("pid", [1, GATEWAY, 706, 800, 801])
def test_other_processes_belong_to_no_agent(pid: int) -> None:
    assert not belongs(pid, 600, AGENT)


@pytest.mark.parametrize("pid", [701, 702, 703])
def test_without_agents_no_process_belongs_to_one(pid: int) -> None:
    assert not belongs(pid)


@pytest.mark.parametrize("pid", [0, -1, 9999, 704])
def test_what_cannot_be_found_out_is_taken_for_an_agent(pid: int) -> None:
    assert belongs(pid)


def test_a_family_that_goes_in_circles_is_taken_for_an_agents() -> None:
    circle = {pid: process(pid, parent=parent, session=pid) for pid, parent in ((2, 3), (3, 4), (4, 2))}
    assert belongs_to_agent(2, {AGENT}, read_stat=circle.get)


@on_linux
def test_the_two_ends_of_a_pair_are_this_process() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert peer_credentials(ours) == PeerCredentials(os.getpid(), os.geteuid(), os.getegid())


def test_a_socket_that_is_not_a_unix_socket_has_no_credentials() -> None:
    with socket.socket(socket.AF_INET) as sock:
        assert peer_credentials(sock) is None


def test_a_system_that_does_not_say_who_connected_has_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "SO_PEERCRED", raising=False)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert peer_credentials(ours) is None


CHILD_THAT_CONNECTS = (
    "import socket, sys;"
    "sock = socket.socket(socket.AF_UNIX); sock.connect(sys.argv[1]);"
    "sock.recv(1)"  # Lives until the other end closes.
)


@on_linux
def test_a_real_child_of_a_real_agent_is_found_out(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        listener.settimeout(TIMEOUT)
        agent = subprocess.Popen(
            # Python has to be a child of this shell, which therefore has something to do after it.
            ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-S", "-c", CHILD_THAT_CONNECTS, tmp_path / "socket"],
            start_new_session=True,
        )
        accepted, _ = listener.accept()
        with accepted:
            peer = peer_credentials(accepted)
            assert peer is not None
            assert peer.pid != agent.pid
            assert peer.uid == os.geteuid()
            assert belongs_to_agent(peer.pid, {agent.pid})
            assert not belongs_to_agent(peer.pid, set())
        assert agent.wait() == 0


def connect_by_a_process_that_ends(path: str) -> socket.socket:
    """Return a socket that a child process has connected, and that this process shares with it."""
    sock = socket.socket(socket.AF_UNIX)
    command = "import socket, sys; socket.socket(fileno=int(sys.argv[1])).connect(sys.argv[2])"
    subprocess.run(
        [sys.executable, "-S", "-c", command, str(sock.fileno()), path], pass_fds=[sock.fileno()], check=True
    )
    return sock


def kernel_tells_who_connected() -> bool:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            os.close(ours.getsockopt(socket.SOL_SOCKET, authentication._SO_PEERPIDFD))
        except OSError:
            return False
    return True


@pytest.mark.skipif(not kernel_tells_who_connected(), reason="only Linux 6.5 and newer has SO_PEERPIDFD")
async def test_a_process_that_has_ended_is_refused_though_another_one_has_its_id(
    unix: str, gateway: EchoingGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So it is with an id that was given again, to a process that may connect.
    monkeypatch.setattr(authentication, "belongs_to_agent", lambda *_: False)
    async with listening(unix, gateway):
        with connect_by_a_process_that_ends(urlsplit(unix).path) as sock:
            stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
            await stream.send_all(hello() + b"\n")
            answer = json.loads(await stream.receive_some())
    assert answer["error"]["message"] == "the process that connected has ended: a token is needed here"
    assert gateway.served == []


IN_A_SANDBOX = """
import os, socket, sys
from acp_gateway.fence import landlock
from acp_gateway.server.authentication import has_ended
sock = socket.socket(fileno=int(sys.argv[1]))
landlock.restrict(files=False, read=[], write=[], look=[], ports=None, scoped=True)
try:
    os.kill(os.getppid(), 0)
except PermissionError:
    print(has_ended(sock))
"""


@pytest.mark.skipif(landlock.abi() < landlock.SCOPE_ABI, reason="this kernel's Landlock has no scopes")
def test_a_gateway_that_may_signal_no_client_sees_that_it_runs() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-c", IN_A_SANDBOX, str(ours.fileno())]
        said = subprocess.check_output(command, pass_fds=[ours.fileno()])
    assert said == b"False\n"


@on_linux
def test_an_older_kernel_does_not_tell_whether_a_process_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "_SO_PEERPIDFD", 2**20)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert not has_ended(ours)


@pytest.mark.parametrize(("status", "fenced"), [("NoNewPrivs:\t0\n", False), ("NoNewPrivs:\t1\n", True), ("", True)])
def test_a_process_that_may_be_in_a_fence_is_told_by_the_system(status: str, fenced: bool, tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text(f"Name:\tNoNewPrivs: 0\n{status}")
    assert has_no_new_privileges(7, tmp_path) == fenced
    assert has_no_new_privileges(8, tmp_path)
