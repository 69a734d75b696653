"""Settings for all tests."""

import contextlib
import gc
import importlib
import os
import signal
import tempfile
import time
from collections.abc import Generator
from inspect import iscoroutinefunction
from pathlib import Path

import pytest
from hypothesis import settings

from tests.fuzz.effort import effort
from tests.kit.clocks import run_ahead
from tests.kit.doubles import SMALLEST_CONFIG
from tests.kit.jumping_clock import wait_for_threads
from tests.kit.schedule import order_tasks

# A slow machine is not a failure, and a failure must come back when the test is run again.
settings.register_profile("repeatable", effort(100))
settings.load_profile("repeatable")
wait_for_threads()

# Tests, and the programs that they start, have the same environment on every machine: no locale, token, proxy or
# service manager of the caller's. A test that reads or writes settings below HOME by mistake fails.
KEPT = {"PATH", "LD_LIBRARY_PATH", "TMPDIR", "TEST_SEED", "TEST_FENCE", "EDITORS"}
KEPT_PREFIXES = ("PYTEST_", "COVERAGE_", "FUZZ_")
for variable in set(os.environ) - KEPT:
    if not variable.startswith(KEPT_PREFIXES):
        del os.environ[variable]
os.environ["HOME"] = "/proc/nonexistent"  # Root can't make it either.
time.tzset()

# What tests write is not for others: files that others may change are refused.
os.umask(0o022)

MEMORY = Path("/dev/shm")
"""Directory in memory, where the system has one."""

LONGEST_TMPDIR = 20
"""Characters of a TMPDIR below which sockets of tests can be."""


def holds_temporary_files(directory: Path) -> bool:
    """Return True if programs can be run from a directory, and a gibibyte is free."""
    if not os.access(directory, os.W_OK):
        return False
    status = os.statvfs(directory)
    return status.f_flag & os.ST_NOEXEC == 0 and status.f_bavail * status.f_frsize > 2**30


# Tests that write durably spend most of their time waiting for a disk. The path of a unix socket has 107 bytes at most:
# below a long TMPDIR, those of tests would have more.
if holds_temporary_files(MEMORY):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
elif len(tempfile.gettempdir()) > LONGEST_TMPDIR and holds_temporary_files(Path("/tmp")):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/tmp")

# Under `nohup` this is ignored, by the programs that tests start as well.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The smallest configuration file, with its state beside it."""
    path = tmp_path / "config.toml"
    path.write_text(SMALLEST_CONFIG.format(directory=tmp_path))
    return path


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--schedule", type=int, default=0, help="number of the order in which Trio runs ready tasks")
    parser.addoption(
        "--throttle", type=int, default=1, help="how many times slower the programs of pages run; not in Firefox"
    )


def pytest_report_header(config: pytest.Config) -> str:
    return f"schedule: {config.getoption('--schedule')}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Look for no garbage in the tests, which is a third of the work of collecting them in a fresh checkout."""
    gc.disable()
    try:
        import_tests(session)
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def import_tests(session: pytest.Session) -> None:
    """Import the tests first in another order in each of several processes of pytest.

    All of them collect all tests. In a fresh checkout each file is rewritten by the process that comes to it first,
    which takes three times as long as to read the result: in one order, all processes would rewrite all files.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None or session.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    root = session.config.rootpath
    files = sorted((root / "tests").rglob("test_*.py"))
    begin = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for file in files[begin:] + files[:begin]:
        # What can't be imported is told by the collection.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(file.relative_to(root).with_suffix("").parts))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests that are marked `jumps` their clock."""
    for item in items:
        if item.get_closest_marker("jumps") and isinstance(item, pytest.Function) and iscoroutinefunction(item.obj):
            item.add_marker(pytest.mark.trio(run=run_ahead))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Let the order of tasks follow from the test and the schedule only."""
    order_tasks(f"{item.config.getoption('--schedule')} {item.nodeid}")
