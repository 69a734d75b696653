"""Sub-agents that go on after their turn, with the real program: over `connect`, `/ws` and the list of sessions."""

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.parties import Party, party, run, texts
from tests.end_to_end.test_web_protocol import browser
from tests.kit.running import WORK, RunningGateway, prepare, start_gateway

AGENT = Path(__file__).parents[1] / "agents" / "background_agent.py"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    directory = tmp_path_factory.mktemp("background")
    command = json.dumps([sys.executable, "-I", "-S", str(AGENT)])
    agents = "".join(
        f'[agents.{scope}]\ncommand = {command}\nscope = "{scope}"\nmcp_servers = "drop"\n'
        for scope in ("shared", "identity")
    )
    running = start_gateway(directory, prepare(directory, agents, more='default_agent = "shared"'))
    try:
        yield running
    finally:
        assert running.stop() == 0, "".join(running.log)


async def opened(member: Party) -> str:
    return str((await member.agent.new_session(cwd=str(WORK), mcp_servers=[])).session_id)


def token_of(gateway: RunningGateway, identity: str) -> Path:
    return gateway.save_token("token", "create", "--label", identity, "--identity", identity)


def knows_secret(member: Party) -> bool:
    return "secret" in json.dumps(member.heard)


each_transport = pytest.mark.parametrize("transport", ["wss", "http"])


@each_transport
def test_a_sub_agent_of_one_identity_is_heard_by_no_other_one_which_can_only_cancel_its_question(
    gateway: RunningGateway, transport: str
) -> None:
    xenas, yuris = (token_of(gateway, name) for name in ("xena", "yuri"))

    async def scenario() -> None:
        async with (
            party(gateway, transport, "--token-file", str(xenas)) as xena,
            party(gateway, transport, "--token-file", str(yuris)) as yuri,
            browser(gateway, Authorization=f"Bearer {yuris.read_text().strip()}") as page,
        ):
            first, session = await opened(xena), await opened(yuri)
            await xena.prompt(first, "begin")
            await page.result("session/get", sessionId=session)
            turn = await yuri.begin(session, "wait")
            (asked,) = await page.until(lambda: page.of("session/request"))
            listed = await asyncio.to_thread(gateway.sessions, yuris)
            ((waiting,),) = [it["waiting"] for it in listed if it["sessionId"] == session]
            assert "person" in waiting["title"]
            assert "secret" not in json.dumps([page.told, listed])
            cancel = {"outcome": {"outcome": "selected", "optionId": "cancel"}}
            await page.result("session/respond", sessionId=session, requestId=asked["requestId"], response=cancel)
            await xena.until_told(first, json.dumps({"outcome": "cancelled"}))
            assert [knows_secret(xena), knows_secret(yuri)] == [False, False]
            assert yuri.asked() == xena.asked() == []
            await yuri.agent.cancel(session_id=session)
            assert await turn == "cancelled"

    run(scenario())


@each_transport
def test_a_sub_agent_asks_the_editor_that_has_all_sessions_and_no_guest(
    gateway: RunningGateway, transport: str
) -> None:
    async def scenario() -> None:
        async with party(gateway, transport, "--agent", "identity") as ann:
            first, second = [await opened(ann) for _ in range(2)]
            await ann.prompt(first, "begin")
            token = gateway.save_token("share", second, "--token")
            async with party(gateway, transport, "--token-file", str(token)) as guest:
                assert await opened(guest) == second
                turn = await ann.begin(second, "wait")
                await ann.decide("yes")
                await ann.until_told(first, json.dumps({"outcome": "selected", "optionId": "yes"}))
                assert texts(ann.updates(f"sub-agent-{first}")) == [f"secret of {first}"]
                await guest.agent.cancel(session_id=second)
                assert await turn == "cancelled"
                assert not knows_secret(guest)

    run(scenario())
