"""The service managers: their files, commands, and what is read from their output."""

import plistlib
import shutil
import subprocess
from pathlib import Path

import pytest

from acp_gateway.cli.service_managers import (
    Launchd,
    Settings,
    Systemd,
    check_user,
    drop_in,
    is_unchanged,
    plist,
    service_variables,
    sign,
)
from acp_gateway.errors import ConfigError, UsageError
from tests.kit.doubles import TIMEOUT
from tests.kit.machine import needs_entry

SETTINGS = Settings(("/usr/bin/acp-gateway",), None, {"PATH": "/usr/bin"})

ROOT = Path(__file__).parents[2]

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
    assert (state.details["pid"], state.details["text"]) == ("42", "2 connections, 1 agent")
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


TEMPLATE = (ROOT / "launchd" / "acp-gateway.plist").read_bytes()

HARD = Settings(
    ("/opt/my dir/acp-gateway",),
    Path('/home/a$b/100%/c "x".toml'),
    {"PATH": "/a b:/c%d:/e$f:/usr/bin", "XDG_STATE_HOME": "/back\\slash"},
)
"""Settings with all characters that a unit quotes."""


def test_the_service_gets_the_path_of_the_shell_without_relative_and_repeated_folders() -> None:
    found = service_variables({"PATH": "/home/ann/bin:.::bin:/usr/bin:/home/ann/bin", "HOME": "/home/ann"})
    assert found == {"PATH": "/home/ann/bin:/usr/bin"}


def test_a_given_path_replaces_that_of_the_shell() -> None:
    assert service_variables({"PATH": "/usr/bin"}, "/opt/bin:/bin") == {"PATH": "/opt/bin:/bin"}


def test_a_path_without_an_absolute_folder_is_refused() -> None:
    with pytest.raises(UsageError, match="--path"):
        service_variables({"PATH": ".:bin"})


def test_the_service_gets_the_folders_of_the_shell_if_they_are_absolute() -> None:
    found = service_variables({"PATH": "/bin", "XDG_CONFIG_HOME": "/c", "XDG_STATE_HOME": "s", "XDG_DATA_HOME": ""})
    assert found == {"PATH": "/bin", "XDG_CONFIG_HOME": "/c"}


def test_a_drop_in_replaces_the_command_and_quotes_words_for_systemd() -> None:
    lines = drop_in(HARD).splitlines()
    assert lines[1:] == [
        "[Service]",
        "ExecStart=",
        r'ExecStart="/opt/my dir/acp-gateway" serve --config "/home/a$$b/100%%/c \"x\".toml"',
        'Environment="PATH=/a b:/c%%d:/e$f:/usr/bin"',
        r'Environment="XDG_STATE_HOME=/back\\slash"',
    ]


def test_a_drop_in_without_special_characters_is_plain() -> None:
    text = drop_in(Settings(("/usr/bin/acp-gateway",), None, {"PATH": "/usr/bin:/bin"}))
    assert "ExecStart=/usr/bin/acp-gateway serve\nEnvironment=PATH=/usr/bin:/bin\n" in text


def test_a_line_break_can_not_add_a_setting_to_a_drop_in() -> None:
    with pytest.raises(ConfigError, match="a unit can't hold"):
        drop_in(Settings(("/x",), None, {"PATH": "/bin\nUser=root"}))


@needs_entry
def test_systemd_understands_the_unit_with_its_drop_in(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze here")
    program = tmp_path / "my $dir" / "run 100%"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "acp-gateway.service"
    unit.write_text(sign((ROOT / "systemd" / "acp-gateway.service").read_text()))
    folder = tmp_path / "acp-gateway.service.d"
    folder.mkdir()
    settings = Settings((str(program),), HARD.config, HARD.variables)
    (folder / "10-install.conf").write_text(sign(drop_in(settings)))
    done = subprocess.run(
        [analyze, "--user", "verify", "--man=no", "--recursive-errors=no", str(unit)],
        env={"XDG_RUNTIME_DIR": str(tmp_path), "SYSTEMD_LOG_LEVEL": "warning", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_property_list_has_the_packaged_values_and_those_of_this_machine() -> None:
    values = plistlib.loads(plist(TEMPLATE, HARD, "acp-gateway", Path("/log"), None).encode())
    assert values["ProgramArguments"] == ["/opt/my dir/acp-gateway", "serve", "--config", str(HARD.config)]
    assert (values["EnvironmentVariables"], values["StandardErrorPath"]) == (HARD.variables, "/log")
    assert (values["Umask"], values["KeepAlive"]) == (0o077, {"SuccessfulExit": False})
    assert "UserName" not in values


def test_a_property_list_of_the_system_names_the_user() -> None:
    values = plistlib.loads(plist(TEMPLATE, HARD, "acp-gateway.ann", Path("/log"), "ann").encode())
    assert (values["Label"], values["UserName"]) == ("acp-gateway.ann", "ann")


def test_a_property_list_refuses_a_control_character() -> None:
    with pytest.raises(ConfigError, match="property list"):
        plist(TEMPLATE, Settings(("/x\x01",), None, {}), "acp-gateway", Path("/log"), None)


@pytest.mark.parametrize("xml", [False, True])
def test_a_written_file_is_recognized_until_it_is_changed(xml: bool) -> None:
    text = sign("[Service]\n", xml=xml)
    assert is_unchanged(text)
    assert not is_unchanged(text.replace("Service", "Unit"))
    assert not is_unchanged(text + "ExecStart=/bin/true\n")
    assert not is_unchanged("[Service]\n")


def test_a_signed_property_list_is_still_one() -> None:
    assert plistlib.loads(sign(TEMPLATE.decode(), xml=True).encode())["Label"] == "acp-gateway"


@pytest.mark.parametrize("name", ["ann", "_svc", "Ann.B-2"])
def test_a_plain_name_of_a_user_is_accepted(name: str) -> None:
    assert check_user(name) == name


@pytest.mark.parametrize("name", ["", "a/b", "../x", "a b", "-x", "ann@x", "a%i", "x" * 40])
def test_a_name_that_would_change_the_path_of_a_unit_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="user"):
        check_user(name)
