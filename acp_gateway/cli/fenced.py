"""Becomes a program in a fence: `python -P -m acp_gateway.cli.fenced FOLDER SCRATCH COMMAND...`, for `check-agent`.

The program may write FOLDER, and temporary files in SCRATCH.
"""

import os
import shutil
import sys

from acp_gateway.config.agent_search import own_folders
from acp_gateway.errors import AgentError
from acp_gateway.fence.plan import FenceOptions
from acp_gateway.fence.start import LAUNCHER, fenced


def main() -> None:
    """Become the program of the command line. Ends with a line on stderr where that fails."""
    folder, scratch, *command = sys.argv[1:]
    program = shutil.which(command[0])
    assert program is not None, "check-agent has found it"
    options = FenceOptions(
        value="on",
        workspaces=[(folder, True)],
        own=own_folders(command),
        user_home=os.path.expanduser("~"),
        scratch=scratch,
    )
    try:
        start = fenced(os.path.basename(command[0]), program, command, os.environ, os.getcwd(), options)
    except AgentError as error:
        sys.exit(str(error))
    order = start.order(os.getppid(), {})
    os.set_inheritable(order.fileno(), True)
    os.execve(  # noqa: S606 - the user has named the program
        sys.executable, [sys.executable, "-I", "-S", LAUNCHER, str(order.fileno())], start.environment
    )


if __name__ == "__main__":
    main()
