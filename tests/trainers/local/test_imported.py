"""Imported texts in the trainer: ids of its own template, logprobs of its own weights, and no invented values."""

import math
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch

from clawctl.config import TrainConfig
from clawctl.run.directory import RunDir
from clawctl.run.rows import TEXT_ONLY, Turn
from clawctl.run.shards import Origin
from clawctl.train.feed import Feed
from clawctl.train.sample import Sample
from clawctl.train.turn_queue import TurnQueue
from clawctl.trainers import Model, Unrenderable
from clawctl.trainers.local.model import load_policy
from clawctl.trainers.local.ranks import Ranks
from clawctl.trainers.local.scores import scored
from clawctl.trainers.texts import rendered
from tests.train.tiny import HINT, Sampler, make_recipe, publish_shard, publish_turns, run_training, texts_of

ALONE = Ranks(0, 1, torch.device("cpu"))
NO_IDS: dict[str, Any] = {
    "source": "import", "trainable": False, "untrainable_reason": TEXT_ONLY, "prompt_ids": None, "completion_ids": None,
    "logprobs": None, "policy_version": None, "policy_version_end": None, "temperature": 1.0, "finish_reason": None,
}  # fmt: skip


def text(sampler: Sampler, name: str, answer: str = "solve please 1 2 3", **changes: Any) -> Turn:
    response = {"role": "assistant", "content": answer}
    return replace(sampler.turn(name, tokens=1), **{**NO_IDS, "response": response, **changes})


def make_feed(run: RunDir, sampler: Sampler, **config: Any) -> Feed:
    settings = TrainConfig.model_validate({"batch_turns": 2, "batch_min_turns": 1, **config})
    return Feed(TurnQueue(run, settings, Model(texts_of(sampler), adapter=True, exact=True), {}, Origin("mine", "fingerprint")))


def test_the_ids_are_those_of_a_server_that_had_sampled_the_text(sampler: Sampler) -> None:
    turn = rendered(sampler.tokenizer, text(sampler, "x", "solve please"))
    assert turn.prompt_ids == sampler.turn("x", tokens=1).prompt_ids
    assert sampler.tokenizer.decode(turn.completion_ids) == "solve please<|im_end|>"
    assert (turn.logprobs, turn.trainable) == (None, False)


@pytest.mark.parametrize(
    "changes",
    [
        {"response": None},
        {"response": {"role": "assistant", "content": ""}},
        {"response": {"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]}},  # this template writes no tool calls
        {"response": {"role": "assistant", "content": [{"type": "text", "text": "a"}]}},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
        {"messages": [{"content": "nobody says it"}]},
        {"messages": [{"role": "user", "content": "a prompt that no template made", "plain": True}]},
    ],
)
def test_rows_that_the_template_renders_differently_are_refused_and_counted(
    run: RunDir, sampler: Sampler, changes: dict[str, Any]
) -> None:
    turn = text(sampler, "x", **changes)
    with pytest.raises(Unrenderable):
        rendered(sampler.tokenizer, turn)
    publish_shard(run, "a", [(turn, 1.0, None)])
    feed = make_feed(run, sampler)
    assert feed.next_batch(0) is None
    assert feed.queue.refused == {"cannot be rendered": 1}


def test_the_scores_are_the_logprobs_of_the_weights_at_that_moment_and_no_sampled_turn_is_touched(
    run: RunDir, sampler: Sampler, model_path: Path
) -> None:
    publish_shard(run, "a", [(text(sampler, "t"), 1.0, None), (sampler.turn("s", tokens=4), 1.0, None)])
    batch = make_feed(run, sampler).next_batch(0)
    assert batch is not None
    assert [sample.turn_id for sample in batch.samples if sample.logprobs is None] == ["t"]
    policy = load_policy(make_recipe(model_path), ALONE)
    by_id = {sample.turn_id: sample for sample in scored(policy, ALONE, batch, make_recipe(model_path).train).samples}
    imported = by_id["t"]
    assert by_id["s"] in batch.samples
    whole = torch.tensor([imported.prompt_ids + imported.completion_ids])
    with torch.no_grad():
        says = sampler.model(input_ids=whole).logits[0, :-1].float().log_softmax(-1)
    expected = says.gather(1, whole[0, 1:, None])[len(imported.prompt_ids) - 1 :, 0]
    assert imported.logprobs == pytest.approx(expected.tolist(), abs=1e-4)
    assert len(imported.logprobs or []) == len(imported.completion_ids)


def test_an_imported_turn_does_not_grow_stale_and_counts_as_sampled_by_the_version_that_scores_it(
    run: RunDir, sampler: Sampler
) -> None:
    publish_shard(run, "a", [(text(sampler, "t"), 1.0, None)])
    feed = make_feed(run, sampler, max_staleness=1)
    assert feed.next_batch(0) is None
    publish_shard(run, "b", [(text(sampler, "u"), -1.0, HINT)])
    batch = feed.next_batch(7)
    assert batch is not None
    assert [(s.policy_version, s.imported) for s in batch.samples] == [(7, True), (7, True)]
    assert batch.samples[1].teacher_prompt_ids is not None  # a hint is spliced into the rendered prompt


def test_a_step_on_texts_begins_with_a_ratio_of_one_and_reports_the_number_of_imported_turns(
    run: RunDir, sampler: Sampler, model_path: Path
) -> None:
    publish_turns(run, sampler, 2, "a")
    publish_shard(run, "b", [(text(sampler, "good"), 1.0, None), (text(sampler, "bad", "no no no"), -1.0, None)])
    run_training(run, make_recipe(model_path), Ranks(0, 1, torch.device("cpu")), threading.Event(), once=True)
    (row,) = map(orjson.loads, (run.train / "steps.jsonl").read_bytes().splitlines())
    assert (row["turns"], row["imported"]) == (4, 2)
    assert row["ratio_quantiles"] == pytest.approx([1.0] * 7, abs=1e-3)
    assert math.isfinite(row["grad_norm"])
    assert row["grad_norm"] > 0


def test_only_an_import_may_wait_for_its_logprobs() -> None:
    with pytest.raises(ValueError, match="without logprobs"):
        Sample("x", "a", "", [1], [2], None, 1.0, 0, 1.0, None)


def test_a_turn_with_placeholders_in_its_prompt_is_scored_again_and_the_largest_difference_is_reported(
    run: RunDir, sampler: Sampler, model_path: Path
) -> None:
    turn = sampler.turn("t", tokens=3)
    hidden = replace(turn, redacted_by="a key, in the conversation", logprobs=[value - 0.25 for value in turn.logprobs or ()])
    publish_turns(run, sampler, 2, "a")
    publish_shard(run, "b", [(hidden, 1.0, None), (sampler.turn("u", tokens=3), -1.0, None)])
    run_training(run, make_recipe(model_path), Ranks(0, 1, torch.device("cpu")), threading.Event(), once=True)
    (row,) = map(orjson.loads, (run.train / "steps.jsonl").read_bytes().splitlines())
    assert (row["turns"], row["rescored"]) == (4, 1)
    assert row["rescored_max"] == pytest.approx(0.25, abs=1e-3)
    assert row["ratio_quantiles"] == pytest.approx([1.0] * 7, abs=1e-3)
