"""Sessions in the registry: their owners, and the clients that they exist for."""

from dataclasses import replace
from typing import Any

import pytest

from acp_gateway.core.requests import KeptPrompt, QueuedPrompt
from acp_gateway.core.sessions import registry as registry_module
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Client, Request, SessionReach
from acp_gateway.protocol.jsonrpc import parse
from tests.kit.registered import GUEST, ME, YOU, AgentDouble, live, past, session


def message(text: str) -> Any:
    return parse(text.encode())


# Who sees what.


@pytest.mark.parametrize(
    ("viewer", "session_id", "may"),
    [
        (ME, "unknown", True),
        (ME, "known", False),
        (YOU, "unknown", False),
        (SessionReach("me", only="unknown"), "unknown", True),
        (SessionReach("me", only="unknown"), "other", False),
        (SessionReach("me", only="unknown", guest=True), "unknown", False),
    ],
)
def test_an_unregistered_session_may_exist_for_the_gateways_own_user_alone(
    viewer: SessionReach, session_id: str, *, may: bool
) -> None:
    registry = Registry("me")
    past(registry, "known", "you")
    assert registry.may_exist(viewer, "agent", session_id) is may


@pytest.mark.parametrize(("owner", "is_live", "may"), [("me", False, True), ("me", True, False), ("you", False, False)])
def test_an_unregistered_session_of_an_id_that_another_agent_has_may_exist(
    owner: str, *, is_live: bool, may: bool
) -> None:
    registry = Registry("me")
    elsewhere = live(registry, "s", owner, "another name for it")
    if not is_live:
        registry.end(elsewhere)
    assert registry.may_exist(ME, "agent", "s") is may
    registry.remove(elsewhere)
    assert registry.may_exist(ME, "agent", "s")


@pytest.fixture
def registry() -> Registry:
    return Registry("me")


def test_of_several_agents_that_have_an_id_each_one_counts(registry: Registry) -> None:
    mine, yours = past(registry, "s", "me", "one"), past(registry, "s", "you", "two")
    registry.remove(mine)
    assert not registry.may_exist(ME, "agent", "s")
    registry.remove(yours)
    assert registry.may_exist(ME, "agent", "s")


def test_all_sessions_of_an_id_are_found(registry: Registry) -> None:
    mine, yours = past(registry, "s", "me", "one"), live(registry, "s", "you", "two")
    assert registry.by_id("s") == [mine, yours]
    assert registry.by_id("other") == []


# The registry.


def test_a_session_is_found_by_its_agent_and_id_by_who_may_see_it(registry: Registry) -> None:
    mine, yours = live(registry, "s", "me"), live(registry, "t", "you")
    assert registry.find(ME, "agent", "s") is mine
    assert registry.find(YOU, "agent", "t") is yours
    assert registry.find(GUEST, "agent", "s") is mine
    assert registry.find(YOU, "agent", "s") is registry.find(ME, "agent", "t") is None
    assert registry.find(ME, "other agent", "s") is registry.find(ME, "agent", "unknown") is None


def test_whose_a_session_was_stays_known_when_it_has_ended(registry: Registry) -> None:
    it = past(registry, "s", "you")
    assert not it.live
    assert registry.find(YOU, "agent", "s") is it
    assert registry.known("agent", "s")
    assert not registry.known("agent", "t")
    assert not registry.known("other agent", "s")


def test_equal_session_ids_of_two_identities_are_found_by_their_owners(registry: Registry) -> None:
    mine, yours = live(registry, "1", "me"), live(registry, "1", "you")
    assert registry.find(ME, "agent", "1") is mine
    assert registry.find(YOU, "agent", "1") is yours
    assert list(registry) == [mine, yours]


def test_a_live_one_is_found_before_one_that_has_ended(registry: Registry) -> None:
    first, second = live(registry, "1"), live(registry, "1")
    registry.end(first)
    assert registry.find(ME, "agent", "1") is second


def test_ended_sessions_whose_id_is_given_again_keep_names_of_their_own(registry: Registry) -> None:
    first, second = past(registry, "1", "me"), past(registry, "1", "me")
    yours = past(registry, "1", "you")
    mine = live(registry, "1", "me")
    assert [it.name for it in (first, second, yours, mine)] == ["1~former-1", "1~former-2", "1~former-3", "1"]
    for reach, it in ((ME, first), (ME, second), (YOU, yours), (ME, mine)):
        assert registry.find_by_name(reach, it.name) is it
    assert registry.find(YOU, "agent", "1") is None
    assert registry.past(ME) == [first, second]
    registry.end(mine)
    registry.remove(first)
    assert registry.find_by_name(ME, "1~former-1") is None
    registry.remove(mine)
    assert live(registry, "1").repeats_id
    for it in (second, yours):
        registry.remove(it)
    assert not live(registry, "1").repeats_id


def test_a_guest_of_an_earlier_session_of_an_id_does_not_see_the_later_one(registry: Registry) -> None:
    past(registry, "s").created_at = 1000
    second = session("s")
    second.created_at = 5000
    registry.add(second, AgentDouble())
    for since, seen in ((None, False), (2000, False), (6000, True)):
        guest = replace(GUEST, since=since)
        assert (registry.find(guest, "agent", "s") is second) is seen
        assert registry.find(guest, "agent", "s~former-1") is None


def test_a_session_that_is_opened_again_is_the_same_one(registry: Registry) -> None:
    it = past(registry)
    registry.add(it, AgentDouble())
    registry.add(it, AgentDouble())
    assert it.live
    assert list(registry) == [it]


def test_a_guest_finds_nothing_where_it_is_not_clear_whose_session_was_meant(registry: Registry) -> None:
    mine, yours = live(registry, "s", "me"), live(registry, "s", "you")
    assert registry.find(GUEST, "agent", "s") is None
    registry.end(yours)
    assert registry.find(GUEST, "agent", "s") is mine


def test_a_session_that_was_removed_was_never_there(registry: Registry) -> None:
    it = live(registry)
    registry.remove(it)
    registry.remove(it)
    assert not it.live
    assert list(registry) == []
    assert not registry.known("agent", "s")
    assert registry.may_exist(ME, "agent", "s")


def test_removing_one_leaves_another_of_its_name(registry: Registry) -> None:
    mine, yours = live(registry, "1", "me"), live(registry, "1", "you")
    registry.remove(mine)
    assert list(registry) == [yours]


def test_only_so_many_that_have_ended_are_remembered_and_live_ones_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "MAX_REMEMBERED", 2)
    registry = Registry("me")
    kept = live(registry, "live", "you")
    for name in ("a", "b", "c"):
        past(registry, name, "you")
    assert [it.id for it in registry] == ["live", "b", "c"]
    again = registry.find(YOU, "agent", "b")
    assert again is not None
    registry.add(again, AgentDouble())
    past(registry, "d", "you")
    assert [it.id for it in registry] == ["live", "b", "c", "d"]
    assert kept.live


def test_past_sessions_of_one_identity_do_not_evict_those_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "MAX_REMEMBERED", 4)
    registry = Registry("me")
    past(registry, "old", "me")
    for number in range(10):
        past(registry, f"new {number}", "you")
    assert [it.id for it in registry.past(SessionReach("me"))] == ["old"]
    assert [it.id for it in registry.past(SessionReach("you"))] == ["new 7", "new 8", "new 9"]


def test_past_sessions_of_many_names_of_one_account_evict_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "MAX_REMEMBERED", 5)
    registry = Registry("me")
    for name in ("old", "older"):
        past(registry, name, "me")
    for number in range(10):
        it = live(registry, f"new {number}", f"door/{number}")
        it.account = "door"
        registry.end(it)
    assert [it.id for it in registry] == ["old", "older", "new 7", "new 8", "new 9"]


@pytest.mark.parametrize(
    ("viewer", "ids"),
    [
        (SessionReach("me"), ["r", "s"]),
        (SessionReach("you"), ["s"]),
        (SessionReach("other"), []),
        (SessionReach("me", "s"), ["s"]),
        (SessionReach("me", "t"), []),
        (SessionReach("guest-1", "s", guest=True), ["s", "s"]),
        (SessionReach("guest-1", "s", guest=True, granted_by="you"), ["s"]),
        (SessionReach("me", workspaces=("a",)), ["s"]),
        (SessionReach("me", "r", workspaces=("a",)), []),
    ],
)
def test_the_registry_lists_for_each_what_exists_for_them(viewer: SessionReach, ids: list[str]) -> None:
    registry = Registry("me")
    for session_id, owner in (("r", "me"), ("s", "me"), ("s", "you")):
        it = live(registry, session_id, owner)
        it.workspace = "a" if session_id == "s" else None
        assert it in registry.live(SessionReach(owner))
    assert [it.id for it in registry.live(viewer)] == ids
    assert registry.past(viewer) == []
    for it in list(registry):
        registry.end(it)
    assert [it.id for it in registry.past(viewer)] == ids
    assert registry.live(viewer) == []


# What is kept for another process of the gateway.


def test_no_two_journals_have_the_same_epoch() -> None:
    one, other = Registry("me", run="a"), Registry("me", run="b")
    assert len({one.new_epoch(), one.new_epoch(), other.new_epoch()}) == 3


# Workspaces


@pytest.mark.parametrize(
    ("viewer", "workspace", "sees"),
    [
        (SessionReach("me"), "a", True),
        (SessionReach("me"), None, True),
        (SessionReach("me", workspaces=("a", "b")), "a", True),
        (SessionReach("me", workspaces=("a", "b")), "c", False),
        (SessionReach("me", workspaces=("a", "b")), None, False),
        (SessionReach("me", workspaces=()), None, False),
        (SessionReach("you", workspaces=("a",)), "a", False),
        (SessionReach("me", only="s", workspaces=("a",)), "a", True),
        (SessionReach("me", only="s", workspaces=("a",)), "b", False),
        (SessionReach("me", only="t", workspaces=("a",)), "a", False),
        (SessionReach("guest-1", only="s", guest=True), "a", True),
        (SessionReach("guest-1", only="s", guest=True, workspaces=("b",)), "a", False),
    ],
)
def test_a_workspace_token_sees_the_sessions_in_its_workspaces(
    viewer: SessionReach, workspace: str | None, *, sees: bool
) -> None:
    it = session()
    it.workspace = workspace
    assert viewer.sees(it) is sees


def test_an_unregistered_session_is_in_no_workspace() -> None:
    assert not Registry("me").may_exist(SessionReach("me", workspaces=("a",)), "agent", "unknown")


def test_the_registry_finds_for_each_what_is_in_its_workspaces(registry: Registry) -> None:
    it = live(registry)
    it.workspace = "a"
    assert registry.find(SessionReach("me", workspaces=("a",)), "agent", "s") is it
    assert registry.find(SessionReach("me", workspaces=("b",)), "agent", "s") is None


# How many


def test_the_registry_knows_how_many_are_live_and_whose(registry: Registry) -> None:
    mine, yours = live(registry), live(registry, "t", "you")
    registry.add(mine, AgentDouble())
    past(registry, "u")
    assert (registry.count_live(), registry.count_live("me"), registry.count_live("you")) == (2, 1, 1)
    registry.end(mine)
    registry.end(mine)
    registry.remove(yours)
    registry.remove(yours)
    assert (registry.count_live(), registry.count_live("me"), registry.count_live("other")) == (0, 0, 0)


def test_the_registry_knows_how_many_prompts_wait_and_in_whose_sessions(registry: Registry) -> None:
    for number, owner in enumerate(("me", "me", "you")):
        agent = AgentDouble()
        agent.prompts += [Request(Client("ann", SessionReach("me")), message('{"id":1,"method":"session/prompt"}'))] * (
            number + 1
        )
        registry.add(session(str(number), owner), agent)
    assert [len(registry.waiting_sizes(account)) for account in (None, "me", "other")] == [6, 3, 0]
    registry.end(first := next(iter(registry)))
    assert [len(registry.waiting_sizes("me")), registry.waiting_sizes(session=first)] == [2, []]
    shown = QueuedPrompt("k", None, "x", whole=True, attached=0)
    registry.keep_prompt(first, KeptPrompt(shown, "me", "", b"12345"))
    assert (registry.waiting_sizes("me")[-1], registry.waiting_sizes(session=first)) == (5, [5])
    assert registry.take_prompt(first, "k") is not None
    assert (registry.take_prompt(first, "k"), registry.keeping) == (None, [])


# By id alone


def test_a_session_is_found_by_its_id_alone_a_live_one_first(registry: Registry) -> None:
    ended = past(registry, "s", "me", "one")
    assert registry.find_by_name(ME, "s") is ended
    running = live(registry, "s", "me", "two")
    assert registry.find_by_name(ME, "s") is running
    assert registry.find_by_name(YOU, "s") is None
    assert registry.find_by_name(ME, "t") is None


def test_a_guest_finds_no_session_by_an_id_that_two_agents_have(registry: Registry) -> None:
    first = live(registry, "s", "me", "one")
    assert registry.find_by_name(GUEST, "s") is first
    second = live(registry, "s", "me", "two")
    assert registry.find_by_name(GUEST, "s") is None
    registry.remove(first)
    assert registry.find_by_name(GUEST, "s") is second


def test_a_session_of_an_earlier_process_with_kept_prompts_is_among_those_that_keep_some(registry: Registry) -> None:
    restored = session()
    shown = QueuedPrompt("k", None, "x", whole=True, attached=0)
    restored.kept["k"] = KeptPrompt(shown, "me", "", b"12345")
    registry.restore(restored)
    registry.restore(session("t"))
    assert registry.keeping == [restored]
