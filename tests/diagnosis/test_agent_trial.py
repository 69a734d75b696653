"""An agent that is run once: its answers, and what its fence refuses."""

import sys
from pathlib import Path

import pytest

from acp_gateway.config.load import AgentSection, WorkspaceSection
from acp_gateway.diagnosis.agent_trial import try_agent
from acp_gateway.fence import bubblewrap, landlock
from tests.kit.doubles import make_config, python

REACHING = Path(__file__).parent.parent / "agents" / "reaching_agent.py"

COMPLAINS = (
    "import sys\nprint(\"Error: EACCES: permission denied, open '{path}'\", file=sys.stderr, flush=True)\n"
    "sys.argv[1:] or exec({agent!r})"
)


async def trial(tmp_path: Path, *command: str, fence: str = "on") -> list[str]:
    (tmp_path / "work").mkdir()
    section = AgentSection(command=command, fence=fence)  # type: ignore[arg-type]
    config = make_config(tmp_path / "state", agents={"a": section})
    object.__setattr__(config, "workspaces", {"work": WorkspaceSection(root=tmp_path / "work")})
    return [str(line) for line in await try_agent("a", section, config, {"PATH": "/usr/bin:/bin"}, tmp_path)]


async def test_an_agent_that_answers_is_named_with_its_fence(tmp_path: Path) -> None:
    (line,) = await trial(tmp_path, sys.executable, str(REACHING), fence="off")
    assert line.endswith("a, without a fence, answers initialize and answers session/new")


async def test_an_agent_that_does_not_answer_is_a_fault_with_its_last_lines(tmp_path: Path) -> None:
    lines = await trial(tmp_path, *python("import sys; sys.exit('no key')"), fence="off")
    assert "does not answer initialize" in lines[0]
    assert "no key" in lines[0]


@pytest.mark.skipif(landlock.abi() == 0 and bubblewrap.find() is None, reason="there is no fence here")
async def test_what_a_fence_refuses_is_a_line_for_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    lines = await trial(tmp_path, *python(COMPLAINS.format(path=tmp_path / "file", agent=REACHING.read_text())))
    assert "answers initialize" in lines[0]
    assert f'readable = ["{tmp_path}/file"]' in lines[1]
