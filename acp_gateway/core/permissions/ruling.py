"""Permission requests that rules decide before any client is asked, and the rules that people write from one.

A rule decides when the session of a request is certain, and no client has the request. What it has decided, and each
rule that is written, is told in the conversation.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple

import msgspec

from acp_gateway.acp.updates import Option, Passed, Update
from acp_gateway.core.agent_requests import AgentRequest, of_kind, selected, undecided
from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.output import WriteRule
from acp_gateway.core.sessions.session import Client, Session, SessionReach
from acp_gateway.printable import printable
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import InvalidMessage, Message
from acp_gateway.protocol.methods import META, REQUEST_PERMISSION, TOOL_CALL, TOOL_CALL_UPDATE
from acp_gateway.protocol.text import lookup, spans
from acp_gateway.protocol.text.strict_parsing import members_strictly
from acp_gateway.rules.asked import Asked, read_asked
from acp_gateway.rules.deciding import Place, Verdict, decide, offer
from acp_gateway.rules.rule import Rule

CALL_SIZE: Final = 256 * 1024
"""Maximum bytes of a tool call that rules read, with all its updates, some 10 ms of work; that of a person may be
longer."""

READ_SIZE: Final = 4 * CALL_SIZE
"""Maximum bytes of messages that are read to find its updates, some 30 ms of work."""

_PER_READ: Final = 256
_PER_LOOK: Final = 32
"""Bytes that take as long to read as what is to be done for each message, that is read or only looked at."""

_CALLS: Final = frozenset({TOOL_CALL, TOOL_CALL_UPDATE})
# A part of both, which are spelled without an escape.
_CALL: Final = TOOL_CALL.encode()
# The name of a call may be spelled with escapes: most other texts with escapes need not be read.
_ESCAPED_NAME: Final = re.compile(rb'"toolCallId"\s*:\s*"[^"\\]*\\')


class Judged(NamedTuple):
    """The end of a request that a rule has decided."""

    verdict: Verdict
    outcome: str
    """Id of the selected option, or `cancelled`."""
    option: Option | None
    response: bytes


class PermissionRules:
    """The rules of one agent process."""

    def __init__(self, agent: AgentState, tell: Callable[[str, str], None]) -> None:
        self._agent = agent
        self._tell = tell
        agent.agent_requests.with_rules = self.with_offers

    def settle(self, request: AgentRequest, session: Session) -> bool:
        """Settle a request of a session by the first rule for it; return False if a person is to be asked."""
        if request.method != REQUEST_PERMISSION or request.is_judged or request.forwarded_ids:
            return False
        request.is_judged = True
        rules = self._agent.policy.rules()
        # In a turn that a person has stopped, nothing is allowed without one.
        if not rules or any(turn.is_cancelled for turn in session.turns):
            return False
        verdict = decide(rules, asked_of(request, session), self._place(session), self._agent.clock.wall_time)
        judged = None if verdict is None else _judge(request, verdict)
        if judged is None:
            return False
        rule = judged.verdict.rule
        author = "the configuration" if rule.author is None else rule.author
        what = printable(request.title or "a tool")
        done = "allowed" if judged.verdict.decision == "allow" else "denied"
        self._tell(session.id, f"[acp-gateway: {done} by a rule of {author} ({rule.id}: {rule}): {what}]")
        self._agent.news.report_decision(request, None, judged.outcome, judged.option, rule)
        self._agent.agent_requests.settle(request, judged.response)
        return True

    def offers(self, request: AgentRequest, reach: SessionReach) -> list[Rule]:
        """Return the rules that a controller with this reach may write as it allows a request, the widest first."""
        session = request.session
        if session is None or request.method != REQUEST_PERMISSION or reach.guest:
            return []
        if reach.identity != session.owner or not reach.sees(session) or len(of_kind(request, "allow_once")) != 1:
            return []
        return offer(asked_of(request, session), self._place(session))

    def with_offers(self, request: AgentRequest, client: Client, message: Message) -> Message:
        """Return a request for a client with the rules that it may have written; the same one if there are none."""
        offered = self.offers(request, client.reach) if client.controls else []
        at = spans.find(message.text, "params")
        if not offered or at is None or request.session is None:
            return message
        params = lookup.members_at(message.text, "params")
        meta = lookup.members_at(params.get("_meta", b"{}"))
        told = {"rules": [rule.subject for rule in offered], "project": request.session.cwd}
        meta[META] = jsonrpc.encode(told)
        params["_meta"] = jsonrpc.compose(meta)
        return jsonrpc.parse(spans.splice(message.text, [(*at, jsonrpc.compose(params))]))

    def note_choice(self, client: Client, request: AgentRequest, option: Option | None, wanted: bytes) -> None:
        """Have the rule written that a client wants as it decides a request, if that was offered."""
        session = request.session
        if session is None:
            return
        subject, scope = lookup.text_at(wanted, "subject"), lookup.text_at(wanted, "for")
        offered = {rule.subject: rule for rule in self.offers(request, client.reach)}
        rule = offered.get(subject or "")
        # All sessions of the agent in the same folder, or the one: a token for that says nothing about others.
        is_in_reach = scope == "session" or (scope == "project" and client.reach.only is None)
        if rule is None or not is_in_reach or option is None or option.kind != "allow_once":
            self._tell(session.id, f"[acp-gateway: no rule was written: this one was not offered to {client.name}]")
            return
        only = session.name if scope == "session" else None
        written = replace(rule, author=client.reach.identity, credential=client.credential)
        written = replace(written, session=only, workspace=session.workspace)
        self._agent.out.effect(WriteRule(written, session, client))

    def _place(self, session: Session) -> Place:
        return Place(self._agent.name, session.name, session.owner, session.workspace, session.cwd)


def asked_of(request: AgentRequest, session: Session) -> Asked:
    """Return what a request of a session asks for, with what the agent has told of its tool call before.

    Nothing is certain of one that parsers may read in several ways, or that is too large.
    """
    raw = bytes(lookup.params_of(request.message).get("toolCall", b""))
    before = _told_before(request, session)
    told = [*(before or ()), raw]
    is_readable = before is not None and sum(map(len, told)) <= CALL_SIZE
    calls = [_read_call(part) for part in told] if is_readable else [None]
    known = [call for call in calls if call is not None]
    if len(known) < len(calls):
        return Asked("other")
    *earlier, call = known
    original = request.message.original
    if original is not None:
        # In version 2, the title of the request is a sentence, and the tool call may have its own.
        call["title"] = lookup.text_at(original, "params", "subject", "toolCall", "title")
    return read_asked(call, session.cwd, earlier)


def _told_before(request: AgentRequest, session: Session) -> list[bytes] | None:
    """Return the updates of a request's tool call in the turn that runs, since the one that has begun it, as JSON; None
    if what may be one of them is more than is read."""
    name = request.tool_call.tool_call_id
    found: list[bytes] = []
    size, read, spelled = 0, 0, jsonrpc.encode(name)
    for text in session.journal.backwards() if name else ():
        if _CALL not in text:
            continue
        may_be = spelled in text or _ESCAPED_NAME.search(text)
        read += len(text) + _PER_READ if may_be else _PER_LOOK
        if read > READ_SIZE:
            return None
        if not may_be:
            continue
        told = Passed.of(text)
        call = Update.read(told.update)
        if call.tool_call_id == name and told.session_id == request.message.session and call.kind in _CALLS:
            found.append(bytes(told.update))
            size += len(found[-1])
            if call.kind == TOOL_CALL or size > CALL_SIZE:
                break
    return found[::-1]


def _read_call(raw: bytes) -> dict[str, Any] | None:
    """Return a tool call; None for one that parsers may read in several ways."""
    try:
        members = members_strictly(raw)
        given = bytes(members.get("rawInput", b"null"))
        if given[:1] == b"{":
            members_strictly(given)
        call: dict[str, Any] = msgspec.json.decode(raw)
    except (InvalidMessage, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return call


def _judge(request: AgentRequest, verdict: Verdict) -> Judged | None:
    """Return how a request ends by a verdict; None if a person is to be asked: also where the agent offers several
    ways to allow it once, or none."""
    if verdict.decision == "deny":
        for option_id, option in of_kind(request, "reject_once"):
            return Judged(verdict, option_id, option, selected(request, option_id))
        return Judged(verdict, "cancelled", None, undecided(request))
    allowed = of_kind(request, "allow_once") if verdict.decision == "allow" else []
    offered = lookup.param(request.message, "options") or b""
    # An id that is there twice may mean the other option.
    if len(allowed) != 1 or len(Option.each(offered, len(offered))) != len(request.options):
        return None
    option_id, option = allowed[0]
    return Judged(verdict, option_id, option, selected(request, option_id))
