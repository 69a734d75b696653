"""Seals of values in the directory."""

from acp_gateway.nodes.directory.records import MAX_VALUE, Seal


def test_sealed_value_is_opened_in_its_place() -> None:
    seal = Seal("secret")
    assert Seal("secret").open("node:a", seal.close("node:a", b"value")) == b"value"


def test_value_of_another_place_token_or_content_is_not_opened() -> None:
    sealed = Seal("secret").close("node:a", b"value")
    assert Seal("secret").open("node:b", sealed) is None
    assert Seal("other").open("node:a", sealed) is None
    assert Seal("secret").open("node:a", sealed + b"x") is None
    assert Seal("secret").open("node:a", b"value") is None
    assert Seal("secret").open("node:a", b"") is None


def test_value_beyond_its_maximum_size_is_not_opened() -> None:
    seal = Seal("secret")
    assert seal.open("a", seal.close("a", bytes(MAX_VALUE))) is not None
    assert seal.open("a", seal.close("a", bytes(MAX_VALUE + 1))) is None


def test_seal_does_not_show_its_secret() -> None:
    assert "secret" not in repr(Seal("secret"))
