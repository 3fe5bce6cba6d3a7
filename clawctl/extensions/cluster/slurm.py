"""Jobs in Slurm: a batch script for each stage. Several workers are an array; a trainer on several nodes is one job."""

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from clawctl.errors import ClawError
from clawctl.extensions.cluster.jobs import Jobs
from clawctl.extensions.cluster.plan import Job
from clawctl.extensions.cluster.schedulers import JobState, Phase, call

_INSTALL = "run this where Slurm's commands are installed (a login node), or choose another scheduler with --on"
_NOTICE_S = 120  # before the time limit
_PHASES: dict[str, Phase] = {  # all others have failed
    "PENDING": "waiting", "CONFIGURING": "waiting", "REQUEUED": "waiting", "SUSPENDED": "waiting", "REQUEUE_HOLD": "waiting",
    "SPECIAL_EXIT": "waiting", "STOPPED": "waiting", "RUNNING": "running", "COMPLETING": "running", "COMPLETED": "done",
    "CANCELLED": "stopped",
}  # fmt: skip
# srun starts the stage on each node, in the background, so that the shell receives the signal before the time limit. Exit code 0
# means that the stage is finished, 2 that it refuses its recipe. After any other code the job is requeued, unless it is being
# cancelled.
_SCRIPT = (Path(__file__).parent / "slurm_job.sh").read_text("utf-8")
_NODES = (Path(__file__).parent / "slurm_nodes.sh").read_text("utf-8").rstrip("\n")


class Slurm:
    name = "slurm"

    def render(self, job: Job) -> str:
        lines = [f"export {name}={shlex.quote(value)}" for name, value in job.environment.items()]
        lines += [f"export GPUS_PER_NODE={job.gpus}"] if job.stage == "train" and job.gpus else []
        lines += [_NODES] if job.nodes > 1 else []
        rank = "export NODE_RANK=$SLURM_PROCID; " if job.nodes > 1 else ""
        return _SCRIPT.format(
            directives="\n".join(f"#SBATCH --{line}" for line in _directives(job)),
            environment="\n".join((*lines, *job.setup)),
            cpus=job.cpus,
            command=shlex.quote(f"{rank}exec {job.command}"),
        )

    def submit(self, job: Job) -> list[str]:
        done = call("sbatch", ["--parsable"], _INSTALL, self.render(job))
        match = re.match(r"(\d+)", done.stdout)
        if done.returncode or match is None:
            raise _refusal(job, done.stderr or done.stdout)
        return [match[1]]

    def states(self, ids: Sequence[str]) -> Mapping[str, JobState]:
        if not ids:
            return {}
        done = call("squeue", ["--noheader", "--states=all", "--array", "--jobs", ",".join(ids), "-O", _COLUMNS], _INSTALL)
        if done.returncode and "Invalid job id" not in done.stderr:
            raise ClawError(f"squeue failed: {done.stderr.strip()}", "try again when Slurm's controller answers")
        states = read_queue(done.stdout)
        return {job: states.get(job, JobState("gone", "Slurm no longer has a job with this number")) for job in ids}

    def stop(self, ids: Sequence[str]) -> None:
        done = call("scancel", list(ids), _INSTALL)
        if done.returncode and "Invalid job id" not in done.stderr:
            raise ClawError(f"scancel failed: {done.stderr.strip()}", f"run `scancel {' '.join(ids)}`")


_COLUMNS = "ArrayJobID:|,State:|,RestartCnt:|,ReasonList:"


def _directives(job: Job) -> list[str]:
    kind = f"{job.gpu_type}:" if job.gpu_type else ""
    number = "%A-%a" if job.count > 1 else "%j"
    lines = [
        f"job-name={job.name}",
        f"chdir={job.output}",
        f"output={job.output}/{job.stage}-{number}.out",
        "open-mode=append",
        "requeue",
    ]
    lines += [f"signal=B:USR1@{_NOTICE_S}", f"nodes={job.nodes}", "ntasks-per-node=1", f"cpus-per-task={job.cpus}"]
    lines += [f"array=0-{job.count - 1}"] if job.count > 1 else []
    lines += [f"gpus-per-node={kind}{job.gpus}"] if job.gpus else []
    lines += [f"mem={math.ceil(job.memory_mb)}M"] if job.memory_mb else []
    lines += [f"time={job.minutes}"] if job.minutes else []
    lines += [f"partition={job.partition}"] if job.partition else []
    for key, value in job.options.items():
        if not re.fullmatch("[a-z][a-z0-9-]*", key) or "\n" in str(value):
            raise ClawError(f"machines: {key!r} is not an option of sbatch", "write it without dashes, as in {account: lab}", 2)
        lines += [key if value is True else f"{key}={value}"]
    return lines


def read_queue(text: str) -> dict[str, JobState]:
    """The states in the lines that squeue prints. The workers of an array become one state, with a count: that of the worker that
    most needs attention."""
    rows: dict[str, list[tuple[str, int, str]]] = {}
    for line in text.splitlines():
        job, state, restarts, where = line.split("|", 3)
        rows.setdefault(job, []).append((state, int(restarts or 0), where.strip()))
    return {job: _combined(states) for job, states in rows.items()}


_BY_URGENCY: tuple[Phase, ...] = ("failed", "running", "waiting", "stopped", "done")


def _combined(rows: Sequence[tuple[str, int, str]]) -> JobState:
    phases = [_PHASES.get(state, "failed") for state, _, _ in rows]
    phase = next(phase for phase in _BY_URGENCY if phase in phases)
    state, _, where = rows[phases.index(phase)]
    counts = f"{phases.count(phase)} of {len(rows)} " if len(rows) > 1 else ""
    detail = f"{counts}{state} {where if where.startswith('(') or not where else f'on {where}'}".strip()
    return JobState(phase, detail, sum(1 + restarts for _, restarts, _ in rows))


def _refusal(job: Job, output: str) -> ClawError:
    problem = (
        " ".join(line.removeprefix("sbatch: error: ").strip() for line in output.splitlines() if line.strip())
        or "it printed no reason"
    )
    key = f"machines.{job.stage}"
    if "artition" in problem:
        partitions = call("sinfo", ["--noheader", "--format=%R"], _INSTALL).stdout.split()
        cure = f"set {key}.partition to one of: {', '.join(sorted(set(partitions))) or 'none is known to sinfo'}"
    elif re.search("CPU|memory|[Nn]ode configuration|Requested|[Gg][Rr][Ee][Ss]", problem):
        cure = f"request less in {key}; `sinfo -o '%P %c %m %G %D'` shows what the nodes have"
    elif re.search("account|[Qq][Oo][Ss]", problem):
        cure = f"set account and qos in {key}.options, or in machines.options for all stages"
    else:
        cure = f"change {key}; `clawctl up … --on slurm --dry-run` shows the script"
    return ClawError(f"Slurm refuses the job of {job.stage}: {problem}", cure)


JOBS = Jobs(Slurm())
