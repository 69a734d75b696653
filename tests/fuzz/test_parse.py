"""Any text: what the fast reading of messages says, and all that looks into one, is what a slow parser says."""

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from acp_gateway.core.turns import updates
from acp_gateway.dialects.chat import requests as chat
from acp_gateway.dialects.chat.output import EVENTS, ChatOutput
from acp_gateway.gateway.session_api import output as api_output
from acp_gateway.gateway.session_api import requests as api
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import PARSE_ERROR, InvalidMessage, Kind, Message, RawId
from acp_gateway.protocol.link_messages import read_control
from acp_gateway.protocol.methods import AGENT_CHUNK, SESSION_UPDATE, STATE_UPDATES, SUBAGENT_UPDATE
from acp_gateway.protocol.text import json_text, lookup, spans, strict_parsing
from acp_gateway.protocol.text.spans import MalformedJson
from tests.fuzz import reference, texts
from tests.fuzz.effort import effort
from tests.fuzz.reference import MISSING, Envelope, Number, Object

PATHS = (
    *((), ("id",), ("method",), ("params",), ("params", "sessionId"), ("params", "update"), ("error",), ("",)),
    *(("params", "update", "sessionUpdate"), ("params", "requestId"), ("result",), ("result", "id"), ("\ud83d",)),
)
"""Member paths that lead somewhere in many of the texts."""

EXACT = 15
"""Digits of a number that a float keeps."""

KINDS = tuple(b'"%b"' % kind.encode() for kind in (AGENT_CHUNK, SUBAGENT_UPDATE, *sorted(STATE_UPDATES)))

said_in_sessions = st.builds(
    b'{"jsonrpc":"2.0","method":"session/update",%b"params":{"sessionId":%b,"update":{"sessionUpdate":%b,"text":%b}}}'.__mod__,
    st.tuples(
        st.sampled_from((b"", b"", b"", b'"id":1,', b'"result":1,', b'"params":{},')),
        st.sampled_from(texts.STRINGS) | texts.scalars,
        st.sampled_from(KINDS) | texts.scalars,
        texts.scalars | st.sampled_from((b'"\xff"', b'"\xc3\xa9"', b"{}")),
    ),
)
"""Updates of agents, nearly."""

numbers = st.from_regex(rb"-?(0|[1-9][0-9]{0,16})(\.[0-9]{1,4})?([eE][+-]?[0-9]{1,2})?", fullmatch=True)


def read(text: bytes) -> Message | InvalidMessage:
    """Return the result of `parse`."""
    try:
        return jsonrpc.parse(text)
    except InvalidMessage as error:
        return error


def verdict(text: bytes) -> Envelope | int:
    """The same, as the slow parser puts it."""
    message = read(text)
    if isinstance(message, InvalidMessage):
        assert str(message).isprintable()
        return message.code
    assert message.text is text
    return Envelope(message.kind, message.id, message.method, message.error, message.session, message.update)


@effort(150)
@given(texts.nearly_messages)
@example(rb'{"id":1,"method":"a","x":["\ud83d",{"\ud83d":1e999}]}')
@example(b'{"id":1,"method":"x"}\x0b')
def test_a_text_is_a_message_if_a_slow_parser_says_so(text: bytes) -> None:
    assert verdict(text) == reference.envelope(text)


@effort(150)
@given(texts.messages, st.sampled_from(texts.IDS), st.sampled_from(PATHS))
@example(b'{"id":1,"PARAMS":{"a":1,"a":2},"x":2}', b"1", ())
@example('{"params":{"a":1,"b":2},"param\u017f":1}'.encode(), b"1", ())
@example(rb'{"id":1,"x":"\ud83d","X":2}', b"1", ())
@example(b'{ "id":1,"method":"x","params":{"a":1,"A":1}}', b"1", ())
@example(rb'{"id":1,"\ud83d":1,"id":"\ud83d","method":"\ud83d"}', b"2", ("\ud83d",))
@example(b'{"method":"x","params":{"sessionId":"a"},"params":[]}', b"1", ("params", "sessionId"))
@example(rb'{"method":"x","params":{"update":{"sessionUpdate":"\ud83d"},"update":{}}}', b"1", ("params", "update"))
def test_what_is_read_in_a_message_is_what_a_slow_parser_reads(text: bytes, new: bytes, path: tuple[str, ...]) -> None:
    envelope = reference.envelope(text)
    assert verdict(text) == envelope
    assert strict_parsing.repeated_member(text) == reference.repeated_member(text)
    if isinstance(envelope, Envelope):
        assert strict_parsing.parse_strictly(text)[1] == reference.repeated_member(text)
    every_path_leads_to_the_same(text, path)
    the_parts_are_at_the_same_places(text)
    if isinstance(envelope, Envelope):
        under_another_id_it_is_otherwise_the_same(text, RawId(new))
        the_editors_side_reads_the_same(text, envelope)


@effort(150)
@given(texts.nearly_messages | said_in_sessions)
@example(b'{"method":"session/update","params":{"sessionId":"s","update":{}}}')
@example(b'{"method":"session/update","params":{"sessionId":"s"},"result":1}')
def test_passthrough_updates_are_those_that_a_slow_parser_finds(text: bytes) -> None:
    envelope = reference.envelope(text)
    session = None
    if isinstance(envelope, Envelope) and (envelope.kind, envelope.method) == (Kind.NOTIFICATION, SESSION_UPDATE):
        session = None if envelope.update in (*STATE_UPDATES, SUBAGENT_UPDATE) else envelope.session
    # A closer look may find it as well: members of wrong types, lone surrogates.
    assert updates.session_of_passthrough(text) in (None, session)
    assert updates.sessions_of_all([text] * 2) in (None, [updates.session_of_passthrough(text)] * 2)


def every_path_leads_to_the_same(text: bytes, path: tuple[str, ...]) -> None:
    span = reference.find(text, *path)
    raw = None if span is None else text[slice(*span)]
    value = MISSING if raw is None else reference.read(raw)
    string = value if isinstance(value, str) else None
    assert spans.find(text, *path) == span
    assert json_text.raw_at(text, *path) == raw
    assert json_text.text_at(text, *path) == string
    if path:
        assert lookup.raw_at(text, *path) == raw
        assert lookup.text_at(text, *path) == string
    places = reference.members(text, span[0]) if span is not None and isinstance(value, Object) else []
    members = {place.name: text[place.start : place.end] for place in places}
    assert lookup.members_at(text, *path) == members
    assert reference.read(jsonrpc.compose(members)) == (list(dict(value).items()) if members else [])


def the_parts_are_at_the_same_places(text: bytes) -> None:
    assert spans.value_end(spans.structure(text), 0) == len(text)
    places = reference.members(text)
    assert [(spans.string_value(name), start, end) for name, start, end in spans.members(text)] == places
    for place in places:
        value = text[place.start : place.end]
        if value.startswith(b"["):
            assert list(spans.elements(value)) == reference.elements(value)
            assert lookup.elements_of(value) == [value[start:end] for start, end in reference.elements(value)]


def under_another_id_it_is_otherwise_the_same(text: bytes, new: RawId) -> None:
    span = reference.find(text, "id")
    if span is None:
        return
    message = jsonrpc.parse(text)
    other = jsonrpc.with_id(message, new)
    assert other == text[: span[0]] + new + text[span[1] :]
    if strict_parsing.repeated_member(text) is None:
        assert jsonrpc.with_id(message, new, unique=True) == other
    again = jsonrpc.parse(other)
    assert (again.id, again.kind, again.method, again.session) == (new, message.kind, message.method, message.session)


def the_editors_side_reads_the_same(text: bytes, envelope: Envelope) -> None:
    # Of a member that is repeated the gateway takes none, from an editor.
    if reference.repeated_member(text) is None:
        method = None if envelope.kind is Kind.RESPONSE else envelope.method
        raw_id = None if envelope.kind is Kind.NOTIFICATION else envelope.raw_id
        found = json_text.read_envelope(text)
        assert found is not None
        assert found[:2] == (raw_id, method)
        assert found.failed is envelope.error or method is not None


@effort(8)
@given(texts.messages, st.sampled_from((b"[", b'{"a":', rb'["\ud83d",')), st.integers(0, 400))
def test_what_is_nested_too_deeply_is_not_a_message(text: bytes, bracket: bytes, at: int) -> None:
    closing = b"}" if bracket.startswith(b"{") else b"]"
    deep = bracket * texts.DEEP + b"1" + closing * texts.DEEP
    assert verdict(deep) == PARSE_ERROR
    within = text[: at % len(text)] + deep + text[at % len(text) :]
    assert verdict(within) == reference.envelope(within)


@effort(40)
@given(texts.messages, st.integers(texts.SHALLOW, 5000))
def test_however_deep_a_message_is_it_is_taken_or_refused(text: bytes, levels: int) -> None:
    deep = text[:-1] + (b"," if len(text) > 2 else b"") + b'"x":' + b"[" * levels + b"]" * levels + b"}"
    found = verdict(deep)
    assert found in (reference.envelope(text), PARSE_ERROR)
    if found != PARSE_ERROR:
        assert spans.find(deep, "x") is not None
        assert lookup.raw_at(deep, "x", "y") is None
        assert strict_parsing.repeated_member(deep) == reference.repeated_member(text[:-1] + b"}")


@effort(150)
@given(st.sampled_from(texts.IDS), st.sampled_from(texts.IDS))
def test_two_ids_are_the_same_if_a_slow_parser_says_so(one: bytes, other: bytes) -> None:
    same = reference.id_key(one) == reference.id_key(other)
    assert (jsonrpc.id_key(RawId(one)) == jsonrpc.id_key(RawId(other))) is same


@effort(150)
@given(st.sampled_from(texts.IDS) | numbers)
def test_the_whole_number_that_an_id_is_is_exact_where_it_could_be_one_of_ours(raw: bytes) -> None:
    number = jsonrpc.id_number(RawId(raw))
    value = reference.read(raw)
    if not isinstance(value, Number):
        assert number is None
        return
    exact = Decimal(value.text)
    if len(exact.as_tuple().digits) <= EXACT and abs(exact) < 10**EXACT:
        assert number == (int(exact) if exact == exact.to_integral_value() else None)


LOOKING: tuple[Callable[[bytes], Any], ...] = (
    spans.repeated_member,
    lambda text: list(spans.members(text)),
    lambda text: list(spans.elements(text)),
    lambda text: spans.find(text, "params", "sessionId"),
    lambda text: spans.value_end(text, 0),
    spans.string_value,
    lambda text: json_text.with_member(text, "id", b"1"),
)
"""Functions that read an unchecked text."""

FORGIVING: tuple[Callable[[bytes], Any], ...] = (
    json_text.read_envelope,
    lambda text: json_text.raw_at(text, "params", "sessionId"),
    lambda text: json_text.text_at(text, "params", "sessionId"),
    lambda text: json_text.object_at(text, "params"),
    lambda text: json_text.elements_at(text, "params"),
    lambda text: json_text.ids_in([text]),
    json_text.whole_number,
    read_control,
)
"""Functions that read an unchecked text and never raise."""


@effort(150)
@given(texts.nearly_messages)
@example(b'{"method":"_acp-gateway/ack","params":{"received":' + b"1" * 5000 + b"}}")
def test_of_a_broken_text_nothing_is_said_but_that_it_is_broken(text: bytes) -> None:
    for look in FORGIVING:
        look(text)
    for look in LOOKING:
        try:
            look(text)
        except MalformedJson:
            pass


@given(texts.nearly_messages)
def test_a_text_of_a_browser_is_a_call_an_answer_or_refused(text: bytes) -> None:
    try:
        found: api.Call | api.Answer | None = api.read(text)
        code = None
    except api.Refused as refused:
        found, code = None, refused.reply and json.loads(refused.reply)["error"]["code"]
    assert found is not None or code in (None, -32700, -32600, -32601, -32602)


@given(said_in_sessions)
def test_an_update_is_told_to_a_browser_as_it_is(text: bytes) -> None:
    try:
        jsonrpc.parse(text)
    except InvalidMessage:
        return
    (entry,) = api_output.entries("s", [text], 1, [None])
    assert lookup.raw_at(entry, "payload") == (lookup.raw_at(text, "params", "update") or b"{}")
    jsonrpc.parse(api_output.updated("s", [entry]))


@given(texts.nearly_messages)
@example(b'{"type":"send_message","sessionId":"s","content":"\\ud83d","params":{"a":1,"a":2}}')
def test_a_text_of_a_widget_is_an_event_or_invalid(text: bytes) -> None:
    try:
        found: chat.ChatCall | chat.Invalid = chat.read(text)
    except chat.Invalid as invalid:
        found = invalid
    if isinstance(found, chat.Invalid):
        assert found.code in (-32700, -32600, -32601, -32602)
        assert len(str(found)) < 300


@given(said_in_sessions)
def test_an_update_is_told_to_a_widget_by_events_of_its_session(text: bytes) -> None:
    try:
        jsonrpc.parse(text)
    except InvalidMessage:
        return
    events = ChatOutput(lambda: 0).updates("s", [text], 1, [None])
    assert events
    for event in events:
        assert lookup.text_at(event, "type") in EVENTS
        assert lookup.text_at(event, "sessionId") == "s"
