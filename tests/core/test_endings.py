"""A table of what a request of a client can wait for, and of the events that must end the wait: none lasts for ever."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pytest

from acp_gateway.core.permissions.consent import REFUSE, SEND
from acp_gateway.core.requests import DirectoryCheckResult, Problem
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Role
from acp_gateway.core.waiting import Until
from acp_gateway.protocol import jsonrpc
from tests.core.permissions.test_consent import Limits
from tests.kit.scene import Peer, Scene, Shelf, make_policy, opened_scene

LOADS: Final[dict[str, Any]] = {"loadSession": True, "sessionCapabilities": {"close": {}}}
OPEN: Final[dict[str, Any]] = {"sessionId": "s", "cwd": "/srv", "mcpServers": []}


@dataclass
class Wait:
    """A request that waits."""

    scene: Scene
    peer: Peer
    id: int
    other: Peer
    """Another client, whose acts the request waits for."""
    other_scene: Scene | None = None
    """Another process, which has the session."""

    def __post_init__(self) -> None:
        self.request = self.peer.client.requests[jsonrpc.id_key(jsonrpc.RawId(b"%d" % self.id))]

    def waits_for(self) -> Until | None:
        """Return the kind of event that the request waits for."""
        waiting = self.scene.multiplexer._agent.waiting
        return next((until for until in Until if self.request in waiting.of_kind(until)), None)

    def answers(self) -> list[Any]:
        """Take the messages of the client; return the responses to the request."""
        return [message for message in self.peer.heard() if message.get("id") == self.id]


def make_scene(**how: Any) -> tuple[Scene, Peer]:
    """A scene with a client, which has opened a session."""
    scene, ann = opened_scene(registry=Registry("me", **how), agentCapabilities=LOADS)
    return scene, ann


def close(scene: Scene, peer: Peer) -> None:
    peer.request("session/close", sessionId="s")
    scene.agent.answers("session/close")
    peer.heard()


def for_initialize() -> Wait:
    scene = Scene(agentCapabilities=LOADS)
    other, peer = (scene.join(name, initialize=False) for name in ("other", "peer"))
    other.request("initialize", protocolVersion=1)
    return Wait(scene, peer, peer.request("initialize", protocolVersion=1), other)


def for_the_agent() -> Wait:
    wait = for_initialize()
    return Wait(wait.scene, wait.peer, wait.peer.request("session/list"), wait.other)


def for_a_free_session() -> Wait:
    registry = Registry("me")
    here, there = (Scene(make_policy(shared=False), registry, agentCapabilities=LOADS) for _ in range(2))
    other = there.join("other")
    other.new_session()
    other.away()
    peer = here.join("peer")
    return Wait(here, peer, peer.request("session/load", **OPEN), other, there)


def for_an_open_session() -> Wait:
    scene, other = make_scene()
    close(scene, other)
    other.request("session/load", **OPEN)
    peer = scene.join("peer")
    return Wait(scene, peer, peer.request("session/load", **OPEN), other)


def for_a_reopened_session() -> Wait:
    scene, other = make_scene()
    close(scene, other)
    peer = scene.join("peer", role=Role.OBSERVER)
    return Wait(scene, peer, peer.comes_back(epoch="e", position=0), other)


def for_a_journal() -> Wait:
    scene, other = make_scene(archive=Shelf(), run="run")
    close(scene, other)
    peer = scene.join("peer")
    return Wait(scene, peer, peer.request("session/load", **OPEN), other)


def for_a_directory_check() -> Wait:
    scene, other = make_scene()
    scene.look = None
    peer = scene.join("peer")
    return Wait(scene, peer, peer.request("session/new", cwd="/srv", mcpServers=[]), other)


def for_a_turn() -> Wait:
    scene, other = make_scene()
    peer = scene.join_session("peer")
    other.prompt("a")
    return Wait(scene, peer, peer.prompt("b"), other)


def for_consent() -> Wait:
    scene, other = opened_scene(make_policy(spending=Limits()), Registry("me"), agentCapabilities=LOADS)
    peer = scene.join_session("peer")
    return Wait(scene, peer, peer.prompt("b"), other)


WAITS: Final[dict[Until, Callable[[], Wait]]] = {
    Until.INITIALIZED: for_initialize,
    Until.AGENT_READY: for_the_agent,
    Until.SESSIONS_FREED: for_a_free_session,
    Until.SESSION_OPEN: for_an_open_session,
    Until.SESSION_REOPENED: for_a_reopened_session,
    Until.JOURNAL_LOADED: for_a_journal,
    Until.DIRECTORIES_CHECKED: for_a_directory_check,
    Until.TURN_FREE: for_a_turn,
    Until.CONSENT: for_consent,
}


# What ends each wait


def lose_agent(wait: Wait) -> None:
    wait.scene.lose_agent()


def dismiss(wait: Wait) -> None:
    wait.peer.dismissed()


def cancel(wait: Wait) -> None:
    wait.peer.send(method="$/cancel_request", params={"requestId": wait.id})


# What ends one of them


def initialized(wait: Wait) -> None:
    wait.scene.agent.answers("initialize", **wait.scene.welcome)


def initialize_refused(wait: Wait) -> None:
    wait.scene.agent.refuses("initialize")


def initialize_unreadable(wait: Wait) -> None:
    wait.scene.agent.say(b'{"jsonrpc":"2.0","id":1,"result":{]}')


def initializing_client_left(wait: Wait) -> None:
    wait.other.gone()
    initialized(wait)


def other_process_ended(wait: Wait) -> None:
    assert wait.other_scene is not None
    wait.other_scene.retire()
    wait.scene.sessions_freed()


def other_process_is_used_again(wait: Wait) -> None:
    wait.other.back()
    wait.scene.sessions_freed()


def loaded(wait: Wait) -> None:
    wait.scene.agent.answers("session/load")


def load_refused(wait: Wait) -> None:
    wait.scene.agent.refuses("session/load")


def loading_client_left(wait: Wait) -> None:
    wait.other.gone()
    loaded(wait)


def reopened(wait: Wait) -> None:
    wait.other.request("session/load", **OPEN)
    loaded(wait)


def reopening_refused(wait: Wait) -> None:
    wait.other.request("session/load", **OPEN)
    load_refused(wait)


def reopened_by_session_new(wait: Wait) -> None:
    wait.other.new_session()


def deleted(wait: Wait) -> None:
    wait.other.request("session/delete", sessionId="s")
    wait.scene.agent.answers("session/delete")


def forgotten(wait: Wait) -> None:
    (session,) = wait.scene.registry.by_id("s")
    wait.scene.registry.remove(session)
    wait.scene.end_vain_waits()


def agent_forgets(wait: Wait) -> None:
    wait.scene.stop_agent()
    wait.other.request("session/list")
    wait.scene.agent.answers("initialize", protocolVersion=1, agentCapabilities={})


def next_initialize_refused(wait: Wait) -> None:
    wait.scene.stop_agent()
    wait.other.request("session/list")
    initialize_refused(wait)


def journal_read(wait: Wait) -> None:
    shelf = wait.scene.registry._archive
    assert isinstance(shelf, Shelf)
    wait.scene.load_journal(shelf.read(wait.scene.wanted[0]))


def journal_unreadable(wait: Wait) -> None:
    wait.scene.load_journal(None)


def forgotten_before_it_is_read(wait: Wait) -> None:
    forgotten(wait)
    journal_unreadable(wait)


def directories_pass(wait: Wait) -> None:
    wait.scene.directory_check(DirectoryCheckResult())


def directories_do_not_pass(wait: Wait) -> None:
    wait.scene.directory_check(DirectoryCheckResult(Problem("no", {})))


def turn_ended(wait: Wait) -> None:
    wait.scene.agent.answers("session/prompt", stopReason="end_turn")


def turn_failed(wait: Wait) -> None:
    wait.scene.agent.refuses("session/prompt")


def client_of_the_turn_left(wait: Wait) -> None:
    wait.other.gone()
    turn_ended(wait)


def turns_cancelled(wait: Wait) -> None:
    wait.other.cancel()


def detached_and_cancelled(wait: Wait) -> None:
    wait.peer.request("session/close", sessionId="s")
    turns_cancelled(wait)


def session_deleted(wait: Wait) -> None:
    wait.scene.agent.heard()
    deleted(wait)


def sent(wait: Wait) -> None:
    wait.other.choose(wait.other.hears(), SEND)


def not_sent(wait: Wait) -> None:
    wait.other.choose(wait.other.hears(), REFUSE)


ANY: Final = (lose_agent, dismiss, cancel)

ENDINGS: Final[dict[Until, tuple[Callable[[Wait], None], ...]]] = {
    # A cancelled `initialize` would leave the client without an answer that its next requests follow.
    Until.INITIALIZED: (
        lose_agent,
        dismiss,
        initialized,
        initialize_refused,
        initialize_unreadable,
        initializing_client_left,
    ),
    Until.AGENT_READY: (*ANY, initialized, initialize_refused, initialize_unreadable, initializing_client_left),
    Until.SESSIONS_FREED: (*ANY, other_process_ended, other_process_is_used_again),
    Until.SESSION_OPEN: (*ANY, loaded, load_refused, loading_client_left),
    Until.SESSION_REOPENED: (
        *ANY,
        reopened,
        reopened_by_session_new,
        reopening_refused,
        deleted,
        forgotten,
        agent_forgets,
        next_initialize_refused,
    ),
    Until.JOURNAL_LOADED: (*ANY, journal_read, journal_unreadable, forgotten_before_it_is_read),
    Until.DIRECTORIES_CHECKED: (*ANY, directories_pass, directories_do_not_pass),
    Until.TURN_FREE: (
        *ANY,
        turn_ended,
        turn_failed,
        client_of_the_turn_left,
        turns_cancelled,
        detached_and_cancelled,
        session_deleted,
    ),
    Until.CONSENT: (*ANY, sent, not_sent, turns_cancelled, detached_and_cancelled, session_deleted),
}


def test_each_kind_of_event_is_in_the_table() -> None:
    assert set(WAITS) == set(ENDINGS) == set(Until)


@pytest.mark.parametrize(("until", "end"), [(until, end) for until, ends in ENDINGS.items() for end in ends])
def test_a_wait_ends(until: Until, end: Callable[[Wait], None]) -> None:
    wait = WAITS[until]()
    assert wait.waits_for() is until
    assert wait.answers() == []
    end(wait)
    wait.scene.deliver()
    assert wait.waits_for() is None
    at_agent = wait.request.agent_id is not None
    assert len(wait.answers()) == (not at_agent)


@pytest.mark.parametrize("until", Until)
def test_a_wait_ends_with_its_client(until: Until) -> None:
    wait = WAITS[until]()
    wait.peer.gone()
    assert wait.waits_for() is (until if until in (Until.TURN_FREE, Until.CONSENT) else None)


# Messages of the agent that may be of a session which is about to be named


def named(scene: Scene, asked: Any, _asker: Peer) -> None:
    scene.agent.answer(asked, sessionId="new")


def named_as_a_known_session(scene: Scene, asked: Any, _asker: Peer) -> None:
    scene.agent.answer(asked, sessionId="s")


def named_as_a_session_of_another_identity(scene: Scene, asked: Any, _asker: Peer) -> None:
    scene.agent.answer(asked, sessionId="bobs")


def not_named(scene: Scene, asked: Any, _asker: Peer) -> None:
    scene.agent.answer(asked)


def refused(scene: Scene, asked: Any, _asker: Peer) -> None:
    scene.agent.send(id=asked["id"], error={"code": -32603, "message": "no"})


def unreadable(scene: Scene, asked: Any, _asker: Peer) -> None:
    scene.agent.say(b'{"jsonrpc":"2.0","id":%d,"result":{]}' % asked["id"])


def asker_left(scene: Scene, asked: Any, asker: Peer) -> None:
    asker.gone()
    named(scene, asked, asker)


def asker_was_dismissed(scene: Scene, asked: Any, asker: Peer) -> None:
    asker.dismissed()
    refused(scene, asked, asker)


@pytest.mark.parametrize("method", ["session/new", "session/fork"])
@pytest.mark.parametrize(
    "end",
    [
        named,
        named_as_a_known_session,
        named_as_a_session_of_another_identity,
        not_named,
        refused,
        unreadable,
        asker_left,
        asker_was_dismissed,
    ],
)
def test_a_message_that_may_be_of_a_session_about_to_be_named_is_held_until_that_is_known(
    method: str, end: Callable[[Scene, Any, Peer], None]
) -> None:
    scene, ann = make_scene()
    is_shared = end is named_as_a_session_of_another_identity
    scene.join("bob", "you" if is_shared else "me").new_session("bobs")
    asker = scene.join("asker")
    asker.new_session("source")
    ann.prompt()
    scene.agent.takes("session/prompt")
    about = {"sessionId": "source"} if method == "session/fork" else {}
    asker.request(method, **about, cwd="/srv", mcpServers=[])
    asked = scene.agent.takes(method)
    scene.agent.ask_permission("early", "child")
    scene.agent.update("early", "child")
    assert ann.heard() == []
    end(scene, asked, asker)
    held = {message["method"] for message in ann.heard() if message.get("params", {}).get("sessionId") == "child"}
    # What another identity has opened may be meant as well.
    assert held == (set() if is_shared else {"session/request_permission", "session/update"})
    assert not scene.multiplexer._agent.sub_agents.naming


def test_a_message_that_may_be_of_a_session_about_to_be_named_is_dropped_with_the_agent() -> None:
    scene, ann = make_scene()
    ann.request("session/new", cwd="/srv", mcpServers=[])
    scene.agent.ask_permission("early", "child")
    assert scene.multiplexer.waiting_decisions == 1
    scene.lose_agent()
    assert (scene.multiplexer.waiting_decisions, scene.multiplexer._agent.sub_agents.naming) == (0, {})
