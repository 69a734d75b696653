"""A session for a client in this process: a dialogue over a link that outlives its connections, as an editor has it.

It is ACP, not the `/ws` of pages: ACP is served at every address, also through ssh and over plain lines.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from acp_gateway.client import shim
from acp_gateway.client.dialing import Destination
from acp_gateway.errors import AgentError, GatewayError, UnknownSession
from acp_gateway.printable import printable
from acp_gateway.protocol.methods import INITIALIZE, NEW
from acp_gateway.terminal.dialogue import Dialogue, Event, Failed
from acp_gateway.transports.memory import memory_message_stream_pair

_SESSION_NOT_FOUND: Final = -32002
_METHOD_NOT_FOUND: Final = -32601

Receive = Callable[[list[Event]], Awaitable[None]]
"""Handles events. Until it returns, no further ones are received, and the gateway stops sending in the end."""


class SessionLink:
    """The link of one session.

    Args:
        dialogue: what is said over it; the caller may act by its methods, and calls `flush` after that.
        destination: called before each attempt to connect.
        settings: those of a shim, without path maps: paths stay those of the gateway's machine.
    """

    def __init__(self, dialogue: Dialogue, destination: Callable[[], Destination], settings: shim.Settings) -> None:
        self.dialogue = dialogue
        self._joined = dialogue.session
        self._destination = destination
        self._settings = settings._replace(follows_turns=True)
        self._here, self._there = memory_message_stream_pair()
        self.error: GatewayError | None = None
        """The error that has ended the link; None before."""

    async def run(self, receive: Receive) -> None:
        """Connect, begin the dialogue, and pass on its events until the caller cancels this, which closes the link.

        Raises `GatewayError` if the gateway can't be reached at first, or refuses at any time, and `AgentError` or
        `UnknownSession` if the session can't be opened.
        """
        self.dialogue.start()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._relay)
            self.flush()
            try:
                async for batch in self._here:
                    events = self.dialogue.receive(batch)
                    self.flush()
                    if self.error is None:
                        _check_opened(events, self._joined)
                    await receive(events)
            except (AgentError, UnknownSession) as error:
                self.error = error
            nursery.cancel_scope.cancel()
        if self.error is not None:
            raise self.error

    def flush(self) -> None:
        """Send what the dialogue has to say. After the end of the link it is dropped."""
        messages, self.dialogue.output = self.dialogue.output, []
        if messages:
            try:
                self._here.send_nowait(messages)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # `run` is about to return, or has.

    async def _relay(self) -> None:
        try:
            await shim.relay(self._there, self._destination, self._settings)
        except GatewayError as error:
            self.error = error
        finally:
            # What was sent before is still received.
            await self._there.aclose()


def _check_opened(events: list[Event], joined: str) -> None:
    """Raise `AgentError` or `UnknownSession` if the session was refused; `joined` is its id, empty for a new one."""
    listed = "`acp-gateway sessions` lists those that can be joined"
    for event in events:
        if isinstance(event, Failed) and event.method in (INITIALIZE, NEW):
            text = printable(event.text)
            if event.code == _SESSION_NOT_FOUND:
                raise UnknownSession(f"{text}; {listed}")
            if joined and event.method == NEW and event.code == _METHOD_NOT_FOUND:
                # The gateway has no such session, and has asked the agent, which opens no former ones.
                raise UnknownSession(f"there is no session {printable(joined)}; {listed}")
            raise AgentError(f"the session can't be opened: {text}")
