"""Turns in the form of Tinker's protocol, worked by hand."""

import pytest
import torch

from clawctl.extensions.tinker.sequences import TokenSequence, scale_of
from clawctl.extensions.tinker.trainer import size_of


def test_each_token_but_the_first_is_a_target_and_only_completions_carry_a_slope() -> None:
    sequence = TokenSequence([5, 6, 7, 8], start=2)
    assert sequence.inputs([-0.5, -0.25], [0.1, -0.2]) == {
        "target_tokens": [6, 7, 8],
        "logprobs": [0.0, -0.5, -0.25],
        "advantages": [0.0, 0.1, -0.2],
    }
    assert sequence.completion([-9.0, -0.5, -0.25]) == [-0.5, -0.25]


def test_importance_sampling_at_the_own_logprobs_has_the_gradient_of_any_loss() -> None:
    now_T = torch.tensor([-0.5, -1.5], requires_grad=True)
    (wanted,) = torch.autograd.grad((now_T.exp() * torch.tensor([2.0, -1.0])).sum() + 0.1 * now_T.square().sum(), now_T)
    inputs = TokenSequence([1, 2, 3], 1).inputs(now_T.tolist(), (-wanted).tolist())
    loss = -((now_T - torch.tensor(inputs["logprobs"])).exp() * torch.tensor(inputs["advantages"])).sum()
    (gradient,) = torch.autograd.grad(loss, now_T)
    torch.testing.assert_close(gradient, wanted)


@pytest.mark.parametrize(("loss", "factor"), [("sum", 1.0), ("mean", 9.0)])
def test_a_service_that_takes_means_gets_slopes_times_targets_and_sequences(loss: str, factor: float) -> None:
    assert scale_of(TokenSequence([1, 2, 3, 4], 2), count=3, loss=loss) == factor  # type: ignore[arg-type]


def test_the_size_of_a_turn_grows_with_slope_and_doubt() -> None:
    assert size_of(torch.tensor([0.5, -2.0]), torch.tensor([0.0, -0.6931472])) == pytest.approx(1.0)
