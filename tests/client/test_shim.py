"""The shim between an editor and a gateway, both in memory; pauses pass in no time. As a program: end_to_end/."""

import json
import logging
import math
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, lockstep_stream_pair, memory_stream_pair, wait_all_tasks_blocked

from acp_gateway.client import shim
from acp_gateway.client.dialing import Destination, Resume
from acp_gateway.client.feedback import NO_FEEDBACK, Feedback, StatusFile
from acp_gateway.client.ports.editor_forwards import EditorForwards, Ways
from acp_gateway.client.uplink import SHOWN, LinkLoss
from acp_gateway.errors import ConfigError, Forbidden, GatewayError, LinkExpired, LinkGone, Unauthorized, Unreachable
from acp_gateway.protocol.gaps import MAY_BE_MISSING
from acp_gateway.protocol.link_messages import acknowledgement
from acp_gateway.protocol.path_maps import PathMaps
from acp_gateway.protocol.size_limit import SizeLimit
from acp_gateway.terminal.port_lines import Port
from acp_gateway.transports.link import WINDOW
from acp_gateway.transports.streams import TrioBytes
from tests.kit.fake_gateway import DESTINATION, FakeGateway
from tests.kit.updates import said

pytestmark = pytest.mark.jumps

INITIALIZE = b'{"jsonrpc":"2.0","id":1,"method":"initialize"}\n'


class Editor:
    """The editor's end: lines in, lines out."""

    def __init__(self, stream: trio.StapledStream[Any, Any]) -> None:
        self._stream = stream
        self._buffer = b""

    async def send(self, *messages: dict[str, Any] | bytes) -> None:
        for message in messages:
            data = message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"
            await self._stream.send_all(data)

    async def receive(self) -> dict[str, Any]:
        """The next message, but for lines that say that something may be missing: most gateways here tell no places."""
        message = await self.receive_any()
        while message.get("method") == "session/update" and "[acp-gateway: " in str(message):
            message = await self.receive_any()
        return message

    async def receive_any(self) -> dict[str, Any]:
        """The next message."""
        while b"\n" not in self._buffer:
            data = await self._stream.receive_some()
            assert data
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message = json.loads(line)
        assert isinstance(message, dict)
        return message

    async def start(self) -> None:
        """Initialize, and open a session."""
        await self.send(INITIALIZE)
        assert "result" in await self.receive()
        await self.send({"id": 2, "method": "session/new", "params": {"cwd": "/proj", "mcpServers": []}})
        assert (await self.receive())["result"]["sessionId"] == "s"

    async def close(self) -> None:
        await self._stream.send_eof()

    async def stop_reading(self) -> None:
        await self._stream.receive_stream.aclose()


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway()


@asynccontextmanager
async def shimmed(
    gateway: FakeGateway,
    *,
    raises: type[GatewayError] | None = None,
    maps: PathMaps | None = None,
    backlog: int = shim.BACKLOG,
    max_message_size: int = 4096,
    destination: Callable[[], Destination] = lambda: DESTINATION,
    lockstep: bool = False,
    feedback: Feedback = NO_FEEDBACK,
    link_changed: Callable[[shim.LinkState], None] = lambda _: None,
    embeds_files: bool = False,
    **changes: Any,
) -> AsyncIterator[Editor]:
    """A shim at work, which must end in the way that `raises` says."""
    ends: list[type[GatewayError] | None] = []
    near, far = lockstep_stream_pair() if lockstep else memory_stream_pair()
    settings = shim.Settings(
        maps=maps or PathMaps([]),
        max_message_size=max_message_size,
        worktree=changes.pop("worktree", None),
        forwards=changes.pop("forwards", None),
        reconnect=gateway.reconnect_settings(**changes),
        backlog=backlog,
        feedback=feedback,
        link_changed=link_changed,
        embeds_files=embeds_files,
    )

    async def run() -> None:
        try:
            await shim.run(TrioBytes(far), destination, settings)
        except GatewayError as error:
            ends.append(type(error))
        else:
            ends.append(None)

    with trio.fail_after(100_000):
        async with trio.open_nursery() as nursery:
            await nursery.start(gateway.run)
            async with trio.open_nursery() as work:
                work.start_soon(run)
                yield Editor(near)
            nursery.cancel_scope.cancel()
    assert ends == [raises]


def is_error(answer: dict[str, Any], raw_id: object, reason: str) -> bool:
    return answer["id"] == raw_id and bool(answer["error"]["data"]["reason"] == reason)


# Messages


async def test_messages_pass_both_ways_and_the_editors_end_ends_it_with_a_goodbye(gateway: FakeGateway) -> None:
    async with shimmed(gateway) as editor:
        await editor.send({"method": "up"})
        await gateway.receive("up")
        gateway.send(method="down")
        assert (await editor.receive())["method"] == "down"
        link = gateway.link
        await editor.close()
    assert link.left


async def test_what_the_editor_said_last_is_passed_on_without_its_line_end(gateway: FakeGateway) -> None:
    async with shimmed(gateway) as editor:
        await editor.send(b'{"last":1}')
        await editor.close()
    assert gateway.received == [{"last": 1}]


async def test_a_line_that_is_not_utf8_is_answered_here_and_the_rest_goes_on(gateway: FakeGateway) -> None:
    async with shimmed(gateway) as editor:
        await editor.send(b'{"a":"\xff"}\n{"method":"b"}\n')
        answer = await editor.receive()
        assert answer["id"] is None
        assert answer["error"]["code"] == -32700
        await gateway.receive("b")
        await editor.close()
    assert len(gateway.received) == 1


LIMIT = SizeLimit(1000, "max_message_size")
OVERHEAD = 83
"""Bytes of a prompt besides its text."""


def too_large(answer: dict[str, Any], raw_id: object, *words: str) -> bool:
    text = answer["error"]["message"]
    return is_error(answer, raw_id, "message_too_large") and all(word in text for word in words)


@pytest.mark.parametrize("limit", [LIMIT, None])
async def test_a_request_that_is_too_large_is_answered_with_its_size_and_disturbs_nothing_else(
    gateway: FakeGateway, limit: SizeLimit | None
) -> None:
    gateway.limit = limit
    option = "max_message_size (1,000 bytes)" if limit else "--max-message-size (4,096 bytes)"
    text = "x" * (2000 if limit else 5000)
    async with shimmed(gateway) as editor:
        await editor.start()
        await editor.send({"id": 3, "method": "session/prompt", "params": {"sessionId": "s", "prompt": []}})
        await editor.send({"id": 4, "method": "session/prompt", "params": {"sessionId": "s", "prompt": [text]}})
        assert too_large(await editor.receive(), 4, option, f"{len(text) + OVERHEAD:,} bytes")
        await gateway.receive("session/prompt")
        await editor.send({"id": 5, "method": "after"})
        await gateway.receive("after")
        gateway.send(id=3, result={"stopReason": "end_turn"})
        assert (await editor.receive())["id"] == 3
        await editor.close()
    assert len(gateway.connections) == 1
    assert [message.get("id") for message in gateway.received if "method" in message] == [1, 2, 3, 5]


async def test_the_agent_gets_an_error_for_a_response_that_is_too_large(gateway: FakeGateway) -> None:
    gateway.limit = LIMIT
    async with shimmed(gateway) as editor:
        await editor.start()
        gateway.send(id=7, method="fs/read_text_file", params={"sessionId": "s", "path": "/a"})
        await editor.receive()
        await editor.send({"id": 7, "result": {"content": "x" * 2000}})
        await editor.send({"id": 8, "method": "after"})
        await gateway.receive("after")
        await editor.close()
    assert too_large(gateway.received[-2], 7, "max_message_size")


async def test_the_user_is_told_of_a_notification_that_is_too_large(gateway: FakeGateway) -> None:
    gateway.limit = LIMIT
    async with shimmed(gateway) as editor:
        await editor.start()
        await editor.send({"method": "document/didOpen", "params": {"sessionId": "s", "text": "x" * 2000}})
        told = (await editor.receive_any())["params"]
        await editor.send({"method": "document/didOpen", "params": {"text": "x" * 2000}})
        assert too_large(await editor.receive(), None, "max_message_size")
        await editor.close()
    assert told["sessionId"] == "s"
    assert "max_message_size (1,000 bytes)" in told["update"]["content"]["text"]


async def test_a_large_request_under_an_id_in_use_does_not_answer_the_other_one(gateway: FakeGateway) -> None:
    gateway.limit = LIMIT
    async with shimmed(gateway) as editor:
        await editor.start()
        for text in ("", "x" * 2000):
            await editor.send({"id": 3, "method": "session/prompt", "params": {"sessionId": "s", "prompt": [text]}})
        assert too_large(await editor.receive(), None, "max_message_size")
        await editor.close()


async def test_a_prompt_that_closes_the_connection_of_an_earlier_gateway_is_answered_with_the_reason(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acp_gateway.client.uplink.loss_by_close", lambda _: LinkLoss("over 1 byte", 1009, closed=True))
    async with shimmed(gateway) as editor:
        await editor.start()
        await editor.send({"id": 3, "method": "session/prompt", "params": {"sessionId": "s", "prompt": ["x" * 2000]}})
        await gateway.receive("session/prompt")
        await gateway.last.far.aclose()
        assert too_large(await editor.receive(), 3, "over 1 byte", "2,083 bytes")
        await gateway.receive("session/load")
        await editor.send({"id": 4, "method": "after"})
        await gateway.receive("after")
        await editor.close()


async def test_paths_are_translated_both_ways(gateway: FakeGateway) -> None:
    async with shimmed(gateway, maps=PathMaps([("/laptop/proj", "/srv/proj")])) as editor:
        await editor.send({"id": 1, "method": "session/new", "params": {"cwd": "/laptop/proj"}})
        assert (await gateway.receive("session/new"))["params"]["cwd"] == "/srv/proj"
        await editor.receive()
        gateway.send(id=7, method="fs/read_text_file", params={"path": "/srv/proj/x"})
        assert (await editor.receive())["params"] == {"path": "/laptop/proj/x"}
        await editor.close()


@pytest.mark.parametrize("told", [{"_meta": {"acp-gateway": {"worktree": "fix"}}}, {}])
async def test_new_sessions_ask_for_a_worktree_and_must_get_one(gateway: FakeGateway, told: dict[str, Any]) -> None:
    gateway.answers["session/new"] = lambda _: {"result": {"sessionId": "s", **told}}
    async with shimmed(gateway, worktree="fix*") as editor:
        await editor.send(INITIALIZE)
        await editor.receive()
        params = {"cwd": "/x", "_meta": {"acp-gateway": {"a": 1}}}
        await editor.send({"id": 2, "method": "session/new", "params": params})
        asked = (await gateway.receive("session/new"))["params"]
        assert asked == {"cwd": "/x", "_meta": {"acp-gateway": {"worktree": "fix*", "a": 1}}}
        answer = await editor.receive()
        assert "result" in answer if told else is_error(answer, 2, "worktree")
        await editor.send({"id": 3, "method": "session/load", "params": {"sessionId": "t", "cwd": "/new"}})
        assert "_meta" not in (await gateway.receive("session/load"))["params"]
        await editor.receive()
        await editor.close()


@pytest.mark.parametrize("version", [1, 2])
async def test_a_file_that_only_the_editors_machine_has_is_embedded_in_a_prompt(
    gateway: FakeGateway, autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, version: int
) -> None:
    # The clock does not wait for the thread that reads.
    monkeypatch.setattr(shim, "FILE_TIMEOUT", math.inf)
    (tmp_path / "note").write_text("x")
    (tmp_path / "folder").mkdir()
    old = {"agentCapabilities": {"promptCapabilities": {"embeddedContext": True}}}
    new = {"protocolVersion": 2, "capabilities": {"session": {"prompt": {"embeddedContext": {}}}}}
    gateway.answers["initialize"] = lambda _: {"result": old if version == 1 else new}
    maps = PathMaps([("/laptop/proj", "/srv/proj")])
    names = [(tmp_path / "note").as_uri(), (tmp_path / "folder").as_uri(), "file:///laptop/proj/a", "file:///proj/b"]
    links = [{"type": "resource_link", "name": "n", "uri": uri} for uri in names]
    async with shimmed(gateway, maps=maps, embeds_files=True) as editor:
        await editor.start()
        await editor.send({"id": 3, "method": "session/prompt", "params": {"sessionId": "s", "prompt": links}})
        blocks = (await gateway.receive("session/prompt"))["params"]["prompt"]
        assert blocks[0] == {"type": "resource", "resource": {"uri": names[0], "text": "x"}}
        assert [it["uri"] for it in blocks[1:]] == [names[1], "file:///srv/proj/a", names[3]]
        told = (await editor.receive_any())["params"]["update"]
        assert told["content"]["text"].endswith("was sent as a link: it is not a file.]")
        assert ("messageId" in told) == (version == 2)
        await editor.close()


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("no_such_directory", "is not there: create it"),
        ("outside_workspaces", "is in no workspace that may be used (/w):"),
    ],
)
async def test_a_map_that_leads_nowhere_is_named_instead_of_a_second_one(
    gateway: FakeGateway, reason: str, told: str
) -> None:
    data = {"reason": reason, "cwd": "/srv/porj", "allowed": ["/w"]}
    refusal = {"code": -32602, "message": "x", "data": data}
    gateway.answers["session/new"] = lambda _: {"error": refusal}
    async with shimmed(gateway, maps=PathMaps([("/laptop/proj", "/srv/porj")])) as editor:
        await editor.send({"id": "a", "method": "session/new", "params": {"cwd": "/laptop/proj"}})
        answer = await editor.receive()
        assert answer["id"] == "a"
        assert f"to which your path map maps /laptop/proj, {told}" in str(answer["error"])
        assert answer["error"]["data"]["reason"] == reason
        await editor.close()


# Before the first success


async def test_an_editor_that_leaves_while_the_gateway_is_looked_for_ends_it(gateway: FakeGateway) -> None:
    gateway.hangs = True
    # A script only checks whether the gateway answers.
    async with shimmed(gateway, raises=Unreachable, known_timeout=300.0, knows=lambda _: True) as editor:
        await trio.sleep(1)
        await editor.close()
    assert trio.current_time() == 15


@pytest.mark.parametrize("words", [b"", INITIALIZE])
async def test_an_editor_that_leaves_a_gateway_that_is_waited_for_in_vain_ends_it(
    gateway: FakeGateway, words: bytes
) -> None:
    gateway.down = True
    async with shimmed(gateway, raises=Unreachable, known_timeout=300.0, knows=lambda _: True) as editor:
        await editor.send(words)
        await trio.sleep(100)
        await editor.close()
    assert trio.current_time() == 100


async def test_who_says_nothing_finds_out_that_the_gateway_can_be_reached(gateway: FakeGateway) -> None:
    gateway.refusals = [Unreachable("not yet")] * 3
    async with shimmed(gateway) as editor:
        await editor.close()
    assert len(gateway.connections) == 1
    gateway.refusals = [Forbidden("no")]
    async with shimmed(gateway, raises=Forbidden) as editor:
        await editor.close()


async def test_a_gateway_that_is_not_there_is_an_answer_to_initialize(gateway: FakeGateway) -> None:
    gateway.down = True
    async with shimmed(gateway, raises=Unreachable) as editor:
        await editor.send(INITIALIZE)
        answer = await editor.receive()
        assert is_error(answer, 1, "unreachable")
        assert "no answer (tried for 15 s)" in answer["error"]["message"]


async def test_a_refusal_waits_a_moment_for_the_question(gateway: FakeGateway) -> None:
    gateway.refusals = [Unauthorized("no")]
    async with shimmed(gateway, raises=Unauthorized) as editor:
        await trio.sleep(1)
        await editor.send(INITIALIZE)
        assert is_error(await editor.receive(), 1, "unauthorized")


async def test_an_error_before_the_first_attempt_answers_the_editor_under_its_ids_spelling() -> None:
    near, far = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shim.refuse, TrioBytes(far), ConfigError("the file is wrong"))
        await near.send_all(INITIALIZE.replace(b"1,", b"1e0,") + b'[]\nnonsense\n"\xff"\n')
        answer = bytes(await near.receive_some())
        await near.send_eof()
    assert answer.startswith(b'{"jsonrpc":"2.0","id":1e0,"error":')
    assert json.loads(answer)["error"]["data"] == {"reason": "configuration"}


async def test_a_gateway_that_knows_nothing_of_resuming_and_hangs_up_ends_it(gateway: FakeGateway) -> None:
    gateway.resumes = False
    gateway.answers.clear()
    async with shimmed(gateway, raises=Unreachable) as editor:
        await editor.send(INITIALIZE)
        await gateway.receive("initialize")
        await gateway.last.far.aclose()
        answer = await editor.receive()
        assert is_error(answer, 1, "unreachable")
        assert "closed the connection" in str(answer["error"])


async def test_a_gateway_that_hangs_up_when_it_has_refused_ends_it(gateway: FakeGateway) -> None:
    gateway.answers["initialize"] = lambda _: {"error": {"code": -32603, "message": "not found"}}
    async with shimmed(gateway, raises=Unreachable) as editor:
        await editor.send(INITIALIZE)
        assert (await editor.receive())["error"]["message"] == "not found"
        await gateway.last.far.aclose()
    assert len(gateway.attempts) == 1


async def test_a_connection_that_is_lost_during_the_first_initialize_is_resumed(gateway: FakeGateway) -> None:
    answer = gateway.answers.pop("initialize")
    async with shimmed(gateway) as editor:
        await editor.send(INITIALIZE)
        request = await gateway.receive("initialize")
        gateway.last.cut()
        gateway.send(id=request["id"], **(answer(request) or {}))
        assert "result" in await editor.receive()
        await editor.close()
    assert [resume for _, resume in gateway.attempts] == [Resume(), Resume("c1", 0)]
    assert len(gateway.received) == 1


# Losses


async def test_each_message_arrives_once_in_both_directions_over_many_losses(gateway: FakeGateway) -> None:
    async with shimmed(gateway) as editor:
        await editor.start()
        for number in range(100):
            await editor.send({"method": "up", "params": number})
            gateway.send(method="down", params=number)
            if number % 3 == 0:
                await wait_all_tasks_blocked()
            if number % 8 == 5:
                gateway.last.cut()
                await gateway.attempted(len(gateway.attempts) + 1)
        received = [(await editor.receive())["params"] for _ in range(100)]
        await gateway.receive("up", 100)
        await editor.close()
    assert received == list(range(100))
    assert [message["params"] for message in gateway.received if message["method"] == "up"] == list(range(100))


async def test_the_answer_of_a_turn_that_ended_without_a_connection_comes_after_it(gateway: FakeGateway) -> None:
    async with shimmed(gateway) as editor:
        await editor.start()
        await editor.send({"id": 3, "method": "session/prompt", "params": {"sessionId": "s"}})
        await gateway.receive("session/prompt")
        gateway.down = True
        gateway.last.cut()
        await trio.sleep(3600)
        gateway.send(id=3, result={"stopReason": "end_turn"})
        gateway.down = False
        assert (await editor.receive())["result"] == {"stopReason": "end_turn"}
        await editor.close()


async def test_what_the_editor_says_without_a_connection_makes_it_dial_at_once(gateway: FakeGateway) -> None:
    async with shimmed(gateway) as editor:
        await editor.start()
        gateway.down = True
        gateway.last.cut()
        await gateway.attempted(10)
        await trio.sleep(1)
        gateway.down = False
        now = trio.current_time()
        await editor.send({"method": "up"})
        await gateway.receive("up")
        assert trio.current_time() == now
        await editor.close()


async def test_an_editor_that_floods_without_a_connection_is_not_read_any_more(gateway: FakeGateway) -> None:
    sent = 0

    async def flood() -> None:
        nonlocal sent
        for number in range(1000):
            await editor.send({"method": "up", "params": [number, "x" * 1000]})
            sent += 1

    async with shimmed(gateway, backlog=100_000, lockstep=True) as editor:
        await editor.start()
        gateway.down = True
        gateway.last.cut()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood)
            await trio.sleep(100)
            assert 90 <= sent <= 110
            gateway.down = False
        await gateway.receive("up", 1000)
        await editor.close()
    assert [message["params"][0] for message in gateway.received if message["method"] == "up"] == list(range(1000))


async def test_an_editor_that_reads_nothing_stops_the_gateway_and_not_the_link(gateway: FakeGateway) -> None:
    async with shimmed(gateway, lockstep=True) as editor:
        await editor.start()
        for number in range(400):
            gateway.send(method="down", params=[number, "x" * 100_000])
        await trio.sleep(1000)
        assert len(gateway.attempts) == 1
        held = gateway.link.outbox.unconfirmed_bytes - gateway.link.outbox.unwritten_bytes
        assert WINDOW <= held <= WINDOW + 200_000
        await editor.send({"method": "up"})
        await gateway.receive("up")
        assert [(await editor.receive())["params"][0] for _ in range(400)] == list(range(400))
        await editor.close()


async def test_a_refusal_answers_what_is_open_and_ends_it(gateway: FakeGateway) -> None:
    async with shimmed(gateway, raises=Forbidden) as editor:
        await editor.start()
        await editor.send({"id": 3, "method": "session/prompt", "params": {"sessionId": "s"}})
        await gateway.receive("session/prompt")
        gateway.refusals = [Unreachable("not yet"), Forbidden("the token was revoked")]
        gateway.last.cut()
        answer = await editor.receive()
        assert is_error(answer, 3, "forbidden")
        assert "revoked" in answer["error"]["message"]


# Recoveries


async def test_a_forgotten_link_is_recovered_and_an_adopted_prompt_goes_on(gateway: FakeGateway) -> None:
    gateway.answers["session/load"] = lambda _: {
        "result": {"_meta": {"acp-gateway": {"prompts": [3], "questions": []}}}
    }
    async with shimmed(gateway) as editor:
        await editor.start()
        gateway.link.send([acknowledgement(0, {"s": ("e", 7)})])
        await editor.send({"id": 3, "method": "session/prompt", "params": {"sessionId": "s"}})
        await gateway.receive("session/prompt")
        gateway.forget()
        load = await gateway.receive("session/load")
        told = load["params"]["_meta"]["acp-gateway"]
        assert (told["connection"], told["prompts"]) == ("c1", [3])
        assert load["params"]["cwd"] == "/proj"
        gateway.send(id=3, result={"stopReason": "end_turn"})
        # Where it is was not answered with the epoch that was told.
        assert MAY_BE_MISSING in str(await editor.receive_any())
        assert (await editor.receive()) == {"jsonrpc": "2.0", "id": 3, "result": {"stopReason": "end_turn"}}
        await editor.close()
    assert [resume.connection_id for _, resume in gateway.attempts] == [None, "c1", None]


async def test_a_forgotten_prompt_ends_cancelled_and_other_requests_with_an_error_that_names_the_outage(
    gateway: FakeGateway,
) -> None:
    async with shimmed(gateway) as editor:
        await editor.start()
        await editor.send({"id": 3, "method": "session/prompt", "params": {"sessionId": "s"}})
        await editor.send({"id": 4, "method": "session/list"})
        await gateway.receive("session/list")
        gateway.forget()
        answer = await editor.receive()
        assert is_error(answer, 4, "outage")
        assert "no such link" in answer["error"]["message"]
        assert (await editor.receive())["result"] == {"stopReason": "cancelled"}
        await editor.close()
    assert sum(message.get("method") == "session/prompt" for message in gateway.received) == 1


async def test_what_the_editor_says_in_a_recovery_waits_for_its_end_in_order(gateway: FakeGateway) -> None:
    answer = gateway.answers.pop("session/load")
    async with shimmed(gateway) as editor:
        await editor.start()
        gateway.down = True
        gateway.forget()
        await trio.sleep(10)
        await editor.send({"id": 5, "method": "one"})
        await trio.sleep(10)
        gateway.down = False
        load = await gateway.receive("session/load")
        await editor.send({"id": 6, "method": "two"}, {"method": "three"})
        await trio.sleep(10)
        assert gateway.received[-1] == load
        gateway.send(id=load["id"], **(answer(load) or {}))
        await gateway.receive("three")
        gateway.send(id=6, result={})
        assert (await editor.receive())["id"] == 6
        await editor.send(b"")
        gateway.send(id=5, result={})
        await editor.receive()
        await editor.close()
    assert [message["method"] for message in gateway.received[-3:]] == ["one", "two", "three"]


async def test_an_editor_that_floods_in_a_recovery_is_not_read_any_more(gateway: FakeGateway) -> None:
    answer = gateway.answers.pop("session/load")
    sent = 0

    async def flood() -> None:
        nonlocal sent
        for number in range(1000):
            await editor.send({"method": "up", "params": [number, "x" * 1000]})
            sent += 1

    async with shimmed(gateway, backlog=100_000, lockstep=True) as editor:
        await editor.start()
        gateway.forget()
        load = await gateway.receive("session/load")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood)
            await trio.sleep(100)
            assert 90 <= sent <= 110
            gateway.send(id=load["id"], **(answer(load) or {}))
        await gateway.receive("up", 1000)
        await editor.close()


async def test_a_new_link_that_is_lost_in_a_recovery_is_resumed(gateway: FakeGateway) -> None:
    answer = gateway.answers.pop("session/load")
    async with shimmed(gateway) as editor:
        await editor.start()
        gateway.forget()
        load = await gateway.receive("session/load")
        gateway.last.cut()
        gateway.send(id=load["id"], **(answer(load) or {}))
        await editor.send({"method": "up"})
        await gateway.receive("up")
        await editor.close()
    assert gateway.attempts[-1][1].connection_id == "c1"
    assert sum(message.get("method") == "session/load" for message in gateway.received) == 1


async def test_a_new_link_that_is_forgotten_in_a_recovery_is_recovered_again(gateway: FakeGateway) -> None:
    answer = gateway.answers.pop("session/load")
    async with shimmed(gateway) as editor:
        await editor.start()
        await editor.send({"id": 3, "method": "session/prompt", "params": {"sessionId": "s"}})
        await gateway.receive("session/prompt")
        gateway.refusals = [LinkExpired("away for too long")]
        gateway.last.cut()
        await gateway.receive("session/load")
        await editor.send({"method": "held"})
        gateway.answers["session/load"] = answer
        gateway.forget()
        assert (await editor.receive())["result"] == {"stopReason": "cancelled"}
        assert (await gateway.receive("session/load", 2))["params"]["_meta"]["acp-gateway"]["connection"] == "c1"
        await gateway.receive("held")
        await editor.close()


async def test_an_agent_that_cant_be_started_again_is_tried_again_for_a_while_and_when_the_editor_wants_something(
    gateway: FakeGateway,
) -> None:
    answer = gateway.answers["initialize"]
    async with shimmed(gateway) as editor:
        await editor.start()
        await editor.send({"id": 3, "method": "session/prompt", "params": {"sessionId": "s"}})
        await gateway.receive("session/prompt")
        error = {"code": -32603, "message": "not found", "data": {"reason": "agent_not_started"}}
        gateway.answers["initialize"] = lambda _: {"error": error}
        gateway.forget()
        answered = await editor.receive()
        assert is_error(answered, 3, "agent_not_started")
        assert answered["error"]["message"] == "not found"
        await trio.sleep(1000)
        attempts = len(gateway.attempts)
        assert attempts == 3 + shim.RETRIES
        await trio.sleep(1000)
        assert len(gateway.attempts) == attempts
        await editor.send({"id": 4, "method": "session/prompt", "params": {"sessionId": "s"}})
        assert is_error(await editor.receive(), 4, "agent_not_started")
        gateway.answers["initialize"] = answer
        await editor.send({"id": 5, "method": "session/prompt", "params": {"sessionId": "s"}})
        assert (await gateway.receive("session/prompt", 2))["id"] == 5
        gateway.send(id=5, result={})
        assert (await editor.receive())["id"] == 5
        await editor.close()


async def test_who_only_watches_gets_the_session_again_when_its_agent_is_back(gateway: FakeGateway) -> None:
    answer = gateway.answers["session/load"]
    async with shimmed(gateway) as editor:
        await editor.start()
        error = {"code": -32603, "message": "it has ended", "data": {"reason": "agent_ended"}}
        gateway.answers["session/load"] = lambda _: {"error": error}
        gateway.forget()
        await gateway.receive("session/load", 5)
        gateway.answers["session/load"] = answer
        assert (await gateway.receive("session/load", 6))["params"]["sessionId"] == "s"
        await wait_all_tasks_blocked()
        gateway.send(method="session/update", params={"sessionId": "s", "update": {"sessionUpdate": "plan"}})
        assert (await editor.receive())["method"] == "session/update"
        await editor.close()


async def test_an_agent_that_ends_is_started_again_only_when_the_editor_wants_something(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = LinkLoss("the agent has ended", 1011, closed=True)
    monkeypatch.setattr("acp_gateway.client.uplink.loss_by_close", lambda _: ended)
    async with shimmed(gateway) as editor:
        await editor.start()
        for number in range(1, 4):
            gateway.last.cut(trio.EndOfChannel())
            await trio.sleep(1000)
            assert len(gateway.attempts) == number
            await editor.send({"id": 10 + number, "method": "session/prompt", "params": {"sessionId": "s"}})
            assert (await gateway.receive("session/prompt", number))["id"] == 10 + number
            gateway.send(id=10 + number, result={"stopReason": "end_turn"})
            assert (await editor.receive())["id"] == 10 + number
        await editor.close()


async def test_in_a_recovery_the_agent_gets_the_answer_that_it_waits_for(gateway: FakeGateway) -> None:
    answer = gateway.answers.pop("session/load")
    async with shimmed(gateway) as editor:
        await editor.start()
        gateway.forget()
        load = await gateway.receive("session/load")
        gateway.send(id=1, method="x/ask", params={})
        assert (await editor.receive())["method"] == "x/ask"
        await editor.send({"id": 1, "result": "yes"})
        await gateway.until(lambda: gateway.received[-1] == {"id": 1, "result": "yes"})
        gateway.send(id=load["id"], **(answer(load) or {}))
        await editor.close()


# The end


async def test_a_script_that_ends_its_input_still_gets_its_answers(gateway: FakeGateway) -> None:
    gateway.refusals = [Unreachable("not yet")]
    async with shimmed(gateway) as editor:
        await editor.send(INITIALIZE, {"id": 2, "method": "session/new"})
        await editor.close()
        assert (await editor.receive())["id"] == 1
        assert (await editor.receive())["id"] == 2


async def test_an_answer_that_never_comes_is_not_waited_for_for_ever(gateway: FakeGateway) -> None:
    async with shimmed(gateway, connect_timeout=15.0) as editor:
        await editor.send({"id": 2, "method": "never"})
        await editor.close()
    assert trio.current_time() == 15


async def test_the_end_of_the_editor_is_not_put_off_by_a_turn(gateway: FakeGateway) -> None:
    async with shimmed(gateway) as editor:
        await editor.send({"id": 1, "method": "session/prompt", "params": {}})
        await editor.close()
    assert trio.current_time() == 0


async def test_without_a_connection_the_end_of_the_editor_is_the_end_at_once(gateway: FakeGateway) -> None:
    async with shimmed(gateway) as editor:
        await editor.start()
        gateway.down = True
        gateway.last.cut()
        await trio.sleep(100)
        await editor.send({"id": 3, "method": "session/list"})
        await wait_all_tasks_blocked()
        now = trio.current_time()
        await editor.close()
    assert trio.current_time() == now


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_with_a_goodbye(gateway: FakeGateway, number: signal.Signals) -> None:
    async with shimmed(gateway) as editor:
        await editor.start()
        await editor.send({"id": 3, "method": "session/prompt", "params": {"sessionId": "s"}})
        await gateway.receive("session/prompt")
        link = gateway.link
        os.kill(os.getpid(), number)
    assert link.left


async def test_an_editor_that_takes_nothing_any_more_ends_it(gateway: FakeGateway) -> None:
    async with shimmed(gateway) as editor:
        await editor.start()
        link = gateway.link
        await editor.stop_reading()
        gateway.send(method="down")
    assert link.left


async def test_sixty_losses_leave_no_tasks_behind(gateway: FakeGateway) -> None:
    async with shimmed(gateway) as editor:
        await editor.start()
        await wait_all_tasks_blocked()
        before = trio.lowlevel.current_statistics().tasks_living
        for count in range(1, 61):
            (gateway.forget if count % 3 == 0 else gateway.last.cut)()
            await gateway.attempted(len(gateway.attempts) + 1)
            await editor.send({"method": "up"})
            await gateway.receive("up", count)
        await wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().tasks_living == before
        await editor.close()


async def test_the_log_tells_of_recoveries_and_never_what_was_said(
    gateway: FakeGateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with shimmed(gateway) as editor:
        await editor.start()
        await editor.send({"id": 3, "method": "session/prompt", "params": {"sessionId": "s", "text": "secret"}})
        await gateway.receive("session/prompt")
        gateway.refusals = [LinkGone("no such link")]
        gateway.last.cut()
        await editor.receive()
        await editor.close()
    text = "\n".join(caplog.messages)
    assert "starting over on a new link: can't be resumed after 0 s: no such link" in text
    assert "session s is restored: 1 of 1 prompts and 0 of 0 agent requests cancelled" in text
    assert "recovered" in text
    assert caplog.messages[-1] == "the end"
    assert "secret" not in text


# Feedback


async def test_a_connection_that_is_silent_is_shown_as_lost_though_it_is_not_given_up(gateway: FakeGateway) -> None:
    states: list[shim.LinkState] = []
    async with shimmed(gateway, link_changed=states.append) as editor:
        await editor.start()
        gateway.hangs = True
        gateway.last.near.die()
        await editor.send({"method": "news"})
        await trio.sleep(SHOWN - 0.1)
        assert states == [shim.LinkState.CONNECTED]
        await trio.sleep(0.5)
        assert states == [shim.LinkState.CONNECTED, shim.LinkState.LOST]
        gateway.last.near.revive()
        await gateway.receive("news")
        await wait_all_tasks_blocked()
        assert states == [shim.LinkState.CONNECTED, shim.LinkState.LOST, shim.LinkState.CONNECTED]
        assert len(gateway.connections) == 1
        await editor.close()


async def test_an_outage_is_told_and_the_status_kept_for_those_who_ask_for_it(
    gateway: FakeGateway, tmp_path: Path
) -> None:
    path = tmp_path / "status.json"
    feedback = Feedback(StatusFile(path, "box"), tells_outages=True)

    def status() -> tuple[str, int, int]:
        said = json.loads(path.read_text())
        return said["state"], said["sessions"], said["resumed"]

    async with shimmed(gateway, feedback=feedback, notice=feedback.notice) as editor:
        await editor.start()
        assert status() == ("connected", 1, 0)
        await editor.send({"id": 3, "method": "session/prompt", "params": {"sessionId": "s", "prompt": []}})
        await gateway.receive("session/prompt")
        gateway.down = True
        gateway.last.cut()
        lost = await editor.receive_any()
        assert "the connection was lost 10 s ago" in lost["params"]["update"]["content"]["text"]
        assert status() == ("away", 1, 0)
        gateway.down = False
        assert "connected again after" in (await editor.receive_any())["params"]["update"]["content"]["text"]
        assert status() == ("connected", 1, 1)
        await editor.close()
    assert status()[0] == "ended"


async def test_a_question_about_a_port_is_between_the_shim_and_its_editor(gateway: FakeGateway) -> None:
    async def look(session: str) -> list[Port]:
        return [Port(6006, "tb")] if session == "s" else []

    forwards = EditorForwards(Ways("box", "", look, lambda: DESTINATION), asks=True)
    gateway.answers["session/prompt"] = lambda _: None
    async with shimmed(gateway, forwards=forwards) as editor:
        await editor.start()
        await editor.send({"id": 3, "method": "session/prompt", "params": {"sessionId": "s", "prompt": []}})
        await gateway.receive("session/prompt")
        gateway.send(method="session/update", params={"sessionId": "s", "update": said("localhost:6006 ")})
        assert [(await editor.receive())["method"] for _ in range(2)] == ["session/update", "session/update"]
        asked = await editor.receive()
        assert asked["method"] == "session/request_permission"
        count = len(gateway.received)
        await editor.send({"id": asked["id"], "result": {"outcome": {"outcome": "cancelled"}}}, {"method": "next"})
        assert (await editor.receive())["params"]["update"]["status"] == "failed"
        await gateway.receive("next")
        assert [message.get("method") for message in gateway.received[count:]] == ["next"]
        await editor.close()
