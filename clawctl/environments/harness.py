"""An agent of somebody else's, run as a command in the sandbox. It reaches its episode's address and nothing else."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from clawctl.environments.agent import Worked
from clawctl.environments.sandbox import Sandbox, SandboxFailed, SandboxOver
from clawctl.environments.sandbox.bubblewrap import TOOLS, python
from clawctl.environments.sandbox.forward import PORT
from clawctl.errors import ClawError
from clawctl.run.endpoint import Endpoint

FORWARD = f"{TOOLS}/forward.py"
_MOST_CONNECTIONS = 32


def forward_program() -> bytes:
    return (Path(__file__).parent / "sandbox" / "forward.py").read_bytes()


@asynccontextmanager
async def way_out(endpoint: Endpoint) -> AsyncIterator[Path]:
    """A unix socket that leads to the server of `endpoint`. Raises ClawError if the endpoint needs headers of its own."""
    parts = urlsplit(endpoint.url)
    if "/e/" not in parts.path:
        raise ClawError("a harness needs the address of an episode", "play it with `clawctl collect --env`")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    room = asyncio.Semaphore(_MOST_CONNECTIONS)

    async def carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(1 << 16):
                target.write(data)
                await target.drain()
            if target.can_write_eof():
                target.write_eof()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with room:
            try:
                from_model, to_model = await asyncio.open_connection(parts.hostname, port, ssl=parts.scheme == "https" or None)
            except OSError:
                writer.close()
                return
            try:
                await asyncio.gather(carry(reader, to_model), carry(from_model, writer))
            finally:
                writer.close()
                to_model.close()

    with tempfile.TemporaryDirectory(prefix="clawctl-") as folder:
        path = Path(folder) / "model.sock"
        server = await asyncio.start_unix_server(pass_on, path)
        os.chmod(path, 0o666)  # the sandbox has a user of its own
        try:
            yield path
        finally:
            server.close()


async def run_harness(command: str, endpoint: Endpoint, sandbox: Sandbox, instruction: str, seconds: float) -> Worked:
    """Run the command until it ends. The variables say where the model is, and what is to be done. Raises SandboxFailed."""
    root = f"http://127.0.0.1:{PORT}{urlsplit(endpoint.url).path.removesuffix('/v1')}"
    told = {"OPENAI_BASE_URL": f"{root}/v1", "OPENAI_API_BASE": f"{root}/v1", "OPENAI_API_KEY": endpoint.api_key}
    told |= {"ANTHROPIC_BASE_URL": root, "ANTHROPIC_API_KEY": endpoint.api_key, "MODEL": endpoint.model, "INSTRUCTION": instruction}
    try:
        opened = await sandbox.run([python(), "-I", "-S", FORWARD], timeout=20)
        if opened.code != 0:
            raise SandboxFailed(f"the way to the model could not be opened: {opened.output[-300:]}")
        ran = await sandbox.run(command, seconds, environment=told)
    except SandboxOver as error:
        return Worked("time", str(error))
    if ran.code == 127:
        raise ClawError(
            f"the harness is not in the sandbox: {ran.output[-200:].strip()}", "name the folder of its program in the option see"
        )
    return Worked("time" if ran.timed_out else "done", ran.output[-2000:])
