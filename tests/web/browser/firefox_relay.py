#!/usr/bin/env python3
"""Firefox as Playwright starts it, with answers to commands of WebDriver BiDi that this version of Firefox lacks.

Playwright speaks to Firefox by WebDriver BiDi, and asks of each new context what only a later version knows. Such a
command is answered here as if it were done: preferences of the browser stand for it. All others pass as they are.

The program is run by its path, with the path of Firefox in `FIREFOX`. In what Firefox prints, the address for
WebDriver BiDi is that of the relay.
"""

import json
import os
import re
import subprocess
import sys
import threading
from typing import Final

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.sync.connection import Connection
from websockets.sync.server import ServerConnection, serve

ANSWERED: Final = frozenset({"emulation.setMediaFeaturesOverride"})
"""Commands that are answered here."""

_ADDRESS: Final = re.compile(r"(WebDriver BiDi listening on )(ws://\S+)")


def answer(message: str) -> str | None:
    """Return the answer to a command; None if Firefox has to give it."""
    if not any(name in message for name in ANSWERED):
        return None
    command = json.loads(message)
    if command.get("method") not in ANSWERED:
        return None
    return json.dumps({"type": "success", "id": command["id"], "result": {}})


def _copy(source: Connection, target: Connection) -> None:
    try:
        for message in source:
            target.send(message)
    except ConnectionClosed:
        pass
    target.close()


def _relay(playwright: ServerConnection, firefox: str) -> None:
    path = playwright.request.path if playwright.request else ""
    with connect(firefox + path, max_size=None, compression=None, proxy=None, ping_interval=None) as browser:
        threading.Thread(target=_copy, args=(browser, playwright), daemon=True).start()
        try:
            for message in playwright:
                assert isinstance(message, str)
                answered = answer(message)
                if answered is None:
                    browser.send(message)
                else:
                    playwright.send(answered)
        except ConnectionClosed:
            pass


def _listen(firefox: str) -> str:
    """Relay to an address from a new one, until the program ends; return that."""
    server = serve(
        lambda connection: _relay(connection, firefox),
        "127.0.0.1",
        0,
        max_size=None,
        compression=None,
        ping_interval=None,
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"ws://127.0.0.1:{server.socket.getsockname()[1]}"


def main() -> int:
    """Run Firefox with the arguments of this program; return its exit code."""
    firefox = subprocess.Popen([os.environ["FIREFOX"], *sys.argv[1:]], stderr=subprocess.PIPE, text=True)
    assert firefox.stderr is not None
    for line in firefox.stderr:
        sys.stderr.write(_ADDRESS.sub(lambda found: found[1] + _listen(found[2]), line))
        sys.stderr.flush()
    return firefox.wait()


if __name__ == "__main__":
    sys.exit(main())
