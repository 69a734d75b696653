"""An ACP client inside the process: in every scope of agents, with every kind of principal."""

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.config.limits import LimitsSection
from acp_gateway.errors import Busy, UnknownSession
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.hub.hub import Hub
from acp_gateway.gateway.viewing.local_client import ClientEnded
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import Message
from tests.kit.bridging import Bench, Inside, MakeBench, running, section
from tests.kit.doubles import ServingAgents
from tests.kit.hub_scene import permission

PROMPT = [{"type": "text", "text": "hello"}]


pytestmark = pytest.mark.usefixtures("no_bug_showed")


def begin_prompt(client: Inside, session: str) -> list[Any]:
    """Send a prompt; its response will be in the list."""
    found: list[Any] = []
    params = jsonrpc.encode({"sessionId": session, "prompt": PROMPT})
    client.start_request("session/prompt", params, found.append)
    return found


@pytest.mark.parametrize(("scope", "processes"), [("connection", 2), ("identity", 1), ("shared", 1)])
async def test_it_opens_a_session_in_every_scope(scope: str, processes: int, make_bench: MakeBench) -> None:
    async with make_bench(fake=section(scope)) as bench:
        clients = [await bench.client(bench.access()) for _ in range(2)]
        sessions = [await client.new_session() for client in clients]
        assert len(set(sessions)) == 2
        assert len(bench.agents) == processes


@pytest.mark.parametrize("scope", ["connection", "identity", "shared"])
async def test_it_joins_a_session_of_its_identity_and_of_no_other(scope: str, make_bench: MakeBench) -> None:
    async with make_bench(fake=section(scope)) as bench:
        session = await (await bench.client(bench.access())).new_session()
        second = await bench.client(bench.access(), session=session)
        assert (await second.ask("session/resume", sessionId=session, cwd="/"))["result"] == {}
        guest = await bench.client(bench.guest(session))
        assert "result" in await guest.ask("session/resume", sessionId=session, cwd="/")
        for access in (bench.access("ben"), bench.guest("other")):
            with pytest.raises(UnknownSession):
                await bench.client(access, session=session)
        assert len(bench.agents) == 1


@pytest.mark.parametrize(("scope", "survives"), [("connection", False), ("identity", True), ("shared", True)])
async def test_leaving_ends_no_turn_where_the_agent_outlives_it(
    scope: str, survives: bool, make_bench: MakeBench, autojump_clock: object
) -> None:
    async with make_bench(fake=section(scope)) as bench:
        client = await bench.client(bench.access())
        session = await client.new_session()
        first, queued = begin_prompt(client, session), begin_prompt(client, session)
        await bench.agents[0].got("session/prompt")
        await client.leave()
        await trio.sleep(1)
        assert (first, queued) == ([None], [None])
        cancelled = [message for message in bench.agents[0].received if message.get("method") == "session/cancel"]
        assert (bench.agents[0].cancelled, bool(cancelled)) == (not survives, not survives)
        if survives:
            (live,) = [hub for hub in bench.gateway.hubs if hub.multiplexer.sessions]
            (found,) = live.multiplexer.sessions
            assert (len(found.turns), len(found.queue)) == (1, 1)


async def test_another_client_decides_the_permission_after_the_first_has_left(bench: Bench) -> None:
    client = await bench.client(bench.access())
    session = await client.new_session()
    asked = permission() | {"params": permission()["params"] | {"sessionId": session}}
    await bench.agents[0].send(**asked)
    await client.until("session/request_permission")
    await client.leave()
    second = await bench.client(bench.access(), session=session)
    await second.ask("session/resume", sessionId=session, cwd="/")
    message = await second.until("session/request_permission")
    second.send(b'{"jsonrpc":"2.0","id":%b,"result":{"outcome":{"outcome":"cancelled"}}}' % message.id)
    while not any(reply.get("id") == "may I?" for reply in bench.agents[0].received):
        await trio.lowlevel.checkpoint()


async def test_an_observer_gets_no_request_and_may_send_none(bench: Bench) -> None:
    owner = await bench.client(bench.access())
    session = await owner.new_session()
    observers = [
        await bench.client(bench.access(role="observer"), session=session),
        await bench.client(bench.access(), session=session, observe=True),
        await bench.client(bench.guest(session, "observer")),
    ]
    for observer in observers:
        assert "result" in await observer.ask("session/resume", sessionId=session, cwd="/")
        refused = await observer.ask("session/prompt", sessionId=session, prompt=PROMPT)
        assert refused["error"]["code"] == jsonrpc.METHOD_NOT_FOUND
    asked = permission() | {"params": permission()["params"] | {"sessionId": session}}
    await bench.agents[0].send(**asked)
    await owner.until("session/request_permission")
    heard = {message.method for observer in observers for message in observer.heard}
    assert heard <= {"_acp-gateway/news"}


async def test_a_browser_that_is_narrowed_to_a_session_joins_no_other(bench: Bench) -> None:
    owner = await bench.client(bench.access())
    sessions = [await owner.new_session() for _ in range(2)]
    narrowed = replace(bench.access(), only=sessions[0])
    inside = await bench.client(narrowed)
    assert "result" in await inside.ask("session/resume", sessionId=sessions[0], cwd="/")
    assert "error" in await inside.ask("session/resume", sessionId=sessions[1], cwd="/")
    with pytest.raises(UnknownSession):
        await bench.client(narrowed, session=sessions[1])


async def test_it_ends_with_its_token_and_its_open_requests_are_told(
    make_bench: MakeBench, autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    async with make_bench() as bench:
        access = bench.access()
        client = await bench.client(access)
        session = await client.new_session()
        found = begin_prompt(client, session)
        await bench.agents[0].got("session/prompt")
        assert access.token is not None
        bench.gateway.tokens.revoke(access.token.id)
        await trio.sleep(3)
        assert client.ended
        assert [response is None or response.error for response in found] == [True]
        with pytest.raises(ClientEnded):
            await client.request("session/list", b"{}")
        with pytest.raises(ClientEnded):
            client.notify("session/cancel", b"{}")
        await client.handled()
    assert bench.audit.of("detached")[0]["why"] == "the token is not valid any more"
    assert "is not valid any more" in caplog.text


async def test_it_counts_among_the_connections_of_its_identity(make_bench: MakeBench) -> None:
    async with make_bench(limits=LimitsSection(connections_per_identity=1)) as bench:
        access = bench.access()
        client = await bench.client(access)
        with pytest.raises(Busy):
            await bench.client(access)
        await client.leave()
        while len(bench.gateway.connections):
            await trio.lowlevel.checkpoint()
        await bench.client(access)
    assert [entry["connection"] for entry in bench.audit.of("attached")] == ["inside", "inside"]


async def test_an_agent_that_cannot_start_is_told_by_initialize(
    tmp_path: Path, spawner: Spawner, caplog: pytest.LogCaptureFixture
) -> None:
    missing = replace(section(), command=("/no/such/program",))
    async with running(tmp_path, spawner, fake=missing) as bench:
        client = await bench.uninitialized(bench.access())
        response = await client.initialize()
        assert response.error
        assert b"/no/such/program" in response.text


class Tape:
    """A recording in memory, of the methods that went to clients."""

    def __init__(self) -> None:
        self.methods: list[str] = []

    def open(self, *_: object) -> "Tape":
        return self

    def write(self, direction: str, messages: Sequence[bytes]) -> None:
        if direction == "to_client":
            self.methods += [found for text in messages if (found := json.loads(text).get("method"))]

    def close(self) -> None: ...


@pytest.mark.parametrize("records", [False, True])
async def test_updates_are_sent_to_it_only_for_a_recording_and_passed_on_never(
    records: bool, tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    tape = Tape()
    async with running(tmp_path, spawner) as bench:
        monkeypatch.setattr(bench.gateway, "_recorder", tape if records else None)
        client = await bench.client(bench.access())
        session = await client.new_session()
        (attachment,) = bench.gateway.hubs[0].attachments.values()
        before = attachment.outbox.put_bytes
        for text in ("plain", '"id"'):
            content = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text * 500}}
            await loading_agents[0].send(method="session/update", params={"sessionId": session, "update": content})
        await loading_agents[0].send(method="other/notification", params={"sessionId": session})
        await client.until("other/notification")
        assert [message.method for message in client.heard if "news" not in message.method] == ["other/notification"]
        assert attachment.outbox.put_bytes - before < 500 or records
        found = bench.gateway.registry.by_id(session)
        assert [it.journal.position for it in found] == [2]
    assert tape.methods.count("session/update") == (2 if records else 0)


async def test_a_request_that_is_refused_at_once_is_answered_when_it_was_handled(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        client = await bench.client(bench.access())
        session = await client.new_session()
        refused: list[Message | None] = []
        runs = begin_prompt(client, session)
        client.start_request("session/prompt", jsonrpc.encode({"sessionId": "never", "prompt": []}), refused.append)
        assert (refused, runs) == ([], [])
        await client.handled()
        assert [response is not None and response.error for response in refused] == [True]
        assert runs == []


async def test_a_bug_ends_the_client_and_not_the_gateway(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object) -> None:
        raise ZeroDivisionError

    async with make_bench() as bench:
        good = await bench.client(bench.access())
        with monkeypatch.context() as patch:
            patch.setattr(Hub, "serve", broken)
            client = await bench.uninitialized(bench.access())
            with pytest.raises(ClientEnded):
                await client.initialize()
        assert await good.new_session()
    assert [record.levelno for record in caplog.records if record.exc_info] == [logging.ERROR]
    caplog.clear()
