"""A gateway that reads its configuration again: what is used at once, and that no turn ends."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.client import uplink
from acp_gateway.client.control import request
from acp_gateway.client.local import LocalGateway
from acp_gateway.config.load import load_config
from acp_gateway.nodes import looks
from acp_gateway.protocol.methods import STATUS
from acp_gateway.server.serve import serve
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.sockets import connect_unix
from tests.kit.doubles import INITIALIZE, TIMEOUT, Editor, encode, python
from tests.kit.machines import control, node_config, save_token, until_agents
from tests.kit.serving import serving

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the own user is known by the kernel")

# Answers a prompt once it is cancelled, and `test/mark` with a variable of its environment.
AGENT = json.dumps(
    python("""
import json, os, sys
for line in sys.stdin:
    message = json.loads(line)
    results = {
        "initialize": {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}},
        "session/new": {"sessionId": message.get("params", {}).get("cwd")},
        "session/load": {},
        "test/mark": {"mark": os.environ["MARK"], "pid": os.getpid()},
    }
    if message["method"] == "session/prompt":
        prompt = message["id"]
    else:
        if message["method"] == "session/cancel":
            message["id"], results = prompt, {"session/cancel": {"stopReason": "cancelled"}}
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]}
        print(json.dumps(answer), flush=True)
""")
)


class Scene:
    """A running gateway, and its configuration file."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file = directory / "config.toml"
        self.state_dir = directory / "state"

    def write(self, mark: int = 1, more: str = "", *, root: str = "/", gateway: str = "", agent: str = "a") -> None:
        self.file.write_text(
            f'[gateway]\nstate_dir = "{self.state_dir}"\n{gateway}[[listen]]\nurl = "unix://{self.directory}/socket"\n'
            f'[workspaces.w]\nroot = "{root}"\n'
            f'[agents.{agent}]\ncommand = {AGENT}\nenv = {{ MARK = "{mark}" }}\n{more}'
        )

    @property
    def url(self) -> str:
        return f"unix://{self.directory}/socket"

    async def reload(self) -> list[str]:
        """Have the files read again, and return the lines about changes."""
        answer = await LocalGateway(self.state_dir).reload(time_limit=TIMEOUT)
        assert answer["problems"] == []
        changed: list[str] = answer["changed"]
        return changed

    async def connect(self, **params: object) -> tuple[Editor, dict[str, Any]]:
        """Connect, and return the client and the answer to its hello."""
        lines = LineStream(await connect_unix(f"{self.directory}/socket"), max_message_size=1 << 20)
        await lines.send(encode({"id": "h", "method": "_acp-gateway/hello", "params": params}))
        return Editor(lines), json.loads(await lines.receive())

    @asynccontextmanager
    async def editor(self, **params: object) -> AsyncIterator[Editor]:
        editor, answer = await self.connect(**params)
        assert "result" in answer, answer
        try:
            await editor.request("initialize", INITIALIZE)
            yield editor
        finally:
            await editor.stream.aclose()

    async def refusal(self, **params: object) -> str:
        editor, answer = await self.connect(**params)
        await editor.stream.aclose()
        message: str = answer["error"]["message"]
        return message


@pytest.fixture
async def scene(tmp_path: Path, nursery: trio.Nursery) -> Scene:
    scene = Scene(tmp_path)
    scene.write()
    await nursery.start(partial(serve, load_config(scene.file), {"PATH": "/usr/bin:/bin"}, file=scene.file))
    return scene


async def mark_of(editor: Editor) -> tuple[str, int]:
    """Return the variable of the agent that answers, and its process."""
    answer = await editor.request("test/mark", {})
    assert "result" in answer, answer
    result = answer["result"]
    return result["mark"], result["pid"]


async def test_an_idle_agent_that_was_changed_is_started_again_for_the_clients_that_it_has(scene: Scene) -> None:
    with trio.fail_after(TIMEOUT):
        async with scene.editor() as editor:
            await editor.request("session/new", {"cwd": "/", "mcpServers": []})
            mark, pid = await mark_of(editor)
            assert mark == "1"
            scene.write(2)
            assert await scene.reload() == ["agents.a: changed (env)"]
            mark, other = await mark_of(editor)
            assert mark == "2"
            assert other != pid
            async with scene.editor() as second:
                assert await mark_of(second) == (mark, other)


async def test_another_scope_is_for_new_connections(scene: Scene) -> None:
    with trio.fail_after(TIMEOUT):
        async with scene.editor() as editor:
            before = await mark_of(editor)
            scene.write(more='scope = "connection"\n')
            assert (await scene.reload())[0] == "agents.a: changed (scope)"
            async with scene.editor() as other:
                assert (await mark_of(other))[1] not in (before[1], (await mark_of(editor))[1])


async def test_other_limits_of_an_agent_are_used_by_the_process_that_there_is(scene: Scene) -> None:
    with trio.fail_after(TIMEOUT):
        async with scene.editor() as editor:
            await mark_of(editor)
            scene.write(more="client_fs = true\npermission_timeout = 7\n")
            assert await scene.reload() == ["agents.a: changed (permission_timeout, client_fs)"]
            assert (await mark_of(editor))[0] == "1"


async def test_a_turn_of_an_agent_that_was_changed_goes_on_to_its_end(scene: Scene) -> None:
    with trio.fail_after(TIMEOUT):
        async with scene.editor() as editor:
            session = (await editor.request("session/new", {"cwd": "/", "mcpServers": []}))["result"]["sessionId"]
            prompt = {"sessionId": session, "prompt": [{"type": "text", "text": "x"}]}
            await editor.send(id="p", method="session/prompt", params=prompt)
            before = await mark_of(editor)
            scene.write(2)
            assert await scene.reload() == [
                "agents.a: changed (env)",
                "agents.a: 1 running, as before until nothing is open in it",
            ]
            assert await mark_of(editor) == before
            # A second device shares the process nevertheless.
            async with scene.editor() as other:
                assert await mark_of(other) == before
            await editor.send(method="session/cancel", params={"sessionId": session})
            while (answer := await editor.receive()).get("id") != "p":
                pass
            assert answer["result"] == {"stopReason": "cancelled"}


async def test_a_new_agent_can_be_used_and_a_removed_one_can_not(scene: Scene) -> None:
    with trio.fail_after(TIMEOUT):
        assert "no agent 'b'" in await scene.refusal(agent="b")
        async with scene.editor() as editor:
            scene.write(3, agent="b")
            assert await scene.reload() == ["agents.b: new", "agents.a: removed", "the default agent: b, it was a"]
            async with scene.editor(agent="b") as other:
                assert (await mark_of(other))[0] == "3"
            assert "no agent 'a'" in await scene.refusal(agent="a")
            # As its section was, also after another reload.
            assert (await mark_of(editor))[0] == "1"
            scene.write(4, agent="b")
            assert await scene.reload() == ["agents.b: changed (env)"]
            assert (await mark_of(editor))[0] == "1"


async def test_a_list_that_was_followed_before_has_the_sessions_of_a_new_agent_as_well(scene: Scene) -> None:
    with trio.fail_after(TIMEOUT):
        asking, _ = await scene.connect(control=True)
        scene.write(more=f'[agents.b]\ncommand = {AGENT}\nenv = {{ MARK = "b" }}\n', gateway='default_agent = "a"\n')
        assert await scene.reload() == ["agents.b: new"]
        async with scene.editor(agent="b") as editor:
            await editor.request("session/new", {"cwd": "/", "mcpServers": []})
            listed = (await asking.request("session/list", {"all": True}))["result"]["sessions"]
            assert [session["agentType"] for session in listed] == ["b"]
        await asking.stream.aclose()


async def test_a_link_of_the_default_agent_resumes_when_that_is_another_one_by_now(scene: Scene) -> None:
    with trio.fail_after(TIMEOUT):
        editor, answer = await scene.connect(resume={})
        await editor.stream.aclose()
        more = f'[agents.b]\ncommand = {AGENT}\nenv = {{ MARK = "b" }}\n'
        scene.write(more=more, gateway='default_agent = "b"\n')
        assert await scene.reload() == ["agents.b: new", "the default agent: b, it was a"]
        link = {"connectionId": answer["result"]["connectionId"], "received": 0}
        again, resumed = await scene.connect(resume=link)
        assert resumed["result"]["connectionId"] == link["connectionId"]
        await again.stream.aclose()


async def test_another_workspace_is_for_the_next_session(scene: Scene) -> None:
    params = {"cwd": "/", "mcpServers": []}
    with trio.fail_after(TIMEOUT):
        async with scene.editor() as editor:
            assert "result" in await editor.request("session/new", params)
            scene.write(root=str(scene.directory))
            assert await scene.reload() == ["workspaces.w: changed (root)"]
            assert "error" in await editor.request("session/new", params)
            assert "result" in await editor.request("session/new", params | {"cwd": str(scene.directory)})


async def test_another_limit_is_for_the_connections_that_there_are(scene: Scene) -> None:
    with trio.fail_after(TIMEOUT):
        async with scene.editor() as editor:
            await mark_of(editor)
            scene.write(more="[limits]\nmax_connections = 2\n")
            assert await scene.reload() == ["limits.max_connections: 2, it was 4096"]
            assert "connections_per_identity (1)" in await scene.refusal()


async def test_an_error_in_the_configuration_changes_nothing(scene: Scene) -> None:
    scene.write(2, more="zebra = 1\n")
    answer = await LocalGateway(scene.state_dir).reload(time_limit=TIMEOUT)
    assert (answer["changed"], answer["restart"]) == ([], [])
    (problem,) = answer["problems"]
    assert "zebra" in problem
    with trio.fail_after(TIMEOUT):
        async with scene.editor() as editor:
            assert (await mark_of(editor))[0] == "1"


async def test_a_default_agent_of_a_node_that_is_not_there_changes_nothing(scene: Scene) -> None:
    scene.write(2, gateway='default_agent = "gpu2/opencode"\n')
    answer = await LocalGateway(scene.state_dir).reload(time_limit=TIMEOUT)
    assert answer["changed"] == []
    assert "there is no node gpu2" in answer["problems"][0]


# Nodes


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes are asked at once, again and again."""
    monkeypatch.setattr(uplink, "BACKOFF_MIN", 0.001)
    monkeypatch.setattr(looks, "FRESH", 0.0)


def section(name: str, url: str, token: Path) -> str:
    return f'[nodes.{name}]\nurl = "{url}"\ntoken_file = "{token}"\n'


async def node_of(scene: Scene, name: str) -> dict[str, Any]:
    """Return what the status says about a node."""
    status = await request(control(scene.url), STATUS, {}, time_limit=TIMEOUT)
    node: dict[str, Any] = {each["name"]: each for each in status["nodes"]}[name]
    return node


async def until_why(scene: Scene, name: str, words: str) -> None:
    """Wait until a node is away for a cause with these words; none of them for one that is there."""
    while words not in ((node := await node_of(scene, name))["why"] or "") or node["up"] != (not words):
        await trio.lowlevel.checkpoint()


async def test_nodes_can_be_added_and_removed_in_a_gateway_that_was_started_without_any(
    scene: Scene, hurried: None, tmp_path: Path
) -> None:
    with trio.fail_after(TIMEOUT):
        async with serving(node_config(tmp_path / "gpu1")) as (url,):
            gpu1 = section("gpu1", url, tmp_path / "gpu1" / "node.token")
            assert "no agent 'gpu1/memory'" in await scene.refusal(agent="gpu1/memory")
            scene.write(more=gpu1)
            assert await scene.reload() == ["nodes.gpu1: new"]
            assert await scene.reload() == []
            await until_agents(scene.url, "gpu1/memory")
            async with scene.editor(agent="gpu1/memory") as editor:
                opened = await editor.request("session/new", {"cwd": "/", "mcpServers": []})
                scene.write(more=gpu1 + section("gpu2", "ws://127.0.0.1:1", tmp_path / "gpu1" / "node.token"))
                assert await scene.reload() == ["nodes.gpu2: new"]
                await until_why(scene, "gpu2", "cannot reach 127.0.0.1 port 1")
                scene.write()
                assert await scene.reload() == ["nodes.gpu1: removed", "nodes.gpu2: removed"]
                assert "no agent 'gpu1/memory'" in await scene.refusal(agent="gpu1/memory")
                assert (await request(control(scene.url), STATUS, {}, time_limit=TIMEOUT))["nodes"] == []
                # Who uses it goes on, with the directories of the node.
                params = {"sessionId": opened["result"]["sessionId"], "prompt": [{"type": "text", "text": "x"}]}
                await editor.send(id="p", method="session/prompt", params=params)
                while (answer := await editor.receive()).get("id") != "p":
                    pass
                assert answer["result"] == {"stopReason": "end_turn"}
                scene.write(2, root=str(scene.directory))
                await scene.reload()
                assert "result" in await editor.request("session/new", {"cwd": "/", "mcpServers": []})
            scene.write(2, more=gpu1, root=str(scene.directory))
            assert await scene.reload() == ["nodes.gpu1: new"]
            await until_agents(scene.url, "gpu1/memory")


async def test_another_token_of_a_node_is_used_at_once(scene: Scene, hurried: None, tmp_path: Path) -> None:
    with trio.fail_after(TIMEOUT):
        async with serving(node_config(tmp_path / "gpu1")) as (url,):
            wrong = save_token(tmp_path / "elsewhere")
            scene.write(more=section("gpu1", url, wrong))
            await scene.reload()
            await until_why(scene, "gpu1", "token")
            scene.write(more=section("gpu1", url, tmp_path / "gpu1" / "node.token"))
            assert await scene.reload() == ["nodes.gpu1: changed (token_file)"]
            await until_why(scene, "gpu1", "")
            # The first connection would go on: it is replaced.
            scene.write(more=section("gpu1", url, wrong))
            assert await scene.reload() == ["nodes.gpu1: changed (token_file)"]
            await until_why(scene, "gpu1", "token")


async def test_a_node_at_another_address_serves_the_clients_that_there_are(
    scene: Scene, hurried: None, tmp_path: Path
) -> None:
    with trio.fail_after(TIMEOUT):
        async with serving(node_config(tmp_path / "one")) as (one,), serving(node_config(tmp_path / "two")) as (two,):
            scene.write(more=section("gpu", one, tmp_path / "one" / "node.token"))
            await scene.reload()
            await until_agents(scene.url, "gpu/memory")
            async with scene.editor(agent="gpu/memory") as editor:
                await editor.request("session/new", {"cwd": "/", "mcpServers": []})
                scene.write(more=section("gpu", two, tmp_path / "two" / "node.token"))
                assert await scene.reload() == ["nodes.gpu: changed (token_file, url)"]
                await until_why(scene, "gpu", "")
                assert (await node_of(scene, "gpu"))["url"] == two
                async with scene.editor(agent="gpu/memory") as later:
                    # Who was there goes on where the session is.
                    for each, machine in ((editor, "one"), (later, "two")):
                        opened = await each.request("session/new", {"cwd": "/", "mcpServers": []})
                        made = tmp_path / machine / "sessions" / f"{opened['result']['sessionId']}.session"
                        assert await trio.Path(made).exists()
