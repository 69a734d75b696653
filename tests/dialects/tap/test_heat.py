"""Heat of files by time, context and turns."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.dialects.tap.files import Touch
from acp_gateway.dialects.tap.heat import COLD, FACTOR, STEP, HeatMap


def touched(*paths: str, files: int = 10, context_turns: int = 3) -> HeatMap:
    heat = HeatMap(files, context_turns)
    heat.begin_turn(0)
    for path in paths:
        heat.touch(Touch(path, "read"), 0)
    return heat


def of(heat: HeatMap, now: int = 0) -> dict[str, float]:
    return {path: node["heat"] for path, node in heat.nodes(now).items()}


def test_a_file_in_context_is_hot_whatever_the_time() -> None:
    heat = touched("a")
    assert heat.nodes(10**9) == {
        "a": {
            "path": "a",
            "heat": 1.0,
            "in_context": True,
            "last_action": "read",
            "turn_accessed": 1,
            "timestamp_ms": 0,
        }
    }
    assert not heat.cools


def test_a_file_leaves_the_context_after_context_turns_without_access() -> None:
    heat = touched("a")
    for turn in (2, 3, 4):
        heat.begin_turn(turn * 1000)
        assert heat.nodes(turn * 1000)["a"]["in_context"]
    heat.begin_turn(5000)
    assert heat.cools
    assert heat.nodes(5000)["a"] | {"in_context": False, "heat": 1.0} == heat.nodes(5000)["a"]


def test_a_file_out_of_context_cools_by_a_factor_for_each_step() -> None:
    heat = touched("a")
    heat.use(100, 0)
    heat.use(50, 1000)
    assert of(heat, 1000 + STEP - 1) == {"a": 1.0}
    assert of(heat, 1000 + STEP) == {"a": 0.95}
    assert of(heat, 1000 + 10 * STEP) == {"a": round(FACTOR**10, 4)}
    # A clock that goes back warms nothing above 1.
    assert of(heat, 0) == {"a": 1.0}


def test_a_cold_file_is_removed() -> None:
    heat = touched("a")
    heat.use(100, 0)
    heat.use(10, 0)
    heat.changed.clear()
    heat.cool(89 * STEP)
    assert heat.changes(89 * STEP)[0][0]["heat"] == round(FACTOR**89, 4) >= COLD
    heat.cool(90 * STEP)
    assert heat.changes(90 * STEP) == ([], ["a"])
    assert (len(heat), heat.cools) == (0, False)


def test_an_access_brings_a_file_back_into_context() -> None:
    heat = touched("a")
    heat.use(100, 0)
    heat.use(10, 0)
    heat.touch(Touch("a", "write"), 700)
    assert not heat.cools
    assert heat.nodes(9000)["a"] | {"last_action": "write", "timestamp_ms": 700, "heat": 1.0} == heat.nodes(9000)["a"]


def test_only_a_fall_by_half_is_a_compaction() -> None:
    for before, after, cools in [(100, 51, False), (100, 50, True), (100, 100, False), (0, 0, False), (100, 0, True)]:
        heat = touched("a")
        heat.use(before, 0)
        heat.use(after, 0)
        assert heat.cools is cools


def test_beyond_files_the_one_unused_for_longest_is_removed() -> None:
    heat = touched("a", "b", "c", "a", "d", files=3)
    assert set(of(heat)) == {"c", "a", "d"}
    assert heat.changes(0)[1] == ["b"]


def test_clear_removes_all_files() -> None:
    heat = touched("a", "b")
    heat.clear()
    assert (len(heat), heat.changes(0)[1]) == (0, ["a", "b"])


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("touch"), st.sampled_from("abcde"), st.integers(0, 3000)),
        st.tuples(st.just("turn"), st.just(""), st.integers(0, 3000)),
        st.tuples(st.just("use"), st.sampled_from(["10", "4", "20"]), st.integers(0, 3000)),
        st.tuples(st.just("cool"), st.just(""), st.integers(0, 3000)),
    ),
    max_size=40,
)


@given(EVENTS)
def test_any_sequence_of_events_ends_in_the_state_of_a_simple_fold(events: list[tuple[str, str, int]]) -> None:
    heat, now = HeatMap(3, 2), 0
    # By path, the last used last: turn of the last access, its time, and when it left the context.
    state: dict[str, Any] = {}
    turn, used = 0, None
    for kind, word, pause in events:
        now += pause
        if kind == "touch":
            heat.touch(Touch(word, "read"), now)
            state = {path: it for path, it in state.items() if path != word} | {word: (turn, now, None)}
            state = dict(list(state.items())[-3:])
        elif kind == "turn":
            heat.begin_turn(now)
            turn += 1
            state = {p: (t, at, now if left is None and turn - t > 2 else left) for p, (t, at, left) in state.items()}
        elif kind == "use":
            heat.use(int(word), now)
            if used is not None and int(word) * 2 <= used:
                state = {path: (t, at, now if left is None else left) for path, (t, at, left) in state.items()}
            used = int(word)
        else:
            heat.cool(now)
            state = {p: it for p, it in state.items() if it[2] is None or 0.95 ** ((now - it[2]) // 100) >= 0.01}
    found = heat.nodes(now)
    assert {p: (it["turn_accessed"], it["timestamp_ms"], it["in_context"]) for p, it in found.items()} == {
        path: (t, at, left is None) for path, (t, at, left) in state.items()
    }
    for path, (_, _, left) in state.items():
        assert found[path]["heat"] == (1.0 if left is None else round(0.95 ** min((now - left) // 100, 90), 4))
    assert heat.cools == any(left is not None for _, _, left in state.values())
