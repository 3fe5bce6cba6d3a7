"""Runs a test script in a shell that can execute the system's programs alone (Landlock), and nothing that the graded code left.

    confined_shell.py SHELL SCRIPT

On a kernel without Landlock, files of the graded code are still not executable there.
"""

import ctypes
import os
import struct
import sys

_CREATE, _ADD, _RESTRICT, _EXECUTE, _BENEATH, _NO_NEW_PRIVS = 444, 445, 446, 1, 1, 38


def confine(folders: list[str]) -> None:
    """Let this process and its children execute files below these folders alone."""
    library = ctypes.CDLL(None, use_errno=True)
    ruleset = library.syscall(_CREATE, ctypes.c_char_p(struct.pack("=Q", _EXECUTE)), ctypes.c_size_t(8), 0)
    if ruleset < 0:
        return
    for folder in filter(os.path.isdir, folders):
        descriptor = os.open(folder, os.O_PATH)
        library.syscall(_ADD, ruleset, _BENEATH, ctypes.c_char_p(struct.pack("=Qi", _EXECUTE, descriptor)), 0)
        os.close(descriptor)
    library.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    library.syscall(_RESTRICT, ruleset, 0)
    os.close(ruleset)


if __name__ == "__main__":
    system = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/tests", os.path.dirname(os.path.abspath(__file__))]
    confine([*system, sys.base_prefix, sys.prefix])
    os.execv(sys.argv[1], sys.argv[1:])
