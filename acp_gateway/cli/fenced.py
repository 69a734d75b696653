"""Becomes a program in a fence: `python -P -m acp_gateway.cli.fenced FOLDER SCRATCH COMMAND...`, for `check-agent`.

The program may write FOLDER, and temporary files in SCRATCH.
"""

import os
import shutil
import sys

from acp_gateway.config.agent_search import own_folders
from acp_gateway.errors import AgentError
from acp_gateway.fence.plan import FenceOptions, may_open
from acp_gateway.fence.start import fenced


def main() -> None:
    """Become the program of the command line. Ends with a line on stderr where that fails."""
    folder, scratch, *command = sys.argv[1:]
    found = shutil.which(command[0])
    assert found is not None, "check-agent has found it"
    program, home = os.path.abspath(found), os.path.expanduser("~")
    # The command may name files from where it is started.
    cwd = os.getcwd() if may_open(os.getcwd(), home) else folder
    options = FenceOptions(
        value="on",
        workspaces=[(folder, True)],
        own=own_folders(command),
        readable=[cwd],
        user_home=home,
        scratch=scratch,
    )
    try:
        start = fenced(os.path.basename(command[0]), program, command, os.environ, cwd, options)
    except AgentError as error:
        sys.exit(str(error))
    os.chdir(cwd)
    order = start.order(os.getppid(), {})
    os.set_inheritable(order.fileno(), True)
    os.execve(sys.executable, *start.launched_by(order))  # noqa: S606 - the user has named the program


if __name__ == "__main__":
    main()
