"""`train/ledger/`: which turns were trained or skipped, so that none is trained twice. It is never deleted.

`<step>.json`        {"step": 7, "parent": 6, "outcome": "trained", "reason": None, "turns": {"<stem>": ["<turn_id>", …]},
                     "policy": "default"}
`skipped-<id>.json`  the same with "outcome": "skipped" and the reason; <id> is that of the first turn, and `step` the failed step
`refused-<step>.json`  the same for turns of a dead step that were already in another dead step

An entry never changes. Whether a trained turn counts as used depends on the lineage (`clawctl/run/lineage.py`). A turn of a step
whose version is dead may be trained once more. A turn that is in two dead steps, and in no living one, is not tried again.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from clawctl.errors import ClawError, Damaged
from clawctl.run.checksums import read_sealed, sealed
from clawctl.run.directory import RunDir, publish_bytes, published, quarantine
from clawctl.run.lineage import MAX_TIMES, TWICE, Lineage, read_lineage
from clawctl.run.names import is_name, number_of
from clawctl.run.policies import read_policy
from clawctl.run.shards import UnreadableShard, merged_from, read_each, read_turn_ids
from clawctl.train.sample import Sample

log = logging.getLogger("clawctl.train")


def by_stem(samples: Sequence[Sample]) -> dict[str, list[str]]:
    """Group turn ids by shard, as the ledger and the checkpoint store them."""
    stems: dict[str, list[str]] = {}
    for sample in samples:
        stems.setdefault(sample.stem, []).append(sample.turn_id)
    return stems


def write_trained(run: RunDir, step: int, turns: dict[str, list[str]], parent: int | None) -> None:
    """Enter the turns of a step, once."""
    _enter(run, str(step), {"step": step, "parent": parent, "outcome": "trained", "reason": None, "turns": turns})


def write_skipped(run: RunDir, step: int, samples: Sequence[Sample], reason: str) -> None:
    """Enter turns that no step may try again."""
    entry = {"step": step, "outcome": "skipped", "reason": reason, "turns": by_stem(samples)}
    first = samples[0].turn_id
    _enter(run, f"skipped-{first if is_name(first) else sha256(first.encode()).hexdigest()[:24]}", entry)


def read_ledger(run: RunDir, lineage: Lineage | None = None) -> dict[str, str]:
    """Return the result of each turn that was in a step: "trained" into a living version, or "skipped".

    Missing turns may be trained: they were in no step, or the version of their step is dead.
    """
    return _outcomes(lineage or read_lineage(run), list(_entries(run)))


def _outcomes(lineage: Lineage, entries: Sequence[dict[str, Any]]) -> dict[str, str]:
    dead = _dead(lineage, entries)
    outcomes = {turn_id: "skipped" for entry in entries if entry["outcome"] != "trained" for turn_id in _ids(entry)}
    outcomes |= dict.fromkeys(_in_two_dead_steps(dead), "skipped")
    steps = {entry["step"] for entry in dead}
    # A step whose version is not published yet counts as living, so that its turns are not trained twice.
    living = [entry for entry in entries if entry["outcome"] == "trained" and entry["step"] not in steps]
    return outcomes | {turn_id: "trained" for entry in living for turn_id in _ids(entry)}


@dataclass(frozen=True, slots=True)
class GivenBack:
    """Counts of the turns of dead steps, by result."""

    free: int  # may be trained again
    expired: int  # could be trained again, but their shards were deleted meanwhile
    twice: int  # may not be trained again, because they were in two dead steps


def given_back(run: RunDir, lineage: Lineage) -> set[str]:
    """Return the turns of dead steps that may be trained again."""
    entries = list(_entries(run))
    used = _outcomes(lineage, entries)
    return {turn_id for entry in _dead(lineage, entries) for turn_id in _ids(entry) if turn_id not in used}


def give_back(run: RunDir, lineage: Lineage) -> GivenBack:
    """Count the turns of dead steps. Turns that were in two of them are entered as skipped, with the reason."""
    entries = list(_entries(run))
    used, dead = _outcomes(lineage, entries), _dead(lineage, entries)
    existing = _existing_stems(run)
    stems = {turn_id: stem for entry in dead for stem, ids in entry["turns"].items() for turn_id in ids if turn_id not in used}
    expired = sum(stem not in existing for stem in stems.values())
    exhausted = {turn_id for turn_id in _in_two_dead_steps(dead) if used[turn_id] != "trained"}
    skipped_ids = {turn_id for entry in entries if entry["outcome"] != "trained" for turn_id in _ids(entry)}
    for entry in sorted(dead, key=lambda entry: -int(entry["step"])):
        turns = {stem: [turn_id for turn_id in ids if turn_id in exhausted - skipped_ids] for stem, ids in entry["turns"].items()}
        if any(turns.values()):
            skipped_entry = {
                "step": entry["step"],
                "outcome": "skipped",
                "reason": TWICE,
                "turns": {k: v for k, v in turns.items() if v},
            }
            _enter(run, f"refused-{entry['step']}", skipped_entry)
            skipped_ids |= set(_ids(skipped_entry))
    return GivenBack(len(stems) - expired, expired, len(exhausted))


def _existing_stems(run: RunDir) -> set[str]:
    """Return the existing shards, including those whose rows are in a merged shard."""
    paths = published(run.trajectories, ".parquet")
    existing = {path.stem for path in paths}
    for path in paths:
        with suppress(UnreadableShard):
            existing.update(merged_from(path))
    return existing


def _in_two_dead_steps(dead: Sequence[dict[str, Any]]) -> list[str]:
    """Return the turns that are in two of these steps."""
    times = Counter(turn_id for entry in dead for turn_id in set(_ids(entry)))
    return [turn_id for turn_id, count in times.items() if count >= MAX_TIMES]


def _dead(lineage: Lineage, entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    dead = set(lineage.dead())
    return [entry for entry in entries if entry["outcome"] == "trained" and entry["step"] in dead]


def _entries(run: RunDir) -> Iterator[dict[str, Any]]:
    """Yield all entries. Damaged ones are repaired if possible."""
    folder = run.ledger
    for path in published(folder, ".json") if folder.exists() else []:
        try:
            yield read_sealed(path.read_bytes())
        except Damaged as error:
            yield _rebuilt(run, path, str(error))


def _ids(entry: dict[str, Any]) -> list[str]:
    return [turn_id for turn_ids in entry["turns"].values() for turn_id in turn_ids]


def _rebuilt(run: RunDir, path: Path, problem: str) -> dict[str, Any]:
    """Quarantine a damaged entry and rebuild it from the policy of its step, which lists its turns as well.

    Skipped turns are listed nowhere else, so they are tried again and at worst skipped again. Raises ClawError if a step's turns
    are lost.
    """
    entry: dict[str, Any] = {"step": 0, "outcome": "skipped", "reason": None, "turns": {}}
    step = number_of(path.stem)
    if step is not None:
        try:
            policy = read_policy(run, step)
        except ClawError as error:
            message = f"{path} is damaged ({problem}), and so is the policy of that step"
            raise ClawError(message, "restore one of them from a copy; otherwise turns would be trained twice") from error
        turns = _by_stem(run, policy.turns)
        entry = {"step": step, "parent": policy.parent, "outcome": "trained", "reason": None, "turns": turns}
    quarantined = quarantine(run, path, problem)
    log.error("%s was damaged and is kept as %s; the entry is %s", path, quarantined, "rebuilt" if entry["turns"] else "dropped")
    if entry["turns"]:
        _enter(run, path.stem, entry)
    return entry


def _by_stem(run: RunDir, turn_ids: Sequence[str]) -> dict[str, list[str]]:
    """Return turns by the shard that contains them, or under "unknown" if the shard is gone."""
    stems: dict[str, str] = {}
    for path, in_shard in read_each(run.trajectories, read_turn_ids, skip_damaged=True):
        stems |= dict.fromkeys(set(turn_ids).intersection(in_shard), path.stem)
    result: dict[str, list[str]] = {}
    for turn_id in turn_ids:
        result.setdefault(stems.get(turn_id, "unknown"), []).append(turn_id)
    return result


def _enter(run: RunDir, name: str, entry: dict[str, Any]) -> None:
    path = run.ledger_entry(name)
    if not path.exists():
        publish_bytes(path, sealed(orjson.dumps({**entry, "policy": run.policy})))
