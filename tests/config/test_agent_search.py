"""Agents are found on PATH and in the folders of installers, with the PATH on which they can be started."""

import os
from pathlib import Path

import pytest

from acp_gateway.config.agent_search import (
    INTERPRETERS,
    KNOWN,
    PACKAGES,
    SHELLS,
    AcpAgent,
    Adapted,
    FoundAgent,
    advise,
    explain_path,
    explain_words,
    find_agents,
    find_command,
    guess,
    needed_scope,
)
from acp_gateway.errors import ConfigError


@pytest.fixture(autouse=True)
def nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder of the machine itself is looked at."""
    monkeypatch.setattr("acp_gateway.config.agent_search.PLACES", ("~/.local/bin", "~/.nvm/versions/node/*/bin"))


def install(folder: Path, *programs: str) -> str:
    """Make programs in a folder, and return the folder's path."""
    folder.mkdir(parents=True, exist_ok=True)
    for program in programs:
        (folder / program).write_text("#!/bin/sh\n")
        (folder / program).chmod(0o755)
    return str(folder)


def test_agents_on_path_come_with_their_arguments_in_the_order_of_the_table(tmp_path: Path) -> None:
    path = install(tmp_path / "bin", "gemini", "opencode")
    search = find_agents(path, tmp_path)
    assert search.agents == (
        FoundAgent("opencode", ("opencode", "acp"), path, "opencode auth login"),
        FoundAgent("gemini", ("gemini", "--acp"), path),
    )
    assert search.hints == ()


def test_an_agent_outside_of_path_gets_its_folder_in_front_of_path(tmp_path: Path) -> None:
    place = install(tmp_path / ".local/bin", "goose")
    (agent,) = find_agents("/absent", tmp_path).agents
    assert (agent.command, agent.search_path) == (("goose", "acp"), f"{place}{os.pathsep}/absent")


def test_of_several_versions_of_node_the_newest_is_searched(tmp_path: Path) -> None:
    versions = tmp_path / ".nvm/versions/node"
    places = {version: install(versions / version / "bin", "qwen") for version in ("v9.1.0", "v22.3.0", "v22.11.0")}
    (versions / "v30.0.0").mkdir()
    (agent,) = find_agents("/absent", tmp_path).agents
    assert (agent.search_path or "").startswith(places["v22.11.0"])


def test_two_programs_of_one_name_are_one_agent(tmp_path: Path) -> None:
    search = find_agents(install(tmp_path / "bin", "claude-code-acp", "claude-agent-acp", "claude"), tmp_path)
    assert [(agent.name, agent.command) for agent in search.agents] == [("claude", ("claude-agent-acp",))]
    assert search.hints == ()


@pytest.mark.parametrize(
    ("command", "scope"),
    [
        (("/opt/bin/pi-acp",), "connection"),
        (("env", "A=b", "npx", "-y", "pi-acp@0.0.34"), "connection"),
        (("opencode", "acp"), None),
        (("pi",), None),
        (("mine",), None),
    ],
)
def test_an_agent_that_can_not_be_shared_needs_a_scope(command: tuple[str, ...], scope: str | None) -> None:
    assert needed_scope(command) == scope


def test_cline_and_the_adapter_of_pi_are_found_under_their_names(tmp_path: Path) -> None:
    search = find_agents(install(tmp_path / "bin", "cline", "pi", "pi-acp"), tmp_path)
    assert {agent.name: agent.command for agent in search.agents} == {"cline": ("cline", "--acp"), "pi": ("pi-acp",)}
    assert search.hints == ()


@pytest.mark.parametrize(
    ("program", "arguments"), [("grok", ("agent", "stdio")), ("kilo", ("acp",)), ("fast-agent", ("acp",))]
)
def test_the_table_has_the_arguments_that_the_program_answers_with(
    program: str, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    (agent,) = find_agents(install(tmp_path / "bin", program), tmp_path).agents
    assert (agent.name, agent.command) == (program, (program, *arguments))


def test_a_program_without_its_adapter_is_a_hint_that_names_the_installation(tmp_path: Path) -> None:
    search = find_agents(install(tmp_path / "bin", "codex"), tmp_path)
    assert search.agents == ()
    (hint,) = search.hints
    assert hint.startswith("codex is here, but speaks ACP only through codex-acp, which is not installed: ")
    assert hint.endswith(": npm install -g @agentclientprotocol/codex-acp")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["opencode", "acp"], "opencode"),
        (["./tool box", "x"], "tool-box"),
        (["npx", "-y", "@google/gemini-cli@1", "--acp"], "gemini"),
        (["npx", "my-agent.js"], "my-agent"),
        (["{folder}/tools/run-it.sh"], "run-it"),
        (["{folder}/my-tool/dist/agent.sh"], "my-tool"),
        (["npx", "{folder}/my-tool/dist/index.js"], "my-tool"),
        (["./bin/agent"], "project"),
        (["{folder}/home/bin/agent"], "agent"),
        (["{folder}/usr/local/bin/agent"], "agent"),
        (["npx", "--ext", ".js"], "js"),
        (["npx", "./.sh"], "sh"),
        (["npx"], "npx"),
    ],
)
def test_the_agent_of_a_command_has_the_name_of_its_program(tmp_path: Path, command: list[str], name: str) -> None:
    path = install(tmp_path / "bin", "opencode", "npx")
    project = tmp_path / "project"
    install(project, "tool box")
    for folder in (project / "bin", *(tmp_path / each for each in ("my-tool/dist", "home/bin", "usr/local/bin"))):
        install(folder, "agent", "agent.sh")
    install(tmp_path / "tools", "run-it.sh")
    command = [word.format(folder=tmp_path) for word in command]
    found = find_command(command, path, tmp_path / "home", project)
    assert (found.name, found.command, found.search_path) == (name, tuple(command), path)


def test_the_program_of_a_command_is_found_where_installers_put_it(tmp_path: Path) -> None:
    place = install(tmp_path / ".local/bin", "mine")
    assert find_command(["mine"], "/absent", tmp_path, tmp_path).search_path == f"{place}{os.pathsep}/absent"


@pytest.mark.parametrize(("program", "words"), [("absent", "not found on PATH (/absent)"), ("./absent", "there is no")])
def test_a_program_that_is_not_there_is_an_error(tmp_path: Path, program: str, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        find_command([program], "/absent", tmp_path, tmp_path)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        (["opencode"], "opencode is an ACP agent with: opencode acp"),
        (["/usr/local/bin/opencode", "--print-logs"], "opencode is an ACP agent with: opencode acp"),
        (["gemini"], "gemini is an ACP agent with: gemini --acp"),
        (["qwen", "--yolo"], "qwen is an ACP agent with: qwen --acp"),
        (["goose", "session"], "goose is an ACP agent with: goose acp"),
        (["copilot"], "copilot is an ACP agent with: copilot --acp"),
        (["kimi"], "kimi is an ACP agent with: kimi acp"),
        (["cursor-agent"], "cursor-agent is an ACP agent with: cursor-agent acp"),
        (["auggie"], "auggie is an ACP agent with: auggie --acp"),
        (["droid", "acp"], "droid is an ACP agent with: droid exec --output-format acp"),
        (
            ["claude"],
            (
                "claude does not speak ACP by itself: use claude-agent-acp or claude-code-acp (npm install -g "
                "@agentclientprotocol/claude-agent-acp)"
            ),
        ),
        (
            ["codex", "acp"],
            "codex does not speak ACP by itself: use codex-acp (npm install -g @agentclientprotocol/codex-acp)",
        ),
        (["amp"], "amp does not speak ACP by itself: use amp-acp (acp-gateway agents add amp-acp)"),
        (["npx", "dimcode@0.5.7"], "dimcode is an ACP agent with: npx dimcode@0.5.7 acp"),
        (["devin"], "devin is an ACP agent with: devin acp"),
        (["cortex", "acp"], "cortex is an ACP agent with: cortex acp serve"),
        (["harn", "run"], "harn is an ACP agent with: harn serve acp"),
        (
            ["npx", "@github/copilot-language-server@1.548.0", "--stdio"],
            "copilot-language-server is an ACP agent with: npx @github/copilot-language-server@1.548.0 --acp",
        ),
        (["vibe"], "vibe does not speak ACP by itself: use vibe-acp"),
        (
            ["npx", "-y", "@google/gemini-cli@0.27.3"],
            "gemini is an ACP agent with: npx -y @google/gemini-cli@0.27.3 --acp",
        ),
        (["npx", "opencode-ai@latest"], "opencode is an ACP agent with: npx opencode-ai@latest acp"),
        (["env", "A=1", "opencode"], "opencode is an ACP agent with: opencode acp"),
        (["bash"], "bash is a shell, not an agent: name the agent's program, such as opencode acp"),
        (["/bin/sh", "-i"], "sh is a shell, not an agent: name the agent's program, such as opencode acp"),
        (["python3.12"], "python3.12 is an interpreter, not an agent: name the agent's program behind it"),
        (["node", "-i"], "node is an interpreter, not an agent: name the agent's program behind it"),
    ],
)
def test_the_likely_command_is_named(command: list[str], advice: str) -> None:
    assert advise(command) == advice


@pytest.mark.parametrize(
    "command",
    [
        ["opencode", "acp"],
        ["opencode", "--cwd", "/srv", "acp"],
        ["gemini", "--experimental-acp"],
        ["gemini", "--acp=true"],
        ["kimi", "--acp"],
        ["droid", "exec", "-m", "x", "--output-format", "acp"],
        ["claude-agent-acp"],
        ["codex-acp", "-c", "x=1"],
        ["npx", "-y", "@google/gemini-cli@latest", "--experimental-acp"],
        ["npx", "-y", "@zed-industries/claude-code-acp"],
        ["env", "A=1", "opencode", "acp"],
        ["bash", "-c", "exec opencode acp"],
        ["bash", "agent.sh"],
        ["python3", "agent.py"],
        ["python3", "-m", "agent"],
        ["my-own-agent"],
        ["env"],
        [],
    ],
)
def test_nothing_is_said_against_a_command_that_may_be_right(command: list[str]) -> None:
    assert advise(command) is None


def test_of_a_program_that_is_not_known_there_is_a_question() -> None:
    assert guess(["cat"]) == "is 'cat' an ACP agent, and does it take an argument for that, such as acp or --acp?"
    assert guess(["bash"]).startswith("bash is a shell, not an agent")


def test_the_table_is_whole() -> None:
    assert set(PACKAGES.values()) <= set(KNOWN)
    assert not set(KNOWN) & (SHELLS | INTERPRETERS)
    for name, known in KNOWN.items():
        if isinstance(known, AcpAgent):
            for arguments in known.arguments:
                assert advise([name, *arguments]) is None
        else:
            assert isinstance(known, Adapted)
            assert [advise([other]) for other in known.by] == [None] * len(known.by)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["claude"], "claude is not installed, and does not speak ACP by itself: use claude-agent-acp instead: npm "),
        (["opencode", "acp"], "opencode is not installed: npm install -g opencode-ai"),
        (["goose", "acp"], "goose is not installed: `acp-gateway agents list --available` lists what `agents add`"),
        (["opncode", "acp"], "the program 'opncode' is not found on PATH (/absent): did you mean \"opencode\"?"),
        (["mine"], "the program 'mine' is not found on PATH (/absent): install it, or name it by its whole path"),
        (["python3 x.py"], '\'python3 x.py\' is one word: write python3 x.py, in a configuration ["python3", "x.py"]'),
        (["~/bin/mine"], "'~/bin/mine' is passed as it is, since no shell reads it: write the whole path"),
    ],
)
def test_a_command_that_can_not_be_started_is_refused_with_the_remedy(
    tmp_path: Path, command: list[str], told: str
) -> None:
    with pytest.raises(ConfigError) as error:
        find_command(command, "/absent", tmp_path, tmp_path)
    assert str(error.value).startswith(told)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["claude"], "claude does not speak ACP by itself: use claude-agent-acp"),
        (["bash"], "bash is a shell, not an agent"),
        (["python3"], "python3 is an interpreter, not an agent"),
        (["python3", "absent.py"], "there is no file "),
    ],
)
def test_a_program_that_is_there_and_does_not_speak_acp_is_refused(
    tmp_path: Path, command: list[str], told: str
) -> None:
    path = install(tmp_path / "bin", "claude", "bash", "python3")
    with pytest.raises(ConfigError) as error:
        find_command(command, path, tmp_path, tmp_path)
    assert str(error.value).startswith(told)


def test_a_program_of_ones_own_may_have_the_name_of_one_that_speaks_no_acp(tmp_path: Path) -> None:
    install(tmp_path, "claude")
    assert find_command(["./claude"], "/absent", tmp_path, tmp_path).command == ("./claude",)


@pytest.mark.parametrize(
    "command",
    [
        ["mine", "a~b", "$X", "it's ~ here"],
        ["python3", "-m", "agent"],
        ["python3", "there.py", "absent.py"],
        ["./with space"],
    ],
)
def test_words_that_a_program_takes_as_they_are_pass(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "there.py").touch()
    (tmp_path / "with space").touch()
    assert explain_words(command, tmp_path) is None


@pytest.mark.parametrize("word", ["~/agent.py", "~", "$HOME/agent.py", "${HOME}/agent.py"])
def test_what_only_a_shell_would_expand_is_told(word: str) -> None:
    assert "since no shell reads it" in (explain_words(["python3", word], None) or "")


def test_a_script_is_looked_for_only_where_its_place_is_known() -> None:
    assert explain_words(["python3", "absent.py"], None) is None
    assert explain_words(["python3", "/absent.py"], None) == "there is no file /absent.py"


def test_a_path_that_can_not_be_executed_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "agent.py"
    assert explain_path(str(file)) == f"there is no program {file}"
    file.touch()
    assert explain_path(str(file)).startswith(f"{file} can't be executed: chmod +x ")
    assert explain_path(str(tmp_path)) == f"{tmp_path} is a folder, not a program"
