"""Files of a node, through the gateway in front of it, which copies what it does not read."""

import os
from pathlib import Path

import trio

from tests.kit.http_client import Http
from tests.kit.machines import port_of, save_token, two_nodes_and_a_front
from tests.nodes.test_node_watcher import editor_at, new_session


async def test_files_of_a_node_pass_through_its_door_by_range_and_run_nothing(tmp_path: Path) -> None:
    content = os.urandom(300_000)
    async with two_nodes_and_a_front(tmp_path) as (_, url):
        token = save_token(tmp_path / "front", "ann.token", "ann").read_text()
        fields = {"Authorization": f"Bearer {token}"}
        editor = await editor_at(url, "gpu1/memory", tmp_path / "front/ann.token")
        try:
            session = await new_session(editor, str(tmp_path))
            (tmp_path / "weights.bin").write_bytes(content)
            (tmp_path / ".env").write_text("secret")
            (tmp_path / "report.html").write_text("<p>fine</p>")
            async with await trio.open_tcp_stream("127.0.0.1", port_of(url)) as stream:
                http = Http(stream)
                there = f"/nodes/gpu1/files?session={session}&path="
                whole = await http.ask("GET", f"{there}weights.bin", None, **fields)
                assert (whole.status, whole.body == content) == (200, True)
                assert whole.headers["content-length"] == str(len(content))
            async with await trio.open_tcp_stream("127.0.0.1", port_of(url)) as stream:
                http = Http(stream)
                part = await http.ask("GET", f"{there}weights.bin", None, Range="bytes=100-199", **fields)
                assert (part.status, part.body) == (206, content[100:200])
                assert part.headers["content-range"] == f"bytes 100-199/{len(content)}"
                report = await http.ask("GET", f"{there}report.html", None, **fields)
                assert (report.status, report.body) == (200, b"<p>fine</p>")
                assert report.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
                secret = await http.ask("GET", f"{there}.env", None, **fields)
                assert secret.status == 403
                other = await http.ask("GET", f"{there.replace('gpu1', 'gpu2')}weights.bin", None, **fields)
                assert other.status == 404
        finally:
            await editor.stream.aclose()
