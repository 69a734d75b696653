"""A door that is killed at any moment: each editor sees what the node has, once and in order, and gets its answers.

`fronts` has the parts. What is on its way between node, door and editors arrives when chance has it, or never.
"""

import json
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from acp_gateway.core.sessions.session import Role
from tests.core.fronts import ABILITIES, LIMIT, TAKES_FURTHER_PROMPTS, Fronts, Watcher
from tests.fuzz.effort import effort

FEW = st.integers(1, 4)
SENT = st.integers(0, 3) | st.just(1000)
"""Number of messages on their way to the node that may have been sent."""


class Conversation(RuleBasedStateMachine):
    """The events of a session at a door, but for some deaths."""

    fronts: Fronts
    watchers: list[Watcher]

    @precondition(lambda self: self.fronts.prompts)
    @rule()
    def turn_ends(self) -> None:
        self.fronts.end_turn()

    @rule(up=FEW, down=FEW)
    def some_is_carried(self, up: int, down: int) -> None:
        self.fronts.carry(up, down)

    @rule()
    def all_is_carried(self) -> None:
        self.fronts.carry()

    @rule(index=st.integers(0, 2), count=FEW)
    def some_arrives(self, index: int, count: int) -> None:
        self.fronts.arrive(self.watchers[index], count)

    @rule()
    def all_goes_on(self) -> None:
        self.fronts.settle()

    @rule()
    def disk_is_written(self) -> None:
        self.fronts.commit()

    @rule(index=st.integers(0, 2))
    def link_of_an_editor_is_lost_for_good(self, index: int) -> None:
        self.fronts.lose(self.watchers[index])

    @precondition(lambda self: self.fronts.lives < 6)
    @rule()
    def front_is_killed(self) -> None:
        self.fronts.kill()


class Dying(Conversation):
    """A node, doors one after the other, and the watchers of one session."""

    @initialize(
        journals=st.booleans(), commit=st.booleans(), ability=st.sampled_from([ABILITIES[0], TAKES_FURTHER_PROMPTS])
    )
    def begin(self, journals: bool, commit: bool, ability: dict[str, Any]) -> None:
        # To an observer, a session that has reached no disk does not exist.
        third = Role.OBSERVER if commit else Role.CONTROLLER
        self.watchers = [Watcher("ann"), Watcher("bob"), Watcher("eve", third)]
        self.fronts = Fronts(*self.watchers, journals=journals, ability=ability)
        self.fronts.open(commit)
        self.open: dict[Watcher, list[int]] = {watcher: [] for watcher in self.watchers}
        self.asked = 0
        self.ended_by_link: set[str] = set()

    @rule(count=FEW)
    def agent_speaks(self, count: int) -> None:
        self.fronts.speak(count)

    @rule()
    def agent_has_another_mode(self) -> None:
        self.fronts.state("m")

    @precondition(lambda self: self.fronts.prompts and self.asked == len(self.fronts.decided))
    @rule()
    def agent_asks(self) -> None:
        self.asked += 1
        self.fronts.ask()

    @rule()
    def all_arrives(self) -> None:
        for watcher in self.watchers:
            self.fronts.arrive(watcher)

    @rule(index=st.integers(0, 1))
    def editor_prompts(self, index: int) -> None:
        watcher = self.watchers[index]
        if len(self.open[watcher]) < 6 and not watcher.conversation.recovering:
            self.open[watcher].append(self.fronts.prompt(watcher))

    @rule(index=st.integers(0, 1))
    def editor_decides(self, index: int) -> None:
        watcher = self.watchers[index]
        if watcher.questions and not watcher.conversation.recovering:
            self.fronts.choose(watcher)

    @precondition(lambda self: self.fronts.links < 10)
    @rule(sent=SENT)
    def link_to_the_node_is_lost_for_good(self, sent: int) -> None:
        unsent = [json.loads(text).get("params", {}) for text in list(self.fronts.up)[sent:]]
        waits = {params["prompt"][0]["text"] for params in unsent if "prompt" in params}
        # The door answers what is open there with an error, except prompts that certainly were not sent.
        is_open = {f"{watcher.name} {number}" for watcher in self.watchers for number in self.open[watcher]}
        self.ended_by_link |= is_open - waits
        self.fronts.lose_link(sent)

    def teardown(self) -> None:
        if not hasattr(self, "fronts"):
            return
        fronts = self.fronts
        fronts.settle()
        # What is asked next opens the session again, if the link to the node was lost.
        self.open[self.watchers[0]].append(fronts.prompt(self.watchers[0]))
        fronts.settle()
        if self.asked > len(fronts.decided):
            assert all(len(watcher.questions) == 1 for watcher in self.watchers if watcher.role is Role.CONTROLLER)
            fronts.choose(self.watchers[0])
            fronts.settle()
        assert [answer["result"]["outcome"]["optionId"] for answer in fronts.decided] == ["yes"] * self.asked
        assert not any(watcher.questions for watcher in self.watchers)
        while fronts.prompts:
            fronts.end_turn()
            fronts.settle()
        fronts.speak()
        fronts.settle()
        assert not fronts.session.turns
        fronts.check_all()
        for watcher in self.watchers:
            for number in self.open[watcher]:
                text = f"{watcher.name} {number}"
                (reason,) = fronts.reasons(watcher, number)
                assert fronts.got.count(text) <= 1
                if text in self.ended_by_link and isinstance(reason, dict):
                    assert reason["data"]["reason"] in ("agent_ended", "outage", "gateway_restarted")
                elif text in fronts.got:
                    assert reason == f"end of {text}"
                else:
                    assert reason == "cancelled" or reason["data"]["reason"] == "gateway_restarted"


TestDying = Dying.TestCase
TestDying.settings = effort(100, steps=40)


class BothDying(Conversation):
    """A node and a door that are killed at any moment, each with what has reached its disk, and who watches a session.

    An editor misses nothing without being told, and sees nothing twice.
    """

    @initialize(ability=st.sampled_from([*ABILITIES, TAKES_FURTHER_PROMPTS]), limit=st.sampled_from([800, LIMIT]))
    def begin(self, ability: dict[str, Any], limit: int) -> None:
        self.watchers = [Watcher("ann"), Watcher("bob"), Watcher("eve", Role.OBSERVER)]
        self.fronts = Fronts(*self.watchers, ability=ability, limit=limit)
        self.fronts.open()
        self.fronts.commit_node()
        self.prompts: list[tuple[Watcher, int]] = []

    @precondition(lambda self: self.fronts.speaks)
    @rule(count=FEW)
    def agent_speaks(self, count: int) -> None:
        self.fronts.speak(count)

    @rule(index=st.integers(0, 1))
    def editor_prompts(self, index: int) -> None:
        watcher = self.watchers[index]
        if not watcher.conversation.recovering and len(self.prompts) < 6:
            self.prompts.append((watcher, self.fronts.prompt(watcher)))

    @rule()
    def disk_of_the_node_is_written(self) -> None:
        self.fronts.commit_node()

    @precondition(lambda self: self.fronts.node_lives < 6)
    @rule(sent=SENT)
    def node_is_killed(self, sent: int) -> None:
        self.fronts.kill_node(sent)

    @precondition(lambda self: self.fronts.links < 12)
    @rule(sent=SENT)
    def link_to_the_node_is_lost_for_good(self, sent: int) -> None:
        self.fronts.lose_link(sent)

    def teardown(self) -> None:
        if not hasattr(self, "fronts"):
            return
        fronts = self.fronts
        fronts.settle()
        while fronts.prompts:
            fronts.end_turn()
            fronts.settle()
        fronts.speak()
        fronts.settle()
        fronts.check_told()
        for watcher, number in self.prompts:
            assert len(watcher.answers.get(number, [])) == 1


TestBothDying = BothDying.TestCase
TestBothDying.settings = effort(100, steps=40)
