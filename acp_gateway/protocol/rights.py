"""What a client may say: by its role, by what its connection came for, and by how it names a session.

What may be done *in* a session is another matter: that needs a client that is attached to it.
"""

from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.sessions import SESSION_ID_SIZE, Client


def objection_to_request(client: Client, message: Message) -> tuple[int, str] | None:
    """The code and the words that a request is refused with, whatever it is about; None for what may pass."""
    rules = methods.client_method(message.method)
    if not client.controls and not rules.observer:
        return jsonrpc.METHOD_NOT_FOUND, f"observers may only look: no {message.method:.80}"
    if (client.viewer.guest and not rules.guest) or not _is_within(client, message, rules):
        return jsonrpc.INVALID_REQUEST, f"this connection is for one session only: no {message.method:.80}"
    flaw = _flaw_of_session_id(message)
    return None if flaw is None else (jsonrpc.INVALID_PARAMS, flaw)


def objection_to_notification(client: Client, message: Message) -> str | None:
    """Why a notification is dropped, whatever it is about; None for what may pass."""
    if not client.controls:
        return "observers may only look"
    if client.viewer.guest and message.method != methods.SESSION_CANCEL:
        return "guests may cancel, and tell nothing else"
    if client.viewer.only is not None and message.session is None:
        return "this connection is for one session only"
    if message.method == methods.SESSION_CANCEL and message.session is None:
        # Without one, an agent might end the turns of all.
        return "it names no session"
    return _flaw_of_session_id(message)


def _is_within(client: Client, message: Message, rules: methods.ClientMethod) -> bool:
    """Whether a request is within what a connection came for."""
    if client.viewer.only is None or message.method in (methods.NEW, methods.LIST, methods.AUTHENTICATE):
        return True
    return message.session is not None and not rules.beyond


def _flaw_of_session_id(message: Message) -> str | None:
    """Why the session that a message may be about can't be known: what the agent reads must be what was checked.

    Some parsers take `session_id` or `SessionId` for `sessionId`, and an array of one string for that string.
    """
    if message.session is not None and len(message.session) > SESSION_ID_SIZE:
        return f"a session's id has at most {SESSION_ID_SIZE} characters"
    for name, value in jsonrpc.members_at(message.text, "params").items():
        if name.replace("_", "").casefold() == "sessionid" and (name != "sessionId" or value[:1] not in b'"n'):
            return "the session must be a string under the name sessionId"
    return None
