"""MCP servers that mean the machine where they are started: which they are, and what is left of a request."""

import copy
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.config.agent_options import McpPolicy
from acp_gateway.core.mcp_servers import (
    LIST_LENGTH,
    NESTED,
    McpServer,
    NotUnderstood,
    may_be_loopback,
    screen,
)
from acp_gateway.protocol import methods
from acp_gateway.protocol.jsonrpc import parse
from tests.fuzz.effort import effort

PROGRAM = '{"name" : "files","command":"/usr/bin/mcp-files","args":[],"env":[{"name":"KEY","value":"s3cret"}]}'
OTHER_PROGRAM = '{"name":"git", "type":"stdio","command":"git-mcp"}'
LOCAL_URL = '{"type":"http","name":"notes","url":"http://localhost:3000/mcp","headers":[]}'
LOCAL_EVENTS = '{"type":"sse","name":"old","url":"http://127.0.0.1/sse","headers":[]}'
ELSEWHERE = '{"type":"http","name":"docs", "url":"https://mcp.example.com/mcp","headers":[],"_meta":{"n":1.10}}'
CARRIED = r'{"type":"acp","name":"ed\u0069tor","id":"7"}'


def request(servers: str, more: str = "", method: str = "session/new") -> bytes:
    """A request with such servers, spaced as no encoder would."""
    params = f'{{"cwd":"/srv","mcpServers" :{servers}{more}}}'
    return f'{{ "jsonrpc":"2.0","id":1e0,"method":"{method}","params":{params} }}'.encode()


def with_server(**server: Any) -> bytes:
    return request(json.dumps([server]))


# Policies


@pytest.mark.parametrize(
    "servers",
    [
        "[]",
        "null",
        f"[{ELSEWHERE}]",
        f"[ {CARRIED} ,{ELSEWHERE}]",
        '[{"type":"SSE","name":"a","url":"HTTPS://10.0.0.1/","x":{"command":"of no server"}}]',
    ],
)
@pytest.mark.parametrize("policy", ["drop", "deny", ("files",), ()])
def test_servers_elsewhere_pass_and_no_byte_changes(servers: str, policy: McpPolicy) -> None:
    text = request(servers)
    screened = screen(text, policy)
    assert (screened.text, screened.dropped, screened.refused) == (text, (), ())


def test_a_request_without_servers_passes() -> None:
    for text in (b'{"id":1,"method":"session/load","params":{"sessionId":"s"}}', b'{"id":1,"method":"session/new"}'):
        assert screen(text, "deny").text == text


@pytest.mark.parametrize("params", ["[]", "7", '"mcpServers"', "null", '["mcpServers", {"mcpServers" : [1]}]'])
def test_what_has_no_members_to_look_at_passes_but_for_lists_in_it(params: str) -> None:
    text = f'{{"id":1,"method":"session/new","params":{params},"mcpServers":[1]}}'.encode()
    assert screen(text, "drop").text == text.replace(b"[1]}]", b"[]}]")


def test_mcp_servers_beside_the_parameters_are_left() -> None:
    text = b'{"id":1,"method":"session/new","mcpServers":[{"command":"x"}]}'
    assert screen(text, "drop").text == text


def test_dropped_servers_leave_the_others_and_all_else_as_they_were() -> None:
    servers = f"[{PROGRAM}, {ELSEWHERE},{LOCAL_URL}, {CARRIED},{LOCAL_EVENTS}]"
    screened = screen(request(servers, ',"_meta": { "n":1E400 }'), "drop")
    assert screened.text == request(f"[{ELSEWHERE},{CARRIED}]", ',"_meta": { "n":1E400 }')
    assert screened.dropped == (McpServer("files", "stdio"), McpServer("notes", "http"), McpServer("old", "sse"))
    assert not screened.refused


def test_dropped_servers_are_named_and_nothing_else_of_them_is_told() -> None:
    screened = screen(with_server(name="files", command="/bin/x", env=[{"name": "KEY", "value": "s3cret"}]), "drop")
    assert "s3cret" not in repr(screened)
    assert "KEY" not in repr(screened)
    assert "/bin/x" not in repr(screened)


def test_a_request_with_local_servers_is_refused_whole_where_they_are_denied() -> None:
    screened = screen(request(f"[{PROGRAM},{ELSEWHERE},{LOCAL_URL}]"), "deny")
    assert screened.refused == (McpServer("files", "stdio"), McpServer("notes", "http"))
    assert not screened.dropped


@pytest.mark.parametrize(
    "text",
    [
        request(f"[{PROGRAM},{LOCAL_URL}]", ',"_meta":{"mcpServers":[1]}'),
        request("7"),
        request('[{"command":"a","command":"b"},3]'),
        request("[" + "1," * 200_000 + "1]"),
    ],
)
def test_where_all_are_allowed_no_byte_changes_and_nothing_is_judged(text: bytes) -> None:
    screened = screen(text, "allow")
    assert (screened.text, screened.dropped, screened.refused) == (text, (), ())


def test_local_servers_of_certain_names_pass_and_the_others_are_dropped() -> None:
    screened = screen(request(f"[{PROGRAM},{OTHER_PROGRAM},{LOCAL_URL},{ELSEWHERE}]"), ("git", "notes"))
    assert screened.text == request(f"[{OTHER_PROGRAM},{LOCAL_URL},{ELSEWHERE}]")
    assert screened.dropped == (McpServer("files", "stdio"),)


@pytest.mark.parametrize(
    ("server", "passes"),
    [
        (r'{"name":"g\u0069t","command":"x"}', True),
        ('{"name":"GIT","command":"x"}', False),
        ('{"Name":"git","command":"x"}', False),
        ('{"name":["git"],"command":"x"}', False),
        ('{"command":"x"}', False),
    ],
)
def test_a_name_is_the_string_that_the_client_means(server: str, *, passes: bool) -> None:
    assert (screen(request(f"[{server}]"), ("git",)).dropped == ()) is passes


def test_a_server_without_a_name_is_named_by_none() -> None:
    assert screen(with_server(command="x"), ("files", "")).dropped == ()
    assert screen(with_server(command="x"), ("files",)).dropped == (McpServer("", "stdio"),)


# Which servers are local


@pytest.mark.parametrize(
    ("server", "kind"),
    [
        ({"command": "x"}, "stdio"),
        ({"type": "stdio"}, "stdio"),
        ({"type": "stdio", "command": "x"}, "stdio"),
        ({}, "stdio"),
        ({"type": None}, "stdio"),
        ({"type": 7, "url": "https://example.com"}, "stdio"),
        ({"Type": "http", "url": "https://example.com"}, "stdio"),
        ({"type": "http", "url": "https://example.com", "command": "x"}, "stdio"),
        ({"type": "http", "url": "https://example.com", "Command": None}, "stdio"),
        ({"type": "acp", "id": "7", "command": "x"}, "stdio"),
        ({"type": "http", "url": "https://example.com", "Command\0": "x"}, "stdio"),
        ({"type": "acp", "id": "7", "url": "http://localhost"}, "acp"),
        ({"type": "acp", "id": "7", "URL": "https://example.com"}, "acp"),
        ({"type": "acp", "id": "7"}, None),
        ({"type": "ACP", "id": "7", "url": "https://example.com"}, None),
        ({"type": "http", "url": "https://example.com"}, None),
        ({"type": "Http", "url": "https://example.com"}, None),
        ({"type": "http", "url": "http://localhost"}, "http"),
        ({"type": "SSE", "url": "http://localhost"}, "sse"),
        ({"type": "sse"}, "sse"),
        ({"type": "http", "url": None}, "http"),
        ({"type": "http", "url": ["https://example.com"]}, "http"),
        ({"type": "http", "URL": "https://example.com"}, "http"),
        ({"type": "http", "uri": "https://example.com"}, "http"),
        ({"type": "websocket", "url": "wss://example.com"}, "websocket"),
        ({"type": "Unheard-of"}, "unheard-of"),
    ],
)
def test_the_kind_of_a_local_server(server: dict[str, Any], kind: str | None) -> None:
    expected = () if kind is None else (McpServer("n", kind),)
    assert screen(with_server(name="n", **server), "drop").dropped == expected


@pytest.mark.parametrize(
    "servers",
    [
        "{}",
        '"x"',
        "7",
        "true",
        "[7]",
        "[[]]",
        f'[{ELSEWHERE},"x"]',
        '[{"type":"http","url":"https://example.com","url":"http://127.0.0.1"}]',
        '[{"type":"http","url":"https://example.com","URL":"http://127.0.0.1"}]',
        '[{"name":"git","Name":"files","command":"x"}]',
        r'[{"type":"http","t\u0079pe":"stdio","url":"https://example.com"}]',
        '[{"type":"http","_type":"stdio","url":"https://example.com"}]',
    ],
)
@pytest.mark.parametrize("policy", ["drop", "deny", ("git",)])
def test_servers_that_can_be_read_in_more_than_one_way_are_refused(servers: str, policy: McpPolicy) -> None:
    with pytest.raises(NotUnderstood):
        screen(request(servers), policy)


@pytest.mark.parametrize("most", [1, LIST_LENGTH, 1500])
def test_a_session_has_at_most_max_mcp_servers(most: int) -> None:
    servers = [ELSEWHERE] * most
    assert not screen(request(f"[{','.join(servers)}]"), "drop", most).dropped
    with pytest.raises(NotUnderstood, match=rf"at most {most} servers \(max_mcp_servers\)"):
        screen(request(f"[{','.join([*servers, ELSEWHERE])}]"), "drop", most)


def test_a_lone_surrogate_in_a_request_hides_nothing() -> None:
    screened = screen(request(f"[{PROGRAM},{ELSEWHERE}]", r',"_meta":{"half":"\ud83d","mcpServers":[1]}'), "drop")
    assert screened.text == request(f"[{ELSEWHERE}]", r',"_meta":{"half":"\ud83d","mcpServers":[]}')
    assert len(screened.dropped) == 2


@pytest.mark.parametrize("size", [10, 20_000])
def test_a_lone_surrogate_in_a_list_deeper_in_a_request_is_dropped_with_it(size: int) -> None:
    text = request("[]", r',"_meta":{"mcpServers":["\ud83d"],"x":"%s"}' % ("a" * size))
    assert screen(text, "drop").text == text.replace(rb'["\ud83d"]', b"[]")


def test_a_server_has_only_so_many_members() -> None:
    server = json.dumps({f"k{number}": number for number in range(1001)})
    with pytest.raises(NotUnderstood, match="more than 512 members"):
        screen(request(f"[{server}]"), "drop")


# Lists deeper in a request


@pytest.mark.parametrize(
    "name",
    [
        "mcpServers",
        "McpServers",
        "mcp_servers",
        "mcp-servers",
        "MCPSERVERS",
        "MCP_SERVERS",
        "_mcpServers",
        "m_c-p__servers_",
        r"mcp\u0053ervers",
        r"\u006d\u0043p\u005fservers",
        r"mcp\u002Dservers",
        "mcp\u017fervers",
        r"mcp\u017FERVER\u017f",
        r"mcpServers\u0000",
        r"mcp_servers\u0000 \" and more",
    ],
)
@pytest.mark.parametrize(
    ("where", "left"),
    [
        (',"_meta":{{{}}}', ',"_meta":{{{}}}'),
        (
            ',"_meta":{{"claudeCode":{{"options":{{"a":1,{}}}}}}}',
            ',"_meta":{{"claudeCode":{{"options":{{"a":1,{}}}}}}}',
        ),
        (',"x":[[],[{{}},{{{}}}]]', ',"x":[[],[{{}},{{{}}}]]'),
        (",{}", ",{}"),
    ],
)
def test_lists_deeper_in_a_request_are_emptied(name: str, where: str, left: str) -> None:
    if where == ",{}" and json.loads(f'"{name}"') == "mcpServers":
        return  # The very one that is meant, twice: `strict_parsing.repeated_member` sees to that.
    full, empty = f'"{name}"\t: {{"x":{PROGRAM}}}', f'"{name}"\t: {{}}'
    screened = screen(request(f"[{ELSEWHERE}]", where.format(full)), "drop")
    assert screened.text == request(f"[{ELSEWHERE}]", left.format(empty))
    assert screened.dropped == (McpServer("_meta", NESTED),)
    assert screen(request("[]", where.format(full)), "deny").refused == (McpServer("_meta", NESTED),)


@pytest.mark.parametrize(
    ("value", "left"),
    [("[1]", "[]"), ('{"a":1}', "{}"), ('"a, [b]"', "null"), ("7", "null"), ("[ ]", "[]"), ("true", "null")],
)
def test_what_is_left_is_of_the_kind_that_it_was(value: str, left: str) -> None:
    text = request("[]", f',"_meta":{{"mcpServers":{value},"z":1}}')
    assert screen(text, "drop").text == request("[]", f',"_meta":{{"mcpServers":{left},"z":1}}')


@pytest.mark.parametrize(
    "more",
    [
        ',"_meta":{"mcpServers":[],"x":{"mcp_servers":{},"mcpServers":null}}',
        ',"_meta":{"x":"mcpServers","y":["mcpServers"],"z":"\\"mcpServers\\":[1]"}',
        r',"_meta":{"x\"mcpServers":[1],"x\\\"mcpServers":[2]}',
        r',"_meta":{"mcpServers\"":[1],"mcpServersX":[1],"xmcpServers":[1],"mcpServers ":[1]}',
        r',"_meta":{"\\":"mcpServers","x":"\\","mcpServers":[]}',
    ],
)
def test_what_only_looks_like_a_list_stays(more: str) -> None:
    text = request(f"[{ELSEWHERE}]", more)
    parse(text)
    assert screen(text, "deny").text == text


def test_several_lists_are_all_emptied_and_told_of_once() -> None:
    more = ',"_meta":{"a":{"mcpServers":[{"mcpServers":[1]}]},"mcpServers":{"b":2}},"x":{"mcp_servers":[3]}'
    screened = screen(request(f"[{PROGRAM}]", more), "drop")
    left = ',"_meta":{"a":{"mcpServers":[]},"mcpServers":{}},"x":{"mcp_servers":[]}'
    assert screened.text == request("[]", left)
    assert screened.dropped == (McpServer("files", "stdio"), McpServer("_meta", NESTED))


def test_a_list_in_a_server_that_passes_is_emptied() -> None:
    server = '{"type":"acp","name":"a","id":"7","_meta":{"mcpServers":[1]}}'
    assert screen(request(f"[{server}]"), "drop").text == request("[" + server.replace("[1]", "[]") + "]")


def test_a_list_that_no_other_stands_beside_is_found_as_well() -> None:
    text = b'{"id":1,"method":"session/load","params":{"_meta":{"mcpServers":[1]}}}'
    assert screen(text, "drop").text == text.replace(b"[1]", b"[]")


def test_there_are_only_so_many_lists() -> None:
    def nested(count: int) -> bytes:
        return request("[]", ',"_meta":[' + ",".join(['{"mcpServers":[1]}'] * count) + "]")

    assert b"[1]" not in screen(nested(LIST_LENGTH), "drop").text
    with pytest.raises(NotUnderstood, match="more than 256 lists"):
        screen(nested(LIST_LENGTH + 1), "drop")


@pytest.mark.parametrize(
    "meta",
    [
        b'{"a":' * 400 + b"[" + b"1," * 200_000 + b"1]" + b"}" * 400,
        b'{"a":' * 400 + b'"' + b"\\u006d" * 100_000 + b'"' + b"}" * 400,
        b'"' + b"mcp" * 300_000 + b'"',
        b'["' + b"_" * 500_000 + b'"]',
        b'["' + rb"\u005f" * 100_000 + b'"]',
    ],
)
def test_a_request_that_is_large_and_deep_is_looked_through_in_one_go(meta: bytes) -> None:
    text = request("[]", ',"_meta":META').replace(b"META", meta)
    began = time.process_time()
    assert screen(text, "drop").text == text
    # A walk that starts over on each level takes a hundred times as long.
    assert time.process_time() - began < 1


# Any request


NAMES = st.sampled_from(
    [
        "mcpServers",
        "mcp_servers",
        "MCP-servers",
        "_meta",
        "command",
        "type",
        "url",
        "name",
        "Command",
        "a",
        "Url",
        "mcp\u017fervers",
    ]
)
TEXTS = st.sampled_from(
    [
        "stdio",
        "http",
        "sse",
        "acp",
        "x",
        "",
        "http://localhost/",
        "https://example.com",
        "http://127.1",
        '"mcpServers":[]',
        "\\",
        "\ud83d",
    ]
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 2), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(NAMES, inner, max_size=4)),
    max_leaves=25,
)
SERVERS = st.fixed_dictionaries(
    {},
    optional={
        "name": TEXTS,
        "type": st.sampled_from(["stdio", "http", "sse", "acp", "HTTP", "other", None]),
        "command": TEXTS,
        "url": TEXTS,
        "env": st.lists(st.fixed_dictionaries({"name": TEXTS, "value": TEXTS}), max_size=1),
        "_meta": VALUES,
    },
)
PARAMS = st.one_of(
    st.dictionaries(st.one_of(NAMES, st.just("mcpServers")), VALUES, max_size=4),
    st.fixed_dictionaries({"mcpServers": st.lists(SERVERS, max_size=4)}, optional={"_meta": VALUES, "a": VALUES}),
)


def is_list_of_servers(name: str) -> bool:
    return name.replace("_", "").replace("-", "").casefold() == "mcpservers"


def local_servers(params: Any) -> list[Any]:
    """Return the local servers: slow, and written independently of the tested code."""

    def walk(value: Any, *, top: bool = False) -> list[Any]:
        if isinstance(value, list):
            return [found for element in value for found in walk(element)]
        if not isinstance(value, dict):
            return []
        found = []
        for name, inner in value.items():
            if is_list_of_servers(name) and not (top and name == "mcpServers"):
                found += [inner] if inner is not None and inner not in ({}, []) else []
            elif top and name == "mcpServers":
                found += [server for server in inner or [] if is_local(server)] + walk(inner)
            else:
                found += walk(inner)
        return found

    return walk(params, top=True)


def is_local(server: dict[str, Any]) -> bool:
    folded = {name.casefold() for name in server}
    if "command" in folded:
        return True
    kind = str(server.get("type") or "stdio").lower()
    url = server.get("url")
    if kind == "acp" and "url" not in folded:
        return False
    return kind not in ("http", "sse", "acp") or url != "https://example.com"


def passes_through(before: Any, after: Any) -> bool:
    """Return True if nothing was added, and only servers are missing."""
    if isinstance(before, dict) and isinstance(after, dict):
        return list(before) == list(after) and all(
            is_list_of_servers(name) or passes_through(before[name], after[name]) for name in before
        )
    if isinstance(before, list) and isinstance(after, list):
        return len(before) == len(after) and all(map(passes_through, before, after))
    return bool(before == after)


@effort(100)
@given(PARAMS, st.sampled_from([None, 1]), st.booleans())
def test_no_request_has_a_local_server_left_in_it(params: dict[str, Any], indent: int | None, ascii_only: bool) -> None:
    message = {"id": 1, "method": "session/new", "params": params, "mcpServers": "beside"}
    text = json.dumps(message, indent=indent, ensure_ascii=ascii_only).encode(errors="replace")
    try:
        screened = screen(text, "drop")
    except NotUnderstood:
        servers = params.get("mcpServers")
        assert not isinstance(servers, list) or any(
            not isinstance(server, dict) or len(set(map(methods.fold, server))) < len(server) for server in servers
        )
        return
    left = json.loads(screened.text)
    local_before = local_servers(json.loads(text)["params"])
    assert local_servers(left["params"]) == []
    assert bool(screened.dropped) == bool(local_before)
    assert screened.text == text or screened.dropped
    assert passes_through(json.loads(text), left)
    assert bool(screen(text, "deny").refused) == bool(local_before)
    kept = left["params"].get("mcpServers") or []
    meant = copy.deepcopy(json.loads(text)["params"].get("mcpServers") or [])
    assert len(kept) == sum(not is_local(server) for server in meant)


# Loopback, in all its spellings


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost",
        "https://localhost:8443/mcp?x=1#y",
        "http://LOCALHOST./",
        "http://foo.localhost/",
        "http://foo.localhost.:80",
        "http://localhost.localdomain",
        "http://localhost4",
        "http://localhost6.localdomain6",
        "http://ip6-localhost/",
        "http://ip6-loopback/",
        "http://127.0.0.1",
        "http://127.0.0.1./",
        "http://127.255.0.3:1",
        "http://127.1",
        "http://127.0.1",
        "http://0x7f.1",
        "http://0X7F000001",
        "http://0x7f.0x0.0x0.0x1",
        "http://017700000001",
        "http://0177.0.0.01",
        "http://2130706433",
        "http://127.0x1",
        "http://0",
        "http://0.0.0.0:3000",
        "http://0x",
        "http://0.1",
        "http://1",
        "http://[::1]",
        "http://[::1]:80/",
        "http://[::]",
        "http://[0:0:0:0:0:0:0:1]",
        "http://[::ffff:127.0.0.1]",
        "http://[::ffff:7f00:1]",
        "http://[0000::FFFF:7F00:0001]",
        "http://[::127.0.0.1]",
        "http://[::ffff:0.0.0.0]",
        "http://[::1%25lo]",
        "http://user@localhost",
        "http://example.com@127.0.0.1",
        "http://example.com:443@[::1]/",
        "http://a@b@127.0.0.1",
        "http:127.0.0.1",
        "http:/127.0.0.1",
        "http:///127.0.0.1",
        r"http:\\127.0.0.1",
        r"http:\/127.0.0.1",
        r"http://127.0.0.1\@example.com",
        r"http://example.com\@127.0.0.1/",
        "HTTP://127.0.0.1",
        "h\tt\ntp://127\r.0.0.1",
        "http://loc\talhost",
        " \x00\x1fhttp://127.0.0.1 \x01",
        "http://127.0.0.1?",
        "http://127.0.0.1#@example.com",
        "http://127.0.0.1 @localhost",
        "http://\uff11\uff12\uff17.\uff10.\uff10.\uff11",
        "http://\u2460\u2461\u2466.0.0.1",
        "http://127\u30020\u30020\u30021",
        "http://127\uff0e0\uff610.1",
        "http://\uff4c\uff4f\uff43\uff41\uff4c\uff48\uff4f\uff53\uff54",
        "http://localho\u017ft",
        "http://local\u00adhost",
        "http://12\u200b7.0.0.1",
        "http://127.0.0.1\u2060",
        "http://%31%32%37.0.0.1",
        "http://127%2e0%2E0%2e1",
        "http://%6c%6fcalhost",
        "http://%EF%BC%91%EF%BC%92%EF%BC%97.1",
        # Unknown here, but perhaps not to an agent.
        "http://127.0.0.1%00.example.com",
        "http://127.0.0.1%20",
        "http://example.com%40127.0.0.1",
        "http://127.0.0.1%2f.example.com",
        "http://256.0.0.1",
        "http://1.2.3.4.5",
        "http://0x7f.1.example.08",
        "http://127.0.0.09",
        "http://999999999999",
        "http://" + "9" * 5000,
        "http://[::1",
        "http://[nonsense]",
        "http://[]",
        "http://",
        "http:",
        "https://?",
        "http://:80/",
        "http://user@/",
        "http://.",
        "",
        "localhost:3000",
        "//127.0.0.1/",
        "example.com",
        "ws://example.com",
        "file:///etc/passwd",
        "unix:/run/x.sock",
        "javascript:1",
    ],
)
def test_what_may_be_loopback(url: str) -> None:
    assert may_be_loopback(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.1",
        "http://192.168.1.2:3000/127.0.0.1",
        "http://128.1",
        "http://126.255.255.255",
        "http://0x80000001",
        "http://0xfe.1",
        "http://0200.1",
        "http://example.com",
        "HTTPS://EXAMPLE.COM:443/?url=http://127.0.0.1#localhost",
        "https://localhost@example.com/",
        "https://127.0.0.1:80@example.com/",
        "http://127.example.com",
        "http://127.0.0.1.example.com",
        "http://localhost.example.com",
        "http://notlocalhost",
        "http://localhosts/",
        "http://example.localhost.com",
        "http://127.0.0.1.nip",
        "http://my-host_1",
        "http://[2001:db8::1]",
        "http://[fe80::1%25eth0]",
        "http://[::ffff:10.0.0.1]:80/",
        "http://[1::1]",
        "http://[::1:0:0:1]",
        "http://bücher.example/",
        "http://例え.テスト/",
        "http://münchen",
    ],
)
def test_what_is_elsewhere(url: str) -> None:
    assert not may_be_loopback(url)
