"""The bounded memory of a translator."""

from acp_gateway.versions.shown import ShownPlan, Tool
from acp_gateway.versions.state import CONTENT_SIZE, ENTRY_SIZE, Memory, bounded, digest_id


class Thing:
    def __init__(self, size: int) -> None:
        self.size = size


def held(memory: Memory) -> list[str]:
    return [name for name in "abc" if memory.get(Thing, name) is not None]


def test_what_was_not_changed_for_longest_is_forgotten_first() -> None:
    memory = Memory(700)
    for name in ("a", "b"):
        memory.keep(name, Thing(10))
    memory.keep("a", Thing(100))
    assert held(memory) == ["a", "b"]
    memory.keep("c", Thing(100))
    assert held(memory) == ["a", "c"]
    assert memory.size == 2 * (ENTRY_SIZE + 101)


def test_a_thing_beyond_the_limit_is_not_remembered() -> None:
    memory = Memory(1000)
    memory.keep("a", Thing(10))
    memory.keep("b", Thing(2000))
    assert memory.get(Thing, "b") is None
    assert memory.size == 0
    memory.drop(Thing, "b")


def test_a_memory_shrinks_to_a_size() -> None:
    memory = Memory(10_000)
    for name in "abc":
        memory.keep(name, Thing(100))
    memory.shrink(memory.size - 1)
    assert held(memory) == ["b", "c"]
    memory.shrink(0)
    assert (held(memory), memory.size) == ([], 0)


def test_what_was_asked_for_last_is_found_until_it_is_forgotten_or_replaced() -> None:
    memory, first, second = Memory(), Thing(10), Thing(20)
    memory.keep("a", first)
    assert [memory.last(Thing, "a") for _ in range(2)] == [first, first]
    assert memory.last(ShownPlan, "a") is None
    assert memory.last(Thing, "a") is first
    memory.keep("a", second)
    assert memory.last(Thing, "a") is second
    memory.shrink(0)
    assert memory.last(Thing, "a") is None


def test_things_of_different_kinds_have_different_keys() -> None:
    memory = Memory()
    memory.keep("a", Thing(10))
    assert memory.get(ShownPlan, "a") is None
    memory.keep("a", ShownPlan(b"[]", 0, "plan a", is_done=True))
    assert memory.get(Thing, "a") is not None
    memory.drop(Thing, "a")
    assert memory.get(ShownPlan, "a") is not None
    assert memory.get(Thing, "a") is None


def test_a_bounded_dict_keeps_the_last() -> None:
    found: dict[str, int] = {}
    for number in range(5):
        bounded(found, str(number), number, 2)
    assert found == {"3": 3, "4": 4}


def test_made_ids_are_the_same_for_the_same_text() -> None:
    assert digest_id(b"x") == digest_id(b"x") != digest_id(b"y")


def test_a_terminal_that_goes_beyond_the_limit_is_not_followed_any_more() -> None:
    tool = Tool()
    assert tool.append(b'{"type":"terminal","terminalId":"t"}') == "t"
    assert tool.refers_to("t")
    tool.append(b'{"type":"content","content":{"type":"text","text":"%b"}}' % (b"x" * CONTENT_SIZE))
    assert not tool.refers_to("t")
