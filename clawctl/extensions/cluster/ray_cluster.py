"""Jobs in Ray: a detached actor for each process of a stage. Ray places the actors, and restarts an actor whose worker or node
died.

A detached actor needs no driver: the process that submitted it may exit, and can find it again by its name. The actor starts the
stage as a separate process, which ends with it.
"""

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from clawctl.config.environment import environment_with, ray_address, secrets_from_environment
from clawctl.errors import ClawError
from clawctl.extensions.cluster.jobs import Jobs
from clawctl.extensions.cluster.plan import Job
from clawctl.extensions.cluster.schedulers import JobState
from clawctl.process import die_with_parent
from clawctl.run.endpoint import own_address
from clawctl.run.names import open_to_append

_NAMESPACE = "clawctl"
_INSTALL = "pip install 'clawctl[ray]', on the machines of the cluster too"
_START = "start one with `ray start --head`, or set RAY_ADDRESS to the address of its head node"
_ANSWER_S = 5.0  # for a running actor to report its state
_GRACE_S = 25.0  # between SIGTERM and SIGKILL
_WAIT_S = 2.0  # before a process that died is restarted
_LOOK_S = 2.0  # between checks whether the trainer's first node is still the same
_FIRST_PORT = 29500


class RayCluster:
    name = "ray"

    def render(self, job: Job) -> str:
        lines = [
            f"actor {name}: {shown}" for name, shown in zip(_names(job), map(str, [_options(job)] * _processes(job)), strict=True)
        ]
        return "\n".join([*lines, *job.setup, *(f"{key}={value}" for key, value in job.environment.items()), job.command])

    def submit(self, job: Job) -> list[str]:
        ray, names = _connected(), _names(job)
        secrets = secrets_from_environment(job.secrets)
        command = "\n".join([*job.setup, f"exec {job.command}"])
        options = _options(job)
        try:
            if job.nodes > 1:
                options |= {"scheduling_strategy": "SPREAD"}
            for rank, name in enumerate(names):
                actor = ray.remote(StageActor).options(
                    **options, name=name, namespace=_NAMESPACE, lifetime="detached", max_restarts=-1, max_concurrency=4
                )
                actor.remote(names[0], rank, job.nodes, job.gpus, command, {**job.environment, **secrets}, str(job.output))
        except (ValueError, TypeError) as error:
            self.stop(names)
            raise ClawError(f"Ray refuses the actor of {job.stage}: {error}", f"change machines.{job.stage}") from error
        return names

    def states(self, ids: Sequence[str]) -> Mapping[str, JobState]:
        ray = _connected()
        reports = {}
        for name in ids:
            try:
                reports[name] = ray.get_actor(name, namespace=_NAMESPACE).state.remote()
            except ValueError:
                continue
        ready, _ = ray.wait(list(reports.values()), num_returns=len(reports), timeout=_ANSWER_S) if reports else ([], [])
        return {name: _state(ray, reports.get(name), ready) for name in ids}

    def stop(self, ids: Sequence[str]) -> None:
        ray = _connected()
        actors = []
        for name in ids:
            try:
                actors.append(ray.get_actor(name, namespace=_NAMESPACE))
            except ValueError:
                continue
        ray.wait([actor.stop.remote() for actor in actors], num_returns=len(actors), timeout=_GRACE_S) if actors else None
        for actor in actors:
            ray.kill(actor)


class StageActor:
    """One process of a stage on one machine. The process is restarted when it dies. When the actor dies, Ray restarts it on this or
    another machine."""

    def __init__(
        self, first: str, rank: int, nodes: int, gpus: int, command: str, environment: dict[str, str], output: str
    ) -> None:
        self._first, self._rank, self._nodes, self._gpus = first, rank, nodes, gpus
        self._command, self._environment = command, environment
        self._output = Path(output) / f"{first.rsplit('-', 2)[-2]}-{rank}.out"
        self._process: subprocess.Popen[bytes] | None = None
        self._code: int | None = None  # final exit code
        self._starts, self._stopping = 0, False
        self._starting = threading.Lock()  # without it, a process that starts during `stop` would get no signal
        self._keeper = threading.Thread(target=self._supervise, daemon=True)
        self._keeper.start()

    def state(self) -> dict[str, Any]:
        return {"code": self._code, "starts": self._starts, "address": own_address(), "stopping": self._stopping}

    def address(self) -> str:
        return own_address()

    def stop(self) -> None:
        """End the process with SIGTERM, and wait for it."""
        with self._starting:
            self._stopping = True
            self._signal(signal.SIGTERM)
        self._keeper.join(_GRACE_S)
        self._signal(signal.SIGKILL)

    def _supervise(self) -> None:
        while not self._stopping:
            rendezvous = self._rendezvous()
            with self._starting:
                if self._stopping:
                    return
                self._process = self._start(rendezvous)
            self._starts += 1
            while self._process.poll() is None:
                time.sleep(_LOOK_S)
                if not self._stopping and self._rank and self._rendezvous() != rendezvous:
                    self._signal(signal.SIGTERM)  # the trainer's first node has changed
            self._signal(signal.SIGKILL)  # processes that the stage itself started
            code = self._process.returncode
            if code == 2 or (code == 0 and self._rendezvous() == rendezvous):
                self._code = code
                return
            time.sleep(_WAIT_S)

    def _start(self, rendezvous: dict[str, str]) -> subprocess.Popen[bytes]:
        gpus = {"GPUS_PER_NODE": str(self._gpus)} if self._gpus else {}
        with os.fdopen(open_to_append(self._output), "ab") as log:
            return subprocess.Popen(
                ["bash", "-c", self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment_with({**self._environment, **rendezvous, **gpus}),
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )

    def _rendezvous(self) -> dict[str, str]:
        """The address at which the nodes of a trainer meet: that of the rank 0 actor, wherever Ray has placed it."""
        if self._nodes == 1:
            return {}
        address = own_address()
        if self._rank:
            import ray

            address = ""
            while not address and not self._stopping:
                try:
                    address = ray.get(ray.get_actor(self._first, namespace=_NAMESPACE).address.remote(), timeout=60)
                except (ValueError, ray.exceptions.RayError):  # the actor is being restarted
                    time.sleep(_WAIT_S)
        return {
            "NNODES": str(self._nodes),
            "NODE_RANK": str(self._rank),
            "MASTER_ADDR": address,
            "MASTER_PORT": str(_FIRST_PORT + sum(self._first.encode()) % 500),
        }

    def _signal(self, number: int) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


def _processes(job: Job) -> int:
    return job.count * job.nodes


def _names(job: Job) -> list[str]:
    return [f"{job.name}-{number}" for number in range(_processes(job))]


def _options(job: Job) -> dict[str, Any]:
    options: dict[str, Any] = {"num_cpus": job.cpus}
    options |= {"num_gpus": job.gpus} if job.gpus else {}
    options |= {"accelerator_type": job.gpu_type} if job.gpu_type else {}
    options |= {"memory": job.memory_mb * 1_000_000} if job.memory_mb else {}
    return {**options, **job.options}


def _state(ray: Any, pending: Any, ready: Sequence[Any]) -> JobState:
    if pending is None:
        return JobState("gone", "Ray has no actor of this name")
    if pending not in ready:
        return JobState("waiting", "waits for resources, or is being started again")
    try:
        report = ray.get(pending)
    except ray.exceptions.RayActorError as error:
        return JobState("waiting", f"is being started again: {type(error).__name__}")
    if report["code"] is not None:
        return JobState("done" if report["code"] == 0 else "failed", f"ended with code {report['code']}", report["starts"])
    return JobState("running", f"running on {report['address']}", report["starts"])


def _connected() -> Any:
    """The module, connected to the cluster that RAY_ADDRESS names or that runs on this machine. Raises ClawError."""
    _check_address(ray_address())
    try:
        import ray
    except ImportError as error:
        raise ClawError("ray is not installed", _INSTALL) from error
    if not ray.is_initialized():
        try:
            ray.init(address="auto", namespace=_NAMESPACE, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = str(error).split("\n")[0]
            raise ClawError(f"there is no Ray cluster: {reason}", _START) from error
    return ray


def _check_address(address: str | None) -> None:
    """Raises ClawError if nothing listens at the address. Ray itself would try for five minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=_ANSWER_S).close()
        except OSError as error:
            raise ClawError(f"there is no Ray cluster at {address} (RAY_ADDRESS): {error}", _START) from error


JOBS = Jobs(RayCluster())
