"""Finds the policies that learned from given turns, and returns to the last policy that did not."""

from dataclasses import dataclass
from pathlib import Path

import orjson

from clawctl.run.checksums import read_object, sealed
from clawctl.run.directory import RunDir, publish_bytes, published, remove
from clawctl.run.lineage import read_lineage
from clawctl.run.lines import read_lines
from clawctl.run.names import number_of, numbers_in
from clawctl.run.policies import begin_policy, list_versions, live_version, move_live, read_policy
from clawctl.run.rows import DEFAULT_POLICY


@dataclass(frozen=True, slots=True)
class RollbackPlan:
    """The effects of a rollback."""

    to_version: int  # the version from which training continues; -1: the policy begins again with the shared weights
    removed_versions: list[int]
    live: int | None  # the version that serves afterwards


def learned_from(run: RunDir, turn_ids: set[str]) -> list[int]:
    """Return the versions that were trained on one of these turns or stand on such a shared version, and all their descendants."""
    affected: set[int] = set()
    below = set(learned_from(run.of(DEFAULT_POLICY), turn_ids)) if run.policy != DEFAULT_POLICY else set()
    for version in list_versions(run):  # parents come before their children
        policy = read_policy(run, version)
        if policy.parent in affected or policy.shared in below or not turn_ids.isdisjoint(policy.turns):
            affected.add(version)
    return sorted(affected)


def plan_rollback(run: RunDir, affected: list[int]) -> RollbackPlan:
    """Find where training can restart: the newest checkpoint before the first tainted step, else the base model.

    Versions in between have weights but no optimizer state, so the trainer produces them again.
    """
    lineage, affected_set = read_lineage(run), set(affected)
    ancestry = lineage.ancestry(lineage.tip)
    clean_ancestry = [step for step in ancestry if step not in affected_set and affected_set.isdisjoint(lineage.ancestry(step))]
    clean = max((step for step in numbers_in(run.checkpoints) if step in clean_ancestry), default=0)
    if 0 in affected_set:  # the shared weights that the policy began with
        clean = -1
    removed = [version for version in list_versions(run) if version > clean or version in affected_set]
    live = live_version(run)
    return RollbackPlan(clean, removed, live if live is not None and live not in removed else clean if clean >= 0 else None)


def roll_back(run: RunDir, plan: RollbackPlan) -> None:
    """Serve and train from `way.to_version`. The caller holds the trainer's lock. Repeating the call after a crash completes it.

    LIVE moves first, so that the serving version is never deleted. Other turns of the removed steps may be trained again.
    """
    if plan.live is not None and live_version(run) != plan.live:
        move_live(run, plan.live, by="forget")
    removed = set(plan.removed_versions)

    def is_removed(step: int) -> bool:
        return step > plan.to_version or step in removed

    for step in filter(is_removed, numbers_in(run.checkpoints)):
        remove(run.checkpoint(step))
    if run.steps.exists():
        rows = [row for row in read_lines(run.steps) if not is_removed(row.get("step", 0))]
        publish_bytes(run.steps, b"".join(sealed(orjson.dumps(row)) + b"\n" for row in rows))
    for path in published(run.ledger, ".json"):
        if is_removed(_step_of(path)):
            remove(path)
    for path in published(run.records, ".parquet"):
        if (number := number_of(path.stem)) is not None and is_removed(number):
            remove(path)
    for version in plan.removed_versions:
        remove(run.eval_record(version))
    for version in reversed(plan.removed_versions):
        remove(run.version_folder(version))
    if plan.to_version < 0:
        remove(run.live)
        begin_policy(run, run.policy)


def _step_of(path: Path) -> int:
    """Return the step of a ledger entry. For a damaged entry, use the number in its file name."""
    return int((read_object(path) or {}).get("step", number_of(path.stem) or 0))
