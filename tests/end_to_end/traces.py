"""Traces that the tests leave behind, searched for the tokens that they used.

Every token that a test makes is noted, and so is what the programs print. `look_at_processes` notes the command lines
and the environments of processes while they run. `search` goes through all of this and through the files that were
written since, for the tokens and for pieces of them: what was cut off in a log is still a part of a secret.
"""

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

TOKEN = re.compile(r"\bacpgw[ogmtnvpbi]?_([0-9A-Za-z]{39})\b")

PIECE = 12
"""Characters that two texts don't share by chance, and few enough that a token which was cut has some in one go."""

GIVEN = b"ACP_GATEWAY_TOKEN="
"""The variable by which a client may be given its token."""


@dataclass
class Traces:
    """Those of some tests."""

    secrets: set[str] = field(default_factory=set)
    began: float = field(default_factory=time.time)
    _texts: list[tuple[str, bytes]] = field(default_factory=list)

    def note_tokens_in(self, text: str) -> str:
        """Note the tokens in the output of a command that makes them; return the output."""
        self.secrets |= {found[0] for found in TOKEN.finditer(text)}
        return text

    def note(self, where: str, text: str | bytes) -> None:
        """Something that was printed or logged."""
        self._texts.append((where, text if isinstance(text, bytes) else text.encode(errors="surrogateescape")))

    def look_at_processes(self) -> None:
        """Note what every user can see of the processes that descend from this one, while they run.

        Those that it started itself may have been given a token in their environment, and must not hand it on. A
        process with its parent's command line is a fork that has yet to start its program: it shows its parent's
        memory.
        """
        own = os.getpid()
        for process, parent in descendants(own).items():
            folder = Path(f"/proc/{process}")
            try:
                command = (folder / "cmdline").read_bytes()
                if parent != own and command == Path(f"/proc/{parent}/cmdline").read_bytes():
                    continue
                self.note(f"the command line of process {process}", command)
                variables = (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue  # It has ended, or only root may look.
            if parent == own:
                variables = [variable for variable in variables if not variable.startswith(GIVEN)]
            self.note(f"the environment of process {process}", b"\0".join(variables))

    def search(self, *folders: Path) -> list[str]:
        """Return the places of tokens, or pieces of one, in what was noted and in new files below some folders.

        Each with what stands before it. A file with a token and nothing else is what tokens are kept in.
        """
        pieces = {piece.encode() for secret in self.secrets for piece in pieces_of(secret)}
        kept = {secret.encode() for secret in self.secrets}
        found = [f"{where}: {place}" for where, text in self._texts for place in places(text, pieces)]
        for path in new_files(folders, self.began):
            data = path.read_bytes()
            if data.strip() not in kept:
                found += [f"{path}: {place}" for place in places(data, pieces)]
        return found

    def forget(self) -> None:
        """Start over."""
        self.secrets.clear()
        self._texts.clear()
        self.began = time.time()


TRACES = Traces()
"""Those of the tests that run now."""


def pieces_of(secret: str) -> list[str]:
    """The parts of a token, one behind the other, that have to be nowhere."""
    _, _, text = secret.partition("_")
    return [text[start : start + PIECE] for start in range(0, len(text) - PIECE + 1, PIECE)]


def places(data: bytes, pieces: set[bytes]) -> list[str]:
    """Return the text before the first of the pieces that are there; an empty list if none is."""
    starts = [start for piece in pieces if (start := data.find(piece)) >= 0]
    return [data[max(0, min(starts) - 200) : min(starts)].decode(errors="replace")] if starts else []


def new_files(folders: tuple[Path, ...], since: float) -> Iterator[Path]:
    """Files that were written to since a time, but no links, sockets and pipes."""
    for folder in folders:
        for path in folder.rglob("*"):
            # A file's time may be that of the clock's last tick.
            if path.is_file() and not path.is_symlink() and path.stat().st_mtime >= since - 1:
                yield path


def descendants(pid: int) -> dict[int, int]:
    """The processes that descend from one at this moment, each with its parent; none where the system doesn't tell."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # It has ended.
    found: dict[int, int] = {}
    new = {pid}
    while new:
        found |= {child: parent for child, parent in parents.items() if parent in new}
        new = {child for child, parent in parents.items() if parent in new}
    return found
