"""Principals of prompts that wait: written as a text beside the prompt, and found again when it is to be sent.

A credential is found by its id, so that one which was revoked since, or has lost its rights, sends nothing.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import msgspec

from acp_gateway.config.load import Config
from acp_gateway.core.sessions.session import Session, SessionReach
from acp_gateway.errors import AccessError, ConfigError, Unauthorized
from acp_gateway.gateway.access import Access
from acp_gateway.gateway.admission import Authorizer
from acp_gateway.protocol.on_behalf import read_claim, write_claim
from acp_gateway.security.browser_sessions import BrowserStore
from acp_gateway.security.certificates import CertificateId, Revocations
from acp_gateway.security.token_store import TokenStore, default_identity

_GONE: Final = "the credential of its sender is not valid any more"


class _Sender(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A principal, without any secret. That of the gateway's own user has no members."""

    token_id: str = ""
    """Id of its token, unless that is a browser's."""
    browser: str = ""
    certificate: str = ""
    """Name of its certificate in the configuration."""
    issued: tuple[bytes, str] | None = None
    """Issuer and serial number of the certificate."""
    expires: float | None = None
    claim: str = ""
    """Claim of another gateway that acts for it."""
    by_port: bool = False


def sender_of(access: Access) -> str:
    """Return the principal as a text."""
    issued, browser, token = access.certificate_id, access.browser, access.token
    sender = _Sender(
        token_id="" if token is None or browser is not None else token.id,
        browser="" if browser is None else browser.id,
        certificate=access.certificate or "",
        issued=None if issued is None else (issued.issuer, str(issued.serial)),
        expires=access.expires,
        claim="" if access.claim is None else write_claim(access.claim),
        by_port=access.by_port,
    )
    return msgspec.json.encode(sender).decode()


class Senders:
    """Finds principals again.

    Args:
        config: returns the configuration in force.
        tokens: their tokens.
        browsers: those that are signed in.
        revocations: the revoked certificates.
        admissions: judges claims of other gateways.
    """

    def __init__(
        self,
        config: Callable[[], Config],
        tokens: TokenStore,
        browsers: BrowserStore,
        revocations: Revocations,
        admissions: Authorizer,
    ) -> None:
        self._config = config
        self._tokens = tokens
        self._browsers = browsers
        self._revocations = revocations
        self._admissions = admissions

    def find(self, sender: str) -> Access:
        """Return the access that a principal has now. Raises `AccessError` and `ConfigError`."""
        try:
            told = msgspec.json.decode(sender, type=_Sender)
        except msgspec.DecodeError:
            raise Unauthorized(_GONE) from None
        access = self._credential(told)
        claim = read_claim(told.claim)
        if access is None or (told.claim and claim is None):
            raise Unauthorized(_GONE)
        return access if claim is None else self._admissions.act_for(access, claim)

    def _credential(self, told: _Sender) -> Access | None:
        """Return what a credential allows; None if it is not valid any more."""
        own = default_identity(self._config().gateway.state_dir)
        if told.browser:
            browser = self._browsers.find(told.browser)
            return None if browser is None else Access.of_browser(*browser)
        if told.token_id:
            token = self._tokens.valid(told.token_id)
            return None if token is None else Access.of(token)
        if told.certificate:
            section = self._config().certificates.get(told.certificate)
            issued = None if told.issued is None else CertificateId(told.issued[0], int(told.issued[1]))
            is_revoked = issued is not None and issued in self._revocations
            if section is None or is_revoked or (told.expires is not None and told.expires <= time.time()):
                return None
            access = Access.of_certificate(told.certificate, section, own)
            return replace(access, expires=told.expires, certificate_id=issued)
        return Access(own, None, by_port=told.by_port)

    def objection_to(self, sender: str, session: Session) -> str:
        """Return why a prompt of a principal may not be sent in a session now; empty if it may."""
        try:
            access = self.find(sender)
        except (AccessError, ConfigError) as error:
            return str(error)
        reach = SessionReach(access.identity, access.only, workspaces=access.workspaces)
        # Which session a guest is in was found when it came.
        may_see = access.session is not None or reach.sees(session)
        if access.role == "controller" and access.may_use(session.agent) and may_see:
            return ""
        return "its sender may not prompt in this session any more"
