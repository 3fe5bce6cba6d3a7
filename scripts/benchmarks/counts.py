"""One cheap figure a room, counted and not timed: operations, calls, requests and bytes that change only with the code.

`tests/benchmarks/test_counts.py` compares them with the stored ones. If a change is meant, store the new ones:

    scripts/bench counts --json counts.json && scripts/bench results counts.json
"""

import argparse
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from clawctl.collect.worker import collect
from clawctl.config import Recipe, load_recipe
from clawctl.engines.embedded.kernels import compiled
from clawctl.engines.embedded.weights import load_weights
from clawctl.judge.prompts import judge_messages
from clawctl.privacy.redaction import Redactor, redactor_of
from clawctl.run.checksums import sealed
from clawctl.run.directory import RunDir, open_run, published
from clawctl.run.gguf import model_folder
from clawctl.run.policies import ensure_base_policy
from clawctl.run.rows import Exchange
from clawctl.train.loop import run_training
from clawctl.train.sample import Sample
from clawctl.trainers.local.ranks import Ranks
from clawctl.trainers.local.trainer import LocalTrainer
from scripts.benchmarks import box, gate
from scripts.benchmarks.collect import AGO, Talker
from scripts.benchmarks.table import Row, arguments, report
from scripts.benchmarks.train_ours import make_training, operations_ratio, useful_flops
from scripts.benchmarks.train_turns import make_session

HAS_BUCKETS = find_spec("clawctl.extensions.bucket") is not None
_TURNS, _EVERY, _BEGINS = 8, 8, 1.7e9


def rows(folder: Path) -> Iterator[Row]:
    pa.set_cpu_count(1)
    torch.set_num_threads(1)
    exchanges = [exchange for exchange, _ in Talker(1).session(_TURNS, 1000, 250, 150, _BEGINS)]
    yield from capture_rows(exchanges)
    yield shard_row(open_run(folder / "collect"), exchanges)
    said = [str(message["content"]) for message in exchanges[0].messages]
    yield Row("judge", "bytes_per_call", len(orjson.dumps(judge_messages(said[1], said[1], said[1], "user", "f"))), "bytes")
    yield from operation_rows()
    yield pass_row(open_run(folder / "engine"))
    yield from step_rows(folder)
    yield from bucket_rows(folder) if HAS_BUCKETS else ()
    recipe = load_recipe(gate.DEFAULT)
    yield next(row for row in gate.simulated("plus20", recipe, 0) if row.metric == "comparisons_mean")


def bucket_rows(folder: Path) -> Iterator[Row]:
    from scripts.benchmarks import bucket

    for row in bucket.rows(argparse.Namespace(quick=True), folder / "bucket", count=2000):
        if row.metric in ("lists_per_refresh", "gets_per_refresh"):
            yield row


def capture_rows(exchanges: list[Exchange]) -> Iterator[Row]:
    redactor: Redactor = redactor_of(Recipe().privacy)
    lines = [sealed(orjson.dumps(redactor.exchange(exchange))) for exchange in exchanges]
    yield Row("serve", "capture_bytes_per_turn", sum(map(len, lines)) / _TURNS, "bytes")
    yield Row("privacy", "texts_searched_per_turn", len(redactor._memories.of("default").values) / _TURNS, "texts")


def shard_row(run: RunDir, exchanges: list[Exchange]) -> Row:
    old = [
        replace(exchange, created_at=exchange.created_at - AGO, finished_at=exchange.finished_at - AGO) for exchange in exchanges
    ]
    (run.captures / "a-0.jsonl").write_bytes(b"".join(orjson.dumps(exchange) + b"\n" for exchange in old))
    collect(run, Recipe(), once=True)
    return Row(
        "collect",
        "shard_bytes_per_turn",
        sum(path.stat().st_size for path in published(run.trajectories, ".parquet")) / _TURNS,
        "bytes",
    )


def operation_rows() -> Iterator[Row]:
    """Operations of a step of 16 turns: what the tree computes, and what it saves."""
    training = make_training({"model": model_folder("crafts"), "dtype": "float32"}, torch.device("cpu"))
    turns = make_session(16, system=1024, vocabulary=1000)
    samples = [
        Sample(str(i), "a", "", prompt, said, [0.0] * len(said), 1.0, 0, 1.0, None) for i, (prompt, said) in enumerate(turns)
    ]
    yield Row("train, session-16", "gflop_per_step", useful_flops(training, samples) / 1e9, "GFLOP")
    yield Row("train, session-16", "operations_ratio_per_turn", operations_ratio(training, samples), "ratio")


class _Calls(TorchDispatchMode):
    """Counts the operations of PyTorch."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def pass_row(run: RunDir) -> Row:
    recipe = Recipe.model_validate({"model": {"path": "crafts"}})
    ensure_base_policy(run, recipe.model.path)
    path = os.environ["PATH"]
    os.environ["PATH"] = ""  # no compiler: the same operations on every machine
    compiled.cache_clear()
    try:
        weights = load_weights(run, recipe, 0)
    finally:
        os.environ["PATH"] = path
        compiled.cache_clear()
    with torch.no_grad(), _Calls() as calls:
        weights.score(list(range(3, 35)))
    return Row("engine", "calls_per_pass", calls.count, "operations of PyTorch")


def step_rows(folder: Path) -> Iterator[Row]:
    """What a step of an adapter writes, divided by the adapter: each step, and on average with `optimizer_every: 8`."""
    changes = {"optimizer_every": _EVERY, "max_steps": 2, "keep_turn_records": 100, "seed": 0}
    recipe = load_recipe(box.write_recipe(folder / "box.yaml", "crafts", "cpu", "always"))
    recipe = recipe.model_copy(update={"train": recipe.train.changed(**changes)})
    run = box.make_run(folder / "train", recipe, 4)
    run_training(run, recipe, LocalTrainer(recipe, Ranks(0, 1, torch.device("cpu"))), threading.Event(), once=True)
    adapter = (run.version_folder(1) / "adapter_model.safetensors").stat().st_size
    folders = [(run.checkpoint(step), run.version_folder(step)) for step in (1, 2)]
    first, both = (bytes_of(path for step in steps for path in step) / adapter for steps in (folders[:1], folders))
    yield Row("train", "step_bytes_written_ratio", first, "ratio")
    yield Row(
        f"train, optimizer_every {_EVERY}",
        "step_bytes_written_ratio",
        both / _EVERY + (both - first) * (_EVERY - 2) / _EVERY,
        "ratio",
    )


def bytes_of(folders: Iterable[Path]) -> int:
    """Bytes of all files. What several hard links name was written once."""
    files = [path.stat() for folder in folders for path in folder.rglob("*") if path.is_file()]
    return sum({file.st_ino: file.st_size for file in files}.values())


def main() -> None:
    options = arguments(__doc__ or "")
    with tempfile.TemporaryDirectory(prefix="clawctl-counts-") as folder:
        report("counts", list(rows(Path(folder))), options.json)


if __name__ == "__main__":
    main()
