"""Peer credentials of a unix socket, and agents among the peers."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from acp_gateway.gateway.agent.orphans import ProcessStat
from acp_gateway.server.authentication import PeerCredentials, belongs_to_agent, has_no_new_privileges, peer_credentials

on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells who connected")

AGENT = 700
GATEWAY = 500


def process(pid: int, *, parent: int, session: int) -> ProcessStat:
    return ProcessStat(pid=pid, state="S", parent=parent, group=session, session=session, started=1)


FAMILY = {
    stat.pid: stat
    for stat in (
        process(GATEWAY, parent=1, session=GATEWAY),
        process(AGENT, parent=GATEWAY, session=AGENT),
        process(701, parent=AGENT, session=AGENT),
        process(702, parent=701, session=702),  # Started by the agent in a session of its own.
        process(703, parent=1, session=AGENT),  # Its parent, an agent's process, has ended.
        process(704, parent=705, session=704),  # Its parent cannot be looked at.
        process(706, parent=0, session=0),  # Came into this container from outside.
        process(800, parent=1, session=800),  # A terminal ...
        process(801, parent=800, session=800),  # ... and an editor in it.
    )
}


def belongs(pid: int, *sessions: int) -> bool:
    return belongs_to_agent(pid, set(sessions), read_stat=FAMILY.get)


@pytest.mark.parametrize(
    ("pid", "who"),
    [
        (AGENT, "the agent"),
        (701, "its child"),
        (702, "its grandchild, in another session"),
        (703, "an orphan in its session"),
    ],
)
def test_an_agents_family_belongs_to_it(pid: int, who: str) -> None:
    assert belongs(pid, 600, AGENT), who


@pytest.mark.parametrize("pid", [1, GATEWAY, 706, 800, 801])
def test_other_processes_belong_to_no_agent(pid: int) -> None:
    assert not belongs(pid, 600, AGENT)


@pytest.mark.parametrize("pid", [701, 702, 703])
def test_without_agents_no_process_belongs_to_one(pid: int) -> None:
    assert not belongs(pid)


@pytest.mark.parametrize("pid", [0, -1, 9999, 704])
def test_what_cannot_be_found_out_is_taken_for_an_agent(pid: int) -> None:
    assert belongs(pid)


def test_a_family_that_goes_in_circles_is_taken_for_an_agents() -> None:
    circle = {pid: process(pid, parent=parent, session=pid) for pid, parent in ((2, 3), (3, 4), (4, 2))}
    assert belongs_to_agent(2, {AGENT}, read_stat=circle.get)


@on_linux
def test_the_two_ends_of_a_pair_are_this_process() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert peer_credentials(ours) == PeerCredentials(os.getpid(), os.geteuid(), os.getegid())


def test_a_socket_that_is_not_a_unix_socket_has_no_credentials() -> None:
    with socket.socket(socket.AF_INET) as sock:
        assert peer_credentials(sock) is None


def test_a_system_that_does_not_say_who_connected_has_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "SO_PEERCRED", raising=False)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert peer_credentials(ours) is None


CHILD_THAT_CONNECTS = (
    "import socket, sys;"
    "sock = socket.socket(socket.AF_UNIX); sock.connect(sys.argv[1]);"
    "sock.recv(1)"  # Lives until the other end closes.
)


@on_linux
def test_a_real_child_of_a_real_agent_is_found_out(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        listener.settimeout(10)
        agent = subprocess.Popen(
            # Python has to be a child of this shell, which therefore has something to do after it.
            ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-S", "-c", CHILD_THAT_CONNECTS, tmp_path / "socket"],
            start_new_session=True,
        )
        accepted, _ = listener.accept()
        with accepted:
            peer = peer_credentials(accepted)
            assert peer is not None
            assert peer.pid != agent.pid
            assert peer.uid == os.geteuid()
            assert belongs_to_agent(peer.pid, {agent.pid})
            assert not belongs_to_agent(peer.pid, set())
        assert agent.wait() == 0


@pytest.mark.parametrize(("status", "fenced"), [("NoNewPrivs:\t0\n", False), ("NoNewPrivs:\t1\n", True), ("", True)])
def test_a_process_that_may_be_in_a_fence_is_told_by_the_system(status: str, fenced: bool, tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text(f"Name:\tNoNewPrivs: 0\n{status}")
    assert has_no_new_privileges(7, tmp_path) == fenced
    assert has_no_new_privileges(8, tmp_path)
