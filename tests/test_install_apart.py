"""`tools/install_apart` with a Python that is made up: what is there stays, and what failed is tried again."""

import importlib.machinery
import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

TOOL = Path(__file__).parent.parent / "tools" / "install_apart"

PYTHON = """\
#!/bin/sh
echo "$*" >>"$(dirname "$FIFO")/calls"
case "$*" in
*hanging*) read line <"$FIFO" ;;
"-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
*broken*) false ;;
esac
"""
"""A Python that copies itself into environments, fails to install `broken`, and never ends with `hanging`."""


def load() -> Any:
    loader = importlib.machinery.SourceFileLoader("install_apart", str(TOOL))
    spec = importlib.util.spec_from_loader("install_apart", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


tool = load()


class Installer:
    """A folder with environments, made with that Python."""

    def __init__(self, place: Path) -> None:
        self._python, self._calls = place / "python", place / "calls"
        self._python.write_text(PYTHON)
        self._python.chmod(0o755)
        self.folder = place / "environments"
        self.stamp = self.folder / "installed"

    def install(self, *requirements: str, limit: float = 60.0) -> bool:
        self._calls.write_text("")
        done: bool = tool.install(self.folder, requirements, str(self._python), ["--option"], limit)
        assert self.stamp.exists() == done
        return done

    @property
    def calls(self) -> list[str]:
        """Arguments of each call of a Python by the last installation."""
        return self._calls.read_text().splitlines()

    @property
    def requirements(self) -> list[str]:
        """Requirements that pip was told to install by the last call."""
        return [line.split()[-1] for line in self.calls if " install " in line]


@pytest.fixture
def installer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installer:
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setenv("FIFO", str(tmp_path / "fifo"))
    return Installer(tmp_path)


def test_each_package_is_installed_once_in_its_own_environment(installer: Installer) -> None:
    assert installer.install("one==1", "two==2")
    assert installer.requirements == ["one==1", "two==2"]
    assert {path.name for path in installer.folder.iterdir()} == {"one", "two", "installed"}
    assert installer.install("one==1", "two==2")
    assert installer.requirements == []


def test_the_requirements_of_a_line_are_installed_in_one_environment_with_the_name_of_the_first(
    installer: Installer,
) -> None:
    assert installer.install("one[extra]==1 two==2")
    assert {path.name for path in installer.folder.iterdir()} == {"one", "installed"}
    assert installer.calls[-1].endswith(" --option one[extra]==1 two==2")


def test_a_failed_package_is_tried_again_and_the_others_are_not(installer: Installer) -> None:
    for expected in (["one==1", "broken==1", "two==2"], ["broken==1"]):
        assert not installer.install("one==1", "broken==1", "two==2")
        assert installer.requirements == expected


def test_another_version_replaces_the_old_one_and_an_unnamed_package_is_removed(installer: Installer) -> None:
    assert installer.install("one==1", "two==2")
    left = installer.folder / "one" / "left"
    left.touch()
    assert installer.install("one==3")
    assert installer.requirements == ["one==3"]
    assert not left.exists()
    assert not (installer.folder / "two").exists()


def test_an_environment_whose_python_was_removed_is_made_again(installer: Installer) -> None:
    assert installer.install("one==1")
    (installer.folder / "one" / "bin" / "python").unlink()
    assert installer.install("one==1")
    assert installer.requirements == ["one==1"]


def test_the_installation_of_a_package_that_takes_too_long_is_killed(
    installer: Installer, capfd: pytest.CaptureFixture[str]
) -> None:
    assert not installer.install("hanging==1", limit=0.0)
    assert "not ended after 0 s" in capfd.readouterr().err
