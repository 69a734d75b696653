"""A session is described as each viewer may see it."""

from types import SimpleNamespace
from typing import Any

import pytest

from acp_gateway.core.requests import ErrorObject, TurnOutcome
from acp_gateway.core.sessions.archive import JournalLoss
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Decision, Role, Session, SessionReach
from acp_gateway.core.states import Presence
from acp_gateway.gateway.sessions.session_view import SessionView, SessionViews, Viewer, history_loss
from tests.kit.registered import session as registered_session
from tests.kit.scene import Scene, Shelf

ME = Viewer(SessionReach("me"))

REOPENS: dict[str, Any] = {"agentCapabilities": {"loadSession": True}}


def ended(view: SessionView) -> TurnOutcome | None:
    """The end of the last turn of a session."""
    return None if view.last_turn is None else view.last_turn.outcome


class Shown:
    """An agent and its clients."""

    def __init__(self, **welcome: Any) -> None:
        self.scene = Scene(registry=Registry("me", run="run"), **welcome)
        self.scene.multiplexer.set_time(0.0, 1000)
        self.editor = self.scene.join("editor")
        self.editor.new_session()
        self.session = self.scene.session()
        hub = SimpleNamespace(multiplexer=self.scene.multiplexer, fence="landlock")
        self.views = SessionViews(self.scene.registry, {self.scene.multiplexer.agent_handle: hub})

    def view(self, viewer: Viewer = ME) -> SessionView:
        return self.views.view(self.session, viewer)

    def begin_turn(self) -> Any:
        """A turn has begun; return the request at the agent."""
        self.editor.prompt()
        return self.scene.agent.hears()


@pytest.fixture
def shown() -> Shown:
    return Shown()


def test_an_idle_session_is_completed(shown: Shown) -> None:
    view = shown.view()
    assert (view.status, view.live, view.turn, view.queued, view.waiting) == ("completed", True, False, 0, ())
    assert (view.may_control, view.process_exited, view.last_turn) == (True, False, None)
    assert shown.views.fence(shown.session) == "landlock"
    assert (shown.session.created_at, shown.session.active_at) == (1000, None)


def test_a_session_with_a_turn_is_running_and_counts_the_prompts_that_wait(shown: Shown) -> None:
    asked = shown.begin_turn()
    shown.editor.prompt()
    shown.editor.prompt()
    view = shown.view()
    assert (view.status, view.turn, view.queued) == ("running", True, 2)
    shown.scene.agent.answer(asked, stopReason="end_turn")
    view = shown.view()
    assert (view.status, view.queued, ended(view)) == ("running", 1, TurnOutcome("end_turn"))


def test_a_session_whose_agent_waits_for_a_controller_is_waiting_and_names_the_request(shown: Shown) -> None:
    shown.scene.registry._run = "run"
    shown.begin_turn()
    shown.scene.multiplexer.set_time(1.0, 2000)
    shown.scene.agent.ask_permission()
    view = shown.view()
    assert view.status == "waiting"
    (request,) = view.waiting
    assert (request.method, request.title, request.arrived_time, request.key) == (
        "session/request_permission",
        "do it",
        2000,
        "run-1",
    )
    shown.editor.choose(shown.editor.heard()[-1], "yes")
    assert shown.view().status == "running"
    assert shown.session.decisions == {"run-1": Decision("me", "yes")}


def test_what_the_gateway_asks_an_owner_is_shown_to_no_guest(shown: Shown) -> None:
    guest = Viewer(SessionReach("other", "s", guest=True))
    shown.begin_turn()
    shown.scene.agent.ask_permission()
    (request,) = shown.view(guest).waiting
    request.then = lambda _: None
    view = shown.view(guest)
    assert (view.waiting, view.unanswered, view.status) == ((), (), "waiting")
    assert shown.view().waiting == (request,)
    assert [shown.views.request(shown.session, it, request.key) for it in (guest, ME)] == [None, request]


def test_an_agent_of_version_2_that_waits_without_a_request_or_works_without_a_prompt_says_so(shown: Shown) -> None:
    found = []
    for state in ("running", "requires_action", "idle", "requires_action"):
        shown.scene.agent.state("session_info_update", _meta={"acp-gateway": {"state": state}})
        found.append((shown.view().status, shown.scene.multiplexer.busy))
    assert found == [("running", True), ("waiting", True), ("completed", False), ("waiting", True)]
    shown.scene.multiplexer.agent_lost("gone", {})
    assert shown.session.own_state == ""


def test_a_cancelled_decision_is_of_who_cancelled() -> None:
    shown = Shown()
    shown.begin_turn()
    shown.scene.agent.ask_permission()
    (request,) = shown.view().waiting
    shown.editor.cancel()
    assert shown.session.decisions == {request.key: Decision("me", "cancelled")}


def test_a_request_that_the_editor_answers_by_itself_does_not_make_a_session_wait(shown: Shown) -> None:
    shown.begin_turn()
    shown.scene.agent.send(id=1, method="_vendor/ping", params={"sessionId": "s"})
    assert len(shown.scene.multiplexer.waiting(shown.session)) == 1
    assert (shown.view().status, shown.view().waiting) == ("running", ())


@pytest.mark.parametrize(
    ("code", "read"), [(-32000, -32000), (5, 5), ("no code", -32603), (10**20, -32603), (1.5, -32603)]
)
def test_a_session_whose_last_turn_failed_has_the_error(shown: Shown, code: Any, read: int) -> None:
    asked = shown.begin_turn()
    shown.scene.agent.send(id=asked["id"], error={"code": code, "message": "overloaded", "data": {"secret": 1}})
    view = shown.view()
    assert (view.status, ended(view)) == ("error", TurnOutcome(error=ErrorObject(read, "overloaded")))
    shown.begin_turn()
    assert shown.view().status == "running"


def test_a_session_whose_agent_has_ended_is_exited_while_clients_stay_and_open_again_later() -> None:
    shown = Shown(**REOPENS)
    shown.begin_turn()
    shown.scene.lose_agent()
    view = shown.view()
    assert (view.status, view.process_exited, view.live) == ("exited", True, True)
    assert ended(view) == TurnOutcome(cut="agent_ended")
    shown.editor.prompt("again")
    shown.scene.agent.answers("initialize", **shown.scene.welcome)
    assert shown.view().status == "initializing"
    shown.scene.agent.answers("session/load")
    assert shown.view().status == "running"
    assert not shown.view().process_exited


@pytest.mark.parametrize("ends", ["lose_agent", "stop_agent", "retire"])
def test_a_session_whose_process_is_gone_is_exited_and_knows_if_it_ended_by_itself(ends: str) -> None:
    shown = Shown()
    getattr(shown.scene, ends)()
    view = shown.view()
    assert (view.status, view.live, view.clients) == ("exited", False, ())
    assert view.process_exited == (ends == "lose_agent")


def test_a_session_that_is_opened_is_initializing() -> None:
    shown = Shown(**REOPENS)
    shown.scene.retire()
    scene = Scene(registry=shown.scene.registry, **REOPENS)
    scene.join("peer").request("session/load", sessionId="s", cwd="/srv", mcpServers=[])
    assert scene.session() is shown.session
    assert shown.view().status == "initializing"


def test_clients_are_shown_while_they_are_connected_or_away(shown: Shown) -> None:
    shown.scene.multiplexer.set_time(1.0, 2000)
    other = shown.scene.join("other", role=Role.OBSERVER, link="link")
    other.load()
    shown.scene.multiplexer.set_time(2.0, 3000)
    other.away()
    assert [(it.name, it.presence, it.presence_time, it.via) for it in shown.view().clients] == [
        ("editor", Presence.CONNECTED, 1000, "editor"),
        ("other", Presence.AWAY, 3000, "editor"),
    ]
    other.gone()
    assert [it.name for it in shown.view().clients] == ["editor"]


# Who may see it


@pytest.mark.parametrize(
    ("viewer", "may_see", "may_control"),
    [
        (ME, True, True),
        (Viewer(SessionReach("me"), Role.OBSERVER), True, False),
        (Viewer(SessionReach("you")), False, False),
        (Viewer(SessionReach("me"), agents=("agent",)), True, True),
        (Viewer(SessionReach("me"), agents=("other",)), False, False),
        (Viewer(SessionReach("me", workspaces=("web",))), False, False),
        (Viewer(SessionReach("me", only="s")), True, True),
        (Viewer(SessionReach("me", only="t")), False, False),
        (Viewer(SessionReach("guest", only="s", guest=True)), True, True),
        (Viewer(SessionReach("guest", only="s", guest=True), Role.OBSERVER), True, False),
    ],
)
def test_a_viewer_finds_what_is_in_its_reach(shown: Shown, viewer: Viewer, may_see: bool, may_control: bool) -> None:
    assert (shown.views.find(viewer, "s") is shown.session) == may_see
    assert (shown.session in shown.views.sessions(viewer)) == may_see
    if may_see:
        assert shown.view(viewer).may_control == may_control


def test_a_guest_knows_a_session_only_while_it_is_live(shown: Shown) -> None:
    shown.scene.retire()
    guest = Viewer(SessionReach("guest", only="s", guest=True))
    assert guest.covers(shown.session)
    assert not guest.sees(shown.session)
    assert shown.views.find(guest, "s") is None
    assert list(shown.views.sessions(guest)) == []
    assert shown.views.find(ME, "s") is shown.session
    assert list(shown.views.sessions(ME)) == [shown.session]
    assert shown.view().status == "exited"


@pytest.mark.parametrize("lost", [None, "cut", "removed"])
def test_of_a_live_session_no_history_is_removed(lost: JournalLoss | None) -> None:
    class Losing(Shelf):
        def loss(self, session: Session) -> JournalLoss | None:
            return lost

    session = registered_session()
    session.archive = Losing()
    assert history_loss(session, live=False) == lost
    assert history_loss(session, live=True) == (None if lost == "removed" else lost)
