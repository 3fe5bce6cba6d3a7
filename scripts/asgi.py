"""Runs an ASGI app on a real server in a separate thread."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn


@contextmanager
def serving(app: Any, port: int = 0, **settings: Any) -> Iterator[str]:
    """Serve `app` for the duration of the block and yield its URL. `settings` are passed to uvicorn."""
    quietly = {"log_level": "critical", "lifespan": "off", "timeout_graceful_shutdown": 1, **settings}
    with socket.create_server(("127.0.0.1", port)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, **quietly))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            while not server.started and thread.is_alive():
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
