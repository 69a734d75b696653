"""The text of a token, and the file that holds one."""

import hashlib
import os
import re
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.errors import ConfigError
from acp_gateway.security import token_format as tokens

PREFIXES = {
    "controller": "acpgw_",
    "observer": "acpgwo_",
    "guest": "acpgwg_",
    "metrics": "acpgwm_",
    "tunnel": "acpgwt_",
    "node": "acpgwn_",
    "vscode": "acpgwv_",
}

# Well-formed, and all the same every time. The first is as tokens were before there were kinds.
TOKEN = "acpgw_00000000000000000000000000000000026BYXP"
OBSERVERS = "acpgwo_000000000000000000000000000000000" + tokens._checksum("o", "0" * 33)
GUESTS = "acpgwg_000000000000000000000000000000000" + tokens._checksum("g", "0" * 33)
METRICS = "acpgwm_000000000000000000000000000000000" + tokens._checksum("m", "0" * 33)
TOKENS = [TOKEN, OBSERVERS, GUESTS, METRICS]

NOT_WHOLE = "is not whole: the checksum does not match"
OTHER_BEGINNING = "does not begin with acpgw_, acpgwo_, acpgwg_, acpgwm_, acpgwt_, acpgwn_ or acpgwv_"
A_PIN = "is a pin, which goes to --pin"
AN_ID = "is the id of a token, not the token itself"

kinds = st.sampled_from(get_args(tokens.Kind))
secret_parts = st.text(tokens._ALPHABET, min_size=33, max_size=33)

posix_only = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has no file modes")


def token_file(tmp_path: Path, content: bytes, mode: int = 0o600) -> Path:
    path = tmp_path / "token"
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("kind", get_args(tokens.Kind))
def test_a_new_token_is_well_formed(kind: tokens.Kind) -> None:
    assert tokens.explain_flaw(tokens.mint(kind)) is None


def test_a_token_is_a_controllers_unless_told_otherwise() -> None:
    assert tokens.mint().startswith("acpgw_")


@given(kinds)
def test_the_kind_of_a_token_is_told_by_its_beginning(kind: tokens.Kind) -> None:
    token = tokens.mint(kind)
    assert [other for other, prefix in PREFIXES.items() if token.startswith(prefix)] == [kind]


@pytest.mark.parametrize("token", TOKENS)
def test_a_token_of_each_kind_is_well_formed_also_tomorrow(token: str) -> None:
    assert tokens.explain_flaw(token) is None


@pytest.mark.parametrize("kind", get_args(tokens.Kind))
def test_all_tokens_of_a_kind_have_the_same_length(kind: tokens.Kind) -> None:
    assert {len(tokens.mint(kind)) for _ in range(200)} == {len(PREFIXES[kind]) + 39}


@given(kinds, st.text(tokens._ALPHABET + " \"'=:,\n-", max_size=20))
def test_a_scanner_finds_a_token_with_the_pattern_in_the_documentation(kind: tokens.Kind, around: str) -> None:
    pattern = (tokens.__doc__ or "").splitlines()[-1].strip()
    token = tokens.mint(kind)
    assert re.findall(pattern, f"{around} {token}\n{around}") == [token]


def test_two_tokens_differ() -> None:
    assert tokens.mint() != tokens.mint()


def test_the_secret_part_holds_192_bits() -> None:
    assert 62**32 < 2**192 <= 62**33
    assert tokens._base62(2**192 - 1, 33) != tokens._base62(2**192 - 2, 33)


@pytest.mark.parametrize("number", [0, 1, 61, 62, 2**32 - 1])
def test_base62_is_read_back_as_the_same_number(number: int) -> None:
    text = tokens._base62(number, 6)
    value = 0
    for character in text:
        value = value * 62 + tokens._ALPHABET.index(character)
    assert (len(text), value) == (6, number)


@given(st.sampled_from(TOKENS), st.integers(0, 45), st.characters())
def test_any_one_character_changed_is_noticed(token: str, place: int, character: str) -> None:
    changed = token[:place] + character + token[place + 1 :]
    assert (tokens.explain_flaw(changed) is None) == (changed == token)


@given(kinds, kinds, secret_parts)
def test_a_token_of_one_kind_is_not_one_of_another(kind: tokens.Kind, other: tokens.Kind, secret: str) -> None:
    rest = secret + tokens._checksum(PREFIXES[kind][len("acpgw") : -1], secret)
    assert tokens.explain_flaw(PREFIXES[other] + rest) == (None if other == kind else NOT_WHOLE)


@given(kinds, st.integers(0, 2**32 - 1))
def test_none_but_the_right_checksum_will_do(kind: tokens.Kind, checksum: int) -> None:
    token = tokens.mint(kind)
    changed = token[:-6] + tokens._base62(checksum, 6)
    assert (tokens.explain_flaw(changed) is None) == (changed == token)


@given(st.sampled_from(TOKENS), st.integers(7, 44))
def test_a_token_that_was_cut_is_noticed(token: str, length: int) -> None:
    assert tokens.explain_flaw(token[:length]) == NOT_WHOLE


@pytest.mark.parametrize("token", TOKENS)
def test_a_token_with_something_after_it_is_not_whole(token: str) -> None:
    assert tokens.explain_flaw(token + "\n") == NOT_WHOLE


def test_an_empty_token_is_called_empty() -> None:
    assert tokens.explain_flaw("") == "is empty"


def test_another_programs_token_is_told_by_its_beginning() -> None:
    assert tokens.explain_flaw("ghp_16C7e42F292c6912E7710c838347Ae178B4a") == OTHER_BEGINNING


@pytest.mark.parametrize("text", ["acpgwx_", "acpgw", "acpgwo", "ACPGW_", "acpgwog_", " acpgw_"])
def test_a_beginning_that_is_almost_right_is_wrong(text: str) -> None:
    assert tokens.explain_flaw(text + TOKEN[6:]) == OTHER_BEGINNING


@pytest.mark.parametrize("pin", ["sha256:" + "ab" * 32, "sha256:" + "AB" * 32, "sha256:ab"])
def test_a_pin_is_told_where_it_belongs(pin: str) -> None:
    assert tokens.explain_flaw(pin) == A_PIN


def test_the_id_of_a_token_is_told_from_the_token() -> None:
    assert tokens.explain_flaw("1a2b3c4d") == AN_ID


@given(
    st.text()
    | st.builds(str.__add__, st.sampled_from([*PREFIXES.values(), "sha256:"]), st.text())
    | st.from_regex("[0-9a-f]{6,10}", fullmatch=True)
)
def test_a_flaw_is_one_of_some_phrases_and_so_never_quotes_the_token(text: str) -> None:
    assert tokens.explain_flaw(text) in {"is empty", OTHER_BEGINNING, NOT_WHOLE, A_PIN, AN_ID}


@given(st.text())
def test_a_flaw_of_another_servers_token_never_quotes_it(text: str) -> None:
    flaw = tokens.explain_foreign_flaw(text)
    assert flaw is None or flaw in {
        *("is empty", NOT_WHOLE, A_PIN, "has more than 4096 characters"),
        "holds a space, or a character that is not ASCII",
    }
    assert flaw is not None or (text.isascii() and text.isprintable() and " " not in text)


def test_a_digest_is_sha256_in_hex() -> None:
    assert tokens.digest("abc") == hashlib.sha256(b"abc").hexdigest()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(TOKEN.encode(), id="no newline"),
        pytest.param(TOKEN.encode() + b"\n", id="newline"),
        pytest.param(b"\r\n  \r\n\t" + TOKEN.encode() + b" \r\n", id="blanks around it"),
        pytest.param(b"\xef\xbb\xbf" + TOKEN.encode() + b"\r\n", id="byte order mark"),
        pytest.param(TOKEN.encode() + b"\nthe laptop's token\n", id="a note below"),
    ],
)
def test_a_token_file_is_read(tmp_path: Path, content: bytes) -> None:
    assert tokens.read_token_file(token_file(tmp_path, content)) == TOKEN


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "the token in it is empty"),
        (b" \n\n", "the token in it is empty"),
        (b"hunter2\n", "the token in it does not begin with acpgw_"),
        (b"sha256:abcd\n", "the token in it is a pin, which goes to --pin; save what"),
        (TOKEN.encode()[:-1], f"the token in it {NOT_WHOLE}"),
        (TOKEN.encode("utf-16"), "is not text in UTF-8"),
    ],
)
def test_a_file_without_a_good_token_is_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = token_file(tmp_path, content)
    with pytest.raises(ConfigError, match=complaint) as caught:
        tokens.read_token_file(path)
    assert caught.value.file == str(path)
    assert "hunter2" not in str(caught.value)
    assert TOKEN[:-1] not in str(caught.value)


def test_a_missing_token_file_names_the_command_that_makes_a_token(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file; save there what `acp-gateway token create` prints"):
        tokens.read_token_file(tmp_path / "nowhere")


def test_a_directory_is_not_a_token_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        tokens.read_token_file(tmp_path)


@posix_only
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_a_token_file_that_others_may_use_is_refused_with_the_chmod(tmp_path: Path, mode: int) -> None:
    path = token_file(tmp_path, TOKEN.encode(), mode)
    with pytest.raises(ConfigError) as caught:
        tokens.read_token_file(path)
    assert str(caught.value).endswith(f"(mode {mode:04o}): chmod 600 {path}")


@posix_only
def test_a_token_may_come_out_of_a_pipe(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, TOKEN.encode() + b"\n")
        os.close(writing)
        assert tokens.read_token_file(Path(f"/dev/fd/{reading}")) == TOKEN
    finally:
        os.close(reading)


@posix_only
def test_a_credential_of_systemd_may_be_shown_as_readable_by_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = token_file(tmp_path, TOKEN.encode(), 0o440)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert tokens.read_token_file(path) == TOKEN
    path.chmod(0o444)
    with pytest.raises(ConfigError, match="others may use it"):
        tokens.read_token_file(path)
    path.chmod(0o440)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", f"{tmp_path}/other")
    with pytest.raises(ConfigError, match="others may use it"):
        tokens.read_token_file(path)


def test_where_there_are_no_owners_the_mode_is_not_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = token_file(tmp_path, TOKEN.encode(), 0o644)
    monkeypatch.delattr(os, "geteuid", raising=False)
    assert tokens.read_token_file(path) == TOKEN


# Browsers


@pytest.mark.parametrize("kind", get_args(tokens.OtherKind))
def test_a_secret_of_another_kind_is_well_formed_and_no_token(kind: tokens.OtherKind) -> None:
    secret = tokens.mint(kind)
    assert [other for other in get_args(tokens.OtherKind) if tokens.is_well_formed(secret, other)] == [kind]
    assert tokens.explain_flaw(secret) == tokens.explain_foreign_flaw(secret)
    purpose = "it is the code of an invitation" if kind == "invitation" else "it signs a browser in"
    assert str(tokens.explain_flaw(secret)).startswith(f"is not a token: {purpose}")
    assert not tokens.is_well_formed(secret[:-1], kind)
    assert not tokens.is_well_formed(tokens.mint(), kind)


def test_a_code_begins_with_acpgwp_and_a_scanner_finds_it() -> None:
    pattern = (tokens.__doc__ or "").splitlines()[-1].strip()
    secrets = [tokens.mint("code"), tokens.mint("browser")]
    assert [secret[:7] for secret in secrets] == ["acpgwp_", "acpgwb_"]
    assert re.findall(pattern, " ".join(secrets)) == secrets


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ({"Authorization": "Bearer abc"}, "bad …, …"),
        ({"Authorization": "Bearer "}, "bad abc, abc"),
        ({"Authorization": "abc"}, "bad abc, abc"),
        ({}, "bad abc, abc"),
    ],
)
def test_a_token_that_a_server_repeats_is_left_out(headers: dict[str, str], told: str) -> None:
    assert tokens.without_token("bad abc, abc", headers) == told
