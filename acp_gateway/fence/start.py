"""Prepares the start of an agent's process: the order for the launcher, with a fence or without one.

These functions read the disk, so they are called in a thread.
"""

import errno
import fcntl
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from acp_gateway.errors import AgentError, UsageError
from acp_gateway.fence import bubblewrap, landlock, launcher
from acp_gateway.fence.cleaning import own, remove
from acp_gateway.fence.plan import (
    Fence,
    FenceOptions,
    Wanted,
    choose,
    guarded,
    landlock_rules,
    may_open,
    plan,
    remedy,
)
from acp_gateway.fence.programs import of_gateway

# Read at the start of the gateway: after an upgrade, the launcher on the disk expects other orders.
_TEXTS: Final = {
    launcher.TEXT: Path(launcher.__file__).read_text("utf-8"),
    launcher.LANDLOCK_TEXT: Path(landlock.__file__).read_text("utf-8"),
}
_BEGINNING: Final = f"import os; exec(os.environ[{launcher.TEXT!r}])"


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

    @property
    def has_killer(self) -> bool:
        """True if a killer (`launcher.py`) ends what an agent leaves: with Landlock, where that holds signals.

        Bubblewrap has the agent's processes end with it.
        """
        return self.fence is not None and self.fence.by == "landlock" and landlock.abi() >= landlock.SCOPE_ABI

    def order(self, gateway: int, limits: Mapping[int, int], killer: tuple[int, int] | None = None) -> BinaryIO:
        """Return an open pipe with the order for the launcher, from the gateway's process id, soft limits, and the
        killer's descriptors.

        A pipe, because an agent starts on a full disk, too. Raises `OSError` for an order that is too large for one.
        """
        order: launcher.Order = {
            "gateway": gateway,
            "keeps_locale": "LC_CTYPE" in self.environment,
            "limits": {str(number): soft for number, soft in limits.items()},
            "landlock": None if self.landlock is None else dict(self.landlock),
            "killer": None if killer is None else [*killer],
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

    def launched_by(self, order: BinaryIO) -> tuple[list[str], dict[str, str]]:
        """Return the command and the environment of the launcher, which inherits the pipe of its order."""
        command = [sys.executable, "-I", "-S", "-c", _BEGINNING, str(order.fileno())]
        return command, {**self.environment, **_TEXTS}

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


def check_programs(folder: Path) -> None:
    """Raise `UsageError` for a folder in which fenced agents could change what the gateway runs."""
    found = guarded(str(folder), of_gateway(), os.path.expanduser("~"))
    if found is not None:
        raise UsageError(
            f"agents that work in {folder} could change {found}, which the gateway runs outside of their fences: "
            "serve another folder, or install acp-gateway elsewhere, such as with pipx, and start that by its name"
        )


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
    cannot = f"the agent {agent} cannot be started"
    if by is None:
        raise AgentError(f"{cannot}: {remedy(options.value)}")
    # Of bubblewrap, an agent without a network has its own one.
    if options.network != "on" and abi() < landlock.NETWORK_ABI and (by, options.network) != ("bubblewrap", "off"):
        instead = 'set network = "off"' if by == "bubblewrap" else 'install bubblewrap, which does network = "off"'
        raise AgentError(f"{cannot}: this kernel's Landlock cannot limit ports (Linux 6.7 or newer): {instead}")
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
