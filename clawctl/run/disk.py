"""Retries failed writes while the disk is full."""

import errno
import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from clawctl.errors import ClawError
from clawctl.run.storage import StorageUnreachable

T = TypeVar("T")
log = logging.getLogger(__name__)

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_RETRY_S = 1.0
MAKE_ROOM = "free some space (`clawctl retention` deletes expired conversations); nothing that was written is lost"


def is_full(error: BaseException) -> bool:
    """Whether a full disk, a quota or a limit caused the error. Libraries in Rust and C++ report it only in the message."""
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    return any(f"os error {number}" in str(error) for number in _FULL) or "No space left on device" in str(error)


def is_temporary(error: BaseException) -> bool:
    """Whether the same write may succeed later: the disk is full, or the bucket of the run cannot be reached."""
    return is_full(error) or isinstance(error, StorageUnreachable)


def retry_while_full(work: Callable[[], T], what: str, stop: threading.Event | None = None) -> T:
    """Return the result of `work`, retried every second while the disk is full or the bucket cannot be reached.

    The problem and its end are logged once each. Raises other errors, and ClawError if `stop` is set meanwhile.
    """
    last_error: Exception | None = None
    while True:
        try:
            result = work()
        except Exception as error:
            if not is_temporary(error):
                raise
            if stop is not None and stop.is_set():
                raise _stopped(what, error) from error
            if last_error is None:
                log.error("cannot write %s, retrying every second: %s", what, error)
            last_error = error
            (stop or threading.Event()).wait(_RETRY_S)
        else:
            if last_error is not None:
                recovery = "the disk has space again" if is_full(last_error) else "the bucket can be reached again"
                log.warning("%s: %s is written", recovery, what)
            return result


def _stopped(what: str, error: Exception) -> ClawError:
    if isinstance(error, StorageUnreachable):
        return ClawError(f"stopped because the bucket cannot be reached: {what} is not written", f"start again later: {error}")
    return ClawError(f"stopped because the disk is full: {what} is not written", MAKE_ROOM)
