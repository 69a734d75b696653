"""An agent that is elsewhere, for tests: it relays between its standard streams and the unix socket in its argument."""

import os
import socket
import sys
import threading

PIECE = 65536


def main(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as elsewhere:
        elsewhere.connect(path)

        def relay_input() -> None:
            while data := os.read(0, PIECE):
                elsewhere.sendall(data)
            elsewhere.shutdown(socket.SHUT_WR)

        threading.Thread(target=relay_input, daemon=True).start()
        while data := elsewhere.recv(PIECE):
            os.write(1, data)


if __name__ == "__main__":
    main(sys.argv[1])
