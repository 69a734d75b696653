"""Finds out which version an agent speaks, and translates where that is not the one of the core, version 1.

An agent is asked for version 1. One that refuses, or answers with another version, is asked again for version 2, once.
"""

from dataclasses import dataclass, field

from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import Kind, Message, RawId, id_key
from acp_gateway.protocol.text.pairs import Entry, Pair
from acp_gateway.versions import plain_updates
from acp_gateway.versions.carried import paired, pairs_of
from acp_gateway.versions.new_agent import NewAgent
from acp_gateway.versions.parts import Untranslatable
from acp_gateway.versions.plain_updates import Chunk, ThoughtChunk, ToolUpdate, Update
from acp_gateway.versions.translator import Output, parsed, result_of

_OLD = b"1"


@dataclass(slots=True)
class EdgeOutput:
    """The messages that messages of the core or the agent become, in order."""

    to_client: list[Entry] = field(default_factory=list)
    """For the core, which is before the clients."""
    to_agent: list[bytes] = field(default_factory=list)


class AgentEdge:
    """The edge between the core and one agent process. It never raises."""

    def __init__(self) -> None:
        self._is_asked = False
        self.is_settled = False
        """True once the agent has answered in version 1: then nothing is translated."""
        self._translator: NewAgent | None = None
        self._initialize: tuple[RawId, bytes] | None = None
        """The id and the text of the core's `initialize`, while that is open."""
        self._refusal: bytes | None = None
        """The agent's answer to the request for version 1, while it is asked again."""

    @property
    def translates(self) -> bool:
        """True if the agent speaks version 2."""
        return self._translator is not None and self._refusal is None

    @property
    def size(self) -> int:
        """Bytes that its translator remembers."""
        return 0 if self._translator is None else self._translator.size

    def shrink(self) -> None:
        """Forget half of what its translator remembers."""
        if self._translator is not None:
            self._translator.shrink()

    def to_agent(self, text: bytes) -> EdgeOutput:
        """Translate a message of the core."""
        if self._translator is not None:
            return _output(self._translator.from_client(text))
        if not self._is_asked:
            message = parsed(text)
            if message is not None and message.kind is Kind.REQUEST and message.method == methods.INITIALIZE:
                self._initialize, self._is_asked = (message.id, text), True
        return EdgeOutput(to_agent=[text])

    def from_agent(self, *texts: bytes) -> EdgeOutput:
        """Translate messages of the agent."""
        out = EdgeOutput()
        for text in texts:
            if self._initialize is not None and (response := self._response(text)) is not None:
                self._answered(response, out)
                continue
            translator = self._translator
            if translator is None:
                out.to_client.append(text)
                continue
            plain: Pair | None = None
            read = plain_updates.read(text)
            if read is not None:
                session_id, update = read
                if type(update) is Chunk or type(update) is ThoughtChunk:
                    if translator.take_chunk(session_id, update):
                        plain = _same(text, session_id)
                else:
                    plain = _plain(translator, session_id, update, text)
            if plain is None:
                self._translate(text, translator, out)
            else:
                out.to_client.append(plain)
        return out

    def _response(self, text: bytes) -> Message | None:
        """Return the response to `initialize`; None for another message."""
        assert self._initialize is not None
        message = parsed(text)
        if message is None or message.kind is not Kind.RESPONSE or id_key(message.id) != id_key(self._initialize[0]):
            return None
        return message

    def _answered(self, response: Message, out: EdgeOutput) -> None:
        assert self._initialize is not None
        _, initialize = self._initialize
        version = None if response.error else _version(response)
        if self._refusal is not None:
            self._initialize, refusal, self._refusal = None, self._refusal, None
            if response.error:
                # Its first refusal was not about the version.
                self._translator, self.is_settled = None, True
                out.to_client.append(refusal)
            else:
                self._introduce(response, out)
            return
        if version == _OLD or (version is None and not response.error):
            self._initialize, self.is_settled = None, True
            out.to_client.append(response.text)
            return
        self._translator = NewAgent()
        asked = self._translator.from_client(initialize)
        if response.error:
            self._refusal = response.text
            out.to_agent += asked.to_agent
            return
        # It has taken the request for version 1, and speaks another one.
        self._initialize = None
        self._introduce(response, out)

    def _introduce(self, response: Message, out: EdgeOutput) -> None:
        """Translate the response to `initialize`; that it is a pair says that later messages are."""
        assert self._translator is not None
        made = self._translator.from_agent(response.text)
        out.to_client += [paired(text, response.text) for text in made.to_client]
        out.to_agent += made.to_agent

    def _translate(self, text: bytes, translator: NewAgent, out: EdgeOutput) -> None:
        """Translate a message of an agent of version 2, which goes with it for clients of that version."""
        made = translator.from_agent_in_full(text)
        out.to_agent += made.to_agent
        if made.source is None:
            out.to_client += [text, *_unreadable(text, translator)]
        elif len(made.to_client) == 1 and made.to_client[0] is text:
            out.to_client.append(text)
        else:
            out.to_client += pairs_of(made.source, made.to_client, translator.accepts)
            translator.accepts = None


def _output(made: Output) -> EdgeOutput:
    return EdgeOutput([*made.to_client], made.to_agent)


def _same(text: bytes, passes_in: str | None) -> Pair:
    """Return an update that is the same in both versions; one that is nested deeply passes through nothing."""
    return Pair(text, text, passes_in=passes_in if jsonrpc.is_shallow(text) else None)


def _plain(translator: NewAgent, session_id: str, update: Update, text: bytes) -> Pair | None:
    """Return what a plain update becomes that is not text; None if the slower way has to translate it."""
    plain = translator.plain(session_id, update, text)
    if plain is not text:
        return None if plain is None else paired(plain, text)
    # The audit has the ends of tool calls, and states are read.
    passes = type(update) is ToolUpdate and not update.is_ended
    return _same(text, session_id if passes else None)


def _unreadable(text: bytes, translator: NewAgent) -> list[Entry]:
    """Return what follows a line that the core logs: it answers a request whose id the line has, which is over then."""
    raw_id = jsonrpc.read_unreadable_id(text)
    if raw_id is None:
        return []
    failure = jsonrpc.error(raw_id, jsonrpc.INTERNAL_ERROR, "")
    _, *released = pairs_of(jsonrpc.parse(failure), translator.from_agent_in_full(failure).to_client)
    return released


def _version(response: Message) -> bytes | None:
    try:
        return result_of(response).get("protocolVersion")
    except Untranslatable:
        return None  # The core judges it.
