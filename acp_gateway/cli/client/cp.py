"""The command `cp`."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from acp_gateway.cli.client.sessions import find_gateway
from acp_gateway.cli.common import connect_timeout_option, connection_options, examples, print_warning, waiting_for
from acp_gateway.errors import UsageError
from acp_gateway.printable import printable

if TYPE_CHECKING:
    from acp_gateway.client.copying.gateway_files import GatewayFiles, Progress
    from acp_gateway.client.copying.places import Remote
    from acp_gateway.client.destination import ConnectionOptions
    from acp_gateway.client.dialing import Destination

_MIB = 1 << 20


@dataclass(frozen=True)
class _Options:
    """The options that both ways share."""

    force: bool
    is_quiet: bool
    time_limit: float


@click.command(
    epilog=examples(
        "acp-gateway cp box:plots/loss.png .            from the folder of the session at box",
        "acp-gateway cp box/3f2a:/data/run.csv - | head one of several sessions, by the beginning of its id",
        "acp-gateway cp data.csv box:data/              into it; --force replaces what is there",
        "acp-gateway cp door/gpu2/3f2a:out.log .        a session of a node",
    ),
    short_help="Copy files from and to the folder of a session.",
)
@click.argument("places", nargs=-1, metavar="SOURCE... TARGET")
@click.option("-f", "--force", is_flag=True, help="Replace files that are there already.")
@click.option("--session", metavar="ID", help="The session, as in TARGET/ID:PATH; also the beginning of its id.")
@click.option("-q", "--quiet", "is_quiet", is_flag=True, help="Show no progress.")
@connection_options
@connect_timeout_option(help="How long to wait for the gateway.")
def cp(
    places: tuple[str, ...],
    session: str | None,
    connection: "ConnectionOptions",
    connect_timeout: float,
    *,
    force: bool,
    is_quiet: bool,
) -> None:
    """Copy files between this machine and the folder of a session, without ssh.

    HOST:PATH is at HOST, which is as for `connect`, in the folder of its only live session, or of the one that
    HOST/ID:PATH names. :PATH is at the gateway of this machine. - is stdin or stdout. Whole folders are downloaded by
    the page. After a lost connection a download goes on where it was.
    """
    from acp_gateway.client.copying.places import read_place

    if len(places) < 2:
        raise UsageError("name what to copy, and where to: acp-gateway cp box:plots/loss.png .")
    *sources, target = places
    remote = [read_place(source) for source in sources]
    there = read_place(target)
    options = _Options(force, is_quiet or not sys.stderr.isatty(), connect_timeout)
    if there is None and None not in remote:
        for source in remote:
            assert source is not None, "none is of this machine"
            _download(source, target, session, connection, options, is_one=len(sources) == 1)
        return
    if there is None or remote.count(None) < len(remote):
        raise UsageError("one side has to be at a gateway, HOST:PATH, and the other one on this machine")
    _upload(sources, there, session, connection, options)


def _session_at(
    place: "Remote", session: str | None, connection: "ConnectionOptions", time_limit: float
) -> "tuple[Destination, str]":
    """Return the gateway of a place, and the id of the session there. Raises `GatewayError`."""
    import trio

    from acp_gateway.client import control
    from acp_gateway.client.copying.places import choose_session
    from acp_gateway.client.ports.forwarding import at_node

    destination = find_gateway(place.target, None, connection)
    with waiting_for(str(destination.address)):
        ask = partial(control.list_sessions, destination, time_limit=time_limit, complete=True)
        listing = trio.run(ask)
    name = choose_session(listing.sessions, session or place.session, place)
    if "/" in name and any(one["sessionId"] == name and "/" in one["agent"] for one in listing.sessions):
        node, _, name = name.partition("/")
        destination = at_node(destination, node)
    return destination, name


def _download(
    source: "Remote",
    target: str,
    session: str | None,
    connection: "ConnectionOptions",
    options: _Options,
    *,
    is_one: bool,
) -> None:
    import trio

    from acp_gateway.client.copying.places import STDIO

    if source.names_folder:
        raise UsageError(f"{printable(source.path) or 'that'} is a folder: name a file in it, or use the page")
    name = source.path.rpartition("/")[2]
    path = None if target == STDIO else _local_target(target, name, is_one=is_one)
    if path is not None and not options.force and os.path.lexists(path):
        raise UsageError(f"{path} exists already: --force replaces it")
    destination, found = _session_at(source, session, connection, options.time_limit)

    async def run(file: IO[bytes]) -> None:
        from acp_gateway.client.copying.gateway_files import GatewayFiles

        async with GatewayFiles(destination, found, options.time_limit) as files:
            with _progress(name, options) as progress:
                copied = await files.download(source.path, file, progress)
        if copied.changed:
            print_warning(f"{printable(name)} was written to while it was copied")

    if path is None:
        trio.run(run, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    else:
        with _written(path, force=options.force) as file:
            trio.run(run, file)


def _local_target(target: str, name: str, *, is_one: bool) -> Path:
    path = Path(target)
    if path.is_dir():
        return path / name
    if not is_one or target.endswith(("/", os.sep)):
        raise UsageError(f"{printable(target)} is not a folder")
    return path


@contextmanager
def _written(path: Path, *, force: bool) -> Iterator[IO[bytes]]:
    """Write a file under another name, and give it its own at the end. Raises `UsageError`."""
    try:
        descriptor, part = tempfile.mkstemp(prefix=f".{path.name[:100]}.", suffix=".part", dir=path.parent)
        try:
            with open(descriptor, "wb") as file:
                yield file
            # The mode of any other new file.
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(part, 0o666 & ~umask)
            if force:
                os.replace(part, path)
            else:
                _link(part, path)
        finally:
            with suppress(OSError):
                os.unlink(part)
    except FileExistsError:
        raise UsageError(f"{path} exists already: --force replaces it") from None
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror}") from None


def _link(part: str, path: Path) -> None:
    """Give a file its name, which is free. Raises `FileExistsError`."""
    try:
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError:  # No hard links here.
        open(path, "xb").close()
        os.replace(part, path)


def _upload(
    sources: list[str], target: "Remote", session: str | None, connection: "ConnectionOptions", options: _Options
) -> None:
    import trio

    from acp_gateway.client.copying.gateway_files import GatewayFiles

    with _opened(sources) as files:
        destination, found = _session_at(target, session, connection, options.time_limit)

        async def run() -> None:
            async with GatewayFiles(destination, found, options.time_limit) as gateway:
                folder = target.names_folder or await gateway.kind(target.path) == "folder"
                if len(files) > 1 and not folder:
                    raise UsageError(f"{printable(target.path)} is not a folder")
                for name, file, size in files:
                    await _send(gateway, name, file, size, target.path, options, in_folder=folder)

        trio.run(run)


async def _send(
    gateway: "GatewayFiles", name: str, file: IO[bytes], size: int, path: str, options: _Options, *, in_folder: bool
) -> None:
    from acp_gateway.made.files_rules import FileRefused

    if in_folder:
        if not name:
            raise UsageError("name the file that stdin becomes")
        path = f"{path.rstrip('/')}/{name}" if path not in ("", "/") else f"{path}{name}"
    try:
        with _progress(name or path, options) as progress:
            await gateway.upload(file, size, path, overwrite=options.force, progress=progress)
    except FileRefused as refused:
        if refused.why == "exists":
            raise FileRefused("exists", f"{refused}: --force replaces it") from None
        raise


@contextmanager
def _opened(sources: list[str]) -> Iterator[list[tuple[str, IO[bytes], int]]]:
    """Open files of this machine, each with its name and its size; stdin is read to its end. Raises `UsageError`."""
    from acp_gateway.client.copying.places import STDIO

    files: list[tuple[str, IO[bytes], int]] = []
    try:
        for source in sources:
            try:
                if source == STDIO:
                    files.append(("", *_whole_stdin()))
                    continue
                if Path(source).is_dir():
                    raise UsageError(f"{printable(source)} is a folder: pack it, `tar cz {printable(source)} | …`")
                opened = open(source, "rb")  # noqa: SIM115 - closed below, with the others.
                files.append((Path(source).name, opened, os.fstat(opened.fileno()).st_size))
            except OSError as error:
                raise UsageError(f"{printable(source)} can't be read: {error.strerror}") from None
        yield files
    finally:
        for _, file, _ in files:
            file.close()


def _whole_stdin() -> tuple[IO[bytes], int]:
    """Return stdin as a file, since its size is told first."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it.
    while data := sys.stdin.buffer.read(_MIB):
        file.write(data)
    size = file.tell()
    file.seek(0)
    return file, size


@contextmanager
def _progress(name: str, options: _Options) -> Iterator["Progress"]:
    """Show how far a copy is, in a line of the terminal that is removed at the end."""
    if options.is_quiet:
        yield lambda *_: None
        return
    import time

    began, shown = time.monotonic(), 0.0
    text = ""

    def show(done: int, size: int) -> None:
        nonlocal shown, text
        now = time.monotonic()
        if now - shown < 0.2 and done < size:
            return
        shown = now
        rate = done / max(now - began, 0.001) / _MIB
        text = f"{printable(name, size=40)}  {100 * done // max(size, 1)} % of {size / _MIB:.1f} MiB  {rate:.1f} MiB/s"
        sys.stderr.write(f"\r{text}\033[K")
        sys.stderr.flush()

    try:
        yield show
    finally:
        if text:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
