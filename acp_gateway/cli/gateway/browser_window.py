"""Opens a link in the browser of this machine, without showing it to other users.

Each user of a machine can read the arguments of its programs, and a link may hold a code that signs in. So the browser
is given a file instead, of mode 0600 in a folder of mode 0700, which leads on to the link, and is removed once the
browser has read it.
"""

import html
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from acp_gateway.errors import UsageError

READ_TIMEOUT = 30.0
"""Seconds for which the file is kept at most: a browser that has to start first may take ten."""

READ_GRACE = 1.0
"""Seconds from the first reading until the file is removed: some browsers read the beginning first."""

INTERVAL = 0.1

SNAPS = Path("/snap")
"""A folder that only exists where the browser may be a snap, which sees neither /tmp nor hidden folders of its user."""


def open_in_browser(
    link: str,
    environment: Mapping[str, str],
    *,
    open_url: Callable[[str], bool] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Open a link in the browser of this machine, and return once the browser has read it, or after `READ_TIMEOUT`.

    Raises `UsageError` if there is no browser.

    Args:
        link: the link; it is not passed to any program.
        environment: tells whether there is a screen.
        open_url: opens a URL, and returns whether that worked. Default: that of the module `webbrowser`.
        sleep: waits for so many seconds.
    """
    is_graphical = sys.platform in ("darwin", "win32")
    if not is_graphical and not any(map(environment.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))):
        raise UsageError("there is no screen here for a browser: open the link on another device")
    if open_url is None:
        import webbrowser

        open_url = webbrowser.open
    folder = Path(tempfile.mkdtemp(prefix="acp-gateway-", dir=Path.home() if SNAPS.is_dir() else None))
    try:
        file = folder / "open.html"
        _write(file, link)
        if not open_url(file.as_uri()):
            raise UsageError("no browser could be opened: open the link yourself")
        _wait_until_read(file, sleep)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(file: Path, link: str) -> None:
    escaped = html.escape(link)
    text = (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<meta name="referrer" content="no-referrer">\n'
        f'<meta http-equiv="refresh" content="0; url={escaped}">\n<title>acp-gateway</title>\n'
        f'<p><a href="{escaped}">Open the page</a></p>\n</html>\n'
    )
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
        opened.write(text)
    # So that the first reading shows, also where the times of readings are noted rarely.
    os.utime(file, (0, file.stat().st_mtime))


def _wait_until_read(file: Path, sleep: Callable[[float], None]) -> None:
    for _ in range(round(READ_TIMEOUT / INTERVAL)):
        if file.stat().st_atime > 0:
            sleep(READ_GRACE)
            return
        sleep(INTERVAL)
