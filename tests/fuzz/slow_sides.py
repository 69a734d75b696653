"""Readers of messages in the search for slow ones, step by step: the loop does nothing else during one step."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from acp_gateway.client.recovery import RecoveryState
from acp_gateway.config.options import GatewaySection
from acp_gateway.core.agent_requests import AgentRequest
from acp_gateway.core.requests import DirectoryCheckResult
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import DirectoryCheck, Role
from acp_gateway.dialects.chat import requests as chat
from acp_gateway.dialects.chat.output import ChatOutput
from acp_gateway.dialects.editor import requests as editor
from acp_gateway.dialects.editor.output import Completion, TurnLines
from acp_gateway.dialects.tap.files import FileFinder
from acp_gateway.dialects.tap.service import TapSection
from acp_gateway.gateway.events.recording import recording_of
from acp_gateway.gateway.session_api import output as api_output
from acp_gateway.gateway.session_api import requests as api
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.event_streams import EventStreams
from acp_gateway.protocol.link_messages import read_control
from acp_gateway.protocol.methods import REQUEST_PERMISSION, Audience, Capability
from acp_gateway.protocol.path_maps import PathMaps
from acp_gateway.protocol.text.large_messages import LARGE, Outline, Parsed, check_large, parse_large
from acp_gateway.protocol.text.pairs import texts_of
from acp_gateway.server import hello
from tests.fuzz import slow_http
from tests.fuzz.slow_plans import Plan
from tests.kit.scene import Peer, Scene, Shelf, checks_of, encode, make_policy

Step = Callable[[], object]

MAPS = PathMaps([("/home/a", "/srv/a"), *((f"/home/b/{number}", f"/srv/b/{number}") for number in range(19))])
HISTORY = 16 * 2**20


def steps(plan: Plan) -> Iterator[Step]:
    """Yield the calls to measure: taking a message in, and answering it."""
    text = plan.text()
    if len(text) > LARGE and plan.reader in ("browser", "events", "recording", "tap"):
        # They get what was checked.
        checked: list[Outline] = []
        yield from _checked(text.replace(b'"id":#', b'"id":1'), checked)
        for outline in checked:
            yield from _read(plan.reader, plan.who, outline.text)
    else:
        yield from _read(plan.reader, plan.who, text)


def _checked(text: bytes, checked: list[Outline]) -> Iterator[Step]:
    """Yield the pieces of the check of a large message; put its outline into the list unless it is refused."""
    checking = check_large(text)
    is_over = False

    def check_piece() -> None:
        nonlocal is_over
        try:
            next(checking)
        except StopIteration as outline:
            is_over = True
            checked.append(outline.value)
        except jsonrpc.InvalidMessage:
            is_over = True

    while not is_over:
        yield check_piece


def _received(text: bytes, receive: Callable[[bytes | Parsed], object]) -> Iterator[Step]:
    """Yield the steps in which a hub checks, parses and handles a message."""
    if len(text) <= LARGE:
        yield partial(receive, text)
        return
    checked: list[Outline] = []
    yield from _checked(text, checked)

    def handle(outline: Outline) -> None:
        try:
            receive(parse_large(outline))
        except jsonrpc.InvalidMessage:
            pass

    for outline in checked:
        yield partial(handle, outline)


def _from_agent(scene: Scene, text: bytes) -> Iterator[Step]:
    def receive(message: bytes | Parsed) -> None:
        if isinstance(message, Parsed):
            scene.multiplexer.receive_parsed(message.message)
        else:
            scene.multiplexer.receive_from_agent([message])

    return _received(text, receive)


def _read(reader: str, who: str, text: bytes) -> Iterator[Step]:
    match reader:
        case "core":
            yield from _core(who, text)
        case "shim":
            yield from _shim(who, text.replace(b'"id":#', b'"id":1'))
        case "history":
            yield from _history(text.replace(b'"id":#', b'"id":1'))
        case "link":
            yield partial(read_control, text)
        case "recording":
            yield from _recording(text.replace(b'"id":#', b'"id":1'))
        case "events":
            yield from _events(text.replace(b'"id":#', b'"id":1'))
        case "browser":
            yield partial(_try, partial(_browser, text), api.Refused)
            yield partial(_try, partial(_widget, text), chat.Invalid)
            yield partial(_try, partial(editor.read, text, editor.SendMessage), editor.BadBody)
            yield partial(_try, partial(editor.read_respond, text), editor.BadBody)
        case "hello":
            yield partial(_try, partial(hello.read_hello, text), hello.BadHello)
        case "tap":
            yield from _tap(text.replace(b'"id":#', b'"id":1'))
        case "http":
            yield partial(slow_http.take_request, text)
        case "post":
            yield from (
                partial(slow_http.hold_post, post) for post in slow_http.posts(text.replace(b'"id":#', b'"id":1'))
            )
        case "login":
            yield partial(slow_http.take_login, text)


def _try(step: Step, refusal: type[Exception] | tuple[type[Exception], ...]) -> None:
    try:
        step()
    except refusal:
        pass


def _events(text: bytes) -> Iterator[Step]:
    streams = EventStreams("e", len(text))
    stream = streams.open(None, None, streams)
    yield lambda: streams.put(text)
    yield lambda: streams.take(stream, 1)


def _shim(who: str, text: bytes) -> Iterator[Step]:
    conversation = RecoveryState()
    conversation.from_editor([b'{"id":1,"method":"session/new","params":{}}'])
    if who in ("client", "observer", "guest", "newcomer"):
        yield lambda: conversation.from_editor([MAPS.to_remote(text)])
    else:
        yield lambda: conversation.from_gateway([MAPS.to_local(text)])
    yield lambda: conversation.begin_recovery("c", [], "it is lost")


def _core(who: str, text: bytes) -> Iterator[Step]:
    scene, peer = _scene(who)
    if who == "agent":
        yield from _from_agent(scene, text)
    elif who.startswith("answer "):
        raw_id = _ask(scene, peer, who.removeprefix("answer "))
        yield from _from_agent(scene, text.replace(b'"id":#', b'"id":%b' % raw_id))
    else:
        yield from _received(text, partial(scene.multiplexer.receive_from_client, peer.client))
        # A session that is to be opened: its directories have been looked at.
        for directory_check in checks_of(scene.multiplexer.take_output()):
            yield partial(scene.multiplexer.directories_checked, directory_check, DirectoryCheckResult())


def _history(text: bytes) -> Iterator[Step]:
    """A message of the agent that stands in a history, and those who come for it: a late joiner, one that comes back,
    one that forks the session, and one after a restart."""
    shelf = Shelf(HISTORY)
    able = {"loadSession": True, "sessionCapabilities": {"fork": {}, "resume": {}}}
    policy = make_policy(outbox_limit=2**30, journal_limit=HISTORY)
    scene = Scene(policy, Registry("me", shelf), agentCapabilities=able)
    ann = scene.join("ann", link="first")
    ann.new_session()
    yield from _from_agent(scene, text)
    _take(scene)
    yield from _asked(scene, scene.join("bob", link="second"), "session/load")
    session = scene.session()
    meta = {"acp-gateway": {"epoch": session.journal.epoch, "position": 0, "connection": "first", "prompts": [1]}}
    yield from _asked(scene, scene.join("cat", link="third"), "session/resume", _meta=meta)
    replay = texts_of(session.journal.replay())
    yield partial(api_output.entries, "s", replay, 1, [None] * len(replay))
    yield partial(ChatOutput(lambda: 0).updates, "s", replay, 1, [None] * len(replay))
    lines, completion = TurnLines("s"), Completion("s")
    for message in replay:
        yield partial(lines.update, message)
        yield partial(completion.update, message)
    yield from _asked(scene, ann, "session/fork")
    asked = jsonrpc.parse(scene.agent.heard_text()[-1])
    yield partial(scene.multiplexer.receive_from_agent, [b'{"id":%b,"result":{"sessionId":"f"}}' % asked.id])
    stored = shelf.read(session)
    assert stored is not None
    yield from (stored.states, stored.replay, stored.states_set_aside, stored.runs, partial(stored.shrink, 100))


def _asked(scene: Scene, peer: Peer, method: str, **params: Any) -> Iterator[Step]:
    params |= {"sessionId": "s", "cwd": "/srv", "mcpServers": []}
    yield partial(scene.multiplexer.receive_from_client, peer.client, encode(id=77, method=method, params=params))
    for check in _take(scene):
        yield partial(scene.multiplexer.directories_checked, check, DirectoryCheckResult())
    _take(scene)


def _take(scene: Scene) -> list[DirectoryCheck]:
    """Give the agent what it is sent, and clients nothing; return what is to be checked."""
    output = scene.multiplexer.take_output()
    scene.agent.inbox += output.to_agent
    return checks_of(output)


ASKED: Final = AgentRequest(
    jsonrpc.parse(b'{"id":1,"method":"session/request_permission","params":{"options":[{"optionId":"yes"}]}}'),
    Audience.CONTROLLERS,
    None,
    0,
)
"""A request that answers are read for."""


def _widget(text: bytes) -> None:
    """Read an event of a widget, and compose what is sent for it."""
    call = chat.read(text)
    if call.type == chat.RESPOND:
        ASKED.reply(call.result)
    elif call.type in (chat.SEND, chat.SET_MODE):
        chat.acp_request(call, call.session or "")


def _browser(text: bytes) -> None:
    """Read a call, and compose what is sent for it."""
    call = api.read(text)
    if isinstance(call, api.Answer):
        ASKED.reply(call.result, call.error)
    elif call.method in (api.PROMPT, api.SET_CONFIG_OPTION):
        api.acp_request(call, call.session or "")


def _tap(text: bytes) -> Iterator[Step]:
    """Find files in what an agent sends, and in prompts."""
    finder = FileFinder("/srv", TapSection().ignore)
    yield partial(finder.read, text)
    try:
        message = jsonrpc.parse(text)
    except jsonrpc.InvalidMessage:
        return
    yield partial(finder.in_request, message)
    if message.method == REQUEST_PERMISSION:
        yield partial(finder.refusable, message)


def _recording(text: bytes) -> Iterator[Step]:
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        recording = recording_of(GatewaySection(record_dir=Path(directory)), log_bodies=True)
        assert recording is not None
        tape = recording.open("c", {})
        stack.callback(tape.close)
        yield lambda: tape.write("from_client", [text])


def _scene(who: str) -> tuple[Scene, Peer]:
    """Return a core, and a client in a session with an open permission."""
    shared = who != "answer initialize"
    policy = make_policy(shared=shared, serves=frozenset(Capability), mcp_servers="drop", outbox_limit=2**30)
    able = {"loadSession": True, "sessionCapabilities": {"list": {}, "resume": {}, "close": {}}}
    scene = Scene(policy, agentCapabilities=able)
    ann = scene.join("ann") if who != "newcomer" and shared else scene.join("ann", initialize=False)
    if who == "newcomer" or not shared:
        return scene, ann
    ann.new_session()
    scene.agent.ask_permission("q")
    ann.heard()
    if who == "observer":
        return scene, scene.join("bob", role=Role.OBSERVER)
    if who == "guest":
        bob = scene.join("bob", "bob", only="s", guest=True)
        bob.load()
        return scene, bob
    return scene, ann


def _ask(scene: Scene, peer: Peer, method: str) -> bytes:
    if method == "initialize":
        peer.send(id=1, method=method, params={"protocolVersion": 1})
    else:
        peer.request(method, sessionId="s" if method != "session/new" else None, cwd="/srv", mcpServers=[])
    heard = scene.agent.heard_text()
    return jsonrpc.parse(heard[-1]).id if heard else b"0"
