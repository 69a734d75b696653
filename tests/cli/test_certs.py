"""The commands for certificates: what is printed where."""

import json
import re
from datetime import timedelta
from pathlib import Path

import pytest

from acp_gateway.security.certificates import read_certificate
from tests.kit.authority import ANN, BEGIN, Authority
from tests.kit.doubles import run_command as run


def test_a_certificate_is_written_and_its_pin_is_alone_on_stdout(tmp_path: Path) -> None:
    created = run("certs", "create", "--host", "box.example", "--out", tmp_path / "certs")
    assert created.exit_code == 0
    assert created.stdout.startswith("sha256:")
    assert len(created.stdout.split()) == 1
    assert (tmp_path / "certs" / "key.pem").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "certs" / "cert.pem").exists()


def test_certs_show_as_json_has_the_names_and_dates(tmp_path: Path) -> None:
    pin = run("certs", "create", "--host", "box", "--out", tmp_path).stdout.strip()
    shown = json.loads(run("certs", "show", tmp_path / "cert.pem", "--json").stdout)
    assert (shown["pin"], shown["names"], shown["expired"]) == (pin, ["box"], False)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", shown["until"])


def test_a_renewed_certificate_has_the_pin_of_the_old_one_and_how_it_is_taken_up_is_said(tmp_path: Path) -> None:
    pin = run("certs", "create", "--host", "box", "--host", "::1", "--out", tmp_path).stdout
    renewed = run("certs", "renew", "--out", tmp_path)
    assert (renewed.exit_code, renewed.stdout) == (0, pin)
    (line,) = renewed.stderr.splitlines()
    assert re.search(r"valid until \d{4}-\d\d-\d\d, for box, ::1\. ", line)
    assert "`acp-gateway reload`" in line


def test_a_certificate_is_renewed_for_other_names_where_they_are_given(tmp_path: Path) -> None:
    run("certs", "create", "--host", "box", "--out", tmp_path)
    assert run("certs", "renew", "--host", "other", "--out", tmp_path).exit_code == 0
    assert read_certificate(tmp_path / "cert.pem").names == ("other",)


def test_without_a_directory_it_is_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    pin = run("certs", "create", "--host", "box").stdout
    assert run("certs", "renew").stdout == pin
    assert f"pin: {pin}" in run("certs", "show").stdout
    assert sorted(path.name for path in (tmp_path / "acp-gateway").iterdir()) == ["cert.pem", "key.pem"]


def test_certs_show_of_a_file_that_is_not_there_names_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    own = run("certs", "create", "--host", "box", "--json").stdout
    refused = run("certs", "show", "cert.pem")
    assert refused.exit_code == 3
    assert refused.stderr == (
        "acp-gateway: cert.pem: there is no such file; `acp-gateway certs show` shows "
        f"{json.loads(own)['certificate']}\n"
    )


def test_a_certificate_is_shown_a_line_for_each_thing_that_it_says(tmp_path: Path) -> None:
    cert, _ = Authority("an authority").issue(tmp_path, ANN)
    shown = run("certs", "show", cert)
    assert shown.exit_code == 0
    assert shown.stdout.splitlines() == [
        f"pin: {read_certificate(cert).pin}",
        "subject: CN=ann,O=Example",
        "issuer: CN=an authority",
        "names: -",
        "from: 2020-01-01T00:00:00Z",
        "until: 2060-01-01T00:00:00Z",
    ]


def test_a_certificate_that_is_over_is_shown_as_expired(tmp_path: Path) -> None:
    cert, _ = Authority("an authority").issue(tmp_path, ANN, end=BEGIN + timedelta(days=1))
    assert "until: 2020-01-02T00:00:00Z (expired)\n" in run("certs", "show", cert).stdout


def test_one_that_signed_itself_is_issued_by_itself(tmp_path: Path) -> None:
    run("certs", "create", "--host", "box", "--host", "192.0.2.7", "--out", tmp_path)
    lines = run("certs", "show", tmp_path / "cert.pem").stdout.splitlines()
    assert "issuer: itself" in lines
    assert "names: box, 192.0.2.7" in lines


@pytest.mark.parametrize("command", [["renew", "--out"], ["show"]], ids=["renew", "show"])
def test_what_cannot_be_read_is_one_line_and_the_exit_code_of_a_configuration(
    tmp_path: Path, command: list[str]
) -> None:
    target = tmp_path if "--out" in command else tmp_path / "cert.pem"
    refused = run("certs", *command, target)
    assert (refused.exit_code, refused.stdout) == (3, "")
    assert refused.stderr == (
        f"acp-gateway: {tmp_path}/cert.pem: there is no such file; `acp-gateway certs create` makes one\n"
    )


def test_a_home_that_can_not_be_read_does_not_hide_that_a_file_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The system refuses to look there, as below a folder that the user may not read.
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ("long" * 100)))
    refused = run("certs", "show", tmp_path / "cert.pem")
    assert (refused.exit_code, refused.stdout) == (3, "")
    assert "there is no such file" in refused.stderr


def test_certs_create_and_renew_with_json_print_the_pin_and_the_files_and_nothing_else(tmp_path: Path) -> None:
    created = run("certs", "create", "--host", "box", "--out", tmp_path, "--json")
    renewed = run("certs", "renew", "--out", tmp_path, "--json")
    assert (created.stderr, renewed.stderr) == ("", "")
    cert, pin = str(tmp_path / "cert.pem"), read_certificate(tmp_path / "cert.pem").pin
    assert json.loads(created.stdout) == {"certificate": cert, "key": str(tmp_path / "key.pem"), "pin": pin}
    shown = json.loads(run("certs", "show", cert, "--json").stdout)
    assert json.loads(renewed.stdout) | {"expired": False} == shown | {"certificate": cert}
