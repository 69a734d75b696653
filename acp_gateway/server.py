"""The gateway as a program: put together, run until told to stop, drained."""

import logging
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import trio

from acp_gateway.agent import Spawner
from acp_gateway.auth import TokenStore
from acp_gateway.config import Config, Finding
from acp_gateway.errors import ConfigError
from acp_gateway.gateway import DATABASE, Gateway
from acp_gateway.leftovers import Ledger
from acp_gateway.listeners import Door, open_door
from acp_gateway.tls import server_context

log = logging.getLogger(__name__)

_SQLITE = b"SQLite format 3\x00"
"""What each of its files begins with."""

_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


async def serve(
    config: Config,
    environment: Mapping[str, str],
    *,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a gateway until SIGTERM, SIGINT or SIGHUP, or until cancelled.

    Reports the URLs that it listens at, by `task_status`. When it is told to stop it accepts nobody any more, says
    goodbye to every client, and stops every agent politely, which takes as long as the slowest agent's `eof_grace +
    term_grace`. A second signal ends the process at once.

    Raises `ConfigError` where the state directory or a certificate can't be used, `CannotListen` for an address.
    """
    state_dir = config.gateway.state_dir
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot make the state directory {state_dir}: {error.strerror}", key="gateway.state_dir"
        ) from error
    tokens = TokenStore(state_dir)
    ledger = Ledger(state_dir / "agents")
    for group in ledger.sweep():
        log.warning("ended process group %d, an agent's that an earlier gateway left behind", group)
    if not tokens.tokens():
        log.warning("there are no tokens, so nobody gets in; make one with `acp-gateway token create --label NAME`")
    with Spawner(ledger) as spawner:
        gateway = Gateway(config, tokens, spawner, environment)
        doors: list[Door] = []
        try:
            for section in config.listen:
                doors.append(await open_door(section, gateway))  # noqa: PERF401 - those that are open must be closed
            async with trio.open_nursery() as hubs, trio.open_nursery() as connections:
                await hubs.start(gateway.run)
                async with trio.open_nursery() as accepting:
                    for door in doors:
                        accepting.start_soon(door.run, connections)
                    task_status.started([url for door in doors for url in door.urls])
                    await _told_to_stop()
                    accepting.cancel_scope.cancel()
                log.info("stopping")
                # Both at the same time: clients and agents may be slow to leave.
                connections.cancel_scope.cancel()
                hubs.cancel_scope.cancel()
        finally:
            for door in doors:
                door.close()
    log.info("stopped")


async def _told_to_stop() -> None:
    # SIGHUP is the end of the terminal that a person has started this in.
    with trio.open_signal_receiver(*_STOPPING) as signals:
        async for number in signals:
            log.info("received %s", signal.Signals(number).name)
            break
    for number in _STOPPING:
        signal.signal(number, signal.SIG_DFL)


def problems_with_files(config: Config) -> list[Finding]:
    """What only shows when the files are opened that a configuration names.

    What `serve` refuses is an error; without the rest of it, it does its work.
    """
    errors = []
    warnings = []
    for section in config.listen:
        try:
            if section.cert is not None and section.key is not None:
                server_context(section.cert, section.key)
        except ConfigError as error:
            errors.append(error)
        parent = Path(section.address.path).parent
        if section.address.scheme == "unix" and not parent.is_dir():
            errors.append(ConfigError(f"there is no directory {parent} for the socket", key=f"listen {section.url}"))
    state_dir = config.gateway.state_dir
    existing = next(path for path in (state_dir, *state_dir.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        errors.append(ConfigError(f"{existing} is no directory that can be written", key="gateway.state_dir"))
    else:
        try:
            TokenStore(state_dir).tokens()
        except ConfigError as error:
            errors.append(error)
        try:
            _check_database(state_dir / DATABASE)
        except ConfigError as error:
            warnings.append(error)
    return [*(Finding("error", error) for error in errors), *(Finding("warning", error) for error in warnings)]


def _check_database(path: Path) -> None:
    """Raise `ConfigError` for what can be seen without having SQLite open the file: a gateway may be using it."""
    try:
        with path.open("rb+") as file:
            beginning = file.read(len(_SQLITE))
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{error.strerror}; sessions will not outlive a restart", file=str(path)) from error
    if beginning not in (b"", _SQLITE):
        raise ConfigError("is damaged; `serve` will put it aside and begin a new one", file=str(path))
