"""The section "Start" of the README, word for word, by two accounts: from nothing to an answer in the editor."""

import json
import re
import subprocess
import time
from typing import Any

import pytest

from tests.interop.two_accounts import ROOT, Account, give_checkout, install_as_pipx, read_until, two_accounts

pytestmark = pytest.mark.interop

MOST_COMMANDS = 9
"""Maximum of commands to type, on both machines together, to get an answer of the agent."""


def commands_of_the_readme() -> list[list[str]]:
    """Return the lines of each block of commands in the section, without their comments."""
    section = (ROOT / "README.md").read_text().partition("\n## Start\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"(?:^    .+\n)+", section, re.MULTILINE)
    return [[line.partition("#")[0].strip() for line in block.splitlines()] for block in blocks]


class Editor:
    """An editor with the settings of Zed: it starts the agent in them, and speaks with it."""

    def __init__(self, account: Account) -> None:
        settings = json.loads((account.home / ".config" / "zed" / "settings.json").read_text())
        ((_, agent),) = settings["agent_servers"].items()
        command = " ".join([agent["command"], *agent["args"]])
        self.process = account.start(command, variables=agent["env"], stderr=subprocess.DEVNULL)

    def ask(self, number: int, method: str, params: dict[str, Any]) -> tuple[Any, str]:
        """Return the result of a request, and the text that the agent has said before it."""
        assert self.process.stdin is not None
        request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        said = ""
        while True:
            message = json.loads(read_until(self.process, "").strip())
            if message.get("method") == "session/update":
                update = message["params"]["update"]
                said += update["content"]["text"] if update["sessionUpdate"] == "agent_message_chunk" else ""
            elif message.get("method") == "session/request_permission":
                outcome = {"outcome": "selected", "optionId": message["params"]["options"][0]["optionId"]}
                answer = {"jsonrpc": "2.0", "id": message["id"], "result": {"outcome": outcome}}
                self.process.stdin.write(json.dumps(answer) + "\n")
                self.process.stdin.flush()
            elif message.get("id") == number:
                return message["result"], said


def test_the_readme_leads_from_nothing_to_an_answer_without_a_file_written_by_hand(
    capsys: pytest.CaptureFixture[str],
) -> None:
    install, on_box, on_laptop = commands_of_the_readme()
    assert install == ["git clone URL acp-gateway && cd acp-gateway", "pipx install ."]
    assert on_box[0] == "cd /srv/proj"
    with two_accounts() as machines:
        box, laptop = machines.box, machines.laptop
        for account in (box, laptop):
            install_as_pipx(account, give_checkout(account))
        typed = 2 * len(install)
        began = time.monotonic()

        # An agent that the box has: the name is opencode's, the program is the demo's.
        python, agent = (
            box.home / "environment" / "bin" / "python",
            box.home / "acp-gateway" / "examples" / "demo_agent.py",
        )
        box.write(".local/bin/opencode", f"#!/bin/sh\nexec {python} {agent} --delay 0\n", 0o755)
        project = machines.folder / "proj"
        project.mkdir()
        box.own(project)
        names = {"/srv/proj": str(project), "ann@box": f"{box.name}@box"}

        up = box.start(replaced(on_box[1], names), project)
        read_until(up, "listening on wss")
        typed += len(on_box)

        laptop.run("mkdir -p proj .config/zed")
        for command in on_laptop:
            said = laptop.run_in_terminal(replaced(command, names), "y\n")
            typed += 1
        assert "settings.json" in said

        editor = Editor(laptop)
        editor.ask(0, "initialize", {"protocolVersion": 1, "clientCapabilities": {}})
        session, _ = editor.ask(1, "session/new", {"cwd": str(laptop.home / "proj"), "mcpServers": []})
        prompt = [{"type": "text", "text": "hello"}]
        result, said = editor.ask(2, "session/prompt", {"sessionId": session["sessionId"], "prompt": prompt})
        assert result["stopReason"] == "end_turn"
        assert said
        with capsys.disabled():
            print(f"\n{typed} commands; {time.monotonic() - began:.1f} s without the installation")  # noqa: T201 (what this test is for)
        assert typed <= MOST_COMMANDS


def replaced(command: str, names: dict[str, str]) -> str:
    """Return a command of the README with this machine's names."""
    for name, here in names.items():
        command = command.replace(name, here)
    return command
