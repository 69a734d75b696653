"""The runners: programs that end, write too much, cannot be started, or start no agent."""

import sys
from pathlib import Path

import pytest
import trio

from acp_conformance.client_runner import FILE, User, run_client_scenarios
from acp_conformance.client_script import CLIENT_SCENARIOS, SCENARIOS
from acp_conformance.dialogue import Dialogue
from acp_conformance.runner import LINE_COST, LineSplitter, RunLimits, Tail, run_scenarios
from acp_gateway.errors import AgentError, ConfigError

ONLY_INITIALIZE = [scenario for scenario in SCENARIOS if scenario.name == "initialize"]


async def run_agent(code: str, cwd: Path, limits: RunLimits | None = None) -> Dialogue:
    command = [sys.executable, "-I", "-S", "-c", code]
    limits = limits or RunLimits(timeout=60.0, exit_timeout=60.0)
    return (await run_scenarios(command, ONLY_INITIALIZE, str(cwd), limits=limits))["initialize"]


async def test_a_program_that_ends_leaves_its_exit_code_and_the_end_of_its_stderr(tmp_path: Path) -> None:
    code = "import sys; sys.stderr.write('x' * 100 + 'no key'); sys.exit(3)"
    dialogue = await run_agent(code, tmp_path, RunLimits(timeout=60.0, exit_timeout=60.0, stderr_size=10))
    assert (dialogue.ending, dialogue.exit_code, dialogue.stderr) == ("ended", 3, "xxxxno key")
    assert dialogue.waiting_for == "the response to initialize"


async def test_output_beyond_the_limit_ends_the_dialogue(tmp_path: Path) -> None:
    code = "while True: print('x' * 1000)"
    dialogue = await run_agent(code, tmp_path, RunLimits(output_size=100_000, exit_timeout=0.01))
    assert dialogue.ending == "overflow"
    assert sum(len(line.text) for line in dialogue.lines) < 300_000


async def test_a_last_line_without_its_newline_counts(tmp_path: Path) -> None:
    dialogue = await run_agent("import sys; sys.stdout.write('a\\nb')", tmp_path)
    assert [line.text for line in dialogue.of(outgoing=False)] == [b"a", b"b"]


async def test_a_program_that_is_not_there_raises_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="no-such-agent cannot be started"):
        await run_scenarios(["no-such-agent"], ONLY_INITIALIZE, str(tmp_path))


async def test_a_dialogue_has_the_messages_of_both_sides_in_order(tmp_path: Path) -> None:
    dialogue = await run_agent('input(); print(\'{"id": 0, "result": {}}\'); input()', tmp_path)
    assert [(line.outgoing, line.kind) for line in dialogue.lines] == [(True, "request"), (False, "response")]
    assert dialogue.ending == "finished"


TEXT = [scenario for scenario in CLIENT_SCENARIOS if scenario.name == "agent-text"]

INITIALIZE = """b'{"id":0,"method":"initialize","params":{}}\\n'"""

START = "import os, subprocess, sys; run = lambda text, *rest: subprocess.run([sys.argv[1], *rest], input=text); "


async def run_client(
    code: str, cwd: Path, *words: str, user: User | None = None, limits: RunLimits | None = None
) -> Dialogue:
    command = [sys.executable, "-I", "-S", "-c", START + code, *(words or ("{agent}",))]
    dialogues = await run_client_scenarios(
        command, TEXT, cwd=str(cwd), user=user, limits=limits or RunLimits(20.0, exit_timeout=20.0, reaction=0.0)
    )
    return dialogues["agent-text"]


async def test_a_client_that_starts_no_agent_is_told_how(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match=r"put \{agent\} into its command, .* \$ACP_AGENT_COMMAND; stderr: no key"):
        await run_client("sys.exit('no key')", tmp_path, limits=RunLimits(20.0, exit_timeout=0.1))


async def test_a_client_that_is_not_there_raises_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="no-such-client cannot be started"):
        await run_client_scenarios(["no-such-client"], TEXT, cwd=str(tmp_path))


async def test_the_agent_is_in_the_environment_as_well(tmp_path: Path) -> None:
    dialogue = await run_client("subprocess.run([os.environ['ACP_AGENT_COMMAND']], input=b'hello')", tmp_path, "none")
    assert [line.text for line in dialogue.lines] == [b"hello"]


async def test_the_longest_of_several_dialogues_counts(tmp_path: Path) -> None:
    dialogue = await run_client("run(b'', '--version'); run(b'a\\nb\\n'); run(b'c\\n'); sys.exit(3)", tmp_path)
    assert [line.text for line in dialogue.lines] == [b"a", b"b"]
    assert (dialogue.ending, dialogue.exit_code, dialogue.waiting_for) == ("ended", 3, "initialize or session/new")
    assert dialogue.exited
    assert dialogue.released


async def test_the_last_words_to_an_agent_that_is_killed_are_read(tmp_path: Path) -> None:
    code = f"child = subprocess.Popen([sys.argv[1]], stdin=-1, stdout=-1); child.stdin.write({INITIALIZE}); "
    code += (
        "child.stdin.flush(); child.stdout.readline(); child.stdin.write(b'last\\n'); child.stdin.flush(); child.kill()"
    )
    assert (await run_client(code, tmp_path)).lines[-1].text == b"last"


async def test_too_much_output_ends_the_dialogue(tmp_path: Path) -> None:
    dialogue = await run_client("run(b'x\\n' * 50_000)", tmp_path, limits=RunLimits(20.0, 20.0, output_size=70_000))
    assert dialogue.ending == "overflow"


async def test_a_client_that_gives_its_agent_up_and_stays_has_closed_the_stdin(tmp_path: Path) -> None:
    code = "run(b'x\\n'); sys.stdin.read()"
    dialogue = await run_client(code, tmp_path, limits=RunLimits(20.0, exit_timeout=0.2))
    assert (dialogue.ending, dialogue.lines[0].text) == ("closed", b"x")


async def test_the_prompt_is_in_the_command_where_it_has_a_place_and_else_on_stdin(tmp_path: Path) -> None:
    opened = """b'{"id":1,"method":"session/new","params":{}}\\n'"""
    code = f"child = subprocess.Popen([sys.argv[1]], stdin=-1); child.stdin.write({opened}); child.stdin.flush(); "
    by_line = await run_client(
        code + "child.stdin.write(sys.stdin.buffer.readline())", tmp_path, user=User(prompt="hi")
    )
    assert (by_line.lines[-1].text, by_line.actions) == (b"hi", frozenset({"prompt"}))
    words = ("{agent}", "says {prompt}")
    by_word = await run_client(
        code + "child.stdin.write(sys.argv[2].encode())", tmp_path, *words, user=User(prompt="hi")
    )
    assert (by_word.lines[-1].text, by_word.actions) == (b"says hi", frozenset())


async def test_a_file_of_the_user_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("mine")
    with pytest.raises(ConfigError, match="is there already"):
        await run_client("", tmp_path)
    assert (tmp_path / FILE).read_text() == "mine"


def test_lines_are_split_wherever_the_pieces_end_and_count_as_more_than_their_bytes() -> None:
    splitter = LineSplitter(100)
    assert [splitter.feed(piece) for piece in (b"a\r", b"\nb\n\n \nc", b"", b"")] == [[], [b"a", b"b"], [b"c"], []]
    splitter = LineSplitter(3 + LINE_COST)
    splitter.feed(b"ab\n")
    assert not splitter.overflow
    splitter.feed(b"c")
    assert splitter.overflow


async def test_the_end_of_a_stream_is_kept_and_no_more() -> None:
    for size, kept in ((3, "efg"), (0, ""), (100, "abcdefg")):
        ours, theirs = trio.testing.memory_stream_one_way_pair()
        await ours.send_all(b"abcd")
        await ours.send_all(b"efg")
        await ours.aclose()
        tail = Tail(size)
        await tail.read(theirs)
        assert tail.text == kept
