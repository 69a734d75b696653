"""The command that clients run as their agent, its files, and the streams that it lends."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from acp_conformance import lent_agent
from acp_conformance.agent_listener import open_listener
from acp_gateway.errors import ConfigError


def modes(command: Path) -> list[int]:
    return [path.stat().st_mode & 0o777 for path in (command, command.parent)]


def started(*command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1)


async def test_the_command_is_a_private_executable_without_characters_for_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "with a space"))
    async with open_listener() as listener:
        command = Path(listener.command)
        assert " " not in listener.command
        assert modes(command) == [0o700, 0o700]
    assert not command.parent.exists()


async def test_what_the_client_writes_and_reads_goes_through_the_streams_of_its_agent() -> None:
    async with open_listener() as listener:
        with started(listener.command, "arguments", "of a client") as process:
            streams = await listener.accept()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"a")
            process.stdin.flush()
            assert await streams.stdin.receive_some() == b"a"
            await streams.stdout.send_all(b"b")
            await streams.write_noise(60)
            await streams.aclose(5)
            assert process.stdout.read() == b"b"
            assert process.stderr is not None
            assert len(process.stderr.read()) == 60
            assert process.wait(20) == 5


async def test_the_end_of_the_agent_is_noticed() -> None:
    async with open_listener() as listener:
        with started(listener.command) as process:
            streams = await listener.accept()
            process.kill()
            await streams.until_gone()
            await streams.write_noise(1)
            await streams.aclose()


async def test_the_agent_ends_with_the_checker() -> None:
    async with open_listener() as listener:
        with trio.socket.socket(socket.AF_UNIX) as checker:
            place = str(Path(listener.command).parent / "other")
            await checker.bind(place)
            checker.listen()
            with started(sys.executable, "-I", "-S", lent_agent.__file__, place) as process:
                (await checker.accept())[0].close()
                assert process.wait(20) == lent_agent.CHECKER_GONE


async def test_a_connection_that_lends_nothing_is_closed() -> None:
    async with open_listener() as listener:
        path = str(Path(listener.command).parent / "s")
        with started(listener.command), trio.socket.socket(socket.AF_UNIX) as stranger:
            await stranger.connect(path)
            await stranger.send(b"x")
            await (await listener.accept()).aclose()


async def test_the_command_can_have_a_place_of_its_own_but_overwrites_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "agent"
    async with open_listener(path) as listener:
        assert listener.command == str(path)
        text = path.read_text()
    assert not path.exists()
    path.write_text(text)
    async with open_listener(path):
        pass
    path.write_text("#!/bin/sh\necho mine\n")
    with pytest.raises(ConfigError, match="is there already"):
        async with open_listener(path):
            pass
    assert "mine" in path.read_text()


async def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none/agent: cannot be written: No such file or directory"):
        async with open_listener(tmp_path / "none" / "agent"):
            pass
