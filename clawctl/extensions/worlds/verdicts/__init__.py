"""Verdicts on the files that an agent leaves behind.

Each verdict is computed in a fresh sandbox, from a snapshot taken after all of the agent's processes have ended. The tests are
added only then. They run in one sandbox and the graded code in another (`separation.py`). If the graded code stops, delays or
floods a verdict, the verdict is 0, because a policy learns every way to avoid grading. Only a sandbox that does not start is not
blamed on the policy.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from clawctl.environments import Verdict
from clawctl.extensions.worlds.sandbox import Sandbox, SandboxOver

_INSIDE = Path(__file__).parent
_LOG = 4000


TRUSTED: Verdict = "trusted"
UNVERIFIED: Verdict = "unverified"


@dataclass(frozen=True, slots=True)
class Graded:
    """The score of a verdict, 0 to 1, and its log."""

    value: float
    log: str
    verdict: Verdict = TRUSTED  # "unverified": it rests on something that the graded code says of itself
    cure: str = ""  # if the tests gave no verdict, because they did not end, crashed or wrote no number: what mends them

    def __post_init__(self) -> None:
        if not 0 <= self.value <= 1:
            raise ValueError(f"a score of {self.value!r} is not from 0 to 1")


def nothing(reason: str, cure: str = "") -> Graded:
    return Graded(0.0, reason, cure=cure)


async def confirmed(apart: Graded, together: Callable[[], Awaitable[Graded]]) -> Graded:
    """The verdict of tests apart from the graded code. What they find wrong there is confirmed with both in one sandbox.

    If they find the code better there, it forged that, or they need what does not cross between two sandboxes. The verdict is then
    unverified.
    """
    if apart.value == 1:
        return apart
    beside = await together()
    if beside.value <= apart.value:
        return apart
    reason = "the tests succeed only in one sandbox with the graded code, which could have forged that"
    return Graded(beside.value, f"not verified: {reason}\n{apart.log}", UNVERIFIED)


async def grade_files(sandbox: Sandbox, grade: Callable[[bytes], Awaitable[Graded]]) -> Graded:
    """End the sandbox's processes and grade the tar of its files. 0 if the agent leaves nothing to grade."""
    try:
        files = await sandbox.snapshot()
    except SandboxOver as error:
        return nothing(f"the sandbox ended before the verdict: {error}")
    except ValueError as error:
        return nothing(f"no snapshot: {error}")
    return await grade(files)


def shortened(text: str) -> str:
    return text if len(text) <= _LOG else f"{text[: _LOG // 2]}\n[…]\n{text[-_LOG // 2 :]}"


def inside(name: str) -> bytes:
    """The text of a program in this folder, which runs in the sandbox."""
    return (_INSIDE / name).read_bytes()
