"""The process at the other end of a TCP connection on this machine."""

import os
import socket
import struct
import sys
from pathlib import Path

import pytest

from acp_gateway.gateway.agent.orphans import ProcessStat
from acp_gateway.server.local_peer import (
    LocalPeer,
    Place,
    SocketOwner,
    find_holders,
    find_owner,
    identify,
    make_query,
    read_answer,
    why_foreign,
)
from tests.kit.machine import needs_ipv6

on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells who connected")

OURS, PEER = Place("127.0.0.1", 3017), Place("127.0.0.1", 40000)
UID = 1000


def answer(query: bytes, *, family: int = socket.AF_INET, state: int = 1, uid: int = UID, inode: int = 77) -> bytes:
    """The kernel's answer to a query about a socket."""
    body = struct.pack("=BBBB", family, state, 0, 0) + query[24:] + struct.pack("=IIIII", 0, 0, 0, uid, inode)
    return struct.pack("=IHHII", 16 + len(body), 20, 0, 1, 0) + body


@pytest.mark.parametrize(("ours", "peer"), [(OURS, PEER), (Place("::1", 3017), Place("::1", 40000))])
def test_the_owner_of_an_open_socket_is_read(ours: Place, peer: Place) -> None:
    query = make_query(ours, peer)
    assert len(query) == struct.unpack_from("=I", query)[0]
    assert struct.unpack_from("!HH", query, 24) == (40000, 3017)
    assert read_answer(answer(query), ours, peer) == SocketOwner(UID, 77)


def test_a_socket_for_both_families_has_the_same_address_in_longer_form() -> None:
    def long(place: Place) -> bytes:
        return bytes(10) + b"\xff\xff" + socket.inet_aton(place.host)

    query = make_query(OURS, PEER)
    both = query[:28] + long(PEER) + long(OURS) + query[60:]
    assert read_answer(answer(both, family=socket.AF_INET6), OURS, PEER) == SocketOwner(UID, 77)
    assert read_answer(answer(both), OURS, PEER) is None


def test_a_closed_socket_another_one_and_an_error_have_no_owner() -> None:
    query = make_query(OURS, PEER)
    error = struct.pack("=IHHII", 36, 2, 0, 1, 0) + struct.pack("=i", -2) + query[:16]
    others = make_query(OURS, Place("127.0.0.1", 40001)), make_query(PEER, OURS)
    for message in (
        answer(query, state=4),
        answer(query, state=10),
        answer(query, inode=0),
        error,
        error.ljust(100, b"\0"),
        answer(query)[:-1],
        b"",
        *map(answer, others),
    ):
        assert read_answer(message, OURS, PEER) is None


@pytest.mark.parametrize(("ours", "peer"), [("127.0.0.1", "192.0.2.1"), ("192.0.2.1", "127.0.0.1"), ("", "x")])
def test_a_connection_that_is_not_of_loopback_has_no_owner(ours: str, peer: str) -> None:
    assert find_owner(Place(ours, 1), Place(peer, 2)) is None


@on_linux
@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), pytest.param(socket.AF_INET6, "::1", marks=needs_ipv6)]
)
def test_the_system_names_the_owner_and_the_process_of_a_real_connection(family: int, host: str) -> None:
    with socket.create_server((host, 0), family=family) as listener, socket.socket(family) as client:
        client.connect(listener.getsockname())
        accepted, _ = listener.accept()
        with accepted:
            ours, peer = Place(*accepted.getsockname()[:2]), Place(*accepted.getpeername()[:2])
            owner = find_owner(ours, peer)
            assert owner == SocketOwner(os.geteuid(), os.fstat(client.fileno()).st_ino)
            assert os.getpid() in find_holders(owner.inode, os.geteuid())
            assert why_foreign(os.getpid()) is None
            client.close()
            assert find_owner(ours, peer) is None


def process(proc: Path, pid: int, *descriptors: str, program: str = "/usr/bin/node", ns: str = "1") -> None:
    """A process in a folder like /proc."""
    (proc / str(pid) / "fd").mkdir(parents=True)
    (proc / str(pid) / "ns").mkdir()
    for number, name in enumerate(descriptors):
        (proc / str(pid) / "fd" / str(number)).symlink_to(name)
    for kind in ("net", "pid", "user"):
        (proc / str(pid) / "ns" / kind).symlink_to(f"{kind}:[{ns if kind == 'pid' else 1}]")
    (proc / str(pid) / "exe").symlink_to(program)


def test_each_process_of_the_user_that_holds_the_socket_is_found(tmp_path: Path) -> None:
    process(tmp_path, 10, "/dev/null", "socket:[77]")
    process(tmp_path, 11, "socket:[7]", "socket:[777]")
    process(tmp_path, 12, "socket:[77]")
    (tmp_path / "13").mkdir()
    (tmp_path / "net").mkdir()
    assert sorted(find_holders(77, os.geteuid(), tmp_path)) == [10, 12]
    assert find_holders(77, os.geteuid() + 1, tmp_path) == ()
    assert find_holders(77, os.geteuid(), tmp_path / "absent") == ()


@pytest.mark.parametrize(
    ("program", "ns", "why"),
    [
        ("/usr/bin/node", "1", None),
        ("/usr/bin/ssh", "1", "ssh passes connections on for others"),
        ("/usr/lib/openssh/sshd-session", "1", "sshd-session passes connections on for others"),
        ("/usr/bin/socat1", "1", "socat1 passes connections on for others"),
        ("/usr/bin/qemu-system-x86_64", "1", "qemu-system-x86_64 passes connections on for others"),
        ("/usr/sbin/nginx (deleted)", "1", "nginx passes connections on for others"),
        ("/usr/bin/node", "2", "its process is in a container"),
    ],
)
def test_a_process_may_act_for_another_user(program: str, ns: str, why: str | None, tmp_path: Path) -> None:
    process(tmp_path, 10, program=program, ns=ns)
    process(tmp_path, 1, program="/usr/bin/python3")
    (tmp_path / "self").symlink_to("1")
    assert why_foreign(10, tmp_path) == why
    assert why_foreign(11, tmp_path) == "its process can't be looked at"


def started(pid: int) -> ProcessStat:
    return ProcessStat(pid=pid, state="S", parent=1, group=pid, session=pid, started=1)


@pytest.mark.parametrize(
    ("owner", "holders", "foreign", "expected"),
    [
        (SocketOwner(UID, 77), (5, 6), {}, LocalPeer((started(5), started(6)))),
        (SocketOwner(UID, 77), (5, 404), {}, LocalPeer(refusal="its process has ended")),
        (None, (5,), {}, LocalPeer(refusal="the system does not name its owner")),
        (SocketOwner(UID + 1, 77), (5,), {}, LocalPeer(refusal="it belongs to another user")),
        # As with a port that sshd forwards: it was root, and hides its descriptors from all others.
        (SocketOwner(UID, 77), (), {}, LocalPeer(refusal="its process can't be found")),
        (SocketOwner(UID, 77), (5, 6), {6: "why"}, LocalPeer(refusal="why")),
    ],
)
def test_a_connection_counts_as_the_users_if_each_process_that_holds_it_is(
    owner: SocketOwner | None, holders: tuple[int, ...], foreign: dict[int, str], expected: LocalPeer
) -> None:
    found = identify(
        OURS,
        PEER,
        UID,
        find_owner=lambda *_: owner,
        find_holders=lambda inode, uid: holders if (inode, uid) == (77, UID) else (),
        why_foreign=foreign.get,
        read_stat=lambda pid: None if pid == 404 else started(pid),
    )
    assert found == expected
