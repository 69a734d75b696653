"""Settings files of editors: where they are, and how they are changed."""

import stat
from pathlib import Path

import pytest

from acp_gateway.cli.client.editor_files import MAX_SIZE, TITLES, Machine, installed_editors, plan_change, settings_file
from acp_gateway.cli.client.editor_settings import EDITORS, MEMBERS
from acp_gateway.config.editing.jsonc import set_member
from acp_gateway.errors import ConfigError

HOME = Path("/home/ann")
LINUX = Machine(HOME, {}, "linux")
MAC = Machine(HOME, {}, "darwin")


def test_every_editor_has_a_title_and_those_with_json_a_file() -> None:
    assert set(TITLES) == set(EDITORS)
    assert {editor for editor in EDITORS if settings_file(editor, LINUX)} == set(MEMBERS)


@pytest.mark.parametrize(
    ("editor", "machine", "path"),
    [
        ("zed", LINUX, "/home/ann/.config/zed/settings.json"),
        ("zed", Machine(HOME, {"XDG_CONFIG_HOME": "/c"}, "linux"), "/c/zed/settings.json"),
        ("zed", Machine(HOME, {"XDG_CONFIG_HOME": "c"}, "linux"), "/home/ann/.config/zed/settings.json"),
        ("zed", MAC, "/home/ann/.config/zed/settings.json"),
        ("zed", Machine(HOME, {"APPDATA": "/a"}, "win32"), "/a/Zed/settings.json"),
        ("zed", Machine(HOME, {}, "win32"), "/home/ann/AppData/Roaming/Zed/settings.json"),
        ("jetbrains", MAC, "/home/ann/.jetbrains/acp.json"),
        ("vscode", LINUX, "/home/ann/.config/Code/User/settings.json"),
        ("vscode", MAC, "/home/ann/Library/Application Support/Code/User/settings.json"),
    ],
)
def test_the_settings_are_where_the_editor_has_them(editor: str, machine: Machine, path: str) -> None:
    assert str(settings_file(editor, machine)) == path


def test_editors_are_found_by_programs_and_folders(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {}, "linux")
    assert installed_editors(machine, lambda _: None) == []
    for folder in (".config/JetBrains", ".config/zed", ".local/share/nvim/lazy/avante.nvim"):
        (tmp_path / folder).mkdir(parents=True)
    assert installed_editors(machine, {"emacs": "/bin/emacs"}.get) == ["zed", "jetbrains", "avante", "emacs"]


def test_a_file_is_changed_with_a_copy_beside_it_and_its_mode_and_link_kept(tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.json"
    real.write_text('{\n  "a": 1 // one\n}\n')
    real.chmod(0o640)
    link = tmp_path / "settings.json"
    link.symlink_to(real)
    change = plan_change("zed", link, "box", {"command": "x"})
    assert '+    "box": {' in change.difference
    copy = change.write()
    assert copy == tmp_path / "dotfiles.json.bak"
    assert copy.read_text() == '{\n  "a": 1 // one\n}\n'
    assert link.is_symlink()
    assert '"a": 1, // one' in real.read_text()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    again = plan_change("zed", link, "box", {"command": "x"})
    assert again.difference == ""
    assert plan_change("zed", link, "box", {"command": "y"}).write() == tmp_path / "dotfiles.json.bak1"


def test_a_file_that_does_not_exist_is_made(tmp_path: Path) -> None:
    path = tmp_path / "new/acp.json"
    assert plan_change("jetbrains", path, "box", {"command": "x"}).write() is None
    assert '"agent_servers"' in path.read_text()
    assert [entry.name for entry in path.parent.iterdir()] == ["acp.json"]


def test_a_file_that_another_program_has_changed_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text("{}")
    change = plan_change("vscode", path, "box", {})
    path.write_text('{"new": 1}')
    with pytest.raises(ConfigError, match="has just changed it"):
        change.write()
    assert [entry.name for entry in tmp_path.iterdir()] == ["settings.json"]
    assert path.read_text() == '{"new": 1}'


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"{", "is not JSON"), (b"\xff", "UTF-8"), (b" " * (MAX_SIZE + 1), "larger"), (b"[]", "not an object")],
)
def test_a_file_that_is_not_understood_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "settings.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"settings.json: .*{why}"):
        plan_change("zed", path, "box", {})


def test_a_link_that_leads_to_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.symlink_to(path)
    with pytest.raises(ConfigError, match=r"is a link that leads to itself|cannot be read"):
        plan_change("zed", path, "box", {})


@pytest.mark.parametrize("name", ["settings.json", "."])
def test_a_file_that_is_read_only_or_in_such_a_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = tmp_path / "settings.json"
    path.write_text(set_member("", ("agent_servers", "box"), {"command": "x"}))
    # As for a user who is not root.
    monkeypatch.setattr("os.access", lambda place, _: place != tmp_path / name)
    assert plan_change("zed", path, "box", {"command": "x"}).difference == ""
    with pytest.raises(ConfigError, match=f"{tmp_path / name}: is read-only"):
        plan_change("zed", path, "box", {"command": "y"})


def test_a_file_that_can_not_be_read_or_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        plan_change("zed", tmp_path / "folder.json", "box", {})
    change = plan_change("zed", tmp_path / "x/settings.json", "box", {})
    (tmp_path / "x").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        change.write()
