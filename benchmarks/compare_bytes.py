"""Compares the bytes of one conversation with those at another commit: `make bench-bytes BASE=COMMIT`.

The other commit is checked out into a temporary folder, and its program runs with the libraries of this environment.
The same agent and the same clients talk over each transport and at each door, with a fresh gateway for each. Whatever
a client or the agent receives is recorded. Ids that are random, times, ports and the version are replaced by words
before the comparison; nothing else is. The exit status is 1 if a route differs.
"""

import argparse
import difflib
import http.client
import json
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from benchmarks.bases import NoBase, checked_out
from benchmarks.processes import RelayFailed
from benchmarks.talking_clients import (
    Failed,
    Gateway,
    Http,
    Peer,
    React,
    over_http,
    over_lines,
    over_shim,
    over_websocket,
    running,
)

ROOT: Final = Path(__file__).parents[1]
ASK: Final = "session/request_permission"
CWD: Final = "/tmp"  # noqa: S108 - the agent only repeats it.

MUST_DIFFER: Final = (
    (rb"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", b"<time>"),
    (rb'("(?:timestamp|timestamp_ms|created)": ?)\d{9,}', rb"\1<time>"),
    (rb"\b(?=[0-9]*[a-f])[0-9a-f]{16,64}\b", b"<id>"),
    (rb'("(?:connectionId|epoch)": ?)"[^"]+"', rb'\1"<id>"'),
    (rb'("heat": ?)[0-9.e-]+', rb"\1<heat>"),
    (rb'("version": ?)"\d+\.\d+[^"]*"', rb'\1"<version>"'),
)
"""Patterns of what differs between two runs of one commit, and what stands for it."""


def answers(peer: Peer) -> React:
    """Return a function that answers the agent's requests as an editor does."""
    results = {
        ASK: '"result":{"outcome":{"optionId":"yes","outcome":"selected"}, "_meta":{"n":1.1e0}}',
        "fs/read_text_file": '"result":{"content":"a\\u0041\\ud83d"}',
    }

    def react(value: Any) -> None:
        if "id" in value and "method" in value:
            answer = results.get(value["method"], '"error":{"code":-32601,"message":"no such thing"}')
            peer.send(f'{{"jsonrpc":"2.0", "id":{json.dumps(value["id"])},{answer}}}'.encode())

    return react


def prompt(text: str) -> str:
    """Return the params of a prompt."""
    return f'{{"prompt":[{{"type":"text","text":"{text} @lib/c.py"}}],"sessionId":"session-1"}}'


def talk(peer: Peer) -> None:
    """Play a whole conversation of an editor."""
    able = '{"fs":{"readTextFile":true,"writeTextFile":true},"terminal":true}'
    peer.call("first", "initialize", f'{{"protocolVersion":1,"clientCapabilities":{able}}}')
    peer.call(-7, "session/new", '{"mcpServers":[], "cwd":"/tmp"}')
    peer.call("é/\u2028", "session/prompt", prompt("talk"), answers(peer))
    peer.call(2, "session/set_mode", '{"sessionId":"session-1","modeId":"ask"}')
    peer.call(3, "_vendor/thing", '{"sessionId":"session-1","n":1e999,"twice":{"a":1,"a":2}}')
    peer.send(f'{{"jsonrpc":"2.0","id":4,"method":"session/prompt","params":{prompt("wait")}}}'.encode())
    peer.until_heard(b'"waiting"')
    peer.send(b'{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"session-1"}}')
    peer.until(lambda value: value.get("id") == 4)
    for bad in (b"hello", b"[]", b'{"jsonrpc":"2.0","id":{},"method":"m"}'):
        peer.send(bad)
    peer.call(5, "session/prompt", prompt("plain"))


def join(peer: Peer) -> None:
    """Join the session as a second client, with its history."""
    peer.call(1, "initialize", '{"protocolVersion":1,"clientCapabilities":{}}')
    peer.call(2, "session/load", '{"sessionId":"session-1","cwd":"/tmp","mcpServers":[]}')
    peer.call(3, "session/list")
    peer.call(4, "_vendor/end", '{"sessionId":"session-1"}')


def of_editor(over: Callable[[Gateway], Any]) -> Callable[[Gateway], list[bytes]]:
    """Return the route of an editor over a transport, and of a second one that joins it."""

    def play(gateway: Gateway) -> list[bytes]:
        with over(gateway) as first:
            talk(first)
            with over(gateway) as second:
                join(second)
        return [*first.heard, b"-- the second client", *second.heard]

    return play


def at_page(gateway: Gateway) -> list[bytes]:
    """Talk at `/ws`."""
    session = '{"sessionId":"session-1"%s}'
    with over_websocket(gateway, "/ws") as peer:

        def decide(value: Any) -> None:
            if value.get("method") == "session/request":
                chosen = {"outcome": {"outcome": "selected", "optionId": "yes"}}
                params = {"sessionId": "session-1", "requestId": value["params"]["requestId"], "response": chosen}
                peer.send(
                    json.dumps({"jsonrpc": "2.0", "id": "d", "method": "session/respond", "params": params}).encode()
                )

        for number, method in enumerate(("gateway/info", "agents/list", "session/list", "no/such")):
            peer.call(number, method)
        peer.call(10, "session/new", '{"cwd":"/tmp"}')
        peer.call(11, "session/get", session % "")
        peer.call(12, "session/prompt", prompt("talk"), decide)
        peer.until_heard(b'"stopReason"', 1, decide)
        peer.call(13, "session/set_mode", session % ',"modeId":"ask"')
        peer.call(14, "session/prompt", prompt("wait"))
        peer.until_heard(b'"waiting"}')
        peer.call(15, "session/cancel", session % "")
        peer.until_heard(b'"stopReason"', 2)
        peer.call(16, "session/get", session % ',"limit":4')
        peer.call(17, "session/list")
        peer.call(18, "session/delete", session % "")
        peer.send(b"no JSON")
        peer.call(19, "session/archive", session % "")
    # How many updates share a frame is a matter of time, and so is each short state between two questions.
    lines: set[bytes] = set()
    for line in peer.heard:
        if b'"method":"session/updated"' in line:
            updates = line.partition(b'"updates":[')[2].removesuffix(b"]}}")
            lines |= {*re.split(rb',(?=\{"seq":)', updates)}
        elif b'"method":"session/changed"' not in line:
            lines.add(line)
    return sorted(lines)


def at_chat(gateway: Gateway) -> list[bytes]:
    """Talk at `/chat`."""
    with over_websocket(gateway, "/chat") as peer:

        def typed(kind: str) -> Callable[[Any], bool]:
            return lambda value: value["type"] == kind

        def say(kind: str, **members: Any) -> None:
            peer.send(json.dumps({"type": kind, "sessionId": "session-1", **members}).encode())

        say("new_session", cwd=CWD)
        peer.until(typed("session_created"))
        say("send_message", content="talk @lib/c.py")
        asked = peer.until(typed("permission_request"))
        say("permission_response", requestId=asked["requestId"], outcome={"outcome": "selected", "optionId": "yes"})
        peer.until(typed("turn_complete"))
        say("change_mode", modeId="ask")
        peer.until(typed("mode_changed"))
        say("send_message", content=[{"type": "text", "text": "wait"}])
        peer.until_heard(b'"waiting"')
        say("cancel_turn")
        peer.until(typed("turn_complete"))
        say("load_session")
        peer.until(typed("session_loaded"))
        peer.until_heard(b'"waiting"', 2)
        say("no_such")
        peer.until(typed("error"))
    return peer.heard


def at_editor(gateway: Gateway) -> list[bytes]:
    """Talk at the editor bridge."""
    peer = Peer(lambda _: None)
    composer = {"provider": {"id": "talking"}, "composerId": "c"}
    with ExitStack() as stack:
        client = Http(gateway, stack)

        def send(path: str, **body: Any) -> http.client.HTTPResponse:
            return client.request(
                "POST" if body else "GET", f"/acp/{path}", json.dumps(body).encode() if body else None
            )

        def ask(path: str, **body: Any) -> None:
            response = send(path, **body)
            peer.note(b"%d %b" % (response.status, response.read()))

        ask("getSession", **composer, cwd=CWD)
        lines = send("sendMessage", **composer, stream=True, message="talk @lib/c.py")
        peer.feed(line for line in lines if line.strip())
        asked = peer.until(lambda value: value["type"] == "permission")
        ask("respond", requestId=asked["requestId"], outcome={"outcome": "selected", "optionId": "yes"})
        peer.until(lambda value: value["type"] == "done")
        ask("getSlashCommands?providerId=talking")
        ask("sendMessage", **composer, message="plain")
        ask("sendMessage", provider={"id": "none"}, composerId="c", message="plain")
        ask("respond", requestId="none", outcome={"outcome": "cancelled"})
    return peer.heard


def at_tap(gateway: Gateway) -> list[bytes]:
    """Read the tap beside the conversation of an editor. Deltas depend on time: only the last snapshot counts."""
    with over_lines(gateway, "tap") as tap, over_lines(gateway) as editor:
        talk(editor)
        tap.until(lambda value: '"turn_accessed": 3' in json.dumps(value))
        tap.send(b'{"type":"no_such"}')
        tap.until(lambda value: value.get("type") == "error")
        tap.send(b'{"type":"request_snapshot","session_id":"session-1"}')
        snapshot = tap.until(lambda value: value.get("type") == "snapshot")
    told = [line for line in tap.heard if json.loads(line).get("type") not in ("delta", "snapshot")]
    return [*told, json.dumps(snapshot | {"seq": 0}, sort_keys=True).encode()]


ROUTES: Final[Mapping[str, Callable[[Gateway], list[bytes]]]] = {
    "lines": of_editor(over_lines),
    "websocket": of_editor(over_websocket),
    "http": of_editor(over_http),
    "shim": of_editor(over_shim),
    "page": at_page,
    "chat": at_chat,
    "editor": at_editor,
    "tap": at_tap,
}


def record(checkout: Path, route: str) -> list[str]:
    """Return the lines of a route, without what must differ."""
    with running(checkout) as gateway:
        heard = ROUTES[route](gateway)
        lines = [*heard, b"-- the agent", *(gateway.directory / "agent").read_bytes().splitlines()]
        place = str(gateway.directory).encode()
    found = []
    for line in lines:
        line = line.replace(place, b"<directory>")
        for pattern, word in MUST_DIFFER:
            line = re.sub(pattern, word, line)
        found.append(line.decode(errors="backslashreplace"))
    return found


def main(arguments: list[str]) -> int:
    """Compare the routes, and print the differences."""
    parser = argparse.ArgumentParser("python -m benchmarks.compare_bytes", description=__doc__)
    parser.add_argument("base", help="the other commit")
    parser.add_argument("--only", nargs="+", choices=list(ROUTES), default=list(ROUTES), help="routes to compare")
    asked = parser.parse_args(arguments)
    differ = 0
    with checked_out(ROOT, asked.base) as base:
        for route in asked.only:
            theirs, ours = record(base, route), record(ROOT, route)
            diff = list(difflib.unified_diff(theirs, ours, asked.base, "now", lineterm="", n=0))
            print(f"{route}: {'DIFFERENT' if diff else 'equal'}, {len(ours)} lines", flush=True)
            print(*diff, sep="\n", end="\n" if diff else "")
            differ += bool(diff)
    return 1 if differ else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (NoBase, Failed, RelayFailed) as error:
        sys.exit(str(error))
