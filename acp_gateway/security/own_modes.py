"""Gives files of this user their modes back.

A process of the same user can change them, even in a fence of Landlock, which knows no chmod.
"""

import logging
import os
import stat
import sys
from pathlib import Path

log = logging.getLogger(__name__)


def mend(path: Path, needed: int, refused: int = 0) -> bool:
    """Set the bits `needed` in the mode of a file or folder of this user, and clear those in `refused`; return whether
    that has changed it.

    The way to it is made passable as well, as far as it is this user's. Links are not followed. It never raises; what
    it changes is logged.
    """
    if sys.platform != "linux":
        return False  # Only there are fences.
    for folder in reversed(path.parents):
        _mend(folder, stat.S_IXUSR, 0)
    return _mend(path, needed, refused)


def _mend(path: Path, needed: int, refused: int) -> bool:
    try:
        handle = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    status = os.fstat(handle)
    mode = stat.S_IMODE(status.st_mode)
    try:
        right = (mode | needed) & ~refused
        if right == mode or status.st_uid != os.geteuid() or stat.S_ISLNK(status.st_mode):
            return False
        # Only by this name is it the file that was opened, which need not be readable.
        os.chmod(f"/proc/self/fd/{handle}", right)
    except OSError as error:
        log.warning("%s has the mode %04o, which cannot be corrected: %s", path, mode, error.strerror)
        return False
    finally:
        os.close(handle)
    log.warning("a program of this user, such as an agent, gave %s the mode %04o: it is %04o again", path, mode, right)
    return True
