"""Finds out which version an agent speaks, and translates where that is not the one of the core, version 1.

An agent is asked for version 1. One that refuses, or answers with another version, is asked again for version 2, once.
"""

from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import InvalidMessage, Kind, Message, RawId, id_key
from acp_gateway.versions import plain_updates
from acp_gateway.versions.carried import Carried, Passing, Same, carry
from acp_gateway.versions.new_agent import NewAgent
from acp_gateway.versions.parts import Untranslatable
from acp_gateway.versions.plain_updates import Chunk, ThoughtChunk, ToolUpdate, Update
from acp_gateway.versions.translator import Output, result_of

_OLD = b"1"


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

    def to_agent(self, text: bytes) -> Output:
        """Translate a message of the core."""
        if self._translator is not None:
            return self._translator.from_client(text)
        if not self._is_asked:
            message = _parse(text)
            if message is not None and message.kind is Kind.REQUEST and message.method == methods.INITIALIZE:
                self._initialize, self._is_asked = (message.id, text), True
        return Output(to_agent=[text])

    def from_agent(self, *texts: bytes) -> Output:
        """Translate messages of the agent."""
        out = Output()
        for text in texts:
            if self._initialize is not None and (response := self._response(text)) is not None:
                out.extend(self._answered(response))
                continue
            translator = self._translator
            if translator is None:
                out.to_client.append(text)
                continue
            plain: bytes | None = None
            read = plain_updates.read(text)
            if read is not None:
                session_id, update = read
                if type(update) is Chunk or type(update) is ThoughtChunk:
                    takes = translator.take_chunk(session_id, update)
                    plain = None if not takes else Passing(text) if jsonrpc.is_shallow(text) else Same(text)
                else:
                    plain = _plain(translator, session_id, update, text)
            if plain is None:
                out.extend(self._translated(text, translator))
            else:
                out.to_client.append(plain)
        return out

    def _response(self, text: bytes) -> Message | None:
        """Return the response to `initialize`; None for another message."""
        assert self._initialize is not None
        message = _parse(text)
        if message is None or message.kind is not Kind.RESPONSE or id_key(message.id) != id_key(self._initialize[0]):
            return None
        return message

    def _answered(self, response: Message) -> Output:
        assert self._initialize is not None
        _, initialize = self._initialize
        version = None if response.error else _version(response)
        if self._refusal is not None:
            self._initialize, refusal, self._refusal = None, self._refusal, None
            if response.error:
                # Its first refusal was not about the version.
                self._translator, self.is_settled = None, True
                return Output(to_client=[refusal])
            return self._introduced(response)
        if version == _OLD or (version is None and not response.error):
            self._initialize, self.is_settled = None, True
            return Output(to_client=[response.text])
        self._translator = NewAgent()
        asked = self._translator.from_client(initialize)
        if response.error:
            self._refusal = response.text
            return Output(to_agent=asked.to_agent)
        # It has taken the request for version 1, and speaks another one.
        self._initialize = None
        return self._introduced(response)

    def _introduced(self, response: Message) -> Output:
        """Translate the response to `initialize`; that it carries the original says that later messages do."""
        assert self._translator is not None
        out = self._translator.from_agent(response.text)
        out.to_client = [Carried(text, response.text) for text in out.to_client]
        return out

    def _translated(self, text: bytes, translator: NewAgent) -> Output:
        """Translate a message of an agent of version 2, which goes with it for clients of that version."""
        out = translator.from_agent_in_full(text)
        if out.source is None:
            out.to_client = [text, *_unreadable(text, translator)]
        elif not (len(out.to_client) == 1 and out.to_client[0] is text):
            out.to_client = carry(out.source, out.to_client, translator.accepts)
            translator.accepts = None
        return out


def _plain(translator: NewAgent, session_id: str, update: Update, text: bytes) -> bytes | None:
    """Return what a plain update becomes that is not text; None if the slower way has to translate it."""
    plain = translator.plain(session_id, update, text)
    if plain is not text:
        return None if plain is None else Carried(plain, text)
    # The audit has the ends of tool calls, and states are read.
    passes = type(update) is ToolUpdate and not update.is_ended and jsonrpc.is_shallow(text)
    return Passing(text) if passes else Same(text)


def _unreadable(text: bytes, translator: NewAgent) -> list[bytes]:
    """Return what follows a line that the core logs: it answers a request whose id the line has, which is over then."""
    raw_id = jsonrpc.read_unreadable_id(text)
    if raw_id is None:
        return []
    failure = jsonrpc.error(raw_id, jsonrpc.INTERNAL_ERROR, "")
    _, *released = carry(jsonrpc.parse(failure), translator.from_agent_in_full(failure).to_client)
    return released


def _version(response: Message) -> bytes | None:
    try:
        return result_of(response).get("protocolVersion")
    except Untranslatable:
        return None  # The core judges it.


def _parse(text: bytes) -> Message | None:
    try:
        return jsonrpc.parse(text)
    except InvalidMessage:
        return None
