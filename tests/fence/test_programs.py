"""The files that decide what a command runs, and what this program is."""

import os
import site
import sys
from pathlib import Path

import pytest

import acp_gateway
from acp_gateway.fence.paths import within
from acp_gateway.fence.programs import of_gateway, run_by


def program(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_the_program_of_a_command_is_run_by_the_folders_before_its_own_on_path_and_by_its_interpreter(
    tmp_path: Path,
) -> None:
    program(tmp_path / "b/notify", "#!/usr/bin/env interpreter\n")
    program(tmp_path / "c/interpreter")
    (tmp_path / "script").write_text("")
    search_path = os.pathsep.join(str(tmp_path / name) for name in "abcd")
    found = [*run_by(["notify", "script", "--loud"], search_path, str(tmp_path))]
    assert [os.path.relpath(path, tmp_path) for path in found] == [
        "a/notify",
        "b/notify",
        "a/interpreter",
        "b/interpreter",
        "c/interpreter",
        "script",
    ]


def test_a_command_with_a_path_is_not_looked_for(tmp_path: Path) -> None:
    assert [*run_by(["bin/notify"], "/a:/b", str(tmp_path))] == [f"{tmp_path}/bin/notify"]


def test_this_program_is_its_code_and_its_python() -> None:
    found = of_gateway()
    assert found[os.path.dirname(acp_gateway.__file__)] == "its own code"
    for path in (sys.executable, os.__file__, f"{sys.prefix}/pyvenv.cfg"):
        assert any(within(path, place) for place in found), path
    # Whatever contains its installation contains a part of it.
    assert any(within(place, sys.prefix) for place in found)


def test_modules_of_the_user_run_in_this_program_where_its_python_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = site.getusersitepackages()
    for takes in (True, False):
        monkeypatch.setattr(site, "ENABLE_USER_SITE", takes)
        assert (folder in of_gateway()) is takes
