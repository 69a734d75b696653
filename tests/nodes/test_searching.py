"""Searches at nodes: who is told what, and which nodes are named as not searched."""

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from acp_gateway.client.control import SearchAnswer, search
from acp_gateway.client.dialing import Destination
from acp_gateway.config.addresses import parse_target
from acp_gateway.config.nodes import NodeSection
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import SessionReach
from acp_gateway.errors import Forbidden
from acp_gateway.gateway.node_directory import NodeDirectory
from acp_gateway.gateway.search import service
from acp_gateway.gateway.search.elsewhere import FoundAtNodes
from acp_gateway.gateway.search.texts import SNIPPET
from acp_gateway.gateway.sessions.node_sessions import NodeSessions
from acp_gateway.nodes import node_set, searching
from acp_gateway.nodes.searching import NodeSearch
from tests.gateway.sessions.test_node_sessions import session
from tests.nodes.machines import control
from tests.nodes.test_node_watcher import new_session, prompted
from tests.nodes.test_spoken_identities import close, hurried, machines

__all__ = ["hurried"]

AGENTS = {"gpu1/memory", "gpu2/memory"}


def found(session_id: str, owner: str = "door", **more: Any) -> dict[str, Any]:
    return {"sessionId": session_id, "agent": "memory", "owner": owner, "title": "", "texts": 1, "text": "zero"} | more


class Front:
    """A gateway in front of nodes whose lists and answers a test writes."""

    def __init__(self, *names: str) -> None:
        sections = {
            name: NodeSection(url=parse_target(f"wss://{name}.example"), token_file=Path("/token")) for name in names
        }
        self.directory = NodeDirectory(sections, 0.0)
        self.refreshed = 0
        self.sessions = NodeSessions(self.directory, Registry("root"), self.refresh)
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[str, str, str]] = []
        self.search = NodeSearch(self.directory, self.sessions, self.destination, self.ask)

    async def refresh(self) -> None:
        self.refreshed += 1

    def destination(self, section: NodeSection) -> Destination:
        return control(str(section.url))

    async def ask(self, destination: Destination, words: str, identity: str) -> SearchAnswer:
        name = destination.address.host.partition(".")[0]
        self.asked.append((name, words, identity))
        answer = self.answers.get(name)
        if answer is None:
            await trio.sleep_forever()
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, SearchAnswer) else SearchAnswer(answer)

    def lists(self, name: str, *sessions: dict[str, Any], speaks_for: tuple[str, ...] = ()) -> None:
        self.directory.set_up(name, ["memory"], "1.0", 0.0)
        self.directory.set_rights(name, "door", speaks_for)
        self.directory.set_sessions(name, sessions, 0)

    async def find(self, identity: str = "root", **reach: Any) -> FoundAtNodes:
        return await self.search.find(SessionReach(identity, **reach), AGENTS, "zero")

    async def names(self, identity: str = "root", **reach: Any) -> list[str]:
        return [one.name for one in (await self.find(identity, **reach)).found]


async def test_what_nodes_find_is_told_to_those_whose_list_has_it() -> None:
    front = Front("gpu1", "gpu2")
    front.lists("gpu1", session("1"), session("2", agent="other"))
    front.lists("gpu2", session("1", owner="ann"), session("2", owner="ben"), speaks_for=("ann", "ben"))
    front.answers = {
        "gpu1": [found("1", title="T"), found("2", agent="other"), found("unlisted")],
        "gpu2": [found("1", "ann")],
    }
    told = await front.find()
    (one,) = told.found
    assert (one.name, one.agent, one.owner, one.title, one.texts, one.text) == (
        *("gpu1/1", "gpu1/memory", "door", "T", 1, "zero"),
    )
    assert (told.missing, told.complete) == ([], True)
    assert await front.names("ann") == ["gpu2/1"]
    # Answers for another identity do not count, whatever the ids are.
    ben = await front.find("ben")
    assert (ben.found, ben.missing) == ([], ["gpu2"])
    assert await front.names(only="1") == await front.names("ann", workspaces=()) == await front.names("carol") == []
    assert front.asked == [("gpu1", "zero", "door"), ("gpu2", "zero", "ann"), ("gpu2", "zero", "ben")]
    assert front.refreshed == 0


async def test_a_node_that_does_not_answer_is_named_and_the_others_are_waited_for(autojump_clock: MockClock) -> None:
    names = ("away", "early", "full", "older", "refusing", "silent", "unreached", "well")
    front = Front(*names, "empty")
    for name in names:
        if name != "unreached":
            front.lists(name, session("1"))
    front.lists("empty")
    front.directory.set_away("away", "cut", 0.0)
    older = {name: value for name, value in found("1").items() if name != "owner"}
    front.answers = {
        "early": SearchAnswer([], complete=False),
        "full": [found("1", text="x" * 1000), *(found("2") for _ in range(99))],
        "older": [older],
        "refusing": Forbidden("no"),
        "well": [],
    }
    search_ = NodeSearch(front.directory, front.sessions, front.destination, front.ask)
    told = await search_.find(SessionReach("root"), {f"{name}/memory" for name in (*names, "empty")}, "zero")
    assert told.missing == ["away", "older", "refusing", "silent", "unreached"]
    assert not told.complete
    assert [(one.name, len(one.text)) for one in told.found] == [("full/1", SNIPPET + 2)]
    assert trio.current_time() == searching.TIME_LIMIT
    assert {name for name, _, _ in front.asked} == {"early", "full", "older", "refusing", "silent", "well"}
    assert front.refreshed == 1


async def test_of_many_nodes_some_are_asked_and_the_rest_is_named() -> None:
    names = [f"gpu{number:02}" for number in range(searching.MOST_ASKED + 2)]
    front = Front(*names)
    for name in names:
        front.lists(name, session("1"))
        front.answers[name] = [found("1")]
    told = await front.search.find(SessionReach("root"), {f"{name}/memory" for name in names}, "zero")
    assert [one.name for one in told.found] == [f"{name}/1" for name in names[:-2]]
    assert told.missing == names[-2:]


async def test_a_search_at_a_front_finds_what_was_said_at_its_node(
    tmp_path: Path, hurried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "GATHERING", 0.0)
    monkeypatch.setattr(service, "PAUSE", 0.0)
    # A busy machine may take longer.
    monkeypatch.setattr(searching, "TIME_LIMIT", 60.0)
    monkeypatch.setattr(node_set, "TIME_LIMIT", 60.0)
    async with machines(tmp_path, "*") as all_of_them:
        direct = await all_of_them.at_node("alice")
        session = await new_session(direct)
        await prompted(direct, session, "divide by zero")
        while f"gpu1/{session}" not in await all_of_them.told("alice"):
            await trio.lowlevel.checkpoint()

        async def searched(identity: str | None) -> SearchAnswer:
            url, token = (all_of_them.own, None)
            if identity is not None:
                url, token = all_of_them.front, all_of_them.token("front", identity)
            return await search(control(url, token), "zero", time_limit=60)

        while not (answer := await searched("alice")).found:
            await trio.lowlevel.checkpoint()
        (one,) = answer.found
        assert (one["sessionId"], one["agent"], one["owner"]) == (f"gpu1/{session}", "gpu1/memory", "alice")
        assert "divide by zero" in one["text"]
        assert answer.missing == ()
        assert (await searched("bob")).found == (await searched(None)).found == []
        # At the node, the token of the front finds those of the identities that it may speak for, by their names.
        front = control(all_of_them.node, tmp_path / "gpu1" / "node.token")
        assert [
            [one["sessionId"] for one in (await search(front, "zero", identity, time_limit=60)).found]
            for identity in ("alice", "bob", None)
        ] == [[session], [], []]
        alice = control(all_of_them.node, all_of_them.token("gpu1", "alice"))
        assert (await search(alice, "zero", "door", time_limit=60)).found == []
        await close(direct)
