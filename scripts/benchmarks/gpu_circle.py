"""Case `circle` of `scripts/bench gpu`: `clawctl up` with recipes/default.yaml and random weights, until a new version is live."""

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import orjson
import yaml

from clawctl.run.directory import RunDir, published
from clawctl.run.policies import live_version
from clawctl.run.shards import read_verdicts
from scripts.benchmarks.circle import ROOT, running
from scripts.benchmarks.gpu_models import SPOKEN, Bench

_PEOPLE, _TURNS = 8, 3
_BUSY = 3  # rounds without a pause; later ones leave a gap, in which the recipe's trainer makes its steps
_REPLIES = ("No, that is wrong.", "Thanks, that is what I wanted.", "Please try again, shorter.")
_JUDGE = '''"""A judge that costs nothing: half of all answers are good."""

reward_range = (-1, 1)


def score(prompt, response, next_state):
    return 1.0 if len(response) % 2 else -1.0
'''


def write_recipe(bench: Bench, folder: Path) -> Path:
    """recipes/default.yaml with random weights, a judge in Python, and no gate, because random weights answer nothing."""
    recipe: dict[str, Any] = yaml.safe_load((ROOT / "recipes" / "default.yaml").read_text())
    (folder / "judge.py").write_text(_JUDGE)
    recipe["model"] |= {"path": str(bench.model("0.6b", vocabulary=SPOKEN)), "name": "assistant"}
    recipe["serve"] |= {"port": 0, "max_tokens": 8 if bench.tiny else 64}
    recipe["collect"] = {"session_timeout_s": 5, "shard_age_s": 0.3}
    recipe["judge"] = {"custom_rm": f"{folder / 'judge.py'}:score"}
    recipe["train"] |= {"batch_turns": 16, "batch_wait_s": 5}
    recipe["up"] = {"stages": ["serve", "collect", "judge", "train"]}
    if bench.tiny:
        recipe["serve"] |= {"threads": 1, "kv_cache_tokens": 8192}
        recipe["train"] |= {"threads": 1, "idle_s": 1}
    if not bench.cuda:
        recipe["train"]["lora"].pop("quantize", None)
    for section in ("eval", "gate", "machines"):
        recipe.pop(section, None)
    path = folder / "circle.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    return path


def circle(bench: Bench) -> None:
    """People talk while the trainer learns. Ends when the second version is live and answers. Raises AssertionError if none is."""
    run = bench.folder / "circle-run"
    recipe = write_recipe(bench, bench.folder)
    began = time.perf_counter()
    try:
        with running(run, recipe):
            bench.add("server_ready", time.perf_counter() - began, "s")
            facts = asyncio.run(talk_until(run, began, *((600.0, 2.0) if bench.tiny else (90.0, 8.0))))
    finally:
        log = bench.folder / "circle-run.log"
        print("\n".join(log.read_text(errors="replace").splitlines()[-60:]), flush=True)
    for metric, (value, unit) in facts.items():
        bench.add(metric, value, unit)
    directory = RunDir(run)
    captured = sum(path.read_bytes().count(b"\n") for path in published(directory.captures, ".jsonl"))
    verdicts = [verdict for path in published(directory.verdicts, ".parquet") for verdict in read_verdicts(path)]
    steps = directory.root / "train" / "steps.jsonl"
    bench.add("requests_captured", captured, "requests")
    bench.add("turns_judged", sum(verdict.reward is not None for verdict in verdicts), "turns")
    bench.add("steps", steps.read_bytes().count(b"\n") if steps.exists() else 0, "steps")
    version = live_version(directory) or 0
    bench.add("live_version", version, "version")
    assert version, "no new version went live"


async def talk_until(run: Path, began: float, seconds: float, rest: float) -> dict[str, tuple[float, str]]:
    """Conversations at the server until version 1 is live and has answered, or the time is over. `rest`: seconds between rounds."""
    serve = orjson.loads((run / "serve.json").read_bytes())
    key = (run / "api_key").read_text().strip()
    counts = {"answered": 0, "refused": 0}
    live_after = 0.0
    deadline = time.perf_counter() + seconds
    async with httpx.AsyncClient(base_url=serve["url"], headers={"Authorization": f"Bearer {key}"}, timeout=60) as client:
        number = 0
        while time.perf_counter() < deadline:
            number += 1
            await asyncio.gather(*(converse(client, f"person-{number}-{i}", counts) for i in range(_PEOPLE)))
            if counts["refused"] > 100:
                break  # the server is gone
            if number >= _BUSY:
                await asyncio.sleep(rest)
            if (live_version(RunDir(run)) or 0) >= 1:
                live_after = live_after or time.perf_counter() - began
                await converse(client, "last", counts)
                break
    return {
        "requests_answered": (counts["answered"], "requests"),
        "requests_refused": (counts["refused"], "requests"),
        "first_version_live": (live_after, "s after the start; 0: never"),
    }


async def converse(client: httpx.AsyncClient, session: str, counts: dict[str, int]) -> None:
    messages: list[dict[str, str]] = [{"role": "user", "content": f"I am {session}. What is 3 + 4?"}]
    for turn in range(_TURNS):
        headers = {"X-Session-Id": session, "X-Session-Done": "true" if turn == _TURNS - 1 else "false"}
        try:
            reply = await client.post("/chat/completions", json={"model": "assistant", "messages": messages}, headers=headers)
        except httpx.HTTPError as error:
            print(f"{session}: {error!r}", flush=True)
            counts["refused"] += 1
            return
        if reply.status_code != 200:
            print(f"{session}: {reply.status_code} {reply.text[:300]}", flush=True)
            counts["refused"] += 1
            return
        counts["answered"] += 1
        text = reply.json()["choices"][0]["message"]["content"] or ""
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": _REPLIES[turn % len(_REPLIES)]}]
