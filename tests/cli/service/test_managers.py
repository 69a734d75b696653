"""The service managers: their files, commands, and what is read from their output."""

import plistlib
from pathlib import Path

from acp_gateway.cli.service.files import Settings, is_unchanged
from acp_gateway.cli.service.managers import Launchd, Systemd

SETTINGS = Settings(("/usr/bin/acp-gateway",), None, {"PATH": "/usr/bin"})

ROOT = Path(__file__).parents[3]

RUNNING = """LoadState=loaded
UnitFileState=enabled
ActiveState=active
SubState=running
ActiveEnterTimestamp=Mon 2026-11-23 07:00:00 UTC
MainPID=42
NRestarts=0
ExecMainStatus=0
StatusText=2 connections, 1 agent
"""

LAUNCHD = (
    "acp-gateway = {\n\tstate = running\n\truns = 3\n\tpid = 42\n\tlast exit code = 0\n\tx = {\n\t\tstate = no\n\t}\n}"
)


def test_systemd_of_the_user_writes_the_packaged_unit_and_a_drop_in_beside_it() -> None:
    manager = Systemd(Path("/u"))
    packaged = (ROOT / manager.template).read_bytes()
    texts = manager.texts(packaged, SETTINGS)
    assert list(texts) == [Path("/u/acp-gateway.service"), Path("/u/acp-gateway.service.d/10-install.conf")]
    unit, drop_in = texts.values()
    assert unit.startswith(packaged.decode())
    assert is_unchanged(unit)
    assert is_unchanged(drop_in)
    assert manager.start == (
        ("systemctl", "--user", "daemon-reload"),
        ("systemctl", "--user", "enable", "--now", "acp-gateway.service"),
    )


def test_systemd_of_the_system_has_one_unit_for_all_users_and_a_drop_in_for_each() -> None:
    manager = Systemd(Path("/s"), "ann")
    assert manager.template == "systemd/acp-gateway@.service"
    assert manager.own == (Path("/s/acp-gateway@ann.service.d/10-install.conf"),)
    assert manager.shared == (Path("/s/acp-gateway@.service"),)
    assert manager.stop == ("systemctl", "disable", "--now", "acp-gateway@ann.service")
    assert manager.restart == (("systemctl", "restart", "acp-gateway@ann.service"),)


def test_systemd_tells_a_running_service() -> None:
    state = Systemd(Path("/u")).read_state(RUNNING, found=True)
    assert (state.installed, state.running) == (True, True)
    assert state.details["pid"] == "42"
    assert state.details["text"] == "2 connections, 1 agent"
    assert "exit_code" not in state.details


def test_systemd_tells_a_failed_service_with_its_exit_code() -> None:
    output = "LoadState=loaded\nActiveState=failed\nSubState=failed\nMainPID=0\nExecMainStatus=3\nStatusText=\n"
    state = Systemd(Path("/u")).read_state(output, found=True)
    assert (state.installed, state.running) == (True, False)
    assert state.details == {"loaded": "loaded", "state": "failed", "substate": "failed", "exit_code": "3"}


def test_systemd_tells_a_service_that_is_not_there() -> None:
    state = Systemd(Path("/u")).read_state("LoadState=not-found\nActiveState=inactive\n", found=True)
    assert (state.installed, state.running) == (False, False)


def test_systemd_prints_the_log_from_the_journal_of_its_scope() -> None:
    own = Systemd(Path("/u")).logs(5, "today", follow=True, as_json=False)
    words = ("--unit=acp-gateway.service", "--lines=5", "--since=today", "--follow")
    assert own == ("journalctl", "--no-pager", "--user", *words)
    system = Systemd(Path("/s"), "ann").logs(5, None, follow=False, as_json=True)
    assert system == ("journalctl", "--no-pager", "--unit=acp-gateway@ann.service", "--lines=5", "--output=json")


def test_launchd_of_the_user_writes_one_property_list() -> None:
    manager = Launchd(Path("/Users/ann"), 501)
    texts = manager.texts((ROOT / manager.template).read_bytes(), SETTINGS)
    (path,) = texts
    assert path == Path("/Users/ann/Library/LaunchAgents/acp-gateway.plist")
    assert plistlib.loads(texts[path].encode())["ProgramArguments"] == ["/usr/bin/acp-gateway", "serve"]
    assert is_unchanged(texts[path])
    assert manager.start == (("launchctl", "bootstrap", "gui/501", str(path)),)
    assert manager.stop == ("launchctl", "bootout", "gui/501/acp-gateway")
    assert manager.restart == (manager.stop, *manager.start)
    assert manager.forget == ()


def test_launchd_of_the_system_has_a_daemon_for_each_user() -> None:
    manager = Launchd(Path("/Users/ann"), 0, "ann")
    texts = manager.texts((ROOT / manager.template).read_bytes(), SETTINGS)
    assert list(texts) == [Path("/Library/LaunchDaemons/acp-gateway.ann.plist")]
    assert manager.probe == ("launchctl", "print", "system")


def test_launchd_tells_the_state_of_the_service_and_not_that_of_its_parts() -> None:
    manager = Launchd(Path("/Users/ann"), 501)
    state = manager.read_state(LAUNCHD, found=True)
    assert (state.installed, state.running) == (True, True)
    assert state.details == {"state": "running", "pid": "42", "starts": "3", "exit_code": "0"}
    assert manager.read_state("", found=False).installed is False


def test_launchd_prints_the_end_of_a_file_and_has_no_times_or_json() -> None:
    manager = Launchd(Path("/Users/ann"), 501)
    assert manager.logs(5, None, follow=True, as_json=False) == ("tail", "-n", "5", "-F", str(manager.log))
    assert manager.logs(5, "today", follow=False, as_json=False) is None
    assert manager.logs(5, None, follow=False, as_json=True) is None
