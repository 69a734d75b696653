"""Carries out the calls about files: search, list, look, read, and write new ones."""

import binascii
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import trio

from acp_gateway.core.sessions.session import Session
from acp_gateway.gateway.session_api import requests as api
from acp_gateway.gateway.session_api.connection import ApiConnection
from acp_gateway.gateway.session_api.file_search import DEFAULT_FOUND, find_files
from acp_gateway.gateway.session_api.requests import Call
from acp_gateway.gateway.sessions.session_files import SessionFiles
from acp_gateway.gateway.viewing.open_sessions import CallRefused
from acp_gateway.made.files import PIECE, Entry, list_folder, look, open_file, resolve
from acp_gateway.made.files_rules import FileRefused, Territory
from acp_gateway.made.files_upload import Upload, Uploads
from acp_gateway.protocol import jsonrpc

UPLOADS: Final = 8
"""Maximum uploads of one connection at a time; each holds two descriptors."""


DISK_SECONDS: Final = 10.0
"""Seconds that the end of an upload waits for a disk: renaming takes milliseconds, and the gateway's stop waits too."""


class FileCalls:
    """The calls of one client about files.

    Args:
        bridge: its connection.
        find: returns the session of an id. Raises `UnknownSession`.
    """

    def __init__(self, bridge: ApiConnection, find: Callable[[str | None], Session]) -> None:
        self._bridge = bridge
        self._find = find
        self._files = SessionFiles(bridge.gateway)
        self._uploads = Uploads(UPLOADS)
        self._ends_uploads = False
        self.handlers: Final[Mapping[str, Callable[[Call], Awaitable[bytes]]]] = {
            name: partial(self._serve, handle)
            for name, handle in (
                (api.FILES, self._search),
                (api.FOLDER, self._folder),
                (api.STAT, self._stat),
                (api.READ, self._read),
                (api.CREATE, self._create),
                (api.APPEND, self._append),
                (api.FINISH, self._finish),
            )
        }
        """The coroutines of the methods, by name. They raise what `SessionCalls.serve` raises."""

    async def _serve(self, handle: Callable[[Call], Awaitable[bytes]], call: Call) -> bytes:
        try:
            return await handle(call)
        except FileRefused as refused:
            raise CallRefused(jsonrpc.INVALID_PARAMS, str(refused), {"reason": refused.why}) from None

    async def _territory(self, call: Call) -> Territory:
        return await self._files.territory(self._bridge.admitted.access, self._find(call.session))

    async def _search(self, call: Call) -> bytes:
        session = self._find(call.session)
        if session.cwd is None:
            return b'{"files":[],"complete":true}'
        territory = await self._files.territory(self._bridge.admitted.access, session, names_only=True)
        query, most = call.members["query"], call.members.get("limit", DEFAULT_FOUND)
        found = await self._files.run_long(lambda: find_files(resolve(territory, ""), query, most))
        return jsonrpc.encode({"files": found.files, "complete": found.complete})

    async def _folder(self, call: Call) -> bytes:
        territory = await self._territory(call)
        listing = await self._files.run_long(list_folder, territory, call.members.get("path", ""))
        entries = [_described(entry) for entry in listing.entries]
        base = await self._files.run(os.path.realpath, territory.base)
        return jsonrpc.encode({"path": listing.place.path, "base": base, "entries": entries, "more": listing.more})

    async def _stat(self, call: Call) -> bytes:
        place, entry = await self._files.run(look, await self._territory(call), call.members["path"])
        return jsonrpc.encode({"path": place.path, **_described(entry)})

    async def _read(self, call: Call) -> bytes:
        territory, members = await self._territory(call), call.members
        offset, length = members.get("offset", 0), min(members.get("length", PIECE), PIECE)

        def read() -> bytes:
            file = open_file(territory, members["path"])
            data = binascii.b2a_base64(file.read(offset, length), newline=False).decode()
            about = {"path": file.place.path, "size": file.size, "modified": file.modified, "tag": file.tag}
            return jsonrpc.encode({**about, "offset": offset, "data": data})

        await self._bridge.wait_quiet()
        return await self._files.run(read)

    async def _create(self, call: Call) -> bytes:
        members, limit = call.members, self._bridge.gateway.config.limits.upload_size
        if not self._ends_uploads:
            self._ends_uploads = True
            if not self._bridge.start(self._end_uploads):
                self._uploads.end()
        with self._uploads.reserving() as name:
            territory = await self._territory(call)

            def begin() -> Upload:
                path, overwrite = members["path"], members.get("overwrite", False)
                upload = Upload(territory, path, members["size"], overwrite=overwrite, limit=limit)
                self._uploads.add(name, call.session, upload)
                return upload

            upload = await self._files.run(begin)
        return jsonrpc.encode({"upload": name, "path": upload.place.path})

    async def _append(self, call: Call) -> bytes:
        upload, members = self._upload(call), call.members

        def write() -> None:
            try:
                data = binascii.a2b_base64(members["data"], strict_mode=True)
            except ValueError:
                raise FileRefused("failed", "the data of an upload is base64") from None
            upload.append(members["offset"], data)

        await self._files.run(write)
        return jsonrpc.encode({"offset": upload.offset})

    async def _finish(self, call: Call) -> bytes:
        upload = self._upload(call)
        entry = None
        # Not abandoned: what has got its name is in the audit.
        with trio.move_on_after(DISK_SECONDS, shield=True) as scope:
            try:
                entry = await self._files.run(upload.finish)
            finally:
                upload.give_up()
                if not scope.cancelled_caught and not scope.cancel_called:
                    self._uploads.remove(call.members["upload"])
        access = self._bridge.admitted.access
        self._bridge.gateway.audit.record(
            "file_written",
            session=call.session or "",
            path=upload.place.path,
            size=upload.size,
            identity=access.identity,
            connection=self._bridge.name,
        )
        if entry is None:
            raise FileRefused("failed", "the disk does not answer: look later whether the file is there")
        return jsonrpc.encode({"path": upload.place.path, **_described(entry)})

    def _upload(self, call: Call) -> Upload:
        return self._uploads.get(call.members["upload"], call.session)

    async def _end_uploads(self) -> None:
        """Remove what was not finished when the connection ends."""
        try:
            await trio.sleep_forever()
        finally:
            uploads = self._uploads.end()
            with trio.move_on_after(DISK_SECONDS if uploads else 0, shield=True):
                # Threads that a disk keeps are not waited for: this one goes on by itself.
                await trio.to_thread.run_sync(
                    abandon_all, uploads, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1)
                )


def abandon_all(uploads: Sequence[Upload]) -> None:
    """Remove what uploads have written."""
    for upload in uploads:
        upload.abandon()


def _described(entry: Entry) -> dict[str, Any]:
    """Return what a client is told of an entry."""
    told: dict[str, Any] = {"name": entry.name, "kind": entry.kind, "size": entry.size, "modified": entry.modified}
    return told | {"secret": True} if entry.secret else told
