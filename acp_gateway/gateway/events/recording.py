"""Recordings of the messages between clients and the gateway, for support, with secrets redacted.

A recorder is asked for a tape when a connection begins, and the tape is told each message of it. There are two kinds:
files, one for each connection, which `acp-gateway replay` can play, and the log, for `serve --log-bodies`. Neither may
get in the way of the connection: what can't be written down is missing, with a line in the log.

A file is one of lines of JSON. The first says what it is, each further one what was said: `t`, in seconds since the
first, `from`, `client` or `agent`, and `message`. What is said between client and gateway about their link is not in
it. What is not JSON is recorded as `text`.
"""

import logging
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from acp_gateway import __version__
from acp_gateway.config.options import GatewaySection
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.methods import RESERVED_PREFIX
from acp_gateway.protocol.redaction import MAX_SIZE, describe, redact, redact_json
from acp_gateway.protocol.secret_patterns import redact_text
from acp_gateway.protocol.text.lookup import method_of

Direction = Literal["from_client", "to_client"]

FORMAT_MEMBER: Final = "acp-gateway-recording"
"""The member of the first line that says which version of the format it is."""

VERSION: Final = 1

BURST: Final = 0.5
"""Seconds that it may take at once: a history of some thousand messages is recorded as a whole."""

LINK_SIZE: Final = 64 * 1024
"""Bytes of a message about a link at most: positions of some sessions."""

MAX_BODY_LENGTH: Final = 4096
"""Bytes of one message that are logged: what a person still reads."""

MAX_TEXT_LENGTH: Final = 4096
"""Characters that are recorded of a text that is not a message."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecordingLimits:
    """Limits of what recording may cost those who work."""

    message_size: int = MAX_SIZE
    """Bytes of a message that is looked through; its recording has up to four times as many: characters become
    escapes there."""
    share: float = 0.25
    """Part of the event loop's time that recording may take in the long run."""


_DEFAULTS: Final = RecordingLimits()


class Tape(Protocol):
    """The recording of one connection. Its methods do not raise."""

    def write(self, direction: Direction, messages: Sequence[bytes]) -> None:
        """Write down messages that passed at this moment, in their order."""

    def close(self) -> None:
        """The connection has ended. May be repeated."""


class Recording(Protocol):
    """Opens the recordings of connections."""

    def open(self, connection: str, about: Mapping[str, Any]) -> Tape:
        """Begin the tape of a connection; `about` has further details, such as the agent.

        Never raises: if the tape can't be written, it discards its messages.
        """


def recording_of(section: GatewaySection, *, log_bodies: bool) -> Recording | None:
    """Return the recorder that configuration and command line ask for, or None. A recorder is warned of in the log."""
    recordings: list[Recording] = []
    limits = RecordingLimits(section.record_message_size, section.record_share)
    if section.record_dir is not None:
        _log.warning("messages are recorded in %s: what people and agents say will be there", section.record_dir)
        recordings.append(Recorder(section.record_dir, section.record_limit, limits))
    if log_bodies:
        _log.warning(
            "bodies are logged: what people and agents say will be in this log, secrets redacted as far as known"
        )
        recordings.append(LogRecorder(limits))
    return Recorders(recordings) if recordings else None


class Recorder:
    """Records into files of a directory, one for each connection.

    Args:
        directory: made where there is none.
        limit: bytes of all recordings in it together, those of before included; then nothing more is recorded.
        limits: of single messages.
        now: says the time, in seconds since 1970.
        clock: says how much time passes, in seconds.
    """

    def __init__(
        self,
        directory: Path,
        limit: int,
        limits: RecordingLimits = _DEFAULTS,
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._now = now
        self._clock = clock
        self.limits = limits
        self.share = Share(limits.share)
        # Bytes that may still be written; below zero once something did not fit.
        self._left = limit
        # True once the log has the reason why a recording is incomplete.
        self._warned = False
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            # What a link leads to is somewhere else, or nowhere.
            self._left -= sum(path.lstat().st_size for path in directory.glob("*.jsonl"))
        except OSError as error:
            self.log_failure(error)

    def open(self, connection: str, about: Mapping[str, Any]) -> Tape:
        """As `Recording.open`. The file's name begins with the time, so that names sort as they came."""
        moment = datetime.fromtimestamp(self._now(), UTC)
        started = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        name = f"{moment:%Y%m%dT%H%M%S}.{moment.microsecond // 1000:03}Z-{re.sub('[^A-Za-z0-9_-]', '_', connection)}"
        path = self._directory / f"{name[:128]}.jsonl"
        header = {FORMAT_MEMBER: VERSION, "version": __version__, "connection": connection, "started": started, **about}
        tape = _FileTape(self, self._clock)
        try:
            tape.begin(path, redact(jsonrpc.encode(header), MAX_BODY_LENGTH))
        except OSError as error:
            self.log_failure(error)
        return tape

    def take(self, size: int) -> bool:
        """Reserve bytes of the limit; return False if there are not as many left."""
        if self._left < size:
            if self._left >= 0:
                _log.warning("record_limit is reached: nothing more is recorded in %s", self._directory)
            self._left = -1
            return False
        self._left -= size
        return True

    def log_failure(self, error: OSError) -> None:
        """Log the first failure: the recording is incomplete from then on."""
        if not self._warned:
            _log.warning("can't record in %s: %s", self._directory, error.strerror or error)
        self._warned = True


class _FileTape:
    def __init__(self, recorder: Recorder, clock: Callable[[], float]) -> None:
        self._recorder = recorder
        self._clock = clock
        self._started = clock()
        # -1 where nothing is written, or nothing any more.
        self._file = -1

    def begin(self, path: Path, header: bytes) -> None:
        """Make the file, if there is room for it. Raises `OSError`."""
        if self._recorder.take(len(header) + 1):
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            self._put(header + b"\n")

    def write(self, direction: Direction, messages: Sequence[bytes]) -> None:
        if self._file < 0:
            return
        start = b'{"t":%.6f,"from":"%b",' % (
            self._clock() - self._started,
            b"client" if direction == "from_client" else b"agent",
        )
        look = partial(_content, largest=self._recorder.limits.message_size)
        contents = [self._recorder.share.inspect(message, look, _omitted) for message in messages]
        lines = b"".join([b"%b%b}\n" % (start, content) for content in contents if content])
        if self._recorder.take(len(lines)):
            self._put(lines)
        else:
            self.close()

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _put(self, lines: bytes) -> None:
        try:
            if os.write(self._file, lines) < len(lines):
                raise OSError("the disk is full")
        except OSError as error:
            # Behind the beginning of a line nothing could be read.
            self._recorder.log_failure(error)
            self.close()


def _omitted(message: bytes) -> bytes:
    """Return the member of a line for a message that was not recorded because recording took too much time."""
    return _text(f"{len(message)} bytes, not looked through: recording took more than record_share of the time")


def _content(message: bytes, largest: int) -> bytes:
    """Return the member of a line with the message; empty for a message about the link."""
    if _is_about_link(message):
        return b""
    redacted = redact_json(message, 4 * largest, largest)
    if redacted is not None:
        return b'"message":%b' % redacted
    # A message that was cut or misspelled has its secrets in places that can't be found.
    is_broken = len(message) > largest or message.lstrip()[:1] in (b"{", b"[")
    text = describe(message, largest) if is_broken else redact_text(message.decode(errors="replace"), MAX_TEXT_LENGTH)
    return _text(text)


def _text(text: str) -> bytes:
    return b'"text":%b' % jsonrpc.encode(text).replace(b"\x7f", b"\\u007f")


def _is_about_link(message: bytes) -> bool:
    """Check whether a message is one of the gateway's own, which never reach an agent."""
    if len(message) > LINK_SIZE or (b"acp-gateway" not in message and b"\\u" not in message):
        return False
    try:
        return method_of(message).startswith(RESERVED_PREFIX)
    except ValueError:
        return False


class Share:
    """The part of the time that looking through messages may take, as a leaky bucket of seconds.

    Args:
        share: the part.
        clock: says how much time passes, in seconds.
    """

    def __init__(self, share: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self._share = share
        self._clock = clock
        # When what was taken so far is made up for.
        self._even_at = -math.inf

    def inspect(self, message: bytes, transform: Callable[[bytes], bytes], omit: Callable[[bytes], bytes]) -> bytes:
        """Return `transform` of a message, or `omit` of it if too much time was used already."""
        began = self._clock()
        if self._even_at - began > BURST / self._share:
            return omit(message)
        looked = transform(message)
        self._even_at = max(self._even_at, began) + (self._clock() - began) / self._share
        return looked


class LogRecorder:
    """Records into the log, one line for each message."""

    def __init__(self, limits: RecordingLimits = _DEFAULTS) -> None:
        self._look = partial(_body, largest=limits.message_size)
        self._share = Share(limits.share)

    def open(self, connection: str, about: Mapping[str, Any]) -> Tape:
        """As `Recording.open`; what it is about is in the log already."""
        return _LogTape(connection, self._look, self._share)


class _LogTape:
    def __init__(self, connection: str, look: Callable[[bytes], bytes], share: Share) -> None:
        self._connection = connection
        self._look = look
        self._share = share

    def write(self, direction: Direction, messages: Sequence[bytes]) -> None:
        arrow = "<-" if direction == "from_client" else "->"
        for message in messages:
            body = self._share.inspect(message, self._look, _omitted_body)
            if body:
                _log.info("%s: %s %s", self._connection, arrow, body.decode())

    def close(self) -> None:
        """Nothing is open."""


def _body(message: bytes, largest: int) -> bytes:
    return b"" if _is_about_link(message) else redact(message, MAX_BODY_LENGTH, largest)


def _omitted_body(message: bytes) -> bytes:
    return b"%d bytes, not looked through: logging bodies took more than record_share of the time" % len(message)


class Recorders:
    """Records in several ways at once."""

    def __init__(self, recordings: Sequence[Recording]) -> None:
        self._recordings = recordings

    def open(self, connection: str, about: Mapping[str, Any]) -> Tape:
        """As `Recording.open`."""
        return _Tapes([recording.open(connection, about) for recording in self._recordings])


class _Tapes:
    def __init__(self, tapes: Sequence[Tape]) -> None:
        self._tapes = tapes

    def write(self, direction: Direction, messages: Sequence[bytes]) -> None:
        for tape in self._tapes:
            tape.write(direction, messages)

    def close(self) -> None:
        for tape in self._tapes:
            tape.close()
