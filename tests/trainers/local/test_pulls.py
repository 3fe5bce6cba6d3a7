"""The tokens towards which a hint moves the policy."""

import pytest
import torch

from clawctl.trainers.local.losses import topk_divergence
from clawctl.trainers.local.objective import MAX_PULLS, pulls


def test_pulls_are_minus_the_gradient_of_the_forward_kl_for_a_bias_of_the_output_layer() -> None:
    torch.manual_seed(0)
    logits_TV, teacher_TV = torch.randn(5, 9), torch.randn(5, 9).log_softmax(-1)
    bias_V = torch.zeros(9, requires_grad=True)
    policy_TV = (logits_TV + bias_V).log_softmax(-1)
    topk_divergence(policy_TV[:, :8], teacher_TV[:, :8], forward=True).sum().backward()
    assert bias_V.grad is not None
    ids_TK = torch.arange(8).expand(5, 8)
    pulled = pulls(ids_TK, teacher_TV[:, :8].exp() - policy_TV[:, :8].detach().exp())
    assert sorted(pulled) == list(range(8))
    assert [pulled[token] for token in range(8)] == pytest.approx((-bias_V.grad[:8]).tolist(), abs=1e-5)


def test_only_the_largest_pulls_are_kept_and_a_token_is_summed_over_its_places() -> None:
    ids_TK = torch.tensor([[3, 1], [1, 3]])
    assert pulls(ids_TK, torch.tensor([[0.5, -0.25], [-0.25, 0.125]])) == {3: 0.625, 1: -0.5}
    many = pulls(torch.arange(100)[:, None], torch.linspace(0, 1, 100)[:, None])
    assert sorted(many) == list(range(100 - MAX_PULLS, 100))
