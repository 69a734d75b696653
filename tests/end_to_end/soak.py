"""A soak: editors on sessions of all scopes over all transports, cut at random, while all parts are killed and hang.

Editors and agents speak either version of the protocol, at random.

The parts are a gateway with agents, a door that leads to it, the agents, and Redis, which has the directory of both
where it is installed; else the door's configuration names the gateway. A box with agents lends connections to the door,
and clients are killed as well.

At the end each viewer is held against the history of its session: what it saw, in order and once, and what it was told
is missing must be all of it. The history is held against the agent's own count. A prompt has the end of its turn,
unless its gateway or agent was killed before that.

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
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from acp_gateway.security.token_store import TokenStore
from tests.end_to_end.soak_machines import Machine, disturb_redis, has_redis, kill_agent
from tests.kit.faulty_proxy import FaultyProxy
from tests.kit.free_ports import free_port
from tests.kit.redis_server import RedisServer
from tests.kit.running import AGENTS, ENVIRONMENT, PROGRAM, run_program
from tests.kit.seen import faults_of

ENDLESS = 1_000_000
SIZE = (500, 80_000)
"""Bytes after which a connection is cut."""

HOP_SIZE = (20_000, 1_000_000)
"""The same between the door and the gateway: each connection there serves many clients."""

DISTURBED_EVERY = (1.0, 5.0)
"""Seconds between two parts that are disturbed."""

PLACES = ("wss", "tcp", "unix", "door", "lent")
"""Places where editors connect: transports of the gateway with the agents, and the door, which leads to that and over
lent connections to the box."""

NODE = "node"
BOX = "box"
"""Names of the gateway and of the box at the door."""

AT_BOX = ("mine", "oursall")
"""Agents that the box has."""

SETTLING = 60.0
"""Seconds after the last failure in which all must have everything and be answered: links are resumed within seconds,
so that a minute is for the slowest machine."""

COMPARING = 10.0
"""The last of these seconds, in which what a viewer still lacks is compared and told."""

SCOPES = {"mine": "identity", "ours": "shared", "alone": "connection"}


@dataclass(eq=False)
class Editor:
    """An editor with a shim, and what it was told of its session."""

    name: str
    command: list[str]
    version: int = 1
    machine: str = NODE
    """Name of the gateway with its agent."""
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
    asked: set[int] = field(default_factory=set)
    """Ids of its requests that are open."""
    former: list[list[int | None]] = field(default_factory=list)
    """The updates that its killed shims have seen."""
    kills: int = 0
    change: trio.Event = field(default_factory=trio.Event)
    _is_killed: bool = False
    _opened: dict[str, Any] = field(default_factory=dict)
    """The call of `open` that has opened the session again; empty while its shim has none."""
    _wanted: dict[str, Any] = field(default_factory=dict)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Read until cancelled. A shim that was killed, or ends before it has had a session, is started again."""
        self.process = None
        async with trio.open_nursery() as nursery:
            while self.process is None or not self.is_open:
                was_killed, self._is_killed = self._is_killed, False
                if was_killed:
                    nursery.start_soon(self._open_again)
                await self.run_once(task_status if self.process is None else trio.TASK_STATUS_IGNORED)
                self.answers |= {asked: {"error": "the shim has ended"} for asked in self.asked}
                self.change.set()
                self.change = trio.Event()
                await trio.sleep(0.2)

    @property
    def is_open(self) -> bool:
        """True while its shim has the session."""
        return bool(self._opened)

    def kill(self) -> bool:
        """Kill the shim, which is started again and opens the session as another client; False if it has none."""
        if self._opened and not self._is_killed and self.process is not None and self.process.poll() is None:
            self._is_killed, self._opened, self._wanted = True, {}, self._opened
            self.kills += 1
            self.former.append(self.seen)
            self.seen = []
            self.process.kill()
            return True
        return False

    async def _open_again(self) -> None:
        before = self.process
        while self.process is before:  # noqa: ASYNC110 - for some milliseconds
            await trio.sleep(0.01)
        await self.open(**self._wanted)

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
            # The ends before it are those of earlier turns.
            self.answers[message["id"]] = message | {"ends": len(self.ends)}

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdin is not None
        self.last_id += 1
        own = self.last_id
        message = {"jsonrpc": "2.0", "id": own, "method": method, "params": params}
        self.asked.add(own)
        try:
            await self.process.stdin.send_all(json.dumps(message).encode() + b"\n")
            while own not in self.answers:
                await self.change.wait()
            return self.answers.pop(own)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            if self.session and not self.kills:
                raise
            return {"error": "the shim has ended"}
        finally:
            self.asked.discard(own)

    async def open(self, method: str = "session/new", **params: Any) -> None:
        """Come to have a session, however often that is disturbed."""
        how = {"method": method, **params}
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
        self.history = self.session
        if "--attach" not in self.command:
            how = {"method": "session/load", "sessionId": self.session}
        self._opened = how

    async def prompt(self, count: int, at_once: int) -> dict[str, Any]:
        """Prompt, and return the answer with the reason for the end of the turn."""
        prompt = [{"type": "text", "text": f"{count} {at_once}"}]
        answer = await self.ask("session/prompt", sessionId=self.session, prompt=prompt)
        if self.version == 1 or "result" not in answer:
            return answer
        while len(self.ends) == answer["ends"]:
            await self.change.wait()
        return {"result": self.ends[answer["ends"]]}


@dataclass
class Report:
    """The result of a soak: counts of what it did, and what was wrong."""

    seed: int
    seconds: float
    cuts: int = 0
    prompts: int = 0
    kept: int = 0
    """Prompts, and those whose gateway, agent and client lived on: each of these has the end of its turn."""
    disturbed: Counter[str] = field(default_factory=Counter)
    """Times that each part was killed, stopped or hung."""
    sessions: int = 0
    viewers: int = 0
    updates: int = 0
    gaps: int = 0
    settling: float = 0.0
    """Seconds until all had everything, or what they lacked was compared."""
    late: list[str] = field(default_factory=list)
    """Viewers that lacked the last update then."""
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        wrong = "".join(f"\n  {fault}" for fault in self.faults)
        kills = sum(count for what, count in self.disturbed.items() if what.endswith(" killed"))
        disturbed = ", ".join(f"{what} {count}" for what, count in sorted(self.disturbed.items()))
        return (
            f"soak of {self.seconds:.0f} s with seed {self.seed}: {self.cuts} cuts, {kills} kills, "
            f"{self.disturbed.total()} disturbances ({disturbed}), settled in {self.settling:.1f} s "
            f"but for {', '.join(self.late) or 'none'}; {self.viewers} viewers of {self.sessions} sessions, "
            f"{self.updates} updates in their histories, {self.gaps} lines of gaps, {self.prompts} prompts, "
            f"{self.kept} of them undisturbed; {len(self.faults)} faults{wrong}"
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
        self.ports = {place: free_port() for place in ("wss", "tcp", "door", "lent")}
        self.history_ports = {NODE: self.ports["tcp"], BOX: free_port()}
        # Times that each gateway with agents, or one of these, was ended.
        self.ends: Counter[str] = Counter()
        # The same that is being stopped now: until that is done it takes prompts, which may have no end of the agent.
        self.ending: set[str] = set()
        self.redis = stack.enter_context(RedisServer()) if has_redis() else None
        self.token_file = directory / "cluster.token"
        if self.redis is not None:
            run_program("token", "cluster", "--output", str(self.token_file))
        self._stack = stack
        names = [f"{agent}{replays}" for agent in SCOPES for replays in ("", "all")]
        self._agents = {machine: self._sections(machine, found) for machine, found in ((NODE, names), (BOX, AT_BOX))}
        self.editors: list[Editor] = []
        self.owners: list[Editor] = []
        self.settled: set[str] = set()
        """The histories of the sessions whose viewers were compared."""

    def _sections(self, machine: str, names: Sequence[str]) -> str:
        """Return the sections of the agents of a gateway, whose sessions are in files."""
        sections = ""
        for name in names:
            home = self._home(machine, name)
            home.mkdir(parents=True)
            replays, version = "all" if name.endswith("all") else "", self.chance.choice("12")
            command = [sys.executable, "-I", "-S", str(AGENTS / "soaking_agent.py"), str(home), replays, version]
            scope = SCOPES[name.removesuffix("all")]
            sections += f'[agents.{name}]\ncommand = {json.dumps(command)}\nscope = "{scope}"\n'
        return sections

    def _home(self, machine: str, agent: str) -> Path:
        return self.directory / "agents" / machine / agent

    def start(self) -> None:
        """Start the gateways, which are ended with the stack."""
        hop = self.proxies["hop"].port
        self.node = Machine(
            self.directory / NODE,
            self._agents[NODE] + self._cluster(NODE, f"wss://127.0.0.1:{hop}"),
            'default_agent = "mine"',
            {"wss": self.ports["wss"], "tcp": self.ports["tcp"]},
        )
        self._stack.callback(self.node.end)
        sections = self._cluster("door", "wss://127.0.0.1:1") or (
            f'[nodes.{NODE}]\nurl = "wss://127.0.0.1:{hop}"\npin = "{self.node.pin}"\n'
            f'token_file = "{self.node.gateway.token_file}"\n'
        )
        more = f'default_agent = "{NODE}/mine"'
        ports = {"tcp": self.ports["door"], "wss": self.ports["lent"]}
        self.front = Machine(self.directory / "door", sections, more, ports)
        self._stack.callback(self.front.end)
        self.machines = {NODE: self.node, "door": self.front}
        if "lent" in self.places:
            self.machines[BOX] = Machine(
                self.directory / BOX,
                f'{self._agents[BOX]}[doors.home]\nurl = "wss://127.0.0.1:{self.proxies["lent"].port}"\n'
                f'pin = "{self.front.pin}"\ntoken_file = "{self._token_of_box()}"\n',
                'default_agent = "mine"',
                {"tcp": self.history_ports[BOX]},
            )
            self._stack.callback(self.machines[BOX].end)

    def _token_of_box(self) -> Path:
        """Make the token by which the box lends connections."""
        state = self.front.gateway.directory / "state"
        state.mkdir(exist_ok=True)
        path = self.directory / "box.token"
        path.touch(0o600)
        path.write_text(TokenStore(state).create(f"node {BOX}", None, None, role="node", nodes=[BOX])[1])
        return path

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
                size = HOP_SIZE if place in ("hop", "lent") else SIZE
                proxy = FaultyProxy(port, seed=self.report.seed, cuts=ENDLESS, size=size)
                await nursery.start(proxy.run)
                self.proxies[place] = proxy
            await trio.to_thread.run_sync(self.start)
            for machine in self.machines.values():
                nursery.start_soon(machine.read_log)
            async with trio.open_nursery() as disturbing:
                disturbing.start_soon(self.disturb_again_and_again)
                for agent in SCOPES:
                    for replays in ("", "all"):
                        disturbing.start_soon(self.people, nursery, f"{agent}{replays}")
                if BOX in self.machines:
                    for agent in AT_BOX:
                        disturbing.start_soon(self.people, nursery, agent, BOX)
                await trio.sleep(self.report.seconds)
                # On a busy machine the first viewer comes later.
                with trio.move_on_after(SETTLING):
                    while not (self.report.disturbed and self.has_onlookers):  # noqa: ASYNC110 - for some seconds
                        await trio.sleep(0.1)
                disturbing.cancel_scope.cancel()
            for proxy in self.proxies.values():
                self.report.cuts += len(proxy.happened)
                vars(proxy)["_cuts"] = 0
            began = trio.current_time()
            with trio.move_on_after(SETTLING) as settling:
                await self.settle(began + SETTLING - COMPARING)
            self.report.settling = trio.current_time() - began
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

    async def people(self, nursery: trio.Nursery, agent: str, machine: str = NODE) -> None:
        """One session, its owner, who prompts without end, and those who look on."""
        # A session of a connection's own agent belongs to the door's link, which does not outlive the door.
        own = SCOPES[agent.removesuffix("all")] == "connection"
        places = [place for place in self.places if place != "lent" and not (own and place == "door")]
        transports = self.chance.sample(places if machine == NODE else ["lent", "lent", "unix"], 3)
        owner = await self.editor(nursery, agent, transports[0], machine)
        await owner.open()
        self.owners.append(owner)
        async with trio.open_nursery() as all_of_them:
            all_of_them.start_soon(self.prompt_without_end, owner)
            for transport in transports[1:]:
                all_of_them.start_soon(self.look_on, nursery, agent, transport, machine, owner.history)

    async def prompt_without_end(self, owner: Editor) -> None:
        while True:
            while not owner.is_open:  # noqa: ASYNC110 - after it was killed
                await trio.sleep(0.05)
            before, was_ending = (self.ends[owner.machine], owner.kills), owner.machine in self.ending
            answer = await owner.prompt(self.chance.choice([10, 200, 1000]), self.chance.choice([1, 3, 20]))
            self.report.prompts += 1
            # An agent that was killed takes prompts until its gateway notices.
            is_same = before == (self.ends[owner.machine], owner.kills)
            if is_same and not was_ending and "agent_ended" not in str(answer):
                self.report.kept += 1
                if answer.get("result", {}).get("stopReason") != "end_turn":
                    self.report.faults.append(f"editor {owner.name}: a prompt was answered with {answer}")
            await trio.sleep(self.chance.uniform(0, 0.1))

    async def look_on(self, nursery: trio.Nursery, agent: str, transport: str, machine: str, session: str) -> None:
        await trio.sleep(self.chance.uniform(0, 3))
        observes = ["--observe"] if self.chance.random() < 0.5 else []
        if SCOPES[agent.removesuffix("all")] == "connection":
            # Who may open it would be its owner's rival: each has a process of its own.
            viewer = await self.editor(nursery, agent, transport, machine, "--attach", session, "--observe")
            await viewer.open()
        else:
            viewer = await self.editor(nursery, agent, transport, machine, *observes)
            await viewer.open("session/load", sessionId=session)

    async def editor(self, nursery: trio.Nursery, agent: str, transport: str, machine: str, *options: str) -> Editor:
        number = len(self.editors)
        log = self.directory / f"shim-{number}.log"
        leads = transport in ("door", "lent")
        gateway, own = (self.front.gateway, "tcp") if leads else (self.machines[machine].gateway, transport)
        named = f"{machine}/{agent}" if leads else agent
        command = gateway.connect_command(own, "--agent", named, "--log-file", str(log), *options)
        at = "door" if leads else transport
        if at in self.proxies:
            port, via = self.ports[at], self.proxies[at].port
            command = [word.replace(f":{port}", f":{via}") for word in command]
        # Some are as slow to come back as the program is, so that several kills pass until then.
        hurried = [sys.executable, str(AGENTS / "hurried.py"), os.devnull]
        program = hurried if self.chance.random() < 0.6 else PROGRAM
        version = self.chance.choice([1, 2])
        name = f"{number} ({agent} {transport} version {version} {' '.join(options)})"
        editor = Editor(name, [*program, *command[len(PROGRAM) :]], version, machine)
        self.editors.append(editor)
        await nursery.start(editor.run)
        return editor

    async def disturb_again_and_again(self) -> None:
        await trio.sleep(5)
        parts = ["gateway", "gateway", "mark", "door", "door", "agent", *([] if self.redis is None else ["redis"])]
        if BOX in self.machines:
            parts += ["box", "lent", "lent", "client", "client", "client", "client"]
        while True:
            await trio.sleep(self.chance.uniform(*DISTURBED_EVERY))
            part = self.chance.choice(parts)
            how: str | None
            if part == "agent":
                machine = self.chance.choice([name for name in self.machines if name != "door"])
                self.ends[machine] += 1
                how = kill_agent(self.machines[machine], self.chance)
            elif part == "mark":
                how = await self.restart_before_a_mark()
            elif part == "client":
                how = "killed" if self.chance.choice(self.editors).kill() else None
            elif part == "lent":
                # The outgoing connections of the box.
                self.proxies["lent"].cut()
                how = "cut"
            elif part == "redis":
                assert self.redis is not None
                how = await disturb_redis(self.redis, self.chance)
            else:
                how = await self.disturb_machine({"gateway": NODE}.get(part, part))
            if how is not None:
                self.report.disturbed[f"{part} {how}"] += 1

    async def restart_before_a_mark(self) -> str:
        """Cut connections in the clear before their next mark, and start the gateway again before they get one."""
        proxy = self.proxies["tcp"]
        proxy.cuts_before = b'"positions"'
        try:
            await trio.sleep(self.chance.uniform(0.1, 1))
            return await self.disturb_machine(NODE, "killed", "stopped")
        finally:
            proxy.cuts_before = b""

    async def disturb_machine(self, name: str, *ways: str) -> str:
        """Disturb a gateway, in one of some ways, and note that its turns may have ended."""
        self.ends[name] += 1
        self.ending.add(name)
        try:
            return await self.machines[name].disturb(self.chance, *([ways] if ways else []))
        finally:
            self.ending.discard(name)
            self.ends[name] += 1

    # What must have come of it

    async def settle(self, deadline: float) -> None:
        """Each owner says something once more; who has that has everything, and has it until the deadline."""
        async with trio.open_nursery() as nursery:
            for owner in self.owners:
                nursery.start_soon(self.settle_session, owner, deadline)

    async def settle_session(self, owner: Editor, deadline: float) -> None:
        viewers = [editor for editor in self.editors if editor.history == owner.history]
        while not all(viewer.is_open for viewer in viewers):  # noqa: ASYNC110 - some were killed
            await trio.sleep(0.05)
        while (await owner.prompt(1, 1)).get("result", {}).get("stopReason") != "end_turn":  # noqa: ASYNC110 - it asks
            await trio.sleep(0.1)
        last = max(number for number in owner.seen if number is not None)
        truth = await trio.to_thread.run_sync(self.history, owner, last)
        agent = owner.command[owner.command.index("--agent") + 1].rpartition("/")[2]
        said = (self._home(owner.machine, agent) / f"{owner.history}.said").stat().st_size
        if [last] != [said] or truth[-1:] != [said]:
            text = f"{said} were said, {last} was seen last, and the history ends with {truth[-1:]}"
            self.report.faults.append(f"editor {owner.name}: {text}")
        self.report.sessions += 1
        self.report.viewers += len(viewers)
        self.report.updates += len(truth)
        with trio.move_on_at(deadline):
            for viewer in viewers:
                while last not in viewer.seen[-50:]:
                    await viewer.change.wait()
        self.settled.add(owner.history)
        self.report.late += [viewer.name for viewer in viewers if last not in viewer.seen[-50:]]
        for viewer in viewers:
            self.report.gaps += viewer.seen.count(None)
            ended = "" if viewer.process is None or viewer.process.poll() is None else ", and its shim has ended"
            self.report.faults += [f"editor {viewer.name}: {fault}{ended}" for fault in faults_of(viewer.seen, truth)]
            for seen in viewer.former:
                known = max((number for number in seen if number is not None), default=0)
                faults = faults_of(seen, [number for number in truth if number <= known])
                self.report.faults += [f"editor {viewer.name}, before it was killed: {fault}" for fault in faults]

    def history(self, owner: Editor, last: int) -> list[int]:
        """Return the gateway's history of a session to this number, as a stock client is sent it."""
        agent = owner.command[owner.command.index("--agent") + 1].rpartition("/")[2]
        found: list[int] = []
        requests: list[dict[str, Any]] = [
            {
                "method": "_acp-gateway/hello",
                "params": {"token": self.machines[owner.machine].gateway.token, "agent": agent},
            },
            {"method": "initialize", "params": {"protocolVersion": 1}},
            {"method": "session/load", "params": {"sessionId": owner.history, "cwd": "/", "mcpServers": []}},
        ]
        if agent.startswith("alone"):
            requests[0]["params"] |= {"session": owner.history}
            requests[2] = {"method": "session/new", "params": {"cwd": "/", "mcpServers": []}}
        with (
            socket.create_connection(("127.0.0.1", self.history_ports[owner.machine]), 30) as connection,
            connection.makefile("rwb") as file,
        ):
            for request in requests:
                file.write(json.dumps({"jsonrpc": "2.0", "id": 1} | request).encode() + b"\n")
                file.flush()
                while "id" not in (message := json.loads(file.readline())):
                    found += _numbers(message)
                if "error" in message:
                    raise AssertionError(message)
            # Behind the response to `session/new`. Another end than the expected one is told by who compares it.
            with suppress(TimeoutError):
                while found[-1:] != [last]:
                    found += _numbers(json.loads(file.readline()))
        return found


def _numbers(message: dict[str, Any]) -> list[int]:
    """Return the number of an update of the agent; nothing for any other message."""
    update = message["params"].get("update", {})
    text = update.get("content", {}).get("text", "")
    is_own = update.get("sessionUpdate") == "agent_message_chunk" and not text.startswith("[acp-gateway: ")
    return [int(text.split()[0])] if is_own else []


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
