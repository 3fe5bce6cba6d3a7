"""Verdicts on what an agent left behind.

Each is computed from a snapshot, taken after all of the agent's processes have ended, in a fresh sandbox. The tests are put in
only then, where the graded code cannot change them. If the graded code stops, delays or floods a verdict, it is 0: a policy
learns to take any exit from grading. Only a sandbox that does not start is not the policy's fault.
"""

from dataclasses import dataclass
from pathlib import Path

_INSIDE = Path(__file__).parent
_LOG = 4000


@dataclass(frozen=True, slots=True)
class Graded:
    """What a verdict says: 0 to 1, and why."""

    value: float
    log: str

    def __post_init__(self) -> None:
        if not 0 <= self.value <= 1:
            raise ValueError(f"a score of {self.value!r} is not from 0 to 1")


def nothing(reason: str) -> Graded:
    return Graded(0.0, reason)


def shortened(text: str) -> str:
    return text if len(text) <= _LOG else f"{text[: _LOG // 2]}\n[…]\n{text[-_LOG // 2 :]}"


def inside(name: str) -> bytes:
    """A program for the sandbox, from this folder."""
    return (_INSIDE / name).read_bytes()
