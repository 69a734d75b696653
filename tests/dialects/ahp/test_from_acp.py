"""Sessions of ACP as actions of the Agent Host Protocol."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.dialects.ahp.wire import VALUES
from tests.dialects.ahp.folding import CHAT, Follower, Scene, steps
from tests.kit.updates import any_updates, plan, said, tool

DATA = Path(__file__).parents[2] / "data"
ALLOW = {"optionId": "yes", "name": "Allow", "kind": "allow_once"}
ALWAYS = {"optionId": "always", "name": "Always", "kind": "allow_always"}
REJECT = {"optionId": "no", "name": "Reject", "kind": "reject_once"}
DIFF = {"type": "diff", "path": "/srv/proj/a b.txt", "oldText": "old", "newText": "new"}


def permission(tool_id: str = "c1", **call: Any) -> dict[str, Any]:
    return {"toolCall": {"toolCallId": tool_id, **call}, "options": [ALLOW, ALWAYS, REJECT]}


def text(value: str) -> dict[str, Any]:
    return {"type": "content", "content": {"type": "text", "text": value}}


@pytest.fixture
def scene() -> Scene:
    """A turn that has begun."""
    scene = Scene()
    scene.say(said("hello", "user"))
    return scene


def types(actions: list[dict[str, Any]]) -> list[str]:
    return [action["type"] for action in actions]


def call(scene: Scene) -> dict[str, Any]:
    found: dict[str, Any] = scene.parts()[-1]["toolCall"]
    return found


def test_a_turn_is_told_with_its_texts_and_ends() -> None:
    scene = Scene()
    told = scene.say(said("hello", "user", messageId="m1"), said("hm", "thought"), said("a"), said("b"))
    assert told == [
        {
            "type": "chat/turnStarted",
            "turnId": "m1",
            "startedAt": "1970-01-01T00:00:01.000Z",
            "message": {"text": "hello", "origin": {"kind": "user"}},
        },
        {"type": "chat/responsePart", "turnId": "m1", "part": {"kind": "reasoning", "id": "m1:1", "content": ""}},
        {"type": "chat/reasoning", "turnId": "m1", "partId": "m1:1", "content": "hm"},
        {"type": "chat/responsePart", "turnId": "m1", "part": {"kind": "markdown", "id": "m1:2", "content": ""}},
        {"type": "chat/delta", "turnId": "m1", "partId": "m1:2", "content": "ab"},
    ]
    assert scene.end() == [{"type": "chat/turnComplete", "turnId": "m1", "duration": 3000}]


def test_the_blocks_of_one_message_are_one_text() -> None:
    scene = Scene()
    link = {"sessionUpdate": "user_message_chunk", "content": {"type": "resource_link", "name": "a.txt", "uri": "f"}}
    (begun,) = scene.say(said("see", "user"), link)
    assert begun["message"]["text"] == "see [a.txt]"
    assert begun["turnId"] == "u1"


def test_another_message_of_the_agent_is_another_part(scene: Scene) -> None:
    scene.say(said("a", messageId="1"), said("b", messageId="1"), said("c", messageId="2"))
    assert [part["content"] for part in scene.parts()] == ["ab", "c"]


@pytest.mark.parametrize(
    ("reason", "error", "kind", "words"),
    [
        ("end_turn", {}, "chat/turnComplete", None),
        (None, {}, "chat/turnComplete", None),
        ("cancelled", {}, "chat/turnCancelled", None),
        ("refusal", {}, "chat/error", "the turn has ended: refusal"),
        ("max_tokens", {}, "chat/error", "the turn has ended: max_tokens"),
        (None, {"code": -1, "message": "broken"}, "chat/error", "broken"),
    ],
)
def test_the_end_of_a_turn(
    scene: Scene, reason: str | None, error: dict[str, Any], kind: str, words: str | None
) -> None:
    (told,) = scene.end(reason, **error)
    assert told["type"] == kind
    assert told.get("error", {}).get("message") == words


def test_a_call_that_runs_at_once_is_told_with_its_input_and_its_end(scene: Scene) -> None:
    begun = scene.say(tool("c1", sessionUpdate="tool_call", title="ls", kind="execute", status="in_progress"))
    assert types(begun) == ["chat/toolCallStart", "chat/toolCallReady"]
    assert begun[1]["confirmed"] == "not-needed"
    told = scene.say(tool("c1", rawInput={"command": "ls"}), tool("c1", content=[text("a.txt")]))
    assert types(told) == ["chat/toolCallReady", "chat/toolCallContentChanged"]
    assert told[0]["toolInput"] == '{"command": "ls"}'
    scene.say(tool("c1", status="completed"))
    assert call(scene) == {
        "toolCallId": "c1",
        "toolName": "execute",
        "displayName": "ls",
        "status": "completed",
        "invocationMessage": "ls",
        "toolInput": '{"command": "ls"}',
        "confirmed": "not-needed",
        "success": True,
        "pastTenseMessage": "ls",
        "content": [{"type": "text", "text": "a.txt"}],
    }


def test_a_call_that_waits_is_ready_only_once_it_runs(scene: Scene) -> None:
    assert types(scene.say(tool("c1", sessionUpdate="tool_call", title="ls"))) == ["chat/toolCallStart"]
    assert types(scene.say(tool("c1", status="in_progress"))) == ["chat/toolCallReady"]
    assert scene.say(tool("c1", status="in_progress")) == []


def test_a_failed_call_is_completed_without_success(scene: Scene) -> None:
    scene.say(tool("c1", title="make", status="failed", content=[text("no such file")]))
    assert (call(scene)["status"], call(scene)["success"]) == ("completed", False)
    assert call(scene)["error"] == {"message": "no such file"}


def test_the_last_texts_of_a_call_are_told_up_to_a_bound_and_more_of_them_at_its_end(scene: Scene) -> None:
    scene.say(tool("c1", title="ls", status="in_progress", content=[text(each * 10_000) for each in "abcdefgh"]))
    sizes = [(it["text"][0], len(it["text"])) for it in call(scene)["content"]]
    assert sizes == [("g", 6384), ("h", 10_000)]
    scene.say(tool("c1", status="completed"))
    assert [len(it["text"]) for it in call(scene)["content"]] == [5536, *[10_000] * 6]


def test_what_changes_a_file_names_where_its_texts_are_read(scene: Scene) -> None:
    new = {"type": "diff", "path": "n.txt", "oldText": None, "newText": "x"}
    scene.say(tool("c/1", title="edit", status="completed", content=[DIFF, new]))
    first, second = call(scene)["content"]
    where = f"{CHAT}/edit/~Yy8x"
    assert first == {
        "type": "fileEdit",
        "before": {"uri": "file:///srv/proj/a%20b.txt", "content": {"uri": f"{where}/0/before/a%20b.txt"}},
        "after": {"uri": "file:///srv/proj/a%20b.txt", "content": {"uri": f"{where}/0/after/a%20b.txt"}},
    }
    content = {"uri": f"{where}/1/after/n.txt"}
    assert second == {"type": "fileEdit", "after": {"uri": "file:///srv/proj/n.txt", "content": content}}


def test_a_permission_asks_with_its_edits_and_its_options(scene: Scene) -> None:
    told = scene.asked("k1", "session/request_permission", permission(title="Edit", content=[DIFF]))
    assert types(told) == ["chat/toolCallStart", "chat/toolCallReady", "session/inputNeededSet"]
    assert told[1]["options"] == [
        {"id": "yes", "label": "Allow", "kind": "approve", "group": 1},
        {"id": "always", "label": "Always", "kind": "approve", "group": 1},
        {"id": "no", "label": "Reject", "kind": "deny", "group": 2},
    ]
    assert [*told[1]["edits"]["items"][0]] == ["before", "after"]
    (need,) = scene.session.state["inputNeeded"]
    assert (need["id"], need["kind"], need["toolCall"]["status"]) == ("k1", "toolConfirmation", "pending-confirmation")
    assert scene.tree.state["status"] == 24


@pytest.mark.parametrize(
    ("outcome", "status", "reason"),
    [
        ("Allow", "running", None),
        ("no", "cancelled", "denied"),
        ("cancelled", "cancelled", "skipped"),
        (None, "cancelled", "skipped"),
    ],
)
def test_a_decision_of_another_client_is_told(
    scene: Scene, outcome: str | None, status: str, reason: str | None
) -> None:
    scene.say(tool("c1", sessionUpdate="tool_call", title="Edit"))
    scene.asked("k1", "session/request_permission", permission())
    told = scene.told(scene.mapper.resolved("k1", outcome))
    assert types(told) == ["chat/toolCallConfirmed", "session/inputNeededRemoved"]
    assert (call(scene)["status"], call(scene).get("reason")) == (status, reason)
    assert scene.session.state["inputNeeded"] == []
    assert scene.mapper.resolved("k1", outcome) == []


def test_a_permission_for_no_call_that_goes_on_has_one_of_its_own(scene: Scene) -> None:
    scene.say(tool("c1", title="done", status="completed"))
    told = scene.asked("k1", "session/request_permission", permission(title="Again"))
    assert types(told)[0] == "chat/toolCallStart"
    assert told[0]["toolCallId"] == "u1:k1"
    scene.mapper.resolved("k1", "yes")
    scene.end()
    assert [part["toolCall"]["status"] for part in scene.parts()] == ["completed", "completed"]


def test_a_plan_is_a_call_that_is_completed_before_the_turn_ends(scene: Scene) -> None:
    scene.say(plan(("read", "in_progress"), ("write", "pending")))
    told = scene.say(plan(("read", "completed"), ("write", "in_progress")))
    assert [action["content"] for action in told] == [[{"type": "text", "text": "✓ read\n▶ write"}]]
    assert types(scene.end("cancelled")) == ["chat/toolCallComplete", "chat/turnCancelled"]
    assert call(scene)["success"] is True


def test_an_agent_that_speaks_without_a_prompt_begins_a_turn_that_ends_when_it_rests() -> None:
    scene = Scene()
    assert scene.say({"sessionUpdate": "usage_update", "used": 1, "size": 2}, tool("old", status="completed")) == []
    begun = scene.say(said("by the way"))
    assert begun[0]["message"] == {"text": "", "origin": {"kind": "agent"}}
    assert types(scene.told(scene.mapper.rest())) == ["chat/turnComplete"]
    assert scene.mapper.rest() == []


def test_usage_is_told_within_a_turn(scene: Scene) -> None:
    (told,) = scene.say({"sessionUpdate": "usage_update", "used": 1, "size": 2, "cost": {}})
    assert told["usage"] == {"_meta": {"context": {"used": 1, "size": 2}}}


def test_what_sub_agents_say_is_not_told(scene: Scene) -> None:
    assert scene.say(said("secret"), session="sub") == []
    assert scene.say(said("secret", _meta={"claudeCode": {"parentToolUseId": "c1"}})) == []


def test_the_turn_that_a_client_began_is_not_begun_again() -> None:
    scene = Scene()
    begin = {"type": "chat/turnStarted", "turnId": "t9", "startedAt": "", "message": {"text": "go on"}}
    scene.mapper.dispatched(begin, 0)
    assert types(scene.say(said("go on", "user", messageId="t9"), said("a"))) == ["chat/responsePart", "chat/delta"]
    assert scene.end()[0]["turnId"] == "t9"
    # An agent of version 2 names it.
    scene.mapper.dispatched({**begin, "turnId": "t10"}, 0)
    assert scene.say(said("go on", "user", messageId="agent-1")) == []
    # Another client's came first.
    scene.end()
    scene.mapper.dispatched({**begin, "turnId": "t11"}, 0)
    assert types(scene.say(said("other", "user"))) == ["chat/turnComplete", "chat/turnStarted"]


def test_what_the_agent_says_after_a_client_has_stopped_it_is_dropped_until_its_end() -> None:
    scene = Scene()
    scene.mapper.dispatched({"type": "chat/turnStarted", "turnId": "t1", "startedAt": "", "message": {"text": "a"}}, 0)
    scene.mapper.dispatched({"type": "chat/turnCancelled", "turnId": "t1", "duration": 1}, 0)
    assert scene.mapper.is_dropping
    assert scene.say(said("a", "user", messageId="t1"), said("late"), tool("c1", title="late")) == []
    assert scene.end("cancelled") == []
    assert types(scene.say(said("next", "user"))) == ["chat/turnStarted"]


def test_a_prompt_that_was_not_sent_fails_its_turn() -> None:
    scene = Scene()
    scene.mapper.dispatched({"type": "chat/turnStarted", "turnId": "t1", "startedAt": "", "message": {"text": "a"}}, 0)
    assert scene.mapper.not_sent("another", "why") == []
    (told,) = scene.mapper.not_sent("t1", "log in on the box")
    assert (told["type"], told["error"]["message"]) == ("chat/error", "log in on the box")
    assert scene.mapper.not_sent("t1", "again") == []


def test_the_turn_behind_one_that_was_stopped_is_told_whatever_becomes_of_that() -> None:
    begin = {"type": "chat/turnStarted", "startedAt": "", "message": {"text": "a"}}
    stop = {"type": "chat/turnCancelled", "duration": 1}
    # A turn of the agent's own has no end that is told.
    scene = Scene()
    scene.say(said("by the way"))
    scene.mapper.dispatched(stop | {"turnId": "a1"}, 0)
    scene.mapper.dispatched(begin | {"turnId": "t1"}, 0)
    scene.say(said("a", "user", messageId="t1"))
    assert types(scene.end()) == ["chat/turnComplete"]
    # A prompt that was stopped before it was sent, and one that the agent got all the same.
    for name in ("t2", "t3"):
        scene.mapper.dispatched(begin | {"turnId": name}, 0)
        scene.mapper.dispatched(stop | {"turnId": name}, 0)
    scene.mapper.dispatched(begin | {"turnId": "t4"}, 0)
    assert scene.mapper.not_sent("t2", "") == []
    assert scene.say(said("a", "user", messageId="t3"), said("late")) == []
    assert scene.end("cancelled") == []
    assert types(scene.say(said("a", "user", messageId="t4"), said("x"))) == ["chat/responsePart", "chat/delta"]
    assert types(scene.end()) == ["chat/turnComplete"]


def test_a_prompt_that_comes_behind_its_stop_is_dropped_though_the_agent_names_it_itself() -> None:
    scene, stop = Scene(), {"type": "chat/turnCancelled", "duration": 1}

    def begin(turn: str, text: str) -> None:
        about = {"type": "chat/turnStarted", "turnId": turn, "startedAt": "", "message": {"text": text}}
        scene.mapper.dispatched(about, 0)

    begin("t1", "a")
    scene.mapper.dispatched(stop | {"turnId": "t1"}, 0)
    begin("t2", "b")
    assert scene.say(said("a", "user", messageId="agent-1"), said("late")) == []
    assert scene.end("cancelled") == []
    assert types(scene.say(said("b", "user", messageId="agent-2"), said("x"))) == ["chat/responsePart", "chat/delta"]
    scene.end()
    # One that had come before the stop is not taken for the next one of the same text.
    begin("t3", "c")
    assert scene.say(said("c", "user", messageId="agent-3")) == []
    scene.mapper.dispatched(stop | {"turnId": "t3"}, 0)
    assert scene.end("cancelled") == []
    begin("t4", "c")
    assert types(scene.say(said("c", "user", messageId="agent-4"), said("x"))) == ["chat/responsePart", "chat/delta"]


def test_prompts_that_wait_are_told_until_their_turn_begins(scene: Scene) -> None:
    told = scene.mapper.queue([("m1", "one"), ("m2", "two")])
    assert [(it["kind"], it["id"]) for it in told] == [("queued", "m1"), ("queued", "m2")]
    assert scene.mapper.queue([("m1", "one"), ("m2", "two")]) == []
    assert types(scene.mapper.queue([("m2", "two"), ("m1", "one")])) == ["chat/queuedMessagesReordered"]
    scene.end()
    (begun,) = scene.say(said("two", "user", messageId="m2"))
    assert (begun["turnId"], begun["queuedMessageId"]) == ("m2", "m2")
    (gone,) = scene.mapper.queue([])
    assert (gone["type"], gone["id"]) == ("chat/pendingMessageRemoved", "m1")


def test_messages_on_their_way_to_the_queue_stay_in_it(scene: Scene) -> None:
    for name in ("m1", "m2"):
        action = {"type": "chat/pendingMessageSet", "kind": "queued", "id": name, "message": {"text": name}}
        scene.mapper.dispatched(action, 0)
    assert scene.mapper.queue([("m1", "m1")]) == []
    assert scene.mapper.queue([("m1", "m1"), ("m2", "m2")]) == []
    assert [it["id"] for it in scene.mapper.queue([("m1", "m1")])] == ["m2"]
    # Taken out before that it was there was told.
    scene.mapper.dispatched({**action, "id": "m4"}, 0)
    assert scene.mapper.queue([("m1", "m1")]) == []
    assert [it["id"] for it in scene.mapper.queued("m4", [("m1", "m1")])] == ["m4"]
    scene.mapper.dispatched({**action, "id": "m3"}, 0)
    assert [it["id"] for it in scene.mapper.not_queued("m3")] == ["m3"]


FORM = {
    "type": "object",
    "required": ["branch"],
    "properties": {
        "branch": {"type": "string", "title": "Branch", "enum": ["main", "dev"], "description": "Which?"},
        "push": {"type": "boolean", "default": False},
    },
}
UNFIT = {"properties": {"all": {"type": "object"}}}


def test_a_form_is_asked_question_by_question(scene: Scene) -> None:
    told = scene.asked("k1", "elicitation/create", {"message": "Before", "requestedSchema": FORM})
    assert types(told) == ["chat/inputRequested", "session/inputNeededSet"]
    options = [{"id": "main", "label": "main"}, {"id": "dev", "label": "dev"}]
    first = {"id": "branch", "kind": "single-select", "title": "Branch", "message": "Which?", "required": True}
    second = {"id": "push", "kind": "boolean", "title": "push", "message": "push", "required": False}
    assert told[0]["request"]["questions"] == [first | {"options": options}, second | {"defaultValue": False}]
    told = scene.told(scene.mapper.resolved("k1", "accept"))
    assert types(told) == ["chat/inputCompleted", "session/inputNeededRemoved"]
    assert scene.asked("k2", "elicitation/create", {"message": "m", "requestedSchema": UNFIT}) == []
    (link, _) = scene.asked("k3", "elicitation/create", {"message": "m", "url": "https://a"})
    assert link["request"] == {"id": "k3", "message": "m", "url": "https://a"}


SHORT: list[Any] = [{}] * 350_000
"""As JSON, a megabyte of short values."""

LARGE: dict[str, Callable[[Scene], object]] = {
    "content": lambda scene: scene.say(tool("c1", title="ls", status="in_progress", content=SHORT)),
    "input and output": lambda scene: scene.say(tool("c1", title="ls", rawInput=SHORT, rawOutput=SHORT)),
    "locations": lambda scene: scene.say(tool("c1", title="ls", locations=SHORT)),
    "meta": lambda scene: scene.say(tool("c1", title="ls", _meta={"terminal_output": SHORT})),
    "text": lambda scene: scene.say({**said("a"), "content": {"type": "text", "annotations": SHORT}}),
    "plan": lambda scene: scene.say({"sessionUpdate": "plan", "entries": SHORT}),
    "commands": lambda scene: scene.say({"sessionUpdate": "available_commands_update", "availableCommands": SHORT}),
    "usage": lambda scene: scene.say({"sessionUpdate": "usage_update", "used": SHORT}),
    "permission": lambda scene: scene.asked("k", "session/request_permission", {**permission(), "options": SHORT}),
    "call": lambda scene: scene.asked("k", "session/request_permission", permission(content=SHORT)),
    "form": lambda scene: scene.asked("k", "elicitation/create", {"requestedSchema": {"required": SHORT}}),
}


@pytest.mark.parametrize("part", LARGE)
def test_a_message_of_a_megabyte_of_short_values_takes_few_steps(scene: Scene, part: str) -> None:
    assert steps(lambda: LARGE[part](scene)) < 10 * VALUES


def test_content_of_too_many_parts_is_named_and_its_call_goes_on(scene: Scene) -> None:
    few = [text("x")] * (VALUES // 8)
    scene.say(tool("c1", title="ls", status="in_progress", content=few))
    scene.say(tool("c2", title="cd", content=SHORT[: VALUES + 1]))
    scene.say(tool("c1", status="completed"), tool("c2", status="completed"))
    first, second = (part["toolCall"] for part in scene.parts())
    assert (len(first["content"]), second["success"]) == (len(few), True)
    assert second["content"] == [{"type": "text", "text": "(too many parts to be shown)"}]


# A snapshot, and the actions after it


def follow(steps: list[Any]) -> None:
    """Each snapshot on the way and all actions after it lead to the state at the end."""
    scene, snapshots, told = Scene(), [], []
    for step in steps:
        snapshots.append(scene.snapshot())
        told.append(step(scene))
    end = scene.snapshot()
    for at, (chat, session) in enumerate(snapshots):
        follower = Follower(chat, session)
        for actions in told[at:]:
            follower.take(actions)
        assert (follower.chat.snapshot(), follower.session.state) == end


def recorded(name: str) -> list[Any]:
    """The steps of a recorded conversation."""
    steps: list[Any] = []
    prompts = set()
    for line in (DATA / f"{name}.jsonl").read_text().splitlines():
        entry = json.loads(line)
        message = json.loads(entry["line"])
        if message.get("method") == "session/prompt":
            prompts.add(message["id"])
            blocks = [
                {"sessionUpdate": "user_message_chunk", "content": block} for block in message["params"]["prompt"]
            ]
            steps.append(lambda scene, blocks=blocks: scene.say(*blocks))
        elif message.get("method") == "session/update":
            steps.append(lambda scene, update=message["params"]["update"]: scene.say(update))
        elif message.get("method") == "session/request_permission":
            steps.append(lambda scene, params=message["params"]: scene.asked("k", "session/request_permission", params))
        elif message.get("id") in prompts and "result" in message:
            steps.append(lambda scene, result=message["result"]: scene.end(result["stopReason"]))
        elif entry["from"] == "client" and "outcome" in message.get("result", {}):
            chosen = message["result"]["outcome"].get("optionId")
            steps.append(lambda scene, chosen=chosen: scene.told(scene.mapper.resolved("k", chosen)))
    return steps


@pytest.mark.parametrize(("name", "count"), [("opencode-hello", 4), ("opencode-tool", 8), ("zed", 4), ("jetbrains", 4)])
def test_a_snapshot_of_a_recorded_session_and_the_actions_after_it_lead_to_its_end(name: str, count: int) -> None:
    steps = recorded(name)
    assert len(steps) >= count
    follow(steps)


_requests = st.builds(
    lambda key, call, edit: (
        lambda scene: scene.asked(key, "session/request_permission", permission(call, title="t", content=[DIFF] * edit))
    ),
    st.sampled_from("kl"),
    st.sampled_from(["", "1", "2"]),
    st.integers(0, 1),
)
_forms = st.sampled_from("kl").map(
    lambda key: lambda scene: scene.asked(key, "elicitation/create", {"message": "m", "requestedSchema": FORM})
)
_decisions = st.builds(
    lambda key, outcome: lambda scene: scene.told(scene.mapper.resolved(key, outcome)),
    st.sampled_from("kl"),
    st.sampled_from(["Allow", "no", "accept", "cancelled", None]),
)
any_steps = st.one_of(
    st.lists(any_updates, max_size=4).map(lambda updates: lambda scene: scene.say(*updates)),
    st.sampled_from(["end_turn", "cancelled", "refusal", None]).map(lambda reason: lambda scene: scene.end(reason)),
    st.just(lambda scene: scene.told(scene.mapper.rest())),
    st.lists(
        st.tuples(st.sampled_from(["1", "2", "m"]), st.sampled_from("ab")), max_size=3, unique_by=lambda it: it[0]
    ).map(lambda waiting: lambda scene: scene.told(scene.mapper.queue(waiting))),
    _requests,
    _forms,
    _decisions,
)


@given(st.lists(any_steps, max_size=8))
def test_a_snapshot_and_the_actions_after_it_lead_to_the_end_for_any_updates(steps: list[Any]) -> None:
    follow(steps)
