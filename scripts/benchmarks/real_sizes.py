"""Steps of the same movement, whatever the model's size and the trained weights: `lr: auto` at 1, 10 and 135 million weights, with
adapters of rank 4 and 16 and with all weights.

The two small models have the architecture and tokenizer of the pretrained one and random weights. Each makes the same steps on good
and bad answers. `moved` is the largest factor between the movement that a step should have and the one that it had, and
`learning_rate` is what the last step needed for it.
"""

import shutil
from itertools import product
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from clawctl.config import Recipe, load_recipe
from clawctl.train.sample import Batch, Sample
from clawctl.trainers.local.ranks import Ranks
from clawctl.trainers.local.trainer import LocalTrainer
from scripts.benchmarks.real_circle import RECIPE, lines
from scripts.benchmarks.table import Row

SIZES = {"1M": (16, 2), "10M": (160, 8), "135M": None}  # hidden size and layers; None: the pretrained model
TRAINED = {"rank_4": {"rank": 4, "alpha": 8}, "rank_16": {"rank": 16, "alpha": 32}, "all_weights": None}
STEPS, TURNS, ANSWER_TOKENS = 3, 8, 32
MOVEMENT = 0.01


def size_rows(folder: Path) -> list[Row]:
    recipe = load_recipe(RECIPE)
    tokenizer: Any = AutoTokenizer.from_pretrained(recipe.model_path)
    rows = []
    for (size, shape), (trained, lora) in product(SIZES.items(), TRAINED.items()):
        path = Path(recipe.model_path) if shape is None else _random_model(Path(recipe.model_path), folder / size, *shape)
        train = {"method": "binary", "lora": lora, "lr": "auto", "movement": MOVEMENT, "batch_turns": TURNS}
        factor, rate = _steps(Recipe.model_validate({"model": {"path": str(path)}, "train": train}), tokenizer)
        rows += [
            Row(f"lr auto {size} {trained}", "moved", factor, "times or part of the wanted movement"),
            Row(f"lr auto {size} {trained}", "learning_rate", rate, ""),
        ]
        print(f"{size} {trained}: moved {factor:.2f} times, learning rate {rate:.1e}", flush=True)
    return rows


def _random_model(pretrained: Path, folder: Path, hidden: int, layers: int) -> Path:
    """A smaller model with random weights, in a folder with the tokenizer."""
    if not folder.exists():
        config: Any = AutoConfig.from_pretrained(pretrained)
        config.update({
            "hidden_size": hidden, "intermediate_size": 3 * hidden, "num_hidden_layers": layers,
            "num_attention_heads": hidden // 8, "num_key_value_heads": hidden // 8, "head_dim": 8,
        })  # fmt: skip
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        for file in pretrained.glob("*token*"):
            shutil.copy(file, folder)
    return folder


def _steps(recipe: Recipe, tokenizer: Any) -> tuple[float, float]:
    """The largest factor between the wanted movement and that of a step, and the learning rate of the last step."""
    trainer = LocalTrainer(recipe, Ranks(0, 1, torch.device("cpu")))
    trainer.resume(0, None, None)
    factors, rate = [], 0.0
    for step in range(1, STEPS + 1):
        row = trainer.step(_batch(step, tokenizer)).row
        assert row is not None
        factors.append(max(row["moved"] / MOVEMENT, MOVEMENT / row["moved"]))
        rate = row["lr"]
    return max(factors), rate


def _batch(step: int, tokenizer: Any) -> Batch:
    """Requests whose answers, good and bad in turn, are other requests: texts that none of these models wrote."""
    requests, answers = lines("past_requests.txt"), lines("new_requests.txt")
    samples = []
    for number in range(TURNS):
        messages = [{"role": "user", "content": requests[(number + step) % len(requests)]}]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True).input_ids
        answer = tokenizer(answers[number], add_special_tokens=False).input_ids[:ANSWER_TOKENS]
        reward = 1.0 if number % 2 else -1.0
        samples.append(Sample(f"{step}-{number}", "s", "k", list(prompt), answer, None, 0.7, 0, reward, None, imported=True))
    return Batch(step, samples)
