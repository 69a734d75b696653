"""Carries out the calls of a client."""

import logging
import platform
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

import msgspec
import trio

from acp_gateway import __version__
from acp_gateway.acp.worktrees import tree_of
from acp_gateway.core.agent_requests import AgentRequest
from acp_gateway.core.sessions.session import Session
from acp_gateway.core.turns.ends import words_of
from acp_gateway.core.turns.queue import QueueChange
from acp_gateway.errors import Busy, ConfigError, UsageError
from acp_gateway.gateway.access import ConnectRequest
from acp_gateway.gateway.costs.spent_sums import SpentSums
from acp_gateway.gateway.made.machine_looks import Reader, described
from acp_gateway.gateway.made.worktrees import kept_branch
from acp_gateway.gateway.push.store import Subscription
from acp_gateway.gateway.search.elsewhere import beside
from acp_gateway.gateway.search.service import MOST_FOUND, FoundSession
from acp_gateway.gateway.search.texts import Snippet
from acp_gateway.gateway.session_api import output as api_output
from acp_gateway.gateway.session_api import requests as api
from acp_gateway.gateway.session_api.connection import ApiConnection
from acp_gateway.gateway.session_api.disk_sessions import TEXT, DiskSessions, ToldOnDisk
from acp_gateway.gateway.session_api.exporting import write_file
from acp_gateway.gateway.session_api.file_calls import FileCalls
from acp_gateway.gateway.session_api.history import SentHistories
from acp_gateway.gateway.session_api.last_lines import LOOKED_AT, last_line, last_of
from acp_gateway.gateway.session_api.listing import SessionLists
from acp_gateway.gateway.session_api.requests import Answer, Call
from acp_gateway.gateway.session_api.rule_trials import try_command
from acp_gateway.gateway.session_api.session_sharing import Shared, may_share, qr_code, share_session
from acp_gateway.gateway.sessions.session_files import SessionFiles
from acp_gateway.gateway.sessions.session_view import SessionView
from acp_gateway.gateway.viewing.admitted import UsableAgents
from acp_gateway.gateway.viewing.open_ports import OpenPorts, unknown_port
from acp_gateway.gateway.viewing.open_sessions import (
    ANSWER_TIMEOUT,
    CallRefused,
    bounded,
    initialized,
    not_open,
    too_slow,
)
from acp_gateway.gateway.viewing.previews import Previews
from acp_gateway.gateway.viewing.session_connection import LargeResponses
from acp_gateway.gateway.workspaces import containing, directory_check
from acp_gateway.made.files_rules import FileRefused, Territory
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.methods import META
from acp_gateway.protocol.text import lookup
from acp_gateway.rules.deciding import Place
from acp_gateway.security.browser_sessions import Browser

log = logging.getLogger(__name__)

LOOKS: Final = 2
"""Directories that are looked at at a time: a disk that does not answer occupies as many threads and no others."""


class NodeFiles(LargeResponses):
    """The files of nodes that are asked for, or not read yet."""


class LooksAtChanges(LargeResponses):
    """The changes on disks that are asked for, or not read yet: git may take half a minute."""


class SessionCalls:
    """The calls of one client."""

    def __init__(self, bridge: ApiConnection, told: ToldOnDisk) -> None:
        self._bridge = bridge
        self._gateway = bridge.gateway
        self._sessions = bridge.sessions
        self._history = SentHistories(bridge)
        self._disk = DiskSessions(bridge, told)
        self._looks = bridge.gateway.services.limiter("directories", LOOKS)
        self._handlers: dict[str, Callable[[Call], Awaitable[bytes | None]]] = {
            api.GATEWAY_INFO: self._info,
            api.MACHINE: self._machine,
            api.USAGE: SpentSums(bridge).result,
            api.AGENTS: self._agents,
            api.DISK: self._disk.list,
            api.LIST: SessionLists(bridge).result,
            api.NEW: self._new,
            api.GET: self._get,
            api.UNSUBSCRIBE: self._unsubscribe,
            api.PROMPT: self._prompt,
            api.STEER: self._prompt,
            api.RULES: self._rules,
            api.TRY_RULES: self._try_rules,
            api.CANCEL: self._cancel,
            api.QUEUE: self._change_queue,
            api.ARCHIVE: self._archive,
            api.FORK: self._fork,
            api.SET_TITLE: self._set_title,
            api.DELETE: self._delete,
            api.REMOVE_WORKTREE: self._remove_worktree,
            api.SET_MODE: self._pass_on,
            api.SET_MODEL: self._pass_on,
            api.SET_CONFIG_OPTION: self._pass_on,
            api.SHARE: self._share,
            api.EXPORT: self._export,
            api.SEARCH: self._search,
            api.LAST: self._last,
            api.CHANGES: self._tell_changes,
            api.UNDO: self._undo,
            **FileCalls(bridge, self._session).handlers,
            api.PORTS: self._ports,
            api.PREVIEW: self._preview,
            api.PUSH_GET: self._push_get,
            api.PUSH_SUBSCRIBE: self._push_subscribe,
            api.PUSH_UNSUBSCRIBE: self._push_unsubscribe,
            api.PUSH_TEST: self._push_test,
        }

    async def serve(self, call: Call) -> bytes | None:
        """Carry out a call; return its result, which is JSON text; None if that was sent already.

        Raises `CallRefused`, `AccessError` and `ClientEnded`.
        """
        return await self._handlers[call.method](call)

    def _session(self, session_id: str | None) -> Session:
        """Return a session. Raises `UnknownSession` if none of that id exists for the client."""
        return self._sessions.find(session_id or "", self._bridge.admitted.viewer)

    async def _opened(self, name: str | None, agent: str | None = None) -> Session:
        """Return a session; one that only an agent's disk has is opened first. Raises as `serve`.

        `agent` is whose, where several agents have it on their disks.
        """
        name = name or ""
        standing = self.standing_for(name)
        if standing is not None and (agent in (None, standing.agent) or self._disk.find(name, agent) is None):
            return self._session(name)
        if standing is not None and standing.live:
            # Both may be one program, with one disk.
            why = f"the agent {standing.agent} has a session of this id open, so that of {agent} can't be opened"
            raise CallRefused(jsonrpc.INVALID_PARAMS, why, {"reason": "ambiguous_session"})
        if (stored := self._disk.find(name, agent)) is not None:
            if stored.cwd is not None:
                # A session is joined in a permitted directory, whichever it was: it would go on in another one.
                await self._check_directory(stored.agent, stored.cwd)
            session = await self._sessions.open_there(stored.agent, stored.id, stored.cwd or "/")
            if session.title is None:
                session.title = stored.title
                session.archive.keep(session)
            return session
        return self._session(name)

    async def _check_directory(self, agent: str, cwd: str) -> None:
        """Raise `CallRefused` if the client may open no session in this directory of the gateway's machine."""
        workspaces, allowed = self._gateway.services.workspaces(agent), self._bridge.admitted.access.workspaces
        look = partial(directory_check, [cwd], workspaces, allowed)
        problem = (await trio.to_thread.run_sync(look, abandon_on_cancel=True, limiter=self._looks)).problem
        if problem is not None:
            raise CallRefused(jsonrpc.INVALID_PARAMS, problem.message, problem.data)

    def standing_for(self, name: str) -> Session | None:
        """Return the session that a name stands for at present: several agents may use the same id."""
        return self._sessions.standing_for(name, self._bridge.admitted.viewer)

    def _view(self, session: Session) -> SessionView:
        return self._gateway.views.view(session, self._bridge.admitted.viewer)

    # What there is

    async def _info(self, call: Call) -> bytes:
        bridge, admitted = self._bridge, self._bridge.admitted
        access = admitted.access
        return jsonrpc.encode(
            {
                "name": platform.node(),
                "version": __version__,
                "identity": access.identity,
                "role": admitted.role.value,
                "guest": access.session is not None,
                "session": admitted.bound,
                "mayUseFiles": access.may_use_files,
                "mayShare": may_share(access, admitted.role, admitted.bound),
                "known": bridge.known,
                "queue": True,
                "limit": bridge.size_limit._asdict(),
                "machines": bridge.tell_machines(),
            }
        )

    async def _machine(self, call: Call) -> bytes:
        admitted = self._bridge.admitted
        if admitted.bound is not None or admitted.access.session is not None:
            raise CallRefused(jsonrpc.INVALID_REQUEST, "a connection for one session is not told of the machine")
        look = await self._gateway.machine.look()
        opened = self._gateway.roots(admitted.access)
        reader = Reader(admitted.viewer.sees, admitted.access.may_use, opened.__contains__)
        return jsonrpc.encode({"name": platform.node(), **described(look.told(reader))})

    async def _agents(self, call: Call) -> bytes:
        access = self._bridge.admitted.access
        default = self._sessions.default_agent
        known = self._gateway.config.agents if self._bridge.admitted.bound is None else ()
        names = [name for name in known if access.may_use(name)]
        return jsonrpc.encode(
            {
                "agents": [
                    {
                        "name": name,
                        "title": name,
                        "default": name == default,
                        "machine": None,
                        "workspaces": [
                            {"name": workspace.name, "path": workspace.root}
                            for workspace in self._gateway.services.workspaces(name)
                            if access.workspaces is None or workspace.name in access.workspaces
                        ],
                    }
                    for name in names
                ]
            }
        )

    # One session

    async def _new(self, call: Call) -> bytes:
        members = call.members
        session = await self._sessions.new(
            call.method, members.get("agentType"), members.get("cwd"), members.get("worktree")
        )
        title = _one_line(call.members.get("title", ""))
        if title and session.title is None:
            self._gateway.registry.rename(session, title)
        return jsonrpc.encode({"sessionId": session.name})

    async def _get(self, call: Call) -> None:
        await self._history.send(call, await self._opened(call.session, call.members.get("agentType")))

    async def _unsubscribe(self, call: Call) -> bytes:
        session = self._session(call.session)
        self._bridge.changes.unfollow(session)
        await self._sessions.leave(session, ends_agent=False)
        return api.SUCCESS

    async def _prompt(self, call: Call) -> bytes:
        session = await self._opened(call.session)

        def failed(response: Message) -> None:
            status = self._view(session).status
            self._bridge.reply(api_output.status_changed(session.name, status, error=error_of(response)))

        request = api.acp_request(call, session.id)
        if lookup.raw_at(call.members.get("queue", b"{}"), "at") is None:
            await self._sessions.prompt(session, request, failed)
            return api.SUCCESS
        response = await self._sessions.pass_on(session, request)
        waits = lookup.raw_at(response.text, "result", "_meta", META, "waits")
        return jsonrpc.compose({"success": b"true", "waits": waits or b"null"})

    async def _cancel(self, call: Call) -> bytes:
        seen = call.members.get("seq")
        await self._sessions.cancel(self._session(call.session), call.members.get("epoch", ""), seen)
        return api.SUCCESS

    async def _change_queue(self, call: Call) -> bytes:
        session, members = self._session(call.session), call.members
        if members["action"] == "edit" and "text" not in members:
            raise CallRefused(jsonrpc.INVALID_PARAMS, f"{call.method} needs a text to edit a prompt")
        change = QueueChange(members["promptId"], members["action"], members.get("text", ""), members.get("before"))
        await self._sessions.change_queue(session, change)
        return api.SUCCESS

    async def _rules(self, call: Call) -> bytes:
        session, viewer = self._session(call.session), self._bridge.admitted.viewer
        agent_request = self._gateway.views.request(session, viewer, call.members["requestId"])
        if agent_request is None:
            raise not_open()
        offered = self._gateway.offered_rules(session, agent_request, viewer.reach)
        return jsonrpc.encode({"rules": [rule.subject for rule in offered], "project": session.cwd})

    async def _try_rules(self, call: Call) -> bytes:
        members, access = call.members, self._bridge.admitted.access
        if access.session is not None:
            raise CallRefused(jsonrpc.INVALID_REQUEST, "a guest has no rules")
        agent, cwd = members.get("agentType", self._sessions.default_agent), members["cwd"]
        if agent not in self._gateway.config.agents or not access.may_use(agent):
            raise CallRefused(jsonrpc.INVALID_PARAMS, f"there is no agent {agent!r:.80} here for this credential")
        services = self._gateway.services
        place = Place(agent, "", access.identity, containing(cwd, services.workspaces(agent)), cwd)
        trial = try_command(services.rules(), members["command"], place, int(time.time() * 1000))
        return jsonrpc.encode(trial.describe())

    async def answer(self, answer: Answer) -> None:
        """Pass the answer to a request of the agent on. Raises as `serve`."""
        await self._sessions.answer(*self._asked(answer), answer.result, answer.error)

    def answer_at_once(self, answer: Answer) -> bool:
        """Pass the answer on as `answer`; return False if its session has to be joined first."""
        return self._sessions.answer_at_once(*self._asked(answer), answer.result, answer.error)

    def _asked(self, answer: Answer) -> tuple[Session, AgentRequest]:
        """Return the request that an answer is for, and its session."""
        viewer = self._bridge.admitted.viewer
        if answer.call is not None:
            candidates: Sequence[Session] = (self._sessions.find(answer.call.session or "", viewer),)
        else:
            candidates = [used.session for used in self._sessions]
        for session in candidates:
            agent_request = self._gateway.views.request(session, viewer, answer.request)
            if agent_request is not None:
                return session, agent_request
        raise not_open()

    async def _pass_on(self, call: Call) -> bytes:
        session = await self._opened(call.session)
        response = await self._sessions.pass_on(session, api.acp_request(call, session.id))
        return lookup.raw_at(response.text, "result") or b"{}"

    async def _delete(self, call: Call) -> bytes:
        session = await self._opened(call.session)
        self._check_unbound(call)
        if call.members.get("worktree", False):
            await self._without_worktree(session, looks=True)
        # A connection that is bound to a session must not delete any.
        client = self._sessions.new_client(ConnectRequest(agent=session.agent, via=self._bridge.via))
        try:
            with trio.fail_after(ANSWER_TIMEOUT):
                await initialized(client)
            await bounded(client, api.acp_request(call, session.id), session.agent)
        except trio.TooSlowError:
            raise too_slow(session.agent) from None
        finally:
            with trio.CancelScope(shield=True):
                await client.leave()
        return await self._without_worktree(session) if call.members.get("worktree", False) else api.SUCCESS

    async def _remove_worktree(self, call: Call) -> bytes:
        session = await self._opened(call.session)
        self._check_unbound(call)
        return await self._without_worktree(session)

    def _check_unbound(self, call: Call) -> None:
        if self._bridge.admitted.bound is not None:
            raise CallRefused(jsonrpc.INVALID_REQUEST, f"this connection is for one session only: no {call.method}")

    async def _without_worktree(self, session: Session, *, looks: bool = False) -> bytes:
        """Remove the git working tree of a session, or look whether that may be; return the result of the call."""
        tree, admitted = tree_of(session.cwd), self._bridge.admitted
        live = [it for hub in self._gateway.hubs for it in hub.multiplexer.sessions if tree_of(it.cwd) == tree]
        with _refusing():
            if session.turns:
                raise UsageError("A turn of this session is running in its working tree: stop it first.")
            if any(it is not session for it in live):
                raise UsageError("Another session works in this working tree: close it first.")
            trees = self._gateway.services.worktrees
            removed = await trees.remove(session.agent, admitted.viewer.reach, session.cwd or "", looks=looks)
        if not looks:
            self._gateway.audit_throttle.record(
                "worktree_removed",
                session=session.id,
                agent=session.agent,
                path=tree,
                branch=removed.branch,
                connection=self._bridge.name,
                identity=admitted.access.identity,
            )
        kept = kept_branch(removed)
        return api.SUCCESS if kept is None else jsonrpc.encode({"success": True, "kept": kept})

    async def _archive(self, call: Call) -> bytes:
        session = await self._opened(call.session)
        if self._bridge.admitted.access.session is not None:
            raise CallRefused(jsonrpc.INVALID_REQUEST, "a guest can't put a session away")
        self._gateway.registry.set_archived(session, archived=call.members.get("archived", True))
        return api.SUCCESS

    async def _fork(self, call: Call) -> bytes:
        forked = await self._sessions.fork(await self._opened(call.session))
        return jsonrpc.encode({"sessionId": forked.name})

    async def _set_title(self, call: Call) -> bytes:
        session, title = self._session(call.session), _one_line(call.members["title"])
        if self._bridge.admitted.access.session is not None:
            raise CallRefused(jsonrpc.INVALID_REQUEST, "a guest can't rename a session")
        if not title:
            raise CallRefused(jsonrpc.INVALID_PARAMS, "a title needs at least one letter")
        self._gateway.rename(session, title)
        return api.SUCCESS

    async def _share(self, call: Call) -> bytes:
        bridge, admitted = self._bridge, self._bridge.admitted
        if not may_share(admitted.access, admitted.role, admitted.bound):
            why = "only a controller that is not a guest, and not bound to one session, can share a session"
            raise CallRefused(jsonrpc.INVALID_REQUEST, why)
        if not bridge.page:
            raise CallRefused(jsonrpc.INVALID_REQUEST, "no listener of this gateway serves a page for the link")
        if self._is_at_machine(call.session or ""):
            # Who opens the link is let in by the node, to a session of this identity there.
            shared = Shared(call.session or "", call.session or "", "", admitted.access.identity)
        else:
            session = await self._opened(call.session)
            shared = Shared(session.name, session.id, session.agent, session.owner)
        link = share_session(
            self._gateway, admitted.access, shared, bridge.page, bridge.name, observe=call.members.get("observe", False)
        )
        qr = await trio.to_thread.run_sync(qr_code, link.url)
        return jsonrpc.encode({"link": link.url, "expires": link.expires, "qr": qr})

    def _is_at_machine(self, name: str) -> bool:
        """Return whether a name is that of a session at a node that the client may use."""
        return any(name.startswith(f"{machine['name']}/") for machine in self._bridge.machines)

    async def _export(self, call: Call) -> None:
        bridge, places = self._bridge, self._bridge.large_responses
        if self._is_at_machine(call.session or ""):
            # A node that does not answer must not hold up the large responses of this gateway.
            places = self._gateway.services.one(NodeFiles).of(bridge.admitted.access.identity)
        async with places:
            await bridge.wait_quiet()
            bridge.reply_to(call, await self._file(call))
            # Files that are not read yet are as many as histories.
            await bridge.wait_quiet()

    async def _file(self, call: Call) -> bytes:
        """Return the file of a session, here or at a node, as JSON text. Raises as `serve`."""
        bridge, gateway = self._bridge, self._gateway
        name, form, redacted = call.session or "", call.members["format"], call.members.get("redact", False)
        if bridge.questions is not None:
            file = await bridge.questions.export(bridge.admitted.access, name, form, redacted=redacted)
            if file is not None:
                return file
        return await write_file(gateway.history, gateway.services.limiter, self._session(name), form, redacted=redacted)

    async def _search(self, call: Call) -> bytes:
        search, words = self._gateway.search, call.members["words"]
        limit = call.members.get("limit", MOST_FOUND)
        result: dict[str, Any] = {}
        try:
            if call.session is not None:
                before = max(call.members["before"] - 1, 0) if "before" in call.members else None
                found, more = await search.find_in(self._session(call.session), words, before, limit)
                result["more"] = more
                result["found"] = list(map(_describe_snippet, found))
            else:
                admitted, nodes = self._bridge.admitted, call.members.get("nodes", False)
                usable = UsableAgents(self._gateway, admitted.grant)
                sessions = [
                    it for it in self._gateway.views.sessions(admitted.viewer) if not nodes or it.agent in usable
                ]
                own = [
                    one
                    for one in await search.find(sessions, words, limit)
                    if self.standing_for(one.session.name) is one.session
                ]
                if nodes:
                    return jsonrpc.encode(await self._with_nodes(own, usable, words, limit))
                result["found"] = list(map(_describe_found, own))
        except UsageError as error:
            raise CallRefused(jsonrpc.INVALID_PARAMS, str(error)) from None
        result["complete"] = search.is_complete
        return jsonrpc.encode(result)

    async def _with_nodes(
        self, own: list[FoundSession], usable: UsableAgents, words: str, limit: int
    ) -> dict[str, Any]:
        """Return what was found here and at nodes, as members of an object, each with what tells the session."""
        found = [
            _describe_found(one)
            | {"agentType": one.session.agent, "owner": one.session.owner, "title": (one.session.title or "")[:TEXT]}
            for one in own
        ]
        questions, admitted, complete = self._bridge.questions, self._bridge.admitted, self._gateway.search.is_complete
        if questions is None:
            return {"found": found, "complete": complete}
        there = await questions.search(admitted.access, admitted.viewer.reach, usable, words)
        found += [
            {
                "sessionId": one.name,
                "texts": one.texts,
                "text": one.text,
                "agentType": one.agent,
                "owner": one.owner,
                "title": one.title,
            }
            for one in beside({one.session.name for one in own}, there, limit - len(own))
        ]
        return {"found": found, "complete": complete and there.complete, "missing": there.missing}

    async def _last(self, call: Call) -> bytes:
        lines: dict[str, str] = {}
        former: list[Session] = []
        for name in dict.fromkeys(call.members["sessionIds"]):
            session = self.standing_for(name)
            if session is not None and not session.journal.epoch:
                former.append(session)
            elif session is not None:
                journal = session.journal
                latest = journal.messages(journal.position - LOOKED_AT, journal.position)
                turns = journal.ends((journal.position, 0))
                line = last_of(words_of(turns[-1].outcome)) if turns else ""
                if line := line or last_line(reversed(latest), session.id):
                    lines[name] = line
            await trio.lowlevel.checkpoint()
        # What the index does not tell now is left out.
        with suppress(UsageError, Busy):
            ends = await self._gateway.search.last(former)
            lines |= {session.name: line for session, text in ends.items() if (line := last_of(text))}
        return jsonrpc.encode({"lines": lines})

    async def _ports(self, call: Call) -> bytes:
        found = await self._gateway.services.one(OpenPorts, self._gateway).of(self._bridge.admitted)
        session = None if call.session is None else self._session(call.session)
        told = [it.describe() for it in found if session is None or session in it.sessions]
        has_previews = self._gateway.services.one(Previews, self._gateway).url is not None
        return jsonrpc.encode({"ports": told, "previews": has_previews})

    async def _preview(self, call: Call) -> bytes:
        gateway, admitted = self._gateway, self._bridge.admitted
        port = await gateway.services.one(OpenPorts, gateway).find(admitted, call.members["port"])
        if call.session is not None and self._session(call.session) not in port.sessions:
            raise unknown_port(port.port)
        try:
            return jsonrpc.encode({"url": gateway.services.one(Previews, gateway).link(admitted.access, port)})
        except UsageError as error:
            raise CallRefused(jsonrpc.INVALID_REQUEST, str(error)) from None

    async def _tell_changes(self, call: Call) -> None:
        bridge, session = self._bridge, self._session(call.session)
        async with self._gateway.services.one(LooksAtChanges).of(bridge.admitted.access.identity):
            await bridge.wait_quiet()
            with _refusing():
                territory = await self._territory(session)
                told = await self._gateway.disk_changes.tell(session, call.members.get("mark"), territory)
            bridge.reply_to(call, await trio.to_thread.run_sync(jsonrpc.encode, told))
            await bridge.wait_quiet()

    async def _undo(self, call: Call) -> bytes:
        session, members = self._session(call.session), call.members
        change = {name: members.get(name) for name in ("path", "old", "new", "lines")}
        with _refusing():
            territory = await self._territory(session)
            await self._gateway.disk_changes.put_back(session, members.get("mark"), change, territory)
        self._gateway.audit_throttle.record(
            "change_undone",
            session=session.id,
            agent=session.agent,
            path=members["path"],
            whole="lines" not in members,
            connection=self._bridge.name,
            identity=self._bridge.admitted.access.identity,
        )
        return api.SUCCESS

    async def _territory(self, session: Session) -> Territory:
        return await SessionFiles(self._gateway).territory(self._bridge.admitted.access, session)

    # Notifications

    @property
    def _browser(self) -> Browser:
        found = self._bridge.admitted.access.browser
        if found is None:
            raise CallRefused(jsonrpc.INVALID_REQUEST, "only a browser that has signed in gets notifications")
        return found

    async def _push_get(self, call: Call) -> bytes:
        of, push = self._browser, self._gateway.push
        with _storing():
            subscription = push.subscription(of)
            key = await push.public_key()
        told: dict[str, Any] = {"key": key, "subscribed": subscription is not None, "quiet": None, "session": None}
        told["done"] = {"after": None, "sessions": []}
        if subscription is not None:
            done = subscription.done
            told |= {"quiet": msgspec.to_builtins(subscription.quiet), "session": subscription.session}
            told["done"] = {"after": done.after, "sessions": done.sessions}
        return jsonrpc.encode(told)

    async def _push_subscribe(self, call: Call) -> bytes:
        of = self._browser
        members = {name: value for name, value in call.members.items() if name not in ("quiet", "done")}
        try:
            quiet, done = (msgspec.json.decode(call.members.get(name, b"null")) for name in ("quiet", "done"))
            subscription = msgspec.convert(members | {"quiet": quiet, "done": done or {}}, Subscription)
            with _storing():
                await self._gateway.push.subscribe(of, subscription)
        except ValueError as error:  # Also of msgspec.
            raise CallRefused(jsonrpc.INVALID_PARAMS, f"{call.method}: {error}") from None
        return api.SUCCESS

    async def _push_unsubscribe(self, call: Call) -> bytes:
        with _storing():
            self._gateway.push.unsubscribe(self._browser)
        return api.SUCCESS

    async def _push_test(self, call: Call) -> bytes:
        with _storing():
            problem = await self._gateway.push.test(self._browser)
        if problem is not None:
            raise CallRefused(jsonrpc.INTERNAL_ERROR, problem)
        return api.SUCCESS


@contextmanager
def _refusing() -> Iterator[None]:
    """Turn the reason why something can't be done into the error of a call."""
    try:
        yield
    except FileRefused as refused:
        raise CallRefused(jsonrpc.INVALID_PARAMS, str(refused), {"reason": refused.why}) from None
    except UsageError as error:
        raise CallRefused(jsonrpc.INVALID_PARAMS, str(error)) from None


@contextmanager
def _storing() -> Iterator[None]:
    """Turn a failure of the file of subscriptions into a refusal, which names no file."""
    try:
        yield
    except ConfigError as error:
        log.error("notifications can't be set: %s", error)
        raise CallRefused(jsonrpc.INTERNAL_ERROR, "the gateway can't store this now; its log says why") from error


def error_of(response: Message) -> dict[str, Any]:
    """Return code and message of an error response, as members of an object."""
    code = lookup.error_code(response)
    text = lookup.text_at(response.text, "error", "message")
    return {"code": jsonrpc.INTERNAL_ERROR if code is None else code, "message": text or "internal error"}


def _one_line(title: str) -> str:
    return " ".join(title.split())


def _describe_found(one: FoundSession) -> dict[str, Any]:
    """Return what a client is told of a session that was found."""
    return {"sessionId": one.session.name, "texts": one.found.texts, **_describe_snippet(one.found.snippet)}


def _describe_snippet(snippet: Snippet) -> dict[str, Any]:
    """Return what a client is told of a snippet."""
    return {"seq": snippet.position + 1, "text": snippet.text, "marks": snippet.marks}
