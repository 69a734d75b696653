"""Text of a display terminal: bytes decoded across chunks, the last ones kept, escape sequences as they are."""

import binascii
import codecs
from typing import Final

from acp_gateway.protocol import jsonrpc
from acp_gateway.versions.parts import members, number, text
from acp_gateway.versions.state import TERMINAL_SIZE

LEFT_OUT: Final = "[earlier output is left out]\n"

_decoder: Final = codecs.getincrementaldecoder("utf-8")


class Terminal:
    """A terminal of an agent of version 2, as a tool call of version 1 shows it."""

    def __init__(self) -> None:
        self.command = ""
        self.tools: dict[str, None] = {}
        """Ids of the tool calls that refer to it."""
        self.text = ""
        self.added = ""
        """The text that was appended last."""
        self.exit_status: bytes | None = None
        """The status with which it has ended; None until then."""
        self._ended = ""
        self._is_cut = False
        self._decode = _decoder("replace")

    @property
    def size(self) -> int:
        """Bytes that it counts as."""
        told = len(self.command) + 2 * len(self._ended)
        return 4 * len(self.text) + told + sum(map(len, self.tools))

    @property
    def is_over(self) -> bool:
        """True when it has ended."""
        return self.exit_status is not None

    def append(self, data: bytes | None) -> int:
        """Append bytes in base64; return how many there were."""
        output = decode_base64(text(data) or "")
        self.added = self._decode.decode(output)
        whole = self.text + self.added
        self._is_cut = self._is_cut or len(whole) > TERMINAL_SIZE
        self.text = whole[-TERMINAL_SIZE:]
        return len(output)

    def replace(self, data: bytes | None) -> int:
        """Replace all output by bytes in base64; return how many there were."""
        self._decode.reset()
        self.text, self._is_cut = "", False
        return self.append(data)

    def end(self, status: bytes) -> None:
        """Read how it has ended."""
        parts = members(status)
        code, signal = number(parts.get("exitCode")), text(parts.get("signal"))
        known = {name: parts[name] for name, value in (("exitCode", code), ("signal", signal)) if value is not None}
        self.exit_status = jsonrpc.compose(known)
        if signal:
            self._ended = f"[signal {signal}]"
        else:
            self._ended = f"[exit code {parts['exitCode'].decode()}]" if code else ""

    def shown(self) -> str:
        """Return its output, with a line before it if that has lost its beginning."""
        return (LEFT_OUT if self._is_cut else "") + self.text

    def end_shown(self) -> str:
        """Return a line that says how it has ended; nothing if that was well."""
        return self._ended


def decode_base64(data: str) -> bytes:
    """Decode base64, as far as it is that; what is cut off within four characters is lost."""
    raw = data.encode("ascii", "ignore")
    try:
        return binascii.a2b_base64(raw)
    except binascii.Error:
        plain = bytes(char for char in raw if char not in b"=\r\n")
        try:
            return binascii.a2b_base64(plain[: len(plain) // 4 * 4])
        except binascii.Error:
            return b""
