"""Case `ray` of `scripts/bench launch`."""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from clawctl.engines.vllm.child import free_port
from clawctl.run.directory import RunDir
from scripts.benchmarks.launch import killed_under_load, recipe_of
from scripts.benchmarks.table import Row

_VICTIMS = ("serve", "collect", "judge", "train", "train", "node")  # in a new random order each time
_NODES = ("left", "right")


def rows(options: argparse.Namespace, folder: Path) -> list[Row]:
    try:
        import ray
    except ImportError:
        print("ray: it is not installed; pip install 'clawctl[ray]'", flush=True)
        return [Row("ray", "lost_turns", None, "turns")]
    machines = {
        "serve": {"options": {"resources": {"left": 1}}},
        "collect": {"cpus": 1, "options": {"resources": {"right": 1}}},
        "judge": {"cpus": 1, "count": 2},
        "train": {"cpus": 1, "nodes": 2},
    }
    recipe, left, kills = recipe_of(folder, free_port(), machines), list[str](), [0]
    with _two_nodes() as cluster:
        env = {**os.environ, "RAY_ADDRESS": cluster.address, "OMP_NUM_THREADS": "1"}
        ray.init(address=cluster.address, namespace="clawctl", log_to_driver=False, logging_level="ERROR")

        def kill(dice: random.Random) -> str:
            left[:] = left or dice.sample(_VICTIMS, len(_VICTIMS))
            time.sleep(dice.uniform(0, 3))
            victim = left.pop()
            if victim == "node":  # its agent and all workers are killed, and a new node with the same name starts
                cluster.replace("right")
                kills[0] += 1
                return "node right failed"
            names = [name for name in _actors(folder, victim) if dice.random() < 0.7] or _actors(folder, victim)[:1]
            for name in names:
                ray.kill(ray.get_actor(name, namespace="clawctl"), no_restart=False)
            kills[0] += len(names)
            return f"the actors {', '.join(names)} were killed"

        try:
            return killed_under_load("ray", folder, recipe, options, env, kill, lambda run: kills[0] + _count(run))
        finally:
            ray.shutdown()


def _actors(folder: Path, stage: str) -> list[str]:
    jobs = orjson.loads((folder / "run" / "launch.json").read_bytes())["jobs"]
    return [job_id for job in jobs if job["stage"] == stage for job_id in job["ids"]]


def _count(run: RunDir) -> int:
    return sum(len(job["ids"]) for job in orjson.loads(run.launch.read_bytes())["jobs"])


class _Cluster:
    """Two Ray nodes on this machine. Each has its name as a resource."""

    def __init__(self) -> None:
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        where = (
            ["--head", f"--port={self._port}", "--include-dashboard=false"] if name == _NODES[0] else [f"--address={self.address}"]
        )
        arguments = ["start", *where, "--node-ip-address=127.0.0.1", "--num-cpus=8", f'--resources={{"{name}": 4}}', "--block"]
        arguments += ["--object-store-memory=100000000", "--disable-usage-stats"]
        ray = Path(sys.executable).parent / "ray"
        self._nodes[name] = subprocess.Popen(
            [str(ray), *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def replace(self, name: str) -> None:
        self.end(name, signal.SIGKILL)
        self.start(name)

    def end(self, name: str, number: int = signal.SIGTERM) -> None:
        """End the node and all its child processes."""
        import psutil

        node = self._nodes.pop(name)
        family: list[Any] = []
        try:
            family = [*psutil.Process(node.pid).children(recursive=True), psutil.Process(node.pid)]
        except psutil.NoSuchProcess:
            return
        for member in family:
            try:
                member.send_signal(number)
            except psutil.NoSuchProcess:
                continue
        _, alive = psutil.wait_procs(family, timeout=20)
        for member in alive:
            member.kill()
        node.wait()

    def end_all(self) -> None:
        for name in reversed(list(self._nodes)):
            self.end(name)


@contextmanager
def _two_nodes() -> Iterator[_Cluster]:
    cluster = _Cluster()
    try:
        cluster.start("left")
        _wait_until_it_listens(cluster.address)
        cluster.start("right")
        yield cluster
    finally:
        cluster.end_all()


def _wait_until_it_listens(address: str) -> None:
    import socket

    host, port = address.split(":")
    for _ in range(240):
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex((host, int(port))) == 0:
                time.sleep(5.0)  # time for the node to register
                return
        time.sleep(0.5)
    raise SystemExit("Ray did not start")
