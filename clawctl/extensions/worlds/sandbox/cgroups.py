"""A control group for one sandbox: the kernel's limits on the memory and the number of all of its processes together.

Root can make groups. Other users can make them where groups are delegated, as systemd does for `systemd-run --user --scope`.
Without groups, the limits of each process and the checks in `inside.py` remain.
"""

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

_WANTED = ("memory", "pids")
_NAME = "clawctl-{pid}-{random}"
_OLD_S = 60.0  # younger groups are kept: their process may run in another process namespace, where its id is not visible


class ControlGroup:
    """The folders of a group: one with version 2, one for each controller with version 1."""

    def __init__(self, folders: list[Path]) -> None:
        self.folders = folders

    def add_process(self, pid: int) -> None:
        """Move a process, and so its later children, into the group. Raises OSError."""
        for folder in self.folders:
            (folder / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        """Remove the group, whose processes must have ended. The kernel may need a moment to notice that."""
        for folder in self.folders:
            for _ in range(300):
                try:
                    folder.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.01)


def make_group(memory: int, processes: int) -> ControlGroup | None:
    """Make a group with these limits (bytes, number of processes). Returns None if this process may not make groups."""
    hierarchy = _parents()
    if hierarchy is None:
        return None
    version, parents = hierarchy
    remove_left(parents)
    name, made = _NAME.format(pid=os.getpid(), random=uuid4().hex[:12]), list[Path]()
    limits = {"memory.max": memory, "memory.swap.max": 0, "pids.max": processes}
    if version == 1:
        limits = {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory, "pids.max": processes}
    try:
        for parent in parents:
            folder = parent / name
            folder.mkdir()
            made.append(folder)
            for file, value in limits.items():
                if (folder / file).exists():
                    (folder / file).write_text(str(value))
    except OSError:
        ControlGroup(made).remove()
        return None
    return ControlGroup(made)


def remove_left(parents: Iterable[Path], older_s: float = _OLD_S) -> None:
    """Remove empty groups left by killed workers, if the groups are older than `older_s` seconds."""
    for folder in (group for parent in parents for group in parent.glob(_NAME.format(pid="*", random="*"))):
        pid = folder.name.split("-")[1]
        with suppress(OSError):  # the group has processes, or another worker removed it first
            if not Path("/proc", pid).exists() and time.time() - folder.stat().st_mtime > older_s:
                folder.rmdir()


def _parents() -> tuple[int, list[Path]] | None:
    """The version of the control groups, and the folders in which this process can make groups with both controllers."""
    try:
        memberships = [line.rstrip("\n").split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return None
    first = {
        controller: Path(where)
        for _, where, kind, options, *_ in mounts
        if kind == "cgroup"
        for controller in _WANTED
        if controller in options.split(",")
    }
    if set(first) == set(_WANTED):
        folders = [first[name] for name in _WANTED]
        return (1, folders) if all(os.access(folder, os.W_OK) for folder in folders) else None
    second = next((Path(where) for _, where, kind, *_ in mounts if kind == "cgroup2"), None)
    inside = next((path for _, controllers, path in memberships if controllers == ""), None)
    if second is None or inside is None:
        return None
    folder = second / inside.lstrip("/")
    while True:
        with suppress(OSError):
            enabled = (folder / "cgroup.subtree_control").read_text().split()
            if set(_WANTED) <= set(enabled) and os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK):
                return 2, [folder]
        if folder == second:
            return None
        folder = folder.parent
