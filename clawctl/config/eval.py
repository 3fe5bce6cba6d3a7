"""`eval:`, how a policy is measured, and `gate:`, which policy may go live."""

from typing import Literal

from pydantic import Field

from clawctl.config.section import HttpUrl, Section


class EvalConfig(Section):
    suites: list[Literal["personalisation"]] = ["personalisation"]
    """Suites to run. `personalisation` simulates students and teachers. It measures satisfaction and the correctness of first
    replies."""
    problems: int = Field(36, gt=0)
    """Tasks in a suite: half for students, half for teachers."""
    seed: int = 0
    """Seed that selects the tasks. The tasks never overlap with those that simulated people ask."""
    temperature: float = Field(1.0, ge=0)
    """Sampling temperature of the measured answers."""
    max_tokens: int = Field(1024, gt=0)
    """Maximum number of tokens in an answer. The limit also bounds the time for a version that does not stop by itself."""
    concurrency: int = Field(16, gt=0)
    """Maximum number of calls in flight."""
    endpoint: HttpUrl | None = None
    """Server to measure. Unset: the server of this run."""


class GateConfig(Section):
    max_correctness_drop: float = Field(0.10, ge=0, le=1)
    """Largest allowed drop in the share of correct answers. A candidate is refused if it falls further below the live version, the
    base version or the best version so far."""
    max_satisfaction_drop: float = Field(0.10, ge=0, le=1)
    """Largest allowed drop in satisfaction, by the same comparison."""
