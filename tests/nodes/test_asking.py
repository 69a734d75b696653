"""The sessions at nodes, as a gateway tells them: it asks them for each client, and believes nothing unchecked."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from acp_gateway.client.control import SearchAnswer, export, list_sessions, search
from acp_gateway.client.dialing import Destination
from acp_gateway.core.sessions.session import SessionReach
from acp_gateway.errors import Busy, Forbidden, ProtocolError, Unauthorized, UnknownSession, Unreachable
from acp_gateway.gateway.access import Access
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.events.audit import read_audit
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.node_directory import ID_SIZE, NodeDirectory
from acp_gateway.gateway.search import service
from acp_gateway.gateway.session_api.requests import EXPORT, LIST, SEARCH, USAGE
from acp_gateway.gateway.sessions.elsewhere import ListedAtNodes
from acp_gateway.made.ports import MOST_TOLD, NAME_SIZE
from acp_gateway.nodes import asking
from acp_gateway.nodes.asking import TEXT, NodeQuestions
from acp_gateway.nodes.door import NodeAdmission
from acp_gateway.nodes.reaching import NodeReacher
from tests.gateway.session_api.test_machines import SECTION
from tests.kit.bridging import running, section
from tests.kit.fake_gateway import DESTINATION
from tests.kit.machines import control, save_token, two_nodes_and_a_front
from tests.nodes.test_node_watcher import editor_at, hurried, new_session, prompted
from tests.nodes.test_spoken_identities import close, machines

__all__ = ["hurried"]

pytestmark = pytest.mark.usefixtures("no_bug_showed")


def session(session_id: str, agent: str = "memory", **more: Any) -> dict[str, Any]:
    """A session as a node describes it."""
    described = {"id": session_id, "agentType": agent, "owner": "door", "live": True, "connected": 1, "away": 0}
    return described | {"turn": False, "waiting": []} | more


AGENTS = {"own", "gpu1/memory", "gpu2/memory"}


class Nodes:
    """The nodes `gpu1` and `gpu2` of a gateway, which answer as a test says."""

    def __init__(self, gateway: Gateway, access: Callable[..., Access]) -> None:
        self.access = access
        self.answers: dict[str, Any] = {}
        """By node: a result, an exception, or None for no answer at all."""
        self.asked: list[tuple[str, str, str]] = []
        """Node, identity and method of each question."""
        self.params: list[Mapping[str, Any]] = []
        self.directory = NodeDirectory({"gpu1": SECTION, "gpu2": SECTION}, 0.0)
        gateway.reconfigure(replace(gateway.config, nodes=self.directory.sections), ())
        gateway.extensions.directory = self.directory
        self.own = gateway.registry.own_identity
        self.admission = NodeAdmission(gateway, NodeReacher(lambda: self.directory.sections).reach)
        self.questions = NodeQuestions(gateway, self.admission, self._ask)

    async def _ask(self, name: str, access: Access, method: str, params: Mapping[str, Any]) -> tuple[Destination, Any]:
        self.asked.append((name, access.identity, method))
        self.params.append(params)
        answer = self.answers.get(name, {"sessions": []})
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            await trio.sleep_forever()
        return DESTINATION, answer

    async def listed(self, access: Access | None = None, **reach: Any) -> ListedAtNodes:
        """The sessions that a client is told."""
        access = access or self.access()
        return await self.questions.sessions(access, SessionReach(access.identity, **reach), AGENTS)


@asynccontextmanager
async def nodes(tmp_path: Path, spawner: Spawner) -> AsyncIterator[Nodes]:
    async with running(tmp_path, spawner, own=section()) as bench:
        yield Nodes(bench.gateway, bench.access)


def ids(listed: ListedAtNodes) -> list[str]:
    return [it["id"] for it in listed.sessions]


@pytest.fixture
async def it(tmp_path: Path, spawner: Spawner) -> AsyncIterator[Nodes]:
    async with nodes(tmp_path, spawner) as it:
        yield it


async def test_sessions_of_all_nodes_are_listed_by_their_machine_for_the_client_that_asks(it: Nodes) -> None:
    it.answers["gpu1"] = {"sessions": [session("1", title="t"), session("past", live=False)], "more": 2}
    it.answers["gpu2"] = {"sessions": [session("1"), session("2", "other")]}
    listed = await it.listed()
    assert ids(listed) == ["gpu1/past", "gpu1/1", "gpu2/1"]
    assert (listed.more, listed.missing, listed.problems) == (2, [], [])
    row = listed.sessions[1]
    # There it is that of the name by which the node knows the client.
    assert (row["agentType"], row["machine"], row["owner"], row["title"]) == ("gpu1/memory", "gpu1", "ann", "t")
    assert sorted(it.asked) == [("gpu1", "ann", LIST), ("gpu2", "ann", LIST)]


async def test_nodes_that_the_credential_does_not_allow_are_not_asked(it: Nodes) -> None:
    await it.listed(replace(it.access(), agents=("own", "gpu2/memory")))
    await it.listed(replace(it.access(), workspaces=("w",)))
    assert [name for name, _, _ in it.asked] == ["gpu2"]


async def test_a_client_of_one_session_is_told_that_alone(it: Nodes) -> None:
    it.answers |= {name: {"sessions": [session("1"), session("2")]} for name in ("gpu1", "gpu2")}
    assert ids(await it.listed(only="2")) == []
    assert it.asked == []
    assert ids(await it.listed(only="gpu2/2")) == ["gpu2/2"]


async def test_nodes_that_do_not_answer_in_time_are_named(it: Nodes, autojump_clock: MockClock) -> None:
    it.directory.set_up("gpu2", ["memory"], "1.0", 0.0)
    it.answers = {"gpu1": Unreachable("wss://gpu.example: no route"), "gpu2": None}
    it.directory.set_away("gpu1", "no route to gpu.example", 0.0)
    begin = trio.current_time()
    listed = await it.listed()
    problems = listed.problems
    assert listed.missing == ["gpu1", "gpu2"]
    assert trio.current_time() - begin == asking.LIST_TIMEOUT
    # Others than the own user are not told addresses.
    assert problems == ["the node gpu1 is away since 1970-01-01T00:00:00Z", "the node gpu2 did not answer in time"]
    own = await it.listed(it.access(it.own))
    assert own.problems[0].endswith(": no route to gpu.example")
    # One that is there and refuses, as of another version.
    it.answers["gpu2"] = ProtocolError("refused with 400: not understood")
    assert (await it.listed()).problems[1] == "the node gpu2 did not answer"
    own = await it.listed(it.access(it.own))
    assert own.problems[1] == "the node gpu2 did not answer: refused with 400: not understood"


@pytest.mark.parametrize(
    "answer",
    [None.__class__, {"sessions": [{"id": 1}]}, {"sessions": "x"}, {"sessions": [], "more": "x"}, []],
    ids=repr,
)
async def test_a_node_whose_answer_is_not_understood_is_named(it: Nodes, answer: Any) -> None:
    it.answers["gpu1"] = answer
    assert len((await it.listed()).problems) == 1


async def test_a_node_that_does_not_know_rights_to_files_and_ports_is_not_told_them(it: Nodes) -> None:
    guest = replace(it.access("guest"), role="observer", session="gpu1/1", files=True, ports=True)
    for form, told in (0, False), (1, False), (2, True):
        it.directory.set_up("gpu1", ["memory"], "1.0", 0.0, form)
        claim = it.admission.claim(guest, "gpu1")
        assert (claim.files, claim.ports) == (told, told)


async def test_what_a_node_tells_is_cut_to_what_is_believed(it: Nodes) -> None:
    long = session("1", title="t" * (TEXT + 1), owner="root")
    it.answers["gpu1"] = {"sessions": [long | {"extra": 1}, session("x" * (ID_SIZE + 1))]}
    (row,) = (await it.listed()).sessions
    assert (len(row["title"]), row["owner"], "extra" in row) == (TEXT, "ann", False)


async def test_the_ports_of_sessions_are_asked_for_and_cut_where_a_client_wants_them(it: Nodes) -> None:
    ports = [{"port": at + 1, "program": "p" * 99, "extra": 1} for at in range(MOST_TOLD + 1)]
    it.answers["gpu1"] = {"sessions": [session("1", ports=ports)]}
    (row,) = (await it.listed(it.access())).sessions
    assert row["ports"][-1] == {"port": MOST_TOLD, "program": "p" * NAME_SIZE}
    wanted = SessionReach("ann")
    await it.questions.sessions(it.access(), wanted, AGENTS, with_ports=True)
    assert [members.get("ports") for members in it.params] == [None, None, True, True]


async def test_a_search_has_what_nodes_find_and_names_those_without_an_answer(
    tmp_path: Path, spawner: Spawner, autojump_clock: MockClock
) -> None:
    found = {"sessionId": "1", "agentType": "memory", "owner": "door", "title": "t", "texts": 2, "text": "by zero"}
    async with nodes(tmp_path, spawner) as it:
        it.answers = {"gpu1": {"found": [found, found | {"agentType": "other"}], "complete": False}, "gpu2": None}
        told = await it.questions.search(it.access(), SessionReach("ann"), AGENTS, "zero")
        assert [(one.name, one.agent, one.owner, one.text) for one in told.found] == [
            ("gpu1/1", "gpu1/memory", "ann", "by zero")
        ]
        assert (told.missing, told.complete) == (["gpu2"], False)
        assert {method for _, _, method in it.asked} == {SEARCH}


@pytest.mark.parametrize(("by", "keys"), [("session", ["gpu1/1", "gpu2/1"]), ("day", ["1", "1"])])
async def test_costs_at_nodes_are_told_by_their_machine_and_added_up(it: Nodes, by: str, keys: list[str]) -> None:
    amounts = dict.fromkeys(("turns", "tokens", "input", "output", "cachedRead", "cachedWrite"), 1)
    row = amounts | {"key": "1", "costs": {"USD": 0.5}}
    answer = {"rows": [row], "total": amounts | {"costs": {"USD": 0.5, "EUR": 1}}, "more": 2, "further": 1}
    it.answers = {"gpu1": answer, "gpu2": answer | {"rows": [row | {"title": "t" * 2 * TEXT, "machine": "x"}]}}
    told = await it.questions.usage(it.access(), SessionReach("ann"), {"by": by})
    assert [row["key"] for row in told.rows] == keys
    assert [(row["machine"], len(row["title"])) for row in told.rows] == [("gpu1", 0), ("gpu2", TEXT)]
    assert (told.total["USD"], told.total["EUR"], told.total["turns"], told.more) == (1_000_000, 2_000_000, 2, 4)
    assert {(identity, method) for _, identity, method in it.asked} == {("ann", USAGE)}
    it.answers["gpu2"] = {"rows": [row | {"tokens": -1}], "total": amounts}
    assert (await it.questions.usage(it.access(), SessionReach("ann"), {"by": by})).missing == ["gpu2"]


async def test_a_guest_searches_its_session_at_the_node(tmp_path: Path, spawner: Spawner) -> None:
    found = {"sessionId": "1", "agentType": "memory", "owner": "door", "title": "t", "texts": 2, "text": "by zero"}
    async with nodes(tmp_path, spawner) as it:
        it.answers["gpu1"] = {"found": [found, found | {"sessionId": "2"}], "complete": True}
        guest = SessionReach("ann", only="gpu1/1", guest=True)
        told = await it.questions.search(it.access(), guest, AGENTS, "zero")
        assert [one.name for one in told.found] == ["gpu1/1"]
        assert [name for name, _, _ in it.asked] == ["gpu1"]


async def test_a_file_of_a_session_is_written_at_its_node(
    it: Nodes, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "EXPORT_TIMEOUT", 10.0)
    file = {"name": "f.md", "mimeType": "text/markdown", "text": "# f"}
    it.answers["gpu1"] = json.dumps(file).encode()
    assert await it.questions.export(it.access(), "gpu1/7/f", "markdown", redacted=True) == it.answers["gpu1"]
    assert await it.questions.export(it.access(), "gpu3/1", "json", redacted=False) is None
    assert it.asked == [("gpu1", "ann", EXPORT)]
    for answer, refusal in (
        (b"null", Busy),
        (b"[]", Busy),
        (json.dumps(file | {"text": 1}).encode(), Busy),
        (Unreachable("x"), Busy),
        (Forbidden("x"), Forbidden),
        # Of this gateway's token, not of the client's.
        (Unauthorized("x"), Busy),
        (UnknownSession("x"), UnknownSession),
    ):
        it.answers["gpu1"] = answer
        with pytest.raises(refusal):
            await it.questions.export(it.access(), "gpu1/1", "json", redacted=False)


async def test_a_client_of_a_front_is_told_and_reads_what_its_node_has(tmp_path: Path, hurried: None) -> None:
    token = save_token(tmp_path / "front", "token")
    async with two_nodes_and_a_front(tmp_path) as (_, websocket):
        direct = await editor_at((tmp_path / "gpu2" / "url").read_text(), "memory", tmp_path / "gpu2" / "node.token")
        its_id = await new_session(direct)
        await prompted(direct, its_id, "said at the node")
        (row,) = (await list_sessions(control(websocket, token), time_limit=30)).sessions
        assert (row["sessionId"], row["agent"], row["live"]) == (f"gpu2/{its_id}", "gpu2/memory", True)
        read = partial(export, control(websocket, token), form="markdown", redact=False, time_limit=30)
        assert "said at the node" in await read(f"gpu2/{its_id}")
        with pytest.raises(UnknownSession) as refused:
            await read("gpu2/other")
        # Only the address that the client has used: those of nodes are not told.
        own = f"{control(websocket, token).address}: "
        assert str(refused.value).removeprefix(own).startswith("no session 'other' is open here")
        await direct.stream.aclose()


async def test_questions_to_nodes_for_a_client_have_the_same_request_id_in_both_audits(
    tmp_path: Path, hurried: None
) -> None:
    token = save_token(tmp_path / "front", "token")
    async with two_nodes_and_a_front(tmp_path) as (_, websocket):
        await list_sessions(control(websocket, token), time_limit=30)
        await search(control(websocket, token), "zero", time_limit=30)
        with pytest.raises(UnknownSession):
            await export(control(websocket, token), "gpu2/other", "json", redact=False, time_limit=30)

        def requests(machine: str, event: str) -> list[str]:
            entries = [it for it in read_audit(tmp_path / machine / "audit.jsonl") if it["event"] == event]
            return sorted(it["request"] for it in entries if it.get("request"))

        asked = requests("front", "node_link")
        assert len(set(asked)) == 5
        assert sorted(requests("gpu1", "authenticated") + requests("gpu2", "authenticated")) == asked


async def test_a_search_at_a_front_finds_what_was_said_at_its_node(
    tmp_path: Path, hurried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "GATHERING", 0.0)
    monkeypatch.setattr(service, "PAUSE", 0.0)
    async with machines(tmp_path, "*") as all_of_them:
        direct = await all_of_them.at_node("alice")
        its_id = await new_session(direct)
        await prompted(direct, its_id, "divide by zero")

        async def searched(identity: str | None) -> SearchAnswer:
            url, token = (all_of_them.own, None)
            if identity is not None:
                url, token = all_of_them.front, all_of_them.token("front", identity)
            return await search(control(url, token), "zero", time_limit=60)

        while not (answer := await searched("alice")).found:
            await trio.lowlevel.checkpoint()
        (one,) = answer.found
        assert (one["sessionId"], one["agent"], one["owner"]) == (f"gpu1/{its_id}", "gpu1/memory", "alice")
        assert "divide by zero" in one["text"]
        assert answer.missing == ()
        assert (await searched("bob")).found == (await searched(None)).found == []
        await close(direct)
