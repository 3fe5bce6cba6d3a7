"""Finds shards that no stage needs: they are judged, and each usable turn is used up or too stale to train.

A turn is used up when it was skipped, or when the version of its step was accepted. Until the gate decides, and after a refusal,
the trainer may still return the turn to the queue. A manual rollback returns only turns that still exist.
"""

from collections.abc import Iterable, Sequence, Set
from pathlib import Path
from typing import Any

from clawctl.config import Recipe
from clawctl.run.checksums import read_object
from clawctl.run.directory import RunDir, published
from clawctl.run.feedback import Ratings
from clawctl.run.lineage import read_lineage
from clawctl.run.policies import policy_names
from clawctl.run.reward import PRACTICE, worth
from clawctl.run.rows import is_by_teacher, is_judged, lacks_reaction
from clawctl.run.shards import UnreadableShard, read_columns

SUFFIX = "-merged"  # suffix of a shard that was merged from finished shards


class FinishedShards:
    """Reads the ledger and the shards, and remembers finished shards: they stay finished."""

    def __init__(self, run: RunDir, recipe: Recipe) -> None:
        self._run, self._recipe = run, recipe
        self._finished: set[str] = set()
        # Turn ids in the ledger by stem, for existing shards that are not finished
        self._ledger: dict[str, set[str]] = {}
        self._read_entries: set[Path] = set()  # ledger files that were read
        # By policy: updates from each version to the tip, and to the live version
        self._updates: dict[str, list[dict[int, int]]] = {}
        self._ratings = Ratings(run)

    def poll(self) -> None:
        """Read new entries of the ledgers and new ratings."""
        self._ratings.poll()
        policies = [self._run.of(name) for name in policy_names(self._run)]
        entries = [published(run.ledger, ".json") for run in policies]
        # Listed after the entries, so that every shard they name is in the list
        existing = {path.stem for path in published(self._run.trajectories, ".parquet")}
        self._ledger = {stem: turn_ids for stem, turn_ids in self._ledger.items() if stem in existing}
        for run, paths in zip(policies, entries, strict=True):
            lineage = read_lineage(run)
            ends = {lineage.tip} | ({lineage.live} if lineage.live is not None else set())
            self._updates[run.policy] = [lineage.updates_from(version) for version in ends]
            self._add_entries(paths, existing, lineage.parents.keys() - set(lineage.ancestry(lineage.live)))

    def _add_entries(self, paths: Sequence[Path], existing: Set[str], open_steps: Set[int]) -> None:
        """Record the turns of ledger entries, except those of open steps, which may be returned to the queue."""
        for path in paths:
            if path in self._read_entries or (entry := read_object(path)) is None:
                continue  # the trainer quarantines and rebuilds a damaged entry
            if entry["outcome"] == "trained" and entry["step"] in open_steps:
                continue
            self._read_entries.add(path)
            for stem, turn_ids in entry["turns"].items():
                if stem in existing and stem not in self._finished:
                    self._ledger.setdefault(stem, set()).update(turn_ids)

    def has(self, stem: str) -> bool:
        if stem in self._finished or stem.endswith(SUFFIX):
            return True
        try:
            useful = self._useful_turns(stem)
        except (FileNotFoundError, UnreadableShard):
            return False  # not judged yet, or the judge will quarantine it
        used = self._ledger.get(stem, set())
        if any(turn_id not in used and not self._is_stale(*sampler) for turn_id, sampler in useful.items()):
            return False
        self._finished.add(stem)
        self._ledger.pop(stem, None)
        return True

    def _is_stale(self, policy: str, version: int | None) -> bool:
        """Whether a turn is too old for the next step, and also for a step after a return to the live version."""
        if version is None:
            return False
        return all(updates.get(version, 0) > self._recipe.train.max_staleness for updates in self._updates.get(policy, [{}]))

    def forget(self, stems: Iterable[str]) -> None:
        """Forget the results for these shards, which were removed or changed."""
        self._finished.difference_update(stems)

    def _useful_turns(self, stem: str) -> dict[str, tuple[str, int | None]]:
        """Return the turns of a judged shard that a trainer could use, with the policy and version that sampled them.

        The version of an imported text is None, and so is that of an answer of the teacher: they never become stale.
        """
        verdicts_path = self._run.verdict_shard(stem)
        if not verdicts_path.exists():
            raise FileNotFoundError(stem)
        columns = (
            "turn_id", "user", "trainable", "source", "untrainable_reason", "policy_name", "policy_version", "feedback",
            "outcome_reward", "step_reward", "episode", "notes",
        )  # fmt: skip
        turns = read_columns(self._run.turn_shard(stem), "turns", columns)
        verdicts = {row["turn_id"]: row for row in read_columns(verdicts_path, "verdicts", ("turn_id", "reward", "hint", "judge"))}
        useful = [row for row in turns if self._is_useful(row, verdicts.get(row["turn_id"]))]
        return {
            row["turn_id"]: (row["policy_name"], None if is_by_teacher(row["episode"]) else row["policy_version"]) for row in useful
        }

    def _is_useful(self, turn: dict[str, Any], verdict: dict[str, Any] | None) -> bool:
        """Whether a step could use the turn, given its verdict and the newest rating by its user."""
        late = self._ratings.late_outcome(turn["user"], turn["turn_id"])
        turn = turn if late is None else {**turn, **late.changes(turn["untrainable_reason"], turn["turn_id"])}
        rating, state = self._ratings.of(turn["user"], turn["turn_id"]), (turn["source"], turn["untrainable_reason"])
        if verdict is None or not (is_judged(turn["trainable"], *state) or (rating is not None and lacks_reaction(*state))):
            return False
        if verdict["judge"] == PRACTICE:
            return self._recipe.train.uses_hints
        newest = turn["feedback"] if rating is None else rating.rating
        judged = None if late is not None and late.decides else verdict["reward"]
        value = worth(newest, turn["outcome_reward"], verdict["judge"], judged, turn["step_reward"])
        train = self._recipe.train
        return value.counts(train.credit != "reward") or bool(verdict["hint"]) or train.teaches(turn, verdict, value.value)
