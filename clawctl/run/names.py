"""Checks that names in files are names and not paths, so that nothing reaches outside the run directory."""

import os
import re
from pathlib import Path
from typing import Any
from uuid import uuid4

from clawctl.errors import Damaged

_NUMBER = re.compile(r"0|[1-9][0-9]{0,14}")
_POLICY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# Names used in policies/ and train/
_RESERVED_NAMES = frozenset(("live", "shared", "checkpoints", "ledger", "turns", "tensorboard", "wandb"))
_RESERVED_SUFFIXES = (".json", ".jsonl", ".bin", ".tmp")
_LONGEST = 200  # bytes; leaves space for a suffix and the mark of a temporary file


def is_name(value: Any) -> bool:
    """Whether this is valid as the name of a single file in a folder."""
    if not isinstance(value, str) or value in ("", ".", "..") or not value.isprintable() or "/" in value or "\\" in value:
        return False
    try:
        return len(os.fsencode(value)) <= _LONGEST
    except UnicodeEncodeError:
        return False


def named(value: Any) -> str:
    """Return `value` if it is a valid file name. Raises Damaged otherwise."""
    if not is_name(value):
        raise Damaged(f"{str(value)[:100]!r} is not a file name")
    return str(value)


def draft_of(path: Path) -> Path:
    """Return a path next to `path`, under which its content is written before it is published. Each call returns another path."""
    return path.with_name(f".{path.name}.{os.getpid()}-{uuid4().hex[:8]}.tmp")


def below(folder: Path, value: Any) -> Path:
    """Return the path of `value` ("policy/config.json") below `folder`.

    Raises Damaged if a part is not a valid name or is a link, because the file could then be elsewhere.
    """
    path = folder
    for part in str(value).split("/") if isinstance(value, str) else [value]:
        path = path / named(part)
        if path.is_symlink():
            raise Damaged(f"{value!r} is a link")
    return path


def counted(value: Any) -> int:
    """Return `value`, a step or version number, which also becomes a file name. Raises Damaged if it is not a valid number."""
    if type(value) is not int or value < 0:
        raise Damaged(f"{str(value)[:100]!r} is not a step number")
    return value


def is_policy_name(value: Any) -> bool:
    """Whether this can be the name of a policy. Its folder is created beside versions and files in `policies/`, `train/` and
    `eval/`, also on file systems that ignore case.
    """
    if not isinstance(value, str) or not _POLICY.fullmatch(value) or value.isdigit():
        return False
    return value.lower() not in _RESERVED_NAMES and not value.lower().endswith(_RESERVED_SUFFIXES)


def number_of(name: str) -> int | None:
    """Return the step or version number in canonical form, or None for any other name (`²`, `007`, a hundred digits)."""
    return int(name) if _NUMBER.fullmatch(name) else None


def numbers_in(folder: Path) -> list[int]:
    """Return the numbers that name files and folders here, in order. Other names are ignored. Empty if there is no folder."""
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    return sorted(number for name in names if (number := number_of(name)) is not None)


def stamp_of(path: Path) -> tuple[int, int] | None:
    """Return a value that changes whenever a file is published again, or None if there is no file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_ino


def open_to_append(path: Path) -> int:
    """Return a file descriptor for appending. A link is not followed, because it may point outside the run. Raises OSError."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
