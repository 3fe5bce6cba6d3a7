"""The longest silence of each command at a real terminal, on a run of SmolLM2: it is served, rated, trained and exported. Of
commands that wait for work, `serve` and `inspect web` count until they are ready."""

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import orjson
import yaml

from scripts.benchmarks.table import Row
from scripts.terminal import Terminal, terminal

_PATIENCE_S = 900.0
_RECIPE = """
model: {path: smollm2, dtype: float32}
serve: {port: 0, temperature: 0.7, max_tokens: 24, threads: 1, kv_cache_tokens: 8192}
train: {method: opd_topk, batch_turns: 2, batch_wait_s: 1, lora: {rank: 8, alpha: 16}, topk: 16, tokens_per_microbatch: 1024}
eval: {holdout: 0, suites: [own]}
practice: {idle_s: 1}
"""
_QUESTIONS = ("What is the capital of France?", "Name three fruits.", "How do I boil an egg?", "Why is the sky blue?")
_BEFORE = (
    "docs clients", "recipe check recipe.yaml", "doctor --recipe recipe.yaml", "collect --once --end-sessions", "judge --once",
    "calibrate --ratings", "keys add anna", "notes add Short. --key anna", "notes list", "train --max-steps 1", "train --estimate",
    "policies list", "eval --version 1 --against 0", "play practice --option note=Short. --tasks 1 --attempts 1",
    "practice --once --when always --steps 1", "inspect sessions", "inspect turns", "inspect policies", "inspect better",
    "inspect health", "inspect data", "inspect report --out report", "export turns.jsonl",
    "export merged --adapter merged --version 1",
    "export peft --adapter peft --version 1", "import turns.jsonl --run other", "inspect compare run other", "connect aider",
    "up recipe.yaml --estimate", "policies rollback 0", "retention --dry-run", "forget --user anna --dry-run",
)  # fmt: skip


def silence_rows(clawctl: str, folder: Path) -> Iterator[Row]:
    """Run each command in `folder`. Its rows are the longest silence, or None if the command failed."""
    environment = {**os.environ, "TERM": "xterm-256color", "CLAWCTL_RUN": "run"}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(yaml.safe_load(_RECIPE)))
    longest = 0.0
    with terminal([clawctl, "serve", "--recipe", "recipe.yaml", "--intercept"], folder, environment) as server:
        _until(server, "conversations are captured")
        seconds: dict[str, float | None] = {"serve": server.silence_s}
        _talk(folder / "run")
        for command in _BEFORE:
            seconds[command] = _silence([clawctl, *command.split()], folder, environment)
        with terminal([clawctl, "inspect", "web", "--port", "0"], folder, environment) as pages:
            _until(pages, "http")
            seconds["inspect web"] = pages.silence_s
    for command, silence in seconds.items():
        longest = max(longest, silence or 0.0)
        yield Row(f"silence {command}", "silence_s", silence, "s")
    yield Row("commands", "silence_s", longest, "s")
    yield Row("commands", "failed", sum(silence is None for silence in seconds.values()), "commands")


def _silence(command: list[str], folder: Path, environment: Mapping[str, str]) -> float | None:
    began = time.monotonic()
    with terminal(command, folder, environment) as at:
        code = at.wait(_PATIENCE_S)
        print(f"{' '.join(command[1:])}: {at.silence_s:.2f} of {time.monotonic() - began:.1f} s", flush=True)
        if code != 0:
            print(f"  FAILED with {code}: {at.text()[-400:]}", flush=True)
        return at.silence_s if code == 0 else None


def _until(at: Terminal, text: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while text not in at.text():
        if time.monotonic() > deadline:
            raise SystemExit(f"never showed {text!r}: {at.text()[-1000:]}")
        time.sleep(0.05)


def _talk(run: Path) -> None:
    """Ask the questions, and complain about each answer."""
    url = orjson.loads((run / "serve.json").read_bytes())["url"]
    headers = {"Authorization": f"Bearer {(run / 'api_key').read_text().strip()}"}
    with httpx.Client(headers=headers, timeout=_PATIENCE_S) as client:
        for question in _QUESTIONS:
            body = {"model": "default", "messages": [{"role": "user", "content": question}], "max_tokens": 16}
            answer = client.post(f"{url}/chat/completions", json=body).raise_for_status().json()
            rating = {"completion_id": answer["id"], "rating": -1, "comment": "Answer in one short sentence."}
            client.post(f"{url}/feedback", json=rating).raise_for_status()
