"""The table of methods: what is special is in it, and everything else is passed on."""

import pytest

from acp_gateway.protocol import methods
from acp_gateway.protocol.methods import AgentMethod, Capability, ClientMethod, agent_method, client_method


@pytest.mark.parametrize("name", ["session/new", "session/load", "session/resume", "session/fork"])
def test_these_methods_open_a_session_in_a_directory(name: str) -> None:
    assert client_method(name) == ClientMethod(opens_session=True)


def test_a_prompt_opens_a_turn() -> None:
    assert client_method("session/prompt") == ClientMethod(opens_turn=True)


@pytest.mark.parametrize(
    "name", ["", "session/set_model", "_auth/status_update", "session/new/", "SESSION/NEW", "fs/x"]
)
def test_nothing_is_special_about_an_unknown_method_of_a_client(name: str) -> None:
    assert client_method(name) == ClientMethod()


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("fs/read_text_file", Capability.FS),
        ("fs/write_text_file", Capability.FS),
        ("fs/of_next_year", Capability.FS),
        ("terminal/create", Capability.TERMINAL),
        ("terminal/wait_for_exit", Capability.TERMINAL),
        ("terminal/a/b", Capability.TERMINAL),
    ],
)
def test_whole_families_of_an_agents_methods_need_the_clients_machine(name: str, needs: Capability) -> None:
    assert agent_method(name) == AgentMethod(needs=needs)


@pytest.mark.parametrize("name", ["", "fs", "terminal", "/fs/x", "_fs/x", "fsx/y", "session/request_permission"])
def test_nothing_is_special_about_any_other_method_of_an_agent(name: str) -> None:
    assert agent_method(name) == AgentMethod()


def test_the_gateways_own_methods_are_reserved_by_prefix() -> None:
    assert methods.HELLO.startswith(methods.RESERVED_PREFIX)
