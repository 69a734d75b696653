"""Preconditions of opening a session: readable parameters, MCP servers, limits."""

import json
from typing import Any

import pytest

from acp_gateway.config.agent_options import McpPolicy
from acp_gateway.core.output import AuditEvent
from acp_gateway.core.requests import DirectoryCheckResult
from acp_gateway.core.sessions.preconditions import AUDITED_SERVERS, NAME_LENGTH
from tests.kit.scene import Peer, Scene, make_policy

LOADS: dict[str, Any] = {"loadSession": True}


@pytest.fixture
def scene() -> Scene:
    return Scene(agentCapabilities=LOADS | {"sessionCapabilities": {"close": {}, "list": {}}})


@pytest.fixture
def ann(scene: Scene) -> Peer:
    return scene.join("ann")


OPENING = ["session/new", "session/load", "session/resume", "session/fork"]


PROGRAM = {"name": "files", "command": "/bin/files", "args": ["s3cret"], "env": [{"name": "KEY", "value": "s3cret"}]}


ELSEWHERE = {"type": "http", "name": "docs", "url": "https://example.com/mcp", "headers": []}


CARRIED = {"type": "acp", "name": "own", "id": "7"}


FOUND = DirectoryCheckResult()


def joins(scene: Scene, **params: Any) -> Peer:
    bob = scene.join("bob", only="s")
    bob.request("session/new", mcpServers=[PROGRAM], **params)
    return bob


# How a session is to be opened


@pytest.mark.parametrize("method", OPENING)
@pytest.mark.parametrize(
    "params",
    [
        {"cwd": 7},
        {"Cwd": "/etc"},
        {"cwd": "/srv", "mcp_servers": [PROGRAM]},
        {"cwd": "/srv", "additionalDirectories": "/etc"},
        {"additionalDirectories": "/srv"},
        {"cwd": "/srv", "mcpServers": {}},
        {"cwd": "/srv", "mcpServers": [{"command": "a", "Command": "b"}]},
    ],
)
def test_params_with_a_second_spelling_of_a_checked_member_open_no_session(method: str, params: dict[str, Any]) -> None:
    scene = Scene(make_policy(mcp_servers="drop"), agentCapabilities=LOADS)
    ann = scene.join("ann")
    ann.request(method, sessionId="s", **params)
    assert ann.hears()["error"]["code"] == -32602
    assert (scene.agent.inbox, list(scene.registry), scene.audit_events) == ([], [], [])


@pytest.mark.parametrize("method", OPENING)
def test_mcp_servers_drop_leaves_local_servers_out_and_the_session_starts(method: str) -> None:
    scene = Scene(make_policy(mcp_servers="drop"), agentCapabilities=LOADS)
    ann = scene.join("ann")
    size = ann.client.waiting_size
    ann.request(method, sessionId="s", cwd="/srv", mcpServers=[PROGRAM, ELSEWHERE])
    asked = scene.agent.answers("session/load" if method == "session/resume" else method, sessionId="s")
    assert asked["params"]["mcpServers"] == [ELSEWHERE]
    assert "result" in ann.hears()
    assert scene.audit_events[0] == AuditEvent(
        "mcp_server_dropped", ann.client, {"agent": "agent", "name": "files", "kind": "stdio"}
    )
    assert scene.notes == ["ann: left out MCP servers that would run here: 'files'"]
    assert b"s3cret" not in scene.session().setup["mcpServers"]
    assert "s3cret" not in repr([scene.audit_events, scene.notes])
    assert ann.client.waiting_size == size


def test_a_session_that_is_opened_again_has_them_left_out_still() -> None:
    scene = Scene(make_policy(mcp_servers="drop"), agentCapabilities=LOADS)
    ann = scene.join("ann")
    ann.request("session/new", cwd="/srv", mcpServers=[PROGRAM, ELSEWHERE])
    scene.agent.answers("session/new", sessionId="s")
    scene.lose_agent()
    ann.prompt()
    scene.agent.answers("initialize", **scene.welcome)
    assert scene.agent.takes("session/load")["params"]["mcpServers"] == [ELSEWHERE]


@pytest.mark.parametrize("method", OPENING)
@pytest.mark.parametrize("policy", ["drop", "allow", ("files", "docs", "own")])
def test_where_a_process_serves_several_identities_no_server_is_passed_on_and_the_client_is_told(
    method: str, policy: McpPolicy
) -> None:
    scene = Scene(make_policy(common=True, mcp_servers=policy), agentCapabilities=LOADS)
    ann = scene.join("ann")
    meta = {"options": {"mcpServers": {"x": PROGRAM}}}
    ann.request(method, sessionId="s", cwd="/srv", mcpServers=[PROGRAM, ELSEWHERE, CARRIED], _meta=meta)
    asked = scene.agent.answers("session/load" if method == "session/resume" else method, sessionId="s")
    assert (asked["params"]["mcpServers"], asked["params"]["_meta"]["options"]["mcpServers"]) == ([], {})
    response, told = ann.heard()[-2:]
    assert "result" in response
    assert "none of your MCP servers" in told["params"]["update"]["content"]["text"]
    assert [event.details["kind"] for event in scene.audit_events[:3]] == ["stdio", "http", "acp"]
    assert scene.notes == [
        "ann: left out MCP servers in a process that several identities share: 'files', 'docs', 'own', '_meta'"
    ]
    # It is told to that client, at that time.
    assert not any("MCP servers" in str(message) for message in scene.join("bob").load())


def test_mcp_servers_of_a_shared_process_are_refused_or_passed_on_where_the_options_say_so() -> None:
    servers = [ELSEWHERE, CARRIED]
    scene = Scene(make_policy(common=True, mcp_servers="deny"), agentCapabilities=LOADS)
    ann = scene.join("ann")
    ann.request("session/new", cwd="/srv", mcpServers=servers)
    error = ann.hears()["error"]
    assert (error["data"], "several identities share" in error["message"]) == ({"reason": "mcp_servers"}, True)
    scene = Scene(make_policy(common=True, mcp_servers="share"), agentCapabilities=LOADS)
    ann = scene.join("ann")
    ann.request("session/new", cwd="/srv", mcpServers=[PROGRAM, *servers])
    assert scene.agent.takes("session/new")["params"]["mcpServers"] == [PROGRAM, *servers]


def test_mcp_servers_drop_is_audited_once_also_after_a_slow_directory_check() -> None:
    scene = Scene(make_policy(mcp_servers="drop"), agentCapabilities=LOADS)
    scene.look = None
    scene.join("ann").request("session/new", cwd="/srv", mcpServers=[PROGRAM])
    scene.directory_check(FOUND)
    assert scene.agent.takes("session/new")["params"]["mcpServers"] == []
    assert len(scene.audit_events) == len(scene.notes) == 1


@pytest.mark.parametrize("method", OPENING)
def test_mcp_servers_deny_names_the_local_servers_in_the_error(method: str) -> None:
    scene = Scene(make_policy(mcp_servers="deny"), agentCapabilities=LOADS)
    scene.look = None
    ann = scene.join("ann")
    local = {"type": "http", "name": "no'tes", "url": "http://localhost", "headers": [{"name": "A", "value": "s3cret"}]}
    ann.request(method, sessionId="s", cwd="/nowhere", mcpServers=[PROGRAM, ELSEWHERE, local])
    (text,) = ann.heard_text()
    error = json.loads(text)["error"]
    assert (error["code"], error["data"]) == (-32602, {"reason": "mcp_servers"})
    assert error["message"] == (
        "MCP servers that would run on the gateway's machine are not allowed here: 'files', \"no'tes\""
    )
    assert [
        (audit_event.name, audit_event.details["name"], audit_event.details["kind"])
        for audit_event in scene.audit_events
    ] == [("mcp_server_refused", "files", "stdio"), ("mcp_server_refused", "no'tes", "http")]
    assert "s3cret" not in f"{text!r}{scene.audit_events}{scene.notes}"
    assert (scene.agent.inbox, scene.directory_checks, list(scene.registry)) == ([], [], [])


@pytest.mark.parametrize("policy", ["drop", "deny"])
def test_of_many_servers_some_are_named_in_the_audit_and_the_others_counted(policy: McpPolicy) -> None:
    for more in (0, 1, 3):
        scene = Scene(make_policy(mcp_servers=policy))
        ann = scene.join("ann")
        servers = [{"name": "n" * 1000, "type": "t" * 1000} for _ in range(AUDITED_SERVERS + more)]
        ann.request("session/new", cwd="/srv", mcpServers=servers)
        event = "mcp_server_dropped" if policy == "drop" else "mcp_server_refused"
        told = {"agent": "agent", "name": "n" * NAME_LENGTH + " …", "kind": "t" * NAME_LENGTH + " …"}
        named = AuditEvent(event, ann.client, told)
        counted = AuditEvent(event, ann.client, {"agent": "agent", "count": more})
        assert scene.audit_events == [named] * AUDITED_SERVERS + [counted] * bool(more)


def test_mcp_servers_of_a_joining_guest_are_ignored() -> None:
    scene = Scene(make_policy(mcp_servers="deny"), agentCapabilities=LOADS)
    bob = joins(scene, cwd="/srv", _meta={"mcpServers": [1]})
    assert scene.agent.answers("session/load")["params"] == {"mcpServers": [], "cwd": "/srv", "sessionId": "s"}
    assert bob.hears()["result"] == {"sessionId": "s"}
