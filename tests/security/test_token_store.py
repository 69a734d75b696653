"""The tokens of a gateway: created, listed, rotated, revoked, presented."""

import fcntl
import json
import logging
import os
import pwd
import re
import stat
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.errors import ConfigError, Unauthorized, UsageError
from acp_gateway.security import token_format
from acp_gateway.security import token_store as token_file
from acp_gateway.security.token_store import Role, Token, TokenStore, default_identity
from tests.kit.clocks import Clock

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users, which only root may")

UNUSED_UID = 3_999_999_999
"""A uid that no machine has a name for."""


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def store(state_dir: Path) -> TokenStore:
    return TokenStore(state_dir)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timed(state_dir: Path, clock: Clock) -> TokenStore:
    """A store whose time is the clock's."""
    return TokenStore(state_dir, clock)


@pytest.fixture
def file(state_dir: Path) -> Path:
    return state_dir / "tokens.json"


def edit(file: Path, change: Callable[[Any], None]) -> None:
    content = json.loads(file.read_bytes())
    change(content)
    file.write_text(json.dumps(content))


def refuses(store: TokenStore, secret: str | None) -> str:
    with pytest.raises(Unauthorized) as caught:
        store.authenticate(secret)
    return str(caught.value)


# Creating, listing, revoking


def test_a_created_token_lets_its_holder_in(store: TokenStore) -> None:
    token, secret = store.create("laptop", "ann", None)
    assert store.authenticate(secret) == token


def test_a_name_counts_for_the_token_below_whose_identity_it_is(store: TokenStore, state_dir: Path) -> None:
    for identity in ("door", "team/ann", "door/own"):
        store.create(identity, identity, None)
    for identity, account in (
        ("door/bob", "door"),
        ("door/x/y", "door"),
        ("door/own", "door/own"),
        ("team/ann", "team/ann"),
        ("team/bob", "team/bob"),
        ("doors/bob", "doors/bob"),
        ("ann", "ann"),
    ):
        assert store.account_of(identity) == account
    (state_dir / "tokens.json").write_text("nothing")
    assert store.account_of("door/bob") == "door/bob"


def test_tokens_are_listed_in_the_order_of_their_creation(store: TokenStore) -> None:
    created = [store.create(label, "ann", None)[0] for label in ("laptop", "phone", "tablet")]
    assert store.tokens() == created


def test_before_the_first_token_the_list_is_empty_and_nothing_is_created(store: TokenStore, state_dir: Path) -> None:
    assert store.tokens() == []
    assert not state_dir.exists()


def test_a_token_remembers_what_it_was_created_with(store: TokenStore) -> None:
    token, _ = store.create("Ann's laptop", "ann", ["demo", "goose", "demo"])
    assert (token.label, token.identity, token.agents) == ("Ann's laptop", "ann", ("demo", "goose"))


def test_a_token_lets_its_holder_do_everything_and_lives_until_it_is_revoked_unless_told_otherwise(
    store: TokenStore,
) -> None:
    token, _ = store.create("laptop", "ann", None)
    assert (token.role, token.session, token.expires) == ("controller", None, None)


def test_a_token_remembers_its_role_and_the_session_that_it_is_for(store: TokenStore, state_dir: Path) -> None:
    token, secret = store.create("laptop", "ann", None, role="observer", session="s 1")
    assert (token.role, token.session) == ("observer", "s 1")
    assert TokenStore(state_dir).authenticate(secret) == token


def test_the_time_of_creation_is_utc_in_iso_8601(store: TokenStore) -> None:
    created = datetime.fromisoformat(store.create("laptop", "ann", None)[0].created)
    assert created.utcoffset() == timedelta(0)
    assert created <= datetime.now(UTC)


def test_an_id_is_eight_hex_digits(store: TokenStore) -> None:
    token, _ = store.create("laptop", "ann", None)
    assert len(token.id) == 8
    int(token.id, 16)


def test_an_id_that_is_taken_is_not_given_again(store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter(["00000001", "00000001", "00000002"])
    monkeypatch.setattr("secrets.token_hex", lambda _length: next(drawn))
    assert [store.create("laptop", "ann", None)[0].id for _ in range(2)] == ["00000001", "00000002"]


@pytest.mark.parametrize("text", ["", "  ", "two\nlines", "\x1b[31mred", "\ud800"])
def test_a_label_or_an_identity_is_one_printable_line(store: TokenStore, state_dir: Path, text: str) -> None:
    with pytest.raises(UsageError, match="a token's label has to be"):
        store.create(text, "ann", None)
    with pytest.raises(UsageError, match="a token's identity has to be"):
        store.create("laptop", text, None)
    assert not state_dir.exists()


@pytest.mark.parametrize("session", ["", " ", "two\nlines", "\x1b[31mred", "\ud800", "s" * 1025])
def test_a_session_is_one_printable_line_of_some_length(store: TokenStore, state_dir: Path, session: str) -> None:
    with pytest.raises(UsageError, match="a token's session has to be"):
        store.create("laptop", "ann", None, session=session)
    with pytest.raises(UsageError, match="a token's session has to be"):
        store.create_guest(session, role="observer", lifetime=None)
    assert not state_dir.exists()


def test_a_token_for_no_agent_at_all_is_refused(store: TokenStore, state_dir: Path) -> None:
    with pytest.raises(UsageError, match="opens nothing"):
        store.create("laptop", "ann", [])
    assert not state_dir.exists()


def test_a_token_may_be_for_some_workspaces_only(store: TokenStore, state_dir: Path) -> None:
    token, secret = store.create("laptop", "ann", None, workspaces=["proj", "docs", "proj"])
    assert token.workspaces == ("proj", "docs")
    assert TokenStore(state_dir).authenticate(secret) == token
    assert store.create("phone", "ann", None)[0].workspaces is None


def test_a_token_for_no_workspace_at_all_is_refused(store: TokenStore, state_dir: Path) -> None:
    with pytest.raises(UsageError, match="opens no session"):
        store.create("laptop", "ann", None, workspaces=[])
    assert not state_dir.exists()


@pytest.mark.parametrize(
    "more", [{"agents": ["a"]}, {"agents": None, "session": "s"}, {"agents": None, "workspaces": ["w"]}]
)
def test_a_token_of_the_role_metrics_has_no_agents_session_or_workspaces(
    more: dict[str, Any], store: TokenStore, state_dir: Path
) -> None:
    with pytest.raises(UsageError, match="a token of the role metrics opens no session"):
        store.create("prometheus", "ann", role="metrics", **more)
    assert not state_dir.exists()


@pytest.mark.parametrize(
    "more",
    [
        {"role": "tunnel"},
        {"role": "controller", "nodes": ["gpu2"]},
        {"role": "tunnel", "nodes": ["gpu2"], "session": "s"},
        {"role": "tunnel", "nodes": ["gpu2"], "may_speak_for": ["bob"]},
    ],
)
def test_a_token_of_the_role_tunnel_has_nodes_and_no_other_has(
    more: dict[str, Any], store: TokenStore, state_dir: Path
) -> None:
    with pytest.raises(UsageError, match="role tunnel"):
        store.create("laptop", "ann", None, **more)
    assert not state_dir.exists()


def test_a_token_of_the_role_tunnel_is_local_and_makes_the_file_unreadable_for_older_programs(
    store: TokenStore, file: Path
) -> None:
    token, secret = store.create("laptop", "ann", None, role="tunnel", nodes=["gpu2", "gpu2"])
    assert (token.nodes, token.local) == (("gpu2",), True)
    assert json.loads(file.read_text())["version"] == 5
    assert store.authenticate(secret) == token


@pytest.mark.parametrize(
    ("role", "session", "kind", "prefix"),
    [
        ("controller", None, "controller", "acpgw_"),
        ("observer", None, "observer", "acpgwo_"),
        ("controller", "s1", "guest", "acpgwg_"),
        ("observer", "s1", "guest", "acpgwg_"),
        ("metrics", None, "metrics", "acpgwm_"),
        ("tunnel", None, "tunnel", "acpgwt_"),
    ],
)
def test_the_text_of_a_token_begins_with_its_kind(
    store: TokenStore, role: Role, session: str | None, kind: token_format.Kind, prefix: str
) -> None:
    nodes = ["gpu2"] if role == "tunnel" else []
    token, secret = store.create("laptop", "ann", None, role=role, session=session, nodes=nodes)
    assert (token.kind, secret.startswith(prefix)) == (kind, True)


def test_a_token_that_an_observer_got_before_there_were_kinds_stays_valid(store: TokenStore, file: Path) -> None:
    token, _ = store.create("tv", "ann", None, role="observer")
    secret = token_format.mint()

    def as_it_was(content: Any) -> None:
        content["tokens"][0]["sha256"] = token_format.digest(secret)

    edit(file, as_it_was)
    found = store.authenticate(secret)
    assert (found.id, found.role, found.kind) == (token.id, "observer", "observer")


def test_a_token_is_found_by_its_id(store: TokenStore) -> None:
    created = [store.create(label, "ann", None)[0] for label in ("laptop", "phone")]
    assert [store.find(token.id) for token in created] == created


def test_revoking_says_what_was_revoked_and_leaves_the_others(store: TokenStore) -> None:
    laptop, _ = store.create("laptop", "ann", None)
    phone, phones_secret = store.create("phone", "ann", None)
    assert store.revoke(laptop.id) == laptop
    assert store.tokens() == [phone]
    assert store.authenticate(phones_secret) == phone


def test_revoking_an_unknown_id_names_the_command_that_shows_the_ids(store: TokenStore, state_dir: Path) -> None:
    with pytest.raises(UsageError, match="`acp-gateway token list`"):
        store.revoke("01234567")
    assert not state_dir.exists()


def test_a_token_that_is_kept_has_no_end_any_more(timed: TokenStore, clock: Clock) -> None:
    token, secret = timed.create("laptop", "ann", None, lifetime=60)
    assert timed.keep(token.id).expires is None
    clock.now += 61
    assert timed.authenticate(secret).id == token.id
    late, _ = timed.create("laptop", "ann", None, lifetime=60)
    clock.now += 61
    with pytest.raises(UsageError, match="expired at"):
        timed.keep(late.id)
    with pytest.raises(UsageError, match="no token has that id"):
        timed.keep("00000000")


BY_ID: list[Callable[[TokenStore, str], object]] = [TokenStore.find, TokenStore.rotate, TokenStore.revoke]


@pytest.mark.parametrize("act", BY_ID)
def test_a_token_taken_for_its_id_is_not_repeated_and_should_be_replaced(
    store: TokenStore, act: Callable[[TokenStore, str], object]
) -> None:
    token, secret = store.create("laptop", "ann", None)
    with pytest.raises(UsageError, match=f"`acp-gateway token rotate {token.id}`") as caught:
        act(store, secret)
    assert secret not in str(caught.value)
    assert store.authenticate(secret) == token


@pytest.mark.parametrize("act", BY_ID)
@pytest.mark.parametrize("kind", get_args(token_format.Kind))
def test_a_token_given_for_an_id_is_not_repeated_in_the_error(
    store: TokenStore, state_dir: Path, kind: token_format.Kind, act: Callable[[TokenStore, str], object]
) -> None:
    secret = token_format.mint(kind)
    with pytest.raises(UsageError, match=r"is a token, not the id of one; `acp-gateway token list`") as caught:
        act(store, secret)
    assert secret not in str(caught.value)
    assert not state_dir.exists()


@pytest.mark.parametrize("act", BY_ID)
def test_what_is_not_an_id_is_not_repeated(store: TokenStore, act: Callable[[TokenStore, str], object]) -> None:
    _, secret = store.create("laptop", "ann", None)
    with pytest.raises(UsageError, match="no token has that id; `acp-gateway token list` shows the ids") as caught:
        act(store, secret[:-1])
    assert secret[:-1] not in str(caught.value)


@pytest.mark.parametrize("act", BY_ID)
def test_a_label_is_answered_with_the_ids_of_its_tokens(
    store: TokenStore, act: Callable[[TokenStore, str], object]
) -> None:
    ids = [store.create("laptop", "ann", None)[0].id for _ in range(2)]
    with pytest.raises(UsageError, match=f"that is a label, not the id of a token: {' or '.join(ids)}$"):
        act(store, "laptop")


# Rotating


def test_a_rotated_token_has_a_new_secret_and_is_otherwise_the_same(timed: TokenStore, clock: Clock) -> None:
    old, old_secret = timed.create("tv", "ann", ["demo"], role="observer", workspaces=["proj"], lifetime=7200)
    clock.now += 60
    new, new_secret = timed.rotate(old.id)
    assert new_secret != old_secret
    digest = token_format.digest(new_secret)
    assert new == msgspec.structs.replace(old, sha256=digest, rotated="2026-03-01T12:01:00Z")
    assert timed.authenticate(new_secret) == new
    assert timed.tokens() == [new]


@pytest.mark.parametrize(("role", "session"), [("controller", None), ("observer", None), ("observer", "s1")])
def test_a_rotated_token_is_of_the_same_kind(store: TokenStore, role: Role, session: str | None) -> None:
    token, secret = store.create("laptop", "ann", None, role=role, session=session)
    _, new_secret = store.rotate(token.id)
    assert new_secret.split("_")[0] == secret.split("_")[0]


@pytest.mark.parametrize(
    ("lifetime", "expires"), [("as before", "2026-03-01T13:00:00Z"), (60.5, "2026-03-01T12:31:01Z"), (None, None)]
)
def test_rotating_may_set_another_end(timed: TokenStore, clock: Clock, lifetime: Any, expires: str | None) -> None:
    token, _ = timed.create("laptop", "ann", None, lifetime=3600)
    clock.now += 1800
    assert timed.rotate(token.id, lifetime)[0].expires == expires


def test_a_token_whose_time_is_over_is_rotated_only_with_a_new_end(timed: TokenStore, clock: Clock) -> None:
    token, _ = timed.create("laptop", "ann", None, lifetime=60)
    clock.now += 60
    with pytest.raises(UsageError, match=f"token {token.id} expired at 2026-03-01T12:01:00Z; .* with --expires"):
        timed.rotate(token.id)
    assert timed.tokens() == [token]
    rotated, secret = timed.rotate(token.id, 60)
    assert timed.authenticate(secret) == rotated


def test_rotating_an_unknown_id_names_the_command_that_shows_the_ids(store: TokenStore, state_dir: Path) -> None:
    with pytest.raises(UsageError, match="`acp-gateway token list`"):
        store.rotate("01234567")
    assert not state_dir.exists()


def test_the_old_secret_lets_people_in_until_its_grace_is_over(timed: TokenStore, clock: Clock) -> None:
    old, secret = timed.create("laptop", "ann", None, lifetime=3600)
    new, new_secret = timed.rotate(old.id, grace=60)
    early = timed.authenticate(secret)
    for token in (old, early, timed.authenticate(new_secret)):
        assert timed.is_current(token)
    clock.now += 60
    for token in (old, early):
        assert (timed.is_current(token), timed.is_rotated(token)) == (False, True)
    with pytest.raises(Unauthorized):
        timed.authenticate(secret)
    assert timed.authenticate(new_secret) == new


def test_of_two_old_secrets_only_the_last_has_its_grace(timed: TokenStore) -> None:
    first, secret = timed.create("laptop", "ann", None)
    _, second_secret = timed.rotate(first.id, grace=60)
    timed.rotate(first.id, grace=60)
    assert timed.authenticate(second_secret).id == first.id
    with pytest.raises(Unauthorized):
        timed.authenticate(secret)


def test_a_grace_ends_with_the_token_itself(timed: TokenStore, clock: Clock) -> None:
    token, secret = timed.create("laptop", "ann", None)
    timed.rotate(token.id, 30, grace=60)
    early = timed.authenticate(secret)
    clock.now += 30
    assert not timed.is_current(token)
    assert not timed.is_current(early)
    with pytest.raises(Unauthorized):
        timed.authenticate(secret)


def test_a_revoked_token_has_no_grace(timed: TokenStore) -> None:
    token, secret = timed.create("laptop", "ann", None)
    timed.rotate(token.id, grace=60)
    timed.revoke(token.id)
    assert not timed.is_current(token)
    with pytest.raises(Unauthorized):
        timed.authenticate(secret)


def test_of_two_entries_of_a_token_the_later_one_is_told_by_its_time_also_within_a_second(
    timed: TokenStore, clock: Clock
) -> None:
    token, _ = timed.create("laptop", "ann", None)
    changes = [token.changed, *(timed.rotate(token.id)[0].changed for _ in range(3))]
    clock.now -= 3600
    changes.append(timed.rotate(token.id)[0].changed)
    assert changes == sorted(set(changes))


def test_a_token_that_was_rotated_is_told_from_one_that_was_revoked(store: TokenStore, state_dir: Path) -> None:
    rotated, _ = store.create("laptop", "ann", None)
    revoked, _ = store.create("phone", "ann", None)
    other = TokenStore(state_dir)
    other.rotate(rotated.id)
    other.revoke(revoked.id)
    assert (store.is_rotated(rotated), store.is_rotated(revoked)) == (True, False)


def test_a_token_as_it_is_counts_as_current_and_not_as_rotated(store: TokenStore) -> None:
    old, _ = store.create("laptop", "ann", None)
    assert not store.is_rotated(old)
    new, _ = store.rotate(old.id)
    assert (store.is_current(new), store.is_rotated(new)) == (True, False)


def test_a_token_that_was_rotated_twice_or_got_another_end_is_rotated(timed: TokenStore, clock: Clock) -> None:
    first, _ = timed.create("laptop", "ann", None, lifetime=3600)
    second, _ = timed.rotate(first.id, 60)
    clock.now += 1
    timed.rotate(first.id, None)
    assert (timed.is_rotated(first), timed.is_rotated(second)) == (True, True)


def test_a_rotated_token_whose_time_is_over_is_merely_over(timed: TokenStore, clock: Clock) -> None:
    token, _ = timed.create("laptop", "ann", None)
    timed.rotate(token.id, 60)
    assert timed.is_rotated(token)
    clock.now += 60
    assert not timed.is_rotated(token)


def test_a_token_that_was_rotated_and_then_revoked_is_revoked(store: TokenStore) -> None:
    token, _ = store.create("laptop", "ann", None)
    store.rotate(token.id)
    store.revoke(token.id)
    assert not store.is_rotated(token)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("label", "tablet"),
        ("identity", "bob"),
        ("agents", ["demo"]),
        ("created", "2001-01-01T00:00:00Z"),
        ("role", "observer"),
        ("session", "s1"),
        ("workspaces", []),
    ],
)
def test_a_rotated_token_that_allows_something_else_is_not_merely_rotated(
    store: TokenStore, file: Path, key: str, value: object
) -> None:
    token, _ = store.create("laptop", "ann", None)
    store.rotate(token.id)

    def change(content: Any) -> None:
        content["tokens"][0][key] = value

    edit(file, change)
    assert not store.is_rotated(token)


def test_with_a_file_that_cannot_be_trusted_no_token_is_rotated(store: TokenStore, file: Path) -> None:
    token, _ = store.create("laptop", "ann", None)
    store.rotate(token.id)
    file.chmod(0o644)
    assert not store.is_rotated(token)


# For a guest


@pytest.mark.parametrize("role", ["controller", "observer"])
def test_a_guests_token_is_for_one_session_and_an_identity_of_its_own(timed: TokenStore, role: Role) -> None:
    token, secret = timed.create_guest("s1", role=role, lifetime=60)
    assert timed.authenticate(secret) == token
    assert (token.session, token.role, token.agents, token.label) == ("s1", role, None, "guest")
    assert token.expires == "2026-03-01T12:01:00Z"
    assert re.fullmatch("guest-[0-9a-f]{8}", token.identity)


def test_a_guests_token_may_have_a_label_and_no_end(store: TokenStore) -> None:
    token, _ = store.create_guest("s1", role="observer", lifetime=None, label="Bob")
    assert (token.label, token.expires) == ("Bob", None)


@pytest.mark.parametrize("label", ["", "two\nlines"])
def test_a_guests_label_is_one_printable_line(store: TokenStore, state_dir: Path, label: str) -> None:
    with pytest.raises(UsageError, match="a token's label has to be"):
        store.create_guest("s1", role="observer", lifetime=None, label=label)
    assert not state_dir.exists()


def test_no_guest_gets_the_identity_of_another(store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create("laptop", "guest-00000001", None)
    drawn = iter(["00000001", "00000002", "0000000a", "00000002", "00000003", "0000000b"])
    monkeypatch.setattr("secrets.token_hex", lambda _length: next(drawn))
    guests = [store.create_guest("s1", role="observer", lifetime=None)[0] for _ in range(2)]
    assert [guest.identity for guest in guests] == ["guest-00000002", "guest-00000003"]


# Whose it is


def test_without_an_identity_a_token_belongs_to_the_gateways_user(
    store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = {os.geteuid(): pwd.struct_passwd(("ann", "x", os.geteuid(), 1, "", "/home/ann", "/bin/sh"))}
    monkeypatch.setattr("pwd.getpwuid", users.__getitem__)
    assert store.create("laptop", None, None)[0].identity == "ann"


@as_root
def test_the_gateways_user_is_who_owns_the_state_directory(state_dir: Path) -> None:
    other = next(user for user in pwd.getpwall() if user.pw_uid != 0)
    state_dir.mkdir()
    os.chown(state_dir, other.pw_uid, -1)
    assert default_identity(state_dir) == other.pw_name


@as_root
def test_a_user_without_a_name_goes_by_the_number(state_dir: Path) -> None:
    state_dir.mkdir()
    os.chown(state_dir, UNUSED_UID, -1)
    assert default_identity(state_dir) == f"uid-{UNUSED_UID}"


# At the door


def test_without_a_token_file_all_tokens_are_refused(store: TokenStore) -> None:
    refuses(store, token_format.mint())


def test_without_a_token_in_the_file_all_tokens_are_refused(store: TokenStore) -> None:
    token, secret = store.create("laptop", "ann", None)
    store.revoke(token.id)
    refuses(store, secret)


def test_all_refusals_sound_the_same(store: TokenStore) -> None:
    revoked, secret = store.create("laptop", "ann", None)
    good = store.create("phone", "ann", None)[1]
    store.revoke(revoked.id)
    presented = [None, "", "hunter2", good[:-1], good + " ", "\ud800", "x" * 100_000, token_format.mint(), secret]
    assert {refuses(store, each) for each in presented} == {
        "no valid token; create one with `acp-gateway token create` on the gateway's machine"
    }


def test_what_the_file_holds_opens_nothing(store: TokenStore) -> None:
    token, _ = store.create("laptop", "ann", None)
    refuses(store, token.sha256)


def test_identify_also_finds_an_expired_token(timed: TokenStore, clock: Clock) -> None:
    token, secret = timed.create("laptop", "ann", None, lifetime=60)
    assert timed.identify(secret) == token
    clock.now += 60
    assert timed.identify(secret) == token


def test_what_is_not_a_token_of_this_gateway_is_not_identified(store: TokenStore) -> None:
    token, secret = store.create("laptop", "ann", None)
    others = [None, "", "hunter2", "\ud800", token_format.mint(), token.id, token.sha256, secret[:-1]]
    assert [store.identify(each) for each in others] == [None] * len(others)


# Its time


def test_a_token_lets_its_holder_in_until_its_time_is_over(timed: TokenStore, clock: Clock) -> None:
    token, secret = timed.create("laptop", "ann", None, lifetime=90)
    assert token.expires == "2026-03-01T12:01:30Z"
    clock.now += 89.9
    assert timed.authenticate(secret) == token
    assert timed.is_current(token)
    assert not timed.has_expired(token)
    clock.now += 0.1
    refuses(timed, secret)
    assert not timed.is_current(token)
    assert timed.has_expired(token)


def test_an_expired_token_is_refused_in_the_words_for_an_unknown_one(timed: TokenStore, clock: Clock) -> None:
    _, secret = timed.create("laptop", "ann", None, lifetime=1)
    clock.now += 1
    assert refuses(timed, secret) == refuses(timed, token_format.mint())


def test_a_token_has_at_least_the_time_that_it_was_given(timed: TokenStore, clock: Clock) -> None:
    clock.now += 0.9
    _, secret = timed.create("laptop", "ann", None, lifetime=1)
    clock.now += 0.99
    assert timed.authenticate(secret)


def test_a_token_without_an_end_outlives_every_other(timed: TokenStore, clock: Clock) -> None:
    token, secret = timed.create("laptop", "ann", None)
    clock.now += 100 * 365 * 86400
    assert timed.authenticate(secret) == token
    assert timed.is_current(token)
    assert not timed.has_expired(token)


def test_the_end_of_one_token_is_not_the_end_of_another(timed: TokenStore, clock: Clock) -> None:
    short, _ = timed.create("laptop", "ann", None, lifetime=60)
    long, secret = timed.create("phone", "ann", None, lifetime=120)
    clock.now += 60
    assert timed.authenticate(secret) == long
    assert (timed.is_current(short), timed.is_current(long)) == (False, True)


def test_an_expired_token_is_listed_until_it_is_revoked(timed: TokenStore, clock: Clock) -> None:
    token, _ = timed.create("laptop", "ann", None, lifetime=60)
    clock.now += 3600
    assert timed.tokens() == [token]
    assert timed.revoke(token.id) == token
    assert timed.tokens() == []


def test_without_a_clock_of_its_own_a_store_goes_by_the_machines(state_dir: Path) -> None:
    # Whatever that says: a token from long ago is over, and one from far in the future is not.
    past, future = Clock(), Clock()
    past.now = datetime(2001, 1, 1, tzinfo=UTC).timestamp()
    future.now = datetime(9001, 1, 1, tzinfo=UTC).timestamp()
    over, _ = TokenStore(state_dir, past).create("laptop", "ann", None, lifetime=60)
    fresh, _ = TokenStore(state_dir, future).create("phone", "ann", None, lifetime=60)
    assert (TokenStore(state_dir).is_current(over), TokenStore(state_dir).is_current(fresh)) == (False, True)


# A change of the file counts at once


def test_a_token_revoked_by_another_process_is_refused_at_once(store: TokenStore, state_dir: Path) -> None:
    token, secret = store.create("laptop", "ann", None)
    store.authenticate(secret)
    TokenStore(state_dir).revoke(token.id)
    refuses(store, secret)


def test_a_token_is_current_until_it_is_revoked(store: TokenStore, state_dir: Path) -> None:
    token, _ = store.create("laptop", "ann", None)
    assert store.is_current(token)
    TokenStore(state_dir).revoke(token.id)
    assert not store.is_current(token)


def test_a_token_whose_entry_was_changed_is_no_longer_current(store: TokenStore, file: Path) -> None:
    token, secret = store.create("laptop", "ann", None)

    def take_agents_away(content: Any) -> None:
        content["tokens"][0]["agents"] = ["demo"]

    edit(file, take_agents_away)
    assert not store.is_current(token)
    assert store.authenticate(secret).agents == ("demo",)


def test_a_change_that_leaves_size_and_time_of_writing_is_noticed(store: TokenStore, file: Path) -> None:
    _, secret = store.create("laptop", "ann", None)
    store.authenticate(secret)
    before = file.stat()
    file.write_text(file.read_text().replace("laptop", "tablet"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert store.authenticate(secret).label == "tablet"


def test_a_file_that_has_not_changed_for_a_while_is_not_read_again(
    store: TokenStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, secret = store.create("laptop", "ann", None)
    later = file.stat().st_ctime_ns + 2_000_000_000
    monkeypatch.setattr("time.time_ns", lambda: later)
    store.authenticate(secret)
    monkeypatch.setattr(store._file._file, "_read", lambda: pytest.fail("read again"))
    store.authenticate(secret)


def test_after_the_removal_of_the_token_file_all_tokens_are_refused(store: TokenStore, file: Path) -> None:
    token, secret = store.create("laptop", "ann", None)
    store.authenticate(secret)
    file.unlink()
    refuses(store, secret)
    assert not store.is_current(token)


not_as_root = pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")


# At rest


def test_the_file_holds_the_digest_and_not_the_token(store: TokenStore, file: Path) -> None:
    token, secret = store.create("laptop", "ann", ["demo"], workspaces=["proj"])
    assert json.loads(file.read_bytes()) == {
        "version": 3,
        "tokens": [
            {
                "id": token.id,
                "label": "laptop",
                "identity": "ann",
                "agents": ["demo"],
                "sha256": token_format.digest(secret),
                "created": token.created,
                "workspaces": ["proj"],
            }
        ],
    }


@pytest.mark.parametrize(
    ("options", "version"),
    [
        ({}, 1),
        ({"role": "observer"}, 2),
        ({"session": "s1"}, 2),
        ({"lifetime": 60.0}, 2),
        ({"workspaces": ["proj"]}, 3),
        ({"local": True}, 4),
        ({"role": "tunnel", "nodes": ["gpu2"]}, 5),
        ({"may_speak_for": ["bob"]}, 4),
        ({"made_for": "vscode"}, 7),
    ],
    ids=str,
)
def test_a_file_is_of_the_oldest_version_that_has_all_members_of_its_entries(
    store: TokenStore, file: Path, options: dict[str, Any], version: int
) -> None:
    # A gateway of that age, which runs, goes on to accept its tokens; one that knows only version 2 would take no
    # notice of workspaces, and refuses every version that it doesn't know.
    laptop, secret = store.create("laptop", "ann", ["demo"])
    assert json.loads(file.read_bytes())["version"] == 1
    phone, _ = store.create("phone", "ann", None, **options)
    assert json.loads(file.read_bytes())["version"] == version
    assert (store.tokens(), store.authenticate(secret)) == ([laptop, phone], laptop)
    store.rotate(laptop.id, grace=60.0)
    assert json.loads(file.read_bytes())["version"] == max(version, 3)
    store.revoke(laptop.id)
    assert json.loads(file.read_bytes())["version"] == version
    store.revoke(phone.id)
    assert store.tokens() == []


def test_every_member_of_an_entry_belongs_to_a_version() -> None:
    first = {"id", "label", "identity", "agents", "sha256", "created"}
    assert {field.name for field in msgspec.structs.fields(Token)} == first | token_file._SINCE.keys()


def test_nothing_is_left_beside_the_file_but_the_lock(store: TokenStore, state_dir: Path) -> None:
    store.create("laptop", "ann", None)
    assert sorted(path.name for path in state_dir.iterdir()) == ["tokens.json", "tokens.lock"]


def test_what_a_killed_writer_left_is_not_an_obstacle(store: TokenStore, state_dir: Path) -> None:
    state_dir.mkdir()
    (state_dir / "tokens.json.new").write_text("half a li")
    token, _ = store.create("laptop", "ann", None)
    assert store.tokens() == [token]


def test_a_repr_holds_no_digest(store: TokenStore) -> None:
    token, secret = store.create("laptop", "ann", None, role="observer", session="s1", lifetime=60)
    assert token.id in repr(token)
    assert (
        "role='observer', session='s1', workspaces=None, may_speak_for=(), nodes=(), files=False, ports=False, "
        f"made_for=None, expires='{token.expires}'" in repr(token)
    )
    assert token.sha256 not in repr([token])
    assert secret not in repr([token])


def test_a_token_that_lets_a_guest_use_files_makes_the_file_unreadable_for_older_programs(
    store: TokenStore, file: Path
) -> None:
    token, secret = store.create_guest("s1", role="controller", lifetime=None, files=True)
    assert token.files
    assert json.loads(file.read_text())["version"] == 6
    assert store.authenticate(secret) == token
    assert not store.create("laptop", "ann", None)[0].files


@given(
    label=st.text(),
    identity=st.text() | st.none(),
    agents=st.none() | st.tuples(st.text()),
    role=st.sampled_from(get_args(Role)),
    session=st.none() | st.text(),
    workspaces=st.none() | st.tuples(st.text()),
    rotated=st.none() | st.just("2026-03-01T12:00:00Z"),
)
def test_no_repr_of_any_token_holds_its_digest(**fields: Any) -> None:
    token = Token(
        id="00000000", sha256=token_format.digest(token_format.mint()), created="2026-03-01T12:00:00Z", **fields
    )
    assert token.sha256 not in f"{token!r} {token} {[token]}"


def test_a_writer_reads_and_writes_while_it_keeps_other_writers_out(
    store: TokenStore, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, _ = store.create("laptop", "ann", None)
    alone: list[str] = []

    def noting_the_lock(step: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any) -> Any:
            with (state_dir / "tokens.lock").open() as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    alone.append(step.__name__)
            return step(*args)

        return noted

    monkeypatch.setattr(store._file._file, "_read", noting_the_lock(store._file._file._read))
    monkeypatch.setattr(store._file, "write", noting_the_lock(store._file.write))
    store.create("phone", "ann", None)
    assert alone == ["_read", "write"]
    for change in (store.rotate, store.revoke):
        alone.clear()
        change(token.id)
        assert (alone[0], alone[-1]) == ("_read", "write")


def test_creating_waits_until_another_writer_is_done(store: TokenStore, state_dir: Path) -> None:
    with ThreadPoolExecutor() as pool:
        for _ in pool.map(lambda number: TokenStore(state_dir).create(f"device {number}", "ann", None), range(8)):
            pass
    assert sorted(token.label for token in store.tokens()) == [f"device {number}" for number in range(8)]


def test_of_several_who_rotate_at_once_the_last_one_has_the_token(store: TokenStore, state_dir: Path) -> None:
    token, old_secret = store.create("laptop", "ann", None)
    with ThreadPoolExecutor() as pool:
        secrets = [secret for _, secret in pool.map(lambda _: TokenStore(state_dir).rotate(token.id), range(8))]
    assert sum(store.identify(secret) is not None for secret in [old_secret, *secrets]) == 1
    assert store.identify(old_secret) is None
    assert [known.id for known in store.tokens()] == [token.id]


@pytest.mark.skipif(sys.platform != "linux", reason="modes are mended where there are fences")
def test_a_chmod_of_a_file_already_read_is_taken_back_at_once_and_a_change_by_others_is_refused(
    store: TokenStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, secret = store.create("laptop", "ann", None)
    later = file.stat().st_ctime_ns + 3_600_000_000_000
    monkeypatch.setattr("time.time_ns", lambda: later)
    store.authenticate(secret)
    file.chmod(0o644)
    assert store.authenticate(secret) == token
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o666)
    file.write_bytes(file.read_bytes() + b" ")
    refuses(store, secret)
    assert not store.is_current(token)
    file.chmod(0o600)
    assert store.authenticate(secret) == token


@as_root
def test_a_token_file_of_another_user_is_refused(store: TokenStore, file: Path) -> None:
    _, secret = store.create("laptop", "ann", None)
    os.chown(file, UNUSED_UID, -1)
    with pytest.raises(ConfigError, match=f"belongs to uid-{UNUSED_UID}: chown root "):
        store.tokens()
    refuses(store, secret)


@as_root
def test_root_creates_tokens_for_a_gateway_that_runs_as_a_user_of_its_own(
    store: TokenStore, state_dir: Path, file: Path
) -> None:
    state_dir.mkdir()
    os.chown(state_dir, UNUSED_UID, UNUSED_UID)
    created = [store.create(label, None, None)[0] for label in ("laptop", "phone")]
    created[1], _ = store.rotate(created[1].id)
    assert store.tokens() == created
    assert created[0].identity == f"uid-{UNUSED_UID}"
    for path in (file, state_dir / "tokens.lock"):
        assert (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) == (UNUSED_UID, 0o600)


@as_root
def test_root_gives_away_no_file_that_was_there_before(store: TokenStore, state_dir: Path) -> None:
    # The gateway's user could have made it a hard link to a file of root's.
    state_dir.mkdir()
    os.chown(state_dir, UNUSED_UID, UNUSED_UID)
    for name in ("tokens.lock", "tokens.json.new"):
        (state_dir.parent / name).write_text("root's")
        os.link(state_dir.parent / name, state_dir / name)
    store.create("laptop", None, None)
    for name in ("tokens.lock", "tokens.json.new"):
        assert (state_dir.parent / name).read_text() == "root's"
        assert (state_dir.parent / name).stat().st_uid == 0


def newer(content: Any) -> None:
    content["version"] = 8
    content["something"] = "new"


def as_version_0(content: Any) -> None:
    content["version"] = 0


def with_an_unknown_role(content: Any) -> None:
    content["tokens"][0]["role"] = "owner"


def with_an_end_in_words(content: Any) -> None:
    content["tokens"][0]["expires"] = "never"


def with_an_end_in_another_time_zone(content: Any) -> None:
    content["tokens"][0]["expires"] = "2026-03-01T12:00:00+02:00"


def with_a_rotation_in_words(content: Any) -> None:
    content["tokens"][0]["rotated"] = "yesterday"


def with_a_workspace_instead_of_a_list(content: Any) -> None:
    content["tokens"][0]["workspaces"] = "proj"


def with_an_unknown_key(content: Any) -> None:
    content["tokens"][0]["admin"] = True


def without_the_digest(content: Any) -> None:
    del content["tokens"][0]["sha256"]


def with_half_a_digest(content: Any) -> None:
    content["tokens"][0]["sha256"] = content["tokens"][0]["sha256"][:32]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (newer, r"was written by a newer acp-gateway \(version 8 of the file\)"),
        (as_version_0, "Invalid enum value 0"),
        (with_an_unknown_role, "Invalid enum value 'owner'"),
        (with_an_end_in_words, r"at `\$.tokens\[0\].expires`"),
        (with_an_end_in_another_time_zone, r"at `\$.tokens\[0\].expires`"),
        (with_a_rotation_in_words, r"at `\$.tokens\[0\].rotated`"),
        (with_a_workspace_instead_of_a_list, r"at `\$.tokens\[0\].workspaces`"),
        (with_an_unknown_key, "unknown field `admin`"),
        (without_the_digest, "missing required field `sha256`"),
        (with_half_a_digest, r"at `\$.tokens\[0\].sha256`"),
    ],
)
def test_a_file_that_says_something_else_is_refused(
    store: TokenStore, file: Path, change: Callable[[Any], None], complaint: str
) -> None:
    _, secret = store.create("laptop", "ann", None)
    edit(file, change)
    with pytest.raises(ConfigError, match=complaint):
        store.tokens()
    refuses(store, secret)


@pytest.mark.parametrize("content", [b"", b"{", b"null", b"\xff\xfe", b'{"version":1,"tokens":["\xff"]}'])
def test_a_torn_file_is_refused_and_never_overwritten(store: TokenStore, file: Path, content: bytes) -> None:
    _, secret = store.create("laptop", "ann", None)
    file.write_bytes(content)
    refuses(store, secret)
    with pytest.raises(ConfigError, match=r"is not a list of tokens: .*; restore it, or remove it"):
        store.create("phone", "ann", None)
    assert file.read_bytes() == content


def test_an_unusable_token_file_is_logged_once_per_change(
    store: TokenStore, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token, secret = store.create("laptop", "ann", None)
    good = file.read_bytes()
    file.write_bytes(good[:40])
    for _ in range(3):
        refuses(store, secret)
        assert not store.is_current(token)
    file.chmod(0o644)
    refuses(store, secret)
    file.chmod(0o600)
    file.write_bytes(good)
    assert store.authenticate(secret) == token
    file.write_bytes(good[:40])
    refuses(store, secret)
    logged = [(record.name, record.levelno, "0644" in record.getMessage()) for record in caplog.records]
    assert logged == [
        ("acp_gateway.security.token_store", logging.ERROR, False),
        ("acp_gateway.security.token_store", logging.ERROR, True),
        ("acp_gateway.security.token_store", logging.ERROR, False),
    ]
    assert secret not in caplog.text
    assert token.sha256 not in caplog.text


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_token_file_that_is_not_a_regular_file_is_refused_at_once(
    store: TokenStore, file: Path, make: Callable[[Path, int], None]
) -> None:
    file.parent.mkdir()
    make(file, 0o600)
    with pytest.raises(ConfigError, match="is not a file; remove it"):
        store.tokens()
    refuses(store, token_format.mint())


def test_a_file_that_others_could_have_written_is_not_read(
    store: TokenStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("laptop", "ann", None)
    file.chmod(0o622)
    for name in ("builtins.open", "io.open"):  # The latter is what paths open files with.
        monkeypatch.setattr(name, lambda *_args, **_kwargs: pytest.fail("it was read"))
    with pytest.raises(ConfigError, match="others may use it"):
        store.tokens()


def test_a_state_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "occupied").write_text("")
    store = TokenStore(tmp_path / "occupied" / "state")
    with pytest.raises(ConfigError, match="cannot be written: Not a directory"):
        store.create("laptop", "ann", None)


def test_a_state_directory_that_is_not_a_directory_refuses_all_tokens(tmp_path: Path) -> None:
    (tmp_path / "occupied").write_text("")
    store = TokenStore(tmp_path / "occupied" / "state")
    with pytest.raises(ConfigError, match="cannot be read: Not a directory"):
        store.find("01234567")
    refuses(store, token_format.mint())


@not_as_root
def test_a_state_directory_that_may_not_be_written_is_told(
    store: TokenStore, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state_dir.mkdir(mode=0o500)
    # As on a disk that lets nothing be changed.
    monkeypatch.setattr("acp_gateway.security.private_file.mend", lambda *_: False)
    with pytest.raises(ConfigError, match="cannot be written: Permission denied"):
        store.create("laptop", "ann", None)


def test_an_entry_is_a_value(store: TokenStore) -> None:
    token, _ = store.create("laptop", "ann", ["demo"])
    assert {token: 1}[Token(token.id, "laptop", "ann", ("demo",), token.sha256, token.created)] == 1
