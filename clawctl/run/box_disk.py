"""Measures the filesystem that will hold a run."""

import fcntl
import os
import tempfile
import time
from pathlib import Path

_WRITTEN = 64 * 2**20


def probe(folder: Path) -> tuple[float, float, bool]:
    """Bytes a second to the disk, seconds between its clock and this machine's, and whether it keeps locks. Raises OSError."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".clawctl-doctor-") as file:
        began = time.monotonic()
        file.write(bytes(_WRITTEN))
        file.flush()
        os.fsync(file.fileno())
        speed = _WRITTEN / (time.monotonic() - began)
        os.utime(file.name)
        skew = abs(os.stat(file.name).st_mtime - time.time())
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with Path(file.name).open() as other:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return speed, skew, True
    return speed, skew, False
