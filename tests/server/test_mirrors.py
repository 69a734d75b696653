"""Clients that read the mirrored history of a session whose node is away, at another gateway in this process."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.client.dialing import dial
from acp_gateway.cluster.records import NodeRecord, SessionRecord
from acp_gateway.cluster.store import mirror_word
from acp_gateway.errors import AccessError
from acp_gateway.gateway.access import Grant
from acp_gateway.gateway.hub import Hub
from acp_gateway.server.mirrors import Mirrors
from acp_gateway.transports.websocket import Timing
from tests.cluster.memory_store import MemoryDirectory
from tests.doubles import Editor
from tests.server.machines import control, save_token, until_agents
from tests.server.serving import serving
from tests.server.test_cluster import directory, listed, member_config, until

__all__ = ["directory"]

READ_ONLY = "this is the history of its session as of "


def update(session: str, text: str) -> bytes:
    content = {"type": "text", "text": text}
    params = {"sessionId": session, "update": {"sessionUpdate": "agent_message_chunk", "content": content}}
    return json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}).encode()


def texts_of(messages: list[dict[str, Any]]) -> list[str]:
    """The texts of the updates among messages."""
    return [it["params"]["update"]["content"]["text"] for it in messages if it.get("method") == "session/update"]


async def mirror(
    directory: MemoryDirectory, session: str, *texts: str, owner: str, node: str = "gpu1", first: int = 0
) -> None:
    """Have a node that is away hold a session, and mirror its history."""
    store = directory.store(node)
    await store.announce(NodeRecord(name=node, url="ws://127.0.0.1:1", boot="b", agents=("memory",)), 0.001)
    key = f"{node}/{session}"
    claim = await store.claim(SessionRecord(key=key, node=node, agent="memory", owner=owner, epoch=0))
    messages = [(1, update(session, text)) for text in texts]
    assert (await store.append(key, node, claim.epoch, mirror_word("j", owner), first, messages)).granted


@asynccontextmanager
async def front(folder: Path, **options: Any) -> AsyncIterator[tuple[str, str]]:
    """The WebSocket and the unix socket of a gateway that knows that gpu1 is away."""
    async with serving(member_config(folder, "gpu2", **options)) as (websocket, url):
        await until_agents(url, "gpu1/memory")
        secret = save_token(folder / "gpu2", "ann.token", "ann")
        while not any("away since" in line for line in (await listed(control(websocket, secret))).problems):
            await trio.lowlevel.checkpoint()
        yield websocket, url


async def connect(url: str, token_file: Path | None = None, **more: Any) -> Editor:
    editor = Editor(await dial(control(url, token_file, control=False, **more), Timing()))
    await editor.initialize()
    return editor


async def ask(editor: Editor, method: str, **params: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Send a request; return the messages before its response, and the response."""
    await editor.send(id="ask", method=method, params=params)
    before = []
    while (message := await editor.receive()).get("id") != "ask":
        before.append(message)
    return before, message


async def load(editor: Editor, session: str) -> tuple[list[str], dict[str, Any]]:
    """Load a session; return the texts of its history, and the response."""
    before, response = await ask(editor, "session/load", sessionId=session, cwd="/", mcpServers=[])
    return texts_of(before), response


@pytest.mark.parametrize("agent", [None, "gpu1/memory"])
async def test_session_of_a_node_that_is_away_is_read_by_session_load(
    agent: str | None, directory: MemoryDirectory, tmp_path: Path
) -> None:
    await mirror(directory, "s1", "hello", "world", owner="ann")
    async with front(tmp_path) as (url, _):
        ann = await connect(url, tmp_path / "gpu2" / "ann.token", agent=agent, session="gpu1/s1")
        told, response = await load(ann, "s1")
        assert told == ["hello", "world"]
        assert "result" in response
        (line,) = texts_of([await ann.receive()])
        assert line.startswith("[acp-gateway: the node gpu1 is away since ")
        assert READ_ONLY in line
        assert "`acp-gateway sessions adopt gpu1/s1 --on NODE`" in line
        _, answer = await ask(ann, "session/prompt", sessionId="s1", prompt=[{"type": "text", "text": "hello?"}])
        assert answer["error"]["message"] == line.removeprefix("[acp-gateway: ").removesuffix("]")
        assert answer["error"]["data"]["reason"] == "node_away"
        await ann.stream.aclose()


async def test_connection_that_is_bound_to_the_session_reads_it_by_session_new(
    directory: MemoryDirectory, tmp_path: Path
) -> None:
    await mirror(directory, "s1", "hello", owner="ann", first=7)
    async with front(tmp_path) as (url, _):
        for observe in (False, True):
            ann = await connect(url, tmp_path / "gpu2" / "ann.token", session="gpu1/s1", observe=observe)
            await ann.send(id="new", method="session/new", params={"cwd": "/", "mcpServers": []})
            told: list[dict[str, Any]] = []
            while not any(READ_ONLY in text for text in texts_of(told)):
                told.append(await ann.receive())
            (answer,) = [message for message in told if message.get("id") == "new"]
            assert answer["result"]["sessionId"] == "s1"
            missing, text, _ = texts_of(told)
            assert "the beginning of this conversation is no longer kept" in missing
            assert text == "hello"
            await ann.stream.aclose()


async def test_session_of_another_identity_is_not_read(directory: MemoryDirectory, tmp_path: Path) -> None:
    await mirror(directory, "s1", "hello", owner="ann")
    await mirror(directory, "s2", "for bob", owner="bob")
    bob = save_token(tmp_path / "gpu2", "bob.token", "bob")
    limited = save_token(tmp_path / "gpu2", "limited.token", "ann", agents=["memory"])
    async with front(tmp_path) as (url, own):
        for target, secret, why in (
            (url, bob, "no session 'gpu1/s1'"),
            (own, None, "no session 'gpu1/s1'"),
            (url, limited, "does not allow the agent"),
        ):
            with pytest.raises(AccessError, match=why):
                await connect(target, secret, session="gpu1/s1")
        editor = await connect(url, bob, session="gpu1/s2")
        told, response = await load(editor, "s1")
        assert (told, response["error"]["code"]) == ([], -32002)
        assert (await load(editor, "s2"))[0] == ["for bob"]
        await editor.stream.aclose()


async def test_connection_for_no_session_reads_after_connect_timeout(
    directory: MemoryDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Mirrors.__init__, "__defaults__", (lambda: time.time() + 3600,))
    await mirror(directory, "s1", "hello", owner="ann")
    await mirror(directory, "s2", "for bob", owner="bob")
    async with front(tmp_path) as (url, _):
        ann = await connect(url, tmp_path / "gpu2" / "ann.token", agent="gpu1/memory")
        _, refused = await ask(ann, "session/new", cwd="/", mcpServers=[])
        assert "its sessions can be read, and nothing else" in refused["error"]["message"]
        told, refused = await load(ann, "s2")
        assert (told, refused["error"]["data"]["reason"]) == ([], "node_away")
        assert (await load(ann, "s1"))[0] == ["hello"]
        await ann.stream.aclose()


@pytest.mark.parametrize("case", ["nothing is mirrored", "the directory is lost", "no session, before connect_timeout"])
async def test_connection_is_served_as_any_other_one_if(
    case: str, directory: MemoryDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Hub | None] = []
    find = Mirrors.find_hub

    async def find_hub(self: Mirrors, grant: Grant) -> Hub | None:
        found.append(await find(self, grant))
        return found[-1]

    monkeypatch.setattr(Mirrors, "find_hub", find_hub)
    await mirror(directory, "s1", "hello", owner="ann")
    async with front(tmp_path) as (url, _):
        wanted = {"agent": "gpu1/memory"} if case.startswith("no session") else {"agent": None, "session": "gpu1/s1"}
        if case == "nothing is mirrored":
            directory.mirrors.clear()
        elif case == "the directory is lost":
            directory.lose()
        secret = tmp_path / "gpu2" / "ann.token"
        stream = await dial(control(url, secret, control=False, **wanted), Timing())
        await until(lambda: found)
        assert found == [None]
        await stream.aclose()


async def test_mirror_of_a_session_whose_record_has_another_owner_is_not_read(
    directory: MemoryDirectory, tmp_path: Path
) -> None:
    await mirror(directory, "s1", "hello", owner="ann")
    async with front(tmp_path) as (url, _):
        ann = await connect(url, tmp_path / "gpu2" / "ann.token", session="gpu1/s1")
        directory.sessions["gpu1/s1"] = SessionRecord(
            key="gpu1/s1", node="gpu1", agent="memory", owner="bob", epoch=directory.sessions["gpu1/s1"].epoch
        )
        told, response = await load(ann, "s1")
        assert told == []
        assert response["error"]["code"] == -32002
        await ann.stream.aclose()


async def test_mirror_of_an_earlier_owner_of_the_same_id_is_not_read(
    directory: MemoryDirectory, tmp_path: Path
) -> None:
    await mirror(directory, "1", "for bob", owner="bob")
    directory.sessions["gpu1/1"] = SessionRecord(key="gpu1/1", node="gpu1", agent="memory", owner="ann", epoch=1)
    async with front(tmp_path) as (url, _):
        ann = await connect(url, tmp_path / "gpu2" / "ann.token", session="gpu1/1")
        told, response = await load(ann, "1")
        assert told == []
        assert "nothing of it is mirrored" in response["error"]["message"]
        await ann.stream.aclose()


async def test_reader_is_disconnected_when_the_node_is_back_and_then_gets_the_session_itself(
    directory: MemoryDirectory, tmp_path: Path
) -> None:
    own_user = save_token(tmp_path / "gpu2", "own.token")
    async with serving(member_config(tmp_path, "gpu1")) as (_, url):
        editor = await connect(url, agent="memory")
        opened = await editor.request("session/new", {"cwd": "/", "mcpServers": []})
        session = opened["result"]["sessionId"]
        await ask(editor, "session/prompt", sessionId=session, prompt=[{"type": "text", "text": "said"}])
        await until(lambda: f"gpu1/{session}" in directory.sessions)
        await editor.stream.aclose()
    key, record = f"gpu1/{session}", directory.sessions[f"gpu1/{session}"]
    await directory.store("gpu1").append(
        key, "gpu1", record.epoch, mirror_word("j", record.owner), 0, [(1, update(session, "mirrored"))]
    )
    async with front(tmp_path) as (websocket, _):
        reader = await connect(websocket, own_user, session=key)
        assert (await load(reader, session))[0] == ["mirrored"]
        async with serving(member_config(tmp_path, "gpu1")):
            rest = await reader.receive_rest()
            assert READ_ONLY in texts_of(rest)[0]
            await reader.stream.aclose()
            while True:
                editor = await connect(websocket, own_user, session=key)
                told, _ = await load(editor, session)
                if told != ["mirrored"]:
                    break
                await editor.stream.aclose()
            assert "said" in told
            _, answer = await ask(editor, "session/prompt", sessionId=session, prompt=[{"type": "text", "text": "on"}])
            assert answer["result"]["stopReason"] == "end_turn"
            await editor.stream.aclose()
