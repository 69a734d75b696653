"""Calls of the archive when sessions change."""

import pytest

from acp_gateway.core.sessions import registry as registry_module
from acp_gateway.core.sessions.archive import NO_ARCHIVE, NoArchive
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Session
from acp_gateway.core.turns.journal import Journal
from acp_gateway.protocol.text.pairs import texts_of
from tests.kit.registered import ME, YOU, live, past, session
from tests.kit.scene import Peer, Scene, Shelf, opened_scene


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def opened(shelf: Shelf) -> tuple[Scene, Peer]:
    capabilities = {"loadSession": True, "sessionCapabilities": {"close": {}}}
    scene, ann = opened_scene(registry=Registry("me", shelf, "run"), agentCapabilities=capabilities)
    return scene, ann


# What is kept for another process of the gateway.


def test_a_session_is_kept_with_its_directory_from_the_beginning(shelf: Shelf) -> None:
    opened(shelf)
    assert shelf.told == [("keep", "s")]
    assert list(shelf.shown.values()) == [{"cwd": "/srv", "title": None, "updatedAt": None}]


def test_another_title_is_kept_and_the_same_once(shelf: Shelf) -> None:
    scene, _ = opened(shelf)
    for _ in range(2):
        scene.agent.state("session_info_update", title="a title")
    scene.agent.state("plan", entries=[])
    assert shelf.told[1:] == [("write", "s"), ("keep", "s"), ("write", "s"), ("write", "s")]
    assert list(shelf.shown.values()) == [{"cwd": "/srv", "title": "a title", "updatedAt": None}]


def test_the_first_prompt_gives_a_title_that_the_agent_may_replace(shelf: Shelf) -> None:
    scene, ann = opened(shelf)
    for text in ("fix the build\nplease", "and now the tests"):
        ann.prompt(text)
        scene.agent.answers("session/prompt", stopReason="end_turn")
        assert list(shelf.shown.values()) == [{"cwd": "/srv", "title": "fix the build", "updatedAt": None}]
    scene.agent.state("session_info_update", title="The build")
    ann.prompt("again")
    assert list(shelf.shown.values()) == [{"cwd": "/srv", "title": "The build", "updatedAt": None}]


def test_what_was_said_is_written_and_where_a_turn_ends(shelf: Shelf) -> None:
    scene, ann = opened(shelf)
    ann.prompt()
    scene.agent.update("talk")
    scene.agent.answers("session/prompt", stopReason="end_turn")
    assert shelf.told[1:] == [("keep", "s"), ("write", "s"), ("extend", "s"), ("end_turn", "s")]
    (kept,) = shelf.journals.values()
    assert kept.runs() == scene.session().journal.runs()
    ann.prompt()
    scene.lose_agent()
    assert shelf.told[-1] == ("end_turn", "s")


def test_updates_of_any_kind_are_history_verbatim_and_neither_responses_nor_requests_are(shelf: Shelf) -> None:
    scene, ann = opened(shelf)
    ann.prompt()
    update = b'{"method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":%b,"n":1.10}}}'
    image = b'{"type":"image","mimeType":"image/png","data":"AAAA"}'
    said = [update % kind for kind in (b'"of another version"', b'"agent_message_chunk","content":' + image, b"null")]
    for text in said:
        scene.agent.say(text)
    scene.agent.ask_permission()
    ann.choose(ann.heard()[-1], "yes")
    scene.agent.send(id=scene.agent.heard()[0]["id"], result={"stopReason": "end_turn"})
    assert scene.session().journal.replay()[1:] == said
    (kept,) = shelf.journals.values()
    assert kept.replay()[1:] == said
    joiner = scene.join("joiner")
    joiner.request("session/load", sessionId="s", cwd="/srv", mcpServers=[])
    assert joiner.heard_text()[1:-1] == said


def test_the_end_of_its_life_is_kept_and_its_journal_stays(shelf: Shelf) -> None:
    scene, ann = opened(shelf)
    scene.agent.update("talk")
    ann.request("session/close", sessionId="s")
    scene.agent.answers("session/close")
    assert shelf.told[-2:] == [("finish_journal", "s"), ("keep", "s")]
    (kept,) = shelf.journals.values()
    assert kept.position == 1


def test_another_history_replaces_the_one_that_was_kept(shelf: Shelf) -> None:
    scene, ann = opened(shelf)
    scene.agent.update("talk")
    ann.request("session/fork", sessionId="s", cwd="/srv", mcpServers=[])
    scene.agent.answers("session/fork", sessionId="t")
    assert shelf.told[-1] == ("replace", "t")
    (kept,) = [journal for session, journal in shelf.journals.items() if session.id == "t"]
    assert (kept.epoch, kept.position) == scene.place("t")
    assert scene.place("t")[0] != scene.place("s")[0]


def test_what_is_deleted_is_not_kept_and_what_comes_late_is_not_written(shelf: Shelf) -> None:
    scene, ann = opened(shelf)
    ann.request("session/set_mode", sessionId="s", modeId="ask")
    late = scene.agent.takes("session/set_mode")
    ann.request("session/set_config_option", sessionId="s")
    later = scene.agent.takes("session/set_config_option")
    ann.request("session/delete", sessionId="s")
    scene.agent.answers("session/delete")
    assert shelf.told[-1] == ("remove", "s")
    assert shelf.journals == {}
    ann.heard()
    scene.agent.answer(late)
    scene.agent.answer(later, configOptions=[])
    assert len(ann.heard()) == 2
    assert shelf.told[-1] == ("remove", "s")


def test_what_comes_late_for_one_that_is_being_opened_again_is_not_written(shelf: Shelf) -> None:
    scene, ann = opened(shelf)
    ann.request("session/set_mode", sessionId="s", modeId="ask")
    late = scene.agent.takes("session/set_mode")
    ann.request("session/close", sessionId="s")
    scene.agent.answers("session/close")
    ann.request("session/load", sessionId="s", cwd="/srv", mcpServers=[])
    told = list(shelf.told)
    scene.agent.heard()
    scene.agent.answer(late)
    assert shelf.told == told


def test_nothing_of_mcp_servers_is_stored(shelf: Shelf) -> None:
    scene, ann = opened(shelf)
    servers = [{"name": "x", "command": "SECRET", "env": [{"name": "TOKEN", "value": "SECRET"}]}]
    ann.request("session/new", cwd="/srv", mcpServers=servers)
    scene.agent.answers("session/new", sessionId="t")
    ann.request("session/close", sessionId="t")
    scene.agent.answers("session/close")
    assert "SECRET" not in str(list(shelf.shown.values()))
    assert all(b"SECRET" not in b"".join(texts_of(journal.replay())) for journal in shelf.journals.values())
    (past,) = [session for session in shelf.shown if session.id == "t"]
    assert past.setup == {"cwd": b'"/srv"'}


def test_who_takes_the_place_of_another_and_who_is_forgotten_are_not_kept(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "MAX_REMEMBERED", 1)
    registry = Registry("me", shelf)
    first = past(registry)
    again = past(registry)
    assert shelf.told == [("keep", "s")] * 5 + [("remove", "s")]
    assert set(shelf.shown) == {again} != {first}
    other = past(registry, "t")
    assert set(shelf.shown) == {other}


def test_without_an_archive_nothing_is_held() -> None:
    it = session()
    archive = NoArchive()
    for tell in (archive.keep, archive.remove, archive.end_turn, archive.replace, archive.note_change):
        tell(it)
    archive.write(it, b"{}", None, None)
    assert not archive.holds(it)


def test_a_session_of_an_earlier_process_is_known_and_can_be_opened_again_where_it_was(shelf: Shelf) -> None:
    registry = Registry("me", shelf)
    it = session()
    it.cwd = "/srv/x"
    it.keep_directory()
    assert it.setup == {"cwd": b'"/srv/x"'}
    registry.restore(it)
    assert registry.find(ME, "agent", "s") is it
    assert registry.find(YOU, "agent", "s") is None
    assert not it.live
    assert it.archive is shelf
    assert shelf.told == []
    other = live(registry)
    assert registry.find(ME, "agent", "s") is other
    assert shelf.told == [("keep", "s"), ("keep", "s")]


def test_of_one_whose_directory_is_not_known_nothing_is_known_of_how_to_open_it() -> None:
    it = session()
    it.keep_directory()
    assert it.setup == {}


def test_no_archive_holds_and_has_lost_nothing() -> None:
    session = Session("agent", "s", "me", Journal(1000))
    assert not NO_ARCHIVE.holds(session)
    assert NO_ARCHIVE.loss(session) is None
