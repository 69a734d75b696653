"""Windows of VS Code, side by side with others."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from acp_gateway.dialects.ahp.connection import AhpConnection
from acp_gateway.dialects.ahp.store import AhpStore
from acp_gateway.dialects.ahp.watched import AhpClient
from acp_gateway.dialects.ahp.wire import ROOT, chat_uri
from acp_gateway.gateway.agent import startup
from acp_gateway.gateway.agent.process import Agent, Spawner
from acp_gateway.gateway.hub.attachment import Disconnect
from acp_gateway.gateway.viewing.open_sessions import CallRefused, OpenSessions
from acp_gateway.gateway.viewing.session_connection import HIGH_WATER
from acp_gateway.gateway.viewing.session_feed import PIECE_SIZE
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.streams import CloseReason
from tests.agents import new_agent
from tests.dialects.ahp.test_from_acp import DIFF, FORM, permission
from tests.dialects.ahp.test_options import MODES, option
from tests.dialects.ahp.windows import AT, FOLDER, Window, text_in, window
from tests.kit.bridging import Bench, MakeBench, editor_in, ends_turn, running, says
from tests.kit.doubles import FakeAgent, ServingAgent, ServingAgents, encode

pytestmark = [pytest.mark.usefixtures("no_bug_showed"), pytest.mark.jumps]

STOP = {"type": "chat/turnCancelled", "turnId": "t1", "duration": 5}
CONFIRM = {"type": "chat/toolCallConfirmed", "turnId": "t1", "toolCallId": "c1", "approved": True}
READ = {"type": "session/isReadChanged", "isRead": True}


@pytest.fixture
async def first(bench: Bench) -> Window:
    """A window that has begun."""
    return await begun(bench)


async def begun(bench: Bench, name: str = "window", **options: Any) -> Window:
    """A window that has begun."""
    found = await window(bench, options.pop("access", None), name, **options)
    found.client_id = name
    await found.begin()
    return found


async def in_turn(bench: Bench, there: Window, name: str = "new") -> tuple[str, ServingAgent, str]:
    """A session whose first turn runs: its URI, its agent, and its id."""
    uri = await there.create(name)
    await there.prompt(uri)
    await there.until(lambda: bench.agents.started)
    agent = bench.agents[0]
    session: str = (await agent.got("session/prompt"))["params"]["sessionId"]
    return uri, agent, session


async def asking(bench: Bench, there: Window, **call: Any) -> tuple[str, ServingAgent, str]:
    """A session whose agent asks for a permission."""
    uri, agent, session = await in_turn(bench, there)
    await agent.send(id="p", method="session/request_permission", params={"sessionId": session, **permission(**call)})
    await there.until(lambda: there.chat(uri).state["status"] == 24)
    return uri, agent, session


async def initialize_again(bench: Bench, former: Window, *subscriptions: str) -> tuple[Window, Any]:
    """The window after a restart of the gateway, which does not know it any more, and the handshake's result."""
    there = await window(bench)
    about = {"clientId": former.client_id, "lastSeenServerSeq": former.seq}
    assert await there.error("reconnect", **about, subscriptions=subscriptions) == -32008
    return there, await there.begin(initialSubscriptions=subscriptions)


async def goes_on(there: Window, uri: str, agents: ServingAgents) -> ServingAgent:
    """Prompt a session again after a restart; return the agent that has got the prompt."""
    assert len(agents.started) == 1
    assert "rejectionReason" not in await there.prompt(uri, "t2", "go on")
    await there.until(lambda: len(agents.started) == 2)
    await agents[1].got("session/prompt")
    return agents[1]


async def answer(there: Window, agent: ServingAgent, request: str = "p") -> Any:
    """The result that the agent gets for its request."""

    def look() -> Any:
        return next((it for it in agent.received if it.get("id") == request and "method" not in it), None)

    while not (found := look()):
        await agent._arrived.park()
    return found["result"]


async def test_stop_wins_over_an_approval_that_comes_right_after_it(bench: Bench, first: Window) -> None:
    uri, agent, _ = await asking(bench, first)
    await first.send(chat_uri(uri), **STOP)
    refused = await first.dispatch(chat_uri(uri), **CONFIRM)
    assert refused["rejectionReason"] == "tool call is not pending confirmation"
    assert (await answer(first, agent))["outcome"]["outcome"] == "cancelled"
    await agent.got("session/cancel")
    (turn,) = await first.turns(uri, "cancelled")
    assert turn["responseParts"][0]["toolCall"]["status"] == "cancelled"
    await first.until(lambda: first.followers[uri].session.state["inputNeeded"] == [])
    assert "selected" not in json.dumps(agent.received)
    # The next prompt has a turn of its own.
    assert "rejectionReason" not in await first.prompt(uri, "t2", "again")
    await says(agent, (await agent.got("session/prompt"))["params"]["sessionId"], "yes")
    await first.until(lambda: text_in(first.chat(uri).snapshot().get("activeTurn", {"responseParts": []})) == "yes")


async def test_the_handshake_tells_versions_agents_and_models(bench: Bench) -> None:
    there = await window(bench)
    assert await there.error("listSessions", channel=ROOT) == -32601
    assert await there.result("ping", channel=ROOT) is None
    assert await there.error("initialize", channel=ROOT, protocolVersions=["0.8.0"], clientId="w") == -32005
    assert await there.error("initialize", channel=ROOT, protocolVersions=["1.0.0"], clientId="") == -32602
    found = await there.begin(protocolVersions=["1.0.0", "0.9.0"])
    assert (found["protocolVersion"], found["defaultDirectory"]) == ("1.0.0", FOLDER)
    (snapshot,) = found["snapshots"]
    (agent,) = snapshot["state"]["agents"]
    assert (agent["provider"], agent["models"][0]["name"]) == ("fake", "As the agent chooses")
    assert await there.error("initialize", channel=ROOT, protocolVersions=["1.0.0"], clientId="w") == -32600
    assert await there.error("createTerminal", channel=ROOT) == -32601
    assert await there.error("subscribe", channel="fake:/none") == -32001
    echo = await there.dispatch(ROOT, type="root/configChanged", config={"http.proxy": ""})
    assert echo["action"]["config"] == {"http.proxy": ""}
    assert "rejectionReason" in await there.dispatch(ROOT, type="root/agentsChanged", agents=[])


async def test_a_session_begins_with_its_first_prompt_under_the_uri_that_its_client_chose(
    bench: Bench, first: Window
) -> None:
    uri = await first.create(config={"isolation": "folder", "mode": "interactive"})
    assert len(bench.agents.started) == 0
    assert (await first.result("listSessions", channel=ROOT))["items"] == []
    echo = await first.prompt(uri)
    assert echo["origin"] == {"clientId": "window", "clientSeq": 1}
    await first.until(lambda: bench.agents.started)
    prompt = (await bench.agents[0].got("session/prompt"))["params"]
    assert (prompt["prompt"], prompt["messageId"]) == ([{"type": "text", "text": "hello"}], "t1")
    await says(bench.agents[0], prompt["sessionId"], "a", "b")
    await ends_turn(bench.agents[0])
    (turn,) = await first.turns(uri, "complete")
    assert (turn["id"], text_in(turn)) == ("t1", "ab")
    (listed,) = (await first.result("listSessions", channel=ROOT))["items"]
    assert (listed["resource"], listed["title"], listed["defaultChat"]) == (uri, "hello", chat_uri(uri))
    assert first.of("root/sessionAdded")[0]["summary"]["resource"] == uri
    # Another window finds it, with its history, under the same name.
    second = await begun(bench, "second")
    await second.open(uri)
    (turn,) = await second.turns(uri, "complete")
    assert (turn["id"], text_in(turn)) == ("t1", "ab")


async def test_a_picture_alone_is_a_prompt(bench: Bench, first: Window) -> None:
    uri = await first.create()
    message = {"attachments": [{"contentType": "image/png", "data": "AA=="}]}
    about = {"type": "chat/turnStarted", "startedAt": AT, "message": message}
    assert "rejectionReason" not in await first.dispatch(chat_uri(uri), **about, turnId="t1")
    await first.until(lambda: bench.agents.started)
    await bench.agents[0].got("session/prompt")
    await ends_turn(bench.agents[0])
    await first.turns(uri, "complete")
    assert "rejectionReason" not in await first.dispatch(chat_uri(uri), **about, turnId="t2")
    assert "rejectionReason" not in await first.dispatch(chat_uri(uri), **STOP | {"turnId": "t2"})
    await first.turns(uri, "complete", "cancelled")


async def test_each_answers_what_the_other_is_asked_too(bench: Bench, first: Window) -> None:
    uri, agent, session = await asking(bench, first, content=[DIFF])
    second = await begun(bench, "second")
    await second.open(uri)
    assert second.chat(uri).state["status"] == 24
    editor = await editor_in(bench, session)
    assert "rejectionReason" not in await second.dispatch(chat_uri(uri), **CONFIRM)
    assert await answer(first, agent) == {"outcome": {"outcome": "selected", "optionId": "yes"}}
    for there in (first, second):
        await there.until(lambda there=there: there.followers[uri].session.state["inputNeeded"] == [])  # type: ignore[misc]
        known = there.chat(uri).call("c1")
        assert known is not None
        assert (known["status"], known["selectedOption"]["id"] if there is first else "yes") == ("running", "yes")
    refused = await first.dispatch(chat_uri(uri), **CONFIRM)
    assert refused["rejectionReason"] == "tool call is not pending confirmation"
    # The other way round.
    await agent.send(id="q", method="session/request_permission", params={"sessionId": session, **permission("c2")})
    while (asked := await editor.receive()).get("params", {}).get("toolCall", {}).get("toolCallId") != "c2":
        pass
    await editor.send(id=asked["id"], result={"outcome": {"outcome": "selected", "optionId": "no"}})
    await first.until(lambda: (it := first.chat(uri).call("c2")) and it["status"] == "cancelled")


async def test_a_form_is_filled_in(bench: Bench, first: Window) -> None:
    uri, agent, session = await in_turn(bench, first)
    form = {"sessionId": session, "mode": "form", "message": "Before", "requestedSchema": FORM}
    await agent.send(id="p", method="elicitation/create", params=form)
    await first.until(lambda: first.chat(uri).state["status"] == 24)
    request = first.actions("chat/inputRequested")[0]["action"]["request"]["id"]
    answers = {"branch": {"state": "submitted", "value": {"kind": "selected", "value": "dev"}}}
    done = {"type": "chat/inputCompleted", "requestId": request, "response": "accept", "answers": answers}
    assert "branch" in (await first.dispatch(chat_uri(uri), **done | {"answers": {}}))["rejectionReason"]
    assert "rejectionReason" not in await first.dispatch(chat_uri(uri), **done)
    assert await answer(first, agent) == {"action": "accept", "content": {"branch": "dev"}}
    await first.until(lambda: first.chat(uri).state["status"] == 8)


async def test_messages_wait_in_the_queue_and_may_be_taken_out(bench: Bench, first: Window) -> None:
    uri, agent, _ = await in_turn(bench, first)
    message = {"text": "later", "origin": {"kind": "user"}}
    waits = {"type": "chat/pendingMessageSet", "message": message}
    assert "queue" in (await first.prompt(uri, "t2"))["rejectionReason"]
    for name, kind in (("m1", "queued"), ("m2", "steering"), ("m3", "queued")):
        assert "rejectionReason" not in await first.dispatch(chat_uri(uri), **waits, id=name, kind=kind)
    await wait_all_tasks_blocked()
    second = await begun(bench, "second")
    await second.open(uri)
    for there in (first, second):
        await there.until(lambda there=there: len(there.chat(uri).state.get("queuedMessages", ())) == 3)  # type: ignore[misc]
    assert "steeringMessage" not in first.chat(uri).state
    order = {"type": "chat/queuedMessagesReordered", "order": ["m3", "m2", "m1"]}
    assert "rejectionReason" not in await first.dispatch(chat_uri(uri), **order)
    await second.until(lambda: [it["id"] for it in second.chat(uri).state["queuedMessages"]] == ["m3", "m2", "m1"])
    gone = {"type": "chat/pendingMessageRemoved", "kind": "queued", "id": "m2"}
    assert "rejectionReason" not in await second.dispatch(chat_uri(uri), **gone)
    await first.until(lambda: [it["id"] for it in first.chat(uri).state["queuedMessages"]] == ["m3", "m1"])
    await ends_turn(agent)
    turns = await first.turns(uri, "complete", "active")
    assert (turns[1]["id"], turns[1]["message"]["text"]) == ("m3", "later")
    await first.until(lambda: [it["id"] for it in first.chat(uri).state["queuedMessages"]] == ["m1"])


async def test_a_client_that_comes_back_gets_what_it_has_missed_and_then_what_is_new(bench: Bench) -> None:
    access = bench.access()
    first = await begun(bench, access=access)
    uri, agent, session = await in_turn(bench, first)
    await says(agent, session, "a")
    await first.until(lambda: text_in(first.chat(uri).snapshot()["activeTurn"]) == "a")
    seen = first.seq
    await says(agent, session, "b")
    await first.until(lambda: first.seq > seen)
    await first.stream.aclose()
    await wait_all_tasks_blocked()
    await says(agent, session, "c")
    wanted = [ROOT, uri, chat_uri(uri), "fake:/gone"]
    again = {"clientId": "window", "lastSeenServerSeq": seen, "subscriptions": wanted}
    for other in (bench.access("ben"), bench.access()):
        assert await (await window(bench, other)).error("reconnect", **again) == -32008
    second = await window(bench, access, "again")
    found = await second.come_back(first, *wanted, seen=seen)
    assert (found["type"], found["missing"]) == ("replay", ["fake:/gone"])
    assert [it["action"]["content"] for it in found["actions"] if it["channel"] == chat_uri(uri)] == ["b"]
    await second.until(lambda: text_in(second.chat(uri).snapshot()["activeTurn"]) == "abc")
    # A client that can't be told what it has missed begins with the present state.
    await second.stream.aclose()
    third = await window(bench, access, "third")
    found = await third.result("reconnect", **again | {"lastSeenServerSeq": 10_000})
    assert (found["type"], found["missing"]) == ("snapshot", ["fake:/gone"])
    (chat,) = [it["state"] for it in found["snapshots"] if it["resource"] == chat_uri(uri)]
    assert text_in(chat["activeTurn"]) == "abc"


async def test_a_prompt_that_was_taken_is_sent_though_the_connection_is_lost_at_once(bench: Bench) -> None:
    access = bench.access()
    first = await begun(bench, access=access)
    uri = await first.create()
    message = {"text": "hello", "origin": {"kind": "user"}}
    await first.send(chat_uri(uri), type="chat/turnStarted", turnId="t1", startedAt=AT, message=message)
    seen = first.seq
    await first.stream.aclose()
    second = await window(bench, access, "again")
    assert (await second.come_back(first, ROOT, uri, chat_uri(uri), seen=seen))["type"] == "replay"
    await second.turns(uri, "active")
    while not bench.agents.started:
        await trio.lowlevel.checkpoint()
    session = (await bench.agents[0].got("session/prompt"))["params"]["sessionId"]
    await says(bench.agents[0], session, "a")
    await ends_turn(bench.agents[0])
    (turn,) = await second.turns(uri, "complete")
    assert text_in(turn) == "a"
    assert [it["method"] for it in bench.agents[0].received].count("session/prompt") == 1


async def test_all_sessions_are_told_a_second_after_the_handshake_to_who_does_not_ask(
    bench: Bench, first: Window
) -> None:
    uri, agent, _ = await in_turn(bench, first)
    await ends_turn(agent)
    await first.turns(uri, "complete")
    second = await begun(bench, "second")
    await second.until(lambda: second.of("root/sessionAdded"))
    assert [it["summary"]["resource"] for it in second.of("root/sessionAdded")] == [uri]
    third = await begun(bench, "third")
    await third.result("listSessions", channel=ROOT)
    await trio.sleep(2)
    assert third.of("root/sessionAdded") == []


async def test_a_prompt_is_taken_once_also_over_a_restart_of_the_gateway(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        bench.agents = loading_agents
        first = await begun(bench)
        uri, agent, session = await in_turn(bench, first)
        assert "taken already" in (await first.prompt(uri))["rejectionReason"]
        await says(agent, session, "done")
        await ends_turn(agent)
        await first.turns(uri, "complete")
        await wait_all_tasks_blocked()
    async with running(tmp_path, spawner) as bench:
        bench.agents = loading_agents
        there, _ = await initialize_again(bench, first, ROOT)
        await there.open(uri)
        (turn,) = await there.turns(uri, "complete")
        assert (turn["id"], text_in(turn)) == ("t1", "done")
        assert "taken already" in (await there.prompt(uri))["rejectionReason"]
        await goes_on(there, uri, loading_agents)
        await there.turns(uri, "complete", "active")


async def test_a_turn_that_a_restart_of_the_gateway_ends_is_told_once_and_its_session_goes_on(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        bench.agents = loading_agents
        first = await begun(bench)
        uri, agent, session = await in_turn(bench, first)
        await says(agent, session, "half")
        await first.until(lambda: text_in(first.chat(uri).snapshot()["activeTurn"]) == "half")
    async with running(tmp_path, spawner) as bench:
        bench.agents = loading_agents
        there, found = await initialize_again(bench, first, ROOT, uri, chat_uri(uri))
        (chat,) = [it["state"] for it in found["snapshots"] if it["resource"] == chat_uri(uri)]
        assert "activeTurn" not in chat
        (turn,) = chat["turns"]
        assert (turn["id"], turn["state"], text_in(turn)) == ("t1", "error", "half")
        assert "taken already" in (await there.prompt(uri))["rejectionReason"]
        await there.open(uri)
        agent = await goes_on(there, uri, loading_agents)
        await says(agent, session, "whole")
        await ends_turn(agent)
        turns = await there.turns(uri, "error", "complete")
        assert [text_in(turn) for turn in turns] == ["half", "whole"]
        prompts = [it["params"]["messageId"] for agent in loading_agents.started for it in agent.prompts]
        assert prompts == ["t1", "t2"]


class Speaking(new_agent.Agent):
    """An agent of version 2 whose messages go to a stream."""

    def __init__(self, folder: Path, stream: MaintainedStream) -> None:
        super().__init__(folder)
        self.stream = stream

    def send(self, **members: Any) -> None:
        self.stream.send_nowait([encode(members)])


async def run_new_agent(folder: Path, heard: list[str], *_: object, task_status: trio.TaskStatus[Agent]) -> None:
    """Run an agent of version 2 in memory, which keeps its sessions in a folder; `heard` gets the methods."""
    agent = FakeAgent()

    async def serve() -> None:
        speaking = Speaking(folder, agent.stream)
        async for batch in agent.stream:
            for message in map(json.loads, batch):
                heard.append(message.get("method", ""))
                speaking.receive(message)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        await agent.run(task_status=task_status)


async def test_an_agent_of_version_2_is_prompted_asked_stopped_and_read_again_after_a_restart(
    tmp_path: Path, spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sessions").mkdir()
    heard: list[str] = []
    monkeypatch.setattr(startup, "run_agent", partial(run_new_agent, tmp_path / "sessions", heard))
    said = [("hello", "you said hello"), ("ask", "decided yes"), ("wait", ""), ("late", "you said late")]

    def read(turns: list[dict[str, Any]]) -> list[tuple[str, str]]:
        return [(turn["message"]["text"], text_in(turn)) for turn in turns]

    states = ("complete", "complete", "cancelled", "complete", "complete")
    async with running(tmp_path, spawner) as bench:
        first = await begun(bench)
        uri = await first.create()
        await first.prompt(uri, "t1", "hello")
        await first.turns(uri, "complete")
        await first.prompt(uri, "t2", "ask")
        await first.until(lambda: first.chat(uri).state["status"] == 24)
        (asked,) = first.chat(uri).snapshot()["activeTurn"]["responseParts"]
        assert asked["toolCall"]["confirmationTitle"] == "Run it?"
        confirm = CONFIRM | {"turnId": "t2", "toolCallId": asked["toolCall"]["toolCallId"]}
        assert "rejectionReason" not in await first.dispatch(chat_uri(uri), **confirm)
        await first.turns(uri, "complete", "complete")
        await first.prompt(uri, "t3", "wait")
        while heard.count("session/prompt") < 3:
            await trio.lowlevel.checkpoint()
        assert "rejectionReason" not in await first.dispatch(chat_uri(uri), **STOP | {"turnId": "t3"})
        await first.turns(uri, *states[:3])
        assert "rejectionReason" not in await first.prompt(uri, "t4", "late")
        # What it says by itself is a turn of its own.
        turns = await first.turns(uri, *states)
        assert read(turns) == [*said, ("", "and another thing")]
        assert [turn["id"] for turn in turns[:4]] == ["t1", "t2", "t3", "t4"]
        second = await begun(bench, "second")
        await second.open(uri)
        assert read(await second.turns(uri, *states)) == read(turns)
        await wait_all_tasks_blocked()
    async with running(tmp_path, spawner) as bench:
        there = await begun(bench)
        (listed,) = (await there.result("listSessions", channel=ROOT))["items"]
        assert (listed["resource"], listed["title"]) == (uri, "hello")
        await there.open(uri)
        assert read(await there.turns(uri, *states)) == read(turns)
        assert "taken already" in (await there.prompt(uri, "t4"))["rejectionReason"]
        await there.prompt(uri, "t5", "again")
        assert read(await there.turns(uri, *states, "complete"))[-1] == ("again", "you said again")


async def test_a_message_goes_into_the_turn_that_runs_where_the_agent_takes_it(
    tmp_path: Path, spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def takes(self: ServingAgent, to: Any, method: str) -> None:
        if method == "session/inject":
            await self.send(id=to, result={"messageId": "agent-1"})
        else:
            await original(self, to, method)

    agents, original = ServingAgents(sessionCapabilities={"inject": {"modes": ["steer"]}}), ServingAgent._answer
    monkeypatch.setattr(startup, "run_agent", agents.run)
    monkeypatch.setattr(ServingAgent, "_answer", takes)
    async with running(tmp_path, spawner) as bench:
        bench.agents = agents
        first = await begun(bench)
        uri, agent, session = await in_turn(bench, first)
        message = {"text": "left", "origin": {"kind": "user"}}
        waits = {"type": "chat/pendingMessageSet", "kind": "steering", "id": "m1", "message": message}
        assert "rejectionReason" not in await first.dispatch(chat_uri(uri), **waits)
        asked = (await agent.got("session/inject"))["params"]
        assert (asked["content"], asked["mode"]) == ([{"type": "text", "text": "left"}], "steer")
        turns = await first.turns(uri, "complete", "active")
        assert [turn["id"] for turn in turns] == ["t1", "m1"]
        assert not first.chat(uri).state.keys() & {"steeringMessage", "queuedMessages"}
        await says(agent, session, "gone left")
        await ends_turn(agent)
        turns = await first.turns(uri, "complete", "complete")
        assert text_in(turns[1]) == "gone left"
        assert len(agent.prompts) == 1


async def test_a_turn_whose_prompt_can_not_be_sent_says_why(
    bench: Bench, first: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuses(self: ServingAgent, to: Any, method: str) -> None:
        if method == "session/new":
            await self.send(id=to, error={"code": -32000, "message": "log in on the box"})
        else:
            await original(self, to, method)

    original = ServingAgent._answer
    uri = await first.create()
    with monkeypatch.context() as patched:
        patched.setattr(ServingAgent, "_answer", refuses)
        await first.prompt(uri)
        (turn,) = await first.turns(uri, "error")
    assert turn["error"]["message"].startswith("log in on the box")
    assert "rejectionReason" not in await first.prompt(uri, "t2")
    await bench.agents[0].got("session/prompt")


async def test_what_may_be_chosen_is_kept_for_the_next_session(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    models = {"currentModelId": "big", "availableModels": [{"modelId": "big"}, {"modelId": "small"}]}
    result = {"modes": MODES, "models": models, "configOptions": [option("effort")]}
    original = ServingAgent._answer

    async def answers(self: ServingAgent, to: Any, method: str) -> None:
        if method == "session/new":
            await self.send(id=to, result={"sessionId": f"s{to}", **result})
        elif method == "session/set_config_option":
            await self.send(id=to, result={"configOptions": [option("effort", currentValue="high")]})
        else:
            await original(self, to, method)

    monkeypatch.setattr(ServingAgent, "_answer", answers)
    first = await begun(bench)
    uri, agent, _ = await in_turn(bench, first)
    await first.until(lambda: first.actions("root/agentsChanged"))
    (agents,) = [it["action"]["agents"] for it in first.actions("root/agentsChanged")]
    assert [it["id"] for it in agents[0]["models"]] == ["big", "small"]
    await ends_turn(agent)
    await first.turns(uri, "complete")
    resolved = await first.result("resolveSessionConfig", channel=ROOT, provider="fake", config={"mode": "code"})
    assert resolved["values"] == {"mode": "code", "effort": "low"}
    # They stand before a session has begun, and are set when it does, with the model of the prompt.
    second = await first.create("second", config={"mode": "code"})
    assert first.followers[second].session.state["config"]["values"] == {"mode": "code", "effort": "low"}
    chosen = {"type": "session/configChanged", "config": {"effort": "high"}}
    assert "rejectionReason" not in await first.dispatch(second, **chosen)
    await first.prompt(second, "t2", model={"id": "small"})
    await agent.got("session/set_model")
    sent = [it["params"] for it in agent.received if it.get("method", "").startswith("session/set_")]
    assert [{*it.values()} - {it["sessionId"]} for it in sent] == [{"code"}, {"effort", "high"}, {"small"}]
    odd = {"type": "session/configChanged", "config": {"effort": "huge"}}
    assert "not offer" in (await first.dispatch(second, **odd))["rejectionReason"]
    values = first.followers[second].session.state["config"]["values"]
    await first.until(lambda: values == {"mode": "code", "effort": "high"})


async def test_observers_look_and_set_read_marks(bench: Bench, first: Window) -> None:
    uri, agent, _ = await asking(bench, first)
    for access, wanted in ((bench.access(role="observer"), {}), (bench.access(), {"observe": True})):
        there = await begun(bench, f"observer {wanted}", access=access, **wanted)
        follower = await there.open(uri)
        assert follower.chat.state["interactivity"] == "read-only"
        for action in (STOP, CONFIRM, {"type": "chat/draftChanged", "draft": {"text": "x"}}):
            assert (await there.dispatch(chat_uri(uri), **action))["rejectionReason"] == "observers may only look"
        assert "rejectionReason" not in await there.dispatch(uri, **READ)
        assert await there.error("createSession", channel="fake:/x", provider="fake") == -32009
    assert first.chat(uri).state["status"] == 24
    assert not any("result" in it for it in agent.received)
    status = first.of("root/sessionSummaryChanged")[-1]["changes"]["status"]
    assert status == 56


async def test_a_guest_has_its_one_session(bench: Bench, first: Window) -> None:
    uri, _, session = await in_turn(bench, first)
    other, _, _ = await in_turn(bench, first, "other")
    guest = await begun(bench, "guest", access=bench.guest(session))
    assert [it["resource"] for it in (await guest.result("listSessions", channel=ROOT))["items"]] == [uri]
    assert await guest.error("subscribe", channel=other) == -32001
    assert await guest.error("createSession", channel="fake:/x", provider="fake") == -32009
    await guest.open(uri)
    assert "guest" in (await guest.dispatch(uri, type="session/titleChanged", title="x"))["rejectionReason"]
    assert "rejectionReason" not in await guest.dispatch(chat_uri(uri), **STOP)
    await first.turns(uri, "cancelled")


async def test_a_session_that_has_not_begun_is_there_for_those_who_might_create_it(bench: Bench, first: Window) -> None:
    _, _, session = await in_turn(bench, first)
    uri = await first.create("secret")
    narrow = replace(bench.access(), workspaces=("other",))
    for access, code in ((bench.guest(session), -32009), (bench.access(agents=("x",)), -32002), (narrow, -32003)):
        there = await begun(bench, f"narrow {code}", access=access)
        for method in ("subscribe", "disposeSession"):
            assert await there.error(method, channel=uri) == -32001
        about = {"channel": uri, "provider": "fake", "workingDirectories": [FOLDER]}
        assert await there.error("createSession", **about) == code
    await (await begun(bench, "second")).open(uri)
    wide = await begun(bench, "wide", access=replace(bench.access(), workspaces=("everything",)))
    await wide.open(uri)
    # What a client leaves is not kept for it.
    found = [it for it in bench.gateway.services.inputs if isinstance(it, AhpClient)]
    (client,) = [it for it in found if it.envelopes.client_id == "wide"]
    assert [*client.watched] == [uri]
    for channel in (uri, chat_uri(uri)):
        await wide.result("unsubscribe", channel=channel)
    assert [*client.watched] == []


async def test_prompts_that_are_not_sent_yet_count_in_the_memory(
    bench: Bench, first: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = await first.create()

    async def new(*_: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(OpenSessions, "new", new)
    await first.prompt(uri, text="x" * 100_000)
    assert sum(it.input_bytes for it in bench.gateway.services.inputs if isinstance(it, AhpConnection)) > 100_000


async def test_beyond_the_memory_limit_nothing_stays_of_a_window(bench: Bench, first: Window) -> None:
    await in_turn(bench, first)
    await first.result("listSessions", channel=ROOT)
    (client,) = [it for it in bench.gateway.services.inputs if isinstance(it, AhpClient)]
    assert (len(client.listed), client.input_bytes > 0) == (1, True)
    client.close(Disconnect(CloseReason.POLICY, "memory_limit"))
    assert client.input_bytes == 0


async def test_stop_wins_over_a_prompt_that_another_connection_was_about_to_send(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    access, released, new = bench.access(), trio.Event(), OpenSessions.new
    first = await begun(bench, access=access)

    async def later(*args: Any) -> Any:
        await released.wait()
        return await new(*args)

    monkeypatch.setattr(OpenSessions, "new", later)
    uri = await first.create()
    await first.prompt(uri)
    again = await window(bench, access)
    await again.come_back(first, ROOT, uri, chat_uri(uri))
    assert "rejectionReason" not in await again.dispatch(chat_uri(uri), **STOP)
    await wait_all_tasks_blocked()
    released.set()
    while not bench.agents.started:
        await trio.lowlevel.checkpoint()
    await bench.agents[0].got("session/new")
    await wait_all_tasks_blocked()
    assert "session/prompt" not in [it.get("method") for it in bench.agents[0].received]
    # What comes after it is sent.
    await again.prompt(uri, "t2", "go on")
    assert (await bench.agents[0].got("session/prompt"))["params"]["messageId"] == "t2"


async def behind_a_snapshot(bench: Bench, monkeypatch: pytest.MonkeyPatch, held: str, does: Any = None) -> Any:
    """A window that has begun from a snapshot while its prompt is on its way, the session, and what lets that go on.

    `held` is the method that the prompt waits in, which begins the session or sends the prompt.
    """
    access, released, original = bench.access(), trio.Event(), getattr(OpenSessions, held)
    first = await begun(bench, access=access)
    uri = await first.create()
    if held == "prompt":
        await first.prompt(uri, "t0")
        await first.until(lambda: bench.agents.started)
        await ends_turn(bench.agents[0])
        await first.turns(uri, "complete")

    async def later(*args: Any) -> Any:
        await released.wait()
        return await (does or original)(*args)

    monkeypatch.setattr(OpenSessions, held, later)
    await first.prompt(uri)
    wanted = [ROOT, uri, chat_uri(uri)]
    again = await window(bench, access)
    again.client_id, again._last_seq = "window", first._last_seq
    found = await again.result("reconnect", clientId="window", lastSeenServerSeq=10_000, subscriptions=wanted)
    (chat,) = [it["state"] for it in found["snapshots"] if it["resource"] == chat_uri(uri)]
    assert (found["type"], chat["activeTurn"]["id"]) == ("snapshot", "t1")
    return again, uri, released


@pytest.mark.parametrize("held", ["new", "prompt"])
async def test_stop_wins_over_a_prompt_on_its_way_though_the_window_has_begun_from_a_snapshot_since(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, held: str
) -> None:
    again, uri, released = await behind_a_snapshot(bench, monkeypatch, held)
    assert "rejectionReason" not in await again.dispatch(chat_uri(uri), **STOP)
    released.set()
    while not bench.agents.started:
        await trio.lowlevel.checkpoint()
    # It was not sent, or it is cancelled; what comes after it is sent.
    assert "rejectionReason" not in await again.prompt(uri, "t2", "go on")
    while (await bench.agents[0].got("session/prompt"))["params"]["messageId"] != "t2":
        await bench.agents[0]._arrived.park()
    told = [it.get("params", {}).get("messageId", it.get("method")) for it in bench.agents[0].received]
    assert [it for it in told if it in ("t1", "session/cancel", "t2")] == [
        *([] if held == "new" else ["t1", "session/cancel"]),
        "t2",
    ]
    await says(bench.agents[0], bench.agents[0].received[-1]["params"]["sessionId"], "yes")
    await again.until(lambda: [it for it in again.actions("chat/delta") if it["action"]["content"] == "yes"])


@pytest.mark.parametrize("held", ["new", "prompt"])
async def test_a_prompt_that_fails_fails_its_turn_though_the_window_has_begun_from_a_snapshot_since(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, held: str
) -> None:
    async def fails(*_: object) -> None:
        raise CallRefused(-32603, "the agent has ended")

    again, _, released = await behind_a_snapshot(bench, monkeypatch, held, fails)
    released.set()
    await again.until(lambda: again.actions("chat/error"))
    assert again.actions("chat/error")[0]["action"]["error"]["message"] == "the agent has ended"


async def test_a_session_is_left_once_all_is_carried_out_that_was_dispatched_in_it(
    bench: Bench, first: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, new = trio.Event(), OpenSessions.new

    async def later(*args: Any) -> Any:
        await released.wait()
        return await new(*args)

    monkeypatch.setattr(OpenSessions, "new", later)
    uri = await first.create()
    await first.prompt(uri)
    for channel in (uri, chat_uri(uri)):
        await first.result("unsubscribe", channel=channel)
    (client,) = [it for it in bench.gateway.services.inputs if isinstance(it, AhpClient)]
    assert [*client.watched] == [uri]
    released.set()
    while client.watched:
        await trio.lowlevel.checkpoint()
    assert (await bench.agents[0].got("session/prompt"))["params"]["messageId"] == "t1"
    # It is there again with its turn.
    follower = await first.open(uri)
    assert follower.chat.snapshot()["activeTurn"]["id"] == "t1"


async def test_a_window_comes_back_through_another_gateway(bench: Bench) -> None:
    access = bench.access()
    there = await begun(bench, access=access, request_id="a")
    again = await window(bench, access, request_id="b")
    assert (await again.come_back(there, ROOT))["type"] == "replay"


async def test_nothing_of_another_identity_is_told(bench: Bench, first: Window) -> None:
    uri, _, _ = await in_turn(bench, first)
    ben = await begun(bench, "ben", access=bench.access("ben"))
    assert (await ben.result("listSessions", channel=ROOT))["items"] == []
    for channel in (uri, chat_uri(uri)):
        assert await ben.error("subscribe", channel=channel) == -32001
        await ben.send(channel, **STOP)
    # The same URI is free for a session of its own.
    await ben.create()
    await wait_all_tasks_blocked()
    assert ben.told == []


async def test_sessions_are_disposed_of_until_they_have_begun(bench: Bench, first: Window) -> None:
    uri = await first.create()
    assert await first.error("createSession", channel=uri, provider="fake", workingDirectories=[FOLDER]) == -32003
    await first.result("disposeSession", channel=uri)
    assert await first.error("subscribe", channel=uri) == -32001
    assert await first.error("disposeSession", channel=uri) == -32001
    begun_one, _, _ = await in_turn(bench, first, "other")
    assert await first.error("disposeSession", channel=begun_one) == -32011
    assert first.of("root/sessionRemoved") == []
    for params in (
        {"provider": "gone"},
        {"channel": "other:/x"},
        {"channel": "fake:/a b"},
        {"workingDirectories": ["x:y"]},
    ):
        about = {"channel": "fake:/x", "provider": "fake", "workingDirectories": [FOLDER]}
        assert await first.error("createSession", **about | params) in (-32002, -32602)


async def test_marks_titles_and_drafts_are_told_and_kept(bench: Bench, first: Window) -> None:
    uri, agent, _ = await in_turn(bench, first)
    second = await begun(bench, "second")
    await second.open(uri)
    draft = {"text": "not yet", "origin": {"kind": "user"}}
    await first.dispatch(chat_uri(uri), type="chat/draftChanged", draft=draft)
    await first.dispatch(uri, type="session/titleChanged", title="Another title")
    await first.dispatch(uri, **READ)
    await first.dispatch(uri, type="session/isArchivedChanged", isArchived=True)
    state = second.followers[uri].session.state
    await second.until(lambda: (state["title"], state["status"] & 96) == ("Another title", 96))
    third = await begun(bench, "third")
    follower = await third.open(uri)
    assert (follower.chat.state["draft"], follower.chat.state["title"]) == (draft, "Another title")
    assert await third.result("completions", channel=chat_uri(uri), kind="userMessage", text="/", offset=1) == {
        "items": []
    }
    await ends_turn(agent)
    await second.until(lambda: state["status"] & 32 == 0)


async def test_commands_are_completed_behind_a_slash(bench: Bench, first: Window) -> None:
    uri, agent, session = await in_turn(bench, first)
    commands = [{"name": "review", "description": "d"}, {"name": "test"}]
    update = {"sessionUpdate": "available_commands_update", "availableCommands": commands}
    await agent.send(method="session/update", params={"sessionId": session, "update": update})
    await says(agent, session, "x")
    await first.until(lambda: first.actions("chat/delta"))
    about = {"channel": chat_uri(uri), "kind": "userMessage"}
    found = await first.result("completions", **about, text="/re", offset=3)
    assert found == {"items": [{"insertText": "/review ", "rangeStart": 0, "rangeEnd": 3}]}
    for text in ("re", "a /re", "/review x", "/x"):
        assert await first.result("completions", **about, text=text, offset=len(text)) == {"items": []}


async def test_the_texts_of_changes_and_the_files_of_sessions_are_read(
    bench: Bench, first: Window, tmp_path: Path
) -> None:
    uri, agent, session = await asking(bench, first, content=[DIFF])
    call = first.chat(uri).call("c1")
    assert call is not None
    (edit,) = call["edits"]["items"]
    for side, expected in (("before", "old"), ("after", "new")):
        found = await first.result("resourceRead", channel=ROOT, uri=edit[side]["content"]["uri"], encoding="utf-8")
        assert found == {"data": expected, "encoding": "utf-8", "contentType": "text/plain"}
    update = {"sessionUpdate": "tool_call_update", "toolCallId": "c1", "status": "completed", "content": [DIFF]}
    await agent.send(method="session/update", params={"sessionId": session, "update": update})
    await first.dispatch(chat_uri(uri), **STOP)
    await wait_all_tasks_blocked()
    where = edit["after"]["content"]["uri"]
    found = await first.result("resourceRead", channel=ROOT, uri=where, encoding="base64")
    assert (found["data"], found["encoding"]) == ("bmV3", "base64")
    for odd in (
        where.replace("/0/", "/7/"),
        where.replace("c1", "c9"),
        f"{chat_uri('fake:/gone')}/edit/c1/0/after/a",
        "x:y",
    ):
        assert await first.error("resourceRead", channel=ROOT, uri=odd) == -32008
    # Of a session that the client sees, and through the same checks as the page's files.
    file = tmp_path / "a b.txt"
    file.write_text("text")
    assert (await first.result("resourceRead", channel=ROOT, uri=file.as_uri()))["data"] == "text"
    assert await first.error("resourceRead", channel=ROOT, uri=(tmp_path / "gone").as_uri()) == -32008
    secret = tmp_path / ".env"
    secret.write_text("key")
    assert await first.error("resourceRead", channel=ROOT, uri=secret.as_uri()) == -32009
    ben = await begun(bench, "ben", access=bench.access("ben"))
    assert await ben.error("resourceRead", channel=ROOT, uri=file.as_uri()) == -32009
    assert await ben.error("resourceRead", channel=ROOT, uri=where) == -32008


async def test_a_window_that_reads_slowly_is_told_in_pieces_and_misses_nothing(bench: Bench, first: Window) -> None:
    uri, agent, session = await in_turn(bench, first)
    slow = await window(bench, name="slow", reads=False)
    for number, (method, params) in enumerate(
        [
            ("initialize", {"channel": ROOT, "protocolVersions": ["0.9.0"], "clientId": "slow"}),
            ("subscribe", {"channel": uri}),
            ("subscribe", {"channel": chat_uri(uri)}),
        ]
    ):
        await slow.stream.send(json.dumps({"id": number, "method": method, "params": params}).encode())
        await wait_all_tasks_blocked()
    count, size = 100, 20_000
    for number in range(count):
        await says(agent, session, f"{number:0{size}}")
        await first.until(lambda number=number: len(text_in(first.chat(uri).snapshot()["activeTurn"])) > number * size)  # type: ignore[misc]
    assert slow.pending_bytes < HIGH_WATER + 4 * PIECE_SIZE
    bench.nursery.start_soon(slow.read)
    await slow.until(lambda: sum(len(it["action"]["content"]) for it in slow.actions("chat/delta")) == count * size)


ACTIONS: list[dict[str, Any]] = [
    {"type": "chat/turnStarted", "turnId": "t1", "startedAt": AT, "message": {"text": "x"}},
    {"type": "chat/turnCancelled", "turnId": "t9", "duration": 1},
    CONFIRM | {"turnId": "t9"},
    CONFIRM | {"toolCallId": "c9"},
    CONFIRM | {"selectedOptionId": "c9"},
    {"type": "chat/inputCompleted", "requestId": "r9", "response": "accept"},
    {"type": "chat/inputAnswerChanged", "requestId": "r9", "questionId": "q"},
    {"type": "chat/pendingMessageSet", "kind": "queued", "id": "t1", "message": {"text": "x"}},
    {"type": "chat/pendingMessageRemoved", "kind": "queued", "id": "m9"},
    {"type": "chat/queuedMessagesReordered", "order": ["m9"]},
    {"type": "chat/draftChanged", "draft": 1},
    {"type": "chat/truncated"},
    {"type": "chat/turnResume", "turnId": "t1"},
    {"type": "chat/delta", "turnId": "t1", "partId": "p", "content": "x"},
    {"type": "chat/turnComplete", "turnId": "t1", "duration": 1},
    {"type": "session/titleChanged", "title": "x"},
    {"type": ""},
]


@pytest.mark.parametrize("ended", [False, True])
async def test_each_dispatch_that_does_not_fit_has_one_rejection_that_no_other_client_sees(
    bench: Bench, first: Window, ended: bool
) -> None:
    uri, agent, _ = await asking(bench, first)
    second = await begun(bench, "second")
    await second.open(uri)
    if ended:
        await first.dispatch(chat_uri(uri), **STOP)
        await second.turns(uri, "cancelled")
    await wait_all_tasks_blocked()
    before = first.seq, second.seq, len(second.told), len(agent.received), first.chat(uri).snapshot()
    for action in [*ACTIONS, *([STOP, CONFIRM] if ended else [])] * 2:
        assert (await first.dispatch(chat_uri(uri), **action))["rejectionReason"], action
    await wait_all_tasks_blocked()
    assert (first.seq, second.seq, len(second.told), len(agent.received), first.chat(uri).snapshot()) == before
    rejections = [it for it in first.actions() if "rejectionReason" in it]
    assert len(rejections) == 2 * len(ACTIONS) + (4 if ended else 0)


async def test_a_window_takes_over_from_a_connection_that_is_not_known_to_be_lost(bench: Bench) -> None:
    access = bench.access()
    first = await begun(bench, access=access)
    uri, agent, session = await in_turn(bench, first)
    second = await window(bench, access, "again")
    found = await second.come_back(first, ROOT, uri, chat_uri(uri))
    assert found["type"] == "replay"
    await wait_all_tasks_blocked()
    assert first.ended
    await says(agent, session, "a")
    await second.until(lambda: text_in(second.chat(uri).snapshot()["activeTurn"]) == "a")
    assert "rejectionReason" not in await second.dispatch(chat_uri(uri), **STOP)


async def test_a_window_that_lags_behind_what_is_kept_begins_from_a_snapshot_that_says_so(
    make_bench: MakeBench,
) -> None:
    async with make_bench(journal_limit=1_000_000) as bench:
        access = bench.access()
        first = await begun(bench, access=access)
        uri, agent, session = await in_turn(bench, first)
        slow = await window(bench, access, "slow", reads=False)
        for number, (method, params) in enumerate(
            [
                ("initialize", {"channel": ROOT, "protocolVersions": ["0.9.0"], "clientId": "slow"}),
                ("subscribe", {"channel": chat_uri(uri)}),
            ]
        ):
            await slow.stream.send(json.dumps({"id": number, "method": method, "params": params}).encode())
            await wait_all_tasks_blocked()
        for number in range(150):
            await says(agent, session, f"{number:020000}")
            await first.until(lambda number=number: len(first.actions("chat/delta")) > number)  # type: ignore[misc]
        bench.nursery.start_soon(slow.read)
        while not slow.ended:
            await slow._news.park()
        again = await window(bench, access, "again")
        about = {"clientId": "slow", "lastSeenServerSeq": slow.seq, "subscriptions": [chat_uri(uri)]}
        found = await again.result("reconnect", **about)
        (snapshot,) = found["snapshots"]
        turns = snapshot["state"]["turns"]
        assert (found["type"], [turn["id"] for turn in turns]) == ("snapshot", ["left-out"])
        assert "not shown here" in text_in(turns[0])
        assert text_in(snapshot["state"]["activeTurn"]).endswith("00149")


async def test_a_session_that_is_deleted_is_forgotten_with_its_name(
    bench: Bench, first: Window, tmp_path: Path
) -> None:
    uri, agent, session = await in_turn(bench, first)
    await ends_turn(agent)
    await first.turns(uri, "complete")
    file = tmp_path / "state" / "ahp.json"
    assert all(it in file.read_text() for it in (uri, session, '"t1"'))
    page = await bench.page(bench.access())
    await page.result("session/delete", sessionId=session)
    await first.until(lambda: first.of("root/sessionRemoved"))
    await bench.gateway.services.one(AhpStore, bench.gateway).save()
    assert not any(it in file.read_text() for it in (uri, '"t1"'))
    assert await first.error("subscribe", channel=uri) == -32001
    assert file.stat().st_mode & 0o777 == 0o600
