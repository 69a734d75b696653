"""A door that copies, as a program: its cuts, and its death, are cuts of a cable, and the link is the node's."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.end_to_end.test_killed_fronts import Near, near_and_node
from tests.end_to_end.test_outages import Editor, Gate

pytestmark = pytest.mark.slow


def editor_at_node(near: Near) -> Editor:
    """An editor whose shim names the node by the path."""
    urls = {"wss": near.gateway.urls["wss"].replace("/acp", "/nodes/gpu1/acp")}
    return Editor(replace(near.gateway, urls=urls), via=near.way)


def test_a_front_that_is_cut_off_and_killed_in_mid_turn_is_a_pause_and_the_turn_has_its_own_end(tmp_path: Path) -> None:
    gates = [Gate() for _ in range(3)]
    with near_and_node(tmp_path) as near, editor_at_node(near) as editor:
        editor.open_session()
        words = [word for gate in gates for word in (gate.command, f"behind gate {gates.index(gate)}")]
        prompt = editor.prompt("at first", *words)
        editor.until_told("at first")
        waiting = editor.prompt("in the next turn")
        near.way.cut()
        gates[0].open()
        near.way.mend()
        editor.until_told("behind gate 0")
        near.kill()
        gates[1].open()
        near.start()
        editor.until_told("behind gate 1")
        near.kill()
        near.start()
        gates[2].open()
        assert editor.stop_reason(prompt) == "end_turn"
        # It waited at the node.
        assert editor.stop_reason(waiting) == "end_turn"
        assert editor.told == ["at first", *(f"behind gate {number}" for number in range(3)), "in the next turn"]
        assert near.said(editor.session) == editor.told
        assert len(editor.answers_to(prompt)) == 1
        assert "new link" not in editor.log
