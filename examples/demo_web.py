"""A gateway to look at with a browser: agents at work, one that waits for a decision. Run by `make demo-web`.

It prints a link that signs a browser of this machine in, and runs until Ctrl-C. Everything is in a temporary directory
and removed at the end. Arguments are those of the agent: `make demo-web PROTOCOL=2` has it speak version 2.
"""

import asyncio
import contextlib
import signal
import socket
import sys
from pathlib import Path

from examples.demo import (
    PROGRAM,
    DemoFailed,
    Editor,
    Message,
    Screen,
    bold,
    environment,
    machine,
    output_of,
    running,
    toml,
    write_token,
)
from examples.demo_web_agent import BEFORE, FILE

ROOT = Path(__file__).resolve().parent.parent

START_TIMEOUT = 300.0
"""Seconds until the page can be opened; it takes about five, or many times as long on a busy machine."""


class Asked(Exception):
    """The agent asks for a decision, which is left to the page."""


class SilentEditor(Editor):
    """An editor that shows nothing, and leaves decisions to the page if told so."""

    decides = True

    def _show(self, update: Message) -> None:
        """Show nothing: it is in the page."""

    def _decide(self, params: Message) -> str:
        if not self.decides:
            raise Asked
        return next(str(option["optionId"]) for option in params["options"] if option["kind"] == "allow_once")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def write_config(box: Path, port: int) -> Path:
    """Write the configuration of a gateway with a page at a port of this machine."""
    config = box / "config.toml"
    agent = [sys.executable, "-m", "examples.demo_web_agent", *sys.argv[1:]]
    config.write_text(
        f"""\
[gateway]
state_dir = {toml(box / "state")}

[[listen]]
url = "ws://127.0.0.1:{port}"

[workspaces.shop]
root = {toml(box / "shop")}

[agents.lively]
command = [{", ".join(map(toml, agent))}]
env = {{ PYTHONPATH = {toml(ROOT)} }}
""",
        encoding="utf-8",
    )
    return config


async def play(connect: tuple[str, ...], env: dict[str, str], project: Path, log: list[str]) -> None:
    """Have the agent work in two sessions: one that is done, and one that waits for the page."""
    async with running(*connect, env=env, cwd=project, end_by_eof=True, log=log) as shim:
        editor = SilentEditor(shim, Screen(asyncio.timeout(None)))
        await editor.request("initialize", protocolVersion=1, clientCapabilities={}, clientInfo={"name": "demo"})
        for text, decides in (("Why is a total below zero?", True), ("Correct the total of a basket.", False)):
            editor.decides = decides
            session = await editor.request("session/new", cwd=str(project), mcpServers=[])
            prompt = [{"type": "text", "text": text}]
            with contextlib.suppress(Asked):
                await editor.request("session/prompt", sessionId=session["sessionId"], prompt=prompt)
        (project / FILE).write_text(BEFORE, encoding="utf-8")


async def open_page(config: Path, env: dict[str, str]) -> None:
    """Print the link to the page, and its QR code on a terminal."""
    process = await asyncio.create_subprocess_exec(PROGRAM, "open", "--config", str(config), env=env)
    if await process.wait():
        raise DemoFailed(f"`acp-gateway open` ended with {process.returncode}")


async def demo(box: Path, log: list[str]) -> None:
    env = environment(XDG_CONFIG_HOME=str(box / "config"), XDG_STATE_HOME=str(box / "client"))
    project = box / "shop"
    project.mkdir()
    (project / FILE).write_text(BEFORE, encoding="utf-8")
    port = free_port()
    config = write_config(box, port)
    print(bold("acp-gateway: a gateway to look at with a browser"), flush=True)
    async with contextlib.AsyncExitStack() as stack:
        async with asyncio.timeout(START_TIMEOUT):
            printed = await output_of("token", "create", "--config", str(config), "--label", "demo", env=env)
            token = write_token(box, printed.splitlines()[-1].strip())
            serve = ("serve", "--config", str(config))
            gateway = await stack.enter_async_context(running(*serve, env=env, cwd=box, end_by_eof=False, log=log))
            await gateway.log_line(r"listening on ws://")
            print("The agent works in two sessions ...\n", flush=True)
            target = f"ws://127.0.0.1:{port}"
            await play(("connect", target, "--token-file", str(token)), env, project, log)
            await open_page(config, env)
        print(f"\nAnother link: {PROGRAM} open --config {config}\nCtrl-C ends it.", flush=True)
        raise DemoFailed(f"`acp-gateway serve` ended with {await gateway.process.wait()}")


async def main() -> int:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    log: list[str] = []
    try:
        with machine("demo-web") as box:
            await demo(box, log)
    except (DemoFailed, TimeoutError) as failure:
        print(f"\n{bold('The demo failed')}: {failure or 'timeout'}", *log, sep="\n  ", file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        print("\nEnded, and everything removed.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
