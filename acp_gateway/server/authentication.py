"""Authenticates connections and authorizes what they ask for.

A connection authenticates by token, by a browser's cookie, by the kernel at a unix socket, or by client certificate;
with `local_user` also by the kernel's tables of sockets, at a port on loopback.

A token takes precedence over the others, even if it is wrong: the client meant to use it. So does a cookie over a
certificate.

There, a gateway accepts its own user without a token. Its agents run as the same user, and must not be able
to connect there and approve their own requests.

This keeps out an agent that runs `acp-gateway connect` or a similar program. A malicious program can leave its session
and its parents, as a daemon does; only in a fence it is still told from its user.
"""

import errno
import hmac
import logging
import os
import re
import select
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Container
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Final

import trio
from websockets.datastructures import Headers

from acp_gateway.config.load import ListenSection
from acp_gateway.errors import Forbidden, Unauthorized
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.agent.fencing import may_have_fences
from acp_gateway.gateway.agent.orphans import PROC, ProcessStat, read_stat
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.security import proof
from acp_gateway.security.certificates import certificate_id
from acp_gateway.security.invitations import InvitationStore
from acp_gateway.security.tls import certificate_end, certificate_subject
from acp_gateway.security.token_store import PURPOSES, MadeFor, Role, default_identity
from acp_gateway.server.handshake_limits import HandshakeLimiter, ThrottledStream
from acp_gateway.server.hello import ResumeRequest, why_indirect
from acp_gateway.server.local_peer import LocalPeer
from acp_gateway.server.pending import Accepted, PendingConnection
from acp_gateway.transports.http.head import HttpError
from acp_gateway.transports.http.server import RETRY, HttpConnection, Response
from acp_gateway.transports.streams import Flooded

log = logging.getLogger(__name__)

_SO_PEERPIDFD: Final = 77
"""The option of a unix socket that gives a descriptor of the process at its other end, which Python does not name."""

_NO_WINDOW: Final = "this token is for windows of VS Code, at a listener of their own, and nothing else"
_ONLY_WINDOWS: Final = (
    "no valid token for a window of VS Code: `acp-gateway token create --for vscode` on the gateway's machine makes one"
)

_GONE: Final = "the process that connected has ended: a token is needed here"


@dataclass(frozen=True, slots=True)
class PeerCredentials:
    """The process that connected, as the kernel saw it at that moment."""

    pid: int
    """0 where the process cannot be seen from here (it is in another container)."""
    uid: int
    gid: int


def peer_credentials(sock: socket.socket) -> PeerCredentials | None:
    """Return the process that connected to a unix socket; None for other sockets, and on systems other than Linux."""
    if not hasattr(socket, "SO_PEERCRED") or sock.family != socket.AF_UNIX:
        return None
    ucred = struct.Struct("iII")
    return PeerCredentials(*ucred.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, ucred.size)))


def has_ended(sock: socket.socket) -> bool:
    """Return whether the process that connected to a unix socket has ended, so that its id may be another one's.

    False where the kernel does not tell: before Linux 6.5.
    """
    try:
        process = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        return error.errno != errno.ENOPROTOOPT
    try:
        ended = select.poll()
        ended.register(process, select.POLLIN)
        return bool(ended.poll(0))
    finally:
        os.close(process)


def belongs_to_agent(
    pid: int,
    agent_sessions: Container[int],
    *,
    read_stat: Callable[[int], ProcessStat | None] = read_stat,
) -> bool:
    """Return whether a process is in, or descends from, the process session of an agent.

    `agent_sessions` holds the agents' process sessions, each by the id of its first process. Returns True also if that
    can't be determined, for example because the process has ended: unknown processes are refused.
    """
    seen: set[int] = set()
    while pid not in seen:
        seen.add(pid)
        if pid in agent_sessions:
            return True
        if pid == 1:
            # Every family ends here. Not looked at: where /proc shows a user only the user's own processes
            # (hidepid), this one is missing.
            return False
        stat = read_stat(pid)
        if stat is None or stat.session in agent_sessions:
            return True
        if stat.parent == 0:
            # Its parent is outside of this container, and the agents are all inside.
            return False
        pid = stat.parent
    # Ids were used again while they were followed.
    return True


def has_no_new_privileges(pid: int, proc: Path = PROC) -> bool:
    """Return whether the system keeps a process from gaining privileges; True also if that can't be determined."""
    try:
        text = (proc / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return re.search(r"^NoNewPrivs:\s*0$", text, re.MULTILINE) is None


@dataclass(frozen=True, slots=True)
class Client:
    """A pending connection with its socket, and the stream over it."""

    connection: PendingConnection
    sock: socket.socket
    stream: ThrottledStream
    local: LocalPeer | None = None
    """The processes at the other end of a connection to a port; None where these are not asked for."""


@dataclass(frozen=True, slots=True)
class AcceptedRequest:
    """An authenticated HTTP request, which is served outside of the limits for unauthenticated connections."""

    client: Client
    http: HttpConnection
    run: Callable[[HttpConnection], Awaitable[bool]]
    """Writes the response, and returns whether another request may follow."""

    async def serve(self) -> bool:
        """Serve the request; return whether another one may follow, else the connection is closed."""
        again = False
        try:
            again = await self._run()
        except trio.BrokenResourceError as error:
            log.debug("%s: %s", self.client.connection.name, error)
        if not again:
            await self.http.aclose()
        return again

    async def _run(self) -> bool:
        try:
            return await self.run(self.http)
        except HttpError as error:
            refusal = Response.of_text(error.status, str(error), close=True)
        except Flooded:
            text = "too many requests without a message; send this one again later"
            refusal = Response.of_text(HTTPStatus.TOO_MANY_REQUESTS, text, RETRY, close=True)
        return await self.http.respond(refusal)


class ConnectionAuthorizer:
    """Authenticates and authorizes the pending connections of one listener."""

    def __init__(self, section: ListenSection, gateway: Gateway, limiter: HandshakeLimiter) -> None:
        self._section = section
        self._address = section.address
        self._gateway = gateway
        self._limiter = limiter
        # The programs whose tokens count here; None for all others.
        self._made_for: MadeFor | None = None if section.query_parameter is None else "vscode"
        self._state_dir = gateway.config.gateway.state_dir
        self._invitations = InvitationStore(self._state_dir, gateway.tokens)

    def prove(self, client: Client, challenge: str) -> tuple[str, float]:
        """Return a proof that this is the gateway, and the seconds to wait before it is sent. Raises `Unauthorized`.

        A token that is not known counts as a refusal. There is no proof where the client has another one, or trusts the
        folder of a socket: a program elsewhere could pass it on.
        """
        plain = not self._address.tls and self._address.scheme != "unix"
        digests = (*self._gateway.tokens.digests(), *self._invitations.digests())
        answer = proof.answer(challenge, digests, client.sock.getsockname()[0]) if plain else None
        if answer is None:
            raise Unauthorized("no token, and no challenge that is answered here")
        text, known = answer
        if known:
            return text, 0.0
        error = Unauthorized("a client has a token that is not known here, and was not sent")
        name = challenge.partition(".")[0]
        return text, self._limiter.refusals.refuse(client.connection, error, presented=name, credential=None).delay

    def authenticate(
        self,
        client: Client,
        token: str | None,
        cookie: str | None = None,
        headers: Headers | None = None,
        *,
        purpose: Role | None = None,
    ) -> Access:
        """Return the principal of a connection. Raises `AccessError`.

        Args:
            client: the connection.
            token: the token that it shows.
            cookie: a browser's.
            headers: of its request; None for a first line.
            purpose: the role of tokens that are for this request and nothing else, beside `metrics`.
        """
        if self._made_for is None:
            access = self._authenticate(client, token, cookie, headers)
        else:
            access = self._authenticate_window(client, token)
        if access.token is not None and access.token.made_for != self._made_for:
            raise Forbidden(_NO_WINDOW if self._made_for is None else _ONLY_WINDOWS)
        if access.role in ("tunnel", "node") and access.role != purpose:
            raise Forbidden(f"this token is for {PURPOSES[access.role]} and nothing else")
        return access

    def _authenticate_window(self, client: Client, token: str | None) -> Access:
        """Return the principal of a program whose token is in the query. Raises `AccessError`."""
        try:
            # Nothing else counts: not even the kernel tells a window from a page.
            return self._authenticate(client, token or "", None, None)
        except Unauthorized:
            # The status that VS Code's own host has.
            raise Forbidden(_ONLY_WINDOWS) from None

    def _authenticate(self, client: Client, token: str | None, cookie: str | None, headers: Headers | None) -> Access:
        connection = client.connection
        connection.token = token or cookie
        if token is not None and cookie is None and (known := self._known(connection, token)) is not None:
            connection.access = known
            self._gateway.connections.check_trust(known)
            return known
        if token is None and cookie is not None:
            access = Access.of_browser(*self._gateway.browsers.authenticate(cookie))
        else:
            other = None
            if token is None:
                other = self._by_kernel(client, headers) or self._by_certificate(client.stream)
            access = other or Access.of(self._gateway.tokens.authenticate(token))
        connection.access = access
        self._gateway.connections.check_trust(access)
        if token is not None and cookie is not None:
            browser = self._gateway.browsers.identify(cookie)
            if browser is not None and browser.identity != access.identity:
                text = "the token and the cookie of this request are of different identities: send one of them"
                raise Forbidden(text)
        elif token is not None:
            connection.identified = token, access
        return access

    def _known(self, connection: PendingConnection, token: str) -> Access | None:
        """Return the principal of the last request over this connection if it has shown the same token, valid still."""
        if connection.identified is None:
            return None
        shown, access = connection.identified
        if access.token is None or not hmac.compare_digest(shown.encode(), token.encode()):
            return None
        return access if self._gateway.tokens.is_current(access.token) else None

    def _by_kernel(self, client: Client, headers: Headers | None) -> Access | None:
        """Authenticate the gateway's own user by what the kernel tells of the peer, except agents."""
        if not self._section.accepts_local_user:
            return None
        own = default_identity(self._state_dir)
        if self._address.scheme != "unix":
            for process in self._processes_at_port(client, headers):
                self._check_process(process.pid)
                # The process may have ended while the client was waited for, and its id be that of another one.
                now = read_stat(process.pid)
                if now is None or now.started != process.started:
                    raise Forbidden(_GONE)
            agent = self._section.path_agent
            return Access(own, None, agents=None if agent is None else (agent,), by_port=True)
        peer = peer_credentials(client.sock)
        if peer is None or peer.uid != os.geteuid():
            return None
        self._check_process(peer.pid)
        if has_ended(client.sock):
            raise Forbidden(_GONE)
        return Access(own, None)

    def _processes_at_port(self, client: Client, headers: Headers | None) -> tuple[ProcessStat, ...]:
        """Return the processes of the gateway's own user at the other end. Raises `Unauthorized` if it is not one."""
        local, why = client.local, None
        if not client.connection.limited:
            why = "a proxy in trusted_proxies has connected"
        elif headers is not None:
            why = why_indirect(headers, self._section.allowed_origins, client.sock.getsockname()[1])
        if local is None or local.refusal or why:
            why = why or (local.refusal if local is not None else "")
            raise Unauthorized(f"a token is needed: local_user is for programs of the gateway's own user, and {why}")
        return local.processes

    def _check_process(self, pid: int) -> None:
        """Raise `Forbidden` for a process of an agent."""
        # The gateway's own process is not an agent, though all agents descend from it.
        if pid != os.getpid() and belongs_to_agent(pid, self._gateway.agent_ancestors):
            raise Forbidden("an agent can't let itself in: a token is needed here")
        if may_have_fences(self._gateway.config) and has_no_new_privileges(pid):
            # So are all processes of a fenced agent, for ever, also those that have left its family.
            raise Forbidden("a process that can gain no privileges (no_new_privs), as in a fence, needs a token here")

    def _by_certificate(self, stream: ThrottledStream) -> Access | None:
        """Authenticate by a client certificate that is valid, not revoked, and in the configuration."""
        certificate = stream.peer_certificate
        if certificate is None or self._section.client_ca is None:
            return None
        ends = certificate_end(certificate)
        # A resumed TLS session is not verified again: its certificate may have expired since.
        if ends <= time.time():
            return None
        revoked_by = certificate_id(certificate)
        if revoked_by in self._gateway.revocations:
            # The client holds the key of the certificate, so the reason may be told.
            raise Unauthorized("this client certificate was revoked: its owner needs another one, or a token")
        subject = certificate_subject(certificate)
        for name, section in self._gateway.config.certificates.items():
            if section.subject == subject:
                access = Access.of_certificate(name, section, default_identity(self._state_dir))
                return replace(access, expires=ends, certificate_id=revoked_by)
        return None

    def authorize(
        self, connection: PendingConnection, access: Access, request: ConnectRequest, link: ResumeRequest | None
    ) -> Accepted:
        """Resume a link, or grant a request. Raises `AccessError`."""
        connection_id = connection.connection_id
        if link is not None and link.connection_id is not None:
            claim = self._gateway.resume(access, link.connection_id, link.received, link.part_sum)
            client = claim.link.client
            limit = self._gateway.link_limit(client.role, client.reach)
            accepted = Accepted(link.connection_id, claim.received, claim, limit, claim.part)
        else:
            grant = self._gateway.admit(access, request)
            accepted = Accepted(connection_id, None, grant)
            if link is not None:
                accepted = Accepted(connection_id, 0, grant, self._gateway.link_limit(grant.role, grant.reach))
        connection.name = connection.name.replace(connection_id[:8], accepted.connection_id[:8], 1)
        self.accept(connection, access, request_id=request.request_id)
        return accepted

    def accept(
        self, connection: PendingConnection, access: Access, *, audited: bool = True, request_id: str = ""
    ) -> None:
        """Take a connection out of the limits of unauthenticated ones; with the id of one that comes through another
        gateway, which the audit has as well."""
        details = {"credential": access.credential, "identity": access.identity, "role": access.role}
        if request_id:
            details["request"] = request_id
        self._limiter.authenticated(connection, details if audited else None)
