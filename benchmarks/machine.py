"""Describes the machine of a run: processors and versions, without host names, user names or paths."""

import os
import platform
import re
import ssl
import subprocess
from importlib.metadata import version
from pathlib import Path


def machine() -> dict[str, str]:
    """Return the properties of this machine by name; unknown ones are left out."""
    properties = {
        "processors": _processors(),
        "memory": _memory(),
        "kernel": f"{platform.system()} {platform.release().partition('-')[0]}",
        "Python": platform.python_version(),
        **{package: version(package) for package in ("trio", "websockets", "msgspec")},
        "OpenSSL": " ".join(ssl.OPENSSL_VERSION.split()[1:2]),
        "node": _output_of("node", "--version").removeprefix("v"),
        "cc": _output_of("cc", "-dumpfullversion", "-dumpversion"),
        "load average at the start": f"{os.getloadavg()[0]:.1f}",
    }
    return {name: value for name, value in properties.items() if value}


def _processors() -> str:
    names = re.findall(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    # CPU affinity: in a container, a process may use fewer processors than the machine has.
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


def _output_of(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
