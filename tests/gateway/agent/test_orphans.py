"""Agents that outlived their gateway: real ones, and doubtful ones in a made-up /proc."""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from acp_gateway.gateway.agent.orphans import ProcessRegistry, ProcessStat, kill_session, process_start_time, read_stat

on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells processes apart")

BOOT = "49ba31c3-4840-4746-8600-bb286a2988b2"
OTHER_BOOT = "00000000-4840-4746-8600-bb286a2988b2"

GATEWAY_STARTED = 500
AGENT = 700
AGENT_STARTED = 1000


class FakeProc:
    """A /proc with the processes that a test wants, this one among them as the gateway, and a kill that only notes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.killed: list[tuple[int, int]] = []
        self.boot(BOOT)
        self.process(os.getpid(), started=GATEWAY_STARTED)

    def boot(self, boot_id: str) -> None:
        file = self.path / "sys/kernel/random/boot_id"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(boot_id + "\n")

    def process(
        self,
        pid: int,
        *,
        started: int,
        group: int | None = None,
        session: int | None = None,
        state: str = "S",
        name: str = "agent",
    ) -> None:
        group = pid if group is None else group
        session = group if session is None else session
        (self.path / str(pid)).mkdir(exist_ok=True)
        (self.path / str(pid) / "stat").write_text(
            f"{pid} ({name}) {state} 1 {group} {session} 0 -1 4194560 9 0 0 0 0 0 0 0 20 0 1 0 {started} 3133440 348\n"
        )

    def end(self, pid: int) -> None:
        (self.path / str(pid) / "stat").unlink()

    def kill_group(self, group: int, number: int) -> None:
        self.killed.append((group, number))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "agents"


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path / "proc")


def registry_of(path: Path, proc: FakeProc) -> ProcessRegistry:
    return ProcessRegistry(path, proc=proc.path, kill_group=proc.kill_group)


def record_for_a_gateway_that_is_gone(path: Path, proc: FakeProc) -> None:
    """Leave an entry for AGENT; afterwards this process is another gateway, which has the id of the first again."""
    proc.process(AGENT, started=AGENT_STARTED)
    registry_of(path, proc).record(AGENT, f"{BOOT}:{AGENT_STARTED}")
    proc.process(os.getpid(), started=GATEWAY_STARTED + 9000)


def entries(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


# Reading /proc


def test_a_process_is_read_with_its_family(proc: FakeProc) -> None:
    proc.process(812, group=810, session=800, started=4711, state="R")
    assert read_stat(812, proc.path) == ProcessStat(812, "R", 1, 810, 800, 4711)


@pytest.mark.parametrize("name", ["a b", "(sd-pam)", ") R 1 2 3 (", "tmux: server", "", "\n", "\udcff"])
def test_a_name_may_look_like_the_fields_after_it(proc: FakeProc, name: str) -> None:
    proc.process(812, group=810, session=800, started=4711)
    stat = proc.path / "812" / "stat"
    stat.write_bytes(stat.read_bytes().replace(b"agent", name.encode(errors="surrogateescape")))
    assert read_stat(812, proc.path) == ProcessStat(812, "S", 1, 810, 800, 4711)


def test_a_process_that_is_gone_reads_as_nothing(proc: FakeProc) -> None:
    assert read_stat(812, proc.path) is None
    assert process_start_time(812, proc.path) is None


@pytest.mark.parametrize("content", [b"", b"812 (agent) S 1 2", b"812 (agent) S 1 x y " + b"0 " * 40])
def test_what_is_not_a_stat_reads_as_nothing(proc: FakeProc, content: bytes) -> None:
    proc.process(812, started=1)
    (proc.path / "812" / "stat").write_bytes(content)
    assert read_stat(812, proc.path) is None


def test_a_start_time_tells_boots_apart(proc: FakeProc) -> None:
    first = process_start_time(os.getpid(), proc.path)
    proc.boot(OTHER_BOOT)
    assert (first, process_start_time(os.getpid(), proc.path)) == (f"{BOOT}:500", f"{OTHER_BOOT}:500")


@on_linux
def test_this_process_is_found_in_the_real_proc() -> None:
    stat = read_stat(os.getpid())
    assert stat is not None
    assert (stat.parent, stat.group, stat.session) == (os.getppid(), os.getpgid(0), os.getsid(0))
    assert process_start_time(os.getpid()) == process_start_time(os.getpid())


# Recording and forgetting


def test_what_was_forgotten_is_no_longer_recorded(path: Path, proc: FakeProc) -> None:
    registry = registry_of(path, proc)
    for group in (700, 70, 800):
        registry.record(group, f"{BOOT}:{group}")
    registry.forget(70)
    assert [entry.split("_")[0] for entry in entries(path)] == ["700", "800"]


def test_forgetting_leaves_the_entry_of_another_gateway_alone(path: Path, proc: FakeProc) -> None:
    record_for_a_gateway_that_is_gone(path, proc)
    before = entries(path)
    registry_of(path, proc).forget(AGENT)
    assert entries(path) == before


def test_forgetting_what_was_never_recorded_is_nothing(path: Path, proc: FakeProc) -> None:
    registry_of(path, proc).forget(AGENT)
    assert not path.exists()


def test_the_process_registry_is_readable_by_its_owner_alone(path: Path, proc: FakeProc) -> None:
    registry_of(path, proc).record(AGENT, f"{BOOT}:{AGENT_STARTED}")
    assert path.stat().st_mode & 0o777 == 0o700
    assert [entry.stat().st_mode & 0o777 for entry in path.iterdir()] == [0o600]


def test_a_process_registry_that_cannot_be_written_is_logged(
    path: Path, proc: FakeProc, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.write_text("occupied")
    registry_of(path, proc).record(AGENT, f"{BOOT}:{AGENT_STARTED}")
    assert [(record.name, record.levelno) for record in caplog.records] == [
        ("acp_gateway.gateway.agent.orphans", logging.WARNING)
    ]


def test_without_a_proc_nothing_is_recorded_and_nothing_swept(tmp_path: Path, path: Path) -> None:
    registry = ProcessRegistry(path, proc=tmp_path / "no proc", kill_group=lambda *_: pytest.fail("killed"))
    registry.record(AGENT, f"{BOOT}:{AGENT_STARTED}")
    assert not path.exists()
    assert registry.reap() == []


# Sweeping, in a made-up /proc


def test_an_agent_whose_gateway_cannot_be_seen_but_is_there_is_left_alone(path: Path, proc: FakeProc) -> None:
    proc.process(AGENT, started=AGENT_STARTED)
    registry_of(path, proc).record(AGENT, f"{BOOT}:{AGENT_STARTED}")
    # As /proc looks with hidepid to another gateway.
    proc.end(os.getpid())
    assert registry_of(path, proc).reap() == []
    assert proc.killed == []
    assert len(entries(path)) == 1


def test_an_agent_whose_gateway_is_gone_is_killed_and_forgotten(path: Path, proc: FakeProc) -> None:
    record_for_a_gateway_that_is_gone(path, proc)
    assert registry_of(path, proc).reap() == [AGENT]
    assert proc.killed == [(AGENT, signal.SIGKILL)]
    assert entries(path) == []


def test_what_the_leader_left_behind_is_killed(path: Path, proc: FakeProc) -> None:
    record_for_a_gateway_that_is_gone(path, proc)
    proc.end(AGENT)
    proc.process(701, group=AGENT, started=AGENT_STARTED)
    assert registry_of(path, proc).reap() == [AGENT]


def test_an_agent_that_has_ended_is_only_forgotten(path: Path, proc: FakeProc) -> None:
    record_for_a_gateway_that_is_gone(path, proc)
    proc.end(AGENT)
    assert registry_of(path, proc).reap() == []
    assert (proc.killed, entries(path)) == ([], [])


def test_an_agent_with_dead_processes_alone_is_not_killed(path: Path, proc: FakeProc) -> None:
    record_for_a_gateway_that_is_gone(path, proc)
    proc.process(AGENT, started=AGENT_STARTED, state="Z")
    assert registry_of(path, proc).reap() == []
    assert (proc.killed, entries(path)) == ([], [])


def test_reap_spares_a_process_with_another_start_time(path: Path, proc: FakeProc) -> None:
    record_for_a_gateway_that_is_gone(path, proc)
    proc.process(AGENT, started=AGENT_STARTED + 1)
    proc.process(701, group=AGENT, started=AGENT_STARTED + 2)
    assert registry_of(path, proc).reap() == []
    assert (proc.killed, entries(path)) == ([], [])


def test_a_process_older_than_the_agent_is_not_its_own(path: Path, proc: FakeProc) -> None:
    record_for_a_gateway_that_is_gone(path, proc)
    proc.end(AGENT)
    proc.process(701, group=AGENT, started=AGENT_STARTED - 1)
    proc.process(702, group=AGENT, started=AGENT_STARTED + 1)
    assert registry_of(path, proc).reap() == []
    assert proc.killed == []


def test_a_group_within_another_session_is_not_an_agent(path: Path, proc: FakeProc) -> None:
    record_for_a_gateway_that_is_gone(path, proc)
    proc.process(AGENT, session=600, started=AGENT_STARTED)
    assert registry_of(path, proc).reap() == []
    assert proc.killed == []


def test_after_another_boot_nothing_is_killed(path: Path, proc: FakeProc) -> None:
    record_for_a_gateway_that_is_gone(path, proc)
    proc.boot(OTHER_BOOT)
    assert registry_of(path, proc).reap() == []
    assert (proc.killed, entries(path)) == ([], [])


def test_the_agents_of_a_gateway_that_runs_are_left_alone(path: Path, proc: FakeProc) -> None:
    record_for_a_gateway_that_is_gone(path, proc)
    proc.process(os.getpid(), started=GATEWAY_STARTED)
    before = entries(path)
    assert registry_of(path, proc).reap() == []
    assert (proc.killed, entries(path)) == ([], before)


def test_reap_takes_a_zombie_gateway_for_ended(path: Path, proc: FakeProc) -> None:
    record_for_a_gateway_that_is_gone(path, proc)
    proc.process(os.getpid(), started=GATEWAY_STARTED, state="Z")
    assert registry_of(path, proc).reap() == [AGENT]


def test_an_agent_that_may_not_be_killed_is_logged_and_forgotten(
    path: Path, proc: FakeProc, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_group: int, _number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    record_for_a_gateway_that_is_gone(path, proc)
    assert ProcessRegistry(path, proc=proc.path, kill_group=refuse).reap() == []
    assert "cannot kill what is left of the agent's process group 700" in caplog.text
    assert entries(path) == []


@pytest.mark.parametrize("name", ["notes.txt", "700", "1_2_3_4", f"-1_{BOOT}:1_2_{BOOT}:3"])
def test_a_file_that_is_not_an_entry_is_left_alone(path: Path, proc: FakeProc, name: str) -> None:
    path.mkdir(parents=True)
    (path / name).touch()
    assert registry_of(path, proc).reap() == []
    assert (proc.killed, entries(path)) == ([], [name])


# Sweeping, with real processes


class Wrapper:
    """A shell in a session of its own, and a program that it started, as `npx` starts an agent."""

    def __init__(self) -> None:
        # Both hold stdout open, and end by themselves when this process does, because `cat` reads from its pipe. In
        # the background it would get /dev/null for its stdin, hence the 3.
        self.shell = subprocess.Popen(
            ["sh", "-c", "exec 3<&0; cat <&3 & echo ready; wait"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.shell.stdout is not None
        assert self.shell.stdout.readline() == b"ready\n"
        started = process_start_time(self.shell.pid)
        assert started is not None
        self.started = started

    def kill_the_shell(self) -> None:
        self.shell.kill()
        self.shell.wait()

    def wait_until_all_ended(self) -> None:
        assert self.shell.stdout is not None
        assert self.shell.stdout.read() == b""

    def close(self) -> None:
        assert self.shell.stdin is not None
        assert self.shell.stdout is not None
        self.shell.stdin.close()
        self.wait_until_all_ended()
        self.shell.stdout.close()
        self.shell.wait()


@pytest.fixture
def wrapper() -> Iterator[Wrapper]:
    wrapper = Wrapper()
    yield wrapper
    wrapper.close()


def record_in_a_gateway_that_ends(path: Path, wrapper: Wrapper) -> None:
    program = (
        "import sys; from pathlib import Path; from acp_gateway.gateway.agent.orphans import ProcessRegistry;"
        "ProcessRegistry(Path(sys.argv[1])).record(int(sys.argv[2]), sys.argv[3])"
    )
    subprocess.run([sys.executable, "-c", program, path, str(wrapper.shell.pid), wrapper.started], check=True)


@on_linux
def test_a_real_agent_that_outlived_its_gateway_is_killed_with_all_it_started(path: Path, wrapper: Wrapper) -> None:
    record_in_a_gateway_that_ends(path, wrapper)
    assert ProcessRegistry(path).reap() == [wrapper.shell.pid]
    wrapper.wait_until_all_ended()
    assert wrapper.shell.wait() == -signal.SIGKILL


@on_linux
def test_a_real_program_whose_wrapper_is_dead_is_killed(path: Path, wrapper: Wrapper) -> None:
    record_in_a_gateway_that_ends(path, wrapper)
    wrapper.kill_the_shell()
    assert ProcessRegistry(path).reap() == [wrapper.shell.pid]
    wrapper.wait_until_all_ended()


@on_linux
def test_a_real_agent_of_a_gateway_that_runs_lives_on(path: Path, wrapper: Wrapper) -> None:
    registry = ProcessRegistry(path)
    registry.record(wrapper.shell.pid, wrapper.started)
    assert registry.reap() == []
    assert wrapper.shell.poll() is None
    registry.forget(wrapper.shell.pid)
    assert entries(path) == []


def test_kill_session_without_proc_kills_no_process(tmp_path: Path) -> None:
    kill_session(1, tmp_path / "no-proc")
