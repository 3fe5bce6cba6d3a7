"""Case `slurm` of `scripts/bench launch`."""

import argparse
import os
import random
import subprocess
import time
from pathlib import Path

import orjson
import psutil

from clawctl.engines.vllm.child import free_port
from clawctl.run.directory import RunDir
from scripts.benchmarks.launch import killed_under_load, recipe_of
from scripts.benchmarks.launch_slurm_nodes import NODES, missing, two_nodes
from scripts.benchmarks.table import Row

_VICTIMS = ("serve", "collect", "judge", "train", "train", "node", "node")  # in a new random order each time


def rows(options: argparse.Namespace, folder: Path) -> list[Row]:
    if lacking := missing():
        print(f"slurm: {lacking}", flush=True)
        return [Row("slurm", "lost_turns", None, "turns")]
    machines = {
        "serve": {"options": {"nodelist": NODES[0]}},
        "collect": {"cpus": 1, "options": {"nodelist": NODES[1]}},
        "judge": {"cpus": 1, "count": 2},
        "train": {"cpus": 1, "nodes": 2},
    }
    cluster = folder / "slurm"
    cluster.mkdir()
    recipe, left = recipe_of(folder, free_port(), machines), list[str]()
    with two_nodes(cluster) as slurm:
        env = {**slurm, "OMP_NUM_THREADS": "1"}

        def kill(dice: random.Random) -> str:
            left[:] = left or dice.sample(_VICTIMS, len(_VICTIMS))
            time.sleep(dice.uniform(0, 3))
            victim = left.pop()
            if victim == "node":  # the node fails: all its jobs are killed and queued again
                node = dice.choice(NODES)
                _scontrol(env, "update", f"nodename={node}", "state=down", "reason=benchmark")
                _wait_until_it_is_empty(node)
                _scontrol(env, "update", f"nodename={node}", "state=resume")
                what = f"node {node} failed"
            else:
                _scontrol(env, "requeue", *_ids(folder, victim))
                what = f"{victim} was queued again"
            _start_at_once(env)
            return what

        return killed_under_load("slurm", folder, recipe, options, env, kill, lambda run: _starts(env, run))


def _ids(folder: Path, stage: str) -> list[str]:
    jobs = orjson.loads((folder / "run" / "launch.json").read_bytes())["jobs"]
    return [job_id for job in jobs if job["stage"] == stage for job_id in job["ids"]]


def _starts(env: dict[str, str], run: RunDir) -> int:
    counts = _output(env, "squeue", "--noheader", "--array", "--states=all", "-O", "RestartCnt").split()
    return sum(1 + int(count) for count in counts)


def _wait_until_it_is_empty(node: str) -> None:
    """Wait until no job process is left on a down node. The same jobs start there again when the node is back."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        processes = [process for process in psutil.process_iter() if _runs_on(process, node)]
        if not processes:
            return
        time.sleep(0.5)
    print(f"node {node} still runs {[process.pid for process in processes]}", flush=True)


def _runs_on(process: psutil.Process, node: str) -> bool:
    try:
        return bool(process.environ().get("SLURMD_NODENAME") == node)
    except (psutil.Error, OSError):
        return False


def _start_at_once(env: dict[str, str]) -> None:
    """Start queued jobs immediately. Slurm would delay their restart by two minutes."""
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        time.sleep(1.0)
        waiting = _output(env, "squeue", "--noheader", "--array", "--states=PENDING", "-O", "JobID:|,ReasonList:").splitlines()
        for line in waiting:
            job = line.split("|")[0].strip()
            if "BeginTime" in line:
                _scontrol(env, "update", f"jobid={job}", "StartTime=now")
            elif "held" in line:  # its launch failed, because this node still knew the job from before it "failed"
                _scontrol(env, "release", job)
        for node in _output(env, "sinfo", "--noheader", "--states=drain", "-N", "-o", "%N").split():  # for the same reason
            _scontrol(env, "update", f"nodename={node}", "state=resume")
        if not _output(env, "squeue", "--noheader", "--states=PENDING,COMPLETING", "-o", "%i").split():
            return


def _scontrol(env: dict[str, str], *options: str) -> None:
    done = subprocess.run(["scontrol", *options], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"scontrol {' '.join(options)}: {done.stderr.strip()}", flush=True)


def _output(env: dict[str, str], *options: str) -> str:
    return subprocess.run(options, env={**os.environ, **env}, capture_output=True, text=True, check=False).stdout
