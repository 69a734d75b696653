"""Each error has one face for each outside, and no two kinds share an exit code by accident."""

from acp_gateway import errors
from acp_gateway.errors import (
    AccessError,
    ConfigError,
    Forbidden,
    GatewayError,
    LinkExpired,
    LinkGone,
    TooFarBehind,
    Unauthorized,
    UnknownAgent,
    UnknownSession,
)


def kinds() -> list[type[GatewayError]]:
    found = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, GatewayError)]
    assert len(found) > 8
    return found


def test_the_direct_kinds_have_exit_codes_of_their_own() -> None:
    direct = [kind for kind in kinds() if kind.__base__ is GatewayError]
    assert sorted(kind.exit_code for kind in direct) == list(range(2, 14))


def test_the_drawing_in_the_docstring_has_every_kind_with_its_code() -> None:
    assert errors.__doc__ is not None
    for kind in kinds():
        (line,) = [line for line in errors.__doc__.splitlines() if f" {kind.__name__} " in f" {line} "]
        if issubclass(kind, AccessError) and kind is not AccessError:
            assert f"HTTP {kind.http_status}" in line
            assert kind.exit_code == AccessError.exit_code
        else:
            assert f"exit {kind.exit_code}" in line


def test_refusals_have_the_status_that_http_has_for_them() -> None:
    refusals = (Unauthorized, Forbidden, UnknownAgent, UnknownSession, TooFarBehind, LinkGone, LinkExpired)
    assert [kind.http_status for kind in refusals] == [401, 403, 404, 404, 409, 410, 410]


def test_why_a_link_cannot_be_resumed_is_one_word_for_each_reason() -> None:
    assert [kind.reason for kind in (TooFarBehind, LinkGone, LinkExpired)] == ["too_far_behind", "unknown", "expired"]


def test_no_two_refusals_say_the_same_to_a_program() -> None:
    words = [kind.reason for kind in kinds() if kind is not AccessError]
    assert len(set(words)) == len(words)


def test_a_configuration_error_begins_with_its_place() -> None:
    assert str(ConfigError("is wrong", file="a.toml", line=3, key="x.y")) == "a.toml:3: x.y: is wrong"
    assert str(ConfigError("is wrong", file="a.toml")) == "a.toml: is wrong"
    assert str(ConfigError("is wrong")) == "is wrong"
