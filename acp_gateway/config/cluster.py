"""The options of `[cluster]`. Imported only with the section."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar
from urllib.parse import unquote, urlsplit

from acp_gateway.config.addresses import Address
from acp_gateway.config.reached import ReachedSection, read_node_url, read_pin
from acp_gateway.config.schema import Entry, FilePath, Fixed, Name, Seconds, read_section
from acp_gateway.errors import ConfigError

_REDIS_PORT = 6379
_FORM = "redis://host:port, rediss://host:port or unix:///path, with /NUMBER for another database than 0"
_MOST_DATABASES = 65536


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """The address of Redis or Valkey."""

    host: str
    """Empty for a unix socket."""
    port: int
    path: str
    """The unix socket, or empty."""
    tls: bool
    db: int
    user: str | None

    def __str__(self) -> str:
        if self.path:
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'rediss' if self.tls else 'redis'}://{host}:{self.port}/{self.db}"


def _redis_url(entry: Entry) -> RedisAddress:
    if not isinstance(entry.value, str):
        raise entry.expected("a URL")
    # No error repeats the URL, which may have a password.
    try:
        parts = urlsplit(entry.value)
        host, port = parts.hostname or "", parts.port or _REDIS_PORT
        password, user = parts.password, unquote(parts.username or "") or None
        path = unquote(parts.path)
    except ValueError:
        raise entry.error(f"expected {_FORM}") from None
    if password is not None:
        raise entry.error("a password in the URL is shown in errors and lists: save it in a file of password_file")
    if parts.query or parts.fragment or "\0" in path:
        raise entry.error(f"expected {_FORM}")
    if parts.scheme == "unix" and path.startswith("/") and not host:
        return RedisAddress("", 0, path, tls=False, db=0, user=user)
    number = path.strip("/") or "0"
    is_number = number.isascii() and number.isdigit() and int(number) < _MOST_DATABASES
    if parts.scheme not in ("redis", "rediss") or not host or not is_number:
        raise entry.error(f"expected {_FORM}")
    return RedisAddress(host, port, "", tls=parts.scheme == "rediss", db=int(number), user=user)


def _advertised(entry: Entry) -> Address:
    address = read_node_url(entry)
    if not (address.tls or address.loopback):
        raise entry.error("the network could read tokens and code: use wss://, or a loopback address")
    return address


def _pin(entry: Entry) -> str:
    return "none" if entry.value == "none" else read_pin(entry)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSection(ReachedSection):
    """`[cluster]`: gateways that find each other by a directory in Redis or Valkey."""

    REMOVED: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("mirror", "mirror_limit", "retention"), "sessions stay on their node, and nothing of them is in Redis"
    )

    url: Annotated[RedisAddress, _redis_url]
    """The address of Redis (6 or newer) or Valkey: `redis://host:port/db`, `rediss://` with TLS, or `unix:///path`;
    with a user as in `redis://user@host`, without a password."""

    name: Name
    """The name of this node: the others use its agents as `NAME/AGENT`. Another process with the same name is refused
    while this one renews its record."""

    token_file: FilePath
    """A file with the token of the cluster, in mode 0600, as `acp-gateway token cluster` makes one. All nodes have the
    same one. A node with it may act for every identity, and its key seals the records."""

    advertise: Annotated[Address, _advertised] | None = None
    """The address of this node for the others: `wss://host:port`, or `ws://` on loopback. By default it is that of the
    first listener with `wss://` that serves ACP, with the name of this machine if that listens at all addresses."""

    pin: Annotated[str, _pin] | None = None
    """The public key that the others find at `advertise`: `sha256:` and 64 hexadecimal digits, or `"none"` for a
    certificate of an authority that they trust, as behind a proxy. By default it is that of the listener's certificate.
    """

    password_file: FilePath | None = None
    """A file with the password of Redis on its first line, in mode 0600. The user is that of the URL."""

    ttl: Fixed[Seconds] = 15.0
    """Seconds after which this node counts as away if it has not renewed its record: three attempts."""

    renew: Fixed[Seconds] = 5.0
    """Seconds between two renewals, and between two reads of what other nodes have written."""

    timeout: Fixed[Seconds] = 3.0
    """Seconds for one operation of Redis; then it counts as lost. Short enough for another attempt within `ttl`."""

    isolation_limit: Fixed[Seconds] = 3600.0
    """Seconds for which shared tokens are accepted while this node can't know which were revoked: it reaches neither
    Redis, nor a node that does, nor all other nodes. Then their connections are closed, and others refused (503), until
    it can. An hour to repair Redis; no revoked token works for longer."""


def read_cluster(entry: Entry, problems: list[ConfigError]) -> ClusterSection | None:
    """Read the section; None if it has problems, which are appended to `problems`."""
    section = read_section(ClusterSection, entry, problems)
    if section is None:
        return None
    table = entry.table()
    address = section.url
    found = []
    if "ca" in table and not address.tls:
        found.append(table["ca"].error("is for TLS: use rediss:// in url"))
    local = bool(address.path) or Address("tcp", address.host, address.port, "").loopback
    if not (address.tls or local or section.insecure_plaintext):
        found.append(
            table["url"].error(
                "the network could read addresses, directories and the password: use rediss://, a loopback address, or "
                "insecure_plaintext = true"
            )
        )
    problems.extend(found)
    return None if found else section
