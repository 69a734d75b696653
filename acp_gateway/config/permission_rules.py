"""Reads `[[rules]]`: what permission requests are decided by before a person is asked."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, ClassVar, get_args

from acp_gateway.config.schema import AbsolutePath, AgentName, Entry, Text, choice, read_section
from acp_gateway.errors import ConfigError
from acp_gateway.rules.rule import KINDS, BadRule, CommandPattern, Decision, Rule


def read_pattern(entry: Entry) -> CommandPattern:
    """Read the words of a command. Raises `ConfigError`."""
    if not isinstance(entry.value, str):
        raise entry.expected('a command, such as "pytest …"')
    try:
        return CommandPattern.parse(entry.value)
    except BadRule as flaw:
        raise entry.error(str(flaw)) from None


def read_end(entry: Entry) -> int:
    """Read a date and time, local without an offset; return milliseconds since 1970. Raises `ConfigError`."""
    if not isinstance(entry.value, datetime):
        raise entry.expected("a date and time without quotes, such as 2030-12-31T18:00:00")
    return int(entry.value.timestamp() * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSection:
    """`[[rules]]`: a decision on the permission requests that it is for, in place of a person."""

    EXAMPLE: ClassVar = 'decision = "allow" and command = "pytest …"'

    decision: Annotated[Decision, choice(*get_args(Decision))]
    """The decision of the first rule that is for a request: `"allow"` or `"deny"`, for this once, or `"ask"`, which
    asks a person whatever follows."""

    command: Annotated[CommandPattern, read_pattern] | None = None
    """The words of the command, as a shell reads them; `…` or `...` at the end stands for any further words that run no
    other program."""

    path: AbsolutePath | None = None
    """The folder that all files are in, or below, that the request names."""

    host: Text | None = None
    """The host of the address to fetch; `*.example.org` is every name below that one."""

    kind: Annotated[str, choice(*KINDS)] | None = None
    """The kind of the tool, as the agent tells it: `"read"`, `"edit"`, `"delete"`, `"move"`, `"search"`, `"execute"`,
    `"think"`, `"fetch"`, `"switch_mode"` or `"other"`."""

    agent: AgentName | None = None
    """The agent that asks, else any."""

    workspace: Text | None = None
    """The workspace of the session, else any."""

    identity: Text | None = None
    """The owner of the session, else any."""

    until: Annotated[int, read_end] | None = None
    """The date and time at which the rule ends."""


def read_rules(entry: Entry, problems: list[ConfigError]) -> tuple[Rule, ...]:
    """Read the rules in their order; what is wrong with them is added to `problems`."""
    if not isinstance(entry.value, list):
        problems.append(
            entry.error(f"the header of a rule has two brackets: [[rules]], and below it {RuleSection.EXAMPLE}")
        )
        return ()
    found = []
    for index, element in enumerate(entry.array("sections")):
        section = read_section(RuleSection, element, problems)
        if section is None:
            continue
        path = None if section.path is None else str(section.path)
        try:
            rule = Rule(
                id=f"rules[{index}]",
                decision=section.decision,
                command=section.command,
                path=path,
                host=section.host,
                kind=section.kind,
                agent=section.agent,
                workspace=section.workspace,
                identity=section.identity,
                until=section.until,
            )
        except BadRule as flaw:
            problems.append(element.error(str(flaw)))
        else:
            found.append(rule)
    return tuple(found)
