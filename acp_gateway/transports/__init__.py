"""Streams of whole messages over sockets, pipes and stdio. Only I/O lives here: no JSON, no ACP.

MessageStream         the interface: whole messages as bytes, in batches, with five verbs   (streams.py)
MaintainedStream      one over a connection: its upkeep, limits and accounting   (maintained.py)
  LineStream          one message a line           (ndjson.py)
  WebSocketStream     one message a text message   (websocket/; several between gateways)
  memory pair         for tests and for callers in the same process (memory.py)
  (Streams over HTTP are those of `dialects.http.link` and `client.http.stream`.)
FramedStream          the base of the first two (framing.py)
ByteStream            the interface below them     (streams.py)
  SocketBytes         TCP, unix and TLS sockets    (sockets.py; racing.py tries several addresses)
  FileBytes           pipes, this process's stdio  (pipes.py)
  TrioBytes           any other `trio.abc.Stream`  (streams.py)
  Layer               one inside another           (layers.py)
    TlsBytes          TLS
    Tunnel            the binary messages of a WebSocket   (websocket/tunnel.py)
"""
