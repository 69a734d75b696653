"""The queue of a session over `/ws`: what browsers are told of it, and what they change."""

from typing import Any

import pytest

from acp_gateway.gateway.rate_limits import RateLimiter
from acp_gateway.protocol import jsonrpc
from tests.kit.bridging import TEXT, Bench, MakeBench, Page, editor_in, ends_turn, prompted, texts
from tests.kit.doubles import ServingAgents

pytestmark = pytest.mark.usefixtures("no_bug_showed")

SENT = "this prompt does not wait any more: the agent has it already, or it was removed"


def say(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def queue(page: Page) -> list[dict[str, Any]]:
    """The queue as the page was told of it last."""
    told = page.of("session/queue_changed")
    return told[-1]["queue"] if told else []


async def until_queued(page: Page, *texts: str) -> list[dict[str, Any]]:
    await page.until(lambda: [it["text"] for it in queue(page)] == [*texts])
    return queue(page)


async def page_with(bench: Bench, agents: ServingAgents, *texts: str) -> tuple[Page, str, list[dict[str, Any]]]:
    """A page, a session in which the agent works on its prompt, and the queue of further prompts with these texts."""
    page = await bench.page(bench.access())
    session = await page.new_session()
    await prompted(page, agents[0], session)
    for text in texts:
        await page.result("session/prompt", sessionId=session, prompt=say(text))
    return page, session, await until_queued(page, *texts)


async def test_each_viewer_is_told_of_the_queue_and_of_what_it_may_change(bench: Bench) -> None:
    ann = await bench.page(bench.access(), "ann")
    session = await ann.new_session()
    guest = await bench.page(bench.guest(session), "guest")
    observer = await bench.page(bench.access(role="observer"), "observer")
    for page in (guest, observer):
        assert (await page.result("session/get", sessionId=session))["queue"] == []
    await prompted(ann, bench.agents[0], session)
    await ann.result("session/prompt", sessionId=session, prompt=[*say("one"), {"type": "image", "data": ""}])
    await guest.result("session/prompt", sessionId=session, prompt=say("two"))
    rights = []
    for page in (ann, guest, observer):
        told = await until_queued(page, "one", "two")
        rights.append([(it["mayChange"], it["mayEdit"]) for it in told])
        assert [(it["attached"], it["whole"]) for it in told] == [(1, True), (0, True)]
        assert told[0]["identity"] == "ann"
        assert told[0]["createdAt"].endswith("Z")
        assert (await page.result("session/get", sessionId=session))["queue"] == told
    assert rights == [[(True, True), (True, False)], [(False, False), (True, True)], [(False, False), (False, False)]]
    await ends_turn(bench.agents[0])
    for page in (ann, guest, observer):
        await until_queued(page, "two")


async def test_a_browser_edits_moves_and_removes_the_prompts_that_wait(bench: Bench) -> None:
    page, session, waiting = await page_with(bench, bench.agents, "a", "b", "c")
    a, b, c = [it["promptId"] for it in waiting]
    await page.result("session/queue", sessionId=session, promptId=c, action="move", before=a)
    await until_queued(page, "c", "a", "b")
    await page.result("session/queue", sessionId=session, promptId=a, action="edit", text="x")
    await until_queued(page, "c", "x", "b")
    await page.result("session/queue", sessionId=session, promptId=b, action="remove")
    await until_queued(page, "c", "x")
    for count in (2, 3):
        await ends_turn(bench.agents[0])
        await page.until_updates(session, count)
    assert texts(page.updates(session)) == ["hello", "c", "x"]
    await until_queued(page)
    assert [it for it in page.of("session/status_changed") if "error" in it] == []


async def test_a_prompt_sent_now_follows_the_cancelled_turn(bench: Bench) -> None:
    page, session, (_, b) = await page_with(bench, bench.agents, "a", "b")
    await page.result("session/queue", sessionId=session, promptId=b["promptId"], action="send_now")
    await page.until_status(session, "running", "completed", "running")
    await until_queued(page, "a")
    assert [it["stopReason"] for it in page.of("session/status_changed") if "stopReason" in it] == ["cancelled"]
    assert page.updates(session)[-1]["payload"]["content"]["text"] == "b"


@pytest.mark.parametrize("action", ["remove", "edit", "move", "send_now"])
async def test_a_prompt_that_was_just_sent_is_refused_in_one_sentence(action: str, bench: Bench) -> None:
    page, session, (a,) = await page_with(bench, bench.agents, "a")
    await ends_turn(bench.agents[0])
    await until_queued(page)
    call = {"sessionId": session, "promptId": a["promptId"], "action": action, "text": "late"}
    error = (await page.ask("session/queue", **call))["error"]
    assert (error["code"], error["message"]) == (jsonrpc.INVALID_REQUEST, SENT)
    assert error["data"] == {"reason": "not_waiting"}


async def test_a_browser_that_has_joined_nothing_changes_the_queue_of_its_identity(bench: Bench) -> None:
    page, session, (a,) = await page_with(bench, bench.agents, "a")
    second = await bench.page(bench.access(), "second")
    await second.result("session/queue", sessionId=session, promptId=a["promptId"], action="remove")
    await until_queued(page)


async def test_the_editor_whose_prompt_was_removed_gets_its_response_as_cancelled(bench: Bench) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session()
    editor = await editor_in(bench, session)
    await prompted(page, bench.agents[0], session)
    await editor.send(id=9, method="session/prompt", params={"sessionId": session, "prompt": TEXT})
    (waits,) = await until_queued(page, "hello")
    assert (waits["mayChange"], waits["mayEdit"]) == (True, False)
    call = {"sessionId": session, "promptId": waits["promptId"]}
    code, text = await page.error("session/queue", **call, action="edit", text="x")
    assert (code, "an editor has sent this prompt" in text) == (jsonrpc.INVALID_REQUEST, True)
    await page.result("session/queue", **call, action="remove")
    while (response := await editor.receive()).get("id") != 9:
        pass
    assert response["result"] == {"stopReason": "cancelled", "_meta": {"acp-gateway": {"notSent": True}}}


async def test_a_call_for_the_queue_needs_a_known_action_and_a_text_to_edit(bench: Bench) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session()
    for action, word in (("edit", "needs a text"), ("stop", "remove, edit, move, send_now, steer")):
        code, text = await page.error("session/queue", sessionId=session, promptId="p", action=action)
        assert (code, word in text) == (jsonrpc.INVALID_PARAMS, True)


async def test_the_queue_of_a_guest_is_empty_once_its_agent_has_ended(bench: Bench) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session()
    await prompted(page, bench.agents[0], session)
    guest = await bench.page(bench.guest(session), "guest")
    await guest.result("session/prompt", sessionId=session, prompt=say("a"))
    await until_queued(page, "a")
    bench.agents[0].end(0)
    await bench.agents[0].close()
    await page.until_status(session, "exited")
    await until_queued(page)


async def test_a_change_of_the_queue_counts_as_many_messages_since_a_prompt_may_be_large(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged: list[int] = []

    def charge(limiter: RateLimiter, messages: int = 0, *more: float, **others: float) -> float:
        charged.append(messages)
        return 0.0

    async with make_bench() as bench:
        page, session, (a,) = await page_with(bench, bench.agents, "a")
        monkeypatch.setattr(RateLimiter, "charge", charge)
        second = await bench.page(bench.access(), "second")
        await second.result("session/queue", sessionId=session, promptId=a["promptId"], action="edit", text="b")
        assert max(charged) >= 100
        await until_queued(page, "b")


async def test_a_prompt_with_a_time_is_refused_or_told_with_its_time_and_removed(bench: Bench) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session()
    assert (await page.result("gateway/info"))["queue"]
    code, text = await page.error("session/prompt", sessionId=session, prompt=TEXT, queue={"at": "soon"})
    assert (code, "is not a time" in text) == (jsonrpc.INVALID_PARAMS, True)
    answer = await page.result("session/prompt", sessionId=session, prompt=TEXT, queue={"at": "in 1 h"})
    key = answer["waits"]["promptId"]
    await page.result("session/get", sessionId=session)
    (described,) = (await page.result("session/list"))["sessions"]
    assert (described["queued"], described["limitedUntil"]) == (1, None)
    for action in ("edit", "move", "steer"):
        _, why = await page.error("session/queue", sessionId=session, promptId=key, action=action, text="x")
        assert "waits for no turn" in why
    observer = await bench.page(bench.access(role="observer"), "observer")
    guest = await bench.page(bench.guest(session), "guest")
    for other in (observer, guest):
        assert await other.error("session/queue", sessionId=session, promptId=key, action="remove")
    bench.gateway.hubs[0].end()
    await page.until_status(session, "exited")
    await page.result("session/queue", sessionId=session, promptId=key, action="remove")
    await until_queued(page)
    assert len(bench.agents) == 1
    assert [(it["action"], it["sender"]) for it in bench.audit.of("queue_changed")] == [("remove", "ann")]
    _, why = await page.error("session/queue", sessionId=session, promptId=key, action="remove")
    assert why == SENT


async def test_what_waited_for_a_turn_waits_for_a_person_after_the_end_of_the_agent(bench: Bench) -> None:
    page, session, _ = await page_with(bench, bench.agents, "a", "b")
    bench.gateway.hubs[0].end()
    await page.until(lambda: [it["state"] for it in queue(page)] == ["held", "held"])
    first = queue(page)[0]["promptId"]
    await page.result("session/queue", sessionId=session, promptId=first, action="send_now")
    assert (await bench.agents[1].got("session/prompt"))["params"]["prompt"] == say("a")
    await page.until(lambda: [(it["text"], it["state"]) for it in queue(page)] == [("b", "held")])
