"""Requests of an agent to a client that is away: they keep no other client waiting."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from acp_gateway.core.agent_requests import JUST_LOST
from acp_gateway.core.sessions.session import Role
from acp_gateway.protocol.methods import Capability
from tests.core.test_same_version import asks, opened
from tests.kit.scene import Peer, Scene, make_policy

BOTH = frozenset({Capability.FS, Capability.TERMINAL})
FILES: dict[str, Any] = {"clientCapabilities": {"fs": {"readTextFile": True, "writeTextFile": True}}}

Ask = Callable[[Scene, Any], dict[str, Any]]
"""Returns the method and the params of a request in the turn of this prompt."""


def plain(method: str, **params: Any) -> Ask:
    return lambda _scene, _prompt: {"method": method, "params": {"sessionId": "s", **params}}


def of_prompt(scene: Scene, prompt: Any) -> dict[str, Any]:
    params = {"requestId": prompt["id"], "mode": "form", "message": "which?", "requestedSchema": {}}
    return {"method": "elicitation/create", "params": params}


def of_server(scene: Scene, prompt: Any, **params: Any) -> dict[str, Any]:
    """A message to a server that the first client carries; without a session."""
    scene.agent.send(id="k", method="mcp/connect", params={"sessionId": "s", "serverId": "tools"})
    first = next(iter(scene.peers.values()))
    first.send(id=first.hears()["id"], result={"connectionId": "c"})
    scene.agent.heard()
    return {"method": "mcp/message", "params": {"connectionId": "c", "method": "tools/call", **params}}


REQUESTS = {
    "file": plain("fs/read_text_file", path="/srv/a"),
    "early name": plain("write_text_file", path="/srv/a", content=""),
    "terminal": plain("terminal/create", command="make"),
    "private": plain("_vendor/open", file="a"),
    "server": plain("mcp/connect", serverId="tools"),
    "message of a server": of_server,
    "form for the prompt": of_prompt,
}
each_request = pytest.mark.parametrize("ask", REQUESTS.values(), ids=REQUESTS)


def in_turn(scene: Scene | None = None, *, bob_offers: bool = False) -> tuple[Scene, Peer, Peer, Any]:
    """Two controllers, the prompt of the first, which is the host, and what the agent has got of it."""
    scene = scene or Scene(make_policy(serves=BOTH))
    ann = scene.join("ann", link="l1", **FILES)
    ann.new_session()
    bob = scene.join("bob", **(FILES if bob_offers else {}))
    bob.request("session/resume", sessionId="s", cwd="/srv", mcpServers=[])
    ann.prompt("go")
    prompt = scene.agent.takes("session/prompt")
    ann.heard(), bob.heard()
    return scene, ann, bob, prompt


def asked(scene: Scene, ask: Ask, prompt: Any) -> None:
    scene.agent.send(id="q", **ask(scene, prompt))


@each_request
def test_what_an_absent_client_was_asked_is_answered_with_an_error_while_another_client_waits(ask: Ask) -> None:
    scene, ann, bob, prompt = in_turn()
    asked(scene, ask, prompt)
    number = ann.hears()["id"]
    scene.pass_time(100)
    ann.away()
    scene.pass_time(100 + JUST_LOST - 0.1)
    assert scene.agent.heard() == []
    scene.pass_time(100 + JUST_LOST)
    response = scene.agent.hears()
    assert response["id"] == "q"
    if ask is of_prompt:
        assert response["result"] == {"action": "cancel"}
    else:
        assert "the client for it is away" in response["error"]["message"]
    assert bob.heard() == []
    scene.agent.answer(prompt, stopReason="end_turn")
    bob.prompt("next")
    assert scene.agent.takes("session/prompt")["params"]["prompt"][0]["text"] == "next"
    # It is withdrawn from the client that comes back, whose response is too late.
    assert {"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": number}} in ann.heard()
    ann.back()
    ann.send(id=number, result={})
    assert scene.agent.heard() == []


@each_request
def test_what_an_absent_client_was_asked_waits_as_long_as_no_other_client_is_there(ask: Ask) -> None:
    scene, ann, bob, prompt = in_turn()
    asked(scene, ask, prompt)
    ann.heard()
    ann.away()
    bob.away()
    scene.join("watcher", role=Role.OBSERVER).load()
    scene.pass_time(10_000)
    assert scene.agent.heard() == []
    bob.back()
    scene.pass_time(10_001)
    assert scene.agent.hears()["id"] == "q"


@each_request
def test_a_request_for_a_client_that_is_away_already_is_answered_at_once(ask: Ask) -> None:
    scene, ann, bob, prompt = in_turn()
    request = ask(scene, prompt)
    scene.pass_time(100)
    ann.away()
    scene.pass_time(200)
    scene.agent.send(id="q", **request)
    if request["method"] == "_vendor/open":
        # Such a request is for any controller.
        bob.fail(bob.hears())
    assert scene.agent.hears()["id"] == "q"
    assert ann.heard() == []


@each_request
def test_session_cancel_withdraws_all_that_the_turn_has_asked(ask: Ask) -> None:
    scene, ann, bob, prompt = in_turn()
    asked(scene, ask, prompt)
    number = ann.hears()["id"]
    ann.away()
    bob.cancel()
    cancel, response = scene.agent.heard()
    assert (cancel["method"], response["id"]) == ("session/cancel", "q")
    assert response.get("result") == {"action": "cancel"} if ask is of_prompt else response["error"]["code"] == -32800
    assert ann.hears()["params"] == {"requestId": number}
    scene.agent.answer(prompt, stopReason="cancelled")
    bob.prompt("next")
    assert scene.agent.hears()["method"] == "session/prompt"


def test_session_cancel_leaves_what_another_sessions_turn_has_asked() -> None:
    scene, ann, bob, _ = in_turn()
    ann.new_session("t")
    ann.prompt(session_id="t")
    scene.agent.takes("session/prompt")
    scene.agent.send(id="q", method="_vendor/open", params={"sessionId": "t"})
    bob.cancel()
    assert [message["method"] for message in scene.agent.heard()] == ["session/cancel"]
    ann.send(id=ann.hears()["id"], result=1)
    assert scene.agent.hears()["result"] == 1


@pytest.mark.parametrize("is_away_before", [False, True])
@pytest.mark.parametrize("method", ["fs/read_text_file", "fs/write_text_file", "read_text_file"])
def test_a_file_is_asked_of_another_client_of_the_owner_that_has_offered_it(method: str, is_away_before: bool) -> None:
    scene, ann, bob, _ = in_turn(bob_offers=True)
    scene.pass_time(100)
    if is_away_before:
        ann.away()
        scene.pass_time(200)
    scene.agent.send(id="q", method=method, params={"sessionId": "s", "path": "/srv/a", "content": ""})
    ann.away() if not is_away_before else None
    scene.pass_time(300)
    request = bob.hears()
    assert (request["method"], request["params"]["path"]) == (method, "/srv/a")
    bob.send(id=request["id"], result={"content": "bob's"})
    assert scene.agent.hears()["result"] == {"content": "bob's"}
    # The host is the same as before.
    ann.back()
    ann.heard()
    scene.agent.send(id="r", method=method, params={"sessionId": "s", "path": "/srv/a", "content": ""})
    assert ann.hears()["method"] == method


@pytest.mark.parametrize(("identity", "guest"), [("other", True), ("me", True)])
def test_a_file_of_an_absent_host_is_not_asked_of_a_guest(identity: str, guest: bool) -> None:
    scene = Scene(make_policy(serves=BOTH))
    ann = scene.join("ann", link="l1", **FILES)
    ann.new_session()
    guest_peer = scene.join("guest", identity, only="s", guest=guest, **FILES)
    guest_peer.request("session/resume", sessionId="s", cwd="/srv", mcpServers=[])
    guest_peer.heard()
    scene.agent.send(id="q", method="fs/read_text_file", params={"sessionId": "s", "path": "/srv/a"})
    ann.away()
    scene.pass_time(1000)
    assert scene.agent.hears()["error"]["code"] == -32800
    assert guest_peer.heard() == []


def test_an_offer_to_read_files_is_not_one_to_write_them() -> None:
    scene = Scene(make_policy(serves=BOTH))
    ann = scene.join("ann", link="l1", **FILES)
    ann.new_session()
    bob = scene.join("bob", clientCapabilities={"fs": {"readTextFile": True, "writeTextFile": False}})
    bob.request("session/resume", sessionId="s", cwd="/srv", mcpServers=[])
    bob.heard()
    for raw_id, method in enumerate(["fs/read_text_file", "fs/write_text_file"]):
        scene.agent.send(id=raw_id, method=method, params={"sessionId": "s", "path": "/srv/a", "content": ""})
    ann.away()
    scene.pass_time(1000)
    assert [message["method"] for message in bob.heard()] == ["fs/read_text_file"]
    assert [message["id"] for message in scene.agent.heard()] == [1]


def test_a_permission_waits_for_an_absent_client_that_may_yet_decide() -> None:
    scene, ann, bob, _ = in_turn()
    scene.agent.ask_permission("q")
    request = ann.hears()
    bob.fail(bob.hears())
    ann.away()
    scene.pass_time(10_000)
    assert scene.agent.heard() == []
    ann.back()
    ann.choose(request, "yes")
    assert scene.agent.hears()["id"] == "q"


def test_a_form_that_the_clients_which_are_there_can_not_show_gets_their_error() -> None:
    scene, ann, bob, _ = in_turn()
    form = {"sessionId": "s", "mode": "form", "message": "which?", "requestedSchema": {}}
    scene.agent.send(id="q", method="elicitation/create", params=form)
    bob.fail(bob.hears(), message="no forms")
    scene.pass_time(100)
    assert scene.agent.heard() == []
    ann.away()
    scene.pass_time(200)
    assert scene.agent.hears()["error"]["message"] == "no forms"


@pytest.mark.parametrize("by_cancel", [False, True])
def test_an_agent_of_version_2_does_not_wait_for_an_absent_client_either(by_cancel: bool) -> None:
    scene, (ann, bob) = opened("ann", "bob")
    request = asks(scene, ann)
    scene.agent.answer(request, messageId="m")
    scene.agent.send(id="q", method="_vendor/open", params={"sessionId": "s"})
    number = json.loads(ann.heard_text()[-1])["id"]
    ann.away()
    if by_cancel:
        bob.cancel()
    else:
        scene.pass_time(1000)
    response = scene.agent.heard()[-1]
    assert (response["id"], response["error"]["code"]) == ("q", -32800)
    assert json.loads(ann.heard_text()[-1])["params"] == {"requestId": number}


def test_what_may_belong_to_several_sessions_does_not_wait_for_their_absent_client() -> None:
    scene = Scene()
    ann, bob = scene.join("ann", link="l1"), scene.join("bob")
    for name in ("a", "b"):
        ann.new_session(name)
    scene.agent.send(id="q", method="_vendor/open", params={"sessionId": "child"})
    ann.heard()
    ann.away()
    bob.away()
    scene.pass_time(2 * JUST_LOST)
    assert scene.agent.heard() == []
    bob.back()
    scene.pass_time(4 * JUST_LOST)
    assert "the client for it is away" in scene.agent.hears()["error"]["message"]
