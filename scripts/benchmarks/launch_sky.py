"""Case `sky` of `scripts/bench launch`: SkyPilot reads the rendered tasks, and clawctl reads SkyPilot's queue."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from clawctl.config import load_recipe
from clawctl.errors import ClawError
from clawctl.extensions.cluster.plan import plan_jobs
from clawctl.extensions.cluster.sky import Sky, read_jobs
from clawctl.run.directory import open_run
from scripts.benchmarks.circle import ROOT
from scripts.benchmarks.table import Row

SKYPILOT = "skypilot==0.14.1"
_VENV = ROOT / ".venv-sky"
RECIPE = """
serve: {host: 0.0.0.0}
play: {env: toolcall, rounds: 0}
up: {stages: [serve, collect, play, judge, train, eval]}
machines:
  serve: {cpus: 8, memory_gb: 64, gpus: 1, gpu_type: L40S}
  judge: {count: 4}
  play: {count: 100, cpus: 4}
  train: {nodes: 2, gpus: 8, gpu_type: H100, options: {resources: {use_spot: true}}}
  setup: [source /opt/clawctl/bin/activate]
  options: {resources: {infra: k8s}, volumes: {/runs: clawctl-runs}}
"""
# Runs in the other environment. Prints SkyPilot's reading of each file, and a queue in its format.
_READER = """
import json, sys
import sky
from sky.schemas.api.responses import ManagedJobRecord
from sky.jobs.state import ManagedJobStatus
found = {}
for path in sys.argv[1:]:
    try:
        task = sky.Task.from_yaml(path)
        found[path] = [task.name, task.num_nodes, task.to_yaml_config()]
    except Exception as error:
        found[path] = f"{type(error).__name__}: {error}"
records = [ManagedJobRecord(job_id=number, job_name="clawctl-a-serve", status=status, recovery_count=number)
           for number, status in enumerate([ManagedJobStatus.FAILED, ManagedJobStatus.RUNNING])]
queue = [record.model_dump(mode="json") for record in records]
print(json.dumps({"tasks": found, "queue": queue}, default=str))
"""


def rows(options: argparse.Namespace, folder: Path) -> list[Row]:
    python = _python()
    (folder / "recipe.yaml").write_text(RECIPE)
    jobs = plan_jobs(open_run(folder / "run"), load_recipe(folder / "recipe.yaml"), "sky", "0123456789ab", "", "info")
    files = [folder / f"{job.stage}.yaml" for job in jobs]
    for job, file in zip(jobs, files, strict=True):
        file.write_text(Sky().render(job))
    typo = folder / "typo.yaml"
    typo.write_text(files[0].read_text().replace("num_nodes", "num_node"))
    done = subprocess.run([python, "-c", _READER, *map(str, [*files, typo])], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"SkyPilot ended with code {done.returncode}: {done.stderr[-2000:]}")
    read = json.loads(done.stdout.splitlines()[-1])
    refused = []
    for job, file in zip(jobs, files, strict=True):
        task = read["tasks"][str(file)]
        if task[:2] != [job.name, job.count * job.nodes]:
            refused.append(f"{job.stage}: {task}")
    for problem in refused:
        print(f"refused: {problem}", flush=True)
    try:
        state = read_jobs(json.dumps(read["queue"])).get("clawctl-a-serve")
    except (ClawError, KeyError) as error:
        state = None
        print(f"the queue cannot be read: {error}", flush=True)
    return [
        Row("sky", "tasks", len(jobs), "tasks that SkyPilot read"),
        Row("sky", "refused_tasks", len(refused), "tasks"),
        Row("sky", "typo_refused", float(isinstance(read["tasks"][str(typo)], str)), "yes or no"),
        Row("sky", "queue_read", float(state is not None and state.phase == "running" and state.starts == 2), "yes or no"),
    ]


def _python() -> str:
    python = _VENV / "bin" / "python"
    if not (_VENV / "made").exists():
        print(f"making {_VENV.name} with {SKYPILOT} …", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(_VENV)], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", SKYPILOT], check=True)
        (_VENV / "made").touch()
    return str(python)
