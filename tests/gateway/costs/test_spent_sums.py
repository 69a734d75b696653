"""Costs of sessions as clients are told them: an identity its own, and those at nodes."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from acp_gateway.gateway.session_api.connection import ApiConnection
from acp_gateway.gateway.session_api.requests import MOST_SUMS
from acp_gateway.gateway.sessions.elsewhere import SpentAtNodes
from acp_gateway.gateway.storage.spending import Sums, Wanted
from tests.kit.bridging import Bench

pytestmark = pytest.mark.usefixtures("no_bug_showed")

NONE: dict[str, Any] = dict.fromkeys(("turns", "tokens", "input", "output", "cachedRead", "cachedWrite"), 0)


@pytest.fixture
def asked(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[Wanted]:
    """Return the sums that were read; each read finds the same ones."""
    asked: list[Wanted] = []

    async def read_sums(wanted: Wanted) -> Sums:
        asked.append(wanted)
        return Sums({key: Counter(USD=1_500_000, tokens=7) for key in keys}, Counter(USD=4_000_000), 1)

    monkeypatch.setattr(bench.gateway.storage, "read_sums", read_sums)
    return asked


keys = ["s"]


async def test_an_identity_is_told_what_its_own_sessions_have_cost(bench: Bench, asked: list[Wanted]) -> None:
    page = await bench.page(bench.access(agents=["memory"]))
    told = await page.result("gateway/usage", by="agent", since="2026-11-22")
    assert asked == [Wanted("agent", "2026-11-22", "ann", ("memory",))]
    assert told == {
        "by": "agent",
        "rows": [NONE | {"key": "s", "costs": {"USD": 1.5}, "tokens": 7}],
        "total": NONE | {"costs": {"USD": 4.0}},
        "more": 1,
        "missing": [],
    }
    await (await bench.page(replace(bench.access(), role="observer"), "watcher")).result("gateway/usage")
    assert asked[-1] == Wanted("day", "", "ann", None)


async def test_the_gateways_own_user_is_told_those_of_all(bench: Bench, asked: list[Wanted]) -> None:
    page = await bench.page(replace(bench.access(), token=None, browser=None))
    await page.result("gateway/usage")
    assert asked == [Wanted("day", "", None, None)]


async def test_guests_and_narrow_credentials_are_told_nothing(bench: Bench, asked: list[Wanted]) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session()
    accesses = [
        bench.guest(session, "controller"),
        bench.access(workspaces=["other"]),
        replace(bench.access(), only=session),
    ]
    for number, access in enumerate(accesses):
        narrow = await bench.page(access, f"narrow{number}")
        assert "all sessions of its identity" in (await narrow.error("gateway/usage"))[1]
    assert asked == []


async def test_sums_of_sessions_have_the_titles_that_the_client_sees(
    bench: Bench, asked: list[Wanted], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session()
    await page.result("session/set_title", sessionId=session, title="Mend it")
    monkeypatch.setitem(globals(), "keys", [session, "gone"])
    rows = (await page.result("gateway/usage", by="session"))["rows"]
    assert [(row["key"], row.get("title")) for row in rows] == [(session, "Mend it"), ("gone", None)]


async def test_sums_of_nodes_are_beside_those_of_the_gateway_where_they_are_wanted(
    bench: Bench, asked: list[Wanted], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted_there: list[Any] = []
    there = [{"key": "gpu2/s", "machine": "gpu2"}]

    class Questions:
        async def usage(self, access: Any, reach: Any, wanted: Any) -> SpentAtNodes:
            wanted_there.append(wanted)
            return SpentAtNodes(there, Counter(USD=500_000, EUR=1), 2, ["gpu3"])

    monkeypatch.setattr(ApiConnection, "questions", Questions())
    page = await bench.page(bench.access())
    assert len((await page.result("gateway/usage"))["rows"]) == 1
    told = await page.result("gateway/usage", by="session", nodes=True)
    assert [row["key"] for row in told["rows"]] == ["s", "gpu2/s"]
    assert (told["total"]["costs"], told["more"], told["missing"]) == ({"EUR": 0.000001, "USD": 4.5}, 3, ["gpu3"])
    assert wanted_there == [{"by": "session"}]
    there *= MOST_SUMS
    told = await page.result("gateway/usage", by="session", nodes=True)
    assert (len(told["rows"]), told["more"]) == (MOST_SUMS, 4)


async def test_a_session_is_described_with_what_it_has_cost(bench: Bench) -> None:
    page = await bench.page(bench.access())
    name = await page.new_session()
    (session,) = bench.gateway.registry.by_id(name)
    for amounts, expected in ((Counter(turns=1), None), (Counter(USD=1), {"costs": {"USD": 0.000001}, "tokens": 0})):
        session.spent.update(amounts)
        (row,) = (await page.result("session/list"))["sessions"]
        assert row["usage"] == expected
