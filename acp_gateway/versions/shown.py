"""Messages, tool calls and plans as a client of version 1 has been shown them, of an agent of version 2."""

from collections import deque
from hashlib import blake2b
from typing import Final, NamedTuple

from acp_gateway.protocol import jsonrpc
from acp_gateway.versions.diffs import old_diff
from acp_gateway.versions.parts import NULL, array, members, text, text_block, text_item
from acp_gateway.versions.state import CONTENT_SIZE, FREE_REPEATS, REPEATS, Memory
from acp_gateway.versions.terminals import Terminal
from acp_gateway.versions.values import old_block

_compose: Final = jsonrpc.compose
_encode: Final = jsonrpc.encode

CORRECTED: Final = "[acp-gateway: the agent has replaced this message by the following.]\n"
CLEARED: Final = "[acp-gateway: the agent has withdrawn this message.]"
CANCELLED: Final = "[acp-gateway: this tool call was cancelled.]"
ITEMS_LEFT_OUT: Final = "[acp-gateway: earlier content of this tool call is left out.]"


_UNREAD: Final = 1024
"""Characters of plain text that wait at most until they are added to the digest of a message."""

_PIECE: Final = 50
"""Characters that a piece of such text counts in addition: the room of an object."""


class ShownMessage:
    """A message, as far as it was shown: only its length and its digest are remembered."""

    def __init__(self) -> None:
        self.versions = 0
        """Number of times that it was shown again, as it was replaced."""
        self._length = 0
        self._digest = blake2b(digest_size=16)
        self._unread: list[str] = []
        self._unread_size = 0

    @property
    def size(self) -> int:
        """Bytes that it counts as."""
        return 400 + _UNREAD

    def id(self, message_id: str) -> str:
        """Return its id in version 1, which is another one after each replacement."""
        return f"{message_id}#{self.versions + 1}" if self.versions else message_id

    def append(self, block: bytes) -> None:
        """Add a block that is shown."""
        self._read()
        self._append(_essence(block))

    def append_text(self, words: str) -> None:
        """Add a block of plain text that is shown."""
        self._unread.append(words)
        self._unread_size += len(words) + _PIECE
        if self._unread_size > _UNREAD:
            self._read()

    def _read(self) -> None:
        """Add the text that waits to the digest."""
        if self._unread:
            words, self._unread, self._unread_size = self._unread, [], 0
            self._append("".join(words).encode(errors="surrogatepass"))

    def _append(self, piece: bytes) -> None:
        self._length += len(piece)
        self._digest.update(piece)

    def replace(self, blocks: list[bytes]) -> list[bytes]:
        """Replace the content; return the blocks to show: what was added, or all after a line that says so."""
        self._read()
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


class _Item(NamedTuple):
    """An item of a tool call's content in version 1: texts of items, or the terminal whose text it is."""

    texts: list[bytes]
    terminal: str | None = None

    @property
    def size(self) -> int:
        return sum(map(len, self.texts)) + len(self.terminal or "")


class Tool:
    """A tool call, with its whole content, as version 1 can replace content only as a whole."""

    def __init__(self) -> None:
        self.title: str | None = None
        self.is_cancelled = False
        self.has_content = False
        """True if its content in version 1 is not that of the last update that was sent."""
        self.is_renamed = False
        """True if a permission request has changed what is shown of it."""
        self.followed: set[str] = set()
        """Terminals whose output the client has up to now, so that it can be told what is added."""
        self._items: deque[_Item] = deque()
        self._terminals: dict[str, int] = {}
        """Number of items that show each terminal."""
        self._items_size = 0
        self._is_cut = False
        # Bytes of the content when it was last sent, and those added since; then of all contents, and of all additions.
        self._last = self._added = self._all_sent = self._all_added = 0

    @property
    def size(self) -> int:
        """Bytes that it counts as."""
        return len(self.title or "") + self._items_size

    def replace(self, items: list[bytes]) -> list[str]:
        """Replace the content; return the terminals that it refers to."""
        self._clear()
        return [name for item in items if (name := self.append(item)) is not None]

    def show(self, items: list[bytes]) -> None:
        """Replace the content by items of version 1 that are sent now, not more than `CONTENT_SIZE`."""
        self._clear()
        self._items += [_Item([item]) for item in items]
        self._items_size = sum(map(len, items))
        self.grew(self._items_size)
        self._sent(self._items_size)

    def _clear(self) -> None:
        self._items.clear()
        self._terminals.clear()
        self.followed.clear()
        self._items_size, self._is_cut, self.has_content = 0, False, True

    def append(self, item: bytes) -> str | None:
        """Add an item in version 2, and return the terminal that it refers to; the oldest go beyond `CONTENT_SIZE`."""
        read = _read_item(item)
        self._items.append(read)
        self._items_size += read.size
        self.grew(read.size)
        if read.terminal is not None:
            self._terminals[read.terminal] = self._terminals.get(read.terminal, 0) + 1
        while self._items_size > CONTENT_SIZE and len(self._items) > 1:
            oldest = self._items.popleft()
            self._items_size -= oldest.size
            if oldest.terminal is not None:
                self._terminals[oldest.terminal] -= 1
            self._is_cut = True
        return read.terminal

    def grew(self, count: int) -> None:
        """Tell that its content has so many bytes more."""
        self._added += count
        self._all_added += count
        self.has_content = True

    def refers_to(self, name: str) -> bool:
        """Return True if its content has a terminal."""
        return self._terminals.get(name, 0) > 0

    @property
    def may_repeat(self) -> bool:
        """True if all content may be sent again for what was added."""
        return self._all_sent + self._last + self._added <= FREE_REPEATS + REPEATS * self._all_added

    def content(self, memory: Memory) -> bytes:
        """Return the content in version 1, which is sent now."""
        found = [text_item(ITEMS_LEFT_OUT)] if self._is_cut else []
        for item in self._items:
            terminal = None if item.terminal is None else memory.get(Terminal, item.terminal)
            found += item.texts if terminal is None else _terminal_items(item.terminal or "", terminal)
        if self.is_cancelled:
            found.append(text_item(CANCELLED))
        whole = array(found)
        self.followed = {name for name, count in self._terminals.items() if count > 0}
        self._sent(len(whole))
        return whole

    def _sent(self, size: int) -> None:
        self._last, self._added, self.has_content = size, 0, False
        self._all_sent += size


def _terminal_items(name: str, terminal: Terminal) -> list[bytes]:
    """Return the texts of a terminal: its output, and how it has ended if that was not well."""
    about = {"terminalId": _encode(name)}
    if terminal.exit_status is not None:
        about["exitStatus"] = terminal.exit_status
    found, words = [], terminal.shown()
    if words:
        found.append(text_item(words, terminal=_compose(about)))
    if terminal.end_shown():
        found.append(text_item(terminal.end_shown(), terminalEnd=_compose(about)))
    return found


def _read_item(item: bytes) -> _Item:
    """Read an item of version 2."""
    parts = members(item)
    match text(parts.get("type")):
        case "content":
            block = parts.get("content", NULL)
            shown = old_block(block)
            return _Item([item if shown is block else _compose({**parts, "content": shown})])
        case "diff":
            return _Item(old_diff(parts))
        case "terminal":
            return _Item([], text(parts.get("terminalId")) or "")
        case kind:
            return _Item([text_item(f"[content of the type {kind or 'unknown'}, which this version cannot show]")])


class ShownPlan:
    """A plan."""

    def __init__(self, entries: bytes, count: int, words: str, *, is_done: bool) -> None:
        self.entries = entries
        """The array of its entries in version 1."""
        self.count = count
        """Number of its entries."""
        self.words = words
        """Its name beside another one."""
        self.is_done = is_done

    @property
    def size(self) -> int:
        """Bytes that it counts as."""
        return len(self.entries) + len(self.words)
