"""`train/turns/<step>.parquet`: every number of each turn in a step, one row per turn, for `clawctl inspect why`.

The file is written into the checkpoint, so that it is committed with the step, and linked from there. The newest
`train.keep_turn_records` files are kept.
"""

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from clawctl.run.directory import RunDir, link, publish, remove
from clawctl.run.names import number_of
from clawctl.run.shards import write_table
from clawctl.train.measures import StepFacts, StepResult, TurnNumbers
from clawctl.train.sample import Batch, Sample

NAME = "turns.parquet"  # file name in the checkpoint

_FLOATS = pa.list_(pa.float32())
_TERM = pa.struct([
    ("name", pa.string()), ("weight", pa.float64()), ("tokens", pa.int64()), ("advantages", _FLOATS),
    ("acting", pa.list_(pa.bool_())), ("divergences", _FLOATS),
])  # fmt: skip
ROW = pa.schema([
    ("turn_id", pa.string()), ("session_id", pa.string()), ("step", pa.int64()), ("method", pa.string()), ("shard", pa.string()),
    ("reward", pa.float64()), ("credit", pa.float64()), ("baseline", pa.float64()), ("temperature", pa.float64()),
    ("policy_version", pa.int64()), ("policy_version_end", pa.int64()), ("staleness", pa.int64()),
    ("completion_ids", pa.list_(pa.int32())), ("policy_logprobs", _FLOATS), ("sampler_logprobs", _FLOATS),
    ("teacher_logprobs", _FLOATS), ("terms", pa.list_(_TERM)), ("worth", pa.string()), ("bounded", pa.float64()),
    ("anchored", pa.float64()),
    ("pulled_ids", pa.list_(pa.int32())), ("pulls", _FLOATS),
])  # fmt: skip


def write_records(path: Path, batch: Batch, result: StepResult) -> None:
    rows = [_row(sample, batch, result) for sample in batch.samples]
    write_table(path, pa.Table.from_pylist(rows, schema=ROW), compression="zstd")


def link_record(run: RunDir, checkpoint: Path, keep: int) -> None:
    """Link a checkpoint's record to the place where `inspect` reads it, and remove the oldest records."""
    folder, source = run.records, checkpoint / NAME
    if keep and source.exists():
        target = run.record(int(checkpoint.name))
        if not target.exists():
            publish(target, partial(link, source))
    kept = {number: path for path in folder.glob("*.parquet") if (number := number_of(path.stem)) is not None}
    paths = [kept[number] for number in sorted(kept)]
    for path in paths[: max(0, len(paths) - keep)]:
        remove(path)


def _row(sample: Sample, batch: Batch, result: StepResult) -> dict[str, Any]:
    numbers, facts = result.turns[sample.turn_id], result.facts
    assert facts is not None
    names = [name for name in facts.weights if name in numbers.advantages or name in numbers.divergences]
    return {
        "turn_id": sample.turn_id,
        "session_id": sample.session_id,
        "step": batch.step,
        "method": facts.method,
        "shard": sample.stem,
        "reward": sample.reward,
        "worth": sample.worth,
        "credit": sample.credit,
        "baseline": batch.baselines.get(sample.turn_id, 0.0),
        "temperature": sample.temperature,
        "policy_version": sample.policy_version,
        "policy_version_end": sample.policy_version_end,
        "staleness": batch.staleness(sample),
        "completion_ids": sample.completion_ids,
        "policy_logprobs": numbers.policy_T.tolist(),
        "sampler_logprobs": numbers.sampler_T.tolist(),
        "teacher_logprobs": None if numbers.teacher_T is None else numbers.teacher_T.tolist(),
        "terms": [_term(name, numbers, facts) for name in names],
        "bounded": numbers.bounded,
        "anchored": numbers.anchored,
        "pulled_ids": list(numbers.pulls),
        "pulls": list(numbers.pulls.values()),
    }


def _term(name: str, numbers: TurnNumbers, facts: StepFacts) -> dict[str, Any]:
    streams: dict[str, dict[str, Any]] = {
        "advantages": numbers.advantages,
        "acting": numbers.acting,
        "divergences": numbers.divergences,
    }
    values = {kind: by_term[name].tolist() if name in by_term else None for kind, by_term in streams.items()}
    return {"name": name, "weight": facts.weights[name], "tokens": facts.counts[name], **values}
