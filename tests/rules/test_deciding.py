"""Permission requests and the rules that are for them: the table of commands, then each part of a rule."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.rules.asked import read_asked
from acp_gateway.rules.deciding import Place, decide, offer
from acp_gateway.rules.rule import BadRule, CommandPattern, Rule

DATA = Path(__file__).parent.parent / "data"

PLACE = Place("opencode", "s1", "ann", "proj", "/srv/proj")
NOW = 1000


def table() -> Iterator[tuple[str, object, bool]]:
    """Yield the rules of the table of commands, each with a command and whether it allows that."""
    rule = ""
    for line in (DATA / "commands.txt").read_text(encoding="utf-8").splitlines():
        word, _, rest = line.partition(" ")
        if word == "rule":
            rule = rest
        elif word:
            yield rule, json.loads(rest), word == "+"


def rule(decision: Any = "allow", **parts: Any) -> Rule:
    """Return a rule; its command is a text."""
    command = parts.pop("command", None)
    return Rule(id="r", decision=decision, command=command and CommandPattern.parse(command), **parts)


def verdict(asked: dict[str, Any], *rules: Rule, place: Place = PLACE) -> str | None:
    """Return what rules decide for a tool call."""
    found = decide(rules, read_asked(asked, place.cwd), place, NOW)
    return found and found.decision


def run(command: object, **more: Any) -> dict[str, Any]:
    """Return a tool call that runs a command, with more members of its input."""
    return {"kind": "execute", "rawInput": {"command": command, **more}}


@pytest.mark.parametrize(("pattern", "command", "allowed"), [*table()])
def test_a_rule_allows_what_a_person_would_allow_by_it(pattern: str, command: object, allowed: bool) -> None:
    assert verdict(run(command), rule(command=pattern)) == ("allow" if allowed else None)


def test_the_table_has_more_than_two_hundred_hostile_commands() -> None:
    assert sum(not allowed for _, _, allowed in table()) > 200


@pytest.mark.parametrize(
    ("title", "more", "allowed"),
    [
        ("", {}, True),
        ("pytest -q", {"description": "run tests", "timeout": 60}, True),
        ("`pytest -q`", {"cwd": "/srv/proj/"}, True),
        ("Bash", {"dangerouslyDisableSandbox": False}, True),
        ("Run: `pytest -q`", {"env": {}}, True),
        ("rm -rf /", {}, False),
        ("sudo pytest -q", {}, False),
        ("pytest -q; rm", {}, False),
        ("Run the tests", {}, False),
        ("pytest -q", {"cwd": "/srv/proj/a"}, False),
        ("pytest -q", {"cwd": "/tmp"}, False),
        ("pytest -q", {"cwd": "/srv"}, False),
        ("pytest -q", {"cwd": "."}, False),
        ("pytest -q", {"workdir": "/srv/proj/../x"}, False),
        ("pytest -q", {"cwd": 1}, False),
        ("pytest -q", {"dangerouslyDisableSandbox": True}, False),
        ("pytest -q", {"env": {"LD_PRELOAD": "x"}}, False),
        ("pytest -q", {"cmd": "rm"}, False),
        ("pytest -q", {"stdin": "x"}, False),
    ],
)
def test_a_command_in_doubt_is_asked(title: str, more: dict[str, Any], allowed: bool) -> None:
    call = run("pytest -q", **more) | {"title": title}
    assert verdict(call, rule(command="pytest …")) == ("allow" if allowed else None)


def test_forms_of_real_agents_are_read() -> None:
    words = ("pytest", "-q")
    claude = {"kind": "execute", "title": "`pytest -q`", "rawInput": {"command": "pytest -q", "description": "Tests"}}
    codex = {
        "kind": "execute",
        "title": "pytest -q",
        "rawInput": {
            "call_id": "c",
            "command": ["bash", "-lc", "pytest -q"],
            "cwd": "/srv/proj",
            "parsed_cmd": [{"type": "unknown", "cmd": "pytest -q"}],
            "reason": None,
        },
    }
    opencode = {"kind": "execute", "title": "pytest -q", "rawInput": {"command": "pytest -q"}}
    gemini = {"kind": "execute", "title": "pytest -q [current working directory /srv/proj] (Run tests)"}
    found = [read_asked(call, "/srv/proj").words for call in (claude, codex, opencode, gemini)]
    assert found == [words, words, words, None]
    assert read_asked(
        {"kind": "read", "title": "Read a", "rawInput": {"command": ["bash", "-lc", "cat a"]}}, "/"
    ).kind == ("execute")


WIDE = (
    *("sed", "su ann", "flock a", "watch ls", "eval ls", "timeout inf", "chroot srv", "parallel ls", "gdb ls"),
    *("script a", "tmux new-session", "mpirun a", "perf stat", "hyperfine ls", "printf", "test", "'['", "xxd"),
    *("./gradlew test", "bazel test", "git submodule foreach", "git bisect run", "git config set", "npm config set"),
    *("uv tool run", "bun run", "deno run", "coverage run", "coverage run -m", "python -m timeit"),
    *("docker run alpine", "docker exec web", "docker container", "docker compose exec web", "kubectl exec pod"),
)
"""Beginnings of commands after which any word may be a program, code or a setting."""

EDIT = {"kind": "edit", "rawInput": {"file_path": "/srv/proj/a.py", "old_string": "/x", "new_string": "y"}}


@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        ({}, True),
        ({"rawInput": {"path": "src/a.py"}}, True),
        ({"rawInput": {}, "locations": [{"path": "/srv/proj/a"}]}, True),
        ({"content": [{"type": "diff", "path": "/srv/proj/b"}]}, True),
        ({"kind": "delete"}, False),
        ({"rawInput": {}}, False),
        ({"rawInput": {"file_path": "/srv/proj/../x"}}, False),
        ({"rawInput": {"file_path": "/srv/project"}}, False),
        ({"rawInput": {"file_path": "../a"}}, False),
        ({"rawInput": {"file_path": "~/a"}}, False),
        ({"rawInput": {"file_path": "/srv/proj/a\n"}}, False),
        ({"rawInput": {"file_path": 1}}, False),
        ({"rawInput": {"paths": ["/srv/proj/a", "/etc/passwd"]}}, False),
        ({"rawInput": {"file_path": "/srv/proj/a", "patch": "*** /etc/passwd"}}, False),
        ({"locations": [{"path": "/srv/proj/a"}, {"path": "/etc/x"}]}, False),
        ({"content": [{"type": "diff", "path": "/etc/x"}]}, False),
        ({"title": "Edit `/srv/proj/a.py` (1 - 9)"}, True),
        ({"title": "Edit `/etc/passwd`"}, False),
        ({"title": "Edit ../x"}, False),
        ({"title": "Edit (~/.bashrc)"}, False),
        ({"locations": {"path": "/etc/x"}}, False),
        ({"rawInput": "*** /etc/passwd", "locations": [{"path": "/srv/proj/a"}]}, False),
        ({"rawInput": ["/etc/passwd"], "locations": [{"path": "/srv/proj/a"}]}, False),
        ({"rawInput": {"command": "rm a"}}, False),
    ],
)
def test_files_are_allowed_where_all_are_certain_to_be_below_the_folder(change: dict[str, Any], allowed: bool) -> None:
    assert verdict(EDIT | change, rule(kind="edit", path="/srv/proj/")) == ("allow" if allowed else None)


@pytest.mark.parametrize(
    ("url", "exact", "below"),
    [
        ("https://example.org/a?b=c#d", True, False),
        ("http://EXAMPLE.org:8080", True, False),
        ("https://docs.example.org", False, True),
        ("https://badexample.org", False, False),
        ("https://example.org.evil.example", False, False),
        ("https://example.org@evil.example/", False, False),
        ("https://evil.example\\@example.org", False, False),
        ("https://evil.example/?example.org", False, False),
        ("https://example.org%2eevil.example/", False, False),
        ("file://example.org/etc/passwd", False, False),
        ("https://ex\u0430mple.org", False, False),
        ("https://example.org /", False, False),
        (["https://example.org"], False, False),
    ],
)
def test_a_host_is_that_of_the_address_or_below_a_name(url: object, exact: bool, below: bool) -> None:
    call = {"kind": "fetch", "title": "Fetch", "rawInput": {"url": url, "prompt": "x"}}
    assert verdict(call, rule(host="example.org")) == ("allow" if exact else None)
    assert verdict(call, rule(host="*.example.org")) == ("allow" if below else None)
    titles: list[dict[str, Any]] = [
        {"title": f"Fetch {other}"} for other in ("https://other.example", f"{url}.evil.example")
    ]
    for doubt in [*titles, {"rawInput": {"url": url, "headers": "x"}}]:
        assert verdict(call | doubt, rule(host="example.org")) is None


def test_the_first_rule_decides() -> None:
    deny, allow, ask = rule("deny", command="git push …"), rule(command="git push …"), rule("ask", kind="execute")
    call = run("git push")
    assert [verdict(call, *rules) for rules in ([deny, allow], [allow, deny], [ask, allow], [])] == (
        ["deny", "allow", "ask", None]
    )


@pytest.mark.parametrize(
    "command",
    ["git -C . push", "X=1 git push", "sudo git push", "/usr/bin/git push", "git push; ls", "bash -c 'git push'"],
)
def test_what_a_denied_command_may_be_meant_by_is_asked(command: str) -> None:
    words = read_asked(run(command), "/srv/proj").words
    allow = [] if words is None else [Rule(id="a", decision="allow", command=CommandPattern(words))]
    assert verdict(run(command), rule("deny", command="git push …"), *allow) == "ask"
    assert verdict(run("ls"), rule("deny", command="git push …"), rule(command="ls")) == "allow"


def test_a_denied_folder_or_host_is_asked_where_it_may_be_meant() -> None:
    call = EDIT | {"rawInput": {"paths": ["/srv/proj/a", "/etc/passwd"]}}
    deny = rule("deny", path="/etc")
    assert verdict(call, deny) == "deny"
    assert verdict({"kind": "edit"}, deny) == verdict({"kind": "odd"}, deny) == "ask"
    assert verdict(run("ls"), deny) is None
    for path, decided in (("/", "ask"), ("/et", "allow")):
        call = {"kind": "delete", "rawInput": {"path": path}}
        assert verdict(call, deny, rule(path="/")) == decided
    assert verdict({"kind": "fetch"}, rule("deny", host="example.org")) == "ask"


@pytest.mark.parametrize(
    ("part", "fits", "other"),
    [
        ("agent", "opencode", "codex"),
        ("workspace", "proj", "home"),
        ("identity", "ann", "bob"),
        ("author", "ann", "bob"),
        ("session", "s1", "s2"),
        ("project", "/srv", "/srv/pro"),
        ("kind", "execute", None),
        ("until", NOW + 1, NOW),
    ],
)
def test_a_part_limits_a_rule(part: str, fits: Any, other: Any) -> None:
    assert verdict(run("ls"), rule(command="ls", **{part: fits})) == "allow"
    if other is not None:
        assert verdict(run("ls"), rule(command="ls", **{part: other})) is None


def test_a_rule_with_an_end_does_not_count_without_a_clock_nor_one_of_a_project_without_a_folder() -> None:
    asked = read_asked(run("ls"), None)
    assert decide([rule(command="ls", until=NOW)], asked, PLACE, None) is None
    for cwd in (None, "/srv/proj/..", "relative"):
        assert verdict(run("ls"), rule(command="ls", project="/srv"), place=replace(PLACE, cwd=cwd)) is None


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ({"command": "git …"}, "never match"),
        ({"command": "sudo …"}, "never match"),
        ({"command": "python …"}, "never match"),
        *(({"command": f"{each} …"}, "never match") for each in WIDE),
        ({"command": "a; b"}, "plain command"),
        ({"command": "…"}, "plain command"),
        ({"command": "pytest *"}, "plain command"),
        ({"kind": "read"}, "says too little"),
        ({"command": "ls", "path": "/a"}, "a rule for each"),
        ({"command": "ls", "kind": "read"}, "kind execute"),
        ({"path": "a"}, "absolute"),
        ({"path": "/a/../b"}, "absolute"),
        ({"host": "https://a"}, "host is a name"),
        ({"host": "a.*.org"}, "host is a name"),
    ],
)
def test_a_rule_that_allows_too_much_or_nothing_is_refused(parts: dict[str, Any], named: str) -> None:
    with pytest.raises(BadRule, match=named):
        rule(**parts)


def test_a_rule_that_denies_may_be_wide() -> None:
    assert verdict(run("git log"), rule("deny", command="git …")) == "deny"
    assert verdict(run("anything; at all"), rule("deny", kind="execute")) == "deny"


@pytest.mark.parametrize(
    ("call", "offered"),
    [
        (run("pytest -q"), ["`pytest …`", "`pytest -q`"]),
        (run("git status -s"), ["`git status …`", "`git status -s`"]),
        (run("npm run test"), ["`npm run test …`", "`npm run test`"]),
        (run("uv run pytest -q"), ["`uv run pytest …`", "`uv run pytest -q`"]),
        (run("git fetch --upload-pack=x"), ["`git fetch --upload-pack=x`"]),
        (run("rm -rf build"), ["`rm -rf build`"]),
        (run("docker exec web ls"), ["`docker exec web ls`"]),
        (run("sudo " * 255 + "a"), [f"`{'sudo ' * 255}a`"]),
        (run("bash -c 'a; b'"), ["`bash -c 'a; b'`"]),
        (run("a; b"), []),
        (EDIT, ["to edit files below /srv/proj"]),
        (EDIT | {"locations": [{"path": "/etc/x"}]}, []),
        ({"kind": "fetch", "rawInput": {"url": "https://a.example/b"}}, ["addresses of a.example"]),
        ({"kind": "other"}, []),
    ],
)
def test_rules_are_offered_that_allow_what_is_asked(call: dict[str, Any], offered: list[str]) -> None:
    rules = offer(read_asked(call, PLACE.cwd), PLACE)
    assert [str(each).split(" (")[0] for each in rules] == [f"allow {text}" for text in offered]
    for each in rules:
        assert verdict(call, each) == "allow"
        assert (each.agent, each.identity, each.project) == ("opencode", "ann", "/srv/proj")
    assert offer(read_asked(call, None), replace(PLACE, cwd=None)) == []
