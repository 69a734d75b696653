"""A link goes on within a large message: what was received of it is kept, and only the rest comes again."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from acp_gateway.protocol.link_messages import acknowledgement, goodbye, rest_follows, without_marks
from acp_gateway.transports.link import WINDOW, Link, Miscounted
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.parts import EMPTY, NO_PART, PART_SIZE, PartSum, read_part_sum
from acp_gateway.transports.streams import MessageTooLarge
from tests.kit.wires import MemoryBytes, upgrade

LIMIT = 64 * PART_SIZE

LARGE = b'{"text":"%b"}' % ("é€𝄞x".encode() * (6 * PART_SIZE // 10))


# Parts and their sums


@pytest.mark.parametrize("end", range(10, 24))
def test_a_part_ends_before_a_character_that_may_be_cut_off(end: int) -> None:
    text = "0123456789aé€𝄞z".encode()
    part = EMPTY.followed_by(text[:end])
    rest = part.sum.rest(text)
    assert part.data + rest == text
    assert rest.decode()
    assert end - 4 <= part.sum.size < end


def test_a_part_that_grows_has_the_sum_of_the_whole() -> None:
    first = EMPTY.followed_by(LARGE[:1000])
    second = first.followed_by(LARGE[first.sum.size : 5000])
    assert second == EMPTY.followed_by(LARGE[:5000])
    assert second.followed_by(b"") == second.followed_by(b"x") == second


@pytest.mark.parametrize(
    "message",
    [b"", b"01234567", b"0123456x89", b"01234567   ", b"01234567" + b"\x80x"],
    ids=["none", "shorter", "another", "blank rest", "within a character"],
)
def test_a_message_that_a_part_does_not_fit_has_no_rest(message: bytes) -> None:
    part = EMPTY.followed_by(b"012345678")
    assert part.sum.rest(b"0123456789") == b"89"
    assert part.sum.rest(message) == b""
    assert NO_PART.rest(message) == b""


def test_a_sum_is_read_as_it_is_spelled_and_nothing_else_is() -> None:
    assert str(NO_PART) == "0 00000000"
    assert read_part_sum(str(NO_PART)) == NO_PART
    assert str(EMPTY.followed_by(b"123456789x").sum) == "9 cbf43926"
    assert read_part_sum("9 cbf43926") == PartSum(9, 0xCBF43926)
    for other in (None, 9, "", "9", "9 CBF43926", "09 cbf43926", "-9 cbf43926", "9 cbf43926\n", "1" * 16 + " cbf43926"):
        assert read_part_sum(other) is None


# Links over connections that are lost within a message


class MortalBytes(MemoryBytes):
    """One end of a connection that carries so many bytes from here, and is lost then."""

    left = 1 << 40
    carried = 0
    resets = False
    """False if the loss looks like an end."""

    def send_nowait(self, data: memoryview) -> int:
        taken = super().send_nowait(data[: self.left])
        self.left -= taken
        self.carried += taken
        if not self.left:
            self.peer.wake()
        return taken

    async def receive_some(self) -> bytes:
        await trio.lowlevel.checkpoint()
        peer = self.peer
        assert isinstance(peer, MortalBytes)
        while not self.inbox and peer.left and not self.closed and not peer.ended:
            await self._changed.park()
        if not self.inbox and not peer.left and not self.closed:
            if peer.resets:
                raise trio.BrokenResourceError("cut")
            return b""
        return await super().receive_some()


Open = Callable[[MemoryBytes, MemoryBytes], Awaitable[tuple[MaintainedStream, MaintainedStream]]]


async def lines(client: MemoryBytes, server: MemoryBytes) -> tuple[MaintainedStream, MaintainedStream]:
    return LineStream(client, max_message_size=LIMIT), LineStream(server, max_message_size=LIMIT)


async def websocket(client: MemoryBytes, server: MemoryBytes) -> tuple[MaintainedStream, MaintainedStream]:
    return await upgrade(client, server, max_message_size=LIMIT)


TRANSPORTS = pytest.mark.parametrize("transport", [lines, websocket])


class Ends:
    """A client and a gateway, with the link between them, and what each has received."""

    def __init__(self, transport: Open, room: int = 65536) -> None:
        self.links = [Link(window=WINDOW), Link(window=WINDOW)]
        self.client, self.gateway = self.links
        self.heard: list[list[bytes]] = [[], []]
        self.carried = self.connections = 0
        self.streams: tuple[MaintainedStream, ...] = ()
        self._transport = transport
        self._room = room

    @asynccontextmanager
    async def connected(
        self, *lifetimes: int, resets: bool = False, told: int | None = None
    ) -> AsyncIterator[trio.CancelScope]:
        """Connect the links with each other; the connection carries so many bytes from each."""
        self.connections += 1
        ends = MortalBytes(self._room), MortalBytes(self._room)
        for end, peer in zip(ends, reversed(ends), strict=True):
            end.peer, end.resets = peer, resets
        self.streams = await self._transport(*ends)
        for end, lifetime in zip(ends, lifetimes, strict=False):
            end.left, end.carried = lifetime, 0
        counts = [self.client.received if told is None else told, self.gateway.received]
        parts = [link.part_sum for link in self.links]
        self.client.connect(self.streams[0], counts[1], told, parts[1])
        self.gateway.connect(self.streams[1], counts[0], None, parts[0])
        async with trio.open_nursery() as nursery:
            for link, stream, heard in zip(self.links, self.streams, self.heard, strict=True):
                nursery.start_soon(stream.run)
                nursery.start_soon(link.pump)
                nursery.start_soon(self._listen, link, heard, nursery.cancel_scope)
            yield nursery.cancel_scope
            nursery.cancel_scope.cancel()
        self.carried += sum(end.carried for end in ends)
        for link, stream in zip(self.links, self.streams, strict=True):
            link.disconnect()
            await stream.abort()

    async def _listen(self, link: Link, heard: list[bytes], connection: trio.CancelScope) -> None:
        try:
            while True:
                heard += without_marks(await link.receive_batch())
                link.acknowledge()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            connection.cancel()


@TRANSPORTS
@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("side", [0, 1])
async def test_a_link_goes_on_within_a_message(transport: Open, resets: bool, side: int) -> None:
    ends = Ends(transport)
    ends.links[side].send([b"first", LARGE, b"last"])
    size = len(LARGE)
    lifetimes = [1 << 40, 1 << 40]
    for carried in (size // 2, size // 4, 0):
        if carried:
            lifetimes[side] = carried
        async with ends.connected(*(lifetimes if carried else ()), resets=resets):
            await wait_all_tasks_blocked()
        if carried:
            assert ends.heard[1 - side] == [b"first"]
    assert (ends.heard[1 - side], ends.links[1 - side].part_bytes) == ([b"first", LARGE, b"last"], 0)
    assert ends.carried < size + 2000


@TRANSPORTS
async def test_less_than_part_size_is_not_kept(transport: Open) -> None:
    ends = Ends(transport)
    ends.client.send([LARGE])
    async with ends.connected(PART_SIZE - 100, 1 << 40):
        await wait_all_tasks_blocked()
    assert ends.gateway.part_sum == NO_PART
    async with ends.connected():
        await wait_all_tasks_blocked()
    assert ends.heard[1] == [LARGE]


@TRANSPORTS
async def test_a_part_that_fits_another_message_is_dropped(transport: Open) -> None:
    ends = Ends(transport)
    ends.client.send([LARGE])
    async with ends.connected(PART_SIZE + 100, 1 << 40):
        await wait_all_tasks_blocked()
    ends.gateway._part = EMPTY.followed_by(LARGE[1 : 2 * PART_SIZE])
    async with ends.connected():
        await wait_all_tasks_blocked()
        assert not ends.client._first
    assert ends.heard[1] == [LARGE]


@TRANSPORTS
@pytest.mark.parametrize("more", [0, PART_SIZE, 1 << 40], ids=["nothing", "more of it", "all of it"])
async def test_a_second_connection_goes_on_where_the_first_one_was_when_the_count_was_told(
    transport: Open, more: int
) -> None:
    ends = Ends(transport)
    ends.gateway.send([b"first", LARGE, b"last"])
    async with ends.connected(1 << 40, PART_SIZE + 100) as connection:
        await wait_all_tasks_blocked()
        assert not connection.cancel_called or ends.client.part_bytes
    begun = ends.client.part_sum
    assert begun.size
    told = ends.client.tell_count()
    # What the first connection delivers from then on comes again.
    part, count, heard = ends.client._part, ends.client.received, ends.heard[0]
    assert part is not None
    if more == 1 << 40:
        ends.client._part, ends.client.received = None, count + 1
        heard.append(LARGE)
    elif more:
        ends.client._part = part.followed_by(LARGE[part.sum.size : part.sum.size + more])
    assert ends.client.part_sum == begun
    async with ends.connected(told=told):
        await wait_all_tasks_blocked()
    assert heard == [b"first", LARGE, b"last"]
    assert ends.client.received == 3


DISGUISES = ["x", "é", "€", "𝄞", goodbye().decode(), acknowledgement(99).decode(), rest_follows(7).decode()]


@TRANSPORTS
@pytest.mark.parametrize("seed", range(4))
async def test_wherever_links_are_cut_each_message_arrives_once_and_little_of_it_twice(
    transport: Open, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    least, room = 100, 300
    monkeypatch.setattr("acp_gateway.transports.link.PART_SIZE", least)
    chance = random.Random(seed)  # noqa: S311 (the same each time is what is wanted)
    said = [
        [
            f"{number}:{chance.choice(DISGUISES) * chance.randrange(chance.choice([3, 300]))}.".encode()
            for number in range(30)
        ]
        for _ in range(2)
    ]
    ends = Ends(transport, room)
    for link, messages in zip(ends.links, said, strict=True):
        link.send(messages)
    while ends.heard != said[::-1]:
        lifetimes = [chance.randrange(1, 3000) for _ in range(2)]
        async with ends.connected(*lifetimes, resets=chance.random() < 0.5):
            await wait_all_tasks_blocked()
        assert all(heard == expected[: len(heard)] for heard, expected in zip(ends.heard, said[::-1], strict=True))
        assert ends.connections < 300
    size = sum(len(message) for messages in said for message in messages)
    assert ends.connections > 10
    # Each direction may lose what was not kept or not read, and sends a control message and frames.
    assert ends.carried - size <= ends.connections * 2 * (least + room + 400)


# Peers that do not keep to it


async def begun(size: int = 2 * PART_SIZE) -> tuple[Link, bytes]:
    """A link that has kept the beginning of a message, and the rest."""
    ends = Ends(lines)
    ends.client.send([LARGE])
    async with ends.connected(size, 1 << 40):
        await wait_all_tasks_blocked()
    link = ends.gateway
    assert link.part_bytes
    return link, LARGE[link.part_bytes :]


async def peer_of(link: Link, limit: int = LIMIT) -> LineStream:
    """Connect a link, and return the other end."""
    here, there = MemoryBytes(1 << 20), MemoryBytes(1 << 20)
    here.peer, there.peer = there, here
    link.disconnect()
    link.connect(LineStream(here, max_message_size=limit), 0)
    return LineStream(there, max_message_size=limit)


async def test_a_peer_may_begin_a_message_again() -> None:
    link, _ = await begun()
    (await peer_of(link)).send_nowait([acknowledgement(0), LARGE])
    assert await link.receive_batch() == [LARGE]
    assert link.part_bytes == 0


@pytest.mark.parametrize("offset", [-1, 1, -PART_SIZE])
async def test_a_message_that_goes_on_from_another_byte_is_miscounted(offset: int) -> None:
    link, rest = await begun()
    (await peer_of(link)).send_nowait([rest_follows(link.part_bytes + offset), rest])
    with pytest.raises(Miscounted, match="which were not kept"):
        await link.receive_batch()
    assert link.received == 0


async def test_only_the_first_message_of_a_connection_goes_on() -> None:
    link, rest = await begun()
    peer, size = await peer_of(link), link.part_bytes
    peer.send_nowait([rest_follows(size), rest, rest_follows(size), rest])
    with pytest.raises(Miscounted):
        await link.receive_batch()


async def test_a_message_of_two_parts_is_not_larger_than_the_limit() -> None:
    link, _ = await begun()
    (await peer_of(link, limit=2 * PART_SIZE)).send_nowait([rest_follows(link.part_bytes), b"x" * PART_SIZE])
    with pytest.raises(MessageTooLarge, match=r"max_message_size \(131072 bytes\)"):
        await link.receive_batch()


async def test_no_more_is_kept_than_a_message_may_have(nursery: trio.Nursery) -> None:
    link, _ = await begun()
    for _ in range(3):
        peer = await peer_of(link, limit=3 * PART_SIZE)
        await peer.bytes.send_some(memoryview(rest_follows(link.part_bytes) + b"\n" + b"x" * PART_SIZE))
        nursery.start_soon(link.receive_batch)
        await wait_all_tasks_blocked()
        link.disconnect()
        assert link.part_bytes <= 3 * PART_SIZE
        if not link.part_bytes:
            break
    assert link.part_bytes == 0
    nursery.cancel_scope.cancel()


async def test_a_link_that_cannot_be_resumed_keeps_no_part(nursery: trio.Nursery) -> None:
    link = Link()
    await (await peer_of(link)).bytes.send_some(memoryview(LARGE[: 2 * PART_SIZE]))
    nursery.start_soon(link.receive_batch)
    await wait_all_tasks_blocked()
    link.disconnect()
    assert link.part_bytes == 0
    nursery.cancel_scope.cancel()
