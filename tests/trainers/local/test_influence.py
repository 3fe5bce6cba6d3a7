"""No turn dominates the gradient of its step."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from clawctl.run.directory import RunDir
from clawctl.train.measures import Measures
from clawctl.train.sample import Batch, Sample
from clawctl.trainers.local.influence import ABSURD, bound_of, weight_of
from clawctl.trainers.local.objective import objective_of
from clawctl.trainers.local.step import add_gradients, backward, train_step
from clawctl.trainers.local.training import Training
from scripts.benchmarks.gradients import gradients_of
from tests.train.tiny import HINT, Sampler
from tests.trainers.local.test_train_step import begin


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
def test_the_bound_does_not_vanish_if_most_turns_have_almost_no_gradient(factor: float) -> None:
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
    norms = [math.sqrt(sum(float(g.square().sum()) for g in gradients)) for gradients in gradients_of(training, Batch(1, samples))]
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


@pytest.mark.parametrize("lora", [None, {"rank": 4}], ids=["full", "lora"])
def test_a_turn_of_a_session_owns_no_step_either(run: RunDir, sampler: Sampler, model_path: Path, lora: Any) -> None:
    """All sixteen turns are one conversation, and one of them was sampled at temperature 0.05."""
    ids, samples = sampler.tokenizer("please solve the homework", add_special_tokens=False)["input_ids"], []
    for n in range(16):
        turn = sampled_behind(sampler, f"t{n}", [*ids, 1, 5 + n, 2], 0.05 if n == 7 else 1.0, n)
        samples.append(turn)
        ids = [*turn.prompt_ids, *turn.completion_ids]
    training = begin(run, model_path, method="binary", lora=lora)
    assert max(shares(training, samples)) <= 0.25
    training.config = training.config.model_copy(update={"turn_bound": None})
    assert shares(training, samples)[7] > 0.25


@torch.no_grad()
def sampled_behind(sampler: Sampler, name: str, prompt: list[int], temperature: float, seed: int) -> Sample:
    generator, ids, logprobs = torch.Generator().manual_seed(seed), list(prompt), []
    for _ in range(8):
        scaled = (sampler.model(input_ids=torch.tensor([ids])).logits[0, -1].float() / temperature).log_softmax(-1)
        ids.append(int(torch.multinomial(scaled.exp(), 1, generator=generator)))
        logprobs.append(float(scaled[ids[-1]]))
    return Sample(name, "a", "", prompt, ids[len(prompt) :], logprobs, temperature, 0, 1.0, None)


@pytest.mark.parametrize(("lora", "within"), [(None, 4.0), ({"rank": 4}, 1.5)], ids=["full", "lora"])
def test_the_size_of_a_turn_is_nearly_the_norm_of_its_gradient_times_what_all_have_in_common(
    run: RunDir, sampler: Sampler, model_path: Path, lora: Any, within: float
) -> None:
    samples = samples_of(sampler, {"temperature": 0.05, "tokens": 100})
    training = begin(run, model_path, method="binary", lora=lora)
    sizes = backward(training, samples, objective_of(training.config, Batch(1, samples)), Measures())
    training.config = training.config.model_copy(update={"turn_bound": None})
    norms = [math.sqrt(sum(float(g.square().sum()) for g in gradients)) for gradients in gradients_of(training, Batch(1, samples))]
    ratios = sorted(norm / sizes[sample.turn_id] for sample, norm in zip(samples, norms, strict=True))
    assert ratios[-1] / ratios[0] < within


def test_turns_alike_are_not_touched(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    samples = samples_of(sampler, {})
    rows = [train_step(begin(run, model_path, method="binary", turn_bound=bound), Batch(1, samples)).row for bound in (2.0, None)]
    assert rows[0] is not None
    assert rows[1] is not None
    assert rows[0]["bounded_turns"] == rows[1]["bounded_turns"] == 0
    assert rows[0]["grad_norm"] == rows[1]["grad_norm"]


@pytest.mark.parametrize("method", ["binary", "opd", "combine", "hybrid", "opd_topk"])
def test_the_bound_does_not_depend_on_how_sessions_are_packed(run: RunDir, sampler: Sampler, model_path: Path, method: str) -> None:
    """In tries or a row each; and the parts of the turns, each computed alone, add up to the step."""
    samples = hinted(sampler, samples_of(sampler, {"temperature": 0.1, "tokens": 60}))
    gradients = {}
    for merge in ("tree", "none"):
        training = begin(run, model_path, method=method, merge=merge)
        measures = Measures()
        add_gradients(training, objective_of(training.config, Batch(1, samples)), measures)
        gradients[merge] = [p.grad.clone() for _, p in training.policy.trained() if p.grad is not None]
        assert measures.turns["t15"].bounded < 1
        assert set(measures.turns) == {sample.turn_id for sample in samples}
    alone = [torch.stack(parts).sum(0) for parts in zip(*gradients_of(training, Batch(1, samples)), strict=True)]
    for whole, rows, parts in zip(gradients["tree"], gradients["none"], alone, strict=True):
        torch.testing.assert_close(whole, rows, atol=2e-5 * float(whole.abs().max()) + 1e-7, rtol=1e-3)
        torch.testing.assert_close(whole, parts, atol=2e-5 * float(whole.abs().max()) + 1e-7, rtol=1e-3)


def hinted(sampler: Sampler, samples: list[Sample]) -> list[Sample]:
    hint_ids = sampler.tokenizer(f"please {HINT}", add_special_tokens=False)["input_ids"]
    return [replace(s, teacher_prompt_ids=[*hint_ids, *s.prompt_ids]) for s in samples]
