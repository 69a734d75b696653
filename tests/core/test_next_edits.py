"""Sessions for suggestions: each is that of the client which has started it, and of no other."""

from typing import Any

import pytest

from acp_gateway.core.next_edits import MAX_ENDED, MAX_SESSIONS
from acp_gateway.core.requests import DirectoryCheckResult, Problem
from acp_gateway.core.sessions.session import SESSION_ID_SIZE, Role
from tests.kit.scene import Peer, Scene, make_policy

OPENED = {"uri": "file:///srv/a.py", "languageId": "python", "version": 1, "text": "x"}


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
def ann(scene: Scene) -> Peer:
    return scene.join("ann")


def start(scene: Scene, peer: Peer, name: str = "n", **params: Any) -> None:
    """A client starts a session, and the agent names it."""
    own = peer.request("nes/start", **params)
    scene.agent.answers("nes/start", sessionId=name)
    assert peer.hears()["result"] == {"sessionId": name}, own


def error_of(peer: Peer) -> Any:
    return peer.hears()["error"]


def test_a_client_asks_for_suggestions_in_the_session_that_it_has_started(scene: Scene, ann: Peer) -> None:
    start(scene, ann, workspaceUri="file:///srv/a")
    ann.request("nes/suggest", sessionId="n", uri="file:///srv/a/b", version=1)
    asked = scene.agent.answers("nes/suggest", suggestions=[])
    assert asked["params"] == {"sessionId": "n", "uri": "file:///srv/a/b", "version": 1}
    assert ann.hears()["result"] == {"suggestions": []}
    ann.request("nes/close", sessionId="n")
    scene.agent.answers("nes/close")
    assert ann.hears()["result"] == {}
    ann.request("nes/suggest", sessionId="n")
    assert error_of(ann)["data"] == {"sessionId": "n"}


def test_a_session_for_suggestions_has_no_turn_to_cancel(scene: Scene, ann: Peer) -> None:
    start(scene, ann)
    ann.send(method="session/cancel", params={"sessionId": "n"})
    assert not scene.agent.heard()
    assert scene.notes == ["dropped a notification of ann for a session that it is not attached to"]


@pytest.mark.parametrize("method", ["nes/suggest", "nes/close"])
@pytest.mark.parametrize("params", [{"sessionId": "n"}, {"sessionId": "other"}, {"sessionId": "s"}, {}])
def test_a_session_for_suggestions_is_unknown_to_other_clients(
    scene: Scene, ann: Peer, method: str, params: dict[str, Any]
) -> None:
    bob = scene.join("bob")
    start(scene, ann)
    bob.new_session()
    bob.request(method, **params)
    assert error_of(bob)["message"].startswith(f"no session {params.get('sessionId')!r} is open on this connection")
    assert not scene.agent.heard()


def test_the_start_of_a_session_for_suggestions_names_no_session(scene: Scene, ann: Peer) -> None:
    scene.join("bob", "you").new_session()
    ann.request("nes/start", sessionId="s")
    assert error_of(ann)["data"] == {"sessionId": "s"}
    assert not scene.agent.heard()


@pytest.mark.parametrize("method", ["document/didOpen", "document/didChange", "nes/accept", "nes/reject"])
def test_what_is_told_about_files_is_told_by_the_client_whose_session_it_is(
    scene: Scene, ann: Peer, method: str
) -> None:
    bob, eve = scene.join("bob"), scene.join("eve", role=Role.OBSERVER)
    start(scene, ann)
    for peer in (bob, eve, ann):
        peer.send(method=method, params={"sessionId": "n", **OPENED})
    assert scene.agent.hears() == {"jsonrpc": "2.0", "method": method, "params": {"sessionId": "n", **OPENED}}
    assert [peer.heard() for peer in (ann, bob, eve)] == [[], [], []]
    assert scene.notes == [
        "dropped a notification of bob for a session that it is not attached to",
        "dropped a notification of eve: observers may only look",
    ]


def test_the_text_of_a_file_counts_as_more_than_one_message(scene: Scene, ann: Peer) -> None:
    start(scene, ann)
    scene.multiplexer.take_surcharge()
    for method, more in (("document/didOpen", 4), ("document/didClose", 0), ("nes/accept", 0)):
        ann.send(method=method, params={"sessionId": "n"})
        assert scene.multiplexer.take_surcharge() == more


def test_a_session_for_suggestions_is_not_listed_or_opened(scene: Scene, ann: Peer) -> None:
    start(scene, ann)
    assert not scene.multiplexer.sessions
    ann.request("session/prompt", sessionId="n", prompt=[])
    assert error_of(ann)["data"] == {"sessionId": "n"}
    assert not scene.agent.heard()


def test_the_sessions_of_a_client_that_has_gone_are_closed(scene: Scene, ann: Peer) -> None:
    bob = scene.join("bob")
    start(scene, ann, "1")
    start(scene, bob, "2")
    start(scene, ann, "3")
    ann.away()
    assert not scene.agent.heard()
    ann.gone()
    asked = scene.agent.heard()
    assert [(each["method"], each["params"]) for each in asked] == [
        ("nes/close", {"sessionId": "1"}),
        ("nes/close", {"sessionId": "3"}),
    ]
    # An agent that never answers these may be stopped nevertheless.
    assert not scene.multiplexer.busy
    scene.agent.answer(asked[0])
    bob.request("nes/suggest", sessionId="2")
    scene.agent.answers("nes/suggest", suggestions=[])
    assert bob.hears()["result"] == {"suggestions": []}


def test_a_session_that_is_named_to_a_client_that_has_gone_is_closed(scene: Scene, ann: Peer) -> None:
    ann.request("nes/start")
    asked = scene.agent.takes("nes/start")
    ann.gone()
    scene.agent.answer(asked, sessionId="n")
    assert scene.agent.takes("nes/close")["params"] == {"sessionId": "n"}


@pytest.mark.parametrize("end", ["lose_agent", "stop_agent", "retire"])
def test_a_session_for_suggestions_ends_with_the_agent(scene: Scene, ann: Peer, end: str) -> None:
    start(scene, ann)
    getattr(scene, end)()
    ann.gone()
    assert not scene.agent.heard()


@pytest.mark.parametrize("method", ["nes/suggest", "nes/close"])
def test_its_client_is_told_that_it_has_ended_with_the_agent_and_starts_another_one(
    scene: Scene, ann: Peer, method: str
) -> None:
    bob = scene.join("bob")
    start(scene, ann)
    scene.lose_agent()
    ann.request(method, sessionId="n")
    scene.agent.answers("initialize", **scene.welcome)
    error = error_of(ann)
    assert error["data"] == {"sessionId": "n", "reason": "agent_ended"}
    assert error["message"] == "session n has ended with the agent's process; nes/start starts another one"
    bob.request(method, sessionId="n")
    assert error_of(bob)["data"] == {"sessionId": "n"}
    bob.gone()
    ann.request(method, sessionId="n")
    assert error_of(ann)["data"]["reason"] == "agent_ended"
    assert not scene.agent.heard()
    # The new process may name it the same.
    start(scene, ann)
    ann.request(method, sessionId="n")
    scene.agent.answers(method)
    assert ann.hears()["result"] == {}


def test_the_sessions_that_have_ended_are_forgotten(scene: Scene, ann: Peer) -> None:
    bob = scene.join("bob")
    for number in range(MAX_ENDED // MAX_SESSIONS + 1):
        for count in range(MAX_SESSIONS):
            start(scene, ann, f"{number}-{count}")
        scene.lose_agent()
        bob.request("session/list")
        scene.agent.answers("initialize", **scene.welcome)
        scene.agent.heard()
    reasons = []
    for name in ("0-0", "1-0"):
        ann.request("nes/suggest", sessionId=name)
        reasons.append(error_of(ann)["data"].get("reason"))
    assert reasons == [None, "agent_ended"]


def test_a_client_that_goes_while_the_agent_starts_again_closes_nothing(scene: Scene, ann: Peer) -> None:
    scene.lose_agent()
    ann.request("nes/start")
    asked = scene.agent.takes("initialize")
    ann.gone()
    scene.agent.answer(asked, **scene.welcome)
    assert not scene.agent.heard()


@pytest.mark.parametrize("name", ["n", "s", "x" * (SESSION_ID_SIZE + 1)])
def test_a_name_of_another_session_is_not_taken(scene: Scene, ann: Peer, name: str) -> None:
    bob = scene.join("bob")
    start(scene, ann)
    ann.new_session()
    bob.request("nes/start")
    scene.agent.answers("nes/start", sessionId=name)
    assert error_of(bob)["data"] == {"reason": "bad_session"}
    bob.request("nes/suggest", sessionId=name)
    assert "error" in bob.hears()
    assert not scene.agent.heard()


def test_an_agent_that_starts_none_answers_for_itself(scene: Scene, ann: Peer) -> None:
    ann.request("nes/start")
    scene.agent.refuses("nes/start", -32601, "no such method")
    assert error_of(ann) == {"code": -32601, "message": "no such method"}
    ann.request("nes/start")
    scene.agent.answers("nes/start")
    assert ann.hears()["result"] == {}


def test_a_client_has_a_limited_number_of_sessions_for_suggestions(scene: Scene, ann: Peer) -> None:
    start(scene, ann)
    ann.request("nes/suggest", sessionId="n")
    scene.join("bob").request("nes/start")
    scene.agent.heard()
    for _ in range(MAX_SESSIONS - 1):
        ann.request("nes/start")
    assert len(scene.agent.heard()) == MAX_SESSIONS - 1
    ann.request("nes/start")
    error = error_of(ann)
    assert error["message"] == "a connection has at most 16 sessions for suggestions; close some"
    assert error["data"] == {"reason": "too_many_sessions"}
    assert not scene.agent.heard()


# Directories.


@pytest.mark.parametrize(
    ("params", "directories"),
    [
        ({"workspaceUri": "file:///srv/a"}, ("/srv/a",)),
        ({"workspaceUri": "FILE://localhost/srv/a%20b"}, ("/srv/a b",)),
        (
            {"workspaceUri": "file:///srv/a", "workspaceFolders": [{"uri": "file:///srv/b", "name": "b"}]},
            ("/srv/a", "/srv/b"),
        ),
        ({"workspaceFolders": [{"uri": "file:///srv/%2e%2e/b"}], "workspaceUri": None}, ("/srv/../b",)),
        ({"workspaceUri": "file:///srv/\u00e4"}, ("/srv/\u00e4",)),
    ],
)
def test_the_directories_of_the_workspace_are_checked(
    scene: Scene, ann: Peer, params: dict[str, Any], directories: tuple[str, ...]
) -> None:
    scene.look = None
    ann.request("nes/start", **params)
    assert not scene.agent.heard()
    (check,) = scene.directory_checks
    assert check.directories == directories
    scene.directory_check(DirectoryCheckResult())
    scene.agent.answers("nes/start", sessionId="n")
    assert ann.hears()["result"] == {"sessionId": "n"}


def test_a_workspace_that_is_not_permitted_is_refused(scene: Scene, ann: Peer) -> None:
    scene.look = None
    ann.request("nes/start", workspaceUri="file:///etc")
    scene.directory_check(DirectoryCheckResult(Problem("no /etc here", {"cwd": "/etc", "reason": "none"})))
    assert error_of(ann)["message"] == "no /etc here"
    assert [event.name for event in scene.audit_events] == ["cwd_refused"]
    assert not scene.agent.heard()


@pytest.mark.parametrize("params", [{}, {"workspaceUri": None, "workspaceFolders": []}])
def test_only_a_client_that_may_use_all_workspaces_need_name_none(
    scene: Scene, ann: Peer, params: dict[str, Any]
) -> None:
    limited = scene.join("limited", workspaces=("a",))
    limited.request("nes/start", **params)
    assert error_of(limited)["data"] == {"reason": "outside_workspaces"}
    assert not scene.agent.heard()
    start(scene, limited, "m", workspaceUri="file:///srv/a")
    start(scene, ann, **params)


@pytest.mark.parametrize(
    "uri",
    [
        *(5, "", "/srv/a", "srv", ["file:///srv"], {"uri": "file:///srv"}, True),
        *(
            "file:/srv/a",
            "file:srv",
            "file://host/srv",
            "https://h/srv",
            "untitled:a",
            "file:///srv/a?b",
            "file:///a#b",
        ),
        # Some parsers take a backslash for a slash, or leave these characters out.
        *("file:///srv/..\\..\\etc", "file:///srv/.\t./etc", "file:///srv/.\n./etc", " file:///srv", "file:///srv/%ff"),
    ],
)
@pytest.mark.parametrize("member", ["workspaceUri", "workspaceFolders"])
def test_a_workspace_that_is_not_a_plain_uri_of_a_file_is_refused(
    scene: Scene, ann: Peer, uri: Any, member: str
) -> None:
    ann.request("nes/start", **{member: uri if member == "workspaceUri" else [{"uri": uri}]})
    error = error_of(ann)
    assert error["code"] == -32602
    assert error["message"] == "the workspaces of nes/start must be URIs such as file:///srv/project"
    assert not scene.agent.heard()


@pytest.mark.parametrize(
    "folders",
    [
        *('"file:///srv"', "5", '{"uri":"file:///srv"}', '["file:///srv"]', "[{}]", "[null]", "[[]]"),
        *('[{"URI":"file:///srv"}]', '[{"uri":"file:///srv","Uri":"file:///etc"}]'),
        '[{"uri":"file:///srv","uri":"file:///etc"}]',
        '[{"uri":"file:///srv"},{"uri":"file:///srv"},{"uri":"file:///srv"}]',
    ],
)
def test_folders_that_could_be_read_in_another_way_are_refused(folders: str) -> None:
    scene = Scene(make_policy(max_additional_directories=2))
    ann = scene.join("ann")
    ann.say(b'{"id":1,"method":"nes/start","params":{"workspaceFolders":%b}}' % folders.encode())
    assert error_of(ann)["code"] == -32602
    assert not scene.agent.heard()
