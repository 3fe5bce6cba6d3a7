"""Whether a stage has a worker on a run, as other processes see it."""

import os
import re
import socket

from clawctl.run.directory import RunDir, claimed


def is_running(run: RunDir, stage: str) -> bool:
    """Whether a worker holds the lock of `stage`.

    The lock is tried only if its last owner may be alive, because a reader must not block a worker that is starting.
    """
    try:
        owner = re.fullmatch(r"process (\d+) on (.+)", run.owner(stage).read_text(errors="replace").strip())
    except OSError:
        return False
    if owner and owner[2] == socket.gethostname() and not _lives(int(owner[1])):
        return False
    with claimed(run, stage) as free:
        return not free


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
