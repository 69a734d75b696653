"""Takes what a client dispatches in the sessions that it watches, and carries it out.

What is dispatched is decided at once, in the order in which it comes, and answered by the action itself or by a
refusal. What it asks for is carried out after it, one thing after another in each session.
"""

import logging
import platform
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import msgspec
import trio

from acp_gateway.core.sessions.session import Role, Session
from acp_gateway.core.turns.queue import QueueChange
from acp_gateway.dialects.ahp import dispatches as asked
from acp_gateway.dialects.ahp import wire
from acp_gateway.dialects.ahp.dispatches import Refusal, Situation, decide
from acp_gateway.dialects.ahp.options import Options, read_options
from acp_gateway.dialects.ahp.session_tree import status_bits, summary
from acp_gateway.dialects.ahp.store import AhpStore, Named
from acp_gateway.dialects.ahp.watched import AhpClient, ChatFeed, Telling, Watched
from acp_gateway.dialects.ahp.wire import ROOT, Action, Call
from acp_gateway.errors import AccessError
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.sessions.history import HistorySlice
from acp_gateway.gateway.viewing.local_client import ClientEnded
from acp_gateway.gateway.viewing.open_sessions import CallRefused
from acp_gateway.gateway.viewing.session_connection import SessionConnection
from acp_gateway.gateway.viewing.session_feed import SessionFeed, queue_for
from acp_gateway.gateway.workspaces import containing
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.text import lookup
from acp_gateway.protocol.text.members import AcpRequest

log = logging.getLogger(__name__)

VIA: Final = "vscode"
"""Kind of client, as others are shown it."""

CATCH_UP: Final = 8
"""Pieces of news that are told before a dispatch is decided; each has up to 128 KiB."""

FAILURES: Final = (CallRefused, AccessError, ClientEnded)
"""Errors of what the gateway refuses a client."""

_OF_BEGUN: Final = (asked.Answer, asked.Mark, asked.Rename, asked.Requeue)
"""Effects that only a session that has begun has, but for read marks."""

_STEER: Final = {"_meta": {methods.META: {"steer": True}}}


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A call, or what was dispatched, that takes time."""

    run: Callable[[], Awaitable[Any]]
    call: Call | None = None
    """None for what gets no response."""
    watched: Watched | None = None
    """The session in which it was dispatched; None for a call."""


class DispatchingConnection(SessionConnection[Job]):
    """The connection of one client, as far as it concerns sessions that it watches.

    Args:
        gateway: the gateway, which must be running.
        access: the client's principal.
        wanted: what it connects for: a session that it is restricted to, or to observe.
        name: its name in the log and the audit.

    Raises what `Gateway.admit` raises.
    """

    def __init__(self, gateway: Gateway, access: Access, wanted: ConnectRequest, name: str) -> None:
        super().__init__(gateway, access, wanted, name, VIA)
        self.store = gateway.services.one(AhpStore, gateway)
        self.client: AhpClient | None = None
        """None before the handshake."""
        # A gateway that passes its connections on gives each an id of its own.
        self.wanted = replace(wanted, request_id="")

    @property
    def identity(self) -> str:
        """The identity whose sessions it sees: for a guest, that of the owner."""
        reach = self.admitted.viewer.reach
        return reach.granted_by or reach.identity

    @property
    def reader(self) -> str:
        """The owner of its read marks and drafts: the identity, but a guest has its own."""
        access = self.admitted.access
        return access.identity if access.session is None else access.credential

    @property
    def observes(self) -> bool:
        """True if it may only look."""
        return self.admitted.role is Role.OBSERVER

    @property
    def present(self) -> AhpClient:
        """The client, after the handshake."""
        assert self.client is not None
        return self.client

    def follow(self, watched: Watched, session: Session) -> None:
        """Ask the feed of a session for news from now on."""
        used = self.sessions.use(session)
        used.feed = watched.feed
        self.changes.follow(session)
        if watched.feed is not None:
            self.feeds.add(watched.feed)

    def feed_of(self, watched: Watched, session: Session, found: HistorySlice | None) -> SessionFeed:
        """Make the feed of a session from its beginning; `found` was read from the disk."""
        journal, viewer, views = session.journal, self.admitted.viewer, self.gateway.views
        epoch, position = (journal.epoch, journal.start) if found is None else (found.epoch, found.first - 1)
        view, telling = views.view(session, viewer), Telling(self.present, watched)
        feed = ChatFeed(view, viewer, views, epoch, (position, 0), telling, found, knows_requests=False)
        feed.telling, watched.feed = telling, feed
        return feed

    def uri_of(self, session: Session) -> str:
        """Return the URI of a session: that under which it was created, or the one that its name makes."""
        known = self.store.uri_of(self.identity, session.agent, session.name)
        return known or wire.session_uri(self._providers()[session.agent], session.name)

    def _providers(self) -> Mapping[str, str]:
        return self.store.providers(tuple(self.gateway.config.agents))

    def _options_of(self, session: Session) -> Options:
        """Return what may be chosen in a session; of one that is not open, what its agent has offered last."""
        if not session.result:
            return self.store.options(session.agent)
        if self.store.note_offer(session):
            self.start(self.store.save)
            self._tell_agents()
        return read_options(session.result)

    def times(self, session: Session | None) -> tuple[float, float]:
        """Return when a session was created, and when it has changed last, in milliseconds since 1970."""
        if session is None:
            return now(), now()
        created = session.created_at or session.active_at or 0
        return created, session.active_at or created

    def summary(self, session: Session) -> dict[str, Any]:
        """Return what a list tells of a session."""
        view = self.gateway.views.view(session, self.admitted.viewer)
        is_read = self.store.is_read(self.reader, session)
        created, modified = self.times(session)
        return summary(
            self.uri_of(session),
            title=session.title,
            status=status_bits(view.status, is_read=is_read, is_archived=session.archived),
            directories=[] if session.cwd is None else [session.cwd],
            created=created,
            modified=modified,
        )

    def agents(self) -> list[dict[str, Any]]:
        """Return the agents as the client may use them."""
        names, access = self._providers(), self.admitted.access
        only = self.wanted.agent
        return [
            {
                "provider": names[agent],
                "displayName": agent,
                "description": f"{agent} on {platform.node()}",
                "models": self.store.options(agent).models(names[agent]),
                "capabilities": {},
            }
            for agent in self.gateway.config.agents
            if access.may_use(agent) and only in (None, agent)
        ]

    def _tell_agents(self) -> None:
        """Tell the agents to a client that knows other ones."""
        client = self.client
        if client is not None and client.follows_root and client.agents != (agents := self.agents()):
            client.agents = agents
            client.send(ROOT, {"type": "root/agentsChanged", "agents": agents})

    def dispatch(self, call: Call) -> None:
        """Decide what a client dispatches, and tell the client."""
        client, channel = self.present, call.channel
        action, client_seq = wire.object_in(call.params, "action"), call.params.get("clientSeq")
        kind = wire.text(action, "type")
        if channel == ROOT:
            if kind == "root/configChanged":
                client.send(ROOT, action, client_seq)
            else:
                self.reject(call, f"clients may not dispatch {kind:.80}")
            return
        watched = client.watched.get(wire.session_of(channel) or "")
        if watched is None or channel not in watched.channels:
            self._dispatch_unwatched(call, action)
            return
        try:
            if kind.partition("/")[0] != ("chat" if wire.is_chat(channel) else "session"):
                raise Refusal("this is not an action of this channel")
            self._take(call, watched, action, decide(action, self._situation(watched)))
        except Refusal as refusal:
            self.reject(call, str(refusal))

    def _dispatch_unwatched(self, call: Call, action: dict[str, Any]) -> None:
        """Decide what is dispatched to a session that the client does not watch: VS Code marks it as read first."""
        session = self.find(call.channel)
        if session is None:
            return
        if isinstance(session, Session) and action.get("type") == "session/isReadChanged":
            self.mark_read(session, is_read=action.get("isRead") is True)
        elif action.get("type") != "session/activeClientSet":
            self.reject(call, "subscribe to this channel first")

    def reject(self, call: Call, why: str) -> None:
        """Tell the client alone that what it has dispatched is refused."""
        action, client_seq = wire.object_in(call.params, "action"), call.params.get("clientSeq")
        self.reply(self.present.envelopes.rejection(call.channel, action, client_seq, why))

    def _situation(self, watched: Watched) -> Situation:
        """Return what a decision rests on, after the client was told what is new."""
        is_behind = self.catch_up(watched)
        session = watched.session
        runs = session is not None and bool(session.turns or session.queue) and not watched.mapper.is_dropping
        return Situation(
            watched.chat,
            watched.mapper.needs,
            watched.options,
            self.present.envelopes.client_id,
            observes=self.observes,
            is_guest=self.admitted.access.session is not None,
            is_busy=is_behind or runs,
            sent=() if session is None else self.store.turns(session),
        )

    def catch_up(self, watched: Watched) -> bool:
        """Tell what is new in a session; return True if that is too much for now."""
        feed = watched.feed
        if feed is None or feed.stopped or feed.wants_disk:
            return False
        for _ in range(CATCH_UP):
            feed.next()
            if not feed.has_more:
                return False
        self.feeds.add(feed)
        return True

    def mark_read(self, session: Session, *, is_read: bool) -> None:
        """Mark a session as read, or not, for all clients of its reader."""
        self.store.mark(self.reader, session, is_read=is_read)
        self.gateway.changes.note_change(session)

    def refresh(self, watched: Watched) -> None:
        """Tell what has changed in a session besides its chat."""
        session = watched.session
        if session is None:
            return
        watched.options = self._options_of(session)
        self.present.tell(watched, watched.state.differences(self.summary(session), watched.options.values))

    def shown_queue(self, session: Session, prompts: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
        """Return id and text of each prompt that waits in a session: the id is that of the client which has sent it."""
        named = {it.queued.key: lookup.text_param(it.message, "messageId") for it in session.queue if it.queued}
        watched = self.present.watched.get(self.uri_of(session))
        active = None if watched is None or watched.chat.active is None else watched.chat.active["id"]
        shown = [(named.get(it["promptId"]) or it["promptId"], it["text"]) for it in prompts]
        return [it for it in shown if it[0] != active]

    def waiting_in(self, session: Session) -> list[tuple[str, str]]:
        """Return the prompts that wait in a session, as `shown_queue` does."""
        viewer = self.admitted.viewer
        return self.shown_queue(session, queue_for(self.gateway.views.view(session, viewer), viewer))

    def find(self, channel: str) -> Session | Named | None:
        """Return the session of a channel, one that has not begun included; None if there is none for the client."""
        uri = wire.session_of(channel)
        named = None if uri is None else self.store.find(self.identity, uri)
        if named is not None and not named.session:
            return named if self._may_begin(named) else None
        name = named.session if named is not None else None if uri is None else wire.session_named(uri)
        session = None if name is None else self.sessions.standing_for(name, self.admitted.viewer)
        if session is None or session.agent not in self.gateway.config.agents:
            return None
        return session if self.uri_of(session) == uri else None

    def _may_begin(self, named: Named) -> bool:
        """Return True if the client might have created a session that has not begun."""
        access, only = self.admitted.access, self.wanted.agent
        if self.admitted.bound is not None or not access.may_use(named.agent) or only not in (None, named.agent):
            return False
        workspaces = self.gateway.services.workspaces(named.agent)
        return access.workspaces is None or containing(named.cwd or "", workspaces) in access.workspaces

    # Carrying out

    def _take(self, call: Call, watched: Watched, action: Action, effect: asked.Effect) -> None:
        """Tell an action that was decided, and begin what it asks for. Raises `Refusal`."""
        session = watched.session
        if session is None and isinstance(effect, _OF_BEGUN) and action["type"] != "session/isReadChanged":
            raise Refusal("the session has not begun")
        if isinstance(effect, asked.Answer) and session is not None:
            self._answer(call, watched, session, action, effect)
            return
        self._echo(call, watched, action)
        match effect:
            case asked.Prompt():
                self._prompt(call, watched, action, effect)
            case asked.Cancel():
                watched.carrying.stopped[effect.turn] = False
                self._later(call, watched, partial(self._cancel, watched, effect.turn))
            case asked.Choose():
                self._later(call, watched, partial(self._choose, watched, effect))
            case asked.Draft():
                self.store.set_draft(self.reader, watched.uri, effect.draft)
            case asked.Mark("isRead") if session is not None:
                self.mark_read(session, is_read=effect.is_set)
            case asked.Mark() if session is not None:
                self.gateway.registry.set_archived(session, archived=effect.is_set)
            case asked.Rename() if session is not None:
                self.gateway.rename(session, effect.title)
            case asked.Requeue() if session is not None:
                self._later(call, watched, partial(self._change_queue, session, effect))

    def _echo(self, call: Call, watched: Watched, action: Action) -> None:
        """Fold an action, and tell it to the client that has dispatched it."""
        if action["type"].startswith("chat/"):
            watched.mapper.dispatched(action, now())
        else:
            watched.state.apply(_without_tools(action))
        self.present.tell_folded(watched, action, call.params.get("clientSeq"))

    def _later(self, call: Call, watched: Watched, run: Callable[[], Awaitable[Any]]) -> None:
        job = Job(partial(self._carry_out, watched, run), watched=watched)
        watched.carrying.jobs.add(job)
        self.lanes.add(job, watched.uri, call.size)

    async def _carry_out(self, watched: Watched, run: Callable[[], Awaitable[Any]]) -> None:
        """Do what was dispatched, after all that was dispatched before on whatever connection."""
        async with watched.carrying.lock:
            await run()

    def done(self, job: Job) -> None:
        """Take note that a job is done, or was cut off."""
        if job.watched is not None:
            job.watched.carrying.jobs.discard(job)
            (self.present.connection or self).release(self._now(job.watched))

    def _now(self, watched: Watched) -> Watched:
        """Return what the client watches of a session by now: it may have begun from a snapshot since."""
        return self.present.watched.get(watched.uri, watched)

    def release(self, watched: Watched) -> None:
        """Watch a session no more that the client has unsubscribed from, once all is carried out."""
        if watched.channels or watched.carrying.jobs or self.present.watched.get(watched.uri) is not watched:
            return
        watched.is_told = False
        del self.present.watched[watched.uri]
        if watched.session is not None:
            self.changes.unfollow(watched.session)
            self.lanes.add(Job(partial(self.sessions.leave, watched.session, ends_agent=False)), watched.uri, 0)

    def _prompt(self, call: Call, watched: Watched, action: Action, effect: asked.Prompt) -> None:
        session, viewer = watched.session, self.admitted.viewer
        steers = effect.steers and session is not None and bool(session.turns)
        steers = steers and session is not None and self.gateway.views.view(session, viewer).can_steer
        if effect.steers and not steers:
            self.present.tell(watched, watched.mapper.queue_instead(effect.id))
        waits = action["type"] == "chat/pendingMessageSet"
        self._later(call, watched, partial(self._send, watched, effect, steers=steers, waits=waits))

    async def _send(self, known: Watched, effect: asked.Prompt, *, steers: bool, waits: bool) -> None:
        """Send a prompt; begins the session if it is the first one."""

        def not_sent(why: str) -> None:
            watched = self._now(known)
            mapper = watched.mapper
            self.present.tell(watched, mapper.not_queued(effect.id) if waits else mapper.not_sent(effect.id, why))

        session, stopped = known.session, known.carrying.stopped
        try:
            if effect.id not in stopped:
                session = session or await self._begin_session(known)
                await self._set_model(session, effect.model)
            if session is None or effect.id in stopped:
                # The client has ended the turn before.
                stopped[effect.id] = True
                not_sent("")
                return
            params = {"sessionId": session.id, "prompt": effect.blocks, "messageId": effect.id}
            request = AcpRequest(methods.PROMPT, jsonrpc.encode({**params, **(_STEER if steers else {})}))
            self.store.note_turn(session, effect.id)
            await self.store.save()
            await self.sessions.prompt(session, request, lambda response: not_sent(error_of(response)))
            if waits:
                watched = self._now(known)
                self.present.tell(watched, watched.mapper.queued(effect.id, self.waiting_in(session)))
        except FAILURES as error:
            not_sent(words_of(error))
        except trio.Cancelled:
            not_sent("the connection was lost for too long before the prompt was sent")
            raise

    async def _begin_session(self, watched: Watched) -> Session:
        """Begin a session that a client has created, and return it."""
        store, identity = self.store, self.identity
        named = store.find(identity, watched.uri)
        if named is None:
            raise CallRefused(jsonrpc.INVALID_PARAMS, "this session was disposed of")
        if named.session:
            session = self.sessions.find(named.session, self.admitted.viewer)
        else:
            session = await self.sessions.new("createSession", named.agent, named.cwd)
            store.put(Named(identity, watched.uri, named.agent, session.name, session.cwd))
            await store.save()
            options = read_options(session.result)
            for name, value in options.fitting(named.config).items():
                if options.pickers[name].value != value:
                    await self.sessions.pass_on(session, options.pickers[name].request(session.id, value))
        watched = self._now(watched)
        if watched.session is None:
            watched.session = session
            watched.mapper.attach(session.id, session.cwd or "/")
            watched.chat.forget()
            self.feed_of(watched, session, None)
            # The client may be on another connection by now, or away.
            if self.present.connection is not None:
                self.present.connection.follow(watched, session)
        return session

    async def _set_model(self, session: Session, wanted: str) -> None:
        model = read_options(session.result).model_for(wanted)
        if model is not None:
            await self.sessions.pass_on(session, model.request(session.id, wanted))

    async def _cancel(self, watched: Watched, turn: str) -> None:
        was_not_sent, session = watched.carrying.stopped.pop(turn, False), self._now(watched).session
        if session is not None and not was_not_sent:
            await self._quietly(self.sessions.cancel, session)

    def _answer(self, call: Call, watched: Watched, session: Session, action: Action, effect: asked.Answer) -> None:
        """Answer the agent, and tell that; another client may have been first. Raises `Refusal`."""
        request = self.gateway.views.request(session, self.admitted.viewer, effect.key)
        if request is None:
            raise Refusal("this request is not open any more")
        try:
            is_answered = self.sessions.answer_at_once(session, request, effect.result)
        except FAILURES as error:
            raise Refusal(words_of(error)) from None
        if is_answered:
            self._echo(call, watched, action)
        else:
            self._later(call, watched, partial(self._answer_joined, call, session))

    async def _answer_joined(self, call: Call, session: Session) -> None:
        """Decide once more, as soon as a client has joined the session."""
        try:
            await self.sessions.join(session)
        except FAILURES as error:
            self.reject(call, words_of(error))
        else:
            self.dispatch(call)

    async def _choose(self, watched: Watched, effect: asked.Choose) -> None:
        session = self._now(watched).session
        if session is None:
            named = self.store.find(self.identity, watched.uri)
            if named is not None:
                self.store.put(msgspec.structs.replace(named, config={**named.config, **effect.values}))
                await self.store.save()
            return
        for name, value in effect.values.items():
            picker = read_options(session.result).pickers.get(name) or watched.options.pickers[name]
            await self._quietly(self.sessions.pass_on, session, picker.request(session.id, value))
        # What was refused goes back to what it is.
        self.refresh(self._now(watched))

    async def _change_queue(self, session: Session, effect: asked.Requeue) -> None:
        keys = {lookup.text_param(it.message, "messageId"): it.queued.key for it in session.queue if it.queued}
        for name in effect.ids:
            change = QueueChange(keys.get(name, name), "remove" if effect.removes else "move")
            await self._quietly(self.sessions.change_queue, session, change)

    async def _quietly(self, work: Callable[..., Awaitable[Any]], *args: object) -> None:
        """Do what the feed of the session tells the outcome of."""
        try:
            await work(*args)
        except FAILURES as error:
            log.info("%s: %s", self.name, words_of(error))


def error_of(response: Message) -> str:
    """Return the words of an error of the agent."""
    return lookup.text_at(response.text, "error", "message") or "the agent answered with an error"


def words_of(error: CallRefused | AccessError | ClientEnded) -> str:
    """Return the reason of a failure for the client."""
    response = error.response if isinstance(error, CallRefused) else None
    return str(error) if response is None else error_of(response)


def now() -> float:
    """Return the time in milliseconds since 1970."""
    return time.time() * 1000


def _without_tools(action: Action) -> Action:
    """Return an action with no more of a client than its name: it offers tools that nothing here calls."""
    client = action.get("activeClient")
    if not isinstance(client, dict):
        return action
    return {**action, "activeClient": {"clientId": client.get("clientId"), "tools": [], "customizations": []}}
