"""Invitations: one use, within minutes, for the token as it was."""

import logging
import stat
from pathlib import Path

import pytest

from acp_gateway.errors import ConfigError, Unauthorized
from acp_gateway.security.invitations import LIFETIME, MAX_INVITATIONS, NO_INVITATION, InvitationStore
from acp_gateway.security.token_format import mint
from acp_gateway.security.token_store import TokenStore
from tests.kit.clocks import Clock

SECRETS = {"invitation": mint("invitation"), "code": mint("code"), "token": mint()}


@pytest.fixture
def clock() -> Clock:
    return Clock(1_800_000_000.0)


@pytest.fixture
def tokens(tmp_path: Path, clock: Clock) -> TokenStore:
    return TokenStore(tmp_path, clock)


@pytest.fixture
def store(tmp_path: Path, tokens: TokenStore, clock: Clock) -> InvitationStore:
    return InvitationStore(tmp_path, tokens, clock)


def refused(store: InvitationStore, code: str) -> bool:
    with pytest.raises(Unauthorized) as caught:
        store.accept(code)
    return str(caught.value) == NO_INVITATION


def test_a_code_is_exchanged_once_for_the_rotated_token(
    store: InvitationStore, tokens: TokenStore, tmp_path: Path
) -> None:
    token, first = tokens.create_guest("s1", role="observer", lifetime=3600.0)
    invitation, code = store.invite(token)
    assert code.startswith("acpgwi_")
    assert invitation.expires == "2027-01-15T08:10:00Z"
    accepted, secret = store.accept(code)
    assert (accepted.id, accepted.session, accepted.expires) == (token.id, "s1", token.expires)
    assert tokens.authenticate(secret) == accepted
    with pytest.raises(Unauthorized):
        tokens.authenticate(first)
    assert refused(store, code)
    text = (tmp_path / "invitations.json").read_text()
    assert code not in text
    assert secret not in text
    assert stat.S_IMODE((tmp_path / "invitations.json").stat().st_mode) == 0o600


def test_a_code_expires(store: InvitationStore, tokens: TokenStore, clock: Clock, tmp_path: Path) -> None:
    token, _ = tokens.create("x", "ann", None)
    _, code = store.invite(token)
    clock.now += LIFETIME
    assert refused(store, code)
    # And leaves the file with the next one.
    store.invite(token)
    assert (tmp_path / "invitations.json").read_text().count("sha256") == 2


@pytest.mark.parametrize("change", ["rotated", "revoked", "expired"])
def test_a_code_is_for_the_token_as_it_was(
    store: InvitationStore, tokens: TokenStore, clock: Clock, change: str
) -> None:
    token, _ = tokens.create("x", "ann", None, lifetime=60.0)
    _, code = store.invite(token)
    if change == "rotated":
        tokens.rotate(token.id)
    elif change == "revoked":
        tokens.revoke(token.id)
    else:
        clock.now += 61
    assert refused(store, code)


@pytest.mark.parametrize(
    "code", ["", "x", "acpgwi_", *(pytest.param(secret, id=kind) for kind, secret in SECRETS.items()), "acpgwi_é"]
)
def test_every_other_text_is_refused_in_the_same_words(store: InvitationStore, tokens: TokenStore, code: str) -> None:
    store.invite(tokens.create("x", "ann", None)[0])
    assert refused(store, code)


def test_of_too_many_the_oldest_is_worthless(store: InvitationStore, tokens: TokenStore) -> None:
    token, _ = tokens.create("x", "ann", None)
    codes = [store.invite(token)[1] for _ in range(MAX_INVITATIONS + 1)]
    assert refused(store, codes[0])
    store.accept(codes[1])


def test_a_token_that_cannot_be_rotated_leaves_the_code_valid(
    store: InvitationStore, tokens: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, _ = tokens.create("x", "ann", None)
    _, code = store.invite(token)

    def fail(*_: object) -> None:
        raise ConfigError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(tokens, "rotate", fail)
        with pytest.raises(ConfigError):
            store.accept(code)
    store.accept(code)


def test_a_used_code_that_cannot_be_removed_is_worthless_all_the_same(
    store: InvitationStore, tokens: TokenStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    token, _ = tokens.create("x", "ann", None)
    _, code = store.invite(token)

    def fail(*_: object) -> None:
        raise ConfigError("disk full")

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(store, "_write", fail)
        store.accept(code)
    assert "a used invitation is not removed: disk full" in caplog.text
    assert refused(store, code)


def test_a_token_that_is_revoked_in_that_moment_refuses_the_code(
    store: InvitationStore, tokens: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, _ = tokens.create("x", "ann", None)
    _, code = store.invite(token)
    rotate = tokens.rotate

    def revoke_first(token_id: str) -> object:
        tokens.revoke(token_id)
        return rotate(token_id)

    monkeypatch.setattr(tokens, "rotate", revoke_first)
    assert refused(store, code)


def test_an_entry_shows_no_secret(store: InvitationStore, tokens: TokenStore) -> None:
    token, _ = tokens.create("x", "ann", None)
    invitation, _ = store.invite(token)
    assert repr(invitation) == f"Invitation(token={token.id!r}, expires='2027-01-15T08:10:00Z')"
