"""The policy loss and the top-k losses, against numbers worked by hand."""

import math

import pytest
import torch
from torch import Tensor

from clawctl.config import TrainConfig
from clawctl.train.advantages.off_policy import clip_of, correction_of
from clawctl.train.sample import Sample
from clawctl.trainers.local.losses import (
    Correction,
    log_other,
    policy_loss,
    sequence_ratios,
    subset_loss,
    topk_divergence,
    unclipped_tokens,
)
from clawctl.trainers.local.objective import anchor_weight

NOW, SAMPLER = [0.5, 0.4, 0.1, 0.6], [0.4, 0.5, 0.1, 0.2]  # ratios 1.25, 0.8, 1, 3
ADVANTAGES = [1.0, -2.0, 0.5, 1.0]


def logs(values: list[float]) -> Tensor:
    return torch.tensor(values).log()


def loss_and_gradient(correction: Correction, count: int = 1, lengths: tuple[int, ...] = (2, 2)) -> tuple[float, list[float]]:
    now = logs(NOW).requires_grad_()
    loss = policy_loss(now, logs(SAMPLER), torch.tensor(ADVANTAGES), lengths, count, correction)
    loss.backward()
    assert now.grad is not None
    return float(loss.detach()), now.grad.tolist()


def test_policy_loss_of_three_tokens_equals_the_formula_by_hand() -> None:
    now = logs(NOW[:3]).requires_grad_()
    loss = policy_loss(now, logs(SAMPLER[:3]), torch.tensor(ADVANTAGES[:3]), [3], 10, Correction(threshold=0.2, penalty=0.1))
    # ratios 1.25, 0.8, 1; none is masked: -(1·1.25 - 2·0.8 + 0.5·1) + 0.1·(ln²1.25 + ln²0.8) = -0.15 + 0.2·ln²1.25, over 10
    log_ratio = math.log(1.25)
    assert float(loss.detach()) == pytest.approx((-0.15 + 0.2 * log_ratio**2) / 10, rel=1e-5)
    loss.backward()
    # d/d logp = (-A·r + 2·penalty·log r) / 10
    by_hand = [(-1.25 + 0.2 * log_ratio) / 10, (1.6 - 0.2 * log_ratio) / 10, -0.05]
    assert now.grad is not None
    assert now.grad.tolist() == pytest.approx(by_hand, rel=1e-5)


def test_a_token_that_moved_far_the_way_it_is_pushed_is_left_out_in_both_directions() -> None:
    now, sampler = logs([0.9, 0.9, 0.1, 0.1, 0.6]), logs([0.5, 0.5, 0.5, 0.5, 0.5])
    advantages = torch.tensor([1.0, -1.0, -1.0, 1.0, 1.0])
    # up 0.4, pushed up: out; up 0.4, pushed down: kept; down 0.4, pushed down: out; down 0.4, pushed up: kept; up 0.1: kept
    correction = Correction(threshold=0.2, penalty=0.0)
    assert unclipped_tokens(now, sampler, advantages, [5], correction).tolist() == [False, True, False, True, True]
    loss = policy_loss(now, sampler, advantages, [5], 1, correction)
    assert float(loss) == pytest.approx(1.8 - 0.2 - 1.2, rel=1e-5)  # -A·r of the second, fourth and fifth token


def test_a_masked_token_has_no_policy_gradient_but_keeps_its_penalty() -> None:
    now, sampler = logs([0.9]).requires_grad_(), logs([0.5])
    policy_loss(now, sampler, torch.tensor([1.0]), [1], 1, Correction(penalty=0.01)).backward()
    assert now.grad is not None
    assert float(now.grad[0]) == pytest.approx(2 * 0.01 * math.log(1.8), rel=1e-5)


def test_ppo_clip_is_pessimistic_and_gives_a_clipped_token_no_gradient() -> None:
    # clip to [0.8, 1.28]; min(r·A, clip·A): 1.25; min(-1.6, -1.6) = -1.6; 0.5; min(3, 1.28) = 1.28 -> -(1.25 - 1.6 + 0.5 + 1.28)
    correction = Correction("ppo_clip", clip_low=0.2, clip_high=0.28, penalty=0.0)
    loss, gradient = loss_and_gradient(correction)
    assert loss == pytest.approx(-1.43, rel=1e-5)
    assert gradient[0] == pytest.approx(-1.25, rel=1e-5)
    assert gradient[2:] == pytest.approx([-0.5, 0.0], rel=1e-5)
    # a ratio of 3 on a bad token is not forgiven: min(-3, -1.28) = -3
    bad = policy_loss(logs([0.6]), logs([0.2]), torch.tensor([-1.0]), [1], 1, correction)
    assert float(bad) == pytest.approx(3.0, rel=1e-5)
    acts = unclipped_tokens(logs([0.6, 0.6, 0.1, 0.1]), logs([0.2] * 4), torch.tensor([1.0, -1.0, -1.0, 1.0]), [4], correction)
    assert acts.tolist() == [False, True, False, True]


def test_tis_caps_the_weight_of_a_token_and_leaves_none_out() -> None:
    correction = Correction("tis", cap=2.0, penalty=0.0)
    loss, gradient = loss_and_gradient(correction)
    # weights min(r, 2): 1.25, 0.8, 1, 2; gradient -w·A
    assert gradient == pytest.approx([-1.25, 1.6, -0.5, -2.0], rel=1e-5)
    by_hand = -(1.25 * math.log(0.5) - 1.6 * math.log(0.4) + 0.5 * math.log(0.1) + 2 * math.log(0.6))
    assert loss == pytest.approx(by_hand, rel=1e-5)
    assert unclipped_tokens(logs([0.99]), logs([0.01]), torch.tensor([1.0]), [1], correction).tolist() == [True]


def test_cispo_clips_the_weight_on_both_sides_and_keeps_every_gradient() -> None:
    _, gradient = loss_and_gradient(Correction("cispo", clip_low=0.1, clip_high=0.5, penalty=0.0))
    # weights clip(r, 0.9, 1.5): 1.25, 0.9, 1, 1.5
    assert gradient == pytest.approx([-1.25, 1.8, -0.5, -1.5], rel=1e-5)


def test_gspo_weighs_all_tokens_of_a_turn_by_the_geometric_mean_of_their_ratios() -> None:
    # turns: (1.25, 0.8) -> 1; (1, 3) -> sqrt 3
    assert sequence_ratios(logs(NOW), logs(SAMPLER), [2, 2]).tolist() == pytest.approx([1.0, 1.0, 3**0.5, 3**0.5], rel=1e-5)
    loss, gradient = loss_and_gradient(Correction("gspo", clip_low=0.2, clip_high=1.0, penalty=0.0))
    # -(1·1 - 2·1) - sqrt 3·(0.5 + 1); each token has the gradient of its own logprob: -s·A
    assert loss == pytest.approx(1.0 - 1.5 * 3**0.5, rel=1e-5)
    assert gradient == pytest.approx([-1.0, 2.0, -0.5 * 3**0.5, -(3**0.5)], rel=1e-5)
    _, clipped = loss_and_gradient(Correction("gspo", clip_low=0.2, clip_high=0.5, penalty=0.0))  # sqrt 3 > 1.5
    assert clipped == pytest.approx([-1.0, 2.0, 0.0, 0.0], rel=1e-5)


@pytest.mark.parametrize("surrogate", ["dppo", "ppo_clip", "tis", "cispo", "gspo"])
def test_on_policy_every_correction_has_the_gradient_of_reinforce(surrogate: str) -> None:
    now = logs(NOW).requires_grad_()
    correction = correction_of(TrainConfig.model_validate({"off_policy": surrogate, "ratio_penalty": 1.0}))
    policy_loss(now, logs(NOW), torch.tensor(ADVANTAGES), [1, 3], 4, correction).backward()
    assert now.grad is not None
    assert now.grad.tolist() == pytest.approx([-a / 4 for a in ADVANTAGES], rel=1e-5)


@pytest.mark.parametrize("surrogate", ["dppo", "ppo_clip", "tis", "cispo", "gspo"])
def test_the_loss_of_a_step_is_the_sum_over_its_pieces(surrogate: str) -> None:
    correction = correction_of(TrainConfig.model_validate({"off_policy": surrogate}))
    now, sampler, advantages = logs(NOW), logs(SAMPLER), torch.tensor(ADVANTAGES)
    whole = policy_loss(now, sampler, advantages, [2, 2], 4, correction)
    parts = [policy_loss(now[i : i + 2], sampler[i : i + 2], advantages[i : i + 2], [2], 4, correction) for i in (0, 2)]
    assert float(whole) == pytest.approx(float(sum(parts)), rel=1e-6)


def test_each_correction_has_its_published_range_unless_the_recipe_names_another() -> None:
    assert clip_of(TrainConfig(), "ppo_clip") == (0.2, 0.28)
    assert clip_of(TrainConfig(), "gspo") == (3e-4, 4e-4)
    assert clip_of(TrainConfig(), "cispo") == (1.0, 4.0)
    assert clip_of(TrainConfig(clip_low=0.1, clip_high=0.3), "gspo") == (0.1, 0.3)


def test_topk_divergence_is_the_kl_over_the_named_tokens_and_the_rest() -> None:
    # policy 1/2, 1/4 and 1/4 for the rest; teacher 1/4, 1/4 and 1/2 -> 1/2 ln 2 + 0 + 1/4 ln(1/2) = 1/4 ln 2
    policy, teacher = logs([0.5, 0.25])[None], logs([0.25, 0.25])[None]
    assert log_other(policy).exp().tolist() == pytest.approx([0.25])
    assert topk_divergence(policy, teacher).tolist() == pytest.approx([math.log(2) / 4], rel=1e-5)
    assert topk_divergence(policy, policy).tolist() == pytest.approx([0.0], abs=1e-7)


def test_the_gradient_of_the_divergence_is_that_of_a_kl_over_the_same_bins() -> None:
    # d/d logits of KL(p || q) = p (log p/q - KL), for the three bins as logits
    logits = torch.tensor([[0.3, -0.2, 0.1]], requires_grad=True)
    teacher = logs([0.2, 0.5, 0.3])[None]
    p = logits.detach().softmax(-1)
    topk_divergence(logits.log_softmax(-1)[:, :2], teacher[:, :2]).sum().backward()
    gap = p.log() - teacher
    by_hand = p * (gap - (p * gap).sum(-1, keepdim=True))
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, by_hand, atol=1e-6, rtol=1e-4)


def test_the_forward_divergence_restores_tokens_that_the_policy_abandoned_and_the_reverse_one_does_not() -> None:
    # two tokens and the rest; the policy abandoned the second token (1e-6), and the teacher prefers it (0.8)
    teacher = logs([0.15, 0.8])[None]
    pulls = {}
    for forward in (False, True):
        logits = logs([0.899999, 1e-6, 0.1])[None].requires_grad_()
        topk_divergence(logits.log_softmax(-1)[:, :2], teacher, forward).sum().backward()
        assert logits.grad is not None
        pulls[forward] = -float(logits.grad[0, 1])
    assert pulls[True] == pytest.approx(0.8 - 1e-6, rel=1e-3)  # q - p
    assert 0 < pulls[False] < 2e-5
    # policy 1/2, 1/4 and 1/4 for the rest; teacher 1/4, 1/4 and 1/2 -> 1/4 ln(1/2) + 0 + 1/2 ln 2 = 1/4 ln 2
    divergence = topk_divergence(logs([0.5, 0.25])[None], logs([0.25, 0.25])[None], forward=True)
    assert divergence.tolist() == pytest.approx([math.log(2) / 4], rel=1e-5)


@pytest.mark.parametrize(("forward", "value"), [(False, math.log(2)), (True, 0.25 * (math.log(0.25) + 40) + 0.5 * math.log(0.5))])
def test_a_policy_that_is_certain_has_a_finite_divergence(forward: bool, value: float) -> None:
    policy = torch.tensor([[0.0, -40.0]], requires_grad=True)  # all mass on the first: the rest rounds to 1e-7
    divergence = topk_divergence(policy, logs([0.5, 0.25])[None], forward)
    rest = 0.25 * (math.log(0.25) - math.log(1e-7)) if forward else 0.0
    assert float(divergence.detach()) == pytest.approx(value + rest, rel=1e-2)
    divergence.sum().backward()
    assert policy.grad is not None
    assert torch.isfinite(policy.grad).all()


def test_subset_loss_weighs_clipped_gaps_by_the_old_policy_within_the_subset() -> None:
    before = logs([0.6, 0.2])[None]  # w = 3/4, 1/4
    teacher = logs([0.3, 0.8])[None]  # gaps ln 1/2 and ln 4, clipped to ±1: -0.6931, 1
    now = before.clone().requires_grad_()
    loss = subset_loss(now, before, teacher, clip=1.0, low=0.2, high=0.28)
    a, b = -0.75 * math.log(2), 0.25
    assert float(loss.detach()) == pytest.approx(-a - b, rel=1e-5)  # both ratios are 1
    loss.sum().backward()
    assert now.grad is not None
    assert now.grad[0].tolist() == pytest.approx([-a, -b], rel=1e-5)
    moved = (before + torch.tensor([[math.log(0.5), math.log(2.0)]])).requires_grad_()  # down 2, up 2: both as they are pushed
    loss = subset_loss(moved, before, teacher, clip=1.0, low=0.2, high=0.28)
    assert float(loss.detach()) == pytest.approx(-a * 0.8 - b * 1.28, rel=1e-5)
    loss.sum().backward()
    assert moved.grad is not None
    assert moved.grad[0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("imported", "teacher_prompt", "divergences", "weight"),
    [
        (True, [1, 2], [0.01, 0.01], 1.0),
        (True, [1, 2], [0.02, 0.06], 2.0),  # the mean is twice what an anchor may move
        (True, [1, 2], [9.0, 9.0], 4.0),
        (True, [1, 2, 3], [9.0, 9.0], 1.0),  # the teacher reads a hint
        (False, [1, 2], [9.0, 9.0], 1.0),  # the policy's own answer, which somebody praised
    ],
)
def test_an_anchor_gets_more_weight_the_further_the_policy_has_moved(
    imported: bool, teacher_prompt: list[int], divergences: list[float], weight: float
) -> None:
    turn = Sample(
        "t", "s", "k", [1, 2], [3, 4], None if imported else [-1.0, -1.0], 0.7, 0, None, teacher_prompt, imported=imported
    )
    assert anchor_weight(turn, torch.tensor(divergences)) == pytest.approx(weight)
