"""What the benchmark runs beside this project: built, and fetched where that can be done.

The load generator, the agent and the relays in C are compiled, and the peers of npm are installed from their lock file,
into a folder of the benchmark's own. Debian's packages are installed where this is root's process, and only those that
are missing. What can't be had is skipped, with the reason in words; only without a C compiler there is nothing to do.
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
NATIVE: Final = HERE / "native"
PEERS: Final = HERE / "peers"

OUT: Final = HERE.parent / "build" / "bench"
"""For what is built and what comes out."""
PROGRAMS: Final = OUT / "programs"

TLS: Final = "tls"
"""What is skipped where the load generator has no TLS."""

NODE_PEERS: Final = ("stdio-to-ws", "sdk", "node-ws", "node-shim")
OLDEST_NODE: Final = 20
"""The first one whose every release has `--import`, and newer than what the packages ask for."""

COMPILING, FETCHING, INSTALLING = 60, 180, 300
"""Seconds that may take."""


class NotInstallable(Exception):
    """Something can't be had here; says in one line what, why, and what to do."""


@dataclass(frozen=True)
class Programs:
    """What is there to be run."""

    directory: Path
    """Where all of it is, and where things may be put while the benchmark runs."""
    agent: Path
    load: Path
    relay: Path
    peers: Path
    """The folder with the peers in JavaScript and their `node_modules`."""
    skipped: Mapping[str, str]
    """What isn't there, by the name of the relay (or "tls", "node-shim"), and why."""


def install(directory: Path, *, say: Callable[[str], None]) -> Programs:
    """Build and fetch what isn't in `directory` yet. Raises NotInstallable without a C compiler."""
    directory = directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    skipped: dict[str, str] = {}
    debian = Debian(say)
    if shutil.which("cc") is None and (why := debian.install("build-essential")):
        raise NotInstallable(f"there is no C compiler, `cc`, and {why}")
    tls = ["-DWITH_TLS", "-lssl", "-lcrypto"]
    if not has_header("openssl/ssl.h") and (why := debian.install("libssl-dev")):
        skipped[TLS] = f"the load generator has no TLS: there is no openssl/ssl.h, and {why}"
        tls = []
    agent, relay = (build(directory, name, [], say) for name in ("agent", "relay"))
    load = build(directory, "load", tls, say)
    for name in ("socat", "websocketd"):
        if shutil.which(name) is None and (why := debian.install(name)):
            skipped[name] = f"there is no {name}, and {why}"
    if why := install_node_peers(directory / "peers", say):
        skipped.update(dict.fromkeys(NODE_PEERS, why))
    return Programs(directory, agent, load, relay, directory / "peers", skipped)


# C


def has_header(name: str) -> bool:
    """Whether the compiler finds it."""
    command = ["cc", "-E", "-x", "c", "-"]
    text = f"#include <{name}>\n".encode()
    return subprocess.run(command, input=text, capture_output=True, timeout=COMPILING, check=False).returncode == 0


def build(directory: Path, name: str, options: Sequence[str], say: Callable[[str], None]) -> Path:
    """The program that NAME.c and any NAME_*.c make, compiled if it is not the one of last time. Raises NotInstallable
    where it does not compile."""
    directory.mkdir(parents=True, exist_ok=True)
    sources = [NATIVE / f"{name}.c", *sorted(NATIVE.glob(f"{name}_*.c"))]
    program, known = directory / name, directory / f"{name}.built"
    # Libraries come behind what needs them.
    command = ["cc", "-O2", "-o", f"{program}.new", *map(str, sources), *options]
    contents = b"".join(path.read_bytes() for path in (*sources, *sorted(NATIVE.glob("*.h"))))
    digest = hashlib.sha256(repr(command).encode() + contents).hexdigest()
    if program.exists() and known.exists() and known.read_text() == digest:
        return program
    say(f"compiling {name}.c")
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILING, check=False)
    if done.returncode:
        raise NotInstallable(f"{name}.c does not compile: {first_line(done.stderr)}")
    Path(f"{program}.new").replace(program)
    known.write_text(digest)
    return program


# npm


def install_node_peers(directory: Path, say: Callable[[str], None]) -> str | None:
    """Install what the lock file says, and the programs that use it beside it; says why where that can't be done."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None:
        return "there is no `node`; it is not installed by itself"
    version = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=COMPILING, check=False).stdout
    if not version.startswith("v") or int(version[1:].split(".")[0]) < OLDEST_NODE:
        return f"`node` is {version.strip() or 'broken'}, and version {OLDEST_NODE} is needed"
    directory.mkdir(exist_ok=True)
    lock, installed = (PEERS / "package-lock.json").read_bytes(), directory / "installed.json"
    # JavaScript looks for packages from where the program is that asks for them.
    for path in (*PEERS.glob("*.mjs"), PEERS / "package.json", PEERS / "package-lock.json"):
        shutil.copyfile(path, directory / path.name)
    if installed.exists() and installed.read_bytes() == lock:
        return None
    if npm is None:
        return "there is no `npm`; it is not installed by itself"
    say("installing the peers of npm")
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    if why := failure(command, FETCHING, directory=directory):
        return f"`npm ci` failed: {why}"
    installed.write_bytes(lock)
    return None


# Debian


class Debian:
    """Installs packages, where that can be done without asking anybody."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._updated = False

    def install(self, package: str) -> str | None:
        """Install a package; says why, and what to do, where that can't be done."""
        if shutil.which("apt-get") is None:
            return "this is no Debian; install it by hand"
        if os.geteuid():
            return f"only root may install it: apt-get install {package}"
        self._say(f"installing Debian's {package}")
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        if not self._updated:
            # Whatever went wrong here, what is known already may be enough.
            failure(["apt-get", "update", "-qq"], INSTALLING, environment=environment)
            self._updated = True
        command = ["apt-get", "install", "-qq", "-y", "--no-install-recommends", package]
        why = failure(command, INSTALLING, environment=environment)
        return f"`apt-get install {package}` failed: {why}" if why else None


def failure(
    command: Sequence[str],
    timeout: float,
    *,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str | None:
    """Run a command that changes something, quietly; says in a line why it failed, if it did."""
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it took more than {timeout:g} seconds"
    return (first_line(done.stderr) or f"exit code {done.returncode}") if done.returncode else None


def first_line(text: str) -> str:
    """The line of an output that says what is wrong: the first one with an error in it, else the first one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower() or line.startswith("E:")), lines[0] if lines else "")
