"""A web server on loopback that answers with what a test says."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def serve(answers: Mapping[str, bytes | tuple[int, dict[str, str], bytes]]) -> Iterator[str]:
    """Serve bodies, or status, headers and body, by path; yield the URL without the slash at its end."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # As the base class calls it.
            answer = answers.get(self.path, (404, {}, b""))
            status, headers, body = answer if isinstance(answer, tuple) else (200, {}, answer)
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | headers).items():
                if value:
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
