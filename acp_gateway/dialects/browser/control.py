"""Serves the methods of `/ws` over control connections."""

from typing import Final

import trio

from acp_gateway.dialects.browser.bridge import BrowserBridge
from acp_gateway.dialects.browser.requests import ALIASES, METHODS
from acp_gateway.dialects.local_client import AwayClients
from acp_gateway.errors import AccessError
from acp_gateway.gateway.access import Grant
from acp_gateway.gateway.control_channel import Take
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.served_connection import ControlConnection
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import InvalidMessage, Kind
from acp_gateway.protocol.size_limit import SizeLimit
from acp_gateway.transports.maintained import MaintainedStream

_METHODS: Final = METHODS.keys() | ALIASES.keys()


def begin_sessions(
    gateway: Gateway,
    grant: Grant,
    name: str,
    limit: SizeLimit,
    stream: MaintainedStream,
    connection: ControlConnection,
    nursery: trio.Nursery,
) -> Take:
    """Return what serves these methods on a control connection; nothing is kept for them before the first call.

    Args:
        gateway: the gateway.
        grant: that of the connection.
        name: its name in the log and the audit.
        limit: of its messages.
        stream: its stream, which others write to as well.
        connection: the connection, which is counted already.
        nursery: lives as long as it is served.
    """
    bridge: BrowserBridge | None = None

    async def serve(begun: BrowserBridge, *, task_status: trio.TaskStatus[None]) -> None:
        async with begun.open(stream, connection):
            task_status.started()
            await trio.sleep_forever()

    async def take(text: bytes) -> tuple[int, float] | None:
        nonlocal bridge
        try:
            message = jsonrpc.parse(text)
        except InvalidMessage:
            return None
        if message.method not in _METHODS and (bridge is None or message.kind is not Kind.RESPONSE):
            return None
        if bridge is None:
            page, wanted, away = gateway.services.page or "", grant.connect_request, AwayClients(gateway)
            try:
                begun = BrowserBridge(gateway, away, grant.access, wanted, name, page, replaces=True)
            except AccessError as error:
                if message.kind is Kind.REQUEST:
                    data = {"reason": error.reason}
                    stream.send_nowait([jsonrpc.error(message.id, error.http_status, str(error), data)])
                return 1, 0.0
            begun.size_limit = limit
            await nursery.start(serve, begun)
            bridge = begun
        taken = await bridge.handle(text)
        await bridge.until_ready()
        return taken

    return take
