"""The probability of each score, read from the likeliest tokens of one answer.

A score at the beginning of an answer depends on the turn alone, so the probabilities of its tokens are the shares that any number
of sampled votes would approach. A score after reasoning depends on the reasoning that was sampled. It has no share here, and such
votes are sampled.
"""

import math
import re
from typing import Any, NamedTuple

LIKELIEST = 5  # tokens that are requested at each position
_BEGIN = "\\boxed{"
_SCORE = re.compile(r"\s*\\boxed\{\s*(?:(-)|(\+?1)|(0))")


class ScoreShare(NamedTuple):
    """Probabilities of the scores. The rest, up to 1, is anything else that the judge could have answered."""

    good: float
    neutral: float
    bad: float


def read_share(tokens: Any) -> ScoreShare | None:
    """The share in the `logprobs.content` of a chat completion. None if it is missing or the score does not come first."""
    try:
        return _read(tokens) if tokens else None
    except (TypeError, LookupError, ValueError):
        return None


def _read(tokens: list[dict[str, Any]]) -> ScoreShare | None:
    """Follow the sampled tokens up to the score. Each alternative that completes a score adds its probability to it."""
    begun, reached, shares = "", 1.0, {1: 0.0, 0: 0.0, -1: 0.0}
    for token in tokens:
        likeliest = {str(top["token"]): float(top["logprob"]) for top in token["top_logprobs"]}
        if not likeliest:
            return None
        likeliest[token["token"]] = float(token["logprob"])
        for text, logprob in likeliest.items():
            if (score := _score(begun + text)) is not None:
                shares[score] += reached * math.exp(logprob)
        begun, reached = begun + token["token"], reached * math.exp(token["logprob"])
        if _score(begun) is not None:
            return ScoreShare(shares[1], shares[0], shares[-1])
        if not _BEGIN.startswith(begun.strip()):
            return None
    return None


def _score(text: str) -> int | None:
    match = _SCORE.match(text)
    return None if match is None else -1 if match[1] else 1 if match[2] else 0
