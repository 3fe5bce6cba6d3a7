"""HTTP servers written by a test, where the exact output of an engine or an API matters."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

import orjson


class StubHandler(BaseHTTPRequestHandler):
    def sent(self) -> Any:
        return orjson.loads(self.rfile.read(int(self.headers["content-length"])))

    def answer(self, body: bytes | dict[str, Any], status: int = 200) -> None:
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


class StubServer(ThreadingHTTPServer):
    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server_port}"


S = TypeVar("S", bound=StubServer)


@contextmanager
def running(server: S) -> Iterator[S]:
    """The server, in a thread of its own, for as long as the block lasts."""
    with server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
