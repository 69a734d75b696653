"""Clients of both versions made with the TypeScript SDK, with its agents of both and its router.

All that a client or an agent gets is validated against the official schema of its version.
"""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import dropwhile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio

from tests.interop.cutting_proxy import CuttingProxy
from tests.interop.sdk_clients import INSTALLED, SdkClient, running_client
from tests.kit.folds import NewTranscript, OldTranscript
from tests.kit.running import PROGRAM, RunningGateway, prepare, start_gateway, until_there
from tests.kit.schemas import check_message

pytestmark = pytest.mark.interop

Json = Any

PROGRAMS = ["node", "--no-warnings", str(Path(__file__).with_name("typescript_versions.mjs")), str(INSTALLED)]

SCOPES = ["connection", "identity", "shared"]
KINDS = ["v1", "v2", "router"]
TRANSPORTS = ["stdio", "websocket", "http"]

NOTICE = "[warning: slow]"
"""A notice of the agent of version 2, which version 1 has only as a text."""


def check_wire(wire: Path, version: int, side: str) -> list[Json]:
    """Validate what one side got; return its messages."""
    asked: dict[str, str] = {}
    got = []
    for line in wire.read_text().splitlines():
        way, message = json.loads(line).values()
        if way == "out":
            if "method" in message:
                asked[json.dumps(message.get("id"))] = message["method"]
        # The first question to an agent of version 2 is whether it speaks version 1.
        elif message.get("method") != "initialize" or message["params"]["protocolVersion"] == version:
            check_message(version, side, message, asked.get(json.dumps(message.get("id")), ""))
            got.append(message)
    return got


class VersionedClient(SdkClient):
    """A client of either version, which is talked to in the same words."""

    version = 1

    async def initialize(self, **capabilities: Any) -> None:
        if self.version == 1:
            await super().initialize(**capabilities)
            return
        info = {"name": "interop", "version": "1"}
        answer = await self.request("initialize", protocolVersion=2, info=info, capabilities=capabilities)
        assert answer["protocolVersion"] == 2

    async def replay(self, session: str) -> None:
        """Have the history sent, as the only thing that is known of the session."""
        self.updates = [(name, update) for name, update in self.updates if name != session]
        if self.version == 1:
            await self.load(session)
        else:
            await self.request("session/resume", sessionId=session, cwd="/", replayFrom={"type": "start"})

    async def resume(self, session: str) -> None:
        await self.request("session/resume", sessionId=session, cwd="/", mcpServers=[])

    async def turn(self, session: str, words: str) -> str:
        return await self.end(session, await self.begin_prompt(session, words))

    async def end(self, session: str, prompt: int) -> str:
        """Wait for the end of a turn; return its reason."""
        answer = await self.answer(prompt)
        assert "error" not in answer, answer
        if self.version == 1:
            return str(answer["result"]["stopReason"])
        message_id = answer["result"]["messageId"]

        def reasons() -> list[str]:
            # The end of the turn before may come after the prompt was sent.
            updates = [update for name, update in self.updates if name == session]
            began = dropwhile(lambda update: update.get("messageId") != message_id, updates)
            return [update["stopReason"] for update in began if "stopReason" in update]

        await self.until(reasons)
        return reasons()[0]

    async def shows(self, session: str, expected: Json) -> None:
        """Wait until a session is shown like this: over HTTP a response may come before the history."""
        await self.until(lambda: self.shown(session) == expected)

    async def set_mode(self, session: str, mode: str) -> None:
        if self.version == 1:
            await self.request("session/set_mode", sessionId=session, modeId=mode)
            return
        # The agent of version 1 has no option for it: the gateway has.
        for name in ("mode", "acp-gateway-mode"):
            number = await self.begin(
                "session/set_config_option", sessionId=session, configId=name, type="id", value=mode
            )
            if "error" not in (answer := await self.answer(number)):
                assert answer["result"]["configOptions"][0]["currentValue"] == mode
                return
        raise AssertionError(answer)

    def transcript(self, session: str) -> OldTranscript | NewTranscript:
        fold = OldTranscript() if self.version == 1 else NewTranscript()
        for name, update in self.updates:
            if name == session and (self.version == 1 or update["sessionUpdate"] != "state_update"):
                fold.apply(update)
        return fold

    def texts(self, session: str) -> str:
        """Return all that the agent says in a session, as this client shows it, without notices."""
        fold = self.transcript(session)
        messages = fold.timeline if isinstance(fold, OldTranscript) else fold.messages.values()
        said = [block["text"] for kind, blocks in messages if kind == "agent" for block in blocks]
        return "".join(words for words in said if words != NOTICE)

    def shown(self, session: str) -> Json:
        """Return all messages and tool calls, with their ids.

        A client of version 1 gets its own prompts in replays alone. To one of version 2 they have the gateway's ids,
        until the agent itself sends its history.
        """
        fold = self.transcript(session)
        if isinstance(fold, NewTranscript):
            ids = {name: "" if kind == "user" else name for name, (kind, _) in fold.messages.items()}
            return [(ids[name], message) for name, message in fold.messages.items()], fold.tools
        timeline, tools, _ = fold.shown()
        return [part for part in timeline if part[0] != "user"], tools

    def tools(self, session: str) -> list[str]:
        return [tool["status"] for tool in self.transcript(session).tools.values()]


class NewClient(VersionedClient):
    version = 2


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway with each agent in each scope. At the end, all that the agents got is validated."""
    directory = tmp_path_factory.mktemp("versions")
    agents = ""
    for kind in KINDS:
        for scope in SCOPES:
            command = [*PROGRAMS, "agent", kind, str(directory / f"{kind}-{scope}.wire")]
            agents += f'[agents.{kind}-{scope}]\nscope = "{scope}"\ncommand = {json.dumps(command)}\n'
    running = start_gateway(directory, prepare(directory, agents, more='default_agent = "v1-shared"'))
    yield running
    assert running.stop() == 0, "".join(running.log)
    for wire in directory.glob("*.wire-*"):
        assert check_wire(wire, 2 if wire.name.startswith("v2") else 1, "agent")


@pytest.fixture(scope="module")
def front(versions: RunningGateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway that leads to this one."""
    directory = tmp_path_factory.mktemp("front")
    node = f'[nodes.box]\nurl = "{versions.urls["ws"]}"\ntoken_file = "{versions.token_file}"\n'
    running = start_gateway(directory, prepare(directory, node, more='default_agent = "box/v1-shared"'))
    until_there(running, "box")
    yield running
    assert running.stop() == 0, "".join(running.log)


@asynccontextmanager
async def client(
    version: int, transport: str, agent: str, gateway: RunningGateway, wire: Path, port: int | None = None
) -> AsyncIterator[VersionedClient]:
    """Run an initialized client. At its end, all that it got is validated."""
    port = port or urlsplit(gateway.urls["ws"]).port
    address = f"{'http' if transport == 'http' else 'ws'}://127.0.0.1:{port}/acp"
    shim = [*PROGRAM, "connect", address, "--agent", agent]
    to = shim if transport == "stdio" else [f"{address}?agent={agent}"]
    command = [*PROGRAMS, "client", f"v{version}", str(wire), *to]
    kind = VersionedClient if version == 1 else NewClient
    async with running_client(command, gateway.token, kind) as running:
        await running.initialize()
        yield running
    assert check_wire(wire, version, "client")


def check_subject(one: VersionedClient, *, of_new: bool) -> None:
    """Check what a permission is about: a command for an agent of version 2, a tool call for any other."""
    (about,) = one.about
    assert about is not None
    if one.version == 1:
        assert about["toolCallId"]
    elif of_new:
        assert (about["type"], about["command"], about["cwd"]) == ("command", "ls", "/w")
    else:
        assert (about["type"], about["toolCall"]["title"]) == ("tool_call", "May I?")


async def converse(one: VersionedClient, kind: str) -> None:
    """Do all there is to do in a session of one's own, with an agent of this kind."""
    session = await one.new_session()
    await one.decide("yes")
    assert await one.turn(session, "all") == "end_turn"
    assert one.asked == ["May I?"]
    check_subject(one, of_new=kind == "v2")
    turn = await one.begin_prompt(session, "wait")
    await one.until(lambda: "wait" in one.texts(session))
    await one.notify("session/cancel", sessionId=session)
    assert await one.end(session, turn) == "cancelled"
    assert (one.texts(session), one.tools(session)) == ("helloyeswait", ["completed"])
    shown = one.shown(session)
    assert session in [listed["sessionId"] for listed in (await one.request("session/list"))["sessions"]]
    await one.set_mode(session, "code")
    await one.resume(session)
    assert one.shown(session) == shown
    await one.replay(session)
    await one.shows(session, shown)
    await one.request("session/close", sessionId=session)
    await one.replay(session)
    await one.shows(session, shown)
    assert await one.turn(session, "again") == "end_turn"
    assert one.texts(session) == "helloyeswaitagain"
    await one.request("session/delete", sessionId=session)
    assert session not in [listed["sessionId"] for listed in (await one.request("session/list"))["sessions"]]


async def share(ann: VersionedClient, bob: VersionedClient) -> None:
    """Have two clients use one session."""
    session = await ann.new_session()
    assert await ann.turn(session, "one") == "end_turn"
    await bob.replay(session)
    assert await bob.turn(session, "all") == "end_turn"
    turn = await ann.begin_prompt(session, "wait")
    await bob.until(lambda: "wait" in bob.texts(session))
    await bob.notify("session/cancel", sessionId=session)
    assert await ann.end(session, turn) == "cancelled"
    assert (ann.texts(session), ann.tools(session)) == ("onehelloyeswait", ["completed"])
    await bob.until(lambda: (bob.texts(session), bob.tools(session)) == ("onehelloyeswait", ["completed"]))


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("kind", KINDS)
async def test_clients_of_both_versions_use_an_agent(
    kind: str, scope: str, transport: str, versions: RunningGateway, tmp_path: Path
) -> None:
    agent = f"{kind}-{scope}"
    async with (
        client(1, transport, agent, versions, tmp_path / "old") as old,
        client(2, transport, agent, versions, tmp_path / "new") as new,
    ):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(converse, old, kind)
            nursery.start_soon(converse, new, kind)
        if scope != "connection":
            await share(old, new)
            await share(new, old)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("kind", KINDS)
async def test_clients_of_both_versions_use_an_agent_through_another_gateway(
    kind: str, transport: str, front: RunningGateway, tmp_path: Path
) -> None:
    agent = f"box/{kind}-identity"
    async with (
        client(1, transport, agent, front, tmp_path / "old") as old,
        client(2, transport, agent, front, tmp_path / "new") as new,
    ):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(converse, old, kind)
            nursery.start_soon(converse, new, kind)
        await share(old, new)
        await share(new, old)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", [1, 2])
async def test_a_turn_goes_on_while_the_connection_of_its_client_is_cut(
    version: int, kind: str, versions: RunningGateway, tmp_path: Path, nursery: trio.Nursery
) -> None:
    agent = f"{kind}-identity"
    port = urlsplit(versions.urls["ws"]).port
    assert port is not None
    proxy = CuttingProxy(port)
    await nursery.start(proxy.run)
    async with (
        client(version, "stdio", agent, versions, tmp_path / "ann", proxy.port) as ann,
        client(3 - version, "websocket", agent, versions, tmp_path / "bob") as bob,
    ):
        session = await ann.new_session()
        await bob.replay(session)
        turn = await ann.begin_prompt(session, "all")
        await ann.until(lambda: ann.asked)
        await bob.until(lambda: bob.asked)
        proxy.cut()
        await bob.decide("yes")
        assert await ann.end(session, turn) == "end_turn"
        assert ann.texts(session) == "helloyes"
        assert ann.tools(session) == ["completed"]
