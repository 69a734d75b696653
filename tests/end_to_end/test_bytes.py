"""Messages pass through the program as the same bytes: ids of every kind, odd spellings, and bad lines."""

import json
import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.kit.running import ENVIRONMENT, RunningGateway, lines_of

INITIALIZE = '{"jsonrpc":"2.0","id":"first","method":"initialize","params":{"protocolVersion":1}}'

IDS = (
    *("0", "1", '"1"', '""', "1.0", "1e2", "-7", "9223372036854775808", "123456789012345678901234567890", "null"),
    *('"9b2e9b0e-52c4-4e0c-9d0a-2f1d5c1f9b11"', '"\\u0041\\/"', '"\\ud83d"', '"é\u2028"', "1E400"),
)


class Shim:
    """`acp-gateway connect` with the raw agent behind it, line by line."""

    def __init__(self, gateway: RunningGateway, transport: str) -> None:
        command = gateway.connect_command(transport, "--agent", "raw")
        self.process = subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._lines = lines_of(self.process)

    def send(self, *lines: str | bytes) -> None:
        assert self.process.stdin is not None
        for line in lines:
            self.process.stdin.write(line.encode() if isinstance(line, str) else line)
            self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def receive(self) -> str:
        return next(self._lines).decode()

    def end_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def close(self) -> None:
        self.end_input()
        assert self.process.wait(60) == 0
        assert self.process.stdout is not None
        self.process.stdout.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def shims() -> Iterator[dict[str, Shim]]:
    """The initialized shims, by transport, which end well after the last test."""
    running: dict[str, Shim] = {}
    try:
        yield running
        for shim in running.values():
            shim.end_input()
        for shim in running.values():
            shim.close()
    finally:
        for shim in running.values():
            shim.kill()


@pytest.fixture(params=["wss", "tcp"])
def shim(gateway: RunningGateway, shims: dict[str, Shim], request: pytest.FixtureRequest) -> Iterator[Shim]:
    """A shim that several tests use. After each, nothing more has come than the test has read."""
    transport: str = request.param
    used = shims.pop(transport, None)
    shim = used or Shim(gateway, transport)
    try:
        if used is None:
            shim.send(INITIALIZE)
            assert '"id":"first"' in shim.receive()
        yield shim
        shim.send('{"jsonrpc":"2.0","id":"last","method":"raw/echo"}')
        assert '"id":"last"' in shim.receive()
        shims[transport] = shim
    finally:
        if transport not in shims:
            shim.kill()


def test_ids_of_every_kind_come_back_with_type_and_spelling(shim: Shim) -> None:
    for id_text in IDS:
        shim.send(f'{{"jsonrpc":"2.0","id":{id_text},"method":"raw/echo","params":{{}}}}')
    for id_text in IDS:
        assert shim.receive().startswith(f'{{"jsonrpc":"2.0","id":{id_text},"result"')


def test_ids_of_the_agents_requests_come_back_with_type_and_spelling(shim: Shim) -> None:
    ids = [id_text for id_text in IDS if id_text != "null"]
    shim.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "raw/ask", "params": {"ids": ids}}))
    answers = []
    for id_text in ids:
        asked = json.loads(shim.receive())
        assert asked["method"] == "raw/asked"
        # Each under an id of the gateway's, whatever the agent's own was.
        shim.send(f'{{"jsonrpc":"2.0","id":{asked["id"]},"result":{{}}}}')
        answers.append(f'{{"jsonrpc":"2.0","id":{id_text},"result":{{}}}}')
    assert json.loads(shim.receive())["result"]["answers"] == answers


@pytest.mark.parametrize(
    "params",
    [
        '{"_meta":{"a":1e999,"b":1.10,"c":-0.0},"z":null}',
        '{ "spaced" :\t[ 1 , 2 ] }',
        '{"text":"a\u2028b\u2029c\u0085d \\u0000 \\ud83d \\/"}',
        '{"inner":{"twice":1,"twice":2}}',
        "null",
        "[1,2]",
    ],
)
def test_params_reach_the_agent_as_the_bytes_they_were(shim: Shim, params: str) -> None:
    line = f'{{"params":{params},"unknown":[],"method":"vendor/thing","id":%s,"jsonrpc":"2.0"}}'
    shim.send(line % '"mine"')
    answer = json.loads(shim.receive())
    assert answer["id"] == "mine"
    # Only the id is another one: the agent gets whole numbers, each once.
    assert re.fullmatch(re.escape(line).replace("%s", "[0-9]+"), answer["result"]["line"])


def test_notifications_of_the_agent_pass_as_the_bytes_they_were(shim: Shim) -> None:
    line = '{"method":"_vendor/news", "params":{"n":1.10,"s":"\\ud83d\u2028"},"jsonrpc":"2.0"}'
    shim.send(json.dumps({"jsonrpc": "2.0", "method": "raw/say", "params": {"line": line}}))
    assert shim.receive() == line
