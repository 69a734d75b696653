"""Resolve the destination of `connect` from the command line, the environment and hosts.toml.

All sources are read again for each attempt to connect, so a new token or a corrected file needs no restart.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from acp_gateway.client.dialing import Destination, Via
from acp_gateway.config.addresses import parse_target
from acp_gateway.config.directories import expand_user
from acp_gateway.errors import ConfigError, GatewayError, Unauthorized, UsageError
from acp_gateway.security.token_format import explain_flaw, read_token_file

if TYPE_CHECKING:
    from acp_gateway.client.reaching.ways import WayMemory
    from acp_gateway.config.hosts import Host


class UnknownHost(ConfigError):
    """A name that is not in hosts.toml, without a token for a machine of that name."""


_HOSTS_SHOWN = 10
"""Maximum host names of hosts.toml in an error."""


def find_host(target: str) -> "Host | None":
    """Return the entry of hosts.toml with the name `target`, or None. Raises `ConfigError` for a likely typo."""
    if "://" in target:
        return None
    # Imported here to keep start-up fast for URLs, which need none of it.
    from acp_gateway.config.editing.toml_file import suggestion
    from acp_gateway.config.hosts import hosts_path, load_hosts

    try:
        path = hosts_path()
    except ConfigError:
        return None  # Without a home directory there is no hosts.toml.
    hosts = load_hosts(path)
    hint = suggestion(target, hosts) if target not in hosts and not set(target) & set(".:[") else ""
    if hint:
        raise ConfigError(f"there is no [hosts.{target}] in {path}{hint} A machine of that name is {target}:7443")
    return hosts.get(target)


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """The options of a connection that a command line gives; hosts.toml has the rest."""

    token_file: Path | None = None
    ca: Path | None = None
    pin: str | None = None
    cert: Path | None = None
    key: Path | None = None
    via: str | None = None
    insecure_plaintext: bool = False


def find_destination(
    target: str,
    options: ConnectionOptions,
    max_message_size: int,
    *,
    agent: str | None = None,
    session: str | None = None,
    observe: bool = False,
    control: bool = False,
) -> Destination:
    """Return the destination for the command line, the environment and hosts.toml as they are now.

    The agent in hosts.toml is ignored with `session`, which has an agent already, and with `control`, which needs none.

    No token is required on loopback, over ssh, with a client certificate, or if the host's section has
    `token = "none"`, which is for other ACP servers.

    With a door in `via`, or in the host's section, it is reached by its best address through that host of hosts.toml.

    Raises `UsageError`, `ConfigError`, or `Unauthorized` for a missing token, each with the remedy.
    """
    host = find_host(target)
    addresses = (host.address, *host.others) if host else (parse_target(target),)
    pin, ca, cert, key = options.pin, options.ca, options.cert, options.key
    if pin is None and ca is None and host is not None:
        pin, ca = host.pin, host.ca
    check_client_certificate(cert, key)
    if cert is None and host is not None:
        cert, key = host.cert, host.key
    if not any(address.tls for address in addresses) and (pin or ca or cert):
        raise UsageError(
            f"a pin, an authority or a client certificate is for TLS, and {addresses[0]} has none: use wss:// or "
            "tcp+tls://"
        )
    via = options.via or (host.via if host else None)
    if via is not None:
        addresses = addresses[:1]
    if via is not None and (not addresses[0].tls or addresses[0].scheme == "ssh"):
        raise UsageError(
            f"a door must not read what passes, so {addresses[0]} can't be behind one: use wss:// or tcp+tls://"
        )
    door = None if via is None else find_door(via, target if host else addresses[0].host)
    insecure = options.insecure_plaintext or (host is not None and host.insecure_plaintext)
    for address in addresses:
        if not (address.tls or address.loopback or address.scheme == "ssh" or insecure):
            raise UsageError(
                f"the token would be sent to {address} unencrypted: use wss:// or tcp+tls://, or, on a private "
                "network, --insecure-plaintext (insecure_plaintext = true in hosts.toml)"
            )
    if pin is not None:
        # Imported here to keep start-up fast without TLS.
        from acp_gateway.security.tls import parse_pin

        pin = parse_pin(pin)
    token = _find_token(options.token_file, host)
    wants_token = any(
        not (address.loopback or address.scheme == "ssh" or (cert is not None and address.tls)) for address in addresses
    )
    if token is None and wants_token and (host is None or host.wants_token):
        raise _missing_token(target, host)
    return Destination(
        address=addresses[0],
        agent=agent or (host.agent if host and session is None and not control else None),
        token=token,
        pin=pin,
        ca=ca,
        max_message_size=max_message_size,
        session=None if session is None else check_session_id(session),
        observe=observe,
        control=control,
        cert=cert,
        key=key,
        command=host.command if host else None,
        ssh_options=host.ssh_options if host else (),
        token_hint=_explain_refusal(token, host),
        others=addresses[1:],
        memory=_memory() if addresses[1:] else None,
        via=door,
    )


def find_door(via: str, node: str) -> Via:
    """Return the door of a gateway: a host in hosts.toml, which may be followed by a slash and the name there.

    Only the file has its token: one of the command line or the environment is the gateway's, which no door may get.
    Raises `UsageError` and `ConfigError`.
    """
    # Imported only where there is a door.
    from acp_gateway.client.reaching.tunnelling import open_tunnel

    name, _, node_there = via.partition("/")
    host = find_host(name)
    if host is None:
        raise UsageError(
            f'the door "{name}" is not in hosts.toml: a door is a host there, with its url, pin and token_file'
        )
    addresses = tuple(each for each in (host.address, *host.others) if each.websocket)
    if host.via is not None or not addresses:
        raise UsageError(f"[hosts.{name}] can't be a door: that has an address wss://, and no door before it")
    if any(not (each.tls or each.loopback or host.insecure_plaintext) for each in addresses):
        raise UsageError(f"[hosts.{name}] has no TLS: the token of the door would be sent unencrypted")
    return Via(
        Destination(
            address=addresses[0],
            agent=None,
            token=None if host.token_file is None else read_token_file(host.token_file),
            pin=host.pin,
            ca=host.ca,
            max_message_size=0,
            cert=host.cert,
            key=host.key,
            token_hint=f"the door's token is the token_file of [hosts.{name}]",
            others=addresses[1:],
            memory=_memory() if addresses[1:] else None,
        ),
        node_there or node,
        open_tunnel,
    )


def _memory() -> "WayMemory":
    # Imported here to keep start-up fast for gateways with one address.
    from acp_gateway.client.reaching.ways import own_way_memory

    return own_way_memory()


def check_client_certificate(cert: Path | None, key: Path | None) -> None:
    """Raise `UsageError` if only one of the two is given."""
    if (cert is None) != (key is None):
        missing = "--cert with the certificate of that key" if cert is None else "--key with its private key"
        raise UsageError(f"a client certificate is two files: give {missing} as well")


def check_session_id(text: str) -> str:
    """Return `text` if it can be a session id; agents choose ids freely. Raises `UsageError`."""
    if not text or re.search(r"[\ud800-\udfff]", text):
        raise UsageError(f"no session has the id {text[:64]!r}; `acp-gateway sessions` lists them")
    return text


def _find_token(token_file: Path | None, host: "Host | None") -> str | None:
    """Return the token of the first source that has one. Raises `ConfigError` or `Unauthorized` if it is malformed."""
    if token_file is None and host is not None and not host.wants_token:
        return None
    named = os.environ.get("ACP_GATEWAY_TOKEN_FILE")
    if token_file is None and named:
        # Editors set variables without a shell, so `~` is not expanded yet.
        token_file = expand_user(named)
    if token_file is None:
        token = os.environ.get("ACP_GATEWAY_TOKEN", "").strip()
        if token:
            flaw = explain_flaw(token)
            if flaw is not None:
                raise Unauthorized(
                    f"the token in ACP_GATEWAY_TOKEN {flaw}; copy it again as token create printed it; for another "
                    "server's token, name its file by token_file in hosts.toml"
                )
            return token
        if host is not None and host.token_file is not None:
            return read_token_file(host.token_file, any_form=True)
    return None if token_file is None else read_token_file(token_file)


def _missing_token(target: str, host: "Host | None") -> GatewayError:
    """Return the error for a required token that is missing."""
    if host is None and "://" not in target:
        from acp_gateway.config.hosts import hosts_path, load_hosts

        try:
            names = list(load_hosts(hosts_path()))
        except ConfigError:
            names = []
        there = f"there: {', '.join(names[:_HOSTS_SHOWN])}" if names else "it is empty"
        return UnknownHost(
            f'"{target}" is not in hosts.toml ({there}) and no token was given. New gateway? `acp-gateway pair '
            f"{parse_target(target).host}`, or --token-file with a file that has its token"
        )
    return Unauthorized(
        "there is no token: make one with `acp-gateway token create` on the gateway's machine, and give it by "
        "--token-file, ACP_GATEWAY_TOKEN_FILE, ACP_GATEWAY_TOKEN, or token_file in hosts.toml; for a server that needs "
        'none, set token = "none" there'
    )


def _explain_refusal(token: str | None, host: "Host | None") -> str:
    """Return the likeliest cause of a gateway refusing this token, or none, and the remedy; "" if unknown."""
    if token is None:
        return "no token was sent: give one by --token-file, ACP_GATEWAY_TOKEN_FILE, or token_file in hosts.toml"
    flaw = explain_flaw(token)
    if flaw is not None:
        return f"the token_file of [hosts.{host.name}] holds another server's, which {flaw}" if host else ""
    if host is not None and host.token_id is not None:
        name = "" if host.name == host.address.host else f" --name {host.name}"
        user = f"{host.address.user}@" if host.address.user else "[USER@]"
        return f"this host was paired: `acp-gateway pair {user}{host.address.host}{name}` gets a new one"
    return ""
