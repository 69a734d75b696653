"""The places of `cp`, and the session that one means."""

from typing import Any

import pytest

from acp_gateway.client.copying.places import Remote, choose_session, read_place
from acp_gateway.errors import UsageError


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("box:plots/loss.png", Remote("box", None, "plots/loss.png")),
        ("box:", Remote("box", None, "")),
        (":out.log", Remote(None, None, "out.log")),
        ("box/3f2a:a", Remote("box", "3f2a", "a")),
        ("door/gpu2/3f2a:a:b", Remote("door", "gpu2/3f2a", "a:b")),
        ("box:/data/a:b", Remote("box", None, "/data/a:b")),
        ("wss://box:7443/acp:plots/a", Remote("wss://box:7443/acp", None, "plots/a")),
        ("ssh://ann@box:a", Remote("ssh://ann@box", None, "a")),
        ("unix:///run/x:/data/a", Remote("unix:///run/x", None, "/data/a")),
        ("plots/loss.png", None),
        ("./box:a", None),
        ("/tmp/box:a", None),
        ("../a:b", None),
        ("C:\\plots\\a", None),
        ("-", None),
    ],
)
def test_a_place_has_a_gateway_before_the_colon(text: str, place: Remote | None) -> None:
    assert read_place(text) == place


@pytest.mark.parametrize("text", ["wss://box:7443/acp", "wss://box:7443", "ssh://box"])
def test_an_address_needs_a_path_behind_it(text: str) -> None:
    with pytest.raises(UsageError, match="has no path"):
        read_place(text)


@pytest.mark.parametrize(
    ("path", "is_folder"), [("", True), ("a/", True), (".", True), ("a/..", True), ("a", False), ("a.", False)]
)
def test_some_paths_can_only_be_those_of_folders(path: str, is_folder: bool) -> None:
    assert Remote("box", None, path).names_folder is is_folder


def session(name: str, *, live: bool = True, cwd: str = "/work", at: str = "2026-11-01T00:00:00Z") -> dict[str, Any]:
    return {"sessionId": name, "live": live, "cwd": cwd, "title": f"about {name}", "updatedAt": at}


PLACE = Remote("box", None, "a.png")


@pytest.mark.parametrize(
    ("sessions", "wanted", "found"),
    [
        ([session("one")], None, "one"),
        ([session("one"), session("two", live=False)], None, "one"),
        ([session("one", live=False)], None, "one"),
        ([session("abcd1"), session("abxy2")], "abcd", "abcd1"),
        ([session("ab"), session("abcd")], "ab", "ab"),
        ([session("gpu2/abcd1"), session("abcd2")], "gpu2/abcd", "gpu2/abcd1"),
    ],
)
def test_the_session_that_is_evident_is_chosen(sessions: list[dict[str, Any]], wanted: str | None, found: str) -> None:
    assert choose_session(sessions, wanted, PLACE) == found


def test_an_absolute_path_means_the_latest_session_whose_folder_has_it() -> None:
    sessions = [
        session("old", cwd="/work/a"),
        session("new", cwd="/work/a/", at="2026-11-02T00:00:00Z"),
        session("other", cwd="/work/ab", at="2026-11-03T00:00:00Z"),
    ]
    assert choose_session(sessions, None, Remote("box", None, "/work/a/x.png")) == "new"


@pytest.mark.parametrize(
    ("sessions", "wanted", "said"),
    [
        ([], None, "no session yet"),
        ([session("one"), session("two")], None, "which session?; one of: box/one:a.png  (about one /work); box/two"),
        ([session("one")], "three", "no session three; one of: box/one:a.png"),
        ([session("abcd1"), session("abcd2")], "abcd", "several sessions begin with abcd"),
        ([session("abcd1")], "abc", "no session abc"),
        ([session(f"s{number}") for number in range(20)], None, "and 12 more"),
    ],
)
def test_what_is_not_evident_is_asked_with_the_lines_to_choose_from(
    sessions: list[dict[str, Any]], wanted: str | None, said: str
) -> None:
    with pytest.raises(UsageError) as error:
        choose_session(sessions, wanted, PLACE)
    assert said in str(error.value)
