"""The canary of a policy: the trainer's logprobs of fixed prompts. The engine must reproduce them before the policy goes live."""

from base64 import b64decode
from collections.abc import Callable, Sequence

from clawctl.run.directory import RunDir
from clawctl.run.policies import read_policy

# Maximum difference of a logprob from the trainer's float32, for engines in float32 and in lower precision.
EXACT, ROUNDED = 0.05, 0.3


class CanaryFailure(Exception):
    """The engine computes different logprobs than the trainer did."""


def check_canary(
    run: RunDir,
    version: int,
    score: Callable[[Sequence[int]], list[float]],
    tolerance: float,
    score_image: Callable[[Sequence[int], int, bytes], list[float]] | None = None,
) -> None:
    """Compare the engine's logprobs of a policy's canary prompts with the trainer's. `score` returns those of `ids[1:]`. Raises
    CanaryFailure.

    `score_image` also takes the position of an image among the ids, and its file. Without it the prompt with an image is skipped.
    """
    canary = read_policy(run, version).canary
    if canary is None:
        return
    try:
        # The trainer's entry [t] belongs to token t; the first token has no logprob.
        pairs = [
            pair
            for ids, expected in zip(canary["prompt_ids"], canary["logprobs"], strict=True)
            for pair in zip(score(ids), expected[1:], strict=True)
        ]
        if score_image is not None and (shown := canary.get("image")) is not None:
            scored = score_image(shown["prompt_ids"], shown["start"], b64decode(shown["content"]))
            pairs += zip(scored, shown["logprobs"][1:], strict=True)
        worst = max((abs(ours - theirs) if ours == ours else float("inf") for ours, theirs in pairs), default=0.0)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CanaryFailure(f"its canary cannot be read: {error}") from error
    if not worst <= tolerance:
        raise CanaryFailure(f"its canary differs by {worst:.3f} (limit {tolerance})")
