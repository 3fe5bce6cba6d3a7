"""Waits for a call of an SDK, which may retry in silence for as long as it likes: reports the wait, and ends it if the service is
dead."""

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from clawctl.errors import ClawError
from clawctl.http_client import RequestFailed, fetch

T = TypeVar("T")
log = logging.getLogger("clawctl.train")

_LOG_S = 5.0  # between lines of log, each after a look whether the service answers at all
_DEAD_S = 20.0  # without any answer to a look
_LONGEST_S = 1800.0  # of one call at a service that answers other requests: it may compile, or have a queue


def patient(call: Callable[[], T], what: str, url: str | None, dead_s: float = _DEAD_S) -> T:
    """The result of `call`. Meanwhile a line of log appears every few seconds.

    Raises ClawError if nothing at `url` has answered for `dead_s`, or after half an hour; the call itself is abandoned."""
    results, errors, done = list[T](), list[BaseException](), threading.Event()

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - the edge of a thread: it is raised again below
            errors.append(error)
        done.set()

    threading.Thread(target=run, name=what, daemon=True).start()
    began = answered = time.monotonic()
    while not done.wait(_LOG_S):
        waited = time.monotonic() - began
        alive = url is None or _answers(url)
        answered = time.monotonic() if alive else answered
        log.warning("%s: no result for %.0f s; the service %s", what, waited, "answers" if alive else "does not answer")
        if time.monotonic() - answered >= dead_s - _LOG_S or waited >= _LONGEST_S:
            problem = f"{what}: no result for {waited:.0f} s"
            raise ClawError(
                problem if alive else f"{problem}, and nothing answers at {url}",
                "check train.service.url, the network and the service; training resumes from the last published version",
            )
    if errors:
        raise errors[0]
    return results[0]


def _answers(url: str) -> bool:
    """Whether there is any response, with whatever status."""
    try:
        fetch("GET", url, timeout_s=_LOG_S)
    except RequestFailed:
        return False
    return True
