"""Proofs that a gateway knows a client's token."""

import pytest

from acp_gateway.security.proof import Challenge, answer
from acp_gateway.security.token_format import digest, mint

TOKEN, OTHER = mint(), mint()
HOST = "127.0.0.1"


def prove(challenge: str, *known: str, host: str = HOST) -> str:
    proof = answer(challenge, [digest(mint()), *map(digest, known), digest(mint())], host)
    assert proof is not None
    return proof[0]


@pytest.mark.parametrize(
    ("host", "peer"),
    [
        (HOST, HOST),
        ("::ffff:127.0.0.1", HOST),
        ("::1", "::1"),
        ("172.17.0.2", HOST),
        (HOST, ""),
        (HOST, f"::ffff:{HOST}"),
    ],
)
def test_a_gateway_that_knows_the_token_proves_it(host: str, peer: str) -> None:
    challenge = Challenge(TOKEN)
    assert challenge.is_met(prove(challenge.text, TOKEN, host=host), peer)


def test_a_proof_of_another_token_or_challenge_is_refused_and_looks_alike() -> None:
    challenge = Challenge(TOKEN)
    unknown, earlier = prove(challenge.text, OTHER), prove(Challenge(TOKEN).text, TOKEN)
    right = prove(challenge.text, TOKEN)
    for wrong in (unknown, earlier, right.replace(HOST, "10.0.0.1"), right[:-10], "", "\ud800", None, 7, f" {HOST}"):
        assert not challenge.is_met(wrong, HOST)
    assert len(unknown) == len(right)
    assert prove(challenge.text, OTHER) != unknown


def test_a_proof_that_another_loopback_address_has_passed_on_is_refused() -> None:
    challenge = Challenge(TOKEN)
    for peer in ("::1", "127.0.0.2", "::ffff:127.0.0.2"):
        assert not challenge.is_met(prove(challenge.text, TOKEN), peer)


def test_a_challenge_tells_neither_token_nor_digest_and_a_malformed_one_gets_no_answer() -> None:
    text = Challenge(TOKEN).text
    name, _, _ = text.partition(".")
    assert name not in TOKEN + digest(TOKEN)
    assert text.startswith(Challenge(TOKEN).text.partition(".")[0])
    for wrong in ("", name, text + "0", text.upper(), f"{text}\n", TOKEN):
        assert answer(wrong, [digest(TOKEN)], HOST) is None
