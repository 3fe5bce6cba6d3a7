"""Read at startup by each Python of a test script. Standard library only.

Modules of the graded code are loaded in their own sandbox (`remote_modules.py`), and a program of the graded code runs there
(`graded_program.py`). The folder of a trusted script is searched after Python's own folders, because it may be the graded code's.
"""

import os
import sys

_TOOLS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if "clawctl" not in sys._xoptions:  # started by its path: clawctl's program first finds out whose text it would run
    os.execv(f"{_TOOLS}/bin/python3", ["python3", *sys.orig_argv[1:]])
sys.path.append(_TOOLS)
from importlib.machinery import PathFinder  # noqa: E402

from boundary import TRUSTED, install, is_graded  # type: ignore[import-not-found]  # noqa: E402 - beside this folder in the sandbox
from remote_modules import Marks  # type: ignore[import-not-found]  # noqa: E402
from run_tests import make_finder  # type: ignore[import-not-found]  # noqa: E402

_first = (sys.argv or [""])[0]
_folder = os.getcwd() if _first in ("", "-", "-c", "-m") else os.path.dirname(os.path.realpath(_first))
_given = [path for path in os.environ.get("GIVEN_PYTHONPATH", "").split(":") if path]
_trusted = tuple(f"{folder}/" for folder in TRUSTED)
_kept = [path for path in sys.path if f"{path}/".startswith(_trusted)]
sys.path[:] = list(dict.fromkeys([*_kept, _folder, *_given, *sys.path]))
_words = sys.orig_argv[sys.orig_argv.index("-s") + 1 :]
_name = _words[_words.index("-m") + 1] if _first == "-m" else ""
_spec = PathFinder.find_spec(_name.split(".")[0]) if _name else None
if _spec and is_graded(_spec.origin):
    os.execv(f"{_TOOLS}/bin/graded", ["graded", "python3", *_words])
_finder = make_finder()
_finder.claims = Marks()
install(_finder)
