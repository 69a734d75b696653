"""Keeps the tokens of this gateway, those of the directory and those of other nodes the same.

`security/shared_tokens` compares them. A node tells the others which tokens were revoked, and the present entries of
those that were rotated. Each answers with the same once it has taken it over, and has confirmed with that.
"""

import logging
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Annotated, Final

import msgspec
import trio

from acp_gateway.errors import ConfigError
from acp_gateway.nodes.store import Change, ClusterLost, ClusterStore, Name, SharedTokens
from acp_gateway.security.shared_tokens import KnownFile, Merge, decode_token, encode_token, is_shared, merge
from acp_gateway.security.token_store import Token, TokenStore

log = logging.getLogger(__name__)


MOST: Final = 1000
"""Maximum number of revocations, and of rotated tokens, that are told: the latest ones. The directory has more."""

_TokenId = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{8}$")]


class News(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message of a node to another one."""

    node: Name
    """The node that tells it."""
    revoked: Annotated[tuple[_TokenId, ...], msgspec.Meta(max_length=MOST)] = ()
    """Ids of tokens that were revoked."""
    rotated: Annotated[tuple[msgspec.Raw, ...], msgspec.Meta(max_length=MOST)] = ()
    """Entries of tokens with another secret than at first."""
    age: Annotated[float, msgspec.Meta(ge=0)] | None = None
    """Seconds since the node knew of all that is in the directory; None if it never did."""

    @property
    def tokens(self) -> list[Token]:
        """The entries of the rotated tokens. One of a newer version, which is not understood, is left out."""
        found = []
        for entry in self.rotated:
            try:
                token = msgspec.json.decode(entry, type=Token)
            except (msgspec.MsgspecError, RecursionError):
                continue
            decoded = decode_token(token.id, bytes(entry))
            if decoded is not None:
                found.append(decoded)
        return found

    @property
    def facts(self) -> frozenset[str]:
        """A word for each revocation, and for each secret that has replaced another one."""
        return frozenset(self.revoked) | {f"{token.id} {token.sha256}" for token in self.tokens}


def make_news(node: str, tokens: Iterable[Token], revoked: Iterable[str]) -> News:
    """Return the message of a node with these tokens and revocations."""
    rotated = sorted((token for token in tokens if is_shared(token) and token.rotated), key=lambda it: it.rotated or "")
    entries = tuple(msgspec.Raw(msgspec.json.encode(token)) for token in rotated[-MOST:])
    return News(node=node, revoked=tuple(revoked)[-MOST:], rotated=entries)


def read_news(value: object) -> News | None:
    """Return the message in a JSON value; None if it can't be one."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value), type=News)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        return None


class _Heard:
    """The last news of a node."""

    def __init__(self, news: News, at: float, before: "_Heard | None") -> None:
        self.at = at
        self.news = news
        is_same = before is not None and (news.revoked, news.rotated) == (before.news.revoked, before.news.rotated)
        # Every few seconds the same is told again.
        self.facts: frozenset[str] = before.facts if before is not None and is_same else news.facts


class Hearsay:
    """The news of all other nodes.

    Args:
        now: time of the start, in seconds.
    """

    def __init__(self, now: float) -> None:
        self._read_at: float | None = None
        self._since = now
        self._heard: dict[str, _Heard] = {}

    def lost_since(self, at: float) -> None:
        """Note that the directory was lost at a time before the start."""
        self._since = min(self._since, at)

    def read(self, now: float) -> None:
        """Note that this node has read the directory."""
        self._read_at = now

    def hear(self, news: News, now: float) -> frozenset[str]:
        """Note the news of a node, and return its facts."""
        heard = self._heard[news.node] = _Heard(news, now, self._heard.get(news.node))
        return heard.facts

    def age(self, now: float) -> float | None:
        """Return the seconds since this node knew of all that is in the directory, by itself or by another node."""
        times = [heard.at - heard.news.age for heard in self._heard.values() if heard.news.age is not None]
        if self._read_at is not None:
            times.append(self._read_at)
        return max(now - max(times), 0.0) if times else None

    def silence(self, now: float, known: Collection[str] | None) -> float:
        """Return the seconds for which a token may have been revoked elsewhere without news of it here.

        Tokens are revoked at nodes. So what the directory does not tell, all other nodes together do.

        Args:
            now: the time.
            known: all other nodes; None if they are not known.
        """
        age = self.age(now)
        silence = now - self._since if age is None else min(age, now - self._since)
        if known is not None and all(name in self._heard for name in known):
            silence = min(silence, max((now - self._heard[name].at for name in known), default=0.0))
        return silence

    def has_confirmed(self, name: str, token_id: str, facts: Collection[str]) -> bool:
        """Return whether a node knows of all the facts here that are about a token; False if there are none."""
        heard = self._heard.get(name)
        own = {fact for fact in facts if fact.startswith(token_id)}
        return heard is not None and bool(own) and own <= heard.facts


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
