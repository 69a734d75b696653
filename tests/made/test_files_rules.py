"""Names of secrets, and the reasons of refusals."""

from typing import get_args

import pytest

from acp_gateway.made.files_rules import STATUSES, Place, Reason, Territory, is_secret_name


@pytest.mark.parametrize(
    "name",
    [".env", ".Env.local", ".netrc", "id_ed25519", "a.PEM", "b.key", ".bash_history", ".ssh", "k.kdbx", ".envrc"],
)
def test_names_of_secrets_are_known_in_any_case(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["env", ".env.example", "id_rsa.pub", "keys.txt", ".environment", "...", "monkey", "é"]
)
def test_other_names_are_not_of_secrets(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("path", "is_secret"),
    [
        ("proj/.git/config", True),
        ("proj/.GIT/Config", True),
        ("proj/.git/modules/sub/config", True),
        ("mirror.git/config", True),
        ("proj/.git/HEAD", False),
        ("proj/config", False),
        ("state", True),
        ("State/tokens.json", True),
        ("st\N{ZERO WIDTH SPACE}ate", True),
        ("st\N{ZERO WIDTH NON-JOINER}ate/x", True),
        ("states", False),
        ("home/.ssh/x", True),
        (".codex/auth.json", True),
    ],
)
def test_places_of_secrets_are_known_alone_and_among_the_names_of_their_folder(path: str, is_secret: bool) -> None:
    territory = Territory("/work", ("/work",), secrets=("/work/state/", "/elsewhere"))
    place = Place("/work", tuple(path.split("/")))
    assert territory.is_secret(place) == is_secret
    folder = Place("/work", place.parts[:-1])
    assert (territory.is_secret(folder) or territory.secrets_in(folder)(place.name)) == is_secret


def test_places_far_from_the_folders_cost_nothing_and_those_around_count() -> None:
    territory = Territory("/work/a", ("/work/a",), secrets=("/elsewhere", "/work/b", "/work"))
    assert territory._near == ("/work",)
    assert territory.is_secret(Place("/work/a", ("x",)))


def test_each_reason_has_a_status() -> None:
    assert STATUSES.keys() == set(get_args(Reason))


def test_a_place_is_a_path_below_its_folder() -> None:
    assert Place("/", ("a", "b")).path == "/a/b"
    assert Place("/", ()).path == "/"
    assert Place("/work", ()).name == "work"
    assert Place("/work", ("a",)).below("b").path == "/work/a/b"
