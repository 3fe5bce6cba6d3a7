"""Settings of `machines:`, the resources of each stage when `clawctl up --on` submits it to a scheduler."""

from typing import Any

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from clawctl.config.section import Section


class MachineConfig(Section):
    cpus: int = Field(2, gt=0)
    """CPU cores of each process."""
    gpus: int = Field(0, ge=0)
    """GPUs of each process. `train` starts one rank on each."""
    gpu_type: str | None = Field(None, pattern=r"^[A-Za-z0-9._-]+$")
    """Type of GPU by the scheduler's name, such as `h100` (Slurm) or `H100` (Ray, SkyPilot)."""
    memory_gb: float | None = Field(None, gt=0)
    """Memory of each process in GB. Unset: the scheduler's default."""
    hours: float | None = Field(None, gt=0)
    """Time limit of the job in hours (Slurm). The job is queued again before it ends. Unset: the partition's limit."""
    partition: str | None = Field(None, pattern=r"^[A-Za-z0-9._,-]+$")
    """Partition (Slurm)."""
    options: dict[str, Any] = {}
    """Further settings, as the scheduler names them: options of `sbatch`, of a Ray actor, or keys of a SkyPilot task."""


class WorkersConfig(MachineConfig):
    count: int = Field(1, gt=0)
    """Number of workers: an array in Slurm, actors in Ray, nodes in SkyPilot."""


class TrainerConfig(MachineConfig):
    nodes: int = Field(1, gt=0)
    """Machines of the trainer, each with `gpus` GPUs. Without GPUs, each has one rank on the CPU."""


class MachinesConfig(Section):
    serve: MachineConfig = MachineConfig()
    """The server. A run has one."""
    collect: MachineConfig = MachineConfig()
    """The collect worker. A run has one."""
    play: WorkersConfig = WorkersConfig()
    """Workers that play the episodes of `play.env`."""
    judge: WorkersConfig = WorkersConfig()
    """Judge workers."""
    train: TrainerConfig = TrainerConfig()
    """The trainer."""
    practice: MachineConfig = MachineConfig()
    """The worker that practises notes."""
    eval: MachineConfig = MachineConfig()
    """The eval worker. A run has one."""
    command: str | None = None
    """The command that starts clawctl on the machines, such as `/opt/clawctl/bin/clawctl`. Unset: the Python that runs
    `clawctl up`, and with SkyPilot `clawctl`."""
    setup: list[str] = []
    """Shell commands that each job runs before its stage, such as `module load cuda`."""
    secrets: list[str] = ["CLAWCTL_API_KEY", "CLAWCTL_UPSTREAM_KEY", "HF_TOKEN", "WANDB_API_KEY"]
    """Environment variables with secrets that jobs get from the environment of `clawctl up`, if they are set there. No job script
    and no log contains their values."""
    options: dict[str, Any] = {}
    """`options` for the jobs of all stages. A stage's own options take precedence."""

    @field_validator("setup")
    @classmethod
    def _lines(cls, setup: list[str]) -> list[str]:
        if any("\n" in line or "\0" in line for line in setup):
            raise PydanticCustomError("one_line", "write one command in each item")
        return setup

    @field_validator("secrets")
    @classmethod
    def _names(cls, secrets: list[str]) -> list[str]:
        if not all(name.isidentifier() and name.isascii() for name in secrets):
            raise PydanticCustomError("names", "expected names of environment variables, not values")
        return secrets
