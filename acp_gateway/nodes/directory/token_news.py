"""The changes of shared tokens that nodes tell each other over their own connections, and what follows from them. Pure.

A node tells which tokens were revoked, and the present entries of those that were rotated. It tells this to each other
node, which answers with the same once it has taken it over. So a node has confirmed a change that it tells itself.
"""

from collections.abc import Collection, Iterable
from typing import Annotated, Final

import msgspec

from acp_gateway.nodes.directory.records import Name
from acp_gateway.security.shared_tokens import decode_token, is_shared
from acp_gateway.security.token_file import Token

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
