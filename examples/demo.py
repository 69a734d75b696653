"""Demo of acp-gateway on one machine: an editor on a "laptop" uses an agent on a "box". Run by `make demo`.

The two machines are two temporary directories. Everything between them is real: `acp-gateway` commands as
subprocesses, TLS with a new certificate, a token, and the agent of `demo_agent.py`. Only the editor is simulated:
it starts `acp-gateway connect` as an editor would and speaks the Agent Client Protocol to it.

Arguments are those of the agent: `make demo PROTOCOL=2` has it speak version 2, which the gateway translates.

All processes are stopped and all files removed, also after an error. The exit status is 0 on success.
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

Message = dict[str, Any]

PROGRAM = Path(sys.executable).with_name("acp-gateway")
AGENT = Path(__file__).resolve().with_name("demo_agent.py")

STEP_TIMEOUT = 90.0
"""Seconds for each step. All together take five to ten, or many times as long on a busy machine."""

END_TIMEOUT = 20.0
"""Seconds that a program has to end after each of EOF or SIGTERM, SIGTERM, SIGKILL. Includes the end of its agents."""

LINE_LIMIT = 64 * 1024 * 1024
"""Maximum bytes of a message."""

WIDTH = min(shutil.get_terminal_size().columns, 100)


class DemoFailed(Exception):
    """The demo failed; the message gives the reason."""


# Output

IN_COLOR = sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def painted(code: int, text: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if IN_COLOR else text


def bold(text: str) -> str:
    return painted(1, text)


def dim(text: str) -> str:
    return painted(2, text)


def green(text: str) -> str:
    return painted(32, text)


class Screen:
    """Prints numbered steps with facts below them, and streamed text. Each step has a deadline of its own."""

    def __init__(self, deadline: asyncio.Timeout) -> None:
        self.steps = 0
        self._deadline = deadline
        # Column of the next chunk of streamed text; 0 if no streamed text is on the line.
        self._column = 0
        # White space before that chunk, printed if the line continues.
        self._gap = ""

    def step(self, where: str, what: str) -> None:
        self._end_stream()
        self.steps += 1
        self._deadline.reschedule(asyncio.get_running_loop().time() + STEP_TIMEOUT)
        print(f"\n{bold(f'{self.steps}. {where}: {what}')}", flush=True)

    def fact(self, text: str) -> None:
        self._end_stream()
        print(f"   {text}", flush=True)

    def block(self, text: str) -> None:
        self._end_stream()
        for line in text.rstrip().splitlines():
            print(dim(f"   | {line}"), flush=True)

    def paste(self, text: str) -> None:
        """Print text for copying, without margin."""
        self._end_stream()
        print(f"\n{text.rstrip()}\n", flush=True)

    def stream(self, text: str) -> None:
        """Print a chunk of the agent's text, with lines broken between words."""
        words = text.rstrip()
        if not self._column:
            self._begin_line("   agent: ")
        elif self._column + len(self._gap) + len(words) > WIDTH:
            print()
            self._begin_line("          ")
        else:
            words = self._gap + words
        print(green(words), end="", flush=True)
        self._column += len(words)
        self._gap = text[len(text.rstrip()) :].rstrip("\n")
        if text.endswith("\n"):
            self._end_stream()

    def _begin_line(self, margin: str) -> None:
        print(margin, end="")
        self._column = len(margin)

    def _end_stream(self) -> None:
        if self._column:
            print(flush=True)
        self._column = 0


# Processes


def environment(**changes: str) -> dict[str, str]:
    """Return this process's environment without acp-gateway's variables, so that the real configuration is not used."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ACP_GATEWAY_")}
    return {**kept, **changes}


async def output_of(*arguments: str, env: Mapping[str, str]) -> str:
    """Run an acp-gateway command and return its stdout. Raises DemoFailed if its exit code is not 0."""
    process = await asyncio.create_subprocess_exec(
        PROGRAM,
        *arguments,
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        stdout, stderr = await process.communicate()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    if process.returncode:
        command = " ".join(("acp-gateway", *arguments))
        raise DemoFailed(f"`{command}` ended with {process.returncode}: {stderr.decode(errors='replace').strip()}")
    return stdout.decode()


class Program:
    """A running acp-gateway command and its stderr so far."""

    def __init__(self, process: asyncio.subprocess.Process, request_end: Callable[[], None], log: list[str]) -> None:
        self.process = process
        self._request_end = request_end
        self._log = log
        # Lines of stderr that `log_line` has not read; None marks the end.
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()

    async def read_log(self) -> None:
        """Read stderr until it ends, so that its pipe never fills."""
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            text = line.decode(errors="replace").rstrip()
            self._log.append(text)
            self._lines.put_nowait(text)
        self._lines.put_nowait(None)

    async def log_line(self, pattern: str) -> re.Match[str]:
        """Wait for a line of stderr that matches. Raises DemoFailed if the program ends first."""
        while (line := await self._lines.get()) is not None:
            if match := re.search(pattern, line):
                return match
        raise DemoFailed(f"the program ended ({await self.process.wait()}) before it logged {pattern!r}")

    async def end(self) -> None:
        """End the program: gracefully first, then with SIGTERM, then with SIGKILL."""
        for request in (self._request_end, self.process.terminate, self.process.kill):
            if self.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    request()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_TIMEOUT):
                    await self.process.wait()
                    return

    async def end_gracefully(self) -> None:
        """End the program. Raises DemoFailed if its exit code is not 0, as after a SIGKILL."""
        await self.end()
        if self.process.returncode != 0:
            raise DemoFailed(f"process {self.process.pid} ended with {self.process.returncode} instead of 0")


@contextlib.asynccontextmanager
async def running(
    *arguments: str, env: Mapping[str, str], cwd: Path, end_by_eof: bool, log: list[str]
) -> AsyncIterator[Program]:
    """Run an acp-gateway command until the end of the block; append its stderr to `log`, line by line."""
    process = await asyncio.create_subprocess_exec(
        PROGRAM,
        *arguments,
        env=env,
        cwd=cwd,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=LINE_LIMIT,
        # So Ctrl-C in a terminal reaches only the demo, which ends the others in order.
        start_new_session=True,
    )
    assert process.stdin is not None
    program = Program(process, process.stdin.close if end_by_eof else process.terminate, log)
    reading = asyncio.create_task(program.read_log())
    try:
        yield program
    finally:
        await program.end()
        # An orphaned child of the program might keep its stderr open.
        await asyncio.wait([reading], timeout=1)
        reading.cancel()


def is_alive(pid: int) -> bool:
    """Return True if a process runs. A zombie does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    if Path("/proc/self").exists():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# The editor


class Editor:
    """A minimal ACP client: sends one request at a time and shows all updates."""

    def __init__(self, program: Program, screen: Screen) -> None:
        self._process = program.process
        self._screen = screen
        self._last_request_id = 0

    async def request(self, method: str, **params: object) -> Message:
        """Send a request and wait for the result; handle the agent's updates and requests until it comes."""
        self._last_request_id += 1
        request_id = self._last_request_id
        await self._send({"id": request_id, "method": method, "params": params})
        while True:
            message = await self._receive()
            if "method" in message:
                await self._serve(message)
            elif message["id"] == request_id:
                break
        if "error" in message:
            raise DemoFailed(f"{method} failed: {message['error']}")
        result: Message = message["result"]
        return result

    async def _send(self, message: Message) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):  # The next read reports the end of `connect`.
            self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            await self._process.stdin.drain()

    async def _receive(self) -> Message:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise DemoFailed(f"`acp-gateway connect` ended with {await self._process.wait()}")
        message: Message = json.loads(line)
        return message

    async def _serve(self, message: Message) -> None:
        match message:
            case {"method": "session/update", "params": {"update": update}}:
                self._show(update)
            case {"method": "session/request_permission", "id": request_id, "params": params}:
                outcome = {"outcome": "selected", "optionId": self._decide(params)}
                await self._send({"id": request_id, "result": {"outcome": outcome}})
            case {"method": method, "id": request_id}:
                error = {"code": -32601, "message": f"Method not found: {method}"}
                await self._send({"id": request_id, "error": error})

    def _show(self, update: Message) -> None:
        match update:
            case {"sessionUpdate": "agent_message_chunk", "content": {"text": text}}:
                self._screen.stream(text)
            case {"sessionUpdate": "tool_call", "title": title, "status": status}:
                self._screen.fact(f"tool:  {title} [{status}]")
                for location in update.get("locations", []):
                    self._screen.fact(f"       which is {location['path']} for the editor")
            case {"sessionUpdate": "tool_call_update", "status": status}:
                self._screen.fact(f"tool:  [{status}]")
                for item in update.get("content", []):
                    self._screen.block(item["content"]["text"])

    def _decide(self, params: Message) -> str:
        options = {option["kind"]: option for option in params["options"]}
        names = " or ".join(option["name"] for option in params["options"])
        self._screen.fact(f"question: {params['toolCall']['title']}? ({names})")
        choice = options["allow_once"]
        self._screen.fact(f"answer:   {bold(choice['name'])}, once")
        option_id: str = choice["optionId"]
        return option_id


# Files


@contextlib.contextmanager
def machine(name: str) -> Iterator[Path]:
    """Create a temporary directory that represents a machine."""
    with tempfile.TemporaryDirectory(prefix=f"{name}-") as directory:
        yield Path(directory).resolve()


def make_project(directory: Path, *names: str) -> Path:
    directory.mkdir(parents=True)
    for name in names:
        (directory / name).touch()
    return directory


def toml(value: object) -> str:
    """Format a TOML string. JSON strings are valid TOML."""
    return json.dumps(str(value), ensure_ascii=False)


def write_config(box: Path) -> Path:
    """Write the gateway's configuration; port 0 selects a free port."""
    config = box / "config.toml"
    config.write_text(
        f"""\
[gateway]
state_dir = {toml(box / "state")}

[[listen]]
url = "wss://127.0.0.1:0"
cert = {toml(box / "cert.pem")}
key = {toml(box / "key.pem")}

[workspaces.demo]
root = {toml(box)}

[agents.demo]
command = [{", ".join(map(toml, (sys.executable, AGENT, *sys.argv[1:])))}]
""",
        encoding="utf-8",
    )
    return config


def write_token(laptop: Path, token: str) -> Path:
    path = laptop / "token"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(token + "\n")
    return path


def write_hosts(laptop: Path, *, url: str, token_file: Path, pin: str, here: Path, there: Path) -> Path:
    """Write the laptop's hosts.toml: address, token, pin, and the map of the project's path on both machines."""
    hosts = laptop / "config" / "acp-gateway" / "hosts.toml"
    hosts.parent.mkdir(parents=True)
    hosts.write_text(
        f"""\
[hosts.demobox]
url = {toml(url)}
token_file = {toml(token_file)}
pin = {toml(pin)}
maps = {{ {toml(here)} = {toml(there)} }}
""",
        encoding="utf-8",
    )
    return hosts


# Demo


async def demo(screen: Screen, logs: dict[str, list[str]], box: Path, laptop: Path) -> None:
    box_env = environment()
    laptop_env = environment(XDG_CONFIG_HOME=str(laptop / "config"), XDG_STATE_HOME=str(laptop / "state"))
    there = make_project(box / "srv" / "hello", "README.md", "hello.py", "trained-on-the-gpu.bin")
    here = make_project(laptop / "hello")

    screen.step("The box", "acp-gateway certs create")
    create_certificate = ("certs", "create", "--host", "127.0.0.1", "--host", "localhost", "--out", str(box))
    printed = await output_of(*create_certificate, env=box_env)
    pin = re.search(r"sha256:[0-9a-fA-F]{64}", printed)
    if pin is None:
        raise DemoFailed(f"no pin in the output of `acp-gateway certs create`: {printed!r}")
    screen.fact(f"pin: {pin[0][:23]}...")

    screen.step("The box", "a configuration with one agent")
    config = write_config(box)
    screen.block(config.read_text(encoding="utf-8"))

    screen.step("The box", "acp-gateway token create --label demo")
    printed = await output_of("token", "create", "--config", str(config), "--label", "demo", env=box_env)
    token = printed.splitlines()[-1].strip()
    token_file = write_token(laptop, token)
    screen.fact(f"{token[:10]}... is copied to the laptop, into a file with mode 0600")

    screen.step("The box", "acp-gateway serve")
    gateway_log, shim_log = logs.setdefault("gateway", []), logs.setdefault("shim", [])
    serve = ("serve", "--config", str(config))
    async with running(*serve, env=box_env, cwd=box, end_by_eof=False, log=gateway_log) as gateway:
        listening = await gateway.log_line(r"listening on (wss://127\.0\.0\.1:[1-9][0-9]*)")
        screen.fact(f"process {gateway.process.pid} listens on {listening[1]}")

        screen.step("The laptop", "a name for the box in hosts.toml")
        hosts = write_hosts(laptop, url=listening[1], token_file=token_file, pin=pin[0], here=here, there=there)
        screen.block(hosts.read_text(encoding="utf-8"))

        screen.step("The laptop", "the editor starts `acp-gateway connect demobox` and opens the project")
        connect = ("connect", "demobox")
        async with running(*connect, env=laptop_env, cwd=laptop, end_by_eof=True, log=shim_log) as shim:
            agent_pid = await edit(screen, shim, here, there)
            screen.step("Both", "the end")
            await shim.end_gracefully()
            screen.fact("the editor closes the pipe, and `connect` ends")
        await gateway.end_gracefully()
        screen.fact("`serve` gets SIGTERM and ends")
    await wait_for_end(screen, [gateway.process.pid, shim.process.pid, agent_pid])

    screen.step("You", "the same with your editor, for example Zed: paste this into its settings.json")
    screen.paste(await output_of("connect", "demobox", "--print-config", "zed", env=laptop_env))


async def edit(screen: Screen, shim: Program, here: Path, there: Path) -> int:
    """Act as the editor: open a session, prompt, show updates. Returns the agent's process id."""
    editor = Editor(shim, screen)
    client = {"name": "demo-editor", "version": "1.0.0"}
    hello = await editor.request("initialize", protocolVersion=1, clientCapabilities={}, clientInfo=client)
    agent_pid: int = hello["_meta"]["pid"]
    screen.fact(f"initialize:  {hello['agentInfo']['title']}, process {agent_pid}, on the box")
    session = await editor.request("session/new", cwd=str(here), mcpServers=[])
    screen.fact(f"session/new: {here} on the laptop, {there} on the box")

    screen.step("The laptop", "a prompt and its answer")
    question = "What is in this project?"
    screen.fact(f"you:   {question}")
    prompt = [{"type": "text", "text": question}]
    answer = await editor.request("session/prompt", sessionId=session["sessionId"], prompt=prompt)
    screen.fact(f"stopReason: {answer['stopReason']}")
    if answer["stopReason"] != "end_turn":
        raise DemoFailed(f"the turn ended with {answer['stopReason']} instead of end_turn")
    return agent_pid


async def wait_for_end(screen: Screen, pids: list[int]) -> None:
    """Wait until all processes have ended. Raises DemoFailed after END_TIMEOUT."""
    names = ", ".join(map(str, pids))
    for _ in range(int(END_TIMEOUT / 0.1)):
        if not any(map(is_alive, pids)):
            screen.fact(f"the processes {names} have ended")
            return
        await asyncio.sleep(0.1)
    raise DemoFailed(f"of the processes {names}, these still run: {[pid for pid in pids if is_alive(pid)]}")


async def main() -> int:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    began = time.monotonic()
    deadline = asyncio.timeout(None)
    screen = Screen(deadline)
    logs: dict[str, list[str]] = {}
    print(bold("acp-gateway: an editor on one machine uses an agent on another"))
    try:
        if not PROGRAM.exists():
            raise DemoFailed(f"{PROGRAM} is missing: install it with `make demo`")
        with machine("box") as box, machine("laptop") as laptop:
            async with deadline:
                await demo(screen, logs, box, laptop)
    except (DemoFailed, TimeoutError) as failure:
        reason = str(failure) or f"step {screen.steps} took more than {STEP_TIMEOUT:.0f} seconds"
        print(f"\n\n{bold('The demo failed')}: {reason}", file=sys.stderr)
        for name, lines in logs.items():
            print(f"\nThe log of the {name}:", *lines, sep="\n  ", file=sys.stderr)
        return 1
    screen.fact("Replace demobox, which is removed now, with the name of your own box. README.md shows how to set up")
    screen.fact("a remote box for your editor in five minutes; docs/editors.md covers the other editors.")
    screen.fact("The page for browsers: `acp-gateway open` on your box prints a link, for a phone with a QR code;")
    screen.fact("`make demo-web` runs a gateway here to look at it.")
    print(dim(f"\n({time.monotonic() - began:.1f} seconds)"))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main()))
    except (KeyboardInterrupt, asyncio.CancelledError) as stop:
        print("\n\nInterrupted: all started processes have ended.", file=sys.stderr)
        sys.exit(128 + (signal.SIGINT if isinstance(stop, KeyboardInterrupt) else signal.SIGTERM))
