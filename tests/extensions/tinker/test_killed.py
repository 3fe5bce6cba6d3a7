"""A trainer that is killed at any of its calls to a service that only records them."""

from pathlib import Path
from threading import Event
from typing import Any

import pytest

from clawctl.config import Recipe
from clawctl.extensions.tinker.adapter import members_of
from clawctl.extensions.tinker.sequences import TokenSequence
from clawctl.extensions.tinker.trainer import ServiceTrainer
from clawctl.run.directory import RunDir
from clawctl.run.policies import ensure_base_policy, list_versions, read_policy
from clawctl.train.loop import run_training
from tests.extensions.tinker.test_adapter import archive
from tests.train.tiny import Sampler, make_recipe, publish_turns

CALLS = 7  # of a step: logprobs, backward, update, save_state, download, the canary's logprobs, and the commit


class Killed(BaseException):
    pass


class MemoryService:
    """Saved states: by path, the trained sequences of each update, in order."""

    name, base_model, context = "memory", "tiny", None

    def __init__(self) -> None:
        self.states: dict[str, list[list[tuple[int, ...]]]] = {}
        self.borders_left: int | None = None

    def border(self) -> None:
        if self.borders_left is not None:
            self.borders_left -= 1
            if self.borders_left < 0:
                raise Killed

    def create(self, recipe: Recipe) -> "MemoryClient":
        return MemoryClient(self, [])

    def restore(self, state: str, with_optimizer: bool) -> "MemoryClient":
        return MemoryClient(self, self.states[state])


class MemoryClient:
    def __init__(self, service: MemoryService, updates: list[list[tuple[int, ...]]]) -> None:
        self.service, self.updates, self.pending = service, list(updates), list[tuple[int, ...]]()

    def logprobs(self, sequences: list[TokenSequence]) -> list[list[float]]:
        self.service.border()
        return [[-1.0] * (len(sequence.ids) - sequence.start) for sequence in sequences]

    def backward(self, sequences: list[TokenSequence], logprobs: Any, slopes: Any) -> None:
        self.pending += [tuple(sequence.ids) for sequence in sequences]
        self.service.border()

    def update(self, config: Any, lr: float, loss: str) -> None:
        self.updates.append(self.pending)
        self.pending = []
        self.service.border()

    def save_state(self, name: str) -> str:
        path = f"memory://{len(self.service.states)}/{name}"
        self.service.states[path] = list(self.updates)
        self.service.border()
        return path

    def download(self, name: str) -> dict[str, bytes]:
        self.service.border()
        return members_of(archive())


def train(run: RunDir, recipe: Recipe, service: Any) -> None:
    run_training(run, recipe, ServiceTrainer(recipe, service), Event(), once=True)


@pytest.mark.parametrize("point", range(2, 2 + 2 * (CALLS - 1)))
def test_killed_at_any_call_no_turn_is_in_the_weights_twice(point: int, run: RunDir, sampler: Sampler, model_path: Path) -> None:
    lora = {"rank": 2, "alpha": 32.0, "targets": ["q_proj"]}
    recipe = make_recipe(model_path, method="binary", lora=lora, batch_min_turns=4, max_mismatch=1e9)
    turns = publish_turns(run, sampler, 12, temperature=1.0)
    ensure_base_policy(run, recipe.model.path)
    service = MemoryService()
    service.borders_left = point
    with pytest.raises(Killed):
        train(run, recipe, service)
    service.borders_left = None
    train(run, recipe, service)
    last = list_versions(run)[-1]
    assert last == 3
    state = (run.version_folder(last) / "service.json").read_text().split('"state": "')[1].split('"')[0]
    trained = [sequence for update in service.states[state] for sequence in update]
    assert sorted(trained) == sorted((*(turn.prompt_ids or ()), *(turn.completion_ids or ())) for turn in turns)
    named = [turn for version in range(1, 4) for turn in read_policy(run, version).turns]
    assert sorted(named) == sorted(turn.turn_id for turn in turns)
