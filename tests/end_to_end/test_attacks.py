"""Attacks on a real gateway while a real client works: the client does not notice, the attacker is shown out.

What they cost in time is measured by `make bench-attacks`, which has these attacks on a larger scale.
"""

import json
import select
import socket
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.security.token_format import mint
from benchmarks.attackers import DEFLATE, Closed, Place, WebSocket, hello
from benchmarks.bare import COMPRESSED, CONTINUATION, FINAL, TEXT, frame, message
from tests.kit.running import AGENTS, ENVIRONMENT, RunningGateway, lines_of, prepare, start_gateway

MEBIBYTE = 1024 * 1024
PIECE = b"x" * 65536
GIGABYTE = 1024 * MEBIBYTE

LARGEST_MEMORY = 300 * MEBIBYTE
"""Some 40 MB at rest, and the largest message twice while it is put together."""

MAX_UNAUTHENTICATED = 20
FAILED_ATTEMPTS = 5


@contextmanager
def attacked(directory: Path, *, handshake_timeout: int) -> Iterator[RunningGateway]:
    """A gateway that lets in fewer connections at a time than it does by default."""
    agents = f'[agents.raw]\ncommand = ["{sys.executable}", "{AGENTS / "raw_agent.py"}"]\n'
    limits = (
        f"handshake_timeout = {handshake_timeout}\n[limits]\nhandshakes_per_address = {MAX_UNAUTHENTICATED}\n"
        f"failed_attempts = {FAILED_ATTEMPTS}\nfailed_attempts_window = 600\n"
        f"messages_per_second = 200\nmessage_burst = 400\n"
    )
    running = start_gateway(directory, prepare(directory, agents, more=limits))
    try:
        yield running
    finally:
        assert running.stop() == 0, "".join(running.log)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway that waits for a token as long as a test waits for it, however slow the machine is."""
    with attacked(tmp_path_factory.mktemp("attacks"), handshake_timeout=60) as running:
        yield running


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[RunningGateway]:
    """A gateway that soon closes a connection without a token. A shim tries again if it was too slow."""
    with attacked(tmp_path, handshake_timeout=2) as running:
        yield running


@pytest.fixture
def place(gateway: RunningGateway) -> Place:
    """The same gateway, as the attackers know it."""
    return as_place(gateway)


def as_place(gateway: RunningGateway) -> Place:
    """Return a gateway as attackers know it."""
    return Place(str(gateway.directory), gateway.urls, gateway.process.pid)


class Worker:
    """A client at work, as an editor is: behind a shim."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._lines = lines_of(process)
        self._last_id = 0

    def ask(self, method: str, **params: Any) -> None:
        """A request, and the agent's answer to it."""
        assert self._process.stdin is not None
        self._last_id += 1
        self._process.stdin.write(message(self._last_id, method, params) + b"\n")
        self._process.stdin.flush()
        answer = json.loads(next(self._lines))
        assert answer["id"] == self._last_id
        assert "result" in answer

    def goes_on_during(self, attack: Callable[[], Any]) -> None:
        """Ask and be answered during an attack, which runs in a thread of its own, and after it."""
        with ThreadPoolExecutor(1) as attacker:
            attacked = attacker.submit(attack)
            self.ask("raw/echo")
            while not attacked.done():
                self.ask("raw/echo")
            attacked.result()
        self.ask("raw/echo")


@contextmanager
def at_work(gateway: RunningGateway) -> Iterator[Worker]:
    """A client that has come in."""
    with subprocess.Popen(
        gateway.connect_command("wss"), env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            worker = Worker(process)
            worker.ask("initialize", protocolVersion=1)
            yield worker
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(60) == 0
        finally:
            process.kill()


@pytest.fixture
def worker(gateway: RunningGateway) -> Iterator[Worker]:
    with at_work(gateway) as working:
        yield working


def is_closed(sock: socket.socket) -> bool:
    """Return whether the gateway has closed a connection over which it says nothing."""
    try:
        return bool(select.select([sock], [], [], 0)[0]) and not sock.recv(1)
    except ConnectionError:
        return True


def rest_of(sock: socket.socket) -> bytes:
    """Return all that comes until the gateway closes a connection."""
    sock.settimeout(60)
    said = b""
    while data := sock.recv(65536):
        said += data
    return said


def pour(sock: socket.socket, piece: bytes, size: int = GIGABYTE) -> None:
    """Send so many bytes, or as many as are taken."""
    try:
        for _ in range(size // len(piece)):
            sock.sendall(piece)
    except ConnectionError:
        pass


def let_in(place: Place) -> socket.socket:
    """An authenticated connection, over lines."""
    told = hello(place.token("token"))
    with ExitStack() as stack:
        sock = stack.enter_context(place.connect("tcp"))
        sock.sendall(told)
        assert b"connectionId" in sock.recv(4096)
        stack.pop_all()
    return sock


def test_sockets_that_say_nothing_make_room_and_a_right_token_comes_in_among_them(impatient: RunningGateway) -> None:
    place = as_place(impatient)
    silent = []
    with at_work(impatient) as worker:
        for scheme in islice(cycle(("tcp", "ws", "wss", "tcp+tls")), 3 * MAX_UNAUTHENTICATED):
            silent.append(socket.create_connection(place.address(scheme), 60))
            if len(silent) % MAX_UNAUTHENTICATED == 0:
                worker.ask("raw/echo")
        with at_work(impatient) as another:
            another.ask("raw/echo")
        # The oldest had to go at once.
        for sock in silent[:MAX_UNAUTHENTICATED]:
            assert rest_of(sock) == b""
        # And while no other connection needs their room, the others may stay until `handshake_timeout`.
        for sock in silent:
            assert rest_of(sock) == b""
            sock.close()
        worker.ask("raw/echo")


def test_who_sends_a_byte_now_and_then_is_closed_as_if_it_sent_nothing(impatient: RunningGateway) -> None:
    place = as_place(impatient)
    # Enough for a minute: on a busy machine the gateway notices late.
    said = place.upgrade("ws", place.token("token")).replace(b"\r\n\r\n", b"\r\nX-Pad: %b\r\n\r\n" % (b"x" * 1000))
    begun = [socket.create_connection(place.address(scheme), 60) for scheme in ("tcp", "ws", "wss", "tcp+tls")]

    def trickle() -> None:
        for byte in said[:-1]:
            open_still = [sock for sock in begun if not is_closed(sock)]
            if not open_still:
                return
            for sock in open_still:
                try:
                    sock.send(bytes([byte]))
                except ConnectionError:
                    pass
            # A twentieth of a second, unless one of them is closed before.
            select.select(open_still, [], [], 0.05)
        raise AssertionError("the gateway was patient enough to read all of it")

    with at_work(impatient) as worker:
        worker.goes_on_during(trickle)
    for sock in begun:
        sock.close()


def test_wrong_tokens_are_refused_more_and_more_slowly_and_the_right_one_is_not(place: Place, worker: Worker) -> None:
    def guess(scheme: str) -> int:
        with place.connect(scheme) as sock:
            if scheme in ("ws", "wss"):
                sock.sendall(place.upgrade(scheme, mint()))
                return int(rest_of(sock).split()[1])
            sock.sendall(hello(mint()))
            code: int = json.loads(rest_of(sock))["error"]["code"]
            return code

    def guess_often() -> None:
        schemes = islice(cycle(("ws", "wss", "tcp", "tcp+tls")), MAX_UNAUTHENTICATED - 4)
        with ThreadPoolExecutor(MAX_UNAUTHENTICATED) as guessers:
            told = guessers.map(guess, schemes)
            let_in(place).close()
            counts = Counter(told)
        assert counts == {401: FAILED_ATTEMPTS, 429: MAX_UNAUTHENTICATED - 4 - FAILED_ATTEMPTS}
        let_in(place).close()

    worker.goes_on_during(guess_often)


def test_a_line_of_a_gigabyte_is_cut_after_the_first_64_kb_where_no_token_was_shown(
    gateway: RunningGateway, place: Place, worker: Worker
) -> None:
    def attack() -> None:
        with place.connect("tcp") as sock:
            pour(sock, PIECE)
            assert "the first line of a connection" in json.loads(rest_of(sock))["error"]["message"]

    before = gateway.largest_memory
    worker.goes_on_during(attack)
    assert gateway.largest_memory < before + 16 * MEBIBYTE


def test_a_line_of_a_gigabyte_is_cut_at_max_message_size(gateway: RunningGateway, place: Place, worker: Worker) -> None:
    def attack() -> None:
        with let_in(place) as sock:
            pour(sock, PIECE)
            assert "max_message_size" in json.loads(rest_of(sock))["error"]["message"]

    worker.goes_on_during(attack)
    assert gateway.largest_memory < LARGEST_MEMORY


def test_a_websocket_message_of_a_gigabyte_in_pieces_is_cut_at_max_message_size(
    gateway: RunningGateway, place: Place, worker: Worker
) -> None:
    def attack() -> None:
        with place.connect("ws") as sock:
            websocket = WebSocket(sock, place.upgrade("ws", place.token("token")))
            sock.sendall(frame(TEXT, b"x", flags=0))
            pour(sock, frame(CONTINUATION, PIECE, flags=0))
            # Sending would fail: the connection is reset already. The close frame came before that.
            with pytest.raises(Closed, match="max_message_size") as caught:
                websocket.receive()
            assert caught.value.code == 1009

    worker.goes_on_during(attack)
    assert gateway.largest_memory < LARGEST_MEMORY


def test_messages_that_are_broken_off_again_and_again_leave_nothing_in_memory(
    gateway: RunningGateway, place: Place, worker: Worker
) -> None:
    size = 60 * MEBIBYTE

    def attack() -> None:
        for _ in range(6):
            with let_in(place) as sock:
                pour(sock, PIECE, size)
                break_off(sock)
            with place.connect("ws") as sock:
                WebSocket(sock, place.upgrade("ws", place.token("token")))
                sock.sendall(frame(TEXT, b"x", flags=0))
                pour(sock, frame(CONTINUATION, PIECE, flags=0), size)
                break_off(sock)

    worker.goes_on_during(attack)
    assert gateway.largest_memory < LARGEST_MEMORY


def break_off(sock: socket.socket) -> None:
    """Have a connection reset when it is closed."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_compression_is_not_taken_up_and_a_bomb_is_a_violation_of_the_protocol(
    gateway: RunningGateway, place: Place, worker: Worker
) -> None:
    # A megabyte of zeros in one kilobyte, and a thousand times that is what 1 MB of it would be.
    import zlib

    squeezed = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = squeezed.compress(bytes(256 * MEBIBYTE)) + squeezed.flush(zlib.Z_SYNC_FLUSH)

    def attack() -> None:
        with place.connect("ws") as sock:
            websocket = WebSocket(sock, place.upgrade("ws", place.token("token"), DEFLATE))
            assert "sec-websocket-extensions" not in websocket.head.lower()
            pour(sock, frame(TEXT, bomb[:-4], flags=FINAL | COMPRESSED), GIGABYTE)
            with pytest.raises(Closed) as caught:
                websocket.receive()
            assert caught.value.code == 1002

    worker.goes_on_during(attack)
    assert gateway.largest_memory < LARGEST_MEMORY


def test_a_flood_of_messages_is_throttled_and_delays_no_other_client(
    gateway: RunningGateway, place: Place, worker: Worker
) -> None:
    eve = gateway.save_token("token", "create", "--label", "eve", "--identity", "eve").read_text().strip()
    noise = (message(None, "raw/noise", {"text": "x" * 50}) + b"\n") * 100
    with place.connect("tcp") as sock:
        sock.sendall(hello(eve) + message(1, "initialize", {"protocolVersion": 1}) + b"\n")
        flood = threading.Thread(target=pour, args=[sock, noise, 32 * MEBIBYTE])
        flood.start()
        for _ in range(50):
            worker.ask("raw/echo")
        while flood.is_alive() and select.select([], [sock], [], 0)[1]:
            worker.ask("raw/echo")
        # It is as patient as the gateway, and neither is through.
        assert flood.is_alive()
        sock.shutdown(socket.SHUT_RDWR)
        flood.join(60)
    worker.ask("raw/echo")
    assert gateway.largest_memory < LARGEST_MEMORY
