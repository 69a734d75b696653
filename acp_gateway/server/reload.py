"""Reads the files of a running gateway again: tokens, browsers, certificates, and the configuration."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acp_gateway.config.load import Config, load_config
from acp_gateway.errors import ConfigError
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.reconfiguration import compare
from acp_gateway.server.config_check import check_credentials
from acp_gateway.server.handshake_limits import HandshakeLimiter
from acp_gateway.server.listener import Listener
from acp_gateway.server.systemd import Notifier

if TYPE_CHECKING:
    from acp_gateway.nodes.node_set import NodeSet

log = logging.getLogger(__name__)


class Reloader:
    """Reads the files of one gateway again.

    Args:
        file: the configuration; None if there is no file of it.
        gateway: that gateway.
        listeners: its listeners, for their certificates.
        limiter: the limits of unauthenticated connections.
        notifier: tells the service manager.
        nodes: returns the nodes of the gateway; called only if there are any, or were.
    """

    def __init__(
        self,
        file: Path | None,
        gateway: Gateway,
        listeners: Sequence[Listener],
        limiter: HandshakeLimiter,
        notifier: Notifier,
        nodes: Callable[[], "NodeSet"],
    ) -> None:
        self._file = file
        self._gateway = gateway
        self._listeners = listeners
        self._limiter = limiter
        self._notifier = notifier
        self._nodes = nodes

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
            except ConfigError as error:
                log.error("the configuration stays as it was: %s", error)
                problems.append(str(error))
            else:
                changed, restart = self._use(self._file, config)
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
                nodes.directory.max_sessions = config.limits.max_node_sessions
                nodes.configure(config.nodes)
                config = replace(config, nodes=nodes.directory.sections)
            outdated = {hub.name for hub in self._gateway.hubs if found.is_outdated(hub.name)}
            running = self._gateway.reconfigure(config, outdated)
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
