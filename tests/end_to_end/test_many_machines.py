"""Two nodes, a gateway in front of them, and editors, as programs: cuts on both hops, and a node that is killed.

`tests/nodes/test_node_watcher.py` has the same in one process, and what need not be cut.
"""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from acp_gateway.protocol.on_behalf import FOR, OnBehalf, write_claim
from acp_gateway.transports.websocket.stream import PASSED
from tests.end_to_end.switch import Switch
from tests.end_to_end.test_outages import Editor, Gate
from tests.kit import running
from tests.kit.running import (
    AGENTS,
    WORK,
    RunningGateway,
    nodes_in,
    prepare,
    run_and_warn,
    run_program,
    start_gateway,
    until,
    until_there,
)

pytestmark = pytest.mark.slow


@contextmanager
def node(directory: Path) -> Iterator[RunningGateway]:
    """A gateway with an agent, which listens at the same port when it is started again."""
    directory.mkdir()
    (directory / "sessions").mkdir()
    command = [sys.executable, str(AGENTS / "remembering_agent.py"), str(directory / "sessions")]
    pin = prepare(directory, f"[agents.memory]\ncommand = {json.dumps(command)}\neof_grace = 0.1\n")
    gateway = start_gateway(directory, pin)
    try:
        yield gateway
    finally:
        gateway.stop()


@contextmanager
def front(directory: Path, nodes: dict[str, tuple[RunningGateway, Switch]]) -> Iterator[RunningGateway]:
    """The gateway in front, which is in a hurry to reconnect."""
    directory.mkdir()
    sections = "".join(
        f'[nodes.{name}]\nurl = "wss://127.0.0.1:{way.port}"\npin = "{far.pin}"\ntoken_file = "{far.token_file}"\n'
        for name, (far, way) in nodes.items()
    )
    pin = prepare(directory, sections, more='default_agent = "gpu1/memory"\n')
    os.mkfifo(directory / "tasks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "PROGRAM", [sys.executable, str(AGENTS / "hurried.py"), str(directory / "tasks")])
        gateway = start_gateway(directory, pin)
    try:
        until_there(gateway, *nodes)
        yield gateway
    finally:
        # A test may have killed it.
        assert gateway.stop() in (0, -signal.SIGKILL), "".join(gateway.log)
        assert "Traceback" not in "".join(gateway.log)


@contextmanager
def many_machines(tmp_path: Path) -> Iterator[tuple[RunningGateway, Switch, dict[str, tuple[RunningGateway, Switch]]]]:
    """The gateway in front, the way to it, and the nodes with the ways to them."""
    with ExitStack() as stack:
        nodes = {}
        for name in ("gpu1", "gpu2"):
            far = stack.enter_context(node(tmp_path / name))
            nodes[name] = far, stack.enter_context(way_to(far))
        near = stack.enter_context(front(tmp_path / "front", nodes))
        yield near, stack.enter_context(way_to(near)), nodes


def way_to(gateway: RunningGateway) -> Any:
    """A way that can be cut, as a context manager."""
    port = urlsplit(gateway.urls["wss"]).port
    assert port is not None
    return Switch(port).running()


def listed(gateway: RunningGateway) -> dict[str, Any]:
    """By id: the sessions that the front's user is told. It does not wait for a slow node."""
    return {session["sessionId"]: session for session in gateway.sessions()}


def test_cuts_on_both_hops_in_mid_turn_are_pauses_and_sessions_of_all_nodes_are_joined_by_name(tmp_path: Path) -> None:
    gates = [Gate(), Gate()]
    with many_machines(tmp_path) as (near, way, nodes), Editor(near, via=way) as editor:
        editor.open_session()
        prompt = editor.prompt("before the cuts", gates[0].command, "during the cuts", gates[1].command, "later")
        editor.until_told("before the cuts")
        far_way = nodes["gpu1"][1]
        far_way.cut()
        way.cut()
        gates[0].open()
        with Editor(near, "unix", "--agent", "gpu2/memory") as other:
            other.open_session()
            assert other.talk("later") == "end_turn"
            until(lambda: f"gpu2/{other.session}" in listed(near))
        far_way.mend()
        way.mend()
        editor.until_told("during the cuts")
        gates[1].open()
        assert editor.stop_reason(prompt) == "end_turn"
        assert editor.told == ["before the cuts", "during the cuts", "later"]
        assert len(editor.answers_to(prompt)) == 1
        # A session that was opened at the node itself.
        with Editor(nodes["gpu2"][0], "unix") as direct:
            direct.open_session()
            assert direct.talk("said at the node") == "end_turn"
            until(lambda: listed(near).get(f"gpu2/{direct.session}", {}).get("live"))
            with Editor(near, "unix", "--attach", f"gpu2/{direct.session}") as late:
                assert late.open_session() == direct.session
                late.until_told("said at the node")
                assert late.talk("said through the front") == "end_turn"
            direct.until_told("said through the front")


def test_a_node_that_is_killed_in_mid_turn_ends_that_turn_alone_and_is_away_until_it_is_back(tmp_path: Path) -> None:
    gate = Gate()
    with many_machines(tmp_path) as (near, _, nodes):
        killed = nodes["gpu1"][0]
        with Editor(near, "unix") as editor, Editor(near, "unix", "--agent", "gpu2/memory") as other:
            editor.open_session()
            other.open_session()
            prompt = editor.prompt("before the kill", gate.command)
            editor.until_told("before the kill")
            killed.process.send_signal(signal.SIGKILL)
            killed.process.wait(60)
            near.read_log_until("node gpu1 is away: ")
            assert other.talk("goes on") == "end_turn"

            def gpu1_alone_is_away() -> bool:
                table, warned = run_and_warn("sessions", near.urls["tcp"], "--token-file", near.token_file, "--plain")
                rows = [line.split()[0] for line in table.splitlines() if other.session in line]
                warnings = ("the node gpu1 " in warned, "the node gpu2 " in warned)
                return (rows, warnings) == ([f"gpu2/{other.session}"], (True, False))

            until(gpu1_alone_is_away)
            again = start_gateway(killed.directory, killed.pin)
            try:
                assert editor.answer(prompt)["error"]["data"]["reason"] == "gateway_restarted"
                until_there(near, "gpu1")
                assert editor.talk("after the kill") == "end_turn"
                assert len(editor.answers_to(prompt)) == 1
                assert editor.told.count("after the kill") == 1
            finally:
                again.stop()


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_a_front_that_is_started_again_in_mid_turn_continues_the_history_that_it_has_written(
    tmp_path: Path, killed: bool
) -> None:
    gate = Gate()
    with many_machines(tmp_path) as (near, way, _), Editor(near, via=way) as editor:
        editor.open_session()
        assert editor.talk("in a turn that has ended") == "end_turn"
        prompt = editor.prompt("before the end", gate.command, "after the end")
        editor.until_told("before the end")
        near.process.send_signal(signal.SIGKILL if killed else signal.SIGTERM)
        near.process.wait(60)
        again = start_gateway(near.directory, near.pin)
        try:
            gate.open()
            assert editor.stop_reason(prompt) == "end_turn"
            assert len(editor.answers_to(prompt)) == 1
            assert editor.talk("later") == "end_turn"
            assert editor.told == ["in a turn that has ended", "before the end", "after the end", "later"]
        finally:
            assert again.stop() == 0


def test_commands_for_sessions_know_those_of_nodes_by_name(tmp_path: Path) -> None:
    with many_machines(tmp_path) as (near, _, _), Editor(near, "unix", "--agent", "gpu2/memory") as editor:
        editor.open_session()
        assert editor.talk("said at gpu2") == "end_turn"
        name = f"gpu2/{editor.session}"
        at_front = (near.urls["wss"], name, "--pin", near.pin, "--token-file", near.token_file)
        assert "said at gpu2" in run_program("export", *at_front)
        command = [*running.PROGRAM, "watch", *map(str, at_front)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=running.ENVIRONMENT) as watching:
            assert watching.stdout is not None
            assert any(b"said at gpu2" in line for line in watching.stdout)
            watching.kill()
        at_node = ("--agent", "gpu2/memory", "--cwd", str(WORK))
        assert prompted(near, "--session", name, "--wait") == "hello"
        assert prompted(near, *at_node, "--wait") == "hello"
        sessions = [prompted(near, *at_node), prompted(near, "--cwd", str(WORK))]
        assert [session.partition("/")[0] for session in sessions] == ["gpu2", "gpu1"]
        until(lambda: set(sessions) <= set(listed(near)))
        link = run_program("open", name, "--config", near.config)
        assert f"/s/gpu2%2F{editor.session}" in link
        assert run_program("share", name, "--config", near.config).startswith("acp-gateway join ")


def prompted(gateway: RunningGateway, *options: str) -> str:
    """Return what `prompt` prints for the prompt "hello", which agents repeat."""
    place = [gateway.urls["wss"], "hello", "--pin", gateway.pin, "--token-file", str(gateway.token_file)]
    command = [*running.PROGRAM, "prompt", *place, *options]
    done = subprocess.run(command, env=running.ENVIRONMENT, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def test_a_reload_adds_moves_and_removes_nodes_while_a_turn_goes_on(tmp_path: Path) -> None:
    gates = [Gate(), Gate()]
    with ExitStack() as stack:
        gpu1, gpu2 = (stack.enter_context(node(tmp_path / name)) for name in ("gpu1", "gpu2"))
        old, new = (stack.enter_context(way_to(gpu1)) for _ in range(2))
        near = stack.enter_context(front(tmp_path / "front", {"gpu1": (gpu1, old)}))
        editor = stack.enter_context(Editor(near, "unix"))
        editor.open_session()
        prompt = editor.prompt("before", gates[0].command, "at another address", gates[1].command, "later")
        editor.until_told("before")
        before = near.config.read_text()
        added = f'[nodes.gpu2]\nurl = "{gpu2.urls["wss"]}"\npin = "{gpu2.pin}"\ntoken_file = "{gpu2.token_file}"\n'
        near.config.write_text(before.replace(f':{old.port}"', f':{new.port}"') + added)
        lines = run_program("reload", "--config", near.config).splitlines()
        assert lines == ["nodes.gpu1: changed (url)", "nodes.gpu2: new", "Reloaded."]
        until_there(near, "gpu2")
        # The connection goes on where it was, and the link is resumed at the other address.
        old.cut()
        gates[0].open()
        editor.until_told("at another address")
        with Editor(near, "unix", "--agent", "gpu2/memory") as other:
            other.open_session()
            assert other.talk("through the added node") == "end_turn"
            near.config.write_text(before.replace(f':{old.port}"', f':{new.port}"'))
            near.process.send_signal(signal.SIGHUP)
            near.read_log_until("changed: nodes.gpu2: removed")
            near.read_log_until(" reloaded")
            # Who uses it goes on.
            assert other.talk("after its removal") == "end_turn"
        gates[1].open()
        assert editor.stop_reason(prompt) == "end_turn"
        assert editor.told == ["before", "at another address", "later"]
        until_there(near, "gpu1")
        found = nodes_in(near)
        assert {name: each["agents"] for name, each in found.items()} == {"gpu1": ["memory"]}
        assert f":{new.port}/" in found["gpu1"]["url"]


def token_of(gateway: RunningGateway, identity: str, *options: str) -> Path:
    """Make a token of an identity at a gateway."""
    return gateway.save_token("token", "create", "--label", "x", "--identity", identity, *options)


def claim_at(gateway: RunningGateway, token_file: Path, identity: str) -> str:
    """Ask for a WebSocket as a gateway that acts for an identity; return the answer."""
    address = urlsplit(gateway.urls["wss"])
    headers = {
        "Host": f"127.0.0.1:{address.port}",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "Authorization": f"Bearer {token_file.read_text().strip()}",
        PASSED: "0123456789abcdef",
        FOR: write_claim(OnBehalf(identity, "controller", ("memory",))),
    }
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    plain = socket.create_connection(("127.0.0.1", address.port or 0), 30)
    with plain, context.wrap_socket(plain) as stream:
        lines = [f"GET {address.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        stream.sendall("\r\n".join(lines).encode())
        with stream.makefile("rb") as answer:
            return answer.read().decode()


def owners(gateway: RunningGateway, token_file: Path) -> dict[str, str]:
    """The sessions that a token is told, and the owner of each."""
    return {session["sessionId"]: session["owner"] for session in gateway.sessions(token_file)}


def until_owned(gateway: RunningGateway, token_file: Path, wanted: dict[str, str]) -> None:
    """Wait until a token is told exactly these sessions: a list does not wait for a slow node."""
    until(lambda: owners(gateway, token_file) == wanted)


def audited(gateway: RunningGateway, event: str) -> list[dict[str, Any]]:
    """The entries of an event in the audit of a gateway."""
    entries = map(json.loads, (gateway.directory / "state" / "audit.jsonl").read_text().splitlines())
    return [entry for entry in entries if entry["event"] == event]


def test_identities_that_the_front_may_speak_for_are_themselves_at_the_node_until_its_token_is_revoked(
    tmp_path: Path,
) -> None:
    with ExitStack() as stack:
        far = stack.enter_context(node(tmp_path / "gpu1"))
        ordinary = token_of(far, "carol")
        speaking = token_of(far, "front", "--may-speak-for", "alice", "--may-speak-for", "bob")
        far.token_file.write_text(speaking.read_text())
        near = stack.enter_context(front(tmp_path / "front", {"gpu1": (far, stack.enter_context(way_to(far)))}))
        tokens = {name: token_of(near, name) for name in ("alice", "bob")}
        direct = {name: token_of(far, name) for name in ("alice", "bob")}
        editors = {}
        for name, token in tokens.items():
            editors[name] = stack.enter_context(Editor(near, "wss", "--token-file", str(token)))
            editors[name].open_session()
            assert editors[name].talk(f"{name} through the front") == "end_turn"
        for name, editor in editors.items():
            assert owners(far, direct[name]) == {editor.session: name}
            until_owned(near, tokens[name], {f"gpu1/{editor.session}": name})
        # A session that alice opens at the node itself is hers at the front as well.
        with Editor(far, "wss", "--token-file", str(direct["alice"])) as at_node:
            at_node.open_session()
            assert at_node.talk("said at the node") == "end_turn"
            both = (f"gpu1/{session}" for session in (editors["alice"].session, at_node.session))
            until_owned(near, tokens["alice"], dict.fromkeys(both, "alice"))
            until_owned(near, tokens["bob"], {f"gpu1/{editors['bob'].session}": "bob"})
            attach = ("--token-file", str(tokens["alice"]), "--attach", f"gpu1/{at_node.session}")
            with Editor(near, "wss", *attach) as late:
                assert late.open_session() == at_node.session
                late.until_told("said at the node")
        links = {entry["request"]: entry["identity"] for entry in audited(near, "node_link")}
        attached = {entry["request"]: entry["identity"] for entry in audited(far, "attached") if "request" in entry}
        assert set(attached.values()) == {"alice", "bob"}
        # An attempt that the node was too slow for was not attached.
        assert attached.items() <= links.items()
        for forger, identity in (
            (ordinary, "alice"),
            (ordinary, "carol"),
            (direct["alice"], "bob"),
            (speaking, "carol"),
        ):
            answer = claim_at(far, forger, identity)
            assert answer.startswith("HTTP/1.1 403 ")
            assert "may not speak for that identity" in answer
        listed_tokens = json.loads(run_program("token", "list", "--json", "--config", far.config))["tokens"]
        (revoked,) = (token["id"] for token in listed_tokens if token["may_speak_for"])
        run_program("token", "revoke", revoked, "--config", far.config)
        near.read_log_until("node gpu1 is away: ")
        # Each is closed by itself.
        for entry in audited(far, "attached"):
            words = f"{entry['connection']}: detached"
            if entry.get("request") in links and not any(words in line for line in far.log):
                far.read_log_until(words)
        ended = [entry for entry in audited(far, "detached") if entry["why"] == "the token is not valid any more"]
        assert {entry["identity"] for entry in ended} == {"alice", "bob"}
