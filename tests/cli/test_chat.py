"""The command `chat`: what it needs. As a program: end_to_end/test_terminal_chat.py."""

import pytest

from acp_gateway.cli import chat as module
from tests.doubles import run_command as run


def test_without_the_extra_one_line_tells_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    done = run("chat", "box")
    assert done.exit_code == 2
    assert done.stderr == (
        "acp-gateway: chat needs a library for full-screen programs: `pipx install --force '.[tui]'` in a checkout\n"
    )


def test_without_a_terminal_it_names_watch() -> None:
    done = run("chat", "box")
    assert (done.exit_code, "`acp-gateway watch`" in done.stderr) == (2, True)


def test_help_has_examples() -> None:
    assert "acp-gateway chat box SESSION" in run("chat", "--help").stdout
