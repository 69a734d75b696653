"""Reads the client's list of gateways, `hosts.toml`, for `acp-gateway connect NAME`."""

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Annotated, ClassVar, Literal

from acp_gateway.config.addresses import Address
from acp_gateway.config.directories import config_home, expand_user
from acp_gateway.config.editing.toml_file import TomlFile
from acp_gateway.config.reached import ReachedSection, read_targets
from acp_gateway.config.schema import (
    NAME,
    Entry,
    FilePath,
    Name,
    Text,
    Texts,
    by_importance,
    check_name,
    choice,
    options_of,
    read_section,
    unknown_keys,
)
from acp_gateway.errors import ConfigError


def _token_id(entry: Entry) -> str:
    if not (isinstance(entry.value, str) and re.fullmatch("[0-9a-f]{8}", entry.value)):
        raise entry.error("expected the id of a token, 8 hexadecimal digits, as `pair` writes it")
    return entry.value


def _via(entry: Entry) -> str:
    parts = entry.value.split("/") if isinstance(entry.value, str) else []
    if not (1 <= len(parts) <= 2 and all(map(NAME.fullmatch, parts))):
        raise entry.expected('the name of another host in this file, "door", or "door/NODE"')
    return "/".join(parts)


def _token(entry: Entry) -> Literal["none"]:
    if entry.value != "none":
        raise entry.error(
            "tokens don't go into hosts.toml: save it in a file of mode 600 and name that with token_file; "
            'token = "none" is for a server that wants none'
        )
    return "none"


def _maps(entry: Entry) -> tuple[tuple[str, str], ...]:
    if not isinstance(entry.value, dict):
        raise entry.expected('a table, such as { "/Users/ann/proj" = "/srv/proj" }')
    pairs = []
    for local, remote in entry.table().items():
        here = str(expand_user(local)) if local.startswith("~") else local
        if not _is_absolute(here):
            raise remote.error("expected an absolute path of this machine on the left")
        if not (isinstance(remote.value, str) and remote.value.startswith("/")):
            raise remote.error("expected an absolute path of the gateway's machine on the right, such as /srv/proj")
        pairs.append((here, remote.value))
    return tuple(pairs)


def _is_absolute(path: str) -> bool:
    # A laptop may be of either kind.
    return PurePosixPath(path).is_absolute() or PureWindowsPath(path).is_absolute()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSection(ReachedSection):
    """`[hosts.NAME]`: the options of one gateway, as in the file."""

    EXAMPLE: ClassVar = 'url = "box.example:7443"'
    MISTAKEN: ClassVar[Mapping[str, str]] = dict.fromkeys(("host", "port", "address"), f": it is part of {EXAMPLE}") | {
        "tell_outages": ": it is an option of the command line, connect --tell-outages"
    }

    url: Annotated[tuple[Address, ...], read_targets]
    """`host[:port]`, which means `wss://host:7443/acp`, or a URL with `wss`, `ws`, `tcp+tls`, `tcp`, `unix` or `ssh`.
    `https` and `http` are `wss` and `ws`, and Streamable HTTP with servers that are not gateways. An array has up to
    eight addresses of one gateway, best first, such as that of its network, that of a VPN, and `ssh`."""

    agent: Name | None = None
    """The agent to use, else the gateway's default."""

    token: Annotated[Literal["none"], _token] | None = None
    """Only `"none"`, which sends no token, not even one from the environment. For a server of another kind that needs
    none. Tokens themselves don't belong in this file."""

    cert: FilePath | None = None
    """A client certificate, in PEM, of an authority in the gateway's `client_ca`: with it no token is needed. For `wss`
    and `tcp+tls`, together with `key`."""

    key: FilePath | None = None
    """The private key of `cert` in PEM, without a passphrase, in a file that only its owner may open."""

    maps: Annotated[tuple[tuple[str, str], ...], _maps] = ()
    """Folders of this machine and their paths on the gateway's, `{ "/Users/ann/proj" = "/srv/proj" }`. Absolute paths;
    `~` works on the left."""

    command: Text | None = None
    """The path of `acp-gateway` on the gateway's machine, for an `ssh` URL and for `acp-gateway pair`. Without it a few
    usual places are searched."""

    ssh_options: Texts = ()
    """Further options of ssh, each as `Name=value`, such as `IdentityFile=~/.ssh/box`."""

    via: Annotated[str, _via] | None = None
    """Another host in this file, a door through whose tunnel this one is reached, as `connect --via`: `"door"`, or
    `"door/NODE"` where the node has another name there. The door can't read what passes."""

    forward: Annotated[Literal["ask", "always"], choice("ask", "always")] | None = None
    """Lets `connect` forward the ports that the agent's text offers as `localhost:6006` and on which the session's
    programs listen: `"ask"` after a question in the editor, `"always"` at once. Every program of this machine reaches
    them then. Off by default."""

    token_id: Annotated[str, _token_id] | None = None
    """The id of the token in `token_file`, set by `acp-gateway pair`, which revokes that token when it pairs again."""


@dataclass(frozen=True, slots=True)
class Host:
    """One gateway that the user has a name for."""

    name: str
    address: Address
    """The best address."""
    agent: str | None
    token_file: Path | None
    pin: str | None
    ca: Path | None
    maps: tuple[tuple[str, str], ...]
    insecure_plaintext: bool = False
    cert: Path | None = None
    key: Path | None = None
    command: str | None = None
    ssh_options: tuple[str, ...] = ()
    token_id: str | None = None
    wants_token: bool = True
    """False if no token is sent, even if there is one."""
    others: tuple[Address, ...] = ()
    """Its further addresses, best first."""
    forward: Literal["ask", "always"] | None = None
    """The way in which ports that agents offer are forwarded; None if they are not."""
    via: str | None = None
    """The door to go through, and the name there, if it is another one."""

    @property
    def login(self) -> str | None:
        """The name by which ssh logs in there; None if it is unknown."""
        for address in (self.address, *self.others):
            if address.scheme == "ssh":
                return f"{address.user}@{address.host}" if address.user else address.host
        # Pairing has used ssh, and names an entry by ssh's name for the machine.
        return f"[USER@]{self.name}" if self.token_id is not None else None


def hosts_path() -> Path:
    """Return the path of the user's `hosts.toml`. Raises `ConfigError` without any home directory."""
    return config_home() / "hosts.toml"


def load_hosts(path: Path) -> dict[str, Host]:
    """Read the hosts in a file, by name; none if it doesn't exist. Raises `ConfigError` for the first problem."""
    if not os.path.lexists(path):
        return {}
    _check_unchanged_by_others(path.parent)
    _check_unchanged_by_others(path)
    file = TomlFile.read(path)
    root = Entry(file, (), file.data)
    elsewhere = dict.fromkeys(options_of(HostSection), ": it belongs below a header [hosts.NAME]")
    elsewhere |= {
        name: f": a host has the header [hosts.{name}]"
        for name, value in file.data.items()
        if isinstance(value, dict) and "url" in value
    }
    problems = list(unknown_keys(root, ["hosts"], mistaken=elsewhere))
    hosts = {}
    for name, entry in root.child("hosts", {}).table().items():
        try:
            check_name(entry, name)
        except ConfigError as error:
            problems.append(error)
        section = read_section(HostSection, entry, problems)
        if section is not None:
            hosts[name] = Host(
                name,
                section.url[0],
                section.agent,
                section.token_file,
                section.pin,
                section.ca,
                section.maps,
                section.insecure_plaintext,
                cert=section.cert,
                key=section.key,
                command=section.command,
                ssh_options=section.ssh_options,
                token_id=section.token_id,
                wants_token=section.token is None,
                others=section.url[1:],
                via=section.via,
                forward=section.forward,
            )
            if section.token is not None and section.token_file is not None:
                problems.append(entry.table()["token"].error('token = "none" and a token_file exclude each other'))
            if (section.cert is None) != (section.key is None):
                given = entry.table()["key" if section.cert is None else "cert"]
                problems.append(given.error("a client certificate is two files: cert and key"))
    if problems:
        raise by_importance(problems)[0]
    return hosts


def _check_unchanged_by_others(path: Path) -> None:
    """Raise `ConfigError` for a file or folder that another user may have written, as ssh does for its configuration.

    Its author chooses where the token is sent. Links are followed; systems without POSIX users pass.
    """
    if not hasattr(os, "geteuid"):
        return
    try:
        status = path.stat()
    except OSError:
        return  # Reading it says why.
    mode = stat.S_IMODE(status.st_mode)
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(f"other users may change it (mode {mode:04o}): chmod go-w {path}", file=str(path))
    if status.st_uid not in (0, os.geteuid()):
        message = f"belongs to another user (id {status.st_uid}), who may change it: make a copy of your own"
        raise ConfigError(message, file=str(path))
