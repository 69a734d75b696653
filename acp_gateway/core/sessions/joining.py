"""Joining a session that is live: its history comes from the journal, and the client is attached in the same step.

A client may also resume its sessions over a new link, where its old one could not be resumed: it was disconnected for
too long, or the gateway has restarted. The client describes its state in `params._meta["acp-gateway"]` of
`session/resume` or `session/load`:

    {"epoch": "…", "position": 12, "connection": "…", "former": ["…"], "prompts": [4], "questions": [7]}

If the journal covers that position, the client gets the messages after it and no others; for messages not held any
more, it gets a gap and the states. If the position proves nothing, it gets a gap too: no client misses a message
without being told. Its prompts whose turn is still running return to it, under the ids of the old link, and so do the
agent's open requests; the response names both, and those not named are over. The id of the old link grants nothing:
prompts and requests return within one identity only.

A client without such a link names a cursor instead, and gets what comes behind it, or an error; see `places`.
"""

from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.output import mark_at
from acp_gateway.core.routing import Routing
from acp_gateway.core.sessions.own_meta import MAX_ID, Rejoin, with_own_meta
from acp_gateway.core.sessions.places import begun_message, place_of, seen, seen_up_to, step
from acp_gateway.core.sessions.session import Client, Request, Session
from acp_gateway.core.sessions.stored import status_of
from acp_gateway.core.turns import updates
from acp_gateway.core.turns.cut_turns import cut_turn_meta
from acp_gateway.core.turns.ends import TurnEnd, past_end
from acp_gateway.core.turns.lost_prompts import reclaim_requests
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.gaps import MAY_BE_MISSING, PART_MISSING, gap
from acp_gateway.protocol.link_messages import Mark
from acp_gateway.protocol.text import lookup
from acp_gateway.protocol.text.pairs import Entry, text_of

_Marked: TypeAlias = Entry | Mark
"""A message of a history, or a mark of the position there."""


class Joining:
    """A client that joins a session.

    Args:
        session: is live here.
        client: may be attached already.
        rejoin: the client's state from another link, if it resumes the session.
    """

    def __init__(
        self, agent: AgentState, routing: Routing, session: Session, client: Client, rejoin: Rejoin | None = None
    ) -> None:
        self._agent = agent
        self._routing = routing
        self._session = session
        self._client = client
        self._rejoin = rejoin

    def load(self, request: Request) -> None:
        """Answer `session/load` or `session/resume`."""
        agent, session, client, rejoin = self._agent, self._session, self._client, self._rejoin
        client.joined = True
        resumes = request.message.method == methods.RESUME
        result = self._result(with_id=False)
        tail = self._missed_messages()
        answers: Sequence[bytes] = ()
        if client.cursors is not None:
            # Its place is told again, with the history if it gets that.
            client.cursors.forget(session.id)
            if tail is not None or not resumes:
                result = with_own_meta(result, jsonrpc.encode({"replayed": self._replayed}))
        if rejoin is not None and not rejoin.replays:
            own, answers = reclaim_requests(agent, session, client, rejoin)
            result = with_own_meta(result, own)
            result = with_own_meta(result, cut_turn_meta(session, rejoin))
        if tail:
            self._replay(tail)
        elif tail is None and not resumes:
            self._replay(self._history())
        else:
            agent.histories.introduce(session, client, session.journal.running_entries())
        agent.answer(request, result)
        for answer in answers:
            agent.out.client(client, answer)
        if resumes and tail is None:
            self.send_states()
        # Resuming does not take over the host role: another client may hold it by now.
        self._attach(hosts=not resumes or session.host is None)

    def bind(self, request: Request) -> None:
        """Answer the first `session/new` of a connection that is bound to the session."""
        self._client.joined = True
        self._agent.answer(request, self._result(with_id=True))
        self._replay(self._history())
        self._attach(hosts=self._session.host is None)

    def send_states(self) -> None:
        """Send the states of the session after a resume, and a gap if a returning client may have missed something.

        They follow the response, where no client takes them for history.
        """
        missing = [] if self._rejoin is None else [gap(self._session.id, MAY_BE_MISSING)]
        self._agent.out.replay(self._client, [*missing, *self._session.journal.states()])

    def _attach(self, *, hosts: bool) -> None:
        self._agent.attach(self._session, self._client, hosts=hosts, rejoin=self._rejoin)
        self._routing.joined(self._session, self._client)

    def _result(self, *, with_id: bool) -> bytes:
        """Compose the result, with the status of the session for a client that has cursors."""
        result = updates.opening_result(self._session, with_id=with_id)
        if self._client.cursors is None:
            return result
        return with_own_meta(result, jsonrpc.encode(status_of(self._session)))

    @property
    def _replayed(self) -> str:
        """The part of the history that the client gets: all, what is behind its cursor, or not even all of that."""
        rejoin = self._rejoin
        begin = None if rejoin is None or rejoin.cursor is None else seen_up_to(self._session, *rejoin.cursor.place)
        if begin is None:
            return "all"
        return "missed" if begin >= self._session.journal.start else "part"

    def _history(self) -> list[_Marked]:
        """Return the whole history, with marks of the places in it for a client that has cursors."""
        session = self._session
        whole: list[_Marked] = [*updates.history(session)]
        if self._client.cursors is None:
            return whole
        start = session.journal.start
        before = len(whole) - (session.journal.position - start)
        return [*whole[:before], mark_at(session, place_of(session, start)), *self._since(start)]

    def _missed_messages(self) -> list[_Marked] | None:
        """Return the messages that the client has not seen, with marks of their positions; None if its position proves
        nothing.

        A gap stands for messages that are not held any more: none is missing silently.
        """
        session, rejoin = self._session, self._rejoin
        if rejoin is None or not self._client.counts or rejoin.epoch is None:
            return None
        journal = session.journal
        begin = seen_up_to(session, rejoin.epoch, rejoin.position)
        if begin is None:
            return None
        marked: list[_Marked] = [mark_at(session, (rejoin.epoch, rejoin.position))]
        start = session.journal.start
        if begin < start:
            # The gap and the states are in no place.
            marked.append(mark_at(session, step(place_of(session, begin), begin, 0)))
        elif place_of(session, begin) != (rejoin.epoch, rejoin.position):
            # Count in the present epoch from here on: in the former one, a position past its end has no meaning.
            marked.append(mark_at(session, place_of(session, begin)))
        if begin < start:
            begin = start
            marked.append(gap(session.id, PART_MISSING))
            marked += journal.states(begin)
            marked.append(mark_at(session, place_of(session, begin)))
        return [*marked, *self._since(begin)]

    def _since(self, begin: int) -> list[_Marked]:
        """Return the messages after a position, which are held, with marks where counting would lead elsewhere."""
        session, marked = self._session, list[_Marked]()
        tail = session.journal.since(begin)
        assert tail is not None
        for position, update in enumerate(tail, begin + 1):
            named = lookup.text_at(text_of(update), "params", "sessionId")
            marked.append(update)
            if named != session.id:
                # A sub-agent's update counts in this session, and under another name at the client.
                marked.append(mark_at(session, place_of(session, position)))
        # What comes before its next mark is in no place.
        marked.append(mark_at(session, step(place_of(session), session.journal.position, 0)))
        return marked

    def _replay(self, history: Sequence[_Marked]) -> None:
        """Send the end of the history, with the client's terminal ids and translated if its version is another.

        A history with marks is counted from the first one on, which is the place that the client names.
        """
        agent, session, client, rejoin = self._agent, self._session, self._client, self._rejoin
        # A history requested again before it was read counts as ordinary output of a client.
        is_ordinary = client.translator is None and session in client.replays
        if not is_ordinary:
            client.replays[session] = None
        translations = agent.terminals.translations
        history = [
            message if isinstance(message, Mark) else translations(text_of(message), [client]).get(client, message)
            for message in history
        ]
        journal, translator, end = session.journal, client.translator, session.journal.position
        marks = sum(isinstance(text, Mark) for text in history)
        position, counts_in = end - len(history) + marks, session if marks else None
        turns = self._ends(max(position, journal.start))
        if translator is None and client.cursors is None and not (marks and journal.carries):
            told = _with_ends(session, history, position, turns) if turns else history
            agent.out.replay(client, told, is_ordinary=is_ordinary)
            return
        boundaries, begun = set(journal.turn_ends()), None
        if translator is not None:
            translator.begin_replay(session.id)
            if marks and rejoin is not None:
                translator.knows(session.id, updates.opening_result(session, with_id=False))
            # It may begin within a turn, and go on with a message that the client has a part of.
            begin = max((place for place in boundaries if place <= position), default=journal.start)
            translator.prime(session.id, journal.entries(begin, position), begin)
            if marks and rejoin is not None and rejoin.epoch is not None:
                begun = begun_message(session, rejoin.epoch, rejoin.position)
        for text in history:
            if isinstance(text, Mark):
                agent.out.mark(client, text)
                continue
            while turns and turns[0].position <= position:
                self._tell_end(turns.popleft(), is_ordinary=is_ordinary)
            if translator is not None and position in boundaries:
                translator.turn_boundary(session.id)
            if begun is not None and position == begun.position:
                agent.out.rest(client, session, text, position, begun.updates)
            else:
                # A gap, and the states before the beginning, are in no place.
                place = position if position >= journal.start else None
                agent.out.replay(client, [text], place, counts_in=counts_in, is_ordinary=is_ordinary)
            position += 1
        for turn in turns:
            self._tell_end(turn, is_ordinary=is_ordinary)
        if translator is not None:
            if position in boundaries:
                translator.turn_boundary(session.id)
            agent.histories.introduce(session, client)

    def _ends(self, begin: int) -> deque[TurnEnd]:
        """Return the ends of turns that the client is told with the history from a position on."""
        client, journal, rejoin = self._client, self._session.journal, self._rejoin
        if client.cursors is None and (client.translator is not None or not client.wants_ends):
            return deque()
        told = 0
        if rejoin is not None and rejoin.cursor is not None:
            position = seen(rejoin.cursor.place)[1]
            # One that has seen more than was stored was told all ends up to there.
            told = rejoin.cursor.ends if position == begin else MAX_ID if position > begin else 0
        return deque(journal.ends((begin, told)))

    def _tell_end(self, turn: TurnEnd, *, is_ordinary: bool) -> None:
        if self._client.cursors is not None:
            self._client.cursors.end_told(self._session.id, turn.nth)
        self._agent.out.replay(self._client, [past_end(self._session.id, turn)], is_ordinary=is_ordinary)


def _with_ends(session: Session, history: Sequence[_Marked], position: int, turns: deque[TurnEnd]) -> list[_Marked]:
    """Return a part of the history, from a position on, with the ends of turns in it as news at their places."""
    found: list[_Marked] = []
    for text in history:
        if not isinstance(text, Mark):
            while turns and turns[0].position <= position:
                found.append(past_end(session.id, turns.popleft()))
            position += 1
        found.append(text)
    return [*found, *(past_end(session.id, turn) for turn in turns)]
