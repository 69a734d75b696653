"""Signs browsers in and out: `POST /login` exchanges a one-use code for a cookie, `POST /logout` ends it.

Both need the `Origin` of a page of the gateway and `application/json`, which no form can send. A wrong code is refused
and counted as a wrong token is.
"""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import msgspec

from acp_gateway.config.load import ListenSection
from acp_gateway.errors import Busy, ConfigError
from acp_gateway.gateway.browsers import browser_details, record_ends
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.server.authorization import Client
from acp_gateway.server.cookies import Site, check_page, site_of
from acp_gateway.server.hello import BadRequest, media_types
from acp_gateway.transports.http_server import Request, Response

log = logging.getLogger(__name__)

LOGIN: Final = "/login"
LOGOUT: Final = "/logout"

BODY_SIZE: Final = 1024
"""Maximum bytes of the body of a sign-in. A code has 46; its sender is not known yet."""

SIGNED_OUT: Final = "signed out"
REPLACED: Final = "replaced"
"""Reasons of the audit event `browser_ended`."""


@dataclass(frozen=True, slots=True)
class BodyNeeded:
    """A request that is decided by its body, which is read within the limits for unauthenticated connections."""

    decide: Callable[[bytes], Response]
    """Raises `AccessError` and `BadRequest`."""
    size: int = BODY_SIZE
    """Maximum bytes of the body."""


class _Login(msgspec.Struct, forbid_unknown_fields=True):
    code: str


class SignInRoutes:
    """The routes of one listener for browsers that sign in and out."""

    def __init__(self, section: ListenSection, gateway: Gateway) -> None:
        self._section = section
        self._gateway = gateway
        self._browsers = gateway.browsers

    def log_in(self, client: Client, request: Request) -> Response | BodyNeeded:
        """Answer `POST /login`. Raises `Forbidden` and `BadRequest`."""
        return self._with_body(request, lambda site, body: self._sign_in(client, request, site, body))

    def log_out(self, client: Client, request: Request) -> Response | BodyNeeded:
        """Answer `POST /logout`, in the same way with and without a valid cookie. Raises as `log_in`."""
        return self._with_body(request, lambda site, _: self._sign_out(client, request, site))

    def _with_body(self, request: Request, decide: Callable[[Site, bytes], Response]) -> Response | BodyNeeded:
        site = site_of(request.headers, tls=self._section.address.tls, public=self._section.public)
        check_page(request.headers, self._section.allowed_origins, site)
        if media_types(request.headers, "Content-Type") != ["application/json"]:
            return Response.of_text(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"{request.path} takes application/json only")
        return BodyNeeded(lambda body: decide(site, body))

    def _sign_in(self, client: Client, request: Request, site: Site, body: bytes) -> Response:
        try:
            code = msgspec.json.decode(body, type=_Login).code
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise BadRequest('the body must be {"code": "acpgwp_…"}') from None
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

    def _sign_out(self, client: Client, request: Request, site: Site) -> Response:
        cookie = site.read_cookie(request.headers)
        browser = None if cookie is None else self._browsers.identify(cookie)
        if browser is not None:
            with _writing():
                self._browsers.end(browser.id)
            record_ends(self._gateway.audit, [browser], SIGNED_OUT, connection=client.connection.name)
            self._gateway.connections.enforce()
        return Response(HTTPStatus.NO_CONTENT, headers={"Set-Cookie": site.set_cookie("", 0)})


@contextmanager
def _writing() -> Iterator[None]:
    """Turn a failure to write the file of browsers into a refusal, which names no file."""
    try:
        yield
    except ConfigError as error:
        log.error("browsers can't sign in or out: %s", error)
        raise Busy("the gateway can't store this now; its log says why") from error
