"""Declares the editor bridge: HTTP requests of an editor's own page."""

from dataclasses import dataclass
from typing import Final

from acp_gateway.config.schema import MIB, Count, Fixed, Seconds, Size
from acp_gateway.config.services import Service

MESSAGE_SIZE: Final = 4 * MIB
"""Bytes: see `EditorSection.message_size`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EditorSection:
    """`[editor]`: the editor bridge over HTTP; `serves = ["editor"]` of a listener serves it.

    An editor's conversation, its composer, has one session per identity and agent. Which one is remembered in
    `composers.json` of `state_dir`, so that a composer finds its session again after a restart of the gateway. The file
    is written as a whole when a composer is new, so its size is bounded by the number of composers. Each request counts
    as a connection, within `connections_per_identity`.
    """

    composers_per_identity: Fixed[Count] = 500
    """Maximum composers of one identity whose sessions are remembered. Beyond it, the one that was unused for longest
    is forgotten: its session stays, and its next message begins another one. More than one person opens within
    `retention_days`, and some 100 KiB of the file that remembers them."""

    message_size: Fixed[Size] = MESSAGE_SIZE
    """Maximum bytes of the body of a request, and of the text of an answer in one piece. Both are text: a long log that
    was pasted has a few hundred KiB, and a long turn less. Images have no place in this protocol. An answer in lines
    has no limit."""

    bodies_per_identity: Fixed[Count] = 8
    """Maximum bodies of one identity that are received at a time. An editor sends one after the other from each of its
    windows. Together with `message_size` it bounds the memory of bodies that arrive slowly, and that of messages whose
    turns have not begun: 32 MiB each, as much as `outbox_limit` allows one client. Beyond it requests get 429."""

    open_timeout: Fixed[Seconds] = 120.0
    """Seconds for an agent to start and to open a session before a request gets an error. Twice the default of an
    agent's `initialize_timeout`, whose error says more: an agent that `npx` has to fetch first takes forty seconds, and
    one that loads a long history needs some more. Unlike a page, an editor of this kind waits for as long as it
    takes."""


SERVICE: Final = Service(
    word="editor",
    about='`"editor"` is the editor bridge below `/acp/`, for `ws` and `wss`.',
    folder=__package__,
    section=EditorSection,
    more="[dialects.md](dialects.md#editor-bridge) describes it. It has no options.",
)
