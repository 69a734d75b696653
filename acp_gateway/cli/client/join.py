"""The command `join`: accept an invitation, and save the connection in hosts.toml."""

import sys
from functools import partial
from typing import TYPE_CHECKING

import click

from acp_gateway.cli.client.pair_steps import check_name, next_step, parse_local_map
from acp_gateway.cli.common import json_option, print_json
from acp_gateway.errors import ConfigError, UsageError
from acp_gateway.printable import printable

if TYPE_CHECKING:
    from pathlib import Path

    from acp_gateway.client.joining import Joined
    from acp_gateway.config.editing.section_writer import Value

MAX_LINE = 4096
"""Maximum characters of an invitation that are read."""

_WRITTEN = ("url", "token_file", "pin")
"""The options of an entry that joining sets."""

EPILOG = """
\b
Examples:
  acp-gateway join 'wss://box:7443/acp#acpgwi_…,sha256:…'
  acp-gateway join                    paste the line, which stays out of the shell's history

The line holds a code for one use within 10 minutes, and no token.
"""


@click.command(short_help="Accept an invitation of `share`.", epilog=EPILOG)
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
    from acp_gateway.config.editing.host_writer import check_host, replace_file, write_host
    from acp_gateway.config.hosts import hosts_path, load_hosts

    invitation = joining.parse_invitation(_read_line() if line is None else line)
    pairs = dict(map(parse_local_map, maps))
    name = check_name(name or invitation.address.host)
    path = hosts_path()
    # The code is good for one attempt: what could fail here is tried before it is used.
    if name in load_hosts(path):
        raise UsageError(f'there is a host "{name}" in {path} already: choose another --name, such as {name}-guest')
    options: dict[str, Value | None] = dict.fromkeys(_WRITTEN, "x")
    check_host(path, name, options)
    token_path = path.with_name(f"{name}.token")
    if token_path.exists():
        raise ConfigError("this file exists already: remove it, or choose another --name", file=str(token_path))
    joined = trio.run(partial(joining.join, invitation))
    replace_file(token_path, joined.token + "\n")
    options = {
        "url": str(invitation.address),
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
