"""Errors for refused connections, and their entries in the log and the audit."""

import logging
import os
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from acp_gateway.config.load import LimitsSection
from acp_gateway.config.options import GatewaySection
from acp_gateway.errors import (
    AccessError,
    Busy,
    Forbidden,
    LinkExpired,
    LinkGone,
    TooFarBehind,
    TooManyAttempts,
    Unauthorized,
    UnknownAgent,
    UnknownSession,
)
from acp_gateway.gateway.events.audit import Audit
from acp_gateway.server.handshake_limits import MAX_SINGLE_ENTRIES, MAX_SINGLE_LINES, REFUSAL_DELAY, Refusals
from acp_gateway.server.pending import PendingConnection

LIMIT = 3
WINDOW = 60.0


class AuditLog(Audit):
    """An audit in memory."""

    def __init__(self) -> None:
        super().__init__(Path(os.devnull), max_size=0, files=0)
        self.entries: list[dict[str, Any]] = []

    def record(self, event: str, **details: Any) -> None:
        self.entries.append({"event": event} | {key: value for key, value in details.items() if value is not None})


@pytest.fixture
def audit_log() -> AuditLog:
    return AuditLog()


@pytest.fixture
def refusals(audit_log: AuditLog, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Refusals:
    caplog.set_level(logging.INFO)
    return make(audit_log, tmp_path)


def make(audit_log: AuditLog, tmp_path: Path, **settings: Any) -> Refusals:
    limits = LimitsSection(failed_attempts=LIMIT, failed_attempts_window=WINDOW)
    return Refusals(GatewaySection(state_dir=tmp_path, **settings), limits, audit_log)


def pending(address: str = "192.0.2.1", name: str = "c1") -> PendingConnection:
    return PendingConnection(name=name, peer=address, listener="wss://gpu:7443/acp", network=address, limited=True)


def wrong(refusals: Refusals, address: str = "192.0.2.1", presented: str | None = None) -> AccessError:
    """Return the error for a connection without a valid credential."""
    return refusals.refuse(pending(address), Unauthorized("no"), presented=presented, credential=None).error


# Counting


async def test_over_the_count_an_address_is_told_so_and_late(refusals: Refusals) -> None:
    told = [refusals.refuse(pending(), Unauthorized("no"), presented=None, credential=None) for _ in range(LIMIT + 2)]
    assert [type(refusal.error) for refusal in told] == [Unauthorized] * LIMIT + [TooManyAttempts] * 2
    assert [refusal.delay for refusal in told] == [0.0] * LIMIT + [REFUSAL_DELAY] * 2


async def test_the_answer_comes_before_the_handshake_is_given_up(audit_log: AuditLog, tmp_path: Path) -> None:
    refusals = make(audit_log, tmp_path, handshake_timeout=0.5)
    told = [refusals.refuse(pending(), Unauthorized("no"), presented=None, credential=None) for _ in range(LIMIT + 1)]
    assert told[-1].delay == 0.25


async def test_a_window_later_the_count_starts_over(refusals: Refusals, autojump_clock: trio.testing.MockClock) -> None:
    assert [type(wrong(refusals)) for _ in range(LIMIT + 1)][-1] is TooManyAttempts
    await trio.sleep(WINDOW)
    assert type(wrong(refusals)) is Unauthorized


async def test_addresses_are_counted_apart_and_those_of_one_network_together(refusals: Refusals) -> None:
    for number in range(LIMIT):
        assert type(wrong(refusals, f"2001:db8::{number}")) is Unauthorized
    assert type(wrong(refusals, "2001:db8::ffff")) is TooManyAttempts
    assert type(wrong(refusals, "2001:db8:0:1::1")) is Unauthorized


async def test_a_token_is_counted_from_whatever_address_it_comes(refusals: Refusals) -> None:
    told = [wrong(refusals, f"192.0.2.{number}", presented="acpgw_x") for number in range(LIMIT + 1)]
    assert [type(error) for error in told] == [Unauthorized] * LIMIT + [TooManyAttempts]
    assert type(wrong(refusals, "192.0.2.99", presented="acpgw_y")) is Unauthorized


async def test_a_token_that_is_sent_again_counts_once_for_its_address(refusals: Refusals) -> None:
    told = [wrong(refusals, presented="acpgwv_x") for _ in range(10 * LIMIT)]
    assert [type(error) for error in told] == [Unauthorized] * LIMIT + [TooManyAttempts] * 9 * LIMIT
    others = [wrong(refusals, presented=f"acpgw_{number}") for number in range(LIMIT)]
    assert [type(error) for error in others] == [Unauthorized] * (LIMIT - 1) + [TooManyAttempts]


@pytest.mark.parametrize("nothing", [None, ""])
async def test_who_shows_nothing_shows_nothing_in_common(refusals: Refusals, nothing: str | None) -> None:
    told = [wrong(refusals, f"192.0.2.{number}", presented=nothing) for number in range(LIMIT + 1)]
    assert {type(error) for error in told} == {Unauthorized}


@pytest.mark.parametrize("error", [Forbidden("no"), UnknownAgent("no"), UnknownSession("no")])
async def test_a_right_token_for_the_wrong_thing_is_counted_by_itself_alone(
    refusals: Refusals, error: AccessError
) -> None:
    for _ in range(LIMIT + 1):
        wrong(refusals)
    told = [
        refusals.refuse(pending(f"192.0.2.{number}"), error, presented="acpgw_x", credential="token 1").error
        for number in range(LIMIT + 1)
    ]
    assert told[:LIMIT] == [error] * LIMIT
    assert type(told[-1]) is TooManyAttempts
    # Neither does the address of these suffer for it, nor another token.
    assert type(wrong(refusals, "192.0.2.2")) is Unauthorized
    assert refusals.refuse(pending(), error, presented=None, credential="token 2").error is error


@pytest.mark.parametrize("error", [TooFarBehind("no"), LinkGone("no"), LinkExpired("no"), Busy("no")])
async def test_refusals_without_a_fault_of_the_client_keep_their_code(refusals: Refusals, error: AccessError) -> None:
    for _ in range(3 * LIMIT):
        refusal = refusals.refuse(pending(), error, presented=None, credential="token 1")
        assert (refusal.error, refusal.delay) == (error, 0.0)


async def test_all_are_told_the_same_over_the_count(refusals: Refusals) -> None:
    for error, credential in ((Unauthorized("a"), None), (Forbidden("b"), "token 1"), (UnknownAgent("c"), "token 2")):
        for _ in range(LIMIT):
            refusals.refuse(pending(), error, presented=None, credential=credential)
    texts = {
        str(refusals.refuse(pending(), error, presented=None, credential=credential).error)
        for error, credential in (
            (Unauthorized("a"), None),
            (Forbidden("b"), "token 1"),
            (UnknownAgent("c"), "token 2"),
        )
    }
    assert len(texts) == 1


# Telling


async def test_a_refusal_is_in_the_log_and_in_the_audit(
    refusals: Refusals, audit_log: AuditLog, caplog: pytest.LogCaptureFixture
) -> None:
    refusals.refuse(pending(), Forbidden("because"), presented="acpgw_secret", credential="token 1")
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.WARNING, "c1: refused: because")
    assert audit_log.entries == [
        {
            "event": "refused",
            "connection": "c1",
            "address": "192.0.2.1",
            "listener": "wss://gpu:7443/acp",
            "reason": "forbidden",
            "credential": "token 1",
        }
    ]


@pytest.mark.parametrize("error", [TooFarBehind("no"), LinkGone("no"), LinkExpired("no")])
async def test_a_laptop_that_has_slept_is_not_a_warning(
    refusals: Refusals, error: AccessError, caplog: pytest.LogCaptureFixture
) -> None:
    refusals.refuse(pending(), error, presented=None, credential="token 1")
    assert [record.levelno for record in caplog.records] == [logging.INFO]


async def test_who_comes_in_is_in_the_audit(refusals: Refusals, audit_log: AuditLog) -> None:
    refusals.record_authenticated(pending(), identity="ann")
    (entry,) = audit_log.entries
    assert entry == {
        "event": "authenticated",
        "connection": "c1",
        "address": "192.0.2.1",
        "listener": "wss://gpu:7443/acp",
        "identity": "ann",
    }


async def test_who_comes_in_again_and_again_is_one_entry_in_a_window(
    refusals: Refusals, audit_log: AuditLog, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(refusals.report)
        for _ in range(MAX_SINGLE_ENTRIES + 500):
            refusals.record_authenticated(pending(), identity="ann", credential="token 1")
        refusals.record_authenticated(pending(), identity="bob", credential="token 2")
        assert [entry["identity"] for entry in audit_log.entries] == ["ann"] * MAX_SINGLE_ENTRIES + ["bob"]
        await trio.sleep(WINDOW + 1)
        aggregated = {"event": "authenticated", "identity": "ann", "credential": "token 1", "count": 500}
        assert audit_log.entries[MAX_SINGLE_ENTRIES + 1 :] == [aggregated]
        refusals.record_authenticated(pending(), identity="ann", credential="token 1")
        assert audit_log.entries[-1]["connection"] == "c1"
        nursery.cancel_scope.cancel()


async def test_a_flood_from_one_address_is_one_line_in_a_window(
    refusals: Refusals, audit_log: AuditLog, caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(refusals.report)
        for _ in range(LIMIT + 1000):
            wrong(refusals)
        assert len(caplog.records) == len(audit_log.entries) == LIMIT
        await trio.sleep(WINDOW + 1)
        assert len(caplog.records) == len(audit_log.entries) == LIMIT + 1
        assert caplog.messages[-1] == "again 1000 times from 192.0.2.1 at wss://gpu:7443/acp: unauthorized"
        assert audit_log.entries[-1] == {
            "event": "refused",
            "address": "192.0.2.1",
            "listener": "wss://gpu:7443/acp",
            "reason": "unauthorized",
            "count": 1000,
        }
        await trio.sleep(10 * WINDOW)
        assert len(caplog.records) == LIMIT + 1
        nursery.cancel_scope.cancel()


async def test_what_was_to_be_told_together_is_told_when_the_gateway_stops(
    refusals: Refusals, audit_log: AuditLog, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(refusals.report)
        for _ in range(LIMIT + 5):
            wrong(refusals)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert audit_log.entries[-1]["count"] == 5


async def test_a_flood_from_very_many_addresses_fills_nothing_either(
    refusals: Refusals, audit_log: AuditLog, caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(refusals.report)
        for number in range(5000):
            wrong(refusals, f"10.0.{number // 250}.{number % 250}", presented=f"token {number}")
        assert len(caplog.records) == len(audit_log.entries) == MAX_SINGLE_LINES * LIMIT
        await trio.sleep(WINDOW + 1)
        nursery.cancel_scope.cancel()
    assert len(caplog.records) < 200
    assert "from many addresses at any listener: various" in caplog.text
    assert sum(entry.get("count", 1) for entry in audit_log.entries) == 5000


async def test_further_refusals_are_logged_together_and_malformed_handshakes_are_answered_late(
    refusals: Refusals, audit_log: AuditLog, caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(refusals.report)
        for number in range(LIMIT + 10):
            delay = refusals.refuse_malformed(pending(), "refused: what is this?")
            assert delay == (0.0 if number < LIMIT else REFUSAL_DELAY)
            refusals.log_end(pending(), "left")
        assert caplog.messages == ["c1: refused: what is this?", "c1: left"] * LIMIT
        await trio.sleep(WINDOW + 1)
        nursery.cancel_scope.cancel()
    assert [(record.levelno, record.getMessage()) for record in caplog.records[2 * LIMIT :]] == [
        (logging.WARNING, "again 10 times from 192.0.2.1 at wss://gpu:7443/acp: protocol"),
        (logging.INFO, "again 10 times from 192.0.2.1 at wss://gpu:7443/acp: came for nothing"),
    ]
    assert {entry["reason"] for entry in audit_log.entries} == {"protocol"}
    assert audit_log.entries[-1]["count"] == 10
