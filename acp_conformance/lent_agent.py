"""The program that a checked client starts as its agent. It lends its stdin and stdout to the process of the checker.

It runs by its path, with the standard library alone, so that it starts fast and in any environment. The checker reads
and writes the client's own pipes, at the times that it needs. What is left here is what only the client's child can do,
said in lines on the socket: `stderr N` has it write N bytes to stderr, which is answered with an empty line, `exit N`
has it end with that code. It ends as well when the checker does.
"""

import os
import socket
import sys
from typing import Final

LENT: Final = (0, 1)
"""File descriptors that are sent to the checker, in this order."""

NOISE: Final = b"The agent writes this to its stderr, as agents do.\n"

CHECKER_GONE: Final = 1
"""Exit code after the loss of the checker."""


def main(path: str) -> int:
    """Lend the streams to the checker at a unix socket, and do what it says; return the exit code."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as checker:
        checker.connect(path)
        socket.send_fds(checker, [b"\n"], LENT)
        # Otherwise the client would not notice when the checker closes them.
        nothing = os.open(os.devnull, os.O_RDWR)
        for lent in LENT:
            os.dup2(nothing, lent)
        with checker.makefile("r") as commands:
            for command in commands:
                word, _, number = command.partition(" ")
                if word == "exit":
                    return int(number)
                write_noise(int(number))
                checker.sendall(b"\n")
    return CHECKER_GONE


def write_noise(size: int) -> None:
    """Write lines to stderr, until all is written or the reader is gone."""
    rest = (NOISE * (size // len(NOISE) + 1))[:size]
    try:
        while rest:
            rest = rest[os.write(2, rest) :]
    except OSError:
        pass  # The client has closed it, which no agent may mind.


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
