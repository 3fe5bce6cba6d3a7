"""Forwards connections to 127.0.0.1:8377 to the model server's socket. Runs inside a sandbox. Standard library only."""

import os
import socket
import sys
import threading

PORT, SOCKET = 8377, "/run/model.sock"


def main() -> None:
    server = socket.create_server(("127.0.0.1", PORT))
    if os.fork():
        sys.exit(0)  # the port is already open when this process exits
    os.setsid()
    while True:
        client, _ = server.accept()
        model = socket.socket(socket.AF_UNIX)
        try:
            model.connect(SOCKET)
        except OSError:
            client.close()
            continue
        for source, target in ((client, model), (model, client)):
            threading.Thread(target=relay, args=(source, target), daemon=True).start()


def relay(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


if __name__ == "__main__":
    main()
