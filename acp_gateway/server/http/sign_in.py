"""Signs browsers in and out: `POST /login` exchanges a one-use code for a cookie, `POST /logout` ends it.

Both need the `Origin` of a page of the gateway and `application/json`, which no form can send. A wrong code is refused
and counted as a wrong token is.

`POST /join` exchanges the one-use code of an invitation for a token. The code is in the body, never in the path, which
logs of proxies have. A wrong one is refused and counted as a wrong token is. Pages are refused, because nothing but a
program is invited.

A browser sends a cookie with requests that pages of others have caused, so a cookie is believed only together with the
`Origin` of one of the gateway's own pages, or of a listed one. `Origin` and `Host` are headers that no page can set.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import msgspec
from websockets.datastructures import Headers

from acp_gateway.config.listeners import PublicUrl
from acp_gateway.config.load import ListenSection
from acp_gateway.errors import Busy, ConfigError, Forbidden
from acp_gateway.gateway.browsers import browser_details, record_ends
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.protocol.jsonrpc import InvalidMessage
from acp_gateway.protocol.text.strict_parsing import members_strictly
from acp_gateway.security.invitations import InvitationStore
from acp_gateway.server.authentication import Client
from acp_gateway.server.hello import BadRequest, is_loopback
from acp_gateway.transports.http.server import Request, Response

log = logging.getLogger(__name__)


NAME: Final = "acp-gateway"

SECURE_PREFIX: Final = "__Host-"
"""Beginning of a cookie's name for which browsers accept neither a `Domain` nor a plain connection (RFC 6265bis), so
that neither another host nor the network can put one in its place."""


@dataclass(frozen=True, slots=True)
class Site:
    """The gateway as a browser knows it, by the `Host` header of a request."""

    secure: bool
    """True if browsers reach it over TLS, which may end at a proxy."""
    host: str
    """Its name, with a port other than the default one."""
    path: str = ""
    """The path before those of the gateway, which a proxy removes."""

    @property
    def origin(self) -> str:
        """The origin of its pages."""
        return f"{'https' if self.secure else 'http'}://{self.host}"

    @property
    def cookie_name(self) -> str:
        """The name of its cookie. Without TLS it has the port, since browsers send a cookie to all ports of a host.

        A path is part of it: the prefix demands `Path=/`, and at one host there may be several gateways.
        """
        name = SECURE_PREFIX + NAME if self.secure else f"{NAME}-{_port(self.host) or 80}"
        return name + self.path.replace("/", "+")

    def set_cookie(self, value: str, lifetime: float) -> str:
        """Return the header that sets the cookie for so many seconds."""
        secure = "Secure; " if self.secure else ""
        return f"{self.cookie_name}={value}; {secure}HttpOnly; SameSite=Strict; Path=/; Max-Age={int(lifetime)}"

    def read_cookie(self, headers: Headers) -> str | None:
        """Return the value of the cookie; None without one. Raises `BadRequest` if there are several.

        Of two, one was set by another program on the same host, and nothing tells which.
        """
        found = []
        for value in headers.get_all("Cookie"):
            for pair in value.split(";"):
                name, is_set, content = pair.strip(" \t").partition("=")
                if is_set and name == self.cookie_name:
                    found.append(content)
        if len(found) > 1:
            raise BadRequest(f"there is more than one cookie {self.cookie_name}: remove those of this site")
        return found[0] if found else None


def site_of(headers: Headers, *, tls: bool, public: PublicUrl | None = None) -> Site:
    """Return the site of a request that `check_host` has passed.

    It is the public one for a request that names its host, and for one from its pages: a proxy may replace `Host`.
    Without TLS at the listener, a name of loopback is a browser's on this machine. Any other name is that of a proxy
    which ends TLS: browsers are not to send a cookie in plain text.
    """
    host = headers.get("Host", "").lower()
    if public is not None and (host == public.host or headers.get_all("Origin") == [public.origin]):
        return Site(public.secure, public.host, public.path)
    port = _port(host)
    name = host.removesuffix(f":{port}") if port else host
    return Site(tls or not is_loopback(name.removesuffix(".")), host)


def check_page(headers: Headers, allowed: tuple[str, ...], site: Site) -> None:
    """Raise `Forbidden` for a request that is not from a page of this site, or of a listed origin."""
    origins = headers.get_all("Origin")
    if not origins:
        raise Forbidden("a cookie is accepted only from a page, with its Origin; programs send a token")
    if len(origins) > 1 or origins[0] not in (site.origin, *allowed):
        raise Forbidden(f"this Origin is not that of the gateway's page, which is {site.origin} by this Host header")


def _port(host: str) -> str:
    """Return the port of a `Host` header; empty without one."""
    port = host.rpartition(":")[2]
    return port if ":" in host and port.isascii() and port.isdigit() else ""


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
