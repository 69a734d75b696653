"""Asking a gateway of the test's own, on a unix socket or loopback, and what people are shown of the answer."""

import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.client import control
from acp_gateway.client.control import SESSION_COLUMNS, TITLE_SIZE, Listing, list_sessions, request, session_rows
from acp_gateway.client.dialing import Destination
from acp_gateway.client.local import LocalGateway, find_local_gateway
from acp_gateway.config.addresses import Address
from acp_gateway.errors import ConfigError, Forbidden, GatewayError, ProtocolError, TooOld, UnknownSession, Unreachable
from acp_gateway.gateway.storage.state_folder import CONTROL_SOCKET, holding
from acp_gateway.transports.sockets import SocketBytes, take_socket
from acp_gateway.transports.streams import CloseReason
from acp_gateway.transports.websocket.stream import Timing
from tests.kit.accepting import Accept, accept_websocket
from tests.kit.doubles import TIMEOUT
from tests.kit.fake_gateway import DESTINATION
from tests.kit.wire_sessions import listed, on_the_wire

WELCOME = b'{"jsonrpc":"2.0","id":0,"result":{}}\n'

NOW = datetime(2026, 11, 22, 10, 0, tzinfo=UTC)

SESSION: dict[str, Any] = {
    "sessionId": "s1",
    "agent": "demo",
    "title": "Tests",
    "cwd": "/srv/proj",
    "updatedAt": "2026-11-22T09:30:00Z",
    "owner": "ann",
    "live": True,
    "connected": 2,
    "away": 1,
    "turn": True,
    "fence": None,
    "waiting": [{"method": "session/request_permission", "since": "2026-11-22T09:48:00Z"}],
}


class Asker:
    """A gateway's end of a control connection, behind the hello."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self.hello: dict[str, Any] = {}

    async def receive(self) -> dict[str, Any]:
        """The next message."""
        data = b""
        while not data.endswith(b"\n"):
            received = await self._stream.receive_some()
            assert received
            data += received
        message: dict[str, Any] = json.loads(data)
        return message

    async def send(self, *lines: bytes) -> None:
        """Send lines."""
        await self._stream.send_all(b"".join(line + b"\n" for line in lines))

    async def rest(self) -> bytes:
        """Read until the peer has closed."""
        return b"".join([part async for part in self._stream])


@asynccontextmanager
async def gateway(path: Path, handle: Callable[[Asker], Awaitable[None]]) -> AsyncIterator[Destination]:
    """Run a gateway that accepts any token, with this handler; yield its destination."""

    async def serve(stream: trio.SocketStream) -> None:
        asker = Asker(stream)
        async with stream:
            asker.hello = await asker.receive()
            await stream.send_all(WELCOME)
            await handle(asker)

    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as nursery:
            sock = socket.socket(socket.AF_UNIX)
            sock.bind(str(path / "socket"))
            sock.listen()
            listener = trio.SocketListener(trio.socket.from_stdlib_socket(sock))
            nursery.start_soon(trio.serve_listeners, serve, [listener])
            yield Destination(
                Address("unix", "", 0, str(path / "socket")), None, None, None, None, 1 << 20, control=True
            )
            nursery.cancel_scope.cancel()


def answering(answer: bytes) -> Callable[[Asker], Awaitable[None]]:
    """A gateway that reads a request and answers this."""

    async def handle(asker: Asker) -> None:
        await asker.receive()
        await asker.send(answer)
        await asker.rest()

    return handle


def listing(sessions: Sequence[Mapping[str, Any]], **besides: object) -> Callable[[Asker], Awaitable[None]]:
    """A gateway with these sessions, and what it says besides."""
    return answering(json.dumps({"jsonrpc": "2.0", "id": 1, "result": listed(sessions, **besides)}).encode())


async def list_ids(destination: Destination) -> list[str]:
    """The ids of the sessions that there are."""
    return [session["sessionId"] for session in (await list_sessions(destination, time_limit=TIMEOUT)).sessions]


async def test_a_gateway_that_says_other_things_without_an_end_is_given_up(tmp_path: Path) -> None:
    async def handle(asker: Asker) -> None:
        while True:
            await asker.send(b'{"jsonrpc":"2.0","method":"other","params":"%b"}' % (60_000 * b"x"))

    async with gateway(tmp_path, handle) as destination:
        with pytest.raises(ProtocolError, match="of messages came before the response"):
            await request(destination, "_acp-gateway/x", {}, time_limit=TIMEOUT)


async def test_one_request_is_made_on_a_control_connection_and_its_result_returned(tmp_path: Path) -> None:
    seen = []

    async def handle(asker: Asker) -> None:
        seen.append(asker.hello["params"])
        request = await asker.receive()
        seen.append(request)
        await asker.send(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": [1, None]}).encode())
        assert await asker.rest() == b""

    async with gateway(tmp_path, handle) as destination:
        assert await request(destination, "_acp-gateway/x", {"y": "ü"}, time_limit=TIMEOUT) == [1, None]
    hello, asked = seen
    assert hello == {"control": True}
    assert (asked["jsonrpc"], asked["method"], asked["params"]) == ("2.0", "_acp-gateway/x", {"y": "ü"})


async def test_a_result_may_be_null(tmp_path: Path) -> None:
    async with gateway(tmp_path, answering(b'{"id":1,"result":null}')) as destination:
        assert await request(destination, "x", {}, time_limit=TIMEOUT) is None


async def test_what_else_comes_before_the_answer_is_passed_over(tmp_path: Path) -> None:
    async def handle(asker: Asker) -> None:
        await asker.receive()
        await asker.send(b'{"method":"x"}', b'{"id":1,"method":"x"}', b'{"id":2,"result":2}', b'{"id":1,"result":1}')
        await asker.rest()

    async with gateway(tmp_path, handle) as destination:
        assert await request(destination, "x", {}, time_limit=TIMEOUT) == 1


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (
            b'{"id":1,"error":{"code":-32603,"message":"no\\u001b[2J"}}',
            ProtocolError,
            r"refused with -32603: no\x1b[2J",
        ),
        (b'{"id":null,"error":{"code":-32600,"message":"no"}}', ProtocolError, "refused with -32600: no"),
        (b'{"id":1,"error":{"code":403,"message":"no","data":{"reason":"forbidden"}}}', Forbidden, "no"),
        (b'{"id":1,"error":{"code":404,"message":"no","data":{"reason":"unknown_session"}}}', UnknownSession, "no"),
        (b'{"id":1,"error":7}', ProtocolError, "no result"),
        (b'{"id":1}', ProtocolError, "no result"),
        (b"[]", ProtocolError, "not a JSON-RPC message"),
        (b"SSH-2.0", ProtocolError, "not a JSON-RPC message"),
        (b"[" * 100_000, ProtocolError, "not a JSON-RPC message"),
        (b"x" * (1 << 20) + b"x", Unreachable, "larger than"),
    ],
    ids=lambda value: value[:60].decode() if isinstance(value, bytes) else "",
)
async def test_an_answer_that_is_not_a_result_is_an_error_in_words(
    answer: bytes, kind: type[GatewayError], words: str, tmp_path: Path
) -> None:
    async with gateway(tmp_path, answering(answer)) as destination:
        with pytest.raises(GatewayError) as caught:
            await request(destination, "x", {}, time_limit=TIMEOUT)
    assert type(caught.value) is kind
    assert words in str(caught.value)
    assert str(tmp_path) in str(caught.value)


async def test_a_gateway_that_hangs_up_instead_of_answering_is_an_error(tmp_path: Path) -> None:
    async def hang_up(asker: Asker) -> None:
        await asker.receive()

    async with gateway(tmp_path, hang_up) as destination:
        with pytest.raises(Unreachable, match="closed without an answer"):
            await request(destination, "x", {}, time_limit=TIMEOUT)


async def test_a_gateway_that_says_why_it_hangs_up_is_quoted() -> None:
    async def serve(stream: trio.SocketStream) -> None:
        websocket = await accept_websocket(
            SocketBytes(take_socket(stream)), lambda _: Accept({}), max_message_size=1 << 20, timing=Timing()
        )
        assert websocket is not None
        await websocket.receive()
        await websocket.aclose(CloseReason.POLICY, "the token is not valid any more")

    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as nursery:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, serve, [listener])
            address = Address("ws", "127.0.0.1", listener.socket.getsockname()[1], "/acp")
            with pytest.raises(Unreachable, match="the token is not valid any more"):
                await request(Destination(address, None, "x", None, None, 1 << 20), "x", {}, time_limit=TIMEOUT)
            nursery.cancel_scope.cancel()


async def test_a_response_may_take_more_time_than_the_connection(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async def write(asker: Asker) -> None:
        await asker.receive()
        await trio.sleep(20)
        await asker.send(b'{"jsonrpc":"2.0","id":1,"result":7}')

    async with gateway(tmp_path, write) as destination:
        assert await request(destination, "x", {}, time_limit=7, more_time=20) == 7
        with pytest.raises(Unreachable, match=r"\(tried for 17 s\)$"):
            await request(destination, "x", {}, time_limit=7, more_time=10)


async def test_ask_gives_up_after_its_time_limit_and_closes_the_connection(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    closed = trio.Event()

    async def say_nothing(asker: Asker) -> None:
        await asker.receive()
        await asker.rest()
        closed.set()

    async with gateway(tmp_path, say_nothing) as destination:
        with pytest.raises(Unreachable, match=r"no answer; .* \(tried for 7 s\)$"):
            await request(destination, "x", {}, time_limit=7)
        assert trio.current_time() < TIMEOUT
        await closed.wait()


async def test_sessions_are_returned_as_they_are_printed_the_oldest_first(tmp_path: Path) -> None:
    told = [SESSION, SESSION | {"live": False, "history": "cut", "unreachableSince": "x"}]
    told += [{name: SESSION[name] for name in SESSION if name not in ("title", "cwd", "updatedAt")}]
    more = {"later": [1], "clients": [], "machine": None}
    async with gateway(tmp_path, listing([session | more for session in told], later=1)) as destination:
        assert await list_sessions(destination, time_limit=TIMEOUT) == Listing(told)


async def test_times_of_sessions_have_no_fractions_of_seconds_which_jq_does_not_read(tmp_path: Path) -> None:
    asked = {"requestId": "r", "method": "m", "title": None, "since": "2026-11-22T09:48:00.123Z"}
    told = SESSION | {"title": None, "updatedAt": "2026-11-22T09:30:00.999Z", "waiting": [asked]}
    async with gateway(tmp_path, listing([told])) as destination:
        ((found,), *_) = [(await list_sessions(destination, time_limit=TIMEOUT)).sessions]
    assert "title" not in found
    assert found["updatedAt"] == "2026-11-22T09:30:00Z"
    assert found["waiting"] == [{"method": "m", "since": "2026-11-22T09:48:00Z"}]


def test_an_agent_that_waits_or_works_by_itself_has_a_turn() -> None:
    for status, waiting, turn, methods in (
        ("waiting", [], True, ["requires_action"]),
        ("waiting", SESSION["waiting"], False, ["session/request_permission"]),
        ("running", [], True, []),
        ("completed", [], False, []),
    ):
        told = SESSION | {"turn": False, "status": status, "waiting": waiting, "updatedAt": "yesterday"}
        (found,) = control.read_listing(DESTINATION, listed([told])).sessions
        assert (found["turn"], [one["method"] for one in found["waiting"]]) == (turn, methods)


async def test_a_limited_list_is_asked_for_unless_all_sessions_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    async def answer(_destination: Destination, method: str, params: Any, *, time_limit: float) -> Any:
        asked.append((method, params))
        return listed([SESSION], more=7)

    monkeypatch.setattr(control, "request", answer)
    assert (await control.list_sessions(DESTINATION, time_limit=1)).more == 7
    await control.list_sessions(DESTINATION, time_limit=1, complete=True)
    assert asked == [("session/list", {"all": True, "limit": 200}), ("session/list", {"all": True})]


async def test_a_gateway_that_has_no_such_method_is_said_to_be_too_old(tmp_path: Path) -> None:
    refusal = {"code": -32601, "message": "a control connection knows only _acp-gateway/sessions"}
    async with gateway(tmp_path, answering(json.dumps({"id": 1, "error": refusal}).encode())) as destination:
        with pytest.raises(TooOld, match="the gateway does not know session/list: upgrade acp-gateway there"):
            await list_sessions(destination, time_limit=TIMEOUT)


async def test_how_many_more_sessions_there_are_and_what_is_wrong_is_returned(tmp_path: Path) -> None:
    problems = ["the disk\nis \x1b[2Jfull", "x" * 2000]
    async with gateway(tmp_path, listing([SESSION], more=7, problems=problems)) as destination:
        found = await list_sessions(destination, time_limit=TIMEOUT)
    assert found == Listing([SESSION], 7, ("the disk is \\x1b[2Jfull", "x" * 1000))


LOAD: dict[str, Any] = {"sessions": 3, "turns": 1, "lag": 0.25}


@pytest.mark.parametrize(
    ("told", "returned"),
    [
        (LOAD | {"later": 1}, LOAD),
        ([], None),
        (LOAD | {"turns": None}, None),
        (LOAD | {"lag": True}, None),
        (LOAD | {"lag": -1}, None),
        (LOAD | {"sessions": 1 << 64}, None),
    ],
)
async def test_the_load_of_a_gateway_is_returned_if_it_is_one(told: object, returned: object, tmp_path: Path) -> None:
    async with gateway(tmp_path, listing([], load=told)) as destination:
        assert (await list_sessions(destination, time_limit=TIMEOUT)).load == returned


async def test_an_agents_sessions_are_asked_for_and_no_others_returned(tmp_path: Path) -> None:
    async with gateway(tmp_path, listing([SESSION, SESSION | {"agent": "other"}])) as destination:
        assert await list_sessions(replace(destination, agent="demo"), time_limit=TIMEOUT) == Listing([SESSION])


@pytest.mark.parametrize(
    "sessions",
    [
        None,
        {},
        [None],
        [[]],
        *([SESSION | {name: wrong}] for name in SESSION for wrong in ([7], 1.5)),
        *(
            [{other: SESSION[other] for other in SESSION if other != name}]
            for name in ("sessionId", "owner", "waiting")
        ),
        *(
            [SESSION | {"waiting": [waiting]}]
            for waiting in (
                None,
                {"method": "x"},
                {"since": "2026-11-22T10:00:00Z"},
                {"method": "x", "since": "yesterday"},
                {"method": "x", "since": "2026-11-22T10:00:00"},
                {"method": "x", "since": "2026-11-22T10:00:00Z", "title": 7},
            )
        ),
    ],
)
async def test_a_malformed_list_is_not_believed(sessions: object, tmp_path: Path) -> None:
    if isinstance(sessions, list):
        sessions = [on_the_wire(it) if isinstance(it, dict) else it for it in sessions]
    answer = json.dumps({"id": 1, "result": {"sessions": sessions}}).encode()
    async with gateway(tmp_path, answering(answer)) as destination:
        with pytest.raises(ProtocolError, match="not understood"):
            await list_sessions(destination, time_limit=TIMEOUT)


@pytest.mark.parametrize(
    "besides", [{"more": "7"}, {"more": None}, {"problems": None}, {"problems": "x"}, {"problems": [7]}], ids=str
)
async def test_what_is_said_besides_the_list_is_not_believed_if_it_is_something_else(
    besides: dict[str, object], tmp_path: Path
) -> None:
    async with gateway(tmp_path, listing([], **besides)) as destination:
        with pytest.raises(ProtocolError, match="not understood"):
            await list_sessions(destination, time_limit=TIMEOUT)


async def test_a_result_without_a_list_is_not_believed(tmp_path: Path) -> None:
    async with gateway(tmp_path, answering(b'{"id":1,"result":[]}')) as destination:
        with pytest.raises(ProtocolError, match="not understood"):
            await list_sessions(destination, time_limit=TIMEOUT)


# What people are shown


def row(**changed: Any) -> dict[str, str]:
    """Return the cells of a session by column."""
    (cells,) = session_rows([SESSION | changed], NOW)
    return dict(zip(SESSION_COLUMNS, cells, strict=True))


def waits(*waiting: dict[str, Any]) -> str:
    """Return the cell for waiting requests."""
    return row(waiting=list(waiting))["WAITS"]


def test_a_session_is_a_row() -> None:
    assert row() == {
        "ID": "s1",
        "AGENT": "demo",
        "TITLE": "Tests",
        "CWD": "/srv/proj",
        "OWNER": "ann",
        "LIVE": "yes",
        "HISTORY": "-",
        "CONNECTED": "2",
        "AWAY": "1",
        "TURN": "open",
        "WAITS": "session/request_permission for 12 min",
    }


def test_what_is_not_there_is_a_dash() -> None:
    bare = {name: SESSION[name] for name in SESSION if name not in ("title", "cwd")} | {"turn": False, "waiting": []}
    (cells,) = session_rows([bare], NOW)
    assert cells == ("s1", "demo", "-", "-", "ann", "yes", "-", "2", "1", "-", "-")
    assert row(title="", cwd=None)["TITLE"] == "-"


def test_a_session_that_is_not_live_can_be_told_from_one_that_is() -> None:
    assert row(live=False)["LIVE"] == "no"


def test_a_history_that_was_removed_or_cut_is_shown() -> None:
    assert [row(history=loss)["HISTORY"] for loss in ("removed", "cut")] == ["removed", "cut"]


@pytest.mark.parametrize(
    ("age", "shown"),
    [
        (timedelta(), "0 s"),
        (timedelta(seconds=59.9), "59 s"),
        (timedelta(minutes=1), "1 min"),
        (timedelta(minutes=59, seconds=59), "59 min"),
        (timedelta(hours=1), "1 h"),
        (timedelta(hours=23, minutes=59), "23 h"),
        (timedelta(days=1), "1 d"),
        (timedelta(days=400), "400 d"),
        (timedelta(minutes=-5), "0 s"),
    ],
)
def test_an_age_is_shown_in_its_largest_unit(age: timedelta, shown: str) -> None:
    assert (
        waits({"method": "elicitation/create", "since": (NOW - age).isoformat()}) == f"elicitation/create for {shown}"
    )


def test_of_several_that_wait_the_oldest_is_shown_and_the_others_are_counted() -> None:
    new = {"method": "new", "since": "2026-11-22T09:59:50Z"}
    old = {"method": "old", "since": "2026-11-22T09:30:00+00:00", "title": "Run make"}
    # Two hours before noon in Helsinki is this very moment.
    middle = {"method": "middle", "since": "2026-11-22T11:50:00+02:00"}
    assert waits(new, old) == "old (Run make) for 30 min, and 1 more"
    assert waits(new, middle, new) == "middle for 10 min, and 2 more"


def test_a_long_title_is_shortened_and_an_id_never() -> None:
    assert row(title="x" * TITLE_SIZE)["TITLE"] == "x" * TITLE_SIZE
    assert row(title="x" * (TITLE_SIZE + 1))["TITLE"] == "x" * (TITLE_SIZE - 1) + "…"
    assert row(sessionId="x" * 1024)["ID"] == "x" * 1024
    assert waits({"method": "m", "since": "2026-11-22T10:00:00Z", "title": "x" * 99}).count("x") == TITLE_SIZE - 1


def test_nothing_in_a_row_is_more_than_text_to_a_terminal() -> None:
    evil = "\x1b]0;x\x07\r\n\u202e\x9b2J"
    waiting = [{"method": evil, "title": evil, "since": "2026-11-22T10:00:00Z"}]
    texts = dict.fromkeys(("sessionId", "agent", "title", "cwd", "owner"), evil)
    for cell in row(**texts, waiting=waiting).values():
        assert not set(cell) & set("\x1b\x07\r\n\u202e\x9b")


# The gateway of this machine


def test_the_gateway_is_that_of_the_configuration(config: Path, tmp_path: Path) -> None:
    assert find_local_gateway(config) == LocalGateway(tmp_path / "state")
    with pytest.raises(ConfigError):
        find_local_gateway(tmp_path / "absent.toml")


def test_without_a_configuration_it_is_the_one_that_runs_on_the_default_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("acp_gateway.config.load.SYSTEM_CONFIG", tmp_path / "absent")
    with pytest.raises(ConfigError, match="there is no"):
        find_local_gateway(None)
    state_dir = tmp_path / ".local/state/acp-gateway"
    # As of a laptop that has connected.
    (state_dir / "reached").mkdir(parents=True)
    with pytest.raises(ConfigError, match="there is no"):
        find_local_gateway(None)
    with holding(state_dir):
        assert find_local_gateway(None) == LocalGateway(state_dir)


def test_its_destination_has_no_token_even_if_the_environment_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACP_GATEWAY_TOKEN", "x")
    destination = LocalGateway(tmp_path).destination
    assert (str(destination.address), destination.token) == (f"unix://{tmp_path}/{CONTROL_SOCKET}", None)


def test_where_no_gateway_runs_the_next_step_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match=r"no gateway runs on .*: start one with `acp-gateway up`"):
        LocalGateway(tmp_path).check_running()


def test_a_gateway_without_a_control_socket_is_told_from_none(tmp_path: Path) -> None:
    with holding(tmp_path):
        with pytest.raises(Unreachable, match="has no control socket there"):
            LocalGateway(tmp_path).check_running()
        (tmp_path / CONTROL_SOCKET).touch()
        LocalGateway(tmp_path).check_running()


def test_a_folder_that_no_address_can_name_has_no_control_socket(tmp_path: Path) -> None:
    folder = tmp_path / "a?b"
    folder.mkdir()
    with holding(folder), pytest.raises(Unreachable, match="has no control socket there"):
        LocalGateway(folder).check_running()
