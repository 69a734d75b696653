"""The rules for roles, scopes, servers, limits and the audit hold for the names and shapes of version 2."""

from typing import Any

import pytest

from acp_gateway.core.requests import DirectoryCheckResult, Location, Problem
from acp_gateway.core.sessions.session import Client, DirectoryCheck, Role, SessionReach
from acp_gateway.versions import table
from tests.core.test_same_version import DIFF, NewScene, told
from tests.core.test_translated_clients import NewPeer
from tests.kit.scene import Peer, Scene, make_policy
from tests.kit.versions import text as block

Json = Any

SERVED = [row for row in table.METHODS if row.caller is table.Caller.CLIENT and row.new is not None]
RESTRICTED: dict[str, dict[str, Any]] = {
    "observer": {"role": Role.OBSERVER},
    "guest": {"reach": SessionReach("guest-1", "s", guest=True)},
    "one session": {"reach": SessionReach("me", "s")},
    "workspaces": {"reach": SessionReach("me", workspaces=("a",))},
    "other identity": {"reach": SessionReach("other")},
}
OPENING = {"session/new", "session/resume", "session/load"}
ANSWERED = {"initialize", *OPENING, "session/list", "session/close", "session/status"}
"""Methods whose answer is the gateway's, and differs by version in more than its names."""


class OldScene(Scene):
    """A scene whose agent speaks version 1, with clients of both."""

    def come(self, name: str, version: int = 2) -> Peer:
        return self.let_in(self, Client(name, SessionReach("me"), Role.CONTROLLER), version)

    @staticmethod
    def let_in(scene: Scene, client: Client, version: int) -> Peer:
        scene.multiplexer.attach(client)
        peer = scene.peers[client] = NewPeer(scene, client) if version == 2 else Peer(scene, client)
        own = {"info": {"name": "c", "version": "1"}, "capabilities": {}} if version == 2 else {}
        peer.request("initialize", protocolVersion=version, **own)
        for asked in scene.agent.heard():
            scene.agent.send(id=asked["id"], result=scene.welcome)
        assert peer.hears()["result"]["protocolVersion"] == version
        return peer


def opened(agent: int, **policy: Any) -> tuple[Scene, Peer]:
    """A client of version 2 in the session `s` of an agent of either version."""
    rules = make_policy(**policy)
    scene = NewScene(rules) if agent == 2 else OldScene(rules, agentCapabilities={"loadSession": True})
    ann = scene.come("ann")
    ann.request("session/new", cwd="/srv/b", mcpServers=[])
    scene.agent.answers("session/new", sessionId="s")
    ann.heard()
    scene.audit_events.clear()
    return scene, ann


def restricted(scene: Scene, who: str, version: int) -> Peer:
    """Add a restricted client to the session `s`, where it may see that."""
    options: dict[str, Any] = {"reach": SessionReach("me"), "role": Role.CONTROLLER} | RESTRICTED[who]
    peer = OldScene.let_in(scene, Client(f"{who} {version}", **options), version)
    if version == 2:
        peer.request("session/resume", sessionId="s", cwd="/srv/b", replayFrom={"type": "start"})
    else:
        peer.load()
    peer.inbox.clear()
    return peer


def is_refused(scene: Scene, peer: Peer, method: str, params: Json) -> bool:
    """Return True for a request that a client may not send; the agent knows none of the others."""
    peer.request(method, **params)
    asked = scene.agent.heard()
    for each in asked:
        scene.agent.send(id=each["id"], error={"code": UNKNOWN, "message": "no"})
    codes = [message["error"]["code"] for message in peer.heard() if "error" in message]
    assert len(codes) == 1, (method, codes)
    # Others say that a name or a value has no counterpart.
    return not asked and codes[0] in (-32600, -32601)


UNKNOWN = -32099
PARAMS = {
    "sessionId": "s",
    "cwd": "/srv/b",
    "prompt": [block("go")],
    "configId": "o",
    "value": "v",
    "type": "id",
    "methodId": "m",
    "toolCallId": "t",
    "terminalId": "t",
    "title": "T",
    "providerId": "main",
}


@pytest.mark.parametrize("agent", [1, 2])
@pytest.mark.parametrize("who", RESTRICTED)
def test_no_name_of_either_version_permits_more_than_that_of_version_1(who: str, agent: int) -> None:
    """A client may know the names of the other version, and leave out the session."""
    scene, _ = opened(agent, common=True)
    peers = {version: restricted(scene, who, version) for version in (1, 2)}
    refused = 0
    for row in SERVED:
        names = {name for name in (row.old, row.new) if name is not None}
        for params in (PARAMS, {name: value for name, value in PARAMS.items() if name != "sessionId"}):
            if names.isdisjoint(ANSWERED) and is_refused(scene, peers[1], row.old or row.new or "", params):
                refused += 1
                for version, peer in peers.items():
                    for name in names:
                        peer.request(name, **params)
                        assert scene.agent.heard() == [], (name, version)
                        assert any("error" in message for message in peer.heard())
    assert refused > 3


def look_for_client(check: DirectoryCheck) -> DirectoryCheckResult:
    """Return the result of a directory check, by the workspaces of the client."""
    others = [
        path for path in check.directories if path.split("/")[2] not in (check.request.client.reach.workspaces or ())
    ]
    problem = Problem(f"no {others[0]} here", {"reason": "none"}) if others else None
    return DirectoryCheckResult(problem, "a", Location("/srv/a", "a"))


@pytest.mark.parametrize("agent", [1, 2])
def test_a_session_of_version_2_is_opened_in_the_workspaces_of_its_client_alone(agent: int) -> None:
    scene, _ = opened(agent)
    peer = restricted(scene, "workspaces", 2)
    scene.look = look_for_client
    scene.audit_events.clear()
    requests = (
        ("session/new", {"cwd": "/srv/b"}),
        ("session/new", {"cwd": "/srv/a", "additionalDirectories": ["/srv/b/c"]}),
        ("session/resume", {"sessionId": "past", "cwd": "/srv/b", "replayFrom": {"type": "start"}}),
        ("session/resume", {"sessionId": "s", "cwd": "/srv/b"}),
        ("session/prompt", {"sessionId": "s", "prompt": [block("go")]}),
    )
    for method, params in requests:
        peer.request(method, **params)
        assert scene.agent.heard() == [], params
        assert "error" in peer.hears(), params
    assert {event.name for event in scene.audit_events} <= {"cwd_refused"}
    peer.request("session/new", cwd="/srv/a")
    assert scene.agent.takes("session/new")["params"]["cwd"] == "/srv/a"


LOCAL: list[Json] = [
    {"type": "stdio", "name": "files", "command": "files"},
    {"type": "http", "name": "notes", "url": "http://127.0.0.1:3000/mcp"},
]
ELSEWHERE = {"type": "http", "name": "docs", "url": "https://mcp.example.com/mcp", "headers": []}


@pytest.mark.parametrize("agent", [1, 2])
@pytest.mark.parametrize("method", ["session/new", "session/resume"])
def test_local_servers_of_version_2_fall_under_the_policy(method: str, agent: int) -> None:
    for policy, kept in (("drop", []), (("files",), ["files"]), ("allow", ["files", "notes"])):
        scene, ann = opened(agent, mcp_servers=policy)
        ann.request(method, sessionId="past", cwd="/srv/b", mcpServers=[*LOCAL, ELSEWHERE])
        asked = scene.agent.hears()
        assert [server["name"] for server in asked["params"]["mcpServers"]] == [*kept, "docs"]
        dropped = [event.details["name"] for event in scene.audit_events if event.name == "mcp_server_dropped"]
        assert dropped == [server["name"] for server in LOCAL if server["name"] not in kept]


@pytest.mark.parametrize("agent", [1, 2])
def test_local_servers_of_version_2_are_refused_where_they_are_denied(agent: int) -> None:
    scene, ann = opened(agent, mcp_servers="deny")
    odd = {"type": "_own", "name": "odd", "command": "files"}
    for servers in ([LOCAL[0]], [ELSEWHERE, LOCAL[1]], [odd]):
        ann.request("session/new", cwd="/srv/b", mcpServers=servers)
        assert scene.agent.heard() == []
        assert ann.hears()["error"]["code"] in (-32600, -32602)


@pytest.mark.parametrize("agent", [1, 2])
def test_requests_of_version_2_have_the_limits_of_version_1(agent: int) -> None:
    limits = {"mcp_servers": "drop", "max_prompt_blocks": 2, "session_request_size": 2000, "max_mcp_servers": 2}
    scene, ann = opened(agent, **limits, max_additional_directories=1)
    requests: list[tuple[str, Json, str]] = [
        ("session/prompt", {"prompt": [block("a")] * 3}, "max_prompt_blocks"),
        ("session/set_config_option", {"configId": "o", "type": "id", "value": "v" * 2000}, "session_request_size"),
        ("session/new", {"cwd": "/srv", "mcpServers": [ELSEWHERE] * 3}, "max_mcp_servers"),
        ("session/new", {"cwd": "/srv", "additionalDirectories": ["/srv"] * 2}, "max_additional_directories"),
    ]
    for method, params, limit in requests:
        ann.request(method, **{"sessionId": "s"} | params)
        assert scene.agent.heard() == [], method
        assert limit in ann.hears()["error"]["message"]


@pytest.mark.parametrize("agent", [1, 2])
def test_members_of_version_2_have_one_spelling(agent: int) -> None:
    scene, ann = opened(agent)
    odd: list[tuple[str, Json]] = [
        ("session/resume", {"session_id": "s", "cwd": "/srv"}),
        ("session/new", {"cwd": "/srv", "Cwd": "/etc"}),
        ("session/new", {"cwd": "/srv", "mcp_servers": LOCAL}),
        ("session/set_config_option", {"sessionId": "s", "config_id": "o", "type": "id", "value": "v"}),
        ("session/prompt", {"sessionId": "s", "Prompt": [block("go")], "prompt": [block("go")]}),
        ("auth/login", {"method_id": "m"}),
    ]
    for method, params in odd:
        ann.request(method, **params)
        assert scene.agent.heard() == [], params
        answer = ann.hears()["error"]["message"]
        assert "must have that very name" in answer or "is repeated" in answer


def test_a_question_of_version_2_has_at_most_max_permission_options() -> None:
    scene, ann = opened(2, max_permission_options=3)
    options = [{"optionId": f"o{number}", "name": "O", "kind": "_own"} for number in range(4)]
    for count in (3, 4):
        ask(scene, {"type": "command", "command": "rm", "cwd": "/w"}, options[:count])
        assert bool(ann.heard()) == (count == 3)
    assert "max_permission_options" in scene.agent.hears()["error"]["message"]


def ask(scene: Scene, subject: Json, options: list[Json] | None = None) -> None:
    """Request a permission about a subject of version 2."""
    options = options or [
        {"optionId": "y", "name": "s3cret", "kind": "_for_an_hour"},
        {"optionId": "n", "name": "N", "kind": "reject_once"},
    ]
    params = {"sessionId": "s", "title": "s3cret", "description": "s3cret", "subject": subject, "options": options}
    scene.agent.send(id="q", method="session/request_permission", params=params)


def test_the_audit_has_the_begin_and_the_end_of_each_tool_call_of_version_2() -> None:
    scene, _ = opened(2)
    for number, end in enumerate(("completed", "failed", "cancelled")):
        call = {"toolCallId": f"t{number}"}
        for members in (
            {"title": "s3cret", "kind": "edit", "status": "pending"},
            {"status": "in_progress", "content": [DIFF]},
            {"status": "paused"},
            {"rawOutput": "s3cret"},
            {"status": end},
        ):
            scene.agent.say(told("tool_call_update", **call, **members))
    # The first word of a tool call may be a part of its content.
    piece = {"type": "content", "content": block("s3cret")}
    scene.agent.say(told("tool_call_content_chunk", toolCallId="t9", content=piece))
    begun = {event.details["toolCallId"] for event in scene.audit_events if event.details.get("status") == "pending"}
    assert begun == {"t0", "t1", "t2"}
    assert [(event.name, event.details["toolCallId"], event.details["status"]) for event in scene.audit_events] == [
        *(
            ("tool_call", f"t{number}", status)
            for number, end in enumerate(("completed", "failed", "failed"))
            for status in ("pending", end)
        ),
        ("tool_call", "t9", None),
    ]
    assert "s3cret" not in repr(scene.audit_events)


@pytest.mark.parametrize(
    ("subject", "kind"),
    [
        ({"type": "command", "command": "s3cret", "cwd": "/w", "toolCallId": "t"}, "execute"),
        ({"type": "tool_call", "toolCall": {"toolCallId": "t", "kind": "edit", "content": [DIFF]}}, "edit"),
        ({"type": "_own", "toolCallId": "t", "x": "s3cret"}, "other"),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_the_audit_has_each_decision_about_a_subject_of_version_2(subject: Json, kind: str, version: int) -> None:
    scene, _ = opened(2)
    peer, observer = restricted(scene, "one session", version), restricted(scene, "observer", version)
    ask(scene, subject)
    asked = next(message for message in peer.heard() if message.get("method") == "session/request_permission")
    assert [message for message in observer.heard() if "id" in message] == []
    observer.choose(asked, "y")
    assert scene.agent.heard() == []
    peer.choose(asked, "y")
    assert scene.agent.hears()["result"]["outcome"]["optionId"] == "y"
    (decided,) = (event for event in scene.audit_events if event.name == "permission_decided")
    assert decided.client is peer.client
    assert {name: decided.details[name] for name in ("toolCallId", "kind", "decision")} == {
        "toolCallId": "t",
        "kind": kind,
        "decision": "y",
    }
    assert "s3cret" not in repr(scene.audit_events)
