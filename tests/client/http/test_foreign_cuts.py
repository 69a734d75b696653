"""Connections to a server of Streamable HTTP that break at any byte: what is guaranteed then."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import trio
import trio.testing

from acp_gateway.errors import Unreachable
from tests.client.http.foreign_agent import Cut, Editor, ForeignAgent, shim_of

MANY = 1_000_000
"""More bytes than a conversation has."""


async def open_session(editor: Editor) -> str:
    """Ask for a session until there is one: a request that was cut gets an error."""
    for _ in range(3):
        answer = await editor.ask("session/new", cwd="/", mcpServers=[])
        if "result" in answer:
            session: str = answer["result"]["sessionId"]
            return session
    raise AssertionError("no session after one cut")


async def converse(server: ForeignAgent, editor: Editor, prompts: Sequence[str]) -> None:
    """Have a conversation in which one connection breaks; a server that is killed comes back."""
    session = await open_session(editor)
    answers: list[dict[str, Any]] = []
    for text in prompts:
        turn = await editor.begin_prompt(session, text)
        if text == "wait":
            await editor.notify("session/cancel", sessionId=session)
        answers.append(await editor.answer(turn))
    for answer in answers:
        assert answer["result"]["stopReason"] in ("end_turn", "cancelled")
    late = await editor.prompt(session, "late") if server.cut is None else answers[0]
    if late["result"]["stopReason"] == "cancelled":
        # The loss was noticed only now, and is over.
        assert (await editor.prompt(session, "last"))["result"] == {"stopReason": "end_turn"}
        assert editor.updates[-3:] == [f"last {number}" for number in range(3)]


async def restart(server: ForeignAgent) -> None:
    """Start the server again a while after each kill."""
    while True:
        await server.until(lambda: server.down)
        await trio.sleep(5)
        server.start()


async def one_conversation(server: ForeignAgent, prompts: Sequence[str]) -> None:
    """Have the conversation with its cut, and check what is guaranteed."""
    async with shim_of(server, may_raise=Unreachable) as editor, trio.open_nursery() as nursery:
        nursery.start_soon(restart, server)
        answer = await editor.ask("initialize", protocolVersion=1)
        if "error" in answer:
            # Before the first success a loss is the end.
            assert answer["error"]["data"]["reason"] == "unreachable"
        else:
            await converse(server, editor, prompts)
        nursery.cancel_scope.cancel()
    said = [text for text in editor.updates if not text.startswith("[acp-gateway")]
    assert repeated(said) == []
    assert repeated(editor.asked) == []
    order = [*prompts, "late", "last"]
    numbered = [(order.index(name), int(number)) for name, _, number in (text.partition(" ") for text in said)]
    assert numbered == sorted(numbered)
    once = (None, "session/prompt", "session/new")
    assert repeated([str(one) for one in server.heard if one.get("method") in once]) == []


def repeated(texts: list[str]) -> list[str]:
    return [text for text, count in Counter(texts).items() if count > 1]


async def size_of_conversation(prompts: Sequence[str]) -> int:
    """Return the number of bytes that pass through all connections."""
    server = ForeignAgent(cut=Cut(MANY))
    await one_conversation(server, prompts)
    assert server.cut is not None
    return MANY - server.cut.left


async def conversations(prompts: Sequence[str], step: int, *, kills: bool, open_to_all: bool) -> None:
    """Have conversations with a cut at each byte whose number is divisible by `step`."""
    for left in range(0, await size_of_conversation(prompts), step):
        server = ForeignAgent(open_to_all=open_to_all, cut=Cut(left, kills))
        try:
            await one_conversation(server, prompts)
        except BaseException as error:
            error.add_note(f"the cut was at byte {left}")
            raise


@pytest.mark.parametrize("kills", [False, True])
@pytest.mark.parametrize("open_to_all", [False, True])
async def test_each_message_arrives_at_most_once_wherever_a_connection_breaks(
    *, kills: bool, open_to_all: bool, autojump_clock: trio.testing.MockClock
) -> None:
    await conversations(["one", "wait", "ask", "two"], 499, kills=kills, open_to_all=open_to_all)


@pytest.mark.slow
@pytest.mark.parametrize("kills", [False, True])
async def test_each_message_arrives_at_most_once_at_whichever_byte_a_connection_breaks(
    *, kills: bool, autojump_clock: trio.testing.MockClock
) -> None:
    await conversations(["ask", "one"], 1, kills=kills, open_to_all=False)
