"""Case `disk-full`: all stages run on a small tmpfs that is filled at random moments and emptied some seconds later.

Meanwhile, people continue to send requests. Afterwards, each answer must have a trajectory row, or the server must have counted it
as lost. After each time, every stage must produce new output without a restart by hand.
"""

import argparse
import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson

from clawctl.config import load_recipe
from clawctl.run.directory import RunDir, published
from clawctl.run.endpoint import own_endpoint
from clawctl.run.shards import read_turn_ids
from scripts.benchmarks.circle import running, wait_until, write_recipe
from scripts.benchmarks.table import Row

_SIZE_MB = 96
_PATIENCE_S = 180.0  # a step is slow on a busy machine
_CHANGES: dict[str, Any] = {
    "train": {"batch_turns": 4, "max_steps": None, "lora": {"rank": 2}, "keep_checkpoints": 2},
    "collect": {"session_timeout_s": 3.0, "shard_age_s": 0.5},
    "up": {"stages": ["serve", "collect", "judge", "train"], "backoff_s": 0.2},
    "gate": None,
}


def rows(options: argparse.Namespace, folder: Path) -> list[Row]:
    """Fill the disk `options.rounds` times (default 20, with --quick 2)."""
    rounds, dice = options.rounds or (2 if options.quick else 20), random.Random(options.seed)
    why_not = mount(folder / "run")
    if why_not is not None:
        print(f"disk-full is left out: {why_not}")
        return [Row("disk-full", metric, None, "count") for metric in ("lost_turns", "trained_twice", "half_files_read", "rounds")]
    try:
        return _measured(folder, rounds, dice)
    finally:
        subprocess.run(["umount", "--lazy", str(folder / "run")], check=False)


def mount(folder: Path, size_mb: int = _SIZE_MB) -> str | None:
    """Mount a tmpfs at `place`. Returns the reason if that is not possible, otherwise None."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "there is no `mount` here"
    return None if done.returncode == 0 else f"no tmpfs may be mounted here: {done.stderr.strip()}"


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """Fill the disk completely for the duration of the block."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            pass
    try:
        yield
    finally:
        ballast.unlink()


class Talker(threading.Thread):
    """Repeatedly has sessions of two turns and records the id of each answer."""

    def __init__(self, run: RunDir, recipe: Path, seed: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._run, self._recipe, self._seed, self._stop_now = run, load_recipe(recipe), seed, stop
        self.answered: list[str] = []
        self.refused = 0

    def run(self) -> None:
        number = 0
        while not self._stop_now.is_set():
            number += 1
            messages = [{"role": "user", "content": f"person {self._seed}, question {number}: what is {number} + {self._seed}?"}]
            try:
                for _ in range(2):
                    reply = self._ask(messages)
                    said = ["That is wrong, say it step by step.", "Thank you, that is right!"][number % 2]
                    messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": said}]
                    self._stop_now.wait(0.3)
            except httpx.HTTPError:
                self.refused += 1
                self._stop_now.wait(0.3)

    def _ask(self, messages: list[dict[str, str]]) -> str:
        endpoint = own_endpoint(self._run, self._recipe)
        body = {"model": endpoint.model, "messages": messages, "max_tokens": 16}
        headers = {"Authorization": f"Bearer {endpoint.api_key}"}
        answer = httpx.post(f"{endpoint.url}/chat/completions", json=body, headers=headers, timeout=60)
        answer.raise_for_status()
        answered = answer.json()
        self.answered.append(answered["id"].removeprefix("chatcmpl"))
        return str(answered["choices"][0]["message"]["content"])


def _measured(folder: Path, rounds: int, dice: random.Random) -> list[Row]:
    run = RunDir(folder / "run")
    recipe, stop = write_recipe(folder, _CHANGES), threading.Event()
    counts: Counter[str] = Counter()
    with running(run.root, recipe) as up:
        talkers = [Talker(run, recipe, seed, stop) for seed in range(3)]
        for talker in talkers:
            talker.start()
        wait_until(lambda: _made(run)["train"] > 0, _PATIENCE_S, "no step was made", up)
        for _ in range(rounds):
            time.sleep(dice.uniform(0.0, 3.0))
            before = sum(len(talker.answered) for talker in talkers)
            with full(run.root):
                time.sleep(dice.uniform(4.0, 8.0))
                counts["answered_while_full"] += sum(len(talker.answered) for talker in talkers) - before
            made = _made(run)
            for stage in made:
                wait_until(lambda stage=stage, made=made: _made(run)[stage] > made[stage], _PATIENCE_S, f"{stage} is stuck", up)
                counts["stages_recovered"] += 1
        stop.set()
        for talker in talkers:
            talker.join(90)
        health = _health(run, recipe)
        captured = _captured(run)
        wait_until(lambda: captured <= set(_turns(run)), _PATIENCE_S, "not every exchange became a turn", up)
    answered = {answer for talker in talkers for answer in talker.answered}
    uncounted = max(0, len(answered - captured) - health["capture"]["lost"])
    counts["requests_failed"] = sum(talker.refused for talker in talkers)
    return _rows(run, rounds, counts, uncounted, health, folder / "run.log")


def _rows(run: RunDir, rounds: int, counts: Counter[str], uncounted: int, health: dict[str, Any], log: Path) -> list[Row]:
    turns, trained = Counter(_turns(run)), Counter(trained_turns(run))
    text = log.read_text(errors="replace")
    half = [path for path in run.quarantine.iterdir() if path.suffix == ".parquet" or path.is_dir()]
    values = {
        "lost_turns": uncounted + sum(count - 1 for count in turns.values()),
        "trained_twice": sum(count - 1 for count in trained.values()),
        "half_files_read": len(half),
        "rounds": rounds,
        "turns_not_captured_counted": health["capture"]["lost"],
        "turns_collected": len(turns),
        "turns_trained": len(trained),
        "answered_while_full": counts["answered_while_full"],
        "requests_failed": counts["requests_failed"],
        "stages_recovered": counts["stages_recovered"],
        "restarts": text.count("it will be restarted in"),
        "tracebacks": text.count("Traceback (most recent call last)"),
    }
    return [Row("disk-full", metric, value, "count") for metric, value in values.items()]


def _made(run: RunDir) -> dict[str, int]:
    """Return the amount of output of each stage so far."""

    def count(folder: Path, suffix: str) -> int:
        return len(published(folder, suffix)) if folder.exists() else 0

    return {
        "serve": sum(path.stat().st_size for path in published(run.captures, ".jsonl")),
        "collect": count(run.trajectories, ".parquet"),
        "judge": count(run.verdicts, ".parquet"),
        "train": count(run.train / "ledger", ".json"),
    }


def _health(run: RunDir, recipe: Path) -> dict[str, Any]:
    url = own_endpoint(run, load_recipe(recipe)).url.removesuffix("/v1")
    health: dict[str, Any] = httpx.get(f"{url}/health", timeout=60).json()
    return health


def _captured(run: RunDir) -> set[str]:
    problems = set()
    for path in published(run.captures, ".jsonl"):
        for line in path.read_bytes().split(b"\n"):
            try:
                problems.add(str(orjson.loads(line)["exchange_id"]))
            except (orjson.JSONDecodeError, LookupError):
                continue  # a line that the full disk cut off, which is counted as lost
    return problems


def _turns(run: RunDir) -> list[str]:
    return [turn_id for path in published(run.trajectories, ".parquet") for turn_id in read_turn_ids(path)]


def trained_turns(run: RunDir) -> list[str]:
    entries = [orjson.loads(path.read_bytes()) for path in published(run.train / "ledger", ".json") if path.stem.isdigit()]
    return [turn_id for entry in entries for ids in entry["turns"].values() for turn_id in ids]
