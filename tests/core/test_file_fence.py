"""Files of the client that an agent may use."""

from typing import Any

import pytest

from acp_gateway.core.access_rules import PATH_SIZE, flaw_of_file_request, flaw_of_path
from acp_gateway.core.agent_requests import AgentRequest
from acp_gateway.core.sessions.archive import NoArchive
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Session
from acp_gateway.core.turns.journal import Journal
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import InvalidMessage
from acp_gateway.protocol.methods import Capability
from acp_gateway.protocol.text import strict_parsing
from tests.kit.scene import Peer, Scene, make_policy

FS = frozenset({Capability.FS})
READ = "fs/read_text_file"


@pytest.mark.parametrize(
    ("path", "directory"),
    [
        ("/srv/proj/a.py", "/srv/proj"),
        ("/srv/proj", "/srv/proj"),
        ("/srv/proj/", "/srv/proj/"),
        ("/srv/proj/./a//b", "/srv//proj/."),
        ("/srv/proj/..a/b../.c", "/srv/proj"),
        ("/srv/proj/a.py", "/srv/other/../proj"),
        ("/etc/passwd", "/"),
    ],
)
def test_a_path_in_a_directory_passes(path: str, directory: str) -> None:
    assert flaw_of_path(path, [directory]) is None
    assert flaw_of_path(path, ["/nowhere", directory]) is None


@pytest.mark.parametrize(
    "path",
    [
        *("", "a.py", "srv/proj/a.py", "~/a", "C:\\srv\\proj\\a", "file:///srv/proj/a"),
        *("/srv/project/a", "/srv/proj2", "/srv", "/", "/etc/passwd", "/SRV/proj/a", "/srv/Proj/a"),
        *("/srv/proj/../other", "/srv/proj/a/../../other", "/srv/proj/..", "/../srv/proj/a", "/srv/proj/a/.."),
        *("/srv/proj/..\\..\\other", "/srv/proj/a\\..\\..\\b", "/srv/proj/.. /x", "/srv/proj/.../x", "/srv/proj/. ./x"),
        *("//srv/proj/a", "/srv//proj/a", "/./srv/proj/a", "\\srv\\proj\\a", "/srv/proj\\a"),
        *("/srv/proj/a\0", "/srv/proj/" + "a" * PATH_SIZE),
    ],
)
def test_a_path_that_may_leave_the_directory_is_refused(path: str) -> None:
    assert flaw_of_path(path, ["/srv/proj"]) is not None


@pytest.mark.parametrize("path", ["//host", "//host/share", "/\\host\\share"])
def test_a_path_on_another_machine_is_refused_below_the_root_directory(path: str) -> None:
    assert flaw_of_path(path, ["/"]) is not None


@pytest.mark.parametrize("directories", [[], ["proj"], [""], ["~"]])
def test_no_path_passes_without_an_absolute_directory(directories: list[str]) -> None:
    assert flaw_of_path("/srv/proj/a", directories) is not None


def opened(*, shared: bool = True, **params: Any) -> tuple[Scene, Peer]:
    scene = Scene(make_policy(shared=shared, serves=FS))
    ann = scene.join("ann")
    ann.request("session/new", **({"cwd": "/srv/proj", "mcpServers": []} | params))
    scene.agent.answers("session/new", sessionId="s")
    ann.heard()
    scene.audit_events.clear()
    return scene, ann


def ask(scene: Scene, path: Any, method: str = READ, session_id: str = "s") -> None:
    scene.agent.send(id="q", method=method, params={"sessionId": session_id, "path": path})


@pytest.mark.parametrize("shared", [True, False], ids=["identity", "connection"])
@pytest.mark.parametrize("method", [READ, "fs/write_text_file", "read_text_file", "write_text_file"])
def test_an_agent_gets_minus_32602_for_a_file_outside_of_the_session_and_the_audit_has_it(
    method: str, shared: bool
) -> None:
    scene, ann = opened(shared=shared)
    ask(scene, "/home/ann/.ssh/id_ed25519", method)
    error = scene.agent.hears()["error"]
    assert (error["code"], error["data"]) == (-32602, {"reason": "outside"})
    assert ann.heard() == []
    (event,) = scene.audit_events
    current = method if "/" in method else f"fs/{method}"
    assert (event.name, event.client) == ("file_refused", None)
    assert event.details == {
        "session": "s",
        "agent": "agent",
        "identity": "me",
        "method": current,
        "path": "/home/ann/.ssh/id_ed25519",
        "reason": "needs a path in the session's directories",
    }
    ask(scene, "/srv/proj/a", method)
    assert ann.hears()["method"] == method


def test_additional_directories_are_within_the_fence() -> None:
    scene, ann = opened(additionalDirectories=["/srv/lib", "/srv/doc"])
    for path in ("/srv/lib/a", "/srv/doc/b"):
        ask(scene, path)
        assert ann.hears()["params"]["path"] == path
    ask(scene, "/srv/else")
    assert scene.agent.hears()["error"]["code"] == -32602


@pytest.mark.parametrize("path", [None, 7, ["/srv/proj/a"], {}])
def test_a_path_must_be_a_string(path: Any) -> None:
    scene, ann = opened()
    ask(scene, path)
    assert scene.agent.hears()["error"]["code"] == -32602
    assert ann.heard() == []


@pytest.mark.parametrize(
    "members",
    [
        b'"path":"/srv/proj/a","path":"/etc/passwd"',
        b'"path":"/etc/passwd","path":"/srv/proj/a"',
        b'"path":"/srv/proj/a","Path":"/etc/passwd"',
        b'"path":"/srv/proj/a","p\\u0061th":"/etc/passwd"',
    ],
)
def test_a_file_request_with_two_readings_is_refused(members: bytes) -> None:
    scene, ann = opened()
    scene.agent.say(b'{"id":1,"method":"fs/read_text_file","params":{"sessionId":"s",%b}}' % members)
    assert scene.agent.hears()["error"]["code"] == -32602
    assert ann.heard() == []


def file_request(path: bytes) -> jsonrpc.Message:
    return jsonrpc.parse(b'{"id":1,"method":"fs/read_text_file","params":{"path":%b}}' % path)


def test_a_session_with_a_known_directory_alone_has_that_directory() -> None:
    session = Session("agent", "s", "me", Journal(1000))
    assert flaw_of_file_request(file_request(b'"/srv/a"'), session) is not None
    session.cwd = "/srv"
    assert flaw_of_file_request(file_request(b'"/srv/a"'), session) is None
    assert flaw_of_file_request(file_request(b'"/etc/a"'), session) is not None


def test_a_file_request_that_cannot_be_checked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(text: bytes) -> Any:
        raise InvalidMessage(-32600, "nested too deeply")

    monkeypatch.setattr(strict_parsing, "parse_strictly", refuse)
    session = Session("agent", "s", "me", Journal(1000))
    session.cwd = "/srv"
    assert flaw_of_file_request(file_request(b'"/srv/a"'), session) == "can't be checked: nested too deeply"


def test_an_unknown_method_for_files_is_refused() -> None:
    scene, ann = opened()
    ask(scene, "/srv/proj/a", "fs/rename")
    assert "not known here" in scene.agent.hears()["error"]["message"]
    assert ann.heard() == []


def test_a_file_request_without_a_session_is_refused() -> None:
    scene, ann = opened()
    scene.agent.send(id=1, method=READ, params={"path": "/srv/proj/a"})
    assert scene.agent.hears()["error"]["code"] == -32602
    assert ann.heard() == []


def test_a_session_that_was_loaded_has_the_directories_of_its_load() -> None:
    scene = Scene(make_policy(serves=FS), agentCapabilities={"loadSession": True})
    ann = scene.join("ann")
    ann.request("session/load", sessionId="old", cwd="/srv/proj", mcpServers=[])
    scene.agent.answers("session/load")
    ann.heard()
    ask(scene, "/srv/proj/a", session_id="old")
    assert ann.hears()["params"]["path"] == "/srv/proj/a"
    ask(scene, "/srv/b", session_id="old")
    assert scene.agent.hears()["error"]["code"] == -32602


def test_a_file_is_not_asked_for_before_the_directories_of_the_session_are_known() -> None:
    scene = Scene(make_policy(serves=FS))
    scene.join("ann").request("session/new", cwd="/srv/proj", mcpServers=[])
    asked = scene.agent.takes("session/new")
    ask(scene, "/etc/passwd")
    assert scene.agent.heard() == []
    scene.agent.answer(asked, sessionId="s")
    assert scene.agent.hears()["error"]["code"] == -32602


class Watcher(NoArchive):
    """Sees the open requests of a session whenever that changes."""

    def __init__(self) -> None:
        self.scene: Scene | None = None
        self.seen: dict[AgentRequest, None] = {}

    def note_change(self, session: object) -> None:
        if self.scene is not None and isinstance(session, Session):
            self.seen |= dict.fromkeys(self.scene.multiplexer.waiting(session))


@pytest.mark.parametrize("method", [READ, "write_text_file"])
@pytest.mark.parametrize(
    ("serves", "path", "refused"),
    [(FS, "/srv/proj/a", False), (FS, "/etc/passwd", True), (frozenset(), "/srv/proj/a", True)],
    ids=["within", "outside", "not offered"],
)
def test_who_watches_a_session_sees_each_request_for_a_file_and_if_it_is_refused_here(
    serves: frozenset[Capability], path: str, refused: bool, method: str
) -> None:
    watcher = Watcher()
    scene = Scene(make_policy(serves=serves), Registry("me", watcher))
    scene.join("ann").request("session/new", cwd="/srv/proj", mcpServers=[])
    scene.agent.answers("session/new", sessionId="s")
    watcher.scene = scene
    ask(scene, path, method)
    (request,) = watcher.seen
    assert (request.message.method, request.fenced_off) == (method, refused)
    assert (request.session, bool(request.key)) == (scene.session(), True)
    assert (request in scene.multiplexer.waiting(scene.session())) is not refused


@pytest.mark.parametrize("session_id", ["unknown", None])
def test_a_request_that_was_not_offered_and_names_no_session_is_not_seen(session_id: Any) -> None:
    watcher = Watcher()
    scene = Scene(make_policy(), Registry("me", watcher))
    scene.join("ann").new_session()
    watcher.scene = scene
    ask(scene, "/srv/proj/a", session_id=session_id)
    assert scene.agent.hears()["error"]["code"] == -32601
    assert watcher.seen == {}


def test_a_request_for_a_terminal_that_was_not_offered_is_not_a_request_for_a_file() -> None:
    watcher = Watcher()
    scene = Scene(make_policy(), Registry("me", watcher))
    scene.join("ann").new_session()
    watcher.scene = scene
    scene.agent.send(id=1, method="terminal/create", params={"sessionId": "s", "command": "ls"})
    assert scene.agent.hears()["error"]["code"] == -32601
    assert watcher.seen == {}
