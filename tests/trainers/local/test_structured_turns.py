"""Structured turns: every logprob of a step is over the tokens that could be drawn."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor, nn

from clawctl.run.allowed_tokens import Allowed, unpack
from clawctl.run.directory import RunDir
from clawctl.run.shards import UNKNOWN, read_columns, read_turns, write_table, write_turns
from clawctl.train.admission import Admission, TurnRefused
from clawctl.train.measures import Measures
from clawctl.train.remote_teacher import RemoteTeacher
from clawctl.trainers.local.batches import HIDDEN, make_microbatch, masks_of
from clawctl.trainers.local.head import token_logprobs, top_tokens
from clawctl.trainers.local.objective import logits_of, logprobs_of
from clawctl.trainers.local.scores import teacher_branches, teacher_logprobs, turn_branches
from clawctl.trainers.local.step import train_step
from clawctl.trainers.texts import TokenizerTexts
from scripts.benchmarks.gradients import gradients_of
from tests.train.tiny import HINT, Sampler, make_sets, only, publish_shard, verdict
from tests.trainers.local.test_head import TOKENS, VOCABULARY, WIDTH, Wrapped
from tests.trainers.local.test_train_step import ALONE, begin, score, take

SIZES = [0, 0, 1, 3, 150, 1, 2, 0, 40, 5]  # tokens that may be drawn in each place; 0: any


def turns_of(sampler: Sampler) -> list[Any]:
    """Two structured turns and a free one."""
    vocabulary = len(sampler.tokenizer)
    formed = [sampler.turn(f"formed{i}", seed=i, sets=make_sets(vocabulary, SIZES[i:], seed=i)) for i in range(2)]
    return [*formed, sampler.turn("free", seed=9)]


def publish(run: RunDir, sampler: Sampler) -> list[Any]:
    turns = turns_of(sampler)
    publish_shard(run, "a", [(turn, reward, HINT) for turn, reward in zip(turns, (1.0, -1.0, -1.0), strict=True)])
    return turns


def by_hand(logits_TV: Tensor, ids: list[int], sets: Allowed | None, temperature: float) -> Tensor:
    rows = [only(row, sets, position) for position, row in enumerate(logits_TV.float())]
    return (torch.stack(rows) / temperature).log_softmax(-1).gather(1, torch.tensor(ids)[:, None]).squeeze(1)


@pytest.mark.parametrize("wrap", [False, True])
def test_masked_logprobs_and_their_gradients_are_those_of_whole_logits_with_infinities(wrap: bool) -> None:
    torch.manual_seed(0)
    inner = nn.Linear(WIDTH, VOCABULARY)
    head: nn.Module = Wrapped(inner) if wrap else inner
    hidden = torch.randn(TOKENS, WIDTH, requires_grad=True)
    first, second = make_sets(VOCABULARY, [1, 4, 0, 50, 7] * 3), make_sets(VOCABULARY, [2, 0, 9, 30, 1], seed=1)
    masks = masks_of([first, None, second], [15, 5, 5], torch.device("cpu"))
    assert masks is not None
    sets = [(first, position) for position in range(15)] + [(None, 0)] * 5 + [(second, position) for position in range(5)]
    temperature, weights = torch.rand(TOKENS) + 0.5, torch.randn(TOKENS)
    scaled = head(hidden) / temperature[:, None]
    whole_NV = torch.stack([only(row, *where) for row, where in zip(scaled, sets, strict=True)]).log_softmax(-1)
    ids = torch.multinomial(whole_NV.detach().exp(), 1).squeeze(1)
    logprobs = token_logprobs(hidden, head, ids, temperature, masks, at_once=500)
    expected = whole_NV.gather(1, ids[:, None]).squeeze(1)
    torch.testing.assert_close(logprobs, expected)
    leaves = [hidden, *inner.parameters()]
    ours = torch.autograd.grad((logprobs * weights).sum(), leaves)
    for actual, other in zip(ours, torch.autograd.grad((expected * weights).sum(), leaves), strict=True):
        torch.testing.assert_close(actual, other)
    named, values = top_tokens(hidden, head, temperature, 5, masks, at_once=500)
    torch.testing.assert_close(values.exp(), whole_NV.exp().topk(5).values)
    named_logprobs = token_logprobs(hidden, head, named, temperature, masks, at_once=500)  # the hidden ones among them move nothing
    hidden_too = torch.autograd.grad((named_logprobs.exp() * named_logprobs.clamp(min=-50)).sum(), leaves)
    assert all(bool(gradient.isfinite().all()) for gradient in hidden_too)


@pytest.mark.parametrize(
    "changes",
    [{"method": "combine"}, {"method": "opd_topk"}, {"method": "hybrid"},
     {"method": "opd", "teacher": "base", "lora": {"rank": 4}}, {"method": "combine", "teacher": "ema"}],
)  # fmt: skip
def test_trainer_and_sampler_agree_on_structured_turns_in_every_method(
    run: RunDir, sampler: Sampler, model_path: Path, changes: dict[str, Any]
) -> None:
    publish(run, sampler)
    results = []
    for merge, tokens in (("tree", 10_000), ("none", 1)):
        training = begin(run, model_path, batch_turns=3, merge=merge, tokens_per_microbatch=tokens, clip_grad=1e9, **changes)
        row = train_step(training, take(run, training)).row
        assert row is not None
        assert row["mismatch_max"] < 1e-4
        results.append((row["loss"], row["grad_norm"]))
    assert results[1] == pytest.approx(results[0], rel=1e-3)


def test_the_gradient_of_a_structured_turn_is_that_of_the_formula(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    turn = turns_of(sampler)[0]
    publish_shard(run, "a", [(turn, 1.0, None)])
    training = begin(run, model_path, method="binary", batch_turns=1, baseline="none")
    batch = take(run, training)
    (ours,) = gradients_of(training, batch)
    (sample,), model = batch.samples, training.policy.module
    logits = model(input_ids=torch.tensor([sample.prompt_ids + sample.completion_ids])).logits[0, len(sample.prompt_ids) - 1 : -1]
    logprobs = by_hand(logits, sample.completion_ids, sample.allowed, sample.temperature)
    ratio = (logprobs - torch.tensor(sample.logprobs)).exp()  # 1 but for rounding, so that no token is left out
    parameters = [parameter for _, parameter in training.policy.trained()]
    expected = torch.autograd.grad(-ratio.sum() / len(logprobs), parameters)
    assert float(sum(gradient.norm() for gradient in expected)) > 0
    for actual, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(actual, other, atol=2e-5, rtol=2e-2)  # the KL penalty adds what rounding leaves of log r


def test_the_teacher_is_evaluated_over_the_same_tokens(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish(run, sampler)
    training = begin(run, model_path, method="opd", batch_turns=3)
    batch = take(run, training)
    scores = teacher_logprobs(training, batch.samples, Measures())
    for sample in batch.samples:
        prompt = sample.teacher_prompt_ids or []
        with torch.no_grad():
            logits = sampler.model(torch.tensor([prompt + sample.completion_ids])).logits[0, len(prompt) - 1 : -1]
        expected = by_hand(logits, sample.completion_ids, sample.allowed, sample.temperature)
        torch.testing.assert_close(scores[sample.turn_id], expected, atol=1e-4, rtol=1e-4)
        if sample.allowed is not None:
            forced = [position for position, size in enumerate(SIZES[int(sample.turn_id[-1]) :]) if size == 1]
            assert [float(scores[sample.turn_id][position]) for position in forced] == [0.0] * len(forced)
    assert all(
        branch.allowed == sample.allowed for branch, sample in zip(teacher_branches(batch.samples), batch.samples, strict=True)
    )


def test_a_custom_loss_gets_only_the_tokens_that_could_be_drawn(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish(run, sampler)
    training = begin(run, model_path, batch_turns=3)
    (sample, *_) = (sample for sample in take(run, training).samples if sample.allowed is not None)
    batch = make_microbatch(turn_branches([sample]), "tree", ALONE.device)
    with torch.no_grad():
        logits_NV = logits_of(training.policy, batch)
    assert int((logits_NV[2] != HIDDEN).sum()) == (1 if sample.turn_id == "formed0" else 3)
    torch.testing.assert_close(logprobs_of(logits_NV, batch), score(training, sample))


def test_sets_that_are_not_of_this_answer_or_model_keep_the_turn_out(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    turn = turns_of(sampler)[0]
    sets = unpack(turn.allowed)
    other = make_sets(sets.vocabulary, [1] * len(sets.which), seed=77).packed()
    wrong = {
        "a sampled token is not among the allowed ones": other,
        "the sets of allowed tokens are of another vocabulary": make_sets(64, [64] * len(sets.which)).packed(),
        "the sets of allowed tokens cannot be read": turn.allowed[:-9],
    }
    publish_shard(run, "a", [(turn, 1.0, None)])
    training = begin(run, model_path, batch_turns=1)
    policy = training.policy
    admission = Admission(training.config, TokenizerTexts(policy.tokenizer, policy.vocabulary, policy.context), UNKNOWN)
    for reason, allowed in wrong.items():
        with pytest.raises(TurnRefused, match=reason):
            admission.sample("a", replace(turn, allowed=allowed), verdict(turn), UNKNOWN, 0)
    assert admission.sample("a", turn, verdict(turn), UNKNOWN, 0).allowed == sets


def test_a_remote_teacher_is_not_used_for_structured_turns(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish(run, sampler)
    batch = take(run, begin(run, model_path, batch_turns=3))
    server = RemoteTeacher("http://127.0.0.1:9", "teacher", None)
    answers = dict(zip((sample.turn_id for sample in batch.samples), server.ask(batch), strict=True))
    assert all("whole vocabulary" in str(answers[name]) for name in ("formed0", "formed1"))
    assert "temperature 1" in str(answers["free"])


def test_shards_carry_the_sets_and_older_ones_have_none(run: RunDir, sampler: Sampler) -> None:
    turns, path = turns_of(sampler), run.trajectories / "a.parquet"
    write_turns(path, turns)
    assert {turn.turn_id: turn.allowed for turn in read_turns(path)} == {turn.turn_id: turn.allowed for turn in turns}
    older = run.trajectories / "old.parquet"
    table = pq.read_table(path).drop_columns(["allowed"])
    assert isinstance(table, pa.Table)
    write_table(older, table)
    assert {turn.allowed for turn in read_turns(older)} == {None}
    assert read_columns(older, "turns", ("turn_id", "parent_evidence", "allowed"))[0]["allowed"] is None
