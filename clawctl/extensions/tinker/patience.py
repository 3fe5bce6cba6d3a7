"""Waits for a call of an SDK, which may retry in silence for as long as it likes: reports the wait and each refusal, and ends it if
the service is dead or only refuses."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from clawctl.errors import ClawError
from clawctl.http_client import RequestFailed, fetch

T = TypeVar("T")
log = logging.getLogger("clawctl.train")

_LOG_S = 5.0  # between lines of log, each after a look whether the service answers at all
_DEAD_S = 20.0  # without any answer to a look
_REFUSED_S = 300.0  # of nothing but 429 from one address
_LONGEST_S = 1800.0  # of one call at a service that answers other requests: it may compile, or have a queue
_BUSY = 429


class _Refusals(logging.Filter):
    """For how long each address has answered nothing but 429. Both SDKs use httpx, which logs the status of each response."""

    def __init__(self, what: str, shown: bool) -> None:
        super().__init__()
        self._what, self._shown, self._times = what, shown, dict[str, tuple[float, float]]()

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple) and len(record.args) > 3:
            address, status = str(record.args[1]), record.args[3]
            if status == _BUSY:
                now = time.monotonic()
                self._times[address] = self._times.get(address, (now, now))[0], now
                log.warning("%s: the service answers 429 (too many requests); the SDK retries", self._what)
            else:
                self._times.pop(address, None)
        return self._shown or record.levelno > logging.INFO

    @property
    def longest_s(self) -> float:
        return max((last - first for first, last in list(self._times.values())), default=0.0)


@contextmanager
def _refusals(what: str) -> Iterator[_Refusals]:
    requests = logging.getLogger("httpx")
    level, refusals = requests.level, _Refusals(what, requests.isEnabledFor(logging.INFO))
    requests.addFilter(refusals)
    requests.setLevel(min(logging.INFO, requests.getEffectiveLevel()))
    try:
        yield refusals
    finally:
        requests.removeFilter(refusals)
        requests.setLevel(level)


def patient(call: Callable[[], T], what: str, url: str, dead_s: float = _DEAD_S, refused_s: float = _REFUSED_S) -> T:
    """The result of `call`. Meanwhile a line of log appears every few seconds, and one for each 429.

    Raises ClawError if nothing at `url` has answered for `dead_s`, if an address has answered only 429 for `refused_s`, or after
    half an hour; the call itself is abandoned."""
    results, errors, done = list[T](), list[BaseException](), threading.Event()

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - the edge of a thread: it is raised again below
            errors.append(error)
        done.set()

    with _refusals(what) as refusals:
        threading.Thread(target=run, name=what, daemon=True).start()
        began = answered = time.monotonic()
        while not done.wait(_LOG_S):
            waited = time.monotonic() - began
            alive = _answers(url)
            answered = time.monotonic() if alive else answered
            log.warning("%s: no result for %.0f s; the service %s", what, waited, "answers" if alive else "does not answer")
            if refusals.longest_s >= refused_s:
                raise ClawError(
                    f"{what}: {url} has answered only 429 (too many requests) for {refusals.longest_s:.0f} s",
                    "wait, or raise the limit of your account; training resumes from the last published version",
                )
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
