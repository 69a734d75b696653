"""The first program of each agent on Linux: it prepares its own process, and becomes the agent.

Python gets its text, and that of `landlock.py`, in the environment, which the agent does not get: the gateway has read
them at its start. The order is JSON in a pipe that the process inherits, because a list of paths may be longer than an
argument. It imports nothing but the standard library, because it runs once for each agent.

It dies with the gateway, puts right what Python and the gateway have changed about the process, and fences it with
Landlock (`landlock.py`). The process and all that it starts keep the fence, because Landlock cannot be undone.

A process of a fenced agent may leave its group and its session. So a second process, the killer, waits in an outer
fence: it may signal what is in the agent's fence and nothing else, and nothing in there may signal it.
"""

import ctypes
import errno
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypedDict

TEXT, LANDLOCK_TEXT = "ACP_GATEWAY_LAUNCHER", "ACP_GATEWAY_LANDLOCK"
"""Variables with the texts of this module and of `landlock.py`."""

_PR_SET_PDEATHSIG = 1


class Order(TypedDict):
    """The work of the launcher before it becomes the agent."""

    gateway: int
    """The process id of the gateway; the agent does not start when it has ended before."""
    keeps_locale: bool
    """False if `LC_CTYPE` is not in the agent's environment: Python sets it where there is none."""
    limits: dict[str, int]
    """Soft limits to set, by resource number."""
    landlock: dict[str, Any] | None
    """The rules for `landlock.restrict`; None without them."""
    killer: list[int] | None
    """The descriptors of `start_killer`; None without a killer."""
    places: list[int]
    """Indices of the paths in `command` that descriptors replace: a link that was made since is not followed."""
    program: str
    """The absolute path of the program that is executed."""
    command: list[str]
    """Its arguments, beginning with its name."""


def main() -> None:
    """Carry out the order in the pipe of `sys.argv[1]`. Ends with a line on stderr where that fails."""
    del os.environ[TEXT]
    landlock_text = os.environ.pop(LANDLOCK_TEXT)
    with os.fdopen(int(sys.argv[1]), "rb") as file:
        order: Order = json.load(file)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != order["gateway"]:
        os._exit(1)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    if not order["keeps_locale"]:
        os.environ.pop("LC_CTYPE", None)
    for number, soft in order["limits"].items():
        resource.setrlimit(int(number), (soft, resource.getrlimit(int(number))[1]))
    command = order["command"]
    if order["landlock"] is not None or order["places"]:
        landlock: Any = ModuleType("landlock")
        exec(landlock_text, landlock.__dict__)  # noqa: S102
        try:
            command = open_places(command, order["places"], landlock.open_place)
            if order["killer"] is not None:
                # With all files open: a layer that says nothing of files forbids to move them between directories.
                landlock.restrict(files=True, read=[], write=["/"], look=[], ports=None, scoped=True)
                start_killer(order["gateway"], *order["killer"])
            if order["landlock"] is not None:
                landlock.restrict(**order["landlock"])
                if order["landlock"]["files"]:
                    landlock.drop_capabilities()
        except OSError as error:
            sys.exit(f"cannot fence the agent: {error.filename or 'landlock'}: {error.strerror}")
    try:
        os.execv(order["program"], command)  # noqa: S606 - the agent is what the configuration names
    except OSError as error:
        sys.exit(f"cannot execute {order['program']}: {error.strerror}")


def open_places(command: list[str], places: list[int], open_place: Callable[[str], int | None]) -> list[str]:
    """Return bubblewrap's command with an open descriptor in place of each path at `places`.

    A mount whose path does not open is left out: the option before the path, and where to mount it, behind.
    """
    words: list[str] = []
    done = 0
    for at in places:
        place = open_place(command[at])
        words += command[done : at - 1]
        if place is not None:
            os.set_inheritable(place, True)
            words += [command[at - 1], str(place), command[at + 1]]
        done = at + 2
    return words + command[done:]


def start_killer(gateway: int, until: int, ended: int) -> None:
    """Start a process that kills all in the present fence but itself, at the end of the pipe `until`; it then writes a
    byte to the pipe `ended`.

    The pipe ends with the gateway at the latest. Raises `OSError`, also where the fence does not hold signals: without
    it, the killer would kill all of the user's processes.
    """
    try:
        os.kill(gateway, 0)
    except PermissionError:
        pass
    else:
        raise OSError(errno.EOPNOTSUPP, "the fence does not hold signals", "killer")
    child = os.fork()
    if child == 0:
        try:
            # Neither the agent's child, nor in its group, nor in its session.
            os.setsid()
            if os.fork() == 0:
                _kill_at_end(until, ended)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(until)
    os.close(ended)


def _kill_at_end(until: int, ended: int) -> None:
    # A service manager may send these to all processes of the gateway's service.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for descriptor in range(3):
        os.close(descriptor)
    os.read(until, 1)
    try:
        # One step of the kernel's: no process that is being started escapes.
        os.kill(-1, signal.SIGKILL)
    except OSError:
        pass  # Nothing is left.
    os.write(ended, b"k")


if __name__ == "__main__":
    main()
