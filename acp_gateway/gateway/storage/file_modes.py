"""Keeps the modes of the gateway's files: one that its own user may not open would keep all clients out."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NoReturn

import trio

from acp_gateway.config.load import Config
from acp_gateway.gateway.storage.state_folder import STATE_FILES
from acp_gateway.security.own_modes import mend

INTERVAL: Final = 10.0
"""Seconds between two looks. Tokens are looked at whenever one is checked; for other files it is soon enough, and costs
some 50 calls of the system."""

SECRETS_SUFFIX: Final = ".json"
"""Ending of the files that are compared before others' rights to them are taken away, by `PrivateFile`."""

_CHANGED: Final = stat.S_IRUSR | stat.S_IWUSR
"""Bits of files that the gateway changes, and of sockets to which its user connects."""

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class FileModes:
    """The modes that files of the gateway had when they were made, or first seen.

    What was taken from their owner since is given back; rights that others have got are taken away.
    """

    def __init__(self) -> None:
        self._seen: dict[Path, int] = {}

    async def run(self, config: Callable[[], Config]) -> NoReturn:
        """Look again and again at the files of the configuration in force, until cancelled."""
        while True:
            await trio.sleep(INTERVAL)
            await trio.to_thread.run_sync(self.look, config())

    def look(self, config: Config) -> None:
        """Mend all modes once. It reads the disk."""
        seen: dict[Path, int] = {}
        for path, needed in _files(config):
            try:
                status = path.lstat()
            except FileNotFoundError:
                continue
            except OSError:
                # The way to it is closed.
                mend(path, needed)
                continue
            mode = stat.S_IMODE(status.st_mode)
            # Files that the gateway makes are its user's alone; one may be opened to others before it is first seen.
            made = needed if path.name in STATE_FILES else mode
            first = seen[path] = self._seen.get(path, made)
            added = 0 if path.suffix == SECRETS_SUFFIX else mode & _OTHERS & ~first
            lost = first & stat.S_IRWXU | needed if mode & needed != needed else 0
            if lost or added:
                mend(path, lost, added)
        self._seen = seen


def _files(config: Config) -> Iterator[tuple[Path, int]]:
    """Yield the files and folders of the gateway, each with the bits that its owner needs.

    A folder is mended before what is in it is read.
    """
    state_dir = os.path.realpath(config.gateway.state_dir)
    yield Path(state_dir), stat.S_IRWXU
    try:
        with os.scandir(state_dir) as entries:
            for entry in entries:
                needed = _CHANGED if entry.name in STATE_FILES else stat.S_IRUSR
                yield Path(entry.path), stat.S_IRWXU if entry.is_dir(follow_symlinks=False) else needed
    except OSError:
        pass  # It could not be mended.
    if config.gateway.record_dir is not None:
        yield Path(os.path.realpath(config.gateway.record_dir)), stat.S_IRWXU
    named = [config.path]
    named += [section.env_file for section in config.agents.values()]
    for listen in config.listen:
        if listen.address.scheme == "unix":
            yield Path(os.path.realpath(listen.address.path)), _CHANGED
        named += [listen.key, listen.cert, listen.client_ca, listen.client_crl]
    for reached in config.reached:
        named += [reached.token_file, reached.ca]
    if (cluster := config.cluster) is not None:
        named += [cluster.token_file, cluster.password_file, cluster.ca]
    yield from ((Path(os.path.realpath(path)), stat.S_IRUSR) for path in named if path is not None)
