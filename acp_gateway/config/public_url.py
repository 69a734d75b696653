"""The address of a gateway as its users know it, which a reverse proxy may have another one for."""

import re
from dataclasses import dataclass
from typing import Final, Self

from acp_gateway.config.addresses import Address, Scheme, parse_address
from acp_gateway.config.schema import Entry
from acp_gateway.errors import UsageError

_PUBLIC_URL: Final = re.compile(
    r"(https?)://([a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::([0-9]{1,5}))?((?:/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*)/?"
)
"""A path has no character that a proxy, a cookie or a shell could read in another way."""

_DEFAULT_PORTS: Final = {"https": "443", "http": "80"}


@dataclass(frozen=True, slots=True)
class PublicUrl:
    """The address of a gateway as browsers know it."""

    secure: bool
    """True for `https`."""
    name: str
    """Its host, in lower case; an IPv6 address in brackets."""
    port: str
    """Empty for the default port."""
    path: str
    """The path before those of the gateway; empty, or with a slash at its beginning and none at its end."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a URL. Raises `UsageError`."""
        found = _PUBLIC_URL.fullmatch(text)
        if found is None:
            raise UsageError(
                'expected the URL by which browsers reach this listener, in lower case, such as "https://gpu.example" '
                'or "https://gpu.example/gateway"'
            )
        scheme, name, port, path = found.groups("")
        url = cls(scheme == "https", name, "" if port == _DEFAULT_PORTS[scheme] else port, path)
        if not url.secure and not Address("ws", name.strip("[]"), 0, "").loopback:
            raise UsageError("the network could read cookies and code: only https:// leads off this machine")
        return url

    @property
    def host(self) -> str:
        """The `Host` header of its requests."""
        return f"{self.name}:{self.port}" if self.port else self.name

    @property
    def origin(self) -> str:
        """The origin of its pages."""
        return f"{'https' if self.secure else 'http'}://{self.host}"

    @property
    def endpoint(self) -> Address:
        """The address of its endpoint, for clients."""
        scheme: Scheme = "wss" if self.secure else "ws"
        return parse_address(f"{scheme}://{self.host}{self.path}/acp")


def read_public_url(entry: Entry) -> str:
    """Read a URL for browsers. Raises `ConfigError`."""
    try:
        PublicUrl.parse(entry.value if isinstance(entry.value, str) else "")
    except UsageError as error:
        raise entry.error(str(error)) from None
    return str(entry.value)
