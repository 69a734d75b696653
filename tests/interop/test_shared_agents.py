"""Agents of others whose answers, processes or tools are more than the protocol says, behind a gateway."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.config.agent_search import needed_scope
from tests.end_to_end.playing import Editor
from tests.interop.model_server import NAMES, model_server
from tests.interop.sdk_clients import node_version
from tests.interop.test_fenced_agents import for_opencode, for_pi, for_qwen, installed
from tests.kit.running import ENVIRONMENT, WORK, RunningGateway, prepare, start_gateway

pytestmark = pytest.mark.interop

TOOL = "borrow_secret"


@contextmanager
def gateway_of(
    directory: Path, command: list[str], variables: dict[str, str], **options: str
) -> Iterator[RunningGateway]:
    """A gateway whose agent has a home of its own below the directory."""
    env = {"HOME": str(directory / "home"), "PATH": os.environ["PATH"], **variables}
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in {"command": command, **options}.items()]
    pairs = ", ".join(f"{name} = {json.dumps(value)}" for name, value in env.items())
    gateway = start_gateway(directory, prepare(directory, f"[agents.tried]\n{''.join(lines)}env = {{ {pairs} }}\n"))
    try:
        yield gateway
    finally:
        gateway.stop()


@contextmanager
def editor_of(gateway: RunningGateway, *options: str) -> Iterator[Editor]:
    """An initialized editor, with further options of `connect`."""
    command = gateway.connect_command("tcp", *options)
    with subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            made = Editor(process)
            made.call("initialize", protocolVersion=1, clientCapabilities={})
            yield made
        finally:
            process.kill()


def said(messages: list[dict[str, Any]]) -> str:
    """The updates of a turn, as one text."""
    return json.dumps(
        [message["params"]["update"] for message in messages if message.get("method") == "session/update"]
    )


def test_qwen_gets_the_answers_that_a_client_gives_beside_the_outcome(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    with (
        model_server() as url,
        gateway_of(tmp_path, [installed("qwen"), "--acp"], for_qwen(tmp_path / "home", url)) as gateway,
        editor_of(gateway) as editor,
    ):
        turn = editor.begin_prompt(editor.new_session(), "ask: Which database?")
        asked = editor.hears("session/request_permission")
        chosen = {"outcome": "selected", "optionId": asked["params"]["options"][0]["optionId"]}
        editor.respond(asked["id"], outcome=chosen, answers={"0": "Postgres"})
        assert "Postgres" in said(editor.until(turn))


def test_a_turn_of_pi_goes_on_while_another_client_opens_a_session(tmp_path: Path) -> None:
    if node_version() < 22:
        pytest.skip("pi needs Node.js 22.19")
    home, command = tmp_path / "home", [installed("pi-acp")]
    home.mkdir()
    scope = needed_scope(command)
    assert scope is not None
    path = f"{os.path.dirname(installed('pi'))}:{os.environ['PATH']}"
    with (
        model_server() as url,
        gateway_of(tmp_path, command, {**for_pi(home, url), "PATH": path}, scope=scope) as gateway,
        editor_of(gateway) as first,
        editor_of(gateway) as second,
    ):
        turn = first.begin_prompt(first.new_session(), "run: sleep 5; echo through")
        first.hears("session/update")
        assert second.prompt(second.new_session(), "hello") == "end_turn"
        assert "through" in said(first.until(turn))


@pytest.mark.parametrize("policy", ["allow", "share"])
def test_the_tools_of_one_identity_are_the_others_only_where_the_policy_shares_them(
    policy: str, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    server = {
        "name": "lender",
        "command": sys.executable,
        "args": [str(Path(__file__).with_name("mcp_server.py")), TOOL],
    }
    with (
        model_server() as url,
        gateway_of(
            tmp_path,
            [installed("opencode"), "acp"],
            for_opencode(home, url),
            scope="shared",
            mcp_servers=policy,
        ) as gateway,
        editor_of(gateway) as ann,
        editor_of(
            gateway, "--token-file", str(gateway.save_token("token", "create", "--label", "b", "--identity", "bob"))
        ) as bob,
    ):
        opened = ann.call("session/new", cwd=str(WORK), mcpServers=[{**server, "env": []}])["sessionId"]
        others = bob.new_session()
        for editor, session in ((ann, opened), (bob, others)):
            told = said(editor.until(editor.begin_prompt(session, NAMES)))
            assert "bash" in told
            assert (TOOL in told) is (policy == "share")
