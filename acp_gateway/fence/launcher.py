"""The first program of each agent on Linux: it prepares its own process, and becomes the agent.

`python -I -S launcher.py DESCRIPTOR` reads an order as JSON from an open pipe, because a list of paths may be longer
than an argument. It imports nothing but the standard library, because it runs once for each agent.

It dies with the gateway, puts right what Python and the gateway have changed about the process, and fences it with
Landlock (`landlock.py`). The process and all that it starts keep the fence, because Landlock cannot be undone.
"""

import ctypes
import importlib
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any, TypedDict

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
    places: list[int]
    """Indices of the paths in `command` that descriptors replace: a link that was made since is not followed."""
    program: str
    """The absolute path of the program that is executed."""
    command: list[str]
    """Its arguments, beginning with its name."""


def main() -> None:
    """Carry out the order in the pipe of `sys.argv[1]`. Ends with a line on stderr where that fails."""
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
        # An import has the bytecode cached. The folder is the last one: it hides no module of the standard library.
        sys.path.append(os.path.dirname(__file__))
        landlock = importlib.import_module("landlock")
        try:
            command = open_places(command, order["places"], landlock.open_place)
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


if __name__ == "__main__":
    main()
