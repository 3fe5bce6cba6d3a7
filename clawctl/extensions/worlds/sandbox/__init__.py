"""A sandbox for an agent's commands, which may try to do anything.

Commands cannot read the run directory, keys or other files of the host. They see the system's programs, read-only, and the
sandbox's own folders. They have no network unless the task asks for one. They end with the episode. Memory, processes, disk, files,
output and time are limited. The verdict is computed in another sandbox, from a snapshot taken after all of their processes have
ended.

A `SandboxKind` makes the sandbox: bubblewrap, podman, docker, or plain processes, which isolate nothing (`kinds.py`).
Every kind runs the same process 1 (`inside.py`). `clawctl doctor` and the first use in each process try to break out (`probe.py`).
"""

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clawctl.extensions.worlds.sandbox.bubblewrap import Bubblewrap
from clawctl.extensions.worlds.sandbox.plan import HOME, TOOLS, Limits, SandboxFailed, SandboxKind, SandboxOver, SandboxPlan

__all__ = ["HOME", "TOOLS", "Limits", "SandboxFailed", "SandboxKind", "SandboxOver"]  # imported from here by others

_START_S = 30.0
_GRACE_S = 15.0  # added to a command's time limit; after that, the sandbox counts as broken
SPARE_S = 60.0  # added to the agent's time limit for the sandbox's own limit, so that the snapshot can be taken
_LONGEST_HEADER = 1 << 16


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of a command."""

    output: str
    code: int  # exit code; negative: the number of the signal that ended the command
    timed_out: bool = False
    stopped: str | None = None  # "memory" or "files": this limit was exceeded, and all processes were killed
    errors: str = ""  # stderr, if it was captured separately


@dataclass(slots=True)
class Sandbox:
    """One sandbox, made by `open_sandbox`."""

    folder: str
    limits: Limits
    kind: SandboxKind
    _process: asyncio.subprocess.Process
    _environment: Mapping[str, str]
    _root: str = ""  # without namespaces: the host's folder that stands for "/"
    _own: tuple[str, ...] = ()  # sandbox folders that are below `_root`
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

        Background processes that it starts run until the sandbox closes. Raises SandboxOver, SandboxFailed.
        """
        argv = ["/bin/bash", "-c", command] if isinstance(command, str) else list(command)
        variables = {**self._environment, **(environment or {})}
        request = {
            "do": "run", "argv": [self._place(word) for word in argv], "cwd": self._place(self.folder), "timeout": timeout,
            "as_agent": True, "joined": joined, "output": output or self.limits.output,
            "env": {name: ":".join(map(self._place, value.split(":"))) for name, value in variables.items()},
        }  # fmt: skip
        if sum(len(word.encode(errors="replace")) for word in argv) > 120_000 or any("\0" in word for word in argv):
            return Ran("bash: argument list too long, or a zero byte in it", 126)
        answer, data = await self._ask(request, given, timeout + _GRACE_S)
        parts = (data[: answer["out"]], data[answer["out"] :])
        text, errors = (part.decode(errors="replace") for part in parts)
        if self._root:
            text, errors = text.replace(self._root, ""), errors.replace(self._root, "")
        return Ran(text, answer["code"], answer["timed_out"], answer["stopped"], errors)

    def define(self, variables: Mapping[str, str]) -> None:
        """Set environment variables for all later commands. PATH is not changed."""
        self._environment = {**self._environment, **{name: value for name, value in variables.items() if name != "PATH"}}

    async def put(self, tar: bytes, folder: str | None = None) -> None:
        """Unpack a tar, by default into the working folder. Raises ValueError if it does not fit or leads outside."""
        answer, _ = await self._ask({"do": "unpack", "folder": self._place(folder or self.folder)}, tar, 60.0)
        if "problem" in answer:
            raise ValueError(answer["problem"])

    async def end_processes(self) -> None:
        """End all processes of commands. Raises SandboxOver if some remain: an agent could keep them on purpose, and a sandbox that
        failed is no failure of the agent."""
        answer, _ = await self._ask({"do": "clear"}, b"", 30.0)
        if "problem" in answer:
            raise SandboxOver(answer["problem"])

    async def snapshot(self) -> bytes:
        """End all processes and return the working folder as a tar. Raises ValueError if the folder is too large."""
        await self.end_processes()
        request = {"do": "pack", "folder": self._place(self.folder), "max_bytes": self.limits.disk, "max_files": self.limits.files}
        answer, tar = await self._ask(request, b"", 60.0)
        if "problem" in answer:
            raise ValueError(answer["problem"])
        return tar

    def _place(self, path: str) -> str:
        """Translate a path in the sandbox to the path that process 1 uses. Other words are returned unchanged."""
        is_own = self._root and any(path == folder or path.startswith(f"{folder}/") for folder in (TOOLS, *self._own))
        return f"{self._root}{path}" if is_own else path

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
                with suppress(ProcessLookupError):
                    self._process.kill()
                raise SandboxFailed(f"no answer to {request['do']!r} within {timeout:.0f} s") from error
            except (OSError, asyncio.IncompleteReadError) as error:
                code = await self._process.wait()
                raise SandboxOver("its time is over" if code in (124, -9, 137) else f"process 1 ended with {code}") from error

    async def _answer(self) -> tuple[dict[str, Any], bytes]:
        assert self._process.stdout is not None
        length = struct.unpack("!I", await self._process.stdout.readexactly(4))[0]
        if length > _LONGEST_HEADER:
            raise SandboxFailed("process 1 of the sandbox sent invalid data")
        header = json.loads(await self._process.stdout.readexactly(length))
        return header, await self._process.stdout.readexactly(header["size"])


@asynccontextmanager
async def open_sandbox(
    folder: str = "/app",
    limits: Limits | None = None,
    fixed: Mapping[str, bytes] | None = None,
    packages: tuple[str, ...] = (),
    socket: Path | None = None,
    see: tuple[str, ...] = (),
) -> AsyncIterator[Sandbox]:
    """A sandbox with the working folder `folder`. It closes when the block ends.

    `limits.kind` makes the sandbox. `fixed` maps paths to files that no process inside can change. `packages` are Python packages
    of this environment that code inside can import. `socket` is a unix socket of the host that appears as `/run/model.sock`.
    `see` are folders of the host that processes inside can read.

    Raises ClawError if the kind is not installed or is not permitted on this machine, and SandboxFailed.
    """
    limits = limits or Limits()
    kind = kind_of(limits)
    plan = SandboxPlan(folder, limits, dict(fixed or {}), packages, socket, see)
    async with kind.start(plan) as started:
        environment = {"PATH": kind.search_path(), "HOME": HOME, "LANG": "C.UTF-8", "TERM": "dumb", "PYTHONDONTWRITEBYTECODE": "1"}
        sandbox = Sandbox(
            folder, limits, kind, started.process, {**kind.variables(), **environment}, started.root, tuple(plan.writable)
        )
        await _wait_until_ready(sandbox)
        yield sandbox


def kind_of(limits: Limits) -> SandboxKind:
    return limits.kind or Bubblewrap()


async def _wait_until_ready(sandbox: Sandbox) -> None:
    process = sandbox._process
    try:
        async with asyncio.timeout(_START_S):
            await sandbox._answer()
    except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        assert process.stderr is not None
        output = (await process.stderr.read(4096)).decode(errors="replace").strip()
        sandbox.kind.raise_if_refused(output)
        raise SandboxFailed(f"the sandbox did not start: {output or 'no message'}") from error


async def relay(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Copy a stream between the two sides of a socket that a sandbox shares, until it ends."""
    with suppress(OSError):
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
        if target.can_write_eof():
            target.write_eof()
