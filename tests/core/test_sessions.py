"""Sessions and who may see them: the rules that everything else relies on."""

from typing import Any

import pytest

from acp_gateway.core import sessions
from acp_gateway.core.journal import Journal
from acp_gateway.core.sessions import Client, NoArchive, Presence, Registry, Request, Role, Session, SessionScope
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import parse
from tests.core.scene import Peer, Scene, Shelf


class AgentHandle:
    abandoned = False


def session(session_id: str = "s", owner: str = "me", agent: str = "agent") -> Session:
    return Session(agent, session_id, owner, Journal(1000))


def live(registry: Registry, *args: str) -> Session:
    it = session(*args)
    registry.add(it, AgentHandle())
    return it


def past(registry: Registry, *args: str) -> Session:
    it = live(registry, *args)
    registry.end(it)
    return it


def message(text: str) -> Any:
    return parse(text.encode())


ME, YOU, GUEST = SessionScope("me"), SessionScope("you"), SessionScope("guest-1", only="s", guest=True)

# Who sees what.


@pytest.mark.parametrize(
    ("viewer", "session_id", "owner", "sees"),
    [
        (ME, "s", "me", True),
        (ME, "s", "you", False),
        (SessionScope("me", only="s"), "s", "me", True),
        (SessionScope("me", only="s"), "t", "me", False),
        (SessionScope("me", only="s"), "s", "you", False),
        (GUEST, "s", "me", True),
        (GUEST, "s", "you", True),
        (GUEST, "t", "me", False),
        (GUEST, "t", "guest-1", False),
    ],
)
def test_who_sees_a_session(viewer: SessionScope, session_id: str, owner: str, *, sees: bool) -> None:
    assert viewer.sees(session(session_id, owner)) is sees


@pytest.mark.parametrize(
    ("viewer", "session_id", "may"),
    [
        (ME, "unknown", True),
        (ME, "known", False),
        (YOU, "unknown", False),
        (SessionScope("me", only="unknown"), "unknown", True),
        (SessionScope("me", only="unknown"), "other", False),
        (SessionScope("me", only="unknown", guest=True), "unknown", False),
    ],
)
def test_what_was_never_registered_may_be_the_gateways_own_users_and_nobody_elses(
    viewer: SessionScope, session_id: str, *, may: bool
) -> None:
    registry = Registry("me")
    past(registry, "known", "you")
    assert registry.may_exist(viewer, "agent", session_id) is may


@pytest.mark.parametrize(("owner", "is_live", "may"), [("me", False, True), ("me", True, False), ("you", False, False)])
def test_what_another_agent_has_under_an_id_may_be_this_ones_too_for_it_can_be_the_same_disk(
    owner: str, *, is_live: bool, may: bool
) -> None:
    registry = Registry("me")
    elsewhere = live(registry, "s", owner, "another name for it")
    if not is_live:
        registry.end(elsewhere)
    assert registry.may_exist(ME, "agent", "s") is may
    registry.remove(elsewhere)
    assert registry.may_exist(ME, "agent", "s")


def test_of_several_agents_that_have_an_id_each_one_counts() -> None:
    registry = Registry("me")
    mine, yours = past(registry, "s", "me", "one"), past(registry, "s", "you", "two")
    registry.remove(mine)
    assert not registry.may_exist(ME, "agent", "s")
    registry.remove(yours)
    assert registry.may_exist(ME, "agent", "s")


# The registry.


def test_a_session_is_found_by_its_agent_and_id_by_who_may_see_it() -> None:
    registry = Registry("me")
    mine = live(registry, "s", "me")
    yours = live(registry, "t", "you")
    assert registry.find(ME, "agent", "s") is mine
    assert registry.find(YOU, "agent", "t") is yours
    assert registry.find(GUEST, "agent", "s") is mine
    assert registry.find(YOU, "agent", "s") is registry.find(ME, "agent", "t") is None
    assert registry.find(ME, "other agent", "s") is registry.find(ME, "agent", "unknown") is None


def test_whose_a_session_was_stays_known_when_it_has_ended() -> None:
    registry = Registry("me")
    it = past(registry, "s", "you")
    assert not it.live
    assert registry.find(YOU, "agent", "s") is it
    assert registry.known("agent", "s")
    assert not registry.known("agent", "t")
    assert not registry.known("other agent", "s")


def test_of_two_that_counted_to_the_same_name_everybody_finds_their_own() -> None:
    registry = Registry("me")
    mine, yours = live(registry, "1", "me"), live(registry, "1", "you")
    assert registry.find(ME, "agent", "1") is mine
    assert registry.find(YOU, "agent", "1") is yours
    assert list(registry) == [mine, yours]


def test_a_live_one_is_found_before_one_that_has_ended() -> None:
    registry = Registry("me")
    first, second = live(registry, "1"), live(registry, "1")
    registry.end(first)
    assert registry.find(ME, "agent", "1") is second


def test_a_new_session_takes_the_place_of_an_ended_one_of_its_owner_and_of_nobody_elses() -> None:
    registry = Registry("me")
    past(registry, "1", "me")
    yours = past(registry, "1", "you")
    mine = live(registry, "1", "me")
    assert list(registry) == [yours, mine]


def test_a_session_that_is_opened_again_is_the_same_one() -> None:
    registry = Registry("me")
    it = past(registry)
    registry.add(it, AgentHandle())
    registry.add(it, AgentHandle())
    assert it.live
    assert list(registry) == [it]


def test_a_guest_finds_nothing_where_it_is_not_clear_whose_session_was_meant() -> None:
    registry = Registry("me")
    mine, yours = live(registry, "s", "me"), live(registry, "s", "you")
    assert registry.find(GUEST, "agent", "s") is None
    registry.end(yours)
    assert registry.find(GUEST, "agent", "s") is mine


def test_a_session_that_was_removed_was_never_there() -> None:
    registry = Registry("me")
    it = live(registry)
    registry.remove(it)
    registry.remove(it)
    assert not it.live
    assert list(registry) == []
    assert not registry.known("agent", "s")
    assert registry.may_exist(ME, "agent", "s")


def test_removing_one_leaves_another_of_its_name() -> None:
    registry = Registry("me")
    mine, yours = live(registry, "1", "me"), live(registry, "1", "you")
    registry.remove(mine)
    assert list(registry) == [yours]


def test_only_so_many_that_have_ended_are_remembered_and_live_ones_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "REMEMBERED", 2)
    registry = Registry("me")
    kept = live(registry, "live", "you")
    for name in ("a", "b", "c"):
        past(registry, name, "you")
    assert [it.id for it in registry] == ["live", "b", "c"]
    again = registry.find(YOU, "agent", "b")
    assert again is not None
    registry.add(again, AgentHandle())
    past(registry, "d", "you")
    assert [it.id for it in registry] == ["live", "b", "c", "d"]
    assert kept.live


def test_nobody_can_have_the_sessions_of_others_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "REMEMBERED", 4)
    registry = Registry("me")
    past(registry, "old", "me")
    for number in range(10):
        past(registry, f"new {number}", "you")
    assert [it.id for it in registry.past(SessionScope("me"))] == ["old"]
    assert [it.id for it in registry.past(SessionScope("you"))] == ["new 7", "new 8", "new 9"]


@pytest.mark.parametrize(
    ("viewer", "ids"),
    [
        (SessionScope("me"), ["r", "s"]),
        (SessionScope("you"), ["s"]),
        (SessionScope("other"), []),
        (SessionScope("me", "s"), ["s"]),
        (SessionScope("me", "t"), []),
        (SessionScope("guest-1", "s", guest=True), ["s", "s"]),
        (SessionScope("guest-1", "s", guest=True, granted_by="you"), ["s"]),
        (SessionScope("me", workspaces=("a",)), ["s"]),
        (SessionScope("me", "r", workspaces=("a",)), []),
    ],
)
def test_the_registry_lists_for_each_what_exists_for_them(viewer: SessionScope, ids: list[str]) -> None:
    registry = Registry("me")
    for session_id, owner in (("r", "me"), ("s", "me"), ("s", "you")):
        it = live(registry, session_id, owner)
        it.workspace = "a" if session_id == "s" else None
        assert it in registry.live(SessionScope(owner))
    assert [it.id for it in registry.live(viewer)] == ids
    assert registry.past(viewer) == []
    for it in list(registry):
        registry.end(it)
    assert [it.id for it in registry.past(viewer)] == ids
    assert registry.live(viewer) == []


# Clients.


@pytest.mark.parametrize(
    ("presence", "connected", "gone"),
    [(Presence.CONNECTED, True, False), (Presence.AWAY, False, False), (Presence.GONE, False, True)],
)
def test_a_client_is_connected_away_or_gone(presence: Presence, *, connected: bool, gone: bool) -> None:
    client = Client("ann", ME)
    client.presence = presence
    assert (client.connected, client.gone) == (connected, gone)


@pytest.mark.parametrize(("role", "controls"), [(Role.CONTROLLER, True), (Role.OBSERVER, False)])
def test_only_controllers_control(role: Role, *, controls: bool) -> None:
    client, it = Client("ann", ME, role), session()
    it.attached[client] = None
    assert client.controls is controls
    assert list(it.controllers()) == ([client] if controls else [])


def test_ids_for_a_client_are_never_used_twice() -> None:
    client = Client("ann", ME)
    assert [client.mint_id() for _ in range(3)] == [1, 2, 3]


def test_a_client_knows_what_it_has_asked_and_how_much_of_that_is_kept_here() -> None:
    client = Client("ann", ME)
    first = Request(client, message('{"id":"a","method":"x","params":{"sessionId":"s"}}'))
    second = Request(client, message('{"id":1,"method":"y"}'))
    client.take_on(first)
    client.take_on(second)
    assert client.requests == {"a": first, b"1": second}
    assert client.waiting_size == len(first.message.text) + len(second.message.text)
    first.forget_text()
    assert client.waiting_size == len(second.message.text)
    assert (first.id, first.message.method, first.message.session) == (b'"a"', "x", "s")
    for request in (first, second, second):
        client.settle(request)
    assert (client.requests, client.waiting_size) == ({}, 0)


def test_what_the_gateway_itself_asked_is_forgotten_as_well() -> None:
    request = Request(None, message('{"id":1,"method":"x"}'))
    request.forget_text()
    assert request.message.text == b""


# Sessions.


def test_how_a_session_was_opened_is_kept_for_opening_it_again() -> None:
    it = session()
    it.keep_setup(
        message('{"id":1,"method":"session/load","params":{"cwd":"/a","sessionId":"s","mcpServers":[{"n":1.10}]}}')
    )
    assert it.setup == {"cwd": b'"/a"', "mcpServers": b'[{"n":1.10}]'}
    assert it.cwd == "/a"
    it.keep_setup(message('{"id":1,"method":"session/load","params":{"sessionId":"s"}}'))
    assert it.setup == {}
    assert it.cwd == "/a"


@pytest.mark.parametrize(("size", "kept"), [(100, {"cwd", "x"}), (101, {"cwd"})])
def test_of_something_huge_that_a_session_was_opened_with_only_the_directory_is_kept(
    monkeypatch: pytest.MonkeyPatch, size: int, kept: set[str]
) -> None:
    monkeypatch.setattr(sessions, "SETUP_SIZE", 100)
    it = session()
    cwd = '"/a"'
    huge = "1" * (size - len(cwd))
    it.keep_setup(message(f'{{"id":1,"method":"session/new","params":{{"sessionId":"s","cwd":{cwd},"x":{huge}}}}}'))
    assert (set(it.setup), it.cwd) == (kept, "/a")


@pytest.mark.parametrize(
    ("result", "kept"),
    [
        ('{"sessionId":"s","modes":{"n":1.10},"_meta":null}', {"modes": b'{"n":1.10}', "_meta": b"null"}),
        ("null", {}),
        ("{}", {}),
        ("[]", {}),
    ],
)
def test_what_opening_a_session_returned_is_kept_but_for_its_id(result: str, kept: dict[str, bytes]) -> None:
    it = session()
    it.result = {"old": b"1"}
    it.keep_result(message(f'{{"id":1,"result":{result}}}'))
    assert it.result == kept


def test_neither_a_session_nor_a_client_tells_secrets_when_it_is_printed() -> None:
    it = session()
    it.keep_setup(message('{"id":1,"method":"session/new","params":{"cwd":"/a","mcpServers":["secret"]}}'))
    assert repr(it) == "Session(agent 's')"
    assert repr(Client("ann", ME)) == "Client(ann)"


# What is kept for another process of the gateway.


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def opened(shelf: Shelf) -> tuple[Scene, Peer]:
    capabilities = {"loadSession": True, "sessionCapabilities": {"close": {}}}
    scene = Scene(registry=Registry("me", shelf, "run"), agentCapabilities=capabilities)
    ann = scene.join("ann")
    ann.new_session()
    return scene, ann


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


def test_what_was_said_is_written_and_where_a_turn_ends(shelf: Shelf) -> None:
    scene, ann = opened(shelf)
    ann.prompt()
    scene.agent.update("talk")
    scene.agent.answers("session/prompt", stopReason="end_turn")
    assert shelf.told[1:] == [("write", "s"), ("extend", "s"), ("end_turn", "s")]
    (kept,) = shelf.journals.values()
    assert kept.runs() == scene.session().journal.runs()
    ann.prompt()
    scene.lose_agent()
    assert shelf.told[-1] == ("end_turn", "s")


def test_the_end_of_its_life_is_kept_and_its_journal_stays(shelf: Shelf) -> None:
    scene, ann = opened(shelf)
    scene.agent.update("talk")
    ann.request("session/close", sessionId="s")
    scene.agent.answers("session/close")
    assert shelf.told[-2:] == [("settle", "s"), ("keep", "s")]
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


def test_nothing_of_tool_servers_reaches_what_is_kept(shelf: Shelf) -> None:
    scene, ann = opened(shelf)
    servers = [{"name": "x", "command": "SECRET", "env": [{"name": "TOKEN", "value": "SECRET"}]}]
    ann.request("session/new", cwd="/srv", mcpServers=servers)
    scene.agent.answers("session/new", sessionId="t")
    ann.request("session/close", sessionId="t")
    scene.agent.answers("session/close")
    assert "SECRET" not in str(list(shelf.shown.values()))
    assert all(b"SECRET" not in b"".join(journal.replay()) for journal in shelf.journals.values())
    (past,) = [session for session in shelf.shown if session.id == "t"]
    assert past.setup == {"cwd": b'"/srv"'}


def test_who_takes_the_place_of_another_and_who_is_forgotten_are_not_kept(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "REMEMBERED", 1)
    registry = Registry("me", shelf)
    first = past(registry)
    again = past(registry)
    assert shelf.told == [("keep", "s"), ("keep", "s"), ("remove", "s"), ("keep", "s"), ("keep", "s")]
    assert set(shelf.shown) == {again} != {first}
    other = past(registry, "t")
    assert set(shelf.shown) == {other}


def test_without_an_archive_nothing_is_held() -> None:
    it = session()
    archive = NoArchive()
    for tell in (archive.keep, archive.remove, archive.end_turn, archive.replace):
        tell(it)
    archive.write(it, b"{}", None)
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
    assert shelf.told == [("remove", "s"), ("keep", "s")]


def test_of_one_whose_directory_is_not_known_nothing_is_known_of_how_to_open_it() -> None:
    it = session()
    it.keep_directory()
    assert it.setup == {}


def test_no_two_journals_have_the_same_epoch() -> None:
    one, other = Registry("me", run="a"), Registry("me", run="b")
    assert len({one.new_epoch(), one.new_epoch(), other.new_epoch()}) == 3


def test_who_can_be_resumed_counts_and_knows_where_it_is_in_all_that_it_takes_part_in() -> None:
    scene = Scene()
    ann, bob = scene.join("ann", link="l"), scene.join("bob")
    assert ann.client.counts
    assert not bob.client.counts
    ann.new_session("s")
    ann.new_session("t")
    scene.agent.update("talk", "t")
    assert ann.client.positions() == {"s": scene.place("s"), "t": scene.place("t")} == ann.seen
    assert scene.place("t")[1] == 1
    assert bob.client.positions() == {}


def test_ids_go_on_above_those_of_another_link_and_never_back() -> None:
    client = Client("ann", ME)
    client.mint_above(7)
    assert client.mint_id() == 8
    client.mint_above(3)
    assert client.mint_id() == 9


# Workspaces


@pytest.mark.parametrize(
    ("viewer", "workspace", "sees"),
    [
        (SessionScope("me"), "a", True),
        (SessionScope("me"), None, True),
        (SessionScope("me", workspaces=("a", "b")), "a", True),
        (SessionScope("me", workspaces=("a", "b")), "c", False),
        (SessionScope("me", workspaces=("a", "b")), None, False),
        (SessionScope("me", workspaces=()), None, False),
        (SessionScope("you", workspaces=("a",)), "a", False),
        (SessionScope("me", only="s", workspaces=("a",)), "a", True),
        (SessionScope("me", only="s", workspaces=("a",)), "b", False),
        (SessionScope("me", only="t", workspaces=("a",)), "a", False),
        (SessionScope("guest-1", only="s", guest=True), "a", True),
        (SessionScope("guest-1", only="s", guest=True, workspaces=("b",)), "a", False),
    ],
)
def test_who_may_use_some_workspaces_sees_the_sessions_in_them(
    viewer: SessionScope, workspace: str | None, *, sees: bool
) -> None:
    it = session()
    it.workspace = workspace
    assert viewer.sees(it) is sees


@pytest.mark.parametrize(
    ("viewer", "all_of_them"),
    [(ME, True), (SessionScope("me", only="s"), False), (SessionScope("me", workspaces=("a",)), False), (GUEST, False)],
)
def test_who_sees_all_there_is(viewer: SessionScope, *, all_of_them: bool) -> None:
    assert viewer.sees_all is all_of_them


def test_what_was_never_registered_is_in_nobodys_workspace() -> None:
    assert not Registry("me").may_exist(SessionScope("me", workspaces=("a",)), "agent", "unknown")


def test_the_registry_finds_for_each_what_is_in_its_workspaces() -> None:
    registry = Registry("me")
    it = live(registry)
    it.workspace = "a"
    assert registry.find(SessionScope("me", workspaces=("a",)), "agent", "s") is it
    assert registry.find(SessionScope("me", workspaces=("b",)), "agent", "s") is None


# How many


def test_the_registry_knows_how_many_are_live_and_whose() -> None:
    registry = Registry("me")
    mine, yours = live(registry), live(registry, "t", "you")
    registry.add(mine, AgentHandle())
    past(registry, "u")
    assert (registry.count_live(), registry.count_live("me"), registry.count_live("you")) == (2, 1, 1)
    registry.end(mine)
    registry.end(mine)
    registry.remove(yours)
    registry.remove(yours)
    assert (registry.count_live(), registry.count_live("me"), registry.count_live("other")) == (0, 0, 0)


def test_the_registry_knows_how_many_prompts_wait_and_in_whose_sessions() -> None:
    registry = Registry("me")
    for number, owner in enumerate(("me", "me", "you")):
        it = live(registry, str(number), owner)
        it.queue.extend([Request(None, message('{"id":1,"method":"session/prompt"}'))] * (number + 1))
    assert (registry.count_waiting(), registry.count_waiting("me"), registry.count_waiting("other")) == (6, 3, 0)
    ended = next(iter(registry))
    registry.end(ended)
    assert registry.count_waiting("me") == 2


# Requests


def test_a_request_that_is_replaced_counts_with_what_it_says_now() -> None:
    client = Client("ann", ME)
    request = Request(client, message('{"id":1.0,"method":"session/new","params":{"mcpServers":[1]}}'))
    client.take_on(request)
    replaced = b'{"id":1.0,"method":"session/new","params":{"mcpServers":[]}}'
    request.replace(replaced)
    assert (request.message.text, request.id, client.waiting_size) == (replaced, b"1.0", len(replaced))
    client.settle(request)
    assert (client.waiting_size, client.requests) == (0, {})


def test_a_request_of_the_gateways_own_can_be_replaced_too() -> None:
    request = Request(None, message('{"id":1,"method":"x"}'))
    request.replace(b'{"id":1,"method":"y"}')
    assert request.message.method == "y"


def test_of_what_a_client_said_that_has_gone_only_the_short_parameters_are_kept() -> None:
    long = {"cwd": "/srv", "mcpServers": [{"name": "x" * 100_000}]}
    text = b'{"jsonrpc":"2.0","id":7,"method":"session/new","params":%b}' % jsonrpc.encode(long)
    request = Request(None, jsonrpc.parse(text))
    request.forget_most()
    assert (request.id, request.message.method) == (b"7", "session/new")
    assert jsonrpc.text_at(request.message.text, "params", "cwd") == "/srv"
    assert len(request.message.text) < 100
    small = Request(None, jsonrpc.parse(text.replace(b"x" * 100_000, b"")))
    before = small.message
    small.forget_most()
    assert small.message is before
