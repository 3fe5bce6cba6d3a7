"""Two sandboxes for one verdict: tests run in one, and the graded code in the other, from where it reaches nothing of the tests.

What the tests ask of the graded code crosses between them as plain data (`crossing.py`).
"""

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from clawctl.extensions.worlds.sandbox import TOOLS, Limits, Sandbox, SandboxKind, SandboxOver, kind_of, open_sandbox, relay
from clawctl.extensions.worlds.verdicts import inside
from clawctl.extensions.worlds.verdicts.interpreters import BUILDERS, EDITORS, FILTERS, OTHERS, RUNNERS, SHELLS

PYTEST = ("pytest", "_pytest", "pluggy", "py", "iniconfig", "packaging", "pygments")


@dataclass(frozen=True, slots=True)
class Separation:
    """The socket of the graded code, and what ran beside the tests although it may be the graded code's (`boundary.mark`)."""

    socket: Path
    marks: list[str] = field(default_factory=list)


@asynccontextmanager
async def open_graded(
    code: bytes, folder: str, limits: Limits, variables: Mapping[str, str] = MappingProxyType({})
) -> AsyncIterator["Separation"]:
    """Unpack the code in a sandbox of its own, and run it for whoever connects to the socket that is yielded.

    Raises SandboxFailed, and ValueError if the code does not fit.
    """
    programs = {f"{TOOLS}/{name}": inside(name) for name in ("graded_code.py", "given.py", "crossing.py")}
    waiting: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter] | None] = asyncio.Queue()
    opened: list[asyncio.StreamWriter] = []

    async def arrive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        await waiting.put((reader, writer))

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        first = await reader.read(1 << 16)
        if first.startswith(b'{"mark"'):
            separation.marks.append(json.loads(first)["mark"])
            writer.write(b"1")
            await writer.drain()
            writer.close()
            return
        graded = await waiting.get()
        if graded is None:
            writer.close()
            waiting.put_nowait(None)  # the graded code has ended, for all that follow as well
            return
        try:
            graded[1].write(first)
            await asyncio.gather(relay(reader, graded[1]), relay(graded[0], writer))
        finally:
            writer.close()
            graded[1].close()

    with tempfile.TemporaryDirectory(prefix="clawctl-") as directory:
        inner, outer = Path(directory) / "graded.sock", Path(directory) / "tests.sock"
        separation = Separation(outer)
        servers = [await asyncio.start_unix_server(arrive, inner), await asyncio.start_unix_server(connect, outer)]
        for path in (inner, outer):
            os.chmod(path, 0o666)  # the sandboxes run as separate users
        try:
            async with open_linked(inner, folder, replace(limits, network=False), programs) as sandbox:
                await sandbox.put(code)
                sandbox.define(variables)
                serving = asyncio.create_task(_serve(sandbox, limits.seconds, waiting))
                try:
                    yield separation
                finally:
                    serving.cancel()
                    with suppress(asyncio.CancelledError):
                        await serving
        finally:
            for server in servers:
                server.close()
            for writer in opened:
                writer.close()


@asynccontextmanager
async def open_linked(
    socket: Path, folder: str, limits: Limits, fixed: Mapping[str, bytes], packages: tuple[str, ...] = ()
) -> AsyncIterator[Sandbox]:
    """A sandbox in which `crossing.py` finds the socket."""
    is_confined = kind_of(limits).is_confined
    async with open_sandbox(folder, limits, fixed, packages, socket if is_confined else None) as sandbox:
        if not is_confined:
            sandbox.define({"CLAWCTL_SOCKET": str(socket)})
        yield sandbox


async def _serve(
    sandbox: Sandbox, seconds: float, waiting: "asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter] | None]"
) -> None:
    with suppress(SandboxOver):
        await sandbox.run([sandbox.kind.python(), *sandbox.kind.test_options(), f"{TOOLS}/graded_code.py"], seconds)
    await waiting.put(None)


def test_programs(kind: SandboxKind, tests: Sequence[str], folders: Sequence[str], languages: Collection[str]) -> dict[str, bytes]:
    """The programs of the sandbox of the tests, by path.

    `tests` are files and folders of tests among the graded code. `folders` are shared by both sandboxes. `languages` are those of
    the graded code.
    """
    python = kind.python()
    names = (
        "run_tests.py", "finder.py", "remote_modules.py", "stand_ins.py", "crossing.py", "boundary.py", "interpreters.py",
        "interpreter.py",
        "graded_program.py", "functions.sh", "numbers_in_shell.py",
    )  # fmt: skip
    given = {"tests": list(tests), "folders": list(folders), "languages": sorted(languages)}
    texts = {name: f'{python} -I -S {TOOLS}/interpreter.py {name} "$@"\n' for name in _started(kind)}
    texts["graded"] = f'{python} -I -S {TOOLS}/graded_program.py "$@"\n'
    return {f"{TOOLS}/{name}": inside(name) for name in names} | {
        f"{TOOLS}/tests.json": json.dumps(given).encode(),
        f"{TOOLS}/python/sitecustomize.py": inside("sitecustomize.py"),
        # An unreadable copy, so other processes of its user cannot access its memory
        f"{TOOLS}/shell": Path("/bin/bash").read_bytes(),
        **{f"{TOOLS}/bin/{name}": f"#!/bin/bash -p\nunset BASH_ENV\nexec {text}".encode() for name, text in texts.items()},
    }


def _started(kind: SandboxKind) -> list[str]:
    """The programs that `interpreter.py` starts. An image may have others than this machine."""
    names = (*SHELLS, *FILTERS, *RUNNERS, *BUILDERS, *OTHERS, *EDITORS)
    is_local = kind.name == "bubblewrap"
    return ["python", "python3", "eval", "source", "sudo", *(name for name in names if not is_local or shutil.which(name))]
