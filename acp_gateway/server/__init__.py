"""The `serve` process: sockets, handshakes, authentication, signals, systemd."""
