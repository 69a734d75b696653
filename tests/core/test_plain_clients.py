"""Clients that dial by themselves and are cut: by their last cursor they get each update and end of a turn once."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from acp_gateway.client.editor_state import Outcome
from acp_gateway.core.sessions.places import Cursor, seen
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Role
from acp_gateway.protocol.gaps import PART_MISSING
from acp_gateway.protocol.link_messages import Sent
from acp_gateway.protocol.methods import NEWS
from tests.core.test_exactly_once import MODES, OLD_TURN, Editor, World
from tests.core.test_same_version import opened
from tests.core.test_translated_clients import NewPeer, join_new
from tests.fuzz.effort import some
from tests.kit.scene import Peer, Scene, Shelf, encode, make_policy
from tests.kit.versions import text, update

Json = Any

ASKS = {"_meta": {"acp-gateway": {"cursors": True}}}
LOADS: Json = {"loadSession": True, "sessionCapabilities": {"resume": {}, "close": {}}}


def own(message: Json) -> Json:
    """Return the gateway's member of the `_meta` of a message's params or result."""
    return message.get("params", message.get("result", {})).get("_meta", {}).get("acp-gateway", {})


def replay_from(cursor: str) -> Json:
    return {"acp-gateway": {"replayFrom": {"type": "cursor", "cursorId": cursor}}}


# Cuts anywhere in recorded conversations.


class Dialling:
    """A plain client in the place of a shim: it notes its cursor, and names it over the next connection."""

    def __init__(self, version: int, method: str) -> None:
        self.version, self.method = version, method
        self.started = self.recovering = False
        self.cursor = ""
        self.ends: dict[object, str] = {}
        """Ends of turns, by their place: from news, and from answers to prompts."""
        self._told: set[object] = set()
        """Places of those that news have told."""
        self._asked: dict[Json, str] = {}

    def _asks(self, raw_id: Json, method: str, **params: Json) -> bytes:
        self._asked[raw_id] = method
        if method == "initialize":
            params |= {"capabilities" if self.version == 2 else "clientCapabilities": ASKS}
        return encode(id=raw_id, method=method, params=params)

    def from_editor(self, batch: Sequence[bytes]) -> Outcome:
        asked = map(json.loads, batch)
        return Outcome([self._asks(one["id"], one["method"], **one["params"]) for one in asked])

    def begin_recovery(self, *_: object) -> Outcome:
        self.recovering = True
        info = {"info": {"name": "e", "version": "1"}} if self.version == 2 else {}
        return Outcome([self._asks("again", "initialize", protocolVersion=self.version, **info)])

    def from_gateway(self, batch: Sequence[Sent]) -> Outcome:
        (received,) = batch
        assert isinstance(received, bytes), "a client without a link gets no mark"
        message, outcome = json.loads(received), Outcome()
        assert "error" not in message, message
        told = own(message)
        if told.get("sessionId", "s") == "s":
            self.cursor = told.get("cursorId", self.cursor)
        ended = message.get("params", {}) if message.get("method") == NEWS else message.get("result", {})
        # In version 2 the state has the end too.
        state = message.get("params", {}).get("update", {})
        if self.version == 2 and "stopReason" in state and told.get("sessionId", "s") == "s":
            self.ends[self._place()] = state["stopReason"]
        if "stopReason" in ended:
            place = self._place()
            assert "result" in message or place not in self._told, "the end of a turn is told twice"
            self._told |= {place} if "params" in message else set()
            self.ends[place] = ended["stopReason"]
        method = self._asked.pop(message.get("id"), None) if "method" not in message else None
        if method == "initialize" and self.started:
            more: Json = {} if self.version == 2 else {"mcpServers": []}
            params = {"sessionId": "s", "cwd": "/srv", "_meta": replay_from(self.cursor)} | more
            outcome.to_gateway.append(self._asks("taken up", self.method, **params))
        elif method == self.method and message["id"] == "taken up":
            assert told["replayed"] == "missed"
            self.recovering = False
        else:
            outcome.to_editor.append(received)
        self.started = self.started or method == "initialize"
        return outcome

    def _place(self) -> object:
        cursor = Cursor.read(self.cursor)
        assert cursor is not None
        return seen(cursor.place)[1], cursor.ends


class Plain(Editor):
    """An editor without a shim."""

    def __init__(self, version: int, method: str) -> None:
        super().__init__("ann", version)
        self.shim: Dialling = Dialling(version, method)  # type: ignore[assignment]

    def link(self) -> None:
        return None


class OneLife(World):
    """A gateway that lives on while its clients are cut."""

    def restart(self, count: int | None = None) -> None:
        ann, _ = self.editors
        assert ann.client is not None
        self.gateway.client_gone(ann.client)
        ann.left = count
        self.deliver()
        self.connect(ann)


def cut(world: type[World], agent: int, ann: Plain, *counts: int, together: bool) -> Plain:
    """Cut the path of a client after so many messages, and that of each recovery, but for the last one."""
    here = world(agent, ann, Editor("bob", 1))
    ann.left = counts[0] if counts else None
    here.talk(together=together)
    for count in counts[1:]:
        here.restart(count)
    here.restart()
    assert not ann.shim.recovering
    return ann


METHODS = [(1, "session/load"), (1, "session/resume"), (2, "session/resume")]


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
@pytest.mark.parametrize("agent", [1, 2], ids=["agent 1", "agent 2"])
@pytest.mark.parametrize(("version", "method"), METHODS)
@pytest.mark.parametrize("world", [OneLife, World], ids=["cut", "restarted"])
def test_an_update_and_an_end_come_once_wherever_a_plain_client_is_cut(
    world: type[World], version: int, method: str, agent: int, *, together: bool
) -> None:
    whole = cut(world, agent, Plain(version, method), together=together)
    assert len(whole.shown()) > 10
    # The state of an agent of version 2 has a place of its own, before that of the end.
    assert len(whole.shim.ends) == (6 if version == agent == 2 else 3)
    for count in some(range(whole.joined, whole.arrived), 5):
        ann = cut(world, agent, Plain(version, method), count, together=together)
        assert (ann.shown(), ann.states()) == (whole.shown(), whole.states()), f"cut after {count} messages"
        if world is OneLife:
            # The archive of these worlds has no ends.
            assert ann.shim.ends == whole.shim.ends, f"cut after {count} messages"


@pytest.mark.parametrize("agent", [1, 2], ids=["agent 1", "agent 2"])
@pytest.mark.parametrize(("version", "method"), METHODS)
def test_the_replay_from_a_cursor_may_be_cut_too(version: int, method: str, agent: int) -> None:
    whole = cut(OneLife, agent, Plain(version, method), together=True)
    for count in range(whole.joined, whole.arrived, 11):
        once = cut(OneLife, agent, Plain(version, method), count, together=True)
        for other in some(range(once.arrived - count), 7):
            ann = cut(OneLife, agent, Plain(version, method), count, other, together=True)
            assert (ann.shown(), ann.shim.ends) == (whole.shown(), whole.shim.ends), f"cut after {count} and {other}"


def test_a_turn_that_was_cut_off_with_the_gateway_ends_once() -> None:
    ann, bob = Plain(1, "session/load"), Editor("bob", 1)
    world = World(1, ann, bob)
    for editor in (bob, ann):
        world.connect(editor)
    world.ask(bob, "session/new", cwd="/srv", mcpServers=[])
    world.ask(ann, "session/load", sessionId="s", cwd="/srv", mcpServers=[])
    world.ask(bob, "session/prompt", sessionId="s", prompt=[text("go")])
    world.agent_says(update("agent_message_chunk", content=text("half")))
    world.restart()
    assert list(ann.shim.ends.values()) == [None]


# One exchange after the other.


def dials(scene: Scene, name: str = "ann", identity: str = "me", **more: Any) -> Peer:
    return scene.join(name, identity, clientCapabilities=ASKS, **more)


def takes_up(peer: Peer, cursor: str, method: str = "session/load", session_id: str = "s") -> list[Any]:
    peer.request(method, sessionId=session_id, cwd="/srv", mcpServers=[], _meta=replay_from(cursor))
    return peer.heard()


def words(messages: list[Any]) -> list[str]:
    told = [it["params"]["update"] for it in messages if it.get("method") == "session/update"]
    return [update["content"]["text"] for update in told if "content" in update]


def result_of(messages: list[Any]) -> Any:
    (result,) = [it["result"] for it in messages if "result" in it]
    return result["_meta"]["acp-gateway"]


@pytest.fixture
def scene() -> Scene:
    return Scene(agentCapabilities=LOADS)


@pytest.fixture
def ann(scene: Scene) -> Peer:
    ann = dials(scene)
    ann.request("session/new", cwd="/srv", mcpServers=[])
    scene.agent.answers("session/new", sessionId="s")
    assert result_of(ann.heard()) == {
        "status": {"state": "idle", "questions": 0, "queue": 0},
        "cursorId": f"0.0@{scene.place()[0]}",
    }
    return ann


def test_what_a_client_gets_has_cursors_only_if_it_asks(scene: Scene, ann: Peer) -> None:
    bob = scene.join("bob")
    bob.load()
    ann.heard()
    scene.agent.update("one")
    assert own(bob.hears()) == {}
    assert own(ann.hears()) == {"cursorId": f"1.0@{scene.place()[0]}"}
    asked = dials(scene, "eve", initialize=False)
    asked.request("initialize", protocolVersion=1, clientCapabilities=ASKS)
    offered = asked.hears()["result"]["agentCapabilities"]
    assert offered["_meta"]["acp-gateway"]["cursors"] is True
    assert offered["sessionCapabilities"]["status"] == {}


def test_the_answer_of_a_prompt_whose_connection_was_lost_is_told_with_its_place(scene: Scene, ann: Peer) -> None:
    ann.prompt()
    asked = scene.agent.takes("session/prompt")
    scene.agent.update("half")
    cursor = own(ann.heard()[-1])["cursorId"]
    ann.gone()
    back = dials(scene)
    messages = takes_up(back, cursor)
    told = result_of(messages)
    assert (words(messages), told["status"]["state"]) == ([], "running")
    assert told.keys() == {"replayed", "status", "cursorId"}
    scene.agent.update("rest")
    scene.agent.answer(asked, stopReason="max_tokens")
    update, end = back.heard()
    assert words([update]) == ["rest"]
    assert (end["params"]["event"], end["params"]["stopReason"]) == ("turn_ended", "max_tokens")
    behind_update, behind_end = own(update)["cursorId"], own(end)["cursorId"]
    for last, ends in ((cursor, ["max_tokens"]), (behind_update, ["max_tokens"]), (behind_end, [])):
        late = takes_up(dials(scene, "late"), last)
        told = [it["params"] for it in late if it.get("method") == NEWS]
        assert [it["stopReason"] for it in told] == ends
        assert all(it["past"] for it in told)
        assert result_of(late)["status"]["state"] == "idle"


def test_an_answer_has_the_cursor_behind_its_turn(scene: Scene, ann: Peer) -> None:
    ann.prompt()
    scene.agent.answers("session/prompt", stopReason="end_turn")
    answer = next(it for it in ann.heard() if "result" in it)
    late = takes_up(dials(scene, "late"), own(answer)["cursorId"])
    assert [it for it in late if "method" in it] == []


def test_a_resume_without_a_replay_has_the_cursor_behind_all(scene: Scene, ann: Peer) -> None:
    ann.prompt()
    scene.agent.answers("session/prompt", stopReason="end_turn")
    late = dials(scene, "late")
    late.request("session/resume", sessionId="s", cwd="/srv", mcpServers=[])
    cursor = result_of(late.heard())["cursorId"]
    assert cursor == f"1.1@{scene.place()[0]}"
    scene.join("bob").load()
    assert own(late.hears()) == {"cursorId": cursor}
    late.request("session/close", sessionId="s")
    late.heard()
    assert late.client.cursors is not None
    assert late.client.cursors.at("s") is None


@pytest.mark.parametrize("version", [1, 2])
def test_a_whole_history_is_the_same_with_and_without_cursors(version: int) -> None:
    scene = Scene(agentCapabilities=LOADS)
    first = scene.join("first")
    first.new_session(modes=MODES)
    for message in OLD_TURN:
        scene.agent.say(message)

    def history(peer: Peer) -> list[Any]:
        messages = peer.resume(replay=True) if isinstance(peer, NewPeer) else peer.load()
        found = [it["params"] for it in messages if it.get("method") == "session/update"]
        assert all(("_meta" in it) is (peer.client.cursors is not None) for it in found)
        return [it["update"] for it in found]

    with_cursors = dials_new(scene) if version == 2 else dials(scene)
    without = join_new(scene, "other") if version == 2 else scene.join("other")
    expected = history(without)
    assert len(expected) > 10
    assert history(with_cursors) == expected


def test_a_sub_agents_update_has_the_cursor_of_the_session_whose_history_has_it(scene: Scene, ann: Peer) -> None:
    scene.agent.state("subagent_update", sessionId="child", state={"state": "running"})
    scene.agent.update("from below", "child")
    *_, update = ann.heard()
    assert own(update)["sessionId"] == "s"
    scene.agent.update("above")
    late = takes_up(dials(scene, "late"), own(update)["cursorId"])
    assert words(late) == words(ann.heard()) == ["above"]
    whole = [it for it in dials(scene, "all").load() if it.get("method") == "session/update"]
    assert [own(it)["cursorId"] for it in whole] == [f"{number}.0@{scene.place()[0]}" for number in (1, 2, 3)]


@pytest.mark.parametrize("method", ["session/load", "session/resume"])
def test_a_cursor_that_proves_nothing_is_refused_before_anything_is_sent(scene: Scene, ann: Peer, method: str) -> None:
    scene.agent.update("one")
    cursor = own(ann.heard()[-1])["cursorId"]
    ann.new_session("t")
    epoch, other = scene.place()[0], scene.place("t")[0]
    for named in ("", "x", "1.0@", f"2.0@{epoch}", f"1.0@{other}", "1" * 20 + f".0@{epoch}", f"1@{epoch}"):
        (refused,) = takes_up(ann, named, method)
        assert (refused["error"]["code"], refused["error"]["data"]) == (-32602, {"reason": "unknown_cursor"}), named
    (refused,) = takes_up(ann, cursor, method, "t")
    assert "not a cursor of session t" in refused["error"]["message"]
    bob = scene.join("bob")
    (refused,) = takes_up(bob, cursor, method)
    assert "in initialize" in refused["error"]["message"]
    bob.request(method, sessionId="s", cwd="/srv", _meta={"acp-gateway": {"replayFrom": {"type": "start"}}})
    assert "error" in bob.hears()


def test_a_cursor_before_what_is_held_gets_a_gap_and_says_so() -> None:
    scene = Scene(make_policy(journal_limit=1000))
    ann = dials(scene)
    ann.new_session()
    scene.agent.update("first")
    cursor = own(ann.heard()[-1])["cursorId"]
    for number in range(20):
        ann.prompt(f"{number}")
        scene.agent.answers("session/prompt", stopReason="end_turn")
    messages = takes_up(dials(scene, "late"), cursor)
    assert result_of(messages)["replayed"] == "part"
    assert PART_MISSING in words(messages)[0]
    assert words(messages)[-1] == "19"
    last = own([it for it in messages if own(it)][-1])["cursorId"]
    assert words(takes_up(dials(scene, "later"), last)) == []


@pytest.mark.parametrize(("position", "ends", "told"), [(1, 0, 1), (1, 1, 0), (3, 0, 0)])
def test_a_client_that_has_seen_more_than_was_stored_is_told_no_end_again(
    scene: Scene, ann: Peer, position: int, ends: int, told: int
) -> None:
    ann.prompt()
    scene.agent.answers("session/prompt", stopReason="end_turn")
    epoch = scene.place()[0]
    scene.session().journal.rename("after a kill")
    late = takes_up(dials(scene, "late"), f"{position}.{ends}@{epoch}")
    assert len([it for it in late if it.get("method") == NEWS]) == told


def test_a_cursor_of_an_earlier_gateway_begins_the_replay_of_a_session_that_is_opened_again() -> None:
    shelf = Shelf()
    scene = Scene(registry=Registry("me", shelf), agentCapabilities=LOADS)
    ann = dials(scene)
    ann.new_session()
    for said in ("one", "two"):
        scene.agent.update(said)
    first, second = (own(it)["cursorId"] for it in ann.heard())
    ann.request("session/close", sessionId="s")
    scene.agent.answers("session/close")
    late = dials(scene, "late")
    assert takes_up(late, first, "session/resume") == []
    scene.load_journal(shelf.read(scene.wanted[0]))
    assert "replayFrom" not in json.dumps(scene.agent.answers("session/load"))
    messages = late.heard()
    assert (words(messages), result_of(messages)["replayed"]) == (["two"], "missed")
    assert words(takes_up(dials(scene, "later"), second)) == []
    late.heard()
    late.request("session/load", sessionId="unknown", cwd="/srv", mcpServers=[], _meta=replay_from(first))
    assert late.hears()["error"]["data"] == {"reason": "unknown_cursor"}


@pytest.mark.parametrize("joins", [{"role": Role.OBSERVER}, {"only": "s", "guest": True}])
def test_observers_and_guests_take_up_what_they_may_see(scene: Scene, ann: Peer, joins: dict[str, Any]) -> None:
    scene.agent.update("one")
    cursor = own(ann.heard()[-1])["cursorId"]
    scene.agent.update("two")
    eve = dials(scene, "eve", **joins)
    assert words(takes_up(eve, cursor)) == ["two"]
    scene.agent.update("three")
    assert own(eve.hears())["cursorId"] == own(ann.heard()[-1])["cursorId"]
    stranger = dials(scene, "stranger", "other", **joins | ({"only": "t"} if "only" in joins else {}))
    assert "error" in takes_up(stranger, cursor)[0]


def test_a_client_of_version_2_is_told_the_state_in_the_words_of_its_version() -> None:
    scene = Scene(agentCapabilities=LOADS)
    old = scene.join("old")
    old.new_session()
    new = dials_new(scene)
    new.resume(replay=True)
    old.prompt()
    asked = scene.agent.takes("session/prompt")
    told = [it["params"]["update"] for it in new.heard() if it.get("method") == "session/update"]
    assert "running" in [update.get("state") for update in told]
    new.request("session/status", sessionId="s")
    assert new.hears()["result"]["state"] == {"state": "running"}
    scene.agent.answer(asked, stopReason="end_turn")
    told = [it["params"]["update"] for it in new.heard() if it.get("method") == "session/update"]
    assert [update["state"] for update in told] == ["idle"]
    # While it comes back, its place is not known.
    assert [own(it) for it in new.resume(replay=False) if it.get("method") == "session/update"] == [{}]


def dials_new(scene: Scene) -> NewPeer:
    old = scene.join("new", initialize=False)
    peer = NewPeer(scene, old.client)
    scene.peers[old.client] = peer
    peer.request("initialize", protocolVersion=2, info={"name": "new", "version": "1"}, capabilities=ASKS)
    offered = peer.hears()["result"]["capabilities"]
    assert (offered["session"]["status"], offered["_meta"]["acp-gateway"]["cursors"]) == ({}, True)
    return peer


def test_between_a_client_and_an_agent_of_version_2_nothing_else_changes() -> None:
    scene, (ann,) = opened("ann")
    peer = scene.join("plain", initialize=False)
    peer.request("initialize", protocolVersion=2, info={"name": "p", "version": "1"}, capabilities=ASKS)
    peer.heard()
    peer.request("session/resume", sessionId="s", cwd="/srv", replayFrom={"type": "start"})
    peer.heard()
    scene.agent.state("agent_message_chunk", messageId="m", content=text("x"))
    (plain,) = peer.heard()
    assert own(plain)["cursorId"]
    del plain["params"]["_meta"]
    assert plain == ann.hears()
