"""The manual page that `tools/man_page.py` makes from the commands."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from acp_gateway.cli.main import main
from acp_gateway.errors import CannotListen, GatewayError
from tests.kit.doubles import TIMEOUT
from tools.man_page import ENVIRONMENT, EXIT_STATUS, make_page, paragraphs, walk

ROOT = Path(__file__).parent.parent

PAGE = make_page()


def test_the_manual_page_has_each_command_with_each_of_its_options() -> None:
    for command, words in walk(main):
        title = " ".join(words).replace("-", "\\-")
        section = PAGE.partition(f'.SS "{title}"\n')[2].partition("\n.S")[0]
        assert section, words
        for param in command.params:
            for name in param.opts:
                if name.startswith("--"):
                    assert name.replace("-", "\\-") in section


def test_the_manual_page_has_no_hidden_command() -> None:
    assert "pair\\-here" not in PAGE


def test_the_manual_page_has_each_exit_code() -> None:
    def codes(error: type[GatewayError]) -> set[int]:
        return {error.exit_code}.union(*map(codes, error.__subclasses__()))

    assert codes(GatewayError) >= {CannotListen.exit_code}
    assert codes(GatewayError) <= set(EXIT_STATUS)
    assert all(name in PAGE for each in ENVIRONMENT for name in each.split(", "))


def test_a_line_of_help_is_not_a_request_of_roff() -> None:
    assert list(paragraphs(".env is\nread\n\n\b\nExamples:\n  a -b `c`\\d")) == [
        "\\&.env is read",
        ".PP",
        ".nf",
        "Examples:",
        "  a \\-b \\fBc\\fR\\ed",
        ".fi",
    ]


def test_groff_finds_nothing_wrong_with_the_manual_page() -> None:
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("there is no groff here")
    done = subprocess.run(
        [groff, "-man", "-Tutf8", "-ww", "-Kutf8"],
        input=PAGE.encode(),
        capture_output=True,
        timeout=TIMEOUT,
        check=True,
    )
    assert done.stderr.decode() == ""
    assert "acp-gateway token create --label laptop" in re.sub(r"\x1b\[[0-9;]*m|.\x08", "", done.stdout.decode())


def test_the_wheel_is_built_with_the_manual_page_and_what_that_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"] == {"path": "tools/hatch_build.py"}
    click = next(name for name in project["project"]["dependencies"] if name.startswith("click"))
    assert click in project["build-system"]["requires"]
