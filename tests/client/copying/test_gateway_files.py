"""Copies of files from and to a session, over connections that are lost."""

import io
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.client.copying import gateway_files
from acp_gateway.client.copying.gateway_files import GatewayFiles
from acp_gateway.client.dialing import Destination, dial
from acp_gateway.config.load import WorkspaceSection
from acp_gateway.errors import UnknownSession, Unreachable
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.made.files import PIECE
from acp_gateway.made.files_rules import FileRefused
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.websocket.stream import Timing
from tests.kit.bridging import running
from tests.kit.doubles import ServingAgents
from tests.kit.echoing import WS, open_next
from tests.kit.listeners import *  # noqa: F403
from tests.kit.machines import control

CONTENT = os.urandom(5 * PIECE + 77)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = Path(os.path.realpath(tmp_path)) / "project"
    folder.mkdir()
    (folder / "weights.bin").write_bytes(CONTENT)
    (folder / "empty").touch()
    (folder / ".env").write_text("secret")
    return folder


Place = tuple[Destination, str]


@pytest.fixture
async def place(tmp_path: Path, project: Path, spawner: Spawner, loading_agents: ServingAgents) -> AsyncIterator[Place]:
    """A gateway at a socket, and a session in the project."""
    async with running(tmp_path, spawner) as bench:
        inside = {"inside": WorkspaceSection(root=project)}
        bench.gateway.services.config = replace(bench.gateway.config, workspaces=inside)
        page = await bench.page(bench.access())
        session = await page.new_session(cwd=str(project))
        token = bench.gateway.tokens.create("laptop", "ann", None)[1]
        async with open_next(WS, bench.gateway) as listener:
            yield replace(control(listener.urls[0]), token=token), session


@asynccontextmanager
async def opened(place: Place, dial_gateway: Any = dial) -> AsyncIterator[GatewayFiles]:
    destination, session = place
    async with GatewayFiles(destination, session, 10.0, dial_gateway) as files:
        yield files


class Cut:
    """A stream that is lost after some messages."""

    def __init__(self, stream: MaintainedStream, left: int) -> None:
        self._stream = stream
        self._left = left
        self.send = stream.send
        self.aclose = stream.aclose

    async def receive(self) -> bytes:
        if self._left == 0:
            raise trio.BrokenResourceError("cut")
        self._left -= 1
        return await self._stream.receive()


class Cutting:
    """Dials a gateway, and loses each connection after some messages of it; -1 is a gateway that does not answer."""

    def __init__(self, *messages: int) -> None:
        self._left = list(messages)
        self.dialed = 0

    async def __call__(self, destination: Destination, timing: Timing) -> Any:
        self.dialed += 1
        left = self._left.pop(0) if self._left else None
        if left == -1:
            raise Unreachable("box: no answer")
        stream = await dial(destination, timing)
        return stream if left is None else Cut(stream, left)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_files, "PAUSE", 0.0)


async def test_a_file_is_downloaded_whole_and_says_how_far_it_is(place: Place) -> None:
    told: list[tuple[int, int]] = []
    async with opened(place) as files:
        target = io.BytesIO()
        copied = await files.download("weights.bin", target, lambda *now: told.append(now))
        assert (target.getvalue() == CONTENT, copied.size, copied.changed) == (True, len(CONTENT), False)
        assert told[-1] == (len(CONTENT), len(CONTENT))
        assert len(told) == 6
        empty = io.BytesIO()
        assert (await files.download("empty", empty)).size == 0
        assert empty.getvalue() == b""


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("cuts", [(1,), (0, 3), (2, -1, -1, 1), (1,) * 5])
async def test_a_download_goes_on_where_it_was_after_a_lost_connection(place: Place, cuts: tuple[int, ...]) -> None:
    dials = Cutting(*cuts)
    async with opened(place, dials) as files:
        target = io.BytesIO()
        await files.download("weights.bin", target)
    assert target.getvalue() == CONTENT
    assert dials.dialed == len(cuts) + 1


@pytest.mark.usefixtures("hurried")
async def test_a_download_gives_up_and_says_how_much_has_come(place: Place) -> None:
    async with opened(place, Cutting(2, *[-1] * 20)) as files:
        with pytest.raises(Unreachable, match=rf"{2 * PIECE} of {len(CONTENT)} bytes had come: run the command again"):
            await files.download("weights.bin", io.BytesIO())


@pytest.mark.parametrize(
    ("path", "why"), [("absent", "not_found"), (".env", "secret"), ("../x", "outside"), ("", "is_folder")]
)
async def test_a_refusal_is_the_gateway_s(place: Place, path: str, why: str) -> None:
    async with opened(place) as files:
        with pytest.raises(FileRefused) as refused:
            await files.download(path, io.BytesIO())
        assert refused.value.why == why
        assert refused.value.exit_code == 4


async def test_a_session_that_does_not_exist_is_refused(place: Place) -> None:
    async with opened((place[0], "absent")) as files:
        with pytest.raises(UnknownSession):
            await files.download("weights.bin", io.BytesIO())


class Changing(io.BytesIO):
    """A target that changes the source after the first piece."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self._change = change

    def write(self, data: Any) -> int:
        change, self._change = self._change, lambda: None
        change()
        return super().write(data)


async def test_a_file_that_grows_is_copied_as_far_as_it_was_and_that_is_told(
    place: Place, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_files, "WINDOW", 1)

    def grow() -> None:
        with (project / "weights.bin").open("ab") as file:
            file.write(b"more")

    async with opened(place) as files:
        target = Changing(grow)
        copied = await files.download("weights.bin", target)
    assert (target.getvalue() == CONTENT, copied.changed) == (True, True)


async def test_a_file_that_is_replaced_while_it_is_copied_is_an_error(
    place: Place, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_files, "WINDOW", 1)

    def swap() -> None:
        (project / "other").write_bytes(bytes(len(CONTENT)))
        (project / "other").replace(project / "weights.bin")

    async with opened(place) as files:
        with pytest.raises(FileRefused, match="was replaced"):
            await files.download("weights.bin", Changing(swap))


async def test_a_file_is_uploaded_and_replaces_none_unasked(place: Place, project: Path) -> None:
    async with opened(place) as files:
        path = await files.upload(io.BytesIO(CONTENT), len(CONTENT), "new.bin", overwrite=False)
        assert path == str(project / "new.bin")
        assert (project / "new.bin").read_bytes() == CONTENT
        with pytest.raises(FileRefused) as refused:
            await files.upload(io.BytesIO(b"x"), 1, "new.bin", overwrite=False)
        assert refused.value.why == "exists"
        await files.upload(io.BytesIO(b"x"), 1, "new.bin", overwrite=True)
        assert (project / "new.bin").read_bytes() == b"x"
        assert await files.kind("new.bin") == "file"
        assert await files.kind("") == "folder"
        assert await files.kind("absent") is None


async def test_an_upload_whose_source_is_too_short_leaves_nothing(place: Place, project: Path) -> None:
    async with opened(place) as files:
        with pytest.raises(FileRefused, match="became shorter"):
            await files.upload(io.BytesIO(b"x"), 2, "new.bin", overwrite=False)
    assert not (project / "new.bin").exists()


async def test_an_upload_over_a_lost_connection_is_an_error(place: Place, project: Path) -> None:
    async with opened(place, Cutting(2)) as files:
        with pytest.raises(Unreachable, match="connection was lost"):
            await files.upload(io.BytesIO(CONTENT), len(CONTENT), "new.bin", overwrite=False)
    assert not (project / "new.bin").exists()
