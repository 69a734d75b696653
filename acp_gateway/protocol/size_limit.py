"""The maximum size of a message, which a gateway tells a client that begins or resumes a link.

It is spelled `16777216 max_message_size`: the bytes, and the option that sets them. A message beyond it would end the
connection, so the client's end of the link answers it itself.
"""

import re
from typing import Final, NamedTuple

TOO_LARGE: Final = "message_too_large"
"""Reason, for programs, in the error for a message that is too large."""

_SPELLED: Final = re.compile(r"([1-9][0-9]{0,14}) ([a-z_-]{1,64})")


class SizeLimit(NamedTuple):
    """Maximum bytes of one message."""

    size: int
    option: str
    """Name of the option that sets it."""

    def __str__(self) -> str:
        return f"{self.size} {self.option}"

    def describe(self, size: int) -> str:
        """Return why a message of this size is refused, as a sentence without a full stop."""
        return f"a message of {size:,} bytes is larger than {self.option} ({self.size:,} bytes) allows"


def read_size_limit(spelled: object) -> SizeLimit | None:
    """Read a limit as it is spelled; None for anything else, as of a server that tells none."""
    found = _SPELLED.fullmatch(spelled) if isinstance(spelled, str) else None
    return None if found is None else SizeLimit(int(found[1]), found[2])
