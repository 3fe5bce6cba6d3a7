"""Folders as tars in memory: the files that go into a sandbox, and the files kept from one."""

import io
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path

from clawctl.errors import ClawError

_MAX_BYTES = 64 << 20  # the size limit of a task's files in bytes


def tar_of(files: Mapping[str, bytes]) -> bytes:
    """Pack files, given by relative path, into a tar. Files that begin with `#!` are executable."""
    out = io.BytesIO()
    with tarfile.TarFile(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755 if content.startswith(b"#!") else 0o644
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def files_of(tar: bytes) -> dict[str, bytes]:
    """The regular files of a tar, by path."""
    files = {}
    with tarfile.open(fileobj=io.BytesIO(tar)) as opened:
        for entry in opened:
            content = opened.extractfile(entry) if entry.isreg() else None
            if content is not None:
                files[os.path.normpath(entry.name)] = content.read()
    return files


def without(tar: bytes, left_out: set[str]) -> bytes:
    """A copy of the tar without these paths and everything below them."""
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(tar)) as given, tarfile.TarFile(fileobj=out, mode="w") as kept:
        for entry in given:
            path = Path(os.path.normpath(entry.name))
            if not left_out & {str(path), *(str(parent) for parent in path.parents)}:
                kept.addfile(entry, given.extractfile(entry) if entry.isreg() else None)
    return out.getvalue()


def folder_files(folder: Path) -> dict[str, bytes]:
    """The files of a local folder, by relative path. Links are skipped. Raises ClawError if the files are too large."""
    files: dict[str, bytes] = {}
    total = 0
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in (".git", "__pycache__"))
        for name in sorted(names):
            path = Path(parent) / name
            if path.is_symlink() or not path.is_file():
                continue
            total += path.stat().st_size
            if total > _MAX_BYTES:
                raise ClawError(f"{folder} contains more than {_MAX_BYTES >> 20} MiB", "make the task's folder smaller", 2)
            files[str(path.relative_to(folder))] = path.read_bytes()
    return files
