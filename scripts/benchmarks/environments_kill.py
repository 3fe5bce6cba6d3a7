"""Case `kill`: two workers play continuously, and in each round `serve`, `collect` or a worker is killed by SIGKILL.

Then all started tasks are played to their end. Each attempt must be in the outcomes and in the published turns.
"""

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from clawctl.asking import ask
from clawctl.cut_calls import CUT_CALL
from clawctl.engines.vllm.child import free_port
from clawctl.environments import Outcome, Split, Task
from clawctl.run.directory import RunDir, open_run, published
from clawctl.run.endpoint import Endpoint
from clawctl.run.feedback import Ratings
from clawctl.run.outcomes import SessionOutcome
from clawctl.run.shards import read_columns
from scripts.benchmarks.chaos_stages import Stage
from scripts.benchmarks.circle import write_recipe
from scripts.benchmarks.environments_faults import clawctl, place_of
from scripts.benchmarks.table import Row

ROUNDS, QUICK_ROUNDS = 60, 8
TASKS, ATTEMPTS = 12, 4
VICTIMS = ("worker 1", "worker 2", "worker 1", "worker 2", "collect", "serve")
_BETWEEN_S = (0.3, 1.5)
RECIPE = {"collect": {"session_timeout_s": 3600.0, "shard_age_s": 0.2, "shard_turns": 5}, "gate": None}


def reward_of(number: int, attempt: int) -> float:
    return ((number * 7 + attempt * 3) % 5) / 4


class Pauses:
    """Makes three calls, with pauses in which a worker can be killed."""

    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        return [Task(f"pauses-{number}", number, split) for number in range(count)]

    async def play(self, task: Task, endpoint: Endpoint) -> Outcome:
        number, attempt = place_of(endpoint)
        messages = [{"role": "user", "content": f"Attempt {attempt} at {task.id}"}]
        for _ in range(3):
            messages.append({"role": "assistant", "content": await ask(endpoint, messages, max_tokens=4)})
            messages.append({"role": "user", "content": "Go on."})
            await asyncio.sleep(0.1)
        return Outcome(reward=reward_of(number, attempt))


def rows(options: argparse.Namespace, folder: Path) -> list[Row]:
    rounds, dice = QUICK_ROUNDS if options.quick else ROUNDS, random.Random(f"kill {options.seed}")
    run, recipe = open_run(folder / "run"), write_recipe(folder, RECIPE)
    name = f"{Path(__file__).resolve()}:Pauses"
    plan = ["--env", name, "--tasks", str(TASKS), "--attempts", str(ATTEMPTS), "--parallel", "6"]
    stages = {"serve": Stage("serve", run, recipe, free_port()), "collect": Stage("collect", run, recipe)}
    for worker in ("worker 1", "worker 2"):
        stages[worker] = Stage(worker, run, recipe, program=player(run, recipe, *plan, "--rounds", "0"))
    try:
        stages["serve"].start()
        stages["serve"].wait_ready()
        for stage in list(stages.values())[1:]:
            stage.start()
        for _ in range(rounds):
            time.sleep(dice.uniform(*_BETWEEN_S))
            victim = stages[dice.choice(VICTIMS)]
            victim.kill()
            time.sleep(dice.uniform(0.0, 0.3))
            victim.start()
            if victim.name == "serve":
                victim.wait_ready()
            for stage in stages.values():
                stage.keep_up()
        for worker in ("worker 1", "worker 2", "collect"):
            stages[worker].kill()
        began = len({outcome.episode["plan"] for outcome in outcomes_of(run) if outcome.episode})
        clawctl(run, recipe, "collect", *plan, "--rounds", str(max(1, began)))
        clawctl(run, recipe, "collect", "--once")
    finally:
        for stage in stages.values():
            stage.kill()
    return audit(run, max(1, began), rounds, sum(stage.starts for stage in stages.values()))


def player(run: RunDir, recipe: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "clawctl", "collect", "--run", str(run.root), "--recipe", str(recipe), *options]


def outcomes_of(run: RunDir) -> list[SessionOutcome]:
    """Return the outcomes of episodes, as appended by their workers."""
    return [outcome for outcome in Ratings(run).read() if isinstance(outcome, SessionOutcome) and outcome.turn_ids is None]


def audit(run: RunDir, plans: int, rounds: int, starts: int) -> list[Row]:
    """Count the lost and doubled attempts.

    `lost`: attempts without an outcome, and outcomes that are not in all rows of their session in one shard. `doubled`: attempts
    with a second outcome, and turns with a second row. A turn that may not be trained counts as lost, with one exception: in about
    one of 4,000 turns the model samples the marker that begins a tool call, and its four tokens end within the call.
    """
    outcomes = outcomes_of(run)
    settled = Counter(
        (outcome.episode["plan"], outcome.episode["number"], outcome.episode["attempt"])
        for outcome in outcomes
        if outcome.settled and outcome.episode
    )
    missing = plans * TASKS * ATTEMPTS - len(settled)
    doubled = sum(count - 1 for count in settled.values())
    turns: Counter[str] = Counter()
    shards: dict[str, set[str]] = {}
    rewards: dict[str, list[float | None]] = {}
    reasons: dict[str, list[str | None]] = {}  # why each turn is not trained
    for path in published(run.trajectories, ".parquet"):
        for row in read_columns(path, "turns", ("turn_id", "session_id", "outcome_reward", "untrainable_reason")):
            turns[row["turn_id"]] += 1
            shards.setdefault(row["session_id"], set()).add(path.stem)
            reasons.setdefault(row["session_id"], []).append(row["untrainable_reason"])
            if row["untrainable_reason"] in (None, CUT_CALL):
                rewards.setdefault(row["session_id"], []).append(row["outcome_reward"])
    doubled += sum(count - 1 for count in turns.values())
    unpublished = [
        outcome for outcome in outcomes
        if outcome.status == "done" and outcome.episode is not None and (
            len(rewards.get(outcome.session_id, ())) != 3 or len(shards[outcome.session_id]) != 1
            or set(rewards[outcome.session_id]) != {reward_of(outcome.episode["number"], outcome.episode["attempt"])}
        )
    ]  # fmt: skip
    for ended in unpublished[:5]:
        session = ended.session_id
        print(f"not as it was: {session}: {rewards.get(session)} in {shards.get(session)}, {reasons.get(session)}", flush=True)
    return [
        Row("kill", "lost_outcomes", float(missing + len(unpublished)), "of attempts"),
        Row("kill", "doubled_outcomes", float(doubled), "of attempts and turns"),
        Row("kill", "rounds", float(rounds), "processes killed"),
        Row("kill", "attempts", float(len(settled)), "settled"),
        Row("kill", "starts", float(starts), "of processes"),
    ]
