"""The order for the launcher."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from acp_gateway.fence import launcher
from acp_gateway.fence.start import Start

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="fences are Linux's")

LONG = Start("/bin/agent", ["agent", "x" * 100_000], {})


def small_pipe() -> tuple[int, int]:
    """Return a pipe as a user gets it who has very many of them."""
    near, far = os.pipe2(os.O_CLOEXEC)
    fcntl.fcntl(far, fcntl.F_SETPIPE_SZ, 4096)
    return near, far


def test_an_order_is_read_as_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pipe", small_pipe)
    with LONG.order(7, {}) as file:
        order = json.load(file)
    assert (order["gateway"], order["command"]) == (7, LONG.command)


def test_an_order_that_does_not_fit_is_an_error_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pipe", small_pipe)
    real = fcntl.fcntl
    monkeypatch.setattr(
        fcntl, "fcntl", lambda far, what, size=0: 200_000 if what == fcntl.F_GETPIPE_SZ else real(far, what, size)
    )
    with pytest.raises(OSError, match="too many pipes"):
        LONG.order(7, {})


_UPGRADED = """
import os, subprocess
from pathlib import Path
from acp_gateway.fence import landlock, launcher
from acp_gateway.fence.start import Start

for module in (launcher, landlock):
    Path(module.__file__).write_text("raise SystemExit('another version')")
rules = {"files": False, "read": [], "write": [], "look": [], "ports": None, "scoped": False}
start = Start("/usr/bin/env", ["env"], {}, landlock=rules if landlock.abi() else None)
with start.order(os.getpid(), {}) as order:
    command, environment = start.launched_by(order)
    subprocess.run(command, env=environment, pass_fds=[order.fileno()])
"""


def test_an_agent_starts_although_its_gateway_was_upgraded_on_the_disk(tmp_path: Path) -> None:
    installed, copy = Path(launcher.__file__).parents[1], tmp_path / "acp_gateway"
    copy.mkdir()
    for entry in installed.iterdir():
        (copy / entry.name).symlink_to(entry)
    (copy / "fence").unlink()
    shutil.copytree(installed / "fence", copy / "fence", ignore=shutil.ignore_patterns("__pycache__"))
    started = subprocess.run([sys.executable, "-c", _UPGRADED], cwd=tmp_path, capture_output=True, text=True)
    # The texts of the launcher are not for the agent.
    assert (started.stdout, started.stderr) == ("", "")
