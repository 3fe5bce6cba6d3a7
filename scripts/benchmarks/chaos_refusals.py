"""Case `refusals`: the gate refuses updates at random and a person rolls back at random, while stages are killed.

The stages are real. Eval queries a server that randomly answers well or badly for each version. Afterwards, the files are audited
without the code that decides where training continues. policy.json gives the parents. moves.jsonl and the eval records give the
accepted and refused versions. `turns/<step>.parquet`, which the step itself writes, gives the turns in the weights.
"""

import argparse
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from clawctl.config import load_recipe
from clawctl.engines.vllm.child import free_port
from clawctl.errors import ClawError
from clawctl.run.directory import RunDir, open_run, published
from clawctl.run.policies import live_version
from clawctl.run.promotion import rollback
from clawctl.run.shards import read_columns
from scripts.asgi import serving
from scripts.benchmarks.chaos_audit import Watcher, captured_lines, judged_ids, row_ids
from scripts.benchmarks.chaos_kill import RECIPE, Crowd, newest
from scripts.benchmarks.chaos_stages import Killer, Stage, wait_until
from scripts.benchmarks.circle import WORLD, write_recipe
from scripts.benchmarks.table import Row
from scripts.wishes.axes import USUAL, write
from scripts.wishes.chat import WANTS
from scripts.wishes.problems import WordProblem, make_problems

ROUNDS, QUICK_ROUNDS = 60, 8
_STAGES = ("serve", "collect", "judge", "train", "eval")
_VICTIMS = ("train", "train", "train", "eval", "eval", "collect", "judge", "serve", "all")
_REFUSED = 0.4  # share of the versions
_ROLLED_BACK = 0.3  # share of the rounds
_GRACE_S = 15.0  # a step that was running when its parent was refused may still be committed
_PATIENCE_S = 120.0
_PROGRESS_S = 30.0  # wait this long for a change of versions, so that kills do not only hit loading


def rows(options: argparse.Namespace, folder: Path) -> list[Row]:
    numbers, problems = refusals(folder, options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS), options.seed)
    for problem in problems[:20]:
        print(problem, flush=True)
    return [Row("refusals", metric, value, unit) for metric, value, unit in numbers]


def refusals(folder: Path, rounds: int, seed: int, clients: int = 8) -> tuple[list[tuple[str, float, str]], list[str]]:
    """Run the case. Returns the metrics and descriptions of the problems."""
    dice, run = random.Random(f"refusals {seed}"), open_run(folder / "run")
    with _judging_versions(seed) as (address, truth):
        changes = {
            **RECIPE,
            "train": {**RECIPE["train"], "max_refusals": 1_000_000, "max_staleness": 1_000_000},
            "eval": {"suites": [WORLD], "problems": 4, "endpoint": f"{address}/v1"},
            "gate": [{"suite": WORLD, "metric": metric, "max_drop": 0.5} for metric in ("correctness", "satisfaction")],
            "up": {"stages": list(_STAGES)},
        }
        recipe = write_recipe(folder, changes)
        settings = load_recipe(recipe).eval
        truth += make_problems(settings.problems, settings.seed, "eval")
        stages = {name: Stage(name, run, recipe, free_port()) for name in _STAGES}
        rolled: list[tuple[int, int]] = []
        watcher = Watcher(run)
        try:
            for stage in stages.values():
                stage.start()
            stages["serve"].wait_ready()
            watcher.start()
            crowd = Crowd(run, recipe, seed, clients)
            wait_until(
                lambda: (live_version(run) or 0) > 0, _PATIENCE_S, list(stages.values())
            )  # otherwise there is nothing to roll back
            killer, began = Killer(run, stages, seed, _VICTIMS), time.monotonic()
            for number in range(1, rounds + 1):
                what = killer.round()
                for stage in stages.values():
                    stage.keep_up()
                if dice.random() < _ROLLED_BACK and (back := _roll_back(run, dice)):
                    rolled.append(back)
                    what += f", rolled back from {back[0]} to {back[1]}"
                stood = _stand(run)
                wait_until(lambda stood=stood: _stand(run) != stood, _PROGRESS_S, list(stages.values()))  # type: ignore[misc]
                progress = f"version {newest(run)}, live {live_version(run)}"
                print(f"round {number}/{rounds} after {time.monotonic() - began:.0f} s: {what}; {progress}", flush=True)
            before = newest(run)
            learned = wait_until(lambda: newest(run) > before, _PATIENCE_S, list(stages.values()))
            crowd.end()
            drained = wait_until(lambda: captured_lines(run)[0] <= row_ids(run) <= judged_ids(run), _PATIENCE_S, [])
            wait_until(lambda: _is_idle(run), 2 * _PATIENCE_S, list(stages.values()))
        finally:
            for stage in reversed(stages.values()):
                stage.stop()
        watcher.end()
    counts = audit(run)
    published_turns = row_ids(run)
    lost = [turn for answer in crowd.answered if (turn := answer.turn_id) not in published_turns] + counts.lost
    problems = [f"lost: {turn}" for turn in lost] + [f"trained twice: {turn}" for turn in counts.twice] + counts.built_on_refused
    return [
        ("rounds", rounds, "rounds"),
        ("starts", sum(stage.starts for stage in stages.values()), "processes"),
        ("answered", len(crowd.answered), "turns"),
        ("versions", len(counts.tree.parents) - 1, "versions"),
        ("refusals", len(counts.tree.refused), "versions"),
        ("rollbacks", len(rolled), "moves"),
        ("dead_versions", counts.dead, "versions"),
        ("given_back", counts.given_back, "turns"),
        ("trained_again", counts.again, "turns"),
        ("skipped_twice_refused", counts.skipped, "turns"),
        ("trained", counts.trained, "turns"),
        ("lost_turns", len(lost), "turns"),
        ("trained_twice", len(counts.twice), "turns"),
        ("built_on_refused", len(counts.built_on_refused), "versions"),
        ("half_files_read", len(watcher.half), "files"),
        ("ended_alone", sum(stage.ended_alone for stage in stages.values()), "processes"),
        ("learned_afterwards", float(learned), "yes or no"),
        ("drained", float(drained), "yes or no"),
    ], [*problems, *watcher.half]


def _roll_back(run: RunDir, dice: random.Random) -> tuple[int, int] | None:
    """Roll back to the parent or grandparent of the live version. Returns both versions, or None."""
    live, tree = live_version(run), read_tree(run)
    ancestors = tree.way_to(live or 0)[1:3]
    if not live or not ancestors:
        return None
    try:
        rollback(run, target := dice.choice(ancestors))
    except ClawError:  # LIVE moved in the meantime
        return None
    return live, target


def _stand(run: RunDir) -> tuple[int, int | None, int]:
    return newest(run), live_version(run), len(published(run.eval, ".json"))


def _is_idle(run: RunDir) -> bool:
    """Whether the versions have not changed for a while."""
    return time.time() - max(path.stat().st_mtime for path in (run.policies, run.eval, run.train / "steps.jsonl")) > _GRACE_S


@contextmanager
def _judging_versions(seed: int) -> Iterator[tuple[str, list[WordProblem]]]:
    """Run a server whose versions answer well or badly. A version always answers in the same way."""
    tasks_so_far: list[WordProblem] = []

    async def complete(request: Request) -> JSONResponse:
        body = await request.json()
        version = int(body["model"].rpartition("@")[2])
        task = next(task for task in tasks_so_far if task.text in body["messages"][-1]["content"])
        refused = version > 0 and random.Random(f"{seed} version {version}").random() < _REFUSED
        style, off_by = (USUAL, 1) if refused else ({**USUAL, **WANTS}, 0)
        message = {"role": "assistant", "content": write(task, style, random.Random(0), off_by)}
        return JSONResponse({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    routes = [Route("/v1/chat/completions", complete, methods=["POST"])]
    with serving(Starlette(routes=routes)) as address:
        yield address, tasks_so_far


# ---- the audit -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tree:
    """The versions according to the files."""

    parents: dict[int, int | None]
    made: dict[int, float]  # creation time of each version, in unix seconds
    refused: dict[int, float]  # refused versions, with the time of the eval record
    moves: list[dict[str, Any]]

    def way_to(self, version: int | None) -> list[int]:
        """Return a version and its ancestors, newest first."""
        way = []
        while version is not None:
            way.append(version)
            version = self.parents[version]
        return way


@dataclass(frozen=True, slots=True)
class Audit:
    tree: Tree
    lost: list[str]  # usable turns that are in no living version, were not skipped, and are not queued
    twice: list[str]  # turns that are twice in the weights of a version, or in more than two dead versions
    built_on_refused: list[str]
    dead: int
    given_back: int
    again: int
    skipped: int
    trained: int


def read_tree(run: RunDir) -> Tree:
    folders = [path for path in run.policies.iterdir() if path.name.isdigit()]
    policies = {int(path.name): orjson.loads((path / "policy.json").read_bytes()) for path in folders}
    moves = run.policies / "moves.jsonl"
    refused = {}
    for path in published(run.eval, ".json"):
        decision = orjson.loads(path.read_bytes())["decision"]
        if decision["promote"] is False and not decision["reason"].startswith(("overtaken", "built on")):
            refused[int(path.stem)] = path.stat().st_mtime
    return Tree(
        parents={version: policy["parent"] for version, policy in sorted(policies.items())},
        made={version: policy["created_at"] for version, policy in policies.items()},
        refused=refused,
        moves=[orjson.loads(line) for line in moves.read_bytes().splitlines()] if moves.exists() else [],
    )


def audit(run: RunDir) -> Audit:
    tree = read_tree(run)
    inside = {0: list[str]()}  # the turns whose gradients each step added, as the step recorded them
    for version in tree.parents:
        if version:
            record = run.train / "turns" / f"{version}.parquet"
            inside[version] = pq.read_table(record, columns=["turn_id"]).column("turn_id").to_pylist()
    bad = list(_built_on_refused(tree))
    live = int((run.policies / "LIVE").read_text())
    # descendants of LIVE are alive unless they were refused; at rest the trainer continues at most one such branch
    open_ends = [v for v in tree.parents if live in tree.way_to(v) and not _is_barred(tree, v, live)]
    living = set(tree.way_to(max(open_ends)))
    dead = [version for version in tree.parents if version not in living]
    times_dead = Counter(turn for version in dead for turn in set(inside[version]))
    trained = Counter(turn for version in living for turn in inside[version])
    twice = {turn for leaf in tree.parents for turn, n in Counter(t for v in tree.way_to(leaf) for t in inside[v]).items() if n > 1}
    twice |= {turn for turn, count in times_dead.items() if count > 2}
    entries = [orjson.loads(path.read_bytes()) for path in published(run.train / "ledger", ".json")]
    named = {t for e in entries if e["outcome"] == "skipped" for ids in e["turns"].values() for t in ids}
    skipped = {turn for turn, count in times_dead.items() if count == 2 and turn not in trained}
    feed = orjson.loads((run.train / "feed.json").read_bytes())
    free = sorted(_usable(run) - trained.keys() - skipped - named)
    return Audit(
        tree=tree,
        lost=free[feed["waiting"] :],
        twice=sorted(twice),
        built_on_refused=bad,
        dead=len(dead),
        given_back=len(times_dead),
        again=sum(turn in trained for turn in times_dead),
        skipped=len(skipped),
        trained=len(trained),
    )


def _usable(run: RunDir) -> set[str]:
    """Turns with exact ids and a nonzero reward. Later ratings can make more turns usable; these are not required."""
    worth = {
        row["turn_id"]
        for path in published(run.verdicts, ".parquet")
        for row in read_columns(path, "verdicts", ["turn_id", "reward"])
        if row["reward"]
    }
    rated = {orjson.loads(line)["turn_id"] for path in published(run.feedback, ".jsonl") for line in path.read_bytes().splitlines()}
    columns = ["turn_id", "trainable"]
    turns = [row for path in published(run.trajectories, ".parquet") for row in read_columns(path, "turns", columns)]
    return {row["turn_id"] for row in turns if row["trainable"]} & worth - rated


def _is_barred(tree: Tree, version: int, live: int) -> bool:
    """Whether a descendant of the live version, or a version between them, was refused or has been live before."""
    above = tree.way_to(version)
    above = above[: above.index(live)]
    been_live = {move["to"] for move in tree.moves}
    return any(other in tree.refused or other in been_live for other in above)


def _built_on_refused(tree: Tree) -> Iterator[str]:
    """Yield versions that were made long after an ancestor was refused or rolled back, or went live on top of one."""
    died = {version: (at, "refused") for version, at in tree.refused.items()}
    for move in tree.moves:
        if move["from"] is None:
            continue
        for version in tree.way_to(move["from"]):
            if version not in tree.way_to(move["to"]):
                died.setdefault(version, (move["at"], "rolled back"))
    went_live = {move["to"]: move["at"] for move in tree.moves}
    for version in tree.parents:
        for ancestor in tree.way_to(version)[1:]:
            at, how = died.get(ancestor, (float("inf"), ""))
            if tree.made[version] > at + _GRACE_S:
                yield f"version {version} was made {tree.made[version] - at:.0f} s after {ancestor} was {how}"
            elif went_live.get(version, 0.0) > at:
                yield f"version {version} went live after its ancestor {ancestor} was {how}"
