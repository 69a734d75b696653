"""The work of `connect` when an editor runs it. It imports its dependencies when it runs, and never click."""

import sys
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from acp_gateway.cli.plain_options import EDITORS, ConnectOptions, connection_of
from acp_gateway.cli.quick_imports import PUT_OFF, quick_imports
from acp_gateway.errors import GatewayError, UsageError
from acp_gateway.printable import printable

if TYPE_CHECKING:
    from acp_gateway.client.dialing import Destination
    from acp_gateway.client.feedback import StatusFile
    from acp_gateway.client.ports.editor_forwards import EditorForwards
    from acp_gateway.client.uplink import LinkEvent
    from acp_gateway.config.hosts import Host


def relay_editor(target: str, options: ConnectOptions, given: frozenset[str]) -> None:
    """Relay between stdin and stdout and the gateway at `target`, until stdin ends. Raises `GatewayError`.

    `given` has the names of the options that were given explicitly.
    """
    with quick_imports(PUT_OFF):
        import logging
        from dataclasses import replace

        import trio

        from acp_gateway.cli.client.reached_hosts import own_reached_hosts
        from acp_gateway.client import shim
        from acp_gateway.client.destination import find_destination, find_host
        from acp_gateway.client.feedback import Feedback
        from acp_gateway.client.http.cookies import CookieJar
        from acp_gateway.client.uplink import ReconnectSettings, ignore
        from acp_gateway.config.addresses import parse_target
        from acp_gateway.logs import log_to_file
        from acp_gateway.protocol.path_maps import PathMaps, parse_map
        from acp_gateway.transports.pipes import open_stdio

    cookies = CookieJar()

    def destination() -> "Destination":
        found = find_destination(
            target,
            connection_of(options._asdict()),
            options.max_message_size,
            agent=options.agent,
            session=options.session,
            observe=options.observe,
        )
        return replace(found, cookies=cookies)

    sys.excepthook = _one_line_for_bugs
    tell = ignore
    known_timeout = 0.0 if "connect_timeout" in given else options.known_timeout
    status = None if options.status_file is None else _open_status(options.status_file, target)
    if sys.stdin is not None and sys.stdin.isatty():
        print_error(
            "Editors run this: it speaks JSON-RPC on stdin and stdout. Ctrl-D ends it; for an editor's settings: "
            f"acp-gateway connect {printable(target)} --print-config {'|'.join(EDITORS)}"
        )
        tell = partial(_tell_terminal, target)
        if "known_timeout" not in given:
            # In a terminal, report errors soon.
            known_timeout = 0.0
    try:
        if options.worktree is not None and (options.session is not None or options.observe):
            raise UsageError("--worktree is for new sessions: leave it out, or --attach and --observe")
        log_to_file(options.log_file, logging.INFO)
        host = find_host(target)
        reached = own_reached_hosts()
        feedback = Feedback(status, tells_outages=options.tell_outages)

        def notice(event: "LinkEvent") -> None:
            tell(event)
            feedback.notice(event)

        pairs = [*map(parse_map, options.maps), *(host.maps if host else ())]
        addresses = (host.address, *host.others) if host else (parse_target(target),)
        settings = shim.Settings(
            maps=PathMaps(pairs),
            max_message_size=options.max_message_size,
            reconnect=ReconnectSettings(
                options.connect_timeout,
                known_timeout,
                reached.knows,
                reached.record,
                options.keepalive,
                notice,
            ),
            feedback=feedback,
            # Each session of the connection gets one: those after the first have a number.
            worktree=options.worktree and f"{options.worktree}*",
            # On one machine the agent has the files itself, unless maps say that it is another one behind a tunnel.
            embeds_files=bool(pairs) or not all(address.loopback for address in addresses),
            forwards=None if host is None or host.forward is None else _forwards(host, options),
        )
    except GatewayError as error:
        if status is not None:
            status.end(str(error))
        trio.run(shim.refuse, open_stdio(), error)
        raise
    trio.run(shim.run, open_stdio(), destination, settings)


def _forwards(host: "Host", options: ConnectOptions) -> "EditorForwards":
    """Return what forwards the ports that agents of a host offer. Imported only where that is wanted."""
    from acp_gateway.client.destination import find_destination
    from acp_gateway.client.ports.editor_forwards import EditorForwards, Ways
    from acp_gateway.client.ports.forwarding import at_node, over_http
    from acp_gateway.client.ports.session_ports import ports_there
    from acp_gateway.terminal.port_lines import Port, node_of

    node = node_of(options.session or options.agent or host.agent or "")

    def destination() -> "Destination":
        found = find_destination(host.name, connection_of(options._asdict()), options.max_message_size, control=True)
        return at_node(found, node) if node else over_http(found, "ports are forwarded")

    async def look(session: str) -> list[Port]:
        return await ports_there(destination(), session)

    return EditorForwards(Ways(host.name, node, look, destination), asks=host.forward == "ask")


def _open_status(path: Path, target: str) -> "StatusFile":
    from acp_gateway.client.feedback import StatusFile

    return StatusFile(path, target)


def print_error(line: str) -> None:
    """Print a line on stderr, if there is one. click, which prints for commands, takes long to import."""
    if sys.stderr is not None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def _tell_terminal(target: str, event: "LinkEvent") -> None:
    """Tell a user who has started this in a terminal whether the connection works."""
    if event.kind == "lost":
        line = f"The connection is lost ({event.why}); it is tried again, and the agent goes on."
    elif event.kind == "resumed":
        line = f"Connected again after {event.seconds:.0f} s; nothing was lost."
    else:
        line = (
            f"Connected to {event.address} in {event.seconds:.1f} s: a gateway, and it accepts you. For the agent too: "
            f"acp-gateway ping {target}"
        )
    print_error(printable(line, 1000))


def _one_line_for_bugs(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print one line instead of a traceback, which goes to the log file: editors show stderr to users, or drop it."""
    import logging

    logging.getLogger(__name__).critical("a bug", exc_info=(kind, error, trace))
    print_error(f"acp-gateway: a bug: {kind.__name__}: {printable(str(error))}; --log-file shows where")
