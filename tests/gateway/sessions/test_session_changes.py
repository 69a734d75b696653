"""Subscribers learn which sessions have changed, each once, and nothing of the others."""

import pytest
import trio
import trio.testing

from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Session
from acp_gateway.core.turns.journal import Journal
from acp_gateway.gateway.sessions.session_changes import Changed, SessionChanges
from tests.kit.registered import live, session
from tests.kit.scene import Scene, Shelf

NOTHING = Changed(set(), set(), set())


class Watched:
    """An agent, its clients, and the changes of its sessions."""

    def __init__(self) -> None:
        self.shelf = Shelf()
        self.changes = SessionChanges(self.shelf)
        self.scene = Scene(registry=Registry("me", self.changes, "run"))
        self.editor = self.scene.join("editor")
        self.editor.new_session()
        self.session = self.scene.session()


@pytest.fixture
def watched() -> Watched:
    return Watched()


def prompted(watched: Watched) -> object:
    """A turn has begun; return the request at the agent."""
    watched.editor.prompt()
    return watched.scene.agent.hears()


def test_a_journal_that_grows_is_told_to_its_followers_once(watched: Watched) -> None:
    with watched.changes.subscribe() as follower, watched.changes.subscribe() as other:
        follower.follow(watched.session)
        for text in ("a", "b"):
            watched.scene.agent.update(text)
        assert follower.take() == Changed({watched.session}, set(), set())
        assert follower.take() == other.take() == NOTHING
        watched.scene.agent.state("current_mode_update", currentModeId="plan")
        assert follower.take().journals == {watched.session}
        follower.unfollow(watched.session)
        watched.scene.agent.update("c")
        assert follower.take() == NOTHING


def test_a_journal_that_is_replaced_is_told_to_its_followers(watched: Watched) -> None:
    with watched.changes.subscribe() as follower:
        follower.follow(watched.session)
        watched.session.take_journal(Journal(100, "other"))
        assert follower.take() == Changed({watched.session}, {watched.session}, set())


def test_everything_is_stored_as_without_subscribers(watched: Watched) -> None:
    with watched.changes.subscribe() as follower:
        follower.follow(watched.session)
        asked = prompted(watched)
        watched.scene.agent.update("a")
        watched.scene.agent.answer(asked, stopReason="end_turn")
        assert watched.shelf.journals[watched.session].runs() == watched.session.journal.runs()
        assert watched.changes.holds(watched.session)
        assert watched.changes.loss(watched.session) is None
    watched.session.forget_content()
    assert ("finish_journal", "s") in watched.shelf.told


def test_the_beginning_and_the_end_of_a_turn_are_changes(watched: Watched) -> None:
    with watched.changes.subscribe() as subscription:
        asked = prompted(watched)
        assert subscription.take().sessions == {watched.session}
        watched.editor.prompt()
        assert subscription.take().sessions == {watched.session}
        watched.scene.agent.answer(asked, stopReason="end_turn")
        assert subscription.take().sessions == {watched.session}


def test_a_prompt_that_waits_and_is_taken_back_is_a_change_each_time(watched: Watched) -> None:
    with watched.changes.subscribe() as subscription:
        prompted(watched)
        subscription.take()
        waiting = watched.editor.prompt()
        assert subscription.take().sessions == {watched.session}
        watched.editor.send(method="$/cancel_request", params={"requestId": waiting})
        assert subscription.take().sessions == {watched.session}
        watched.editor.prompt()
        subscription.take()
        watched.editor.cancel()
        assert subscription.take().sessions == {watched.session}


def test_a_request_of_the_agent_is_a_change_when_it_comes_and_when_it_is_decided(watched: Watched) -> None:
    with watched.changes.subscribe() as subscription:
        prompted(watched)
        subscription.take()
        watched.scene.agent.ask_permission()
        assert subscription.take().sessions == {watched.session}
        watched.editor.choose(watched.editor.heard()[-1], "yes")
        assert subscription.take().sessions == {watched.session}


def test_a_client_that_joins_or_leaves_or_is_away_or_back_is_a_change(watched: Watched) -> None:
    other = watched.scene.join("other", link="link")
    with watched.changes.subscribe() as subscription:
        for happens in (other.load, other.away, other.back, other.gone):
            happens()
            assert subscription.take().sessions == {watched.session}


def test_a_title_and_the_end_of_the_agent_are_changes(watched: Watched) -> None:
    with watched.changes.subscribe() as subscription:
        watched.scene.agent.state("session_info_update", title="Fix it")
        assert subscription.take().sessions == {watched.session}
        watched.scene.lose_agent()
        assert subscription.take().sessions == {watched.session}


def test_putting_a_session_away_is_a_change_once(watched: Watched) -> None:
    with watched.changes.subscribe() as subscription:
        watched.scene.registry.set_archived(watched.session, archived=True)
        assert subscription.take().sessions == {watched.session}
        watched.scene.registry.set_archived(watched.session, archived=True)
        assert subscription.take() == NOTHING


def test_a_removed_session_is_told_as_removed_alone(watched: Watched) -> None:
    with watched.changes.subscribe() as subscription:
        subscription.follow(watched.session)
        watched.scene.agent.update("a")
        watched.scene.registry.remove(watched.session)
        assert subscription.take() == Changed(set(), set(), {watched.session})


def test_a_subscriber_learns_only_of_sessions_that_it_may_see() -> None:
    registry = Registry("me", changes := SessionChanges(Shelf()))

    def mine(it: Session) -> bool:
        return it.owner == "me"

    with changes.subscribe(mine) as subscription:
        own, other = live(registry, "s", "me"), live(registry, "t", "you")
        assert subscription.take().sessions == {own}
        for it in (own, other):
            registry.remove(it)
        assert subscription.take().removed == {own}


def test_a_notice_comes_while_a_session_is_being_changed_if_it_may_be_seen(watched: Watched) -> None:
    noticed: list[list[str]] = []

    def notice(changed: Session) -> None:
        noticed.append([request.method for request in watched.scene.multiplexer.waiting(changed)])

    with watched.changes.subscribe(notice=notice), watched.changes.subscribe(lambda _: False, notice=notice):
        prompted(watched)
        noticed.clear()
        watched.scene.agent.ask_permission()
    assert noticed[0] == ["session/request_permission"]


def test_a_subscription_that_is_over_is_told_nothing(watched: Watched) -> None:
    with watched.changes.subscribe() as subscription:
        subscription.follow(watched.session)
    watched.scene.agent.update("a")
    watched.scene.registry.remove(watched.session)
    assert subscription.take() == NOTHING
    assert watched.changes.followers == {}


def test_following_and_unfollowing_may_be_repeated(watched: Watched) -> None:
    with watched.changes.subscribe() as subscription:
        subscription.unfollow(watched.session)
        for _ in range(2):
            subscription.follow(watched.session)
        watched.scene.agent.update("a")
        for _ in range(2):
            subscription.unfollow(watched.session)
        assert subscription.take() == NOTHING


async def test_waiting_ends_with_the_next_change_and_gathers_what_has_come_by_then() -> None:
    changes = SessionChanges(Shelf())
    one, two, three = session("1"), session("2"), session("3")
    told: list[Changed] = []

    async def listen() -> None:
        told.append(await subscription.wait())

    with changes.subscribe() as subscription:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            await trio.testing.wait_all_tasks_blocked()
            changes.note_change(one)
            changes.note_change(two)
        changes.note_change(three)
        assert await subscription.wait() == Changed(set(), {three}, set())
    assert told == [Changed(set(), {one, two}, set())]


async def test_a_cancelled_wait_loses_no_change() -> None:
    changes = SessionChanges(Shelf())
    it = session()
    with changes.subscribe() as subscription:
        changes.note_change(it)
        with trio.CancelScope() as scope:
            scope.cancel()
            await subscription.wait()
        assert scope.cancelled_caught
        assert subscription.take().sessions == {it}
