"""Connections that have come in: how many there may be, how fast they may speak, and what ends them."""

import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from acp_gateway.config.limits import LimitsSection
from acp_gateway.core.sessions.session import Role, SessionReach
from acp_gateway.errors import Busy
from acp_gateway.gateway import connections as connections_module
from acp_gateway.gateway.access import Access, ConnectRequest, Grant
from acp_gateway.gateway.connections import (
    CERTIFICATE_EXPIRED,
    EVICTED,
    REVOKED,
    ROTATED,
    SIGNED_OUT,
    UNUSED,
    Connections,
)
from acp_gateway.gateway.hub.attachment import Disconnect
from acp_gateway.gateway.rate_limits import MAX_PAUSE, RateLimiter
from acp_gateway.protocol.on_behalf import OnBehalf
from acp_gateway.security.browser_sessions import DAY, BrowserStore
from acp_gateway.security.token_store import Token, TokenStore
from acp_gateway.transports.streams import Flooded

pytestmark = pytest.mark.jumps


class Scene:
    """Connections, and the time of day."""

    def __init__(self, tmp_path: Path) -> None:
        self.now = 1_800_000_000.0
        self.tokens = TokenStore(tmp_path / "state", lambda: self.now)
        self.browsers = BrowserStore(tmp_path / "state", self.tokens, now=lambda: self.now)
        self.connections = self.limited()

    def limited(self, **limits: Any) -> Connections:
        """With other limits."""
        return Connections(LimitsSection(**limits), self.tokens, lambda: self.now, browsers=self.browsers)

    def access(self, identity: str = "ann", **options: Any) -> Access:
        """With a token of this identity."""
        return Access.of(self.tokens.create("laptop", identity, None, **options)[0])

    def browser(self, access: Access) -> Access:
        """With the cookie of a browser that was signed in by the token of another access."""
        signed_in = self.browsers.sign_in(self.browsers.make_code(access.token, access.identity, label="phone")[1])
        return Access.of_browser(*self.browsers.authenticate(signed_in.cookie))

    def rotate(self, access: Access, **options: Any) -> Access:
        """Give a token a new secret; what who presents that has."""
        assert access.token is not None
        return Access.of(self.tokens.rotate(access.token.id, **options)[0])

    def revoke(self, access: Access) -> None:
        """Revoke a token."""
        assert access.token is not None
        self.tokens.revoke(access.token.id)


class Guarded:
    """A connection that is watched, and what became of it."""

    def __init__(self, access: Access, *, resumes: bool = False) -> None:
        self.access = access
        self.disconnects: list[Disconnect] = []
        self.losses = 0
        self.away_since: float | None = None
        self._resumes = resumes

    def watched(self, connections: Connections, stack: ExitStack) -> "Guarded":
        stack.enter_context(connections.watched(self))
        return self

    def close(self, disconnect: Disconnect) -> None:
        self.disconnects.append(disconnect)

    def drop(self) -> bool:
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
        connections.make_room(Access("ann", None))
        Guarded(access).watched(connections, stack)
    with pytest.raises(Busy, match=r"^connections_per_identity \(2\) are there already; try later$"):
        connections.make_room(Access("ann", None))
    connections.make_room(Access("bob", None))
    Guarded(bob).watched(connections, stack)
    assert len(connections) == 3


def test_all_together_are_only_so_many_and_the_error_names_the_limit(scene: Scene, stack: ExitStack) -> None:
    connections = scene.limited(max_connections=2)
    for identity in ("ann", "bob"):
        connections.make_room(Access(identity, None))
        Guarded(scene.access(identity)).watched(connections, stack)
    with pytest.raises(Busy, match=r"^max_connections \(2\) are there already; try later$"):
        connections.make_room(Access("carol", None))


def test_a_credential_takes_no_more_room_by_the_names_below_its_own(scene: Scene, stack: ExitStack) -> None:
    connections = scene.limited(connections_per_identity=2)
    door = scene.access("door", may_speak_for=["carol", "door/x"])
    ann, bob, carol, x = (
        door.acting_for(OnBehalf(name, "controller", otherwise="below")) for name in ("ann", "bob", "carol", "door/x")
    )
    for access in (ann, bob):
        connections.make_room(access)
        Guarded(access).watched(connections, stack)
    for access in (ann, door):
        with pytest.raises(Busy, match=r"^connections_per_identity \(2\)"):
            connections.make_room(access)
    # Those whom it may speak for have room of their own.
    for access in (carol, x):
        connections.make_room(access)


def test_a_credential_takes_no_more_room_by_the_names_of_guests(scene: Scene, stack: ExitStack) -> None:
    connections = scene.limited(connections_per_identity=2, connections_per_guest=1)
    door = scene.access("door")
    first, second, third = (
        door.acting_for(OnBehalf(name, "controller", otherwise="below", session="s", guest=True)) for name in "abc"
    )
    for access in (first, second):
        connections.make_room(access)
        Guarded(access).watched(connections, stack)
    with pytest.raises(Busy, match=r"^connections_per_identity \(2\) guests are there already"):
        connections.make_room(third)
    connections.make_room(second, replaces=True)
    connections.make_room(door)


def test_who_leaves_makes_room_however_it_ended(scene: Scene) -> None:
    connections = scene.limited(connections_per_identity=1)
    access = scene.access()
    for error in (None, ValueError(), trio.EndOfChannel()):
        connections.make_room(Access("ann", None))
        try:
            with connections.watched(Guarded(access)):
                if error is not None:
                    raise error
        except (ValueError, trio.EndOfChannel):
            pass
    assert len(connections) == 0
    connections.make_room(Access("ann", None))


def test_a_connection_counts_for_who_it_was_begun_by(scene: Scene) -> None:
    connections = scene.limited(connections_per_identity=1)
    guarded = Guarded(scene.access())
    with ExitStack() as stack:
        guarded.watched(connections, stack)
        guarded.access = scene.access("bob")
        connections.make_room(Access("bob", None))
    connections.make_room(Access("ann", None))


def test_to_ask_for_room_takes_none(scene: Scene) -> None:
    connections = scene.limited(connections_per_identity=1, max_connections=1)
    for _ in range(3):
        connections.make_room(Access("ann", None))
        connections.make_room(Access("bob", None))


def guest_access(scene: Scene, identity: str = "ann") -> Access:
    """With a token for one session of this identity."""
    return scene.access(identity, session="s")


def test_guests_do_not_count_with_the_owner_of_their_session(scene: Scene, stack: ExitStack) -> None:
    connections = scene.limited(connections_per_identity=1, connections_per_guest=2)
    guest, other = guest_access(scene), guest_access(scene)
    for access in (guest, guest, other, scene.access("ann")):
        connections.make_room(access)
        Guarded(access).watched(connections, stack)
    with pytest.raises(Busy, match=r"^connections_per_guest \(2\) are there already; try later$"):
        connections.make_room(guest)
    connections.make_room(other)
    with pytest.raises(Busy, match=r"^connections_per_identity \(1\)"):
        connections.make_room(scene.access("ann"))


def test_some_room_is_reserved_for_identities_that_have_none_yet(scene: Scene, stack: ExitStack) -> None:
    connections = scene.limited(max_connections=5, reserved_connections=2)
    ann, guest = scene.access("ann"), guest_access(scene)
    for _ in range(3):
        connections.make_room(ann)
        Guarded(ann).watched(connections, stack)
    why = r"^max_connections \(5\) but for reserved_connections are there already; try later$"
    for access in (ann, guest):
        with pytest.raises(Busy, match=why):
            connections.make_room(access)
    for name in ("bob", "carol"):
        access = scene.access(name)
        connections.make_room(access)
        Guarded(access).watched(connections, stack)
    with pytest.raises(Busy, match=r"^max_connections \(5\) are there already; try later$"):
        connections.make_room(scene.access("dave"))


def test_where_it_is_full_the_one_that_has_most_gives_up_what_is_away_for_longest(
    scene: Scene, stack: ExitStack
) -> None:
    connections = scene.limited(max_connections=6, reserved_connections=1)
    ann, bob = scene.access("ann"), scene.access("bob")
    his = [Guarded(bob, resumes=True).watched(connections, stack) for _ in range(2)]
    hers = [Guarded(ann, resumes=True).watched(connections, stack) for _ in range(4)]
    his[0].away_since = 1.0
    hers[1].away_since, hers[3].away_since = 3.0, 2.0
    connections.make_room(scene.access("carol"))
    assert [each.disconnects for each in hers] == [[], [], [], [EVICTED]]
    assert [each.disconnects for each in his] == [[], []]
    # It counts no more, though it may still be about to leave.
    connections.make_room(scene.access("carol"))
    assert len(connections) == 5
    connections.make_room(bob)
    assert hers[1].disconnects == [EVICTED]
    connections.make_room(bob)
    assert len(connections) == 4


def test_max_connections_evicts_no_link_of_an_identity_with_as_few_connections(scene: Scene, stack: ExitStack) -> None:
    connections = scene.limited(max_connections=5, reserved_connections=1)
    ann, bob = scene.access("ann"), scene.access("bob")
    his = Guarded(bob, resumes=True).watched(connections, stack)
    hers = [Guarded(ann, resumes=True).watched(connections, stack) for _ in range(3)]
    his.away_since = 1.0
    with pytest.raises(Busy, match="max_connections"):
        connections.make_room(ann)
    assert his.disconnects == []
    # What it has away itself goes first, however long the other one has been away.
    hers[0].away_since = 2.0
    connections.make_room(ann)
    assert (his.disconnects, hers[0].disconnects) == ([], [EVICTED])


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        ({"max_connections": 6, "reserved_connections": 1}, "max_connections"),
        ({"connections_per_identity": 2}, "connections_per_identity"),
    ],
)
def test_what_is_not_needed_yet_takes_free_room_alone_and_goes_before_any_link(
    limits: dict[str, int], named: str, scene: Scene, stack: ExitStack
) -> None:
    connections = scene.limited(**limits)
    ann, bob = scene.access("ann"), scene.access("bob")
    hers = [Guarded(ann, resumes=True).watched(connections, stack) for _ in range(2)]
    his = [Guarded(bob, resumes=True).watched(connections, stack) for _ in range(3)]
    hers[0].away_since = his[0].away_since = 1.0
    for away_since in (None, UNUSED):
        hers[1].away_since = away_since
        with pytest.raises(Busy, match=named):
            connections.make_room(ann, evicts=False)
    # As it is counted, others may have taken the room.
    hers[1].away_since = None
    late = Grant(ann, ConnectRequest(), "", SessionReach("ann"), Role.CONTROLLER, evicts=False)
    assert connections.refuse_late(late) is not None
    hers[1].away_since = UNUSED
    connections.make_room(ann)
    assert [each.disconnects for each in (*hers, *his)] == [[], [EVICTED], [], [], []]


def test_a_guest_that_has_its_part_gives_up_what_it_has_away_and_an_identity_does_not(
    scene: Scene, stack: ExitStack
) -> None:
    connections = scene.limited(connections_per_guest=2, connections_per_identity=1)
    ann, bob = guest_access(scene), scene.access("bob")
    his = Guarded(bob, resumes=True).watched(connections, stack)
    hers = [Guarded(ann, resumes=True).watched(connections, stack) for _ in range(2)]
    his.away_since, hers[1].away_since = 1.0, 2.0
    with pytest.raises(Busy, match="connections_per_identity"):
        connections.make_room(bob)
    connections.make_room(ann)
    assert (his.disconnects, hers[0].disconnects, hers[1].disconnects) == ([], [], [EVICTED])
    assert len(connections) == 2


# How fast


async def test_the_clients_of_an_identity_speak_so_fast_together(scene: Scene) -> None:
    connections = scene.limited(messages_per_second=10, message_burst=50)
    with ExitStack() as stack:
        for _ in range(2):
            Guarded(Access("ann", None)).watched(connections, stack)
        one, other, bob = (connections.rate_limiter(identity).charge for identity in ("ann", "ann", "bob"))
        assert [one(25), other(25)] == [0, 0]
        assert bob(50) == 0
        pause = one(20)
        assert pause == pytest.approx(2)
        assert other(10) == pytest.approx(2)
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
        *floods, editor = [connections.rate_limiter("ann").charge for _ in range(10)]
        assert {flood(10_000) for flood in floods} == {MAX_PAUSE}
        assert [editor(1) for _ in range(5)] == [0] * 5
        # Not for as long as the others: only until it has kept to its part again.
        assert editor(1) == pytest.approx(1)


async def test_a_clients_part_is_one_of_as_many_as_are_there_now(scene: Scene) -> None:
    connections = scene.limited(messages_per_second=10, message_burst=50)
    with ExitStack() as stack:
        Guarded(Access("ann", None)).watched(connections, stack)
        editor = connections.rate_limiter("ann").charge
        with ExitStack() as others:
            for _ in range(9):
                Guarded(Access("ann", None)).watched(connections, others)
            assert connections.rate_limiter("ann").charge(10_000) == MAX_PAUSE
            # A tenth of the burst, though it was here before the others.
            assert [editor(5), editor(1)] == [0, pytest.approx(1)]
        # All of the rate again, and in a second as much as that gives.
        await trio.sleep(1)
        assert [editor(9), editor(1)] == [0, pytest.approx(0.1)]


async def test_however_many_observers_flood_the_controllers_of_their_identity_have_their_parts(scene: Scene) -> None:
    connections = scene.limited(messages_per_second=10, message_burst=60)
    observer = scene.access("ann", role="observer")
    with ExitStack() as stack:
        for access in (*[observer] * 20, Access("ann", None), Access("ann", None)):
            Guarded(access).watched(connections, stack)
        *floods, onlooker = [connections.rate_limiter("ann", observer=True).charge for _ in range(20)]
        editor = connections.rate_limiter("ann").charge
        assert {flood(10_000) for flood in floods} == {MAX_PAUSE}
        # A third, beside the other controller and all observers.
        assert [editor(20), editor(1)] == [0, pytest.approx(0.3)]
        # A twentieth of a third, of a burst of 60 messages.
        assert [onlooker(1), onlooker(1)] == [0, MAX_PAUSE]


def test_observers_take_half_of_the_room_of_their_identity_at_most(scene: Scene, stack: ExitStack) -> None:
    connections = scene.limited(connections_per_identity=4)
    observer = scene.access("ann", role="observer")
    for _ in range(2):
        connections.make_room(observer)
        Guarded(observer).watched(connections, stack)
    with pytest.raises(
        Busy, match=r"^half of connections_per_identity \(4\) are there already as observers; try later$"
    ):
        connections.make_room(observer)
    connections.make_room(scene.access("ann"))
    connections.make_room(scene.access("bob", role="observer"))


async def test_guests_have_a_rate_of_their_own(scene: Scene) -> None:
    connections = scene.limited(messages_per_second=10, message_burst=50)
    guest, owner = connections.rate_limiter("ann", guest=True), connections.rate_limiter("ann")
    assert guest.charge(10_000) == MAX_PAUSE
    assert owner.charge(50) == 0


async def test_to_come_again_gains_nothing(scene: Scene) -> None:
    connections = scene.limited(messages_per_second=10, message_burst=50)
    assert connections.rate_limiter("ann").charge(60) == pytest.approx(1)
    assert connections.rate_limiter("ann").charge(1) == pytest.approx(0.1)
    assert connections.rate_limiter("bob").charge(50) == 0


async def test_bytes_and_time_are_limited_as_configured(scene: Scene) -> None:
    connections = Connections(
        LimitsSection(
            messages_per_second=10, message_burst=20, bytes_per_second=1000, loop_share=0.5, frames_without_message=5
        ),
        scene.tokens,
    )
    ann, bob, carol = (connections.rate_limiter(name) for name in ("ann", "bob", "carol"))
    with ExitStack() as stack:
        for name in ("ann", "bob"):
            Guarded(Access(name, None)).watched(connections, stack)
        assert [ann.charge(1, 2000), ann.charge(1, 1000)] == [0, pytest.approx(1)]
        assert [bob.charge(1, 10, 1.0), bob.charge(1, 10, 0.5)] == [0, pytest.approx(1)]
    assert carol.charge(frames=5) == 0
    with pytest.raises(Flooded, match=r"frames_without_message \(5\)"):
        carol.charge(frames=1)


async def test_bytes_and_time_of_the_only_account_are_not_limited(scene: Scene) -> None:
    connections = Connections(LimitsSection(bytes_per_second=1000, loop_share=0.5), scene.tokens)
    ann = connections.rate_limiter("ann")
    with ExitStack() as stack:
        for _ in range(2):
            Guarded(Access("ann", None)).watched(connections, stack)
        assert ann.charge(1, 10**9, 600.0) == 0
        Guarded(Access("bob", None)).watched(connections, stack)
        assert ann.charge(1, 10**9, 600.0) == MAX_PAUSE


async def test_bytes_and_time_of_observers_are_limited_beside_the_controllers_of_their_identity(scene: Scene) -> None:
    connections = Connections(LimitsSection(bytes_per_second=1000, loop_share=0.5), scene.tokens)
    observer = connections.rate_limiter("ann", observer=True)
    with ExitStack() as stack:
        Guarded(scene.access("ann", role="observer")).watched(connections, stack)
        assert observer.charge(1, 10**9, 600.0) == 0
        Guarded(Access("ann", None)).watched(connections, stack)
        assert observer.charge(1, 10**9, 600.0) == MAX_PAUSE


async def test_agents_share_the_time_of_the_loop_while_there_are_clients_of_others(scene: Scene) -> None:
    limits = LimitsSection(messages_per_second=10, message_burst=20, loop_share=0.25)
    connections = Connections(limits, scene.tokens)
    own: list[object] = ["editor"]
    agents = ["flooding", "quiet", "idle", "idle"]
    flooding, quiet = (connections.agent_limiter(own, agents) for _ in range(2))
    with ExitStack() as stack:
        Guarded(Access("ann", None)).watched(connections, stack)
        assert flooding.charge(seconds=600.0) == 0
        # Of the same identity or another.
        Guarded(Access("ann", None)).watched(connections, stack)
        assert flooding.charge(seconds=0.5) == 0
        spent, began = 0.0, trio.current_time()
        while spent < 10.0:
            spent += 0.002
            await trio.sleep(0.002 + flooding.charge(seconds=0.002))
            assert quiet.charge(seconds=0.0001) == 0
        assert 0.2 < spent / (trio.current_time() - began) < 0.25
        own.append("a second editor")
        assert flooding.charge(seconds=600.0) == 0


async def test_agents_that_flood_together_have_one_share_of_the_time_of_the_loop(scene: Scene) -> None:
    connections = Connections(LimitsSection(messages_per_second=10, message_burst=20, loop_share=0.25), scene.tokens)
    agents = range(4)
    limiters = [connections.agent_limiter((), agents) for _ in agents]

    async def flood(limiter: RateLimiter) -> None:
        for _ in range(4000):
            await trio.sleep(limiter.charge(seconds=0.002))

    with ExitStack() as stack:
        Guarded(Access("ann", None)).watched(connections, stack)
        async with trio.open_nursery() as nursery:
            for limiter in limiters:
                nursery.start_soon(flood, limiter)
    assert 0.2 < len(agents) * 4000 * 0.002 / trio.current_time() < 0.27


# For how long


def test_a_connection_stays_while_its_credential_is_valid(scene: Scene, stack: ExitStack) -> None:
    certificate = Access("ann", None, "laptop", expires=scene.now + 1)
    kinds = (scene.access(), scene.access(lifetime=60), Access("me", None), certificate)
    guarded = [Guarded(access, resumes=True).watched(scene.connections, stack) for access in kinds]
    scene.connections.enforce()
    assert [(each.disconnects, each.losses) for each in guarded] == [([], 0)] * 4


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
    assert (revoked.disconnects, revoked.losses) == ([REVOKED], 0)
    assert (kept.disconnects, kept.losses) == ([], 0)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert caplog.messages == [f"{access.credential} is not valid any more: closing its connection"]


async def test_a_guarded_connection_ends_with_its_token_and_counts_for_nothing(scene: Scene, stack: ExitStack) -> None:
    connections = scene.limited(connections_per_identity=1, bytes_per_second=1)
    access = scene.access("a node")
    guarded = Guarded(access)
    with connections.guarded(guarded):
        connections.make_room(access)
        # The only other identity delays no one.
        assert connections.rate_limiter("ann").charge(size=10**9) == 0
        scene.revoke(access)
        connections.enforce()
        assert guarded.disconnects == [REVOKED]
    assert len(connections) == 0


def test_an_expired_token_closes_what_it_let_in(scene: Scene, stack: ExitStack) -> None:
    guarded = Guarded(scene.access(lifetime=60), resumes=True).watched(scene.connections, stack)
    scene.now += 59
    scene.connections.enforce()
    assert guarded.disconnects == []
    scene.now += 1
    scene.connections.enforce()
    assert (guarded.disconnects, guarded.losses) == ([REVOKED], 0)


def test_an_expired_certificate_closes_what_it_let_in(
    scene: Scene, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    access = Access("ann", None, "laptop", expires=scene.now + 60)
    guarded = Guarded(access, resumes=True).watched(scene.connections, stack)
    scene.now += 59.5
    scene.connections.enforce()
    assert guarded.disconnects == []
    scene.now += 0.5
    scene.connections.enforce()
    scene.connections.enforce()
    assert (guarded.disconnects, guarded.losses) == ([CERTIFICATE_EXPIRED], 0)
    assert caplog.messages == ["certificate laptop is not valid any more: closing its connection"]


def test_a_rotated_token_closes_what_cannot_come_back(scene: Scene, stack: ExitStack) -> None:
    access = scene.access()
    guarded = Guarded(access).watched(scene.connections, stack)
    scene.rotate(access)
    scene.connections.enforce()
    scene.connections.enforce()
    assert guarded.disconnects == [ROTATED]


def test_a_rotated_token_takes_its_connection_from_what_can_come_back(
    scene: Scene, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    access = scene.access()
    guarded = Guarded(access, resumes=True).watched(scene.connections, stack)
    now = scene.rotate(access)
    scene.connections.enforce()
    assert (guarded.disconnects, guarded.losses) == ([], 1)
    guarded.access = now
    scene.connections.enforce()
    assert (guarded.disconnects, guarded.losses, caplog.messages) == ([], 1, [])
    scene.revoke(now)
    scene.connections.enforce()
    assert guarded.disconnects == [REVOKED]


def test_what_does_not_come_back_ends_with_the_token(scene: Scene, stack: ExitStack) -> None:
    access = scene.access()
    guarded = Guarded(access, resumes=True).watched(scene.connections, stack)
    scene.rotate(access)
    scene.connections.enforce()
    scene.revoke(access)
    scene.connections.enforce()
    assert guarded.disconnects == [REVOKED]


def test_a_rotated_token_counts_until_the_grace_is_over(scene: Scene, stack: ExitStack) -> None:
    access = scene.access()
    guarded = Guarded(access, resumes=True).watched(scene.connections, stack)
    scene.rotate(access, grace=10)
    scene.connections.enforce()
    assert guarded.losses == 0
    scene.now += 10
    scene.connections.enforce()
    assert (guarded.disconnects, guarded.losses) == ([], 1)


def test_a_link_of_a_token_with_another_role_before_its_rotation_is_revoked(scene: Scene, stack: ExitStack) -> None:
    access = scene.access()
    assert access.token is not None
    other = replace(access, token=msgspec.structs.replace(access.token, role="observer"))
    guarded = Guarded(other, resumes=True).watched(scene.connections, stack)
    scene.rotate(access)
    scene.connections.enforce()
    assert (guarded.disconnects, guarded.losses) == ([REVOKED], 0)


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
    assert [each.disconnects for each in guarded] == [[], [REVOKED], [], [REVOKED]]


def test_enforce_continues_when_a_connection_ends_during_it(scene: Scene) -> None:
    access = scene.access()
    stacks = [ExitStack(), ExitStack()]
    closed: list[Disconnect] = []

    class Closing(Guarded):
        def close(self, disconnect: Disconnect) -> None:
            closed.append(disconnect)
            for stack in stacks:
                stack.close()

    for stack in stacks:
        Closing(access).watched(scene.connections, stack)
    scene.revoke(access)
    scene.connections.enforce()
    assert len(scene.connections) == 0
    assert set(closed) == {REVOKED}


# Browsers


def test_a_browser_that_is_signed_out_loses_its_connections_and_no_other_does(scene: Scene, stack: ExitStack) -> None:
    token = scene.access()
    one, other = scene.browser(token), scene.browser(token)
    guarded = [Guarded(access, resumes=True).watched(scene.connections, stack) for access in (one, one, other, token)]
    scene.connections.enforce()
    assert one.browser is not None
    scene.browsers.end(one.browser.id)
    scene.connections.enforce()
    assert [each.disconnects for each in guarded] == [[SIGNED_OUT], [SIGNED_OUT], [], []]
    assert sum(each.losses for each in guarded) == 0


@pytest.mark.parametrize("grace", [0.0, 60.0])
def test_a_revoked_or_rotated_token_ends_the_connections_of_its_browsers(
    grace: float, scene: Scene, stack: ExitStack
) -> None:
    revoked, rotated = scene.access(), scene.access()
    guarded = [
        Guarded(scene.browser(token), resumes=True).watched(scene.connections, stack) for token in (revoked, rotated)
    ]
    scene.revoke(revoked)
    scene.rotate(rotated, grace=grace)
    scene.connections.enforce()
    assert [each.disconnects for each in guarded] == [[SIGNED_OUT], [] if grace else [SIGNED_OUT]]
    scene.now += grace
    scene.connections.enforce()
    assert [each.disconnects for each in guarded] == [[SIGNED_OUT], [SIGNED_OUT]]
    assert sum(each.losses for each in guarded) == 0


def test_a_token_whose_rights_changed_ends_the_connections_of_its_browsers(
    scene: Scene, stack: ExitStack, tmp_path: Path
) -> None:
    guarded = Guarded(scene.browser(scene.access())).watched(scene.connections, stack)
    file = tmp_path / "state" / "tokens.json"
    content = json.loads(file.read_text())
    content["tokens"] = [entry | {"role": "observer"} for entry in content["tokens"]]
    file.write_text(json.dumps(content))
    scene.connections.enforce()
    assert guarded.disconnects == [SIGNED_OUT]


def test_a_connected_browser_is_in_use_and_one_that_is_away_is_not(scene: Scene, stack: ExitStack) -> None:
    token = scene.access()
    connected, away = (Guarded(scene.browser(token)).watched(scene.connections, stack) for _ in range(2))
    away.away_since = 1.0
    for _ in range(8):
        scene.now += DAY
        scene.connections.enforce()
    assert (connected.disconnects, away.disconnects) == ([], [SIGNED_OUT])
    scene.now += 30 * DAY
    scene.connections.enforce()
    assert connected.disconnects == [SIGNED_OUT]


async def test_rates_of_identities_without_a_connection_are_forgotten_beyond_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections_module, "MAX_BUCKETS", 2)
    connections = Connections(LimitsSection(), TokenStore(tmp_path))
    for number in range(5):
        connections.rate_limiter(f"identity {number}")
        assert len(connections._buckets) <= 2


def test_what_a_credential_has_made_ends_with_a_token_of_the_list_or_a_certificate(scene: Scene) -> None:
    ann = scene.access()
    assert ann.token is not None
    source_of, name = scene.connections.source_of, f"token {ann.token.id}"
    assert [source_of(access) for access in (ann, scene.browser(ann), scene.rotate(ann))] == [name] * 3
    assert source_of(Access("ann", None, "laptop")) == "certificate laptop"
    lent = scene.tokens.authenticate(scene.tokens.lend_to("door"))
    assert [source_of(access) for access in (Access("ann", None), Access.of(lent))] == [None, None]
    assert scene.connections.valid_tokens() == {ann.token.id, lent.id}
    scene.access(lifetime=60)
    scene.now += 60
    scene.revoke(ann)
    assert scene.connections.valid_tokens() == {lent.id}
