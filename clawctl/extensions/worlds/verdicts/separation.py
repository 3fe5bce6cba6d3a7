"""Two sandboxes for one verdict: tests run in one, and the graded code in the other, from where it reaches nothing of the tests.

What the tests ask of the graded code crosses between them as plain data (`crossing.py`).
"""

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from clawctl.extensions.worlds.sandbox import TOOLS, Limits, Sandbox, SandboxOver, kind_of, open_sandbox
from clawctl.extensions.worlds.verdicts import inside

PYTEST = ("pytest", "_pytest", "pluggy", "py", "iniconfig", "packaging", "pygments")


@asynccontextmanager
async def open_graded(
    code: bytes, folder: str, limits: Limits, variables: Mapping[str, str] = MappingProxyType({})
) -> AsyncIterator[Path]:
    """Unpack the code in a sandbox of its own, and run it for whoever connects to the socket that is yielded.

    Raises SandboxFailed, and ValueError if the code does not fit.
    """
    programs = {f"{TOOLS}/{name}": inside(name) for name in ("graded_code.py", "crossing.py")}
    waiting: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter] | None] = asyncio.Queue()
    opened: list[asyncio.StreamWriter] = []

    async def arrive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        await waiting.put((reader, writer))

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        graded = await waiting.get()
        if graded is None:
            writer.close()
            waiting.put_nowait(None)  # the graded code has ended, for all that follow as well
            return
        try:
            await asyncio.gather(_relay(reader, graded[1]), _relay(graded[0], writer))
        finally:
            writer.close()
            graded[1].close()

    with tempfile.TemporaryDirectory(prefix="clawctl-") as place:
        inner, outer = Path(place) / "graded.sock", Path(place) / "tests.sock"
        servers = [await asyncio.start_unix_server(arrive, inner), await asyncio.start_unix_server(connect, outer)]
        for path in (inner, outer):
            os.chmod(path, 0o666)  # the sandboxes run as separate users
        try:
            async with open_linked(inner, folder, replace(limits, network=False), programs) as sandbox:
                await sandbox.put(code)
                sandbox.define(variables)
                serving = asyncio.create_task(_serve(sandbox, limits.seconds, waiting))
                try:
                    yield outer
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


async def _relay(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
        if target.can_write_eof():
            target.write_eof()


def test_programs(tests: Sequence[str]) -> Mapping[str, bytes]:
    """The programs of the sandbox of the tests, by path. `tests` are files and folders of tests among the graded code."""
    names = ("run_tests.py", "remote_modules.py", "crossing.py")
    return {f"{TOOLS}/{name}": inside(name) for name in names} | {f"{TOOLS}/tests.json": json.dumps(list(tests)).encode()}
