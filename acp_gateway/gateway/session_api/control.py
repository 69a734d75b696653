"""Serves the session API over a control connection, beside the methods of that."""

from typing import Final

import trio

from acp_gateway.errors import AccessError
from acp_gateway.gateway.access import Grant
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.served_connection import ControlConnection
from acp_gateway.gateway.session_api.requests import ALIASES, METHODS
from acp_gateway.gateway.session_api.session_api import SessionApi
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import Kind, Message
from acp_gateway.protocol.size_limit import SizeLimit
from acp_gateway.transports.maintained import MaintainedStream

_METHODS: Final = METHODS.keys() | ALIASES.keys()


class ControlledSessions:
    """The session API on one control connection; nothing is kept for it before the first call.

    Args:
        gateway: the gateway.
        grant: that of the connection.
        name: its name in the log and the audit.
        limit: of its messages.
        stream: its stream, which others write to as well.
        connection: the connection, which is counted already.
    """

    def __init__(
        self,
        gateway: Gateway,
        grant: Grant,
        name: str,
        limit: SizeLimit,
        stream: MaintainedStream,
        connection: ControlConnection,
    ) -> None:
        self._gateway = gateway
        self._grant = grant
        self._name = name
        self._limit = limit
        self._stream = stream
        self._connection = connection
        self._api: SessionApi | None = None

    def takes(self, message: Message) -> bool:
        """Return True for a call, and for an answer to the agent."""
        return message.method in _METHODS or (self._api is not None and message.kind is Kind.RESPONSE)

    async def handle(self, message: Message, nursery: trio.Nursery) -> tuple[int, float]:
        """Begin to serve a message; return what it counts as, and the seconds that it has taken.

        `nursery` lives as long as the connection is served.
        """
        if self._api is None:
            try:
                self._api = await self._begin(nursery)
            except AccessError as error:
                if message.kind is Kind.REQUEST:
                    data = {"reason": error.reason}
                    self._stream.send_nowait([jsonrpc.error(message.id, error.http_status, str(error), data)])
                return 1, 0.0
        taken = await self._api.handle(message.text)
        await self._api.until_ready()
        return taken

    async def _begin(self, nursery: trio.Nursery) -> SessionApi:
        gateway, grant = self._gateway, self._grant
        page, wanted = gateway.services.page or "", grant.connect_request
        api = SessionApi(gateway, grant.access, wanted, self._name, page, replaces=True)
        api.size_limit = self._limit
        await nursery.start(self._serve, api)
        return api

    async def _serve(self, api: SessionApi, *, task_status: trio.TaskStatus[None]) -> None:
        async with api.open(self._stream, self._connection):
            task_status.started()
            await trio.sleep_forever()
