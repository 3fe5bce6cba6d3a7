"""A client that renders its own prompts, through all stages: served, collected, judged, trained, shown, exported, forgotten."""

from pathlib import Path
from typing import Any

import httpx
import orjson

from clawctl.collect.exports import export_file
from clawctl.collect.imports import import_file
from clawctl.collect.worker import collect
from clawctl.config import Recipe
from clawctl.judge.worker import judge
from clawctl.privacy.command import parse_selection
from clawctl.privacy.forget import forget
from clawctl.run.directory import open_run, published
from clawctl.run.policies import list_versions, read_policy
from clawctl.run.rows import Turn
from clawctl.run.shards import read_turns, read_verdicts
from clawctl.train.launch import train
from tests import forked
from tests.extension import needs
from tests.named_models import TEXT_MODEL
from tests.serve.served import Server

DEMO = "tiny@0"
SECRET = "my password is hunter2-Xk9wQ7zL"


def inspect(root: Path, *what: str) -> Any:
    return orjson.loads(forked.run("inspect", *what, "--run", root, "--json").stdout)


@needs("secrets")
def test_plain_completions_go_all_the_way_round(tmp_path: Path) -> None:
    with Server(tmp_path / "run", TEXT_MODEL) as server:
        run = server.run
        for number in range(2):
            talk(server, f"What is {number} + 2?", "That is wrong. The answer is 9." if number else "Thanks, that is right!")
        talk(server, SECRET, "Thanks!")
        recipe = Recipe.model_validate({
            "model": {"path": str(TEXT_MODEL), "name": "tiny", "dtype": "float32"},
            "judge": {"votes": 1, "max_tokens": 64, "history_chars": 0, "endpoint": server.url, "api_key": "key", "model": DEMO,
                      "fitness": "skip"},
            "eval": {"holdout": 0},
            "train": {"method": "binary", "batch_turns": 1, "batch_min_turns": 1, "max_steps": 1, "threads": 1},
        })  # fmt: skip
        collect(run, recipe, once=True, end_sessions=True)
        judge(run, recipe, once=True)
    rows = [row for path in published(run.trajectories, ".parquet") for row in read_turns(path)]
    assert len(rows) == 6
    first = [row for row in rows if row.parent_turn_id is None]
    reasons = [row.untrainable_reason for row in sorted(first, key=lambda row: row.created_at)]
    assert reasons == [None, None, None]  # a secret in the prompt costs its own tokens
    assert SECRET.split()[-1] not in repr(rows)
    assert all(row.next_state and "<|" not in repr(row.next_state) for row in first)
    verdicts = {verdict.turn_id: verdict for path in published(run.verdicts, ".parquet") for verdict in read_verdicts(path)}
    assert verdicts.keys() == {row.turn_id for row in rows}
    assert any(verdicts[row.turn_id].reward for row in first), verdicts
    train(run, recipe, once=True)
    assert list_versions(run) == [0, 1]
    trained = read_policy(run, 1).turns
    assert trained
    assert set(trained) <= {row.turn_id for row in first}
    explanation = inspect(run.root, "why", trained[0])
    assert explanation["turn"]["trained_in_step"] == 1
    assert explanation["numbers"]["completion_tokens"] == len(by_id(rows)[trained[0]].completion_ids or [])
    exported_and_imported(run.root, tmp_path)
    done = forget(run, parse_selection(by_id(rows)[trained[0]].session_id, None, None, False), dry_run=False, retrain=False)
    left = [row.turn_id for path in published(run.trajectories, ".parquet") for row in read_turns(path)]
    assert trained[0] not in left
    assert len(left) == 4
    assert done.policies == [1]
    assert not any(trained[0].encode() in path.read_bytes() for path in run.captures.iterdir())


def talk(server: Server, question: str, reply: str) -> None:
    prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    said = complete(server, prompt)
    complete(server, f"{prompt}{said}<|im_end|>\n<|im_start|>user\n{reply}<|im_end|>\n<|im_start|>assistant\n")


def complete(server: Server, prompt: str) -> str:
    # Without a seed, the random model repeats a part of the secret or begins a tool call now and then: such turns are not trained.
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 24, "seed": 7, "logit_bias": None}
    answer = httpx.post(f"{server.url}/completions", json=body, headers={"x-api-key": "key"}, timeout=60)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def by_id(rows: list[Turn]) -> dict[str, Turn]:
    return {row.turn_id: row for row in rows}


def exported_and_imported(root: Path, folder: Path) -> None:
    """In another run there are the words; no template makes another prompt of them, so they are not trained there."""
    export_file(open_run(root), folder / "all.jsonl")
    other = open_run(folder / "other")
    turns = import_file(other, folder / "all.jsonl", None).turns
    assert len(turns) == 6
    assert all(turn.messages[0]["plain"] for turn in turns)
