"""Watch a tiny model learn a wish: `scripts/demo --toy --wish "answer in capital letters"`. Or complain yourself, with `--talk`.

Both run `clawctl up` with the `wishes` model. Rules judge the next states and write the hints.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import yaml
from rich.console import Console
from rich.table import Table

from clawctl.asking import Refused, ask
from clawctl.config import load_recipe
from clawctl.environments.episode import play_task
from clawctl.errors import ClawError
from clawctl.process import die_with_parent
from clawctl.run.directory import RunDir, open_run
from clawctl.run.endpoint import Endpoint, own_endpoint
from clawctl.run.policies import live_version
from scripts.benchmarks.wishes_circle import MODEL, RECIPE, ROOT, recipe_of
from scripts.wishes.axes import AXES
from scripts.wishes.chat import wait_for_endpoint
from scripts.wishes.environment import Wishes, wants_in
from scripts.wishes.judge import judge_server
from scripts.wishes.problems import make_problems
from scripts.wishes.reader import read

PEOPLE = 12
UPDATES = 16
LONGEST_S = 270.0
PROBLEMS = 60
# One person types slowly, so a step has two turns.
TALKING = {"batch_turns": 2, "batch_min_turns": 1, "batch_wait_s": 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wish", default="say hello first", help='what people want, in words: "say hello and use no digits"')
    parser.add_argument("--talk", action="store_true", help="you complain at the keyboard")
    options = parser.parse_args()
    try:
        wants = {} if options.talk else wants_in(options.wish)
    except ClawError as error:
        raise SystemExit(f"demo: {error.problem}\n  {error.fix}") from error
    recipe_of({})  # ends here if there is no model
    folder = ROOT / "runs" / time.strftime("wish-%Y%m%d-%H%M%S")
    run = open_run(folder)
    with judge_server() as judge, (run.logs / "demo.log").open("wb") as log:
        threading.Thread(target=judge.serve_forever, daemon=True).start()
        recipe = write_recipe(
            folder, f"http://127.0.0.1:{judge.server_port}/v1", TALKING if options.talk else {"max_steps": UPDATES}
        )
        up = start_process([sys.executable, "-m", "clawctl", "up", str(recipe), "--run", str(folder)], log)
        try:
            endpoint = wait_for_endpoint(run, threading.Event())
            if options.talk:
                asyncio.run(talk(run, endpoint))
            else:
                world = Wishes(options.wish)
                show(wants, asyncio.run(learn(world, run, recipe, endpoint, Console(stderr=True))))
        finally:
            end_process(up)
            judge.shutdown()
    print(f"Run      {folder}")


def start_process(command: list[str], log: Any) -> subprocess.Popen[bytes]:
    """The process ends with this one, also if this one is killed."""
    return subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, start_new_session=True, preexec_fn=die_with_parent())


def end_process(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.kill(process.pid, signal.SIGINT)
    try:
        process.wait(40)
    except subprocess.TimeoutExpired:
        process.kill()


def write_recipe(folder: Path, judge: str, train: dict[str, Any]) -> Path:
    """Write recipes/wishes.yaml with this judge and these training settings."""
    recipe = yaml.safe_load(RECIPE.read_text())
    recipe["judge"]["endpoint"] = judge
    recipe["model"]["path"] = str(MODEL)
    recipe["train"] |= train
    path = folder / "wish.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    return path


async def learn(world: Wishes, run: RunDir, recipe: Path, endpoint: Endpoint, console: Console) -> dict[int, dict[str, float]]:
    """Let people talk until the last update is live. Returns the rates of the first version and of the last one."""
    tasks = world.tasks("train", 4000, 0)
    waiting, deadline = iter(tasks), time.monotonic() + LONGEST_S
    rates = {0: await measured(world, run, recipe, 0)}
    console.print(f"{PEOPLE} simulated people want this and say so only in words; it takes {UPDATES} updates.")

    async def one_person() -> None:
        for task in waiting:
            if (live_version(run) or 0) >= UPDATES or time.monotonic() > deadline:
                return
            try:
                await play_task(world, task, with_headers(endpoint, uuid4().hex))
            except Refused:
                await asyncio.sleep(0.5)

    async def tell() -> None:
        seen = 0
        while (live := live_version(run) or 0) < UPDATES and time.monotonic() < deadline:
            if live > seen:
                console.print(f"policy {live} answers")
                seen = live
            await asyncio.sleep(0.5)

    await asyncio.gather(tell(), *(one_person() for _ in range(PEOPLE)))
    last = live_version(run) or 0
    return {**rates, last: await measured(world, run, recipe, last)}


def with_headers(endpoint: Endpoint, session: str) -> Endpoint:
    headers = {**endpoint.headers, "X-Session-Id": session, "X-Turn-Type": "main"}
    return Endpoint(endpoint.url, endpoint.api_key, endpoint.model, headers, endpoint.sampling)


async def measured(world: Wishes, run: RunDir, recipe: Path, version: int) -> dict[str, float]:
    """The mean of each metric over held-out problems."""
    at = own_endpoint(run, load_recipe(recipe), version=version)
    at = Endpoint(at.url, at.api_key, at.model, {**at.headers, "X-Capture": "off"}, at.sampling)
    places = asyncio.Semaphore(8)

    async def one(task: Any) -> Any:
        async with places:
            return (await world.play(task, at)).parts

    parts = await asyncio.gather(*(one(task) for task in world.tasks("eval", PROBLEMS, 0)))
    return {name: sum(part[name] for part in parts) / len(parts) for name in world.metrics}


def show(wants: dict[str, str], rates: dict[int, dict[str, float]]) -> None:
    """Print a table that compares the first and the last version on each axis."""
    (first, before), (last, after) = min(rates.items()), max(rates.items())
    table = Table("share of answers", f"policy {first}", f"policy {last}", "", title=f"{PROBLEMS} new problems each")
    for name in ("satisfaction", "correctness", *AXES):
        label = {"satisfaction": "every wish met", "correctness": "correct"}.get(name, f"{name}: not as usual")
        bar = "█" * round(20 * after[name]) + "·" * (20 - round(20 * after[name]))
        mark = "  wanted: " + wants[name] if name in wants else ""
        table.add_row(label, f"{before[name]:.2f}", f"{after[name]:.2f}", bar + mark)
    Console().print(table)


async def talk(run: RunDir, endpoint: Endpoint) -> None:
    """Have conversations at the keyboard, one about each problem."""
    print("You ask small problems, the model answers. Say what you do not like about an answer, in words:\n"
          '  "please say hello first"   "answer in German"   "no digits"   "answer first, and say goodbye"\n'
          "An empty line or thanks goes on to the next problem. The end of the input (Ctrl-D) ends it.")  # fmt: skip
    for problem in make_problems(500, Random().getrandbits(32)):
        at, messages = with_headers(endpoint, uuid4().hex), [{"role": "user", "content": problem.text}]
        while True:
            reply = await ask(at, messages)
            print(f"\n  {problem.text}\n  [policy {live_version(run) or 0}] {reply.replace(chr(10), chr(10) + '  ')}")
            try:
                said = (await asyncio.to_thread(input, "you: ")).strip()
            except EOFError:
                return
            content = not said or read(said).score == 1
            messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": said or "thanks"}]
            if content:
                await ask(with_done(at), messages)
                break


def with_done(endpoint: Endpoint) -> Endpoint:
    return Endpoint(
        endpoint.url, endpoint.api_key, endpoint.model, {**endpoint.headers, "X-Session-Done": "true"}, endpoint.sampling
    )


if __name__ == "__main__":
    main()
