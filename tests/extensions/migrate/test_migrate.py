"""Recipes and options of other systems work, or are refused with clawctl's name for them."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from clawctl.cli.commands import understand
from clawctl.config import Recipe, known_keys, load_recipe
from clawctl.config.recipe import suggest
from clawctl.errors import ClawError
from clawctl.extensions.migrate.convert import NotConverted, convert
from clawctl.extensions.migrate.explainer import OPTIONS
from clawctl.extensions.migrate.keys import KEYS, SECTIONS
from tests.test_elsewhere import clawctl

DESCRIBED = """
model: {name: Qwen/Qwen3-8B, dtype: bfloat16}
training:
  method: combine
  learning_rate: 1e-6
  warmup_steps: 100
  batch_size: 32
  gradient_accumulation_steps: 4
  max_steps: 10000
  save_interval: 100
  clip_grad: 1.0
  adam_beta1: 0.9
  clip_ratio: 0.2
  value_clip: 0.2
  w_binary: 0.5
  w_opd: 0.5
  lora: {enabled: true, rank: 8, alpha: 16, target_modules: [q_proj, v_proj]}
rollout:
  backend: sglang
  max_concurrent_sessions: 100
  session_timeout: 1800
  num_rollouts_per_prompt: 4
  num_judges: 5
evaluation: {tasks: [conversation, coding], interval: 500}
"""


# ---- options -------------------------------------------------------------------------------------------------------------


def test_options_of_other_systems_become_ours_or_are_refused() -> None:
    options = {"--run", "--engine", "--gpus", "--lr", "--lora-rank", "--batch-turns", "--once", "--help", "-h"}
    value = options - {"--once", "--help", "-h"}

    def said(command: str, *words: str) -> list[str]:
        return understand(command, words, options, value)

    assert said("serve", "--backend", "vllm", "--run", "--lora") == ["--engine", "vllm", "--run", "--lora"]
    assert said("train", "--learning-rate=1e-5", "--lora", "--once") == ["--lr", "1e-5", "--lora-rank", "16", "--once"]
    assert said("train", "--lora", "--lora-rank", "4") == ["--lora-rank", "4"]
    assert said("train", "--use-lora") == ["--lora-rank", "16"]
    assert said("train", "--use-lora", "--lora-rank", "64") == ["--lora-rank", "64"]
    assert said("train", "--gpu-ids", "2,3", "--resume") == ["--gpus", "2,3"]
    assert said("collect", "--session-aware", "--", "--env") == ["--", "--env"]
    for command, line in (
        ("serve", "--backend sglang"),
        ("train", "--resume /a"),
        ("collect", "--env gui"),
        ("serve", "--rl-buffer-dir b"),
    ):
        with pytest.raises(ClawError, match="has no option") as caught:
            said(command, *line.split())
        assert caught.value.exit_code == 2


@pytest.mark.parametrize(("command", "option"), [(command, option) for command, some in OPTIONS.items() for option in some])
def test_each_option_of_the_table_is_known_to_its_command(command: str, option: str) -> None:
    entry = OPTIONS[command][option]
    now = entry.is_now("7")
    shown = clawctl_help(command)
    assert not re.search(rf"\s{option}[ ,\n]", shown), "an option of ours needs no entry"
    if now:
        assert now[0] in shown, f"{option} becomes {now[0]}, which {command} does not have"
    for named in re.findall(r"\b((?:train|serve|judge|collect|model|eval)\.[a-z_.]+[a-z])\b", entry.instead):
        assert named in known_keys(Recipe)


_HELP: dict[str, str] = {}


def clawctl_help(command: str) -> str:
    if command not in _HELP:
        _HELP[command] = clawctl(*command.split(), "--help").stdout
    return _HELP[command]


@pytest.mark.parametrize(
    ("arguments", "cure"),
    [
        (["train", "--metod", "opd"], "did you mean --method?"),
        (["train", "--kl-coef", "0.1"], "train.ratio_penalty"),
        (["train", "--weight-decay", "0.1"], "set train.weight_decay in the recipe"),
        (["serve", "--gpu-memory-utilization", "0.8"], "serve.engine_args"),
        (["judge", "--xyzzy"], "--help lists"),
        (["collect", "--custom-generate-function-path", "a.py:b"], "clawctl play ROLLOUT --generate file.py:name"),
        (["collect", "--import", "a.jsonl"], "clawctl import FILE"),
        (["judge", "--attacks"], "clawctl calibrate"),
        (["train", "--dry-run"], "clawctl collect has it"),
        (["collect", "--port", "1"], "set serve.port in the recipe"),
        (["train", "--custom-rm", "a.py:b"], "set judge.custom_rm in the recipe"),
        (["judge", "--model-path", "m"], "set model.path in the recipe"),
    ],
)
def test_an_unknown_option_is_refused_with_a_suggestion(arguments: list[str], cure: str) -> None:
    done = clawctl(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert cure in done.stderr


# ---- recipes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("learning_rate", "train.lr"), ("train.learning_rate", "train.lr"), ("train.lerning_rate", "train.lr"),
        ("lr_warmup_steps", "train.warmup_steps"), ("train.lora_r", "train.lora.rank"), ("train.lora.r", "train.lora.rank"),
        ("lora_alpha", "train.lora.alpha"), ("num_train_epochs", "train.max_steps"), ("kl_coef", "train.kl_budget"),
        ("per_device_train_batch_size", "train.batch_turns"), ("max_grad_norm", "train.clip_grad"),
        ("serve.tensor_parallel_size", "serve.engine_args"), ("serve.gpu_memory_utilization", "serve.engine_args"),
        ("num_generations", "train.group_size"), ("train.methd", "train.method"), ("judge.vote", "judge.votes"),
        ("serve.prt", "serve.port"), ("eval.problem", "eval.problems"), ("model.base_model", "model.path"),
        ("train.thread", "train.threads"),
        ("serve.thread", "serve.threads"), ("eval.temprature", "eval.temperature"), ("judge.temprature", "judge.temperature"),
    ],
)  # fmt: skip
def test_a_wrong_key_is_answered_with_the_one_that_was_meant(wrong: str, right: str) -> None:
    assert suggest(wrong, known_keys(Recipe)) == right


def test_every_key_of_the_table_names_a_clawctl_key_or_the_reason_for_none() -> None:
    for name, here in KEYS.items():
        assert (here.key is None) != (here.dropped is None), name
        assert here.suggestion is None or here.suggestion in known_keys(Recipe), name


def test_a_recipe_of_the_described_system_is_converted_whole_and_the_result_loads(tmp_path: Path) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(DESCRIBED)
    recipe, text, lines = convert(old)
    new.write_text(text)
    assert load_recipe(new) == recipe
    assert (recipe.model.path, recipe.train.lr, recipe.train.warmup_steps) == ("Qwen/Qwen3-8B", 1e-6, 100)
    assert (recipe.train.batch_turns, recipe.train["weight_binary"], recipe.collect.session_timeout_s) == (128, 0.5, 1800)
    assert recipe.train.lora is not None
    assert (recipe.train.lora.rank, recipe.train.lora.targets, recipe.judge.votes) == (8, ["q_proj", "v_proj"], 5)
    assert (recipe.train.off_policy, recipe.train.clip_low) == ("ppo_clip", 0.2)
    fates = {line.old: line.fate for line in lines}
    assert (fates["training.learning_rate"], fates["training.clip_grad"]) == ("converted", "same default")
    assert (fates["rollout.backend"], fates["training.value_clip"]) == ("dropped", "dropped")
    assert set(fates) == {".".join(parts) for parts in leaves(yaml.safe_load(DESCRIBED))}, "every key has its line"
    with pytest.raises(ClawError, match="is already a recipe of clawctl"):
        convert(new)


def leaves(data: dict, before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    paths: list[tuple[str, ...]] = []
    for key, value in data.items():
        paths += leaves(value, (*before, key)) if isinstance(value, dict) else [(*before, key)]
    return paths


@pytest.mark.parametrize(
    "text",
    [
        "training: {learning_rate: 1e-6, xyzzy: 3}",
        "training: {learning_rate: fast}",
        "training: {method: dreamer}",
        "training: {learning_rate: 1e-6, lr: 1e-5}",
        "training: {batch_size: many}",
        "training: {batch_size: .inf}",
        "rollout: {temperature: -1}",
    ],
)
def test_a_recipe_with_unknown_keys_is_refused_as_a_whole_and_they_are_named(tmp_path: Path, text: str) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(text)
    with pytest.raises(NotConverted) as caught:
        convert(old)
    assert [line for line in caught.value.lines if line.fate == "unknown"]
    done = clawctl("recipe", "convert", str(old), "--out", str(new))
    assert (done.returncode, done.stdout) == (2, "")
    assert "unknown" in done.stderr
    assert not new.exists()


def test_a_key_or_section_without_a_value_sets_nothing(tmp_path: Path) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text("rollout:\ntraining: {learning_rate: 1e-6, foo: null}\n")
    done = clawctl("recipe", "convert", str(old), "--out", str(new))
    assert (done.returncode, done.stderr.count("dropped")) == (0, 2)
    assert load_recipe(new).train.lr == 1e-6


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("actor_rollout_ref: {model: {path: m}, actor: {optim: {lr: 2e-6}, ppo_mini_batch_size: 8}, rollout: {name: vllm, n: 8}}\n"
         "data: {train_batch_size: 64}\ntrainer: {total_epochs: 1, logger: [console, wandb]}\nalgorithm: {adv_estimator: grpo}",
         {"model.path": "m", "train.lr": 2e-6, "train.group_size": 8, "train.batch_turns": 64, "serve.engine": "vllm",
          "train.method": "grpo", "train.trackers": ["wandb"]}),
        ("model_name_or_path: m\nlearning_rate: 1e-5\nper_device_train_batch_size: 2\ngradient_accumulation_steps: 8\n"
         "lora_r: 8\nlora_alpha: 16\nbf16: true\nreport_to: tensorboard\nnum_train_epochs: 3",
         {"model.path": "m", "train.batch_turns": 16, "train.lora.rank": 8, "train.dtype": "bfloat16",
          "train.trackers": ["tensorboard"]}),
        ("training: {lora: {enabled: false, rank: 8}, adam_beta2: 0.98}", {"train.lora": None, "train.betas": (0.9, 0.98)}),
        ("training: {lora: {enabled: true}}", {"train.lora.rank": 16}),
        ("rollout: {num_rollouts_per_prompt: 1}\njudge: {votes: 5}", {"train.group_size": 4, "judge.votes": 5}),
        ("model: {name: short, path: long}\ntraining: {clip_ratio: 0.2, clip_ratio_high: 0.28}",
         {"model.path": "long", "model.name": "short", "train.clip_low": 0.2, "train.clip_high": 0.28}),
    ],
)  # fmt: skip
def test_recipes_of_verl_and_trl_are_converted_as_well(tmp_path: Path, text: str, expected: dict) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(text)
    recipe, converted, _ = convert(old)
    new.write_text(converted)
    assert load_recipe(new) == recipe
    for key, value in expected.items():
        current: Any = recipe
        for part in key.split("."):
            current = current and current[part]
        assert current == value, key


@pytest.mark.parametrize("section", sorted(SECTIONS))
def test_a_recipe_in_another_shape_is_refused_with_the_command_that_converts_it(tmp_path: Path, section: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(f"{section}: {{a: 1}}\n")
    with pytest.raises(ClawError, match="written for another system") as caught:
        load_recipe(path)
    assert f"clawctl recipe convert {path}" in caught.value.fix


@pytest.mark.parametrize("command", [["up"], ["serve", "--recipe"], ["train", "--recipe"], ["judge", "--recipe"]])
def test_every_command_refuses_it(tmp_path: Path, command: list[str]) -> None:
    path = tmp_path / "old.yaml"
    path.write_text(DESCRIBED)
    done = clawctl(*command, str(path), "--run", str(tmp_path / "run"))
    assert (done.returncode, "clawctl recipe convert" in done.stderr) == (2, True)
    assert not (tmp_path / "run").exists()


def test_names_of_the_described_system_are_understood_or_named() -> None:
    def said(*words: str) -> list[str]:
        return understand("collect", words, {"--env", "--parallel", "--option"}, {"--env", "--parallel", "--option"})

    assert said("--env", "swe", "--parallel-envs", "8", "--max-steps", "30") == [
        "--env", "swe", "--parallel", "8", "--option", "max_turns=30",
    ]  # fmt: skip
    assert said("--swe-bench-path", "/data/swe", "--tools-config=tools.json") == [
        "--option", "path=/data/swe", "--option", "tools=tools.json",
    ]  # fmt: skip
    with pytest.raises(ClawError, match="screenshot-backend") as caught:
        said("--screenshot-backend", "selenium")
    assert "Playwright" in caught.value.fix
    assert said("--use-screenshots", "--screenshot-backend", "playwright") == ["--option", "screenshots=true"] * 2


@pytest.mark.parametrize("name", ["training_config.yaml", "voting.yaml", "rollout_config.json"])
def test_the_described_recipes_are_converted_and_each_key_has_a_result(name: str) -> None:
    path = Path(__file__).parents[4] / "shared" / "described" / name
    if not path.exists():
        pytest.skip("the described system's examples are not here")
    _, _, lines = convert(path)
    assert lines
    assert {line.fate for line in lines} <= {"converted", "dropped", "same default"}
