"""One box that serves and trains: how long requests wait, and how much of the idle time is trained.

  off      requests, and no training
  alone    training, and no requests
  always   both, with `train.when: always`
  idle     both, with `train.when: idle`

and what the weights of the base model take, with `train.when: always` and one request after the other before the first step:

  never    `model.one_copy: never`: the trainer has a float32 copy
  shared   `auto`: the trainer computes on the memory of the model's files
  one      `always`: the engine does as well

Each case runs `clawctl serve` and `clawctl train` on a new run with generated turns. `serve` is pinned to version 0, so that no
swap is measured. A person sends a request, reads the answer and waits before the next one, `--think` seconds on average. With
`--device cuda` both stages use the GPU. `--quick` takes the tiny model `crafts` and ten seconds a case.
"""

import json
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import orjson
import yaml

from clawctl.config import Recipe, load_recipe
from clawctl.process import die_with_parent
from clawctl.run.directory import RunDir, open_run
from clawctl.run.endpoint import own_endpoint
from clawctl.run.policies import ensure_base_policy
from clawctl.run.rows import Turn, Verdict
from clawctl.run.shards import write_turns, write_verdicts
from scripts.benchmarks.circle import CLAWCTL, ENVIRONMENT, wait_until
from scripts.benchmarks.table import Row, make_parser, report
from scripts.benchmarks.train_turns import make_single_turns

_BATCH, _STEPS, _VOCABULARY = 2, 800, 1000
_DEVICES = ("cpu", "cuda")
_START_S = 600.0
_ANSWERS = 5  # before the trainer starts
_WHOLE = 2  # steps at least, so that memory is seen at its peak


@dataclass(slots=True)
class Person:
    """Asks one request after the other."""

    first_token_s: list[float] = field(default_factory=list)
    refused: int = 0
    asking_s: float = 0.0


def main() -> None:
    parser = make_parser(__doc__ or "")
    parser.add_argument("--device", choices=_DEVICES, default="cpu", help="where both stages compute")
    parser.add_argument("--model", default="smollm2", help="the model that is served and trained")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each case")
    parser.add_argument("--think", type=float, default=4.0, help="mean seconds between an answer and the next request")
    parser.add_argument("--only", choices=("gaps", "memory"), help="one of the two tables above")
    options = parser.parse_args()
    model, seconds, think = ("crafts", 10.0, 1.0) if options.quick else (options.model, options.seconds, options.think)
    with tempfile.TemporaryDirectory() as folder:
        rows = [] if options.only == "memory" else measure(Path(folder), model, options.device, seconds, think)
        rows += [] if options.only == "gaps" else measure_memory(Path(folder), model, options.device, seconds)
        report("box", rows, options.json)


def measure(folder: Path, model: str, device: str, seconds: float, think: float) -> list[Row]:
    people, steps, rows = dict[str, Person](), dict[str, float](), list[Row]()
    for case, when, asks in (("off", None, True), ("alone", "always", False), ("always", "always", True), ("idle", "idle", True)):
        recipe = write_recipe(folder / f"{case}.yaml", model, device, when or "always")
        run = make_run(folder / case, load_recipe(recipe), 0 if when is None else _BATCH * _STEPS)
        with stage("serve", run, recipe, device, "--intercept", "--pin", "0") as serve:
            wait_until(run.server.exists, _START_S, "the server did not start", serve)
            person = people[case] = Person()
            ask(run, recipe, Person())  # warms up
            if when is None:
                talk(run, recipe, person, seconds, think)
                continue
            with stage("train", run, recipe, device) as train:
                wait_until(run.steps.exists, _START_S, "no step was made", train)
                before, began = steps_made(run), time.monotonic()
                if asks:
                    talk(run, recipe, person, seconds, think)
                else:
                    time.sleep(seconds)
                idle_s = time.monotonic() - began - person.asking_s
                steps[case] = 60 * (steps_made(run) - before) / idle_s
            lost = len(list(run.ledger.glob("skipped-*.json")))
            rows.append(Row(case, "lost_microbatches", lost / max(1.0, steps_made(run)), "share"))
    alone_ms = 1e3 * p95(people["off"])
    rows += [Row("off", "first_token_ms_p95", alone_ms, "ms")]
    rows += [Row(case, "first_token_added_ms_p95", 1e3 * p95(people[case]) - alone_ms, "ms") for case in ("always", "idle")]
    rows += [Row(case, "refused_requests", person.refused, "") for case, person in people.items() if case != "alone"]
    rows += [Row(case, "requests", len(person.first_token_s), "") for case, person in people.items() if case != "alone"]
    rows += [Row(case, "steps_per_idle_minute", value, "1/min") for case, value in steps.items()]
    shares = {case: steps[case] / steps["alone"] if steps["alone"] else None for case in ("always", "idle")}
    rows += [Row(case, "steps_per_idle_minute_ratio", share, "ratio") for case, share in shares.items()]
    return rows


def measure_memory(folder: Path, model: str, device: str, seconds: float) -> list[Row]:
    """The largest memory of all processes of both stages together, and the processor time of an answer and of a step."""
    rows, totals = list[Row](), dict[str, float]()
    for case, one_copy in (("never", "never"), ("shared", "auto"), ("one", "always")):
        recipe = write_recipe(folder / f"{case}.yaml", model, device, "always", one_copy)
        run = make_run(folder / case, load_recipe(recipe), _BATCH * _STEPS)
        with stage("serve", run, recipe, device, "--intercept", "--pin", "0") as serve:
            wait_until(run.server.exists, _START_S, "the server did not start", serve)
            person = Person()
            ask(run, recipe, Person())  # warms up
            before_answers = processor_s(serve.pid)
            for _ in range(_ANSWERS):
                ask(run, recipe, person)
            answer_s = (processor_s(serve.pid) - before_answers) / _ANSWERS
            with stage("train", run, recipe, device) as train:
                wait_until(run.steps.exists, _START_S, "no step was made", train)
                before, end, largest = steps_made(run), time.monotonic() + seconds, [0.0, 0.0]
                before_steps = processor_s(train.pid)
                while time.monotonic() < end or steps_made(run) < before + _WHOLE:
                    time.sleep(1)
                    present = [sum(map(memory_mb, family(process.pid))) for process in (serve, train)]
                    largest = max(largest, present, key=sum)
                step_s = (processor_s(train.pid) - before_steps) / (steps_made(run) - before)
        totals[case] = sum(largest)
        rows += [Row(case, f"{name}_mb", value, "MB") for name, value in zip(("serve", "train"), largest, strict=True)]
        rows += [
            Row(case, "answer_processor_s", answer_s, "s, at most 24 tokens"),
            Row(case, "step_processor_s", step_s, "s, 2 turns"),
        ]
        rows += [Row(case, "refused_requests", person.refused, "")]
    shared = [case for case in totals if case != "never"]
    return [*rows, *(Row(case, "memory_ratio_two_copies", totals[case] / totals["never"], "") for case in shared)]


def write_recipe(path: Path, model: str, device: str, when: str, one_copy: str = "auto") -> Path:
    train = {
        "method": "binary", "lr": 1e-6, "batch_turns": _BATCH, "lora": {"rank": 8}, "tokens_per_microbatch": 1024, "threads": 1,
        "when": when, "idle_s": 0.2, "max_staleness": 10 * _STEPS, "max_mismatch": 1e6, "turn_bound": None, "keep_turn_records": 0,
        "dtype": "bfloat16" if device == "cuda" else "float32",
    }  # fmt: skip
    serve = {"port": 0, "threads": 1, "kv_cache_tokens": 8192, "max_tokens": 24}
    base = {"path": model, "dtype": "float32" if device == "cpu" else "auto", "one_copy": one_copy}
    recipe = {"model": base, "serve": serve, "train": train}
    path.write_text(yaml.safe_dump(recipe))
    return path


def recipes(folder: Path) -> list[Path]:
    """For `scripts/bench all --rehearse`."""
    both = [(when, device) for when in ("always", "idle") for device in _DEVICES]
    return [write_recipe(folder / f"{when}-{device}.yaml", "crafts", device, when) for when, device in both]


def make_run(folder: Path, recipe: Recipe, count: int) -> RunDir:
    """A run with turns whose tokens are drawn, and rewards that alternate."""
    run = open_run(folder)
    ensure_base_policy(run, recipe.model.path)
    turns = [
        turn_of(f"t{index:05d}", prompt, said) for index, (prompt, said) in enumerate(make_single_turns(count, 40, _VOCABULARY))
    ]
    if turns:
        write_turns(run.turn_shard("a"), turns)
        verdicts = [Verdict(turn.turn_id, 1.0 if i % 2 else -1.0, [], None, [], "box", None, 0.0) for i, turn in enumerate(turns)]
        write_verdicts(run.verdicts / "a.parquet", verdicts)
    return run


def turn_of(name: str, prompt: list[int], said: list[int]) -> Turn:
    return Turn(
        turn_id=name, session_id=f"s-{name}", parent_turn_id=None, turn_index=0, kind="main", source="serve", task_id=None,
        group_id=None, user="default", created_at=time.time(), messages=[{"role": "user", "content": "?"}], tools=None,
        response={"role": "assistant", "content": "!"}, next_state=[{"role": "user", "content": "."}], prompt_ids=prompt,
        completion_ids=said, logprobs=[-5.0] * len(said), policy_version=0, policy_version_end=0, temperature=1.0, top_p=1.0,
        top_k=0, finish_reason="stop", outcome_reward=None, feedback=None, trainable=True, untrainable_reason=None, allowed=None,
    )  # fmt: skip


@contextmanager
def stage(name: str, run: RunDir, recipe: Path, device: str, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    environment = ENVIRONMENT | ({"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {})
    command = [*CLAWCTL, name, "--run", str(run.root), "--recipe", str(recipe), *arguments]
    with (run.root.parent / f"{run.root.name}-{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, preexec_fn=die_with_parent())
        try:
            yield process
        except SystemExit as error:
            raise SystemExit(f"{error}\n{Path(log.name).read_text()[-2000:]}") from error
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def talk(run: RunDir, recipe: Path, person: Person, seconds: float, think: float) -> None:
    draw, end, stop = random.Random(0), time.monotonic() + seconds, threading.Event()
    while time.monotonic() < end:
        ask(run, recipe, person)
        stop.wait(min(draw.expovariate(1 / think), max(0.0, end - time.monotonic())))


def ask(run: RunDir, recipe: Path, person: Person) -> None:
    """One streamed request of a person."""
    server = own_endpoint(run, load_recipe(recipe))
    body = {"model": server.model, "messages": [{"role": "user", "content": "How are you today?"}], "stream": True}
    headers = {"authorization": f"Bearer {server.api_key}", "content-type": "application/json"}
    began, first = time.monotonic(), None
    try:
        request = urllib.request.Request(f"{server.url}/chat/completions", orjson.dumps(body), headers)
        with urllib.request.urlopen(request, timeout=120) as response:
            for line in response:
                choices = json.loads(line[6:])["choices"] if first is None and line.startswith(b"data: {") else []
                if choices and choices[0]["delta"].get("content"):
                    first = time.monotonic() - began
    except (OSError, ValueError):
        person.refused += 1
    if first is not None:
        person.first_token_s.append(first)
    person.asking_s += time.monotonic() - began


def p95(person: Person) -> float:
    return float(np.quantile(person.first_token_s, 0.95)) if person.first_token_s else float("nan")


def steps_made(run: RunDir) -> float:
    return float(len(run.steps.read_bytes().splitlines())) if run.steps.exists() else 0.0


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    below = [int(child) for task in Path(f"/proc/{pid}/task").glob("*") for child in (task / "children").read_text().split()]
    return [pid, *(pid_below for child in below for pid_below in family(child))]


def processor_s(pid: int) -> float:
    """Seconds of processor time that a process and its living descendants have used."""
    times = [Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()[11:13] for member in family(pid)]
    return sum(int(user) + int(system) for user, system in times) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> float:
    """Its proportional set size: a page that several processes map counts once in all."""
    (line,) = (line for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if line.startswith("Pss:"))
    return int(line.split()[1]) * 1024 / 1e6


if __name__ == "__main__":
    main()
