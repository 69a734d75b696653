"""The commands for reaching a gateway over ssh: `pair`, and `pair-here` and `relay` on the gateway's machine."""

import json
import os
import platform
import re
import shutil
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from acp_gateway.cli.common import config_option, was_given
from acp_gateway.cli.tokens import check_names, record_token
from acp_gateway.errors import ConfigError, GatewayError, Unreachable, UsageError

if TYPE_CHECKING:
    from acp_gateway.client.pairing import Candidate, Offer
    from acp_gateway.client.ssh import SshTarget
    from acp_gateway.config.addresses import Address
    from acp_gateway.config.hosts import Host
    from acp_gateway.config.load import Config
    from acp_gateway.security.token_store import Token, TokenStore

MAX_MESSAGE_SIZE = 16 * 1024 * 1024
"""Maximum bytes of the response to the test request."""

TRY_TIMEOUT = 5.0
"""Seconds for each candidate address before the next one is tried."""

ANSWER_TIMEOUT = 15.0
"""Seconds for a response over an open ssh connection: enough to notice that it is dead."""

TYPING_TIMEOUT = 120.0
"""Seconds until the offer if ssh may prompt for a password, which the user may have to look up."""

_MAX_LINE_LENGTH = 256
"""Maximum characters of a command of the paired machine."""

_WRITTEN = ("url", "token_file", "token_id", "pin", "command", "ssh_options", "ca", "cert", "key")
"""The options of an entry that pairing sets or removes."""

_nonce_option = click.option("--nonce", default="", help="Part of the begin and end lines of the output.")


@click.command(short_help="Pair this machine with a gateway over ssh.")
@click.argument("machine", metavar="[USER@]HOST")
@click.option("--name", help="The name in hosts.toml. Default: HOST.")
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

    You need to be able to log in to HOST with ssh as the gateway's own user. Pairing again revokes the previous token,
    once the new one has been used to connect. A pairing that fails changes nothing.
    """
    import trio

    from acp_gateway.client.pairing import label_of
    from acp_gateway.client.ssh import SshTarget
    from acp_gateway.config.host_writer import check_host
    from acp_gateway.config.hosts import hosts_path, load_hosts

    address = _parse_machine(machine)
    name = _check_name(name or address.host)
    label = label or _own_name()
    label_of(label)
    path = hosts_path()
    before = load_hosts(path).get(name)
    target = SshTarget(
        address,
        command or (before.command if before else None),
        ssh_options or (before.ssh_options if before else ()),
        asks=sys.stdin.isatty() and sys.stderr.isatty(),
    )
    if target.asks and not was_given("connect_timeout"):
        connect_timeout = TYPING_TIMEOUT

    # Fail before a token is created that could not be saved.
    check_host(path, name, dict.fromkeys(_WRITTEN, "x"))

    entry = _Entry(path, name, before)
    candidate, offer, replaced = trio.run(
        partial(_pair, target, entry, label=label, agents=agents, time_limit=connect_timeout)
    )
    if not replaced:
        click.echo(
            f"warning: the previous token {before.token_id if before else ''} is still valid: it was not made by "
            "pairing, or under another label, or could not be revoked; "
            f"`acp-gateway token revoke` on {address.host} ends it",
            err=True,
        )
    click.echo(f'Paired with {address.host} ({candidate.address}), saved as "{name}" in {path}.', err=True)
    click.echo(f"The token's id is {offer.token_id}. Next:", err=True)
    click.echo(f"paired: acp-gateway connect {name} --print-config zed")


@dataclass(frozen=True, slots=True)
class _Entry:
    """The entry of hosts.toml that a pairing writes."""

    path: Path
    name: str
    before: "Host | None"
    """The previous entry; None if there was none."""

    @property
    def token_path(self) -> Path:
        return self.path.with_name(f"{self.name}.token")

    def write(self, candidate: "Candidate", offer: "Offer", target: "SshTarget") -> None:
        """Write the token, then the entry; both or neither. Raises `ConfigError`."""
        from acp_gateway.config.host_writer import replace_file, write_host

        try:
            old = self.token_path.read_text()
        except (OSError, UnicodeDecodeError):
            old = None  # There is no usable token.
        replace_file(self.token_path, offer.token + "\n")
        options: dict[str, str | tuple[str, ...] | None] = {
            "url": str(candidate.address),
            "token_file": self.token_path.name,
            "token_id": offer.token_id,
            "pin": candidate.pin,
            "command": offer.command or target.command,
            "ssh_options": target.options or None,
        }
        if not candidate.address.tls:
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
) -> "tuple[Candidate, Offer, bool]":
    """Pair, or change nothing. Return the working address, the offer, and whether the previous token is revoked."""
    import trio

    from acp_gateway.client import ssh
    from acp_gateway.client.pairing import candidates, open_pairing

    host_name = target.address.host
    with trio.move_on_after(time_limit):
        host_name = await ssh.find_host_name(target)
    _check_same_machine(entry.before, target, host_name)
    async with open_pairing(target, label=label, agents=agents, time_limit=time_limit) as pairing:
        offer = pairing.offer
        try:
            found = candidates(offer, target, host_name)
            if not found:
                raise ConfigError(
                    f"the gateway on {target.address.host} only listens where this machine can't reach it. There, add "
                    "[[listen]] with a wss:// or unix:// url, and pair again"
                )
            candidate = await _try(found, target, offer)
            with trio.fail_after(ANSWER_TIMEOUT):
                await pairing.keep()
            entry.write(candidate, offer, target)
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
        return candidate, offer, replaced


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


async def _try(found: "list[Candidate]", target: "SshTarget", offer: "Offer") -> "Candidate":
    """Return the first candidate at which the gateway answers. Raises the first `Unreachable`, and any other error."""
    from acp_gateway.client import control
    from acp_gateway.client.dialing import Destination

    failure: GatewayError | None = None
    command = offer.command or target.command
    for candidate in found:
        destination = Destination(
            candidate.address,
            None,
            offer.token,
            candidate.pin,
            None,
            MAX_MESSAGE_SIZE,
            control=True,
            command=command,
            ssh_options=target.options,
        )
        try:
            await control.list_sessions(destination, time_limit=TRY_TIMEOUT * (1 if candidate.address.tls else 3))
        except Unreachable as error:
            failure = failure or error
        else:
            return candidate
    assert failure is not None
    raise failure


def _parse_machine(text: str) -> "Address":
    from acp_gateway.config.addresses import parse_target

    address = parse_target(text if text.lower().startswith("ssh://") else f"ssh://{text}")
    if address.path:
        raise UsageError(f"{text} has a path; to pair, all that is needed is [USER@]HOST")
    return address


def _check_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
        raise UsageError("a name in hosts.toml is 1 to 64 letters, digits, dots, dashes and underscores; give --name")
    return name


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


@click.command("pair-here", hidden=True)
@config_option
@click.option("--label", required=True, help="The machine's label.")
@click.option("--agent", "agents", multiple=True, metavar="NAME", help="Allow this agent only. May be repeated.")
@_nonce_option
def pair_here(config: Path | None, label: str, agents: tuple[str, ...], nonce: str) -> None:
    """Make a token for a machine whose `acp-gateway pair` runs this over ssh.

    It reads commands on stdin: `keep`, then `replace ID` to revoke the machine's previous token, if pairing made it for
    the same machine. Without `keep`, the new token is revoked at the end of stdin.
    """
    from acp_gateway.client.pairing import COMMAND_NAME, PENDING_LIFETIME, Offer, find_listeners, is_relayed, label_of
    from acp_gateway.client.ssh import mark
    from acp_gateway.config.load import load_config
    from acp_gateway.security.token_store import TokenStore

    if sys.stdout.isatty():
        raise UsageError("this would show a token; run `acp-gateway pair` on the machine that is to have it")
    settings = load_config(config)
    check_names("agent", agents, settings.agents)
    listeners = find_listeners(settings)

    def say(text: str) -> None:
        # A shell's greeting may lack its final newline.
        click.echo(f"\n{mark(COMMAND_NAME, 'BEGIN', nonce)}\n{text}\n{mark(COMMAND_NAME, 'END', nonce)}")

    store = TokenStore(settings.gateway.state_dir)
    made, secret = store.create(label_of(label), None, agents or None, lifetime=PENDING_LIFETIME)
    record_token(settings, "token_created", made)
    decisions = _Decisions(settings, store, made)
    try:
        say(Offer(listeners, is_relayed(settings), _own_path(), secret, made.id).encode())
        while not decisions.withdrawn and (line := sys.stdin.readline(_MAX_LINE_LENGTH)):
            say(json.dumps({"done": decisions.take(line)}))
    finally:
        decisions.finish()


class _Decisions:
    """The commands of a paired machine about its new token."""

    def __init__(self, settings: "Config", store: "TokenStore", made: "Token") -> None:
        self.withdrawn = False
        self._settings = settings
        self._store = store
        self._made = made
        self._kept = False

    def take(self, line: str) -> bool:
        """Carry out a command; return whether that was possible. An invalid command withdraws the token."""
        from acp_gateway.client.pairing import KEEP, REPLACE

        match line.split():
            case [word] if word == KEEP:
                self._store.keep(self._made.id)
                self._kept = True
                return True
            case [word, token_id] if word == REPLACE and self._kept:
                return self._replace(token_id)
        self.withdrawn = True
        self._kept = False
        self.finish()
        return True

    def finish(self) -> None:
        """Revoke the token unless it was kept. May be called repeatedly."""
        if self._kept:
            return
        self._kept = True
        try:
            self._store.revoke(self._made.id)
        except UsageError:
            return  # It was revoked by hand.
        record_token(self._settings, "token_revoked", self._made)

    def _replace(self, token_id: str) -> bool:
        """Revoke the previous token. Return False if pairing did not make it for the same machine."""
        from acp_gateway.client.pairing import may_replace

        old = next((token for token in self._store.tokens() if token.id == token_id), None)
        if old is None:
            return True
        if not may_replace(old, self._made):
            return False
        self._store.revoke(old.id)
        record_token(self._settings, "token_revoked", old)
        return True


def _own_path() -> str | None:
    """Return the absolute path of this program; None if it was started as a Python module."""
    program = os.path.abspath(shutil.which(sys.argv[0]) or sys.argv[0])
    return None if program.endswith(".py") else program


@click.command(hidden=True)
@config_option
@click.option("--socket", "path", metavar="PATH", help="The socket. Default: the first of the configuration.")
@_nonce_option
def relay(config: Path | None, path: str | None, nonce: str) -> None:
    """Relay stdin and stdout to the gateway's unix socket; `acp-gateway connect ssh://HOST` runs this over ssh."""
    import trio

    from acp_gateway.client import relay as far_end
    from acp_gateway.config.load import load_config
    from acp_gateway.transports.pipes import open_stdio

    if path is None:
        path = far_end.find_socket(load_config(config))
    nonce = nonce or far_end.nonce_of(os.environ.get("SSH_ORIGINAL_COMMAND", ""))
    trio.run(far_end.relay, open_stdio(), path, nonce)
