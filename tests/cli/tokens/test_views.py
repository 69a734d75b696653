"""Texts of `token list` and `token show` about a token."""

from pathlib import Path

import pytest

from acp_gateway.cli.tokens.views import print_tokens, token_as_json, token_lines
from acp_gateway.security.token_store import TokenStore


def test_may_speak_for_is_shown_in_the_list_in_json_and_in_the_details(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = TokenStore(tmp_path)
    speaker, _ = store.create("door", "me", None, may_speak_for=["alice", "bob", "alice"])
    other, _ = store.create("laptop", "me", None)
    assert token_as_json(speaker, store, {})["may_speak_for"] == ["alice", "bob"]
    assert token_lines(speaker, store, {})["may speak for"] == "alice,bob"
    assert token_as_json(other, store, {})["may_speak_for"] == []
    assert token_lines(other, store, {})["may speak for"] == "-"
    print_tokens(store, [speaker, other], tmp_path)
    rows = [row.split() for row in capsys.readouterr().out.splitlines() if "controller" in row]
    assert [row[-2] for row in rows] == ["alice,bob", "-"]
