"""The file of rules that people have written."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.errors import ConfigError, UsageError
from acp_gateway.rules.rule import CommandPattern, Rule
from acp_gateway.security.rules_file import MAX_RULES, RULES_PER_IDENTITY, TEXT_SIZE, RulesFile, has_ended


def rule(word: str = "pytest", **parts: Any) -> Rule:
    known: dict[str, Any] = {
        "id": "",
        "decision": "allow",
        "author": "ann",
        "command": CommandPattern((word, "it's a"), True),
    }
    return Rule(**known | parts)


def test_rules_are_kept_in_their_order_under_ids_that_are_not_used_again(tmp_path: Path) -> None:
    rules, other = RulesFile(tmp_path), RulesFile(tmp_path)
    first = rules.add(rule("a", agent="x", workspace="w", identity="ann", project="/p", session="s", until=10**15))
    second = rules.add(rule(command=None, kind="read", path="/p"))
    assert (first.id, second.id) == ("rule-1", "rule-2")
    assert other.rules() == (first, second)
    assert other.remove("rule-2") == second
    assert other.remove("rule-2") is None
    assert rules.rules() == (first,)
    assert rules.add(replace(first, id="")) == first
    assert rules.add(rule("c")).id == "rule-3"
    assert (tmp_path / "rules.json").stat().st_mode & 0o777 == 0o600


def test_rules_that_are_over_make_room_and_others_are_limited_by_identity_and_in_all(tmp_path: Path) -> None:
    now = 0.0
    rules = RulesFile(tmp_path, lambda: now)
    for number in range(RULES_PER_IDENTITY):
        rules.add(rule(f"a{number}", until=1000))
    with pytest.raises(UsageError, match=f"{RULES_PER_IDENTITY} rules of one identity.*rules remove"):
        rules.add(rule("b"))
    now = 1.0
    rules.add(rule("b"))
    assert [str(each.command) for each in rules.rules()] == ["""b 'it'"'"'s a' …"""]
    with pytest.raises(UsageError, match=f"at most {TEXT_SIZE} characters"):
        rules.add(rule("c" * TEXT_SIZE))


@pytest.mark.parametrize(
    ("credential", "ended"),
    [("token a", False), ("token b", True), ("certificate b", False), ("certificate a", True), (None, False)],
)
def test_a_rule_ends_with_the_credential_by_which_it_was_written_and_makes_room_then(
    credential: str | None, ended: bool, tmp_path: Path
) -> None:
    rules = RulesFile(tmp_path)
    written = rules.add(rule(credential=credential))
    assert RulesFile(tmp_path).rules() == (written,)
    assert has_ended(written, {"a"}, {"b": 1}) == ended
    other = rules.add(rule("b"), ended=[written.id])
    assert rules.rules() == (other,)


def test_a_gateway_has_at_most_max_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acp_gateway.security.rules_file.MAX_RULES", 2)
    rules = RulesFile(tmp_path)
    for author in ("a", "b"):
        rules.add(rule(author=author))
    with pytest.raises(UsageError, match="2 rules already"):
        rules.add(rule(author="c"))
    assert MAX_RULES > RULES_PER_IDENTITY


@pytest.mark.parametrize(
    "change",
    [{"command": "git …"}, {"command": "a; b"}, {"decision": "maybe"}, {"host": "*"}, {"author": None}, {"more": 1}],
)
def test_a_file_with_a_wrong_rule_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    RulesFile(tmp_path).add(rule())
    path = tmp_path / "rules.json"
    content = json.loads(path.read_text())
    content["rules"][0] |= change
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="is not a list of rules"):
        RulesFile(tmp_path).rules()
