"""A file of secrets, whatever it holds: read after a change only, replaced as a whole, refused if others may use it.

The file of tokens is one; its own tests go through all that can be wrong with such a file.
"""

import os
import stat
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from acp_gateway.errors import ConfigError
from acp_gateway.security.private_file import PrivateFile

of_linux = pytest.mark.skipif(sys.platform != "linux", reason="modes are mended where there are fences")


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


@of_linux
def test_a_private_file_whose_own_user_may_not_read_it_gets_its_mode_back(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file, real = words_in(path), os.open

    def guarded(name: Any, flags: int, *rest: Any, **more: Any) -> int:
        """Open as the system does for a user who is not root."""
        if name == path and not flags & os.O_PATH and not path.lstat().st_mode & stat.S_IRUSR:
            raise PermissionError(13, "Permission denied")
        return real(name, flags, *rest, **more)

    with file.writing():
        file.write(Words(words=("one",)))
    path.chmod(0)
    monkeypatch.setattr(os, "open", guarded)
    assert file.content().words == ("one",)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == f"a program of this user, such as an agent, gave {path} the mode 0000: it is 0600 again"


@of_linux
def test_a_private_file_that_others_may_write_is_replaced_by_its_known_content(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = words_in(path)
    with file.writing():
        file.write(Words(words=("one",)))
    assert file.content().words == ("one",)
    path.chmod(0o666)
    # Another user has it open by now.
    with path.open("r+b") as others:
        assert file.content().words == ("one",)
        others.write(b"{}")
    assert file.content().words == ("one",)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [record.getMessage() for record in caplog.records] == [
        f"{path} had the mode 0666, and the content that it had before: it is 0600 again"
    ]
    with file.writing():
        path.chmod(0o606)
        assert file.content().words == ("one",)


def test_a_private_file_that_others_may_have_changed_is_refused(path: Path) -> None:
    file = words_in(path)
    with file.writing():
        file.write(Words(words=("one",)))
    assert file.content().words == ("one",)
    path.chmod(0o602)
    path.write_bytes(path.read_bytes().replace(b"one", b"two"))
    with pytest.raises(ConfigError, match=r"others may use it \(mode 0602\): chmod 600"):
        file.content()


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
    # Others look through all files that tests leave.
    path.chmod(0o600)
