"""Finds the ports on which the processes of agents listen, by what Linux tells of sockets and processes.

A port is told only if each process that holds its socket is the agent's: a connection would else lead to another one.
"""

import posixpath
import re
import struct
import sys
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, Generic, NamedTuple, TypeVar

Owner = TypeVar("Owner", bound=Hashable)

Ranges = Sequence[tuple[int, int]]
"""Ranges of ports, each with its first and its last one."""

NAME_SIZE: Final = 40
"""Maximum characters of a program's name, as many as fit beside a port."""

MOST_TOLD: Final = 16
"""Maximum ports that a list of sessions has of each: the list of ports has all."""

_LISTENING: Final = "0A"
"""The state of a socket that accepts connections, in `/proc/net/tcp`."""

_BY_FAMILY: Final = 20
"""The request for sockets, and the type of its answers (`SOCK_DIAG_BY_FAMILY` of `sock_diag(7)`)."""

_DUMP: Final = 0x301
"""The flags of a request for all sockets that match."""

_DONE: Final = 3
"""The type of the message behind the last answer."""

_STATES: Final = 1 << 10
"""The states of the sockets that are asked for: those that accept connections."""

_TCP: Final = 6

_HEAD: Final = struct.Struct("=IHHII")
"""Head of a netlink message: length, type, flags, sequence number, port."""

_ASK: Final = struct.Struct("=BBxxI")
"""Family, protocol and states of `inet_diag_req_v2`, before the id of a socket."""

_ID: Final = struct.Struct("!HH16s16s12x")
"""Own and far port, own and far address of a socket; interface and cookie."""

_FOUND: Final = struct.Struct("=BBxx48s12xII")
"""An answer: family, state, id, and behind other numbers user and inode."""

_FAMILIES: Final = {2: 4, 10: 16}
"""Bytes of an address, by the number of its family in Linux."""

_SOCKET: Final = re.compile(r"socket:\[([0-9]+)\]")

_INTERPRETER: Final = re.compile(
    r"python[0-9.]*|pypy[0-9.]*|node|nodejs|bun|deno|ruby[0-9.]*|perl[0-9.]*|php[0-9.]*|java|sh|bash|dash|zsh|uv|npx"
)
"""Programs whose first argument tells more than their own name."""

_SCRIPT: Final = re.compile(r"\.(py|pyz|pyw|js|mjs|cjs|ts|rb|pl|php|jar|sh)$")


class Listener(NamedTuple):
    """A socket that accepts connections over loopback."""

    port: int
    host: str
    """The address at which it is reached."""
    uid: int
    """The user that has made it."""
    inode: int
    """The number by which descriptors name it."""


class Owned(NamedTuple, Generic[Owner]):
    """A listener of an agent."""

    owner: Owner
    listener: Listener
    pid: int
    """The first of the processes that hold it."""
    inodes: frozenset[int]
    """All sockets that accept connections there: several may share a port."""


def read_listeners(table: str, byteorder: str = sys.byteorder) -> Iterator[Listener]:
    """Yield the listeners of `/proc/net/tcp` or `/proc/net/tcp6` that loopback reaches. What is not understood is left
    out."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] != _LISTENING:
            continue
        try:
            address, _, port = fields[1].partition(":")
            host = _reached_at(_read_address(address, byteorder))
            if host is not None:
                yield Listener(int(port, 16), host, int(fields[7]), int(fields[9]))
        except ValueError:
            continue


def _read_address(text: str, byteorder: str) -> IPv4Address | IPv6Address:
    """Read an address as words of 32 bits, each in the byte order of the machine."""
    words = bytes.fromhex(text)
    if byteorder == "little":
        words = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
    return ip_address(words)


def queries(port: int) -> list[bytes]:
    """Return the netlink messages that ask for the listeners of a port, or of all with 0: one for each family."""
    body = _ID.pack(port, 0, bytes(16), bytes(16))
    asked = [_ASK.pack(family, _TCP, _STATES) + body for family in _FAMILIES]
    return [_HEAD.pack(_HEAD.size + len(ask), _BY_FAMILY, _DUMP, 1, 0) + ask for ask in asked]


def read_answers(data: bytes) -> tuple[list[Listener], bool]:
    """Return the listeners in netlink messages that loopback reaches, and whether these are the last.

    Raises `ValueError` for an error, and what is not understood.
    """
    found: list[Listener] = []
    at = 0
    while at < len(data):
        try:
            size, kind, *_ = _HEAD.unpack_from(data, at)
            if kind == _DONE:
                return found, True
            family, _, place, uid, inode = _FOUND.unpack_from(data, at + _HEAD.size)
        except struct.error as error:
            raise ValueError(str(error)) from None
        if kind != _BY_FAMILY or size < _HEAD.size + _FOUND.size or family not in _FAMILIES:
            raise ValueError("this does not answer about sockets")
        port, _, address, _ = _ID.unpack(place)
        host = _reached_at(ip_address(address[: _FAMILIES[family]]))
        if host is not None:
            found.append(Listener(port, host, uid, inode))
        at += (size + 3) & ~3
    return found, False


def _reached_at(address: IPv4Address | IPv6Address) -> str | None:
    """Return the loopback address at which a listener is reached; None for one of another network."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "::1"
    return str(address) if address.is_loopback else None


def inode_of(link: str) -> int | None:
    """Return the inode of the socket that the link of a descriptor names; None for other files."""
    found = _SOCKET.fullmatch(link)
    return None if found is None else int(found[1])


def owned(
    listeners: Iterable[Listener],
    holders: Mapping[int, Collection[int]],
    trees: Mapping[Owner, Collection[int]],
    configured: Mapping[Owner, Ranges],
    *,
    uid: int,
    gateway: int,
    own: Collection[int] = (),
    agent_of: Callable[[Owner], Hashable] = lambda owner: owner,
) -> list[Owned[Owner]]:
    """Return the listeners of agents in the order of their ports, one for each port of an agent.

    Args:
        listeners: those of the machine.
        holders: the processes that hold a socket, by its inode.
        trees: the processes of each agent.
        configured: ports that count as an agent's, unless a process of another agent holds them.
        uid: the user of the gateway; the listeners of other users are left out.
        gateway: the gateway's process.
        own: processes whose ports are the agent's own API, and told only if they are configured.
        agent_of: returns the agent of an owner: of the ports of the configuration, that of its processes as well.
    """
    agents = {pid: owner for owner, pids in trees.items() for pid in pids}
    at_place: dict[tuple[int, str], list[Listener]] = {}
    for listener in listeners:
        at_place.setdefault((listener.port, listener.host), []).append(listener)
    found: dict[tuple[Owner, int], Owned[Owner]] = {}
    # Sorted, 127.0.0.1 comes before ::1.
    for (port, _), group in sorted(at_place.items()):
        pids = [pid for listener in group for pid in holders.get(listener.inode, ())]
        is_known = all(listener.uid == uid and holders.get(listener.inode) for listener in group)
        if not is_known or gateway in pids:
            continue
        # Several sockets may share a port: the system chooses one for each connection.
        owners = {agents.get(pid) for pid in pids}
        for owner in trees.keys() | configured.keys():
            is_configured = is_in(port, configured.get(owner, ())) and all(
                other is None or agent_of(other) == agent_of(owner) for other in owners
            )
            if (owners == {owner} and not any(pid in own for pid in pids)) or is_configured:
                found.setdefault(
                    (owner, port), Owned(owner, group[0], min(pids), frozenset(each.inode for each in group))
                )
    return sorted(found.values(), key=lambda each: each.listener.port)


def is_in(port: int, ranges: Ranges) -> bool:
    """Return whether a port is in one of some ranges."""
    return any(first <= port <= last for first, last in ranges)


def program_name(arguments: Sequence[str]) -> str:
    """Return the name of a program by its command line: of one that an interpreter runs, that of the script or module.

    Other arguments may hold secrets, and are not told.
    """
    program = posixpath.basename(arguments[0]) if arguments else ""
    if _INTERPRETER.fullmatch(program):
        words = iter(arguments[1:])
        for word in words:
            if word == "-m":
                program = next(words, program)
                break
            if word in ("-c", "-e", "-"):
                break
            if not word.startswith("-"):
                program = _SCRIPT.sub("", posixpath.basename(word)) or program
                break
    return program[:NAME_SIZE]


def nearest(folder: str, places: Iterable[str]) -> str | None:
    """Return the deepest of some folders that a folder is, or is in; None if it is in none."""
    inside = [place for place in places if folder == place or folder.startswith(place.rstrip("/") + "/")]
    return max(inside, key=len, default=None)
