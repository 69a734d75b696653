"""Continuing the stored journal of a session, after a restart of the gateway for instance.

The gateway may be killed before the last messages of a session have reached the archive: clients have seen them, or
will hear of them from the agent, but the journal lacks them. So the archive has each session as open from before an
agent process gets it (*write-ahead*) until its last message is stored. If a session was still open when the gateway
was killed, a line in its continued journal tells each client, once, that messages may be missing there.

That is true of an idle session as well: nothing could prove that none came in the last moment, except a write to the
disk before each message.
"""

from collections.abc import Callable

from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.output import LoadJournal
from acp_gateway.core.requests import Request
from acp_gateway.core.sessions.session import Session
from acp_gateway.core.turns.journal import Journal
from acp_gateway.core.waiting import Until
from acp_gateway.protocol.gaps import MAY_BE_MISSING, gap


def waits_for_journal(agent: AgentState, session: Session, request: Request) -> bool:
    """Return True if a request to open a session has to wait until its journal is read.

    By then the archive has the session as open, too: it is written before it is read.
    """
    if session.journal_loaded or not session.archive.holds(session):
        return False
    if session not in agent.loading_journals:
        agent.loading_journals[session] = None
        session.awaited += 1
        session.archive.keep(session)
        agent.out.effect(LoadJournal(session))
    agent.waiting.add(request, Until.JOURNAL_LOADED, session)
    return True


def journal_loaded(
    agent: AgentState, session: Session, journal: Journal | None, dispatch: Callable[[Request], None]
) -> None:
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
        dispatch(request)
    if session.journal_loaded and not session.live:
        # A journal of a session that was not opened would not count as used memory.
        session.forget_content()
    end_wait(session)


def end_wait(session: Session) -> None:
    """End the wait of a process for a session's journal. If no process has opened it, the archive is told."""
    session.awaited -= 1
    if not session.live and session.archive.holds(session):
        session.archive.keep(session)


def continue_journal(session: Session, epoch: str, time: int | None) -> None:
    """Continue a journal in another epoch, at this time; a gap stands for messages that may be missing at its end."""
    session.journal.rename(epoch)
    session.archive.keep(session)
    if session.may_lack_end:
        session.may_lack_end = False
        session.write(gap(session.id, MAY_BE_MISSING), time=time)
