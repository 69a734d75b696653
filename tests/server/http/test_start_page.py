"""The page for a person with a browser at an address that does not serve the gateway's page."""

import re
from html.parser import HTMLParser

import pytest

from acp_gateway.config.load import ListenSection
from tests.server.echoing import WS, EchoingGateway, ask, listening

SECTION = ListenSection(url=WS, serves=("acp",))

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"


class Page(HTMLParser):
    """The elements of a page, in order, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.elements.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ((f"Accept: {BROWSER}",), "text/html; charset=utf-8"),
        (("Accept: application/json", "Accept: Text/HTML;q=0.9"), "text/html; charset=utf-8"),
        (("Accept: */*",), "text/plain; charset=utf-8"),
        (("Accept: text/htmlx",), "text/plain; charset=utf-8"),
        ((), "text/plain; charset=utf-8"),
    ],
)
async def test_the_start_page_is_html_only_if_accept_names_it(
    accept: tuple[str, ...], content_type: str, gateway: EchoingGateway
) -> None:
    async with listening(SECTION, gateway) as listener:
        response = await ask(listener, "/", *accept)
    assert (response.status, response.headers["content-type"], response.headers["vary"]) == (
        200,
        [content_type],
        ["Accept"],
    )


@pytest.mark.parametrize("accept", [BROWSER, "*/*"])
async def test_the_start_page_may_load_nothing_and_is_not_kept(accept: str, gateway: EchoingGateway) -> None:
    async with listening(SECTION, gateway) as listener:
        headers = (await ask(listener, "/", f"Accept: {accept}")).headers
    (policy,) = headers["content-security-policy"]
    assert policy.split("; ") == [
        "default-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
    assert headers["x-content-type-options"] == ["nosniff"]
    assert headers["referrer-policy"] == ["no-referrer"]
    assert headers["cache-control"] == ["no-store"]


async def test_the_start_page_names_the_commands_and_has_neither_script_nor_style(gateway: EchoingGateway) -> None:
    async with listening(SECTION, gateway) as listener:
        plain = (await ask(listener, "/")).body
        page = Page((await ask(listener, "/", f"Accept: {BROWSER}")).body)
    assert set(page.elements) == {"html", "meta", "title", "h1", "p", "code"}
    commands = re.findall("`(.*?)`", plain)
    assert commands == [
        "acp-gateway connect",
        "acp-gateway token create",
        "acp-gateway share",
        "acp-gateway open",
    ]
    assert page.elements.count("code") == len(commands)
    assert plain.replace("`", "").split() == page.text.split()[2:]
