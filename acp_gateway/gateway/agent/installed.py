"""The agents that `acp-gateway agents` has added: a folder of each in `state_dir`, with a record and its binaries.

installed-agents/NAME/installed.json    where the agent comes from, its version, its command, hashes
installed-agents/NAME/VERSION-HASH/     its unpacked files; the ones before are kept until the next update
"""

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import msgspec

from acp_gateway.config.agent_registry import Choice, archive_format
from acp_gateway.errors import ConfigError
from acp_gateway.gateway.agent.archives import unpack
from acp_gateway.gateway.agent.download import Report, download

FOLDER: Final = "installed-agents"
"""Folder in `state_dir`."""

RECORD: Final = "installed.json"

_RECORD_SIZE: Final = 1024 * 1024

State = Literal["ok", "missing", "changed"]


class Installed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"variables": "env"}):
    """The record of one agent that was added."""

    id: str
    """Its id in the registry."""
    source: str
    """The file or URL of the registry."""
    kind: Literal["binary", "npx", "uvx"]
    version: str
    command: list[str]
    """The command that was written into the configuration."""
    variables: dict[str, str] = {}
    archive: str | None = None
    archive_sha256: str | None = None
    folder: str | None = None
    """Name of the folder with the files of a binary."""
    program_sha256: str | None = None
    """Hash of a binary's program when it was unpacked."""


class InstalledAgents:
    """The folders and records of the agents that were added to one gateway."""

    def __init__(self, state_dir: Path) -> None:
        self._root = state_dir / FOLDER

    def folder(self, name: str) -> Path:
        """Return the folder of an agent. Raises `ConfigError` for a name that would be another folder."""
        if not _is_folder_name(name):
            raise ConfigError(f"{name[:64]!r} can't be the name of an agent with files: choose another")
        return self._root / name

    def read(self, name: str) -> Installed | None:
        """Return the record of an agent, None if it was not added. Raises `ConfigError` for a damaged record."""
        if not _is_folder_name(name):
            return None
        path = self.folder(name) / RECORD
        try:
            with path.open("rb") as file:
                content = file.read(_RECORD_SIZE)
            return msgspec.json.decode(content, type=Installed)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise ConfigError(f"cannot be read: {error.strerror}", file=str(path)) from None
        except msgspec.DecodeError as error:
            raise ConfigError(f"is damaged: {error}; remove it and add the agent again", file=str(path)) from None

    def names(self) -> list[str]:
        """Return the names of all that were added."""
        return sorted(path.parent.name for path in self._root.glob(f"*/{RECORD}") if _is_folder_name(path.parent.name))

    def check(self, name: str, installed: Installed) -> State:
        """Return whether a binary is there as it was unpacked. A package is kept by its runner, and is `ok`."""
        if installed.kind != "binary" or not installed.command:
            return "ok"
        try:
            digest = _hash(Path(installed.command[0]))
        except OSError:
            return "missing"
        return "ok" if digest == installed.program_sha256 else "changed"

    @contextmanager
    def prepare(
        self, name: str, agent_id: str, source: str, choice: Choice, limits: tuple[int, int], report: Report
    ) -> Iterator[tuple[Installed, Callable[[], None]]]:
        """Download and unpack what a choice needs, beside what is there.

        Yields the record to keep, and a function that keeps it. Without its call, nothing stays.

        Args:
            name: the agent's name in the configuration.
            agent_id: its id in the registry.
            source: the registry.
            choice: the distribution.
            limits: maximum bytes of the download, and of the unpacked files.
            report: called as the download goes on.

        Raises `ConfigError` and `Unreachable`.
        """
        folder = self.folder(name)
        before = self.read(name)
        made: Path | None = None
        kept = False

        def keep() -> None:
            nonlocal kept
            self._write(name, installed)
            kept = True
            self._remove_former(name, {installed.folder, before.folder if before else None})

        try:
            self._make_folder(folder)
            archive_hash: str | None = None
            program_hash: str | None = None
            if choice.kind == "binary":
                made, archive_hash, program_hash = self._unpack(folder, choice, limits, report)
                command = [str(made / choice.words[0]), *choice.words[1:]]
            else:
                command = list(choice.words)
            installed = Installed(
                id=agent_id,
                source=source,
                kind=choice.kind,
                version=choice.version,
                command=command,
                variables=dict(choice.env),
                archive=choice.archive,
                archive_sha256=archive_hash,
                folder=made.name if made else None,
                program_sha256=program_hash,
            )
            yield installed, keep
        finally:
            if not kept:
                if made is not None and not (before and before.folder == made.name):
                    shutil.rmtree(made, ignore_errors=True)
                _remove_if_empty(folder)

    def remove(self, name: str) -> None:
        """Remove the folder of an agent. Raises `ConfigError`."""
        try:
            shutil.rmtree(self.folder(name))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise ConfigError(f"cannot be removed: {error.strerror}", file=str(self.folder(name))) from None

    def _make_folder(self, folder: Path) -> None:
        try:
            for path in (self._root.parent, self._root, folder):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = self._root.lstat()
        except OSError as error:
            raise ConfigError(f"cannot be made: {error.strerror}", file=str(folder)) from None
        if not stat.S_ISDIR(status.st_mode) or stat.S_IMODE(status.st_mode) & 0o022:
            raise ConfigError("other users may write there, or it is a link: remove it", file=str(self._root))

    def _unpack(self, folder: Path, choice: Choice, limits: tuple[int, int], report: Report) -> tuple[Path, str, str]:
        """Return the folder with the files, and the hashes of the archive and of the program in it."""
        assert choice.archive is not None
        file = folder / "download"
        new = folder / "unpacked"
        try:
            file.unlink(missing_ok=True)
            shutil.rmtree(new, ignore_errors=True)
            digest = download(choice.archive, file, limits[0], report)
            if choice.sha256 is not None and choice.sha256 != digest:
                raise ConfigError(f"{choice.archive} has the SHA-256 {digest}, and not {choice.sha256} as announced")
            form = archive_format(choice.archive)
            if form is None:
                new.mkdir(mode=0o700)
                (new / choice.words[0]).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                file.rename(new / choice.words[0])
            else:
                unpack(file, form, new, limits[1])
            program = new / choice.words[0]
            if not program.is_file():
                raise ConfigError(f"{choice.archive} has no file {choice.words[0]!r:.200}, which the registry names")
            program.chmod(0o700)
            made = folder / f"{choice.version}-{digest[:12]}"
            if made.exists():
                shutil.rmtree(made)
            program_hash = _hash(program)
            new.rename(made)
            return made, digest, program_hash
        except OSError as error:
            raise ConfigError(f"{folder}: {error.strerror or error}") from None
        finally:
            file.unlink(missing_ok=True)
            shutil.rmtree(new, ignore_errors=True)

    def _write(self, name: str, installed: Installed) -> None:
        path = self.folder(name) / RECORD
        new = path.with_suffix(".new")
        try:
            new.unlink(missing_ok=True)
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(installed)) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, path)
        except OSError as error:
            raise ConfigError(f"cannot be written: {error.strerror}", file=str(path)) from None

    def _remove_former(self, name: str, kept: set[str | None]) -> None:
        """Remove unpacked files of versions before the former one, which a running gateway may still start."""
        for path in self.folder(name).iterdir():
            if path.is_dir() and path.name not in kept:
                shutil.rmtree(path, ignore_errors=True)


def _is_folder_name(name: str) -> bool:
    return name not in (".", "..") and re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name) is not None


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
        folder.parent.rmdir()
    except OSError:
        pass  # There is more in it.
