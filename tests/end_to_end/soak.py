"""A soak: editors on sessions of all scopes over all transports, cut at random, while all parts are killed and hang.

Editors and agents speak either version of the protocol, at random.

The parts are a gateway with agents, a door that leads to it, the agents, and Redis, which has the directory of both
where it is installed; else the door's configuration names the gateway.

At the end each viewer is held against the history of its session: what it saw, in order and once, and what it was told
is missing must be all of it.

    python -m tests.end_to_end.soak [SECONDS [SEED]]
"""

import json
import os
import random
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from tests.core.seen import faults_of
from tests.end_to_end.faulty_proxy import FaultyProxy
from tests.end_to_end.running import AGENTS, ENVIRONMENT, PROGRAM, run_program
from tests.end_to_end.soak_machines import Machine, disturb_redis, has_redis, kill_agent
from tests.free_ports import free_port
from tests.nodes.redis_server import RedisServer

ENDLESS = 1_000_000
SIZE = (500, 80_000)
"""Bytes after which a connection is cut."""

HOP_SIZE = (20_000, 1_000_000)
"""The same between the door and the gateway: each connection there serves many clients."""

DISTURBED_EVERY = (1.0, 5.0)
"""Seconds between two parts that are disturbed."""

PLACES = ("wss", "tcp", "unix", "door")
"""Places where editors connect: transports of the gateway with the agents, and the door."""

NODE = "node"
"""The name of the gateway at the door."""

SETTLING = 120.0
"""Seconds in which all must have everything once nothing fails any more."""

SCOPES = {"mine": "identity", "ours": "shared", "alone": "connection"}


@dataclass(eq=False)
class Editor:
    """An editor with a shim, and what it was told of its session."""

    name: str
    command: list[str]
    version: int = 1
    process: trio.Process | None = None
    session: str = ""
    history: str = ""
    """The session's id at the gateway with the agent."""
    seen: list[int | None] = field(default_factory=list)
    """Numbers of updates; None for a line that says that something is missing."""
    answers: dict[int, dict[str, Any]] = field(default_factory=dict)
    ends: list[dict[str, Any]] = field(default_factory=list)
    """States of version 2 that ended turns."""
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
            elif update.get("state") == "idle":
                self.ends.append(update)
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
            said: dict[str, Any] = {"info": {"name": "soak", "version": "1"}, "capabilities": {}}
            answer = await self.ask("initialize", protocolVersion=self.version, **(said if self.version == 2 else {}))
            if "result" in answer or "already" in str(answer):
                self.seen.clear()
                if self.version == 2 and method == "session/load":
                    method, params = "session/resume", {**params, "replayFrom": {"type": "start"}}
                answer = await self.ask(method, cwd="/", mcpServers=[], **params)
        self.session = params.get("sessionId") or answer["result"]["sessionId"]
        self.history = self.session.removeprefix(f"{NODE}/")

    async def prompt(self, count: int, at_once: int) -> dict[str, Any]:
        """Prompt, and return the answer with the reason for the end of the turn."""
        prompt, before = [{"type": "text", "text": f"{count} {at_once}"}], len(self.ends)
        answer = await self.ask("session/prompt", sessionId=self.session, prompt=prompt)
        if self.version == 1 or "result" not in answer:
            return answer
        while len(self.ends) == before:
            await self.change.wait()
        return {"result": {"stopReason": self.ends[-1].get("stopReason")}}


@dataclass
class Report:
    """The result of a soak: counts of what it did, and what was wrong."""

    seed: int
    seconds: float
    cuts: int = 0
    disturbed: Counter[str] = field(default_factory=Counter)
    """Times that each part was killed, stopped or hung."""
    sessions: int = 0
    viewers: int = 0
    updates: int = 0
    gaps: int = 0
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        wrong = "".join(f"\n  {fault}" for fault in self.faults)
        disturbed = ", ".join(f"{what} {count}" for what, count in sorted(self.disturbed.items()))
        return (
            f"soak of {self.seconds:.0f} s with seed {self.seed}: {self.cuts} cuts, {self.disturbed.total()} "
            f"disturbances ({disturbed}), {self.viewers} viewers of {self.sessions} sessions, {self.updates} updates "
            f"in their histories, {self.gaps} lines of gaps; {len(self.faults)} faults{wrong}"
        )


class Soak:
    """All parts, and all clients."""

    def __init__(
        self, directory: Path, seed: int, seconds: float, stack: ExitStack, places: Sequence[str] = PLACES
    ) -> None:
        self.report = Report(seed, seconds)
        self.places = places
        self.chance = random.Random(seed)  # noqa: S311 # It is meant to be the same again.
        self.directory = directory
        self.ports = {place: free_port() for place in ("wss", "tcp", "door")}
        self.redis = stack.enter_context(RedisServer()) if has_redis() else None
        self.token_file = directory / "cluster.token"
        if self.redis is not None:
            run_program("token", "cluster", "--output", str(self.token_file))
        agents = ""
        for agent, scope in SCOPES.items():
            for replays in ("", "all"):
                home = directory / f"{agent}{replays}"
                home.mkdir()
                version = self.chance.choice("12")
                command = [sys.executable, "-I", "-S", str(AGENTS / "soaking_agent.py"), str(home), replays, version]
                agents += f'[agents.{home.name}]\ncommand = {json.dumps(command)}\nscope = "{scope}"\n'
        self._stack = stack
        self._agents = agents
        self.editors: list[Editor] = []
        self.owners: list[Editor] = []
        self.settled: set[str] = set()
        """The histories of the sessions whose viewers were compared."""

    def start(self) -> None:
        """Start the gateways, which are ended with the stack."""
        hop = self.proxies["hop"].port
        self.node = Machine(
            self.directory / NODE,
            self._agents + self._cluster(NODE, f"wss://127.0.0.1:{hop}"),
            'default_agent = "mine"',
            {"wss": self.ports["wss"], "tcp": self.ports["tcp"]},
        )
        self._stack.callback(self.node.end)
        sections = self._cluster("door", "wss://127.0.0.1:1") or (
            f'[nodes.{NODE}]\nurl = "wss://127.0.0.1:{hop}"\npin = "{self.node.pin}"\n'
            f'token_file = "{self.node.gateway.token_file}"\n'
        )
        more = f'default_agent = "{NODE}/mine"'
        self.front = Machine(self.directory / "door", sections, more, {"tcp": self.ports["door"]})
        self._stack.callback(self.front.end)

    def _cluster(self, name: str, advertise: str) -> str:
        """Return the section of a node in the cluster; empty without Redis."""
        if self.redis is None:
            return ""
        return (
            f'[cluster]\nurl = "{self.redis.url}"\nname = "{name}"\ntoken_file = "{self.token_file}"\n'
            f'advertise = "{advertise}"\n'
        )

    async def run(self) -> Report:
        """All of it."""
        async with trio.open_nursery() as nursery:
            self.proxies: dict[str, FaultyProxy] = {}
            for place, port in {**self.ports, "hop": self.ports["wss"]}.items():
                size = HOP_SIZE if place == "hop" else SIZE
                proxy = FaultyProxy(port, seed=self.report.seed, cuts=ENDLESS, size=size)
                await nursery.start(proxy.run)
                self.proxies[place] = proxy
            await trio.to_thread.run_sync(self.start)
            for machine in (self.node, self.front):
                nursery.start_soon(machine.read_log)
            async with trio.open_nursery() as disturbing:
                disturbing.start_soon(self.disturb_again_and_again)
                for agent in SCOPES:
                    for replays in ("", "all"):
                        disturbing.start_soon(self.people, nursery, f"{agent}{replays}")
                await trio.sleep(self.report.seconds)
                # On a busy machine the first viewer comes later.
                with trio.move_on_after(SETTLING):
                    while not (self.report.disturbed and self.has_onlookers):  # noqa: ASYNC110 - for some seconds
                        await trio.sleep(0.1)
                disturbing.cancel_scope.cancel()
            for proxy in self.proxies.values():
                self.report.cuts += len(proxy.happened)
                vars(proxy)["_cuts"] = 0
            with trio.move_on_after(SETTLING) as settling:
                await self.settle()
            if settling.cancelled_caught:
                waiting = ", ".join(owner.name for owner in self.owners if owner.history not in self.settled)
                self.report.faults.append(f"not settled within {SETTLING} s: editor {waiting}")
            nursery.cancel_scope.cancel()
        return self.report

    # What happens

    @property
    def has_onlookers(self) -> bool:
        """Return whether a session has a viewer besides its owner."""
        return any(editor.history for editor in self.editors if editor not in self.owners)

    async def people(self, nursery: trio.Nursery, agent: str) -> None:
        """One session, its owner, who prompts without end, and those who look on."""
        # A session of a connection's own agent belongs to the door's link, which does not outlive the door.
        own = SCOPES[agent.removesuffix("all")] == "connection"
        transports = self.chance.sample([place for place in self.places if not own or place != "door"], 3)
        owner = await self.editor(nursery, agent, transports[0])
        await owner.open()
        self.owners.append(owner)
        async with trio.open_nursery() as all_of_them:
            all_of_them.start_soon(self.prompt_without_end, owner)
            for transport in transports[1:]:
                all_of_them.start_soon(self.look_on, nursery, agent, transport, owner.history)

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
        gateway, own = (self.front.gateway, "tcp") if transport == "door" else (self.node.gateway, transport)
        named = f"{NODE}/{agent}" if transport == "door" else agent
        command = gateway.connect_command(own, "--agent", named, "--log-file", str(log), *options)
        if transport in self.proxies:
            port, via = self.ports[transport], self.proxies[transport].port
            command = [word.replace(f":{port}", f":{via}") for word in command]
        # Some are as slow to come back as the program is, so that several kills pass until then.
        hurried = [sys.executable, str(AGENTS / "hurried.py"), os.devnull]
        program = hurried if self.chance.random() < 0.6 else PROGRAM
        version = self.chance.choice([1, 2])
        name = f"{number} ({agent} {transport} version {version} {' '.join(options)})"
        editor = Editor(name, [*program, *command[len(PROGRAM) :]], version)
        self.editors.append(editor)
        await nursery.start(editor.run)
        return editor

    async def disturb_again_and_again(self) -> None:
        await trio.sleep(5)
        parts = ["gateway", "gateway", "mark", "door", "door", "agent", *([] if self.redis is None else ["redis"])]
        while True:
            await trio.sleep(self.chance.uniform(*DISTURBED_EVERY))
            part = self.chance.choice(parts)
            how: str | None
            if part == "agent":
                how = kill_agent(self.node, self.chance)
            elif part == "mark":
                how = await self.restart_before_a_mark()
            elif part == "redis":
                assert self.redis is not None
                how = await disturb_redis(self.redis, self.chance)
            else:
                how = await (self.front if part == "door" else self.node).disturb(self.chance)
            if how is not None:
                self.report.disturbed[f"{part} {how}"] += 1

    async def restart_before_a_mark(self) -> str:
        """Cut connections in the clear before their next mark, and start the gateway again before they get one."""
        proxy = self.proxies["tcp"]
        proxy.cuts_before = b'"positions"'
        try:
            await trio.sleep(self.chance.uniform(0.1, 1))
            return await self.node.disturb(self.chance, ("killed", "stopped"))
        finally:
            proxy.cuts_before = b""

    # What must have come of it

    async def settle(self) -> None:
        """Each owner says something once more; who has that has everything."""
        async with trio.open_nursery() as nursery:
            for owner in self.owners:
                nursery.start_soon(self.settle_session, owner)

    async def settle_session(self, owner: Editor) -> None:
        viewers = [editor for editor in self.editors if editor.history == owner.history]
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
        self.settled.add(owner.history)
        for viewer in viewers:
            self.report.gaps += viewer.seen.count(None)
            ended = "" if viewer.process is None or viewer.process.poll() is None else ", and its shim has ended"
            self.report.faults += [f"editor {viewer.name}: {fault}{ended}" for fault in faults_of(viewer.seen, truth)]

    def history(self, owner: Editor) -> list[int]:
        """Return the gateway's history of a session, as a stock client is sent it."""
        agent = owner.command[owner.command.index("--agent") + 1].removeprefix(f"{NODE}/")
        found: list[int] = []
        requests: list[dict[str, Any]] = [
            {"method": "_acp-gateway/hello", "params": {"token": self.node.gateway.token, "agent": agent}},
            {"method": "initialize", "params": {"protocolVersion": 1}},
            {"method": "session/load", "params": {"sessionId": owner.history, "cwd": "/", "mcpServers": []}},
        ]
        if agent.startswith("alone"):
            requests[0]["params"] |= {"session": owner.history}
            requests[2] = {"method": "session/new", "params": {"cwd": "/", "mcpServers": []}}
        with (
            socket.create_connection(("127.0.0.1", self.ports["tcp"]), 30) as connection,
            connection.makefile("rwb") as file,
        ):
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


def soak(directory: Path, seed: int, seconds: float, places: Sequence[str] = PLACES) -> Report:
    """Run a soak in an empty directory."""
    with ExitStack() as stack:
        return trio.run(Soak(directory, seed, seconds, stack, places).run)


def main() -> int:
    """Return the exit code: 1 where something was found."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else secrets.randbelow(2**32)
    directory = tempfile.mkdtemp(prefix="acp-soak-")
    sys.stdout.write(f"soak in {directory}, seed {seed}\n")
    sys.stdout.flush()
    report = soak(Path(directory), seed, seconds)
    sys.stdout.write(f"{report}\n")
    if report.faults:
        sys.stdout.write(f"the logs of all parts are kept in {directory}\n")
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
