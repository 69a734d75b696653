"""The file that remembers the sessions of composers."""

import json
import stat
from pathlib import Path

import pytest

from acp_gateway.dialects.editor.composers import FILE_NAME, USE_INTERVAL, ComposerStore, Key

C = Key("ann", "demo", "c")


class Clock:
    """The time, in seconds since 1970."""

    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        self.now += 1
        return self.now


def store(directory: Path, most: int = 10, clock: Clock | None = None) -> ComposerStore:
    return ComposerStore(directory, most, clock or Clock())


async def test_a_composer_is_remembered_across_a_restart(tmp_path: Path) -> None:
    await store(tmp_path).remember(C, "s")
    again = store(tmp_path)
    assert again.find(C) == "s"
    assert [again.find(C._replace(**{name: "other"})) for name in Key._fields] == [None] * 3
    assert stat.S_IMODE((tmp_path / FILE_NAME).stat().st_mode) == 0o600


async def test_a_composer_has_its_last_session(tmp_path: Path) -> None:
    composers = store(tmp_path)
    await composers.remember(C, "s")
    await composers.remember(C, "s2")
    assert (composers.find(C), store(tmp_path).find(C)) == ("s2", "s2")
    await composers.forget(C)
    assert (composers.find(C), store(tmp_path).find(C)) == (None, None)


async def test_the_composer_that_was_unused_for_longest_is_forgotten_beyond_composers_per_identity(
    tmp_path: Path,
) -> None:
    composers = store(tmp_path, most=2)
    for name in ("a", "b"):
        await composers.remember(C._replace(composer=name), name)
    await composers.remember(C._replace(identity="ben"), "bens")
    assert composers.find(C._replace(composer="a")) == "a"
    await composers.remember(C._replace(composer="c"), "c")
    for known in (composers, store(tmp_path)):
        found = [known.find(C._replace(composer=name)) for name in "abc"]
        assert (found, known.find(C._replace(identity="ben"))) == (["a", None, "c"], "bens")


async def test_the_last_use_is_written_at_most_once_an_hour(tmp_path: Path) -> None:
    clock = Clock()
    composers = store(tmp_path, clock=clock)
    await composers.remember(C, "s")
    written = (tmp_path / FILE_NAME).read_bytes()
    composers.find(C)
    await composers.note_uses()
    assert (tmp_path / FILE_NAME).read_bytes() == written
    clock.now += USE_INTERVAL
    composers.find(C)
    await composers.note_uses()
    assert json.loads((tmp_path / FILE_NAME).read_bytes())["composers"][0]["used"] == clock.now


@pytest.mark.parametrize("mode", [0o600, 0o644])
async def test_a_file_that_cannot_be_used_stays_as_it_is_and_composers_are_remembered_in_memory(
    mode: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / FILE_NAME
    await store(tmp_path).remember(C._replace(composer="old"), "old")
    if mode == 0o600:
        file.write_text("{}")
    text = file.read_bytes()
    file.chmod(mode)
    composers = store(tmp_path)
    await composers.remember(C, "s")
    assert (composers.find(C), file.read_bytes()) == ("s", text)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"composers are not remembered across a restart: {file}: ")
    # Once it can be read, what it has is kept beside the new ones.
    if mode == 0o644:
        file.chmod(0o600)
        await composers.remember(C._replace(composer="d"), "s2")
        assert [store(tmp_path).find(C._replace(composer=name)) for name in ("old", "c", "d")] == ["old", "s", "s2"]


async def test_a_folder_that_cannot_be_written_costs_no_composer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    composers = store(tmp_path)
    (tmp_path / f"{FILE_NAME}.new").mkdir()
    await composers.remember(C, "s")
    assert composers.find(C) == "s"
    assert "composers are not remembered" in caplog.text
    (tmp_path / f"{FILE_NAME}.new").rmdir()
    await composers.remember(C._replace(composer="d"), "s2")
    assert store(tmp_path).find(C) == "s"


async def test_an_id_that_no_file_can_hold_is_remembered_in_memory(tmp_path: Path) -> None:
    composers = store(tmp_path)
    await composers.remember(C, "\ud800")
    await composers.remember(C._replace(composer="d"), "ä")
    assert composers.find(C) == "\ud800"
    again = store(tmp_path)
    assert (again.find(C), again.find(C._replace(composer="d"))) == (None, "ä")
