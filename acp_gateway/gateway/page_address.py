"""The address of the gateway's page as browsers reach it, and the links to what is on it.

A link has everything behind its `#`, which browsers send to no server: a code that signs in, a session, a question, an
agent. `web/app/route/route.js` reads it.
"""

import platform
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote

from acp_gateway.config.addresses import Address
from acp_gateway.config.options import ListenSection
from acp_gateway.errors import UsageError
from acp_gateway.security.certificates import read_certificate

_DEFAULT_PORTS: Final = {"https": 443, "http": 80}


def find_page(listeners: Iterable[ListenSection], host: str | None = None) -> str | None:
    """Return the URL of the page, with `host` as its name if that is given; None if no listener serves it.

    It is a `public_url`, else that of a TLS listener, else that of a proxy in front of a plain one, else of a listener
    on loopback. Raises `ConfigError` if a certificate whose names are needed can't be read.
    """
    return _find((section for section in listeners if "page" in section.services), host)


def find_windows(listeners: Iterable[ListenSection]) -> str | None:
    """Return the URL for windows of VS Code, up to their token; None without a listener for them.

    It is chosen, and raises, as `find_page`.
    """
    for section in (each for each in listeners if each.query_parameter is not None):
        page = _find([section], None)
        if page is not None:
            return f"ws{page.removeprefix('http')}?{section.query_parameter}="
    return None


def _find(serving: Iterable[ListenSection], host: str | None) -> str | None:
    sections = [section for section in serving if section.address.port or section.public]
    if not sections:
        return None
    section = min(
        sections,
        key=lambda each: (
            each.public is None,
            not each.address.tls,
            each.address.loopback and not each.allowed_hosts,
        ),
    )
    if section.public is not None:
        return page_at(section.public.endpoint, host)
    address = section.address
    if not address.tls and section.allowed_hosts:
        # A proxy ends TLS for these names.
        return _url("https", host or section.allowed_hosts[0], 443)
    name = host or (_name_of(section) if address.tls else address.host)
    return _url("https" if address.tls else "http", name, address.port)


def _name_of(section: ListenSection) -> str:
    """Return the name by which browsers can reach a TLS listener: as a rule one that its certificate has."""
    if section.allowed_hosts:
        return section.allowed_hosts[0]
    if not section.address.wildcard:
        return section.address.host
    names = () if section.cert is None else read_certificate(section.cert).names
    usable = (name.lower() for name in names if not name.startswith("*") and ":" not in name)
    return next((name for name in usable if not is_loopback(name)), platform.node().lower() or "localhost")


def page_at(address: Address, host: str | None = None) -> str:
    """Return the URL of the page of a gateway that is reached at an address. Raises `UsageError` without one."""
    if not address.websocket:
        raise UsageError(
            f"a browser can't reach {address}: use the wss:// address of the gateway, or run `acp-gateway open` there; "
            "public_url in a [[listen]] section there makes it known everywhere"
        )
    # The page is beside the endpoint, also behind a proxy that has a path for the gateway.
    path = address.path.removesuffix("/acp")
    return _url("https" if address.tls else "http", host or address.host, address.port, path)


def _url(scheme: str, host: str, port: int, path: str = "") -> str:
    name = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"{scheme}://{name}{'' if port == _DEFAULT_PORTS[scheme] else f':{port}'}{path}/"


def is_loopback(name: str) -> bool:
    """Return whether a name, which may be an IPv6 address in brackets, is that of each machine for itself."""
    return name.endswith(".localhost") or Address("ws", name.strip("[]"), 0, "").loopback


def make_link(
    page: str, *, code: str = "", session: str | None = None, request: str | None = None, agent: str | None = None
) -> str:
    """Return a link to the page.

    Args:
        page: URL of the page.
        code: a code that signs a browser in.
        session: the session to open.
        request: the agent's question to show, in that session.
        agent: the agent of a new session to be started, without `session`.
    """
    if session is not None:
        # An agent's id may have half of a surrogate pair, which no URL can say.
        place = f"/s/{quote(session, safe='', errors='replace')}"
        place += "" if request is None else f"/r/{quote(request, safe='')}"
    else:
        place = "" if agent is None else f"/new/{quote(agent, safe='')}"
    return f"{page}#{code}{place or ('' if code else '/')}"
