"""Messages, tool calls and plans as a client of version 1 has been shown them, of an agent of version 2."""

from hashlib import blake2b
from typing import Final

from acp_gateway.protocol import jsonrpc
from acp_gateway.versions.diffs import old_diff
from acp_gateway.versions.parts import array, members, text, text_block
from acp_gateway.versions.state import CONTENT_SIZE, FREE_REPEATS, REPEATS, Memory
from acp_gateway.versions.terminals import Terminal
from acp_gateway.versions.values import old_block

_compose: Final = jsonrpc.compose

CORRECTED: Final = "[acp-gateway: the agent has replaced this message by the following.]\n"
CLEARED: Final = "[acp-gateway: the agent has withdrawn this message.]"
CANCELLED: Final = "[acp-gateway: this tool call was cancelled.]"
ITEMS_LEFT_OUT: Final = "[acp-gateway: earlier content of this tool call is left out.]"


class ShownMessage:
    """A message, as far as it was shown: only its length and its digest are remembered."""

    def __init__(self) -> None:
        self.versions = 0
        """Number of times that it was shown again, as it was replaced."""
        self._length = 0
        self._digest = blake2b(digest_size=16)

    @property
    def size(self) -> int:
        """Bytes that it counts as."""
        return 400

    def id(self, message_id: str) -> str:
        """Return its id in version 1, which is another one after each replacement."""
        return f"{message_id}#{self.versions + 1}" if self.versions else message_id

    def append(self, block: bytes) -> None:
        """Add a block that is shown."""
        piece = _essence(block)
        self._length += len(piece)
        self._digest.update(piece)

    def replace(self, blocks: list[bytes]) -> list[bytes]:
        """Replace the content; return the blocks to show: what was added, or all after a line that says so."""
        pieces = list(map(_essence, blocks))
        whole = b"".join(pieces)
        before = self._length
        is_extension = (
            len(whole) >= before and blake2b(whole[:before], digest_size=16).digest() == self._digest.digest()
        )
        self._length, self._digest = len(whole), blake2b(whole, digest_size=16)
        if not is_extension:
            self.versions += 1
            return [text_block(CORRECTED), *blocks] if whole else [text_block(CLEARED)]
        added, at = [], 0
        for block, piece in zip(blocks, pieces, strict=True):
            if at >= before:
                added.append(block)
            elif at + len(piece) > before:
                # Only blocks of plain text can end within another.
                added.append(text_block(piece[before - at :].decode(errors="surrogatepass")))
            at += len(piece)
        return added


def _essence(block: bytes) -> bytes:
    """Return the bytes of a block that equal content shares, however its text is cut into blocks."""
    parts = members(block)
    words = text(parts.get("text"))
    if words is not None and len(parts) == 2 and text(parts.get("type")) == "text":
        return words.encode(errors="surrogatepass")
    return b"\xff%b\xff" % block


class Tool:
    """A tool call, with its whole content, as version 1 can replace content only as a whole."""

    def __init__(self) -> None:
        self.title: str | None = None
        self.items: list[bytes] = []
        """Its content, in version 2."""
        self.is_cancelled = False
        self.has_content = False
        """True if its content in version 1 is not that of the last update that was sent."""
        self.is_renamed = False
        """True if a permission request has changed what is shown of it."""
        self._is_cut = False
        self._items_size = 0
        self._sent = 0
        self._added = 0

    @property
    def size(self) -> int:
        """Bytes that it counts as."""
        return len(self.title or "") + self._items_size

    def replace(self, items: list[bytes]) -> None:
        """Replace the content."""
        self.items, self._items_size, self._is_cut = [], 0, False
        for item in items:
            self.append(item)
        self.has_content = True

    def append(self, item: bytes) -> None:
        """Add an item; the oldest go beyond `CONTENT_SIZE`."""
        self.items.append(item)
        self._items_size += len(item)
        self._added += len(item)
        self.has_content = True
        while self._items_size > CONTENT_SIZE and len(self.items) > 1:
            self._items_size -= len(self.items.pop(0))
            self._is_cut = True

    def terminal_grew(self, count: int) -> None:
        """Tell that a terminal which it refers to has other text, with so many new bytes."""
        self._added += count
        self.has_content = True

    def terminals(self) -> list[str]:
        """Return the ids of the terminals that it refers to."""
        found = (members(item) for item in self.items if b'"terminal' in item)
        return [
            name for item in found if text(item.get("type")) == "terminal" and (name := text(item.get("terminalId")))
        ]

    def may_repeat(self, memory: Memory) -> bool:
        """Return True if all content may be sent again for what was added."""
        shown = (memory.get(Terminal, name) for name in self.terminals())
        cost = self._items_size + sum(len(terminal.text) for terminal in shown if terminal is not None)
        return self._sent + cost <= FREE_REPEATS + REPEATS * self._added

    def content(self, memory: Memory) -> bytes:
        """Return the content in version 1, which is sent now."""
        found = [_text_item(ITEMS_LEFT_OUT)] if self._is_cut else []
        for item in self.items:
            found += _old_item(item, memory)
        if self.is_cancelled:
            found.append(_text_item(CANCELLED))
        self.has_content = False
        whole = array(found)
        self._sent += len(whole)
        return whole


def _text_item(words: str) -> bytes:
    return b'{"type":"content","content":%b}' % text_block(words)


def _old_item(item: bytes, memory: Memory) -> list[bytes]:
    parts = members(item)
    match text(parts.get("type")):
        case "content":
            block = parts.get("content", b"{}")
            shown = old_block(block)
            return [item if shown is block else _compose({**parts, "content": shown})]
        case "diff":
            return old_diff(parts)
        case "terminal":
            terminal = memory.get(Terminal, text(parts.get("terminalId")) or "")
            words = "" if terminal is None else terminal.shown()
            return [_text_item(words)] if words else []
        case kind:
            return [_text_item(f"[content of the type {kind or 'unknown'}, which this version cannot show]")]


class ShownPlan:
    """A plan."""

    def __init__(self, entries: list[bytes], words: str, *, is_done: bool) -> None:
        self.entries = entries
        """Its entries in version 1."""
        self.words = words
        """Its name beside another one."""
        self.is_done = is_done

    @property
    def size(self) -> int:
        """Bytes that it counts as."""
        return sum(map(len, self.entries)) + len(self.words)
