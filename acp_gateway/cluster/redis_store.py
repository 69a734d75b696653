"""The directory of a cluster in Redis or Valkey, by coredis. Each operation is one script, see `scripts`."""

import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from hashlib import sha256
from typing import Any, Final, ParamSpec, TypeVar

import anyio
import msgspec
import trio
from coredis import Redis
from coredis.exceptions import RedisError
from coredis.retry import NoRetryPolicy

from acp_gateway.cluster import scripts
from acp_gateway.cluster.records import NodeRecord, decode_node, encode
from acp_gateway.cluster.seal import Seal
from acp_gateway.cluster.store import MAX_REVOKED, Change, ClusterLost, NodesRead, SharedTokens
from acp_gateway.printable import printable

MAX_CHANGES: Final = 1000
"""Maximum number of changes that wait for their reader; further ones are dropped, as a lost connection drops them."""

_CONNECTIONS: Final = 3
"""Connections: requests share one, and changes have one. A further one is for requests while the first is filled."""

_LOST: Final = (
    RedisError,
    OSError,
    TimeoutError,
    anyio.EndOfStream,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
)
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
    except BaseExceptionGroup as group:
        # The library fails to unsubscribe over a connection that is cancelled together with it.
        cancelled, rest = group.split(trio.Cancelled)
        if cancelled is None or rest is None or not isinstance(_innermost(rest), _LOST):
            raise
        raise cancelled from None


def _reading(operation: Callable[_Params, Awaitable[_Answer]]) -> Callable[_Params, Coroutine[Any, Any, _Answer]]:
    """Have an operation raise `ClusterLost` for an answer of another form."""

    @wraps(operation)
    async def translated(*args: _Params.args, **kwargs: _Params.kwargs) -> _Answer:
        with _translated():
            return await operation(*args, **kwargs)

    return translated


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisOptions:
    """The options of the connection to Redis."""

    host: str = "localhost"
    port: int = 6379
    unix_path: str | None = None
    """A unix socket, instead of `host` and `port`."""
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
    timeout: float = 3.0
    """Seconds for each operation, the connection included."""


class RedisStore:
    """The directory of a cluster, see `ClusterStore`. Made by `open_redis_store`."""

    def __init__(self, redis: "Redis[bytes]", options: RedisOptions, node: str, seal: Seal) -> None:
        self._redis = redis
        self._options = options
        self._node = node
        self._seal = seal
        self._scripts = {
            name: redis.register_script(getattr(scripts, name))
            for name in vars(scripts)
            if name.isupper() and name not in ("PREFIX", "CHANNEL") and not name.startswith("_")
        }

    # Nodes

    async def announce(self, record: NodeRecord, ttl: float) -> bool:
        sealed = self._seal.close(f"node:{record.name}", encode(record))
        lasting = sha256(encode(record.lasting)).hexdigest()
        return bool(await self._run("ANNOUNCE", record.name, record.boot, sealed, round(ttl * 1000), lasting))

    async def withdraw(self, name: str, boot: str) -> None:
        await self._run("WITHDRAW", name, boot)

    @_reading
    async def nodes(self, since: int = 0) -> NodesRead:
        version, *found = await self._run("NODES", since)
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
        number, found, revocations = await self._run("TOKENS")
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
        return int(await self._run("TOKENS_NUMBER"))

    async def put_token(self, token_id: str, entry: bytes) -> bool:
        sealed = self._seal.close(f"token:{token_id}", entry)
        return bool(await self._run("PUT_TOKEN", self._node, token_id, sealed, self._revocation(token_id)))

    async def revoke_token(self, token_id: str) -> bool:
        revocation = self._revocation(token_id)
        return bool(await self._run("REVOKE_TOKEN", self._node, token_id, revocation, MAX_REVOKED))

    def _revocation(self, token_id: str) -> bytes:
        return self._seal.close("revoked", token_id.encode())

    # Changes

    async def publish(self, change: Change) -> None:
        with self._watched():
            await self._redis.publish(scripts.CHANNEL, msgspec.json.encode((change.kind, change.name, change.node)))

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[trio.MemoryReceiveChannel[Change]]:
        sender, receiver = trio.open_memory_channel[Change](MAX_CHANGES)
        async with trio.open_nursery() as nursery:
            flaw = await nursery.start(self._receive, sender)
            if flaw is None:
                with receiver:
                    yield receiver
            nursery.cancel_scope.cancel()
        if flaw is not None:
            raise flaw

    async def _receive(
        self, sender: trio.MemorySendChannel[Change], task_status: trio.TaskStatus[ClusterLost | None]
    ) -> None:
        """Pass on changes until the connection is lost; report by `task_status` whether it has been made."""
        timeout = self._options.timeout
        started = False
        with sender:
            try:
                with _translated():
                    # A connection that says nothing is pinged, and lost if it does not answer in time.
                    messages = self._redis.pubsub(
                        channels=[scripts.CHANNEL],
                        ignore_subscribe_messages=True,
                        retry_policy=NoRetryPolicy(),
                        subscription_timeout=timeout,
                        max_idle_seconds=timeout,
                    )
                    async with messages:
                        started = True
                        task_status.started(None)
                        async for message in messages:
                            self._pass(sender, message["data"])
            except ClusterLost as error:
                if not started:
                    task_status.started(error)

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

    async def _run(self, name: str, *args: str | bytes | int) -> Any:
        with self._watched():
            return await self._scripts[name](keys=[f"{scripts.PREFIX}directory"], args=args)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Bound the time of an operation. After a timeout, connections are of no use: an answer may be on its way."""
        scope = trio.CancelScope(deadline=trio.current_time() + self._options.timeout)
        try:
            with _translated(), scope:
                yield
        except ClusterLost:
            # The library makes an error of its own of a connection attempt that is cancelled.
            if not scope.cancel_called:
                raise
        if scope.cancel_called:
            self._redis.connection_pool.disconnect()
            raise ClusterLost(f"no answer within {self._options.timeout:g} s (cluster.timeout)")


@asynccontextmanager
async def open_redis_store(options: RedisOptions, node: str, seal: Seal) -> AsyncIterator[RedisStore]:
    """Use Redis in this block; it need not be reachable yet.

    Args:
        options: how to reach it.
        node: the name of this node.
        seal: the seal of the cluster.
    """
    # It logs failures with tracebacks, which are in the errors.
    logging.getLogger("coredis").setLevel(logging.CRITICAL + 1)
    redis: Redis[bytes] = Redis(
        host=options.host,
        port=options.port,
        unix_socket_path=options.unix_path,
        db=options.db,
        username=options.username,
        password=options.password,
        ssl_context=options.tls,
        # Later than that of an operation, whose error names the option. Only changes need it.
        connect_timeout=2 * options.timeout,
        max_connections=_CONNECTIONS,
        retry_policy=NoRetryPolicy(),
    )
    async with redis:
        yield RedisStore(redis, options, node, seal)


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def _innermost(error: BaseException) -> BaseException:
    """Return the innermost cause: the library wraps those of the network. None of them has the password."""
    while True:
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        elif isinstance(error.__cause__, Exception):
            error = error.__cause__
        else:
            return error
