"""Sends a file, a range of one, or a folder as an archive: what is in memory does not grow with its size."""

import logging
from collections.abc import Iterator
from http import HTTPStatus
from typing import Final

import trio

from acp_gateway.dialects.files.requests import (
    OCTETS,
    PDF,
    Asked,
    RangeUnknown,
    disposition,
    media_type,
    read_range,
)
from acp_gateway.gateway.access import Access, ConnectRequest, unknown_session
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.served_connection import ControlConnection
from acp_gateway.gateway.sessions.session_files import SessionFiles
from acp_gateway.made.files import PIECE, OpenFile, open_file
from acp_gateway.made.files_rules import STATUSES, FileRefused, Territory
from acp_gateway.made.files_zip import pack
from acp_gateway.transports.http.server import SANDBOX, HttpConnection, Request, Response
from acp_gateway.transports.websocket.stream import REFUSAL_HEADER

log = logging.getLogger(__name__)

WEIGHT: Final = 20
"""Messages that a request counts as in rate limits."""

_OF_PDF: Final = {"Content-Security-Policy": SANDBOX.removeprefix("sandbox; ")}
"""Browsers show no PDF in a sandbox. What shows it is a program of their own, of another origin."""

_HEADERS: Final = {
    "Content-Security-Policy": SANDBOX,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Kept by the browser, and shown only after the gateway has been asked again.
    "Cache-Control": "private, no-cache",
}


class Sending:
    """The answer to one request.

    Args:
        gateway: the gateway.
        access: the client's principal.
        request: the request.
        asked: what it asks for.
        name: the connection's name in logs.

    Raises `AccessError` for a session that does not exist for the client.
    """

    def __init__(self, gateway: Gateway, access: Access, request: Request, asked: Asked, name: str) -> None:
        self._gateway = gateway
        self._access = access
        self._request = request
        self._asked = asked
        self._name = name
        self._files = SessionFiles(gateway)
        grant = gateway.admit(access, ConnectRequest(control=True))
        found = gateway.views.find(gateway.views.viewer(grant.reach, grant.role, access.agents), asked.session)
        if found is None:
            raise unknown_session(asked.session)
        if access.session is not None:
            # A guest's token is for the session that it leads to first.
            gateway.admissions.authorize(access, ConnectRequest(session=found.id))
        self._session = found

    async def run(self, http: HttpConnection) -> bool:
        """Answer the request; return whether another one may follow. It ends with the credential, and when the client
        leaves."""
        connection = ControlConnection(self._access)
        charge = self._gateway.connections.limiter_of(self._access).charge
        with connection.scope, self._gateway.connections.watched(connection):
            await trio.sleep(charge(WEIGHT))
            async with http.while_there():
                try:
                    return await self._answer(http)
                except OSError as error:
                    log.debug("%s: a file was not sent to its end: %s", self._name, error)
        return False

    async def _answer(self, http: HttpConnection) -> bool:
        try:
            territory = await self._files.territory(self._access, self._session)
            if self._asked.form == "zip":
                return await self._send_folder(http, territory)
            file = await self._files.run(open_file, territory, self._asked.path)
        except FileRefused as refused:
            status = STATUSES[refused.why]
            return await http.respond(Response.of_text(status, str(refused), {REFUSAL_HEADER: refused.why}))
        return await self._send_file(http, file)

    async def _send_file(self, http: HttpConnection, file: OpenFile) -> bool:
        name, sent = file.place.name, self._request.headers
        kind, tag = media_type(name), f'"{file.tag}"'
        saved = self._asked.form == "download" or kind == OCTETS
        headers = {
            **_HEADERS,
            **(_OF_PDF if kind == PDF else {}),
            "Content-Type": kind,
            "Content-Disposition": disposition(name, saved=saved),
            "Accept-Ranges": "bytes",
            "ETag": tag,
        }
        if sent.get("If-None-Match") == tag:
            return await http.respond(Response(HTTPStatus.NOT_MODIFIED, headers=headers))
        wanted = sent.get("Range") if sent.get("If-Range", tag) == tag else None
        try:
            part = read_range(wanted, file.size)
        except RangeUnknown:
            headers["Content-Range"] = f"bytes */{file.size}"
            return await http.respond(Response(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, b"", headers))
        status = HTTPStatus.OK if part is None else HTTPStatus.PARTIAL_CONTENT
        if part is not None:
            headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{file.size}"
        part = range(file.size) if part is None else part
        await http.start(status, headers, len(part))
        if self._request.method == "HEAD":
            return await http.end()
        offset = part.start
        while offset < part.stop:
            data = await self._files.run(file.read, offset, min(part.stop - offset, PIECE))
            if not data:
                log.info("%s: a file became shorter while it was sent", self._name)
                return False
            await http.send(data)
            offset += len(data)
        return await http.end()

    async def _send_folder(self, http: HttpConnection, territory: Territory) -> bool:
        pieces = pack(territory, self._asked.path)
        # The first one tells whether it is a folder.
        piece = await self._files.run_long(_next, pieces)
        name = self._asked.path.rstrip("/").rpartition("/")[2] or territory.base.rstrip("/").rpartition("/")[2]
        headers = {"Content-Type": "application/zip", "Content-Disposition": disposition(f"{name}.zip", saved=True)}
        await http.start(HTTPStatus.OK, {**_HEADERS, **headers})
        while piece is not None and self._request.method != "HEAD":
            if piece:
                await http.send(piece)
            piece = await self._files.run_long(_next, pieces)
        return await http.end()


def _next(pieces: Iterator[bytes]) -> bytes | None:
    return next(pieces, None)
