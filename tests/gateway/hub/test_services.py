"""The login hint of an agent; `test_gateway` has the services of running hubs."""

import socket
from typing import Any

import pytest

from acp_gateway.config.load import AgentSection
from acp_gateway.gateway.hub.services import login_hint

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
