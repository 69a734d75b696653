"""The known history of a session that is opened again: read from the archive, continued in another epoch, and compared
with what the agent replays."""

from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.output import LoadJournal
from acp_gateway.core.sessions.own_meta import Rejoin
from acp_gateway.core.sessions.session import Session
from acp_gateway.core.turns import updates
from acp_gateway.core.turns.cut_turns import write_ends_of_calls
from acp_gateway.core.turns.events import Histories
from acp_gateway.core.turns.journal import Journal
from acp_gateway.core.turns.replays import Replay
from acp_gateway.core.turns.retelling import Retelling
from acp_gateway.core.waiting import Event, Until
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.gaps import MAY_BE_MISSING, gap


def unread(agent: AgentState, session: Session) -> Event | None:
    """Let a request to open a session wait until its journal is read.

    By then the archive has the session as open, too: it is written before it is read.
    """
    if session.journal_loaded or not session.archive.holds(session):
        return None
    if session not in agent.loading_journals:
        agent.loading_journals[session] = None
        session.awaited += 1
        session.archive.keep(session)
        agent.out.effect(LoadJournal(session))
    return Event(Until.JOURNAL_LOADED, session)


def journal_loaded(agent: AgentState, session: Session, journal: Journal | None) -> None:
    """Take a journal that was read, None if it can't be, and resume the requests that waited for it."""
    if session not in agent.loading_journals:
        return  # The process has ended since.
    del agent.loading_journals[session]
    waiting = agent.waiting.release(Until.JOURNAL_LOADED, session)
    # Without a waiting client the journal would stay in memory unused.
    if not session.live and waiting:
        session.journal_loaded = True
        if journal is not None:
            session.journal = journal
    for request in waiting:
        agent.waiting.handle(request)
    if session.journal_loaded and not session.live:
        # A journal of a session that was not opened would not count as used memory.
        session.forget_content()
    end_wait(session)


def end_wait(session: Session) -> None:
    """End the wait of a process for a session's journal. If no process has opened it, the archive is told."""
    session.awaited -= 1
    if not session.live and session.archive.holds(session):
        session.archive.keep(session)


def is_held(session: Session) -> bool:
    """Return True if the history of a session that is not live was read, and there is one."""
    return session.journal_loaded and bool(session.journal.epoch)


def continued(agent: AgentState, session: Session, rejoin: Rejoin | None) -> Retelling | None:
    """Continue the history of a session, if there is one, in another epoch; return what the agent's replay is compared
    with, None if that may replace the history."""
    if not is_held(session):
        return None
    journal = session.journal
    # Before any message, and for all clients: others may have seen more than has reached the disk.
    journal.rename(agent.registry.new_epoch())
    session.archive.keep(session)
    # The beginning of a fork is unknown if its parent was not open.
    is_whole = journal.position > 0 and not (journal.truncated and not journal.start)
    return Retelling(session.id, journal) if rejoin is not None or is_whole else None


def end_former_epoch(session: Session, time: int | None) -> None:
    """Write to a journal that goes on in another epoch, at this time, what ends the former one: a gap, which stands for
    messages that may be missing, and the ends of calls."""
    if session.may_lack_end:
        session.may_lack_end = False
        session.write(gap(session.id, MAY_BE_MISSING), time=time)
    write_ends_of_calls(session, time)


def recover_end(histories: Histories, session: Session, replay: Replay) -> None:
    """Write what an agent has replayed beyond a history that may lack its end: it has the places that it had before.

    Clients that have seen it are not told it again. Where it comes in other pieces, they are told that some may be
    missing, as always.
    """
    end = session.journal.position
    _write_news(histories, session, replay)
    session.journal.move_former_end(end)
    session.archive.keep(session)


def take_replay(histories: Histories, session: Session, replay: Replay) -> None:
    """Take what an agent has replayed of a session, as far as that is new to its history; its clients get it."""
    states = replay.states()
    if replay.replaces(session.id, session.journal):
        replay.recorded.turn_ended()
        session.take_journal(replay.recorded)
    else:
        # Editors show a repeated plan twice.
        for entry in updates.new_states(session, states):
            histories.write(session, entry, jsonrpc.parse_entry(entry).update)
        _write_news(histories, session, replay)
        session.end_turn()
    for entry in states:
        updates.read_state(session, jsonrpc.parse_entry(entry))


def write_change(histories: Histories, session: Session, text: bytes) -> None:
    """Write a state that has changed with the process to the history, and tell the clients."""
    change = jsonrpc.parse(text)
    histories.write(session, text, change.update)
    updates.read_state(session, change)


def _write_news(histories: Histories, session: Session, replay: Replay) -> None:
    for run in replay.take_news():
        for index, entry in enumerate(run.messages):
            histories.write(session, entry, run.states.get(index), is_timed=False)
        session.end_turn()
