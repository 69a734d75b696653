"""A node behind a door that carries its bytes, as programs: `connect --via`, cut in mid-turn."""

import json
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.end_to_end.running import AGENTS, ENVIRONMENT, RunningGateway, prepare, start_gateway
from tests.end_to_end.switch import Switch
from tests.end_to_end.test_outages import Editor, Gate

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
