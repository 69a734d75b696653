"""Mapped directories: which of them a path or a URI is in, at a bounded cost."""

import pytest

from acp_gateway.protocol import path_maps
from acp_gateway.protocol.path_maps import DirectoryMap, Root


def directory_map(*pairs: tuple[str, str]) -> DirectoryMap:
    return DirectoryMap((Root.parse(source), Root.parse(target)) for source, target in pairs)


def found(directories: DirectoryMap, path: str) -> str | None:
    place = directories.of_path(path)
    return None if place is None else place[0].path(place[1])


def test_the_largest_directory_that_a_path_is_in_decides() -> None:
    directories = directory_map(("/srv", "/x"), ("/srv/proj/a", "/z"), ("/srv/proj", "/y"))
    assert found(directories, "/srv/proj/a/b") == "/z/b"
    assert found(directories, "/srv/proj/ab") == "/y/ab"
    assert found(directories, "/srv/proj") == "/y"
    assert found(directories, "/srv/") == "/x/"
    assert found(directories, "/sr") is None


def test_an_encoded_slash_is_not_a_boundary_of_components() -> None:
    directories = directory_map(("/srv/proj", "/y"))
    assert directories.of_uri("/%73rv/%70roj/a%2Fb") == (Root.parse("/y"), "a%2Fb")
    assert directories.of_uri("/srv%2Fproj/a") is None


def test_no_directories_hold_nothing() -> None:
    assert directory_map().of_path("/srv") is None


@pytest.mark.parametrize("name", ["%41" * 100_000, "a" * 100_000])
def test_a_uri_is_decoded_only_as_far_as_a_directory_may_reach(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []

    def unquote(text: str) -> str:
        decoded.append(text)
        return text

    monkeypatch.setattr(path_maps, "unquote", unquote)
    directories = directory_map(*((f"/srv/proj{number}", "/y") for number in range(50)))
    assert directories.of_uri(f"/{name}/{name}/{name}") is None
    # One decoding for each component of a directory, whatever the number of directories.
    assert len(decoded) == 3
    assert sum(map(len, decoded)) <= 2 * (12 * len("proj49") + 1)


def test_a_name_is_found_in_its_longest_spelling() -> None:
    name = "\U0001f600" * 3
    assert directory_map((f"/{name}", "/y")).of_uri("/" + "%F0%9F%98%80" * 3 + "/a") == (Root.parse("/y"), "a")
