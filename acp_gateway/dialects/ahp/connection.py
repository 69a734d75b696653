"""Serves one connection of a client of the Agent Host Protocol, such as a window of VS Code."""

import logging
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import trio

from acp_gateway import __version__
from acp_gateway.core.sessions.session import Session
from acp_gateway.dialects.ahp import resources, wire
from acp_gateway.dialects.ahp.carrying import FAILURES, DispatchingConnection, Job, now, words_of
from acp_gateway.dialects.ahp.chat_tree import IDLE
from acp_gateway.dialects.ahp.from_acp import MESSAGE_ID
from acp_gateway.dialects.ahp.session_tree import SessionTree, changes_between, summary
from acp_gateway.dialects.ahp.store import MOST_SESSIONS, Named
from acp_gateway.dialects.ahp.watched import AhpClient, AhpClients, Watched
from acp_gateway.dialects.ahp.wire import ROOT, Call, Refused
from acp_gateway.errors import AccessError, Busy
from acp_gateway.gateway.access import Access, ConnectRequest, unknown_session
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.hub.attachment import Disconnect
from acp_gateway.gateway.session_api.listing import AT_ONCE
from acp_gateway.gateway.sessions.session_changes import Changed
from acp_gateway.gateway.viewing.local_client import ClientEnded
from acp_gateway.gateway.viewing.open_sessions import ANSWER_TIMEOUT, HANDLING_TIMEOUT, CallRefused, Used
from acp_gateway.gateway.workspaces import directory_check
from acp_gateway.protocol import jsonrpc
from acp_gateway.transports.streams import CloseReason

log = logging.getLogger(__name__)

WEIGHTS: Final = {
    "initialize": 100,
    "reconnect": 100,
    "listSessions": 100,
    "subscribe": 20,
    "createSession": 20,
    "resourceRead": 20,
}
"""Messages that a call counts as in rate limits, by what it takes. Others are one."""

SUBSCRIPTIONS: Final = 64
"""Maximum channels that a client subscribes to at once: VS Code has some eight."""

SNAPSHOTS_SIZE: Final = 8 * 1024 * 1024
"""Characters of chats in one response: VS Code opens one or two at once. It has to ask for further ones."""

TELL_AGAIN: Final = 1.0
"""Seconds after a handshake at which all sessions are told once more: VS Code does not ask for them again."""


class AhpConnection(DispatchingConnection):
    """Serves one client. Its arguments, and what it raises, are those of `DispatchingConnection`."""

    def __init__(self, gateway: Gateway, access: Access, wanted: ConnectRequest, name: str) -> None:
        super().__init__(gateway, access, wanted, name)
        self._clients = gateway.services.one(AhpClients, gateway.services.inputs)
        # Sessions whose change, or end, the client is to be told.
        self._changed: dict[Session, None] = {}
        self._has_listed = False
        self._handlers: dict[str, Callable[[Call], Awaitable[Any]]] = {
            "initialize": self._initialize,
            "reconnect": self._reconnect,
            "subscribe": self._subscribe,
            "listSessions": self._list_sessions,
            "createSession": self._create_session,
            "disposeSession": self._dispose_session,
            "resolveSessionConfig": self._resolve_config,
            "completions": self._completions,
            "resourceRead": self._read_resource,
        }

    def _ended(self) -> None:
        client = self.client
        if client is not None and client.connection is self:
            client.connection = None
        for job in list(self.lanes):
            self.done(job)

    async def _finish(self) -> None:
        """Wait for what was dispatched: the client was told that it was taken."""
        with trio.move_on_after(ANSWER_TIMEOUT + HANDLING_TIMEOUT):
            while any(job.call is None for job in self.lanes):
                await self._progress.wait()

    async def retire(self) -> None:
        """End the connection once what was dispatched is carried out."""
        await self._finish()
        self.close(Disconnect(CloseReason.NORMAL, "another connection of this client carries on"))

    # From the client

    def _receive(self, text: bytes) -> int:
        try:
            call = wire.read(text, self.gateway.config.limits.session_request_size)
        except Refused as refused:
            self._respond(refused.reply)
            return 1
        if call is not None:
            try:
                self._take_call(call)
            except CallRefused as error:
                self._respond(call.error(error.code, str(error), error.data))
        return 1 if call is None else WEIGHTS.get(call.method, 1)

    def _take_call(self, call: Call) -> None:
        """Serve a call, or begin to. Raises `CallRefused`."""
        is_handshake, handler = call.method in ("initialize", "reconnect"), self._handlers.get(call.method)
        if call.method == "ping":
            self._respond(call.result(None))
        elif self.client is None and not is_handshake:
            raise CallRefused(jsonrpc.METHOD_NOT_FOUND, f"{call.method:.80} comes after initialize")
        elif self.client is not None and is_handshake:
            raise CallRefused(jsonrpc.INVALID_REQUEST, "this connection has begun already")
        elif call.method == "dispatchAction":
            self.dispatch(call)
        elif call.method == "unsubscribe":
            self._unsubscribe(call)
            self._respond(call.result(None))
        elif handler is not None and call.id is not None:
            if is_handshake:
                self._begin_client(call)
            self.lanes.add(Job(partial(handler, call), call), self._lane(call), call.size)
        else:
            raise CallRefused(jsonrpc.METHOD_NOT_FOUND, f"there is no method {call.method!r:.80} here")

    def _respond(self, response: bytes | None) -> None:
        if response is not None:
            self.reply(response)

    def _failure(self, why: str) -> bytes:
        return jsonrpc.error(jsonrpc.NO_ID, jsonrpc.INVALID_REQUEST, why)

    def _lane(self, call: Call) -> Hashable:
        """Return the session whose subscriptions a call waits for; itself if it waits for none."""
        waits = call.method in ("subscribe", "createSession", "disposeSession")
        return ("subscribe", wire.session_of(call.channel)) if waits else call

    async def _serve_call(self, job: Job) -> None:
        call = job.call
        try:
            result = await job.run()
        except FAILURES as error:
            self._respond(None if call is None else call.error(_code_of(error), words_of(error)))
        else:
            # Nothing is told between what a result says and its response.
            self._respond(None if call is None else call.result(result))
        finally:
            self.done(job)

    # The handshake

    def _begin_client(self, call: Call) -> None:
        """Find or make the client of a handshake. Raises `CallRefused`."""
        client_id, access = wire.text(call.params, "clientId"), self.admitted.access
        if not 0 < len(client_id) <= MESSAGE_ID:
            raise CallRefused(jsonrpc.INVALID_PARAMS, f"clientId has 1 to {MESSAGE_ID} characters")
        key = access.principal, self.wanted, client_id
        if call.method == "reconnect":
            client = former = self._clients.find(key)
            if client is None:
                raise CallRefused(wire.NOT_FOUND, "this client is not known any more: initialize again")
        else:
            offered = wire.list_in(call.params, "protocolVersions")
            if wire.negotiate(offered) is None:
                shown, data = ", ".join(map(str, offered))[:200], {"supportedVersions": wire.SUPPORTED}
                why = f"none of the versions {shown} is spoken here: {' and '.join(wire.SUPPORTED)} are"
                raise CallRefused(wire.UNSUPPORTED_VERSION, why, data)
            client, former = self._clients.begin(key, access.account)
        connection = None if former is None else former.connection
        if isinstance(connection, AhpConnection):
            # It is lost, and that was not noticed yet.
            for used in connection.sessions:
                used.feed = None
            self.sessions.take_over(connection.sessions.hand_over())
            connection.start(connection.retire)
        client.connection = self
        self.client = client

    async def _initialize(self, call: Call) -> Any:
        snapshots, _ = await self._snapshots(_channels(call, "initialSubscriptions"))
        agent = self.sessions.default_agent
        directory = self.sessions.default_directory(agent) if self.admitted.access.may_use(agent) else None
        where = {} if directory is None else {"defaultDirectory": wire.file_uri(directory)}
        self.start(self._tell_list)
        return {
            "protocolVersion": wire.negotiate(wire.list_in(call.params, "protocolVersions")),
            "serverSeq": self.present.envelopes.last,
            "serverInfo": {"name": "acp-gateway", "version": __version__},
            **where,
            "completionTriggerCharacters": ["/"],
            "snapshots": snapshots,
        }

    async def _reconnect(self, call: Call) -> Any:
        client, wanted = self.present, _channels(call, "subscriptions")
        missed = client.envelopes.since(call.params.get("lastSeenServerSeq"))
        watched = {channel for each in client.watched.values() for channel in each.channels}
        missing = [it for it in wanted if it != ROOT and it not in watched]
        gone = [it for it in missing if self.find(it) is None]
        for each in list(client.watched.values()):
            each.channels.intersection_update(wanted)
            self.release(each)
        self.start(self._tell_list)
        if missed is None or len(missing) > len(gone) or not all(map(self._go_on, list(client.watched.values()))):
            client.reset()
            snapshots, missing = await self._snapshots(wanted)
            return {"type": "snapshot", "snapshots": snapshots, "missing": missing}
        client.follows_root = ROOT in wanted
        return b'{"type":"replay","actions":[%b],"missing":%b}' % (b",".join(missed), jsonrpc.encode(gone))

    def _go_on(self, watched: Watched) -> bool:
        """Take up a session on this connection; return False if it is not what the client knows any more."""
        session = watched.session
        if session is None:
            return True
        if watched.feed is None or watched.feed.stopped or not self.admitted.viewer.sees(session):
            return False
        self.follow(watched, session)
        if self.sessions.is_open(session):
            self.start(self.sessions.try_join, session)
        return True

    # Channels

    async def _subscribe(self, call: Call) -> Any:
        if call.channel != ROOT and self.find(call.channel) is None:
            raise CallRefused(wire.SESSION_NOT_FOUND, f"there is no channel {call.channel:.200}")
        snapshots, missing = await self._snapshots([call.channel])
        if missing:
            raise CallRefused(wire.SESSION_NOT_FOUND, f"{call.channel:.200} can't be read now: try again")
        return {"snapshot": snapshots[0]}

    def _unsubscribe(self, call: Call) -> None:
        client, uri = self.present, wire.session_of(call.channel)
        if call.channel == ROOT:
            client.follows_root = False
        watched = client.watched.get(uri or "")
        if watched is not None:
            watched.channels.discard(call.channel)
            self.release(watched)

    async def _snapshots(self, channels: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
        """Begin to watch channels; return their snapshots, and those that do not exist.

        The snapshots are of the moment in which this returns.
        """
        client, makers, missing, room = self.present, [], [], SNAPSHOTS_SIZE
        for channel in channels:
            if channel == ROOT:
                makers.append(self._root_snapshot)
                continue
            uri = wire.session_of(channel)
            try:
                fresh = None if uri is None or room < 0 else await self._folded(uri, channel)
            except AccessError:
                fresh = None
            if fresh is None:
                missing.append(channel)
                continue
            if fresh.session is not None and not wire.is_chat(channel):
                fresh.chat.forget()
            room -= fresh.chat.size
            makers.append(partial(self._snapshot, fresh, channel))
        return [{**make(), "fromSeq": client.envelopes.last} for make in makers], missing

    def _root_snapshot(self) -> dict[str, Any]:
        client = self.present
        client.follows_root = True
        client.agents = self.agents()
        return {"resource": ROOT, "state": {"agents": client.agents}}

    def _snapshot(self, fresh: Watched, channel: str) -> dict[str, Any]:
        """Put a session in the place of what the client knew of it, and return the snapshot of its channel."""
        client, session = self.present, fresh.session
        known = client.watched.get(fresh.uri)
        fresh.channels.add(channel)
        if known is not None and known is not fresh:
            self.catch_up(known)
            fresh.channels |= known.channels
            known.is_told = False
            fresh.carrying = known.carrying
            self._tell_differences(known, fresh)
        self.catch_up(fresh)
        client.watched[fresh.uri] = fresh
        fresh.is_told = True
        if session is not None:
            self.follow(fresh, session)
        if not wire.is_chat(channel):
            state: dict[str, Any] = fresh.state.state
        else:
            at, draft = self.times(session)[1], self.store.draft(self.reader, fresh.uri)
            state = fresh.chat_snapshot(at, draft, is_read_only=self.observes)
        if session is not None:
            fresh.chat.forget()
        return {"resource": channel, "state": state}

    def _tell_differences(self, known: Watched, fresh: Watched) -> None:
        """Tell what has changed in a session that the client knows, if it follows that."""
        needs = {it["id"]: it for it in fresh.state.state["inputNeeded"]}
        gone = [it["id"] for it in known.state.state["inputNeeded"] if it["id"] not in needs]
        actions = [{"type": "session/inputNeededRemoved", "id": it} for it in gone]
        actions += [{"type": "session/inputNeededSet", "request": it} for it in needs.values()]
        if fresh.session is not None:
            actions += known.state.differences(self.summary(fresh.session), fresh.options.values)
        fresh.state.state["activeClients"] = known.state.state["activeClients"]
        if known.uri in known.channels:
            for action in actions:
                self.present.send(known.uri, action)
        active = None if fresh.chat.active is not None else known.chat.active
        if active is not None and known.mapper.is_expecting and not fresh.chat.has_taken(active["id"]):
            # Its prompt is on its way to the agent.
            begun = {"turnId": active["id"], "startedAt": active["startedAt"], "message": active["message"]}
            fresh.mapper.dispatched({"type": "chat/turnStarted", **begun}, now())

    # Sessions

    async def _folded(self, uri: str, channel: str) -> Watched:
        """Return a session with its state folded from its history. Raises `AccessError`, also without one."""
        found, known = self.find(uri), self.present.watched.get(uri)
        if found is None:
            raise unknown_session(uri)
        if known is not None and (isinstance(found, Named) or (known.channels and not wire.is_chat(channel))):
            return known
        if isinstance(found, Named):
            if len(self.present.watched) >= MOST_SESSIONS:
                raise Busy(f"this client watches {MOST_SESSIONS} sessions already: unsubscribe from some")
            times = {"created": now(), "modified": now()}
            told = summary(uri, title=None, status=IDLE, directories=[found.cwd] if found.cwd else [], **times)
            options = self.store.options(found.agent)
            return Watched(uri, None, SessionTree(told, options.config(found.config)), options)
        session = self.sessions.find(found.name, self.admitted.viewer)
        self.sessions.use(session)
        self.changes.follow(session)
        if self.sessions.is_open(session):
            await self.sessions.try_join(session)
        # One history of the connection, and a few of its identity, are read and wait to be told.
        async with self.composing:
            await self.wait_quiet()
            async with self.large_responses:
                return await self._fold(uri, session)

    async def _fold(self, uri: str, session: Session) -> Watched:
        options, journal = self._options_of(session), session.journal
        watched = Watched(uri, session, SessionTree(self.summary(session), options.config()), options)
        found = None if journal.epoch else await self.gateway.history.read(session)
        watched.chat.is_cut = journal.truncated if found is None else found.truncated and bool(found.epoch)
        feed = self.feed_of(watched, session, found)
        del found
        while True:
            feed.next()
            if not feed.has_more:
                break
            await trio.lowlevel.checkpoint()
        if feed.stopped:
            raise Busy("the history of the session was cut while it was read: try again")
        watched.mapper.queue(self.waiting_in(session))
        return watched

    # Calls

    def _shown(self) -> Iterator[Session]:
        """Yield the sessions of the list; one that was never prompted is not in it."""
        for session in self.gateway.views.sessions(self.admitted.viewer):
            if self._is_shown(session):
                yield session

    def _is_shown(self, session: Session) -> bool:
        begun = session.title is not None or session.turns or session.journal.position
        return bool(begun) and session.agent in self.gateway.config.agents

    async def _list_sessions(self, call: Call) -> Any:
        self._has_listed = True
        await self.wait_quiet()
        most = self.gateway.config.limits.max_browser_sessions
        listed, items = self.present.listed, []
        for count, session in enumerate([*self._shown()][::-1][:most], 1):
            one = listed[self.uri_of(session)] = self.summary(session)
            items.append(one)
            if count % AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        return {"items": items}

    async def _tell_list(self) -> None:
        """Tell all sessions a moment after the handshake, unless the client has asked for them."""
        await trio.sleep(TELL_AGAIN)
        client = self.present
        if self._has_listed or not client.follows_root:
            return
        gone = {*client.listed}
        for session in [*self._shown()]:
            gone.discard(self.uri_of(session))
            await self.wait_quiet()
            for text in self._news_of(client, session, again=True):
                self.reply(text)
        for uri in gone & client.listed.keys():
            del client.listed[uri]
            self.reply(wire.notification("root/sessionRemoved", session=uri))

    async def _create_session(self, call: Call) -> Any:
        uri, provider = call.channel, wire.text(call.params, "provider")
        access = self.admitted.access
        if self.observes or access.session is not None or self.admitted.bound is not None:
            raise CallRefused(wire.DENIED, "observers and guests create no sessions")
        agent = self._agent(provider)
        found = wire.SESSION_URI.fullmatch(uri)
        if found is None or found[1] != provider:
            raise CallRefused(jsonrpc.INVALID_PARAMS, f"the URI of a session is {provider}:/ID, with a plain id")
        if self.find(uri) is not None or self.store.find(self.identity, uri) is not None:
            raise CallRefused(wire.SESSION_EXISTS, "there is a session of this URI already")
        folders = wire.list_in(call.params, "workingDirectories") or [wire.text(call.params, "workingDirectory")]
        cwd = resources.path_of(folders[0]) if folders[0] else self.sessions.default_directory(agent)
        if cwd is None:
            raise CallRefused(jsonrpc.INVALID_PARAMS, "a session needs a folder of this machine: open a file: folder")
        check = partial(directory_check, [cwd], self.gateway.services.workspaces(agent), access.workspaces)
        problem = (await self.gateway.services.in_thread(check)).problem
        if problem is not None:
            raise CallRefused(wire.DENIED, problem.message)
        config = self.store.options(agent).fitting(wire.object_in(call.params, "config"))
        # Its agent is started by the first prompt: VS Code creates sessions that are never used.
        self.store.put(Named(self.identity, uri, agent, "", cwd, config))
        self.start(self.store.save)

    async def _dispose_session(self, call: Call) -> Any:
        found = self.find(call.channel)
        if found is None:
            raise CallRefused(wire.SESSION_NOT_FOUND, "there is no such session")
        if not isinstance(found, Named):
            raise CallRefused(wire.CONFLICT, "a session that has begun is not deleted from here: archive it")
        if self.observes:
            raise CallRefused(wire.DENIED, "observers may only look")
        self.store.drop(found.identity, found.uri)
        self.present.watched.pop(found.uri, None)
        self.start(self.store.save)

    async def _resolve_config(self, call: Call) -> Any:
        agent = self._agent(wire.text(call.params, "provider"))
        return self.store.options(agent).config(wire.object_in(call.params, "config"))

    def _agent(self, provider: str) -> str:
        """Return the agent of a provider. Raises `CallRefused`."""
        agent = next((it["displayName"] for it in self.agents() if it["provider"] == provider), None)
        if agent is None:
            raise CallRefused(wire.PROVIDER_NOT_FOUND, f"there is no agent {provider!r:.80} here")
        return str(agent)

    async def _completions(self, call: Call) -> Any:
        """Complete the commands of the agent behind a slash at the beginning."""
        watched = self.present.watched.get(wire.session_of(call.channel) or "")
        said, at = wire.text(call.params, "text"), call.params.get("offset")
        typed = said[:at] if type(at) is int else said
        if watched is None or not typed.startswith("/") or " " in typed or call.params.get("kind") != "userMessage":
            return {"items": []}
        found = [name for name in watched.mapper.commands if name.startswith(typed[1:])]
        return {"items": [{"insertText": f"/{name} ", "rangeStart": 0, "rangeEnd": len(typed)} for name in found]}

    async def _read_resource(self, call: Call) -> Any:
        uri = wire.text(call.params, "uri")
        await self.wait_quiet()
        chat = resources.chat_of(uri)
        session = None if chat is None else self.find(chat)
        if chat is None:
            watched = [it.session for it in self.present.watched.values() if it.session is not None]
            data = await resources.read_file(self.gateway, self.admitted.access, watched, uri)
        elif isinstance(session, Session):
            data = await resources.read_change(self.gateway, self.admitted.viewer, session, uri)
        else:
            raise CallRefused(wire.NOT_FOUND, "there is no such session")
        return resources.described(data, uri, call.params.get("encoding"))

    # To the client

    def _feed_stopped(self, used: Used) -> None:
        """Let the client connect again: its history was replaced, or cut behind what it was told."""
        if self.client is not None:
            self.client.reset()
        self.close(Disconnect(CloseReason.GOING_AWAY, "the history of a session was replaced: connect again"))

    def _note(self, changed: Changed) -> None:
        self._changed |= dict.fromkeys([*changed.removed, *changed.sessions])
        client = self.client
        if sum(map(self.store.forget, changed.removed)):
            self.start(self.store.save)
        for session in changed.removed if client is not None else ():
            for watched in [it for it in self.present.watched.values() if it.session is session]:
                watched.is_told = False
                del self.present.watched[watched.uri]

    def _next_news(self) -> list[bytes]:
        client = self.client
        while self._changed:
            session = next(iter(self._changed))
            del self._changed[session]
            if client is not None and client.follows_root and session.agent in self.gateway.config.agents:
                news = self._news_of(client, session)
                if news:
                    return news
        return []

    def _news_of(self, client: AhpClient, session: Session, *, again: bool = False) -> list[bytes]:
        """Return what is new of a session in the list; `again` adds it whether or not it is known."""
        uri, viewer = self.uri_of(session), self.admitted.viewer
        before = client.listed.get(uri)
        is_there = viewer.sees(session) and self.gateway.views.find(viewer, session.name) is session
        if not (is_there and self._is_shown(session)):
            if before is None or self.find(uri) not in (None, session):
                return []
            del client.listed[uri]
            return [wire.notification("root/sessionRemoved", session=uri)]
        now = client.listed[uri] = self.summary(session)
        told = [wire.notification("root/sessionAdded", summary=now)] if again or before is None else []
        if changes := changes_between(before or now, now):
            told.append(wire.notification("root/sessionSummaryChanged", session=uri, changes=changes))
        return told


def _channels(call: Call, name: str) -> list[str]:
    """Return the channels that a call wants."""
    return [it for it in wire.list_in(call.params, name) if isinstance(it, str)][:SUBSCRIPTIONS]


_NOT_FOUND: Final = 404


def _code_of(error: CallRefused | AccessError | ClientEnded) -> int:
    if isinstance(error, AccessError):
        return wire.SESSION_NOT_FOUND if error.http_status == _NOT_FOUND else wire.DENIED
    return error.code if isinstance(error, CallRefused) and error.response is None else jsonrpc.INTERNAL_ERROR
