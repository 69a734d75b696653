"""Sessions of an editor in git working trees of their own, by the real program, from the first to their removal."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.test_many_machines import many_machines
from tests.end_to_end.test_outages import Editor, Message
from tests.kit.machine import needs_git
from tests.kit.running import AGENTS, WORK, RunningGateway, prepare, run_program, start_gateway

pytestmark = needs_git


@pytest.fixture(scope="module")
def shop() -> Path:
    """A repository with a commit."""
    shop = WORK / "shop"
    user = ("-c", "user.name=ann", "-c", "user.email=ann@example.org")
    for words in (("init", "-q", str(shop)), ("-C", str(shop), "commit", "-q", "--allow-empty", "-m", "first")):
        subprocess.run(["git", *user, *words], check=True)
    return shop


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    directory = tmp_path_factory.mktemp("worktrees")
    (directory / "memory").mkdir()
    command = [sys.executable, str(AGENTS / "remembering_agent.py"), str(directory / "memory")]
    pin = prepare(directory, f"[agents.memory]\ncommand = {json.dumps(command)}\n")
    running = start_gateway(directory, pin)
    try:
        yield running
    finally:
        assert running.stop() == 0, "".join(running.log)


def opened(gateway: RunningGateway) -> list[tuple[str, str]]:
    """Return the sessions that the agent was asked to open: methods and directories."""
    lines = (gateway.directory / "memory/heard").read_text().splitlines()
    heard: list[Message] = [message for message in map(json.loads, lines) if "cwd" in message.get("params", {})]
    return [(message["method"], message["params"]["cwd"]) for message in heard]


def test_an_editor_works_in_worktrees_and_comes_back_to_one(gateway: RunningGateway, shop: Path) -> None:
    with Editor(gateway, "wss", "--worktree", "fix") as editor:
        params = {"cwd": str(shop), "mcpServers": []}
        results = [editor.ask("session/new", params)["result"] for _ in range(2)]
        told = [result["_meta"]["acp-gateway"] for result in results]
        trees = [str(shop / ".worktrees" / name) for name in ("fix", "fix-2")]
        assert told == [{"cwd": tree, "worktree": name} for tree, name in zip(trees, ("fix", "fix-2"), strict=True)]
        editor.session = session = results[0]["sessionId"]
        assert editor.talk("hello") == "end_turn"
        assert opened(gateway) == [("session/new", tree) for tree in trees]
    run_program("agents", "stop", "memory", "--config", gateway.config)
    with Editor(gateway, "wss") as editor:
        # It knows its own folder alone.
        loaded = editor.ask("session/load", {**params, "sessionId": session})
        assert "result" in loaded, loaded
    assert opened(gateway)[-1] == ("session/load", trees[0])
    words = ("sessions", "--config", gateway.config, "--remove-worktree", session)
    assert run_program(*words).strip() == "The worktree is removed."
    assert [path.name for path in (shop / ".worktrees").iterdir()] == ["fix-2"]


@pytest.mark.slow
def test_an_editor_gets_one_at_a_node_through_a_door(tmp_path: Path, shop: Path) -> None:
    with many_machines(tmp_path) as (near, way, _), Editor(near, "wss", "--worktree", "there", via=way) as editor:
        answer = editor.ask("session/new", {"cwd": str(shop), "mcpServers": []})
        told = {"cwd": str(shop / ".worktrees/there"), "worktree": "there"}
        assert answer["result"]["_meta"]["acp-gateway"] == told
