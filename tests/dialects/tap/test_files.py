"""Dialogues of the file tap: what an agent and its users send, and the files that are found in it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.dialects.tap import files
from acp_gateway.dialects.tap.files import FileFinder, Refusable, Seen, Touch, Usage, listed, redirected
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.text import lookup, spans, string_finder

IGNORED = ("node_modules", ".git", "build")


def update(kind: str, /, session: str = "s", **members: Any) -> bytes:
    params = {"sessionId": session, "update": {"sessionUpdate": kind, **members}}
    return json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}).encode()


def request(method: str, **params: Any) -> jsonrpc.Message:
    return jsonrpc.parse(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode())


def touched(*messages: bytes, cwd: str | None = "/src") -> list[tuple[str, str]]:
    finder = FileFinder(cwd, IGNORED)
    return [(touch.path, touch.action) for message in messages for touch in finder.read(message).touches]


def chunk(**content: Any) -> bytes:
    return update("user_message_chunk", content=content)


def call(kind: str | None = None, /, **members: Any) -> bytes:
    named = {} if kind is None else {"kind": kind}
    return update("tool_call", toolCallId="t", **named, **members)


def output(text: str) -> list[dict[str, Any]]:
    return [{"type": "content", "content": {"type": "text", "text": text}}]


DIFF = [{"type": "diff", "path": "/src/a.py", "oldText": "a", "newText": "b"}]
MOVED = [
    {
        "type": "content",
        "content": {"type": "text", "text": "moved"},
        "_meta": {"acp-gateway": {"change": {"operation": "move", "path": "/src/b.py", "oldPath": "/src/a.py"}}},
    }
]
"""A file that an agent of version 2 has moved."""

TABLE: dict[str, tuple[bytes, list[tuple[str, str]]]] = {
    "an embedded resource": (
        chunk(type="resource", resource={"uri": "file:///src/a%20b.py", "text": "x"}),
        [("a b.py", "user_provided")],
    ),
    "a resource link": (chunk(type="resource_link", uri="file:///src/a.py"), [("a.py", "user_referenced")]),
    "a link to elsewhere": (chunk(type="resource_link", uri="https://example.org/a.py"), []),
    "references in a prompt": (
        chunk(type="text", text="see @lib/a.py, @b.md. and @ann, not ann@box.example"),
        [("lib/a.py", "user_referenced"), ("b.md", "user_referenced")],
    ),
    "locations of a read": (call("read", locations=[{"path": "/src/a.py", "line": 3}]), [("a.py", "read")]),
    "locations without a kind": (call(locations=[{"path": "/src/a.py"}]), [("a.py", "read")]),
    "locations of an edit": (call("edit", locations=[{"path": "/src/a.py"}]), [("a.py", "write")]),
    "locations of a deletion": (call("delete", locations=[{"path": "/src/a.py"}]), [("a.py", "write")]),
    "locations of a search": (call("search", locations=[{"path": "/src/a.py"}]), [("a.py", "search")]),
    "a diff": (call("other", content=DIFF), [("a.py", "write")]),
    "a moved file": (call("other", content=MOVED), [("b.py", "write"), ("a.py", "write")]),
    "the input of a read": (call("read", rawInput={"file_path": "/src/a.py"}), [("a.py", "read")]),
    "the input of a move": (
        call("move", rawInput={"source": "a.py", "destination": "./lib/../b.py"}),
        [("a.py", "write"), ("b.py", "write")],
    ),
    "several paths in an input": (
        call("read", rawInput={"paths": ["a.py", 7, "b.py"]}),
        [("a.py", "read"), ("b.py", "read")],
    ),
    "the input of a fetch": (call("fetch", rawInput={"path": "/src/a.py"}), []),
    "a command": (
        call("execute", rawInput={"command": "sort < in.txt > out.txt 2>&1 && echo x >> 'my log'"}),
        [("out.txt", "write"), ("my log", "write")],
    ),
    "a command in words": (call("execute", rawInput={"command": ["sh", "-c", "ls > l.txt"]}), [("l.txt", "write")]),
    "the output of a command": (
        call("execute", content=output("lib/a.py:3:def a\nError: no\n12:30: x\nb.c:1: y\nhttp://x.example/a: z")),
        [("lib/a.py", "search"), ("b.c", "search")],
    ),
    "the raw output of a command": (call("execute", rawOutput={"stdout": "a.py:1:x"}), [("a.py", "search")]),
    "the output of a read": (call("read", content=output("a.py:1:x")), []),
    "the same file twice": (call("edit", content=DIFF, locations=[{"path": "/src/a.py"}]), [("a.py", "write")]),
    "ignored directories": (
        call("read", rawInput={"paths": ["node_modules/x/a.js", "/src/lib/.git/HEAD", "/build/a", "rebuild/a"]}),
        [("rebuild/a", "read")],
    ),
    "a path elsewhere": (
        call("read", locations=[{"path": "/etc/hosts"}, {"path": "../b"}]),
        [("/etc/hosts", "read"), ("/b", "read")],
    ),
    "the directory itself": (call("search", rawInput={"path": "."}, locations=[{"path": "/src/"}]), []),
    "no path": (call("read", locations=[{"path": ""}, {"path": "a\nb"}, {"path": "\ud83d"}, {"path": "x" * 1025}]), []),
    "a failed tool": (call("edit", status="failed", content=DIFF), []),
    "text of the agent": (update("agent_message_chunk", content={"type": "text", "text": "@a.py"}), []),
    "a message that only quotes a word": (
        update("agent_message_chunk", content={"type": "text", "text": 'a "tool_call"', "locations": [{"path": "/a"}]}),
        [],
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_a_message_says_which_files_are_used(name: str) -> None:
    message, expected = TABLE[name]
    assert sorted(touched(message)) == sorted(expected)


def test_an_update_of_a_tool_call_has_the_kind_of_the_call() -> None:
    begun = update("tool_call", toolCallId="t", kind="edit")
    of_another = update("tool_call_update", session="child", toolCallId="t", locations=[{"path": "/src/b.py"}])
    going_on = update("tool_call_update", toolCallId="t", locations=[{"path": "/src/a.py"}])
    assert touched(begun, of_another, going_on) == [("b.py", "read"), ("a.py", "write")]


def test_only_the_last_kinds_of_tool_calls_are_remembered() -> None:
    finder = FileFinder("/src", ())
    for number in range(files.CALLS + 1):
        finder.read(update("tool_call", toolCallId=str(number), kind="edit"))
    locations = [{"path": "/src/a"}]
    last = update("tool_call_update", toolCallId=str(files.CALLS), locations=locations)
    first = update("tool_call_update", toolCallId="0", locations=locations)
    assert [touch.action for message in (last, first) for touch in finder.read(message).touches] == ["write", "read"]
    assert len(finder._kinds) == files.CALLS
    finder.read(update("tool_call", toolCallId="x" * (files.ID_SIZE + 1), kind="edit"))
    assert len(finder._kinds) == files.CALLS


@pytest.mark.parametrize(
    ("cwd", "expected"), [("/src/", "a"), ("//src", "a"), ("/", "src/a"), (None, "src/a"), ("src", "src/a")]
)
def test_a_path_is_relative_to_the_directory_of_the_session(cwd: str | None, expected: str) -> None:
    assert FileFinder(cwd, ()).relative("/src/a") == expected


def test_an_ignored_name_above_the_directory_does_not_count() -> None:
    assert FileFinder("/build/src", IGNORED).relative("/build/src/a") == "a"


def test_a_prompt_and_the_usage_are_told() -> None:
    finder = FileFinder("/src", ())
    assert finder.read(chunk(type="text", text="hello")) == Seen(begins_turn=True)
    assert finder.read(chunk(type="text", text="a further block")).says_nothing
    assert finder.read(update("agent_message_chunk")).says_nothing
    assert finder.read(chunk(type="text", text="hello")).begins_turn
    cost = {"amount": 0.5, "currency": "EUR"}
    assert finder.read(update("usage_update", used=5, size=9, cost=cost)) == Seen(usage=Usage(5, 9, cost))
    assert finder.read(update("usage_update", used=5)).usage == Usage(5, 0, None)
    assert finder.read(update("usage_update", used="many")).usage is None


@pytest.mark.parametrize(
    "text",
    [
        b'{"tool_call":1}',
        b'["tool_call"]',
        b'{"params":{"update":"tool_call"}}',
        b'{"params":{"x":"\\ud83d","update":%b"tool_call"%b}}' % (b"[" * 100_000, b"]" * 100_000),
    ],
)
def test_what_is_not_an_update_or_nested_too_deeply_has_no_files(text: bytes) -> None:
    assert FileFinder("/src", ()).read(text).touches == ()


def test_a_request_for_a_file_is_an_access() -> None:
    finder = FileFinder("/src", IGNORED)
    assert finder.in_request(request("fs/read_text_file", path="/src/a")) == (Touch("a", "read"),)
    assert finder.in_request(request("fs/write_text_file", path="/src/a", content="x")) == (Touch("a", "write"),)
    assert finder.in_request(request("fs/read_text_file", path="/src/.git/a")) == ()
    assert finder.in_request(request("fs/read_text_file")) == ()
    assert finder.in_request(request("read_text_file", path="/src/a")) == (Touch("a", "read"),)
    assert finder.in_request(request("write_text_file", path="b", content="x")) == (Touch("b", "write"),)
    assert finder.in_request(request("fs/rename", path="/src/a")) == ()
    assert finder.in_request(request("terminal/create", path="/src/a")) == ()


def test_a_permission_names_the_files_and_the_options_that_refuse() -> None:
    options = [
        {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
        {"optionId": "no", "name": "No", "kind": "reject_once"},
        {"optionId": "never", "name": "Yes", "kind": "reject_always"},
    ]
    finder = FileFinder("/src", IGNORED)
    finder.read(update("tool_call", toolCallId="t", kind="edit"))
    asked = finder.refusable(
        request(
            "session/request_permission", sessionId="s", options=options, toolCall={"toolCallId": "t", "content": DIFF}
        )
    )
    # An outcome that might mean two options is not a refusal.
    assert asked == Refusable((Touch("a.py", "write"),), frozenset({"no", "No", "never"}))
    searching = {"toolCallId": "u", "kind": "search", "locations": [{"path": "/src/b"}]}
    asked = finder.refusable(request("session/request_permission", toolCall=searching))
    assert asked == Refusable((Touch("b", "read"),), frozenset())


LARGE = "x" * 3_000_000


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (chunk(type="image", data=LARGE, uri="file:///src/a.png"), [("a.png", "user_referenced")]),
        (chunk(type="resource", resource={"text": LARGE, "uri": "file:///src/a.py"}), [("a.py", "user_provided")]),
        (call("read", locations=[{"path": "/src/a"}], rawOutput=LARGE), [("a", "read")]),
        (call("edit", content=[{**DIFF[0], "newText": LARGE}]), [("a.py", "write")]),
        (call("edit", rawInput={"content": LARGE, "path": "/src/b"}, rawOutput=LARGE), [("b", "write")]),
        (call("search", content=output("a.py:1:x\n" + LARGE)), [("a.py", "search")]),
    ],
    ids=["image", "resource", "output", "diff", "input", "search"],
)
def test_a_large_message_is_searched_as_every_other(message: bytes, expected: list[tuple[str, str]]) -> None:
    assert touched(message) == expected


def test_a_large_permission_request_names_its_files() -> None:
    call = {"kind": "edit", "locations": [{"path": "/src/a"}], "rawInput": {"content": LARGE}}
    asked = FileFinder("/src", ()).refusable(request("session/request_permission", toolCall=call))
    assert asked.touches == (Touch("a", "write"),)


def test_a_byte_of_a_message_is_read_a_few_times_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a large message, which takes the loop as long as it is read, takes some 10 ms for each MiB."""
    passes = 0

    def counting(read: Any) -> Any:
        def count(text: bytes | memoryview, *rest: Any) -> Any:
            nonlocal passes
            passes += len(text)
            return read(text, *rest)

        return count

    for name in ("_decode_members", "_decode_elements", "_decode_params"):
        monkeypatch.setattr(lookup, name, counting(getattr(lookup, name)))
    for module in (spans, string_finder):
        monkeypatch.setattr(module, "structure", counting(spans.structure))
    skip = spans._skipper()

    def count_skipped(text: memoryview) -> int:
        nonlocal passes
        size = skip(text)
        passes += size
        return size

    monkeypatch.setattr(spans, "_skipper", lambda: count_skipped)
    message = call("read", locations=[{"path": "/src/a"}], rawOutput=[{"a": [1, "b"]}] * 20_000)
    assert touched(message) == [("a", "read")]
    assert len(message) < passes < 12 * len(message)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("a > b", ["b"]),
        ("a >b>>c 2> d", ["b", "c", "d"]),
        ("a &> b", ["b"]),
        ("a >| b", ["b"]),
        ("a > 'b c' > \"d e\" > f\\ g", ["b c", "d e", "f g"]),
        ("a 2>&1 >/dev/null", []),
        ("echo 'a > b' \"c > d\" e \\> f", []),
        ('a > $HOME/b > "$x" > `c`', []),
        ("awk '{ x -> y }'; a => b; c -> d; e <> f", []),
        ("cat > a <<'END'\nb > c\nEND\nd > e", ["a", "e"]),
        ("diff <(a) >(b)", []),
        ("a > ''", []),
        ("a 'b > c", ["c"]),
    ],
)
def test_a_redirection_writes_its_target(command: str, expected: list[str]) -> None:
    assert redirected(command) == expected


def test_what_is_taken_from_a_text_is_bounded() -> None:
    assert len(redirected("> a " * 10_000)) == files.FOUND
    assert len(listed("".join(f"a{number}.py:1:x\n" for number in range(1000)))) == files.FOUND
    prompt = chunk(type="text", text=" ".join(f"@a{number}.py" for number in range(1000)))
    assert len(touched(prompt)) == files.FOUND


def texts(kind: str, *found: str) -> bytes:
    """A tool call with several texts."""
    if kind == "execute":
        return call(kind, rawInput={"command": [f">{name}" for name in found]})
    if kind == "read":
        return call(kind, rawInput={"paths": [f"file:///src/{name[:-1]}%{ord(name[-1]):x}" for name in found]})
    return call(kind, content=[{"content": {"text": f"{name}:"}} for name in found])


@pytest.mark.parametrize("kind", ["execute", "search", "read"])
def test_of_all_texts_of_a_message_together_only_the_first_part_is_searched(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = texts(kind, "a/b", "c/d", "e/f")
    assert [path for path, _ in touched(message)] == ["a/b", "c/d", "e/f"]
    size_of_one = {"execute": len(">a/b"), "search": len("a/b:"), "read": len("/src/a/%62")}[kind]
    monkeypatch.setattr(files, "TEXT_SIZE", 2 * size_of_one)
    assert [path for path, _ in touched(message)] == ["a/b", "c/d"]


def test_a_path_without_escapes_is_told_however_many_texts_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "TEXT_SIZE", 0)
    assert touched(call("read", rawInput={"paths": ["a%", "file:///src/b", "file:///src/%63"]})) == [
        ("a%", "read"),
        ("b", "read"),
    ]


TEXTS = st.sampled_from(
    ["a.py", "/src/.git/x", "file:///src/b", "cat > c", "d.py:1:x", "@e.py", "", "\ud83d", "\0", "edit"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["path", "text", "uri", "type", "content", "command", "paths"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)
MEMBERS = st.dictionaries(
    st.sampled_from(["toolCallId", "kind", "status", "locations", "content", "rawInput", "rawOutput", "used", "cost"]),
    VALUES,
)


@given(
    st.lists(
        st.tuples(st.sampled_from(["tool_call", "tool_call_update", "user_message_chunk", "usage_update"]), MEMBERS)
    )
)
def test_members_of_any_type_are_read_and_no_ignored_file_is_told(updates: list[tuple[str, dict[str, Any]]]) -> None:
    finder = FileFinder("/src", IGNORED)
    for kind, members in updates:
        for touch in finder.read(update(kind, **members)).touches:
            assert touch.path
            assert touch.path.encode()
            assert not set(touch.path.split("/")) & set(IGNORED)
        asked = request("session/request_permission", sessionId="s", toolCall=members, options=members.get("content"))
        assert all(touch.action in ("read", "write") for touch in finder.refusable(asked).touches)
