"""Sessions of an agent of version 2 in a terminal, whose updates come translated."""

import json
from base64 import b64encode
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

from hypothesis import example, given
from hypothesis import strategies as st

from acp_gateway.protocol.methods import META
from acp_gateway.terminal.conversation import Conversation
from acp_gateway.terminal.dialogue import Event, Opened, TurnEnded, TurnStarted, Updated
from acp_gateway.terminal.rendering import RUNNING_LINES, render
from acp_gateway.terminal.transcript import Transcript
from acp_gateway.terminal.watching import Watcher
from acp_gateway.versions import shown as shown_things
from acp_gateway.versions.new_agent import NewAgent
from acp_gateway.versions.state import FREE_REPEATS
from tests.fuzz.effort import effort
from tests.kit.folds import NewTranscript
from tests.kit.updates import plain_text
from tests.kit.versions import S, content, notification

Json = Any

TERMINAL = {"type": "terminal", "terminalId": "x"}


def new(kind: str, /, **members: Json) -> Json:
    return {"sessionUpdate": kind, **members}


def output(words: str) -> Json:
    return new("terminal_output_chunk", terminalId="x", data=b64encode(words.encode()).decode())


def ended(**status: Json) -> Json:
    return new("terminal_update", terminalId="x", exitStatus=status)


def runs(**members: Json) -> Json:
    return new("tool_call_update", toolCallId="t", title="make", kind="execute", status="in_progress", **members)


def as_message(update: Json) -> bytes:
    return notification("session/update", sessionId=S, update=update)


class Session:
    """Translates the updates of an agent for a client of version 1."""

    def __init__(self) -> None:
        self._agent = NewAgent()

    def updates(self, *updates: Json) -> list[Json]:
        sent = [text for update in updates for text in self._agent.from_agent(as_message(update)).to_client]
        return [message["params"]["update"] for message in map(json.loads, sent) if "method" in message]

    def events(self, *updates: Json) -> list[Event]:
        return [Updated(update, "") for update in self.updates(*updates)]


def folded(*updates: Json) -> Transcript:
    transcript = Transcript()
    for update in Session().updates(*updates):
        transcript.apply(update)
    return transcript


def shown(*updates: Json, details: bool = False) -> list[str]:
    lines = [plain_text(render(block, details=details)) for block in folded(*updates).blocks]
    return "".join(lines).splitlines()


def watched(*happened: Json | Event) -> str:
    """Return what `watch` writes of updates that come one after the other."""
    watcher, session = Watcher(), Session()
    watcher.receive([Opened("s", (), "")], 0)
    for one in happened:
        watcher.receive([one] if isinstance(one, Event) else session.events(one), 0)
    watcher.end()
    return watcher.take()


def test_the_output_of_a_terminal_is_shown_while_it_runs_and_how_it_ended() -> None:
    lines = "".join(f"{number}\n" for number in range(20))
    begun = (runs(content=[TERMINAL]), output(lines))
    assert shown(*begun) == [
        "◐ make",
        f"    … {20 - RUNNING_LINES} more",
        *(f"    {number}" for number in range(20 - RUNNING_LINES, 20)),
    ]
    done = new("tool_call_update", toolCallId="t", status="completed")
    assert shown(*begun, ended(exitCode=0), done) == ["● make exit code 0"]
    failed = new("tool_call_update", toolCallId="t", status="failed")
    assert shown(*begun, ended(exitCode=2), failed)[0] == "✗ make (failed) exit code 2"
    assert shown(*begun, ended(signal="SIGKILL"), failed)[-1] == "    19"


def test_watch_writes_the_lines_of_a_terminal_as_they_come() -> None:
    assert watched(
        runs(content=[TERMINAL]),
        output("one\ntw"),
        output("o\nthr"),
        ended(exitCode=1),
        new("tool_call_update", toolCallId="t", status="failed"),
    ) == ("◐ make\n    one\n    two\n    thr\n✗ make (failed) exit code 1\n")


def test_work_in_the_background_is_named_when_it_changes() -> None:
    works = [{"type": "terminal", "terminalId": "x"}, {"type": "tool_call", "toolCallId": "u"}, {"type": "_odd"}, 1]
    idle = new("state_update", state="idle", background=works)
    assert watched(
        runs(content=[TERMINAL]),
        output("one\n"),
        new("tool_call_update", toolCallId="u", title="serve"),
        idle,
        idle,
        new("state_update", state="idle"),
    ).splitlines()[-2:] == ["-- in the background: make, serve, odd, work", "-- nothing goes on in the background"]


def test_watch_writes_no_line_of_a_terminal_twice_though_its_content_is_repeated() -> None:
    large = content("x" * FREE_REPEATS)
    lines = [f"line {number}\n" for number in range(30)]
    written = watched(
        runs(content=[large, TERMINAL]),
        *map(output, lines),
        new("usage_update", used=1, size=2),
        output("last\n"),
        new("tool_call_update", toolCallId="t", status="completed"),
    )
    assert written == "◐ make\n" + "".join(f"    {line}" for line in [*lines, "last\n"]) + "● make\n"


def test_watch_writes_a_screen_of_a_terminal_at_most() -> None:
    written = watched(runs(content=[TERMINAL]), *(output(f"{number}\n") for number in range(100)))
    assert written.splitlines()[-2:] == ["    39", "    … more follows"]


def test_watch_writes_nothing_of_a_terminal_that_had_ended_before() -> None:
    done = new("tool_call_update", toolCallId="t", status="completed")
    watcher, session = Watcher(), Session()
    watcher.receive([*session.events(runs(content=[TERMINAL]), output("one\n"), done), Opened("s", (), "")], 0)
    assert watcher.take() == "● make\n"


def test_changes_of_files_are_named() -> None:
    patch = "diff --git /b /b\n--- /a\n+++ /b\n@@ -1 +1 @@\n-x\n+y\n"
    changes = [
        {"operation": "move", "oldPath": "/a", "path": "/b"},
        {"operation": "copy", "oldPath": "/b", "path": "/c"},
        {"operation": "delete", "path": "/d"},
        {"operation": "modify", "path": "/e.png", "fileType": "binary"},
        {"operation": "add", "path": "/f", "fileType": "directory"},
        {"operation": "_chmod", "path": "/g"},
    ]
    diff = {"type": "diff", "changes": changes, "patch": {"format": "git_patch", "text": patch}}
    assert shown(runs(content=[diff]))[1:] == [
        "    /b moved from /a +1 -1",
        "    - x",
        "    + y",
        "    /c copied from /b ",
        "    /d deleted ",
        "    /e.png modified (binary) ",
        "    /f added (directory) ",
        "    /g _chmod ",
    ]


def plan(plan_id: str, *steps: str) -> Json:
    entries = [{"content": step, "priority": "low", "status": "pending"} for step in steps]
    return new("plan_update", plan={"type": "items", "planId": plan_id, "entries": entries})


def test_each_plan_is_one_of_its_own() -> None:
    both = plan("a", "x"), plan("b", "y"), plan("a", "x", "z")
    assert shown(*both) == ["Plan a 0/2", "  ○ x", "  ○ z", "Plan b 0/1", "  ○ y"]
    assert shown(*both, new("plan_removed", planId="a")) == ["Plan a was removed", "Plan b 0/1", "  ○ y"]
    assert shown(*both, new("plan_removed", planId="b"))[-1] == "Plan b was removed"
    assert shown(plan("a", "x"), new("plan_removed", planId="a")) == ["Plan was removed"]
    assert shown(plan("a", "x")) == ["Plan 0/1", "  ○ x"]


def test_watch_writes_a_plan_only_if_it_has_changed() -> None:
    written = watched(plan("a", "x"), plan("b", "y"), plan("a", "x"), plan("b", "y"), new("plan_removed", planId="b"))
    assert written.splitlines() == ["Plan 0/1", "  ○ x", "Plan b 0/1", "  ○ y", "Plan a 0/1", "Plan b was removed"]


def test_a_notice_is_a_line() -> None:
    assert shown(new("notice", severity="warning", title="Slow", description="Many ask")) == ["-- Slow: Many ask"]
    # Of an agent of version 1 that was offered notices.
    transcript = Transcript()
    transcript.apply(new("notice", severity="info", title="Hello"))
    assert plain_text(render(transcript.blocks[0])) == "-- Hello\n"


def state(name: str) -> Json:
    return new("state_update", state=name)


def said(words: str, message_id: str) -> Json:
    return new("agent_message_chunk", messageId=message_id, content={"type": "text", "text": words})


def test_watch_writes_that_the_agent_waits_and_that_it_works_by_itself() -> None:
    written = watched(
        state("running"), said("By the way", "m"), state("requires_action"), state("running"), state("idle")
    )
    assert written == "-- the agent works by itself\n\nBy the way\n-- the agent waits for a person\n"


def test_a_conversation_tells_that_the_agent_waits_and_that_it_works_by_itself() -> None:
    conversation, session = Conversation(), Session()

    def told(*events: Event) -> tuple[bool, bool]:
        conversation.receive(events, 0)
        return conversation.is_working, conversation.needs_action

    assert told(*session.events(state("running"))) == (True, False)
    assert told(*session.events(state("requires_action"))) == (True, True)
    assert told(*session.events(state("running"))) == (True, False)
    assert told(*session.events(state("idle"))) == (False, False)
    assert told(TurnStarted("ann"), *session.events(state("requires_action"))) == (True, True)
    assert told(TurnEnded("", "agent_lost")) == (False, False)


STEPS = [
    runs(content=[TERMINAL]),
    runs(content=[content("a"), TERMINAL]),
    runs(content=[]),
    new("tool_call_content_chunk", toolCallId="t", content=TERMINAL),
    new("tool_call_content_chunk", toolCallId="t", content=content("b")),
    *map(output, ("a", "b\n")),
    new("terminal_output_chunk", terminalId="x", data="4oI="),
    new("terminal_update", terminalId="x", output={"data": "YWI="}),
    new("terminal_update", terminalId="x", output=None),
    ended(exitCode=0),
    new("usage_update", used=1, size=2),
]


# A tool call comes to refer to a terminal that has said something, and is not sent yet.
LATE = [runs(content=[]), output("a"), new("tool_call_content_chunk", toolCallId="t", content=TERMINAL), output("b")]


@given(st.lists(st.sampled_from(STEPS), max_size=20), st.booleans())
@example(LATE, True)
@example([*LATE, new("terminal_update", terminalId="x", output={"data": "YWI="}), output("c")], True)
@effort(300)
def test_a_terminal_of_a_tool_call_has_the_output_that_the_agent_told(conversation: list[Json], waits: bool) -> None:
    """At every moment; if the content of a tool call always waits, as soon as it has come."""
    session, transcript, reference = Session(), Transcript(), NewTranscript()
    for update in [*conversation, new("usage_update", used=1, size=2)]:
        reference.apply(update)
        with patch.multiple(shown_things, FREE_REPEATS=0, REPEATS=0) if waits else nullcontext():
            updates = session.updates(update)
        for told in updates:
            transcript.apply(told)
        block = transcript.tool("t")
        outputs = {it.terminal: it.text for it in block.outputs if it.terminal} if block else {}
        is_shown = block is not None and TERMINAL in reference.tools["t"]["content"] and reference.output("x")
        if is_shown and (outputs or not waits or update["sessionUpdate"] == "usage_update"):
            assert outputs == {"x": reference.output("x")}


def test_the_gateways_own_member_has_the_name_that_the_documents_tell() -> None:
    assert META == "acp-gateway"
