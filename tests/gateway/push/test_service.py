"""Notifications from the question of an agent to a push service, which decrypts them as a browser does."""

import logging
import struct
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import reset_tzpath

import h11
import msgspec
import pytest
import trio
import trio.testing

from acp_gateway.core.agent_requests import AgentRequest
from acp_gateway.errors import ConfigError, Unreachable
from acp_gateway.gateway.access import Access
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.push.deciding import PATIENCE, PAUSES, TRIAL_PAUSE
from acp_gateway.gateway.push.service import CONTACT, SEND_TIMEOUT, connect_to_service
from acp_gateway.gateway.push.store import PushStore, Subscription, zone_of
from acp_gateway.gateway.push.watching import LOOK_AGAIN, LOOK_PAUSE
from acp_gateway.gateway.push.wording import words_of
from acp_gateway.transports.streams import TrioBytes
from tests.kit.bridging import YES, Bench, Page, asks, editor_in, ends_turn, prompted, running
from tests.kit.doubles import ServingAgent, ServingAgents
from tests.kit.hub_scene import permission
from tests.kit.push_service import Receiver, plain, verify

pytestmark = [pytest.mark.usefixtures("no_bug_showed"), pytest.mark.jumps]

NOON = 1_900_000_000 // 86400 * 86400 + 12 * 3600.0
AHEAD = 60 * 60.0
"""Seconds in which all that is due has been sent."""


@dataclass
class Delivery:
    """A request to a push service."""

    host: str
    target: str
    headers: dict[str, str]
    body: bytes


class PushServices:
    """The push services of all makers, in memory."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.answers: list[bytes | Exception | None] = []
        """Answers to the next requests; None for never. Then each is accepted."""
        self.got: list[Delivery] = []

    async def connect(self, host: str) -> TrioBytes:
        answer = self.answers.pop(0) if self.answers else b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n"
        if isinstance(answer, Exception):
            raise answer
        here, there = trio.testing.memory_stream_pair()
        self._nursery.start_soon(self._serve, host, there, answer)
        return TrioBytes(here)

    async def _serve(self, host: str, stream: trio.abc.Stream, answer: bytes | None) -> None:
        http = h11.Connection(h11.SERVER)
        request, body = None, b""
        while not isinstance(event := http.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                http.receive_data(bytes(await stream.receive_some()))
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body += event.data
        assert request is not None
        headers = {name.decode(): value.decode() for name, value in request.headers}
        assert (request.method, headers["host"]) == (b"POST", host)
        self.got.append(Delivery(host, request.target.decode(), headers, body))
        if answer is None:
            await trio.sleep_forever()
        else:
            await stream.send_all(answer)


def signed_in(bench: Bench, identity: str = "ann", **code: Any) -> Access:
    """A browser of this identity."""
    token = bench.gateway.tokens.create("laptop", identity, None)[0]
    _, secret = bench.gateway.browsers.make_code(token, identity, label="phone", **code)
    return Access.of_browser(bench.gateway.browsers.sign_in(secret).browser, token)


@asynccontextmanager
async def pushing(tmp_path: Path, spawner: Spawner) -> AsyncIterator[tuple[Bench, PushServices]]:
    """A gateway with push services."""
    async with running(tmp_path, spawner, timeout=30 * 86400) as bench:
        services = PushServices(bench.nursery)
        push = bench.gateway.push
        push.connect = services.connect
        start = trio.current_time()
        push.now = lambda: NOON + trio.current_time() - start
        yield bench, services


@pytest.fixture
async def pushed(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> AsyncIterator[tuple[Bench, PushServices]]:
    async with pushing(tmp_path, spawner) as (bench, services):
        bench.agents = loading_agents
        yield bench, services


@pytest.fixture
async def bench(pushed: tuple[Bench, PushServices]) -> Bench:
    return pushed[0]


@pytest.fixture
async def services(pushed: tuple[Bench, PushServices]) -> PushServices:
    return pushed[1]


async def asked(bench: Bench, agents: ServingAgents, access: Access) -> tuple[Page, ServingAgent, str]:
    """A page whose session has a turn, and its agent."""
    page = await bench.page(access)
    session = await page.new_session()
    await prompted(page, agents[0], session)
    return page, agents[0], session


async def left(page: Page) -> None:
    """The page is closed."""
    await page.stream.aclose()
    await trio.sleep(10)


async def test_a_question_reaches_a_browser_whose_page_is_closed(bench: Bench, services: PushServices) -> None:
    phone, access = Receiver(), signed_in(bench)
    page, agent, session = await asked(bench, bench.agents, access)
    key = (await page.result("push/get"))["key"]
    await page.result("push/subscribe", **phone.members)
    await left(page)
    call = {"toolCallId": "1", "title": "Run make"}
    await asks(agent, session, params=permission()["params"] | {"sessionId": session, "toolCall": call})
    await trio.sleep(10)
    (got,) = services.got
    content = phone.read(got.body)
    assert content["body"] == "Run make"
    assert (content["sessionId"], content["tag"]) == (session, f"{session} {content['requestId']}")
    assert [option["optionId"] for option in content["options"]] == ["yes", "no"]
    assert (got.host, f"https://{got.host}{got.target}") == ("fcm.googleapis.com", phone.endpoint)
    shown = {name: got.headers[name] for name in ("ttl", "urgency", "content-encoding")}
    assert shown == {"ttl": "86400", "urgency": "high", "content-encoding": "aes128gcm"}
    claims, sender = verify(got.headers["authorization"])
    assert sender == key
    assert (claims["aud"], claims["sub"]) == ("https://fcm.googleapis.com", CONTACT)
    assert NOON < claims["exp"] <= NOON + 86400
    # The page answers it, and the notification is taken away.
    answering = await bench.page(access, "answering")
    response = {"requestId": content["requestId"], "response": YES}
    await answering.result("session/respond", sessionId=session, **response)
    await trio.sleep(10)
    decided = services.got[-1]
    assert phone.read(decided.body) == {"tag": content["tag"], "decided": True, "replace": False}
    assert decided.headers["topic"] == got.headers["topic"]
    assert len(services.got) == 2
    assert bench.gateway.metrics.pushes["sent"] == 2


async def test_a_question_is_pushed_after_a_while_though_an_editor_is_connected(
    bench: Bench, services: PushServices
) -> None:
    page, agent, session = await asked(bench, bench.agents, signed_in(bench))
    await page.result("push/subscribe", **Receiver().members)
    await left(page)
    await editor_in(bench, session)
    await asks(agent, session)
    await trio.sleep(PATIENCE - 1)
    assert services.got == []
    await trio.sleep(1 + 2 * LOOK_PAUSE)
    assert len(services.got) == 1


async def test_only_those_who_may_decide_are_told(bench: Bench, services: PushServices, tmp_path: Path) -> None:
    page, agent, session = await asked(bench, bench.agents, signed_in(bench))
    await (await bench.page(signed_in(bench, "ben"), "ben")).result("push/subscribe", **Receiver("ben").members)
    other = await bench.page(signed_in(bench, session="another"), "other")
    await other.result("push/subscribe", **Receiver("other").members)
    looks = signed_in(bench, role="observer")
    observer = await bench.page(looks, "observer")
    assert "observers may only look" in (await observer.error("push/subscribe", **Receiver("looks").members))[1]
    # One whose role was changed has its subscription.
    assert looks.browser is not None
    subscription = msgspec.convert(Receiver("looks").members, Subscription)
    PushStore(tmp_path / "state").set(looks.browser.id, subscription, lambda _: True)
    await asks(agent, session)
    await left(page)
    await trio.sleep(AHEAD)
    assert services.got == []


async def test_a_program_with_a_token_has_no_subscription(bench: Bench, services: PushServices, tmp_path: Path) -> None:
    page = await bench.page(bench.access())
    for call in ("push/get", "push/unsubscribe", "push/test"):
        assert (await page.error(call))[1] == "only a browser that has signed in gets notifications"
    assert "signed in" in (await page.error("push/subscribe", **Receiver().members))[1]
    assert not (tmp_path / "state" / "push.json").exists()


@pytest.mark.parametrize(
    ("member", "value", "why"),
    [
        ("endpoint", "https://127.0.0.1/a", "not a known push service"),
        ("endpoint", "https://box.local/a", "not a known push service"),
        ("endpoint", "http://fcm.googleapis.com/a", "not the https address"),
        ("endpoint", "https://fcm.googleapis.com/" + "a" * 2000, "push/subscribe"),
        ("p256dh", "AAAA", "push/subscribe"),
        ("auth", "AAAA", "not a secret"),
        ("quiet", {"start": 0, "end": 1440, "offset": 0}, "push/subscribe"),
        ("quiet", {"start": 0}, "push/subscribe"),
    ],
)
async def test_a_subscription_that_cannot_be_used_is_refused(
    bench: Bench, services: PushServices, member: str, value: Any, why: str
) -> None:
    page = await bench.page(signed_in(bench))
    code, text = await page.error("push/subscribe", **Receiver().members | {member: value})
    assert code == -32602
    assert why in text
    assert not (await page.result("push/get"))["subscribed"]


async def test_revoking_ends_the_notifications_of_a_browser(
    bench: Bench, services: PushServices, tmp_path: Path
) -> None:
    access = signed_in(bench)
    assert access.browser is not None
    page, agent, session = await asked(bench, bench.agents, access)
    await page.result("push/subscribe", **Receiver().members)
    await trio.sleep(10)
    bench.gateway.browsers.end(access.browser.id)
    await asks(agent, session)
    await trio.sleep(AHEAD)
    assert services.got == []
    assert "fcm.googleapis.com" not in (tmp_path / "state" / "push.json").read_text()


async def test_push_content_off_sends_ids_and_a_title_alone(bench: Bench, services: PushServices) -> None:
    config = bench.gateway.config
    bench.gateway.config = replace(config, gateway=replace(config.gateway, push_content=False))
    phone = Receiver()
    page, agent, session = await asked(bench, bench.agents, signed_in(bench))
    await page.result("push/subscribe", **phone.members)
    await asks(agent, session)
    await left(page)
    content = phone.read(services.got[0].body)
    assert {*content} == {"tag", "title", "sessionId", "requestId"}
    assert content["title"] == "fake needs you"


async def test_quiet_hours_are_kept_with_the_subscription(bench: Bench, services: PushServices) -> None:
    page, agent, session = await asked(bench, bench.agents, signed_in(bench))
    quiet = {"start": 11 * 60, "end": 13 * 60, "offset": 0, "zone": None}
    await page.result("push/subscribe", **Receiver().members, quiet=quiet)
    told = await page.result("push/get")
    assert (told["subscribed"], told["quiet"]) == (True, quiet)
    await asks(agent, session)
    await left(page)
    await trio.sleep(0.9 * 3600)
    assert services.got == []
    await trio.sleep(0.2 * 3600)
    assert len(services.got) == 1


async def test_quiet_hours_are_those_of_the_browsers_time_zone_or_of_its_offset(
    bench: Bench, services: PushServices
) -> None:
    names = []

    def zone(name: str) -> timezone | None:
        names.append(name)
        return timezone(timedelta(hours=5)) if name == "Five/Hours" else None

    bench.gateway.push.zone = zone
    page, agent, session = await asked(bench, bench.agents, signed_in(bench))
    other = await bench.page(signed_in(bench), "other")
    quiet = {"start": 16 * 60, "end": 18 * 60, "offset": 0}
    await page.result("push/subscribe", **Receiver("here").members, quiet=quiet | {"zone": "Five/Hours"})
    await other.result("push/subscribe", **Receiver("there").members, quiet=quiet | {"zone": "No/Where"})
    await left(other)
    await left(page)
    await asks(agent, session)
    await trio.sleep(0.9 * 3600)
    assert [got.target.rpartition("/")[2] for got in services.got] == ["there"]
    await trio.sleep(0.2 * 3600)
    assert [got.target.rpartition("/")[2] for got in services.got] == ["there", "here"]
    assert sorted(names) == ["Five/Hours", "No/Where"]


async def test_a_subscription_for_one_session_tells_of_no_other(bench: Bench, services: PushServices) -> None:
    phone = Receiver()
    page, agent, session = await asked(bench, bench.agents, signed_in(bench))
    second = await page.new_session()
    await prompted(page, agent, second)
    await page.result("push/subscribe", **phone.members, session=second)
    assert (await page.result("push/get"))["session"] == second
    await left(page)
    await asks(agent, session, "one")
    await asks(agent, second, "two")
    await trio.sleep(AHEAD)
    assert [phone.read(got.body)["sessionId"] for got in services.got] == [second]


async def test_a_question_has_the_words_of_its_tool_call(bench: Bench, services: PushServices) -> None:
    phone = Receiver()
    page, agent, session = await asked(bench, bench.agents, signed_in(bench))
    await page.result("push/subscribe", **phone.members)
    await left(page)
    call = {"sessionUpdate": "tool_call", "toolCallId": "call", "title": "bash", "rawInput": {"command": "make"}}
    await agent.send(method="session/update", params={"sessionId": session, "update": call})
    await asks(agent, session)
    await trio.sleep(AHEAD)
    assert [phone.read(got.body)["body"] for got in services.got] == ["bash: make"]


async def test_a_notification_is_taken_away_after_a_restart_of_the_gateway(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    phone = Receiver()
    async with pushing(tmp_path, spawner) as (bench, services):
        page, agent, session = await asked(bench, loading_agents, signed_in(bench))
        await page.result("push/subscribe", **phone.members)
        await left(page)
        await asks(agent, session)
        await trio.sleep(10)
        tag = phone.read(services.got[0].body)["tag"]
    for told in ([{"tag": tag, "decided": True, "replace": False}], []):
        async with pushing(tmp_path, spawner) as (bench, services):
            await trio.sleep(AHEAD)
            assert [phone.read(got.body) for got in services.got] == told


async def test_an_error_in_looking_ends_neither_the_gateway_nor_the_notifications(
    bench: Bench, services: PushServices, caplog: pytest.LogCaptureFixture
) -> None:
    page, agent, session = await asked(bench, bench.agents, signed_in(bench))
    works = False

    def zone(_: str) -> None:
        assert works

    bench.gateway.push.zone = zone
    quiet = {"start": 0, "end": 0, "zone": "Some/Where"}
    await page.result("push/subscribe", **Receiver().members, quiet=quiet)
    await asks(agent, session)
    await left(page)
    await trio.sleep(AHEAD)
    assert services.got == []
    assert "no browser is notified: a bug of the gateway" in caplog.text
    caplog.clear()
    works = True
    await trio.sleep(LOOK_AGAIN + 10)
    assert len(services.got) == 1


async def test_an_error_with_one_session_leaves_the_notifications_of_others(
    bench: Bench, services: PushServices, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    phone = Receiver()
    page, agent, session = await asked(bench, bench.agents, signed_in(bench))
    second = await page.new_session()
    await prompted(page, agent, second)

    def fail_in_first(request: AgentRequest, updates: Iterable[bytes]) -> str | None:
        assert request.session is not None
        assert request.session.name != session
        return words_of(request, updates)

    monkeypatch.setattr("acp_gateway.gateway.push.watching.words_of", fail_in_first)
    await page.result("push/subscribe", **phone.members)
    await left(page)
    await asks(agent, session, "one")
    await asks(agent, second, "two")
    await trio.sleep(AHEAD)
    assert [phone.read(got.body)["sessionId"] for got in services.got] == [second]
    assert "no browser is notified of a session's questions: a bug of the gateway" in caplog.text
    caplog.clear()


async def test_notifications_that_cannot_be_remembered_are_sent_all_the_same(
    bench: Bench, services: PushServices, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, agent, session = await asked(bench, bench.agents, signed_in(bench))
    await page.result("push/subscribe", **Receiver().members)
    await left(page)

    def fail(*_: object) -> None:
        raise ConfigError("the disk is full")

    monkeypatch.setattr(PushStore, "set_shown", fail)
    await asks(agent, session)
    await trio.sleep(10)
    assert len(services.got) == 1
    assert "are not remembered: the disk is full" in caplog.text


def test_only_a_time_zone_that_the_machine_knows_is_found(tmp_path: Path) -> None:
    named = tmp_path / "Test" / "One"
    named.parent.mkdir()
    # A file of RFC 9636 with one kind of local time, an hour ahead of UTC.
    counts = struct.pack(">6l", 0, 0, 0, 0, 1, 4)
    named.write_bytes(b"TZif\0" + bytes(15) + counts + struct.pack(">lbb", 3600, 0, 0) + b"ONE\0")
    (tmp_path / "Broken").write_bytes(b"broken")
    reset_tzpath([tmp_path])
    try:
        found = zone_of("Test/One")
        unknown = [zone_of(name) for name in ("No/Such", "../x", "/x", "Test", "Broken", "", "a" * 300, "a\0")]
    finally:
        reset_tzpath()
    assert found is not None
    assert datetime.fromtimestamp(0, found).utcoffset() == timedelta(hours=1)
    assert unknown == [None] * len(unknown)


def answer(status: int, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status} x", *headers, "Content-Length: 0", "", ""]).encode()


@pytest.mark.parametrize("status", [404, 410])
async def test_a_push_service_that_does_not_know_a_subscription_ends_it(
    bench: Bench, services: PushServices, status: int
) -> None:
    services.answers = [answer(status)]
    page, agent, session = await asked(bench, bench.agents, signed_in(bench))
    await page.result("push/subscribe", **Receiver().members)
    await asks(agent, session)
    await trio.sleep(AHEAD)
    assert not (await page.result("push/get"))["subscribed"]
    assert len(services.got) == 1
    assert [it["why"] for it in bench.audit.of("push_ended")] == ["gone"]


async def test_a_subscription_that_has_followed_one_that_is_gone_is_kept(bench: Bench, services: PushServices) -> None:
    page, agent, session = await asked(bench, bench.agents, signed_in(bench))
    await page.result("push/subscribe", **Receiver("former").members)

    async def connect_late(host: str) -> TrioBytes:
        bench.gateway.push.connect = services.connect
        services.answers = [answer(410)]
        await page.result("push/subscribe", **Receiver("following").members)
        return await services.connect(host)

    bench.gateway.push.connect = connect_late
    await asks(agent, session)
    await trio.sleep(AHEAD)
    assert (await page.result("push/get"))["subscribed"]
    assert [it.target.rpartition("/")[2] for it in services.got] == ["former", "following"]


async def test_a_busy_push_service_is_tried_again_when_it_says(bench: Bench, services: PushServices) -> None:
    services.answers = [answer(429, "Retry-After: 300")]
    page, agent, session = await asked(bench, bench.agents, signed_in(bench))
    await page.result("push/subscribe", **Receiver().members)
    await asks(agent, session)
    await left(page)
    await trio.sleep(280)
    assert len(services.got) == 1
    await trio.sleep(30)
    assert len(services.got) == 2


async def test_a_push_service_that_fails_is_given_up_after_some_attempts(
    bench: Bench, services: PushServices, caplog: pytest.LogCaptureFixture
) -> None:
    lost = Unreachable("cannot reach fcm.googleapis.com port 443: no route")
    services.answers = [lost, answer(500), None, lost]
    phone = Receiver("a-secret-place")
    page, agent, session = await asked(bench, bench.agents, signed_in(bench))
    await page.result("push/subscribe", **phone.members)
    with caplog.at_level(logging.INFO):
        await asks(agent, session)
        await left(page)
        await trio.sleep(sum(PAUSES) + SEND_TIMEOUT + 10)
    assert services.answers == []
    assert bench.gateway.metrics.pushes["failed"] == 1
    assert "gets no notification: cannot reach fcm.googleapis.com" in caplog.text
    assert "a-secret-place" not in caplog.text


async def test_a_slow_push_service_holds_up_no_other(bench: Bench, services: PushServices) -> None:
    fast = Receiver("fast")
    fast.endpoint = "https://updates.push.services.mozilla.com/wpush/v2/fast"
    page, agent, session = await asked(bench, bench.agents, signed_in(bench))
    for number in range(6):
        slow = await bench.page(signed_in(bench), f"slow {number}")
        await slow.result("push/subscribe", **Receiver(f"slow{number}").members)
        await slow.stream.aclose()
    await page.result("push/subscribe", **fast.members)
    connect = bench.gateway.push.connect
    silent: Callable[[], Any] = trio.sleep_forever

    async def connect_or_hang(host: str) -> Any:
        return await (connect(host) if "mozilla" in host else silent())

    bench.gateway.push.connect = connect_or_hang
    await asks(agent, session)
    await page.stream.aclose()
    await trio.sleep(SEND_TIMEOUT / 2)
    assert [got.host for got in services.got] == ["updates.push.services.mozilla.com"]


async def test_a_test_notification_says_if_the_push_service_refuses_it(bench: Bench, services: PushServices) -> None:
    phone, page = Receiver(), await bench.page(signed_in(bench))
    assert "not turned on" in (await page.error("push/test"))[1]
    await page.result("push/subscribe", **phone.members)
    await page.result("push/test")
    assert phone.read(services.got[0].body) == {"tag": "test", "title": "Notifications work"}
    services.answers = [answer(403)]
    assert (await page.error("push/test"))[1].endswith("the next one may follow in 10 s")
    await trio.sleep(TRIAL_PAUSE)
    assert (await page.error("push/test"))[1] == "fcm.googleapis.com answers 403"
    await page.result("push/unsubscribe")
    assert "not turned on" in (await page.error("push/test"))[1]
    assert [len(bench.audit.of(event)) for event in ("push_subscribed", "push_ended")] == [1, 1]


async def test_the_key_is_made_once_and_kept_with_the_subscriptions_in_a_private_file(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    file = tmp_path / "state" / "push.json"
    async with pushing(tmp_path, spawner) as (bench, _):
        page = await bench.page(signed_in(bench))
        assert not file.exists()
        key = (await page.result("push/get"))["key"]
        await page.result("push/subscribe", **Receiver().members)
        assert (await page.result("push/get"))["key"] == key
        assert len(plain(key)) == 65
        assert file.stat().st_mode & 0o777 == 0o600
    async with pushing(tmp_path, spawner) as (bench, _):
        assert await bench.gateway.push.public_key() == key


async def test_a_subscription_of_another_browser_at_the_same_endpoint_is_replaced(
    bench: Bench, services: PushServices
) -> None:
    first, second = await bench.page(signed_in(bench)), await bench.page(signed_in(bench), "second")
    await first.result("push/subscribe", **Receiver().members)
    await second.result("push/subscribe", **Receiver().members)
    assert not (await first.result("push/get"))["subscribed"]
    assert (await second.result("push/get"))["subscribed"]


async def test_a_push_service_at_a_private_address_is_not_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    async def found(host: str, port: int, **_: Any) -> list[Any]:
        return [
            (trio.socket.AF_INET, trio.socket.SOCK_STREAM, 6, "", (address, port))
            for address in ("127.0.0.1", "10.0.0.1")
        ]

    monkeypatch.setattr(trio.socket, "getaddrinfo", found)
    with pytest.raises(Unreachable, match="its addresses are not of the internet"):
        await connect_to_service("fcm.googleapis.com")


# The ends of turns


async def test_the_end_of_a_turn_is_pushed_also_while_an_editor_is_connected_and_goes_with_the_next(
    bench: Bench, services: PushServices
) -> None:
    phone = Receiver()
    page, agent, session = await asked(bench, bench.agents, signed_in(bench))
    await page.result("push/subscribe", **phone.members, done={"sessions": [session]})
    assert (await page.result("push/get"))["done"] == {"after": None, "sessions": [session]}
    await editor_in(bench, session)
    await trio.sleep(10)
    await ends_turn(agent, error={"code": 429, "message": "try again in 32 s"})
    await trio.sleep(10)
    (got,) = services.got
    content = phone.read(got.body)
    assert (content["title"], content["body"]) == ("hello has failed", "try again in 32 s")
    assert content["sessionId"] == session
    await prompted(page, agent, session)
    await trio.sleep(10)
    assert phone.read(services.got[-1].body)["decided"]
    await ends_turn(agent)
    await trio.sleep(10)
    assert phone.read(services.got[-1].body)["title"] == "hello is done"
    assert len(services.got) == 3


async def test_turns_from_a_duration_on_are_pushed_and_none_that_ended_before_or_was_replayed(
    bench: Bench, services: PushServices
) -> None:
    phone = Receiver()
    page, agent, session = await asked(bench, bench.agents, signed_in(bench))
    await trio.sleep(600)
    await ends_turn(agent)
    await trio.sleep(10)
    # Of a turn that ended before, nothing is told.
    await page.result("push/subscribe", **phone.members, done={"after": 5})
    await trio.sleep(10)
    await page.result("session/set_title", sessionId=session, title="Another")
    # A history that is read again tells none.
    await editor_in(bench, session)
    await trio.sleep(10)
    assert services.got == []
    for seconds in (60, 400):
        await prompted(page, agent, session)
        await trio.sleep(seconds)
        await ends_turn(agent)
        await trio.sleep(10)
    (got,) = services.got
    assert phone.read(got.body)["title"] == "Another is done"


async def test_the_end_of_a_turn_is_told_to_those_alone_who_may_control_the_session(
    bench: Bench, services: PushServices
) -> None:
    _page, agent, session = await asked(bench, bench.agents, signed_in(bench))
    stranger = await bench.page(signed_in(bench, "ben"), "ben")
    await stranger.result("push/subscribe", **Receiver("ben").members, done={"after": 0, "sessions": [session]})
    other = await bench.page(signed_in(bench, session="another"), "other")
    await other.result("push/subscribe", **Receiver("other").members, done={"after": 0, "sessions": [session]})
    await trio.sleep(10)
    await ends_turn(agent)
    await trio.sleep(AHEAD)
    assert services.got == []


async def test_a_question_that_may_be_of_another_session_is_told_only_to_those_of_all_sessions(
    bench: Bench, services: PushServices
) -> None:
    page, agent, session = await asked(bench, bench.agents, signed_in(bench))
    await prompted(page, agent, await page.new_session())
    await page.result("push/subscribe", **Receiver("all").members)
    one = await bench.page(signed_in(bench, session=session), "one")
    await one.result("push/subscribe", **Receiver("one").members)
    await left(one)
    await left(page)
    await asks(agent, "that of a sub-agent")
    await trio.sleep(AHEAD)
    assert {got.target.rpartition("/")[2] for got in services.got} == {"all"}
