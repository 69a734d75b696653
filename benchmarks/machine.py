"""What a run was on: processors and versions. No names of hosts or users, and no paths."""

import os
import platform
import re
import ssl
import subprocess
from importlib.metadata import version
from pathlib import Path


def machine() -> dict[str, str]:
    """What it is, by what of it; what this machine doesn't tell is left out."""
    told = {
        "processors": _processors(),
        "memory": _memory(),
        "kernel": f"{platform.system()} {platform.release().partition('-')[0]}",
        "Python": platform.python_version(),
        **{package: version(package) for package in ("trio", "websockets", "msgspec")},
        "OpenSSL": " ".join(ssl.OPENSSL_VERSION.split()[1:2]),
        "node": _said_by("node", "--version").removeprefix("v"),
        "cc": _said_by("cc", "-dumpfullversion", "-dumpversion"),
        "load average at first": f"{os.getloadavg()[0]:.1f}",
    }
    return {what: value for what, value in told.items() if value}


def _processors() -> str:
    names = re.findall(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    # What this process may use, which in a container can be fewer than there are.
    count = str(len(os.sched_getaffinity(0)))
    return f"{count} ({names[0]})" if names else count


def _memory() -> str:
    kilobytes = re.search(r"^MemTotal:\s*(\d+) kB$", _read("/proc/meminfo"), re.MULTILINE)
    return f"{int(kilobytes[1]) * 1024 / 1e9:.1f} GB" if kilobytes else ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _said_by(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
