"""The login hint of an agent, and the time for histories; `test_gateway` has the services of running hubs."""

import socket
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from acp_gateway.config.load import AgentSection
from acp_gateway.gateway.hub.services import ProgressTimeout, login_hint

HOST = socket.gethostname()


TERMINAL = {"id": "t", "type": "terminal", "args": ["--login", "two words"]}
META = {"id": "m", "_meta": {"terminal-auth": {"command": "claude", "args": ["/login"]}}}
KEY = {"id": "k", "name": "API key", "description": "Set ANTHROPIC_API_KEY"}


@pytest.mark.parametrize(
    ("methods", "how"),
    [
        ([], "start `agent 'an argument'` and log in"),
        ([TERMINAL], "run `agent 'an argument' --login 'two words'`"),
        ([KEY, META, TERMINAL], "run `claude /login`"),
        ([KEY, {"description": "or use a browser"}], "Set ANTHROPIC_API_KEY or or use a browser"),
        ([{"description": ""}, {"description": 7}, {}], "start `agent 'an argument'` and log in"),
        ([{"_meta": {"terminal-auth": {"command": 7}}}, {"_meta": "x"}], "start `agent 'an argument'` and log in"),
        ([{"type": "terminal", "args": 7}], "run `agent 'an argument'`"),
        ([{"_meta": {"terminal-auth": {"command": "c", "args": "-x"}}}], "run `c`"),
        ([{"type": "terminal", "args": ["-n", 7]}], "run `agent 'an argument' -n 7`"),
    ],
)
def test_how_to_log_in_is_what_the_agent_says(methods: list[dict[str, Any]], how: str) -> None:
    section = AgentSection(command=("agent", "an argument"))
    assert login_hint(section, methods) == f"On the gateway's machine ({HOST}): {how}, then try again."


def test_how_to_log_in_is_what_the_configuration_says_first_of_all() -> None:
    section = AgentSection(command=("agent",), login="agent login")
    assert login_hint(section, [META, TERMINAL, KEY]) == (
        f"On the gateway's machine ({HOST}): run `agent login`, then try again."
    )


async def test_operations_that_wait_for_each_other_may_take_long_together(autojump_clock: MockClock) -> None:
    timeout, turn = ProgressTimeout(10.0), trio.Lock()
    done: list[int] = []

    async def read(number: int) -> int:
        async with turn:
            await trio.sleep(4.0)
        return number

    async def ask(number: int) -> None:
        done.append(await timeout.run(partial(read, number)))

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(ask, number)
    assert sorted(done) == list(range(20))
    assert trio.current_time() == 80.0


async def test_operations_are_given_up_together_if_none_ends(autojump_clock: MockClock) -> None:
    timeout = ProgressTimeout(10.0)
    began = trio.current_time()
    with pytest.raises(trio.TooSlowError):
        await timeout.run(trio.sleep_forever)
    assert trio.current_time() - began == 10.0
