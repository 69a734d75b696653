"""Sessions that an agent could not open: who is told why, and for how long."""

from typing import Any

import pytest

from acp_gateway.core.sessions.registry import MAX_REASONS, Registry, Unopened
from acp_gateway.core.sessions.session import Client, Role, Session, SessionReach
from acp_gateway.core.turns.journal import Journal
from acp_gateway.protocol.jsonrpc import parse
from tests.kit.scene import Scene, Shelf

GEMINI: dict[str, Any] = {
    "code": -32603,
    "message": "Internal error",
    "data": {"details": "No previous sessions found"},
}
WHY = "Internal error: No previous sessions found"


def make_session(session_id: str = "s", owner: str = "me", workspace: str | None = None) -> Session:
    session = Session("agent", session_id, owner, Journal(1000))
    session.workspace = workspace
    return session


def refuse(unopened: Unopened, session: Session, why: str = "no") -> None:
    unopened.remember_reason(session, parse(b'{"id":1,"error":{"code":1,"message":"%b"}}' % why.encode()))


def asker(identity: str = "me", role: Role = Role.CONTROLLER, **viewer: Any) -> Client:
    return Client("c", SessionReach(identity, **viewer), role)


def test_a_controller_of_its_owner_is_told_why() -> None:
    unopened = Unopened()
    refuse(unopened, make_session())
    assert unopened.reason(asker(), "s") == "no"
    assert unopened.reason(asker(), "t") is None


@pytest.mark.parametrize(
    "client",
    [
        None,
        asker("bob"),
        asker(role=Role.OBSERVER),
        asker(only="s", guest=True),
        asker(only="t"),
        asker(workspaces=("other",)),
    ],
)
def test_a_client_outside_the_workspace_is_not_told_why_a_session_is_unopened(client: Client | None) -> None:
    unopened = Unopened()
    refuse(unopened, make_session(workspace="proj"))
    assert unopened.reason(client, "s") is None


def test_what_the_agent_says_last_counts_and_only_while_the_session_is_not_open() -> None:
    unopened, session = Unopened(), make_session()
    refuse(unopened, session, "first")
    refuse(unopened, session, "second")
    assert unopened.reason(asker(), "s") == "second"
    unopened.forget(session)
    assert unopened.reason(asker(), "s") is None


def test_the_oldest_are_forgotten_when_there_are_too_many() -> None:
    unopened = Unopened()
    for number in range(MAX_REASONS + 1):
        refuse(unopened, make_session(f"s{number}"))
    assert unopened.reason(asker(), "s0") is None
    assert unopened.reason(asker(), "s1") == "no"


def after_a_restart() -> Scene:
    """A gateway's second process, whose agent says that it loads sessions and does not."""
    shelf = Shelf()
    before = Scene(registry=Registry("me", shelf, "first"), agentCapabilities={"loadSession": True})
    before.join("ann").new_session(cwd="/srv/x")
    (session,) = before.registry
    past = Session("agent", session.id, session.owner, Journal(1000))
    past.cwd = session.cwd
    scene = Scene(registry=Registry("me", shelf, "second"), agentCapabilities={"loadSession": True})
    scene.registry.restore(past)
    return scene


@pytest.mark.parametrize("method", ["session/load", "session/resume"])
def test_the_next_prompt_of_a_session_that_the_agent_did_not_load_says_why(method: str) -> None:
    scene = after_a_restart()
    ann = scene.join("ann")
    ann.request(method, sessionId="s", cwd="/srv/x", mcpServers=[])
    scene.agent.refuses("session/load", **GEMINI)
    assert ann.hears()["error"] == GEMINI
    ann.prompt()
    error = ann.hears()["error"]
    assert error["code"] == -32002
    assert error["message"] == f"no session 's' is open on this connection; the agent could not open it: {WHY}"
    assert not scene.agent.heard()


def test_one_that_opens_in_the_end_is_not_said_to_be_broken_later() -> None:
    scene = after_a_restart()
    ann = scene.join("ann")
    ann.request("session/load", sessionId="s", cwd="/srv/x", mcpServers=[])
    scene.agent.refuses("session/load", **GEMINI)
    ann.request("session/load", sessionId="s", cwd="/srv/x", mcpServers=[])
    scene.load_journal(None)
    scene.agent.answers("session/load")
    ann.request("session/close", sessionId="s")
    ann.heard()
    ann.prompt()
    assert ann.hears()["error"]["message"] == "no session 's' is open on this connection"


def test_every_client_of_a_session_that_a_new_agent_could_not_open_is_told_why_but_guests_are_not() -> None:
    scene = Scene(agentCapabilities={"loadSession": True})
    ann = scene.join("ann")
    ann.new_session(cwd="/srv/x")
    bob, guest = scene.join("bob"), scene.join("guest", "eve", only="s", guest=True)
    bob.load()
    guest.load()
    scene.lose_agent()
    ann.prompt()
    guest.prompt()
    scene.agent.answers("initialize", **scene.welcome)
    scene.agent.refuses("session/load", **GEMINI)
    scene.agent.refuses("session/new")
    assert WHY in ann.hears()["error"]["message"]
    assert WHY not in guest.hears()["error"]["message"]
    bob.prompt()
    guest.prompt()
    assert WHY in bob.hears()["error"]["message"]
    assert WHY not in guest.hears()["error"]["message"]
