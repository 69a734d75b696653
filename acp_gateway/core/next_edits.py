"""Sessions in which an agent suggests the next edits of a file: `nes/…`, and `document/…` that tells about the files.

Such a session belongs to the client that has started it, and ends with it, or with the agent's process: a new process
has not the text of the open files, which the editor tells again in its next session. It is not one of the registry:
it has no history, no other client lists or joins it, and its id is unknown to all of them.
"""

import re
from typing import Final
from urllib.parse import unquote

from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.requests import ErrorObject, OwnRequest
from acp_gateway.core.sessions import preconditions
from acp_gateway.core.sessions.session import SESSION_ID_SIZE, Client, DirectoryCheck, Request
from acp_gateway.core.turns.cut_turns import AGENT_ENDED
from acp_gateway.core.waiting import Objection
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import InvalidMessage, Message
from acp_gateway.protocol.text import lookup
from acp_gateway.protocol.text.spans import TooMany
from acp_gateway.protocol.text.strict_parsing import members_strictly

MAX_SESSIONS: Final = 16
"""Maximum number of such sessions of one client; an editor has one for each window."""

MAX_ENDED: Final = 256
"""Maximum number of ended sessions whose clients are told why: those of a process that has ended."""

# Parsers of URIs drop or change some characters, so that another path would be read than is checked here.
_FILE_URI: Final = re.compile(r"file://(?:localhost)?(/[^\x00-\x20\x7f\\?#]*)", re.IGNORECASE)


class _Closing(OwnRequest):
    """The end of a session whose client has gone: the agent need not answer it."""

    __slots__ = ()

    @property
    def abandoned(self) -> bool:
        return True


class NextEdits:
    """The sessions of one agent process."""

    def __init__(self, agent: AgentState) -> None:
        self._agent = agent
        self._owners: dict[str, Client] = {}
        # Clients of the sessions that have ended with their process.
        self._ended: dict[str, Client] = {}

    def owns(self, client: Client, session_id: str) -> bool:
        """Return True if a client has started this session."""
        return self._owners.get(session_id) is client

    def start(self, client: Client, request: Request) -> None:
        """Handle `nes/start`, whose directories must be permitted as those of any session."""
        if self._count(client) >= MAX_SESSIONS:
            why = f"a connection has at most {MAX_SESSIONS} sessions for suggestions; close some"
            self._agent.refuse(request, jsonrpc.INVALID_REQUEST, why, {"reason": "too_many_sessions"})
        elif request.message.session is not None:
            # The agent names the new session; this one may be another client's.
            self._agent.refuse_unknown(request, request.message.session)
        elif not self._agent.holds(request, self._objection(client, request)):
            self._agent.open_requests.forward(request, self._started)

    def suggest(self, client: Client, request: Request) -> None:
        """Handle `nes/suggest`."""
        if self._is_own(client, request):
            self._agent.open_requests.forward(request)

    def close(self, client: Client, request: Request) -> None:
        """Handle `nes/close`."""
        if self._is_own(client, request):
            del self._owners[request.message.session or ""]
            self._agent.open_requests.forward(request)

    def client_gone(self, client: Client) -> None:
        """Close the sessions of a client that has gone."""
        for session_id in [each for each, owner in self._owners.items() if owner is client]:
            del self._owners[session_id]
            self._close(session_id)
        self._ended = {each: owner for each, owner in self._ended.items() if owner is not client}

    def clear(self) -> None:
        """End the sessions of a process that has ended."""
        for session_id, owner in self._owners.items():
            self._ended[session_id] = owner
            if len(self._ended) > MAX_ENDED:
                del self._ended[next(iter(self._ended))]
        self._owners.clear()

    def _count(self, client: Client) -> int:
        """Return the number of a client's sessions, with those that the agent has not named yet."""
        coming = sum(
            asked.agent_id is not None and asked.message.method == methods.NES_START
            for asked in client.requests.values()
        )
        return coming + sum(owner is client for owner in self._owners.values())

    def _is_own(self, client: Client, request: Request) -> bool:
        """Refuse a request in a session that its client has not started; return True for any other."""
        session_id = request.message.session
        if session_id is not None and self.owns(client, session_id):
            return True
        if session_id is not None and self._ended.get(session_id) is client:
            why = f"session {session_id:.80} has ended with the agent's process; nes/start starts another one"
            data = {"sessionId": session_id, "reason": AGENT_ENDED}
            self._agent.refuse(request, jsonrpc.SESSION_NOT_FOUND, why, data)
        else:
            self._agent.refuse_unknown(request, session_id)
        return False

    def _objection(self, client: Client, request: Request) -> Objection | None:
        """Object to the directories of a request that are not permitted, or not checked yet."""
        findings = request.findings
        if findings.directory_check is None:
            try:
                directories = _directories(request.message, self._agent.policy.limits.max_additional_directories)
            except InvalidMessage as flaw:
                return ErrorObject(jsonrpc.INVALID_PARAMS, str(flaw))
            if not directories:
                why = "nes/start needs a workspaceUri, in a workspace of this token"
                refusal = ErrorObject(jsonrpc.INVALID_PARAMS, why, {"reason": "outside_workspaces"})
                return None if client.reach.workspaces is None else refusal
            findings.directory_check = DirectoryCheck(request, directories)
        return preconditions.directories(self._agent, client, findings.directory_check)

    def _started(self, request: Request, response: Message) -> None:
        """Handle the response to `nes/start`, which names the session."""
        session_id = lookup.text_at(response.text, "result", "sessionId")
        if response.error or session_id is None:
            self._agent.respond(request, response)
        elif len(session_id) > SESSION_ID_SIZE or session_id in self._owners or session_id in self._agent.live:
            # Messages would reach the session of another client.
            why = "the agent has named a session that is there already"
            self._agent.refuse(request, jsonrpc.INTERNAL_ERROR, why, {"reason": "bad_session"})
        elif request.abandoned:
            self._close(session_id)
        else:
            self._ended.pop(session_id, None)
            self._owners[session_id] = request.client
            self._agent.respond(request, response)

    def _close(self, session_id: str) -> None:
        params = jsonrpc.encode({"sessionId": session_id})
        text = b'{"jsonrpc":"2.0","id":0,"method":"%b","params":%b}' % (methods.NES_CLOSE.encode(), params)
        self._agent.open_requests.forward(_Closing(jsonrpc.parse(text)), _ignore)


def _ignore(_own: OwnRequest, _response: Message) -> None:
    """Take a response that changes nothing."""


def _directories(message: Message, most: int) -> tuple[str, ...]:
    """Return the directories that `nes/start` names. Raises `InvalidMessage`."""
    raw = lookup.param(message, "workspaceUri") or b"null"
    uris = [] if raw == b"null" else [raw]
    folders = lookup.param(message, "workspaceFolders") or b"null"
    if folders != b"null":
        try:
            elements = lookup.elements_of(folders, most) if folders[:1] == b"[" else None
        except TooMany:
            elements = None
        if elements is None:
            why = f"workspaceFolders must be an array of at most {most} objects (max_additional_directories)"
            raise InvalidMessage(jsonrpc.INVALID_PARAMS, why)
        uris += map(_uri_of_folder, elements)
    return tuple(map(_path_of, uris))


def _uri_of_folder(folder: bytes) -> bytes:
    members = members_strictly(folder)
    if any(methods.fold(name) == "uri" and name != "uri" for name in members):
        raise InvalidMessage(jsonrpc.INVALID_PARAMS, "uri must have that very name in each of workspaceFolders")
    return bytes(members.get("uri", b""))


def _path_of(raw: bytes) -> str:
    uri = lookup.text_at(b'{"uri":%b}' % raw, "uri") if raw[:1] == b'"' else None
    found = None if uri is None else _FILE_URI.fullmatch(uri)
    try:
        if found is not None:
            return unquote(found[1], errors="strict")
    except UnicodeDecodeError:
        pass
    raise InvalidMessage(jsonrpc.INVALID_PARAMS, "the workspaces of nes/start must be URIs such as file:///srv/project")
