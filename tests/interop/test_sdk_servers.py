"""The shim as a client of the TypeScript SDK's HTTP server, which is killed and started again."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from acp_gateway.protocol.gaps import MAY_BE_MISSING, SESSION_LOST
from tests.interop.sdk_clients import INSTALLED
from tests.kit.foreign_http import Editor, connected, server_program

pytestmark = pytest.mark.interop

SERVER = Path(__file__).with_name("typescript_server.mjs")


@contextmanager
def typescript_server(directory: Path, port: int = 0) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run the server, with its sessions in a directory; yield its process and its port."""
    with server_program("node", "--no-warnings", SERVER, INSTALLED, directory, str(port)) as running:
        yield running


def begin_turn(editor: Editor) -> str:
    """Begin a turn that does not end; return its session."""
    session = editor.new_session()
    editor.begin_prompt(session, "one", "two", "wait")
    editor.receive_updates(2)
    return session


def test_the_typescript_server_is_used_with_permissions_and_cancels(tmp_path: Path) -> None:
    with typescript_server(tmp_path) as (_, port), connected(f"http://127.0.0.1:{port}/acp") as editor:
        session = editor.new_session()
        assert editor.prompt(session, "ask")["result"]["stopReason"] == "end_turn"
        editor.begin_prompt(session, "one", "wait")
        editor.receive_updates(2)
        editor.send(method="session/cancel", params={"sessionId": session})
        assert editor.receive()["result"]["stopReason"] == "cancelled"
        assert editor.updates == ["yes", "one"]


def test_a_turn_is_answered_and_its_session_goes_on_after_a_kill_of_the_typescript_server(tmp_path: Path) -> None:
    with typescript_server(tmp_path) as (first, port), connected(f"http://127.0.0.1:{port}/acp") as editor:
        session = begin_turn(editor)
        first.kill()
        first.wait()
        with typescript_server(tmp_path, port):
            assert editor.receive()["result"]["stopReason"] == "cancelled"
            assert editor.prompt(session, "three")["result"]["stopReason"] == "end_turn"
            assert editor.updates == ["one", "two", MAY_BE_MISSING, "three"]


def test_a_session_that_the_typescript_server_has_lost_is_reported_after_a_kill(tmp_path: Path) -> None:
    with typescript_server(tmp_path) as (first, port), connected(f"http://127.0.0.1:{port}/acp") as editor:
        session = begin_turn(editor)
        first.kill()
        first.wait()
        (tmp_path / f"{session}.session").unlink()
        with typescript_server(tmp_path, port):
            assert editor.receive()["result"]["stopReason"] == "cancelled"
            assert editor.updates == ["one", "two", SESSION_LOST]
            assert "error" in editor.prompt(session, "three")
            assert editor.prompt(editor.new_session(), "four")["result"]["stopReason"] == "end_turn"
