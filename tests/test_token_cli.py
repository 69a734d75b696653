"""The commands for tokens: what is made of the options, what is printed where."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import get_args

import click
import pytest

from acp_gateway.auth import Role, Token, TokenStore
from acp_gateway.database import Database, TokenUse
from acp_gateway.gateway import DATABASE
from acp_gateway.token_cli import create_token
from acp_gateway.tokens import explain_flaw
from tests.doubles import run_command as run


def test_a_new_token_is_printed_alone_on_stdout_and_is_listed_by_its_id(config: Path) -> None:
    created = run("token", "create", "--config", config, "--label", "laptop", "--identity", "ann", "--agent", "demo")
    assert created.exit_code == 0
    secret = created.stdout.strip()
    assert explain_flaw(secret) is None
    assert secret not in created.stderr
    (row,) = run("token", "list", "--config", config).stdout.splitlines()
    token_id, identity, role, agents, session, _, expires, used, label = row.split()
    assert (identity, role, agents, session) == ("ann", "controller", "demo", "-")
    assert (expires, used, label) == ("never", "-", "laptop")
    assert secret not in row
    revoked = run("token", "revoke", token_id, "--config", config)
    assert revoked.exit_code == 0
    assert run("token", "list", "--config", config).stdout == ""


def test_a_token_may_be_an_observers_for_one_session_and_for_some_time(config: Path, tmp_path: Path) -> None:
    options = ["--role", "observer", "--session", "s1", "--expires", "2h"]
    created = run("token", "create", "--config", config, "--label", "tv", *options)
    assert created.exit_code == 0
    (token,) = TokenStore(tmp_path / "state").tokens()
    assert (token.role, token.session, minutes_of(token)) == ("observer", "s1", 120)
    row = run("token", "list", "--config", config).stdout.split()
    assert (row[2], row[4], row[6]) == ("observer", "s1", token.expires)


def test_a_token_whose_time_is_over_is_listed_as_expired(config: Path, tmp_path: Path) -> None:
    TokenStore(tmp_path / "state", lambda: 0.0).create("old", "ann", None, lifetime=60)
    assert run("token", "list", "--config", config).stdout.split()[6] == "expired"


def test_a_token_that_was_used_is_listed_with_the_hour(config: Path, tmp_path: Path) -> None:
    store = TokenStore(tmp_path / "state")
    used, unused = store.create("used", "ann", None)[0], store.create("unused", "ann", None)[0]
    database = Database(tmp_path / "state" / DATABASE, 1)
    with database.transaction():
        database.put_token_use(used.id, TokenUse(datetime(2026, 11, 22, 9, 59, 59, tzinfo=UTC).timestamp()))
    rows = {row[0]: row[7] for row in map(str.split, run("token", "list", "--config", config).stdout.splitlines())}
    database.close()
    assert rows == {used.id: "2026-11-22T09Z", unused.id: "-"}


def test_tokens_are_listed_though_nobody_can_read_when_they_were_used(config: Path, tmp_path: Path) -> None:
    TokenStore(tmp_path / "state").create("laptop", "ann", None)
    (tmp_path / "state" / DATABASE).write_text("junk")
    listed = run("token", "list", "--config", config)
    assert (listed.exit_code, listed.stderr) == (0, "")
    assert listed.stdout.split()[7:] == ["-", "laptop"]


@pytest.mark.parametrize("command", [["token", "create", "--label", "x"], ["share", "s1"]], ids=["create", "share"])
@pytest.mark.parametrize("text", ["2", "0s", "20000d", "", "soon"])
def test_a_time_that_is_none_makes_no_token(config: Path, tmp_path: Path, command: list[str], text: str) -> None:
    refused = run(*command, "--config", config, "--expires", text)
    assert refused.exit_code == 2
    assert refused.stdout == ""
    assert "Invalid value for '--expires'" in refused.stderr
    assert not (tmp_path / "state").exists()


def test_the_roles_are_those_that_a_token_may_have() -> None:
    (choice,) = (option.type for option in create_token.params if option.name == "role")
    assert isinstance(choice, click.Choice)
    assert tuple(choice.choices) == get_args(Role)


@pytest.mark.parametrize(
    ("flags", "role"), [([], "controller"), (["--observe"], "observer")], ids=["controller", "observer"]
)
def test_a_shared_sessions_token_is_a_guests_and_lives_for_a_day(
    config: Path, tmp_path: Path, flags: list[str], role: str
) -> None:
    shared = run("share", "s1", "--config", config, *flags)
    assert shared.exit_code == 0
    (token,) = TokenStore(tmp_path / "state").tokens()
    assert (token.session, token.role, token.agents) == ("s1", role, None)
    assert minutes_of(token) == 24 * 60
    assert TokenStore(tmp_path / "state").authenticate(shared.stdout.strip()) == token


def test_a_shared_sessions_token_may_have_a_label_and_live_until_it_is_revoked(config: Path, tmp_path: Path) -> None:
    shared = run("share", "s1", "--expires", "never", "--label", "Bob", "--config", config)
    (token,) = TokenStore(tmp_path / "state").tokens()
    assert (token.label, token.expires) == ("Bob", None)
    assert "never expires" in shared.stderr


def test_a_session_that_no_id_can_be_is_not_shared(config: Path) -> None:
    refused = run("share", "two\nlines", "--config", config)
    assert refused.exit_code == 2
    assert refused.stdout == ""
    assert len(refused.stderr.splitlines()) == 1


def test_the_help_says_for_how_long_a_session_is_shared() -> None:
    assert "24h" in run("share", "--help").output


def minutes_of(token: Token) -> int:
    """For how long it lets people in. Whole ones, as the store rounds up to a second."""
    assert token.expires is not None
    return (datetime.fromisoformat(token.expires) - datetime.fromisoformat(token.created)) // timedelta(minutes=1)


def test_a_token_for_an_agent_that_is_not_there_is_refused_with_a_suggestion(config: Path) -> None:
    refused = run("token", "create", "--config", config, "--label", "x", "--agent", "dmeo")
    assert refused.exit_code == 2
    assert 'did you mean "demo"?' in refused.stderr


def test_revoking_what_is_not_there_names_the_command_that_lists_tokens(config: Path) -> None:
    refused = run("token", "revoke", "00000000", "--config", config)
    assert refused.exit_code == 2
    assert "token list" in refused.stderr
