"""A client that takes up a session again over a new link: what it gets, what is its own again, what it may claim."""

import math
from typing import Any

import pytest

from acp_gateway.core.agent_state import Policy
from acp_gateway.core.sessions.own_meta import Rejoin
from acp_gateway.core.sessions.places import step
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Role
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.gaps import MAY_BE_MISSING, PART_MISSING
from acp_gateway.protocol.jsonrpc import Message
from tests.kit.scene import Peer, Place, Scene, Shelf, make_policy, opened_scene

LOADS: dict[str, Any] = {"loadSession": True, "sessionCapabilities": {"close": {}}}
RESUMES: dict[str, Any] = {"sessionCapabilities": {"resume": {}, "close": {}}}


@pytest.fixture
def scene() -> Scene:
    return Scene(agentCapabilities=LOADS)


@pytest.fixture
def ann(scene: Scene) -> Peer:
    ann = scene.join("ann", link="first")
    ann.new_session()
    return ann


def texts(messages: list[Any]) -> list[str]:
    """Return the texts of the updates among messages."""
    updates = [message["params"]["update"] for message in messages if message.get("method") == "session/update"]
    return [update["content"]["text"] for update in updates if "content" in update]


def uncounted(scene: Scene) -> Place:
    """The place of a client that has all, while it gets what is in no place."""
    return step(scene.place(), scene.place()[1], 0)


def at(peer: Peer) -> dict[str, Any]:
    """Compose a client's state."""
    epoch, position = peer.seen["s"]
    return {"epoch": epoch, "position": position}


def taken_over(messages: list[Any]) -> Any:
    """Return the gateway's `_meta` of a response to rejoining."""
    (meta,) = [message["result"]["_meta"] for message in messages if "result" in message]
    return meta["acp-gateway"]


# A session that is live.


@pytest.mark.parametrize("method", ["session/load", "session/resume"])
def test_a_rejoin_of_a_live_session_gets_each_missed_message_once(scene: Scene, ann: Peer, method: str) -> None:
    scene.agent.update("seen")
    epoch, position = ann.seen["s"]
    ann.gone()
    scene.agent.update("missed")
    back = scene.join("ann", link="second")
    own = back.comes_back(method=method, epoch=epoch, position=position, connection="first")
    messages = back.heard()
    assert texts(messages) == ["missed"]
    assert messages[-1] == {
        "jsonrpc": "2.0",
        "id": own,
        "result": {"_meta": {"acp-gateway": {"prompts": [], "questions": []}}},
    }
    assert back.marks == [{"s": (epoch, position)}, {"s": uncounted(scene)}, {"s": scene.place()}]
    assert back.seen["s"] == scene.place()
    scene.agent.update("live")
    assert texts(back.heard()) == ["live"]
    assert scene.agent.heard() == []


@pytest.mark.parametrize("place", [("other", 1), ("", 0), (None, 1)])
def test_where_the_epoch_is_another_all_of_it_comes_and_no_mark_before_the_answer(
    scene: Scene, ann: Peer, place: tuple[str | None, int]
) -> None:
    scene.agent.update("seen")
    back = scene.join("ann again", link="second")
    back.comes_back(method="session/load", epoch=place[0], position=place[1])
    assert texts(back.heard()) == ["seen"]
    assert back.marks == [{"s": scene.place()}]


def test_a_rejoin_gets_a_gap_for_truncated_history() -> None:
    scene = Scene(make_policy(journal_limit=400), agentCapabilities=LOADS)
    ann = scene.join("ann", link="first")
    ann.new_session()
    place: Place = ann.seen["s"]
    for number in range(5):
        scene.agent.update(f"talk {number}")
    back = scene.join("ann again", link="second")
    own = back.comes_back(method="session/load", epoch=place[0], position=place[1])
    gap, *history, answer = back.heard()
    assert gap["params"]["update"]["content"]["text"] == PART_MISSING
    assert "talk 0" not in texts(history)
    assert 0 < len(history) < 5
    assert answer["id"] == own
    assert answer["result"]["_meta"]["acp-gateway"]["truncated"] is True
    epoch, end = scene.place()
    before = {"s": (epoch, end - len(history))}
    of_gap = {"s": step(place, place[1], 0)}
    assert back.marks == [{"s": place}, of_gap, before, {"s": uncounted(scene)}, {"s": (epoch, end)}]


def test_a_rejoin_gets_the_states_from_before_a_gap() -> None:
    scene = Scene(make_policy(journal_limit=400), agentCapabilities=LOADS)
    ann = scene.join("ann", link="first")
    ann.new_session()
    place: Place = ann.seen["s"]
    scene.agent.state("plan", entries=[])
    for number in range(5):
        scene.agent.update(f"talk {number}")
    back = scene.join("ann again", link="second")
    back.comes_back(method="session/resume", epoch=place[0], position=place[1])
    _, state, *_ = back.heard()
    assert state["params"]["update"]["sessionUpdate"] == "plan"


def test_a_position_behind_the_end_proves_nothing(scene: Scene, ann: Peer) -> None:
    scene.agent.update("seen")
    back = scene.join("ann again", link="second")
    back.comes_back(epoch=ann.seen["s"][0], position=50)
    answer, *rest = back.heard()
    assert "result" in answer
    assert texts(rest) == [MAY_BE_MISSING]
    assert back.marks == [{"s": scene.place()}]


def test_a_sub_agents_words_among_what_was_missed_are_counted_by_a_mark(scene: Scene, ann: Peer) -> None:
    ann.prompt()
    epoch, position = ann.seen["s"]
    scene.agent.update("own")
    scene.agent.update("of the child", "child")
    scene.agent.update("own again")
    back = scene.join("ann again", link="second")
    back.comes_back(epoch=epoch, position=position)
    assert texts(back.heard()) == ["own", "of the child", "own again"]
    assert back.marks == [
        {"s": (epoch, position)},
        {"s": (epoch, position + 2)},
        {"s": uncounted(scene)},
        {"s": (epoch, position + 3)},
    ]
    assert back.seen["s"] == scene.place()


def test_a_client_without_a_link_gets_the_whole_history_and_no_mark(scene: Scene, ann: Peer) -> None:
    scene.agent.update("seen")
    bob = scene.join("bob")
    bob.comes_back(method="session/load", epoch=ann.seen["s"][0], position=1)
    assert texts(bob.heard()) == ["seen"]


def test_an_observer_gets_what_it_has_missed_and_nothing_is_its_own(scene: Scene, ann: Peer) -> None:
    watcher = scene.join_session("watcher", role=Role.OBSERVER, link="o")
    prompt = ann.prompt()
    epoch, position = watcher.seen["s"]
    ann.gone()
    scene.agent.update("missed")
    again = scene.join("watcher", role=Role.OBSERVER, link="p")
    again.comes_back(epoch=epoch, position=position, connection="first", prompts=[prompt])
    messages = again.heard()
    assert texts(messages) == ["missed"]
    assert taken_over(messages) == {"prompts": [], "questions": []}


# What waits for an answer.


def test_a_prompt_whose_turn_is_running_is_answered_on_the_new_link_under_its_id(scene: Scene, ann: Peer) -> None:
    ann.say(rb'{"jsonrpc":"2.0","id":"\u0041","method":"session/prompt","params":{"sessionId":"s","prompt":[]}}')
    asked = scene.agent.takes("session/prompt")
    ann.gone()
    back = scene.join("ann", link="second")
    back.comes_back(**at(ann), connection="first", prompts=["A", "A", 99])
    (answer,) = back.heard_text()
    assert rb'"prompts":["\u0041"]' in answer
    scene.agent.answer(asked, stopReason="end_turn")
    assert back.heard_text() == [rb'{"jsonrpc": "2.0", "id": "\u0041", "result": {"stopReason": "end_turn"}}']


def test_prompts_that_wait_are_given_back_as_well_and_not_told_to_who_sent_them(scene: Scene, ann: Peer) -> None:
    first = ann.prompt("one")
    asked = scene.agent.takes("session/prompt")
    second = ann.prompt("two")
    ann.gone()
    back = scene.join("ann", link="second")
    back.comes_back(connection="first", prompts=[second, first])
    assert taken_over(back.heard())["prompts"] == [first, second]
    scene.agent.answer(asked, stopReason="end_turn")
    messages = back.heard()
    assert [message["id"] for message in messages] == [first]
    assert back.seen["s"] == scene.place()
    scene.agent.answer(scene.agent.takes("session/prompt"), stopReason="end_turn")
    assert back.hears()["id"] == second


def test_a_prompt_whose_turn_is_over_is_answered_after_the_response(scene: Scene, ann: Peer) -> None:
    own = ann.prompt()
    ann.gone()
    scene.agent.answers("session/prompt", stopReason="refusal")
    back = scene.join("ann", link="second")
    back.comes_back(connection="first", prompts=[own])
    response, answer = back.heard()[:2]
    assert taken_over([response])["prompts"] == [own]
    assert answer == {"jsonrpc": "2.0", "id": own, "result": {"stopReason": "refusal"}}


@pytest.mark.parametrize(
    ("identity", "connection"), [("you", "first"), ("me", "other"), ("me", None), ("me", ""), ("me", 5)]
)
def test_knowing_an_id_is_not_an_authority(identity: str, connection: Any) -> None:
    scene = Scene(agentCapabilities=LOADS)
    ann = scene.join("ann", identity, link="first")
    ann.new_session()
    own = ann.prompt()
    ann.gone()
    # A guest may see the session, too.
    back = scene.join("eve", "me", only="s", guest=identity == "you", link="second")
    back.comes_back(connection=connection, prompts=[own], questions=[1])
    assert taken_over(back.heard()) == {"prompts": [], "questions": []}


def test_a_link_that_is_there_or_away_keeps_what_it_has(scene: Scene, ann: Peer) -> None:
    own = ann.prompt()
    scene.agent.ask_permission()
    ann.away()
    back = scene.join("ann again", link="second")
    back.comes_back(**at(ann), connection="first", prompts=[own], questions=[1])
    answer, asked = back.heard()
    assert taken_over([answer]) == {"prompts": [], "questions": []}
    assert asked["id"] == 2


def test_a_prompt_whose_id_is_in_use_on_the_new_link_is_not_given_back(scene: Scene, ann: Peer) -> None:
    ann.send(id=7, method="session/prompt", params={"sessionId": "s", "prompt": []})
    ann.gone()
    back = scene.join("ann", link="second")
    back.send(id=7, method="x/long", params={})
    back.comes_back(connection="first", prompts=[7])
    assert taken_over(back.heard())["prompts"] == []


def test_over_a_chain_of_links_the_first_or_the_last_may_be_named(scene: Scene, ann: Peer) -> None:
    own = ann.prompt()
    asked = scene.agent.takes("session/prompt")
    ann.gone()
    for link, named in (("second", "first"), ("third", "first"), ("fourth", "third")):
        back = scene.join("ann", link=link)
        back.comes_back(connection=named, prompts=[own])
        assert taken_over(back.heard())["prompts"] == [own]
        assert back.client.former_links == {named}
        last = back
        if link != "fourth":
            back.gone()
    scene.agent.answer(asked, stopReason="end_turn")
    assert last.hears()["id"] == own


def test_nothing_is_remembered_of_a_link_that_nothing_was_taken_over_from(scene: Scene, ann: Peer) -> None:
    back = scene.join("ann again", link="second")
    back.comes_back(connection="x" * 1000)
    assert back.client.former_links == set()


def test_a_prompt_that_was_given_back_can_be_cancelled_in_both_ways(scene: Scene, ann: Peer) -> None:
    own = ann.prompt()
    asked = scene.agent.takes("session/prompt")
    ann.gone()
    back = scene.join("ann", link="second")
    back.comes_back(connection="first", prompts=[own])
    back.send(method="$/cancel_request", params={"requestId": own})
    assert scene.agent.hears()["params"] == {"requestId": asked["id"]}
    back.cancel()
    assert scene.agent.hears()["method"] == "session/cancel"


def test_a_question_is_open_again_under_the_id_that_it_had_and_counts_once(scene: Scene, ann: Peer) -> None:
    ann.prompt()
    scene.agent.ask_permission(raw_id=77)
    (agent_request,) = [message for message in ann.heard() if message.get("method") == "session/request_permission"]
    ann.gone()
    scene.agent.heard()
    back = scene.join("ann", link="second")
    back.comes_back(**at(ann), connection="first", questions=[agent_request["id"], 99])
    (answer,) = back.heard()
    assert taken_over([answer])["questions"] == [agent_request["id"]]
    back.choose(agent_request, "yes")
    assert scene.agent.hears()["id"] == 77
    back.choose(agent_request, "no")
    assert scene.agent.heard() == []
    # Ids go on above those of the old link.
    scene.agent.ask_permission(raw_id=78)
    assert back.hears()["id"] > 99


def test_a_guest_that_names_the_link_of_the_owner_gets_no_request_under_its_id(scene: Scene, ann: Peer) -> None:
    scene.agent.ask_permission("q")
    asked = ann.hears()["id"]
    ann.gone()
    guest = scene.join("guest", "guest-1", only="s", guest=True, link="second")
    guest.comes_back(**at(ann), connection="first", questions=[asked])
    assert taken_over(guest.heard())["questions"] == []


def test_a_permission_request_kept_over_a_rejoin_is_withdrawn_under_its_id(scene: Scene, ann: Peer) -> None:
    bob = scene.join_session("bob")
    scene.agent.ask_permission()
    agent_request, his = ann.hears(), bob.hears()
    ann.gone()
    back = scene.join("ann", link="second")
    back.comes_back(connection="first", questions=[agent_request["id"]])
    back.heard()
    bob.choose(his, "yes")
    assert back.hears() == {
        "jsonrpc": "2.0",
        "method": "$/cancel_request",
        "params": {"requestId": agent_request["id"]},
    }


def test_a_question_that_is_not_named_is_asked_again_and_one_that_is_decided_is_not_open(
    scene: Scene, ann: Peer
) -> None:
    bob = scene.join_session("bob")
    scene.agent.ask_permission(raw_id=1)
    scene.agent.ask_permission(raw_id=2)
    decided, other = ann.heard()
    ann.gone()
    bob.choose(bob.heard()[0], "yes")
    back = scene.join("ann", link="second", _meta={"acp-gateway": {"lastId": other["id"]}})
    back.comes_back(**at(ann), connection="first", questions=[decided["id"]])
    answer, asked = back.heard()
    assert taken_over([answer])["questions"] == []
    assert asked["id"] > other["id"]
    assert asked["params"] == other["params"]


def test_an_id_under_which_something_else_was_asked_on_the_new_link_is_not_given_back(scene: Scene, ann: Peer) -> None:
    scene.agent.ask_permission(raw_id=1)
    agent_request = ann.hears()
    ann.gone()
    back = scene.join("ann", link="second")
    back.new_session("t")
    scene.agent.ask_permission(raw_id=2, session_id="t")
    assert back.hears()["id"] == agent_request["id"] == 1
    back.comes_back(**at(ann), connection="first", questions=[1])
    answer, asked = back.heard()
    assert taken_over([answer])["questions"] == []
    assert asked["id"] == 2


def test_a_permission_request_that_a_client_has_on_its_new_link_is_not_given_back_under_its_old_id(
    scene: Scene, ann: Peer
) -> None:
    scene.agent.ask_permission(raw_id=1)
    former = ann.hears()["id"]
    ann.gone()
    back = scene.join("ann", link="second", _meta={"acp-gateway": {"lastId": former}})
    agent_request = back.load()[-1]
    back.comes_back(**at(ann), connection="first", questions=[former])
    assert taken_over(back.heard())["questions"] == []
    back.choose({"id": former}, "yes")
    assert scene.agent.heard() == []
    back.choose(agent_request, "yes")
    assert scene.agent.hears()["id"] == 1


@pytest.mark.parametrize(("said", "first"), [(41, 42), (41.0, 42), (-5, 1), (0, 1), ("41", 1), (10**30, 1), (None, 1)])
def test_ids_begin_above_those_of_the_old_link(said: Any, first: int) -> None:
    scene = Scene(agentCapabilities=LOADS)
    ann = scene.join("ann", link="second", _meta={"acp-gateway": {"lastId": said}})
    ann.new_session()
    scene.agent.ask_permission()
    assert ann.hears()["id"] == first


def test_the_agent_of_one_client_does_not_see_what_is_the_gateways_in_initialize() -> None:
    scene = Scene(make_policy(shared=False))
    ann = scene.join("ann", link="second", initialize=False)
    ann.request("initialize", protocolVersion=1, _meta={"acp-gateway": {"lastId": 4}, "other": 1})
    assert scene.agent.takes("initialize")["params"]["_meta"] == {"other": 1}


# A session that is not live.


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def over(shelf: Shelf, capabilities: dict[str, Any] = LOADS, policy: Policy | None = None) -> tuple[Scene, Place]:
    """A scene in which a session was left and closed."""
    scene = Scene(policy, Registry("me", shelf, "run"), agentCapabilities=capabilities)
    ann = scene.join("ann", link="first")
    ann.new_session()
    for text in ("one", "two", "three"):
        scene.agent.update(text)
    place = ann.seen["s"]
    ann.request("session/close", sessionId="s")
    scene.agent.answers("session/close")
    ann.gone()
    scene.agent.heard()
    return scene, place


@pytest.mark.parametrize(
    ("method", "capabilities"), [("session/load", LOADS), ("session/resume", LOADS), ("session/resume", RESUMES)]
)
@pytest.mark.parametrize("result", ['"result":null', '"result":{}', '"result":{"_meta":{"x":1}}', '"error":null'])
def test_a_rejoin_of_a_session_that_is_not_live_gets_missed_messages_from_the_archive(
    shelf: Shelf, method: str, result: str, capabilities: dict[str, Any]
) -> None:
    scene, (epoch, position) = over(shelf, capabilities)
    back = scene.join("ann", link="second")
    own = back.comes_back(method=method, more={"x": 2}, epoch=epoch, position=position - 1, connection="first")
    assert scene.agent.heard() == []
    scene.load_journal(shelf.read(scene.wanted[0]))
    asked = scene.agent.hears()
    assert asked["method"] == ("session/load" if capabilities is LOADS else "session/resume")
    assert asked["params"]["_meta"] == {"x": 2}
    scene.agent.update("all of it")
    scene.agent.state("plan", entries=[])
    assert back.heard() == []
    scene.agent.say(b'{"jsonrpc":"2.0","id":%d,%b}' % (asked["id"], result.encode()))
    *missed, answer = back.heard()
    assert texts(missed) == ["three"]
    assert missed[-1]["params"]["update"]["sessionUpdate"] == "plan"
    assert answer["id"] == own
    assert answer["result"]["_meta"].pop("acp-gateway") == {"prompts": [], "questions": []}
    assert answer["result"] == {"_meta": {"x": 1} if '"x"' in result else {}}
    assert back.marks[0] == {"s": (epoch, position - 1)}
    assert back.seen["s"] == scene.place()
    assert scene.place()[0] != epoch
    kept = next(iter(shelf.journals.values()))
    assert (kept.epoch, kept.position) == scene.place()
    assert kept.replay() == scene.session().journal.replay()


def test_the_state_of_a_client_is_read_once_however_often_its_request_waits(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, (epoch, position) = over(shelf)
    read: list[Message] = []
    original = Rejoin.read

    def reading(message: Message) -> Rejoin | None:
        read.append(message)
        return original(message)

    monkeypatch.setattr(Rejoin, "read", reading)
    back = scene.join("ann", link="second")
    back.comes_back(epoch=epoch, position=position, connection="first")
    scene.load_journal(shelf.read(scene.wanted[0]))
    scene.agent.answers("session/load")
    assert back.seen["s"] == scene.place()
    assert len(read) == 1


def test_of_a_session_that_is_not_opened_after_all_no_history_stays_in_memory(shelf: Shelf) -> None:
    scene, (epoch, position) = over(shelf, policy=make_policy(max_sessions=1))
    back = scene.join("ann", link="second")
    own = back.comes_back(epoch=epoch, position=position)
    (journal_loaded,) = scene.wanted
    written = shelf.journals[journal_loaded].replay()
    back.request("session/new", cwd="/srv", mcpServers=[])
    scene.agent.answers("session/new", sessionId="other")
    scene.load_journal(shelf.read(journal_loaded))
    refusal = next(message for message in back.heard() if message.get("id") == own)
    assert "max_sessions" in refusal["error"]["message"]
    assert (journal_loaded.journal.epoch, journal_loaded.journal.replay(), journal_loaded.journal_loaded) == (
        "",
        [],
        False,
    )
    assert shelf.journals[journal_loaded].replay() == written


def test_history_that_is_truncated_in_memory_during_an_opening_stays_in_the_archive(shelf: Shelf) -> None:
    scene, (epoch, position) = over(shelf)
    scene.join("ann", link="second").comes_back(epoch=epoch, position=position)
    (journal_loaded,) = scene.wanted
    kept = shelf.journals[journal_loaded]
    written = kept.replay()
    scene.load_journal(shelf.read(journal_loaded))
    journal_loaded.journal.shrink(0)
    scene.agent.answers("session/load")
    assert journal_loaded.journal.replay() == []
    assert shelf.journals[journal_loaded] is kept
    assert kept.replay() == written
    assert (kept.epoch, kept.position) == scene.place()


def test_where_more_was_seen_than_was_written_nothing_comes_again(shelf: Shelf) -> None:
    scene, (epoch, position) = over(shelf)
    back = scene.join("ann", link="second")
    back.comes_back(epoch=epoch, position=position + 10)
    scene.load_journal(shelf.read(scene.wanted[0]))
    scene.agent.answers("session/load")
    assert texts(back.heard()) == []
    assert back.marks == [
        {"s": (epoch, position + 10)},
        {"s": scene.place()},
        {"s": uncounted(scene)},
        {"s": scene.place()},
    ]


def test_where_the_archive_has_nothing_the_agents_own_history_comes(shelf: Shelf) -> None:
    scene, (epoch, position) = over(shelf)
    back = scene.join("ann", link="second")
    back.comes_back(method="session/load", epoch=epoch, position=position)
    scene.load_journal(None)
    asked = scene.agent.takes("session/load")
    scene.agent.update("all of it")
    scene.agent.answer(asked)
    messages = back.heard()
    assert texts(messages) == ["all of it"]
    assert taken_over(messages) == {"prompts": [], "questions": []}
    assert back.marks == [{"s": scene.place()}]


def test_an_unknown_epoch_of_one_that_is_over_brings_the_history_that_is_kept(shelf: Shelf) -> None:
    scene, _ = over(shelf)
    back = scene.join("ann", link="second")
    back.comes_back(method="session/load", epoch="other", position=1)
    scene.load_journal(shelf.read(scene.wanted[0]))
    asked = scene.agent.takes("session/load")
    scene.agent.update("all of it")
    scene.agent.answer(asked)
    assert texts(back.heard()) == ["one", "two", "three"]
    assert back.marks == [{"s": scene.place()}]


@pytest.mark.parametrize("place", [{"epoch": "other", "position": 1}, {}])
@pytest.mark.parametrize("live", [True, False])
def test_a_resume_without_a_provable_position_gets_a_gap(shelf: Shelf, place: dict[str, Any], *, live: bool) -> None:
    scene, _ = over(shelf)
    if live:
        scene.join("bob", link="bob").request("session/load", sessionId="s", cwd="/srv", mcpServers=[])
        scene.load_journal(shelf.read(scene.wanted[0]))
        scene.agent.answers("session/load")
    back = scene.join("ann", link="second")
    own = back.comes_back(method="session/resume", connection="first", **place)
    if not live:
        scene.load_journal(shelf.read(scene.wanted[0]))
        asked = scene.agent.takes("session/load")
        scene.agent.update("all of it")
        scene.agent.answer(asked)
    answer, *rest = back.heard()
    assert answer["id"] == own
    # Behind the answer: what comes before it is history for a client that knows of no mark.
    assert texts(rest) == [MAY_BE_MISSING]
    assert back.seen["s"] == scene.place()


@pytest.mark.parametrize("proven", [True, False])
def test_a_rejoin_after_a_restart_repeats_no_plan_that_the_editor_has(shelf: Shelf, *, proven: bool) -> None:
    scene = Scene(None, Registry("me", shelf, "run"), agentCapabilities=LOADS)
    ann = scene.join("ann", link="first")
    ann.new_session()
    scene.agent.state("plan", entries=[{"content": "read"}])
    epoch, position = ann.seen["s"]
    ann.request("session/close", sessionId="s")
    scene.agent.answers("session/close")
    ann.gone()
    scene.agent.heard()
    back = scene.join("ann", link="second")
    back.comes_back(method="session/load", epoch=epoch if proven else "other", position=position)
    scene.load_journal(shelf.read(scene.wanted[0]))
    asked = scene.agent.takes("session/load")
    scene.agent.state("plan", entries=[{"content": "read"}])
    scene.agent.state("usage_update", used=1, size=2)
    scene.agent.answer(asked)
    kinds = [message["params"]["update"]["sessionUpdate"] for message in back.heard() if "params" in message]
    # A client that can't prove its place gets the history, in which the plan comes once.
    assert kinds == (["usage_update"] if proven else ["plan", "usage_update"])
    assert back.seen["s"] == scene.place()


def test_those_who_come_later_are_told_what_they_have_missed_though_the_first_could_prove_nothing(shelf: Shelf) -> None:
    scene, (epoch, position) = over(shelf)
    scene.join("ann", link="second").comes_back(epoch="other", position=1)
    scene.load_journal(shelf.read(scene.wanted[0]))
    scene.agent.answers("session/load")
    bob = scene.join("bob", link="bob")
    bob.comes_back(epoch=epoch, position=position - 2)
    assert texts(bob.heard()) == ["two", "three"]


def test_a_place_beyond_what_reached_the_disk_is_never_taken_for_one_in_what_came_later(shelf: Shelf) -> None:
    scene, (epoch, position) = over(shelf)
    scene.join("ann", link="second").comes_back(epoch=epoch, position=position)
    scene.load_journal(shelf.read(scene.wanted[0]))
    asked = scene.agent.takes("session/load")
    scene.agent.state("plan", entries=[])
    scene.agent.answer(asked)
    scene.agent.update("four")
    bob = scene.join("bob", link="bob")
    # It has seen two more before the gateway was killed, which take the same positions.
    bob.comes_back(epoch=epoch, position=position + 2)
    plan, four, *_ = bob.heard()
    assert plan["params"]["update"]["sessionUpdate"] == "plan"
    assert texts([four]) == ["four"]


def test_the_places_of_several_restarts_ago_are_known(shelf: Shelf) -> None:
    scene, (epoch, position) = over(shelf)
    for number in range(3):
        back = scene.join("ann", link=f"link {number}")
        back.comes_back(**(at(back) if "s" in back.seen else {"epoch": epoch, "position": position}))
        scene.load_journal(shelf.read(scene.wanted[0]))
        scene.agent.answers("session/load")
        scene.agent.update(f"life {number}")
        back.request("session/close", sessionId="s")
        scene.agent.answers("session/close")
        back.gone()
    bob = scene.join("bob", link="bob")
    bob.comes_back(epoch=epoch, position=position)
    scene.load_journal(shelf.read(scene.wanted[0]))
    scene.agent.answers("session/load")
    assert texts(bob.heard()) == ["life 0", "life 1", "life 2"]


@pytest.mark.parametrize("role", [Role.OBSERVER, Role.CONTROLLER])
def test_a_rejoining_client_without_the_right_to_open_waits_for_one_with_it(shelf: Shelf, role: Role) -> None:
    scene, (epoch, position) = over(shelf)
    guest = role is Role.CONTROLLER
    watcher = scene.join("eve", "you" if guest else "me", role, only="s" if guest else None, guest=guest, link="eve")
    own = watcher.comes_back(epoch=epoch, position=position - 1)
    assert watcher.heard() == []
    scene.join("ann", link="second").comes_back(epoch=epoch, position=position)
    scene.load_journal(shelf.read(scene.wanted[0]))
    scene.agent.answers("session/load")
    missed, answer = watcher.heard()
    assert texts([missed]) == ["three"]
    assert answer["id"] == own
    scene.agent.update("live")
    assert texts(watcher.heard()) == ["live"]


def test_a_return_that_fails_can_be_tried_again(shelf: Shelf) -> None:
    scene, (epoch, position) = over(shelf)
    back = scene.join("ann", link="second")
    for well in (False, True):
        own = back.comes_back(epoch=epoch, position=position - 1)
        scene.load_journal(shelf.read(scene.wanted[0]))
        if well:
            scene.agent.answers("session/load")
        else:
            scene.agent.refuses("session/load")
            scene.agent.refuses("session/new", message="nor another one")
            assert back.hears()["error"] == {"code": -32603, "message": "no"}
    *missed, answer = back.heard()
    assert texts(missed) == ["three"]
    assert answer["id"] == own


def test_a_journal_is_read_once_for_all_who_wait_for_it(shelf: Shelf) -> None:
    scene, (epoch, position) = over(shelf)
    for client in [scene.join(f"ann {number}", link=f"link {number}") for number in range(3)]:
        client.comes_back(epoch=epoch, position=position)
    assert len(scene.wanted) == 1
    scene.load_journal(shelf.read(scene.wanted[0]))
    scene.agent.answers("session/load")
    assert len(scene.session().attached) == 3


def test_requests_for_a_session_whose_journal_is_being_read_keep_their_order(shelf: Shelf) -> None:
    scene, (epoch, position) = over(shelf)
    back = scene.join("ann", link="second")
    loads = back.comes_back(epoch=epoch, position=position - 1)
    again = back.request("session/load", sessionId="s", cwd="/srv", mcpServers=[])
    prompts = back.prompt()
    elsewhere = back.request("x/about", sessionId="other")
    assert back.hears()["id"] == elsewhere
    assert scene.agent.heard() == []
    scene.load_journal(shelf.read(scene.wanted[0]))
    scene.agent.answers("session/load")
    assert [message["id"] for message in back.heard() if "id" in message] == [loads, again]
    scene.agent.answers("session/prompt", stopReason="end_turn")
    assert back.hears()["id"] == prompts


def test_a_plain_session_load_waits_for_the_journal_of_a_rejoining_client(shelf: Shelf) -> None:
    scene, (epoch, position) = over(shelf)
    back, bob = scene.join("ann", link="second"), scene.join("bob")
    back.comes_back(epoch=epoch, position=position - 1)
    bob.request("session/load", sessionId="s", cwd="/srv", mcpServers=[])
    assert scene.agent.heard() == []
    scene.load_journal(shelf.read(scene.wanted[0]))
    scene.agent.answers("session/load")
    assert texts(back.heard()) == ["three"]
    assert texts(bob.heard()) == ["one", "two", "three"]


def test_a_rejoin_state_over_its_maximum_size_is_ignored(shelf: Shelf) -> None:
    scene, (epoch, position) = over(shelf)
    back = scene.join("ann", link="second")
    back.comes_back(epoch=epoch, position=position, questions=list(range(20_000)))
    scene.load_journal(shelf.read(scene.wanted[0]))
    scene.agent.answers("session/load")
    (answer,) = back.heard()
    assert "_meta" not in answer["result"]


def test_a_journal_that_comes_when_the_session_is_live_already_is_not_taken(shelf: Shelf) -> None:
    scene, (epoch, position) = over(shelf)
    other = Scene(registry=scene.registry, agentCapabilities=LOADS)
    back, bob = scene.join("ann", link="second"), other.join("bob")
    own = back.comes_back(epoch=epoch, position=position)
    bob.request("session/load", sessionId="s", cwd="/srv", mcpServers=[])
    other.load_journal(shelf.read(other.wanted[0]))
    other.agent.answers("session/load")
    had = other.session().journal
    scene.load_journal(shelf.read(scene.wanted[0]))
    answer = back.hears()
    assert answer["id"] == own
    assert "is open in another connection" in answer["error"]["message"]
    assert other.session().journal is had


def test_the_state_of_a_rejoin_is_not_kept_for_reopening_the_session(shelf: Shelf) -> None:
    scene, (epoch, position) = over(shelf)
    back = scene.join("ann", link="second")
    back.comes_back(more={"x": 2}, epoch=epoch, position=position)
    scene.load_journal(shelf.read(scene.wanted[0]))
    scene.agent.answers("session/load")
    scene.lose_agent()
    back.prompt()
    scene.agent.answers("initialize", **scene.welcome)
    assert scene.agent.takes("session/load")["params"]["_meta"] == {"x": 2}


def test_an_id_that_is_too_long_gets_no_mark(scene: Scene) -> None:
    ann = scene.join("ann", link="first")
    ann.new_session("s" * 2000)
    assert ann.marks == []
    assert ann.client.positions() == {}


def test_a_rejoining_observer_waits_until_session_new_answers_with_the_id_of_its_session(shelf: Shelf) -> None:
    scene, _ = over(shelf)
    watcher = scene.join("eve", role=Role.OBSERVER, link="eve")
    own = watcher.comes_back(epoch="e", position=0)
    scene.join("ann", link="second").new_session("s")
    assert [message["id"] for message in watcher.heard() if "id" in message] == [own]


@pytest.mark.parametrize("guest", [False, True])
def test_a_rejoining_observer_does_not_wait_for_a_session_that_the_agent_cannot_reopen(*, guest: bool) -> None:
    scene, ann = opened_scene(agentCapabilities={})
    identity, only = ("guest-1", "s") if guest else ("me", None)
    watcher = scene.join_session("eve", identity, Role.OBSERVER, only=only, guest=guest, link="eve")
    scene.lose_agent()
    watcher.heard()
    # Before the agent is started again, it may turn out to be another one.
    early = watcher.comes_back(epoch="e", position=0)
    assert not [message for message in watcher.heard() if "id" in message]
    ann.request("session/new", cwd="/srv", mcpServers=[])
    scene.agent.answers("initialize", **scene.welcome)
    refusal = watcher.hears()
    assert (refusal["id"], refusal["error"]["code"]) == (early, jsonrpc.SESSION_NOT_FOUND)
    late = watcher.comes_back(epoch="e", position=0)
    refusal = watcher.hears()
    assert (refusal["id"], refusal["error"]["code"]) == (late, jsonrpc.SESSION_NOT_FOUND)


def test_a_rejoining_observer_does_not_wait_for_an_unknown_session(scene: Scene) -> None:
    watcher = scene.join("eve", role=Role.OBSERVER, link="eve")
    watcher.comes_back("unknown", epoch="e", position=0)
    assert watcher.hears()["error"]["code"] == jsonrpc.SESSION_NOT_FOUND


# The ends of a wait for a client that may re-open a session.


def watcher_of(scene: Scene, *, guest: bool = False, identity: str = "me") -> tuple[Peer, int]:
    """Add an observer that returns to the session, which is not live; return it with the id of its request."""
    only = "s" if guest else None
    watcher = scene.join("eve", identity, Role.OBSERVER, only=only, guest=guest, link="eve")
    own = watcher.comes_back(epoch="e", position=0)
    assert watcher.heard() == []
    return watcher, own


def refusal_of(peer: Peer, own: int) -> str:
    """Take the only message, which must refuse a request for an unknown session; return its text."""
    message = peer.hears()
    assert (message["id"], message["error"]["code"]) == (own, jsonrpc.SESSION_NOT_FOUND)
    assert message["error"]["data"]["sessionId"] == "s"
    return str(message["error"]["message"])


@pytest.mark.parametrize("guest", [False, True])
def test_a_wait_for_a_session_ends_when_the_agent_refuses_to_open_it(shelf: Shelf, *, guest: bool) -> None:
    scene, _ = over(shelf)
    watcher, own = watcher_of(scene, guest=guest, identity="guest-1" if guest else "me")
    ann = scene.join("ann", link="second")
    ann.comes_back(epoch="e", position=0)
    scene.load_journal(shelf.read(scene.wanted[0]))
    scene.agent.refuses("session/load", message="a secret of its owner")
    scene.agent.refuses("session/new")
    assert "error" in ann.hears()
    why = "session s is not open any more: the agent has refused to open it again"
    assert refusal_of(watcher, own) == why


def test_a_wait_for_a_session_ends_when_the_agent_has_become_one_that_reopens_none(shelf: Shelf) -> None:
    scene, _ = over(shelf)
    watcher, own = watcher_of(scene)
    scene.stop_agent()
    scene.join("ann").request("session/list")
    scene.agent.answers("initialize", protocolVersion=1, agentCapabilities={})
    assert "session/load" in refusal_of(watcher, own)


def test_a_wait_for_a_session_ends_when_another_process_opens_it() -> None:
    registry = Registry("me")
    here, there = (Scene(make_policy(shared=False), registry, agentCapabilities=LOADS) for _ in range(2))
    ann = there.join("ann")
    ann.new_session()
    ann.request("session/close", sessionId="s")
    there.agent.answers("session/close")
    watcher, own = watcher_of(here)
    here.end_vain_waits()
    assert watcher.heard() == []
    ann.request("session/load", sessionId="s", cwd="/srv", mcpServers=[])
    there.agent.answers("session/load")
    here.end_vain_waits()
    assert refusal_of(watcher, own).startswith("no session 's' is open on this connection")


def test_a_wait_for_a_session_ends_after_away_grace(shelf: Shelf) -> None:
    scene, _ = over(shelf)
    scene.pass_time(1000.0)
    watcher, own = watcher_of(scene)
    scene.pass_time(1059.0)
    scene.end_vain_waits(60.0)
    assert watcher.heard() == []
    scene.pass_time(1060.0)
    scene.end_vain_waits(math.inf)
    assert watcher.heard() == []
    scene.end_vain_waits(60.0)
    why = "session s is not open any more: no client that may open it has come within away_grace (60 s)"
    assert refusal_of(watcher, own) == why
