"""Shared by all worker processes: stopping on signals, and logging."""

import atexit
import ctypes
import logging
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn

from clawctl.errors import ClawError
from clawctl.run.names import open_to_append

_PR_SET_PDEATHSIG = 1
_FORMAT = "%(asctime)s %(levelname).1s %(name)s: %(message)s"
_LONGEST_MESSAGE = 4000  # characters of a log message
_LONGEST_ERROR = 300  # characters of an exception's message in a log
_MAX_CAUSES = 8
_LONGEST_HIDDEN = 4 * _LONGEST_MESSAGE
# Exceptions whose message quotes the rejected value. In serve that value may be a client's text, which must not be logged.
_QUOTING = (ValueError, TypeError, LookupError, AttributeError, AssertionError, NameError)
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
_LEVELS = ("debug", "info", "warning", "error")
# Libraries that log too much below warning level; their output would hide the stages' own lines.
_QUIET = ("httpx", "watchfiles", "torch", "torchao")


def stop_on_signals() -> threading.Event:
    """An event that SIGINT and SIGTERM set. A worker then finishes its current work and exits."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


def kill_group(leader: int) -> None:
    """Kill the process `leader`, which was started in a session of its own, and the processes that it started there."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def leave(code: int) -> NoReturn:
    """End the process as Python does, but without unloading libraries, because some print dozens of lines about their memory."""
    if sys.modules.get("torch") is None:
        sys.exit(code)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the reader is gone
            stream.flush()
    os._exit(code)


def check_level(level: str) -> None:
    """Raises ClawError (exit code 2) for an unknown log level."""
    if level.lower() not in _LEVELS:
        raise ClawError(f"there is no log level {level!r}", f"choose one of {', '.join(_LEVELS)}", 2)


class LogFormatter(logging.Formatter):
    """Log lines without secrets and control characters, with a limited length. A message cannot imitate a separate log line."""

    def __init__(self) -> None:
        super().__init__(_FORMAT, "%H:%M:%S")
        self._serves = False

    def format(self, record: logging.LogRecord) -> str:
        self._serves = record.name.startswith("clawctl.serve")
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = harmless(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        """The frames of an exception and of its causes. Messages that may quote a client are omitted."""
        error, lines = ei[1], list[str]()
        while error is not None and len(lines) < _MAX_CAUSES:
            quotes = self._serves and isinstance(error, _QUOTING)
            summary = type(error).__name__ + ("" if quotes else f": {str(error)[:_LONGEST_ERROR]}")
            lines.insert(
                0, "".join(["Traceback (most recent call last):\n", *traceback.format_tb(error.__traceback__), harmless(summary)])
            )
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return "\nwhich led to\n".join(lines)


def harmless(text: str) -> str:
    """`text` for a log: without secrets, with control characters escaped, continuation lines indented, and a limited length."""
    text = hidden(text[:_LONGEST_HIDDEN])
    text = _CONTROLS.sub(lambda match: f"\\x{ord(match[0]):02x}", text).replace("\n", "\n    ")
    return text if len(text) <= _LONGEST_MESSAGE else text[: _LONGEST_MESSAGE - 1] + "…"


def hidden(text: str) -> str:
    """`text` without secrets, if clawctl's own finder is installed."""
    return str(_hider().text(text))


@lru_cache(maxsize=1)
def _hider() -> Any:
    from clawctl.privacy.finders import default_finders  # imported here because many commands log nothing
    from clawctl.privacy.redaction import Redactor

    return Redactor(("api_key", "token", "password", "private_key", "card"), finders=default_finders())


class _OwnFile(logging.FileHandler):
    """A log file. A symbolic link at its path is refused, because anyone who can write to the run could point it at another file of
    this user."""

    def _open(self) -> TextIOWrapper:
        return os.fdopen(open_to_append(Path(self.baseFilename)), "a", encoding="utf-8", errors="backslashreplace")


def log_to(file: Path | None, level: str) -> None:
    """Log to stderr and, if given, to `file`. Bodies of conversations are never logged."""
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if file is not None:
        try:
            handlers.append(_OwnFile(file))
        except OSError as error:
            print(f"clawctl logs to the terminal only: {error}", file=sys.stderr)
    logging.raiseExceptions = False  # a full disk must not cause a traceback for each log line
    for handler in handlers:
        handler.setFormatter(LogFormatter())
    logging.basicConfig(level=level.upper(), handlers=handlers, force=True)
    for name in _QUIET:
        logging.getLogger(name).setLevel("WARNING")
    logging.getLogger("huggingface_hub").propagate = False  # it prints its own messages, so each line would appear twice


def die_with_parent(parent: int | None = None) -> Callable[[], None] | None:
    """A function for a child process to call at its start. It requests SIGKILL when `parent` dies (its process id; None: this
    process). None if not on Linux.

    SIGKILL, not SIGTERM, because a busy stage may take minutes to notice SIGTERM, and no stage loses anything when it is killed.
    """
    if sys.platform != "linux":
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid() if parent is None else parent

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before prctl
            os._exit(1)

    return prepare
