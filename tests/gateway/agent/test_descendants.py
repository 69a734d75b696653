"""Descendants of an agent: the processes that are its own, in a made-up /proc."""

import pytest

from acp_gateway.gateway.agent.descendants import descendants_in, named
from acp_gateway.gateway.agent.orphans import ProcessStat

AGENT = ProcessStat(700, "S", 1, 700, 700, 1000)


def process(pid: int, parent: int, session: int = 700, state: str = "S") -> ProcessStat:
    return ProcessStat(pid, state, parent, session, session, 1000 + pid, name=f"p{pid}")


@pytest.mark.parametrize(
    ("others", "found"),
    [
        ([process(701, 700), process(702, 701)], [700, 701, 702]),
        # A session of its own; one whose parent has ended; a shell's session, with what that shell's child has left.
        (
            [process(701, 700, 701), process(702, 1), process(703, 701, 703), process(704, 1, 703)],
            [700, *range(701, 705)],
        ),
        # It has left, as all of its parents have ended, and it has a session of its own.
        ([process(701, 1, 701), process(702, 2, 2)], [700]),
        ([process(701, 700, state="Z"), process(702, 701)], [700, 702]),
    ],
)
def test_descendants_and_those_in_their_sessions_belong_to_an_agent(
    others: list[ProcessStat], found: list[int]
) -> None:
    assert sorted(stat.pid for stat in descendants_in([*others, AGENT], AGENT)) == found


def test_a_process_that_was_reaped_has_no_descendants_though_its_id_is_used_again() -> None:
    assert descendants_in([ProcessStat(700, "S", 1, 700, 700, 2000), process(701, 700)], AGENT) == []


def test_of_many_processes_five_are_named_and_no_terminal_is_controlled() -> None:
    assert named([process(1, 0)]) == "p1 (1)"
    odd = ProcessStat(9, "S", 1, 9, 9, 1, name="\x1b[2J")
    assert named([odd, *(process(pid, 0) for pid in range(1, 7))]) == (
        "\\x1b[2J (9), p1 (1), p2 (2), p3 (3), p4 (4) and 2 more"
    )
