"""Streams of whole messages over sockets, pipes and stdio. Only I/O lives here: no JSON, no ACP.

MessageStream         what the rest of the program sees: whole messages as bytes, in batches
  LineStream          one message a line           (ndjson.py)
  WebSocketStream     one message a text message   (websocket.py, websocket_server.py)
  memory pair         for tests and for callers in the same process (base.py)
FramedStream          what the first two have in common (framed.py)
ByteStream            what they stand on
  SocketBytes         TCP, unix and TLS sockets    (sockets.py)
  FileBytes           pipes, this process's stdio  (stdio.py)
  TrioBytes           any other `trio.abc.Stream`  (base.py)
"""
