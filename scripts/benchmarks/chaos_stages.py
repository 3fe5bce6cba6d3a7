"""Runs the stages of a run as separate processes that can be killed and restarted."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from clawctl.launch.up import command
from clawctl.run.directory import RunDir
from clawctl.run.notes import keys_with_notes

READY = {  # the log line of a stage that is ready; judge logs none and needs no model
    "serve": b"/v1 serves",
    "collect": b"side rules version",
    "train": b" from version ",
}
VICTIMS = ("serve", "collect", "collect", "judge", "train", "train", "all")  # in a new random order each time
_JUDGE_STARTS_S = 2.0
_LONGEST_START_S = 120.0


class Process(Protocol):
    """What a stage runs in, such as a `subprocess.Popen`."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...


Begin = Callable[[list[str], Path], Process]  # a command line, and the file that its output is appended to


def begin_process(command: list[str], log: Path) -> Process:
    """Start a command in a session of its own."""
    with log.open("ab") as output:
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True, env=env)


class Stage:
    """One `clawctl STAGE` in its own process group. `log` contains the stderr of all its starts."""

    def __init__(
        self, name: str, run: RunDir, recipe: Path, port: int = 0, program: list[str] | None = None, begin: Begin = begin_process
    ) -> None:
        """`port` is the port of `serve`. `program` is the command line of a process that is no stage. `begin` starts it."""
        self.name, self.log = name, run.root.parent / f"{name}.log"
        self.starts, self.ended_alone = 0, 0
        self._command = program or command(name, run, recipe, "info") + (["--port", str(port)] if name == "serve" else [])
        self._begin = begin
        self._process: Process | None = None
        self._began, self._log_before = 0.0, 0

    def start(self) -> None:
        self.log.touch()
        self._log_before = self.log.stat().st_size
        self._process = self._begin(self._command, self.log)
        self.starts += 1
        self._began = time.monotonic()

    @property
    def pid(self) -> int:
        """The process id, or 0 if the stage is not running."""
        return 0 if self._process is None else self._process.pid

    def ready(self) -> bool:
        if self.name not in READY:
            return time.monotonic() - self._began > _JUDGE_STARTS_S
        with self.log.open("rb") as log:
            log.seek(self._log_before)
            return READY[self.name] in log.read()

    def wait_ready(self) -> None:
        """Wait until the stage is ready. Raises SystemExit if it does not start."""
        while not self.ready():
            self.keep_up()
            if time.monotonic() - self._began > _LONGEST_START_S:
                raise SystemExit(f"{self.name} did not start: {self.tail()}")
            time.sleep(0.05)

    def keep_up(self) -> None:
        """Restart the stage if it ended without being killed, and count that. Raises SystemExit if the stage refuses its recipe."""
        if self._process is None or self._process.poll() is None:
            return
        self.ended_alone += 1
        print(f"{self.name} ended by itself with code {self._process.poll()}: {self.tail()}", flush=True)
        if self._process.poll() == 2:
            raise SystemExit(f"{self.name} refuses to start")
        self.start()

    def kill(self) -> None:
        """Send SIGKILL to the stage and all its child processes."""
        self._signal(signal.SIGKILL)

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL if the stage has not ended after a minute."""
        self._signal(signal.SIGTERM, 60.0)

    def _signal(self, number: signal.Signals, patience_s: float = 10.0) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.ended_alone += 1
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def tail(self) -> str:
        return self.log.read_bytes()[-2000:].decode(errors="replace")


class Killer:
    """Chooses which stages are killed and when. The seed determines both, up to the timing of the machine."""

    def __init__(self, run: RunDir, stages: dict[str, Stage], seed: int, victims: Sequence[str] = VICTIMS) -> None:
        self._stages, self._dice, self._left, self._victims = stages, random.Random(f"killer {seed}"), list[str](), victims
        self._folders = {  # the folders in which a stage publishes; a kill may interrupt a write there
            "serve": [run.captures, run.feedback],
            "collect": [run.trajectories, run.root],
            "judge": [run.verdicts],
            "train": [run.train / "checkpoints", run.train / "ledger", run.train, run.policies],
            "eval": [run.eval, run.policies],
            "practice": [run.episodes, *(run.notes / key for key in keys_with_notes(run))],
        }

    def round(self) -> str:
        """Kill one stage or all stages and restart them. Returns a description of the kill."""
        if not self._left:
            self._left = self._dice.sample(self._victims, len(self._victims))
        victim = self._left.pop()
        names = list(self._stages) if victim == "all" else [victim]
        how = self._dice.choice(["while it works", "while it works", "as it writes", "as it writes", "as it starts"])
        aimed_at = self._dice.choice(names)
        if how != "as it starts":
            self._stages["serve"].wait_ready()  # otherwise there is no load
            self._stages[aimed_at].wait_ready()
        if how == "as it writes":
            self._await_write(aimed_at)
        elif how == "while it works":
            time.sleep(self._dice.uniform(0, 2))
        else:
            time.sleep(self._dice.uniform(0, 0.5))
        for name in names:
            self._stages[name].kill()
        time.sleep(self._dice.choice([0.0, self._dice.uniform(0, 1)]))
        for name in names:
            self._stages[name].start()
        return f"{victim} {how}" + (f" ({aimed_at})" if victim == "all" else "")

    def _await_write(self, name: str) -> None:
        """Wait until the stage creates or renames a file, or for a few seconds, and then for a short random time.

        The random time lets the kill hit any part of the write. Changes are detected by the folder's modification time, which is
        cheap to read.
        """
        folders = [folder for folder in self._dice.sample(self._folders[name], 1) if folder.exists()]
        before, deadline = changed(folders), time.monotonic() + self._dice.uniform(2, 4)
        while changed(folders) == before and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(self._dice.expovariate(1 / 0.01))


def changed(folders: list[Path]) -> list[int]:
    return [folder.stat().st_mtime_ns for folder in folders]


def wait_until(condition: Callable[[], bool], seconds: float, stages: list[Stage]) -> bool:
    """Whether `condition` becomes true within `seconds`. Stages that end without being killed are restarted meanwhile."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        for stage in stages:
            stage.keep_up()
        time.sleep(0.5)
    return True
