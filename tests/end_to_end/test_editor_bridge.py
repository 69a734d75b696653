"""An editor that speaks HTTP with the real program: beside an ACP editor, across a restart, with a body that lies."""

import asyncio
import http.client
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.end_to_end.parties import party, run, texts
from tests.end_to_end.traces import TRACES
from tests.kit.running import AGENTS, ENVIRONMENT, WORK, RunningGateway, prepare, start_gateway

ROOT = Path(__file__).parents[2]


class Turn:
    """A message that is being answered in lines. Its methods block."""

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        self.lines: list[dict[str, Any]] = []
        self._connection = connection
        self._response = response

    def until(self, kind: str) -> dict[str, Any]:
        """The next line of this kind."""
        while True:
            line = self._response.readline()
            assert line, self.lines
            self.lines.append(json.loads(line))
            if self.lines[-1]["type"] == kind:
                return self.lines[-1]

    @property
    def text(self) -> str:
        return "".join(line["content"] for line in self.lines if line["type"] == "text")

    def abort(self) -> None:
        """Close the connection, as a page does that wants the answer no more."""
        self._response.close()
        self._connection.close()


class HttpEditor:
    """An editor that speaks HTTP. Its methods block."""

    def __init__(self, gateway: RunningGateway) -> None:
        self._at = urlsplit(gateway.urls["ws"]).netloc
        self._headers = {"Content-Type": "application/json", "Authorization": f"Bearer {gateway.token}"}

    @contextmanager
    def sent(self, text: str, composer: str = "c", **provider: Any) -> Iterator[Turn]:
        connection = http.client.HTTPConnection(self._at, timeout=60)
        body = {"provider": {"id": "memory", **provider}, "message": text, "composerId": composer, "stream": True}
        connection.request("POST", "/acp/sendMessage", json.dumps(body), self._headers)
        turn = Turn(connection, connection.getresponse())
        try:
            yield turn
        finally:
            turn.abort()

    def answered(self, text: str, composer: str = "c", **provider: Any) -> str:
        """The text of a whole turn."""
        with self.sent(text, composer, **provider) as turn:
            assert turn.until("done")["stopReason"] == "end_turn"
        return turn.text

    def post(self, call: str, **body: Any) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(self._at, timeout=60)
        try:
            connection.request("POST", f"/acp/{call}", json.dumps(body), self._headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def session(self, composer: str = "c") -> str:
        status, found = self.post("getSession", provider={"id": "memory"}, composerId=composer)
        assert status == 200, found
        return str(found["sessionId"])


def set_up(directory: Path) -> str:
    (directory / "memory").mkdir()
    command = [sys.executable, str(AGENTS / "remembering_agent.py"), str(directory / "memory")]
    demo = [sys.executable, str(ROOT / "examples" / "demo_agent.py"), "--delay", "0"]
    agents = f"[agents.memory]\ncommand = {json.dumps(command)}\n[agents.demo]\ncommand = {json.dumps(demo)}\n"
    pin = prepare(directory, agents, more='default_agent = "memory"')
    config = directory / "config.toml"
    serves = 'serves = ["acp", "editor"]\n'
    config.write_text(re.sub(r'url = "ws://.*"\n', rf"\g<0>{serves}", config.read_text()))
    return pin


def calls(directory: Path, method: str) -> list[str]:
    """The sessions of the agent's messages of a method."""
    lines = (directory / "memory" / "calls").read_text().splitlines()
    return [line.split()[2] for line in lines if line.split()[1] == method]


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[RunningGateway]:
    running = start_gateway(tmp_path, set_up(tmp_path))
    try:
        yield running
    finally:
        assert running.stop() == 0, "".join(running.log)
        assert "Traceback" not in "".join(running.log)


def test_an_acp_editor_over_wss_and_an_http_editor_share_a_session_and_its_permissions(gateway: RunningGateway) -> None:
    editor = HttpEditor(gateway)

    async def scenario() -> None:
        assert await asyncio.to_thread(editor.answered, "one") == "one"
        session = await asyncio.to_thread(editor.session)
        async with party(gateway, "wss") as other:
            await other.agent.load_session(cwd=str(WORK), session_id=session)
            with editor.sent("ask") as turn:
                permission = await asyncio.to_thread(turn.until, "permission")
                assert permission["toolCall"]["title"] == "do it"
                await other.decide("yes")
                await asyncio.to_thread(turn.until, "done")
                assert turn.text == "yes"
                late = {"requestId": permission["requestId"], "outcome": {"outcome": "selected", "optionId": "no"}}
                assert (await asyncio.to_thread(lambda: editor.post("respond", **late)))[0] == 404
            with editor.sent("ask") as turn:
                permission = await asyncio.to_thread(turn.until, "permission")
                await other.until(lambda: len(other.asked()) == 2)
                no = {"requestId": permission["requestId"], "outcome": {"outcome": "selected", "optionId": "no"}}
                assert await asyncio.to_thread(lambda: editor.post("respond", **no)) == (200, {"success": True})
                await asyncio.to_thread(turn.until, "done")
                assert turn.text == "no"
            await other.until(lambda: len(other.withdrawn()) == 1)
            assert await other.prompt(session, "two") == "end_turn"
            assert await asyncio.to_thread(editor.answered, "three") == "three"
            await other.until_told(session, "three")
            assert texts(other.updates(session)) == ["one", "yes", "no", "two", "three"]
            assert texts(other.updates(session), "user_message_chunk") == ["one", "ask", "ask", "three"]

    run(scenario())


def test_an_abort_and_a_second_message_cancel_the_turn(gateway: RunningGateway) -> None:
    editor = HttpEditor(gateway)
    with editor.sent("wait") as turn:
        turn.abort()
    assert editor.answered("after an abort") == "after an abort"
    with editor.sent("wait") as first:
        assert editor.answered("after another") == "after another"
        assert first.until("done")["stopReason"] == "cancelled"
    session = editor.session()
    assert calls(gateway.directory, "session/cancel") == [session, session]
    assert set(calls(gateway.directory, "session/prompt")) == {session}


def test_a_composer_finds_its_session_again_after_a_restart_of_the_gateway(tmp_path: Path) -> None:
    pin, sessions = set_up(tmp_path), []
    for number in range(2):
        gateway = start_gateway(tmp_path, pin)
        try:
            editor = HttpEditor(gateway)
            assert editor.answered(f"message {number}") == f"message {number}"
            sessions.append(editor.session())
            assert editor.session("another") != sessions[0]
        finally:
            assert gateway.stop() == 0
        assert "Traceback" not in "".join(gateway.log)
    assert sessions[0] == sessions[1]
    assert calls(tmp_path, "session/load") == [sessions[0]]
    assert len(calls(tmp_path, "session/new")) == 2
    assert (tmp_path / "state" / "composers.json").stat().st_mode & 0o777 == 0o600


def test_the_command_of_a_body_is_not_run(gateway: RunningGateway) -> None:
    touched = gateway.directory / "touched"
    editor = HttpEditor(gateway)
    assert editor.answered("hi", command="touch", args=[str(touched)], env={"SECRET": "of the body"}) == "hi"
    status, refused = editor.post("initSession", provider={"id": "touch", "command": "touch", "args": [str(touched)]})
    assert (status, refused["error"]) == (404, True)
    assert not touched.exists()
    audit = (gateway.directory / "state" / "audit.jsonl").read_text()
    entries = [json.loads(line) for line in audit.splitlines() if "ignored_provider_command" in line]
    assert [entry["provider"] for entry in entries] == ["memory", "touch"]
    assert str(touched) not in audit
    assert "of the body" not in audit


def test_the_message_of_the_page_works_with_bash_and_curl_as_it_is_written(
    gateway: RunningGateway, tmp_path: Path
) -> None:
    if shutil.which("bash") is None or shutil.which("curl") is None:
        pytest.skip("bash or curl is not installed")
    page = (ROOT / "docs" / "dialects.md").read_text()
    found = re.search(r"<!-- checked: editor -->\n```bash\n(.*?)```", page, re.DOTALL)
    assert found is not None
    address = "http://127.0.0.1:37842"
    assert found[1].count(address) == 1
    program = found[1].replace(address, f"http://{urlsplit(gateway.urls['ws']).netloc}")
    done = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", program],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    TRACES.note("the message of the page", done.stdout + done.stderr)
    assert (done.returncode, done.stderr) == (0, "")
    # The answer of `respond` has no end of a line.
    told = [json.loads(line.replace('{"success":true}', "")) for line in done.stdout.splitlines()]
    assert [line["seq"] for line in told] == list(range(1, len(told) + 1))
    kinds = [line["type"] for line in told]
    assert {"text", "tool", "permission"} <= set(kinds[:-1])
    assert told[-1] == {"type": "done", "stopReason": "end_turn", "seq": len(told)}
