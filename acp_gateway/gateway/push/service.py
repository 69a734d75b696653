"""Tells browsers whose page is closed of open questions, by the push services of their makers.

`watching` tells of the sessions, also of those of other machines, and `deciding` decides; a task for each browser that
has messages sends them, so that a slow service holds up no other browser's. No message of an agent waits for any of
this.
"""

import itertools
import logging
import math
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import tzinfo
from importlib import import_module
from types import ModuleType
from typing import Final

import trio

from acp_gateway.config.load import Config
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
    read_endpoint,
    tag_of,
    trial_message,
)
from acp_gateway.gateway.push.following import Follower
from acp_gateway.gateway.push.store import PushStore, Subscription, zone_of
from acp_gateway.gateway.push.watching import SessionWatch
from acp_gateway.gateway.sessions.session_changes import SessionChanges
from acp_gateway.gateway.sessions.session_view import SessionViews, Viewer
from acp_gateway.security.browser_sessions import Browser, BrowserStore
from acp_gateway.security.tls import client_context
from acp_gateway.transports.http.client import HttpClientConnection, Request
from acp_gateway.transports.sockets import connect_tcp
from acp_gateway.transports.streams import ByteStream

log = logging.getLogger(__name__)

SEND_TIMEOUT: Final = 20.0
"""Seconds for a connection to a push service, a message and its answer. They need one or two."""

AT_ONCE: Final = 4
"""Messages that are on their way to one push service at once."""

PROOF_LIFETIME: Final = 12 * 3600
"""Seconds for which the proof of the sender is valid: half of what RFC 8292 allows, for clocks that differ."""

CONTACT: Final = "mailto:acp-gateway@example.invalid"
"""Contact for push services of a gateway whose page has no address in the internet."""

_WEB_PUSH: Final = "acp_gateway.protocol.web_push"

Connect = Callable[[str], Awaitable[ByteStream]]
"""Connects to a host, with TLS. Raises `GatewayError`."""

Elsewhere = Callable[[str], Mapping[str, Sequence[Question] | None]]
"""Returns the open questions at the other machines that a browser may use, by their names; None for one that has not
told them yet."""


async def connect_to_service(host: str) -> ByteStream:
    """Connect to a push service, at a public address. Raises as `connect_tcp`."""
    return await connect_tcp(host, 443, client_context(ca=None, pin=None), "a push service", is_public)


class _Subscriber:
    """A browser that is told.

    Args:
        name: the id of the browser.
        push: sends its messages.
        subscription: how it is reached, and what it is told.
        mailbox: its messages.
    """

    since: None = None

    def __init__(self, name: str, push: "WebPush", subscription: Subscription, mailbox: Mailbox) -> None:
        self.subscription = subscription
        self.mailbox = mailbox
        self.sending = False
        """True while a task sends its messages."""
        self._name = name
        self._push = push

    def __str__(self) -> str:
        return f"browser {self._name}"

    def viewer(self) -> Viewer | None:
        """Return what it may see, see `Watcher`."""
        return self._push.viewer(self._name)

    def turn(self, session: str, ended: TurnNotice | None, *, running: bool) -> None:
        """Note a turn, see `Watcher`."""
        if ended is not None and self.subscription.done.wants(ended, self.subscription.session):
            self.mailbox.turn_ended(ended)
        elif running:
            self.mailbox.turn_began(tag_of(session))

    def look(self, questions: list[Question], now: float) -> float:
        """Decide what is sent, see `Watcher`, and begin to."""
        there = self._push.elsewhere(self._name)
        asked = itertools.chain(questions, *filter(None, there.values()))
        wanted = [each for each in asked if self.subscription.session in (None, each.session)]
        unknown = [machine for machine, known in there.items() if known is None]
        next_look = self.mailbox.look(wanted, now, unknown)
        if self.mailbox.waiting and not self.sending:
            self._push.begin_to_send(self._name, self)
        return next_look


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
    ) -> None:
        self.connect: Connect = connect_to_service
        """Connects to push services."""
        self.now: Callable[[], float] = time.time
        """Returns the time, in seconds since 1970."""
        self.zone: Callable[[str], tzinfo | None] = zone_of
        """Returns the time zone of a name, None if it is not known."""
        self._config = config
        self._browsers = browsers
        self._admissions = admissions
        self._views = views
        self._audit = audit
        self._metrics = metrics
        self._page = page
        self._store = PushStore(config().gateway.state_dir)
        self._subscribers: dict[str, _Subscriber] = {}
        # Times of the last test notifications, by browser.
        self._trials: dict[str, float] = {}
        self.watch = SessionWatch(views, changes, lambda: self.now())
        """Tells of questions and turns of this gateway."""
        self.elsewhere: Elsewhere = lambda _: {}
        """Returns the questions of nodes, which set it."""
        # That of `run`, while that runs.
        self._nursery: trio.Nursery | None = None
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
            self.watch.look_again()

    def unsubscribe(self, browser: Browser, why: str = "turned off") -> None:
        """Tell a browser nothing more. Raises `ConfigError`."""
        if self._store.remove(browser.id):
            self._audit.record("push_ended", **browser_details(browser), why=why)
            self.watch.look_again()

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
        async with trio.open_nursery() as self._nursery:
            await self.watch.run(self._read_subscriptions)

    def told(self) -> dict[str, Access]:
        """Return the browsers that are told of questions at this moment, and what each may do."""
        try:
            found = [(name, self._browsers.find(name)) for name in self._store.subscriptions]
        except ConfigError:
            return {}  # It is logged where it is read for this gateway.
        return {name: Access.of_browser(*browser) for name, browser in found if browser is not None}

    def turn(self, browsers: Iterable[str], session: str, ended: TurnNotice | None, *, running: bool) -> None:
        """Note a turn of a session of another machine, for these browsers."""
        names = set(browsers)
        if not names <= self._subscribers.keys():
            self._read_subscriptions()  # This may be before the first look.
        for name in names & self._subscribers.keys():
            self._subscribers[name].turn(session, ended, running=running)

    def heard(self, browsers: Iterable[str], node: str) -> int | None:
        """Return the time until which all of these browsers were told of ends of turns at a node, by its clock.

        None if none of them was told of any.
        """
        try:
            times = [self._store.heard(name, node) for name in browsers]
        except ConfigError:
            return None  # It is logged where it is read for this gateway.
        return min((time for time in times if time is not None), default=None)

    def set_heard(self, browsers: Iterable[str], node: str, time: int) -> None:
        """Store the time until which browsers were told of ends of turns at a node, for the next process."""
        try:
            self._store.set_heard(browsers, node, time)
        except ConfigError as error:
            log.error("what the node %s has told for notifications is not remembered: %s", node, error)

    def _read_subscriptions(self) -> None:
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
                mailbox = Mailbox(replaces=is_at_apple(subscription.endpoint), shown=shown)
                known = _Subscriber(name, self, subscription, mailbox)
            known.subscription = subscription
            quiet = subscription.quiet
            if known.mailbox.quiet != quiet:
                known.mailbox.zone = None if quiet is None or quiet.zone is None else self.zone(quiet.zone)
                known.mailbox.quiet = quiet
            known.mailbox.with_content = self._config().gateway.push_content
            found[name] = known
        self._subscribers = found
        for subscriber in set(former.values()) - set(found.values()):
            self.watch.discard(subscriber)
        for subscriber in set(found.values()) - set(former.values()):
            self.watch.add(subscriber)

    def viewer(self, name: str) -> Viewer | None:
        """Return what a browser may see; None if it is signed in no more, or nothing."""
        found = self._browsers.find(name)
        if found is None:
            return None
        return self._viewer_of(Access.of_browser(*found), ConnectRequest(control=True))

    def _viewer_of(self, access: Access, wanted: ConnectRequest) -> Viewer | None:
        try:
            grant = self._admissions.authorize(access, wanted)
        except AccessError:
            return None
        return self._views.viewer(grant.reach, grant.role, access.agents)

    async def tell(
        self, access: Access, wanted: ConnectRequest, since: int | None, send: Callable[[bytes], Awaitable[None]]
    ) -> None:
        """Tell a control connection of questions and turns, until it has to connect again.

        `since` is that of `Watcher`. Raises what `send` raises.
        """
        agents = self._config().agents.keys()
        follower = Follower(
            lambda: self._viewer_of(access, wanted),
            since,
            lambda: self._config().gateway.push_content,
            lambda: self._config().agents.keys() == agents,
        )
        self.watch.add(follower)
        try:
            while (message := await follower.take()) is not None:
                await send(message)
        finally:
            self.watch.discard(follower)

    # What is sent

    def begin_to_send(self, name: str, subscriber: _Subscriber) -> None:
        """Send the messages for a browser, while `run` runs."""
        if self._nursery is not None:
            subscriber.sending = True
            self._nursery.start_soon(self._deliver, name, subscriber)

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


async def _load_web_push() -> ModuleType:
    """Return the module, which few gateways need and which takes long to import."""
    if _WEB_PUSH not in sys.modules:
        await trio.to_thread.run_sync(import_module, _WEB_PUSH)
    return import_module(_WEB_PUSH)
