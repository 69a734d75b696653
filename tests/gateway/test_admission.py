"""Authorization: agents, sessions and roles that connections get, and what errors do not reveal."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from acp_gateway.config.addresses import parse_target
from acp_gateway.config.load import AgentSection, Config
from acp_gateway.config.nodes import NodeSection
from acp_gateway.config.options import GatewaySection
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Role, Session
from acp_gateway.core.turns.journal import Journal
from acp_gateway.errors import AccessError, Forbidden, UnknownAgent, UnknownSession
from acp_gateway.gateway.access import Access, ConnectRequest, Grant
from acp_gateway.gateway.admission import Authorizer
from acp_gateway.gateway.extensions import Extensions
from acp_gateway.gateway.node_directory import NodeDirectory
from acp_gateway.gateway.storage.store import Storage
from acp_gateway.security import token_format
from acp_gateway.security.token_store import TokenStore, default_identity
from tests.kit.doubles import OBLIGING_AGENT, make_config
from tests.kit.registered import AgentDouble


def agent() -> AgentSection:
    """An agent that is never started."""
    return AgentSection(command=OBLIGING_AGENT)


class Listener:
    """An authorizer and its sessions."""

    def __init__(self, config: Config) -> None:
        self.registry = Registry(default_identity(config.gateway.state_dir))
        path = config.gateway.state_dir / "sessions.db"
        self.storage = Storage(path, GatewaySection(journal_storage="memory"))
        extensions = Extensions()
        if config.nodes:
            extensions.directory = NodeDirectory(config.nodes, 0.0)
            for node in config.nodes:
                extensions.directory.set_up(node, ["a"], "1.0", 0.0)
        self.directory = extensions.directory
        self._admissions = Authorizer(config, self.registry, self.storage, extensions)

    def admit(self, access: Access, connect_request: ConnectRequest) -> Grant:
        """Authorize a connection."""
        return self._admissions.authorize(access, connect_request)


class Scene:
    """The surroundings of an authorizer."""

    def __init__(self, tmp_path: Path) -> None:
        self._state_dir = tmp_path / "state"
        self.tokens = TokenStore(self._state_dir)

    def listener(self, agents: dict[str, AgentSection] | None = None, **settings: Any) -> Listener:
        """The listener of a gateway with one agent where none are named."""
        return Listener(make_config(self._state_dir, agents=agents or {"fake": agent()}, **settings))

    def front(self, *live: str) -> Listener:
        """The listener of a gateway with the nodes `gpu1` and `gpu2`, and a session "1" of ann's at some agents."""
        node = NodeSection(url=parse_target("wss://gpu.example"), token_file=Path("/token"))
        config = make_config(self._state_dir, agents={"fake": agent()})
        listener = Listener(replace(config, nodes={"gpu1": node, "gpu2": node}))
        for name in live:
            listener.registry.add(Session(name, "1", "ann", Journal(1000)), AgentDouble())
        return listener

    def access(self, identity: str = "ann", *agents: str, **options: Any) -> Access:
        """With a token of this identity."""
        return Access.of(self.tokens.create("laptop", identity, agents or None, **options)[0])

    def guest(self, session: str, role: Literal["controller", "observer"] = "controller") -> Access:
        """With a token for one session."""
        return Access.of(self.tokens.create_guest(session, role=role, lifetime=None)[0])


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


# Who may come in


@pytest.mark.parametrize(
    "connect_request", [ConnectRequest(), ConnectRequest(agent="fake", observe=True), ConnectRequest(control=True)]
)
def test_a_token_of_the_role_metrics_is_for_no_connection(connect_request: ConnectRequest, scene: Scene) -> None:
    with pytest.raises(Forbidden, match="for reading metrics and nothing else"):
        scene.listener().admit(scene.access(role="metrics"), connect_request)


def test_who_names_no_agent_gets_the_default_one(scene: Scene) -> None:
    listener = scene.listener({"a": agent(), "b": agent()}, default_agent="b")
    me = Access("me", None)
    assert listener.admit(me, ConnectRequest()).agent == "b"
    assert listener.admit(me, ConnectRequest("a")).agent == "a"
    assert listener.admit(scene.access(), ConnectRequest()).agent == "b"
    assert listener.admit(scene.access("ann", "a", "b"), ConnectRequest()).agent == "b"


def test_a_token_for_one_agent_need_not_name_it(scene: Scene) -> None:
    listener = scene.listener({"a": agent(), "b": agent()}, default_agent="b")
    assert listener.admit(scene.access("ann", "a"), ConnectRequest()).agent == "a"


def test_an_agent_that_the_token_does_not_allow_is_refused(scene: Scene) -> None:
    listener = scene.listener({"a": agent(), "b": agent(), "c": agent()}, default_agent="b")
    with pytest.raises(Forbidden, match="does not allow the agent b"):
        listener.admit(scene.access("ann", "a"), ConnectRequest("b"))
    with pytest.raises(Forbidden, match="does not allow the agent b"):
        listener.admit(scene.access("ann", "a", "c"), ConnectRequest())


def test_an_unknown_agent_is_an_error_for_all_tokens_that_quotes_little_of_the_name(
    scene: Scene, tmp_path: Path
) -> None:
    listener = scene.listener()
    for access in (Access("me", None), scene.access(), scene.access("ann", "absent")):
        with pytest.raises(UnknownAgent, match="no agent 'absent'"):
            listener.admit(access, ConnectRequest("absent"))
    # As of a door without agents of its own.
    door = Listener(replace(make_config(tmp_path / "door"), agents={}))
    with pytest.raises(UnknownAgent, match="this gateway has no default agent"):
        door.admit(scene.access(), ConnectRequest())
    with pytest.raises(UnknownAgent) as unknown:
        listener.admit(scene.access(), ConnectRequest("x" * 60_000))
    assert len(str(unknown.value)) < 200
    with pytest.raises(UnknownAgent):
        listener.admit(scene.access(), ConnectRequest(""))


def test_a_token_whose_only_agent_is_gone_from_the_configuration_opens_nothing(scene: Scene) -> None:
    with pytest.raises(UnknownAgent):
        scene.listener().admit(scene.access("ann", "gone"), ConnectRequest())


@pytest.mark.parametrize(
    ("role", "observe", "granted"),
    [
        ("controller", False, Role.CONTROLLER),
        ("controller", True, Role.OBSERVER),
        ("observer", False, Role.OBSERVER),
        ("observer", True, Role.OBSERVER),
    ],
)
def test_observe_narrows_the_role_of_a_token_and_nothing_widens_it(
    role: Literal["controller", "observer"], observe: bool, granted: Role, scene: Scene
) -> None:
    listener = scene.listener()
    assert listener.admit(scene.access(role=role), ConnectRequest(observe=observe)).role is granted
    live(listener, "s", "bob")
    assert listener.admit(scene.guest("s", role), ConnectRequest(observe=observe)).role is granted


def test_whom_the_kernel_vouches_for_controls_unless_it_wants_to_look_only(scene: Scene) -> None:
    listener = scene.listener()
    assert listener.admit(Access("me", None), ConnectRequest()).role is Role.CONTROLLER
    assert listener.admit(Access("me", None), ConnectRequest(observe=True)).role is Role.OBSERVER


@pytest.mark.parametrize("scope", ["connection", "identity"])
def test_who_only_looks_finds_no_session_that_is_not_live_where_each_has_an_agent_of_its_own(
    scene: Scene, scope: Literal["connection", "identity"]
) -> None:
    listener = scene.listener({"fake": AgentSection(command=OBLIGING_AGENT, scope=scope)})
    listener.registry.restore(Session("fake", "s", "ann", Journal(10)))
    access, connect_request = scene.access(), ConnectRequest(session="s", observe=True)
    if scope == "connection":
        with pytest.raises(UnknownSession):
            listener.admit(access, connect_request)
    else:
        assert listener.admit(access, connect_request).reach.only == "s"
    live(listener, "t", "ann")
    assert listener.admit(access, ConnectRequest(session="t", observe=True)).reach.only == "t"


def test_who_wants_no_session_in_particular_may_see_all_of_its_identity(scene: Scene) -> None:
    reach = scene.listener().admit(scene.access(), ConnectRequest()).reach
    assert (reach.identity, reach.only, reach.guest) == ("ann", None, False)


# Who may join which session


def live(listener: Listener, session_id: str, owner: str, agent: str = "fake") -> Session:
    """A session that some agent process has."""
    session = Session(agent, session_id, owner, Journal(1000))
    listener.registry.add(session, AgentDouble())
    return session


def past(listener: Listener, session_id: str, owner: str, agent: str = "fake") -> Session:
    """A session that an agent process had."""
    session = live(listener, session_id, owner, agent)
    listener.registry.end(session)
    return session


def refusal(listener: Listener, access: Access, **connect_request: Any) -> tuple[type[AccessError], str]:
    """Return the error of a refused connection."""
    with pytest.raises(AccessError) as refused:
        listener.admit(access, ConnectRequest(**connect_request))
    return type(refused.value), str(refused.value)


UNKNOWN = UnknownSession, "no session 's' is open here, or it is not yours"


@pytest.mark.parametrize("place", ["agent", "session"])
def test_a_token_in_the_wrong_place_is_not_repeated(scene: Scene, place: str) -> None:
    token = token_format.mint()
    _, words = refusal(scene.listener(), scene.access(), **{place: token})
    assert token[8:20] not in words


def test_an_own_session_is_joined_at_the_agent_that_it_is_of(scene: Scene) -> None:
    listener = scene.listener({"a": agent(), "fake": agent()}, default_agent="a")
    live(listener, "s", "ann")
    for connect_request in (ConnectRequest(session="s"), ConnectRequest("fake", "s")):
        admission = listener.admit(scene.access(), connect_request)
        assert admission.agent == "fake"
        assert (admission.reach.only, admission.reach.guest) == ("s", False)


def test_an_own_session_that_is_not_live_can_be_joined_as_well(scene: Scene) -> None:
    listener = scene.listener({"a": agent(), "fake": agent()}, default_agent="a")
    past(listener, "s", "ann")
    assert listener.admit(scene.access(), ConnectRequest(session="s")).agent == "fake"
    assert listener.admit(scene.access(), ConnectRequest(session="s", observe=True)).role is Role.OBSERVER


def test_a_session_that_is_not_there_and_one_that_is_not_ones_own_are_refused_alike(scene: Scene) -> None:
    listener = scene.listener()
    ann = scene.access()
    assert refusal(listener, ann, session="s") == UNKNOWN
    session = live(listener, "s", "bob")
    assert refusal(listener, ann, session="s") == UNKNOWN
    assert refusal(listener, ann, session="s", agent="fake") == UNKNOWN
    assert refusal(listener, ann, session="s", observe=True) == UNKNOWN
    listener.registry.end(session)
    assert refusal(listener, ann, session="s") == UNKNOWN


def test_whose_session_it_is_counts_for_the_gateways_own_user_too(scene: Scene) -> None:
    listener = scene.listener()
    live(listener, "s", "bob")
    assert refusal(listener, Access(listener.registry.own_identity, None), session="s") == UNKNOWN


def test_a_session_that_was_never_seen_is_the_gateways_own_users(scene: Scene) -> None:
    listener = scene.listener({"a": agent(), "b": agent()}, default_agent="b")
    me = Access(listener.registry.own_identity, None)
    assert listener.admit(me, ConnectRequest(session="s")).agent == "b"
    assert listener.admit(me, ConnectRequest("a", "s")).agent == "a"
    assert refusal(listener, scene.access(), session="s") == UNKNOWN


def test_a_session_of_another_agent_than_the_one_that_is_named_is_unknown(scene: Scene) -> None:
    listener = scene.listener({"a": agent(), "fake": agent()}, default_agent="a")
    live(listener, "s", "ann")
    assert refusal(listener, scene.access(), session="s", agent="a") == UNKNOWN


@pytest.mark.parametrize("make", [live, past])
def test_a_session_of_an_agent_that_the_token_does_not_allow_is_unknown(
    make: Callable[..., Session], scene: Scene
) -> None:
    listener = scene.listener({"a": agent(), "fake": agent()}, default_agent="a")
    ann = scene.access("ann", "a")
    before = refusal(listener, ann, session="s"), refusal(listener, ann, session="s", agent="fake")
    make(listener, "s", "ann")
    assert (refusal(listener, ann, session="s"), refusal(listener, ann, session="s", agent="fake")) == before
    assert before == (UNKNOWN, (Forbidden, "this token does not allow the agent fake"))


def test_where_the_default_agent_is_forbidden_a_session_that_is_not_there_is_unknown_still(scene: Scene) -> None:
    listener = scene.listener({"a": agent(), "b": agent(), "c": agent()}, default_agent="c")
    assert refusal(listener, scene.access("ann", "a", "b"), session="s") == UNKNOWN
    assert refusal(listener, Access.of(scene.tokens.create("laptop", None, ("a", "b"))[0]), session="s") == UNKNOWN


@pytest.mark.parametrize("make", [live, past])
def test_of_sessions_with_one_id_the_agent_says_which_one_is_meant(make: Callable[..., Session], scene: Scene) -> None:
    listener = scene.listener({"a": agent(), "b": agent(), "c": agent()}, default_agent="a")
    for name in ("a", "b"):
        make(listener, "s", "ann", name)
    make(listener, "s", "bob", "c")
    why = "a and b have a session 's': name the agent too"
    assert refusal(listener, scene.access(), session="s") == (UnknownSession, why)
    assert listener.admit(scene.access(), ConnectRequest("a", "s")).agent == "a"
    assert listener.admit(scene.access(), ConnectRequest("b", "s")).agent == "b"
    # Nothing is told of agents that a token does not allow, of other owners, or to guests.
    assert listener.admit(scene.access("ann", "b"), ConnectRequest(session="s")).agent == "b"
    assert refusal(listener, scene.guest("s")) == UNKNOWN


def test_of_sessions_with_one_id_the_live_one_is_meant(scene: Scene) -> None:
    listener = scene.listener({"a": agent(), "b": agent()}, default_agent="a")
    past(listener, "s", "ann", "a")
    live(listener, "s", "ann", "b")
    assert listener.admit(scene.access(), ConnectRequest(session="s")).agent == "b"
    assert listener.admit(scene.access(), ConnectRequest("a", "s")).agent == "a"


def test_a_session_id_is_not_repeated_at_length(scene: Scene) -> None:
    for access in (scene.access(), scene.guest("s")):
        _, text = refusal(scene.listener(), access, session="x" * 1024)
        assert len(text) < 200


def test_a_token_for_a_session_says_more_than_what_is_asked_for(scene: Scene) -> None:
    listener = scene.listener({"a": agent(), "fake": agent()}, default_agent="a")
    live(listener, "s", "ann")
    guest = scene.guest("s")
    for connect_request in (
        ConnectRequest(),
        ConnectRequest(session="s"),
        ConnectRequest("a"),
        ConnectRequest("fake"),
        ConnectRequest("absent", "s"),
    ):
        admission = listener.admit(guest, connect_request)
        assert admission.agent == "fake"
        assert (admission.reach.only, admission.reach.guest) == ("s", True)
        assert admission.reach.identity == guest.identity


def test_for_a_guest_there_is_no_session_but_its_own(scene: Scene) -> None:
    listener = scene.listener()
    guest = scene.guest("g")
    live(listener, "g", "ann")
    before = refusal(listener, guest, session="s")
    live(listener, "s", "ann")
    assert refusal(listener, guest, session="s") == before == UNKNOWN


def test_a_guest_opens_no_session_that_is_not_live(scene: Scene) -> None:
    listener = scene.listener()
    guest = scene.guest("s")
    assert refusal(listener, guest) == UNKNOWN
    past(listener, "s", "ann")
    assert refusal(listener, guest) == refusal(listener, guest, session="s") == UNKNOWN


def test_a_guest_is_not_let_in_where_it_is_not_clear_whose_session_is_meant(scene: Scene) -> None:
    listener = scene.listener()
    live(listener, "s", "ann")
    live(listener, "s", "bob")
    assert refusal(listener, scene.guest("s")) == UNKNOWN


def test_a_guests_token_stays_with_the_session_that_it_led_to_first(scene: Scene) -> None:
    listener = scene.listener()
    guest = scene.guest("s")
    session = live(listener, "s", "ann")
    reach = listener.admit(guest, ConnectRequest()).reach
    assert reach.sees(session)
    listener.registry.end(session)
    # Agents that count their sessions give the same id to the next one.
    later = live(listener, "s", "bob")
    assert not reach.sees(later)
    assert refusal(listener, guest) == UNKNOWN
    assert listener.admit(scene.guest("s"), ConnectRequest()).reach.sees(later)


def test_a_guest_of_an_agent_that_the_token_does_not_allow_is_let_in_nowhere(scene: Scene) -> None:
    listener = scene.listener({"a": agent(), "fake": agent()}, default_agent="a")
    live(listener, "s", "ann")
    assert refusal(listener, scene.access("guest-1", "a", session="s")) == UNKNOWN


def test_who_asks_the_gateway_itself_needs_no_agent(scene: Scene) -> None:
    listener = scene.listener({"a": agent(), "b": agent()}, default_agent="b")
    for connect_request in (ConnectRequest(control=True), ConnectRequest("a", "nothing", control=True)):
        admission = listener.admit(scene.access("ann", "a", "c"), connect_request)
        assert (admission.agent, admission.reach.only) == ("", connect_request.session)


def test_who_asks_the_gateway_itself_for_the_sessions_of_an_agent_that_there_is_no_is_told(scene: Scene) -> None:
    listener = scene.listener({"alpha": agent(), "beta": agent()}, default_agent="beta")
    with pytest.raises(UnknownAgent, match=r"no agent 'alhpa'; did you mean \"alpha\"\?"):
        listener.admit(scene.access(), ConnectRequest("alhpa", control=True))
    with pytest.raises(UnknownAgent, match=r"no agent 'zzz'; there are: alpha, beta$"):
        listener.admit(scene.access(), ConnectRequest("zzz", control=True))
    with pytest.raises(Forbidden):
        listener.admit(scene.access("ann", "alpha"), ConnectRequest("beta", control=True))
    # Of the others neither a token for one agent nor a guest's learns anything.
    with pytest.raises(UnknownAgent, match=r"no agent 'bet'; there are: alpha$"):
        listener.admit(scene.access("ann", "alpha"), ConnectRequest("bet", control=True))
    assert listener.admit(scene.guest("s"), ConnectRequest("zzz", control=True)).agent == ""


def test_who_asks_the_gateway_itself_with_a_token_for_a_session_sees_that_one(scene: Scene) -> None:
    listener = scene.listener()
    reach = listener.admit(scene.guest("s"), ConnectRequest(control=True)).reach
    assert (reach.only, reach.guest) == ("s", True)
    assert refusal(listener, scene.guest("g"), session="s", control=True) == UNKNOWN


# What is in which workspace


def test_a_token_for_some_workspaces_sees_what_is_in_them(scene: Scene) -> None:
    listener = scene.listener()
    reach = listener.admit(scene.access(workspaces=["a", "gone"]), ConnectRequest()).reach
    assert reach.workspaces == ("a", "gone")
    assert listener.admit(scene.access(), ConnectRequest()).reach.workspaces is None


@pytest.mark.parametrize("make", [live, past])
@pytest.mark.parametrize("workspace", ["b", None])
def test_a_session_of_another_workspace_cannot_be_told_from_none(
    make: Callable[..., Session], workspace: str | None, scene: Scene
) -> None:
    listener = scene.listener({"a": agent(), "fake": agent()}, default_agent="a")
    ann = scene.access(workspaces=["a"])
    session = make(listener, "s", "ann")
    session.workspace = workspace
    for connect_request in ({}, {"agent": "fake"}, {"observe": True}):
        assert refusal(listener, ann, session="s", **connect_request) == UNKNOWN
    session.workspace = "a"
    assert listener.admit(ann, ConnectRequest(session="s")).agent == "fake"


def test_what_was_never_seen_is_in_no_workspace_of_a_token(scene: Scene) -> None:
    listener = scene.listener()
    me = listener.registry.own_identity
    assert refusal(listener, Access(me, None, workspaces=("a",)), session="s") == UNKNOWN
    assert listener.admit(Access(me, None), ConnectRequest(session="s")).agent == "fake"


# What is remembered of tokens


def test_each_use_of_a_token_is_noted_and_no_other_credential(scene: Scene) -> None:
    listener, access = scene.listener(), scene.access()
    listener.admit(Access("me", None), ConnectRequest())
    assert listener.storage.token_uses() == {}
    listener.admit(access, ConnectRequest(control=True))
    assert access.token is not None
    assert list(listener.storage.token_uses()) == [access.token.id]


def test_who_shows_a_certificate_has_what_that_is_bound_to(scene: Scene) -> None:
    listener = scene.listener({"a": agent(), "fake": agent()}, default_agent="a")
    access = Access("ann", None, "laptop", role="observer", agents=("fake",), workspaces=("w",))
    admission = listener.admit(access, ConnectRequest())
    assert (admission.agent, admission.role, admission.reach.workspaces) == ("fake", Role.OBSERVER, ("w",))


# Browsers for one session


def test_a_browser_for_one_session_joins_it_alone_and_never_one_of_another_owner(scene: Scene) -> None:
    listener = scene.listener()
    only = replace(scene.access(), only="s1")
    grant = listener.admit(only, ConnectRequest(control=True))
    assert (grant.reach.only, grant.reach.guest, grant.reach.identity) == ("s1", False, "ann")
    for wanted in ("s2", "S1", ""):
        with pytest.raises(UnknownSession):
            listener.admit(only, ConnectRequest(session=wanted))
        with pytest.raises(UnknownSession):
            listener.admit(only, ConnectRequest(session=wanted, control=True))
    for request in (ConnectRequest(), ConnectRequest(session="s1")):
        with pytest.raises(UnknownSession):
            listener.admit(only, request)


# Sessions and agents of nodes


@pytest.mark.parametrize("name", ["gpu1/1", "gpu3/1"])
def test_who_is_bound_to_a_session_of_a_node_sees_no_session_here_of_the_same_id(name: str, scene: Scene) -> None:
    front = scene.front("fake")
    for access, asked in (
        (scene.guest(name), None),
        (scene.guest(name), name),
        (replace(scene.access(), only=name), None),
        (scene.access(), name),
    ):
        grant = front.admit(access, ConnectRequest(session=asked, control=True))
        assert [*front.registry.live(grant.reach)] == []
        with pytest.raises(UnknownSession):
            front.admit(access, ConnectRequest(session=asked))
    with pytest.raises(UnknownSession):
        front.admit(scene.guest(name), ConnectRequest(session="1", control=True))


def test_an_agent_of_a_node_can_be_listed_and_is_used_at_the_node_alone(scene: Scene) -> None:
    front = scene.front()
    assert front.admit(scene.access(), ConnectRequest("gpu1/a", control=True)).agent == ""
    for access, request, error, why in (
        (scene.access(), ConnectRequest("gpu1/a"), UnknownAgent, r"are for /nodes/gpu1/… here$"),
        (scene.access(), ConnectRequest("gpu1/a", passed=("0" * 16,)), UnknownAgent, "another gateway can't use those"),
        (scene.access(), ConnectRequest("gpu1/b", control=True), UnknownAgent, "the node gpu1 has no agent b"),
        (scene.access("ann", "gpu2/a"), ConnectRequest("gpu1/a"), Forbidden, "does not allow the agent gpu1/a"),
        (scene.access(), ConnectRequest("gpu1/a", session="1"), UnknownSession, "no session '1' is open here"),
    ):
        with pytest.raises(error, match=why):
            front.admit(access, request)
