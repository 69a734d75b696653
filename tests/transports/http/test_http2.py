"""The server's side of one HTTP/2 connection, with h2 as its client: requests at once, windows, resets, limits."""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from math import inf

import pytest
import trio
import trio.testing
from h2.settings import SettingCodes
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.transports.http.head import HttpError
from acp_gateway.transports.http.http2 import (
    CONNECTION_WINDOW,
    HEADS_SIZE,
    MAX_STREAMS,
    MAX_UNSENT,
    STREAM_WINDOW,
    TABLE_SIZE,
    TRUSTED_HEADS_SIZE,
    Http2Connection,
    Http2Request,
)
from acp_gateway.transports.http.http2_frames import (
    BLOCK_SIZE,
    BUDGET,
    ENHANCE_YOUR_CALM,
    FRAME_SIZE,
    MAX_SETTINGS,
    PROTOCOL_ERROR,
    RESET_COST,
    SENT_PAYS,
    Http2Error,
)
from acp_gateway.transports.http.server import Request, Response
from acp_gateway.transports.streams import Stalled, send_all
from tests.kit.doubles import TIMEOUT
from tests.kit.http2_client import Http2Client
from tests.kit.wires import MIB, MemoryBytes, memory_wire

pytestmark = pytest.mark.jumps

CANCEL, REFUSED_STREAM = 0x8, 0x7
LARGE = bytes(range(256)) * 4096

HEAD = [(":method", "POST"), (":scheme", "https"), (":authority", "h"), (":path", "/")]

Handle = Callable[[Http2Request, Request], Awaitable[object]]


@dataclass
class Scene:
    """A client, the server's connection, and what has become of its requests."""

    client: Http2Client
    server: Http2Connection
    here: MemoryBytes
    """The client's end."""
    wire: MemoryBytes
    """The server's end."""
    running: set[str] = field(default_factory=set)
    cancelled: list[str] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    at_end: Callable[[], None] = lambda: None

    async def run(self, handle: Handle) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.server.write)
                while (http := await self.server.receive_request(nullcontext)) is not None:
                    nursery.start_soon(self._handle, http, handle)
                nursery.cancel_scope.cancel()
        except* Http2Error as group:
            (error,) = group.exceptions
            assert isinstance(error, Http2Error)
            self.server.go_away(error.code, str(error))
        await self.server.aclose()

    async def _handle(self, http: Http2Request, handle: Handle) -> None:
        path = ""
        try:
            with http.scope:
                try:
                    request = await http.receive_request()
                    assert request is not None
                    path = request.path
                    self.running.add(path)
                    await handle(http, request)
                except HttpError as error:
                    await http.respond(Response.of_text(error.status, str(error), close=True))
            if http.scope.cancelled_caught:
                self.cancelled.append(path)
        except (trio.BrokenResourceError, ValueError) as error:
            self.errors.append(error)
        finally:
            self.running.discard(path)
            await http.aclose()


@asynccontextmanager
async def served(
    handle: Handle, room: int = MIB, stall_timeout: float = inf, frame_timeout: float = inf
) -> AsyncIterator[Scene]:
    here, there = memory_wire(room)
    scene = Scene(Http2Client(here), Http2Connection(there, stall_timeout, frame_timeout), here, there)
    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.run, handle)
            await scene.client.flush()
            try:
                yield scene
            finally:
                scene.at_end()
            nursery.cancel_scope.cancel()


async def echo(http: Http2Request, request: Request) -> None:
    body = await http.receive_body(MIB)
    size = "none" if http.announced_size is None else str(http.announced_size)
    headers = {"X-Path": request.path, "X-Size": size, "Connection": "close", "Upgrade": "websocket"}
    await http.respond(Response(200, body, headers))


async def send_large(http: Http2Request, request: Request) -> None:
    await http.start(200, {})
    await http.send(LARGE)
    await http.end()


async def send_forever(http: Http2Request, request: Request) -> None:
    await http.start(200, {})
    while True:
        await http.send(LARGE)


async def idle(http: Http2Request, request: Request) -> None:
    await http.start(200, {})
    await http.wait_left()


async def ignore(http: Http2Request, request: Request) -> None:
    await http.wait_left()


# Requests and responses


@pytest.mark.parametrize(
    ("method", "more", "body", "size"),
    [
        ("GET", (), b"", "0"),
        ("POST", (("content-length", "2"),), b"ab", "2"),
        ("POST", (), b"ab", "none"),
        ("PUT", (), LARGE, "none"),
    ],
)
async def test_a_request_is_read_and_answered(
    method: str, more: tuple[tuple[str, str], ...], body: bytes, size: str
) -> None:
    async with served(echo) as scene:
        reply = await scene.client.ask(method, "/a?b", *more, body=body)
        assert (reply.status, reply.body, reply.headers["x-path"], reply.headers["x-size"]) == (200, body, "/a", size)
        assert {"date", "content-length"} <= set(reply.headers)
        # Headers of a connection of HTTP/1.1 would make a client end this one.
        assert not {"connection", "upgrade"} & set(reply.headers)


@pytest.mark.parametrize("status", [200, 204, 304])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_response_without_a_body_has_none(method: str, status: int) -> None:
    async def answer(http: Http2Request, request: Request) -> None:
        await http.respond(Response(status, b"" if status == 304 else b"body"[: 4 * (status == 200)]))

    async with served(answer) as scene:
        reply = await scene.client.ask(method, "/")
        assert (reply.status, reply.body) == (status, b"body" if (method, status) == ("GET", 200) else b"")
        assert reply.headers.get("content-length") == ("4" if status == 200 else None)


async def test_requests_at_the_same_time_are_answered_as_they_are_ready() -> None:
    ready = trio.Event()

    async def answer(http: Http2Request, request: Request) -> None:
        if request.path == "/slow":
            await ready.wait()
        await http.respond(Response.of_text(200, request.path))

    async with served(answer) as scene:
        slow = await scene.client.begin("GET", "/slow")
        assert (await scene.client.ask("GET", "/quick")).body == b"/quick\n"
        assert slow not in scene.client.replies
        ready.set()
        assert (await scene.client.reply(slow)).body == b"/slow\n"


async def test_a_body_may_end_with_trailers_and_the_client_is_told_to_go_on() -> None:
    async with served(echo) as scene:
        client = scene.client
        number = await client.begin("POST", "/", ("expect", "100-continue"), ends=False)
        while number not in client.interim:
            await client.receive()
        await client.send(number, b"ab")
        client.h2.send_headers(number, [("x-sum", "1")], end_stream=True)
        await client.flush()
        assert (await client.reply(number)).body == b"ab"


async def test_a_response_that_is_not_whole_is_reset_and_too_much_is_not_sent() -> None:
    async def answer(http: Http2Request, request: Request) -> None:
        await http.start(200, {}, 3)
        await http.send(b"ab" if request.path == "/less" else b"abcd")
        await http.end()

    async with served(answer) as scene:
        for path in ("/less", "/more"):
            number = await scene.client.begin("GET", path)
            while number not in scene.client.resets:
                await scene.client.receive()
            assert (number in scene.client.ended, scene.client.resets[number]) == (False, CANCEL)
        assert [str(error) for error in scene.errors] == [
            "the body of the response is longer than its announced length"
        ]


async def test_a_header_of_a_response_is_one_line() -> None:
    async def answer(http: Http2Request, request: Request) -> None:
        await http.respond(Response(200, b"", {"A": "b\r\nC: d"}))

    async with served(answer) as scene:
        number = await scene.client.begin("GET", "/")
        while number not in scene.client.resets:
            await scene.client.receive()
        assert [type(error) for error in scene.errors] == [ValueError]


@pytest.mark.parametrize(("path", "more"), [("/\xe4", ()), ("/" + "a" * 9000, ()), ("/", (("content-length", "5"),))])
async def test_a_head_that_is_refused_ends_its_request_and_no_other(path: str, more: Sequence[tuple[str, str]]) -> None:
    async with served(echo) as scene:
        fields = [(":method", "HEAD"), (":scheme", "https"), (":authority", "h"), (":path", path), *more]
        refused = await scene.client.reply(await scene.client.send_head(fields))
        assert (refused.status in (400, 414), refused.body) == (True, b"")
        assert (await scene.client.ask("GET", "/")).status == 200


# Bodies


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_that_is_too_large_is_refused_and_its_rest_is_in_no_ones_way(announced: bool) -> None:
    async def answer(http: Http2Request, request: Request) -> None:
        await http.receive_body(1000)

    async with served(answer) as scene:
        client = scene.client
        # More than all windows together, unless what is dropped is acknowledged.
        for _ in range(2 * CONNECTION_WINDOW // STREAM_WINDOW):
            more = [("content-length", "50000")] if announced else []
            number = client.h2.get_next_available_stream_id()
            client.h2.send_headers(number, [*HEAD, *more])
            while client.h2.local_flow_control_window(number) < 30_000:
                await client.receive()
            # Together, so that data is there before the task of the request has begun.
            client.h2.send_data(number, bytes(15_000))
            client.h2.send_data(number, bytes(15_000))
            await client.flush()
            assert (await client.reply(number)).status == 413
            while number not in client.resets:
                await client.receive()
            assert client.resets[number] == 0


async def test_a_body_has_its_time_and_small_pieces_are_counted() -> None:
    pieces = []

    async def received(size: int, small: int) -> None:
        pieces.append(small)

    async def answer(http: Http2Request, request: Request) -> None:
        await http.receive_body(MIB, received, timeout=10.0)

    async with served(answer) as scene:
        number = await scene.client.begin("POST", "/", ends=False)
        for _ in range(20):
            await scene.client.send(number, b"a")
            await trio.testing.wait_all_tasks_blocked()
        assert sum(pieces) == 4
        assert (await scene.client.reply(number)).status == 408
        assert trio.current_time() == pytest.approx(10.0, abs=0.1)


async def test_padding_is_acknowledged_and_no_part_of_a_body() -> None:
    async with served(echo) as scene:
        client = scene.client
        number = await client.begin("POST", "/", ends=False)
        # More than all windows together.
        for _ in range(600):
            while client.h2.local_flow_control_window(number) < 300:
                await client.receive()
            client.h2.send_data(number, b"a", pad_length=255)
            await client.flush()
        client.h2.end_stream(number)
        await client.flush()
        assert (await client.reply(number)).body == b"a" * 600


async def test_a_handler_may_take_a_body_in_parts_no_faster_than_it_likes() -> None:
    go_on = trio.Event()
    parts: list[bytes] = []

    async def answer(http: Http2Request, request: Request) -> None:
        await go_on.wait()
        while part := await http.receive_part():
            parts.append(part)
        await http.respond(Response.of_text(200, "ok"))

    async with served(answer, room=4 * MIB) as scene:
        client = scene.client
        number = await client.begin("POST", "/", ends=False)
        sent = 0
        # The connection's first window is the smaller one, until the client is trusted.
        while (room := client.h2.local_flow_control_window(number)) > 0:
            await client.send(number, bytes(min(room, FRAME_SIZE)))
            sent += min(room, FRAME_SIZE)
            await trio.testing.wait_all_tasks_blocked()
        assert sent == 65535
        scene.server.trust()
        scene.server.trust()
        while client.h2.local_flow_control_window(number) <= 0:
            await client.receive()
        assert client.h2.outbound_flow_control_window == CONNECTION_WINDOW - 65535
        go_on.set()
        await client.send(number, LARGE, ends=True)
        assert (await client.reply(number)).status == 200
        assert b"".join(parts) == bytes(sent) + LARGE


# Windows and slow clients


async def test_who_reads_one_response_slowly_delays_no_other() -> None:
    async with served(send_large) as scene:
        client = scene.client
        slow = await client.begin("GET", "/slow")
        client.slow.add(slow)
        client.h2.increment_flow_control_window(8 * MIB)
        # Its window is empty, and the others have theirs.
        for _ in range(3):
            assert (await client.ask("GET", "/quick")).body == LARGE
        assert slow not in client.ended
        assert len(client.replies[slow].body) == 65535
        assert scene.server._pending == 0
        client.h2.increment_flow_control_window(2 * len(LARGE), slow)
        await client.flush()
        assert (await client.reply(slow)).body == LARGE


async def test_responses_share_what_the_connection_may_send() -> None:
    async with served(send_forever) as scene:
        client = scene.client
        client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 8 * MIB})
        await client.flush()
        numbers = [await client.begin("GET", f"/{number}") for number in range(4)]
        client.slow.update(numbers)
        await trio.testing.wait_all_tasks_blocked()
        for room in (FRAME_SIZE, 4 * FRAME_SIZE, FRAME_SIZE, 3 * FRAME_SIZE, 7 * FRAME_SIZE):
            while scene.here.inbox:
                await client.receive()
            before = [len(client.replies[number].body) for number in numbers]
            client.h2.increment_flow_control_window(room)
            await client.flush()
            await trio.testing.wait_all_tasks_blocked()
            while scene.here.inbox:
                await client.receive()
            gained = [len(client.replies[number].body) - size for number, size in zip(numbers, before, strict=True)]
            assert sum(gained) == room
            # Each has a frame before one has another.
            assert max(gained) - min(gained) <= FRAME_SIZE, gained


async def test_for_a_client_that_reads_nothing_little_is_kept() -> None:
    async with served(send_forever, room=1000) as scene:
        client = scene.client
        client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 2**30})
        client.h2.increment_flow_control_window(2**30)
        for number in range(10):
            await client.begin("GET", f"/{number}")
        await trio.testing.wait_all_tasks_blocked()
        assert MAX_UNSENT <= scene.server._pending <= MAX_UNSENT + FRAME_SIZE


async def test_a_client_that_does_not_read_what_it_is_answered_is_not_read() -> None:
    async def answer(http: Http2Request, request: Request) -> None:
        await http.respond(Response(204, b"", {"X": "a" * 8000}))

    async with served(answer) as scene:
        client = scene.client
        scene.here.room = 0
        numbers = [await client.begin("GET", "/") for _ in range(90)]
        await trio.testing.wait_all_tasks_blocked()
        assert 2 * MAX_UNSENT < scene.server._pending < 3 * MAX_UNSENT
        scene.here.room = MIB
        scene.wire.wake()
        for number in numbers:
            assert (await client.reply(number)).status == 204


async def test_who_takes_nothing_for_long_loses_the_request() -> None:
    async with served(send_large, stall_timeout=10.0) as scene:
        slow = await scene.client.begin("GET", "/slow")
        scene.client.slow.add(slow)
        while slow not in scene.client.resets:
            await scene.client.receive()
        assert scene.client.resets[slow] == CANCEL
        assert [type(error) for error in scene.errors] == [Stalled]
        assert trio.current_time() == pytest.approx(10.0, abs=0.1)


async def test_who_takes_no_byte_at_all_loses_the_connection() -> None:
    with pytest.RaisesGroup(pytest.RaisesGroup(Stalled)):
        async with served(idle, room=10, stall_timeout=10.0) as scene:
            scene.wire.room = MIB
            await scene.client.begin("GET", "/")
            await trio.sleep_forever()


async def test_what_the_client_s_system_has_not_confirmed_is_known_of_each_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests: dict[str, Http2Request] = {}
    unconfirmed = [0]

    async def answer(http: Http2Request, request: Request) -> None:
        requests[request.path] = http
        await http.start(200, {})
        await http.send(bytes(100))
        await http.wait_left()

    async with served(answer) as scene:
        monkeypatch.setattr(MemoryBytes, "unconfirmed_bytes", property(lambda _: unconfirmed[0]))
        for path in ("/first", "/second"):
            number = await scene.client.begin("GET", path)
            while not (number in scene.client.replies and scene.client.replies[number].body):
                await scene.client.receive()
        found = []
        for unconfirmed[0] in (scene.server.queued_bytes, 100 + 9, 30, 0):
            found.append([request.unconfirmed_bytes for request in requests.values()])
        assert found == [[100, 100], [0, 100], [0, 30], [0, 0]]
        assert requests["/second"].confirmed_bytes == 100


# Resets


async def test_a_request_that_is_reset_is_cancelled() -> None:
    async with served(idle) as scene:
        client = scene.client
        numbers = [await client.begin("GET", f"/{number}") for number in range(3)]
        await client.head(numbers[2])
        client.h2.reset_stream(numbers[1])
        await client.flush()
        await trio.testing.wait_all_tasks_blocked()
        assert (scene.cancelled, scene.running) == (["/1"], {"/0", "/2"})
        assert set(scene.server._streams) == {numbers[0], numbers[2]}


async def test_what_is_received_of_a_body_is_not_waited_for_after_a_reset() -> None:
    async with served(echo) as scene:
        number = await scene.client.begin("POST", "/", ends=False)
        await scene.client.send(number, bytes(100))
        scene.client.h2.reset_stream(number)
        await scene.client.flush()
        await trio.testing.wait_all_tasks_blocked()
        assert (scene.running, scene.server._streams) == (set(), {})


async def test_requests_that_are_reset_count_until_their_tasks_have_ended() -> None:
    may_end = trio.Event()

    async def stay(http: Http2Request, request: Request) -> None:
        with trio.CancelScope(shield=True):
            await may_end.wait()

    async with served(stay) as scene:
        scene.at_end = may_end.set
        client = scene.client
        for number in range(MAX_STREAMS):
            client.h2.reset_stream(await client.begin("GET", f"/{number}"))
        one_more = await client.begin("GET", "/more")
        while one_more not in client.resets:
            await client.receive()
        assert client.resets[one_more] == REFUSED_STREAM
        assert len(scene.running) == MAX_STREAMS
        may_end.set()
        await trio.testing.wait_all_tasks_blocked()
        assert scene.server._streams == {}


LARGE_HEAD = [("x", "v" * 3900)] * 16


@pytest.mark.parametrize(
    ("trusted", "most", "fields"),
    [
        (False, HEADS_SIZE, LARGE_HEAD),
        (False, HEADS_SIZE, [("x", "")] * 128),
        (True, TRUSTED_HEADS_SIZE, LARGE_HEAD),
    ],
    ids=["stranger", "many fields", "trusted"],
)
async def test_heads_have_a_bound_for_all_requests_together(
    trusted: bool, most: int, fields: list[tuple[str, str]]
) -> None:
    async with served(echo) as scene:
        client = scene.client
        if trusted:
            scene.server.trust()
        size = sum(len(name) + len(value) + 32 for name, value in [*HEAD, *fields])
        numbers = [await client.send_head([*HEAD, *fields], ends=False) for _ in range(most // size + 1)]
        while numbers[-1] not in client.resets:
            await client.receive()
        assert client.resets[numbers[-1]] == REFUSED_STREAM
        assert len(scene.server._streams) == len(numbers) - 1
        await client.send(numbers[0], b"", ends=True)
        assert (await client.reply(numbers[0])).status == 200
        assert (await client.ask("GET", "/later")).status == 200


# Limits, and the end


def frame(kind: int, payload: bytes = b"", flags: int = 0, stream: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


GET = b"\x82\x87\x84\x01\x01h"
"""The head of a request, as it is sent (RFC 7541)."""

ONE_HEADER = bytes([0x40, 1]) + b"a" + bytes([0x7F, 0xA1, 0x1E]) + b"b" * 4000
"""A header that the table of names remembers, of 4 KB."""


@pytest.mark.parametrize(
    ("data", "code", "says"),
    [
        (frame(0x6, bytes(8)) * (BUDGET + 1), ENHANCE_YOUR_CALM, f"too many PING frames: {BUDGET}"),
        (frame(0x4) * BUDGET, ENHANCE_YOUR_CALM, f"more than {MAX_SETTINGS} SETTINGS"),
        (frame(0x1, GET, 0, 1) + frame(0x9, b"", 0, 1) * 20, ENHANCE_YOUR_CALM, "16 CONTINUATION"),
        # Small as it is sent, and large as it is read.
        (frame(0x1, ONE_HEADER + b"\xbe" * 20, 0x5, 1), ENHANCE_YOUR_CALM, f"more than {BLOCK_SIZE} bytes"),
        (b"".join(frame(0x1, GET, 0x4, 2 * n + 1) for n in range(101)), PROTOCOL_ERROR, "100 requests"),
        (frame(0x1, GET, 0x4, 1) + frame(0, bytes(FRAME_SIZE), 0, 1) * 4, 0x3, "more data"),
        (frame(0x1, GET, 0x5, 2), PROTOCOL_ERROR, "not sound"),
        (frame(0x1, GET + b"\x0f\x0d\x011", 0x4, 1) + frame(0, b"ab", 0x1, 1), PROTOCOL_ERROR, "not sound"),
        (frame(0x1, b"\xff\xff\xff\xff\xff\xff\xff", 0x5, 1), PROTOCOL_ERROR, "not sound"),
        (frame(0x8, bytes(4)), PROTOCOL_ERROR, "not sound"),
        (frame(0x5, bytes(4), 0, 1), PROTOCOL_ERROR, "not sound"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_no_client_needs_ends_the_connection_with_the_limit(data: bytes, code: int, says: str) -> None:
    async with served(ignore) as scene:
        await send_all(scene.here, data)
        await scene.client.receive_all()
        assert scene.client.goaway is not None
        assert (scene.client.goaway[0], says in scene.client.goaway[1]) == (code, True), scene.client.goaway
        assert (scene.running, scene.server._streams) == (set(), {})


async def test_requests_that_are_reset_again_and_again_end_the_connection() -> None:
    async with served(idle) as scene:
        client = scene.client
        # Each of these was answered by then.
        for number in range(BUDGET // (RESET_COST - SENT_PAYS) + 1):
            client.h2.reset_stream(await client.begin("GET", f"/{number}"))
            await client.flush()
            await trio.testing.wait_all_tasks_blocked()
        await client.receive_all()
        assert client.goaway is not None
        assert (client.goaway[0], "RST_STREAM" in client.goaway[1]) == (ENHANCE_YOUR_CALM, True)


async def test_a_reset_that_the_client_provokes_costs_as_much_as_its_own() -> None:
    async with served(idle) as scene:
        client = scene.client
        for number in range(BUDGET // (RESET_COST - SENT_PAYS) + 1):
            # A window that overflows is an error of the request alone.
            await client.begin("GET", f"/{number}")
            await send_all(scene.here, frame(0x8, b"\x7f\xff\xff\xff", 0, 2 * number + 1))
            await trio.testing.wait_all_tasks_blocked()
        await client.receive_all()
        assert client.goaway is not None
        assert client.goaway[0] == ENHANCE_YOUR_CALM


@pytest.mark.parametrize("flags", [0x5, 0x1], ids=["whole", "continued"])
async def test_heads_that_begin_no_request_end_the_connection(flags: int) -> None:
    async with served(idle) as scene:
        scene.client.h2.reset_stream(await scene.client.begin("GET", "/"))
        await scene.client.flush()
        again = frame(0x1, GET, flags, 1) + (b"" if flags & 0x4 else frame(0x9, b"", 0x4, 1))
        await send_all(scene.here, again * (BUDGET // RESET_COST))
        await scene.client.receive_all()
        assert scene.client.goaway is not None
        assert scene.client.goaway[0] == ENHANCE_YOUR_CALM


async def test_a_client_that_goes_away_still_gets_its_responses() -> None:
    ready = trio.Event()

    async def answer(http: Http2Request, request: Request) -> None:
        await ready.wait()
        await http.respond(Response.of_text(200, "ok"))

    async with served(answer) as scene:
        number = await scene.client.begin("GET", "/")
        await send_all(scene.here, frame(0x7, bytes(8)))
        await trio.testing.wait_all_tasks_blocked()
        ready.set()
        assert (await scene.client.reply(number)).status == 200


@pytest.mark.parametrize("begun", [b"\0\0", frame(0x1, GET, 0, 1)])
async def test_what_has_begun_must_be_complete_in_time(begun: bytes) -> None:
    async with served(idle, frame_timeout=10.0) as scene:
        # Its confirmation of the settings.
        await scene.client.receive()
        await trio.sleep(20)
        await send_all(scene.here, begun)
        await scene.client.receive_all()
        assert scene.client.goaway is not None
        assert (scene.client.goaway[0], "not complete" in scene.client.goaway[1]) == (PROTOCOL_ERROR, True)
        assert trio.current_time() == pytest.approx(30 + FRAME_SIZE / 4096)


async def test_headers_of_responses_are_remembered_up_to_a_size_whatever_the_client_allows() -> None:
    async with served(echo) as scene:
        client = scene.client
        client.h2.update_settings({SettingCodes.HEADER_TABLE_SIZE: 2**20})
        for number in range(100):
            assert (await client.ask("GET", f"/{'x' * 100}{number}")).status == 200
        assert scene.server.h2.encoder.header_table_size == TABLE_SIZE
        client.h2.update_settings({SettingCodes.HEADER_TABLE_SIZE: 0})
        assert (await client.ask("GET", "/")).status == 200
        assert scene.server.h2.encoder.header_table_size == 0


async def test_what_is_secret_is_in_no_table_of_headers() -> None:
    async def answer(http: Http2Request, request: Request) -> None:
        await http.respond(Response(200, b"", {"Set-Cookie": "a=secret", "Acp-Connection-Id": "secret", "X": "told"}))

    async with served(answer) as scene:
        await scene.client.ask("GET", "/")
        table = repr(scene.server.h2.encoder.header_table.dynamic_entries)
        assert ("secret" in table, "told" in table) == (False, True)


def conversation() -> bytes:
    """The bytes of a client that sends two requests at once, and waits for nothing."""
    here, _ = memory_wire()
    h2 = Http2Client(here).h2
    for number, path in ((1, "/a"), (3, "/b")):
        h2.send_headers(number, [(":method", "POST"), (":scheme", "https"), (":authority", "h"), (":path", path)])
    for part in (b"one", b"two", b""):
        for number in (1, 3):
            h2.send_data(number, part, end_stream=not part)
    return h2.data_to_send()


@given(st.lists(st.integers(0, len(conversation())), max_size=12))
async def test_requests_are_the_same_wherever_their_bytes_are_cut(cuts: list[int]) -> None:
    data, found = conversation(), []
    places = [0, *sorted(cuts), len(data)]
    here, there = memory_wire(MIB)
    server = Http2Connection(there)

    async def send() -> None:
        for start, end in itertools.pairwise(places):
            here.send_nowait(memoryview(data[start:end]))
            await trio.lowlevel.checkpoint()
        await here.send_eof()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        requests = []
        while (http := await server.receive_request(nullcontext)) is not None:
            requests.append(http)
        for http in requests:
            request = await http.receive_request()
            assert request is not None
            found.append((request.path, await http.receive_body(100)))
    assert found == [("/a", b"onetwo"), ("/b", b"onetwo")]
