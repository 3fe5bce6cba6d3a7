"""Sends requests to a process that runs under another Python interpreter, as lines of JSON on stdin and stdout."""

import contextlib
import itertools
import json
import subprocess
import threading
from collections import deque
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from typing import Any

from clawctl.process import kill_group

_LOG_LINES = 30


class ProcessEnded(Exception):
    """The process has ended. The message holds its last lines on stderr."""

    ending = "environment"


class AnsweringProcess:
    """Start `program` with `python`, and send it `settings` as its first line. `environment` holds all of its variables."""

    def __init__(self, python: str, program: Path, settings: dict[str, Any], environment: dict[str, str]) -> None:
        """Raises OSError if the interpreter cannot be started."""
        self._process = subprocess.Popen(
            [python, "-u", "-P", str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, encoding="utf-8", errors="replace", env=environment, start_new_session=True,
        )  # fmt: skip
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._numbers, self._lock = itertools.count(), threading.Lock()
        self._said: deque[str] = deque(maxlen=_LOG_LINES)
        self.first: Future[dict[str, Any]] = Future()  # the first answer: whether the process started properly
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._read, self._listen)]
        for thread in self._threads:
            thread.start()
        self._send(settings)

    def ask(self, request: dict[str, Any]) -> Future[dict[str, Any]]:
        """Send a request. The future holds the answer, or raises ProcessEnded if the process ends first."""
        number, answer = next(self._numbers), Future[dict[str, Any]]()
        with self._lock:
            self._waiting[number] = answer
        self._send({**request, "id": number})
        if self._process.poll() is not None:
            self._give_up()
        return answer

    def close(self) -> None:
        """End the process: close its stdin, and kill it if it still runs after 5 s. Then kill the processes that it started."""
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.close()  # type: ignore[union-attr]
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        kill_group(self._process.pid)
        self._process.wait()
        for thread in self._threads:
            thread.join(5)

    def _send(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                try:
                    self._take(json.loads(line))
                except (ValueError, KeyError, TypeError, AttributeError):  # printed by other code of the process
                    self._said.append(line.rstrip())
        self._process.wait()
        self._give_up()

    def _take(self, answer: dict[str, Any]) -> None:
        """Give an answer to its request. Raises ValueError, KeyError, TypeError or AttributeError if it is not an answer."""
        if not self.first.done():
            self.first.set_result(dict(answer))
            return
        with self._lock:
            waiting = self._waiting.pop(answer.pop("id"), None)
        if waiting is not None and waiting.set_running_or_notify_cancel():  # False: the caller no longer waits
            waiting.set_result(answer)

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            self._said.extend(line.rstrip() for line in lines)

    def _give_up(self) -> None:
        ended = ProcessEnded(f"the process ended with code {self._process.returncode}: " + "\n".join(self._said)[-2000:])
        with self._lock:
            waiting, self._waiting = list(self._waiting.values()), {}
        for answer in (self.first, *waiting):
            with contextlib.suppress(InvalidStateError):  # it has a result, or the caller no longer waits
                answer.set_exception(ended)
