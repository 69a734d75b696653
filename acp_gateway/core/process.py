"""An agent's process, as far as it is known, and the requests that it has got and not answered."""

from collections.abc import Callable
from typing import Any, TypeVar

from acp_gateway.core.capabilities import Abilities
from acp_gateway.core.output import DropWorktree, Outgoing
from acp_gateway.core.requests import ForwardedRequest, LostErrors
from acp_gateway.core.sessions.session import Client, Request
from acp_gateway.core.sessions.sub_agents import SubAgents
from acp_gateway.core.states import AGENT_TRANSITIONS, AgentPhase, moved
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import Message, RawId
from acp_gateway.protocol.text import lookup, spans

_R = TypeVar("_R", bound=ForwardedRequest)


class Process:
    """An agent's process, or the one that the next request starts."""

    def __init__(self) -> None:
        self.phase = AgentPhase.ABSENT
        """Its phase, which `move_to` changes."""
        self.lost: LostErrors | None = None
        """Errors once it is lost: there will not be another process."""
        self.abilities = Abilities()
        """Capabilities from the last `initialize`."""
        self.auth_methods: list[dict[str, Any]] = []
        """All authentication methods of the agent, including those hidden from clients."""
        self.cuts_turns = False
        """True once it is being stopped: a turn that ends as cancelled then is cut off."""

    def move_to(self, phase: AgentPhase) -> None:
        """Change the phase."""
        self.phase = moved(AGENT_TRANSITIONS, self.phase, phase)

    def end_for_good(self, errors: LostErrors) -> None:
        """Note that there will not be another process, and the errors for requests to it."""
        if self.lost is None:
            self.move_to(AgentPhase.LOST)
        self.lost = errors

    @property
    def never_reopens(self) -> bool:
        """True if it is initialized and can't open sessions of an earlier one."""
        return self.phase is AgentPhase.READY and not self.abilities.reopens


class OpenRequests:
    """The requests that the agent has got and not answered, of clients and of the gateway itself.

    `respond` sends the agent's response to the client of a request.
    """

    def __init__(self, out: Outgoing, sub_agents: SubAgents, respond: Callable[[Request, Message], None]) -> None:
        self._out = out
        self._sub_agents = sub_agents
        self._respond = respond
        self._last_id = 0
        self._open: dict[int, ForwardedRequest] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def is_waited_for(self) -> bool:
        """True if one of them is of a client that has not gone."""
        return any(not request.abandoned for request in self._open.values())

    def of_client(self, raw_id: RawId) -> Request | None:
        """Return the request of a client that the agent has under this id; None if there is none."""
        number = jsonrpc.id_number(raw_id)
        request = None if number is None else self._open.get(number)
        return request if isinstance(request, Request) else None

    def forward(
        self,
        request: _R,
        then: Callable[[_R, Message], None] | None = None,
        text: bytes | None = None,
        *,
        names_for: str | None = None,
    ) -> None:
        """Forward a request to the agent under an id of the gateway, with `text` in place of its own, if given.

        `then` takes the request and the agent's response; without it the client gets that, and nothing changes here.
        `names_for` is the account for which the response will name a new session; None if it will name none.
        """
        self._last_id += 1
        self._sub_agents.note_request(request)
        request.agent_id, request.then = self._last_id, then or self._respond
        self._open[self._last_id] = request
        if names_for is not None:
            self._sub_agents.naming[self._last_id] = names_for
        message = request.message
        if text is not None and text is not message.text:
            message = jsonrpc.parse(text)
        self._out.agent(jsonrpc.with_id(message, RawId(b"%d" % self._last_id), unique=True))
        if not methods.client_method(request.message.method).kept:
            request.set_text(b"")

    def receive_response(self, response: Message) -> None:
        """Handle the agent's response to one of them; a request gets one at most."""
        number = jsonrpc.id_number(response.id)
        request = None if number is None else self._open.pop(number, None)
        if number is None or request is None or request.then is None:
            self._out.log("dropped a response of the agent to no open request")
            return
        self._sub_agents.naming.pop(number, None)
        request.agent_id = None
        if methods.is_known(request.message.method) and not lookup.has_readable_result(response):
            why = f"the agent's answer has a result of more than {spans.MEMBERS} members"
            response = jsonrpc.parse(jsonrpc.error(response.id, jsonrpc.INTERNAL_ERROR, why))
        request.then(request, response)

    def fail(self, raw_id: RawId, why: str, data: object = None) -> None:
        """End the request that the agent has under this id, and whose response can't be used, with an error."""
        self.receive_response(jsonrpc.parse(jsonrpc.error(raw_id, jsonrpc.INTERNAL_ERROR, why, data)))

    def client_gone(self, client: Client) -> None:
        """Drop what is kept for the responses to an expired client: all of a request that changes nothing here."""
        for number, request in list(self._open.items()):
            if isinstance(request, Request) and request.client is client:
                if request.then == self._respond:
                    del self._open[number]
                else:
                    request.forget_most()

    def clear(self) -> None:
        """Forget them: their process has ended, without the sessions for which working trees were made."""
        for request in self._open.values():
            if isinstance(request, Request) and (made := request.findings.worktree) is not None:
                self._out.effect(DropWorktree(request.client, made))
        self._open.clear()
        self._sub_agents.naming.clear()

    def too_many_abandoned(self, request: Request, most: int) -> str | None:
        """Return why too many requests of closed connections are open for a further request; None if it may pass.

        With an agent that does not answer, each new connection would add some. They count for each identity.
        """
        if len(self._open) < most or request.message.method == methods.INITIALIZE:
            return None
        account = request.client.reach.account
        abandoned = sum(
            isinstance(other, Request) and other.abandoned and other.client.reach.account == account
            for other in self._open.values()
        )
        if abandoned < most:
            return None
        return f"comes while the agent has not answered max_open_requests ({most}) of closed connections"
