"""The command `files`: the systemd units, examples and documentation that come with the program.

A wheel has them in `acp_gateway/share`, a checkout in its own directories.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import click

from acp_gateway.cli.common import config_option, examples, json_option, plain_option, print_json, print_table
from acp_gateway.config.editing.toml_file import suggestion
from acp_gateway.errors import ConfigError, UsageError

FOLDERS = ("systemd", "launchd", "completions", "examples", "docs", "certs")
"""Directories that are included whole, in the wheel too (see `pyproject.toml`)."""

PAGES = ("README.md", "SECURITY.md", "CHANGELOG.md")
"""Further files of the top directory."""

LEFT_OUT = (".pyc", ".pem")
"""Suffixes of files in a checkout that are not included."""


def share_root() -> Path:
    """Return the directory of these files. Raises `ConfigError` if the installation has none."""
    package = Path(__file__).parents[1]
    for root in (package / "share", package.parent):
        if (root / "systemd" / "README.md").is_file():
            return root
    raise ConfigError("this installation lacks these files: install from the wheel or from a checkout")


def find_files(root: Path) -> list[str]:
    """Return the names of all files, relative to `root` and with slashes, in the order of the directories."""
    found = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*"))]
    found += [root / page for page in PAGES]
    return [path.relative_to(root).as_posix() for path in found if path.is_file() and path.suffix not in LEFT_OUT]


def find_file(name: str, names: Iterable[str]) -> str:
    """Return `name` if it is one of `names`, else the only one that ends with it. Raises `UsageError`."""
    known = list(names)
    ends = [there for there in known if there == name or there.endswith(f"/{name}")]
    if name in ends or len(ends) == 1:
        return name if name in ends else ends[0]
    if ends:
        raise UsageError(f'"{name}" is ambiguous; give the whole name: {", ".join(ends)}')
    close = suggestion(name, [*known, *(there.rpartition("/")[2] for there in known)])
    raise UsageError(f'there is no file "{name}"{close or "; `acp-gateway files` lists them"}')


@click.command(
    epilog=examples(
        "acp-gateway files",
        "acp-gateway files gateway.toml                 every option, with its default",
        "acp-gateway files acp-gateway.service --to ~/.config/systemd/user",
    ),
    short_help="List, print or copy the units, examples and documents.",
)
@click.argument("name", required=False)
@click.option(
    "--to",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Copy the file into this folder, or all files where no NAME is given.",
)
@click.option("--force", is_flag=True, help="Replace files there that are different.")
@json_option
def files(name: str | None, directory: Path | None, *, force: bool, as_json: bool) -> None:
    """List the files that come with the program, print one, or copy them.

    They are the units for systemd, the examples and the documentation. NAME is one of the list, or the end of one.
    """
    root = share_root()
    names = find_files(root)
    if as_json and (name is not None or directory is not None):
        raise UsageError("--json is for the list: leave out NAME and --to")
    if directory is not None:
        copies = {there: there for there in names}
        if name is not None:
            one = find_file(name, names)
            copies = {one: one.rpartition("/")[2]}
        _copy(root, copies, directory, force=force)
    elif name is not None:
        click.echo((root / find_file(name, names)).read_bytes(), nl=False)
    elif as_json:
        print_json([{"name": there, "path": str(root / there)} for there in names])
    else:
        for there in names:
            click.echo(there)


def _copy(root: Path, copies: dict[str, str], directory: Path, *, force: bool) -> None:
    """Copy files of `root` to names in `directory`. Copies nothing if one would be replaced without `force`."""
    contents = {directory / to: (root / name).read_bytes() for name, to in copies.items()}
    try:
        for path, content in contents.items():
            if not force and path.exists() and path.read_bytes() != content:
                raise ConfigError(f"{path} exists already and differs: --force replaces it")
        for path, content in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", file=str(error.filename or directory)) from None
    what = str(next(iter(contents))) if len(contents) == 1 else f"{len(contents)} files in {directory}"
    click.echo(f"Wrote {what}.", err=True)


EPILOG = """\b
Examples:
  acp-gateway paths
  acp-gateway paths --json | jq -r '.[] | select(.name == "audit log").path'
"""

_HEADS: Final = ("NAME", "EXISTS", "PATH")


@click.command(epilog=EPILOG, short_help="List the files, folders and sockets of the program.")
@config_option
@plain_option
@json_option
def paths(config: Path | None, *, as_json: bool) -> None:
    """List the files, folders and sockets that the program uses on this machine, also those that are not there yet.

    Without a gateway's configuration, those of the client are listed. The configuration's certificates, environment
    files and the like are named in it.
    """
    rows = [(name, path, os.path.lexists(path)) for name, path in _find(config)]
    if as_json:
        shown = [{"name": name, "path": str(path), "exists": exists} for name, path, exists in rows]
        print_json(shown)
    else:
        print_table(_HEADS, [(name, "yes" if exists else "no", str(path)) for name, path, exists in rows])


def _find(config: Path | None) -> Iterator[tuple[str, Path]]:
    from acp_gateway.config.directories import state_home
    from acp_gateway.config.hosts import hosts_path
    from acp_gateway.config.load import default_config_path

    try:
        file: Path | None = config or default_config_path()
    except ConfigError:
        file = None
    if file is not None:
        yield "configuration", file.absolute()
        yield from _of_gateway(file)
    for name, find in (
        ("hosts", hosts_path),
        ("reached gateways", lambda: state_home() / "reached"),
        ("units, examples, documents", share_root),
    ):
        yield from _if_known(name, find)


def _of_gateway(file: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of the gateway with this configuration. Raises `ConfigError`."""
    from acp_gateway.config.load import load_config
    from acp_gateway.gateway.agent.installed import FOLDER
    from acp_gateway.gateway.events.audit import FILE_NAME
    from acp_gateway.gateway.gateway import DATABASE
    from acp_gateway.gateway.storage.state_folder import CONTROL_SOCKET

    settings = load_config(file)
    state = settings.gateway.state_dir
    yield "state", state
    for name, inside in (
        ("tokens", "tokens.json"),
        ("browsers", "browsers.json"),
        ("invitations", "invitations.json"),
        ("rules", "rules.json"),
        ("push subscriptions", "push.json"),
        ("sessions", DATABASE),
        ("audit log", FILE_NAME),
        ("agents of the registry", FOLDER),
        ("control socket", CONTROL_SOCKET),
    ):
        yield name, state / inside
    if settings.gateway.record_dir is not None:
        yield "recordings", settings.gateway.record_dir
    for section in settings.listen:
        if section.address.scheme == "unix":
            yield "listening socket", Path(section.address.path)
    yield from _of_service()


def _of_service() -> Iterator[tuple[str, Path]]:
    """Yield the files of the user's own service, as `service install` writes them. The log of systemd is not a file."""
    from acp_gateway.cli.service_managers import Launchd, Systemd

    try:
        home = Path.home()
    except RuntimeError:
        return
    if sys.platform == "darwin":
        manager = Launchd(home, os.getuid())
        yield "service", manager.plist
        yield "log", manager.log
    else:
        yield "service", Systemd(home / ".config/systemd/user").unit


def _if_known(name: str, find: Callable[[], Path]) -> Iterator[tuple[str, Path]]:
    """Yield a path, unless it can't be known, such as one below the home folder of a user without any."""
    try:
        yield name, find()
    except ConfigError:
        pass
