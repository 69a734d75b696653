"""The command line, in this process: what is printed where, and exit codes. What needs a gateway is in end_to_end/."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from acp_gateway import __version__
from acp_gateway.cli.main import BEHIND_OPTIONS, COMMANDS, NEEDED, OTHER_WORDS, READER_GONE, main
from acp_gateway.client import control
from acp_gateway.security.token_format import mint
from tests.kit.doubles import TIMEOUT
from tests.kit.doubles import run_command as run

ROOT = Path(__file__).parents[2]


def test_the_version_is_the_packages() -> None:
    assert __version__ in run("--version").output


@pytest.mark.parametrize("words", [["version"], ["-V"]])
def test_the_version_is_shown_for_whatever_people_type(words: list[str]) -> None:
    shown = run(*words)
    assert (shown.exit_code, shown.output) == (0, run("--version").output)


def test_help_is_shown_for_whatever_people_type() -> None:
    for words, option in ((["help"], ["--help"]), (["help", "token", "create"], ["token", "create", "--help"])):
        shown = run(*words)
        assert (shown.exit_code, shown.output) == (0, run(*option).output)
    refused = run("help", "tokn")
    assert refused.exit_code == 2
    assert "'token'" in refused.stderr


@pytest.mark.parametrize(
    "command", [["--help"], ["audit"], ["token", "list"], ["certs", "show", "cert.pem"]], ids=lambda words: words[0]
)
def test_a_command_ends_quietly_when_the_reader_of_its_stdout_is_gone(
    config: Path, tmp_path: Path, command: list[str]
) -> None:
    run("certs", "create", "--out", tmp_path)
    run("token", "create", "--config", config, "--label", "x")
    options = ["--config", str(config)] if command[0] in ("audit", "token") else []
    reader, writer = os.pipe()
    os.close(reader)
    program = [sys.executable, "-m", "acp_gateway", *command, *options]
    done = subprocess.run(program, stdout=writer, stderr=subprocess.PIPE, cwd=tmp_path, check=False, timeout=TIMEOUT)
    os.close(writer)
    assert (done.returncode, done.stderr) == (READER_GONE, b"")


def walk(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield each command with the words that name it."""
    yield path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            below = command.get_command(click.Context(command), name)
            assert below is not None
            yield from walk(below, (*path, name))


ALL = dict(walk(main))

every_command = pytest.mark.parametrize("words", ALL, ids=" ".join)


def test_the_list_of_commands_has_each_once_in_the_order_in_which_a_user_needs_them() -> None:
    listed = re.findall(r"^  ([a-z-]+)  +\S", run("--help").output, re.MULTILINE)
    visible = {name for (name,) in (path for path in ALL if len(path) == 1) if not ALL[name,].hidden}
    assert sorted(listed) == sorted(visible)
    assert listed.index("up") < listed.index("serve") < listed.index("pair") < listed.index("replay")


def test_a_command_without_a_place_in_the_list_is_listed_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acp_gateway.cli.main.SECTIONS", {"On both": ("paths", "absent")})
    shown = run("--help").output
    assert shown.index("On both:") < shown.index("  paths ") < shown.index("Others:") < shown.index("  connect ")
    assert "absent" not in shown


def test_the_commands_are_those_that_a_user_expects() -> None:
    assert {("connect",), ("serve",), ("token", "create"), ("relay",), ("service", "install")} <= set(ALL)


@every_command
def test_every_command_explains_itself_and_its_options(words: tuple[str, ...]) -> None:
    command = ALL[words]
    shown = run(*words, "--help")
    assert shown.exit_code == 0
    assert "Usage:" in shown.output
    assert command.help
    assert all(option.help for option in command.params if isinstance(option, click.Option))
    assert all(len(line) <= 80 for line in shown.output.partition("Example")[0].splitlines())


@pytest.mark.parametrize("words", [words for words, command in ALL.items() if not command.hidden], ids=" ".join)
def test_the_help_of_every_command_that_users_run_has_examples_of_it(words: tuple[str, ...]) -> None:
    shown = run(*words, "--help").output
    assert re.search(rf"^  Examples?:\n(    .*\n)*?    .*acp-gateway {' '.join(words)}", shown, re.MULTILINE)


@every_command
def test_the_examples_of_every_command_have_options_that_there_are(words: tuple[str, ...]) -> None:
    for line in re.findall(r"^ {4}.*acp-gateway .*", run(*words, "--help").output, re.MULTILINE):
        for part in re.split(r" [|&>]+ |  +", line.strip()):
            found = re.match(r"(?:sudo |ssh \S+ )?acp-gateway (.*)", part)
            if found is None:
                continue
            given = found[1].partition(" -- ")[0].rstrip(')"').split()
            named = max((path for path in ALL if path == tuple(given[: len(path)])), key=len)
            known = {name for path in (named, ()) for param in ALL[path].params for name in param.opts}
            known |= {name for param in ALL[named].params for name in param.secondary_opts} | {"--help", "-h"}
            assert {word for word in given if re.match(r"--?[a-z]", word)} <= known, line


WITHOUT_JSON = {
    "cp": "its result is a file",
    "chat": "it is a full-screen program",
    "completion": "it prints a script for a shell",
    "connect": "its stdout is the protocol's",
    "export": "`--format json` is one of its formats",
    "export-recording": "it prints lines of JSON anyway",
    "pair-here": "its stdout is the protocol of `pair`",
    "relay": "its stdout is the protocol's",
    "replay": "its stdout is the protocol's",
    "serve": "it runs until it is stopped, and prints only logs",
    "token cluster": "it prints a token, and nothing else",
    "up": "it runs until it is stopped, and prints what a user does next",
}
"""Commands without `--json`, with the reason."""


@every_command
def test_every_command_has_json_or_a_reason_against_it(words: tuple[str, ...]) -> None:
    options = {name for param in ALL[words].params for name in param.opts}
    # A group prints its help, but for `nodes`.
    excepted = (isinstance(ALL[words], click.Group) and words != ("nodes",)) or " ".join(words) in WITHOUT_JSON
    assert ("--json" in options) != excepted
    assert "--json" in options or "--plain" not in options


def test_no_command_is_excepted_from_json_that_is_not_there() -> None:
    assert set(WITHOUT_JSON) <= {" ".join(words) for words in ALL}


def test_a_command_with_a_typo_is_answered_with_the_one_that_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    # As in a new process, which has imported none.
    monkeypatch.setattr(main, "commands", {})
    refused = run("tokn", "list")
    assert refused.exit_code == 2
    assert "'token'" in refused.stderr


WITH_HOST = [
    words
    for words, command in ALL.items()
    if any("--host" in each.opts for each in command.params) and words[0] != "certs"
]
"""Commands whose links and lines name this machine as `--host` says; those of certificates have names of their own."""


@pytest.mark.parametrize("words", WITH_HOST, ids=" ".join)
@pytest.mark.parametrize("host", ["http://foo/", "box:443", "gpu box"])
def test_a_host_that_can_be_in_no_url_is_refused_by_each_command_that_names_it(
    words: tuple[str, ...], host: str
) -> None:
    done = run(*words, "--host", host)
    assert done.exit_code == 2
    assert f"'{host}' is not a name or address of a machine" in done.stderr


def test_the_commands_that_name_a_host_are_those() -> None:
    assert sorted(WITH_HOST) == [("nodes", "add"), ("open",), ("serve",), ("share",), ("up",)]


REQUIRED = [
    (words, parameter)
    for words, command in ALL.items()
    for parameter in command.params
    if isinstance(parameter, click.Argument) and parameter.required and not isinstance(command, click.Group)
]


@pytest.mark.parametrize(("words", "parameter"), REQUIRED, ids=[" ".join(words) for words, _ in REQUIRED])
def test_an_argument_that_is_missing_is_told_in_one_line_with_where_it_comes_from(
    words: tuple[str, ...], parameter: click.Argument
) -> None:
    done = run(*words)
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"acp-gateway: `acp-gateway {' '.join(words)}` needs {parameter.metavar or ''}")
    assert parameter.name is not None
    assert line.endswith(NEEDED[parameter.name])


@pytest.mark.parametrize("words", [("status",), ("token", "list"), ("open", "s"), ("service", "logs")])
def test_a_host_behind_a_command_of_the_gateway_s_machine_is_told_where_it_belongs(words: tuple[str, ...]) -> None:
    done = run(*words, "box")
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert f"`acp-gateway {' '.join(word for word in words if word != 's')}` has an argument too many" in line
    assert "`acp-gateway open [SESSION] --target HOST`" in line


@pytest.mark.parametrize("word", OTHER_WORDS)
def test_a_command_of_other_programs_is_answered_with_the_one_that_is_meant(word: str) -> None:
    done = run(word, "box")
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"acp-gateway: there is no command `{word}`: ")
    assert word not in COMMANDS
    # What is named there exists.
    assert {each.split()[1] for each in re.findall(r"`(acp-gateway [^`]*)`", line)} <= set(COMMANDS)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("serve", "opencode", "acp"), "the command of an agent stands behind --agent, in quotes"),
        (("doctor", "opencode"), "an agent stands behind --agent"),
        (("connect", "box", "opencode"), "an agent stands behind --agent, a session behind --attach"),
        (("pair", "box", "~/proj=/srv/proj"), "a folder here and there stands behind --map, as LOCAL=REMOTE"),
        (("share", "s1", "ann"), "one session is shared at a time, and the guest's name stands behind --label"),
    ],
)
def test_an_argument_too_many_is_told_the_option_that_takes_it(words: tuple[str, ...], told: str) -> None:
    assert words[0] in BEHIND_OPTIONS
    assert run(*words).stderr == f"acp-gateway: `acp-gateway {words[0]}` has an argument too many: {told}\n"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("token delete", "revoke"),
        ("token add", "create"),
        ("agents install", "add"),
        ("agents uninstall", "remove"),
        ("service enable", "install"),
        ("certs rotate", "renew"),
    ],
)
def test_a_word_that_a_group_lacks_is_answered_with_the_one_that_it_has(words: str, meant: str) -> None:
    line = run(*words.split(), "x").stderr
    assert (
        line == f"acp-gateway: there is no `acp-gateway {words}`: `acp-gateway {words.split()[0]} {meant}` does that\n"
    )


def test_an_option_before_the_command_is_told_its_place() -> None:
    assert "Options stand behind the command: acp-gateway COMMAND --config" in run("--config", "x", "up").stderr


@pytest.mark.parametrize("command", ["serve", "check-config", "doctor"])
def test_a_configuration_without_its_option_is_told_where_it_belongs(command: str) -> None:
    assert "takes the name of a configuration behind --config" in run(command, "config.toml").stderr


def test_a_token_without_a_label_is_told_what_that_is() -> None:
    done = run("token", "create")
    assert done.exit_code == 2
    assert "`acp-gateway token create` needs --label: the name of the machine" in done.stderr


@pytest.mark.parametrize("words", [("sessions", "{}"), ("watch", "{}", "s"), ("sessions", "box", "--token-file", "{}")])
@pytest.mark.parametrize("cut", [0, 1])
def test_no_error_repeats_a_token_that_was_given_in_the_place_of_something_else(
    words: tuple[str, ...], cut: int
) -> None:
    secret = mint()[: 46 - cut]
    done = run(*(word.format(secret) for word in words))
    assert done.exit_code > 0
    assert secret not in done.output
    assert "acpgw_" in done.output or "that is a token" in done.output


def test_other_mistakes_are_left_to_click() -> None:
    assert "Try" in run("watch", "a", "b", "c").stderr
    assert "No such option" in run("status", "--nosuch").stderr


def test_a_role_that_there_is_not_is_refused_with_those_that_there_are(config: Path) -> None:
    refused = run("token", "create", "--config", config, "--label", "x", "--role", "owner")
    assert refused.exit_code == 2
    assert "'controller', 'observer'" in refused.stderr


def test_ctrl_c_while_a_gateway_is_waited_for_shows_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(*_: object, **__: object) -> None:
        raise BaseExceptionGroup("tasks", [BaseExceptionGroup("tasks", [KeyboardInterrupt()])])

    monkeypatch.setattr(control, "list_sessions", interrupted)
    stopped = run("sessions", "unix:///absent")
    assert stopped.exit_code == 1
    assert stopped.stderr.strip() == "Aborted!"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no full device")
@pytest.mark.parametrize("arguments", [["files", "gateway.toml"], ["--version"]])
def test_a_full_disk_behind_stdout_is_told(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "acp_gateway", *arguments]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "acp-gateway: cannot write: No space left on device\n")


def test_an_error_of_a_file_names_it_and_one_without_a_name_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", *names)

    monkeypatch.setattr(control, "list_sessions", full)
    names = ["/a/b"]
    done = run("sessions", "unix:///absent")
    assert (done.exit_code, done.stderr) == (1, "acp-gateway: /a/b: No space left on device\n")
    names = []
    with pytest.raises(OSError, match="No space left"):
        main(["sessions", "unix:///absent"])


def test_a_bug_that_comes_along_with_ctrl_c_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(*_: object, **__: object) -> None:
        raise BaseExceptionGroup("tasks", [KeyboardInterrupt(), ZeroDivisionError()])

    monkeypatch.setattr(control, "list_sessions", interrupted)
    with pytest.raises(BaseExceptionGroup):
        main(["sessions", "unix:///absent"])


@pytest.mark.parametrize(("journal", "start"), [(True, "<3>acp-gateway: "), (False, "acp-gateway: ")])
def test_an_error_has_its_priority_where_stderr_is_the_journal(
    journal: bool, start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(tmp_path / "stderr", "w") as stderr:
        status = os.fstat(stderr.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}" if journal else "0:0")
        monkeypatch.setattr(sys, "stderr", stderr)
        with pytest.raises(SystemExit, match="3"):
            main(["serve", "--config", str(tmp_path / "absent.toml")])
    assert (tmp_path / "stderr").read_text().startswith(f"{start}{tmp_path}/absent.toml: ")


AS_ON_WINDOWS = """
import sys
from acp_gateway.cli.main import POSIX_MODULES, main

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in POSIX_MODULES:
            raise ModuleNotFoundError(f"no {name}", name=name)

for name in POSIX_MODULES:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Missing())
for words in sys.argv[1:]:
    try:
        main(words.split(), prog_name="acp-gateway")
    except SystemExit as ended:
        print(f"{words}: {ended.code}", flush=True)
"""
"""Run commands without the modules that Windows lacks, and print their exit codes."""


def test_the_client_needs_no_module_that_windows_lacks_and_the_gateway_says_that_it_does(tmp_path: Path) -> None:
    here = "wss://127.0.0.1:1"
    client = {
        f"connect {here} --print-config zed": 0,
        f"sessions {here} --connect-timeout 0.1": 6,
        f"ping {here} --quick": 6,
        "sessions --connect-timeout 0.1": 6,
        "watch --connect-timeout 0.1": 6,
        f"join {here}/acp#{mint('invitation')} --name guest": 6,
        "connect box --install zed --yes": 0,
        "doctor": 6,
    }
    (tmp_path / ".config/acp-gateway").mkdir(parents=True)
    (tmp_path / ".config/acp-gateway/hosts.toml").write_text(f'[hosts.box]\nurl = "{here}"\n')
    gateway = dict.fromkeys(("serve", "token list"), 3)
    environment = os.environ | {"HOME": str(tmp_path), "ACP_GATEWAY_TOKEN": mint(), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", AS_ON_WINDOWS, *client, *gateway]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, env=environment, cwd=tmp_path)
    codes = dict(re.findall(r"^(.*): (\d+)$", done.stdout, re.MULTILINE))
    assert {words: int(codes[words]) for words in client} == client, done.stderr
    assert {words: int(codes[words]) for words in gateway} == gateway, done.stderr
    assert done.stderr.count("this command needs Linux or macOS") == len(gateway)
    assert "Traceback" not in done.stderr
