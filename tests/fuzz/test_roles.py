"""Clients of every role, over every kind of connection, neither act nor read beyond their rights.

A session of `ann` has a turn under way and a permission open. An observer of hers, a guest of another session of hers
and another identity send random calls about it. Then the agent has got nothing from them, the observer alone has read
what was said, and the permission is hers to answer. A sub-agent that belongs to one of her sessions asks as well.
"""

import json
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.dialects.chat import requests as chat
from acp_gateway.gateway.access import Access
from acp_gateway.gateway.agent import startup
from acp_gateway.gateway.agent.orphans import ProcessRegistry
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.session_api import requests as api
from acp_gateway.transports.streams import MessageStream
from tests.fuzz.corpus import METHODS, message, mutations
from tests.fuzz.effort import effort
from tests.kit.bridging import TEXT, YES, Bench, asks, prompted, running, says, section
from tests.kit.doubles import ServingAgents

ANNS: Final = "id-1.1"
"""The session that is attacked."""
LENT: Final = "id-1.2"
"""The session that the guest may use."""
SECRET: Final = "what only ann and her observer may read"
ASKED: Final = 4711
"""The id of the agent's question."""
DOUBTFUL: Final = 4712
"""The id of a question of a sub-agent, which the agent has not announced."""

DECISION: Final = {"outcome": "selected", "optionId": "yes"}
VALUES: Final[dict[str, tuple[Any, ...]]] = {
    "sessionId": (ANNS, ANNS, ANNS, LENT, "nowhere", "", None),
    "requestId": (ASKED, str(ASKED), 1, "1", "may I?"),
    "response": (DECISION, {"outcome": DECISION}, {}),
    "outcome": (DECISION, "cancelled"),
    "prompt": (TEXT, []),
    "content": ("hello", TEXT),
    "since": (0, -1, 5),
    "before": (0, 9, 2**63),
    "limit": (1, 0, 10**6),
    "watch": (True, False),
    "observe": (True, False),
    "archived": (True, False),
    "agentType": ("fake", "other"),
    "agent": ("fake", "other"),
    "cwd": ("/", "/srv", ".."),
    "mcpServers": ([],),
}
ANY: Final[tuple[Any, ...]] = ("x", 1, None, True, [], {})


def members(names: tuple[str, ...]) -> st.SearchStrategy[dict[str, Any]]:
    """Generate an object with some of these members, mostly all."""
    return st.fixed_dictionaries({name: st.sampled_from(VALUES.get(name, ANY)) for name in names}).flatmap(
        lambda whole: st.sampled_from((whole, whole, whole, {n: v for n, v in whole.items() if n == "sessionId"}))
    )


def calls(method: str, names: tuple[str, ...]) -> st.SearchStrategy[bytes]:
    """Generate JSON-RPC requests, notifications and answers."""
    said = st.builds(
        lambda params, number, how: message(how, id=number, method=method, params=params),
        members(names),
        st.integers(0, 9),
        st.one_of(st.just(()), st.just(()), st.just(()), st.lists(mutations, max_size=1)),
    )
    told = members(names).map(lambda params: message(method=method, params=params))
    answered = st.sampled_from((ASKED, str(ASKED), 1, 2)).map(lambda number: message(id=number, result=YES))
    return st.one_of(said, said, said, told, answered)


EDITORS: Final = ("sessionId", "cwd", "mcpServers", "prompt", "modeId")
SAID: Final[dict[str, st.SearchStrategy[bytes]]] = {
    "page": st.sampled_from(sorted(api.METHODS)).flatmap(lambda name: calls(name, tuple(api.METHODS[name].members))),
    "widget": st.sampled_from(sorted(chat.TYPES)).flatmap(
        lambda kind: members(tuple(chat.TYPES[kind].members)).map(
            lambda found: json.dumps({"type": kind} | found).encode()
        )
    ),
    "editor": st.sampled_from(METHODS).flatmap(lambda name: calls(name, EDITORS)),
    "control": st.sampled_from(METHODS).flatmap(lambda name: calls(name, EDITORS)),
}
"""Texts for each kind of connection."""


def access_of(bench: Bench, role: str) -> Access:
    """Return the access of a token of this role."""
    if role == "guest":
        return bench.guest(LENT)
    return bench.access("ann", role="observer") if role == "observer" else bench.access("bob")


async def attack(bench: Bench, kind: str, access: Access, texts: list[bytes]) -> bytes:
    """Send texts over a connection of this kind; return all that came back."""
    far_end: MessageStream
    if kind == "page":
        far_end = (await bench.page(access, "attacker", reads=False)).stream
    elif kind == "widget":
        far_end = (await bench.widget(access, "attacker", reads=False)).stream
    else:
        editor = bench.editor(access, control=kind == "control")
        if kind == "editor":
            await editor.initialize()
        far_end = editor.stream
    received: list[bytes] = []

    async def listen() -> None:
        try:
            async for batch in far_end:
                received.extend(batch)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        try:
            for text in texts:
                await far_end.send(text)
                await trio.testing.wait_all_tasks_blocked()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # Some are thrown out.
        await far_end.aclose()
        nursery.cancel_scope.cancel()
    await trio.testing.wait_all_tasks_blocked()
    return b"\n".join(received)


async def withstand(folder: Path, agents: ServingAgents, scope: str, kind: str, role: str, texts: list[bytes]) -> None:
    with Spawner(ProcessRegistry(folder / "agents")) as spawner:
        async with running(folder, spawner, fake=section(scope)) as bench:
            ann = await bench.page(bench.access("ann"), "ann")
            assert [await ann.new_session() for _ in range(2)] == [ANNS, LENT]
            await prompted(ann, agents[0], ANNS)
            (prompt,) = agents[0]._prompts
            await says(agents[0], ANNS, SECRET)
            await asks(agents[0], ANNS, ASKED)
            await says(agents[0], "a sub-agent", SECRET)
            await asks(agents[0], "a sub-agent", DOUBTFUL)
            asked, doubtful = await ann.until(lambda: it if len(it := ann.of("session/request")) == 2 else None)
            # They guess the names of both.
            names = [found["requestId"].encode() for found in (asked, doubtful)]
            texts = [text.replace(b"may I?", name) for name in names for text in texts]
            before = [len(agent.received) for agent in agents.started]
            received = await attack(bench, kind, access_of(bench, role), texts)
            for agent, count in zip(agents.started, before, strict=False):
                for got in agent.received[count:]:
                    assert role != "observer" or "method" not in got, got
                    assert got.get("id") not in (ASKED, DOUBTFUL), got
                    assert got.get("method") == "session/new" or (got.get("params") or {}).get("sessionId") != ANNS, got
            if role != "observer":
                assert SECRET.encode() not in received
            assert ANNS in [it["id"] for it in (await ann.result("session/list"))["sessions"]]
            # It is still ann's to decide, and her turn ends as the agent ends it.
            for found in (asked, doubtful):
                await ann.result("session/respond", sessionId=ANNS, requestId=found["requestId"], response=YES)
            await trio.testing.wait_all_tasks_blocked()
            answers = [(got["id"], got["result"]) for got in agents[0].received if got.get("id") in (ASKED, DOUBTFUL)]
            assert answers == [(ASKED, YES), (DOUBTFUL, YES)]
            await agents[0].send(id=prompt, result={"stopReason": "end_turn"})
            await ann.until_status(ANNS, "completed")


@pytest.mark.parametrize("role", ["observer", "guest", "other identity"])
@pytest.mark.parametrize("kind", sorted(SAID))
@effort(8)
@given(st.data(), st.sampled_from(("identity", "shared")))
def test_a_role_keeps_to_its_rights(
    kind: str, role: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, scope: str
) -> None:
    texts = data.draw(st.lists(SAID[kind], min_size=4, max_size=20))
    agents = ServingAgents(loadSession=True, sessionCapabilities={"list": {}, "resume": {}, "fork": {}, "delete": {}})
    agents.session_id = "id-{}.{}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(startup, "run_agent", agents.run)
        folder = tmp_path_factory.mktemp("state")
        trio.run(
            withstand, folder, agents, scope, kind, role, texts, clock=trio.testing.MockClock(autojump_threshold=0)
        )
