"""Remembers what one client is told: the sessions that it watches, and what stays of it when its connection is lost.

The connection reads and writes, and this is what the next connection of the client goes on with: a client that comes
back gets the actions that it has missed, and each session's feed goes on where it stopped.
"""

from collections.abc import Hashable, Iterable, Mapping, MutableSet, Sequence
from typing import Any, Final, Protocol, TypeAlias

import trio

from acp_gateway.core.sessions.session import Session
from acp_gateway.dialects.ahp.chat_tree import ChatTree
from acp_gateway.dialects.ahp.from_acp import Mapper
from acp_gateway.dialects.ahp.options import Options
from acp_gateway.dialects.ahp.session_tree import SessionTree
from acp_gateway.dialects.ahp.wire import Action, Envelopes, chat_uri, iso
from acp_gateway.gateway.hub.attachment import Disconnect
from acp_gateway.gateway.viewing.session_feed import SessionFeed
from acp_gateway.protocol import methods
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.text import lookup

RING_SIZE: Final = 1024 * 1024
"""Bytes of actions that stay for a client: what an agent says in minutes. VS Code is back within three seconds."""

MAX_OWN: Final = 8
"""Clients of one principal without a connection that are remembered: a person has a few windows."""

MAX_CLIENTS: Final = 256
"""The same of all together."""

SUMMARY_SIZE: Final = 500
"""Bytes that a summary counts as."""

LEFT_OUT: Final = "left-out"
"""Id of the turn that says what is not shown."""


class Connection(Protocol):
    """The connection of a client."""

    def reply(self, text: bytes) -> None:
        """Send a message, after all that were sent before."""

    def close(self, disconnect: Disconnect) -> None:
        """End the connection."""

    def follow(self, watched: "Watched", session: Session) -> None:
        """Ask the feed of a session for news from now on."""

    def refresh(self, watched: "Watched") -> None:
        """Tell what has changed in a session besides its chat."""

    def release(self, watched: "Watched") -> None:
        """Watch a session no more that the client has unsubscribed from, once all is carried out."""

    def shown_queue(self, session: Session, prompts: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
        """Return id and text of each prompt that waits in a session."""


class Carrying:
    """Work that a client has dispatched in a session and that is not done: a new snapshot does not end it."""

    def __init__(self) -> None:
        self.jobs: set[object] = set()
        """Those of all connections of the client."""
        self.lock = trio.Lock()
        """Held by what is carried out: a former connection may be about to send a prompt."""
        self.stopped: dict[str, bool] = {}
        """Turns that the client has just ended, and whether their prompts were not sent for that."""


class Watched:
    """A session that a client watches, or is about to."""

    def __init__(self, uri: str, session: Session | None, state: SessionTree, options: Options) -> None:
        self.uri = uri
        self.chat_uri = chat_uri(uri)
        self.session = session
        """None until it has begun."""
        self.state = state
        self.options = options
        about = {"resource": self.chat_uri, "title": state.state["title"], "status": state.state["status"]}
        self.chat = ChatTree(about)
        self.mapper = Mapper(self.chat)
        if session is not None:
            self.mapper.attach(session.id, session.cwd or "/")
        self.feed: SessionFeed | None = None
        self.channels: set[str] = set()
        """Those that the client has subscribed to: that of the session, that of its chat."""
        self.is_told = False
        """False while its state is put together."""
        self.carrying = Carrying()

    def chat_snapshot(self, modified: float, draft: Mapping[str, Any] | None, *, is_read_only: bool) -> dict[str, Any]:
        """Return the state of the chat, with a first turn that says what is left out of it."""
        found = {**self.chat.snapshot(), "modifiedAt": iso(modified)}
        if is_read_only:
            found["interactivity"] = "read-only"
        if draft is not None:
            found["draft"] = draft
        left_out, is_cut = self.chat.left_out, self.chat.is_cut
        if left_out or is_cut:
            why = f"{left_out} earlier turns" if left_out else "Earlier parts"
            text = f"{why} of this session are not shown here. `acp-gateway export` writes all that is kept."
            part = {"kind": "markdown", "id": f"{LEFT_OUT}:1", "content": text}
            first = {"id": LEFT_OUT, "startedAt": iso(0), "message": {"text": "", "origin": {"kind": "agent"}}}
            found["turns"] = [{**first, "responseParts": [part], "duration": 0, "state": "complete"}, *found["turns"]]
        return found


class AhpClient:
    """A client: an `Input` of the memory limit, with what it watches and was told last.

    Args:
        client_id: what it calls itself.
        account: the identity for whose limits it counts.
    """

    def __init__(self, client_id: str, account: str) -> None:
        self.account = account
        self.envelopes = Envelopes(client_id, RING_SIZE)
        self.watched: dict[str, Watched] = {}
        """The sessions that it watches, by URI."""
        self.follows_root = False
        """True if it is told of all sessions, and of agents."""
        self.listed: dict[str, dict[str, Any]] = {}
        """The summaries of sessions that it was told, by URI."""
        self.agents: list[dict[str, Any]] = []
        """The agents that it was told."""
        self.connection: Connection | None = None
        """None while it is away."""

    @property
    def input_bytes(self) -> int:
        """Bytes that stay for it, roughly."""
        chats = sum(watched.chat.size for watched in self.watched.values())
        return self.envelopes.size + chats + SUMMARY_SIZE * len(self.listed)

    def close(self, disconnect: Disconnect) -> None:
        """Drop these bytes, and end the connection; the client begins again."""
        self.reset()
        self.listed.clear()
        if self.connection is not None:
            self.connection.close(disconnect)

    def reset(self) -> None:
        """Keep nothing of it: what it was told does not lead to the present state."""
        self.follows_root = False
        self.envelopes.forget()
        self.envelopes.last += 1
        for watched in self.watched.values():
            watched.is_told = False
            watched.channels.clear()
        # A Stop still has to reach a prompt that is on its way.
        self.watched = {uri: watched for uri, watched in self.watched.items() if watched.carrying.jobs}

    def tell(self, watched: Watched, actions: Iterable[Action]) -> None:
        """Tell actions of a session and its chat, which the tree of the chat has taken already."""
        for action in actions:
            watched.state.apply(action)
            self.tell_folded(watched, action)

    def tell_folded(self, watched: Watched, action: Action, client_seq: object = None) -> None:
        """Tell an action that the trees have taken, if the client has subscribed to its channel."""
        channel = watched.chat_uri if action["type"].startswith("chat/") else watched.uri
        if watched.is_told and channel in watched.channels:
            self.send(channel, action, client_seq)

    def send(self, channel: str, action: Action, client_seq: object = None) -> None:
        """Tell an action; one that the client has dispatched comes with its own number."""
        text = self.envelopes.add(channel, action, client_seq)
        if self.connection is not None:
            self.connection.reply(text)


class Telling:
    """Tells a client what the feed of a session has: a `FeedOutput` whose messages are sent at once, in one order."""

    def __init__(self, client: AhpClient, watched: Watched) -> None:
        self._client = client
        self._watched = watched

    def updates(
        self,
        session_id: str,
        messages: Sequence[bytes],
        first: int,
        times: Sequence[int | None],
        name: str | None = None,
    ) -> list[bytes]:
        return self._tell(self._watched.mapper.updates(messages, first, times))

    def request(self, session_id: str, request_id: str, message: Message) -> list[bytes]:
        method, params = methods.current_name(message.method), lookup.raw_params(message)
        return self._tell(self._watched.mapper.asked(request_id, method, params))

    def request_resolved(
        self, session_id: str, request_id: str, message: Message, by: str | None, outcome: str | None
    ) -> list[bytes]:
        return self._tell(self._watched.mapper.resolved(request_id, outcome))

    def queue(self, session_id: str, prompts: Sequence[Mapping[str, Any]]) -> list[bytes]:
        connection, session = self._client.connection, self._watched.session
        if connection is None or session is None:
            return []
        return self._tell(self._watched.mapper.queue(connection.shown_queue(session, prompts)))

    def turn_ended(self, session_id: str, status: str, end: Mapping[str, Any]) -> list[bytes]:
        return self._tell(self._watched.mapper.turn_ended(end))

    def status(self, session_id: str, status: str, exit_reason: str | None) -> list[bytes]:
        return []

    def reset(self, session_id: str, epoch: str) -> list[bytes]:
        return []

    def rest(self, *, is_busy: bool) -> None:
        """Take note that everything was told for now."""
        if not is_busy:
            self._tell(self._watched.mapper.rest())
        if self._client.connection is not None:
            self._client.connection.refresh(self._watched)

    def _tell(self, actions: Iterable[Action]) -> list[bytes]:
        self._client.tell(self._watched, actions)
        return []


class ChatFeed(SessionFeed):
    """The feed of a session, which also tells that it is at rest."""

    telling: Telling

    def next(self) -> list[bytes]:
        texts = super().next()
        if not (self.has_more or self.stopped):
            self.telling.rest(is_busy=bool(self.session.turns or self.session.own_state))
        return texts


Key: TypeAlias = tuple[Hashable, Hashable, str]
"""The principal of a client, what it connects for, and what it calls itself."""


class AhpClients:
    """The clients of one gateway that were connected last.

    Args:
        inputs: what counts in the memory limit.
    """

    def __init__(self, inputs: MutableSet[Any]) -> None:
        self._inputs = inputs
        self._clients: dict[Key, AhpClient] = {}

    def begin(self, key: Key, account: str) -> tuple[AhpClient, AhpClient | None]:
        """Return a client that begins again, and the former one of its key."""
        former = self._clients.pop(key, None)
        self._inputs.discard(former)
        client = self._clients[key] = AhpClient(key[2], account)
        self._inputs.add(client)
        self._forget_one(key[0])
        return client, former

    def find(self, key: Key) -> AhpClient | None:
        """Return a client that was connected before."""
        if key in self._clients:
            self._clients[key] = self._clients.pop(key)
        return self._clients.get(key)

    def _forget_one(self, principal: Hashable) -> None:
        """Forget the oldest client without a connection of a principal that has many, or of all."""
        away = [key for key, client in self._clients.items() if client.connection is None]
        own = [key for key in away if key[0] == principal]
        for key in own[:1] if len(own) > MAX_OWN else away[:1] if len(away) > MAX_CLIENTS else ():
            self._inputs.discard(self._clients.pop(key))
