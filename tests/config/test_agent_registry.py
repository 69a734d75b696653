"""Entries of the registry of agents: what is read, refused, and which command they become."""

import json
from typing import Any

import pytest

from acp_gateway.config.agent_registry import (
    Choice,
    Kind,
    RegistryAgent,
    archive_format,
    choose,
    is_older,
    kinds_for,
    platform_name,
    read_registry,
)
from acp_gateway.errors import ConfigError

LINUX = "linux-x86_64"

BOTH = ("npx", "uvx")


def entry(distribution: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {"id": "demo", "name": "Demo", "version": "1.2.3", "distribution": distribution} | members


def read(distribution: dict[str, Any], **members: Any) -> RegistryAgent:
    content = json.dumps(entry(distribution, **members)).encode()
    return read_registry(content, "agent.json")[members.get("id", "demo")]


def chosen(distribution: dict[str, Any], kind: Kind | None = None, runners: tuple[str, ...] = BOTH) -> Choice:
    return choose(read(distribution), LINUX, kind, runners)


def binary(**members: Any) -> dict[str, Any]:
    return {"binary": {LINUX: {"archive": "https://example.org/demo.tar.gz", "cmd": "./bin/demo"} | members}}


def test_an_index_is_read_without_the_entries_of_an_unknown_form() -> None:
    index = {"version": "1.0.0", "agents": [entry({"npx": {"package": "demo"}}), {"id": 1}, entry({}, id="Bad Id")]}
    assert list(read_registry(json.dumps(index).encode(), "registry.json")) == ["demo"]


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"<html>", b'{"agents": 1}', b"[" * 100_000, b"\xff"])
def test_content_that_is_not_a_registry_is_refused_with_its_source(content: bytes) -> None:
    with pytest.raises(ConfigError, match=r"^x\.json: is neither an ACP registry nor an entry"):
        read_registry(content, "x.json")


@pytest.mark.parametrize(
    "members", [{"id": "../x"}, {"id": "A"}, {"id": "x" * 65}, {"version": "latest"}, {"version": "1/2"}]
)
def test_an_id_or_version_that_could_be_a_path_is_refused(members: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"is not (an id|a version)"):
        read({"npx": {"package": "demo"}}, **members)


@pytest.mark.parametrize(
    ("package", "words"),
    [
        ({"package": "demo"}, ("npx", "--yes", "demo@1.2.3")),
        ({"package": "@a/demo@1.2.2", "args": ["acp"]}, ("npx", "--yes", "@a/demo@1.2.2", "acp")),
        ({"package": "@a/demo", "cmd": "run"}, ("npx", "--yes", "--package=@a/demo@1.2.3", "--", "run")),
    ],
)
def test_an_npm_package_is_pinned_to_its_version_or_that_of_the_entry(
    package: dict[str, Any], words: tuple[str, ...]
) -> None:
    assert chosen({"npx": package}).words == words


@pytest.mark.parametrize(
    ("package", "words"),
    [
        ({"package": "demo"}, ("uvx", "--from=demo==1.2.3", "demo")),
        ({"package": "demo==1.0", "args": ["-x"]}, ("uvx", "--from=demo==1.0", "demo", "-x")),
        ({"package": "demo@1.0", "cmd": "run"}, ("uvx", "--from=demo==1.0", "run")),
        ({"package": "demo[acp]==1.0"}, ("uvx", "--from=demo[acp]==1.0", "demo")),
    ],
)
def test_a_python_package_is_pinned_to_its_version_or_that_of_the_entry(
    package: dict[str, Any], words: tuple[str, ...]
) -> None:
    found = chosen({"uvx": package})
    assert found.words == words
    assert found.package == words[1].removeprefix("--from=")


@pytest.mark.parametrize("package", ["demo@latest", "demo@^1.2", "demo@1.x ", "demo@>1", "demo@*", "@a/demo@next"])
def test_a_package_that_is_not_pinned_is_refused(package: str) -> None:
    with pytest.raises(ConfigError, match=r"pinned|not a name of a package"):
        chosen({"npx": {"package": package}})


@pytest.mark.parametrize("package", ["--eval=x", "../demo", "https://x/y.tgz", "a b", "git+ssh://x", "@a/b/c"])
def test_a_package_that_is_an_option_a_path_or_a_url_is_refused(package: str) -> None:
    with pytest.raises(ConfigError):
        chosen({"npx": {"package": package}})
    with pytest.raises(ConfigError):
        chosen({"uvx": {"package": package}})


def test_a_binary_comes_before_packages_and_has_its_hash_in_lower_case() -> None:
    distribution = binary(args=["acp"], env={"A": "1"}, sha256="AB" * 32) | {"npx": {"package": "demo"}}
    assert chosen(distribution) == Choice(
        kind="binary",
        version="1.2.3",
        words=("bin/demo", "acp"),
        env={"A": "1"},
        archive="https://example.org/demo.tar.gz",
        sha256="ab" * 32,
    )
    assert chosen(distribution, "npx").kind == "npx"


def test_without_the_runner_of_one_kind_the_next_is_chosen_unless_it_is_named() -> None:
    distribution = {"npx": {"package": "demo"}, "uvx": {"package": "demo"}}
    assert chosen(distribution, runners=("uvx",)).kind == "uvx"
    assert chosen(distribution, "npx", ()).kind == "npx"
    with pytest.raises(ConfigError, match=r"demo needs Node\.js"):
        chosen(distribution, runners=())


def test_a_kind_or_platform_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match="demo is not there as uvx for linux-x86_64; there is: binary"):
        chosen(binary(), "uvx")
    with pytest.raises(ConfigError, match="demo is not there for darwin-aarch64"):
        choose(read(binary()), "darwin-aarch64", None, BOTH)
    assert kinds_for(read(binary()), "darwin-aarch64") == []


@pytest.mark.parametrize("cmd", ["/bin/sh", "../demo", "./a/../../b", "a\\b.exe", ".", ""])
def test_the_program_of_a_binary_is_below_its_folder(cmd: str) -> None:
    with pytest.raises(ConfigError):
        chosen(binary(cmd=cmd))


@pytest.mark.parametrize("members", [{"args": ["a\nb"]}, {"env": {"A B": "x"}}, {"args": ["x"] * 200}, {"sha256": "1"}])
def test_words_that_no_command_should_have_are_refused(members: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="demo"):
        chosen(binary(**members))


def test_an_installer_is_refused() -> None:
    with pytest.raises(ConfigError, match="installer"):
        chosen(binary(archive="https://example.org/demo.dmg?x=1"))


@pytest.mark.parametrize(
    ("url", "form"),
    [
        ("https://x/a.tar.gz", "tar"),
        ("https://x/a.TGZ", "tar"),
        ("https://x/a.tbz2?y=1", "tar"),
        ("https://x/a.zip", "zip"),
        ("https://x/a", None),
        ("https://x/a?b.zip", None),
    ],
)
def test_the_form_of_an_archive_is_told_by_its_name(url: str, form: str | None) -> None:
    assert archive_format(url) == form


def test_platforms_have_the_names_of_the_registry() -> None:
    assert platform_name("linux", "x86_64") == "linux-x86_64"
    assert platform_name("darwin", "arm64") == "darwin-aarch64"
    assert platform_name("win32", "AMD64") == "windows-x86_64"


@pytest.mark.parametrize(("older", "newer"), [("1.2.3", "1.2.10"), ("0.9.9", "1.0.0"), ("1.2", "1.2.1")])
def test_versions_are_compared_by_their_numbers(older: str, newer: str) -> None:
    assert is_older(older, newer)
    assert not is_older(newer, older)
    assert not is_older(f"{older}-beta.2", f"{older}-beta.1")
