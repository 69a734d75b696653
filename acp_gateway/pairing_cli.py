"""The commands for reaching a gateway over ssh: `pair`, and what runs on the gateway's machine then."""

import os
import platform
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from acp_gateway.errors import ConfigError, GatewayError, Unreachable, UsageError
from acp_gateway.token_cli import check_names, config_option, note_token

if TYPE_CHECKING:
    from acp_gateway.addresses import Address
    from acp_gateway.hosts import Host
    from acp_gateway.pairing import Offer, Place
    from acp_gateway.ssh import Way

MAX_MESSAGE_SIZE = 16 * 1024 * 1024
"""Bytes of the one answer that is asked for to see that it works."""

TRY_TIMEOUT = 5.0
"""Seconds after which an address does not answer: then the next one is tried."""

_WRITTEN = ("url", "token_file", "token_id", "pin", "command", "ssh_options", "ca", "cert", "key")
"""The options of an entry that pairing sets or removes."""

_nonce_option = click.option("--nonce", default="", help="The number by which the client knows the lines that count.")


@click.command(short_help="Pair this machine with a gateway over ssh.")
@click.argument("machine", metavar="[USER@]HOST")
@click.option("--name", help="What it is to be called in hosts.toml. Default: HOST.")
@click.option("--label", help="What this machine is called in the gateway's list of tokens. Default: its name.")
@click.option("--command", metavar="PATH", help="Where acp-gateway is there. Default: it is looked for.")
@click.option("--agent", "agents", multiple=True, metavar="NAME", help="A token for this agent only. May be repeated.")
@click.option(
    "--ssh-option",
    "ssh_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of ssh, as after its -o. May be repeated.",
)
@click.option(
    "--connect-timeout",
    type=click.FloatRange(min=0, min_open=True, max=3600),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the machine may take.",
)
def pair(
    machine: str,
    name: str | None,
    label: str | None,
    command: str | None,
    agents: tuple[str, ...],
    ssh_options: tuple[str, ...],
    connect_timeout: float,
) -> None:
    """Pair this machine with a gateway over ssh and save the connection in hosts.toml.

    You need to be able to log in to HOST with ssh as the gateway's own user. Pairing again revokes the previous token.
    """
    import trio

    from acp_gateway.hosts import hosts_path, load_hosts
    from acp_gateway.hostwriter import check_host, replace_file
    from acp_gateway.pairing import fetch_offer, label_of, places
    from acp_gateway.ssh import Way, find_host_name

    address = _parse_machine(machine)
    name = _check_name(name or address.host)
    label = label or _own_name()
    label_of(label)
    path = hosts_path()
    before = load_hosts(path).get(name)
    way = Way(
        address,
        command or (before.command if before else None),
        ssh_options or (before.ssh_options if before else ()),
    )

    # There, a token is made and the one of before revoked: too late to find that this one can't be noted.
    check_host(path, name, dict.fromkeys(_WRITTEN, "x"))

    async def ask_machine() -> "tuple[Offer, str]":
        with trio.move_on_after(connect_timeout):
            host_name = await find_host_name(way)
            _check_same_machine(before, way, host_name)
            replaces = before.token_id if before else None
            return await fetch_offer(way, label=label, replaces=replaces, agents=agents), host_name
        raise Unreachable(f"{way}: no answer within {connect_timeout:g} s; --connect-timeout gives it longer")

    offer, host_name = trio.run(ask_machine)
    found = places(offer, way, host_name)
    if not found:
        raise ConfigError(
            f"the gateway on {address.host} only listens where this machine can't reach it. There, add [[listen]] with "
            f"a wss:// or unix:// url, revoke what was made for nothing with `acp-gateway token revoke "
            f"{offer.token_id}`, and pair again"
        )
    try:
        replace_file(path.with_name(f"{name}.token"), offer.token + "\n")
        _write(path, name, found[0], offer, way)
    except ConfigError as error:
        raise ConfigError(
            f"{error.message}; on {address.host}, `acp-gateway token revoke {offer.token_id}` ends the token that was "
            "made for nothing",
            file=error.file,
        ) from None
    if offer.kept:
        click.echo(
            f"warning: the token {before.token_id if before else ''} of before was made otherwise, or under another "
            "label, and lets people in as it did: `acp-gateway token revoke` ends that",
            err=True,
        )
    place = trio.run(_try, found, way, offer)
    if isinstance(place, GatewayError):
        raise type(place)(
            f"[hosts.{name}] is written with its token, but the gateway does not answer: {place}; is it running? Then "
            f"`acp-gateway sessions {name}` works"
        )
    if place != found[0]:
        _write(path, name, place, offer, way)
    click.echo(f"[hosts.{name}] in {path} is {place.address}, token {offer.token_id}.", err=True)
    click.echo(f"paired: acp-gateway connect {name} --print-config zed")


async def _try(found: "list[Place]", way: "Way", offer: "Offer") -> "Place | GatewayError":
    """The first place where the gateway answers, or why there is none. Raises what is no mere lack of an answer."""
    from acp_gateway import control
    from acp_gateway.dialing import Destination

    failure: GatewayError | None = None
    command = offer.command or way.command
    for place in found:
        destination = Destination(
            place.address,
            None,
            offer.token,
            place.pin,
            None,
            MAX_MESSAGE_SIZE,
            control=True,
            command=command,
            ssh_options=way.options,
        )
        try:
            await control.list_sessions(destination, patience=TRY_TIMEOUT * (1 if place.address.tls else 3))
        except Unreachable as error:
            failure = failure or error
        else:
            return place
    assert failure is not None
    return failure


def _write(path: Path, name: str, place: "Place", offer: "Offer", way: "Way") -> None:
    from acp_gateway.hostwriter import write_host

    write_host(
        path,
        name,
        {
            "url": str(place.address),
            "token_file": f"{name}.token",
            "token_id": offer.token_id,
            "pin": place.pin,
            "command": offer.command or way.command,
            "ssh_options": way.options or None,
            # Through ssh there is no TLS that these could be for.
            **({} if place.address.tls else dict.fromkeys(("ca", "cert", "key"))),
        },
    )


def _parse_machine(text: str) -> "Address":
    from acp_gateway.addresses import parse_target

    address = parse_target(text if text.lower().startswith("ssh://") else f"ssh://{text}")
    if address.path:
        raise UsageError(f"{text} has a path; to pair, all that is needed is [USER@]HOST")
    return address


def _check_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
        raise UsageError("a name in hosts.toml is 1 to 64 letters, digits, dots, dashes and underscores; give --name")
    return name


def _own_name() -> str:
    """What this machine is called, as far as a label can say it."""
    return re.sub(r"[^\w .,:@+()-]", "-", platform.node())[:64].strip() or "machine"


def _check_same_machine(before: "Host | None", way: "Way", host_name: str) -> None:
    """Raise `UsageError` where an entry is somebody's own work, and about another machine."""
    if before is None or before.token_id is not None:
        return
    if before.address.host.lower() not in (way.address.host.lower(), host_name.lower()):
        raise UsageError(
            f"there is a [hosts.{before.name}] in hosts.toml already, for {before.address}; choose another --name, or "
            "remove that one"
        )


@click.command("pair-here", hidden=True)
@config_option
@click.option("--label", required=True, help="What the machine is called.")
@click.option("--replaces", metavar="ID", help="The token that it had before.")
@click.option("--agent", "agents", multiple=True, metavar="NAME", help="Allow this agent only. May be repeated.")
@_nonce_option
def pair_here(config: Path | None, label: str, replaces: str | None, agents: tuple[str, ...], nonce: str) -> None:
    """Make a token for a machine, and hand it over to that machine's `acp-gateway pair`, which runs this over ssh.

    The token that it replaces is revoked, if pairing made it for the same machine.
    """
    from acp_gateway.auth import TokenStore
    from acp_gateway.config import load_config
    from acp_gateway.pairing import WHAT, Offer, find_listeners, is_relayed, label_of, may_replace
    from acp_gateway.ssh import mark

    if sys.stdout.isatty():
        raise UsageError("this would show a token; run `acp-gateway pair` on the machine that is to have it")
    settings = load_config(config)
    check_names("agent", agents, settings.agents)
    listeners = find_listeners(settings)
    store = TokenStore(settings.gateway.state_dir)
    made, secret = store.create(label_of(label), None, agents or None)
    note_token(settings, "token_created", made)
    old = next((token for token in store.tokens() if token.id == replaces), None)
    kept = old is not None and not may_replace(old, made)
    offer = Offer(listeners, is_relayed(settings), _own_path(), secret, made.id, kept)
    try:
        # Lines of their own, also behind a greeting without an end.
        click.echo(f"\n{mark(WHAT, 'BEGIN', nonce)}\n{offer.encode()}\n{mark(WHAT, 'END', nonce)}")
    except OSError:
        # Nobody has got it, so the old one has to go on.
        store.revoke(made.id)
        note_token(settings, "token_revoked", made)
        raise
    if old is not None and not kept:
        store.revoke(old.id)
        note_token(settings, "token_revoked", old)


def _own_path() -> str | None:
    """The absolute path of this program, where it was started as one."""
    program = os.path.abspath(shutil.which(sys.argv[0]) or sys.argv[0])
    return None if program.endswith(".py") else program


@click.command(hidden=True)
@config_option
@click.option("--socket", "path", metavar="PATH", help="The socket. Default: the first of the configuration.")
@_nonce_option
def relay(config: Path | None, path: str | None, nonce: str) -> None:
    """Connect stdin and stdout with the gateway's unix socket; `acp-gateway connect ssh://HOST` runs this over ssh."""
    import trio

    from acp_gateway import relay as far_end
    from acp_gateway.config import load_config
    from acp_gateway.transports.stdio import open_stdio

    if path is None:
        path = far_end.find_socket(load_config(config))
    nonce = nonce or far_end.nonce_of(os.environ.get("SSH_ORIGINAL_COMMAND", ""))
    trio.run(far_end.relay, open_stdio(), path, nonce)
