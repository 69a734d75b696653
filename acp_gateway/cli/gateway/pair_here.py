"""The commands that `acp-gateway pair` and `connect ssh://` run over ssh on the gateway's machine."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from acp_gateway.cli.common import config_option
from acp_gateway.cli.gateway.known_names import check_agents
from acp_gateway.cli.tokens import record_token
from acp_gateway.errors import UsageError

if TYPE_CHECKING:
    from acp_gateway.config.load import Config
    from acp_gateway.security.token_store import Token, TokenStore

_MAX_LINE_LENGTH = 256
"""Maximum characters of a command of the paired machine."""

_nonce_option = click.option("--nonce", default="", help="Part of the begin and end lines of the output.")


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
    from acp_gateway.client.pairing import (
        COMMAND_NAME,
        PENDING_LIFETIME,
        Offer,
        find_lent,
        find_listeners,
        is_relayed,
        label_of,
    )
    from acp_gateway.client.ssh import mark
    from acp_gateway.config.load import load_config
    from acp_gateway.security.token_store import TokenStore
    from acp_gateway.server.sockets import find_own_addresses

    if sys.stdout.isatty():
        raise UsageError("this would show a token; run `acp-gateway pair` on the machine that is to have it")
    settings = load_config(config)
    check_agents(settings, agents)
    listeners = find_listeners(settings) + find_lent(settings)

    def say(text: str) -> None:
        # A shell's greeting may lack its final newline.
        click.echo(f"\n{mark(COMMAND_NAME, 'BEGIN', nonce)}\n{text}\n{mark(COMMAND_NAME, 'END', nonce)}")

    store = TokenStore(settings.gateway.state_dir)
    made, secret = store.create(label_of(label), None, agents or None, lifetime=PENDING_LIFETIME)
    record_token(settings, "token_created", made)
    decisions = _Decisions(settings, store, made)
    try:
        hosts = tuple(find_own_addresses())
        say(Offer(listeners, is_relayed(settings), _own_path(), secret, made.id, hosts).encode())
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

    from acp_gateway.client import ssh as far_end
    from acp_gateway.config.load import load_config
    from acp_gateway.transports.pipes import open_stdio

    if path is None:
        path = far_end.find_socket(load_config(config))
    nonce = nonce or far_end.nonce_of(os.environ.get("SSH_ORIGINAL_COMMAND", ""))
    trio.run(far_end.relay, open_stdio(), path, nonce)
