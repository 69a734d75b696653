"""The search for slow messages makes messages that are looked into, and not refused at their first byte."""

import random
from itertools import islice

import pytest

from acp_gateway.protocol import spans
from tests.fuzz.slow import FRAMES, Plan, mutated, random_plan, steps


def plan(frame: int, side: int = 0, spice: int = 0) -> Plan:
    return Plan(frame, 0, (1,), (1,), 0, spice, 3000, side)


@pytest.mark.parametrize("frame", range(len(FRAMES)))
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("spice", [0, 2])
def test_what_fills_a_message_is_taken_wherever_it_stands(frame: int, side: int, spice: int) -> None:
    text = plan(frame, spice=spice).text().replace(b"#", b"1")
    assert spans.value_end(spans.structure(text), 0) == len(text)
    for step in steps(plan(frame, side=side, spice=spice)):
        step()


def test_the_same_seed_makes_the_same_plans() -> None:
    def some(seed: int) -> list[Plan]:
        chance = random.Random(seed)  # noqa: S311
        first = random_plan(chance, 3000)
        return [first, *(mutated(first, chance) for _ in range(20))]

    assert some(1) == some(1) != some(2)


def test_of_a_container_no_more_is_walked_through_than_there_may_be_members() -> None:
    walks = (
        (spans.elements(b"[" + b"[]," * 5000 + b"[]]"), spans.ELEMENTS),
        (spans.members(b"{" + b'"":{},' * 5000 + b'"":{}}'), spans.MEMBERS),
    )
    for walk, most in walks:
        assert len(list(islice(walk, most))) == most
        with pytest.raises(spans.TooMany):
            next(iter(walk))
