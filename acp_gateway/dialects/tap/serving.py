"""Serves the file tap at a listener of its own."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from acp_gateway.dialects.tap.file_events import SharedFileEvents
from acp_gateway.dialects.tap.file_tap import FileTap
from acp_gateway.gateway.access import Access
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import RawId
from acp_gateway.server.hello import BadHello, Hello
from acp_gateway.transports.maintained import MaintainedStream

Accept: TypeAlias = Callable[[Access, RawId, Hello, str], Callable[[MaintainedStream], Awaitable[None]]]


def accept(gateway: Gateway) -> Accept:
    """Return what takes a principal, a hello with its id, and the name of the connection, and returns what serves that.

    It raises `AccessError` and `BadHello`.
    """
    events = SharedFileEvents()

    def accept_reader(
        access: Access, raw_id: RawId, hello: Hello, name: str
    ) -> Callable[[MaintainedStream], Awaitable[None]]:
        if hello.control or hello.resume is not None:
            text = "this address serves the file tap, which has neither control connections nor links that resume"
            raise BadHello(jsonrpc.INVALID_PARAMS, text, raw_id)
        return FileTap(gateway, access, hello.connect_request, name, events).serve

    return accept_reader
