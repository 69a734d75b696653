"""How a session is opened again on a new link."""

import json
from typing import Any

import pytest

from acp_gateway.client.reopening import SessionRestore, restore_method


def own_meta(request: bytes) -> Any:
    return json.loads(request)["params"]["_meta"]["acp-gateway"]


# The request


def test_a_session_is_opened_with_what_the_editor_has_opened_it_with() -> None:
    params = b'{ "cwd":"/x", "n":1.10,"_meta":{"own":1e999,"acp-gateway":1},"mcpServers":[{"name":"m"}]}'
    assert SessionRestore("s", None).request(b'"r"', "session/resume", params, "c1") == (
        b'{"jsonrpc":"2.0","id":"r","method":"session/resume","params":{"sessionId":"s", "cwd":"/x", "n":1.10,'
        b'"_meta":{"own":1e999,"acp-gateway":{"prompts":[],"questions":[],"connection":"c1"}},'
        b'"mcpServers":[{"name":"m"}]}}'
    )


def test_the_id_of_the_session_replaces_another() -> None:
    request = SessionRestore("fork", None).request(b"1", "session/resume", b'{"sessionId":"origin"}', "c1")
    assert json.loads(request)["params"]["sessionId"] == "fork"


def test_the_id_of_the_request_is_kept_for_its_answer() -> None:
    reopening = SessionRestore("s", None)
    assert reopening.raw_id == b""
    reopening.request(b'"r"', "session/resume", b"{}", "c1")
    assert reopening.raw_id == b'"r"'


@pytest.mark.parametrize(
    ("method", "params", "servers"),
    [
        ("session/load", b"{}", []),
        ("session/load", b'{"mcpServers":[{"name":"m"}]}', [{"name": "m"}]),
        ("session/resume", b"{}", None),
    ],
)
def test_a_load_always_names_servers(method: str, params: bytes, servers: Any) -> None:
    request = SessionRestore("s", None).request(b"1", method, params, "c1")
    assert json.loads(request)["params"].get("mcpServers") == servers


def test_the_gateway_is_told_what_the_editor_has_seen_and_what_is_open() -> None:
    reopening = SessionRestore("s", ("e", 5), prompts=[b"1", b'"two"'], questions=[b"7.0"])
    request = reopening.request(b"1", "session/resume", b"{}", "c1")
    assert own_meta(request) == {
        "epoch": "e",
        "position": 5,
        "connection": "c1",
        "prompts": [1, "two"],
        "questions": [7.0],
    }
    assert b'"questions":[7.0]' in request


def test_a_position_that_is_unknown_is_left_out() -> None:
    request = SessionRestore("s", None).request(b"1", "session/resume", b"{}", "c1")
    assert own_meta(request) == {"connection": "c1", "prompts": [], "questions": []}


# What comes meanwhile


def test_updates_are_swallowed_and_counted() -> None:
    reopening = SessionRestore("s", ("e", 5))
    assert [reopening.swallow(), reopening.swallow()] == [True, True]
    assert (reopening.swallowed, reopening.marked) == (2, False)


def test_updates_pass_behind_a_mark_of_the_epoch_that_the_gateway_was_told() -> None:
    reopening = SessionRestore("s", ("e", 5))
    reopening.swallow()
    reopening.mark("e")
    assert reopening.marked
    assert not reopening.swallow()
    assert reopening.swallowed == 1


@pytest.mark.parametrize("told", [("e", 5), None])
def test_updates_do_not_pass_behind_a_mark_of_another_epoch(told: tuple[str, int] | None) -> None:
    reopening = SessionRestore("s", told)
    reopening.mark("f")
    assert reopening.marked
    assert reopening.swallow()


def test_a_session_that_goes_on_goes_on_whatever_the_next_mark_says() -> None:
    reopening = SessionRestore("s", ("e", 5))
    reopening.mark("e")
    reopening.mark("f")
    assert not reopening.swallow()


# The way


@pytest.mark.parametrize(
    ("capabilities", "method"),
    [
        ({"sessionCapabilities": {"resume": {}}, "loadSession": True}, "session/resume"),
        ({"sessionCapabilities": {"resume": {}}}, "session/resume"),
        ({"sessionCapabilities": {"resume": None}, "loadSession": True}, "session/load"),
        ({"sessionCapabilities": {"resume": False}, "loadSession": True}, "session/load"),
        ({"loadSession": True}, "session/load"),
        ({"loadSession": False}, None),
        ({"loadSession": {}}, None),
        ({}, None),
        (None, None),
    ],
)
def test_a_session_is_resumed_where_the_agent_can_and_loaded_where_it_can_not(capabilities: Any, method: Any) -> None:
    assert restore_method(json.dumps({"id": 1, "result": {"agentCapabilities": capabilities}}).encode()) == method
