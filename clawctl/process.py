"""What every worker process does alike: stop when asked, and log."""

import atexit
import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from clawctl.errors import ClawError

_FORMAT = "%(asctime)s %(levelname).1s %(name)s: %(message)s"
_LEVELS = ("debug", "info", "warning", "error")
# Talkative below a warning: they would drown what our own stages say.
_QUIET = ("httpx", "watchfiles", "torch", "torchao")


def stop_on_signals() -> threading.Event:
    """An event that SIGINT and SIGTERM set: a worker finishes what it holds, then ends."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


def leave(code: int) -> NoReturn:
    """End the process as Python does, but without unloading libraries: some print dozens of lines about their own memory then."""
    if "torch" not in sys.modules:
        sys.exit(code)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads any more
            stream.flush()
    os._exit(code)


def check_level(level: str) -> None:
    """Raises ClawError (exit code 2) if there is no such level."""
    if level.lower() not in _LEVELS:
        raise ClawError(f"there is no log level {level!r}", f"choose one of {', '.join(_LEVELS)}", 2)


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
    for name in _QUIET:
        logging.getLogger(name).setLevel("WARNING")
    logging.getLogger("huggingface_hub").propagate = False  # it prints by itself: each line would stand here twice
