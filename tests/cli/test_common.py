"""Printing: tokens, and text that stdout has no characters for."""

import stat
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import click
import pytest

from acp_gateway.cli.common import print_any_character, print_secret


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o400])
def test_a_file_that_the_shell_has_made_for_a_token_is_its_owners_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    with (tmp_path / "token").open("w+") as file:
        (tmp_path / "token").chmod(mode)
        monkeypatch.setattr(sys, "stdout", file)
        print_secret("acpgw_x")
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == mode & 0o600
    assert (tmp_path / "token").read_text() == "acpgw_x\n"


def test_a_file_that_has_something_in_it_already_keeps_its_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").write_text("before\n")
    (tmp_path / "log").chmod(0o644)
    with (tmp_path / "log").open("a") as file:
        monkeypatch.setattr(sys, "stdout", file)
        print_secret("acpgw_x")
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o644


def test_a_label_that_the_output_has_no_characters_for_is_printed_as_far_as_it_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(written, encoding="latin-1"))
    print_any_character()
    click.echo("Zoë 雪")
    assert written.getvalue().split() == [b"Zo\xeb", b"?"]


# Rotated
