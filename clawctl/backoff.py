"""How long everything waits that tries again: calls to servers, and processes that are restarted."""

import random
import time
from email.utils import parsedate_to_datetime

LONGEST_RETRY_AFTER_S = 300.0


def backoff_s(tries: int, first_s: float, longest_s: float, jitter: bool = False) -> float:
    """Seconds to wait after `tries` failures in a row (1, 2, …): twice as long each time. `jitter` shortens it by up to a half at
    random, so that many callers of one server do not return together."""
    wait_s = min(first_s * 2.0 ** min(tries - 1, 10), longest_s)
    return wait_s * random.uniform(0.5, 1.0) if jitter else wait_s


def retry_after_s(header: str | None) -> float | None:
    """The seconds that a Retry-After header asks for (a number or a date), within reason; None without a valid one."""
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
