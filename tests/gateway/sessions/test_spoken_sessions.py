"""The list of a gateway that speaks for several identities: whose, and how many."""

import pytest

from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Session, SessionReach
from acp_gateway.core.turns.journal import Journal
from acp_gateway.gateway.sessions.spoken_sessions import fair_share, spoken_reaches, unlisted, within_size

OWN = SessionReach("door")


@pytest.fixture
def registry() -> Registry:
    registry = Registry("me")
    for owner in ("bob", "alice", "door"):
        registry.restore(Session("agent", f"of {owner}", owner, Journal(10)))
    return registry


@pytest.mark.parametrize(
    ("may_speak_for", "identities"),
    [
        ((), ["door"]),
        (("alice",), ["door", "alice"]),
        (("alice", "unknown", "door"), ["door", "alice"]),
        (("*",), ["door", "alice", "bob"]),
    ],
)
def test_may_speak_for_adds_the_identities_that_have_sessions(
    may_speak_for: tuple[str, ...], identities: list[str], registry: Registry
) -> None:
    assert [reach.identity for reach in spoken_reaches(OWN, registry, may_speak_for)] == identities


def test_a_connection_for_one_session_is_told_of_no_other_identity(registry: Registry) -> None:
    reach = SessionReach("door", "of alice")
    assert spoken_reaches(reach, registry, ("*",)) == [reach]


def test_workspaces_of_a_token_hold_for_every_identity(registry: Registry) -> None:
    reaches = spoken_reaches(SessionReach("door", workspaces=("w",)), registry, ("*",))
    assert {reach.workspaces for reach in reaches} == {("w",)}


@pytest.mark.parametrize(
    ("lists", "most", "shared"),
    [
        (["abc", "de"], 10, "abcde"),
        (["abcdef", "gh", "i"], 5, "efghi"),
        (["abcdef", "ghijkl"], 4, "efkl"),
        (["abc", "def", "ghi"], 2, "fi"),
        (["", "abc"], 2, "bc"),
        (["abc"], 0, ""),
        ([], 5, ""),
    ],
)
def test_no_identity_pushes_anothers_latest_sessions_out_of_a_list(lists: list[str], most: int, shared: str) -> None:
    assert "".join(fair_share(lists, most)) == shared


def test_a_list_is_cut_to_its_size_and_keeps_the_end() -> None:
    sessions = [{"title": letter * 10} for letter in "abc"]
    assert within_size(sessions, 1000) == sessions
    assert within_size(sessions, 2 * len('{"title":"aaaaaaaaaa"},')) == sessions[1:]
    assert within_size(sessions, 0) == []
    # As in the message, which is in ASCII; a lone surrogate is an escape there.
    assert within_size([{"title": "é\ud800"}], len('[{"title":"\\u00e9\\ud800"}]') - 3) == []


def test_unlisted_sessions_are_counted_by_their_owners() -> None:
    listed = [{"owner": "ann"}, {"owner": "bob"}, {"owner": "bob"}]
    assert unlisted(["ann", "bob", "carol"], [5, 2, 3], listed) == {"ann": 4, "carol": 3}
