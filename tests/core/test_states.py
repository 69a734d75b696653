"""States and their transitions: as the architecture describes them, and nothing else."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.core.process import Process
from acp_gateway.core.sessions.session import Client, Session, SessionReach
from acp_gateway.core.states import (
    AGENT_TRANSITIONS,
    CLIENT_TRANSITIONS,
    PRESENCE_TRANSITIONS,
    SESSION_TRANSITIONS,
    AgentPhase,
    ClientPhase,
    Presence,
    SessionState,
)
from acp_gateway.core.turns.journal import Journal

ARCHITECTURE = (Path(__file__).parents[2] / "docs/architecture.md").read_text(encoding="utf-8")
TABLES: list[Mapping[Any, frozenset[Any]]] = [
    CLIENT_TRANSITIONS,
    PRESENCE_TRANSITIONS,
    SESSION_TRANSITIONS,
    AGENT_TRANSITIONS,
]


def described() -> list[dict[str, set[str]]]:
    """Read the tables of the section on states: the names in the first column, and those in the last."""
    section = ARCHITECTURE.partition("\n## States\n")[2].partition("\n## ")[0]
    tables = re.findall(r"^\| \w+ \| \| next \|\n\|---\|---\|---\|\n((?:\|.*\|\n)+)", section, re.MULTILINE)
    rows = [[line.strip("| ").split(" | ") for line in table.splitlines()] for table in tables]
    return [{cells[0]: set(re.findall(r"\w+", cells[2])) for cells in table if len(cells) == 3} for table in rows]


def test_the_architecture_has_the_transitions_of_the_code() -> None:
    in_code = []
    for transitions in TABLES:
        names = {before: {after.name.lower() for after in transitions[before]} for before in transitions}
        in_code.append({before.name.lower(): after or {"none"} for before, after in names.items()})
    assert described() == in_code


@pytest.mark.parametrize("transitions", TABLES, ids=["client", "presence", "session", "agent"])
def test_a_table_of_transitions_has_a_row_for_each_state(transitions: Mapping[Any, frozenset[Any]]) -> None:
    kind: Any = type(next(iter(transitions)))
    assert list(transitions) == list(kind)


def test_move_to_asserts_the_transition_of_a_client() -> None:
    client = Client("ann", SessionReach("me"))
    with pytest.raises(AssertionError, match=r"NEW is not followed by .*READY"):
        client.move_to(ClientPhase.READY)
    assert client.phase is ClientPhase.NEW
    client.become(Presence.GONE)
    with pytest.raises(AssertionError, match=r"GONE is not followed by .*CONNECTED"):
        client.become(Presence.CONNECTED)
    assert client.gone


def test_move_to_asserts_the_transition_of_a_session_and_of_an_agent() -> None:
    process, session = Process(), Session("agent", "s", "me", Journal(1000))
    with pytest.raises(AssertionError, match=r"PAST is not followed by .*CLOSING"):
        session.move_to(SessionState.CLOSING)
    assert session.state is SessionState.PAST
    with pytest.raises(AssertionError, match=r"ABSENT is not followed by .*READY"):
        process.move_to(AgentPhase.READY)
    assert process.phase is AgentPhase.ABSENT


def test_a_client_begins_connected_and_new() -> None:
    client = Client("ann", SessionReach("me"))
    assert (client.presence, client.phase) == (Presence.CONNECTED, ClientPhase.NEW)
    client.become(Presence.AWAY)
    assert client.presence is Presence.AWAY
