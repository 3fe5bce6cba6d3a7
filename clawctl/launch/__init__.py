"""Starts several components together: all stages under one parent, jobs in a scheduler, and clients configured for a run.

A `Launcher` is the seam between `clawctl up --on NAME` and a scheduler: it runs the stages as jobs. `LAUNCHERS` finds it by name.
"""

import socket
from typing import Protocol

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.registry import Registry
from clawctl.run.checksums import read_object
from clawctl.run.directory import RunDir

PAGE_PORT = 30080  # of the pages of a run


class Launcher(Protocol):
    """Runs stages as jobs, each of which is `clawctl up --only STAGE` with CLAWCTL_LAUNCH in its environment.

    A launcher records the jobs in `RUN/launch.json`: its name (`on`), the value of CLAWCTL_LAUNCH (`id`), the time (`at`), and for
    each job `stage`, `phase` and `detail`. Each method raises ClawError, also if the scheduler is missing or does not answer.
    """

    def render(self, run: RunDir, recipe: Recipe, log_level: str) -> str:
        """The jobs that would be submitted. Needs no scheduler and writes nothing. Refuses an unsuitable recipe (exit code 2)."""

    def launch(self, run: RunDir, recipe: Recipe, named_code: str, log_level: str) -> None:
        """Submit the stages that have no job yet. `named_code` is the value of CLAWCTL_NAMED_CODE in the jobs."""

    def follow(self, run: RunDir, live: bool) -> None:
        """Show the jobs until all have ended; Ctrl-C leaves them running. `live`: stdout is a terminal. Raises if a job failed."""

    def show(self, run: RunDir) -> None:
        """Print the jobs once."""

    def stop(self, run: RunDir) -> None:
        """End the jobs and wait until they have ended."""


LAUNCHERS: Registry[Launcher] = Registry("launcher", "clawctl.launchers", {})


def launcher_of(run: RunDir) -> Launcher:
    """The launcher of the recorded jobs. Raises ClawError (exit code 2) if the run has none."""
    record = read_object(run.launch)
    if not record:
        raise ClawError(f"{run.root} has no jobs", "submit them with `clawctl up RECIPE --on NAME`, such as slurm", 2)
    return LAUNCHERS.load(str(record.get("on")), f"{run.launch}: on")


def free_port(preferred: int) -> int:
    """`preferred`, or another port of this machine if that one is taken."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    return preferred
