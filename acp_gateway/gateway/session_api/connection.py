"""Holds the state of a connection that its calls need."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from acp_gateway.gateway.hub.attachment import Disconnect
from acp_gateway.gateway.session_api.description import Describer
from acp_gateway.gateway.session_api.requests import Answer, Call
from acp_gateway.gateway.viewing.session_connection import SessionConnection
from acp_gateway.transports.streams import CloseReason

if TYPE_CHECKING:
    from acp_gateway.gateway.extensions import Questions


class ApiConnection(SessionConnection[Call | Answer]):
    """The connection of one client; `SessionApi` serves it."""

    page = ""
    """URL of the gateway's page, as the client knows it."""
    known = False
    """True if the page was connected before."""
    watches = False
    """True once the client wants to know of all sessions in reach."""
    tells_all = False
    """True once it wants to know all of them, also what is not for pages."""
    _holding = 0
    # The nodes that the client was told; None before it was.
    _told_machines: list[dict[str, Any]] | None = None

    @property
    def machines(self) -> list[dict[str, Any]]:
        """The nodes that the client may use."""
        led_to, access = self.gateway.extensions.led_to, self.admitted.access
        return [] if led_to is None or self._is_bound or access.spoken_for else led_to(access)

    @property
    def _is_bound(self) -> bool:
        """True if the connection is bound to a session here by its address: that is all it may use."""
        return self.admitted.bound is not None and (self.admitted.access.session or self.admitted.access.only) is None

    @property
    def questions(self) -> "Questions | None":
        """Asks nodes for the client; None without nodes, and for one that comes through another gateway or is
        bound to a session here by its address."""
        passed = self.admitted.grant.connect_request.passed
        return None if passed or self._is_bound else self.gateway.extensions.questions

    def tell_machines(self) -> list[dict[str, Any]]:
        """Return the nodes that the client may use, as it is told them now; their state is found out."""
        if self.gateway.extensions.looks is not None:
            self.gateway.extensions.looks.look_soon()
        self._told_machines = self.machines
        return self._told_machines

    @property
    def describer(self) -> Describer:
        """Describes sessions for the client."""
        return Describer(self.gateway.views, self.admitted.viewer, self.sessions.names, tells_all=self.tells_all)

    def reply_to(self, call: Call, result: bytes) -> None:
        """Send the result of a call, which is JSON text. Who waits until a large one is read keeps no copy of it."""
        reply = call.result(result)
        if reply is not None:
            self.reply(reply)

    @contextmanager
    def holding_changes(self) -> Iterator[None]:
        """Tell no changes of sessions in reach in this block; they follow what is sent right after it."""
        self._holding += 1
        try:
            yield
        finally:
            self._holding -= 1
            self._news.notify()

    async def retire(self) -> None:
        """End the connection once its calls have."""
        await self._finish()
        self.close(Disconnect(CloseReason.NORMAL, "another connection of this page carries on"))
