"""Runs a program of the graded code in its own sandbox, with the working folder, variables and files of this one.

    graded_program.py PROGRAM [ARGUMENTS]

Its output and exit code are those of the program. Files below FOLDERS that it writes appear here afterwards, as data.
"""

import base64
import os
import shutil
import stat
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from remote_modules import GradedSession  # type: ignore[import-not-found]


def main(words: list[str], given: bytes | None = None) -> None:
    """`given`: the standard input, if it has been read. The program gets copies of files of the tests that the words name."""
    if given is None:
        given = b"" if sys.stdin is None or sys.stdin.isatty() or _is_read_by_another() else sys.stdin.buffer.read()
    words = [_copied(word) if word.startswith("/tests/") and os.path.isfile(word) else word for word in words]
    session = GradedSession()
    may_run = [word for word in words if os.path.isfile(word) and os.access(word, os.X_OK)]  # `chmod` was a command of the tests
    code = session.ask("program", words, base64.b64encode(given).decode(), may_run)
    session.fetch_files()
    sys.stdout.flush()
    os._exit(code if code >= 0 else 128 - code)


def _is_read_by_another() -> bool:
    """Whether the standard input is a file that a loop of the script reads, line by line."""
    return stat.S_ISREG(os.fstat(0).st_mode) and os.lseek(0, 0, os.SEEK_CUR) > 0


def _copied(path: str) -> str:
    return shutil.copy(path, f"{tempfile.mkdtemp()}/{os.path.basename(path)}")


if __name__ == "__main__":
    main(sys.argv[1:])
