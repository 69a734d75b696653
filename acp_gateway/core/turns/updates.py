"""Session updates that the gateway composes, and those of an agent that it reads."""

from collections.abc import Container, Mapping, Sequence
from typing import Final, Literal, cast

import msgspec

from acp_gateway.acp.reading import ABSENT, elements
from acp_gateway.acp.updates import Block, ConfigOption, Meta, Modes, Passed, SessionUpdate, Told, Work
from acp_gateway.core.sessions.session import LIST_TEXT_SIZE, Session
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.gaps import gap
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.methods import CONFIG_UPDATE, INFO_UPDATE, META, MODE_UPDATE, SESSION_UPDATE, USER_CHUNK
from acp_gateway.protocol.text import lookup, spans
from acp_gateway.protocol.text.pairs import Entry, Pair, text_of
from acp_gateway.versions.parts import NOTHING, background_of
from acp_gateway.versions.table import STATE_UPDATE

CANCELLED: Final = "cancelled"
"""Reason for the end of a turn that was cancelled."""

# The status of a tool call that has ended, and its common end as JSON text. A quote within text has a backslash.
_ENDED: Final = frozenset({"completed", "failed"})
_END: Final = b'ed"'

# In the text of each update whose method is spelled without an escape.
_METHOD: Final = SESSION_UPDATE.encode()
_ESCAPE: Final = b"\\"

_INSPECTED: Final = methods.STATE_UPDATES | {methods.SUBAGENT_UPDATE, methods.TOOL_CALL, methods.TOOL_CALL_UPDATE}
"""Kinds of updates that may not pass through."""

_OWN_STATES: Final = frozenset({"running", "requires_action"})

MANY: Final = 8
"""Minimum number of lines that are decoded together first, which is in vain if one of them is something else."""

_TITLE_BLOCKS: Final = 4
"""Maximum number of blocks of a prompt that are searched for a title."""

_TITLE_SEARCH: Final = 4096
"""Maximum bytes of a text that are searched for a title: the first line of a prompt may be a whole file."""

_TITLE_SIZE: Final = 80
"""Maximum characters of a title from a prompt: a line of a list."""


def session_of_passthrough(text: bytes) -> str | None:
    """Return the session of an update that only passes through to clients and journal, as nearly all do.

    Returns None for any other line, valid or not.
    """
    # Runs for each line of each agent: a full parse would cost as much as the rest.
    if _METHOD not in text and _ESCAPE not in text:
        return None  # As most responses: they are parsed only once.
    try:
        if not text.isascii():
            text.decode()
        if not jsonrpc.is_shallow(text):
            return None
        envelope = jsonrpc.decode_envelope(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    params = envelope.params
    if envelope.method != SESSION_UPDATE or envelope.id is not msgspec.UNSET:
        return None
    if params is None or params is msgspec.UNSET:
        return None
    if envelope.result is not msgspec.UNSET or envelope.error is not msgspec.UNSET:
        return None
    update = params.update
    if (
        update is not None
        and update.kind in _INSPECTED
        and (update.kind != methods.TOOL_CALL_UPDATE or text.find(_END) >= 0)
    ):
        # Nearly all updates of a tool call are progress, which is not audited.
        return None
    return params.session


class _Update(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The envelope of a `session/update`, and of nothing else."""

    method: Literal["session/update"]
    params: jsonrpc.Params
    jsonrpc: Literal["2.0"] | None = None


_decode_update: Final = msgspec.json.Decoder(_Update).decode


def sessions_of_all(lines: Sequence[bytes]) -> list[str] | None:
    """Return the session of each line, if all are updates that pass through; None says nothing.

    For many lines, it takes little more than half the time of `session_of_passthrough`.
    """
    # Between lines there is a line end, so no part of one completes a character of another.
    together = b"\n".join(lines)
    try:
        if not together.isascii():
            together.decode()
        if not jsonrpc.are_shallow(lines):
            return None
        found = [update.params for update in map(_decode_update, lines)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    kinds = {params.update.kind for params in found if params.update is not None}
    if methods.TOOL_CALL_UPDATE in kinds and together.find(_END) < 0:
        kinds.remove(methods.TOOL_CALL_UPDATE)
    sessions = [params.session for params in found if params.session is not None]
    return sessions if len(sessions) == len(lines) and kinds.isdisjoint(_INSPECTED) else None


def _session_of(entry: Entry) -> str | None:
    """Return the same for a line of an agent whose messages may be pairs."""
    passes_in = entry.passes_in if isinstance(entry, Pair) else None
    return session_of_passthrough(text_of(entry)) if passes_in is None else passes_in


def passthrough_runs(
    lines: Sequence[Entry], live: Container[str], *, carries: bool = False
) -> list[tuple[str | None, Sequence[Entry]]]:
    """Return all lines with what `session_of_passthrough` returns for them, those of one session together.

    Updates keep their order within a session, but not among the `live` ones, because each run has its costs. All other
    lines keep their places: an id that is not live may be that of a sub-agent of any session. `carries` is True if some
    may be pairs.
    """
    sessions: Sequence[str | None] | None = None
    if carries:
        sessions = list(map(_session_of, lines))
    elif len(lines) >= MANY:
        sessions = sessions_of_all(cast("Sequence[bytes]", lines))
    if sessions is None:
        sessions = list(map(session_of_passthrough, cast("Sequence[bytes]", lines)))
    if len(lines) == 1:
        return [(sessions[0], lines)]
    first = sessions[0] if sessions else None
    if first is not None and first in live and sessions.count(first) == len(lines):
        return [(first, lines)]
    runs: list[tuple[str | None, Sequence[Entry]]] = []
    groups: dict[str, list[Entry]] = {}
    for session_id, line in zip(sessions, lines, strict=True):
        if session_id is not None and session_id in live:
            groups.setdefault(session_id, []).append(line)
        else:
            runs += groups.items()
            runs.append((None, [line]))
            groups = {}
    runs += groups.items()
    return runs


def tool_call_details(message: Message) -> dict[str, str | None] | None:
    """Return what the audit has of a tool call that begins or has ended, never its text; None for other updates."""
    if message.update not in (methods.TOOL_CALL, methods.TOOL_CALL_UPDATE):
        return None
    call = SessionUpdate.of(message.text).update
    if call.kind == methods.TOOL_CALL_UPDATE and call.status not in _ENDED:
        return None
    return {"toolCallId": call.tool_call_id, "kind": call.tool_kind, "status": call.status}


def session_update(session_id: str, kind: str, **members: bytes) -> bytes:
    """Compose a `session/update`; the members are JSON texts."""
    texts = [
        b'{"jsonrpc":"2.0","method":"%b","params":{"sessionId":%b,"update":{"sessionUpdate":%b'
        % (SESSION_UPDATE.encode(), jsonrpc.encode(session_id), jsonrpc.encode(kind))
    ]
    for name, text in members.items():
        texts += (b",%b:" % jsonrpc.encode(name), text)
    # Joined once: a member may be a picture.
    return b"".join((*texts, b"}}}"))


def blocks_of(prompt: Message) -> list[bytes]:
    """Return the content blocks of one of `methods.PROMPTS`; none if they are not an array."""
    blocks = lookup.param(prompt, methods.PROMPTS[prompt.method]) or b""
    return elements(blocks, len(blocks))


def user_chunks(session_id: str, prompt: Message, blocks: Sequence[bytes]) -> list[bytes]:
    """Compose a prompt with these blocks for the other clients: one chunk for each of them, of any kind."""
    said = lookup.param(prompt, "messageId")
    message_id = {} if said is None else {"messageId": said}
    return [session_update(session_id, USER_CHUNK, content=block, **message_id) for block in blocks]


def with_message_id(chunk: bytes, message_id: bytes) -> bytes:
    """Return a chunk of a prompt under the id, as JSON text, that the agent has given it."""
    at = spans.find(chunk, "params", "update")
    assert at is not None
    update = lookup.members_at(chunk, "params", "update") | {"messageId": message_id}
    return spans.splice(chunk, [(*at, jsonrpc.compose(update))])


def title_of(blocks: Sequence[bytes]) -> str | None:
    """Return the first line of a prompt's text, shortened, as the title of a session without one; None without text."""
    for block in blocks[:_TITLE_BLOCKS]:
        raw = bytes(Block.read(block).text)
        text = spans.string_beginning(raw, _TITLE_SEARCH) if raw.startswith(b'"') else ""
        words = text.strip().split("\n", 1)[0].split()
        if words:
            line = " ".join(words)
            return line if len(line) <= _TITLE_SIZE else line[: _TITLE_SIZE - 1] + "…"
    return None


def mode_update(session: Session, mode_id: str) -> bytes:
    """Set the session's mode, and compose the update for the other clients."""
    set_current(session, "modes", "currentModeId", mode_id)
    return session_update(session.id, MODE_UPDATE, currentModeId=jsonrpc.encode(mode_id))


def config_update(session: Session, options: bytes) -> bytes:
    """Set the session's options, and compose the update for the other clients."""
    session.result["configOptions"] = options
    return session_update(session.id, CONFIG_UPDATE, configOptions=options)


def title_update(session: Session, title: str) -> bytes:
    """Set the session's title, and compose the update for the other clients."""
    session.is_named = False
    update = session_update(session.id, INFO_UPDATE, title=jsonrpc.encode(title))
    read_state(session, jsonrpc.parse(update))
    return update


def named_update(session: Session, *, is_new: bool) -> bytes | None:
    """Compose the update with the title that a user has given; None if clients have it already, or none is given.

    One that `is_new` is told to all; else nothing is said where no update has told a title.
    """
    if not session.is_named or session.title is None:
        return None
    last = _last_info(session)
    if not last and not is_new:
        return None
    if lookup.text_at(last.get("title", b"null")) == session.title:
        return None
    kept = {name: bytes(last[name]) for name in ("updatedAt",) if name in last}
    # It stands for the last update of its kind, which may have told these.
    told = {"state": jsonrpc.encode(session.own_state)} if session.own_state else {}
    told |= {"background": session.background} if session.background else {}
    if told:
        kept["_meta"] = jsonrpc.compose({META: jsonrpc.compose(told)})
    return session_update(session.id, INFO_UPDATE, title=jsonrpc.encode(session.title), **kept)


def own_state(told: str | None) -> str:
    """Return the state of an agent where turns do not say it, as `Session.own_state` has it."""
    return told if told is not None and told in _OWN_STATES else ""


def own_background(told: bytes | msgspec.Raw, known: bytes = b"") -> bytes:
    """Return the work of an agent in the background, as `Session.background` has it."""
    found = background_of(bytes(told) or None, known or NOTHING)
    return b"" if found == NOTHING else found


def idle_update(session: Session) -> bytes:
    """Compose the update that the agent does not work any more, with the title that its last one had."""
    last = _last_info(session)
    kept = {name: bytes(last[name]) for name in ("title", "updatedAt") if name in last}
    told: dict[str, object] = {"state": "idle"} | ({"background": []} if session.background else {})
    return session_update(session.id, INFO_UPDATE, **kept, _meta=jsonrpc.encode({META: told}))


def _last_info(session: Session) -> Mapping[str, bytes | msgspec.Raw]:
    """Return the members of the last `session_info_update`, none without one."""
    states = (lookup.members_at(text_of(state), "params", "update") for state in session.journal.states())
    return next((update for update in states if lookup.text_at(update.get("sessionUpdate", b"")) == INFO_UPDATE), {})


def failed_state(session_id: str, why: str) -> bytes:
    """Compose the same in version 2, with the reason."""
    error = jsonrpc.encode({"code": jsonrpc.INTERNAL_ERROR, "message": why})
    return session_update(session_id, STATE_UPDATE, state=b'"idle"', stopReason=b'"error"', error=error)


def option_category(options: bytes, config_id: str | None) -> str | None:
    """Return the category of an option of a session, such as `mode`, from the agent's list of all of them."""
    return next((option.category for option in ConfigOption.each(options) if option.id == config_id), None)


def changes(session: Session, reopened: Message) -> list[bytes]:
    """Compose updates for the mode and options that differ after re-opening a session."""
    result = lookup.members_at(reopened.text, "result")
    mode = _current_mode(result)
    options = result.get("configOptions", b"null")
    found = []
    if mode is not None and mode != _current_mode(session.result):
        found.append(mode_update(session, mode))
    if options not in (b"null", session.result.get("configOptions")):
        found.append(config_update(session, options))
    return found


def _current_mode(result: Mapping[str, bytes]) -> str | None:
    return Modes.read(result.get("modes", ABSENT)).current_mode_id


def new_states(session: Session, states: Sequence[Entry]) -> list[Entry]:
    """Return the states of a re-opened session that its clients do not have yet: editors show a repeated plan twice."""
    known = {bytes(Passed.of(text_of(state)).update) for state in session.journal.states()}
    return [state for state in states if bytes(Passed.of(text_of(state)).update) not in known]


def set_current(session: Session, member: str, name: str, value: str) -> None:
    """Set the current value of a choice for late joiners, if the agent offered it."""
    offered = session.result.get(member)
    at = None if offered is None else spans.find(offered, name)
    if offered is not None and at is not None:
        session.result[member] = spans.splice(offered, [(*at, jsonrpc.encode(value))])


def ends_cancelled(update: Message) -> bool:
    """Return True if an update carries the end of a cancelled turn of version 2."""
    if update.original is None or CANCELLED.encode() not in update.original:
        return False
    original = SessionUpdate.of(update.original).update
    return original.kind == STATE_UPDATE and original.stop_reason == CANCELLED


def read_state(session: Session, message: Message) -> None:
    """Read mode, options, title, time and the agent's own state from a state update."""
    update = SessionUpdate.of(message.text).update
    if update.kind == MODE_UPDATE:
        if update.current_mode_id is not None:
            set_current(session, "modes", "currentModeId", update.current_mode_id)
    elif update.kind == CONFIG_UPDATE:
        if update.config_options:
            session.result["configOptions"] = bytes(update.config_options)
    elif update.kind == INFO_UPDATE:
        before = session.title, session.updated_at
        if not session.is_named:
            session.title = _list_text(update.title) or session.title
        session.updated_at = _list_text(update.updated_at) or session.updated_at
        if (session.title, session.updated_at) != before:
            session.archive.keep(session)
        told = Meta.read(update.meta).own
        if told.state is not None:
            session.own_state = own_state(told.state)
            session.note_change()
        session.background = own_background(told.background, session.background)


def _list_text(value: str | None) -> str | None:
    """Return the beginning of a text that lists show."""
    return None if value is None else value[:LIST_TEXT_SIZE]


def sub_agents_of(message: Message) -> list[str]:
    """Return the sub-agents that an update tells of its session: the announced one, and those in the background."""
    if message.update not in (methods.SUBAGENT_UPDATE, INFO_UPDATE):
        return []
    update = SessionUpdate.of(message.text).update
    is_sub_agent = update.kind == methods.SUBAGENT_UPDATE
    told = Told.read(update.state) if is_sub_agent else Meta.read(update.meta).own
    works = Work.each(background_of(bytes(told.background) or None, NOTHING))
    names = [update.session_id] if is_sub_agent else []
    names += [work.session_id for work in works if work.type == "subagent"]
    return [name for name in names if name is not None]


def opening_result(session: Session, *, with_id: bool) -> bytes:
    """Compose the result of opening a live session, in its present state.

    `with_id` is for responses to `session/new`. A truncated history is flagged in `_meta`, which also has the state of
    an agent that waits for a person, or works without a prompt, and its work in the background.
    """
    result = dict(session.result)
    if with_id:
        result = {"sessionId": jsonrpc.encode(session.id), **result}
    told = {"truncated": b"true"} if session.journal.truncated else {}
    if session.own_state:
        told["state"] = jsonrpc.encode(session.own_state)
    if session.background:
        told["background"] = session.background
    if told:
        meta = lookup.members_at(result.get("_meta", b"{}"))
        meta[META] = jsonrpc.compose(told)
        result["_meta"] = jsonrpc.compose(meta)
    return jsonrpc.compose(result)


def history(session: Session) -> list[Entry]:
    """Return the history for a client that loads a live session now."""
    replay = session.journal.replay()
    return [gap(session.id), *replay] if session.journal.truncated else replay


def entry_under_session(update: Entry, old: str, new: str) -> Entry:
    """Rewrite an update for a fork of its session; a sub-agent's update stays unchanged."""
    if not isinstance(update, Pair):
        return under_session(update, old, new)
    text, original = under_session(update.text, old, new), update.original
    if original is not None:
        original = text if update.is_same else under_session(original, old, new)
    return Pair(text, original, update.is_hidden)


def under_session(update: bytes, old: str, new: str) -> bytes:
    """Return a message of a session under another id; one of another session, such as a sub-agent, stays as it is."""
    if lookup.text_at(update, "params", "sessionId") != old:
        return update
    at = spans.find(update, "params", "sessionId")
    assert at is not None
    return spans.splice(update, [(*at, jsonrpc.encode(new))])
