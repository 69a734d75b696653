"""The commands for tokens: what is made of the options, what is printed where."""

import json
import re
import stat
import sys
from datetime import UTC, datetime, timedelta
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any, get_args

import click
import pytest
from click.testing import CliRunner, Result

from acp_gateway import __version__
from acp_gateway.cli import tokens as tokens
from acp_gateway.cli.main import main
from acp_gateway.cli.tokens import create_token, print_tokens, token_as_json, token_lines
from acp_gateway.client.local import LocalGateway
from acp_gateway.gateway.gateway import DATABASE
from acp_gateway.gateway.storage.database import Database
from acp_gateway.gateway.storage.records import TokenUse
from acp_gateway.nodes.known_nodes import KnownCluster, KnownNode, KnownNodesFile
from acp_gateway.nodes.store import NodeRecord
from acp_gateway.security.token_format import explain_flaw, mint, read_token_file
from acp_gateway.security.token_store import Role, Token, TokenStore
from tests.kit.doubles import remember_session
from tests.kit.doubles import run_command as run


@pytest.fixture
def store(config: Path, tmp_path: Path) -> TokenStore:
    """The tokens of the gateway that `config` is for."""
    return TokenStore(tmp_path / "state")


def name_workspaces(config: Path, *names: str) -> None:
    """Add sections for these to the configuration."""
    with config.open("a") as file:
        for name in names:
            file.write(f'[workspaces.{name}]\nroot = "/srv/{name}"\n')


def audited(tmp_path: Path) -> list[dict[str, Any]]:
    """Return the audit entries without their times."""
    lines = (tmp_path / "state" / "audit.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name != "time"} for line in lines]


def shown(config: Path, token_id: str) -> dict[str, str]:
    """Return the output of `token show`."""
    result = run("token", "show", token_id, "--config", config)
    assert result.exit_code == 0
    return dict(line.split(": ", 1) for line in result.stdout.splitlines())


def assert_refused(result: Result, exit_code: int = 2) -> str:
    """A command said no in one line and made nothing; the line."""
    assert (result.exit_code, result.stdout) == (exit_code, "")
    (line,) = result.stderr.splitlines()
    return line


class Terminal(TextIOWrapper):
    """A stdout that is a terminal."""

    def isatty(self) -> bool:
        return True


# Made and listed


def test_a_new_token_is_printed_alone_on_stdout_and_is_listed_by_its_id(config: Path) -> None:
    created = run("token", "create", "--config", config, "--label", "laptop", "--identity", "ann", "--agent", "demo")
    assert created.exit_code == 0
    secret = created.stdout.strip()
    assert explain_flaw(secret) is None
    assert secret not in created.stderr
    (row,) = run("token", "list", "--plain", "--config", config).stdout.splitlines()
    token_id, identity, role, agents, workspaces, session, _, expires, used, _, label = row.split()
    assert (identity, role, agents, workspaces, session) == ("ann", "controller", "demo", "all", "-")
    assert (expires, used, label) == ("never", "-", "laptop")
    assert secret not in row
    assert run("token", "revoke", token_id, "--config", config).exit_code == 0
    assert run("token", "list", "--plain", "--config", config).stdout == ""


@pytest.mark.parametrize("words", [("create", "--label", "tv"), ("rotate", "ID"), ("revoke", "ID")], ids=lambda w: w[0])
def test_a_running_gateway_that_cannot_read_the_token_is_named_with_its_version(
    words: tuple[str, ...], config: Path, store: TokenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flaw = f"{tmp_path}/state/tokens.json: was written by a newer acp-gateway (version 5 of the file); update this one"
    problems = ["/elsewhere is full", flaw]

    async def status(_: LocalGateway, *, time_limit: float) -> Any:
        return {"version": "0.0.9", "problems": problems}

    token, _ = store.create("laptop", None, None)
    monkeypatch.setattr(LocalGateway, "check_running", lambda _: None)
    monkeypatch.setattr(LocalGateway, "status", status)
    arguments = [token.id if word == "ID" else word for word in words]
    warned = run("token", *arguments, "--config", config)
    assert warned.exit_code == 0
    assert (
        f"warning: the running gateway is 0.0.9 and can't read what this program, {__version__}, has written; it "
        f"refuses all tokens until it is restarted: {flaw}\n"
    ) in warned.stderr
    del problems[1:]
    assert "warning" not in run("token", "create", "--label", "tv", "--config", config).stderr


def test_a_token_may_be_an_observers_for_one_session_and_for_some_time(config: Path, tmp_path: Path) -> None:
    remember_session(tmp_path / "state", "s1")
    options = ["--role", "observer", "--session", "s1", "--expires", "2h"]
    created = run("token", "create", "--config", config, "--label", "tv", *options)
    assert created.exit_code == 0
    (token,) = TokenStore(tmp_path / "state").tokens()
    assert (token.role, token.session, minutes_of(token)) == ("observer", "s1", 120)
    row = run("token", "list", "--plain", "--config", config).stdout.split()
    assert (row[2], row[5], row[7]) == ("observer", "s1", token.expires)
    assert created.stdout.startswith("acpgwg_")


def test_a_token_of_the_role_metrics_is_made_for_all_of_the_gateway(config: Path, tmp_path: Path) -> None:
    options = ["token", "create", "--config", str(config), "--label", "prometheus", "--role", "metrics"]
    assert run(*options).stdout.startswith("acpgwm_")
    assert [token.role for token in TokenStore(tmp_path / "state").tokens()] == ["metrics"]
    remember_session(tmp_path / "state", "s1")
    refused = run(*options, "--session", "s1")
    assert refused.exit_code == 2
    assert "a token of the role metrics opens no session" in refused.stderr


def test_a_token_of_the_role_tunnel_names_nodes_of_the_configuration(config: Path, tmp_path: Path) -> None:
    secret = tmp_path / "gpu2.token"
    secret.touch(0o600)
    with config.open("a") as file:
        file.write(f'[nodes.gpu2]\nurl = "gpu2.example"\ntoken_file = "{secret}"\n')
    options = ["token", "create", "--config", str(config), "--label", "x", "--role", "tunnel", "--node"]
    assert "there is no node 'gpu3'" in run(*options, "gpu3").stderr
    assert run(*options, "gpu2").stdout.startswith("acpgwt_")
    (token,) = TokenStore(tmp_path / "state").tokens()
    assert token.nodes == ("gpu2",)
    assert json.loads(run("token", "list", "--json", "--config", config).stdout)["tokens"][0]["nodes"] == ["gpu2"]
    assert "gpu2" in run("token", "show", token.id, "--config", config).stdout


def test_a_token_that_lets_an_observer_use_ports_says_so(config: Path, tmp_path: Path) -> None:
    run("token", "create", "--config", str(config), "--label", "x", "--role", "observer", "--ports")
    (token,) = TokenStore(tmp_path / "state").tokens()
    assert token.ports
    assert "ports: yes\n" in run("token", "show", token.id, "--config", config).stdout


def test_a_token_for_vscode_is_printed_as_the_url_of_a_listener_for_windows(config: Path, store: TokenStore) -> None:
    options = ["token", "create", "--config", str(config), "--label", "x", "--for", "vscode", "--role", "observer"]
    assert 'no listener is for windows of VS Code: it needs a fixed port, serves = ["ahp"]' in run(*options).stderr
    assert store.tokens() == []
    with config.open("a") as file:
        file.write('[[listen]]\nurl = "ws://127.0.0.1:7444"\nserves = ["ahp"]\n')
    printed = run(*options)
    assert re.fullmatch(r"ws://127\.0\.0\.1:7444/\?tkn=acpgwv_[0-9A-Za-z]{39}\n", printed.stdout)
    assert "give this URL to VS Code" in printed.stderr
    (token,) = store.tokens()
    assert store.authenticate(printed.stdout.rpartition("=")[2].strip()) == token
    assert run("token", "list", "--plain", "--config", config).stdout.split()[2] == "vscode:observer"
    assert shown(config, token.id)["kind"] == "vscode"
    rotated = json.loads(run("token", "rotate", token.id, "--json", "--config", config).stdout)
    assert rotated["url"] == f"ws://127.0.0.1:7444/?tkn={rotated['token']}"
    refused = run("token", "create", "--config", config, "--label", "x", "--for", "vscode", "--may-speak-for", "ann")
    assert "a token for vscode is a person's" in refused.stderr


def test_a_node_that_was_added_is_named_like_one_of_a_section(config: Path, store: TokenStore) -> None:
    store.create("the node box", "node box", None, role="node", nodes=["box"])
    options = ["token", "create", "--config", str(config), "--label", "x"]
    for given in (["--role", "tunnel", "--node", "box"], ["--agent", "box/opencode"], ["--session", "box/7f"]):
        done = run(*options, *given)
        assert done.exit_code == 0, done.stderr
    assert "there is no agent 'box2/opencode'" in run(*options, "--agent", "box2/opencode").stderr
    assert 'no session "box2/7f"' in run(*options, "--session", "box2/7f").stderr


def test_a_token_for_some_workspaces_is_listed_with_them(config: Path, store: TokenStore) -> None:
    name_workspaces(config, "proj", "docs", "secret")
    created = run("token", "create", "--config", config, "--label", "x", "--workspace", "proj", "--workspace", "docs")
    assert created.exit_code == 0
    (token,) = store.tokens()
    assert token.workspaces == ("proj", "docs")
    assert run("token", "list", "--plain", "--config", config).stdout.split()[4] == "proj,docs"


def test_a_token_that_was_emptied_by_hand_is_listed_as_good_for_nothing(config: Path, store: TokenStore) -> None:
    token, _ = store.create("laptop", "ann", ["demo"], workspaces=["proj"])
    file = config.parent / "state" / "tokens.json"
    content = json.loads(file.read_bytes())
    content["tokens"][0] |= {"agents": [], "workspaces": []}
    file.write_text(json.dumps(content))
    assert run("token", "list", "--plain", "--config", config).stdout.split()[3:5] == ["none", "none"]
    assert shown(config, token.id)["workspaces"] == "none"


def test_what_a_terminal_obeys_is_not_shown_of_what_was_written_by_hand(config: Path, store: TokenStore) -> None:
    token, _ = store.create("laptop", "ann", None)
    file = config.parent / "state" / "tokens.json"
    content = json.loads(file.read_bytes())
    content["tokens"][0] |= {"label": "\x1b[2Jx\nanother row", "identity": "\u202enna", "agents": ["\x9b2J"]}
    file.write_text(json.dumps(content))
    for command, lines in (["list", "--plain"], 1), (["show", token.id], 16), (["revoke", token.id], 1):
        printed = run("token", *command, "--config", config).stdout
        assert len(printed.splitlines()) == lines
        assert printed.replace("\n", "").isprintable()


def test_token_list_has_heads_and_no_colour_where_none_is_wanted(
    config: Path, store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("laptop", "ann", None)
    monkeypatch.setenv("NO_COLOR", "1")
    written = BytesIO()
    monkeypatch.setattr(sys, "stdout", Terminal(written, encoding="ascii"))
    main(["token", "list", "--config", str(config)], standalone_mode=False)
    sys.stdout.flush()
    assert re.split("  +", written.getvalue().decode().splitlines()[0]) == [
        *("ID", "IDENTITY", "ROLE", "AGENTS", "WORKSPACES", "SESSION"),
        *("CREATED", "EXPIRES", "LAST USED", "SPEAKS FOR", "LABEL"),
    ]


def test_token_list_as_json_has_tokens_and_browsers(config: Path, store: TokenStore) -> None:
    token, _ = store.create("laptop", "ann", ["demo"], lifetime=3600)
    listed = json.loads(run("token", "list", "--json", "--config", config).stdout)
    assert listed == {
        "tokens": [
            {
                "id": token.id,
                "kind": token.kind,
                "label": "laptop",
                "identity": "ann",
                "role": "controller",
                "agents": ["demo"],
                "workspaces": None,
                "session": None,
                "may_speak_for": [],
                "nodes": [],
                "files": False,
                "ports": False,
                "local": False,
                "created": token.created,
                "rotated": None,
                "expires": token.expires,
                "expired": False,
                "last_used": None,
            }
        ],
        "browsers": [],
    }
    assert json.loads(run("token", "show", token.id, "--json", "--config", config).stdout) == listed["tokens"][0]


def test_a_new_token_as_json_is_an_object_with_its_id(config: Path) -> None:
    created = json.loads(
        run("token", "create", "--label", "x", "--identity", "ann", "--json", "--config", config).stdout
    )
    assert created.keys() == {"id", "identity", "expires", "token"}
    assert (created["identity"], created["expires"]) == ("ann", None)
    rotated = json.loads(run("token", "rotate", created["id"], "--json", "--config", config).stdout)
    assert rotated.keys() == {*created, "formerUntil"}
    assert rotated["id"] == created["id"]
    assert rotated["token"] != created["token"]
    assert explain_flaw(rotated["token"]) is None


def test_token_list_as_json_is_json_without_any_token(config: Path) -> None:
    assert json.loads(run("token", "list", "--json", "--config", config).stdout) == {"tokens": [], "browsers": []}


def test_a_token_may_be_for_an_agent_of_a_node_and_for_none_of_another_name(config: Path, store: TokenStore) -> None:
    with config.open("a") as file:
        file.write('[nodes.gpu]\nurl = "gpu.example"\ntoken_file = "gpu.token"\n')
    assert run("token", "create", "--config", config, "--label", "phone", "--agent", "gpu/opencode").exit_code == 0
    assert store.tokens()[-1].agents == ("gpu/opencode",)
    result = run("token", "create", "--config", config, "--label", "phone", "--agent", "cpu/opencode")
    assert "there is no agent 'cpu/opencode'" in assert_refused(result)


def test_a_token_may_be_for_an_agent_of_the_cluster(config: Path, store: TokenStore) -> None:
    with config.open("a") as file:
        file.write('[cluster]\nurl = "redis://127.0.0.1"\nname = "gpu1"\ntoken_file = "cluster.token"\n')
    assert run("token", "create", "--config", config, "--label", "phone", "--agent", "gpu2/opencode").exit_code == 0
    assert store.tokens()[-1].agents == ("gpu2/opencode",)
    result = run("token", "create", "--config", config, "--label", "phone", "--agent", "gpu2/open code")
    assert "there is no agent 'gpu2/open code'" in assert_refused(result)


def test_a_workspace_that_is_not_there_is_refused_with_a_suggestion(config: Path, tmp_path: Path) -> None:
    name_workspaces(config, "proj")
    refused = run("token", "create", "--config", config, "--label", "x", "--workspace", "prjo")
    assert "there is no workspace 'prjo' in the configuration; did you mean \"proj\"?" in assert_refused(refused)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("name", ["proj", "default", "demo"])
def test_the_workspace_of_a_configuration_without_any_cannot_be_named(config: Path, tmp_path: Path, name: str) -> None:
    refused = run("token", "create", "--config", config, "--label", "x", "--workspace", name)
    assert "leave --workspace out, or write such a section" in assert_refused(refused)
    assert not (tmp_path / "state").exists()


def test_a_token_whose_time_is_over_is_listed_as_expired(config: Path, tmp_path: Path) -> None:
    TokenStore(tmp_path / "state", lambda: 0.0).create("old", "ann", None, lifetime=60)
    assert run("token", "list", "--plain", "--config", config).stdout.split()[7] == "expired"


def test_a_token_that_was_used_is_listed_with_the_hour(config: Path, tmp_path: Path) -> None:
    store = TokenStore(tmp_path / "state")
    used, unused = store.create("used", "ann", None)[0], store.create("unused", "ann", None)[0]
    database = Database(tmp_path / "state" / DATABASE, 1)
    with database.transaction():
        database.put_token_use(used.id, TokenUse(datetime(2026, 11, 22, 9, 59, 59, tzinfo=UTC).timestamp()))
    rows = {
        row[0]: row[8]
        for row in map(str.split, run("token", "list", "--plain", "--config", config).stdout.splitlines())
    }
    assert rows == {used.id: "2026-11-22T09Z", unused.id: "-"}
    assert (shown(config, used.id)["last used"], shown(config, unused.id)["last used"]) == ("2026-11-22T09Z", "-")
    database.close()


def test_token_list_works_without_times_of_last_use_where_the_database_is_unreadable(
    config: Path, tmp_path: Path
) -> None:
    TokenStore(tmp_path / "state").create("laptop", "ann", None)
    (tmp_path / "state" / DATABASE).write_text("junk")
    listed = run("token", "list", "--plain", "--config", config)
    assert (listed.exit_code, listed.stderr) == (0, "")
    assert listed.stdout.split()[8:] == ["-", "-", "laptop"]


@pytest.mark.parametrize(
    "command", [["token", "create", "--label", "x"], ["share", "s1", "--token"]], ids=["create", "share"]
)
@pytest.mark.parametrize("text", ["2", "0s", "20000d", "", "soon"])
def test_a_malformed_time_makes_no_token(config: Path, tmp_path: Path, command: list[str], text: str) -> None:
    refused = run(*command, "--config", config, "--expires", text)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "Invalid value for '--expires'" in refused.stderr
    assert not (tmp_path / "state").exists()


def test_a_token_for_a_session_that_there_is_not_is_not_made(config: Path, tmp_path: Path) -> None:
    remember_session(tmp_path / "state", "s1")
    line = assert_refused(run("token", "create", "--config", config, "--label", "x", "--session", "s12"))
    assert 'no session "s12"; did you mean "s1"?' in line
    assert TokenStore(tmp_path / "state").tokens() == []


def test_the_roles_are_those_that_a_token_may_have_but_that_of_nodes_add() -> None:
    (choice,) = (option.type for option in create_token.params if option.name == "role")
    assert isinstance(choice, click.Choice)
    assert (*choice.choices, "node") == get_args(Role)


# Shown


def test_everything_that_is_known_of_a_token_is_shown_a_line_each(config: Path, tmp_path: Path) -> None:
    store = TokenStore(tmp_path / "state", lambda: 0.0)
    options: dict[str, Any] = {"role": "observer", "session": "s 1", "workspaces": ["proj"], "lifetime": 60}
    token, _ = store.create("Ann's TV: the big one", "ann", ["demo", "goose"], **options)
    store.rotate(token.id)
    assert list(shown(config, token.id).items()) == [
        ("id", token.id),
        ("kind", "guest"),
        ("label", "Ann's TV: the big one"),
        ("identity", "ann"),
        ("role", "observer"),
        ("agents", "demo,goose"),
        ("workspaces", "proj"),
        ("session", "s 1"),
        ("may speak for", "-"),
        ("nodes", "-"),
        ("files", "-"),
        ("ports", "-"),
        ("created", "1970-01-01T00:00:00Z"),
        ("rotated", "1970-01-01T00:00:01Z"),
        ("expires", "1970-01-01T00:01:00Z (expired)"),
        ("last used", "-"),
    ]


def test_what_a_token_does_not_restrict_is_shown_as_all_and_never(config: Path, store: TokenStore) -> None:
    token, _ = store.create("laptop", "ann", None)
    lines = shown(config, token.id)
    assert (lines["kind"], lines["role"], lines["agents"], lines["workspaces"]) == (*["controller"] * 2, *["all"] * 2)
    assert (lines["session"], lines["rotated"], lines["expires"]) == ("-", "-", "never")


def test_a_token_that_expires_in_future_is_shown_with_the_end_alone(config: Path, store: TokenStore) -> None:
    token, _ = store.create("laptop", "ann", None, lifetime=3600)
    assert shown(config, token.id)["expires"] == token.expires


def test_a_rotated_token_has_a_grace_in_which_the_new_one_is_saved(config: Path, store: TokenStore) -> None:
    token, old = store.create("laptop", "ann", None)
    rotated = run("token", "rotate", token.id, "--config", config)
    entry = store.find(token.id)
    assert f"the old one is worthless after {entry.former_until}. " in rotated.stderr
    assert store.authenticate(old).id == store.authenticate(rotated.stdout.strip()).id == token.id


def test_a_grace_is_a_duration_or_none(config: Path, store: TokenStore) -> None:
    refused = run("token", "rotate", store.create("laptop", "ann", None)[0].id, "--config", config, "--grace", "soon")
    assert refused.exit_code == 2
    assert "or none" in refused.stderr


def test_a_rotated_token_is_printed_alone_on_stdout_and_the_old_one_is_worthless(
    config: Path, store: TokenStore
) -> None:
    token, old = store.create("laptop", "ann", None)
    rotated = run("token", "rotate", token.id, "--config", config, "--grace", "none")
    assert rotated.exit_code == 0
    secret = rotated.stdout.strip()
    assert explain_flaw(secret) is None
    assert len(rotated.stderr.splitlines()) == 1
    assert f"Token {token.id} for ann, never expires; the old one is worthless now." in rotated.stderr
    assert (store.identify(old), store.authenticate(secret).id) == (None, token.id)


def test_rotating_keeps_the_end_unless_it_is_given_another(config: Path, tmp_path: Path) -> None:
    store = TokenStore(tmp_path / "state")
    token, _ = store.create("laptop", "ann", None, lifetime=3600)
    kept = run("token", "rotate", token.id, "--config", config)
    assert store.find(token.id).expires == token.expires
    assert f"expires {token.expires}" in kept.stderr
    run("token", "rotate", token.id, "--config", config, "--expires", "2h")
    assert minutes_of(store.find(token.id)) >= 120
    run("token", "rotate", token.id, "--config", config, "--expires", "never")
    assert store.find(token.id).expires is None


def test_an_expired_token_is_rotated_with_a_new_end_only(config: Path, tmp_path: Path) -> None:
    token, _ = TokenStore(tmp_path / "state", lambda: 0.0).create("old", "ann", None, lifetime=60)
    assert "give it a new end with --expires" in assert_refused(run("token", "rotate", token.id, "--config", config))
    rotated = run("token", "rotate", token.id, "--config", config, "--expires", "1h")
    assert TokenStore(tmp_path / "state").authenticate(rotated.stdout.strip()).id == token.id


@pytest.mark.parametrize("text", ["2", "0s", "20000d", "", "soon", "as before"])
def test_a_malformed_time_rotates_no_token(config: Path, store: TokenStore, text: str) -> None:
    token, secret = store.create("laptop", "ann", None)
    refused = run("token", "rotate", token.id, "--config", config, "--expires", text)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "Invalid value for '--expires'" in refused.stderr
    assert store.authenticate(secret) == token


# Of all commands


@pytest.mark.parametrize("command", ["show", "rotate", "revoke"])
def test_an_id_that_is_not_there_is_refused_with_the_command_that_shows_the_ids(config: Path, command: str) -> None:
    assert "`acp-gateway token list`" in assert_refused(run("token", command, "00000000", "--config", config))


@pytest.mark.parametrize("command", ["show", "rotate", "revoke"])
def test_a_token_in_the_place_of_its_id_is_never_printed(config: Path, store: TokenStore, command: str) -> None:
    _, secret = store.create("laptop", "ann", None)
    for text in (secret, secret[:-1], mint("guest")):
        assert text not in assert_refused(run("token", command, text, "--config", config))
    assert store.identify(secret) is not None


def test_neither_digest_nor_secret_is_in_anything_that_is_printed_later(config: Path, tmp_path: Path) -> None:
    remember_session(tmp_path / "state", "s1")
    created = run("token", "create", "--config", config, "--label", "x")
    store = TokenStore(tmp_path / "state")
    (token,) = store.tokens()
    rotated = run("token", "rotate", token.id, "--config", config)
    known = [created, rotated, run("share", "s1", "--token", "--config", config)]
    secrets = [result.stdout.strip() for result in known]
    digests = [token.sha256, *(each.sha256 for each in store.tokens())]
    ids = [each.id for each in store.tokens()]
    later = [run("token", "list", "--plain", "--config", config)]
    later += [run("token", "show", each, "--config", config) for each in ids]
    later += [run("token", "revoke", each, "--config", config) for each in ids]
    assert {result.exit_code for result in known + later} == {0}
    printed = "".join(result.output for result in later) + "".join(result.stderr for result in known)
    printed += (tmp_path / "state" / "audit.jsonl").read_text()
    assert [text for text in secrets + digests if text in printed] == []


def test_the_audit_says_what_happened_to_a_token(config: Path, tmp_path: Path) -> None:
    run("token", "create", "--config", config, "--label", "laptop", "--identity", "ann")
    (token,) = TokenStore(tmp_path / "state").tokens()
    run("token", "rotate", token.id, "--config", config)
    run("token", "revoke", token.id, "--config", config)
    about = {"id": token.id, "label": "laptop", "identity": "ann"}
    events = ["token_created", "token_rotated", "token_revoked"]
    assert audited(tmp_path) == [{"event": event} | about for event in events]


def test_the_audit_says_that_a_session_was_shared(config: Path, tmp_path: Path) -> None:
    remember_session(tmp_path / "state", "s1")
    run("share", "s1", "--token", "--label", "Bob", "--config", config)
    (token,) = TokenStore(tmp_path / "state").tokens()
    assert audited(tmp_path) == [{"event": "token_created", "id": token.id, "label": "Bob", "identity": token.identity}]


def test_the_audit_says_nothing_of_what_was_refused(config: Path, store: TokenStore, tmp_path: Path) -> None:
    store.create("laptop", "ann", None)
    for command in ("rotate", "revoke"):
        assert_refused(run("token", command, "00000000", "--config", config))
    assert not (tmp_path / "state" / "audit.jsonl").exists()


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


UP = {"name": "gpu2", "confirmed": True, "since": None, "why": None}
AWAY = {"name": "gpu3", "confirmed": False, "since": "2026-11-24T12:03:00Z", "why": "refused"}


@pytest.fixture
def member(config: Path, tmp_path: Path) -> Path:
    """The configuration of a node of a cluster."""
    with config.open("a") as file:
        file.write('[cluster]\nurl = "redis://127.0.0.1"\nname = "gpu1"\ntoken_file = "t"\n')
    return config


@pytest.fixture
def cluster_store(tmp_path: Path) -> TokenStore:
    return TokenStore(tmp_path / "state")


def answer(monkeypatch: pytest.MonkeyPatch, *nodes: dict[str, Any]) -> list[str]:
    """Let a gateway run that answers so; the ids that it is asked for."""
    asked: list[str] = []

    async def confirm(_: LocalGateway, token_id: str, *, time_limit: float) -> dict[str, Any]:
        assert time_limit > 2
        asked.append(token_id)
        return {"nodes": [*nodes]}

    monkeypatch.setattr(LocalGateway, "check_running", lambda _: None)
    monkeypatch.setattr(LocalGateway, "confirm", confirm)
    return asked


def test_revoke_that_all_nodes_have_confirmed_says_so(
    member: Path, cluster_store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answer(monkeypatch, UP)
    token, _ = cluster_store.create("laptop", "ann", None)
    revoked = run("token", "revoke", token.id, "--config", member)
    assert (revoked.exit_code, asked) == (0, [token.id])
    assert revoked.stdout.splitlines() == [f"Revoked {token.id} (laptop).", "Confirmed by gpu2."]


def test_revoke_names_the_nodes_that_have_not_confirmed_and_when_they_will_refuse(
    member: Path, cluster_store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, UP, AWAY)
    token, _ = cluster_store.create("laptop", "ann", None)
    revoked = run("token", "revoke", token.id, "--config", member)
    assert revoked.exit_code == 6
    (line,) = revoked.stdout.splitlines()[1:]
    assert line == (
        "gpu3 has not confirmed: away since 2026-11-24T12:03:00Z: refused; it refuses the token when it is back, or "
        "when it has heard of no node for 3600 s (cluster.isolation_limit)"
    )
    assert cluster_store.tokens() == []


def test_revoke_and_rotate_tell_the_nodes_as_json(
    member: Path, cluster_store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, UP, AWAY)
    token, _ = cluster_store.create("laptop", "ann", None)
    rotated = run("token", "rotate", token.id, "--json", "--config", member)
    assert rotated.exit_code == 0
    assert json.loads(rotated.stdout)["nodes"] == [UP, AWAY]
    revoked = run("token", "revoke", token.id, "--json", "--config", member)
    assert revoked.exit_code == 6
    assert json.loads(revoked.stdout) == {"revoked": "token", "id": token.id, "label": "laptop", "nodes": [UP, AWAY]}


def test_rotate_prints_the_token_alone_on_stdout_and_names_nodes_on_stderr(
    member: Path, cluster_store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, AWAY)
    token, _ = cluster_store.create("laptop", "ann", None)
    rotated = run("token", "rotate", token.id, "--config", member)
    assert rotated.exit_code == 0
    assert cluster_store.authenticate(rotated.stdout.strip()).id == token.id
    assert "gpu3 has not confirmed" in rotated.stderr


async def test_nothing_is_confirmed_while_the_gateway_here_does_not_run(
    member: Path, cluster_store: TokenStore, tmp_path: Path
) -> None:
    record = NodeRecord(name="gpu2", url="wss://gpu2", boot="")
    await KnownNodesFile(tmp_path / "state").write(KnownCluster((KnownNode(record, 0.0),)))
    token, _ = cluster_store.create("laptop", "ann", None)
    revoked = run("token", "revoke", token.id, "--config", member)
    assert revoked.exit_code == 6
    assert "gpu2 has not confirmed: no gateway runs on" in revoked.stdout
    assert "the other nodes are told when the gateway here runs" in revoked.stderr


def test_token_that_counts_here_only_asks_no_node(
    member: Path, cluster_store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answer(monkeypatch, AWAY)
    token, _ = cluster_store.create("laptop", "ann", None, local=True)
    revoked = run("token", "revoke", token.id, "--json", "--config", member)
    assert (revoked.exit_code, asked) == (0, [])
    assert "nodes" not in json.loads(revoked.stdout)


def test_token_without_a_cluster_asks_no_node(
    config: Path, cluster_store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answer(monkeypatch, AWAY)
    token, _ = cluster_store.create("laptop", "ann", None)
    assert run("token", "revoke", token.id, "--config", config).exit_code == 0
    assert asked == []


def test_may_speak_for_is_shown_in_the_list_in_json_and_in_the_details(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = TokenStore(tmp_path)
    speaker, _ = store.create("door", "me", None, may_speak_for=["alice", "bob", "alice"])
    other, _ = store.create("laptop", "me", None)
    assert token_as_json(speaker, store, {})["may_speak_for"] == ["alice", "bob"]
    assert token_lines(speaker, store, {})["may speak for"] == "alice,bob"
    assert token_as_json(other, store, {})["may_speak_for"] == []
    assert token_lines(other, store, {})["may speak for"] == "-"
    print_tokens(store, [speaker, other], tmp_path)
    rows = [row.split() for row in capsys.readouterr().out.splitlines() if "controller" in row]
    assert [row[-2] for row in rows] == ["alice,bob", "-"]


def test_token_cluster_prints_another_token_each_time() -> None:
    printed = [CliRunner().invoke(main, ["token", "cluster"]).output.strip() for _ in range(2)]
    assert [explain_flaw(text) for text in printed] == [None, None]
    assert printed[0] != printed[1]


def test_token_cluster_output_is_a_new_file_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "cluster.token"
    assert CliRunner().invoke(main, ["token", "cluster", "--output", str(file)]).output == ""
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    secret = read_token_file(file)
    assert CliRunner().invoke(main, ["token", "cluster", "--output", str(file)]).exit_code != 0
    assert read_token_file(file) == secret


def test_token_cluster_output_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    assert CliRunner().invoke(main, ["token", "cluster", "--output", str(tmp_path / "none" / "t")]).exit_code != 0
