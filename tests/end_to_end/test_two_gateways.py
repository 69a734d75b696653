"""Two gateways in a row, as programs: an editor's shim, a gateway, a network, another gateway, an agent.

`tests/server/test_agent_link.py` has the same in one process, with more cuts.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from acp_gateway.security.token_format import mint
from tests.end_to_end.switch import Switch
from tests.end_to_end.test_outages import Editor, Gate, Stock, said_in
from tests.end_to_end.traces import TRACES
from tests.kit import running
from tests.kit.running import AGENTS, RunningGateway, prepare, start_gateway


@contextmanager
def far_gateway(directory: Path) -> Iterator[RunningGateway]:
    """The gateway that runs the agent."""
    directory.mkdir()
    (directory / "sessions").mkdir()
    command = [sys.executable, str(AGENTS / "remembering_agent.py"), str(directory / "sessions")]
    pin = prepare(directory, f"[agents.memory]\ncommand = {json.dumps(command)}\neof_grace = 0.1\n")
    gateway = start_gateway(directory, pin)
    try:
        yield gateway
    finally:
        assert gateway.stop() == 0, "".join(gateway.log)


@contextmanager
def near_gateway(directory: Path, far: RunningGateway, way: Switch) -> Iterator[RunningGateway]:
    """The gateway that editors use, which is in a hurry to reconnect."""
    directory.mkdir()
    url = f"wss://127.0.0.1:{way.port}/acp"
    wrong = directory / "wrong"
    wrong.touch(0o600)
    wrong.write_text(TRACES.note_tokens_in(mint()))
    agents = "".join(
        f'[agents.{name}]\nurl = "{at}"\npin = "{far.pin}"\ntoken_file = "{token}"\nconnect_timeout = {seconds}\n'
        for name, at, token, seconds in [
            ("far", url, far.token_file, 60.0),
            ("refused", url, wrong, 60.0),
            # Nothing listens there.
            ("absent", "wss://127.0.0.1:1/acp", far.token_file, 0.5),
        ]
    )
    pin = prepare(directory, agents, more='default_agent = "far"\n')
    os.mkfifo(directory / "tasks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "PROGRAM", [sys.executable, str(AGENTS / "hurried.py"), str(directory / "tasks")])
        gateway = start_gateway(directory, pin)
    try:
        yield gateway
    finally:
        assert gateway.stop() == 0, "".join(gateway.log)


@pytest.mark.slow
def test_a_cut_between_two_gateways_in_mid_turn_is_a_pause_and_errors_name_their_cause(tmp_path: Path) -> None:
    gates = [Gate(), Gate()]
    with far_gateway(tmp_path / "far") as far:
        port = urlsplit(far.urls["wss"]).port
        assert port is not None
        with Switch(port).running() as way, near_gateway(tmp_path / "near", far, way) as near:
            with Editor(near, "unix") as editor:
                editor.open_session()
                prompt = editor.prompt("before the cut", gates[0].command, "during the cut", gates[1].command, "later")
                editor.until_told("before the cut")
                way.cut()
                near.read_log_until("agent far: lost the connection")
                gates[0].open()
                # A message of the editor during this arrives as well.
                editor.send(method="_test/later", params={"sessionId": editor.session})
                way.mend()
                near.read_log_until("agent far: resumed after")
                editor.until_told("during the cut")
                gates[1].open()
                assert editor.stop_reason(prompt) == "end_turn"
                assert editor.talk("once more") == "end_turn"
            kinds = [said_in(message) for message in editor.heard if message.get("method") == "session/update"]
            told = [text for kind, text in kinds if kind == "agent_message_chunk"]
            assert told == ["before the cut", "during the cut", "later", "once more"]
            assert len(editor.answers_to(prompt)) == 1
            heard = (far.directory / "sessions" / "heard").read_text().splitlines()
            methods = [json.loads(line).get("method") for line in heard]
            assert methods == ["initialize", "session/new", "session/prompt", "_test/later", "session/prompt"]
            for name, why in (("refused", "token"), ("absent", "refused; is the agent running on 127.0.0.1?")):
                with Stock(near, agent=name) as stock:
                    error = stock.ask("initialize", {"protocolVersion": 1})["error"]
                    assert why in error["message"], error
                line = near.read_log_until(f"ERROR   agent {name}: ")
                assert f"the agent {name} cannot be reached: " in line
