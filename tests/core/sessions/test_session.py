"""Sessions and who may see them: the rules that everything else relies on."""

from typing import Any

import pytest

from acp_gateway.core.requests import TurnOutcome
from acp_gateway.core.sessions import session as sessions
from acp_gateway.core.sessions.session import Client, Request, Role, Session, SessionReach
from acp_gateway.core.turns.journal import Journal
from acp_gateway.protocol.jsonrpc import parse
from tests.kit.scene import Scene


def session(session_id: str = "s", owner: str = "me", agent: str = "agent") -> Session:
    return Session(agent, session_id, owner, Journal(1000))


def message(text: str) -> Any:
    return parse(text.encode())


ME, YOU, GUEST = SessionReach("me"), SessionReach("you"), SessionReach("guest-1", only="s", guest=True)


# Who sees what.


@pytest.mark.parametrize(
    ("viewer", "session_id", "owner", "sees"),
    [
        (ME, "s", "me", True),
        (ME, "s", "you", False),
        (SessionReach("me", only="s"), "s", "me", True),
        (SessionReach("me", only="s"), "t", "me", False),
        (SessionReach("me", only="s"), "s", "you", False),
        (GUEST, "s", "me", True),
        (GUEST, "s", "you", True),
        (GUEST, "t", "me", False),
        (GUEST, "t", "guest-1", False),
    ],
)
def test_who_sees_a_session(viewer: SessionReach, session_id: str, owner: str, *, sees: bool) -> None:
    assert viewer.sees(session(session_id, owner)) is sees


def test_a_session_has_had_a_prompt_if_a_turn_runs_or_one_has_ended() -> None:
    running, over, new = session(), session(), session()
    for it in (running, over, new):
        it.journal = Journal(1000, "epoch")
    running.turns[Request(Client("ann", ME), message('{"id":1,"method":"session/prompt"}'))] = 0.0
    over.journal.note_end(TurnOutcome("end_turn"))
    assert [it.is_unprompted for it in (running, over, new, session())] == [False, False, True, False]


# Clients.


@pytest.mark.parametrize(("role", "controls"), [(Role.CONTROLLER, True), (Role.OBSERVER, False)])
def test_only_controllers_control(role: Role, *, controls: bool) -> None:
    client, it = Client("ann", ME, role), session()
    it.attached[client] = None
    assert client.controls is controls
    assert list(it.controllers()) == ([client] if controls else [])


def test_a_client_knows_what_it_has_asked_and_how_much_of_that_is_kept_here() -> None:
    client = Client("ann", ME)
    first = Request(client, message('{"id":"a","method":"x","params":{"sessionId":"s"}}'))
    second = Request(client, message('{"id":1,"method":"y"}'))
    client.add_request(first)
    client.add_request(second)
    assert client.requests == {"a": first, b"1": second}
    assert client.waiting_size == len(first.message.text) + len(second.message.text)
    first.set_text(b"")
    assert client.waiting_size == len(second.message.text)
    assert (first.id, first.message.method, first.message.session) == (b'"a"', "x", "s")
    for request in (first, second, second):
        client.remove_request(request)
    assert (client.requests, client.waiting_size) == ({}, 0)


# Sessions.


def test_how_a_session_was_opened_is_kept_for_opening_it_again() -> None:
    it = session()
    it.keep_setup(
        message('{"id":1,"method":"session/load","params":{"cwd":"/a","sessionId":"s","mcpServers":[{"n":1.10}]}}')
    )
    assert (it.setup, it.cwd) == ({"cwd": b'"/a"', "mcpServers": b'[{"n":1.10}]'}, "/a")
    it.keep_setup(message('{"id":1,"method":"session/load","params":{"sessionId":"s"}}'))
    assert (it.setup, it.cwd) == ({}, "/a")


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
def test_the_result_of_opening_a_session_is_kept_without_its_id(result: str, kept: dict[str, bytes]) -> None:
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


def test_a_client_with_a_link_has_positions_in_its_attached_sessions() -> None:
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
    ("viewer", "all_of_them"),
    [(ME, True), (SessionReach("me", only="s"), False), (SessionReach("me", workspaces=("a",)), False), (GUEST, False)],
)
def test_who_sees_all_there_is(viewer: SessionReach, *, all_of_them: bool) -> None:
    assert viewer.sees_all is all_of_them


# Requests
