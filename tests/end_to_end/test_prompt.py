"""`acp-gateway prompt` as a script runs it: answers, questions, signals and readers that leave."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.playing import ask, editor, playing_gateway, said, tool
from tests.end_to_end.test_outages import Gate
from tests.kit.running import ENVIRONMENT, PROGRAM, WORK, RunningGateway

GATE = Gate()

PLAYS = {
    "work": [said("I look."), tool("t1", title="Read tests", status="completed"), said("All "), said("is well.")],
    "ask": [ask("t2", "Edit shop.py"), said(" It is done.")],
    "wait": [said("I begin."), {"gate": GATE.path}, said(" I go on.")],
    "fail": [{"exit": 3}],
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with playing_gateway(tmp_path_factory.mktemp("gateway"), PLAYS) as running:
        yield running


def command(gateway: RunningGateway, *arguments: str | Path) -> list[str]:
    place = [gateway.urls["wss"], "--pin", gateway.pin, "--token-file", gateway.token_file]
    return [*PROGRAM, "prompt", *map(str, place), *map(str, arguments)]


def prompt(gateway: RunningGateway, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
    """Run the command to its end; return its exit code and what it has written."""
    done = subprocess.run(
        command(gateway, *arguments), env=ENVIRONMENT, cwd=WORK, input=stdin, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


def begin(gateway: RunningGateway, *arguments: str) -> subprocess.Popen[str]:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command(gateway, *arguments), env=ENVIRONMENT, cwd=WORK, **pipes)


def line_with(process: subprocess.Popen[str], words: str) -> str:
    """Read the errors of a command up to a line with these words."""
    assert process.stderr is not None
    return next(line for line in process.stderr if words in line)


def test_a_prompt_is_left_to_the_gateway_and_the_next_one_gets_the_last_message(gateway: RunningGateway) -> None:
    code, session, errors = prompt(gateway, "first")
    assert (code, errors) == (0, "")
    assert prompt(gateway, "--session", session.strip(), "-", "--wait", stdin="work\n") == (0, "All is well.\n", "")
    code, answer, errors = prompt(gateway, "work", "--wait")
    assert (code, answer) == (0, "All is well.\n")
    assert errors.startswith("acp-gateway: session play-")


def test_json_has_a_line_for_each_event_and_the_result_at_the_end(gateway: RunningGateway) -> None:
    code, written, _ = prompt(gateway, "work", "--wait", "--json")
    lines = list(map(json.loads, written.splitlines()))
    kinds = [line["type"] for line in lines if line["type"] != "update" or "content" in line["update"]]
    assert kinds == ["opened", "turn_started", "update", "update", "update", "answered", "result"]
    session = lines[0]["sessionId"]
    result = {"type": "result", "sessionId": session, "exitCode": 0, "stopReason": "end_turn", "answer": "All is well."}
    assert (code, lines[-1]) == (0, result)


def test_a_question_is_answered_by_a_person_elsewhere(gateway: RunningGateway) -> None:
    with begin(gateway, "ask", "--wait") as process:
        session = line_with(process, "session play-").split()[-1]
        assert f" {session}` shows the question" in line_with(process, "the agent asks: Edit shop.py")
        with editor(gateway) as person:
            person.call("session/load", sessionId=session, cwd=str(WORK), mcpServers=[])
            request = person.hears("session/request_permission")
            person.respond(request["id"], outcome={"outcome": "selected", "optionId": "yes"})
            assert "has decided: Allow" in line_with(process, "decided")
            assert process.communicate(timeout=60)[0].endswith("It is done.\n")
            assert process.returncode == 0


def test_a_turn_that_fails_has_its_exit_code(gateway: RunningGateway) -> None:
    code, answer, errors = prompt(gateway, "fail", "--wait")
    assert (code, answer) == (8, "")
    assert "the turn has failed: the agent play ended with exit code 3" in errors


def test_a_prompt_for_later_waits_at_the_gateway_and_one_without_a_time_is_refused(gateway: RunningGateway) -> None:
    code, session, errors = prompt(gateway, "work", "--at", "in 30 d")
    assert (code, session[:5]) == (0, "play-")
    assert errors.startswith("acp-gateway: it is to be sent at 2")
    code, answer, errors = prompt(gateway, "work", "--at", "limit")
    assert (code, answer) == (4, "")
    assert "the prompt was refused: " in errors


def test_ctrl_c_ends_the_wait_and_not_the_turn(gateway: RunningGateway) -> None:
    with begin(gateway, "wait", "--wait", "--json") as process:
        session = line_with(process, "session play-").split()[-1]
        assert process.stdout is not None
        # Before, the gateway may not have the prompt.
        assert any('"turn_started"' in line for line in process.stdout)
        with editor(gateway) as other:
            other.call("session/load", sessionId=session, cwd=str(WORK), mcpServers=[])
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 130
            assert f"no longer waiting: the prompt stays in session {session}, and the agent goes on" in errors
            GATE.open()
            while other.hears("session/update")["params"]["update"].get("content", {}).get("text") != " I go on.":
                pass


def test_a_reader_that_leaves_ends_the_command(gateway: RunningGateway) -> None:
    with begin(gateway, "work", "--wait", "--json") as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(timeout=60) == 141
