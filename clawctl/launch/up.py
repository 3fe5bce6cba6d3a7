"""Runs all stages under one parent: restarts failed stages, merges their logs, and stops them all on Ctrl-C.

Each stage is an ordinary `clawctl STAGE` process in its own process group, so the others continue if one is killed. If the parent
itself is killed, the kernel kills the stages with it (Linux: the parent-death signal). Nothing is lost, because every stage can be
killed at any moment.
"""

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import orjson
from rich.console import Console
from rich.text import Text

from clawctl.backoff import backoff_s
from clawctl.config import Recipe, TrainerConfig
from clawctl.config.environment import environment_with
from clawctl.errors import ClawError
from clawctl.http_client import RequestFailed, fetch
from clawctl.launch import free_port
from clawctl.launch.status import LiveStatus
from clawctl.printing import plain
from clawctl.process import die_with_parent, hidden
from clawctl.run.checksums import read_object
from clawctl.run.directory import RunDir, sole_worker
from clawctl.run.endpoint import one_version_error, unserved_versions
from clawctl.run.names import open_to_append

_GRACE_S = 20.0  # between SIGTERM and SIGKILL
_SAME_S = 0.1  # signals within this interval count as one, because `timeout` and other tools signal a process and then its group
_LOOK_S = 0.5  # between looks whether the server is ready
_APART_S = 2.0  # between the starts of stages beside a first answer: each imports for a second or two
_PAGE_LOOKS = 20  # for the link to the pages, once the server is ready
_LONGEST_WAIT_S = 60.0
_STEADY_S = 60.0  # after this running time, the restart delay begins at its first value again
_LONGEST_LINE = 4000
_COLOURS = {
    "serve": "cyan", "collect": "green", "play": "bright_green", "judge": "yellow", "train": "magenta", "eval": "blue",
    "page": "bright_black", "practice": "bright_magenta", "up": "white",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Company:
    """What `clawctl start` adds to the stages."""

    page_port: int  # the pages of the run are served there; 0: any free port
    greeting: Callable[[str | None], str]  # the text to print when the server is ready, from the link to the pages, if they run
    parent: int  # process id; if it is no longer the parent, its end has ended everything


def up(run: RunDir, recipe: Recipe, recipe_path: Path, log_level: str, live: bool = False, company: Company | None = None) -> None:
    """Run the stages of `recipe.up.stages` until they are finished or a signal stops them. With `live`, stdout is a terminal and
    shows their status instead of their log. Raises ClawError if a stage refuses its recipe (exit code 2); such a stage is not
    restarted."""
    check_stages(recipe)
    with sole_worker(run, "up"), _log_file(run.log("up")) as file:
        status = LiveStatus(run) if live else None
        log = MergedLog(file, status)
        later = starts_later(recipe, company is not None)
        children = [
            Child(stage, command(stage, run, recipe_path, log_level), run, recipe, log, later.get(stage))
            for stage in recipe.up.stages
        ]
        beside: list[Coroutine[Any, Any, None]] = []
        port = company.page_port if company is not None else recipe.up.page_port
        if port is not None:
            arguments = ["inspect", "web", "--run", str(run.root), "--port", str(free_port(port))]
            page = Child("page", [sys.executable, "-P", "-m", "clawctl", *arguments], run, recipe, log)
            beside = [_greet(run, page, company.greeting, log) if company is not None else _show_links(page, log)]
            children.append(page)
        if company is not None:
            beside.append(_until_orphaned(company.parent))
        with status.follow(children) if status is not None else contextlib.nullcontext():
            asyncio.run(_supervise(children, log, beside))


def starts_later(recipe: Recipe, greets: bool) -> dict[str, float]:
    """The stages that start when serve is ready, each with its seconds after that. An engine measures what is free on its GPU while
    it starts, so the trainer waits. If a person is greeted, nobody needs the other stages before the first answer, which they would
    delay on a small machine."""
    if "serve" not in recipe.up.stages:
        return {}
    others = [stage for stage in recipe.up.stages if stage != "serve"]
    return {stage: _APART_S * place for place, stage in enumerate(others, 1)} if greets else {"train": 0.0}


async def _greet(run: RunDir, page: "Child", greeting: Callable[[str | None], str], log: "MergedLog") -> None:
    """Print the greeting when the server accepts requests."""
    while not await asyncio.to_thread(_is_ready, run):
        await asyncio.sleep(_LOOK_S)
    for _ in range(_PAGE_LOOKS):
        if link := _link_of(page):
            break
        await asyncio.sleep(_LOOK_S)
    log.show(await asyncio.to_thread(greeting, link))
    await _show_links(page, log, link)


async def _show_links(page: "Child", log: "MergedLog", shown: str | None = None) -> None:
    """Print the link to the pages, which is another one after each of their starts."""
    while True:
        link = _link_of(page)
        if link not in (None, shown):
            log.show(f"pages       {link}")
            shown = link
        await asyncio.sleep(_LOOK_S)


def _link_of(page: "Child") -> str | None:
    return next((line for line in page.last_lines if line.startswith("http")), None)


async def _until_orphaned(parent: int) -> None:
    while os.getppid() == parent:
        await asyncio.sleep(_LOOK_S)


def check_stages(recipe: Recipe) -> None:
    """Check that the stages of `up.stages` fit together. Raises ClawError (exit code 2)."""
    if recipe.gate is not None and "eval" not in recipe.up.stages:
        missing = "go live" if recipe.waits_for_gate else "be checked"
        raise ClawError(
            f"the recipe has a gate, but up.stages lacks eval, so no new version would {missing}", "add eval to up.stages", 2
        )
    if "play" in recipe.up.stages and recipe.play.env is None:
        raise ClawError("up.stages has play, but the recipe names no environment", "set play.env", 2)
    if {"judge", "train"} <= set(recipe.up.stages) and (unserved := unserved_versions(recipe)):
        raise one_version_error(unserved)


def up_one(run: RunDir, recipe: Recipe, recipe_path: Path, stage: str, log_level: str) -> None:
    """Run one stage as `up` does, as a job of `--on`. Its output goes to stderr, without secrets. Raises ClawError."""
    log = MergedLog()
    argv = [*command(stage, run, recipe_path, log_level), *(trainer_options(recipe.machines.train) if stage == "train" else [])]
    asyncio.run(_supervise([Child(stage, argv, run, recipe, log)], log))


def check_is_shared(run_root: Path, launch_id: str | None) -> None:
    """Called in a job. Raises ClawError (exit code 2) if this machine does not see the run directory that the jobs were submitted
    for."""
    if launch_id is None:
        return
    cure = "put the run directory on a filesystem that all machines mount at the same path (NFSv4, Lustre, a shared volume)"
    run = RunDir(run_root)
    record = read_object(run.launch) if run.marker.exists() else None
    if not record or record.get("id") != launch_id:
        what = "another run directory of this name" if record else "no run directory"
        raise ClawError(f"{socket.gethostname()} has {what} in {run_root}", cure, 2)


def trainer_options(machine: TrainerConfig) -> list[str]:
    """The options with which `clawctl train` uses the resources from the scheduler."""
    if machine.gpus * machine.nodes > 1:
        return ["--gpus", "all"]
    return ["--processes", "1"] if machine.nodes > 1 else []


def _log_file(path: Path) -> TextIO:
    try:
        return os.fdopen(open_to_append(path), "a")
    except OSError as error:
        raise ClawError(
            f"{path} cannot be written: {error}", "remove what is there now; it must be a regular file, not a link"
        ) from error


def command(stage: str, run: RunDir, recipe_path: Path, log_level: str) -> list[str]:
    shared = ["--run", str(run.root), "--recipe", str(recipe_path.resolve()), "--log-level", log_level]
    return [sys.executable, "-P", "-m", "clawctl", stage, *shared, *(["--intercept"] if stage == "serve" else [])]


class MergedLog:
    """The lines of all stages, each with its stage in front, on stderr (in colour on a terminal) and in `RUN/logs/up.log`. With a
    `status`, the status view shows the important lines instead of stderr. No secret is written to a stderr that is no terminal,
    such as a file or systemd's journal."""

    def __init__(self, file: TextIO | None = None, status: LiveStatus | None = None):
        self._file, self._status = file, status
        self._console = Console(stderr=True, soft_wrap=True, highlight=False)

    def show(self, text: str) -> None:
        """Print `text` on stdout as it is, and in no file."""
        with contextlib.suppress(OSError):
            console = Console() if self._status is None else self._status.console
            console.print(text, markup=False, highlight=False, soft_wrap=True)

    def write(self, stage: str, line: str) -> None:
        text = plain(line, _LONGEST_LINE) if sys.stderr.isatty() else hidden(plain(line, _LONGEST_LINE))
        with contextlib.suppress(OSError):  # a full disk or a closed terminal must not stop the stages
            if self._status is not None:
                self._status.take_line(stage, text)
            else:
                self._console.print(Text(f"{stage:>8} | ", style=_COLOURS[stage]) + Text(text))
        with contextlib.suppress(OSError):  # a key that serve shows once is shown on the terminal only
            if self._file is None:
                return
            self._file.write(f"{time.strftime('%H:%M:%S')} {stage:>8} | {hidden(text)}\n")
            self._file.flush()


class Child:
    """One stage: its process, and its number of starts."""

    def __init__(
        self, stage: str, command: list[str], run: RunDir, recipe: Recipe, log: MergedLog, after_serve_s: float | None = None
    ) -> None:
        self.after_serve_s = after_serve_s  # it starts so long after serve is ready; None: at once
        self.stage, self.command, self.run, self.recipe, self.log = stage, command, run, recipe, log
        self.process: asyncio.subprocess.Process | None = None
        self.last_pid: int | None = None
        self.last_lines: deque[str] = deque(maxlen=6)
        self.stopping = self.finished = False
        self.starts, self.began = 0, 0.0

    @property
    def runs(self) -> bool:
        return self.process is not None

    async def supervise(self) -> None:
        """Run the stage and restart it whenever it dies, until it is finished or `stopping`. Raises ClawError if it refuses its
        recipe."""
        failures = 0  # consecutive
        while True:
            if self.after_serve_s is not None:
                await self._wait_for_server(self.after_serve_s)
            if self.stopping:
                return
            self.began, self.starts = time.monotonic(), self.starts + 1
            code = await self._run_once()
            if self.stopping:
                return
            if code == 2:
                raise self._refusal()
            if code == 0 and self.stage == "train" and self.recipe.train.max_steps is not None:
                self.log.write("up", "train has finished all steps")
                self.finished = True
                return
            if code == 0 and self.stage == "play":
                self.log.write("up", "play has ended")
                self.finished = True
                return
            failures = 1 if time.monotonic() - self.began >= _STEADY_S else failures + 1
            first_s = self.recipe.up.backoff_s
            wait_s = backoff_s(failures, first_s, max(first_s, _LONGEST_WAIT_S))
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            self.log.write("up", f"{self.stage} {how}; it will be restarted in {wait_s:g} s")
            await asyncio.sleep(wait_s)

    async def _wait_for_server(self, then_s: float) -> None:
        """Wait until serve is ready, and `then_s` longer."""
        said = False
        while not self.stopping and not await asyncio.to_thread(_is_ready, self.run):
            if not said:
                self.log.write("up", f"{self.stage} starts when serve is ready")
                said = True
            await asyncio.sleep(_LOOK_S)
        if said:
            await asyncio.sleep(then_s)

    async def _run_once(self) -> int:
        self.last_lines.clear()
        self.process = await asyncio.create_subprocess_exec(
            *self.command,
            *self._same_port(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=environment_with({"PYTHONUNBUFFERED": "1", "CLAWCTL_UP": "1"}),
            start_new_session=True,
            preexec_fn=die_with_parent(),
        )
        if self.stopping:  # since the process was ordered
            self.signal(signal.SIGTERM)
        self.last_pid = self.process.pid
        self.log.write("up", f"{self.stage} runs as process {self.last_pid}")
        reading = asyncio.create_task(self._read(self.process))
        try:
            code = await self.process.wait()
            await asyncio.wait({reading}, timeout=1)  # a grandchild may hold the pipe open indefinitely
        finally:
            reading.cancel()
            self.signal(signal.SIGKILL)  # processes that the stage itself started
            self.process = None
        return code

    def _same_port(self) -> list[str]:
        """The option that keeps an assigned port after a restart of the server, because its clients know no other port."""
        if self.stage != "serve" or self.recipe.serve.port != 0 or self.last_pid is None:
            return []
        try:
            announced = orjson.loads(self.run.server.read_bytes())
            return ["--port", re.findall(r":(\d+)/", announced["url"])[-1]] if announced["pid"] == self.last_pid else []
        except (OSError, LookupError, orjson.JSONDecodeError):
            return []

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        partial_line = b""
        while chunk := await process.stdout.read(65536):
            *lines, partial_line = re.split(rb"[\r\n]+", partial_line + chunk)
            if len(partial_line) > _LONGEST_LINE:
                lines, partial_line = [*lines, partial_line], b""
            for line in lines:
                self._log_line(line)
        self._log_line(partial_line)

    def _log_line(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        if text:
            self.last_lines.append(text.strip())
            self.log.write(self.stage, text)

    def _refusal(self) -> ClawError:
        output = " ".join(list(self.last_lines)[-2:]) or "it printed nothing"
        return ClawError(f"{self.stage} refuses to start: {plain(output)}", "fix the recipe, then run `clawctl up` again", 2)

    def signal(self, number: int) -> None:
        """Send a signal to the stage's process group. A group that has already ended is ignored."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)


def _is_ready(run: RunDir) -> bool:
    """Whether the server that announced itself accepts requests."""
    try:
        url = str(orjson.loads(run.server.read_bytes())["url"])
        return fetch("GET", f"{url.removesuffix('/v1')}/health/ready", timeout_s=_LOOK_S * 10).status == 200
    except (OSError, LookupError, orjson.JSONDecodeError, RequestFailed):
        return False


async def _supervise(children: list[Child], log: MergedLog, beside: Sequence[Coroutine[Any, Any, None]] = ()) -> None:
    """Keep the children running until all are finished, one refuses its recipe, a signal arrives, or one of `beside` ends."""
    stop_signals = [asyncio.Event(), asyncio.Event()]  # first signal: stop cleanly; second: kill
    loop, first = asyncio.get_running_loop(), 0.0

    def on_signal() -> None:
        nonlocal first
        if not stop_signals[0].is_set():
            first = loop.time()
            stop_signals[0].set()
        elif loop.time() - first > _SAME_S:
            stop_signals[1].set()

    ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()  # by nohup
    for number in {signal.SIGINT, signal.SIGTERM, signal.SIGHUP} - ignored:
        loop.add_signal_handler(number, on_signal)
    keeping = {asyncio.create_task(child.supervise()) for child in children}
    stops = {asyncio.create_task(stop_signals[0].wait()), *map(asyncio.create_task, beside)}
    try:
        pending = set(keeping)
        while pending and not any(task.done() for task in stops):
            done, _ = await asyncio.wait({*pending, *stops}, return_when=asyncio.FIRST_COMPLETED)
            pending -= done
            for task in done:
                task.result()  # a refusal stops everything
    finally:
        await _stop(children, keeping, stop_signals[1], log)
        for task in stops:
            task.cancel()


async def _stop(children: list[Child], keeping: set[asyncio.Task[None]], at_once: asyncio.Event, log: MergedLog) -> None:
    running = [child for child in children if child.process is not None]
    if running:
        log.write("up", f"stopping {', '.join(child.stage for child in running)}")
    for child in children:
        child.stopping = True
        child.signal(signal.SIGTERM)
    ended = asyncio.create_task(_all_ended(children))
    kill_signal = asyncio.create_task(at_once.wait())
    await asyncio.wait({ended, kill_signal}, timeout=_GRACE_S, return_when=asyncio.FIRST_COMPLETED)
    for child in (child for child in children if child.process is not None):
        log.write("up", f"{child.stage} did not stop in time and is killed")
        child.signal(signal.SIGKILL)
    await ended
    for task in (*keeping, kill_signal):
        task.cancel()  # children that were waiting to restart their stage
    await asyncio.gather(*keeping, kill_signal, return_exceptions=True)


async def _all_ended(children: list[Child]) -> None:
    while any(child.process is not None for child in children):
        await asyncio.sleep(0.05)
