"""A pseudo-terminal for interactive programs. It types input, draws nothing, and answers terminal queries."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

ROWS, COLUMNS = 50, 140
_ANSWERS = {  # terminal queries and xterm's answers
    b"\x1b[6n": b"\x1b[1;1R", b"\x1b[c": b"\x1b[?62;c", b"\x1b[0c": b"\x1b[?62;c",
    b"\x1b]10;?": b"\x1b]10;rgb:ffff/ffff/ffff\x1b\\", b"\x1b]11;?": b"\x1b]11;rgb:0000/0000/0000\x1b\\",
}  # fmt: skip
_CONTROL = re.compile(rb"\x1b\[[0-9;?<>=]*[A-Za-z]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)|\x1b[()][A-Z0-9]|\x1b[=>78]")
_KEPT = 1 << 20  # bytes of output that are kept
_SHORTEST_START_S, _QUIET_S, _LONGEST_START_S = 6.0, 2.5, 25.0
_FAREWELL_S = 5.0
_READ_S = 0.2


class Terminal:
    """A process with its own terminal."""

    def __init__(self, command: Sequence[str | Path], folder: Path, environment: Mapping[str, str]) -> None:
        self.drawn = b""
        self.silence_s, self._drew = 0.0, time.monotonic()  # the longest time without output
        self.pid, self._file = pty.fork()
        if self.pid == 0:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where tests run under nohup
            with suppress(OSError):
                os.chdir(folder)
                os.execvpe(str(command[0]), [str(word) for word in command], dict(environment))
            os._exit(127)
        fcntl.ioctl(self._file, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._is_closing = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with suppress(OSError):
            while not self._is_closing:
                if not select.select([self._file], [], [], _READ_S)[0]:
                    continue
                if not (data := os.read(self._file, 1 << 16)):
                    return
                self.drawn = (self.drawn + data)[-_KEPT:]
                self._end_silence()
                for question, answer in _ANSWERS.items():
                    if question in data:
                        os.write(self._file, answer)

    def _end_silence(self) -> None:
        now = time.monotonic()
        self.silence_s, self._drew = max(self.silence_s, now - self._drew), now

    def say(self, text: str) -> None:
        """Type a line. The pause lets the program draw it, because some programs read an immediate Enter as a pasted line break."""
        with suppress(OSError):
            os.write(self._file, text.encode())
            time.sleep(1.0)
            os.write(self._file, b"\r")

    def type(self, keys: str) -> None:
        with suppress(OSError):
            os.write(self._file, keys.encode())

    def wait(self, timeout_s: float) -> int:
        """The exit code of the process. Raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self._end_silence()
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.05)
        raise TimeoutError(self.text())

    def hang_up(self) -> None:
        """Close the terminal, as a window that is closed. A thread that still reads would keep it open, or would read from the next
        terminal, whose file may get the same number."""
        self._is_closing = True
        self._reader.join()
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def settle(self) -> None:
        """Wait until the program has drawn nothing for `_QUIET_S`, or until the longest start time is over."""
        began = changed = time.monotonic()
        drawn = -1
        while time.monotonic() < began + _LONGEST_START_S:
            if len(self.drawn) != drawn:
                drawn, changed = len(self.drawn), time.monotonic()
            if time.monotonic() > max(began + _SHORTEST_START_S, changed + _QUIET_S):
                return
            time.sleep(0.2)

    def text(self) -> str:
        return _CONTROL.sub(b" ", self.drawn).decode(errors="replace")

    def end(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(OSError):
                os.kill(self.pid, number)
            until = time.monotonic() + _FAREWELL_S
            while time.monotonic() < until:
                with suppress(ChildProcessError):
                    if not os.waitpid(self.pid, os.WNOHANG)[0]:
                        time.sleep(0.05)
                        continue
                self.hang_up()
                return


@contextmanager
def terminal(command: Sequence[str | Path], folder: Path, environment: Mapping[str, str]) -> Iterator[Terminal]:
    """Open a terminal for the duration of the block."""
    opened = Terminal(command, folder, environment)
    try:
        yield opened
    finally:
        opened.end()
