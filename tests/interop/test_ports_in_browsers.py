"""Programs with pages that agents start, in a headless browser: through a preview, and through `acp-gateway forward`.

Their pages know where they come from. A request that they send to the program itself works on this machine alone, so
each test looks at all of them.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urljoin, urlsplit

import pytest
import trio

from acp_gateway.client.control import request
from tests.interop.conftest import port_of
from tests.interop.laptops import TIMEOUT, open_laptop
from tests.interop.sdk_clients import PROGRAMS
from tests.interop.test_editors_in_browsers import page, running
from tests.interop.test_programs import ENVIRONMENTS
from tests.kit.free_ports import free_port
from tests.kit.machines import control

if TYPE_CHECKING:
    from playwright.sync_api import Page, WebSocket

__all__ = ["page"]

pytestmark = pytest.mark.interop

VITE_FILES = {
    "index.html": '<p id="said"></p><script type="module" src="/main.js"></script>',
    "main.js": """\
import { text } from "./text.js";

const said = document.querySelector("#said");
said.textContent = text;
import.meta.hot.accept("./text.js", (changed) => { said.textContent += changed.text; });
""",
    "text.js": 'export const text = "before ";',
}

GRADIO_FILES = {
    "app.py": """\
import sys
from hashlib import sha256
from pathlib import Path

import gradio

def look(path):
    data = Path(path).read_bytes()
    return f"{len(data)} {sha256(data).hexdigest()[:8]}"

gradio.Interface(look, gradio.File(), "text", api_name="look").launch(server_port=int(sys.argv[1]))
"""
}

TENSORBOARD_FILES = {
    "board.py": """\
import sys

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.main import run_main
from tensorboard.summary.writer.event_file_writer import EventFileWriter

writer = EventFileWriter("runs/first_run")
for step, loss in enumerate((64.25, 32.125, 7.375)):
    writer.add_event(Event(step=step, summary=Summary(value=[Summary.Value(tag="loss", simple_value=loss)])))
writer.close()
sys.argv = ["tensorboard", "--logdir", "runs", "--load_fast", "false", "--port", sys.argv[1]]
run_main()
"""
}

NOTEBOOK_FILES = {
    "work.ipynb": """\
{"cells": [{"cell_type": "code", "execution_count": null, "id": "first", "metadata": {}, "outputs": [], "source": ""}],
 "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}},
 "nbformat": 4, "nbformat_minor": 5}
"""
}

NOTEBOOK_TOKEN = "asked-for-by-jupyter"


class Shown(NamedTuple):
    """A program whose port a browser on the laptop reaches."""

    url: str
    """A link to the preview, or the address of `forward`."""
    project: Path


@contextmanager
def shown(
    directory: Path, way: str, command: list[str], files: dict[str, str], ready: str, name: str
) -> Iterator[Shown]:
    """Run a program with these files at a port that its command gets as the last word, and open a way to it."""
    port = free_port()
    with open_laptop(directory, options=f"ports = [{port}]\n") as laptop, ExitStack() as stack:
        gateway = laptop.gateway
        previews = f'preview_url = "http://*.localhost:{port_of(gateway)}"\n'
        gateway.config.write_text(re.sub(r'url = "ws://.*"\n', f"\\g<0>{previews}", gateway.config.read_text()))
        laptop.restart_gateway()
        for path, text in files.items():
            (laptop.project / path).write_text(text)
        stack.enter_context(running(laptop, [*command, str(port)], ready))
        assert f"{port}  {name}  demo" in laptop.run("forward", "devbox", "--plain")
        if way == "preview":
            place = control(laptop.gateway.urls["ws"], gateway.token_file)
            url = trio.run(partial(request, place, "ports/preview", {"port": port}, time_limit=TIMEOUT))["url"]
        else:
            local = free_port()
            url = f"http://127.0.0.1:{local}"
            program = str(Path(sys.executable).with_name("acp-gateway"))
            forward = [program, "forward", "devbox", str(port), "--local", str(local)]
            stack.enter_context(running(laptop, forward, url))
        yield Shown(url, laptop.project)


@pytest.fixture(params=["preview", "forward"])
def way(request: pytest.FixtureRequest) -> str:
    way: str = request.param
    return way


@pytest.fixture
def vite(tmp_path: Path, way: str) -> Iterator[Shown]:
    script, node = PROGRAMS / "node_modules" / "vite" / "bin" / "vite.js", shutil.which("node")
    if node is None or not script.exists():
        pytest.skip("vite is not installed: make interop does that, with Node.js 20.19 or newer")
    with shown(tmp_path, way, [node, str(script), "--strictPort", "--port"], VITE_FILES, "ready in", "vite") as program:
        yield program


def python_with(package: str) -> str:
    """Return the Python that has a package from PyPI; skip the test if it could not be installed."""
    python = ENVIRONMENTS / package / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{package} is not installed: make interop does that, with Python 3.12 or newer")
    return str(python)


@pytest.fixture
def gradio(tmp_path: Path, way: str) -> Iterator[Shown]:
    command = [python_with("gradio"), "-u", "app.py"]
    with shown(tmp_path, way, command, GRADIO_FILES, "Running on local URL", "app") as program:
        yield program


@pytest.fixture
def tensorboard(tmp_path: Path, way: str) -> Iterator[Shown]:
    command = [python_with("tensorboard"), "-u", "board.py"]
    with shown(tmp_path, way, command, TENSORBOARD_FILES, "Press CTRL+C to quit", "board") as program:
        yield program


@pytest.fixture
def jupyter(tmp_path: Path, way: str) -> Iterator[Shown]:
    lab = Path(python_with("jupyterlab")).with_name("jupyter-lab")
    options = ["--no-browser", f"--IdentityProvider.token={NOTEBOOK_TOKEN}", "--ServerApp.port_retries=0"]
    options += ["--allow-root"] if os.geteuid() == 0 else []
    command = [str(lab), *options, "--port"]
    with shown(tmp_path, way, command, NOTEBOOK_FILES, "is running at", "jupyter-lab") as program:
        yield program


class Asked:
    """Addresses on this machine that a page has asked, each as HOST:PORT."""

    def __init__(self, page: "Page") -> None:
        self.places: set[str] = set()
        self.sockets = 0
        page.on("request", lambda request: self._note(request.url))
        page.on("websocket", self._note_socket)
        # Others, such as the fonts that Gradio wants, are not needed, and a machine may have no way to them.
        page.route(lambda url: not is_local(url), lambda route: route.abort())

    def _note(self, url: str) -> None:
        if is_local(url):
            self.places.add(urlsplit(url).netloc)

    def _note_socket(self, socket: "WebSocket") -> None:
        self.sockets += 1
        self._note(socket.url)


def is_local(url: str) -> bool:
    """Return whether a URL has a host, and that is this machine."""
    name = urlsplit(url).hostname or ""
    return name in ("127.0.0.1", "::1", "localhost", "0.0.0.0") or name.endswith(".localhost")  # noqa: S104 - compared.


def test_vite_changes_a_module_in_the_page_without_loading_it_again(vite: Shown, page: "Page") -> None:
    asked = Asked(page)
    with page.expect_console_message(lambda message: "[vite] connected" in message.text):
        page.goto(vite.url)
    said = page.locator("#said")
    said.filter(has_text="before").wait_for()
    (vite.project / "text.js").write_text('export const text = "after";')
    # A page that is loaded again does not say both.
    said.filter(has_text="before after").wait_for()
    assert (asked.places, asked.sockets) == ({urlsplit(vite.url).netloc}, 1)


def test_gradio_takes_an_upload_and_shows_what_its_function_returns(
    gradio: Shown, page: "Page", tmp_path: Path
) -> None:
    asked = Asked(page)
    data = bytes(range(256)) * 20_000
    (tmp_path / "measured.bin").write_bytes(data)
    page.goto(gradio.url)
    page.locator("input[type=file]").first.set_input_files(tmp_path / "measured.bin")
    page.get_by_text("measured").first.wait_for()
    page.get_by_role("button", name="Submit").click()
    said = f"{len(data)} {sha256(data).hexdigest()[:8]}"
    page.wait_for_function(
        "said => [...document.querySelectorAll('textarea')].some(each => each.value === said)", arg=said
    )
    assert asked.places == {urlsplit(gradio.url).netloc}


def test_tensorboard_draws_what_a_run_has_written(tensorboard: Shown, page: "Page") -> None:
    asked = Asked(page)
    page.goto(tensorboard.url)
    page.get_by_text("first_run").first.wait_for()
    page.locator("scalar-card", has_text="loss").get_by_text("7.375").first.wait_for()
    assert asked.places == {urlsplit(tensorboard.url).netloc}


def test_jupyter_takes_its_token_runs_a_cell_in_a_kernel_and_saves_it(jupyter: Shown, page: "Page") -> None:
    asked = Asked(page)
    page.goto(jupyter.url)
    page.locator("#password_input").fill(NOTEBOOK_TOKEN)
    page.keyboard.press("Enter")
    page.locator(".jp-LabShell").wait_for()
    page.goto(urljoin(page.url, "/lab/tree/work.ipynb?reset"))
    # Before that, a cell is not run: its kernel is not there yet.
    page.get_by_text("| Idle").first.wait_for()
    page.locator(".jp-CodeCell .cm-content").first.click()
    page.keyboard.type("print(6 * 7)")
    page.keyboard.press("Shift+Enter")
    page.locator(".jp-OutputArea-output").get_by_text("42", exact=True).wait_for()
    with page.expect_response(lambda it: it.request.method == "PUT" and "/api/contents/work.ipynb" in it.url) as saved:
        page.keyboard.press("Control+s")
    assert saved.value.ok
    assert '"42\\n"' in (jupyter.project / "work.ipynb").read_text()
    assert asked.places == {urlsplit(jupyter.url).netloc}
    assert asked.sockets > 0
