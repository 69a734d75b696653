"""Which links can be resumed, by whom, what has become of others, and what a client may say that it has received."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from acp_gateway.errors import AccessError, LinkExpired, LinkGone, TooFarBehind
from acp_gateway.gateway import resumption as links_module
from acp_gateway.gateway.access import Access
from acp_gateway.gateway.hub.attachment import EXPIRED, STOPPING, TOO_SLOW, Disconnect
from acp_gateway.gateway.resumption import LinkRegistry, ResumableLink, claim, serve_resumed
from acp_gateway.security.token_store import Token, TokenStore
from acp_gateway.transports.memory import memory_message_stream_pair
from acp_gateway.transports.streams import CloseReason
from tests.kit.doubles import TIMEOUT, FragileStream
from tests.kit.hub_scene import ADMISSION, ResumingPeer, Scene, resuming, update


class RegisteredLink:
    """Links of a gateway, one of them ann's, and tokens to ask for it with."""

    def __init__(self, tokens: TokenStore, ann: ResumingPeer) -> None:
        self._tokens = tokens
        self.links = LinkRegistry()
        self.token = self.make_token("ann")
        self.access = Access.of(self.token)
        self.link = replace(ann.ticket, id="L", grant=replace(ADMISSION, access=self.access))
        self.links.add(self.link)

    def make_token(self, identity: str) -> Token:
        return self._tokens.create("a label", identity, None)[0]

    def find(self, access: Access | None = None) -> ResumableLink:
        return self.links.find("L", access or self.access)

    def end(self, word: str | None = None) -> None:
        self.links.end(self.link, Disconnect(CloseReason.POLICY, "a test", word))


@pytest.fixture
def tokens(tmp_path: Path) -> TokenStore:
    return TokenStore(tmp_path / "state")


@pytest.fixture
def few_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "MAX_REMEMBERED", 3)


def refusal(registered: RegisteredLink, access: Access | None = None) -> type[AccessError]:
    with pytest.raises(AccessError) as refused:
        registered.find(access)
    return refused.type


# Whose link it is


async def test_a_link_is_found_with_the_token_that_it_was_begun_with(tokens: TokenStore) -> None:
    async with resuming() as (_, ann):
        registered = RegisteredLink(tokens, ann)
        assert registered.find() is registered.link
        await ann.lose()
        assert registered.find() is registered.link


async def test_the_entry_of_a_token_may_have_changed(tokens: TokenStore) -> None:
    async with resuming() as (_, ann):
        registered = RegisteredLink(tokens, ann)
        assert (
            registered.find(Access.of(msgspec.structs.replace(registered.token, role="observer", sha256="0" * 64)))
            is registered.link
        )


async def test_a_link_of_another_token_is_refused_like_an_unknown_one(tokens: TokenStore) -> None:
    async with resuming() as (_, ann):
        registered = RegisteredLink(tokens, ann)
        strangers = [
            Access.of(registered.make_token("bob")),
            Access.of(registered.make_token("ann")),
            Access("ann", None),
            Access.of(msgspec.structs.replace(registered.token, identity="bob")),
        ]
        with pytest.raises(LinkGone) as unknown:
            registered.links.find("another", registered.access)
        for access in strangers:
            with pytest.raises(LinkGone) as refused:
                registered.find(access)
            assert refused.type is LinkGone
            assert str(refused.value) == str(unknown.value)


async def test_the_kernels_word_for_the_same_user_is_as_good_as_the_same_token(tokens: TokenStore) -> None:
    async with resuming() as (_, ann):
        registered = RegisteredLink(tokens, ann)
        registered.link.grant = replace(ADMISSION, access=Access("me", None))
        assert registered.find(Access("me", None)) is registered.link
        assert refusal(registered, Access("you", None)) is LinkGone
        assert refusal(registered, Access.of(registered.make_token("me"))) is LinkGone


async def test_a_link_that_is_about_to_end_is_not_found(tokens: TokenStore) -> None:
    async with resuming() as (scene, ann):
        registered = RegisteredLink(tokens, ann)
        scene.hub.attachments[ann.client].close(STOPPING)
        assert refusal(registered) is LinkGone
        await ann.gone.wait()
        assert refusal(registered) is LinkGone


# What has become of it


@pytest.mark.parametrize(
    ("word", "reason"),
    [(TOO_SLOW, TooFarBehind), (EXPIRED, LinkExpired), (None, LinkGone), ("gateway_stopping", LinkGone)],
)
async def test_the_reason_why_a_link_ended_is_told_to_its_token_alone(
    word: str | None, reason: type[AccessError], tokens: TokenStore
) -> None:
    async with resuming() as (_, ann):
        registered = RegisteredLink(tokens, ann)
        registered.end(word)
        assert refusal(registered) is reason
        assert refusal(registered) is reason
        assert refusal(registered, Access.of(registered.make_token("ann"))) is LinkGone
        assert refusal(registered, Access("ann", None)) is LinkGone


async def test_a_link_that_ended_without_a_reason_is_unknown(tokens: TokenStore) -> None:
    async with resuming() as (_, ann):
        registered = RegisteredLink(tokens, ann)
        registered.links.end(registered.link, None)
        assert refusal(registered) is LinkGone


def test_the_reasons_are_what_a_client_tells_apart() -> None:
    assert [(error.http_status, error.reason) for error in (TooFarBehind, LinkExpired, LinkGone)] == [
        (409, "too_far_behind"),
        (410, "expired"),
        (410, "unknown"),
    ]


async def test_of_links_that_have_ended_the_last_are_remembered(tokens: TokenStore, few_are_remembered: None) -> None:
    async with resuming() as (_, ann):
        registered = RegisteredLink(tokens, ann)
        ended = [replace(registered.link, id=f"L{number}") for number in range(5)]
        for link in ended:
            registered.links.add(link)
        for link in ended:
            registered.links.end(link, Disconnect(CloseReason.POLICY, "a test", EXPIRED))
        reasons = []
        for link in ended:
            with pytest.raises(LinkGone) as refused:
                registered.links.find(link.id, registered.access)
            reasons.append(refused.type)
        assert reasons == [LinkGone, LinkGone, LinkExpired, LinkExpired, LinkExpired]
        assert registered.find() is registered.link


# What was received


async def say(scene: Scene, count: int) -> None:
    scene.agent.stream.send_nowait([update(number) for number in range(count)])
    await wait_all_tasks_blocked()


async def test_a_client_may_have_anything_between_what_it_has_confirmed_and_what_it_was_sent() -> None:
    async with resuming() as (scene, ann):
        ann.link.send_control(b'{"jsonrpc":"2.0","method":"_acp-gateway/ack","params":{"received":2}}')
        await say(scene, 3)
        outbox = scene.hub.attachments[ann.client].outbox
        assert (outbox.confirmed, outbox.written) == (2, 5)
        for impossible in (-1, 0, 1, 6, 10**30):
            with pytest.raises(LinkGone):
                claim(ann.ticket, impossible)
            assert ann.closed_with is None
        for received in (2, 3, 5):
            assert claim(ann.ticket, received).peer_received == received


async def test_a_count_that_cannot_be_leaves_the_link_to_who_has_it() -> None:
    async with resuming() as (scene, ann):
        with pytest.raises(LinkGone):
            claim(ann.ticket, 1000)
        await say(scene, 1)
        assert len(await ann.waiting()) == 1


async def test_a_late_request_of_an_attempt_that_was_given_up_leaves_a_link_that_is_away() -> None:
    async with resuming() as (scene, ann):
        ann.link.send_control(b'{"jsonrpc":"2.0","method":"_acp-gateway/ack","params":{"received":2}}')
        await say(scene, 1)
        await ann.lose()
        with pytest.raises(LinkGone):
            claim(ann.ticket, 1)
        await ann.resume()
        await say(scene, 1)
        assert len(await ann.waiting()) >= 1
        await ann.lose()
        with pytest.raises(LinkGone):
            claim(ann.ticket, 1000)
        await ann.gone.wait()
        assert ann.disconnect is not None
        assert ann.disconnect.reason == "miscounted"


async def test_a_resumption_says_how_much_has_come_from_the_client() -> None:
    async with resuming() as (_, ann):
        # `initialize` and `session/new`.
        assert claim(ann.ticket, ann.link.received).received == 2


async def test_a_link_that_has_ended_cannot_be_claimed() -> None:
    async with resuming() as (scene, ann):
        scene.hub.attachments[ann.client].close(STOPPING)
        with pytest.raises(LinkGone):
            claim(ann.ticket, ann.link.received)
        await ann.gone.wait()
        with pytest.raises(LinkGone):
            claim(ann.ticket, ann.link.received)


async def test_a_resume_overtaken_by_a_newer_connection_is_closed_with_the_reason() -> None:
    async with resuming() as (_, ann):
        earlier = claim(ann.ticket, ann.link.received)
        claim(ann.ticket, ann.link.received)
        stream = FragileStream(memory_message_stream_pair()[0])
        with trio.fail_after(TIMEOUT):
            await serve_resumed(stream, earlier)
        assert stream.closed_with == (CloseReason.POLICY, "a newer connection has taken this link over")
