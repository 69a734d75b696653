"""The script of the task `page`, and its report."""

import json
from typing import Any

from benchmarks.measuring import Measured
from benchmarks.tasks.page import OPENING, STREAMING, VISITING, Trips, plays, table

SUBJECTS = [OPENING, STREAMING, VISITING]


def test_as_many_updates_are_played_as_are_reported() -> None:
    (fill, _), (rate, stream, _) = plays(100_000, 10)["plays"].values()
    assert len(fill["group"]) * fill["times"] == 100_000
    assert len(stream["group"]) * stream["times"] == rate["per_second"] * 10


def test_targets_are_compared_with_the_medians() -> None:
    rounds = [
        {
            OPENING: {"seconds": seconds, "heap": 3e6, "nodes": 200.0},
            STREAMING: {"longest": longest, "long": 1.0, "sum": 500.0},
            VISITING: {"requests": 3.0, "size": 1e5, "trips": 2.0, "painted": longest / 1e3},
        }
        for seconds, longest in ((0.3, 50.0), (0.4, 120.0), (2.5, 130.0))
    ]
    section = table(Measured("page", SUBJECTS, rounds), 100_000, 10)
    assert [(target.measured, target.met) for target in section.targets] == [
        *((0.4, True), (120.0, False)),
        *((3.0, True), (2.0, True), (0.12, True)),
    ]
    assert section.rows[5][1] == "5.0 %"


def test_what_failed_is_a_missing_figure() -> None:
    section = table(Measured("page", SUBJECTS, [{}], {OPENING: "in round 1: gone"}), 100_000, 10)
    assert [target.met for target in section.targets] == [None] * 5
    assert "opening failed in round 1: gone" in section.notes


class Socket:
    """A connection whose messages a test tells."""

    def __init__(self, trips: Trips) -> None:
        self._told: dict[str, Any] = {}
        trips.follow(self)

    def on(self, event: str, told: Any) -> None:
        self._told[event] = told

    def asks(self, number: int, method: str = "gateway/info") -> None:
        self._told["framesent"](json.dumps({"id": number, "method": method}))

    def gets(self, **message: Any) -> None:
        self._told["framereceived"](json.dumps(message))


def test_a_round_trip_is_the_opening_and_each_wait_for_answers_until_the_list() -> None:
    trips = Trips()
    socket = Socket(trips)
    socket.asks(1)
    socket.asks(2, "session/list")
    socket.gets(method="session/status_changed")
    socket.gets(id=2, result={})
    assert trips.count == 2
    socket.gets(id=1, result={})
    socket.asks(3)
    Socket(trips)
    assert trips.count == 2
    trips = Trips()
    Socket(trips).asks(1)
    socket = Socket(trips)  # In place of the first one, which was lost.
    for number, method in ((1, "gateway/info"), (2, "agents/list"), (3, "session/list")):
        socket.asks(number, method)
        socket.gets(id=number, result={})
    assert trips.count == 4
