"""The prompts of a session that wait for the end of its turn: who sees and changes them, until the agent gets them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.requests import QueuedPrompt
from acp_gateway.core.sessions.session import EDITOR, Client, Request, Session, SessionReach
from acp_gateway.core.turns.queued_prompts import describe_prompt, kept, with_text
from acp_gateway.core.turns.steering import Steering
from acp_gateway.core.turns.turns import Turns
from acp_gateway.core.waiting import Until
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.not_sent import CANCELLED

Action: TypeAlias = Literal["remove", "edit", "move", "send_now", "steer"]

NOT_WAITING: Final = "this prompt does not wait any more: the agent has it already, or it was removed"

NOT_OWN: Final = "guests change only their own prompts"


@dataclass(frozen=True, slots=True)
class QueueChange:
    """A change of one prompt in a queue."""

    key: str
    """Key of the prompt."""
    action: Action
    text: str = ""
    """Another text, to edit it. It replaces all text blocks, and the links to files whose `@NAME` is not in it."""
    before: str | None = None
    """Key of the prompt before which to move it; None for the end."""


@dataclass(frozen=True, slots=True)
class ShownPrompt:
    """A prompt in a queue, as one client may see and change it."""

    prompt: QueuedPrompt
    identity: str
    """Identity that has sent it."""
    may_change: bool
    """True if the client may remove it, move it, and send it now."""
    may_edit: bool


def shown_queue(session: Session, reach: SessionReach, *, controls: bool) -> list[ShownPrompt]:
    """Return all that waits in a session as a client of this reach, which may be an observer, is shown it."""
    queued = [
        ShownPrompt(
            request.queued,
            request.client.reach.identity,
            controls and _may_change(reach, request),
            controls and _is_own(reach, request) and _why_not_edited(request) is None,
        )
        for request in session.queue
        if request.queued is not None
    ]
    return queued + [
        ShownPrompt(it.shown, it.identity, controls and not reach.guest, False) for it in session.kept.values()
    ]


def moved(
    queue: Sequence[Request], movable: Sequence[Request], request: Request, before: Request | None
) -> list[Request]:
    """Return a queue after moving a request before another one, or to the end.

    Both are movable. Only the places of movable requests are filled in another order.
    """
    others = [it for it in movable if it is not request]
    at = len(others) if before is None else others.index(before)
    in_order = iter([*others[:at], request, *others[at:]])
    may_move = set(movable)
    return [next(in_order) if it in may_move else it for it in queue]


class PromptQueue:
    """The queues of the sessions of one agent process."""

    def __init__(self, agent: AgentState, turns: Turns, steering: Steering) -> None:
        self._agent = agent
        self._turns = turns
        self._steering = steering

    def change(self, client: Client, session: Session, change: QueueChange) -> str | None:
        """Change a prompt in the queue of a session, as a client asks; return why that is refused, if it is."""
        if not client.controls or session not in client.sessions:
            return "only controllers that are attached to the session change its queue"
        request = self._find(session, change.key)
        if request is None:
            return NOT_WAITING
        if not _may_change(client.reach, request):
            return NOT_OWN
        why = self._carry_out(client, session, request, change)
        if why is None:
            about = {"session": session.id, "agent": self._agent.name, "action": change.action}
            self._agent.out.audit("queue_changed", client, **about, sender=request.client.reach.identity)
        return why

    def _carry_out(self, client: Client, session: Session, request: Request, change: QueueChange) -> str | None:
        waiting = self._agent.waiting
        if change.action == "edit":
            return self._edit(client, session, request, change.text)
        if change.action == "remove":
            waiting.withdraw(request)
            self._agent.answer(request, CANCELLED)
        elif change.action == "move":
            before = None if change.before is None else self._find(session, change.before)
            if change.before is not None and (before is None or before is request):
                return "the prompt before which to move this one does not wait any more"
            if before is not None and not _may_change(client.reach, before):
                return NOT_OWN
            movable = [it for it in session.queue if _may_change(client.reach, it)]
            waiting.reorder(moved(session.queue, movable, request, before), Until.TURN_FREE, session)
        elif change.action == "steer":
            return self._steering.take(session, request)
        else:
            others = (it for it in session.queue if it is not request)
            waiting.reorder([request, *others], Until.TURN_FREE, session)
            cancel = jsonrpc.notification(methods.SESSION_CANCEL, {"sessionId": session.id})
            self._turns.cancel_running(client, session, cancel)
        return None

    def _edit(self, client: Client, session: Session, request: Request, text: str) -> str | None:
        """Replace the text of a prompt."""
        why = "only who has sent a prompt edits it" if not _is_own(client.reach, request) else _why_not_edited(request)
        if why is not None:
            return why
        assert request.queued is not None, "it was found by its key"
        if request.queued.key in self._turns.storing:
            return NOT_WAITING
        if not text.strip() and not request.queued.attached:
            return "a prompt without text says nothing: remove it instead"
        request.replace(with_text(request.message, text))
        auto, shown = request.queued.auto, describe_prompt(request.queued.key, request.queued.at, request.message)
        request.queued = replace(shown, auto=auto)
        if not request.client.reach.guest:
            session.archive.keep_prompt(session, kept(request))
        self._agent.waiting.changed_queues[session] = None
        session.note_change()
        return None

    def _find(self, session: Session, key: str) -> Request | None:
        return next((it for it in session.queue if it.queued is not None and it.queued.key == key), None)


def _is_own(reach: SessionReach, request: Request) -> bool:
    sender = request.client.reach
    return (sender.identity, sender.guest) == (reach.identity, reach.guest)


def _may_change(reach: SessionReach, request: Request) -> bool:
    """Return True if a controller of this reach may change a prompt: owners change all of their sessions."""
    return not reach.guest or _is_own(reach, request)


def _why_not_edited(request: Request) -> str | None:
    """Return why not even its sender may edit a prompt; None if that may."""
    if request.client.via == EDITOR:
        return "an editor has sent this prompt, and would go on showing the former text: remove it and send another one"
    if request.queued is None or not request.queued.whole:
        return "this prompt is too long to be edited here: remove it and send another one"
    return None
