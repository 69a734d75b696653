"""The laptop's half of forwarding: what it listens on, what it understands, and its errors."""

import errno
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from acp_gateway.client.dialing import Destination
from acp_gateway.client.ports import forwarding
from acp_gateway.client.ports.forwarding import (
    Port,
    at_node,
    check_forwardable,
    check_offered,
    forward,
    list_ports,
    listen,
    port_of,
)
from acp_gateway.config.addresses import parse_target
from acp_gateway.errors import CannotListen, ProtocolError, UnknownPort, UsageError


def destination(*urls: str) -> Destination:
    first, *others = map(parse_target, urls)
    return Destination(first, None, None, None, None, 1000, others=tuple(others))


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.EADDRINUSE, "port 6006 is taken on this machine: `acp-gateway forward box 6006 --local 0`"),
        (errno.EACCES, "port 6006 is for root on this machine"),
        (errno.EMFILE, "port 6006 can't be used on this machine (Too many open files)"),
    ],
)
async def test_a_port_that_cannot_be_used_here_is_told_with_the_next_command(
    number: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(number, "Too many open files")

    monkeypatch.setattr(trio, "open_tcp_listeners", refuse)
    with pytest.raises(CannotListen) as caught:
        await listen(6006, 6006, "box")
    assert text in str(caught.value)


async def test_it_listens_on_loopback_alone() -> None:
    async with await listen(0, 6006, "box") as listener:
        assert listener.socket.getsockname() == ("127.0.0.1", port_of(listener))


async def test_a_client_that_is_gone_at_once_ends_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    reports: list[str] = []
    async with trio.open_nursery() as nursery, await listen(0, 1, "box") as listener:
        stream = await trio.open_tcp_stream("127.0.0.1", port_of(listener))
        monkeypatch.setattr(trio.SocketStream, "setsockopt", gone)
        nursery.start_soon(forward, listener, lambda: destination("ssh://box"), 1, reports.append)
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some()
        await stream.aclose()
        nursery.cancel_scope.cancel()
    assert len(reports) == 1


def test_a_port_that_is_not_offered_names_the_list() -> None:
    port = Port(6006, "tensorboard", "demo", [])
    assert check_offered([port], 6006, "box") is port
    with pytest.raises(UnknownPort, match="`acp-gateway forward box` lists"):
        check_offered([port], 6007, "box")


def test_ssh_forwards_by_itself_and_the_command_is_told() -> None:
    check_forwardable(destination("ssh://box", "wss://box"), 6006)
    with pytest.raises(UsageError, match=r"ssh -N -L 6006:127\.0\.0\.1:6006 ann@box"):
        check_forwardable(destination("ssh://ann@box"), 6006)
    with pytest.raises(UsageError, match="over wss:// or ws:// only"):
        check_forwardable(destination("tcp+tls://box"), 6006)


def test_the_path_of_a_node_stands_before_the_endpoint() -> None:
    there = at_node(destination("wss://box/here/acp", "ssh://box", "ws://127.0.0.1:80"), "gpu2")
    assert [each.path for each in there.addresses] == ["/here/nodes/gpu2/acp", "/nodes/gpu2/acp"]
    with pytest.raises(UsageError):
        at_node(destination("ssh://box"), "gpu2")


@pytest.mark.parametrize(
    "result",
    [
        None,
        {},
        {"ports": 1},
        {"ports": [1]},
        {"ports": [{"port": 0, "program": "", "agentType": "a", "sessions": []}]},
        {"ports": [{"port": "1", "program": "", "agentType": "a", "sessions": []}]},
        {"ports": [{"port": 1, "program": "", "agentType": "a", "sessions": [{}]}]},
    ],
)
async def test_an_answer_that_is_not_understood_is_an_error(result: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "request", answering(result))
    with pytest.raises(ProtocolError, match="not understood"):
        await list_ports(destination("wss://box"), time_limit=1)


def answering(result: Any) -> Callable[..., Awaitable[Any]]:
    async def answer(*_: Any, **__: Any) -> Any:
        return result

    return answer


async def test_what_a_gateway_tells_is_printed_without_what_a_terminal_obeys(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = [{"sessionId": "s\x1b", "title": None}, {"sessionId": "t", "title": "T"}]
    told = {"ports": [{"port": 1, "program": "p\x07", "agentType": "a", "sessions": sessions}]}
    monkeypatch.setattr(forwarding, "request", answering(told))
    (port,) = await list_ports(destination("wss://box"), time_limit=1)
    assert port.row == ("1", "p\\x07", "a", "s\\x1b and 1 more", "-")
    assert port.as_json["sessions"] == sessions
    assert Port(1, "", "a", []).row == ("1", "-", "a", "-", "-")


async def test_connections_beyond_the_limit_are_refused_and_a_silent_gateway_is_given_up(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "CONNECTIONS", 1)
    opening, reports = trio.Event(), list[str]()

    async def silent(_: Destination, path: str, __: str) -> Any:
        if not path.endswith("/ahead"):
            opening.set()
        await trio.sleep_forever()

    monkeypatch.setattr(forwarding, "open_tunnel_at", silent)
    place = destination("wss://box")
    async with trio.open_nursery() as nursery, await listen(0, 6006, "box") as listener:
        nursery.start_soon(forward, listener, lambda: place, 6006, reports.append)
        first = await trio.open_tcp_stream("127.0.0.1", port_of(listener))
        await opening.wait()
        second = await trio.open_tcp_stream("127.0.0.1", port_of(listener))
        assert await second.receive_some() == b""
        with pytest.raises(trio.BrokenResourceError):
            await first.receive_some()
        for stream in (first, second):
            await stream.aclose()
        nursery.cancel_scope.cancel()
    assert reports[0] == "port 6006 has 1 connections open already; one more was refused"
    assert "no answer" in reports[1]
    assert "(tried for 15 s)" in reports[1]
