"""Event streams that end, break, and do not exist yet; and sessions that go on after a server's end."""

import json
from typing import Any

import pytest
import trio
import trio.testing

from acp_gateway.client.http.events import ATTEMPTS, PAUSE, PAUSE_MAX, STEADY
from acp_gateway.client.http.stream import SETTLED
from acp_gateway.protocol.gaps import MAY_BE_MISSING, SESSION_LOST
from acp_gateway.transports.http.server import Request, Response
from tests.client.http.foreign_agent import ForeignAgent, shim_of
from tests.client.http.foreign_server import CUT, END, foreign_server, initialized, message

SERVERS = pytest.mark.parametrize("open_to_all", [False, True])
"""A server that learns a session when it is loaded, and one that needs not."""


@SERVERS
async def test_a_turn_is_answered_and_its_session_goes_on_after_a_kill_of_the_server(
    *, open_to_all: bool, autojump_clock: trio.testing.MockClock
) -> None:
    server = ForeignAgent(open_to_all=open_to_all)
    async with shim_of(server) as editor:
        session = await editor.start()
        turn = await editor.begin_prompt(session, "wait")
        await editor.until(lambda: editor.updates == ["wait 0"])
        server.kill()
        await trio.sleep(60)
        server.start()
        assert (await editor.answer(turn))["result"] == {"stopReason": "cancelled"}
        assert (await editor.prompt(session, "more"))["result"] == {"stopReason": "end_turn"}
        assert editor.updates == ["wait 0", MAY_BE_MISSING, "more 0", "more 1", "more 2"]
    assert server.prompts() == ["wait", "more"]


@SERVERS
async def test_a_session_that_the_server_has_lost_gets_a_clear_error_after_a_kill(
    *, open_to_all: bool, autojump_clock: trio.testing.MockClock
) -> None:
    server = ForeignAgent(open_to_all=open_to_all)
    async with shim_of(server) as editor:
        session = await editor.start()
        turn = await editor.begin_prompt(session, "wait")
        await editor.until(lambda: editor.updates == ["wait 0"])
        server.kill()
        server.disk.clear()
        server.start()
        assert (await editor.answer(turn))["result"] == {"stopReason": "cancelled"}
        assert editor.updates == ["wait 0", SESSION_LOST]
        assert "error" in await editor.prompt(session, "more")


async def test_a_server_that_forgets_loaded_sessions_answers_prompts_in_them_with_an_error(
    autojump_clock: trio.testing.MockClock,
) -> None:
    server = ForeignAgent(learns_loaded=False)
    async with shim_of(server) as editor:
        session = await editor.start()
        await editor.prompt(session, "one")
        server.kill()
        server.start()
        await editor.until(lambda: MAY_BE_MISSING in editor.updates)
        message = (await editor.prompt(session, "more"))["error"]["message"]
        assert message == f"the server does not know the session {session}: HTTP 404 (no such session)"
        assert "result" in await editor.ask("session/new", cwd="/", mcpServers=[])


@pytest.mark.parametrize("how", ["refused", "forgotten"])
async def test_a_prompt_that_was_certainly_not_handled_is_sent_over_the_next_connection(
    how: str, autojump_clock: trio.testing.MockClock
) -> None:
    server = ForeignAgent()
    async with shim_of(server) as editor:
        session = await editor.start()
        await trio.sleep(SETTLED)
        if how == "refused":
            # Its event streams have not noticed yet.
            server.down = True
        else:
            server.forget()
        turn = await editor.begin_prompt(session, "one")
        await trio.sleep(60)
        server.start()
        assert (await editor.answer(turn))["result"] == {"stopReason": "end_turn"}
    assert server.prompts() == ["one"]


async def test_a_prompt_that_ends_each_new_connection_is_not_sent_again(autojump_clock: trio.testing.MockClock) -> None:
    refused = []

    def answer(_: Request, body: Any) -> Response | None:
        if (body or {}).get("method") != "session/prompt":
            return None
        refused.append(body)
        return Response.of_text(404, "nothing here")

    server = ForeignAgent(answer=answer)
    async with shim_of(server) as editor:
        session = await editor.start()
        await trio.sleep(SETTLED)
        assert (await editor.prompt(session, "one"))["result"] == {"stopReason": "cancelled"}
    # Twice over each of two connections, with and without the header of the session.
    assert len(refused) == 4


async def test_session_load_is_answered_in_the_stream_of_a_session_that_did_not_exist_before(
    autojump_clock: trio.testing.MockClock,
) -> None:
    server = ForeignAgent(disk={"old": ["a", "b"]})
    async with shim_of(server) as editor:
        await editor.start()
        assert (await editor.ask("session/load", sessionId="old", cwd="/", mcpServers=[]))["result"] == {}
        assert editor.updates == ["a", "b"]
        assert (await editor.prompt("old", "more"))["result"] == {"stopReason": "end_turn"}


async def test_a_stream_that_does_not_exist_is_asked_for_again_at_growing_intervals_while_a_request_is_open(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with foreign_server() as server, initialized(server) as stream:
        server.unknown_sessions = True
        await stream.send(message("session/load", 1, sessionId="s"))
        await server.seen("session/load")
        await trio.sleep(200)
        asked = len(server.gets)
        assert 8 < asked < 200 / PAUSE_MAX + 12
        server.event({"id": 1, "error": {}})
        await stream.receive()
        await trio.sleep(200)
        assert len(server.gets) <= asked + 1


async def test_a_stream_that_ends_after_each_event_is_opened_again_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with foreign_server() as server, initialized(server) as stream:
        for number in range(100):
            server.event({"n": number})
            server.send(END)
        began = trio.current_time()
        assert [json.loads(await stream.receive())["n"] for _ in range(100)] == [*range(100)]
        assert trio.current_time() == began


async def test_a_stream_that_ends_properly_after_a_while_without_events_is_opened_again_without_end(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with foreign_server() as server, initialized(server) as stream:
        for _ in range(3 * ATTEMPTS):
            await trio.sleep(2 * STEADY)
            server.send(END)
        server.event({"n": 1})
        assert json.loads(await stream.receive())["n"] == 1


async def test_a_stream_that_ends_at_once_each_time_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    async with foreign_server() as server, initialized(server) as stream:
        for _ in range(ATTEMPTS):
            server.send(END)
        with pytest.raises(trio.BrokenResourceError, match="could not be opened again"):
            await stream.receive()


async def test_event_ids_are_opaque_and_the_last_one_counts_even_if_they_go_backwards(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with foreign_server() as server, initialized(server) as stream:
        for number in (9, 3, 7, 3):
            server.send(b'id: %d\ndata: {"n":%d}\n\n' % (number, number))
        server.send(CUT)
        server.event({"n": 0})
        assert [json.loads(await stream.receive())["n"] for _ in range(5)] == [9, 3, 7, 3, 0]
    assert server.gets[1].headers["last-event-id"] == "3"


async def test_retry_after_is_obeyed_for_a_stream(autojump_clock: trio.testing.MockClock) -> None:
    async with foreign_server() as server, initialized(server) as stream:
        server.answers_to = lambda one: one.method == "GET"
        server.answers += [Response(503, headers={"Retry-After": "9"}), Response(429, headers={"Retry-After": "4"})]
        server.send(END)
        server.event({"n": 2})
        began = trio.current_time()
        await stream.receive()
        assert trio.current_time() - began == pytest.approx(PAUSE + 13)
