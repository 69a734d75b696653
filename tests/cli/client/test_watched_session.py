"""A session on stdout, over a link to a gateway in memory."""

import json
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from acp_gateway.cli.client.watched_session import single_keys, watch_session
from acp_gateway.client.shim import LinkState, Settings
from acp_gateway.client.uplink import LinkLoss
from acp_gateway.errors import Forbidden
from acp_gateway.protocol.path_maps import PathMaps
from acp_gateway.terminal.port_lines import Port
from acp_gateway.terminal.watching import Watcher
from tests.kit.doubles import TIMEOUT
from tests.kit.fake_gateway import DESTINATION, FakeGateway
from tests.kit.updates import said


class Stdout:
    """A pipe in place of stdout."""

    def __init__(self) -> None:
        reader, writer = os.pipe()
        self.file = os.fdopen(writer, "w", encoding="utf-8")
        self._reader = trio.lowlevel.FdStream(reader)
        self.written = ""

    async def until(self, text: str) -> str:
        """Read until all that was written contains `text`."""
        while text not in self.written:
            self.written += (await self._reader.receive_some(4096)).decode()
        return self.written

    async def close(self) -> None:
        """Close the reader."""
        await self._reader.aclose()


class Scene:
    """A gateway, and a session that is watched at it."""

    def __init__(self, watcher: Watcher | None, *, interactive: bool) -> None:
        self.gateway = FakeGateway()
        self.gateway.answers["session/list"] = lambda _: {"result": {"sessions": []}}
        self.stdout = Stdout()
        self.error: Exception | None = None
        self.ended = trio.Event()
        self.ports: list[Port] = []
        self._watcher = watcher
        self._interactive = interactive

    async def run(self) -> None:
        try:
            watching = partial(watch_session, interactive=self._interactive, target="box", ask_ports=self._ask_ports)
            await watching("s", lambda: DESTINATION, self._settings, self._watcher)
        except (Forbidden, OSError) as error:
            self.error = error
        self.ended.set()

    async def _ask_ports(self) -> list[Port]:
        return self.ports

    def send(self, update: object) -> None:
        self.gateway.send(method="session/update", params={"sessionId": "s", "update": update})

    def _settings(self, link_changed: Callable[[LinkState], None]) -> Settings:
        return Settings(PathMaps([]), 1_000_000, self.gateway.reconnect_settings(), link_changed=link_changed)


@asynccontextmanager
async def watched(
    monkeypatch: pytest.MonkeyPatch, watcher: Watcher | None, *, interactive: bool = False, timeout: float = TIMEOUT
) -> AsyncIterator[Scene]:
    scene = Scene(watcher, interactive=interactive)
    monkeypatch.setattr(sys, "stdout", scene.stdout.file)
    with trio.fail_after(timeout), scene.stdout.file:
        async with trio.open_nursery() as nursery:
            await nursery.start(scene.gateway.run)
            nursery.start_soon(scene.run)
            await scene.gateway.receive("session/list")
            yield scene
            nursery.cancel_scope.cancel()


async def test_what_happens_is_written_and_a_lost_connection_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(monkeypatch, Watcher()) as scene:
        scene.send(said("hello"))
        await scene.stdout.until("hello")
        scene.gateway.last.cut()
        await scene.stdout.until("connected again")
        scene.send(said("more"))
        assert await scene.stdout.until("more") == (
            "hello\n-- the connection was lost; connecting again\n-- connected again after 0 s\n\nmore"
        )


async def test_what_is_held_back_is_written_when_the_agent_makes_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(monkeypatch, Watcher()) as scene:
        scene.send(said("run `x`"))
        assert await scene.stdout.until("x`") == "run `x`"
        scene.send(said(" or `y` now"))
        assert await scene.stdout.until("now") == "run `x` or `y` now"


async def test_the_silence_of_a_working_agent_is_told(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async with watched(monkeypatch, Watcher(), timeout=1000) as scene:
        scene.gateway.send(method="_acp-gateway/news", params={"sessionId": "s", "event": "turn_started"})
        await scene.stdout.until("4 min")
        assert scene.stdout.written == "".join(
            f"-- no word from the agent for {minutes} min\n" for minutes in (1, 2, 4)
        )


WAY = "acp-gateway forward box 6006"


@pytest.mark.parametrize(
    ("watcher", "told"),
    [
        (Watcher(), [f"-- 6006 · tensorboard: {WAY}"]),
        (
            None,
            [
                f'{{"type": "ports", "ports": [{{"port": 6006, "program": "tensorboard"}}], "forward": "{WAY}"}}',
                '{"type": "ports", "ports": [], "forward": null}',
            ],
        ),
    ],
)
async def test_the_ports_of_the_sessions_programs_are_told_with_the_way_there(
    watcher: Watcher | None, told: list[str], monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async with watched(monkeypatch, watcher, timeout=1000) as scene:
        for scene.ports in [Port(6006, "tensorboard")], []:
            for event in {"event": "turn_started"}, {"event": "turn_ended", "stopReason": "cancelled"}:
                scene.gateway.send(method="_acp-gateway/news", params={"sessionId": "s", **event})
            await trio.sleep(10)
        scene.send(said("the end"))
        written = await scene.stdout.until("the end")
        assert [line for line in written.splitlines() if "ports" in line or "6006" in line] == told


async def test_json_tells_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(monkeypatch, None) as scene:
        scene.send(said("hello"))
        await scene.stdout.until("hello")
        scene.gateway.last.cut()
        written = await scene.stdout.until('"connected"')
        assert [json.loads(line)["type"] for line in written.splitlines()] == [
            *("opened", "update", "disconnected", "connected")
        ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_it_and_the_line_that_was_begun(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    async with watched(monkeypatch, Watcher()) as scene:
        scene.send(said("hello"))
        await scene.stdout.until("hello")
        os.kill(os.getpid(), number)
        await scene.ended.wait()
        assert scene.error is None
        assert await scene.stdout.until("hello\n") == "hello\n"


async def test_the_end_of_the_session_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(monkeypatch, Watcher()) as scene:
        scene.gateway.send(method="_acp-gateway/news", params={"sessionId": "s", "event": "deleted"})
        await scene.ended.wait()
        assert await scene.stdout.until("deleted") == "-- the session was deleted\n"


async def test_the_end_of_its_agent_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = LinkLoss("the agent has ended", 1011, closed=True)
    monkeypatch.setattr("acp_gateway.client.uplink.loss_by_close", lambda _: ended)
    async with watched(monkeypatch, Watcher()) as scene:
        scene.send(said("hello"))
        await scene.stdout.until("hello")
        scene.gateway.last.cut(trio.EndOfChannel())
        await scene.ended.wait()
        assert (await scene.stdout.until("has ended")).endswith("\n-- the agent has ended\n")


async def test_a_refusal_after_a_lost_connection_is_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(monkeypatch, Watcher()) as scene:
        scene.send(said("hello"))
        await scene.stdout.until("hello")
        scene.gateway.refusals.append(Forbidden("the token was revoked"))
        scene.gateway.last.cut()
        await scene.ended.wait()
        assert isinstance(scene.error, Forbidden)
        assert (await scene.stdout.until("again\n")).endswith("connecting again\n")


async def test_a_pipe_without_a_reader_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(monkeypatch, Watcher()) as scene:
        await scene.stdout.close()
        scene.send(said("hello"))
        await scene.ended.wait()
        assert isinstance(scene.error, BrokenPipeError)


async def test_a_key_answers_a_question_and_the_next_one_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acp_gateway.terminal.questions.PAUSE", 0.0)
    master, slave = pty.openpty()
    with os.fdopen(slave) as keyboard, os.fdopen(master, "wb", buffering=0) as person, ExitStack() as stack:
        monkeypatch.setattr(sys, "stdin", keyboard)
        stack.enter_context(single_keys())
        async with watched(monkeypatch, Watcher(), interactive=True) as scene:
            for number in (1, 2):
                scene.gateway.send(id=number, method="session/request_permission", params=permission(number))
            await scene.stdout.until("Run 1\n  [y]")
            person.write(b"y")
            await scene.stdout.until("Run 2\n  [y]")
            person.write(b"2")
            await scene.gateway.until(
                lambda: [one["id"] for one in scene.gateway.received if "result" in one] == [1, 2]
            )
            outcomes = [one["result"]["outcome"]["optionId"] for one in scene.gateway.received if "result" in one]
            assert outcomes == ["a", "b"]


async def test_a_line_steers_the_agent_and_esc_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = pty.openpty()
    with os.fdopen(slave) as keyboard, os.fdopen(master, "wb", buffering=0) as person, ExitStack() as stack:
        monkeypatch.setattr(sys, "stdin", keyboard)
        stack.enter_context(single_keys())
        async with watched(monkeypatch, Watcher(), interactive=True) as scene:
            scene.send(said("hello"))
            await scene.stdout.until("hello")
            for keys, shown in ((b"s", "> "), (b"no", "> no"), (b"\x1b", "\r"), (b"s", "> "), (b"left\n", "> left\n")):
                scene.stdout.written = ""
                person.write(keys)
                await scene.stdout.until(shown)
            prompt = await scene.gateway.receive("session/prompt")
            assert prompt["params"] == {
                "sessionId": "s",
                "prompt": [{"type": "text", "text": "left"}],
                "_meta": {"acp-gateway": {"steer": True}},
            }


def permission(number: int) -> dict[str, Any]:
    options = [
        {"optionId": "a", "name": "Allow", "kind": "allow_once"},
        {"optionId": "b", "name": "Always", "kind": "allow_always"},
    ]
    return {"sessionId": "s", "toolCall": {"toolCallId": str(number), "title": f"Run {number}"}, "options": options}
