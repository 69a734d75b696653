"""Sessions that a node of a cluster adopts."""

import json
import shutil
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.client.control import list_sessions, request
from acp_gateway.client.dialing import dial
from acp_gateway.cluster.mirrored_history import TURN_CANCELLED
from acp_gateway.cluster.records import SessionRecord
from acp_gateway.cluster.store import mirror_word
from acp_gateway.core.sessions import Session
from acp_gateway.errors import GatewayError, UnknownSession
from acp_gateway.protocol.methods import ADOPT
from acp_gateway.security.token_store import default_identity
from acp_gateway.server import node_watcher
from acp_gateway.server.adoption import Adoption
from acp_gateway.transports.websocket import Timing
from tests.cluster.memory_store import MemoryDirectory
from tests.doubles import Editor, encode
from tests.server.machines import control, node_config, until_agents
from tests.server.serving import serving
from tests.server.test_cluster import directory, member_config, two_nodes, until

__all__ = ["directory"]


async def adopt(url: str, session: str, **params: Any) -> dict[str, Any]:
    answer: dict[str, Any] = await request(control(url), ADOPT, {"session": session, **params}, time_limit=30)
    return answer


async def open_session(url: str, agent: str = "memory") -> tuple[Editor, str]:
    """An editor with a session of a node; its id there."""
    editor = Editor(await dial(control(url, agent=agent, control=False), Timing()))
    await editor.initialize()
    opened = await editor.request("session/new", {"cwd": "/", "mcpServers": []})
    return editor, opened["result"]["sessionId"]


def copy_files(folder: Path, session: str) -> None:
    """Have the agent on gpu2 find a session of gpu1."""
    name = f"{session}.session"
    (folder / "gpu2" / "sessions").mkdir(exist_ok=True)
    shutil.copy(folder / "gpu1" / "sessions" / name, folder / "gpu2" / "sessions" / name)


async def test_session_of_a_node_that_has_stopped_is_adopted_by_another_one(
    directory: MemoryDirectory, tmp_path: Path
) -> None:
    async with serving(member_config(tmp_path, "gpu2")) as (_, url):
        async with serving(member_config(tmp_path, "gpu1")) as (_, other):
            await until_agents(url, "gpu1/memory")
            editor, session = await open_session(other)
            key = f"gpu1/{session}"
            await until(lambda: key in directory.sessions)
            await editor.stream.aclose()
        before = directory.sessions[key].epoch
        copy_files(tmp_path, session)
        assert await adopt(url, key) == {"sessionId": key, "node": "gpu2", "agent": "memory", "before": "gpu1"}
        assert directory.sessions[key].node == "gpu2"
        assert directory.sessions[key].epoch > before
        for name in (key, session):
            joined = Editor(await dial(control(url, session=name, control=False), Timing()))
            await joined.initialize()
            answer = await joined.request("session/new", {"cwd": "/", "mcpServers": []})
            assert answer["result"]["sessionId"] == session
            await joined.stream.aclose()
        # The node that had it comes back, and refuses to open it.
        async with serving(member_config(tmp_path, "gpu1")) as (_, other):
            editor = Editor(await dial(control(other, agent="memory", control=False), Timing()))
            await editor.initialize()
            await editor.request("session/load", {"sessionId": session, "cwd": "/", "mcpServers": []})
            while True:
                answer = await editor.request("session/load", {"sessionId": session, "cwd": "/", "mcpServers": []})
                if "error" in answer:
                    break
            assert answer["error"]["message"] == (f"the session lives on gpu2: acp-gateway connect HOST --attach {key}")
            assert directory.sessions[key].node == "gpu2"
            await editor.stream.aclose()


async def test_session_of_a_node_that_is_there_is_adopted_by_force_only(
    directory: MemoryDirectory, tmp_path: Path
) -> None:
    async with two_nodes(tmp_path) as (gpu1, gpu2):
        editor, session = await open_session(gpu1)
        key = f"gpu1/{session}"
        await until(lambda: key in directory.sessions)
        copy_files(tmp_path, session)
        with pytest.raises(GatewayError, match=f"the node gpu1 is there, and has the session {key}"):
            await adopt(gpu2, key)
        # Asked at the one, done by the other.
        assert (await adopt(gpu1, key, node="gpu2", force=True))["node"] == "gpu2"
        line = await editor.receive()
        assert "the session lives on gpu2" in str(line["params"]["update"])
        answer = await editor.request("session/prompt", {"sessionId": session, "prompt": []})
        assert "lives on gpu2" in answer["error"]["message"]
        await editor.stream.aclose()


async def names_at(url: str) -> list[str]:
    """The sessions of all nodes, as a node names them."""
    return [row["sessionId"] for row in (await list_sessions(control(url), time_limit=30)).sessions]


async def until_led_to(url: str, key: str) -> None:
    """Ask a node for a session of the cluster until it is opened there where it lives."""
    while True:
        try:
            joined = Editor(await dial(control(url, session=key, control=False), Timing()))
        except UnknownSession:
            # The other node has not told it yet.
            while not any(name.endswith(key.partition("/")[2]) for name in await names_at(url)):
                pass
            continue
        await joined.initialize()
        answer = await joined.request("session/new", {"cwd": "/", "mcpServers": []})
        await joined.stream.aclose()
        if "result" in answer:
            assert answer["result"]["sessionId"] == key.partition("/")[2]
            return


async def test_every_node_asks_the_one_that_has_adopted_a_session_at_once(
    directory: MemoryDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_nodes(tmp_path) as (gpu1, gpu2):
        # The third node is told only what it asks for.
        monkeypatch.setattr(node_watcher, "INTERVAL", 3600)
        async with serving(member_config(tmp_path, "gpu3")) as (_, gpu3):
            await until_agents(gpu3, "gpu1/memory", "gpu2/memory")
            editor, session = await open_session(gpu1)
            key = f"gpu1/{session}"
            await until(lambda: key in directory.sessions)
            copy_files(tmp_path, session)
            await list_sessions(control(gpu3), time_limit=30)
            for at, name in ((gpu2, "gpu2"), (gpu1, "gpu1"), (gpu2, "gpu2")):
                await adopt(at, key, force=True)
                assert directory.sessions[key].node == name
                await until_led_to(gpu3, key)
            await editor.stream.aclose()


def update(session: str, text: str, kind: str = "agent_message_chunk") -> bytes:
    params = {"sessionId": session, "update": {"sessionUpdate": kind, "content": {"type": "text", "text": text}}}
    return encode({"method": "session/update", "params": params})


@pytest.mark.parametrize("replays", [False, True])
async def test_adopted_session_has_its_mirrored_history_if_the_agent_replays_none(
    replays: bool, directory: MemoryDirectory, tmp_path: Path
) -> None:
    store, key = directory.store("gpu1"), "gpu1/s"
    record = SessionRecord(key=key, node="gpu1", agent="memory", owner=default_identity(tmp_path), epoch=0, turn=True)
    claim = await store.claim(record)
    messages = [(1, update("s", "asked", "user_message_chunk")), (2, update("s", "mirrored"))]
    await store.append(key, "gpu1", claim.epoch, mirror_word("j", record.owner), 0, messages)
    async with serving(member_config(tmp_path, "gpu2")) as (_, url):
        replayed = json.loads(update("s", "replayed"))["params"]["update"]
        (tmp_path / "gpu2" / "sessions" / "s.session").write_text(json.dumps(replayed) + "\n" if replays else "")
        await adopt(url, key)
        editor = Editor(await dial(control(url, session=key, control=False), Timing()))
        await editor.initialize()
        await editor.send(id=7, method="session/load", params={"sessionId": "s", "cwd": "/", "mcpServers": []})
        told = []
        while "id" not in (message := await editor.receive()):
            told.append(message["params"]["update"]["content"]["text"])
        assert told == (["replayed"] if replays else ["asked", "mirrored", TURN_CANCELLED])
        await editor.stream.aclose()


async def test_prompt_of_a_client_at_another_node_ends_as_cancelled_when_its_session_is_adopted(
    directory: MemoryDirectory, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        urls = {}
        for name in ("gpu2", "gpu3"):
            urls[name] = (await stack.enter_async_context(serving(member_config(tmp_path, name))))[1]
        async with serving(member_config(tmp_path, "gpu1")):
            for url in urls.values():
                await until_agents(url, "gpu1/memory")
            editors = [await open_session(url, "gpu1/memory") for url in urls.values()]
            for editor, session in editors:
                prompt = [{"type": "text", "text": "wait"}]
                await editor.send(id="p", method="session/prompt", params={"sessionId": session, "prompt": prompt})
            while not {f"gpu1/{session}" for _, session in editors} <= directory.sessions.keys():
                await trio.lowlevel.checkpoint()
        await until_agents(urls["gpu3"], "gpu2/memory")
        for editor, session in editors:
            copy_files(tmp_path, session)
            await adopt(urls["gpu2"], f"gpu1/{session}")
            line, end = await editor.receive(), await editor.receive()
            assert "the session lives on gpu2" in line["params"]["update"]["content"]["text"]
            assert end == {"jsonrpc": "2.0", "id": "p", "result": {"stopReason": "cancelled"}}
            await editor.stream.aclose()


async def test_session_is_adopted_back_though_the_directory_was_emptied_and_the_adopter_is_away(
    directory: MemoryDirectory, tmp_path: Path
) -> None:
    async with serving(member_config(tmp_path, "gpu1")) as (_, url):
        async with serving(member_config(tmp_path, "gpu2")) as (_, other):
            await until_agents(url, "gpu2/memory")
            editor, session = await open_session(url)
            key = f"gpu1/{session}"
            await until(lambda: key in directory.sessions)
            copy_files(tmp_path, session)
            await adopt(other, key, force=True)
            assert "lives on gpu2" in str(await editor.receive())
            await editor.stream.aclose()
        directory.empty()
        assert (await adopt(url, key))["before"] == "gpu2"
        await until_led_to(url, key)
        async with serving(member_config(tmp_path, "gpu2")) as (_, other):
            await until_agents(other, "gpu1/memory")
            await until_led_to(other, key)
        assert directory.sessions[key].node == "gpu1"


@pytest.mark.parametrize("restarted", [False, True], ids=["the adopter goes on", "the adopter starts again"])
async def test_adoption_outlives_an_emptied_directory_and_an_unaware_node(
    restarted: bool,
    directory: MemoryDirectory,
    tmp_path: Path,
) -> None:
    gpu1, gpu2 = member_config(tmp_path, "gpu1"), member_config(tmp_path, "gpu2")
    async with AsyncExitStack() as stack:
        adopter = await stack.enter_async_context(AsyncExitStack())
        _, url = await adopter.enter_async_context(serving(gpu2))
        async with serving(gpu1) as (_, other):
            await until_agents(url, "gpu1/memory")
            editor, session = await open_session(other)
            key = f"gpu1/{session}"
            await until(lambda: key in directory.sessions)
            await editor.stream.aclose()
        copy_files(tmp_path, session)
        await adopt(url, key)
        if restarted:
            await adopter.aclose()
        directory.lose()
        directory.empty()
        directory.reachable = True
        if restarted:
            # The node that had it before is the first to write.
            _, other = await stack.enter_async_context(serving(gpu1))
            await until(lambda: key in directory.sessions)
            assert directory.sessions[key].node == "gpu1"
            _, url = await stack.enter_async_context(serving(gpu2))
        else:
            _, other = await stack.enter_async_context(serving(gpu1))
        await until(lambda: key in directory.sessions and directory.sessions[key].node == "gpu2")
        await until_led_to(other, key)
        await until_led_to(url, key)
        assert directory.sessions[key].node == "gpu2"


async def test_session_that_the_agent_cannot_open_is_given_back(directory: MemoryDirectory, tmp_path: Path) -> None:
    async with serving(member_config(tmp_path, "gpu2")) as (_, url):
        async with serving(member_config(tmp_path, "gpu1")) as (_, other):
            await until_agents(url, "gpu1/memory")
            editor, session = await open_session(other)
            key = f"gpu1/{session}"
            await until(lambda: key in directory.sessions)
            await editor.stream.aclose()
        with pytest.raises(GatewayError, match="memory on gpu2 can't open the session, it was given back"):
            await adopt(url, key)
        assert directory.sessions[key].node == "gpu1"
        with pytest.raises(GatewayError, match="there is no node gpu9; there are: gpu1, gpu2"):
            await adopt(url, key, node="gpu9")
        with pytest.raises(GatewayError, match="the directory has no session gpu1/other"):
            await adopt(url, "gpu1/other")
        with pytest.raises(GatewayError, match="the node gpu2 has no agent other: name one with --agent"):
            await adopt(url, key, agent="other")


async def test_session_that_was_taken_away_by_force_is_given_back_to_a_node_that_is_there(
    directory: MemoryDirectory, tmp_path: Path
) -> None:
    async with two_nodes(tmp_path) as (gpu1, gpu2):
        editor, session = await open_session(gpu1)
        key = f"gpu1/{session}"
        await until(lambda: key in directory.sessions)
        with pytest.raises(GatewayError, match="it was given back"):
            await adopt(gpu2, key, force=True)
        assert directory.sessions[key].node == "gpu1"
        await editor.stream.aclose()
        for url in (gpu1, gpu2):
            await until_led_to(url, key)
        # It is written in that epoch from now on.
        epoch = directory.sessions[key].epoch
        directory.empty()
        await until(lambda: key in directory.sessions)
        assert directory.sessions[key].epoch == epoch


async def test_session_that_could_not_be_given_back_can_be_adopted_again(
    directory: MemoryDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = SessionRecord(key="gpu1/s", node="gpu1", agent="memory", owner=default_identity(tmp_path), epoch=0)
    await directory.store("gpu1").claim(record)
    opened = Adoption._open

    async def lose(self: Adoption, session: Session) -> str | None:
        failure = await opened(self, session)
        directory.lose()
        return failure

    async with serving(member_config(tmp_path, "gpu2")) as (_, url):
        with monkeypatch.context() as patched:
            patched.setattr(Adoption, "_open", lose)
            with pytest.raises(GatewayError, match="can't open the session, and could not give it back") as caught:
                await adopt(url, "gpu1/s")
        assert "adopt it again" in str(caught.value)
        directory.reachable = True
        assert directory.sessions["gpu1/s"].node == "gpu2"
        # It fails as before, and the node that has it by its name gets it back.
        with pytest.raises(GatewayError, match="can't open the session, it was given back"):
            await adopt(url, "gpu1/s")
        assert directory.sessions["gpu1/s"].node == "gpu1"
        (tmp_path / "gpu2" / "sessions" / "s.session").write_text("")
        assert (await adopt(url, "gpu1/s"))["node"] == "gpu2"


async def test_gateway_without_a_cluster_adopts_nothing(tmp_path: Path) -> None:
    config = node_config(tmp_path / "alone")
    own = replace(config.listen[0], url=f"unix://{tmp_path}/alone.sock", peer_uid=True)
    async with serving(replace(config, listen=(own,))) as (url,):
        with pytest.raises(GatewayError, match="is in no cluster"):
            await adopt(url, "gpu1/s")
