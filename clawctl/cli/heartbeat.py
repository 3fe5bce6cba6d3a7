"""A command on a terminal that has printed nothing for half a second shows how long it has been running. The next output replaces
this line."""

import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

_BEAT_S = 0.5
_OWN_DISPLAY = ("chat", "start", "up")
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\r")  # `clawctl.printing` has more, and takes a tenth of a second to import


@contextmanager
def heartbeat(command: str) -> Iterator[None]:
    """Beat for the duration of the block, if stderr is a terminal and `command` has no display of its own."""
    has_own_display = command in _OWN_DISPLAY and "--estimate" not in sys.argv
    if has_own_display or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb" or "LOCAL_RANK" in os.environ:
        yield
        return
    beating = _Heartbeat(command)
    for stream in (sys.stdout, sys.stderr):
        if stream.isatty():
            beating.note_writes(stream)
    threading.Thread(target=beating.beat, daemon=True).start()
    try:
        yield
    finally:
        beating.end()


class _Heartbeat:
    """There is no lock, which a forked process could inherit closed: the worst is a line that begins with an old beat."""

    def __init__(self, command: str) -> None:
        self._command, self._write = command, sys.stderr.write
        self._began = self._written = time.monotonic()
        self._is_shown = self._is_within_line = False  # within a line: a question, or another display
        self._ended = threading.Event()

    def note_writes(self, stream: TextIO) -> None:
        write = stream.write

        def noted(text: str) -> int:
            self._clear()
            if text:
                shown = _CONTROL.sub("", text)
                self._written, self._is_within_line = time.monotonic(), bool(shown) and not shown.endswith("\n")
            return write(text)

        stream.write = noted  # type: ignore[method-assign, assignment, unused-ignore]

    def beat(self) -> None:
        while not self._ended.wait(_BEAT_S):
            now = time.monotonic()
            if now >= self._written + _BEAT_S and not self._is_within_line:
                self._is_shown = True
                self._draw(f"{self._command} is running ({now - self._began:.0f} s)\r")  # a line of another process overwrites it

    def end(self) -> None:
        self._ended.set()
        self._clear()

    def _clear(self) -> None:
        if self._is_shown:
            self._is_shown = False
            self._draw("")

    def _draw(self, text: str) -> None:
        with suppress(OSError, ValueError):  # the terminal is gone
            self._write(f"\r\x1b[2K{text}")
            sys.stderr.flush()
