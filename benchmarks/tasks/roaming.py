"""Pause of a message after its path has died silently, and what faults that pass cost.

A proxy stands between `connect`, or a page, and the gateway. It lets connections die without a sign, or delays and
slows them. Each prompt has a number, which the agent says once: every number must come back once, and in order. More
is tried in virtual time (`benchmarks.virtual_cases`).
"""

import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.installing import PAGE, Programs
from benchmarks.measuring import Bench, Section, Target, percentile
from benchmarks.processes import wait_for_line
from benchmarks.relays import PROGRAM, UNTHROTTLED, Running, our_gateway, run_ours
from benchmarks.tasks.page import CALL, base, signed_in, started
from benchmarks.virtual_cases import BAD_PATHS, FAR, HOUR, SITUATIONS, Hour, bad_path, die_often, pauses_of, within
from benchmarks.virtual_roaming import simulate

TASK: Final = "roaming"

AGENT: Final = Path(__file__).parent.parent / "peers" / "roaming_agent.py"

STEPS: Final = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 60.0)
"""Upper ends of the columns of a histogram, in seconds."""

HOST: Final = "10.213.47.1"
"""Address of this machine for a client in a namespace of its own."""

STOPPED: Final = 3.0
"""Seconds for which a process is stopped."""

FIRST: Final = "the path dies, a prompt is sent"
BETWEEN: Final = "the path between two gateways dies, a prompt is sent"
AWAKE: Final = f"the path dies, `connect` is stopped for {STOPPED:g} s"
JUMPED: Final = "the path dies, the time of day jumps, a prompt is sent"
MOVED: Final = "another address"
BACK: Final = "the network is back with the same address"
WATCHED: Final = "the path of `watch` dies, the agent speaks a second later"
TYPED: Final = "a page whose path dies, a prompt is typed"

BOUNDS: Final = {
    FIRST: 1.25,
    BETWEEN: 1.25,
    AWAKE: 1.25,
    JUMPED: 0.55,
    MOVED: 1.25,
    BACK: 1.25,
    WATCHED: 2.75,
    TYPED: 2.0,
}
"""Seconds of the longest pause of 95 in a hundred, with a quarter of a second for a busy machine; on a page, another
one until it has drawn."""

READ: Final = 65536


@dataclass(eq=False)
class Way:
    """One connection through the proxy."""

    dead_up: bool = False
    """True once nothing reaches the gateway."""
    dead_down: bool = False
    """True once nothing reaches the client."""


@dataclass
class Proxy:
    """A TCP proxy with faults."""

    target: tuple[str, int]
    delay: float = 0.0
    """Seconds that each piece is late."""
    rate: float = 0.0
    """Bytes per second to the gateway; 0 for no limit."""
    paths: list[Way] = field(default_factory=list)

    def serve(self, listener: socket.socket) -> None:
        """Accept connections until the listener is closed."""
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            gateway = socket.create_connection(self.target)
            path = Way()
            self.paths.append(path)
            for source, sink, up in ((client, gateway, True), (gateway, client, False)):
                threading.Thread(target=self._pass_on, args=(path, source, sink, up), daemon=True).start()

    def _pass_on(self, path: Way, source: socket.socket, sink: socket.socket, up: bool) -> None:  # noqa: FBT001
        try:
            while data := source.recv(4096 if self.rate else READ):
                if self.delay:
                    time.sleep(self.delay)
                if up and self.rate:
                    time.sleep(len(data) / self.rate)
                if not (path.dead_up if up else path.dead_down):
                    sink.sendall(data)
            if not (path.dead_up or path.dead_down):
                sink.shutdown(socket.SHUT_WR)
        except OSError:
            for end in (source, sink):
                end.close()

    def kill(self, *, up: bool = True, down: bool = True) -> None:
        """Let the present connections die."""
        for path in self.paths:
            path.dead_up |= up
            path.dead_down |= down


class Editor:
    """An editor with one session."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self.pid = process.pid
        self._id = 0
        self.texts: list[str] = []
        """Texts of the agent."""

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a request and return the result."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._id += 1
        message = {"jsonrpc": "2.0", "id": self._id, "method": method, "params": params}
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()
        while True:
            answer = json.loads(self._process.stdout.readline())
            if answer.get("method") == "session/update":
                self.texts.append(answer["params"]["update"]["content"]["text"])
            elif answer.get("id") == self._id:
                result: dict[str, Any] = answer["result"]
                return result

    def prompt(self, session: str, text: str, padding: int = 0) -> float:
        """Send a prompt and return the seconds until its turn is over."""
        content = [{"type": "text", "text": text + " " * padding}]
        began = time.perf_counter()
        self.ask("session/prompt", sessionId=session, prompt=content)
        return time.perf_counter() - began


@contextmanager
def proxied(running: Running, host: str = "127.0.0.1") -> Iterator[tuple[Proxy, int]]:
    """Run a proxy in front of a gateway; return it and its port."""
    gateway, _, port = running.endpoint.address.partition("/")[0].rpartition(":")
    proxy = Proxy((gateway, int(port)))
    with closing(socket.create_server((host, 0))) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, READ)
        threading.Thread(target=proxy.serve, args=(listener,), daemon=True).start()
        yield proxy, listener.getsockname()[1]


@contextmanager
def roaming(
    running: Running, host: str = "127.0.0.1", before: Sequence[str] = (), **environment: str
) -> Iterator[tuple[Proxy, Editor, str]]:
    """Run `connect` through a proxy; return the proxy, the editor and its session.

    `before` stands before the command, and `environment` adds to that of the program.
    """
    with ExitStack() as stack:
        proxy, port = stack.enter_context(proxied(running, host))
        plain = [] if host == "127.0.0.1" else ["--insecure-plaintext"]
        scheme = "tcp" if running.endpoint.kind == "lines" else "ws"
        command = [*before, *PROGRAM, "connect", f"{scheme}://{host}:{port}", *plain]
        command += ["--token-file", str(running.directory / "token")]
        pipe = subprocess.PIPE
        process = stack.enter_context(
            subprocess.Popen(command, stdin=pipe, stdout=pipe, env={**os.environ, **environment})
        )
        stack.callback(process.terminate)
        editor = Editor(process)
        editor.ask("initialize", protocolVersion=1, clientCapabilities={})
        session = editor.ask("session/new", cwd="/", mcpServers=[])["sessionId"]
        yield proxy, editor, session


def check(editor: Editor, count: int) -> int:
    """Return how many of the numbers were lost, came twice or in another order."""
    expected = [str(number) for number in range(count)]
    return 0 if editor.texts == expected else max(1, len(set(expected) ^ set(editor.texts)))


class Case(NamedTuple):
    """Results of a case."""

    pauses: list[float]
    """Seconds."""
    wrong: int
    """Messages that were lost, came twice or in another order."""
    connections: int


def deaths(running: Running, count: int, *, up: bool, down: bool, delay: float = 0.0) -> Case:
    """Let the path die before each prompt."""
    chance = random.Random(1)  # noqa: S311 (the same each time is what is wanted)
    with roaming(running) as (proxy, editor, session):
        proxy.delay = delay
        pauses = []
        for number in range(count):
            proxy.kill(up=up, down=down)
            pauses.append(editor.prompt(session, str(number)))
            time.sleep(chance.random() / 5)
        return Case(pauses, check(editor, count), len(proxy.paths))


def agent_texts(lines: Iterable[str]) -> Iterator[str]:
    """Return what the agent says in the output of `watch --json`."""
    for line in lines:
        update = json.loads(line).get("update", {})
        if update.get("sessionUpdate") == "agent_message_chunk":
            yield update["content"]["text"]


def watched_deaths(running: Running, count: int) -> Case:
    """Let the path of a viewer die in each turn of an editor; the pauses end with what the agent says then."""
    with roaming(running) as (_, editor, session), proxied(running) as (proxy, port):
        token = str(running.directory / "token")
        command = [*PROGRAM, "watch", f"ws://127.0.0.1:{port}", session, "--token-file", token, "--json"]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            said = agent_texts(process.stdout)
            pauses, wrong = [], 0
            try:
                time.sleep(2.0)
                for number in range(count):
                    turn = threading.Thread(target=editor.prompt, args=(session, f"{number}.then{number}!"))
                    turn.start()
                    while next(said) != f"{number}.":
                        pass
                    proxy.kill()
                    began = time.perf_counter()
                    wrong += next(said) != f"{number}!"
                    pauses.append(time.perf_counter() - began)
                    turn.join()
            finally:
                process.terminate()
        return Case(pauses, wrong, len(proxy.paths))


def slow(running: Running, *, rate: float, padding: int) -> Case:
    """Send one large prompt over a slow line."""
    with roaming(running) as (proxy, editor, session):
        proxy.rate = rate
        pauses = [editor.prompt(session, "0", padding)]
        return Case(pauses, check(editor, 1), len(proxy.paths))


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process; it goes on after the block, or after `STOPPED`."""
    os.kill(pid, signal.SIGSTOP)
    go_on = threading.Timer(STOPPED, os.kill, (pid, signal.SIGCONT))
    go_on.start()
    try:
        yield
    finally:
        go_on.cancel()
        os.kill(pid, signal.SIGCONT)


def stopped_gateway(running: Running, count: int) -> Case:
    """Send prompts to a gateway that is stopped; the pauses begin when it goes on."""
    with roaming(running) as (proxy, editor, session):
        pauses = []
        for number in range(count):
            with stopped(running.pid):
                pauses.append(editor.prompt(session, str(number)) - STOPPED)
        return Case(pauses, check(editor, count), len(proxy.paths))


def stopped_client(running: Running, count: int) -> Case:
    """Stop `connect` while its path dies; the pauses begin when it goes on."""
    with roaming(running) as (proxy, editor, session):
        pauses = []
        for number in range(count):
            with stopped(editor.pid):
                proxy.kill()
                pauses.append(editor.prompt(session, str(number)) - STOPPED)
        return Case(pauses, check(editor, count), len(proxy.paths))


def clock_jumps(running: Running, library: Path, count: int) -> Case:
    """Let the path of an idle client die and its time of day jump, and send a prompt.

    The library changes what the program reads, so that the kernel, unlike after a sleep, does not tell of the jump.
    """
    times = running.directory / "offset"
    times.write_text("+0")
    faked = {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(times),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    with roaming(running, **faked) as (proxy, editor, session):
        pauses = []
        for number in range(count):
            time.sleep(2.0)
            proxy.kill()
            times.write_text(f"+{600 * (number + 1)}")
            pauses.append(editor.prompt(session, str(number)))
        return Case(pauses, check(editor, count), len(proxy.paths))


def faketime() -> Path | None:
    """Return libfaketime, if it is installed."""
    return next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)


@contextmanager
def in_front(programs: Programs, node: Running) -> Iterator[tuple[Proxy, Running]]:
    """Run a gateway in front of another one, which it reaches through a proxy; return both."""
    with proxied(node) as (proxy, port):
        token = str(node.directory / "token")
        sections: dict[str, Mapping[str, Any]] = {
            "gateway": {"default_agent": "node/benchmark"},
            "limits": UNTHROTTLED,
            "nodes.node": {"url": f"ws://127.0.0.1:{port}", "token_file": token},
        }
        with run_ours(programs, "ws", sections, ()) as front:
            wait_for_line(front.directory / "log", "node node is there")
            yield proxy, front


def node_deaths(programs: Programs, node: Running, count: int) -> Case:
    """Let the path between two gateways die before each prompt."""
    with in_front(programs, node) as (between, front), roaming(front) as (_, editor, session):
        pauses = []
        for number in range(count):
            between.kill()
            pauses.append(editor.prompt(session, str(number)))
        return Case(pauses, check(editor, count), len(between.paths))


# In a network namespace


def ip(*arguments: str) -> None:
    """Run `ip`. Raises `CalledProcessError`."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@contextmanager
def namespace() -> Iterator[str]:
    """Make a network namespace that reaches this machine at `HOST`; return its name."""
    name = f"roam{os.getpid()}"
    ip("netns", "add", name)
    try:
        ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("addr", "add", f"{HOST}/24", "dev", name)
        ip("link", "set", name, "up")
        ip("-n", name, "addr", "add", address(0), "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        yield name
    finally:
        # The namespace may take a while to end, and its link with it.
        subprocess.run(["ip", "link", "del", name], check=False, capture_output=True)
        ip("netns", "del", name)


def address(number: int) -> str:
    """Return an address of the namespace."""
    return f"{HOST.rpartition('.')[0]}.{number + 2}/24"


def can_make_namespaces() -> bool:
    """Return whether this user may make network namespaces."""
    if shutil.which("ip") is None:
        return False
    try:
        with namespace():
            return True
    except subprocess.CalledProcessError:
        return False


def other_addresses(running: Running, count: int) -> Case:
    """Give the client another address in place of its own before each prompt."""
    with namespace() as name, roaming(running, HOST, ("ip", "netns", "exec", name)) as (proxy, editor, session):
        pauses = []
        for number in range(count):
            time.sleep(2.0)
            ip("-n", name, "addr", "del", address(number), "dev", "eth0")
            ip("-n", name, "addr", "add", address(number + 1), "dev", "eth0")
            pauses.append(editor.prompt(session, str(number)))
        return Case(pauses, check(editor, count), len(proxy.paths))


def outages(running: Running, count: int, seconds: float) -> Case:
    """Send each prompt while there is no network; the pauses begin when it is back."""
    with namespace() as name, roaming(running, HOST, ("ip", "netns", "exec", name)) as (proxy, editor, session):
        pauses = []
        for number in range(count):
            time.sleep(2.0)
            ip("-n", name, "link", "set", "eth0", "down")
            back = threading.Timer(seconds, ip, ("-n", name, "link", "set", "eth0", "up"))
            back.start()
            pauses.append(editor.prompt(session, str(number)) - seconds)
            back.join()
        return Case(pauses, check(editor, count), len(proxy.paths))


# In a browser


def page_deaths(running: Running, count: int) -> Case:
    """Let the path of a page die before each prompt, which is typed; the pauses end with the answer on the screen."""
    with started() as browser, proxied(running) as (proxy, port):
        seen = replace(running, endpoint=replace(running.endpoint, address=f"127.0.0.1:{port}/acp"))
        page = signed_in(browser, seen)
        session = page.evaluate(CALL, ["session/new", {"cwd": "/"}, None])["sessionId"]
        page.goto(f"{base(seen)}#/s/{session}")
        box = page.get_by_role("textbox", name="Prompt")
        box.wait_for()
        pauses, wrong = [], 0
        for number in range(count):
            page.wait_for_timeout(1000)
            proxy.kill()
            box.fill(f"number {number}.")
            began = time.perf_counter()
            box.press("Enter")
            page.locator(".agent", has_text=f"number {number}.").first.wait_for()
            pauses.append(time.perf_counter() - began)
            # The page of a long session does not draw the beginning, so each is counted while it is the last.
            page.wait_for_timeout(300)
            wrong += page.locator(".agent", has_text=f"number {number}.").count() != 1
        page.context.close()
        return Case(pauses, wrong, len(proxy.paths))


# The report


def run(bench: Bench) -> list[Section]:
    """Measure the pauses, and count connections that were made in vain."""
    sections = [real(bench)]
    bench.log("in virtual time: pauses")
    count, many = bench.pick((50, 10_000), (3, 100))
    rows, targets = [], []
    for situation in SITUATIONS:
        pauses, wrong = simulate(pauses_of, situation, count)
        rows.append(row(situation.title, pauses, wrong, f"{within(situation):.1f} s"))
        text = f"95 % of the pauses, in virtual time, {situation.title}"
        targets.append(Target(text, within(situation), "≤", percentile(pauses, 95), "s"))
        targets.append(Target(f"messages lost or twice, in virtual time, {situation.title}", 0, "≤", float(wrong), ""))
    bench.log(f"in virtual time: {many:,} deaths")
    pauses, wrong = simulate(die_often, many)
    rows.append(row(f"{many:,} deaths, at any moment", pauses, wrong, ""))
    targets.append(Target(f"messages lost or twice after {many:,} deaths", 0, "≤", float(wrong), ""))
    head = ("situation", "pauses", *(f"≤ {step:g} s" for step in STEPS), "95 %", "longest", "bound", "wrong")
    note = f"The program in virtual time, over a model of a network with a round trip of {FAR:g} s. Wrong: messages."
    sections.append(Section("Pauses after a path has died, in virtual time", head, rows, [note], targets))
    bench.log("in virtual time: bad paths")
    hours = {path.title: simulate(bad_path, path, bench.pick(HOUR, 300.0)) for path in BAD_PATHS}
    return [*sections, living(hours, bench.pick(60, 5))]


def real(bench: Bench) -> Section:
    """Measure programs, on this machine."""
    count = bench.pick(60, 5)
    few, some = count // 5, bench.pick(20, 1)
    agent = (sys.executable, "-I", "-S", str(AGENT))
    library = faketime()
    notes: list[str] = []
    with bench.relays["ours"].running(agent) as running:
        tried: dict[str, Callable[[], Case]] = {
            FIRST: lambda: deaths(running, count, up=True, down=True),
            "only the way to the gateway dies": lambda: deaths(running, few, up=True, down=False),
            "only the way back dies": lambda: deaths(running, few, up=False, down=True),
            "the path dies, each piece is 0.1 s late": lambda: deaths(running, few, up=True, down=True, delay=0.1),
            "nothing dies, each piece is 0.5 s late": lambda: deaths(running, few, up=False, down=False, delay=0.5),
            "nothing dies, 20 KB/s, a prompt of 400 KB": lambda: slow(running, rate=20_000, padding=400_000),
            f"the gateway is stopped for {STOPPED:g} s": lambda: stopped_gateway(running, few),
            AWAKE: lambda: stopped_client(running, some),
            WATCHED: lambda: watched_deaths(running, some),
        }
        if library is not None:
            tried[JUMPED] = lambda: clock_jumps(running, library, some)
        else:
            notes.append("Skipped: a jump of the time of day, without libfaketime.")
        cases = {}
        for title, measure in tried.items():
            bench.log(title)
            cases[title] = measure()
    bench.log(BETWEEN)
    with our_gateway(bench.programs, listen="ws", agent_options={"scope": "identity"}).running(agent) as running:
        cases[BETWEEN] = node_deaths(bench.programs, running, some)
    if can_make_namespaces():
        bench.log("in a network namespace")
        away = bench.pick(10.0, 5.0)
        # Over TCP, since WebSockets have to name the gateway as it is known.
        with bench.relays["ours-tcp"].running(agent) as running:
            cases[MOVED] = other_addresses(running, some)
            bench.log(BACK)
            cases[BACK] = outages(running, bench.pick(10, 1), away)
    else:
        notes.append("Skipped: other addresses and outages, without the right to make network namespaces.")
    if PAGE in bench.programs.skipped:
        notes.append(f"Skipped: the page, {bench.programs.skipped[PAGE]}.")
    else:
        notes.append("The connections of a page include those for its files.")
        bench.log("a page")
        with bench.relays["ours"].running(agent) as running:
            cases[TYPED] = page_deaths(running, some)
    rows = [(*row(title, case.pauses, case.wrong, str(case.connections)),) for title, case in cases.items()]
    targets = [
        Target(f"messages lost or twice: {title}", 0, "≤", float(case.wrong), "") for title, case in cases.items()
    ]
    for title, most in BOUNDS.items():
        if title in cases:
            targets.append(Target(f"95 % of the pauses: {title}", most, "≤", percentile(cases[title].pauses, 95), "s"))
    head = ("case", "pauses", *(f"≤ {step:g} s" for step in STEPS), "95 %", "longest", "connections", "wrong")
    return Section(
        "Paths that die silently", head, rows, notes, targets, {each: case.pauses for each, case in cases.items()}
    )


def row(title: str, pauses: Sequence[float], wrong: int, last: str) -> tuple[str, ...]:
    """Return the row of a histogram."""
    counts = [
        sum(below < pause <= step for pause in pauses) for below, step in itertools.pairwise((float("-inf"), *STEPS))
    ]
    figures = (f"{percentile(pauses, 95):.2f} s", f"{max(pauses):.2f} s", last, str(wrong))
    return (title, str(len(pauses)), *(str(each) if each else "" for each in counts), *figures)


def living(hours: Mapping[str, Hour], minutes: int) -> Section:
    """Return the table of paths that are bad and live."""
    rows = [
        (
            title,
            str(each.turns),
            str(each.broken),
            str(each.told),
            str(each.dialed),
            f"{each.longest:.0f} s",
            str(each.faults),
        )
        for title, each in hours.items()
    ]
    targets = []
    for title, each in hours.items():
        targets.append(Target(f"links broken or messages wrong, {title}", 0, "≤", float(each.broken + each.faults), ""))
        targets.append(Target(f"time between connections in vain, {title}", 10.0, "≥", each.spacing, "s"))
    head = ("path", "turns", "links broken", "shown as lost", "dialed in vain", "longest turn", "wrong")
    return Section(f"{minutes} minutes of a path that is bad and lives, in virtual time", head, rows, [], targets)
