"""The program itself, which writes the names of its modules into a file at its end. For tests, as a script.

Its first argument is the file; the rest is a command line.
"""

import atexit
import sys
from pathlib import Path


def list_modules(path: Path) -> None:
    """Write the names of all modules that were imported, one per line."""
    path.write_text("\n".join(sys.modules), encoding="utf-8")


if __name__ == "__main__":
    atexit.register(list_modules, Path(sys.argv.pop(1)))
    from acp_gateway.__main__ import main

    main()
