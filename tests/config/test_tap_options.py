"""The options of the file tap."""

from pathlib import Path

import pytest

from acp_gateway.config.editing.toml_file import TomlFile
from acp_gateway.config.options import IGNORED, TapSection, read_names
from acp_gateway.config.schema import Entry
from acp_gateway.dialects.browser.file_search import SKIPPED
from acp_gateway.errors import ConfigError


def names(path: Path, value: str) -> tuple[str, ...]:
    path.write_text(f"ignore = {value}\n")
    file = TomlFile.read(path)
    return read_names(Entry(file, (), file.data).child("ignore", None))


def test_the_tap_ignores_by_default_what_a_search_for_files_skips() -> None:
    assert set(TapSection().ignore) == set(IGNORED) == SKIPPED


def test_ignore_takes_names_of_directories_and_may_be_empty(tmp_path: Path) -> None:
    assert names(tmp_path / "file", '["out", ".cache"]') == ("out", ".cache")
    assert names(tmp_path / "file", "[]") == ()


@pytest.mark.parametrize("value", ['"out"', "[1]", '[""]', '["a/b"]', '["*"]'])
def test_ignore_takes_nothing_else(value: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected "):
        names(tmp_path / "file", value)
