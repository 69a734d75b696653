"""Names of secrets, and the reasons of refusals."""

from typing import get_args

import pytest

from acp_gateway.made.files_rules import STATUSES, Place, Reason, is_secret_name


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


def test_each_reason_has_a_status() -> None:
    assert STATUSES.keys() == set(get_args(Reason))


def test_a_place_is_a_path_below_its_folder() -> None:
    assert Place("/", ("a", "b")).path == "/a/b"
    assert Place("/", ()).path == "/"
    assert Place("/work", ()).name == "work"
    assert Place("/work", ("a",)).below("b").path == "/work/a/b"
