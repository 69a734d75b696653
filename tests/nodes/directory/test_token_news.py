"""News of shared tokens that nodes tell each other."""

import json
import math

import msgspec
import pytest

from acp_gateway.nodes.directory import token_news
from acp_gateway.nodes.directory.token_news import Hearsay, News, make_news, read_news
from acp_gateway.security.token_file import Token

TOKEN = Token(id="00000001", label="x", identity="ann", agents=None, sha256="0" * 64, created="2026-01-01T00:00:00Z")
ROTATED = msgspec.structs.replace(TOKEN, id="00000002", sha256="1" * 64, rotated="2026-01-02T00:00:00Z")


def read(news: News) -> News | None:
    """The news after its way over a connection."""
    return read_news(json.loads(msgspec.json.encode(news)))


def told(node: str, *revoked: str, age: float | None = None) -> News:
    return News(node=node, revoked=revoked, age=age)


def test_news_has_revocations_and_rotated_shared_tokens() -> None:
    local = msgspec.structs.replace(ROTATED, local=True)
    news = read(make_news("gpu1", [TOKEN, ROTATED, local], ["00000003"]))
    assert news is not None
    assert (news.node, news.revoked, news.tokens) == ("gpu1", ("00000003",), [ROTATED])
    assert news.facts == {"00000003", f"00000002 {'1' * 64}"}


def test_news_tells_the_latest_changes_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_news, "MOST", 2)
    news = make_news("gpu1", [], ["00000001", "00000002", "00000003"])
    assert news.revoked == ("00000002", "00000003")


def test_entry_of_a_later_version_is_left_out() -> None:
    entry = json.loads(msgspec.json.encode(ROTATED))
    news = read_news({"node": "gpu1", "rotated": [entry | {"later": 1}, entry, {}, 1, entry | {"session": "x"}]})
    assert news is not None
    assert news.tokens == [ROTATED]


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"node": "a b"},
        {"node": "a", "revoked": ["x"]},
        {"node": "a", "revoked": ["00000001"] * 1001},
        {"node": "a", "rotated": {}},
        {"node": "a", "age": -1},
        {"node": "a", "age": "1"},
    ],
)
def test_other_values_than_news_are_not_read(value: object) -> None:
    assert read_news(value) is None


def test_node_has_confirmed_what_it_tells_itself() -> None:
    hearsay = Hearsay(0)
    here = make_news("gpu1", [ROTATED], ["00000001"]).facts
    assert not hearsay.has_confirmed("gpu2", "00000001", here)
    hearsay.hear(told("gpu2"), 1)
    assert not hearsay.has_confirmed("gpu2", "00000001", here)
    hearsay.hear(told("gpu2", "00000001", "00000009"), 2)
    assert hearsay.has_confirmed("gpu2", "00000001", here)
    assert not hearsay.has_confirmed("gpu2", "00000002", here)
    hearsay.hear(make_news("gpu2", [ROTATED], []), 3)
    assert hearsay.has_confirmed("gpu2", "00000002", here)
    assert not hearsay.has_confirmed("gpu2", "00000001", here)
    # What this node does not know itself, no node has confirmed.
    assert not hearsay.has_confirmed("gpu2", "00000007", here)


def test_silence_counts_from_the_start_or_from_a_loss_before_it() -> None:
    hearsay = Hearsay(100)
    assert hearsay.age(110) is None
    assert hearsay.silence(110, None) == 10
    hearsay.lost_since(-50)
    hearsay.lost_since(70)
    assert hearsay.silence(110, None) == 160


def test_silence_ends_with_a_read_of_the_directory() -> None:
    hearsay = Hearsay(0)
    hearsay.lost_since(-1000)
    hearsay.read(50)
    assert hearsay.silence(60, ["gpu2"]) == 10


def test_silence_ends_with_a_node_that_has_read_the_directory() -> None:
    hearsay = Hearsay(0)
    hearsay.hear(told("gpu2", age=20), 100)
    assert hearsay.age(110) == 30
    assert hearsay.silence(110, ["gpu2", "gpu3"]) == 30
    hearsay.hear(told("gpu3", age=5), 100)
    assert hearsay.silence(110, ["gpu2", "gpu3", "gpu4"]) == 15


def test_silence_ends_when_all_other_nodes_are_heard_and_not_when_some_are() -> None:
    hearsay = Hearsay(0)
    hearsay.hear(told("gpu2"), 100)
    assert hearsay.silence(110, ["gpu2", "gpu3"]) == 110
    hearsay.hear(told("gpu3"), 105)
    assert hearsay.silence(110, ["gpu2", "gpu3"]) == 10
    # Their own knowledge is not of the directory.
    assert hearsay.age(110) is None
    assert hearsay.silence(110, None) == 110


def test_only_node_has_no_silence() -> None:
    assert Hearsay(0).silence(math.pi, []) == 0
