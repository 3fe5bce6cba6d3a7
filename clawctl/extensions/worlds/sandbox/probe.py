"""Attempts to break out of the sandbox. They run before a process's first episode and in `clawctl doctor`."""

import asyncio
import json
import os
import secrets
import socket
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from weakref import WeakKeyDictionary

from clawctl.errors import ClawError
from clawctl.extensions.worlds.sandbox import Limits, Sandbox, SandboxKind, SandboxOver, kind_of, open_sandbox

ATTEMPTS = ("files", "network", "processes", "memory", "disk", "proc", "signals", "outlive", "keys", "calls")
_LIMITS = Limits(seconds=300, memory=192 << 20, disk=16 << 20, files=2000, processes=24)
_ENDS_S = 10.0  # of the sixty that the process would sleep
_INSIDE = Path(__file__).parent / "attempts.py"
_PLACES = ("/", "/home", "/root", "/var", "/srv", "/mnt", "/run", "/etc/shadow", "/etc/machine-id", "/var/run/docker.sock")
_tries = WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Task[dict[str, bool]]]]()
_found: dict[str, dict[str, bool]] = {}  # results by kind of sandbox


async def verify_sandbox(limits: Limits | None = None) -> None:
    """Prepare this kind of sandbox, and try to break out of it once per process. Raises ClawError if an attempt succeeds."""
    kind = kind_of(limits or Limits())
    await asyncio.to_thread(kind.prepare)
    if not kind.is_confined:
        return
    if kind.name not in _found:
        tries = _tries.setdefault(asyncio.get_running_loop(), {})  # concurrent episodes share one probe
        if kind.name not in tries or tries[kind.name].done():
            tries[kind.name] = asyncio.create_task(attempt_escapes(kind))
        _found[kind.name] = await asyncio.shield(tries[kind.name])
    escaped = [name for name, got_out in _found[kind.name].items() if got_out]
    if escaped:
        cure = "run clawctl as an ordinary user on Linux 5.14 or newer, or as root where control groups can be made"
        raise ClawError(f"the sandbox of {kind.name} does not hold on this machine: {', '.join(escaped)}", cure)


async def attempt_escapes(kind: SandboxKind | None = None) -> dict[str, bool]:
    """Try to break out. Returns, for each attempt, whether it succeeded. Takes about two seconds."""
    if kind is not None and not kind.is_confined:
        raise ValueError(f"the attempts end all processes that they can reach, and {kind.name} confines nothing")
    marker = f"clawctl-{secrets.token_hex(8)}"
    os.environ[marker] = "1"
    victim = await asyncio.create_subprocess_exec(sys.executable, "-P", "-c", "import time; time.sleep(600)", marker)
    try:
        with tempfile.TemporaryDirectory() as folder, socket.socket() as server:
            secret = Path(folder) / "secret"
            secret.write_text(marker)
            os.chmod(folder, 0o755)
            server.bind(("127.0.0.1", 0))
            server.listen()
            hidden = socket.socket(socket.AF_UNIX)
            hidden.bind(f"\0{marker}")
            hidden.listen()
            with hidden:
                facts = {
                    "file": str(secret), "port": server.getsockname()[1], "marker": marker, "victim": victim.pid,
                    "memory": _LIMITS.memory, "disk": _LIMITS.disk, "processes": _LIMITS.processes, "host": _identities(),
                }  # fmt: skip
                async with open_sandbox(limits=replace(_LIMITS, kind=kind)) as sandbox:
                    escaped = {name: await _attempt(sandbox, name, facts) for name in ATTEMPTS if name != "outlive"}
                    await sandbox.run(f"setsid bash -c 'exec -a {marker}-late sleep 60' >/dev/null 2>&1 & setsid sleep 60 &")
                    alive = (await sandbox.run("echo alive")).output == "alive\n"
        escaped["outlive"] = await _outlives(f"{marker}-late")
        escaped["signals"] |= not alive or victim.returncode is not None or not _is_running(marker)
        return escaped
    finally:
        del os.environ[marker]
        if victim.returncode is None:
            victim.kill()
        await victim.wait()


async def _outlives(marker: str) -> bool:
    """Whether the process is still there a while after its sandbox. On a busy machine the kernel needs a moment to end it."""
    end = time.monotonic() + _ENDS_S
    while _is_running(marker) and time.monotonic() < end:
        await asyncio.sleep(0.1)
    return _is_running(marker)


async def _attempt(sandbox: Sandbox, name: str, facts: dict[str, object]) -> bool:
    """Whether the attempt escaped. It did not if a limit ended it."""
    try:
        command = [sandbox.kind.python(), "-I", "-c", _INSIDE.read_text(), name, json.dumps(facts)]
        ran = await sandbox.run(command, timeout=30, environment={"PYTHONUNBUFFERED": "1"})
    except SandboxOver:
        return False
    return "ESCAPED" in ran.output


def _is_running(text: str) -> bool:
    """Whether a process on this machine has this text in its command line."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                if text.encode() in (folder / "cmdline").read_bytes():
                    return True
    return False


def _identities() -> list[list[int]]:
    """Device and inode numbers of host files and folders. No file in a sandbox may have them."""
    identities = []
    for path in (*_PLACES, os.getcwd(), os.path.expanduser("~")):
        with suppress(OSError):
            status = os.stat(path)
            identities.append([status.st_dev, status.st_ino])
    return identities
