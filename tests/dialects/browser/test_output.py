"""Dialogues of `/ws`: what the agent sends, and what a browser gets for it."""

import json
from typing import Any

import pytest

from acp_gateway.dialects.browser import output as browser_output
from acp_gateway.protocol import jsonrpc


def update(kind: str = "agent_message_chunk", session: str = "s", **members: Any) -> bytes:
    params = {"sessionId": session, "update": {"sessionUpdate": kind, **members}}
    return json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}).encode()


def test_updates_are_numbered_named_and_dated() -> None:
    found = browser_output.entries("s", [update("user_message_chunk"), update("plan")], 12, [None, 1_700_000_000_123])
    assert json.loads(browser_output.updated("s", found)) == {
        "jsonrpc": "2.0",
        "method": "session/updated",
        "params": {
            "sessionId": "s",
            "updates": [
                {
                    "seq": 12,
                    "updateType": "user_message",
                    "payload": {"sessionUpdate": "user_message_chunk"},
                    "createdAt": None,
                },
                {
                    "seq": 13,
                    "updateType": "plan",
                    "payload": {"sessionUpdate": "plan"},
                    "createdAt": "2023-11-14T22:13:20.123Z",
                },
            ],
        },
    }


def test_an_update_of_a_sub_agent_names_its_session() -> None:
    (entry,) = browser_output.entries("s", [update(session="child")], 1, [None])
    assert json.loads(entry)["sub"] == "child"


@pytest.mark.parametrize("content", [rb'"\ud83d"', b'{"n":1.10,"n":1e999}', '"\u2028é"'.encode(), b"[ 1 ,2]"])
def test_an_update_passes_verbatim(content: bytes) -> None:
    payload = b'{ "sessionUpdate" : "later" , "content":' + content + b"}"
    message = b'{"method":"session/update","params":{"sessionId":"s","update":' + payload + b"}}"
    (entry,) = browser_output.entries("s", [message], 1, [None])
    assert entry == b'{"seq":1,"updateType":"later","payload":' + payload + b',"createdAt":null}'


def test_a_status_has_only_the_members_that_are_known() -> None:
    assert json.loads(browser_output.status_changed("s", "running"))["params"] == {
        "sessionId": "s",
        "status": "running",
    }
    told = browser_output.status_changed("s", "error", "process_exit", "refusal", {"code": -1, "message": "x"})
    assert json.loads(told)["params"] == {
        "sessionId": "s",
        "status": "error",
        "exitReason": "process_exit",
        "stopReason": "refusal",
        "error": {"code": -1, "message": "x"},
    }


def test_a_request_of_the_agent_has_its_params_verbatim() -> None:
    message = jsonrpc.parse(b'{"id":"a","method":"session/request_permission","params":{"sessionId":"s", "n":1.0}}')
    assert browser_output.request("s", "r-7", message) == (
        b'{"jsonrpc":"2.0","method":"session/request","params":{"sessionId":"s","requestId":"r-7",'
        b'"requestType":"session/request_permission","request":{"sessionId":"s", "n":1.0}}}'
    )
    assert browser_output.pending_request("r-7", message) == (
        b'{"requestId":"r-7","requestType":"session/request_permission","payload":{"sessionId":"s", "n":1.0}}'
    )


def test_a_resolved_request_tells_who_has_decided_and_what() -> None:
    message = jsonrpc.parse(b'{"id":"a","method":"session/request_permission"}')
    (told,) = browser_output.BROWSER_OUTPUT.request_resolved("s", "r-7", message, "ann", "Allow")
    params = {"sessionId": "s", "requestId": "r-7", "by": "ann", "outcome": "Allow"}
    assert json.loads(told) == {"jsonrpc": "2.0", "method": "session/request_resolved", "params": params}


def test_the_other_notifications() -> None:
    assert json.loads(*browser_output.BROWSER_OUTPUT.reset("s", "e"))["params"] == {"sessionId": "s", "epoch": "e"}
    assert json.loads(browser_output.changed({"id": "s"}))["params"] == {"session": {"id": "s"}}
    assert json.loads(browser_output.removed("s"))["params"] == {"sessionId": "s"}
