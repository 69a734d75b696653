"""Prompts that are due are sent once, by clients of their senders; what a sender may not send waits for a person."""

from typing import Any

import msgspec
import pytest

from acp_gateway.core.sessions.session import Session
from acp_gateway.gateway.viewing.due_prompts import DuePrompts
from tests.kit.bridging import TEXT, Bench, Page, ends_turn, prompted

pytestmark = pytest.mark.usefixtures("no_bug_showed")


class Waiting:
    """A session of ann's with a prompt that waits for an hour, and the time that the gateway's task is told."""

    def __init__(self, bench: Bench, page: Page, session: Session, told: dict[str, Any]) -> None:
        self.bench = bench
        self.page = page
        self.session = session
        self.told = told
        self.now = 0.0

    @property
    def shown(self) -> list[tuple[str, str]]:
        return [(it.state, it.why) for it in self.session.shown_prompts]

    def passes(self) -> None:
        self.now = (self.session.kept[self.told["promptId"]].shown.due or 0) / 1000
        self.bench.nursery.start_soon(DuePrompts(self.bench.gateway, lambda: self.now).run)


async def waiting(bench: Bench, access: Any = None) -> Waiting:
    page = await bench.page(access or bench.access())
    name = await page.new_session()
    answer = await page.result("session/prompt", sessionId=name, prompt=TEXT, queue={"at": "in 1 h"})
    assert answer["success"]
    (session,) = bench.gateway.registry
    return Waiting(bench, page, session, answer["waits"])


async def test_a_prompt_is_sent_at_its_time_by_a_client_that_leaves(bench: Bench) -> None:
    there = await waiting(bench)
    assert there.told["due"].endswith("Z")
    (told,) = (await there.page.result("session/get", sessionId=there.session.id))["queue"]
    assert (told["state"], told["due"][:19], told["auto"], told["why"], told["mayChange"], told["mayEdit"]) == (
        *("timed", there.told["due"][:19], False, None, True, False),
    )
    assert not [it for it in bench.agents[0].received if it.get("method") == "session/prompt"]
    there.passes()
    asked = await bench.agents[0].got("session/prompt")
    assert (asked["params"]["sessionId"], asked["params"]["prompt"]) == (there.session.id, TEXT)
    await there.page.until_status(there.session.id, "running")
    await there.page.until(lambda: not there.page.of("session/queue_changed")[-1]["queue"])
    assert [it["method"] for it in bench.agents[0].received].count("session/prompt") == 1
    assert [client.via for client in there.session.attached] == ["browser"]


async def test_a_prompt_is_sent_in_a_session_whose_agent_has_ended(bench: Bench) -> None:
    there = await waiting(bench)
    bench.gateway.hubs[0].end()
    await there.page.until_status(there.session.id, "exited")
    assert there.shown == [("timed", "")]
    there.passes()
    await there.page.until_status(there.session.id, "exited", "initializing", "completed", "running")
    assert (await bench.agents[1].got("session/prompt"))["params"]["prompt"] == TEXT


@pytest.mark.parametrize("lost", ["token", "rights"])
async def test_a_prompt_whose_sender_may_not_send_it_any_more_waits_for_a_person(bench: Bench, lost: str) -> None:
    access = bench.access()
    there = await waiting(bench, access)
    assert access.token is not None
    other = await bench.page(bench.access(), "other")
    if lost == "token":
        bench.gateway.tokens.revoke(access.token.id)
    else:
        narrowed = msgspec.structs.replace(access.token, role="observer")
        bench.gateway.tokens.change(lambda known: [narrowed if it.id == narrowed.id else it for it in known])
    there.passes()
    await other.result("session/get", sessionId=there.session.id)
    await other.until(lambda: there.shown[0][0] != "timed")
    ((state, why),) = there.shown
    assert (state, bool(why)) == ("held", True)
    assert not [it for it in bench.agents[0].received if it.get("method") == "session/prompt"]
    key = there.told["promptId"]
    await other.result("session/queue", sessionId=there.session.id, promptId=key, action="send_now")
    assert (await bench.agents[0].got("session/prompt"))["params"]["prompt"] == TEXT


async def test_a_queued_prompt_of_a_revoked_token_is_not_sent_after_the_turn(bench: Bench) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session()
    access = bench.access()
    second = await bench.page(access, "second")
    await prompted(page, bench.agents[0], session)
    await second.result("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "second"}])
    assert access.token is not None
    bench.gateway.tokens.revoke(access.token.id)
    await ends_turn(bench.agents[0])
    await page.until(lambda: [it["state"] for it in page.of("session/queue_changed")[-1]["queue"]] == ["held"])
