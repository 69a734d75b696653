"""Several processes of pytest that share the files of tests: `--processes 3`. Each takes the next when it has run one.

A process imports and collects only the files that it runs, and reports once for each test. With pytest-xdist each
process collects all tests.
"""

import contextlib
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, pairwise
from multiprocessing.connection import Connection, wait
from typing import Any, BinaryIO, Final

import pytest

SIZE: Final = 4
"""Bytes of the number of the next file, which is in a pipe while no process has its turn."""
LAST: Final = 256**SIZE - 1
"""Number after those of all files."""

ENDS: Final = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
"""Statuses of a process that has come to its end, perhaps with a file without tests."""

PATIENCE: Final = 60
"""Seconds in which a process that was interrupted has to clean up."""


def add_options(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, default=0, help="number of processes that share the files of tests")
    parser.addoption("--process", metavar="DESCRIPTORS", help="used by --processes")


def configure(config: pytest.Config) -> None:
    """Share the tests if that is asked for."""
    if config.getoption("--process"):
        config.pluginmanager.register(Process(config))
    elif config.getoption("--processes") and not config.option.collectonly:
        config.pluginmanager.register(Overseer(config))


@contextlib.contextmanager
def without_garbage() -> Iterator[None]:
    """Look for no garbage in the tests, which is a third of the work of collecting them in a fresh checkout."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def take(turn: Sequence[int]) -> int:
    """Wait until no other process has its turn, and return the number of the next file."""
    return int.from_bytes(os.read(turn[0], SIZE))


def give(turn: Sequence[int], number: int) -> None:
    """Give the turn to another process."""
    os.write(turn[1], number.to_bytes(SIZE))


class Overseer:
    """Plugin of the process that starts the others, and reports what they report."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._count: int = config.getoption("--processes")
        self._turn = os.pipe()
        give(self._turn, 0)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> bool:
        """Collect nothing here."""
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Report until all processes have ended."""
        reported, share = 0, 0.0
        with contextlib.ExitStack() as stack:
            running = dict(stack.enter_context(self._start()) for _ in range(self._count))
            tests = dict.fromkeys(running, "no test yet")
            while running:
                for connection in wait(list(running)):
                    assert isinstance(connection, Connection)
                    try:
                        tests[connection], begun, reports = connection.recv()
                    except EOFError:
                        begun, reports = 0, self._failure(tests[connection], *running.pop(connection))
                    reported += sum(data.get("when") == "setup" for data in reports)
                    # An estimate, for the progress that is shown.
                    share = max(share, begun)
                    session.testscollected = max(reported, round(reported / (share or 1)))
                    for data in reports:
                        self._report(data)
                # The other tests of their files are run.
                if session.shouldfail:
                    take(self._turn)
                    give(self._turn, LAST)
        session.testscollected = reported
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        return True

    @contextlib.contextmanager
    def _start(self) -> Iterator[tuple[Connection, tuple[subprocess.Popen[bytes], BinaryIO]]]:
        """Start a process, which ends with this one."""
        ours, theirs = multiprocessing.Pipe(duplex=False)
        parameters = self._config.invocation_params
        descriptors = (*self._turn, theirs.fileno())
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *parameters.args, "--process", ",".join(map(str, descriptors))],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=parameters.dir,
                pass_fds=descriptors,
            )
            theirs.close()
            try:
                yield ours, (process, output)
            finally:
                end(process)

    def _report(self, data: dict[str, Any]) -> None:
        """Report a part of a test, or a file that can't be collected."""
        hook = self._config.hook
        report = hook.pytest_report_from_serializable(config=self._config, data=data)
        if isinstance(report, pytest.CollectReport):
            hook.pytest_collectreport(report=report)
        else:
            hook.pytest_runtest_logreport(report=report)

    def _failure(self, test: str, process: subprocess.Popen[bytes], output: BinaryIO) -> list[dict[str, Any]]:
        """Return a failure of the test that a process ran when it ended before its time."""
        if (status := process.wait()) in ENDS:
            return []
        output.seek(0)
        words = f"{output.read().decode(errors='replace')}\nThe process of these tests ended with status {status}."
        report = pytest.TestReport(test, (test, None, test), {}, "failed", words, "setup")
        return [serialize(self._config, report)]


class Process:
    """Plugin of each of the other processes, which runs the tests of one file after another."""

    def __init__(self, config: pytest.Config) -> None:
        *self._turn, connection = map(int, config.getoption("--process").split(","))
        self._connection = Connection(connection, readable=False)
        self._config = config
        self._files: list[pytest.Item | pytest.Collector] = []
        self._defers = False
        self._share = 0.0
        self._reports: list[dict[str, Any]] = []
        # By this, pytest knows that it writes no cache and no file with results.
        vars(config)["workerinput"] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> bool:
        """Collect nothing in advance."""
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests. A file is collected before the last test of another, so fixtures of the session live on."""
        try:
            for item, following in pairwise(chain(self._items(session), [None])):
                assert item is not None
                self._send(item.nodeid)
                self._config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
        finally:
            self._send("after all tests")
        return True

    def _items(self, session: pytest.Session) -> Iterator[pytest.Item]:
        """Collect the tests of one file after another."""
        files = self._find_files(session)
        sizes = list(accumulate(file.path.stat().st_size for file in files))
        while (number := take(self._turn)) < len(files):
            give(self._turn, number + 1)
            with without_garbage():
                items = list(session.genitems(files[number]))
                self._config.hook.pytest_collection_modifyitems(session=session, config=self._config, items=items)
            self._share = sizes[number] / sizes[-1]
            yield from items
        give(self._turn, LAST)

    def _find_files(self, session: pytest.Session) -> list[pytest.Item | pytest.Collector]:
        """Return the files, not imported, or the tests that arguments name. Long files are first: they last."""
        self._defers = not any("::" in argument for argument in self._config.args)
        items = session.perform_collect()
        self._defers = False
        return sorted(self._files or items, key=lambda node: (-node.path.stat().st_size, node.nodeid))

    @pytest.hookimpl(tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> pytest.CollectReport | None:
        """Find nothing in a file until its turn."""
        if not self._defers or not isinstance(collector, pytest.File):
            return None
        self._files.append(collector)
        return pytest.CollectReport(collector.nodeid, "passed", None, [])

    def _send(self, test: str) -> None:
        """Send the reports that have been made since, and the name of the test that is run next."""
        self._connection.send((test, self._share, self._reports))
        self._reports.clear()

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(serialize(self._config, report))

    @pytest.hookimpl
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._reports.append(serialize(self._config, report))


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that has not ended by itself."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
        process.kill()
        process.wait()


def serialize(config: pytest.Config, report: pytest.CollectReport | pytest.TestReport) -> dict[str, Any]:
    """Return what a report becomes between processes."""
    data: dict[str, Any] = config.hook.pytest_report_to_serializable(config=config, report=report)
    return data
