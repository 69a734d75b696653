"""Dialogues for the tests of judges, written as messages, and with random faults."""

import json
from collections.abc import Sequence
from importlib.resources import files
from random import Random
from typing import Any

from acp_conformance.dialogue import Dialogue, Line


def out(seconds: float = 0.0, **members: Any) -> Line:
    return Line(True, json.dumps({"jsonrpc": "2.0", **members}).encode(), seconds)


def into(seconds: float = 0.0, **members: Any) -> Line:
    return Line(False, json.dumps({"jsonrpc": "2.0", **members}).encode(), seconds)


def dialogue(*lines: Line, **members: Any) -> Dialogue:
    return Dialogue(lines, **members)


def fixture_names() -> list[str]:
    """Return the names of the bundled fixtures, without their suffix."""
    folder = files("acp_conformance") / "fixtures"
    return sorted(path.name.removesuffix(".jsonl") for path in folder.iterdir() if path.name.endswith(".jsonl"))


_JUNK: tuple[Any, ...] = (None, True, 0, 1.5, -1, 10**30, "", "x", "\ud800", [], {}, [1], {"a": 1}, [[]])


def with_faults(lines: Sequence[Line], seed: int, *, outgoing: bool) -> tuple[Line, ...]:
    """The lines of a dialogue; the program on one side gets some wrong, and some are missing."""
    random, found = Random(seed), []  # noqa: S311 - the same for the same seed.
    for line in lines:
        if line.outgoing is outgoing and line.value is not None and random.random() < 0.5:
            line = Line(outgoing, json.dumps(_spoilt(line.value, random)).encode(), line.seconds)
        if random.random() < 0.95:
            found.append(line)
    return tuple(found)


def _spoilt(value: Any, random: Random) -> Any:
    if random.random() < 0.06:
        return random.choice(_JUNK)
    if isinstance(value, dict):
        return {name: _spoilt(member, random) for name, member in value.items() if random.random() > 0.03}
    return [_spoilt(element, random) for element in value] if isinstance(value, list) else value
