"""Keeps the tokens of this gateway and those of the directory the same: see `security/shared_tokens`."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

from acp_gateway.cluster.store import Change, ClusterLost, ClusterStore, SharedTokens
from acp_gateway.errors import ConfigError
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
        store: the directory.
        state_dir: the folder of `tokens.json`.
        changed: called when other nodes have changed tokens of this gateway: connections by these have to end.
    """

    def __init__(self, store: ClusterStore, state_dir: Path, changed: Callable[[], None]) -> None:
        self._store = store
        self._path = state_dir / "tokens.json"
        # Stores of its own: they are used in a thread.
        self._tokens = TokenStore(state_dir)
        self._known = KnownFile(state_dir)
        self._look = TokenStore(state_dir)
        self._changed = changed
        self._lock = trio.Lock()
        self._wake = trio.Event()
        self._seen: list[Token] | None = None
        # That of the tokens of the directory that this gateway has compared with its own; -1 if it has to compare.
        self._number = -1
        self._complaint = ""

    def note(self, change: Change) -> None:
        """Compare at once if another node has changed tokens."""
        if change.kind == "tokens":
            self._wake.set()

    async def run(self) -> None:
        """Compare after each change here or elsewhere, until cancelled."""
        while True:
            with trio.move_on_after(LOOK):
                await self._wake.wait()
            try:
                woken, self._wake = self._wake.is_set(), trio.Event()
                if woken or self._look.tokens() != self._seen:
                    await self.sync()
            except ConfigError:
                pass  # The store itself says so.
            except ClusterLost:
                # Revocations are remembered all the same; the next renewal writes them.
                await self._compare(None)

    async def renewed(self) -> None:
        """Compare with a renewal, if the tokens of the directory have changed. Raises `ClusterLost`."""
        if await self._store.tokens_number() != self._number:
            await self.sync()

    async def sync(self) -> None:
        """Compare, and write what has changed on either side. Raises `ClusterLost`."""
        async with self._lock:
            # What is not written to the directory now is written by the next renewal.
            self._number = -1
            shared = await self._store.tokens()
            merged = await self._compare(shared)
            if merged is None:
                return
            for token_id in merged.revoke:
                await self._store.revoke_token(token_id)
            for token in merged.put:
                await self._store.put_token(token.id, encode_token(token))
            if merged.put:
                await self._remember(merged)
            self._number = shared.number

    async def _compare(self, shared: SharedTokens | None) -> Merge | None:
        """Change the files in accordance with the directory; return None if a file can't be read or written."""
        try:
            merged, is_changed = await trio.to_thread.run_sync(self._apply, shared)
        except ConfigError as error:
            self._complain(error)
            return None
        self._seen = merged.tokens
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
        if str(error) != self._complaint:
            log.error("tokens are not shared with the cluster: %s", error)
            self._complaint = str(error)

    def _apply(self, shared: SharedTokens | None) -> tuple[Merge, bool]:
        """Merge, write both files, and return whether `tokens.json` has changed. Blocks. Raises `ConfigError`."""
        known = self._known.read()
        result: list[Merge] = []

        def change(tokens: list[Token]) -> list[Token]:
            local = tokens if self._path.exists() else None
            entries = None if shared is None else shared.entries
            merged = merge(known, local, entries, () if shared is None else shared.revoked)
            # Before the token disappears from the other file.
            self._known.write(merged.before)
            result.append(merged)
            return merged.tokens

        is_changed = self._tokens.change(change)
        return result[0], is_changed
