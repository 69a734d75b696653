"""Control connections, end to end over streams in memory: what is asked, what is told to whom."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from acp_gateway import __version__
from acp_gateway.config.load import AgentSection, WorkspaceSection
from acp_gateway.core.sessions.session import Role, SessionReach
from acp_gateway.errors import UnknownAgent, UsageError
from acp_gateway.gateway import extensions
from acp_gateway.gateway.access import Access, ConnectRequest, Grant
from acp_gateway.gateway.control_channel import CODE_WEIGHT, WEIGHT, describe_access
from acp_gateway.protocol.methods import ACCESS, NOTICES
from acp_gateway.security.token_store import TokenStore
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.memory import memory_message_stream_pair
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.streams import CloseReason, TrioBytes
from tests.kit.doubles import TIMEOUT, Editor, FragileStream, make_config
from tests.kit.idle_gateway import IdleGateway, connection, idle
from tests.kit.scene import encode

__all__ = ["idle"]


@pytest.fixture
def weights(idle: IdleGateway, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The weights of the requests of connections."""
    found: list[int] = []

    def charge(messages: int = 0, size: int = 0, seconds: float = 0.0, frames: int = 0) -> float:
        found.append(messages)
        return 0.0

    limiter = SimpleNamespace(charge=charge)
    monkeypatch.setattr(idle.gateway.connections, "rate_limiter", lambda *_, **__: limiter)
    return found


async def end_of(idle: IdleGateway, stream: MaintainedStream) -> tuple[CloseReason, str] | None:
    """Serve a control connection, and return what it is closed with."""
    ours = FragileStream(stream)
    with trio.fail_after(TIMEOUT):
        await idle.serve(ours)
    return ours.closed_with


async def test_after_each_message_others_get_their_turn(idle: IdleGateway, weights: list[int]) -> None:
    theirs, ours = memory_message_stream_pair()
    seen: set[int] = set()

    async def other_client() -> None:
        while len(weights) < 10:
            await trio.lowlevel.checkpoint()
            seen.add(len(weights))

    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as nursery:
            theirs.send_nowait([encode(method=ACCESS)] * 10)
            nursery.start_soon(idle.serve, ours)
            await other_client()
            await theirs.aclose()
    assert weights == [WEIGHT] * 10
    # Of two tasks that are ready, either may be first.
    assert len(seen) > 4


# What is told


async def test_what_the_credential_allows_is_told(idle: IdleGateway) -> None:
    async with connection(idle) as editor:
        told = (await editor.request(ACCESS, {}))["result"]
    assert (told["identity"], told["agents"]) == ("me", {"agent": "identity"})


# Notices


async def test_notices_are_told_after_the_response_until_the_client_has_to_connect_again(
    idle: IdleGateway,
) -> None:
    asked, ends = [], trio.Event()

    async def tell(_: Access, __: ConnectRequest, since: int | None, send: Any) -> None:
        asked.append(since)
        await send(b'{"jsonrpc":"2.0","method":"_acp-gateway/notices","params":{}}')
        await ends.wait()

    idle.gateway.push.tell = tell
    theirs, ours = memory_message_stream_pair()
    editor, ended = Editor(theirs), []

    async def serve() -> None:
        ended.append(await end_of(idle, ours))

    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            await editor.send(id=1, method=NOTICES, params={"since": 7})
            assert (await editor.receive())["result"] == {}
            assert (await editor.receive())["method"] == NOTICES
            assert asked == [7]
            again = (await editor.request(NOTICES, {}))["error"]
            assert (again["code"], again["message"]) == (-32600, "this connection is told already")
            # Other requests are answered beside.
            assert "result" in await editor.request(ACCESS)
            ends.set()
            with pytest.raises((trio.EndOfChannel, trio.BrokenResourceError)):
                await editor.receive()
    assert ended == [(CloseReason.GOING_AWAY, "there are other agents now: connect again")]


async def test_notices_are_refused_to_those_who_decide_nothing(idle: IdleGateway) -> None:
    async with connection(idle, role=Role.OBSERVER) as editor:
        error = (await editor.request(NOTICES, {}))["error"]
        assert (error["code"], error["data"]) == (403, {"reason": "forbidden"})


# What may be asked


@pytest.mark.parametrize("method", ["initialize", "session/load", "_acp-gateway/hello", "_acp-gateway/", ""])
async def test_nothing_else_may_be_asked(method: str, idle: IdleGateway) -> None:
    async with connection(idle) as editor:
        error = (await editor.request(method, {}))["error"]
        assert error["code"] == -32601
        assert error["message"].startswith(f"a control connection knows only {NOTICES}, ")
        assert "result" in await editor.request(ACCESS)


@pytest.mark.parametrize(
    ("method", "result"),
    [
        ("_acp-gateway/status", {"state": "fine"}),
        ("_acp-gateway/reload", {"changed": "fine"}),
        ("_acp-gateway/stop_agent", {"processes": 2}),
    ],
)
async def test_operations_are_for_the_own_user_alone(
    method: str, result: Any, idle: IdleGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def status(*, with_nodes: bool) -> dict[str, Any]:
        return {"state": "fine"}

    async def stop_agent(name: str) -> dict[str, Any]:
        if name != "demo":
            raise UsageError("there is none") if name else UnknownAgent("there is none")
        return {"processes": 2}

    idle.gateway.extensions.operations = extensions.Operations(status, lambda: {"changed": "fine"}, stop_agent)
    with monkeypatch.context() as patch:
        patch.setattr(IdleGateway, "access", Access("me", None, certificate="laptop"))
        async with connection(idle) as editor:
            error = (await editor.request(method, {"agent": "demo"}))["error"]
        assert (error["code"], error["data"]) == (403, {"reason": "forbidden"})
    async with connection(idle) as editor:
        assert (await editor.request(method, {"agent": "demo"}))["result"] == result
        assert (await editor.request("_acp-gateway/stop_agent", {}))["error"]["code"] == 404
        assert (await editor.request("_acp-gateway/stop_agent", {"agent": "box/a"}))["error"]["code"] == -32602


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"nonsense", -32700),
        (b"\xff", -32700),
        (b"[" * 100_000, -32700),
        (b"[]", -32600),
        (b'[{"jsonrpc":"2.0","id":1,"method":"_acp-gateway/access"}]', -32600),
        (b"7", -32600),
        (b"{}", -32600),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_what_is_not_a_message_is_answered_and_the_connection_goes_on(
    line: bytes, code: int, idle: IdleGateway
) -> None:
    async with connection(idle) as editor:
        await editor.stream.send(line)
        answer = await editor.receive()
        assert (answer["id"], answer["error"]["code"]) == (None, code)
        assert "result" in await editor.request(ACCESS)


async def test_what_asks_nothing_is_not_answered(idle: IdleGateway) -> None:
    async with connection(idle) as editor:
        await editor.send(method=ACCESS)
        await editor.send(id=7, result={})
        await editor.send(id=8, error={"code": 1, "message": "no"})
        assert "result" in await editor.request(ACCESS)


async def test_ids_come_back_as_they_were_spelled_and_answers_in_the_order_of_the_requests(
    idle: IdleGateway,
) -> None:
    ids = [b'"\\u0061"', b"1.0", b"0", b'""', b"123456789012345678901234567890", b"1"]
    async with connection(idle) as editor:
        await editor.stream.send_batch([b'{"jsonrpc":"2.0","id":%b,"method":"x"}' % raw for raw in ids])
        for raw in ids:
            assert (await editor.stream.receive()).startswith(b'{"jsonrpc":"2.0","id":%b,' % raw)


# The end


async def test_who_goes_is_not_told_anything(idle: IdleGateway) -> None:
    theirs, ours = memory_message_stream_pair()
    await theirs.aclose()
    assert await end_of(idle, ours) == (CloseReason.NORMAL, "")


async def test_who_goes_before_the_answer_is_not_an_event(idle: IdleGateway) -> None:
    theirs, ours = memory_message_stream_pair()
    theirs.send_nowait([b'{"jsonrpc":"2.0","id":1,"method":"x"}'] * 2)
    await theirs.aclose()
    assert await end_of(idle, ours) == (CloseReason.NORMAL, "")


class ClosedLines(LineStream):
    """Lines that know how they were closed."""

    closed_with: tuple[CloseReason, str] | None = None

    async def aclose(self, reason: CloseReason = CloseReason.NORMAL, text: str = "") -> None:
        self.closed_with = reason, text
        await super().aclose(reason, text)


async def test_who_sends_too_much_is_told_so(idle: IdleGateway) -> None:
    theirs, ours = trio.testing.memory_stream_pair()
    lines = ClosedLines(TrioBytes(ours), max_message_size=1 << 20)
    await theirs.send_all(b"x" * 65537 + b"\n")
    with trio.fail_after(TIMEOUT):
        await idle.serve(lines)
    assert lines.closed_with is not None
    code, text = lines.closed_with
    assert code is CloseReason.TOO_LARGE
    assert "larger than control_message_size (65536 bytes)" in text
    assert json.loads(await theirs.receive_some())["error"] == {"code": -32600, "message": text}


# Codes for browsers


@pytest.mark.parametrize(
    ("params", "answer"),
    [
        ({"session": "s1", "label": "phone"}, "acpgwp_"),
        ({}, "acpgwp_"),
        (None, "acpgwp_"),
        ({"session": "theirs"}, (404, {"reason": "unknown_session"})),
        ({"sesion": "s1"}, (-32602, None)),
    ],
)
async def test_open_answers_with_a_code_or_the_refusal(params: Any, answer: Any, idle: IdleGateway) -> None:
    idle.remember("s1")
    idle.remember("theirs", "bob")
    request = {"jsonrpc": "2.0", "id": 1, "method": "_acp-gateway/open"}
    async with connection(idle) as editor:
        await editor.send(**(request if params is None else request | {"params": params}))
        told = await editor.receive()
    if isinstance(answer, str):
        assert told["result"]["code"].startswith(answer)
    else:
        assert (told["error"]["code"], told["error"].get("data")) == answer


async def test_open_counts_as_more_messages_than_a_list(idle: IdleGateway, weights: list[int]) -> None:
    async with connection(idle) as editor:
        for method in ("_acp-gateway/open", ACCESS):
            await editor.request(method)
    assert [weight for weight in weights if weight] == [CODE_WEIGHT, WEIGHT]


def describe(
    access: Access, state_dir: Path, *, only: str | None = None, role: Role = Role.CONTROLLER
) -> dict[str, Any]:
    agents = {"a": AgentSection(command=("a",), scope="connection"), "b": AgentSection(command=("b",))}
    workspaces = {name: WorkspaceSection(root=Path(f"/srv/{name}")) for name in ("w", "v")}
    config = make_config(state_dir, "tcp://127.0.0.1:1", agents=agents, default_agent="b")
    config = replace(config, workspaces=workspaces)
    reach = SessionReach(access.identity, only, access.session is not None)
    return describe_access(Grant(access, ConnectRequest(control=True), "", reach, role), config)


@pytest.fixture
def tokens(tmp_path: Path) -> TokenStore:
    return TokenStore(tmp_path, now=lambda: 1_800_000_000.0)


def test_a_token_is_described_with_what_it_allows(tokens: TokenStore, tmp_path: Path) -> None:
    token, secret = tokens.create("laptop", "ann", None, lifetime=60.0, workspaces=["w"])
    told = describe(Access.of(token), tmp_path)
    assert told == {
        "version": __version__,
        "identity": "ann",
        "credential": f"token {token.id}",
        "role": "controller",
        "agents": {"a": "connection", "b": "identity"},
        "claims": 2,
        "defaultAgent": "b",
        "label": "laptop",
        "workspaces": ["w"],
        "folders": ["/srv/w"],
        "expires": "2027-01-15T08:01:00Z",
    }
    assert secret not in str(told)


def test_a_token_for_one_agent_is_told_of_no_other(tokens: TokenStore, tmp_path: Path) -> None:
    told = describe(Access.of(tokens.create("x", "ann", ["a"])[0]), tmp_path, role=Role.OBSERVER)
    assert (told["agents"], told["defaultAgent"], told["role"]) == ({"a": "connection"}, "a", "observer")
    assert "expires" not in told
    assert told["folders"] == ["/srv/w", "/srv/v"]


def test_a_token_for_an_agent_that_was_removed_has_none(tokens: TokenStore, tmp_path: Path) -> None:
    told = describe(Access.of(tokens.create("x", "ann", ["gone"])[0]), tmp_path)
    assert told["agents"] == {}
    assert "defaultAgent" not in told


def test_a_guest_is_told_of_its_session_and_no_agent(tokens: TokenStore, tmp_path: Path) -> None:
    told = describe(Access.of(tokens.create_guest("s1", role="observer", lifetime=None)[0]), tmp_path, only="s1")
    assert (told["session"], told["agents"]) == ("s1", {})
    assert "defaultAgent" not in told
    assert "folders" not in told


def test_a_client_certificate_is_described_with_its_end(tmp_path: Path) -> None:
    told = describe(replace(Access("ann", None), certificate="ann", expires=1_800_000_000.0), tmp_path)
    assert (told["credential"], told["expires"]) == ("certificate ann", "2027-01-15T08:00:00Z")
    assert "label" not in told
