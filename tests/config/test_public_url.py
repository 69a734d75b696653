"""The public URL of a listener, and the names that follow from it."""

import pytest

from acp_gateway.config.listeners import PublicUrl
from acp_gateway.config.load import ListenSection
from acp_gateway.errors import UsageError


@pytest.mark.parametrize(
    ("text", "origin", "path", "endpoint"),
    [
        ("https://gpu.example", "https://gpu.example", "", "wss://gpu.example:443/acp"),
        ("https://gpu.example/", "https://gpu.example", "", "wss://gpu.example:443/acp"),
        ("https://gpu.example:443/gateway", "https://gpu.example", "/gateway", "wss://gpu.example:443/gateway/acp"),
        ("https://gpu.example:8443/a/b-c/", "https://gpu.example:8443", "/a/b-c", "wss://gpu.example:8443/a/b-c/acp"),
        ("https://[2001:db8::1]/~ann", "https://[2001:db8::1]", "/~ann", "wss://[2001:db8::1]:443/~ann/acp"),
        ("http://localhost:80/a", "http://localhost", "/a", "ws://localhost:80/a/acp"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080", "", "ws://127.0.0.1:8080/acp"),
    ],
)
def test_a_public_url_has_the_origin_that_browsers_send(text: str, origin: str, path: str, endpoint: str) -> None:
    url = PublicUrl.parse(text)
    assert (url.origin, url.path, str(url.endpoint)) == (origin, path, endpoint)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gpu.example",
        "wss://gpu.example",
        "https://GPU.example",
        "https://",
        "https://gpu.example?x",
        "https://gpu.example/#x",
        "https://ann@gpu.example",
        "https://gpu.example//a",
        "https://gpu.example/a//",
        "https://gpu.example/../a",
        "https://gpu.example/.a",
        "https://gpu.example/a b",
        "https://gpu.example/%61",
        "https://gpu.example/a;b=c",
        "https://gpu.example:",
        "https://gpu.example\n",
    ],
)
def test_a_public_url_that_could_be_read_in_two_ways_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"such as .https://gpu\.example"):
        PublicUrl.parse(text)


def test_a_public_url_off_this_machine_is_https() -> None:
    with pytest.raises(UsageError, match="only https:// leads off this machine"):
        PublicUrl.parse("http://gpu.example")


@pytest.mark.parametrize(
    ("url", "allowed", "public_url", "hosts"),
    [
        ("ws://127.0.0.1:1", (), None, ()),
        ("ws://127.0.0.1:1", (), "https://gpu.example:8443/a", ("gpu.example",)),
        ("ws://127.0.0.1:1", ("box",), "https://gpu.example", ("box", "gpu.example")),
        # Where every name is accepted, a public URL does not change that.
        ("wss://0.0.0.0:1", (), "https://gpu.example", ()),
        ("wss://0.0.0.0:1", ("box",), "https://gpu.example", ("box", "gpu.example")),
    ],
)
def test_the_name_of_the_public_url_is_accepted_beside_allowed_hosts(
    url: str, allowed: tuple[str, ...], public_url: str | None, hosts: tuple[str, ...]
) -> None:
    assert ListenSection(url=url, allowed_hosts=allowed, public_url=public_url).hosts == hosts
