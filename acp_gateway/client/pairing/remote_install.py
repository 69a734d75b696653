"""Installs this program on the gateway's machine over ssh, by uv or pipx, from a wheel that goes through ssh."""

from dataclasses import dataclass
from typing import Final

from acp_gateway.client.ssh import SshTarget, run_script
from acp_gateway.errors import ConfigError, GatewayError, ProtocolError

NO_INSTALLER: Final = "no installer"
PRESENT: Final = "present"
INSTALLED: Final = "installed"

# No single quote, backslash, exclamation mark or newline: login shells parse those differently. $1 is the wheel's
# name, $2 the version. What installers print goes to stderr, which a terminal is shown.
_INSTALL: Final = (
    'PATH="$HOME/.local/bin:$PATH:/usr/local/bin:/opt/homebrew/bin"; '
    "dir=$(mktemp -d) || exit 1; "
    'tidy() { rm -rf "$dir"; }; trap tidy EXIT; '
    'cat > "$dir/$1" || exit 1; '
    "have=$(acp-gateway --version 2>/dev/null); "
    'case "$have" in *" $2") echo present; result=;; *) result=none; '
    "if command -v uv >/dev/null; then "
    'uv tool install --force "$dir/$1" >&2 || exit 1; result=uv; '
    "elif command -v pipx >/dev/null; then "
    'pipx install --force "$dir/$1" >&2 || exit 1; result=pipx; fi; '
    # Before the answer, at which the reader may end this shell.
    'tidy; case $result in none) echo "no installer";; *) echo "installed $result";; esac;; esac'
)


@dataclass(frozen=True, slots=True)
class Installed:
    """The result of an installation."""

    by: str | None
    """The installer; None if this version was there already."""


async def install(target: SshTarget, wheel_name: str, wheel: bytes, version: str) -> Installed:
    """Install a wheel on the remote machine for the user that ssh logs in as, unless this version is there.

    Raises `ConfigError` if there is neither uv nor pipx, or the installer fails, and what `ssh.run_script` does.
    Cancelling ends ssh; the installer may go on.
    """
    try:
        said = await run_script(target, _INSTALL, [wheel_name, version], wheel)
    except ProtocolError as error:
        raise ConfigError(f"{error}; the installation there failed, and nothing was paired") from None
    what, _, by = said.partition(" ")
    if said == NO_INSTALLER:
        raise ConfigError(
            f"{target}: there is neither uv nor pipx: install one of them there (apt install pipx, or "
            "https://docs.astral.sh/uv), and repeat this"
        )
    if what == PRESENT:
        return Installed(None)
    if what != INSTALLED:
        raise _not_understood(target, said)
    return Installed(by)


def _not_understood(target: SshTarget, said: str) -> GatewayError:
    return ProtocolError(f"{target}: the installation's end is not understood: {said!r:.200}")
