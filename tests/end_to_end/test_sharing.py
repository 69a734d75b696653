"""Several clients, one agent: the real program, the SDK's clients, and what each of them sees."""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import acp
import pytest
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

from acp_gateway.core.agent_requests import JUST_LOST
from tests.end_to_end.parties import Party, party, run, said_by_user, texts
from tests.end_to_end.playing import editor, playing_gateway
from tests.end_to_end.test_websocket_peers import bearer, connected
from tests.kit.running import AGENTS, DIRECTED, WORK, RunningGateway, prepare, run_program, start_gateway

UNKNOWN = "no-such-session"
MEBIBYTE = 1024 * 1024
LINE_ENDS = "a\u2028b\u2029c\u0085d\x0be\x0cf\r\ng 😀"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway with agents in every scope: `directed` and the others that remember."""
    directory = tmp_path_factory.mktemp("sharing")
    agents = f"[agents.directed]\ncommand = {json.dumps(DIRECTED)}\n"
    for name, scope in {**dict.fromkeys(("memory", "mortal", "fast"), "identity"), "alone": "connection"}.items():
        (directory / name).mkdir()
        command = [sys.executable, str(AGENTS / "remembering_agent.py"), str(directory / name)]
        agents += f'[agents.{name}]\ncommand = {json.dumps(command)}\nscope = "{scope}"\n'
    running = start_gateway(directory, prepare(directory, agents, more='default_agent = "directed"'))
    try:
        yield running
    finally:
        assert running.stop() == 0, "".join(running.log)


@dataclass
class SharedSession:
    """A session with four clients: two controllers, over different transports, and two observers."""

    session: str
    first: Party
    second: Party
    viewer: Party
    guest: Party

    @property
    def all(self) -> list[Party]:
        return [self.first, self.second, self.viewer, self.guest]


@asynccontextmanager
async def shared_session(gateway: RunningGateway) -> AsyncIterator[SharedSession]:
    """The SDK's agent and four clients of it in a new session."""
    async with AsyncExitStack() as stack:

        async def comes(transport: str, *options: str) -> Party:
            return await stack.enter_async_context(party(gateway, transport, *options))

        first, second = await asyncio.gather(comes("wss"), comes("tcp"))
        session = await opened(first)
        await second.agent.load_session(cwd=str(WORK), session_id=session)
        token = await asyncio.to_thread(gateway.save_token, "share", session, "--token", "--observe")
        viewer, guest = await asyncio.gather(
            comes("unix", "--attach", session, "--observe"), comes("tcp+tls", "--token-file", str(token))
        )
        assert await opened(viewer) == session
        assert await opened(guest) == session
        yield SharedSession(session, first, second, viewer, guest)


async def opened(member: Party) -> str:
    """The id of the session that this one gets for a new one."""
    return str((await member.agent.new_session(cwd=str(WORK), mcp_servers=[])).session_id)


async def refused(call: Any) -> tuple[int, str]:
    """The error that a call ends with: its code, and its words."""
    with pytest.raises(acp.RequestError) as caught:
        await call
    return caught.value.code, str(caught.value)


@contextmanager
def gate() -> Iterator[tuple[str, int]]:
    """A FIFO that an agent waits at; what is written to its descriptor lets it go on."""
    path = tempfile.mkdtemp(dir=WORK) + "/gate"
    os.mkfifo(path)
    # For reading too: else opening it would wait for the agent.
    descriptor = os.open(path, os.O_RDWR)
    try:
        yield path, descriptor
    finally:
        os.close(descriptor)


# Together


def test_all_clients_see_the_same_updates_in_the_same_order(gateway: RunningGateway) -> None:
    async def scenario() -> None:
        async with shared_session(gateway) as there:
            ended = await asyncio.gather(
                there.first.prompt(there.session, "stream 30"),
                there.second.prompt(there.session, "stream 20"),
                there.first.prompt(there.session, "echo", LINE_ENDS),
                there.second.prompt(there.session, "size 5"),
            )
            assert set(ended) == {"end_turn"}
            await there.first.prompt(there.session, "echo", "the end")
            for member in there.all:
                await member.until_told(there.session, "the end")

            told = there.viewer.updates(there.session)
            assert texts(told).count("19") == 2
            of_first = said_by_user("stream 30", "echo", LINE_ENDS, "the end")
            of_second = said_by_user("stream 20", "size 5")
            assert all(update in told for update in of_first + of_second)
            assert there.guest.updates(there.session) == told
            assert there.first.updates(there.session) == [update for update in told if update not in of_first]
            assert there.second.updates(there.session) == [update for update in told if update not in of_second]

    run(scenario())


def test_a_permission_is_decided_once_by_whichever_controller_is_first(gateway: RunningGateway) -> None:
    async def scenario() -> None:
        async with shared_session(gateway) as there:
            turn = await there.first.begin(there.session, "permission")
            for controller in (there.first, there.second):
                await controller.until(controller.asked)
            await there.second.decide("no")
            assert await turn == "end_turn"
            await there.first.until(there.first.withdrawn)
            assert there.first.withdrawn() == [there.first.asked()[0]["id"]]
            assert there.second.withdrawn() == []
            # Too late: it decides neither this one nor the next.
            await there.first.decide("yes")
            turn = await there.second.begin(there.session, "permission")
            await there.first.until(lambda: len(there.first.asked()) == 2)
            await there.first.decide("no")
            assert await turn == "end_turn"
            await there.first.prompt(there.session, "echo", "the end")
            for member in there.all:
                await member.until_told(there.session, "the end")
                assert texts(member.updates(there.session)) == ["no", "no", "the end"]
            assert there.viewer.asked() == there.guest.asked() == []

    run(scenario())


def test_an_error_and_a_choice_that_was_not_offered_decide_nothing(gateway: RunningGateway) -> None:
    async def scenario() -> None:
        async with shared_session(gateway) as there:
            for answer in (acp.RequestError.method_not_found("permission"), "maybe"):
                turn = await there.first.begin(there.session, "permission")
                await there.second.until(lambda: len(there.second.asked()) > len(there.second.withdrawn()))
                await there.second.decide(answer)
                # What comes back was asked after the answer.
                await there.second.agent.resume_session(cwd=str(WORK), session_id=there.session)
                assert not turn.done()
                await there.first.decide("yes")
                assert await turn == "end_turn"
            await there.first.until_told(there.session, "yes")
            assert texts(there.first.updates(there.session)) == ["yes", "yes"]

    run(scenario())


def test_a_turn_is_cancelled_by_a_client_that_did_not_begin_it(gateway: RunningGateway) -> None:
    async def scenario() -> None:
        async with shared_session(gateway) as there:
            turn = await there.first.begin(there.session, "wait")
            await there.second.until_told(there.session, "waiting")
            queued = await there.first.begin(there.session, "echo", "too late")
            await there.first.agent.resume_session(cwd=str(WORK), session_id=there.session)
            await there.second.agent.cancel(session_id=there.session)
            assert await turn == await queued == "cancelled"

            turn = await there.first.begin(there.session, "permission")
            for controller in (there.first, there.second):
                await controller.until(controller.asked)
            await there.second.agent.cancel(session_id=there.session)
            assert await turn == "end_turn"
            for controller in (there.first, there.second):
                await controller.until(controller.withdrawn)
                assert controller.withdrawn() == [controller.asked()[0]["id"]]
            assert texts(there.first.updates(there.session)) == ["waiting", "cancelled"]

    run(scenario())


def test_the_sessions_command_shows_who_is_there_and_what_waits(gateway: RunningGateway) -> None:
    async def scenario() -> list[dict[str, Any]]:
        async with shared_session(gateway) as there:
            turn = await there.first.begin(there.session, "permission")
            await there.second.until(there.second.asked)
            shown = await asyncio.to_thread(gateway.sessions)
            await there.second.decide("yes")
            assert await turn == "end_turn"
            shown += await asyncio.to_thread(gateway.sessions)
            return [session for session in shown if session["sessionId"] == there.session]

    at_work, idle = run(scenario())
    assert (idle["agent"], idle["cwd"], idle["connected"], idle["away"]) == ("directed", str(WORK), 4, 0)
    assert (idle["turn"], idle["waiting"]) == (False, [])
    (waiting,) = at_work["waiting"]
    assert (waiting["method"], waiting["title"]) == ("session/request_permission", "do it")
    assert waiting["since"].endswith("Z")
    assert at_work == idle | {"turn": True, "waiting": [waiting], "updatedAt": at_work["updatedAt"]}


# Later


@pytest.mark.parametrize("transport", ["wss", "http"])
def test_a_late_joiner_is_told_what_the_early_ones_saw(gateway: RunningGateway, transport: str) -> None:
    async def scenario() -> None:
        async with shared_session(gateway) as there:
            await there.first.prompt(there.session, "stream 20")
            await there.second.prompt(there.session, "echo", LINE_ENDS, "the end")
            await there.viewer.until_told(there.session, "the end")
            told = there.viewer.updates(there.session)
            assert len(told) == 1 + 20 + 3 + 2

            async with party(gateway, transport) as loader, party(gateway, "tcp", "--attach", there.session) as joiner:
                await loader.agent.load_session(cwd=str(WORK), session_id=there.session)
                # A load is answered behind the history.
                assert loader.updates(there.session) == told
                assert await opened(joiner) == there.session
                await joiner.until_told(there.session, "the end")
                assert joiner.updates(there.session) == told

                # And from here on they take part.
                await joiner.prompt(there.session, "echo", "one more")
                await there.viewer.until_told(there.session, "one more")
                await loader.until_told(there.session, "one more")
                assert loader.updates(there.session) == there.viewer.updates(there.session)
                assert joiner.updates(there.session) == [*told, *there.viewer.updates(there.session)[-1:]]

    run(scenario())


@pytest.mark.parametrize("transport", ["tcp", "http"])
def test_who_came_for_one_session_gets_no_other(gateway: RunningGateway, transport: str) -> None:
    async def scenario() -> None:
        async with party(gateway, "wss") as owner:
            session, other = await opened(owner), await opened(owner)
            token = await asyncio.to_thread(gateway.save_token, "share", session, "--token")
            async with (
                party(gateway, transport, "--attach", session) as joiner,
                party(gateway, transport, "--token-file", str(token)) as guest,
            ):
                for bound in (joiner, guest):
                    assert await opened(bound) == session
                    code, words = await refused(opened(bound))
                    assert code == -32600
                    assert "for session" in words
                    listed = await bound.agent.list_sessions()
                    assert [entry.session_id for entry in listed.sessions] == [session]
                    assert (await refused(bound.agent.fork_session(cwd=str(WORK), session_id=session)))[0] == -32600
                    assert await answers_about(bound, other) == await answers_about(bound, UNKNOWN)
                # A guest of this kind may do all else.
                assert await guest.prompt(session, "echo", "from the guest") == "end_turn"
                await owner.until_told(session, "from the guest")

    run(scenario())


# Strangers


async def answers_about(member: Party, session: str) -> list[tuple[int, str]]:
    """Return the answers to every way to ask for a session, without the id."""
    agent = member.agent
    calls = [
        agent.load_session(cwd=str(WORK), session_id=session),
        agent.resume_session(cwd=str(WORK), session_id=session),
        agent.close_session(session_id=session),
        agent.set_session_mode(session_id=session, mode_id="yolo"),
        member.prompt(session, "echo", "from a stranger"),
    ]
    errors = [await refused(call) for call in calls]
    assert {code for code, _ in errors} == {-32002}
    return [(code, words.replace(session, "ID")) for code, words in errors]


@pytest.mark.parametrize("transport", ["tcp", "http"])
def test_a_session_of_another_identity_is_as_if_there_were_none(gateway: RunningGateway, transport: str) -> None:
    async def scenario() -> None:
        who = f"bo-{transport}"
        token = await asyncio.to_thread(gateway.save_token, "token", "create", "--label", who, "--identity", who)
        as_bo = ("--agent", "memory", "--token-file", str(token))
        async with party(gateway, "wss", "--agent", "memory") as owner, party(gateway, transport, *as_bo) as stranger:
            session = await opened(owner)
            turn = await owner.begin(session, "begun", "wait")
            await owner.until_told(session, "begun")

            own = await opened(stranger)
            listed = await stranger.agent.list_sessions()
            assert [entry.session_id for entry in listed.sessions] == [own]
            assert await answers_about(stranger, session) == await answers_about(stranger, UNKNOWN)
            await stranger.agent.cancel(session_id=session)
            assert await stranger.prompt(own, "mine") == "end_turn"
            assert not turn.done()
            assert stranger.updates(session) == []
            await owner.agent.cancel(session_id=session)
            assert await turn == "cancelled"
            assert texts(owner.updates(session)) == ["begun"]

            # Nor is there a way in from outside.
            said = await asyncio.to_thread(
                run_program, "sessions", gateway.urls["unix"], "--json", "--token-file", token
            )
            assert [one["sessionId"] for one in json.loads(said)["sessions"]] == [own]
            refusals = [refusal_of(gateway, *as_bo, "--attach", name) for name in (session, UNKNOWN)]
            theirs, unknown = await asyncio.gather(*refusals)
            assert theirs.replace(session, "ID") == unknown.replace(UNKNOWN, "ID")

    run(scenario())


async def refusal_of(gateway: RunningGateway, *options: str) -> str:
    """Return the error of a client that is refused."""
    with pytest.raises(acp.RequestError) as caught:
        async with party(gateway, "wss", *options):
            pass
    assert (caught.value.data or {})["reason"] == "unknown_session"
    return str(caught.value)


# One process for each connection


def test_a_session_of_another_connections_process_is_joined_by_attach_alone(gateway: RunningGateway) -> None:
    async def scenario() -> None:
        async with party(gateway, "wss", "--agent", "alone") as first:
            session = await opened(first)
            await first.prompt(session, "pid")
            async with party(gateway, "tcp", "--agent", "alone") as elsewhere:
                code, words = await refused(elsewhere.agent.load_session(cwd=str(WORK), session_id=session))
                assert code == -32002
                assert f"--attach {session}" in words
            async with party(gateway, "tcp", "--agent", "alone", "--attach", session) as second:
                assert await opened(second) == session
                assert await second.prompt(session, "pid", "from the second") == "end_turn"
                await first.until_told(session, "from the second")
                told = second.updates(session)
                pid, again, _ = texts(told)
                assert pid == again
                assert told[:2] == said_by_user("pid") + first.updates(session)[:1]
                assert first.updates(session)[1:] == said_by_user("pid", "from the second") + told[2:]

    run(scenario())


# The end of the agent


def test_after_the_agents_death_its_session_goes_on_in_a_new_process(gateway: RunningGateway, tmp_path: Path) -> None:
    async def scenario() -> None:
        mortal = ("--agent", "mortal")
        async with party(gateway, "wss", *mortal) as first, party(gateway, "tcp", *mortal) as second:
            session = await opened(first)
            await second.agent.load_session(cwd=str(WORK), session_id=session)
            await first.prompt(session, "pid")
            with gate() as (path, let_go_on):
                turn = await first.begin(session, f"gate {path}", "dying", "die 7")
                await second.until(lambda: "die 7" in texts(second.updates(session), "user_message_chunk"))
                queued = await second.begin(session, "never said")
                await second.agent.resume_session(cwd=str(WORK), session_id=session)
                os.write(let_go_on, b"\n")
                for pending in (turn, queued):
                    with pytest.raises(acp.RequestError, match="exit code 7") as caught:
                        await pending
                    assert (caught.value.data or {})["exitCode"] == 7
                    assert (caught.value.data or {})["stderr"] == ["it was all", "too much"]
                # It waits until a client sends or removes it.
                assert (caught.value.data or {})["notSent"]
                assert (caught.value.data or {})["waits"]["promptId"]

            before = second.updates(session)
            assert await second.prompt(session, "pid", "alive") == "end_turn"
            await first.until_told(session, "alive")
            pid, dying, new_pid, alive = texts(first.updates(session))
            assert (dying, alive) == ("dying", "alive")
            assert pid != new_pid
            # Both have the history already: what the new process replayed is not repeated.
            assert second.updates(session)[: len(before)] == before
            assert texts(second.updates(session)[len(before) :]) == [new_pid, "alive"]
            calls = [line.split() for line in (gateway.directory / "mortal" / "calls").read_text().splitlines()]
            assert [call[1:] for call in calls if call[0] == new_pid] == [
                ["initialize", "-"],
                ["session/load", session],
                ["session/prompt", session],
            ]
            assert not [method for _, method, _ in calls if method == "session/load"][1:]

            async with party(gateway, "unix", *mortal) as late:
                await late.agent.load_session(cwd=str(WORK), session_id=session)
                assert texts(late.updates(session)) == [pid, "dying", new_pid, "alive"]

    run(scenario())


# Slow readers


class Lines:
    """A client without any library, which can take as much as comes."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._lines: list[bytes] = []
        self._rest = b""
        self._requests = 0

    async def ask(self, method: str, **params: Any) -> int:
        """Send a request; its id."""
        self._requests += 1
        request = {"jsonrpc": "2.0", "id": self._requests, "method": method, "params": params}
        await self._stream.send_all(json.dumps(request).encode() + b"\n")
        return self._requests

    async def receive(self) -> dict[str, Any]:
        """The next message."""
        while not self._lines:
            data = await self._stream.receive_some(MEBIBYTE)
            assert data, "the gateway has closed the connection"
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._lines = lines[::-1]
        message: dict[str, Any] = json.loads(self._lines.pop())
        return message

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a request and wait for its result."""
        request_id = await self.ask(method, **params)
        answer = await self.receive()
        assert answer["id"] == request_id
        result: dict[str, Any] = answer["result"]
        return result


async def test_a_viewer_that_stops_reading_is_closed_and_no_other_client_notices(gateway: RunningGateway) -> None:
    chunks = 10_000
    place = urlsplit(gateway.urls["tcp"])
    assert place.hostname is not None
    assert place.port is not None
    with trio.fail_after(300):
        async with await trio.open_tcp_stream(place.hostname, place.port) as stream:
            reader = Lines(stream)
            await reader.call("_acp-gateway/hello", token=gateway.token, agent="fast")
            await reader.call("initialize", protocolVersion=1)
            session = (await reader.call("session/new", cwd=str(WORK), mcpServers=[]))["sessionId"]
            token = await trio.to_thread.run_sync(gateway.save_token, "share", session, "--token", "--observe")
            async with connected(
                gateway.urls["ws"], extra_headers=bearer(token.read_text().strip()), receive_buffer_size=MEBIBYTE
            ) as viewer:
                for number, method in enumerate(("initialize", "session/new")):
                    params = {"protocolVersion": 1, "cwd": str(WORK), "mcpServers": []}
                    request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
                    await viewer.send_message(json.dumps(request))
                    assert "result" in json.loads(await viewer.get_message())

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(receive_close, gateway, viewer)
                    flood = [{"type": "text", "text": f"flood {chunks}"}]
                    prompt = await reader.ask("session/prompt", sessionId=session, prompt=flood)
                    told = []
                    while "id" not in (message := await reader.receive()):
                        told.append(message["params"]["update"]["content"]["text"])
    assert (message["id"], message["result"]) == (prompt, {"stopReason": "end_turn"})
    assert [int(text[:8]) for text in told] == list(range(chunks))
    assert sum(map(len, told)) == 200_000_000
    assert gateway.largest_memory < 250 * MEBIBYTE


async def receive_close(gateway: RunningGateway, viewer: WebSocketConnection) -> None:
    """Read nothing before the gateway has had enough; then everything up to its last word."""
    await trio.to_thread.run_sync(gateway.read_log_until, "detached: more than outbox_limit")
    with pytest.raises(ConnectionClosed) as caught:
        await read_to_the_end(viewer)
    assert caught.value.reason is not None
    assert caught.value.reason.code == 1008
    assert "outbox_limit" in (caught.value.reason.reason or "")


async def read_to_the_end(viewer: WebSocketConnection) -> None:
    while True:
        await viewer.get_message()


def test_an_editor_that_is_killed_while_the_agent_asks_it_for_a_file_does_not_hold_up_another_one(
    tmp_path: Path,
) -> None:
    asks = {"read": [{"request": "fs/read_text_file", "params": {"path": str(WORK / "a")}}]}
    with (
        playing_gateway(tmp_path, asks, more="client_fs = true") as gateway,
        editor(gateway, fs={"readTextFile": True}) as killed,
        editor(gateway) as other,
    ):
        session = killed.new_session()
        other.call("session/resume", sessionId=session, cwd=str(WORK), mcpServers=[])
        killed.begin_prompt(session, "read")
        killed.hears("fs/read_text_file")
        began = time.monotonic()
        killed.kill()
        other.notify("session/cancel", sessionId=session)
        assert other.prompt(session, "go on") == "end_turn"
        took = time.monotonic() - began
    # The stop has withdrawn the request before its client counted as away, unless the machine was too slow for that.
    assert took > JUST_LOST or "is answered with an error" not in "".join(gateway.log)
