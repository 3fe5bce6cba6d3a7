"""Entry point for `python -m clawctl` and for the installed `clawctl` command."""

import os
import signal
import sys
from pathlib import Path


def _remove_current_folder() -> None:
    """Remove the current folder from the module search path. With `python -m clawctl` it comes first, and it may be a run directory
    that other users can write to."""
    package = str(Path(__file__).resolve().parents[1])
    if not sys.flags.safe_path and sys.path and sys.path[0] != package:
        del sys.path[0]


def main() -> None:
    """Run clawctl. Ctrl-C ends it immediately and without a traceback, until a worker installs its own handler and finishes its
    work."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if "OMP_WAIT_POLICY" not in os.environ:
        # Server and trainer share the cores: a thread that waits for others spins for microseconds, not for libgomp's milliseconds.
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    from clawctl.cli import main as run

    run()


if __name__ == "__main__":
    _remove_current_folder()
    main()
