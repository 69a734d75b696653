"""The directory of a cluster in Redis or Valkey. Each operation is one Lua script, one step of Redis.

All keys have one hash tag, so all are on one node of a Redis Cluster, and a script may make the names of further keys.
Values of records are opaque to the scripts.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import wraps
from hashlib import sha256
from typing import Any, Final, ParamSpec, TypeVar

import msgspec
import trio

from acp_gateway.nodes.redis_connection import RedisClient, RedisConnection, RedisOptions, RedisRefused
from acp_gateway.nodes.store import (
    MAX_REVOKED,
    Change,
    ClusterLost,
    NodeRecord,
    NodesRead,
    Seal,
    SharedTokens,
    decode_node,
    encode,
)
from acp_gateway.printable import printable

PREFIX: Final = "{acp}:"
"""Begins all keys. The braces make it the hash tag of Redis Cluster."""

CHANNEL: Final = f"{PREFIX}changes"
"""The channel of changes."""

_COMMON: Final = """
local prefix = '{acp}:'
local function tell(kind, name, node)
  redis.call('PUBLISH', prefix .. 'changes', cjson.encode({kind, name, node}))
end
local function micros()
  local now = redis.call('TIME')
  return now[1] * 1000000 + now[2]
end
local function whole(number)
  return string.format('%.0f', number)
end
"""

ANNOUNCE: Final = (
    _COMMON
    + """
-- name, boot, record, ttl in ms, a digest of what others read the record for
local key, changed = prefix .. 'node:' .. ARGV[1], prefix .. 'changed'
local known = redis.call('HMGET', key, 'boot', 'lasting')
if known[1] and known[1] ~= ARGV[2] then
  return 0
end
redis.call('HSET', key, 'boot', ARGV[2], 'lasting', ARGV[5], 'record', ARGV[3])
redis.call('PEXPIRE', key, ARGV[4])
if known[2] ~= ARGV[5] or not redis.call('ZSCORE', changed, ARGV[1]) then
  local version = math.max((tonumber(redis.call('GET', prefix .. 'version')) or 0) + 1, micros())
  redis.call('SET', prefix .. 'version', whole(version))
  redis.call('ZADD', changed, whole(version), ARGV[1])
end
return 1
"""
)

WITHDRAW: Final = (
    _COMMON
    + """
-- name, boot
local key = prefix .. 'node:' .. ARGV[1]
if redis.call('HGET', key, 'boot') == ARGV[2] then
  redis.call('DEL', key)
end
return 1
"""
)

NODES: Final = (
    _COMMON
    + """
-- version of the last read
local version, since = tonumber(redis.call('GET', prefix .. 'version')) or 0, tonumber(ARGV[1])
local found = {whole(version)}
if since == version then
  return found
end
if since > version then
  since = 0
end
for _, name in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'changed', '(' .. whole(since), '+inf')) do
  local record = redis.call('HGET', prefix .. 'node:' .. name, 'record')
  if record then
    found[#found + 1] = name
    found[#found + 1] = record
  else
    redis.call('ZREM', prefix .. 'changed', name)
  end
end
return found
"""
)

_CHANGED: Final = """
local function changed()
  local last = tonumber(redis.call('GET', prefix .. 'tokens-number') or 0)
  redis.call('SET', prefix .. 'tokens-number', whole(math.max(last + 1, micros())))
  tell('tokens', '', ARGV[1])
end
"""

TOKENS: Final = (
    _COMMON
    + """
return {redis.call('GET', prefix .. 'tokens-number') or '0', redis.call('HGETALL', prefix .. 'tokens'),
  redis.call('ZRANGE', prefix .. 'revoked', 0, -1)}
"""
)

TOKENS_NUMBER: Final = (
    _COMMON
    + """
return redis.call('GET', prefix .. 'tokens-number') or '0'
"""
)

PUT_TOKEN: Final = (
    _COMMON
    + _CHANGED
    + """
-- node, id, entry, its revocation
if redis.call('ZSCORE', prefix .. 'revoked', ARGV[4]) then
  return 0
end
redis.call('HSET', prefix .. 'tokens', ARGV[2], ARGV[3])
changed()
return 1
"""
)

REVOKE_TOKEN: Final = (
    _COMMON
    + _CHANGED
    + """
-- node, id, its revocation, most
redis.call('HDEL', prefix .. 'tokens', ARGV[2])
if redis.call('ZADD', prefix .. 'revoked', 'NX', micros(), ARGV[3]) == 0 then
  return 0
end
redis.call('ZREMRANGEBYRANK', prefix .. 'revoked', 0, -1 - ARGV[4])
changed()
return 1
"""
)

CONFIRM_TOKENS: Final = (
    _COMMON
    + """
-- node, number
redis.call('HSET', prefix .. 'confirmed', ARGV[1], ARGV[2])
return 1
"""
)

CONFIRMATIONS: Final = (
    _COMMON
    + """
-- no arguments
return redis.call('HGETALL', prefix .. 'confirmed')
"""
)


MAX_CHANGES: Final = 1000
"""Maximum number of changes that wait for their reader; further ones are dropped, as a lost connection drops them."""

_LOST: Final = (RedisRefused, OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError)
_OTHER_FORM: Final = (ValueError, TypeError, AttributeError, LookupError)
"""Errors of reading an answer in another form than that of the scripts: others may write to Redis."""

_Params = ParamSpec("_Params")
_Answer = TypeVar("_Answer")

_decode_change = msgspec.json.Decoder(tuple[str, str, str]).decode


@contextmanager
def _translated() -> Iterator[None]:
    """Raise `ClusterLost` for errors of Redis, of the network and of answers of another form."""
    try:
        yield
    except ClusterLost:
        raise
    except Exception as error:
        cause = _innermost(error)
        if isinstance(cause, _LOST):
            raise ClusterLost(printable(str(cause) or type(cause).__name__, size=200)) from None
        if isinstance(cause, _OTHER_FORM):
            raise ClusterLost("Redis has answered in another form than a script of this version") from None
        raise


def _reading(operation: Callable[_Params, Awaitable[_Answer]]) -> Callable[_Params, Coroutine[Any, Any, _Answer]]:
    """Have an operation raise `ClusterLost` for an answer of another form."""

    @wraps(operation)
    async def translated(*args: _Params.args, **kwargs: _Params.kwargs) -> _Answer:
        with _translated():
            return await operation(*args, **kwargs)

    return translated


class RedisStore:
    """The directory of a cluster, see `ClusterStore`. Made by `open_redis_store`."""

    def __init__(self, client: RedisClient, options: RedisOptions, node: str, seal: Seal) -> None:
        self._client = client
        self._options = options
        self._node = node
        self._seal = seal

    # Nodes

    async def announce(self, record: NodeRecord, ttl: float) -> bool:
        sealed = self._seal.close(f"node:{record.name}", encode(record))
        lasting = sha256(encode(record.lasting)).hexdigest()
        return bool(await self._run(ANNOUNCE, record.name, record.boot, sealed, round(ttl * 1000), lasting))

    async def withdraw(self, name: str, boot: str) -> None:
        await self._run(WITHDRAW, name, boot)

    @_reading
    async def nodes(self, since: int = 0) -> NodesRead:
        version, *found = await self._run(NODES, since)
        records = []
        for name, sealed in zip(found[::2], found[1::2], strict=True):
            value = self._seal.open(f"node:{_text(name)}", sealed)
            record = None if value is None else decode_node(value)
            if record is not None and record.name == _text(name):
                records.append(record)
        return NodesRead(int(version), sorted(records, key=lambda record: record.name))

    # Tokens

    @_reading
    async def tokens(self) -> SharedTokens:
        number, found, revocations = await self._run(TOKENS)
        entries = {}
        for token_id, sealed in zip(found[::2], found[1::2], strict=True):
            value = self._seal.open(f"token:{_text(token_id)}", sealed)
            if value is not None:
                entries[_text(token_id)] = value
        revoked = set()
        for sealed in revocations:
            value = self._seal.open("revoked", sealed)
            if value is not None:
                revoked.add(_text(value))
        return SharedTokens(int(number), entries, frozenset(revoked))

    @_reading
    async def tokens_number(self) -> int:
        return int(await self._run(TOKENS_NUMBER))

    async def put_token(self, token_id: str, entry: bytes) -> bool:
        sealed = self._seal.close(f"token:{token_id}", entry)
        return bool(await self._run(PUT_TOKEN, self._node, token_id, sealed, self._revocation(token_id)))

    async def revoke_token(self, token_id: str) -> bool:
        revocation = self._revocation(token_id)
        return bool(await self._run(REVOKE_TOKEN, self._node, token_id, revocation, MAX_REVOKED))

    async def confirm_tokens(self, number: int) -> None:
        sealed = self._seal.close(f"confirmed:{self._node}", b"%d" % number)
        await self._run(CONFIRM_TOKENS, self._node, sealed)

    @_reading
    async def confirmations(self) -> dict[str, int]:
        found = await self._run(CONFIRMATIONS)
        confirmed = {}
        for name, sealed in zip(found[::2], found[1::2], strict=True):
            value = self._seal.open(f"confirmed:{_text(name)}", sealed)
            if value is not None:
                confirmed[_text(name)] = int(value)
        return confirmed

    def _revocation(self, token_id: str) -> bytes:
        return self._seal.close("revoked", token_id.encode())

    # Changes

    async def publish(self, change: Change) -> None:
        await self._ask("PUBLISH", CHANNEL, msgspec.json.encode((change.kind, change.name, change.node)))

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[trio.MemoryReceiveChannel[Change]]:
        sender, receiver = trio.open_memory_channel[Change](MAX_CHANGES)
        async with AsyncExitStack() as stack:
            with self._watched():
                connection = await stack.enter_async_context(self._client.subscription(CHANNEL))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._receive, connection, sender)
                nursery.start_soon(self._ping, connection)
                with receiver:
                    yield receiver
                nursery.cancel_scope.cancel()

    async def _receive(self, connection: RedisConnection, sender: trio.MemorySendChannel[Change]) -> None:
        """Pass on changes until the connection is lost. One that has said nothing for two pings is lost."""
        with sender, suppress(ClusterLost), _translated():
            while True:
                with trio.fail_after(2 * self._options.timeout):
                    message = await connection.read()
                if message[0] == b"message":
                    self._pass(sender, message[2])

    async def _ping(self, connection: RedisConnection) -> None:
        with suppress(ClusterLost), _translated():
            while True:
                await trio.sleep(self._options.timeout)
                await connection.send("PING")

    def _pass(self, sender: trio.MemorySendChannel[Change], data: Any) -> None:
        try:
            change = Change(*_decode_change(data))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return
        if change.node != self._node:
            try:
                sender.send_nowait(change)
            except (trio.WouldBlock, trio.BrokenResourceError):
                pass  # Periodic reads find it.

    # Requests

    async def _run(self, script: str, *args: str | bytes | int) -> Any:
        return await self._ask("EVAL", script, 1, f"{PREFIX}directory", *args)

    async def _ask(self, *words: str | bytes | int) -> Any:
        with self._watched():
            return await self._client.ask(*words)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Bound the time of an operation."""
        scope = trio.CancelScope(deadline=trio.current_time() + self._options.timeout)
        with _translated(), scope:
            yield
        if scope.cancelled_caught:
            raise ClusterLost(f"no answer within {self._options.timeout:g} s (cluster.timeout)")


@asynccontextmanager
async def open_redis_store(options: RedisOptions, node: str, seal: Seal) -> AsyncIterator[RedisStore]:
    """Use Redis in this block; it need not be reachable yet.

    Args:
        options: how to reach it.
        node: the name of this node.
        seal: the seal of the cluster.
    """
    client = RedisClient(options)
    try:
        yield RedisStore(client, options, node, seal)
    finally:
        await client.aclose()


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def _innermost(error: BaseException) -> BaseException:
    """Return the innermost cause, which says more than that an attempt has failed. None of them has the password."""
    while True:
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        elif isinstance(error.__cause__, Exception):
            error = error.__cause__
        else:
            return error
