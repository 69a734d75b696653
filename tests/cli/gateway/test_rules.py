"""The commands for rules."""

import json
from pathlib import Path

import pytest
import trio

from acp_gateway.client import control
from acp_gateway.client.dialing import Destination
from acp_gateway.rules.rule import CommandPattern, Rule
from acp_gateway.security.rules_file import RulesFile
from acp_gateway.security.token_store import TokenStore
from tests.kit.doubles import run_command as run


@pytest.fixture
def ruled(config: Path, tmp_path: Path) -> Path:
    """A configuration with two rules, and a file with one that ann has written for sessions in /srv."""
    with config.open("a") as file:
        file.write('[[rules]]\ndecision = "deny"\ncommand = "git push …"\n')
        file.write('[[rules]]\ndecision = "allow"\ncommand = "pytest …"\nuntil = 2999-12-31T00:00:00Z\n')
    pattern = CommandPattern(("ls",), True)
    RulesFile(tmp_path / "state").add(
        Rule(id="", decision="allow", author="ann", identity="ann", project="/srv", command=pattern)
    )
    return config


def test_rules_list_has_those_of_the_configuration_first(ruled: Path) -> None:
    assert run("rules", "list", "--config", ruled, "--plain").stdout.splitlines() == [
        "rules[0]  -    -                     deny `git push …`",
        "rules[1]  -    2999-12-31T00:00:00Z  allow `pytest …`",
        "rule-1    ann  -                     allow `ls …` (sessions of ann, sessions in /srv)",
    ]
    listed = json.loads(run("rules", "list", "--config", ruled, "--json").stdout)["rules"]
    assert [(rule["id"], rule["author"], rule["command"]) for rule in listed][1:] == [
        ("rules[1]", None, "pytest …"),
        ("rule-1", "ann", "ls …"),
    ]


def test_a_rule_whose_token_is_revoked_is_over_and_not_tried(ruled: Path, tmp_path: Path) -> None:
    tokens, rules = TokenStore(tmp_path / "state"), RulesFile(tmp_path / "state")
    token = tokens.create("laptop", "ann", None)[0]
    pattern = CommandPattern(("wc",), True)
    written = Rule(id="", decision="allow", author="ann", credential=f"token {token.id}", command=pattern)
    rules.add(written)
    trying = ("rules", "try", "--config", ruled, "--identity", "ann", "wc")
    assert run(*trying).stdout.startswith("allow: by rule-2")
    tokens.revoke(token.id)
    assert run(*trying).stdout == "ask: no rule is for it\n"
    assert run("rules", "list", "--config", ruled, "--plain").stdout.splitlines()[-1].split()[:3] == [
        *("rule-2", "ann", "over")
    ]
    listed = json.loads(run("rules", "list", "--config", ruled, "--json").stdout)["rules"]
    assert [rule["over"] for rule in listed] == [False, False, False, True]


def test_without_rules_the_list_says_that_a_person_is_asked(config: Path) -> None:
    result = run("rules", "list", "--config", config)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "a person is asked each time" in result.stderr


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["pytest", "-q"], "allow: by rules[1], allow `pytest …`"),
        (["pytest -q"], "allow: by rules[1], allow `pytest …`"),
        (["git", "push"], "deny: by rules[0], deny `git push …`"),
        (["git", "-C", ".", "push"], "ask: this may be what is meant by rules[0], deny `git push …`"),
        (["pytest", "--rootdir=/"], "ask: rules[1] does not name --rootdir=/, which may run another program"),
        (["ls"], "ask: no rule is for it"),
        (["--identity", "ann", "--folder", "/srv/a", "ls", "-l"], "allow: by rule-1"),
    ],
)
def test_rules_try_says_what_is_decided(ruled: Path, command: list[str], said: str) -> None:
    options, words = (command[:4], command[4:]) if command[0].startswith("--") else ([], command)
    result = run("rules", "try", "--config", ruled, *options, "--", *words)
    assert result.stdout.startswith(said)


def test_rules_try_can_say_it_as_json_and_reads_a_text_as_a_shell_does(ruled: Path) -> None:
    said = json.loads(run("rules", "try", "--config", ruled, "--json", "pytest; ls").stdout)
    # The first rule denies a command that can't be ruled out.
    assert (said["decision"], said["rule"]["id"]) == ("ask", "rules[0]")
    assert run("rules", "try", "--config", ruled, "--agent", "other", "ls").exit_code == 2


def test_rules_remove_removes_a_written_rule_and_audits_it(ruled: Path, tmp_path: Path) -> None:
    assert run("rules", "remove", "rule-1", "--config", ruled).stdout.startswith("Removed rule-1: allow `ls …`")
    assert RulesFile(tmp_path / "state").rules() == ()
    (entry,) = [json.loads(line) for line in (tmp_path / "state" / "audit.jsonl").read_text().splitlines()]
    assert (entry["event"], entry["rule"], entry["ruleBy"]) == ("rule_removed", "rule-1", "ann")
    assert entry["says"] == "allow `ls …` (sessions of ann, sessions in /srv)"
    refused = run("rules", "remove", "rules[0]", "--config", ruled)
    assert refused.exit_code == 2
    assert "it is in the configuration" in refused.stderr


def test_rules_try_asks_a_gateway_elsewhere_or_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, str]]] = []

    async def request(destination: Destination, method: str, params: dict[str, str], **_: float) -> dict[str, object]:
        await trio.lowlevel.checkpoint()
        asked.append((f"{destination.address} {method}", params))
        return {"decision": "deny", "why": "by rules[0]", "rule": None} if len(asked) < 4 else {"decision": "deny"}

    monkeypatch.setattr(control, "request", request)
    there, command = "ws://127.0.0.1:7", ("git push", "--folder", "/srv")
    assert run("rules", "try", there, *command).stdout == "deny: by rules[0]\n"
    assert json.loads(run("rules", "try", there, *command, "--agent", "demo", "--json").stdout)["rule"] is None
    run("rules", "try", there, *command, "--agent", "gpu/demo")
    params = {"command": "git push", "cwd": "/srv"}
    assert asked == [
        ("ws://127.0.0.1:7/acp rules/try", params),
        ("ws://127.0.0.1:7/acp rules/try", params | {"agentType": "demo"}),
        ("ws://127.0.0.1:7/nodes/gpu/acp rules/try", params | {"agentType": "demo"}),
    ]
    assert "response is not understood" in run("rules", "try", there, *command).stderr
    refused = run("rules", "try", there, *command, "--identity", "ann")
    assert (refused.exit_code, "for the gateway on this machine" in refused.stderr) == (2, True)
    assert "--pin is for a gateway elsewhere" in run("rules", "try", "--pin", "sha256:0", "git push").stderr
    assert "there is no command" in run("rules", "try").stderr
