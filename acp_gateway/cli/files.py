"""The command `files`: what comes with the program besides it. Units for systemd, examples, and the documentation.

A wheel holds them in `acp_gateway/share`; a checkout has them where they are written.
"""

from collections.abc import Iterable
from pathlib import Path

import click

from acp_gateway.config.toml_file import suggestion
from acp_gateway.errors import ConfigError, UsageError

FOLDERS = ("systemd", "examples", "docs", "certs")
"""Folders that come whole. `pyproject.toml` puts the same ones into the wheel."""

PAGES = ("README.md", "SECURITY.md", "CHANGELOG.md")
"""Further files, from the top."""

LEFT_OUT = (".pyc", ".pem")
"""Endings of files that a checkout may have in these folders, and a wheel does not."""


def share_root() -> Path:
    """The folder that these files are in. Raises `ConfigError` where an installation has none."""
    package = Path(__file__).parents[1]
    for root in (package / "share", package.parent):
        if (root / "systemd" / "README.md").is_file():
            return root
    raise ConfigError("this installation has the program alone: install it from its wheel or from a checkout")


def find_files(root: Path) -> list[str]:
    """The names of all files, relative to `root` and with slashes, in the order of the folders."""
    found = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*"))]
    found += [root / page for page in PAGES]
    return [path.relative_to(root).as_posix() for path in found if path.is_file() and path.suffix not in LEFT_OUT]


def find_file(name: str, names: Iterable[str]) -> str:
    """The one of `names` that `name` means: itself, or the only one that ends so. Raises `UsageError`."""
    known = list(names)
    ends = [there for there in known if there == name or there.endswith(f"/{name}")]
    if name in ends or len(ends) == 1:
        return name if name in ends else ends[0]
    if ends:
        raise UsageError(f'"{name}" is one of several; name it whole: {", ".join(ends)}')
    close = suggestion(name, [*known, *(there.rpartition("/")[2] for there in known)])
    raise UsageError(f'there is no file "{name}"{close or "; `acp-gateway files` lists them"}')


@click.command(short_help="List, print or copy the units, examples and documents.")
@click.argument("name", required=False)
@click.option(
    "--to",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Copy the file into this folder, or all files where no NAME is given.",
)
@click.option("--force", is_flag=True, help="Replace files there that are different.")
def files(name: str | None, directory: Path | None, *, force: bool) -> None:
    """List the files that come with the program, print one, or copy them.

    They are the units for systemd, the examples and the documentation. NAME is one of the list, or the end of one.
    """
    root = share_root()
    names = find_files(root)
    if directory is not None:
        copies = {there: there for there in names}
        if name is not None:
            one = find_file(name, names)
            copies = {one: one.rpartition("/")[2]}
        _copy(root, copies, directory, force=force)
    elif name is not None:
        click.echo((root / find_file(name, names)).read_bytes(), nl=False)
    else:
        for there in names:
            click.echo(there)


def _copy(root: Path, copies: dict[str, str], directory: Path, *, force: bool) -> None:
    """Copy files of `root` to names in `directory`; nothing is copied where one of them would be replaced unasked."""
    contents = {directory / to: (root / name).read_bytes() for name, to in copies.items()}
    try:
        for path, content in contents.items():
            if not force and path.exists() and path.read_bytes() != content:
                raise ConfigError(f"{path} is there already, and different: --force replaces it")
        for path, content in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", file=str(error.filename or directory)) from None
    what = str(next(iter(contents))) if len(contents) == 1 else f"{len(contents)} files in {directory}"
    click.echo(f"Wrote {what}.", err=True)
