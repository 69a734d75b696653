"""The life of an agent process: initialized once, what its clients are told of it, its end, and the next one."""

import json
from typing import Any

import pytest

from acp_gateway.core.sessions.session import Request, Role
from acp_gateway.core.states import SessionState
from acp_gateway.protocol.jsonrpc import parse
from acp_gateway.protocol.methods import Capability
from acp_gateway.protocol.not_sent import CANCELLED
from tests.kit.scene import HINT, Peer, Scene, make_policy, news_params

WELCOME = b'{"protocolVersion":1, "agentInfo" : {"version":1.10},"_meta":{"n":1e999},"authMethods":[]}'


def connection_scope(*serves: Capability) -> Scene:
    """A process with a connection of its own."""
    return Scene(make_policy(shared=False, serves=frozenset(serves)))


def initialize_with(version: str = "1", more: str = "", raw_id: str = "0") -> bytes:
    params = f'{{"protocolVersion" : {version}{more}}}'
    return f'{{"id":{raw_id} ,"method":"initialize","params":{params}}}'.encode()


def reopening(**abilities: Any) -> Scene:
    """A scene whose agent can open sessions again; by load, unless something else is named."""
    return Scene(agentCapabilities=abilities or {"loadSession": True})


RESUMES: dict[str, Any] = {"sessionCapabilities": {"resume": {}}}


# Once, for all clients


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_an_agent_is_wanted_from_the_first_initialize_on(scene: Scene) -> None:
    ann = scene.join("ann", initialize=False)
    assert not scene.multiplexer.wants_agent
    ann.say(initialize_with())
    assert scene.multiplexer.wants_agent
    scene.agent.answers("initialize", protocolVersion=1)
    assert scene.multiplexer.wants_agent


def test_a_shared_agent_gets_an_initialize_of_the_gateways_own() -> None:
    scene = Scene(make_policy(version="7.1"))
    ann = scene.join("ann", initialize=False)
    ann.say(initialize_with("3", ',"clientCapabilities":{"fs":{"readTextFile":true},"terminal":true,"x":1}'))
    assert scene.agent.hears()["params"] == {
        "protocolVersion": 1,
        "clientCapabilities": {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False},
        "clientInfo": {"name": "acp-gateway", "title": "acp-gateway", "version": "7.1"},
    }


@pytest.mark.parametrize(("serves", "arrives"), [((), "false"), ((Capability.TERMINAL,), "true")])
def test_an_agent_with_a_connection_of_its_own_gets_what_the_client_sent_but_for_what_is_masked(
    serves: tuple[Capability, ...], arrives: str
) -> None:
    def text(raw_id: str, terminal: str) -> bytes:
        offered = f',"clientCapabilities":{{"terminal" :{terminal} ,"y":1e999}},"_meta":{{ }}'
        return initialize_with("1.0", offered, raw_id)

    scene = connection_scope(*serves)
    scene.join("ann", initialize=False).say(text('"a"', "true"))
    assert scene.agent.heard_text() == [text("1", arrives)]


def test_an_agent_with_a_connection_of_its_own_that_an_observer_comes_to_first_gets_the_gateways() -> None:
    scene = connection_scope()
    scene.join("eve", role=Role.OBSERVER, initialize=False).say(initialize_with("1", ',"secret":1'))
    assert scene.agent.hears()["params"]["clientInfo"]["name"] == "acp-gateway"


def test_an_answer_to_initialize_of_more_than_initialize_response_size_is_an_error_that_names_it() -> None:
    scene = Scene(make_policy(initialize_response_size=len(WELCOME)))
    ann = scene.join("ann", initialize=False)
    ann.say(initialize_with())
    scene.agent.say(b'{"result":%b,"id":1}' % WELCOME)
    assert "initialize_response_size" in ann.hears()["error"]["message"]


def test_several_clients_that_initialize_at_once_wait_for_one_answer_and_get_it_under_their_ids(scene: Scene) -> None:
    peers = [scene.join(name, initialize=False) for name in ("ann", "bob", "cem")]
    for peer, raw in zip(peers, ("1", '"1"', "1e0"), strict=True):
        peer.say(initialize_with(raw_id=raw))
    assert len(scene.agent.heard()) == 1
    scene.agent.say(b'{"result":%b,"id":1}' % WELCOME)
    for peer, raw in zip(peers, ("1", '"1"', "1e0"), strict=True):
        (text,) = peer.heard_text()
        assert text.endswith(f',"id":{raw}}}'.encode())
        assert b'"agentInfo":{"version":1.10}' in text
        assert b'"_meta":{"n":1e999}' in text


def test_a_later_client_gets_the_stored_answer_and_the_agent_hears_nothing(scene: Scene) -> None:
    scene.join("ann")
    bob = scene.join("bob", initialize=False)
    bob.say(initialize_with(raw_id='"b"'))
    answer = bob.hears()
    assert (answer["id"], answer["result"]["protocolVersion"]) == ("b", 1)
    assert not scene.agent.heard()


def test_the_answer_passes_verbatim_to_a_client_with_an_agent_of_its_own() -> None:
    scene = connection_scope()
    ann = scene.join("ann", initialize=False)
    ann.say(initialize_with(raw_id='"a"'))
    scene.agent.say(b' {"result" : %b, "id" : 1}' % WELCOME)
    assert ann.heard_text() == [b' {"result" : %b, "id" : "a"}' % WELCOME]


def test_clients_of_a_shared_agent_are_told_what_the_gateway_can_do_besides() -> None:
    ann = (scene := Scene()).join("ann", initialize=False)
    ann.say(initialize_with())
    scene.agent.answers("initialize", protocolVersion=1, agentCapabilities={"x": 1})
    assert ann.hears()["result"]["agentCapabilities"] == {
        "x": 1,
        "loadSession": True,
        "sessionCapabilities": {"list": {}, "resume": {}, "close": {}},
    }
    assert not scene.multiplexer.abilities.load


@pytest.mark.parametrize("shared", [True, False])
def test_a_login_that_would_run_a_command_here_is_not_offered(shared: bool) -> None:
    scene = Scene(make_policy(shared=shared))
    ann = scene.join("ann", initialize=False)
    ann.say(initialize_with())
    logins = [{"id": "t", "type": "terminal"}, {"id": "k", "type": "env_var"}]
    scene.agent.answers("initialize", protocolVersion=1, authMethods=logins)
    assert ann.hears()["result"]["authMethods"] == logins[1:]


def test_an_agent_that_is_not_logged_in_says_what_to_run_and_the_hint_knows_all_its_logins() -> None:
    offered = []

    def hint(auth_methods: list[dict[str, Any]]) -> str:
        offered.append(auth_methods)
        return HINT

    logins = [{"id": "t", "type": "terminal"}]
    scene = Scene(make_policy(login_hint=hint), authMethods=logins)
    ann = scene.join("ann")
    ann.request("session/new", cwd="/srv")
    scene.agent.refuses("session/new", -32000, "Authentication required")
    assert ann.hears()["error"]["message"] == f"Authentication required. {HINT}"
    assert offered == [logins]


@pytest.mark.parametrize("answered", [False, True])
def test_a_second_initialize_is_refused_and_the_first_is_unharmed(answered: bool, scene: Scene) -> None:
    ann = scene.join("ann", initialize=False)
    ann.say(initialize_with())
    if answered:
        scene.agent.answers("initialize", protocolVersion=1)
        ann.heard()
    ann.say(initialize_with(raw_id="5"))
    refused = ann.hears()
    assert (refused["id"], refused["error"]["code"]) == (5, -32600)
    if not answered:
        scene.agent.answers("initialize", protocolVersion=1)
        assert ann.hears()["id"] == 0
    assert not scene.agent.heard()


def test_a_client_that_leaves_during_initialize_does_not_disturb_the_next(scene: Scene) -> None:
    ann, bob = (scene.join(name, initialize=False) for name in ("ann", "bob"))
    for peer in (ann, bob):
        peer.say(initialize_with())
    ann.gone()
    scene.agent.answers("initialize", protocolVersion=1)
    assert "result" in bob.hears()
    assert not ann.heard()


def test_requests_during_initialize_follow_it(scene: Scene) -> None:
    ann = scene.join("ann", initialize=False)
    ann.say(initialize_with())
    own = ann.request("session/new", cwd="/srv")
    assert len(scene.agent.heard()) == 1
    scene.agent.say(b'{"id":1,"result":{}}')
    assert ann.hears()["id"] == 0
    scene.agent.answers("session/new", sessionId="s")
    assert ann.hears()["id"] == own


def test_requests_during_initialize_wait_although_another_process_ends(scene: Scene) -> None:
    ann = scene.join("ann", initialize=False)
    ann.request("initialize", protocolVersion=1)
    own = ann.request("session/new", cwd="/srv", mcpServers=[])
    scene.sessions_freed()
    assert ann.heard() == []
    scene.agent.answers("initialize", **scene.welcome)
    assert "result" in ann.hears()
    scene.agent.answers("session/new", sessionId="s")
    assert ann.hears()["id"] == own


def test_requests_during_an_initialize_that_is_refused_are_refused(scene: Scene) -> None:
    ann, bob = (scene.join(name, initialize=False) for name in ("ann", "bob"))
    ann.say(initialize_with("2"))
    bob.say(initialize_with("1"))
    bob.request("session/new", cwd="/srv")
    scene.agent.answers("initialize", protocolVersion=2)
    assert [message["error"]["code"] for message in bob.heard()] == [-32602, -32600]
    assert not scene.agent.heard()


# Versions


@pytest.mark.parametrize("wanted", ["2", "3", "65535"])
def test_initialize_with_the_negotiated_version_or_a_higher_one_gets_the_stored_response(wanted: str) -> None:
    scene = Scene(protocolVersion=2)
    scene.join("ann", initialize=False).say(initialize_with("2"))
    scene.agent.answers("initialize", protocolVersion=2)
    bob = scene.join("bob", initialize=False)
    bob.say(initialize_with(wanted))
    assert bob.hears()["result"]["protocolVersion"] == 2


@pytest.mark.parametrize(("wanted", "named"), [("1", 1), ("0", 0), ('"2"', None), ("null", None), ("1e9", None)])
@pytest.mark.parametrize("waits", [False, True])
def test_initialize_with_a_lower_version_is_refused_with_both_and_may_be_repeated(
    wanted: str, named: int | None, waits: bool
) -> None:
    scene = Scene()
    bob = scene.join("bob", initialize=False)
    scene.join("ann", initialize=False).say(initialize_with("2"))
    if waits:
        bob.say(initialize_with(wanted))
    scene.agent.answers("initialize", protocolVersion=2)
    if not waits:
        bob.say(initialize_with(wanted))
    error = bob.hears()["error"]
    assert (error["code"], error["data"]) == (-32602, {"requested": named, "negotiated": 2})
    assert "version 2" in error["message"]
    bob.request("x/y")
    assert bob.hears()["error"]["code"] == -32600
    bob.say(initialize_with("2"))
    assert "result" in bob.hears()


def test_the_client_that_an_agent_was_asked_for_gets_whatever_version_it_answers() -> None:
    scene = connection_scope()
    ann = scene.join("ann", initialize=False)
    ann.say(initialize_with("1"))
    scene.agent.answers("initialize", protocolVersion=2)
    assert ann.hears()["result"] == {"protocolVersion": 2}


def test_an_agent_without_a_protocol_version_accepts_clients_of_any_version(scene: Scene) -> None:
    scene.join("ann", initialize=False).say(initialize_with())
    scene.agent.answers("initialize")
    bob = scene.join("bob", initialize=False)
    bob.say(initialize_with("null"))
    assert bob.hears()["result"] == {}


# Failures


def test_a_failed_initialize_is_told_to_all_who_wait_and_the_next_one_is_taken(scene: Scene) -> None:
    ann, bob = (scene.join(name, initialize=False) for name in ("ann", "bob"))
    ann.say(initialize_with())
    bob.say(initialize_with(raw_id='"b"'))
    scene.agent.refuses("initialize", -32000, "Log in", data=[1.5])
    assert ann.hears() == {
        "jsonrpc": "2.0",
        "id": 0,
        "error": {"code": -32000, "message": f"Log in. {HINT}", "data": [1.5]},
    }
    assert bob.hears()["id"] == "b"
    assert not scene.multiplexer.wants_agent
    ann.request("session/new", cwd="/srv")
    assert ann.hears()["error"]["code"] == -32600
    bob.say(initialize_with())
    scene.agent.answers("initialize", protocolVersion=1)
    assert "result" in bob.hears()
    assert not ann.heard()


def test_after_a_failure_an_agent_of_its_own_gets_what_the_next_request_says() -> None:
    scene = connection_scope()
    ann = scene.join("ann", initialize=False)
    ann.say(initialize_with("1", ',"n":1'))
    scene.agent.refuses("initialize")
    ann.heard()
    ann.say(initialize_with("1", ',"n":2'))
    assert scene.agent.hears()["params"]["n"] == 2


def test_a_null_error_beside_the_result_is_not_a_failure(scene: Scene) -> None:
    ann = scene.join("ann", initialize=False)
    ann.say(initialize_with())
    scene.agent.say(b'{"id":%d,"result":{},"error":null}' % scene.agent.hears()["id"])
    assert ann.hears()["result"] == {}
    ann.request("x/y")
    assert scene.agent.hears()["method"] == "x/y"


def test_an_agent_that_dies_in_initialize_is_an_answer_and_the_next_client_tries_again(scene: Scene) -> None:
    ann = scene.join("ann", initialize=False)
    ann.say(initialize_with())
    scene.agent.heard()
    scene.lose_agent("command not found")
    error = ann.hears()["error"]
    assert (error["code"], error["message"], error["data"]) == (-32603, "command not found", {"exitCode": 1})
    assert not scene.multiplexer.wants_agent
    ann.initialize()


# The end


def test_when_the_agent_is_lost_everything_that_is_open_is_answered_once(scene: Scene) -> None:
    ann, bob = scene.join("ann"), scene.join("bob")
    ann.new_session()
    for raw in ("1", '"1"', "null"):
        ann.say(f'{{"id":{raw},"method":"x/y"}}'.encode())
    running, waiting, other = ann.prompt("first"), ann.prompt("second"), bob.request("x/y")
    late = scene.agent.heard()
    scene.lose_agent("it crashed")
    answers = ann.heard()
    assert [answer["id"] for answer in answers] == [1, "1", None, running, waiting]
    words = 'it crashed; this prompt has waited and was not sent: "second"; it waits in the session'
    assert answers.pop()["error"]["message"].startswith(words)
    assert bob.hears()["id"] == other
    for answer in answers:
        assert answer["error"] == {"code": -32603, "message": "it crashed", "data": {"exitCode": 1}}
    scene.lose_agent("again")
    for asked in late:
        scene.agent.send(id=asked["id"], result={})
    assert (ann.inbox, bob.inbox, scene.agent.inbox) == ([], [], [])


def test_an_agent_of_one_connection_may_be_lost_twice_and_the_last_reason_counts() -> None:
    scene = Scene(make_policy(shared=False))
    ann = scene.join("ann")
    scene.lose_agent("it ended")
    scene.lose_agent("it was stopped")
    ann.request("session/new", cwd="/srv", mcpServers=[])
    assert ann.hears()["error"]["message"] == "it was stopped"


def test_the_next_request_starts_another_process_under_new_ids(scene: Scene) -> None:
    ann = scene.join("ann")
    scene.lose_agent()
    assert not scene.multiplexer.wants_agent
    own = ann.request("x/y")
    assert scene.multiplexer.wants_agent
    other = ann.request("x/z")
    assert scene.agent.answers("initialize", protocolVersion=1)["id"] == 2
    asked, also = scene.agent.heard()
    assert (asked["id"], asked["method"]) == (3, "x/y")
    assert (also["id"], also["method"]) == (4, "x/z")
    scene.agent.send(id=3, result={})
    scene.agent.send(id=4, result={})
    assert [message["id"] for message in ann.heard()] == [own, other]


def test_a_client_that_comes_while_there_is_no_process_gets_the_stored_answer(scene: Scene) -> None:
    scene.join("ann")
    scene.lose_agent()
    scene.join("bob")
    assert not scene.multiplexer.wants_agent


def test_a_next_process_that_fails_is_an_answer_and_the_one_after_it_is_tried_alike() -> None:
    scene = connection_scope()
    ann = scene.join("ann", initialize=False)
    ann.say(initialize_with("1", ',"n":1'))
    scene.agent.answers("initialize", protocolVersion=1)
    ann.heard()
    scene.stop_agent()
    own = ann.request("x/y")
    scene.agent.refuses("initialize", message="not today")
    failed = ann.hears()
    assert (failed["id"], failed["error"]["message"]) == (own, "not today")
    ann.request("x/y")
    assert scene.agent.hears()["params"]["n"] == 1


def test_an_agent_with_a_connection_of_its_own_is_not_started_again() -> None:
    scene = connection_scope()
    ann, late = scene.join("ann"), scene.join("late", initialize=False)
    ann.new_session()
    scene.lose_agent("it crashed")
    assert not scene.multiplexer.wants_agent
    assert [session.live for session in scene.registry] == [False]
    ann.request("session/prompt", sessionId="s")
    late.say(initialize_with())
    for peer in (ann, late):
        error = peer.hears()["error"]
        assert (error["code"], error["message"], error["data"]) == (-32603, "it crashed", {"exitCode": 1})
    ann.send(method="x/y", params={})
    assert not scene.agent.heard()


def test_an_agent_of_scope_connection_that_was_stopped_as_unused_is_started_again() -> None:
    scene = connection_scope()
    ann = scene.join("ann")
    scene.stop_agent()
    assert not ann.heard()
    ann.request("x/y")
    scene.agent.answers("initialize", protocolVersion=1)
    assert scene.agent.hears()["method"] == "x/y"


# Opened again


def lose_with_session(scene: Scene, **result: Any) -> Peer:
    """A client with a session whose agent has ended."""
    ann = scene.join("ann", **news_params())
    ann.new_session(cwd="/srv/x", **result)
    scene.lose_agent()
    ann.heard()
    return ann


@pytest.mark.parametrize(
    ("abilities", "method"),
    [
        ({"loadSession": True}, "session/load"),
        (RESUMES, "session/resume"),
        ({"loadSession": True} | RESUMES, "session/resume"),
    ],
)
def test_a_session_is_opened_again_before_anything_else_is_asked_of_it(abilities: dict[str, Any], method: str) -> None:
    scene = reopening(**abilities)
    ann = lose_with_session(scene)
    own = ann.prompt()
    scene.agent.answers("initialize", **scene.welcome)
    assert scene.agent.answers(method)["params"] == {"sessionId": "s", "cwd": "/srv/x", "mcpServers": []}
    scene.agent.answers("session/prompt", stopReason="end_turn")
    assert [message.get("id") for message in ann.heard()] == [None, own, None]


def test_a_replay_of_the_agent_during_reopening_reaches_no_client() -> None:
    scene = reopening()
    ann = scene.join("ann")
    ann.new_session()
    scene.agent.update("history")
    ann.heard()
    scene.lose_agent()
    ann.request("x/y")
    scene.agent.answers("initialize", **scene.welcome)
    opening, _ = scene.agent.heard()
    scene.agent.update("history")
    scene.agent.state("current_mode_update", currentModeId="m")
    assert not ann.heard()
    scene.agent.send(id=opening["id"], result={})
    scene.agent.update("live")
    # How things are in the new process is not a history.
    state, live = ann.heard()
    assert state["params"]["update"] == {"sessionUpdate": "current_mode_update", "currentModeId": "m"}
    assert live["params"]["update"]["content"]["text"] == "live"
    history, mode, last, _ = scene.join("bob").load()
    assert [said["params"]["update"]["content"]["text"] for said in (history, last)] == ["history", "live"]
    assert mode == state


def test_a_session_keeps_its_clients_and_its_journal_and_has_the_new_process_s_modes() -> None:
    scene = reopening()
    ann, bob = scene.join("ann"), scene.join("bob")
    ann.new_session(modes={"currentModeId": "a"})
    bob.load()
    scene.lose_agent()
    assert scene.multiplexer.sessions[0].state is SessionState.DORMANT
    bob.prompt("go on")
    scene.agent.answers("initialize", **scene.welcome)
    scene.agent.answers("session/load", modes={"currentModeId": "b"}, configOptions=[{"id": "x"}])
    assert scene.agent.hears()["method"] == "session/prompt"
    mode, options, prompt = ann.heard()
    assert mode["params"]["update"] == {"sessionUpdate": "current_mode_update", "currentModeId": "b"}
    assert options["params"]["update"] == {"sessionUpdate": "config_option_update", "configOptions": [{"id": "x"}]}
    assert prompt["params"]["update"]["sessionUpdate"] == "user_message_chunk"
    expected = {"modes": {"currentModeId": "b"}, "configOptions": [{"id": "x"}]}
    assert scene.join("cem").load()[-1]["result"] == expected


def test_a_session_without_clients_is_not_reopened_after_a_restart_of_the_agent() -> None:
    scene = reopening()
    ann = scene.join("ann")
    ann.new_session()
    scene.lose_agent()
    ann.gone()
    scene.join("bob").request("x/y")
    scene.agent.answers("initialize", **scene.welcome)
    assert scene.agent.hears()["method"] == "x/y"
    assert scene.multiplexer.sessions == ()


def test_reopening_sends_no_update_for_unchanged_modes_and_options() -> None:
    scene = reopening()
    ann = scene.join("ann")
    ann.new_session(modes={"currentModeId": "a"}, configOptions=[])
    scene.lose_agent()
    ann.request("x/y", sessionId="s")
    scene.agent.answers("initialize", **scene.welcome)
    scene.agent.answers("session/load", modes={"currentModeId": "a"}, configOptions=[])
    assert not ann.heard()


def test_the_turn_of_a_lost_agent_is_told_to_have_ended_and_its_history_stays() -> None:
    scene = reopening()
    ann, bob = scene.join("ann"), scene.join("bob", **news_params())
    ann.new_session()
    bob.load()
    ann.prompt("half")
    bob.heard()
    scene.lose_agent()
    assert bob.hears()["params"] == {
        "sessionId": "s",
        "event": "turn_ended",
        "stopReason": None,
        "reason": "agent_ended",
    }
    assert ann.hears()["error"]["code"] == -32603
    eve = scene.join("eve", role=Role.OBSERVER)
    assert [message["params"]["update"]["content"]["text"] for message in eve.load()[:-1]] == ["half"]


def test_a_session_that_cannot_be_opened_again_is_gone_and_who_waits_is_told_why() -> None:
    scene = reopening()
    ann = lose_with_session(scene)
    own = ann.prompt()
    scene.agent.answers("initialize", **scene.welcome)
    scene.agent.refuses("session/load", message="no such file")
    scene.agent.refuses("session/new")
    refused = ann.heard()[-1]
    assert (refused["id"], refused["error"]["code"]) == (own, -32002)
    assert "no such file" in refused["error"]["message"]
    assert refused["error"]["data"] == {"sessionId": "s"}
    assert scene.notes[-1] == "the agent cannot re-open session s"
    assert scene.multiplexer.sessions == ()
    assert [session.live for session in scene.registry] == [False]
    ann.prompt()
    assert ann.hears()["error"]["code"] == -32002


def test_an_agent_that_refuses_to_open_it_again_may_say_nothing() -> None:
    scene = reopening()
    ann = lose_with_session(scene)
    ann.prompt()
    scene.agent.answers("initialize", **scene.welcome)
    scene.agent.say(b'{"id":%d,"error":{}}' % scene.agent.hears()["id"])
    scene.agent.refuses("session/new")
    assert "it said nothing" in ann.heard()[-1]["error"]["message"]


def test_a_session_of_an_agent_that_forgets_ends_with_its_process_and_stays_its_owners(scene: Scene) -> None:
    ann = lose_with_session(scene)
    assert scene.multiplexer.sessions == ()
    (session,) = scene.registry
    assert (session.live, session.owner, session.journal.size) == (False, "me", 0)
    ann.prompt()
    scene.agent.answers("initialize", **scene.welcome)
    assert ann.hears()["error"]["code"] == -32002


def test_a_session_without_clients_ends_with_its_agent_process() -> None:
    scene = reopening()
    ann = scene.join("ann")
    ann.new_session()
    ann.gone()
    scene.lose_agent()
    assert scene.multiplexer.sessions == ()


def test_sessions_outlive_several_processes_in_a_row() -> None:
    scene = reopening()
    ann = lose_with_session(scene)
    ann.prompt()
    scene.agent.heard()
    scene.lose_agent("it cannot be started")
    assert ann.hears()["error"]["message"] == "it cannot be started"
    ann.prompt()
    scene.agent.answers("initialize", **scene.welcome)
    assert scene.agent.hears()["method"] == "session/load"
    scene.lose_agent("it ended while it opened the session")
    ann.heard()
    own = ann.prompt()
    scene.agent.answers("initialize", **scene.welcome)
    scene.agent.answers("session/load")
    scene.agent.answers("session/prompt")
    assert own in [message.get("id") for message in ann.heard()]


def test_a_session_whose_agent_has_exited_stays_so_when_no_further_process_can_be_started() -> None:
    scene = reopening()
    lose_with_session(scene)
    assert scene.session().process_exited
    scene.stop_agent()
    assert scene.session().process_exited


def test_an_idle_agent_that_was_stopped_costs_its_clients_nothing() -> None:
    scene = reopening()
    ann = scene.join("ann")
    ann.new_session()
    scene.stop_agent()
    assert (ann.inbox, scene.agent.inbox) == ([], [])
    assert not scene.multiplexer.wants_agent
    assert scene.multiplexer.sessions[0].state is SessionState.DORMANT
    own = ann.prompt()
    scene.agent.answers("initialize", **scene.welcome)
    scene.agent.answers("session/load")
    scene.agent.answers("session/prompt", stopReason="end_turn")
    assert ann.hears()["id"] == own


def test_the_turns_of_a_session_that_sleeps_can_be_cancelled_before_they_begin() -> None:
    scene = reopening()
    ann = scene.join("ann")
    ann.new_session()
    scene.stop_agent()
    own = ann.prompt()
    ann.cancel()
    assert ann.hears() == {"jsonrpc": "2.0", "id": own, "result": json.loads(CANCELLED)}
    scene.agent.answers("initialize", **scene.welcome)
    scene.agent.answers("session/load")
    assert not scene.agent.heard()


def test_a_load_of_a_session_that_sleeps_waits_and_is_answered_from_the_journal() -> None:
    scene = reopening()
    scene.join("ann").new_session()
    scene.agent.update("history")
    scene.stop_agent()
    bob = scene.join("bob")
    own = bob.request("session/load", sessionId="s", cwd="/srv")
    scene.agent.answers("initialize", **scene.welcome)
    assert not bob.heard()
    scene.agent.answers("session/load")
    assert [message.get("id") for message in bob.heard()] == [None, own]
    assert not scene.agent.heard()


def test_no_secret_of_a_session_is_in_what_it_looks_like(scene: Scene) -> None:
    scene.join("ann").request("session/new", cwd="/srv", mcpServers=[{"env": "secret"}])
    scene.agent.answers("session/new", sessionId="s")
    assert json.dumps("secret") not in repr(scene.multiplexer.sessions)
    assert repr(scene.multiplexer.sessions) == "(Session(agent 's'),)"


# Output of the process


WRITTEN = {"stdout": ["Welcome!"], "stderr": ["first", "last"]}


def whom_a_loss_shows_output(scene: Scene, *peers: Peer) -> list[bool]:
    """Which of these are told what the process wrote when it is lost."""
    for peer in peers:
        peer.request("x/y")
        peer.heard()
        peer.client.add_request(Request(peer.client, parse(b'{"id":"open","method":"x/y"}')))
    scene.agent.heard()
    scene.multiplexer.agent_lost("it has ended", {"exitCode": 1}, WRITTEN)
    scene.deliver()
    shown = []
    for peer in peers:
        error = peer.heard()[-1]["error"]
        assert error["message"].startswith("it has ended")
        assert error["data"]["exitCode"] == 1
        assert ("Welcome" in error["message"]) == ("stdout" in error["data"])
        shown.append("Welcome" in str(error))
    return shown


def test_the_output_of_a_lost_process_is_shown_to_its_controllers_alone(scene: Scene) -> None:
    ann, eve = scene.join("ann"), scene.join("eve", role=Role.OBSERVER)
    ann.new_session()
    guest = scene.join("guest", "gus", only="s", guest=True)
    assert whom_a_loss_shows_output(scene, ann, eve, guest) == [True, False, False]


def test_the_last_line_of_each_is_in_the_words_and_all_of_them_in_the_data(scene: Scene) -> None:
    ann = scene.join("ann")
    ann.request("x/y")
    scene.multiplexer.agent_lost("it has ended", {}, WRITTEN)
    scene.deliver()
    assert ann.hears()["error"] == {
        "code": -32603,
        "message": "it has ended; the last it wrote to stdout: Welcome!; the last it wrote to stderr: last",
        "data": WRITTEN,
    }


def test_stderr_of_an_agent_of_all_identities_is_shown_to_the_gateways_own_user_alone() -> None:
    scene = Scene(make_policy(common=True))
    me, bob = scene.join("me"), scene.join("bob", "bob")
    assert whom_a_loss_shows_output(scene, me, bob) == [True, False]


def test_the_output_of_a_shared_process_is_not_shown_to_workspace_tokens(scene: Scene) -> None:
    me, limited = scene.join("me"), scene.join("limited", workspaces=("w",))
    assert whom_a_loss_shows_output(scene, me, limited) == [True, False]


def test_a_request_after_the_end_of_an_agent_gets_the_error_for_its_client() -> None:
    scene = connection_scope()
    me, guest = scene.join("me"), scene.join("guest", "bob", only="s", guest=True)
    scene.multiplexer.agent_lost("no start", {"n": 1}, {"stderr": ["hunter2"]}, "no start: hunter2")
    scene.deliver()
    late, too_late = scene.join("late", initialize=False), scene.join("later", "bob", guest=True, initialize=False)
    me.heard(), guest.heard()
    for peer in (me, guest, late, too_late):
        peer.request("initialize", protocolVersion=1) if peer in (late, too_late) else peer.request("session/list")
    full = ("no start: hunter2; the last it wrote to stderr: hunter2", {"n": 1, "stderr": ["hunter2"]})
    told = [(error["message"], error["data"]) for error in (peer.hears()["error"] for peer in (me, late, too_late))]
    assert told == [full, full, ("no start", {"n": 1})]
    assert "hunter2" not in str(guest.heard())


def test_initializing_is_true_until_the_agent_has_answered(scene: Scene) -> None:
    assert not scene.multiplexer.initializing
    scene.join("ann", initialize=False).request("initialize", protocolVersion=1)
    assert scene.multiplexer.initializing
    scene.agent.answers("initialize", **scene.welcome)
    assert not scene.multiplexer.initializing


def test_a_stream_that_a_lost_process_wrote_nothing_to_is_left_out() -> None:
    scene = Scene(make_policy(shared=False))
    ann = scene.join("ann")
    own = ann.request("session/new", cwd="/srv", mcpServers=[])
    scene.multiplexer.agent_lost("it has ended", {}, {"stdout": [], "stderr": ["last"]})
    scene.deliver()
    error = {"code": -32603, "message": "it has ended; the last it wrote to stderr: last", "data": {"stderr": ["last"]}}
    assert ann.heard() == [{"jsonrpc": "2.0", "id": own, "error": error}]


# Another policy


def test_the_next_process_is_initialized_by_the_policy_that_is_in_force_by_then() -> None:
    scene = reopening()
    ann = scene.join("ann")
    ann.new_session("s")
    scene.agent.heard()
    scene.multiplexer.set_policy(make_policy(serves=frozenset({Capability.TERMINAL}), version="8"))
    scene.stop_agent()
    ann.send(method="session/prompt", id=7, params={"sessionId": "s", "prompt": []})
    params = scene.agent.hears()["params"]
    assert (params["clientCapabilities"]["terminal"], params["clientInfo"]["version"]) == (True, "8")


@pytest.mark.parametrize("kind", [{"shared": False}, {"common": True}])
def test_a_policy_for_other_clients_is_not_used(kind: dict[str, Any], scene: Scene) -> None:
    scene.multiplexer.set_policy(make_policy(max_sessions=0, **kind))
    scene.join("ann").new_session("s")
    scene.multiplexer.set_policy(make_policy(max_sessions=1))
    bob = scene.join("bob")
    bob.send(method="session/new", id=8, params={"cwd": "/srv", "mcpServers": []})
    assert "max_sessions (1)" in bob.hears()["error"]["message"]
