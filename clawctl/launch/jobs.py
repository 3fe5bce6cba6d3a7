"""`clawctl up --on`: submits the stages as jobs, follows them, and stops them. `RUN/launch.json` records the jobs.

The jobs continue if the process that follows them ends. Running the same command again submits only the stages whose job has ended.
"""

import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

import orjson
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.launch.plan import SchedulerName, plan_jobs
from clawctl.launch.schedulers import ENDED, JobState, Scheduler
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
        job_states = [states[each] for each in self.ids]
        order = ("failed", "gone", "waiting", "running", "stopped", "done")
        worst = min(job_states, key=lambda state: order.index(state.phase))
        starts = None if any(state.starts is None for state in job_states) else sum(state.starts or 0 for state in job_states)
        count = sum(state.phase == worst.phase for state in job_states)
        detail = f"{count} of {len(job_states)} {worst.detail}" if len(job_states) > 1 else worst.detail
        return LaunchedJob(self.stage, self.ids, self.needs, worst.phase, detail, starts)


def open_scheduler(name: SchedulerName) -> Scheduler:
    """The scheduler of that name. Only its own module is imported."""
    if name == "slurm":
        from clawctl.launch.slurm import Slurm

        return Slurm()
    if name == "ray":
        from clawctl.launch.ray_cluster import RayCluster

        return RayCluster()
    from clawctl.launch.sky import Sky

    return Sky()


def show_jobs(run: RunDir, recipe: Recipe, on: SchedulerName, log_level: str) -> None:
    """Print the jobs that would be submitted. Needs no scheduler and writes nothing."""
    scheduler = open_scheduler(on)
    for job in plan_jobs(run, recipe, on, "dry-run", "", log_level):
        print(f"# {job.stage}: {job.needs}\n{scheduler.render(job).rstrip()}\n")


def launch(run: RunDir, recipe: Recipe, on: SchedulerName, named_code: str, log_level: str) -> None:
    """Submit the stages that have no job yet. Raises ClawError; the jobs that this call submitted are then stopped."""
    refuse_in_bucket(run.root, "--on", "use a run directory on a disk that all machines mount")
    with claimed(run, "launch") as owned:
        if not owned:
            raise ClawError(f"another `clawctl up --on` is submitting jobs for {run.root}", "wait until it has finished")
        previous = read_launch(run)
        if previous is not None and previous.on != on and not previous.ended:
            raise ClawError(
                f"this run already has jobs in {previous.on}", f"stop them first: clawctl up --stop --run {run.root}", 2
            )
        _warn_of_local_disk(run.root)
        scheduler = open_scheduler(on)
        jobs = (
            []
            if previous is None or previous.on != on
            else [job for job in refresh(run, previous, scheduler).jobs if job.phase not in ENDED]
        )
        launch_id = previous.id if previous is not None and jobs else uuid4().hex[:12]
        new = [
            job for job in plan_jobs(run, recipe, on, launch_id, named_code, log_level) if job.stage not in {j.stage for j in jobs}
        ]
        run.job_output.mkdir(mode=0o700, exist_ok=True)
        _write(run, Launch(launch_id, on, jobs))  # before a job starts, because each job checks that it sees this file
        submitted: list[LaunchedJob] = []
        try:
            for job in new:
                submitted.append(LaunchedJob(job.stage, scheduler.submit(job), job.needs))
                _write(run, Launch(launch_id, on, [*jobs, *submitted]))
        except BaseException:
            scheduler.stop([each for job in submitted for each in job.ids]) if submitted else None
            _write(run, Launch(launch_id, on, jobs))
            raise
    for launched in submitted:
        print(f"{launched.stage}: {on} job {_short(launched.ids)}, {launched.needs}", file=sys.stderr)
    if not submitted:
        print(f"all stages have jobs in {on} already", file=sys.stderr)


@dataclass(frozen=True, slots=True)
class Launch:
    """The jobs of a run."""

    id: str  # a job refuses to work in a run directory with a different launch id
    on: SchedulerName
    jobs: list[LaunchedJob]
    at: float = 0.0  # unix seconds of the last refresh

    @property
    def ended(self) -> bool:
        return all(job.phase in ENDED for job in self.jobs)


def read_launch(run: RunDir) -> Launch | None:
    """The recorded jobs; None if no jobs were submitted for this run. Raises ClawError."""
    record = read_object(run.launch)
    if not record:
        return None
    try:
        return Launch(record["id"], record["on"], [LaunchedJob(**job) for job in record["jobs"]], record["at"])
    except (LookupError, TypeError) as error:
        cure = "stop the jobs with the scheduler's own command, then delete the file"
        raise ClawError(f"{run.launch} cannot be read: {error}", cure) from error


def _write(run: RunDir, launch: Launch) -> None:
    publish_bytes(run.launch, sealed(orjson.dumps({**asdict(launch), "at": time.time()})))


def refresh(run: RunDir, launch: Launch, scheduler: Scheduler) -> Launch:
    """The current states of the jobs, which are also recorded."""
    states = dict(scheduler.states([each for job in launch.jobs for each in job.ids]))
    updated = Launch(launch.id, launch.on, [job.with_states(states) for job in launch.jobs], time.time())
    _write(run, updated)
    return updated


def stop_jobs(run: RunDir) -> None:
    """End the jobs of this run and wait until they have ended. Raises ClawError."""
    launch = _required(run)
    scheduler = open_scheduler(launch.on)
    running = [job for job in refresh(run, launch, scheduler).jobs if job.phase not in ENDED]
    if running:
        scheduler.stop([each for job in running for each in job.ids])
        print(f"stopping {', '.join(job.stage for job in running)}", file=sys.stderr)
        while not (launch := refresh(run, launch, scheduler)).ended:
            time.sleep(1.0)
    print("no job is running", file=sys.stderr)


def show_launch(run: RunDir) -> None:
    """Print the jobs once. Raises ClawError."""
    launch = _required(run)
    Console(highlight=False).print(_table(run, refresh(run, launch, open_scheduler(launch.on)), ""))


def _required(run: RunDir) -> Launch:
    if (launch := read_launch(run)) is None:
        raise ClawError(f"{run.root} has no jobs", "submit them with `clawctl up RECIPE --on slurm`, ray or sky", 2)
    return launch


def follow(run: RunDir, live: bool) -> None:
    """Show the jobs until all have ended or the user presses Ctrl-C, which leaves them running. Raises ClawError if one failed."""
    launch = _required(run)
    scheduler = open_scheduler(launch.on)
    help_ = f"Ctrl-C leaves the jobs running. To stop them: clawctl up --stop --run {run.root}"
    try:
        if live:
            with Live(console=Console(highlight=False), get_renderable=lambda: _table(run, launch, help_), refresh_per_second=1):
                while not (launch := refresh(run, launch, scheduler)).ended:
                    time.sleep(_POLL_S)
        else:
            launch = _follow_in_lines(run, launch, scheduler, help_)
    except KeyboardInterrupt:
        print(f"\nthe jobs continue; stop them with: clawctl up --stop --run {run.root}", file=sys.stderr)
        return
    if failed := [job for job in launch.jobs if job.phase in ("failed", "gone")]:
        job = failed[0]
        raise ClawError(f"the job of {job.stage} has ended: {job.detail}{_last_output(run, job.stage)}", f"see {run.job_output}")


def _follow_in_lines(run: RunDir, launch: Launch, scheduler: Scheduler, help_: str) -> Launch:
    print(help_, file=sys.stderr)
    printed: dict[str, str] = {}
    while True:
        launch = refresh(run, launch, scheduler)
        for job in launch.jobs:
            if printed.get(job.stage) != job.detail:
                print(f"{job.stage:>7} | {job.detail or job.phase}", file=sys.stderr, flush=True)
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


# ---- the shared disk -----------------------------------------------------------------------------------------------------


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
