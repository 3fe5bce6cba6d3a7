"""No turn owns the gradient of its step."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from clawctl.run_dir import RunDir
from clawctl.train.influence import ABSURD, bound_of, likeliest_norms, sampled_norms, size_of, weight_of
from clawctl.train.measures import Measures
from clawctl.train.sample import Batch, Sample
from clawctl.train.step import Training, _add_gradients, _objective_of, gradients_of, train_step
from tests.train.test_train_step import begin
from tests.train.tiny import HINT, Sampler, publish_turns


def test_the_bound_is_a_multiple_of_the_mean_of_the_others_whatever_a_quarter_of_the_turns_does() -> None:
    calm = [1.0] * 15
    assert bound_of([*calm, 1e9], 1.5) == pytest.approx(1.5)
    assert bound_of([*calm, 1e9, *[0.0] * 40, math.inf, math.nan, ABSURD], 1.5) == pytest.approx(1.5)  # none of these counts
    several = bound_of([*calm[:12], *[1e9] * 4], 1.5)
    assert several == pytest.approx(1.5 * (12 + 3 * several) / 15)
    assert bound_of([1.0], 2.0) == bound_of([], 2.0) == math.inf
    assert bound_of(calm, None) == math.inf
    assert (weight_of(8.0, 2.0), weight_of(1.0, 2.0)) == (0.25, 1.0)
    assert weight_of(math.inf, 2.0) == weight_of(math.nan, 2.0) == 1.0


@pytest.mark.parametrize("factor", [1.0, 1.5, 3.0])
def test_no_step_is_silenced_because_most_of_its_turns_have_nothing_to_say(factor: float) -> None:
    few = [100.0] * 5 + [0.001] * 11
    assert bound_of(few, factor) >= 100.0


@pytest.mark.parametrize("factor", [1.0, 1.5, 3.0])
def test_the_bound_solves_its_own_equation_or_is_the_upper_quartile(factor: float) -> None:
    generator = torch.Generator().manual_seed(0)
    for count in (2, 3, 4, 7, 16, 33):
        for _ in range(20):
            sizes = torch.randn(count, generator=generator).mul(2).exp().tolist()
            bound = bound_of(sizes, factor)
            kept = [min(size, bound) for size in sizes]
            assert bound > 0
            if bound < max(sizes) and bound > sorted(sizes, reverse=True)[max(1, count // 4)]:
                assert bound == pytest.approx(factor * (sum(kept) - bound) / (count - 1))


def test_the_norms_are_those_of_the_gradient_with_respect_to_the_logits() -> None:
    torch.manual_seed(0)
    logits_TV = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    logprobs_TV = (logits_TV / 0.4).log_softmax(-1)
    pushes_TV = torch.randn(5, 7, dtype=torch.float64)
    (pushes_TV * logprobs_TV).sum().backward()
    assert logits_TV.grad is not None
    torch.testing.assert_close(likeliest_norms(pushes_TV, logprobs_TV.detach(), 0.4), logits_TV.grad.norm(dim=-1))
    logits_TV.grad = None
    sampled_T = (logits_TV / 0.4).log_softmax(-1)[:, 0]
    (3.0 * sampled_T).sum().backward()
    ratio_T = logits_TV.grad.norm(dim=-1) / sampled_norms(torch.full((5,), 3.0), sampled_T.detach(), 0.4)
    assert 1 <= float(ratio_T.min()) <= float(ratio_T.max()) <= 2**0.5


def test_equal_tokens_add_up_and_different_ones_hardly_do() -> None:
    tokens_T = torch.tensor([3.0, 4.0])
    assert size_of(tokens_T, torch.tensor([5, 5])) == pytest.approx(7.0)
    assert size_of(tokens_T, torch.tensor([5, 6])) == pytest.approx(math.sqrt(0.9 * 25 + 0.1 * 49))


def samples_of(sampler: Sampler, hostile: dict[str, Any]) -> list[Sample]:
    settings = [{"tokens": 12, "temperature": 1.0, "seed": n} for n in range(15)]
    turns = [
        sampler.turn(f"t{n}", **how) for n, how in enumerate([*settings, {"tokens": 12, "temperature": 1.0, "seed": 15, **hostile}])
    ]
    return [
        Sample(
            t.turn_id,
            "a",
            "",
            list(t.prompt_ids or []),
            list(t.completion_ids or []),
            list(t.logprobs or []),
            t.temperature,
            0,
            1.0,
            None,
        )
        for t in turns
    ]


def shares(training: Training, samples: list[Sample]) -> list[float]:
    norms = [math.sqrt(sum(float(g.square().sum()) for g in found)) for found in gradients_of(training, Batch(1, samples))]
    return [norm / sum(norms) for norm in norms]


@pytest.mark.parametrize("lora", [None, {"rank": 4}], ids=["full", "lora"])
@pytest.mark.parametrize(
    "hostile", [{"temperature": 0.1}, {"tokens": 400}, {"credit": -6.4}, {"temperature": 0.05, "tokens": 200}], ids=str
)
def test_no_turn_has_more_than_a_quarter_of_its_steps_gradient(
    run: RunDir, sampler: Sampler, model_path: Path, hostile: dict[str, Any], lora: Any
) -> None:
    credit = hostile.get("credit")
    samples = samples_of(sampler, {key: value for key, value in hostile.items() if key != "credit"})
    samples[-1] = replace(samples[-1], credit=credit)
    assert max(shares(begin(run, model_path, method="binary", lora=lora), samples)) <= 0.25


def test_turns_alike_are_not_touched(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    samples = samples_of(sampler, {})
    found = [train_step(begin(run, model_path, method="binary", turn_bound=bound), Batch(1, samples)).row for bound in (2.0, None)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0]["bounded_turns"] == found[1]["bounded_turns"] == 0
    assert found[0]["grad_norm"] == found[1]["grad_norm"]


@pytest.mark.parametrize("method", ["binary", "opd", "combine", "hybrid", "opd_topk"])
def test_the_bound_does_not_depend_on_how_the_step_is_cut(run: RunDir, sampler: Sampler, model_path: Path, method: str) -> None:
    """One pass, or many; and the parts of the turns, each computed alone, add up to the step."""
    publish_turns(run, sampler, 16)
    samples = samples_of(sampler, {"temperature": 0.1, "tokens": 60})
    asked = sampler.tokenizer(f"please {HINT}", add_special_tokens=False)["input_ids"]
    samples = [replace(s, teacher_prompt_ids=[*asked, *s.prompt_ids]) for s in samples]
    found = {}
    for tokens in (100_000, 150):
        training = begin(run, model_path, method=method, tokens_per_microbatch=tokens)
        measures = Measures()
        _add_gradients(training, Batch(1, samples), _objective_of(training, Batch(1, samples)), measures)
        found[tokens] = [p.grad.clone() for _, p in training.policy.trained() if p.grad is not None]
        assert measures.turns["t15"].bounded < 1
    for whole, cut in zip(found[100_000], found[150], strict=True):
        torch.testing.assert_close(whole, cut, atol=2e-5 * float(whole.abs().max()) + 1e-7, rtol=1e-3)
    training = begin(run, model_path, method=method)
    alone = [torch.stack(parts).sum(0) for parts in zip(*gradients_of(training, Batch(1, samples)), strict=True)]
    for whole, parts in zip(found[100_000], alone, strict=True):
        torch.testing.assert_close(whole, parts, atol=2e-5 * float(whole.abs().max()) + 1e-7, rtol=1e-3)
