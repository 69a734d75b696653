"""The report of checks: rows of a table, JSON, and the XML of JUnit."""

import re
from collections.abc import Sequence
from typing import Any, Final
from xml.sax.saxutils import escape, quoteattr

from acp_conformance.dialogue import Check, Dialogues, Verdict
from acp_gateway.printable import printable

MESSAGE_SIZE: Final = 500
"""Characters of a message that a report shows: the members that matter are mostly among the first."""

HEADS: Final = ("outcome", "level", "check", "section", "rule, or what broke it")

Results = Sequence[tuple[Check, Verdict]]


def judge(checks: Sequence[Check], dialogues: Dialogues) -> list[tuple[Check, Verdict]]:
    """Return the verdict of each check."""
    return [(check, check.run(dialogues)) for check in checks]


def has_failed(results: Results) -> bool:
    """Return True if a check of level MUST has failed."""
    return any(check.level == "MUST" and verdict.outcome == "failed" for check, verdict in results)


def rows(results: Results) -> list[tuple[str, ...]]:
    """Return a row for each check, and one more with the message that shows a failure. Untrusted text is escaped."""
    table: list[tuple[str, ...]] = []
    for check, verdict in results:
        text = printable(verdict.reason) or check.title
        table.append((verdict.outcome, check.level, check.name, check.section, text))
        if verdict.message:
            table.append(("", "", "", verdict.scenario, shown(verdict.message)))
    return table


def summary(results: Results) -> str:
    """Return the numbers of passed, failed and not shown checks in words."""
    failed = [check.level for check, verdict in results if verdict.outcome == "failed"]
    counts = {name: sum(verdict.outcome == name for _, verdict in results) for name in ("passed", "not shown")}
    must, should = failed.count("MUST"), failed.count("SHOULD")
    return f"{counts['passed']} passed, {must} MUST and {should} SHOULD failed, {counts['not shown']} not shown"


def as_json(results: Results) -> list[dict[str, Any]]:
    """Return the results as values of JSON."""
    return [
        {
            "check": check.name,
            "level": check.level,
            "section": check.section,
            "rule": check.title,
            "outcome": verdict.outcome,
            "reason": verdict.reason,
            "scenario": verdict.scenario,
            "message": shown(verdict.message),
        }
        for check, verdict in results
    ]


def as_junit(results: Results, suite: str) -> str:
    """Return the results as JUnit's XML: a failed SHOULD and what was not shown are skipped there."""
    failures = sum(check.level == "MUST" and verdict.outcome == "failed" for check, verdict in results)
    skipped = sum(verdict.outcome != "passed" for _, verdict in results) - failures
    cases = []
    for check, verdict in results:
        element = "failure" if check.level == "MUST" and verdict.outcome == "failed" else "skipped"
        name = f"<testcase classname={quoteattr(suite)} name={quoteattr(check.name)}"
        if verdict.outcome == "passed":
            cases.append(f"  {name}/>\n")
        else:
            why = quoteattr(_xml(f"{check.level}, {check.section}: {printable(verdict.reason)}"))
            cases.append(
                f"  {name}><{element} message={why}>{escape(_xml(shown(verdict.message)))}</{element}></testcase>\n"
            )
    head = f'<testsuite name={quoteattr(suite)} tests="{len(results)}" failures="{failures}" skipped="{skipped}">'
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{head}\n{"".join(cases)}</testsuite>\n'


def shown(message: bytes) -> str:
    """Return the beginning of a message on one line, with what is not printable escaped."""
    # Four bytes at most are a character.
    text = printable(message[: 4 * MESSAGE_SIZE].decode(errors="replace"), MESSAGE_SIZE)
    return (
        text + " …" if len(message) > 4 * MESSAGE_SIZE or len(message.decode(errors="replace")) > MESSAGE_SIZE else text
    )


def _xml(text: str) -> str:
    """Replace what XML can't hold, after escaping."""
    return re.sub("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]", "\ufffd", text)
