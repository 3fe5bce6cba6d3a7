"""A tiny random model with its own tokenizer, and judged turns sampled from it with their exact logprobs."""

import math
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clawctl.config import Recipe
from clawctl.run.allowed_tokens import Allowed
from clawctl.run.directory import RunDir
from clawctl.run.rows import Turn, Verdict
from clawctl.run.shards import write_turns, write_verdicts
from clawctl.train import loop
from clawctl.trainers.local.ranks import Ranks
from clawctl.trainers.local.trainer import LocalTrainer
from clawctl.trainers.local.training import Training
from clawctl.trainers.texts import TokenizerTexts

TEMPLATE = (
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + (m.content or '') + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)
HINT = "Write plain sentences, without bold or numbered steps."


def make_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    text = ["hello please solve the homework 1 2 3 write plain sentences without bold or numbered steps user assistant hint"] * 5
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    inner.train_from_iterator(text, trainer)
    ends = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return PreTrainedTokenizerFast(tokenizer_object=inner, chat_template=TEMPLATE, **ends)


def make_model(folder: Path, layers: int = 2, hidden: int = 32, dtype: torch.dtype = torch.float32, vocabulary: int = 0) -> Path:
    """A random Qwen3 that is peaked enough to have something to learn."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary or len(tokenizer), hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
        num_attention_heads=2, num_key_value_heads=1, head_dim=hidden // 2, max_position_embeddings=4096, tie_word_embeddings=True,
        initializer_range=0.2, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    Qwen3ForCausalLM(config).to(dtype).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@dataclass
class Sampler:
    """The model as a server would run it: samples turns with the exact logprob of each token."""

    path: Path

    def __post_init__(self) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.model: Any = AutoModelForCausalLM.from_pretrained(self.path, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(self.path)

    @torch.no_grad()
    def turn(
        self, name: str, tokens: int = 12, temperature: float = 0.8, seed: int = 0, sets: Allowed | None = None, **changes: Any
    ) -> Turn:
        """`sets`: of a structured answer, which tokens may be drawn in each place."""
        messages = [{"role": "system", "content": "hello"}, {"role": "user", "content": f"please solve the homework {name}"}]
        prompt = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        generator = torch.Generator().manual_seed(seed)
        ids, logprobs, cache = list(prompt), [], None
        step = torch.tensor([ids])
        for position in range(tokens if sets is None else len(sets.which)):
            out = self.model(input_ids=step, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            scaled = (only(out.logits[0, -1].float(), sets, position) / temperature).log_softmax(-1)
            token = int(torch.multinomial(scaled.exp(), 1, generator=generator))
            logprobs.append(float(scaled[token]))
            ids.append(token)
            step = torch.tensor([[token]])
        text = self.tokenizer.decode(ids[len(prompt) :])
        turn = Turn(
            turn_id=name, session_id=f"s-{name}", parent_turn_id=None, turn_index=0, kind="main", source="serve",
            task_id="homework-1", group_id=None, user="default", created_at=time.time(), messages=messages, tools=None,
            response={"role": "assistant", "content": text}, next_state=[{"role": "user", "content": "no"}],
            prompt_ids=list(prompt), completion_ids=ids[len(prompt) :], logprobs=logprobs, policy_version=0,
            policy_version_end=0, temperature=temperature, top_p=1.0, top_k=0, finish_reason="length", outcome_reward=None,
            feedback=None, trainable=True, untrainable_reason=None, allowed=None if sets is None else sets.packed(),
        )  # fmt: skip
        return replace(turn, **changes)


def only(logits_V: torch.Tensor, sets: Allowed | None, position: int) -> torch.Tensor:
    """The logits, with minus infinity for each token that is not allowed at the position."""
    if sets is None or sets.which[position] < 0:
        return logits_V
    bits = np.unpackbits(np.frombuffer(sets.sets[sets.which[position]], np.uint8), bitorder="little", count=len(logits_V))
    return logits_V.masked_fill(torch.from_numpy(bits == 0), float("-inf"))


def make_sets(vocabulary: int, sizes: list[int], seed: int = 0) -> Allowed:
    """Random sets of so many tokens, one for each place of an answer; 0: any token."""
    choose, distinct = np.random.default_rng(seed), []
    for size in sizes:
        bits = np.zeros(32 * ((vocabulary + 31) // 32), np.uint8)
        bits[choose.permutation(vocabulary)[:size]] = 1
        distinct.append(np.packbits(bits, bitorder="little").tobytes())
    which = [-1 if size == 0 else index for index, size in enumerate(sizes)]
    return Allowed(vocabulary, tuple(which), tuple(distinct))


def verdict(turn: Turn, reward: float | None = 1.0, hint: str | None = None) -> Verdict:
    votes = [] if reward is None or not math.isfinite(reward) else [int(reward)]
    return Verdict(turn.turn_id, reward, votes, hint, [hint] if hint else [], "crafts@0 prompt 1", None, 0.1)


def publish_shard(run: RunDir, stem: str, rows: list[tuple[Turn, float | None, str | None]]) -> None:
    write_turns(run.trajectories / f"{stem}.parquet", [turn for turn, _, _ in rows])
    write_verdicts(run.verdicts / f"{stem}.parquet", [verdict(turn, reward, hint) for turn, reward, hint in rows])


def publish_turns(run: RunDir, sampler: Sampler, count: int, stem: str = "a", **changes: Any) -> list[Turn]:
    """Publish one shard. Rewards alternate, lengths differ, and every second turn with reward -1 has a hint."""
    rows = []
    for i in range(count):
        reward = 1.0 if i % 2 else -1.0
        name = f"{stem}{i:02d}"
        rows.append((sampler.turn(name, tokens=5 + 3 * (i % 4), seed=i, **changes), reward, HINT if i % 4 == 0 else None))
    publish_shard(run, stem, rows)
    return [turn for turn, _, _ in rows]


def run_training(run: RunDir, recipe: Recipe, ranks: Ranks, stop: threading.Event, once: bool) -> None:
    loop.run_training(run, recipe, LocalTrainer(recipe, ranks), stop, once)


def resume(run: RunDir, recipe: Recipe, ranks: Ranks) -> Training:
    """The model and optimizer with which training continues."""
    trainer = LocalTrainer(recipe, ranks)
    loop.resume(run, recipe, trainer)
    return trainer.training


def texts_of(sampler: Sampler) -> TokenizerTexts:
    return TokenizerTexts(sampler.tokenizer, len(sampler.tokenizer), 4096)


def make_recipe(model: Path, **train: Any) -> Recipe:
    settings = {"batch_turns": 4, "lr": 1e-3, "threads": 1, **train}
    return Recipe.model_validate({"model": {"path": str(model)}, "train": settings})
