"""The claim of a gateway that acts for an identity: one spelling, and nothing else."""

import json
from base64 import urlsafe_b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.protocol.on_behalf import CLAIM_SIZE, IDENTITY_SIZE, REQUEST_ID, OnBehalf, read_claim, write_claim

ALICE = OnBehalf("alice", "controller", ("memory",))


def encoded(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def test_a_claim_is_read_as_it_was_written() -> None:
    guest = OnBehalf("guest-1", "observer", ("a",), "own", "s 1/ü", True, "alice", 1700000000999)
    rights = OnBehalf("guest-1", "observer", session="s", guest=True, files=True, ports=True)
    assert read_claim(write_claim(rights)) == rights
    for claim in (ALICE, OnBehalf("Zoë \U0001f600", "observer", ("a", "b.c-d_e")), OnBehalf("a", "observer"), guest):
        assert read_claim(write_claim(claim)) == claim
    assert write_claim(ALICE) == encoded({"identity": "alice", "role": "controller", "agents": ["memory"]})


def test_the_longest_identity_fits() -> None:
    claim = OnBehalf("\U0001f600" * IDENTITY_SIZE, "controller", ("x" * 64,) * 16)
    assert len(write_claim(claim)) <= CLAIM_SIZE
    assert read_claim(write_claim(claim)) == claim


GOOD = {"identity": "alice", "role": "controller", "agents": ["memory"]}


@pytest.mark.parametrize(
    "value",
    [
        "",
        "alice",
        "é",
        "eyJ",
        "=" * 8,
        "A" * (CLAIM_SIZE + 1),
        write_claim(ALICE) + "=",
        write_claim(ALICE) + "AA",
        write_claim(ALICE) + " ",
        f"{write_claim(ALICE)},{write_claim(ALICE)}",
        encoded("[" * 3000),
        encoded('{"identity": "alice", "role": "controller", "agents": ["memory"]}'),
        encoded('{"identity":"bob","identity":"alice","role":"controller","agents":["memory"]}'),
        encoded('{"role":"controller","identity":"alice","agents":["memory"]}'),
        encoded('{"identity":"\\u0061lice","role":"controller","agents":["memory"]}'),
        encoded('{"identity":"\\ud800","role":"controller","agents":["memory"]}'),
        encoded(GOOD | {"admin": True}),
        encoded(GOOD | {"ports": False}),
        encoded(GOOD | {"ports": 1}),
        encoded(GOOD | {"identity": ""}),
        encoded(GOOD | {"identity": " "}),
        encoded(GOOD | {"identity": "a\nb"}),
        encoded(GOOD | {"identity": "x" * (IDENTITY_SIZE + 1)}),
        encoded(GOOD | {"identity": None}),
        encoded(GOOD | {"role": "metrics"}),
        encoded(GOOD | {"role": None}),
        encoded(GOOD | {"agents": None}),
        encoded(GOOD | {"agents": []}),
        encoded(GOOD | {"agents": ["gpu1/memory"]}),
        encoded(GOOD | {"agents": ["memory\n"]}),
        encoded(GOOD | {"agents": ["a"] * 17}),
        encoded(GOOD | {"otherwise": "refused"}),
        encoded(GOOD | {"otherwise": "any"}),
        encoded(GOOD | {"owner": "bob"}),
        encoded(GOOD | {"guest": True}),
        encoded(GOOD | {"session": "s", "guest": False}),
        encoded(GOOD | {"session": "s", "guest": True, "owner": " "}),
        encoded(GOOD | {"session": "s", "owner": "bob"}),
        encoded(GOOD | {"session": "s", "since": 1}),
        encoded(GOOD | {"session": "s", "guest": True, "since": -1}),
        encoded(GOOD | {"session": ""}),
        encoded(GOOD | {"session": "x" * 1025}),
        encoded({"identity": "alice", "agents": ["memory"]}),
    ],
)
def test_what_is_spelled_otherwise_or_says_more_or_less_is_not_a_claim(value: str) -> None:
    assert read_claim(value) is None


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda data: urlsafe_b64encode(data).decode().rstrip("=")))
def test_no_text_makes_reading_a_claim_fail(value: str) -> None:
    claim = read_claim(value)
    assert claim is None or write_claim(claim) == value


@pytest.mark.parametrize("text", ["", "a b", "a\n", "a" * 65, "é", "a/b"])
def test_a_request_id_is_a_short_word(text: str) -> None:
    assert REQUEST_ID.fullmatch(text) is None
    assert REQUEST_ID.fullmatch("0aF-" * 16)
