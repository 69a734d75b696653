"""The group `service`: run the gateway under the machine's service manager."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import click

from acp_gateway.cli.common import (
    config_option,
    examples,
    json_option,
    print_json,
    print_line,
    print_text,
    print_warning,
)
from acp_gateway.cli.service_managers import (
    Command,
    Launchd,
    Manager,
    Settings,
    State,
    Systemd,
    check_user,
    is_unchanged,
    service_variables,
)
from acp_gateway.errors import ConfigError, UsageError
from acp_gateway.printable import printable

TIMEOUT: Final = 100.0
"""Seconds for one command of the service manager: systemd itself gives up a start after 90."""

NOT_RUNNING: Final = 3
"""Exit code of `status` for a service that does not run, as of `systemctl status`."""

LINGER: Final = Path("/var/lib/systemd/linger")
"""Folder of systemd with an empty file for each user whose services start with the machine."""

SYSTEM_UNITS: Final = Path("/etc/systemd/system")
"""Folder of the administrator's units."""

SYSTEMD_RUNS: Final = Path("/run/systemd/system")
"""Folder that is there while systemd is the service manager (sd_booted(3))."""

WITHOUT_SYSTEMD: Final = (
    "systemd does not run here: have whatever starts programs here run `acp-gateway serve`, as the command of a "
    "container with a restart policy (`acp-gateway files compose.yaml` is an example) or by another service manager; "
    "SIGTERM stops it, and its log goes to stderr"
)
"""Remedy where `service` can do nothing."""

_SHOWN_STATE: Final = ("loaded", "enabled", "substate")
"""Details that are told by others in the text form of `status`."""


class _Service(click.Group):
    """Group that has no words for what the service manager's own command does, and names that."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in ("start", "stop", "restart") and not ctx.resilient_parsing:
            raise UsageError(_explain_word(args[0]))
        return super().resolve_command(ctx, args)


def _explain_word(word: str) -> str:
    """Return the command that starts, stops or restarts the service. Raises `ConfigError` without a manager."""
    if not has_service_manager():
        raise ConfigError(WITHOUT_SYSTEMD)
    manager = _find_manager(None, system=False)
    if isinstance(manager, Systemd):
        commands: tuple[Command, ...] = (("systemctl", "--user", word, manager.name),)
    else:
        commands = {"start": manager.start, "stop": (manager.stop,), "restart": manager.restart}[word]
    return f"`{' && '.join(_lines(commands))}` {word}s it; `acp-gateway service install` installs and starts it"


@click.group(
    cls=_Service,
    epilog=examples("acp-gateway service install", "acp-gateway service logs -f"),
    short_help="Keep the gateway running: systemd, launchd.",
)
def service() -> None:
    """Run the gateway as a service of this machine: of systemd, or of launchd on macOS.

    Without options it is a service of your own account. With --system an administrator manages one for a user.
    """


def _scope_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name the service."""
    user = click.option("--user", metavar="NAME", help="With --system: the gateway's user. Default: who ran sudo.")
    system = click.option("--system", is_flag=True, help="A service of the system, for one user; as administrator.")
    return system(user(command))


_dry_run_option = click.option("--dry-run", is_flag=True, help="Print what would be written and run, and do nothing.")


def has_service_manager() -> bool:
    """Return whether a service manager runs here that `service` knows; in a container there is none as a rule."""
    return sys.platform == "darwin" or SYSTEMD_RUNS.is_dir()


def _find_manager(user: str | None, *, system: bool) -> Manager:
    """Return the service manager of this machine. Raises `ConfigError` if there is none, `UsageError` for options."""
    if user is not None and not system:
        raise UsageError("--user is for --system: without it, the service is your own account's")
    name = _system_user(user) if system else None
    if sys.platform == "darwin":
        return Launchd(_home(name), os.getuid(), name)
    if shutil.which("systemctl") is None:
        raise ConfigError(f"there is no systemctl, and {WITHOUT_SYSTEMD}")
    return Systemd(SYSTEM_UNITS if system else _home(None) / ".config/systemd/user", name)


def _system_user(user: str | None) -> str:
    name = user or os.environ.get("SUDO_USER")
    if not name or (user is None and name == "root"):
        raise UsageError("name the user that the gateway and its agents run as: --user NAME")
    return check_user(name)


def _home(user: str | None) -> Path:
    """Return the home folder of a user, by default of the caller. Raises `ConfigError` for an unknown one."""
    from acp_gateway.config.directories import expand_user

    return expand_user("~" if user is None else f"~{user}")


@service.command(
    "install",
    epilog=examples(
        "acp-gateway service install --dry-run          what would be written",
        "acp-gateway service install",
        'sudo acp-gateway service install --system --user ann --path "$PATH"',
    ),
    short_help="Install and start the service.",
)
@config_option
@_scope_options
@click.option(
    "--path",
    metavar="FOLDERS",
    help='PATH of the service, in which it finds agents. Default: PATH of this shell. With sudo: --path "$PATH".',
)
@_dry_run_option
@click.option("--force", is_flag=True, help="Replace files there that were changed by hand, or written by hand.")
@json_option
def install_service(
    config: Path | None, user: str | None, path: str | None, *, system: bool, dry_run: bool, force: bool, as_json: bool
) -> None:
    """Install the service with the program's hardened unit, start it now and with the machine, and show what is done.

    The PATH of this shell is written into the service, so that it finds the agents that the shell finds. Run this again
    after an upgrade of the program or a change of PATH.
    """
    from acp_gateway.cli.files import share_root

    manager = _find_manager(user, system=system)
    if not dry_run and not has_service_manager():
        raise ConfigError(WITHOUT_SYSTEMD)
    if not system:
        _check_configuration(config)
    settings = Settings(
        program=_find_program(),
        config=None if config is None else config.absolute(),
        variables=service_variables({"PATH": os.environ.get("PATH", "")} if system else os.environ, path),
    )
    if system and path is None and "SUDO_USER" in os.environ:
        click.echo('PATH is the one of sudo. For that of your shell, add: --path "$PATH"', err=True)
    texts = manager.texts((share_root() / manager.template).read_bytes(), settings)
    files = []
    for file, text in texts.items():
        state = _compare(file, text, force=force)
        # The unit is long, and the same everywhere: `acp-gateway files` prints it.
        shown = text if dry_run or file in manager.own[-1:] else ""
        _show(f"{file}  ({state})", shown)
        files.append({"path": str(file), "state": state, "text": shown or None})
    facts = {"name": manager.name, "dryRun": dry_run, "files": files, "commands": _lines(manager.start)}
    if dry_run:
        _list_commands(manager.start)
        if as_json:
            print_json(facts)
        return
    _require_access(texts)
    _require_manager(manager)
    was_running = _state(manager).running
    for file, text in texts.items():
        _write(file, text)
    if isinstance(manager, Launchd):
        if _state(manager).installed:
            _call(manager.stop)
        manager.log.parent.mkdir(parents=True, exist_ok=True)
    _run(manager.start, manager)
    restart = _lines(manager.restart) if was_running and isinstance(manager, Systemd) else []
    lingers = system or not isinstance(manager, Systemd) or (LINGER / _login_name()).exists()
    if restart:
        print_text(f"It was running and goes on with its former settings until a restart: {' && '.join(restart)}")
    else:
        print_text(f"{manager.name} is started.")
    if not lingers:
        print_text("It ends when you log out, and starts when you log in. To keep it running: loginctl enable-linger")
    if as_json:
        print_json({**facts, "restart": restart, "endsAtLogout": not lingers})


def _check_configuration(config: Path | None) -> None:
    """Print the problems of the configuration, and exit if the gateway would not start with it."""
    from acp_gateway.server.config_check import check_config

    findings = check_config(config)
    for finding in findings:
        print_warning(str(finding.error), finding.severity)
    if any(finding.severity == "error" for finding in findings):
        raise ConfigError("nothing is installed: the gateway would not start with this configuration")


def _find_program() -> tuple[str, ...]:
    """Return the words that start this program, without resolving links: an upgrade changes where they lead."""
    beside = Path(sys.executable).with_name("acp-gateway")
    called = Path(sys.argv[0])
    if called.name == "acp-gateway" and (found := shutil.which(str(called))):
        return (os.path.abspath(found),)
    return (str(beside),) if os.access(beside, os.X_OK) else (sys.executable, "-P", "-m", "acp_gateway")


def _login_name() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _compare(file: Path, text: str, *, force: bool) -> str:
    """Describe what writing a file does. Raises `ConfigError` if it would replace changes of its owner."""
    there = _read(file)
    if there is None:
        return "new"
    if there == text:
        return "unchanged"
    if not (force or is_unchanged(there) or _is_packaged(file, there)):
        raise ConfigError("was changed or written by hand; --force replaces it", file=str(file))
    return "replaced"


def _is_packaged(file: Path, text: str) -> bool:
    """Return True for a unit that was copied with `acp-gateway files`."""
    from acp_gateway.cli.files import share_root

    packaged = share_root() / "systemd" / file.name
    return packaged.is_file() and packaged.read_text(encoding="utf-8") == text


def _read(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=str(file)) from None


def _write(file: Path, text: str) -> None:
    from acp_gateway.config.editing.section_writer import replace_file

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, text)
        # The service manager's own tools read them; there is no secret in them.
        file.chmod(0o644)
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", file=str(file)) from None


def _require_access(files: Iterable[Path]) -> None:
    """Raise `ConfigError`, before anything is changed, if a file can't be written or removed by this user."""
    for file in files:
        folder = next(folder for folder in file.parents if folder.exists())
        if not os.access(folder, os.W_OK):
            raise ConfigError(f"you may not write into {folder}; --system needs an administrator: sudo")


def _show(title: str, text: str) -> None:
    print_line(title)
    for line in text.splitlines():
        inner = line.lstrip()
        print_text("    " + line[: len(line) - len(inner)].expandtabs(2) + printable(inner, size=len(inner)))


def _lines(commands: Iterable[Command]) -> list[str]:
    """Return commands as a shell takes them."""
    return [shlex.join(command) for command in commands]


def _list_commands(commands: Iterable[Command]) -> None:
    for line in _lines(commands):
        print_text(f"$ {line}")


def _call(command: Command) -> "subprocess.CompletedProcess[str]":
    """Run a command of the service manager and return its result. Raises `ConfigError` if it can't run or end."""
    try:
        return subprocess.run(
            command,
            check=False,
            capture_output=True,
            timeout=TIMEOUT,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        raise ConfigError(f"{command[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{shlex.join(command)}: no end after {TIMEOUT:.0f} s") from None


def _reason(done: "subprocess.CompletedProcess[str]") -> str:
    lines = (done.stderr or done.stdout).strip().splitlines()
    return printable(lines[0] if lines else f"exit code {done.returncode}", size=300)


def _require_manager(manager: Manager) -> None:
    """Raise `ConfigError`, before anything is changed, if the service manager can't be reached."""
    if not has_service_manager():
        raise ConfigError(WITHOUT_SYSTEMD)
    done = _call(manager.probe)
    if done.returncode:
        own = not manager.shared and isinstance(manager, Systemd)
        hint = "; log in as this user (not by su or sudo), or use --system" if own else ""
        raise ConfigError(f"the service manager can't be reached: {_reason(done)}{hint}")


def _state(manager: Manager) -> State:
    done = _call(manager.show)
    return manager.read_state(done.stdout, found=done.returncode == 0)


def _run(commands: Iterable[Command], manager: Manager) -> None:
    """Run and show commands. After one that fails, print the end of the service's log, and raise `ConfigError`."""
    for command in commands:
        _list_commands([command])
        done = _call(command)
        if done.returncode:
            logs = manager.logs(10, None, follow=False, as_json=False)
            if logs:
                for line in _call(logs).stdout.splitlines():
                    click.echo(f"    {printable(line, size=500)}", err=True)
            raise ConfigError(f"{shlex.join(command)}: {_reason(done)}")


@service.command(
    "uninstall",
    epilog=examples("acp-gateway service uninstall", "sudo acp-gateway service uninstall --system --user ann"),
    short_help="Stop and remove the service.",
)
@_scope_options
@_dry_run_option
@click.option("--force", is_flag=True, help="Remove files there that were changed by hand too.")
@json_option
def uninstall_service(user: str | None, *, system: bool, dry_run: bool, force: bool, as_json: bool) -> None:
    """Stop the service and remove its files. The configuration, tokens and sessions stay."""
    manager = _find_manager(user, system=system)
    files = [file for file in (*manager.own, *_unshared(manager)) if os.path.lexists(file)]
    if not files:
        raise ConfigError(f"{manager.name} is not installed: there is no {manager.own[0]}")
    for file in files:
        text = _read(file)
        if text is not None and not (force or is_unchanged(text) or _is_packaged(file, text)):
            raise ConfigError("was changed or written by hand; --force removes it", file=str(file))
    facts = {"name": manager.name, "dryRun": dry_run, "files": list(map(str, files))}
    facts["commands"] = _lines([manager.stop, *manager.forget])
    if dry_run:
        _list_commands([manager.stop, *(("rm", str(file)) for file in files), *manager.forget])
        if as_json:
            print_json(facts)
        return
    _require_access(files)
    _require_manager(manager)
    _list_commands([manager.stop])
    stopped = _call(manager.stop)
    if stopped.returncode and _state(manager).running:
        raise ConfigError(f"{shlex.join(manager.stop)}: {_reason(stopped)}")
    for file in files:
        file.unlink(missing_ok=True)
        print_line(f"Removed {file}")
        try:
            if file.parent.name.endswith(".d"):
                file.parent.rmdir()
        except OSError:
            pass  # The owner's own drop-ins stay.
    _run(manager.forget, manager)
    if as_json:
        print_json(facts)


def _unshared(manager: Manager) -> list[Path]:
    """Return the shared files that no other user's service needs."""
    return [
        file
        for file in manager.shared
        if {path.parent for path in manager.own}.issuperset(file.parent.glob("acp-gateway@?*.service.d"))
    ]


@service.command(
    "status",
    epilog=examples("acp-gateway service status", "acp-gateway service status --json | jq .running"),
    short_help="Show the state of the service.",
)
@_scope_options
@json_option
def service_status(user: str | None, *, system: bool, as_json: bool) -> None:
    """Show what the service manager knows of the service. Exit code 0 if it runs, else 3, as of systemctl."""
    manager = _find_manager(user, system=system)
    _require_manager(manager)
    state = _state(manager)
    values = {"name": manager.name, "installed": state.installed, "running": state.running, **state.details}
    if as_json:
        print_json(values)
    else:
        print_line(f"{manager.name}: {_describe(state)}")
        for name, value in state.details.items():
            if name not in _SHOWN_STATE and name != "state":
                print_line(f"{name.replace('_', ' ')}: {value}")
        if not state.installed:
            click.echo("Install it with: acp-gateway service install", err=True)
    if not state.running:
        sys.exit(NOT_RUNNING)


def _describe(state: State) -> str:
    if not state.installed:
        return "not installed"
    details = state.details
    word = details.get("state", "unknown") + (f" ({details['substate']})" if "substate" in details else "")
    return f"{word}, {details['enabled']}" if "enabled" in details else word


@service.command(
    "logs",
    epilog=examples("acp-gateway service logs -f", "acp-gateway service logs --since '1 hour ago' -n 1000"),
    short_help="Print the log of the service.",
)
@_scope_options
@click.option("--lines", "-n", type=click.IntRange(min=0), default=100, show_default=True, help="Number of last lines.")
@click.option("--follow", "-f", is_flag=True, help="Go on with new lines, until Ctrl-C.")
@click.option("--since", metavar="TIME", help='Only lines after this time, as journalctl has it: "1 hour ago", today.')
@click.option("--json", "as_json", is_flag=True, help="Print entries of the journal as JSON, one per line.")
def service_logs(user: str | None, lines: int, since: str | None, *, system: bool, follow: bool, as_json: bool) -> None:
    """Print the end of the service's log: from systemd's journal, or from the log file on macOS."""
    manager = _find_manager(user, system=system)
    if not has_service_manager():
        raise ConfigError(WITHOUT_SYSTEMD)
    command = manager.logs(lines, since, follow=follow, as_json=as_json)
    if command is None:
        raise UsageError("--since and --json need systemd's journal; here the log is a file")
    try:
        sys.exit(subprocess.run(command, check=False).returncode)
    except OSError as error:
        raise ConfigError(f"{command[0]}: {error.strerror}") from None
