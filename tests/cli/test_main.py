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
from acp_gateway.cli.main import READER_GONE, main
from acp_gateway.client import control
from acp_gateway.security.token_format import mint
from tests.doubles import TIMEOUT
from tests.doubles import run_command as run

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
"""Commands without `--json`, with the reason. Groups print only their help."""


@every_command
def test_every_command_has_json_or_a_reason_against_it(words: tuple[str, ...]) -> None:
    options = {name for param in ALL[words].params for name in param.opts}
    excepted = isinstance(ALL[words], click.Group) or " ".join(words) in WITHOUT_JSON
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
