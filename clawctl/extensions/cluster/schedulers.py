"""The scheduler interface of `clawctl up --on`, and the job states that all schedulers share."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from clawctl.errors import ClawError
from clawctl.extensions.cluster.plan import Job

Phase = Literal["waiting", "running", "done", "failed", "stopped", "gone"]  # gone: the scheduler no longer has the job
ENDED: tuple[Phase, ...] = ("done", "failed", "stopped", "gone")
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class JobState:
    phase: Phase
    detail: str  # in the scheduler's own words: "PENDING (Resources)", "RUNNING on node3"
    starts: int | None = None  # number of starts; None: unknown


class Scheduler(Protocol):
    """Runs jobs. Each method raises ClawError if the scheduler is missing, does not answer, or refuses."""

    name: str

    def render(self, job: Job) -> str:
        """The job in the scheduler's format, without the values of secrets. Needs no scheduler."""
        ...

    def submit(self, job: Job) -> list[str]:
        """Submit the job. Returns the ids for the other methods."""
        ...

    def states(self, ids: Sequence[str]) -> Mapping[str, JobState]:
        """The states of these jobs. An unknown job is `gone`."""
        ...

    def stop(self, ids: Sequence[str]) -> None:
        """End these jobs as Ctrl-C would. Unknown jobs and those that have ended are skipped."""
        ...


def call(
    program: str, arguments: Sequence[str], cure: str, stdin: str | None = None, patience_s: float = _PATIENCE_S
) -> subprocess.CompletedProcess[str]:
    """Run a scheduler's program. Raises ClawError, with `cure` if the program is missing."""
    try:
        return subprocess.run([program, *arguments], input=stdin, capture_output=True, text=True, timeout=patience_s, check=False)
    except FileNotFoundError as error:
        raise ClawError(f"there is no {program} on this machine", cure) from error
    except subprocess.TimeoutExpired as error:
        raise ClawError(f"{program} has not answered for {patience_s:.0f} s", "try again when the scheduler answers") from error
