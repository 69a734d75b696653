"""Keeps the tokens of this gateway, those of the directory and those of other nodes the same.

`security/shared_tokens` compares them, and `cluster/token_news` is what nodes tell each other.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import trio

from acp_gateway.errors import ConfigError
from acp_gateway.nodes.directory.store import Change, ClusterLost, ClusterStore, SharedTokens
from acp_gateway.nodes.directory.token_news import Hearsay, News, make_news
from acp_gateway.security.shared_tokens import KnownFile, Merge, encode_token, merge
from acp_gateway.security.token_file import Token
from acp_gateway.security.token_store import TokenStore

log = logging.getLogger(__name__)

LOOK: Final = 0.25
"""Seconds between two looks at `tokens.json` by `stat`. After a command revokes a token, the other
nodes refuse it within a second."""


class TokenSync:
    """The shared tokens of one gateway.

    Args:
        name: the name of this node.
        store: the directory.
        state_dir: the folder of `tokens.json`.
        changed: called when other nodes have changed tokens of this gateway: connections by these have to end.
    """

    def __init__(self, name: str, store: ClusterStore, state_dir: Path, changed: Callable[[], None]) -> None:
        self.hearsay = Hearsay(trio.current_time())
        """The news of other nodes."""
        self.tell: Callable[[], None] = lambda: None
        """Called when something was changed here that other nodes have to know."""
        self._name = name
        self._store = store
        self._path = state_dir / "tokens.json"
        # Stores of its own: they are used in a thread.
        self._tokens = TokenStore(state_dir)
        self._known = KnownFile(state_dir)
        self._look = TokenStore(state_dir)
        self._changed = changed
        self._lock = trio.Lock()
        # Of the files: the thread is one at a time.
        self._files = trio.Lock()
        self._news = News(node=name)
        self._facts: frozenset[str] = frozenset()
        self._confirmed = -1
        self._wake = trio.Event()
        self._seen: list[Token] | None = None
        # That of the tokens of the directory that this gateway has compared with its own; -1 if it has to compare.
        self._number = -1
        # Of changes here or at other nodes that the directory does not have.
        self._untold = 0
        self.problem: str | None = None
        """The reason why the tokens are not shared at the moment: a file that can't be read or written."""

    def note(self, change: Change) -> None:
        """Compare at once if another node has changed tokens."""
        if change.kind == "tokens":
            self._wake.set()

    async def run(self) -> None:
        """Compare after each change here or elsewhere, until cancelled."""
        while True:
            with trio.move_on_after(LOOK):
                await self._wake.wait()
            woken, self._wake = self._wake.is_set(), trio.Event()
            try:
                if await self.look() or woken:
                    await self.sync()
            except ClusterLost:
                pass  # The next renewal writes it.

    async def look(self) -> bool:
        """Take over a change that was made here; return whether there was one. Other nodes are told at once, whatever
        the directory does; those do not tell it on."""
        try:
            if self._look.tokens() == self._seen:
                return False
        except ConfigError:
            return False  # The store itself says so.
        before = self._facts
        await self._compare(None)
        if self._facts != before:
            self.tell()
        return True

    def news(self) -> News:
        """Return what other nodes have to know."""
        return msgspec.structs.replace(self._news, age=self.hearsay.age(trio.current_time()))

    async def receive(self, news: News) -> None:
        """Take over what another node tells."""
        if not self.hearsay.hear(news, trio.current_time()) <= self._facts:
            await self._compare(None, news)

    def has_confirmed(self, name: str, token_id: str) -> bool:
        """Return whether a node has told that it knows of all that happened to a token."""
        return self.problem is None and self.hearsay.has_confirmed(name, token_id, self._facts)

    async def renewed(self) -> None:
        """Compare with a renewal, if the tokens of the directory have changed. Raises `ClusterLost`."""
        if await self._store.tokens_number() == self._number or await self.sync():
            self.hearsay.read(trio.current_time())

    async def sync(self) -> bool:
        """Compare, and write what has changed on either side; return False if a file can't be read or written.

        Raises `ClusterLost`.
        """
        async with self._lock:
            # What is not written to the directory now is written by the next renewal.
            self._number, untold = -1, self._untold
            shared = await self._store.tokens()
            merged = await self._compare(shared)
            if merged is None:
                return False
            for token_id in merged.revoke:
                await self._store.revoke_token(token_id)
            for token in merged.put:
                await self._store.put_token(token.id, encode_token(token))
            if merged.put:
                await self._remember(merged)
            if self._untold == untold:
                self._number = shared.number
            if self._confirmed != shared.number:
                await self._store.confirm_tokens(shared.number)
                self._confirmed = shared.number
            return True

    async def _compare(self, shared: SharedTokens | None, news: News | None = None) -> Merge | None:
        """Change the files in accordance with the directory or another node; return None if one can't be read or
        written."""
        async with self._files:
            if shared is None:
                # The next renewal writes it to the directory, also where a comparison with that is under way.
                self._number = -1
                self._untold += 1
            try:
                merged, is_changed = await trio.to_thread.run_sync(self._apply, shared, news)
            except ConfigError as error:
                self._complain(error)
                return None
            self.problem = None
            self._seen = merged.tokens
            self._news = make_news(self._name, merged.tokens, merged.before.revoked)
            self._facts = self._news.facts
        if is_changed:
            log.info("tokens have changed on another node of the cluster")
            self._changed()
        return merged

    async def _remember(self, merged: Merge) -> None:
        try:
            await trio.to_thread.run_sync(self._known.write, merged.after)
        except ConfigError as error:
            self._complain(error)

    def _complain(self, error: ConfigError) -> None:
        before, self.problem = self.problem, f"tokens are not shared with the cluster: {error}"
        if self.problem != before:
            log.error("tokens are not shared with the cluster: %s", error)

    def _apply(self, shared: SharedTokens | None, news: News | None) -> tuple[Merge, bool]:
        """Merge, write both files, and return whether `tokens.json` has changed. Blocks. Raises `ConfigError`."""
        known = self._known.read()
        result: list[Merge] = []

        def change(tokens: list[Token]) -> list[Token]:
            local = tokens if self._path.exists() else None
            entries = None if shared is None else shared.entries
            revoked = {*(() if shared is None else shared.revoked), *(() if news is None else news.revoked)}
            merged = merge(known, local, entries, revoked, () if news is None else news.tokens)
            # Before the token disappears from the other file.
            self._known.write(merged.before)
            result.append(merged)
            return merged.tokens

        is_changed = self._tokens.change(change)
        return result[0], is_changed
