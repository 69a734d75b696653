"""Merging the tokens of a gateway with those of its cluster."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.errors import ConfigError
from acp_gateway.security import shared_tokens
from acp_gateway.security.shared_tokens import Known, KnownFile, Merge, decode_token, encode_token, is_shared, merge
from acp_gateway.security.token_store import Token

NONE: dict[str, bytes] = {}


def token(number: int = 1, **fields: object) -> Token:
    made = Token(
        id=f"{number:08x}", label="x", identity="ann", agents=None, sha256="0" * 64, created="2026-01-01T00:00:00Z"
    )
    return msgspec.structs.replace(made, **fields)


def entries(*tokens: Token) -> dict[str, bytes]:
    return {each.id: encode_token(each) for each in tokens}


def known(*tokens: Token, revoked: tuple[str, ...] = ()) -> Known:
    """The result of a comparison in which these were the same."""
    return Known(merge(Known(), tokens, entries(*tokens)).after.entries, revoked)


def test_new_token_is_written_to_the_directory() -> None:
    merged = merge(Known(), [token()], NONE)
    assert (merged.tokens, merged.put, merged.revoke) == ([token()], [token()], [])
    assert merged.after == merged.before == known(token())


def test_token_of_another_node_is_taken() -> None:
    merged = merge(Known(), [token(1)], entries(token(1), token(2)))
    assert (merged.tokens, merged.put) == ([token(1), token(2)], [])


def test_token_that_has_gone_here_is_revoked_everywhere() -> None:
    merged = merge(known(token()), [], entries(token()))
    assert (merged.tokens, merged.revoke) == ([], [token().id])
    assert merged.before == Known({}, (token().id,))


def test_token_that_is_revoked_elsewhere_goes_and_does_not_come_back() -> None:
    merged = merge(known(token()), [token()], NONE, {token().id})
    assert (merged.tokens, merged.put, merged.revoke) == ([], [], [])
    again = merge(merged.after, [], entries(token()))
    assert (again.tokens, again.revoke) == ([], [token().id])


def test_emptied_directory_gets_tokens_and_revocations_again() -> None:
    merged = merge(known(token(1), revoked=("ff",)), [token(1)], NONE)
    assert (merged.tokens, merged.put, merged.revoke) == ([token(1)], [token(1)], ["ff"])


def test_revocation_while_the_directory_is_lost_is_remembered() -> None:
    merged = merge(known(token(1), token(2)), [token(2)], None)
    assert merged.after == known(token(2), revoked=(token(1).id,))
    later = merge(merged.after, [token(2)], entries(token(1), token(2)))
    assert (later.tokens, later.revoke) == ([token(2)], [token(1).id])


@pytest.mark.parametrize("is_own", [True, False])
def test_revocation_of_a_token_that_nodes_told_each_other_while_the_directory_was_lost_is_remembered(
    is_own: bool,
) -> None:
    rotated = token(rotated="2026-02-01T00:00:00Z")
    before = merge(Known(), [rotated] if is_own else [], None, told=[] if is_own else [rotated]).after
    assert merge(before, [rotated], None, told=[rotated]).tokens == [rotated]
    revoked = merge(before, [], None, told=[rotated])
    assert (revoked.tokens, revoked.after.revoked) == ([], (rotated.id,))
    # The directory gets both.
    assert merge(revoked.after, [], NONE).revoke == [rotated.id]
    assert merge(before, [rotated], NONE).put == [rotated]


def test_missing_file_of_tokens_revokes_nothing_and_gets_those_of_the_directory() -> None:
    merged = merge(known(token()), None, entries(token()))
    assert (merged.tokens, merged.revoke) == ([token()], [])
    lost = merge(known(token()), None, None)
    assert (lost.tokens, lost.after) == ([], known(token()))


def test_rotated_token_replaces_the_one_before_on_either_side() -> None:
    rotated = token(sha256="1" * 64, rotated="2026-01-02T00:00:00Z")
    here = merge(known(token()), [rotated], entries(token()))
    assert (here.tokens, here.put) == ([rotated], [rotated])
    assert here.before == known(token())
    assert here.after == known(rotated)
    there = merge(known(token()), [token()], entries(rotated))
    assert (there.tokens, there.put, there.after) == ([rotated], [], known(rotated))


def test_entry_from_before_a_rotation_is_not_taken_and_is_replaced_in_the_directory() -> None:
    first, second = token(), token(sha256="1" * 64, rotated="2026-02-01T00:00:00Z")
    third = token(sha256="2" * 64, rotated="2026-02-01T00:00:01Z")
    for own, former in ((second, first), (third, first), (third, second)):
        for before in (known(own), known(former), Known()):
            merged = merge(before, [own], entries(former))
            assert (merged.tokens, merged.put) == ([own], [own])


def test_token_that_was_rotated_on_both_sides_is_the_later_one() -> None:
    first = token(sha256="1" * 64, rotated="2026-01-02T00:00:00Z")
    second = token(sha256="2" * 64, rotated="2026-01-03T00:00:00Z")
    assert merge(known(token()), [first], entries(second)).tokens == [second]
    merged = merge(known(token()), [second], entries(first))
    assert (merged.tokens, merged.put) == ([second], [second])


def test_two_tokens_with_one_id_count_where_they_were_made() -> None:
    other = token(created="2025-01-01T00:00:00Z", identity="bob")
    merged = merge(Known(), [token()], entries(other))
    assert (merged.tokens, merged.put) == ([token()], [])


@pytest.mark.parametrize("fields", [{"local": True}, {"session": "s"}])
def test_local_tokens_and_those_of_guests_are_not_shared(fields: dict[str, Any]) -> None:
    own = token(**fields)
    assert not is_shared(own)
    merged = merge(Known(), [own], NONE)
    assert (merged.tokens, merged.put, merged.after) == ([own], [], Known())
    assert decode_token(own.id, encode_token(own)) is None


def test_entry_that_is_not_understood_is_left_as_it_is() -> None:
    for entry in (b"", b"{}", b"\xff", encode_token(token(2)), encode_token(token())[:-1] + b',"more":1}'):
        merged = merge(Known(), [token()], {token().id: entry})
        assert (merged.tokens, merged.put) == ([token()], [])
        assert merge(Known(), [], {token().id: entry}).tokens == []


def test_no_more_tokens_than_the_maximum_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_tokens, "MAX_TOKENS", 3)
    assert len(merge(Known(), [token(1)], entries(*map(token, range(2, 9)))).tokens) == 3


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["create", "revoke", "sync", "lose", "empty"]))))
def test_revoked_token_never_comes_back_and_all_nodes_agree_in_the_end(steps: list[tuple[int, str]]) -> None:
    nodes: list[list[Token]] = [[], [], []]
    bases = [Known(), Known(), Known()]
    directory: dict[str, bytes] = {}
    revocations: set[str] = set()
    revoked: set[str] = set()
    made = 0

    def sync(number: int, *, reached: bool = True) -> None:
        merged: Merge = merge(
            bases[number], nodes[number], dict(directory) if reached else None, revocations if reached else ()
        )
        nodes[number], bases[number] = merged.tokens, merged.before
        if reached:
            for token_id in merged.revoke:
                directory.pop(token_id, None)
                revocations.add(token_id)
            directory.update(entries(*merged.put))
            bases[number] = merged.after

    for number, step in steps:
        if step == "create":
            made += 1
            nodes[number].append(token(made))
        elif step == "revoke" and nodes[number]:
            gone = nodes[number].pop()
            # No other node knows one that was never compared.
            if gone.id in bases[number].entries:
                revoked.add(gone.id)
        elif step == "lose":
            sync(number, reached=False)
        elif step == "empty":
            directory.clear()
            revocations.clear()
        else:
            sync(number)
    for number in (0, 1, 2, 0, 1, 2):
        sync(number)
    ids = [{each.id for each in tokens} for tokens in nodes]
    assert ids[0] == ids[1] == ids[2]
    assert not ids[0] & revoked


@pytest.fixture
def write_known(tmp_path: Path) -> Callable[[Known], None]:
    return KnownFile(tmp_path).write


def test_known_entries_are_remembered_in_a_file_for_its_owner_alone(
    tmp_path: Path, write_known: Callable[[Known], None]
) -> None:
    assert KnownFile(tmp_path).read() == Known()
    write_known(Known({"a": "b"}, ("c",)))
    assert KnownFile(tmp_path).read() == Known({"a": "b"}, ("c",))
    assert (tmp_path / "cluster-tokens.json").stat().st_mode & 0o777 == 0o600
    (tmp_path / "cluster-tokens.json").write_text("nonsense")
    with pytest.raises(ConfigError, match="list of shared tokens"):
        KnownFile(tmp_path).read()
