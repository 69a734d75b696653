"""In which folders sessions may work, by what is on the disk, and the words for one that may not be where it wants."""

import json
import os
import shlex
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from acp_gateway.config.load import WorkspaceSection
from acp_gateway.core.requests import DirectoryCheckResult, Location, Problem
from acp_gateway.gateway.workspaces import PATH_SIZE, SHOWN, Workspace, containing, directory_check, workspaces_of

HOST = socket.gethostname()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home directory of the gateway's user, which is in no workspace."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return home


@pytest.fixture
def srv(tmp_path: Path) -> Path:
    """A folder with a project, a file, and something beside the workspaces."""
    srv = tmp_path / "srv"
    (srv / "proj" / "sub").mkdir(parents=True)
    (srv / "proj" / "file").touch()
    (srv / "project").mkdir()
    (srv / "other").mkdir()
    (tmp_path / "secret").mkdir()
    return srv


def places(srv: Path, *names: str) -> tuple[Workspace, ...]:
    """Workspaces that are called what their folders are."""
    return tuple(Workspace(name, str(srv / name)) for name in names)


def problem_of(
    directories: Sequence[str], workspaces: Sequence[Workspace], allowed: Sequence[str] | None = None
) -> Problem:
    """Return the problem of directories that have no workspace then."""
    findings = directory_check(directories, workspaces, allowed)
    assert findings.problem is not None
    assert findings.workspace is None
    return findings.problem


# Which workspaces there are


def test_the_workspaces_are_those_of_the_configuration() -> None:
    sections = {name: WorkspaceSection(root=Path(root)) for name, root in (("b", "/srv/b"), ("a", "/srv"))}
    found = (Workspace("b", "/srv/b"), Workspace("a", "/srv"))
    assert workspaces_of(sections, Path("/elsewhere")) == workspaces_of(sections, None) == found


def test_the_default_workspace_is_the_agents_cwd_or_else_the_home_folder(home: Path) -> None:
    assert workspaces_of({}, Path("/srv/agent")) == (Workspace(None, "/srv/agent"),)
    assert workspaces_of({}, Path("/")) == (Workspace(None, "/"),)
    assert workspaces_of({}, None) == (Workspace(None, str(home)),)


def test_a_home_folder_that_is_the_root_is_not_a_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/")
    assert workspaces_of({}, None) == ()


def test_a_user_without_a_home_folder_has_no_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    assert workspaces_of({}, None) == ()


# What lies in one


def test_a_directory_in_a_workspace_is_not_a_problem(srv: Path) -> None:
    workspaces = places(srv, "proj")
    for directory in (srv / "proj", srv / "proj" / "sub", f"{srv}/proj/", f"{srv}//proj/./sub/", f"/{srv}/proj"):
        assert directory_check([str(directory)], workspaces) == DirectoryCheckResult(
            None, "proj", Location(str(srv / "proj"), "proj")
        )


def test_the_root_of_the_disk_may_be_a_workspace(srv: Path) -> None:
    workspaces = (Workspace("all", "/"), *places(srv, "proj"))
    assert directory_check(["/"], workspaces).workspace == "all"
    assert directory_check([str(srv)], workspaces).workspace == "all"
    assert directory_check([str(srv / "proj" / "sub")], workspaces).workspace == "proj"


@pytest.mark.parametrize("order", [("proj", "inner"), ("inner", "proj")])
def test_of_nested_workspaces_the_innermost_one_counts(srv: Path, order: tuple[str, ...]) -> None:
    roots = {"proj": srv / "proj", "inner": srv / "proj" / "sub"}
    (srv / "proj" / "sub" / "x").mkdir()
    workspaces = [Workspace(name, str(roots[name])) for name in order]
    assert directory_check([str(srv / "proj" / "sub" / "x")], workspaces).workspace == "inner"
    assert directory_check([str(srv / "proj" / "sub")], workspaces).workspace == "inner"
    assert directory_check([str(srv / "proj")], workspaces).workspace == "proj"
    # A token for the outer workspace alone may use all of it.
    assert directory_check([str(srv / "proj" / "sub" / "x")], workspaces, ["proj"]).workspace == "proj"
    assert directory_check([str(srv / "proj")], workspaces, ["inner"]).problem is not None


def test_a_name_that_begins_like_a_workspace_is_not_in_it(srv: Path) -> None:
    assert problem_of([str(srv / "project")], places(srv, "proj")).data["reason"] == "outside_workspaces"


def test_what_a_link_leads_to_counts_and_not_where_it_is(srv: Path, tmp_path: Path) -> None:
    (srv / "proj" / "out").symlink_to(tmp_path / "secret")
    (srv / "proj" / "far").symlink_to("out/..")
    (srv / "other" / "in").symlink_to(srv / "proj" / "sub")
    (srv / "proj" / "across").symlink_to(srv / "other")
    workspaces = places(srv, "proj", "other")
    for name in ("out", "far", "out/deeper"):
        assert problem_of([str(srv / "proj" / name)], workspaces).data["reason"] == "outside_workspaces"
    assert directory_check([str(srv / "other" / "in")], workspaces).workspace == "proj"
    assert directory_check([str(srv / "proj" / "across")], workspaces).workspace == "other"
    assert directory_check([str(srv / "proj" / "across")], workspaces, ["proj"]).problem is not None


def test_the_root_of_a_workspace_may_be_a_link_itself(srv: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(srv / "proj")
    workspaces = (Workspace("w", str(link)),)
    for directory in (link, link / "sub", srv / "proj" / "sub"):
        assert directory_check([str(directory)], workspaces) == DirectoryCheckResult(
            None, "w", Location(str(link), "w")
        )
    assert problem_of([str(srv)], workspaces).data["allowed"] == [str(link)]


def test_a_link_that_leads_nowhere_is_where_it_would_lead(srv: Path, tmp_path: Path) -> None:
    (srv / "proj" / "inside").symlink_to(srv / "proj" / "gone")
    (srv / "proj" / "outside").symlink_to(tmp_path / "gone")
    (srv / "proj" / "circle").symlink_to(srv / "proj" / "circle")
    workspaces = places(srv, "proj")
    assert problem_of([str(srv / "proj" / "inside")], workspaces).data["reason"] == "no_such_directory"
    assert problem_of([str(srv / "proj" / "outside")], workspaces).data["reason"] == "outside_workspaces"
    assert problem_of([str(srv / "proj" / "circle")], workspaces).data["reason"] == "no_such_directory"


def test_what_no_system_would_follow_is_nowhere(srv: Path) -> None:
    target = "sub"
    for number in range(3000):
        (srv / "proj" / f"link{number}").symlink_to(target)
        target = f"link{number}"
    assert problem_of([str(srv / "proj" / target)], places(srv, "proj")).data["cwd"] == str(srv / "proj" / target)


@pytest.mark.parametrize(
    "path",
    ["{}/proj/..", "{}/proj/../proj", "{}/proj/sub/..", "{}/other/../proj", "{}/gone/../proj", "/etc/../{}/proj"],
)
def test_a_path_that_goes_back_is_refused_wherever_it_leads(srv: Path, path: str) -> None:
    # Behind a link, what is left of it depends on who shortens it; and it would tell what there is on the way.
    directory = path.format(srv)
    problem = problem_of([directory], (*places(srv, "proj"), Workspace("all", "/")))
    assert problem.message == f"the directory of a session must be a path without .., not {directory!r}"
    assert problem.data == {"reason": "no_such_directory", "cwd": directory}


def test_dots_that_are_part_of_a_name_go_nowhere(srv: Path) -> None:
    for name in ("..x", "x..", "...", ".hidden"):
        (srv / "proj" / name).mkdir()
        assert directory_check([str(srv / "proj" / name)], places(srv, "proj")).problem is None


# Several directories


def test_each_directory_has_to_lie_in_a_workspace(srv: Path, tmp_path: Path) -> None:
    workspaces = places(srv, "proj", "other")
    proj, other, secret = str(srv / "proj"), str(srv / "other"), str(tmp_path / "secret")
    assert directory_check([proj, other], workspaces).workspace == "proj"
    assert directory_check([other, proj, proj], workspaces).workspace == "other"
    for directories in ([proj, secret], [secret, proj], [proj, other, secret]):
        assert problem_of(directories, workspaces).data["cwd"] == secret
    assert problem_of([proj, other], workspaces, ["proj"]).data["cwd"] == other
    assert problem_of([proj, "sub"], workspaces).data["cwd"] == "sub"


@pytest.mark.parametrize("allowed", [None, ["proj", "other"], ["other"]])
def test_a_session_without_a_cwd_is_placed_in_the_first_workspace_that_may_be_used(
    srv: Path, allowed: list[str] | None
) -> None:
    workspaces, name = places(srv, "proj", "other"), "other" if allowed == ["other"] else "proj"
    place = Location(str(srv / name), name)
    assert directory_check([], workspaces, allowed, chooses=True) == DirectoryCheckResult(None, name, place)
    more = [str(srv / "other")]
    assert directory_check(more, workspaces, allowed, chooses=True) == DirectoryCheckResult(None, name, place)
    assert directory_check([], workspaces, allowed) == DirectoryCheckResult(None, None, place)


def test_a_session_without_a_cwd_needs_a_workspace_that_exists(srv: Path) -> None:
    found = directory_check([], places(srv, "proj"), ["other"], chooses=True).problem
    assert found is not None
    assert found.message == (
        "no session may be opened without a cwd: there is no workspace that this token may use; "
        "add a [workspaces.NAME] section to the gateway's configuration, or make another token"
    )
    gone = directory_check([], [Workspace("gone", str(srv / "gone"))], chooses=True).problem
    assert gone is not None
    assert gone.message.startswith(f"there is no directory {srv}/gone on ")


def test_a_place_instead_is_one_that_may_be_used(srv: Path, tmp_path: Path) -> None:
    workspaces = places(srv, "proj", "other")
    assert directory_check([str(tmp_path)], workspaces, ["other"]).fallback == (str(srv / "other"), "other")
    assert directory_check([str(tmp_path)], workspaces, ["gone"]).fallback is None


# What is told of what lies in none


def test_the_answer_says_what_would_be_allowed(srv: Path, home: Path) -> None:
    problem = problem_of(["/Users/ann/my proj"], (*places(srv, "proj", "other"), Workspace(None, str(home))))
    assert problem.message == (
        f"/Users/ann/my proj is in no workspace of {HOST} that may be used "
        f"(allowed: {srv}/proj (proj), {srv}/other (other), {home}); "
        "if it is the path on the client's machine, start the client with the one it has there: "
        f"acp-gateway connect … --map '/Users/ann/my proj={srv}/proj' (or maps in hosts.toml)"
    )
    assert problem.data == {
        "reason": "outside_workspaces",
        "cwd": "/Users/ann/my proj",
        "map": f"/Users/ann/my proj={srv}/proj",
        "allowed": [str(srv / "proj"), str(srv / "other"), str(home)],
    }


def test_only_what_the_token_allows_is_named(srv: Path, tmp_path: Path) -> None:
    problem = problem_of([str(tmp_path / "secret")], places(srv, "proj", "other"), ["other"])
    assert problem.data["allowed"] == [str(srv / "other")]
    assert str(srv / "proj") not in problem.message


@pytest.mark.parametrize("allowed", [[], ["gone"], ["gone", "never was"]])
def test_a_token_whose_workspaces_are_not_there_any_more_may_use_none(srv: Path, allowed: list[str]) -> None:
    directory = str(srv / "proj")
    assert problem_of([directory], places(srv, "proj"), allowed) == Problem(
        f"no session may be opened in {directory}: there is no workspace that this token may use; "
        "add a [workspaces.NAME] section to the gateway's configuration, or make another token",
        {"reason": "outside_workspaces", "cwd": directory},
    )


def test_a_token_for_workspaces_may_not_use_the_one_that_has_no_name(srv: Path) -> None:
    workspaces = (Workspace(None, str(srv / "proj")),)
    assert directory_check([str(srv / "proj")], workspaces).problem is None
    assert directory_check([str(srv / "proj")], workspaces, ["proj"]).problem is not None


def test_of_many_workspaces_some_are_named(srv: Path) -> None:
    names = [f"w{number}" for number in range(SHOWN + 1)]
    problem = problem_of([str(srv)], places(srv, *names))
    assert f"w{SHOWN - 1} (w{SHOWN - 1}), …)" in problem.message
    assert len(problem.data["allowed"]) == SHOWN
    assert "…)" not in problem_of([str(srv)], places(srv, *names[:-1])).message


def test_outside_it_is_the_same_whether_something_is_there_or_not(srv: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "hidden").mkdir()
    (tmp_path / "locked").mkdir(mode=0)
    (srv / "proj" / "dead").symlink_to(tmp_path / "NAME")
    answers = set()
    for name in ("hidden", "file", "gone", "locked", "hidden/gone", "file/gone"):
        directory = str(tmp_path / name)
        problem = problem_of([directory], places(srv, "proj"))
        assert problem.data["map"] == f"{directory}={srv}/proj"
        answers.add(json.dumps([problem.message, problem.data]).replace(directory, "NAME"))
    assert len(answers) == 1


# What is in a workspace and no directory


def test_a_directory_that_is_not_there_is_answered_with_the_map_to_add(srv: Path, home: Path) -> None:
    directory = str(srv / "proj" / "gone")
    assert problem_of([directory], places(srv, "proj")) == Problem(
        f"there is no directory {directory} on {HOST}; start the client with the path it has there: "
        f"acp-gateway connect … --map {shlex.quote(f'{directory}={srv}/proj')} (or maps in hosts.toml)",
        {"reason": "no_such_directory", "cwd": directory, "map": f"{directory}={srv}/proj"},
    )


def test_a_file_is_not_a_directory(srv: Path) -> None:
    path = str(srv / "proj" / "file")
    assert problem_of([path], places(srv, "proj")) == Problem(
        f"{path} is not a directory", {"reason": "no_such_directory", "cwd": path}
    )
    assert problem_of([f"{path}/x"], places(srv, "proj")).message.startswith(f"there is no directory {path}/x")


# Maps


def test_a_path_map_into_an_allowed_home_folder_is_suggested(home: Path) -> None:
    (home / "work" / "my proj").mkdir(parents=True)
    problem = problem_of(["/Users/ann/work/my proj"], (Workspace(None, str(home)),))
    assert problem.data["map"] == f"/Users/ann/work/my proj={home}/work/my proj"
    assert f"--map '/Users/ann/work/my proj={home}/work/my proj' (or" in problem.message


def test_no_path_map_into_a_home_folder_outside_all_workspaces_is_suggested(srv: Path, home: Path) -> None:
    (home / "proj2").mkdir()
    (srv / "proj" / "proj2").mkdir()
    problem = problem_of(["/Users/ann/proj2"], places(srv, "proj"))
    assert problem.data["map"] == f"/Users/ann/proj2={srv}/proj/proj2"
    assert str(home) not in problem.message


def test_the_whole_home_folder_is_suggested_only_where_it_is_all_that_is_allowed(srv: Path, home: Path) -> None:
    above = (*places(srv, "proj"), Workspace("all", str(home.parent)))
    assert problem_of(["/Users/ann/x"], above).data["map"] == f"/Users/ann/x={srv}/proj"
    assert problem_of(["/Users/ann/x"], above[1:]).data["map"] == f"/Users/ann/x={home.parent}"
    (home / "x").mkdir()
    assert problem_of(["/Users/ann/x"], above).data["map"] == f"/Users/ann/x={home}/x"
    assert problem_of(["/Users/ann/y"], (Workspace(None, str(home)),)).data["map"] == f"/Users/ann/y={home}"


def test_no_map_leads_out_of_the_workspaces_by_a_link(srv: Path, tmp_path: Path) -> None:
    (srv / "proj" / "work").symlink_to(tmp_path / "secret")
    assert problem_of(["/Users/ann/work"], places(srv, "proj")).data["map"] == f"/Users/ann/work={srv}/proj"


def test_a_workspace_of_the_same_name_is_suggested_before_any_other(srv: Path, home: Path) -> None:
    (home / "other").mkdir()
    workspaces = (Workspace(None, str(home)), *places(srv, "proj", "other"))
    assert problem_of(["/Users/ann/other"], workspaces).data["map"] == f"/Users/ann/other={srv}/other"
    assert problem_of([r"C:\Users\ann\other"], workspaces).data["map"] == rf"C:\Users\ann\other={srv}/other"


@pytest.mark.parametrize(("folder", "quote"), [("proj", ""), ("my proj", '"')])
def test_a_map_from_windows_is_quoted_for_its_shell_where_that_is_needed(srv: Path, folder: str, quote: str) -> None:
    problem = problem_of([rf"C:\Users\ann\{folder}"], places(srv, folder))
    assert problem.data["reason"] == "outside_workspaces"
    if " " in str(srv):
        quote = '"'
    assert rf"--map {quote}C:\Users\ann\{folder}={srv}/{folder}{quote} (or" in problem.message


# Malformed paths


@pytest.mark.parametrize("directory", ["proj", "", ".", "~/proj", "C:proj", "\0", "\ud800"])
def test_a_path_that_is_not_absolute_is_refused_without_a_map(
    srv: Path, monkeypatch: pytest.MonkeyPatch, directory: str
) -> None:
    monkeypatch.chdir(srv)
    assert problem_of([directory], (Workspace("all", "/"),)) == Problem(
        f"the directory of a session must be an absolute path, not {directory!r}",
        {"reason": "no_such_directory", "cwd": directory},
    )


def test_a_path_that_is_longer_than_any_can_be_is_not_repeated() -> None:
    everything = (Workspace("all", "/"),)
    assert problem_of(["/" + "x" * PATH_SIZE], everything) == Problem(
        f"a path has at most {PATH_SIZE} characters", {"reason": "no_such_directory"}
    )
    assert problem_of(["/" + "x" * (PATH_SIZE - 1)], everything).message.startswith("there is no directory /xxx")


NAMES = ("nul\0", "\ud800", "\udcff", "a\nb", "\x1b[31m")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("place", ["proj", "secret"])
def test_a_directory_that_can_hardly_be_is_refused_like_any_other(srv: Path, place: str, name: str) -> None:
    directory = f"{srv}/{place}/{name}"
    problem = problem_of([directory], places(srv, "proj"))
    # What can't be asked of the disk is nowhere.
    nowhere = place == "secret" or name in ("nul\0", "\ud800")
    assert problem.data["reason"] == ("outside_workspaces" if nowhere else "no_such_directory")
    assert problem.data["cwd"] == directory


def test_a_name_in_another_encoding_is_a_name(srv: Path) -> None:
    os.mkdir(os.fsencode(srv / "proj") + b"/\xff")
    assert directory_check([f"{srv}/proj/\udcff"], places(srv, "proj")).workspace == "proj"


# By the text alone


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/srv/proj", "proj"),
        ("/srv/proj/", "proj"),
        ("/srv/proj/x/y", "proj"),
        ("/srv/proj/inner/x", "inner"),
        ("/srv/proj/inner/../x", "proj"),
        ("/srv/project", None),
        ("/srv", None),
        ("/srv/proj/../other", None),
        ("srv/proj", None),
        ("", None),
        (r"C:\srv\proj", None),
    ],
)
def test_where_a_session_of_an_earlier_process_is_is_read_off_its_path(path: str, name: str | None) -> None:
    workspaces = (Workspace("proj", "/srv/proj/"), Workspace("inner", "/srv/proj/inner"), Workspace("gone", "/gone"))
    assert containing(path, workspaces) == name
    assert containing(path, workspaces[::-1]) == name


def test_in_the_root_of_the_disk_is_everything_that_has_a_path() -> None:
    everything = (Workspace("all", "/"),)
    assert [containing(path, everything) for path in ("/", "/srv", "srv")] == ["all", "all", None]
    assert containing("/srv", [replace(everything[0], name=None)]) is None


@pytest.mark.parametrize(
    "directory",
    ["/nowhere/acpgw_hunter2\x1b[2J\u202e", "/nowhere/../acpgw_hunter2\x1b", "acpgw_hunter2\x1b", "/" + "long/" * 800],
    ids=["outside", "dots", "relative", "long"],
)
@pytest.mark.parametrize("usable", [True, False], ids=["somewhere else", "nowhere"])
def test_a_path_that_is_refused_is_quoted_redacted_escaped_and_cut(
    directory: str, usable: bool, tmp_path: Path
) -> None:
    found = directory_check([directory], [Workspace("a", str(tmp_path))] if usable else [])
    assert found.problem is not None
    assert found.problem.message.isprintable()
    assert "hunter2" not in found.problem.message
    assert len(found.problem.message) < 1000
    assert found.problem.data["cwd"] == directory
