"""A file of secrets, whatever it holds: read after a change only, replaced as a whole, refused if others may use it.

The file of tokens is one; its own tests go through all that can be wrong with such a file.
"""

import os
import stat
from pathlib import Path

import msgspec
import pytest

from acp_gateway.errors import ConfigError
from acp_gateway.security.private_file import PrivateFile


class Words(msgspec.Struct):
    version: int = 1
    words: tuple[str, ...] = ()


def words_in(path: Path) -> PrivateFile[Words]:
    def decode(content: bytes) -> Words:
        return msgspec.json.decode(content, type=Words)

    return PrivateFile(path, 1, decode, Words(), ("list of words", "say them again"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "words.json"


def test_a_missing_private_file_has_the_empty_content(path: Path) -> None:
    assert words_in(path).content() == Words()


def test_another_process_reads_what_was_written_to_a_private_file(path: Path) -> None:
    writer, reader = words_in(path), words_in(path)
    assert reader.content() == Words()
    with writer.writing():
        writer.write(Words(words=("one",)))
    assert reader.content().words == ("one",)
    with writer.writing():
        writer.write(Words(words=("two",)))
    assert reader.content().words == ("two",)


def test_a_private_file_and_its_lock_are_for_their_owner_alone(path: Path) -> None:
    file = words_in(path)
    with file.writing():
        file.write(Words())
    made = sorted(entry.name for entry in path.parent.iterdir())
    assert made == ["words.json", "words.lock"]
    assert {stat.S_IMODE(os.stat(path.parent / name).st_mode) for name in made} == {0o600}


@pytest.mark.parametrize(
    ("content", "mode", "flaw"),
    [
        (b"{}", 0o600, "is not a list of words: .*; restore it, or remove it and say them again"),
        (b'{"version":2}', 0o600, "was written by a newer acp-gateway"),
        (b'{"version":1}', 0o640, "others may use it"),
    ],
)
def test_a_private_file_that_cannot_be_trusted_is_refused(path: Path, content: bytes, mode: int, flaw: str) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=flaw):
        words_in(path).content()


@pytest.mark.parametrize(
    ("mode", "owner", "flaw"),
    [
        (0o000, 0, r"its own user may not read it \(mode 0000\): chmod 600 {path}"),
        (0o600, 1, "belongs to .*: chown .* {path}"),
        (0o600, 0, "cannot be read: Permission denied"),
    ],
)
def test_a_private_file_that_the_system_refuses_to_open_is_an_error_with_the_remedy(
    mode: int, owner: int, flaw: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even root's tests can read it, as no `open` succeeds."""

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    path.parent.mkdir()
    path.write_bytes(b"{}")
    path.chmod(mode)
    monkeypatch.setattr(os, "geteuid", lambda: path.lstat().st_uid + owner)
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ConfigError, match=flaw.format(path=path)):
        words_in(path).content()
