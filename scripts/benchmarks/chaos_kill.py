"""Case `kill`: kills real stages under load by SIGKILL. Afterwards, every answer that a client received must be in the run."""

import argparse
import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from clawctl.config import load_recipe
from clawctl.engines.vllm.child import free_port
from clawctl.run.directory import RunDir, open_run
from clawctl.run.endpoint import own_endpoint
from clawctl.run.keys import add_key
from clawctl.run.notes import add_note
from clawctl.run.policies import begin_policy, ensure_base_policy, list_versions, policy_names
from clawctl.run.shards import UnreadableShard
from scripts.benchmarks.chaos_audit import Found, Watcher, audit, captured_lines, judged_ids, row_ids
from scripts.benchmarks.chaos_clients import Answered, Client, Rated
from scripts.benchmarks.chaos_stages import VICTIMS, Begin, Killer, Stage, begin_process, wait_until
from scripts.benchmarks.circle import write_recipe
from scripts.benchmarks.table import Row

ROUNDS, QUICK_ROUNDS = 200, 8
_PATIENCE_S = 180.0
RECIPE: dict[str, Any] = {  # small steps, short answers, no deletion: the audit needs every capture and every step's record
    "collect": {"session_timeout_s": 3.0, "shard_age_s": 0.2},
    "judge": {"votes": 1, "max_tokens": 48},
    "train": {
        "batch_turns": 6,
        "batch_wait_s": 3,
        "max_steps": None,
        "lora": {"rank": 4, "alpha": 8.0},
        "keep_turn_records": 1_000_000,
    },
    "gate": None,
    "up": {"stages": ["serve", "collect", "judge", "train"]},
}


@dataclass(frozen=True, slots=True)
class Circle:
    """What runs while stages are killed: sections of the recipe, and people with a key, a policy and a note each."""

    recipe: dict[str, Any]
    notes: Mapping[str, str] = field(default_factory=dict)
    patience_s: float = 0.0  # a round waits so long for a new version at most


CIRCLE = Circle(RECIPE)


@dataclass(frozen=True, slots=True)
class Outcome:
    run: RunDir
    rounds: int
    answered: list[Answered]
    rated: list[Rated]
    cut_off: int  # answers that clients ended
    broken: int  # requests that kills ended
    refused: int  # requests answered with 4xx
    starts: int
    ended_alone: int  # stages that ended without being killed, or ignored SIGTERM
    learned: bool  # a version was published after the last kill
    drained: bool  # afterwards every captured turn got a row and a verdict
    read: int  # files that a concurrent reader read completely
    half: list[str]  # files that it could not read completely
    longest_silence_s: float  # between two answers, over all clients
    counts: Found


def rows(options: argparse.Namespace, folder: Path) -> list[Row]:
    return rows_of("kill", kill(folder, options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS), options.seed))


def rows_of(case: str, outcome: Outcome) -> list[Row]:
    for name, problems in problems_of(outcome).items():
        for problem in problems[:20]:
            print(f"{name}: {problem}", flush=True)
    return [Row(case, metric, value, unit) for metric, value, unit in numbers(outcome)]


def problems_of(outcome: Outcome) -> dict[str, list[str]]:
    """Return the problems of each metric. All lists should be empty."""
    counts = outcome.counts
    return {
        "lost_turns": counts.lost,
        "doubled_turns": counts.doubled,
        "altered_turns": counts.altered,
        "lost_ratings": counts.lost_ratings,
        "unjudged_turns": counts.unjudged,
        "trained_twice": counts.trained_twice,
        "trained_others_turns": counts.trained_others_turns,
        "inconsistent_steps": counts.inconsistent_steps,
        "half_files_read": [*outcome.half, *counts.quarantined, *counts.complaints],
    }


def numbers(outcome: Outcome) -> list[tuple[str, float, str]]:
    counts = outcome.counts
    problems = {name: len(listed) for name, listed in problems_of(outcome).items()}
    twice, half = problems.pop("trained_twice"), problems.pop("half_files_read")
    return [
        ("rounds", outcome.rounds, "rounds"),
        ("starts", outcome.starts, "processes"),
        ("answered", len(outcome.answered), "turns"),
        *((name, count, name.rpartition("_")[2]) for name, count in problems.items()),
        ("trained", counts.trained, "turns"),
        ("trained_twice", twice, "turns"),
        ("files_read", outcome.read, "files"),
        ("half_files_read", half, "files"),
        ("torn_tails", counts.torn_tails, "lines that nobody was told of"),
        ("broken_requests", outcome.broken, "requests"),
        ("cut_off_by_client", outcome.cut_off, "requests"),
        ("refused_requests", outcome.refused, "requests"),
        ("ended_alone", outcome.ended_alone, "processes"),
        ("longest_silence_s", outcome.longest_silence_s, "s"),
        ("learned_afterwards", float(outcome.learned), "yes or no"),
        ("drained", float(outcome.drained), "yes or no"),
    ]


def kill(
    folder: Path,
    rounds: int,
    seed: int,
    clients: int = 8,
    victims: Sequence[str] = VICTIMS,
    begin: Begin = begin_process,
    circle: Circle = CIRCLE,
) -> Outcome:
    """Do `rounds` kills under load in a new run below `folder`. Then end the load, let the stages finish and audit the run."""
    recipe, run, port = write_recipe(folder, circle.recipe), open_run(folder / "run"), free_port()
    stages = {name: Stage(name, run, recipe, port, begin=begin) for name in circle.recipe["up"]["stages"]}
    keys = make_people(run, recipe, circle.notes)
    watcher = Watcher(run)
    try:
        for stage in stages.values():
            if stage.name != "practice":
                stage.start()
        stages["serve"].wait_ready()
        if (practice := stages.get("practice")) is not None:  # it ends where no server has begun
            practice.start()
        watcher.start()
        crowd = Crowd(run, recipe, seed, clients, keys)
        killed_rounds(Killer(run, stages, seed, victims), stages, crowd, run, rounds, circle.patience_s)
        learned = wait_until(partial(has_newer, run, newest(run)), _PATIENCE_S, list(stages.values()))
        crowd.end()
        if practice is not None:  # it asks as well
            practice.stop()
        drained = wait_until(lambda: has_drained(run), _PATIENCE_S, list(stages.values()))
    finally:
        for stage in reversed(stages.values()):
            stage.stop()
    watcher.end()
    logs = [stage.log for stage in stages.values()]
    return Outcome(
        run=run,
        rounds=rounds,
        answered=crowd.answered,
        rated=crowd.rated,
        cut_off=sum(client.cut_off for client in crowd.clients),
        broken=sum(client.broken for client in crowd.clients),
        refused=sum(client.refused for client in crowd.clients),
        starts=sum(stage.starts for stage in stages.values()),
        ended_alone=sum(stage.ended_alone for stage in stages.values()),
        learned=learned,
        drained=drained,
        read=watcher.read,
        half=watcher.half,
        longest_silence_s=crowd.longest_silence_s,
        counts=audit(run, crowd.answered, crowd.rated, logs),
    )


class Crowd:
    """All clients and the answers that they received."""

    def __init__(self, run: RunDir, recipe: Path, seed: int, count: int, keys: Sequence[str] = ()) -> None:
        """The clients take turns with the run's own key and `keys`."""
        self._stop = threading.Event()
        of_run = own_endpoint(run, load_recipe(recipe))
        endpoints = [of_run, *(replace(of_run, api_key=key) for key in keys)]
        self.clients = [Client(endpoints[number % len(endpoints)], seed, number, self._stop) for number in range(count)]
        for client in self.clients:
            client.start()

    @property
    def answered(self) -> list[Answered]:
        return sorted((answer for client in self.clients for answer in client.answered), key=lambda answer: answer.at)

    @property
    def rated(self) -> list[Rated]:
        return [rating for client in self.clients for rating in client.rated]

    @property
    def longest_silence_s(self) -> float:
        times = [answer.at for answer in self.answered]
        return max((later - earlier for earlier, later in itertools.pairwise(times)), default=float("inf"))

    def end(self) -> None:
        self._stop.set()
        for client in self.clients:
            client.join()


def killed_rounds(
    killer: Killer, stages: dict[str, Stage], crowd: Crowd, run: RunDir, rounds: int, patience_s: float = 0.0
) -> None:
    began = time.monotonic()
    for number in range(1, rounds + 1):
        wait_until(partial(has_newer, run, newest(run)), patience_s, list(stages.values()))
        what = killer.round()
        for stage in stages.values():
            stage.keep_up()
        progress = f"{len(crowd.answered)} answered, version {newest(run)}"
        print(f"round {number}/{rounds} after {time.monotonic() - began:.0f} s: {what}; {progress}", flush=True)


def make_people(run: RunDir, recipe: Path, notes: Mapping[str, str]) -> list[str]:
    """Return the keys of people who have a policy and a note each."""
    if notes:
        ensure_base_policy(run, load_recipe(recipe).model.path)
    keys = [add_key(run, name, begin_policy(run, name)) for name in notes]
    for name, text in notes.items():
        add_note(run, name, text)
    return keys


def newest(run: RunDir) -> int:
    """The sum of the newest versions of all policies."""
    return sum(max(list_versions(run.of(name)), default=0) for name in policy_names(run))


def has_newer(run: RunDir, version: int) -> bool:
    return newest(run) > version


def has_drained(run: RunDir) -> bool:
    """Whether every captured turn has a row and every row has a verdict."""
    captured, _ = captured_lines(run)
    try:
        return captured <= row_ids(run) <= judged_ids(run)
    except (FileNotFoundError, UnreadableShard):
        return False  # merged or quarantined during the check
