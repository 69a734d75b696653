"""A client and an agent of version 2: what version 1 has no words for comes through it all the same."""

import json
from base64 import b64decode, b64encode
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.versions import shown
from acp_gateway.versions.new_agent import NewAgent
from acp_gateway.versions.old_agent import OldAgent
from acp_gateway.versions.parts import BACKGROUND_SIZE
from acp_gateway.versions.shown import CANCELLED
from tests.fuzz.effort import effort
from tests.kit.folds import NEW_UPDATES, NewTranscript
from tests.kit.schemas import check_message
from tests.kit.versions import S, content, notification, own, request, result, text, update

Json = Any


class Through:
    """A client and an agent of version 2, with version 1 between them."""

    def __init__(self) -> None:
        self.new_agent, self.old_agent = NewAgent(), OldAgent()

    def says(self, *messages: bytes) -> list[Json]:
        """Return the updates that the client gets for these of the agent."""
        found = []
        for inner in (sent for message in messages for sent in self.new_agent.from_agent(message).to_client):
            for sent in map(json.loads, self.old_agent.from_agent(inner, 0).to_client):
                check_message(2, "client", sent)
                found.append(sent["params"]["update"])
        return found


def encoded(words: str) -> str:
    return b64encode(words.encode()).decode()


def runs(*items: Json, **members: Json) -> bytes:
    return update("tool_call_update", toolCallId="t", title="T", content=list(items), **members)


TERMINAL = {"type": "terminal", "terminalId": "x"}


def test_a_terminal_is_one_again() -> None:
    it = Through()
    assert it.says(runs(TERMINAL))[0]["content"] == []
    told, call = it.says(update("terminal_output_chunk", terminalId="x", data=encoded("one")))
    assert told == {"sessionUpdate": "terminal_update", "terminalId": "x", "output": {"data": encoded("one")}}
    assert call == {"sessionUpdate": "tool_call_update", "toolCallId": "t", "content": [TERMINAL]}
    ended, call = it.says(update("terminal_update", terminalId="x", exitStatus={"exitCode": 2}))
    assert (ended["exitStatus"], ended["output"]) == ({"exitCode": 2}, {"data": encoded("one")})
    assert call["content"] == [TERMINAL]
    silent = Through()
    silent.says(runs(TERMINAL))
    (ended, call) = silent.says(update("terminal_update", terminalId="x", exitStatus={"exitCode": 1}))
    assert ended == {"sessionUpdate": "terminal_update", "terminalId": "x", "exitStatus": {"exitCode": 1}}
    assert call["content"] == []


def test_output_that_is_added_while_content_waits_is_a_chunk_or_the_whole() -> None:
    it = OldAgent()

    def said(**told: Json) -> list[Json]:
        sent = update("tool_call_update", toolCallId="t", **own(terminal={"terminalId": "x", **told}))
        return [json.loads(one)["params"]["update"] for one in it.from_agent(sent).to_client]

    assert said(data="é") == [{"sessionUpdate": "terminal_output_chunk", "terminalId": "x", "data": encoded("é")}]
    whole = {"sessionUpdate": "terminal_update", "terminalId": "x", "output": {"data": encoded("all")}}
    assert said(output="all") == [whole]


def test_changes_of_files_are_changes_again() -> None:
    patch_text = "diff --git /b /b\n--- /a\n+++ /b\n@@ -1 +1 @@\n-x\n+y\n"
    changes = [{"operation": "move", "oldPath": "/a", "path": "/b"}, {"operation": "delete", "path": "/c"}]
    diff = {"type": "diff", "changes": changes, "patch": {"format": "git_patch", "text": patch_text}}
    (call,) = Through().says(runs(content("before"), diff, content("after")))
    before, moved, deleted, after = call["content"]
    assert (before, after) == (content("before"), content("after"))
    assert moved["changes"] == [changes[0]]
    assert "-x\n+y\n" in moved["patch"]["text"]
    assert deleted == {"type": "diff", "changes": [changes[1]]}


def test_members_of_others_in_meta_stay() -> None:
    item = {"type": "diff", "path": "/b", "oldText": "x", "newText": "y"}
    meta = {"acp-gateway": {"change": {"operation": "move", "path": "/b"}}, "k": 1}
    sent = update("tool_call", toolCallId="t", title="T", content=[{**item, "_meta": meta}], _meta={"k": 2})
    (out,) = OldAgent().from_agent(sent).to_client
    call = json.loads(out)["params"]["update"]
    assert (call["_meta"], call["content"][0]["_meta"]) == ({"k": 2}, {"k": 1})


def plan(name: str, *steps: str) -> bytes:
    entries = [{"content": step, "priority": "low", "status": "pending"} for step in steps]
    return update("plan_update", plan={"type": "items", "planId": name, "entries": entries})


def test_each_plan_has_its_id_and_one_that_was_removed_is_empty() -> None:
    it = Through()

    def told(message: bytes) -> list[tuple[str, list[str]]]:
        plans = [sent["plan"] for sent in it.says(message)]
        return [(one["planId"], [entry["content"] for entry in one["entries"]]) for one in plans]

    assert told(plan("a", "x")) == [("a", ["x"])]
    assert told(plan("b", "y")) == [("b", ["y"])]
    assert told(update("plan_removed", planId="a")) == [("a", []), ("b", ["y"])]
    assert told(update("plan_removed", planId="b")) == [("b", [])]


def test_a_plan_whose_own_entries_are_not_counted_has_all() -> None:
    entries = [{"content": "x", "priority": "low", "status": "pending"}]
    (sent,) = OldAgent().from_agent(update("plan", entries=entries, **own(plans=["a"]))).to_client
    assert json.loads(sent)["params"]["update"]["plan"]["entries"] == entries
    (sent,) = OldAgent().from_agent(update("plan", entries=entries, **own(other=1))).to_client
    assert json.loads(sent)["params"]["update"]["plan"]["planId"] == "acp-gateway-plan"


def test_a_notice_is_one_again() -> None:
    notice = {"severity": "info", "title": "Slow", "description": "very"}
    assert Through().says(update("notice", **notice)) == [{"sessionUpdate": "notice", **notice}]


def state(name: str, **members: Json) -> bytes:
    return update("state_update", state=name, **members)


def states(sent: list[Json]) -> list[str]:
    return [told["state"] for told in sent if told["sessionUpdate"] == "state_update"]


def test_work_without_a_prompt_and_waiting_are_told() -> None:
    it = Through()
    assert states(it.says(state("running"), state("requires_action"), state("running"))) == [
        *("running", "requires_action", "running")
    ]
    assert states(it.says(state("idle"))) == ["idle"]
    # The core tells the end of a turn, with its reason.
    it.new_agent.from_client(request(1, "session/prompt", sessionId=S, prompt=[text("hi")]))
    assert states(it.says(state("running"))) == []
    it.old_agent.turn_began(S)
    assert states(it.says(state("requires_action"), state("idle", stopReason="refusal"))) == ["requires_action"]
    (end,) = it.old_agent.turn_ended(S).to_client
    assert json.loads(end)["params"]["update"]["state"] == "idle"


def backgrounds(sent: list[Json]) -> list[Json]:
    return [(one["state"], one.get("background")) for one in sent if one["sessionUpdate"] == "state_update"]


def test_work_in_the_background_is_told() -> None:
    it = Through()
    things = [{"type": "tool_call", "toolCallId": "t"}, {"type": "_odd", "n": 1.50}]
    assert backgrounds(it.says(state("running", background=things))) == [("running", things)]
    assert backgrounds(it.says(state("idle", background=things[1:]))) == [("idle", things[1:])]
    assert backgrounds(it.says(state("idle", background=[]))) == [("idle", None)]
    # Within the turn of a prompt, and after it.
    it.new_agent.from_client(request(1, "session/prompt", sessionId=S, prompt=[text("hi")]))
    it.old_agent.turn_began(S)
    assert backgrounds(it.says(state("running", background=things))) == [("running", things)]
    (end,) = it.old_agent.turn_ended(S).to_client
    assert json.loads(end)["params"]["update"]["background"] == things
    # A client that comes later.
    late = OldAgent()
    late.from_client(request(1, "session/resume", sessionId=S, cwd="/"))
    now, _ = map(json.loads, late.from_agent(result(1, own(background=things))).to_client)
    assert backgrounds([now["params"]["update"]]) == [("idle", things)]


@pytest.mark.parametrize("odd", [None, "x", {}, "x" * BACKGROUND_SIZE, [{"type": "_odd", "x": "x" * BACKGROUND_SIZE}]])
def test_what_is_not_a_short_list_is_not_told_as_work_in_the_background(odd: Json) -> None:
    (sent,) = OldAgent().from_agent(update("session_info_update", **own(state="running", background=odd))).to_client
    check_message(2, "client", json.loads(sent))
    assert backgrounds([json.loads(sent)["params"]["update"]]) == [("running", None)]


def test_a_title_that_comes_with_a_state_is_passed_on_without_it() -> None:
    sent = update("session_info_update", title="T", **own(state="running"))
    told, titled = (json.loads(one)["params"]["update"] for one in OldAgent().from_agent(sent).to_client)
    assert (told["state"], titled) == ("running", {"sessionUpdate": "session_info_update", "title": "T"})
    odd = update("session_info_update", title="T", **own(state="_odd"))
    assert len(OldAgent().from_agent(odd).to_client) == 1


def test_an_update_of_another_kind_keeps_its_meta() -> None:
    sent = update("available_commands_update", availableCommands=[], **own(k=1))
    (out,) = OldAgent().from_agent(sent).to_client
    assert json.loads(out)["params"]["update"]["_meta"] == own(k=1)["_meta"]


@pytest.mark.parametrize(
    ("meta", "runs", "told"),
    [
        (own(state="requires_action"), False, "requires_action"),
        (own(state="running"), True, "running"),
        ({}, False, "idle"),
    ],
)
def test_the_history_tells_no_states_and_its_end_the_present_one(meta: Json, runs: bool, told: str) -> None:
    it = OldAgent()
    it.from_client(request(1, "session/resume", sessionId=S, cwd="/", replayFrom={"type": "start"}))
    assert it.from_agent(update("session_info_update", **own(state="requires_action"))).to_client == []
    if runs:
        it.turn_runs(S)
    now, _ = map(json.loads, it.from_agent(result(1, meta)).to_client)
    assert now["params"]["update"]["state"] == told
    # What it does by itself ends when it says so, and a turn when the core does.
    idle = it.from_agent(update("session_info_update", **own(state="idle"))).to_client
    assert len(idle) == (told == "requires_action")


def as_message(one: Json) -> bytes:
    return notification("session/update", sessionId=S, update=one)


@given(st.lists(NEW_UPDATES, max_size=20), st.booleans())
@effort(200)
def test_terminals_and_tool_calls_are_the_same_through_version_1(conversation: list[Json], waits: bool) -> None:
    it, direct, through = Through(), NewTranscript(), NewTranscript()
    for one in [*conversation, {"sessionUpdate": "usage_update", "used": 1, "size": 2}]:
        direct.apply(one)
        with patch.multiple(shown, FREE_REPEATS=0, REPEATS=0) if waits else nullcontext():
            for told in it.says(as_message(one)):
                through.apply(told)
    for name, tool in direct.tools.items():
        items = []
        for item in tool["content"]:
            if item["type"] != "terminal":
                items.append(item)
            elif direct.output(item["terminalId"]):
                items.append(item)
                terminal = through.terminals[item["terminalId"]]
                assert b64decode(b64encode(terminal["output"])).decode() == direct.output(item["terminalId"])
        if tool["status"] == "cancelled":
            items.append(content(CANCELLED))
        assert through.tools[name]["content"] == items


def test_a_message_with_something_else_of_the_gateway_is_a_message() -> None:
    (sent,) = OldAgent().from_agent(update("agent_message_chunk", content=text("x"), **own(other=1))).to_client
    told = json.loads(sent)["params"]["update"]
    assert (told["sessionUpdate"], told["content"]) == ("agent_message_chunk", text("x"))
