"""Principals of prompts: found again with what they may do now, or not at all."""

from dataclasses import replace

import msgspec
import pytest

from acp_gateway.config.options import CertificateSection
from acp_gateway.core.sessions.session import Session
from acp_gateway.core.turns.journal import Journal
from acp_gateway.errors import Unauthorized
from acp_gateway.gateway.access import Access
from acp_gateway.gateway.sessions.senders import sender_of
from acp_gateway.protocol.on_behalf import OnBehalf
from acp_gateway.security.certificates import CertificateId
from tests.kit.bridging import Bench

SECTION = CertificateSection(subject="CN=ann", identity="ann")


def accesses(bench: Bench) -> dict[str, Access]:
    """An access of each kind, of ann where it need not be another's."""
    own = bench.gateway.registry.own_identity
    bench.gateway.config.certificates["ann"] = SECTION  # type: ignore[index] # It is a dictionary.
    token, other = bench.access(), bench.access("door", may_speak_for=["ann"])
    _, code = bench.gateway.browsers.make_code(token.token, "ann", label="phone")
    signed_in = bench.gateway.browsers.sign_in(code)
    certificate = Access.of_certificate("ann", SECTION, own)
    return {
        "token": token,
        "browser": Access.of_browser(signed_in.browser, token.token),
        "certificate": replace(certificate, expires=1e12, certificate_id=CertificateId(b"issuer", 2**100)),
        "another gateway": bench.gateway.admissions.act_for(other, OnBehalf("ann", "controller")),
        "its own user": Access(own, None),
        "its own user's program": Access(own, None, by_port=True),
    }


async def test_each_kind_of_principal_is_found_with_its_access_and_no_secret_is_written(bench: Bench) -> None:
    for kind, access in accesses(bench).items():
        sender = sender_of(access)
        assert bench.gateway.senders.find(sender) == access, kind
        assert access.token is None or access.token.sha256 not in sender
        assert bench.gateway.senders.objection_to(sender, session_of(bench, access.identity)) == ""
        assert bench.gateway.senders.objection_to(sender, session_of(bench, "ben")) != "", kind


def session_of(bench: Bench, owner: str = "ann") -> Session:
    return Session(bench.gateway.config.default_agent, "s", owner, Journal(1000, "e"))


@pytest.mark.parametrize("sender", ["", "{}x", '{"token_id":"none"}', '{"browser":"none"}', '{"certificate":"none"}'])
async def test_a_principal_that_has_gone_is_not_found(bench: Bench, sender: str) -> None:
    with pytest.raises(Unauthorized, match="not valid any more"):
        bench.gateway.senders.find(sender)
    assert "not valid any more" in bench.gateway.senders.objection_to(sender, session_of(bench))


async def test_a_principal_has_what_its_credential_allows_now(bench: Bench) -> None:
    senders, tokens, access = bench.gateway.senders, bench.gateway.tokens, bench.access()
    assert access.token is not None
    sender, token_id = sender_of(access), access.token.id
    for rights, allowed in (
        ({"agents": (bench.gateway.config.default_agent,)}, True),
        ({"agents": ("other",)}, False),
        ({"role": "observer"}, False),
    ):
        tokens.change(
            lambda known, rights=rights: [  # type: ignore[misc] # mypy does not see the default.
                msgspec.structs.replace(it, **{"agents": None, "role": "controller"} | rights) for it in known
            ]
        )
        assert (senders.objection_to(sender, session_of(bench)) == "") is allowed
    tokens.revoke(token_id)
    with pytest.raises(Unauthorized):
        senders.find(sender)
