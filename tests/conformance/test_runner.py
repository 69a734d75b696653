"""The runner: programs that end, write too much or cannot be started."""

import sys
from pathlib import Path

import pytest

from acp_conformance.client_script import SCENARIOS
from acp_conformance.dialogue import Dialogue
from acp_conformance.processes import RunLimits
from acp_conformance.runner import run_scenarios
from acp_gateway.errors import AgentError

INITIALIZE = [scenario for scenario in SCENARIOS if scenario.name == "initialize"]


async def run(code: str, cwd: Path, limits: RunLimits | None = None) -> Dialogue:
    command = [sys.executable, "-I", "-S", "-c", code]
    return (await run_scenarios(command, INITIALIZE, str(cwd), limits=limits))["initialize"]


async def test_a_program_that_ends_leaves_its_exit_code_and_the_end_of_its_stderr(tmp_path: Path) -> None:
    code = "import sys; sys.stderr.write('x' * 100 + 'no key'); sys.exit(3)"
    dialogue = await run(code, tmp_path, RunLimits(stderr_size=10))
    assert (dialogue.ending, dialogue.exit_code, dialogue.stderr) == ("ended", 3, "xxxxno key")
    assert dialogue.waiting_for == "the response to initialize"


async def test_output_beyond_the_limit_ends_the_dialogue(tmp_path: Path) -> None:
    code = "while True: print('x' * 1000)"
    dialogue = await run(code, tmp_path, RunLimits(output_size=100_000, exit_timeout=0.01))
    assert dialogue.ending == "overflow"
    assert sum(len(line.text) for line in dialogue.lines) < 300_000


async def test_a_last_line_without_its_newline_counts(tmp_path: Path) -> None:
    dialogue = await run("import sys; sys.stdout.write('a\\nb')", tmp_path)
    assert [line.text for line in dialogue.of(outgoing=False)] == [b"a", b"b"]


async def test_a_program_that_is_not_there_raises_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="no-such-agent cannot be started"):
        await run_scenarios(["no-such-agent"], INITIALIZE, str(tmp_path))


async def test_a_dialogue_has_the_messages_of_both_sides_in_order(tmp_path: Path) -> None:
    dialogue = await run('input(); print(\'{"id": 0, "result": {}}\'); input()', tmp_path)
    assert [(line.outgoing, line.kind) for line in dialogue.lines] == [(True, "request"), (False, "response")]
    assert dialogue.ending == "finished"
