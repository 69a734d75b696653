"""The nodes that lend their connections to this gateway, their door: no section names them, no port of theirs is open.

A node opens connections ahead and leaves them parked here. One is taken for each client, and the node parks another at
once. What is taken leads to the TLS of the node itself, as a connection to its address does.

The token of a node names it. It is a node of this gateway until the token is revoked, also while it is away. Of two
machines with one name the first keeps it until then: it is known by the pin of its certificate, and one that renews
that by the token that it has made for this gateway.
"""

import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import trio

from acp_gateway.config.addresses import parse_target
from acp_gateway.config.editing.section_writer import replace_file
from acp_gateway.config.nodes import LentSection, lent_file
from acp_gateway.errors import AccessError, Busy, ConfigError, Forbidden, UnknownAgent, Unreachable, UsageError
from acp_gateway.gateway.access import Access
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.hub.attachment import Disconnect
from acp_gateway.gateway.served_connection import ControlConnection
from acp_gateway.nodes.node_set import NodeSet
from acp_gateway.security.tls import parse_pin
from acp_gateway.security.token_format import explain_flaw
from acp_gateway.transports.http.server import HttpConnection, Request, Response
from acp_gateway.transports.timers import Signal
from acp_gateway.transports.websocket.server import upgrade_to_tunnel
from acp_gateway.transports.websocket.tunnel import Tunnel

log = logging.getLogger(__name__)

NODE_PIN: Final = "Acp-Gateway-Node-Pin"
NODE_TOKEN: Final = "Acp-Gateway-Node-Token"  # noqa: S105 - its name alone.
"""Headers of a node: the pin of its certificate, and the token that it has made for this gateway."""

MAX_PARKED: Final = 16
"""Maximum parked connections of one node: four times as many as it keeps parked, so that those of a network that it has
left, which are not noticed at once, do not keep it out."""

PING_INTERVAL: Final = 15.0
PING_TIMEOUT: Final = 10.0
"""Seconds of silence of a parked connection until a ping, and until it is given up. That long a node that has changed
networks can't be reached; routers forget what is silent for two minutes."""

PATIENCE: Final = 4.0
"""Seconds to wait for a connection of a node that has none parked: it parks another within a few round trips."""


class _Parked(ControlConnection):
    """A connection that a node lends, until it is closed; its credential is the token of the node."""

    def __init__(self, access: Access, tunnel: Tunnel) -> None:
        super().__init__(access)
        self.tunnel = tunnel
        self.waiting = trio.CancelScope()
        """Scope of the task that reads while it is parked."""
        self.is_read = trio.Event()
        """Set once that task reads no more."""


class _Known(ControlConnection):
    """A node that was added here, until its token is revoked, which is noticed as that of a connection.

    Args:
        access: that of its token.
        forget: called at the end.
        renew: called when the token has another secret.
    """

    def __init__(self, access: Access, forget: Callable[[str], None], renew: Callable[[str], None]) -> None:
        super().__init__(access)
        self._forget = forget
        self._renew = renew

    def close(self, disconnect: Disconnect) -> None:
        (name,) = self.access.nodes
        self._forget(name)

    def drop(self) -> bool:
        """Stay for the new secret of the token: also who accepts the invitation of `nodes add` has it rotated."""
        (name,) = self.access.nodes
        self._renew(name)
        return True


@dataclass(eq=False, slots=True)
class _Lender:
    """A node that lends connections."""

    name: str
    pin: str
    """The pin of its certificate, which tells two machines with one name apart."""
    token: str = field(repr=False)
    added_by: str
    """Id of the token with which it was added here."""
    parked: list[_Parked] = field(default_factory=list)
    lent: set[_Parked] = field(default_factory=set)
    """Those that were taken."""

    @property
    def is_there(self) -> bool:
        """True while it has connections here."""
        return bool(self.parked or self.lent)

    def end_parked(self) -> None:
        """End those that are parked and can't be taken any more: the node parks others in their place."""
        for each in self.parked:
            each.scope.cancel()


def _id(access: Access) -> str:
    return "" if access.token is None else access.token.id


class LentNodes:
    """The nodes that lend connections to one gateway.

    Args:
        gateway: the gateway.
        open_nodes: returns all nodes of the gateway.
    """

    def __init__(self, gateway: Gateway, open_nodes: Callable[[], NodeSet]) -> None:
        self._gateway = gateway
        self._open_nodes = open_nodes
        self._lenders: dict[str, _Lender] = {}
        # By name: what ends with the token of a node.
        self._known: dict[str, ExitStack] = {}
        # Notified when a node has parked a connection or was removed.
        self._changed = Signal()

    def know_all(self) -> None:
        """Know the nodes that were added before this gateway was started: a client waits for them."""
        for token in self._gateway.tokens.tokens():
            if token.role == "node" and self._gateway.tokens.is_current(token):
                self._know(Access.of(token))

    def _know(self, access: Access) -> None:
        """Make a node one of the gateway, unless it is."""
        (name,) = access.nodes
        if name in self._known or name in self._gateway.config.nodes:
            return
        self._guard(name, access)
        # It may be asked for before it is there again.
        former = self._former(name)
        self._open_nodes().add(name, self._section(name, None if former is None else former.pin))

    def _guard(self, name: str, access: Access) -> None:
        """Notice when the token of a node ends or has another secret."""
        stack = self._known[name] = ExitStack()
        stack.enter_context(self._gateway.connections.guarded(_Known(access, self._forget, self._renew)))

    def _renew(self, name: str) -> None:
        """Go on with the token of a node after its rotation."""
        self._known.pop(name).close()
        for token in self._gateway.tokens.tokens():
            if token.role == "node" and token.nodes == (name,) and self._gateway.tokens.is_current(token):
                self._guard(name, Access.of(token))

    def _forget(self, name: str) -> None:
        """Remove a node whose token is not valid any more. Its connections end by themselves."""
        self._known.pop(name).close()
        lender = self._lenders.pop(name, None)
        if lender is not None:
            # With another token that is valid, the node parks others, and is known again.
            lender.end_parked()
        self._file(name).unlink(missing_ok=True)
        self._changed.notify()
        log.warning("the node %s was removed: its token is not valid any more", name)
        self._open_nodes().remove(name)

    def _file(self, name: str) -> Path:
        return lent_file(self._gateway.config.gateway.state_dir, name)

    def _former(self, name: str) -> _Lender | None:
        """Return the node as it was last; None if it has never been there."""
        lender = self._lenders.get(name)
        if lender is not None:
            return lender
        try:
            token, pin, added_by = self._file(name).read_text(encoding="ascii").splitlines()
            return _Lender(name, parse_pin(pin), token, added_by)
        except (OSError, UnicodeDecodeError, ValueError, UsageError):
            return None

    def _section(self, name: str, pin: str | None) -> LentSection:
        opener = partial(self.take, name)
        return LentSection(url=parse_target(name), token_file=self._file(name), pin=pin, opener=opener)

    def lend(self, access: Access, request: Request, name: str) -> Callable[[HttpConnection], Awaitable[bool]]:
        """Let a node lend a connection, which is called `name` in the log; return what answers the request.

        Raises `Forbidden` if another machine has the name, and `Busy` if the node has enough parked.
        """
        (node,) = access.nodes
        pin, token = self._read(request)
        directory = self._gateway.extensions.directory
        section = None if directory is None else directory.sections.get(node)
        if section is not None and section.opener is None:
            raise Busy(f"the name {node} is that of another node here: take another one by `acp-gateway nodes add`")
        self._check(access, pin, token)
        self._gateway.connections.make_room(access)
        return partial(self._park, access=access, request=request, name=name, pin=pin, token=token)

    def _check(self, access: Access, pin: str, token: str) -> None:
        """Raise `Forbidden` for another machine, and `Busy` if a node may not lend another connection now."""
        (node,) = access.nodes
        lender = self._former(node)
        is_same = lender is None or lender.pin == pin or secrets.compare_digest(lender.token, token)
        if lender is not None and not is_same and (lender.is_there or lender.added_by == _id(access)):
            raise Forbidden(
                f"another machine lends connections as {node}; if this one is to have the name, with its new "
                f"certificate: `acp-gateway nodes remove {node}` and `nodes add {node}` there"
            )
        if lender is not None and len(lender.parked) >= MAX_PARKED:
            raise Busy(f"{node} has {MAX_PARKED} connections parked already")

    @staticmethod
    def _read(request: Request) -> tuple[str, str]:
        """Return the pin and the token that a node tells. Raises `Busy`, which it logs and tries again after."""
        pins, tokens = (request.headers.get_all(header) for header in (NODE_PIN, NODE_TOKEN))
        try:
            if len(pins) == len(tokens) == 1 and explain_flaw(tokens[0]) is None:
                return parse_pin(pins[0]), tokens[0]
        except UsageError:
            pass
        raise Busy("a node tells its pin and a token when it lends a connection: is it an acp-gateway of this version?")

    async def _park(
        self, http: HttpConnection, *, access: Access, request: Request, name: str, pin: str, token: str
    ) -> bool:
        """Keep a connection until it was taken and has ended, or is lost. Returns False: no other request follows."""
        tunnel = await upgrade_to_tunnel(http, request, {})
        if isinstance(tunnel, Response):
            await http.respond(tunnel)
            return False
        parked = _Parked(access, tunnel)
        why = "its token is not valid any more, the node was started again, or the gateway stops"
        try:
            with parked.scope, self._gateway.connections.guarded(parked):
                lender = self._add(access.nodes[0], parked, pin, token)
                try:
                    why = await self._keep(parked)
                finally:
                    self._discard(lender, parked)
        except AccessError as error:
            why = str(error)
        finally:
            with trio.CancelScope(shield=True):
                log.debug("%s: the connection that %s has lent has ended: %s", name, access.nodes[0], why)
                await tunnel.lose(f"the connection that the node lent has ended: {why}")
        return False

    async def _keep(self, parked: _Parked) -> str:
        """Return why a connection has ended."""
        tunnel = parked.tunnel
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tunnel.keep_alive, PING_INTERVAL, PING_TIMEOUT)
            try:
                with parked.waiting:
                    # It is read for pongs alone: a node sends nothing before it was asked.
                    await tunnel.wait_for_data()
                    return "the node has closed it, or has sent something before it was asked"
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                return str(error) or "it was closed"
            finally:
                parked.is_read.set()
                nursery.cancel_scope.cancel()
        await tunnel.wait_closed()
        return "its client has left"

    def _add(self, name: str, parked: _Parked, pin: str, token: str) -> _Lender:
        """Park a connection. Raises as `lend` if others have come since it was asked for."""
        self._check(parked.access, pin, token)
        lender = self._lenders.get(name)
        if lender is None or (lender.pin, lender.token) != (pin, token):
            before = lender
            lender = _Lender(name, pin, token, _id(parked.access))
            if before is not None:
                # The node was started again, or another one says that it is this one.
                lender.lent = before.lent
                before.end_parked()
            self._lenders[name] = lender
            self._know(parked.access)
            self._introduce(lender)
        lender.parked.append(parked)
        self._changed.notify()
        return lender

    def _introduce(self, lender: _Lender) -> None:
        """Use the certificate and the token that a node has told."""
        section = self._section(lender.name, lender.pin)
        try:
            section.token_file.parent.mkdir(mode=0o700, exist_ok=True)
            replace_file(section.token_file, f"{lender.token}\n{lender.pin}\n{lender.added_by}\n")
        except (OSError, ConfigError) as error:
            log.error("the token of the node %s can't be stored, so it can't be used: %s", lender.name, error)
        log.info("the node %s lends connections", lender.name)
        nodes = self._open_nodes()
        nodes.add(lender.name, section)
        # Its agents are known before the first client asks for one.
        nodes.looks.look_at(lender.name)

    @staticmethod
    def _discard(lender: _Lender, parked: _Parked) -> None:
        if parked in lender.parked:
            lender.parked.remove(parked)
        lender.lent.discard(parked)

    async def take(self, name: str) -> Tunnel:
        """Take a connection of a node. Raises `Unreachable` if it has none for `PATIENCE` seconds."""
        with trio.move_on_after(PATIENCE):
            while True:
                if name not in self._known:
                    raise UnknownAgent(f"the node {name} was removed")
                lender = self._lenders.get(name)
                if lender is not None and lender.parked:
                    # The last one: the first may be of a network that the node has left.
                    parked = lender.parked.pop()
                    lender.lent.add(parked)
                    parked.waiting.cancel()
                    try:
                        await parked.is_read.wait()
                    except trio.Cancelled:
                        parked.scope.cancel()
                        raise
                    return parked.tunnel
                await self._changed.wait()
        raise Unreachable(f"the node {name} lends no connection now")

    def parked(self) -> dict[str, int]:
        """Return how many connections each node has parked."""
        return {name: len(lender.parked) for name, lender in self._lenders.items()}
