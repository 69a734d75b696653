"""Dialogues of the file tap's lines, and what a reader of any speed ends up with."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.dialects.tap import lines as tap
from acp_gateway.dialects.tap.files import FileFinder, Touch
from acp_gateway.dialects.tap.heat import HeatMap
from acp_gateway.dialects.tap.lines import BadRequest, SessionTap, TapRequest, read_request
from tests.dialects.tap.test_files import call, chunk, update

ABOUT = {"agent_id": "demo", "session_id": "s"}


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


class ReadingTap(SessionTap):
    """With what finds files in its messages."""

    def __init__(self, heat: HeatMap, *ignored: str) -> None:
        super().__init__("demo", "s", heat)
        self._finder = FileFinder("/src", ignored)

    def receive(self, message: bytes, time: int) -> None:
        self.take(self._finder.read(message), time)


def new_tap(files: int = 100) -> ReadingTap:
    return ReadingTap(HeatMap(files, 3))


def told(session: SessionTap, now: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in session.next(now)]


def node(path: str, action: str = "read", turn: int = 0, time: int = 0) -> dict[str, Any]:
    return {
        "path": path,
        "heat": 1.0,
        "in_context": True,
        "last_action": action,
        "turn_accessed": turn,
        "timestamp_ms": time,
    }


def reads(path: str) -> bytes:
    return call("read", locations=[{"path": f"/src/{path}"}])


@pytest.fixture
def session() -> ReadingTap:
    return new_tap()


def test_a_reader_gets_a_snapshot_and_then_deltas_of_the_next_numbers(session: ReadingTap) -> None:
    session.receive(reads("a"), 5)
    session.end_batch(5)
    assert told(session) == [{"type": "snapshot", **ABOUT, "seq": 2, "nodes": {"a": node("a", time=5)}}]
    assert told(session) == []
    session.receive(reads("b"), 6)
    session.end_batch(6)
    assert told(session) == [{"type": "delta", **ABOUT, "seq": 3, "updates": [node("b", time=6)], "removed": []}]
    session.end()
    session.end_batch(7)
    assert told(session) == [{"type": "delta", **ABOUT, "seq": 4, "updates": [], "removed": ["a", "b"]}]


def test_a_reader_that_has_missed_a_batch_gets_a_snapshot(session: ReadingTap) -> None:
    told(session)
    for number in range(2):
        session.receive(reads(f"{number}"), 5)
        session.end_batch(5)
    (line,) = told(session)
    assert (line["type"], line["seq"], sorted(line["nodes"])) == ("snapshot", 3, ["0", "1"])


def test_what_changes_nothing_is_not_told(session: ReadingTap) -> None:
    told(session)
    session.receive(update("agent_message_chunk", content={"type": "text", "text": "hello"}), 5)
    session.end_batch(5)
    assert told(session) == []


def test_the_mode_of_a_session_is_told_with_each_line(session: ReadingTap) -> None:
    session.mode = "plan"
    assert told(session) == [{"type": "snapshot", **ABOUT, "session_mode": "plan", "seq": 1, "nodes": {}}]


def test_the_pieces_of_one_prompt_begin_one_turn(session: ReadingTap) -> None:
    for message in (chunk(type="text", text="@a.py"), chunk(type="text", text="@b.py"), reads("c")):
        session.receive(message, 0)
    session.receive(update("agent_thought_chunk"), 0)
    session.receive(chunk(type="text", text="@d.py"), 0)
    (line,) = told(session)
    assert {path: it["turn_accessed"] for path, it in line["nodes"].items()} == {
        "a.py": 1,
        "b.py": 1,
        "c": 1,
        "d.py": 2,
    }


def test_the_usage_is_told_when_it_has_changed_and_a_fall_by_half_cools(session: ReadingTap) -> None:
    session.receive(reads("a"), 0)
    session.receive(update("usage_update", used=80, size=100, cost={"amount": 1.5, "currency": "EUR"}), 0)
    usage = {"type": "usage", **ABOUT, "used": 80, "size": 100, "cost": {"amount": 1.5, "currency": "EUR"}}
    assert told(session)[1:] == [usage]
    session.end_batch(0)
    assert told(session) == []
    session.receive(update("usage_update", used=40, size=100), 1000)
    session.end_batch(1100)
    delta, usage = told(session, 1100)
    assert (delta["updates"][0]["heat"], delta["updates"][0]["in_context"]) == (0.95, False)
    assert usage == {"type": "usage", **ABOUT, "used": 40, "size": 100}


def test_refused_accesses_are_told_once_and_the_last_of_many(session: ReadingTap) -> None:
    told(session)
    for number in range(tap.MAX_BLOCKED + 1):
        session.block([Touch(f"{number}", "write")], 7)
    lines = told(session)
    assert lines[0] == {"type": "blocked", **ABOUT, "path": "1", "action": "write", "timestamp_ms": 7}
    assert len(lines) == tap.MAX_BLOCKED
    assert told(session) == []


def test_a_snapshot_can_be_asked_for_again(session: ReadingTap) -> None:
    session.receive(update("usage_update", used=1, size=2), 0)
    first = told(session)
    session.tell_again()
    assert told(session) == first


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ({"type": "request_snapshot"}, TapRequest("request_snapshot", None)),
        ({"type": "request_snapshot", "session_id": "s", "more": 1}, TapRequest("request_snapshot", "s")),
        ({"type": "set_stream_filter", "session_id": None}, TapRequest("set_stream_filter", None)),
    ],
)
def test_a_request_is_read(line: dict[str, Any], expected: TapRequest) -> None:
    assert read_request(json.dumps(line).encode()) == expected


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"[]", b"{}", b'{"type":"x"}', b'{"type":"request_snapshot","session_id":1}', b"\xff"),
        b"[" * 100_000,
        json.dumps({"type": "request_snapshot", "session_id": "x" * 1025}).encode(),
    ],
)
def test_another_line_is_refused(line: bytes) -> None:
    with pytest.raises(BadRequest):
        read_request(line)


def test_an_error_names_the_session_that_was_asked_for() -> None:
    assert json.loads(tap.error("why", "s")) == {"type": "error", "message": "why", "session_id": "s"}


def applied(state: dict[str, Any], lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The files that a reader knows after these lines."""
    for line in lines:
        if line["type"] == "snapshot":
            state = {"seq": line["seq"], "nodes": dict(line["nodes"])}
        elif line["type"] == "delta":
            assert line["seq"] == state["seq"] + 1
            state["seq"] = line["seq"]
            state["nodes"] |= {node["path"]: node for node in line["updates"]}
            for path in line["removed"]:
                del state["nodes"][path]
    return state


@given(
    st.lists(
        st.one_of(
            st.sampled_from("abcdef").map(reads),
            st.sampled_from("abcdef").map(lambda path: chunk(type="text", text=f"@{path}.py")),
            st.sampled_from([10, 4, 20]).map(lambda used: update("usage_update", used=used)),
            st.just(update("agent_message_chunk")),
            st.integers(1, 4000),
            st.sampled_from(["tell", "batch", "end", "again"]),
        ),
        max_size=60,
    )
)
def test_a_reader_of_any_speed_ends_with_the_files_that_there_are(events: list[Any]) -> None:
    session, now = new_tap(4), 0
    state: dict[str, Any] = {}
    for event in events:
        if isinstance(event, bytes):
            session.receive(event, now)
        elif isinstance(event, int):
            now += event
        elif event == "tell":
            state = applied(state, told(session, now))
        elif event == "again":
            session.tell_again()
        elif event == "end":
            session.end()
        else:
            session.end_batch(now)
    session.end_batch(now)
    state = applied(state, told(session, now))
    assert state["nodes"] == session.heat.nodes(now)
    assert told(session, now) == []
    # Another reader, which has come at the end, sees the same.
    session.tell_again()
    assert applied({}, told(session, now))["nodes"] == state["nodes"]


class Fold:
    """The files of a session by its messages, without anything of what the tap is made of."""

    WRITES = ("edit", "delete", "move")

    def __init__(self, files: int, context_turns: int) -> None:
        self.most, self.context_turns = files, context_turns
        self.kinds: dict[str, str] = {}
        # By path, the last used last: action, turn and time of the last access, and when the file left the context.
        self.files: dict[str, tuple[str, int, int, int | None]] = {}
        self.turn = 0
        self.used: int | None = None
        self.in_prompt = False

    def receive(self, message: dict[str, Any], now: int) -> None:
        update = message["params"]["update"]
        kind = update["sessionUpdate"]
        if kind == "user_message_chunk":
            if not self.in_prompt:
                self.turn += 1
                self._leave(now, lambda turn: turn < self.turn - self.context_turns)
            action = "user_provided" if "resource" in update["content"] else "user_referenced"
            uri = update["content"].get("uri") or update["content"]["resource"]["uri"]
            self._touch(uri.removeprefix("file://"), action, now)
        self.in_prompt = kind == "user_message_chunk"
        if kind in ("tool_call", "tool_call_update"):
            of = update.get("kind") or self.kinds.get(update["toolCallId"], "other")
            self.kinds[update["toolCallId"]] = of
            action = "write" if of in self.WRITES else "search" if of == "search" else "read"
            for location in [] if update.get("status") == "failed" else update.get("locations", []):
                self._touch(location["path"], action, now)
        if kind == "usage_update":
            if self.used is not None and update["used"] * 2 <= self.used and update["used"] < self.used:
                self._leave(now, lambda turn: turn <= self.turn)
            self.used = update["used"]

    def _touch(self, path: str, action: str, now: int) -> None:
        if "/node_modules/" not in path:
            name = path.removeprefix("/src/")
            self.files.pop(name, None)
            self.files[name] = action, self.turn, now, None
            self.files = dict(list(self.files.items())[-self.most :])

    def _leave(self, now: int, leaves: Callable[[int], bool]) -> None:
        self.files = {
            path: (action, turn, at, now if left is None and leaves(turn) else left)
            for path, (action, turn, at, left) in self.files.items()
        }

    def nodes(self, now: int) -> dict[str, Any]:
        """The files that are not cold."""
        heats = {path: 1.0 if it[3] is None else 0.95 ** ((now - it[3]) // 100) for path, it in self.files.items()}
        return {
            path: {
                "path": path,
                "heat": round(heats[path], 4),
                "in_context": left is None,
                "last_action": action,
                "turn_accessed": turn,
                "timestamp_ms": at,
            }
            for path, (action, turn, at, left) in self.files.items()
            if heats[path] >= 0.01
        }

    def cool(self, now: int) -> None:
        self.files = {path: it for path, it in self.files.items() if path in self.nodes(now)}


PATHS = st.sampled_from(["/src/a", "/src/b/c", "/src/node_modules/x/d", "/etc/e", "/src/f"])


def tool_call(update_kind: str, to: str, paths: list[str], more: dict[str, str]) -> bytes:
    return update(update_kind, toolCallId=to, locations=[{"path": path} for path in paths], **more)


CALLS = st.builds(
    tool_call,
    st.sampled_from(["tool_call", "tool_call_update"]),
    st.sampled_from("tu"),
    st.lists(PATHS, max_size=2),
    st.fixed_dictionaries(
        {},
        optional={
            "kind": st.sampled_from(["read", "edit", "search", "think"]),
            "status": st.sampled_from(["completed", "failed"]),
        },
    ),
)
MESSAGES = st.one_of(
    CALLS,
    PATHS.map(lambda path: chunk(type="resource_link", uri=f"file://{path}")),
    PATHS.map(lambda path: chunk(type="resource", resource={"uri": f"file://{path}", "text": ""})),
    st.sampled_from([10, 5, 4, 20]).map(lambda used: update("usage_update", used=used)),
    st.just(update("agent_message_chunk", content={"type": "text", "text": "hello"})),
)


@given(st.lists(st.one_of(MESSAGES, st.integers(1, 5000), st.sampled_from(["batch", "tell"])), max_size=60))
def test_any_sequence_of_messages_ends_in_the_files_of_an_independent_fold(events: list[Any]) -> None:
    session = ReadingTap(HeatMap(3, 1), "node_modules")
    fold, now = Fold(3, 1), 0
    state: dict[str, Any] = {}
    for event in [*events, "batch", "tell"]:
        if isinstance(event, bytes):
            session.receive(event, now)
            fold.receive(json.loads(event), now)
        elif isinstance(event, int):
            now += event
        elif event == "batch":
            session.end_batch(now)
            fold.cool(now)
        else:
            state = applied(state, told(session, now))
    assert state["nodes"] == fold.nodes(now)


@given(st.binary(max_size=200) | st.recursive(st.none() | st.text() | st.integers(), st.lists).map(encoded))
def test_a_line_of_a_reader_is_read_or_refused_and_nothing_else_happens(line: bytes) -> None:
    try:
        request = read_request(line)
    except BadRequest:
        return
    assert request.type in ("request_snapshot", "set_stream_filter")
