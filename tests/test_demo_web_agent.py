"""The agent of `make demo-web` keeps to the protocol, and changes nothing that was not permitted."""

import asyncio
import json
from pathlib import Path
from typing import Any

import acp.schema
import pytest

from examples.demo_web_agent import AFTER, BEFORE, FILE, LivelyAgent, NewLivelyAgent
from tests.kit.schemas import check_message

Message = dict[str, Any]


async def turn(cwd: Path, option: str, make: type[LivelyAgent] = LivelyAgent) -> list[Message]:
    """Return what the agent sends in a session with one prompt, whose question is answered by an option."""
    received: asyncio.Queue[Message] = asyncio.Queue()
    agent = make(received.put_nowait, delay=0)

    def send(**message: object) -> None:
        agent.receive(json.dumps({"jsonrpc": "2.0", **message}).encode())

    (cwd / FILE).write_text(BEFORE)
    send(id=0, method="initialize", params={"protocolVersion": 1})
    send(id=1, method="session/new", params={"cwd": str(cwd), "mcpServers": []})
    messages: list[Message] = []
    async with asyncio.timeout(30):
        while not messages or not is_end(messages[-1]):
            messages.append(await received.get())
            match messages[-1]:
                case {"id": 1, "result": {"sessionId": session}}:
                    if make is LivelyAgent:
                        send(id=2, method="session/set_mode", params={"sessionId": session, "modeId": "plan"})
                    else:
                        chosen = {"sessionId": session, "configId": "mode", "type": "id", "value": "plan"}
                        send(id=2, method="session/set_config_option", params=chosen)
                    prompt = [{"type": "text", "text": "Correct it"}]
                    send(id=3, method="session/prompt", params={"sessionId": session, "prompt": prompt})
                case {"id": request, "method": "session/request_permission"}:
                    send(id=request, result={"outcome": {"outcome": "selected", "optionId": option}})
    return messages


def is_end(message: Message) -> bool:
    """True for the message that ends the turn, in either version."""
    match message:
        case {"id": 3, "result": {"stopReason": _}}:
            return True
        case {"params": {"update": {"sessionUpdate": "state_update", "state": "idle"}}}:
            return True
    return False


def updates(messages: list[Message]) -> list[Message]:
    return [message["params"]["update"] for message in messages if message.get("method") == "session/update"]


@pytest.mark.parametrize("option", ["allow", "reject"])
def test_what_the_agent_sends_is_valid_by_the_official_schema(tmp_path: Path, option: str) -> None:
    for message in asyncio.run(turn(tmp_path, option)):
        match message:
            case {"method": "session/update", "params": params}:
                acp.schema.SessionNotification.model_validate(params)
            case {"method": "session/request_permission", "params": params}:
                acp.schema.RequestPermissionRequest.model_validate(params)
            case {"id": 0, "result": result}:
                acp.schema.InitializeResponse.model_validate(result)
            case {"id": 1, "result": result}:
                acp.schema.NewSessionResponse.model_validate(result)
            case {"id": 3, "result": result}:
                assert result == {"stopReason": "end_turn"}


def test_a_turn_has_a_title_thoughts_a_plan_a_diff_terminal_output_and_usage(tmp_path: Path) -> None:
    sent = updates(asyncio.run(turn(tmp_path, "allow")))
    kinds = {update["sessionUpdate"] for update in sent}
    assert kinds >= {"agent_thought_chunk", "plan", "tool_call", "usage_update", "current_mode_update"}
    assert [update["title"] for update in sent if update["sessionUpdate"] == "session_info_update"] == ["Correct it"]
    plans = [update["entries"] for update in sent if update["sessionUpdate"] == "plan"]
    assert {entry["status"] for entry in plans[-1]} == {"completed"}
    assert any("terminal_output" in update.get("_meta", {}) for update in sent)
    calls = {update["toolCallId"]: update["status"] for update in sent if "status" in update}
    assert set(calls.values()) == {"completed"}
    assert (tmp_path / FILE).read_text() == AFTER


METHODS = {0: "initialize", 1: "session/new", 2: "session/set_config_option", 3: "session/prompt"}


@pytest.mark.parametrize("option", ["allow", "reject"])
def test_what_the_agent_sends_in_version_2_is_valid_by_the_official_schema(tmp_path: Path, option: str) -> None:
    messages = asyncio.run(turn(tmp_path, option, NewLivelyAgent))
    for message in messages:
        check_message(2, "client", message, METHODS.get(message.get("id", -1), ""))
    asked = [
        message["params"]["title"] for message in messages if message.get("method") == "session/request_permission"
    ]
    assert asked == ["Edit basket.py"]


def test_a_turn_of_version_2_has_two_plans_changes_of_files_and_a_terminal(tmp_path: Path) -> None:
    sent = updates(asyncio.run(turn(tmp_path, "allow", NewLivelyAgent)))
    plans = [update["plan"]["planId"] for update in sent if update["sessionUpdate"] == "plan_update"]
    assert (set(plans), sent[-1]["stopReason"]) == ({"work", "notes"}, "end_turn")
    assert [update["planId"] for update in sent if update["sessionUpdate"] == "plan_removed"] == ["notes"]
    (edit,) = [update for update in sent if update.get("kind") == "edit"]
    assert [change["operation"] for change in edit["content"][0]["changes"]] == ["modify", "move", "delete", "add"]
    assert len([update["terminalId"] for update in sent if update["sessionUpdate"] == "terminal_output_chunk"]) > 3
    states = [update["state"] for update in sent if update["sessionUpdate"] == "state_update"]
    assert states == ["running", "requires_action", "running", "idle"]
    assert (tmp_path / FILE).read_text() == AFTER


def test_a_change_that_is_rejected_is_not_made(tmp_path: Path) -> None:
    sent = updates(asyncio.run(turn(tmp_path, "reject")))
    assert (tmp_path / FILE).read_text() == BEFORE
    assert [update["status"] for update in sent if update.get("status") == "failed"] == ["failed"]


def test_the_code_of_the_scene_does_what_its_summary_says() -> None:
    class Item:
        price, count = 100, 1

    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    exec(BEFORE, before)  # noqa: S102
    exec(AFTER, after)  # noqa: S102
    assert (before["total"]([Item], 20), before["total"]([Item], 120), after["total"]([Item], 20)) == (80, -20, 80)
    with pytest.raises(ValueError, match="120 %"):
        after["total"]([Item], 120)
