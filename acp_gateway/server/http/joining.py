"""Answers `POST /join`: exchanges the one-use code of an invitation for a token.

The code is in the body, never in the path, which logs of proxies have. A wrong one is refused and counted as a wrong
token is. Pages are refused, because nothing but a program is invited.
"""

import json
import logging
from http import HTTPStatus
from typing import Final

from acp_gateway.errors import Busy, ConfigError
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.security.invitations import InvitationStore
from acp_gateway.server.authorization import Client
from acp_gateway.server.http.sign_in import read_code
from acp_gateway.transports.http.server import Request, Response

log = logging.getLogger(__name__)

JOIN: Final = "/join"


class JoinRoute:
    """The route of one listener for programs that were invited."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._invitations = InvitationStore(gateway.config.gateway.state_dir, gateway.tokens)

    def answer(self, client: Client, request: Request, body: bytes) -> Response:
        """Answer a request. Raises `BadRequest` and `AccessError`."""
        code = read_code(body, "acpgwi_")
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
