"""What the gateway decides, without any I/O: feed it what arrived, take from it what is to be delivered.

A message and its parts:

    spans         where values are in a JSON text, so that one can be replaced and the rest stays verbatim
    jsonrpc       a message: its envelope, read once; ids as the text they were spelled with; errors
    methods       what the gateway thinks of each ACP method: one table
    paths         path maps between the editor's machine and the agent's
    outbox        what one peer has not taken yet, by counting; what the two ends of a link tell each other

Sessions and those who take part, from the bottom up:

    journal       one session's history for those who join late, bounded
    sessions      a session, its clients, and the registry of all sessions of a gateway
    rights        what a client may say
    deliveries    what was decided, for the driver to carry out
    questions     what an agent asks of its clients: asked of several, answered once
    terminals     ids of terminals, which each client mints for itself
    handshake     `initialize`, as text: capabilities masked and offered
    updates       the session updates that the gateway writes itself
    catalogue     `session/list`, filtered
    process       one agent process: the state that the next five share, and how requests are answered
    routing       what the agent sends: to whom
    turns         prompts, one after another
    returns       a client that takes a session up again over a new link
    openings      how sessions come and go
    lifecycle     the agent's start and end
    multiplexer   all of it, as the verbs that a driver calls

What an editor has open, for its own side, with the standard library alone:

    verbatim      a message read and edited as text
    positions     where the editor is in its sessions
    asked         what it is asked, until its answer has certainly left
    reopening     how one session is opened again on a new link
    conversation  all of it: what is open, and how it is taken up again

No module here imports anything that waits, reads a clock, draws a number or writes a log. So all of it is tested in
memory.
"""
