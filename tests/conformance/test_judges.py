"""Recorded dialogues, and the judges where time decides or programs rarely show it."""

from functools import partial
from typing import Any

import pytest

from acp_conformance import agent_checks as agent
from acp_conformance import client_checks as client
from acp_conformance import common_judges as common
from acp_conformance.client_script import CLIENT_SCENARIOS, SCENARIOS
from acp_conformance.dialogue import FOR_STDERR, Check, Dialogue, Fault, Judge, Line, Verdict, id_key, not_shown
from tests.conformance.dialogues import dialogue, into, out

HIDDEN = "not shown"

PROMPT: dict[str, Any] = {"method": "session/prompt", "params": {"sessionId": "s", "prompt": []}}
CANCEL: dict[str, Any] = {"method": "session/cancel", "params": {"sessionId": "s"}}
NEW, OPENED = out(id=1, method="session/new", params={}), into(id=1, result={"sessionId": "s"})
TOLD: dict[str, Any] = {
    "method": "session/update",
    "params": {"sessionId": "s", "update": {"sessionUpdate": "subagent_update", "sessionId": "child"}},
}
SECOND = out(id=3, method="session/new", params={}), into(id=3, result={"sessionId": "t"})
REFUSED: dict[str, Any] = {"error": {"code": -32603, "message": "no"}}

OPTIONS = [{"optionId": name, "name": name, "kind": f"{kind}_once"} for name, kind in (("y", "allow"), ("n", "reject"))]
ASK = into(id=0, method="session/request_permission", params={"options": OPTIONS})


def verdict_of(judge: Judge, **dialogues: Dialogue) -> str:
    """Return `passed`, `not shown`, or the reason of a fault; `_` in a scenario's name stands for `-`."""
    check = Check("n", "MUST", "s", "t", judge)
    verdict = check.run({scenario.replace("_", "-"): each for scenario, each in dialogues.items()})
    return verdict.reason if verdict.outcome == "failed" else verdict.outcome


def cancelled_after(seconds: float, reason: str) -> Dialogue:
    return dialogue(out(id=2, **PROMPT), out(1.0, **CANCEL), into(1.0 + seconds, id=2, result={"stopReason": reason}))


def blocks(*kinds: str) -> dict[str, Any]:
    return {"method": "session/prompt", "params": {"prompt": [{"type": kind} for kind in kinds]}}


def decided(option: str | None, **members: Any) -> Dialogue:
    outcome = {"outcome": "cancelled"} if option is None else {"outcome": "selected", "optionId": option}
    return dialogue(ASK, out(id=0, result={"outcome": outcome}), **members)


def read_file(**place: object) -> Line:
    return into(id=1, method="fs/read_text_file", params={"sessionId": "s", "path": "/a", **place})


def reading(*lines: Line) -> Dialogue:
    """A dialogue with a client that offers to read files."""
    offered = {"clientCapabilities": {"fs": {"readTextFile": True}}}
    return dialogue(out(id=9, method="initialize", params=offered), *lines)


STREAM = partial(common.judge_stream, outgoing=False)
ANSWERS = partial(common.judge_answers, outgoing=False)
SESSIONS = partial(common.judge_sessions, outgoing=False)
UNKNOWN = partial(common.judge_not_found, scenario="s", method=common.UNKNOWN, outgoing=False)
UNANSWERED = partial(common.judge_not_answered, scenario="s", outgoing=False)
EXTENSION = partial(common.judge_not_found, scenario="s", method=common.UNKNOWN_EXTENSION, outgoing=False)
CANCELLED = partial(agent.judge_cancelled, scenario="cancellation")
TEXT, RESOURCE = (
    partial(agent.judge_blocks, kind=name, wanted=kind.__eq__)
    for name, kind in (("text", "text"), ("embeddedContext", "resource"))
)
FILES = partial(client.judge_files, before="one\ntwo\nthree\n")
SURVIVED = partial(client.judge_survived, scenario="m", probe=lambda line: bool(line.update))
BAD_LINE = dialogue(Line(True, b"no JSON"), into(id=None, error={"code": -32700, "message": "parse"}))
TWO_PROMPTS = dialogue(
    *(out(id=1, **blocks("text")), into(id=1, result={})),
    *(out(id=2, **blocks("text", "resource")), into(id=2, **REFUSED)),
)
EARLY = dialogue(out(id=0, method="initialize"), into(id=0, result={"_meta": {}}), ending="ended", exit_code=1)
PART = read_file(line=2, limit=1)

CASES: dict[str, tuple[Judge, dict[str, Dialogue], str]] = {
    # Judges of both sides.
    "a wrong session id is compared as any other": (
        SESSIONS,
        {"s": dialogue(NEW, into(id=1, result={"sessionId": []}), into(method="a", params={"sessionId": []}))},
        "passed",
    ),
    "a session id that is an object was never opened": (
        SESSIONS,
        {"s": dialogue(NEW, OPENED, into(method="a", params={"sessionId": {}}))},
        "the session {} was never opened",
    ),
    "the session of a sub-agent that was told is known": (
        SESSIONS,
        {"s": dialogue(NEW, OPENED, into(**TOLD), into(method="a", params={"sessionId": "child"}))},
        "passed",
    ),
    "the session of a sub-agent that was not told is not known": (
        SESSIONS,
        {"s": dialogue(NEW, OPENED, into(id=5, method="session/request_permission", params={"sessionId": "child"}))},
        "the session 'child' was never opened, nor told of by a subagent_update",
    ),
    "too much output": (STREAM, {"s": dialogue(into(method="a"), ending="overflow")}, "--output-limit"),
    "the kit's own bad line is not the program's": (STREAM, {"s": BAD_LINE}, "passed"),
    "a response to a bad line has no request": (ANSWERS, {"s": BAD_LINE}, "passed"),
    "a result for an unknown extension": (
        EXTENSION,
        {"s": dialogue(out(id=1, method=common.UNKNOWN_EXTENSION), into(id=1, result={}))},
        HIDDEN,
    ),
    "a result for an unknown method": (
        UNKNOWN,
        {"s": dialogue(out(id=1, method=common.UNKNOWN), into(id=1, result={}))},
        "a result instead of -32601",
    ),
    "a request after a notification is answered": (
        UNANSWERED,
        {"s": dialogue(out(method=common.UNKNOWN), out(id=1, method="a"), into(id=1, result=1))},
        "passed",
    ),
    "a request after a notification has no response": (
        UNANSWERED,
        {"s": dialogue(out(method=common.UNKNOWN), out(id=1, method="a"), ending="timeout")},
        "no response: the time was over",
    ),
    # Judges of agents.
    "a turn that ends as usual soon after its cancellation": (
        CANCELLED,
        {"cancellation": cancelled_after(0.5, "end_turn")},
        HIDDEN,
    ),
    "a turn that ends as usual long after it": (
        CANCELLED,
        {"cancellation": cancelled_after(5.0, "end_turn")},
        "'end_turn'",
    ),
    "a cancelled turn may take its time": (CANCELLED, {"cancellation": cancelled_after(5.0, "cancelled")}, "passed"),
    "a cancelled turn has no response": (
        CANCELLED,
        {"cancellation": dialogue(out(id=2, **PROMPT), out(**CANCEL), ending="timeout")},
        "no response to session/prompt: the time was over",
    ),
    "a turn that is never answered after another session was opened": (
        agent.judge_sessions_at_once,
        {"sessions_at_once": dialogue(NEW, OPENED, out(id=2, **PROMPT), *SECOND, ending="timeout")},
        "no response to session/prompt: the time was over",
    ),
    "a turn that was over before": (
        agent.judge_sessions_at_once,
        {"sessions_at_once": dialogue(NEW, OPENED, out(id=2, **PROMPT), into(id=2, result={}), *SECOND)},
        HIDDEN,
    ),
    "files may be used where they are offered": (
        partial(agent.judge_not_offered, family="fs/", offered="file-system"),
        {"file_system": dialogue(read_file())},
        "passed",
    ),
    "a file is asked for": (agent.judge_files, {"file_system": dialogue(read_file())}, "passed"),
    **{
        f"the line {line!r} of a file": (
            agent.judge_files,
            {"file_system": dialogue(read_file(line=line))},
            "number from 1 on",
        )
        for line in (0, -1, "1", True)
    },
    "an agent that ended at once": (
        partial(agent.judge_version, scenario="initialize", asked=1),
        {"initialize": dialogue(out(id=0, method="initialize"), ending="ended", exit_code=3, stderr="a\nno key\n")},
        "exit code 3; stderr: no key",
    ),
    "a prompt of text is judged by itself": (TEXT, {"blocks": TWO_PROMPTS}, "passed"),
    "a prompt is judged by the kind that it has besides text": (
        RESOURCE,
        {"blocks": TWO_PROMPTS},
        "a prompt with embeddedContext was refused",
    ),
    "no initialize was sent": (agent.judge_initialize, {}, HIDDEN),
    # Judges of clients.
    "an id is used again after its response": (
        client.judge_unique_ids,
        {"s": dialogue(out(id=1, method="a"), into(id=1, result=1), out(id=1, method="b"))},
        "passed",
    ),
    "an id is used again before its response": (
        client.judge_unique_ids,
        {"s": dialogue(out(id=1, method="a"), out(id=1, method="b"))},
        "the id 1 is that",
    ),
    "a client that waits for its user shows no turn": (
        client.judge_turn,
        {"agent_text": dialogue(ASK, ending="timeout", waiting_for="a response")},
        HIDDEN,
    ),
    "a client that hangs before its prompt": (
        client.judge_turn,
        {"agent_text": dialogue(out(id=0, method="initialize"), ending="timeout", waiting_for="session/prompt")},
        "the time was over, before session/prompt",
    ),
    "a client that hangs after its user's decision": (
        client.judge_turn,
        {"agent_text": dialogue(ending="timeout", waiting_for="a response", actions=frozenset({"allow"}))},
        "the time was over, before a response",
    ),
    "an agent cannot write to stderr": (
        client.judge_stderr,
        {"agent_stderr": dialogue(ending="timeout", waiting_for=FOR_STDERR)},
        "does not read its stderr",
    ),
    "no stderr was written": (client.judge_stderr, {}, HIDDEN),
    "a client of one prompt shows no stop reasons": (
        client.judge_stop_reasons,
        {"agent_stop_reasons": dialogue(out(id=1, **PROMPT), into(id=1, result={}), ending="ended")},
        HIDDEN,
    ),
    "a client that ends early has died of the message before": (
        SURVIVED,
        {"m": EARLY, "agent_text": dialogue(NEW)},
        "after this the program ended with exit code 1",
    ),
    "a client that always ends early": (SURVIVED, {"m": EARLY, "agent_text": EARLY}, HIDDEN),
    "a client that waits for its user shows no permission": (
        client.judge_permission,
        {"permission": dialogue(ASK, ending="timeout")},
        HIDDEN,
    ),
    "a client whose user has decided has to answer": (
        client.judge_permission,
        {"permission": dialogue(ASK, ending="timeout", actions=frozenset({"allow"}))},
        "no response to session/request_permission",
    ),
    **{
        f"{option} where the user {'said' if said else 'did not say'} {kind}": (
            partial(client.judge_decision, scenario="permission", kind=kind),
            {"permission": decided(option, actions=frozenset({kind} if said else ()))},
            f"the user said {kind}" if said else HIDDEN,
        )
        for option, kind in (("y", "reject"), ("n", "allow"), (None, "allow"))
        for said in (False, True)
    },
    "a permission that was answered before the cancellation": (
        client.judge_cancel_permission,
        {"permission_cancelled": dialogue(*decided("y").lines, out(**CANCEL))},
        HIDDEN,
    ),
    **{
        f"a part of a file that is {content!r}": (
            FILES,
            {"file_system": reading(PART, out(id=1, result={"content": content}))},
            "passed",
        )
        for content in ("two", "two\n")
    },
    "a refused write changes nothing": (
        FILES,
        {
            "file_system": reading(
                into(id=0, method="fs/write_text_file", params={"path": "/a", "content": "x"}),
                out(id=0, error={"code": -32601, "message": "no"}),
                PART,
                out(id=1, result={"content": "two"}),
            )
        },
        "passed",
    ),
    "an error for what is offered": (
        FILES,
        {"file_system": reading(PART, out(id=1, **REFUSED))},
        "is offered, and was answered with an error",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_verdict_on_a_dialogue(case: str) -> None:
    judge, dialogues, expected = CASES[case]
    found = verdict_of(judge, **dialogues)
    assert found == expected if expected in ("passed", HIDDEN) else expected in found


@pytest.mark.parametrize("suite", [agent, client])
def test_a_program_that_wrote_nothing_passes_only_checks_of_its_end(suite: Any) -> None:
    found = {check.name: check.run({"s": Dialogue()}).outcome for check in suite.CHECKS}
    assert {name for name, outcome in found.items() if outcome == "passed"} <= {"exit", "stays"}
    assert "failed" not in found.values()


@pytest.mark.parametrize(
    ("capabilities", "session", "method", "params"),
    [
        ({"loadSession": True}, {}, "session/load", {}),
        ({"sessionCapabilities": {"list": {}}}, {}, "session/list", {}),
        ({}, {"modes": {"currentModeId": "a", "availableModes": []}}, "session/set_mode", {}),
        ({}, {"configOptions": []}, "session/set_config_option", {}),
        ({}, {}, "authenticate", {"methodId": "a"}),
        ({}, {}, "_extension", {}),
        ({"mcpCapabilities": {"http": True}}, {}, "session/new", {"mcpServers": [{"type": "http"}]}),
    ],
)
def test_methods_and_servers_may_be_used_where_they_are_offered(
    capabilities: dict[str, Any], session: dict[str, Any], method: str, params: dict[str, Any]
) -> None:
    def offered(capabilities: dict[str, Any], session: dict[str, Any], params: dict[str, Any]) -> list[str]:
        result = {"agentCapabilities": capabilities, "authMethods": [{"id": "a", "name": "A"}]}
        opened = (NEW, into(id=1, result={"sessionId": "s", **session}), out(id=2, method=method, params=params))
        talk = dialogue(out(id=0, method="initialize", params={}), into(id=0, result=result), *opened)
        return [verdict_of(judge, s=talk) for judge in (client.judge_methods_offered, client.judge_mcp_offered)]

    assert set(offered(capabilities, session, params)) <= {"passed", HIDDEN}
    if method == "session/new":
        assert "'http'" in offered({}, {}, params)[1]
    elif method != "_extension":
        assert offered({}, {}, {})[0] == f"the agent does not offer {method}"


@pytest.mark.parametrize(("suite", "scenarios"), [(agent, SCENARIOS), (client, CLIENT_SCENARIOS)])
def test_each_check_has_a_name_of_its_own_and_scenarios_that_are_played(suite: Any, scenarios: Any) -> None:
    assert len({check.name for check in suite.CHECKS}) == len(suite.CHECKS)
    judges = [getattr(check.judge, "keywords", {}) for check in suite.CHECKS]
    assert {judge["scenario"] for judge in judges if "scenario" in judge} <= {each.name for each in scenarios}


def test_a_rule_without_a_judge_is_refused() -> None:
    with pytest.raises(ValueError, match="different names"):
        common.table_of_checks("a | MUST | Section | the rule", {})


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b'{"id":1,"method":"a"}', "request"),
        (b'{"id":null,"method":"a"}', "request"),
        (b'{"method":"a"}', "notification"),
        (b'{"id":1,"result":null}', "response"),
        (b'{"id":1}', ""),
        (b'{"method":1}', ""),
        (b"[]", ""),
        (b"[" * 100_000, ""),
    ],
)
def test_the_kind_of_a_line(text: bytes, kind: str) -> None:
    assert Line(True, text).kind == kind


def test_a_response_belongs_to_the_request_of_the_other_side_with_its_id_and_type() -> None:
    assert len({id_key(value) for value in (1, "1", 1.0, True, None, "")}) == 6
    first, second, third = out(id=1, method="a"), into(id=1, method="b"), out(id=2, method="c")
    answers = into(id=1, result="to a"), out(id=1, result="to b")
    talk = dialogue(first, second, third, *answers, into(id=1, result="again"), into(id="2", result=None))
    assert [each.response for each in talk.exchanges(outgoing=True)] == [answers[0], None]
    assert [each.response for each in talk.exchanges("b", outgoing=False)] == [answers[1]]


def test_the_lines_after_one_are_found_by_identity() -> None:
    first, same = out(method="a"), out(method="a")
    assert dialogue(first, same).after(first) == (same,)


def test_a_check_passes_without_a_verdict_and_fails_with_the_message_of_a_fault() -> None:
    line = into(method="x")

    def judge(dialogues: object) -> Verdict | None:
        raise Fault("bad", line, "s")

    assert Check("n", "MUST", "s", "t", lambda _: None).run({}).outcome == "passed"
    assert Check("n", "MUST", "s", "t", lambda _: not_shown("r")).run({}) == Verdict("not shown", "r")
    assert Check("n", "MUST", "s", "t", judge).run({"s": Dialogue()}) == Verdict("failed", "bad", line.text, "s")
