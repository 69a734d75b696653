"""Previews: their addresses, links and cookies."""

from dataclasses import replace
from typing import Any

import pytest
import trio.testing

from acp_gateway.errors import Unauthorized, UsageError
from acp_gateway.gateway.viewing import previews as module
from acp_gateway.gateway.viewing.open_ports import OpenPort
from acp_gateway.gateway.viewing.previews import CODE_LIFETIME, COOKIE_LIFETIME, ENTER, RESERVED, Previews, is_name
from tests.kit.bridging import Bench

pytestmark = pytest.mark.usefixtures("no_bug_showed")


@pytest.fixture
def previews(bench: Bench) -> Previews:
    config = bench.gateway.config
    (first, *others) = config.listen
    listen = (replace(first, preview_url="https://*.box.example"), *others)
    bench.gateway.config = replace(config, listen=listen)
    return Previews(bench.gateway)


def port(number: int = 6006, agent: str = "fake") -> OpenPort:
    return OpenPort(number, "127.0.0.1", frozenset({1}), agent, "", ())


def parts(link: str) -> tuple[str, str]:
    """The name of a preview and the code, of a link."""
    host, _, code = link.removeprefix("https://").partition(ENTER)
    return host.removesuffix(".box.example"), code


async def test_without_an_address_there_are_none(bench: Bench) -> None:
    with pytest.raises(UsageError, match="preview_url"):
        Previews(bench.gateway).link(bench.access(), port())


async def test_each_identity_agent_and_port_has_an_address_that_others_can_not_tell(
    bench: Bench, previews: Previews
) -> None:
    ann, ben = bench.access(), bench.access("ben")
    asked: list[tuple[Any, OpenPort]] = [(ann, port()), (ben, port()), (ann, port(8000)), (ann, port(agent="b"))]
    names = [parts(previews.link(*each))[0] for each in asked]
    assert len(set(names)) == 4
    assert all(map(is_name, names))
    assert names[0].startswith("6006-")
    assert parts(previews.link(ann, port()))[0] == names[0]
    assert parts(Previews(bench.gateway).link(ann, port()))[0] != names[0]


async def test_a_link_is_for_one_browser_and_its_cookie_for_one_address(bench: Bench, previews: Previews) -> None:
    name, code = parts(previews.link(bench.access(), port()))
    with pytest.raises(Unauthorized):
        previews.enter(name, "another")
    cookie, preview = previews.enter(name, code)
    assert (preview.port, previews.find(name, cookie)) == (6006, preview)
    with pytest.raises(Unauthorized):
        previews.enter(name, code)
    other, code = parts(previews.link(bench.access("ben"), port()))
    for wrong, shown in (other, cookie), (name, None), (name, ""), (name, cookie + "x"):
        with pytest.raises(Unauthorized):
            previews.find(wrong, shown)
    with pytest.raises(Unauthorized):
        previews.enter(name, code)


async def test_links_and_cookies_end_in_time(
    bench: Bench, previews: Previews, mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert CODE_LIFETIME < COOKIE_LIFETIME
    monkeypatch.setattr(module, "CODE_LIFETIME", 1.0)
    monkeypatch.setattr(module, "COOKIE_LIFETIME", 2.0)
    name, late = parts(previews.link(bench.access(), port()))
    mock_clock.jump(1)
    with pytest.raises(Unauthorized):
        previews.enter(name, late)
    cookie, _ = previews.enter(name, parts(previews.link(bench.access(), port()))[1])
    mock_clock.jump(2)
    with pytest.raises(Unauthorized):
        previews.find(name, cookie)


async def test_a_credential_that_is_not_valid_any_more_ends_them(bench: Bench, previews: Previews) -> None:
    access = bench.access()
    name, code = parts(previews.link(access, port()))
    cookie, _ = previews.enter(name, code)
    left = parts(previews.link(access, port()))[1]
    assert access.token is not None
    bench.gateway.tokens.revoke(access.token.id)
    for look in (lambda: previews.find(name, cookie), lambda: previews.enter(name, left)):
        with pytest.raises(Unauthorized):
            look()


async def test_the_oldest_of_one_principal_is_dropped_and_none_of_another(
    bench: Bench, previews: Previews, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST", 2)
    ann, ben = bench.access(), bench.access("ben")
    others = parts(previews.link(ben, port()))
    links = [parts(previews.link(ann, port())) for _ in range(3)]
    with pytest.raises(Unauthorized):
        previews.enter(*links[0])
    for link in (*links[1:], others):
        previews.enter(*link)


@pytest.mark.parametrize(
    ("name", "is_reserved"),
    [
        ("__Host-acp-gateway", True),
        ("__host-ACP-GATEWAY-preview", True),
        ("acp-gateway-7080", True),
        ("__Secure-acp-gateway", True),
        ("session", False),
        ("x-acp-gateway", False),
    ],
)
def test_names_of_the_gateways_cookies_are_known(name: str, is_reserved: bool) -> None:
    assert bool(RESERVED.match(name)) == is_reserved
