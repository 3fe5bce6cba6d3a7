"""What a sandbox shall be, and what can make one."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

HOME = "/home/agent"
TOOLS = "/opt/clawctl"  # what the graded code cannot change: our programs, and packages that tests need
INSIDE = f"{TOOLS}/inside.py"
INSIDE_TEXT = (Path(__file__).parent / "inside.py").read_bytes()
_MEBIBYTE = 1 << 20


class SandboxFailed(Exception):
    """The sandbox did not work, for a reason that is not the agent's. The episode counts as failed."""

    ending = "sandbox"


class SandboxOver(Exception):
    """The sandbox ended because its time was over, or because its processes held too much memory."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What all commands of one sandbox may use together."""

    seconds: float = 600.0  # the life of the sandbox
    memory: int = 512 * _MEBIBYTE  # bytes
    disk: int = 64 * _MEBIBYTE  # bytes; half of it for the working folder
    files: int = 20_000
    processes: int = 64
    open_files: int = 512  # of a process
    reserves_memory: bool = False  # programs such as node reserve much more memory than they use
    output: int = 1 << 16  # bytes of a command's output that are kept
    network: bool = False
    kind: "SandboxKind | None" = None  # what makes it; None: bubblewrap


def mode_of(content: bytes) -> int:
    """Of a file that nobody can change. A program can be run; what begins with `#!` must be read for that."""
    return 0o111 if content.startswith(b"\x7fELF") else 0o555 if content.startswith(b"#!") else 0o444


@dataclass(frozen=True, slots=True)
class SandboxPlan:
    """One sandbox, as `open_sandbox` is asked for it."""

    folder: str  # the working folder
    limits: Limits
    fixed: Mapping[str, bytes] = field(default_factory=dict)  # files that nobody inside can change, by path
    packages: tuple[str, ...] = ()  # of this interpreter
    socket: Path | None = None  # of the host, at /run/model.sock
    folders: tuple[str, ...] = ()  # further ones that can be written
    see: tuple[str, ...] = ()  # of the host, read-only

    @property
    def writable(self) -> dict[str, int]:
        """Folders that can be written, each with its size in bytes. The working folder has half of the disk."""
        places = (self.folder, "/tmp", HOME, "/dev/shm", "/logs/verifier", *self.folders)
        parts = (2, 4, 8, 16, 32, *(32 for _ in self.folders))
        return {place: max(self.limits.disk // part, 4096) for place, part in zip(places, parts, strict=True)}

    def settings(self, user: int | None, limits_itself: bool = False, root: str | None = None) -> str:
        """Of process 1. `user`: whom the commands run as, where process 1 is root. `limits_itself`: it sets the limits of
        processes. `root`: the folder of a sandbox that has no namespaces."""
        limits = self.limits
        given: dict[str, Any] = {"user": user, "memory": limits.memory, "files": limits.files, "folders": list(self.writable)}
        given |= {"seconds": limits.seconds, "confined": root is None, "rlimits": {}}
        if limits_itself or root is not None:  # without a user of its own, the number of processes is that of all its user has
            given["rlimits"] = {name: value for name, value in self.rlimits().items() if root is None or name != "nproc"}
        return json.dumps(given if root is None else {**given, "folders": []})

    def rlimits(self) -> dict[str, int]:
        """Of each process, by the names of setrlimit(2)."""
        limits = self.limits
        return {
            "core": 0, "nofile": limits.open_files, "fsize": limits.disk, "nproc": limits.processes,
            "cpu": max(1, int(limits.seconds)), "msgqueue": 0, "memlock": 1 << 16,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Started:
    """Process 1 of a sandbox. `root`: the folder of the host that stands for `/`, where there are no namespaces."""

    process: asyncio.subprocess.Process
    root: str = ""


class SandboxKind(Protocol):
    """What makes sandboxes. Each runs `inside.py` as process 1, and talks to it over its stdin and stdout."""

    @property
    def name(self) -> str: ...

    @property
    def has_own_files(self) -> bool:
        """Whether `/app` and `/tests` of each sandbox are its own."""
        ...

    @property
    def is_confined(self) -> bool:
        """Whether anything is promised."""
        ...

    def prepare(self) -> None:
        """Raises ClawError (exit code 2) where this kind cannot be used. Where it has to build an image, this may take minutes."""
        ...

    def python(self) -> str:
        """The path of the Python inside."""
        ...

    def test_options(self) -> tuple[str, ...]:
        """Of the Python that runs tests: without `-S`, it sees the packages of its image."""
        ...

    def search_path(self) -> str: ...

    def variables(self) -> Mapping[str, str]:
        """Variables that commands have before those of the task."""
        ...

    def start(self, plan: SandboxPlan) -> AbstractAsyncContextManager[Started]:
        """Process 1 under its limits. All of the sandbox ends with the block. Raises ClawError and SandboxFailed."""
        ...

    def raise_if_refused(self, said: str) -> None:
        """Raises ClawError if these last words on stderr mean that no sandbox can be made here."""
        ...
