"""Finds the process at the other end of a TCP connection on this machine, by what Linux tells of sockets.

The kernel is asked for the one socket whose own address is the connection's peer (`sock_diag(7)`), in the gateway's
network namespace. A connection from another machine, or through the address translation of a container, has no such
socket. The socket names its user; /proc names the processes of that user that hold it.

A process of that user may pass connections on for others. One that changed its user, as sshd does for the ports
that a login forwards, shows its descriptors to root only, and is not found. Others are known by their program's name;
what is neither can't be told from an ordinary client.
"""

import ipaddress
import os
import socket
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from acp_gateway.gateway.agent.orphans import PROC, ProcessStat, descriptors_of, process_ids, read_stat
from acp_gateway.security.proof import is_loopback

_SOCK_DIAG: Final = 4
"""Netlink's protocol of that name."""

_BY_FAMILY: Final = 20
"""The request for one socket, and the type of its answer (`SOCK_DIAG_BY_FAMILY`)."""

_REQUEST: Final = 1
"""The flag of a request that asks for one object (`NLM_F_REQUEST`)."""

_ESTABLISHED: Final = 1
"""The state of a connection that neither end has closed."""

_HEAD: Final = struct.Struct("=IHHII")
"""Head of a netlink message: length, type, flags, sequence number, port."""

_ASK: Final = struct.Struct("=BBxxI")
"""Family, protocol and states of `inet_diag_req_v2`, before the id of the socket."""

_ID: Final = struct.Struct("!HH16s16s")
"""Own and far port, own and far address of a socket."""

_ANY: Final = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
"""The rest of the id: no interface and no cookie."""

_SOCKET: Final = struct.Struct("=BBxx36s12x12xII")
"""An answer: family, state, id, and behind other numbers user and inode."""

FORWARDERS: Final = frozenset(
    {"ssh", "sshd", "sshd-session", "dropbear", "dbclient", "socat", "nginx", "haproxy", "caddy", "traefik", "envoy"}
    | {"apache2", "httpd", "stunnel", "stunnel4", "cloudflared", "ngrok", "tailscaled", "frpc", "chisel", "kubectl"}
    | {"docker-proxy", "rootlessport", "slirp4netns", "pasta", "pasta.avx2", "passt", "passt.avx2", "gvproxy"}
    | {"vpnkit", "systemd-socket-proxyd", "tor", "privoxy", "ncat", "nc.openbsd", "VBoxHeadless", "VirtualBoxVM"}
    | {"socat1", "rootlesskit", "rinetd", "websocat", "lighttpd", "squid", "openresty"}
)
"""Programs whose connections come from elsewhere: tunnels, proxies, networks of containers and virtual machines."""

EMULATOR: Final = "qemu-system-"
"""Beginning of the names of programs that run a virtual machine, by its processor."""

_NAMESPACES: Final = ("net", "pid", "user")
"""Namespaces that a process shares with the gateway if no container is around either alone. Not that of mounts:
browsers in a snap have one of their own."""


class Place(NamedTuple):
    """An address and a port."""

    host: str
    port: int


class SocketOwner(NamedTuple):
    """The user of a socket, and the number by which descriptors name it."""

    uid: int
    inode: int


class LocalPeer(NamedTuple):
    """The other end of a connection, as far as it is known."""

    processes: tuple[ProcessStat, ...] = ()
    """The processes of the gateway's own user that hold it; empty if it does not count as that user's."""
    refusal: str = ""
    """The reason why it does not count as that user's; empty if it does."""


def find_owner(ours: Place, peer: Place) -> SocketOwner | None:
    """Return the owner of the socket at the other end of a connection between loopback addresses.

    None if there is none in this network namespace, if it is closed already, and where the system does not tell.
    """
    if not (is_loopback(ours.host) and is_loopback(peer.host)):
        return None
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, _SOCK_DIAG) as diag:
            # The kernel has answered when this returns.
            diag.sendto(make_query(ours, peer), (0, 0))
            return read_answer(diag.recv(4096), ours, peer)
    except (AttributeError, OSError):
        # Another system, or one that forbids the question.
        return None


def make_query(ours: Place, peer: Place) -> bytes:
    """Return the netlink message that asks for the socket at the other end of a connection."""
    family = socket.AF_INET6 if ":" in peer.host else socket.AF_INET
    body = _ASK.pack(family, socket.IPPROTO_TCP, 1 << _ESTABLISHED) + _id_of(ours, peer) + _ANY
    return _HEAD.pack(_HEAD.size + len(body), _BY_FAMILY, _REQUEST, 1, 0) + body


def _id_of(ours: Place, peer: Place) -> bytes:
    here, there = (ipaddress.ip_address(place.host).packed.ljust(16, b"\0") for place in (ours, peer))
    return _ID.pack(peer.port, ours.port, there, here)


def read_answer(message: bytes, ours: Place, peer: Place) -> SocketOwner | None:
    """Return the owner that a netlink message names; None if it is not about an open socket between these places."""
    if len(message) < _HEAD.size + _SOCKET.size or _HEAD.unpack_from(message)[1] != _BY_FAMILY:
        return None
    family, state, about, uid, inode = _SOCKET.unpack_from(message, _HEAD.size)
    # A socket for both families may hold the address of the older one in that of the newer one.
    is_same = about == _id_of(ours, peer) or (family == socket.AF_INET6 and about == _mapped(ours, peer))
    # Without an inode, no process has it any more.
    return SocketOwner(uid, inode) if is_same and state == _ESTABLISHED and inode else None


def _mapped(ours: Place, peer: Place) -> bytes | None:
    if ":" in peer.host:
        return None
    here, there = (bytes(10) + b"\xff\xff" + ipaddress.ip_address(place.host).packed for place in (ours, peer))
    return _ID.pack(peer.port, ours.port, there, here)


def find_holders(inode: int, uid: int, proc: Path = PROC) -> tuple[int, ...]:
    """Return the ids of a user's processes that hold a socket, as far as their descriptors may be read.

    Reads all descriptors of all processes of the user, some microseconds each: for a worker thread.
    """
    wanted = f"socket:[{inode}]"
    return tuple(pid for pid in _processes_of(uid, proc) if wanted in descriptors_of(pid, proc))


def _processes_of(uid: int, proc: Path) -> Iterable[int]:
    for pid in process_ids(proc):
        try:
            # That of a process which changed its user, or hides its memory, belongs to root.
            if os.stat(proc / str(pid)).st_uid == uid:
                yield pid
        except OSError:
            continue  # It has ended.


def why_foreign(pid: int, proc: Path = PROC) -> str | None:
    """Return why a process of the gateway's own user may act for another user; None if nothing shows that."""
    try:
        program = os.path.basename(os.readlink(proc / str(pid) / "exe")).removesuffix(" (deleted)")
        is_near = all(
            os.readlink(proc / str(pid) / "ns" / kind) == os.readlink(proc / "self" / "ns" / kind)
            for kind in _NAMESPACES
        )
    except OSError:
        return "its process can't be looked at"
    if not is_near:
        return "its process is in a container"
    forwards = program in FORWARDERS or program.startswith(EMULATOR)
    return f"{program} passes connections on for others" if forwards else None


def identify(
    ours: Place,
    peer: Place,
    uid: int,
    *,
    find_owner: Callable[[Place, Place], SocketOwner | None] = find_owner,
    find_holders: Callable[[int, int], tuple[int, ...]] = find_holders,
    why_foreign: Callable[[int], str | None] = why_foreign,
    read_stat: Callable[[int], ProcessStat | None] = read_stat,
) -> LocalPeer:
    """Identify the other end of a connection: processes of the user `uid` that act for themselves, or why it is not.

    Blocks for milliseconds: for a worker thread.
    """
    owner = find_owner(ours, peer)
    if owner is None:
        return LocalPeer(refusal="the system does not name its owner")
    if owner.uid != uid:
        return LocalPeer(refusal="it belongs to another user")
    holders = find_holders(owner.inode, uid)
    if not holders:
        return LocalPeer(refusal="its process can't be found")
    processes = []
    for pid in holders:
        why, process = why_foreign(pid), read_stat(pid)
        if why is not None or process is None:
            return LocalPeer(refusal=why or "its process has ended")
        processes.append(process)
    return LocalPeer(tuple(processes))
