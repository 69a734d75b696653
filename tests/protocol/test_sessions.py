"""Sessions and who may see them: the rules that everything else relies on."""

from typing import Any

import pytest

from acp_gateway.protocol import sessions
from acp_gateway.protocol.journal import Journal
from acp_gateway.protocol.jsonrpc import parse
from acp_gateway.protocol.sessions import Client, Presence, Registry, Request, Role, Session, Viewer


class Home:
    deserted = False


def session(session_id: str = "s", owner: str = "me", agent: str = "agent") -> Session:
    return Session(agent, session_id, owner, Journal(1000))


def live(registry: Registry, *args: str) -> Session:
    it = session(*args)
    registry.add(it, Home())
    return it


def past(registry: Registry, *args: str) -> Session:
    it = live(registry, *args)
    registry.end(it)
    return it


def message(text: str) -> Any:
    return parse(text.encode())


ME, YOU, GUEST = Viewer("me"), Viewer("you"), Viewer("guest-1", only="s", guest=True)

# Who sees what.


@pytest.mark.parametrize(
    ("viewer", "session_id", "owner", "sees"),
    [
        (ME, "s", "me", True),
        (ME, "s", "you", False),
        (Viewer("me", only="s"), "s", "me", True),
        (Viewer("me", only="s"), "t", "me", False),
        (Viewer("me", only="s"), "s", "you", False),
        (GUEST, "s", "me", True),
        (GUEST, "s", "you", True),
        (GUEST, "t", "me", False),
        (GUEST, "t", "guest-1", False),
    ],
)
def test_who_sees_a_session(viewer: Viewer, session_id: str, owner: str, *, sees: bool) -> None:
    assert viewer.sees(session(session_id, owner)) is sees


@pytest.mark.parametrize(
    ("viewer", "session_id", "may"),
    [
        (ME, "unknown", True),
        (ME, "known", False),
        (YOU, "unknown", False),
        (Viewer("me", only="unknown"), "unknown", True),
        (Viewer("me", only="unknown"), "other", False),
        (Viewer("me", only="unknown", guest=True), "unknown", False),
    ],
)
def test_what_was_never_registered_may_be_the_gateways_own_users_and_nobody_elses(
    viewer: Viewer, session_id: str, *, may: bool
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
    registry.add(it, Home())
    registry.add(it, Home())
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
    registry.add(again, Home())
    past(registry, "d", "you")
    assert [it.id for it in registry] == ["live", "b", "c", "d"]
    assert kept.live


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
