"""Programs that are taken for agents: what is said against a command, and that nothing is said against a right one."""

import pytest

from acp_gateway.config.agents.known_agents import (
    INTERPRETERS,
    KNOWN,
    PACKAGES,
    SHELLS,
    AcpAgent,
    Adapted,
    advise,
    guess,
)


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        (["opencode"], "opencode is an ACP agent with: opencode acp"),
        (["/usr/local/bin/opencode", "--print-logs"], "opencode is an ACP agent with: opencode acp"),
        (["gemini"], "gemini is an ACP agent with: gemini --acp"),
        (["qwen", "--yolo"], "qwen is an ACP agent with: qwen --acp"),
        (["goose", "session"], "goose is an ACP agent with: goose acp"),
        (["copilot"], "copilot is an ACP agent with: copilot --acp"),
        (["kimi"], "kimi is an ACP agent with: kimi acp"),
        (["cursor-agent"], "cursor-agent is an ACP agent with: cursor-agent acp"),
        (["auggie"], "auggie is an ACP agent with: auggie --acp"),
        (["droid", "acp"], "droid is an ACP agent with: droid exec --output-format acp"),
        (["claude"], "claude does not speak ACP by itself: use claude-agent-acp or claude-code-acp"),
        (["codex", "acp"], "codex does not speak ACP by itself: use codex-acp"),
        (["vibe"], "vibe does not speak ACP by itself: use vibe-acp"),
        (
            ["npx", "-y", "@google/gemini-cli@0.27.3"],
            "gemini is an ACP agent with: npx -y @google/gemini-cli@0.27.3 --acp",
        ),
        (["npx", "opencode-ai@latest"], "opencode is an ACP agent with: npx opencode-ai@latest acp"),
        (["env", "A=1", "opencode"], "opencode is an ACP agent with: opencode acp"),
        (["bash"], "bash is a shell, not an agent"),
        (["/bin/sh", "-i"], "sh is a shell, not an agent"),
        (["python3.12"], "python3.12 is an interpreter, not an agent: name the agent's program behind it"),
        (["node", "-i"], "node is an interpreter, not an agent: name the agent's program behind it"),
    ],
)
def test_the_likely_command_is_named(command: list[str], advice: str) -> None:
    assert advise(command) == advice


@pytest.mark.parametrize(
    "command",
    [
        ["opencode", "acp"],
        ["opencode", "--cwd", "/srv", "acp"],
        ["gemini", "--experimental-acp"],
        ["gemini", "--acp=true"],
        ["kimi", "--acp"],
        ["droid", "exec", "-m", "x", "--output-format", "acp"],
        ["claude-agent-acp"],
        ["codex-acp", "-c", "x=1"],
        ["npx", "-y", "@google/gemini-cli@latest", "--experimental-acp"],
        ["npx", "-y", "@zed-industries/claude-code-acp"],
        ["env", "A=1", "opencode", "acp"],
        ["bash", "-c", "exec opencode acp"],
        ["bash", "agent.sh"],
        ["python3", "agent.py"],
        ["python3", "-m", "agent"],
        ["my-own-agent"],
        ["env"],
        [],
    ],
)
def test_nothing_is_said_against_a_command_that_may_be_right(command: list[str]) -> None:
    assert advise(command) is None


def test_of_a_program_that_is_not_known_there_is_a_question() -> None:
    assert guess(["cat"]) == "is 'cat' an ACP agent, and does it take an argument for that, such as acp or --acp?"
    assert guess(["bash"]) == "bash is a shell, not an agent"


def test_the_table_is_whole() -> None:
    assert set(PACKAGES.values()) <= set(KNOWN)
    assert not set(KNOWN) & (SHELLS | INTERPRETERS)
    for name, known in KNOWN.items():
        if isinstance(known, AcpAgent):
            for arguments in known.arguments:
                assert advise([name, *arguments]) is None
        else:
            assert isinstance(known, Adapted)
            assert [advise([other]) for other in known.by] == [None] * len(known.by)
