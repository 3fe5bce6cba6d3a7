"""The properties of a sandbox, and the protocol of the kinds that make one."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

HOME = "/home/agent"
TOOLS = "/opt/clawctl"  # read-only for the graded code: clawctl's programs, and packages that tests need
INSIDE = f"{TOOLS}/inside.py"
INSIDE_TEXT = (Path(__file__).parent / "inside.py").read_bytes()
_MEBIBYTE = 1 << 20


class SandboxFailed(Exception):
    """The sandbox failed for a reason outside of the agent's control. The episode counts as failed."""

    ending = "sandbox"


class SandboxOver(Exception):
    """The sandbox ended because its time ran out or its processes used too much memory."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one sandbox, shared by all of its commands."""

    seconds: float = 600.0  # the lifetime of the sandbox
    memory: int = 512 * _MEBIBYTE  # bytes
    disk: int = 64 * _MEBIBYTE  # bytes; half of it is for the working folder
    files: int = 20_000
    processes: int = 64
    open_files: int = 512  # in each process
    reserves_memory: bool = False  # for programs such as node, which reserve much more memory than they use
    output: int = 1 << 16  # bytes kept of a command's output
    network: bool = False
    kind: "SandboxKind | None" = None  # the kind that makes the sandbox; None: bubblewrap


def mode_of(content: bytes) -> int:
    """The mode of a read-only file. Executables get `x` alone; scripts that begin with `#!` must also be readable to run."""
    return 0o111 if content.startswith(b"\x7fELF") else 0o555 if content.startswith(b"#!") else 0o444


@dataclass(frozen=True, slots=True)
class SandboxPlan:
    """The arguments of `open_sandbox`, as one object."""

    folder: str  # the working folder
    limits: Limits
    fixed: Mapping[str, bytes] = field(default_factory=dict)  # read-only files, by path
    packages: tuple[str, ...] = ()  # Python packages of this interpreter
    socket: Path | None = None  # a unix socket of the host, which appears at /run/model.sock
    see: tuple[str, ...] = ()  # folders of the host, read-only

    @property
    def writable(self) -> dict[str, int]:
        """The writable folders, each with its size in bytes. The working folder gets half of the disk."""
        parts = {self.folder: 2, "/tmp": 4, HOME: 8, "/dev/shm": 16, "/logs/verifier": 32}
        return {folder: max(self.limits.disk // part, 4096) for folder, part in parts.items()}

    def settings(self, user: int | None, root: str | None = None) -> str:
        """The settings of process 1, as JSON.

        `user`: the user of the commands if process 1 runs as root.
        `root`: the folder of a sandbox that has no namespaces, in which process 1 sets the limits of processes.
        """
        limits = self.limits
        given: dict[str, Any] = {"user": user, "memory": limits.memory, "files": limits.files, "folders": list(self.writable)}
        given |= {"seconds": limits.seconds, "confined": root is None, "rlimits": {}}
        if root is not None:  # without a separate user, nproc would count all processes of the host's user
            given["rlimits"] = {name: value for name, value in self.rlimits().items() if name != "nproc"}
        return json.dumps(given if root is None else {**given, "folders": []})

    def rlimits(self) -> dict[str, int]:
        """The limits of each process, by their names in setrlimit(2)."""
        limits = self.limits
        return {
            "core": 0, "nofile": limits.open_files, "fsize": limits.disk, "nproc": limits.processes,
            "cpu": max(1, int(limits.seconds)), "msgqueue": 0, "memlock": 1 << 16,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Started:
    """A sandbox's process 1. `root` is the host's folder that stands for `/` if there are no namespaces."""

    process: asyncio.subprocess.Process
    root: str = ""


class SandboxKind(Protocol):
    """Makes sandboxes. Each kind runs `inside.py` as process 1, and communicates with it over stdin and stdout."""

    @property
    def name(self) -> str: ...

    @property
    def has_own_files(self) -> bool:
        """Whether each sandbox has its own `/app` and `/tests`."""
        ...

    @property
    def is_confined(self) -> bool:
        """Whether the sandbox isolates the commands at all."""
        ...

    def prepare(self) -> None:
        """Raises ClawError (exit code 2) if this kind cannot be used. If it has to build an image, this may take minutes."""
        ...

    def python(self) -> str:
        """The path of the Python interpreter in the sandbox."""
        ...

    def test_options(self) -> tuple[str, ...]:
        """Options of the Python that runs tests. Without `-S`, it can import the packages of its image."""
        ...

    def search_path(self) -> str: ...

    def variables(self) -> Mapping[str, str]:
        """Environment variables of all commands. A task's own variables override them."""
        ...

    def start(self, plan: SandboxPlan) -> AbstractAsyncContextManager[Started]:
        """Start process 1 under its limits. The whole sandbox ends with the block. Raises ClawError and SandboxFailed."""
        ...

    def raise_if_refused(self, error: str) -> None:
        """Raises ClawError if this text from stderr means that no sandbox can be made on this machine."""
        ...
