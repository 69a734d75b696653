from pathlib import Path

import pytest

from acp_gateway.config.load import read_env_file
from acp_gateway.errors import ConfigError


def write(tmp_path: Path, content: str | bytes, mode: int = 0o600) -> Path:
    path = tmp_path / "agent.env"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("KEY=value", "value"),
        ("  KEY = value  ", "value"),
        ("KEY=", ""),
        ("KEY=''", ""),
        ('KEY="two words "', "two words "),
        ("KEY='two \"words\"'", 'two "words"'),
        ("KEY=a=b", "a=b"),
        ("KEY=a#b # c", "a#b # c"),
        ("KEY=$HOME\\n", "$HOME\\n"),
        ("KEY=it's", "it's"),
        ("export KEY=value", "value"),
        ("KEY=a\u2028b", "a\u2028b"),
        ("KEY=value\r", "value"),
    ],
)
def test_a_line_sets_a_variable(line: str, value: str, tmp_path: Path) -> None:
    assert read_env_file(write(tmp_path, line)) == {"KEY": value}


def test_comments_and_blank_lines_are_skipped_and_the_last_value_counts(tmp_path: Path) -> None:
    path = write(tmp_path, "# a comment = 1\n\n   # another\nA=1\nB=2\nA=3\n")
    assert read_env_file(path) == {"A": "3", "B": "2"}


@pytest.mark.parametrize(
    "line", ["secret", "=secret", "1A=secret", "A-B=secret", "A='secret", 'A="secret" x', "A='sec'ret'", "A=sec\0ret"]
)
def test_a_line_that_sets_nothing_is_an_error_that_does_not_repeat_it(line: str, tmp_path: Path) -> None:
    path = write(tmp_path, f"\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        read_env_file(path)
    assert str(caught.value) == f"{path}:2: expected NAME=value, NAME='value' or NAME=\"value\""


def test_the_gateway_s_own_variables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r":1: ACP_GATEWAY_TOKEN: .*the gateway's own") as caught:
        read_env_file(write(tmp_path, "ACP_GATEWAY_TOKEN=secret"))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_file_that_only_its_owner_may_open_is_read(mode: int, tmp_path: Path) -> None:
    assert read_env_file(write(tmp_path, "A=1", mode)) == {"A": "1"}


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o620, 0o644, 0o660, 0o700])
def test_a_wider_mode_is_refused_with_the_command_that_helps(mode: int, tmp_path: Path) -> None:
    path = write(tmp_path, "A=1", mode)
    with pytest.raises(ConfigError, match=f"mode 0{mode:o} is wider than 0600: chmod 600 {path}"):
        read_env_file(path)


def test_a_systemd_credential_may_be_readable_by_the_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "A=1", 0o440)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert read_env_file(path) == {"A": "1"}
    path.chmod(0o444)
    with pytest.raises(ConfigError, match="wider"):
        read_env_file(path)


def test_another_file_of_a_service_with_credentials_may_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "credentials"))
    with pytest.raises(ConfigError, match="wider"):
        read_env_file(write(tmp_path, "A=1", 0o440))


def test_a_file_that_is_missing_or_no_text_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none: cannot be read: No such file"):
        read_env_file(tmp_path / "none")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_env_file(write(tmp_path, b"A=\xff"))
