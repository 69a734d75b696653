"""Authentication at a unix socket, by the kernel's peer credentials."""

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from acp_gateway.config.load import ListenSection
from acp_gateway.gateway.access import Access
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.security.token_store import default_identity
from tests.server.echoing import (
    AS_CHILD,
    AS_GRANDCHILD,
    AS_ORPHAN,
    EchoingGateway,
    Forgetful,
    answer_to,
    ask_as_agent,
    connected,
    hello,
    listening,
)


@pytest.fixture(autouse=True)
def no_bug_showed(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Listeners log bugs and go on: a test that provokes one clears the log."""
    yield
    assert not [record for record in caplog.get_records("call") if record.levelno >= logging.ERROR]


async def test_the_gateways_own_user_needs_no_token_and_may_use_every_agent(
    unix: str, gateway: EchoingGateway, tmp_path: Path
) -> None:
    async with listening(unix, gateway) as listener:
        for agent in ("first", "second"):
            async with connected(listener) as lines:
                await lines.send(hello(agent=agent))
                assert "result" in json.loads(await lines.receive())
    assert [served.agent for served in gateway.served] == ["first", "second"]
    assert {served.access for served in gateway.served} == {Access(default_identity(tmp_path / "state"), None)}
    assert all(served.name.endswith(" (unix)") for served in gateway.served)


async def test_a_token_counts_on_a_unix_socket_too_also_when_it_is_wrong(unix: str, gateway: EchoingGateway) -> None:
    async with listening(unix, gateway) as listener:
        assert (await answer_to(listener, hello(token="wrong")))["error"]["code"] == 401
        assert (await answer_to(listener, hello(token="")))["error"]["code"] == 401
        async with connected(listener) as lines:
            await lines.send(hello(token=gateway.token("first")))
            assert "result" in json.loads(await lines.receive())
    (served,) = gateway.served
    assert served.access.identity == "ann"
    assert not served.access.may_use("second")


async def test_the_gateways_own_user_needs_a_token_where_that_is_configured(unix: str, gateway: EchoingGateway) -> None:
    async with listening(ListenSection(url=unix, peer_uid=False), gateway) as listener:
        assert (await answer_to(listener, hello()))["error"]["code"] == 401
    assert gateway.served == []


async def test_another_user_needs_a_token(unix: str, gateway: EchoingGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    uid = os.geteuid()
    async with listening(unix, gateway) as listener:
        monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
        answer = await answer_to(listener, hello())
    assert answer["error"]["code"] == 401
    assert gateway.served == []


@pytest.mark.parametrize("how", [AS_CHILD, AS_GRANDCHILD, AS_ORPHAN], ids=["child", "grandchild", "orphan"])
async def test_an_agent_that_comes_to_the_unix_socket_is_refused(
    how: str, unix: str, gateway: EchoingGateway, spawner: Spawner, tmp_path: Path
) -> None:
    answer = await ask_as_agent(how, unix, gateway, spawner)
    assert answer["id"] == "h"
    assert answer["error"]["code"] == 403
    assert answer["error"]["message"] == "an agent can't let itself in: a token is needed here"
    assert gateway.served == []


@pytest.mark.parametrize("how", [AS_CHILD, AS_GRANDCHILD], ids=["child", "grandchild"])
async def test_an_agent_that_comes_to_the_unix_socket_before_the_news_of_its_start_is_refused(
    how: str, unix: str, gateway: EchoingGateway, spawner: Spawner
) -> None:
    spawner.ancestors = Forgetful(spawner.ancestors)
    assert (await ask_as_agent(how, unix, gateway, spawner))["error"]["code"] == 403
    assert gateway.served == []


async def test_who_is_not_a_descendant_of_the_gateway_is_not_an_agent(
    unix: str, gateway: EchoingGateway, spawner: Spawner
) -> None:
    # What connects is a descendant in truth; here the gateway does not know itself.
    spawner.ancestors = Forgetful()
    assert "result" in await ask_as_agent(AS_CHILD, unix, gateway, spawner)
    assert len(gateway.served) == 1
