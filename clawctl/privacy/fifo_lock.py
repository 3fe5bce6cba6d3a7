"""A lock that is fair to threads, which take turns after each piece of text."""

import threading
import time
from collections import deque


class FifoLock:
    """A lock that passes from thread to thread in the order in which they requested it."""

    def __init__(self) -> None:
        self._lock, self._locked = threading.Lock(), False
        self._waiting: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self) -> None:
        with self._lock:
            if not self._locked:
                self._locked = True
                return
            ticket = threading.Lock()
            ticket.acquire()
            self._waiting.append(ticket)
        ticket.acquire()  # until `release` of the current holder releases it

    def release(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()  # the lock stays held, now by the next thread
            else:
                self._locked = False

    def yield_to_waiting(self) -> None:
        """Let all waiting threads run first. If there are none, yield the interpreter to other threads such as the event loop."""
        if self._waiting:
            self.release()
            self.acquire()
        else:
            time.sleep(0)
