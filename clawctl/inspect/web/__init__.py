"""`clawctl inspect web`: a run as web pages, for its owner on this machine.

`guard` admits only the owner. `followed_run` keeps the run in memory, `filters` selects turns, `text_search` reads their text,
`derived_data` counts, `pages` and `frame` render, and `buttons` change the run. The pages are HTML without a build step. Without
JavaScript, everything works except the charts.
"""

import signal
import socket
import sys
from contextlib import suppress

import uvicorn

from clawctl.inspect.web.derived_data import prepare
from clawctl.inspect.web.followed_run import FollowedRun
from clawctl.inspect.web.guard import Key
from clawctl.inspect.web.pages import Pages
from clawctl.memory import return_freed_memory
from clawctl.printing import print_json
from clawctl.run.directory import RunDir, publish_bytes, remove
from clawctl.run.endpoint import cannot_listen

_HOST = "127.0.0.1"


def serve_pages(run: RunDir, port: int, as_json: bool, beside: RunDir | None = None) -> None:
    """Serve the pages until a signal stops them. Prints the link that logs in. `beside`: a run to compare with. Raises ClawError if
    the port is in use."""
    try:
        listener = socket.create_server((_HOST, port), backlog=64)
    except OSError as error:
        raise cannot_listen(_HOST, port, error) from error
    with listener:
        return_freed_memory()
        key, port = Key(), listener.getsockname()[1]
        following = FollowedRun(run, prepare)
        app = Pages(run, following, key, beside).app(port)
        url = f"http://{_HOST}:{port}/"
        link = f"{url}login?key={key.key}"
        if as_json:
            print_json({"url": url, "login": link, "turns": len(following.snapshot.rows)})
        else:
            print(f"{link}\nopen this link in a browser on this machine; Ctrl-C ends the server", flush=True)
        sys.stdout.flush()
        sys.setswitchinterval(0.001)  # pages must not wait long for the thread that follows the run
        following.start()
        settings = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=2)
        server = uvicorn.Server(settings)
        following.is_ending = lambda: server.should_exit
        with suppress(OSError):  # a run that may only be read
            publish_bytes(run.page_address, url.encode())
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)  # uvicorn raises the signal again after it has ended
        try:
            server.run(sockets=[listener])
        finally:
            following.stop()
            with suppress(OSError):
                remove(run.page_address)
