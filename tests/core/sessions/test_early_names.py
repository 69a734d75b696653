"""Requests of an agent by their names without a prefix, in every scope."""

from typing import Any

import pytest

from acp_gateway.core.sessions.session import Role
from acp_gateway.protocol.methods import EARLY_NAMES, Capability
from tests.kit.scene import Peer, Scene, make_policy, opened_scene

ALL = frozenset(Capability)
PERMISSION = "request_permission"
CLIENT_SERVICES = sorted(set(EARLY_NAMES) - {PERMISSION})

SCOPES = pytest.mark.parametrize("shared", [True, False], ids=["identity", "connection"])


def opened(*, shared: bool, **policy: Any) -> tuple[Scene, Peer]:
    """A scene with the host of the session `s`."""
    scene, ann = opened_scene(make_policy(shared=shared, **policy))
    return scene, ann


def watched(*, shared: bool, **policy: Any) -> tuple[Scene, Peer, Peer, Peer]:
    """A scene with the host, an observer and another controller of the session `s`."""
    scene, ann = opened(shared=shared, **policy)
    watcher, bob = scene.join("watcher", role=Role.OBSERVER), scene.join("bob")
    for peer in (watcher, bob, ann):
        peer.load()
    return scene, ann, watcher, bob


def ask(scene: Scene, method: str, raw_id: Any = "q", **params: Any) -> None:
    scene.agent.send(id=raw_id, method=method, params={"sessionId": "s", **params})


def ask_permission(scene: Scene, raw_id: Any = "q") -> None:
    options = [{"optionId": name, "name": name, "kind": "allow_once"} for name in ("yes", "no")]
    ask(scene, PERMISSION, raw_id, toolCall={"toolCallId": "call"}, options=options)


@SCOPES
@pytest.mark.parametrize("method", CLIENT_SERVICES)
def test_a_request_by_an_early_name_is_refused_if_its_capability_is_masked(shared: bool, method: str) -> None:
    scene, ann = opened(shared=shared)
    ask(scene, method, path="/etc/passwd")
    assert scene.agent.hears()["error"]["code"] == -32601
    assert ann.heard() == []


@SCOPES
@pytest.mark.parametrize("method", ["read_text_file", "write_text_file", "create_terminal"])
def test_a_request_by_an_early_name_goes_to_the_host_alone_and_keeps_its_name(shared: bool, method: str) -> None:
    scene, ann, watcher, bob = watched(shared=shared, serves=ALL)
    ask(scene, method, path="/srv/a", command="ls")
    asked = ann.hears()
    assert asked["method"] == method
    assert watcher.heard() == bob.heard() == []
    ann.send(id=asked["id"], result={"done": True})
    assert scene.agent.hears() == {"jsonrpc": "2.0", "id": "q", "result": {"done": True}}


@SCOPES
def test_a_terminal_that_was_created_by_an_early_name_has_an_id_of_the_gateway(shared: bool) -> None:
    scene, ann, _, bob = watched(shared=shared, serves=ALL)
    ask(scene, "create_terminal", command="ls")
    ann.send(id=ann.hears()["id"], result={"terminalId": "t"})
    minted = scene.agent.hears()["result"]["terminalId"]
    assert minted != "t"
    bob.load()  # It is the host from now on; the terminal stays where it is.
    for method in ("terminal_output", "wait_for_terminal_exit", "kill_terminal", "release_terminal"):
        ann.heard()
        ask(scene, method, terminalId=minted)
        asked = ann.hears()
        assert (asked["method"], asked["params"]["terminalId"]) == (method, "t")


@SCOPES
def test_request_permission_goes_to_every_controller_and_is_decided_once(shared: bool) -> None:
    scene, ann, watcher, bob = watched(shared=shared)
    ask_permission(scene)
    at_ann, at_bob = ann.hears(), bob.hears()
    assert (at_ann["method"], at_bob["method"], watcher.heard()) == (PERMISSION, PERMISSION, [])
    watcher.choose(at_ann, "no")
    bob.fail(at_bob)
    bob.choose(at_bob, "never offered")
    assert scene.agent.heard() == []
    ann.choose(at_ann, "yes")
    bob.choose(at_bob, "no")
    assert scene.agent.hears()["result"] == {"outcome": {"outcome": "selected", "optionId": "yes"}}
    event = scene.audit_events[-1]
    assert (event.name, event.details["decision"], event.client) == ("permission_decided", "yes", ann.client)


@SCOPES
@pytest.mark.parametrize("method", sorted({*EARLY_NAMES, *EARLY_NAMES.values(), "elicitation/create"}))
def test_a_request_of_an_agent_without_an_id_reaches_no_client(shared: bool, method: str) -> None:
    scene, ann, watcher, bob = watched(shared=shared, serves=ALL)
    scene.agent.send(method=method, params={"sessionId": "s", "path": "/srv/a", "content": ""})
    assert ann.heard() == watcher.heard() == bob.heard() == []
    assert scene.notes[-1] == f"refused a message of the agent: {method!r} is a request, which has an id"


@pytest.mark.parametrize("method", sorted(EARLY_NAMES))
def test_ambiguous_params_of_an_early_name_are_refused(method: str) -> None:
    scene, ann = opened(shared=True, serves=ALL)
    ask(scene, method, Session_Id="other")
    assert scene.agent.hears()["error"]["code"] == -32602
    assert ann.heard() == []
