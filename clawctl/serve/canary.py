"""The canary of a policy: the trainer's logprobs of fixed prompts, which the engine must find as well before it goes live."""

from collections.abc import Callable, Sequence

from clawctl.run.directory import RunDir
from clawctl.run.policies import read_policy

EXACT, ROUNDED = 0.05, 0.3  # largest difference of a logprob from the trainer's float32, in float32 and below


class CanaryFailure(Exception):
    """The engine computes other logprobs than the trainer did."""


def check_canary(run: RunDir, version: int, score: Callable[[Sequence[int]], list[float]], tolerance: float) -> None:
    """Compare logprobs of a policy's canary prompts with the trainer's; `score` gives those of `ids[1:]`. Raises CanaryFailure."""
    canary = read_policy(run, version).canary
    if canary is None:
        return
    worst = 0.0
    try:
        for ids, expected in zip(canary["prompt_ids"], canary["logprobs"], strict=True):
            # The trainer's [t] belongs to token t; the first has none.
            pairs = zip(score(ids), expected[1:], strict=True)
            worst = max([worst, *(abs(ours - theirs) if ours == ours else float("inf") for ours, theirs in pairs)])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CanaryFailure(f"its canary cannot be read: {error}") from error
    if not worst <= tolerance:
        raise CanaryFailure(f"its canary differs by {worst:.3f} (limit {tolerance})")
