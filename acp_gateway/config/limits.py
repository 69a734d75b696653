"""The options of `[limits]`, each with its default and where the number comes from."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, ClassVar, Final, NamedTuple

from acp_gateway.config.schema import Count, Derived, Entry, Fixed, Seconds, SecondsOrNever, Share, Size

_BUDGET: Final = re.compile(r"(\d{1,9}(?:\.\d{1,6})?) ([A-Z]{3})|(\d{1,9})([kM]?) tokens", re.ASCII)

_FACTORS: Final = {"": 1, "k": 1000, "M": 1_000_000}


class Budget(NamedTuple):
    """An amount that may be spent."""

    unit: str
    """A currency, or `tokens`."""
    amount: int
    """Millionths of a currency, or tokens."""
    text: str

    def __str__(self) -> str:
        return self.text


def read_budget(entry: Entry) -> Budget:
    """Read money of one currency, or a number of tokens. Raises `ConfigError`."""
    found = _BUDGET.fullmatch(entry.value) if isinstance(entry.value, str) else None
    expected = 'an amount, such as "20 USD" or "5M tokens"'
    if found is None:
        raise entry.expected_word(expected)
    money, currency, tokens, factor = found.groups()
    amount = int(Decimal(money) * 1_000_000) if currency else int(tokens) * _FACTORS[factor]
    if amount == 0:
        raise entry.error(f'expected {expected}, found "{entry.value}"')
    return Budget(currency or "tokens", amount, entry.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsSection:
    """`[limits]`: maximum numbers and rates, before authentication and for each identity."""

    REMOVED: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("max_waiting_prompts", "waiting_prompts_per_identity"), "it is a constant; remove the line"
    )
    DERIVED: ClassVar[Mapping[str, Derived]] = {
        "connections_per_identity": Derived("max_connections", 1 / 2),
        "sessions_per_identity": Derived("max_sessions", 1 / 4),
        "message_burst": Derived("messages_per_second", 4),
    }

    max_handshakes: Fixed[Count] = 256
    """Maximum unauthenticated connections. Beyond it, the oldest idle one is closed, from the address that holds the
    most. A fleet of laptops that reconnect after an outage; each connection costs some 40 KB and a descriptor."""

    handshakes_per_address: Fixed[Count] = 32
    """Maximum unauthenticated connections of one address, which may be an office behind NAT; beyond it, others of that
    address wait for their turn, as many again, and an idle one makes room. Connections of trusted proxies and through
    unix sockets don't count."""

    failed_attempts: Fixed[Count] = 20
    """Refusals of one address, or of one token, within `failed_attempts_window`, after which further ones are delayed.
    A person's devices with an expired token make a handful; a valid token is accepted whatever the count."""

    failed_attempts_window: Fixed[Seconds] = 60.0
    """Seconds for which a refusal counts. Long enough to slow down guessing, short enough that a corrected
    configuration works soon."""

    max_connections: Count = 4096
    """Maximum authenticated connections, including those that are away; half of it for one identity. At some 25 KB
    each, 4096 take 100 MB, and half of the descriptors of one process on most systems with a raised limit."""

    connections_per_identity: Fixed[Count] = 2048
    """Maximum connections of one identity: half of `max_connections`, so that no identity can keep the others out. Its
    observers have half of that at most."""

    connections_per_guest: Fixed[Count] = 16
    """Maximum connections of one guest's token. A person watches from two or three devices."""

    browsers_per_token: Fixed[Count] = 16
    """Maximum browsers that are signed in by one token, or by the gateway's own user. Beyond it, the one that was
    unused for longest has to sign in again. A person has a handful of devices, with a browser or two each."""

    browser_days: Fixed[Count] = 30
    """Days after which a browser has to sign in again, used or not. A month: signing in takes a moment, and a cookie
    that was copied from a disk is of no use for longer."""

    browser_idle_days: Fixed[Count] = 7
    """Days without use after which a browser has to sign in again. A week: longer than most pauses of a person who uses
    it at all, and a browser that was used once, on a machine of others, is forgotten soon."""

    max_event_streams: Fixed[Count] = 64
    """Maximum event streams that one client over Streamable HTTP has open at once: one for its connection and one for
    each session that it works in. Each is a TCP connection."""

    subscribed_sessions: Fixed[Count] = 256
    """Maximum sessions that one browser's connection uses at once over `/ws`, where it can unsubscribe from others,
    or `/chat`. A page shows one session or two, and a program for many of them some dozens. Each that is open counts
    among the connections of its identity, and takes some 25 KB."""

    reserved_connections: Fixed[Count] = 64
    """Part of `max_connections` that is kept for identities without any connection: a team's worth. Before a connection
    is refused, a tunnel that is not needed yet is given up, or a link that is away: of the identity or guest that has
    most, and more than the newcomer has."""

    messages_per_second: Fixed[Count] = 5000
    """Sustained rate of the messages of all clients of one identity (a token bucket); four times as many may come at
    once. Each controller has an equal share, and all observers together have one; beyond the rate, clients that send
    more than their share are throttled, and nothing is lost. Editors send a few messages a second, programs that drive
    an agent some hundred; a flood at this rate costs a tenth of a processor."""

    message_burst: Fixed[Count] = 20_000
    """Messages of one identity that may exceed `messages_per_second` at once: four times as many. The queue of a laptop
    after a long time away passes without a wait. Divided by `messages_per_second`, it is also the number of seconds for
    which `bytes_per_second` and `loop_share` may be exceeded."""

    bytes_per_second: Fixed[Size] = 64 * 1024 * 1024
    """Sustained rate of the bytes of all clients of one identity, unfinished messages included, while another identity
    or a guest is connected. A line of 500 Mbit/s, more than a person's laptop has; receiving that much costs a tenth to
    a fifth of a processor."""

    loop_share: Fixed[Share] = 0.25
    """Share of the event loop's time that the messages of one identity may take in the long run, while another identity
    or a guest is connected, and the output of all agents, while others than the clients of one are. It is measured,
    because messages differ in cost. A quarter: more than a very busy person needs, with room for three others."""

    frames_without_message: Fixed[Count] = 10_000
    """Burst of WebSocket frames without a message (pings, binary and empty ones, pieces below 1 KiB), blank lines and
    confirmations on one connection; the sustained rate is a hundredth of it in a second. Beyond it the connection is
    closed. A message of any size in pieces of 1 KiB counts for none; a healthy client sends one in ten seconds."""

    observer_message_size: Fixed[Size] = 64 * 1024
    """Maximum bytes of one message of an observer. It asks for a list or a session: some hundred bytes."""

    message_timeout: Fixed[SecondsOrNever] = 60.0
    """Seconds for one message, from its first byte to its last, plus a second for each 4 KiB received. A modem of
    56 kbit/s is fast enough; an unfinished message that does not grow occupies memory for this long at most."""

    max_sessions: Fixed[Count] = 4096
    """Maximum open sessions; a further `session/new` is refused, and for one identity beyond a quarter of it. Each has
    a history in memory, which `memory_limit` bounds, and a few kilobytes besides."""

    sessions_per_identity: Fixed[Count] = 1024
    """Maximum open sessions of one identity: a quarter of `max_sessions`. Editors leave sessions open; a thousand is
    many months of that."""

    agents_below_identity: Fixed[Count] = 64
    """Maximum agent processes of the people whom another gateway names below its token's identity. An unused one makes
    room. A team's worth: such names cost nothing, and a process takes 100 MB and more. With `--may-speak-for` people
    count for themselves."""

    max_open_requests: Fixed[Count] = 1000
    """Maximum requests of one side of a connection that wait for the other's response; also of the closed connections
    of one identity, at one agent. An editor has a handful open, an agent one for each question; each is remembered, so
    a peer that never stops asking would fill the memory."""

    max_queued_prompts: Fixed[Count] = 1000
    """Maximum prompts that wait for the end of a turn, in all sessions together; a further one is refused. Each is held
    in memory with all its content."""

    queued_prompts_per_identity: Fixed[Count] = 200
    """Maximum waiting prompts of one identity: ten sessions with a full queue each, which is more than a person can
    look after."""

    queued_bytes_per_identity: Fixed[Size] = 128 * 1024 * 1024
    """Maximum bytes of the waiting prompts of one identity: four sessions with `queued_bytes_per_session` each. They
    are held in memory, and in `sessions.db` until they are sent."""

    queued_bytes_per_session: Fixed[Size] = 32 * 1024 * 1024
    """Maximum bytes of the waiting prompts of one session: as much as one client may have waiting (`outbox_limit`),
    some pictures."""

    queued_prompts_per_session: Fixed[Count] = 20
    """Maximum waiting prompts of one session. A person queues a few, and several people a few each; a program that
    never stops sending would fill the memory."""

    session_request_size: Fixed[Size] = 256 * 1024
    """Maximum bytes of a request that the gateway reads, except prompts: `initialize`, `authenticate` and those
    of `session/`. They have a few kilobytes, MCP servers with their environment included. A larger one is refused;
    reading one takes up to 100 ms per MiB, during which the gateway does nothing else."""

    cost_per_day: Annotated[Budget, read_budget] | None = None
    """Amount, such as `"20 USD"` or `"5M tokens"`, that all sessions together may cost in a day, as agents tell it;
    beyond it, the owner of a session is asked before its next prompt."""

    cost_per_identity: Annotated[Budget, read_budget] | None = None
    """Amount, such as `"5 USD"` or `"500k tokens"`, that the sessions of one identity may cost in a day, as agents tell
    it; beyond it, the owner of a session is asked before its next prompt."""

    decision_size: Fixed[Size] = 64 * 1024
    """Maximum bytes of a response to a permission or an elicitation: some ten pages of text in a form. A larger one is
    not a decision: it is logged, and the other clients are still asked. Reading one takes up to 100 ms per MiB."""

    upload_size: Fixed[Size] = 64 * 1024 * 1024 * 1024
    """Maximum bytes of a file that a client writes into the folder of a session: the weights of a large model. A larger
    one is refused before it is sent, as is one for which the disk has no room."""

    max_prompt_blocks: Fixed[Count] = 1000
    """Maximum content blocks of one prompt; a prompt with more is refused. Editors send some dozens. Each becomes a
    message for the session's other clients, at some 10 µs."""

    max_listed_sessions: Fixed[Count] = 8000
    """Maximum sessions on one page of an agent's response to `session/list`; the request fails beyond it. Agents have
    pages for more, but a node lists all its live sessions on the first. Each is looked up, at some 10 µs."""

    max_node_sessions: Fixed[Count] = 5000
    """Maximum sessions of one node in a list: its live ones and the latest others, 3 MiB in all. More than
    `max_sessions` by default; each is some 600 bytes in a list."""

    max_browser_sessions: Fixed[Count] = 5000
    """Maximum sessions in the list of a browser: some 500 bytes each, which a page reads when it connects."""

    max_mcp_servers: Fixed[Count] = 256
    """Maximum MCP servers of one session, and lists of them in one request; a request with more is refused. Editors
    send a handful. Reading one takes some 20 µs, and each that is dropped has an entry in the audit."""

    max_additional_directories: Fixed[Count] = 64
    """Maximum `additionalDirectories` of one session; a request with more is refused. Each is looked up on the disk."""

    max_permission_options: Fixed[Count] = 256
    """Maximum options of one permission request; one with more is refused. A person chooses among a handful."""

    initialize_response_size: Fixed[Size] = 64 * 1024
    """Maximum bytes of an agent's response to `initialize`; a larger one counts as an error. Agents send a few
    kilobytes, and every client gets them, adapted to it."""
