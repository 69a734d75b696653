"""The frame of a connection that the gateway serves itself."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.config.limits import LimitsSection
from acp_gateway.core.sessions.session import Role, SessionReach
from acp_gateway.gateway.access import Access, ConnectRequest, Grant
from acp_gateway.gateway.connections import Connections
from acp_gateway.gateway.hub.attachment import BUG, TOO_SLOW, Disconnect
from acp_gateway.gateway.served_connection import ControlConnection, read_messages, serving
from acp_gateway.security.token_store import TokenStore
from acp_gateway.transports.memory import memory_message_stream_pair
from acp_gateway.transports.streams import CloseReason, MessageTooLarge, Stalled


class Scene:
    """A connection that is served, and what was closed with which code and text."""

    def __init__(self, directory: Path, **limits: Any) -> None:
        tokens = TokenStore(directory)
        access = Access.of(tokens.create("laptop", "ann", None)[0])
        self.connections = Connections(LimitsSection(**limits), tokens)
        self.grown = 0
        self.grant = Grant(access, ConnectRequest(control=True), "", SessionReach("ann"), Role.CONTROLLER)
        self.served = ControlConnection(access)
        self.theirs, self.ours = memory_message_stream_pair()
        self.closed_as: list[tuple[CloseReason, str]] = []

        async def close(code: CloseReason, text: str) -> None:
            self.closed_as.append((code, text))
            await trio.lowlevel.checkpoint()

        self.ours.aclose = close  # type: ignore[method-assign,assignment]

    def _grew(self, size: int) -> None:
        self.grown += size

    async def serve(self, receive: Callable[[bytes], Awaitable[tuple[int, float]]], **options: Any) -> None:
        """Serve the connection until it ends."""
        async with serving(self.served, self.ours, self.grant, self.connections, self._grew) as charge:
            ended = await read_messages(self.ours, receive, charge, **options)
            self.served.disconnect = ended or self.served.disconnect


async def nothing(_: bytes) -> tuple[int, float]:
    return 1, 0.0


async def test_a_connection_is_counted_while_it_is_served_and_closed_as_its_peer_has_ended_it(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.theirs.send_nowait([b"one", b"four"])
    await scene.theirs.aclose()
    heard: list[bytes] = []

    async def receive(text: bytes) -> tuple[int, float]:
        heard.append(text)
        assert (scene.connections.served, len(scene.connections)) == ({scene.ours}, 1)
        return 1, 0.0

    await scene.serve(receive)
    assert heard == [b"one", b"four"]
    assert (scene.grown, scene.closed_as) == (len(b"onefour"), [(CloseReason.NORMAL, "")])
    assert (scene.connections.served, len(scene.connections)) == (set(), 0)


async def test_a_message_that_is_too_large_is_answered_and_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path)

    async def receive() -> list[bytes]:
        raise MessageTooLarge("more than max_message_size (9 bytes)")

    monkeypatch.setattr(scene.ours, "receive_batch", receive)
    await scene.serve(nothing, failure=str.encode)
    assert await scene.theirs.receive_batch() == [b"more than max_message_size (9 bytes)"]
    assert scene.closed_as == [(CloseReason.TOO_LARGE, "more than max_message_size (9 bytes)")]


async def test_a_bug_closes_the_connection_as_one(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.theirs.send_nowait([b"x"])

    async def fail(_: bytes) -> tuple[int, float]:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        await scene.serve(fail)
    assert (scene.closed_as, len(scene.connections)) == ([(BUG.code, BUG.text)], 0)


@pytest.mark.parametrize("how", ["closed", "unread"])
async def test_one_that_is_closed_ends_with_its_reason(how: str, tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.serve, nothing)
        await trio.testing.wait_all_tasks_blocked()
        if how == "closed":
            scene.served.close(Disconnect(CloseReason.GOING_AWAY, "later"))
        else:
            scene.served.close_unread(Stalled("it read nothing"))
            assert scene.served.disconnect.reason == TOO_SLOW
    expected = (CloseReason.GOING_AWAY, "later") if how == "closed" else (CloseReason.POLICY, "it read nothing")
    assert scene.closed_as == [expected]
