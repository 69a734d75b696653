"""Makes a running gateway a node of its cluster. Imported only with `[cluster]`."""

import logging
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import trio

from acp_gateway import __version__
from acp_gateway.config.addresses import Address, parse_address
from acp_gateway.config.cluster import ClusterSection
from acp_gateway.config.load import Config, ListenSection
from acp_gateway.config.nodes import NodeSection
from acp_gateway.errors import ConfigError, GatewayError
from acp_gateway.gateway.extensions import TokenExchange
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.nodes.known_nodes import ClusterNodes, KnownNodesFile
from acp_gateway.nodes.member import Member, tell_nodes
from acp_gateway.nodes.node_set import NodeSet
from acp_gateway.nodes.redis_connection import RedisOptions
from acp_gateway.nodes.redis_store import open_redis_store
from acp_gateway.nodes.store import MAX_NAMES, ClusterStore, NodeRecord, Seal
from acp_gateway.nodes.token_exchange import Messenger, SharedTrust
from acp_gateway.nodes.token_sync import TokenSync
from acp_gateway.security.tls import client_context, spki_pin
from acp_gateway.security.token_format import read_token_file
from acp_gateway.security.token_store import TokenStore

log = logging.getLogger(__name__)

OpenStore = Callable[[ClusterSection, str], AbstractAsyncContextManager[ClusterStore]]
"""Opens the directory, by the section and the token of the cluster."""


def open_store(section: ClusterSection, token: str) -> AbstractAsyncContextManager[ClusterStore]:
    """Open the directory in Redis. Raises `ConfigError` if a file of the section can't be used."""
    address = section.url
    options = RedisOptions(
        host=address.host,
        port=address.port,
        unix_path=address.path or None,
        db=address.db,
        username=address.user,
        password=None if section.password_file is None else read_token_file(section.password_file, any_form=True),
        tls=client_context(ca=section.ca, pin=None) if address.tls else None,
        timeout=section.timeout,
    )
    return open_redis_store(options, section.name, Seal(token))


class GatewayNodes:
    """The nodes of a gateway, as a `Member` sees them."""

    def __init__(self, nodes: NodeSet) -> None:
        self._nodes = nodes

    def add(self, name: str, section: NodeSection) -> None:
        self._nodes.add(name, section)

    def remove(self, name: str) -> None:
        self._nodes.remove(name)

    def assume(self, record: NodeRecord) -> None:
        if record.name in self._nodes.directory.nodes:
            self._nodes.directory.assume(record.name, record.agents, record.version)


class ClusterNode:
    """This gateway as a node of its cluster. Made before it listens, by `open_cluster`.

    Args:
        config: the configuration, with the section.
        store: the directory, which is entered by `run`.
    """

    def __init__(self, config: Config, store: AbstractAsyncContextManager[ClusterStore]) -> None:
        assert config.cluster is not None
        self._config = config
        self._section = config.cluster
        self._opening = store
        self._boot = secrets.token_hex(8)
        self._file = KnownNodesFile(config.gateway.state_dir)
        self._known = ClusterNodes(self._section.name, self._section.token_file)
        self.member: Member | None = None
        """None until the gateway runs."""

    def expect(self, gateway: Gateway, nodes: NodeSet) -> None:
        """Lead to the nodes that were known before the start. Have clients that ask for another one try again, until
        the directory has told which ones there are."""
        remembered = self._file.read().nodes
        update = self._known.recall(remembered, time.time())
        tell_nodes(GatewayNodes(nodes), self._known, update, [node.record for node in remembered])
        gateway.extensions.own_node = self._section.name
        nodes.directory.is_unread = lambda: self.member is None or not self.member.has_read

    async def run(self, gateway: Gateway, nodes: NodeSet, urls: Sequence[str]) -> None:
        """Be a node until cancelled. `urls` are the addresses at which the gateway listens."""
        try:
            await self._run(gateway, nodes, urls)
        except* Exception:
            log.exception("internal error: this gateway is not a node of its cluster any more")

    async def _run(self, gateway: Gateway, nodes: NodeSet, urls: Sequence[str]) -> None:
        name = self._section.name

        def describe() -> NodeRecord:
            load = gateway.load
            return NodeRecord(
                name=name,
                url=str(own_address(self._section, urls)),
                pin=own_pin(self._section, self._config.listen),
                boot=self._boot,
                version=__version__,
                agents=tuple(gateway.config.agents)[:MAX_NAMES],
                sessions=load["sessions"],
                turns=load["turns"],
                lag=load["lag"],
            )

        closing = trio.Event()
        async with trio.open_nursery() as holding:
            try:
                store = await holding.start(self._hold_store, closing)
                async with trio.open_nursery() as nursery:
                    self._start(store, gateway, nodes, describe, nursery)
            finally:
                closing.set()

    async def _hold_store(self, closing: trio.Event, task_status: trio.TaskStatus[ClusterStore]) -> None:
        """Keep the directory open until the record is withdrawn, also while the gateway stops."""
        with trio.CancelScope(shield=True):
            async with self._opening as store:
                task_status.started(store)
                await closing.wait()

    def _start(
        self,
        store: ClusterStore,
        gateway: Gateway,
        nodes: NodeSet,
        describe: Callable[[], NodeRecord],
        nursery: trio.Nursery,
    ) -> None:
        """Start the tasks of a node."""
        member = self.member = Member(
            store, self._section, self._boot, describe, GatewayNodes(nodes), self._known, self._file
        )
        tokens = TokenSync(self._section.name, store, self._config.gateway.state_dir, gateway.connections.enforce)
        lost = self._file.read().lost
        if lost is not None:
            tokens.hearsay.lost_since(trio.current_time() - (time.time() - lost))
        limit = self._section.isolation_limit
        messenger = Messenger(tokens, store, member, nodes.directory.nodes, gateway.admissions.own_id, limit)
        tokens.tell = messenger.tell
        gateway.extensions.token_exchange = TokenExchange(messenger.answer, messenger.confirm)
        nursery.start_soon(messenger.run)
        trust = SharedTrust(tokens.hearsay, self._known, limit)
        gateway.extensions.tokens_problem = trust.problem
        nursery.start_soon(trust.run)
        member.renewed.append(tokens.renewed)
        member.listeners.append(tokens.note)
        _tell_of(member, tokens, trust, gateway)
        nursery.start_soon(tokens.run)
        nursery.start_soon(member.run)


def open_cluster(config: Config, tokens: TokenStore, open_it: OpenStore = open_store) -> ClusterNode:
    """Read the secrets of the section, and accept the token of the cluster from now on. Raises `ConfigError`."""
    section = config.cluster
    assert section is not None
    token = read_token_file(section.token_file)
    node = ClusterNode(config, open_it(section, token))
    own_address(section, [listen.url for listen in config.listen])
    own_pin(section, config.listen)
    tokens.accept_cluster(token)
    return node


def own_address(section: ClusterSection, urls: Sequence[str]) -> Address:
    """Return the address of this node for the others. Raises `ConfigError` if none of `urls` is one."""
    if section.advertise is not None:
        return section.advertise
    addresses = [parse_address(url) for url in urls]
    for address in addresses:
        if address.scheme == "wss":
            return replace(address, host=socket.gethostname().lower()) if address.wildcard else address
    for address in addresses:
        if address.scheme == "ws" and address.loopback:
            return address
    raise ConfigError(
        "the other nodes need an address of this one: add a [[listen]] section with wss://, or name the address of a "
        "proxy here",
        key="cluster.advertise",
    )


def own_pin(section: ClusterSection, listeners: Sequence[ListenSection]) -> str | None:
    """Return the pin that the others check; None for a certificate of an authority. Raises `ConfigError`."""
    if section.pin is not None:
        return None if section.pin == "none" else section.pin
    for listener in listeners:
        if listener.address.scheme == "wss" and listener.cert is not None:
            return _pin_of(listener.cert)
    return None


def _pin_of(cert: Path) -> str:
    try:
        text = cert.read_text(encoding="ascii")
        end = "-----END CERTIFICATE-----"
        return spki_pin(ssl.PEM_cert_to_DER_cert(text[text.index("-----BEGIN CERT") :].partition(end)[0] + end))
    except (OSError, ValueError, GatewayError) as error:
        raise ConfigError(f"no certificate can be read there: {error}", file=str(cert)) from None


def _tell_of(member: Member, tokens: TokenSync, trust: SharedTrust, gateway: Gateway) -> None:
    """Let `/readyz`, `status`, lists of sessions and metrics tell of the directory."""
    gateway.extensions.cluster_problem = lambda: trust.problem() or tokens.problem or member.problem
    gateway.extensions.cluster_up = lambda: member.contact.up
    gateway.extensions.lists_problem = lambda: member.contact.lost_since
