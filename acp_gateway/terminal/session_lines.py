"""The lines that describe sessions in a list, from what a gateway tells of them."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from acp_gateway.terminal.content import list_of, text_of
from acp_gateway.terminal.rendering import Line, Span, Style, one_line
from acp_gateway.terminal.silence import UNITS

Session = Mapping[str, Any]
"""A session as a gateway describes it; see `docs/wire.md`."""

_SHORT_ID: Final = 4
"""Characters of an id that tell sessions of one title apart, if no two of them end alike."""


def joinable(sessions: Iterable[Session]) -> list[Session]:
    """Return the sessions that can be joined, each once, in the same order."""
    # A question without a known session is listed under a name that nothing can join, and has no directory.
    found = (session for session in sessions if session.get("live") is False or session.get("cwd"))
    return list({session["sessionId"]: session for session in found}.values())


def ordered(sessions: Iterable[Session]) -> list[Session]:
    """Return the sessions that can be joined: those with open questions, then the live ones, then the latest others."""
    listed = joinable(sessions)[::-1]
    return sorted(listed, key=_rank)


def by_use(sessions: Iterable[Session]) -> list[Session]:
    """Return sessions as `ordered` does, those that can't be joined too; of each kind the last used first."""
    # Of those without a time, the one that is listed last is the newest.
    newest = list(sessions)
    newest.reverse()
    return sorted(newest, key=lambda session: (_rank(session), _is_away(session), -_last_use(session)))


def _last_use(session: Session) -> float:
    """Return the time of the last message, in seconds since 1970; 0 if it is unknown."""
    try:
        return datetime.fromisoformat(text_of(session.get("updatedAt"))).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0


def with_words(sessions: Iterable[Session], text: str) -> list[Session]:
    """Return the sessions that have all words of a text in their title, agent, folder or id."""
    words = text.casefold().split()
    members = ("title", "agent", "cwd", "sessionId")
    return [
        session
        for session in sessions
        if all(word in " ".join(text_of(session.get(name)) for name in members).casefold() for word in words)
    ]


def title_of(session: Session) -> str:
    """Return the title of a session on one line, or that it has none."""
    return one_line(text_of(session.get("title"))) or "(no title)"


def age_of(session: Session, now: datetime) -> str:
    """Return the time since the last message of a session in its largest unit; empty if it is unknown."""
    try:
        passed = now - datetime.fromisoformat(text_of(session.get("updatedAt")))
    except (ValueError, TypeError):  # No time, or one without a zone.
        return ""
    seconds = max(0, int(passed.total_seconds()))
    for unit, size in UNITS:
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return "now"


def tell_apart(sessions: Sequence[Session], now: datetime) -> dict[str, str]:
    """Return a mark for each session whose title is that of another one: its age, and the end of its id.

    The mark leaves out its machine, which is shown beside it.
    """
    of_title: dict[str, list[Session]] = {}
    for session in sessions:
        of_title.setdefault(title_of(session), []).append(session)
    marks = {}
    for alike in of_title.values():
        if len(alike) == 1:
            continue
        places = [_place_of(session) for session in alike]
        sizes = range(_SHORT_ID, max(len(its_id) for _, its_id in places) + 1)
        ends = ({(machine, its_id[-size:]) for machine, its_id in places} for size in sizes)
        size = next((size for size, found in zip(sizes, ends, strict=True) if len(found) == len(alike)), _SHORT_ID)
        for session, (_, its_id) in zip(alike, places, strict=True):
            marks[text_of(session["sessionId"])] = f"{age_of(session, now)} {one_line(its_id[-size:])}".lstrip()
    return marks


def _place_of(session: Session) -> tuple[str, str]:
    """Return the machine of a session, empty for the gateway's own, and its id there."""
    machine = text_of(session.get("agent")).rpartition("/")[0]
    session_id = text_of(session["sessionId"])
    return machine, session_id.removeprefix(f"{machine}/") if machine else session_id


def session_line(session: Session, *, is_open: bool = False, mark: str = "") -> Line:
    """Return a session as a line: its state, machine, mark, title, agent and folder. `is_open` marks one that is shown.

    The machine is that of a node, with "away" while that can't be reached.
    """
    title = title_of(session)
    folder = one_line(text_of(session.get("cwd")).rstrip("/").rpartition("/")[2])
    machine, _, agent = one_line(text_of(session.get("agent"))).rpartition("/")
    about = " ".join(filter(None, (agent, folder)))
    place = " ".join(filter(None, (machine, "away" if _is_away(session) else "")))
    return [
        _state(session),
        *([Span(f" {place}:", Style.DIM)] if place else []),
        *([Span(f" {mark}", Style.DIM)] if mark else []),
        Span(f" {title}", Style.TOOL if is_open else Style.PLAIN),
        Span(f"  {about}", Style.DIM),
    ]


def is_waiting(session: Session) -> bool:
    """Return True if a session has open questions that can be answered now."""
    return _rank(session) == 0


def _is_away(session: Session) -> bool:
    """Return True if the session's machine can't be reached: its questions have to wait."""
    return bool(session.get("unreachableSince"))


def _rank(session: Session) -> int:
    """Return 0 for a session with open questions, 1 for another live one, 2 for one that is not live."""
    if session.get("live") is False:
        return 2
    return 0 if list_of(session.get("waiting")) and not _is_away(session) else 1


def _state(session: Session) -> Span:
    if _is_away(session):
        return Span("◌", Style.DIM)
    if _rank(session) == 1 and session.get("turn") is True:
        return Span("◐", Style.RUNNING)
    return (Span("?", Style.QUESTION), Span("●", Style.GOOD), Span("○", Style.DIM))[_rank(session)]
