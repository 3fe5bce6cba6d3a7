"""Turns in the form of the protocol: one sequence each, shifted by one position, with a number for each target.

The protocol's `importance_sampling` loss of a token is -exp(logp - logprob) * advantage. With the policy's own logprobs the ratio
is 1, so the gradient with respect to logp is -advantage. With advantage = -dL/dlogp the service computes the gradient of any loss L
over sampled tokens: of each surrogate, penalty and term. L and its derivative are computed on this machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from clawctl.train.sample import Sample

LOSS = "importance_sampling"


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """A sequence and the index of its completion: prompt [5, 6] and completion [7, 8] are ids [5, 6, 7, 8] and start 2.

    With `scored` [1, 2] the logprobs are those of token 1 after [5, 6], and of token 2 after [5, 6, 7].
    """

    ids: list[int]
    start: int
    scored: Sequence[int] | None = None  # [T] other tokens at the completion's positions; None: the completion itself

    @property
    def targets(self) -> int:
        """Number of positions of the datum: every token except the first is predicted."""
        return len(self.ids) - 1

    def completion(self, values: Sequence[float]) -> list[float]:
        """The values at the completion's tokens. `values` has one value per target."""
        return list(values[self.start - 1 :])

    def scoring(self, ids_TK: Sequence[Sequence[int]]) -> "list[TokenSequence]":
        """The same sequence K times, once for each column of tokens."""
        return [TokenSequence(self.ids, self.start, column) for column in zip(*ids_TK, strict=True)]

    def inputs(self, logprobs_T: Sequence[float] | None = None, slopes_T: Sequence[float] | None = None) -> dict[str, Any]:
        """The inputs of the loss. `slopes_T` are -dL/dlogp of the completion's tokens; at all other positions they are 0."""
        before, count = [0.0] * (self.start - 1), len(self.ids) - self.start
        return {
            "target_tokens": [*self.ids[1 : self.start], *(self.ids[self.start :] if self.scored is None else self.scored)],
            "logprobs": [*before, *(logprobs_T if logprobs_T is not None else [0.0] * count)],
            "advantages": [*before, *(slopes_T if slopes_T is not None else [0.0] * count)],
        }


def sequence_of(sample: Sample, prompt: Sequence[int] | None = None) -> TokenSequence:
    """The completion after its own prompt, or after `prompt`, such as the one with the hint."""
    prompt = sample.prompt_ids if prompt is None else prompt
    return TokenSequence([*prompt, *sample.completion_ids], len(prompt))


def scale_of(sequence: TokenSequence, count: int, loss: Literal["sum", "mean"]) -> float:
    """The factor for a sequence's slopes that makes the service's gradient that of the sum over all tokens. A service with `mean`
    divides by the sequence's targets and by the step's `count` of sequences."""
    return 1.0 if loss == "sum" else float(sequence.targets * count)
