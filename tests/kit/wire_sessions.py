"""Sessions as a gateway tells them in `session/list` with `all`, made from what `sessions --json` prints of them."""

from collections.abc import Iterable, Mapping
from typing import Any


def on_the_wire(row: Mapping[str, Any]) -> dict[str, Any]:
    """A session as a gateway tells it; other members stay."""
    renamed = {"sessionId": "id", "agent": "agentType"}
    return {renamed.get(name, name): value for name, value in row.items()}


def listed(rows: Iterable[Mapping[str, Any]], **besides: object) -> dict[str, Any]:
    """The result that has these sessions, the oldest first, and what a gateway says besides."""
    return {"sessions": [on_the_wire(row) for row in rows][::-1]} | besides
