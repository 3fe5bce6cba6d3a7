"""Jobs in SkyPilot, which runs them on Kubernetes, Slurm or a cloud: a managed job for each stage, restarted after preemption.

Several workers are nodes of one job. Secrets are passed as SkyPilot secrets: it reads their values from this environment.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from clawctl.config.environment import secrets_from_environment
from clawctl.errors import ClawError
from clawctl.extensions.cluster.jobs import Jobs
from clawctl.extensions.cluster.plan import Job, merged
from clawctl.extensions.cluster.schedulers import JobState, Phase, call

_INSTALL = "pip install 'skypilot[kubernetes]' (in an environment of its own), then run `sky check`"
_LAUNCH_S = 1800.0  # the first job also starts SkyPilot's controller
_PHASES: dict[str, Phase] = {  # all others have failed
    "PENDING": "waiting", "SUBMITTED": "waiting", "STARTING": "waiting", "RECOVERING": "waiting", "RUNNING": "running",
    "WINDING_DOWN": "running", "CANCELLING": "running", "SUCCEEDED": "done", "CANCELLED": "stopped",
}  # fmt: skip
_NODES = """\
export NNODES=$SKYPILOT_NUM_NODES NODE_RANK=$SKYPILOT_NODE_RANK MASTER_PORT=29500
export MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)"""


class Sky:
    name = "sky"

    def render(self, job: Job) -> str:
        return str(yaml.safe_dump(task_of(job), sort_keys=False))

    def submit(self, job: Job) -> list[str]:
        secrets = [word for name in secrets_from_environment(job.secrets) for word in ("--secret", name)]
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(self.render(job))
            file.flush()
            arguments = ["jobs", "launch", "--yes", "--detach-run", "--name", job.name, *secrets, file.name]
            done = call("sky", arguments, _INSTALL, patience_s=_LAUNCH_S)
        if done.returncode:
            raise ClawError(f"SkyPilot refuses the job of {job.stage}: {_last_output(done)}", f"change machines.{job.stage}")
        return [job.name]

    def states(self, ids: Sequence[str]) -> Mapping[str, JobState]:
        done = call("sky", ["jobs", "queue", "--refresh", "--limit", "1000", "--output", "json"], _INSTALL)
        if done.returncode:
            raise ClawError(f"sky jobs queue failed: {_last_output(done)}", "run `sky check`, then try again")
        states = read_jobs(done.stdout)
        return {name: states.get(name, JobState("gone", "SkyPilot has no job of this name")) for name in ids}

    def stop(self, ids: Sequence[str]) -> None:
        for name in ids:
            done = call("sky", ["jobs", "cancel", "--yes", "--name", name], _INSTALL)
            if done.returncode:
                raise ClawError(f"sky jobs cancel failed: {_last_output(done)}", f"run `sky jobs cancel --name {name}`")


def task_of(job: Job) -> dict[str, Any]:
    """A SkyPilot task. The recipe's `options` are merged into it."""
    resources: dict[str, Any] = {"cpus": f"{job.cpus}+"}
    resources |= {"memory": f"{job.memory_mb / 1000:g}+"} if job.memory_mb else {}
    if job.gpus and not job.gpu_type:
        cure = f"set machines.{job.stage}.gpu_type, such as H100; `sky show-gpus` lists the names"
        raise ClawError(f"SkyPilot needs the type of the GPUs of {job.stage}", cure, 2)
    resources |= {"accelerators": f"{job.gpu_type}:{job.gpus}"} if job.gpus else {}
    lines = [*job.setup, *([f"export GPUS_PER_NODE={job.gpus}"] if job.stage == "train" and job.gpus else [])]
    lines += [_NODES] if job.nodes > 1 else []
    task: dict[str, Any] = {
        "name": job.name,
        "resources": resources,
        "num_nodes": job.count * job.nodes,
        "envs": dict(job.environment),
        "run": "\n".join([*lines, f"exec {job.command}"]),
    }
    return merged(task, job.options)


def read_jobs(text: str) -> dict[str, JobState]:
    """The newest job of each name in the JSON that `sky jobs queue` prints."""
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        raise ClawError(f"`sky jobs queue` printed no JSON: {error}", "use SkyPilot 0.14 or newer") from error
    states = {}
    for row in sorted(rows, key=lambda row: row["job_id"]):
        status = str(row["status"]).rpartition(".")[2]
        states[row["job_name"]] = JobState(_PHASES.get(status, "failed"), status, 1 + int(row.get("recovery_count") or 0))
    return states


def _last_output(done: Any) -> str:
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return " ".join(lines[-2:]) or "it printed no reason"


JOBS = Jobs(Sky())
