"""Which histories go first."""

from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.gateway.storage.history_limits import Kept, to_remove

HISTORIES = [
    Kept(1, "ann", 100, used=3.0, live=False),
    Kept(2, "bob", 100, used=1.0, live=False),
    Kept(3, "ann", 100, used=2.0, live=False),
    Kept(4, "bob", 100, used=0.0, live=True),
]


def test_the_history_unused_for_longest_goes_first_and_none_of_a_live_session() -> None:
    assert to_remove(HISTORIES, 400, 400) == []
    assert to_remove(HISTORIES, 399, 400) == [2]
    assert to_remove(HISTORIES, 201, 400) == [2, 3]
    assert to_remove(HISTORIES, 0, 400) == [2, 3, 1]


def test_an_identity_above_history_limit_per_identity_loses_its_own() -> None:
    more = [*HISTORIES, Kept(5, "ann", 50, used=9.0, live=False)]
    assert to_remove(more, 450, 249) == [3]
    assert to_remove(more, 340, 249) == [3, 2]


@given(
    st.lists(st.builds(Kept, st.integers(), st.sampled_from("ab"), st.integers(0, 9), st.floats(0, 9), st.booleans())),
    st.integers(0, 50),
    st.integers(0, 50),
)
def test_whatever_there_is_no_more_stays_than_may_but_for_live_ones(
    drawn: list[Kept], limit: int, limit_per_identity: int
) -> None:
    histories = list({history.key: history for history in drawn}.values())
    removed = to_remove(histories, limit, limit_per_identity)
    assert len(set(removed)) == len(removed)
    left = [history for history in histories if history.key not in removed]
    assert not any(history.live for history in histories if history.key in removed)
    if sum(history.size for history in left) > limit:
        assert all(history.live or not history.size for history in left)
    for owner in "ab":
        its = [history for history in left if history.owner == owner]
        if sum(history.size for history in its) > limit_per_identity:
            assert all(history.live or not history.size for history in its)
