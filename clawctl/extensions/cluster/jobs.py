"""`clawctl up --on`: submits the stages as jobs, follows them, and stops them. `RUN/launch.json` records the jobs.

The jobs continue if the process that follows them ends. Running the same command again submits only the stages whose job has ended.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from uuid import uuid4

import orjson
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.extensions.cluster.plan import Job, plan_jobs
from clawctl.extensions.cluster.schedulers import ENDED, JobState, Scheduler
from clawctl.launch.status import facts_of_run
from clawctl.printing import one_line, plain
from clawctl.run.checksums import read_object, sealed
from clawctl.run.directory import RunDir, claimed, publish_bytes
from clawctl.run.mounts import refuse_in_bucket

_POLL_S = 5.0
_TAIL = 2000  # characters of a failed job's output
_LOCAL = frozenset(["ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "ramfs"])


@dataclass(frozen=True, slots=True)
class LaunchedJob:
    """A stage's job in its last known state."""

    stage: str
    ids: list[str]
    needs: str
    phase: str = "waiting"
    detail: str = ""
    starts: int | None = None

    def with_states(self, states: dict[str, JobState]) -> "LaunchedJob":
        job_states = [states[job_id] for job_id in self.ids]
        order = ("failed", "gone", "waiting", "running", "stopped", "done")
        worst = min(job_states, key=lambda state: order.index(state.phase))
        starts = None if any(state.starts is None for state in job_states) else sum(state.starts or 0 for state in job_states)
        count = sum(state.phase == worst.phase for state in job_states)
        detail = f"{count} of {len(job_states)} {worst.detail}" if len(job_states) > 1 else worst.detail
        return LaunchedJob(self.stage, self.ids, self.needs, worst.phase, detail, starts)


@dataclass(frozen=True, slots=True)
class Launch:
    """The jobs of a run."""

    id: str  # a job refuses to work in a run directory with a different launch id
    on: str  # the scheduler's name
    jobs: list[LaunchedJob]
    at: float = 0.0  # unix seconds of the last refresh

    @property
    def ended(self) -> bool:
        return all(job.phase in ENDED for job in self.jobs)


def read_launch(run: RunDir) -> Launch:
    """The recorded jobs; none if no jobs were submitted for this run. Raises ClawError."""
    record = read_object(run.launch)
    if not record:
        return Launch("", "", [])
    try:
        return Launch(record["id"], record["on"], [LaunchedJob(**job) for job in record["jobs"]], record["at"])
    except (LookupError, TypeError) as error:
        cure = "stop the jobs with the scheduler's own command, then delete the file"
        raise ClawError(f"{run.launch} cannot be read: {error}", cure) from error


def _write(run: RunDir, launch: Launch) -> None:
    publish_bytes(run.launch, sealed(orjson.dumps({**asdict(launch), "at": time.time()})))


class Jobs:
    """The launcher (`clawctl.launch.Launcher`) for one scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def render(self, run: RunDir, recipe: Recipe, log_level: str) -> str:
        jobs = plan_jobs(run, recipe, self._scheduler.name, "dry-run", "", log_level)
        return "\n".join(f"# {job.stage}: {job.needs}\n{self._scheduler.render(job).rstrip()}\n" for job in jobs)

    def launch(self, run: RunDir, recipe: Recipe, named_code: str, log_level: str) -> None:
        """Submit the stages that have no job yet. Raises ClawError; the jobs that this call submitted are then stopped."""
        refuse_in_bucket(run.root, "--on", "use a run directory on a disk that all machines mount")
        with claimed(run, "launch") as owned:
            if not owned:
                raise ClawError(f"another `clawctl up --on` is submitting jobs for {run.root}", "wait until it has finished")
            jobs = self._unfinished(run)
            _warn_of_local_disk(run.root)
            launch = Launch(read_launch(run).id if jobs else uuid4().hex[:12], self._scheduler.name, jobs)
            planned = plan_jobs(run, recipe, launch.on, launch.id, named_code, log_level)
            submitted = self._submit(run, launch, [job for job in planned if job.stage not in {job.stage for job in jobs}])
        for job in submitted:
            print(f"{job.stage}: {launch.on} job {_short(job.ids)}, {job.needs}", file=sys.stderr)
        if not submitted:
            print(f"all stages have jobs in {launch.on} already", file=sys.stderr)

    def _unfinished(self, run: RunDir) -> list[LaunchedJob]:
        """The jobs that still run or wait. Raises ClawError (exit code 2) if they are another scheduler's."""
        previous = read_launch(run)
        if previous.on == self._scheduler.name:
            return [job for job in self._refresh(run, previous).jobs if job.phase not in ENDED]
        if not previous.ended:
            cure = f"stop them first: clawctl up --stop --run {run.root}"
            raise ClawError(f"this run already has jobs in {previous.on}", cure, 2)
        return []

    def _submit(self, run: RunDir, launch: Launch, new: Sequence[Job]) -> list[LaunchedJob]:
        run.job_output.mkdir(mode=0o700, exist_ok=True)
        _write(run, launch)  # before a job starts, because each job checks that it sees this file
        submitted: list[LaunchedJob] = []
        try:
            for job in new:
                submitted.append(LaunchedJob(job.stage, self._scheduler.submit(job), job.needs))
                _write(run, replace(launch, jobs=[*launch.jobs, *submitted]))
        except BaseException:
            self._scheduler.stop([job_id for job in submitted for job_id in job.ids]) if submitted else None
            _write(run, launch)
            raise
        return submitted

    def _refresh(self, run: RunDir, launch: Launch) -> Launch:
        """The current states of the jobs, which are also recorded."""
        states = dict(self._scheduler.states([job_id for job in launch.jobs for job_id in job.ids]))
        updated = replace(launch, jobs=[job.with_states(states) for job in launch.jobs], at=time.time())
        _write(run, updated)
        return updated

    def stop(self, run: RunDir) -> None:
        launch = self._refresh(run, read_launch(run))
        running = [job for job in launch.jobs if job.phase not in ENDED]
        if running:
            self._scheduler.stop([job_id for job in running for job_id in job.ids])
            print(f"stopping {', '.join(job.stage for job in running)}", file=sys.stderr)
            while not (launch := self._refresh(run, launch)).ended:
                time.sleep(1.0)
        print("no job is running", file=sys.stderr)

    def show(self, run: RunDir) -> None:
        Console(highlight=False).print(_table(run, self._refresh(run, read_launch(run)), ""))

    def follow(self, run: RunDir, live: bool) -> None:
        launch = read_launch(run)
        help_ = f"Ctrl-C leaves the jobs running. To stop them: clawctl up --stop --run {run.root}"
        console = Console(highlight=False)
        try:
            if live:
                with Live(console=console, get_renderable=lambda: _table(run, launch, help_), refresh_per_second=1):
                    while not (launch := self._refresh(run, launch)).ended:
                        time.sleep(_POLL_S)
            else:
                launch = self._follow_in_lines(run, launch, help_)
        except KeyboardInterrupt:
            print(f"\nthe jobs continue; stop them with: clawctl up --stop --run {run.root}", file=sys.stderr)
            return
        if failed := [job for job in launch.jobs if job.phase in ("failed", "gone")]:
            job = failed[0]
            raise ClawError(
                f"the job of {job.stage} has ended: {job.detail}{_last_output(run, job.stage)}", f"see {run.job_output}"
            )

    def _follow_in_lines(self, run: RunDir, launch: Launch, help_: str) -> Launch:
        print(help_, file=sys.stderr)
        printed: dict[str, str] = {}
        while True:
            launch = self._refresh(run, launch)
            for job in launch.jobs:
                if printed.get(job.stage) != job.detail:
                    print(f"{job.stage:>8} | {job.detail or job.phase}", file=sys.stderr, flush=True)
                    printed[job.stage] = job.detail
            if launch.ended:
                return launch
            time.sleep(_POLL_S)


_COLOUR = {"running": "green", "waiting": "yellow", "failed": "red", "gone": "red"}


def _table(run: RunDir, launch: Launch, help_: str) -> Group:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("stage", "job", "needs", "state", "starts"):
        table.add_column(heading)
    for job in launch.jobs:
        state = one_line(job.detail or job.phase, 120)
        state.stylize(_COLOUR.get(job.phase, "dim"))
        table.add_row(job.stage, _short(job.ids), job.needs, state, "" if job.starts is None else str(job.starts))
    return Group(one_line(facts_of_run(run), 400), table, *([Text(help_, "dim")] if help_ else []))


def _short(ids: Sequence[str]) -> str:
    return ids[0] if len(ids) == 1 else f"{ids[0]} … ({len(ids)})"


def _last_output(run: RunDir, stage: str) -> str:
    """The last two lines that a job of the stage printed."""
    files = sorted(run.job_output.glob(f"{stage}-*.out"), key=lambda path: path.stat().st_mtime)
    lines = plain(files[-1].read_bytes()[-_TAIL:].decode(errors="replace")).strip().splitlines() if files else []
    return f": {' '.join(line.strip() for line in lines[-2:])}" if lines else ""


def _warn_of_local_disk(root: Path) -> None:
    """Warn if the run directory is on a local disk. Jobs check this themselves, but only after they have started."""
    mounts: list[tuple[str, str]] = []
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, where, kind, *_ = line.split()
        mounts.append((where, kind))
    where, kind = max(((p, k) for p, k in mounts if root.is_relative_to(p)), key=lambda mount: len(mount[0]), default=("", ""))
    if kind in _LOCAL:
        warning = f"{root} is on {kind} ({where}), which other machines usually cannot access; jobs there will not start"
        print(f"clawctl: {warning}", file=sys.stderr)
