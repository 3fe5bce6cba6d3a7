"""One plan of memory for a box, and settings that fit it."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from clawctl.config import Recipe, load_recipe
from clawctl.config.editing import with_value
from clawctl.errors import ClawError
from clawctl.launch.fitting import fit, fitted
from clawctl.launch.plan import gpus_of, plan_memory
from clawctl.memory import GIB, ONCE, Box, box_of
from tests import forked
from tests.named_models import TEXT_MODEL

ROOT = Path(__file__).parents[2]
WEIGHTS_4B = 4_022_468_096


def recipe_of(**sections: Any) -> Recipe:
    model = {"path": "Qwen/Qwen3-4B", "dtype": "bfloat16"}
    return Recipe.model_validate({"model": model, "up": {"stages": ["serve", "train"]}, **sections})


ADAPTER = {"lora": {"rank": 16}, "dtype": "bfloat16", "gradient_checkpointing": True, "tokens_per_microbatch": 2048}


def test_one_card_holds_what_serve_and_train_need_together() -> None:
    recipe = recipe_of(train=ADAPTER, serve={"kv_cache_tokens": 10_000})
    plan = plan_memory(recipe, box_of("80gb", gpus_of(recipe)))
    serve, train = (share for share in plan.shares if share.gpu == 0)
    assert plan.need(0) == serve.total + train.total
    assert serve.parts["weights"] == 2 * WEIGHTS_4B  # once, however many adapters there are
    assert serve.parts["KV cache of 10,000 tokens"] == 10_000 * 36 * 2 * 8 * 128 * 2  # layers, keys and values, heads, width, bytes
    apart = recipe_of(train={**ADAPTER, "gpus": [1]}, serve={"kv_cache_tokens": 10_000})
    assert plan_memory(apart, box_of("80gb", gpus_of(apart))).need(1) == train.total


def test_versions_with_all_weights_are_counted_each() -> None:
    recipe = recipe_of(serve={"kv_cache_tokens": 1000, "pinned_versions": 1}, judge={"endpoint": "http://judge:1/v1"})
    serve = next(share for share in plan_memory(recipe, box_of("80gb", {0})).shares if share.gpu == 0)
    assert serve.parts["weights of 1 more versions"] == 2 * WEIGHTS_4B


def test_what_others_use_of_a_card_is_not_free() -> None:
    recipe = recipe_of(train=ADAPTER, serve={"kv_cache_tokens": 10_000})
    need = plan_memory(recipe, box_of("80gb", {0})).need(0)
    full = Box({0: need - 1}, {0: 80 * GIB}, None)
    assert plan_memory(recipe, full).problems == [f"GPU 0 needs {need / GIB:.1f} GiB, where {(need - 1) / GIB:.1f} are free"]
    assert plan_memory(recipe, Box({0: need}, {0: 80 * GIB}, None)).problems == []
    elsewhere = plan_memory(recipe, Box({1: 2 * need}, {1: 80 * GIB}, None))
    assert "GPU 0" in elsewhere.problems[0]
    assert "does not have" in elsewhere.problems[0]


def test_masters_in_host_memory_are_counted_there() -> None:
    train = {"optimizer_offload": True, "gpus": [1], "dtype": "bfloat16", "gradient_checkpointing": True}
    recipe = recipe_of(train=train, serve={"engine": "vllm", "engine_args": ["--max-model-len", "8192"]})
    sizes = box_of("80gb", gpus_of(recipe))
    plan = plan_memory(recipe, Box(sizes.free, sizes.total, 64 * GIB))
    host = next(share for share in plan.shares if (share.stage, share.gpu) == ("train", None))
    assert host.parts["weights, gradients and optimizer"] == 16 * WEIGHTS_4B
    assert any(problem.startswith("the host needs") for problem in plan.problems)


def test_vllm_takes_its_share_of_the_card_and_its_cache_must_hold_a_request() -> None:
    def with_share(share: str) -> Recipe:
        return recipe_of(
            train={**ADAPTER, "gpus": [1]},
            serve={"engine": "vllm", "engine_args": [f"--gpu-memory-utilization={share}", "--max-model-len", "32768"]},
        )

    enough = plan_memory(with_share("0.9"), box_of("24gb", {0, 1}))
    assert enough.need(0) == pytest.approx(0.9 * 24e9, abs=1)
    assert enough.problems == []
    [problem] = plan_memory(with_share("0.5"), box_of("24gb", {0, 1})).problems
    assert "a request may have 32,768" in problem


def vllm(*arguments: str, **serve: Any) -> Recipe:
    return recipe_of(train={**ADAPTER, "gpus": [7]}, serve={"engine": "vllm", "engine_args": list(arguments), **serve})


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["-tp", "0"], "tensor-parallel-size/-tp: '0' is no number of GPUs"),
        (["-tp", "-2"], "'-2' is no number of GPUs"),
        (["-pp", "2.5"], "'2.5' is no number of GPUs"),
        (["-tp"], "expected one argument"),
        (["--gpu-memory-utilization", "banana"], "'banana' is no share of a card"),
        (["--gpu-memory-utilization", "1.5"], "'1.5' is no share of a card"),
        (["--gpu-memory-utilization", "0"], "'0' is no share of a card"),
        (["--gpu-memory-utilization=nan"], "'nan' is no share of a card"),
        (["--gpu-memory-utilization"], "expected one argument"),
        (["--gpu-memory-utilization 0.5"], "is one word, and should be two"),
        (["--max-model-len", "banana"], "'banana' is no number of tokens"),
        (["--max-model-len", "0"], "'0' is no number of tokens"),
        (["--max_model_len=8192 --enforce-eager"], "is no number of tokens"),
    ],
)
def test_an_argument_that_vllm_cannot_use_is_refused_with_a_sentence(arguments: list[str], problem: str) -> None:
    with pytest.raises(ClawError, match=rf"serve\.engine_args: .*{problem}") as caught:
        plan_memory(vllm(*arguments), box_of("24gb", {0, 7}))
    assert caught.value.exit_code == 2


def test_arguments_of_vllm_are_read_as_vllm_reads_them() -> None:
    def planned(*arguments: str, **serve: Any) -> str:
        plan = plan_memory(vllm(*arguments, **serve), box_of("24gb", {0, 1, 2, 3, 7}))
        return str([(share.gpu, share.parts) for share in plan.shares if share.stage == "serve"]) + str(plan.problems)

    assert "a request may have 131,072" in planned("--max-model-len", "128K", "--gpu-memory-utilization", "0.6")
    assert "a request may have 128,000" in planned("--max_model_len=128k", "--gpu-memory-utilization", "0.6")
    assert "a request may have" not in planned("--max-model-len", "auto", "--gpu-memory-utilization", "0.6")
    assert planned("-tp", "2") == planned("--tensor_parallel_size=2", gpus=[0, 1])  # unset: the first two
    assert planned("-tp", "2") != planned("-dp", "2")  # copies do not share the weights
    with pytest.raises(ClawError, match=r"asks for 4 GPUs, and serve\.gpus names 2"):
        planned("-tp", "2", "-pp", "2", gpus=[0, 1])


@pytest.mark.parametrize("gpus", [[], [-1], [0, 0]])
@pytest.mark.parametrize("stage", ["serve", "train"])
def test_a_list_of_gpus_has_different_numbers(stage: str, gpus: list[int]) -> None:
    with pytest.raises(ValidationError, match="expected different numbers of GPUs"):
        recipe_of(**{stage: {"gpus": gpus}})


@pytest.mark.parametrize("card", ["24gb", "40gb"])
def test_fitted_settings_fit_and_each_has_its_reason(tmp_path: Path, card: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text((ROOT / "recipes" / "qwen3-4b-lora-80gb.yaml").read_text())
    box = box_of(card, {0})
    assert plan_memory(load_recipe(path), box).problems
    changes, plan = fit(lambda settings: load_recipe(path, settings), box)
    assert plan.problems == []
    path.write_text(fitted(path.read_text(), changes))
    assert plan_memory(load_recipe(path), box).problems == []
    for change in changes:
        assert f"# {change.reason}" in path.read_text()
        others = {other.key: other.value for other in changes if other is not change}
        without = load_recipe(ROOT / "recipes" / "qwen3-4b-lora-80gb.yaml", others)
        assert plan_memory(without, box).problems  # no change is superfluous


def test_a_card_that_is_too_small_is_refused_with_numbers() -> None:
    path = ROOT / "recipes" / "qwen3-8b-lora-80gb.yaml"
    with pytest.raises(ClawError, match=r"no settings are known with which it fits: .*GiB") as caught:
        fit(lambda settings: load_recipe(path, settings), box_of("8gb", {0}))
    assert caught.value.exit_code == 2


TEXT = """\
# a recipe
model: {path: crafts}
train:
  lr: 1.0e-5              # an old reason
  lora: {rank: 16, alpha: 32}   # small
  method: combine         # both

up:
  stages: [serve, train]
play:
"""


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("train.lr", 2.0), ("train.lora.rank", 8), ("train.lora.quantize", "nf4"), ("train.dtype", "bfloat16"),
        ("up.stages", ["serve"]), ("serve.engine_args", ["--max-model-len", "8192"]),
        ("train.lora", {"rank": 4}), ("model.name", "x"), ("name", "mine"), ("play.env", "swe"),
    ],
)  # fmt: skip
def test_a_changed_recipe_has_the_value_the_comment_and_all_else(key: str, value: Any) -> None:
    changed = with_value(TEXT, key, value, "why")
    wanted = yaml.safe_load(TEXT)
    at = wanted
    for part in key.split(".")[:-1]:
        at[part] = at.get(part) or {}
        at = at[part]
    at[key.rpartition(".")[2]] = value
    assert yaml.safe_load(changed) == wanted
    assert [line for line in changed.splitlines() if line.endswith("# why")]
    kept = {"# a recipe", "# both", "# an old reason", "# small"} - ({"# an old reason"} if key == "train.lr" else set())
    assert all(comment in changed for comment in kept - ({"# small"} if "lora" in key else set()))


def test_the_command_prints_the_plan_and_refuses_with_numbers(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"model": {"path": str(TEXT_MODEL)}, "up": {"stages": ["serve", "train"]}}))
    enough, little = (forked.run("up", path, "--estimate", "--card", card) for card in ("24gb", "1gb"))
    assert (enough.returncode, little.returncode) == (0, 2)
    assert "GPU 0" in enough.stdout
    assert "does NOT fit" in little.stdout
    assert "are free" in little.stderr


def test_weights_in_the_files_of_a_model_count_once_on_a_cpu() -> None:
    def host(one_copy: str) -> dict[str, dict[str, int]]:
        model = {"path": "Qwen/Qwen3-4B", "one_copy": one_copy}
        recipe = Recipe.model_validate({"model": model, "up": {"stages": ["serve", "train"]}, "train": {"lora": {"rank": 16}}})
        return {share.stage: share.parts for share in plan_memory(recipe, Box({}, {}, 256 * GIB)).shares}

    never, auto, always = host("never"), host("auto"), host("always")
    widest = 4 * 151_936 * 2560  # the head in float32, while it is used
    adapter = never["train"]["weights"] - 4 * WEIGHTS_4B
    assert auto["train"] == {**never["train"], "weights": adapter + widest, ONCE: 2 * WEIGHTS_4B}
    assert always["train"] == {**never["train"], "weights": adapter + widest}
    assert always["serve"][ONCE] == 2 * WEIGHTS_4B
    assert auto["serve"] == never["serve"]


def test_one_card_holds_the_base_model_once_if_the_engine_lends_it() -> None:
    def need(one_copy: str, **train: Any) -> int:
        model = {"path": "Qwen/Qwen3-4B", "dtype": "bfloat16", "one_copy": one_copy}
        return plan_memory(recipe_of(model=model, train={**ADAPTER, **train}), box_of("80gb", {0, 1})).need(0)

    assert need("always") == need("auto") - 2 * WEIGHTS_4B
    assert need("always", gpus=[1]) == need("auto", gpus=[1])
