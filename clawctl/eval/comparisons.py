"""A comparison: one task, answered by a candidate and by a reference version."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Comparison:
    """One task answered by the candidate and by a reference version."""

    metric: str  # "preferred"
    task_id: str
    candidate: float  # 0 to 1, more is better
    reference: float  # 0 to 1; equal to `candidate`: a tie
    key: str = ""  # API key (hashed name) whose conversation this is; "" for built-in tasks
    detail: Mapping[str, Any] = field(default_factory=dict)  # what a person may look at: prompts, both answers, votes

    def __post_init__(self) -> None:
        for name, value in (("candidate", self.candidate), ("reference", self.reference)):
            if isinstance(value, str) or not 0 <= value <= 1:
                raise ValueError(f"{name} is {value!r}, not a number from 0 to 1")
