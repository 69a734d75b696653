"""A search for slow messages: it goes where a byte takes longest.

A message is grown from a plan: who says it, its frame, which is a method with what it needs to be looked into, and a
few patterns that are repeated until it is as large as wanted. Plans are mutated, and kept where the core, or the shim,
takes longer for a byte of what they make. A plan is a short tuple, and repeats what it found.

`python -m tests.fuzz.slow` is a part of `make fuzz`; it fails where a message takes more than `PER_MIB` and `ALWAYS`.
"""

import os
import random
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

from acp_gateway.client.recovery import RecoveryState
from acp_gateway.core.sessions import DirectoryCheckResult, Role
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.methods import Capability
from acp_gateway.protocol.path_maps import PathMaps
from tests.core.scene import Peer, Scene, checks_of, make_policy

PER_MIB: Final = 0.050
ALWAYS: Final = 0.020
"""Seconds that a message may take: for each MiB of it, and besides."""

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

SIDES: Final = ("core", "shim")

LARGE: Final = (16 * 2**20, 64 * 2**20)
"""Bytes of the messages that the slowest plans are tried with at last, up to the default of `max_message_size`."""

GROWN: Final = 6
"""The number of plans that are tried so: each takes seconds."""


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

    def text(self) -> bytes:
        """The message, without the id that it answers."""
        _, frame = FRAMES[self.frame]
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
        int(chance.random() < 0.25),
    )


def _some(chance: random.Random, among: int) -> tuple[int, ...]:
    return tuple(chance.randrange(among) for _ in range(chance.choice((1, 1, 1, 2, 3))))


def mutated(plan: Plan, chance: random.Random) -> Plan:
    """A plan with something of another one, or of another size."""
    if chance.random() < 0.25:
        size = int(plan.size * chance.choice((0.25, 0.5, 2.0, 4.0)))
        return plan._replace(size=min(max(size, 2_000), 4_000_000))
    field = chance.choice(("frame", "hole", "patterns", "names", "space", "spice", "side"))
    other = random_plan(chance, plan.size)._asdict()
    return plan._replace(**{field: other[field]})


def steps(plan: Plan) -> Iterator[Callable[[], object]]:
    """Yield the calls to measure: taking the message in, and answering it."""
    who, text = plan.who, plan.text()
    if SIDES[plan.side] == "shim":
        maps, conversation = PathMaps([("/home/a", "/srv/a")]), RecoveryState()
        text = text.replace(b'"id":#', b'"id":1')
        conversation.from_editor([b'{"id":1,"method":"session/new","params":{}}'])
        if who in ("client", "observer", "guest", "newcomer"):
            yield lambda: conversation.from_editor([maps.to_remote(text)])
        else:
            yield lambda: conversation.from_gateway([maps.to_local(text)])
        yield lambda: conversation.begin_recovery("c", [], "it is lost")
        return
    scene, peer = _scene(who)
    if who == "agent":
        yield lambda: scene.multiplexer.receive_from_agent([text])
    elif who.startswith("answer "):
        raw_id = _ask(scene, peer, who.removeprefix("answer "))
        yield lambda: scene.multiplexer.receive_from_agent([text.replace(b'"id":#', b'"id":%b' % raw_id)])
    else:
        yield lambda: scene.multiplexer.receive_from_client(peer.client, text)
        # A session that is to be opened: its directories have been looked at.
        for directory_check in checks_of(scene.multiplexer.take_output()):
            yield partial(scene.multiplexer.directories_checked, directory_check, DirectoryCheckResult())


def _scene(who: str) -> tuple[Scene, Peer]:
    """Return a core, and a client in a session with an open permission."""
    shared = who != "answer initialize"
    policy = make_policy(shared=shared, serves=frozenset(Capability), mcp_servers="drop", max_waiting_size=2**30)
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


def seconds(plan: Plan, times: int = 1) -> float:
    """Return the longest time that the loop is kept at once, in processor seconds, the best of `times` runs."""
    best = float("inf")
    for _ in range(times):
        longest = 0.0
        for step in steps(plan):
            begun = time.thread_time()
            step()
            longest = max(longest, time.thread_time() - begun)
        best = min(best, longest)
    return best


def allowed(plan: Plan) -> float:
    """Return the seconds that a message may take."""
    return ALWAYS + PER_MIB * plan.size / 2**20


def search(seed: int, minutes: float, say: Callable[[str], object] = print) -> list[Plan]:
    """Look for slow messages for so long; those that take too long."""
    chance = random.Random(seed)  # noqa: S311
    end = time.monotonic() + 60 * minutes
    best = [(seconds(plan) / allowed(plan), plan) for plan in (random_plan(chance, 200_000) for _ in range(12))]
    found: list[Plan] = []
    while time.monotonic() < end:
        _, parent = chance.choice(best)
        plan = random_plan(chance, 200_000) if chance.random() < 0.3 else mutated(parent, chance)
        rate = seconds(plan) / allowed(plan)
        if rate > 0.7:
            # Something else may have been running.
            rate = seconds(plan, 3) / allowed(plan)
        if rate > 1:
            say(f"too slow, {rate:.1f} times what is allowed: {plan!r} {FRAMES[plan.frame]}")
            found.append(plan)
            continue
        best = sorted([*best, (rate, plan)], key=lambda pair: pair[0], reverse=True)[:24]
    for size in LARGE:
        for _, plan in best[:GROWN]:
            large = plan._replace(size=size)
            rate = seconds(large) / allowed(large)
            if rate > 1:
                say(f"too slow, {rate:.1f} times what is allowed: {large!r} {FRAMES[plan.frame]}")
                found.append(large)
    for rate, plan in best[:3]:
        say(f"{rate:.2f} of what is allowed: {plan!r} {FRAMES[plan.frame]}")
    return found


def main() -> int:
    """Return the exit code: 1 where something was found."""
    seed = int(os.environ.get("FUZZ_SEED") or secrets.randbelow(2**32))
    sys.stdout.write(f"slow messages: seed {seed}\n")
    found = search(seed, float(os.environ.get("SLOW_MINUTES", "2")), lambda text: sys.stdout.write(f"{text}\n"))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
