"""Measures the latency of the training loop, and the effect of hot swaps on running requests.

Part `complaint`: one person complains once, and the step trains on that one turn. The time runs from the arrival of the complaint
to the end of the first answer by the new weights. Model time is the answer to the complaint, the judge's calls, the step's forward
and backward passes, and the first answer. It is taken from the stages' records. The rest is clawctl's own time.
Part `load`: 16 people send requests while 16 versions go live consecutively.
"""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import orjson

from clawctl.config import load_recipe
from clawctl.run.directory import open_run, published
from clawctl.run.endpoint import Endpoint, own_endpoint
from clawctl.run.shards import read_verdicts
from scripts.benchmarks.circle import people, running, wait_until, write_recipe
from scripts.benchmarks.table import Row, arguments, report
from scripts.wishes.chat import WANTS
from scripts.wishes.people import Wisher
from scripts.wishes.problems import make_problems


def ask(client: httpx.Client, endpoint: Endpoint, messages: list[dict[str, Any]]) -> str:
    answer = client.post(f"{endpoint.url}/chat/completions", json={"model": endpoint.model, "messages": messages, "max_tokens": 96})
    answer.raise_for_status()
    return str(answer.json()["choices"][0]["message"]["content"])


def complain_once(client: httpx.Client, endpoint: Endpoint, seed: int) -> None:
    """Ask until one answer gets a complaint. The result is one turn whose next state names the problem."""
    for attempt in range(50):
        person, task = Wisher(WANTS, 1000 * seed + attempt), make_problems(1, 1000 * seed + attempt)[0]
        messages = [{"role": "user", "content": person.open(task)}]
        reply = ask(client, endpoint, messages)
        reaction = person.react(task, reply, 0)
        if reaction.text is not None and not reaction.satisfied:
            messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": reaction.text}]
            ask(client, endpoint, messages)
            return
    raise SystemExit("nobody had a reason to complain in 50 conversations")


def complaint_rows(folder: Path, rounds: int) -> list[Row]:
    """Measure single complaints. Each round has one step and one hot swap."""
    changes = {
        "train": {"batch_turns": 1, "batch_min_turns": 1, "max_steps": None},
        "up": {"stages": ["serve", "collect", "judge", "train"]},
        "gate": None,
    }
    recipe, root = write_recipe(folder, changes), folder / "run"
    totals, ours = [], []
    with running(root, recipe):
        run, resolved = open_run(root), load_recipe(recipe)
        endpoint = own_endpoint(run, resolved)
        health = endpoint.url.removesuffix("/v1") + "/health"
        named = {"Authorization": f"Bearer {endpoint.api_key}", "X-Turn-Type": "main"}  # main turns: a complaint counts at once
        with httpx.Client(headers=named, timeout=60) as client:
            wait_until(lambda: (root / "train" / "feed.json").exists(), 120, "the trainer did not start")
            for round_ in range(rounds):
                live = int(client.get(health).json()["live"])
                while int(client.get(health).json()["live"]) == live:
                    complain_once(client, endpoint, 100 * round_ + live)
                    deadline = time.monotonic() + 15  # the judge may abstain; then another complaint follows
                    while int(client.get(health).json()["live"]) == live and time.monotonic() < deadline:
                        time.sleep(0.01)
                ask(client, endpoint, [{"role": "user", "content": "thanks"}])
                total, model = time_of_step(root, live + 1)
                totals.append(total)
                ours.append(total - model)
    return [
        Row("complaint", "complaint_to_learned_s", statistics.median(totals), "s"),
        Row("complaint", "non_model_s", statistics.median(ours), "s"),
        Row("complaint", "non_model_s_max", max(ours), "s"),
        Row("complaint", "rounds", len(totals), "rounds"),
    ]


def time_of_step(root: Path, version: int) -> tuple[float, float]:
    """Return the seconds from the complaint that `version` learned from to its first answer's end, and the model's part of them."""
    exchanges = [orjson.loads(line) for file in published(root / "captures", ".jsonl") for line in file.read_bytes().splitlines()]
    trained = orjson.loads((root / "policies" / str(version) / "policy.json").read_bytes())["turns"]
    step = next(
        row for row in map(orjson.loads, (root / "train" / "steps.jsonl").read_bytes().splitlines()) if row["version"] == version
    )
    complained_of = next(row for row in exchanges if row["exchange_id"] == trained[0])
    conversation = complained_of["messages"] + [complained_of["response"]]
    complaint = next(row for row in exchanges if row["messages"][: len(conversation)] == conversation)
    learned = next(row for row in exchanges if row["policy_version"] is not None and row["policy_version"] >= version)
    verdicts = {verdict.turn_id: verdict for file in published(root / "verdicts", ".parquet") for verdict in read_verdicts(file)}
    answering = complaint["finished_at"] - complaint["created_at"]
    judging = verdicts[trained[0]].latency_s or 0.0
    first_answer = learned["finished_at"] - learned["created_at"]
    computing = sum(step["seconds"][phase] for phase in ("teacher", "forward", "backward", "optimizer"))
    total = learned["finished_at"] - complaint["created_at"]
    # the judge runs concurrently with the answer to the complaint: only the longer of the two counts
    return total, max(answering, judging) + computing + first_answer


def load_rows(folder: Path, versions: int) -> list[Row]:
    """Let 16 people send requests while `versions` versions go live."""
    stages = {"up": {"stages": ["serve", "collect", "judge", "train"]}, "gate": None, "train": {"max_steps": versions}}
    recipe, root = write_recipe(folder, stages), folder / "run"
    with running(root, recipe):
        summary = people(root, 16, 0, until_version=versions, timeout_s=900)
        endpoint = own_endpoint(open_run(root), load_recipe(recipe))
        health = httpx.get(endpoint.url.removesuffix("/v1") + "/health").json()
    pauses = sorted(swap["pause_ms"] for swap in health["swaps"])
    return [
        Row("load", "swap_pause_ms_p99", pauses[min(len(pauses) - 1, int(0.99 * len(pauses)))], "ms"),
        Row("load", "swap_pause_ms_p50", statistics.median(pauses), "ms"),
        Row("load", "swaps", len(pauses), "swaps"),
        Row("load", "requests", summary["requests"], "requests"),
        Row("load", "refused_requests", summary["refused"], "requests"),
    ]


def main() -> None:
    options = arguments(__doc__ or "")
    with tempfile.TemporaryDirectory(prefix="clawctl-bench-") as folder:
        alone, many = Path(folder) / "one", Path(folder) / "many"
        alone.mkdir()
        many.mkdir()
        rows = complaint_rows(alone, rounds=3 if options.quick else 10) + load_rows(many, versions=4 if options.quick else 16)
    report("loop", rows, options.json)


if __name__ == "__main__":
    main()
