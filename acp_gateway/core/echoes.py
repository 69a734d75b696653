"""The echo of a prompt: what some agents say again before they begin to answer.

The gateway itself tells the other clients of a session what one of them has said, as no agent had to. An agent that
tells it as well would have everybody but the sender see it twice, and every late joiner. So an echo goes to the sender
of the prompt alone, who would get it without a gateway too.

An echo is what the agent says as the user, in the turn of the prompt and before anything else in it, if it has the
text of the prompt: in one chunk, in one for each block or in pieces. White space doesn't count, as agents put blocks
together with line breaks of their own. Blocks that are no text may be left out, or come in any order. Whether it is one
shows with the last of the text. Until then it is withheld from the others, who are told it after all if it is none.
"""

from typing import TYPE_CHECKING, Final

from acp_gateway.protocol import jsonrpc

if TYPE_CHECKING:
    from acp_gateway.core.sessions import Request

MOST_WITHHELD: Final = 1024 * 1024
"""Bytes of an unfinished echo that are withheld: a prompt of a page that comes back letter by letter. What is longer
comes in larger pieces."""

_Essence = tuple[str | None, ...]


class Echo:
    """The echo that an agent may give of one prompt.

    Args:
        request: the prompt.
        chunks: the updates by which the other clients were told of it.
    """

    __slots__ = ("_at", "_blocks", "_chunks", "_size", "_text", "request", "withheld")

    def __init__(self, request: "Request", chunks: list[bytes]) -> None:
        self.request = request
        self.withheld: list[bytes] = []
        """What is an echo so far, and is none if it ends here."""
        self._chunks = chunks
        # Bytes of what is withheld.
        self._size = 0
        # Known as soon as there is something to compare: the text, up to where it has come, and what is no text.
        self._text: bytes | None = None
        self._at = 0
        self._blocks: list[_Essence] = []

    @property
    def over(self) -> bool:
        """Whether nothing is missing any more."""
        return self._text is not None and self._at == len(self._text) and not self._blocks

    def take(self, chunk: bytes) -> bool:
        """Look at a `user_message_chunk` of the agent; returns whether it goes on with the echo."""
        if self._text is None:
            self._text = self._read()
        essence = _essence(chunk)
        if essence[0] == "text":
            if not self._goes_on(_plain(essence[1] or "")):
                return False
        elif essence in self._blocks:
            self._blocks.remove(essence)
        else:
            return False
        if self._at == len(self._text) and (self._text or not self._blocks):
            self.withheld.clear()
            return True
        self._size += len(chunk)
        if self._size > MOST_WITHHELD:
            return False
        self.withheld.append(chunk)
        return True

    def _read(self) -> bytes:
        essences = list(map(_essence, self._chunks))
        self._chunks = []
        self._blocks = [essence for essence in essences if essence[0] != "text"]
        return b"".join(_plain(essence[1] or "") for essence in essences if essence[0] == "text")

    def _goes_on(self, text: bytes) -> bool:
        assert self._text is not None
        if self._at == len(self._text) or not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True


def _essence(chunk: bytes) -> _Essence:
    """What two blocks of content have in common that are the same, whatever members an agent adds or leaves out."""
    content = jsonrpc.raw_at(chunk, "params", "update", "content")
    if content is None:
        return (None,)
    kind = jsonrpc.text_at(content, "type")
    match kind:
        case "text":
            return kind, jsonrpc.text_at(content, "text")
        case "image" | "audio":
            return kind, jsonrpc.text_at(content, "data")
        case "resource_link":
            return kind, jsonrpc.text_at(content, "uri")
        case "resource":
            return kind, *(jsonrpc.text_at(content, "resource", name) for name in ("uri", "text", "blob"))
    return kind, content.decode(errors="surrogateescape")


def _plain(text: str) -> bytes:
    """A text without white space, in units that an agent in JavaScript may part: a piece can end within a character."""
    return "".join(text.split()).encode("utf-16-le", "surrogatepass")
