"""The nodes of a running gateway: those of its configuration, and those that it is told of.

One directory has them all. Imported only where there are nodes.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from acp_gateway.client.control import exchange
from acp_gateway.client.dialing import Destination
from acp_gateway.config.nodes import NodeSection
from acp_gateway.errors import ProtocolError
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.node_directory import NodeDirectory
from acp_gateway.gateway.session_api.requests import LIST, MACHINE
from acp_gateway.nodes.asking import LIST_SIZE, NodeAsker, NodeQuestions
from acp_gateway.nodes.door import NodeAdmission
from acp_gateway.nodes.looks import NodeLooks, Told
from acp_gateway.nodes.pushing import NodePushing
from acp_gateway.nodes.reaching import NodeReacher
from acp_gateway.protocol.methods import ACCESS
from acp_gateway.security.tls import parse_pin
from acp_gateway.security.token_format import read_token_file
from acp_gateway.transports.websocket.stream import PASSED


def destination_of(node: NodeSection, own_id: str) -> Destination:
    """Return where the control connection of a node leads, with the token of this moment. Raises `ConfigError`."""
    return Destination(
        address=node.url,
        agent=None,
        token=read_token_file(node.token_file),
        pin=None if node.pin is None else parse_pin(node.pin),
        ca=node.ca,
        max_message_size=LIST_SIZE,
        control=True,
        origin=((PASSED, own_id),),
        opener=node.opener,
    )


class NodeSet:
    """The nodes of one gateway. Each change is in effect at once.

    Clients that use an agent of a node that is removed keep it until their connections end; no others get it.

    Args:
        directory: the state of the nodes.
        looks: finds out the state of nodes.
        clock: returns the time, in seconds since 1970.
    """

    def __init__(self, directory: NodeDirectory, looks: NodeLooks, clock: Callable[[], float]) -> None:
        self.directory = directory
        self.looks = looks
        self._clock = clock

    def configure(self, sections: Mapping[str, NodeSection]) -> None:
        """Use these sections of the configuration instead of those before."""
        self.directory.configure(sections, self._clock())
        self.looks.update()

    def add(self, name: str, section: NodeSection) -> None:
        """Add a node that was discovered, or use another section for it. One of the configuration wins over it."""
        self.directory.add(name, section, self._clock())
        self.looks.update()

    def remove(self, name: str) -> None:
        """Remove a node that was discovered; see `NodeDirectory.remove`."""
        self.directory.remove(name)
        self.looks.update()


def open_nodes(gateway: Gateway, own_id: str, clock: Callable[[], float] = time.time) -> NodeSet:
    """Give a running gateway the nodes of its configuration. Until it stops, they are looked at when that is needed,
    and followed for browsers that are notified."""
    directory = NodeDirectory(gateway.config.nodes, clock())
    gateway.reconfigure(replace(gateway.config, nodes=directory.sections), ())
    extensions = gateway.extensions
    reach = NodeReacher(lambda: directory.sections).reach

    async def ask_state(name: str) -> tuple[Destination, Told]:
        params = {"all": True, "limit": gateway.config.limits.max_node_sessions}
        async with asker.connected(name, None) as (destination, stream):
            ask = partial(exchange, stream, destination)
            told = Told(await ask(ACCESS, {}), await ask(LIST, params))
            with suppress(ProtocolError):
                # A token for one session is not told.
                told = told._replace(machine=await ask(MACHINE, {}))
            return destination, told

    looks = NodeLooks(directory, ask_state, clock)
    admission = NodeAdmission(gateway, looks.noting(reach))
    asker = NodeAsker(own_id, admission, looks.noting(reach), gateway.audit_throttle)
    extensions.directory, extensions.looks = directory, looks
    extensions.questions = NodeQuestions(gateway, admission, asker.ask)
    extensions.door, extensions.led_to = admission, admission.led_to
    pushing = NodePushing(gateway.push, directory, admission, asker.connected, clock)
    gateway.push.elsewhere = pushing.questions
    gateway.start_task(looks.run)
    gateway.start_task(pushing.run)
    return NodeSet(directory, looks, clock)
