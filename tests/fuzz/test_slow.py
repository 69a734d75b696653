"""The search for slow messages makes messages that are looked into, and not refused at their first byte."""

import random
from itertools import islice

import pytest

from acp_gateway.protocol.text import spans
from acp_gateway.server.http.route import CODE_SIZE
from tests.fuzz import slow, slow_http
from tests.fuzz.slow_plans import CALLS, FRAMES, HEADS, HELLOS, LOGINS, SIDES, Plan, mutated, random_plan
from tests.fuzz.slow_sides import steps


def plan(frame: int, side: int = 0, spice: int = 0) -> Plan:
    return Plan(frame, 0, (1,), (1,), 0, spice, 3000, side)


READ = {
    **dict.fromkeys(("core", "shim"), range(len(FRAMES))),
    **dict.fromkeys(("history", "link", "recording", "post", "tap"), range(0, len(FRAMES), 7)),
    "hello": range(len(HELLOS)),
    "browser": range(len(CALLS)),
}


@pytest.mark.parametrize("side", READ)
@pytest.mark.parametrize("spice", [0, 2])
def test_what_fills_a_message_is_taken_wherever_it_stands(side: str, spice: int) -> None:
    for frame in READ[side]:
        message = plan(frame, side=SIDES.index(side), spice=spice)
        text = message.text().replace(b"#", b"1")
        assert spans.value_end(spans.structure(text), 0) == len(text), frame
        for step in steps(message):
            step()


@pytest.mark.parametrize("frame", range(len(LOGINS)))
def test_the_body_of_a_sign_in_is_as_long_as_is_read_and_no_longer(frame: int) -> None:
    message = plan(frame, side=SIDES.index("login"))
    assert 900 < len(message.text()) <= CODE_SIZE
    for step in steps(message):
        step()


def test_a_message_is_posted_as_a_whole_and_in_chunks_and_accepted_in_both_ways() -> None:
    message = plan(next(index for index, (who, _) in enumerate(FRAMES) if who == "client"), side=SIDES.index("post"))
    whole, chunked = slow_http.posts(message.text())
    for request in (whole, chunked):
        assert slow_http.take_post(request).startswith(b"HTTP/1.1 202 ")


@pytest.mark.parametrize("frame", range(len(HEADS)))
def test_requests_of_strangers_are_as_long_as_is_read_and_no_longer(frame: int) -> None:
    message = plan(frame, side=SIDES.index("http"))
    lines = message.text().split(b"\r\n")
    assert 1000 < max(map(len, lines)) < 8192
    for step in steps(message):
        step()


def test_a_message_is_measured_by_its_own_size_and_again_where_it_seems_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    message = plan(0)
    size = len(message.text())
    measured: list[int] = []

    def seconds(measured_plan: Plan, times: int = 1) -> float:
        measured.append(times)
        return 3 * slow.allowed(size) if times == 1 else slow.allowed(size)

    monkeypatch.setattr(slow, "seconds", seconds)
    monkeypatch.setattr(slow, "slowness", lambda: 2.0)
    assert slow.rate(message) == pytest.approx(0.5)
    assert measured == [1, slow.REPEATS]


def test_each_reader_has_its_slowest_messages_mutated_and_no_reader_has_all() -> None:
    rated = [(number / 100, plan(0, side=number % 2)) for number in range(20)]
    rates = [rate for rate, _ in slow.slowest([*rated, (0.0, plan(0, side=2))], 3)]
    assert rates == [0.19, 0.18, 0.17, 0.16, 0.15, 0.14, 0.0]


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
