"""A node behind a door that carries its bytes, as programs: `connect --via`, cut in mid-turn."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.end_to_end.switch import Switch
from tests.end_to_end.test_outages import Editor, Gate
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

pytestmark = pytest.mark.slow


def port_of(gateway: RunningGateway) -> int:
    port = urlsplit(gateway.urls["wss"]).port
    assert port is not None
    return port


def test_cuts_of_the_tunnel_and_a_door_that_is_killed_are_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gpu2", "door", "laptop/acp-gateway", "sessions"):
        (tmp_path / name).mkdir(parents=True)
    command = [sys.executable, str(AGENTS / "remembering_agent.py"), str(tmp_path / "sessions")]
    pin = prepare(tmp_path / "gpu2", f"[agents.memory]\ncommand = {json.dumps(command)}\neof_grace = 0.1\n")
    node = start_gateway(tmp_path / "gpu2", pin)
    section = (
        f'[nodes.gpu2]\nurl = "wss://127.0.0.1:{port_of(node)}"\npin = "{pin}"\ntoken_file = "{node.token_file}"\n'
    )
    door = start_gateway(tmp_path / "door", prepare(tmp_path / "door", section))
    token = door.save_token("token", "create", "--label", "laptop", "--role", "tunnel", "--node", "gpu2")
    gates = [Gate(), Gate()]
    try:
        with Switch(port_of(door)).running() as way:
            hosts = tmp_path / "laptop" / "acp-gateway" / "hosts.toml"
            hosts.touch(0o600)
            hosts.write_text(
                f'[hosts.door]\nurl = "wss://127.0.0.1:{way.port}"\npin = "{door.pin}"\ntoken_file = "{token}"\n'
            )
            monkeypatch.setitem(ENVIRONMENT, "XDG_CONFIG_HOME", str(tmp_path / "laptop"))
            with Editor(node, "wss", "--via", "door/gpu2") as editor:
                editor.open_session()
                prompt = editor.prompt("before", gates[0].command, "between", gates[1].command, "after")
                editor.until_told("before")
                way.cut()
                gates[0].open()
                way.mend()
                editor.until_told("between")
                door.process.kill()
                door.process.wait(60)
                gates[1].open()
                again = start_gateway(door.directory, door.pin)
                try:
                    assert editor.stop_reason(prompt) == "end_turn"
                    assert editor.told == ["before", "between", "after"]
                    assert len(editor.answers_to(prompt)) == 1
                finally:
                    again.stop()
    finally:
        door.stop()
        node.stop()


def test_a_box_without_an_open_port_is_used_through_its_door_by_two_commands(tmp_path: Path) -> None:
    for name in ("door", "home"):
        (tmp_path / name).mkdir()
    door = start_gateway(tmp_path / "door", prepare(tmp_path / "door", '[agents.none]\ncommand = ["none"]\n'))
    line = run_program("nodes", "add", "gpu2", "--config", door.config).split("'")[1]
    command = [sys.executable, str(AGENTS / "remembering_agent.py"), tempfile.mkdtemp(dir=WORK)]
    box = subprocess.Popen(
        [*PROGRAM, "up", "--yes", "--door", line, "--", *command],
        cwd=WORK,
        # The path of a socket is short.
        env=ENVIRONMENT | {"HOME": str(tmp_path / "home"), "XDG_STATE_HOME": str(tmp_path / "s")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    again = None
    try:
        assert box.stderr is not None
        log = []
        for said in box.stderr:
            log.append(said)
            if "lending connections to the door" in said:
                break
        assert "lending connections" in log[-1], log
        assert not [said for said in log if "listening on wss" in said or "listening on ws" in said]
        with Editor(door, "wss", "--agent", "gpu2/remembering_agent") as editor:
            editor.open_session()
            assert editor.talk("said on the box") == "end_turn"
            assert editor.told == ["said on the box"]
            nodes = json.loads(run_program("nodes", "--json", "--config", door.config))
            assert [(node["name"], node["up"], node["lends"]) for node in nodes] == [("gpu2", True, True)]
            # The box connects again to a door that was killed, and the link resumes.
            gate = Gate()
            prompt = editor.prompt("before the kill", gate.command, "after it")
            editor.until_told("before the kill")
            door.process.kill()
            door.process.wait(60)
            again = start_gateway(door.directory, door.pin)
            gate.open()
            assert editor.stop_reason(prompt) == "end_turn"
            assert editor.told == ["said on the box", "before the kill", "after it"]
            assert len(editor.answers_to(prompt)) == 1
    finally:
        box.terminate()
        box.communicate(timeout=60)
        for each in (door, again):
            if each is not None:
                each.stop()
