"""Events in sessions: they are written to histories, shown to clients, and told as news."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from acp_gateway.acp.updates import Option
from acp_gateway.core.agent_requests import AgentRequest
from acp_gateway.core.output import AuditEvent, HookEvent, Outgoing
from acp_gateway.core.requests import EndedTurn, QueuedPrompt, TurnOutcome
from acp_gateway.core.sessions.session import SESSION_ID_SIZE, Client, Decision, Request, Session
from acp_gateway.core.states import SessionState
from acp_gateway.core.turns import updates
from acp_gateway.core.turns.echoes import Echo
from acp_gateway.core.turns.ends import end_news
from acp_gateway.core.turns.open_calls import ends_of_calls
from acp_gateway.core.turns.queued_prompts import queue_news
from acp_gateway.core.turns.times import Clock
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.text.pairs import Entry, Pair
from acp_gateway.rules.rule import Rule


class News:
    """The gateway's own notifications of sessions, for the clients that asked for them."""

    def __init__(self, agent: str, out: Outgoing, clock: Clock) -> None:
        self._agent = agent
        self._out = out
        self._clock = clock
        # The prompts that waited when clients were last told of them, by session; none for an empty queue.
        self._told_queues: dict[Session, list[QueuedPrompt]] = {}

    def notify(self, session: Session, event: str, **details: Any) -> None:
        """Notify the attached clients that asked for news of an event in a session."""
        listeners = [client for client in session.attached if client.wants_news]
        if listeners:
            self._notify_clients(listeners, session, event, details)

    def catch_up(self, session: Session, client: Client, cut: str | None) -> None:
        """Notify a client that joins of what the others were notified of; `cut` is why the last turn was cut off."""
        # In a replay with cursors it has the place of the turn's end.
        if cut is not None and client.wants_news and client.cursors is None:
            self._notify_clients([client], session, "turn_ended", {"stopReason": None, "reason": cut})
        if session.turns and client.wants_news:
            # It looks after its connection more often while a turn runs.
            by = next(iter(session.turns)).client
            about = {"running": True, **describe_client(None if by.gone else by)}
            self._notify_clients([client], session, "turn_started", about)
        if client.wants_queue and session.shown_prompts:
            self._notify_clients([client], session, "queue", queue_news(session))

    def tell_queues(self, changed: Iterable[Session]) -> None:
        """Notify clients that asked for it of the prompts that wait, where these are others than before."""
        for session in changed:
            now = session.shown_prompts
            before = self._told_queues.pop(session, [])
            if now:
                self._told_queues[session] = now
            listeners = [client for client in session.attached if client.wants_queue]
            if listeners and now != before:
                self._notify_clients(listeners, session, "queue", queue_news(session))

    def report_decision(
        self,
        agent_request: AgentRequest,
        client: Client | None,
        decision: str,
        option: Option | None = None,
        rule: Rule | None = None,
    ) -> None:
        """Notify and audit a decision; with the selected option, if one was, and the rule that has made it."""
        call, doubt = agent_request.tool_call, agent_request.doubt
        if agent_request.session is not None:
            news = {"method": agent_request.method, "toolCallId": call.tool_call_id, "decision": decision}
            news |= {} if rule is None else {"rule": rule.id}
            self.notify(agent_request.session, "decided", **news, **describe_client(client))
        identity = None if client is None else client.reach.identity
        outcome = decision if option is None else option.name or decision
        # Another identity is not told who has cancelled it.
        shown_in = () if doubt is None or doubt.is_shared else doubt.sessions
        for session in shown_in if agent_request.session is None else [agent_request.session]:
            session.note_decision(agent_request.key, Decision(identity, outcome))
        name = "permission_decided" if agent_request.method == methods.REQUEST_PERMISSION else "elicitation_decided"
        named = agent_request.message.session if agent_request.session is None else agent_request.session.id
        about = {"session": named, "agent": self._agent, "toolCallId": call.tool_call_id}
        about |= {"kind": call.tool_kind, "decision": decision}
        about["optionKind"] = None if option is None else option.kind
        about |= {} if rule is None else {"rule": rule.id, "ruleBy": rule.author}
        self._out.effect(AuditEvent(name, client, about, self._clock.now - agent_request.arrived_at))

    def _notify_clients(self, listeners: list[Client], session: Session, event: str, details: dict[str, Any]) -> None:
        params = {"sessionId": session.id, "event": event, **details}
        self._out.clients(listeners, jsonrpc.notification(methods.NEWS, params))


class Histories:
    """The histories of the sessions of one agent process, which are `live` there, as the gateway writes to them."""

    def __init__(self, out: Outgoing, clock: Clock, news: News, live: Mapping[str, Session]) -> None:
        self._out = out
        self._clock = clock
        self._news = news
        self._live = live

    def write(
        self,
        session: Session,
        entry: Entry,
        state: str | None = None,
        *,
        is_timed: bool = True,
        besides: Client | None = None,
    ) -> None:
        """Write an update to the history, `state` as in `Journal.append`, and show it to the clients, but for one."""
        position = session.journal.position
        session.write(entry, state, self._clock.wall_time if is_timed else None)
        self._out.update(session, entry, position, besides)

    # Prompts

    def write_prompt(self, session: Session, request: Request, chunks: Sequence[bytes]) -> None:
        """Write a prompt to the history, and show it to the clients that do not have it.

        If the agent speaks version 2, it shows the prompt itself to clients of that version.
        """
        sender = None if request.handed_over else request.client
        for chunk in chunks:
            self.write(session, Pair(chunk) if self._out.carries else chunk, besides=sender)
        self._out.send_position(session, [sender] if sender in session.attached else ())

    def name_prompt(self, session: Session, request: Request, told: bytes | None) -> bool:
        """Give a prompt that has no place yet the id, as JSON text, that the agent has told for it; return False if
        there is none, or if it is odd or very long."""
        chunks = session.unplaced.get(request)
        if chunks is None or told is None or told[:1] != b'"' or len(told) > SESSION_ID_SIZE:
            return False
        session.unplaced[request] = [updates.with_message_id(chunk, told) for chunk in chunks]
        return True

    def place_prompts(self, session: Session) -> None:
        """Write the prompts that an agent of version 2 has not accepted, and so not named: others must not overtake."""
        while session.unplaced:
            request = next(iter(session.unplaced))
            self.write_prompt(session, request, session.unplaced.pop(request))

    def send_echo(self, session: Session, echo: Echo[Request], chunk: Entry) -> None:
        """Send the agent's echo of a prompt to its sender: the others have the prompt already."""
        sender = echo.request.client
        # A client of version 2 has its prompt from its translator already.
        if sender in session.attached and sender.translator is None:
            self._out.client(sender, chunk, session)
            self._out.send_position(session, [sender])
        if echo.is_complete:
            session.echo = None

    def end_echo(self, session: Session) -> None:
        """Finish an incomplete echo: fan its chunks out as ordinary updates."""
        echo, session.echo = session.echo, None
        if echo is not None and echo.withheld:
            self.write_prompt(session, echo.request, echo.withheld)

    # States

    def write_choice(self, session: Session, sender: Client, kind: str, update: bytes) -> None:
        """Write a choice of one client, and show it to the other clients of the session."""
        if self._is_open(session):  # Else it was closed before the agent had answered.
            self.write(session, update, kind, besides=sender)
            self._out.send_position(session, [sender] if sender in session.attached else ())

    def keep_title(self, session: Session, *, is_new: bool = False) -> None:
        """Tell clients the title that a user has given, after another one or if it `is_new`."""
        # While it is being opened, the agent may still tell its own.
        update = updates.named_update(session, is_new=is_new) if self._is_open(session) else None
        if update is not None:
            self.write(session, update, methods.INFO_UPDATE)

    def _is_open(self, session: Session) -> bool:
        return self._live.get(session.id) is session and session.state is not SessionState.OPENING

    def end_own_state(self, session: Session, why: str | None) -> None:
        """End the state that an agent has told, as its process can't; `why` is the reason for the clients, if any."""
        if not (session.own_state or session.background):
            return
        state = updates.idle_update(session)
        end = None if session.turns or why is None else updates.failed_state(session.id, why)
        session.own_state, session.background = "", b""
        self.write(session, Pair(state, end) if self._out.carries else state, methods.INFO_UPDATE)
        if not session.turns and why is not None:
            self._news.notify(session, "turn_ended", stopReason=None, reason=why)

    # Turns

    def introduce(self, session: Session, client: Client, unseen: Sequence[Entry] = ()) -> None:
        """Tell the translator of a client that attaches whether a turn runs.

        `unseen` are the last messages of the journal, if the client does not get them: what follows may continue one.
        """
        if client.translator is None:
            return
        client.translator.prime(session.id, unseen, session.journal.position - len(unseen))
        if session.turns:
            self._out.put(client, client.translator.turn_runs(session.id), session)

    def turn_began(self, session: Session, request: Request, chunks: int = 0) -> None:
        """Tell the translators of the session's clients that a turn begins.

        `chunks` is the number of messages in the journal that the prompt is about to become.
        """
        position = session.journal.position
        for client in session.attached:
            if client.translator is not None:
                own = request.id if request.client is client else None
                end = session.journal.position + chunks if own is not None and chunks else None
                self._out.put(client, client.translator.turn_began(session.id, own, position), session, end)

    def end_calls(self, session: Session, *, cancelled: bool) -> None:
        """Tell that tool calls which the agent has left open in its last turn have failed."""
        for update in ends_of_calls(session.journal.running(), cancelled=cancelled, carries=self._out.carries):
            self.write(session, update)

    def turn_ended(self, session: Session, began: float, outcome: TurnOutcome) -> None:
        """Notify subscribers that a turn, which began at this time, has ended, and queue the `turn_end` hook."""
        now = self._clock.now
        session.last_turn = EndedTurn(outcome, now - began, self._clock.wall_time, now)
        session.note_change()
        reason, why = outcome.stop_reason, outcome.cut
        self._news.notify(session, "turn_ended", **end_news(outcome))
        for client in session.attached:
            if client.translator is not None:
                ended = client.translator.turn_ended(session.id, _failure(outcome), is_lost=why is not None)
                self._out.put(client, ended, session)
        connected = sum(client.connected and client.decides for client in session.attached)
        details = {"stopReason": reason, "seconds": now - began, "connected": connected}
        self._out.effect(HookEvent("turn_end", session, details))


def describe_client(client: Client | None) -> dict[str, Any]:
    """Return a client as other clients may see it."""
    if client is None:
        return {"by": None}
    return {"by": {"connection": client.name, "identity": client.reach.identity, "role": client.role.value}}


def _failure(outcome: TurnOutcome) -> bytes | None:
    """Return the error object of a turn that has failed or was cut off; None for any other."""
    if outcome.error is not None:
        return jsonrpc.encode({"code": outcome.error.code, "message": outcome.error.message})
    return None if outcome.cut is None else jsonrpc.encode({"code": jsonrpc.INTERNAL_ERROR, "message": outcome.cut})
