"""Two ends of a link that is lost at any moment: nothing is lost, nothing comes twice, and marks tell the truth.

Both ends are what a real one has at its core: an outbox, a count of what came, and how much of that was passed on. In
between is a wire that delivers as much as chance has it. The client's end dials. The server's may not have noticed that
the connection was lost, and may still get what was on its way; and its answer to the dialling may be lost.
"""

import json

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from acp_gateway.protocol.link_messages import Mark, Sent, acknowledgement, read_control
from acp_gateway.protocol.outbox import Outbox
from tests.fuzz.effort import effort

PLENTY = 100_000

WINDOWS = st.sampled_from([0, 50, 100, 300, PLENTY])
"""A message has 12 to 150 bytes, a mark nearly 100."""

DISGUISES = ["", '"method":"session/update",', '"id":1,"method":"_acp-gateway/ack",', '"x":"_acp-gateway/goodbye",']


class End:
    """One end of the link, and what has to be true of it."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.outbox = Outbox(window)
        self.up = False
        """True if this end believes that it has a connection."""
        self.incoming: list[Sent] = []
        """Messages and marks on their way to it."""
        self.acknowledgements: list[bytes] = []
        """Confirmations on their way to it. They pass by everything, and each other."""
        self.received = 0
        self.settled = 0
        self.said: list[bytes] = []
        """All messages that it was ever given to send."""
        self.marks: list[int] = []
        """For each mark that it was given to send, how many messages it said before."""
        self.heard: list[bytes] = []
        """All messages that it ever got."""
        self.marks_heard: set[int] = set()
        """The numbers of the marks that it ever got."""
        self.peer: End = self

    def say(self, size: int, disguise: str) -> None:
        message = b'{%b"n":%d,"text":"%b"}' % (disguise.encode(), len(self.said), b"x" * size)
        self.said.append(message)
        self.outbox.append(message)

    def mark(self) -> None:
        place = acknowledgement(0, {"session": (str(len(self.marks)), len(self.said))})
        self.marks.append(len(self.said))
        self.outbox.append(Mark(place))

    def write(self, max_bytes: int) -> None:
        ready = self.outbox.ready
        taken = self.outbox.take(max_bytes)
        assert bool(taken) == ready
        # Nothing arrives at an end that the other one has given up.
        if self.peer.up:
            self.peer.incoming += taken

    def tell(self) -> None:
        if self.peer.up:
            self.peer.acknowledgements.append(acknowledgement(self.settled))

    def arrive(self, count: int) -> None:
        arrived = self.incoming[:count]
        del self.incoming[:count]
        for message in arrived:
            if isinstance(message, Mark):
                control = read_control(message.text)
                assert control is not None
                assert control.has_positions
                self.get_mark(message.text)
            else:
                assert read_control(message) is None
                self.get_message(message)

    def get_message(self, message: bytes) -> None:
        self.heard.append(message)
        self.received += 1
        due = {number for number, place in enumerate(self.peer.marks) if place < self.received}
        assert due <= self.marks_heard, "a message came before a mark that stands before it"

    def get_mark(self, message: bytes) -> None:
        told = json.loads(message)["params"]["positions"]["session"]
        number = int(told["epoch"])
        assert told["position"] == self.received, "a mark came out of place"
        assert set(range(number)) <= self.marks_heard, "a mark came before an earlier one"
        self.marks_heard.add(number)

    def get_acknowledgement(self, index: int) -> None:
        control = read_control(self.acknowledgements.pop(index))
        assert control is not None
        self.outbox.confirm(control.received)

    def drop(self) -> None:
        """It learns that its connection is lost."""
        self.up = False
        self.incoming.clear()
        self.acknowledgements.clear()

    def connect(self, peer_received: int) -> None:
        assert peer_received >= self.outbox.confirmed
        self.outbox.rewind(peer_received)
        self.up = True


class Resuming(RuleBasedStateMachine):
    """A client and a server that talk to each other over one connection after another."""

    @initialize(windows=st.tuples(WINDOWS, WINDOWS))
    def begin(self, windows: tuple[int, int]) -> None:
        self.client, self.server = self.ends = [End(window) for window in windows]
        self.client.peer, self.server.peer = self.server, self.client
        self.reconnect(answered=True)

    @rule(side=st.integers(0, 1), sizes=st.lists(st.integers(0, 99), max_size=4), disguise=st.sampled_from(DISGUISES))
    def say(self, side: int, sizes: list[int], disguise: str) -> None:
        for size in sizes:
            self.ends[side].say(size, disguise)

    @rule(side=st.integers(0, 1), count=st.integers(1, 3))
    def mark(self, side: int, count: int) -> None:
        for _ in range(count):
            self.ends[side].mark()

    @rule(side=st.integers(0, 1), max_bytes=st.sampled_from([0, 50, 200, PLENTY]))
    def write(self, side: int, max_bytes: int) -> None:
        if self.ends[side].up:
            self.ends[side].write(max_bytes)

    @rule(side=st.integers(0, 1), count=st.integers(1, 9))
    def arrive(self, side: int, count: int) -> None:
        self.ends[side].arrive(count)

    @rule(side=st.integers(0, 1), share=st.sampled_from([0.5, 1.0]))
    def settle(self, side: int, share: float) -> None:
        end = self.ends[side]
        end.settled += int((end.received - end.settled) * share)

    @rule(side=st.integers(0, 1))
    def tell(self, side: int) -> None:
        if self.ends[side].up:
            self.ends[side].tell()

    @rule(side=st.integers(0, 1), which=st.integers(0, 5), lost=st.booleans())
    def acknowledge(self, side: int, which: int, *, lost: bool) -> None:
        end = self.ends[side]
        if not end.acknowledgements:
            return
        index = which % len(end.acknowledgements)
        if lost:
            del end.acknowledgements[index]
        else:
            end.get_acknowledgement(index)

    @rule(side=st.integers(0, 1))
    def drop(self, side: int) -> None:
        self.ends[side].drop()

    @precondition(lambda self: not self.client.up)
    @rule(answered=st.booleans())
    def reconnect(self, *, answered: bool) -> None:
        """The client dials: each end learns what the other has received, unless the answer is lost."""
        self.server.drop()
        self.server.connect(self.client.received)
        if answered:
            self.client.connect(self.server.received)

    @invariant()
    def everything_came_once_and_in_order(self) -> None:
        for end in self.ends:
            assert end.heard == end.peer.said[: end.received]

    @invariant()
    def what_may_be_missing_is_held(self) -> None:
        for end in self.ends:
            outbox = end.outbox
            assert outbox.confirmed <= end.peer.received
            held = [message for message in outbox.messages() if type(message) is not Mark]
            assert held == end.said[outbox.confirmed :]
            assert len(outbox) == len(held)
            assert outbox.unwritten_messages() == end.said[outbox.written :]
            assert outbox.unconfirmed_bytes == sum(map(len, outbox.messages()))

    @invariant()
    def no_more_is_on_its_way_than_may_be(self) -> None:
        for end in self.ends:
            size = end.outbox.unconfirmed_bytes - end.outbox.unwritten_bytes
            on_its_way: list[Sent] = []
            for message in end.outbox.messages():
                if sum(map(len, on_its_way)) == size:
                    break
                on_its_way.append(message)
            if size > end.window:
                *before, last = on_its_way
                assert all(isinstance(message, Mark) for message in before) or size - len(last) < end.window

    def teardown(self) -> None:
        """Whatever happened: over a connection that lasts, everything arrives."""
        self.client.drop()
        self.reconnect(answered=True)
        # Each message waits for the one before, at worst.
        for _ in range(sum(len(end.said) + len(end.marks) for end in self.ends) + 1):
            for end in self.ends:
                while end.outbox.ready:
                    end.write(PLENTY)
                end.peer.arrive(PLENTY)
                end.peer.settled = end.peer.received
                end.peer.tell()
                while end.acknowledgements:
                    end.get_acknowledgement(0)
        for end in self.ends:
            assert end.heard == end.peer.said
            assert (end.marks_heard, len(end.outbox)) == (set(range(len(end.peer.marks))), 0)
            assert not end.outbox.unwritten


TestResuming = Resuming.TestCase
TestResuming.settings = effort(100, steps=40)
