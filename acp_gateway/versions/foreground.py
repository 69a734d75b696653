"""Tells when the turns of a session begin and end whose agent speaks version 2.

There a prompt is answered when the agent has accepted it, work may begin without a prompt, and a `state_update` says
when it has ended. Such an update may come again, and before the response to a prompt that it ends.
"""

from collections.abc import Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from acp_gateway.versions.parts import text
from acp_gateway.versions.state import bounded

REMEMBERED_MESSAGES: Final = 64
"""User messages that are remembered until the prompt which they are is accepted; few come before that."""

END_SIZE: Final = 64 * 1024
"""Bytes of a reason, an error or a usage at the end of a turn that are passed on at most; an error has a hundred."""

PromptT = TypeVar("PromptT")
"""A prompt: whatever its sender knows it by."""


class TurnEnded(NamedTuple, Generic[PromptT]):
    """The agent is ready for a prompt."""

    prompts: tuple[PromptT, ...]
    """The prompts that it had accepted."""
    end: Mapping[str, bytes]
    """Members of the `state_update` that says so: `stopReason`, `error` and `usage`."""


class Foreground(Generic[PromptT]):
    """The work of an agent of version 2 in one session."""

    def __init__(self) -> None:
        self._prompts: dict[PromptT, bool] = {}
        """The prompts whose turn has not ended, with True for those that were accepted."""
        self._works = self._waits = False
        self._has_spoken = False
        """True if text of the agent has come since the last turn."""
        self._turns = 0
        """Number of turns that have ended."""
        self._end: Mapping[str, bytes] = {}
        """The update that ended the last turn."""
        self._seen: dict[str, int] = {}
        """User messages, with the number of turns that had ended before them."""

    @property
    def state(self) -> str:
        """The state that the agent has told last: `running`, `requires_action`, or `idle`."""
        return "requires_action" if self._waits else "running" if self._works else "idle"

    @property
    def has_prompts(self) -> bool:
        """True while the turn of a prompt has not ended."""
        return bool(self._prompts)

    @property
    def waits_for_acceptance(self) -> bool:
        """True while the agent has not said which message a prompt is."""
        return not all(self._prompts.values())

    def has_accepted(self, prompt: PromptT) -> bool:
        """Return True for a prompt that was accepted and whose turn has not ended."""
        return self._prompts.get(prompt, False)

    def sent(self, prompt: PromptT) -> None:
        """Tell that a prompt was sent."""
        self._prompts[prompt] = False

    def accepted(self, prompt: PromptT, message_id: str | None) -> TurnEnded[PromptT] | None:
        """Tell the response to a prompt; return the end of its turn if that came before."""
        if prompt not in self._prompts:
            return None
        self._prompts[prompt] = True
        if message_id is None or self._seen.get(message_id, self._turns) == self._turns:
            return None
        del self._prompts[prompt]
        return TurnEnded((prompt,), self._end)

    def refused(self, prompt: PromptT) -> None:
        """Tell that the response to a prompt was an error."""
        self._prompts.pop(prompt, None)

    def user_said(self, message_id: str) -> None:
        """Tell an update of a user message."""
        if message_id not in self._seen:
            bounded(self._seen, message_id, self._turns, REMEMBERED_MESSAGES)

    def agent_said(self) -> None:
        """Tell an update with text of the agent."""
        self._has_spoken = True

    def updated(self, update: Mapping[str, bytes]) -> TurnEnded[PromptT] | None:
        """Tell the members of a `state_update`; return the end of the turn if it says that."""
        state = text(update.get("state"))
        if state != "idle":
            self._works, self._waits = True, state == "requires_action"
            return None
        if not self._works and not (self._has_spoken and text(update.get("stopReason")) is not None):
            # The same state again, or that of a session which was opened.
            return None
        self._turns += 1
        self._end = {
            name: raw
            for name, raw in update.items()
            if name in ("stopReason", "error", "usage") and len(raw) <= END_SIZE
        }
        return TurnEnded(self.cut(), self._end)

    def cut(self) -> tuple[PromptT, ...]:
        """End the turn, as the agent will not say that; return its prompts. Those that were not accepted stay."""
        self._works = self._waits = self._has_spoken = False
        accepted = tuple(prompt for prompt, is_accepted in self._prompts.items() if is_accepted)
        for prompt in accepted:
            del self._prompts[prompt]
        return accepted
