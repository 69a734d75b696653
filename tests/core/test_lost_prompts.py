"""Prompts whose link was lost: the door is killed at each step of a turn, and comes back."""

from tests.core.doors import Doors, Watcher


def pair() -> tuple[Doors, Watcher, Watcher]:
    ann, bob = Watcher("ann"), Watcher("bob")
    doors = Doors(ann, bob)
    doors.open()
    return doors, ann, bob


def test_a_door_that_is_killed_in_mid_turn_goes_on_with_the_turn_and_its_answer() -> None:
    doors, ann, bob = pair()
    number = doors.prompt(ann)
    doors.carry()
    doors.speak(3)
    doors.settle()
    doors.speak(3)
    doors.kill()
    doors.speak(2)
    doors.settle()
    assert doors.session.turns
    assert doors.reasons(ann, number) == []
    doors.speak(1)
    doors.end_turn()
    doors.settle()
    assert doors.reasons(ann, number) == [f"end of ann {number}"]
    assert not doors.session.turns
    doors.check_all()
    assert bob.seen == [f"ann {number}", *map(str, range(1, 10))]
