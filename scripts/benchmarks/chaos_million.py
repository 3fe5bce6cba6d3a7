"""Case `million`: a week's load at once. The workers are real processes that run from the first turn to the last.

Serve's own capture writer writes short turns (four per session, about 100 tokens each) as fast as collect follows. Judge uses a
reward model that costs nothing. The trainer is replaced by its intake (`chaos_intake.py`), which does all work on a turn except
the gradient, and writes the ledger. No weights change. `clawctl retention` periodically deletes captures and shards that no stage
needs any more, like a cron job. Sessions end after seconds instead of an hour, so about as many are open as in a real week.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import orjson

from clawctl.config import PrivacyConfig
from clawctl.run.directory import RunDir, open_run, published
from clawctl.run.rows import Exchange
from clawctl.run.shards import merged_from, read_columns
from clawctl.serve.capture import Capture
from scripts.benchmarks.chaos_stages import Stage, wait_until
from scripts.benchmarks.circle import write_recipe
from scripts.benchmarks.collect import Talker
from scripts.benchmarks.table import Row

Number = tuple[str, float | None, str]  # metric, value (None: too few turns to measure it), unit
TURNS, QUICK_TURNS = 1_000_000, 20_000
_AHEAD = 20_000  # most captured turns without a row, but at most a twentieth of all turns
_SLICE = 400  # turns per captured slice
_RETENTION_EVERY_S = 30.0
_PATIENCE_S = 300.0  # without progress
RECIPE = {
    "collect": {"session_timeout_s": 4.0, "shard_age_s": 1.0, "merge_shards": 32},
    "train": {"method": "binary", "batch_turns": 64, "batch_wait_s": 5, "max_steps": None},
    "privacy": {"max_gb": 0.1, "keep_untrained": True},
    "gate": None,
    "up": {"stages": ["serve", "collect", "judge", "train"]},
}
_JUDGE = '''"""A reward model that costs nothing."""


class Cheap:
    reward_range = (-1, 1)

    async def score(self, prompt: str, response: str, next_state: str | None) -> float:
        return 1.0 if len(response) % 2 else -1.0
'''


def rows(options: argparse.Namespace, folder: Path) -> list[Row]:
    turns = options.turns or (QUICK_TURNS if options.quick else TURNS)
    return [Row("million", metric, value, unit) for metric, value, unit in million(folder, turns, options.seed)]


def million_recipe(folder: Path) -> Path:
    """The recipe of the case, with a judge that costs nothing in place of the demo's model."""
    (folder / "cheap.py").write_text(_JUDGE)
    return write_recipe(folder, {**RECIPE, "judge": {"custom_rm": f"{folder / 'cheap.py'}:Cheap", "hints": "off"}})


def recipes(folder: Path) -> list[Path]:
    return [million_recipe(folder)]


def million(folder: Path, turns: int, seed: int) -> list[Number]:
    """Process `turns` turns in a new run below `folder`. Returns the measurements during the run and at its end."""
    recipe = million_recipe(folder)
    run = open_run(folder / "run")
    intake = [sys.executable, "-m", "scripts.benchmarks.chaos_intake", str(run.root), str(recipe)]
    stages = [Stage("collect", run, recipe), Stage("judge", run, recipe), Stage("intake", run, recipe, program=intake)]
    gauge, tally, began = Gauge(run, stages), Tally(run, turns), time.monotonic()
    retention = Cron([sys.executable, "-m", "clawctl", "retention", "--run", str(run.root), "--recipe", str(recipe)])
    try:
        for stage in stages:
            stage.start()
        retention.start()
        asyncio.run(write(run, turns, seed, lambda done: follow(run, done, turns, tally, gauge)))
        finished = wait_until(lambda: all_in(run, turns, tally, gauge), _PATIENCE_S, stages)
        gauge.poll(turns)
    finally:
        retention.end()
        for stage in stages:
            stage.stop()
    tally.poll()
    return [
        ("turns", turns, "turns"),
        ("turns_per_s", turns / (time.monotonic() - began), "turns"),
        ("lost_turns", tally.lost(), "turns"),
        ("doubled_turns", tally.doubled(), "turns"),
        *of_ledger(run, turns, tally.trainable),
        ("finished", float(finished), "yes or no"),
        *gauge.numbers(),
        ("ended_alone", sum(stage.ended_alone for stage in stages), "processes"),
    ]


# ---- writing -------------------------------------------------------------------------------------------------------------


async def write(run: RunDir, turns: int, seed: int, follow: Callable[[int], bool]) -> None:
    """Capture all turns slice by slice. Before each slice, wait until `follow(number of written turns)` is true."""
    capture, stream = Capture(run.captures, PrivacyConfig()), exchanges(turns, seed)
    for done in range(0, turns, _SLICE):
        while not follow(done):
            await asyncio.sleep(0.1)
        if done // (turns // 20) > (done - _SLICE) // (turns // 20):
            print(f"{done} of {turns} turns written", flush=True)
        now = time.time()
        batch = [next(stream) for _ in range(min(_SLICE, turns - done))]
        await asyncio.gather(*(capture.write(replace(x, created_at=now + i / 1e5, finished_at=now)) for i, x in enumerate(batch)))
    if capture.lost:
        raise SystemExit(f"{capture.lost} turns could not be captured: {capture.last_error}")
    capture.close()


def exchanges(turns: int, seed: int) -> Iterator[Exchange]:
    talker, made = Talker(seed), 0
    while made < turns:
        for exchange, _ in talker.session(4, 16, 20, 20, 0.0):
            yield exchange
            made += 1


# ---- following -----------------------------------------------------------------------------------------------------------


def follow(run: RunDir, done: int, turns: int, tally: "Tally", gauge: "Gauge") -> bool:
    """Whether the next slice may be written: all workers have started, and collect is not too far behind."""
    gauge.poll(done)
    most = min(_AHEAD, turns // 20)
    if done - tally.seen > most // 2:
        tally.poll()
    return done - tally.seen <= most and (done > 0 or taken_in(run) is not None)


def all_in(run: RunDir, turns: int, tally: "Tally", gauge: "Gauge") -> bool:
    """Whether each turn has a row and all trainable turns passed the intake. If a turn is lost, the caller's time limit applies.

    Other turns need not pass the intake: shards without a trainable turn are finished once they are judged, and may be deleted
    before the intake reads them.
    """
    tally.poll()
    gauge.poll(turns)
    return tally.seen == turns and (taken_in(run) or 0) >= tally.trainable


def taken_in(run: RunDir) -> int | None:
    """The number of turns that the intake has trained, skipped or queued. None: the intake has not started."""
    try:
        feed = orjson.loads((run.train / "feed.json").read_bytes())
    except FileNotFoundError:
        return None
    return int(feed["used"] + feed["skipped"] + feed["waiting"])


class Tally:
    """Counts the rows of each turn. It must read often, because finished shards are merged and deleted."""

    def __init__(self, run: RunDir, turns: int) -> None:
        self.seen = self.trainable = 0
        self._run, self._turns = run, turns
        self._rows = bytearray(turns + 1)  # Talker numbers its turns from 1
        self._numbers: dict[str, array[int]] = {}  # the numbers of the turns in each shard, by stem

    def poll(self) -> None:
        for path in published(self._run.trajectories, ".parquet"):
            if path.stem in self._numbers:
                continue
            try:
                parts = merged_from(path)
                rows = read_columns(path, "turns", ("turn_id", "trainable"))
            except FileNotFoundError:
                continue  # it was merged, and its rows are in the merged shard
            counted = Counter(number for part in parts for number in self._numbers.get(part, ()))
            numbers = array("I", (int(row["turn_id"][1:]) for row in rows))
            for number, row in zip(numbers, rows, strict=True):
                if counted[number]:
                    counted[number] -= 1  # the same row in another file; unless its part was deleted before it was read
                else:
                    self.seen += self._rows[number] == 0
                    self.trainable += row["trainable"] and self._rows[number] == 0
                    self._rows[number] = min(255, self._rows[number] + 1)
            self._numbers[path.stem] = numbers
            for part in parts:
                self._numbers[part] = array("I")

    def lost(self) -> int:
        return self._rows.count(0) - 1

    def doubled(self) -> int:
        return self._turns + 1 - self._rows.count(0) - self._rows.count(1)


def of_ledger(run: RunDir, turns: int, trainable: int) -> list[Number]:
    times = bytearray(turns + 1)
    for path in published(run.train / "ledger", ".json"):
        for turn_ids in orjson.loads(path.read_bytes())["turns"].values():
            for turn_id in turn_ids:
                times[int(turn_id[1:])] += 1
    trained = turns + 1 - times.count(0)
    return [
        ("trainable", trainable, "turns"),
        ("trained", trained, "turns"),
        ("trained_twice", trained - times.count(1), "turns"),
        ("unaccounted", trainable - (taken_in(run) or 0), "turns"),
    ]


class Gauge:
    """Measures the memory and open files of each worker, and the files of the run, every second."""

    def __init__(self, run: RunDir, stages: list[Stage]) -> None:
        self._run, self._stages = run, stages
        self._next = 0.0
        self._rss: dict[str, list[tuple[int, float]]] = {stage.name: [] for stage in stages}  # (turns written, MB)
        self._open = dict.fromkeys(self._rss, 0)
        self._files, self._bytes = 0, 0

    def poll(self, done: int) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + 1.0
        for stage in self._stages:
            process = Path(f"/proc/{stage.pid}")
            with suppress(OSError):  # it is being restarted
                self._rss[stage.name].append((done, int((process / "statm").read_text().split()[1]) * 4096 / 1e6))
                self._open[stage.name] = max(self._open[stage.name], len(os.listdir(process / "fd")))
        files = [path for path in self._run.root.rglob("*") if path.parent.name != "ledger" and path.is_file()]
        self._files = max(self._files, len(files))
        self._bytes = max(self._bytes, sum(size_of(path) for path in files))

    def numbers(self) -> list[Number]:
        numbers: list[Number] = []
        for name, sizes in self._rss.items():
            marks = [self._at(sizes, share) for share in (0.1, 0.5, 1.0)]
            numbers += [(f"{name}_rss_mb_at_{at}", mark, "MB") for at, mark in zip((10, 50, 100), marks, strict=True)]
            first, _, last = marks
            numbers.append((f"{name}_rss_growth_mb", None if first is None or last is None else last - first, "MB"))
        growth = max((value for metric, value, _ in numbers if metric.endswith("growth_mb") and value is not None), default=None)
        ledger = sum(1 for _ in (self._run.train / "ledger").glob("*.json"))
        return [
            ("rss_growth_mb", growth, "MB, of the worker that grows most"),
            *numbers,
            ("open_files_max", max(self._open.values()), "files"),
            ("files_max", self._files, "files, the ledger left out"),
            ("ledger_files", ledger, "files, one a step"),
            ("run_mb_max", self._bytes / 1e6, "MB, the ledger left out"),
        ]

    def _at(self, sizes: list[tuple[int, float]], share: float) -> float | None:
        """Return the maximum around a share of all turns, because memory use fluctuates."""
        turns = max(done for done, _ in sizes)
        near = [mb for done, mb in sizes if (share - 0.05) * turns <= done <= (share + 0.05) * turns]
        return max(near, default=None)


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


class Cron(threading.Thread):
    """Runs a command periodically until it is stopped."""

    def __init__(self, command: list[str]) -> None:
        super().__init__(name="cron", daemon=True)
        self._command, self._ended = command, threading.Event()

    def run(self) -> None:
        while not self._ended.wait(_RETENTION_EVERY_S):
            done = subprocess.run(self._command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                print(f"retention: {done.stderr[-500:]}", flush=True)

    def end(self) -> None:
        self._ended.set()
        self.join()
