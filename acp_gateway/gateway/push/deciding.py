"""Decides which notifications a browser gets and when, and what the answer of its push service means.

There is no I/O and no clock here: times are seconds since 1970.
"""

import hashlib
import ipaddress
import re
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone, tzinfo
from itertools import islice
from math import inf
from typing import Annotated, Any, Final, Literal

import msgspec

from acp_gateway.acp.updates import Option
from acp_gateway.core.sessions.session import SESSION_ID_SIZE
from acp_gateway.printable import printable
from acp_gateway.protocol.secret_patterns import beginning_without_secrets

_APPLE: Final = "*.push.apple.com"

SERVICES: Final = (
    "fcm.googleapis.com",
    "updates.push.services.mozilla.com",
    _APPLE,
    "*.notify.windows.com",
)
"""Hosts of the push services of Chrome, Firefox, Safari and Edge; `*` stands for one or more labels."""

PATIENCE: Final = 30.0
"""Seconds for a connected controller to decide before a notification: an editor that is open may have a user before it,
or on the way to lunch. Without a controller it is sent at once."""

ENDPOINT_SIZE: Final = 1024
"""Maximum characters of an endpoint. Those of the known services have 200 to 600."""

PAYLOAD_SIZE: Final = 3072
"""Maximum bytes of a message's content: encrypted it must fit into 4096 (RFC 8030, 7.2)."""

TEXT_LENGTH: Final = 300
"""Maximum characters of a text in a notification: more fit on no lock screen."""

MAX_OPTIONS: Final = 8
"""Maximum options in a notification. Browsers show two or three, and the page all."""

LIFETIME: Final = 86400
"""Seconds for which a push service keeps a message for a phone that is off: the question of yesterday is still one."""

MAX_WAITING: Final = 32
"""Maximum messages that wait for the push service of one browser; the oldest is dropped. No lock screen has more."""

MAX_SHOWN: Final = MAX_WAITING
"""Maximum notifications of one browser that are remembered, to be taken away; the oldest is forgotten."""

TRIAL_PAUSE: Final = 10.0
"""Seconds between two test notifications of one browser: push services block senders that send too much."""

ZONE_SIZE: Final = 64
"""Maximum characters of a time zone's name; the longest one has 32."""

PAUSES: Final = (5.0, 30.0, 120.0)
"""Seconds before each further attempt, if the push service names none; then the message is given up."""

LONGEST_PAUSE: Final = 600.0
"""Maximum seconds that a push service may ask for; a question that is told later is rarely open."""

_CUT: Final = "…"

_IDS_SIZE: Final = 1024
"""Maximum bytes of the ids in a message. Without them it leads to the list, which has such a session first."""

_MINUTES: Final = 1440

_TURN: Final = "turn "
"""Beginning of the tags of turns."""

MAX_DONE: Final = 100
"""Maximum sessions whose turns are all told to one browser: a person follows some."""

_ENDPOINT: Final = re.compile(r"https://([a-z0-9-]+(?:\.[a-z0-9-]+)+)(?::443)?(/[\x21-\x7e]*)")

_Minutes = Annotated[int, msgspec.Meta(ge=0, lt=_MINUTES)]


class Quiet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hours of each day without notifications, by the clock of the browser."""

    start: _Minutes
    """Minutes after midnight; after `end` if midnight is between them."""
    end: _Minutes
    offset: Annotated[int, msgspec.Meta(gt=-_MINUTES, lt=_MINUTES)] = 0
    """Minutes by which the browser's clock is ahead of UTC, where its zone is not known."""
    zone: Annotated[str, msgspec.Meta(max_length=ZONE_SIZE)] | None = None
    """Name of the browser's time zone, as in "Europe/Berlin": with it the hours stay when clocks are changed."""

    def over_at(self, now: float, zone: tzinfo | None = None) -> float:
        """Return the end of the quiet hours that `now` is in, else `now`. Without `zone`, the offset counts."""
        here = datetime.fromtimestamp(now, zone or timezone(timedelta(minutes=self.offset)))
        minute = here.hour * 60 + here.minute
        if (minute - self.start) % _MINUTES >= (self.end - self.start) % _MINUTES:
            return now
        end = here.replace(hour=self.end // 60, minute=self.end % 60, second=0, microsecond=0)
        # By the calendar, since not every day has 24 hours.
        return (end if self.end > minute else end + timedelta(days=1)).timestamp()


class Done(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The turns whose end a browser is told of."""

    after: Annotated[int, msgspec.Meta(ge=0, le=_MINUTES)] | None = None
    """Minutes from which on a turn of any session is told; None for none."""
    sessions: Annotated[
        tuple[Annotated[str, msgspec.Meta(max_length=SESSION_ID_SIZE)], ...], msgspec.Meta(max_length=MAX_DONE)
    ] = ()
    """Sessions whose turns are all told."""

    def wants(self, turn: "TurnNotice", only: str | None) -> bool:
        """Return True if the end of a turn is told; `only` is the one session that the browser is told of, if any."""
        if turn.session in self.sessions:
            return True
        return self.after is not None and turn.seconds >= 60 * self.after and only in (None, turn.session)


class Address(msgspec.Struct, frozen=True):
    """An endpoint in parts."""

    service: str
    """The pattern of `SERVICES`, or the configured host, that it belongs to."""
    host: str
    target: str


def read_endpoint(endpoint: str, further: Iterable[str] = ()) -> Address:
    """Return the parts of an endpoint at a known push service, or at one of `further` hosts. Raises `ValueError`."""
    found = _ENDPOINT.fullmatch(endpoint) if len(endpoint) <= ENDPOINT_SIZE else None
    if found is None:
        raise ValueError("not the https address of a push service")
    host, target = found.groups()
    for service in (*SERVICES, *further):
        if host == service or (service.startswith("*.") and host.endswith(service[1:])):
            return Address(service, host, target)
    raise ValueError(f"{host} is not a known push service; push_hosts can name it")


def is_at_apple(endpoint: str) -> bool:
    """Return whether an endpoint is one of Safari's push service."""
    try:
        return read_endpoint(endpoint).service == _APPLE
    except ValueError:
        return False


def is_public(address: str) -> bool:
    """Return whether an IP address is one of the internet: not loopback, private, nor a way to such an IPv4 address."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour
        if found in _NAT64:
            inner = ipaddress.IPv4Address(found.packed[-4:])
        if inner is not None:
            return is_public(str(inner))
        if found not in _UNICAST or found in _EXAMPLES:
            return False
    return found.is_global and not found.is_multicast


_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
"""All addresses that IANA has given away. Others lead to IPv4 in further ways, or into a site."""
_EXAMPLES: Final = ipaddress.IPv6Network("3fff::/20")
"""Addresses for documents (RFC 9637), which Python 3.11 takes for global ones."""


@dataclass(frozen=True, slots=True)
class Question:
    """An open question of an agent, in a session that the browser may control."""

    session: str
    request: str
    agent: str
    title: str | None
    """Title of the session."""
    asked: str | None
    """The question, in the agent's words."""
    options: tuple[tuple[str, str, str | None], ...]
    """Id, name and kind of each option."""
    arrived: float
    attended: bool
    """True while a controller is connected to the session."""
    is_in_doubt: bool = False
    """True if it may be of another session as well: it is for viewers of all sessions of an identity."""
    machine: str = ""
    """The node that has the session, whose name begins with it; empty for one of this gateway."""

    @property
    def tag(self) -> str:
        """Name of its notification: a later one of the same tag takes its place. It begins with the machine."""
        name = f"{self.session} {self.request}"
        return name if len(name) <= TEXT_LENGTH else f"{begin_of_tags(self.machine)}{_digest(name)}"


@dataclass(frozen=True, slots=True)
class TurnNotice:
    """A turn that has ended, in a session that the browser may control."""

    session: str
    agent: str
    title: str | None
    """Title of the session."""
    end: Literal["done", "failed", "stopped"]
    words: str
    """The reason, if it has failed or was stopped."""
    seconds: float

    @property
    def tag(self) -> str:
        """Name of its notification: that of a later turn of the session takes its place."""
        return tag_of(self.session)


def begin_of_tags(machine: str) -> str:
    """Return the beginning of the tags of the questions of a machine; nothing for this gateway's own."""
    return f"{machine}/" if machine else ""


def tag_of(session: str) -> str:
    """Return the name of the notification of a session's turn."""
    name = f"{_TURN}{session}"
    return name if len(name) <= TEXT_LENGTH else f"{_TURN}{_digest(session)}"


def _digest(name: str) -> str:
    return urlsafe_b64encode(hashlib.sha256(name.encode(errors="replace")).digest()).decode()[:32]


@dataclass(eq=False, slots=True)
class Message:
    """A message for one browser."""

    tag: str
    content: bytes
    """JSON, which the service worker of the page reads."""
    attempts: int = 0
    ends: bool = False
    """True if it takes a notification away."""

    @property
    def topic(self) -> str:
        """Its topic: a later message of the same one takes its place at the push service (RFC 8030, 5.4)."""
        return _digest(self.tag)


@dataclass(eq=False, slots=True)
class Mailbox:
    """The messages for one browser: what it was told, and what is to be sent."""

    quiet: Quiet | None = None
    zone: tzinfo | None = None
    """The time zone of the quiet hours; None if it is not known."""
    with_content: bool = True
    """False if messages may have ids and a title only."""
    replaces: bool = False
    """True if a notification is replaced by another one, and not taken away: Safari ends the subscription of a page
    that shows nothing."""
    waiting: list[Message] = field(default_factory=list)
    """The messages that are to be sent, the earliest first."""
    told: dict[str, Message] = field(default_factory=dict)
    """The message of each open question that was told, by tag."""
    turns: dict[str, TurnNotice] = field(default_factory=dict)
    """The last turn of each session that has ended and is not told yet, by tag."""
    shown: dict[str, None] = field(default_factory=dict)
    """Tags of the notifications that the browser may show, the earliest first: also of a former process."""

    def look(self, questions: Iterable[Question], now: float, unknown: Iterable[str] = ()) -> float:
        """Note all open questions of the browser; return when to look again though nothing changes, or infinity.

        `unknown` are machines whose questions are not known: no notification of theirs is taken away.
        """
        next_look, present, kept = inf, set[str](), tuple(map(begin_of_tags, unknown))
        for question in questions:
            present.add(question.tag)
            # Those of other machines outlive this process.
            if question.tag in self.told or (question.machine and question.tag in self.shown):
                continue
            due = self._due(question, now)
            if due <= now:
                self._tell(question)
            next_look = min(next_look, due if due > now else inf)
        for tag in [tag for tag in self.told | self.shown if tag not in present and not tag.startswith((_TURN, *kept))]:
            self._take_away(tag)
        for turn in list(self.turns.values()):
            due = now if self.quiet is None else self.quiet.over_at(now, self.zone)
            if due <= now:
                del self.turns[turn.tag]
                self._add(Message(turn.tag, turn_content(turn, full=self.with_content)))
            next_look = min(next_look, due if due > now else inf)
        return next_look

    def turn_ended(self, turn: TurnNotice) -> None:
        """Note the end of a turn that the browser is told of, in place of that of an earlier turn of the session."""
        self.turns[turn.tag] = turn
        while len(self.turns) > MAX_WAITING:
            del self.turns[next(iter(self.turns))]

    def turn_began(self, tag: str) -> None:
        """Take the notification of a session's former turn away: a person goes on with it, or reads along."""
        self.turns.pop(tag, None)
        if self.replaces:
            # Another notification would have to take its place, and say as little.
            self.waiting = [message for message in self.waiting if message.tag != tag]
            self.shown.pop(tag, None)
        elif tag in self.shown or any(message.tag == tag for message in self.waiting):
            self._take_away(tag)

    def _due(self, question: Question, now: float) -> float:
        due = question.arrived + PATIENCE if question.attended else now
        due = max(due, now)
        return due if self.quiet is None else self.quiet.over_at(due, self.zone)

    def _tell(self, question: Question) -> None:
        message = Message(question.tag, question_content(question, full=self.with_content))
        self.told[question.tag] = message
        self._add(message)

    def _take_away(self, tag: str) -> None:
        waiting = [message for message in self.waiting if message.tag == tag]
        if any(message.ends for message in waiting):
            return
        self.told.pop(tag, None)
        for message in waiting:
            self.waiting.remove(message)
        if tag in self.shown:
            content = as_json({"tag": tag, "decided": True, "replace": self.replaces})
            self._add(Message(tag, content, ends=True))

    def _add(self, message: Message) -> None:
        self.waiting = [other for other in self.waiting if other.tag != message.tag]
        del self.waiting[: -MAX_WAITING + 1]
        self.waiting.append(message)

    def attempt(self, message: Message) -> bool:
        """Note that an attempt to send a message begins; return whether `shown` has changed."""
        message.attempts += 1
        if message.ends or message.tag in self.shown:
            return False
        self.shown[message.tag] = None
        if len(self.shown) > MAX_SHOWN:
            del self.shown[next(iter(self.shown))]
        return True

    def sent(self, message: Message) -> bool:
        """Note that the push service has a message, or that it is given up; return whether `shown` has changed."""
        if message in self.waiting:
            self.waiting.remove(message)
        if message.ends and message.tag in self.shown:
            del self.shown[message.tag]
            return True
        return False


def trial_message() -> Message:
    """Return a message that says no more than that notifications come."""
    return Message("test", as_json({"tag": "test", "title": "Notifications work"}))


def question_content(question: Question, *, full: bool) -> bytes:
    """Return what a question's message says; without `full` that an agent asks, and the ids to find the question."""
    content: dict[str, Any] = {"tag": question.tag, "title": f"{short(question.agent)} needs you"}
    ids = {"sessionId": question.session, "requestId": question.request}
    if question.machine:
        ids["machine"] = question.machine
    if len(as_json(ids)) <= _IDS_SIZE:
        content |= ids
    if not full:
        return as_json(content)
    content["title"] = f"{short(question.title) or question.agent} needs you"
    content["body"] = short(question.asked)
    # A question that is cut, or has no words, is decided on the page, which shows all of it.
    has_buttons = content["body"] and not content["body"].endswith(_CUT) and "requestId" in content
    options = [
        {"optionId": option, "name": short(name), "kind": kind}
        for option, name, kind in islice(question.options, MAX_OPTIONS if has_buttons else 0)
        if len(option) <= TEXT_LENGTH
    ]
    for count in range(len(options), -1, -1):
        text = as_json(content | {"options": options[:count]})
        if len(text) <= PAYLOAD_SIZE:
            return text
    return question_content(question, full=False)


def turn_content(turn: TurnNotice, *, full: bool) -> bytes:
    """Return what the message of the end of a turn says; without `full` which agent, and the session to open."""
    name = short(turn.title) if full else ""
    ids = {"sessionId": turn.session} if len(as_json({"sessionId": turn.session})) <= _IDS_SIZE else {}
    words = {"done": "is done", "failed": "has failed", "stopped": "was stopped"}[turn.end]
    content: dict[str, Any] = {"tag": turn.tag, "title": f"{name or short(turn.agent)} {words}", **ids}
    return as_json(content | ({"body": short(turn.words)} if full else {}))


def short(text: str | None) -> str:
    """Return the beginning of a text as notifications have it: one line, without known kinds of secrets."""
    plain, is_part = beginning_without_secrets(text or "", 4 * TEXT_LENGTH)
    shown = printable(" ".join(plain.split()), size=2 * TEXT_LENGTH)
    return shown[: TEXT_LENGTH - 1] + _CUT if is_part or len(shown) > TEXT_LENGTH else shown


def as_json(content: dict[str, Any]) -> bytes:
    """Return JSON of texts that agents have made up."""
    return msgspec.json.encode({name: _encodable(value) for name, value in content.items()})


def _encodable(value: Any) -> Any:
    """Return a value without halves of surrogate pairs, which agents send and UTF-8 can't say."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {name: _encodable(member) for name, member in value.items()}
    return [*map(_encodable, value)] if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class Verdict:
    """The meaning of a push service's answer."""

    outcome: str
    """`sent`, `ended` if the subscription is gone, `failed`, or `retry`."""
    pause: float = 0.0
    """Seconds before the next attempt."""


def judge(status: int | None, retry_after: str, attempts: int) -> Verdict:
    """Judge the answer to attempt number `attempts`; its status is None if there was no connection."""
    if status is not None and status // 100 == 2:
        return Verdict("sent")
    if status in (404, 410):
        return Verdict("ended")
    if (status is None or status == 429 or status >= 500) and attempts <= len(PAUSES):
        asked = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else PAUSES[attempts - 1]
        return Verdict("retry", min(asked, LONGEST_PAUSE))
    return Verdict("failed")


def options_of(options: Mapping[str, Option]) -> Iterator[tuple[str, str, str | None]]:
    """Yield id, name and kind of an agent request's options that have a name."""
    for option_id, option in options.items():
        if option.name:
            yield option_id, option.name, option.kind
