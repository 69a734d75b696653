"""The command `files`: the systemd units, examples and documentation that come with the program.

A wheel has them in `acp_gateway/share`, a checkout in its own directories.
"""

from collections.abc import Iterable
from pathlib import Path

import click

from acp_gateway.cli.common import examples, json_option, print_json
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
