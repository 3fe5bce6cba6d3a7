"""Retry delays for calls to servers and for restarted processes."""

import random
import time
from email.utils import parsedate_to_datetime

LONGEST_RETRY_AFTER_S = 300.0


def backoff_s(tries: int, first_s: float, longest_s: float, jitter: bool = False) -> float:
    """Seconds to wait after `tries` consecutive failures (1, 2, …); the wait doubles each time, up to `longest_s`. `jitter`
    shortens it randomly by up to half, so that many callers of one server do not retry at the same moment."""
    wait_s = min(first_s * 2.0 ** min(tries - 1, 10), longest_s)
    return wait_s * random.uniform(0.5, 1.0) if jitter else wait_s


def retry_after_s(header: str | None) -> float | None:
    """Seconds that a Retry-After header (a number or a date) requests, from 0 to `LONGEST_RETRY_AFTER_S`; None if it is missing or
    invalid."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = float(parsedate_to_datetime(header).timestamp()) - time.time()
        except ValueError:
            return None
    return min(max(seconds, 0.0), LONGEST_RETRY_AFTER_S) if seconds == seconds else None
