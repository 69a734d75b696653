"""Rules for the regular expressions of the program."""

import ast
import subprocess
import sys
from collections.abc import Iterator, Sequence

# The only parser of the syntax.
from re import _constants as code  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, Final

import pytest

IMPORT_ALL: Final = """
import importlib, pkgutil, re
compile, patterns = re._compiler.compile, set()

def record(pattern, flags=0):
    if isinstance(pattern, (str, bytes)):
        patterns.add((pattern, int(flags)))
    return compile(pattern, flags)

re._compiler.compile = record
for package in ("acp_gateway", "acp_conformance"):
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        if not module.name.endswith(".__main__"):
            importlib.import_module(module.name)
print(ascii(patterns))
"""

ONE: Final = (code.LITERAL, code.NOT_LITERAL, code.ANY, code.IN, code.CATEGORY)
REPEATS: Final = (code.MAX_REPEAT, code.MIN_REPEAT, code.POSSESSIVE_REPEAT)

Parsed = Sequence[tuple[Any, Any]]


def misread(pattern: Parsed) -> Iterator[Parsed]:
    """Yield what Python 3.11.0 to 3.11.4 match wrongly: where a round of a possessive repeat fails after it has moved.

    It goes on from where that round failed, not from the end of the last whole one (gh-106052).
    """
    for operator, argument in pattern:
        if operator is code.POSSESSIVE_REPEAT and may_fail_late(argument[2]):
            yield argument[2]
        for part in parts(operator, argument):
            yield from misread(part)


def may_fail_late(body: Parsed) -> bool:
    """Return True if a body has more than single characters and a last `x*`, or is a choice between such bodies."""
    if len(body) == 1 and body[0][0] is code.BRANCH:
        return any(may_fail_late(part) for part in body[0][1][1])
    *others, (operator, argument) = body
    if operator in REPEATS and argument[0] == 0 and len(argument[2]) == 1 and argument[2][0][0] in ONE:
        return any(other not in ONE for other, _ in others)
    return any(other not in ONE for other, _ in body)


def parts(operator: Any, argument: Any) -> Sequence[Parsed]:
    if operator in REPEATS:
        return (argument[2],)
    if operator in (code.ASSERT, code.ASSERT_NOT):
        return (argument[1],)
    if operator is code.BRANCH:
        return tuple(argument[1])
    if operator is code.SUBPATTERN:
        return (argument[3],)
    return (argument,) if operator is code.ATOMIC_GROUP else ()


@pytest.mark.parametrize(
    "pattern", [r"(?:ab?c)*+", r"(?:ba+)?+", r"(?:a(?!b))*+", r"(?:[^x]++|xy)*+", r"(?:(?:a|bc)++d)*+"]
)
def test_the_rule_finds_a_repeat_that_older_versions_misread(pattern: str) -> None:
    assert list(misread(parser.parse(pattern)))


@pytest.mark.parametrize(
    "pattern", [r"(?:ab)*+", r"(?:[^x]|xy)*+", r"(?:\\.[^x]*+)*+", r"[^x]*+(?:ab?c)*", r"(?:a?b++)*"]
)
def test_the_rule_accepts_repeats_that_all_versions_read_alike(pattern: str) -> None:
    assert not list(misread(parser.parse(pattern)))


def test_all_versions_of_python_read_the_patterns_of_the_program_alike() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=True)
    patterns = ast.literal_eval(done.stdout)
    assert len(patterns) > 200
    assert {pattern for pattern, flags in patterns if any(misread(parser.parse(pattern, flags)))} == set()
