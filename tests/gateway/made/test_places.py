"""Places for work in threads, of identities and of all."""

import gc

import trio
from trio.testing import wait_all_tasks_blocked

from acp_gateway.gateway.made.places import Places


async def test_an_identity_has_so_many_and_keeps_none_of_the_others_waiting_for_more() -> None:
    places, taken = Places(2, 3), list[tuple[str, trio.CapacityLimiter]]()

    async def take(identity: str) -> None:
        limiter = places.limiter(identity)
        await limiter.acquire_on_behalf_of(limiter)
        taken.append((identity, limiter))

    async with trio.open_nursery() as nursery:
        for identity in ("ann", "ann", "ann", "bob", "carol"):
            nursery.start_soon(take, identity)
            await wait_all_tasks_blocked()
        assert [identity for identity, _ in taken] == ["ann", "ann", "bob"]
        _, first = taken.pop(0)
        first.release_on_behalf_of(first)
        await wait_all_tasks_blocked()
        # Not the third of Ann, though it came before.
        assert [identity for identity, _ in taken] == ["ann", "bob", "carol"]
        nursery.cancel_scope.cancel()
    # What was given up while it waited holds no place.
    for _, limiter in taken:
        limiter.release_on_behalf_of(limiter)
    for _ in range(2):
        with trio.fail_after(1):
            await take("ann")


async def test_nothing_is_kept_of_an_identity_without_a_place() -> None:
    places = Places(1, 1)
    limiter = places.limiter("ann")
    await limiter.acquire_on_behalf_of(1)
    assert list(places._used) == ["ann"]
    limiter.release_on_behalf_of(1)
    del limiter
    gc.collect()
    assert list(places._used) == []
