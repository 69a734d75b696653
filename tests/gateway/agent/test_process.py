"""One agent process: real ones, from their start to their end."""

import logging
import os
import resource
import shutil
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.errors import AgentError
from acp_gateway.fence import bubblewrap, landlock
from acp_gateway.fence.plan import FenceOptions
from acp_gateway.fence.start import Start
from acp_gateway.gateway.agent import hardening
from acp_gateway.gateway.agent import process as agent_module
from acp_gateway.gateway.agent.listeners import MARK
from acp_gateway.gateway.agent.orphans import ProcessRegistry
from acp_gateway.gateway.agent.process import (
    STDERR_KEPT_SIZE,
    STDERR_LINE_SIZE,
    STDERR_LOG_SIZE,
    STDERR_TAIL_LINES,
    Agent,
    Launch,
    Spawner,
    run_agent,
    start_folder,
)
from acp_gateway.transports import framing
from acp_gateway.transports.streams import MessageSkipped
from tests.kit.doubles import TIMEOUT, Watch, open_descriptors, python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

LONG = 1000.0
"""A grace that no test waits for: what ends an agent is what the test is about."""

SHORT = 0.01
"""A grace that no test minds."""

IGNORE_EOF = "import sys, time\nprint('ready', flush=True)\nsys.stdin.read()\nwhile True: time.sleep(1000)"

# It ends after a minute: a test waits for its end without a limit, and should fail then.
IGNORE_SIGTERM = (
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(60)"
)

# Starts a process that keeps to the group and tells its id; what comes after it is the wrapper's own life.
WRAP = (
    "import subprocess, sys\n"
    "real = subprocess.Popen(['sleep', '1000'], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL{stderr})\n"
    "print(real.pid, flush=True)\n"
)
WRAPPER = WRAP.format(stderr=", stderr=subprocess.DEVNULL")


def make_launch(command: tuple[str, ...]) -> Launch:
    return Launch(
        name="test",
        command=command,
        environment={"PATH": os.environ["PATH"]},
        cwd=None,
        max_message_size=1 << 20,
        eof_grace=LONG,
        term_grace=LONG,
    )


@pytest.fixture
def registry(tmp_path: Path) -> ProcessRegistry:
    return ProcessRegistry(tmp_path / "registry")


@pytest.fixture
def spawner(registry: ProcessRegistry) -> Iterator[Spawner]:
    with Spawner(registry) as spawner:
        yield spawner


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Don't wait for the last words of those who have none."""
    monkeypatch.setattr(agent_module, "LAST_OUTPUT_TIMEOUT", SHORT)


@asynccontextmanager
async def running(launch: Launch, spawner: Spawner) -> AsyncIterator[Agent]:
    """An agent that is stopped at the end of the block."""
    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as nursery:
            agent = await nursery.start(partial(run_agent, launch, spawner))
            yield agent
            nursery.cancel_scope.cancel()


async def test_what_an_agent_starts_is_known_as_its_own_before_the_event_loop_hears_of_the_start(
    spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[set[int]] = []
    tell = trio.lowlevel.TrioToken.run_sync_soon

    def noting(self: trio.lowlevel.TrioToken, *call: Any) -> None:
        known.append(set(spawner.ancestors))
        tell(self, *call)

    monkeypatch.setattr(trio.lowlevel.TrioToken, "run_sync_soon", noting)
    async with running(make_launch(("cat",)), spawner) as agent:
        assert agent.pid in known[0]


async def read_all(agent: Agent) -> list[bytes]:
    return [message async for batch in agent.messages.stream for message in batch]


def ended_by(agent: Agent) -> object:
    data = agent.describe_end()[1]
    return data.get("signal", data.get("exitCode"))


# Starting


async def test_messages_go_both_ways(spawner: Spawner) -> None:
    async with running(make_launch(("cat",)), spawner) as agent:
        agent.messages.send_nowait([b'{"id":1}', b'{"id":2}'])
        assert [await agent.messages.stream.receive(), await agent.messages.stream.receive()] == [
            b'{"id":1}',
            b'{"id":2}',
        ]


async def test_an_agent_has_the_command_directory_and_environment_that_it_was_given_and_nothing_else(
    spawner: Spawner, tmp_path: Path
) -> None:
    code = "import os, sys; print(open('/proc/self/cmdline').read().replace(chr(0), ' ')); print(os.getcwd()); "
    launch = replace(make_launch(python(code + "print(sorted(os.environb.items()))")), cwd=str(tmp_path))
    # Python adds a locale to an environment without one.
    launch = replace(launch, environment={"NAME": "value", "OTHER": "ü", "LC_CTYPE": "C.UTF-8"})
    given = [(b"LC_CTYPE", b"C.UTF-8"), (b"NAME", b"value"), (b"OTHER", "ü".encode())]
    async with running(launch, spawner) as agent:
        said = await read_all(agent)
        assert agent.family is not None
        mark = MARK.encode(), agent.family.mark.encode()
    given = sorted([mark, *given])
    assert said == [" ".join(launch.command).encode() + b" ", bytes(tmp_path), str(given).encode()]


async def test_an_agent_ignores_the_signals_that_the_gateway_would_ignore_in_a_shell_and_no_others(
    spawner: Spawner,
) -> None:
    async with running(make_launch(("grep", "SigIgn", "/proc/self/status")), spawner) as agent:
        (ignored,) = await read_all(agent)
    mask = int(ignored.split()[1], 16)
    assert not mask & 1 << signal.SIGPIPE - 1, "a pipeline of the agent's would never end"
    assert not mask & 1 << signal.SIGXFSZ - 1


async def test_an_agent_has_the_limits_that_the_gateway_was_started_with_and_not_those_it_has_made_for_itself(
    spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setitem(hardening._inherited, resource.RLIMIT_NOFILE, 77)
    async with running(make_launch(("sh", "-c", "ulimit -Sn; ulimit -Hn")), spawner) as agent:
        soft, still_hard = await read_all(agent)
    assert soft == b"77"
    assert still_hard in (str(hard).encode(), b"unlimited")


async def test_an_agent_leads_a_session_and_a_group_of_its_own(spawner: Spawner) -> None:
    async with running(make_launch(("cat",)), spawner) as agent:
        assert agent.pid is not None
        assert os.getsid(agent.pid) == os.getpgid(agent.pid) == agent.pid != os.getsid(0)


@pytest.mark.parametrize("command", ["./bin/tool", "bin/tool", "tool"])
async def test_a_command_is_found_as_a_shell_in_the_agents_directory_would(
    command: str, spawner: Spawner, tmp_path: Path
) -> None:
    tool = tmp_path / "bin" / "tool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho found\n")
    tool.chmod(0o755)
    launch = replace(make_launch((command,)), cwd=str(tmp_path), environment={"PATH": "nowhere:bin"})
    async with running(launch, spawner) as agent:
        assert await read_all(agent) == [b"found"]


async def refusal(launch: Launch, spawner: Spawner) -> str:
    before = open_descriptors()
    with trio.fail_after(TIMEOUT), pytest.raises(AgentError) as refused:
        await run_agent(launch, spawner)
    assert open_descriptors() == before
    return str(refused.value)


async def test_a_command_that_is_not_found_is_refused_and_the_search_path_named(spawner: Spawner) -> None:
    launch = replace(make_launch(("no-such-agent",)), environment={"PATH": "/bin:/usr/bin"})
    assert await refusal(launch, spawner) == (
        "the agent test cannot be started: the command no-such-agent is not found on PATH (/bin:/usr/bin); that of "
        "a service is shorter: install it, or name it by its absolute path"
    )


async def test_a_command_that_is_where_installers_put_it_is_refused_with_the_path_to_set(
    spawner: Spawner, tmp_path: Path
) -> None:
    place = tmp_path / ".opencode/bin"
    place.mkdir(parents=True)
    (place / "opencode").write_text("#!/bin/sh\n")
    (place / "opencode").chmod(0o755)
    launch = replace(make_launch(("opencode", "acp")), environment={"PATH": "/bin", "HOME": str(tmp_path)})
    assert await refusal(launch, spawner) == (
        f"the agent test cannot be started: the command opencode is not found on PATH (/bin), but in {place}: in "
        f'[agents.test] write env = {{ PATH = "{place}:…" }}, with all folders that it needs'
    )


async def test_exit_code_127_is_explained(spawner: Spawner) -> None:
    async with running(make_launch(("sh", "-c", "PATH=/usr/bin:/bin; exec no-such-interpreter")), spawner) as agent:
        await agent.ended.wait()
        assert agent.describe_end()[0] == (
            "the agent test ended with exit code 127, as programs do that find another one not on PATH"
        )


@pytest.mark.parametrize(
    ("command", "cwd", "why"),
    [
        ("/nonexistent/absent", None, "the command /nonexistent/absent is not found"),
        ("./plain", "{}", "the command ./plain is not executable"),
        ("cat", "{}/absent", "its cwd {}/absent is not a directory"),
        ("cat", "{}/plain", "its cwd {}/plain is not a directory"),
    ],
)
async def test_a_command_or_cwd_that_cannot_be_used_is_refused_by_its_name(
    command: str, cwd: str | None, why: str, spawner: Spawner, tmp_path: Path
) -> None:
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    launch = make_launch((command.format(tmp_path),))
    launch = replace(launch, cwd=None if cwd is None else cwd.format(tmp_path))
    assert await refusal(launch, spawner) == f"the agent test cannot be started: {why.format(tmp_path)}"


async def test_a_gateway_whose_own_directory_is_gone_says_so(
    spawner: Spawner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.rmdir(tmp_path)
    assert await refusal(make_launch(("cat",)), spawner) == (
        "the agent test cannot be started: No such file or directory"
    )


async def test_a_command_that_the_system_refuses_ends_with_the_reason_on_stderr(spawner: Spawner) -> None:
    async with running(make_launch(("cat", "x" * 1_000_000)), spawner) as agent:
        await agent.ended.wait()
        assert agent.last_lines() == [f"cannot execute {shutil.which('cat')}: Argument list too long"]


async def test_an_agent_for_which_no_descriptor_is_left_is_refused_and_none_is_lost(spawner: Spawner) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Enough for one pipe and a half.
    taken = {int(descriptor) for descriptor in open_descriptors()}
    free = [number for number in range(max(taken) + 5) if number not in taken]
    await spawner.run(lambda: None)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[3], limits[1]))
    try:
        with trio.fail_after(TIMEOUT), pytest.raises(AgentError, match="Too many open files"):
            await run_agent(make_launch(("cat",)), spawner)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert {int(descriptor) for descriptor in open_descriptors()} == taken


async def test_a_file_that_is_not_a_program_ends_with_the_reason_on_stderr(spawner: Spawner, tmp_path: Path) -> None:
    (tmp_path / "agent").write_bytes(b"\x7fNOT")
    (tmp_path / "agent").chmod(0o755)
    async with running(make_launch((str(tmp_path / "agent"),)), spawner) as agent:
        await agent.ended.wait()
        assert agent.describe_end()[0] == "the agent test ended with exit code 1"
        assert agent.last_lines() == [f"cannot execute {tmp_path}/agent: Exec format error"]


async def test_what_starts_the_agent_ends_where_the_gateway_has_ended_before() -> None:
    start = Start("/bin/echo", ["echo", "started"], {})
    with start.order(1, {}) as order:
        command, environment = start.launched_by(order)
        done = await trio.run_process(
            command, env=environment, capture_stdout=True, check=False, pass_fds=[order.fileno()]
        )
    assert (done.returncode, done.stdout) == (1, b"")


async def test_a_start_that_is_cancelled_leaves_nothing_behind(spawner: Spawner) -> None:
    await spawner.run(lambda: None)
    before = open_descriptors()
    with trio.fail_after(TIMEOUT), trio.CancelScope() as scope:
        scope.cancel()
        await run_agent(make_launch(("cat",)), spawner)
    assert open_descriptors() == before
    assert spawner.ancestors == {os.getpid()}


async def test_a_launch_does_not_show_the_environment() -> None:
    launch = replace(make_launch(("cat",)), environment={"KEY": "a secret"})
    assert "a secret" not in repr(launch)


# Ending by itself


async def test_an_agent_that_exits_at_once_is_reported_with_its_exit_code(spawner: Spawner) -> None:
    async with running(make_launch(python("")), spawner) as agent:
        assert await read_all(agent) == []
        await agent.ended.wait()
        assert agent.describe_end() == (
            "the agent test ended with exit code 0",
            {"reason": "agent_ended", "agent": "test", "exitCode": 0},
        )
        assert agent.last_lines() == []


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGSEGV, "SIGSEGV"), (signal.SIGRTMIN + 1, f"signal {signal.SIGRTMIN + 1}")]
)
async def test_an_agent_that_a_signal_ended_is_reported_with_its_name(number: int, name: str, spawner: Spawner) -> None:
    async with running(make_launch(python(f"import os; os.kill(os.getpid(), {int(number)})")), spawner) as agent:
        await agent.ended.wait()
        assert agent.describe_end()[0] == f"the agent test was ended by {name}"
        assert ended_by(agent) == name


async def test_an_agent_that_dies_in_mid_line_is_read_to_the_last_byte(spawner: Spawner) -> None:
    code = """import os; os.write(1, b'{"id":1}\\n{"id":'); os._exit(3)"""
    async with running(make_launch(python(code)), spawner) as agent:
        await agent.ended.wait()
        assert await read_all(agent) == [b'{"id":1}', b'{"id":']
        assert ended_by(agent) == 3


async def test_what_an_agent_wrote_is_read_although_it_died_with_its_input_unread(spawner: Spawner) -> None:
    code = "import os, sys; sys.stdin.readline(); print('last words', flush=True); os._exit(0)"
    async with running(make_launch(python(code)), spawner) as agent:
        agent.messages.send_nowait([b"go", b" " * (1 << 20) + b"x"])
        await agent.ended.wait()
        assert agent.messages.stream.pending_bytes
        await trio.testing.wait_all_tasks_blocked()
        assert await read_all(agent) == [b"last words"]


async def test_an_agent_that_closes_its_stdin_is_read_to_its_last_words_and_given_up(
    spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(framing, "LAST_READ_TIMEOUT", SHORT)
    code = "import os, time; input(); print('bye', flush=True); os.close(0); time.sleep(1000)"
    async with running(replace(make_launch(python(code)), eof_grace=SHORT), spawner) as agent:
        agent.messages.send_nowait([b"go", b"x" * (1 << 20)])
        assert await agent.messages.stream.receive() == b"bye"
        with pytest.raises(trio.BrokenResourceError):
            await agent.messages.stream.receive()
        assert not agent.ended.is_set()


async def test_what_could_not_be_written_at_once_is_written_by_and_by(spawner: Spawner) -> None:
    code = "import sys; sys.stdin.readline(); print(len(sys.stdin.readline()), flush=True); sys.stdin.read()"
    async with running(make_launch(python(code)), spawner) as agent:
        agent.messages.send_nowait([b"go"])
        agent.messages.send_nowait([b"x" * (1 << 20)])
        assert agent.messages.stream.pending_bytes
        assert await agent.messages.stream.receive() == b"1048577"
        assert agent.messages.stream.pending_bytes == 0


async def test_a_line_above_the_limit_is_left_out_with_an_error_that_names_the_setting(spawner: Spawner) -> None:
    launch = replace(make_launch(python("print('x' * 1001 + '\\n{}', flush=True); input()")), max_message_size=1000)
    async with running(launch, spawner) as agent:
        with pytest.raises(MessageSkipped, match=r"1,001 bytes .* max_message_size \(1,000 bytes\)"):
            await agent.messages.stream.receive()
        assert await agent.messages.stream.receive() == b"{}"


# stderr


async def stderr_of(code: str, spawner: Spawner) -> list[str]:
    async with running(make_launch(python("import os\n" + code)), spawner) as agent:
        await agent.ended.wait()
        return agent.last_lines()


KEY = b"-----BEGIN RSA PRIVATE KEY-----\n" + b"c2VjcmV0\n" * 8 + b"-----END RSA PRIVATE KEY-----\n"

STDERR: dict[str, tuple[bytes, list[str]]] = {
    "the last lines are kept": (
        b"".join(b"line %d\n" % n for n in range(1000)),
        [f"line {n}" for n in range(1000 - STDERR_TAIL_LINES, 1000)],
    ),
    "a last line without its end is kept": (b"one\ntwo", ["one", "two"]),
    "blank lines are passed over": (b"\n  \none\r\n\n", ["one"]),
    "lines are cut": (
        b"a" * 399 + b"b" * 10 + b"\n" + b"c" * 400 + b"\n",
        ["a" * 399 + "b …", "c" * STDERR_LINE_SIZE],
    ),
    "a very long line is kept as a short one": (b"z" * 50_000, ["z" * STDERR_LINE_SIZE + " …"]),
    "what is not text is shown as far as it is": (
        b"\x1b[31mred\x1b[0m \xff \x07bell\x1b]0;title\xe2\x80\xa8\n",
        ["red \ufffd \\x07bell\\x1b]0;title"],
    ),
    "a token": (b"cannot log in with acpgw_0123456789\n", ["cannot log in with acpgw_…"]),
    "colours within a secret": (b"GET /?api_key=\x1b[31mhunter2\x1b[0m&x=1\n", ["GET /?api_key=…&x=1"]),
    "a key": (b"before\n" + KEY + b"after\n", ["before", "…", "after"]),
    "the end of a key": (b"x\n" * 20 + KEY + b"after\n" * 15, ["…", *["after"] * 15]),
    "a secret at the cut": (b"." * 395 + b"sk-0123456789abcdef0123456789\n", ["." * 395 + "…"]),
    "a secret at the end of what is kept": (
        b"." * (STDERR_KEPT_SIZE - 10) + b"sk-0123456789abcdef0123456789\n",
        ["." * STDERR_LINE_SIZE + " …"],
    ),
    "marks": (b"a\xe2\x80\xaeb\xc2\x9b31m\xe2\x80\x8bc\n", ["a\\u202eb\\x9b31m\\u200bc"]),
}


@pytest.mark.parametrize("case", STDERR)
async def test_stderr_is_kept_by_lines_redacted_and_escaped(case: str, spawner: Spawner) -> None:
    written, lines = STDERR[case]
    assert await stderr_of(f"os.write(2, {written!r})", spawner) == lines


async def test_ten_megabytes_on_stderr_delay_nothing_and_fill_neither_the_log_nor_the_memory(
    spawner: Spawner, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    code = (
        "import os, sys\nfor _ in range(100): os.write(2, (b'y' * 49 + b'\\n') * 2000)\n"
        "os.write(2, b'the end\\n'); print('done', flush=True); sys.stdin.read()"
    )
    async with running(replace(make_launch(python(code)), log_stderr=True), spawner) as agent:
        assert await agent.messages.stream.receive() == b"done"
    assert agent.last_lines() == ["y" * 49] * (STDERR_TAIL_LINES - 1) + ["the end"]
    logged = [record for record in caplog.records if f"({agent.pid}) stderr: " in record.getMessage()]
    assert STDERR_LOG_SIZE <= 49 * len(logged) < STDERR_LOG_SIZE + 49
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [f"agent test ({agent.pid}) writes much to stderr; no more of it is logged"]


async def test_stderr_is_logged_only_where_that_is_asked_for_and_redacted(
    spawner: Spawner, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    launch = make_launch(python(f"import os; os.write(2, b'acpgw_0123\\n' + {KEY!r} + b'\\x1b[2Jend\\n')"))
    async with running(launch, spawner) as agent:
        await agent.ended.wait()
    assert "stderr: " not in caplog.text
    assert "ended with exit code 0; `serve --verbose` logs what it writes to stderr" in caplog.text
    for level, asked in ((logging.INFO, True), (logging.DEBUG, False)):
        caplog.clear()
        caplog.set_level(level)
        async with running(replace(launch, log_stderr=asked), spawner) as agent:
            await agent.ended.wait()
        logged = [record.getMessage().partition(" stderr: ")[2] for record in caplog.records]
        assert [text for text in logged if text] == ["acpgw_…", "…", "end"]
        assert "--verbose" not in caplog.text


# The ladder


async def test_an_agent_reads_all_its_input_before_the_end_of_it(spawner: Spawner, tmp_path: Path) -> None:
    code = f"import sys; open({str(tmp_path / 'size')!r}, 'w').write(str(len(sys.stdin.read())))"
    async with running(make_launch(python(code)), spawner) as agent:
        agent.messages.send_nowait([b"x" * 1_000_000])
    assert ended_by(agent) == 0
    assert (tmp_path / "size").read_text() == "1000001"


# It waits for the signal: a handler does not interrupt a sleep that begins right after it has run.
HEED_SIGTERM = (
    "import signal, sys\nsignal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\nprint('ready', flush=True)\n"
    "signal.sigwait({signal.SIGTERM})\nsys.exit(7)"
)


@pytest.mark.parametrize(
    ("code", "graces", "end"),
    [
        ("import sys\nprint('ready', flush=True)\nsys.stdin.read()", (LONG, LONG), 0),
        (IGNORE_EOF, (SHORT, LONG), "SIGTERM"),
        (IGNORE_SIGTERM, (SHORT, SHORT), "SIGKILL"),
        (HEED_SIGTERM, (SHORT, LONG), 7),
        ("import time\nprint('ready', flush=True)\ntime.sleep(1000)", (SHORT, LONG), "SIGTERM"),
    ],
    ids=["heeds the end of its input", "ignores it", "ignores SIGTERM", "heeds SIGTERM", "does not read"],
)
async def test_an_agent_is_stopped_by_the_end_of_its_input_then_sigterm_then_sigkill(
    code: str, graces: tuple[float, float], end: object, spawner: Spawner
) -> None:
    launch = replace(make_launch(python(code)), eof_grace=graces[0], term_grace=graces[1])
    async with running(launch, spawner) as agent:
        assert await agent.messages.stream.receive() == b"ready"
        if "sleep(1000)" in code and "signal" not in code:
            agent.messages.send_nowait([b"x" * 1_000_000])
    assert ended_by(agent) == end


@pytest.mark.skipif(bubblewrap.find() is None, reason="bubblewrap is not installed, or not allowed")
@pytest.mark.parametrize(("code", "end"), [(IGNORE_EOF, "SIGTERM"), (HEED_SIGTERM, 7)], ids=["dies of it", "heeds it"])
async def test_sigterm_reaches_an_agent_in_bubblewrap(code: str, end: object, spawner: Spawner, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    options = FenceOptions(
        value="bubblewrap", workspaces=[(str(tmp_path / "work"), True)], scratch=str(tmp_path / "scratch")
    )
    launch = replace(make_launch(python(code)), cwd=str(tmp_path / "work"), fence=options, eof_grace=SHORT)
    async with running(launch, spawner) as agent:
        assert await agent.messages.stream.receive() == b"ready"
    assert ended_by(agent) == end


def test_a_fenced_agent_starts_in_its_first_workspace_and_not_where_the_gateway_was_started(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    roots = [(str(tmp_path / "missing"), True), (str(tmp_path / "work"), True)]
    options = FenceOptions(value="on", workspaces=roots, scratch=str(tmp_path / "scratch"))
    launch = make_launch(("agent",))
    assert start_folder(launch) == os.getcwd()
    assert start_folder(replace(launch, fence=options)) == str(tmp_path / "work")
    assert start_folder(replace(launch, fence=options, cwd="/elsewhere")) == "/elsewhere"
    with pytest.raises(AgentError, match="its clients may use no workspace: name one in"):
        start_folder(replace(launch, fence=replace(options, workspaces=[])))


@pytest.mark.skipif(bubblewrap.find() is None, reason="bubblewrap is not installed, or not allowed")
async def test_what_a_fence_refused_is_not_told_with_the_end(spawner: Spawner, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "private").write_text("")
    options = FenceOptions(
        value="bubblewrap", workspaces=[(str(tmp_path / "work"), True)], scratch=str(tmp_path / "scratch")
    )
    command = python(f"open('{tmp_path}/private')")
    launch = replace(make_launch(command), cwd=str(tmp_path / "work"), fence=options)
    async with running(launch, spawner) as agent:
        await agent.ended.wait()
        # All clients get this.
        assert "private" not in repr(agent.describe_end())
        assert f"its fence refuses {tmp_path}/private: add it to readable of" in agent.describe_refusal()


async def test_an_agent_that_blocks_on_its_full_stdout_gets_rid_of_it_and_ends_at_the_end_of_its_input(
    spawner: Spawner,
) -> None:
    # One line, longer than what is allowed: what is thrown away is not a message.
    code = "import os, sys; os.write(1, b'.'); sys.stdout.write('x' * 5_000_000 + '\\n' * 5); sys.stdin.read()"
    async with running(replace(make_launch(python(code)), max_message_size=10), spawner) as agent:
        with pytest.raises(MessageSkipped):
            await read_all(agent)
    assert ended_by(agent) == 0


async def test_what_an_agent_writes_while_it_is_stopped_is_relayed_to_the_last_byte(spawner: Spawner) -> None:
    code = "import sys\nprint('begun', flush=True)\nsys.stdin.read()\nfor n in range(20000): print(n)"
    heard: list[bytes] = []
    async with running(make_launch(python(code)), spawner) as agent:
        assert await agent.messages.stream.receive() == b"begun"

        async def relay() -> None:
            heard.extend(await read_all(agent))

        agent.relay_rest = relay
    assert heard == [b"%d" % number for number in range(20000)]


async def test_a_bug_in_relaying_the_last_messages_does_not_leave_the_agent_behind(
    spawner: Spawner, caplog: pytest.LogCaptureFixture
) -> None:
    async def relay() -> None:
        raise ZeroDivisionError

    async with running(make_launch(python("import sys; sys.stdin.read(); print('x' * 1_000_000)")), spawner) as agent:
        agent.relay_rest = relay
    assert ended_by(agent) == 0
    assert "internal error, its last messages are lost" in caplog.text


async def test_an_agent_that_reads_only_when_its_output_is_drained_does_not_deadlock(spawner: Spawner) -> None:
    code = (
        "import sys\nfor _ in range(100): print('x' * 50_000)\nsys.stdout.flush()\n"
        "print(len(sys.stdin.readline()), flush=True)\nsys.stdin.read()"
    )
    async with running(make_launch(python(code)), spawner) as agent:
        agent.messages.send_nowait([b"y" * 5_000_000])
        assert [len(await agent.messages.stream.receive()) for _ in range(100)] == [50_000] * 100
        assert await agent.messages.stream.receive() == b"5000001"


async def test_what_an_agent_wrote_is_read_when_it_has_ended_already(spawner: Spawner) -> None:
    async with running(make_launch(python("print('one\\ntwo')")), spawner) as agent:
        await agent.ended.wait()
        assert await read_all(agent) == [b"one", b"two"]


# What an agent started itself


async def pid_of_the_real_agent(wrapper: Agent) -> int:
    return int(await wrapper.messages.stream.receive())


async def test_the_grandchild_behind_a_wrapper_ends_with_the_ladder(spawner: Spawner) -> None:
    async with running(make_launch(python(WRAPPER + "sys.stdin.read()")), spawner) as agent:
        real = Watch(await pid_of_the_real_agent(agent))
    await real.gone()


async def test_the_grandchild_behind_a_wrapper_has_time_to_save_although_the_wrapper_ends_at_once(
    spawner: Spawner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "LAST_OUTPUT_TIMEOUT", TIMEOUT)
    saved = tmp_path / "saved"
    real = (
        f"import pathlib, signal, time\n"
        f"signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\nprint('ready', flush=True)\n"
        f"signal.sigwait([signal.SIGTERM])\n"
        f"time.sleep(0.2)  # Saving takes its time.\n"
        f"pathlib.Path({str(saved)!r}).touch()"
    )
    wrapper = f"import subprocess, time\nsubprocess.Popen({list(python(real))!r})\ntime.sleep(1000)"
    async with running(replace(make_launch(python(wrapper)), eof_grace=SHORT), spawner) as agent:
        assert await agent.messages.stream.receive() == b"ready"
    assert saved.exists()


async def test_the_grandchild_of_an_agent_that_has_ended_is_killed(spawner: Spawner) -> None:
    async with running(make_launch(python(WRAPPER + "sys.stdin.readline()")), spawner) as agent:
        real = Watch(await pid_of_the_real_agent(agent))
        agent.messages.send_nowait([b"end"])
        await real.gone()
        await agent.ended.wait()


async def test_a_grandchild_with_a_group_of_its_own_in_the_agents_session_is_killed_too(spawner: Spawner) -> None:
    code = (
        "import subprocess, sys\nfar = subprocess.Popen(['sleep', '1000'], process_group=0,"
        " stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "print(far.pid, flush=True)\nsys.stdin.readline()"
    )
    async with running(make_launch(python(code)), spawner) as agent:
        far = Watch(await pid_of_the_real_agent(agent))
        agent.messages.send_nowait([b"end"])
        await far.gone()


async def test_a_grandchild_that_holds_stderr_open_is_killed_after_the_last_words(
    spawner: Spawner, hurry: None
) -> None:
    async with running(make_launch(python(WRAP.format(stderr="") + "sys.stdin.readline()")), spawner) as agent:
        real = Watch(await pid_of_the_real_agent(agent))
        agent.messages.send_nowait([b"end"])
        await real.gone()
        await agent.ended.wait()


async def test_what_an_agent_has_started_ends_with_it_whatever_session_it_has_made_and_the_log_names_it(
    spawner: Spawner, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    code = (
        "import subprocess, sys\ndef start(): return subprocess.Popen(['sleep', '1000'], start_new_session=True,"
        " stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid\n"
        "for line in sys.stdin: print(start(), flush=True)"
    )
    async with running(make_launch(python(code)), spawner) as agent:
        started = agent.descendants
        assert started is not None
        agent.messages.send_nowait([b"helper"])
        helper = await pid_of_the_real_agent(agent)
        assert (await started.look()).started == ()
        await started.note_ready()
        agent.messages.send_nowait([b"work"])
        work = await pid_of_the_real_agent(agent)
        look = await started.look()
        assert ([stat.pid for stat in look.started], look.seconds >= 0) == ([work], True)
        left = Watch(helper), Watch(work)
    for watch in left:
        await watch.gone()
    ends = [text for text in caplog.messages if "ends with" in text]
    assert ends == [f"agent test ({agent.pid}) ends with what it has started: sleep ({work})"]


# Starts a process in a session of its own, whose parent has ended.
LEAVE = """
import os, subprocess, sys
code = '''
import subprocess
null = subprocess.DEVNULL
print(subprocess.Popen(["sleep", "1000"], start_new_session=True, stdin=null, stdout=null, stderr=null).pid)
'''
subprocess.run([sys.executable, "-c", code])
sys.stdin.readline()
"""


@pytest.mark.skipif(landlock.abi() < landlock.SCOPE_ABI, reason="this kernel's Landlock has no scopes")
async def test_nothing_outlives_an_agent_in_landlock_whatever_group_and_session_it_is_in(
    spawner: Spawner, tmp_path: Path
) -> None:
    (tmp_path / "work").mkdir()
    options = FenceOptions(
        value="landlock", workspaces=[(str(tmp_path / "work"), True)], scratch=str(tmp_path / "scratch")
    )
    launch = replace(make_launch(python(LEAVE)), cwd=str(tmp_path / "work"), fence=options)
    async with running(launch, spawner) as agent, running(launch, spawner) as other:
        left, others = Watch(await pid_of_the_real_agent(agent)), Watch(await pid_of_the_real_agent(other))
        agent.messages.send_nowait([b"end"])
        await agent.ended.wait()
        await left.gone()
        # Another agent's, and the gateway's own, are outside of that fence.
        assert others.is_there()
    await others.gone()


async def test_a_process_that_left_the_group_and_holds_the_pipes_does_not_hold_up_the_end(
    spawner: Spawner, hurry: None
) -> None:
    code = (
        "import subprocess, sys\nfar = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "print(far.pid, flush=True)\nsys.stdin.readline()"
    )
    pid = None
    try:
        async with running(make_launch(python(code)), spawner) as agent:
            pid = await pid_of_the_real_agent(agent)
            agent.messages.send_nowait([b"end", b"x" * 1_000_000])
            await agent.ended.wait()
            # What is still to be written to it is not waited for.
            agent.messages.send_nowait([b"more"])
    finally:
        if pid is not None:
            os.kill(pid, signal.SIGKILL)


# Being known


async def test_an_agent_is_in_the_process_registry_while_it_runs(spawner: Spawner, tmp_path: Path) -> None:
    async with running(make_launch(("cat",)), spawner) as agent:
        (entry,) = (tmp_path / "registry").iterdir()
        assert entry.name.startswith(f"{agent.pid}_")
    assert list((tmp_path / "registry").iterdir()) == []


async def test_an_agent_counts_as_an_ancestor_of_agents_for_as_long_as_it_runs(spawner: Spawner) -> None:
    assert spawner.ancestors == {os.getpid()}
    async with running(make_launch(("cat",)), spawner) as agent:
        assert spawner.ancestors == {os.getpid(), agent.pid}
        agent.messages.send_nowait([b"end"])
    assert spawner.ancestors == {os.getpid()}


async def test_agents_leave_no_descriptor_open(spawner: Spawner) -> None:
    async with running(make_launch(("cat",)), spawner):
        pass
    before = open_descriptors()
    for command in [("cat",), python(""), python(IGNORE_EOF)]:
        async with running(replace(make_launch(command), eof_grace=SHORT), spawner):
            pass
    assert open_descriptors() == before


@pytest.mark.parametrize("missing", [("pidfd_open",), ("pidfd_open", "waitid")])
async def test_an_agent_is_waited_for_in_a_thread_where_the_system_has_no_other_way(
    missing: Sequence[str], spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in missing:
        monkeypatch.delattr(os, name)
    async with running(make_launch(("cat",)), spawner) as agent:
        pass
    assert ended_by(agent) == 0


async def test_a_bug_while_an_agent_is_attended_to_does_not_leave_it_behind(
    spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keep(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(agent_module._Process, "_keep", keep)
    with pytest.raises(ExceptionGroup) as raised:
        async with running(make_launch(python("import sys; print('x', file=sys.stderr); sys.stdin.read()")), spawner):
            await trio.sleep_forever()
    assert raised.group_contains(ZeroDivisionError)
    assert spawner.ancestors == {os.getpid()}


# The thread


async def test_everything_is_spawned_from_one_thread_which_ends_with_the_block(registry: ProcessRegistry) -> None:
    with Spawner(registry) as spawner:
        first, second = await spawner.run(threading.current_thread), await spawner.run(threading.current_thread)
        assert first is second is not threading.current_thread()
        assert first.is_alive()
    assert not first.is_alive()


async def test_what_the_thread_started_is_known_also_to_those_who_were_cancelled(spawner: Spawner) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        assert await spawner.run(lambda: 7) == 7


async def test_everything_else_goes_on_while_the_thread_is_busy(spawner: Spawner) -> None:
    go_on = threading.Event()
    released: list[bool] = []

    async def wait_in_thread() -> None:
        released.append(await spawner.run(partial(go_on.wait, TIMEOUT)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_in_thread)
        await trio.testing.wait_all_tasks_blocked()
        go_on.set()
    assert released == [True]


async def test_an_error_in_the_thread_is_an_error_here(spawner: Spawner) -> None:
    with pytest.raises(FileNotFoundError):
        await spawner.run(lambda: os.close(os.open("/no such file", os.O_RDONLY)))


async def test_the_kernel_kills_an_agent_when_the_thread_that_started_it_ends(registry: ProcessRegistry) -> None:
    # What makes the thread's long life necessary.
    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as nursery:
            with Spawner(registry) as spawner:
                launch = make_launch(python(IGNORE_SIGTERM))
                agent: Agent = await nursery.start(partial(run_agent, launch, spawner))
                assert await agent.messages.stream.receive() == b"ready"
            await agent.ended.wait()
            nursery.cancel_scope.cancel()
    assert ended_by(agent) == "SIGKILL"


@pytest.mark.slow
async def test_an_agent_that_was_idle_for_fifteen_seconds_is_still_alive(spawner: Spawner) -> None:
    # Threads of Trio's own end when they have been idle for ten.
    async with running(make_launch(("cat",)), spawner) as agent:
        await trio.sleep(15)
        agent.messages.send_nowait([b"still there?"])
        assert await agent.messages.stream.receive() == b"still there?"
    assert ended_by(agent) == 0
