"""Each shipped recipe fits the cards that it states, and trains with the settings that were measured."""

from pathlib import Path

import pytest

from clawctl.config import TrainConfig, load_recipe
from clawctl.launch.plan import gpus_of, plan_memory
from clawctl.memory import CUDA_CONTEXT, GB, GIB, Box, box_of

ROOT = Path(__file__).parent.parent.parent
SIZED = [*sorted((ROOT / "recipes").glob("qwen*.yaml")), ROOT / "recipes" / "default.yaml"]
HOSTS = {"qwen3-4b-full-2x80gb": 128 * GB}


def card_of(path: Path) -> str:
    return "24gb" if path.stem == "default" else path.stem.rpartition("-")[2].rpartition("x")[2]


@pytest.mark.parametrize("path", SIZED, ids=lambda path: path.stem)
def test_a_recipe_fits_the_cards_that_it_is_for(path: Path) -> None:
    recipe = load_recipe(path)
    assert recipe.name == path.stem
    card = box_of(card_of(path), gpus_of(recipe))
    plan = plan_memory(recipe, Box(card.free, card.total, HOSTS.get(path.stem)))
    print("\n".join(plan.lines()))
    assert plan.problems == []
    count = path.stem.rpartition("-")[2].rpartition("x")[0]
    assert len(gpus_of(recipe)) == int(count or 1)


def test_the_table_of_recipes_names_them_all_with_their_estimates() -> None:
    rows = [line for line in (ROOT / "recipes" / "README.md").read_text().splitlines() if line.startswith("| `")]
    named = {row.split("`")[1]: row for row in rows}
    assert named.keys() == {path.name for path in (ROOT / "recipes").glob("*.yaml")}
    for path in SIZED:
        recipe = load_recipe(path)
        plan = plan_memory(recipe, box_of(card_of(path), gpus_of(recipe)))
        training = next(share.total for share in plan.shares if share.stage == "train" and share.gpu is not None) - CUDA_CONTEXT
        assert f"{training / GIB:.0f} GiB" in named[path.name], named[path.name]
        assert recipe.train.method.kind in named[path.name]


SECOND_MODEL = "with all weights trained, version 0 would be a second model in memory, and no run has measured it"
# Where a recipe departs from recipes/smollm2.yaml, whose settings were measured, and why.
REASONS = {
    "method": "a judge reads reactions here; smollm2 cannot judge, and learns from notes alone",
    "guidance": "1.3 is for a model that follows a note in half of its answers",
    "max_staleness": "3 is for practice, whose answers are new",
    "batch_wait_s": "people answer more slowly than a practising model",
    "tokens_per_microbatch": "memory; the step is the same",
    "dtype": "GPUs have a fast bfloat16",
    "gradient_checkpointing": "memory; the step is the same",
    "gpus": "the machine",
    "when": "another device serves",
    "device_memory_gb": "the machine",
    "optimizer_every": "the disk; an undisturbed trainer makes the same steps",
    "max_mismatch": "logprobs over a base in 4 bits differ more from the server's",
    "lora": "memory: 4 bits; a larger card takes a higher rank",
}
OF_HINTS = {"topk", "topk_of", "divergence", "teacher", "hint_place"}
OF_ALL_WEIGHTS = {*OF_HINTS, "lora", "batch_turns", "shard", "optimizer_offload"}


LEARN_FROM_HINTS = [path for path in SIZED if load_recipe(path).train.uses_hints]  # docs/results.md measured no rewards


@pytest.mark.parametrize("path", LEARN_FROM_HINTS, ids=lambda path: path.stem)
def test_a_recipe_trains_as_was_measured_or_names_the_reason(path: Path) -> None:
    recipe, defaults = load_recipe(path).train, {name: field.default for name, field in TrainConfig.recipe_keys().items()}
    measured = defaults | load_recipe(ROOT / "recipes" / "smollm2.yaml").train.settings()
    differing = {name for name, value in recipe.settings().items() if value != measured[name]}
    reasons = REASONS | (dict.fromkeys(OF_ALL_WEIGHTS, SECOND_MODEL) if recipe.lora is None else {})
    assert sorted(differing - reasons.keys()) == []


@pytest.mark.parametrize(
    "path", [path for path in SIZED if load_recipe(path).train.method.kind != "grpo"], ids=lambda path: path.stem
)
def test_a_recipe_for_conversations_moves_the_policy_by_a_distance_that_suits_every_size(path: Path) -> None:
    measured, recipe = load_recipe(ROOT / "recipes" / "smollm2.yaml").train, load_recipe(path).train
    assert (recipe.lr, recipe.movement, recipe.warmup_steps) == ("auto", measured.movement, measured.warmup_steps)
