"""Waits for a condition in another thread or process.

A wait is in vain once the machine has had a core to spare for as long as its patience lasts. Seconds in which all cores are busy do
not count, because what is waited for may have had no share of them.
"""

import time
from collections.abc import Callable
from typing import Any, Protocol

import psutil

PATIENCE_S = 120.0


class Process(Protocol):
    def poll(self) -> int | None: ...


def cpu_clock() -> tuple[float, float]:
    """The time, and how long all cores together have been idle, in seconds."""
    return time.monotonic(), psutil.cpu_times().idle


class SpareTime:
    """Counts the seconds since it was made in which at least one core was idle."""

    def __init__(self, clock: Callable[[], tuple[float, float]] = cpu_clock) -> None:
        self._clock, self._last, self._seconds = clock, clock(), 0.0

    def seconds(self) -> float:
        (now, idle), (before, idle_before) = self._clock(), self._last
        if now - before >= 1:  # the kernel counts hundredths
            self._seconds += min(now - before, idle - idle_before)
            self._last = now, idle
        return self._seconds


def until(
    true: Callable[[], Any],
    patience_s: float = PATIENCE_S,
    why: Callable[[], object] = lambda: "waited in vain",
    pause_s: float = 0.02,
) -> Any:
    """What the condition returns once it is true. `why`: the message of the failure."""
    spare = SpareTime()
    while not (result := true()):
        assert spare.seconds() < patience_s, why()
        time.sleep(pause_s)
    return result


def exit_code_of(process: Process) -> int | None:
    """The exit code of a process, for whose end it waits."""
    until(lambda: process.poll() is not None)
    return process.poll()


def until_gone(processes: list[psutil.Process]) -> None:
    until(lambda: not psutil.wait_procs(processes, 0)[1])
