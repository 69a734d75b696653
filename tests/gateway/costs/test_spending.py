"""Costs of sessions: the sums of totals that agents tell, and which messages of an agent count."""

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.core.sessions.registry import Registry
from acp_gateway.gateway.costs.spending import MOST_CURRENCIES, Meter, describe, read_total, read_turn
from acp_gateway.protocol import jsonrpc
from tests.core.test_same_version import NewScene
from tests.kit.scene import Peer, Scene, Shelf, encode, opened_scene

LOADS = {"loadSession": True, "sessionCapabilities": {"close": {}, "fork": {}}}
NOTHING: dict[str, int] = {}


def cost_update(**cost: Any) -> Any:
    update = {"sessionUpdate": "usage_update", "used": 1, "size": 2, "cost": cost}
    return jsonrpc.parse(encode(method="session/update", params={"sessionId": "s", "update": update}))


@pytest.mark.parametrize(
    ("cost", "total"),
    [
        ({"amount": 0.25, "currency": "USD"}, ("USD", 250_000)),
        ({"amount": 3, "currency": "eur"}, ("EUR", 3_000_000)),
        ({"amount": 0.1 + 0.2, "currency": "USD"}, ("USD", 300_000)),
        ({"amount": -1, "currency": "USD"}, None),
        ({"amount": 1e10, "currency": "USD"}, None),
        ({"amount": "1", "currency": "USD"}, None),
        ({"amount": 1, "currency": "USD\n"}, None),
        ({"amount": 1, "currency": "credits"}, None),
        ({"amount": 1}, None),
    ],
)
def test_a_total_has_a_currency_of_three_letters_and_is_counted_in_millionths(cost: Any, total: Any) -> None:
    assert read_total(cost_update(**cost)) == total


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        (None, {}),
        ({"totalTokens": 9, "inputTokens": 3, "outputTokens": 2}, {"tokens": 9, "input": 3, "output": 2}),
        (
            {
                "inputTokens": 3,
                "outputTokens": 0,
                "cachedReadTokens": 40,
                "cachedWriteTokens": 5,
                "thoughtTokens": None,
            },
            {"tokens": 48, "input": 3, "cachedRead": 40, "cachedWrite": 5},
        ),
        ({"totalTokens": -9}, {}),
        ({"totalTokens": 10**13}, {}),
        ({"totalTokens": "9"}, {}),
        ([], {}),
    ],
)
def test_a_turn_counts_with_the_tokens_that_its_result_tells(usage: Any, tokens: Any) -> None:
    response = encode(id=1, result={"stopReason": "end_turn", "usage": usage})
    assert read_turn(jsonrpc.parse(response)) == {"turns": 1} | tokens


# Totals, in any order, with restarts


Life = tuple[bool, list[int], bool]
"""A process of an agent: whether its totals go on, what each turn costs, and whether it says first where it begins."""

lives = st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 9), max_size=5), st.booleans()), max_size=6)


class Billing:
    """An agent with one session, whose processes end, and the meter that it tells its totals."""

    def __init__(self, *, stored: bool = False) -> None:
        self.meter = Meter(is_new=True)
        self.spent = 0
        self.total = 0
        self._is_stored = stored

    def live(self, life: Life, order: Any, *, is_first: bool) -> None:
        goes_on, costs, says = life
        if not is_first:
            self.meter = Meter.decode(self.meter.encode()) if self._is_stored else self.meter
            self.meter.opened()
            self.total = self.total if goes_on else 0
            if says:
                self.meter.take_total("USD", self.total)
        self.meter.prompted()
        totals = []
        for cost in costs:
            self.spent += cost
            self.total += cost
            totals.append(self.total)
        for total in order.draw(st.permutations(totals + totals[:2])):
            self.meter.take_total("USD", total)

    @property
    def counted(self) -> int:
        return self.meter.spent["USD"]


@given(st.data(), lives, st.booleans())
def test_totals_that_go_on_add_up_to_what_was_spent(data: Any, several: list[Life], stored: Any) -> None:
    agent = Billing(stored=stored)
    for index, (_, costs, says) in enumerate(several):
        agent.live((True, costs, says), data, is_first=index == 0)
    assert agent.counted == agent.spent


@given(st.data(), lives, st.booleans())
def test_totals_that_begin_at_zero_or_go_on_add_up_where_the_agent_says_so(
    data: Any, several: list[Life], stored: Any
) -> None:
    agent = Billing(stored=stored)
    for index, (goes_on, costs, _) in enumerate(several):
        agent.live((goes_on, costs, True), data, is_first=index == 0)
    assert agent.counted == agent.spent


@given(st.data(), lives, st.booleans())
def test_nothing_ever_counts_twice(data: Any, several: list[Life], stored: Any) -> None:
    agent = Billing(stored=stored)
    for index, life in enumerate(several):
        agent.live(life, data, is_first=index == 0)
        assert agent.counted <= agent.spent


def test_a_total_below_the_last_one_has_begun_at_zero() -> None:
    meter = Meter(is_new=True)
    for total in (250, 280):
        meter.take_total("USD", total)
    meter.opened()
    meter.prompted()
    assert [meter.take_total("USD", total)["USD"] for total in (30, 310)] == [30, 280]


def test_what_was_spent_before_the_gateway_knew_a_session_does_not_count() -> None:
    meter = Meter()
    meter.opened()
    meter.prompted()
    assert [meter.take_total("USD", total)["USD"] for total in (5000, 5010)] == [0, 10]


@pytest.mark.parametrize("before", [0, 100])
def test_what_was_spent_elsewhere_between_two_openings_does_not_count(before: int) -> None:
    meter = Meter(is_new=True)
    if before:
        meter.take_total("USD", before)
    meter.opened()
    assert meter.take_total("USD", 180) == {}
    meter.prompted()
    assert meter.take_total("USD", 190) == {"USD": 10}
    assert meter.spent["USD"] == before + 10


def test_a_copy_of_a_session_does_not_cost_again_what_the_first_has_cost() -> None:
    meter = Meter(is_new=True)
    meter.take_total("USD", 100)
    copy = meter.forked()
    copy.prompted()
    assert (copy.take_total("USD", 130), meter.take_total("USD", 120)) == ({"USD": 30}, {"USD": 20})
    assert (copy.spent, meter.spent) == ({"USD": 30}, {"USD": 120})


def test_currencies_are_apart_and_a_session_has_a_few() -> None:
    meter = Meter(is_new=True)
    for index in range(MOST_CURRENCIES + 2):
        meter.take_total(f"US{index}", 7)
    assert meter.spent == {f"US{index}": 7 for index in range(MOST_CURRENCIES)}


@pytest.mark.parametrize("text", [None, "", "[]", '{"told":{"USD":"x"}}', "\ud800"])
def test_a_stored_meter_that_is_not_valid_knows_nothing(text: Any) -> None:
    assert Meter.decode(text).encode() is None


def test_amounts_are_told_with_costs_by_currency() -> None:
    told = describe(Counter({"USD": 1_500_000, "EUR": 1, "turns": 2, "tokens": 9}))
    assert told["costs"] == {"EUR": 0.000001, "USD": 1.5}
    assert (told["turns"], told["tokens"], told["cachedRead"]) == (2, 9, 0)
    told = describe(Counter({"USD": 10**30, "tokens": 2**53}))
    assert (told["costs"]["USD"] < 1e15, told["tokens"]) == (True, 2**53 - 1)


# Which messages count


def scene_with_shelf() -> tuple[Scene, Peer, Shelf]:
    shelf = Shelf()
    scene, ann = opened_scene(None, Registry("me", shelf), agentCapabilities=LOADS)
    return scene, ann, shelf


def tell_cost(scene: Scene, amount: float, session_id: str = "s") -> None:
    scene.agent.state("usage_update", session_id, used=1, size=2, cost={"amount": amount, "currency": "USD"})


def take_turn(scene: Scene, peer: Peer, amount: float | None = None, session_id: str = "s") -> None:
    """A turn of ten tokens, within which the agent tells a total."""
    peer.prompt(session_id=session_id)
    asked = scene.agent.heard()[-1]
    if amount is not None:
        tell_cost(scene, amount, session_id)
    scene.agent.answer(asked, stopReason="end_turn", usage={"totalTokens": 10})
    peer.heard()


def test_a_turn_counts_once_however_many_clients_see_it_and_load_its_history() -> None:
    scene, ann, shelf = scene_with_shelf()
    scene.join_session("bob")
    take_turn(scene, ann, 0.5)
    scene.join("late").load()
    assert shelf.spent == {"s": {"turns": 1, "tokens": 10, "USD": 500_000}}
    assert scene.session().spent == shelf.spent["s"]


@pytest.mark.parametrize(("replayed", "first"), [(0.5, 0.75), (None, 0.75), (0, 0.25), (None, 0.25)])
def test_a_replay_and_another_process_do_not_count_again(replayed: float | None, first: float) -> None:
    scene, ann, shelf = scene_with_shelf()
    take_turn(scene, ann, 0.5)
    scene.lose_agent()
    number = ann.prompt()
    scene.agent.answer(scene.agent.takes("initialize"), **scene.welcome)
    asked = scene.agent.takes("session/load")
    if replayed is not None:
        tell_cost(scene, replayed)
    scene.agent.answer(asked)
    prompt = scene.agent.takes("session/prompt")
    tell_cost(scene, first)
    scene.agent.answer(prompt, stopReason="end_turn")
    assert number in [message.get("id") for message in ann.heard()]
    assert shelf.spent["s"] == {"turns": 2, "tokens": 10, "USD": 750_000}


def test_a_session_that_only_the_agent_knew_begins_with_the_total_that_it_tells() -> None:
    shelf = Shelf()
    scene = Scene(None, Registry("me", shelf), agentCapabilities=LOADS)
    ann = scene.join("ann")
    ann.request("session/load", sessionId="old", cwd="/srv", mcpServers=[])
    asked = scene.agent.takes("session/load")
    tell_cost(scene, 40, "old")
    scene.agent.answer(asked)
    take_turn(scene, ann, 40.5, "old")
    assert shelf.spent["old"]["USD"] == 500_000


def test_a_fork_costs_what_it_adds() -> None:
    scene, ann, shelf = scene_with_shelf()
    take_turn(scene, ann, 0.5)
    ann.request("session/fork", sessionId="s", cwd="/srv", mcpServers=[])
    scene.agent.answers("session/fork", sessionId="f")
    take_turn(scene, ann, 0.75, "f")
    take_turn(scene, ann, 0.6)
    assert {name: spent["USD"] for name, spent in shelf.spent.items()} == {"s": 600_000, "f": 250_000}


def test_costs_of_sub_agents_count_as_far_as_the_total_of_their_session_has_them() -> None:
    scene, ann, shelf = scene_with_shelf()
    ann.prompt()
    asked = scene.agent.takes("session/prompt")
    tell_cost(scene, 9, "child")
    tell_cost(scene, 1)
    scene.agent.answer(asked, stopReason="end_turn")
    assert shelf.spent == {"s": {"turns": 1, "USD": 1_000_000}}


def test_a_turn_that_fails_or_is_cancelled_counts_with_its_tokens() -> None:
    scene, ann, shelf = scene_with_shelf()
    ann.prompt()
    scene.agent.refuses("session/prompt")
    ann.prompt()
    asked = scene.agent.takes("session/prompt")
    ann.cancel()
    scene.agent.answer(asked, stopReason="cancelled", usage={"totalTokens": 3})
    assert shelf.spent["s"] == {"turns": 2, "tokens": 3}


def test_an_agent_of_version_2_tells_its_tokens_with_the_end_of_a_turn() -> None:
    shelf = Shelf()
    scene = NewScene(None, Registry("me", shelf))
    ann = scene.come("ann")
    ann.new_session()
    ann.prompt()
    asked = scene.agent.takes("session/prompt")
    scene.agent.answer(asked, messageId="m1")
    scene.agent.state("state_update", state="running")
    tell_cost(scene, 0.5)
    for _ in range(2):
        scene.agent.state("state_update", state="idle", stopReason="end_turn", usage={"totalTokens": 10})
    assert shelf.spent["s"] == {"turns": 1, "tokens": 10, "USD": 500_000}
    assert json.loads(shelf.meters.of(scene.session()).encode() or "")["told"] == {"USD": 500_000}
