"""Updates in which an agent tells a session's history again: while it opens the session, or soon afterwards.

The journal has what was said and done. Agents replay less of it, in other pieces, or after their response, so what they
tell again is found by its prompts, in their order; an agent may leave some out. What follows a prompt is compared with
its turn: texts without white space, tool calls by their ids, anything else as it is.

Where the journal has lost its beginning, agents tell that too. So all that an agent tells counts as known then, up to
the last turn of the journal.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Final, NamedTuple

from acp_gateway.acp.updates import Passed, SessionUpdate, text_of
from acp_gateway.core.turns.journal import Journal
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.methods import AGENT_CHUNK, CHUNKS, STATE_UPDATES, TOOL_CALL, TOOL_CALL_UPDATE, USER_CHUNK
from acp_gateway.protocol.text.pairs import size_of
from acp_gateway.versions.carried import ORIGINAL

_USER: Final = USER_CHUNK.encode()

_CALLS: Final = frozenset({TOOL_CALL, TOOL_CALL_UPDATE})

_OWN_TEXT: Final = "[acp-gateway:"
"""Begin of the lines that the gateway has put into a conversation, which no agent tells."""

_BEGINNING: Final = 200
"""Characters of a prompt by which it is found again."""

_AHEAD: Final = 16
"""Prompts that are looked at together: without a text an agent may leave some out."""

_POINTER_SIZE: Final = 8

_Key = tuple[str | None, str | None]
"""The session and the kind of updates that are compared with each other."""


class Prompt(NamedTuple):
    """A prompt in a history."""

    place: int
    """Number of messages before it."""
    words: str
    """The beginning of its first text, without white space; empty if it has none."""

    def agrees(self, words: str | None) -> bool:
        """Return True if a chunk of these words may be its beginning."""
        if not words or not self.words:
            return False
        return self.words.startswith(words) or words.startswith(self.words)


class Retelling:
    """Compares what an agent tells with the history of a session, from its start.

    Args:
        session_id: the agent's name of the session; sub-agents have others.
        journal: the history; it is read at the first comparison.
    """

    def __init__(self, session_id: str, journal: Journal) -> None:
        self._session_id = session_id
        self._journal = journal
        # The messages, read at the first comparison, the position before them, and whether earlier ones are missing.
        self._said: Sequence[bytes] | None = None
        self._start = 0
        self._is_cut = False
        # The prompts that were not told again, the next ones of them, and the last before these.
        self._prompts: Iterator[Prompt] = iter(())
        self._next: deque[Prompt] = deque()
        self._last: Prompt | None = None
        # The turn of that, and what was told of it.
        self._turn = _Part((), range(0))
        self._told: dict[_Key, _Texts | _Others] = {}
        # True if the agent has told something else there.
        self._differs = False
        # True once a prompt was told, and once the journal does not have there what was told.
        self._has_begun = self._has_ended = False
        # True within a prompt, and if that was told again.
        self._within_prompt = self._is_known = False
        # The texts of the last prompt that was told again, and the id that the agent gives its prompt.
        self._words = _Texts(iter(()))
        self._message_id: bytes | None = None

    @property
    def size(self) -> int:
        """Bytes that it keeps beside the journal."""
        said = self._said or []
        cut = said[: max(self._journal.start - self._start, 0)]
        told = [*self._told.values(), self._words]
        return size_of(cut) + _POINTER_SIZE * len(said) + self._turn.size + sum(it.size for it in told)

    @property
    def goes_on(self) -> bool:
        """True if the agent may tell further prompts of the journal."""
        return self._has_begun and not self._has_ended and self._has_left

    def goes_beyond(self, update: Message) -> bool:
        """Return True if an update begins the first prompt after those of the journal: the session went on elsewhere.

        False for all updates of a history that has other prompts than the journal.
        """
        if not self._is_of_prompt(update):
            if self._is_cut and self._has_begun:
                self._follows(update)
            return False
        could_follow = self._has_left or self._has_ended
        return not self._repeats_prompt(update) and not could_follow

    def repeats(self, update: Message) -> bool:
        """Return True if an update, which holds no state, tells again what the journal has."""
        if self._is_of_prompt(update):
            return self._repeats_prompt(update)
        return self._follows(update) or (self._is_cut and self.goes_on)

    @property
    def _has_left(self) -> bool:
        """True if prompts of the journal were not told; those that it has lost count as one."""
        return bool(self._next) or (self._is_cut and (self._last is None or self._is_doubtful))

    @property
    def _is_doubtful(self) -> bool:
        """True if a prompt that the journal has lost may have been taken for the last one: its answer was not told.

        Nothing tells them apart where the last one has no answer, and what the agent says may be new then.
        """
        if not (self._is_cut and self._differs):
            return False
        key = (self._session_id, AGENT_CHUNK)
        answer = self._told.get(key)
        return not answer.is_over if isinstance(answer, _Texts) else self._turn.has(key)

    def _is_of_prompt(self, update: Message) -> bool:
        """Return True if an update is a part of a prompt."""
        if self._said is None:
            self._read_journal()
        own = update.session == self._session_id
        if own and update.update == USER_CHUNK:
            self._has_begun = True
            return True
        if own and update.update not in STATE_UPDATES:
            self._within_prompt = False
        return False

    def _read_journal(self) -> None:
        journal = self._journal
        self._said = journal.messages(journal.start, journal.position)
        self._start, self._is_cut = journal.start, journal.truncated
        self._prompts = prompts(self._session_id, journal)
        self._begin_turn(None)

    def _repeats_prompt(self, chunk: Message) -> bool:
        """Return True if a chunk is one of a prompt that was told again, or begins the next one."""
        words, message_id = _beginning(chunk), bytes(SessionUpdate.of(chunk.text).update.message_id) or None
        # One without an answer is followed by the next at once.
        if None not in (message_id, self._message_id) and message_id != self._message_id:
            self._within_prompt = False
        self._message_id = message_id
        if not self._within_prompt and words is None and self._next and self._next[0].words:
            return True  # Its text is to come.
        if self._within_prompt and (self._words.follow(chunk) or not any(words == it.words for it in self._next)):
            return self._is_known
        had_left, self._within_prompt = self._has_left, True
        if self._last is not None and self._is_doubtful:
            self._next.appendleft(self._last)
            self._last = None
        found = self._find(words)
        if found is not None:
            self._begin_turn(found)
            self._words.follow(chunk)
        self._is_known = found is not None or (self._is_cut and had_left)
        self._has_ended = self._has_ended or not self._is_known
        return self._is_known and not self._has_ended

    def _find(self, words: str | None) -> Prompt | None:
        """Take the prompt that begins with these words, or the next without text; return None if there is none."""
        following = [*self._next]
        with_text = [prompt for prompt in following if prompt.words]
        same = [prompt for prompt in with_text if prompt.words == words and not self._is_cut]
        near = [prompt for prompt in with_text[:1] if prompt.agrees(words)]
        # An agent may tell a picture as text.
        pictures = [prompt for prompt in following[:1] if not prompt.words]
        for found in [*same, *near, *pictures]:
            while self._next.popleft() is not found:
                pass
            return found
        if self._is_cut:
            return None
        rest = chain(following, self._prompts)
        self._next.clear()
        return next((prompt for prompt in rest if prompt.agrees(words)), None)

    def _begin_turn(self, prompt: Prompt | None) -> None:
        """Compare with what follows a prompt, up to the next that has a text: an agent may leave the others out.

        It may join a prompt without an answer with the next one. Without a prompt, it is what precedes the first: an
        agent that begins with anything else says that now.
        """
        said = self._said or []
        self._next += islice(self._prompts, _AHEAD - len(self._next))
        begin, answer = 0, -1
        if prompt is not None:
            begin = prompt.place + 1
            near = range(begin, self._next[-1].place if self._next else begin)
            answer = next((index for index in near if _USER not in said[index]), near.stop)
            words = range(prompt.place, min([answer, *(following.place for following in self._next)]))
            self._words = _Texts(_Part(said, words).updates((self._session_id, USER_CHUNK)))
        ends = (following.place for following in self._next if following.words and following.place > answer)
        self._last, self._turn, self._told = prompt, _Part(said, range(begin, next(ends, len(said)))), {}
        self._differs = False

    def _follows(self, update: Message) -> bool:
        """Return True if an update tells what follows in the turn."""
        if update.update == ORIGINAL:
            return self._has_begun
        key = _key(update)
        if key not in self._told and self._turn.has(key):
            updates = self._turn.updates(key)
            self._told[key] = _Texts(updates) if update.update in CHUNKS else _Others(updates)
        if key in self._told and self._told[key].follow(update):
            return True
        self._differs = True
        return False


def prompts(session_id: str, journal: Journal) -> Iterator[Prompt]:
    """Yield the prompts that a journal holds."""
    ends, within, without_text = iter(journal.turn_ends()), False, None
    end = next(ends, None)
    for position, text in enumerate(journal.messages(journal.start, journal.position), journal.start):
        if position == end:
            end, within = next(ends, None), False
        if not within and _USER not in text:
            continue
        chunk = jsonrpc.parse(text)
        if chunk.update == USER_CHUNK and chunk.session == session_id:
            if not within:
                if without_text is not None:
                    yield without_text
                without_text = Prompt(position - journal.start, "")
            if without_text is not None and (words := _beginning(chunk)) is not None:
                yield without_text._replace(words=words)
                without_text = None
            within = True
        else:
            within = within and chunk.update in STATE_UPDATES
    if without_text is not None:
        yield without_text


class _Part:
    """A part of a history, whose updates are read once, for whichever key they are asked for.

    Args:
        said: the messages of the history.
        places: those that are in the part.
    """

    def __init__(self, said: Sequence[bytes], places: range) -> None:
        self._said = said
        self._rest = iter(places)
        # Indexes of the messages that were read, but not asked for yet.
        self._read: dict[_Key, deque[int]] = {}

    @property
    def size(self) -> int:
        """Bytes that it keeps, about."""
        return _POINTER_SIZE * sum(map(len, self._read.values()))

    def has(self, key: _Key) -> bool:
        """Return True if there is an update of this key that was not taken."""
        while not self._read.get(key):
            index = next(self._rest, None)
            if index is None:
                return False
            self._read.setdefault(_key(jsonrpc.parse(self._said[index])), deque()).append(index)
        return True

    def updates(self, key: _Key) -> Iterator[Message]:
        """Take the updates of a key, in order."""
        while self.has(key):
            yield jsonrpc.parse(self._said[self._read[key].popleft()])


class _Texts:
    """The texts of some chunks, one after the other."""

    def __init__(self, chunks: Iterator[Message]) -> None:
        texts = (_text(chunk) or "" for chunk in chunks)
        self._coming = (text for text in texts if text and not text.startswith(_OWN_TEXT))
        # The text that was read last, and the number of its characters that were told again: a chunk may be large, and
        # is told again in small ones.
        self._read = ""
        self._told = 0
        self._is_over = False

    @property
    def size(self) -> int:
        """Bytes that it keeps, about."""
        return len(self._read)

    @property
    def is_over(self) -> bool:
        """True if all of them were told."""
        if self._told and self._told == len(self._read):
            self._read, self._told = next(self._coming, ""), 0
            self._is_over = not self._read
        return self._is_over

    def follow(self, update: Message) -> bool:
        """Go on by a text; return False if another one follows. A chunk without text is not compared."""
        text = _text(update)
        if text is None:
            return True
        parts: list[str] = []
        size = len(self._read) - self._told
        while size < len(text) and (part := next(self._coming, None)) is not None:
            parts.append(part)
            size += len(part)
        if parts:
            self._read, self._told = "".join((self._read[self._told :], *parts)), 0
        if not self._read.startswith(text, self._told):
            return False
        self._told += len(text)
        return True


class _Others:
    """Tool calls, or updates of another kind, in any order."""

    def __init__(self, updates: Iterator[Message]) -> None:
        self._coming = map(_essence, updates)
        self._read: set[int] = set()

    @property
    def size(self) -> int:
        """Bytes that it keeps, about."""
        return _POINTER_SIZE * len(self._read)

    def follow(self, update: Message) -> bool:
        """Return True if an update is one of them."""
        essence = _essence(update)
        while essence not in self._read:
            following = next(self._coming, None)
            if following is None:
                return False
            self._read.add(following)
        return True


def _key(update: Message) -> _Key:
    return update.session, TOOL_CALL if update.update in _CALLS else update.update


def _essence(update: Message) -> int:
    """Return a hash of the id of a tool call, or of another update."""
    call = SessionUpdate.of(update.text).update.tool_call_id if update.update in _CALLS else None
    return hash(call) if call is not None else hash(bytes(Passed.of(update.text).update))


def _beginning(chunk: Message) -> str | None:
    """Return the beginning of a prompt's text, without white space; None if it has another content, or no text."""
    return _text(chunk, _BEGINNING)


def _text(chunk: Message, most: int | None = None) -> str | None:
    """Return the text of a chunk, or its first characters, without white space; None as above."""
    text = text_of(chunk.text)
    if text is None:
        return None
    if most is not None:
        text = text.lstrip()[:most]
    return "".join(text.split()) or None
