"""A device that runs out of memory loses no step and no turn. The allocator that fails is a hook of the embedding."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from clawctl.run.directory import RunDir
from clawctl.run.policies import ensure_base_policy, list_versions
from clawctl.train import loop
from clawctl.train.ledger import read_ledger
from clawctl.trainers import Model
from clawctl.trainers.local.step import train_step
from clawctl.trainers.local.trainer import LocalTrainer
from clawctl.trainers.local.training import Training
from tests.train.tiny import Sampler, make_recipe, publish_shard, publish_turns
from tests.trainers.local.test_train_step import ALONE, begin, take, weights


def limit(training: Training, tokens: int) -> Any:
    """A pass of more tokens raises the allocator's error."""

    def refuse(module: Any, arguments: tuple[torch.Tensor, ...]) -> None:
        if arguments[0].numel() > tokens:
            raise torch.OutOfMemoryError(f"CUDA out of memory. {arguments[0].numel()} tokens")

    return training.policy.causal.get_input_embeddings().register_forward_pre_hook(refuse)


@contextmanager
def limited(training: Training, tokens: int) -> Iterator[None]:
    hook = limit(training, tokens)
    yield
    hook.remove()


class SmallDevice(LocalTrainer):
    """The local trainer on a device that holds so many tokens at a time."""

    tokens = 0

    def resume(self, version: int, checkpoint: Path | None, weights: Path | None) -> Model:
        model = super().resume(version, checkpoint, weights)
        limit(self.training, self.tokens)
        return model


def test_a_step_that_runs_out_of_memory_is_made_in_smaller_parts(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish_turns(run, sampler, 8)
    results = []
    for tokens in (10_000, 90):
        training = begin(run, model_path, batch_turns=8, turn_bound=None, lr=1e-4)
        with limited(training, tokens):
            result = train_step(training, take(run, training))
        assert result.row is not None
        assert (result.row["turns"], dict(result.refused)) == (8, {})
        results.append((result.row["loss"], weights(training)))
    assert training.config.local.tokens_per_microbatch <= 90
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-5)
    for name, value in results[0][1].items():
        torch.testing.assert_close(value, results[1][1][name], atol=1e-6, rtol=0)


def test_a_turn_that_does_not_fit_alone_is_refused_with_its_length_and_the_others_are_trained(
    run: RunDir, sampler: Sampler, model_path: Path
) -> None:
    long = [sampler.turn(f"long{i}", tokens=80 + 10 * i, seed=i) for i in range(2)]
    short = [sampler.turn(f"short{i}", tokens=8, seed=i) for i in range(6)]
    publish_shard(run, "a", [(turn, 1.0 if i % 2 else -1.0, None) for i, turn in enumerate([*long, *short])])
    recipe = make_recipe(model_path)
    ensure_base_policy(run, recipe.model.path)
    trainer = SmallDevice(recipe, ALONE)
    trainer.tokens = 60
    loop.run_training(run, recipe, trainer, threading.Event(), once=True)
    lengths = {turn.turn_id: len(turn.prompt_ids or []) + len(turn.completion_ids or []) for turn in long}
    outcomes = read_ledger(run)
    assert {turn_id for turn_id, outcome in outcomes.items() if outcome == "skipped"} == {"long0", "long1"}
    for turn_id, length in lengths.items():
        assert f"too long: {length} tokens" in (run.ledger / f"skipped-{turn_id}.json").read_text()
    assert sum(outcome == "trained" for outcome in outcomes.values()) == 6
    assert list_versions(run) == [0, 1, 2]


def test_settings_that_fitted_stay_for_the_next_step(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish_turns(run, sampler, 4)
    training = begin(run, model_path)
    with limited(training, 90):
        train_step(training, take(run, training))
        config = training.config
        train_step(training, take(run, training))
    assert training.config is config
