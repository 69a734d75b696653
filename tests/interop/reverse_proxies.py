"""nginx, Caddy and HAProxy with the blocks of docs/reverse-proxies.md, changed in nothing but ports and certificate."""

import os
import select
import shutil
import signal
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path

import pytest

from tests.kit.free_ports import free_port
from tests.kit.proxies import checked_block
from tests.kit.running import ENVIRONMENT, RunningGateway


class RealProxy(ABC):
    """A reverse proxy in front of a gateway, at a port of loopback that it keeps.

    With `below` its block is the one that has the gateway below a path.
    """

    name: str

    def __init__(self, gateway: RunningGateway, directory: Path, *, below: bool = False) -> None:
        self.port = free_port()
        self.program = find_program(self.name)
        self.directory = directory
        self.certificate, self.key = gateway.directory / "cert.pem", gateway.directory / "key.pem"
        text = self.configuration(below).replace("127.0.0.1:7080", f"127.0.0.1:{gateway.urls['127.0.0.1']}")
        (directory / "config").write_text(text)

    @abstractmethod
    def configuration(self, below: bool) -> str:
        """Return the text of the configuration, with the port of the page for the gateway."""

    @abstractmethod
    def commands(self) -> tuple[list[str], list[str], signal.Signals]:
        """Return the command that checks the configuration, the one that starts the proxy, and the signal to end it."""

    def run(self, command: list[str]) -> None:
        """Run a command to its end, and show what it said where it failed."""
        environment = {"PATH": ENVIRONMENT["PATH"], "HOME": str(self.directory)}
        with (self.directory / "said").open("w+b") as said:
            code = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said, timeout=60, check=False
            ).returncode
        assert code == 0, (self.directory / "said").read_text()

    def check(self) -> None:
        """Have the program read its configuration."""
        check, _, _ = self.commands()
        self.run(check)

    def start(self) -> None:
        """Start it; all three say that they listen by leaving the foreground; the pid may be written later."""
        pid = self.directory / "pid"
        pid.unlink(missing_ok=True)
        _, start, _ = self.commands()
        self.run(start)
        for _ in range(6000):
            if pid.exists() and pid.read_text().strip():
                return
            select.select([], [], [], 0.01)
        raise AssertionError(f"no pid was written to {pid}")

    def stop(self) -> None:
        """End it without waiting for its clients, and wait until it has gone."""
        _, _, end_signal = self.commands()
        process = int((self.directory / "pid").read_text())
        end = os.pidfd_open(process)
        try:
            os.kill(process, end_signal)
            assert select.select([end], [], [], 60)[0]
        finally:
            os.close(end)


class Nginx(RealProxy):
    name = "nginx"

    def configuration(self, below: bool) -> str:
        block = checked_block("nginx")
        if below:
            block = block[: block.index("    location / {")] + checked_block("nginx-path") + "}\n"
        block = block.replace("listen 443 ssl", f"listen 127.0.0.1:{self.port} ssl")
        block = block.replace("/etc/nginx/gpu.example.pem", str(self.certificate))
        block = block.replace("/etc/nginx/gpu.example.key", str(self.key))
        folders = "".join(
            f"{kind}_temp_path {self.directory}/{kind};"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        # Else root's processes become another user's, who may not enter the folders.
        user = "user root; " if os.geteuid() == 0 else ""
        text = f"{user}pid {self.directory}/pid; error_log {self.directory}/log; events {{}}\n"
        return text + f"http {{ access_log off; {folders}\n{block}}}"

    def commands(self) -> tuple[list[str], list[str], signal.Signals]:
        folder = self.directory
        start = [self.program, "-p", str(folder), "-e", f"{folder}/log", "-c", str(folder / "config")]
        return [*start, "-t"], start, signal.SIGTERM


class Caddy(RealProxy):
    name = "caddy"

    def configuration(self, below: bool) -> str:
        block = checked_block("caddy-path" if below else "caddy")
        begun = f"gpu.example:{self.port} {{\nbind 127.0.0.1\ntls {self.certificate} {self.key}"
        block = block.replace("gpu.example {", begun)
        return f"{{\nadmin off\nauto_https disable_redirects\n}}\n{block}"

    def commands(self) -> tuple[list[str], list[str], signal.Signals]:
        options = ["--config", str(self.directory / "config"), "--adapter", "caddyfile"]
        start = [self.program, "start", *options, "--pidfile", str(self.directory / "pid")]
        return [self.program, "validate", *options], start, signal.SIGQUIT


class HAProxy(RealProxy):
    name = "haproxy"

    def configuration(self, below: bool) -> str:
        both = self.directory / "both.pem"
        both.touch(0o600)
        both.write_text(self.certificate.read_text() + self.key.read_text())
        block = checked_block("haproxy")
        if below:
            block = block[: block.index("    default_backend")] + checked_block("haproxy-path")
        block = block.replace("bind :443 ssl", f"bind 127.0.0.1:{self.port} ssl")
        return block.replace("/etc/haproxy/gpu.example.pem", str(both))

    def commands(self) -> tuple[list[str], list[str], signal.Signals]:
        config = ["-f", str(self.directory / "config")]
        start = [self.program, "-D", *config, "-p", str(self.directory / "pid")]
        return [self.program, "-c", *config], start, signal.SIGTERM


PROXIES: dict[str, type[RealProxy]] = {kind.name: kind for kind in (Nginx, Caddy, HAProxy)}


def find_program(name: str) -> str:
    """Return the path of a proxy's program; skip the test without it."""
    program = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    if program is None:
        pytest.skip(f"{name} is not installed, in Debian: apt-get install {name}")
    return program
