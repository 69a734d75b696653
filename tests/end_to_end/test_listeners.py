"""Authentication at the listeners of a real gateway: certificates, tokens, names, addresses, and limits in time."""

import hmac
import json
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from cryptography.x509.oid import NameOID

from acp_gateway.gateway.agent.orphans import ProcessRegistry
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.protocol import methods
from acp_gateway.security.token_format import digest, mint
from acp_gateway.security.token_store import TokenStore
from tests.end_to_end.test_outages import Editor, Gate, Stock
from tests.end_to_end.test_shim import assert_told, run_in_vain, run_shim
from tests.end_to_end.traces import TRACES
from tests.kit.authority import ANN, BEGIN, Authority, name
from tests.kit.echoing import WS, EchoingGateway, ask, bearer, listening, upgrade
from tests.kit.running import (
    AGENTS,
    ENVIRONMENT,
    PROGRAM,
    WORK,
    RunningGateway,
    prepare,
    run_program,
    start_gateway,
)

FAILED_ATTEMPTS = 20
CONNECTIONS = 5

STRANGER = name((NameOID.ORGANIZATION_NAME, "Example"), (NameOID.COMMON_NAME, "ann "))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority("the clients' authority")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[RunningGateway]:
    """A gateway that knows two certificates and believes proxies on its own machine."""
    directory = tmp_path_factory.mktemp("listeners")
    (directory / "memory").mkdir()
    commands = {
        "memory": [sys.executable, str(AGENTS / "remembering_agent.py"), str(directory / "memory")],
        "raw": [sys.executable, str(AGENTS / "raw_agent.py")],
    }
    agents = "".join(f"[agents.{agent}]\ncommand = {json.dumps(command)}\n" for agent, command in commands.items())
    agents += (
        '[certificates.laptop]\nsubject = "CN=ann,O=Example"\nidentity = "ann"\n'
        '[certificates.phone]\nsubject = "CN=ann\'s phone,O=Example"\nidentity = "ann"\nrole = "observer"\n'
    )
    more = (
        'default_agent = "memory"\ntrusted_proxies = ["127.0.0.1"]\n'
        f"[limits]\nfailed_attempts = {FAILED_ATTEMPTS}\nconnections_per_identity = {CONNECTIONS}\n"
    )
    client_ca = authority.write(directory / "clients.pem")
    running = start_gateway(directory, prepare(directory, agents, more=more, tls=f'client_ca = "{client_ca}"\n'))
    try:
        yield running
    finally:
        assert running.stop() == 0, "".join(running.log)


@dataclass(frozen=True)
class Made:
    """A token of a gateway, made where that does not matter."""

    id: str
    secret: str = field(repr=False)
    file: Path


@pytest.fixture
def make(gateway: RunningGateway, tmp_path: Path) -> Callable[..., Made]:
    """Makes tokens, which takes the program a third of a second."""
    store = TokenStore(gateway.directory / "state")

    def make(identity: str | None = None, lifetime: float | None = None) -> Made:
        token, secret = store.create("made", identity, None, lifetime=lifetime)
        file = tmp_path / f"token-{token.id}"
        file.touch(0o600)
        file.write_text(TRACES.note_tokens_in(secret))
        return Made(token.id, secret, file)

    return make


def port_of(gateway: RunningGateway, transport: str) -> int:
    port = urlsplit(gateway.urls[transport]).port
    assert port is not None
    return port


def upgrade_with(gateway: RunningGateway, token: str, *headers: str, host: str = "localhost", source: str = "") -> str:
    """Return the answer to a WebSocket upgrade, from an address of loopback that may be the client's own."""
    TRACES.note_tokens_in(token)
    request = ["GET /acp HTTP/1.1", f"Host: {host}", *upgrade(bearer(token)), *headers, "", ""]
    return answered(port_of(gateway, "ws"), "\r\n".join(request).encode(), source)


def say_hello(gateway: RunningGateway, token: str, source: str = "") -> str:
    """Return the answer to a hello line."""
    TRACES.note_tokens_in(token)
    hello = {"jsonrpc": "2.0", "id": 0, "method": methods.HELLO, "params": {"token": token}}
    return answered(port_of(gateway, "tcp"), json.dumps(hello).encode() + b"\n", source)


def answered(port: int, said: bytes, source: str) -> str:
    with socket.create_connection(("127.0.0.1", port), 60, (source, 0) if source else None) as sock:
        sock.sendall(said)
        sock.shutdown(socket.SHUT_WR)
        # An accepted client has nothing to say, and ends the connection.
        return b"".join(iter(lambda: sock.recv(65536), b"")).decode(errors="replace")


def status(answer: str) -> int:
    """The number in an answer over a WebSocket."""
    return int(answer.split()[1])


def undated(answer: str) -> str:
    """An answer over a WebSocket without the time of day."""
    return re.sub(r"Date: .*\r\n", "", answer)


def audited(gateway: RunningGateway) -> list[dict[str, Any]]:
    """All that the audit says."""
    said = run_program("audit", "--json", "--config", gateway.config)
    return [json.loads(line) for line in said.splitlines()]


# Client certificates


@pytest.fixture(scope="module")
def laptop(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The options of a client that shows Ann's certificate."""
    return options_of(*authority.issue(tmp_path_factory.mktemp("laptop"), ANN))


def options_of(cert: Path, key: Path) -> tuple[str, ...]:
    return "--cert", str(cert), "--key", str(key)


@pytest.mark.parametrize("transport", ["wss", "tcp+tls"])
def test_a_certificate_lets_its_holder_in_without_any_token(
    transport: str, gateway: RunningGateway, laptop: tuple[str, ...]
) -> None:
    with Editor(gateway, transport, *laptop) as editor:
        session = editor.open_session()
        assert editor.talk("by certificate") == "end_turn"
        assert editor.told == ["by certificate"]
        said = run_program("sessions", gateway.urls[transport], "--json", "--pin", gateway.pin, *laptop)
        assert session in [one["sessionId"] for one in json.loads(said)["sessions"]]
        # It is Ann's, and hidden from tokens of other identities.
        with Stock(gateway, control=True) as other:
            assert session not in json.dumps(other.ask("session/list", {"all": True})["result"])


@pytest.mark.parametrize(
    ("kind", "transport", "code", "reason", "words"),
    [
        ("expired", "wss", 5, "tls", "certificate expired"),
        ("expired", "tcp+tls", 5, "tls", "certificate expired"),
        ("of another authority", "wss", 5, "tls", "unknown ca"),
        ("of a stranger", "tcp+tls", 4, "unauthorized", "[certificates.NAME]"),
    ],
)
def test_a_certificate_that_is_refused_says_why(
    kind: str,
    transport: str,
    code: int,
    reason: str,
    words: str,
    gateway: RunningGateway,
    authority: Authority,
    tmp_path: Path,
) -> None:
    match kind:
        case "expired":
            files = authority.issue(tmp_path, ANN, end=BEGIN.replace(year=2021))
        case "of another authority":
            files = Authority("the clients' authority").issue(tmp_path, ANN)
        case _:
            files = authority.issue(tmp_path, STRANGER)
    command = gateway.connect_command(transport, *options_of(*files), "--connect-timeout", "1000")
    assert_told(run_shim(command), code, reason, words)


# The life of a token


def test_a_token_that_is_rotated_in_the_middle_of_a_turn_costs_nothing(
    gateway: RunningGateway, make: Callable[..., Made], tmp_path: Path
) -> None:
    token, gate = make(), Gate()
    with Editor(gateway, "wss", "--token-file", str(token.file)) as editor:
        editor.open_session()
        prompt = editor.prompt("one", gate.command, "two")
        editor.until_told("one")
        # As in a shell: the file is empty at first, and has the new token when the command prints it.
        rotate = [*PROGRAM, "token", "rotate", token.id, "--grace", "none", "--config", str(gateway.config)]
        with token.file.open("w") as file:
            subprocess.run(rotate, env=ENVIRONMENT, stdout=file, stderr=subprocess.PIPE, check=True, timeout=60)
        assert TRACES.note_tokens_in(token.file.read_text()).strip() != token.secret
        gateway.read_log_until("disconnected, keeping its link")
        gate.open()
        assert editor.stop_reason(prompt) == "end_turn"
        assert editor.talk("three") == "end_turn"
        assert editor.told == ["one", "two", "three"]
        assert len(editor.answers_to(prompt)) == 1
        assert "resumed after" in editor.log
        assert json.loads(say_hello(gateway, token.secret))["error"]["code"] == 401


def test_a_token_that_is_revoked_in_the_middle_of_a_turn_ends_its_client_and_no_other(
    gateway: RunningGateway, make: Callable[..., Made], tmp_path: Path
) -> None:
    token, gate = make(), Gate()
    with Editor(gateway, "wss", "--token-file", str(token.file)) as thief, Editor(gateway, "tcp") as owner:
        owner.load(thief.open_session())
        prompt = thief.prompt("one", gate.command, "two")
        owner.until_told("one")
        run_program("token", "revoke", token.id, "--config", gateway.config)
        assert thief.answer(prompt)["error"]["data"]["reason"] == "unauthorized"
        assert thief.process.wait(60) == 4
        assert thief.process.stderr is not None
        assert len(thief.process.stderr.read().splitlines()) == 1
        gate.open()
        owner.until_told("two")
        assert owner.talk("three") == "end_turn"
        assert owner.told == ["one", "two", "three"]


def test_a_token_that_expires_closes_its_connection_and_nothing_tells_it_from_one_that_never_was(
    gateway: RunningGateway, make: Callable[..., Made]
) -> None:
    # On a busy machine a token may expire before it is shown.
    for lifetime in range(1, 60):
        brief = make(lifetime=lifetime).secret
        with Stock(gateway, brief) as client:
            if "result" in client.hello:
                client.read_to_end()
                break
    else:
        raise AssertionError("no token has counted for as long as a hello takes")
    revoked, rotated = make(), make()
    store = TokenStore(gateway.directory / "state")
    store.revoke(revoked.id)
    store.rotate(rotated.id)
    wrong = {
        "expired": brief,
        "revoked": revoked.secret,
        "rotated": rotated.secret,
        "of no gateway": mint(),
        "torn": brief[:-1],
        "another's prefix": brief.replace("acpgw_", "acpgwo_"),
        "an id": rotated.id,
        "empty": "",
        "long": "x" * 3000,
    }
    answers = {
        (
            undated(upgrade_with(gateway, token, source=f"127.0.1.{number}")),
            say_hello(gateway, token, f"127.0.1.{number}"),
        )
        for number, token in enumerate(wrong.values(), 1)
    }
    assert {(status(web), json.loads(line)["error"]["code"]) for web, line in answers} == {(401, 401)}
    assert len(answers) == 1


async def test_a_wrong_token_is_compared_with_every_one_there_is_in_constant_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[str, str]] = []

    def compare(known: str, presented: str) -> bool:
        compared.append((known, presented))
        return known == presented

    with Spawner(ProcessRegistry(tmp_path / "state" / "agents")) as spawner:
        gateway = EchoingGateway(tmp_path / "state", spawner)
        tokens = [gateway.token() for _ in range(3)]
        monkeypatch.setattr(hmac, "compare_digest", compare)
        async with listening(WS, gateway) as listener:
            # The first of them, one that differs in what stands last, and one that differs in everything.
            for token, outcome in ((tokens[0], 101), (mint(), 401), (tokens[0][:-1], 401)):
                compared.clear()
                assert (await ask(listener, "/acp", *upgrade(bearer(token)))).status == outcome
                # Digests are compared, and no client can choose the beginning of one.
                known = {digest(token) for token in tokens}
                assert {entry for entry, _ in compared} == known
                assert {presented for _, presented in compared} <= {digest(token), ""}


# Limits


def test_connections_per_identity_limits_one_identity_and_keeps_no_other_out(
    gateway: RunningGateway, make: Callable[..., Made]
) -> None:
    token = make("crowd")
    shown = ("--token-file", str(token.file))
    words = f"connections_per_identity ({CONNECTIONS})"
    with ExitStack() as stack:
        crowd = [stack.enter_context(Stock(gateway, token.secret)) for _ in range(CONNECTIONS)]
        assert all("result" in each.hello for each in crowd)
        # A client may leave at any moment, so they try for a while.
        commands = [gateway.connect_command(each, *shown) for each in ("wss", "tcp")]
        with ThreadPoolExecutor() as shims:
            for outcome in shims.map(run_in_vain, commands, [words] * len(commands)):
                assert_told(outcome, 6, "unreachable", words)
        with Stock(gateway, make("another").secret) as other:
            assert "result" in other.hello
        crowd[0].leave()
        with Editor(gateway, "wss", *shown) as editor:
            editor.open_session()


# The gateway's own voice


def test_what_an_agent_prints_in_the_gateways_name_reaches_no_client_and_breaks_no_link(
    gateway: RunningGateway,
) -> None:
    received = {"received": 9, "positions": {"s": {"epoch": "e", "position": 9}}}
    forged: list[dict[str, Any]] = [
        {"method": methods.ACK, "params": received},
        {"method": methods.GOODBYE, "params": {}},
        {"method": methods.NEWS, "params": {"sessionId": "s", "event": "attached"}},
        {"method": f"{methods.RESERVED_PREFIX}approve", "params": {}},
        {"method": methods.HELLO, "params": {}, "id": 77},
        {"method": methods.ACCESS, "params": {}, "id": 78},
    ]
    lines = [json.dumps({"jsonrpc": "2.0"} | message) for message in forged]
    # As a string of JSON may be spelled.
    lines += [line.replace("_acp-gateway", "\\u005facp-gat\\u0065way") for line in lines]
    with Editor(gateway, "wss", "--agent", "raw") as editor, Stock(gateway, agent="raw") as plain:
        assert "result" in plain.ask("initialize", {"protocolVersion": 1})
        for line in lines:
            editor.send(method="raw/say", params={"line": line})
        # Whom it is for, the agent does not say: both hear it.
        editor.send(method="raw/say", params={"line": '{"jsonrpc":"2.0","method":"good"}'})
        assert "result" in editor.ask("raw/echo", {})
        assert "result" in plain.ask("raw/echo", {})
        assert [message["method"] for message in editor.heard if "method" in message] == ["good"]
        assert [message["method"] for message in plain.heard] == ["good"]
        assert "lost the connection" not in editor.log


# The audit


def test_the_audit_says_who_did_what_and_when_and_nothing_of_what_was_said(
    gateway: RunningGateway, tmp_path: Path
) -> None:
    began = datetime.now(UTC).isoformat(timespec="milliseconds")
    token = gateway.save_token("token", "create", "--label", "of zoe", "--identity", "zoe")
    (shown,) = [each.id for each in TokenStore(gateway.directory / "state").tokens() if each.label == "of zoe"]
    server = {"name": "tools", "command": "/bin/whispered", "args": ["whispered"], "env": []}
    with Editor(gateway, "wss", "--token-file", str(token)) as editor:
        assert editor.ask("session/new", {"cwd": f"{WORK}/missing", "mcpServers": []})["error"]["code"] == -32602
        session = editor.ask("session/new", {"cwd": str(WORK), "mcpServers": [server]})["result"]["sessionId"]
        editor.session = session
        prompt = editor.prompt("whispered", "ask")
        editor.send(id=editor.asked()["id"], result={"outcome": {"outcome": "selected", "optionId": "yes"}})
        assert editor.stop_reason(prompt) == "end_turn"
    # Other tests of this gateway have left lines of the same kind.
    (name,) = re.findall(r"(\S+): attached", gateway.read_log_until(" attached to agent memory as zoe"))
    gateway.read_log_until(f" {name}: detached")
    run_program("token", "revoke", shown, "--config", gateway.config)
    entries = audited(gateway)
    (connection,) = {
        entry["connection"] for entry in entries if entry["event"] == "attached" and entry["identity"] == "zoe"
    }
    story = [
        entry
        for entry in entries
        if entry.get("connection") == connection or entry.get("identity") == "zoe" or entry.get("id") == shown
    ]
    assert [entry["event"] for entry in story] == [
        *("token_created", "authenticated", "attached", "cwd_refused", "mcp_server_dropped", "session_joined"),
        *("permission_decided", "session_left", "detached", "token_revoked"),
    ]
    told = {entry["event"]: entry for entry in story}
    assert all(began <= entry["time"].replace("Z", "+00:00") for entry in story)
    assert story == sorted(story, key=lambda entry: entry["time"])
    assert told["authenticated"]["credential"] == told["attached"]["credential"] == f"token {shown}"
    assert told["authenticated"]["address"] == "127.0.0.1"
    assert told["authenticated"]["listener"] == gateway.urls["wss"]
    assert told["cwd_refused"]["path"] == f"{WORK}/missing"
    assert (told["mcp_server_dropped"]["name"], told["mcp_server_dropped"]["kind"]) == ("tools", "stdio")
    decided = told["permission_decided"]
    assert (decided["session"], decided["toolCallId"], decided["decision"]) == (session, "call-1", "yes")
    assert (decided["optionKind"], decided["identity"]) == ("allow_once", "zoe")
    path = gateway.directory / "state" / "audit.jsonl"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "whispered" not in path.read_text()
    assert "agent_started" in path.read_text()
