"""Heat of files: how present each file is to an agent, as a function of time, context and turns.

A file is hot (1.0) while it is in the agent's context, and cools once it has left it: by a factor for each tenth of a
second. It leaves the context after some turns without access, or when the context was compacted. Times are in
milliseconds since 1970. Nothing runs between two events: the heat is computed when it is asked for.
"""

from dataclasses import dataclass
from typing import Any, Final

from acp_gateway.dialects.tap.files import Action, Touch

STEP: Final = 100
"""Milliseconds in which a file that is out of context cools once."""

FACTOR: Final = 0.95
"""Heat that is left after each step."""

COLD: Final = 0.01
"""Heat below which a file is removed: after nine seconds."""

COMPACTION: Final = 0.5
"""Part of the tokens before an update to which the context has fallen if it was compacted."""

_STEPS: Final = next(steps for steps in range(1000) if FACTOR**steps < COLD)


@dataclass(slots=True)
class Node:
    """A file."""

    path: str
    last_action: Action
    turn: int
    """Turn of the last access."""
    time: int
    """Time of the last access."""
    left: int | None = None
    """When it has left the context; None while it is in it."""

    def heat(self, now: int) -> float:
        """Return the heat at a time, from 0 to 1."""
        return 1.0 if self.left is None else FACTOR ** min(max(now - self.left, 0) // STEP, _STEPS)

    def describe(self, now: int) -> dict[str, Any]:
        """Return the file as members of an object."""
        return {
            "path": self.path,
            "heat": round(self.heat(now), 4),
            "in_context": self.left is None,
            "last_action": self.last_action,
            "turn_accessed": self.turn,
            "timestamp_ms": self.time,
        }


class HeatMap:
    """The files of one session.

    Args:
        files: maximum number of files; beyond it, the one that was unused for longest is removed.
        context_turns: turns without access after which a file leaves the context.
        turn: number of the present turn, from 1; 0 before the first.
    """

    def __init__(self, files: int, context_turns: int, turn: int = 0) -> None:
        self._files = files
        self._context_turns = context_turns
        self._used: int | None = None
        # The one that was accessed last is last.
        self._nodes: dict[str, Node] = {}
        # Those of them that are out of context.
        self._left: dict[str, Node] = {}
        self.turn = turn
        """Number of the present turn."""
        self.changed: set[str] = set()
        """Paths that were accessed, have cooled or were removed since this was cleared."""

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def cools(self) -> bool:
        """True while a file is out of context."""
        return bool(self._left)

    def touch(self, touch: Touch, time: int) -> None:
        """Note an access."""
        self._nodes.pop(touch.path, None)
        self._left.pop(touch.path, None)
        self._nodes[touch.path] = Node(touch.path, touch.action, self.turn, time)
        self.changed.add(touch.path)
        if len(self._nodes) > self._files:
            self._remove(next(iter(self._nodes)))

    def begin_turn(self, time: int) -> None:
        """Begin the next turn."""
        self.turn += 1
        self._leave(time, until=self.turn - self._context_turns)

    def use(self, used: int, time: int) -> None:
        """Note how many tokens the context has."""
        if self._used is not None and used <= self._used * COMPACTION and used < self._used:
            self._leave(time, until=self.turn + 1)
        self._used = used

    def cool(self, now: int) -> None:
        """Note that files out of context have cooled, and remove those that are cold."""
        for node in list(self._left.values()):
            self.changed.add(node.path)
            if node.heat(now) < COLD:
                self._remove(node.path)

    def clear(self) -> None:
        """Remove all files."""
        for path in list(self._nodes):
            self._remove(path)

    def nodes(self, now: int) -> dict[str, dict[str, Any]]:
        """Return all files as members of objects, by path."""
        return {path: node.describe(now) for path, node in self._nodes.items()}

    def changes(self, now: int) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the changed files as members of objects, and the paths of those that were removed."""
        paths = sorted(self.changed)
        there = [self._nodes[path].describe(now) for path in paths if path in self._nodes]
        return there, [path for path in paths if path not in self._nodes]

    def _leave(self, time: int, until: int) -> None:
        """Let the files leave the context that were accessed in a turn before this one."""
        for node in self._nodes.values():
            if node.left is None and node.turn < until:
                node.left = time
                self._left[node.path] = node
                self.changed.add(node.path)

    def _remove(self, path: str) -> None:
        del self._nodes[path]
        self._left.pop(path, None)
        self.changed.add(path)
