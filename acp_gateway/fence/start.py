"""Prepares the start of an agent's process: the order for the launcher, with a fence or without one.

These functions read the disk, so they are called in a thread.
"""

import errno
import fcntl
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from acp_gateway.errors import AgentError
from acp_gateway.fence import bubblewrap, landlock, launcher
from acp_gateway.fence.cleaning import own, remove
from acp_gateway.fence.plan import Fence, FenceOptions, Wanted, choose, landlock_rules, may_open, plan, remedy

LAUNCHER: Final = str(Path(launcher.__file__))


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a process."""

    program: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)
    landlock: Mapping[str, Any] | None = None
    places: Sequence[int] = ()
    """Indices in `command` of the paths that the launcher opens."""
    fence: Fence | None = None
    """The places that the agent may use; None without a fence."""
    owned: int | None = None
    """A descriptor by which the folder for temporary files is this process's."""

    def order(self, gateway: int, limits: Mapping[int, int]) -> BinaryIO:
        """Return an open pipe with the order for the launcher, from the gateway's process id and soft limits.

        A pipe, because an agent starts on a full disk, too. Raises `OSError` for an order that is too large for one.
        """
        order: launcher.Order = {
            "gateway": gateway,
            "keeps_locale": "LC_CTYPE" in self.environment,
            "limits": {str(number): soft for number, soft in limits.items()},
            "landlock": None if self.landlock is None else dict(self.landlock),
            "places": [*self.places],
            "program": self.program,
            "command": [*self.command],
        }
        data = json.dumps(order).encode(errors="surrogateescape")
        near, far = os.pipe()
        try:
            if len(data) > fcntl.fcntl(far, fcntl.F_GETPIPE_SZ):
                fcntl.fcntl(far, fcntl.F_SETPIPE_SZ, len(data))
            # A user with very many pipes gets small ones, on which the thread that starts all agents would wait.
            os.set_blocking(far, False)
            if os.write(far, data) < len(data):
                raise OSError(errno.ENOBUFS, "this user has too many pipes (fs.pipe-user-pages-soft)")
        except BaseException:
            os.close(near)
            raise
        finally:
            os.close(far)
        return os.fdopen(near, "rb")

    def clean_up(self) -> None:
        """Remove the temporary files of an agent that has ended. To be called once."""
        if self.fence is not None:
            remove(self.fence.temporary)
        if self.owned is not None:
            os.close(self.owned)


def can_fence(folder: Path, state_dir: Path) -> bool:
    """Return whether agents that work in a folder can be fenced on this machine."""
    if choose("on", bubblewrap=bubblewrap.find() is not None, landlock=landlock.abi() > 0) is None:
        return False
    return may_open(str(folder), os.path.expanduser("~"), [str(state_dir)])


def fenced(
    agent: str,
    program: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    cwd: str,
    options: FenceOptions,
    *,
    find_bubblewrap: Callable[[], str | None] = bubblewrap.find,
    abi: Callable[[], int] = landlock.abi,
) -> Start:
    """Return how an agent is started in a fence. Raises `AgentError` where there is none, or what it is to open is not
    allowed; `OSError` for a folder that cannot be made."""
    wrapper = find_bubblewrap() if options.value != "landlock" else None
    by = choose(options.value, bubblewrap=wrapper is not None, landlock=abi() > 0)
    if by is None:
        raise AgentError(
            f"the agent {agent} cannot be started: {remedy(options.value)} in [agents.{agent}], with which it may read "
            "all that its user may"
        )
    if isinstance(options.network, tuple) and abi() < landlock.NETWORK_ABI:
        raise AgentError(
            f"the agent {agent} cannot be started: this kernel's Landlock cannot limit ports (Linux 6.7 or newer): set "
            f'network = "on" or "off" in [agents.{agent}]'
        )
    environment = dict(environment)
    os.makedirs(options.scratch, mode=0o700, exist_ok=True)
    if options.home is not None:
        os.makedirs(options.home, mode=0o700, exist_ok=True)
        environment["HOME"] = options.home
        for name in [name for name in environment if name.startswith("XDG_")]:
            del environment[name]
    temporary = tempfile.mkdtemp(prefix=f"{agent.replace('/', '-')}-", dir=options.scratch)
    owned = own(temporary)
    environment["TMPDIR"] = bubblewrap.TEMPORARY if by == "bubblewrap" else temporary
    wanted = Wanted(
        agent=agent,
        program=program,
        command=command,
        environment=environment,
        cwd=cwd,
        temporary=temporary,
        options=options,
    )
    try:
        fence = plan(by, wanted)
        if by == "landlock":
            return Start(program, command, environment, landlock_rules(fence), (), fence, owned)
        assert wrapper is not None
        mounts = bubblewrap.arguments(fence, descriptors=bubblewrap.takes_descriptors(wrapper))
        words = [wrapper, *mounts, "--", program, *command[1:]]
        places = [at for at, word in enumerate([wrapper, *mounts]) if words[at - 1] in bubblewrap.BY_DESCRIPTOR]
        # What bubblewrap cannot do, Landlock adds where there is one: ports, signals, and sockets without a path.
        rest = {"files": False, "read": [], "write": [], "look": [], "ports": None, "scoped": True}
        if isinstance(options.network, tuple):
            rest["ports"] = [*options.network]
        return Start(wrapper, words, environment, rest if abi() else None, places, fence, owned)
    except BaseException:
        remove(temporary)
        os.close(owned)
        raise
