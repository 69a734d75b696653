"""Serves one connection of a client of the Agent Host Protocol, such as a window of VS Code.

What is dispatched is decided at once, in the order in which it comes, and answered by the action itself or by a
refusal. What it asks for is carried out after it, one thing after another in each session.
"""

import logging
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import trio

from acp_gateway import __version__
from acp_gateway.core.sessions.session import Session
from acp_gateway.dialects.ahp import resources, wire
from acp_gateway.dialects.ahp.carrying import FAILURES, DispatchingConnection, Job, now, words_of
from acp_gateway.dialects.ahp.from_acp import MESSAGE_ID
from acp_gateway.dialects.ahp.session_tree import SessionTree, changes_between, summary
from acp_gateway.dialects.ahp.store import MOST_SESSIONS, Named
from acp_gateway.dialects.ahp.watched import AhpClients, Watched
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

_SENT: Final = object()
"""The result of a call whose response was sent already."""


class Unanswerable(Exception):
    """A call that is answered by an error of the protocol."""

    def __init__(self, code: int, text: str, data: object = None) -> None:
        self.code = code
        self.data = data
        super().__init__(text)


class AhpConnection(DispatchingConnection):
    """Serves one client.

    Args:
        gateway: the gateway, which must be running.
        access: the client's principal.
        wanted: what it connects for: a session that it is restricted to, or to observe.
        name: its name in the log and the audit.

    Raises what `Gateway.admit` raises.
    """

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
            if refused.reply is not None:
                self.reply(refused.reply)
            return 1
        if call is None:
            return 1
        is_handshake = call.method in ("initialize", "reconnect")
        if call.method == "ping":
            self._respond(call, call.result(None))
        elif self.client is None and not is_handshake:
            self._respond(call, call.error(jsonrpc.METHOD_NOT_FOUND, f"{call.method:.80} comes after initialize"))
        elif self.client is not None and is_handshake:
            self._respond(call, call.error(jsonrpc.INVALID_REQUEST, "this connection has begun already"))
        elif call.method == "dispatchAction":
            self.dispatch(call)
        elif call.method == "unsubscribe":
            self._unsubscribe(call)
            self._respond(call, call.result(None))
        elif call.method in self._handlers and call.id is not None:
            if is_handshake and not self._begin_client(call):
                return 1
            self.lanes.add(Job(partial(self._handlers[call.method], call), call), self._lane(call), call.size)
        else:
            self._respond(call, call.error(jsonrpc.METHOD_NOT_FOUND, f"there is no method {call.method!r:.80} here"))
        return WEIGHTS.get(call.method, 1)

    def _respond(self, call: Call, text: bytes | None) -> None:
        if text is not None:
            self.reply(text)

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
        except Unanswerable as error:
            reply = None if call is None else call.error(error.code, str(error), error.data)
        except FAILURES as error:
            reply = None if call is None else call.error(_code_of(error), words_of(error))
        else:
            reply = None if call is None or result is _SENT else call.result(result)
        if reply is not None:
            self.reply(reply)

    # The handshake

    def _begin_client(self, call: Call) -> bool:
        """Find or make the client of a handshake; return False if the call was answered by an error."""
        client_id, access = wire.text(call.params, "clientId"), self.admitted.access
        if not 0 < len(client_id) <= MESSAGE_ID:
            why = f"clientId has 1 to {MESSAGE_ID} characters"
            self._respond(call, call.error(jsonrpc.INVALID_PARAMS, why))
            return False
        if call.method == "reconnect":
            client = former = self._clients.find(access.principal, self.wanted, client_id)
            if client is None:
                self._respond(call, call.error(wire.NOT_FOUND, "this client is not known any more: initialize again"))
                return False
        else:
            offered = wire.list_in(call.params, "protocolVersions")
            if wire.negotiate(offered) is None:
                shown, data = ", ".join(map(str, offered))[:200], {"supportedVersions": wire.SUPPORTED}
                why = f"none of the versions {shown} is spoken here: {' and '.join(wire.SUPPORTED)} are"
                self._respond(call, call.error(wire.UNSUPPORTED_VERSION, why, data))
                return False
            client, former = self._clients.begin(access.principal, self.wanted, client_id, access.account)
        connection = None if former is None else former.connection
        if isinstance(connection, AhpConnection):
            # It is lost, and that was not noticed yet.
            for used in connection.sessions:
                used.feed = None
            self.sessions.take_over(connection.sessions.hand_over())
            connection.start(connection.retire)
        client.connection = self
        self.client = client
        return True

    async def _initialize(self, call: Call) -> Any:
        snapshots, _ = await self._snapshots(_channels(call, "initialSubscriptions"))
        agent = self.sessions.default_agent
        directory = self.sessions.default_directory(agent) if self.admitted.access.may_use(agent) else None
        where = {} if directory is None else {"defaultDirectory": wire.file_uri(directory)}
        result = {
            "protocolVersion": wire.negotiate(wire.list_in(call.params, "protocolVersions")),
            "serverSeq": self.present.envelopes.last,
            "serverInfo": {"name": "acp-gateway", "version": __version__},
            **where,
            "completionTriggerCharacters": ["/"],
            "snapshots": snapshots(),
        }
        self._respond(call, call.result(result))
        self.start(self._tell_list)
        return _SENT

    async def _reconnect(self, call: Call) -> Any:
        client, wanted = self.present, _channels(call, "subscriptions")
        missed = client.envelopes.since(call.params.get("lastSeenServerSeq"))
        watched = {channel for each in client.watched.values() for channel in each.channels}
        missing = [it for it in wanted if it != ROOT and it not in watched]
        gone = [it for it in missing if self.find(it) is None]
        for each in list(client.watched.values()):
            each.channels.intersection_update(wanted)
            self.release(each)
        if missed is None or len(missing) > len(gone) or not all(map(self._go_on, list(client.watched.values()))):
            client.reset()
            snapshots, missing = await self._snapshots(wanted)
            result = {"type": "snapshot", "snapshots": snapshots(), "missing": missing}
            self._respond(call, call.result(result))
        else:
            client.follows_root = ROOT in wanted
            actions, absent = b",".join(missed), jsonrpc.encode(gone)
            text = b'{"type":"replay","actions":[%b],"missing":%b}' % (actions, absent)
            assert call.id is not None
            self.reply(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (call.id, text))
        self.start(self._tell_list)
        return _SENT

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
            raise Unanswerable(wire.SESSION_NOT_FOUND, f"there is no channel {call.channel:.200}")
        snapshots, missing = await self._snapshots([call.channel])
        if missing:
            raise Unanswerable(wire.SESSION_NOT_FOUND, f"{call.channel:.200} can't be read now: try again")
        self._respond(call, call.result({"snapshot": snapshots()[0]}))
        return _SENT

    def _unsubscribe(self, call: Call) -> None:
        client, uri = self.present, wire.session_of(call.channel)
        if call.channel == ROOT:
            client.follows_root = False
        watched = client.watched.get(uri or "")
        if watched is not None:
            watched.channels.discard(call.channel)
            self.release(watched)

    async def _snapshots(self, channels: Sequence[str]) -> tuple[Callable[[], list[dict[str, Any]]], list[str]]:
        """Begin to watch channels; return what makes their snapshots at the moment of the response, and those that do
        not exist."""
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

        def make() -> list[dict[str, Any]]:
            return [{**maker(), "fromSeq": client.envelopes.last} for maker in makers]

        return make, missing

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
            begun = {
                "type": "chat/turnStarted",
                "turnId": active["id"],
                **{it: active[it] for it in ("startedAt", "message")},
            }
            fresh.mapper.dispatched(begun, now())

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
            return self._not_begun(found)
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

    def _not_begun(self, named: Named) -> Watched:
        options = self.store.options(named.agent)
        return Watched(named.uri, None, SessionTree(self._summary_of(named), options.config(named.config)), options)

    def _summary_of(self, named: Named) -> dict[str, Any]:
        directories = [] if named.cwd is None else [named.cwd]
        return summary(named.uri, title=None, status=1, directories=directories, created=now(), modified=now())

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
        before, client.listed = client.listed, {}
        for session in [*self._shown()]:
            await self.wait_quiet()
            one = client.listed[self.uri_of(session)] = self.summary(session)
            self.reply(wire.notification("root/sessionAdded", summary=one))
            changes = changes_between(before.get(one["resource"], one), one)
            if changes:
                self.reply(wire.notification("root/sessionSummaryChanged", session=one["resource"], changes=changes))
        for uri in before.keys() - client.listed.keys():
            self.reply(wire.notification("root/sessionRemoved", session=uri))

    async def _create_session(self, call: Call) -> Any:
        uri, provider = call.channel, wire.text(call.params, "provider")
        access = self.admitted.access
        if self.observes or access.session is not None or self.admitted.bound is not None:
            raise Unanswerable(wire.DENIED, "observers and guests create no sessions")
        agent = next((it["displayName"] for it in self.agents() if it["provider"] == provider), None)
        if agent is None:
            raise Unanswerable(wire.PROVIDER_NOT_FOUND, f"there is no agent {provider!r:.80} here")
        found = wire.SESSION_URI.fullmatch(uri)
        if found is None or found[1] != provider:
            raise Unanswerable(jsonrpc.INVALID_PARAMS, f"the URI of a session is {provider}:/ID, with a plain id")
        if self.find(uri) is not None or self.store.find(self.identity, uri) is not None:
            raise Unanswerable(wire.SESSION_EXISTS, "there is a session of this URI already")
        folders = wire.list_in(call.params, "workingDirectories") or [wire.text(call.params, "workingDirectory")]
        cwd = resources.path_of(folders[0]) if folders[0] else self.sessions.default_directory(agent)
        if cwd is None:
            raise Unanswerable(jsonrpc.INVALID_PARAMS, "a session needs a folder of this machine: open a file: folder")
        check = partial(directory_check, [cwd], self.gateway.services.workspaces(agent), access.workspaces)
        problem = (await self.gateway.services.in_thread(check)).problem
        if problem is not None:
            raise Unanswerable(wire.DENIED, problem.message)
        config = self.store.options(agent).fitting(wire.object_in(call.params, "config"))
        # Its agent is started by the first prompt: VS Code creates sessions that are never used.
        self.store.put(Named(self.identity, uri, agent, "", cwd, config))
        self.start(self.store.save)

    async def _dispose_session(self, call: Call) -> Any:
        found = self.find(call.channel)
        if found is None:
            raise Unanswerable(wire.SESSION_NOT_FOUND, "there is no such session")
        if not isinstance(found, Named):
            raise Unanswerable(wire.CONFLICT, "a session that has begun is not deleted from here: archive it")
        if self.observes:
            raise Unanswerable(wire.DENIED, "observers may only look")
        self.store.drop(found.identity, found.uri)
        self.present.watched.pop(found.uri, None)
        self.start(self.store.save)

    async def _resolve_config(self, call: Call) -> Any:
        provider = wire.text(call.params, "provider")
        agent = next((it["displayName"] for it in self.agents() if it["provider"] == provider), None)
        if agent is None:
            raise Unanswerable(wire.PROVIDER_NOT_FOUND, f"there is no agent {provider!r:.80} here")
        return self.store.options(agent).config(wire.object_in(call.params, "config"))

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
        uri, chat = wire.text(call.params, "uri"), resources.chat_of(wire.text(call.params, "uri"))
        await self.wait_quiet()
        try:
            if chat is not None:
                session = self.find(chat)
                if not isinstance(session, Session):
                    raise resources.NoResource("there is no such session")
                text = await resources.read_change(self.gateway, self.admitted.viewer, session, uri)
                data = text.encode("utf-8", "surrogatepass")
            else:
                watched = [it.session for it in self.present.watched.values() if it.session is not None]
                data = await resources.read_file(self.gateway, self.admitted.access, watched, uri)
        except resources.NoResource as error:
            raise Unanswerable(wire.DENIED if error.is_denied else wire.NOT_FOUND, str(error)) from None
        return resources.described(data, uri, call.params.get("encoding"))

    # Dispatches

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
            if client is None or not client.follows_root or session.agent not in self.gateway.config.agents:
                continue
            uri = self.uri_of(session)
            before = client.listed.get(uri)
            viewer = self.admitted.viewer
            is_there = viewer.sees(session) and self.gateway.views.find(viewer, session.name) is session
            if not (is_there and self._is_shown(session)):
                if before is not None and self.find(uri) in (None, session):
                    del client.listed[uri]
                    return [wire.notification("root/sessionRemoved", session=uri)]
                continue
            now = client.listed[uri] = self.summary(session)
            if before is None:
                return [wire.notification("root/sessionAdded", summary=now)]
            if changes := changes_between(before, now):
                return [wire.notification("root/sessionSummaryChanged", session=uri, changes=changes)]
        return []


def _channels(call: Call, name: str) -> list[str]:
    """Return the channels that a call wants."""
    return [it for it in wire.list_in(call.params, name) if isinstance(it, str)][:SUBSCRIPTIONS]


_NOT_FOUND: Final = 404


def _code_of(error: CallRefused | AccessError | ClientEnded) -> int:
    if isinstance(error, AccessError):
        return wire.SESSION_NOT_FOUND if error.http_status == _NOT_FOUND else wire.DENIED
    return error.code if isinstance(error, CallRefused) and error.response is None else jsonrpc.INTERNAL_ERROR
