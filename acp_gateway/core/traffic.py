"""Counts of the messages and bytes that pass between clients and agents."""

from collections.abc import Iterable, Iterator
from typing import Final

from acp_gateway.protocol import methods

OTHER: Final = "other"
"""Stands for all methods that have no count of their own: peers choose the names, and there may be any number."""

INVALID: Final = "invalid"
"""Stands for texts that are not messages."""

RESPONSE: Final = "response"

NO_METHOD: Final = ""
"""Key of responses."""

_BY_CLIENTS: Final = (*methods.CLIENT_METHODS, methods.AUTHENTICATE, *methods.CLIENT_NOTIFICATIONS)

_BY_AGENTS: Final = (
    *(methods.SESSION_UPDATE, *methods.AGENT_METHODS, methods.COMPLETE_ELICITATION, methods.CANCEL_REQUEST),
    *("fs/read_text_file", "fs/write_text_file"),
    *(methods.CREATE_TERMINAL, "terminal/output", "terminal/wait_for_exit", "terminal/kill", "terminal/release"),
)


class Traffic:
    """Counts since the start, of one or more agents.

    The dictionaries have a fixed set of keys: a method is counted under its name if that is one, else under `OTHER`.
    """

    __slots__ = (
        "bytes_from_agents",
        "bytes_from_clients",
        "bytes_to_agents",
        "bytes_to_clients",
        "from_agents",
        "from_clients",
    )

    def __init__(self) -> None:
        self.from_clients = _no_messages(_BY_CLIENTS)
        self.from_agents = _no_messages(_BY_AGENTS)
        self.bytes_from_clients = 0
        self.bytes_from_agents = 0
        self.bytes_to_agents = 0
        self.bytes_to_clients = 0
        """Of clients that have gone; outboxes have the counts of the others."""

    def messages(self) -> Iterator[tuple[str, str, int]]:
        """Yield direction, method and number of messages."""
        for direction, counts in (("from_client", self.from_clients), ("from_agent", self.from_agents)):
            for method, count in counts.items():
                yield direction, method or RESPONSE, count


def _no_messages(names: Iterable[str]) -> dict[str, int]:
    return dict.fromkeys(sorted((*names, OTHER, INVALID, NO_METHOD)), 0)
