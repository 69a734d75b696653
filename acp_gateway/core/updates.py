"""Session updates that the gateway composes, and those of an agent that it reads."""

from typing import Final

import msgspec

from acp_gateway.core.sessions import Session
from acp_gateway.protocol import jsonrpc, lookup, methods, spans
from acp_gateway.protocol.gaps import gap
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.methods import CONFIG_UPDATE, META, MODE_UPDATE, SESSION_UPDATE, USER_CHUNK

_NO_PASSTHROUGH: Final = methods.STATE_UPDATES | {methods.SUBAGENT_UPDATE}


def session_of_passthrough(text: bytes) -> str | None:
    """Return the session of an update that only passes through to clients and journal, as nearly all do.

    Returns None for any other line, valid or not.
    """
    # Runs for each line of each agent: a full parse would cost as much as the rest.
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
    if params.update is not None and params.update.kind in _NO_PASSTHROUGH:
        return None
    return params.session


def session_update(session_id: str, kind: str, **members: bytes) -> bytes:
    """Compose a `session/update`; the members are JSON texts."""
    update = jsonrpc.compose({"sessionUpdate": jsonrpc.encode(kind), **members})
    return b'{"jsonrpc":"2.0","method":"%b","params":{"sessionId":%b,"update":%b}}' % (
        SESSION_UPDATE.encode(),
        jsonrpc.encode(session_id),
        update,
    )


def user_chunks(session_id: str, prompt: Message) -> list[bytes]:
    """Compose a prompt for the other clients: one chunk for each of its blocks, of any kind."""
    blocks = lookup.param(prompt, "prompt")
    if blocks is None or not blocks.startswith(b"["):
        return []
    said = lookup.param(prompt, "messageId")
    message_id = {} if said is None else {"messageId": said}
    return [
        session_update(session_id, USER_CHUNK, content=block, **message_id)
        for block in lookup.elements_of(blocks, len(blocks))
    ]


def mode_update(session: Session, mode_id: str) -> bytes:
    """Set the session's mode, and compose the update for the other clients."""
    set_current(session, "modes", "currentModeId", mode_id)
    return session_update(session.id, MODE_UPDATE, currentModeId=jsonrpc.encode(mode_id))


def config_update(session: Session, options: bytes) -> bytes:
    """Set the session's options, and compose the update for the other clients."""
    session.result["configOptions"] = options
    return session_update(session.id, CONFIG_UPDATE, configOptions=options)


def changes(session: Session, reopened: Message) -> list[bytes]:
    """Compose updates for the mode and options that differ after re-opening a session."""
    result = lookup.members_at(reopened.text, "result")
    mode = lookup.text_at(result.get("modes", b"{}"), "currentModeId")
    options = result.get("configOptions", b"null")
    found = []
    if mode is not None and mode != lookup.text_at(session.result.get("modes", b"{}"), "currentModeId"):
        found.append(mode_update(session, mode))
    if options not in (b"null", session.result.get("configOptions")):
        found.append(config_update(session, options))
    return found


def set_current(session: Session, member: str, name: str, value: str) -> None:
    """Set the current value of a choice for late joiners, if the agent offered it."""
    offered = session.result.get(member)
    at = None if offered is None else spans.find(offered, name)
    if offered is not None and at is not None:
        session.result[member] = spans.splice(offered, [(*at, jsonrpc.encode(value))])


def read_state(session: Session, update: Message) -> None:
    """Read mode, options, title and time from a state update of the agent."""
    if update.update == MODE_UPDATE:
        mode = lookup.text_param(update, "update", "currentModeId")
        if mode is not None:
            set_current(session, "modes", "currentModeId", mode)
    elif update.update == CONFIG_UPDATE:
        options = lookup.param(update, "update", "configOptions")
        if options is not None:
            session.result["configOptions"] = options
    else:
        before = session.title, session.updated_at
        session.title = lookup.text_param(update, "update", "title") or session.title
        session.updated_at = lookup.text_param(update, "update", "updatedAt") or session.updated_at
        if (session.title, session.updated_at) != before:
            session.archive.keep(session)


def opening_result(session: Session, *, with_id: bool) -> bytes:
    """Compose the result of opening a live session, in its present state.

    `with_id` is for responses to `session/new`. A truncated history is flagged in `_meta`.
    """
    result = dict(session.result)
    if with_id:
        result = {"sessionId": jsonrpc.encode(session.id), **result}
    if session.journal.truncated:
        meta = lookup.members_at(result.get("_meta", b"{}"))
        meta[META] = b'{"truncated":true}'
        result["_meta"] = jsonrpc.compose(meta)
    return jsonrpc.compose(result)


def history(session: Session) -> list[bytes]:
    """Return the history for a client that loads a live session now."""
    replay = session.journal.replay()
    return [gap(session.id), *replay] if session.journal.truncated else replay


def under_session(update: bytes, old: str, new: str) -> bytes:
    """Rewrite an update for a fork of its session; a sub-agent's update stays unchanged."""
    if lookup.text_at(update, "params", "sessionId") != old:
        return update
    at = spans.find(update, "params", "sessionId")
    assert at is not None
    return spans.splice(update, [(*at, jsonrpc.encode(new))])
