"""The block of settings that makes an editor start `acp-gateway connect …` as an ACP agent.

One function per editor, because each has its own file, its own language and its own habits; what a reader must know
about these habits beyond the block itself is in `docs/editors.md`. Everything is text in, text out.
"""

import json
import re
import shlex
from collections.abc import Callable, Sequence
from typing import Final

from acp_gateway.errors import UsageError


def print_config(editor: str, *, name: str, arguments: Sequence[str], command: str) -> str:
    """The settings block, ready to paste, without a final newline.

    `editor` is one of `EDITORS`, `name` is what the editor shows for the agent, `command` the program, best as an
    absolute path (JetBrains insists, and editors started from a desktop have a short PATH), `arguments` what follows
    it. Raises `UsageError` for another editor.
    """
    try:
        block = _BLOCKS[editor]
    except KeyError:
        raise UsageError(f"no settings known for the editor {editor!r}: use one of {', '.join(EDITORS)}") from None
    return block(name, command, list(arguments))


def _zed(name: str, command: str, arguments: list[str]) -> str:
    agent = {"type": "custom", "command": command, "args": arguments, "env": {}}
    return "// Zed: merge into settings.json\n" + _json({"agent_servers": {name: agent}})


def _jetbrains(name: str, command: str, arguments: list[str]) -> str:
    # acp.json is plain JSON, so there is no room for a comment.
    return _json({"agent_servers": {name: {"command": command, "args": arguments, "env": {}}}})


def _codecompanion(name: str, command: str, arguments: list[str]) -> str:
    # `extend` keeps the block right when CodeCompanion renames its handlers. OpenCode's adapter is the base because
    # it sets no environment and leaves the login to the agent, as a remote agent must.
    return f"""\
-- CodeCompanion: merge into the setup() call of your Neovim configuration
require("codecompanion").setup({{
  adapters = {{
    acp = {{
      [{_lua(name)}] = function()
        return require("codecompanion.adapters").extend("opencode", {{
          name = {_lua(name)},
          formatted_name = {_lua(name)},
          commands = {{
            default = {{ {", ".join(map(_lua, [command, *arguments]))} }},
          }},
          defaults = {{
            timeout = 60000, -- milliseconds for a request; the default of 20 s is short for an agent that must start
          }},
        }})
      end,
    }},
  }},
  interactions = {{ chat = {{ adapter = {_lua(name)} }} }},
}})"""


def _avante(name: str, command: str, arguments: list[str]) -> str:
    return f"""\
-- Avante: merge into the setup() call of your Neovim configuration
require("avante").setup({{
  provider = {_lua(name)},
  acp_providers = {{
    [{_lua(name)}] = {{
      command = {_lua(command)},
      args = {{ {", ".join(map(_lua, arguments))} }},
      -- Avante passes on nothing but PATH and these.
      env = {{ HOME = os.getenv("HOME"), XDG_CONFIG_HOME = os.getenv("XDG_CONFIG_HOME") }},
    }},
  }},
}})"""


def _emacs(name: str, command: str, arguments: list[str]) -> str:
    symbol = f"remote-agent-{_slug(name)}"
    return f"""\
;; Emacs with agent-shell: put into your init file, then M-x {symbol}
(defun {symbol} ()
  "Start an agent on another machine through acp-gateway."
  (interactive)
  (require 'agent-shell)
  (agent-shell-start
   :config (agent-shell-make-agent-config
            :identifier '{symbol}
            :mode-line-name {_elisp(name)}
            :buffer-name {_elisp(name)}
            :shell-prompt {_elisp(name + "> ")}
            :shell-prompt-regexp (regexp-quote {_elisp(name + "> ")})
            :client-maker (lambda (buffer)
                            (acp-make-client
                             :command {_elisp(command)}
                             :command-params '({" ".join(map(_elisp, arguments))})
                             :context-buffer buffer)))))"""


def _vscode(name: str, command: str, arguments: list[str]) -> str:
    agent = {"command": command, "args": arguments, "env": {}}
    return "// VS Code with the extension ACP Client: merge into settings.json\n" + _json({"acp.agents": {name: agent}})


def _toad(name: str, command: str, arguments: list[str]) -> str:
    # Toad hands its one argument to a shell: what is inside is quoted for that shell, the whole for this one.
    line = shlex.join(["toad", "acp", shlex.join([command, *arguments]), ".", "--title", name])
    return f"# Toad: run this in the project's directory\n{line}"


_BLOCKS: Final[dict[str, Callable[[str, str, list[str]], str]]] = {
    "zed": _zed,
    "jetbrains": _jetbrains,
    "codecompanion": _codecompanion,
    "avante": _avante,
    "emacs": _emacs,
    "vscode": _vscode,
    "toad": _toad,
}

EDITORS: Final[tuple[str, ...]] = tuple(_BLOCKS)
"""The editors whose settings are known."""


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _lua(text: str) -> str:
    """A Lua string. `\\ddd` is decimal and takes up to three digits, so it is always written with three."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda match: f"\\{ord(match[0]):03}", escaped) + '"'


def _elisp(text: str) -> str:
    """An Emacs Lisp string, which may hold anything but these two as it is."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _slug(name: str) -> str:
    """What a Lisp symbol can hold of a name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "gateway"
