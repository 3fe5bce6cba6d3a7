"""`train/ledger/`: which turns were trained, or skipped, so that none is trained twice. Kept for ever.

`<step>.json`        {"step": 7, "outcome": "trained", "reason": None, "turns": {"<stem>": ["<turn_id>", …]}}
`skipped-<id>.json`  the same with "outcome": "skipped" and the reason; <id> is the first turn's, `step` the one that was not made
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from clawctl.checksums import Damaged, read_sealed, sealed
from clawctl.errors import ClawError
from clawctl.names import is_name
from clawctl.policies import read_policy
from clawctl.run_dir import RunDir, publish_bytes, published, quarantine
from clawctl.shards import UnreadableShard, read_turn_ids
from clawctl.train.sample import Sample

log = logging.getLogger("clawctl.train")


def by_stem(samples: Sequence[Sample]) -> dict[str, list[str]]:
    """Turn ids by shard, as the ledger and the checkpoint keep them."""
    stems: dict[str, list[str]] = {}
    for sample in samples:
        stems.setdefault(sample.stem, []).append(sample.turn_id)
    return stems


def write_trained(run: RunDir, step: int, turns: dict[str, list[str]]) -> None:
    """Enter the turns of a step, once."""
    _enter(run, str(step), {"step": step, "outcome": "trained", "reason": None, "turns": turns})


def write_skipped(run: RunDir, step: int, samples: Sequence[Sample], reason: str) -> None:
    """Enter turns that no step may try again."""
    entry = {"step": step, "outcome": "skipped", "reason": reason, "turns": by_stem(samples)}
    first = samples[0].turn_id
    _enter(run, f"skipped-{first if is_name(first) else sha256(first.encode()).hexdigest()[:24]}", entry)


def read_ledger(run: RunDir) -> dict[str, str]:
    """What became of each turn that ever was in a step: "trained" or "skipped"."""
    folder = run.train / "ledger"
    outcomes: dict[str, str] = {}
    for path in published(folder, ".json") if folder.exists() else []:
        try:
            entry = read_sealed(path.read_bytes())
        except Damaged as error:
            entry = _mended(run, path, str(error))
        outcomes.update({turn_id: entry["outcome"] for ids in entry["turns"].values() for turn_id in ids})
    return outcomes


def _mended(run: RunDir, path: Path, problem: str) -> dict[str, Any]:
    """A damaged entry is put aside and written anew from the policy of its step, which names its turns as well. What was skipped is
    named nowhere else: it is tried again, and skipped again at worst. Raises ClawError where a step's turns are lost."""
    entry: dict[str, Any] = {"step": 0, "outcome": "skipped", "reason": None, "turns": {}}
    if path.stem.isdigit():
        step = int(path.stem)
        try:
            turn_ids = read_policy(run, step).turns
        except ClawError as error:
            told = f"{path} is damaged ({problem}), and so is the policy of that step"
            raise ClawError(told, "restore one of them from a copy: without it turns would be trained twice") from error
        entry = {"step": step, "outcome": "trained", "reason": None, "turns": _by_stem(run, turn_ids)}
    kept = quarantine(run, path, problem)
    log.error("%s was damaged and is kept as %s; it is %s", path, kept, "written anew" if entry["turns"] else "left out")
    if entry["turns"]:
        _enter(run, path.stem, entry)
    return entry


def _by_stem(run: RunDir, turn_ids: Sequence[str]) -> dict[str, list[str]]:
    """Turns by the shard that holds them; those whose shard is gone stand under "unknown"."""
    stems: dict[str, str] = {}
    for path in published(run.trajectories, ".parquet"):
        with suppress(UnreadableShard):
            stems |= dict.fromkeys(set(turn_ids).intersection(read_turn_ids(path)), path.stem)
    found: dict[str, list[str]] = {}
    for turn_id in turn_ids:
        found.setdefault(stems.get(turn_id, "unknown"), []).append(turn_id)
    return found


def _enter(run: RunDir, name: str, entry: dict[str, Any]) -> None:
    folder = run.train / "ledger"
    folder.mkdir(mode=0o700, exist_ok=True)
    if not (folder / f"{name}.json").exists():
        publish_bytes(folder / f"{name}.json", sealed(orjson.dumps(entry)))
