"""Serves the page at a listener: its files, its sign-in, and the connections of browsers."""

from typing import Final

from acp_gateway.dialects.browser.assets import FAVICON, FOLDER, MANIFEST, WEB, WORKER, load_assets, serve_page
from acp_gateway.dialects.browser.bridge import BrowserBridge
from acp_gateway.dialects.browser.pages import Pages
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.server.authentication import Client
from acp_gateway.server.hello import read_page
from acp_gateway.server.http.route import SOCKET, Answer, Credential, Origins, Route, public, secured, with_code
from acp_gateway.server.http.routes import HttpRoutes
from acp_gateway.server.http.sign_in import LOGIN, LOGOUT, SignInRoutes
from acp_gateway.server.http.start_page import PAGE
from acp_gateway.transports.http.server import Request, Response
from acp_gateway.transports.maintained import SLOWEST_PEER

BROWSERS: Final = "/ws"


def routes(at: HttpRoutes) -> dict[str, Route]:
    """Return the routes of the page, which takes the place of the start page."""
    gateway = at.gateway
    pages = gateway.services.one(Pages, gateway.services.inputs, gateway.services.memory_grew)
    timeout = gateway.config.gateway.handshake_timeout
    sign_in = SignInRoutes(at.section, gateway)

    def answer_browser(client: Client, request: Request, access: Access) -> Answer:
        """Answer a page, or another client that speaks its JSON-RPC."""
        site = at.site_of(request.headers)
        page_id = read_page(request.query)

        def connect(wanted: ConnectRequest, name: str) -> BrowserBridge:
            shown = None if page_id is None else pages.find(access, wanted, page_id)
            return BrowserBridge(gateway, access, wanted, name, f"{site.origin}{site.path}/", shown)

        return at.answer_websocket(client, request, access, lambda wanted, name: connect(wanted, name).serve)

    def answer_file(client: Client, request: Request, _: Access | None) -> Response:
        """Answer with a file of the page. A browser fetches all of them before it shows a cookie."""
        with at.limiter.unmeasured(client.connection):
            load_assets(WEB)
        response = serve_page(request)
        client.connection.extend(timeout + len(response.body) / SLOWEST_PEER)
        return response

    file = public(credential=Credential.NONE, answer=answer_file)
    return {
        LOGIN: with_code(origins=Origins.OURS_ONLY, answer=sign_in.log_in),
        LOGOUT: with_code(origins=Origins.OURS_ONLY, answer=sign_in.log_out),
        BROWSERS: secured(methods=SOCKET, answer=answer_browser),
        **dict.fromkeys((PAGE, FOLDER, MANIFEST, FAVICON, WORKER), file),
    }
