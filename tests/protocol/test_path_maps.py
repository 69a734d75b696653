"""Path maps: what is rewritten, both ways, and that nothing else is."""

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.errors import UsageError
from acp_gateway.protocol.path_maps import PARAMS_FROM_AGENT, PARAMS_FROM_EDITOR, PathMaps, parse_map, suggest_map
from acp_gateway.protocol.text import spans, string_finder

HERE, THERE = "/Users/ann/proj", "/srv/proj"
MAPS = PathMaps([(HERE, THERE)])


def text(message: Any, **style: Any) -> bytes:
    return json.dumps(message, **style).encode()


def remote(path: str, maps: PathMaps = MAPS) -> Any:
    """The gateway's name for the editor's `path`."""
    message = maps.to_remote(text({"id": 1, "method": "session/new", "params": {"cwd": path}}))
    return json.loads(message)["params"]["cwd"]


def local(path: str, maps: PathMaps = MAPS) -> Any:
    """The editor's name for the gateway's `path`."""
    message = maps.to_local(text({"id": 1, "method": "fs/read_text_file", "params": {"path": path}}))
    return json.loads(message)["params"]["path"]


def remote_uri(uri: str, maps: PathMaps = MAPS) -> Any:
    return json.loads(maps.to_remote(text({"method": "document/didOpen", "params": {"uri": uri}})))["params"]["uri"]


def local_uri(uri: str, maps: PathMaps = MAPS) -> Any:
    update = {"sessionUpdate": "plan_update", "plan": {"type": "file", "uri": uri}}
    message = maps.to_local(text({"method": "session/update", "params": {"update": update}}))
    return json.loads(message)["params"]["update"]["plan"]["uri"]


# The table, line by line. `@path` and `@uri` are mapped; `=path` and `=uri` are the same text where it must stay.

BLOCKS: list[Any] = [
    {"type": "text", "text": "=path and =uri", "annotations": {"uri": "=uri", "path": "=path"}},
    {"type": "resource_link", "uri": "@uri", "name": "=path", "_meta": {"uri": "=uri"}},
    {"type": "image", "uri": "@uri", "data": "=path"},
    {"type": "resource", "resource": {"uri": "@uri", "text": "=path", "_meta": {"uri": "=uri"}}},
]
TOOL_CALL: dict[str, Any] = {
    "title": "=path",
    "locations": [{"path": "@path", "line": 3}, {"path": "@path", "_meta": {"path": "=path"}}],
    "content": [
        {"type": "diff", "path": "@path", "oldText": "=path", "newText": "=uri"},
        *({"type": "content", "content": block} for block in BLOCKS),
    ],
    "rawInput": {"path": "=path", "cwd": "=path", "locations": [{"path": "=path"}]},
    "rawOutput": {"uri": "=uri"},
}
DIRECTORIES: dict[str, Any] = {"cwd": "@path", "additionalDirectories": ["@path", "@path"]}

FROM_EDITOR: list[tuple[str, Any]] = [
    ("session/new", {**DIRECTORIES, "mcpServers": [{"command": "=path", "args": ["=path"], "cwd": "=path"}]}),
    ("session/new", {"cwd": ["=path"], "additionalDirectories": "=path"}),
    ("session/load", {**DIRECTORIES, "sessionId": "=path"}),
    ("session/resume", {**DIRECTORIES, "_meta": {"cwd": "=path"}}),
    ("session/fork", DIRECTORIES),
    ("session/list", {"cwd": "@path", "cursor": "=path"}),
    ("session/prompt", {"sessionId": "=path", "prompt": BLOCKS}),
    ("_session/steering", {"sessionId": "=path", "prompt": BLOCKS}),
    ("session/inject", {"sessionId": "=path", "content": BLOCKS}),
    ("document/didOpen", {"uri": "@uri", "text": "=path"}),
    ("document/didChange", {"uri": "@uri", "contentChanges": [{"text": "=uri"}]}),
    ("document/didClose", {"uri": "@uri"}),
    ("document/didSave", {"uri": "@uri"}),
    ("document/didFocus", {"uri": "@uri"}),
    (
        "nes/start",
        {
            "workspaceUri": "@uri",
            "workspaceFolders": [{"uri": "@uri", "name": "=path"}],
            "repository": {"remoteUrl": "=uri"},
        },
    ),
    (
        "nes/suggest",
        {
            "uri": "@uri",
            "context": {
                "recentFiles": [{"uri": "@uri", "text": "=path"}],
                "relatedSnippets": [{"uri": "@uri", "excerpts": [{"text": "=path"}]}],
                "editHistory": [{"uri": "@uri", "diff": "=path"}],
                "userActions": [{"uri": "@uri", "action": "=path"}],
                "openFiles": [{"uri": "@uri"}],
                "diagnostics": [{"uri": "@uri", "message": "=path"}],
            },
        },
    ),
    ("terminal/create", {"cwd": "=path"}),
    ("session/set_mode", {"cwd": "=path", "path": "=path", "uri": "=uri", "prompt": [{"uri": "=uri"}]}),
    ("_vendor/open", {"cwd": "=path", "path": "=path", "uri": "=uri"}),
]
FROM_AGENT: list[tuple[str, Any]] = [
    ("session/update", {"update": {"sessionUpdate": "tool_call", **TOOL_CALL}}),
    ("session/update", {"update": {"sessionUpdate": "tool_call_update", **TOOL_CALL}}),
    *(
        ("session/update", {"update": {"sessionUpdate": f"{who}_chunk", "content": block}})
        for who in ("agent_message", "agent_thought", "user_message")
        for block in BLOCKS
    ),
    ("session/update", {"update": {"sessionUpdate": "plan", "entries": [{"content": "=path"}]}}),
    ("session/update", {"update": {"sessionUpdate": "plan_update", "plan": {"type": "file", "uri": "@uri"}}}),
    ("session/update", {"update": {"sessionUpdate": "plan_update", "plan": {"content": "=path"}}}),
    ("session/update", {"cwd": "=path", "path": "=path", "uri": "=uri", "locations": [{"path": "=path"}]}),
    ("session/request_permission", {"toolCall": TOOL_CALL, "options": [{"name": "=path"}]}),
    ("fs/read_text_file", {"path": "@path", "line": 1}),
    ("fs/write_text_file", {"path": "@path", "content": "=path"}),
    ("terminal/create", {"cwd": "@path", "command": "=path", "args": ["=path"], "env": [{"value": "=path"}]}),
    ("request_permission", {"toolCall": TOOL_CALL, "options": [{"name": "=path"}]}),
    ("read_text_file", {"path": "@path", "line": 1}),
    ("write_text_file", {"path": "@path", "content": "=path"}),
    ("create_terminal", {"cwd": "@path", "command": "=path", "args": ["=path"], "env": [{"value": "=path"}]}),
    ("terminal/output", {"cwd": "=path", "path": "=path"}),
    ("session/new", {"cwd": "=path"}),
    ("_vendor/open", {"cwd": "=path", "path": "=path", "uri": "=uri"}),
]
REST_FROM_AGENT: list[Any] = [
    {"id": 1, "result": {"sessions": [{**DIRECTORIES, "title": "=path"}, {"cwd": "@path"}], "nextCursor": "=path"}},
    {"id": 1, "result": {"suggestions": [{"kind": "jump", "id": "=path", "uri": "@uri"}]}},
    {"id": 1, "result": {"content": "=path", "cwd": "=path", "path": "=path", "uri": "=uri"}},
    {"id": 1, "error": {"code": -32602, "message": "=path", "data": {"sessions": [{"cwd": "=path"}]}}},
    {"id": "=path", "method": "fs/read_text_file", "params": ["=path"]},
    {"id": "=path", "method": ["fs/read_text_file"], "params": {"path": "=path"}},
    {"id": "=path", "method": "fs/read_text_file", "path": "=path"},
    {"path": "=path"},
]
REST_FROM_EDITOR: list[Any] = [
    {"id": 1, "result": {"sessions": [{"cwd": "=path"}], "content": "=path", "path": "=path"}},
    {"id": 1, "error": {"code": -32603, "message": "=path"}},
]


def filled(template: Any, *, mapped: str, staying: str) -> Any:
    written = json.dumps(template)
    for token, value in [
        ("@path", f"{mapped}/a b"),
        ("@uri", f"file://{mapped}/a%20b#L1"),
        ("=path", f"{staying}/a b"),
        ("=uri", f"file://{staying}/a%20b#L1"),
    ]:
        written = written.replace(token, value)
    return json.loads(written)


def request(method: str, params: Any) -> Any:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


@pytest.mark.parametrize("template", [*(request(*line) for line in FROM_EDITOR), *REST_FROM_EDITOR])
def test_messages_from_the_editor_are_mapped_in_these_places_only(template: Any) -> None:
    message = text(filled(template, mapped=HERE, staying=HERE))
    assert json.loads(MAPS.to_remote(message)) == filled(template, mapped=THERE, staying=HERE)


@pytest.mark.parametrize("template", [*(request(*line) for line in FROM_AGENT), *REST_FROM_AGENT])
def test_messages_from_the_agent_are_mapped_in_these_places_only(template: Any) -> None:
    message = text(filled(template, mapped=THERE, staying=THERE))
    assert json.loads(MAPS.to_local(message)) == filled(template, mapped=HERE, staying=THERE)


def test_every_line_of_the_tables_has_its_example_here() -> None:
    assert set(PARAMS_FROM_EDITOR) <= {method for method, _ in FROM_EDITOR}
    assert set(PARAMS_FROM_AGENT) <= {method for method, _ in FROM_AGENT}


# Real messages.

TOOL_CALL_UPDATE = (
    b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"ses_dffd6b725ffecAzHM2IpeITkVW",'
    b'"update":{"sessionUpdate":"tool_call_update","toolCallId":"call_1","status":"in_progress",'
    b'"kind":"execute","title":"echo tool-ran; pwd","locations":[{"path":"/srv/proj"}],'
    b'"rawInput":{"command":"echo tool-ran; pwd","description":"run echo","cwd":"/srv/proj"},'
    b'"content":[{"type":"content","content":{"type":"text","text":"tool-ran\\n/srv/proj\\n"}}]}}}'
)
NEW_SESSION = b'{"jsonrpc":"2.0","id":1,"method":"session/new","params":{"cwd":"/Users/ann/proj","mcpServers":[]}}'
CHUNK = (
    b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"ses_dffd6b725ffecAzHM2IpeITkVW",'
    b'"update":{"sessionUpdate":"agent_message_chunk","messageId":"msg_200294d0c001JHms5urF02EzCK",'
    b'"content":{"type":"text","text":"Look at /srv/proj, it is 100% done \\u00e9."}}}}'
)


def test_a_tool_call_shows_the_editors_path_and_keeps_what_the_tool_printed() -> None:
    assert MAPS.to_local(TOOL_CALL_UPDATE) == TOOL_CALL_UPDATE.replace(
        b'"locations":[{"path":"/srv/proj"}]', b'"locations":[{"path":"/Users/ann/proj"}]'
    )


def test_a_new_session_starts_in_the_gateways_directory() -> None:
    assert MAPS.to_remote(NEW_SESSION) == NEW_SESSION.replace(b"/Users/ann/proj", b"/srv/proj")


def test_a_chunk_of_text_is_the_same_object_even_when_it_names_the_directory() -> None:
    assert MAPS.to_local(CHUNK) is CHUNK


def test_each_direction_maps_its_own_side_only() -> None:
    assert MAPS.to_local(NEW_SESSION) is NEW_SESSION
    assert MAPS.to_remote(TOOL_CALL_UPDATE) is TOOL_CALL_UPDATE


# Bytes.


def test_everything_around_a_mapped_string_stays_byte_for_byte() -> None:
    message = (
        b' { "params" : {"b": 1e999, "cwd" :\t"\\u002fUsers\\/ann/proj\\ud83d" , "b": 1.10,"x":"\xe2\x80\xa8"},'
        b' "method":"session\\/new","id":1.0 }\r\n'
    )
    assert MAPS.to_remote(message) == message  # A component of its own: proj and half an emoji.
    message = message.replace(b"proj\\ud83d", b"proj/\\ud83d")
    assert MAPS.to_remote(message) == message.replace(b'"\\u002fUsers\\/ann/proj/\\ud83d"', b'"/srv/proj/\\ud83d"')


def test_mapped_strings_are_written_in_ascii() -> None:
    message = '{"method":"session/new","params":{"cwd":"/Users/ann/proj/ключ"}}'.encode()
    assert MAPS.to_remote(message) == rb'{"method":"session/new","params":{"cwd":"/srv/proj/\u043a\u043b\u044e\u0447"}}'


@pytest.mark.parametrize(
    "spelling", [r"\/Users\/ann\/proj", r"\u002fUsers/ann/proj", r"/Users/ann/\u0070\u0072\u006f\u006A"]
)
def test_a_directory_is_known_in_any_spelling_of_json(spelling: str) -> None:
    message = b'{"method":"session/new","params":{"cwd":"%b"}}' % spelling.encode()
    assert MAPS.to_remote(message) == b'{"method":"session/new","params":{"cwd":"/srv/proj"}}'


@pytest.mark.parametrize("spelling", [r"\u0055\u0073\u0065\u0072\u0073/ann/pro\u006a", r"%55sers/%61nn/%70roj"])
def test_a_uri_is_known_without_a_single_letter_in_its_usual_spelling(spelling: str) -> None:
    message = b'{"method":"document/didSave","params":{"uri":"file:///%b/a"}}' % spelling.encode()
    assert MAPS.to_remote(message) == b'{"method":"document/didSave","params":{"uri":"file:///srv/proj/a"}}'


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"Starting /Users/ann/proj",
        b'"/Users/ann/proj"',
        b'[{"method":"session/new","params":{"cwd":"/Users/ann/proj"}}]',
        b'{"method":"session/new","params":{"cwd":"/Users/ann/proj"}',
        b'{"method":"session/new","params":{"cwd":"/Users/ann/proj"}} {}',
        b'{"method":"session/new","params":{"cwd":"/Users/ann/proj","x":tru}}',
        b'{"method":"session/new","params":{"cwd":"/Users/ann/proj","\xff":1}}',
        b'{"method":"session/new","params":{"cwd":"/Users/ann/proj/\xff"}}',
        b'{"method":"session/new","params":' + b'{"cwd":' * 50_000 + b'"/Users/ann/proj"' + b"}" * 50_001,
    ],
)
def test_what_is_not_a_well_formed_message_passes_unchanged(message: bytes) -> None:
    assert MAPS.to_remote(message) is message


@pytest.mark.parametrize(
    "message",
    [
        b'{"method":"session/new","params":{},"other":"/Users/ann/proj"}',
        b'{"method":"session/new","params":{%b"cwd":"/Users/ann/proj"}}' % (b'"a":1,' * 600),
        b'{"method":"session/new","params":{"additionalDirectories":[%b"/Users/ann/proj"]}}' % (b'"/a",' * 1100),
    ],
)
def test_an_object_without_members_or_a_container_with_too_many_passes_unchanged(message: bytes) -> None:
    assert MAPS.to_remote(message) is message


# Large messages.


def blocks(count: int, block: bytes) -> bytes:
    """A tool call update with as many content blocks."""
    content = b",".join([b'{"content":%b}' % block] * count)
    return b'{"method":"session/update","params":{"update":{"content":[%b]}}}' % content


@pytest.mark.parametrize("spice", [b"", rb"\ud83d", rb"\uD83d", rb"\\ud83d", rb"\ud83d\ude00"])
def test_paths_of_a_thousand_blocks_are_mapped_beside_any_surrogate(spice: bytes) -> None:
    message = blocks(990, rb'{"%b":"%b","uri":"file:\/\/\/srv/proj/a","name":"%b"}' % (spice, spice, b"x" * 900))
    mapped = MAPS.to_local(message)
    assert mapped == message.replace(rb'"file:\/\/\/srv/proj/a"', b'"file:///Users/ann/proj/a"')
    assert mapped.count(b"/Users/ann/proj/a") == 990


def test_the_whole_text_is_read_once_for_all_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    original = spans.structure
    message = blocks(990, b'{"uri":"file:///srv/proj/a","name":"%b"}' % (b"x" * 50))
    calls = 0

    def once(text: bytes) -> bytes:
        nonlocal calls
        calls += 1
        return original(text)

    def again(text: bytes) -> bytes:
        raise AssertionError("a container has the whole text searched again")

    monkeypatch.setattr(string_finder, "structure", once)
    monkeypatch.setattr(spans, "structure", again)
    assert MAPS.to_local(message) is not message
    assert calls == 1


def test_the_decoder_gets_each_byte_a_few_times_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    skip, decoded = spans._skipper(), 0

    def counting(text: memoryview) -> int:
        nonlocal decoded
        size = skip(text)
        decoded += size
        return size

    monkeypatch.setattr(spans, "_skipper", lambda: counting)
    message = blocks(990, b'{"uri":"file:///srv/proj/a","name":"\\n%b"}' % (b"x" * 50))
    assert MAPS.to_local(message) is not message
    # Once for each container that it stands in: message, params, update, content, block, and its own content.
    assert decoded <= 7 * len(message)


@pytest.mark.parametrize(
    "block", [b'{%b"uri":"file:///srv/proj/a"}' % (b'"a":1,' * 90), b'{"resource":{%b}}' % (b'"a":[],' * 90 + b'"a":1')]
)
def test_a_message_with_too_many_members_in_all_stays_as_it_is(block: bytes) -> None:
    message = blocks(900, block)
    assert MAPS.to_local(message) is message
    few = blocks(9, b'{"uri":"file:///srv/proj/a"}')
    assert MAPS.to_local(few) is not few


@pytest.mark.parametrize(
    "block",
    [
        b'{"uri":"file:///srv/proj/a"}',
        b'{"uri":"file:///srv/other/proj0","x":[[]],"y":{"a":1}}',
        b'{"resource":{"uri":"file:///srv/other/proj0"}}',
    ],
)
def test_the_number_of_maps_adds_no_step_to_a_walk(block: bytes) -> None:
    message = blocks(990, block)

    def steps(maps: PathMaps) -> int:
        """Functions of the program that are called, and none of C."""
        calls = 0

        def count(frame: object, event: str, arg: object) -> None:
            nonlocal calls
            calls += event == "call"

        former = sys.getprofile()
        sys.setprofile(count)
        try:
            maps.to_local(message)
        finally:
            sys.setprofile(former)
        return calls

    one, many = steps(MAPS), steps(PathMaps([(f"{HERE}{number}", f"{THERE}{number}") for number in range(100)]))
    assert many <= one + 100
    # 990 blocks, of a few members each.
    assert one < 990 * 42


def test_what_is_walked_through_in_a_message_is_bounded_by_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    skipped = 0

    def counting(plain: bytes, start: int) -> int:
        nonlocal skipped
        skipped += 1
        return spans.value_end(plain, start)

    monkeypatch.setattr("acp_gateway.protocol.text.string_finder.value_end", counting)
    message = blocks(990, b'{"uri":"file:///srv/proj/a",%b"y":1}' % (b'"x":[],' * 400))
    assert MAPS.to_local(message) is message
    assert skipped < 4000 + len(message) // 256


def test_the_last_of_repeated_members_says_what_a_message_is() -> None:
    message = b'{"method":"x","method":"session/new","params":{"cwd":1},"params":{"cwd":"/Users/ann/proj"}}'
    assert MAPS.to_remote(message) == message.replace(b"/Users/ann/proj", b"/srv/proj")


def test_no_maps_are_false_and_change_nothing() -> None:
    none = PathMaps([])
    assert not none
    assert MAPS
    assert none.to_remote(NEW_SESSION) is NEW_SESSION
    assert none.to_local(TOOL_CALL_UPDATE) is TOOL_CALL_UPDATE


# Paths.


@pytest.mark.parametrize(
    ("path", "there"),
    [
        ("/Users/ann/proj", "/srv/proj"),
        ("/Users/ann/proj/", "/srv/proj/"),
        ("/Users/ann/proj/a/../b//c", "/srv/proj/a/../b//c"),
        ("/Users/ann/proj/back\\slash", "/srv/proj/back\\slash"),
        ("/Users/ann/project", "/Users/ann/project"),
        ("/Users/ann/PROJ", "/Users/ann/PROJ"),
        ("/Users/ann", "/Users/ann"),
        ("/Users", "/Users"),
        ("Users/ann/proj", "Users/ann/proj"),
        ("/x/Users/ann/proj", "/x/Users/ann/proj"),
        ("", ""),
    ],
)
def test_a_path_is_mapped_by_whole_components(path: str, there: str) -> None:
    assert remote(path) == there


def test_the_longest_directory_wins_both_ways() -> None:
    maps = PathMaps([("/a", "/x"), ("/a/b/c", "/x/y"), ("/a/b", "/z")])
    assert [remote(path, maps) for path in ("/a/q", "/a/b/q", "/a/b/c/q")] == ["/x/q", "/z/q", "/x/y/q"]
    assert [local(path, maps) for path in ("/x/q", "/z/q", "/x/y/q")] == ["/a/q", "/a/b/q", "/a/b/c/q"]


def test_the_first_of_two_names_for_one_directory_is_used_on_the_way_back() -> None:
    maps = PathMaps([("/a", "/x"), ("/b", "/x")])
    assert [remote("/a/q", maps), remote("/b/q", maps), local("/x/q", maps)] == ["/x/q", "/x/q", "/a/q"]


def test_a_mapped_path_is_not_mapped_again() -> None:
    assert remote("/a/q", PathMaps([("/a", "/b"), ("/b", "/c")])) == "/b/q"


def test_the_root_can_be_mapped() -> None:
    maps = PathMaps([("/", "/mnt/laptop")])
    assert remote("/Users/x", maps) == "/mnt/laptop/Users/x"
    assert local("/mnt/laptop", maps) == "/"
    assert local("/mnt/laptop/x", maps) == "/x"
    assert local_uri("file:///mnt/laptop", maps) == "file:///"
    assert local_uri("file:///mnt/laptop//x", maps) == "file:////x"
    assert remote("", maps) == ""
    assert remote("relative", maps) == "relative"


def test_a_directory_without_a_letter_of_ascii_can_be_mapped() -> None:
    maps = PathMaps([("/日本", "/ключ")])
    assert remote("/日本/a", maps) == "/ключ/a"
    assert remote_uri("file:///%E6%97%A5%E6%9C%AC/%61", maps) == "file:///%D0%BA%D0%BB%D1%8E%D1%87/%61"


# URIs.


@pytest.mark.parametrize(
    ("uri", "there"),
    [
        ("file:///Users/ann/proj", "file:///srv/proj"),
        ("file:///Users/ann/proj/", "file:///srv/proj/"),
        ("file://localhost/Users/ann/proj/a", "file://localhost/srv/proj/a"),
        ("FILE://LocalHost/Users/ann/proj/a", "FILE://LocalHost/srv/proj/a"),
        ("file:/Users/ann/proj/a", "file:/srv/proj/a"),
        ("file:///Users/ann/proj/%c3%A9%2F+x?a=/Users#L1:2", "file:///srv/proj/%c3%A9%2F+x?a=/Users#L1:2"),
        ("file:///Users/ann/proj?q", "file:///srv/proj?q"),
        ("file:///Users/ann/proj#f\n", "file:///srv/proj#f\n"),
        ("file:///Users/ann%2Fproj/a", "file:///Users/ann%2Fproj/a"),
        ("file:///Users/ann/project", "file:///Users/ann/project"),
        ("file://server/Users/ann/proj", "file://server/Users/ann/proj"),
        ("file:Users/ann/proj", "file:Users/ann/proj"),
        ("http://localhost/Users/ann/proj", "http://localhost/Users/ann/proj"),
        ("zed:///Users/ann/proj", "zed:///Users/ann/proj"),
        ("/Users/ann/proj", "/Users/ann/proj"),
    ],
)
def test_a_file_uri_is_mapped_and_keeps_the_rest_as_it_is_spelled(uri: str, there: str) -> None:
    assert remote_uri(uri) == there


def test_a_directory_is_encoded_in_a_uri() -> None:
    maps = PathMaps([("/Users/ann/my proj#1", "/srv/100% (å)")])
    assert remote_uri("file:///Users/ann/my%20proj%231/a", maps) == "file:///srv/100%25%20(%C3%A5)/a"
    assert local_uri("file:///srv/100%25%20(%c3%a5)/a", maps) == "file:///Users/ann/my%20proj%231/a"


# Windows.

WINDOWS = PathMaps([(r"C:\Users\Ann\proj", "/srv/proj"), (r"\\box\share", "/mnt/share"), ("D:/", "/mnt/d")])


@pytest.mark.parametrize(
    ("path", "there"),
    [
        (r"C:\Users\Ann\proj", "/srv/proj"),
        (r"c:\users\ANN\Proj\Src\a.py", "/srv/proj/Src/a.py"),
        ("C:/Users/Ann/proj/src/a.py", "/srv/proj/src/a.py"),
        (r"C:\Users/Ann\proj/src" + "\\", "/srv/proj/src/"),
        (r"C:\Users\Ann\project", r"C:\Users\Ann\project"),
        (r"\\BOX\Share\a\b", "/mnt/share/a/b"),
        ("//box/share/a", "/mnt/share/a"),
        ("D:\\", "/mnt/d/"),
        (r"d:\x", "/mnt/d/x"),
        ("D:x", "D:x"),
        (r"E:\x", r"E:\x"),
    ],
)
def test_a_windows_path_is_compared_without_case_and_becomes_posix(path: str, there: str) -> None:
    assert remote(path, WINDOWS) == there


@pytest.mark.parametrize(
    ("path", "here"),
    [
        ("/srv/proj", r"C:\Users\Ann\proj"),
        ("/srv/proj/Src/a.py", r"C:\Users\Ann\proj\Src\a.py"),
        ("/mnt/share/a", r"\\box\share\a"),
        ("/mnt/d", "D:\\"),
        ("/mnt/d/x", r"D:\x"),
        ("/SRV/proj", "/SRV/proj"),
    ],
)
def test_a_path_goes_back_to_windows_with_backslashes(path: str, here: str) -> None:
    assert local(path, WINDOWS) == here


@pytest.mark.parametrize(
    ("uri", "there"),
    [
        ("file:///C:/Users/Ann/proj/a%20b", "file:///srv/proj/a%20b"),
        ("file:///c%3A/users/ann/proj/a#L1", "file:///srv/proj/a#L1"),
        ("file://localhost/C:/Users/Ann/proj", "file://localhost/srv/proj"),
        ("file://box/share/a", "file:///mnt/share/a"),
        ("file:///D:/", "file:///mnt/d/"),
        ("file:///D:/x", "file:///mnt/d/x"),
        ("file:///E:/x", "file:///E:/x"),
    ],
)
def test_a_windows_uri_is_mapped_in_its_usual_forms(uri: str, there: str) -> None:
    assert remote_uri(uri, WINDOWS) == there


@pytest.mark.parametrize(
    ("uri", "here"),
    [
        ("file:///srv/proj/a%20b", "file:///C:/Users/Ann/proj/a%20b"),
        ("file:///srv/proj", "file:///C:/Users/Ann/proj"),
        ("file:///mnt/share/a", "file://box/share/a"),
        ("file:///mnt/d", "file:///D:/"),
    ],
)
def test_a_uri_goes_back_to_windows_with_slashes(uri: str, here: str) -> None:
    assert local_uri(uri, WINDOWS) == here


# Properties.

names = st.text(st.characters(codec="utf-8", exclude_characters="/\\\x00"), min_size=1, max_size=6).filter(
    lambda name: name not in (".", "..")
)
tails = st.lists(names, max_size=3).map("/".join)
roots = st.sampled_from(["/Users/ann/proj", "/Users/ann", "/opt/日本/x y", "C:\\Work", "\\\\box\\share"])
EVERYTHING = PathMaps(
    [
        ("/Users/ann/proj", "/srv/proj"),
        ("/Users/ann", "/home/ann"),
        ("/opt/日本/x y", "/data/ключ %41"),
        ("C:\\Work", "/mnt/c"),
        ("\\\\box\\share", "/mnt/share"),
    ]
)


@given(roots, tails, st.booleans())
def test_a_mapped_path_comes_back_as_it_was(root: str, tail: str, ascii_only: bool) -> None:
    separator = "/" if root.startswith("/") else "\\"
    path = root + (separator + tail.replace("/", separator) if tail else "")
    message = text({"method": "session/new", "params": {"cwd": path}}, ensure_ascii=ascii_only)
    moved = json.loads(EVERYTHING.to_remote(message))["params"]["cwd"]
    assert moved.startswith(("/srv/proj", "/home/ann", "/data/ключ %41", "/mnt/"))
    assert local(moved, EVERYTHING) == path


json_values = st.recursive(
    st.none() | st.integers() | st.sampled_from([HERE, f"{HERE}/a", f"file://{HERE}", f"Look at {HERE}."]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["cwd", "path", "uri", "text", "params", "prompt", "resource", "_meta", "content"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


def blanked(message: Any) -> Any:
    """The message without what may change in a prompt."""
    message = json.loads(json.dumps(message))
    params = message["params"]
    blocks = params.get("prompt") if isinstance(params, dict) else None
    for block in blocks if isinstance(blocks, list) else []:
        if isinstance(block, dict):
            block.pop("uri", None)
            if isinstance(block.get("resource"), dict):
                block["resource"].pop("uri", None)
    return message


@given(json_values)
def test_nothing_changes_outside_the_places_of_the_table(params: Any) -> None:
    message = {"id": 1, "method": "session/prompt", "params": params}
    assert blanked(json.loads(MAPS.to_remote(text(message)))) == blanked(message)


@given(st.binary(max_size=40), st.binary(max_size=20))
def test_no_input_breaks_the_mapping(before: bytes, after: bytes) -> None:
    for message in (before, NEW_SESSION[:-20] + before + NEW_SESSION[-20:], NEW_SESSION[:20] + after):
        MAPS.to_remote(message)
        MAPS.to_local(message)


# Reading a map.


@pytest.mark.parametrize(
    ("written", "pair"),
    [
        ("/Users/ann/proj=/srv/proj", ("/Users/ann/proj", "/srv/proj")),
        ("/Users/ann/proj/=/srv/proj//", ("/Users/ann/proj", "/srv/proj")),
        ("/=/", ("/", "/")),
        ("/a=b=/srv", ("/a=b", "/srv")),
        ("/a=/b=c", ("/a", "/b=c")),
        (r"C:\Users\ann=/srv", (r"C:\Users\ann", "/srv")),
        ("C:/Users/ann/=/srv", (r"C:\Users\ann", "/srv")),
        ("C:\\=/srv", ("C:\\", "/srv")),
        (r"\\box\share" + "\\=/srv", (r"\\box\share", "/srv")),
    ],
)
def test_a_map_is_two_absolute_paths(written: str, pair: tuple[str, str]) -> None:
    assert parse_map(written) == pair


@pytest.mark.parametrize(
    "written", ["", "/a", "/a=", "=/b", "a=/b", "/a=b", "/a:/b", "~/a=/b", "/a=~/b", "C:=/b", "/a=C:\\b", "\\a=/b"]
)
def test_a_map_of_anything_else_is_refused_with_an_example(written: str) -> None:
    with pytest.raises(UsageError, match=r"LOCAL=REMOTE .*/Users/ann/proj=/srv/proj"):
        parse_map(written)


@pytest.mark.parametrize("pair", [("proj", "/srv"), ("/a", "srv"), ("/a", "C:\\b"), ("", "")])
def test_maps_of_paths_that_are_not_absolute_are_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match="absolute"):
        PathMaps([pair])


# Suggesting a map.


def suggest(path: str, *directories: str, agent_cwd: str | None = None) -> str:
    return suggest_map(path, roots=["/home/ann"], agent_cwd=agent_cwd, is_directory=lambda path: path in directories)


def test_the_agents_directory_of_the_same_name_comes_first() -> None:
    assert suggest("/Users/ann/proj/", "/home/ann/proj", agent_cwd="/srv/proj/") == "/Users/ann/proj=/srv/proj"


def test_suggest_map_then_tries_the_longest_end_of_the_path_in_the_home_folder() -> None:
    suggestion = suggest("/Users/ann/code/proj", *("/home/ann/proj", "/home/ann/code/proj"), agent_cwd="/srv/other")
    assert suggestion == "/Users/ann/code/proj=/home/ann/code/proj"


def test_suggest_map_falls_back_to_the_agents_cwd_or_the_home_folder() -> None:
    assert suggest("/Users/ann/proj", agent_cwd="/srv/other") == "/Users/ann/proj=/srv/other"
    assert suggest("/Users/ann/proj") == "/Users/ann/proj=/home/ann"
    assert suggest("/") == "/=/home/ann"


def test_suggest_map_searches_each_root_and_falls_back_to_the_first() -> None:
    def find(path: str) -> str:
        roots = ["/srv", "/home/ann"]
        return suggest_map(path, roots=roots, agent_cwd=None, is_directory={"/home/ann/proj", "/srv/b/c"}.__contains__)

    assert find("/Users/ann/proj") == "/Users/ann/proj=/home/ann/proj"
    assert find("/Users/a/b/c") == "/Users/a/b/c=/srv/b/c"
    assert find("/Users/ann/else") == "/Users/ann/else=/srv"


def test_a_windows_path_gets_a_suggestion_too() -> None:
    assert suggest(r"C:\Users\ann\code\proj", "/home/ann/code/proj") == r"C:\Users\ann\code\proj=/home/ann/code/proj"
    assert suggest("C:/Users/ann/Proj", agent_cwd="/srv/proj") == r"C:\Users\ann\Proj=/srv/proj"


def test_suggest_map_looks_only_in_the_home_folder_and_at_few_paths() -> None:
    looked: list[str] = []

    def look(path: str) -> bool:
        looked.append(path)
        return ".." in path

    found = suggest_map("/a/../../etc", roots=["/home/ann"], agent_cwd=None, is_directory=look)
    assert found == "/a/../../etc=/home/ann"
    assert looked == ["/home/ann/etc"]
    suggest_map("/a" * 10_000, roots=["/home/ann"], agent_cwd=None, is_directory=look)
    assert len(looked) < 100


@pytest.mark.parametrize(
    ("path", "agent_cwd"), [("/Users/ann/proj", "/srv/proj"), (r"\\box\share\proj", None), ("C:\\", None), ("/", "/")]
)
def test_a_suggestion_can_be_used_as_it_is(path: str, agent_cwd: str | None) -> None:
    pair = parse_map(suggest(path, "/home/ann/proj", agent_cwd=agent_cwd))
    assert remote(path, PathMaps([pair])).rstrip("/") == pair[1].rstrip("/")


def test_the_editors_name_for_a_path_is_found_where_a_map_has_made_it() -> None:
    maps = PathMaps([("/Users/ann", "/srv")])
    assert maps.local_path("/srv/proj") == "/Users/ann/proj"
    assert maps.local_path("/elsewhere") == "/elsewhere"
    assert maps.remote_path("/Users/ann/proj") == "/srv/proj"
    assert maps.remote_path("/elsewhere") == "/elsewhere"


def mapped(message: dict[str, Any]) -> Any:
    return json.loads(PathMaps([("/home/ann/proj", "/srv/proj")]).to_local(json.dumps(message).encode()))


PATCH_THERE = (
    "diff --git /srv/proj/a b /srv/proj/a b\nindex 1..2\n--- /srv/proj/a b\n+++ /srv/proj/a b\n@@ -1 +1 @@\n"
    "--- /srv/proj/text\n+++ /srv/proj/text\ndiff --git a/srv/proj/x b/srv/proj/y\nrename from a/srv/proj/x\n"
    "rename to b/srv/proj/y\n--- /dev/null\n+++ /elsewhere\n"
)
PATCH_HERE = (
    "diff --git /home/ann/proj/a b /home/ann/proj/a b\nindex 1..2\n--- /home/ann/proj/a b\n+++ /home/ann/proj/a b\n"
    "@@ -1 +1 @@\n--- /srv/proj/text\n+++ /srv/proj/text\ndiff --git a/home/ann/proj/x b/home/ann/proj/y\n"
    "rename from a/home/ann/proj/x\nrename to b/home/ann/proj/y\n--- /dev/null\n+++ /elsewhere\n"
)


def new_call(root: str, patch: str) -> dict[str, Any]:
    change = {"operation": "move", "path": f"{root}/y", "oldPath": f"{root}/x"}
    diff = {"type": "diff", "changes": [change], "patch": {"format": "git_patch", "text": patch}}
    return {"toolCallId": "t", "content": [diff], "locations": [{"path": f"{root}/y"}]}


def new_messages(root: str, patch: str) -> list[dict[str, Any]]:
    block = {"type": "resource_link", "uri": f"file://{root}/a", "name": "a"}
    call = new_call(root, patch)
    updates = [
        {"sessionUpdate": "tool_call_update", **call},
        {"sessionUpdate": "tool_call_content_chunk", "toolCallId": "t", "content": call["content"][0]},
        {"sessionUpdate": "agent_message", "messageId": "m", "content": [block]},
        {"sessionUpdate": "terminal_update", "terminalId": "x", "cwd": root},
    ]
    subjects = [{"type": "command", "command": "ls", "cwd": root}, {"type": "tool_call", "toolCall": call}]
    return [
        *({"method": "session/update", "params": {"sessionId": "s", "update": update}} for update in updates),
        *({"id": 1, "method": "session/request_permission", "params": {"subject": subject}} for subject in subjects),
    ]


@pytest.mark.parametrize("number", range(6))
def test_the_paths_of_version_2_are_mapped(number: int) -> None:
    there, here = new_messages("/srv/proj", PATCH_THERE), new_messages("/home/ann/proj", PATCH_HERE)
    assert mapped(there[number]) == here[number]


@pytest.mark.parametrize(("uri", "has"), [(f"file://{HERE}/a%20b", True), ("file:///etc/hosts", False), ("x:y", False)])
def test_a_map_has_the_files_below_its_directory(uri: str, *, has: bool) -> None:
    assert MAPS.has_uri(uri) is has
