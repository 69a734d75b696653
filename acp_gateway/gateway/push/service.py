"""Tells browsers whose page is closed of open questions, by the push services of their makers.

`run` follows the sessions and has `deciding` decide; a task for each browser that has messages sends them, so that a
slow service holds up no other browser's. No message of an agent waits for any of this.
"""

import logging
import math
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import tzinfo
from importlib import import_module
from types import ModuleType
from typing import Final, Literal
from weakref import WeakKeyDictionary

import trio

from acp_gateway.config.load import Config
from acp_gateway.core.agent_requests import AgentRequest
from acp_gateway.core.requests import EndedTurn, TurnOutcome
from acp_gateway.core.sessions.session import Role, Session, SessionReach
from acp_gateway.core.states import Presence
from acp_gateway.core.turns import ends
from acp_gateway.errors import AccessError, ConfigError, GatewayError
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.admission import Authorizer
from acp_gateway.gateway.browsers import browser_details
from acp_gateway.gateway.events.audit import AuditThrottle
from acp_gateway.gateway.metrics import Metrics
from acp_gateway.gateway.push.deciding import (
    LIFETIME,
    TRIAL_PAUSE,
    Address,
    Mailbox,
    Message,
    Question,
    TurnNotice,
    Verdict,
    is_at_apple,
    is_public,
    judge,
    options_of,
    read_endpoint,
    tag_of,
    trial_message,
)
from acp_gateway.gateway.push.store import PushStore, Subscription, zone_of
from acp_gateway.gateway.push.wording import words_of
from acp_gateway.gateway.sessions.session_changes import SessionChanges
from acp_gateway.gateway.sessions.session_view import SessionViews, Viewer
from acp_gateway.security.browser_sessions import Browser, BrowserStore
from acp_gateway.security.tls import client_context
from acp_gateway.transports.http.client import HttpClientConnection, Request
from acp_gateway.transports.sockets import connect_tcp
from acp_gateway.transports.streams import ByteStream
from acp_gateway.transports.timers import Signal

log = logging.getLogger(__name__)

LOOK_PAUSE: Final = 1.0
"""Seconds between two looks at the sessions: what is decided within it by a program needs no notification."""

SEND_TIMEOUT: Final = 20.0
"""Seconds for a connection to a push service, a message and its answer. They need one or two."""

LOOK_AGAIN: Final = 60.0
"""Seconds after which the sessions are looked at again though nothing has changed, if that has failed."""

AT_ONCE: Final = 4
"""Messages that are on their way to one push service at once."""

PROOF_LIFETIME: Final = 12 * 3600
"""Seconds for which the proof of the sender is valid: half of what RFC 8292 allows, for clocks that differ."""

CONTACT: Final = "mailto:acp-gateway@example.invalid"
"""Contact for push services of a gateway whose page has no address in the internet."""

_WEB_PUSH: Final = "acp_gateway.protocol.web_push"

Connect = Callable[[str], Awaitable[ByteStream]]
"""Connects to a host, with TLS. Raises `GatewayError`."""


async def connect_to_service(host: str) -> ByteStream:
    """Connect to a push service, at a public address. Raises as `connect_tcp`."""
    return await connect_tcp(host, 443, client_context(ca=None, pin=None), "a push service", is_public)


class _Subscriber:
    """A browser that is told."""

    def __init__(self, subscription: Subscription, mailbox: Mailbox) -> None:
        self.subscription = subscription
        self.mailbox = mailbox
        self.sending = False
        """True while a task sends its messages."""


class WebPush:
    """The notifications of one gateway.

    Args:
        config: returns the configuration in force.
        browsers: the browsers that are signed in.
        admissions: says what each may see.
        views: describes the sessions.
        changes: tells their changes.
        audit: is told of subscriptions.
        metrics: counts messages.
        page: returns the address of the page, if there is one.
        connect: connects to push services.
        now: returns the time, in seconds since 1970.
        zone: returns the time zone of a name, None if it is not known.
    """

    def __init__(
        self,
        config: Callable[[], Config],
        *,
        browsers: BrowserStore,
        admissions: Authorizer,
        views: SessionViews,
        changes: SessionChanges,
        audit: AuditThrottle,
        metrics: Metrics,
        page: Callable[[], str | None],
        connect: Connect = connect_to_service,
        now: Callable[[], float] = time.time,
        zone: Callable[[str], tzinfo | None] = zone_of,
    ) -> None:
        self._config = config
        self._browsers = browsers
        self._admissions = admissions
        self._views = views
        self._changes = changes
        self._audit = audit
        self._metrics = metrics
        self._page = page
        self.connect = connect
        self.now = now
        self.zone = zone
        self._store = PushStore(config().gateway.state_dir)
        self._subscribers: dict[str, _Subscriber] = {}
        # Sessions that may have open questions.
        self._asking: set[Session] = set()
        # Browsers whose open sessions were not looked at yet.
        self._new: set[str] = set()
        # The last turn of each session that has ended, as last seen.
        self._ended: WeakKeyDictionary[Session, EndedTurn | None] = WeakKeyDictionary()
        # The words of open questions, as first seen.
        self._words: dict[AgentRequest, str | None] = {}
        # Times of the last test notifications, by browser.
        self._trials: dict[str, float] = {}
        self._signal = Signal()
        self._limiters: dict[str, trio.CapacityLimiter] = {}
        # The reason why the file is not read, as last logged.
        self._complaint = ""

    # For the page

    async def public_key(self) -> str:
        """Return the key that a browser subscribes with. Raises `ConfigError`."""
        web_push = await _load_web_push()
        key: str = web_push.encode(web_push.public_key(web_push.read_key(self._store.key(web_push.new_key))))
        return key

    def subscription(self, browser: Browser) -> Subscription | None:
        """Return the subscription of a browser. Raises `ConfigError`."""
        return self._store.subscriptions.get(browser.id)

    async def subscribe(self, browser: Browser, subscription: Subscription) -> None:
        """Tell a browser of questions from now on. Raises `ConfigError`, and `ValueError` if it can't be told."""
        address = self._address(subscription)
        (await _load_web_push()).read_subscriber(subscription.p256dh, subscription.auth)
        before = self.subscription(browser)
        if self._store.set(browser.id, subscription, self._browsers.is_known):
            if before is None:
                self._audit.record("push_subscribed", **browser_details(browser), service=address.host)
            self._signal.notify()

    def unsubscribe(self, browser: Browser, why: str = "turned off") -> None:
        """Tell a browser nothing more. Raises `ConfigError`."""
        if self._store.remove(browser.id):
            self._audit.record("push_ended", **browser_details(browser), why=why)
            self._signal.notify()

    async def test(self, browser: Browser) -> str | None:
        """Send a notification at once; return the reason if that fails. Raises `ConfigError`."""
        subscription = self.subscription(browser)
        if subscription is None:
            return "notifications are not turned on in this browser"
        now = trio.current_time()
        self._trials = {name: time for name, time in self._trials.items() if now - time < TRIAL_PAUSE}
        if browser.id in self._trials:
            left = math.ceil(TRIAL_PAUSE - now + self._trials[browser.id])
            return f"a test notification was sent just now; the next one may follow in {left} s"
        self._trials[browser.id] = now
        verdict, answer = await self._send(subscription, trial_message())
        return None if verdict.outcome == "sent" else answer

    def _address(self, subscription: Subscription) -> Address:
        return read_endpoint(subscription.endpoint, self._config().gateway.push_hosts)

    # What is told

    async def run(self) -> None:
        """Tell browsers of questions until cancelled."""
        async with trio.open_nursery() as nursery:
            with self._changes.subscribe(lambda _: bool(self._subscribers), signal=self._signal) as changes:
                while True:
                    changed = changes.take()
                    self._asking = (self._asking | changed.sessions) - changed.removed
                    with _reporting("no browser is notified of the ends of turns"):
                        self._note_turns(changed.sessions)
                    next_look = self.now() + LOOK_AGAIN
                    with _reporting("no browser is notified"):
                        next_look = self._look(nursery)
                    with trio.move_on_after(max(0.0, next_look - self.now())):
                        await self._signal.wait()
                    await trio.sleep(LOOK_PAUSE)

    def _note_turns(self, sessions: Iterable[Session]) -> None:
        """Tell mailboxes of turns that have begun or ended in sessions since the last call."""
        for session in sessions:
            last = session.last_turn
            has_ended = last is not None and last is not self._ended.get(session) and last.outcome != TurnOutcome()
            self._ended[session] = last
            if not (has_ended or session.turns):
                continue
            viewers = {name: viewer for name in self._subscribers if (viewer := self._viewer(name)) is not None}
            for name, viewer in viewers.items():
                if viewer.role is not Role.CONTROLLER or not viewer.sees(session):
                    continue
                subscriber = self._subscribers[name]
                notice = _notice_of(session, last) if has_ended and last is not None else None
                if notice is not None and subscriber.subscription.done.wants(notice, subscriber.subscription.session):
                    subscriber.mailbox.turn_ended(notice)
                elif session.turns:
                    subscriber.mailbox.turn_began(tag_of(session.name))

    def _look(self, nursery: trio.Nursery) -> float:
        """Decide what is sent, and begin to; return when to look again."""
        self._new = (self._new | self._read_subscriptions()) & self._subscribers.keys()
        viewers = {name: viewer for name in self._subscribers if (viewer := self._viewer(name)) is not None}
        for name in self._new & viewers.keys():
            live = [session for session in self._views.sessions(viewers[name]) if session.live]
            self._asking.update(live)
            for session in live:
                # What has ended before is not told.
                self._ended.setdefault(session, session.last_turn)
        open_questions: dict[Session, list[Question]] = {}
        former, self._words = self._words, {}
        for session in self._asking:
            with _reporting("no browser is notified of a session's questions"):
                open_questions[session] = self._questions(session, former)
        self._asking = {session for session in self._asking if open_questions.get(session) != []}
        now, next_look = self.now(), math.inf
        for name, viewer in viewers.items():
            subscriber = self._subscribers[name]
            only = subscriber.subscription.session
            seen = [
                session
                for session in open_questions
                if viewer.role is Role.CONTROLLER and viewer.sees(session) and only in (None, session.name)
            ]
            with _reporting(f"browser {name} is not notified"):
                questions = [
                    question
                    for session in seen
                    for question in open_questions[session]
                    if viewer.reach.sees_all or not question.is_in_doubt
                ]
                next_look = min(next_look, subscriber.mailbox.look(questions, now))
            if subscriber.mailbox.waiting and not subscriber.sending:
                subscriber.sending = True
                nursery.start_soon(self._deliver, name, subscriber)
        self._new.clear()
        return next_look

    def _read_subscriptions(self) -> set[str]:
        """Read the subscriptions; return the browsers that are new among them."""
        try:
            stored = self._store.subscriptions
            for name in [name for name in stored if not self._browsers.is_known(name)]:
                self._store.remove(name)
            stored = self._store.subscriptions
            self._complaint = ""
        except ConfigError as error:
            if str(error) != self._complaint:
                log.error("no browser is notified: %s", error)
            self._complaint, stored = str(error), {}
        former, found = self._subscribers, dict[str, _Subscriber]()
        for name, subscription in stored.items():
            known = former.get(name)
            if known is None or known.subscription.endpoint != subscription.endpoint:
                shown = dict.fromkeys(self._store.shown(name))
                known = _Subscriber(subscription, Mailbox(replaces=is_at_apple(subscription.endpoint), shown=shown))
            known.subscription = subscription
            quiet = subscription.quiet
            if known.mailbox.quiet != quiet:
                known.mailbox.zone = None if quiet is None or quiet.zone is None else self.zone(quiet.zone)
                known.mailbox.quiet = quiet
            known.mailbox.with_content = self._config().gateway.push_content
            found[name] = known
        self._subscribers = found
        return {name for name, subscriber in self._subscribers.items() if former.get(name) is not subscriber}

    def _viewer(self, name: str) -> Viewer | None:
        """Return what a browser may see; None if it is signed in no more, or nothing."""
        found = self._browsers.find(name)
        if found is None:
            return None
        access = Access.of_browser(*found)
        try:
            grant = self._admissions.authorize(access, ConnectRequest(control=True))
        except AccessError:
            return None
        return self._views.viewer(grant.reach, grant.role, access.agents)

    def _questions(self, session: Session, former: Mapping[AgentRequest, str | None]) -> list[Question]:
        """Return the open questions for users in a session. `former` has the words of those that were open before."""
        multiplexer = self._views.multiplexer_of(session)
        if multiplexer is None:
            return []
        attended = any(client.controls and client.presence is Presence.CONNECTED for client in session.attached)
        clock = self.now() - trio.current_time()
        waiting = multiplexer.waiting(session, SessionReach(session.owner))
        asked = [request for request in waiting if request.is_decision and request.is_told_in(session)]
        for request in asked:
            known = request in former
            self._words[request] = former[request] if known else words_of(request, _latest(session))
        return [
            Question(
                session.name,
                request.key,
                session.agent,
                session.title,
                self._words[request],
                tuple(options_of(request.options.values())),
                request.arrived_at + clock,
                attended and not request.is_in_doubt,
                is_in_doubt=request.is_in_doubt,
            )
            for request in asked
        ]

    # What is sent

    async def _deliver(self, name: str, subscriber: _Subscriber) -> None:
        """Send the messages for a browser, one after the other, until none is left."""
        mailbox = subscriber.mailbox
        try:
            while mailbox.waiting and self._subscribers.get(name) is subscriber and self._browsers.find(name):
                message = mailbox.waiting[0]
                if mailbox.attempt(message):
                    self._keep_shown(name, mailbox)
                verdict, answer = await self._send(subscriber.subscription, message)
                if verdict.outcome == "retry":
                    log.info("browser %s: its notification is sent again in %g s: %s", name, verdict.pause, answer)
                    await trio.sleep(verdict.pause)
                    continue
                if mailbox.sent(message):
                    self._keep_shown(name, mailbox)
                if verdict.outcome == "failed":
                    log.warning("browser %s gets no notification: %s", name, answer)
                elif verdict.outcome == "ended":
                    self._end(name, subscriber)
        except Exception:
            # No message of an agent depends on a notification, so a bug in here must not end the gateway.
            log.exception("browser %s gets no notification: a bug of the gateway", name)
            mailbox.waiting.clear()
        finally:
            subscriber.sending = False

    def _keep_shown(self, name: str, mailbox: Mailbox) -> None:
        """Store what a browser may show, so that it is taken away by the next process if not by this one."""
        try:
            self._store.set_shown(name, mailbox.shown)
        except ConfigError as error:
            log.error("the notifications of browser %s are not remembered: %s", name, error)

    def _end(self, name: str, subscriber: _Subscriber) -> None:
        """End a subscription that its push service does not know any more, unless another one has followed it."""
        found = self._browsers.find(name)
        try:
            stored = None if found is None else self.subscription(found[0])
            if found is not None and stored is not None and stored.endpoint == subscriber.subscription.endpoint:
                self.unsubscribe(found[0], "gone")
        except ConfigError as error:
            log.error("the subscription of browser %s is not removed: %s", name, error)
        if self._subscribers.get(name) is subscriber:
            del self._subscribers[name]

    async def _send(self, subscription: Subscription, message: Message) -> tuple[Verdict, str]:
        """Make one attempt to send a message; return the verdict, and the answer in words without the endpoint."""
        try:
            address = self._address(subscription)
        except ValueError as error:
            return Verdict("failed"), str(error)
        limiter = self._limiters.setdefault(address.service, trio.CapacityLimiter(AT_ONCE))
        status, retry_after, answer = None, "", f"{address.host} did not answer in {SEND_TIMEOUT:g} s"
        async with limiter:
            with trio.move_on_after(SEND_TIMEOUT):
                try:
                    status, retry_after = await self._post(subscription, address, message)
                    answer = f"{address.host} answers {status}"
                except (GatewayError, OSError, trio.BrokenResourceError) as error:
                    answer = str(error)
        verdict = judge(status, retry_after, message.attempts)
        if verdict.outcome != "retry":
            self._metrics.pushes[verdict.outcome] += 1
        return verdict, answer

    async def _post(self, subscription: Subscription, address: Address, message: Message) -> tuple[int, str]:
        """Send a message; return the status of the answer and its `Retry-After`."""
        web_push = await _load_web_push()
        key = web_push.read_key(self._store.key(web_push.new_key))
        page = self._page()
        contact = page if page is not None and page.startswith("https:") else CONTACT
        expires = int(self.now()) + PROOF_LIFETIME
        salt = secrets.token_bytes(web_push.SALT_SIZE)
        body = web_push.encrypt_once(message.content, subscription.p256dh, subscription.auth, salt)
        headers = {
            "Authorization": web_push.authorization(key, f"https://{address.host}", contact, expires),
            "Content-Encoding": "aes128gcm",
            "Content-Type": "application/octet-stream",
            "TTL": str(LIFETIME),
            "Topic": message.topic,
            "Urgency": "high",
        }
        stream = await self.connect(address.host)
        try:
            head = await HttpClientConnection(stream, address.host).send(address.target, Request("POST", headers, body))
        finally:
            with trio.CancelScope(shield=True):
                await stream.aclose()
        return head.status, head.headers.get("retry-after", "")


def _notice_of(session: Session, turn: EndedTurn) -> TurnNotice:
    """Return what is told of the end of a turn."""
    outcome = turn.outcome
    end: Literal["done", "failed", "stopped"] = "done"
    if outcome.error is not None or outcome.cut is not None:
        end = "failed"
    elif ends.words_of(outcome):
        end = "stopped"
    return TurnNotice(session.name, session.agent, session.title, end, ends.words_of(outcome), turn.seconds)


def _latest(session: Session) -> Iterator[bytes]:
    """Yield the updates of a session since the end of the last turn, the latest first."""
    return reversed(session.journal.running())


@contextmanager
def _reporting(what: str) -> Iterator[None]:
    """Log a bug: no message of an agent depends on a notification, so that it must not end the gateway."""
    try:
        yield
    except Exception:
        log.exception("%s: a bug of the gateway", what)


async def _load_web_push() -> ModuleType:
    """Return the module, which few gateways need and which takes long to import."""
    if _WEB_PUSH not in sys.modules:
        await trio.to_thread.run_sync(import_module, _WEB_PUSH)
    return import_module(_WEB_PUSH)
