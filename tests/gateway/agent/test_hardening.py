"""`harden` and its effect on children, in processes of their own, because it can't be undone."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.gateway.agent import hardening

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="about what Linux offers")

ROOT = Path(__file__).parents[3]

SOFT = 256
"""Descriptors that a process of these tests may have at first."""

OTHER_USER = 65534


def hardened(code: str, *, hard: int | None = None, user: int | None = None) -> Any:
    """Return what a process prints as JSON that begins with `SOFT` descriptors, is hardened and runs `code`."""
    _, largest = resource.getrlimit(resource.RLIMIT_NOFILE)
    program = f"""
import ctypes, json, os, resource, subprocess, sys
from acp_gateway.gateway.agent import hardening
NOFILE, CORE = resource.RLIMIT_NOFILE, resource.RLIMIT_CORE
resource.setrlimit(NOFILE, ({SOFT}, {hard or largest}))
resource.setrlimit(CORE, (resource.getrlimit(CORE)[1],) * 2)
before = resource.getrlimit(CORE)[0]
if {user!r} is not None:
    os.setgroups([]); os.setgid({user!r}); os.setuid({user!r})
hardening.harden()
{code}
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    return json.loads(ended.stdout)


def test_a_hardened_process_has_no_core_dump_and_is_not_dumpable() -> None:
    code = "print(json.dumps([resource.getrlimit(CORE)[0], ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)]))"
    assert hardened(code) == [0, 0]


def test_a_hardened_process_may_have_as_many_descriptors_as_the_system_allows() -> None:
    code = "print(json.dumps(resource.getrlimit(NOFILE)))"
    assert hardened(code, hard=1024) == [1024, 1024]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hardening.MAX_DESCRIPTORS
    assert hardened(code) == [most if hard == resource.RLIM_INFINITY else min(hard, most), hard]


def test_a_limit_that_is_high_enough_is_left_alone() -> None:
    code = "print(json.dumps([resource.getrlimit(NOFILE)[0], NOFILE in hardening.inherited_limits()]))"
    assert hardened(code, hard=SOFT) == [SOFT, False]


def test_children_are_to_have_what_the_process_was_started_with() -> None:
    code = (
        "print(json.dumps([hardening.inherited_limits()[NOFILE], hardening.inherited_limits().get(CORE, 0) == before]))"
    )
    assert hardened(code) == [SOFT, True]


def test_to_harden_twice_does_not_forget_what_was_before() -> None:
    assert hardened("hardening.harden(); print(json.dumps(hardening.inherited_limits()[NOFILE]))") == SOFT


# Waits for a line, and prints its own soft limits then.
CHILD = """
import resource
input()
print(*[resource.getrlimit(number)[0] for number in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)])
"""


def test_a_child_that_runs_already_gets_its_limits_back() -> None:
    code = f"""
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdin=-1, stdout=-1, text=True)
hardening.give_limits_back(child.pid)
print(json.dumps([*map(int, child.communicate("go\\n")[0].split()), before]))
"""
    nofile, core, core_before = hardened(code)
    assert nofile == SOFT
    assert core == core_before


def test_a_child_that_is_gone_is_not_a_trouble() -> None:
    code = """
child = subprocess.Popen(["true"])
child.wait()
hardening.give_limits_back(child.pid)
print("0")
"""
    assert hardened(code) == 0


def test_a_process_that_is_not_hardened_changes_nothing_for_its_children() -> None:
    assert hardening.inherited_limits() == {}


unprivileged = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

# What another process of the same user could do to read the memory of process PID.
SPY = """
import ctypes, json, os, sys
pid = int(sys.argv[1])
found = []
for name in ("mem", "environ", "maps"):
    try:
        open(f"/proc/{pid}/{name}", "rb").close()
        found.append(name)
    except PermissionError:
        pass
if ctypes.CDLL(None).ptrace(0x4206, pid, 0, 0) == 0:  # PTRACE_SEIZE
    found.append("ptrace")
print(json.dumps(found), flush=True)
"""


def spied_out(preparation: str) -> list[str]:
    """Return what another process of the same user can do to a process that did this."""
    program = f"""
import ctypes, json, os, sys
from acp_gateway.gateway.agent import hardening
os.setgroups([]); os.setgid({OTHER_USER}); os.setuid({OTHER_USER})
# Becoming another user has the same effect until the next exec; a gateway is who it is from the start.
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
{preparation}
pid = os.fork()
if pid == 0:
    # Not a program of its own: this user may have no right to start this Python.
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
    sys.argv = ["spy", str(os.getppid())]
    exec({SPY!r})
    os._exit(0)
os.waitpid(pid, 0)
"""
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=True, timeout=60)
    found: list[str] = json.loads(ended.stdout)
    return found


@unprivileged
def test_another_process_of_the_same_user_cannot_read_the_memory_of_a_hardened_one() -> None:
    assert {"mem", "environ", "maps"} <= set(spied_out("pass"))
    assert spied_out("hardening.harden()") == []
