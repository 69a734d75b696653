"""Permission requests and rules: what is decided before a client is asked, and which rules clients have written."""

from typing import Any

import pytest

from acp_gateway.core.permissions import ruling
from acp_gateway.core.permissions.ruling import CALL_SIZE
from acp_gateway.protocol.methods import NEWS
from acp_gateway.rules.rule import CommandPattern, Rule
from tests.core.test_same_version import NewScene
from tests.kit.scene import Peer, Scene, make_policy, news_params, opened_scene

ONCE = {"optionId": "once", "name": "Allow", "kind": "allow_once"}
ALWAYS = {"optionId": "always", "name": "Always", "kind": "allow_always"}
NO = {"optionId": "no", "name": "No", "kind": "reject_once"}
NEVER = {"optionId": "never", "name": "Never", "kind": "reject_always"}
OPTIONS = (ALWAYS, ONCE, NO, NEVER)


def pytest_rule(decision: Any = "allow", **parts: Any) -> Rule:
    return Rule(id="rules[0]", decision=decision, command=CommandPattern(("pytest",), True), **parts)


def ruled(*rules: Rule, **welcome: Any) -> tuple[Scene, Peer]:
    """A scene with rules, whose client `ann` has opened the session `s`."""
    return opened_scene(make_policy(rules=rules), **welcome)


def ask(scene: Scene, command: Any = "pytest -q", options: Any = OPTIONS, session: str = "s", **call: Any) -> None:
    """Ask for a permission to run a command."""
    call = {"toolCallId": "call", "title": command, "kind": "execute", "rawInput": {"command": command}} | call
    params = {"sessionId": session, "toolCall": call, "options": options}
    scene.agent.send(id="p", method="session/request_permission", params=params)


def answer(scene: Scene) -> Any:
    """Take the agent's answer."""
    return scene.agent.hears()["result"]["outcome"]


def told(peer: Peer) -> list[str]:
    """Take the texts that a client was told in the conversation."""
    updates = [message["params"]["update"] for message in peer.heard() if message.get("method") == "session/update"]
    return [update["content"]["text"] for update in updates]


@pytest.mark.parametrize(
    ("decision", "options", "outcome"),
    [
        ("allow", OPTIONS, {"outcome": "selected", "optionId": "once"}),
        ("deny", OPTIONS, {"outcome": "selected", "optionId": "no"}),
        ("deny", (ONCE, NEVER), {"outcome": "cancelled"}),
    ],
)
def test_a_rule_decides_once_and_says_so_everywhere(decision: Any, options: Any, outcome: Any) -> None:
    scene, ann = ruled(pytest_rule(decision, author="me"))
    bob = scene.join_session("bob", **news_params())
    ask(scene, options=options)
    assert answer(scene) == outcome
    (line,) = told(ann)
    done = "allowed" if decision == "allow" else "denied"
    assert line == f"[acp-gateway: {done} by a rule of me (rules[0]: {decision} `pytest …`): pytest -q]"
    assert line in [
        entry["params"]["update"]["content"]["text"] for entry in scene.join("late").load() if "params" in entry
    ]
    news = [message["params"] for message in bob.heard() if message["method"] == NEWS]
    assert [(each["by"], each["rule"]) for each in news if each["event"] == "decided"] == [(None, "rules[0]")]
    (event,) = [event for event in scene.audit_events if event.name == "permission_decided"]
    assert (event.client, event.details["rule"], event.details["ruleBy"]) == (None, "rules[0]", "me")


@pytest.mark.parametrize(
    ("rules", "asked"),
    [
        ((), {}),
        ((pytest_rule("ask"), pytest_rule()), {}),
        ((pytest_rule(identity="other"),), {}),
        ((pytest_rule(),), {"options": (ALWAYS, NO)}),
        ((pytest_rule(),), {"options": (ONCE, ONCE | {"optionId": "other"}, NO)}),
        ((pytest_rule(),), {"options": (ONCE | {"optionId": "always"}, ALWAYS, NO)}),
        ((pytest_rule(),), {"options": (ALWAYS | {"optionId": "once"}, ONCE, NO)}),
        ((pytest_rule(),), {"command": "pytest; rm"}),
        ((pytest_rule(),), {"description": "x" * CALL_SIZE}),
    ],
)
def test_a_person_is_asked_where_no_rule_decides(rules: Any, asked: dict[str, Any]) -> None:
    scene, ann = ruled(*rules)
    ask(scene, **asked)
    assert ann.hears()["method"] == "session/request_permission"
    assert scene.agent.heard() == []


@pytest.mark.parametrize(
    "raw",
    [
        b'{"kind":"execute","rawInput":{"command":"pytest","command":"rm"}}',
        b'{"kind":"execute","rawInput":{"command":"pytest","Command":"rm"}}',
        b'{"kind":"execute","rawInput":{"command":"rm"},"rawInput":{"command":"pytest"}}',
        b'{"kind":"execute","rawInput":{"command":"pytest\\ud800"}}',
        b"[]",
    ],
)
def test_a_call_that_parsers_read_in_several_ways_is_asked(raw: bytes) -> None:
    scene, ann = ruled(pytest_rule())
    options = b'[{"optionId":"once","name":"a","kind":"allow_once"}]'
    scene.agent.say(
        b'{"jsonrpc":"2.0","id":1,"method":"session/request_permission","params":{"sessionId":"s","toolCall":%b,'
        b'"options":%b}}' % (raw, options)
    )
    assert [message["method"] for message in ann.heard()] == ["session/request_permission"]


def call_of(command: str) -> dict[str, Any]:
    return {"kind": "execute", "title": command, "rawInput": {"command": command}}


PYTEST, RM = call_of("pytest -q"), call_of("rm -rf .")


def ask_after(scene: Scene, before: list[dict[str, Any]], call: dict[str, Any]) -> None:
    """Tell of a tool call, and ask for a permission to make it."""
    for number, told_before in enumerate(before):
        scene.agent.state("tool_call_update" if number else "tool_call", **{"toolCallId": "call"} | told_before)
    params = {"sessionId": "s", "toolCall": {"toolCallId": "call"} | call, "options": OPTIONS}
    scene.agent.send(id="p", method="session/request_permission", params=params)


def is_asked(peer: Peer) -> bool:
    return "session/request_permission" in [message.get("method") for message in peer.heard()]


@pytest.mark.parametrize(
    ("before", "call", "asked"),
    [
        # What the request leaves out is in the call.
        ([PYTEST], {}, False),
        ([{"kind": "execute", "title": "Terminal", "rawInput": {}}, PYTEST | {"title": "`pytest -q`"}], {}, False),
        ([PYTEST], {"title": "pytest -q", "rawInput": {"timeout": 60}}, False),
        ([PYTEST], PYTEST, False),
        ([{"toolCallId": "other"} | RM], PYTEST, False),
        ([RM, {"status": "completed"}], {}, True),
        # What was told before says something else.
        ([RM], PYTEST, True),
        ([RM], {"title": "pytest -q"}, True),
        ([PYTEST], RM, True),
        ([PYTEST], {"rawInput": {"command": "rm -rf ."}}, True),
        ([PYTEST, RM], {}, True),
        ([{"title": "rm -rf ."}], PYTEST, True),
        ([{"kind": "read"}], PYTEST, True),
        ([{"rawInput": {"command": ["rm"]}}], PYTEST, True),
        ([{"rawInput": {"stdin": "rm"}}], PYTEST, True),
        ([{"rawInput": {"cwd": "/tmp"}}], PYTEST, True),
        ([{"rawInput": "rm"}], PYTEST, True),
        ([{"content": [{"type": "x", "text": "x" * CALL_SIZE}]}], PYTEST, True),
    ],
)
def test_a_request_is_ruled_on_all_that_its_tool_call_says(
    before: list[dict[str, Any]], call: dict[str, Any], asked: bool
) -> None:
    scene, ann = ruled(pytest_rule())
    ask_after(scene, before, call)
    assert is_asked(ann) == asked


def test_what_was_told_of_a_call_counts_in_any_spelling_in_its_turn_and_session_alone() -> None:
    scene, ann = ruled(pytest_rule())
    ann.prompt()
    prompt = scene.agent.takes("session/prompt")
    scene.agent.state("tool_call", "child", toolCallId="call", **RM)
    ask_after(scene, [], PYTEST)
    assert not is_asked(ann)
    scene.agent.say(
        b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"tool_call",'
        b'"toolCallId":"\\u007a","rawInput":{"command":"rm","command":"pytest -q"}}}}'
    )
    again = PYTEST | {"toolCallId": "z"}
    ask_after(scene, [], again)
    assert is_asked(ann)
    scene.agent.heard()
    # Another call of the same name has begun.
    ask_after(scene, [again], {"toolCallId": "z"})
    assert not is_asked(ann)
    scene.agent.state("tool_call", toolCallId="z", **RM)
    scene.agent.answer(prompt, stopReason="end_turn")
    ask_after(scene, [], again)
    assert not is_asked(ann)


@pytest.mark.parametrize(("name", "asked"), [("t", False), ('"', True)])
def test_no_more_than_some_messages_are_read_for_a_request(
    name: str, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ruling, "READ_SIZE", 20_000)
    scene, ann = ruled(pytest_rule())
    ann.prompt()
    # Such a name is spelled with escapes, and may be that of the request.
    for number in range(100):
        scene.agent.state("tool_call_update", toolCallId=f"{name}{number}")
    ask_after(scene, [], PYTEST)
    assert is_asked(ann) == asked


def test_a_rule_decides_while_no_client_is_there_and_with_an_end_only_until_then() -> None:
    scene, ann = ruled(pytest_rule(until=2000))
    ann.gone()
    ask(scene)
    assert scene.agent.heard() == []
    scene, ann = ruled(pytest_rule(until=2000))
    scene.pass_time(1, 1999)
    ann.gone()
    ask(scene)
    assert answer(scene)["optionId"] == "once"


def test_no_rule_decides_in_a_turn_that_a_person_has_stopped() -> None:
    scene, ann = ruled(pytest_rule())
    ann.prompt()
    scene.agent.takes("session/prompt")
    ask(scene)
    assert answer(scene)["optionId"] == "once"
    ann.cancel()
    ann.heard()
    scene.agent.heard()
    ask(scene)
    assert [message["method"] for message in ann.heard()] == ["session/request_permission"]


def test_a_request_of_an_unknown_session_is_decided_by_no_rule() -> None:
    scene, ann = ruled(pytest_rule())
    ann.new_session("t")
    ask(scene, session="sub")
    assert [message["method"] for message in ann.heard()] == ["session/request_permission"]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("subject", "decided"),
    [
        ({"type": "command", "command": "pytest -q", "cwd": "/srv"}, True),
        ({"type": "command", "command": "pytest -q", "cwd": "/tmp"}, False),
        (
            {
                "type": "tool_call",
                "toolCall": {"toolCallId": "c", "kind": "execute", "rawInput": {"command": "pytest"}},
            },
            True,
        ),
        (
            {"type": "tool_call", "toolCall": {"toolCallId": "c", "title": "rm", "rawInput": {"command": "pytest"}}},
            False,
        ),
    ],
)
def test_a_rule_decides_for_an_agent_of_version_2(version: int, subject: Any, decided: bool) -> None:
    scene = NewScene(make_policy(rules=[pytest_rule()]))
    ann = scene.come("ann", version)
    ann.new_session()
    ann.heard()
    params = {"sessionId": "s", "title": "May I?", "subject": subject, "options": OPTIONS}
    scene.agent.send(id="q", method="session/request_permission", params=params)
    asked = [message for message in ann.heard() if message.get("method") == "session/request_permission"]
    assert len(asked) == (not decided)
    outcome = {"outcome": {"outcome": "selected", "optionId": "once"}}
    assert scene.agent.heard() == ([{"jsonrpc": "2.0", "id": "q", "result": outcome}] if decided else [])


def choose(peer: Peer, wanted: Any, option: str = "once") -> None:
    """Answer the open question, and want a rule."""
    meta = {"acp-gateway": {"rule": wanted}, "own": 1}
    result = {"outcome": {"outcome": "selected", "optionId": option}, "_meta": meta}
    peer.send(id=peer.hears()["id"], result=result)


@pytest.mark.parametrize("scope", ["project", "session"])
def test_a_rule_that_was_offered_is_written_as_the_request_is_allowed(scope: str) -> None:
    scene, ann = ruled()
    ask(scene)
    choose(ann, {"subject": "`pytest …`", "for": scope})
    assert scene.agent.hears()["result"] == {
        "outcome": {"outcome": "selected", "optionId": "once"},
        "_meta": {"own": 1},
    }
    (written,) = scene.written
    rule = written.rule
    assert (rule.decision, str(rule.command), rule.author, rule.identity) == ("allow", "pytest …", "me", "me")
    assert (rule.agent, rule.project, rule.session) == ("agent", "/srv", None if scope == "project" else "s")
    scene.multiplexer.rule_written(written.session, "a rule")
    scene.deliver()
    assert told(ann) == ["[acp-gateway: a rule]"]


@pytest.mark.parametrize(
    ("wanted", "option", "joined"),
    [
        ({"subject": "`rm …`", "for": "project"}, "once", {}),
        ({"subject": "`pytest …`", "for": "ever"}, "once", {}),
        ({"subject": "`pytest …`"}, "once", {}),
        ("`pytest …`", "once", {}),
        ({"subject": "`pytest …`", "for": "session"}, "always", {}),
        ({"subject": "`pytest …`", "for": "session"}, "no", {}),
        ({"subject": "`pytest …`", "for": "session"}, "once", {"identity": "guest", "guest": True, "only": "s"}),
        ({"subject": "`pytest …`", "for": "project"}, "once", {"only": "s"}),
    ],
)
def test_a_rule_that_was_not_offered_is_not_written(wanted: Any, option: str, joined: Any) -> None:
    scene, _ = ruled()
    peer = scene.join_session("peer", **joined)
    ask(scene)
    choose(peer, wanted, option)
    assert answer(scene)["optionId"] == option
    assert scene.written == []
    assert told(peer) == ["[acp-gateway: no rule was written: this one was not offered to peer]"]


def test_only_those_who_may_write_a_rule_are_offered_one() -> None:
    scene, ann = ruled()
    guest = scene.join_session("guest", "them", guest=True, only="s")
    other = scene.join("other", "other")
    ask(scene)
    (request,) = scene.multiplexer.waiting(scene.session())
    offered = [
        [rule.subject for rule in scene.multiplexer.offered_rules(request, peer.client.reach)]
        for peer in (ann, guest, other)
    ]
    assert offered == [["`pytest …`", "`pytest -q`"], [], []]


def test_a_client_that_asks_for_them_gets_the_rules_with_the_question_also_later() -> None:
    scene = Scene()
    asks: dict[str, Any] = {"clientCapabilities": {"_meta": {"acp-gateway": {"rules": True}}}}
    ann = scene.join("ann", **asks)
    ann.new_session()
    ask(scene, session="s")
    guest = scene.join("guest", "them", guest=True, only="s", **asks)
    late, plain = scene.join("late", **asks), scene.join("plain")
    told = {"rules": ["`pytest …`", "`pytest -q`"], "project": "/srv"}
    for peer, offered in ((ann, told), (late, told), (guest, None), (plain, None)):
        messages = peer.heard() if peer is ann else peer.load()
        (asked,) = [message["params"] for message in messages if message.get("method") == "session/request_permission"]
        assert asked.get("_meta", {}).get("acp-gateway") == offered
        assert asked["toolCall"]["title"] == "pytest -q"


def test_no_rule_is_written_for_a_request_of_no_certain_session() -> None:
    scene, ann = ruled()
    ann.new_session("t")
    ask(scene, session="")
    choose(ann, {"subject": "`pytest …`", "for": "session"})
    assert answer(scene) == {"outcome": "selected", "optionId": "once"}
    assert (scene.written, told(ann)) == ([], [])
