"""Keys of a terminal, and text written to one, with a pseudo-terminal."""

import os
import pty
import select
import signal
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import pytest
import trio
import trio.testing

from acp_gateway.cli.client.watched_session import has_keyboard, keep_single_keys, read_keys, single_keys, write_text
from tests.kit.doubles import TIMEOUT


@contextmanager
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[BinaryIO]:
    """The other side of a terminal that is stdin and stdout. Not a fixture: pytest sets stdout again for each test."""
    master, slave = pty.openpty()
    with (
        os.fdopen(master, "wb", buffering=0) as person,
        os.fdopen(os.dup(slave), "w") as screen,
        os.fdopen(slave) as keys,
        monkeypatch.context() as patched,
    ):
        patched.setattr(sys, "stdout", screen)
        patched.setattr(sys, "stdin", keys)
        yield person


def test_pipes_and_the_terminals_of_others_are_not_keyboards(monkeypatch: pytest.MonkeyPatch) -> None:
    with keyboard(monkeypatch):
        assert not has_keyboard()  # It does not control this process.
        monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp())
        assert has_keyboard()
        with open(os.devnull) as nothing:
            monkeypatch.setattr(sys, "stdin", nothing)
            assert not has_keyboard()


def test_single_keys_are_not_echoed_and_the_terminal_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    def local_modes() -> int:
        modes: int = termios.tcgetattr(sys.stdin.fileno())[3]
        return modes & (termios.ECHO | termios.ICANON | termios.ISIG)

    with keyboard(monkeypatch):
        before = local_modes()
        with single_keys():
            assert local_modes() == termios.ISIG
        assert local_modes() == before


async def test_single_keys_are_set_again_when_the_process_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    with keyboard(monkeypatch), single_keys(), trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_single_keys)
            await trio.testing.wait_all_tasks_blocked()
            modes = termios.tcgetattr(sys.stdin.fileno())
            modes[3] |= termios.ICANON
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, modes)
            os.kill(os.getpid(), signal.SIGCONT)
            while termios.tcgetattr(sys.stdin.fileno())[3] & termios.ICANON:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()


async def test_keys_are_single_characters_without_pastes_and_escape_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = iter((b"y", b"\x1b[A", b"\x1b", b"no, yes", "ü".encode(), b"1"))
    read = ""
    with keyboard(monkeypatch) as person, single_keys(), trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as nursery:

            async def type_each_when_the_last_was_read() -> None:
                for keys in typed:
                    person.write(keys)
                    while select.select([sys.stdin], [], [], 0)[0]:
                        await trio.lowlevel.checkpoint()

            def handle(key: str) -> None:
                nonlocal read
                read += key
                if key == "1":
                    nursery.cancel_scope.cancel()

            nursery.start_soon(type_each_when_the_last_was_read)
            await read_keys(handle)
    assert read == "yü1"


async def test_the_keys_end_with_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    with keyboard(monkeypatch) as person, trio.fail_after(TIMEOUT):
        person.close()
        await read_keys(lambda _: pytest.fail("a key"))


async def test_text_is_written_and_what_the_encoding_lacks_is_a_question_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as pipe, os.fdopen(writer, "w", encoding="ascii") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        await write_text("")
        await write_text("a● \ud800\n")
        assert os.read(pipe.fileno(), 100) == b"a? ?\n"


async def test_writing_to_a_terminal_that_stands_still_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as pipe, os.fdopen(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        with trio.move_on_after(0.01) as scope:
            await write_text("x" * 1_000_000)
        assert scope.cancelled_caught
        monkeypatch.undo()
        # The thread that was left behind ends.
        left = 1_000_000
        while left:
            left -= len(os.read(pipe.fileno(), left))
