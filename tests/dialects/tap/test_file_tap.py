"""Readers of the file tap, beside clients of the same gateway."""

import itertools
import json
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trio
import trio.testing

from acp_gateway.config.limits import LimitsSection
from acp_gateway.config.load import ListenSection
from acp_gateway.dialects.tap import file_tap
from acp_gateway.dialects.tap.file_events import SharedFileEvents
from acp_gateway.dialects.tap.file_tap import FileTap
from acp_gateway.dialects.tap.files import FileFinder, Seen
from acp_gateway.dialects.tap.service import TapSection
from acp_gateway.errors import AccessError, Busy, UnknownSession
from acp_gateway.gateway import gateway as gateway_module
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.hub.hub import Hub
from acp_gateway.transports.memory import memory_message_stream_pair
from acp_gateway.transports.streams import Stalled
from tests.kit.bridging import Bench, Page, prompted, running, section
from tests.kit.doubles import ServingAgent, ServingAgents, encode
from tests.kit.echoing import EchoingGateway, answer_to, connected, hello, listening

pytestmark = pytest.mark.usefixtures("no_bug_showed")

START = 1_000_000.0
"""Seconds since 1970 when the clock of a test begins."""


class Reader:
    """A reader's end of the tap."""

    def __init__(
        self,
        bench: Bench,
        access: Access,
        events: SharedFileEvents | None = None,
        *,
        reads: bool = True,
        **wanted: Any,
    ) -> None:
        theirs, ours = memory_message_stream_pair()
        self.stream, self.far_end = theirs, ours
        self.lines: list[dict[str, Any]] = []
        self.ended = False
        self._news = trio.lowlevel.ParkingLot()
        tap = FileTap(bench.gateway, access, ConnectRequest(**wanted), "tap", events, lambda: now())
        bench.nursery.start_soon(tap.serve, ours)
        if reads:
            bench.nursery.start_soon(self.read)

    async def read(self) -> None:
        try:
            async for batch in self.stream:
                self.lines += map(json.loads, batch)
                self._news.unpark_all()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        self.ended = True
        self._news.unpark_all()

    async def send(self, **line: Any) -> None:
        await self.stream.send(json.dumps(line).encode())

    async def until(self, kind: str, count: int = 1, session: str | None = None) -> dict[str, Any]:
        """The line of this kind that is the last of so many."""
        while len(found := self.of(kind, session)) < count:
            assert not self.ended, self.lines
            await self._news.park()
        return found[count - 1]

    def of(self, kind: str, session: str | None = None) -> list[dict[str, Any]]:
        return [it for it in self.lines if it["type"] == kind and session in (None, it.get("session_id"))]

    def files(self, session: str) -> dict[str, Any]:
        """The files of a session after all lines."""
        nodes: dict[str, Any] = {}
        seq = None
        for line in self.lines:
            if line.get("session_id") != session:
                continue
            if line["type"] == "snapshot":
                nodes, seq = dict(line["nodes"]), line["seq"]
            elif line["type"] == "delta":
                assert seq is not None
                assert line["seq"] == seq + 1
                seq += 1
                nodes |= {node["path"]: node for node in line["updates"]}
                for path in line["removed"]:
                    del nodes[path]
        return nodes

    async def until_files(self, session: str, *paths: str) -> None:
        while set(self.files(session)) != set(paths):
            assert not self.ended, self.lines
            await self._news.park()


def now() -> int:
    return int((START + trio.current_time()) * 1000)


async def uses(agent: ServingAgent, session: str, *paths: str, **members: Any) -> None:
    """The agent reads files."""
    locations = [{"path": path} for path in paths]
    update = {"sessionUpdate": "tool_call", "toolCallId": "t", "kind": "read", "locations": locations, **members}
    await agent.send(method="session/update", params={"sessionId": session, "update": update})


async def compacts(agent: ServingAgent, session: str) -> None:
    for used in (100, 10):
        update = {"sessionUpdate": "usage_update", "used": used, "size": 200}
        await agent.send(method="session/update", params={"sessionId": session, "update": update})


async def opened(bench: Bench, agents: ServingAgents, identity: str = "ann") -> tuple[Page, str, ServingAgent]:
    """A session with a turn that runs."""
    page = await bench.page(bench.access(identity), identity)
    session = await page.new_session(cwd="/")
    await prompted(page, agents[-1], session)
    return page, session, agents[-1]


async def test_a_reader_is_told_the_files_of_its_sessions_and_no_others(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        _, session, agent = await opened(bench, loading_agents)
        _, foreign, foreign_agent = await opened(bench, loading_agents, "ben")
        await uses(agent, session, "/a.py")
        await uses(foreign_agent, foreign, "/secret.py")
        reader = Reader(bench, bench.access())
        first = await reader.until("snapshot")
        assert first["agent_id"] == "fake"
        assert first["nodes"]["a.py"]["last_action"] == "read"
        await uses(foreign_agent, foreign, "/later.py")
        await uses(agent, session, "/b.py", kind="edit")
        delta = await reader.until("delta")
        assert [(it["path"], it["last_action"], it["turn_accessed"]) for it in delta["updates"]] == [
            ("b.py", "write", 1)
        ]
        assert {line["session_id"] for line in reader.lines} == {session}
        await reader.send(type="request_snapshot", session_id=foreign)
        error = await reader.until("error")
        assert (error["session_id"], "no live session" in error["message"]) == (foreign, True)
        assert "secret" not in json.dumps(reader.lines)


async def test_a_session_that_begins_and_ends_while_a_reader_is_there(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        reader = Reader(bench, bench.access())
        _, session, agent = await opened(bench, loading_agents)
        await uses(agent, session, "/a.py")
        await reader.until_files(session, "a.py")
        await agent.stream.aclose()
        await reader.until_files(session)
        assert reader.of("delta", session)[-1]["removed"] == ["a.py"]


async def test_requests_for_files_are_accesses_even_if_they_are_over_at_once(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner, fake=section(client_fs=True)) as bench:
        reader = Reader(bench, bench.access())
        client = bench.editor(bench.access())
        offered = {"fs": {"readTextFile": True, "writeTextFile": True}}
        await client.request("initialize", {"protocolVersion": 1, "clientCapabilities": offered})
        await client.send(id="n", method="session/new", params={"cwd": "/", "mcpServers": []})
        session = (await client.receive())["result"]["sessionId"]
        await reader.until("snapshot")
        messages = []
        for raw_id, method, path in [("r", "fs/read_text_file", "/a.py"), ("w", "fs/write_text_file", "/b.py")]:
            params = {"sessionId": session, "path": path, "content": "x"}
            messages.append(encode({"id": raw_id, "method": method, "params": params}))
            messages.append(encode({"method": "$/cancel_request", "params": {"requestId": raw_id}}))
        await loading_agents[0].stream.send_batch(messages)
        await reader.until_files(session, "a.py", "b.py")
        actions = {path: it["last_action"] for path, it in reader.files(session).items()}
        assert actions == {"a.py": "read", "b.py": "write"}


@pytest.mark.parametrize("method", ["fs/read_text_file", "write_text_file"])
@pytest.mark.parametrize(("client_fs", "path"), [(True, "/etc/passwd"), (False, "a.py")], ids=["fenced", "not offered"])
async def test_a_request_for_a_file_that_the_gateway_refuses_is_told_as_blocked_and_is_not_an_access(
    client_fs: bool, path: str, method: str, tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner, fake=section(client_fs=client_fs)) as bench:
        reader = Reader(bench, bench.access())
        client = bench.editor(bench.access())
        offered = {"fs": {"readTextFile": True, "writeTextFile": True}}
        await client.request("initialize", {"protocolVersion": 1, "clientCapabilities": offered})
        await client.send(id="n", method="session/new", params={"cwd": str(tmp_path), "mcpServers": []})
        session = (await client.receive())["result"]["sessionId"]
        await reader.until("snapshot")
        agent = loading_agents[0]
        params = {"sessionId": session, "path": str(tmp_path / path), "content": "x"}
        await agent.send(id=1, method=method, params=params)
        await uses(agent, session, str(tmp_path / "b.py"))
        await reader.until_files(session, "b.py")
        blocked = await reader.until("blocked")
        action = "read" if "read" in method else "write"
        assert (blocked["path"], blocked["action"], blocked["session_id"]) == (path, action, session)
        assert len(reader.of("blocked")) == 1


@pytest.mark.parametrize("option", ["yes", "no"])
async def test_a_permission_that_was_refused_is_told_as_blocked(
    option: str, tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        reader = Reader(bench, bench.access())
        page, session, agent = await opened(bench, loading_agents)
        await reader.until("snapshot")
        call = {"toolCallId": "t", "kind": "edit", "locations": [{"path": "/a.py"}]}
        options = [
            {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
            {"optionId": "no", "name": "No", "kind": "reject_once"},
        ]
        params = {"sessionId": session, "toolCall": call, "options": options}
        await agent.send(id="p", method="session/request_permission", params=params)
        asked = await page.until(lambda: page.of("session/request", session))
        response = {"outcome": {"outcome": "selected", "optionId": option}}
        await page.result("session/respond", sessionId=session, requestId=asked[0]["requestId"], response=response)
        await uses(agent, session, "/b.py")
        await reader.until_files(session, "b.py")
        blocked = [(it["path"], it["action"]) for it in reader.of("blocked")]
        assert blocked == ([("a.py", "write")] if option == "no" else [])


async def test_files_cool_in_steps_after_a_compaction_and_nothing_runs_afterwards(
    tmp_path: Path,
    spawner: Spawner,
    loading_agents: ServingAgents,
    autojump_clock: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway_module, "Hub", partial(Hub, wall_clock=lambda: now() / 1000))
    async with running(tmp_path, spawner, timeout=1000) as bench:
        reader = Reader(bench, bench.access())
        _, session, agent = await opened(bench, loading_agents)
        await uses(agent, session, "/a.py")
        await reader.until_files(session, "a.py")
        await compacts(agent, session)
        await reader.until_files(session)
        heats = [
            node["heat"] for line in reader.of("delta", session) for node in line["updates"] if not node["in_context"]
        ]
        assert heats == sorted(heats, reverse=True)
        assert 80 <= len(heats) <= 95
        count = len(reader.lines)
        await trio.sleep(100)
        assert len(reader.lines) == count


class SlowTime(ModuleType):
    """A `time` in which everything that is measured takes a second."""

    def __init__(self) -> None:
        super().__init__("time")
        self._measured = itertools.count(1.0)

    def perf_counter(self) -> float:
        return next(self._measured)


async def test_cooling_files_take_no_more_of_the_loop_than_the_share_of_their_reader(
    tmp_path: Path,
    spawner: Spawner,
    loading_agents: ServingAgents,
    autojump_clock: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway_module, "Hub", partial(Hub, wall_clock=lambda: now() / 1000))
    async with running(tmp_path, spawner, timeout=1000) as bench:
        reader = Reader(bench, bench.access())
        # Nothing is shared out while there is no other identity.
        Reader(bench, bench.access("bob"))
        _, session, agent = await opened(bench, loading_agents)
        await uses(agent, session, "/a.py")
        await reader.until_files(session, "a.py")
        monkeypatch.setattr(file_tap, "time", SlowTime())
        await compacts(agent, session)
        await reader.until_files(session)
        assert len(reader.of("delta", session)) < 20


async def test_a_slow_reader_gets_a_snapshot_and_delays_no_other(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_tap, "HIGH_WATER", 1000)
    async with running(tmp_path, spawner) as bench:
        _, session, agent = await opened(bench, loading_agents)
        slow, quick = Reader(bench, bench.access(), reads=False), Reader(bench, bench.access())
        await quick.until("snapshot")
        for number in range(100):
            await uses(agent, session, f"/{number}.py")
            await quick.until_files(session, *(f"{it}.py" for it in range(number + 1)))
        # What waits for it is bounded, however much has changed.
        assert slow.far_end.pending_bytes < 3000
        bench.nursery.start_soon(slow.read)
        await slow.until_files(session, *(f"{it}.py" for it in range(100)))
        assert len(slow.of("snapshot")) == 2
        assert slow.of("snapshot")[1]["seq"] > slow.of("snapshot")[0]["seq"] + 1
        assert slow.files(session) == quick.files(session)


async def test_a_reader_that_takes_nothing_for_too_long_is_disconnected(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stalled(below: int = 0) -> None:
        raise Stalled("the peer took no byte within stall_timeout (60 s)")

    monkeypatch.setattr(file_tap, "HIGH_WATER", 10)
    async with running(tmp_path, spawner) as bench:
        await opened(bench, loading_agents)
        reader = Reader(bench, bench.access(), reads=False)
        monkeypatch.setattr(reader.far_end, "drain", stalled)
        await trio.testing.wait_all_tasks_blocked()
        await reader.read()
        assert reader.ended
        assert len(bench.gateway.connections) == 2


async def test_a_filter_leaves_one_session_and_its_removal_tells_all_again(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        page, first, agent = await opened(bench, loading_agents)
        second = await page.new_session(cwd="/")
        reader = Reader(bench, bench.access())
        await reader.until("snapshot", 2)
        await reader.send(type="set_stream_filter", session_id=second)
        assert (await reader.until("snapshot", 3))["session_id"] == second
        await uses(agent, first, "/a.py")
        await uses(agent, second, "/b.py")
        await reader.until_files(second, "b.py")
        assert reader.files(first) == {}
        await reader.send(type="set_stream_filter")
        await reader.until_files(first, "a.py")
        await reader.send(type="request_snapshot", session_id=first)
        await reader.until("snapshot", 3, first)
        await reader.send(type="nonsense")
        assert "request_snapshot" in (await reader.until("error"))["message"]


async def test_an_observer_and_a_guest_read_and_a_guest_only_its_session(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        page, session, agent = await opened(bench, loading_agents)
        other = await page.new_session(cwd="/")
        await uses(agent, session, "/a.py")
        await uses(agent, other, "/b.py")
        guest = Reader(bench, bench.guest(session, "observer"))
        observer = Reader(bench, bench.access(role="observer"))
        for reader in (guest, observer):
            await reader.until_files(session, "a.py")
        await observer.until_files(other, "b.py")
        await uses(agent, other, "/c.py")
        await uses(agent, session, "/d.py")
        await guest.until_files(session, "a.py", "d.py")
        assert {line["session_id"] for line in guest.lines} == {session}
        with pytest.raises(UnknownSession):
            Reader(bench, bench.guest("nothing"))
        with pytest.raises(AccessError):
            Reader(bench, bench.access(), agent="unknown")
        # No reader has joined a session.
        (described,) = [it for it in (await page.result("session/list"))["sessions"] if it["id"] == session]
        assert [client["identity"] for client in described["clients"]] == ["ann"]


async def test_nothing_of_a_session_that_a_reader_may_not_see_is_told_whatever_it_asks_for(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    """Three identities on one process of an agent that they share, and a guest."""
    async with running(tmp_path, spawner, fake=section(scope="shared", client_fs=True)) as bench:
        sessions: dict[str, list[str]] = {}
        for name in ("ann", "ben", "eve"):
            page = await bench.page(bench.access(name), name)
            sessions[name] = [await page.new_session(cwd=str(tmp_path)) for _ in range(2)]
        agent = loading_agents[-1]
        readers = {name: Reader(bench, bench.access(name)) for name in sessions}
        readers["guest"] = Reader(bench, bench.guest(sessions["ann"][0]))
        allowed = {**{name: set(its) for name, its in sessions.items()}, "guest": {sessions["ann"][0]}}
        for name, reader in readers.items():
            for session in sorted(allowed[name]):
                await reader.until("snapshot", session=session)
            for foreign in {it for its in sessions.values() for it in its} - allowed[name]:
                await reader.send(type="request_snapshot", session_id=foreign)
                await reader.send(type="set_stream_filter", session_id=foreign)
            await reader.send(type="set_stream_filter")
        for name, its in sessions.items():
            for session in its:
                await uses(agent, session, f"{tmp_path}/of-{name}-{session}")
                params = {"sessionId": session, "path": f"/blocked-of-{session}"}
                await agent.send(id=session, method="fs/read_text_file", params=params)
        for name, reader in readers.items():
            for session in sorted(allowed[name]):
                await reader.until("blocked", session=session)
                whose = "ann" if name == "guest" else name
                await reader.until_files(session, f"of-{whose}-{session}")
            named = {line["session_id"] for line in reader.lines if line["type"] != "error"}
            assert named == allowed[name]
            told = json.dumps([line for line in reader.lines if line["type"] != "error"])
            assert not [it for its in sessions.values() for it in its if it not in allowed[name] and it in told]
            # An id of another identity's session is answered as one that does not exist.
            await reader.send(type="request_snapshot", session_id="nothing")
            await reader.until("error", 7 - len(allowed[name]))
            assert len({line["message"] for line in reader.of("error")}) == 1


async def test_a_reader_may_be_for_one_session(tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents) -> None:
    async with running(tmp_path, spawner) as bench:
        page, session, agent = await opened(bench, loading_agents)
        other = await page.new_session(cwd="/")
        reader = Reader(bench, bench.access(), session=session)
        await uses(agent, other, "/b.py")
        await uses(agent, session, "/a.py")
        await reader.until_files(session, "a.py")
        assert {line["session_id"] for line in reader.lines} == {session}


async def test_sessions_beyond_the_limit_are_left_out(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        object.__setattr__(bench.gateway.config, "services", {TapSection: TapSection(sessions=1, files=2)})
        page, session, agent = await opened(bench, loading_agents)
        reader = Reader(bench, bench.access())
        await reader.until("snapshot")
        other = await page.new_session(cwd="/")
        await uses(agent, other, "/x.py")
        await uses(agent, session, "/a.py", "/b.py", "/c.py")
        await reader.until_files(session, "b.py", "c.py")
        assert {line["session_id"] for line in reader.lines} == {session}


async def test_a_session_that_grows_while_it_is_read_keeps_no_other_from_being_told(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, spawner) as bench:
        page, busy, agent = await opened(bench, loading_agents)
        other = await page.new_session(cwd="/")
        (hub,) = bench.gateway.hubs
        (growing,) = [session for session in hub.multiplexer.sessions if session.id == busy]
        read = FileFinder.read

        def read_and_grow(self: FileFinder, message: bytes) -> Seen:
            if json.loads(message)["params"]["sessionId"] == busy:
                growing.write(message)
            return read(self, message)

        monkeypatch.setattr(FileFinder, "read", read_and_grow)
        reader = Reader(bench, bench.access())
        await uses(agent, busy, "/a.py")
        await reader.until("snapshot", session=busy)
        await uses(agent, other, "/b.py")
        await reader.until_files(other, "b.py")


async def test_lines_that_make_no_sense_are_errors_and_the_connection_goes_on(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    bad = [
        *(b"\xff\xfe", b"\0", b"null", b"[]", b'"x"', b"1e400", b"{", b"[" * 10_000, b'{"type":"snapshot"}'),
        *(b'{"type":["request_snapshot"]}', b'{"type":"set_stream_filter","session_id":{}}', b"x" * 60_000),
        b'{"jsonrpc":"2.0","id":1,"method":"initialize"}',
    ]
    async with running(tmp_path, spawner) as bench:
        _, session, agent = await opened(bench, loading_agents)
        reader = Reader(bench, bench.access())
        await reader.until("snapshot")
        for count, line in enumerate(bad):
            await reader.stream.send(line)
            assert set(await reader.until("error", count + 1)) == {"type", "message"}
        await uses(agent, session, "/a.py")
        await reader.until_files(session, "a.py")


async def test_errors_that_a_reader_does_not_read_are_bounded(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_tap, "HIGH_WATER", 1000)
    async with running(tmp_path, spawner) as bench:
        reader = Reader(bench, bench.access(), reads=False)
        await reader.stream.send_batch([b"{}"] * 200)
        await trio.testing.wait_all_tasks_blocked()
        assert reader.far_end.pending_bytes < 1000 + file_tap.MAX_ERRORS * 200


async def test_updates_of_an_agent_that_make_no_sense_are_passed_over(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    odd: list[Any] = [None, 7, "x", [], {}, [[]], [{"path": 1}], {"path": ["a"]}, [None], {"text": {"text": []}}]
    members = ("locations", "content", "rawInput", "rawOutput", "kind", "status", "toolCallId", "used", "size", "cost")
    async with running(tmp_path, spawner) as bench:
        _, session, agent = await opened(bench, loading_agents)
        reader = Reader(bench, bench.access())
        await reader.until("snapshot")
        for kind in ("tool_call", "tool_call_update", "user_message_chunk", "usage_update", "of_the_future"):
            for value in odd:
                update = {"sessionUpdate": kind, **dict.fromkeys(members, value)}
                await agent.send(method="session/update", params={"sessionId": session, "update": update})
        await uses(agent, session, "/a.py")
        await reader.until_files(session, "a.py")


@pytest.mark.parametrize("count", [50, pytest.param(1000, marks=pytest.mark.slow)])
async def test_many_readers_are_served_and_bounded_and_keep_no_other_identity_out(
    count: int, tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    # A page and its client are there besides.
    async with running(tmp_path, spawner, LimitsSection(connections_per_identity=count + 2)) as bench:
        _, session, agent = await opened(bench, loading_agents)
        access, shared = bench.access(), SharedFileEvents()
        readers = [Reader(bench, access, shared) for _ in range(count)]
        await trio.testing.wait_all_tasks_blocked()
        await uses(agent, session, "/a.py")
        for reader in readers:
            await reader.until_files(session, "a.py")
        with pytest.raises(Busy, match="connections_per_identity"):
            Reader(bench, access)
        # Another identity.
        _, other, other_agent = await opened(bench, loading_agents, "ben")
        newcomer = Reader(bench, bench.access("ben"))
        await uses(other_agent, other, "/b.py")
        await newcomer.until_files(other, "b.py")
        assert {line["session_id"] for line in newcomer.lines} == {other}


async def test_a_revoked_token_ends_the_connection(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents, autojump_clock: object
) -> None:
    async with running(tmp_path, spawner) as bench:
        access = bench.access()
        reader = Reader(bench, access)
        await trio.testing.wait_all_tasks_blocked()
        assert access.token is not None
        bench.gateway.tokens.revoke(access.token.id)
        await trio.sleep(3)
        assert reader.ended
        assert len(bench.gateway.connections) == 0


async def test_a_listener_of_the_tap_takes_the_hello_of_every_other_and_serves_lines(
    tmp_path: Path, spawner: Spawner
) -> None:
    listen = ListenSection(url="tcp://127.0.0.1:0", serves=("tap",))
    gateway = EchoingGateway(tmp_path, spawner)
    async with listening(listen, gateway) as listener:
        async with connected(listener) as stream:
            await stream.send_batch([hello(token=gateway.token())])
            assert set(json.loads(await stream.receive())["result"]) == {"connectionId"}
            await stream.send(b"{}")
            assert json.loads(await stream.receive())["type"] == "error"
            await stream.send(b" " * 70_000 + b"{}")
            with pytest.raises((trio.EndOfChannel, trio.BrokenResourceError)):
                await stream.receive()
        refused: list[tuple[dict[str, Any], int]] = [
            ({"token": "acpgw_wrong"}, 401),
            ({}, 401),
            ({"token": gateway.token(), "agent": "unknown"}, 404),
            ({"token": gateway.token(), "control": True}, -32602),
            ({"token": gateway.token(), "resume": {}}, -32602),
        ]
        for params, code in refused:
            assert (await answer_to(listener, hello(**params)))["error"]["code"] == code
    assert gateway.served == []
