"""A laptop with an editor, and a gateway with the demo agent on another machine."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.interop.cutting_proxy import Line, open_line
from tests.kit.running import RunningGateway, prepare, start_gateway

ROOT = Path(__file__).parents[2]

TIMEOUT = 180.0
"""Seconds for an editor to run its script, or for one change on its screen, on a busy machine."""

DEMO = f'["{sys.executable}", "{ROOT / "examples" / "demo_agent.py"}"]'
"""Command of the demo agent, as a configuration has it."""

INSTALLED = ROOT / ".venv" / "interop" / "editors"
"""Programs that `make interop` has installed from PyPI, each in an environment of its own."""

CHECKOUTS = {
    "acp.el": "https://github.com/xenodium/acp.el",
    "agent-shell": "https://github.com/xenodium/agent-shell",
    "agentic.nvim": "https://github.com/carlos-algms/agentic.nvim",
    "avante.nvim": "https://github.com/yetone/avante.nvim",
    "code-server": "npm install --prefix FOLDER/code-server code-server",
    "codecompanion.nvim": "https://github.com/olimorris/codecompanion.nvim",
    "nui.nvim": "https://github.com/MunifTanjim/nui.nvim",
    "plenary.nvim": "https://github.com/nvim-lua/plenary.nvim",
    "shell-maker": "https://github.com/xenodium/shell-maker",
    "vscode-acp": "https://github.com/formulahendry/vscode-acp",
    "vscode-acp-chat": "https://github.com/pengjiantao/vscode-acp-chat",
}
"""The repository of each checkout, or the command that fetches it."""


def checkout(*names: str) -> list[Path]:
    """Return the folders of these checkouts; skip the test if one is missing."""
    folder = os.environ.get("EDITORS")
    if not folder:
        pytest.skip("needs checkouts: make interop EDITORS=FOLDER, with " + " and ".join(names))
    found = [Path(folder).resolve() / name for name in names]
    for path in found:
        if not path.is_dir():
            where = CHECKOUTS[path.name]
            advice = f"git clone {where} {path}" if where.startswith("https:") else where
            pytest.skip(f"{path.name} is missing: {advice}")
    return found


def installed(package: str, program: str) -> Path:
    """Return the path of a program that `make interop` installs from PyPI; skip the test if it could not."""
    path = INSTALLED / package / "bin" / program
    if not path.exists():
        pytest.skip(f"{package} is not installed: make interop does that, with Python 3.12 or newer")
    return path


def newest(program: str, version: tuple[int, int], advice: str) -> str:
    """Return the path of a program, on PATH; skip the test if it is missing or too old."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is missing: {advice}")
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=TIMEOUT).stdout
    match = re.search(r"(\d+)\.(\d+)", said)
    if match is None or (int(match[1]), int(match[2])) < version:
        wanted = ".".join(map(str, version))
        pytest.skip(f"{path} is older than {wanted}: {advice}")
    return path


@dataclass
class Laptop:
    """A home with a host `devbox`, and an empty project."""

    home: Path
    project: Path
    gateway: RunningGateway

    url: str = ""
    """Address of an editor in a browser."""

    line: Line | None = None
    """The way to the gateway, if a test may cut it."""

    @property
    def env(self) -> dict[str, str]:
        """The whole environment of the editor."""
        return {"HOME": str(self.home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8", "TERM": "xterm-256color"}

    def block(self, editor: str) -> str:
        """Return what `connect --print-config` prints for an editor."""
        return self.run("connect", "devbox", "--print-config", editor)

    def run(self, *words: str) -> str:
        program = str(Path(sys.executable).with_name("acp-gateway"))
        return self.start([program, *words])

    def restart_gateway(self) -> None:
        """Stop the gateway, and start it again at the same addresses."""
        assert self.gateway.stop() == 0
        self.gateway = start_gateway(self.gateway.directory, self.gateway.pin)

    def start(self, command: list[str]) -> str:
        """Run a command to its end in the project, and return its output; fail the test if it fails."""
        ran = subprocess.run(command, cwd=self.project, env=self.env, capture_output=True, text=True, timeout=TIMEOUT)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout + ran.stderr


@contextmanager
def open_laptop(
    directory: Path, command: str = DEMO, *, options: str = "", remote: Path | None = None, line: bool = False
) -> Iterator[Laptop]:
    """Run a gateway with an agent, and make a home that knows it.

    `options` are further ones of the agent. `remote` is where the agent has the project, with a path map; otherwise at
    the same path. With `line` the laptop reaches the gateway through a proxy.
    """
    box, home, project = directory / "box", directory / "home", directory / "project"
    (home / ".config" / "acp-gateway").mkdir(parents=True)
    (home / ".cache" / "nvim").mkdir(parents=True)
    for folder in (project, box, remote or project):
        folder.mkdir(exist_ok=True)
    root = f'[workspaces.project]\nroot = "{remote or project}"\n'
    pin = prepare(box, f"[agents.demo]\ncommand = {command}\n{options}{root}")
    gateway: RunningGateway = start_gateway(box, pin)
    laptop = Laptop(home, project, gateway)
    with ExitStack() as stack:
        address = f'url = "{gateway.urls["wss"]}"\npin = "{pin}"\n'
        if line:
            port = urlsplit(gateway.urls["ws"]).port
            assert port is not None
            laptop.line = stack.enter_context(open_line(port))
            address = f'url = "ws://127.0.0.1:{laptop.line.port}"\n'
        maps = f'maps = {{ "{project}" = "{remote}" }}\n' if remote else ""
        hosts = f'[hosts.devbox]\n{address}token_file = "{gateway.token_file}"\n{maps}'
        (home / ".config" / "acp-gateway" / "hosts.toml").write_text(hosts)
        try:
            yield laptop
        finally:
            assert laptop.gateway.stop() == 0
