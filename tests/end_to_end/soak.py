"""A soak: editors on sessions of all scopes over all transports, cut at random, while its gateway is killed.

At the end each viewer is held against the history of its session: what it saw, in order and once, and what it was told
is missing must be all of it.

    python -m tests.end_to_end.soak [SECONDS [SEED]]
"""

import json
import os
import random
import re
import secrets
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import trio

from tests.end_to_end.faulty_proxy import FaultyProxy
from tests.end_to_end.running import AGENTS, ENVIRONMENT, PROGRAM, prepare, start_gateway

ENDLESS = 1_000_000
SIZE = (500, 80_000)
"""Bytes after which a connection is cut."""

KILLED_EVERY = (1.0, 5.0)
"""Seconds between a start of the gateway and its end."""

SETTLING = 120.0
"""Seconds in which all must have everything once nothing fails any more."""

SCOPES = {"mine": "identity", "ours": "shared", "alone": "connection"}


@dataclass(eq=False)
class Editor:
    """An editor with a shim, and what it was told of its session."""

    name: str
    command: list[str]
    process: trio.Process | None = None
    session: str = ""
    seen: list[int | None] = field(default_factory=list)
    """Numbers of updates; None for a line that says that something is missing."""
    answers: dict[int, dict[str, Any]] = field(default_factory=dict)
    last_id: int = 0
    change: trio.Event = field(default_factory=trio.Event)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Read until cancelled. A shim that ends before it has had a session is started again."""
        self.process = None
        while self.process is None or not self.session:
            await self.run_once(task_status if self.process is None else trio.TASK_STATUS_IGNORED)
            self.answers[self.last_id] = {"error": "the shim has ended"}
            self.change.set()
            self.change = trio.Event()
            await trio.sleep(0.2)

    async def run_once(self, task_status: trio.TaskStatus[None]) -> None:
        self.process = await trio.lowlevel.open_process(
            self.command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        task_status.started()
        assert self.process.stdout is not None
        buffered = bytearray()
        try:
            async for data in self.process.stdout:
                buffered += data
                *lines, rest = bytes(buffered).split(b"\n")
                buffered = bytearray(rest)
                for line in lines:
                    self.hear(json.loads(line))
                self.change.set()
                self.change = trio.Event()
        finally:
            self.process.kill()
            with trio.CancelScope(shield=True):
                await self.process.wait()
                for stream in (self.process.stdin, self.process.stdout):
                    if stream is not None:
                        await stream.aclose()

    def hear(self, message: dict[str, Any]) -> None:
        if message.get("method") == "session/update":
            update = message["params"]["update"]
            if update["sessionUpdate"] == "agent_message_chunk":
                text = update["content"]["text"]
                self.seen.append(None if text.startswith("[acp-gateway: ") else int(text.split()[0]))
        elif "id" in message:
            self.answers[message["id"]] = message

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdin is not None
        self.last_id += 1
        own = self.last_id
        message = {"jsonrpc": "2.0", "id": own, "method": method, "params": params}
        try:
            await self.process.stdin.send_all(json.dumps(message).encode() + b"\n")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            if self.session:
                raise
            return {"error": "the shim has ended"}
        while own not in self.answers:
            await self.change.wait()
        return self.answers.pop(own)

    async def open(self, method: str = "session/new", **params: Any) -> None:
        """Come to have a session, however often that is disturbed."""
        answer: dict[str, Any] = {}
        while "result" not in answer:
            await trio.sleep(0.1)
            answer = await self.ask("initialize", protocolVersion=1)
            if "result" in answer or "already" in str(answer):
                self.seen.clear()
                answer = await self.ask(method, cwd="/", mcpServers=[], **params)
        self.session = params.get("sessionId") or answer["result"]["sessionId"]

    async def prompt(self, count: int, at_once: int) -> dict[str, Any]:
        prompt = [{"type": "text", "text": f"{count} {at_once}"}]
        return await self.ask("session/prompt", sessionId=self.session, prompt=prompt)


@dataclass
class Report:
    """The result of a soak: counts of what it did, and what was wrong."""

    seed: int
    seconds: float
    cuts: int = 0
    kills: int = 0
    sessions: int = 0
    viewers: int = 0
    updates: int = 0
    gaps: int = 0
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        wrong = "".join(f"\n  {fault}" for fault in self.faults)
        return (
            f"soak of {self.seconds:.0f} s with seed {self.seed}: {self.cuts} cuts, {self.kills} kills, "
            f"{self.viewers} viewers of {self.sessions} sessions, {self.updates} updates in their histories, "
            f"{self.gaps} lines of gaps; {len(self.faults)} faults{wrong}"
        )


class Soak:
    """One gateway's directory, and all its clients."""

    def __init__(self, directory: Path, seed: int, seconds: float) -> None:
        self.report = Report(seed, seconds)
        self.chance = random.Random(seed)  # noqa: S311 # It is meant to be the same again.
        self.directory = directory
        self.calm = False
        agents = ""
        for agent, scope in SCOPES.items():
            for replays in ("", "all"):
                home = directory / f"{agent}{replays}"
                home.mkdir()
                command = [sys.executable, "-I", "-S", str(AGENTS / "soaking_agent.py"), str(home), replays]
                agents += f'[agents.{home.name}]\ncommand = {json.dumps(command)}\nscope = "{scope}"\n'
        self.pin = prepare(directory, agents, more='default_agent = "mine"')
        self.gateway = start_gateway(directory, self.pin)
        text = self.gateway.config.read_text()
        for transport, url in self.gateway.urls.items():
            text = re.sub(rf'"{re.escape(transport)}://127.0.0.1:0"', f'"{url}"', text)
        self.gateway.config.write_text(text)
        self.editors: list[Editor] = []
        self.owners: list[Editor] = []

    async def run(self) -> Report:
        """All of it."""
        async with trio.open_nursery() as nursery:
            self.proxies = {}
            for transport in ("wss", "tcp"):
                port = urlsplit(self.gateway.urls[transport]).port
                assert port is not None
                proxy = FaultyProxy(port, seed=self.report.seed, cuts=ENDLESS, size=SIZE)
                await nursery.start(proxy.run)
                self.proxies[transport] = proxy
            nursery.start_soon(self.read_log)
            with trio.move_on_after(self.report.seconds):
                async with trio.open_nursery() as disturbing:
                    disturbing.start_soon(self.kill_again_and_again)
                    for agent in SCOPES:
                        for replays in ("", "all"):
                            disturbing.start_soon(self.people, nursery, f"{agent}{replays}")
            self.calm = True
            for proxy in self.proxies.values():
                self.report.cuts += len(proxy.happened)
                vars(proxy)["_cuts"] = 0
            if self.gateway.process.poll() is not None:
                await self.start_again()
            with trio.move_on_after(SETTLING) as settling:
                await self.settle()
            if settling.cancelled_caught:
                self.report.faults.append(f"not settled within {SETTLING} s")
            nursery.cancel_scope.cancel()
        return self.report

    # What happens

    async def people(self, nursery: trio.Nursery, agent: str) -> None:
        """One session, its owner, who prompts without end, and those who look on."""
        transports = self.chance.sample(["wss", "tcp", "unix"], 3)
        owner = await self.editor(nursery, agent, transports[0])
        await owner.open()
        self.owners.append(owner)
        async with trio.open_nursery() as all_of_them:
            all_of_them.start_soon(self.prompt_without_end, owner)
            for transport in transports[1:]:
                all_of_them.start_soon(self.look_on, nursery, agent, transport, owner.session)

    async def prompt_without_end(self, owner: Editor) -> None:
        while True:
            await owner.prompt(self.chance.choice([10, 200, 1000]), self.chance.choice([1, 3, 20]))
            await trio.sleep(self.chance.uniform(0, 0.1))

    async def look_on(self, nursery: trio.Nursery, agent: str, transport: str, session: str) -> None:
        await trio.sleep(self.chance.uniform(0, 3))
        observes = ["--observe"] if self.chance.random() < 0.5 else []
        if SCOPES[agent.removesuffix("all")] == "connection":
            # Who may open it would be its owner's rival: each has a process of its own.
            viewer = await self.editor(nursery, agent, transport, "--attach", session, "--observe")
            await viewer.open()
        else:
            viewer = await self.editor(nursery, agent, transport, *observes)
            await viewer.open("session/load", sessionId=session)

    async def editor(self, nursery: trio.Nursery, agent: str, transport: str, *options: str) -> Editor:
        number = len(self.editors)
        log = self.directory / f"shim-{number}.log"
        command = self.gateway.connect_command(transport, "--agent", agent, "--log-file", str(log), *options)
        if transport in self.proxies:
            port, via = urlsplit(self.gateway.urls[transport]).port, self.proxies[transport].port
            command = [word.replace(f":{port}", f":{via}") for word in command]
        # Some are as slow to come back as the program is, so that several kills pass until then.
        hurried = [sys.executable, str(AGENTS / "hurried.py"), os.devnull]
        program = hurried if self.chance.random() < 0.6 else PROGRAM
        editor = Editor(f"{number} ({agent} {transport} {' '.join(options)})", [*program, *command[len(PROGRAM) :]])
        self.editors.append(editor)
        await nursery.start(editor.run)
        return editor

    async def kill_again_and_again(self) -> None:
        await trio.sleep(5)
        while True:
            await trio.sleep(self.chance.uniform(*KILLED_EVERY))
            self.gateway.process.kill()
            self.report.kills += 1
            await trio.sleep(self.chance.choice([0, 0, 1, 4]))
            with trio.CancelScope(shield=True):
                await self.start_again()

    async def start_again(self) -> None:
        await trio.to_thread.run_sync(self.gateway.process.wait)
        assert self.gateway.process.stderr is not None
        while True:
            try:
                self.gateway = await trio.to_thread.run_sync(start_gateway, self.directory, self.pin)
                return
            except AssertionError as error:
                # A connection of this machine may have one of the ports for its own end.
                if "address already in use" not in str(error):
                    raise
                await trio.sleep(0.2)

    async def read_log(self) -> None:
        """Keep the pipe of each gateway empty, but for what its start is waited for by."""
        while True:
            gateway = self.gateway
            assert gateway.process.stderr is not None
            with (self.directory / "gateway.log").open("a") as log:
                while line := await trio.to_thread.run_sync(gateway.process.stderr.readline, abandon_on_cancel=True):
                    log.write(line)
            gateway.process.stderr.close()
            while self.gateway is gateway:  # noqa: ASYNC110 - for some tenths of a second
                await trio.sleep(0.05)

    # What must have come of it

    async def settle(self) -> None:
        """Each owner says something once more; who has that has everything."""
        async with trio.open_nursery() as nursery:
            for owner in self.owners:
                nursery.start_soon(self.settle_session, owner)

    async def settle_session(self, owner: Editor) -> None:
        viewers = [editor for editor in self.editors if editor.session == owner.session]
        while (await owner.prompt(1, 1)).get("result") != {"stopReason": "end_turn"}:  # noqa: ASYNC110 - it asks
            await trio.sleep(0.1)
        last = max(number for number in owner.seen if number is not None)
        truth = await trio.to_thread.run_sync(self.history, owner)
        self.report.sessions += 1
        self.report.viewers += len(viewers)
        self.report.updates += len(truth)
        with trio.move_on_after(30):
            for viewer in viewers:
                while last not in viewer.seen[-50:]:
                    await viewer.change.wait()
        for viewer in viewers:
            self.report.gaps += viewer.seen.count(None)
            self.report.faults += [f"editor {viewer.name}: {fault}" for fault in faults_of(viewer.seen, truth)]

    def history(self, owner: Editor) -> list[int]:
        """Return the gateway's history of a session, as a stock client is sent it."""
        agent = owner.command[owner.command.index("--agent") + 1]
        found: list[int] = []
        requests: list[dict[str, Any]] = [
            {"method": "_acp-gateway/hello", "params": {"token": self.gateway.token, "agent": agent}},
            {"method": "initialize", "params": {"protocolVersion": 1}},
            {"method": "session/load", "params": {"sessionId": owner.session, "cwd": "/", "mcpServers": []}},
        ]
        if agent.startswith("alone"):
            requests[0]["params"] |= {"session": owner.session}
            requests[2] = {"method": "session/new", "params": {"cwd": "/", "mcpServers": []}}
        port = urlsplit(self.gateway.urls["tcp"]).port
        with socket.create_connection(("127.0.0.1", port), 30) as connection, connection.makefile("rwb") as file:
            for request in requests:
                file.write(json.dumps({"jsonrpc": "2.0", "id": 1} | request).encode() + b"\n")
                file.flush()
                while "id" not in (message := json.loads(file.readline())):
                    update = message["params"].get("update", {})
                    text = update.get("content", {}).get("text", "")
                    if update.get("sessionUpdate") == "agent_message_chunk" and not text.startswith("[acp-gateway: "):
                        found.append(int(text.split()[0]))
                if "error" in message:
                    raise AssertionError(message)
        return found


def faults_of(seen: list[int | None], truth: list[int]) -> list[str]:
    """Return the difference between a history and the part that a viewer saw."""
    faults = []
    numbers = [number for number in seen if number is not None]
    twice = [number for number, count in Counter(numbers).items() if count > 1]
    if twice:
        faults.append(f"{len(twice)} updates came twice, {min(twice)} to {max(twice)}")
    elif numbers != sorted(numbers):
        faults.append("updates came out of order")
    missing = sorted(set(truth) - set(numbers))
    gaps = [at for at, number in enumerate(seen) if number is None]
    silent = []
    for number in missing:
        before = max((at for at, other in enumerate(seen) if other is not None and other < number), default=-1)
        after = next((at for at in range(before + 1, len(seen)) if (seen[at] or 0) > number), len(seen))
        if not any(before < at < after for at in gaps):
            silent.append(number)
    if silent:
        faults.append(f"{len(silent)} updates are missing and it was not told, {silent[0]} to {silent[-1]}")
    return faults


def soak(directory: Path, seed: int, seconds: float) -> Report:
    """Run a soak in an empty directory."""
    one = Soak(directory, seed, seconds)
    try:
        return trio.run(one.run)
    finally:
        one.gateway.process.terminate()
        one.gateway.process.wait(60)
        if one.gateway.process.stderr is not None:
            one.gateway.process.stderr.close()


def main() -> int:
    """Return the exit code: 1 where something was found."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else secrets.randbelow(2**32)
    with tempfile.TemporaryDirectory(prefix="acp-soak-") as directory:
        sys.stdout.write(f"soak in {directory}, seed {seed}\n")
        sys.stdout.flush()
        report = soak(Path(directory), seed, seconds)
    sys.stdout.write(f"{report}\n")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
