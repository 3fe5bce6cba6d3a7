"""Case `steps`: an environment rewards single turns, and the published turns must have these rewards.

The stages are real: `serve`, `collect --env` and `collect`. The environment calls the model by four ways of asking, whose answers
have different forms of id, streamed or whole. It leaves some turns without a reward, and these must have none.
"""

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clawctl.asking import complete, new_client
from clawctl.engines.vllm.child import free_port
from clawctl.environments import Outcome, Split, Task
from clawctl.http_client import fetch
from clawctl.run.directory import open_run, published
from clawctl.run.endpoint import Endpoint
from clawctl.run.handles import turn_of
from clawctl.run.shards import read_turns
from scripts.benchmarks.chaos_stages import Stage
from scripts.benchmarks.circle import write_recipe
from scripts.benchmarks.environments_faults import clawctl
from scripts.benchmarks.table import Row

TASKS, QUICK_TASKS, ATTEMPTS = 8, 2, 4
RECIPE = {"collect": {"shard_age_s": 0.2}, "gate": None}
WAYS = ("complete", "chat", "chat streamed", "messages", "messages streamed", "responses", "responses streamed")
_LONGEST = {"chat": "max_tokens", "messages": "max_tokens", "responses": "max_output_tokens"}


class Stepped:
    """Asks once by each way, and rewards four of five answers by their ids. The file `ledger` gets what was rewarded."""

    def __init__(self, ledger: str) -> None:
        self._ledger = Path(ledger)

    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        return [Task(f"stepped-{number}", number, split) for number in range(count)]

    async def play(self, task: Task, endpoint: Endpoint) -> Outcome:
        rewards = dict[str, float]()
        async with new_client(endpoint) as client:
            answer = await complete(endpoint, [{"role": "user", "content": f"complete {task.id}"}], client, max_tokens=4)
        ids = [answer["turn_id"], *[await asked(endpoint, way, f"{way} {task.id}") for way in WAYS[1:]]]
        for number, name in enumerate(ids):
            if (number + task.spec) % 5:
                rewards[name] = ((number * 7 + task.spec) % 9 - 4) / 4
        with self._ledger.open("a") as file:
            file.write(json.dumps({"all": ids, "rewarded": rewards}) + "\n")
        return Outcome(reward=0.0, steps=rewards)


async def asked(endpoint: Endpoint, way: str, text: str) -> str:
    """The id of an answer, as a client of this API reads it."""
    api, _, streamed = way.partition(" ")
    path = {"chat": "chat/completions"}.get(api, api)
    body: dict[str, Any] = {"model": endpoint.model, _LONGEST[api]: 4, "stream": bool(streamed), **endpoint.sampling}
    body |= {"input": text} if api == "responses" else {"messages": [{"role": "user", "content": text}]}
    response = await asyncio.to_thread(
        fetch, "POST", f"{endpoint.url}/{path}", json.dumps(body).encode(), key=endpoint.api_key, timeout_s=120.0
    )
    if response.status != 200:
        raise SystemExit(f"{way} was refused: {response.body[:300]!r}")
    if not streamed:
        return str(json.loads(response.body)["id"])
    data = next(line for line in response.body.split(b"\n") if line.startswith(b"data:"))
    event = json.loads(data.removeprefix(b"data:"))
    return str(event.get("id") or event.get("message", event.get("response"))["id"])


def rows(options: argparse.Namespace, folder: Path) -> list[Row]:
    tasks = QUICK_TASKS if options.quick else TASKS
    run, recipe, ledger = open_run(folder / "run"), write_recipe(folder, RECIPE), folder / "ledger.jsonl"
    serve = Stage("serve", run, recipe, free_port())
    serve.start()
    try:
        serve.wait_ready()
        name = f"{Path(__file__).resolve()}:Stepped"
        plan = ["--env", name, "--option", f"ledger={ledger}", "--tasks", str(tasks), "--attempts", str(ATTEMPTS)]
        clawctl(run, recipe, "collect", *plan, "--parallel", "4")
        clawctl(run, recipe, "collect", "--once")
    finally:
        serve.kill()
    turns = {turn.turn_id: turn for path in published(run.trajectories, ".parquet") for turn in read_turns(path)}
    episodes = [json.loads(line) for line in ledger.read_text().splitlines()]
    wanted = {turn_of(name) or name: reward for episode in episodes for name, reward in episode["rewarded"].items()}
    others = {turn_of(name) or name for episode in episodes for name in episode["all"]} - wanted.keys()
    right = sum(name in turns and turns[name].step_reward == reward for name, reward in wanted.items())
    invented = sum(name in turns and turns[name].step_reward is not None for name in others)
    return [
        Row("steps", "rewarded_turns_with_reward", right / len(wanted), "share"),
        Row("steps", "rewarded_turns", float(len(wanted)), "number"),
        Row("steps", "other_turns_with_reward", float(invented), f"of {len(others)}"),
    ]
