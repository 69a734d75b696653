"""The command `chat`: what it needs. As a program: end_to_end/test_terminal_chat.py."""

from tests.kit.doubles import run_command as run


def test_without_a_terminal_it_names_watch() -> None:
    done = run("chat", "box")
    assert (done.exit_code, "`acp-gateway watch`" in done.stderr) == (2, True)


def test_help_has_examples() -> None:
    assert "acp-gateway chat box SESSION" in run("chat", "--help").stdout
