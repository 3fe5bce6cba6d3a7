"""The sets of tokens that structured answers were drawn from, as tensors. Logits of all other tokens are ignored."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from clawctl.run.allowed_tokens import Allowed

# A hidden logit. Its softmax is exactly 0 in float32, and the difference of two hidden logits is finite, unlike that of infinities.
HIDDEN = -1e6


@dataclass(frozen=True, slots=True)
class Masks:
    """The sets of N scored tokens over a vocabulary of V: M different sets."""

    which_N: Tensor  # index of each token's set; -1: any token could be drawn
    sets_MB: Tensor  # uint8, one bit per token of the vocabulary, lowest first

    def hide(self, logits_NV: Tensor, at: slice) -> Tensor:
        """The logits of the tokens `at`, with all tokens hidden that were not allowed there."""
        hidden_NV = self._hidden(at, logits_NV.shape[1])
        return logits_NV if hidden_NV is None else logits_NV.masked_fill(hidden_NV, HIDDEN)

    def fill_(self, values_NV: Tensor, at: slice, value: float = HIDDEN) -> Tensor:
        """Set `value` in place for all tokens that were not allowed: for logits without autograd, and for their gradients (0)."""
        hidden_NV = self._hidden(at, values_NV.shape[1])
        return values_NV if hidden_NV is None else values_NV.masked_fill_(hidden_NV, value)

    def _hidden(self, at: slice, vocabulary: int) -> Tensor | None:
        which_N = self.which_N[at]
        masked_N = which_N >= 0
        if not bool(masked_N.any()):
            return None
        sets_NB1 = self.sets_MB[which_N.clamp(min=0)].unsqueeze(-1)
        bits_NB8 = (sets_NB1 >> torch.arange(8, dtype=torch.uint8, device=sets_NB1.device)) & 1
        return (bits_NB8.flatten(1)[:, :vocabulary] == 0) & masked_N[:, None]


def masks_of(allowed: Sequence[Allowed | None], lengths: Sequence[int], device: torch.device) -> Masks | None:
    """The masks of branches with these sets and numbers of scored tokens; None if all tokens were allowed everywhere."""
    numbers: dict[bytes, int] = {}
    which: list[int] = []
    for each, length in zip(allowed, lengths, strict=True):
        if each is None:
            which += [-1] * length
            continue
        own = [numbers.setdefault(bits, len(numbers)) for bits in each.sets]
        which += [own[index] if index >= 0 else -1 for index in each.which]
    if not numbers:
        return None
    sets_MB = torch.from_numpy(np.frombuffer(b"".join(numbers), np.uint8).reshape(len(numbers), -1).copy())
    return Masks(torch.tensor(which, device=device), sets_MB.to(device))
