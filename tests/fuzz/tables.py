"""Sizes of the core's tables: limits at any time, and emptiness in the end."""

from collections.abc import Iterable, Sized

from acp_gateway.core.multiplexer import Multiplexer
from acp_gateway.core.routing import EARLY_SIZE
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Client
from acp_gateway.core.sessions.sub_agents import MAX_REMEMBERED
from acp_gateway.core.states import SessionState
from acp_gateway.core.waiting import Until


def nothing_is_too_much(multiplexer: Multiplexer, registry: Registry) -> None:
    """Assert that all sizes are within the policy's limits, and equal to their counters."""
    agent, routing = multiplexer._agent, multiplexer._routing
    limits, settings = agent.policy.limits, agent.policy.gateway
    for client in agent.clients:
        assert len(client.requests) <= limits.max_open_requests
        sizes = [len(request.message.text) for request in client.requests.values()]
        assert client.waiting_size == sum(sizes)
        assert client.waiting_size <= settings.outbox_limit + max(sizes, default=0)
        assert len(agent.agent_requests.asked(client)) <= limits.max_open_requests
    assert len(agent.agent_requests) <= limits.max_open_requests
    live = [session for session in registry if session.live]
    assert registry.count_live() == len(live) <= limits.max_sessions
    for session in registry:
        assert session.live == (session.state is not SessionState.PAST)
        assert session.journal.size <= settings.journal_limit + sum(map(len, session.journal.states()))
        assert len(session.queue) <= limits.queued_prompts_per_session
        assert registry.count_live(session.owner) <= limits.sessions_per_identity
    assert routing.early_size <= EARLY_SIZE
    remembered: list[Sized] = [agent.sub_agents._parents, agent.sub_agents._owners, routing._elicitations]
    assert max(map(len, remembered)) <= MAX_REMEMBERED


def awaited(multiplexer: Multiplexer) -> list[str]:
    """Return the ids of the sessions that clients wait for, which may not open them."""
    waiting = multiplexer._agent.waiting.of_kind(Until.SESSION_REOPENED)
    return sorted({str(request.message.session) for request in waiting})


def nothing_is_left_of(clients: Iterable[Client], multiplexer: Multiplexer, registry: Registry) -> None:
    """Assert that nothing is kept for departed clients except what goes on without them."""
    assert not multiplexer.clients
    assert not multiplexer._agent.agent_requests._asked
    for client in clients:
        assert not any((client.requests, multiplexer.asks(client), client.sessions))
    for session in registry:
        assert not session.attached
        assert session.host is None
    assert not multiplexer._agent.waiting


def nothing_is_left(multiplexer: Multiplexer, registry: Registry) -> None:
    """Assert that nothing is kept for an ended process."""
    agent, routing = multiplexer._agent, multiplexer._routing
    tables: list[Sized] = [agent.open_requests, agent.waiting, agent.loading_journals, agent.agent_requests]
    tables += [agent.terminals, agent.clients, agent.live]
    tables += [routing._early, agent.sub_agents._parents, agent.sub_agents._owners, routing._elicitations]
    assert [table for table in tables if len(table)] == []
    assert not registry.count_live()
    for session in registry:
        assert not session.live
        assert not session.journal.size
