"""Files are opened beneath the folders of a session, and nowhere else: a table of ways out."""

import os
import socket
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from acp_gateway.made import files
from acp_gateway.made.files import list_folder, look, open_beneath, open_by_kernel, open_by_names, open_file, resolve
from acp_gateway.made.files_rules import FileRefused, Place, Territory

KERNEL = pytest.param(
    open_by_kernel, id="kernel", marks=pytest.mark.skipif(not files._has_openat2(), reason="no openat2 here")
)
NAMES = pytest.param(open_by_names, id="names")


@pytest.fixture(params=[KERNEL, NAMES])
def opener(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> files.Opener:
    """Each way in which a path is opened."""
    found: files.Opener = request.param
    monkeypatch.setattr(files, "open_beneath", found)
    return found


@dataclass
class Machine:
    """A workspace `work/proj` with files, and secrets beside it."""

    top: Path
    territory: Territory

    @property
    def project(self) -> Path:
        return self.top / "work/proj"

    def make(self, name: str, content: str = "x") -> Path:
        path = self.top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path

    def link(self, name: str, target: str) -> None:
        path = self.top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)

    def read(self, path: str) -> bytes:
        file = open_file(self.territory, path)
        return file.read(0, file.size)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    top = Path(os.path.realpath(tmp_path))
    territory = Territory(str(top / "work/proj"), (str(top / "work"),), secrets=(str(top / "work/.state"),))
    found = Machine(top, territory)
    found.make("work/proj/plots/loss.png", "picture")
    found.make("work/proj/train.py", "code")
    found.make("work/other/notes.txt", "notes")
    found.make("secret.txt", "outside")
    found.make("work-of-another/secret.txt", "outside")
    found.make("work/.state/tokens.json", "digests")
    return found


@pytest.mark.usefixtures("opener")
@pytest.mark.parametrize(
    "path",
    ["plots/loss.png", "./plots/../plots/loss.png", "plots//loss.png", "{project}/plots/loss.png", "inside", "absolute",
     "through/loss.png", "../proj/plots/loss.png", "up-and-down/loss.png"],
)  # fmt: skip
def test_a_file_of_the_session_is_read_also_by_links_that_stay_in_the_workspace(machine: Machine, path: str) -> None:
    machine.link("work/proj/inside", "plots/loss.png")
    machine.link("work/proj/absolute", str(machine.project / "plots/loss.png"))
    machine.link("work/proj/through", "plots")
    machine.link("work/proj/up-and-down", "../../work/proj/plots")
    assert machine.read(path.format(project=machine.project)) == b"picture"


def test_a_file_elsewhere_in_the_workspace_is_read(machine: Machine) -> None:
    assert machine.read("../other/notes.txt") == b"notes"
    assert machine.read(str(machine.top / "work/other/notes.txt")) == b"notes"


def nothing(machine: Machine) -> None:
    """All that is needed is there."""


def links(**made: str) -> Callable[[Machine], None]:
    """Make links in the project."""

    def make(machine: Machine) -> None:
        for name, target in made.items():
            machine.link(f"work/proj/{name}", target.format(top=machine.top))

    return make


def pipe(machine: Machine) -> None:
    os.mkfifo(machine.project / "pipe")


def listening(machine: Machine) -> None:
    # A path of a socket is short.
    here = os.getcwd()
    os.chdir(machine.project)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("socket")
    finally:
        os.chdir(here)


def named(name: str) -> Callable[[Machine], None]:
    def make(machine: Machine) -> None:
        machine.make(f"work/proj/{name}", "secret")

    return make


WAYS: list[tuple[str, str, Callable[[Machine], None], str]] = [
    # What it is, the path, what the agent has made, and why it is refused.
    ("dots", "../../secret.txt", nothing, "outside"),
    ("many dots", "../" * 40 + "etc/passwd", nothing, "outside"),
    ("dots in the middle", "plots/../../../secret.txt", nothing, "outside"),
    ("dots behind nothing", "absent/../../../secret.txt", nothing, "outside"),
    ("an absolute path", "/etc/passwd", nothing, "outside"),
    ("an absolute path with two slashes", "//etc/passwd", nothing, "outside"),
    ("a sibling whose name begins alike", "{top}/work-of-another/secret.txt", nothing, "outside"),
    ("the folder above", "{top}", nothing, "outside"),
    ("what does not exist outside", "/etc/absent", nothing, "outside"),
    ("encoded dots", "%2e%2e/%2e%2e/secret.txt", nothing, "not_found"),
    ("twice encoded dots", "%252e%252e%252fsecret.txt", nothing, "not_found"),
    ("an encoded slash", "..%2f..%2fsecret.txt", nothing, "not_found"),
    ("a semicolon behind dots", "..;/..;/secret.txt", nothing, "not_found"),
    ("backslashes", "..\\..\\secret.txt", nothing, "not_found"),
    ("dots of full width", "\uff0e\uff0e/\uff0e\uff0e/secret.txt", nothing, "not_found"),
    ("a slash of full width", "..\uff0f..\uff0fsecret.txt", nothing, "not_found"),
    ("one character for two dots", "\u2025/\u2025/secret.txt", nothing, "not_found"),
    ("dots with an invisible character", ".\u200b./.\u200b./secret.txt", nothing, "not_found"),
    ("dots with a combining mark", ".\u0307./secret.txt", nothing, "not_found"),
    ("a NUL", "plots/loss.png\0.txt", nothing, "bad_path"),
    ("a lone surrogate", "\ud800", nothing, "bad_path"),
    ("a path that is too long", "a/" * 3000, nothing, "bad_path"),
    ("a name that is too long", "a" * 300, nothing, "bad_path"),
    ("a URL", "file:///etc/passwd", nothing, "not_found"),
    ("a home", "~/.ssh/id_ed25519", nothing, "secret"),
    ("a home without a secret", "~root/notes", nothing, "not_found"),
    ("a link to a file outside", "out", links(out="{top}/secret.txt"), "outside"),
    ("a relative link to a file outside", "out", links(out="../../secret.txt"), "outside"),
    ("a link to a folder outside", "out/secret.txt", links(out="{top}"), "outside"),
    ("links in a row", "one", links(one="two", two="three", three="{top}/secret.txt"), "outside"),
    ("a link in a folder, up from where it leads", "out/../secret.txt", links(out="{top}/work-of-another"), "outside"),
    ("a link to itself", "circle", links(circle="circle"), "changed"),
    ("links in a circle", "one/x", links(one="two", two="one"), "not_found"),
    ("a link to the root", "root/etc/passwd", links(root="/"), "outside"),
    ("a link to this process's folder", "cwd/secret.txt", links(cwd="/proc/self/cwd"), "outside"),
    ("a link to this process's root", "root/etc/passwd", links(root="/proc/self/root"), "outside"),
    ("a link to this process's environment", "env", links(env="/proc/self/environ"), "outside"),
    ("a link to a descriptor", "fd", links(fd="/dev/fd/0"), "outside"),
    ("a link to a device", "zero", links(zero="/dev/zero"), "outside"),
    ("a pipe", "pipe", pipe, "not_a_file"),
    ("a socket", "socket", listening, "not_a_file"),
    ("a folder", "plots", nothing, "is_folder"),
    ("the session's folder", "", nothing, "is_folder"),
    ("a file as a folder", "train.py/x", nothing, "not_found"),
    ("a secret of the project", ".env", named(".env"), "secret"),
    ("a secret in other letters", ".ENV", named(".ENV"), "secret"),
    ("a secret in letters of full width", "\uff0e\uff45\uff4e\uff56", named("\uff0e\uff45\uff4e\uff56"), "secret"),
    ("a secret with an invisible character", ".e\u200dnv", named(".e\u200dnv"), "secret"),
    ("a secret with dots at its end", ".env.", named(".env."), "secret"),
    ("a secret's copy", ".env.production", named(".env.production"), "secret"),
    ("a key", "deploy/ID_RSA", named("deploy/ID_RSA"), "secret"),
    ("a key in a folder of keys", "a/.ssh/config", named("a/.ssh/config"), "secret"),
    ("a certificate's key", "tls/server.pem", named("tls/server.pem"), "secret"),
    ("a link to a secret", "plain.txt", links(**{"plain.txt": ".env"}), "secret"),
    ("a link into a folder of secrets", "plain/config", links(plain=".ssh"), "secret"),
    ("a secret that is not there", "absent/.env", nothing, "secret"),
    ("the gateway's own files", "../.state/tokens.json", nothing, "secret"),
    ("the gateway's own files in other letters", "../.STATE/tokens.json", nothing, "secret"),
    ("a link to the gateway's own files", "state/tokens.json", links(state="../.state"), "secret"),
]  # fmt: skip


@pytest.mark.usefixtures("opener")
@pytest.mark.parametrize(("path", "make", "why"), [way[1:] for way in WAYS], ids=[way[0] for way in WAYS])
def test_no_path_leads_out_and_the_refusal_says_why(
    machine: Machine, path: str, make: Callable[[Machine], None], why: str
) -> None:
    make(machine)
    with pytest.raises(FileRefused) as refused:
        machine.read(path.format(top=machine.top))
    assert refused.value.why == why


@pytest.mark.parametrize("name", [".env.example", "environment.md", "keys.py", "pem", "env", "id_rsa.txt"])
def test_names_that_only_resemble_those_of_secrets_are_read(machine: Machine, name: str) -> None:
    machine.make(f"work/proj/{name}")
    assert machine.read(name) == b"x"


def test_what_is_outside_is_refused_alike_whether_it_exists_or_not(machine: Machine) -> None:
    texts = []
    for name in ("secret.txt", "absent.txt"):
        with pytest.raises(FileRefused) as refused:
            machine.read(f"../../{name}")
        texts.append(str(refused.value).replace(name, "NAME"))
    assert texts[0] == texts[1]


def test_a_folder_that_is_not_allowed_is_closed_within_one_that_is_and_open_around_it(machine: Machine) -> None:
    root = str(machine.top / "work")
    inner = str(machine.top / "work/other")
    without = replace(machine.territory, others=(inner,))
    with pytest.raises(FileRefused, match="not in a folder"):
        open_file(without, "../other/notes.txt")
    assert open_file(without, "train.py").size == 4
    within = Territory(inner, (inner,), others=(root,))
    assert open_file(within, "notes.txt").size == 5
    with pytest.raises(FileRefused, match="not in a folder"):
        open_file(within, "../proj/train.py")


# Races


RACES: list[tuple[str, Callable[[Machine], None]]] = [
    ("the file becomes a link", lambda machine: swap(machine.project / "plots/loss.png", machine.top / "secret.txt")),
    ("its folder becomes a link", lambda machine: swap(machine.project / "plots", machine.top / "work-of-another")),
    ("a folder above becomes a link", lambda machine: swap(machine.project, machine.top)),
    ("the file becomes a pipe", lambda machine: remade(machine.project / "plots/loss.png", os.mkfifo)),
]  # fmt: skip


def swap(path: Path, target: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to(target)


def remade(path: Path, make: Callable[[Path], None]) -> None:
    path.unlink()
    make(path)


@pytest.mark.usefixtures("opener")
@pytest.mark.parametrize("change", [race[1] for race in RACES], ids=[race[0] for race in RACES])
def test_a_path_that_changes_after_it_was_judged_leads_nowhere(
    machine: Machine, change: Callable[[Machine], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve_and_change(territory: Territory, path: str) -> Place:
        place = resolve(territory, path)
        change(machine)
        return place

    monkeypatch.setattr(files, "resolve", resolve_and_change)
    with pytest.raises(FileRefused) as refused:
        open_file(machine.territory, "plots/loss.png")
    assert refused.value.why in ("changed", "not_found", "not_a_file")


@pytest.mark.usefixtures("opener")
def test_a_file_that_becomes_a_link_between_look_and_open_is_refused(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = files._check_file
    changed: list[None] = []

    def check_and_change(info: os.stat_result, path: str) -> None:
        check(info, path)
        if not changed:
            changed.append(None)
            swap(machine.project / "train.py", machine.top / "secret.txt")

    monkeypatch.setattr(files, "_check_file", check_and_change)

    with pytest.raises(FileRefused) as refused:
        open_file(machine.territory, "train.py")
    assert refused.value.why == "changed"


@pytest.mark.parametrize("opens", [KERNEL, NAMES])
@pytest.mark.parametrize(
    "parts", [("..", "secret.txt"), ("out", "secret.txt"), ("out",), ("..",), ("plots", "..", "..")]
)
def test_neither_way_of_opening_leaves_the_folder_or_follows_a_link(
    machine: Machine, opens: files.Opener, parts: tuple[str, ...]
) -> None:
    machine.link("work/proj/out", "..")
    with pytest.raises(OSError):  # noqa: PT011 - which one is the system's.
        opens(str(machine.project), parts, os.O_RDONLY | os.O_NOFOLLOW)


@pytest.mark.parametrize("opens", [KERNEL, NAMES])
def test_neither_way_of_opening_follows_a_link_on_the_way_to_the_folder(machine: Machine, opens: files.Opener) -> None:
    os.close(opens(str(machine.project), ("train.py",), os.O_RDONLY))
    os.close(opens("/", (), files.FOLDER))
    swap(machine.project, machine.top)
    for parts in (("secret.txt",), ()):
        with pytest.raises(OSError):  # noqa: PT011 - which one is the system's.
            opens(str(machine.project), parts, os.O_RDONLY | os.O_NOFOLLOW)
    with pytest.raises(OSError):  # noqa: PT011
        opens(str(machine.project / "work"), ("proj", "secret.txt"), os.O_RDONLY | os.O_NOFOLLOW)


@pytest.mark.skipif(not os.path.ismount("/proc"), reason="no /proc here")
def test_files_of_the_kernel_are_not_read_even_in_a_workspace() -> None:
    territory = Territory("/proc/self", (os.path.realpath("/proc/self"),))
    with pytest.raises(FileRefused, match="kernel"):
        open_file(territory, "status")


def test_descriptors_are_closed_with_the_last_reference(machine: Machine) -> None:
    file = open_file(machine.territory, "train.py")
    read, descriptor = file.read, file._descriptor
    del file
    assert read(0, 4) == b"code"
    del read
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(descriptor)


def test_a_large_file_is_read_by_range_in_pieces_of_one_size(machine: Machine) -> None:
    path = machine.project / "weights.bin"
    with path.open("wb") as made:
        made.truncate(8 << 30)
        made.seek((8 << 30) - 3)
        made.write(b"end")
    if path.stat().st_blocks * 512 > 1 << 30:
        pytest.skip("no sparse files here")
    file = open_file(machine.territory, "weights.bin")
    assert file.size == 8 << 30
    assert len(file.read(0, 8 << 30)) == files.PIECE
    assert file.read((8 << 30) - 3, 100) == b"end"
    assert file.read(8 << 30, 100) == b""


def test_the_tag_of_a_file_is_another_one_after_a_change(machine: Machine) -> None:
    before = open_file(machine.territory, "train.py").tag
    assert open_file(machine.territory, "train.py").tag == before
    (machine.project / "train.py").write_text("other code")
    assert open_file(machine.territory, "train.py").tag != before


# Folders


def listed(machine: Machine, path: str = "") -> dict[str, str]:
    entries = list_folder(machine.territory, path).entries
    return {entry.name: "secret" if entry.secret else entry.kind for entry in entries}


@pytest.mark.usefixtures("opener")
def test_a_folder_is_listed_with_folders_first_and_links_as_what_they_lead_to(machine: Machine) -> None:
    pipe(machine)
    machine.make("work/proj/.env")
    links(a_picture="plots/loss.png", a_folder="plots", out="{top}/secret.txt", env=".env")(machine)
    found = listed(machine)
    assert found == {
        "plots": "folder",
        ".env": "secret",
        "a_folder": "folder",
        "a_picture": "file",
        "env": "secret",
        "out": "link",
        "pipe": "other",
        "train.py": "file",
    }
    assert next(iter(found)) == "plots"


def test_names_that_are_not_unicode_are_left_out_of_a_list(machine: Machine) -> None:
    try:
        (machine.project / os.fsdecode(b"caf\xe9")).write_text("x")
    except OSError:
        pytest.skip("this file system has names of Unicode only")
    assert list(listed(machine)) == ["plots", "train.py"]


def test_a_long_list_is_cut_and_says_so(machine: Machine) -> None:
    for number in range(9):
        machine.make(f"work/proj/many/{number}")
    found = list_folder(machine.territory, "many", most=5)
    assert [entry.name for entry in found.entries] == ["0", "1", "2", "3", "4"]
    assert found.more
    assert not list_folder(machine.territory, "many").more


@pytest.mark.parametrize(("path", "why"), [("train.py", "not_a_folder"), ("absent", "not_found"), ("../..", "outside")])
def test_only_folders_of_the_session_are_listed(machine: Machine, path: str, why: str) -> None:
    with pytest.raises(FileRefused) as refused:
        list_folder(machine.territory, path)
    assert refused.value.why == why


def test_a_file_is_described_with_its_size_and_time(machine: Machine) -> None:
    os.utime(machine.project / "train.py", (0, 1_700_000_000))
    place, entry = look(machine.territory, "train.py")
    assert place.path == str(machine.project / "train.py")
    assert (entry.name, entry.kind, entry.size, entry.modified) == ("train.py", "file", 4, 1_700_000_000_000)


@pytest.fixture
def unreadable(machine: Machine) -> Iterator[Path]:
    path = machine.make("work/proj/locked.txt")
    path.chmod(0)
    yield path
    path.chmod(stat.S_IRUSR)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_is_not_for_the_user_of_the_gateway_is_refused(machine: Machine, unreadable: Path) -> None:
    with pytest.raises(FileRefused) as refused:
        machine.read(unreadable.name)
    assert refused.value.why == "unreadable"


def test_the_kernel_opens_where_it_can() -> None:
    os.close(open_beneath("/", ("usr",), files.FOLDER))
