"""Case `load`: 128 concurrent episodes with four model calls and a tool process after each, and 16 concurrent pages of `gui`.

`environment_share` is the share of the episodes' wall time without a running model call, according to the server's captures. With
this many concurrent episodes on a few cores, an episode waits for the model most of the time.
"""

import argparse
import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

import httpx

from clawctl.asking import ask, new_client
from clawctl.engines.vllm.child import free_port
from clawctl.environments import EpisodeFailed, Outcome, Split, Task
from clawctl.run.directory import RunDir, open_run, published
from clawctl.run.endpoint import Endpoint
from clawctl.run.feedback import Ratings
from clawctl.run.lines import read_lines
from clawctl.run.outcomes import SessionOutcome
from scripts.benchmarks.chaos_stages import Stage
from scripts.benchmarks.circle import write_recipe
from scripts.benchmarks.environments_faults import clawctl
from scripts.benchmarks.table import Row

PARALLEL, ATTEMPTS, TASKS, QUICK_TASKS, CALLS = 128, 8, 64, 24, 4
PAGES, PAGE_TASKS, QUICK_PAGE_TASKS = 16, 8, 2
RECIPE = {"serve": {"threads": 1, "kv_cache_tokens": 65536}, "gate": None}


class Tools:
    """Makes four model calls, each followed by a process that computes."""

    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        return [Task(f"tools-{number}", number, split) for number in range(count)]

    async def play(self, task: Task, endpoint: Endpoint) -> Outcome:
        messages = [{"role": "user", "content": f"What is {task.spec} plus 1?"}]
        async with new_client(endpoint) as client:
            for _ in range(CALLS):
                messages.append({"role": "assistant", "content": await ask(endpoint, messages, client=client, max_tokens=32)})
                messages.append({"role": "user", "content": f"The calculator says {await computed(task.spec)}."})
        return Outcome(reward=float(task.spec % 2))


async def computed(number: int) -> str:
    """Run a tool in a separate process."""
    process = await asyncio.create_subprocess_exec("expr", str(number), "+", "1", stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    if process.returncode != 0:
        raise EpisodeFailed("sandbox", f"expr ended with {process.returncode}")
    return output.decode().strip()


def rows(options: argparse.Namespace, folder: Path) -> list[Row]:
    tools, pages = (QUICK_TASKS, QUICK_PAGE_TASKS) if options.quick else (TASKS, PAGE_TASKS)
    rows = play("load", folder / "tools", f"{Path(__file__).resolve()}:Tools", tools, PARALLEL)
    return [*rows, *play("load gui", folder / "gui", "gui", pages, PAGES, "--option", f"max_turns={CALLS}")]


def play(case: str, folder: Path, name: str, tasks: int, parallel: int, *further: str) -> list[Row]:
    folder.mkdir()
    run, recipe = open_run(folder / "run"), write_recipe(folder, RECIPE)
    serve = Stage("serve", run, recipe, port := free_port())
    serve.start()
    try:
        serve.wait_ready()
        numbers = ("--tasks", str(tasks), "--attempts", str(ATTEMPTS), "--parallel", str(parallel))
        clawctl(run, recipe, "collect", "--env", name, *numbers, *further)
        refused = refused_requests(httpx.get(f"http://127.0.0.1:{port}/metrics").text)
    finally:
        serve.kill()
    return measured(case, run, refused)


def refused_requests(metrics: str) -> int:
    """Count the API requests that were answered with a status other than 200."""
    numbers = re.findall(
        r'^clawctl_requests_total\{api="(?:chat|responses|messages)",.*status="(\d+)".*\} (\d+)', metrics, re.MULTILINE
    )
    if not numbers:
        raise SystemExit("the server's metrics name no requests")
    return sum(int(count) for status, count in numbers if status != "200")


def measured(case: str, run: RunDir, refused: int) -> list[Row]:
    outcomes = [outcome for outcome in Ratings(run).read() if isinstance(outcome, SessionOutcome) and outcome.episode is not None]
    played = {outcome.session_id: (float((outcome.episode or {})["created_at"]), outcome.created_at) for outcome in outcomes}
    calls: dict[str, list[tuple[float, float]]] = {}
    for path in published(run.captures, ".jsonl"):
        for row in read_lines(path):
            calls.setdefault(row["hints"]["session_id"], []).append((row["created_at"], row["finished_at"]))
    whole = sum(end - begin for begin, end in played.values())
    asking = sum(end - begin for session in played for begin, end in calls.get(session, ()))
    first, last = min(begin for begin, _ in played.values()), max(end for _, end in played.values())
    return [
        Row(case, "in_flight", float(max_at_once(list(played.values()))), "episodes"),
        Row(case, "refused_requests", float(refused), "requests"),
        Row(case, "environment_share", 1 - asking / whole, "of the episodes' wall time"),
        Row(case, "episodes_per_s", len(played) / (last - first), "1/s"),
        Row(case, "failed_episodes", float(sum(outcome.status == "failed" for outcome in outcomes)), "episodes"),
    ]


def max_at_once(spans: list[tuple[float, float]]) -> int:
    """The largest number of spans that contain one moment."""
    moments = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    running = most = 0
    for _, change in moments:
        running += change
        most = max(most, running)
    return most
