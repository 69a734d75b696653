"""Plans of messages for the search for slow ones: a message is grown from a sender, a frame, and what fills it."""

import random
from typing import Final, NamedTuple

from acp_gateway.server.http.route import CODE_SIZE
from acp_gateway.server.listener import HELLO_SIZE

PATTERNS: Final = (
    *(
        b"[]",
        b"{}",
        b"[[]]",
        b"0",
        b"-0.1e9",
        b'""',
        b'"a"',
        b"true",
        b"null",
        b'{"":[]}',
        b'{"a":1}',
        b"[" * 90 + b"]" * 90,
    ),
    *(
        b'{"a":' * 90 + b"1" + b"}" * 90,
        rb'"\n"',
        rb'"\ud83d"',
        rb'"\\\\"',
        rb'"\u0041"',
        '"\u00e9"'.encode(),
        b'"\xe2\x80\xa8"',
    ),
    *(
        b'{"optionId":"a"}',
        b'{"sessionId":"s"}',
        b'{"sessionId":"%d"}',
        b'{"type":"text","text":"a"}',
        b'{"uri":"file:///home/a"}',
    ),
    *(
        b'{"name":"a","command":"b"}',
        b'{"type":"http","url":"http://a"}',
        b'{"mcpServers":[]}',
        b'{"mcpServers":{"a":1}}',
    ),
    *(
        b'{"path":"/home/a"}',
        b'{"type":"terminal","terminalId":"acp-gateway-terminal-1"}',
        b'{"terminalId":"t"}',
        b'"/home/a"',
    ),
    *(
        b'"mcpServers"',
        b'"id"',
        b'{"id":1}',
        b'"$/cancel_request"',
        b'{"cwd":"/home/a"}',
        b'"/"',
        b'{"type":"terminal"}',
    ),
)
"""Values that a message is filled with."""

NAMES: Final = (
    *(
        b'""',
        b'"a"',
        b'"%d"',
        b'"id"',
        b'"method"',
        b'"params"',
        b'"sessionId"',
        b'"\\ud83d"',
        b'"\\n"',
        b'"ID"',
        b'"update"',
    ),
    *(
        b'"mcpServers"',
        b'"mcp_servers"',
        b'"prompt"',
        b'"x%d"',
        '"\u00e9%d"'.encode(),
        b'"cwd"',
        b'"options"',
        b'"content"',
    ),
)
SPACES: Final = (b"", b"", b" ", b"\n", b" " * 20)
SPICES: Final = (
    b"",
    b"",
    rb'"\ud83d"',
    b"Infinity",
    b"1" * 5000,
    b'"/home/a/\\u0062"',
    b'"\xff"',
    b"[" * 800 + b"]" * 800,
)
"""One thing that is put beside what is repeated."""

HOLES: Final = ("array", "object", "string", "number", "deep")
"""Kinds of filling."""

FRAMES: Final[tuple[tuple[str, bytes], ...]] = (
    *(
        (who, b'{"id":9,"method":"%b","params":{"sessionId":"s","x":@}}' % name)
        for who in ("client", "observer", "guest")
        for name in (b"_x/y", b"session/prompt", b"session/load")
    ),
    ("client", b'{"id":9,"method":"session/prompt","params":{"sessionId":"s","prompt":@}}'),
    ("client", b'{"id":9,"method":"session/prompt","params":{"sessionId":"s","messageId":@,"prompt":[{},{}]}}'),
    ("client", b'{"id":9,"method":"session/new","params":{"cwd":"/srv","mcpServers":@}}'),
    ("client", b'{"id":9,"method":"session/new","params":{"cwd":"/srv","mcpServers":[{"name":"a","env":@}]}}'),
    ("client", b'{"id":9,"method":"session/new","params":{"cwd":"/srv","additionalDirectories":@,"mcpServers":[]}}'),
    ("client", b'{"id":9,"method":"session/new","params":{"cwd":@,"mcpServers":[]}}'),
    ("client", b'{"id":9,"method":"session/load","params":{"sessionId":"t","cwd":"/srv","_meta":@}}'),
    (
        "client",
        b'{"id":9,"method":"session/resume","params":{"sessionId":"s","_meta":{"acp-gateway":{"epoch":"e","prompts":@}}}}',
    ),
    ("client", b'{"id":9,"method":"session/list","params":{"cwd":"/srv","cursor":@}}'),
    ("client", b'{"id":9,"method":"session/set_mode","params":{"sessionId":"s","modeId":@}}'),
    ("client", b'{"id":9,"method":"session/set_config_option","params":{"sessionId":"s","configId":"a","value":@}}'),
    ("client", b'{"id":9,"method":"_x/y","params":@}'),
    ("client", b'{"id":9,"method":@,"params":{}}'),
    ("client", b'{"id":@,"method":"_x/y","params":{}}'),
    ("client", b'{"method":"$/cancel_request","params":{"requestId":@}}'),
    ("client", b'{"method":"_x/y","params":{"sessionId":@}}'),
    ("client", b'{"id":1,"result":{"outcome":{"outcome":"selected","optionId":"yes","_meta":@}}}'),
    ("client", b'{"id":1,"result":{"outcome":{"outcome":"selected","optionId":@}}}'),
    ("client", b'{"id":1,"result":@}'),
    ("client", b'{"id":1,"error":@}'),
    ("client", b'{"x":@,"id":9,"method":"_x/y"}'),
    ("newcomer", b'{"id":9,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":@}}'),
    ("newcomer", b'{"id":9,"method":"initialize","params":{"protocolVersion":1,"_meta":@}}'),
    *(
        ("agent", b'{"method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"%b",%b:@}}}' % pair)
        for pair in (
            (b"agent_message_chunk", b'"content"'),
            (b"tool_call", b'"content"'),
            (b"plan", b'"entries"'),
            (b"current_mode_update", b'"currentModeId"'),
            (b"config_option_update", b'"configOptions"'),
            (b"available_commands_update", b'"x"'),
            (b"session_info_update", b'"title"'),
            (b"usage_update", b'"x"'),
            (b"subagent_update", b'"sessionId"'),
            (b"user_message_chunk", b'"content"'),
            # What chat widgets are told by events of their own.
            (b"tool_call_update", b'"toolCallId":"t","content"'),
        )
    ),
    ("agent", b'{"method":"session/update","params":{"sessionId":"s","x":@,"update":{}}}'),
    # Each element is a container that path maps walk through.
    (
        "agent",
        b'{"method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"tool_call","content":[%b]}}}'
        % b",".join([b'{"content":{"uri":"file:///srv/a"},"x":@}'] * 900),
    ),
    ("agent", b'{"id":9,"method":"session/request_permission","params":{"sessionId":"s","options":@}}'),
    # What the file tap looks into.
    *(
        (
            "agent",
            b'{"method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"tool_call","kind":"%b",%b}}}'
            % pair,
        )
        for pair in (
            (b"read", b'"locations":@,"rawInput":{"paths":@}'),
            (b"execute", b'"rawInput":{"command":@},"rawOutput":@'),
            (b"search", b'"content":[{"content":{"text":@}}],"rawOutput":{"stdout":@}'),
            (b"search", b'"content":[%b]' % b",".join([b'{"content":{"text":@}}'] * 90)),
        )
    ),
    # Where chat widgets are told of terminals.
    *(
        (
            "agent",
            b'{"method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"tool_call","toolCallId":"t",%b}}}'
            % rest,
        )
        for rest in (
            b'"content":[%b]' % b",".join([b'{"_meta":{"acp-gateway":{"terminalEnd":{"x":@}}}}'] * 900),
            b'"_meta":{"acp-gateway":{"terminal":{"terminalId":"t","data":@}},"terminal_exit":{"exit_code":@}}',
        )
    ),
    (
        "agent",
        b'{"id":9,"method":"session/request_permission","params":{"sessionId":"s","toolCall":{"title":"a","content":@},"options":[]}}',
    ),
    ("agent", b'{"id":9,"method":"elicitation/create","params":{"sessionId":"s","message":@}}'),
    ("agent", b'{"id":9,"method":"elicitation/create","params":{"requestId":@}}'),
    ("agent", b'{"id":9,"method":"fs/read_text_file","params":{"sessionId":"s","path":@}}'),
    ("agent", b'{"id":9,"method":"terminal/create","params":{"sessionId":"s","env":@}}'),
    ("agent", b'{"id":9,"method":"terminal/output","params":{"sessionId":"s","terminalId":@}}'),
    ("agent", b'{"method":"$/cancel_request","params":{"requestId":@}}'),
    ("agent", b'{"method":"elicitation/complete","params":{"elicitationId":@}}'),
    ("agent", b'{"id":@,"method":"_x/y","params":{}}'),
    ("agent", b'{"x":@,"method":"_x/y","params":{"sessionId":"s"}}'),
    ("link", b'{"jsonrpc":"2.0","method":"_acp-gateway/ack","params":@}'),
    ("link", b'{"jsonrpc":"2.0","method":"_acp-gateway/ack","params":{"received":1,"positions":@}}'),
    ("link", b'{"jsonrpc":"2.0","method":"_acp-gateway/ack","params":{"received":1,"positions":{"s":@}}}'),
    ("link", b'{"jsonrpc":"2.0","method":"_acp-gateway/x","params":@}'),
    *(
        (f"answer {method}", b'{"id":#,"result":{%b:@}}' % member)
        for method, member in (
            ("session/list", b'"sessions"'),
            ("session/prompt", b'"x"'),
            ("session/new", b'"sessionId"'),
            ("session/new", b'"sessionId":"n","modes"'),
            ("session/set_config_option", b'"configOptions"'),
            ("session/load", b'"x"'),
            ("initialize", b'"protocolVersion":1,"agentCapabilities"'),
            ("initialize", b'"protocolVersion":1,"authMethods"'),
        )
    ),
    ("answer session/prompt", b'{"id":#,"error":{"code":-32000,"message":@}}'),
    ("answer session/prompt", b'{"id":#,"result":@}'),
    ("answer session/prompt", b'{"result":@,"id":#}'),
)
"""Senders and messages; the filling replaces each `@`, and the id of the request that is answered replaces `#`."""

HELLOS: Final[tuple[bytes, ...]] = (
    b'{"id":1,"method":"_acp-gateway/hello","params":@}',
    b'{"id":1,"method":"_acp-gateway/hello","params":{"token":@}}',
    b'{"id":1,"method":"_acp-gateway/hello","params":{"token":"x","resume":@}}',
    b'{"id":@,"method":"_acp-gateway/hello","params":{}}',
    b'{"id":1,"method":@,"params":{}}',
    b'{"id":1,"method":"_acp-gateway/hello","params":{},"x":@}',
)
"""First lines of strangers."""

LOGINS: Final[tuple[bytes, ...]] = (b'{"code":@}', b'{"code":"acpgwp_x","x":@}', b'{"x":@,"code":"acpgwp_x"}', b"@")
"""Bodies of strangers who sign in."""

CALLS: Final[tuple[bytes, ...]] = (
    *(
        b'{"id":1,"method":"session/%b","params":{"sessionId":"s",%b:@}}' % pair
        for pair in (
            (b"prompt", b'"prompt"'),
            (b"respond", b'"requestId":1,"response"'),
            (b"respond", b'"response":{},"requestId"'),
            (b"list", b'"status"'),
            (b"get", b'"since"'),
            (b"set_config_option", b'"configId":"c","value"'),
            (b"cancel", b'"x"'),
        )
    ),
    b'{"id":1,"method":"session/get","params":@}',
    b'{"id":@,"method":"session/list"}',
    b'{"id":1,"result":@}',
    b'{"id":1,"method":"session/list","x":@}',
    b'{"type":"send_message","sessionId":"s","content":@}',
    b'{"type":"permission_response","requestId":"r","outcome":@}',
    b'{"type":"load_session","sessionId":@}',
    b'{"type":"cancel_turn","sessionId":"s","x":@}',
    b'{"type":@,"params":{"a":@}}',
    # Of an editor.
    b'{"provider":{"id":"a"},"composerId":"c","message":"\\ud83d","x":@}',
    b'{"provider":{"id":"a","args":@},"composerId":"c","message":@}',
)
"""Calls of browsers, events of chat widgets, and bodies of editors."""

HEADS: Final[tuple[bytes, ...]] = (
    b"GET /acp?@ HTTP/1.1\r\nHost: a\r\n%b\r\n",
    b"GET /acp?a=@&@ HTTP/1.1\r\nHost: a\r\n%b\r\n",
    b"GET /@ HTTP/1.1\r\nHost: a\r\n%b\r\n",
    b"GET /acp HTTP/1.1\r\nHost: @\r\n%b\r\n",
    b"GET /acp HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer @\r\n%b\r\n",
    b"GET /acp HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: @\r\n%b\r\n",
    b"GET /acp HTTP/1.1\r\nHost: a\r\nOrigin: @\r\n%b\r\n",
    b"GET /acp HTTP/1.1\r\nHost: a\r\nSec-WebSocket-Extensions: @\r\n%b\r\n",
    b"GET /acp HTTP/1.1\r\nHost: a\r\nAcp-Gateway-Resume: @\r\nAcp-Connection-Id: @\r\n%b\r\n",
    b"GET /acp HTTP/1.1\r\nHost: a\r\nCookie: @\r\nSec-WebSocket-Protocol: @\r\n%b\r\n",
    b"GET /acp HTTP/1.1\r\nHost: a\r\nX: @\r\nX: @\r\nX: @\r\nX: @\r\nX: @\r\n%b\r\n",
)
"""Requests of strangers; `%b` is the rest of an upgrade."""

WORDS: Final = (
    b",",
    b";",
    b"a=b",
    b"%41",
    b"a",
    b" ",
    b"=",
    b"&",
    b"1.2.3.4",
    b'"',
    b"\\",
    b"acp.bearer.x,",
    b"[",
    b"/",
)
"""Pieces that the fields of a request are filled with."""

SIDES: Final = (
    "core",
    "shim",
    "history",
    "link",
    "recording",
    "hello",
    "http",
    "events",
    "browser",
    "post",
    "login",
    "tap",
)
"""Readers of messages: the core, the client beside the editor, who joins a session later, a link that resumes, the
recording and the log of bodies, a listener before the token, the event streams of a client over HTTP, the bridge of
browsers, the endpoint that a client over HTTP posts to, the sign-in of browsers, and the file tap."""

OF_STRANGERS: Final = ("hello", "http", "login")
"""Readers before the token; what they read has a few kilobytes."""

HEAD: Final = 7000
"""Bytes of one field of a request; the library reads lines of 8 KiB."""

UPGRADE: Final = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


class Plan(NamedTuple):
    """Recipe for a message."""

    frame: int
    hole: int
    patterns: tuple[int, ...]
    names: tuple[int, ...]
    space: int
    spice: int
    size: int
    side: int = 0

    @property
    def who(self) -> str:
        """Sender of the message."""
        return FRAMES[self.frame][0]

    @property
    def reader(self) -> str:
        """Reader of the message, one of `SIDES`."""
        return SIDES[self.side]

    def __str__(self) -> str:
        return f"{self!r}, read by {self.reader}, frame {self._frame()[:200]!r}"

    def _frame(self) -> bytes:
        match self.reader:
            case "hello":
                return HELLOS[self.frame % len(HELLOS)]
            case "http":
                return HEADS[self.frame % len(HEADS)]
            case "browser":
                return CALLS[self.frame % len(CALLS)]
            case "login":
                return LOGINS[self.frame % len(LOGINS)]
        return FRAMES[self.frame][1]

    def text(self) -> bytes:
        """The message, without the id that it answers; of strangers' no more than is read."""
        frame = self._frame()
        if self.reader == "http":
            words = [WORDS[index % len(WORDS)] for index in self.patterns]
            fields = max(line.count(b"@") for line in frame.split(b"\r\n"))
            filling = b"".join(words) * (min(self.size, HEAD) // sum(map(len, words)) // fields)
            return frame.replace(b"@", filling).replace(b"%b", UPGRADE, 1)
        if self.reader == "hello":
            return self._replace(size=HELLO_SIZE - 200)._filled(frame)
        if self.reader == "login":
            return self._replace(size=CODE_SIZE)._filled(frame)[:CODE_SIZE]
        return self._filled(frame)

    def _filled(self, frame: bytes) -> bytes:
        return frame.replace(b"@", self._filling((self.size - len(frame)) // frame.count(b"@")))

    def _filling(self, size: int) -> bytes:
        space, spice = SPACES[self.space], SPICES[self.spice]
        patterns = [PATTERNS[index] for index in self.patterns]
        if HOLES[self.hole] == "string":
            return b'"%b"' % _repeated([pattern.replace(b'"', b'\\"') for pattern in patterns], b"", size)
        if HOLES[self.hole] == "number":
            return b"1" * max(size, 1)
        if HOLES[self.hole] == "deep":
            patterns = [b"[%b]" % b",".join(patterns * 20)]
        if HOLES[self.hole] == "object":
            names = [NAMES[index] for index in self.names]
            patterns = [name + space + b":" + space + pattern for name in names for pattern in patterns]
            spice = spice and b'"spice":' + spice
        filling = _repeated(patterns, b"," + space, size)
        filling = spice + b"," + filling if spice else filling
        return b"{%b}" % filling if HOLES[self.hole] == "object" else b"[%b]" % filling


def _repeated(patterns: list[bytes], comma: bytes, size: int) -> bytes:
    once = comma.join(patterns)
    count = max(1, size // (len(once) + len(comma)))
    if b"%d" in once:
        return comma.join(once.replace(b"%d", b"%d" % number) for number in range(count))
    return comma.join([once] * count)


def random_plan(chance: random.Random, size: int) -> Plan:
    """Any plan."""
    return Plan(
        chance.randrange(len(FRAMES)),
        chance.randrange(len(HOLES)),
        _some(chance, len(PATTERNS)),
        _some(chance, len(NAMES)),
        chance.randrange(len(SPACES)),
        chance.randrange(len(SPICES)),
        size,
        chance.choice((0, 0, 0, *range(len(SIDES)))),
    )


def _some(chance: random.Random, among: int) -> tuple[int, ...]:
    return tuple(chance.randrange(among) for _ in range(chance.choice((1, 1, 1, 2, 3))))


def mutated(plan: Plan, chance: random.Random) -> Plan:
    """A plan with something of another one, or of another size."""
    if chance.random() < 0.25:
        return plan._replace(size=min(max(int(plan.size * chance.choice((0.25, 0.5, 2.0, 4.0))), 2_000), 4_000_000))
    field = chance.choice(("frame", "hole", "patterns", "names", "space", "spice", "side"))
    return plan._replace(**{field: random_plan(chance, plan.size)._asdict()[field]})
