"""`[[rules]]` in the configuration."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.errors import ConfigError
from acp_gateway.rules.rule import CommandPattern, Rule
from tests.config.test_options import config_of

MORE = '[workspaces.proj]\nroot = "/srv/proj"\n'


def test_rules_are_read_in_their_order(tmp_path: Path) -> None:
    source = """
[[rules]]
decision = "deny"
command = "git push ..."
agent = "a"
workspace = "proj"
identity = "ann"
until = 2030-12-31T18:00:00Z
[[rules]]
decision = "allow"
kind = "read"
path = "/srv/proj"
[[rules]]
decision = "ask"
"""
    end = int(datetime.fromisoformat("2030-12-31T18:00:00+00:00").timestamp() * 1000)
    push = CommandPattern(("git", "push"), is_open=True)
    parts: dict[str, Any] = {"agent": "a", "workspace": "proj", "identity": "ann", "until": end}
    assert config_of(tmp_path, MORE + source).rules == (
        Rule(id="rules[0]", decision="deny", command=push, **parts),
        Rule(id="rules[1]", decision="allow", kind="read", path="/srv/proj"),
        Rule(id="rules[2]", decision="ask"),
    )
    assert config_of(tmp_path, "").rules == ()


@pytest.mark.parametrize(
    ("source", "key", "why"),
    [
        ('[rules]\ndecision = "deny"', "rules", "two brackets"),
        ('[[rules]]\ncommand = "ls"', "rules[0].decision", "required"),
        ('[[rules]]\ndecision = "alow"\ncommand = "ls"', "rules[0].decision", "allow"),
        ('[[rules]]\ndecision = "allow"', "rules[0]", "needs a command"),
        ('[[rules]]\ndecision = "allow"\ncommand = "git …"', "rules[0]", "name the words"),
        ('[[rules]]\ndecision = "allow"\ncommand = "ls | sh"', "rules[0].command", "one plain command"),
        ('[[rules]]\ndecision = "allow"\ncommand = ["ls"]', "rules[0].command", "expected a command"),
        ('[[rules]]\ndecision = "deny"\nuntil = "18:00"', "rules[0].until", "a date and time without quotes"),
        ('[[rules]]\ndecision = "deny"\nagent = "b"', "rules[0].agent", "there is no"),
        ('[[rules]]\ndecision = "deny"\nworkspace = "prj"', "rules[0].workspace", 'did you mean "proj"'),
        ('[[rules]]\ndecision = "deny"\npath = "srv"', "rules[0].path", "absolute"),
        ('[[rules]]\ndecision = "deny"\nkind = "reed"', "rules[0].kind", "read"),
    ],
)
def test_what_is_wrong_with_a_rule_is_named_with_its_place(source: str, key: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=why) as raised:
        config_of(tmp_path, MORE + source)
    assert raised.value.key == key
