"""Settings files of editors: where they are, and how they are changed."""

import io
import json
import re
import shlex
import stat
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
import pytest

from acp_gateway.cli.client import editor_files
from acp_gateway.cli.client.editor_files import (
    EDITORS,
    MAX_SIZE,
    MEMBERS,
    TITLES,
    AgentCommand,
    Machine,
    install_agent,
    installed_editors,
    own_machine,
    plan_change,
    print_config,
    settings_file,
)
from acp_gateway.client import control
from acp_gateway.client.dialing import Destination
from acp_gateway.config.editing.jsonc import set_member
from acp_gateway.errors import ConfigError, UnknownAgent, Unreachable, UsageError
from acp_gateway.security.token_format import mint
from tests.kit.doubles import run_command as run

HOME = Path("/home/ann")
LINUX = Machine(HOME, {}, "linux")
MAC = Machine(HOME, {}, "darwin")


def test_every_editor_has_a_title_and_those_with_json_a_file() -> None:
    assert set(TITLES) == set(EDITORS)
    assert {editor for editor in EDITORS if settings_file(editor, LINUX)} == set(MEMBERS)


@pytest.mark.parametrize(
    ("editor", "machine", "path"),
    [
        ("zed", LINUX, "/home/ann/.config/zed/settings.json"),
        ("zed", Machine(HOME, {"XDG_CONFIG_HOME": "/c"}, "linux"), "/c/zed/settings.json"),
        ("zed", Machine(HOME, {"XDG_CONFIG_HOME": "c"}, "linux"), "/home/ann/.config/zed/settings.json"),
        ("zed", MAC, "/home/ann/.config/zed/settings.json"),
        ("zed", Machine(HOME, {"APPDATA": "/a"}, "win32"), "/a/Zed/settings.json"),
        ("zed", Machine(HOME, {}, "win32"), "/home/ann/AppData/Roaming/Zed/settings.json"),
        ("jetbrains", MAC, "/home/ann/.jetbrains/acp.json"),
        ("vscode", LINUX, "/home/ann/.config/Code/User/settings.json"),
        ("vscode", MAC, "/home/ann/Library/Application Support/Code/User/settings.json"),
    ],
)
def test_the_settings_are_where_the_editor_has_them(editor: str, machine: Machine, path: str) -> None:
    assert str(settings_file(editor, machine)) == path


def test_editors_are_found_by_programs_and_folders(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {}, "linux")
    assert installed_editors(machine, lambda _: None) == []
    for folder in (".config/JetBrains", ".config/zed", ".local/share/nvim/lazy/avante.nvim"):
        (tmp_path / folder).mkdir(parents=True)
    assert installed_editors(machine, {"emacs": "/bin/emacs"}.get) == ["zed", "jetbrains", "avante", "emacs"]


def test_a_file_is_changed_with_a_copy_beside_it_and_its_mode_and_link_kept(tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.json"
    real.write_text('{\n  "a": 1 // one\n}\n')
    real.chmod(0o640)
    link = tmp_path / "settings.json"
    link.symlink_to(real)
    change = plan_change("zed", link, "box", {"command": "x"})
    assert '+    "box": {' in change.difference
    copy = change.write()
    assert copy == tmp_path / "dotfiles.json.bak"
    assert copy.read_text() == '{\n  "a": 1 // one\n}\n'
    assert link.is_symlink()
    assert '"a": 1, // one' in real.read_text()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert plan_change("zed", link, "box", {"command": "x"}).difference == ""
    assert plan_change("zed", link, "box", {"command": "y"}).write() == tmp_path / "dotfiles.json.bak1"


def test_a_file_that_does_not_exist_is_made(tmp_path: Path) -> None:
    path = tmp_path / "new/acp.json"
    assert plan_change("jetbrains", path, "box", {"command": "x"}).write() is None
    assert '"agent_servers"' in path.read_text()
    assert [entry.name for entry in path.parent.iterdir()] == ["acp.json"]


def test_a_file_that_another_program_has_changed_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text("{}")
    change = plan_change("vscode", path, "box", {})
    path.write_text('{"new": 1}')
    with pytest.raises(ConfigError, match="has just changed it"):
        change.write()
    assert [entry.name for entry in tmp_path.iterdir()] == ["settings.json"]
    assert path.read_text() == '{"new": 1}'


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"{", "is not JSON"), (b"\xff", "UTF-8"), (b" " * (MAX_SIZE + 1), "larger"), (b"[]", "not an object")],
)
def test_a_file_that_is_not_understood_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "settings.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"settings.json: .*{why}"):
        plan_change("zed", path, "box", {})


def test_a_link_that_leads_to_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.symlink_to(path)
    with pytest.raises(ConfigError, match=r"is a link that leads to itself|cannot be read"):
        plan_change("zed", path, "box", {})


@pytest.mark.parametrize("name", ["settings.json", "."])
def test_a_file_that_is_read_only_or_in_such_a_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = tmp_path / "settings.json"
    path.write_text(set_member("", ("agent_servers", "box"), {"command": "x"}))
    # As for a user who is not root.
    monkeypatch.setattr("os.access", lambda place, _: place != tmp_path / name)
    assert plan_change("zed", path, "box", {"command": "x"}).difference == ""
    with pytest.raises(ConfigError, match=f"{tmp_path / name}: is read-only"):
        plan_change("zed", path, "box", {"command": "y"})


def test_a_file_that_can_not_be_read_or_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        plan_change("zed", tmp_path / "folder.json", "box", {})
    change = plan_change("zed", tmp_path / "x/settings.json", "box", {})
    (tmp_path / "x").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        change.write()


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
def test_the_documentation_leads_to_the_example_of_what_the_command_prints(editor: str) -> None:
    page = (ROOT / "docs" / "editors.md").read_text(encoding="utf-8")

    assert f"[`{editor}`](../examples/editors/{EXAMPLES[editor]})" in page


def test_the_documentation_shows_the_block_of_one_editor() -> None:
    assert f"```jsonc\n{block('zed')}\n```" in (ROOT / "docs" / "editors.md").read_text(encoding="utf-8")


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
    section = page.partition("\n## What was seen\n")[2].partition("\n## ")[0]
    (row,) = [line for line in section.splitlines() if line.startswith(f"| [{editor}](pictures/")]
    assert "history" in row
    assert "$/cancel_request" in row
    assert "(#what-was-seen)" in page


@pytest.mark.parametrize(
    "title", ["VS Code", "CodeCompanion", "Avante", "agentic.nvim", "agent-shell", "Toad", "marimo"]
)
def test_the_page_has_a_small_picture_of_each_editor_that_was_seen(title: str) -> None:
    page = (ROOT / "docs" / "editors.md").read_text(encoding="utf-8")
    found = re.search(rf"^\| \[{re.escape(title)}\]\((pictures/[a-z-]+\.png)\)", page, re.MULTILINE)
    assert found is not None
    picture = (ROOT / "docs" / found[1]).read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) <= 150 * 1024


AGENT = AgentCommand("box", "/bin/acp-gateway", ("connect", "box"))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(editor_files, "own_machine", lambda: Machine(tmp_path, {}, "linux"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".config"))
    monkeypatch.setenv("ACP_GATEWAY_TOKEN", mint())
    return tmp_path


def test_the_entry_is_the_one_that_would_be_printed(home: Path) -> None:
    path = home / ".jetbrains/acp.json"
    options = ["connect", "wss://box:1", "--map", "/a=/b", "--observe"]
    result = run(*options, "--install", "jetbrains", "--yes")
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    assert f"Wrote {path}." in result.stderr
    assert '+    "box:1": {' in result.stderr
    assert json.loads(path.read_text()) == json.loads(run(*options, "--print-config", "jetbrains").stdout)
    again = run(*options, "--install", "jetbrains", "--yes")
    assert f"{path} has this already." in again.stderr


@pytest.fixture
def gateway(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """A gateway that is asked for its agents: `demo` and `other`; the list has what it was asked for."""
    asked: list[str | None] = []

    async def request(destination: Destination, *_: object, **__: object) -> object:
        asked.append(destination.agent)
        if destination.agent not in ("demo", "other"):
            raise UnknownAgent("this gateway has no agent of that name; there are: demo, other")
        return {}

    monkeypatch.setattr(control, "request", request)
    return asked


@pytest.mark.parametrize("editor", MEMBERS)
def test_an_agent_that_the_gateway_does_not_have_is_not_written(gateway: list[str | None], editor: str) -> None:
    result = run("connect", "wss://box:1", "--agent", "WRONG", "--install", editor, "--yes")
    assert result.exit_code == 4
    assert "there are: demo, other" in result.stderr
    assert gateway == ["WRONG"]
    path = settings_file(editor, editor_files.own_machine())
    assert path is not None
    assert not path.exists()


@pytest.mark.parametrize("editor", MEMBERS)
def test_each_agent_of_a_gateway_has_an_entry_of_its_own(gateway: list[str | None], editor: str) -> None:
    for options in ((), ("--agent", "demo"), ("--agent", "other"), ("--agent", "other", "--name", "mine")):
        result = run("connect", "wss://box:1", *options, "--install", editor, "--yes")
        assert result.exit_code == 0, result.output
    path = settings_file(editor, editor_files.own_machine())
    assert path is not None
    entries = json.loads(path.read_text())[MEMBERS[editor]]
    assert {name: entry["args"][-1] for name, entry in entries.items()} == {
        "box:1": "wss://box:1",
        "box:1 demo": "demo",
        "box:1 other": "other",
        "mine": "other",
    }
    # The default agent is the gateway's choice.
    assert gateway == ["demo", "other", "other"]


def test_a_gateway_that_does_not_answer_is_told_and_the_entry_written(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def request(*_: object, **__: object) -> object:
        raise Unreachable("no answer from box")

    monkeypatch.setattr(control, "request", request)
    result = run("connect", "wss://box:1", "--agent", "demo", "--install", "zed", "--yes")
    assert result.exit_code == 0
    assert "warning: whether the gateway has the agent demo is not known: no answer from box" in result.stderr
    assert "box:1 demo" in (home / ".config/zed/settings.json").read_text()


def test_a_name_without_a_block_is_refused(home: Path) -> None:
    assert run("connect", "wss://box:1", "--name", "x").exit_code == 2


def test_without_a_target_it_is_the_only_host_of_hosts_toml(home: Path, gateway: list[str | None]) -> None:
    hosts = home / ".config/acp-gateway/hosts.toml"
    hosts.parent.mkdir(parents=True)
    hosts.write_text('[hosts.lab]\nurl = "box"\n')
    for option in ("--install", "--print-config"):
        result = run("connect", option, "jetbrains", *(["--yes"] if option == "--install" else []))
        assert result.exit_code == 0, result.output
    assert json.loads((home / ".jetbrains/acp.json").read_text()) == json.loads(result.stdout)
    assert list(json.loads(result.stdout)["agent_servers"]) == ["lab"]


def test_a_file_that_can_not_be_changed_is_left_alone_and_the_block_printed(home: Path) -> None:
    path = home / ".config/zed/settings.json"
    path.parent.mkdir(parents=True)
    path.write_text("{ broken")
    result = run("connect", "wss://box:1", "--install", "zed", "--yes")
    assert result.exit_code == 3
    assert f"{path}: it is not JSON" in result.stderr
    assert f"nothing was changed: paste the block above into {path}" in result.stderr
    assert '"agent_servers"' in result.stdout
    assert path.read_text() == "{ broken"


def test_a_gateway_that_was_never_paired_is_not_written_into_an_editor(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ACP_GATEWAY_TOKEN")
    result = run("connect", "nosuch", "--install", "zed", "--yes")
    assert result.exit_code == 3
    assert '"nosuch" is not in hosts.toml (it is empty) and no token was given' in result.stderr
    assert "`acp-gateway pair nosuch`" in result.stderr
    assert run("connect", "wss://box:1", "--install", "zed", "--yes").exit_code == 4
    assert run("connect", "tcp://box:1", "--install", "zed", "--yes").exit_code == 2
    assert list(home.iterdir()) == []


def test_settings_that_are_a_program_are_printed(home: Path) -> None:
    result = run("connect", "wss://box:1", "--install", "emacs", "--yes")
    assert result.exit_code == 3
    assert "the settings of Emacs are a program; nothing was changed: paste the block above" in result.stderr
    assert "(defun" in result.stdout


def test_after_install_vscode_the_view_is_to_be_refreshed(home: Path) -> None:
    result = run("connect", "wss://box:1", "--install", "vscode", "--yes")
    assert result.exit_code == 0
    assert "refresh the ACP Client's view" in result.stderr


def test_without_a_terminal_nothing_is_written_unless_yes_is_given(home: Path) -> None:
    result = run("connect", "wss://box:1", "--install", "zed")
    assert result.exit_code == 2
    assert "--yes writes it" in result.stderr
    assert not (home / ".config/zed").exists()
    assert run("connect", "wss://box:1", "--yes").exit_code == 2


@pytest.mark.parametrize(("answer", "written"), [("y\n", True), ("n\n", False)])
def test_in_a_terminal_it_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, answer: str, written: bool) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr("sys.stderr", Terminal())
    with nullcontext() if written else pytest.raises(click.Abort):
        install_agent("zed", AGENT, Machine(tmp_path, {}, "linux"), yes=False)
    assert (tmp_path / ".config/zed/settings.json").exists() is written


def test_the_command_is_this_very_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/opt/acp-gateway"])
    command = AgentCommand.to("ssh://ann@box/run/s", ["--observe"])
    assert command == AgentCommand("box", "/opt/acp-gateway", ("connect", "ssh://ann@box/run/s", "--observe"))
    monkeypatch.setattr("sys.argv", ["/x/acp_gateway/__main__.py"])
    assert AgentCommand.to("box").arguments[:4] == ("-P", "-m", "acp_gateway", "connect")
    with pytest.raises(UsageError):
        command.block("ed")


def test_without_a_home_folder_no_editor_has_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert own_machine().home == Path("/home/ann")
    monkeypatch.setattr("os.path.expanduser", lambda text: text)
    with pytest.raises(ConfigError):
        own_machine()
