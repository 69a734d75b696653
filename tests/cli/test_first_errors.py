"""The errors that new users meet first, by what they typed: the cause, the next command and the exit code."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from acp_gateway.client.dialing import OTHER_PATH, Destination
from acp_gateway.security.certificates import create_certificate
from acp_gateway.security.token_format import mint
from acp_gateway.security.token_store import TokenStore
from acp_gateway.server.http.plaintext import answer_plaintext
from acp_gateway.server.http.routes import NOTHING_HERE
from tests.kit.doubles import TIMEOUT, remember_session
from tests.kit.doubles import run_command as run

Serve = Callable[..., int]


@pytest.fixture
def laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a laptop's settings, with a token in `token`."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    monkeypatch.setattr("acp_gateway.config.load.SYSTEM_CONFIG", tmp_path / "absent.toml")
    folder = tmp_path / "settings/acp-gateway"
    folder.mkdir(parents=True)
    (folder / "token").write_text(mint())
    (folder / "token").chmod(0o600)
    return folder


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers on loopback that answer each connection with some bytes, and return their ports."""
    stop = threading.Event()
    threads = []

    def start(answer: bytes, *, asked: bool = True, context: ssl.SSLContext | None = None) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        listener.settimeout(0.02)

        def run() -> None:
            with listener:
                while not stop.is_set():
                    try:
                        connection = listener.accept()[0]
                    except TimeoutError:
                        continue
                    with connection:
                        connection.settimeout(TIMEOUT)
                        try:
                            if context is not None:
                                connection = context.wrap_socket(connection, server_side=True)
                            if asked:
                                connection.recv(65536)
                            connection.sendall(answer)
                            connection.close()
                        except OSError:
                            pass

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return int(listener.getsockname()[1])

    yield start
    stop.set()
    for thread in threads:
        thread.join()


def http(status: str, body: str) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()


def refused(*words: str | Path, code: int) -> str:
    """Return the line with which a command fails."""
    result = run(*words)
    assert result.exit_code == code, result.output
    (line,) = result.stderr.splitlines()
    return line.removeprefix("acp-gateway: ")


def ask(laptop: Path, target: str, code: int, *options: str) -> str:
    """Return the line with which a gateway can't be asked for its sessions."""
    return refused("sessions", target, "--token-file", laptop / "token", *options, code=code)


# What answers at the address


def test_a_proxy_whose_gateway_is_down(laptop: Path, serve: Serve) -> None:
    port = serve(http("502 Bad Gateway", "<html>"))
    line = ask(laptop, f"ws://127.0.0.1:{port}", 6)
    assert line.startswith(f"127.0.0.1:{port} answers, but the gateway behind it does not (HTTP 502: <html>): is")
    assert "`acp-gateway serve` running there?" in line


def test_a_path_that_a_web_server_does_not_have(laptop: Path, serve: Serve) -> None:
    port = serve(http("404 Not Found", "<html>"))
    line = ask(laptop, f"ws://127.0.0.1:{port}/x", 7)
    assert f"127.0.0.1:{port} has nothing at /x" in line
    assert "the path of an acp-gateway is normally /acp" in line


def test_another_path_of_a_gateway(laptop: Path, serve: Serve) -> None:
    assert OTHER_PATH == NOTHING_HERE
    port = serve(http("404 Not Found", NOTHING_HERE))
    line = ask(laptop, f"ws://127.0.0.1:{port}/foo", 7)
    assert line == f"there is an acp-gateway at 127.0.0.1:{port}, but not at /foo: leave the path out"


def test_lines_to_a_port_for_websockets(laptop: Path, serve: Serve) -> None:
    port = serve(http("400 Bad Request", "no"))
    line = ask(laptop, f"tcp://127.0.0.1:{port}", 7)
    assert f"this port speaks WebSocket: use ws://127.0.0.1:{port}" in line


def test_http_to_a_port_of_a_gateway_that_wants_tls(laptop: Path, serve: Serve) -> None:
    port = serve(answer_plaintext(b"GET /acp HTTP/1.1\r\nHost: box\r\nSec-WebSocket-Key: x\r\n\r\n"))
    line = ask(laptop, f"ws://127.0.0.1:{port}", 7)
    assert line == f"127.0.0.1:{port} wants TLS: use wss://127.0.0.1:{port}, or https://"


def test_the_path_of_a_socket_alone(laptop: Path) -> None:
    line = ask(laptop, "/run/acp-gateway/socket", 2)
    assert "is a path, and a socket has unix:// before it; a valid one is unix:///" in line


def test_the_port_of_sshd(laptop: Path, serve: Serve) -> None:
    port = serve(b"SSH-2.0-OpenSSH_9.2\r\n", asked=False)
    line = ask(laptop, f"wss://127.0.0.1:{port}", 7)
    assert line.startswith(f'127.0.0.1 port {port} does not speak TLS: it answers "SSH-2.0-OpenSSH_9.2"')
    assert line.endswith("the gateway's port is usually 7443")


def test_a_web_server_without_tls(laptop: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acp_gateway.transports.sockets._GREETING_TIMEOUT", 0.01)
    port = serve(http("400 Bad Request", "no"))
    line = ask(laptop, f"wss://127.0.0.1:{port}", 7)
    assert f"127.0.0.1 port {port} does not speak TLS (" in line


def test_no_tls_to_a_port_that_wants_it(laptop: Path, serve: Serve, tmp_path: Path) -> None:
    made = create_certificate(["127.0.0.1"], tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.cert_path, made.key_path)
    port = serve(b"", context=context)
    result = run("sessions", f"ws://127.0.0.1:{port}", "--token-file", laptop / "token")
    assert result.exit_code in (6, 7)
    assert "wss://" in result.stderr


def test_a_port_at_which_no_program_listens(laptop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # On loopback the system refuses at once: all other waiting is that for the next attempt.
    run_in_time = trio.run
    monkeypatch.setattr(trio, "run", lambda main: run_in_time(main, clock=MockClock(autojump_threshold=0)))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line = ask(laptop, f"wss://127.0.0.1:{port}", 6)
    assert "connection refused; is `acp-gateway serve` running on 127.0.0.1?" in line


def test_a_token_that_was_revoked_of_a_host_that_was_paired(laptop: Path, serve: Serve) -> None:
    answer = http("401 Unauthorized", "no valid token").replace(b"\r\n", b"\r\nAcp-Gateway: unauthorized\r\n", 1)
    port = serve(answer)
    (laptop / "hosts.toml").write_text(
        f'[hosts.box]\nurl = "ws://127.0.0.1:{port}"\ntoken_file = "token"\ntoken_id = "0a0a0a0a"\n'
    )
    line = refused("sessions", "box", code=7)
    assert line.endswith("this host was paired: `acp-gateway pair [USER@]127.0.0.1 --name box` gets a new one")


# Names, files and tokens


def test_a_name_with_a_typo(laptop: Path) -> None:
    (laptop / "hosts.toml").write_text('[hosts.box]\nurl = "box.example"\n')
    line = refused("sessions", "nohost", code=3)
    assert line.startswith('"nohost" is not in hosts.toml (there: box) and no token was given.')
    assert "New gateway? `acp-gateway pair nohost`" in line


def test_a_host_that_stands_there_twice(laptop: Path) -> None:
    (laptop / "hosts.toml").write_text('[hosts.box]\nurl = "box"\n[hosts.box]\nurl = "box"\n')
    assert refused("sessions", "box", code=3).endswith("hosts.toml:3: [hosts.box] stands here for the second time")


def test_a_token_in_hosts_toml(laptop: Path) -> None:
    token = mint()
    (laptop / "hosts.toml").write_text(f'[hosts.box]\nurl = "box"\ntoken = "{token}"\n')
    line = refused("sessions", "box", code=3)
    assert "tokens don't go into hosts.toml: save it in a file of mode 600 and name that with token_file" in line
    assert token not in line


def test_a_folder_that_may_not_be_written(laptop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The mode of a folder does not keep root out.
    monkeypatch.setattr("os.access", lambda place, _: place != laptop)
    assert f"because you may not write into {laptop}" in refused("pair", "box", code=3)


PAIRED = 'token_id = "0123abcd"\n'


@pytest.mark.parametrize(
    "words", [("open",), ("share", "s1"), ("token", "list"), ("audit",)], ids=lambda words: str(words[0])
)
@pytest.mark.parametrize(
    ("hosts", "told"),
    [
        ('[hosts.box]\nurl = "ssh://ann@box.example"\n', ": `ssh ann@box.example acp-gateway …`. From"),
        ('[hosts.box]\nurl = ["10.0.0.7", "ssh://lab"]\n', ": `ssh lab acp-gateway …`. From"),
        (f'[hosts.box]\nurl = "10.0.0.7"\n{PAIRED}', ": `ssh [USER@]box acp-gateway …`. From"),
        ('[hosts.box]\nurl = "127.0.0.1:7443"\n', ". From"),
        ('[hosts.box]\nurl = "a"\n[hosts.lab]\nurl = "ssh://lab"\n', ". From"),
        ("[hosts.box]\n", ". From"),
    ],
)
def test_a_command_of_the_box_on_the_laptop(laptop: Path, words: tuple[str, ...], hosts: str, told: str) -> None:
    (laptop / "hosts.toml").write_text(hosts)
    line = refused(*words, code=3)
    target = "box" if hosts.count("url") == 1 else "HOST"
    assert f"this command runs on the gateway's machine, and here is only a hosts.toml{told} here, " in line
    assert f"`acp-gateway open [SESSION] --target {target}` makes a link" in line


def test_a_session_without_its_host_is_one_of_the_only_gateway(laptop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = []

    async def watch(session: str, destination: Callable[[], Destination], *_: object, **_kept: object) -> None:
        watched.append((session, str(destination().address)))

    monkeypatch.setattr("acp_gateway.cli.client.watched_session.watch_session", watch)
    (laptop / "hosts.toml").write_text('[hosts.box]\nurl = "127.0.0.1:1"\n')
    assert run("watch", "sess_1").exit_code == 0
    assert watched == [("sess_1", "wss://127.0.0.1:1/acp")]
    assert '"lab.example" is not in hosts.toml' in refused("watch", "lab.example", code=3)
    with (laptop / "hosts.toml").open("a") as file:
        file.write('[hosts.lab]\nurl = "lab"\n')
    assert refused("watch", "sess_1", code=3).endswith(
        "A session stands behind its host: `acp-gateway watch HOST sess_1`"
    )


def test_a_host_without_its_session(laptop: Path) -> None:
    (laptop / "hosts.toml").write_text('[hosts.box]\nurl = "127.0.0.1:1"\n')
    line = refused("export", "box", code=2)
    assert line == "box is a host; name the session behind it: `acp-gateway sessions box` lists them"


def test_the_name_of_a_host_in_other_letters(laptop: Path) -> None:
    (laptop / "hosts.toml").write_text('[hosts.box]\nurl = "127.0.0.1:1"\n')
    assert 'did you mean "box"?' in refused("sessions", "BOX", code=3)


def test_a_port_behind_a_name_that_is_not_known(laptop: Path) -> None:
    assert "New gateway? `acp-gateway pair nohost`, or" in refused("sessions", "nohost:7443", code=3)


def test_a_user_before_the_host(laptop: Path) -> None:
    assert "over ssh write ssh://USER@HOST" in ask(laptop, "ann@box", 2)


def test_an_invitation_that_was_accepted_already(laptop: Path) -> None:
    (laptop / "hosts.toml").write_text('[hosts.box]\nurl = "box"\n')
    line = refused("join", f"wss://box:7443/acp#{mint('invitation')}", code=2)
    assert "Have you joined before? `acp-gateway ping box` tries it" in line


@pytest.mark.parametrize("command", ["watch", "ping"])
def test_a_command_of_the_laptop_on_the_box(laptop: Path, config: Path, command: str) -> None:
    (laptop / "config.toml").write_text(config.read_text().replace("tcp://127.0.0.1:7443", "unix:///absent/socket"))
    done = run(command)
    assert done.exit_code == 6
    assert "/absent/socket" in done.output


def test_a_session_that_there_is_not_is_not_shared(config: Path, tmp_path: Path) -> None:
    remember_session(tmp_path / "state", "s1")
    assert 'this gateway has no session "s2"' in refused("share", "s2", "--token", "--config", config, code=2)
    assert TokenStore(tmp_path / "state").tokens() == []


def test_a_certificate_and_its_key_in_each_others_place(config: Path, tmp_path: Path) -> None:
    create_certificate(["box"], tmp_path)
    section = '\n[[listen]]\nurl = "wss://127.0.0.1:7444"\ncert = "key.pem"\nkey = "cert.pem"\n'
    config.write_text(config.read_text() + section)
    checked = run("check-config", "--config", config)
    assert checked.exit_code == 3
    assert "cert and key look swapped: key.pem holds a private key" in checked.stderr


# ssh


@pytest.mark.parametrize(
    ("script", "code", "cause", "next_step"),
    [
        (
            "echo 'ann@box: Permission denied (publickey).' >&2; exit 255",
            *(4, "ssh could not log in without asking", "ssh-copy-id ann@box"),
        ),
        (
            "echo 'This account is currently not available.'; exit 1",
            *(7, "ssh logged in, but the shell there ended", "it said: This account is currently not available."),
        ),
        ("exec sleep 60", 6, "ssh logged in, but nothing came back", "ssh ann@box acp-gateway --version"),
        ("exit 127", 3, "acp-gateway was not found there", "install it there"),
    ],
    ids=["no-key", "nologin", "profile", "not-installed"],
)
def test_a_login_that_does_not_reach_a_gateway(
    laptop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, code: int, cause: str, next_step: str
) -> None:
    (tmp_path / "ssh").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    # Only that login stays open which says nothing.
    timeout = 0.3 if "sleep" in script else TIMEOUT
    line = refused("sessions", "ssh://ann@box", "--connect-timeout", f"{timeout}", code=code)
    assert cause in line
    assert next_step in line
