"""The loss formulas: tensors in, tensors out. They depend on no recipe, rank or file.

In every stream, [t] belongs to token [t]; the one shift by a position is made in `batches`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from clawctl.train.advantages.off_policy import Correction


def policy_loss(
    logprobs_N: Tensor,
    sampler_N: Tensor,
    advantages_N: Tensor,
    lengths: Sequence[int],
    count: int,
    correction: Correction,
    weights_N: Tensor | float = 1.0,
) -> Tensor:
    """sum(w (surrogate(A, r) + penalty * (log r)^2)) / count, with r = exp(logprob now - logprob of the sampler): a scalar.

    The two-policy ratio corrects turns that an older version sampled, without a third forward pass (as in prime-rl). The penalty
    is twice Schulman's k2 estimate of KL(sampler || policy) (joschu.net/blog/kl-approx.html). `count` is the number of tokens of
    this term in the whole step, on all ranks and in all microbatches. The sum over pieces therefore does not depend on how the step
    is split. `lengths` are the tokens of each turn, to which `gspo` gives one ratio. w is 1 unless a turn is bounded (`influence`).
    """
    log_ratio_N = logprobs_N - sampler_N
    losses_N = _surrogate(logprobs_N, sampler_N, advantages_N, lengths, correction)
    return (weights_N * (correction.penalty * log_ratio_N.square() + losses_N)).sum() / count


def _surrogate(logprobs_N: Tensor, sampler_N: Tensor, advantages_N: Tensor, lengths: Sequence[int], how: Correction) -> Tensor:
    """The loss of each token.

    `dppo`      -keep * A * r, with `keep` from `unclipped_tokens` (DPPO's total-variation mask, prime-rl's `trainer/rl/loss.py`)
    `ppo_clip`  -min(r * A, clip(r) * A): PPO (arXiv 1707.06347, eq. 7), anchored on the sampler; clip-higher of DAPO (2503.14476)
    `tis`       -sg(min(r, cap)) * A * log p: truncated importance sampling (Ionides 2008; V-trace, arXiv 1802.01561)
    `cispo`     -sg(clip(r)) * A * log p: MiniMax-M1 (arXiv 2506.13585, eq. 4 and 5)
    `gspo`      ppo_clip with s_t = sg(s) * p / sg(p) in place of r, s = exp(mean log r of the turn): GSPO-token (2507.18071, eq. 13
                and 14); summed over tokens, so that a turn's weight is its number of tokens, as for all others here
    """
    ratio_N = (logprobs_N - sampler_N).exp()
    if how.surrogate == "dppo":
        keep_N = unclipped_tokens(logprobs_N.detach(), sampler_N, advantages_N, lengths, how)
        return -(keep_N * advantages_N * ratio_N)
    if how.surrogate == "tis":
        return -ratio_N.detach().clamp(max=how.cap) * advantages_N * logprobs_N
    if how.surrogate == "cispo":
        return -ratio_N.detach().clamp(1 - how.clip_low, 1 + how.clip_high) * advantages_N * logprobs_N
    if how.surrogate == "gspo":
        ratio_N = sequence_ratios(logprobs_N.detach(), sampler_N, lengths) * (logprobs_N - logprobs_N.detach()).exp()
    return -torch.minimum(ratio_N * advantages_N, ratio_N.clamp(1 - how.clip_low, 1 + how.clip_high) * advantages_N)


def unclipped_tokens(
    logprobs_N: Tensor, sampler_N: Tensor, advantages_N: Tensor, lengths: Sequence[int], correction: Correction
) -> Tensor:
    """False for tokens that the correction leaves without policy gradient, because they have already moved too far in the direction
    of their advantage.

    For `dppo`, too far is a probability that differs by more than `threshold`; for `ppo_clip` and `gspo`, a ratio outside the clip
    range. `tis` and `cispo` bound a token's weight and exclude none.
    """
    if correction.surrogate in ("tis", "cispo"):
        return torch.ones_like(advantages_N, dtype=torch.bool)
    if correction.surrogate == "dppo":
        moved_N = logprobs_N.exp() - sampler_N.exp()
        low, high = -correction.threshold, correction.threshold
    else:
        of_turn = correction.surrogate == "gspo"
        moved_N = sequence_ratios(logprobs_N, sampler_N, lengths) if of_turn else (logprobs_N - sampler_N).exp()
        low, high = 1 - correction.clip_low, 1 + correction.clip_high
    return ~((advantages_N > 0) & (moved_N > high) | (advantages_N < 0) & (moved_N < low))


def sequence_ratios(logprobs_N: Tensor, sampler_N: Tensor, lengths: Sequence[int]) -> Tensor:
    """The geometric mean of a turn's ratios, for each of its tokens (GSPO, arXiv 2507.18071, eq. 7)."""
    turns = (logprobs_N - sampler_N).split(list(lengths))
    return torch.cat([turn_T.mean().exp().expand(len(turn_T)) for turn_T in turns])


def topk_divergence(policy_TK: Tensor, teacher_TK: Tensor, forward: bool = False) -> Tensor:
    """KL over K named tokens and one bin for all others, at each position: [T]. Reverse, or `forward`.

    sum_v p(v) (log p(v) - log q(v)) over the K tokens, plus the same for the rest: p(rest) = 1 - sum p(v). p is the policy, with
    gradient through the leading probability as well; q is the teacher. As OpenClaw-RL's top-k loss (after SDFT, arXiv 2601.19897,
    and SDPO, 2601.20802), but on the student's top-k. A lower bound of the KL over the whole vocabulary; it is 0 exactly if both
    agree on all K + 1 bins.

    `forward` is sum_v q(v) (log q(v) - log p(v)), the KL of supervised distillation (Hinton et al., arXiv 1503.02531) on the
    student's own answers (GKD, 2306.13649). With respect to the logit of a token, the gradient of the reverse KL has the factor
    p(v), so it vanishes where the policy assigns no probability; that of the forward KL is p(v) - q(v).
    """
    policy_T1, teacher_T1 = (log_other(values).unsqueeze(-1) for values in (policy_TK, teacher_TK))
    p, q = torch.cat([policy_TK, policy_T1], -1), torch.cat([teacher_TK, teacher_T1], -1)
    return (q.exp() * (q - p)).sum(-1) if forward else (p.exp() * (p - q)).sum(-1)


def log_other(logprobs_TK: Tensor) -> Tensor:
    """Logprob of being none of the K tokens: log(1 - sum p), with the sum held below 1 by the last bit of float32."""
    return torch.log(-torch.expm1(logprobs_TK.logsumexp(-1).clamp(max=-1e-7)))


def subset_loss(policy_TK: Tensor, before_TK: Tensor, teacher_TK: Tensor, clip: float, low: float, high: float) -> Tensor:
    """OpenClaw-RL's overlap-guided distillation (arXiv 2603.10165 v2) at each position, over the K tokens of a subset S: [T].

    w_v = softmax of log p_old over S; A_v = clip(log q_v - log p_old_v, ± clip) * w_v; r_v = p_v / p_old_v (whole vocabulary);
    sum_v max(-A_v r_v, -A_v clip(r_v, 1 - low, 1 + high)). No gradient flows through w and A.
    """
    advantages_TK = (teacher_TK - before_TK).clamp(-clip, clip) * before_TK.softmax(-1)
    ratio_TK = (policy_TK - before_TK).exp()
    return torch.maximum(-advantages_TK * ratio_TK, -advantages_TK * ratio_TK.clamp(1 - low, 1 + high)).sum(-1)
