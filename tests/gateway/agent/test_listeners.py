"""The ports of agents' processes, in a made-up /proc and in the real one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from acp_gateway.gateway.agent.listeners import MARK, Family, _read_tables, find_listeners, find_owned, has_tables
from acp_gateway.gateway.agent.orphans import PROC, ProcessStat, read_stat

HEAD = "  sl  local_address\n"
AGENT = ProcessStat(700, "S", 1, 700, 700, 1000)


class MadeUp:
    """A folder like /proc."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[str] = []
        (path / "self/net").mkdir(parents=True)
        self.write()

    def write(self) -> None:
        (self.path / "self/net/tcp").write_text(HEAD + "".join(self.rows))

    def listens(self, port: int, inode: int) -> None:
        self.rows.append(f"0: 0100007F:{port:04X} 0:0 0A 0:0 0:0 0 {os.geteuid()} 0 {inode} 1\n")
        self.write()

    def process(
        self, pid: int, parent: int, *, session: int = 700, inode: int | None = None, mark: str = "", line: str = "x"
    ) -> None:
        folder = self.path / str(pid)
        (folder / "fd").mkdir(parents=True)
        started = 1000 if pid == 700 else 2000
        numbers = " ".join(map(str, [parent, session, session, *[0] * 15, started, 0, 0]))
        (folder / "stat").write_text(f"{pid} (p{pid}) S {numbers}")
        (folder / "cmdline").write_text(line.replace(" ", "\0"))
        (folder / "environ").write_text(f"HOME=/\0{MARK}={mark}\0" if mark else "HOME=/\0")
        (folder / "cwd").symlink_to("/srv")
        (folder / "fd/0").symlink_to("/dev/null")
        if inode is not None:
            (folder / "fd/3").symlink_to(f"socket:[{inode}]")


@pytest.fixture
def proc(tmp_path: Path) -> MadeUp:
    made_up = MadeUp(tmp_path / "proc")
    made_up.process(700, 1)
    return made_up


def ports(proc: MadeUp, helpers: frozenset[tuple[int, int]] | None = frozenset()) -> list[int]:
    families = {"a": Family(AGENT, "marked", helpers)}
    return [each.listener.port for each, _ in find_owned(families, {}, proc=proc.path)]


def test_a_child_of_the_agent_is_found_with_its_program_and_its_folder(proc: MadeUp) -> None:
    proc.process(701, 700, inode=5, line="python3 -m http.server 8000")
    proc.listens(8000, 5)
    ((owned, program),) = find_owned({"a": Family(AGENT, "marked")}, {}, proc=proc.path)
    assert (owned.owner, owned.listener.port, owned.pid) == ("a", 8000, 701)
    assert (program.name, program.folder) == ("http.server", "/srv")


def test_the_api_of_the_agent_itself_is_left_out(proc: MadeUp) -> None:
    (proc.path / "700/fd/3").symlink_to("socket:[7]")
    for pid in 701, 702:
        proc.process(pid, 700, inode=pid)
        proc.listens(pid, pid)
    proc.listens(7000, 7)
    assert ports(proc) == [701, 702]
    assert ports(proc, frozenset({(701, 2000), (702, 1)})) == [702]
    # Before the agent is ready, all that it has is its own.
    assert ports(proc, None) == []


def test_a_daemon_that_has_left_the_family_is_found_by_its_mark(proc: MadeUp) -> None:
    for pid, mark in (801, "marked"), (802, "another"), (803, ""):
        proc.process(pid, 1, session=pid, inode=pid, mark=mark)
        proc.listens(pid, pid)
    assert ports(proc) == [801]


def test_a_process_of_another_agent_gets_nothing_by_a_mark(proc: MadeUp) -> None:
    proc.process(900, 1, session=900)
    proc.process(901, 900, session=900, inode=5, mark="marked")
    proc.listens(8000, 5)
    families = {"a": Family(AGENT, "marked"), "b": Family(ProcessStat(900, "S", 1, 900, 900, 2000), "b")}
    assert [each.owner for each, _ in find_owned(families, {}, proc=proc.path)] == ["b"]


def test_without_a_listener_no_process_is_looked_at(proc: MadeUp, monkeypatch: pytest.MonkeyPatch) -> None:
    def unused(_: Path) -> list[ProcessStat]:
        raise AssertionError("nothing is to be looked at")

    monkeypatch.setattr("acp_gateway.gateway.agent.listeners.all_processes", unused)
    assert ports(proc) == []


def test_a_system_without_tables_tells_nothing(tmp_path: Path) -> None:
    assert not has_tables(tmp_path)
    assert find_listeners(tmp_path) == []
    assert find_owned({"a": Family(AGENT, "marked")}, {}, proc=tmp_path) == []


DAEMON = """
import os, socket, sys
near, far = os.pipe()
if not os.fork():
    os.setsid()
    if os.fork():
        os._exit(0)
    sock = socket.create_server(("127.0.0.1", 0))
    os.write(far, b"%d %d" % (sock.getsockname()[1], os.getpid()))
    while True:
        sock.accept()
os.wait()
os.close(far)
print(os.read(near, 100).decode(), flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not has_tables(), reason="this system has no /proc/net/tcp")
def test_a_real_daemon_of_an_agent_is_found() -> None:
    command = [sys.executable, "-I", "-S", "-c", DAEMON]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={MARK: "marked"},
        start_new_session=True,
    ) as agent:
        assert agent.stdout is not None
        port, daemon = map(int, agent.stdout.readline().split())
        try:
            leader = read_stat(agent.pid)
            assert leader is not None
            found = [each.listener for each, _ in find_owned({"a": Family(leader, "marked")}, {})]
            assert [each.port for each in found] == [port]
            assert find_listeners(port=port) == found
            assert found[0] in find_listeners()
            assert [it for it in _read_tables(PROC) if it.port == port] == found
            assert find_owned({"a": Family(leader, "another")}, {}) == []
        finally:
            os.kill(daemon, signal.SIGKILL)
