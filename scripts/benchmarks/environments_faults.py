"""Case `faults`: one in five sandboxes fails, always at the same attempts. It measures the effect on the other advantages.

The stages are real: `serve`, `collect --env`, `collect`, `judge`, and the intake of the trainer. The reference is computed here
from the rewards of the environment: (r - mean) / std over the episodes of a group that did not fail.
"""

import argparse
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from transformers import AutoTokenizer

from clawctl.asking import ask
from clawctl.config import load_recipe
from clawctl.engines.vllm.child import free_port
from clawctl.environments import EpisodeFailed, Outcome, Split, Task
from clawctl.run.directory import RunDir, open_run
from clawctl.run.endpoint import Endpoint
from clawctl.train.feed import Feed
from clawctl.train.turn_queue import TurnQueue
from clawctl.trainers import Model
from clawctl.trainers.texts import TokenizerTexts
from scripts.benchmarks.chaos_stages import Stage
from scripts.benchmarks.circle import write_recipe
from scripts.benchmarks.table import Row

ATTEMPTS, TASKS, QUICK_TASKS, SHARE = 8, 16, 6, 0.2
RECIPE = {
    "collect": {"shard_age_s": 0.2},
    "train": {"method": "grpo", "batch_turns": 4096, "batch_min_turns": 1, "batch_wait_s": 1.0},
    "gate": None,
}
_LATER_S = 86_400.0


def place_of(endpoint: Endpoint) -> tuple[int, int]:
    """Return the task number and the attempt of an episode. Its session id is PLAN-NUMBER-ATTEMPT-RANDOM."""
    _, number, attempt, _ = endpoint.headers["X-Session-Id"].split("-")
    return int(number), int(attempt)


def reward_of(number: int, attempt: int) -> float | None:
    """Return the reward of an attempt, or None if its sandbox fails."""
    dice = random.Random(f"faults {number} {attempt}")
    return None if dice.random() < SHARE else dice.choice((-1.0, 0.0, 0.5, 1.0))


class Faulty:
    """Makes two calls. Then the sandbox fails, or the task and the attempt determine the reward."""

    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        return [Task(f"faulty-{number}", number, split) for number in range(count)]

    async def play(self, task: Task, endpoint: Endpoint) -> Outcome:
        number, attempt = place_of(endpoint)
        messages = [{"role": "user", "content": f"Attempt {attempt} at {task.id}"}]
        messages.append({"role": "assistant", "content": await ask(endpoint, messages, max_tokens=4)})
        reward = reward_of(number, attempt)
        if reward is None:
            raise EpisodeFailed("sandbox", "this sandbox always fails")
        await ask(endpoint, [*messages, {"role": "user", "content": "Go on."}], max_tokens=4)
        return Outcome(reward=reward)


def rows(options: argparse.Namespace, folder: Path) -> list[Row]:
    tasks = QUICK_TASKS if options.quick else TASKS
    run, recipe = open_run(folder / "run"), write_recipe(folder, RECIPE)
    serve = Stage("serve", run, recipe, free_port())
    serve.start()
    try:
        serve.wait_ready()
        name = f"{Path(__file__).resolve()}:Faulty"
        clawctl(run, recipe, "collect", "--env", name, "--tasks", str(tasks), "--attempts", str(ATTEMPTS), "--parallel", "16")
        clawctl(run, recipe, "collect", "--once")
        clawctl(run, recipe, "judge", "--once")
    finally:
        serve.kill()
    return measured(run, recipe, tasks)


def clawctl(run: RunDir, recipe: Path, *options: str) -> str:
    """Run a command and return its standard output. Raises SystemExit if it fails."""
    command = [sys.executable, "-m", "clawctl", *options, "--run", str(run.root), "--recipe", str(recipe)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"clawctl {' '.join(options)} failed: {done.stderr[-2000:]}")
    return done.stdout


def measured(run: RunDir, recipe: Path, tasks: int) -> list[Row]:
    settings = load_recipe(recipe)
    tokenizer = AutoTokenizer.from_pretrained(settings.model_path)
    feed = Feed(TurnQueue(run, settings.train, Model(TokenizerTexts(tokenizer, len(tokenizer)), adapter=True, exact=True), {}))
    batch = feed.next_batch(0, time.time() + _LATER_S)
    advantages: dict[tuple[int, int], set[float]] = {}
    for sample in batch.samples if batch is not None else []:
        _, told_number, told_attempt, _ = sample.session_id.split("-")
        advantages.setdefault((int(told_number), int(told_attempt)), set()).add(sample.credit or 0.0)
    change, counted, failed = 0.0, 0.0, 0
    for number in range(tasks):
        rewards = {attempt: reward_of(number, attempt) for attempt in range(ATTEMPTS)}
        graded = {attempt: reward for attempt, reward in rewards.items() if reward is not None}
        failed += len(rewards) - len(graded)
        expected = standardised(graded)
        as_failures = standardised({attempt: -1.0 if reward is None else reward for attempt, reward in rewards.items()})
        for attempt, credit in expected.items():
            measured = advantages.pop((number, attempt), {0.0})
            change = max(change, *(abs(value - credit) for value in measured))
            counted = max(counted, abs(as_failures.get(attempt, 0.0) - credit))
    return [
        Row("faults", "advantage_change", change if not advantages else float("inf"), "of survivors, largest"),
        Row("faults", "advantage_change_if_failures_were_minus_one", counted, "of survivors, largest"),
        Row("faults", "failed_share", failed / (tasks * ATTEMPTS), "share of attempts"),
        Row("faults", "groups", float(tasks), f"of {ATTEMPTS} attempts"),
    ]


def standardised(rewards: dict[int, float]) -> dict[int, float]:
    """Subtract the mean and divide by the population's standard deviation. Returns 0 for all if they are equal."""
    mean = sum(rewards.values()) / max(1, len(rewards))
    std = (sum((reward - mean) ** 2 for reward in rewards.values()) / max(1, len(rewards))) ** 0.5
    return {attempt: (reward - mean) / (std + 1e-6) if std > 0 else 0.0 for attempt, reward in rewards.items()}
