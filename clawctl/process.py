"""What every worker process does alike: stop when asked, and log."""

import logging
import signal
import sys
import threading
from pathlib import Path

_FORMAT = "%(asctime)s %(levelname).1s %(name)s: %(message)s"


def stop_on_signals() -> threading.Event:
    """An event that SIGINT and SIGTERM set: a worker finishes what it holds, then ends."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


def log_to(file: Path | None, level: str) -> None:
    """Log to stderr and, if given, to `file`. Bodies of conversations are never logged."""
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if file is not None:
        try:
            handlers.append(logging.FileHandler(file))
        except OSError as error:
            print(f"clawctl logs here alone: {error}", file=sys.stderr)
    logging.raiseExceptions = False  # a log that a full disk does not take is no reason for a traceback a line
    logging.basicConfig(level=level.upper(), format=_FORMAT, datefmt="%H:%M:%S", handlers=handlers, force=True)
    logging.getLogger("httpx").setLevel("WARNING")
    logging.getLogger("watchfiles").setLevel("WARNING")
