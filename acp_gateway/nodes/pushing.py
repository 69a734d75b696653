"""Follows nodes for browsers that have signed in here, so that they are notified while their pages are closed.

A control connection with the claim of a browser is told of open questions and of turns there. `WebPush` decides what
the browser is told, as of sessions of this gateway. Browsers with the same claim share the connection.
"""

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from typing import Final, NamedTuple

import trio

from acp_gateway.client.control import exchange
from acp_gateway.client.dialing import Destination
from acp_gateway.client.uplink import BACKOFF_MAX, backoff
from acp_gateway.config.nodes import NodeSection
from acp_gateway.errors import AccessError, Busy, GatewayError, ProtocolError, UnknownSession, Unreachable
from acp_gateway.gateway.access import Access
from acp_gateway.gateway.node_directory import NodeDirectory
from acp_gateway.gateway.push.deciding import Question
from acp_gateway.gateway.push.following import read_notices
from acp_gateway.gateway.push.service import WebPush
from acp_gateway.nodes.door import NodeAdmission
from acp_gateway.protocol.methods import NOTICES
from acp_gateway.protocol.on_behalf import write_claim
from acp_gateway.transports.maintained import MaintainedStream

log = logging.getLogger(__name__)

CHECK: Final = 0.5
"""Seconds between two looks at who is to be told: a connection ends within a second of its browser's token."""

MOST: Final = 256
"""Maximum connections: as many nodes as a cluster has, for one person, or some nodes for each of a team."""

PATIENCE: Final = 10.0
"""Seconds for a connection and the answer of the node."""

REFUSED_PAUSE: Final = 60.0
"""Seconds before a node that refuses is asked again, as one of an earlier version, or whose token was replaced."""

_LOST: Final = (trio.BrokenResourceError, trio.ClosedResourceError, trio.EndOfChannel)

Connect = Callable[[str, Access], AbstractAsyncContextManager[tuple[Destination, MaintainedStream]]]
"""Opens a control connection to the node of a name, for a browser. Raises `GatewayError`."""


class _Key(NamedTuple):
    node: str
    section: NodeSection
    claim: str


class _Line:
    """A connection, and what was told over it.

    Args:
        access: that of one of its browsers; all have the same claim.
        since: the time until which they were told of ends of turns by a former process; None for a first one.
    """

    def __init__(self, access: Access, since: int | None) -> None:
        self.access = access
        self.browsers: set[str] = set()
        self.questions: Sequence[Question] | None = None
        """The open questions as told last, also while the node is away; None before."""
        self.since = since
        """Time of what was told last, by the clock of the node."""
        self.refusal = ""
        """The reason why the node refuses; empty if it does not."""
        self.scope = trio.CancelScope()


class NodePushing:
    """Follows the nodes of one gateway.

    Args:
        push: notifies browsers.
        directory: the nodes.
        admission: says which of them a browser may use.
        connect: connects to one.
        clock: returns the time, in seconds since 1970.
    """

    def __init__(
        self,
        push: WebPush,
        directory: NodeDirectory,
        admission: NodeAdmission,
        connect: Connect,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._push = push
        self._directory = directory
        self._admission = admission
        self._connect = connect
        self._clock = clock
        self._lines: dict[_Key, _Line] = {}
        self._is_full = False

    def questions(self, browser: str) -> Mapping[str, Sequence[Question] | None]:
        """Return the open questions at each node that a browser may use, see `Elsewhere`."""
        return {key.node: line.questions for key, line in self._lines.items() if browser in line.browsers}

    async def run(self) -> None:
        """Keep the connections that are needed, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._update(nursery)
                await trio.sleep(CHECK)

    def _update(self, nursery: trio.Nursery) -> None:
        """End the connections that are not needed any more, and begin those that are."""
        wanted = self._wanted()
        for key in self._lines.keys() - wanted.keys():
            self._lines.pop(key).scope.cancel()
            self._push.watch.look_again()
        for key, browsers in wanted.items():
            line = self._lines.get(key)
            if line is None:
                if len(self._lines) >= MOST:
                    continue
                line = _Line(next(iter(browsers.values())), self._push.heard(browsers, key.node))
                self._lines[key] = line
                nursery.start_soon(self._follow, key, line)
            if added := browsers.keys() - line.browsers:
                self._push.watch.look_again()
                if line.questions is not None and line.since is not None:
                    self._push.set_heard(added, key.node, line.since)
            line.browsers = set(browsers)
        if not self._is_full and len(wanted) > MOST:
            log.warning("%d connections follow nodes for notifications, and no more are opened", MOST)
        self._is_full = len(wanted) > MOST

    def _wanted(self) -> dict[_Key, dict[str, Access]]:
        """Return the connections that are needed, and the browsers of each."""
        wanted: dict[_Key, dict[str, Access]] = {}
        for browser, access in self._push.told().items():
            for name, section in self._directory.sections.items() if access.role == "controller" else ():
                with suppress(AccessError):
                    key = _Key(name, section, write_claim(self._admission.claim(access, name)))
                    wanted.setdefault(key, {})[browser] = access
        return wanted

    async def _follow(self, key: _Key, line: _Line) -> None:
        failures = 0
        with line.scope:
            while True:
                before = line.since
                error = await self._listen(key, line)
                failures = failures + 1 if line.since == before else 0
                pause = backoff(failures, BACKOFF_MAX, random.random())  # noqa: S311
                if not isinstance(error, Unreachable | Busy):
                    pause = REFUSED_PAUSE
                    self._note_refusal(key.node, line, error)
                await trio.sleep(pause)

    def _note_refusal(self, node: str, line: _Line, error: GatewayError) -> None:
        """Log why a node refuses, once for all of its connections."""
        refusal = str(error)
        is_told = any(key.node == node and other.refusal == refusal for key, other in self._lines.items())
        line.refusal = refusal
        # The session of a guest may be open later.
        if not is_told and not isinstance(error, UnknownSession):
            log.warning("browsers are not notified of sessions of the node %s: %s", node, refusal)

    async def _listen(self, key: _Key, line: _Line) -> GatewayError:
        """Receive what a node tells until the connection ends; return why."""
        try:
            async with AsyncExitStack() as stack:
                with trio.fail_after(PATIENCE):
                    reached = await stack.enter_async_context(self._connect(key.node, line.access))
                return await self._receive(*reached, key, line)
        except trio.TooSlowError:
            return Unreachable(f"the node did not answer within {PATIENCE:g} s")
        except GatewayError as error:
            return error

    async def _receive(
        self, destination: Destination, stream: MaintainedStream, key: _Key, line: _Line
    ) -> GatewayError:
        failure: GatewayError = Unreachable("the connection was lost")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.run)
            try:
                with trio.fail_after(PATIENCE):
                    params = {} if line.since is None else {"since": line.since}
                    await exchange(stream, destination, NOTICES, params)
                while True:
                    self._note(key, line, await stream.receive())
            except (*_LOST, trio.TooSlowError):
                pass  # It is tried again.
            except ValueError as error:
                failure = ProtocolError(f"what it tells is not understood: {error}")
            except GatewayError as error:
                failure = error
            nursery.cancel_scope.cancel()
        return failure

    def _note(self, key: _Key, line: _Line, text: bytes) -> None:
        """Note what a node tells. Raises `ValueError`."""
        told = read_notices(text, key.node, self._clock())
        if told.turns or line.since is None:
            self._push.set_heard(line.browsers, key.node, told.time)
        line.questions, line.since, line.refusal = told.questions, told.time, ""
        for turn in told.turns:
            self._push.turn(line.browsers, turn.session, turn.ended, running=turn.running)
        self._push.watch.look_again()
