"""Signs browsers in and out: `POST /login` exchanges a one-use code for a cookie, `POST /logout` ends it.

Both need the `Origin` of a page of the gateway and `application/json`, which no form can send. A wrong code is refused
and counted as a wrong token is.

`POST /join` exchanges the one-use code of an invitation for a token. The code is in the body, never in the path, which
logs of proxies have. A wrong one is refused and counted as a wrong token is. Pages are refused, because nothing but a
program is invited.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final

import msgspec

from acp_gateway.config.load import ListenSection
from acp_gateway.errors import Busy, ConfigError
from acp_gateway.gateway.browsers import browser_details, record_ends
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.protocol.jsonrpc import InvalidMessage
from acp_gateway.protocol.text.strict_parsing import members_strictly
from acp_gateway.security.invitations import InvitationStore
from acp_gateway.server.authorization import Client
from acp_gateway.server.hello import BadRequest
from acp_gateway.server.http.cookies import Site, site_of
from acp_gateway.transports.http.server import Request, Response

log = logging.getLogger(__name__)

LOGIN: Final = "/login"
LOGOUT: Final = "/logout"

SIGNED_OUT: Final = "signed out"
REPLACED: Final = "replaced"
"""Reasons of the audit event `browser_ended`."""


class _Code(msgspec.Struct, forbid_unknown_fields=True):
    code: str


def read_code(body: bytes, prefix: str) -> str:
    """Return the code of a body; `prefix` is the beginning of such codes. Raises `BadRequest`.

    A member that is there twice is refused: a filter in front may have read the other one.
    """
    try:
        members_strictly(body)
        return msgspec.json.decode(body, type=_Code).code
    except (InvalidMessage, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadRequest(f'the body must be {{"code": "{prefix}…"}}') from None


class SignInRoutes:
    """The routes of one listener for browsers that sign in and out."""

    def __init__(self, section: ListenSection, gateway: Gateway) -> None:
        self._section = section
        self._gateway = gateway
        self._browsers = gateway.browsers

    def log_in(self, client: Client, request: Request, body: bytes) -> Response:
        """Answer `POST /login`. Raises `BadRequest` and `AccessError`."""
        code, site = read_code(body, "acpgwp_"), self._site_of(request)
        connection = client.connection
        connection.token = code
        cookie = site.read_cookie(request.headers)
        with _writing():
            done = self._browsers.sign_in(code, None if cookie is None else self._browsers.identify(cookie))
        browser = done.browser
        self._gateway.audit.record(
            "browser_signed_in",
            **browser_details(browser),
            role=browser.role,
            session=browser.session,
            address=connection.address,
            listener=connection.listener,
            connection=connection.name,
        )
        record_ends(self._gateway.audit, done.replaced, REPLACED)
        self._gateway.connections.enforce()
        answer = {"identity": browser.identity, "role": browser.role, "session": browser.session}
        headers = {
            "Content-Type": "application/json",
            "Set-Cookie": site.set_cookie(done.cookie, self._browsers.lifetime),
        }
        return Response(HTTPStatus.OK, json.dumps(answer).encode(), headers)

    def log_out(self, client: Client, request: Request, body: bytes) -> Response:
        """Answer `POST /logout`, in the same way with and without a valid cookie. Raises as `log_in`."""
        site = self._site_of(request)
        cookie = site.read_cookie(request.headers)
        browser = None if cookie is None else self._browsers.identify(cookie)
        if browser is not None:
            with _writing():
                self._browsers.end(browser.id)
            record_ends(self._gateway.audit, [browser], SIGNED_OUT, connection=client.connection.name)
            self._gateway.connections.enforce()
        return Response(HTTPStatus.NO_CONTENT, headers={"Set-Cookie": site.set_cookie("", 0)})

    def _site_of(self, request: Request) -> Site:
        return site_of(request.headers, tls=self._section.address.tls, public=self._section.public)


@contextmanager
def _writing() -> Iterator[None]:
    """Turn a failure to write the file of browsers into a refusal, which names no file."""
    try:
        yield
    except ConfigError as error:
        log.error("browsers can't sign in or out: %s", error)
        raise Busy("the gateway can't store this now; its log says why") from error


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
