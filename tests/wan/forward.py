"""Forward: what listens on this machine's loopback alone, at one of its addresses.

python tests/wan/forward.py ADDRESS PORT
"""

from __future__ import annotations

import socket
import socketserver
import sys
import threading


def main() -> None:
    host, port = sys.argv[1], int(sys.argv[2])

    class Forward(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(("127.0.0.1", port)) as there:
                back = threading.Thread(target=_pump, args=(there, self.request), daemon=True)
                back.start()
                _pump(self.request, there)
                back.join()

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = daemon_threads = True

    Server((host, port), Forward).serve_forever()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return


if __name__ == "__main__":
    main()
