"""The command `files`: what it lists, prints and copies; and that texts name nothing that an installation lacks."""

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

from acp_gateway.cli import files
from acp_gateway.cli.files import FOLDERS, PAGES, find_file, find_files, share_root
from acp_gateway.errors import ConfigError, UsageError
from tests.kit.doubles import run_command as run

ROOT = Path(__file__).parents[2]

UNIT = "systemd/acp-gateway.service"

TEXTS = [
    ROOT / "README.md",
    ROOT / "systemd/README.md",
    ROOT / "certs/README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]


def test_files_lists_units_examples_and_documents() -> None:
    names = run("files").stdout.splitlines()
    wanted = {UNIT, "systemd/acp-gateway@.socket", "examples/gateway.toml", "examples/editors/zed.jsonc"}
    assert wanted | {"docs/deploy.md", "certs/README.md", "SECURITY.md"} <= set(names)
    assert not any(name.endswith((".pyc", ".pem")) for name in names)


@pytest.mark.parametrize("name", [UNIT, "acp-gateway.service"])
def test_files_prints_one_by_its_name_or_the_end_of_it_byte_for_byte(name: str) -> None:
    assert run("files", name).stdout_bytes == (ROOT / UNIT).read_bytes()


def test_files_lists_names_and_paths_as_json() -> None:
    listed = json.loads(run("files", "--json").stdout)
    assert {"name": UNIT, "path": str(ROOT / UNIT)} in listed
    assert [each["name"] for each in listed] == run("files").stdout.splitlines()
    assert run("files", UNIT, "--json").exit_code == 2


def test_files_copies_one_into_a_folder_that_it_makes(tmp_path: Path) -> None:
    target = tmp_path / "systemd" / "user"
    copied = run("files", "acp-gateway.service", "--to", target)
    assert (target / "acp-gateway.service").read_bytes() == (ROOT / UNIT).read_bytes()
    assert (copied.stderr, copied.stdout) == (f"Wrote {target / 'acp-gateway.service'}.\n", "")


def test_files_copies_all_of_them_in_their_folders(tmp_path: Path) -> None:
    assert run("files", "--to", tmp_path / "all").exit_code == 0
    assert find_files(tmp_path / "all") == find_files(ROOT)


def test_files_replaces_a_file_that_is_different_only_when_forced(tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text("mine")
    refused = run("files", "gateway.toml", "--to", tmp_path)
    assert refused.exit_code == ConfigError.exit_code
    assert refused.stderr == f"acp-gateway: {path} exists already and differs: --force replaces it\n"
    assert path.read_text() == "mine"
    assert run("files", "gateway.toml", "--to", tmp_path, "--force").exit_code == 0
    assert run("files", "gateway.toml", "--to", tmp_path).exit_code == 0
    assert path.read_bytes() == (ROOT / "examples/gateway.toml").read_bytes()


def test_files_says_in_one_line_where_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = run("files", "gateway.toml", "--to", tmp_path / "file" / "below")
    assert refused.exit_code == ConfigError.exit_code
    assert len(refused.stderr.splitlines()) == 1


def test_a_name_that_there_is_not_is_answered_with_the_one_that_was_meant() -> None:
    with pytest.raises(UsageError, match=r'"acp-gateway\.servce"; did you mean "acp-gateway\.service"'):
        find_file("acp-gateway.servce", [UNIT])
    with pytest.raises(UsageError, match="`acp-gateway files` lists them"):
        find_file("zebra", [UNIT])


def test_the_end_of_several_names_is_refused_with_all_of_them() -> None:
    names = ["systemd/README.md", "certs/README.md"]
    with pytest.raises(UsageError, match=r"give the whole name: systemd/README\.md, certs/README\.md"):
        find_file("README.md", names)
    assert find_file("README.md", [*names, "README.md"]) == "README.md"


def test_an_installation_without_these_files_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(files, "__file__", str(tmp_path / "acp_gateway" / "cli" / "files.py"))
    with pytest.raises(ConfigError, match="lacks these files"):
        share_root()


def test_the_files_of_a_wheel_go_before_what_lies_beside_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    share = tmp_path / "acp_gateway" / "share"
    (share / "systemd").mkdir(parents=True)
    (share / "systemd" / "README.md").touch()
    monkeypatch.setattr(files, "__file__", str(tmp_path / "acp_gateway" / "cli" / "files.py"))
    assert share_root() == share


def test_the_wheel_is_given_the_very_same_files() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included == {name: f"acp_gateway/share/{name}" for name in (*FOLDERS, *PAGES)}


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_texts_name_only_files_that_an_installation_has_and_copy_them_with_the_program(text: Path) -> None:
    source = text.read_text(encoding="utf-8")
    for name in re.findall(r"acp-gateway files (?!-)(\S+?)(?=[`\s])", source):
        find_file(name, find_files(ROOT))
    assert re.findall(r"\bcp (?:systemd|examples|docs)/\S+", source) == []
    for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", source):
        target = (text.parent / link).resolve().relative_to(ROOT)
        assert str(target) == "CONTRIBUTING.md" or any(
            (ROOT / part) in (ROOT / target, *(ROOT / target).parents) for part in (*FOLDERS, *PAGES)
        ), link


def listed(*words: str | Path) -> dict[str, tuple[str, bool]]:
    """Return path and existence by name."""
    rows = json.loads(run("paths", "--json", *words).stdout)
    assert all(set(row) == {"name", "path", "exists"} for row in rows)
    return {row["name"]: (row["path"], row["exists"]) for row in rows}


def test_paths_lists_the_files_of_the_gateway_and_whether_they_exist(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    config.write_text(config.read_text() + '[[listen]]\nurl = "unix:///run/x/acp"\n')
    run("token", "create", "--config", config, "--label", "x")
    found = listed("--config", config)
    assert found["configuration"] == (str(config), True)
    assert found["tokens"] == (str(tmp_path / "state/tokens.json"), True)
    assert found["sessions"] == (str(tmp_path / "state/sessions.db"), False)
    assert found["listening socket"] == ("/run/x/acp", False)
    assert found["hosts"] == (str(tmp_path / ".config/acp-gateway/hosts.toml"), False)
    assert found["service"] == (str(tmp_path / ".config/systemd/user/acp-gateway.service"), False)
    assert found["units, examples, documents"] == (str(share_root()), True)
    assert "log" not in found


def test_paths_on_macos_has_the_log_of_the_service(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "darwin")
    assert listed("--config", config)["log"] == (str(tmp_path / "Library/Logs/acp-gateway.log"), False)


def test_paths_on_a_laptop_lists_those_of_the_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "c"))
    assert list(listed()) == ["hosts", "reached gateways", "units, examples, documents"]


def test_paths_prints_a_row_each(config: Path) -> None:
    lines = run("paths", "--config", config).stdout.splitlines()
    assert any(line.startswith("tokens ") and line.endswith("/state/tokens.json") for line in lines)


def test_paths_with_a_wrong_configuration_says_so(config: Path) -> None:
    config.write_text("x = 1\n")
    assert run("paths", "--config", config).exit_code == 3
