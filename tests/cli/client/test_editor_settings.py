"""The settings blocks say what was asked for, in each editor's own language."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.cli.client.editor_settings import EDITORS, print_config
from acp_gateway.errors import UsageError

ROOT = Path(__file__).parents[3]

EXAMPLES = {
    "zed": "zed.jsonc",
    "jetbrains": "jetbrains.json",
    "codecompanion": "codecompanion.lua",
    "avante": "avante.lua",
    "emacs": "emacs.el",
    "vscode": "vscode.jsonc",
    "toad": "toad.sh",
}

COMMAND = "/home/ann/.local/bin/acp-gateway"
AWKWARD = ["connect", "C:\\my \"own\" 'box'", "--map", "/Users/ann=$HOME/a b", "Zürich"]


def block(editor: str, arguments: list[str] | None = None, *, name: str = "devbox", command: str = COMMAND) -> str:
    return print_config(editor, name=name, arguments=arguments or ["connect", "devbox"], command=command)


def json_of(text: str) -> Any:
    """A JSON document after the one comment line that some editors allow."""
    return json.loads(re.sub(r"\A//.*\n", "", text))


def quoted_strings(text: str) -> list[str]:
    """The double-quoted strings of Lua or Emacs Lisp, in order, with the two escapes both know undone."""
    return [re.sub(r"\\(.)", r"\1", inner) for inner in re.findall(r'"((?:[^"\\]|\\.)*)"', text, re.DOTALL)]


@pytest.mark.parametrize("editor", EDITORS)
def test_the_example_file_is_what_the_command_prints(editor: str) -> None:
    example = (ROOT / "examples" / "editors" / EXAMPLES[editor]).read_text(encoding="utf-8")

    assert example == block(editor) + "\n"


@pytest.mark.parametrize("editor", EDITORS)
def test_the_documentation_shows_what_the_command_prints(editor: str) -> None:
    language = {"jsonc": "jsonc", "json": "json", "lua": "lua", "el": "elisp", "sh": "sh"}
    fence = language[EXAMPLES[editor].partition(".")[2]]

    assert f"```{fence}\n{block(editor)}\n```" in (ROOT / "docs" / "editors.md").read_text(encoding="utf-8")


def test_every_example_belongs_to_an_editor() -> None:
    assert {path.name for path in (ROOT / "examples" / "editors").iterdir()} == set(EXAMPLES.values())
    assert set(EXAMPLES) == set(EDITORS)


def test_an_unknown_editor_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"'vim'.*zed, jetbrains"):
        block("vim")


@pytest.mark.parametrize("editor", [editor for editor in EDITORS if editor != "jetbrains"])
def test_the_first_line_is_a_comment_that_says_where_the_block_goes(editor: str) -> None:
    assert re.match(r"(//|--|;;|#) (Zed|CodeCompanion|Avante|Emacs|VS Code|Toad)\b.+\n", block(editor))


def test_zed_gets_a_custom_agent() -> None:
    assert json_of(block("zed", AWKWARD)) == {
        "agent_servers": {"devbox": {"type": "custom", "command": COMMAND, "args": AWKWARD, "env": {}}}
    }


def test_jetbrains_gets_json_without_comments() -> None:
    assert json.loads(block("jetbrains", AWKWARD)) == {
        "agent_servers": {"devbox": {"command": COMMAND, "args": AWKWARD, "env": {}}}
    }


def test_vscode_gets_an_agent_of_the_acp_client_extension() -> None:
    assert json_of(block("vscode", AWKWARD)) == {
        "acp.agents": {"devbox": {"command": COMMAND, "args": AWKWARD, "env": {}}}
    }


@pytest.mark.parametrize("editor", ["zed", "jetbrains", "vscode"])
def test_json_keeps_a_name_in_another_script_readable(editor: str) -> None:
    assert "Zürich" in block(editor, name="Zürich")


def test_codecompanion_gets_the_whole_command_and_more_time_than_its_default() -> None:
    text = block("codecompanion", AWKWARD)

    default = re.search(r"default = \{(.*)\}", text)
    assert default is not None
    assert quoted_strings(default[1]) == [COMMAND, *AWKWARD]
    timeout = re.search(r"timeout = (\d+)", text)
    assert timeout is not None
    assert int(timeout[1]) > 20_000


def test_avante_is_told_to_pass_on_what_finds_the_configuration() -> None:
    text = block("avante", AWKWARD)

    args = re.search(r"args = \{(.*)\}", text)
    assert args is not None
    assert quoted_strings(args[1]) == AWKWARD
    assert f'command = "{COMMAND}"' in text
    assert 'HOME = os.getenv("HOME")' in text


def test_a_line_break_in_a_lua_string_is_written_as_a_number() -> None:
    assert r'"a\010\0090"' in block("avante", ["a\n\t0"])


def test_emacs_gets_command_and_parameters_apart() -> None:
    text = block("emacs", AWKWARD)

    parameters = re.search(r":command-params '\((.*)\)$", text, re.MULTILINE)
    assert parameters is not None
    assert quoted_strings(parameters[1]) == AWKWARD
    assert f':command "{COMMAND}"' in text


@pytest.mark.parametrize(
    ("name", "symbol"), [("My Box (GPU)", "remote-agent-my-box-gpu"), ("机器", "remote-agent-gateway")]
)
def test_the_emacs_command_has_a_name_that_lisp_can_read(name: str, symbol: str) -> None:
    assert f"(defun {symbol} ()" in block("emacs", name=name)


@pytest.mark.parametrize("editor", ["codecompanion", "avante", "emacs"])
def test_brackets_are_balanced(editor: str) -> None:
    code = re.sub(r'"(?:[^"\\]|\\.)*"', "", block(editor))

    assert [code.count(opening) for opening in "([{"] == [code.count(closing) for closing in ")]}"]


def test_toad_and_its_shell_each_take_away_one_layer_of_quotes() -> None:
    line = block("toad", AWKWARD, name="dev box").splitlines()[-1]

    toad, acp, agent, directory, *title = shlex.split(line)
    assert (toad, acp, directory, title) == ("toad", "acp", ".", ["--title", "dev box"])
    assert shlex.split(agent) == [COMMAND, *AWKWARD]


@pytest.mark.parametrize("editor", ["CodeCompanion", "Toad"])
def test_the_page_says_what_an_editor_does_not_show_when_it_has_joined(editor: str) -> None:
    page = (ROOT / "docs" / "editors.md").read_text(encoding="utf-8")
    section = page.partition("\n## Joining with CodeCompanion or Toad\n")[2].partition("\n## ")[0]
    header, *rows = [line for line in section.splitlines() if line.startswith("| ")]
    assert editor in header
    assert len(rows) == 4
    assert "$/cancel_request" in section
    assert "(#joining-with-codecompanion-or-toad)" in page
