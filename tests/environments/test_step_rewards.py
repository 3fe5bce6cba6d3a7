"""Rewards of single turns, from an environment to a gradient: played, captured, published, trained, explained."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from clawctl.collect.worker import collect
from clawctl.config import Recipe
from clawctl.environments.worker import play
from clawctl.judge.worker import judge
from clawctl.run.directory import published
from clawctl.run.handles import turn_of
from clawctl.run.outcomes import read_outcome
from clawctl.run.shards import read_turns
from clawctl.train.launch import train
from tests import forked
from tests.serve.served import Server, build_model

# The first attempt is worth 1 and the second 0. The second names its turn by the id that any client of the API sees.
CODE = """
from clawctl.environments import Outcome, Task
from clawctl.asking import complete, new_client

class Stepped:
    played = 0

    def tasks(self, split, count, seed):
        return [Task("only-1", "say a", split)]

    async def play(self, task, endpoint):
        first = not Stepped.played
        Stepped.played += 1
        messages, ids = [{"role": "user", "content": task.spec}], []
        async with new_client(endpoint) as client:
            for _ in range(2):
                answer = await complete(endpoint, messages, client, max_tokens=4)
                ids.append(answer["turn_id"])
                messages += [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": "again"}]
        if first:
            return Outcome(reward=1.0, steps={ids[0]: 0.5, ids[1]: -0.5})
        return Outcome(reward=0.0, steps={"chatcmpl" + ids[0]: -1.0})
"""


def why(root: Path, turn_id: str) -> Any:
    return orjson.loads(forked.run("inspect", "why", turn_id, "--run", root, "--json").stdout)


def test_the_step_rewards_of_an_environment_are_in_the_advantages_of_its_turns(tmp_path: Path) -> None:
    code, model = tmp_path / "stepped.py", build_model(tmp_path / "model")
    code.write_text(CODE)
    recipe = Recipe.model_validate({
        "model": {"path": str(model), "name": "tiny", "dtype": "float32"},
        "play": {"env": f"{code}:Stepped", "tasks": 1, "attempts": 2, "parallel": 1},
        "eval": {"holdout": 0},
        "serve": {"api_key": "key"},
        "train": {"method": "grpo", "step_wise": True, "group_std": False, "batch_turns": 4, "max_steps": 1, "threads": 1},
    })  # fmt: skip
    with Server(tmp_path / "run", model) as server:
        run = server.run
        play(run, recipe)
        collect(run, recipe, once=True)
    turns = [turn for path in published(run.trajectories, ".parquet") for turn in read_turns(path)]
    rewards = {(turn.outcome_reward, turn.turn_index): turn.step_reward for turn in turns}
    assert rewards == {(1.0, 0): 0.5, (1.0, 1): -0.5, (0.0, 0): -1.0, (0.0, 1): None}
    judge(run, recipe, once=True)
    train(run, recipe, once=True)
    # First turns are worth 1.5 and -1, second turns 0.5 and 0. Each is compared with the turn at the same position.
    expected = {(1.0, 0): (1.5, 1.25), (1.0, 1): (0.5, 0.25), (0.0, 0): (-1.0, -1.25), (0.0, 1): (0.0, -0.25)}
    for turn in turns:
        shown = why(run.root, turn.turn_id)
        reward, advantage = expected[turn.outcome_reward or 0.0, turn.turn_index]
        assert shown["numbers"]["reward"] == reward
        (term,) = shown["numbers"]["terms"].values()
        assert term["advantage_mean"] == pytest.approx(advantage)
        assert shown["episode"]["step_reward"] == turn.step_reward


@pytest.mark.parametrize("given", ["chatcmpl{}", "chatcmpl-{}", "msg_{}", "resp{}", "call{}0", "{}"])
def test_every_id_that_a_client_sees_names_its_turn(given: str) -> None:
    turn_id = "0123456789abcdefABCDEF01"
    assert turn_of(given.format(turn_id)) == turn_id
    outcome = read_outcome({"session_id": "s", "reward": 1.0, "steps": {given.format(turn_id): 0.5}}, "default", 1.0)
    assert outcome.steps == {turn_id: 0.5}
