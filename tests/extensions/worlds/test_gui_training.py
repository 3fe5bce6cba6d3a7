"""Websites through the real stages: a real server and browser, then collect, judge and one training step."""

import threading
from itertools import pairwise
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from clawctl.collect.worker import collect
from clawctl.config import Recipe
from clawctl.environments.worker import play
from clawctl.judge.worker import judge
from clawctl.run.directory import published
from clawctl.run.policies import live_version
from clawctl.run.shards import read_turns
from tests.extensions.worlds.test_gui import needs_browser
from tests.serve.served import SPECIAL, TEMPLATE, Server, recipe_data
from tests.train.tiny import run_training
from tests.trainers.local.test_train_step import ALONE

CLICK = "click 2"  # the right answer to both tasks with seed 5


def build_clicking_model(folder: Path) -> Path:
    """A model that answers with CLICK. Its layers add nothing at first, so the next token depends on the last one alone."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([CLICK] * 3, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    config = Qwen3Config(
        vocab_size=len(fast), hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=4096, tie_word_embeddings=False,
        eos_token_id=fast.eos_token_id, pad_token_id=fast.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    tokens = [fast.encode("\n")[-1], *fast.encode(CLICK), fast.eos_token_id]
    before, after = model.model.embed_tokens.weight, model.lm_head.weight
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        before.zero_()
        after.zero_()
        before[:, -1] = 1
        for state, (last, following) in enumerate(pairwise(tokens)):
            before[last] = torch.eye(64)[state]
            after[following, state] = 2
    model.generation_config.eos_token_id = fast.eos_token_id
    model.save_pretrained(folder)
    return folder


@needs_browser
def test_played_websites_are_collected_judged_and_trained(tmp_path: Path) -> None:
    model = build_clicking_model(tmp_path / "model")
    sections = {
        "play": {"env": "gui", "tasks": 2, "seed": 5, "attempts": 1, "options": {"pages": "press"}},
        "judge": {"hints": "off"},
        "train": {"method": "binary", "batch_turns": 2, "threads": 1},
    }
    recipe = Recipe.model_validate({**recipe_data(model), **sections})
    with Server(tmp_path / "run", model, patience_s=600.0) as server:
        summary = play(server.run, recipe)
        assert (dict(summary.endings), summary.rewards) == ({"done": 2}, [1, 1])
        collect(server.run, recipe, once=True)
    turns = [turn for path in published(server.run.trajectories, ".parquet") for turn in read_turns(path)]
    assert [(turn.outcome_reward, turn.trainable) for turn in turns] == [(1, True)] * 2
    judge(server.run, recipe, once=True)
    run_training(server.run, recipe, ALONE, threading.Event(), once=True)
    assert live_version(server.run) == 1
