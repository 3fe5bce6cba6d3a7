"""Runs a command and leaves no process behind: if the keeper, the command or the parent ends, the whole process group ends.

    python clawctl_keeper.py PARENT_PID COMMAND…

If the main process of a server with several processes is killed, the others become orphans and keep their memory. The keeper leads
their process group.
"""

import ctypes
import os
import signal
import subprocess
import sys

_PR_SET_PDEATHSIG = 1
FD = "CLAWCTL_MULTIPLEX_FD"  # descriptor of a socket that belongs to the command


def main() -> None:
    def end(*_: object) -> None:
        os.killpg(0, signal.SIGKILL)

    signal.signal(signal.SIGTERM, end)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == int(sys.argv[1]):  # otherwise the parent died before prctl
        status = subprocess.call(sys.argv[2:], pass_fds=[int(os.environ[FD])] if FD in os.environ else [])
        if status < 0:  # the command could not report it itself
            print(f"it was ended by {signal.Signals(-status).name}", file=sys.stderr, flush=True)
    end()


if __name__ == "__main__":
    main()
