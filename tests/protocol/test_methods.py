"""The table of methods: what is special is in it, and everything else is passed on."""

import pytest

from acp_gateway.protocol import methods
from acp_gateway.protocol.methods import AgentMethod, Audience, Capability, ClientMethod, agent_method, client_method


def named(**rules: bool) -> set[str]:
    """The methods in the table for which a rule says so."""
    ((rule, value),) = rules.items()
    return {name for name, method in methods.CLIENT_METHODS.items() if getattr(method, rule) is value}


def test_observers_may_call_what_never_reaches_the_agent_and_nothing_else() -> None:
    assert named(observer=True) == {
        *("initialize", "session/new", "session/load", "session/resume", "session/list", "session/close"),
        "session/status",
    }


def test_guests_may_call_what_is_about_their_session_alone_and_nothing_that_is_not_known() -> None:
    assert named(guest=True) == {
        *("initialize", "session/new", "session/load", "session/resume", "session/list", "session/close"),
        *("session/status", "session/prompt", "session/set_mode", "session/set_model", "session/set_config_option"),
        *("_session/steering", "session/inject"),
    }


def test_who_came_for_one_session_may_not_make_others_or_delete_any() -> None:
    assert named(beyond=True) == {
        *("session/fork", "session/delete", "session/archive", "session/unarchive", "nes/start")
    }


def test_what_is_about_the_agent_as_a_whole_is_for_who_may_use_all_of_it() -> None:
    assert named(whole=True) == {
        "logout",
        "auth/logout",
        "auth/status",
        "providers/list",
        "providers/set",
        "providers/disable",
    }


def test_params_may_be_absent_where_nothing_need_be_said() -> None:
    assert named(bare=True) == {"session/list", "logout", "auth/logout", "auth/status", "providers/list"}


def test_what_takes_more_work_counts_as_more_messages() -> None:
    assert {name: more + 1 for name, more in methods.SURCHARGES.items() if more} == {
        **dict.fromkeys(("session/new", "session/load", "session/resume", "session/fork", "nes/start"), 20),
        "session/list": 100,
        **dict.fromkeys(("nes/suggest", "document/didOpen", "document/didChange"), 5),
    }


def test_the_notifications_of_clients_are_never_requests() -> None:
    assert set(methods.CLIENT_NOTIFICATIONS) == {
        *("session/cancel", "$/cancel_request", "nes/accept", "nes/reject"),
        *("document/didOpen", "document/didChange", "document/didClose", "document/didSave", "document/didFocus"),
    }
    assert not methods.CLIENT_METHODS.keys() & methods.CLIENT_NOTIFICATIONS.keys()


def test_the_text_of_a_request_is_kept_where_its_answer_cannot_be_read_without_it() -> None:
    assert named(kept=True) == {
        *("session/new", "session/fork", "session/list", "session/set_mode", "session/set_model"),
        *("session/set_config_option", "_session/steering", "session/inject"),
    }


@pytest.mark.parametrize("name", ["", "nes/x", "_auth/status_update", "session/new/", "SESSION/NEW", "fs/x"])
def test_nothing_is_special_about_any_other_method_of_a_client(name: str) -> None:
    assert client_method(name) == ClientMethod(observer=False, guest=False, beyond=False, kept=False)


@pytest.mark.parametrize("name", ["session/request_permission", "elicitation/create"])
def test_what_is_to_be_decided_is_for_all_who_may(name: str) -> None:
    assert agent_method(name) == AgentMethod(Audience.CONTROLLERS)


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("fs/read_text_file", Capability.FS),
        ("fs/write_text_file", Capability.FS),
        ("fs/of_next_year", Capability.FS),
        ("terminal/create", Capability.TERMINAL),
        ("terminal/wait_for_exit", Capability.TERMINAL),
        ("terminal/a/b", Capability.TERMINAL),
        ("mcp/message", None),
    ],
)
def test_whole_families_of_an_agents_methods_are_for_one_machine(name: str, needs: Capability | None) -> None:
    assert agent_method(name) == AgentMethod(Audience.HOST, needs)


@pytest.mark.parametrize("name", ["", "fs", "terminal", "mcp", "/fs/x", "_fs/x", "fsx/y", "session/update"])
def test_an_unlisted_agent_request_has_the_audience_of_one_client(name: str) -> None:
    assert agent_method(name) == AgentMethod(Audience.ONE)


def test_an_early_name_has_the_rules_of_the_current_one() -> None:
    assert len(methods.EARLY_NAMES) == 8
    for early, name in methods.EARLY_NAMES.items():
        assert agent_method(early) == agent_method(name) != AgentMethod(Audience.ONE)
        assert methods.current_name(early) == methods.current_name(name) == name
        assert methods.has_known_params(early)
        assert client_method(early) == ClientMethod()


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("session/new", True),
        ("authenticate", True),
        ("session/cancel", True),
        ("elicitation/create", True),
        ("elicitation/complete", True),
        ("fs/of_next_year", True),
        ("elicitation/x", False),
        ("_x/y", False),
    ],
)
def test_the_params_of_methods_of_the_protocol_are_known(name: str, *, known: bool) -> None:
    assert methods.has_known_params(name) is known


def test_the_gateways_own_methods_are_reserved_by_prefix() -> None:
    for name in (methods.HELLO, methods.ACCESS, methods.NEWS):
        assert name.startswith(methods.RESERVED_PREFIX)


def test_state_updates_are_not_message_chunks() -> None:
    assert methods.STATE_UPDATES.isdisjoint({methods.USER_CHUNK, methods.AGENT_CHUNK, "tool_call", "tool_call_update"})
    assert {methods.MODE_UPDATE, methods.CONFIG_UPDATE, methods.INFO_UPDATE} < methods.STATE_UPDATES
