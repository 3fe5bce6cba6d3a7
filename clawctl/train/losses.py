"""The formulas: tensors in, tensors out. They know no recipe, no rank and no file.

Everywhere a stream's [t] speaks of token [t]; the one shift by a position happens in `token_logprobs`.
"""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

LOGITS_AT_ONCE = 2**26  # float32 values of logits alive at a time: 256 MiB


def token_logprobs(
    hidden_BTD: Tensor, head: nn.Module, ids_BT: Tensor, where_BT: Tensor, temperature_B: Tensor, at_once: int = LOGITS_AT_ONCE
) -> Tensor:
    """Logprob of each token that `where_BT` marks, given everything before it: [N], in row order, float32.

    `head` maps hidden states to logits. Only marked positions are projected, and no more than `at_once` logits live at a
    time: a longer batch is projected in pieces that the backward pass computes again. The first token of a sequence has nothing
    before it: marking it raises ValueError.
    """
    if bool(where_BT[:, 0].any()):
        raise ValueError("the first token of a sequence has no logprob")
    rows_N, columns_N = where_BT.nonzero(as_tuple=True)
    hidden_ND = hidden_BTD[rows_N, columns_N - 1]
    ids_N, temperature_N = ids_BT[rows_N, columns_N], temperature_B[rows_N]
    vocabulary = getattr(head, "out_features", None) or head(hidden_ND[:1]).shape[-1]
    size = max(1, at_once // vocabulary)
    if len(ids_N) <= size:
        return _project(hidden_ND, head, ids_N, temperature_N)
    pieces = zip(hidden_ND.split(size), ids_N.split(size), temperature_N.split(size), strict=True)
    if not torch.is_grad_enabled():
        return torch.cat([_project(hidden, head, ids, temperature) for hidden, ids, temperature in pieces])
    return torch.cat([checkpoint(_project, hidden, head, ids, temp, use_reentrant=False) for hidden, ids, temp in pieces])


def _project(hidden_ND: Tensor, head: nn.Module, ids_N: Tensor, temperature_N: Tensor) -> Tensor:
    logits_NV: Tensor = head(hidden_ND).float() / temperature_N[:, None]
    return logits_NV.gather(1, ids_N[:, None]).squeeze(1) - logits_NV.logsumexp(1)


def kept_tokens(logprobs_N: Tensor, sampler_N: Tensor, advantages_N: Tensor, threshold: float) -> Tensor:
    """False where a token's probability has already moved by more than `threshold` the way its advantage pushes.

    DPPO's total-variation mask as prime-rl has it (`trainer/rl/loss.py`), with one threshold for both directions.
    """
    moved_N = logprobs_N.exp() - sampler_N.exp()
    return ~((advantages_N > 0) & (moved_N > threshold) | (advantages_N < 0) & (moved_N < -threshold))


def policy_loss(
    logprobs_N: Tensor, sampler_N: Tensor, advantages_N: Tensor, count: int, threshold: float, penalty: float
) -> Tensor:
    """sum(-keep * A * r + penalty * (log r)^2) / count, with r = exp(logprob now - logprob of the sampler): a scalar.

    The two-policy ratio corrects turns that an older version sampled, without a third forward pass; the mask takes the place of a
    clip (prime-rl's core). `count` is the number of tokens of this term in the whole step, on all ranks and in all
    microbatches, so that the sum over pieces never depends on how the step is cut.
    """
    log_ratio_N = logprobs_N - sampler_N
    keep_N = kept_tokens(logprobs_N.detach(), sampler_N, advantages_N, threshold)
    return (penalty * log_ratio_N.square() - keep_N * advantages_N * log_ratio_N.exp()).sum() / count
