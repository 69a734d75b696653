"""Terminals that clients run for an agent, and their ids, which each client mints for itself.

Two clients of one agent may mint the same id. So the agent gets ids minted here, and messages that name a terminal are
translated: `params.terminalId` of the agent's requests, `result.terminalId` of the client's response to
`terminal/create`, and the terminals in the content of a tool call, for the client that runs the terminal.
"""

import re
from dataclasses import dataclass
from typing import Final

from acp_gateway.core.sessions.session import Client
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.text import lookup, spans

MAX_REMEMBERED: Final = 10_000
"""Maximum number of remembered terminals of one agent. A released one is still shown in the tool call that it was
started for."""


# A quote without a backslash before it is not part of a text that is shown.
_MINTED: Final = re.compile(rb'(?<!\\)"terminalId"[ \t\n\r]*:[ \t\n\r]*"(acp-gateway-terminal-[0-9]{1,18})"')


@dataclass(frozen=True, slots=True)
class Terminal:
    """A terminal on a client's machine."""

    client: Client
    id: str
    """The client's id."""


class Terminals:
    """Terminals that the clients of one agent run for it, or have run."""

    def __init__(self) -> None:
        # By the id at the agent.
        self._terminals: dict[str, Terminal] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._terminals)

    def names_terminal(self, request: Message) -> bool:
        """Return True if a request of the agent names a terminal, known or not."""
        return lookup.text_param(request, "terminalId") is not None

    def named(self, request: Message) -> Terminal | None:
        """Return the terminal that a request of the agent names."""
        name = lookup.text_param(request, "terminalId")
        return None if name is None else self._terminals.get(name)

    def for_client(self, request: Message, terminal: Terminal) -> Message:
        """Translate a request of the agent to the client's id."""
        at = spans.find(request.text, "params", "terminalId")
        assert at is not None
        return jsonrpc.parse(spans.splice(request.text, [(*at, jsonrpc.encode(terminal.id))]))

    def created(self, client: Client, response: bytes) -> bytes:
        """Translate a client's response to `terminal/create`, under an id that no other terminal has."""
        name = lookup.text_at(response, "result", "terminalId")
        at = spans.find(response, "result", "terminalId")
        if name is None or at is None:
            return response
        self._last += 1
        minted = f"acp-gateway-terminal-{self._last}"
        self._terminals[minted] = Terminal(client, name)
        if len(self._terminals) > MAX_REMEMBERED:
            del self._terminals[next(iter(self._terminals))]
        return spans.splice(response, [(*at, jsonrpc.encode(minted))])

    def client_gone(self, client: Client) -> None:
        """Forget the terminals of a client that has gone."""
        self._terminals = {name: it for name, it in self._terminals.items() if it.client is not client}

    def clear(self) -> None:
        """Forget all terminals: the agent has ended."""
        self._terminals.clear()

    def translations(self, update: bytes) -> dict[Client, bytes]:
        """Return an update translated for each client whose terminals it shows; other clients get it unchanged."""
        if not self._terminals or b'"terminalId"' not in update:
            return {}
        edits: dict[Client, list[tuple[int, int, bytes]]] = {}
        content = spans.find(update, "params", "update", "content")
        if content is None or update[content[0]] != ord("["):
            return {}
        for match in _MINTED.finditer(update, *content):
            terminal = self._terminals.get(match[1].decode())
            if terminal is not None:
                edit = match.start(1) - 1, match.end(1) + 1, jsonrpc.encode(terminal.id)
                edits.setdefault(terminal.client, []).append(edit)
        return {client: spans.splice(update, its) for client, its in edits.items()}
