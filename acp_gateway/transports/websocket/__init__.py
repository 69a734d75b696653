"""WebSockets over a byte stream: the handshakes of both sides, and streams of messages."""
