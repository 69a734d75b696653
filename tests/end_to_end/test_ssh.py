"""A gateway that is reached over ssh: paired with, and connected to. Only ssh itself is not the real one."""

import json
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.end_to_end.fake_ssh import FakeSsh, install, make_fake_ssh
from tests.end_to_end.test_losses import TIMEOUT, Shim, Talk, reading_log, shim
from tests.end_to_end.traces import TRACES
from tests.kit import running
from tests.kit.free_ports import free_port
from tests.kit.running import AGENTS, ENVIRONMENT, PROGRAM, WORK, RunningGateway, prepare, start_gateway

AGENT_NAMES = ("plain", "cut")
"""Agents that hear one conversation each, and the same; the default agent is another one."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway with counting agents."""
    directory = tmp_path_factory.mktemp("gateway")
    agents = ""
    for name in (*AGENT_NAMES, "tried"):
        command = [running.PROGRAM[0], "-I", "-S", str(AGENTS / "counting_agent.py"), str(directory / f"{name}.log")]
        agents += f"[agents.{name}]\ncommand = {json.dumps(command)}\n"
    gateway = start_gateway(directory, prepare(directory, agents, more='default_agent = "tried"'))
    gateway.urls["ssh"] = "ssh://ann@box" + gateway.urls["unix"].removeprefix("unix://")
    with reading_log(gateway):
        yield gateway
    assert gateway.stop() == 0, "".join(gateway.log)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSsh:
    """An ssh, for everything that is started."""
    fake = make_fake_ssh(tmp_path / "ssh")
    monkeypatch.setitem(ENVIRONMENT, "PATH", fake.path)
    monkeypatch.setitem(ENVIRONMENT, "XDG_CONFIG_HOME", str(tmp_path / "laptop"))
    # What a person may have set for another gateway, and ssh must not send.
    monkeypatch.setitem(ENVIRONMENT, "SSH_AUTH_SOCK", "/run/agent")
    return fake


def put_config(fake: FakeSsh, gateway: RunningGateway, *, tls: bool = True) -> None:
    """Give the machine over there the gateway's configuration, which tells the port of `wss` alone, if that."""
    path = fake.home / ".config/acp-gateway/config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:0", gateway.config.read_text())
    if tls:
        text = text.replace("wss://127.0.0.1:0", gateway.urls["wss"])
    path.write_text(text)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program to its end, whatever that is."""
    done = subprocess.run(
        [*PROGRAM, *arguments], env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False
    )
    TRACES.note(f"what {arguments[0]} printed", done.stdout + done.stderr)
    return done


def pair(fake: FakeSsh, tmp_path: Path, *options: str) -> dict[str, str]:
    """Pair with the box; what is written of it."""
    done = run("pair", "ann@box", "--label", "laptop", *options)
    assert done.returncode == 0, done.stderr
    # The editor is one of this machine.
    assert re.fullmatch(r"Next: acp-gateway connect box --\S+ \w+\n", done.stdout)
    folder = tmp_path / "laptop/acp-gateway"
    TRACES.note_tokens_in((folder / "box.token").read_text())
    return dict(re.findall(r'^(\w+) = "(.*)"$', (folder / "hosts.toml").read_text(), re.MULTILINE))


def paired_tokens(gateway: RunningGateway) -> list[str]:
    """The ids of the tokens that pairing has made and that are there still."""
    rows = running.run_program("token", "list", "--plain", "--config", gateway.config).splitlines()
    return [row.split()[0] for row in rows if row.endswith("laptop (paired)")]


def test_pairing_fetches_all_that_it_takes_and_pairing_again_revokes_the_old_token(
    gateway: RunningGateway, fake: FakeSsh, tmp_path: Path
) -> None:
    put_config(fake, gateway)
    first = pair(fake, tmp_path)
    old = tmp_path / "old"
    (tmp_path / "laptop/acp-gateway/box.token").rename(old)
    hosts = tomllib.loads((tmp_path / "laptop/acp-gateway/hosts.toml").read_text())["hosts"]
    assert hosts["box"]["url"] == [gateway.urls["wss"], "ssh://ann@box"]
    assert (first["pin"], first["command"]) == (gateway.pin, str(fake.home / ".local/bin/acp-gateway"))
    second = pair(fake, tmp_path)
    assert second["token_id"] != first["token_id"]
    assert paired_tokens(gateway) == [second["token_id"]]
    assert run("sessions", "box", "--json").returncode == 0
    assert run("sessions", "box", "--token-file", str(old)).returncode == 4


def test_ssh_is_used_while_the_address_with_tls_does_not_answer(
    gateway: RunningGateway, fake: FakeSsh, tmp_path: Path
) -> None:
    put_config(fake, gateway)
    pair(fake, tmp_path)
    hosts = tmp_path / "laptop/acp-gateway/hosts.toml"
    dead = f"wss://127.0.0.1:{free_port()}/acp"
    hosts.write_text(hosts.read_text().replace(gateway.urls["wss"], dead))
    assert run("sessions", "box", "--json").returncode == 0
    checks = json.loads(run("ping", "box", "--quick", "--json").stdout)["checks"]
    texts = [check["text"] for check in checks if check["name"] == "address"]
    assert texts[0].startswith(f"{dead}: cannot reach 127.0.0.1")
    assert texts[1] == "ssh://ann@box is used, of 2 addresses"
    assert "ssh" in [check["name"] for check in checks]


def test_in_a_terminal_ssh_asks_for_a_password_and_the_agent_is_tried(
    gateway: RunningGateway, fake: FakeSsh, tmp_path: Path
) -> None:
    put_config(fake, gateway)
    # An ssh that may ask opens the terminal itself, whatever its stdin is.
    real = fake.directory / "ssh"
    real.rename(fake.directory / "quiet")
    real.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *BatchMode=yes*) exec "{fake.directory}/quiet" "$@";; esac\n'
        '[ "$1" = -O ] && exit 255\n'
        'if [ "$1" != -G ]; then echo "Banner of box" >&2; printf "Password: " >/dev/tty; read -r word </dev/tty; '
        '[ "$word" = open ] || exit 255; fi\n'
        f'FAKE_SSH_ASKED=1 exec "{fake.directory}/quiet" "$@"\n'
    )
    real.chmod(0o755)
    pid, terminal = os.forkpty()
    if pid == 0:
        words = ["pair", "ann@box", "--label", "laptop", "--connect-timeout", "30"]
        os.execvpe(PROGRAM[0], [*PROGRAM, *words], ENVIRONMENT)  # noqa: S606
    shown, answered = b"", False
    try:
        while piece := os.read(terminal, 4096):
            shown += piece
            if b"Password: " in shown and not answered:
                os.write(terminal, b"open\n")
                answered = True
    except OSError:
        pass  # The program has closed the terminal.
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, shown
    text = shown.decode()
    TRACES.note("what pair printed in a terminal", text)
    assert text.count("Password: ") == 1
    assert "Banner of box" in text
    assert re.search(r"ok +agent +tried.* starts and answers initialize", text)
    assert "Next: acp-gateway connect box --" in text.rstrip().splitlines()[-1]
    TRACES.note_tokens_in((tmp_path / "laptop/acp-gateway/box.token").read_text())


def test_a_ping_goes_through_ssh_too(gateway: RunningGateway, fake: FakeSsh) -> None:
    put_config(fake, gateway)
    done = run("ping", gateway.urls["ssh"], "--agent", "tried", "--cwd", str(WORK))
    assert done.returncode == 0, done.stdout
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["settings", "ssh", "token", "agent", "session"]
    fake.fail(255, "ann@box: Permission denied (publickey).")
    refused = run("ping", gateway.urls["ssh"])
    assert refused.returncode == 4
    assert "-> acp-gateway pair ann@box asks for a password; editors need a key: ssh-copy-id ann@box" in refused.stdout


def files_of(tmp_path: Path) -> dict[str, bytes]:
    """Return the content of each file of the laptop's configuration."""
    return {path.name: path.read_bytes() for path in (tmp_path / "laptop/acp-gateway").iterdir()}


@pytest.mark.slow
def test_a_pairing_that_is_cut_short_leaves_the_one_before_as_it_was(
    gateway: RunningGateway, fake: FakeSsh, tmp_path: Path
) -> None:
    put_config(fake, gateway)
    entry = pair(fake, tmp_path)
    files, tokens = files_of(tmp_path), paired_tokens(gateway)
    assert entry["token_id"] in tokens
    # Before the offer has come, and before it is known whether the token is kept.
    for answers, left in ((0, 0), (1, 1)):
        fake.cut_after(answers)
        done = run("pair", "ann@box", "--label", "laptop")
        assert done.returncode == 6, done.stderr
        assert files_of(tmp_path) == files
        assert run("sessions", "box", "--json").returncode == 0
        # Whether the message that was not answered has arrived cannot be known here.
        stray = set(paired_tokens(gateway)) - set(tokens)
        assert len(stray) == left
        assert all(f"`acp-gateway token revoke {token}`" in done.stderr for token in stray)
        for token in stray:
            running.run_program("token", "revoke", token, "--config", gateway.config)
    # Before it is known whether the old token is gone.
    fake.cut_after(2)
    done = run("pair", "ann@box", "--label", "laptop")
    assert done.returncode == 0
    assert f"warning: the previous token {entry['token_id']} is still valid" in done.stderr
    assert run("sessions", "box", "--json").returncode == 0
    fake.mend()
    pair(fake, tmp_path)
    assert run("sessions", "box", "--json").returncode == 0


def test_a_pairing_whose_link_does_not_work_leaves_the_one_before_as_it_was(
    gateway: RunningGateway, fake: FakeSsh, tmp_path: Path
) -> None:
    put_config(fake, gateway)
    pair(fake, tmp_path)
    files, tokens = files_of(tmp_path), paired_tokens(gateway)
    config = fake.home / ".config/acp-gateway/config.toml"
    unused = f"wss://127.0.0.1:{free_port()}"
    config.write_text(config.read_text().replace(gateway.urls["wss"], unused).replace("unix://", "unix:///nowhere"))
    done = run("pair", "ann@box", "--label", "laptop")
    assert done.returncode == 6
    assert "nothing was changed" in done.stderr
    assert (files_of(tmp_path), paired_tokens(gateway)) == (files, tokens)
    (tmp_path / "laptop/acp-gateway").chmod(0o500)
    put_config(fake, gateway)
    if os.geteuid():
        assert run("pair", "ann@box", "--label", "laptop").returncode == 3
        assert (files_of(tmp_path), paired_tokens(gateway)) == (files, tokens)
    (tmp_path / "laptop/acp-gateway").chmod(0o700)
    assert run("sessions", "box", "--json").returncode == 0


def test_a_gateway_that_listens_at_a_unix_socket_alone_is_used_through_ssh(
    gateway: RunningGateway, fake: FakeSsh, tmp_path: Path
) -> None:
    put_config(fake, gateway, tls=False)
    entry = pair(fake, tmp_path)
    assert entry["url"] == "ssh://ann@box"
    assert "pin" not in entry
    done = run("sessions", "box", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    # With no token at all as well: the kernel says there whose process it is.
    assert run("sessions", "ssh://ann@box", "--json").returncode == 0
    assert all(call[-2:-1] == ["box"] for call in fake.calls() if call[0] != "-G")


@pytest.mark.parametrize(
    ("words", "code", "exit_code", "said"),
    [
        ("Host key verification failed.", 255, 5, "log in once with `ssh`"),
        ("ann@box: Permission denied (publickey).", 255, 4, "Set up a key for ssh"),
    ],
)
def test_what_ssh_fails_with_is_one_line_with_the_next_step(
    fake: FakeSsh, tmp_path: Path, words: str, code: int, exit_code: int, said: str
) -> None:
    fake.fail(code, words)
    for command in (["pair", "ann@box"], ["sessions", "ssh://ann@box"]):
        done = run(*command)
        assert (done.returncode, done.stdout) == (exit_code, "")
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
    assert not (tmp_path / "laptop").exists()


def test_a_program_in_an_unusual_place_is_found_when_its_path_is_given(
    gateway: RunningGateway, fake: FakeSsh, tmp_path: Path
) -> None:
    (fake.home / ".local/bin/acp-gateway").unlink()
    put_config(fake, gateway, tls=False)
    assert run("pair", "ann@box").returncode == 3
    install(fake.home / "my tools/acp-gateway")
    entry = pair(fake, tmp_path, "--command", "~/my tools/acp-gateway")
    assert entry["command"] == str(fake.home / "my tools/acp-gateway")
    assert run("sessions", "box").returncode == 0


def test_a_machine_without_a_configuration_or_a_gateway_says_so(fake: FakeSsh, tmp_path: Path) -> None:
    assert "there is no" in run("pair", "ann@box").stderr
    done = run("sessions", "ssh://ann@box")
    assert done.returncode == 3
    assert "config.toml" in done.stderr
    done = run("sessions", "ssh://ann@box/no/socket")
    assert done.returncode == 6
    assert "is `acp-gateway serve` running, and does it listen there?" in done.stderr


async def test_an_editor_does_not_notice_that_ssh_is_killed_again_and_again(
    gateway: RunningGateway, fake: FakeSsh, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = Talk(rounds=4, notifications=100)
    with trio.fail_after(TIMEOUT):
        async with shim(gateway, "unix", "plain") as editor:
            await editor.talk(talk)
        expected = editor.transcript
        killed = 0
        read = Shim.read

        async def read_and_kill(editor: Shim) -> dict[str, Any]:
            nonlocal killed
            message = await read(editor)
            if len(editor.transcript) % 120 == 50:
                killed += fake.kill()
            return message

        monkeypatch.setattr(Shim, "read", read_and_kill)
        async with shim(gateway, "ssh", "cut") as editor:
            await editor.talk(talk)
    # A slow machine may have it dial beside a connection as well.
    assert 3 <= killed <= len(fake.calls())
    assert editor.transcript == expected
    logs = [(gateway.directory / f"{name}.log").read_bytes() for name in AGENT_NAMES]
    assert logs[0] == logs[1]
