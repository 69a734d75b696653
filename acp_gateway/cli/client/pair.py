"""The commands `pair` and `join`: fetch a token, a pin and an address of a gateway, and try them."""

import platform
import re
import shlex
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from acp_gateway.cli.client.pair_steps import (
    check_name,
    choose_machine,
    correct_maps,
    install_there,
    next_step,
    parse_local_map,
    show_editors,
    try_agent,
)
from acp_gateway.cli.common import collected, json_option, print_json, via_option, was_given
from acp_gateway.errors import ConfigError, GatewayError, Unreachable, UsageError
from acp_gateway.printable import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from acp_gateway.client.joining import Joined
    from acp_gateway.client.pairing import Candidate, Offer
    from acp_gateway.client.ssh import SshTarget
    from acp_gateway.config.addresses import Address
    from acp_gateway.config.editing.section_writer import Value
    from acp_gateway.config.hosts import Host

MAX_MESSAGE_SIZE = 16 * 1024 * 1024
"""Maximum bytes of the response to the test request."""

TRY_TIMEOUT = 5.0
"""Seconds for each candidate address before the next one is tried."""

ANSWER_TIMEOUT = 15.0
"""Seconds for a response over an open ssh connection: enough to notice that it is dead."""

TYPING_TIMEOUT = 120.0
"""Seconds until the offer if ssh may prompt for a password, which the user may have to look up."""

_WRITTEN = ("url", "token_file", "token_id", "pin", "command", "ssh_options", "ca", "cert", "key", "via")
"""The options of an entry that pairing sets or removes."""


EPILOG = """
\b
Examples:
  acp-gateway pair ann@box
  acp-gateway pair box --map ~/proj=/srv/proj      the same folder here and there
  acp-gateway pair box --install                   install acp-gateway there first, by uv or pipx
  acp-gateway pair                                 choose a host of ~/.ssh/config
"""


@dataclass(frozen=True, slots=True)
class _Login:
    """The options of the login to the machine, and of what is done there first."""

    command: str | None
    ssh_options: tuple[str, ...]
    connect_timeout: float
    install: bool


@click.command(short_help="Pair this machine with a gateway over ssh.", epilog=EPILOG)
@click.argument("machine", metavar="[USER@]HOST", required=False)
@click.option(
    "--map",
    "maps",
    multiple=True,
    metavar="LOCAL=REMOTE",
    help="Map a local folder to a remote one, and save that. May be repeated.",
)
@click.option(
    "--install", is_flag=True, help="Install this version of acp-gateway there first, by uv or pipx, from this one."
)
@click.option("--name", help="The name in hosts.toml. Default: HOST.")
@via_option
@click.option("--label", help="This machine's label in the gateway's list of tokens. Default: its name.")
@click.option("--command", metavar="PATH", help="The path of acp-gateway there. Default: search for it.")
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
    help="Seconds to wait for the machine's response.",
)
@json_option
@collected(_Login, "login")
def pair(
    machine: str | None,
    maps: tuple[str, ...],
    name: str | None,
    via: str | None,
    label: str | None,
    agents: tuple[str, ...],
    login: _Login,
    *,
    as_json: bool,
) -> None:
    """Pair this machine with a gateway over ssh, save the connection in hosts.toml, and try it up to the agent.

    You need to be able to log in to HOST with ssh as the gateway's own user. In a terminal, ssh may ask for the host's
    key, a password or a second factor. Pairing again revokes the previous token, once the new one has been used to
    connect. A pairing that fails changes nothing. A --map with which no session can be opened is not saved; the command
    to run again is printed, and the exit code is not 0.

    With --via, the gateway is used through the tunnel of a door from then on, and ssh only for pairing.
    """
    import trio

    from acp_gateway.client.pairing import label_of
    from acp_gateway.client.ssh import SshTarget, log_in_once
    from acp_gateway.config.editing.section_writer import check_host, write_host
    from acp_gateway.config.hosts import hosts_path, load_hosts

    machine = machine or choose_machine()
    pairs = dict(map(parse_local_map, maps))
    address = _parse_machine(machine)
    name = check_name(name or address.host)
    label = label or _own_name()
    label_of(label)
    path = hosts_path()
    before = load_hosts(path).get(name)
    target = SshTarget(
        address,
        login.command or (before.command if before else None),
        login.ssh_options or (before.ssh_options if before else ()),
        asks=sys.stdin.isatty() and sys.stderr.isatty(),
    )
    types = target.asks and not was_given("connect_timeout")
    via = via or (before.via if before else None)
    entry = _Entry(path, name, before, {**dict(before.maps if before else ()), **pairs} if pairs else None, via)
    if via is not None:
        from acp_gateway.client.destination import find_door

        find_door(via, name)
    # Fail before a token is created that could not be saved.
    options: dict[str, Value | None] = dict.fromkeys(_WRITTEN, "x")
    check_host(path, name, options | ({"maps": entry.maps} if entry.maps else {}))

    with log_in_once(target) as there:
        if login.install:
            install_there(there)
        time_limit = TYPING_TIMEOUT if types else login.connect_timeout
        places, offer, replaced = trio.run(
            partial(_pair, there, entry, label=label, agents=agents, time_limit=time_limit)
        )
    if not replaced:
        click.echo(
            f"warning: the previous token {before.token_id if before else ''} is still valid: it was not made by "
            "pairing, or under another label, or could not be revoked; "
            f"`acp-gateway token revoke` on {address.host} ends it",
            err=True,
        )
    click.echo(f'Paired with {address.host} ({places[0].address}), saved as "{name}" in {path}.', err=True)
    if places[1:]:
        more = ", ".join(str(place.address) for place in places[1:])
        click.echo(f"Its other addresses, for other networks: {more}", err=True)
    click.echo(f"The token's id is {offer.token_id}.", err=True)
    refused = try_agent(name, next(iter(pairs), None))
    if refused is None:
        show_editors(name)
        next_command = next_step(name)
    else:
        write_host(path, name, {"maps": dict(before.maps) or None if before else None})
        click.echo("The map is not saved, because no session can be opened with it.", err=True)
        given = {"--name": [name] if was_given("name") else [], "--label": [label] if was_given("label") else []}
        given |= {"--agent": [*agents], "--map": ["=".join(pair) for pair in correct_maps(pairs, refused).items()]}
        words = (word for option, values in given.items() for value in values for word in (option, value))
        next_command = shlex.join(["acp-gateway", "pair", machine, *words])
    if not as_json:
        click.echo(f"Next: {next_command}")
        sys.exit(refused.exit_code if refused else 0)
    print_json(
        {
            "name": name,
            "hosts": str(path),
            "address": str(places[0].address),
            "addresses": [str(place.address) for place in places],
            "tokenId": offer.token_id,
            "previousTokenId": before.token_id if before else None,
            "previousTokenValid": not replaced,
            "next": next_command,
        }
    )
    sys.exit(refused.exit_code if refused else 0)


@dataclass(frozen=True, slots=True)
class _Entry:
    """The entry of hosts.toml that a pairing writes."""

    path: Path
    name: str
    before: "Host | None"
    """The previous entry; None if there was none."""
    maps: "Mapping[str, str] | None" = None
    """The path maps to write; None to leave them as they are."""
    via: str | None = None
    """The door to go through."""

    @property
    def token_path(self) -> Path:
        return self.path.with_name(f"{self.name}.token")

    def write(self, places: "list[Candidate]", offer: "Offer", target: "SshTarget") -> None:
        """Write the token, then the entry with these addresses; both or neither. Raises `ConfigError`."""
        from acp_gateway.config.editing.section_writer import replace_file, write_host

        try:
            old = self.token_path.read_text()
        except (OSError, UnicodeDecodeError):
            old = None  # There is no usable token.
        replace_file(self.token_path, offer.token + "\n")
        urls = tuple(str(place.address) for place in places)
        options: dict[str, Value | None] = {
            "url": urls if urls[1:] else urls[0],
            "token_file": self.token_path.name,
            "token_id": offer.token_id,
            "pin": places[0].pin,
            "command": offer.command or target.command,
            "ssh_options": target.options or None,
        }
        options["via"] = self.via
        if self.maps is not None:
            options["maps"] = self.maps
        if not places[0].address.tls:
            # Over ssh there is no TLS.
            options |= dict.fromkeys(("ca", "cert", "key"))
        try:
            write_host(self.path, self.name, options)
        except ConfigError:
            if old is None:
                self.token_path.unlink(missing_ok=True)
            else:
                replace_file(self.token_path, old)
            raise


async def _pair(
    target: "SshTarget", entry: _Entry, *, label: str, agents: tuple[str, ...], time_limit: float
) -> "tuple[list[Candidate], Offer, bool]":
    """Pair, or change nothing. Return the addresses, the offer, and whether the previous token is revoked.

    The first address is the one that works.
    """
    import trio

    from acp_gateway.client import ssh
    from acp_gateway.client.pairing import behind_door, candidates, kept, open_pairing

    host_name = target.address.host
    with trio.move_on_after(time_limit):
        host_name = await ssh.find_host_name(target)
    _check_same_machine(entry.before, target, host_name)
    async with open_pairing(target, label=label, agents=agents, time_limit=time_limit) as pairing:
        offer = pairing.offer
        try:
            found = candidates(offer, target, host_name)
            if entry.via is not None:
                found = behind_door(offer, target.address.host)
                if not found:
                    raise ConfigError(
                        f"the gateway on {target.address.host} needs a wss:// listener to be behind a door: add "
                        "[[listen]] there, with cert and key, and pair again; one that lends connections, once it runs"
                    )
            if not found:
                raise ConfigError(
                    f"the gateway on {target.address.host} only listens where this machine can't reach it. There, add "
                    "[[listen]] with a wss:// or unix:// url, and pair again"
                )
            used = await _try(found, target, offer, entry)
            places = [used] if entry.via is not None else kept(found, used)
            if (
                entry.via is None
                and found[-1].address.scheme == "ssh"
                and used != found[-1]
                and await _logs_in(found[-1], target, offer)
            ):
                places.append(found[-1])
            with trio.fail_after(ANSWER_TIMEOUT):
                await pairing.keep()
            entry.write(places, offer, target)
        except BaseException as error:
            # Also on Ctrl-C.
            withdrawn = False
            with trio.move_on_after(ANSWER_TIMEOUT, shield=True):
                try:
                    await pairing.withdraw()
                    withdrawn = True
                except GatewayError:
                    pass  # The first error is reported.
            raise _explain_failure(error, target, offer, withdrawn=withdrawn) from None
        replaces = entry.before.token_id if entry.before else None
        replaced = replaces is None
        if replaces is not None:
            with trio.move_on_after(ANSWER_TIMEOUT):
                try:
                    replaced = await pairing.replace(replaces)
                except GatewayError:
                    pass  # The caller prints a warning.
        return places, offer, replaced


def _explain_failure(error: BaseException, target: "SshTarget", offer: "Offer", *, withdrawn: bool) -> BaseException:
    """Return the error of a failed pairing, with a remark on what it left behind."""
    import trio

    if isinstance(error, trio.TooSlowError):
        error = Unreachable(f"{target}: the connection there has been lost, or hangs")
    if not isinstance(error, GatewayError):
        return error
    left = (
        "nothing was changed"
        if withdrawn
        else (
            f"hosts.toml is as it was; should `acp-gateway token list` on {target.address.host} still show the token "
            f"{offer.token_id}, then `acp-gateway token revoke {offer.token_id}` ends it"
        )
    )
    if isinstance(error, ConfigError):
        return ConfigError(f"{error.message}; {left}", file=error.file, line=error.line, key=error.key)
    if isinstance(error, Unreachable):
        return Unreachable(f"the gateway does not answer: {error}; is `acp-gateway serve` running there? {left}")
    return type(error)(f"{error}; {left}")


async def _try(found: "list[Candidate]", target: "SshTarget", offer: "Offer", entry: _Entry) -> "Candidate":
    """Return the first candidate at which the gateway answers.

    Raises the first `Unreachable`, and any other error, unless another machine may have the address.
    """
    failure: GatewayError | None = None
    for candidate in found:
        try:
            await _ask(candidate, target, offer, entry)
        except GatewayError as error:
            if not isinstance(error, Unreachable) and not candidate.told:
                raise
            failure = failure or error
        else:
            return candidate
    assert failure is not None
    raise failure


async def _logs_in(candidate: "Candidate", target: "SshTarget", offer: "Offer") -> bool:
    """Return whether ssh leads to the gateway without asking, so that it can be used when nothing else works."""
    try:
        await _ask(candidate, target, offer)
    except GatewayError:
        return False
    return True


async def _ask(candidate: "Candidate", target: "SshTarget", offer: "Offer", entry: _Entry | None = None) -> None:
    """Ask the gateway at one address for its sessions. Raises as `control.list_sessions`."""
    from acp_gateway.client import control
    from acp_gateway.client.destination import find_door
    from acp_gateway.client.dialing import Destination

    destination = Destination(
        candidate.address,
        None,
        offer.token,
        candidate.pin,
        None,
        MAX_MESSAGE_SIZE,
        control=True,
        command=offer.command or target.command,
        ssh_options=target.options,
        via=None if entry is None or entry.via is None else find_door(entry.via, entry.name),
    )
    await control.list_sessions(destination, time_limit=TRY_TIMEOUT * (1 if candidate.address.tls else 3))


def _parse_machine(text: str) -> "Address":
    from acp_gateway.config.addresses import DEFAULT_PORT, parse_target

    scheme, _, place = text.rpartition("://")
    address = parse_target(f"ssh://{place if scheme else text}")
    if scheme.lower() not in ("", "ssh") or address.port == DEFAULT_PORT:
        user = f"{address.user}@" if address.user else ""
        raise UsageError(
            f"pairing goes over ssh, not to the gateway's own address: acp-gateway pair {user}{address.host or 'HOST'} "
            "(without ssh: `acp-gateway files first-steps.md`)"
        )
    if address.path:
        raise UsageError(f"{text} has a path; to pair, all that is needed is [USER@]HOST")
    return address


def _own_name() -> str:
    """Return this machine's name, restricted to the characters of a label."""
    return re.sub(r"[^\w .,:@+()-]", "-", platform.node())[:64].strip() or "machine"


def _check_same_machine(before: "Host | None", target: "SshTarget", host_name: str) -> None:
    """Raise `UsageError` if an entry was written by hand and is for another machine."""
    if before is None or before.token_id is not None:
        return
    if before.address.host.lower() not in (target.address.host.lower(), host_name.lower()):
        raise UsageError(
            f"there is a [hosts.{before.name}] in hosts.toml already, for {before.address}; choose another --name, or "
            "remove that one"
        )


MAX_LINE = 4096
"""Maximum characters of an invitation that are read."""

_JOIN_WRITES = ("url", "token_file", "pin")
"""The options of an entry that joining sets."""

JOIN_EPILOG = """
\b
Examples:
  acp-gateway join 'wss://box:7443/acp#acpgwi_…,sha256:…'
  acp-gateway join                    paste the line, which stays out of the shell's history

The line holds a code for one use within 10 minutes, and no token.
"""


@click.command(short_help="Accept an invitation of `share`.", epilog=JOIN_EPILOG)
@click.argument("line", required=False)
@click.option("--name", help="The name in hosts.toml. Default: the gateway's host.")
@click.option(
    "--map", "maps", multiple=True, metavar="LOCAL=REMOTE", help="Map a local folder to a remote one, and save that."
)
@json_option
def join(line: str | None, name: str | None, maps: tuple[str, ...], *, as_json: bool) -> None:
    """Accept an invitation: fetch its token, once, and save the connection in hosts.toml.

    LINE is what `acp-gateway share` has printed. Without it, it is read from stdin.
    """
    import trio

    from acp_gateway.client import joining
    from acp_gateway.config.editing.section_writer import check_host, replace_file, write_host
    from acp_gateway.config.hosts import hosts_path, load_hosts

    invitation = joining.parse_invitation(_read_line() if line is None else line)
    pairs = dict(map(parse_local_map, maps))
    name = check_name(name or invitation.address.host)
    path = hosts_path()
    # The code is good for one attempt: what could fail here is tried before it is used.
    if name in load_hosts(path):
        raise UsageError(
            f'there is a host "{name}" in {path} already. Have you joined before? `acp-gateway ping {name}` tries it; '
            f"for another invitation choose another --name, such as {name}-guest"
        )
    options: dict[str, Value | None] = dict.fromkeys(_JOIN_WRITES, "x")
    check_host(path, name, options)
    token_path = path.with_name(f"{name}.token")
    if token_path.exists():
        raise ConfigError("this file exists already: remove it, or choose another --name", file=str(token_path))
    joined = trio.run(partial(joining.join, invitation))
    replace_file(token_path, joined.token + "\n")
    urls = tuple(map(str, invitation.addresses))
    options = {
        "url": urls if urls[1:] else urls[0],
        "token_file": token_path.name,
        "pin": invitation.pin,
    }
    write_host(path, name, options | ({"maps": pairs} if pairs else {}))
    if as_json:
        about = {"role": joined.role, "session": joined.session, "expires": joined.expires}
        print_json({"name": name, "hosts": str(path), **about, "next": next_step(name)})
        return
    _tell(name, path, joined)


def _read_line() -> str:
    if sys.stdin.isatty():
        click.echo("Paste the invitation:", err=True)
    return sys.stdin.readline(MAX_LINE)


def _tell(name: str, path: "Path", joined: "Joined") -> None:
    may = "may watch" if joined.role == "observer" else "may prompt and approve in"
    what = "its sessions" if joined.session is None else f"the session {printable(joined.session)}"
    until = "" if joined.expires is None else f", until {printable(joined.expires)}"
    click.echo(f'Joined, saved as "{name}" in {path}: you {may} {what}{until}.', err=True)
    click.echo(f"Try it: acp-gateway ping {name}. In the terminal: acp-gateway watch {name}", err=True)
    click.echo(f"Next: {next_step(name)}")
