"""Converts a recipe to jobs: one for each stage, with the resources from `machines:`. Each scheduler renders them in its own
format."""

import ipaddress
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clawctl.config import Recipe, TrainerConfig, WorkersConfig
from clawctl.errors import ClawError
from clawctl.printing import counted
from clawctl.run.directory import RunDir


@dataclass(frozen=True, slots=True)
class Job:
    """A stage as a scheduler runs it: `count` independent workers, or one worker that spans `nodes` machines."""

    stage: str  # "train"
    name: str  # "clawctl-mine-train"
    command: str  # "/opt/venv/bin/python -P -m clawctl up … --only train"
    setup: tuple[str, ...]  # shell lines before the command
    environment: dict[str, str]  # written to the job's script, so it contains no secrets
    secrets: tuple[str, ...]  # names of variables whose values are passed outside the script
    output: Path  # folder for the job's output
    count: int
    nodes: int
    cpus: int  # this and the following resources are per process
    gpus: int
    gpu_type: str | None
    memory_mb: int | None
    minutes: int | None
    partition: str | None
    options: dict[str, Any]

    @property
    def needs(self) -> str:
        """The requested resources, in words."""
        parts = [f"{self.count} ×"] if self.count > 1 else [f"{self.nodes} nodes ×"] if self.nodes > 1 else []
        parts.append(counted(self.cpus, "CPU"))
        parts += [f"{self.gpus} {self.gpu_type}" if self.gpu_type else counted(self.gpus, "GPU")] if self.gpus else []
        parts += [f"{self.memory_mb / 1000:g} GB"] if self.memory_mb else []
        parts += [f"{self.minutes / 60:g} h"] if self.minutes else []
        return " ".join(parts)


def plan_jobs(run: RunDir, recipe: Recipe, on: str, launch_id: str, named_code: str, log_level: str) -> list[Job]:
    """The jobs of `recipe.up.stages`, in their order. Raises ClawError (exit code 2) if the recipe does not fit."""
    _check(recipe, on)
    machines = recipe.machines
    clawctl = machines.command or ("clawctl" if on == "sky" else f"{shlex.quote(sys.executable)} -P -m clawctl")
    environment = {"CLAWCTL_LAUNCH": launch_id} | ({"CLAWCTL_NAMED_CODE": named_code} if named_code else {})
    jobs = []
    for stage in recipe.up.stages:
        needs = getattr(machines, stage)
        arguments = ["up", str(run.recipe), "--run", str(run.root), "--log-level", log_level, "--only", stage]
        jobs.append(
            Job(
                stage=stage,
                name=f"clawctl-{re.sub('[^a-z0-9]+', '-', run.root.name.lower()).strip('-') or 'run'}-{stage}",
                command=f"{clawctl} {shlex.join(arguments)}",
                setup=tuple(machines.setup),
                environment=environment,
                secrets=tuple(machines.secrets),
                output=run.job_output,
                count=needs.count if isinstance(needs, WorkersConfig) else 1,
                nodes=needs.nodes if isinstance(needs, TrainerConfig) else 1,
                cpus=needs.cpus,
                gpus=needs.gpus,
                gpu_type=needs.gpu_type,
                memory_mb=None if needs.memory_gb is None else round(needs.memory_gb * 1000),
                minutes=None if needs.hours is None else max(1, round(needs.hours * 60)),
                partition=needs.partition,
                options=merged(machines.options, needs.options),
            )
        )
    return jobs


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both mappings merged; `above` wins where they differ. Nested mappings are merged in the same way."""
    both = dict(below)
    for key, value in above.items():
        old = both.get(key)
        both[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return both


def _check(recipe: Recipe, on: str) -> None:
    stages = recipe.up.stages
    if "serve" in stages and len(stages) > 1 and _is_loopback(recipe.serve.host):
        raise ClawError(
            f"serve.host is {recipe.serve.host}, which the stages on other machines cannot reach",
            "set serve.host: 0.0.0.0; every request needs a key, but there is no TLS, so keep the network private",
            2,
        )
    for section in ("serve", "train"):
        if section in stages and getattr(recipe, section).gpus is not None:
            problem = f"{section}.gpus numbers the GPUs of one machine, but the scheduler chooses the machine"
            raise ClawError(problem, f"remove {section}.gpus and set machines.{section}.gpus to how many it needs", 2)
    for stage in stages:
        needs = getattr(recipe.machines, stage)
        if on != "slurm" and needs.partition is not None:
            raise ClawError(f"machines.{stage}.partition is for Slurm", f"remove it, or use --on slurm instead of --on {on}", 2)
        if on != "slurm" and needs.hours is not None:
            raise ClawError(f"machines.{stage}.hours is for Slurm", f"remove it, or use --on slurm instead of --on {on}", 2)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
