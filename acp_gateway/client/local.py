"""Finds the gateway that runs on this machine, and asks it as its own user, over its control socket."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from acp_gateway.client import control
from acp_gateway.client.dialing import Destination
from acp_gateway.config.addresses import parse_address
from acp_gateway.config.directories import state_home
from acp_gateway.config.load import default_config_path, load_config
from acp_gateway.errors import ConfigError, ProtocolError, Unreachable, UsageError
from acp_gateway.gateway.storage.state_folder import CONTROL_SOCKET, find_holder
from acp_gateway.protocol.methods import CONFIRM, RELOAD, STATUS, STOP_AGENT

_MAX_MESSAGE_SIZE: Final = 64 * 1024 * 1024
"""Maximum bytes of a response, equal to the gateway's default."""


@dataclass(frozen=True, slots=True)
class LocalGateway:
    """A gateway on this machine, which may not run."""

    state_dir: Path

    @property
    def destination(self) -> Destination:
        """The address of its control socket. Raises `UsageError` for a path that can't be one."""
        address = parse_address(f"unix://{self.state_dir / CONTROL_SOCKET}")
        return Destination(address, None, None, None, None, _MAX_MESSAGE_SIZE, control=True)

    async def status(self, *, time_limit: float, nodes: bool = False) -> dict[str, Any]:
        """Return its state, as docs/wire.md describes it; with `nodes`, after these have told theirs.

        `time_limit` and errors are those of `control.request`.
        """
        return await self._ask(STATUS, time_limit, {"nodes": nodes})

    async def knows(self, session_id: str, *, time_limit: float) -> bool:
        """Return whether it has a session of this id, of any owner, stored or not yet; the rest as for `status`."""
        return (await self._ask(STATUS, time_limit, {"session": session_id})).get("known") is True

    async def reload(self, *, time_limit: float) -> dict[str, Any]:
        """Have it read its configuration again, and return what has changed; the rest as for `status`."""
        return await self._ask(RELOAD, time_limit)

    async def stop_agent(self, name: str, *, time_limit: float) -> dict[str, Any]:
        """Have it end the processes of an agent; return `processes` and `turns`, their numbers. Raises `UsageError` for
        a name that it does not know; the rest as for `status`."""
        return await self._ask(STOP_AGENT, time_limit, {"agent": name})

    async def confirm(self, token_id: str, *, time_limit: float) -> dict[str, Any]:
        """Return which nodes of its cluster know that a token was revoked or rotated; the rest as for `status`."""
        return await self._ask(CONFIRM, time_limit, {"id": token_id})

    async def _ask(self, method: str, time_limit: float, params: dict[str, object] | None = None) -> dict[str, Any]:
        result = await control.request(self.destination, method, params or {}, time_limit=time_limit)
        if not isinstance(result, dict):
            raise ProtocolError("the gateway's response is not understood: was it updated, and not restarted since?")
        return result

    def check_running(self) -> None:
        """Raise `Unreachable`, with the next step, unless it runs and can be asked."""
        if find_holder(self.state_dir) is None:
            raise Unreachable(
                f"no gateway runs on {self.state_dir}: start one with `acp-gateway up` in a project's folder, or with "
                "`acp-gateway serve`"
            )
        if self._has_socket() is not True:
            raise Unreachable(
                f"the gateway on {self.state_dir} has no control socket there: it starts or stops just now, or its log "
                "says why"
            )

    def check_settled(self) -> None:
        """Raise `Unreachable`, with the next step, if the gateway that runs is starting or stopping."""
        running = find_holder(self.state_dir)
        if running is not None and self._has_socket() is False:
            raise Unreachable(
                f"{running}, but has no control socket: it starts or stops just now, or its log says why; run "
                "this command again in a moment"
            )

    def _has_socket(self) -> bool | None:
        """Return whether its control socket is there, as long as it accepts clients; None if it can have none."""
        try:
            return Path(self.destination.address.path).exists()
        except (UsageError, OSError):
            return None


def find_local_gateway(config: Path | None) -> LocalGateway:
    """Return the gateway of a configuration, of the default one without a name. Raises `ConfigError`.

    Without any configuration it is the one that runs on the default state folder. A client has files there too.
    """
    if config is None:
        try:
            config = default_config_path()
        except ConfigError:
            if not state_home().is_dir() or find_holder(state_home()) is None:
                raise
            return LocalGateway(state_home())
    return LocalGateway(load_config(config).gateway.state_dir)
