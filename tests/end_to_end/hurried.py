"""The program itself, but with shorter pauses, and ready to say which tasks it has. For tests, as a script.

Its first argument is a FIFO: at SIGUSR1 it writes the names of its tasks and the number of its descriptors there, as
JSON. The rest is a command line.
"""

import json
import os
import signal
import sys
from types import FrameType

import click
import trio

from acp_gateway.cli.main import main
from acp_gateway.client import uplink
from acp_gateway.config import schema
from acp_gateway.transports import link

# A configuration may set constants, as in `unfixed`.
vars(schema)["is_fixed"] = lambda _: False
# Shorter than a person would notice. Also for modules of the gateway, which are imported later.
vars(uplink)["BACKOFF_MIN"] = 0.01
vars(uplink)["BACKOFF_MAX"] = 0.2
vars(link)["HEARTBEAT"] = 0.2
(keepalive,) = [parameter for parameter in main.commands["connect"].params if parameter.name == "keepalive"]
keepalive.type = click.FLOAT


def report_to(path: str) -> None:
    """Report tasks and descriptors at SIGUSR1. Other processes of the user may not count those of a gateway."""

    def report(number: int, frame: FrameType | None) -> None:
        # This runs between two steps of Trio's own thread.
        tasks = [task for task in [trio.lowlevel.current_root_task()] if task is not None]
        for task in tasks:
            tasks += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
        with open(path, "w", encoding="utf-8") as file:
            names = sorted(task.name for task in tasks)
            json.dump({"tasks": names, "descriptors": len(os.listdir("/proc/self/fd"))}, file)

    signal.signal(signal.SIGUSR1, report)


if __name__ == "__main__":
    report_to(sys.argv.pop(1))
    main(prog_name=os.path.basename(sys.argv[0]))
