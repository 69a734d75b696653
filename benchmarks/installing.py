"""Builds and installs the programs that the benchmark runs beside this project.

The load generator, the agent and the relays in C are compiled, and the peers are installed from npm by their lock file
and from PyPI, into a directory of the benchmark. Missing Debian packages are installed if the process runs as root. An
unavailable program is skipped and its reason reported; only a missing C compiler ends the benchmark.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
NATIVE: Final = HERE / "native"
PEERS: Final = HERE / "peers"

OUT: Final = HERE.parent / "build" / "bench"
"""Directory of built programs and of results."""
PROGRAMS: Final = OUT / "programs"

TLS: Final = "tls"
"""Key in `Programs.skipped` if the load generator has no TLS."""

PAGE: Final = "page"
"""Key in `Programs.skipped` if there is no browser, or no Playwright to drive it."""

BROWSERS: Final = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""Browsers that can be driven; any of them will do."""

NODE_PEERS: Final = ("stdio-to-ws", "sdk", "sdk-http", "node-ws", "node-shim")
PYTHON_PEERS: Final = ("python-sdk-http",)
OLDEST_NODE: Final = 20
"""First major version whose releases all have `--import`; newer than the packages require."""

COMPILING, FETCHING, INSTALLING = 60, 180, 300
"""Timeouts of a compiler run, of `npm ci` or `pip install`, and of `apt-get`, in seconds."""


class NotInstallable(Exception):
    """A program can't be installed; the message names it, the reason and the remedy in one line."""


@dataclass(frozen=True)
class Programs:
    """Installed programs."""

    directory: Path
    """Directory of all programs, and of temporary files while the benchmark runs."""
    agent: Path
    load: Path
    relay: Path
    peers: Path
    """Directory of the JavaScript peers and their `node_modules`."""
    python_peers: Path
    """Directory of the peers in Python and the packages that they import."""
    skipped: Mapping[str, str]
    """Reason for each missing program, by the name of its relay (or "tls", "node-shim", "page")."""


def install(directory: Path, *, log: Callable[[str], None]) -> Programs:
    """Build and install the programs missing in `directory`. Raises NotInstallable without a C compiler."""
    directory = directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    skipped: dict[str, str] = {}
    debian = Debian(log)
    if shutil.which("cc") is None and (why := debian.install("build-essential")):
        raise NotInstallable(f"there is no C compiler, `cc`, and {why}")
    tls = ["-DWITH_TLS", "-lssl", "-lcrypto"]
    if not has_header("openssl/ssl.h") and (why := debian.install("libssl-dev")):
        skipped[TLS] = f"the load generator has no TLS: there is no openssl/ssl.h, and {why}"
        tls = []
    agent, relay = (build(directory, name, [], log) for name in ("agent", "relay"))
    load = build(directory, "load", tls, log)
    for name in ("socat", "websocketd"):
        if shutil.which(name) is None and (why := debian.install(name)):
            skipped[name] = f"there is no {name}, and {why}"
    if find_browser() is None and (why := debian.install(BROWSERS[0])):
        skipped[PAGE] = f"there is no browser, and {why}"
    if find_spec("playwright") is None:
        skipped[PAGE] = "there is no Playwright: pip install --requirement benchmarks/requirements.txt"
    if why := install_node_peers(directory / "peers", log):
        skipped.update(dict.fromkeys(NODE_PEERS, why))
    if why := install_python_peers(directory / "python-peers", log):
        skipped.update(dict.fromkeys(PYTHON_PEERS, why))
    return Programs(directory, agent, load, relay, directory / "peers", directory / "python-peers", skipped)


# C


def has_header(name: str) -> bool:
    """Check that the C compiler finds a header."""
    command = ["cc", "-E", "-x", "c", "-"]
    text = f"#include <{name}>\n".encode()
    return subprocess.run(command, input=text, capture_output=True, timeout=COMPILING, check=False).returncode == 0


def build(directory: Path, name: str, options: Sequence[str], log: Callable[[str], None]) -> Path:
    """Compile NAME.c and any NAME_*.c, unless sources and command are unchanged, and return the program's path.

    Raises NotInstallable if it does not compile.
    """
    directory.mkdir(parents=True, exist_ok=True)
    sources = [NATIVE / f"{name}.c", *sorted(NATIVE.glob(f"{name}_*.c"))]
    program, known = directory / name, directory / f"{name}.built"
    # The linker needs libraries behind the objects that use them.
    command = ["cc", "-O2", "-o", f"{program}.new", *map(str, sources), *options]
    contents = b"".join(path.read_bytes() for path in (*sources, *sorted(NATIVE.glob("*.h"))))
    digest = hashlib.sha256(repr(command).encode() + contents).hexdigest()
    if program.exists() and known.exists() and known.read_text() == digest:
        return program
    log(f"compiling {name}.c")
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILING, check=False)
    if done.returncode:
        raise NotInstallable(f"{name}.c does not compile: {first_line(done.stderr)}")
    Path(f"{program}.new").replace(program)
    known.write_text(digest)
    return program


# npm


def install_node_peers(directory: Path, log: Callable[[str], None]) -> str | None:
    """Install the packages of the lock file beside the scripts that use them; return the reason if that fails."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None:
        return "`node` is not installed; the benchmark does not install it"
    version = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=COMPILING, check=False).stdout
    if not version.startswith("v") or int(version[1:].split(".")[0]) < OLDEST_NODE:
        return f"`node` is {version.strip() or 'broken'}, but version {OLDEST_NODE} or later is required"
    directory.mkdir(exist_ok=True)
    lock, installed = (PEERS / "package-lock.json").read_bytes(), directory / "installed.json"
    # Node resolves packages from the directory of the importing script.
    for path in (*PEERS.glob("*.mjs"), PEERS / "package.json", PEERS / "package-lock.json"):
        shutil.copyfile(path, directory / path.name)
    if installed.exists() and installed.read_bytes() == lock:
        return None
    if npm is None:
        return "`npm` is not installed; the benchmark does not install it"
    log("installing the npm peers")
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    if why := failure(command, FETCHING, directory=directory):
        return f"`npm ci` failed: {why}"
    installed.write_bytes(lock)
    return None


# PyPI


def install_python_peers(directory: Path, log: Callable[[str], None]) -> str | None:
    """Install packages beside the scripts that use them; return the reason if that fails."""
    requirements, installed = PEERS / "requirements.txt", directory / "installed.txt"
    directory.mkdir(exist_ok=True)
    shutil.copyfile(PEERS / "python_sdk_server.py", directory / "python_sdk_server.py")
    wanted = f"{sys.version}\n{requirements.read_text()}"
    if installed.exists() and installed.read_text() == wanted:
        return None
    log("installing the Python peers")
    # Not into the environment of the gateway, whose packages would change with them.
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
    command += ["--target", str(directory), "--requirement", str(requirements)]
    if why := failure(command, FETCHING):
        return f"`pip install` failed: {why}"
    installed.write_text(wanted)
    return None


# Debian


def find_browser() -> str | None:
    """Return the path of a browser that can be driven; None without one."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


class Debian:
    """Installs Debian packages without prompting; root only."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._updated = False

    def install(self, package: str) -> str | None:
        """Install a package; return the reason and the remedy if that fails."""
        if shutil.which("apt-get") is None:
            return "this system has no apt-get; install it by hand"
        if os.geteuid():
            return f"only root may install it: apt-get install {package}"
        self._log(f"installing the Debian package {package}")
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        if not self._updated:
            # After a failed update, the package lists of an earlier one may do.
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
    """Run a command without output; return one line with the reason if it fails, else None."""
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
    """Return the first line that mentions an error, else the first line, else an empty string."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower() or line.startswith("E:")), lines[0] if lines else "")
