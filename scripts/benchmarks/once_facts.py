"""Case `facts` of `scripts/bench once`: 40 facts that a person said once, and what is left of them when the person is forgotten.

Each fact is a note of the key `anna`. Each is asked for once, in a session of its own, at temperature 0: `in_prompt` is the share
of questions whose captured prompt has the fact, `recalled` of answers that give it, and `recalled_alone` of those where it is the
only fact in the prompt. Then `clawctl forget --user anna` runs beside the server, and `forgotten_bytes` counts what is still in the
run directory: each sentence and each answer of five letters or more, in files as they are and in the rows of shards.
"""

import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import orjson
import pyarrow.parquet

from clawctl.run.keys import add_key
from scripts.benchmarks.circle import CLAWCTL, wait_until
from scripts.benchmarks.once import posts
from scripts.benchmarks.real_circle import Circle, running, write_recipe
from scripts.benchmarks.table import Row

FACTS = [orjson.loads(line) for line in Path(__file__).with_suffix(".jsonl").read_bytes().splitlines()]
PATIENCE_S, ANSWER_TOKENS = 60.0, 24


def fact_rows(folder: Path) -> list[Row]:
    recipe = write_recipe(folder / "facts.yaml", {"up": {"stages": ["serve", "collect"]}, "train": {"hint_place": "line"}})
    root = folder / "facts"
    with running(root, recipe):
        circle = Circle(root)
        headers = {"authorization": f"Bearer {add_key(circle.run, 'anna')}", "X-Turn-Type": "main", "X-Session-Done": "true"}
        for row in FACTS:
            wait_until(partial(posts, circle, headers, row["fact"], kind="fact"), PATIENCE_S, "the key is not accepted")
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(partial(answer, circle, headers), FACTS))
        prompts = [circle.told(row["question"], row["fact"]) for row in FACTS]
        alone = circle.answers(0, prompts, ANSWER_TOKENS, temperature=0)
        seen = [line for file in circle.run.captures.glob("*.jsonl") for line in file.read_bytes().splitlines()]
        wait_until(lambda: held(root / "trajectories") > 0, PATIENCE_S, "nothing was collected")
        before = held(root)
        forgotten = [*CLAWCTL, "forget", "--user", "anna", "--run", str(root), "--stop-workers", "--yes"]
        subprocess.run(forgotten, check=True, stdout=subprocess.DEVNULL)
        left = held(root)
    in_prompt = [any(row["fact"].encode() in line and row["question"].encode() in line for line in seen) for row in FACTS]

    def recalled(answers: Sequence[str]) -> float:
        return sum(row["answer"].lower() in text.lower() for row, text in zip(FACTS, answers, strict=True)) / len(FACTS)

    return [
        Row("facts", "in_prompt", sum(in_prompt) / len(FACTS), f"of {len(FACTS)}"),
        Row("facts", "recalled", recalled(answers), f"of {len(FACTS)}"),
        Row("facts", "recalled_alone", recalled(alone), f"of {len(FACTS)}"),
        Row("facts", "bytes_before", before, "bytes"),
        Row("facts", "forgotten_bytes", left, "bytes left"),
    ]


def answer(circle: Circle, headers: dict[str, str], row: dict[str, str]) -> str:
    messages = [{"role": "user", "content": row["question"]}]
    body = {"model": circle.server.model, "messages": messages, "temperature": 0, "max_tokens": ANSWER_TOKENS}
    given = circle.post("/chat/completions", body, {**headers, "X-Session-Id": f"asked-{FACTS.index(row)}"})
    return str(given["choices"][0]["message"]["content"])


def held(folder: Path) -> int:
    """Bytes of the facts in the files below a folder."""
    size = 0
    for file in folder.rglob("*"):
        if not file.is_file():
            continue
        content = file.read_bytes()
        if file.suffix == ".parquet":
            content = str(pyarrow.parquet.read_table(file).to_pylist()).encode()
        for row in FACTS:
            for text in (row["fact"], *([row["answer"]] if len(row["answer"]) >= 5 else [])):
                size += content.count(text.encode()) * len(text.encode())
    return size
