"""The files of the service: quoting, PATH, and how a changed file is recognized."""

import plistlib
import shutil
import subprocess
from pathlib import Path

import pytest

from acp_gateway.cli.service.files import Settings, check_user, drop_in, is_unchanged, plist, service_variables, sign
from acp_gateway.errors import ConfigError, UsageError
from tests.doubles import TIMEOUT

ROOT = Path(__file__).parents[3]

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
    assert values["EnvironmentVariables"] == HARD.variables
    assert values["StandardErrorPath"] == "/log"
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
