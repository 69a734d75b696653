"""Agents of others that store no session before its first prompt: an editor that was opened keeps its own."""

from pathlib import Path

import pytest

from tests.end_to_end.test_fences import Editor
from tests.interop.real_agents import real_agent
from tests.kit.running import run_program

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("program", ["claude-agent-acp", "gemini", "qwen"])
def test_a_session_without_a_prompt_outlives_the_process_of_its_agent(program: str, tmp_path: Path) -> None:
    with real_agent(program, tmp_path) as gateway:
        editor = Editor(gateway.connect_command("tcp"))
        try:
            session = editor.open(tmp_path / "work")["sessionId"]
            run_program("agents", "stop", "a", "--config", gateway.directory / "config.toml")
            prompt = {"sessionId": session, "prompt": [{"type": "text", "text": "say: here"}]}
            answer = editor.request("session/prompt", prompt)
            assert answer.get("stopReason") == "end_turn", answer
            assert any('"here"' in line for line in editor.told)
        finally:
            editor.close()
