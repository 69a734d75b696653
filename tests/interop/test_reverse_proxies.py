"""nginx, Caddy and HAProxy in front of a gateway, with the blocks of docs/reverse-proxies.md word for word."""

# ruff: noqa: F811 (fixtures that are imported are asked for by name)

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import InvalidStatus

from tests.end_to_end.test_browsers import (  # noqa: F401 (fixtures, and tests that are repeated here)
    PATH,
    Browser,
    Site,
    StartProxy,
    below,
    browser,
    site,
    sites,
    test_a_browser_signs_in_through_the_proxy_and_uses_the_endpoint_until_it_signs_out,
    test_a_browser_stays_signed_in_when_gateway_and_proxy_were_started_again,
    test_the_page_and_its_files_come_through_the_proxy_unchanged,
)
from tests.end_to_end.test_deploy import ask, audited, gateway, hold_conversation  # noqa: F401 (a fixture)
from tests.interop.reverse_proxies import PROXIES, RealProxy
from tests.kit.proxies import LAPTOP
from tests.kit.running import ENVIRONMENT, WORK, RunningGateway

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere loopback has one address"),
]


@pytest.fixture(params=PROXIES)
def proxy(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def start_proxy(proxy: str) -> StartProxy:
    def start(gateway: RunningGateway, folder: Path, path: str) -> RealProxy:
        real = PROXIES[proxy](gateway, folder, below=bool(path))
        real.start()
        return real

    return start


@pytest.fixture
def real_proxy(proxy: str, gateway: RunningGateway, tmp_path: Path) -> RealProxy:
    return PROXIES[proxy](gateway, tmp_path)


@contextmanager
def running(proxy: RealProxy) -> Iterator[RealProxy]:
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()


def test_the_real_program_reads_the_block_of_the_page(real_proxy: RealProxy) -> None:
    real_proxy.check()


def test_a_client_comes_in_through_the_real_program_and_is_known_by_its_own_address(
    gateway: RunningGateway, real_proxy: RealProxy
) -> None:
    with running(real_proxy) as proxy:
        with ask(gateway, proxy, gateway.token) as client:
            client.ping().wait(60)
            assert client.response is not None
            assert "Acp-Connection-Id" in client.response.headers
        assert audited(gateway, "authenticated")["address"] == LAPTOP
        with pytest.raises(InvalidStatus) as refused:
            ask(gateway, proxy, "wrong")
        assert refused.value.response.status_code == 401
        assert audited(gateway, "refused")["address"] == LAPTOP


def test_a_link_resumes_when_the_real_program_was_started_again(gateway: RunningGateway, real_proxy: RealProxy) -> None:
    with running(real_proxy) as proxy, ask(gateway, proxy, gateway.token, **{"Acp-Gateway-Resume": "0"}) as client:
        assert client.response is not None
        link = client.response.headers["Acp-Connection-Id"]
        proxy.stop()
        proxy.start()
        again = {"Acp-Gateway-Resume": "0", "Acp-Connection-Id": link}
        with ask(gateway, proxy, gateway.token, **again) as resumed:
            assert resumed.response is not None
            assert resumed.response.headers["Acp-Connection-Id"] == link


def test_events_pass_the_real_program_one_by_one_and_a_stream_that_it_cuts_continues(
    gateway: RunningGateway, real_proxy: RealProxy
) -> None:
    with running(real_proxy) as proxy:

        def cut() -> None:
            proxy.stop()
            proxy.start()

        hold_conversation(gateway, proxy, cut)


def over_http2(gateway: RunningGateway, proxy: RealProxy, what: str) -> object:
    """Return what http2_client.mjs prints, which has one connection of HTTP/2 as a browser's tab has."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    script = Path(__file__).with_name("http2_client.mjs")
    ran = subprocess.run(
        [node, str(script), what, str(proxy.port), str(gateway.directory / "cert.pem"), str(WORK)],
        env=ENVIRONMENT | {"TOKEN": gateway.token},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_eight_sessions_of_a_tab_have_their_event_streams_at_once(
    gateway: RunningGateway, real_proxy: RealProxy
) -> None:
    """Over HTTP/1.1 a browser opens six connections to an origin, and the next request waits without an error."""
    with running(real_proxy) as proxy:
        assert over_http2(gateway, proxy, "streams") == {"open": 8, "told": 8}


def test_a_websocket_within_the_connection_works_where_the_proxy_offers_it(
    gateway: RunningGateway, real_proxy: RealProxy
) -> None:
    """Browsers then open theirs so; without an offer, they open a connection of HTTP/1.1 beside."""
    with running(real_proxy) as proxy:
        offered = {"status": 200, "answer": True} if real_proxy.name == "haproxy" else None
        assert over_http2(gateway, proxy, "websocket") == offered


@pytest.mark.parametrize("below", [True])
def test_the_path_without_its_last_slash_leads_to_the_page_and_others_do_not(site: Site, browser: Browser) -> None:
    redirected = browser.ask("GET", "")
    assert redirected.status in (301, 302)
    assert urlsplit(redirected.headers["Location"]).path == f"{PATH}/"
    site.path = ""
    assert b"acp-gateway" not in browser.ask("GET", "/").read()
