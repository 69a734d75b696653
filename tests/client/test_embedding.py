"""Files that a prompt links to, embedded where the agent takes them, or left as links with a line for the user."""

import base64
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.client import embedding
from acp_gateway.client.embedding import FILE_SIZE, embed
from acp_gateway.protocol.path_maps import PathMaps

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
BOTH = frozenset({"image", "embeddedContext"})
TEXT = {"type": "text", "text": "see"}


def linked(uri: str, **more: Any) -> dict[str, Any]:
    return {"type": "resource_link", "name": "it", "uri": uri, **more}


def prompt_of(*blocks: Any) -> bytes:
    return json.dumps({"id": 1, "method": "session/prompt", "params": {"sessionId": "s", "prompt": blocks}}).encode()


class Laptop:
    """A laptop with a project, and with files beside it."""

    def __init__(self, folder: Path) -> None:
        self.project = folder / "proj"
        self.project.mkdir()
        self.beside = folder / "Desktop"
        self.beside.mkdir()
        self.limit = 10_000_000
        self.maps = PathMaps([])

    def file(self, name: str, content: bytes) -> str:
        """Write a file beside the project, and return its URI."""
        (self.beside / name).write_bytes(content)
        return (self.beside / name).as_uri()

    def sent(self, *blocks: Any, takes: frozenset[str] = BOTH) -> tuple[list[Any], list[str]]:
        """Return the blocks of a prompt as they are sent, and what the user is told."""
        done = embed(prompt_of(*blocks), [str(self.project)], self.maps.has_uri, takes, self.limit)
        return json.loads(done.message)["params"]["prompt"], done.notes


@pytest.fixture
def laptop(tmp_path: Path) -> Laptop:
    return Laptop(tmp_path)


def test_a_picture_is_an_image_where_the_agent_takes_images_and_else_a_resource(laptop: Laptop) -> None:
    uri, data = laptop.file("a shot.png", PNG), base64.b64encode(PNG).decode()
    image = {"type": "image", "data": data, "mimeType": "image/png", "uri": uri, "annotations": {"priority": 1}}
    assert laptop.sent(TEXT, linked(uri, annotations={"priority": 1})) == ([TEXT, image], [])
    resource = {"type": "resource", "resource": {"uri": uri, "mimeType": "image/png", "blob": data}}
    assert laptop.sent(linked(uri), takes=frozenset({"embeddedContext"})) == ([resource], [])


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("ü\n".encode(), {"text": "ü\n"}),
        (b"\xff\xfe", {"blob": "//4="}),
        (b"a\0", {"blob": "YQA="}),
        (b"RIFF0000WAVE", {"text": "RIFF0000WAVE"}),
    ],
)
def test_another_file_is_a_resource(laptop: Laptop, content: bytes, told: dict[str, str]) -> None:
    uri = laptop.file("notes", content)
    expected = {"type": "resource", "resource": {"uri": uri, "mimeType": "text/x", **told}}
    assert laptop.sent(linked(uri, mimeType="text/x")) == ([expected], [])


def test_what_the_agents_machine_may_have_stays_a_link_without_a_word(laptop: Laptop, tmp_path: Path) -> None:
    (laptop.project / "a.png").write_bytes(PNG)
    mapped = laptop.file("mapped", PNG)
    laptop.maps = PathMaps([(str(laptop.beside), "/srv")])
    blocks = [
        linked((laptop.project / "a.png").as_uri()),
        linked(f"file://{laptop.beside}/../proj/a.png"),
        linked(mapped),
        linked("file:///no/such/file"),
        linked("https://example.org/a.png"),
        linked(f"file://elsewhere{tmp_path}/Desktop/mapped"),
        linked("file:///%00"),
        linked("file://[/x"),
        {"type": "resource_link", "uri": 7},
        7,
    ]
    assert laptop.sent(*blocks) == (blocks, [])


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("folder", "it is not a file"),
        ("pipe", "it is not a file"),
        ("symlink", "it is a symbolic link"),
        ("large", f"it has more than {FILE_SIZE:,} bytes"),
        ("untaken", "the agent takes no files in prompts"),
        ("long", "it is too large for a message"),
    ],
)
def test_the_user_is_told_of_a_file_that_can_not_be_embedded(laptop: Laptop, kind: str, why: str) -> None:
    path = laptop.beside / "it"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "symlink":
        laptop.file("secret", b"secret")
        path.symlink_to(laptop.beside / "secret")
    else:
        path.write_bytes(bytes(FILE_SIZE + 1) if kind == "large" else b"x" * 101)
    link = linked(path.as_uri())
    laptop.limit = len(prompt_of(link)) + 50 if kind == "long" else laptop.limit
    blocks, (note,) = laptop.sent(link, takes=frozenset() if kind == "untaken" else BOTH)
    assert blocks == [link]
    assert note.startswith(f"[acp-gateway: {path} ")
    assert note.endswith(f"{why}.]")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has files that are longer than they say")
def test_of_a_file_no_more_is_read_than_it_said_to_have(laptop: Laptop) -> None:
    (block,), notes = laptop.sent(linked("file:///proc/self/status"))
    assert (block["resource"]["text"], notes) == ("", [])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user_is_not_embedded(laptop: Laptop) -> None:
    uri = laptop.file("theirs", b"x")
    os.chown(laptop.beside / "theirs", 12345, 12345)
    blocks, (note,) = laptop.sent(linked(uri))
    assert (blocks, note.endswith("it is another user's.]")) == ([linked(uri)], True)


def test_files_share_the_room_of_the_message(laptop: Laptop) -> None:
    links = [linked(laptop.file(name, b"x" * 600)) for name in ("a", "b")]
    laptop.limit = len(prompt_of(*links)) + 700
    (first, second), (note,) = laptop.sent(*links)
    assert (first["type"], second["type"]) == ("resource", "resource_link")
    assert note.endswith("it is too large for a message.]")


def test_of_many_files_no_more_is_read_than_a_prompt_may_have_and_the_rest_is_counted(
    laptop: Laptop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "FILES_SIZE", 1000)
    links = [linked(laptop.file(f"{number}", PNG + bytes(300 - len(PNG)))) for number in range(10)]
    blocks, (*named, last) = laptop.sent(*links)
    assert [block["type"] for block in blocks] == ["image"] * 3 + ["resource_link"] * 7
    assert all(str(laptop.beside / f"{number}") in note for number, note in enumerate(named, start=3))
    assert len(named) == 5
    assert all(note.endswith("the files of a prompt may have 1,000 bytes together.]") for note in named)
    assert last == "[acp-gateway: sent as links for such reasons as well: 2 more files.]"


def test_a_broken_prompt_passes_unchanged() -> None:
    for message in (prompt_of(TEXT)[:-3], b'{"params":{"prompt":7}}', b'{"params":{"prompt":[{"type"}]}}', b"{}"):
        assert embed(message, [], lambda _: False, BOTH, 1000) == (message, [])
