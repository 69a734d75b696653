"""Settings blocks that make editors start `acp-gateway connect …` as an ACP agent.

One function per editor, because file, language and quirks differ; `docs/editors.md` explains them. All functions take
and return text.
"""

import json
import re
import shlex
from collections.abc import Callable, Sequence
from typing import Any, Final

from acp_gateway.errors import UsageError


def print_config(editor: str, *, name: str, arguments: Sequence[str], command: str) -> str:
    """Return the settings block, ready to paste, without a final newline.

    Args:
        editor: one of `EDITORS`.
        name: the agent's name in the editor.
        arguments: the arguments of the command.
        command: the program, best as an absolute path: JetBrains requires one, and editors started from a desktop
            have a short PATH.

    Raises `UsageError` for another editor.
    """
    try:
        block = _BLOCKS[editor]
    except KeyError:
        raise UsageError(f"no settings known for the editor {editor!r}: use one of {', '.join(EDITORS)}") from None
    return block(name, command, list(arguments))


MEMBERS: Final = {"zed": "agent_servers", "jetbrains": "agent_servers", "vscode": "acp.agents"}
"""Member of the settings that holds the agents, for each editor whose settings are JSON."""


def agent_entry(editor: str, command: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Return an agent's entry in the settings of an editor of `MEMBERS`."""
    entry: dict[str, Any] = {"command": command, "args": list(arguments), "env": {}}
    return {"type": "custom"} | entry if editor == "zed" else entry


def _zed(name: str, command: str, arguments: list[str]) -> str:
    return "// Zed: merge into settings.json\n" + _settings("zed", name, command, arguments)


def _jetbrains(name: str, command: str, arguments: list[str]) -> str:
    # acp.json is plain JSON, so there is no room for a comment.
    return _settings("jetbrains", name, command, arguments)


def _settings(editor: str, name: str, command: str, arguments: list[str]) -> str:
    return _json({MEMBERS[editor]: {name: agent_entry(editor, command, arguments)}})


def _codecompanion(name: str, command: str, arguments: list[str]) -> str:
    # `extend` keeps the block valid when CodeCompanion renames its handlers. OpenCode's adapter is the base because it
    # sets no environment and leaves the login to the agent, as a remote agent needs.
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
    block = _settings("vscode", name, command, arguments)
    return "// VS Code with the extension ACP Client: merge into settings.json\n" + block


def _toad(name: str, command: str, arguments: list[str]) -> str:
    # Toad passes its argument to a shell, so it is quoted twice.
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
"""Editors with a known settings format."""


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _lua(text: str) -> str:
    """Return a Lua string literal. `\\ddd` is decimal with up to three digits, so it is always written with three."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda match: f"\\{ord(match[0]):03}", escaped) + '"'


def _elisp(text: str) -> str:
    """Return an Emacs Lisp string literal, in which only backslash and double quote are escaped."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _slug(name: str) -> str:
    """Return a name reduced to the characters of a Lisp symbol."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "gateway"
