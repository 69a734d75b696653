"""Multiplexes the clients of one agent process: routes, masks and answers messages.

Also counts the memory of messages that their receivers do not have yet, in bytes, beside that of journals and outboxes.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from acp_gateway.core import access_rules
from acp_gateway.core.agent_requests import AgentRequest, Choice, Reply, timed_out
from acp_gateway.core.agent_state import AgentState, Policy
from acp_gateway.core.capabilities import Abilities
from acp_gateway.core.initialization import Initialization, lost_errors
from acp_gateway.core.next_edits import NextEdits
from acp_gateway.core.output import Output
from acp_gateway.core.requests import DirectoryCheckResult
from acp_gateway.core.routing import Routing
from acp_gateway.core.sessions.closing import SessionClosing
from acp_gateway.core.sessions.known_history import journal_loaded
from acp_gateway.core.sessions.opening import SessionOpening
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.rejoining import end_vain_waits
from acp_gateway.core.sessions.session import AgentHandle, Client, DirectoryCheck, Request, Session, SessionReach
from acp_gateway.core.sessions.session_list import SessionList
from acp_gateway.core.sessions.stored import StoredSessions
from acp_gateway.core.sessions.sub_agents import Doubts
from acp_gateway.core.states import AgentPhase, ClientPhase, Presence
from acp_gateway.core.traffic import INVALID, NO_METHOD, OTHER, Traffic
from acp_gateway.core.turns import updates
from acp_gateway.core.turns.cut_turns import AGENT_ENDED, AGENT_STOPPED
from acp_gateway.core.turns.journal import Journal
from acp_gateway.core.turns.lost_prompts import note_claim
from acp_gateway.core.turns.queue import PromptQueue, QueueChange
from acp_gateway.core.turns.steering import Steering, TakesPrompt
from acp_gateway.core.turns.turns import Turns
from acp_gateway.core.waiting import ALONE, Until
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import NOTIFICATION, REQUEST, RESPONSE, InvalidMessage, Message, RawId
from acp_gateway.protocol.size_limit import TOO_LARGE
from acp_gateway.protocol.text import spans, strict_parsing
from acp_gateway.protocol.text.json_text import Beginning
from acp_gateway.protocol.text.large_messages import Parsed
from acp_gateway.protocol.text.pairs import Entry, text_of
from acp_gateway.rules.rule import Rule
from acp_gateway.versions.carried import ACCEPTED
from acp_gateway.versions.old_agent import restated
from acp_gateway.versions.parts import Untranslatable
from acp_gateway.versions.translator import Output as Translated


class MemoryUse:
    """Memory of one agent process."""

    def __init__(self, agent: AgentState, routing: Routing) -> None:
        self._agent = agent
        self._routing = routing

    @property
    def agent_bytes(self) -> int:
        """Bytes that the agent has sent for clients that do not have them: unanswered requests, updates that came
        before their session, and results of opening sessions."""
        results = sum(sum(map(len, session.result.values())) for session in self._agent.live.values())
        return self._agent.agent_requests.size + self._routing.early_size + results

    @property
    def echo_bytes(self) -> int:
        """Bytes kept to recognize the echoes of prompts and histories that are told again, and of prompts that have no
        place in the history yet."""
        live = self._agent.live.values()
        unplaced = sum(sum(map(len, chunks)) for session in live for chunks in session.unplaced.values())
        return unplaced + sum(known.size for session in live for known in (session.echo, session.retelling) if known)

    @property
    def translation_bytes(self) -> int:
        """Bytes that the translators of clients remember."""
        translators = (client.translator for client in self._agent.clients)
        return sum(translator.size for translator in translators if translator is not None)

    def forget_translations(self) -> None:
        """Forget half of what translators of clients remember, as far as it can be done without."""
        for client in self._agent.clients:
            if client.translator is not None:
                client.translator.shrink()

    def end_echoes(self) -> None:
        """Take no further update for the echo of a prompt or for one told again, and fan out what was withheld, and
        prompts that have no place in the history yet."""
        for session in self._agent.live.values():
            session.retelling = None
            self._agent.histories.end_echo(session)
            self._agent.histories.place_prompts(session)

    def abandoned_prompt_sizes(self) -> Counter[str]:
        """Count the bytes of prompts that wait and whose clients have gone, by account."""
        sizes = Counter[str]()
        for until in ALONE:
            for request in self._agent.waiting.of_kind(until):
                if request.client.gone:
                    sizes[request.client.reach.account] += len(request.message.text)
        return sizes

    def drop_abandoned_prompts(self, account: str) -> None:
        """Drop the queued prompts of an account whose clients have gone."""
        taken = self._agent.waiting.take(lambda it: it.client.gone and it.client.reach.account == account)
        for request in taken:
            self._agent.drop_prompt(request)


_NO_CONNECTION: Final = "the message is for no connection that this client has, and no request that it was asked"

_TOO_LARGE: Final = {"reason": TOO_LARGE}

_NOTHING: Final[Mapping[str, Sequence[str]]] = MappingProxyType({})


Keeping: TypeAlias = Callable[[AgentState, Turns], TakesPrompt]
"""Returns what takes the prompts of an agent process that wait for a time or a person."""


def _none(_: AgentState, __: Turns) -> TakesPrompt:
    return lambda _, __: False


class Multiplexer:
    """Decisions for one agent process and its clients."""

    def __init__(
        self, agent: str, policy: Policy, registry: Registry, traffic: Traffic | None = None, keeping: Keeping = _none
    ) -> None:
        self.traffic = Traffic() if traffic is None else traffic
        """Counts of what passes; may be shared with others."""
        self.surcharge = 0
        """Number of messages that `take_surcharge` would return."""
        self._agent = AgentState(agent, policy, registry)
        self._process = self._agent.process
        self._out = self._agent.out
        self._agent.waiting.handle = self._dispatch
        self._routing = Routing(self._agent)
        self._turns = Turns(self._agent, self._routing)
        self._steering = Steering(self._agent, self._turns, keeping(self._agent, self._turns))
        self._queue = PromptQueue(self._agent, self._turns, self._steering)
        self.memory = MemoryUse(self._agent, self._routing)
        self._opening = SessionOpening(self._agent, self._routing)
        self._closing = SessionClosing(self._agent, self._routing, self._turns)
        self._next_edits = NextEdits(self._agent)
        self._stored = StoredSessions(self._agent)
        self._initialization = Initialization(self._agent, self._routing)
        self._handlers: dict[str, Callable[[Client, Request], None]] = {
            methods.NEW: self._opening.new,
            methods.LOAD: self._opening.load,
            methods.RESUME: self._opening.load,
            methods.FORK: self._opening.fork,
            methods.LIST: SessionList(self._agent).list,
            methods.CLOSE: self._closing.close,
            methods.DELETE: self._closing.delete,
            methods.ARCHIVE: self._closing.archive,
            methods.UNARCHIVE: self._stored.ask,
            methods.SESSION_STATUS: self._stored.status,
            methods.SET_TITLE: self._stored.set_title,
            methods.PROMPT: self._steering.prompt,
            methods.STEER: self._steering.steer,
            methods.INJECT: self._steering.inject,
            methods.SET_MODE: self._turns.choose,
            methods.SET_MODEL: self._turns.choose,
            methods.SET_CONFIG_OPTION: self._turns.choose,
            methods.NES_START: self._next_edits.start,
            methods.NES_SUGGEST: self._next_edits.suggest,
            methods.NES_CLOSE: self._next_edits.close,
            methods.MCP_MESSAGE: self._mcp_message,
            methods.MCP_DISCONNECT: self._mcp_message,
        }

    def take_output(self) -> Output:
        """Return the output since the last call; it belongs to the caller."""
        translated = self._out.translated
        while translated:
            client, text = translated.popleft()
            self._receive(client, jsonrpc.parse(text))
        self._turns.consent.tidy()
        if self._agent.waiting.changed_queues:
            self._agent.news.tell_queues(self._agent.waiting.changed_queues)
            self._agent.waiting.changed_queues.clear()
        return self._out.take()

    @property
    def has_replay(self) -> bool:
        """True if the output contains a history, which should be taken before further input: it can be large."""
        return self._out.has_replay

    def take_surcharge(self) -> int:
        """Return the extra messages that expensive requests count as in rate limits, since the last call."""
        surcharge, self.surcharge = self.surcharge, 0
        return surcharge

    @property
    def wants_agent(self) -> bool:
        """True if there is input for the agent: the driver then has to start one, or call `agent_lost`."""
        return self._process.phase in (AgentPhase.STARTING, AgentPhase.READY)

    @property
    def initializing(self) -> bool:
        """True while the agent has not answered `initialize`."""
        return self._process.phase is AgentPhase.STARTING

    @property
    def agent_handle(self) -> AgentHandle:
        """Handle of this process in the registry."""
        return self._agent

    @property
    def abilities(self) -> Abilities:
        """Capabilities of the agent."""
        return self._process.abilities

    @property
    def clients(self) -> tuple[Client, ...]:
        """Attached clients, the earliest first."""
        return tuple(self._agent.clients)

    @property
    def sessions(self) -> tuple[Session, ...]:
        """Sessions that live in this process."""
        return tuple(self._agent.live.values())

    @property
    def former_folders(self) -> Collection[str | None]:
        """Directories of sessions that this process had; None for those that are not known."""
        return self._agent.former_folders

    @property
    def busy(self) -> bool:
        """True if a request of either side, a turn or a queued prompt is open, or the agent works by itself."""
        agent = self._agent
        # Requests of clients that have gone do not count, except for turns: those continue.
        turns = any(session.turns or session.own_state or session.background for session in agent.live.values())
        return agent.open_requests.is_waited_for or turns or agent.waiting.busy or len(agent.agent_requests) > 0

    @property
    def awaits_first_prompt(self) -> bool:
        """True if clients have a session open that had no prompt yet, which the agent may not have stored."""
        return any(session.attached and session.is_unprompted for session in self._agent.live.values())

    def waiting(self, session: Session | None, reach: SessionReach | None = None) -> list[AgentRequest]:
        """Return the agent's unanswered requests in a session; for None those that no client was found for.

        `reach` is that of a viewer of the session: one that sees all sessions of its owner is also shown the requests
        that only may belong to it.
        """
        agent_requests = self._agent.agent_requests
        if session is None:
            return [request for request in agent_requests.in_doubt() if not request.forwarded_ids]
        if reach is None or not reach.sees_all or reach.guest or reach.identity != session.owner:
            return agent_requests.of(session)
        return agent_requests.of(session) + [request.shown for request in agent_requests.in_doubt(session)]

    def asks(self, client: Client) -> bool:
        """Return True if a client has not answered a request of the agent."""
        return bool(self._agent.agent_requests.asked(client))

    def offered_rules(self, agent_request: AgentRequest, reach: SessionReach) -> list[Rule]:
        """Return the rules that a controller with this reach may have written as it allows a request."""
        return self._routing.rules.offers(agent_request, reach)

    @property
    def waiting_decisions(self) -> int:
        """Number of requests of the agent that a user has to decide."""
        return sum(agent_request.is_decision for agent_request in self._agent.agent_requests)

    def set_policy(self, policy: Policy) -> None:
        """Use another policy from now on, unless it is for other clients: of one connection, identity, or all."""
        before = self._agent.policy
        if (policy.shared, policy.common) == (before.shared, before.common):
            self._agent.policy = policy
            self._agent.agent_requests.decision_size = policy.limits.decision_size

    def attach(self, client: Client) -> None:
        """Add a client; `initialize` follows."""
        client.presence_time = self._agent.clock.wall_time
        self._agent.clients[client] = None

    def receive_from_client(self, client: Client, text: bytes | Parsed | InvalidMessage) -> None:
        """Handle a message of a client, valid or not; or one that was parsed before, or its error."""
        try:
            if isinstance(text, bytes):
                message, repeated = strict_parsing.parse_strictly(text)
            elif isinstance(text, Parsed):
                message, repeated = text
            else:
                raise text
        except InvalidMessage as error:
            self.traffic.from_clients[INVALID] += 1
            self._out.refusal(client, error.code, str(error))
            return
        counts = self.traffic.from_clients
        counts[message.method if message.method in counts else OTHER] += 1
        if len(message.id) > jsonrpc.ID_SIZE and message.kind is REQUEST:
            why = f"the id has more than {jsonrpc.ID_SIZE} bytes"
            self._out.refusal(client, jsonrpc.INVALID_REQUEST, why)
        elif repeated is not None:
            self._refuse_repeated(client, message, repeated)
        else:
            if message.method == methods.INITIALIZE and client.phase is ClientPhase.NEW:
                client.translator = self._initialization.translator_for(message)
            if client.translator is None or message.method.startswith(methods.RESERVED_PREFIX):
                self._receive(client, message)
            else:
                translated = client.translator.from_client(message.text)
                self._out.put(client, Translated(to_client=translated.to_client))
                for text in translated.to_agent:
                    self._receive(client, message if text is message.text else jsonrpc.parse(text))

    def _receive(self, client: Client, message: Message) -> None:
        """Handle a valid message of a client, in the agent's version."""
        if message.kind is RESPONSE:
            self._answer_from_client(client, message)
        elif message.method.startswith(methods.UNPASSED_PREFIXES):
            why = f"{message.method:.80} {methods.why_unpassed(message.method)}"
            self._refuse_message(client, message, jsonrpc.METHOD_NOT_FOUND, why)
        elif message.kind is REQUEST:
            self._request_from_client(client, message)
        else:
            self._notification_from_client(client, message)

    def answer(self, client: Client, agent_request: AgentRequest, reply: Reply) -> bool:
        """Settle a request of the agent, as a response of the client would; return False if it has not got it, or not
        any more. An answer of a client in this process is not composed, parsed and judged again."""
        self.traffic.from_clients[NO_METHOD] += 1
        if not (client.controls and self._agent.agent_requests.answer(client, agent_request, reply)):
            self._out.log(f"dropped a response of {client.name} to no open request")
            return False
        if agent_request.hides is not None:
            self._agent.news.report_decision(agent_request.hides, client, "cancelled")
        elif reply.choice is not None:
            self._decided(client, agent_request, reply.choice)
        return True

    def rule_written(self, session: Session, words: str) -> None:
        """Tell in the conversation what has become of a rule that was to be written."""
        self._routing.tell(session.id, f"[acp-gateway: {words}]")

    def change_queue(self, client: Client, session: Session, change: QueueChange) -> str | None:
        """Change a prompt that waits for the end of a turn; return why that is refused, if it is."""
        return self._queue.change(client, session, change)

    def rename(self, session: Session, title: str) -> None:
        """Give a session, which is live here, a title that its agent does not replace, and tell its clients."""
        self._agent.registry.rename(session, title)
        self._agent.histories.keep_title(session, is_new=True)

    def receive_from_agent(self, lines: Sequence[Entry]) -> None:
        """Handle lines of the agent. Updates of one session are taken together."""
        doubts = self._routing.doubts()
        # Until it has answered `initialize`, its version is not known here.
        carries = self._out.carries or self._process.phase is not AgentPhase.READY
        for session_id, run in updates.passthrough_runs(lines, self._agent.live, carries=carries):
            if session_id is not None and self._routing.passthrough(session_id, run):
                self.traffic.from_agents[methods.SESSION_UPDATE] += len(run)
                continue
            for line in run:
                self._receive_line(line, doubts)
                doubts.end_message()

    def receive_unreadable(self, line: bytes, error: InvalidMessage) -> None:
        """Handle an invalid line of the agent. If it has a request's id, that request gets an error."""
        self.traffic.from_agents[INVALID] += 1
        self._out.log(f"dropped a line of {len(line)} bytes from the agent: {error}")
        raw_id = jsonrpc.read_unreadable_id(line)
        if raw_id is not None:
            self._agent.open_requests.fail(raw_id, f"the agent's answer can't be read: {error}")

    def receive_skipped(self, names: Beginning, why: str) -> None:
        """Handle that a message of the agent, with these names, was left out; `why` tells its size and the limit.

        If it is a response, the client's request gets an error. Otherwise the clients of its session are told, and a
        request gets an error.
        """
        self.traffic.from_agents[INVALID] += 1
        self._out.log(f"left out a message of the agent: {why}")
        if names.method is None and names.raw_id is not None:
            self._agent.open_requests.fail(RawId(names.raw_id), f"the agent's answer was left out: {why}", _TOO_LARGE)
            return
        if names.raw_id is not None:
            self._out.agent(jsonrpc.error(RawId(names.raw_id), jsonrpc.INVALID_REQUEST, why, _TOO_LARGE))
        self._routing.tell(
            self._out.ids.here(names.session), f"[acp-gateway: a message of the agent was left out here: {why}.]"
        )

    def _receive_line(self, entry: Entry, doubts: Doubts) -> None:
        try:
            message = jsonrpc.parse_entry(entry)
        except InvalidMessage as error:
            self.receive_unreadable(text_of(entry), error)
            return
        self.receive_parsed(message, doubts)

    def receive_parsed(self, message: Message, doubts: Doubts | None = None) -> None:
        """Handle a message of the agent; `doubts` are those of the messages just before it, if nothing has changed."""
        message, doubts = self._out.ids.from_agent(message), doubts or self._routing.doubts()
        counts = self.traffic.from_agents
        counts[message.method if message.method in counts else OTHER] += 1
        if message.method == methods.SESSION_UPDATE and message.kind is NOTIFICATION:
            self._routing.update(message, doubts)
        elif message.kind is RESPONSE:
            self._agent.open_requests.receive_response(message)
        elif message.pair is not None and message.method == ACCEPTED:
            self._turns.accepted(message)
        elif message.method.startswith(methods.UNPASSED_PREFIXES):
            self._routing.refuse(message, methods.why_unpassed(message.method))
        elif message.kind is REQUEST:
            self._routing.request(message, doubts)
        else:
            self._routing.notification(message)

    def client_away(self, client: Client) -> None:
        """Mark a client as disconnected but resumable: it keeps its attachments and the agent's requests."""
        client.become(Presence.AWAY)
        client.away_since = self._agent.clock.now
        client.note_presence(self._agent.clock.wall_time)

    def client_back(self, client: Client) -> None:
        """Mark a client as connected again, and forward it the agent's unrouted requests."""
        client.become(Presence.CONNECTED)
        client.note_presence(self._agent.clock.wall_time)
        self._agent.agent_requests.client_back(client)
        self._routing.route_again()

    def client_gone(self, client: Client) -> None:
        """Remove a client. Its turns continue; the agent's requests stay open for other clients."""
        client.become(Presence.GONE)
        self._agent.clients.pop(client, None)
        # Before detaching, which drops the ids that another link of this client may ask for.
        self._agent.agent_requests.client_gone(client)
        for session in list(client.sessions):
            self._agent.detach(session, client)
        self._agent.terminals.client_gone(client)
        self._agent.mcp_connections.client_gone(client)
        self._next_edits.client_gone(client)
        self._agent.waiting.client_gone(client)
        self._agent.open_requests.client_gone(client)
        client.requests.clear()
        self._agent.unattended.announce()

    def close_client(self, client: Client, why: str, data: dict[str, Any]) -> None:
        """End a client's connection: answer its open requests with an error, and remove it."""
        for session in client.sessions:
            self._turns.hold_unsent(session, client)
        requests = list(client.requests.values())
        # In reverse order, so that withdrawing one request does not start the next.
        for request in reversed(requests):
            self._withdraw(request)
        for request in requests:
            self._agent.refuse(request, jsonrpc.INTERNAL_ERROR, why, data)
        self.client_gone(client)

    def agent_lost(
        self,
        why: str,
        data: dict[str, Any],
        written: Mapping[str, Sequence[str]] = _NOTHING,
        details: str | None = None,
    ) -> None:
        """Answer open requests after the agent has ended or could not be started.

        Args:
            why: the error's message for all clients.
            data: the error's data.
            written: the last lines that the process has written, by stream, for clients that may see its output.
            details: the error's message for those clients, in place of `why`.
        """
        lost = lost_errors(why, data, written, details or why)
        self._turns.storing.clear()
        self._tell_unsent("the agent has ended", is_end=False)
        for session in self._agent.live.values():
            if session.turns:
                self._agent.histories.end_calls(session, cancelled=False)
        for client in self._agent.clients:
            for request in list(client.requests.values()):
                self._agent.refuse_lost(request, lost)
            if client.phase is ClientPhase.WAITING:
                client.move_to(ClientPhase.NEW)
        self._agent.waiting.clear()
        self._next_edits.clear()
        self._initialization.clear(data.get("reason", AGENT_ENDED))
        if not self._agent.policy.shared:
            self.shut_down()
            self._process.end_for_good(lost)

    def _tell_unsent(self, why: str, *, is_end: bool) -> None:
        """Keep the prompts that wait, as their requests end; of those that are lost, the texts in the conversations."""
        if self._process.cuts_turns:
            return  # They were told when the stop began.
        for session in self._agent.live.values():
            for text in self._turns.hold_unsent(session, is_end=is_end):
                words = f"{why}, and a prompt that waited was not sent: {text}"
                self._routing.tell(session.id, f"[acp-gateway: {words}]")

    def agent_stopped(self) -> None:
        """Clear all state after the unused agent was stopped: like `agent_lost`, with nothing open."""
        self._turns.storing.clear()
        self._next_edits.clear()
        self._initialization.clear(AGENT_STOPPED)

    def end_turns(self) -> None:
        """Cancel all turns and the agent's requests before the agent is stopped."""
        self._tell_unsent("the gateway was stopped", is_end=True)
        self._process.cuts_turns = True
        for session in self._agent.live.values():
            if session.turns:
                cancel = jsonrpc.notification(methods.SESSION_CANCEL, {"sessionId": session.id})
                self._out.agent(cancel)
        for agent_request in self._agent.agent_requests:
            self._agent.agent_requests.settle_undecided(agent_request)

    def shut_down(self, *, lacks_end: bool = False) -> None:
        """End all sessions here; no other call follows.

        `lacks_end` is True if the agent's last messages are lost: clients that open the sessions again are told.
        """
        self._turns.storing.clear()
        for session in self._agent.live.values():
            session.may_lack_end = session.may_lack_end or lacks_end
        self._next_edits.clear()
        self._initialization.clear()
        for session in list(self._agent.live.values()):
            self._agent.remove_session(session)

    def set_time(self, now: float, wall_time: int | None = None) -> None:
        """Set the time, in seconds of a monotonic clock and in milliseconds since 1970; None to store no times."""
        self._agent.clock.now, self._agent.clock.wall_time = now, wall_time
        if not self._agent.agent_requests and not self._agent.unattended.needing:
            return  # For each batch of each client.
        self._agent.unattended.announce()
        for agent_request in self._agent.agent_requests:
            self._routing.ask_elsewhere(agent_request)
        for agent_request in self._agent.agent_requests.overdue(now, self._agent.policy.agent.permission_timeout):
            word, response = timed_out(agent_request)
            self._out.log(f"{agent_request.method} was not decided within permission_timeout: {word}")
            self._agent.news.report_decision(agent_request, None, "timeout")
            self._agent.agent_requests.settle(agent_request, response)

    def sessions_freed(self) -> None:
        """Retry requests for sessions of another process, which has ended."""
        self._agent.waiting.resume(Until.SESSIONS_FREED)

    def end_vain_waits(self, patience: float) -> None:
        """Refuse requests that wait in vain for sessions to be re-opened, or for `patience` seconds."""
        end_vain_waits(self._agent, patience)

    def journal_loaded(self, session: Session, journal: Journal | None) -> None:
        """Take the journal that the archive has read, and resume the requests that waited for it."""
        journal_loaded(self._agent, session, journal)

    def prompt_stored(self, key: str) -> None:
        """Go on with a prompt, as the archive has stored what it was told of it."""
        self._turns.stored(key)

    def directories_checked(self, directory_check: DirectoryCheck, result: DirectoryCheckResult) -> None:
        """Resume a request whose directories were checked, if it is still waiting."""
        directory_check.result = result
        self._agent.waiting.resume(Until.DIRECTORIES_CHECKED, directory_check)

    def _request_from_client(self, client: Client, message: Message) -> None:
        request = Request(client, message)
        if message.method in methods.SURCHARGES:
            self.surcharge += methods.SURCHARGES[message.method]
        if request.key in client.requests:
            # An error under an id in use would settle the earlier request at the client.
            why = f"the id {message.id.decode():.80} is still in use"
            self._out.refusal(client, jsonrpc.INVALID_REQUEST, why)
            return
        flaw = access_rules.flaw_of_size(message, self._agent.policy)
        if flaw is not None:
            self._agent.refuse(request, jsonrpc.INVALID_PARAMS, flaw)
            return
        limit_exceeded = self._agent.limit_exceeded(
            message, len(client.requests), client.waiting_size
        ) or self._agent.open_requests.too_many_abandoned(request, self._agent.policy.limits.max_open_requests)
        if limit_exceeded is not None:
            self._agent.refuse(request, jsonrpc.INVALID_REQUEST, limit_exceeded)
            return
        client.add_request(request)
        request.is_new = client.translator is not None and client.translator.is_same
        if message.method == methods.PROMPT:
            note_claim(request)
        if message.method == methods.INITIALIZE:
            self._initialization.initialize(client, request)
        elif client.phase is ClientPhase.WAITING:
            # A script may send requests before its `initialize` is answered.
            self._agent.waiting.add(request, Until.AGENT_READY)
        else:
            self._dispatch(request)

    def _dispatch(self, request: Request) -> None:
        """Handle a request of an initialized client now, or queue it until the agent is ready."""
        client, message = request.client, request.message
        if client.phase is not ClientPhase.READY:
            self._agent.refuse(request, jsonrpc.INVALID_REQUEST, "the first request must be initialize")
        elif objection := access_rules.objection_to_request(client, message):
            self._agent.refuse(request, *objection)
        elif methods.client_method(message.method).whole and not self._agent.is_owned_by(client):
            why = f"the agent serves several identities: only the gateway's own user may ask for {message.method}"
            self._agent.refuse(request, jsonrpc.INVALID_REQUEST, why)
        elif self._process.lost is not None:
            self._agent.refuse_lost(request, self._process.lost)
        elif self._process.phase is not AgentPhase.READY and client.controls:
            self._agent.waiting.add(request, Until.AGENT_READY)
            if self._process.phase is AgentPhase.ABSENT:
                self._initialization.begin()
        elif request.is_new and not self._out.carries and (flaw := _restate(request)):
            self._agent.refuse(request, flaw.code, str(flaw))
        elif event := self._agent.waiting.must_follow(request, self._agent.session_in_reach(client, message.session)):
            self._agent.waiting.add(request, *event)
        else:
            self._handlers.get(message.method, self._other)(client, request)

    def _other(self, client: Client, request: Request, text: bytes | None = None) -> None:
        """Forward a request of a method that the gateway does not know, with `text` in place of its own, if given."""
        agent = self._agent
        if not client.controls:
            # An observer's request reaches no agent, whatever the table of methods lets observers call.
            agent.refuse(request, jsonrpc.METHOD_NOT_FOUND, f"observers may only look: no {request.message.method:.80}")
        elif request.message.session is None or agent.session_of_request(client, request) is not None:
            agent.open_requests.forward(request, text=text)

    def _mcp_message(self, client: Client, request: Request) -> None:
        """Handle `mcp/message` or `mcp/disconnect`, of a server that the client carries."""
        text = self._mcp_text(client, request.message)
        if text is None:
            self._agent.refuse(request, jsonrpc.INVALID_PARAMS, _NO_CONNECTION)
        else:
            self._other(client, request, text)

    def _mcp_text(self, client: Client, message: Message) -> bytes | None:
        """Return such a message of a client for the agent; None if the client has no such connection."""
        asked = (request.message for request in self._agent.agent_requests.asked(client).values())
        return self._agent.mcp_connections.for_agent(client, message, asked)

    def _notification_from_client(self, client: Client, message: Message) -> None:
        self.surcharge += methods.SURCHARGES.get(message.method, 0)
        if message.method == methods.CANCEL_REQUEST:
            self._cancel_request(client, message)
        elif client.phase is not ClientPhase.READY or message.method == methods.INITIALIZE:
            self._out.log(f"dropped a notification of {client.name}: the first request must be initialize")
        elif objection := access_rules.objection_to_notification(client, message):
            self._out.log(f"dropped a notification of {client.name}: {objection}")
        elif message.session is not None and not self._takes_part(client, message, message.session):
            self._out.log(f"dropped a notification of {client.name} for a session that it is not attached to")
        elif message.method == methods.SESSION_CANCEL:
            self._turns.cancel(client, message)
        elif self._process.phase is AgentPhase.READY:
            of_server = message.method in (methods.MCP_MESSAGE, methods.MCP_DISCONNECT)
            text = self._mcp_text(client, message) if of_server else message.text
            if text is None:
                self._out.log(f"dropped a notification of {client.name}: {_NO_CONNECTION}")
            else:
                if message.session is None:
                    self._agent.sub_agents.note_message(client)
                self._out.agent(text)

    def _takes_part(self, client: Client, message: Message, session_id: str) -> bool:
        """Return True if a client is attached to the session of a notification, or has started it for suggestions,
        where there is no turn to cancel."""
        attached = self._agent.attached_session(client, session_id) is not None
        return attached or (self._next_edits.owns(client, session_id) and message.method != methods.SESSION_CANCEL)

    def _cancel_request(self, client: Client, message: Message) -> None:
        """Cancel a request; it still gets a response."""
        flaw = access_rules.flaw_of_params(message)
        if flaw is not None:
            self._out.log(f"dropped a $/cancel_request of {client.name}: {flaw}")
            return
        at = spans.find(message.text, "params", "requestId")
        request = None if at is None else client.requests.get(jsonrpc.id_key(RawId(message.text[slice(*at)])))
        if request is None or at is None:
            self._out.log(f"dropped a $/cancel_request of {client.name} to no open request")
            return
        request.is_cancelled = True
        if request.agent_id is not None:
            self._out.agent(spans.splice(message.text, [(*at, b"%d" % request.agent_id)]))
        elif request.message.method != methods.INITIALIZE and self._withdraw(request):
            self._agent.refuse(request, jsonrpc.REQUEST_CANCELLED, "cancelled before the agent had it")

    def _withdraw(self, request: Request) -> bool:
        """Take back a request that the agent does not have yet; return False if it has."""
        freed = self._agent.waiting.withdraw(request)
        for other in freed or ():
            self._dispatch(other)
        return freed is not None

    def _answer_from_client(self, client: Client, response: Message) -> None:
        if not client.controls:
            self._out.log(f"dropped a response of {client.name}, an observer")
            return
        settled = self._agent.agent_requests.receive_response(client, response)
        if settled is None:
            return
        agent_request, choice = settled
        if choice is not None:
            self._decided(client, agent_request, choice)

    def _decided(self, client: Client, agent_request: AgentRequest, choice: Choice) -> None:
        self._agent.news.report_decision(agent_request, client, choice.outcome, choice.option)
        if choice.rule:
            self._routing.rules.note_choice(client, agent_request, choice.option, choice.rule)

    def _refuse_message(self, client: Client, message: Message, code: int, why: str) -> None:
        """Refuse a request; a notification gets no response."""
        if message.kind is REQUEST and jsonrpc.id_key(message.id) not in client.requests:
            self._out.client(client, jsonrpc.error(message.id, code, why))
        elif message.kind is REQUEST:
            self._out.refusal(client, code, why)
        else:
            self._out.log(f"dropped a notification of {client.name}: {why}")

    def _refuse_repeated(self, client: Client, message: Message, name: str) -> None:
        """Refuse a message with a repeated member: parsers disagree on which one counts, and the agent must read what
        was checked."""
        why = f"the member {name!r:.80} is repeated"
        if message.kind is REQUEST and name.casefold() != "id":
            self._refuse_message(client, message, jsonrpc.INVALID_REQUEST, why)
        else:
            self._out.refusal(client, jsonrpc.INVALID_REQUEST, why)


def _restate(request: Request) -> Untranslatable | None:
    """Translate a request that has waited since the agent spoke version 2; return why it can't be said in version 1."""
    request.is_new = False
    try:
        text = restated(request.message)
    except Untranslatable as flaw:
        return flaw
    if text is not request.message.text:
        request.replace(text)
    return None
