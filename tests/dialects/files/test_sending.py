"""Files over HTTP: whole, by range, as an archive; to a page with its cookie, to a program, to a slow reader."""

import io
import os
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from acp_gateway.config.load import ListenSection, WorkspaceSection
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.made.files import PIECE
from tests.kit.bridging import Bench, running
from tests.kit.doubles import ServingAgents
from tests.kit.echoing import WS, open_next
from tests.kit.http_client import Client, Http, Reply

SECTION = ListenSection(url=WS, serves=("acp", "page"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = Path(os.path.realpath(tmp_path)) / "project"
    (folder / "plots").mkdir(parents=True)
    (folder / "plots/loss.png").write_bytes(b"0123456789")
    (folder / "report.html").write_text("<script>alert(1)</script>")
    (folder / ".env").write_text("secret")
    return folder


@pytest.fixture
async def bench(tmp_path: Path, project: Path, spawner: Spawner, loading_agents: ServingAgents) -> AsyncIterator[Bench]:
    async with running(tmp_path, spawner) as bench:
        inside = {"inside": WorkspaceSection(root=project)}
        bench.gateway.services.config = replace(bench.gateway.config, workspaces=inside)
        yield bench


@asynccontextmanager
async def asking(bench: Bench, project: Path) -> AsyncIterator[tuple[Client, str]]:
    page = await bench.page(bench.access())
    session = await page.new_session(cwd=str(project))
    token = bench.gateway.tokens.create("laptop", "ann", None)[1]
    async with open_next(SECTION, bench.gateway) as listener:
        yield Client(listener, token), session


def target(session: str, path: str, **more: str) -> str:
    rest = "".join(f"&{name}={value}" for name, value in {"as": more.pop("form", "view")}.items())
    return f"/files?session={quote(session)}&path={quote(path, safe='')}{rest}"


async def test_a_file_is_sent_whole_or_by_range_and_not_again_if_it_is_the_same(bench: Bench, project: Path) -> None:
    async with asking(bench, project) as (client, session):
        there = target(session, "plots/loss.png")
        whole = await client.ask("GET", None, there)
        assert (whole.status, whole.body, whole.headers["content-length"]) == (200, b"0123456789", "10")
        assert (whole.headers["content-type"], whole.headers["accept-ranges"]) == ("image/png", "bytes")
        part = await client.ask("GET", None, there, Range="bytes=3-5")
        assert (part.status, part.body, part.headers["content-range"]) == (206, b"345", "bytes 3-5/10")
        last = await client.ask("GET", None, there, Range="bytes=-2")
        assert (last.status, last.body) == (206, b"89")
        behind = await client.ask("GET", None, there, Range="bytes=10-")
        assert (behind.status, behind.headers["content-range"]) == (416, "bytes */10")
        tag = whole.headers["etag"]
        assert (await client.ask("GET", None, there, If_None_Match=tag)).status == 304
        assert (await client.ask("GET", None, there, Range="bytes=3-5", If_Range=tag)).status == 206
        assert (await client.ask("GET", None, there, Range="bytes=3-5", If_Range='"other"')).status == 200


async def test_head_has_the_headers_alone(bench: Bench, project: Path) -> None:
    async with asking(bench, project) as (client, session), client.connection() as http:
        fields = client.fields({})
        head = await begun(http, "HEAD", target(session, "plots/loss.png"), fields)
        assert (head.status, head.headers["content-length"], await http.read()) == (200, "10", b"")


async def begun(http: Http, method: str, where: str, fields: dict[str, str]) -> Reply:
    return await http.begin(method, where, None, fields)


async def test_several_requests_follow_each_other_on_one_connection(bench: Bench, project: Path) -> None:
    async with asking(bench, project) as (client, session), client.connection() as http:
        for path in ("plots/loss.png", "absent", "plots/loss.png"):
            reply = await http.ask("GET", target(session, path), None, **client.fields({}))
            assert reply.status == (404 if path == "absent" else 200)


async def test_what_is_sent_is_never_a_page_of_this_origin(bench: Bench, project: Path) -> None:
    async with asking(bench, project) as (client, session):
        reply = await client.ask("GET", None, target(session, "report.html"))
        policy = reply.headers["content-security-policy"]
        assert reply.headers["content-type"].startswith("text/html")
        assert policy.startswith("sandbox; default-src 'none'")
        assert "allow" not in policy
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["content-disposition"].startswith("inline")
        saved = await client.ask("GET", None, target(session, "report.html", form="download"))
        assert saved.headers["content-disposition"].startswith("attachment")


@pytest.mark.parametrize(
    ("path", "status"), [(".env", 403), ("../project/.env", 403), ("/etc/passwd", 403), ("absent", 404), ("plots", 409)]
)
async def test_a_refusal_has_its_status_and_a_sentence(bench: Bench, project: Path, path: str, status: int) -> None:
    async with asking(bench, project) as (client, session):
        reply = await client.ask("GET", None, target(session, path))
        assert (reply.status, reply.body.count(b"\n")) == (status, 1)


async def test_a_folder_is_sent_as_an_archive(bench: Bench, project: Path) -> None:
    async with asking(bench, project) as (client, session):
        reply = await client.ask("GET", None, target(session, "", form="zip"))
        assert 'filename="project.zip"' in reply.headers["content-disposition"]
        archive = zipfile.ZipFile(io.BytesIO(reply.body))
        assert archive.read("project/plots/loss.png") == b"0123456789"
        assert "project/.env" not in archive.namelist()
        assert (await client.ask("GET", None, target(session, "report.html", form="zip"))).status == 409


async def test_others_get_no_files(bench: Bench, project: Path) -> None:
    async with asking(bench, project) as (client, session):
        there = target(session, "plots/loss.png")
        for secret, status in (
            (bench.gateway.tokens.create("ben", "ben", None)[1], 404),
            (bench.gateway.tokens.create_guest(session, role="controller", lifetime=None)[1], 403),
            (bench.gateway.tokens.create_guest(session, role="observer", lifetime=None, files=True)[1], 200),
            (bench.gateway.tokens.create_guest("other", role="observer", lifetime=None, files=True)[1], 404),
            (bench.gateway.tokens.create("phone", "ann", None, role="observer")[1], 200),
            (bench.gateway.tokens.create("prometheus", "ann", None, role="metrics")[1], 403),
        ):
            client.token = secret
            assert (await client.ask("GET", None, there)).status == status
        client.token = None
        assert (await client.ask("GET", None, there)).status == 401
        assert (await client.ask("POST", b"", there)).status == 405


async def test_a_query_without_a_path_is_refused(bench: Bench, project: Path) -> None:
    async with asking(bench, project) as (client, session):
        assert (await client.ask("GET", None, f"/files?session={session}")).status == 400


async def test_a_slow_reader_of_a_large_file_takes_one_piece_of_memory_at_a_time(
    bench: Bench, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (project / "weights.bin").open("wb") as made:
        made.truncate(8 << 30)
    if (project / "weights.bin").stat().st_blocks * 512 > 1 << 30:
        pytest.skip("no sparse files here")
    from acp_gateway.made.files import OpenFile

    read: list[int] = []
    whole = OpenFile.read

    def noted(self: OpenFile, offset: int, length: int) -> bytes:
        data = whole(self, offset, length)
        read.append(len(data))
        return data

    monkeypatch.setattr(OpenFile, "read", noted)
    async with asking(bench, project) as (client, session), client.connection() as http:
        reply = await http.begin("GET", target(session, "weights.bin"), None, client.fields({}))
        assert reply.headers["content-length"] == str(8 << 30)
        got = 0
        while got < 4 << 20:
            got += len(await http.read())
        # What was read and has not come is in the buffers of the sockets.
        assert sum(read) - got < 32 << 20
        assert max(read) == PIECE
        there = await client.ask("GET", None, target(session, "weights.bin"), Range=f"bytes={(8 << 30) - 3}-")
        assert (there.status, there.body) == (206, b"\0\0\0")
