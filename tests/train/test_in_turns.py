"""One trainer for the policies of several keys."""

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.inspect.better import rates
from clawctl.inspect.rows import TurnReader
from clawctl.inspect.why import numbers_of
from clawctl.privacy.forget import forget
from clawctl.privacy.selection import Selection
from clawctl.run.directory import RunDir, open_run, sole_worker
from clawctl.run.keys import KeyRing, add_key, policy_of, split
from clawctl.run.lineage import read_lineage
from clawctl.run.policies import begin_policy, ensure_base_policy, list_versions, live_version, move_live, read_policy
from clawctl.train import loop
from clawctl.train.by_hand import go_back_to
from clawctl.train.in_turns import train_in_turns
from clawctl.train.ledger import read_ledger
from clawctl.trainers.local.model import half_of
from clawctl.trainers.local.ranks import Ranks
from clawctl.trainers.local.trainer import LocalTrainer
from tests.train.tiny import Sampler, make_recipe, publish_turns

ALONE = Ranks(0, 1, torch.device("cpu"))


def recipe_of(model: Path, per: str = "key", rank: int = 2, **train: object) -> Recipe:
    recipe = make_recipe(model, lora={"rank": rank}, **train)
    return recipe.model_copy(update={"policies": recipe.policies.model_copy(update={"per": per})})


def make_run(folder: Path, sampler: Sampler, names: Sequence[str], turns: int = 8) -> RunDir:
    """Two batches of turns for each policy; each policy's turns are the same in every run."""
    run = open_run(folder)
    ensure_base_policy(run, str(sampler.path))
    for name in names:
        begin_policy(run, name)
        publish_turns(run, sampler, turns, name, user=name, policy_name=name)
    return run


def train(run: RunDir, recipe: Recipe) -> None:
    train_in_turns(run, recipe, LocalTrainer(recipe, ALONE), threading.Event(), once=True)


def weights_of(run: RunDir, policy: str, version: int) -> dict[str, torch.Tensor]:
    return load_file(run.of(policy).version_folder(version) / "adapter_model.safetensors")


def same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_each_policy_learns_what_it_would_learn_alone(tmp_path: Path, model_path: Path, sampler: Sampler) -> None:
    recipe, names = recipe_of(model_path), ["default", "anna", "bert"]
    together = make_run(tmp_path / "together", sampler, names)
    train(together, recipe)
    for name in names:
        policy_run = together.of(name)
        assert (list_versions(policy_run), live_version(policy_run)) == ([0, 1, 2], 2)
        assert {read_policy(policy_run, version).name for version in (0, 1, 2)} == {name}
        assert all(turn.startswith(name) for turn in read_ledger(policy_run, read_lineage(policy_run)))
        alone = make_run(tmp_path / name, sampler, [name])
        train(alone, recipe)
        assert same(weights_of(together, name, 2), weights_of(alone, name, 2))  # bit for bit, optimizer included
    assert not same(weights_of(together, "anna", 2), weights_of(together, "bert", 2))
    shared = make_run(tmp_path / "shared", sampler, ["default"])
    loop.run_training(shared, recipe_of(model_path, "shared"), LocalTrainer(recipe, ALONE), threading.Event(), once=True)
    assert same(weights_of(together, "default", 2), weights_of(shared, "default", 2))


def test_readers_show_the_steps_of_each_policy(tmp_path: Path, model_path: Path, sampler: Sampler) -> None:
    run = make_run(tmp_path / "run", sampler, ["default", "anna"])
    publish_turns(run, sampler, 1, "later", user="anna", policy_name="anna")
    train(run, recipe_of(model_path))
    reader = TurnReader(run)
    joined = reader.poll()
    rows = {row.turn["turn_id"]: row for row in joined.rows}
    for name in ("default", "anna"):
        ledger = read_ledger(run.of(name), read_lineage(run.of(name)))
        steps = {turn_id: row.step for turn_id, row in rows.items() if row.policy == name and row.step}
        assert steps.keys() == ledger.keys()
        assert sorted(steps.values()) == [1, 1, 1, 1, 2, 2, 2, 2]
    waiting = next(row for row in rows.values() if row.step is None)
    assert (waiting.policy, waiting.why_not) == ("anna", "waiting for the trainer")
    assert sum(rate.of for rate in rates(joined.rows).values()) == 8
    assert sum(rate.of for rate in rates(joined.rows, "anna").values()) == 9
    trained = next(row for row in rows.values() if row.policy == "anna" and row.step)
    record, step = numbers_of(run, trained, [])
    assert record is not None
    assert step is not None
    assert step["step"] == trained.step
    begin_policy(run, "bert")  # a reader that is there already finds it
    publish_turns(run, sampler, 4, "b", user="bert", policy_name="bert")
    train(run, recipe_of(model_path))
    assert {row.step for row in reader.poll().rows if row.policy == "bert"} == {1}


def test_policies_take_turns_and_a_restart_changes_nothing(tmp_path: Path, model_path: Path, sampler: Sampler) -> None:
    whole = make_run(tmp_path / "whole", sampler, ["anna", "bert"])
    train(whole, recipe_of(model_path))
    resumed = make_run(tmp_path / "resumed", sampler, ["anna", "bert"])
    train(resumed, recipe_of(model_path, max_steps=1))
    assert [list_versions(resumed.of(name)) for name in ("default", "anna", "bert")] == [[0], [0, 1], [0, 1]]
    times = [read_policy(whole.of(name), version).created_at for version in (1, 2) for name in ("anna", "bert")]
    assert times == sorted(times)
    train(resumed, recipe_of(model_path))
    for name in ("anna", "bert"):
        assert same(weights_of(resumed, name, 2), weights_of(whole, name, 2))


def test_a_policy_that_begins_later_continues_from_the_shared_weights(tmp_path: Path, model_path: Path, sampler: Sampler) -> None:
    run, recipe = make_run(tmp_path / "run", sampler, ["default"], turns=4), recipe_of(model_path)
    train(run, recipe)
    begin_policy(run, "anna")
    assert same(weights_of(run, "anna", 0), weights_of(run, "default", 1))
    publish_turns(run, sampler, 4, "b", user="anna", policy_name="anna")
    train(run, recipe)
    assert list_versions(run) == [0, 1]
    first = weights_of(run, "anna", 1)
    assert not same(first, weights_of(run, "anna", 0))
    step = max(float((first[name] - weights_of(run, "anna", 0)[name]).abs().max()) for name in first)
    assert step < 5e-3  # a step from there, not from an untrained adapter


def test_a_rollback_of_one_policy_leaves_the_others_where_they_are(tmp_path: Path, model_path: Path, sampler: Sampler) -> None:
    run, recipe = make_run(tmp_path / "run", sampler, ["anna", "bert"]), recipe_of(model_path)
    train(run, recipe)
    move_live(run.of("anna"), 1, by="rollback by anna")
    publish_turns(run, sampler, 4, "c", user="anna", policy_name="anna", policy_version=1, policy_version_end=1)
    publish_turns(run, sampler, 4, "d", user="bert", policy_name="bert", policy_version=2, policy_version_end=2)
    train(run, recipe)
    assert read_policy(run.of("anna"), 3).parent == 1
    assert read_policy(run.of("bert"), 3).parent == 2


def test_training_of_one_policy_goes_back_on_request(tmp_path: Path, model_path: Path, sampler: Sampler) -> None:
    run, recipe = make_run(tmp_path / "run", sampler, ["anna", "bert"]), recipe_of(model_path)
    train(run, recipe)
    with sole_worker(run, "train"), pytest.raises(ClawError, match="already the train worker"):
        go_back_to(run.of("anna"), 1)
    assert "policy 1 is now live (before: 2)" in go_back_to(run.of("anna"), 1)
    publish_turns(run, sampler, 4, "c", user="anna", policy_name="anna", policy_version=1, policy_version_end=1)
    publish_turns(run, sampler, 4, "d", user="bert", policy_name="bert", policy_version=2, policy_version_end=2)
    train(run, recipe)
    assert [read_policy(run.of(name), 3).parent for name in ("anna", "bert")] == [1, 2]


def test_a_policy_for_each_key_needs_adapters(model_path: Path) -> None:
    from clawctl.config import load_recipe

    with pytest.raises(ClawError, match=r"policies\.per is key"):
        load_recipe(None, {"policies.per": "key"})
    assert load_recipe(None, {"policies.per": "key", "train.lora.rank": 4}).policies.per == "key"


def test_what_is_forgotten_leaves_the_policies_that_learned_from_it(tmp_path: Path, model_path: Path, sampler: Sampler) -> None:
    """Shared step 1 learned from default00. Anna begins with it, and bert began before."""
    run, recipe = make_run(tmp_path / "run", sampler, ["default", "bert"], turns=4), recipe_of(model_path)
    begin_policy(run, "bert")
    train(run, recipe)
    before = weights_of(run, "bert", 1)
    begin_policy(run, "anna")
    publish_turns(run, sampler, 4, "a", user="anna", policy_name="anna")
    train(run, recipe)
    done = forget(run, Selection(session="s-default00"), dry_run=False, retrain=True)
    assert (done.policies, done.others) == ([1], {"anna": [0, 1]})
    assert (list_versions(run), list_versions(run.of("anna")), list_versions(run.of("bert"))) == ([0], [0], [0, 1])
    assert read_policy(run.of("anna"), 0).kind == "base"
    assert same(weights_of(run, "bert", 1), before)
    done = forget(run, Selection(session="s-bert00"), dry_run=False, retrain=True)
    assert (done.policies, done.others, live_version(run.of("bert"))) == ([], {"bert": [1]}, 0)


def test_keys_that_are_split_begin_with_the_shared_weights_and_keep_their_names(
    tmp_path: Path, model_path: Path, sampler: Sampler
) -> None:
    run, recipe = make_run(tmp_path / "run", sampler, ["default"], turns=4), recipe_of(model_path)
    key = add_key(run, "anna")
    add_key(run, "carl")
    train(run, recipe)
    assert "begins with shared version 1" in split(run, ["anna"])
    assert (policy_of(run, recipe, "anna"), policy_of(run, recipe, "carl")) == ("anna", "default")
    assert policy_of(run, recipe_of(model_path, "shared"), "anna") == "default"
    assert same(weights_of(run, "anna", 0), weights_of(run, "default", 1))
    assert KeyRing(run, "own").owner(key) == "anna"
    with pytest.raises(ClawError, match="no key named 'dora'"):
        split(run, ["dora"])


# ---- a shared and a personal half ----------------------------------------------------------------------------------------


def stacked(model: Path, **train: object) -> Recipe:
    """Rank 4: two for the shared policy, two for a person. Weight decay and the pull to the base would move a frozen half too."""
    return recipe_of(model, "shared+key", rank=4, weight_decay=0.1, base_pull=0.01, **train)


def halves(weights: dict[str, torch.Tensor], half: int) -> dict[str, torch.Tensor]:
    return {name: half_of(name, weight, half) for name, weight in weights.items()}


def merged_logits(model: Path, ids: list[int], scale: float, *adapters: dict[str, torch.Tensor]) -> torch.Tensor:
    """The logits of the base model whose weights have the products B A of each adapter added."""
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    layers = dict(base.named_modules())
    with torch.no_grad():
        for adapter in adapters:
            for name in (name for name in adapter if "lora_A" in name):
                layer = layers[name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")]
                layer.weight += scale * adapter[name.replace("lora_A", "lora_B")] @ adapter[name]
        logits: torch.Tensor = base(input_ids=torch.tensor([ids])).logits
    return logits


def peft_logits(model: Path, folder: Path, ids: list[int]) -> torch.Tensor:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        logits: torch.Tensor = PeftModel.from_pretrained(base, str(folder)).eval()(input_ids=torch.tensor([ids])).logits
    return logits


def test_a_person_trains_one_half_on_top_of_the_frozen_shared_one_and_both_are_published_as_one_adapter(
    tmp_path: Path, model_path: Path, sampler: Sampler
) -> None:
    run, recipe = make_run(tmp_path / "run", sampler, ["default"], turns=4), stacked(model_path)
    train(run, recipe)
    shared = weights_of(run, "default", 1)
    assert all(not weight.any() for name, weight in halves(shared, 1).items() if "lora_B" in name)
    begin_policy(run, "anna")
    assert same(weights_of(run, "anna", 0), shared)
    publish_turns(run, sampler, 8, "a", user="anna", policy_name="anna")
    train(run, recipe)
    assert list_versions(run.of("anna")) == [0, 1, 2]
    for version in (1, 2):
        weights = weights_of(run, "anna", version)
        assert same(halves(weights, 0), halves(shared, 0))  # bit for bit
        assert not same(halves(weights, 1), halves(shared, 1))
        assert read_policy(run.of("anna"), version).shared == 1
    ids, scale = list(range(3, 40)), recipe.train.lora.alpha / recipe.train.lora.rank  # type: ignore[union-attr]
    published = peft_logits(model_path, run.of("anna").version_folder(2), ids)
    assert torch.allclose(
        published, merged_logits(model_path, ids, scale, halves(shared, 0), halves(weights, 1)), atol=1e-5, rtol=0
    )
    assert not torch.allclose(published, merged_logits(model_path, ids, scale, halves(shared, 0)), atol=1e-5, rtol=0)


def test_a_person_stands_on_the_shared_version_of_the_last_step_and_moves_to_the_live_one_with_the_next(
    tmp_path: Path, model_path: Path, sampler: Sampler
) -> None:
    run, recipe = make_run(tmp_path / "run", sampler, ["default", "anna"], turns=4), stacked(model_path)
    train(run, recipe)
    first = weights_of(run, "anna", 1)
    publish_turns(run, sampler, 4, "c", policy_version=1, policy_version_end=1)
    train(run, recipe)
    assert (live_version(run), list_versions(run.of("anna"))) == (2, [0, 1])  # nothing of anna's moves with it
    publish_turns(run, sampler, 4, "a", user="anna", policy_name="anna", policy_version=1, policy_version_end=1)
    train(run, recipe)
    second = weights_of(run, "anna", 2)
    assert [read_policy(run.of("anna"), version).shared for version in (0, 1, 2)] == [0, 1, 2]
    assert same(halves(first, 0), halves(weights_of(run, "default", 1), 0))
    assert same(halves(second, 0), halves(weights_of(run, "default", 2), 0))
    step = max(float((second[name] - first[name]).abs().max()) for name in halves(first, 1))
    assert 0 < step < 0.1  # her own half continues
    done = forget(run, Selection(session="s-c00"), dry_run=False, retrain=True)  # it trained shared version 2
    assert (done.policies, done.others) == ([2], {"anna": [2]})


def test_the_shared_policy_learns_from_the_people_who_teach_it_and_from_nobody_elses_policy(
    tmp_path: Path, model_path: Path, sampler: Sampler
) -> None:
    run, recipe = make_run(tmp_path / "run", sampler, ["anna", "bert"], turns=4), stacked(model_path)
    add_key(run, "anna", "anna", teaches_shared=True)
    add_key(run, "bert", "bert")
    publish_turns(run, sampler, 4, "own", user="anna", policy_name="anna", notes={"text": "a wish", "place": "line"})
    train(run, recipe)
    assert set(read_ledger(run, read_lineage(run))) == {f"anna{number:02}" for number in range(4)}
    assert read_policy(run, 1).shared is None
    assert set(read_ledger(run.of("bert"), read_lineage(run.of("bert")))) == {f"bert{number:02}" for number in range(4)}
    alone = make_run(tmp_path / "alone", sampler, ["anna", "bert"], turns=4)
    add_key(alone, "anna", "anna")
    train(alone, recipe)
    assert list_versions(alone) == [0]


def test_a_rank_without_a_half_is_refused() -> None:
    from clawctl.config import load_recipe

    with pytest.raises(ClawError, match="has no half"):
        load_recipe(None, {"policies.per": "shared+user", "train.lora.rank": 5})
