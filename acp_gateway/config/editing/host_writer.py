"""Changes one entry of `hosts.toml`, and leaves everything else in the file as its owner wrote it."""

import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from acp_gateway.config.editing.section_writer import Value, change_section
from acp_gateway.config.editing.toml_file import TomlFile
from acp_gateway.errors import ConfigError


def write_host(path: Path, name: str, options: Mapping[str, Value | None]) -> None:
    """Set options of `[hosts.NAME]`, or remove those that are None; create the entry and the file if needed.

    The file is replaced as a whole, and readable by its owner alone. Raises `ConfigError` where it can't be read,
    written, or understood well enough.
    """
    real, text = _changed(path, name, options)
    replace_file(real, text)


def check_host(path: Path, name: str, options: Mapping[str, Value | None]) -> None:
    """Raise what `write_host` would raise, as far as that shows before anything is written."""
    real, _ = _changed(path, name, options)
    folder = next(folder for folder in real.parents if os.path.exists(folder))
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        why = f"you may not write into {folder}" if folder.is_dir() else f"{folder} is not a folder"
        raise ConfigError(f"cannot be written, because {why}", file=str(path))


def _changed(path: Path, name: str, options: Mapping[str, Value | None]) -> tuple[Path, str]:
    """Return the path of the file, links followed, and its new text."""
    # A user who keeps it in a repository of dotfiles has a link here.
    real = path.resolve()
    file = TomlFile.read(real) if os.path.lexists(real) else TomlFile(real, {}, "")
    return real, change_section(file, ("hosts", name), options)


def replace_file(path: Path, text: str, like: os.stat_result | None = None) -> None:
    """Write a file, at once or not at all. Its owner alone may read it, or with `like` those of another file.

    Raises `ConfigError`.
    """
    new = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                if like is not None:
                    _make_alike(file.fileno(), like)
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, path)
        finally:
            new.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", file=str(path)) from None


def _make_alike(descriptor: int, like: os.stat_result) -> None:
    """Give a file the owner and the mode of another one: root may change the file of a user."""
    made = os.fstat(descriptor)
    if (made.st_uid, made.st_gid) != (like.st_uid, like.st_gid):
        try:
            os.fchown(descriptor, like.st_uid, like.st_gid)
        except PermissionError:
            return  # Only a group of others is lost then; the mode must not be theirs.
    os.fchmod(descriptor, stat.S_IMODE(like.st_mode))
