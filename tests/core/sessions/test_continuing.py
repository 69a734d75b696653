"""Histories that continue after a gateway was killed or stopped: which have a gap then, and for which clients."""

from typing import Any

import pytest

from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Session
from acp_gateway.core.turns.journal import Journal
from acp_gateway.protocol.gaps import MAY_BE_MISSING
from tests.core.sessions.opened import close, texts
from tests.kit.scene import Peer, Place, Scene, Shelf, make_policy

LOADS: dict[str, Any] = {"loadSession": True, "sessionCapabilities": {"close": {}}}


class Gateways:
    """One process of a gateway after the other, each with the archive as it was written last."""

    def __init__(self) -> None:
        self._runs = 0
        # The sessions as they were written last: with the journal, and whether they are open.
        self._written: list[tuple[Session, Journal, bool]] = []
        self.start()

    def start(self, **policy: Any) -> Scene:
        """Begin another process; all that was not written is lost."""
        self._runs += 1
        self.shelf = Shelf()
        registry = Registry("me", self.shelf, f"run{self._runs}")
        for former, journal, is_open in self._written:
            session = Session(former.agent, former.id, former.owner, Journal(1_000_000))
            session.cwd, session.agent_id = former.cwd, former.agent_id
            session.may_lack_end = is_open
            self.shelf.journals[session] = journal
            self.shelf.open |= {session} if is_open else set()
            registry.restore(session)
        self.scene = Scene(make_policy(**policy), registry, agentCapabilities=LOADS)
        return self.scene

    def write(self) -> None:
        """Write all that the archive has."""
        self._written = []
        for session in self.shelf.journals:
            journal = self.shelf.read(session)
            assert journal is not None
            self._written.append((session, journal, session in self.shelf.open))

    def stop(self, cut_to: int | None = None) -> None:
        """End the process as a signal does, and begin another one; its journals lose what exceeds a size."""
        self.scene.multiplexer.shut_down()
        self.write()
        for _, journal, _ in self._written:
            journal.shrink(journal.size if cut_to is None else cut_to)
        self.start()

    def load_journal(self) -> None:
        """Read the journal that is asked for, after what was to be written."""
        self.write()
        self.scene.load_journal(self.shelf.read(self.scene.wanted[0]))

    def returns(self, name: str, place: Place, method: str = "session/load", *replay: str) -> Peer:
        """A client that has seen the session up to a place, and the agent's answer with a replay, if it is asked."""
        peer = self.scene.join(name, link=f"{name}{self._runs}")
        peer.comes_back(method=method, epoch=place[0], position=place[1])
        if self.scene.wanted:
            self.load_journal()
            asked = self.scene.agent.takes("session/load")
            for text in replay:
                self.scene.agent.update(text)
            self.scene.agent.answer(asked)
        return peer


def load(peer: Peer) -> int:
    return peer.request("session/load", sessionId="s", cwd="/srv", mcpServers=[])


@pytest.fixture
def gateways() -> Gateways:
    return Gateways()


@pytest.fixture
def place(gateways: Gateways) -> Place:
    """A place in a session whose end is not written: after "one" of two messages."""
    ann = gateways.scene.join("ann", link="ann")
    ann.new_session()
    gateways.scene.agent.update("one")
    gateways.write()
    seen = ann.seen["s"]
    gateways.scene.agent.update("two")
    return seen


USER, CHUNK, COMMANDS = "user_message_chunk", "agent_message_chunk", "available_commands_update"


@pytest.mark.parametrize(
    ("replay", "heard"),
    [
        ([], [MAY_BE_MISSING]),
        ([COMMANDS], [COMMANDS, MAY_BE_MISSING]),
        ([CHUNK], [CHUNK, MAY_BE_MISSING]),
        ([USER, CHUNK], [USER, CHUNK]),
        ([USER, CHUNK, COMMANDS], [USER, CHUNK, COMMANDS]),
    ],
)
def test_what_an_agent_replays_after_an_empty_history_of_a_killed_gateway_comes_once(
    gateways: Gateways, replay: list[str], heard: list[str]
) -> None:
    gateways.scene.join("ann").new_session()
    gateways.write()
    agent, ann = gateways.start().agent, gateways.scene.join("ann, again")
    load(ann)
    gateways.load_journal()
    asked = agent.takes("session/load")
    for kind in replay:
        more: Any = {"availableCommands": []} if kind == COMMANDS else {"content": {"type": "text", "text": kind}}
        agent.state(kind, **more)
    agent.answer(asked)

    def told(peer: Peer) -> list[str]:
        updates = [message["params"]["update"] for message in peer.heard() if "method" in message]
        return [update.get("content", {}).get("text", update["sessionUpdate"]) for update in updates]

    assert told(ann) == heard
    late = gateways.scene.join("late")
    load(late)
    assert told(late) == heard


@pytest.mark.parametrize("method", ["session/load", "session/resume"])
def test_a_journal_of_a_killed_gateway_continues_with_a_gap_for_each_client_once(
    gateways: Gateways, place: Place, method: str
) -> None:
    scene = gateways.start()
    ann = gateways.returns("ann", place, method, "one", "two")
    bob = gateways.returns("bob", (place[0], place[1] - 1))
    ahead = gateways.returns("eve", (place[0], place[1] + 1))
    scene.agent.update("three")
    assert texts(ann.heard()) == [MAY_BE_MISSING, "three"]
    assert texts(bob.heard()) == ["one", MAY_BE_MISSING, "three"]
    assert texts(ahead.heard()) == [MAY_BE_MISSING, "three"]
    assert texts(scene.join("late").load()) == ["one", MAY_BE_MISSING, "three"]
    assert texts(gateways.returns("ann, again", ann.seen["s"]).heard()) == []
    stored = gateways.shelf.read(scene.session())
    assert stored is not None
    assert (stored.replay(), stored.former) == (scene.session().journal.replay(), scene.session().journal.former)


def test_a_client_that_proves_no_position_gets_the_gap_with_the_history(gateways: Gateways, place: Place) -> None:
    assert place
    gateways.start()
    assert texts(gateways.returns("ann", ("unknown", 1)).heard()) == ["one", MAY_BE_MISSING]


def test_no_gap_is_told_after_a_gateway_was_stopped(gateways: Gateways, place: Place) -> None:
    gateways.stop()
    assert texts(gateways.returns("ann", place).heard()) == ["two"]


def test_no_gap_is_told_in_a_session_that_had_ended_when_the_gateway_was_killed(
    gateways: Gateways, place: Place
) -> None:
    (ann,) = gateways.scene.peers.values()
    close(gateways.scene, ann)
    gateways.write()
    gateways.start()
    assert texts(gateways.returns("ann", place).heard()) == ["two"]


def test_the_gap_is_told_however_late_the_session_is_opened_again(gateways: Gateways, place: Place) -> None:
    gateways.start()
    gateways.stop()
    gateways.start()
    assert texts(gateways.returns("ann", place).heard()) == [MAY_BE_MISSING]
    gateways.stop()
    assert texts(gateways.returns("ann", place).heard()) == [MAY_BE_MISSING]


def test_each_killed_gateway_that_had_the_session_open_leaves_a_gap(gateways: Gateways, place: Place) -> None:
    for _ in range(2):
        gateways.start()
        gateways.returns("ann", place)
        gateways.write()
    gateways.start()
    assert texts(gateways.returns("ann", place).heard()) == [MAY_BE_MISSING] * 3


def test_an_opening_that_the_agent_refuses_leaves_one_gap(gateways: Gateways, place: Place) -> None:
    scene = gateways.start()
    ann = scene.join("ann", link="ann2")
    ann.comes_back(epoch=place[0], position=place[1])
    gateways.load_journal()
    scene.agent.refuses("session/load")
    scene.agent.refuses("session/new")
    assert "error" in ann.hears()
    assert texts(gateways.returns("bob", place).heard()) == [MAY_BE_MISSING]


def test_an_opening_that_is_refused_to_a_stock_client_keeps_the_gap_for_later_clients(
    gateways: Gateways, place: Place
) -> None:
    scene = gateways.start()
    stock = scene.join("stock")
    load(stock)
    gateways.load_journal()
    scene.agent.refuses("session/load")
    scene.agent.refuses("session/new")
    assert "error" in stock.hears()
    gateways.stop()
    assert texts(gateways.returns("ann", place).heard()) == [MAY_BE_MISSING]


def test_a_stock_client_that_opens_a_session_takes_nothing_from_those_that_know_their_place(
    gateways: Gateways, place: Place
) -> None:
    gateways.start()
    stock = gateways.scene.join("stock")
    load(stock)
    gateways.load_journal()
    gateways.scene.agent.answers("session/load")
    assert texts(stock.heard()) == ["one", MAY_BE_MISSING]
    gateways.scene.agent.update("three")
    assert texts(gateways.returns("ann", place).heard()) == [MAY_BE_MISSING, "three"]


# The archive has the session as open before an agent can say anything in it.


def ended(gateways: Gateways, **policy: Any) -> tuple[Scene, Session]:
    """A session that a stopped gateway had, in another one."""
    gateways.stop()
    scene = gateways.start(**policy)  # With this policy.
    (session,) = scene.registry
    assert not gateways.shelf.open
    return scene, session


@pytest.mark.parametrize("opening", ["session/load", "session/resume", "session/new", "returning"])
def test_a_session_is_stored_as_open_before_the_agent_opens_it(gateways: Gateways, place: Place, opening: str) -> None:
    scene, session = ended(gateways)
    ann = scene.join("ann", only="s" if opening == "session/new" else None, link="ann2")
    if opening == "returning":
        ann.comes_back(epoch=place[0], position=place[1])
    else:
        ann.request(opening, sessionId="s", cwd="/srv", mcpServers=[])
    assert scene.agent.heard() == []
    assert gateways.shelf.open == {session}
    gateways.load_journal()
    scene.agent.answers("session/load")
    assert any("result" in message for message in ann.heard())
    assert gateways.shelf.open == {session}
    gateways.start()
    assert MAY_BE_MISSING in texts(gateways.returns("bob", place, "session/resume").heard())


@pytest.mark.usefixtures("place")
def test_a_session_that_is_not_opened_after_all_is_not_stored_as_open(gateways: Gateways) -> None:
    scene, session = ended(gateways, max_sessions=1)
    ann = scene.join("ann")
    own = load(ann)
    ann.request("session/new", cwd="/srv", mcpServers=[])
    scene.agent.answers("session/new", sessionId="other")
    gateways.load_journal()
    assert any(message.get("id") == own and "error" in message for message in ann.heard())
    assert session not in gateways.shelf.open


@pytest.mark.usefixtures("place")
def test_a_session_whose_client_leaves_before_the_journal_is_read_is_not_stored_as_open(gateways: Gateways) -> None:
    scene, _ = ended(gateways)
    ann = scene.join("ann")
    load(ann)
    ann.gone()
    gateways.load_journal()
    assert gateways.shelf.open == set()


@pytest.mark.usefixtures("place")
def test_a_session_whose_agent_ends_before_the_journal_is_read_is_not_stored_as_open(gateways: Gateways) -> None:
    scene, session = ended(gateways)
    ann = scene.join("ann")
    load(ann)
    scene.lose_agent()
    assert gateways.shelf.open == set()
    scene.load_journal(gateways.shelf.read(session))
    assert (gateways.shelf.open, session.journal_loaded) == (set(), False)
    load(ann)
    scene.agent.answers("initialize", **scene.welcome)
    assert gateways.shelf.open == {session}


@pytest.mark.usefixtures("place")
def test_a_session_stays_stored_as_open_while_a_second_agent_waits_to_open_it(gateways: Gateways) -> None:
    scene, session = ended(gateways)
    other = Scene(registry=scene.registry, agentCapabilities=LOADS)
    ann, bob = scene.join("ann"), other.join("bob")
    load(ann)
    load(bob)
    ann.gone()
    gateways.load_journal()
    assert gateways.shelf.open == {session}
    bob.gone()
    other.load_journal(None)
    assert gateways.shelf.open == set()


@pytest.mark.usefixtures("place")
def test_a_session_that_is_forgotten_before_its_journal_is_read_stays_forgotten(gateways: Gateways) -> None:
    scene, session = ended(gateways)
    ann = scene.join("ann")
    load(ann)
    scene.registry.remove(session)
    ann.gone()
    scene.load_journal(None)
    assert (gateways.shelf.open, gateways.shelf.shown) == (set(), {})
