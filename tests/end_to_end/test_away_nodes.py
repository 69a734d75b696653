"""Sessions of a node that was killed, at other nodes: read there, adopted, and used again when it is back."""

import shutil

import pytest

from tests.end_to_end.running import run_program
from tests.end_to_end.test_cluster import Cluster, Machine, cluster, until
from tests.end_to_end.test_outages import Editor, Gate, said_in

__all__ = ["cluster"]

pytestmark = pytest.mark.cluster

READ_ONLY = "this is the history of its session as of "


def until_mirrored(cluster: Cluster, name: str, count: int) -> None:
    """Wait until so many messages of a session are in Redis."""
    until(lambda: int(cluster.redis.ask("LLEN", f"{{acp}}:journal:{name}")) >= count)


def until_read_only(editor: Editor) -> str:
    """Wait for the line that says that the session can only be read; return it."""
    return said_in(editor.until(lambda message: READ_ONLY in said_in(message)[1]))[1]


def kill(machine: Machine, *others: Machine) -> None:
    """Kill a node, and wait until others know it."""
    for other in others:
        other.forget_log()
    machine.kill()
    for other in others:
        other.until_logged(f"node {machine.name} is away")


def test_session_of_a_node_that_was_killed_is_read_at_another_one_and_used_when_it_is_back(cluster: Cluster) -> None:
    gpu1, gpu2, _ = cluster
    with Editor(gpu1.gateway, "unix") as editor:
        session = editor.open_session()
        name = f"gpu1/{session}"
        assert editor.talk("before the kill") == "end_turn"
        # The prompt and what the agent has said.
        until_mirrored(cluster, name, 2)
    kill(gpu1, gpu2)
    # It may have been opened since gpu2 was told the sessions last.
    until(lambda: name in gpu2.listed)
    with Editor(gpu2.gateway, "wss", "--attach", name) as late:
        assert late.open_session() == session
        line = until_read_only(late)
        assert late.told == ["before the kill", line]
        assert f"`acp-gateway sessions adopt {name} --on NODE`" in line
        error = late.answer(late.prompt("unread"))["error"]
        assert READ_ONLY in error["message"]
        assert error["data"]["reason"] == "node_away"
        gpu1.start()
        # Before the connection to the mirror has ended, it is refused; with its end, it is cancelled.
        while late.answer(late.prompt("when it is back")).get("result") != {"stopReason": "end_turn"}:
            pass
        late.until_told("when it is back")
    with Editor(gpu2.gateway, "unix", "--attach", name) as later:
        later.open_session()
        later.until_told("when it is back")
        assert later.told[0] == "before the kill"
        assert not any(READ_ONLY in text for text in later.told)


def test_prompt_on_a_node_that_was_killed_ends_as_cancelled_when_its_session_is_adopted(cluster: Cluster) -> None:
    gpu1, gpu2, gpu3 = cluster
    gate = Gate(gpu1.directory / "gate")
    with Editor(gpu3.gateway, "unix", "--agent", "gpu1/memory") as editor:
        name = f"gpu1/{editor.open_session()}"
        prompt = editor.prompt("before the kill", gate.command)
        editor.until_told("before the kill")
        until(lambda: cluster.redis.ask("EXISTS", f"{{acp}}:session:{name}"))
        with Editor(gpu3.gateway, "wss", "--attach", name) as bound:
            bound.open_session()
            waiting = bound.prompt("behind it")
            kill(gpu1, gpu3)
            until(lambda: not cluster.redis.ask("EXISTS", "{acp}:node:gpu1"))
            # The files of the agent are on both machines.
            shutil.copytree(gpu1.directory / "agent", gpu2.directory / "agent", dirs_exist_ok=True)
            run_program("sessions", "adopt", name, "--on", "gpu2", "--config", gpu3.gateway.config)
            assert editor.stop_reason(prompt) == "cancelled"
            assert any("the session lives on gpu2" in text for text in editor.told)
            assert bound.stop_reason(waiting) == "cancelled"
            # Its connection leads to gpu2.
            assert bound.talk("on gpu2") == "end_turn"
            assert len(bound.answers_to(waiting)) == len(editor.answers_to(prompt)) == 1
