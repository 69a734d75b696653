"""The updates that the gateway writes itself, and what it reads in those of an agent."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.core.sessions.session import Session
from acp_gateway.core.turns import updates
from acp_gateway.core.turns.journal import Journal
from acp_gateway.core.turns.updates import MANY
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.gaps import GAP
from acp_gateway.protocol.jsonrpc import parse
from acp_gateway.protocol.text.pairs import Entry, Pair, text_of, texts_of
from acp_gateway.versions.agent_edge import AgentEdge
from tests.fuzz.effort import effort
from tests.kit import versions as wire
from tests.kit.scene import Scene

MODES = b'{"availableModes":[{"id":"ask"}], "currentModeId" : "ask" ,"n":1.10}'


def session(limit: int = 1_000_000, **result: bytes) -> Session:
    it = Session("agent", "s/\u00e9", "me", Journal(limit))
    it.result = dict(result)
    return it


def prompt(params: bytes) -> list[bytes]:
    prompt = parse(b'{"id":1,"method":"session/prompt","params":%b}' % params)
    return updates.user_chunks("s", prompt, updates.blocks_of(prompt))


def said(kind: str, /, **members: Any) -> Any:
    """An update of the agent's."""
    params = {"sessionId": "s", "update": {"sessionUpdate": kind, **members}}
    return parse(json.dumps({"method": "session/update", "params": params}).encode())


def test_the_session_of_a_passthrough_update_is_found_with_one_search() -> None:
    assert updates.session_of_passthrough(said("agent_message_chunk", text="caf\u00e9").text) == "s"
    assert (
        updates.session_of_passthrough('{"method":"session/update","params":{"sessionId":"caf\u00e9"}}'.encode())
        == "caf\u00e9"
    )


def test_the_method_of_a_passthrough_update_may_have_escapes() -> None:
    for method in (rb"session\/update", rb"session\u002fupdate"):
        text = b'{"method":"%b","params":{"sessionId":"s"}}' % method
        assert updates.session_of_passthrough(text) == "s"
        assert updates.sessions_of_all([text]) == ["s"]


def test_a_response_is_not_decoded_to_find_the_session_of_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []
    monkeypatch.setattr(jsonrpc, "decode_envelope", decoded.append)
    assert updates.session_of_passthrough(b'{"id":1,"result":{}}') is None
    assert not decoded


@pytest.mark.parametrize(
    "text",
    [
        *[said(kind).text for kind in ("plan", "current_mode_update", "subagent_update", "tool_call")],
        *[said("tool_call_update", status=status).text for status in ("completed", "failed")],
        b'{"id":1,"method":"session/update","params":{"sessionId":"s"}}',
        b'{"method":"session/updates","params":{"sessionId":"s"}}',
        b'{"method":"session/update","params":{"sessionId":"s","text":"\xff"}}',
        b'{"method":"session/update","params":{"sessionId":"s\xff","update":{}}}',
        b'{"method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"\xff"}}}',
        b'{"method":"caf\xe9","params":{}}',
        b'{"method":"session/update","params":{"sessionId":1}}',
        b'{"method":"session/update","params":{}}',
        b'{"method":"session/update"}',
        b'{"result":{},"id":1}',
        b"banner",
        b"[" * 100_000,
    ],
)
def test_whatever_else_an_agent_writes_needs_a_closer_look(text: bytes) -> None:
    assert updates.session_of_passthrough(text) is None


@pytest.mark.parametrize("status", [None, "pending", "in_progress", 7, {}])
def test_progress_of_a_tool_call_passes_through(status: Any) -> None:
    content = [{"type": "content", "content": {"type": "text", "text": '"completed" or "failed"'}}]
    update = said("tool_call_update", toolCallId="c", status=status, content=content)
    assert updates.session_of_passthrough(update.text) == "s"
    assert updates.tool_call_details(update) is None


CHUNK, PROGRESS = said("agent_message_chunk", text="caf\u00e9").text, said("tool_call_update", status="pending").text
OTHERS = [
    said("tool_call_update", status="completed").text,
    said("tool_call_update", title="it has failed").text,
    said("plan").text,
    CHUNK.replace(b'"s"', b'"t"'),
    CHUNK.replace(b'"s"', b"null"),
    CHUNK.replace(b"caf", b"\xff"),
    # Each two of them are JSON and UTF-8 only together, and one line may be two messages.
    CHUNK[:30],
    CHUNK[30:],
    CHUNK.replace(b"caf", b"\xe2\x82"),
    b'\xac"}',
    CHUNK + b" " + CHUNK,
    b"",
    b" ",
    b"\n" + CHUNK,
    CHUNK.replace(b'"text"', b'"a":' + b"[" * 500 + b"]" * 500 + b',"text"'),
    CHUNK.replace(b'"text"', b'"a":' + b"[" * 50_000 + b',"text"'),
    CHUNK.replace(b'{"method"', b'{"id":1,"method"'),
    CHUNK.replace(b'{"method"', b'{"params":[],"method"'),
    b'{"id":1,"result":{}}',
    b"banner",
]


LIVE = frozenset({"s", "t"})


def runs_by_definition(lines: Sequence[Entry]) -> list[tuple[str | None, list[Entry]]]:
    """Return the runs as a slow reader would find them: line by line."""
    runs: list[tuple[str | None, list[Entry]]] = []
    begin = 0
    for line in lines:
        session = updates.session_of_passthrough(text_of(line))
        session = session if session in LIVE or len(lines) == 1 else None
        found = None if session is None else next((run for of, run in runs[begin:] if of == session), None)
        if found is not None:
            found.append(line)
            continue
        runs.append((session, [line]))
        if session is None:
            begin = len(runs)
    return runs


@pytest.mark.parametrize("at", [0, 3, MANY - 1])
@pytest.mark.parametrize("line", [CHUNK, PROGRESS, *OTHERS])
def test_many_lines_are_sorted_as_each_by_itself_is(line: bytes, at: int) -> None:
    lines = [CHUNK] * MANY
    lines[at] = line
    each = [updates.session_of_passthrough(line) for line in lines]
    assert updates.passthrough_runs(lines, LIVE) == runs_by_definition(lines)
    assert updates.sessions_of_all(lines) in (None, each)
    assert updates.passthrough_runs([line], LIVE) == runs_by_definition([line])


def test_updates_that_pass_through_in_one_session_are_one_run() -> None:
    for count in (1, MANY - 1, MANY, 3 * MANY):
        for lines in ([CHUNK] * count, [PROGRESS] * count):
            assert updates.passthrough_runs(lines, LIVE) == [("s", lines)]
    assert updates.sessions_of_all([CHUNK, PROGRESS] * MANY) == ["s"] * 2 * MANY
    assert updates.passthrough_runs([], LIVE) == []


def test_updates_of_several_sessions_are_a_run_for_each_between_two_other_lines() -> None:
    other, banner = CHUNK.replace(b'"s"', b'"t"'), b"banner"
    for count in (1, MANY):
        lines = [CHUNK, other] * count
        assert updates.passthrough_runs(lines, LIVE) == [("s", [CHUNK] * count), ("t", [other] * count)]
        assert updates.passthrough_runs([*lines, banner, other, CHUNK], LIVE) == [
            *(("s", [CHUNK] * count), ("t", [other] * count), (None, [banner])),
            *(("t", [other]), ("s", [CHUNK])),
        ]


@pytest.mark.parametrize("count", [1, MANY])
def test_an_update_of_a_session_that_is_not_live_keeps_its_place_as_a_sub_agents_may_be(count: int) -> None:
    child = CHUNK.replace(b'"s"', b'"child"')
    lines = [CHUNK, child] * count
    assert updates.passthrough_runs(lines, LIVE) == [("s", [CHUNK]), (None, [child])] * count


@given(st.lists(st.sampled_from([CHUNK, PROGRESS, CHUNK.replace(b'"s"', b'"child"'), *OTHERS]), max_size=2 * MANY))
@effort(200)
def test_any_lines_are_sorted_as_each_by_itself_is(lines: list[bytes]) -> None:
    assert updates.passthrough_runs(lines, LIVE) == runs_by_definition(lines)


def test_lines_that_a_translator_has_read_are_sorted_as_any_others() -> None:
    edge = AgentEdge()
    edge.to_agent(wire.request(0, "initialize", protocolVersion=1))
    edge.from_agent(wire.result(0, {"protocolVersion": 2}))
    said = [
        wire.update("agent_message_chunk", messageId="m", content=wire.text("caf\u00e9")),
        wire.update("agent_thought_chunk", messageId="n", content=wire.text('ended"')),
        wire.update("tool_call_update", toolCallId="t", title="T"),
        wire.update("tool_call_update", toolCallId="t", status="in_progress"),
        wire.update("tool_call_update", toolCallId="t", content=[wire.content("x")]),
        wire.update("usage_update", used=1, size=2),
        *(wire.update("tool_call_update", toolCallId="t", status=status) for status in ("completed", "failed")),
        wire.update("agent_message_chunk", messageId="m", content=wire.text("[" * 500)),
        wire.update("state_update", state="running"),
    ]
    for lines in (edge.from_agent(*said).to_client, edge.from_agent(*said, *said).to_client):
        assert any(isinstance(line, Pair) and line.passes_in for line in lines)
        assert updates.passthrough_runs(lines, LIVE, carries=True) == runs_by_definition(lines)
        for line in lines:
            assert updates.passthrough_runs([line], LIVE, carries=True) == runs_by_definition([line])


def test_the_audit_has_no_text_of_a_tool_call() -> None:
    texts = {"title": "rm", "rawInput": {"command": "rm"}, "content": [], "locations": [{"path": "/etc"}]}
    begun = said("tool_call", toolCallId="c", kind="execute", status="pending", **texts)
    assert updates.tool_call_details(begun) == {"toolCallId": "c", "kind": "execute", "status": "pending"}
    ended = said("tool_call_update", toolCallId="c", status="failed", **texts)
    assert updates.tool_call_details(ended) == {"toolCallId": "c", "kind": None, "status": "failed"}
    odd = said("tool_call", toolCallId=7, kind=["execute"])
    assert updates.tool_call_details(odd) == {"toolCallId": None, "kind": None, "status": None}
    assert updates.tool_call_details(said("agent_message_chunk", status="completed")) is None


@pytest.mark.parametrize(
    ("options", "category"),
    [
        ([{"id": "a", "category": "model"}, {"id": "m", "category": "mode"}], "mode"),
        ([{"id": "m"}], None),
        ([{"id": "m", "category": 1}], None),
        ([{"id": "a", "category": "mode"}, 1, None], None),
        ({"id": "m"}, None),
        ([{}] * 100_000, None),
    ],
)
def test_the_category_of_an_option_is_read_from_the_agents_list(options: Any, category: str | None) -> None:
    assert updates.option_category(json.dumps(options).encode(), "m") == category


def test_an_update_is_a_notification_whose_members_stay_verbatim() -> None:
    assert updates.session_update('a"b', "kind", content=b'{"n" : 1e999}') == (
        b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a\\"b",'
        b'"update":{"sessionUpdate":"kind","content":{"n" : 1e999}}}}'
    )


@pytest.mark.parametrize("params", [b"{}", b"[]", b'{"prompt":"hello"}', b'{"prompt":null}', b'{"prompt":[]}'])
def test_a_prompt_without_blocks_has_no_chunks(params: bytes) -> None:
    assert prompt(params) == []


def test_another_mode_is_told_and_kept_in_its_place() -> None:
    it = session(modes=MODES)
    assert json.loads(updates.mode_update(it, "code"))["params"] == {
        "sessionId": "s/\u00e9",
        "update": {"sessionUpdate": "current_mode_update", "currentModeId": "code"},
    }
    assert it.result == {"modes": MODES.replace(b'"currentModeId" : "ask"', b'"currentModeId" : "code"')}


@pytest.mark.parametrize("result", [{}, {"modes": b"null"}, {"modes": b"{}"}, {"modes": b"[]"}])
def test_where_no_choice_was_offered_there_is_none_to_change(result: dict[str, bytes]) -> None:
    it = session()
    it.result = dict(result)
    updates.mode_update(it, "code")
    assert it.result == result


def test_other_options_are_told_and_kept_verbatim() -> None:
    it = session(configOptions=b"[]")
    text = updates.config_update(it, b'[{"n":1.10}]')
    assert text.endswith(b'"update":{"sessionUpdate":"config_option_update","configOptions":[{"n":1.10}]}}}')
    assert it.result == {"configOptions": b'[{"n":1.10}]'}


# What the agent says about the session as a whole.


def test_the_mode_that_the_agent_tells_of_is_the_sessions() -> None:
    it = session(modes=MODES)
    updates.read_state(it, said("current_mode_update", currentModeId="code"))
    assert json.loads(it.result["modes"])["currentModeId"] == "code"


def test_the_options_that_the_agent_tells_of_are_the_sessions() -> None:
    it = session()
    updates.read_state(it, said("config_option_update", configOptions=[{"id": "effort"}]))
    assert json.loads(it.result["configOptions"]) == [{"id": "effort"}]


def test_a_title_and_a_time_are_kept_until_others_come() -> None:
    it = session()
    updates.read_state(it, said("session_info_update", title="first", updatedAt="2026-01-01T00:00:00Z"))
    updates.read_state(it, said("session_info_update", title="second"))
    it.is_named = True
    updates.read_state(it, said("session_info_update", title="third"))
    assert (it.title, it.updated_at) == ("second", "2026-01-01T00:00:00Z")


def test_of_a_long_title_and_time_the_beginning_is_kept() -> None:
    it = session()
    update = said("session_info_update", title="x" * 5000, updatedAt="9" * 5000)
    updates.read_state(it, update)
    assert (it.title, it.updated_at) == ("x" * 4096, "9" * 4096)


def test_the_state_that_an_agent_of_version_2_tells_is_kept_until_it_is_another_one() -> None:
    it = session()
    told = [{"state": "running"}, {"state": "requires_action"}, {}, {"state": "idle"}, {"state": "_odd"}]
    found = []
    for own in told:
        updates.read_state(it, said("session_info_update", _meta={"acp-gateway": own}))
        found.append(it.own_state)
    assert found == ["running", "requires_action", "requires_action", "", ""]


@pytest.mark.parametrize("kind", ["current_mode_update", "config_option_update", "session_info_update", "plan"])
def test_a_state_that_says_nothing_changes_nothing(kind: str) -> None:
    it = session(modes=MODES)
    title = None if kind == "session_info_update" else "of something else"
    updates.read_state(it, said(kind, title=title, currentModeId=7))
    assert (it.result, it.title, it.updated_at) == ({"modes": MODES}, None, None)


def test_states_sent_during_session_load_are_kept() -> None:
    scene = Scene(agentCapabilities={"loadSession": True})
    ann = scene.join("ann")
    ann.request("session/load", sessionId="s", cwd="/srv")
    scene.agent.state("session_info_update", title="about things")
    scene.agent.state("current_mode_update", currentModeId="old")
    scene.agent.answer(scene.agent.takes("session/load"), modes={"currentModeId": "code"})
    assert scene.multiplexer.sessions[0].title == "about things"
    assert scene.join("bob").load()[-1]["result"] == {"modes": {"currentModeId": "code"}}


# What a late joiner gets.


def test_opening_a_live_session_returns_its_current_result() -> None:
    it = session(modes=MODES)
    assert updates.opening_result(it, with_id=False) == b'{"modes":%b}' % MODES
    assert updates.opening_result(it, with_id=True) == b'{"sessionId":"s/\\u00e9","modes":%b}' % MODES
    assert updates.opening_result(session(), with_id=False) == b"{}"


def test_a_history_whose_beginning_is_missing_is_said_to_be_so_twice() -> None:
    it = session(limit=10, _meta=b'{"own":1.10}')
    it.journal.append(b"more than ten bytes")
    it.journal.append(b"ten bytes!")
    assert updates.opening_result(it, with_id=False) == b'{"_meta":{"own":1.10,"acp-gateway":{"truncated":true}}}'
    gap, *kept = texts_of(updates.history(it))
    assert json.loads(gap)["params"]["update"] == {
        "sessionUpdate": "agent_message_chunk",
        "content": {"type": "text", "text": GAP},
    }
    assert kept == [b"ten bytes!"]


@pytest.mark.parametrize("meta", [b"null", b"7", b"[]"])
def test_a_gap_notice_needs_no_update_of_the_agent(meta: bytes) -> None:
    it = session(_meta=meta)
    it.journal.begin_truncated()
    assert updates.opening_result(it, with_id=False) == b'{"_meta":{"acp-gateway":{"truncated":true}}}'


def test_a_whole_history_has_nothing_added() -> None:
    it = session()
    it.journal.append(b"one")
    assert updates.history(it) == [b"one"]


def test_a_fork_s_history_is_under_its_own_name() -> None:
    text = b'{"method":"session/update","params":{"n":1.10,"sessionId" : "s","update":{"sessionId":"child"}}}'
    assert updates.under_session(text, "s", "f") == text.replace(b'"sessionId" : "s"', b'"sessionId" : "f"')


@pytest.mark.parametrize("text", [b'{"params":{}}', b'{"params":{"sessionId":"a sub-agent"}}'])
def test_updates_of_a_sub_agent_keep_its_session_id_in_a_fork(text: bytes) -> None:
    assert updates.under_session(text, "s", "f") == text


@pytest.mark.parametrize(
    ("blocks", "title"),
    [
        ([{"type": "text", "text": "Fix the\t build \nand more"}], "Fix the build"),
        ([{"type": "image", "data": "AA=="}, {"type": "text", "text": "\n\n  What is this?"}], "What is this?"),
        ([{"type": "text", "text": "x" * 81}], "x" * 79 + "\u2026"),
        ([{"type": "text", "text": "x" * 80}], "x" * 80),
        ([{"type": "text", "text": " \n"}], None),
        ([{"type": "image"}] * 4 + [{"type": "text", "text": "too late"}], None),
        ([], None),
        ("text", None),
        (None, None),
    ],
)
def test_a_prompt_gives_a_title_by_its_first_line(blocks: object, title: str | None) -> None:
    params = {"sessionId": "s", "prompt": blocks}
    message = parse(json.dumps({"id": 1, "method": "session/prompt", "params": params}).encode())
    assert updates.title_of(updates.blocks_of(message)) == title
