"""Real programs, small ones, which tell the test by named pipes what they do."""

import json
import logging
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from acp_gateway.config.options import HooksSection
from acp_gateway.gateway.agent import hardening
from acp_gateway.gateway.events import hooks as hooks_module
from acp_gateway.gateway.events.hooks import (
    LINE_SIZE,
    MAX_WAITING,
    MAX_WAITING_SIZE,
    STDERR_LINES,
    STDERR_SIZE,
    STRING_LENGTH,
    TERM_GRACE,
    Hooks,
    _Waiting,
    encode,
)
from tests.kit.doubles import TIMEOUT, Watch, open_descriptors, python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

ENVIRONMENT = {"PATH": os.environ["PATH"]}

HOOK_TIMEOUT = 10.0
"""Seconds that a program has. Tests jump over them."""

Command = tuple[str, ...]


class Pipe:
    """A named pipe, held open at both ends, so that no program waits for the test."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self._stream = trio.lowlevel.FdStream(os.open(path, os.O_RDWR | os.O_NONBLOCK))
        self._read = b""

    async def line(self) -> str:
        """The next line that a program wrote into it."""
        while b"\n" not in self._read:
            self._read += await self._stream.receive_some()
        line, self._read = self._read.split(b"\n", 1)
        return line.decode()

    async def send(self, data: bytes) -> None:
        """Write something for a program."""
        await self._stream.send_all(data)

    async def aclose(self) -> None:
        await self._stream.aclose()


@pytest.fixture
async def told(tmp_path: Path) -> AsyncIterator[Pipe]:
    """`$1` of the programs: what they tell the test."""
    pipe = Pipe(tmp_path / "told")
    yield pipe
    await pipe.aclose()


@pytest.fixture
async def gate(tmp_path: Path) -> AsyncIterator[Pipe]:
    """`$2` of the programs: each byte lets one of them through."""
    pipe = Pipe(tmp_path / "gate")
    yield pipe
    await pipe.aclose()


class Log(logging.Handler):
    """Messages that the hooks log, for a test to wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self._more = trio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self._more.set()
        self._more = trio.Event()

    async def until(self, count: int) -> list[tuple[str, str]]:
        """Wait for so many lines above DEBUG, and return all of them, with their levels."""
        while len(self.lines) < count:
            await self._more.wait()
        return self.lines

    async def has_run(self) -> None:
        """Wait until a program has ended well."""
        while not any(record.levelno == logging.DEBUG for record in self.records):
            await self._more.wait()

    @property
    def lines(self) -> list[tuple[str, str]]:
        """The lines above DEBUG so far, with their levels."""
        return [(record.levelname, record.getMessage()) for record in self.records if record.levelno > logging.DEBUG]


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[Log]:
    handler = Log()
    logger = logging.getLogger("acp_gateway.gateway.events.hooks")
    caplog.set_level(logging.DEBUG, logger.name)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


@pytest.fixture
def clock(mock_clock: MockClock) -> MockClock:
    """A clock that goes as others do, and jumps when it is told to."""
    mock_clock.rate = 1.0
    return mock_clock


def sh(code: str, *arguments: Path) -> Command:
    """The command of a hook that is a few lines of shell."""
    return ("sh", "-c", code, "sh", *map(str, arguments))


def make_hooks(
    on_turn_end: Command | None,
    *,
    on_permission_waiting: Command | None = None,
    environment: dict[str, str] = ENVIRONMENT,
) -> Hooks:
    section = HooksSection(on_turn_end=on_turn_end, on_permission_waiting=on_permission_waiting, timeout=HOOK_TIMEOUT)
    return Hooks(section, environment)


@asynccontextmanager
async def running(hooks: Hooks) -> AsyncIterator[Hooks]:
    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as nursery:
            await nursery.start(hooks.run)
            yield hooks
            nursery.cancel_scope.cancel()


def decode(line: bytes) -> Any:
    return json.loads(line)


def details_in(details: dict[str, Any]) -> Any:
    """Return these details as a program reads them from its line."""
    members = decode(encode("turn_end", details))
    del members["event"], members["time"]
    return members


def test_only_an_event_with_a_program_is_wanted() -> None:
    hooks = make_hooks(None, on_permission_waiting=("notify",))
    assert hooks.wants("permission_waiting")
    assert not hooks.wants("turn_end")


async def test_an_event_that_waited_for_a_program_that_is_configured_no_more_is_dropped(logged: Log) -> None:
    hooks = make_hooks(("no-such-program",))
    hooks.fire("turn_end", {})
    hooks.configure(HooksSection())
    async with trio.open_nursery() as nursery:
        await nursery.start(hooks.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert logged.lines == []


def test_other_programs_are_wanted_from_another_configuration_on() -> None:
    hooks = Hooks(HooksSection(on_turn_end=("x",)), ENVIRONMENT)
    hooks.configure(HooksSection(on_permission_waiting=("y",)))
    assert (hooks.wants("turn_end"), hooks.wants("permission_waiting")) == (False, True)


async def test_a_program_reads_one_line_of_json_and_the_end(told: Pipe) -> None:
    program = sh('cat > "$1"; echo the end > "$1"', told.path)
    async with running(make_hooks(None, on_permission_waiting=program)) as hooks:
        hooks.fire("permission_waiting", {"sessionId": "s1", "tool": {"title": "Run ls"}, "connected": 0})
        line = json.loads(await told.line())
        assert await told.line() == "the end"
    assert datetime.fromisoformat(line.pop("time")).utcoffset() == timedelta(0)
    assert line == {"event": "permission_waiting", "sessionId": "s1", "tool": {"title": "Run ls"}, "connected": 0}


async def test_each_event_has_its_own_program(told: Pipe) -> None:
    turn, permission = sh('echo turn > "$1"', told.path), sh('echo permission > "$1"', told.path)
    async with running(make_hooks(turn, on_permission_waiting=permission)) as hooks:
        hooks.fire("permission_waiting", {})
        assert await told.line() == "permission"
        hooks.fire("turn_end", {})
        assert await told.line() == "turn"


async def test_an_event_without_a_program_runs_none_and_takes_no_place(
    told: Pipe, logged: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks_module, "MAX_WAITING", 1)
    hooks = make_hooks(sh('echo turn > "$1"', told.path))
    for _ in range(3):
        hooks.fire("permission_waiting", {})
    hooks.fire("turn_end", {})
    async with running(hooks):
        assert await told.line() == "turn"
    assert logged.lines == []


async def test_what_happened_before_programs_may_run_is_not_lost(told: Pipe) -> None:
    hooks = make_hooks(sh('cat > "$1"', told.path))
    hooks.fire("turn_end", {"stopReason": "end_turn"})
    async with running(hooks):
        assert json.loads(await told.line())["stopReason"] == "end_turn"


async def test_a_program_gets_the_environment_that_an_agent_gets_unasked(told: Pipe) -> None:
    code = 'echo "$HOME $LC_ALL ${API_KEY-none} ${ACP_GATEWAY_TOKEN-none}" > "$1"'
    secrets = {"API_KEY": "k", "ACP_GATEWAY_TOKEN": "t"}
    environment = ENVIRONMENT | {"HOME": "/home/ann", "LC_ALL": "C"} | secrets
    async with running(make_hooks(sh(code, told.path), environment=environment)) as hooks:
        hooks.fire("turn_end", {})
        assert await told.line() == "/home/ann C none none"


async def test_a_program_has_the_limits_that_the_gateway_was_started_with_when_it_reads(
    told: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(hardening._inherited, resource.RLIMIT_NOFILE, 77)
    async with running(make_hooks(sh('read _; ulimit -Sn > "$1"', told.path))) as hooks:
        hooks.fire("turn_end", {})
        assert await told.line() == "77"


async def test_a_program_is_looked_for_in_the_path_of_the_gateway(told: Pipe, tmp_path: Path) -> None:
    program = tmp_path / "notify"
    program.write_text('#!/bin/sh\necho found > "$1"\n')
    program.chmod(0o700)
    path = {"PATH": f"/nowhere:{tmp_path}:{ENVIRONMENT['PATH']}"}
    async with running(make_hooks(("notify", str(told.path)), environment=path)) as hooks:
        hooks.fire("turn_end", {})
        assert await told.line() == "found"


def test_identities_take_turns_and_the_events_of_the_busiest_are_dropped_turns_first() -> None:
    waiting = _Waiting()
    for number in range(MAX_WAITING - 1):
        assert waiting.add("mallory", "permission_waiting" if number < 2 else "turn_end", b"%d" % number)
    assert waiting.add("ann", "permission_waiting", b"a1")
    assert not waiting.add("ann", "permission_waiting", b"a2")
    assert not waiting.add("mallory", "turn_end", b"last")
    assert len(waiting) == MAX_WAITING
    taken = [waiting.take()[1] for _ in range(len(waiting))]
    assert (taken[:5], len(taken)) == ([b"0", b"a1", b"1", b"a2", b"2"], MAX_WAITING)
    assert b"last" not in taken
    assert len(waiting) == 0


def test_an_event_larger_than_all_that_may_wait_is_dropped() -> None:
    waiting = _Waiting()
    assert not waiting.add("ann", "permission_waiting", b"x" * (MAX_WAITING_SIZE + 1))
    assert len(waiting) == 0


async def test_what_a_program_prints_is_discarded(told: Pipe, logged: Log, capfd: pytest.CaptureFixture[str]) -> None:
    async with running(make_hooks(sh("echo noise; echo more noise >&2"))) as hooks:
        hooks.fire("turn_end", {})
        await logged.has_run()
    assert capfd.readouterr() == ("", "")
    assert logged.lines == []


async def test_a_program_that_fails_is_logged_with_its_last_words_and_nothing_of_the_event(logged: Log) -> None:
    code = "echo no network >&2; echo; echo giving up >&2; exit 3"
    async with running(make_hooks(sh(code, Path("/secret/topic")))) as hooks:
        hooks.fire("turn_end", {"title": "private"})
        assert await logged.until(3) == [
            ("WARNING", "hooks.on_turn_end: sh ended with exit code 3"),
            ("WARNING", "hooks.on_turn_end: sh stderr: no network"),
            ("WARNING", "hooks.on_turn_end: sh stderr: giving up"),
        ]
    texts = [record.getMessage() for record in logged.records]
    assert not any("private" in text or "secret" in text for text in texts)


async def test_a_program_that_a_signal_ends_is_logged(logged: Log) -> None:
    async with running(make_hooks(sh("kill -ABRT $$"))) as hooks:
        hooks.fire("turn_end", {})
        expected = f"hooks.on_turn_end: sh was ended by signal {signal.SIGABRT:d}"
        assert await logged.until(1) == [("WARNING", expected)]


async def test_of_much_on_stderr_the_last_lines_are_logged(logged: Log) -> None:
    code = "import sys\nfor n in range(100_000): print('line', n, file=sys.stderr)\nsys.exit(1)"
    async with running(make_hooks(python(code))) as hooks:
        hooks.fire("turn_end", {})
        lines = await logged.until(1 + STDERR_LINES)
    assert [text.rpartition(" stderr: ")[2] for _, text in lines[1:]] == [
        f"line {number}" for number in range(100_000 - STDERR_LINES, 100_000)
    ]


async def test_a_line_on_stderr_can_neither_fill_the_log_nor_rewrite_the_terminal(logged: Log) -> None:
    code = "import sys; sys.stderr.buffer.write(b'x' * 100_000 + b'\\x1b[2J\\r\\xe2\\x80\\xa8\\xff!'); sys.exit(1)"
    async with running(make_hooks(python(code))) as hooks:
        hooks.fire("turn_end", {})
        (_, text) = (await logged.until(2))[1]
    assert text.isprintable()
    assert text.endswith("x\\x1b[2J  �!")
    assert len(text) < STDERR_SIZE + 100


async def test_a_program_that_hangs_is_told_to_stop_after_its_time(told: Pipe, logged: Log, clock: MockClock) -> None:
    code = "trap 'echo stopping >&2; exit 0' TERM; echo $$ > \"$1\"; while :; do sleep 1000 & wait; done"
    async with running(make_hooks(sh(code, told.path))) as hooks:
        hooks.fire("turn_end", {})
        hung = Watch(int(await told.line()))
        clock.jump(HOOK_TIMEOUT)
        await hung.gone()
        assert await logged.until(2) == [
            ("WARNING", "hooks.on_turn_end: sh was killed after 10 s (hooks.timeout)"),
            ("WARNING", "hooks.on_turn_end: sh stderr: stopping"),
        ]


async def test_a_program_that_ignores_sigterm_is_killed_with_what_it_started(
    told: Pipe, logged: Log, clock: MockClock
) -> None:
    child = 'trap "" TERM; sleep 1000 & echo $! > "$1"'
    code = child + '; trap \'echo asked > "$1"\' TERM; echo $$ > "$1"; while :; do wait; done'
    async with running(make_hooks(sh(code, told.path))) as hooks:
        hooks.fire("turn_end", {})
        started, program = Watch(int(await told.line())), Watch(int(await told.line()))
        clock.jump(HOOK_TIMEOUT)
        assert await told.line() == "asked"
        assert logged.lines == []
        clock.jump(TERM_GRACE)
        await program.gone()
        await started.gone()
        await logged.until(1)


async def test_what_a_program_leaves_behind_ends_with_it(told: Pipe, gate: Pipe, logged: Log) -> None:
    code = 'sleep 1000 & echo $! > "$1"; head -c 1 "$2" > /dev/null'
    async with running(make_hooks(sh(code, told.path, gate.path))) as hooks:
        hooks.fire("turn_end", {})
        left_behind = Watch(int(await told.line()))
        await gate.send(b"x")
        await left_behind.gone()
        await logged.has_run()
    assert logged.lines == []


async def test_what_has_left_the_process_group_with_stderr_in_its_hands_holds_nothing_up(
    told: Pipe, gate: Pipe, logged: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks_module, "STDERR_TIMEOUT", 0.01)
    # What leaves has a session of its own, so that only the gate ends it.
    code = 'setsid sh -c \'echo $$ > "$1"; head -c 1 "$2" > /dev/null\' sh "$1" "$2" & read _ < "$3"; exit 1'
    left = told.path.with_name("left")
    os.mkfifo(left)
    async with running(make_hooks(sh(code, told.path, gate.path, left))) as hooks:
        hooks.fire("turn_end", {})
        escaped = Watch(int(await told.line()))
        await trio.to_thread.run_sync(left.write_text, "go\n")
        assert await logged.until(1) == [("WARNING", "hooks.on_turn_end: sh ended with exit code 1")]
        await gate.send(b"x")
        await escaped.gone()


@pytest.mark.parametrize(
    ("mode", "content", "why"),
    [
        (None, "", "No such file or directory"),
        (0o600, "#!/bin/sh\n", "Permission denied"),
        (0o700, "no program", "Exec format error"),
    ],
)
async def test_a_program_that_cannot_be_started_is_one_line_and_tried_again_next_time(
    mode: int | None, content: str, why: str, told: Pipe, logged: Log, tmp_path: Path
) -> None:
    program = tmp_path / "notify"
    if mode is not None:
        program.write_text(content)
        program.chmod(mode)
    async with running(make_hooks((str(program), str(told.path)))) as hooks:
        hooks.fire("turn_end", {"title": "private"})
        expected = f"hooks.on_turn_end: {program} cannot be started: {why}"
        assert await logged.until(1) == [("ERROR", expected)]
        program.write_text('#!/bin/sh\necho mended > "$1"\n')
        program.chmod(0o700)
        hooks.fire("turn_end", {})
        assert await told.line() == "mended"
    assert len(logged.lines) == 1


async def test_a_program_need_not_read(told: Pipe, logged: Log) -> None:
    async with running(make_hooks(sh('exec 0<&-; echo closed > "$1"', told.path))) as hooks:
        for _ in range(2):
            hooks.fire("turn_end", {"title": "x" * STRING_LENGTH})
            assert await told.line() == "closed"
        await logged.has_run()
    assert logged.lines == []


async def test_a_program_that_neither_reads_nor_ends_keeps_only_its_own_place(told: Pipe, gate: Pipe) -> None:
    stuck = sh('echo stuck > "$1"; head -c 1 "$2" > /dev/null', told.path, gate.path)
    ready = sh('echo ready > "$1"', told.path)
    largest = {str(number): "x" * STRING_LENGTH for number in range(30)}
    async with running(make_hooks(stuck, on_permission_waiting=ready)) as hooks:
        for _ in range(hooks_module.MAX_PROGRAMS - 1):
            hooks.fire("turn_end", largest)
            assert await told.line() == "stuck"
        for _ in range(3):
            hooks.fire("permission_waiting", {})
            assert await told.line() == "ready"


async def test_only_a_few_run_at_once_and_the_others_come_in_their_turn(told: Pipe, gate: Pipe) -> None:
    code = 'echo begin > "$1"; head -c 1 "$2" > /dev/null; echo end > "$1"'
    async with running(make_hooks(sh(code, told.path, gate.path))) as hooks:
        for _ in range(6):
            hooks.fire("turn_end", {})
        assert [await told.line() for _ in range(4)] == ["begin"] * 4
        for _ in range(2):
            await gate.send(b"x")
            assert [await told.line(), await told.line()] == ["end", "begin"]


async def test_the_newest_of_too_many_events_are_dropped_and_the_log_says_so_once(
    told: Pipe, logged: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks_module, "MAX_WAITING", 2)
    monkeypatch.setattr(hooks_module, "MAX_PROGRAMS", 1)
    hooks = make_hooks(sh('cat > "$1"', told.path))
    for number in range(5):
        hooks.fire("turn_end", {"number": number})
    too_many = ("WARNING", "hooks.on_turn_end: 2 events wait for their programs already; further ones are dropped")
    assert logged.lines == [too_many]
    async with running(hooks):
        assert [json.loads(await told.line())["number"] for _ in range(2)] == [0, 1]
        for number in range(5, 9):
            hooks.fire("turn_end", {"number": number})
        assert [json.loads(await told.line())["number"] for _ in range(2)] == [5, 6]
    assert logged.lines == [too_many, too_many]


async def test_the_bytes_that_wait_are_bounded_too(told: Pipe, logged: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks_module, "MAX_WAITING_SIZE", 2 * len(encode("turn_end", {"number": 0})))
    monkeypatch.setattr(hooks_module, "MAX_PROGRAMS", 1)
    hooks = make_hooks(sh('cat > "$1"', told.path))
    for _ in range(2):
        for number in range(3):
            hooks.fire("turn_end", {"number": number})
        async with running(hooks):
            assert [json.loads(await told.line())["number"] for _ in range(2)] == [0, 1]
    assert [level for level, _ in logged.lines] == ["WARNING", "WARNING"]


def test_a_long_string_is_cut() -> None:
    details = {"title": "ä" * STRING_LENGTH, "tool": {"titles": ["x" * (STRING_LENGTH + 1), "short"]}, "connected": 2}
    cut = "x" * (STRING_LENGTH - 1) + "…"
    assert details_in(details) == details | {"tool": {"titles": [cut, "short"]}}


def test_of_an_event_that_is_still_too_large_the_largest_members_are_left_out() -> None:
    details = {"sessionId": "s1", "tool": {"titles": ["x" * 1000] * 1000}, "title": "t", "kinds": ["y"] * 10_000}
    assert details_in(details) == {"sessionId": "s1", "title": "t"}


def test_an_event_may_be_as_large_as_the_limit() -> None:
    def kinds(count: int) -> dict[str, Any]:
        return {"kinds": ["", *["x" * 100] * 305, "y" * count]}

    fits = LINE_SIZE - len(encode("turn_end", kinds(0)))
    assert len(encode("turn_end", kinds(fits))) == LINE_SIZE
    assert details_in(kinds(fits)) == kinds(fits)
    assert details_in(kinds(fits + 1)) == {}


@pytest.mark.parametrize("title", ["two\nlines\r\u2028", "half of \ud83d", "a NUL \0", '"quoted" \\', "😀ä"])
def test_whatever_a_title_holds_the_event_is_one_line_of_ascii(title: str) -> None:
    line = encode("turn_end", {"title": title})
    assert line.isascii()
    assert line.splitlines(keepends=True) == [line]
    assert details_in({"title": title}) == {"title": title}


@pytest.mark.parametrize("value", [object(), float("nan"), {("a", "b"): 1}])
def test_an_event_that_is_not_json_is_dropped_and_the_log_says_so(value: Any, logged: Log) -> None:
    make_hooks(("notify",)).fire("turn_end", {"title": "private", "value": value})
    ((level, text),) = logged.lines
    assert (level, text.partition(" (")[0]) == ("ERROR", "hooks.on_turn_end: dropped an event that is not JSON")
    assert "private" not in text


def test_an_event_that_holds_itself_is_dropped(logged: Log) -> None:
    details: dict[str, Any] = {}
    details["tool"] = details
    make_hooks(("notify",)).fire("turn_end", details)
    assert logged.lines == [("ERROR", "hooks.on_turn_end: dropped an event that is not JSON (RecursionError)")]


async def test_when_the_gateway_stops_so_does_every_program_and_nothing_stays_open(told: Pipe) -> None:
    code = 'trap \'echo asked > "$1"; exit\' TERM; echo $$ > "$1"; while :; do sleep 1000 & wait; done'
    hooks = make_hooks(sh(code, told.path))
    before = open_descriptors()
    async with running(hooks):
        for _ in range(2):
            hooks.fire("turn_end", {})
        programs = [Watch(int(await told.line())) for _ in range(2)]
    assert [await told.line() for _ in range(2)] == ["asked"] * 2
    for program in programs:
        await program.gone()
    assert open_descriptors() == before


async def test_where_the_system_has_no_descriptors_of_processes_it_works_too(
    told: Pipe, logged: Log, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = 'echo $$ > "$1"; exec sleep 1000'
    async with running(make_hooks(sh(code, told.path), on_permission_waiting=sh("exit 7"))) as hooks:
        hooks.fire("turn_end", {})
        hung = Watch(int(await told.line()))
        monkeypatch.delattr(os, "pidfd_open")
        hooks.fire("permission_waiting", {})
        assert await logged.until(1) == [("WARNING", "hooks.on_permission_waiting: sh ended with exit code 7")]
        clock.jump(HOOK_TIMEOUT)
        await hung.gone()
        await logged.until(2)


async def test_a_bug_costs_one_event_and_not_the_gateway(
    told: Pipe, logged: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_process = trio.lowlevel.open_process

    async def fail(*arguments: object, **options: object) -> None:
        monkeypatch.setattr(trio.lowlevel, "open_process", open_process)
        raise RuntimeError("can't start new thread")

    async with running(make_hooks(sh('echo fine > "$1"', told.path))) as hooks:
        monkeypatch.setattr(trio.lowlevel, "open_process", fail)
        hooks.fire("turn_end", {})
        assert await logged.until(1) == [("ERROR", "hooks.on_turn_end: a bug of the gateway")]
        assert logged.records[0].exc_info is not None
        hooks.fire("turn_end", {})
        assert await told.line() == "fine"
