"""One task, answered by a candidate and by a reference version."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Comparison:
    """One task answered by the candidate and by a reference version."""

    metric: str  # "preferred"
    task_id: str
    candidate: float  # 0 to 1, higher is better
    reference: float  # 0 to 1; a tie if equal to `candidate`
    key: str = ""  # hashed name of the API key whose conversation this is; "" for built-in tasks
    detail: Mapping[str, Any] = field(default_factory=dict)  # for people to inspect: prompts, both answers, votes

    def __post_init__(self) -> None:
        for name, value in (("candidate", self.candidate), ("reference", self.reference)):
            if isinstance(value, str) or not 0 <= value <= 1:
                raise ValueError(f"{name} is {value!r}, not a number from 0 to 1")
