"""The process: `python -m clawctl`, and the command that pip installs."""

import signal
import sys
from pathlib import Path


def _leave_out_this_folder() -> None:
    """`python -m clawctl` looks for modules first in the folder it is started in: at times a run directory, where others write."""
    package = str(Path(__file__).resolve().parents[1])
    if not sys.flags.safe_path and sys.path and sys.path[0] != package:
        del sys.path[0]


def main() -> None:
    """Run clawctl. Ctrl-C ends it at once and without a traceback, until a worker handles the signal and finishes its work."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from clawctl.cli import main as run

    run()


if __name__ == "__main__":
    _leave_out_this_folder()
    main()
