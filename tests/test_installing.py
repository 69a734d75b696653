"""Installation texts use one distribution name, never one that belongs to another author."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from acp_gateway import DISTRIBUTION, INSTALL

ROOT = Path(__file__).parent.parent

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

TEXTS = [
    *(
        ROOT / name
        for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "Makefile", "pyproject.toml")
    ),
    *(
        path
        for folder in (
            "docs",
            "systemd",
            "launchd",
            "completions",
            "certs",
            "examples",
            "tools",
            "acp_gateway",
            "benchmarks",
        )
        for path in sorted((ROOT / folder).rglob("*"))
        if path.is_file() and path.suffix not in (".svg", ".png", ".pyc")
    ),
]
"""Every file that tells a person or a machine how to install something."""

INSTALLING = re.compile(
    r"\b(?:pipx (?:install|run)|uv tool (?:install|run)|uvx|(?:uv )?pip3? install)\b(?P<words>[^`#|\n]*)"
)


def installed_names(text: str) -> Iterator[str]:
    """The arguments of all commands in a text that install something, options left out."""
    for command in INSTALLING.finditer(text):
        for word in command["words"].split():
            if not word.startswith("-"):
                # A name may have extras behind it.
                yield word.strip("'\",;:()").partition("[")[0].rstrip(".") or "."


@pytest.mark.parametrize("command", ["pipx install", "uv tool install", "pip install", "uvx", "pip install --upgrade"])
def test_the_search_finds_an_installation_from_the_public_index(command: str) -> None:
    assert list(installed_names(f"Run `{command} acp-gateway`, then")) == ["acp-gateway"]
    assert list(installed_names(f"Run `{command} 'acp-gateway[tui]'`")) == ["acp-gateway"]
    assert list(installed_names(f"    {command} .   # in a checkout")) == ["."]
    assert list(installed_names(f"    {command} '.[tui]'")) == ["."]


def test_no_text_installs_the_program_from_the_public_index_before_it_is_there() -> None:
    public = {"acp-gateway", "acp_gateway", DISTRIBUTION}
    assert [path for path in TEXTS if public & set(installed_names(path.read_text(encoding="utf-8")))] == []


EXTRAS = re.compile(r"(?:pipx|uv tool) install [^`#|\n]*\.\[(?P<names>[a-z,]+)\]")


def test_no_text_installs_one_extra_because_that_removes_the_others() -> None:
    # The changelog tells of former versions.
    texts = [path for path in TEXTS if path.name != "CHANGELOG.md"]
    assert [path for path in texts if set(EXTRAS.findall(path.read_text(encoding="utf-8"))) - {"all"}] == []


def test_all_is_every_extra_of_the_program_and_small_libraries_need_none() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    assert set(extras) == {"gpu", "metrics", "cluster", "all", "test", "docs", "dev"}
    assert extras["all"] == [f"{DISTRIBUTION}[cluster,gpu,metrics]"]
    assert {"segno>=1.6", "urwid>=5"} <= set(PROJECT["project"]["dependencies"])


@pytest.mark.parametrize("text", ["README.md", "systemd/README.md", "systemd/acp-gateway.service"])
def test_texts_that_tell_how_to_install_it_do_so_from_a_checkout(text: str) -> None:
    source = (ROOT / text).read_text(encoding="utf-8")
    assert "." in set(installed_names(source))
    assert INSTALL in source
    assert "uv tool install ." in source


def test_the_distribution_has_a_name_of_its_own_and_the_command_and_package_theirs() -> None:
    project = PROJECT["project"]
    assert project["name"] == DISTRIBUTION != "acp-gateway"
    assert project["scripts"] == {"acp-gateway": "acp_gateway.__main__:main"}
    assert PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["acp_conformance", "acp_gateway"]


def test_an_extra_that_includes_another_one_asks_for_this_distribution() -> None:
    extras = [name for group in PROJECT["project"]["optional-dependencies"].values() for name in group]
    included = [name for name in extras if "gateway" in name]
    assert included == [f"{DISTRIBUTION}[{names}]" for names in ("cluster,gpu,metrics", "all", "test")]


def test_the_version_is_in_the_package_so_that_no_name_is_needed_to_find_it() -> None:
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "acp_gateway/__init__.py"
    for path in sorted((ROOT / "acp_gateway").rglob("*.py")):
        assert "import importlib.metadata" not in (text := path.read_text(encoding="utf-8"))
        assert "from importlib.metadata" not in text
