"""Read at startup by each Python of a test script. Standard library only.

Modules of the graded code are loaded in their own sandbox (`remote_modules.py`), and a program of the graded code runs there
(`graded_program.py`). The folder of a trusted script is searched after Python's own folders, because it may be the graded code's.
"""

import os
import subprocess
import sys

_TOOLS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.append(_TOOLS)
from importlib.machinery import PathFinder  # noqa: E402

from run_tests import TRUSTED, make_finder  # type: ignore[import-not-found]  # noqa: E402 - beside this folder in the sandbox

_PROGRAM = [f"{_TOOLS}/bin/graded"]


def _is_graded(path: object) -> bool:
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
    return "/" in text and os.path.isfile(text) and not os.path.realpath(text).startswith(tuple(f"{folder}/" for folder in TRUSTED))


class _Popen(subprocess.Popen):
    """Starts programs of the graded code in their own sandbox."""

    def __init__(self, args: object, *more: object, **options: object) -> None:
        words = [args] if isinstance(args, str | bytes | os.PathLike) else list(args)  # type: ignore[call-overload]
        if not options.get("shell") and words and _is_graded(words[0]):
            args = [*_PROGRAM, *words]
        elif options.get("shell"):
            options.setdefault("executable", f"{_TOOLS}/shell")
        super().__init__(args, *more, **options)  # type: ignore[call-overload]


_first = (sys.argv or [""])[0]
_folder = os.getcwd() if _first in ("", "-", "-c", "-m") else os.path.dirname(os.path.realpath(_first))
_given = [path for path in os.environ.get("GIVEN_PYTHONPATH", "").split(":") if path]
_trusted = tuple(f"{folder}/" for folder in TRUSTED)
_kept = [path for path in sys.path if f"{path}/".startswith(_trusted)]
sys.path[:] = list(dict.fromkeys([*_kept, _folder, *_given, *sys.path]))
_name = sys.orig_argv[sys.orig_argv.index("-m") + 1] if _first == "-m" else ""
_spec = PathFinder.find_spec(_name.split(".")[0]) if _name else None
if (_first not in ("", "-", "-c", "-m") and _is_graded(os.path.abspath(_first))) or (_spec and _is_graded(_spec.origin)):
    os.execv(_PROGRAM[0], [*_PROGRAM, "python3", *sys.orig_argv[sys.orig_argv.index("-s") + 1 :]])
make_finder()
subprocess.Popen = _Popen  # type: ignore[misc]
