"""Measures the throughput of one collect worker on one core, the size of its shards, and the growth of its memory.

Part `stream`: reads captured conversations of 2k-token turns at full speed. It measures the CPU seconds of the worker from start to
end, including reading and parsing the captures. For comparison, zstd (level 3) compresses the same bytes on the same core, which is
the least cost of any stage that stores them.
Part `long`: sessions of 20 turns with a 10k-token prompt. It measures the bytes on disk for each token that is not a repetition: as
captured (each request whole), as published (four turns per shard), and as merged after judging. It counts token ids, words and
log-probabilities together, and ids alone. It also measures the cost of merging.
Part `restart`: the same captures with nothing left to do. Part `open`: the memory of a turn that waits for its next state.
Part `memory`: many small turns in sessions that end, with captures deleted after reading. It measures the growth of the resident
set from the first fifth to the end.
"""

import logging
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from clawctl.collect.read_position import ReadPosition
from clawctl.collect.upkeep import Upkeep
from clawctl.collect.worker import Collector, collect
from clawctl.config import Recipe
from clawctl.run.directory import RunDir, open_run, published
from clawctl.run.rows import Exchange, Verdict
from clawctl.run.shards import read_turn_ids, write_verdicts
from scripts.benchmarks.table import Row, arguments, report

SYLLABLES = [a + b for a in "bcdfglmnprstvw" for b in ("a", "e", "i", "o", "u", "an", "er", "is")]
AGO = 1e6  # seconds; the conversations are old, so their sessions end during reading


class Talker:
    """Conversations with one token per word, word frequencies by Zipf's law, and ids below 150k."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._words = ["".join(self._dice.choices(SYLLABLES, k=self._dice.randint(1, 3))) for _ in range(20_000)]
        self._ids = self._dice.sample(range(150_000), len(self._words))
        self._weights = [0.0]
        for rank in range(1, len(self._words)):
            self._weights.append(self._weights[-1] + 1 / rank)
        self._number = 0

    def say(self, tokens: int) -> tuple[str, list[int]]:
        chosen = self._dice.choices(range(len(self._words)), cum_weights=[*self._weights[1:], self._weights[-1] + 1], k=tokens)
        return " ".join(self._words[index] for index in chosen), [self._ids[index] for index in chosen]

    def session(self, turns: int, prompt: int, request: int, answered: int, begins: float) -> Iterator[tuple[Exchange, int]]:
        """Yield each exchange and the number of its tokens that are in no earlier turn."""
        text, ids = self.say(prompt)
        messages = [{"role": "system", "content": text}]
        new = prompt
        for turn in range(turns):
            said, more = self.say(request)
            messages, ids = [*messages, {"role": "user", "content": said}], ids + more
            reply, sampled = self.say(answered)
            self._number += 1
            response = {"role": "assistant", "content": reply}
            at = begins + 5 * turn
            yield self._exchange(at, messages, response, ids, sampled), new + request + answered
            messages, ids, new = [*messages, response], ids + sampled, 0

    def _exchange(self, at: float, messages: list, response: dict, ids: list[int], sampled: list[int]) -> Exchange:
        return Exchange(
            exchange_id=f"x{self._number:023d}", created_at=at, finished_at=at + 1, api="chat", key="default", status="ok",
            model="bench", messages=messages, tools=None, response=response, finish_reason="stop", prompt_ids=ids,
            completion_ids=sampled, logprobs=[-self._dice.expovariate(2) for _ in sampled], policy_version=0, policy_version_end=0,
            temperature=1.0, top_p=1.0, top_k=0, hints={}, untrainable_reason=None,
        )  # fmt: skip


def collect_once(run: RunDir, recipe: Recipe) -> float:
    """Read all captures and publish all complete turns. Returns the CPU seconds."""
    begun = time.process_time()
    collect(run, recipe, once=True)
    return time.process_time() - begun


def stream_rows(folder: Path, turns: int) -> list[Row]:
    run, talker, tokens = open_run(folder / "stream"), Talker(1), 0
    with (run.captures / "a-0.jsonl").open("wb") as file:
        for number in range(turns // 4):
            for exchange, _ in talker.session(4, 1000, 250, 150, time.time() - AGO + number):
                tokens += len(exchange.prompt_ids or []) + len(exchange.completion_ids or [])
                file.write(orjson.dumps(exchange) + b"\n")
    captured = (run.captures / "a-0.jsonl").read_bytes()
    seconds = collect_once(run, Recipe())
    begun = time.process_time()
    pa.Codec("zstd", compression_level=3).compress(captured)
    zstd_seconds = time.process_time() - begun
    written = sum(len(read_turn_ids(path)) for path in published(run.trajectories, ".parquet"))
    again = collect_once(run, Recipe())
    return [
        Row("stream", "turns_per_s", written / seconds, "turns per CPU second"),
        Row("stream", "tokens_per_turn", tokens / turns, "tokens"),
        Row("stream", "mb_per_s", len(captured) / seconds / 1e6, "MB of captures per CPU second"),
        Row("zstd -3", "mb_per_s", len(captured) / zstd_seconds / 1e6, "MB of captures per CPU second"),
        Row("stream", "share_of_zstd_speed", zstd_seconds / seconds, "share"),
        Row("restart", "restart_s", again, "CPU seconds"),
    ]


def long_rows(folder: Path, sessions: int) -> list[Row]:
    run, talker, distinct = open_run(folder / "long"), Talker(2), 0
    with (run.captures / "a-0.jsonl").open("wb") as file:
        for number in range(sessions):
            for exchange, new in talker.session(20, 10_000, 250, 150, time.time() - AGO + number):
                distinct += new
                file.write(orjson.dumps(exchange) + b"\n")
    collect_once(run, Recipe.model_validate({"collect": {"shard_turns": 4}}))  # as with few users
    captured = sum(path.stat().st_size for path in published(run.captures, ".jsonl"))
    sizes = {"long, as captured": captured, "long, as published": size_of(run)}
    for path in published(run.trajectories, ".parquet"):
        neutral = [Verdict(turn_id, 0.0, [0], None, [], "bench", None, None) for turn_id in read_turn_ids(path)]
        write_verdicts(run.verdicts / path.name, neutral)
    begun = time.process_time()
    Upkeep(run, Recipe.model_validate({"collect": {"merge_shards": 2}})).work(ReadPosition(run))
    merging = time.process_time() - begun
    sizes["long, merged"] = size_of(run)
    rows = [Row(case, "bytes_per_distinct_token", size / distinct, "bytes") for case, size in sizes.items()]
    return [
        *rows,
        Row("long, merged", "share_of_4_bytes", sizes["long, merged"] / distinct / 4, "share"),
        Row("long, merged, ids alone", "share_of_4_bytes", size_of_ids(run) / distinct / 4, "share"),
        Row("long, merged", "merge_us_per_distinct_token", merging / distinct * 1e6, "CPU microseconds"),
    ]


def size_of_ids(run: RunDir) -> int:
    size = 0
    for path in published(run.trajectories, ".parquet"):
        file = pq.ParquetFile(path).metadata
        columns = [file.row_group(group).column(index) for group in range(file.num_row_groups) for index in range(file.num_columns)]
        size += sum(column.total_compressed_size for column in columns if "_ids." in column.path_in_schema)
    return size


def size_of(run: RunDir) -> int:
    return sum(path.stat().st_size for path in published(run.trajectories, ".parquet"))


def open_rows(folder: Path, turns: int) -> list[Row]:
    run, talker = open_run(folder / "open"), Talker(4)
    with (run.captures / "a-0.jsonl").open("wb") as file:
        for _ in range(turns):
            for exchange, _ in talker.session(1, 1600, 250, 150, time.time()):
                file.write(orjson.dumps(exchange) + b"\n")
    collector = Collector(run, Recipe(), threading.Event())
    before = resident_mb()
    collector.poll()
    return [Row("open", "kb_per_open_turn", (resident_mb() - before) / turns * 1e3, "kB")]


def memory_rows(folder: Path, turns: int) -> list[Row]:
    run, talker = open_run(folder / "memory"), Talker(3)
    recipe, batch = Recipe.model_validate({"collect": {"session_timeout_s": 60}}), 2000
    collector = Collector(run, recipe, threading.Event())
    sizes = []
    begins = time.time() - AGO
    for number in range(turns // batch):
        path = run.captures / f"a-{number}.jsonl"
        with path.open("wb") as file:
            for session in range(batch // 4):
                for exchange, _ in talker.session(4, 20, 10, 10, begins + number * 100 + session / 10):
                    file.write(orjson.dumps(exchange) + b"\n")
        collector.poll()
        path.unlink()
        for shard in published(run.trajectories, ".parquet"):
            shard.unlink()
        sizes.append(resident_mb())
    collector.close()
    return [
        Row("memory", "rss_growth_mb", sizes[-1] - sizes[len(sizes) // 5], "MB"),
        Row("memory", "rss_mb", sizes[-1], "MB"),
        Row("memory", "turns", turns, "turns"),
    ]


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def main() -> None:
    options = arguments(__doc__ or "")
    logging.disable(logging.WARNING)
    pa.set_cpu_count(1)
    with tempfile.TemporaryDirectory(prefix="clawctl-bench-") as folder:
        rows = open_rows(Path(folder), turns=2_000 if options.quick else 10_000)  # first, while no free memory can be reused
        rows += stream_rows(Path(folder), turns=4_000 if options.quick else 40_000)
        rows += long_rows(Path(folder), sessions=8 if options.quick else 40)
        rows += memory_rows(Path(folder), turns=40_000 if options.quick else 1_000_000)
    report("collect", rows, options.json)


if __name__ == "__main__":
    main()
