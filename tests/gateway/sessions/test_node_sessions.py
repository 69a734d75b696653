from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.config.addresses import parse_target
from acp_gateway.config.nodes import NodeSection
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Session, SessionReach
from acp_gateway.core.turns.journal import Journal
from acp_gateway.errors import UnknownSession
from acp_gateway.gateway.node_directory import ID_SIZE, NodeDirectory
from acp_gateway.gateway.sessions.node_sessions import TEXT, WAITING, Further, NodeSessions, merge_sessions

SECTION = NodeSection(url=parse_target("wss://gpu.example"), token_file=Path("/token"))
ALL = {"demo", "gpu1/memory", "gpu2/memory"}


def session(session_id: str, agent: str = "memory", **more: Any) -> dict[str, Any]:
    described = {"sessionId": session_id, "agent": agent, "owner": "door", "live": True, "connected": 1, "away": 0}
    return described | {"turn": False, "waiting": []} | more


@pytest.fixture
def directory() -> NodeDirectory:
    directory = NodeDirectory({"gpu1": SECTION, "gpu2": SECTION}, 0.0)
    for name in ("gpu1", "gpu2"):
        directory.set_up(name, ["memory"], "1.0", 0.0)
    return directory


@pytest.fixture
def registry() -> Registry:
    return Registry("root")


def merged(directory: NodeDirectory, *own: dict[str, Any], further: Further = lambda *_: True) -> list[dict[str, Any]]:
    return merge_sessions(own, directory.nodes, further)


def ids(sessions: list[dict[str, Any]]) -> list[str]:
    return [session["sessionId"] for session in sessions]


def test_equal_ids_of_two_nodes_and_of_the_gateway_itself_stay_apart(directory: NodeDirectory) -> None:
    for name in ("gpu1", "gpu2"):
        directory.set_sessions(name, [session("1")], 0)
    found = merged(directory, session("1", "demo"))
    assert [(it["sessionId"], it["agent"]) for it in found] == [
        ("1", "demo"),
        ("gpu1/1", "gpu1/memory"),
        ("gpu2/1", "gpu2/memory"),
    ]


def test_a_session_that_was_opened_through_the_gateway_comes_once_as_it_is_here(directory: NodeDirectory) -> None:
    directory.set_sessions("gpu1", [session("1", title="there", connected=7)], 0)
    assert merged(directory, session("1", "gpu1/memory", owner="ann", title="here")) == [
        session("gpu1/1", "gpu1/memory", owner="ann", title="here")
    ]


def test_a_session_that_is_live_only_at_its_node_is_told_so_to_its_owner_here(directory: NodeDirectory) -> None:
    directory.set_sessions("gpu1", [session("1", title="there", connected=7)], 0)
    own = session("1", "gpu1/memory", owner="ann", live=False, connected=0)
    for further in (True, False):
        (found,) = merged(directory, own, further=lambda *_, told=further: told)
        assert (found["live"], found["connected"], found["owner"]) == (True, 7, "ann")


def test_the_fence_of_a_session_is_that_at_its_node(directory: NodeDirectory) -> None:
    directory.set_sessions("gpu1", [session("1", fence="landlock"), session("2", fence=None)], 0)
    own = [session(name, "gpu1/memory", owner="ann", fence=None) for name in ("1", "2")]
    assert [found["fence"] for found in merged(directory, *own)] == ["landlock", None]
    assert [found.get("fence") for found in merged(directory)] == ["landlock", None]


def test_sessions_that_are_not_live_come_first(directory: NodeDirectory) -> None:
    directory.set_sessions("gpu1", [session("past", live=False), session("live")], 0)
    assert ids(merged(directory, session("old", "demo", live=False), session("new", "demo"))) == [
        *("old", "gpu1/past", "new", "gpu1/live")
    ]


async def test_sessions_of_agents_that_may_not_be_used_or_of_others_here_are_not_told(
    directory: NodeDirectory, registry: Registry
) -> None:
    for name in ("gpu1", "gpu2"):
        directory.set_sessions(name, [session("1"), session("2")], 0)
    registry.restore(Session("gpu2/memory", "1", "ann", Journal(1000)))
    sessions = NodeSessions(directory, registry, trio.lowlevel.checkpoint)
    told = await sessions.merge(SessionReach("root"), {"gpu2/memory"}, {"sessions": []})
    assert ids(told["sessions"]) == ["gpu2/2"]
    assert await sessions.merge(SessionReach("ann"), ALL, {"sessions": []}) == {"sessions": []}


def test_what_a_node_tells_is_bounded_and_has_only_known_members(directory: NodeDirectory) -> None:
    request = {"method": "m" * 2 * TEXT, "since": "2026-11-22T09:48:00Z", "title": "x", "more": "x"}
    told = session("told", title="t" * 2 * TEXT, waiting=[request] * 2 * WAITING, secret="x")
    directory.max_sessions = 10
    directory.set_sessions("gpu1", [session(str(number), owner="ann") for number in range(10)] + [told], 3)
    found = merged(directory)
    assert len(found) == 10
    assert len(found[-1]["title"]) == TEXT
    assert len(found[-1]["waiting"]) == WAITING
    assert set(found[-1]["waiting"][0]) == {"method", "since", "title"}
    assert "secret" not in found[-1]
    # Three of this gateway's identity there, which the node has not told.
    assert directory.nodes["gpu1"].more == {"ann": 1, "": 3}


def test_a_session_with_an_impossible_id_or_agent_is_left_out(directory: NodeDirectory) -> None:
    told = [session("x" * (ID_SIZE + 1)), session("1", "a/b"), session("2", ""), session("x" * ID_SIZE)]
    directory.set_sessions("gpu1", told, 0)
    assert ids(merged(directory)) == ["gpu1/" + "x" * ID_SIZE]
    assert directory.nodes["gpu1"].more == {"door": 3}


def test_a_session_is_found_by_its_node_if_only_one_agent_has_it(directory: NodeDirectory) -> None:
    directory.set_sessions("gpu1", [session("1"), session("2"), session("2", "other")], 0)
    assert directory.agent_of("gpu1", "1", "root") == "gpu1/memory"
    assert directory.agent_of("gpu1", "2", "root") is None
    assert directory.agent_of("gpu2", "1", "root") is None


def test_a_session_that_a_node_does_not_list_may_be_of_its_only_agent(directory: NodeDirectory) -> None:
    directory.set_rights("gpu1", "door", ["alice", "bob"])
    directory.set_sessions("gpu1", [session("1", owner="alice")], 7, {"alice": 7})
    assert directory.agent_of("gpu1", "unlisted", "alice") == "gpu1/memory"
    assert directory.agent_of("gpu1", "unlisted", "bob") is None
    directory.set_up("gpu1", ["memory", "other"], "1.0", 0.0)
    assert directory.agent_of("gpu1", "1", "alice") == "gpu1/memory"
    with pytest.raises(UnknownSession, match=r"only some of its sessions .* one of memory, other, as gpu1/AGENT"):
        directory.agent_of("gpu1", "unlisted", "alice")


async def test_each_identity_is_told_how_many_of_its_own_sessions_are_not_listed(
    directory: NodeDirectory, registry: Registry
) -> None:
    directory.set_rights("gpu1", "door", ["alice", "bob"])
    directory.set_rights("gpu2", "door", [])
    directory.set_sessions("gpu1", [], 12, {"alice": 7, "bob": 4, "door": 1})
    directory.set_sessions("gpu2", [], 20)
    sessions = NodeSessions(directory, registry, trio.lowlevel.checkpoint)

    async def more(reach: SessionReach) -> int | None:
        return (await sessions.merge(reach, ALL, {"sessions": []})).get("more")

    assert await more(SessionReach("alice")) == 7
    assert await more(SessionReach("bob")) == 4
    assert await more(SessionReach("carol")) is None
    assert await more(SessionReach("root")) == 1 + 20
    assert await more(SessionReach("alice", "1")) is None


async def test_a_merged_list_is_bounded_in_bytes_and_counts_what_is_left_out(
    directory: NodeDirectory, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.set_sessions("gpu1", [session(str(number), title="é" * TEXT) for number in range(8)], 0)
    monkeypatch.setattr("acp_gateway.gateway.sessions.node_sessions.MAX_SIZE", 4 * 6 * TEXT)
    sessions = NodeSessions(directory, registry, trio.lowlevel.checkpoint)
    told = await sessions.merge(SessionReach("root"), ALL, {"sessions": []})
    assert (ids(told["sessions"]), told["more"]) == (["gpu1/5", "gpu1/6", "gpu1/7"], 5)


async def test_nodes_that_are_away_are_problems_and_only_the_own_user_is_told_why(
    directory: NodeDirectory, registry: Registry
) -> None:
    directory.set_sessions("gpu1", [session("1")], 5)
    directory.set_away("gpu1", "cannot reach 10.0.0.1", 0.0)
    refreshed = []

    async def refresh() -> None:
        refreshed.append(True)

    sessions = NodeSessions(directory, registry, refresh)
    answer = {"sessions": [], "problems": ["the disk is full"], "more": 1}
    since = "1970-01-01T00:00:00Z"
    assert await sessions.merge(SessionReach("root"), ALL, answer) == {
        "sessions": [session("gpu1/1", "gpu1/memory", unreachableSince=since)],
        "problems": ["the disk is full", f"the node gpu1 is away since {since}: cannot reach 10.0.0.1"],
        "more": 6,
    }
    away = f"the node gpu1 is away since {since}"
    for reach in (SessionReach("ann"), SessionReach("root", workspaces=("proj",)), SessionReach("root", "1")):
        told = await sessions.merge(reach, ALL, answer)
        assert told == {"sessions": [], "problems": ["the disk is full", away], "more": 1}
    assert await sessions.merge(SessionReach("ann"), {"demo", "gpu2/memory"}, {"sessions": []}) == {"sessions": []}
    assert len(refreshed) == 5


async def test_where_this_gateway_speaks_for_an_identity_that_is_told_its_own_sessions_and_no_other(
    directory: NodeDirectory, registry: Registry
) -> None:
    directory.set_rights("gpu1", "door", ["alice", "root"])
    directory.set_rights("gpu2", "door", [])
    for name in ("gpu1", "gpu2"):
        owners = ("door", "alice", "bob", "root")
        directory.set_sessions(name, [session(f"of {owner}", owner=owner) for owner in owners], 0)
    sessions = NodeSessions(directory, registry, trio.lowlevel.checkpoint)

    async def told(reach: SessionReach) -> list[str]:
        return ids((await sessions.merge(reach, ALL, {"sessions": []}))["sessions"])

    assert await told(SessionReach("alice")) == ["gpu1/of alice"]
    assert await told(SessionReach("bob")) == []
    # At the second node, all that comes from here is the identity's of the token.
    assert await told(SessionReach("root")) == ["gpu1/of root", "gpu2/of door"]
    assert await told(SessionReach("alice", "of alice")) == []
    assert await told(SessionReach("alice", workspaces=("w",))) == []
    assert await told(SessionReach("guest-1", "of alice", guest=True)) == []
    assert directory.agent_of("gpu1", "of alice", "alice") == "gpu1/memory"
    assert directory.agent_of("gpu1", "of alice", "bob") is None


def test_equal_ids_of_two_owners_at_a_node_stay_apart(directory: NodeDirectory) -> None:
    directory.set_rights("gpu1", "door", ["*"])
    theirs = [session("1", owner=owner, live=live) for owner, live in (("alice", True), ("bob", False))]
    directory.set_sessions("gpu1", theirs, 0)
    own = session("1", "gpu1/memory", owner="alice", live=False)
    (found,) = merged(directory, own, further=lambda *_: False)
    assert (found["owner"], found["live"]) == ("alice", True)
