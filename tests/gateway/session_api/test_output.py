"""Dialogues of `/ws`: what the agent sends, and what a browser gets for it."""

import json
from typing import Any

import pytest

from acp_gateway.gateway.session_api import output as api_output
from acp_gateway.protocol import jsonrpc


def update(kind: str = "agent_message_chunk", session: str = "s", **members: Any) -> bytes:
    params = {"sessionId": session, "update": {"sessionUpdate": kind, **members}}
    return json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}).encode()


def test_updates_are_numbered_named_and_dated() -> None:
    found = api_output.entries("s", [update("user_message_chunk"), update("plan")], 12, [None, 1_700_000_000_123])
    assert json.loads(api_output.updated("s", found)) == {
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
    (entry,) = api_output.entries("s", [update(session="child")], 1, [None])
    assert json.loads(entry)["sub"] == "child"


@pytest.mark.parametrize("content", [rb'"\ud83d"', b'{"n":1.10,"n":1e999}', '"\u2028é"'.encode(), b"[ 1 ,2]"])
def test_an_update_passes_verbatim(content: bytes) -> None:
    payload = b'{ "sessionUpdate" : "later" , "content":' + content + b"}"
    message = b'{"method":"session/update","params":{"sessionId":"s","update":' + payload + b"}}"
    (entry,) = api_output.entries("s", [message], 1, [None])
    assert entry == b'{"seq":1,"updateType":"later","payload":' + payload + b',"createdAt":null}'


def test_a_status_has_only_the_members_that_are_known() -> None:
    assert json.loads(api_output.status_changed("s", "running"))["params"] == {
        "sessionId": "s",
        "status": "running",
    }
    told = api_output.status_changed("s", "error", "process_exit", "refusal", {"code": -1, "message": "x"})
    assert json.loads(told)["params"] == {
        "sessionId": "s",
        "status": "error",
        "exitReason": "process_exit",
        "stopReason": "refusal",
        "error": {"code": -1, "message": "x"},
    }


@pytest.fixture
def composed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first numbers of the updates that were composed."""
    found: list[int] = []
    compose = api_output.entries

    def entries(session_id: str, messages: Any, first: int, times: Any) -> list[bytes]:
        found.append(first)
        return compose(session_id, messages, first, times)

    monkeypatch.setattr(api_output, "entries", entries)
    return found


def test_the_same_updates_are_composed_once(composed: list[int]) -> None:
    output, messages = api_output.SessionOutput(), [update(), update("plan")]
    one, other = (output.updates("s", list(messages), 1, [None, 5]) for _ in range(2))
    assert (one, composed) == (other, [1])
    (named,) = output.updates("s", messages, 1, [None, 5], "s~2")
    assert json.loads(named)["params"] == json.loads(one[0])["params"] | {"sessionId": "s~2"}
    for changed in (
        output.updates("s", messages, 1, [None, 6]),
        output.updates("s", messages[:1], 1, [None]),
        output.updates("s", [update(content=1), messages[1]], 1, [None, 5]),
        output.updates("t", messages, 1, [None, 5]),
    ):
        assert changed not in (one, [named])
    assert output.updates("s", [], 3, []) == []


def test_the_updates_that_were_told_last_are_kept_for_others(
    composed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    output, message = api_output.SessionOutput(), update()
    monkeypatch.setattr(api_output, "SHARED_SIZE", 3 * len(output.updates("s", [message], 1, [None])[0]))
    for first in (2, 3, 1, 4, 3, 1, 2):
        output.updates("s", [message], first, [None])
    assert composed == [1, 2, 3, 4, 2]
    (large,) = output.updates("s", [message] * 100, 9, [None] * 100)
    assert json.loads(large)["params"]["updates"][99]["seq"] == 108
    output.updates("s", [message], 2, [None])
    assert composed[5:] == [9, 2]


def test_a_request_of_the_agent_has_its_params_verbatim() -> None:
    message = jsonrpc.parse(b'{"id":"a","method":"session/request_permission","params":{"sessionId":"s", "n":1.0}}')
    assert api_output.request("s", "r-7", message) == (
        b'{"jsonrpc":"2.0","method":"session/request","params":{"sessionId":"s","requestId":"r-7",'
        b'"requestType":"session/request_permission","request":{"sessionId":"s", "n":1.0}}}'
    )
    assert api_output.pending_request("r-7", message) == (
        b'{"requestId":"r-7","requestType":"session/request_permission","payload":{"sessionId":"s", "n":1.0}}'
    )


def test_a_resolved_request_tells_who_has_decided_and_what() -> None:
    message = jsonrpc.parse(b'{"id":"a","method":"session/request_permission"}')
    (told,) = api_output.SessionOutput().request_resolved("s", "r-7", message, "ann", "Allow")
    params = {"sessionId": "s", "requestId": "r-7", "by": "ann", "outcome": "Allow"}
    assert json.loads(told) == {"jsonrpc": "2.0", "method": "session/request_resolved", "params": params}


def test_the_other_notifications() -> None:
    assert json.loads(*api_output.SessionOutput().reset("s", "e"))["params"] == {"sessionId": "s", "epoch": "e"}
    assert json.loads(api_output.changed({"id": "s"}))["params"] == {"session": {"id": "s"}}
    assert json.loads(api_output.removed("s"))["params"] == {"sessionId": "s"}
