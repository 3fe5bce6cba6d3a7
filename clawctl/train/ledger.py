"""`train/ledger/`: which turns were trained, or skipped, so that none is trained twice. Kept for ever.

`<step>.json`        {"step": 7, "outcome": "trained", "reason": None, "turns": {"<stem>": ["<turn_id>", …]}}
`skipped-<id>.json`  the same with "outcome": "skipped" and the reason; <id> is the first turn's, `step` the one that was not made
"""

from collections.abc import Sequence
from typing import Any

import orjson

from clawctl.run_dir import RunDir, publish_bytes, published
from clawctl.train.sample import Sample


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
    _enter(run, f"skipped-{samples[0].turn_id}", entry)


def read_ledger(run: RunDir) -> dict[str, str]:
    """What became of each turn that ever was in a step: "trained" or "skipped"."""
    folder = run.train / "ledger"
    outcomes: dict[str, str] = {}
    for path in published(folder, ".json") if folder.exists() else []:
        entry = orjson.loads(path.read_bytes())
        outcomes.update({turn_id: entry["outcome"] for ids in entry["turns"].values() for turn_id in ids})
    return outcomes


def _enter(run: RunDir, name: str, entry: dict[str, Any]) -> None:
    folder = run.train / "ledger"
    folder.mkdir(mode=0o700, exist_ok=True)
    if not (folder / f"{name}.json").exists():
        publish_bytes(folder / f"{name}.json", orjson.dumps(entry))
