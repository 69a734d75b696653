"""Connections that have come in: how many there may be, how fast they may speak, and what ends them."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from acp_gateway.access import Access
from acp_gateway.auth import Token, TokenStore
from acp_gateway.connections import ENDED, LONGEST_PAUSE, REVOKED, ROTATED, Bucket, Connections
from acp_gateway.errors import Busy
from acp_gateway.options import LimitsSection
from acp_gateway.seats import Farewell


class Scene:
    """Connections, and the time of day."""

    def __init__(self, tmp_path: Path) -> None:
        self.now = 1_800_000_000.0
        self.tokens = TokenStore(tmp_path / "state", lambda: self.now)
        self.connections = self.limited()

    def limited(self, **limits: int) -> Connections:
        """With other limits."""
        return Connections(LimitsSection(**limits), self.tokens, lambda: self.now)

    def access(self, identity: str = "ann", **options: Any) -> Access:
        """With a token of this identity."""
        return Access.of(self.tokens.create("laptop", identity, None, **options)[0])

    def rotate(self, access: Access, **options: Any) -> Access:
        """Give a token a new secret; what who presents that has."""
        assert access.token is not None
        return Access.of(self.tokens.rotate(access.token.id, **options)[0])

    def revoke(self, access: Access) -> None:
        """Nobody gets in with this token any more."""
        assert access.token is not None
        self.tokens.revoke(access.token.id)


class Guarded:
    """A connection that is watched, and what became of it."""

    def __init__(self, access: Access, *, resumes: bool = False) -> None:
        self.access = access
        self.farewells: list[Farewell] = []
        self.losses = 0
        self._resumes = resumes

    def watched(self, connections: Connections, stack: ExitStack) -> "Guarded":
        stack.enter_context(connections.watched(self))
        return self

    def close(self, farewell: Farewell) -> None:
        self.farewells.append(farewell)

    def lose(self) -> bool:
        self.losses += self._resumes
        return self._resumes


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


# How many


def test_an_identity_has_only_so_many_and_the_error_names_the_limit(scene: Scene, stack: ExitStack) -> None:
    connections = scene.limited(connections_per_identity=2)
    ann, also_ann, bob = scene.access(), Access("ann", None), scene.access("bob")
    for access in (ann, also_ann):
        connections.check_room("ann")
        Guarded(access).watched(connections, stack)
    with pytest.raises(Busy, match=r"^connections_per_identity \(2\) are there already; try later$"):
        connections.check_room("ann")
    connections.check_room("bob")
    Guarded(bob).watched(connections, stack)
    assert len(connections) == 3


def test_all_together_are_only_so_many_and_the_error_names_the_limit(scene: Scene, stack: ExitStack) -> None:
    connections = scene.limited(max_connections=2)
    for identity in ("ann", "bob"):
        connections.check_room(identity)
        Guarded(scene.access(identity)).watched(connections, stack)
    with pytest.raises(Busy, match=r"^max_connections \(2\) are there already; try later$"):
        connections.check_room("carol")


def test_who_leaves_makes_room_however_it_ended(scene: Scene) -> None:
    connections = scene.limited(connections_per_identity=1)
    access = scene.access()
    for error in (None, ValueError(), trio.EndOfChannel()):
        connections.check_room("ann")
        try:
            with connections.watched(Guarded(access)):
                if error is not None:
                    raise error
        except (ValueError, trio.EndOfChannel):
            pass
    assert len(connections) == 0
    connections.check_room("ann")


def test_a_connection_counts_for_who_it_was_begun_by(scene: Scene) -> None:
    connections = scene.limited(connections_per_identity=1)
    guarded = Guarded(scene.access())
    with ExitStack() as stack:
        guarded.watched(connections, stack)
        guarded.access = scene.access("bob")
        connections.check_room("bob")
    connections.check_room("ann")


def test_to_ask_for_room_takes_none(scene: Scene) -> None:
    connections = scene.limited(connections_per_identity=1, max_connections=1)
    for _ in range(3):
        connections.check_room("ann")
        connections.check_room("bob")


# How fast


def test_a_bucket_gives_a_burst_and_then_so_much_a_second() -> None:
    bucket = Bucket(10, 100, 0.0)
    assert bucket.take(100, 0.0) == 0
    assert bucket.take(1, 0.0) == pytest.approx(0.1)
    assert bucket.take(9, 0.0) == pytest.approx(1.0)
    assert bucket.take(0, 1.0) == 0
    assert bucket.take(10, 2.0) == 0
    assert bucket.take(1, 2.0) == pytest.approx(0.1)


def test_a_bucket_fills_up_to_the_burst_and_no_further() -> None:
    bucket = Bucket(10, 100, 0.0)
    assert bucket.take(100, 1e9) == 0
    assert bucket.take(10, 1e9) == pytest.approx(1.0)


def test_whoever_waits_as_it_is_told_says_so_much_a_second_on_the_long_run() -> None:
    bucket, now = Bucket(5, 7, 0.0), 0.0
    for _ in range(100):
        now += bucket.take(3, now)
    assert now == pytest.approx((300 - 7) / 5)


async def test_the_clients_of_an_identity_speak_so_fast_together(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    connections = scene.limited(messages_per_second=10, message_burst=50)
    with ExitStack() as stack:
        for _ in range(2):
            Guarded(Access("ann", None)).watched(connections, stack)
        one, other, bob = (connections.pace(identity) for identity in ("ann", "ann", "bob"))
        assert [one(25), other(25)] == [0, 0]
        assert bob(50) == 0
        pause = one(20)
        assert pause == pytest.approx(2)
        assert other(10) == pytest.approx(3)
        await trio.sleep(pause)
        assert one(0) == pytest.approx(1)
        await trio.sleep(2)
        assert one(10) == pytest.approx(0)
        assert bob(0) == 0


async def test_who_speaks_slowly_is_read_on_while_others_of_the_identity_are_too_fast(scene: Scene) -> None:
    connections = scene.limited(messages_per_second=10, message_burst=50)
    with ExitStack() as stack:
        for _ in range(10):
            Guarded(Access("ann", None)).watched(connections, stack)
        *floods, editor = [connections.pace("ann") for _ in range(10)]
        assert {flood(1000) for flood in floods} == {LONGEST_PAUSE}
        assert [editor(1) for _ in range(5)] == [0] * 5
        assert editor(1) == LONGEST_PAUSE


async def test_a_clients_part_is_one_of_as_many_as_are_there_now(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    connections = scene.limited(messages_per_second=10, message_burst=50)
    with ExitStack() as stack:
        Guarded(Access("ann", None)).watched(connections, stack)
        editor = connections.pace("ann")
        with ExitStack() as others:
            for _ in range(9):
                Guarded(Access("ann", None)).watched(connections, others)
            flood = connections.pace("ann")
            assert flood(1000) == LONGEST_PAUSE
            # A tenth of the burst, though it was here before the others.
            assert [editor(5), editor(1)] == [0, LONGEST_PAUSE]
        # All of the rate again, and in a second as much as that gives.
        await trio.sleep(1)
        assert [editor(9), editor(1)] == [0, LONGEST_PAUSE]


# For how long


def test_a_connection_stays_while_its_credential_is_valid(scene: Scene, stack: ExitStack) -> None:
    certificate = Access("ann", None, "laptop", expires=scene.now + 1)
    kinds = (scene.access(), scene.access(lifetime=60), Access("me", None), certificate)
    guarded = [Guarded(access, resumes=True).watched(scene.connections, stack) for access in kinds]
    scene.connections.enforce()
    assert [(each.farewells, each.losses) for each in guarded] == [([], 0)] * 4


@pytest.mark.parametrize("resumes", [False, True])
def test_a_revoked_token_closes_for_good_what_it_let_in_once(
    resumes: bool, scene: Scene, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    access = scene.access()
    revoked = Guarded(access, resumes=resumes).watched(scene.connections, stack)
    kept = Guarded(scene.access(), resumes=resumes).watched(scene.connections, stack)
    scene.revoke(access)
    for _ in range(3):
        scene.connections.enforce()
    assert (revoked.farewells, revoked.losses) == ([REVOKED], 0)
    assert (kept.farewells, kept.losses) == ([], 0)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert caplog.messages == [f"{access.credential} is not valid any more: closing its connection"]


def test_an_expired_token_closes_what_it_let_in(scene: Scene, stack: ExitStack) -> None:
    guarded = Guarded(scene.access(lifetime=60), resumes=True).watched(scene.connections, stack)
    scene.now += 59
    scene.connections.enforce()
    assert guarded.farewells == []
    scene.now += 1
    scene.connections.enforce()
    assert (guarded.farewells, guarded.losses) == ([REVOKED], 0)


def test_an_expired_certificate_closes_what_it_let_in(
    scene: Scene, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    access = Access("ann", None, "laptop", expires=scene.now + 60)
    guarded = Guarded(access, resumes=True).watched(scene.connections, stack)
    scene.now += 59.5
    scene.connections.enforce()
    assert guarded.farewells == []
    scene.now += 0.5
    scene.connections.enforce()
    scene.connections.enforce()
    assert (guarded.farewells, guarded.losses) == ([ENDED], 0)
    assert caplog.messages == ["certificate laptop is not valid any more: closing its connection"]


def test_a_rotated_token_closes_what_cannot_come_back(scene: Scene, stack: ExitStack) -> None:
    access = scene.access()
    guarded = Guarded(access).watched(scene.connections, stack)
    scene.rotate(access)
    scene.connections.enforce()
    scene.connections.enforce()
    assert guarded.farewells == [ROTATED]


def test_a_rotated_token_takes_its_connection_from_what_can_come_back(
    scene: Scene, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    access = scene.access()
    guarded = Guarded(access, resumes=True).watched(scene.connections, stack)
    now = scene.rotate(access)
    scene.connections.enforce()
    assert (guarded.farewells, guarded.losses) == ([], 1)
    guarded.access = now
    scene.connections.enforce()
    assert (guarded.farewells, guarded.losses, caplog.messages) == ([], 1, [])
    scene.revoke(now)
    scene.connections.enforce()
    assert guarded.farewells == [REVOKED]


def test_what_does_not_come_back_ends_with_the_token(scene: Scene, stack: ExitStack) -> None:
    access = scene.access()
    guarded = Guarded(access, resumes=True).watched(scene.connections, stack)
    scene.rotate(access)
    scene.connections.enforce()
    scene.revoke(access)
    scene.connections.enforce()
    assert guarded.farewells == [REVOKED]


def test_a_rotated_token_counts_until_the_grace_is_over(scene: Scene, stack: ExitStack) -> None:
    access = scene.access()
    guarded = Guarded(access, resumes=True).watched(scene.connections, stack)
    scene.rotate(access, grace=10)
    scene.connections.enforce()
    assert guarded.losses == 0
    scene.now += 10
    scene.connections.enforce()
    assert (guarded.farewells, guarded.losses) == ([], 1)


def test_who_was_somebody_else_before_a_rotation_does_not_come_back(scene: Scene, stack: ExitStack) -> None:
    access = scene.access()
    assert access.token is not None
    other = replace(access, token=msgspec.structs.replace(access.token, role="observer"))
    guarded = Guarded(other, resumes=True).watched(scene.connections, stack)
    scene.rotate(access)
    scene.connections.enforce()
    assert (guarded.farewells, guarded.losses) == ([REVOKED], 0)


def test_each_credential_is_looked_at_once_however_many_show_it(
    scene: Scene, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, revoked = scene.access(), scene.access()
    looked_at: list[str] = []
    is_current = scene.tokens.is_current

    def look(token: Token) -> bool:
        looked_at.append(token.id)
        return is_current(token)

    monkeypatch.setattr(scene.tokens, "is_current", look)
    guarded = [Guarded(access).watched(scene.connections, stack) for access in (kept, revoked, kept, revoked)]
    scene.revoke(revoked)
    scene.connections.enforce()
    assert len(looked_at) == len(set(looked_at)) == 2
    assert [each.farewells for each in guarded] == [[], [REVOKED], [], [REVOKED]]


def test_the_end_of_one_while_others_are_looked_at_harms_nobody(scene: Scene) -> None:
    access = scene.access()
    stacks = [ExitStack(), ExitStack()]
    closed: list[Farewell] = []

    class Closing(Guarded):
        def close(self, farewell: Farewell) -> None:
            closed.append(farewell)
            for stack in stacks:
                stack.close()

    for stack in stacks:
        Closing(access).watched(scene.connections, stack)
    scene.revoke(access)
    scene.connections.enforce()
    assert len(scene.connections) == 0
    assert set(closed) == {REVOKED}
