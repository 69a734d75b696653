"""The list of services: to take one out is to delete its folder and its line."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import acp_gateway
from acp_gateway.config.services import ENDPOINT, FOLDERS, services, words

PACKAGE = Path(acp_gateway.__file__).parent

PROGRAM = """
import json, sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import click
import trio

from acp_gateway.cli.main import main
from acp_gateway.config.load import load_config
from acp_gateway.security.token_store import TokenStore
from acp_gateway.server.serve import serve

everything, remaining = map(Path, sys.argv[1:])


def run(*words):
    with redirect_stdout(StringIO()) as out, redirect_stderr(out):
        try:
            main(list(words), standalone_mode=False)
        except (click.exceptions.Exit, click.ClickException, SystemExit):
            pass
    return out.getvalue()


async def ask(url, request):
    host, port = url.split("://")[1].partition("/")[0].split(":")
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        await stream.send_all(request.encode())
        return (await stream.receive_some(65536)).decode()


async def status(url, method, path, more=""):
    headers = f"Host: localhost\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n{more}"
    request = f"{method} {path} HTTP/1.1\\r\\n{headers}\\r\\n"
    return int((await ask(url, request)).split()[1])


async def served():
    found, config = {}, load_config(remaining)
    token = TokenStore(config.gateway.state_dir).create("test", None, None)[1]
    async with trio.open_nursery() as nursery:
        urls = await nursery.start(serve, config, {})
        web, *lines = urls
        paths = {"acp": "/acp", "browser": "/ws", "chat": "/chat", "metrics": "/metrics", "editor": "/acp/getSession"}
        paths |= {"ports": "/ports/1", "files": "/files", "ahp": "/ahp"}
        for word, path in paths.items():
            found[word] = await status(web, "POST" if word == "editor" else "GET", path)
        found["post"] = await status(web, "POST", "/acp", f"Authorization: Bearer {token}\\r\\n")
        found["health"] = await status(web, "GET", "/healthz")
        if lines:
            found["tap"] = json.loads(await ask(lines[0], '{"jsonrpc":"2.0","id":0,"method":"_acp-gateway/hello"}\\n'))
        async with await trio.open_unix_socket(str(config.gateway.state_dir / "control")) as stream:
            for method, params in ("_acp-gateway/hello", {"control": True}), ("session/list", {}):
                request = {"jsonrpc": "2.0", "id": 0, "method": method, "params": params}
                await stream.send_all(json.dumps(request).encode() + b"\\n")
                found["control"] = json.loads(await stream.receive_some(65536))
        nursery.cancel_scope.cancel()
    return found


print(json.dumps({
    "place": sys.modules["acp_gateway"].__file__,
    "help": run("--help"),
    "check": run("check-config", "--config", str(everything)),
    "served": trio.run(served),
}))
"""


def configuration(directory: Path, name: str, served: list[str], sections: list[str]) -> Path:
    """A configuration that serves these, with these sections."""
    file = directory / f"{name}.toml"
    beside = [word for word in served if word != "tap"]
    text = f'[gateway]\nstate_dir = "{directory}/state"\n[agents.demo]\ncommand = ["cat"]\n'
    text += f'[[listen]]\nurl = "ws://127.0.0.1:0"\nserves = {json.dumps(beside)}\n'
    if "tap" in served:
        text += '[[listen]]\nurl = "tcp://127.0.0.1:0"\nserves = ["tap"]\n'
    file.write_text(text + "".join(f"[{section}]\n" for section in sections))
    return file


def without(folder: str, directory: Path) -> None:
    """Copy the program, by links, and take out a folder and its line."""
    copy = directory / "acp_gateway"
    shutil.copytree(PACKAGE, copy, copy_function=os.symlink)
    shutil.rmtree(directory.joinpath(*folder.split(".")))
    listed = copy / "config/services.py"
    text = listed.read_text()
    listed.unlink()
    line = f'    "{folder}",\n'
    assert text.count(line) == 1
    listed.write_text(text.replace(line, ""))


QUICK = ("chat", "tap")
"""Services whose removal is seen at each run of the tests: a widget's, and one of lines."""


@pytest.mark.parametrize(
    "service",
    [
        pytest.param(
            service, id=service.folder.rpartition(".")[2], marks=[] if service.word in QUICK else pytest.mark.slow
        )
        for service in services()
    ],
)
def test_a_service_is_taken_out_by_its_folder_and_its_line(service: Any, tmp_path: Path) -> None:
    without(service.folder, tmp_path)
    name = service.folder.rpartition(".")[2]
    # A part of what another one serves has no word of its own.
    is_part = [ENDPOINT, *(each.word for each in services())].count(service.word) > 1
    sections = [each.word for each in services() if each.section is not None]
    everything = configuration(tmp_path, "everything", list(words()), sections)
    rest = [word for word in words() if is_part or word != service.word]
    left = [word for word in sections if service.section is None or word != service.word]
    remaining = configuration(tmp_path, "remaining", rest, left)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, everything, remaining],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert Path(found["place"]).parent == tmp_path / "acp_gateway"
    assert "serve" in found["help"]
    if not is_part:
        assert re.search(rf'expected "acp".* found "{service.word}"', found["check"]), found["check"]
    if service.section is not None:
        assert re.search(rf"{service.word}: unknown option", found["check"]), found["check"]
    elif is_part:
        assert "No errors" in found["check"]
    # Without its part for HTTP, the endpoint serves WebSockets as before.
    places = [ENDPOINT, *(each.folder.rpartition(".")[2] for each in services() if each.word not in ("tap", ENDPOINT))]
    assert [found["served"][place] for place in places] == [404 if place == name else 401 for place in places]
    assert found["served"]["post"] == (426 if name == "http" else 415)
    assert found["served"]["health"] == 200
    assert found["served"]["control"]["result"] == {"sessions": []}
    told = found["served"].get("tap")
    assert told is None if service.word == "tap" else told["error"]["data"] == {"reason": "unauthorized"}


def test_each_folder_that_declares_a_service_is_in_the_list() -> None:
    found = {".".join(path.parent.relative_to(PACKAGE.parent).parts) for path in PACKAGE.rglob("service.py")}
    assert {name for name in found if name.startswith("acp_gateway.dialects.")} == set(FOLDERS)
    assert all(service.folder in FOLDERS for service in services())
