"""Lists with all there is to tell of sessions, over control connections of a gateway that does not run.

They are read as `acp-gateway sessions` reads them.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from acp_gateway.client.control import read_listing, request
from acp_gateway.config.load import AgentSection
from acp_gateway.core.requests import DirectoryCheckResult
from acp_gateway.core.sessions.session import LIST_TEXT_SIZE, Role, SessionReach
from acp_gateway.gateway.session_api import listing
from acp_gateway.gateway.session_api.requests import LIST
from acp_gateway.protocol import jsonrpc
from acp_gateway.transports.websocket.stream import PASSED
from tests.kit.fake_gateway import DESTINATION
from tests.kit.idle_gateway import ME, IdleGateway, connection, idle, set_clock
from tests.kit.machines import control, node_config, save_token
from tests.kit.serving import serving

__all__ = ["idle"]

PROBLEM = "/state/sessions.db: disk full"


async def told(
    idle: IdleGateway, reach: SessionReach = ME, role: Role = Role.CONTROLLER, **params: Any
) -> dict[str, Any]:
    """All that this one is told."""
    async with connection(idle, reach, role) as editor:
        result: dict[str, Any] = (await editor.request(LIST, {"all": True, **params}))["result"]
    return result


async def sessions(idle: IdleGateway, reach: SessionReach = ME, role: Role = Role.CONTROLLER) -> list[dict[str, Any]]:
    """The sessions that this one is told of, and nothing else."""
    result = await told(idle, reach, role)
    assert list(result) == ["sessions"]
    return read_listing(DESTINATION, result).sessions


async def ids(idle: IdleGateway, reach: SessionReach = ME) -> list[str]:
    """The ids of the sessions that this one is told of."""
    return [session["sessionId"] for session in await sessions(idle, reach)]


async def test_where_there_is_no_session_the_list_is_empty(idle: IdleGateway) -> None:
    assert await sessions(idle) == []
    idle.scene().join("A")
    assert await sessions(idle) == []


async def test_a_session_is_told_with_all_there_is_to_say(idle: IdleGateway) -> None:
    scene = idle.scene()
    scene.join("A").new_session("s", cwd="/srv/proj")
    scene.agent.state("session_info_update", title="Fix the tests", updatedAt="2026-11-22T10:00:00Z")
    assert await sessions(idle) == [
        {
            "sessionId": "s",
            "agent": "agent",
            "title": "Fix the tests",
            "cwd": "/srv/proj",
            "updatedAt": "2026-11-22T10:00:00Z",
            "owner": "me",
            "live": True,
            "connected": 1,
            "away": 0,
            "turn": False,
            "fence": None,
            "waiting": [],
        }
    ]


async def test_the_session_list_leaves_out_unknown_title_cwd_and_time(idle: IdleGateway) -> None:
    owner = (scene := idle.scene()).join("A")
    # Of a session without a cwd, only its node knows where it is.
    scene.look = lambda _: DirectoryCheckResult()
    owner.request("session/new", mcpServers=[])
    scene.agent.answers("session/new", sessionId="s")
    (session,) = await sessions(idle)
    assert not {"title", "cwd", "updatedAt"} & set(session)


async def test_any_title_that_an_agent_gives_can_be_told(idle: IdleGateway) -> None:
    scene = idle.scene()
    scene.join("A").new_session("s")
    scene.agent.state("session_info_update", title='\ud83d "ü"\x00\u2028')
    (session,) = await sessions(idle)
    assert session["title"] == '\ud83d "ü"\x00\u2028'


async def test_of_a_title_without_an_end_the_beginning_is_told(idle: IdleGateway) -> None:
    scene = idle.scene()
    scene.join("A").new_session("s")
    scene.agent.state("session_info_update", title="x" * (LIST_TEXT_SIZE + 1))
    assert [session["title"] for session in await sessions(idle)] == ["x" * LIST_TEXT_SIZE]


async def test_those_who_are_there_and_those_who_may_come_back_are_counted(idle: IdleGateway) -> None:
    scene = idle.scene()
    owner, phone = scene.join("A"), scene.join("B")
    viewer = scene.join("C", "guest", Role.OBSERVER, only="s", guest=True)
    owner.new_session("s")
    phone.load("s")
    viewer.load("s")
    scene.join("D")
    phone.away()
    (session,) = await sessions(idle)
    assert (session["connected"], session["away"]) == (2, 1)
    viewer.gone()
    (session,) = await sessions(idle)
    assert (session["connected"], session["away"]) == (1, 1)


async def test_a_turn_is_told_while_it_is_open(idle: IdleGateway) -> None:
    scene = idle.scene()
    owner = scene.join("A")
    owner.new_session("s")
    owner.prompt("hello")
    assert [session["turn"] for session in await sessions(idle)] == [True]
    scene.agent.answers("session/prompt", stopReason="end_turn")
    assert [session["turn"] for session in await sessions(idle)] == [False]


async def test_what_waits_for_a_person_is_told_with_what_it_is_about_and_since_when(
    idle: IdleGateway,
) -> None:
    scene = idle.scene()
    owner = scene.join("A")
    owner.new_session("s")
    set_clock(scene, 720)
    scene.agent.ask_permission(1)
    set_clock(scene, 60)
    params = {"sessionId": "s", "message": "Which one?", "requestedSchema": {}}
    scene.agent.send(id=2, method="elicitation/create", params=params)
    set_clock(scene)
    scene.agent.send(id=3, method="x/ask", params={"sessionId": "s"})
    (session,) = await sessions(idle)
    assert session["waiting"] == [
        {"method": "session/request_permission", "title": "do it", "since": "2027-01-15T07:48:00Z"},
        {"method": "elicitation/create", "title": "Which one?", "since": "2027-01-15T07:59:00Z"},
        {"method": "x/ask", "since": "2027-01-15T08:00:00Z"},
    ]
    owner.send(id=owner.heard()[0]["id"], result={"outcome": {"outcome": "selected", "optionId": "yes"}})
    (session,) = await sessions(idle)
    assert [waiting["method"] for waiting in session["waiting"]] == ["elicitation/create", "x/ask"]


async def test_an_agent_that_waits_without_a_request_is_told_as_waiting(idle: IdleGateway) -> None:
    scene = idle.scene()
    scene.join("A").new_session("s")
    set_clock(scene)
    scene.agent.state("session_info_update", _meta={"acp-gateway": {"state": "requires_action"}})
    (session,) = await sessions(idle)
    (waits,) = session["waiting"]
    assert (session["turn"], waits) == (True, {"method": "requires_action", "since": "2027-01-15T08:00:00Z"})
    scene.agent.ask_permission(1)
    (session,) = await sessions(idle)
    assert [waits["method"] for waits in session["waiting"]] == ["session/request_permission"]


async def test_sessions_of_all_agent_processes_are_told_the_oldest_first(idle: IdleGateway) -> None:
    one, other = idle.scene(), idle.scene()
    for scene, session_id in ((one, "a"), (other, "b"), (one, "c")):
        scene.join(session_id).new_session(session_id)
    assert await ids(idle) == ["a", "b", "c"]


async def test_only_sessions_of_the_agents_that_one_is_told_of_are_told(idle: IdleGateway) -> None:
    idle.scene().join("A").new_session("a")
    asking = idle.scene()
    set_clock(asking)
    asking.join("B").away()
    asking.agent.send(id=1, method="x/ask", params={})
    idle.remember("old")
    idle.remember("others", agent="another")
    assert await ids(idle) == ["old", "a", "?"]
    agents = {"another": AgentSection(command=("another",))}
    idle.gateway.config = replace(idle.gateway.config, agents=agents)
    assert await ids(idle) == ["others"]


async def test_the_session_list_has_the_sessions_of_its_reach(idle: IdleGateway) -> None:
    scene = idle.scene()
    for identity, session_id in (("me", "a"), ("me", "b"), ("bob", "c")):
        scene.join(identity, identity).new_session(session_id)
    assert await ids(idle, SessionReach("me")) == ["a", "b"]
    assert await ids(idle, SessionReach("me", "b")) == ["b"]
    assert await ids(idle, SessionReach("me", "c")) == []
    assert await ids(idle, SessionReach("bob")) == ["c"]
    assert await ids(idle, SessionReach("carol")) == []
    assert await ids(idle, SessionReach("guest", "c", guest=True)) == ["c"]
    assert await ids(idle, SessionReach("guest", "d", guest=True)) == []


# Sessions that are not live


async def test_a_session_of_before_is_told_with_what_is_known_of_it(idle: IdleGateway) -> None:
    session = idle.remember("s")
    session.title, session.cwd, session.updated_at = "Fix the tests", "/srv/proj", "2026-11-22T10:00:00Z"
    assert await sessions(idle) == [
        {
            "sessionId": "s",
            "agent": "agent",
            "title": "Fix the tests",
            "cwd": "/srv/proj",
            "updatedAt": "2026-11-22T10:00:00Z",
            "owner": "me",
            "live": False,
            "connected": 0,
            "away": 0,
            "turn": False,
            "fence": None,
            "waiting": [],
        }
    ]


async def test_a_session_that_no_agent_process_has_any_more_is_told_as_one_of_before(idle: IdleGateway) -> None:
    scene = idle.scene()
    scene.join("A").new_session("s")
    assert [session["live"] for session in await sessions(idle)] == [True]
    scene.retire()
    assert [session["live"] for session in await sessions(idle)] == [False]


async def test_sessions_of_before_come_first_those_that_were_not_used_for_the_longest_before_the_others(
    idle: IdleGateway,
) -> None:
    idle.scene().join("A").new_session("now")
    for session_id in ("older", "newer"):
        idle.remember(session_id)
    assert await ids(idle) == ["older", "newer", "now"]


async def test_of_many_sessions_of_before_as_many_as_are_wanted_are_told_and_the_others_counted(
    idle: IdleGateway,
) -> None:
    client = idle.scene().join("A")
    for session_id in ("now", "also now"):
        client.new_session(session_id)
    for number in range(7):
        idle.remember(f"s{number}")
    idle.remember("yours", "you")

    async def listed(**params: Any) -> tuple[list[str], Any]:
        answer = await told(idle, **params)
        return [it["id"] for it in answer["sessions"]], answer.get("more")

    live, past = ["also now", "now"], [f"s{number}" for number in reversed(range(7))]
    assert await listed() == ([*live, *past], None)
    assert await listed(limit=7) == ([*live, *past], None)
    assert await listed(limit=3) == ([*live, *past[:3]], 4)
    assert await listed(limit=0) == (live, 7)


async def test_a_list_has_a_size_and_live_sessions_go_before_others(
    idle: IdleGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle.scene().join("A").new_session("now")
    for session_id in "ab":
        idle.remember(session_id)
    size = len(jsonrpc.encode((await told(idle))["sessions"][0]))
    monkeypatch.setattr(listing, "PASSED_SIZE", 2 * size)
    assert [it["id"] for it in (await told(idle))["sessions"]] == ["now", "b", "a"]
    idle.passed = ("0123456789abcdef",)
    answer = await told(idle)
    assert ([it["id"] for it in answer["sessions"]], answer["more"]) == (["now", "b"], 1)


async def test_a_session_of_before_is_told_to_those_who_can_have_it_opened_again(idle: IdleGateway) -> None:
    for session_id, owner in (("a", "me"), ("b", "me"), ("c", "bob")):
        idle.remember(session_id, owner)
    assert await ids(idle, SessionReach("me")) == ["a", "b"]
    assert await ids(idle, SessionReach("me", "b")) == ["b"]
    assert await ids(idle, SessionReach("me", "c")) == []
    assert await ids(idle, SessionReach("bob")) == ["c"]
    assert await ids(idle, SessionReach("guest", "c", guest=True)) == []


async def test_a_session_of_before_whose_id_was_given_to_another_one_is_not_told(idle: IdleGateway) -> None:
    idle.remember("1", "me")
    idle.remember("1", "bob")
    assert await ids(idle, SessionReach("me")) == []
    assert await ids(idle, SessionReach("bob")) == ["1"]


# What is wrong


async def test_what_is_not_stored_is_told_to_the_gateways_own_user_in_full_and_to_others_without_names_of_files(
    idle: IdleGateway,
) -> None:
    assert "problems" not in await told(idle)
    idle.gateway.storage = SimpleNamespace(problem=PROBLEM)
    assert (await told(idle))["problems"] == [PROBLEM]
    for stranger in (SessionReach("bob"), SessionReach("guest", "s", guest=True)):
        assert (await told(idle, stranger))["problems"] == ["the gateway's storage has a problem; its log says which"]


# Questions that no session was found for


async def test_a_question_in_doubt_stands_in_each_session_of_its_identity_that_it_may_belong_to(
    idle: IdleGateway,
) -> None:
    scene = idle.scene()
    set_clock(scene)
    peer = scene.join("A")
    for name in ("s", "t"):
        peer.new_session(name)
    scene.agent.ask_permission(1, "child")
    asked = [{"method": "session/request_permission", "title": "do it", "since": "2027-01-15T08:00:00Z"}]
    assert [session["waiting"] for session in await sessions(idle)] == [asked, asked]
    for reach in (SessionReach("me", "s"), SessionReach("guest", "s", guest=True)):
        assert [session["waiting"] for session in await sessions(idle, reach)] == [[]]
    assert [session["waiting"] for session in await sessions(idle, role=Role.OBSERVER)] == [[], []]
    idle.passed = ("0123456789abcdef",)
    assert [session["waiting"] for session in (await told(idle))["sessions"]] == [[], []]


async def test_a_question_that_names_no_session_and_may_be_of_none_is_listed_too(idle: IdleGateway) -> None:
    scene = idle.scene()
    set_clock(scene)
    scene.join("A").away()
    scene.agent.send(id=1, method="x/ask", params={})
    (waiting,) = await sessions(idle)
    assert (waiting["sessionId"], waiting["owner"], waiting["waiting"][0]["method"]) == ("?", "me", "x/ask")
    assert await ids(idle, SessionReach("bob")) == []
    assert await sessions(idle, role=Role.OBSERVER) == []


async def test_a_question_that_may_be_another_identitys_stands_in_the_list_without_its_words(
    idle: IdleGateway,
) -> None:
    scene = idle.scene()
    set_clock(scene)
    scene.join("A").new_session("s")
    scene.join("B", "bob").new_session("t")
    scene.agent.ask_permission(1, "child")
    for identity, name in (("me", "s"), ("bob", "t")):
        (session,) = await sessions(idle, SessionReach(identity))
        (waiting,) = session["waiting"]
        assert (session["sessionId"], waiting["method"]) == (name, "session/request_permission")
        assert "do it" not in waiting["title"]


async def test_a_question_of_another_agent_process_is_not_mixed_up_with_ones_own(idle: IdleGateway) -> None:
    mine, theirs = idle.scene(), idle.scene()
    set_clock(theirs)
    mine.join("A").new_session("s")
    theirs.join("B", "bob").new_session("t")
    theirs.agent.ask_permission(1, "child")
    (session,) = await sessions(idle)
    assert session["waiting"] == []
    (session,) = await sessions(idle, SessionReach("bob"))
    assert session["waiting"][0]["title"] == "do it"


# The load


THROUGH: dict[str, Any] = {"origin": ((PASSED, "0123456789abcdef"),)}


@pytest.mark.parametrize(("through", "told"), [(THROUGH, True), ({}, False)])
async def test_only_another_gateway_is_told_the_load(through: dict[str, Any], told: bool, tmp_path: Path) -> None:
    async with serving(node_config(tmp_path)) as (url,):
        answer = await request(control(url, tmp_path / "node.token", **through), LIST, {"all": True}, time_limit=30)
    assert ("load" in answer) == told
    if told:
        assert {**answer["load"], "lag": 0} == {"sessions": 0, "turns": 0, "lag": 0}


async def test_a_token_for_one_session_is_not_told_the_load(tmp_path: Path) -> None:
    guest = save_token(tmp_path, "guest.token", session="s")
    async with serving(node_config(tmp_path)) as (url,):
        assert "load" not in await request(control(url, guest, **THROUGH), LIST, {"all": True}, time_limit=30)
