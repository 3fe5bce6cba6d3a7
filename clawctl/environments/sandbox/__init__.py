"""A sandbox for an agent's commands, which may do anything.

They cannot read the run directory, keys or other files of the host: they see the system's programs, read-only, and folders of
their own. They have no network unless the task asks for one. They end with the episode. Memory, processes, disk, files, output and
time are limited. A verdict is computed in another sandbox, from a snapshot that is taken after all of their processes have ended.

What makes a sandbox is a `SandboxKind`: bubblewrap, podman, docker, apptainer, or plain processes, which confine nothing
(`kinds.py`). All run the same process 1 (`inside.py`). `clawctl doctor` and the first use in each process try to break out
(`probe.py`).
"""

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clawctl.environments.sandbox.bubblewrap import Bubblewrap
from clawctl.environments.sandbox.plan import HOME, TOOLS, Limits, SandboxFailed, SandboxKind, SandboxOver, SandboxPlan

__all__ = ["TOOLS", "Limits", "Ran", "Sandbox", "SandboxFailed", "SandboxKind", "SandboxOver", "kind_of", "open_sandbox"]

_START_S = 30.0
_GRACE_S = 15.0  # beyond the time of a command, before the sandbox counts as broken
SPARE_S = 60.0  # of a sandbox beyond its agent's time, for the snapshot
_LONGEST_HEADER = 1 << 16


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
    kind: SandboxKind
    _process: asyncio.subprocess.Process
    _environment: Mapping[str, str]
    _root: str = ""  # the folder of the host that stands for "/", where there are no namespaces
    _own: tuple[str, ...] = ()  # folders that lie below it
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
        variables = {**self._environment, **(environment or {})}
        request = {
            "do": "run", "argv": [self._place(word) for word in words], "cwd": self._place(self.folder), "timeout": timeout,
            "as_agent": True, "joined": joined, "output": output or self.limits.output,
            "env": {name: ":".join(map(self._place, value.split(":"))) for name, value in variables.items()},
        }  # fmt: skip
        if sum(len(word.encode(errors="replace")) for word in words) > 120_000 or any("\0" in word for word in words):
            return Ran("bash: argument list too long, or a zero byte in it", 126)
        answer, data = await self._ask(request, given, timeout + _GRACE_S)
        parts = (data[: answer["out"]], data[answer["out"] :])
        said, errors = (part.decode(errors="replace") for part in parts)
        if self._root:
            said, errors = said.replace(self._root, ""), errors.replace(self._root, "")
        return Ran(said, answer["code"], answer["timed_out"], answer["stopped"], errors)

    def define(self, variables: Mapping[str, str]) -> None:
        """Variables of all later commands. PATH stays as it is."""
        self._environment = {**self._environment, **{name: value for name, value in variables.items() if name != "PATH"}}

    async def put(self, tar: bytes, folder: str | None = None) -> None:
        """Unpack a tar into the working folder. Raises ValueError for a tar that leads out of it or does not fit."""
        answer, _ = await self._ask({"do": "unpack", "folder": self._place(folder or self.folder)}, tar, 60.0)
        if "problem" in answer:
            raise ValueError(answer["problem"])

    async def snapshot(self) -> bytes:
        """The working folder as a tar, after every process has ended. Raises ValueError if it is too large."""
        answer, _ = await self._ask({"do": "clear"}, b"", 30.0)
        if "problem" in answer:
            raise SandboxFailed(answer["problem"])
        request = {
            "do": "pack",
            "folder": self._place(self.folder),
            "most_bytes": self.limits.disk,
            "most_files": self.limits.files,
        }
        answer, tar = await self._ask(request, b"", 60.0)
        if "problem" in answer:
            raise ValueError(answer["problem"])
        return tar

    async def end_processes(self) -> None:
        answer, _ = await self._ask({"do": "clear"}, b"", 30.0)
        if "problem" in answer:
            raise SandboxFailed(answer["problem"])

    def _place(self, path: str) -> str:
        """A path inside as process 1 sees it. What is no path of the sandbox stays as it is."""
        is_own = self._root and any(path == own or path.startswith(f"{own}/") for own in (TOOLS, *self._own))
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
    `see` folders of the host that can be read. `limits.kind` makes it. Raises
    ClawError if that is missing or may not work here, and SandboxFailed.
    """
    limits = limits or Limits()
    kind = kind_of(limits)
    plan = SandboxPlan(folder, limits, dict(fixed or {}), packages, socket, folders, see)
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
        said = (await process.stderr.read(4096)).decode(errors="replace").strip()
        sandbox.kind.raise_if_refused(said)
        raise SandboxFailed(f"the sandbox did not start: {said or 'no message'}") from error
