"""The places that a fence opens, from the configuration's wishes and the places of a machine."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.config.agent_search import _TABLE
from acp_gateway.errors import AgentError
from acp_gateway.fence import places, plan
from acp_gateway.fence.paths import follow
from acp_gateway.fence.plan import Fence, FenceOptions, Wanted, check, choose, landlock_rules, refusals, remedy
from acp_gateway.fence.start import fenced


class Machine:
    """A file system below a folder, with a home, a workspace and what the gateway keeps."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("home/.ssh", "home/.local/bin", "work", "state/homes/bob", "tmp", "tools/bin", "tools/lib"):
            (root / folder).mkdir(parents=True)
        (root / "tools/bin/agent").write_text("#!/bin/sh\n")
        self.wanted = Wanted(
            agent="a",
            program=str(root / "tools/bin/agent"),
            command=["agent"],
            environment={"PATH": f"{root}/home/.local/bin:/usr/bin", "HOME": str(root / "home")},
            cwd=str(root / "work"),
            temporary=str(root / "tmp"),
            options=FenceOptions(
                value="on",
                scratch="",
                workspaces=[(str(root / "work"), True)],
                private=[str(root / "state")],
                user_home=str(root / "home"),
            ),
        )

    def fence(self, by: Any = "landlock", **changes: Any) -> Fence:
        options = {name: changes.pop(name) for name in [*changes] if hasattr(self.wanted.options, name)}
        changed = replace(self.wanted.options, **options)
        return plan.plan(by, replace(self.wanted, options=changed, **changes))

    def refusal(self, **changes: object) -> str:
        with pytest.raises(AgentError) as refused:
            self.fence(**changes)
        return str(refused.value).replace(str(self.root), "")


def without_space(root: Path) -> None:
    """Skip a test of what finds paths in texts, where an unquoted space ends a path."""
    if " " in str(root):
        pytest.skip("TMPDIR has a space")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_an_agent_writes_in_its_workspaces_and_reads_programs(machine: Machine) -> None:
    fence, root = machine.fence(), machine.root
    for path, reads, writes in (
        ("work/new", True, True),
        ("tmp/new", True, True),
        ("tools/lib/library", True, False),
        ("home/.local/bin/tool", True, False),
        ("home/.bashrc", False, False),
        ("home/.ssh/id", False, False),
        ("state/secret", False, False),
        ("state/homes/bob/x", False, False),
    ):
        assert (fence.allows(str(root / path)), fence.allows(str(root / path), writing=True)) == (reads, writes), path
    assert fence.allows("/usr/bin/env")
    assert not fence.allows("/etc/shadow")
    assert not fence.allows(f"/proc/{os.getpid()}/environ", writing=True)


def test_a_workspace_to_read_is_not_written(machine: Machine) -> None:
    fence = machine.fence(workspaces=[(str(machine.root / "work"), False)])
    assert fence.allows(str(machine.root / "work/file"))
    assert not fence.allows(str(machine.root / "work/file"), writing=True)


def test_folders_in_a_workspace_that_are_needed_to_read_are_still_written(machine: Machine) -> None:
    for name in ("shop/venv/bin", "handbook"):
        (machine.root / "work" / name).mkdir(parents=True)
    cwd = str(machine.root / "work/shop")
    fence = machine.fence(
        cwd=cwd, readable=[cwd], environment={"PATH": f"{cwd}/venv/bin", "HOME": str(machine.root / "home")}
    )
    assert not [path for path in fence.read if path.startswith(str(machine.root / "work"))]


def test_a_workspace_to_read_in_one_to_write_stays_so_or_is_refused(machine: Machine) -> None:
    (machine.root / "work/handbook").mkdir()
    nested = [(str(machine.root / "work"), True), (str(machine.root / "work/handbook"), False)]
    fence = machine.fence("bubblewrap", workspaces=nested)
    assert str(machine.root / "work/handbook") in fence.read
    assert "/work/handbook is to be read only and is in a folder" in machine.refusal(workspaces=nested)


@pytest.mark.parametrize("option", ["workspaces", "writable", "readable"])
def test_a_link_that_the_agent_may_make_opens_nothing(option: str, machine: Machine) -> None:
    (machine.root / "private").mkdir()
    link = machine.root / "work/link"
    link.symlink_to(machine.root / "private")
    path = f"{link}/."
    work = (str(machine.root / "work"), True)
    wanted: object = {"workspaces": [work, (path, True)]}.get(option, [path])
    error = machine.refusal(**{option: wanted})
    assert "by the link /work/link, which the agent may change: name /private in" in error


@pytest.mark.parametrize("option", ["cwd", "workspaces", "writable", "readable", "PATH"])
def test_a_folder_that_another_agent_exchanges_for_a_link_after_its_check_opens_nothing(
    option: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, folder = machine.root / "private", machine.root / "work/folder"
    private.mkdir()
    folder.mkdir()
    real = os.path.realpath
    # All but the checks of links, one step after the other, sees a link.
    monkeypatch.setattr(os.path, "realpath", lambda path, **_: real(str(path).replace(str(folder), str(private))))
    changes = {
        "cwd": str(folder),
        "workspaces": [(str(machine.root / "work"), True), (str(folder), True)],
        "writable": [str(folder)],
        "readable": [str(folder)],
        "PATH": {"PATH": str(folder), "HOME": str(machine.root / "home")},
    }
    try:
        fence = machine.fence(**{option if option != "PATH" else "environment": changes[option]})
    except AgentError:
        return  # It starts in no folder that it may not read.
    assert option != "cwd"
    assert not [place for place in (*fence.read, *fence.write) if place.startswith(str(private))]


def test_a_link_from_a_workspace_into_it_is_followed(machine: Machine) -> None:
    (machine.root / "work/new").mkdir()
    (machine.root / "work/current").symlink_to("new")
    assert machine.fence(cwd=str(machine.root / "work/current")).cwd == str(machine.root / "work/new")


def test_links_and_programs_that_the_agent_may_make_open_nothing(machine: Machine) -> None:
    private, home, work = machine.root / "private/bin", machine.root / "state/homes/ann", machine.root / "work"
    private.mkdir(parents=True)
    (private / "tool").write_text("")
    (private / "tool").chmod(0o755)
    (home / ".local").mkdir(parents=True)
    (home / ".local/bin").symlink_to(private)
    (home / ".agent").symlink_to(private)
    (work / "bin").mkdir()
    (work / "bin/agent").write_text(f"#!{private}/tool\n")
    (work / "pyvenv.cfg").write_text(f"home = {private}\n")
    (work / "link").symlink_to(private)
    fence = machine.fence(
        home=str(home),
        own=["~/.agent/"],
        program=str(work / "bin/agent"),
        command=["agent", str(work / "link/tool")],
        environment={"PATH": f"{work}/link", "HOME": str(home)},
    )
    assert not fence.allows(str(private / "tool"))
    assert not fence.allows(str(private), writing=True)


def test_workspaces_of_others_are_hidden_also_in_trees_of_the_system(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("opt/bob", "real/ann/bob", "elsewhere"):
        (machine.root / name).mkdir(parents=True)
    monkeypatch.setattr(plan, "SYSTEM", (str(machine.root / "opt"),))
    (machine.root / "link").symlink_to(machine.root / "real")
    root = str(machine.root)
    assert not machine.fence(others=[f"{root}/opt/bob"]).allows(f"{root}/opt/bob/file")
    error = machine.refusal(workspaces=[(f"{root}/link/ann", True)], others=[f"{root}/real/ann/bob"])
    assert "write /real/ann, which contains the workspace /real/ann/bob, and its clients may not use that" in error


def test_a_circle_of_links_leads_nowhere(machine: Machine) -> None:
    (machine.root / "circle").symlink_to("circle")
    assert follow(f"{machine.root}/circle", [str(machine.root / "work")])[1]


def test_own_folders_and_files_with_json_are_made_and_other_files_are_not(machine: Machine) -> None:
    (machine.root / "home/.kept.json").write_text("kept")
    fence = machine.fence(own=["~/.agent/", "~/.agent.json", "~/.kept.json", "~/.agent.db"])
    assert (machine.root / "home/.agent").is_dir()
    assert fence.allows(str(machine.root / "home/.agent/session"), writing=True)
    made = machine.root / "home/.agent.json"
    assert (made.read_text(), made.stat().st_mode & 0o777) == ("{}\n", 0o600)
    assert fence.allows(str(made), writing=True)
    assert (machine.root / "home/.kept.json").read_text() == "kept"
    assert not (machine.root / "home/.agent.db").exists()


@pytest.mark.parametrize(("runner", "cache"), [("npx", ".npm/_npx"), ("uvx", ".cache/uv/x"), ("pnpx", ".cache/pnpm/x")])
def test_a_runner_of_packages_writes_its_cache(runner: str, cache: str, machine: Machine) -> None:
    assert machine.fence(command=[runner, "an-agent"]).allows(str(machine.root / "home" / cache), writing=True)


@pytest.mark.parametrize("runner", places.RUNNERS)
def test_a_runner_of_packages_lets_an_agent_change_no_program_on_the_path_of_a_person(
    runner: str, machine: Machine
) -> None:
    fence = machine.fence(command=[runner, "an-agent"])
    searched = [place for place in _TABLE["places"] if place.startswith("~/") and "*" not in place]
    assert "~/.bun/bin" in searched
    for place in searched:
        assert not fence.allows(str(machine.root / "home" / place[2:] / "git"), writing=True), place


def test_without_a_network_no_sockets_of_resolvers_are_opened(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolver = machine.root / "run/nscd"
    resolver.mkdir(parents=True)
    monkeypatch.setattr(plan, "RESOLVERS", (str(resolver),))
    for network, opened in (("on", True), ((443,), True), ("off", False)):
        assert machine.fence(network=network).allows(str(resolver / "socket")) is opened, network


def test_with_a_home_of_its_own_an_agent_has_nothing_of_the_user(machine: Machine) -> None:
    home = machine.root / "state/homes/ann"
    home.mkdir()
    fence = machine.fence(home=str(home), own=["~/.agent/"])
    assert fence.allows(str(home / ".bashrc"), writing=True)
    assert not fence.allows(str(machine.root / "home/.local/bin"), writing=True)
    assert not fence.allows(str(machine.root / "state/homes/bob"))
    assert (home / ".agent").is_dir()


def test_a_link_opens_what_it_leads_to(machine: Machine) -> None:
    (machine.root / "elsewhere").mkdir()
    (machine.root / "link").symlink_to(machine.root / "elsewhere")
    fence = machine.fence(readable=[str(machine.root / "link")])
    assert str(machine.root / "elsewhere") in fence.read
    assert str(machine.root / "link") not in fence.read


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        (
            {"readable": ["~/.ssh/config"]},
            "is to let it read /home/.ssh/config, which no fenced agent may use (it is in /home/.ssh)",
        ),
        (
            {"writable": ["ROOT/state/x"]},
            "is to let it write /state/x, which no fenced agent may use (it is in /state)",
        ),
        ({"readable": ["ROOT"]}, "let it read , which contains"),
        ({"readable": ["ROOT/bare"], "user_home": "ROOT/bare"}, "let it read /bare, which contains /bare/.ssh"),
        ({"writable": ["ROOT/bare/.config"], "user_home": "ROOT/bare"}, "write /bare/.config, which contains"),
        (
            {"workspaces": [("ROOT/home", True)]},
            "let it write /home, which contains /home/.ssh: name a folder below it",
        ),
    ],
)
def test_what_no_fenced_agent_may_use_is_not_opened_by_the_configuration(
    changes: dict[str, object], error: str, machine: Machine
) -> None:
    (machine.root / "home/.ssh/config").write_text("")
    (machine.root / "state/x").write_text("")
    (machine.root / "bare/.config").mkdir(parents=True)
    text = str(machine.root)
    spelled: dict[str, object] = {
        name: values.replace("ROOT", text)
        if isinstance(values, str)
        else [
            value.replace("ROOT", text) if isinstance(value, str) else (value[0].replace("ROOT", text), value[1])
            for value in values  # type: ignore[attr-defined]
        ]
        for name, values in changes.items()
    }
    assert error in machine.refusal(**spelled)


@pytest.mark.parametrize(
    ("writable", "protected", "found"),
    [
        ("ROOT/tool", "ROOT/tool/.venv/bin/python", "/tool/.venv/bin/python"),
        ("ROOT/tool/package/fence", "ROOT/tool/package", "/tool/package"),
        ("ROOT/tool", "ROOT/elsewhere/link/python", "/tool/.venv/bin/python"),
        ("ROOT/elsewhere", "ROOT/elsewhere/link/python", "/elsewhere/link"),
        ("ROOT/tool", "ROOT/tool/missing", "/tool/missing"),
        ("ROOT/home/.config/systemd", "", "/home/.config/systemd"),
        ("~/.config/systemd/user", "", "/home/.config/systemd"),
        ("~/.bashrc", "", "/home/.bashrc"),
    ],
)
def test_no_fenced_agent_writes_what_the_gateway_runs(
    writable: str, protected: str, found: str, machine: Machine
) -> None:
    for name in ("tool/.venv/bin/python", "tool/package/fence/x", "home/.config/systemd/user/x", "home/.bashrc"):
        (machine.root / name).parent.mkdir(parents=True, exist_ok=True)
        (machine.root / name).write_text("")
    (machine.root / "elsewhere").mkdir()
    (machine.root / "elsewhere/link").symlink_to("../tool/.venv/bin")
    wanted = {"writable": [writable.replace("ROOT", str(machine.root))]}
    if protected:
        places = {protected.replace("ROOT", str(machine.root)): "of the hook"}
        assert machine.fence(**wanted)
        error = machine.refusal(**wanted, protected=places)
    else:
        error = machine.refusal(**wanted)
    what = "of the hook" if protected else "what logins and services start"
    assert f"and {found} ({what}) is run or trusted outside of every fence: keep that elsewhere" in error
    check("a", replace(machine.wanted.options, readable=wanted["writable"]), str(machine.root / "home"))


def test_links_of_the_machine_are_not_made_in_a_fence(machine: Machine) -> None:
    os.symlink("tools", machine.root / "spelled")
    command = ["agent", "/proc/self/exe", "/dev/fd", f"{machine.root}/spelled/bin/agent"]
    # The interpreter of the agent is in /bin, which may be a link.
    assert {*machine.fence(command=command).links} - {"/bin"} == {f"{machine.root}/spelled"}


def test_a_project_of_the_files_that_shells_start_is_written(machine: Machine) -> None:
    (machine.root / "work/bashrc").write_text("")
    (machine.root / "home/.bashrc").symlink_to(machine.root / "work/bashrc")
    assert machine.fence().allows(str(machine.root / "work/bashrc"), writing=True)


def test_a_python_that_a_runner_has_installed_is_not_written_if_it_runs_the_gateway(machine: Machine) -> None:
    python = machine.root / "home/.local/share/uv/python/3.12/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text("")
    assert machine.fence(command=["uvx", "x"]).allows(str(python), writing=True)
    fence = machine.fence(command=["uvx", "x"], protected={str(python): "its Python"})
    assert fence.allows(str(python))
    assert not fence.allows(str(python), writing=True)


def test_an_agent_that_the_gateway_has_installed_in_its_state_is_read_and_nothing_beside_it(machine: Machine) -> None:
    installed = machine.root / "state/installed-agents/a"
    (installed / "1").mkdir(parents=True)
    (installed / "1/agent").write_text("#!/bin/sh\n")
    fence = machine.fence(program=str(installed / "1/agent"), installed=str(installed))
    assert fence.allows(str(installed / "1/library"))
    assert not fence.allows(str(installed / "1/library"), writing=True)
    assert not fence.allows(str(machine.root / "state/installed-agents/b"))


def test_an_agent_starts_only_in_a_folder_that_it_may_read(machine: Machine) -> None:
    assert "/home, in which it is to start: take cwd out of" in machine.refusal(cwd=str(machine.root / "home"))


def test_a_workspace_in_one_of_others_in_a_folder_to_read_is_the_only_thing_opened_there(machine: Machine) -> None:
    for name in ("area/code/ann", "area/code/bob", "area/lib"):
        (machine.root / name).mkdir(parents=True)
    root = f"{machine.root}/area"
    for writing in (True, False):
        fence = machine.fence(
            workspaces=[(f"{root}/code/ann", writing)], others=[f"{root}/code"], readable=[root], cwd=f"{root}/code/ann"
        )
        rules = landlock_rules(fence)
        opened = {path for path in (*rules["read"], *rules["write"]) if path.startswith(root)}
        assert opened == {f"{root}/lib", f"{root}/code/ann"}
        assert fence.allows(f"{root}/code/ann/x", writing=True) is writing
        assert fence.allows(f"{root}/lib/x")
        assert not fence.allows(f"{root}/code/x")
        assert not fence.allows(f"{root}/code/bob/x")


def test_every_place_of_secrets_is_refused(machine: Machine) -> None:
    home = machine.root / "home"
    listed = [path for path in places.SECRETS if path.startswith("~/")]
    assert len(listed) >= 40
    for path in listed:
        (home / path[2:]).mkdir(parents=True, exist_ok=True)
    fence = machine.fence()
    for path in listed:
        assert not fence.allows(str(home / path[2:] / "x")), path
        assert "which no fenced agent may use" in machine.refusal(readable=[path]), path


def test_landlock_is_told_the_names_around_a_hidden_place(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    etc = machine.root / "etc"
    for name in ("hosts", "shadow", "deep/open", "deep/secret"):
        (etc / name).parent.mkdir(parents=True, exist_ok=True)
        (etc / name).write_text("")
    (etc / "link").symlink_to(etc / "shadow")
    monkeypatch.setattr(plan, "SYSTEM", (str(etc),))
    monkeypatch.setattr(plan, "SECRETS", (str(etc / "shadow"), str(etc / "deep/secret")))
    rules = landlock_rules(machine.fence())
    assert {path for path in rules["read"] if path.startswith(str(etc))} == {str(etc / "hosts"), str(etc / "deep/open")}
    assert set(rules["look"]) == {str(etc), str(etc / "deep")}


def test_the_devices_of_graphics_processors_are_opened(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nvidia0", "nvidiactl", "sda"):
        (machine.root / name).write_text("")
    monkeypatch.setattr(plan, "ACCELERATORS", (f"{machine.root}/nvidia*",))
    opened = [path for path in machine.fence().devices if path.startswith(str(machine.root))]
    assert opened == [f"{machine.root}/nvidia0", f"{machine.root}/nvidiactl"]


def test_the_configuration_of_git_is_read_without_its_passwords(machine: Machine) -> None:
    folder = machine.root / "home/.config/git"
    folder.mkdir(parents=True)
    for name in ("config", "credentials"):
        (folder / name).write_text("")
        fence = machine.fence()
        assert fence.allows(str(folder / "config")), name
    assert not fence.allows(str(folder / "credentials"))
    assert str(folder / "config") in landlock_rules(fence)["read"]


def test_what_a_script_starts_is_found_in_it(machine: Machine) -> None:
    root = machine.root
    without_space(root)
    for name in ("env/bin/python", "env/lib/x", "code/agent.py", "code/other.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
    (root / "tools/bin/agent").write_text(f'#!/bin/sh\nexec "{root}/env/bin/python" {root}/code/agent.py $HOME/x\n')
    fence = machine.fence()
    for place in ("env/lib", "code/agent.py"):
        assert fence.allows(str(root / place)), place
    for place in ("home/x", "code/other.py"):
        assert not fence.allows(str(root / place)), place
    written = root / "work/agent"
    written.write_text((root / "tools/bin/agent").read_text())
    assert not machine.fence(program=str(written)).allows(str(root / "code/agent.py"))


def test_programs_are_found_by_links_interpreters_and_arguments(machine: Machine) -> None:
    root = machine.root
    package = root / "prefix/lib/node_modules/agent/bin"
    package.mkdir(parents=True)
    (package / "agent.js").write_text("#!/usr/bin/env interpreter\n")
    (root / "prefix/bin").mkdir()
    (root / "prefix/bin/agent").symlink_to(package / "agent.js")
    (root / "runtime/bin").mkdir(parents=True)
    (root / "runtime/lib").mkdir()
    (root / "runtime/bin/interpreter").write_text("#!/bin/sh\n")
    (root / "runtime/bin/interpreter").chmod(0o755)
    (root / "scripts").mkdir()
    (root / "scripts/main.py").write_text("")
    venv = root / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin/python").write_text("")
    (venv / "pyvenv.cfg").write_text(f"home = {root}/python/bin\n")
    (root / "python/bin").mkdir(parents=True)
    fence = machine.fence(
        program=str(root / "prefix/bin/agent"),
        command=["agent", str(root / "scripts/main.py"), str(venv / "bin/python")],
        environment={"PATH": f"{root}/runtime/bin", "HOME": str(root / "home")},
    )
    for place in ("prefix/lib/node_modules/other", "runtime/lib", "scripts/main.py", "venv/lib", "python/lib"):
        assert fence.allows(str(root / place)), place
    assert not fence.allows(str(root / "scripts/other.py"))


@pytest.mark.parametrize(
    ("value", "bubblewrap", "landlock", "chosen"),
    [
        ("on", True, True, "bubblewrap"),
        ("on", False, True, "landlock"),
        ("landlock", True, True, "landlock"),
        ("bubblewrap", True, False, "bubblewrap"),
        (
            "bubblewrap",
            False,
            True,
            "bubblewrap does not work here: install it (in Debian: apt-get install bubblewrap)",
        ),
        ("landlock", True, False, "this kernel has no Landlock"),
        ("on", False, False, "this machine has no means for a fence, and bubblewrap is one: install"),
    ],
)
def test_the_best_means_of_the_machine_is_chosen(value: str, bubblewrap: bool, landlock: bool, chosen: str) -> None:
    assert (choose(value, bubblewrap=bubblewrap, landlock=landlock) or remedy(value)).startswith(chosen)
    # There is something better to do than to take the fence away.
    assert 'fence = "off"' not in remedy(value)


@pytest.mark.parametrize("value", ["on", "bubblewrap", "landlock"])
def test_a_system_that_is_not_linux_refuses_to_start_a_fenced_agent_and_names_the_remedy(
    value: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    options = replace(machine.wanted.options, value=value, scratch=str(machine.root / "scratch"))
    with pytest.raises(AgentError) as refused:
        fenced("a", "/bin/agent", ["agent"], {}, "/", options, find_bubblewrap=lambda: None, abi=lambda: 0)
    assert str(refused.value) == (
        'the agent a cannot be started: fences need Linux, with Landlock or bubblewrap, or set fence = "off", '
        "with which an agent may read all that its user may"
    )
    assert not (machine.root / "scratch").exists()


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("Error: EACCES: permission denied, open 'ROOT/home/data'", "readable"),
        ("Error: EROFS: read-only file system, mkdir 'ROOT/home/data'", "writable"),
        ("PermissionError: [Errno 13] Permission denied: 'ROOT/home/data'", "readable"),
        ("cat: ROOT/home/data: Permission denied", "readable"),
        ("touch: cannot touch 'ROOT/home/data': Read-only file system", "writable"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'ROOT/home/data'", "readable"),
        ("OSError: [Errno 30] Read-only file system: 'ROOT/tools/lib/new'", "writable"),
        ("cat: ROOT/work/data: Permission denied", None),
        ("agent.sh: 2: exec: ROOT/home/prefix/bin/node: not found", "readable"),
        ("all is well in ROOT/home/data", None),
    ],
)
def test_what_a_fence_refused_is_read_from_stderr(line: str, option: str | None, machine: Machine) -> None:
    without_space(machine.root)
    (machine.root / "home/data").write_text("")
    (machine.root / "home/prefix/bin").mkdir(parents=True)
    (machine.root / "home/prefix/bin/node").write_text("")
    found = refusals(machine.fence(), [line.replace("ROOT", str(machine.root))] * 3)
    assert [needed for _, needed in found] == ([] if option is None else [option])
    assert not found or os.path.basename(found[0][0]) in ("data", "new", "prefix")


def test_a_listing_is_bounded(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    many = machine.root / "many"
    many.mkdir()
    for number in range(4):
        (many / str(number)).write_text("")
    monkeypatch.setattr(plan, "MAX_ENTRIES", 3)
    monkeypatch.setattr(plan, "SYSTEM", (str(many),))
    monkeypatch.setattr(plan, "SECRETS", (str(many / "0"),))
    with pytest.raises(AgentError, match="has more than 3 entries"):
        landlock_rules(machine.fence())
