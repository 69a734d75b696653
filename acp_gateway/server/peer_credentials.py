"""Reads the peer credentials of a unix socket, and recognizes agents among the peers.

At its unix socket a gateway accepts its own user without a token. Its agents run as the same user, and must not be able
to connect there and approve their own requests.

This keeps out an agent that runs `acp-gateway connect` or a similar program. It is not a sandbox: a malicious program
that runs as the user can leave its session and its parents, as a daemon does, and has other ways to act as the user.
"""

import socket
import struct
from collections.abc import Callable, Container
from dataclasses import dataclass

from acp_gateway.gateway.agent.orphans import ProcessStat, read_stat


@dataclass(frozen=True, slots=True)
class PeerCredentials:
    """The process that connected, as the kernel saw it at that moment."""

    pid: int
    """0 where the process cannot be seen from here (it is in another container)."""
    uid: int
    gid: int


def peer_credentials(sock: socket.socket) -> PeerCredentials | None:
    """Return the process that connected to a unix socket; None for other sockets, and on systems other than Linux."""
    if not hasattr(socket, "SO_PEERCRED") or sock.family != socket.AF_UNIX:
        return None
    ucred = struct.Struct("iII")
    return PeerCredentials(*ucred.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, ucred.size)))


def belongs_to_agent(
    pid: int,
    agent_sessions: Container[int],
    *,
    read_stat: Callable[[int], ProcessStat | None] = read_stat,
) -> bool:
    """Return whether a process is in, or descends from, the process session of an agent.

    `agent_sessions` holds the agents' process sessions, each by the id of its first process. Returns True also if that
    can't be determined, for example because the process has ended: unknown processes are refused.
    """
    seen: set[int] = set()
    while pid not in seen:
        seen.add(pid)
        if pid in agent_sessions:
            return True
        if pid == 1:
            # Every family ends here. Not looked at: where /proc shows a user only the user's own processes
            # (hidepid), this one is missing.
            return False
        stat = read_stat(pid)
        if stat is None or stat.session in agent_sessions:
            return True
        if stat.parent == 0:
            # Its parent is outside of this container, and the agents are all inside.
            return False
        pid = stat.parent
    # Ids were used again while they were followed.
    return True
