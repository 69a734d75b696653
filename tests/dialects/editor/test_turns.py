"""Messages of editors as turns: which supersedes which, who decides, and what an editor's leaving does."""

import json
import math
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.dialects.editor import answers as editor_answers
from acp_gateway.dialects.editor import turns as editor_turns
from acp_gateway.dialects.editor.service import EditorSection
from acp_gateway.dialects.editor.sessions import Composers, EditorSessions, viewer_of
from acp_gateway.dialects.editor.turns import CANCELLED, LAGGED, EditorTurn, Lanes, Outcome, WaitingMessage
from acp_gateway.gateway.agent import startup
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.protocol.jsonrpc import Message
from tests.dialects.editor.editing import serving_editors
from tests.fuzz.effort import effort
from tests.kit.bridging import asks, editor_in, ends_turn, running, says, spawner_in
from tests.kit.doubles import ServingAgent, ServingAgents

pytestmark = pytest.mark.usefixtures("no_bug_showed", "heads_at_once")


async def prompts(agent: ServingAgent, count: int) -> list[dict[str, Any]]:
    """The first prompts that an agent has got."""
    while len(found := [it for it in agent.received if it.get("method") == "session/prompt"]) < count:
        await agent._arrived.park()
    return found[:count]


def of_method(agent: ServingAgent, method: str) -> list[dict[str, Any]]:
    return [it for it in agent.received if it.get("method") == method]


async def started(agents: ServingAgents) -> ServingAgent:
    while not agents.started:
        await trio.lowlevel.checkpoint()
    return agents[0]


async def test_a_second_message_cancels_the_first_and_waits_for_its_end(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with serving_editors(tmp_path, spawner) as there:
        editor = there.http()
        async with editor.sent("one") as first:
            agent = await started(agents)
            (prompt,) = await prompts(agent, 1)
            session = prompt["params"]["sessionId"]
            await says(agent, session, "begun")
            await first.next()
            async with editor.sent("two") as second:
                assert (await first.rest())[-1] == {"type": "done", "stopReason": "cancelled", "seq": 2}
                _, prompt = await prompts(agent, 2)
                assert prompt["params"] == {"sessionId": session, "prompt": [{"type": "text", "text": "two"}]}
                await says(agent, session, "answer")
                await ends_turn(agent)
                assert [line["type"] for line in await second.rest()] == ["text", "done"]
                assert second.text == "answer"
    assert len(of_method(agent, "session/cancel")) == 1


async def test_of_three_messages_at_once_the_last_runs(tmp_path: Path, spawner: Spawner, agents: ServingAgents) -> None:
    async with serving_editors(tmp_path, spawner) as there:
        editor = there.http()
        async with editor.sent("one") as first:
            agent = await started(agents)
            await prompts(agent, 1)
            agent._prompts, kept = [], agent._prompts  # It ends no turn when that is cancelled.
            async with editor.sent_unread("two") as second:
                await agent.got("session/cancel")
                async with editor.sent_unread("three") as third:
                    assert (await (await second.begin()).rest())[-1]["stopReason"] == "cancelled"
                    await agent.send(id=kept.pop(), result={"stopReason": "cancelled"})
                    assert (await first.rest())[-1]["stopReason"] == "cancelled"
                    _, prompt = await prompts(agent, 2)
                    assert prompt["params"]["prompt"][0]["text"] == "three"
                    await ends_turn(agent)
                    assert (await (await third.begin()).rest())[-1]["stopReason"] == "end_turn"


async def test_messages_of_two_composers_run_beside_each_other(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with serving_editors(tmp_path, spawner) as there:
        editor = there.http()
        async with editor.sent(composer="a") as one, editor.sent(composer="b") as two:
            agent = await started(agents)
            a, b = [it["params"]["sessionId"] for it in await prompts(agent, 2)]
            assert a != b
            await says(agent, b, "for two")
            assert (await two.next())["content"] == "for two"
            await says(agent, a, "for one")
            assert (await one.next())["content"] == "for one"
    assert one.text + two.text == "for onefor two"


async def test_an_editor_that_leaves_cancels_its_turn(tmp_path: Path, spawner: Spawner, agents: ServingAgents) -> None:
    async with serving_editors(tmp_path, spawner) as there:
        async with there.http().sent() as turn:
            agent = await started(agents)
            (prompt,) = await prompts(agent, 1)
            session = prompt["params"]["sessionId"]
            await says(agent, session, "begun")
            await turn.next()
        assert (await agent.got("session/cancel"))["params"] == {"sessionId": session}
        # It can go on afterwards.
        async with there.http().sent("again") as turn:
            await prompts(agent, 2)
            await ends_turn(agent)
            assert (await turn.rest())[-1]["stopReason"] == "end_turn"
    assert len(of_method(agent, "session/cancel")) == 1


async def test_an_editor_that_leaves_without_stream_cancels_its_turn(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with serving_editors(tmp_path, spawner) as there, trio.open_nursery() as nursery:
        nursery.start_soon(there.http().ask)
        agent = await started(agents)
        await prompts(agent, 1)
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await agent.got("session/cancel")


async def test_a_message_waits_for_the_turn_of_another_client_and_leaves_it_alone(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with serving_editors(tmp_path, spawner) as there:
        editor = there.http()
        session = (await editor.answer("getSession", {"provider": {"id": "fake"}, "composerId": "c"}))["sessionId"]
        agent = loading_agents[0]
        other = await editor_in(there, session)
        await other.send(id="p", method="session/prompt", params={"sessionId": session, "prompt": []})
        (await prompts(agent, 1))
        async with editor.sent_unread("mine") as waiting:
            await there.until_queued(session)
            await says(agent, session, "for the other")
            async with editor.sent_unread("mine again") as mine:
                assert (await (await waiting.begin()).rest())[-1]["stopReason"] == "cancelled"
                await there.until_queued(session)
                await ends_turn(agent)
                _, prompt = await prompts(agent, 2)
                assert prompt["params"]["prompt"][0]["text"] == "mine again"
                await says(agent, session, "for me")
                await ends_turn(agent)
                turn = await mine.begin()
                assert [line.get("content") for line in await turn.rest()] == ["for me", None]
        assert of_method(agent, "session/cancel") == []


async def test_the_turn_that_follows_at_once_is_not_told(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with serving_editors(tmp_path, spawner) as there, there.http().sent("mine") as turn:
        agent = await started(loading_agents)
        (prompt,) = await prompts(agent, 1)
        session = prompt["params"]["sessionId"]
        other = await editor_in(there, session)
        await other.send(id="p", method="session/prompt", params={"sessionId": session, "prompt": []})
        await there.until_queued(session)
        ended = {"jsonrpc": "2.0", "id": agent._prompts.pop(), "result": {"stopReason": "end_turn"}}
        batch = [said(session, "for me"), ended, said(session, "for the other")]
        agent.stream.send_nowait([json.dumps(message).encode() for message in batch])
        assert [line["type"] for line in await turn.rest()] == ["text", "done"]
        assert turn.text == "for me"


async def test_an_editor_that_leaves_takes_back_its_prompt_that_waits(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with serving_editors(tmp_path, spawner) as there:
        editor = there.http()
        session = (await editor.answer("getSession", {"provider": {"id": "fake"}, "composerId": "c"}))["sessionId"]
        agent = loading_agents[0]
        other = await editor_in(there, session)
        await other.send(id="p", method="session/prompt", params={"sessionId": session, "prompt": []})
        await prompts(agent, 1)
        async with editor.sent_unread("mine"):
            await there.until_queued(session)
        await there.until_queued(session, 0)
        await ends_turn(agent)
        while (await other.receive()).get("id") != "p":
            pass
        assert (len(of_method(agent, "session/prompt")), of_method(agent, "session/cancel")) == (1, [])


async def test_a_permission_is_told_and_decided_by_respond(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with serving_editors(tmp_path, spawner) as there:
        editor = there.http()
        async with editor.sent() as turn:
            agent = await started(agents)
            (prompt,) = await prompts(agent, 1)
            session = prompt["params"]["sessionId"]
            await says(agent, session, "let me")
            await asks(agent, session, 77)
            permission = await turn.until("permission")
            assert [option["optionId"] for option in permission["options"]] == ["yes", "no"]
            assert permission["toolCall"] == {"toolCallId": "call"}
            never = {"requestId": permission["requestId"], "outcome": {"outcome": "selected", "optionId": "maybe"}}
            reply = await editor.post("respond", never)
            assert (reply.status, json.loads(reply.body)["error"]) == (400, True)
            yes = {"requestId": permission["requestId"], "outcome": {"outcome": "selected", "optionId": "yes"}}
            assert await editor.answer("respond", yes) == {"success": True}
            while not (found := [it for it in agent.received if it.get("id") == 77]):
                await agent._arrived.park()
            assert found[0]["result"] == {"outcome": {"outcome": "selected", "optionId": "yes"}}
            assert (await editor.post("respond", yes)).status == 404
            await ends_turn(agent)
            assert [line["type"] for line in await turn.rest()] == ["text", "permission", "done"]
    (decided,) = there.audit.of("permission_decided")
    assert decided["identity"] == "ann"


async def test_no_permission_is_decided_without_a_user(tmp_path: Path, spawner: Spawner, agents: ServingAgents) -> None:
    """The original approves every permission."""
    async with serving_editors(tmp_path, spawner) as there:
        async with there.http().sent() as turn:
            agent = await started(agents)
            (prompt,) = await prompts(agent, 1)
            await asks(agent, prompt["params"]["sessionId"], 77)
            await turn.until("permission")
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert [it for it in agent.received if it.get("id") == 77] == []
        # The editor has left: that cancels the turn, and approves nothing.
        while not (found := [it for it in agent.received if it.get("id") == 77]):
            await agent._arrived.park()
    assert found[0]["result"] == {"outcome": {"outcome": "cancelled"}}


async def test_another_controller_decides_a_permission_of_an_editor(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with serving_editors(tmp_path, spawner) as there, there.http().sent() as turn:
        agent = await started(loading_agents)
        (prompt,) = await prompts(agent, 1)
        session = prompt["params"]["sessionId"]
        other = await editor_in(there, session)
        await asks(agent, session, 77)
        permission = await turn.until("permission")
        while (question := await other.receive()).get("method") != "session/request_permission":
            pass
        await other.send(id=question["id"], result={"outcome": {"outcome": "selected", "optionId": "no"}})
        while not (found := [it for it in agent.received if it.get("id") == 77]):
            await agent._arrived.park()
        assert found[0]["result"]["outcome"]["optionId"] == "no"
        late = {"requestId": permission["requestId"], "outcome": {"outcome": "selected", "optionId": "yes"}}
        assert (await there.http().post("respond", late)).status == 404
        await ends_turn(agent)
        await turn.rest()


async def test_the_error_of_a_prompt_has_a_status_before_the_first_line(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(editor_answers, "HEAD_DELAY", math.inf)
    async with serving_editors(tmp_path, spawner) as there, there.http().sent_unread() as sent:
        agent = await started(agents)
        await prompts(agent, 1)
        await ends_turn(agent, error={"code": -32603, "message": "out of credit"})
        turn = await sent.begin()
        await turn.raw()
        assert (turn.reply.status, json.loads(turn.received)) == (
            500,
            {"error": True, "message": "out of credit"},
        )


async def test_an_agent_that_ends_in_a_turn_is_told_by_the_last_line(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with serving_editors(tmp_path, spawner) as there, there.http().sent() as turn:
        agent = await started(agents)
        (prompt,) = await prompts(agent, 1)
        await says(agent, prompt["params"]["sessionId"], "begun")
        await turn.next()
        agent.end(1)
        await agent.close()
        last = (await turn.rest())[-1]
        assert (last["type"], last["seq"]) == ("error", 2)


async def test_an_editor_that_is_behind_a_history_that_was_cut_is_told_so(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(editor_turns, "PIECE_COUNT", 1)
    async with (
        serving_editors(tmp_path, spawner, gateway={"journal_limit": 2000}) as there,
        there.http().sent() as turn,
    ):
        agent = await started(agents)
        (prompt,) = await prompts(agent, 1)
        session = prompt["params"]["sessionId"]
        # All of it arrives before the editor is told any.
        agent.stream.send_nowait([json.dumps(said(session, "x" * 500)).encode() for _ in range(20)])
        last = (await turn.rest())[-1]
        assert (last["type"], last["message"]) == ("error", LAGGED)
        await agent.got("session/cancel")


def said(session: str, text: str) -> dict[str, Any]:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    return {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "update": update}}


async def test_updates_of_a_sub_agent_and_of_other_sessions_are_not_told(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with (
        serving_editors(tmp_path, spawner) as there,
        there.http().sent() as turn,
        there.http("ben").sent() as foreign,
    ):
        while len(agents) < 2:
            await trio.lowlevel.checkpoint()
        for agent, word in ((agents[0], "mine"), (agents[1], "foreign")):
            (prompt,) = await prompts(agent, 1)
            await says(agent, prompt["params"]["sessionId"], word)
            await says(agent, "child", "of a sub-agent")
            await ends_turn(agent)
        await turn.rest()
        await foreign.rest()
    assert {turn.text, foreign.text} == {"mine", "foreign"}


async def test_an_editor_that_reads_nothing_for_stall_timeout_is_given_up_and_disturbs_no_other(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with (
        serving_editors(tmp_path, spawner, gateway={"stall_timeout": 0.02}) as there,
        there.http().sent_unread(),
        there.http("ben").sent() as other,
    ):
        while len(agents) < 2:
            await trio.lowlevel.checkpoint()
        by_identity = {}
        for agent in agents.started:
            (prompt,) = await prompts(agent, 1)
            session = prompt["params"]["sessionId"]
            (found,) = there.gateway.registry._by_id[session]
            by_identity[found.owner] = agent, session
        agent, slow = by_identity["ann"]
        chunk = json.dumps(said(slow, "x" * 100_000)).encode()
        for _ in range(100):
            agent.stream.send_nowait([chunk])
            await trio.lowlevel.checkpoint()
        assert (await agent.got("session/cancel"))["params"] == {"sessionId": slow}
        await says(*by_identity["ben"], "still here")
        assert (await other.next())["content"] == "still here"


async def test_a_question_that_no_editor_of_this_kind_can_show_is_refused_unless_another_client_answers(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with serving_editors(tmp_path, spawner) as there, there.http().sent() as turn:
        agent = await started(agents)
        (prompt,) = await prompts(agent, 1)
        session = prompt["params"]["sessionId"]
        params = {"sessionId": session, "mode": "form", "message": "Name?", "requestedSchema": {"type": "object"}}
        await agent.send(id=78, method="elicitation/create", params=params)
        while not (found := [it for it in agent.received if it.get("id") == 78]):
            await agent._arrived.park()
        assert found[0]["error"]["code"] == -32601
        await ends_turn(agent)
        assert [line["type"] for line in await turn.rest()] == ["done"]


async def test_a_second_message_does_not_wait_for_an_editor_that_reads_the_first_answer_slowly(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with serving_editors(tmp_path, spawner) as there, there.http().sent_unread("one") as slow:
        agent = await started(agents)
        (prompt,) = await prompts(agent, 1)
        session = prompt["params"]["sessionId"]
        chunk = json.dumps(said(session, "x" * 100_000)).encode()
        for _ in range(60):
            agent.stream.send_nowait([chunk])
            await trio.lowlevel.checkpoint()
        async with there.http().sent("two") as turn:
            await prompts(agent, 2)
            await ends_turn(agent)
            assert [line["type"] for line in await turn.rest()] == ["done"]
        # Nothing of the first answer is lost.
        first = await (await slow.begin()).raw()
        assert json.loads(first.splitlines()[-1])["stopReason"] == "cancelled"
        assert first.count(b"xxxxxxxxxx") == 600_000


class Heard:
    """The answer to a message, in memory."""

    deadline = math.inf

    def __init__(self) -> None:
        self.text = ""
        self.outcome: Outcome | None = None

    async def updates(self, messages: Iterable[bytes]) -> None:
        for message in messages:
            update = json.loads(message)["params"]["update"]
            if update["sessionUpdate"] == "agent_message_chunk":
                self.text += update["content"]["text"]
        await trio.lowlevel.checkpoint()

    async def permission(self, key: str, request: Message) -> None: ...

    async def keep_alive(self) -> None: ...

    async def done(self, stop_reason: str) -> bool:
        return True

    async def failed(self, text: str, status: int = 500) -> bool:
        return True


STEPS = st.one_of(
    st.just("send"),
    st.just("say"),
    st.just("end"),
    st.just("fail"),
    st.integers(0, 3).map(lambda number: f"abort {number}"),
)


@effort(15)
@given(steps=st.lists(STEPS, max_size=12), obeys=st.booleans())
def test_any_sequence_of_messages_and_aborts_tells_each_its_own_turn(steps: list[str], obeys: bool) -> None:
    """The agent ends a cancelled turn at once if it `obeys`, else with the next `end`."""
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(editor_turns, "ABORT_TIMEOUT", math.inf)
        trio.run(play, Path(directory), patch, steps, obeys)


async def play(folder: Path, patch: pytest.MonkeyPatch, steps: list[str], obeys: bool) -> None:
    agents, lanes = ServingAgents(), Lanes()
    patch.setattr(startup, "run_agent", agents.run)
    messages: list[tuple[Heard, trio.CancelScope]] = []
    # Texts that the agent has said, by the message whose turn ran.
    said_in: dict[int, str] = {}
    with spawner_in(folder) as spawner:
        async with running(folder, spawner) as bench, trio.open_nursery() as nursery:
            access = bench.access()
            creator = await bench.client(access)
            session_id = await creator.new_session()
            (session,) = bench.gateway.registry._by_id[session_id]
            agent, viewer = agents[0], viewer_of(bench.gateway, access)
            composers = Composers(bench.gateway)
            held: list[Any] = []

            async def send(number: int, heard: Heard, scope: trio.CancelScope) -> None:
                async with trio.open_nursery() as own:
                    sessions = EditorSessions(bench.gateway, composers, access, f"editor {number}", own)
                    with scope:
                        turn = EditorTurn(bench.gateway, session, viewer, heard)
                        message = WaitingMessage(f"m{number}", Counter(), "ann")
                        heard.outcome = await turn.run(lanes, lambda: sessions.ready(session, None), message)
                    await sessions.close()

            async def settle() -> None:
                await trio.testing.wait_all_tasks_blocked()
                if not obeys:
                    held.extend(agent._prompts)
                    agent._prompts = []

            def open_prompts() -> list[Any]:
                return held or agent._prompts

            async def end(**response: Any) -> None:
                if open_prompts():
                    await agent.send(id=open_prompts().pop(), **(response or {"result": {"stopReason": "end_turn"}}))

            for step in steps:
                if step == "send":
                    messages.append((Heard(), trio.CancelScope()))
                    nursery.start_soon(send, len(messages) - 1, *messages[-1])
                elif step == "say" and open_prompts():
                    text = of_method(agent, "session/prompt")[-1]["params"]["prompt"][0]["text"]
                    said_in[int(text[1:])] = said_in.get(int(text[1:]), "") + "."
                    await says(agent, session_id, ".")
                elif step == "end":
                    await end()
                elif step == "fail":
                    await end(error={"code": -32603, "message": "no"})
                elif step.startswith("abort") and (number := int(step.split()[1])) < len(messages):
                    messages[number][1].cancel()
                await settle()
            while any(heard.outcome is None and not scope.cancelled_caught for heard, scope in messages):
                await end()
                await settle()
            nursery.cancel_scope.cancel()
    assert lanes._turns == {}
    for number, (heard, scope) in enumerate(messages):
        if scope.cancelled_caught:
            assert said_in.get(number, "").startswith(heard.text)
        else:
            assert heard.text == said_in.get(number, "")
    # Each prompt is sent once, in the order of the messages.
    sent = [int(it["params"]["prompt"][0]["text"][1:]) for it in of_method(agent, "session/prompt")]
    assert sent == sorted(set(sent))
    last = messages[-1][0].outcome if messages else None
    assert last is None or last.stop_reason != CANCELLED


async def test_a_completion_that_is_too_large_is_an_error_and_cancels_the_turn(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    small, replies = EditorSection(message_size=1000), []
    async with serving_editors(tmp_path, spawner, options=small) as there, trio.open_nursery() as nursery:

        async def ask() -> None:
            replies.append(await there.http().ask())

        nursery.start_soon(ask)
        agent = await started(agents)
        (prompt,) = await prompts(agent, 1)
        await says(agent, prompt["params"]["sessionId"], "x" * 1001)
        await agent.got("session/cancel")
    assert replies[0].status == 500
    assert "message_size" in json.loads(replies[0].body)["message"]
