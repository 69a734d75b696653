"""Output of the core: in order for each recipient, once, and nothing for departed clients."""

from acp_gateway.core.output import (
    AuditEvent,
    CheckDirectories,
    Effect,
    HookEvent,
    LoadJournal,
    LogMessage,
    Outgoing,
    Output,
    StopUnused,
)
from acp_gateway.core.sessions.session import Client, DirectoryCheck, Request, Session, SessionReach
from acp_gateway.core.states import Presence
from acp_gateway.core.turns.journal import Journal
from acp_gateway.protocol.jsonrpc import parse
from acp_gateway.protocol.outbox import Batch
from acp_gateway.protocol.text.pairs import Pair
from acp_gateway.versions.carried import hidden
from acp_gateway.versions.old_agent import OldAgent
from tests.kit.registered import AgentDouble
from tests.kit.versions import text as words
from tests.kit.versions import update


def client(name: str = "ann") -> Client:
    return Client(name, SessionReach("me"))


def gone() -> Client:
    it = client("gone")
    it.become(Presence.GONE)
    return it


def session_of(*clients: Client) -> Session:
    """A session that these clients are attached to."""
    session = Session("agent", "s", "me", Journal(1000, "e"))
    session.attached = dict.fromkeys(clients)
    for one in clients:
        one.sessions[session] = None
    return session


def test_output_keeps_the_order_of_messages_for_one_client() -> None:
    out, ann, bob = Outgoing(), client(), client("bob")
    out.client(ann, b"1")
    out.clients([bob, ann], b"2")
    out.replay(ann, [b"3", b"4"])
    out.fan_out(session_of(bob, ann), [b"5", b"6"], 0)
    out.client(ann, b"7")
    out.agent(b"a")
    out.agent(b"b")
    taken = out.take()
    assert taken.to_clients == {ann: [b"%d" % number for number in range(1, 8)], bob: [b"2", b"5", b"6"]}
    assert taken.to_agent == [b"a", b"b"]


def test_a_client_that_reads_journals_is_sent_no_update_of_a_session_and_all_else() -> None:
    out, ann, bob = Outgoing(), client(), client("bob")
    ann.reads_journals = True
    session = session_of(ann, bob)
    out.fan_out(session, [b"1", b"2"], 0)
    out.update(session, b"3", 2)
    out.replay(ann, [b"4"])
    out.client(ann, b"5")
    taken = out.take()
    assert taken.to_clients == {bob: [b"1", b"2", b"3"], ann: [b"5"]}
    assert taken.replayed == {}


def test_updates_of_an_agent_of_version_2_are_one_batch_for_clients_of_both_versions() -> None:
    out, ann, bob, carol = Outgoing(), client(), client("bob"), client("carol")
    out.carries = True
    bob.translator, carol.translator = OldAgent(), OldAgent()
    bob.translator.is_same = True
    text = update("agent_message_chunk", messageId="m", content=words("x"))
    out.fan_out(session_of(ann, bob, carol), [Pair(text, text, passes_in="s"), Pair(text, text)], 0)
    to_clients = out.take().to_clients
    assert to_clients[ann] is to_clients[bob]
    assert isinstance(to_clients[bob], Batch)
    assert len(to_clients[carol]) == 2
    out.fan_out(session_of(ann, bob), [Pair(text, text), Pair(b"old", b"new")], 0)
    to_clients = out.take().to_clients
    assert [list(to_clients[each]) for each in (ann, bob)] == [[text, b"old"], [text, b"new"]]


def test_output_for_several_clients_is_one_batch_until_one_of_them_gets_more() -> None:
    out, ann, bob, carol = Outgoing(), client(), client("bob"), client("carol")
    out.fan_out(session_of(ann, bob, carol), [b"1", b"22"], 0)
    out.client(carol, b"3")
    to_clients = out.take().to_clients
    assert to_clients[ann] is to_clients[bob]
    assert to_clients[ann] == Batch([b"1", b"22"])
    assert Batch([b"1", b"22"]).size == 3
    assert to_clients[carol] == [b"1", b"22", b"3"]


def test_taken_output_is_removed_and_does_not_change() -> None:
    out, ann = Outgoing(), client()
    out.client(ann, b"1")
    out.log("one")
    taken = out.take()
    out.client(ann, b"2")
    out.log("two")
    assert taken == Output(to_clients={ann: [b"1"]}, effects=[LogMessage("one")])
    assert out.take() == Output(to_clients={ann: [b"2"]}, effects=[LogMessage("two")])


def test_nothing_is_sent_to_who_is_gone() -> None:
    out, left = Outgoing(), gone()
    left.counts = True
    out.client(left, b"1")
    out.send_position(session_of(left), [left])
    out.clients([left], b"2")
    out.fan_out(session_of(left), [b"2"], 0)
    out.update(session_of(left), b"2", 0)
    out.replay(left, [b"3"])
    out.refusal(left, -32600, "no")
    assert out.take() == Output()


def test_what_only_an_agents_own_version_shows_is_not_sent_to_a_client_of_the_other_one() -> None:
    out, ann = Outgoing(), client()
    out.client(ann, hidden(b'"s"', update("agent_message_chunk")))
    assert out.take() == Output()


def test_history_is_counted_in_bytes_and_nothing_else_is() -> None:
    out, ann, bob = Outgoing(), client(), client("bob")
    out.client(ann, b"live")
    out.replay(ann, [b"123", b"45"])
    out.replay(ann, [b"6"])
    out.replay(bob, [])
    taken = out.take()
    assert taken.replayed == {ann: 6}
    assert bob not in taken.to_clients


def test_a_refusal_without_a_usable_id_has_the_id_null() -> None:
    out, ann = Outgoing(), client()
    out.refusal(ann, -32700, "not JSON")
    out.refusal(ann, -32600, "no", {"n": 1})
    assert out.take().to_clients[ann] == [
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"not JSON"}}',
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no","data":{"n":1}}}',
    ]


def test_a_process_is_to_be_stopped_once_however_many_ask_for_it() -> None:
    out, one, other = Outgoing(), AgentDouble(abandoned=True), AgentDouble(abandoned=True)
    for handle in (one, other, one):
        out.stop_unused(handle)
    assert out.take().effects == [StopUnused(one), StopUnused(other)]


def test_a_log_message_has_nothing_in_it_that_a_terminal_would_obey() -> None:
    out = Outgoing()
    out.log("the plain é stays")
    out.log("this \x1b[31m\nis not printed")
    texts = "the plain é stays", "this \\x1b[31m is not printed"
    assert out.take().effects == [LogMessage(text) for text in texts]


def test_effects_are_taken_once_and_in_the_order_of_their_decision() -> None:
    out, ann = Outgoing(), client()
    session = Session("agent", "s", "me", Journal(10))
    request = Request(ann, parse(b'{"id":1,"method":"session/new"}'))
    decided: list[Effect] = [
        HookEvent("turn_end", session, {"seconds": 1.0}),
        CheckDirectories(DirectoryCheck(request, ("/srv", "/x"))),
        LoadJournal(session),
        CheckDirectories(DirectoryCheck(request, ())),
        HookEvent("permission_waiting", session, {}, age=2.0),
    ]
    for effect in decided:
        out.effect(effect)
    assert out.take().effects == decided
    assert out.take().effects == []


def test_an_audit_event_may_have_details_of_any_name() -> None:
    out, ann = Outgoing(), client()
    out.audit("session_joined", ann, session="s", name="a detail", client=None)
    out.audit("permission_decided", None)
    assert out.take().effects == [
        AuditEvent("session_joined", ann, {"session": "s", "name": "a detail", "client": None}),
        AuditEvent("permission_decided", None, {}),
    ]
