"""Answers `POST /join`: exchanges the one-use code of an invitation for a token.

The code is in the body, never in the path, which logs of proxies have. A wrong one is refused and counted as a wrong
token is. Pages are refused, because nothing but a program is invited.
"""

import json
import logging
from http import HTTPStatus
from typing import Final

import msgspec

from acp_gateway.errors import Busy, ConfigError, Forbidden
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.security.invitations import InvitationStore
from acp_gateway.server.authorization import Client
from acp_gateway.server.hello import BadRequest, media_types
from acp_gateway.server.sign_in import BodyNeeded
from acp_gateway.transports.http_server import Request, Response

log = logging.getLogger(__name__)

JOIN: Final = "/join"


class _Join(msgspec.Struct, forbid_unknown_fields=True):
    code: str


class JoinRoute:
    """The route of one listener for programs that were invited."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._invitations = InvitationStore(gateway.config.gateway.state_dir, gateway.tokens)

    def answer(self, client: Client, request: Request) -> Response | BodyNeeded:
        """Answer a request, once its body has come. Raises `Forbidden` for a page."""
        if "Origin" in request.headers:
            raise Forbidden(f"{request.path} is for programs, not for pages")
        if media_types(request.headers, "Content-Type") != ["application/json"]:
            return Response.of_text(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"{request.path} takes application/json only")
        return BodyNeeded(lambda body: self._accept(client, body))

    def _accept(self, client: Client, body: bytes) -> Response:
        try:
            code = msgspec.json.decode(body, type=_Join).code
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise BadRequest('the body must be {"code": "acpgwi_…"}') from None
        connection = client.connection
        connection.token = code
        try:
            token, secret = self._invitations.accept(code)
        except ConfigError as error:
            log.error("invitations can't be accepted: %s", error)
            raise Busy("the gateway can't store this now; its log says why") from error
        self._gateway.audit.record(
            "invitation_accepted",
            id=token.id,
            label=token.label,
            identity=token.identity,
            session=token.session,
            address=connection.address,
            listener=connection.listener,
            connection=connection.name,
        )
        answer = {"token": secret, "tokenId": token.id, "role": token.role, "session": token.session}
        headers = {"Content-Type": "application/json", "Cache-Control": "no-store"}
        return Response(HTTPStatus.OK, json.dumps(answer | {"expires": token.expires}).encode(), headers)
