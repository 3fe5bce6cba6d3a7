"""A sandbox for an agent's commands, which may do anything.

They cannot read the run directory, keys or other files of the host: they see the system's programs, read-only, and folders of
their own. They have no network unless the task asks for one. They end with the episode. Memory, processes, disk, files, output and
time are limited. A verdict is computed in another sandbox, from a snapshot that is taken after all of their processes have ended.

bubblewrap makes the namespaces. As root, each sandbox has a user of its own. `clawctl doctor` and the first use in each process
try to break out (`probe.py`).
"""

import asyncio
import json
import os
import resource
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clawctl.environments.sandbox.bubblewrap import HOME, TOOLS, Room, make_room, python, search_path
from clawctl.environments.sandbox.cgroups import ControlGroup, make_group
from clawctl.errors import ClawError

_INSIDE = f"{TOOLS}/inside.py"
_INSIDE_TEXT = (Path(__file__).parent / "inside.py").read_bytes()
_START_S = 30.0
_GRACE_S = 15.0  # beyond the time of a command, before the sandbox counts as broken
SPARE_S = 60.0  # of a sandbox beyond its agent's time, for the snapshot
_LONGEST_HEADER = 1 << 16
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


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command did."""

    output: str
    code: int  # negative: the signal that ended it
    timed_out: bool = False
    stopped: str | None = None  # "memory" or "files": all processes were ended because there was too much of it
    errors: str = ""  # of stderr, where it was kept apart


@dataclass(slots=True)
class Sandbox:
    """One sandbox. `open_sandbox` makes it."""

    folder: str
    limits: Limits
    _process: asyncio.subprocess.Process
    _environment: Mapping[str, str]
    _busy: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(
        self,
        command: str | Sequence[str],
        timeout: float = 60.0,
        given: bytes = b"",
        environment: Mapping[str, str] | None = None,
        joined: bool = True,
        output: int | None = None,
    ) -> Ran:
        """Run a shell command, or a program with its arguments, in the working folder. `given` is its standard input.

        Processes that it leaves in the background go on until the sandbox closes. Raises SandboxOver, SandboxFailed.
        """
        words = ["/bin/bash", "-c", command] if isinstance(command, str) else list(command)
        request = {
            "do": "run", "argv": words, "cwd": self.folder, "timeout": timeout, "as_agent": True, "joined": joined,
            "env": {**self._environment, **(environment or {})}, "output": output or self.limits.output,
        }  # fmt: skip
        if sum(len(word.encode(errors="replace")) for word in words) > 120_000 or any("\0" in word for word in words):
            return Ran("bash: argument list too long, or a zero byte in it", 126)
        answer, data = await self._ask(request, given, timeout + _GRACE_S)
        said, errors = (part.decode(errors="replace") for part in (data[: answer["out"]], data[answer["out"] :]))
        return Ran(said, answer["code"], answer["timed_out"], answer["stopped"], errors)

    def define(self, variables: Mapping[str, str]) -> None:
        """Variables of all later commands. PATH stays as it is."""
        self._environment = {**self._environment, **{name: value for name, value in variables.items() if name != "PATH"}}

    async def put(self, tar: bytes, folder: str | None = None) -> None:
        """Unpack a tar into the working folder. Raises ValueError for a tar that leads out of it or does not fit."""
        answer, _ = await self._ask({"do": "unpack", "folder": folder or self.folder}, tar, 60.0)
        if "problem" in answer:
            raise ValueError(answer["problem"])

    async def snapshot(self) -> bytes:
        """The working folder as a tar, after every process has ended. Raises ValueError if it is too large."""
        answer, _ = await self._ask({"do": "clear"}, b"", 30.0)
        if "problem" in answer:
            raise SandboxFailed(answer["problem"])
        request = {"do": "pack", "folder": self.folder, "most_bytes": self.limits.disk, "most_files": self.limits.files}
        answer, tar = await self._ask(request, b"", 60.0)
        if "problem" in answer:
            raise ValueError(answer["problem"])
        return tar

    async def end_processes(self) -> None:
        answer, _ = await self._ask({"do": "clear"}, b"", 30.0)
        if "problem" in answer:
            raise SandboxFailed(answer["problem"])

    async def _ask(self, request: dict[str, Any], payload: bytes, timeout: float) -> tuple[dict[str, Any], bytes]:
        assert self._process.stdin is not None
        text = json.dumps({**request, "size": len(payload)}).encode()
        async with self._busy:
            try:
                async with asyncio.timeout(timeout):
                    self._process.stdin.write(struct.pack("!I", len(text)) + text + payload)
                    await self._process.stdin.drain()
                    return await self._answer()
            except TimeoutError as error:
                await _end(self._process)
                raise SandboxFailed(f"no answer to {request['do']!r} within {timeout:.0f} s") from error
            except (OSError, asyncio.IncompleteReadError) as error:
                code = await self._process.wait()
                raise SandboxOver("its time is over" if code in (124, -9, 137) else f"process 1 ended with {code}") from error

    async def _answer(self) -> tuple[dict[str, Any], bytes]:
        assert self._process.stdout is not None
        length = struct.unpack("!I", await self._process.stdout.readexactly(4))[0]
        if length > _LONGEST_HEADER:
            raise SandboxFailed("process 1 of the sandbox sent nonsense")
        header = json.loads(await self._process.stdout.readexactly(length))
        return header, await self._process.stdout.readexactly(header["size"])


@asynccontextmanager
async def open_sandbox(
    folder: str = "/app",
    limits: Limits | None = None,
    fixed: Mapping[str, bytes] | None = None,
    packages: tuple[str, ...] = (),
    socket: Path | None = None,
    folders: tuple[str, ...] = (),
    see: tuple[str, ...] = (),
) -> AsyncIterator[Sandbox]:
    """A sandbox with the working folder `folder`, for as long as the block runs.

    `fixed` are files that nobody inside can change, by path; `packages` Python packages of this environment that it can import;
    `socket` a unix socket of the host that appears as `/run/model.sock`; `folders` further folders that can be written;
    `see` folders of the host that can be read. Raises
    ClawError if bubblewrap is missing or may not work here, and SandboxFailed.
    """
    limits = limits or Limits()
    room = make_room(folder, limits.disk, limits.network, {**(fixed or {}), _INSIDE: _INSIDE_TEXT}, packages, socket, folders, see)
    group = make_group(limits.memory, limits.processes + 2)
    try:
        process = await _start(room, limits, group)
        try:
            environment = {"PATH": search_path(), "HOME": HOME, "LANG": "C.UTF-8", "TERM": "dumb", "PYTHONDONTWRITEBYTECODE": "1"}
            sandbox = Sandbox(folder, limits, process, environment)
            await _wait_until_ready(sandbox, room)
            yield sandbox
        finally:
            await asyncio.shield(_end(process))
    finally:
        room.close()
        if group is not None:
            group.remove()


async def _start(room: Room, limits: Limits, group: ControlGroup | None) -> asyncio.subprocess.Process:
    """Start process 1 under its limits. It waits for them before its first instruction."""
    told, tells = os.pipe()
    waits, goes = os.pipe()
    settings = {
        "user": room.user, "memory": limits.memory, "files": limits.files, "folders": room.folders, "seconds": limits.seconds
    }  # fmt: skip
    arguments = [*room.arguments, "--info-fd", str(tells), "--block-fd", str(waits), "--"]
    try:
        process = await asyncio.create_subprocess_exec(
            *arguments, python(), "-I", "-S", _INSIDE, json.dumps(settings),
            stdin=-1, stdout=-1, stderr=-1, pass_fds=(tells, waits, *room.descriptors), start_new_session=True, env={},
        )  # fmt: skip
        os.close(tells)
        tells = -1
        try:
            async with asyncio.timeout(_START_S):
                pid = await asyncio.to_thread(_child, told)
            if pid is not None:
                _limit(pid, limits, group)
            with suppress(BrokenPipeError):
                os.write(goes, b"1")
        except BaseException:
            await asyncio.shield(_end(process))
            raise
        return process
    finally:
        for descriptor in (told, tells, waits, goes):
            if descriptor >= 0:
                os.close(descriptor)


def _child(told: int) -> int | None:
    """The number of process 1, as the host counts. None: bubblewrap ended first."""
    text = b""
    while part := os.read(told, 4096):
        text += part
        if b"}" in text:
            return int(json.loads(text)["child-pid"])
    return None


def _limit(pid: int, limits: Limits, group: ControlGroup | None) -> None:
    most = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_FSIZE: limits.disk,
        resource.RLIMIT_NPROC: limits.processes,
        resource.RLIMIT_CPU: max(1, int(limits.seconds)),
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_MEMLOCK: 1 << 16,
    }
    if group is None:  # where nothing better is to be had
        most[resource.RLIMIT_DATA if limits.reserves_memory else resource.RLIMIT_AS] = limits.memory
    try:
        for what, value in most.items():
            resource.prlimit(pid, what, (value, value))
        if group is not None:
            group.take(pid)
    except (OSError, ValueError) as error:
        raise SandboxFailed(f"the limits of the sandbox cannot be set: {error}") from error


async def _wait_until_ready(sandbox: Sandbox, room: Room) -> None:
    try:
        async with asyncio.timeout(_START_S):
            await sandbox._answer()
    except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
        await _end(sandbox._process)
        assert sandbox._process.stderr is not None
        said = (await sandbox._process.stderr.read(4096)).decode(errors="replace").strip()
        if said.startswith("bwrap:"):
            cure = (
                "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0); "
                "run a container with --security-opt seccomp=unconfined --cap-add SYS_ADMIN"
            )
            raise ClawError(f"bubblewrap cannot make a sandbox here: {said}", cure) from error
        raise SandboxFailed(f"the sandbox did not start: {said or 'no message'}") from error


async def _end(process: asyncio.subprocess.Process) -> None:
    """End bubblewrap, and with it process 1 and everything in the sandbox."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
    await process.wait()
    transport = getattr(process, "_transport", None)
    if transport is not None:
        transport.close()
