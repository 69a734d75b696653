"""The start of the program, also as `python -m acp_gateway`: a plain `connect` without click, all else through click.

Editors start `connect` while their users wait, so nothing is imported that it does not need.
"""

import sys

from acp_gateway.cli.plain_options import CONNECT, ConnectOptions, read_plain_line
from acp_gateway.cli.quick_imports import without_collector


def main() -> None:
    """Run the program with the arguments of this process."""
    command, *words = sys.argv[1:] or [""]
    line = read_plain_line(CONNECT, words) if command == "connect" else None
    with without_collector():
        if line is None:
            from acp_gateway.cli.main import main as run_command
        else:
            from acp_gateway.cli.client.editor_relay import relay_editor
    if line is None:
        run_command()
        return
    try:
        relay_editor(line.target, ConnectOptions(**line.values), line.given)
    except BaseException as error:
        _end_with(error)


def _end_with(error: BaseException) -> None:
    """End the program as a command does that raises this error."""
    try:
        from acp_gateway.cli.main import end_with
    except Exception:
        # An editor runs `connect` for days. If another version has been installed since, its modules need not fit those
        # in memory.
        from acp_gateway.cli.client.editor_relay import print_error
        from acp_gateway.errors import GatewayError
        from acp_gateway.printable import printable

        if not isinstance(error, GatewayError):
            raise error from None
        print_error(f"acp-gateway: {printable(str(error), 4000)}")
        sys.exit(error.exit_code)
    end_with(error)


if __name__ == "__main__":
    main()
