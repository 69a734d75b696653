"""Lists of a node that is not to be trusted are shown as they are understood, or refused, and harm no other client."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.client.control import exchange, read_listing, session_rows
from acp_gateway.errors import ProtocolError
from acp_gateway.gateway.agent import startup
from acp_gateway.gateway.agent.orphans import ProcessRegistry
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.session_api.requests import LIST
from acp_gateway.transports.memory import memory_message_stream_pair
from tests.fuzz import texts
from tests.fuzz.corpus import Raw, message, mutations
from tests.fuzz.effort import effort
from tests.kit.doubles import ServingAgents
from tests.kit.fake_gateway import DESTINATION
from tests.nodes.test_asking import nodes, session

TEXTS: Final = (b'"x"', rb'"\ud83d"', b'"\xe2\x80\xa8"', rb'"\u001b[2J"', b"null", b'"%b"' % (b"x" * 2000), b'"gpu2/x"')
TIMES: Final = (b'"2026-11-22T09:48:00Z"', b'"0001-01-01T00:00:00+23:59"', b'"9999-12-31T23:59:59-23:59"', b"null")

NOW: Final = datetime(2026, 11, 22, tzinfo=UTC)
ONE: Final = session("x")

asked = st.fixed_dictionaries(
    {
        "method": st.sampled_from(TEXTS).map(Raw),
        "since": st.sampled_from(TIMES).map(Raw),
        "title": st.sampled_from(TEXTS).map(Raw),
    }
)
sessions = st.fixed_dictionaries(
    {
        "id": st.sampled_from(TEXTS).map(Raw),
        "agentType": st.sampled_from(("memory", "memory", "b", "")),
        "owner": st.sampled_from(("door", "ann", "")),
        "title": st.sampled_from(TEXTS).map(Raw),
        "cwd": st.sampled_from((b'"/w"', *TEXTS)).map(Raw),
        "updatedAt": st.sampled_from((*TIMES, *TEXTS)).map(Raw),
        "live": st.sampled_from((True, True, False, False, None)),
        "status": st.sampled_from((None, "waiting", "running", 1)),
        "history": st.none(),
        "connected": st.sampled_from((0, 1, -1, 10**30, True)),
        "away": st.just(0),
        "turn": st.booleans(),
        "waiting": st.lists(asked, max_size=2),
        "unreachableSince": st.sampled_from(TIMES).map(Raw),
    }
)
answers = st.builds(
    lambda listed, more, load, how: message(how, id=1, result={"sessions": listed, "more": more, "load": load}),
    st.lists(sessions, max_size=3),
    st.sampled_from((0, 5, -1, 10**30, Raw(b"1" * 5000))),
    st.sampled_from((None, {"sessions": 1, "turns": 0, "lag": Raw(b"1e999")}, {"sessions": -1})),
    st.one_of(st.just(()), st.just(()), st.lists(mutations, max_size=2)),
)


async def told(text: bytes) -> Any:
    """Return the result of a node that answers with this text; None if it is refused."""
    here, there = memory_message_stream_pair()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(there.receive)
            there.send_nowait([text])
            await trio.testing.wait_all_tasks_blocked()
            with trio.move_on_after(1):
                return await exchange(here, DESTINATION, LIST, {})
            nursery.cancel_scope.cancel()
    except* ProtocolError:
        pass
    return None


async def show(folder: Path, said: list[bytes]) -> None:
    with Spawner(ProcessRegistry(folder / "agents")) as spawner:
        async with nodes(folder, spawner) as it:
            # The other node's session is listed beside them, and stays its own.
            it.answers["gpu2"] = {"sessions": [{**ONE, "id": "x"}]}
            for text in said:
                it.answers["gpu1"] = await told(text) or []
                listed = await it.listed()
                rows = [one for one in listed.sessions if one["id"] == "gpu2/x"]
                assert [one["agentType"] for one in rows] == ["gpu2/memory"]
                assert all(one["id"].startswith("gpu1/") for one in listed.sessions if one not in rows)
                for row in session_rows(read_listing(DESTINATION, {"sessions": listed.sessions}).sessions, NOW):
                    assert all(cell.isprintable() for cell in row), row
                json.dumps(listed, allow_nan=False)


@effort(12)
@given(st.lists(answers | texts.nearly_messages, min_size=1, max_size=6))
def test_lists_of_a_node_are_shown_or_refused(tmp_path_factory: pytest.TempPathFactory, said: list[bytes]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(startup, "run_agent", ServingAgents(loadSession=True).run)
        trio.run(show, tmp_path_factory.mktemp("state"), said, clock=trio.testing.MockClock(autojump_threshold=0))
