"""An unreliable object store: a moto or SeaweedFS process behind a proxy that drops, delays and truncates requests."""

import http.client
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from clawctl.engines.vllm.child import free_port

_STARTS_S = 60.0
_HOP = {"connection", "transfer-encoding", "keep-alive"}  # hop-by-hop headers
_FAULTS = ("500", "503", "cut before", "cut after", "torn", "slow")


@contextmanager
def store(kind: str, folder: Path) -> Iterator[int]:
    """Run a store and yield its port. Raises SystemExit if the program is missing or does not start."""
    port = free_port()
    if kind == "moto":
        command = [sys.executable, "-W", "ignore", "-c", _MOTO, str(port)]
    else:
        program = shutil.which("weed") or str(Path(sys.executable).parent / "weed")
        data = folder / "weed"
        data.mkdir()
        ports = {name: free_port() for name in ("master", "volume", "filer")}
        command = [program, "server", f"-dir={data}", "-s3", f"-s3.port={port}", "-ip=127.0.0.1", "-master.volumeSizeLimitMB=64"]
        command += [f"-{name}.port={number}" for name, number in ports.items()] + [
            f"-{name}.port.grpc={free_port()}" for name in (*ports, "s3")
        ]
    with (folder / "store.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _wait_for(port, process)
        yield port
    finally:
        process.kill()
        process.wait()


# One request at a time: between the check of If-Match and the write, moto lets other threads write.
_MOTO = """
import sys, moto.server as server
run = server.run_simple
server.run_simple = lambda *arguments, **settings: run(*arguments, **settings | {"threaded": False})
server.main(["-H", "127.0.0.1", "-p", sys.argv[1]])
"""


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _STARTS_S
    while True:
        with suppress(OSError):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/")
            connection.getresponse().read()
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("the object store did not start")
        time.sleep(0.2)


class Proxy:
    """Forwards requests to a store and counts them. The share `faults` of all requests fails, each in one of six ways."""

    def __init__(self, target: int, seed: int, faults: float) -> None:
        self.requests, self.failed = Counter[str](), Counter[str]()
        self.faults, self._dice, self._target = faults, random.Random(f"proxy {seed}"), target
        self._guard = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _forward(self) -> None:
                proxy.forward(self)

            do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _forward

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="proxy", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def forward(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        with self._guard:
            kind = "LIST" if request.command == "GET" and "list-type=2" in request.path else request.command
            kind = "POLL" if kind == "GET" and request.path.endswith("/changed") else kind
            self.requests[kind] += 1
            fault = self._dice.choice(_FAULTS) if self._dice.random() < self.faults else None
            pause = self._dice.uniform(0.2, 3.0)
            if fault is not None:
                self.failed[fault] += 1
        if fault in ("500", "503"):
            code = "InternalError" if fault == "500" else "SlowDown"
            return _answer(request, int(fault), [], f"<Error><Code>{code}</Code></Error>".encode())
        if fault == "slow":
            time.sleep(pause)
        if fault == "torn" and body:
            self._send_half(request, body)
        if fault in ("cut before", "torn"):
            return _cut(request)
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self._target, timeout=120)
            headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
            connection.request(request.command, request.path, body or None, headers)
            response = connection.getresponse()
            content, status, received = response.read(), response.status, response.getheaders()
        except OSError:
            return _cut(request)
        if fault == "cut after":
            return _cut(request)
        _answer(request, status, received, content)

    def _send_half(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        """Send the headers and half of the body to the store, then close the connection."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._target)) as connection:
            head = f"{request.command} {request.path} HTTP/1.1\r\n{request.headers.as_string().strip()}\r\n\r\n"
            connection.sendall(head.replace("\n", "\r\n").replace("\r\r\n", "\r\n").encode() + body[: len(body) // 2])


def _answer(request: BaseHTTPRequestHandler, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
    with suppress(OSError):
        request.send_response_only(status)
        is_empty = request.command == "HEAD" or status in (204, 304)
        for name, value in headers:
            if name.lower() not in _HOP and (is_empty or name.lower() != "content-length"):
                request.send_header(name, value)
        if not is_empty:
            request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        if not is_empty:
            request.wfile.write(content)


def _cut(request: BaseHTTPRequestHandler) -> None:
    request.close_connection = True
    with suppress(OSError):
        request.connection.shutdown(socket.SHUT_RDWR)
