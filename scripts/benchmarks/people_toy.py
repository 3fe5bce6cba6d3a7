"""People of the world `wishes` with a policy each, some with opposite wishes, complain in words until their policies have learned.

All stages run. A tiny model answers word problems, and rules judge (docs/toy-worlds.md): minutes, where SmolLM2 takes hours.
"""

import asyncio
import statistics
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from clawctl.asking import ask, new_client
from clawctl.config import load_recipe
from clawctl.http_client import Client
from clawctl.run.directory import RunDir, open_run
from clawctl.run.endpoint import QUIET, Endpoint, own_endpoint
from clawctl.run.keys import add_key
from clawctl.run.policies import begin_policy, ensure_base_policy, live_version
from scripts.benchmarks.circle import judge_url, read_recipe, running
from scripts.benchmarks.table import Row
from scripts.wishes.chat import converse
from scripts.wishes.people import Wisher, unmet
from scripts.wishes.problems import make_problems

WISHES = (  # each of the first three pairs wants opposite things
    {"case": "upper"}, {"case": "lower"}, {"language": "german"}, {"language": "spanish"}, {"length": "one sentence"},
    {"length": "with check"}, {"greeting": "greets"}, {"emoji": "emoji"},
)  # fmt: skip
ANSWERS = 100  # that measure a person's policy: first answers to new problems
_SESSIONS = 2  # of a person at the same time
_REQUESTS = 40  # of a person to one version: more would leave the trainer no core, and half of them end in a turn that is trained
_ADAPTER = {"lora": {"rank": 16, "alpha": 32}, "lr": 3e-3}


def measure(root: Path, people: int, updates: int, seeds: Sequence[int]) -> list[Row]:
    """`satisfaction_own`: the share of a policy's first answers to new problems that meet its person's wish; `satisfaction_others`:
    the wishes of the other people."""
    of_person, others, start = list[float](), list[float](), list[float]()
    with ThreadPoolExecutor(len(seeds)) as threads:
        measured = threads.map(lambda seed: _shares(root / str(seed), people, updates, seed), seeds)
    for seed, (shares, before) in zip(seeds, measured, strict=True):
        print(seed, [[round(share, 2) for share in row] for row in shares], [round(share, 2) for share in before], flush=True)
        of_person += [row[number] for number, row in enumerate(shares)]
        others += [share for number, row in enumerate(shares) for wish, share in enumerate(row) if wish != number]
        start += before
    case = f"{people} people toy wishes"
    return [
        Row(case, "satisfaction_own", statistics.fmean(of_person), f"share, {len(seeds)} seeds"),
        Row(case, "satisfaction_own_lowest", min(of_person), f"share, of {len(of_person)}"),
        Row(case, "satisfaction_others", statistics.fmean(others), "share"),
        Row(case, "satisfaction_start", statistics.fmean(start), "share"),
        Row(case, "updates", updates, "of each policy"),
    ]


def write_recipe(folder: Path, people: int) -> Path:
    recipe = read_recipe("wishes")
    recipe["judge"]["endpoint"] = judge_url()
    recipe["policies"] = {"per": "key", "loaded": people}
    recipe["train"] |= _ADAPTER
    folder.mkdir(exist_ok=True)
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    return path


def _shares(root: Path, people: int, updates: int, seed: int) -> tuple[list[list[float]], list[float]]:
    """How often each policy meets each wish, and how often version 0 does."""
    path, run = write_recipe(root, people), open_run(root / "run")
    recipe = load_recipe(path)
    ensure_base_policy(run, recipe.model.path)
    keys = {f"person{number}": add_key(run, f"person{number}", begin_policy(run, f"person{number}")) for number in range(people)}

    async def talk_and_measure(server: Endpoint) -> tuple[list[list[float]], list[float]]:
        async with new_client(server) as client:
            talks = [
                _talk(
                    client, replace(server, api_key=key), run.of(name), WISHES[number], updates, seed * 1_000_003 + 10_000 * number
                )
                for number, (name, key) in enumerate(keys.items())
            ]
            await asyncio.gather(*talks)
            quiet = replace(server, headers={**server.headers, **QUIET})
            versions = [f"{server.model}@{name}@{live_version(run.of(name))}" for name in keys]
            shares = [await _met(client, replace(quiet, model=model), people, seed) for model in versions]
            return shares, await _met(client, replace(quiet, model=f"{server.model}@0"), people, seed)

    with running(run.root, path):
        return asyncio.run(talk_and_measure(own_endpoint(run, recipe)))


async def _talk(client: Client, endpoint: Endpoint, policy: RunDir, wish: dict[str, str], updates: int, first: int) -> None:
    """Begin one session after the other until the policy has made its updates."""
    seeds, requests = iter(range(first, first + 10_000)), Counter[int]()

    async def sessions() -> None:
        while (version := live_version(policy) or 0) < updates:
            if requests[version] >= _REQUESTS:
                await asyncio.sleep(0.2)
                continue
            number = next(seeds)
            talk = await converse(client, endpoint, Wisher(wish, number), make_problems(1, number)[0], f"session-{number}")
            if talk.refusal is not None:
                raise talk.refusal
            requests[version] += talk.requests

    await asyncio.gather(*(sessions() for _ in range(_SESSIONS)))


async def _met(client: Client, endpoint: Endpoint, people: int, seed: int) -> list[float]:
    """The share of answers to new problems that meet each wish."""
    problems = make_problems(ANSWERS, seed, "eval")

    async def answer(number: int, problem: Any) -> str:
        opening = [{"role": "user", "content": Wisher({}, seed * 1_000_003 + number).open(problem)}]
        return await ask(endpoint, opening, client=client, temperature=1, seed=number)

    answers = await asyncio.gather(*(answer(number, problem) for number, problem in enumerate(problems)))
    return [sum(not unmet(wish, text) for text in answers) / len(answers) for wish in WISHES[:people]]
