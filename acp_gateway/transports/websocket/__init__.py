"""WebSockets over a byte stream: the handshakes of both sides, streams of messages, and tunnels of bytes."""
