"""Plain updates: they are translated as the slower way translates them, and most updates are plain."""

import json
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.protocol.text.pairs import Pair
from acp_gateway.versions.agent_edge import AgentEdge
from acp_gateway.versions.new_agent import NewAgent
from acp_gateway.versions.old_agent import OldAgent
from acp_gateway.versions.translator import Translator
from tests.fuzz.effort import effort
from tests.kit.versions import S, content, text

Json = dict[str, Any]
Choice = TypeVar("Choice")

PATCH = "diff --git a/w/f b/w/f\n--- a/w/f\n+++ b/w/f\n@@ -1,1 +1,1 @@\n-one\n+two\n"
ENTRY = {"content": "look", "priority": "high", "status": "completed"}


class InFull:
    """Makes a translator read each update in full."""

    def plain_update(self, text: bytes, position: int | None = None) -> bytes | None:
        return None


class NewAgentInFull(InFull, NewAgent):
    """The slower way for an agent of version 2."""


class OldAgentInFull(InFull, OldAgent):
    """The slower way for an agent of version 1."""


def compact(kind: str, members: Json) -> bytes:
    """Return an update as agents write it."""
    params = {"sessionId": S, "update": {"sessionUpdate": kind, **members}}
    return json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}, separators=(",", ":")).encode()


def diff(path: str, patch: str = PATCH, **more: Any) -> Json:
    changes = [{"operation": "modify", "path": path, "fileType": "text", **more}]
    return {"type": "diff", "changes": changes, "patch": {"format": "git_patch", "text": patch}}


def old_diff(old: str | None, new: str = "two\n") -> Json:
    return {"type": "diff", "path": "/w/f", "oldText": old, "newText": new}


ITEMS = {
    1: [content("x"), content("é\n"), old_diff("one\n"), old_diff(None), {"type": "terminal", "terminalId": "t"}],
    2: [content("x"), diff("/w/f"), diff("/w/g"), diff("/w/f", operation="move"), diff("/w/f", ""), diff("/w/f", "?")],
}
ITEMS[2] += [{"type": "terminal", "terminalId": "t"}, {"type": "content", "content": {"type": "new"}}]

IDS = ("a", "b")
PLANS = [
    [],
    [ENTRY],
    [ENTRY, {**ENTRY, "status": "pending"}],
    [{**ENTRY, "status": "cancelled"}],
    [{"content": "x"}],
    None,
]


def sometimes(**members: Sequence[Any]) -> st.SearchStrategy[Json]:
    return st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in members.items()})


def updates(version: int) -> st.SearchStrategy[tuple[str, Json]]:
    """Updates of an agent of a version, plain ones and those that are nearly so."""
    chunk = sometimes(messageId=(*IDS, None)).map(lambda found: {"content": text("hi"), **found})
    plain = {"title": ("t",), "kind": ("edit",), "status": ("pending", "completed", "cancelled")}
    other = {
        "title": (None,),
        "kind": ("new", None),
        "status": (None,),
        "locations": ([], [{"path": "/w/f", "line": 1}], [{"path": "/w/f", "line": 0}], None),
        "rawInput": ({"sessionUpdate": "tool_call_update", "content": [content("x")]}, 1, None),
        "_meta": ({"x": 1},),
    }
    calls = st.builds(
        lambda call, items, given: {"toolCallId": call, **given, **({} if items is None else {"content": items})},
        st.sampled_from(IDS),
        st.none() | st.lists(st.sampled_from(ITEMS[version]), max_size=2),
        sometimes(**plain)
        | sometimes(**(plain | {name: (*plain.get(name, ()), *them) for name, them in other.items()})),
    )
    kinds: dict[str, st.SearchStrategy[Json]] = {
        "agent_message_chunk": chunk,
        "agent_thought_chunk": chunk,
        "tool_call_update": calls,
        "usage_update": st.just({"used": 1, "size": 2}),
    }
    if version == 1:
        kinds |= {"tool_call": calls, "plan": st.builds(lambda found: {"entries": found}, st.sampled_from(PLANS))}
    else:
        message = st.builds(lambda name: {"messageId": name, "content": [text("hi")]}, st.sampled_from(IDS))
        item = st.builds(lambda it, to: {"toolCallId": to, "content": it}, *map(st.sampled_from, (ITEMS[2], IDS)))
        plan = st.builds(
            lambda name, found: {"plan": {"type": "items", "planId": name, "entries": found}},
            st.sampled_from(IDS),
            st.sampled_from(PLANS),
        )
        output = st.just({"terminalId": "t", "data": "aGkK"})
        kinds |= {"agent_message": message, "plan_update": plan, "terminal_output_chunk": output}
        kinds |= {"tool_call_content_chunk": item}
    chosen = [*kinds, *["tool_call_update"] * 4, *[kind for kind in kinds if kind == "tool_call_content_chunk"] * 3]
    return st.sampled_from(chosen).flatmap(lambda kind: st.tuples(st.just(kind), kinds[kind]))


@pytest.mark.parametrize("version", [1, 2])
@given(data=st.data())
@effort(150)
def test_a_plain_update_becomes_what_it_becomes_when_it_is_read_in_full(version: int, data: st.DataObject) -> None:
    it: Translator[Any] = OldAgent() if version == 1 else NewAgent()
    reference: Translator[Any] = OldAgentInFull() if version == 1 else NewAgentInFull()
    first = ("tool_call" if version == 1 else "tool_call_update", {"toolCallId": "a", "title": "t"})
    lines = [compact(*each) for each in (first, *data.draw(st.lists(updates(version), min_size=2, max_size=12)))]
    for position, line in enumerate(lines):
        made, wanted = (list(map(json.loads, each.from_agent(line, position).to_client)) for each in (it, reference))
        assert made == wanted
    together: Translator[Any] = OldAgent() if version == 1 else NewAgent()
    alone: Translator[Any] = OldAgent() if version == 1 else NewAgent()
    assert together.from_agent_together(lines, 0).to_client == [
        made for position, line in enumerate(lines) for made in alone.from_agent(line, position).to_client
    ]


@pytest.mark.parametrize("spelled", [r'"session\u0055pdate":"%s"', r'"sessionUpdate":"tool\u005fcall%s"'])
@pytest.mark.parametrize("version", [1, 2])
def test_a_kind_that_is_spelled_with_escapes_is_not_taken_for_one_within_the_input(version: int, spelled: str) -> None:
    kind = "tool_call" if version == 1 else "tool_call_update"
    line = compact(kind, {"toolCallId": "a", "title": "t", "rawInput": {"sessionUpdate": kind}})
    said = spelled % (kind if spelled.count("tool") == 0 else kind.removeprefix("tool_call"))
    line = line.replace(b'"sessionUpdate":"%b"' % kind.encode(), said.encode(), 1)
    it, reference = (OldAgent(), OldAgentInFull()) if version == 1 else (NewAgent(), NewAgentInFull())
    made, wanted = (list(map(json.loads, each.from_agent(line, 0).to_client)) for each in (it, reference))
    assert made == wanted
    assert wanted[0]["params"]["update"]["rawInput"] == {"sessionUpdate": kind}


CALL = {"toolCallId": "c", "title": "Edit", "kind": "edit", "status": "pending", "rawInput": {"a": 1}}
OLD = [
    ("agent_message_chunk", {"content": text("hi")}),
    ("tool_call", {**CALL, "locations": [{"path": "/w/f", "line": 3}]}),
    ("tool_call_update", {"toolCallId": "c", "status": "in_progress"}),
    ("tool_call_update", {"toolCallId": "c", "content": [content("x"), old_diff("one\n")]}),
    ("plan", {"entries": [ENTRY]}),
    ("usage_update", {"used": 1, "size": 2}),
]
NEW = [
    ("agent_message_chunk", {"messageId": "m", "content": text("hi")}),
    ("tool_call_update", {**CALL, "locations": [{"path": "/w/f", "line": 3}]}),
    *OLD[2:3],
    ("tool_call_update", {"toolCallId": "c", "content": [content("x"), diff("/w/f")]}),
    ("plan_update", {"plan": {"type": "items", "planId": "p", "entries": [ENTRY]}}),
    OLD[5],
]


@pytest.mark.parametrize(("it", "said"), [(OldAgent(), OLD), (NewAgent(), NEW)])
def test_typical_updates_are_plain(it: Translator[Any], said: list[tuple[str, Json]]) -> None:
    assert all(it.plain_update(compact(*each)) for each in said)


def test_an_update_of_version_2_goes_with_what_it_becomes_unless_that_is_the_same() -> None:
    edge = AgentEdge()
    edge.to_agent(b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}')
    edge.from_agent(b'{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":2}}')
    lines = [compact(*each) for each in NEW]
    made = edge.from_agent(*lines).to_client
    pairs = [one for one in made if isinstance(one, Pair)]
    assert [pair.original for pair in pairs] == lines
    assert [pair.is_same for pair in pairs] == [True, False, True, False, False, True]
    assert [pair.passes_in for pair in pairs] == ["s", None, "s", None, None, None]


def test_what_is_the_same_in_both_versions_is_not_read_again_for_a_client_of_the_agents_version() -> None:
    same = compact(*NEW[0])
    pair = Pair(same, same)
    new, other = OldAgent(), OldAgent()
    new.is_same = True
    for made in (new.from_agent(pair), new.from_agent_together([pair], 0)):
        assert made.to_client[0] is same
        assert not new._sessions
    # Of an earlier process, which spoke version 2: a thought of an agent of version 1 has an id of its own.
    thought = compact("agent_thought_chunk", {"messageId": "m", "content": text("x")})
    assert other.from_agent(Pair(thought, thought)).to_client != [thought]
