"""Waits for a condition in another thread or process."""

import time
from collections.abc import Callable
from typing import Any


def until(true: Callable[[], Any], patience_s: float = 120.0) -> None:
    deadline = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
