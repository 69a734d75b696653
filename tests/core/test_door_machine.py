"""A door that is killed at any moment: each editor sees what the node has, once and in order, and gets its answers.

`doors` has the parts. What is on its way between node, door and editors arrives when chance has it, or never.
"""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from acp_gateway.core.sessions import Role
from tests.core.doors import Doors, Watcher
from tests.fuzz.effort import effort

FEW = st.integers(1, 4)


class Dying(RuleBasedStateMachine):
    """A node, doors one after the other, and the watchers of one session."""

    @initialize(journals=st.booleans(), commit=st.booleans())
    def begin(self, journals: bool, commit: bool) -> None:
        # To an observer, a session that has reached no disk does not exist.
        third = Role.OBSERVER if commit else Role.CONTROLLER
        self.watchers = [Watcher("ann"), Watcher("bob"), Watcher("eve", third)]
        self.doors = Doors(*self.watchers, journals=journals)
        self.doors.open(commit)
        self.open: dict[Watcher, list[int]] = {watcher: [] for watcher in self.watchers}
        self.asked = 0
        self.ended_by_link: set[str] = set()

    @rule(count=FEW)
    def agent_speaks(self, count: int) -> None:
        self.doors.speak(count)

    @rule()
    def agent_has_another_mode(self) -> None:
        self.doors.state("m")

    @precondition(lambda self: self.doors.prompts)
    @rule()
    def turn_ends(self) -> None:
        self.doors.end_turn()

    @precondition(lambda self: self.doors.prompts and self.asked == len(self.doors.decided))
    @rule()
    def agent_asks(self) -> None:
        self.asked += 1
        self.doors.ask()

    @rule(up=FEW, down=FEW)
    def some_is_carried(self, up: int, down: int) -> None:
        self.doors.carry(up, down)

    @rule()
    def all_is_carried(self) -> None:
        self.doors.carry()

    @rule(index=st.integers(0, 2), count=FEW)
    def some_arrives(self, index: int, count: int) -> None:
        self.doors.arrive(self.watchers[index], count)

    @rule()
    def all_arrives(self) -> None:
        for watcher in self.watchers:
            self.doors.arrive(watcher)

    @rule()
    def all_goes_on(self) -> None:
        self.doors.settle()

    @rule(index=st.integers(0, 1))
    def editor_prompts(self, index: int) -> None:
        watcher = self.watchers[index]
        if len(self.open[watcher]) < 6 and not watcher.conversation.recovering:
            self.open[watcher].append(self.doors.prompt(watcher))

    @rule(index=st.integers(0, 1))
    def editor_decides(self, index: int) -> None:
        watcher = self.watchers[index]
        if watcher.questions and not watcher.conversation.recovering:
            self.doors.choose(watcher)

    @rule()
    def disk_is_written(self) -> None:
        self.doors.commit()

    @rule(index=st.integers(0, 2))
    def link_of_an_editor_is_lost_for_good(self, index: int) -> None:
        self.doors.lose(self.watchers[index])

    @precondition(lambda self: self.doors.lives < 6)
    @rule()
    def door_is_killed(self) -> None:
        self.doors.kill()

    @precondition(lambda self: self.doors.links < 10)
    @rule()
    def link_to_the_node_is_lost_for_good(self) -> None:
        # The door answers what is open there with an error.
        self.ended_by_link |= {f"{watcher.name} {number}" for watcher in self.watchers for number in self.open[watcher]}
        self.doors.lose_link()

    def teardown(self) -> None:
        if not hasattr(self, "doors"):
            return
        doors = self.doors
        doors.settle()
        # What is asked next opens the session again, if the link to the node was lost.
        self.open[self.watchers[0]].append(doors.prompt(self.watchers[0]))
        doors.settle()
        if self.asked > len(doors.decided):
            assert all(len(watcher.questions) == 1 for watcher in self.watchers if watcher.role is Role.CONTROLLER)
            doors.choose(self.watchers[0])
            doors.settle()
        assert [answer["result"]["outcome"]["optionId"] for answer in doors.decided] == ["yes"] * self.asked
        assert not any(watcher.questions for watcher in self.watchers)
        while doors.prompts:
            doors.end_turn()
            doors.settle()
        doors.speak()
        doors.settle()
        assert not doors.session.turns
        doors.check_all()
        for watcher in self.watchers:
            for number in self.open[watcher]:
                text = f"{watcher.name} {number}"
                (reason,) = doors.reasons(watcher, number)
                assert doors.got.count(text) <= 1
                if text in self.ended_by_link and isinstance(reason, dict):
                    assert reason["data"]["reason"] in ("agent_ended", "outage")
                else:
                    assert reason == (f"end of {text}" if text in doors.got else "cancelled")


TestDying = Dying.TestCase
TestDying.settings = effort(100, steps=40)
