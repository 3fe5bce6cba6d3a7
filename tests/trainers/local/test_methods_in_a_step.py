"""Methods and refusals, in whole steps on a tiny model."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch

from clawctl.errors import ClawError
from clawctl.run.directory import RunDir
from clawctl.run.policies import ensure_base_policy
from clawctl.run.shards import Origin, write_turns, write_verdicts
from clawctl.train.checkpoints import read_rows
from clawctl.train.ledger import read_ledger
from clawctl.train.measures import Measures
from clawctl.trainers.local.batches import make_microbatch
from clawctl.trainers.local.scores import TeacherPasses, likeliest_logprobs, policy_tops, teacher_tops, turn_branches
from clawctl.trainers.local.step import train_step
from clawctl.trainers.local.training import Training
from tests.train.tiny import HINT, Sampler, make_model, make_recipe, publish_shard, publish_turns, run_training, verdict
from tests.trainers.local.test_train_step import ALONE, begin, take, weights

HINTS = [HINT, "Write plain sentences.", "No bold steps."]


def publish_hinted(run: RunDir, sampler: Sampler, count: int = 4) -> None:
    turns = [sampler.turn(f"x{i}", seed=i, tokens=8 + i) for i in range(count)]
    write_turns(run.trajectories / "a.parquet", turns)
    write_verdicts(run.verdicts / "a.parquet", [replace(verdict(turn, -1.0, HINT), hints=HINTS) for turn in turns])


def train(run: RunDir, model: Path, **changes: Any) -> None:
    recipe = make_recipe(model, **changes)
    ensure_base_policy(run, recipe.model.path)
    run_training(run, recipe, ALONE, threading.Event(), once=True)


def divergence(training: Training, samples: Any, ids: list[torch.Tensor]) -> float:
    """Mean KL over all named tokens (which are the whole vocabulary here) between the policy and its teachers."""
    teachers = teacher_tops(training.policy, samples, ids[0].shape[1], TeacherPasses(10_000, Measures()), ids)
    batch = make_microbatch(turn_branches(samples), "none", ALONE.device)
    with torch.no_grad():
        now = policy_tops(training.policy, batch, ids[0].shape[1], torch.cat(ids))
    taught = torch.cat([teacher.logprobs_HTK[0] for teacher in teachers])
    return float((now.likeliest_NK.exp() * (now.likeliest_NK - taught)).sum(1).mean())


@pytest.mark.parametrize("topk_of", ["policy", "teacher"])
@pytest.mark.parametrize("lora", [None, {"rank": 4, "dropout": 0.1}])
def test_topk_distillation_brings_whole_distributions_nearer_to_the_teacher(
    run: RunDir, sampler: Sampler, model_path: Path, lora: Any, topk_of: str
) -> None:
    publish_hinted(run, sampler)
    training = begin(run, model_path, method="opd_topk", teacher="base", lora=lora, lr=1e-3, topk=20, topk_of=topk_of)
    batch = take(run, training)
    everything = torch.arange(training.policy.vocabulary)
    ids = [everything.expand(len(sample.completion_ids), -1) for sample in batch.samples]
    with torch.no_grad():
        before = divergence(training, batch.samples, ids)
    row = train_step(training, batch).row
    assert row is not None
    assert row["terms"]["opd_topk"]["advantage_quantiles"] is None
    assert row["terms"]["opd_topk"]["divergence_quantiles"][-1] > 0
    assert row["terms"]["opd_topk"]["loss"] > 0
    if lora is None:  # the teacher is then version 0, which does not change
        training.policy.module.eval()
    assert divergence(training, batch.samples, ids) < before


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "opd_topk"},
        {"method": "opd_topk", "topk_of": "teacher", "divergence": "forward"},
        {"method": "opd_topk", "guidance": 1.5},
        {"method": "combine", "topk": 4},
        {"method": "hybrid"},
        {"method": "hybrid", "hint_choice": "token"},
    ],
)
def test_methods_on_likeliest_tokens_do_not_depend_on_how_the_step_is_cut_or_merged(
    run: RunDir, sampler: Sampler, model_path: Path, changes: dict[str, Any]
) -> None:
    publish_hinted(run, sampler)
    results = []
    for merge, tokens in (("none", 1), ("none", 10_000), ("tree", 10_000), ("tree", 100)):
        training = begin(run, model_path, merge=merge, tokens_per_microbatch=tokens, clip_grad=1e9, lr=1e-4, **changes)
        row = train_step(training, take(run, training)).row
        assert row is not None
        results.append((row["loss"], row["grad_norm"]))
    for loss, norm in results[1:]:
        assert loss == pytest.approx(results[0][0], rel=1e-4)
        assert norm == pytest.approx(results[0][1], rel=1e-4)


def test_the_compared_tokens_are_the_likeliest_ones_of_the_teacher(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish_hinted(run, sampler, 1)
    training = begin(run, model_path, method="opd_topk", topk=4, topk_of="teacher", batch_turns=1)
    (sample,) = take(run, training).samples
    (turn,) = likeliest_logprobs(training, make_microbatch(turn_branches([sample]), "tree", ALONE.device), [sample], 4, Measures())
    assert turn.tops is not None
    for prompt, values_TK in (
        (sample.teacher_prompt_ids or [], turn.tops.teacher_HTK[0]),
        (sample.prompt_ids, turn.tops.policy_TK),
    ):
        with torch.no_grad():
            logits = sampler.model(torch.tensor([prompt + sample.completion_ids])).logits[0, len(prompt) - 1 : -1]
        whole = (logits / sample.temperature).log_softmax(-1)
        if prompt == sample.teacher_prompt_ids:
            ids_TK = whole.topk(4).indices
        torch.testing.assert_close(values_TK.detach(), whole.gather(1, ids_TK), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("guidance", [0.5, 1.5])
def test_guidance_multiplies_what_the_hint_changes_in_the_teachers_logits(
    run: RunDir, sampler: Sampler, model_path: Path, guidance: float
) -> None:
    publish_hinted(run, sampler, 2)
    training = begin(run, model_path, method="opd_topk", topk=4, topk_of="teacher", batch_turns=2, guidance=guidance)
    samples = take(run, training).samples
    turns = likeliest_logprobs(training, make_microbatch(turn_branches(samples), "tree", ALONE.device), samples, 4, Measures())
    for sample, turn in zip(samples, turns, strict=True):
        with torch.no_grad():
            hinted, plain = (
                sampler.model(torch.tensor([prompt + sample.completion_ids])).logits[0, len(prompt) - 1 : -1]
                for prompt in (sample.teacher_prompt_ids or [], sample.prompt_ids)
            )
        whole = ((plain + guidance * (hinted - plain)) / sample.temperature).log_softmax(-1)
        assert turn.tops is not None
        torch.testing.assert_close(turn.tops.teacher_HTK[0], whole.topk(4).values, atol=1e-4, rtol=1e-4)


def test_guidance_that_would_do_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="guidance has no effect with method combine unless topk is set"):
        make_recipe(Path("x"), method="combine", guidance=1.5)
    assert make_recipe(Path("x"), method="combine", topk=4, guidance=1.5).train["guidance"] == 1.5


def test_hybrid_evaluates_a_teacher_for_each_hint_on_the_policys_likeliest_tokens(
    run: RunDir, sampler: Sampler, model_path: Path
) -> None:
    publish_hinted(run, sampler, 2)
    training = begin(run, model_path, method="hybrid", batch_turns=2)
    samples = take(run, training).samples
    batch = make_microbatch(turn_branches(samples), "tree", ALONE.device)
    with torch.no_grad():
        seen = policy_tops(training.policy, batch, 4)
    teachers = teacher_tops(training.policy, samples, 4, TeacherPasses(10_000, Measures()), list(seen.ids_NK.split(batch.lengths)))
    for sample, teacher, ids_TK in zip(samples, teachers, seen.ids_NK.split(batch.lengths), strict=True):
        prompts = [sample.teacher_prompt_ids or [], *map(list, sample.other_prompts)]
        assert len(prompts) == len(teacher.logprobs_HTK) == 3
        for prompt, told_TK, overlap_T in zip(prompts, teacher.logprobs_HTK, teacher.overlap_HT, strict=True):
            with torch.no_grad():
                logits = sampler.model(torch.tensor([prompt + sample.completion_ids])).logits[0, len(prompt) - 1 : -1]
            whole = (logits / sample.temperature).log_softmax(-1)
            torch.testing.assert_close(told_TK, whole.gather(1, ids_TK), atol=1e-4, rtol=1e-4)
            likeliest = whole.topk(4).indices
            by_hand = [len(set(a) & set(b)) for a, b in zip(ids_TK.tolist(), likeliest.tolist(), strict=True)]
            assert overlap_T.tolist() == by_hand


def test_a_group_pushes_its_members_apart_and_their_advantages_come_to_nothing(
    run: RunDir, sampler: Sampler, model_path: Path
) -> None:
    turns = [replace(sampler.turn(f"x{i}", seed=i, tokens=6), group_id="g") for i in range(4)]
    publish_shard(run, "a", [(turn, reward, None) for turn, reward in zip(turns, (1.0, 0.0, 0.0, -1.0), strict=True)])
    training = begin(run, model_path, method="grpo")
    row = train_step(training, take(run, training)).row
    assert row is not None
    assert row["terms"]["grpo"]["advantage_mean"] == pytest.approx(0.0, abs=1e-6)
    assert row["terms"]["grpo"]["advantage_quantiles"][-1] == pytest.approx(2**0.5, rel=1e-4)
    assert (row["reward_mean"], row["reward_std"]) == (0.0, pytest.approx(0.5**0.5))


@pytest.mark.parametrize("off_policy", ["ppo_clip", "tis", "cispo", "gspo"])
def test_a_recipe_may_choose_how_off_policy_turns_count(run: RunDir, sampler: Sampler, model_path: Path, off_policy: str) -> None:
    publish_turns(run, sampler, 4)
    training = begin(run, model_path, off_policy=off_policy)
    before = weights(training)
    row = train_step(training, take(run, training)).row
    assert row is not None
    assert row["masked_fraction"] == 0.0
    assert any(not torch.equal(value, before[name]) for name, value in weights(training).items())


def test_a_turn_whose_logprobs_are_not_the_models_is_refused_and_the_others_are_trained(
    run: RunDir, sampler: Sampler, model_path: Path
) -> None:
    publish_turns(run, sampler, 4)
    foreign = sampler.turn("foreign", tokens=3)
    publish_shard(run, "0", [(replace(foreign, logprobs=[value - 2.0 for value in foreign.logprobs or []]), 1.0, None)])
    train(run, model_path)
    assert read_ledger(run) == {"foreign": "skipped", **{f"a{i:02d}": "trained" for i in range(4)}}
    (entry,) = [orjson.loads(path.read_bytes()) for path in (run.train / "ledger").glob("skipped-*.json")]
    assert entry["reason"] == "logprobs disagree with the model"
    assert read_rows(run)[-1]["mismatch_max"] < 1e-3


def test_turns_of_another_model_stop_training_with_both_names_and_are_not_used_up(
    run: RunDir, tmp_path: Path, model_path: Path
) -> None:
    other = Sampler(make_model(tmp_path / "other", hidden=64))
    turns = [other.turn(f"x{i}", seed=i) for i in range(4)]
    publish_shard(run, "a", [(turn, 1.0, None) for turn in turns])
    write_turns(run.trajectories / "a.parquet", turns, Origin("models/other"))
    with pytest.raises(ClawError, match=r"4 of 4 turns .*models/other") as raised:
        train(run, model_path)
    assert str(model_path) in raised.value.problem
    assert read_ledger(run) == {}


def test_turns_of_older_versions_may_differ_by_any_amount(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish_turns(run, sampler, 8)
    train(run, model_path, lr=0.05)
    rows = read_rows(run)
    assert [row["staleness_max"] for row in rows] == [0, 1]
    assert rows[1]["mismatch_mean"] is None
    assert rows[1]["ratio_quantiles"][-1] > 1.1


def test_steps_that_cannot_be_made_end_training_after_so_many_in_a_row(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    bad = [sampler.turn(f"bad{i}", tokens=2, logprobs=[-1e30, -1.0]) for i in range(3)]
    publish_shard(run, "a", [(turn, 1.0, None) for turn in bad])
    with pytest.raises(ClawError, match=r"2 steps in a row .* not finite \(turns: bad1\)"):
        train(run, model_path, batch_turns=1, max_skipped_steps=2)
    assert read_ledger(run) == {"bad0": "skipped", "bad1": "skipped"}


def test_ids_of_another_tokenizer_are_refused_and_counted(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    turns = publish_turns(run, sampler, 2)
    write_turns(run.trajectories / "a.parquet", turns, Origin("crafts", "0123456789abcdef"))
    train(run, model_path, batch_turns=1)
    assert orjson.loads((run.train / "feed.json").read_bytes())["refused"] == {"ids of another tokenizer": 2}


def test_an_rslora_adapter_scales_by_the_root_of_its_rank_and_loads_as_peft_loads_it(
    run: RunDir, sampler: Sampler, model_path: Path
) -> None:
    publish_turns(run, sampler, 4)
    training = begin(run, model_path, lora={"rank": 16, "alpha": 8.0, "rslora": True, "targets": "all-linear"})
    scalings = [getattr(module, "scaling", None) for module in training.policy.module.modules()]
    scales = {value for scaling in scalings if isinstance(scaling, dict) for value in scaling.values()}
    assert scales == {8.0 / 4.0}
    targets = {name.split(".")[-4] for name, _ in training.policy.trained()}
    assert targets == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert train_step(training, take(run, training)).row is not None


def test_more_ranks_than_turns_are_refused_and_any_other_number_is_not() -> None:
    from clawctl.trainers.local.backend import check_world

    with pytest.raises(ClawError, match="5 trainers share 4 turns"):
        check_world(5, 4)
    check_world(3, 4)


@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_an_average_that_has_not_moved_yet_teaches_likeliest_tokens_as_the_policy_itself_does(
    run: RunDir, sampler: Sampler, model_path: Path, lora: Any
) -> None:
    publish_hinted(run, sampler)
    results = []
    for teacher in ("self", "ema"):  # its weights are put on between the policy's forward and backward pass
        training = begin(run, model_path, method="opd_topk", teacher=teacher, lora=lora, clip_grad=1e9)
        row = train_step(training, take(run, training)).row
        assert row is not None
        results.append((row["loss"], row["grad_norm"]))
    assert results[1] == pytest.approx(results[0], rel=1e-6)
