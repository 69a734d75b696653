"""Services: the parts of the gateway that a listener can serve, by one list of folders.

A folder has a light `service.py`, whose `SERVICE` is all that reading a configuration needs, and a `serving.py`, which
the server imports where a listener serves it. To take a service out is to delete its folder and its line here.
"""

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Final

ENDPOINT: Final = "acp"
"""The word of `serves` for the endpoint, which every gateway has."""

FOLDERS: Final = (
    "acp_gateway.dialects.http",
    "acp_gateway.dialects.browser",
    "acp_gateway.dialects.files",
    "acp_gateway.dialects.chat",
    "acp_gateway.dialects.metrics",
    "acp_gateway.dialects.tap",
    "acp_gateway.dialects.editor",
    "acp_gateway.dialects.ports",
    "acp_gateway.dialects.ahp",
)
"""The folders of all services, in the order in which texts name them. Modules are imported by name: those that serve
lie above this package, and a gateway imports none that it does not serve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service, as the configuration and its reference need it."""

    word: str
    """Its word of `serves`; that of the endpoint for a part of that. It is also the name of its section."""
    folder: str
    """The package that it is in."""
    about: str = ""
    """A sentence about it for the reference of `serves`; empty for a part of the endpoint."""
    paths: frozenset[str] = frozenset()
    """Beginnings of its paths, up to a slash."""
    section: type[Any] | None = None
    """Its section of the configuration; None without one."""
    more: str = ""
    """A sentence about the section, with links."""

    at_lines: bool = False
    """True if its clients send lines, at an address of its own of `tcp`, `tcp+tls` or `unix`; else they send HTTP."""
    at_unix: bool = False
    """True if it may be alone at a unix socket, over HTTP."""
    by_default: bool = False
    """True if it is served beside the endpoint by default, where the network can't read a browser's secrets."""
    needs_endpoint: str = ""
    """The reason why it is not served without the endpoint; empty if it is."""
    signs_in: bool = False
    """True if its pages sign in with cookies: those at the origin of the listener are the gateway's own."""

    path: str | None = None
    """The path of an address where nothing else is served, if that is not the endpoint's."""
    query_parameter: str | None = None
    """The parameter of the query in which its clients show their token, where nothing else is served, because they can
    send no header; None if they can. Where it is not alone, it is beside the endpoint, and a header is needed."""
    is_fetched: bool = False
    """True if that is an ordinary address of the web, without a WebSocket."""
    package: str | None = None
    """A package that it needs, and that is not always installed."""

    def serving(self) -> Any:
        """Import what serves it. Its `routes` takes the `HttpRoutes` of a listener, and returns routes by path; that of
        lines has `accept` instead, which takes the gateway and returns what accepts a hello."""
        return import_module(f"{self.folder}.serving")


@cache
def services() -> tuple[Service, ...]:
    """Return all services."""
    return tuple(import_module(f"{folder}.service").SERVICE for folder in FOLDERS)


@cache
def words() -> tuple[str, ...]:
    """Return all words of `serves`."""
    return tuple(dict.fromkeys((ENDPOINT, *(service.word for service in services()))))
