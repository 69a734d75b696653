"""What the gateway decides, without any I/O: feed it what arrived, take from it what is to be delivered.

    spans         where values are in a JSON text, so that one can be replaced and the rest stays verbatim
    jsonrpc       a message: its envelope, read once; ids as the text they were spelled with; errors
    methods       what the gateway thinks of each ACP method: one table
    multiplexer   a client and its agent: which message goes where, what is masked, what is answered here
    unanswered    which requests wait for an answer, for the side of the editor
    paths         path maps between the editor's machine and the agent's

No module here imports anything that waits, reads a clock, draws a number or writes a log. So all of it is tested in
memory.
"""
