"""Editors in a headless browser: marimo from PyPI, and VS Code with ACP Client or VSCode ACP Chat from a folder.

`make interop EDITORS=FOLDER` names a folder with code-server from npm and the extensions, built as their READMEs say.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.interop.laptops import DEMO, ROOT, TIMEOUT, Laptop, checkout, installed, open_laptop
from tests.kit.free_ports import free_port
from tests.kit.running import AGENTS, prepare, read_fifo, start_gateway

if TYPE_CHECKING:
    from playwright.sync_api import FrameLocator, Locator, Page, ViewportSize

pytestmark = pytest.mark.interop

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")

MARIMO_DIALS = 3017
"""The port that marimo's page dials for Claude Code, whatever the configuration says."""


SIZE: "ViewportSize" = {"width": 1400, "height": 900}


@pytest.fixture
def page() -> "Iterator[Page]":
    sync_api = pytest.importorskip("playwright.sync_api", reason="make interop installs it")
    browser_path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser_path is None:
        pytest.skip("needs a browser: apt-get install chromium-headless-shell")
    with sync_api.sync_playwright() as playwright:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=browser_path, args=options)
        page = browser.new_page(viewport=SIZE)
        page.set_default_timeout(TIMEOUT * 1000)
        yield page
        browser.close()


@contextmanager
def running(laptop: Laptop, command: list[str], ready: str) -> Iterator[None]:
    """Run a server until the block ends. It has said these words before the block begins."""
    with subprocess.Popen(
        command, cwd=laptop.project, env=laptop.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        assert server.stdout is not None
        try:
            assert any(ready in line for line in server.stdout)
            yield
        finally:
            server.terminate()
            # It ends only when what it has written is read.
            server.stdout.read()


NOTEBOOK = """\
import marimo

app = marimo.App()


@app.cell
def _():
    return
"""


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[Laptop]:
    """A laptop whose gateway listens where marimo's page dials, as docs/dialects.md has it, and a notebook."""
    program, port = installed("marimo", "marimo"), free_port()
    box, home, project = tmp_path / "box", tmp_path / "home", tmp_path / "project"
    for folder in (box, home / ".config" / "marimo", project):
        folder.mkdir(parents=True)
    (home / ".config" / "marimo" / "marimo.toml").write_text("[experimental]\nexternal_agents = true\n")
    (project / "notebook.py").write_text(NOTEBOOK)
    listener = (
        f'[[listen]]\nurl = "ws://127.0.0.1:{MARIMO_DIALS}"\nserves = ["acp"]\nlocal_user = true\n'
        f'path = "/message?agent=claude"\nallowed_origins = ["http://localhost:{port}"]\n'
    )
    pin = prepare(box, f'[agents.claude]\ncommand = {DEMO}\n[workspaces.project]\nroot = "{project}"\n{listener}')
    gateway = start_gateway(box, pin)
    try:
        if not any(f":{MARIMO_DIALS}" in line for line in gateway.log):
            gateway.read_log_until(f":{MARIMO_DIALS}")
        laptop = Laptop(home, project, gateway, f"http://localhost:{port}")
        options = ["--headless", "--no-token", "--skip-update-check", "--port", str(port)]
        with running(laptop, [str(program), "edit", *options, "notebook.py"], "URL"):
            yield laptop
    finally:
        assert gateway.stop() == 0


def test_marimo_prompts_and_grants_a_permission(notebook: Laptop, page: "Page") -> None:
    page.goto(notebook.url)
    page.get_by_test_id("backend-status").wait_for()
    page.locator("[data-key=ai]").click()
    # A click without a pointer begins to drag the symbol.
    page.keyboard.press("Escape")
    page.get_by_role("tab", name="Agents").click()
    page.get_by_role("button", name="New session").first.click()
    page.get_by_role("menuitem").filter(has_text="Claude").first.click()
    page.get_by_text("Session ID: demo-").wait_for()
    page.locator("[contenteditable=true]:visible").first.click()
    page.keyboard.type("hello devbox")
    page.keyboard.press("Enter")
    page.get_by_text("You wrote: 'hello devbox'").wait_for()
    page.get_by_role("button", name="Allow").click()
    page.get_by_text("I found").wait_for()


@dataclass(frozen=True)
class Extension:
    """An extension of VS Code."""

    checkout: str
    name: str
    """Name of its folder among the extensions that are installed."""
    build: str
    """Commands that build it."""


ACP_CLIENT = Extension("vscode-acp", "formulahendry.acp-client-0.2.0", "npm install && npx webpack")
ACP_CHAT = Extension("vscode-acp-chat", "fiyqkrc.vscode-acp-chat-2.1.1", "npm install && node esbuild.js --production")


@contextmanager
def open_vscode(laptop: Laptop, extension: Extension = ACP_CLIENT) -> Iterator[Laptop]:
    """Serve VS Code for browsers on a laptop. ACP Client's settings are what `connect --install` has written."""
    server, source = checkout("code-server", extension.checkout)
    entry = server / "node_modules" / "code-server" / "out" / "node" / "entry.js"
    for built, advice in (
        (entry, "npm install --prefix FOLDER/code-server code-server"),
        (source / "dist" / "extension.js", f"{extension.build}, in FOLDER/{extension.checkout}"),
    ):
        if not built.exists():
            pytest.skip(f"{built} is missing: {advice}")
    data = laptop.home / ".config" / "Code"
    settings = data / "User" / "settings.json"
    settings.parent.mkdir(parents=True)
    settings.write_text('{"telemetry.telemetryLevel": "off"}')
    laptop.run("connect", "devbox", "--install", "vscode", "--yes")
    if extension is ACP_CHAT:
        block = json.loads(settings.read_text())["acp.agents"]["devbox"]
        # It starts the agent whose name is the first in the alphabet, and npx makes Claude Code one.
        agents = [{"id": "devbox", "name": "A devbox", **block}]
        settings.write_text(json.dumps({"telemetry.telemetryLevel": "off", "vscode-acp-chat.customAgents": agents}))
    extensions = laptop.home / "extensions"
    shutil.copytree(source, extensions / extension.name, ignore=shutil.ignore_patterns("node_modules", "src", ".git"))
    port = free_port()
    command = [
        *("node", str(entry), "--bind-addr", f"127.0.0.1:{port}", "--auth", "none", "--disable-telemetry"),
        *("--disable-update-check", "--disable-workspace-trust"),
        *("--user-data-dir", str(data), "--extensions-dir", str(extensions)),
    ]
    laptop.url = f"http://127.0.0.1:{port}/?folder={laptop.project}"
    with running(laptop, command, "HTTP server listening"):
        yield laptop


@pytest.fixture
def vscode(tmp_path: Path) -> Iterator[Laptop]:
    with open_laptop(tmp_path) as laptop, open_vscode(laptop):
        yield laptop


def memory(directory: Path) -> AbstractContextManager[Laptop]:
    """Return a laptop for an agent that remembers its sessions."""
    (directory / "sessions").mkdir()
    return open_laptop(
        directory, json.dumps([sys.executable, str(AGENTS / "remembering_agent.py"), str(directory / "sessions")])
    )


@pytest.fixture
def waiting_vscode(tmp_path: Path) -> Iterator[Laptop]:
    """VS Code with an agent that remembers its sessions; see end_to_end/remembering_agent.py for what prompts do."""
    with memory(tmp_path) as laptop, open_vscode(laptop):
        yield laptop


EDITING = [sys.executable, str(ROOT / "tests" / "interop" / "editing_agent.py")]


@contextmanager
def open_mapped_vscode(directory: Path, extension: Extension) -> Iterator[Laptop]:
    """Open VS Code with an agent that edits the laptop's files, and has the project at another path."""
    remote = directory / "remote"
    with (
        open_laptop(directory, json.dumps(EDITING), options="client_fs = true\n", remote=remote) as laptop,
        open_vscode(laptop, extension),
    ):
        (laptop.project / "notes.txt").write_text("red apples\n")
        yield laptop


def open_elsewhere(page: "Page") -> "Page":
    """Return a page of another browser, to which VS Code has nothing to restore."""
    browser = page.context.browser
    assert browser is not None
    other = browser.new_page(viewport=SIZE)
    other.set_default_timeout(TIMEOUT * 1000)
    return other


def find_row(page: "Page", name: str) -> "Locator":
    """Return the row of an agent or of a session, in the extension's list, when it is in sight."""
    row = page.get_by_role("treeitem", name=name).first
    tree = page.locator(".pane-body .monaco-list").first
    ends = time.monotonic() + TIMEOUT
    while not row.count() and time.monotonic() < ends:
        tree.hover()
        page.mouse.wheel(0, 300)
        page.wait_for_timeout(100)
    return row


def open_agents(page: "Page", url: str) -> "FrameLocator":
    """Open VS Code with the extension's list of agents, and return the chat, which is empty before one is started."""
    page.goto(url)
    page.locator(".activitybar .action-item a[aria-label^='ACP']").click()
    return find_chat(page)


def find_chat(page: "Page") -> "FrameLocator":
    """Return the chat beside the list of agents, which is unfolded."""
    folded = page.locator(".pane-header[aria-expanded=false]").filter(has_text="Agents")
    page.locator(".pane-header").filter(has_text="Agents").wait_for()
    if folded.count():
        folded.click()
    return page.frame_locator("iframe.webview.ready[src*=acp-client]").frame_locator("#active-frame")


def start_agent(page: "Page", url: str, name: str = "devbox") -> "FrameLocator":
    """Open VS Code, start the agent in the extension's view, and return the chat."""
    chat = open_agents(page, url)
    agent = find_row(page, f"{name} — ")
    agent.hover()
    agent.locator("a.action-label").first.click()
    return chat


def say(chat: "FrameLocator", words: str) -> None:
    chat.locator("textarea").first.fill(words)
    chat.get_by_role("button", name="Send").click()


def test_vs_code_prompts_and_grants_a_permission(vscode: Laptop, page: "Page") -> None:
    chat = start_agent(page, vscode.url)
    say(chat, "hello devbox")
    page.locator(".quick-input-widget .monaco-list-row").first.wait_for()
    # It is shown before the turn ends, which waits for the permission.
    chat.get_by_text("You wrote: 'hello devbox'").wait_for()
    page.keyboard.press("Enter")
    chat.get_by_text("I found").wait_for()


def test_vs_code_cancels_a_turn_and_goes_on_after_a_restart_of_the_gateway_in_another(
    waiting_vscode: Laptop, page: "Page"
) -> None:
    chat = start_agent(page, waiting_vscode.url)
    say(chat, "wait")
    chat.get_by_role("button", name="Stop").click()
    chat.get_by_role("button", name="Send").wait_for()
    say(chat, "wait")
    chat.get_by_role("button", name="Stop").wait_for()
    waiting_vscode.restart_gateway()
    chat.get_by_role("button", name="Send").wait_for()
    say(chat, "pid")
    chat.get_by_text(re.compile(r"\d+-[0-9a-f]{8}")).wait_for()


def test_vs_code_joins_a_session_with_attach_and_answers_its_permission(waiting_vscode: Laptop, page: "Page") -> None:
    first = start_agent(page, waiting_vscode.url)
    say(first, "one word")
    first.get_by_text("one word").nth(1).wait_for()
    (session,) = waiting_vscode.gateway.sessions()
    settings = waiting_vscode.home / ".config" / "Code" / "User" / "settings.json"
    agents = json.loads(settings.read_text())
    command = agents["acp.agents"]["devbox"]
    agents["acp.agents"]["joined"] = command | {"args": [*command["args"], "--attach", session["sessionId"]]}
    settings.write_text(json.dumps(agents))
    window = open_elsewhere(page)
    second = start_agent(window, waiting_vscode.url, "joined")
    second.get_by_text("one word").nth(1).wait_for()
    say(first, "ask")
    window.locator(".quick-input-widget .monaco-list-row").first.wait_for()
    window.keyboard.press("Enter")
    first.get_by_text("yes", exact=True).wait_for()


CLICK = 20.0
"""Seconds after which a click on a session counts as lost: VS Code drops it if the list is drawn again."""


def open_session(page: "Page", session: str, shown: "Locator") -> None:
    """Click a session below the agent's name, whose list is still folded, until this is shown."""
    find_row(page, "devbox — ").locator(".monaco-tl-twistie").click()
    row = find_row(page, f"Session: {session}")
    now = time.monotonic()
    ends, clicks = now + TIMEOUT, now
    while not shown.count() and now < ends:
        if now >= clicks:
            row.click()
            clicks += CLICK
        page.wait_for_timeout(100)
        now = time.monotonic()


def test_vs_code_lists_sessions_and_loads_one_again(waiting_vscode: Laptop, page: "Page") -> None:
    chat = start_agent(page, waiting_vscode.url)
    say(chat, "first words")
    chat.get_by_text("first words").nth(1).wait_for()
    (first,) = waiting_vscode.gateway.sessions()
    page.get_by_role("button", name="ACP: New Conversation").click()
    page.get_by_role("button", name="New Conversation", exact=True).click()
    chat.get_by_text("first words").first.wait_for(state="detached")
    say(chat, "other words")
    chat.get_by_text("other words").nth(1).wait_for()
    confirm = page.get_by_role("button", name="Open Session", exact=True).first
    open_session(page, first["sessionId"], confirm)
    confirm.click()
    chat.get_by_text("first words").nth(1).wait_for()
    chat.get_by_text("other words").first.wait_for(state="detached")
    say(chat, "pid")
    chat.get_by_text(re.compile(r"\d+-[0-9a-f]{8}")).wait_for()


def test_vs_code_loads_a_session_after_its_window_is_reloaded_and_answers_its_permission(
    vscode: Laptop, page: "Page"
) -> None:
    chat = start_agent(page, vscode.url)
    say(chat, "hello devbox")
    page.locator(".quick-input-widget .monaco-list-row").first.wait_for()
    (session,) = vscode.gateway.sessions()
    page.reload()
    chat = find_chat(page)
    history = chat.get_by_text("You wrote: 'hello devbox'")
    open_session(page, session["sessionId"], history)
    history.wait_for()
    page.locator(".quick-input-widget .monaco-list-row").first.wait_for()
    page.keyboard.press("Enter")
    chat.get_by_text("I found").wait_for()


def test_vs_code_shows_all_of_a_turn_whose_connection_was_cut(tmp_path: Path, page: "Page") -> None:
    gate, said = tmp_path / "gate.fifo", tmp_path / "gate.said"
    os.mkfifo(gate)
    os.mkfifo(said)
    with open_laptop(tmp_path, json.dumps(EDITING), line=True) as laptop, open_vscode(laptop):
        assert laptop.line is not None
        chat = start_agent(page, laptop.url)
        say(chat, f"gate {gate}")
        chat.get_by_text("before", exact=True).wait_for()
        laptop.line.cut()
        gate.write_text("go on\n")
        assert read_fifo(said)
        laptop.line.mend()
        chat.get_by_text("beforeafter", exact=True).wait_for()
        chat.get_by_role("button", name="Send").wait_for()


def test_vs_code_opens_the_local_file_that_an_agent_with_another_path_writes(tmp_path: Path, page: "Page") -> None:
    with open_mapped_vscode(tmp_path, ACP_CLIENT) as laptop:
        chat = start_agent(page, laptop.url)
        say(chat, "edit notes.txt red green")
        chat.get_by_text("Changed notes.txt.").wait_for()
        page.locator(".view-line", has_text="green apples").wait_for()
        assert (laptop.project / "notes.txt").read_text() == "green apples\n"


def start_acp_chat(page: "Page", url: str) -> "FrameLocator":
    """Open VS Code with the view of VSCode ACP Chat, which starts the agent, and return it."""
    page.goto(url)
    page.locator(".activitybar .action-item a[aria-label^='VSCode ACP']").click()
    chat = page.frame_locator("iframe.webview.ready[src*=vscode-acp-chat]").frame_locator("#active-frame")
    wait_for_session(chat)
    return chat


def wait_for_session(chat: "FrameLocator", besides: str = "") -> None:
    """Wait until VSCode ACP Chat has opened a session, besides another one."""
    chat.locator(f".tab-item:not([data-session-id^=pending], [data-session-id='{besides}'])").wait_for()


def tell(chat: "FrameLocator", words: str) -> None:
    chat.get_by_role("textbox", name="Message input").fill(words)
    chat.get_by_role("button", name="Send message").click()


def test_vscode_acp_chat_opens_the_file_and_the_diff_of_an_agent_with_another_path(
    tmp_path: Path, page: "Page"
) -> None:
    with open_mapped_vscode(tmp_path, ACP_CHAT) as laptop:
        chat = start_acp_chat(page, laptop.url)
        tell(chat, "edit notes.txt red green")
        chat.get_by_text("Changed notes.txt.").wait_for()
        chat.locator(".diff-header").click()
        page.locator(".editor-instance .view-line", has_text="green apples").wait_for()
        chat.locator(".toggle-expand").click()
        chat.locator("button.review").click()
        page.locator(".monaco-diff-editor .view-line", has_text="red apples").wait_for()
        page.locator(".monaco-diff-editor .view-line", has_text="green apples").wait_for()


def test_vscode_acp_chat_loads_a_session_and_grants_a_permission(tmp_path: Path, page: "Page") -> None:
    with memory(tmp_path) as laptop, open_vscode(laptop, ACP_CHAT):
        chat = start_acp_chat(page, laptop.url)
        tell(chat, "first words")
        chat.get_by_text("first words").nth(1).wait_for()
        (session,) = laptop.gateway.sessions()
        chat.get_by_role("button", name="Close Session").click()
        chat.get_by_text("first words").first.wait_for(state="detached")
        # It opens another one.
        wait_for_session(chat, besides=session["sessionId"])
        page.get_by_role("button", name="Load History").click()
        page.locator(".quick-input-widget .monaco-list-row", has_text=session["sessionId"]).click()
        chat.get_by_text("first words").nth(1).wait_for()
        tell(chat, "ask")
        chat.get_by_role("button", name="Yes").click()
        chat.get_by_text("yes", exact=True).wait_for()
