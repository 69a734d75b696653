"""`session/list`: what of an agent's list a client may see, and what is live besides."""

import json
from functools import partial
from typing import Any

import pytest

from acp_gateway.core.sessions import session_list as catalogue
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Client, Role, Session, SessionReach
from acp_gateway.core.sessions.session_list import Query, next_page
from acp_gateway.core.turns.journal import Journal
from acp_gateway.protocol.jsonrpc import parse
from acp_gateway.protocol.text.spans import MEMBERS
from tests.kit.registered import AgentDouble
from tests.kit.scene import Peer, Scene, make_policy

filtered = partial(catalogue.filtered, most=1000)

LISTS: dict[str, Any] = {"sessionCapabilities": {"list": {}}}


def registry(*live: tuple[str, str], past: tuple[tuple[str, str], ...] = ()) -> Registry:
    """Sessions of the agent `agent`, by id and owner."""
    it = Registry("me")
    for session_id, owner in (*live, *past):
        session = Session("agent", session_id, owner, Journal(1000))
        session.cwd = f"/srv/{session_id}"
        it.add(session, AgentDouble())
        if (session_id, owner) in past:
            it.end(session)
    return it


def query(identity: str = "me", cwd: str | None = None, *, first: bool = True, **viewer: Any) -> Query:
    return Query(Client("ann", SessionReach(identity, **viewer)), "agent", cwd, first)


def page(*ids: str, cursor: bytes | None = None) -> bytes:
    entries = b" , ".join(b'{"n":1.10,"sessionId" : "%b"}' % session_id.encode() for session_id in ids)
    more = b"" if cursor is None else b',"nextCursor":%b' % cursor
    return b'{"id":1,"result":{"sessions" : [ %b ] %b,"x":1e999}}' % (entries, more)


def ids(result: bytes) -> list[str]:
    return [entry["sessionId"] for entry in json.loads(result)["result"]["sessions"]]


# One page.


@pytest.mark.parametrize(("identity", "seen"), [("me", ["mine", "unknown"]), ("you", ["yours"]), ("guest-1", [])])
def test_session_list_has_ones_own_sessions_and_unregistered_ones_for_the_gateways_own_user(
    identity: str, seen: list[str]
) -> None:
    known = registry(past=(("mine", "me"), ("yours", "you")))
    text, cursor = filtered(query(identity), known, page("mine", "yours", "unknown"))
    assert ids(text) == seen
    assert cursor is None


def test_session_list_omits_sessions_of_another_identity_on_another_agent() -> None:
    known = registry()
    known.add(Session("another name for it", "yours", "you", Journal(1000)), AgentDouble())
    text, _ = filtered(query(), known, page("yours", "unknown"))
    assert ids(text) == ["unknown"]


def test_the_remaining_entries_of_a_list_page_are_verbatim() -> None:
    known = registry(past=(("yours", "you"),))
    text, _ = filtered(query(), known, page("a", "yours"))
    assert text == b'{"id":1,"result":{"sessions" : [{"n":1.10,"sessionId" : "a"}] ,"x":1e999}}'


@pytest.mark.parametrize(
    ("title", "is_named", "listed", "shown"),
    [
        ("Mine", True, b'"its own"', "Mine"),
        ("Mine", True, b"null", "Mine"),
        ("Mine", False, b'"its own"', "its own"),
        ("first words", False, b"null", "first words"),
        ("first words", False, b'""', "first words"),
        ("first words", False, b"7", "first words"),
        (None, False, b"null", None),
    ],
)
def test_an_entry_of_a_list_has_the_title_that_a_user_has_given_or_one_in_place_of_none(
    title: str | None, is_named: bool, listed: bytes, shown: str | None
) -> None:
    known = registry(past=(("a", "me"),))
    (session,) = known.past(SessionReach("me"))
    session.title, session.is_named = title, is_named
    entry = b'{"n":1.10,"title":%b,"sessionId":"a"}' % listed
    text, _ = filtered(query(), known, b'{"id":1,"result":{"sessions":[%b]}}' % entry)
    assert text == b'{"id":1,"result":{"sessions":[%b]}}' % entry.replace(listed, json.dumps(shown).encode())


def test_an_entry_with_very_many_members_keeps_its_title() -> None:
    known = registry(past=(("a", "me"),))
    (session,) = known.past(SessionReach("me"))
    session.title = "first words"
    members = {"sessionId": "a"} | {f"member {number}": number for number in range(MEMBERS)}
    text, _ = filtered(query(), known, json.dumps({"result": {"sessions": [members]}}).encode())
    assert json.loads(text)["result"]["sessions"] == [members]


def test_live_sessions_come_first_in_a_list_unless_the_agent_lists_them() -> None:
    known = registry(("new", "me"), ("old", "me"), ("yours", "you"))
    text, _ = filtered(query(), known, page("past", "old"))
    entries = json.loads(text)["result"]["sessions"]
    assert entries == [
        {"sessionId": "new", "cwd": "/srv/new"},
        {"n": 1.10, "sessionId": "past"},
        {"n": 1.10, "sessionId": "old"},
    ]


def test_later_pages_leave_out_what_is_live_for_it_was_on_the_first() -> None:
    known = registry(("live", "me"))
    text, _ = filtered(query(first=False), known, page("past", "live"))
    assert ids(text) == ["past"]


def test_entries_that_name_no_session_are_left_out() -> None:
    text = b'{"result":{"sessions":[{},5,{"sessionId":7},null,{"sessionId":"a"}]}}'
    assert ids(filtered(query(), registry(), text)[0]) == ["a"]


@pytest.mark.parametrize("result", [b"{}", b"null", b'{"sessions":null}', b'{"sessions":{"sessionId":"a"}}'])
def test_a_response_to_session_list_without_a_list_stays_verbatim(result: bytes) -> None:
    text = b'{"id":1,"result":%b}' % result
    assert filtered(query(), registry(("live", "me")), text) == (text, None)


@pytest.mark.parametrize(("cursor", "more"), [(b'"c"', b'"c"'), (b'{"n":1.10}', b'{"n":1.10}'), (b"null", None)])
def test_a_page_with_nothing_on_it_has_a_next_one_where_the_agent_says_so(cursor: bytes, more: bytes | None) -> None:
    known = registry(past=(("yours", "you"),))
    assert filtered(query(), known, page("yours", cursor=cursor))[1] == more
    assert filtered(query(), known, page("yours", "a", cursor=cursor))[1] is None


# What is live.


def test_live_sessions_are_listed_with_cwd_title_and_time() -> None:
    known = registry(("a", "me"))
    (session,) = known
    session.title, session.updated_at = "about \u00e9", "2026-01-01T00:00:00Z"
    assert json.loads(catalogue.known(query(), known, reopens=False)) == {
        "sessions": [{"sessionId": "a", "cwd": "/srv/a", "title": "about \u00e9", "updatedAt": "2026-01-01T00:00:00Z"}]
    }
    session.cwd = session.title = session.updated_at = None
    assert json.loads(catalogue.known(query(), known, reopens=False)) == {"sessions": [{"sessionId": "a", "cwd": ""}]}


def test_other_identities_other_agents_and_what_is_past_are_not_live_here() -> None:
    known = registry(("yours", "you"), past=(("past", "me"),))
    known.add(Session("other agent", "a", "me", Journal(1)), AgentDouble())
    assert catalogue.known(query(), known, reopens=False) == b'{"sessions":[]}'


@pytest.mark.parametrize(("cwd", "seen"), [("/srv/a", 1), ("/srv", 0), (None, 2)])
def test_only_those_of_the_directory_that_was_asked_for(cwd: str | None, seen: int) -> None:
    known = registry(("a", "me"), ("b", "me"))
    assert len(json.loads(catalogue.known(query(cwd=cwd), known, reopens=False))["sessions"]) == seen
    text, _ = filtered(query(cwd=cwd), known, page())
    assert len(ids(text)) == seen


def test_there_is_no_second_page_of_what_is_live() -> None:
    assert catalogue.known(query(first=False), registry(("a", "me")), reopens=False) == b'{"sessions":[]}'


def test_a_list_for_a_client_of_one_session_has_that_one() -> None:
    known = registry(("a", "me"), ("b", "me"))
    for viewer in (query("me", only="b"), query("guest-1", only="b", guest=True)):
        assert [
            entry["sessionId"] for entry in json.loads(catalogue.known(viewer, known, reopens=False))["sessions"]
        ] == ["b"]


# Reading and writing requests.


@pytest.mark.parametrize(
    ("params", "cwd", "first"),
    [
        (b'"params":{"cwd":"/srv","cursor":null}', "/srv", True),
        (b'"params":{"cursor":"c"}', None, False),
        (b'"params":{"cwd":7,"cursor":""}', None, False),
        (b'"x":1', None, True),
    ],
)
def test_a_request_names_a_directory_and_a_place_in_the_list(params: bytes, cwd: str | None, *, first: bool) -> None:
    client = Client("ann", SessionReach("me"))
    request = parse(b'{"id":1,"method":"session/list",%b}' % params)
    assert Query.of(client, "agent", request) == Query(client, "agent", cwd, first)


@pytest.mark.parametrize(
    ("cursor", "done"), [("past-1000", 1000), ("past-", 0), ("xpast-7", 0), ("past-" + "9" * 10, 0)]
)
def test_a_cursor_of_the_gateway_tells_how_many_sessions_were_on_earlier_pages(cursor: str, done: int) -> None:
    request = parse(b'{"id":1,"method":"session/list","params":{"cursor":"%b"}}' % cursor.encode())
    assert Query.of(Client("ann", SessionReach("me")), "agent", request).done == done


@pytest.mark.parametrize("params", [b',"params":{"cwd":"/a\\u00e9","cursor":"old","n":1.10}', b""])
def test_the_next_page_is_asked_for_with_the_same_parameters(params: bytes) -> None:
    message = parse(next_page(parse(b'{"id":1,"method":"session/list"%b}' % params), b'{"n" : 1e999}'))
    kept = b'"cwd":"/a\\u00e9","cursor":{"n" : 1e999},"n":1.10' if params else b'"cursor":{"n" : 1e999}'
    assert message.method == "session/list"
    assert message.text.endswith(b'"params":{%b}}' % kept)


# In conversation.


def listed(peer: Peer) -> Any:
    """The list that a client gets, by ids."""
    return [entry["sessionId"] for entry in peer.hears()["result"]["sessions"]]


@pytest.fixture
def scene() -> Scene:
    return Scene(agentCapabilities=LISTS)


def test_the_agents_list_reaches_a_client_with_what_it_may_see(scene: Scene) -> None:
    ann, yuri = scene.join("ann"), scene.join("yuri", "y")
    ann.new_session("a")
    yuri.new_session("y")
    for peer, seen in ((ann, ["a", "old"]), (yuri, ["y"])):
        peer.request("session/list")
        entries = [{"sessionId": session_id, "cwd": "/srv"} for session_id in ("old", "y")]
        scene.agent.answer(scene.agent.takes("session/list"), sessions=entries)
        assert listed(peer) == seen


def test_pages_on_which_there_is_nothing_for_a_client_are_passed_over(scene: Scene) -> None:
    yuri = scene.join("yuri", "y")
    own = yuri.request("session/list", cwd="/srv")
    for cursor in (None, "c1", "c2"):
        asked = scene.agent.takes("session/list")
        assert asked["params"] == {"cwd": "/srv"} | ({} if cursor is None else {"cursor": cursor})
        following = {None: "c1", "c1": "c2", "c2": None}[cursor]
        scene.agent.answer(asked, sessions=[{"sessionId": "mine"}], nextCursor=following)
    assert yuri.hears() == {"jsonrpc": "2.0", "id": own, "result": {"sessions": [], "nextCursor": None}}


def test_a_page_that_is_not_the_last_keeps_its_cursor(scene: Scene) -> None:
    ann = scene.join("ann")
    ann.request("session/list")
    scene.agent.answer(scene.agent.takes("session/list"), sessions=[{"sessionId": "a"}], nextCursor="c1")
    assert ann.hears()["result"] == {"sessions": [{"sessionId": "a"}], "nextCursor": "c1"}


def test_after_so_many_of_them_the_client_gets_an_empty_one_and_asks_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "PAGES", 3)
    scene = Scene(agentCapabilities=LISTS)
    yuri = scene.join("yuri", "y")
    yuri.request("session/list")
    for number in range(3):
        scene.agent.answer(scene.agent.takes("session/list"), sessions=[], nextCursor=f"c{number}")
    assert yuri.hears()["result"] == {"sessions": [], "nextCursor": "c2"}
    assert scene.agent.heard() == []


def test_session_list_asks_for_no_further_page_when_its_client_has_gone(scene: Scene) -> None:
    yuri = scene.join("yuri", "y")
    yuri.request("session/list")
    asked = scene.agent.takes("session/list")
    yuri.gone()
    scene.agent.answer(asked, sessions=[], nextCursor="c1")
    assert scene.agent.heard() == []


def test_an_error_of_the_agent_is_the_answer(scene: Scene) -> None:
    ann = scene.join("ann")
    ann.request("session/list")
    scene.agent.send(id=scene.agent.takes("session/list")["id"], error={"code": -32603, "message": "no"})
    assert ann.hears()["error"]["message"] == "no"


def test_an_agent_without_a_list_is_not_asked_and_what_is_live_is_listed() -> None:
    scene = Scene()
    ann = scene.join("ann")
    ann.new_session("a")
    ann.request("session/list")
    assert listed(ann) == ["a"]
    assert scene.agent.heard() == []


def test_neither_observers_nor_those_who_are_there_for_one_session_cause_the_agent_to_be_asked(scene: Scene) -> None:
    ann = scene.join("ann")
    ann.new_session("a")
    ann.new_session("b")
    watcher, joiner = scene.join("watcher", role=Role.OBSERVER), scene.join("joiner", only="b")
    guest = scene.join("guest", "guest-1", only="b", guest=True)
    for peer, seen in ((watcher, ["a", "b"]), (joiner, ["b"]), (guest, ["b"])):
        peer.request("session/list")
        assert listed(peer) == seen
    assert scene.agent.heard() == []


# Sessions from before.


def restored(registry: Registry, session_id: str, owner: str, title: str = "old", agent: str = "agent") -> Session:
    session = Session(agent, session_id, owner, Journal(1000))
    session.title, session.cwd = title, "/srv"
    registry.restore(session)
    return session


def shown(peer: Peer) -> list[str]:
    """Return the list for a client, without asking the agent."""
    peer.request("session/list")
    return [entry["sessionId"] for entry in peer.hears()["result"]["sessions"]]


def test_where_the_agent_has_no_list_sessions_from_before_are_there_for_who_may_open_them() -> None:
    registry = Registry("me")
    for session_id, owner in (("mine", "me"), ("yours", "you")):
        restored(registry, session_id, owner)
    restored(registry, "another agent's", "me", agent="other")
    scene = Scene(registry=registry, agentCapabilities={"loadSession": True})
    ann = scene.join("ann")
    ann.new_session("live")
    assert shown(ann) == ["mine", "live"]
    assert shown(scene.join("eve", "you")) == ["yours"]
    assert shown(scene.join("watcher", role=Role.OBSERVER)) == ["live"]
    assert shown(scene.join("bound", only="mine")) == []
    assert shown(scene.join("guest", "guest-1", only="mine", guest=True)) == []


def test_where_the_agent_opens_no_session_again_none_from_before_is_shown() -> None:
    registry = Registry("me")
    restored(registry, "old", "me")
    assert shown(Scene(registry=registry).join("ann")) == []


def test_of_several_of_one_name_the_one_is_shown_that_would_be_opened() -> None:
    registry = Registry("me")
    restored(registry, "s", "me", "first")
    last = restored(registry, "s", "me", "last")
    ann = Scene(registry=registry, agentCapabilities={"loadSession": True}).join("ann")
    ann.request("session/list")
    assert [entry["title"] for entry in ann.hears()["result"]["sessions"]] == ["last"]
    assert registry.find(ann.client.reach, "agent", "s") is last


def test_of_very_many_that_are_not_live_the_last_are_told_and_all_that_are() -> None:
    sessions = registry(("s", "me"), past=tuple((f"p{number}", "me") for number in range(catalogue.PAST + 2)))
    told = ids(b'{"result":%b}' % catalogue.known(query(), sessions, reopens=True))
    assert told == [f"p{number}" for number in range(2, catalogue.PAST + 2)] + ["s"]


def test_further_pages_have_the_sessions_of_longer_ago() -> None:
    known = Registry("me")
    for number in range(2 * catalogue.PAST + 2):
        restored(known, f"p{number}", "me")
    ann = Scene(registry=known, agentCapabilities={"loadSession": True}).join("ann")
    told: list[str] = []
    sizes = []
    cursor: dict[str, str] = {}
    while cursor or not told:
        ann.request("session/list", **cursor)
        result = ann.hears()["result"]
        told = [entry["sessionId"] for entry in result["sessions"]] + told
        sizes.append(len(result["sessions"]))
        cursor = {"cursor": result["nextCursor"]} if "nextCursor" in result else {}
    assert sizes == [catalogue.PAST, catalogue.PAST, 2]
    assert told == [f"p{number}" for number in range(2 * catalogue.PAST + 2)]
    for wrong in ("x", "past-", "past--1", "past-9999999999", "1"):
        ann.request("session/list", cursor=wrong)
        assert ann.hears()["result"] == {"sessions": []}


def test_an_entry_of_a_list_is_composed_again_only_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    composed: list[str] = []
    compose = catalogue._compose

    def note(session: Session) -> bytes:
        composed.append(session.id)
        return compose(session)

    monkeypatch.setattr(catalogue, "_compose", note)
    sessions = registry(("a", "me"), ("b", "me"))

    def titles() -> list[str | None]:
        listed = json.loads(catalogue.known(query(), sessions, reopens=False))["sessions"]
        return [entry.get("title") for entry in listed]

    assert titles() == titles() == [None, None]
    assert composed == ["a", "b"]
    sessions.live(SessionReach("me"))[1].title = "new"
    assert titles() == [None, "new"]
    assert composed == ["a", "b", "b"]


def test_a_page_of_more_sessions_than_max_listed_sessions_is_an_error_that_names_it() -> None:
    scene = Scene(make_policy(max_listed_sessions=2), agentCapabilities={"sessionCapabilities": {"list": {}}})
    ann = scene.join("ann")
    for size, wrong in ((2, False), (3, True)):
        ann.request("session/list")
        scene.agent.answers("session/list", sessions=[{"sessionId": str(number)} for number in range(size)])
        response = ann.hears()
        assert ("error" in response) is wrong
    assert "max_listed_sessions" in response["error"]["message"]
