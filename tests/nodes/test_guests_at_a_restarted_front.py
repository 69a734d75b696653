"""Guests of a gateway in front of a node, after that gateway was started again and before the owner has come."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
import trio

from acp_gateway.client.control import list_sessions
from acp_gateway.client.dialing import dial
from acp_gateway.errors import UnknownSession, Unreachable
from acp_gateway.security.token_store import TokenStore
from acp_gateway.transports.websocket.stream import Timing
from tests.kit.doubles import Editor
from tests.kit.machines import control, front_config, node_config, node_section, save_token, until_agents
from tests.kit.serving import serving
from tests.nodes.test_node_watcher import editor_at, hurried, new_session, prompted

__all__ = ["hurried"]

ROLES: list[Literal["controller", "observer"]] = ["controller", "observer"]


class Left:
    """A session that its owner has left at a front, which is not running."""

    def __init__(self, folder: Path, url: str, owner: Path, session: str) -> None:
        self.url = url
        self.owner = owner
        self.session = session
        self._folder = folder

    def guest(self, role: Literal["controller", "observer"] = "controller") -> Path:
        """A token for the session alone."""
        path = self._folder / f"guest-{role}"
        path.touch(0o600)
        tokens = TokenStore(self._folder / "front")
        path.write_text(tokens.create_guest(f"gpu1/{self.session}", role=role, lifetime=None)[1])
        return path

    @asynccontextmanager
    async def front(self) -> AsyncIterator[str]:
        """The front, started again."""
        nodes = {"gpu1": node_section(self._folder / "gpu1", self.url)}
        async with serving(front_config(self._folder / "front", nodes)) as (_, websocket):
            yield websocket


async def leave(folder: Path, url: str, identity: str | None = None) -> Left:
    """Open a session of a node through a front, and leave both."""
    owner = save_token(folder / "front", "owner", identity)
    left = Left(folder, url, owner, "")
    async with left.front() as front:
        await until_agents(front, "gpu1/memory", token_file=owner)
        editor = await editor_at(front, "gpu1/memory", owner)
        left.session = await new_session(editor)
        assert await prompted(editor, left.session, "said before") == ["said before"]
        await editor.stream.aclose()
    return left


async def at(url: str, token: Path, **more: Any) -> Editor:
    """A client of a guest that is let in once the front has reached the node."""
    while True:
        try:
            return await editor_at(url, None, token, **more)
        except Unreachable:
            await trio.lowlevel.checkpoint()


async def page_at(url: str, token: Path) -> Editor:
    """The connection of a page to the node."""
    return Editor(await dial(control(url.replace("/acp", "/nodes/gpu1/ws"), token, control=False), Timing()))


async def joined(editor: Editor) -> dict[str, Any]:
    """Initialize an editor; return the response to its `session/new`."""
    await editor.initialize()
    return await editor.request("session/new", {"cwd": "/", "mcpServers": []})


async def until_said(editor: Editor, words: str) -> None:
    """Wait for a message with these words."""
    while words not in str(await editor.receive()):
        pass


@pytest.mark.parametrize("speaks_for", [(), ("bob",)])
@pytest.mark.parametrize("role", ROLES)
async def test_a_guest_sees_the_session_that_is_live_at_the_node(
    role: Literal["controller", "observer"], speaks_for: tuple[str, ...], tmp_path: Path, hurried: None
) -> None:
    config = node_config(tmp_path / "gpu1")
    save_token(tmp_path / "gpu1", may_speak_for=speaks_for)
    async with serving(config) as (url,):
        left = await leave(tmp_path, url, "bob")
        guest = left.guest(role)
        async with left.front() as front:
            editor = await at(front, guest)
            assert (await joined(editor))["result"]["sessionId"] == left.session
            await until_said(editor, "said before")
            # Its owner comes later, and both are in one session.
            owner = await editor_at(front, None, left.owner, session=f"gpu1/{left.session}")
            assert (await joined(owner))["result"]["sessionId"] == left.session
            assert (await prompted(owner, left.session, "of the owner"))[-1] == "of the owner"
            await until_said(editor, "of the owner")
            params = {"sessionId": left.session, "prompt": [{"type": "text", "text": "of the guest"}]}
            await editor.send(id="turn", method="session/prompt", params=params)
            while (answer := await editor.receive()).get("id") != "turn":
                pass
            assert ("result" in answer) == (role == "controller")
            for client in (editor, owner):
                await client.stream.aclose()


async def test_the_page_of_a_guest_is_told_the_session_without_asking_for_it(tmp_path: Path, hurried: None) -> None:
    async with serving(node_config(tmp_path / "gpu1")) as (url,):
        left = await leave(tmp_path, url)
        guest = left.guest()
        async with left.front() as front:
            await until_agents(front, "gpu1/memory", token_file=left.owner)
            page = await page_at(front, guest)
            await page.send(id=1, method="session/list", params={"watch": True})
            # It is in the list, or told as a change.
            await until_said(page, left.session)
            await page.send(id=2, method="session/get", params={"sessionId": left.session})
            await until_said(page, "said before")
            await page.stream.aclose()


async def test_a_guest_opens_nothing_that_is_not_live_at_the_node_and_is_told_so(tmp_path: Path, hurried: None) -> None:
    async with serving(node_config(tmp_path / "gpu1")) as (url,):
        left = await leave(tmp_path, url)
    guest = left.guest()
    async with serving(node_config(tmp_path / "gpu1", url=url)), left.front() as front:
        with pytest.raises(UnknownSession):
            await at(front, guest)
        page = await page_at(front, guest)
        assert (await page.request("session/list"))["result"]["sessions"] == []
        refused = await page.request("session/get", {"sessionId": left.session})
        assert "is open here, or it is not yours" in refused["error"]["message"]
        found = await list_sessions(control(front, left.owner), time_limit=30)
        assert [it["live"] for it in found.sessions] == [False]
        await page.stream.aclose()


async def test_a_guest_is_told_that_the_node_is_away_without_its_address(tmp_path: Path, hurried: None) -> None:
    async with serving(node_config(tmp_path / "gpu1")) as (url,):
        left = await leave(tmp_path, url)
    guest = left.guest()
    async with left.front() as front:
        with pytest.raises(Unreachable, match=r"the node gpu1 is away since \S+Z$"):
            await editor_at(front, None, guest)
        with pytest.raises(UnknownSession):
            await editor_at(front, None, guest, session="gpu1/other")
        with pytest.raises(Unreachable, match=r"the node gpu1 is away since \S+Z$"):
            await page_at(front, guest)
