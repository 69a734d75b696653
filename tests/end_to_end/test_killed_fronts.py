"""A gateway in front of a node is killed in a turn, as programs: the turn goes on at the node, and nothing is lost.

The agent's own file of the session is what each editor has to be told, each update once and in order.
"""

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.end_to_end.switch import Switch
from tests.end_to_end.test_many_machines import front, node, way_to
from tests.end_to_end.test_outages import Editor, Gate
from tests.kit.running import WORK, RunningGateway, start_gateway, until

pytestmark = pytest.mark.slow

MANY = [f"update {number}" for number in range(40)]
LATER = [f"later {number}" for number in range(40)]


class Near:
    """A near, and the node behind it."""

    def __init__(self, gateway: RunningGateway, way: Switch, far: RunningGateway) -> None:
        self.gateway = gateway
        self.way = way
        self.far = far
        self._again: RunningGateway | None = None

    def kill(self) -> None:
        """Kill it."""
        now = self._again or self.gateway
        now.process.send_signal(signal.SIGKILL)
        now.process.wait(60)
        if self._again is not None:
            self._again.stop()

    def start(self) -> None:
        """Start it again at the same port."""
        self._again = start_gateway(self.gateway.directory, self.gateway.pin)

    def stop(self) -> None:
        """Stop what was started again."""
        if self._again is not None:
            assert self._again.stop() == 0
            assert "Traceback" not in "".join(self._again.log)

    def shows_turn(self, session: str) -> bool:
        """True if its list shows a turn of a session."""
        return has_turn(self._again or self.gateway, f"gpu1/{session}")

    def said(self, session: str) -> list[str]:
        """The texts that the agent has said in a session, by its own file."""
        updates = map(json.loads, (self.far.directory / "sessions" / f"{session}.session").read_text().splitlines())
        return [update["content"]["text"] for update in updates if update["sessionUpdate"] == "agent_message_chunk"]


@contextmanager
def near_and_node(tmp_path: Path) -> Iterator[Near]:
    """A door with one node."""
    with ExitStack() as stack:
        far = stack.enter_context(node(tmp_path / "gpu1"))
        gateway = stack.enter_context(front(tmp_path / "front", {"gpu1": (far, stack.enter_context(way_to(far)))}))
        near = Near(gateway, stack.enter_context(way_to(gateway)), far)
        stack.callback(near.stop)
        yield near


def has_turn(gateway: RunningGateway, session: str) -> bool:
    """Return whether a gateway lists a session with a turn."""
    return any(entry["turn"] for entry in gateway.sessions() if entry["sessionId"] == session)


def ended(editor: Editor, near: Near, prompt: int, *more: str) -> None:
    """Check that a prompt has the end of its turn, and that the next turn has nothing of it."""
    assert editor.stop_reason(prompt) == "end_turn"
    editor.until_told(near.said(editor.session)[-1])
    before = list(editor.told)
    assert editor.talk("in the next turn", *more) == "end_turn"
    assert editor.told[len(before) :] == ["in the next turn", *more]
    assert editor.told == near.said(editor.session)
    assert len(editor.answers_to(prompt)) == 1


# What the agent says before the kill, and how much of it the editor has seen.
@pytest.mark.parametrize(
    ("before", "seen"),
    [([], None), (MANY, "update 0"), (MANY, "update 17"), (MANY, "update 39")],
    ids=["at once", "first", "middle", "all"],
)
def test_a_turn_goes_on_when_the_front_is_killed(tmp_path: Path, before: list[str], seen: str | None) -> None:
    gates = [Gate(), Gate()]
    with near_and_node(tmp_path) as near, Editor(near.gateway, via=near.way) as editor:
        editor.open_session()
        assert editor.talk("a former turn") == "end_turn"
        prompt = editor.prompt("begins", *before, gates[0].command, *LATER, gates[1].command, "ends")
        editor.until_told(seen or "begins")
        near.kill()
        gates[0].open()
        near.start()
        editor.until_told("later 39")
        # The list does not wait for the node.
        until(lambda: near.shows_turn(editor.session))
        gates[1].open()
        ended(editor, near, prompt)


def test_two_editors_and_an_observer_see_the_same(tmp_path: Path) -> None:
    gate = Gate()
    with near_and_node(tmp_path) as near, ExitStack() as stack:
        editor = stack.enter_context(Editor(near.gateway, via=near.way))
        editor.open_session()
        attach = ("--attach", f"gpu1/{editor.session}")
        others = [
            stack.enter_context(Editor(near.gateway, "wss", *attach, *more, via=near.way))
            for more in ((), ("--observe",))
        ]
        for other in others:
            assert other.open_session() == editor.session
        prompt = editor.prompt("begins", *MANY, gate.command, "ends")
        others[0].until_told("update 11")
        # It waits at the node.
        waiting = others[0].prompt("in the turn behind")
        known = {"cwd": str(WORK), "mcpServers": [], "sessionId": editor.session}
        # The node answers this one by itself: it has the one before.
        assert "result" in others[0].ask("session/resume", known)
        near.kill()
        gate.open()
        near.start()
        assert others[0].stop_reason(waiting) == "end_turn"
        ended(editor, near, prompt)
        for other in others:
            other.until_told("in the next turn")
            assert other.told == near.said(editor.session)


def test_a_permission_is_decided_once_after_the_restart(tmp_path: Path) -> None:
    with near_and_node(tmp_path) as near, Editor(near.gateway, via=near.way) as editor:
        editor.open_session()
        prompt = editor.prompt("begins", "ask", "ends")
        first = editor.asked()["id"]
        near.kill()
        near.start()
        # It is open as before, under its id.
        editor.send(id=first, result={"outcome": {"outcome": "selected", "optionId": "yes"}})
        ended(editor, near, prompt)
        assert editor.told[:3] == ["begins", "yes", "ends"]
