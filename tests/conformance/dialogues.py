"""Dialogues for the tests of judges, written as messages."""

import json
from importlib.resources import files
from typing import Any

from acp_gateway.conformance.dialogue import Dialogue, Line


def out(seconds: float = 0.0, **members: Any) -> Line:
    return Line(True, json.dumps({"jsonrpc": "2.0", **members}).encode(), seconds)


def into(seconds: float = 0.0, **members: Any) -> Line:
    return Line(False, json.dumps({"jsonrpc": "2.0", **members}).encode(), seconds)


def dialogue(*lines: Line, **members: Any) -> Dialogue:
    return Dialogue(lines, **members)


def fixture_names() -> list[str]:
    """Return the names of the bundled fixtures, without their suffix."""
    folder = files("acp_gateway.conformance") / "fixtures"
    return sorted(path.name.removesuffix(".jsonl") for path in folder.iterdir() if path.name.endswith(".jsonl"))
