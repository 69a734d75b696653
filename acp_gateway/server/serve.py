"""Assembles the gateway, runs it until a stop signal, and stops it gracefully. Reads its files again at a SIGHUP."""

import errno
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio

from acp_gateway.config.load import Config, ListenSection, load_config
from acp_gateway.errors import CannotListen, ConfigError, UsageError
from acp_gateway.fence.cleaning import sweep
from acp_gateway.gateway.agent.fencing import SCRATCH
from acp_gateway.gateway.agent.orphans import ProcessRegistry
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.events import audit
from acp_gateway.gateway.events.audit import Audit
from acp_gateway.gateway.events.recording import Recording
from acp_gateway.gateway.extensions import Operations
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.reconfiguration import compare
from acp_gateway.gateway.storage.file_modes import FileModes
from acp_gateway.gateway.storage.state_folder import CONTROL_SOCKET, check_state_folder, holding
from acp_gateway.gateway.viewing.due_prompts import DuePrompts
from acp_gateway.printable import counted
from acp_gateway.security.token_store import TokenStore
from acp_gateway.server.agent_dialer import connect_to_agent
from acp_gateway.server.allocator import give_back_memory, keep_blocks, trimmer
from acp_gateway.server.config_check import check_credentials, check_nodes_of_agents, check_packages, find_clash
from acp_gateway.server.handshake_limits import HandshakeLimiter
from acp_gateway.server.http.routes import SharedState
from acp_gateway.server.listener import Listener, open_listener
from acp_gateway.server.status import StatusReporter
from acp_gateway.server.systemd import Notifier, describe, fits, take_sockets
from acp_gateway.transports.timers import Signal

if TYPE_CHECKING:
    from acp_gateway.gateway.access import Access
    from acp_gateway.nodes.lent.lending import Lending
    from acp_gateway.nodes.lent.parked import LentNodes
    from acp_gateway.nodes.membership import ClusterNode
    from acp_gateway.nodes.node_set import NodeSet
    from acp_gateway.server.lending import Lendings
    from acp_gateway.transports.http.server import HttpConnection, Request


log = logging.getLogger(__name__)


class Doors:
    """Lends connections to the doors of the configuration, once there are any."""

    def __init__(self, gateway: Gateway, shared: SharedState) -> None:
        self._gateway = gateway
        self._shared = shared
        self._lendings: Lendings | None = None
        # Notified once there are doors.
        self._opened = Signal()

    def lendings(self) -> "Iterable[Lending]":
        """Return what lends connections to each of them."""
        return self._lendings or ()

    def reload(self, config: Config) -> None:
        """Use the doors of a configuration from now on, and read the certificate again. Raises `ConfigError`."""
        if self._lendings is not None:
            self._lendings.reload(config)
        elif config.doors:
            # Imported only where there are doors.
            from acp_gateway.server.lending import Lendings

            self._lendings = Lendings(self._gateway, self._shared)
            self._opened.notify()

    async def run(self, connections: trio.Nursery) -> None:
        """Lend connections until cancelled; serve those that are taken in `connections`."""
        if self._lendings is None:
            await self._opened.wait()
        assert self._lendings is not None
        await self._lendings.run(connections)


class Reloader:
    """Reads the files of one gateway again.

    Args:
        file: the configuration; None if there is no file of it.
        gateway: that gateway.
        listeners: its listeners, for their certificates.
        limiter: the limits of unauthenticated connections.
        notifier: tells the service manager.
        nodes: returns the nodes of the gateway; called only if there are any, or were.
        doors: what lends connections to doors.
    """

    def __init__(
        self,
        file: Path | None,
        gateway: Gateway,
        listeners: Sequence[Listener],
        limiter: HandshakeLimiter,
        notifier: Notifier,
        nodes: Callable[[], "NodeSet"],
        doors: Doors,
    ) -> None:
        self._file = file
        self._gateway = gateway
        self._listeners = listeners
        self._limiter = limiter
        self._notifier = notifier
        self._nodes = nodes
        self._doors = doors

    def reload(self, cause: str) -> dict[str, Any]:
        """Read all of them; log what has changed and what is invalid, and return it as members of the response.

        An invalid file is not used: a certificate and the configuration stay as they were, and without tokens no client
        is accepted. No turn ends.
        """
        log.info("%s: reading the configuration, tokens and certificates again", cause)
        self._notifier.reloading()
        problems = self._read_secrets()
        changed: list[str] = []
        restart: list[str] = []
        if self._file is not None:
            try:
                config = load_config(self._file)
                check_credentials(config)
                check_nodes_of_agents(config, self._gateway.tokens)
            except ConfigError as error:
                log.error("the configuration stays as it was: %s", error)
                problems.append(str(error))
            else:
                changed, restart = self._use(self._file, config)
        try:
            self._doors.reload(self._gateway.config)
        except ConfigError as error:
            log.error("the doors are as they were: %s", error)
            problems.append(str(error))
        self._gateway.audit.record(
            "reloaded", problems=problems or None, changed=changed or None, needs_restart=restart or None
        )
        log.info("reloaded")
        self._notifier.ready()
        return {"changed": changed, "restart": restart, "problems": problems}

    def _read_secrets(self) -> list[str]:
        """Read tokens, browsers and certificates again, and end connections by them; return the problems."""
        gateway = self._gateway
        problems: list[str] = []
        try:
            gateway.tokens.tokens()
        except ConfigError as error:
            log.error("no client is accepted: %s", error)
            problems.append(str(error))
        try:
            gateway.browsers.check()
        except ConfigError as error:
            log.error("no browser can sign in, and none is accepted: %s", error)
            problems.append(str(error))
        for listener in self._listeners:
            try:
                listener.reload()
            except ConfigError as error:
                log.error("%s goes on with the certificate that it had: %s", listener.urls[0], error)
                problems.append(str(error))
        # At once, not at the next periodic check.
        gateway.connections.enforce()
        return problems

    def _use(self, file: Path, config: Config) -> tuple[list[str], list[str]]:
        """Use what can change in another configuration; return lines of that, and the names of the rest."""
        directory = self._gateway.extensions.directory
        now = self._gateway.config if directory is None else replace(self._gateway.config, nodes=directory.configured)
        found = compare(now, config)
        for line in config.removed:
            log.warning("%s", line)
        changed = list(found.changed)
        if changed:
            config = found.config
            if directory is not None or config.nodes:
                nodes = self._nodes()
                nodes.configure(config.nodes)
                config = replace(config, nodes=nodes.directory.sections)
            running = self._gateway.reconfigure(config, found.agents)
            self._limiter.set_limits(found.config.limits)
            changed += [
                f"agents.{name}: {running.count(name)} running, as before until nothing is open in it"
                for name in sorted(set(running))
            ]
        for line in changed:
            log.info("changed: %s", line)
        if found.needs_restart:
            log.warning(
                "%s has changed in what needs a restart, which ends the agents: %s",
                file,
                ", ".join(found.needs_restart),
            )
        return changed, list(found.needs_restart)


_NO_TERMINAL = (errno.ENXIO, errno.EIO)
"""Errors of opening `/dev/tty` in a process without a controlling terminal."""


SWITCH_INTERVAL: Final = 0.0005
"""Seconds after which a thread that wants the interpreter's lock gets it. One writes histories to the disk while the
event loop is at work: with Python's five milliseconds, each time that the loop lets go of the lock could take as long.
"""


async def serve(
    config: Config,
    environment: MutableMapping[str, str],
    *,
    file: Path | None = None,
    recorder: Recording | None = None,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a gateway until SIGTERM or SIGINT, or until cancelled.

    Reports the URLs of its listeners by `task_status`. The graceful shutdown stops accepting, closes every connection
    with a reason, and stops every agent, which takes as long as the slowest agent's `eof_grace + term_grace`. The
    addresses are given up after that. A second signal ends the process at once.

    SIGHUP reads the files again, see `Reloader`, and keeps all connections. If the gateway's controlling terminal is
    closed, it stops. A SIGHUP that is ignored from the start (`nohup`) stays ignored.

    Args:
        config: its listeners and its agents.
        environment: the gateway's own; agents inherit a part of it. systemd's variables about inherited sockets and
            notifications are removed.
        file: the source of `config`, which is read again at a SIGHUP.
        recorder: records the messages of connections.

    Raises `ConfigError` if the state directory, a certificate, a socket of systemd's or a library can't be used,
    `CannotListen` for an address.
    """
    check_credentials(config)
    check_packages(config)
    for line in config.removed:
        log.warning("%s", line)
    sys.setswitchinterval(SWITCH_INTERVAL)
    keep_blocks()
    settings = config.gateway
    state_dir = settings.state_dir
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot make the state directory {state_dir}: {error.strerror}", key="gateway.state_dir"
        ) from error
    modes = FileModes()
    await trio.to_thread.run_sync(modes.look, config)
    check_state_folder(state_dir)
    if clash := await trio.to_thread.run_sync(find_clash, config):
        raise clash
    with ExitStack() as stack:
        stack.enter_context(holding(state_dir))
        tokens = TokenStore(state_dir)
        check_nodes_of_agents(config, tokens)
        cluster = None if config.cluster is None else _open_cluster(config, tokens)
        registry = ProcessRegistry(state_dir / "agents")
        for group in registry.reap():
            log.warning("ended process group %d, an agent's that an earlier gateway left behind", group)
        if count := await trio.to_thread.run_sync(sweep, str(state_dir / SCRATCH)):
            log.info("removed temporary files that an earlier gateway left behind, of %s", counted(count, "agent"))
        notifier = stack.enter_context(closing(Notifier(environment)))
        sockets = take_sockets(environment)
        for sock in sockets:
            stack.callback(sock.close)
        audit_log = Audit(state_dir / audit.FILE_NAME, max_size=settings.audit_size, files=settings.audit_files)
        stack.callback(audit_log.close)
        spawner = stack.enter_context(Spawner(registry))
        own_id = secrets.token_hex(8)
        gateway = Gateway(config, tokens, spawner, environment, audit_log, recorder, connect_to_agent, own_id)
        nodes = cache(partial(_open_nodes, gateway, own_id))
        shared = SharedState(gateway)
        listeners: list[Listener] = []
        for section, inherited in zip(config.listen, _assign(sockets, config.listen), strict=True):
            listener = await open_listener(section, gateway, inherited, shared=shared)
            stack.callback(listener.close)
            listeners.append(listener)
        if not (tokens.tokens() or any(section.accepts_local_user for section in config.listen)):
            log.warning("there are no tokens yet; create one with `acp-gateway token create --label NAME`")
        unfenced = [name for name, each in config.agents.items() if each.command and each.fence in (None, "off")]
        if unfenced:
            log.warning(
                "without a fence, agents read and write all that their user may: %s (option fence, docs/fence.md)",
                ", ".join(unfenced),
            )
        doors = Doors(gateway, shared)
        doors.reload(config)
        control = await _open_control(gateway, shared)
        if control is not None:
            stack.callback(control.close)

        def state() -> str:
            connections = len(gateway.connections)
            agents = sum(hub.supervisor.agent is not None for hub in gateway.hubs)
            return f"{counted(connections, 'connection')}, {counted(agents, 'agent')}"

        async with trio.open_nursery() as notifying:
            async with trio.open_nursery() as hubs, trio.open_nursery() as connections:
                await hubs.start(gateway.run)
                gateway.start_task(DuePrompts(gateway).run)
                lent = cache(partial(_open_lent, gateway, nodes))
                gateway.extensions.lend = partial(_lend, lent)
                if any(token.role == "node" for token in tokens.tokens()):
                    lent()
                if config.nodes or cluster is not None:
                    opened = nodes()
                    if cluster is not None:
                        cluster.expect(gateway, opened)
                async with trio.open_nursery() as accepting:
                    for listener in listeners:
                        accepting.start_soon(listener.run, connections)
                    accepting.start_soon(doors.run, connections)
                    if control is not None:
                        accepting.start_soon(control.run, connections)
                    notifying.start_soon(notifier.run, state)
                    notifying.start_soon(modes.run, lambda: gateway.config)
                    if trim := trimmer():
                        notifying.start_soon(give_back_memory, trim)
                    notifier.ready()
                    urls = [url for listener in listeners for url in listener.urls]
                    if cluster is not None:
                        gateway.start_task(cluster.run, gateway, nodes(), urls)
                    reload = Reloader(file, gateway, listeners, shared.limiter, notifier, nodes, doors).reload
                    reporter = StatusReporter(gateway, urls, file, doors.lendings)
                    gateway.extensions.door_connections = lambda: {it.name: it.parked for it in doors.lendings()}
                    gateway.extensions.operations = Operations(
                        reporter.report, partial(reload, "acp-gateway reload"), gateway.stop_agent
                    )
                    task_status.started(urls)
                    try:
                        await _wait_for_stop_signal(partial(reload, "received SIGHUP"))
                    finally:
                        gateway.readiness.stopping = True
                    accepting.cancel_scope.cancel()
                for listener in listeners:
                    notifying.start_soon(listener.refuse)
                if control is not None:
                    control.close()
                log.info("stopping")
                notifier.stopping()
                # Both at the same time: clients and agents may be slow to end.
                connections.cancel_scope.cancel()
                hubs.cancel_scope.cancel()
            notifying.cancel_scope.cancel()
    log.info("stopped")


def _assign(sockets: Sequence[socket.socket], sections: Sequence[ListenSection]) -> list[list[socket.socket]]:
    """Return systemd's sockets for each section. Raises `ConfigError` for a socket that matches none."""
    unassigned = list(sockets)
    assigned = []
    for section in sections:
        matching = [sock for sock in unassigned if fits(sock, section.address)]
        unassigned = [sock for sock in unassigned if sock not in matching]
        assigned.append(matching)
    if unassigned:
        known = ", ".join(section.url for section in sections)
        message = f"systemd listens at {describe(unassigned[0])}, which is the address of no [[listen]] section"
        raise ConfigError(f"{message}; there are: {known}", key="listen")
    return assigned


def _open_nodes(gateway: Gateway, own_id: str) -> "NodeSet":
    """Give a running gateway its nodes, and watch them until it stops."""
    # Imported only where there are nodes.
    from acp_gateway.nodes.node_set import open_nodes

    return open_nodes(gateway, own_id)


def _open_lent(gateway: Gateway, nodes: "Callable[[], NodeSet]") -> "LentNodes":
    """Return the nodes that lend connections to a gateway."""
    # Imported only where there are some.
    from acp_gateway.nodes.lent.parked import LentNodes

    lent = LentNodes(gateway, nodes)
    gateway.extensions.node_connections = lent.parked
    lent.know_all()
    return lent


def _lend(
    lent: "Callable[[], LentNodes]", access: "Access", request: "Request", name: str
) -> "Callable[[HttpConnection], Awaitable[bool]]":
    return lent().lend(access, request, name)


def _open_cluster(config: Config, tokens: TokenStore) -> "ClusterNode":
    """Read the secrets of the cluster. Raises `ConfigError`."""
    # Imported only where there is a cluster.
    from acp_gateway.nodes.membership import open_cluster

    return open_cluster(config, tokens)


async def _open_control(gateway: Gateway, shared: SharedState) -> Listener | None:
    """Listen for the commands of the gateway's own user; return None, with a warning, if that can't be."""
    path = gateway.config.gateway.state_dir / CONTROL_SOCKET
    try:
        section = ListenSection(url=f"unix://{path}")
        return await open_listener(section, gateway, shared=shared, only_control=True)
    except (CannotListen, UsageError) as error:
        log.warning("`acp-gateway status` and `reload` won't find this gateway: %s", error)
        return None


async def _wait_for_stop_signal(reload: Callable[[], object]) -> None:
    """Wait for a stop signal; call `reload` for each SIGHUP before it."""
    had_terminal = _has_terminal()
    numbers = [signal.SIGTERM, signal.SIGINT]
    with _ignoring_hangups() as hangups:
        if hangups:
            numbers.append(signal.SIGHUP)
        with trio.open_signal_receiver(*numbers) as signals:
            async for number in signals:
                if number == signal.SIGHUP and not (had_terminal and _has_terminal() is False):
                    reload()
                    continue
                log.info("received %s", signal.Signals(number).name)
                break
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def _ignoring_hangups() -> Iterator[bool]:
    """Ignore SIGHUP from here on, unless the block is cancelled. Yields False if it was ignored before.

    A closing terminal sends several, and an ending login session sends one right after SIGTERM: these must not kill a
    gateway that is stopping.
    """
    before = signal.getsignal(signal.SIGHUP)
    if before == signal.SIG_IGN:
        yield False
        return
    # No SIG_IGN: child processes would inherit that.
    signal.signal(signal.SIGHUP, lambda *_: None)
    try:
        yield True
    except BaseException:
        signal.signal(signal.SIGHUP, before)
        raise


def _has_terminal() -> bool | None:
    """Return whether this process has a controlling terminal; None if that can't be determined."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK))
    except OSError as error:
        return False if error.errno in _NO_TERMINAL else None
    return True
