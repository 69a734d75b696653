"""The file of tokens at rest: its form and mode, whom it is trusted from, and what happens to a damaged one."""

import fcntl
import json
import logging
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.errors import ConfigError, Unauthorized
from acp_gateway.security import token_file, token_format
from acp_gateway.security.token_store import Role, Token, TokenStore

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users, which only root may")
not_as_root = pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")

UNUSED_UID = 3_999_999_999
"""A uid that no machine has a name for."""


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def store(state_dir: Path) -> TokenStore:
    return TokenStore(state_dir)


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


# At rest


def test_the_file_and_its_directory_are_for_their_owner_alone(store: TokenStore, state_dir: Path, file: Path) -> None:
    store.create("laptop", "ann", None)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(state_dir.stat().st_mode) == 0o700


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
        ({"may_speak_for": ["bob"]}, 4),
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
    assert f"role='observer', session='s1', workspaces=None, may_speak_for=(), expires='{token.expires}'" in repr(token)
    assert token.sha256 not in repr([token])
    assert secret not in repr([token])


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
        assert alone[0] == "_read"
        assert alone[-1] == "write"


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


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o700, 0o620])
def test_a_wider_mode_is_refused_with_the_chmod(store: TokenStore, file: Path, mode: int) -> None:
    _, secret = store.create("laptop", "ann", None)
    file.chmod(mode)
    with pytest.raises(ConfigError) as caught:
        store.tokens()
    assert str(caught.value) == f"{file}: others may use it (mode {mode:04o}): chmod 600 {file}"
    refuses(store, secret)


def test_a_chmod_of_a_file_already_read_counts_at_once(
    store: TokenStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, secret = store.create("laptop", "ann", None)
    later = file.stat().st_ctime_ns + 3_600_000_000_000
    monkeypatch.setattr("time.time_ns", lambda: later)
    store.authenticate(secret)
    file.chmod(0o644)
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
    content["version"] = 5
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
        (newer, r"was written by a newer acp-gateway \(version 5 of the file\)"),
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
def test_a_state_directory_that_may_not_be_written_is_told(store: TokenStore, state_dir: Path) -> None:
    state_dir.mkdir(mode=0o500)
    with pytest.raises(ConfigError, match="cannot be written: Permission denied"):
        store.create("laptop", "ann", None)


def test_an_entry_is_a_value(store: TokenStore) -> None:
    token, _ = store.create("laptop", "ann", ["demo"])
    assert {token: 1}[Token(token.id, "laptop", "ann", ("demo",), token.sha256, token.created)] == 1
