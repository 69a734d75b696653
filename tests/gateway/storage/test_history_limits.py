"""Which histories go first."""

from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.gateway.storage.history_limits import Kept, reduce

HISTORIES = [
    Kept(1, "ann", 100, used=3.0, live=False),
    Kept(2, "bob", 100, used=1.0, live=False),
    Kept(3, "ann", 100, used=2.0, live=False),
    Kept(4, "bob", 100, used=0.0, live=True),
]


def test_history_limit_removes_the_least_recently_used_history_first() -> None:
    assert reduce(HISTORIES, 400, 400) == ([], {})
    assert reduce(HISTORIES, 399, 400) == ([2], {})
    assert reduce(HISTORIES, 201, 400) == ([2, 3], {})
    assert reduce(HISTORIES, 100, 400) == ([2, 3, 1], {})


def test_an_identity_above_history_limit_per_identity_loses_its_own() -> None:
    more = [*HISTORIES, Kept(5, "ann", 50, used=9.0, live=False)]
    assert reduce(more, 450, 249) == ([3], {})
    assert reduce(more, 340, 249) == ([3, 2], {})
    assert reduce(more, 150, 249) == ([3, 2, 1], {})


def test_history_limit_halves_the_largest_live_history_of_the_identity_that_holds_most() -> None:
    live = [
        Kept(1, "ann", 100, used=0.0, live=True),
        Kept(2, "bob", 80, used=0.0, live=True),
        Kept(3, "bob", 60, used=0.0, live=True),
    ]
    assert reduce(live, 240, 240) == ([], {})
    assert reduce(live, 239, 240) == ([], {2: 40})
    assert reduce(live, 160, 240) == ([], {2: 40, 1: 50})
    assert reduce(live, 240, 100) == ([], {2: 40})
    assert reduce([*live, Kept(4, "eve", 1, used=0.0, live=False)], 239, 240) == ([4], {2: 40})


@given(
    st.lists(st.builds(Kept, st.integers(), st.sampled_from("ab"), st.integers(0, 9), st.floats(0, 9), st.booleans())),
    st.integers(0, 50),
    st.integers(0, 50),
)
def test_after_a_reduction_both_limits_are_met_and_nothing_live_is_removed(
    drawn: list[Kept], limit: int, limit_per_identity: int
) -> None:
    histories = {history.key: history for history in drawn}
    reduction = reduce(histories.values(), limit, limit_per_identity)
    assert len(set(reduction.removed)) == len(reduction.removed)
    assert not any(histories[key].live for key in reduction.removed)
    assert all(histories[key].live and size < histories[key].size for key, size in reduction.cut.items())
    left = {
        key: reduction.cut.get(key, history.size) for key, history in histories.items() if key not in reduction.removed
    }
    assert sum(left.values()) <= limit
    for owner in "ab":
        assert sum(size for key, size in left.items() if histories[key].owner == owner) <= limit_per_identity
    if reduction.cut:
        owners = {histories[key].owner for key in reduction.cut}
        assert all(histories[key].live or not size for key, size in left.items() if histories[key].owner in owners)
