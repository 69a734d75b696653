"""One connection to Redis: it is replaced after every fault, at every step, and no answer goes to another command."""

from collections.abc import Awaitable, Callable

import pytest
import trio

from acp_gateway.nodes import redis_connection
from acp_gateway.nodes.redis_connection import RedisClient, RedisConnection, RedisOptions, RedisRefused
from acp_gateway.nodes.redis_store import RedisStore
from acp_gateway.nodes.store import Change, ClusterLost, Seal
from tests.nodes.redis_double import FakeRedis

OPTIONS = RedisOptions(db=3, username="gateway", password="hunter2", timeout=1.0)


async def break_it() -> None:
    raise trio.BrokenResourceError("cut by the test")


async def refuse() -> None:
    raise ConnectionResetError(104, "reset by the test")


FAULTS = {"broken": break_it, "reset": refuse, "silence": trio.sleep_forever}


async def ask(client: RedisClient, word: str, time_limit: float = 1.0) -> bool:
    """Ask for a word; return False for a loss."""
    with trio.move_on_after(time_limit):
        try:
            assert await client.ask("EVAL", "script", 0, word) == [1, word.encode()]
        except (OSError, trio.BrokenResourceError):
            return False
        return True
    return False


async def each_fault(before: int, fault: Callable[[], Awaitable[None]]) -> list[bool]:
    """Let a command fail at each of its steps, after `before` others; return the outcomes. Then all is well again."""
    outcomes: list[bool] = []
    async with trio.open_nursery() as nursery:
        while True:
            redis = FakeRedis(nursery)
            client = RedisClient(OPTIONS, redis.connect)
            for number in range(before):
                assert await ask(client, f"before {number}")
            redis.fail_at(len(outcomes) + 1, fault)
            outcome = await ask(client, "during")
            if redis.step < redis.fault_at:
                break
            outcomes.append(outcome)
            assert await ask(client, "after")
            assert await ask(client, "at last")
            assert redis.open_streams == 1
            await client.aclose()
            assert redis.open_streams == 0
        nursery.cancel_scope.cancel()
    return outcomes


@pytest.mark.parametrize("fault", FAULTS)
async def test_fault_at_any_step_of_connecting_and_of_the_first_command_leaves_the_next_one_well(
    fault: str, autojump_clock: trio.testing.MockClock
) -> None:
    outcomes = await each_fault(0, FAULTS[fault])
    assert len(outcomes) > 50
    assert not any(outcomes)


@pytest.mark.parametrize("fault", FAULTS)
async def test_fault_at_any_step_of_a_later_command_leaves_the_next_one_well(
    fault: str, autojump_clock: trio.testing.MockClock
) -> None:
    outcomes = await each_fault(2, FAULTS[fault])
    assert len(outcomes) > 30
    # A connection that was closed since the last command does not count as a loss.
    assert all(outcomes) is (fault != "silence")


@pytest.mark.parametrize("before", [0, 1])
async def test_command_that_is_cancelled_at_any_step_leaves_the_next_one_well(
    before: int, autojump_clock: trio.testing.MockClock
) -> None:
    scopes: list[trio.CancelScope] = []

    async def cancel() -> None:
        scopes[-1].cancel()
        await trio.lowlevel.checkpoint()

    step, is_over = 0, False
    async with trio.open_nursery() as nursery:
        while not is_over:
            step += 1
            redis = FakeRedis(nursery)
            client = RedisClient(OPTIONS, redis.connect)
            for number in range(before):
                assert await ask(client, f"before {number}")
            redis.fail_at(step, cancel)
            with trio.CancelScope() as scope:
                scopes.append(scope)
                await ask(client, "during")
            is_over = redis.step < redis.fault_at
            assert scope.cancelled_caught is not is_over
            assert await ask(client, "after")
            assert redis.open_streams == 1
        nursery.cancel_scope.cancel()
    assert step > 30


async def test_many_commands_at_once_get_their_own_answers_while_others_are_cancelled(
    autojump_clock: trio.testing.MockClock,
) -> None:
    answered: list[int] = []

    async def one(number: int) -> None:
        # In their time, some are asked already, and others wait.
        with trio.move_on_after(number / 100 if number % 3 else 1000):
            assert await client.ask("EVAL", "script", 0, f"word {number}") == [1, f"word {number}".encode()]
            answered.append(number)

    async with trio.open_nursery() as nursery:
        redis = FakeRedis(nursery)

        async def be_slow() -> None:
            await trio.sleep(0.02)
            redis.fail_at(5, be_slow)

        redis.fail_at(5, be_slow)
        client = RedisClient(OPTIONS, redis.connect)
        async with trio.open_nursery() as asking:
            for number in range(500):
                asking.start_soon(one, number)
        assert set(range(0, 500, 3)) <= set(answered) < set(range(500))
        assert redis.open_streams == 1
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("fault", FAULTS)
async def test_subscription_that_fails_at_any_step_ends_and_the_next_one_gets_changes(
    fault: str, autojump_clock: trio.testing.MockClock
) -> None:
    change = b'["node","gpu2","gpu2"]'
    message = b"*3\r\n$7\r\nmessage\r\n$13\r\n{acp}:changes\r\n$%d\r\n%s\r\n" % (len(change), change)

    def answer(words: list[bytes]) -> bytes:
        return b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n" + message if words[0] == b"SUBSCRIBE" else b"+OK\r\n"

    step = 0
    async with trio.open_nursery() as nursery:
        while True:
            step += 1
            redis = FakeRedis(nursery, answer, piece=5)
            store = RedisStore(RedisClient(OPTIONS, redis.connect), OPTIONS, "gpu1", Seal("t"))
            redis.fail_at(step, FAULTS[fault])
            found: list[Change] = []
            try:
                async with store.changes() as changes:
                    async for each in changes:
                        found.append(each)
                        break
            except ClusterLost:
                pass
            if found:
                break
            async with store.changes() as changes:
                assert await changes.receive() == Change("node", "gpu2", "gpu2")
            assert redis.open_streams == 0
        nursery.cancel_scope.cancel()
    assert step > 50


async def test_subscription_is_pinged_and_lost_only_without_an_answer(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        redis = FakeRedis(nursery)
        store = RedisStore(RedisClient(OPTIONS, redis.connect), OPTIONS, "gpu1", Seal("t"))
        async with store.changes() as changes:
            with trio.move_on_after(20) as quiet:
                await changes.receive()
            assert quiet.cancelled_caught
            redis.fail_at(1, trio.sleep_forever)
            with pytest.raises(trio.EndOfChannel):
                await changes.receive()
        nursery.cancel_scope.cancel()


async def test_password_and_database_come_before_the_first_command_alone(nursery: trio.Nursery) -> None:
    redis = FakeRedis(nursery)
    client = RedisClient(OPTIONS, redis.connect)
    for _ in range(2):
        await client.ask("GET", b"\xff", 7)
    assert redis.commands == [[b"AUTH", b"gateway", b"hunter2"], [b"SELECT", b"3"], *[[b"GET", b"\xff", b"7"]] * 2]


@pytest.mark.parametrize(
    ("text", "why"), [(b"ERR unknown command 'AUTH', with args: 'hunter2'", "ERR"), (b"hunter2", "another error")]
)
async def test_a_refusal_of_the_password_does_not_show_it(text: bytes, why: str, nursery: trio.Nursery) -> None:
    redis = FakeRedis(nursery, lambda _: b"-%b\r\n" % text)
    with pytest.raises(RedisRefused, match=rf"^Redis refuses .* cluster\.password_file \({why}\)$"):
        await RedisClient(OPTIONS, redis.connect).ask("GET", "x")


@pytest.mark.parametrize("answer", [b"-LOADING data\r\n", b"*1\r\n-ERR inside\r\n", b"HTTP/1.1 400 Bad\r\n", b"$x\r\n"])
async def test_connection_whose_answer_is_an_error_is_closed(answer: bytes, nursery: trio.Nursery) -> None:
    # The server may be a replica now, whose successor has the same address.
    redis = FakeRedis(nursery, lambda words: answer if words[0] == b"GET" else b"+OK\r\n")
    client = RedisClient(OPTIONS, redis.connect)
    with pytest.raises(RedisRefused):
        await client.ask("GET", "a")
    assert redis.open_streams == 0
    assert await client.ask("PUBLISH", "a") == b"OK"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (b"+OK\r\n", b"OK"),
        (b":-5\r\n", -5),
        (b"$-1\r\n", None),
        (b"*-1\r\n", None),
        (b"$4\r\n\r\n\r\n\r\n", b"\r\n\r\n"),
        (b"*3\r\n*0\r\n$0\r\n\r\n*1\r\n:1\r\n", [[], b"", [1]]),
    ],
)
async def test_answers_are_read_in_any_pieces(text: bytes, answer: object, nursery: trio.Nursery) -> None:
    redis = FakeRedis(nursery, lambda _: text)
    assert await RedisConnection(await redis.connect(OPTIONS)).ask("GET", "a") == answer


@pytest.mark.parametrize("text", [b"*1\r\n" * 20, b"$2000\r\n" + b"x" * 2000, b"*9\r\n" + b"$300\r\n%0300d\r\n" * 9])
async def test_answer_that_is_too_large_or_too_deep_is_refused(
    text: bytes, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_connection, "MAX_ANSWER", 1000)
    redis = FakeRedis(nursery, lambda _: text.replace(b"%0300d", b"x" * 300))
    with pytest.raises(RedisRefused):
        await RedisClient(RedisOptions(), redis.connect).ask("GET", "a")
    assert redis.open_streams == 0


async def test_line_without_an_end_is_refused(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_connection, "_READ", 100)
    redis = FakeRedis(nursery, lambda _: b"+" + b"x" * 1000)
    with pytest.raises(RedisRefused, match="no Redis"):
        await RedisClient(RedisOptions(), redis.connect).ask("GET", "a")


async def test_long_list_leaves_other_tasks_their_turn(nursery: trio.Nursery) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    await theirs.send_all(b"*10000\r\n" + b":1\r\n" * 10_000)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    nursery.start_soon(count)
    assert await RedisConnection(ours).read() == [1] * 10_000
    assert turns >= 20


def test_options_do_not_show_the_password() -> None:
    assert "hunter2" not in repr(OPTIONS)
