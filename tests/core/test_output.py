"""Output of the core: in order for each recipient, once, and nothing for departed clients."""

from acp_gateway.core.journal import Journal
from acp_gateway.core.output import AuditEvent, HookEvent, Outgoing, Output
from acp_gateway.core.sessions import Client, DirectoryCheck, Presence, Request, Session, SessionScope
from acp_gateway.protocol.jsonrpc import parse
from acp_gateway.protocol.outbox import Batch


class AgentHandle:
    abandoned = True


def client(name: str = "ann") -> Client:
    return Client(name, SessionScope("me"))


def gone() -> Client:
    it = client("gone")
    it.presence = Presence.GONE
    return it


def test_nothing_was_decided_at_first() -> None:
    assert Outgoing().take() == Output([], {}, {}, [])
    assert Outgoing().take_notes() == []


def test_what_is_sent_to_one_keeps_its_order_however_it_was_decided() -> None:
    out, ann, bob = Outgoing(), client(), client("bob")
    out.client(ann, b"1")
    out.clients([bob, ann], b"2")
    out.replay(ann, [b"3", b"4"])
    out.talk([bob, ann], [b"5", b"6"])
    out.client(ann, b"7")
    out.agent(b"a")
    out.agent(b"b")
    taken = out.take()
    assert taken.to_clients == {ann: [b"%d" % number for number in range(1, 8)], bob: [b"2", b"5", b"6"]}
    assert taken.to_agent == [b"a", b"b"]


def test_what_several_are_told_is_one_object_until_one_of_them_is_told_more() -> None:
    out, ann, bob, carol = Outgoing(), client(), client("bob"), client("carol")
    out.talk([ann, bob, carol], [b"1", b"22"])
    out.client(carol, b"3")
    to_clients = out.take().to_clients
    assert to_clients[ann] is to_clients[bob]
    assert to_clients[ann] == Batch([b"1", b"22"])
    assert Batch([b"1", b"22"]).size == 3
    assert to_clients[carol] == [b"1", b"22", b"3"]


def test_what_was_taken_is_not_there_any_more_and_does_not_change() -> None:
    out, ann = Outgoing(), client()
    out.client(ann, b"1")
    out.note("one")
    taken, notes = out.take(), out.take_notes()
    out.client(ann, b"2")
    out.note("two")
    assert (taken.to_clients, notes) == ({ann: [b"1"]}, ["one"])
    assert (out.take().to_clients, out.take_notes()) == ({ann: [b"2"]}, ["two"])


def test_nothing_is_sent_to_who_is_gone() -> None:
    out, left = Outgoing(), gone()
    out.client(left, b"1")
    out.clients([left], b"2")
    out.talk([left], [b"2"])
    out.replay(left, [b"3"])
    out.refusal(left, -32600, "no")
    assert out.take() == Output([], {}, {}, [])


def test_who_is_away_gets_everything_when_it_is_back() -> None:
    out, ann = Outgoing(), client()
    ann.presence = Presence.AWAY
    out.client(ann, b"1")
    assert out.take().to_clients == {ann: [b"1"]}


def test_history_is_counted_in_bytes_and_nothing_else_is() -> None:
    out, ann, bob = Outgoing(), client(), client("bob")
    out.client(ann, b"live")
    out.replay(ann, [b"123", b"45"])
    out.replay(ann, [b"6"])
    out.replay(bob, [])
    taken = out.take()
    assert taken.replayed == {ann: 6}
    assert bob not in taken.to_clients


def test_what_can_be_answered_under_no_id_is_answered_under_the_id_null() -> None:
    out, ann = Outgoing(), client()
    out.refusal(ann, -32700, "not JSON")
    out.refusal(ann, -32600, "no", {"n": 1})
    assert out.take().to_clients[ann] == [
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"not JSON"}}',
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no","data":{"n":1}}}',
    ]


def test_a_process_is_to_be_stopped_once_however_many_ask_for_it() -> None:
    out, one, other = Outgoing(), AgentHandle(), AgentHandle()
    for home in (one, other, one):
        out.stop(home)
    assert out.take().abandoned == [one, other]


def test_a_note_has_nothing_in_it_that_a_terminal_would_obey() -> None:
    out = Outgoing()
    out.note("the plain é stays")
    out.note("this \x1b[31m\nis not printed")
    assert out.take_notes() == ["the plain é stays", "this \\x1b[31m is not printed"]


def test_events_and_wanted_journals_are_taken_in_order() -> None:
    out = Outgoing()
    session = Session("agent", "s", "me", Journal(10))
    event = HookEvent("turn_end", session, {"seconds": 1.0})
    out.event(event)
    out.load_journal(session)
    taken = out.take()
    assert (taken.events, taken.wanted) == ([event], [session])
    assert event.age == 0
    assert (out.take().events, out.take().wanted) == ([], [])


def test_surveys_and_deeds_are_taken_in_order_and_once() -> None:
    out, ann = Outgoing(), client()
    request = Request(ann, parse(b'{"id":1,"method":"session/new"}'))
    directory_checks = [DirectoryCheck(request, ("/srv", "/x")), DirectoryCheck(request, ())]
    for directory_check in directory_checks:
        out.directory_check(directory_check)
    out.audit_event("session_joined", ann, session="s", name="the details may have any names", client=None)
    out.audit_event("permission_decided", None)
    taken = out.take()
    assert taken.directory_checks == directory_checks
    assert taken.audit_events == [
        AuditEvent("session_joined", ann, {"session": "s", "name": "the details may have any names", "client": None}),
        AuditEvent("permission_decided", None, {}),
    ]
    assert (out.take().directory_checks, out.take().audit_events) == ([], [])
