"""`eval:`, measuring a policy, and `gate:`, what may go live."""

from typing import Literal

from pydantic import Field

from clawctl.config.section import HttpUrl, Section


class EvalConfig(Section):
    suites: list[Literal["personalisation"]] = ["personalisation"]
    """What is measured: `personalisation` plays students and teachers; satisfaction and correctness of first replies."""
    problems: int = Field(36, gt=0)
    """Tasks in a suite, half for students, half for teachers."""
    seed: int = 0
    """Chooses the tasks; they are never those that simulated people ask."""
    temperature: float = Field(1.0, ge=0)
    """Of the answers that are measured."""
    max_tokens: int = Field(1024, gt=0)
    """Longest answer to a problem, in tokens: a version that writes without end is measured in time as well."""
    concurrency: int = Field(16, gt=0)
    """Calls in flight at a time."""
    endpoint: HttpUrl | None = None
    """Server to measure. Unset: the server of this run."""


class GateConfig(Section):
    max_correctness_drop: float = Field(0.10, ge=0, le=1)
    """A candidate that answers correctly less often than the live policy by more than this stays out."""
    max_satisfaction_drop: float = Field(0.10, ge=0, le=1)
    """Likewise for satisfaction."""
