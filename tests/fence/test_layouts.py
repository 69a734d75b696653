"""Places of others in the folders around what a fence opens: in each layout they stay closed, by each mechanism."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from acp_gateway.errors import AgentError
from acp_gateway.fence import bubblewrap, landlock
from acp_gateway.fence.plan import FenceOptions
from acp_gateway.fence.start import fenced

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="fences are Linux's")

MEANS = [
    pytest.param("landlock", marks=pytest.mark.skipif(landlock.abi() == 0, reason="this kernel has no Landlock")),
    pytest.param("bubblewrap", marks=pytest.mark.skipif(bubblewrap.find() is None, reason="bubblewrap is not there")),
]

CLOSED = (
    "area/code/bob/secret",
    "area/code/bob/bin/secret",
    "state/secret",
    "state/homes/bob/secret",
    "config.toml",
    "home/.ssh/secret",
    "home/.local/share/opencode/secret",
    "home/secret",
)
"""Files of others, of the gateway and of its user, below the folder around all."""

PROBE = """#!/bin/sh
# {named}
echo begun
echo new > "$WORK/new"
# A line each, since TMPDIR may have a space.
IFS="
"
for file in $CLOSED; do
    cat "$file"
    echo changed >> "$file"
    echo changed > "${{file%/*}}/made"
done
cat "$WORK/shown"
"""


@dataclass
class Layout:
    """A command and options that name something in the folder around the places of others."""

    root: Path
    program: str = "elsewhere/agent"
    started: str | None = None
    """The path by which the program is started, if that is another one."""
    named: str = ""
    """Text in the agent's script."""
    arguments: list[str] = field(default_factory=list)
    path: str = "/usr/bin:/bin"
    cwd: str = "area/code/ann"
    work: str = "area/code/ann"
    workspaces: dict[str, bool] = field(default_factory=lambda: {"area/code/ann": True})
    others: list[str] = field(default_factory=lambda: ["area/code/bob"])
    readable: list[str] = field(default_factory=list)
    writable: list[str] = field(default_factory=list)

    def place(self, name: str) -> str:
        """Return the path of a file in the layout; its folder is made."""
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        return str(self.root / name)

    def write(self, name: str, text: str = "") -> str:
        path = self.place(name)
        Path(path).write_text(text)
        return path

    def run(self, by: str, *, homes: bool) -> str:
        """Run the probe, and return what it printed. Raises `AgentError`."""
        for name in CLOSED:
            self.write(name, "the secret")
        self.write(self.program, PROBE.format(named=self.named))
        (self.root / self.program).chmod(0o755)
        options = FenceOptions(
            value=by,
            workspaces=[(str(self.root / name), writing) for name, writing in self.workspaces.items()],
            others=[str(self.root / name) for name in self.others],
            private=[str(self.root / "state"), str(self.root / "config.toml")],
            user_home=str(self.root / "home"),
            home=str(self.root / "state/homes/ann") if homes else None,
            scratch=str(self.root / "state/scratch"),
            readable=[str(self.root / name) for name in self.readable],
            writable=[str(self.root / name) for name in self.writable],
        )
        environment = {
            "PATH": self.path,
            "HOME": str(self.root / "home"),
            "WORK": str(self.root / self.work),
            "CLOSED": "\n".join(str(self.root / name) for name in CLOSED),
        }
        program, cwd = str(self.root / (self.started or self.program)), str(self.root / self.cwd)
        start = fenced("a", program, ["agent", *self.arguments], environment, cwd, options)
        with start.order(os.getpid(), {}) as order:
            command, environment = start.launched_by(order)
            done = subprocess.run(
                command, env=environment, cwd=cwd, capture_output=True, text=True, pass_fds=[order.fileno()]
            )
        start.clean_up()
        assert done.returncode == 0, done.stderr
        return done.stdout


LAYOUTS: dict[str, Callable[[Layout], None]] = {}
REFUSED: dict[str, str] = {}
"""Layouts in which the agent is not started, with words of the error."""


def layout(refused: str | None = None) -> Callable[[Callable[[Layout], None]], Callable[[Layout], None]]:
    def add(function: Callable[[Layout], None]) -> Callable[[Layout], None]:
        LAYOUTS[function.__name__] = function
        if refused is not None:
            REFUSED[function.__name__] = refused
        return function

    return add


@layout()
def a_script_beside_the_workspaces(it: Layout) -> None:
    it.program = "area/code/agent"


@layout()
def a_script_around_all(it: Layout) -> None:
    it.program = "agent"


@layout()
def a_script_in_an_installation_around_the_workspaces(it: Layout) -> None:
    it.program = "area/code/bin/agent"
    it.place("area/code/lib/x")


@layout()
def a_script_in_an_installation_around_state_and_configuration(it: Layout) -> None:
    it.program = "bin/agent"
    it.place("lib/x")


@layout()
def a_script_in_a_package_of_node_around_all(it: Layout) -> None:
    it.program = "dist/agent"
    it.write("package.json")


@layout()
def a_script_by_a_link(it: Layout) -> None:
    it.program = "area/code/tools/agent"
    it.place("area/code/bin/x")
    os.symlink("../tools/agent", it.root / "area/code/bin/link")
    it.arguments = [str(it.root / "area/code/bin/link")]


@layout()
def a_program_and_a_workspace_by_links(it: Layout) -> None:
    it.place("real/x")
    it.place("area/code/ann/x")
    os.symlink("real", it.root / "tools")
    os.symlink("area/code", it.root / "short")
    os.symlink("agent", it.root / "real/link")
    it.program, it.started = "real/agent", "tools/link"
    it.workspaces = {"short/ann": True}
    it.cwd = it.work = "short/ann"


@layout()
def a_script_in_the_home(it: Layout) -> None:
    it.program = "home/agent.py"


@layout()
def a_program_in_the_local_folder_of_the_home(it: Layout) -> None:
    it.program = "home/.local/bin/agent"
    it.place("home/.local/lib/x")


@layout()
def a_program_in_the_bin_of_the_home(it: Layout) -> None:
    it.program = "home/bin/agent"
    it.place("home/lib/x")


@layout("is in a workspace of others, who may change it")
def a_script_in_the_workspace_of_others(it: Layout) -> None:
    it.program = "area/code/bob/agent"


@layout("is in a workspace of others, who may change it")
def an_interpreter_in_the_workspace_of_others(it: Layout) -> None:
    it.path = it.place("area/code/bob/bin") + ":/usr/bin:/bin"
    it.arguments = [it.write("area/code/bob/bin/other.py")]


@layout()
def a_file_in_the_arguments_beside_the_workspaces(it: Layout) -> None:
    it.arguments = [it.write("area/code/settings.json")]


@layout()
def a_file_in_the_arguments_around_all(it: Layout) -> None:
    it.arguments = ["--settings", it.write("settings.json")]


@layout()
def a_folder_in_the_arguments_around_the_workspaces(it: Layout) -> None:
    it.arguments = [it.place("area/code")]


@layout()
def a_folder_in_the_arguments_around_all(it: Layout) -> None:
    it.arguments = [str(it.root)]


@layout()
def a_script_that_names_a_file_beside_the_workspaces(it: Layout) -> None:
    it.named = it.write("area/code/main.py")


@layout()
def a_script_that_names_a_file_of_others(it: Layout) -> None:
    it.named = it.write("area/code/bob/secret")


@layout()
def a_script_that_names_the_folder_around_all(it: Layout) -> None:
    it.named = f"{it.root}/ {it.root}/area/code {it.root}/home"


@layout()
def a_path_with_folders_around_and_in_workspaces(it: Layout) -> None:
    it.path = f"{it.root}:{it.root}/area/code:{it.root}/area/code/bob/bin:{it.root}/home:/usr/bin:/bin"


@layout()
def a_virtual_environment_of_a_python_of_others(it: Layout) -> None:
    it.program = "venv/bin/agent"
    it.write("venv/pyvenv.cfg", f"home = {it.root}/area/code/bob/bin\n")


@layout()
def a_readable_folder_around_the_workspaces(it: Layout) -> None:
    it.readable = ["area/code"]


@layout()
def a_readable_folder_of_others(it: Layout) -> None:
    it.readable = ["area/code/bob/bin"]


@layout("contains")
def a_readable_folder_around_all(it: Layout) -> None:
    it.readable = [""]


@layout("contains the workspace ROOT/area/code/bob")
def a_writable_folder_around_the_workspaces(it: Layout) -> None:
    it.writable = ["area/code"]


@layout("is in the workspace ROOT/area/code/bob")
def a_writable_folder_of_others(it: Layout) -> None:
    it.writable = ["area/code/bob/bin"]


@layout()
def a_workspace_to_read_around_the_one_of_others(it: Layout) -> None:
    it.workspaces = {"area/code/ann": True, "area/code": False}


@layout()
def a_workspace_in_the_one_of_others(it: Layout) -> None:
    it.others = ["area/code"]
    it.readable = ["area"]


@layout("take cwd out of [agents.a]")
def a_start_beside_the_workspaces(it: Layout) -> None:
    it.cwd = "area/code"


@pytest.mark.parametrize("homes", [False, True], ids=["one home", "homes"])
@pytest.mark.parametrize("by", MEANS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_what_belongs_to_others_is_closed_wherever_it_lies(name: str, by: str, homes: bool, tmp_path: Path) -> None:
    it = Layout(tmp_path)
    for file in CLOSED:
        it.write(file)
    LAYOUTS[name](it)
    it.write("area/code/ann/shown", "its own")
    if by == "landlock" and it.workspaces.get("area/code") is False:
        it.workspaces = {"area/code": False}
        it.cwd = "area/code"
    if name in REFUSED:
        with pytest.raises(AgentError) as refused:
            it.run(by, homes=homes)
        assert REFUSED[name].replace("ROOT", str(tmp_path)) in str(refused.value)
        return
    assert it.run(by, homes=homes) == "begun\nits own"
    assert {(tmp_path / file).read_text() for file in CLOSED} == {"the secret"}
    assert not [*tmp_path.rglob("made")]
    assert (tmp_path / "area/code/ann/new").exists() is any(it.workspaces.values())
